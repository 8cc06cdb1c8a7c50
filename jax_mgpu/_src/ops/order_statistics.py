"""Quantiles and medians, by rank among all items or within segments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import (
    ArrayLike,
    Aval,
    AxisName,
    Count,
    DTypeLike,
    Operands,
    Pytree,
    SegmentsLike,
    Tangents,
)
from jax_mgpu._src.arguments.check import (
    as_array,
    count_operand,
    describe,
    expect_choice,
    expect_key,
    index_dtype,
    type_error,
)
from jax_mgpu._src.arguments.counts import live_items
from jax_mgpu._src.arguments.preconditions import by_construction, fractions
from jax_mgpu._src.arguments.segments import segment_operands
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.core.compat import whole_axes
from jax_mgpu._src.core.operation import ABSENT, Operation
from jax_mgpu._src.functions.operators import accumulator_dtype
from jax_mgpu._src.keys.bits import clip, where
from jax_mgpu._src.mesh import over_axis
from jax_mgpu._src.ops.scan import heads_of_bounds
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sort_primitives import Method

METHODS = ("linear", "lower", "higher", "nearest", "midpoint")


def quantiles(
    name: str,
    x: Pytree,
    heads: SegmentsLike,
    q: ArrayLike,
    count: Count,
    ends: ArrayLike | None = None,
    axis_name: AxisName | None = None,
    method: str = "linear",
) -> jax.Array:
    """Returns quantiles of all items if heads are absent, else of each segment."""
    expect_choice(name, "method", method, METHODS)
    x = whole_axes(expect_key(name, "x", x))
    n = x.shape[0]
    q = as_array(name, "q", q)
    if not (jnp.issubdtype(q.dtype, jnp.floating) or jnp.issubdtype(q.dtype, jnp.integer)):
        raise type_error(name, "q", "numbers from 0 to 1", describe(q))
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    dtype = x.dtype if is_float else jnp.dtype(jax.dtypes.canonicalize_dtype(jnp.float64))
    wide = accumulator_dtype(dtype)
    shape = q.shape
    types = (q.dtype, wide) if jnp.issubdtype(q.dtype, jnp.floating) else (wide,)
    rounding = max(float(jnp.finfo(dtype).eps) for dtype in types) / 2
    q = fractions(name, "q", whole_axes(q).astype(wide).reshape(-1))
    index = index_dtype(name, "x", n)
    if heads is ABSENT:
        live = count_operand(name, "count", count, n)
        begin, end = jnp.zeros((1,), index), live_items(n, live).reshape(1)
    else:
        segments = segment_operands(name, heads, ends, count, n, axis_name=axis_name, whole=True)
        live, shape = segments.count, (*shape, segments.m)
        begin, end = (bound.astype(index) for bound in segments.bounds())
    if 0 in shape:  # a batch over an Explicit mesh cannot reshape it
        return jnp.zeros(shape, dtype)
    if axis_name is not None and heads is not ABSENT:
        begin, end, item_at = over_axis(mesh.ragged.ordered_items, name, axis_name, segments, x)
    elif axis_name is not None:
        total, item_at = over_axis(mesh.selections.ordered_items, name, axis_name, x, live)
        begin, end = jnp.zeros((1,), total.dtype), total.reshape(1)
    is_nan = jnp.isnan(q)
    known = where(is_nan, 0, q)[:, None]
    lower, upper, weight = _taken(method, *_neighbours(known, (end - begin)[None], rounding))
    last = jnp.broadcast_to(jnp.maximum(end - begin - 1, 0), (1, *end.shape))
    ranks = jnp.concatenate([lower, upper, last])
    if axis_name is not None:
        with jax.numpy_dtype_promotion("standard"):  # as in over_axis
            items = item_at(ranks[:, 0])[:, None] if heads is ABSENT else item_at(ranks)
    elif heads is ABSENT:
        items = _order_statistics(x=x, ranks=ranks[:, 0], count=live)[0][:, None]
    else:
        (items,) = _segmented_order_statistics(x=x, begins=begin, ends=end, ranks=ranks, count=live)
    below, above = (part.astype(wide) for part in jnp.split(items[:-1], 2))
    found = between(below, above, weight)
    undefined = (begin == end)[None] | is_nan[:, None]
    if is_float:  # NaNs are sorted last
        undefined |= jnp.isnan(items[-1:])
    return where(undefined, jnp.nan, found).astype(dtype).reshape(shape)


class _SegmentedOrderStatistics(Operation):
    """A selection in each segment."""

    def prefers_xla(self, operands: Sequence[Any], attributes: Mapping[str, int], platform: str, devices: int) -> bool:
        """Whether plain JAX sorts: for many ranks of a segment or of one array, or few items in long segments."""
        x, begins, _, ranks, _ = operands
        if x.ndim == 1 and ranks.size > CUDA_MAX_RANKS * ranks.shape[-1] and ranks.ndim > 2:
            return True  # plain JAX sorts this array once
        if platform != "cuda":  # on other platforms, an exported program may not know the number of items
            return False
        is_long = x.shape[-1] > CUDA_SHORT_SEGMENT * begins.shape[-1]
        return bool(ranks.shape[-2] > CUDA_MAX_SEGMENT_RANKS or (is_long and x.size < CUDA_MIN_IN_LONG_SEGMENTS))


CUDA_MAX_SEGMENT_RANKS = 16  # kMaxSegmentRanks of ffi/ops/segmented_order_statistics/plan.h
CUDA_SHORT_SEGMENT = 2**10  # a warp's registers hold such a segment
# Plain JAX sorts longer segments if there are fewer items in all.
CUDA_MIN_IN_LONG_SEGMENTS = 2**22


def _statistics_shapes(x: Aval, ranks: Aval) -> Sequence[Any]:
    return [jax.ShapeDtypeStruct(ranks.shape, x.dtype)]


def _sorted_segments(
    x: jax.Array, begins: jax.Array, ends: jax.Array, ranks: jax.Array, count: jax.Array
) -> tuple[Sort, jax.Array]:
    """Returns the sort of all segments, and the sought items' places in it.

    An empty segment's place is unspecified.
    """
    heads = heads_of_bounds(begins, ends)
    return Sort("segmented_quantile", x, count=count, heads=heads, method=Method.MERGING), begins[None] + ranks


def _segmented_fallback(
    x: jax.Array, begins: jax.Array, ends: jax.Array, ranks: jax.Array, count: jax.Array
) -> Sequence[jax.Array]:
    with by_construction():  # segments and count were checked
        ranks = jnp.clip(ranks, 0, (ends - begins)[None] - 1)
        ordered, places = _sorted_segments(x, begins, ends, ranks, count)
        return [take_or_fill(ordered.run(), places.reshape(-1)).reshape(places.shape)]


def _segmented_jvp(primals: Operands, tangents: Tangents) -> tuple[Any, Any]:
    values = _segmented_order_statistics.run(primals)
    if tangents.x is None:
        return values, [None]
    with by_construction():
        ordered, places = _sorted_segments(*primals)
        order = take_or_fill(ordered.indices()[1], places.reshape(-1), -1)
    return values, [take_or_fill(tangents.x, order).reshape(places.shape)]


_segmented_order_statistics = _SegmentedOrderStatistics(
    "segmented_order_statistics",
    operands={"x": 1, "begins": 1, "ends": 1, "ranks": 2, "count": 1},
    results=("values",),
    shapes=_statistics_shapes,
    fallback=_segmented_fallback,
)
_segmented_order_statistics.def_jvp(_segmented_jvp)


class _OrderStatistics(Operation):
    """A selection of items at some ranks."""

    def prefers_xla(self, operands: Sequence[Any], attributes: Mapping[str, int], platform: str, devices: int) -> bool:
        """Whether plain JAX sorts: for many ranks of a row or of one array, for short rows, or for few items."""
        x, ranks, _ = operands
        if x.ndim == 1 and ranks.size > CUDA_MAX_RANKS and ranks.ndim > 1:
            return True
        if platform != "cuda":
            return False
        is_small: bool = x.size <= CUDA_MAX_SORTED or x.shape[-1] < CUDA_MIN_COUNTED_ROW
        return is_small or ranks.shape[-1] > CUDA_MAX_RANKS


CUDA_MAX_RANKS = 7  # kMaxRanks of ffi/ops/order_statistics/plan.h
CUDA_MAX_SORTED = 2**20  # up to this many items, plain JAX sorts
CUDA_MIN_COUNTED_ROW = 2**14


def _statistics_fallback(x: jax.Array, ranks: jax.Array, count: jax.Array) -> Sequence[jax.Array]:
    with by_construction():  # the count was checked
        ordered = Sort("quantile", x, count=count).run()
    return [take_or_fill(ordered, _within(x, ranks, count))]


def _within(x: jax.Array, ranks: jax.Array, count: jax.Array) -> jax.Array:
    """Returns ranks cut to those of live items, or -1 if no item is live."""
    return jnp.clip(ranks, 0, (live_items(x.shape[0], count) - 1).astype(ranks.dtype))


def _statistics_jvp(primals: Operands, tangents: Tangents) -> tuple[Any, Any]:
    values = _order_statistics.run(primals)
    if tangents.x is None:
        return values, [None]
    with by_construction():
        order = Sort("quantile", primals.x, count=primals.count).indices()[1]
    return values, [take_or_fill(tangents.x, take_or_fill(order, _within(*primals)))]


_order_statistics = _OrderStatistics(
    "order_statistics",
    operands={"x": 1, "ranks": 1, "count": 1},
    results=("values",),
    shapes=_statistics_shapes,
    fallback=_statistics_fallback,
)
_order_statistics.def_jvp(_statistics_jvp)


# The largest part of a rank that counts as rounding of q. Without this bound, it could be whole ranks in a long
# segment.
MAX_ERROR = 2**-10


def _taken(
    method: str, lower: jax.Array, upper: jax.Array, weight: jax.Array, error: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the ranks between which a method takes a quantile, and the weight of the upper one."""
    if method == "linear":
        return lower, upper, weight
    if method == "midpoint":
        return lower, upper, where(weight > 0, 0.5, 0).astype(weight.dtype)
    is_upper = {
        "lower": jnp.zeros_like(weight, bool),
        "higher": weight > 0,
        "nearest": where(
            jnp.abs(weight - 0.5) <= error, lower & 1 == 1, weight > 0.5
        ),  # takes the even rank if both are equally near
    }[method]
    rank = where(is_upper, upper, lower)
    return rank, rank, jnp.zeros_like(weight)


def _neighbours(q: jax.Array, lengths: jax.Array, rounding: float) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns the ranks below and above each quantile, the upper one's weight in [0, 1), and its error.

    A rank may have more digits than a float32, so it is computed in parts: with q = k / 4096 + r and the last rank
    4096 h + l, it is k h + k l / 4096 + r (4096 h + l), of which only the last part is rounded. It is at most
    the rank of (k + 1) / 4096, so ranks do not decrease with q. A rank counts as whole if the rounding of q, in its
    given type, explains the distance to a whole number. So 0.7 of 11 items is the item of rank 7, without its
    neighbour, which may be infinite.
    """
    last = jnp.maximum(lengths - 1, 0)
    high, low, last_float = (
        last >> 12,
        last & 4095,
        last.astype(q.dtype),
    )
    scaled = q * 4096
    coarse = jnp.floor(scaled)
    k = clip(coarse, 0, 4096).astype(last.dtype)
    product = k * low
    lower, digits = k * high + (product >> 12), product & 4095
    rest = (digits.astype(q.dtype) + (scaled - coarse) * last_float) * (1 / 4096)
    whole = jnp.floor(rest)
    weight = rest - whole
    next_digits = digits + low
    next_weight = (next_digits & 4095).astype(q.dtype) * (1 / 4096)
    # Steps are compared, because a rank past the last one may not fit their type.
    step, next_step = whole.astype(last.dtype), high + (next_digits >> 12)
    is_past = (step > next_step) | ((step == next_step) & (weight > next_weight))
    lower, exact = lower + where(is_past, next_step, step), where(is_past, next_weight, weight)
    error = jnp.minimum(q * last_float * rounding, MAX_ERROR)
    is_next = 1 - exact <= error
    lower = jnp.minimum(jnp.maximum(lower + is_next.astype(lower.dtype), 0), last)
    weight = with_derivative(where(is_next | (exact <= error), 0, exact), weight)
    upper = jnp.minimum(lower + (weight > 0).astype(lower.dtype), last)
    return lower, upper, weight, error


# The ranks of the items below and above the middle, and of the last one, are `(number - FEWER) >> HALVINGS`.
FEWER, HALVINGS = np.array([1, 0, 1]), np.array([1, 1, 0])


def middle_ranks(number: jax.Array, fewer: np.ndarray = FEWER, halvings: np.ndarray = HALVINGS) -> jax.Array:
    """Returns `(number - fewer) >> halvings`, at least 0: by default `[3, ...]`, for `FEWER` and `HALVINGS`."""
    shape = *fewer.shape, *[1] * number.ndim
    fewer, halvings = (x.astype(number.dtype).reshape(shape) for x in (fewer, halvings))
    number = jnp.expand_dims(number, tuple(range(fewer.ndim - number.ndim)))
    return jnp.maximum((number - fewer) >> halvings, 0)


def middle(dtype: DTypeLike, number: jax.Array, items: Callable[[], Any]) -> jax.Array:
    """Returns medians of `number` items each, NaN without items or if one is NaN; `items` are those at middle ranks."""
    is_float = jnp.issubdtype(dtype, jnp.floating)
    dtype = dtype if is_float else jnp.dtype(jax.dtypes.canonicalize_dtype(jnp.float64))
    if number.size == 0:  # a batch over an Explicit mesh cannot reshape it
        return jnp.zeros(number.shape, dtype)
    taken = items()
    # Iterating would stack cotangents, which over Explicit axes JAX 0.11 refuses if one of them is a symbolic zero.
    below, above, greatest = (taken[i] for i in range(3))
    below, above = (x.astype(accumulator_dtype(dtype)) for x in (below, above))
    found = between(below, above, where(number & 1 == 1, 0, 0.5).astype(below.dtype))
    undefined = number == 0
    if is_float:  # NaNs are last
        undefined |= jnp.isnan(greatest)
    return where(undefined, jnp.nan, found).astype(dtype)


def median_of_segments(x: jax.Array, begin: jax.Array, end: jax.Array, count: jax.Array) -> jax.Array:
    """Returns the median of each segment."""
    number = end - begin

    def items() -> jax.Array:
        ranks = middle_ranks(number)
        return _segmented_order_statistics(x=x, begins=begin, ends=end, ranks=ranks, count=count)[0]

    return middle(x.dtype, number, items)


def median(x: jax.Array, count: jax.Array) -> jax.Array:
    """Returns the median of all items."""
    number = live_items(x.shape[0], count, index_dtype("median", "x", x.shape[0])).reshape(())
    return middle(x.dtype, number, lambda: _order_statistics(x=x, ranks=middle_ranks(number), count=count)[0])


def between(below: jax.Array, above: jax.Array, weight: jax.Array) -> jax.Array:
    """`below + weight * (above - below)` for weights in [0, 1), non-decreasing in the weight.

    It is between the two, and equals them if they are equal. The sum starts from the one nearer to 0, to keep its low
    digits. If their signs differ, or if the difference is not finite, each of the two has its share.
    """
    falls, rest = below < 0, 1 - weight
    is_inner = (falls == (above < 0)) & jnp.isfinite(above - below)
    first, second, share = where(falls, above, below), where(falls, below, above), where(falls, rest, weight)
    inner = first + share * (where(is_inner, second, first) - first)
    inner = with_derivative(jax.lax.clamp(below, inner, above), inner)
    return where(weight > 0, where(is_inner, inner, below * rest + above * weight), below)


@jax.custom_jvp
def with_derivative(value: jax.Array, like: jax.Array) -> jax.Array:
    """Returns the value with the derivative of another one that differs only by rounding."""
    del like
    return value


@with_derivative.defjvp
def _with_derivative_jvp(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    return with_derivative(*primals), tangents[1]
