"""Softmax over each segment, and its logarithm."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import ArrayLike, AxisName, Count, Operands, Pytree, SegmentsLike, Tangents
from jax_mgpu._src.arguments.check import (
    as_array,
    describe,
    index_dtype,
    type_error,
    value_error,
)
from jax_mgpu._src.arguments.counts import heads_from_zero, live_mask
from jax_mgpu._src.arguments.segments import segment_operands
from jax_mgpu._src.core.compat import whole_axes
from jax_mgpu._src.core.operation import Operation, jit_eager
from jax_mgpu._src.functions.operators import Kind, accumulator_dtype, select
from jax_mgpu._src.functions.recurrence import exponential, weighted
from jax_mgpu._src.mesh import over_axis
from jax_mgpu._src.ops.intervals import _expand
from jax_mgpu._src.ops.reduce import _segmented_reduce, reduce_rows
from jax_mgpu._src.ops.scan import covered, own_pieces, pieces

__all__ = ["segmented_log_softmax", "segmented_softmax"]


@jit_eager()
def segmented_softmax(
    x: ArrayLike,
    heads: SegmentsLike,
    *,
    ends: ArrayLike | None = None,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> jax.Array:
    """The softmax of each segment, as `jax.nn.softmax` over its axis 0.

    Args:
      x: `[n, …]`, floats; each trailing position has a softmax of its own.
      heads: `[m]`, non-decreasing integers, or `Segments`: see `segmented_scan`.
      ends: `[m]` integers: see `segmented_reduce`; items outside of all segments have the result 0.
      count: the number of live items, an integer scalar (default `n`). Results past it are 0.
      axis_name: take the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`; heads are
        given as for `segmented_reduce`.

    Returns:
      `[n, …]`, of the type of `x`: non-negative numbers whose sum over each segment with items is 1; 0 past the count
      and in gaps. float16 and bfloat16 are computed in float32.

    Raises:
      TypeError: `x` does not hold floats of 16 to 64 bits, or heads or count are not integers.
      ValueError: an argument's shape is not one of the above; 2^31 items or more without `jax_enable_x64`.

    Sums have a fixed order. There are derivatives of any order. Time is O(n + m) for any lengths of the segments. On a
    GPU, the parts of a segment in different tiles are joined as in Milakov and Gimelshein, "Online normalizer
    calculation for softmax", 2018. On a CPU, the results of two segmented reductions are repeated over the segments.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.segmented_softmax(jnp.array([1.0, 1.0, 5.0, 2.0, 2.0]), jnp.array([0, 2, 3]))
      Array([0.5, 0.5, 1. , 0.5, 0.5], dtype=float32)
    """
    return _normalize("segmented_softmax", x, heads, ends, count, axis_name, log=False)


@jit_eager()
def segmented_log_softmax(
    x: ArrayLike,
    heads: SegmentsLike,
    *,
    ends: ArrayLike | None = None,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> jax.Array:
    """The logarithm of `segmented_softmax`, as `jax.nn.log_softmax`: precise where the softmax is small.

    Args:
      x: see `segmented_softmax`.
      heads: see `segmented_softmax`.
      ends: see `segmented_softmax`.
      count: see `segmented_softmax`.
      axis_name: see `segmented_softmax`.

    Returns:
      `[n, …]`, of the type of `x`; 0 past `count`, and for items outside of all segments.

    Raises:
      TypeError: as `segmented_softmax`.
      ValueError: as `segmented_softmax`.

    For derivatives and time, see `segmented_softmax`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.segmented_log_softmax(jnp.array([1.0, 1.0, 5.0]), jnp.array([0, 2]))
      Array([-0.6931472, -0.6931472,  0.       ], dtype=float32)
    """
    return _normalize("segmented_log_softmax", x, heads, ends, count, axis_name, log=True)


def _normalize(
    name: str,
    x: Pytree,
    heads: SegmentsLike,
    ends: ArrayLike | None,
    count: Count,
    axis_name: AxisName | None,
    *,
    log: bool,
) -> jax.Array:
    x = expect_floats(name, x)
    n = x.shape[0]
    segments = segment_operands(name, heads, ends, count, n, axis_name=axis_name, whole=True)
    heads, count = pieces(segments, name, axis_name), segments.count
    if x.size == 0:
        return x
    has_gaps = segments.ends is not None
    if axis_name is not None:
        wide, own = widened(whole_axes(x)), own_pieces(segments, heads)
        if has_gaps:
            inside, zeros = covered(n, heads).reshape(-1, *[1] * (x.ndim - 1)), jnp.zeros_like(wide)
            wide = jnp.where(inside, wide, zeros)
        form = mesh.segments.segmented_softmax
        results = over_axis(form, name, axis_name, wide, own, count, log=log).astype(x.dtype)
        return jnp.where(inside, results, 0) if has_gaps else results
    rows = whole_axes(x).reshape(n, -1)
    if not has_gaps:
        return softmax_rows(rows, heads, count, log=log).reshape(x.shape)
    inside, zeros = covered(n, heads), jnp.zeros_like(rows)
    results = softmax_rows(select(inside, rows, zeros), heads, count, log=log)
    return select(inside, results, zeros).reshape(x.shape)


def softmax_rows(rows: jax.Array, heads: jax.Array, count: jax.Array, *, log: bool) -> jax.Array:
    """Returns the softmax of each column over each segment, and over the rows before the first head; 0 if dead."""
    rule = Rule.LOG_SOFTMAX if log else Rule.SOFTMAX
    int(rows.shape[0])  # raises if the number of rows is unknown
    absent = jnp.zeros((0, 0), rows.dtype)  # it has the rank of tangents, so that batches can repeat it
    return _segmented_softmax(x=rows, t=absent, heads=heads_from_zero(heads), count=count, rule=rule)[0]


def expect_floats(name: str, x: Pytree, argument: str = "x") -> jax.Array:
    """Returns rows of floats, or raises."""
    x = as_array(name, argument, x)
    if x.ndim == 0:
        raise value_error(name, argument, "an array with a leading axis", describe(x))
    if x.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        raise type_error(name, argument, "float16, bfloat16, float32 or float64", describe(x))
    index_dtype(name, argument, x.shape[0])
    return x


class Rule(enum.IntEnum):
    """The function of rows x that the kernels compute.

    The last three are linear maps of tangents: the derivative of the softmax, which is its own transpose; the
    derivative of the logarithm; and its transpose. For these, x is the softmax or its logarithm.
    """

    SOFTMAX = 0
    LOG_SOFTMAX = 1
    SOFTMAX_TANGENT = 2
    LOG_TANGENT = 3
    LOG_COTANGENT = 4


_TANGENT = {Rule.SOFTMAX: Rule.SOFTMAX_TANGENT, Rule.LOG_SOFTMAX: Rule.LOG_TANGENT}
_TRANSPOSE = {
    Rule.SOFTMAX_TANGENT: Rule.SOFTMAX_TANGENT,
    Rule.LOG_TANGENT: Rule.LOG_COTANGENT,
    Rule.LOG_COTANGENT: Rule.LOG_TANGENT,
}


def widened(x: jax.Array) -> jax.Array:
    """Returns items in the type in which they are added up."""
    return x.astype(accumulator_dtype(x.dtype))


def softmax_tangents(
    y: jax.Array, tangents: jax.Array, total: Callable[[jax.Array], jax.Array], *, log: bool
) -> jax.Array:
    """Returns the tangents of a softmax y, or of its logarithm; `total` returns the sum of each item's group.

    The tangents of a group whose tangents are 0 are 0, even where y is NaN.
    """
    rest = tangents - total(weighted(exponential(y) if log else y, tangents))
    return rest if log else weighted(y, rest)


def _per_segment(rows: jax.Array, heads: jax.Array, count: jax.Array, op: Kind) -> jax.Array:
    """Combines the rows of each segment, `[m, elements]`."""
    if rows.shape[1] == 1:
        return _segmented_reduce(x=rows[:, 0], heads=heads, count=count, op=op, wide=False)[0][:, None]
    return reduce_rows(x=rows, heads=heads, count=count, op=op, wide=False)[0]


def _per_item(rows: jax.Array, x: jax.Array, heads: jax.Array, count: jax.Array) -> jax.Array:
    """Returns the row of each item's segment; 0 past the live items."""
    n = x.shape[0]
    fill = jnp.zeros((1,), rows.dtype)
    return _expand(values=rows, offsets=heads, total=count, fill_value=fill, size=n)[0]


def _live_rows(rows: jax.Array, count: jax.Array) -> jax.Array:
    return jnp.where(live_mask(rows.shape[0], count)[:, None], rows, 0) if count.size else rows


def _fallback(x: jax.Array, t: jax.Array, heads: jax.Array, count: jax.Array, *, rule: int) -> Sequence[jax.Array]:
    def total(rows: jax.Array, op: Kind = Kind.ADD, of: Callable[[jax.Array], jax.Array] = lambda y: y) -> jax.Array:
        return _per_item(of(_per_segment(rows, heads, count, op)), x, heads, count)

    wide = widened(x)
    if rule in _TANGENT:
        shifted = wide - total(wide, Kind.MAX)
        powers = jnp.exp(shifted)
        results = shifted - total(powers, of=jnp.log) if rule == Rule.LOG_SOFTMAX else powers / total(powers)
    else:
        tangent = widened(t)
        if rule == Rule.LOG_COTANGENT:
            results = tangent - weighted(jnp.exp(wide), total(tangent))
        else:
            results = softmax_tangents(wide, tangent, total, log=rule == Rule.LOG_TANGENT)
    return [_live_rows(results, count).astype(x.dtype)]


_segmented_softmax = Operation(
    "segmented_softmax",
    operands={"x": 2, "t": 2, "heads": 1, "count": 1},
    results=("result",),
    attributes={"rule": Rule},
    shapes=lambda x: [x],
    fallback=_fallback,
    streamed=("x", "t"),
    only="cuda",
)


def _jvp(primals: Operands, tangents: Tangents, *, rule: int) -> tuple[Any, Any]:
    x, t, heads, count = primals
    if rule in _TANGENT and tangents.x is not None:
        wide = _segmented_softmax.run(primals._replace(x=widened(x), t=widened(t)), rule=rule)[0]
        of_tangents = primals._replace(x=wide, t=widened(tangents.x))
        tangent = _segmented_softmax.run(of_tangents, rule=_TANGENT[Rule(rule)])[0]
        return [wide.astype(x.dtype)], [tangent.astype(x.dtype)]

    def total(rows: jax.Array) -> jax.Array:
        return _per_item(_per_segment(rows, heads, count, Kind.ADD), x, heads, count)

    parts = []
    if tangents.t is not None:
        parts += _segmented_softmax.run(primals._replace(t=tangents.t), rule=rule)
    if tangents.x is not None:
        # Rows past the live ones may hold anything.
        x, t, moved = _live_rows(x, count), _live_rows(t, count), _live_rows(tangents.x, count)
        if rule == Rule.SOFTMAX_TANGENT:
            part = weighted(t - total(weighted(x, t)), moved) - weighted(x, total(weighted(t, moved)))
        elif rule == Rule.LOG_TANGENT:
            part = -total(weighted(weighted(jnp.exp(x), t), moved))
        else:
            part = -weighted(weighted(jnp.exp(x), total(t)), moved)
        parts.append(part)
    return _segmented_softmax.run(primals, rule=rule), [sum(parts[1:], parts[0]) if parts else None]


def _transpose(cotangents: Sequence[Any], operands: Operands, *, rule: int) -> jax.Array:
    transposed = operands._replace(t=cotangents[0])
    return _segmented_softmax.run(transposed, rule=_TRANSPOSE[Rule(rule)])[0]


_segmented_softmax.def_jvp(_jvp)
_segmented_softmax.def_transpose("t", _transpose)
