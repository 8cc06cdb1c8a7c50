"""Writes an order of items as C++: the struct `Function`, which says whether an item comes before another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax_mgpu._src.emit.jaxpr import Writer
from jax_mgpu._src.emit.layout import Layout, expect_layout
from jax_mgpu._src.emit.memory import Captures
from jax_mgpu._src.emit.scalars import Unsupported

__all__ = ["OrderSource", "emit_order"]


@dataclasses.dataclass(frozen=True)
class OrderSource:
    """An order of items as C++: `Function` and its item. ffi/function/order.h makes the kernels' order of them.

    Args:
      text: the structs.
      captures: the arrays that stay in memory, in the order of their pointers.
    """

    text: str
    captures: tuple[Any, ...]


def emit_order(closed: Any, avals: Sequence[Any]) -> OrderSource:
    """The order of a closed jaxpr, which takes the leaves of two items and says whether the first comes first."""
    item, capture = expect_layout(Layout.of(avals)), Captures()
    writer = Writer(capture)
    (result,) = writer.closed(closed, item.names("a") + item.names("b"))
    name = writer.loaded(result).item()
    if writer.may_not_end:
        raise Unsupported("a while loop in an order, which the kernels also ask about what is no key")
    emitted = writer.emitted([], None)
    marker = "MGPU_CALLED" if emitted.is_large else "MGPU_HOST_DEVICE"
    text = (
        f"{item.text('FunctionItem')}static_assert(sizeof(FunctionItem) == {item.bytes});\n"
        "struct Function {\n  using Item = FunctionItem;\n  mgpu::Captures captures;\n"
        f"  {marker} bool less(const Item& a, const Item& b) const {{\n{emitted.body}\n    return {name};\n  }}\n}};\n"
    )
    return OrderSource(text, tuple(capture.arrays))
