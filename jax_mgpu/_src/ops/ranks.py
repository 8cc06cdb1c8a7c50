"""The largest or smallest items of an array or of each segment, and quantiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import (
    ArrayLike,
    Aval,
    AxisName,
    DTypeLike,
    Operands,
    Pytree,
    QuantileMethod,
    SegmentsLike,
    Tangents,
)
from jax_mgpu._src.arguments.check import (
    count_operand,
    expect_key,
    index_dtype,
    static_flag,
    static_size,
)
from jax_mgpu._src.arguments.counts import live_items
from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.arguments.segments import segment_operands
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.core.compat import platform_dependent, surely
from jax_mgpu._src.core.operation import ABSENT, Operation, jit_eager
from jax_mgpu._src.functions.operators import Kind
from jax_mgpu._src.keys.bits import keeping_bits, part_of, where
from jax_mgpu._src.mesh import over_axis
from jax_mgpu._src.ops.order_statistics import quantiles
from jax_mgpu._src.ops.ragged import rows_of_segments
from jax_mgpu._src.ops.reduce import _reduce
from jax_mgpu._src.ops.scan import heads_of_bounds
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sort_primitives import Method

__all__ = ["TopK", "quantile", "segmented_quantile", "segmented_top_k", "top_k"]


class TopK(NamedTuple):
    """The first items of an array, or of each segment, in the order of a sort.

    Attributes:
      values: `[k]`, or `[m, k]` for m segments: the items, largest or smallest first; 0 past `count`.
      indices: of the same shape, the position of each in `x`; -1 past `count`.
      count: the number of these items: `k`, or fewer if there are fewer items. A scalar, or `[m]`.

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
        devices get the same result, whose indices are positions in the global array.

    Returns: `TopK`: the items, the position of each in `x`, and their number.

    Raises:
      TypeError: an argument's dtype is not one of the above, or `k` is not static.
      ValueError: an argument's shape is not one of the above; 2^31 items or more without `jax_enable_x64`.

    Derivatives go to the selected items. Time is O(n + k log k) on random input if `k` is at most a quarter of `n`. For
    a larger `k`, it is at most that of a sort. On CUDA, a large batch of short rows may take the time of a sort too.

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
    if surely(lambda: k > n // SELECTED_PART) and not _is_short(n, k):
        return TopK(*_sort_first(name, x, k, largest, live))
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
    axis_name: AxisName | None = None,
) -> TopK:
    """The `k` largest items of each segment, or the smallest.

    Args:
      x: see `top_k`.
      heads: `[m]`, non-decreasing integers: the start positions of the segments; see `segmented_reduce`. Or `Segments`,
        which replace `ends` and `count`.
      k: see `top_k`.
      largest: see `top_k`.
      ends: `[m]` integers: see `segmented_reduce`.
      count: see `top_k`.
      axis_name: take the items of the segments of all devices of a mesh axis, or of a tuple of axes, within
        `jax.shard_map`. Heads are given as for `segmented_reduce`. A segment's row is on the device of its head, and
        indices are positions in the global array.

    Returns:
      `TopK` with a row for each head; indices are positions in `x`.

    Raises:
      TypeError: as `top_k`.
      ValueError: as `top_k`.

    Derivatives are those of `top_k`. Time is O((n + m) k) for any lengths of the segments. Over a mesh axis, and on
    CUDA for `k` above 32, or above 8 if segments have more than 256 items on average, it may be that of a sort.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.segmented_top_k(jnp.array([3, 1, 4, 1, 5]), jnp.array([0, 4]), 2).values
      Array([[4, 3],
             [5, 0]], dtype=int32)
    """
    name = "segmented_top_k"
    x, k, largest = _read(name, x, k, largest)
    n = x.shape[0]
    segments = segment_operands(name, heads, ends, count, n, axis_name=axis_name, whole=True)
    if axis_name is not None:
        return over_axis(mesh.ragged.segmented_top_k, name, axis_name, segments, x, k, largest)
    begin, end = (bound.astype(index_dtype(name, "x", n)) for bound in segments.bounds())
    values, indices = _select_first_of_segments(x=x, begins=begin, ends=end, count=segments.count, k=k, largest=largest)
    return TopK(values, indices, jnp.minimum(end - begin, k))


def _read(name: str, x: Pytree, k: int, largest: bool) -> tuple[jax.Array, int, bool]:
    x, k, largest = expect_key(name, "x", x), static_size(name, "k", k), static_flag(name, "largest", largest)
    index_dtype(name, "x", x.shape[0])
    index_dtype(name, "k", k)
    return x, k, largest


def _sort_first(
    name: str, x: jax.Array, k: int, largest: bool, count: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    n = x.shape[0]
    items, order = Sort(name, x, largest, count).indices()
    if not count.size and surely(lambda: k <= n):
        return part_of(items, 0, k), part_of(order, 0, k), jnp.asarray(k, order.dtype)
    begin = jnp.zeros((1,), order.dtype)
    taken = jnp.minimum(live_items(n, count, order.dtype).reshape(1), k)
    items, order = (rows_of_segments(name, rows, begin, taken, k, fill)[0] for rows, fill in ((items, 0), (order, -1)))
    return items, order, taken[0]


class _TopK(Operation):
    """A selection of the first items."""

    def prefers_xla(self, operands: Sequence[Any], attributes: Mapping[str, int], platform: str, devices: int) -> bool:
        """Whether plain JAX runs: a sort, a reduction for one item, or `_sort_candidates`."""
        n, total, k = operands[0].shape[-1], operands[0].size, attributes["k"]
        if platform == "cuda" and _is_short(n, k):
            return False
        if surely(lambda: k > n // SELECTED_PART):
            return True
        if platform != "cuda":
            return False
        if _is_extremum(operands[0].dtype, k, bool(attributes["largest"])):
            return True
        return k > CUDA_MAX_K or n >= 2**32 or (n < CUDA_MIN_ROW and total > CUDA_FEW_ITEMS)


def _first_shapes(x: Aval, *, k: int) -> Sequence[Any]:
    index = index_dtype("top_k", "x", x.shape[0])
    return [jax.ShapeDtypeStruct((k,), x.dtype), jax.ShapeDtypeStruct((k,), index)]


def _first_fallback(x: jax.Array, count: jax.Array, *, k: int, largest: int) -> Sequence[jax.Array]:
    n = x.shape[0]

    if _is_extremum(x.dtype, k, bool(largest)):
        index = _reduce(x=x, count=count, op=Kind.ARGMAX if largest else Kind.ARGMIN, wide=False)[0].reshape(1)
        return take_or_fill(x, index), index.astype(index_dtype("top_k", "x", n))

    def by_sort() -> Sequence[jax.Array]:
        return _sort_first("top_k", x, k, bool(largest), count)[:2]

    def by_candidates() -> Sequence[jax.Array]:
        return _sort_candidates(x, count, k, bool(largest))

    with by_construction():  # the count was checked
        if surely(lambda: n <= CUDA_MAX_CANDIDATES_ROW and CUDA_MAX_K < k <= n // SELECTED_PART):
            return platform_dependent(cuda=by_candidates, default=by_sort)
        return by_sort()


def _is_extremum(dtype: DTypeLike, k: int, largest: bool) -> bool:
    """Whether argmax or argmin finds the first item.

    Argmin prefers a NaN, which comes last in a sort.
    """
    return k == 1 and (largest or jnp.issubdtype(dtype, jnp.integer))


def _sort_candidates(x: jax.Array, count: jax.Array, k: int, largest: bool) -> Sequence[jax.Array]:
    """Sorts the few items that may be among the first k."""
    room = _candidates_room(x.shape[0], k, x.dtype.itemsize)
    values, positions, found = _top_k_candidates(x=x, count=count, k=k, room=room, largest=largest)
    values, positions = Sort("top_k", values, largest, found).run(positions)
    values, positions = part_of(values, 0, k), part_of(positions, 0, k)
    if count.size:
        exists = jnp.arange(k) < live_items(x.shape[0], count)
        values = keeping_bits(lambda x, exists: where(exists, x, 0), values, exists)
        positions = where(exists, positions, -1)
    return values, positions


def _candidates_room(n: int, k: int, width: int) -> int:
    """Returns room for the candidates of a row.

    CUDA's kernels bound the candidates by the item of a sample of rank `k * sample / n`, plus about four standard
    deviations. The room is for about five more.
    """
    # candidate_sample of ffi/ops/top_k_candidates/plan.h
    sample = min(max(n // 24, 2048), 2**15 // max(width, 4), n)
    expected = k * sample / n
    wanted = (expected + 4 * math.sqrt(expected) + 6) * (1 + 1 / 16)
    return min(n, math.ceil((wanted + 5 * math.sqrt(wanted) + 8) * n / sample))


def _def_jvp(operation: Operation) -> None:
    """Sets the forward derivative of a selection of values and indices."""

    def jvp(primals: Operands, tangents: Tangents, **attributes: int) -> tuple[Any, Any]:
        values, indices = operation.run(primals, **attributes)
        moved = None if tangents.x is None else take_or_fill(tangents.x, indices, unique=True)
        return [values, indices], [moved, None]

    operation.def_jvp(jvp)


# Items are selected rather than sorted if k is at most n // SELECTED_PART.
SELECTED_PART = 4
CUDA_MAX_K = 2048  # kTopKMaxK of ffi/ops/top_k/plan.h
CUDA_MAX_CANDIDATES_ROW = 2**31 - 256  # a block of 256 threads goes through a row with 32-bit positions
CUDA_MIN_ROW = 2048  # shorter rows may be sorted if there are more than CUDA_FEW_ITEMS items
CUDA_FEW_ITEMS = 2**16
CUDA_SHORT_ROW, CUDA_SHORT_FIRST = 2048, 64  # a warp selects up to 64 items of a row of at most 2,048


def _is_short(n: int, k: int) -> bool:
    """Whether CUDA's kernels can select k items of rows of n by a warp for each."""
    return n <= CUDA_SHORT_ROW and k <= CUDA_SHORT_FIRST


def _candidates_shapes(x: Aval, *, room: int) -> Sequence[Any]:
    index = index_dtype("top_k", "x", x.shape[0])
    return [jax.ShapeDtypeStruct((room,), x.dtype), *(jax.ShapeDtypeStruct((size,), index) for size in (room, 1))]


def _candidates_fallback(x: jax.Array, count: jax.Array, *, room: int, largest: int) -> Sequence[jax.Array]:
    with by_construction():
        values, positions, found = _sort_first("top_k", x, room, bool(largest), count)
    return values, positions, found.reshape(1)


# Candidates for the first k items. The results begin with `found` candidates; a stable sort of these begins with the
# first k items.
_top_k_candidates = Operation(
    "top_k_candidates",
    operands={"x": 1, "count": 1},
    results=("values", "positions", "found"),
    attributes={"k": int, "room": int, "largest": bool},
    shapes=_candidates_shapes,
    fallback=_candidates_fallback,
    streamed=("x",),
    only="cuda",
)

_select_first = _TopK(
    "top_k",
    operands={"x": 1, "count": 1},
    results=("values", "indices"),
    attributes={"k": int, "largest": bool},
    shapes=_first_shapes,
    fallback=_first_fallback,
    streamed=("x",),
)
_def_jvp(_select_first)


class _SegmentedTopK(Operation):
    """A selection in each segment."""

    def prefers_xla(self, operands: Sequence[Any], attributes: Mapping[str, int], platform: str, devices: int) -> bool:
        """Whether plain JAX runs: on CUDA, if k is large."""
        k: int = attributes["k"]
        if platform != "cuda":  # on other platforms, an exported program may not know the number of items
            return False
        is_long = operands[0].shape[-1] > CUDA_SORTED_SEGMENT * operands[1].shape[-1]
        return k > (CUDA_MAX_STEPS if is_long else CUDA_MAX_SEGMENT_K)


CUDA_MAX_SEGMENT_K = 32  # kSegmentedTopKMaxK of ffi/ops/segmented_top_k/plan.h
CUDA_MAX_STEPS = 8  # the largest k in long segments: kTopKSteps of ffi/ops/segmented_top_k/plan.h
CUDA_SORTED_SEGMENT = 256  # segments of a larger mean length are long


def _first_of_segments_shapes(x: Aval, begins: Aval, *, k: int) -> Sequence[Any]:
    index = index_dtype("segmented_top_k", "x", x.shape[0])
    return [jax.ShapeDtypeStruct((begins.shape[0], k), dtype) for dtype in (x.dtype, index)]


def _first_of_segments_fallback(
    x: jax.Array, begins: jax.Array, ends: jax.Array, count: jax.Array, *, k: int, largest: int
) -> Sequence[jax.Array]:
    name = "segmented_top_k"
    with by_construction():  # segments and count were checked
        heads = heads_of_bounds(begins, ends)
        items, order = Sort(name, x, bool(largest), count, heads=heads, method=Method.MERGING).indices()
        taken = jnp.minimum(ends - begins, k).astype(order.dtype)
        return [rows_of_segments(name, rows, begins, taken, k, fill) for rows, fill in ((items, 0), (order, -1))]


_select_first_of_segments = _SegmentedTopK(
    "segmented_top_k",
    operands={"x": 1, "begins": 1, "ends": 1, "count": 1},
    results=("values", "indices"),
    attributes={"k": int, "largest": bool},
    shapes=_first_of_segments_shapes,
    fallback=_first_of_segments_fallback,
)


_def_jvp(_select_first_of_segments)


@jit_eager("method")
def quantile(
    x: ArrayLike,
    q: ArrayLike,
    *,
    method: QuantileMethod = "linear",
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> jax.Array:
    """Quantiles of all items, as in `jnp.quantile`.

    Args:
      x: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits.
      q: numbers from 0 to 1, an array of any shape or a scalar.
      method: the value of a quantile between two items: `"linear"` interpolates; `"lower"`, `"higher"` and `"nearest"`
        take one of them (the one of even rank, if both are equally near), `"midpoint"` takes the mean of both.
      count: the number of live items, an integer scalar (default `n`).
      axis_name: take the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`. `q` is the
        same on all of them, and so is the result.

    Returns: An array of the shape of `q`, of the type of `x` or, for integers, JAX's default float. NaN without items,
      and if an item is NaN.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape or method is not one of the above; 2^31 items or more without `jax_enable_x64`.

    Derivatives go to the two items around each quantile, and to `q`. Time is O(n), in a few passes over memory. With a
    derivative, over a mesh axis, and on CUDA if there are more than three quantiles, fewer than 2^14 items in a row, or
    at most 2^20 items in all, a call may take the time of a sort.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.quantile(jnp.array([3.0, 1.0, 4.0, 1.0]), jnp.array([0.0, 0.5]))
      Array([1., 2.], dtype=float32)
    """
    return quantiles("quantile", x, ABSENT, q, count, None, axis_name, method)


@jit_eager("method")
def segmented_quantile(
    x: ArrayLike,
    heads: SegmentsLike,
    q: ArrayLike,
    *,
    method: QuantileMethod = "linear",
    ends: ArrayLike | None = None,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> jax.Array:
    """Quantiles of each segment, as in `jnp.quantile`.

    Args:
      x: see `quantile`.
      heads: `[m]`, non-decreasing integers: the start positions of the segments; see `segmented_reduce`. Or `Segments`,
        which replace `ends` and `count`.
      q: see `quantile`.
      method: see `quantile`.
      ends: `[m]` integers: see `segmented_reduce`.
      count: see `quantile`.
      axis_name: take the items of the segments of all devices of a mesh axis, or of a tuple of axes, within
        `jax.shard_map`. Heads are given as for `segmented_reduce`. A segment's results are on the device of its head.

    Returns:
      `[…, m]`, the axes of `q` first, of the type of `x` or, for integers, JAX's default float. NaN for an empty
      segment, and for a segment with a NaN.

    Raises:
      TypeError: as `quantile`.
      ValueError: as `quantile`.

    Derivatives are those of `quantile`. A call reads the items in a few passes, for any lengths of the segments. With a
    derivative, over a mesh axis, and on CUDA for more than seven quantiles, or for fewer than 2^22 items in segments of
    more than 1,024 on average, it may take the time of a sort.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.segmented_quantile(jnp.array([3.0, 1.0, 4.0, 1.0, 5.0]), jnp.array([0, 3, 3]), 0.5)
      Array([ 3., nan,  3.], dtype=float32)
    """
    return quantiles("segmented_quantile", x, heads, q, count, ends, axis_name, method)
