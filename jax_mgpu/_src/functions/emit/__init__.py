"""Writes a traced function of items as lines of operations on scalars, which a call carries as data.

A small array becomes a NumPy array of names, one per scalar. A primitive that works element by element is written for
each element; one that only moves elements moves names, without a line. Large captured arrays stay in memory.
ffi/jit/function_data.cc checks the lines and writes C++ from them; ffi/function/primitives.h defines the operations.

A module of this list uses modules before it:

- scalars.py, layout.py, memory.py: scalars, leaves of an item, captured arrays.
- lines.py: the lines of a function, and names of their results.
- elementwise.py, along_axes.py, indexing.py, moves.py: a rule for each primitive.
- jaxpr.py: applies the rules to a jaxpr, with its calls and control flow.
- operator.py, order.py: operators and orders as data.
"""

from jax_mgpu._src.functions.emit.layout import Layout
from jax_mgpu._src.functions.emit.operator import OperatorData, Stage, emit_operator
from jax_mgpu._src.functions.emit.order import OrderData, emit_order
from jax_mgpu._src.functions.emit.scalars import Unsupported

__all__ = ["Layout", "OperatorData", "OrderData", "Stage", "Unsupported", "emit_operator", "emit_order"]
