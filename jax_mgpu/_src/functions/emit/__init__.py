"""Writes a traced function of items as lines of operations on scalars, which a call carries as data.

Small arrays are taken apart: a value becomes a NumPy array of names, one for each of its scalars. A primitive that
works element by element becomes a line for each element. One that only moves elements becomes no line: only the names
move. Large arrays that a function captures stay in memory; only their indexed elements are loaded.
ffi/jit/function_data.cc defines the language: it checks the lines, and writes C++ from them. ffi/function/primitives.h
defines each operation.

The modules, in an order in which each uses only those before it:

- scalars.py, layout.py, memory.py: scalars, the leaves of an item, captured arrays.
- lines.py: the lines of a function, and names for their results.
- elementwise.py, along_axes.py, indexing.py, moves.py: a rule for each primitive, by its effect on an array.
- jaxpr.py: reads the equations of a jaxpr, calls and control flow among them, and applies the rules.
- operator.py, order.py: operators and orders as data.
"""

from jax_mgpu._src.functions.emit.layout import Layout
from jax_mgpu._src.functions.emit.operator import OperatorData, Stage, emit_operator
from jax_mgpu._src.functions.emit.order import OrderData, emit_order
from jax_mgpu._src.functions.emit.scalars import Unsupported

__all__ = ["Layout", "OperatorData", "OrderData", "Stage", "Unsupported", "emit_operator", "emit_order"]
