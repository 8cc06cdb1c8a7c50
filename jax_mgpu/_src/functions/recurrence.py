"""Linear recurrences, y[i] = a[i] y[i - 1] + b[i] within each segment: the derivatives of scans.

Derivatives of scans by "mul" and "logsumexp" are such recurrences. A recurrence is linear in b; its transpose is the
recurrence in the other direction, and its derivative by a is another recurrence. So derivatives of any order are a few
scans, and JAX need not differentiate the steps of a scan.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.annotations import Operands, Tangents
from jax_mgpu._src.arguments.counts import live_items, live_mask, segment_starts
from jax_mgpu._src.core.operation import Operation
from jax_mgpu._src.functions import blocked_scan
from jax_mgpu._src.keys.bits import shifted


def recurrence(a: jax.Array, b: jax.Array, heads: jax.Array, count: jax.Array, *, reverse: int) -> jax.Array:
    """Returns y[i] = a[i] y[i - 1] + b[i], from the start of each segment, or from its end; 0 for dead items."""
    return _recurrence(a=a, b=b, heads=heads, count=count, reverse=reverse)[0]


def neighbours(y: jax.Array, heads: jax.Array, count: jax.Array, *, reverse: int) -> jax.Array:
    """Returns y[i - 1], or y[i + 1], within each segment; 0 where there is none, and for dead items."""
    return jnp.where(_edges(y.shape[0], heads, count, reverse), 0, shifted(y, -1 if reverse else 1))


def weighted(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Returns the products of weights and tangents, in which a tangent or cotangent of 0 gives 0 for any weight.

    An infinite weight would make it NaN, even in segments that a loss does not use.
    """
    return _weighted(x.ndim)(weights=weights, x=x)[0]


def _fallback(a: jax.Array, b: jax.Array, heads: jax.Array, count: jax.Array, *, reverse: int) -> Sequence[jax.Array]:
    n = a.shape[0]
    if n == 0:
        return [b]
    edges = _edges(n, heads, count, reverse) if heads.size or count.size else None
    given = (a, b, edges)
    # Both directions call one jitted function, so a program contains the scan only once.
    y = jnp.flip(_solved(*jax.tree.map(jnp.flip, given))) if reverse else _solved(*given)
    return [jnp.where(live_mask(n, count), y, 0) if count.size else y]


@jax.jit
def _solved(a: jax.Array, b: jax.Array, edges: jax.Array | None) -> jax.Array:
    result: jax.Array = blocked_scan.scanned(lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]), (a, b), edges)[1]
    return result


def _edges(n: int, heads: jax.Array, count: jax.Array, reverse: int) -> jax.Array:
    """Returns which of n items get no carry: the first of each segment (or the last), and dead items."""
    live = live_items(n, count)
    starts = segment_starts(n, heads)
    alone = shifted(starts, -1, True) if reverse else starts
    return alone | (jnp.arange(n, dtype=live.dtype) >= live - int(reverse))


def _jvp(primals: Operands, tangents: Tangents, *, reverse: int) -> tuple[Any, Any]:
    a, _, heads, count = primals
    results = _recurrence.run(primals, reverse=reverse)
    parts = [] if tangents.b is None else [tangents.b]
    if tangents.a is not None:
        parts.append(tangents.a * neighbours(results[0], heads, count, reverse=reverse))
    return results, [recurrence(a, sum(parts[1:], parts[0]), heads, count, reverse=reverse) if parts else None]


def _transpose(cotangents: Sequence[Any], operands: Operands, *, reverse: int) -> jax.Array:
    """Returns the recurrence in the other direction, in which each item has the factor of the next one."""
    factors = shifted(operands.a, 1 if reverse else -1)
    return recurrence(factors, cotangents[0], operands.heads, operands.count, reverse=not reverse)


_recurrence = Operation(
    "recurrence",
    operands={"a": 1, "b": 1, "heads": 1, "count": 1},
    results=("y",),
    attributes={"reverse": bool},
    shapes=lambda b: [b],
    fallback=_fallback,
    only="",
)
_recurrence.def_jvp(_jvp)
_recurrence.def_transpose("b", _transpose)


@functools.cache
def _weighted(rank: int) -> Operation:
    """Returns the product of arrays of this rank."""

    def product(weights: jax.Array, x: jax.Array) -> Sequence[jax.Array]:
        return [jnp.where(x == 0, 0, weights * x)]

    def jvp(primals: Operands, tangents: Tangents) -> tuple[Any, Any]:
        pairs = ((primals.weights, tangents.x), (primals.x, tangents.weights))
        parts = [weighted(factor, tangent) for factor, tangent in pairs if tangent is not None]
        return operation.run(primals), [sum(parts[1:], parts[0]) if parts else None]

    operation = Operation(
        "weighted",
        operands={"weights": rank, "x": rank},
        results=("product",),
        shapes=lambda x: [x],
        fallback=product,
        only="",
    )
    operation.def_jvp(jvp)
    operation.def_transpose("x", lambda cotangents, operands: weighted(operands.weights, cotangents[0]))
    return operation
