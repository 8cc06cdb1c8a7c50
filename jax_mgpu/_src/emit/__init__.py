"""Writes a traced function of items as C++ for the kernels.

Small arrays are taken apart: a value is a NumPy array of C++ names, one for each scalar. A primitive that works element
by element becomes a line for each element, and one that only moves elements costs nothing. Large arrays that a function
captures stay in memory; only their indexed elements are loaded. ffi/function/primitives.h has the meaning of each
primitive.

The modules, each of which uses those before it:

- scalars.py, layout.py, memory.py: scalars, the struct of an item, captured arrays, each in C++.
- lines.py: the lines of a function, and names for what they compute.
- elementwise.py, along_axes.py, indexing.py, moves.py: a rule for each primitive, by what it does to an array.
- jaxpr.py: reads the equations, with calls and control flow, and applies the rules.
- operator.py, order.py: the struct `Function` of an operator and of an order, the text that a call carries.
"""

from jax_mgpu._src.emit.layout import Layout
from jax_mgpu._src.emit.operator import OperatorSource, Stage, emit_operator
from jax_mgpu._src.emit.order import OrderSource, emit_order
from jax_mgpu._src.emit.scalars import Unsupported

__all__ = ["Layout", "OperatorSource", "OrderSource", "Stage", "Unsupported", "emit_operator", "emit_order"]
