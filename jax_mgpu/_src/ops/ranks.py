"""Items by their rank: the largest or smallest of an array or of each segment, and quantiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import ArrayLike, AxisName, SegmentsLike
from jax_mgpu._src.arguments.check import (
    as_array,
    count_operand,
    describe,
    expect_key,
    index_dtype,
    static_flag,
    static_size,
    type_error,
)
from jax_mgpu._src.arguments.counts import live_items
from jax_mgpu._src.arguments.preconditions import by_construction, fractions
from jax_mgpu._src.arguments.segments import GivenSegments, segment_operands
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.core.compat import whole_axes
from jax_mgpu._src.core.operation import ABSENT, Operation, jit_eager
from jax_mgpu._src.functions.operators import accumulator_dtype
from jax_mgpu._src.mesh import over_axis
from jax_mgpu._src.ops.argsorted import count_of
from jax_mgpu._src.ops.ragged import rows_of_segments
from jax_mgpu._src.ops.scan import pieces
from jax_mgpu._src.ops.sort import run_sort, run_sort_indices
from jax_mgpu._src.ops.sort_primitives import Method

__all__ = ["TopK", "quantile", "segmented_quantile", "segmented_top_k", "top_k"]


class TopK(NamedTuple):
    """The first items of an array, or of each segment, in the order of a sort.

    Attributes:
      values: `[k]`, or `[m, k]` for m segments: the items, largest or smallest first; 0 past `count`.
      indices: of the same shape, the position of each in `x`; -1 past `count`.
      count: how many there are: `k`, or fewer if there are fewer items. A scalar, or `[m]`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> best = mgpu.segmented_top_k(jnp.array([3, 1, 4, 1, 5]), jnp.array([0, 4]), 2)
      >>> best.indices, best.count
      (Array([[ 2,  0],
             [ 4, -1]], dtype=int32), Array([2, 1], dtype=int32))
    """

    values: jax.Array
    indices: jax.Array
    count: jax.Array  # type: ignore[assignment]


@jit_eager("k", "largest")
def top_k(
    x: ArrayLike,
    k: int,
    *,
    largest: bool = True,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> TopK:
    """The `k` largest items, or the smallest.

    Args:
      x: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits, in the order of `jax.lax.sort`: NaN is largest, the
        two zeros are equal.
      k: a static number; it may exceed `n`.
      largest: True for the largest items, largest first; False for the smallest, smallest first. Among equal items, the
        first ones are taken.
      count: the number of live items, an integer scalar (default `n`).
      axis_name: take the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`. All
        devices get the same result, whose indices are those in the global array.

    Returns:
      `TopK`: the items, the position of each in `x`, and how many there are.

    Raises:
      TypeError: an argument's dtype is not one of the above, or `k` is not static.
      ValueError: an argument's shape is not one of the above; 2^31 items or more without `jax_enable_x64`.

    Derivatives go to the items that are taken. If `k` is at most a quarter of `n`, and on CUDA at most 2,048, time is
    O(n + k log k) on random input, in one pass over memory. So it is on CUDA for `k` up to 64 of rows of up to 2,048
    items, of which `vmap` makes a batch. Otherwise it is that of a sort.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.top_k(jnp.array([3, 1, 4, 1, 5]), 2)
      TopK(values=Array([5, 4], dtype=int32), indices=Array([4, 2], dtype=int32), count=Array(2, dtype=int32))
    """
    name = "top_k"
    x, k, largest = _read(name, x, k, largest)
    n = x.shape[0]
    live = count_operand(name, "count", count, n)
    if axis_name is not None:
        return over_axis(mesh.selections.top_k, name, axis_name, x, k, largest, live)
    if k > n // SELECTED_PART and not _is_short(n, k):
        return TopK(*_sort_first(name, x, k, largest, count))
    values, indices = _select_first(x=x, count=live, k=k, largest=largest)
    return TopK(values, indices, jnp.minimum(live_items(n, live, indices.dtype), k))


@jit_eager("k", "largest")
def segmented_top_k(
    x: ArrayLike,
    heads: SegmentsLike,
    k: int,
    *,
    largest: bool = True,
    ends: ArrayLike | None = None,
    count: ArrayLike | None = None,
) -> TopK:
    """The `k` largest items of each segment, or the smallest.

    Args:
      x: see `top_k`.
      heads: `[m]`, non-decreasing integers: the start positions of the segments. Items before `heads[0]` belong to no
        result; a repeated head is an empty segment, and so is a head past the last item. Or `Segments`, then without
        `ends` and `count`.
      k: see `top_k`.
      largest: see `top_k`.
      ends: `[m]` integers beside heads: segment `i` is `heads[i]` to `ends[i]`; see `segmented_reduce`.
      count: see `top_k`.

    Returns:
      `TopK` with a row for each head; indices count from the start of `x`.

    Raises:
      TypeError: as `top_k`.
      ValueError: as `top_k`.

    Derivatives as `top_k`. Time is that of a sort, whatever the lengths of the segments.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.segmented_top_k(jnp.array([3, 1, 4, 1, 5]), jnp.array([0, 4]), 2).values
      Array([[4, 3],
             [5, 0]], dtype=int32)
    """
    name = "segmented_top_k"
    x, k, largest = _read(name, x, k, largest)
    n = x.shape[0]
    segments = segment_operands(name, heads, ends, count, n, whole=True)
    items, order = run_sort_indices(name, x, pieces(segments), ABSENT, descending=largest, count=count)
    begin, end = segments.bounds()
    taken = jnp.minimum(end - begin, k).astype(order.dtype)
    items, order = (rows_of_segments(name, rows, begin, taken, k, fill) for rows, fill in ((items, 0), (order, -1)))
    return TopK(items, order, taken)


def _read(name: str, x: Any, k: Any, largest: Any) -> tuple[jax.Array, int, bool]:
    x, k, largest = expect_key(name, "x", x), static_size(name, "k", k), static_flag(name, "largest", largest)
    index_dtype(name, "x", x.shape[0])
    return x, k, largest


def _sort_first(name: str, x: jax.Array, k: int, largest: bool, count: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The first k of all items, where they stand, and how many there are, by a sort of all."""
    n = x.shape[0]
    items, order = run_sort_indices(name, x, ABSENT, ABSENT, descending=largest, count=count, method=Method.FASTEST)
    begin = jnp.zeros((1,), order.dtype)
    taken = jnp.minimum(live_items(n, count_operand(name, "count", count, n), order.dtype).reshape(1), k)
    items, order = (rows_of_segments(name, rows, begin, taken, k, fill)[0] for rows, fill in ((items, 0), (order, -1)))
    return items, order, taken[0]


class _TopK(Operation):
    """A selection. Where a sort takes less time, CUDA sorts."""

    def prefers_xla(self, operands: Sequence[Any], attributes: Mapping[str, int], platform: str, devices: int) -> bool:
        """Whether the kernels do not take so many, or a batch has short rows of which many are asked for."""
        n, total, k = operands[0].shape[-1], operands[0].size, attributes["k"]
        if platform == "cuda" and _is_short(n, k):
            return False
        if k > n // SELECTED_PART:
            return True
        if platform != "cuda":
            return False
        return k > CUDA_MOST_FIRST or n >= 2**32 or (n < CUDA_LEAST_ROW and total > CUDA_FEW_ITEMS)


def _first_shapes(x: Any, *, k: int) -> Sequence[Any]:
    index = index_dtype("top_k", "x", x.shape[0])
    return [jax.ShapeDtypeStruct((k,), x.dtype), jax.ShapeDtypeStruct((k,), index)]


def _first_fallback(x: jax.Array, count: jax.Array, *, k: int, largest: int) -> Sequence[jax.Array]:
    with by_construction():  # the count was checked
        return _sort_first("top_k", x, k, bool(largest), count_of(count))[:2]


def _first_jvp(primals: Any, tangents: Any, **attributes: int) -> tuple[Any, Any]:
    values, indices = _select_first.run(primals, **attributes)
    moved = None if tangents.x is None else take_or_fill(tangents.x, indices, unique=True)
    return [values, indices], [moved, None]


# A selection wins over a sort where it leaves most items: on the CPU, of 64 rows of 65,536, the first 50 take a
# twentieth of the time.
SELECTED_PART = 4
CUDA_MOST_FIRST = 2048  # kTopKMost of ffi/cuda/tunings.h: what a block has room for
CUDA_LEAST_ROW = 2048  # a block has a row, or a part of it: of many shorter ones the sort has several in a block
CUDA_FEW_ITEMS = 2**16
CUDA_SHORT_ROW, CUDA_SHORT_FIRST = 2048, 64  # kTopKRowLargest of ffi/cuda/tunings.h: what a warp takes, however many


def _is_short(n: int, k: int) -> bool:
    """Whether CUDA has kernels for rows of so many, that take less time than a sort for any such k."""
    return n <= CUDA_SHORT_ROW and k <= CUDA_SHORT_FIRST


_select_first = _TopK(
    "top_k",
    operands={"x": 1, "count": 1},
    results=("values", "indices"),
    attributes={"k": int, "largest": bool},
    shapes=_first_shapes,
    fallback=_first_fallback,
    streamed=("x",),
)
_select_first.def_jvp(_first_jvp)


@jit_eager()
def quantile(
    x: ArrayLike, q: ArrayLike, *, count: ArrayLike | None = None, axis_name: AxisName | None = None
) -> jax.Array:
    """Quantiles of all items, as `jnp.quantile` with its linear method.

    Args:
      x: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits.
      q: numbers from 0 to 1, an array of any shape or a scalar.
      count: the number of live items, an integer scalar (default `n`).
      axis_name: take the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`. `q` is the
        same on all of them, and so is the result.

    Returns:
      An array of the shape of `q`, of the type of `x` or, for integers, JAX's default float. NaN over nothing, and if
      an item is NaN.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape is not one of the above; 2^31 items or more without `jax_enable_x64`.

    Derivatives go to the two items around each quantile, and to `q`. Time is O(n), in a few passes over memory; on
    CUDA, for more than three quantiles or with a derivative, and over a mesh axis, it is that of a sort.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.quantile(jnp.array([3.0, 1.0, 4.0, 1.0]), jnp.array([0.0, 0.5]))
      Array([1., 2.], dtype=float32)
    """
    return _quantile("quantile", x, ABSENT, q, count, None, axis_name)


@jit_eager()
def segmented_quantile(
    x: ArrayLike,
    heads: SegmentsLike,
    q: ArrayLike,
    *,
    ends: ArrayLike | None = None,
    count: ArrayLike | None = None,
) -> jax.Array:
    """Quantiles of each segment, as `jnp.quantile` with its linear method.

    Args:
      x: see `quantile`.
      heads: `[m]`, non-decreasing integers: the start positions of the segments. Items before `heads[0]` belong to no
        result; a repeated head is an empty segment, and so is a head past the last item. Or `Segments`, then without
        `ends` and `count`.
      q: see `quantile`.
      ends: `[m]` integers beside heads: segment `i` is `heads[i]` to `ends[i]`; see `segmented_reduce`.
      count: see `quantile`.

    Returns:
      `[…, m]`, the axes of `q` first, of the type of `x` or, for integers, JAX's default float. NaN for an empty
      segment, and for a segment with a NaN.

    Raises:
      TypeError: as `quantile`.
      ValueError: as `quantile`.

    Derivatives as `quantile`. Time is that of a sort, whatever the lengths of the segments.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.segmented_quantile(jnp.array([3.0, 1.0, 4.0, 1.0, 5.0]), jnp.array([0, 3, 3]), 0.5)
      Array([ 3., nan,  3.], dtype=float32)
    """
    return _quantile("segmented_quantile", x, heads, q, count, ends)


def _quantile(name: str, x: Any, heads: Any, q: Any, count: Any, ends: Any, axis_name: Any = None) -> jax.Array:
    x = whole_axes(expect_key(name, "x", x))
    n = x.shape[0]
    q = as_array(name, "q", q)
    if not (jnp.issubdtype(q.dtype, jnp.floating) or jnp.issubdtype(q.dtype, jnp.integer)):
        raise type_error(name, "q", "numbers from 0 to 1", describe(q))
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    dtype = x.dtype if is_float else jnp.dtype(jax.dtypes.canonicalize_dtype(jnp.float64))
    wide = accumulator_dtype(dtype)
    shape = q.shape
    q = fractions(name, "q", whole_axes(q).astype(wide).reshape(-1))
    if heads is ABSENT:
        segments = GivenSegments(jnp.zeros((1,), jnp.int32), None, count_operand(name, "count", count, n), n)
    else:
        segments = segment_operands(name, heads, ends, count, n, whole=True)
        shape = (*shape, segments.m)
    index, live = index_dtype(name, "x", n), segments.count
    if 0 in shape:  # a batch over an Explicit mesh cannot reshape it
        return jnp.zeros(shape, dtype)
    if axis_name is not None:
        total, item_at = over_axis(mesh.selections.ordered_items, name, axis_name, x, live)
        begin, end = jnp.zeros((1,), total.dtype), total.reshape(1)
    else:
        begin, end = (bound.astype(index) for bound in segments.bounds())
    lower, upper, weight = _neighbours(q[:, None], (end - begin)[None])
    last = jnp.broadcast_to(jnp.maximum(end - 1, 0), (1, *end.shape))
    positions = jnp.concatenate([begin[None] + lower, begin[None] + upper, last])
    if axis_name is not None:
        items = item_at(positions[:, 0])[:, None]
    elif heads is ABSENT:
        items = _order_statistics(x=x, ranks=positions[:, 0], count=live)[0][:, None]
    else:
        ordered = run_sort(
            name, x, pieces(segments), ABSENT, None, descending=False, count=count, method=Method.MERGING
        )
        items = take_or_fill(ordered, positions.reshape(-1)).reshape(positions.shape)
    below, above = (part.astype(wide) for part in jnp.split(items[:-1], 2))
    found = between(below, above, weight)
    undefined = (begin == end)[None] | jnp.isnan(q)[:, None]
    if is_float:  # NaNs come last
        undefined |= jnp.isnan(items[-1:])
    return jnp.where(undefined, jnp.nan, found).astype(dtype).reshape(shape)


class _OrderStatistics(Operation):
    """A selection of the items at some ranks. Where a sort takes less time, CUDA sorts."""

    def prefers_xla(self, operands: Sequence[Any], attributes: Mapping[str, int], platform: str, devices: int) -> bool:
        """Whether a batch asks for many ranks of one array, the kernels do not take so many, or rows are short."""
        x, ranks, _ = operands
        if x.ndim == 1 and ranks.size > CUDA_MOST_RANKS and ranks.ndim > 1:
            return True  # it is sorted once
        short = x.shape[-1] < CUDA_LEAST_COUNTED_ROW and x.size > CUDA_FEW_ITEMS
        return platform == "cuda" and (ranks.shape[-1] > CUDA_MOST_RANKS or short)


CUDA_MOST_RANKS = 7  # kMostRanks of ffi/cuda/tunings.h
CUDA_LEAST_COUNTED_ROW = 2**14


def _statistics_shapes(x: Any, ranks: Any) -> Sequence[Any]:
    return [jax.ShapeDtypeStruct(ranks.shape, x.dtype)]


def _statistics_fallback(x: jax.Array, ranks: jax.Array, count: jax.Array) -> Sequence[jax.Array]:
    with by_construction():  # the count was checked
        ordered = run_sort(
            "quantile", x, ABSENT, ABSENT, None, descending=False, count=count_of(count), method=Method.FASTEST
        )
    return [take_or_fill(ordered, ranks)]


def _statistics_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    values = _order_statistics.run(primals)
    if tangents.x is None:
        return values, [None]
    with by_construction():
        order = run_sort_indices(
            "quantile", primals.x, ABSENT, ABSENT, descending=False, count=count_of(primals.count),
            method=Method.FASTEST,
        )[1]  # fmt: skip
    return values, [take_or_fill(tangents.x, take_or_fill(order, primals.ranks))]


_order_statistics = _OrderStatistics(
    "order_statistics",
    operands={"x": 1, "ranks": 1, "count": 1},
    results=("values",),
    attributes={},
    shapes=_statistics_shapes,
    fallback=_statistics_fallback,
)
_order_statistics.def_jvp(_statistics_jvp)


# A larger part of a rank is never taken for the rounding of q, which may be whole ranks of a long segment.
MOST_ERROR = 2**-10


def _neighbours(q: jax.Array, lengths: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The ranks below and above each quantile, and the weight of the upper one, from 0 to less than 1.

    A rank of a long segment has more digits than a float32. So the rank is computed in parts: with q = k / 4096 + r and
    the last rank 4096 h + l, it is k h + k l / 4096 + r (4096 h + l), of which only the last part is rounded. Rounding
    never takes it past the rank of (k + 1) / 4096, so that ranks rise with q.

    A rank that is whole but for the rounding of q is whole: 0.7 of 11 items is the item of rank 7, without a share of
    its neighbour, which may be infinite.
    """
    last = jnp.maximum(lengths - 1, 0)

    def rank(k: jax.Array) -> tuple[jax.Array, jax.Array]:
        middle = k * (last % 4096)
        return k * (last // 4096) + middle // 4096, (middle % 4096).astype(q.dtype) / 4096

    coarse = jnp.floor(jnp.nan_to_num(q) * 4096)
    k = jnp.clip(coarse, 0, 4096).astype(last.dtype)
    lower, rest = rank(k)
    rest = rest + (q - coarse / 4096) * last.astype(q.dtype)
    whole = jnp.floor(rest)
    weight = rest - whole
    lower = lower + jnp.nan_to_num(whole).astype(last.dtype)
    next_lower, next_weight = rank(jnp.minimum(k + 1, 4096))
    is_past = (lower > next_lower) | ((lower == next_lower) & (weight > next_weight))
    lower, exact = jnp.where(is_past, next_lower, lower), jnp.where(is_past, next_weight, weight)
    error = jnp.minimum(q * last.astype(q.dtype) * (jnp.finfo(q.dtype).eps / 2), MOST_ERROR)
    is_next = 1 - exact <= error
    lower = jnp.clip(lower + is_next.astype(lower.dtype), 0, last)
    weight = with_derivative(jnp.where(is_next | (exact <= error), 0, exact), weight)
    upper = jnp.minimum(lower + (weight > 0).astype(lower.dtype), last)
    return lower, upper, weight


def between(below: jax.Array, above: jax.Array, weight: jax.Array) -> jax.Array:
    """`below + weight * (above - below)` for weights from 0 to less than 1, which never falls as the weight grows.

    It lies within the two, and is the same as they are if they are equal. It starts from the one nearer to 0, whose
    digits matter. A difference of other signs may overflow: there each of the two has its share.
    """
    is_inner = ((below < 0) == (above < 0)) & jnp.isfinite(below) & jnp.isfinite(above)
    falls = below < 0
    near, far, share = (
        jnp.where(falls, above, below),
        jnp.where(falls, below, above),
        jnp.where(falls, 1 - weight, weight),
    )
    inner = near + share * (jnp.where(is_inner, far, near) - near)
    inner = with_derivative(jnp.where(jnp.abs(inner) > jnp.abs(far), far, inner), inner)
    return jnp.where(weight > 0, jnp.where(is_inner, inner, below * (1 - weight) + above * weight), below)


@jax.custom_jvp
def with_derivative(value: jax.Array, like: jax.Array) -> jax.Array:
    """The value, with the derivative of another that differs from it by rounding."""
    del like
    return value


@with_derivative.defjvp
def _with_derivative_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    return with_derivative(*primals), tangents[1]
