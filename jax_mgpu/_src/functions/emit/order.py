"""Writes an order of items, which tells whether one item comes before another, as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax_mgpu._src.core.compat import ClosedJaxpr
from jax_mgpu._src.functions.emit.jaxpr import Writer
from jax_mgpu._src.functions.emit.layout import Layout, expect_layout
from jax_mgpu._src.functions.emit.memory import Captures
from jax_mgpu._src.functions.emit.operator import function_lines
from jax_mgpu._src.functions.emit.scalars import Unsupported


@dataclasses.dataclass(frozen=True)
class OrderData:
    """An order of items as data, which ffi/jit/function_data.cc reads and ffi/function/order.h runs in kernels.

    Args:
      data: the lines of its function.
      captures: arrays that stay in memory, by number.
    """

    data: str
    captures: tuple[Any, ...]


def emit_order(closed: ClosedJaxpr, avals: Sequence[Any]) -> OrderData:
    """Returns the order of a jaxpr over two items' leaves."""
    item, capture = expect_layout(Layout.of(avals)), Captures()
    writer = Writer(capture)
    (result,) = writer.closed(closed, item.names("a") + item.names("b"))
    given = writer.loaded(result)
    if writer.may_not_end:
        raise Unsupported("a while loop in an order, which may not end for padding that the kernels also compare")
    emitted = writer.emitted([given], None)
    lines = [item.line("item"), *function_lines("less", emitted.body, [given], emitted.is_large)]
    return OrderData("\n".join(lines), tuple(capture.arrays))
