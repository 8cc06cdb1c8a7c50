"""Sorts each segment of a ragged array, in one call."""

from __future__ import annotations

from typing import Any, overload

import jax
import jax.numpy as jnp

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import (
    ArrayLike,
    AxisName,
    Count,
    Directions,
    Keys,
    LessFunction,
    Pytree,
    SegmentsLike,
)
from jax_mgpu._src.arguments.check import (
    count_operand,
    describe,
    expect_no_axis,
    expect_pytree,
    expect_vector,
    type_error,
    value_error,
)
from jax_mgpu._src.arguments.counts import common_dtype, heads_inside
from jax_mgpu._src.arguments.segments import segment_operands
from jax_mgpu._src.core.compat import automatic
from jax_mgpu._src.core.operation import ABSENT, jit_eager
from jax_mgpu._src.functions.comparator_ops import SortByLess
from jax_mgpu._src.keys.columns import expect_keys
from jax_mgpu._src.mesh import over_axis
from jax_mgpu._src.ops.intervals import scatter_rows
from jax_mgpu._src.ops.scan import scan
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sort_primitives import Method

__all__ = ["segmented_sort", "segmented_sort_indices"]


@overload
def segmented_sort(
    keys: ArrayLike,
    heads: SegmentsLike | None = None,
    values: None = None,
    *,
    ends: ArrayLike | None = None,
    flags: ArrayLike | None = None,
    descending: bool = False,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> jax.Array: ...
@overload
def segmented_sort(
    keys: ArrayLike,
    heads: SegmentsLike | None = None,
    values: Pytree = ...,
    *,
    ends: ArrayLike | None = None,
    flags: ArrayLike | None = None,
    descending: bool = False,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> tuple[jax.Array, Any]: ...
@overload
def segmented_sort(
    keys: tuple[ArrayLike, ...],
    heads: SegmentsLike | None = None,
    values: Pytree = None,
    *,
    ends: ArrayLike | None = None,
    flags: ArrayLike | None = None,
    descending: Directions = False,
    count: ArrayLike | None = None,
) -> Any: ...
@overload
def segmented_sort(
    keys: Any,
    heads: SegmentsLike | None = None,
    values: Pytree = None,
    *,
    ends: ArrayLike | None = None,
    flags: ArrayLike | None = None,
    count: ArrayLike | None = None,
    less: LessFunction,
) -> Any: ...
@jit_eager("descending", "less")
def segmented_sort(
    keys: Keys,
    heads: SegmentsLike | None = None,
    values: Pytree = None,
    *,
    ends: ArrayLike | None = None,
    flags: ArrayLike | None = None,
    descending: Directions = False,
    count: ArrayLike | None = None,
    less: LessFunction | None = None,
    axis_name: AxisName | None = None,
) -> Any:
    """Sorts each segment of `keys`, stably, with their values.

    Args:
      keys: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits. Floats are in the order of `jax.lax.sort`: NaN
        is largest, the two zeros are equal. Or columns: a tuple of 1 to 8 such arrays, compared one after the other.
      heads: `[m]`, non-decreasing integers: see `segmented_scan`. Or `Segments`, which replace `ends`, `flags` and
        `count`.
      values: a pytree of arrays with leading axis `n`, of any dtype and trailing shape, moved along with the keys.
      ends: `[m]` integers, the ends: segment `i` is `heads[i]` to `ends[i]`. Items outside of all segments stay where
        they are, even those before the first head. Without `ends`, the items before the first head form a segment. See
        `segmented_reduce`.
      flags: the segments as flags instead of heads: `bool[n]`, or `uint32[ceil(n / 32)]` with item `i` at bit `i % 32`
        of word `i // 32`. A set flag starts a segment.
      descending: sort in the reverse order; equal keys stay in input order. A tuple of bools gives a direction for each
        column.
      count: the number of live items, an integer scalar (default `n`). Items past it stay where they are.
      less: a comparator that replaces the order of numbers; see `mergesort`. Cannot be combined with `descending` or
        `axis_name`.
      axis_name: sort the segments of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`; columns
        may have up to 64 bits in all. Heads and flags mark the segments that start among a device's own items; a
        segment continues on the next devices, up to the next head. A device keeps its number of items, and slots past
        it hold 0.

    Returns:
      The sorted keys, bit for bit a permutation of the input; with values, `(keys, values)`. Columns come back as the
      tuple they are.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape is not one of the above, both or neither of heads and flags are given, or ends
        without heads; 2^31 items or more as for `mergesort`.

    Time is O(n log t) for tiles of t items and O(n log(s / t)) for segments of s > t items, in any mixture of lengths;
    scratch memory is about one copy of keys and values. The algorithm is a block sort and merge rounds that stop when a
    segment is done (Baxter, moderngpu, 2013), with runs counted from each segment's own start. On a GPU, long segments
    may be sorted by digits, as in `sort`. Columns cost as in `mergesort`. With ends, items between segments are marked
    first, in flags of n bytes.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.segmented_sort(jnp.array([3, 1, 2, 9, 8, 7, 5]), jnp.array([0, 3, 6]))
      Array([1, 2, 3, 7, 8, 9, 5], dtype=int32)
      >>> mgpu.segmented_sort(jnp.array([3, 1, 2, 9, 8, 7, 5]), jnp.array([0, 4]), ends=jnp.array([2, 7]))
      Array([1, 3, 2, 9, 5, 7, 8], dtype=int32)
    """
    name = "segmented_sort"
    if less is not None:
        expect_no_axis(name, "less", axis_name)
        heads, flags, _ = _segments(name, expect_pytree(name, "keys", keys)[2], heads, ends, flags, count)
        return SortByLess.of(name, keys, less, descending, count, heads, flags).run(values)
    checked, down = expect_keys(name, "keys", keys, descending)
    heads, flags, live = _segments(name, checked.shape[0], heads, ends, flags, count, axis_name)
    if axis_name is not None:
        form = mesh.segments.segmented_sort
        return over_axis(form, name, axis_name, checked, heads, flags, values, descending=down, count=count)
    return Sort(name, checked, down, live, heads, flags, method=Method.MERGING).run(values)


@overload
def segmented_sort_indices(
    keys: ArrayLike,
    heads: SegmentsLike | None = None,
    *,
    ends: ArrayLike | None = None,
    flags: ArrayLike | None = None,
    descending: bool = False,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> tuple[jax.Array, jax.Array]: ...
@overload
def segmented_sort_indices(
    keys: tuple[ArrayLike, ...],
    heads: SegmentsLike | None = None,
    *,
    ends: ArrayLike | None = None,
    flags: ArrayLike | None = None,
    descending: Directions = False,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> tuple[Any, jax.Array]: ...
@overload
def segmented_sort_indices(
    keys: Any,
    heads: SegmentsLike | None = None,
    *,
    ends: ArrayLike | None = None,
    flags: ArrayLike | None = None,
    count: ArrayLike | None = None,
    less: LessFunction,
) -> tuple[Any, jax.Array]: ...
@jit_eager("descending", "less")
def segmented_sort_indices(
    keys: Keys,
    heads: SegmentsLike | None = None,
    *,
    ends: ArrayLike | None = None,
    flags: ArrayLike | None = None,
    descending: Directions = False,
    count: ArrayLike | None = None,
    less: LessFunction | None = None,
    axis_name: AxisName | None = None,
) -> tuple[Any, jax.Array]:
    """Sorts each segment of `keys`, and gives the position that each key came from.

    Args:
      keys: see `segmented_sort`.
      heads: see `segmented_sort`.
      ends: see `segmented_sort`.
      flags: see `segmented_sort`.
      descending: see `segmented_sort`.
      count: see `segmented_sort`.
      less: see `segmented_sort`.
      axis_name: see `segmented_sort`.

    Returns:
      `(sorted keys, indices)` with `sorted_keys == keys[indices]`: indices count from the start of `keys`, not of the
      segment; int32, or int64 from 2^31 items on.

    Raises:
      TypeError: as `segmented_sort`.
      ValueError: as `segmented_sort`; also 2^31 items or more without `jax_enable_x64`.

    For complexity and source, see `segmented_sort`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.segmented_sort_indices(jnp.array([3, 1, 2, 9, 8]), jnp.array([0, 3]))[1]
      Array([1, 2, 0, 4, 3], dtype=int32)
    """
    name = "segmented_sort_indices"
    if less is not None:
        expect_no_axis(name, "less", axis_name)
        heads, flags, _ = _segments(name, expect_pytree(name, "keys", keys)[2], heads, ends, flags, count)
        return SortByLess.of(name, keys, less, descending, count, heads, flags).indices()
    checked, down = expect_keys(name, "keys", keys, descending)
    heads, flags, live = _segments(name, checked.shape[0], heads, ends, flags, count, axis_name)
    if axis_name is not None:
        form = mesh.segments.segmented_sort_indices
        return over_axis(form, name, axis_name, checked, heads, flags, descending=down, count=count)
    return Sort(name, checked, down, live, heads, flags, method=Method.MERGING).indices()


def _segments(
    name: str,
    n: int,
    heads: SegmentsLike | None,
    ends: ArrayLike | None,
    flags: ArrayLike | None,
    count: Count,
    axis_name: AxisName | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the operands heads and flags, one of them absent, and the live count."""
    if (heads is None) == (flags is None):
        got = "neither" if heads is None else "both"
        raise value_error(name, "heads and flags", "exactly one of them", got)
    if heads is not None:
        segments = segment_operands(name, heads, ends, count, n, axis_name=axis_name)
        if segments.ends is None:
            return segments.heads, ABSENT, segments.count
        if axis_name is not None:
            flags = over_axis(mesh.ragged.flags_of_gaps, name, axis_name, segments)
            return ABSENT, flags, segments.count
        return ABSENT, flags_of_gaps(segments.heads, segments.ends, n), segments.count
    if ends is not None:
        raise value_error(name, "ends", "None with flags", describe(ends))
    flags = expect_vector(name, "flags", flags)
    if flags.dtype not in (jnp.bool_, jnp.uint32):
        raise type_error(name, "flags", "bool[n] or uint32[ceil(n / 32)]", describe(flags))
    length = n if flags.dtype == jnp.bool_ else -(-n // 32)
    if flags.shape[0] != length:
        raise value_error(name, "flags", f"{flags.dtype.name}[{length}] for {n} keys", describe(flags))
    return ABSENT, flags, count_operand(name, "count", count, n)


def flags_of_gaps(heads: jax.Array, ends: jax.Array, n: int) -> jax.Array:
    """Returns flags that are set where a segment with items starts, and at each item between segments."""

    def flags_of(heads: jax.Array, ends: jax.Array) -> jax.Array:
        starts, stops = heads_inside(heads, n), heads_inside(ends, n)
        dtype = common_dtype(starts, stops)
        starts = starts.astype(dtype)
        stops = jnp.maximum(stops.astype(dtype), starts)
        # A gap extends from the largest end so far to the next head. An empty segment may lie within another.
        first, last = jnp.zeros((1,), dtype), jnp.full((1,), n, dtype)
        gap_starts = jnp.concatenate([first, scan(stops, "max")])
        lengths = jnp.maximum(jnp.concatenate([starts, last]) - gap_starts, 0)
        offsets, total = scan(lengths, exclusive=True, return_total=True)
        marks, nothing = jnp.ones((n, 1), jnp.bool_), jnp.zeros((n, 1), jnp.bool_)
        flags = scatter_rows(marks, gap_starts, offsets, total[None], nothing)[:, 0]
        return flags.at[jnp.where(stops > starts, starts, n)].set(True, mode="drop")

    if not heads.size or n == 0:  # all items are in a gap
        return jnp.ones((n,), jnp.bool_)
    return automatic(flags_of)(heads, ends)
