"""Ragged batches: rows of any lengths, one after the other, and conversions from and to dense arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import ArrayLike, AxisName, Integers, Pytree, SegmentsLike
from jax_mgpu._src.arguments.check import (
    as_array,
    describe,
    expect_rows,
    index_dtype,
    index_vector,
    static_size,
    value_error,
)
from jax_mgpu._src.arguments.preconditions import inside, room, segment_numbers, segments_fit
from jax_mgpu._src.arguments.renamed import renamed
from jax_mgpu._src.arguments.rows import RowForm
from jax_mgpu._src.arguments.segments import segment_operands
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.core.compat import surely, whole_axes
from jax_mgpu._src.core.operation import jit_eager
from jax_mgpu._src.keys.bits import is_random_key
from jax_mgpu._src.mesh import devices_of, over_axis
from jax_mgpu._src.ops.intervals import gather_rows
from jax_mgpu._src.ops.join import saturated_offsets
from jax_mgpu._src.ops.load_balance import _search
from jax_mgpu._src.ops.scan import pieces, scan

__all__ = ["RaggedParts", "from_dense", "segment_ids", "take_segments", "to_dense"]


class RaggedParts(NamedTuple):
    """The result of `from_dense` and `take_segments`: a ragged batch as arrays.

    Attributes:
      values: the items, a pytree of arrays `[size, ...]`; past `count`, the fill value.
      heads: `[m]`, where each segment starts.
      count: the number of items, a scalar. It can exceed `size`: then the first `size` items are kept.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> parts = mgpu.from_dense(jnp.array([[1, 2], [3, 4]]), jnp.array([2, 1]), size=3)
      >>> parts.values, parts.heads, parts.count
      (Array([1, 2, 3], dtype=int32), Array([0, 2], dtype=int32), Array(3, dtype=int32))
    """

    values: Any
    heads: jax.Array
    count: jax.Array  # type: ignore[assignment]


@renamed(n="size")
@jit_eager("size")
def segment_ids(
    heads: SegmentsLike,
    size: int,
    *,
    ends: ArrayLike | None = None,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> jax.Array:
    """The segment of each item.

    Args:
      heads: `[m]`, non-decreasing integers: the start positions of the segments. A repeated head is an empty segment; a
        head past the last item is padding. Or `Segments`, which replace `ends` and `count`.
      size: the static number of items, n.
      ends: `[m]` integers: see `segmented_reduce`.
      count: the number of live items, an integer scalar (default `size`).
      axis_name: number the segments of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`. Heads
        are given as for `segmented_reduce`. The segments of earlier devices come first; items before a device's first
        head belong to the last of these.

    Returns: `[size]` indices into `heads`; -1 past `count`, and for items of no segment, such as those before the first
      head. int32, or int64 if `size` or `m` reaches 2^31.

    Raises:
      TypeError: heads or count are not integers, or `size` is not static.
      ValueError: an argument's shape is not one of the above, or int64 results without `jax_enable_x64`.

    Time is O(n + m), by a load-balancing search (Baxter, moderngpu, 2013).

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.segment_ids(jnp.array([0, 2, 2]), 6, count=5)
      Array([ 0,  0,  2,  2,  2, -1], dtype=int32)
    """
    name = "segment_ids"
    n = static_size(name, "size", size)
    segments = segment_operands(name, heads, ends, count, n, axis_name=axis_name)
    index_dtype(name, "size", n, segments.m)
    if axis_name is not None and segments.ends is not None:
        return over_axis(mesh.ranges.segment_ids, name, axis_name, segments)
    if axis_name is not None:
        return over_axis(mesh.segments.segment_ids, name, axis_name, segments.heads, n, segments.count)
    (ids,) = _search(offsets=pieces(segments), total=segments.count, size=n, return_rank=False)
    if segments.ends is None:
        return ids
    ids = jnp.where(ids % 2 == 0, ids // 2, -1)  # every second piece is a gap between segments
    return ids.astype(index_dtype(name, "size", n, segments.m))


@jit_eager("width")
def to_dense(
    x: Pytree,
    heads: SegmentsLike,
    width: int,
    *,
    fill_value: ArrayLike = 0,
    ends: ArrayLike | None = None,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> Any:
    """Lays out each segment as a row of a dense array.

    Args:
      x: a pytree of arrays with leading axis `n`, of any dtype and trailing shape.
      heads: `[m]`, non-decreasing integers: the start positions of the segments; see `segmented_reduce`. Or `Segments`,
        which replace `ends` and `count`.
      width: the static length of the rows. Longer segments are truncated, which is an error within `checks()`.
      fill_value: the value of a row past its segment.
      ends: `[m]` integers: see `segmented_reduce`.
      count: the number of live items, an integer scalar (default `n`).
      axis_name: lay out the segments of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`.
        Heads are given as for `segmented_reduce`. A segment's row is on the device of its head.

    Returns:
      A pytree like `x`, with leaves `[m, width, …]`.

    Raises:
      TypeError: heads or count are not integers, or `width` is not static.
      ValueError: an argument's shape is not one of the above; 2^31 results or more without `jax_enable_x64`.

    The result is linear in `x`; the transpose is `from_dense`. Time is O(m width), by `interval_gather`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.to_dense(jnp.array([1, 2, 3, 4, 5]), jnp.array([0, 2, 2]), 3)
      Array([[1, 2, 0],
             [0, 0, 0],
             [3, 4, 5]], dtype=int32)
    """
    name = "to_dense"
    width = static_size(name, "width", width)
    leaves, structure, n = _items(name, x)
    index_dtype(name, "x", n)
    segments = segment_operands(name, heads, ends, count, n, axis_name=axis_name, whole=True)
    index_dtype(name, "width", segments.m * width)
    if axis_name is not None:
        forms = [RowForm(name, "x", leaf) for leaf in leaves]
        rows = [form.pack("x", leaf) for form, leaf in zip(forms, leaves, strict=True)]
        fills = [form.fill(fill_value) for form in forms]
        dense = over_axis(mesh.ragged.to_dense, name, axis_name, segments, rows, fills, width=width)
        items = [form.unpack(x) for form, x in zip(forms, dense, strict=True)]
        return structure.unflatten([_reshaped(x, (segments.m, width, *x.shape[1:])) for x in items])
    begin, end = segments.bounds()
    begin = segments_fit(name, begin, lambda: end - begin, width)
    kept = jnp.minimum(end - begin, width)
    return structure.unflatten([rows_of_segments(name, leaf, begin, kept, width, fill_value) for leaf in leaves])


@jit_eager("size")
def from_dense(
    x: Pytree, lengths: Integers, *, size: int, fill_value: ArrayLike = 0, axis_name: AxisName | None = None
) -> RaggedParts:
    """Packs the rows of a dense array, each of its own length, one after the other.

    Args:
      x: a pytree of arrays `[m, width, …]`, of any dtype.
      lengths: `[m]` integers from 0 to `width`: the number of items in each row.
      size: the static number of items in the result.
      fill_value: the value of items past the last row.
      axis_name: pack the rows of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`. They stay
        on their devices: heads and number are the device's own, as other functions of segments take them.

    Returns:
      `RaggedParts`: the items, leaves `[size, …]`; the start of each row, `[m]`; and the number of items, which
      can exceed `size`.

    Raises:
      TypeError: lengths are not integers, or `size` is not static.
      ValueError: an argument's shape is not one of the above; 2^31 items or more without `jax_enable_x64`.

    The result is linear in `x`; the transpose is `to_dense`. Time is O(size + m), by `interval_gather`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> x, heads, count = mgpu.from_dense(jnp.array([[1, 2, 0], [3, 4, 5]]), jnp.array([2, 3]), size=6)
      >>> x, heads, count
      (Array([1, 2, 3, 4, 5, 0], dtype=int32), Array([0, 2], dtype=int32), Array(5, dtype=int32))
    """
    name = "from_dense"
    devices_of(name, axis_name)  # this checks the axis; each device packs its own rows
    size = static_size(name, "size", size)
    leaves, structure, m = _items(name, x)
    for leaf in leaves:
        if leaf.ndim < 2 or leaf.shape[1] != leaves[0].shape[1]:
            raise value_error(name, "x", "arrays [m, width, …] of one width", describe(leaf))
    width = leaves[0].shape[1]
    lengths = index_vector(name, "lengths", lengths, width)
    if lengths.shape[0] != m:
        raise value_error(name, "lengths", f"one length for each of {m} rows of x", lengths.shape[0])
    dtype = index_dtype(name, "x", m * width, size)
    lengths = jnp.clip(inside(name, "lengths", whole_axes(lengths), width), 0, width)
    heads, count = scan(lengths.astype(dtype), exclusive=True, return_total=True)
    starts = width * jnp.arange(m, dtype=dtype)
    given: dict[str, Any] = {"starts": starts, "offsets": heads, "total": count[None], "size": size, "disjoint": True}
    items = [_gathered(name, _joined(whole_axes(leaf)), fill_value, **given) for leaf in leaves]
    return RaggedParts(structure.unflatten(items), heads, room(name, count, size))


@jit_eager("size")
def take_segments(
    x: Pytree,
    heads: SegmentsLike,
    order: Integers,
    *,
    size: int,
    fill_value: ArrayLike = 0,
    ends: ArrayLike | None = None,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> RaggedParts:
    """Takes segments by their number; segments may repeat or be left out.

    Args:
      x: a pytree of arrays with leading axis `n`, of any dtype and trailing shape.
      heads: `[m]`, non-decreasing integers: the start positions of the segments; see `segmented_reduce`. Or `Segments`,
        which replace `ends` and `count`.
      order: `[k]` integers: the segments to take. The numbers -1 and `m` are padding, empty segments. So is any other
        number outside of 0 to `m - 1`, but that is an error within `checks()`.
      size: the static number of items in the result.
      fill_value: the value of items past the last segment.
      ends: `[m]` integers: see `segmented_reduce`.
      count: the number of live items, an integer scalar (default `n`).
      axis_name: take segments of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`. Heads are
        given as for `segmented_reduce`. The order of a device lists segments by the numbers that `segment_ids` gives
        over the axis, and the device gets these segments; the size, the heads and the number are its own.

    Returns: `RaggedParts`: the items, leaves `[size, …]`; the start of each segment, `[k]`; and the number of items,
      which can exceed `size`. Without `jax_enable_x64`, a head or a number that does not fit int32 is 2^31 - 1.

    Raises:
      TypeError: heads, order or count are not integers, or `size` is not static.
      ValueError: an argument's shape is not one of the above; 2^31 items or more without `jax_enable_x64`.

    The result is linear in `x`; the transpose adds up items that were taken several times, in a fixed order. Time is
    O(size + m + k), by `interval_gather`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> x, heads = jnp.array([1, 2, 3, 4, 5]), jnp.array([0, 2, 3])
      >>> x, heads, count = mgpu.take_segments(x, heads, jnp.array([2, 0]), size=5)
      >>> x, heads, count
      (Array([4, 5, 1, 2, 0], dtype=int32), Array([0, 2], dtype=int32), Array(4, dtype=int32))
    """
    name = "take_segments"
    size = static_size(name, "size", size)
    leaves, structure, n = _items(name, x)
    dtype = index_dtype(name, "x", n, size)
    segments = segment_operands(name, heads, ends, count, n, axis_name=axis_name, whole=True)
    m = segments.m * devices_of(name, axis_name)
    order = segment_numbers(name, "order", whole_axes(index_vector(name, "order", order, m)), m)
    if axis_name is not None:
        forms = [RowForm(name, "x", leaf) for leaf in leaves]
        rows = [form.pack("x", leaf) for form, leaf in zip(forms, leaves, strict=True)]
        fills = [form.fill(fill_value) for form in forms]
        form_over = mesh.ragged.take_segments
        rows, offsets, total = over_axis(form_over, name, axis_name, segments, rows, order, fills, size=size)
        items = [form.unpack(x) for form, x in zip(forms, rows, strict=True)]
        return RaggedParts(structure.unflatten(items), offsets, room(name, total, size))
    begin, end = segments.bounds()
    starts = take_or_fill(begin, order).astype(dtype)
    offsets, total = _offsets(take_or_fill(end - begin, order).astype(dtype), n)
    given: dict[str, Any] = {"starts": starts, "offsets": offsets, "total": total[None], "size": size}
    items = [_gathered(name, leaf, fill_value, **given, disjoint=False) for leaf in leaves]
    return RaggedParts(structure.unflatten(items), offsets, room(name, total, size))


def _gathered(name: str, x: jax.Array, fill_value: ArrayLike, **intervals: Any) -> jax.Array:
    """Returns rows of intervals of x, of any type."""
    form, rows = RowForm.packed(name, "x", x)
    return form.unpack(gather_rows(x=rows, fill_value=form.fill(fill_value), **intervals)[0])


def rows_of_segments(
    operation: str, x: jax.Array, begin: jax.Array, lengths: jax.Array, width: int, fill_value: ArrayLike
) -> jax.Array:
    """Returns `[m, width, …]`: the `lengths[i]` items of x from `begin[i]` on; rows must not share items."""
    m, n = begin.shape[0], x.shape[0]
    dtype = index_dtype(operation, "width", m * width, n)
    rows = width * jnp.arange(m, dtype=dtype)
    # A row is two intervals: its items, and positions outside of x, which give the fill value.
    offsets = rows[:, None] + lengths.astype(dtype)[:, None] * np.arange(2, dtype=dtype)[None]
    starts = jnp.where(np.array([[True, False]]), begin.astype(dtype)[:, None], n)
    if m == 0:  # a batch over an Explicit mesh cannot reshape it
        offsets = starts = jnp.zeros((0,), dtype)
    given: dict[str, Any] = {"starts": starts.reshape(-1), "offsets": offsets.reshape(-1), "size": m * width}
    total = np.full((1,), m * width, dtype)
    items = _gathered(operation, x, fill_value, **given, total=total, disjoint=True)
    return _reshaped(items, (m, width, *items.shape[1:]))


def _joined(x: jax.Array) -> jax.Array:
    return _reshaped(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def _reshaped(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Reshapes x, or makes it anew if empty, which a batch over an Explicit mesh needs."""
    if 0 not in shape[:2]:
        return x.reshape(shape)
    if is_random_key(x.dtype):
        data = jax.random.key_data(x)
        data = jax.lax.full_like(data, 0, shape=(*shape, *data.shape[x.ndim :]))
        result: jax.Array = jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
        return result
    return jax.lax.full_like(x, 0, shape=shape)


def _items(name: str, x: Pytree) -> tuple[list[jax.Array], Any, int]:
    leaves = jax.tree.leaves(x)
    first = as_array(name, "x", leaves[0]) if leaves else None
    if first is None or first.ndim == 0:
        got = "no array" if first is None else describe(first)
        raise value_error(name, "x", "an array or a pytree of arrays with a leading axis", got)
    return *expect_rows(name, "x", x, first.shape[0], "the first array"), first.shape[0]


def _offsets(lengths: jax.Array, longest: int) -> tuple[jax.Array, jax.Array]:
    """Returns the exclusive scan of lengths, and their sum, saturated at the largest number of the type."""
    largest = jnp.iinfo(lengths.dtype).max
    if surely(lambda: lengths.shape[0] * longest <= largest):
        offsets, total = scan(lengths, exclusive=True, return_total=True)
        return offsets, total
    return saturated_offsets(lengths)
