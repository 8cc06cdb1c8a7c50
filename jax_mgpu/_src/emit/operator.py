"""Writes an operator as C++: the struct `Function`, which combines states, and makes them of items."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_mgpu._src.emit.jaxpr import Writer, emit_function, emit_stages
from jax_mgpu._src.emit.layout import Layout, expect_layout
from jax_mgpu._src.emit.memory import Captures
from jax_mgpu._src.emit.scalars import Names, scalar_type

__all__ = ["OperatorSource", "Stage", "emit_operator"]


@dataclasses.dataclass(frozen=True)
class Stage:
    """What makes an operator's states of the items in memory, or its results of states.

    Args:
      closed: jaxprs, each of which takes the results of the one before; those of items take the position last.
      avals: the leaves that the first takes, or that the last gives, in memory.
    """

    closed: tuple[Any, ...]
    avals: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class OperatorSource:
    """An operator as C++: `Function` and its structs. ffi/function/operator.h makes the kernels' operators of them.

    Args:
      text: the structs.
      item: what it combines.
      element: what lies in memory.
      captures: the arrays that stay in memory, in the order of their pointers.
      commutes: whether it certainly does.
      has_neutral: whether states need not say that they are of nothing.
    """

    text: str
    item: Layout
    element: Layout
    captures: tuple[Any, ...]
    commutes: bool
    has_neutral: bool

    @property
    def state_bytes(self) -> int:
        """The size of a state of the kernels."""
        return self.item.bytes if self.has_neutral else self.item.bytes + (8 if self.item.align == 8 else 4)

    @property
    def largest_bytes(self) -> int:
        """The size of an element, or of what is made of it, where that is larger."""
        return max(self.item.bytes, self.element.bytes)


def emit_operator(
    closed: Any,
    avals: Sequence[Any],
    nothing: Sequence[Any] | None = None,
    *,
    reverse: bool = False,
    exclusive: bool = False,
    commutes: bool = False,
    neutral: Sequence[Any] | None = None,
    dead: int = 0,
    load: Stage | None = None,
    finish: Stage | None = None,
) -> OperatorSource:
    """The operator of a closed jaxpr, which takes the leaves of two states and gives those of one.

    Args:
      closed: the jaxpr.
      avals: the leaves of a state.
      nothing: the result over no items, where there may be such a result.
      reverse: whether a scan goes from the end.
      exclusive: whether a scan leaves out the position's own item.
      commutes: a promise that the operator does.
      neutral: a state that changes nothing in a combination, where that is known.
      dead: the result for an item past the count.
      load: what makes a state of an item and its position, where an item is not a state itself.
      finish: what makes a result of a state, where a state is not a result itself.
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
    members = [
        _member(
            "Item combine(const Item& a, const Item& b) const", emitted.body, emitted.results, item, emitted.is_large
        ),
        _member("static Item zero()", "", filled(0, avals), item),
        _member("static Result dead()", "", filled(dead, result_avals), result, kind="Result"),
    ]
    if neutral is not None:
        values = [writer.constant(value, aval.dtype) for value, aval in zip(neutral, avals, strict=True)]
        members.append(_member("Item neutral() const", "", values, item))
    elif known is not None:
        values = [filled(value, [aval])[0] for value, aval in zip(known, avals, strict=True)]
        members.append(_member("Item neutral() const", "", values, item))
    else:
        values = filled(0, result_avals) if nothing is None else [writer.loaded(writer.captured(v)) for v in nothing]
        members.append(_member("Result nothing() const", "\n".join(writer.lines), values, result, kind="Result"))
    if load is not None:
        position = _named(f"static_cast<{scalar_type(load.closed[0].in_avals[-1].dtype)}>(position)")
        made = emit_stages(load.closed, element.names("x"), [position], capture)
        signature = "Item load(const Element& x, int64_t position) const"
        members.append(_member(signature, made.body, made.results, item, made.is_large))
    if finish is not None:
        made = emit_stages(finish.closed, item.names("x"), [], capture)
        members.append(_member("Result finish(const Item& x) const", made.body, made.results, result, kind="Result"))
    has_neutral = neutral is not None or known is not None
    commutes = commutes or emitted.neutral is not None
    flags = {
        "HasNeutral": has_neutral,
        "Commutes": commutes,
        "Branches": emitted.branches,
        "Loads": load is not None,
        "Finishes": finish is not None,
        "Reverse": reverse,
        "Exclusive": exclusive,
    }
    structs, names = [], {"Item": "FunctionItem", "Element": "FunctionItem", "Result": "FunctionItem"}
    for name, layout in (("Item", item), ("Element", element), ("Result", result)):
        if name == "Item" or layout is not item:
            names[name] = f"Function{name}"
            largest = max(item.bytes, layout.bytes) if name == "Element" else None
            structs.append(
                f"{layout.text(names[name], largest)}static_assert(sizeof({names[name]}) == {layout.bytes});\n"
            )
    text = (
        "".join(structs)
        + "struct Function {\n"
        + "".join(f"  using {name} = {struct};\n" for name, struct in names.items())
        + "".join(f"  static constexpr bool k{flag} = {'true' if on else 'false'};\n" for flag, on in flags.items())
        + f"  mgpu::Captures captures;\n{''.join(members)}}};\n"
    )
    return OperatorSource(text, item, element, tuple(capture.arrays), commutes, has_neutral)


def _member(
    signature: str, body: str, results: Sequence[Names], item: Layout, is_large: bool = False, kind: str = "Item"
) -> str:
    """A member function that gives a struct."""
    lines = [body] if body else []
    lines.append(f"    {kind} result;")
    for variable, values in zip(item.names("result"), results, strict=True):
        lines += [f"    {variable[index]} = {values[index]};" for index in np.ndindex(*variable.shape)]
    marker = "MGPU_CALLED" if is_large else "MGPU_HOST_DEVICE"
    return f"  {marker} {signature} {{\n" + "\n".join([*lines, "    return result;"]) + "\n  }\n"


def _named(name: str) -> Names:
    """A scalar of this name."""
    names = np.empty((), object)
    names[()] = name
    return names
