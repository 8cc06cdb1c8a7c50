"""Writes a traced function of items as lines of operations on scalars, which a call carries as data.

Small arrays are taken apart: a value is a NumPy array of names, one for each scalar. A primitive that works element by
element becomes a line for each element, and one that only moves elements costs nothing. Large arrays that a function
captures stay in memory; only their indexed elements are loaded. ffi/jit/function_data.cc defines the language: it
checks the lines, and writes C++ from them. ffi/function/primitives.h defines each operation.

The modules, each of which uses those before it:

- scalars.py, layout.py, memory.py: scalars, the leaves of an item, captured arrays.
- lines.py: the lines of a function, and names for their results.
- elementwise.py, along_axes.py, indexing.py, moves.py: a rule for each primitive, by its effect on an array.
- jaxpr.py: reads the equations, with calls and control flow, and applies the rules.
- operator.py, order.py: operators and orders as data.
"""

from jax_mgpu._src.functions.emit.layout import Layout
from jax_mgpu._src.functions.emit.operator import OperatorData, Stage, emit_operator
from jax_mgpu._src.functions.emit.order import OrderData, emit_order
from jax_mgpu._src.functions.emit.scalars import Unsupported

__all__ = ["Layout", "OperatorData", "OrderData", "Stage", "Unsupported", "emit_operator", "emit_order"]
