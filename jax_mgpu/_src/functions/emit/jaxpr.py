"""Reads the equations of a jaxpr, and writes their lines; has the rules for calls and control flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jax_mgpu._src.core.compat import ClosedJaxpr, Jaxpr, JaxprEqn, interpret, scan_operands
from jax_mgpu._src.functions.emit import along_axes, elementwise, indexing
from jax_mgpu._src.functions.emit.elementwise import COSTLY
from jax_mgpu._src.functions.emit.lines import Emitted, Lines, stored
from jax_mgpu._src.functions.emit.memory import VIEWS, Memory
from jax_mgpu._src.functions.emit.moves import MOVES, row
from jax_mgpu._src.functions.emit.scalars import MAX_ITEM_SCALARS, Names, Unsupported, expect_small, neutral
from jax_mgpu._src.keys.bits import is_random_key

# Random keys are rows of words already, so these do nothing.
RANDOM_KEY_WORDS = frozenset(["random_wrap", "random_unwrap"])
SAME_VALUE = frozenset(["copy", "copy_p", "stop_gradient", "optimization_barrier", "pvary", "pcast", "reshard"])
CALLS = {
    "pjit": "jaxpr",
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "remat2": "jaxpr",
    "remat": "jaxpr",
    "checkpoint": "jaxpr",
}


def called(equation: JaxprEqn) -> tuple[Jaxpr, Sequence[Any]] | None:
    """Returns the jaxpr that an equation calls, and its constants, or None."""
    body = equation.params.get(CALLS.get(equation.primitive.name, ""))
    return None if body is None else (getattr(body, "jaxpr", body), getattr(body, "consts", ()))


RULES = elementwise.RULES | along_axes.RULES | indexing.RULES
MAX_STEPS = 64  # the most steps of a scan over arrays, which is unrolled


class Writer(Lines):
    """Writes the lines of one function.

    Args:
      capture: returns a reference to a captured array that stays in memory.
    """

    def __init__(self, capture: Callable[[Any], Memory]):
        super().__init__()
        self.capture = capture

    def closed(self, closed: ClosedJaxpr, arguments: Sequence[Any]) -> list[Any]:
        """Returns a jaxpr's results; it may have constants."""
        return self.jaxpr(closed.jaxpr, [self.captured(const) for const in closed.consts], arguments)

    def captured(self, const: Any) -> Any:
        """Returns a constant's names, or a reference if it stays in memory."""
        if is_random_key(const.dtype):
            raise Unsupported("a captured random key")
        if isinstance(const, jax.core.Tracer) or np.size(const) > MAX_ITEM_SCALARS:
            return self.capture(const)
        return self.constant(const, const.dtype)

    def jaxpr(self, jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """Returns the results of a jaxpr's equations."""
        if jaxpr.effects:
            raise Unsupported(f"effects, {', '.join(sorted(map(str, jaxpr.effects)))}")
        return interpret(jaxpr, consts, arguments, lambda x: self.constant(x.val, x.aval.dtype), self.equation)

    def equation(self, equation: JaxprEqn, arguments: list[Any]) -> Sequence[Any]:  # noqa: PLR0911 -- a case each
        """Returns the results of one equation."""
        primitive, params = equation.primitive.name, equation.params
        outs: list[Any] = [var.aval for var in equation.outvars]
        if (body := called(equation)) is not None:
            return self.jaxpr(body[0], [self.captured(const) for const in body[1]], arguments)
        if primitive in SAME_VALUE or primitive in RANDOM_KEY_WORDS:
            return arguments
        if primitive != "select_n":
            _expect_no_random_keys(primitive, equation)
        if primitive in CONTROL_FLOW:
            return CONTROL_FLOW[primitive](self, equation, *arguments)
        if primitive in indexing.OF_MEMORY:
            result: Sequence[Any] = indexing.OF_MEMORY[primitive](self, equation, *arguments)
            return result
        if arguments and isinstance(arguments[0], Memory) and primitive in VIEWS and len(arguments) == 1:
            return [VIEWS[primitive](arguments[0], params)]
        names = [self.loaded(x) for x in arguments]
        if primitive in MOVES:
            for out in outs:
                expect_small(out.shape, primitive)
            moved = MOVES[primitive](*names, **params)
            return moved if equation.primitive.multiple_results else [moved]
        aval = stored(outs[0])
        expect_small(aval.shape, primitive)
        self.costly += aval.size if primitive in COSTLY else 0
        if primitive not in RULES:
            raise Unsupported(f"the primitive {primitive}")
        return [RULES[primitive](self, equation, *names)]


def _expect_no_random_keys(primitive: str, equation: JaxprEqn) -> None:
    avals = [atom.aval for atom in (*equation.invars, *equation.outvars)]
    if any(hasattr(aval, "dtype") and is_random_key(aval.dtype) for aval in avals):
        raise Unsupported(f"{primitive} of random keys")


# ---- Control flow


def _cond(writer: Writer, equation: Any, which: Any, *operands: Any) -> list[Any]:
    branches = equation.params["branches"]
    results = [writer.variables(var.aval) for var in equation.outvars]
    writer.branches = True
    writer.line("switch", writer.loaded(which).item(), len(branches))
    for branch in branches:
        writer.line("case")
        for variables, values in zip(results, writer.closed(branch, operands), strict=True):
            writer.assign(variables, writer.loaded(values))
    writer.line("end")
    return results


def _loop(
    writer: Writer,
    opening: Sequence[object],
    carry: Sequence[Names],
    avals: Sequence[Any],
    body: Callable[[], list[Any]],
) -> None:
    """Writes a loop whose body gives the next values of the carried variables."""
    writer.branches = True
    writer.line(*opening)
    held = []
    for values, aval in zip(body(), avals, strict=True):
        names = writer.loaded(values)
        held.append(writer.each(lambda x, dtype=aval.dtype: writer.value(dtype, "copy", x), [names], aval.shape))
    for variables, values in zip(carry, held, strict=True):
        writer.assign(variables, values)
    writer.line("end")


def _carried(writer: Writer, avals: Sequence[Any], values: Sequence[Any]) -> list[Names]:
    carry = [writer.variables(aval) for aval in avals]
    for variables, initial in zip(carry, values, strict=True):
        writer.assign(variables, writer.loaded(initial))
    return carry


def _while(writer: Writer, equation: JaxprEqn, *operands: Any) -> list[Any]:
    params = equation.params
    ends = np.cumsum([params["cond_nconsts"], params["body_nconsts"]])
    cond_consts, body_consts, initial = operands[: ends[0]], operands[ends[0] : ends[1]], operands[ends[1] :]
    avals = [var.aval for var in equation.outvars]
    carry = _carried(writer, avals, initial)
    writer.costly += 1
    writer.may_not_end = True

    def body() -> list[Any]:
        (goes_on,) = writer.closed(params["cond_jaxpr"], [*cond_consts, *carry])
        writer.line("while", writer.loaded(goes_on).item())
        return writer.closed(params["body_jaxpr"], [*body_consts, *carry])

    _loop(writer, ["loop"], carry, avals, body)
    return carry


def _scan(writer: Writer, equation: JaxprEqn, *operands: Any) -> list[Any]:
    params = equation.params
    length = params["length"]
    fixed, initial, xs = scan_operands(params, operands)
    carries = len(initial)
    if not xs and len(equation.outvars) == carries:
        avals = [var.aval for var in equation.outvars]
        carry = _carried(writer, avals, initial)
        writer.costly += 1
        _loop(writer, ["repeat", length], carry, avals, lambda: writer.closed(params["jaxpr"], [*fixed, *carry]))
        return carry
    if length > MAX_STEPS:
        raise Unsupported(f"a scan of {length} steps over arrays, more than {MAX_STEPS}")
    xs = [writer.loaded(x) for x in xs]
    stacked: list[Any] = [var.aval for var in equation.outvars[carries:]]
    state, columns = list(initial), [np.empty(aval.shape, object) for aval in stacked]
    for i in reversed(range(length)) if params["reverse"] else range(length):
        results = writer.closed(params["jaxpr"], [*fixed, *state, *(row(x, i) for x in xs)])
        state = results[:carries]
        for column, values in zip(columns, map(writer.loaded, results[carries:]), strict=True):
            column[i] = values if column.ndim > 1 else values.item()
    return [*state, *columns]


CONTROL_FLOW: dict[str, Callable[..., list[Any]]] = {"cond": _cond, "scan": _scan, "while": _while}


def emit_function(closed: ClosedJaxpr, arguments: Sequence[Names], capture: Callable[[Any], Memory]) -> Emitted:
    """Applies a jaxpr to values with these names.

    `capture` returns a reference to a captured array that stays in memory.
    """
    writer = Writer(capture)
    results = [writer.loaded(x) for x in writer.closed(closed, arguments)]
    return writer.emitted(results, _neutral_of(closed, writer, arguments, results))


def emit_stages(
    closed: Sequence[Any], arguments: Sequence[Names], last: Sequence[Names], capture: Callable[[Any], Memory]
) -> Emitted:
    """Applies jaxprs in turn: each takes the results of the previous one, followed by `last`."""
    writer = Writer(capture)
    values: Sequence[Any] = arguments
    for one in closed:
        values = writer.closed(one, [*values, *last])
    return writer.emitted([writer.loaded(x) for x in values], None)


def _neutral_of(closed: ClosedJaxpr, writer: Writer, arguments: Sequence[Names], results: Sequence[Names]) -> Any:
    """Returns each leaf's neutral scalar if, for each leaf, one primitive that has one combines all elements."""
    if len(arguments) != 2 * len(results):
        return None
    values = []
    for leaf, (a, b, combined) in enumerate(
        zip(arguments[: len(results)], arguments[len(results) :], results, strict=True)
    ):
        functions = {writer.made.get(name, ("",))[0] for name in combined.flat}
        if len(functions) != 1 or not functions <= {"add", "mul", "max", "min", "and_", "or_", "xor_"}:
            return None
        if a.shape != combined.shape:
            return None
        for x, y, name in zip(a.flat, b.flat, combined.flat, strict=True):
            if set(writer.made[name][1:]) != {x, y}:
                return None
        values.append(neutral(functions.pop(), closed.out_avals[leaf].dtype))
    return values
