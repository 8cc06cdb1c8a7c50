"""Writes an operator as data: how it makes states from items, combines states, and makes results from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_mgpu._src.core.compat import ClosedJaxpr
from jax_mgpu._src.functions.emit.jaxpr import Writer, emit_function, emit_stages
from jax_mgpu._src.functions.emit.layout import Layout, expect_layout
from jax_mgpu._src.functions.emit.memory import Captures
from jax_mgpu._src.functions.emit.scalars import Names, scalar_type


@dataclasses.dataclass(frozen=True)
class Stage:
    """Makes states from items in memory, or results from states.

    Args:
      closed: jaxprs, each of which takes the previous one's results. If the stage makes states, each also takes the
        position of the item as its last argument.
      avals: the leaves in memory that the first one takes, or that the last one gives.
    """

    closed: tuple[Any, ...]
    avals: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class OperatorData:
    """An operator as data, which ffi/jit/function_data.cc reads and ffi/function/operator.h runs in kernels.

    Args:
      data: the lines of its functions.
      item: the layout of a state without its flag.
      element: the layout of an item in memory.
      results: the leaves of a result.
      captures: arrays that stay in memory, by number.
      commutes: whether the operator is known to commute.
      has_neutral: whether it has a neutral state; otherwise each state needs a flag that says if it is empty.
    """

    data: str
    item: Layout
    element: Layout
    results: tuple[Any, ...]
    captures: tuple[Any, ...]
    commutes: bool
    has_neutral: bool

    @property
    def state_bytes(self) -> int:
        """The size of a state of the kernels."""
        return self.item.bytes if self.has_neutral else self.item.bytes + (8 if self.item.align == 8 else 4)

    @property
    def largest_bytes(self) -> int:
        """The size of an item in memory, or of a state without its flag if larger."""
        return max(self.item.bytes, self.element.bytes)


def emit_operator(
    closed: ClosedJaxpr,
    avals: Sequence[Any],
    nothing: Sequence[Any] | None = None,
    *,
    reverse: bool = False,
    exclusive: bool = False,
    takes_next: bool = False,
    commutes: bool = False,
    neutral: Sequence[Any] | None = None,
    dead: int = 0,
    load: Stage | None = None,
    finish: Stage | None = None,
) -> OperatorData:
    """Returns an operator that takes the leaves of two states, and gives those of one.

    Args:
      closed: the jaxpr.
      avals: the leaves of a state.
      nothing: the result over no items, if it can occur.
      reverse: whether a scan goes from the end.
      exclusive: whether a scan leaves out the position's own item.
      takes_next: whether `finish` also takes the leaves of the item in memory. The last leaf is then that of the next
        row in the direction of the scan, and 0 after the last row. For scans of rows.
      commutes: a promise that the operator commutes.
      neutral: a state that changes nothing, if known.
      dead: the result for an item past the count.
      load: makes a state from an item and its position, unless an item is a state.
      finish: makes a result from a state, unless a state is a result.
    """
    item = expect_layout(Layout.of(avals))
    element = item if load is None else expect_layout(Layout.of(load.avals))
    result = item if finish is None else expect_layout(Layout.of(finish.avals))
    result_avals = avals if finish is None else finish.avals
    capture = Captures()
    emitted = emit_function(closed, item.names("a") + item.names("b"), capture)
    writer = Writer(capture)

    def filled(value: Any, avals: Sequence[Any]) -> list[Names]:
        return [writer.constant(np.full(aval.shape, value), aval.dtype) for aval in avals]

    known = emitted.neutral if nothing is None else None
    has_neutral = neutral is not None or known is not None
    commutes = commutes or emitted.neutral is not None
    flags = {"commutes": commutes, "reverse": reverse, "exclusive": exclusive, "next": takes_next}
    text = [item.line("item")]
    if load is not None:
        text += [element.line("element"), f"position {scalar_type(load.closed[0].in_avals[-1].dtype)}"]
    if finish is not None:
        text.append(result.line("result"))
    text.append(" ".join(["flags", *(name for name, on in flags.items() if on)]))
    text += function_lines("combine", emitted.body, emitted.results, emitted.is_large, emitted.branches)
    text += function_lines("dead", [], filled(dead, result_avals))
    if neutral is not None:
        values = [writer.constant(value, aval.dtype) for value, aval in zip(neutral, avals, strict=True)]
        text += function_lines("neutral", [], values)
    elif known is not None:
        values = [filled(value, [aval])[0] for value, aval in zip(known, avals, strict=True)]
        text += function_lines("neutral", [], values)
    else:
        values = filled(0, result_avals) if nothing is None else [writer.loaded(writer.captured(v)) for v in nothing]
        text += function_lines("nothing", writer.lines, values)
    if load is not None:
        position = np.empty((), object)
        position[()] = "position"
        made = emit_stages(load.closed, element.names("x"), [position], capture)
        text += function_lines("load", made.body, made.results, made.is_large)
    if finish is not None:
        beside = element.names("e") if takes_next else []
        made = emit_stages(finish.closed, item.names("x") + beside, [], capture)
        text += function_lines("finish", made.body, made.results)
    captures = tuple(capture.arrays)
    return OperatorData("\n".join(text), item, element, tuple(result_avals), captures, commutes, has_neutral)


def function_lines(
    name: str, body: Sequence[str], results: Sequence[Names], is_large: bool = False, branches: bool = False
) -> list[str]:
    """Returns the lines of a function that gives these values."""
    marks = [mark for mark, on in (("called", is_large), ("branches", branches)) if on]
    given = [value for values in results for value in values.flat]
    return [" ".join(["function", name, *marks]), *body, " ".join(["give", *given])]
