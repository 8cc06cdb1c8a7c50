"""The derivative of a scan by a function, as linear recurrences.

A result is y[i] = f(y[i - 1], x[i]), and its tangent dy[i] = A[i] dy[i - 1] + B[i] dx[i] with f's partial derivatives A
and B. If the leaves of a state do not depend on each other in a cycle, each leaf's tangent is a linear recurrence of
numbers (recurrence.py), which is solved after those of the leaves on which it depends.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import Attribute
from jax_mgpu._src.arguments.counts import live_items, live_mask
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.core.compat import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    evaluate,
    free_of_explicit_axes,
    has_primitive,
    interpret,
    without_unused,
)
from jax_mgpu._src.core.operation import ABSENT, REGISTRY
from jax_mgpu._src.functions.blocked_scan import or_ones, select
from jax_mgpu._src.functions.operators import Kind
from jax_mgpu._src.functions.recurrence import edges, neighbours, recurrence, recurrence_of_products
from jax_mgpu._src.keys.bits import shifted

CALLS = "jit", "pjit"
ONE: Any = "one"  # a partial derivative of 1


@dataclasses.dataclass(frozen=True)
class Partials:
    """The partial derivatives of a function of two states of numbers.

    Args:
      order: leaves with derivatives, each after those of the earlier state on which it depends.
      known: the partial derivatives that are 1 or an argument: `ONE` or the number of the argument, by leaf of the
        result and argument. The earlier state's leaves are the first arguments.
      computed: the other ones that are not always 0, in the order of the results of `closed`.
      closed: computes them from constants and arguments.
    """

    order: tuple[int, ...]
    known: Mapping[tuple[int, int], Any]
    computed: tuple[tuple[int, int], ...]
    closed: ClosedJaxpr

    def is_recurrence(self, i: int) -> bool:
        """Whether a leaf depends on itself in the earlier state, other than by a factor of 1."""
        return (i, i) in self.computed or self.known.get((i, i), ONE) is not ONE

    def values(self, consts: Sequence[Any], arguments: Sequence[jax.Array]) -> dict[tuple[int, int], Any]:
        """Returns the partial derivatives for arrays of arguments."""

        def function(*given: jax.Array) -> list[Any]:
            return evaluate(self.closed.jaxpr, self.closed.consts, *consts, *given)

        for _ in range(arguments[0].ndim if self.computed else 0):
            function = jax.vmap(function)
        known = {pair: x if x == ONE else arguments[x] for pair, x in self.known.items()}
        return known | (dict(zip(self.computed, function(*arguments), strict=True)) if self.computed else {})


def partials_of(jaxpr: Jaxpr, consts: Sequence[Any], leaves: Sequence[Any]) -> Partials | None:
    """Returns the partial derivatives of a function of two states.

    Returns None if leaves are arrays, are complex, or depend on each other in a cycle, or if the function has a
    `custom_vjp`. `jaxpr` takes constants, of which `consts` are the avals, and the leaves of both states.
    """
    numbers = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    inexact = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    if any(leaf.shape for leaf in leaves) or numbers != inexact or has_primitive(jaxpr, ("custom_vjp",)):
        return None
    width, first = len(leaves), len(consts)
    of_argument = [frozenset([j] if j % width in numbers else ()) for j in range(2 * width)]
    sources = _sources(jaxpr, [frozenset()] * first + of_argument)
    order = _order({i: {j for j in sources[i] if j < width and j != i} for i in numbers})
    if order is None:
        return None
    pairs = [(i, j) for i in numbers for j in sorted(sources[i])]

    def derivatives(*given: jax.Array) -> list[Any]:
        found = {}
        for j in sorted({j for _, j in pairs}):
            results = [i for i, k in pairs if k == j]

            def by_one(x: jax.Array, j: int = j, results: Sequence[int] = results) -> list[Any]:
                arguments = [*given[: first + j], x, *given[first + j + 1 :]]
                made = evaluate(jaxpr, (), *arguments)
                return [made[i] for i in results]

            x = given[first + j]
            tangents = jax.jvp(by_one, (x,), (np.ones((), x.dtype),))[1]
            found.update({(i, j): tangent for i, tangent in zip(results, tangents, strict=True)})
        return [found[pair] for pair in pairs]

    with free_of_explicit_axes():
        avals = [*consts, *leaves, *leaves]
        traced = jax.make_jaxpr(derivatives)(*avals)
        rules = {"mul": _product}
        closed = jax.make_jaxpr(lambda *xs: evaluate(traced.jaxpr, traced.consts, *xs, rules=rules))(*avals)
    known = {
        pair: ONE if isinstance(var, Literal) else closed.jaxpr.invars.index(var) - first
        for pair, var in zip(pairs, closed.jaxpr.outvars, strict=True)
        if _is_one(var) or (var in closed.jaxpr.invars[first:])
    }
    kept = [pair not in known for pair in pairs]
    computed = tuple(pair for pair in pairs if pair not in known)
    return Partials(order, known, computed, without_unused(closed, kept))


def _is_one(var: Any) -> bool:
    return isinstance(var, Literal) and var.val == 1


def _product(parameters: Mapping[str, Any], x: Any, y: Any) -> list[Any] | None:
    """Returns the product of two scalars if one of them is known to be 1, else None."""
    del parameters
    for one, other in ((x, y), (y, x)):
        if not isinstance(one, jax.core.Tracer) and np.ndim(one) == 0 and one == 1:
            return [other]
    return None


def _sources(jaxpr: Jaxpr, arguments: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Returns, for each result, the arguments on which its derivatives depend."""
    nothing: frozenset[int] = frozenset()

    def step(equation: JaxprEqn, operands: list[frozenset[int]]) -> list[frozenset[int]]:
        if equation.primitive.name in CALLS:
            called = equation.params["jaxpr"]
            given = [*[nothing] * len(called.jaxpr.constvars), *operands]
            found = _sources_of_open(called.jaxpr, given)
        else:
            found = [nothing.union(*operands)] * len(equation.outvars)
        avals: list[Any] = [var.aval for var in equation.outvars]
        moves = equation.primitive.name != "stop_gradient"
        return [
            sources if moves and jnp.issubdtype(aval.dtype, jnp.inexact) else nothing
            for aval, sources in zip(avals, found, strict=True)
        ]

    return interpret(jaxpr, [], arguments, lambda literal: nothing, step)


def _sources_of_open(jaxpr: Jaxpr, arguments: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    return _sources(jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars]), arguments)


def _order(sources: Mapping[int, set[int]]) -> tuple[int, ...] | None:
    """Returns the leaves, each after its sources, or None if some depend on each other in a cycle."""
    order: list[int] = []
    while len(order) < len(sources):
        ready = [i for i in sources if i not in order and sources[i] <= {*order}]
        if not ready:
            return None
        order += ready
    return tuple(order)


def scan_tangents(
    partials: Partials,
    consts: Sequence[Any],
    results: Sequence[jax.Array],
    x: Sequence[jax.Array],
    dx: Sequence[jax.Array | None],
    heads: jax.Array,
    count: jax.Array,
    *,
    exclusive: int,
    reverse: int,
    total: int,
) -> list[jax.Array | None]:
    """Returns the tangents of a scan of items x, whose tangents are dx, and of its totals, if they are asked for.

    `results` are those of the scan.
    """
    n, width = x[0].shape[0], len(x)
    place: dict[str, Any] = {"heads": heads, "count": count, "reverse": reverse}
    alone = edges(n, heads, count, reverse)
    by = -1 if reverse else 1
    before = results[:width] if exclusive else [shifted(y, by) for y in results[:width]]
    arguments = [*before, *x]
    # Ones for uncombined states: zero times an infinite derivative would be NaN.
    partial = partials.values(consts, [or_ones(~alone, argument) for argument in arguments])
    # A recurrence does not use the factors of items without a carry, so an item itself may be the factor.
    factor = {i: arguments[j] for (i, k), j in partials.known.items() if k == i and j != ONE and j >= width}
    tangents: list[jax.Array | None] = [None] * width
    for i in partials.order:
        product = None if heads.size or exclusive else _product_term(i, partials, results, dx)
        others = [None if product and j == product[1] else tangent for j, tangent in enumerate(dx)]
        parts = _terms(i, partial, others, alone)
        for j in partials.order:
            dy = tangents[j]
            if j != i and (i, j) in partial and dy is not None:
                parts.append(_times(partial[i, j], neighbours(dy, **place), x[i].dtype))
        if not parts:
            continue
        term = functools.reduce(operator.add, parts)
        if product and (moved := dx[product[1]]) is not None:
            given = factor.get(i, partial[i, i]), results[product[0]], moved, term, count
            tangents[i] = recurrence_of_products(*given, reverse=reverse)
            continue
        if (i, i) not in partial:
            tangents[i] = select(live_mask(n, count), term, jnp.zeros_like(term)) if count.size else term
        elif partial[i, i] is ONE:
            tangents[i] = _sums(term, **place)
        else:
            tangents[i] = recurrence(factor.get(i, partial[i, i]), term, **place)
    scanned = [dy if dy is None or not exclusive else neighbours(dy, **place) for dy in tangents]
    if not total:
        return scanned
    live = live_items(n, count)
    last = jnp.where(live > 0, 0, -1) if reverse else live - 1
    return [*scanned, *(None if dy is None else take_or_fill(dy, last, unique=True) for dy in tangents)]


def _product_term(
    i: int, partials: Partials, results: Sequence[jax.Array], dx: Sequence[jax.Array | None]
) -> tuple[int, int] | None:
    """Returns a leaf of the earlier state that multiplies the tangent of a leaf of the item, and the item's leaf.

    Returns None unless the tangent of leaf i is a recurrence of rows with such a term, and has another term.
    """
    width, own = len(dx), dx[i]
    if own is None or own.ndim != 2 or not partials.is_recurrence(i):
        return None
    for j, tangent in enumerate(dx):
        of = partials.known.get((i, width + j), ONE)
        if j == i or tangent is None or of is ONE or of >= width:
            continue
        if results[of].dtype == tangent.dtype == own.dtype:
            return of, j
    return None


def _terms(
    i: int, partial: Mapping[tuple[int, int], Any], dx: Sequence[jax.Array | None], alone: jax.Array
) -> list[jax.Array]:
    """Returns the parts of a leaf's tangent that come from the tangents of its item."""
    parts, width = [], len(dx)
    for j, tangent in enumerate(dx):
        if tangent is None or ((i, width + j) not in partial and j != i):
            continue
        weight = partial.get((i, width + j))
        if weight is ONE and j == i:
            parts.append(tangent)
            continue
        own = dx[i]
        dtype = tangent.dtype if own is None else own.dtype
        carried = select(alone, jnp.zeros_like(tangent), tangent)
        part = jnp.zeros_like(tangent) if weight is None else _times(weight, carried, dtype)
        parts.append(select(alone, tangent, part) if j == i else part)
    return parts


def _times(weight: Any, tangent: jax.Array, dtype: Any) -> jax.Array:
    return (tangent if weight is ONE else weight * tangent).astype(dtype)


def _sums(x: jax.Array, heads: jax.Array, count: jax.Array, reverse: int) -> jax.Array:
    name = "scan" if x.ndim == 1 else "scan_rows"
    initial = {"initial": ABSENT} if x.ndim == 1 else {}
    flags: dict[str, Attribute] = {"exclusive": False, "reverse": bool(reverse), "total": False}
    return REGISTRY[name](x=x, heads=heads, count=count, **initial, op=Kind.ADD, **flags)[0]
