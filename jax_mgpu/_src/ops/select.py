"""Rows by index, items that a mask keeps, partitions, and starts of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import ArrayLike, Aval, AxisName, Keys, Operands, Pytree, SegmentsLike
from jax_mgpu._src.arguments.check import (
    as_array,
    count_operand,
    describe,
    expect_mask,
    expect_rows,
    expect_vector,
    fill_operand,
    index_array,
    index_dtype,
    static_flag,
    static_size,
    value_error,
)
from jax_mgpu._src.arguments.counts import live_items, live_mask, segment_bounds, segment_starts, wide_enough
from jax_mgpu._src.arguments.preconditions import permutation, room
from jax_mgpu._src.arguments.rows import RowForm
from jax_mgpu._src.arguments.segments import Groups, group_operands, segment_operands
from jax_mgpu._src.arguments.values import fill_missing, flatten_values, plain_leaves, take_or_fill
from jax_mgpu._src.core.compat import platform_dependent, whole_axes
from jax_mgpu._src.core.operation import ABSENT, Operation, jit_eager
from jax_mgpu._src.keys.bits import where
from jax_mgpu._src.keys.columns import alike, key_starts, run_keys, whole_keys
from jax_mgpu._src.mesh import over_axis
from jax_mgpu._src.ops.argsorted import scattered, sorted_back
from jax_mgpu._src.ops.gather import scatter
from jax_mgpu._src.ops.intervals import _expand, def_filled_jvp
from jax_mgpu._src.ops.load_balance import _search
from jax_mgpu._src.ops.reduce import _run_heads, first_keys
from jax_mgpu._src.ops.scan import covered, next_marked, own_pieces, pieces, scan
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sort_strategy import is_long_permutation

__all__ = [
    "Runs",
    "SelectedIndices",
    "Selection",
    "inverse_permutation",
    "partition",
    "run_starts",
    "select",
    "select_indices",
    "take",
    "unique",
]

NO_ROWS, NO_FILL = np.zeros((0, 1), np.int32), np.zeros((1,), np.int32)


class Selection(NamedTuple):
    """The result of `select` and `partition`.

    Attributes:
      values: the kept items, in order, in the structure of `x`; each leaf `[size, …]`. After a `partition`, all other
        items follow.
      count: the number of kept items, a scalar. It can exceed `size`: then `values` has the first `size` items.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> kept = mgpu.select(jnp.array([3, 1, 4, 1]), jnp.array([True, False, True, False]))
      >>> kept.values, kept.count
      (Array([3, 4, 0, 0], dtype=int32), Array(2, dtype=int32))
    """

    values: Any
    count: jax.Array  # type: ignore[assignment]


class SelectedIndices(NamedTuple):
    """The result of `select_indices`.

    Attributes:
      indices: `[size]`, the positions of the kept items, in order. Those past `count` are `n`, or the fill value.
      count: the number of kept items, a scalar. It can exceed `size`: then `indices` has the first `size` ones.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> kept = mgpu.select_indices(jnp.array([True, False, True, False]))
      >>> kept.indices, kept.count
      (Array([0, 2, 4, 4], dtype=int32), Array(2, dtype=int32))
    """

    indices: jax.Array
    count: jax.Array  # type: ignore[assignment]


class Runs(NamedTuple):
    """The runs of equal neighbours that `run_starts` finds, a ragged batch of runs with one row per segment.

    Attributes:
      starts: `[size]`, the position at which each run starts; `n` past the last run, so they can serve as heads.
      heads: `[m]`, for each of the given heads the number of runs that start before it, which is where its segment's
        runs begin in `starts`; `[0]` if no heads were given.
      count: the number of runs, a scalar. It can exceed `size`: then `starts` has the first `size` runs.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> runs = mgpu.run_starts(jnp.array([7, 7, 2, 2, 2]), jnp.array([0, 3]))
      >>> runs.starts, runs.heads, runs.count
      (Array([0, 2, 3, 5, 5], dtype=int32), Array([0, 2], dtype=int32), Array(3, dtype=int32))
    """

    starts: jax.Array
    heads: jax.Array
    count: jax.Array  # type: ignore[assignment]


@jit_eager()
def take(x: Pytree, indices: ArrayLike | Groups, *, fill_value: ArrayLike | None = None) -> Any:
    """Takes rows by their indices.

    A gradient adds a row's contributions in float32 or wider, in a fixed order. `jnp.take` adds in the type of `x`,
    where a sum of ones in bfloat16 stops at 256, and on a GPU in any order.

    Args:
      x: an array or a pytree of arrays with leading axis `n`, of any dtype and trailing shape.
      indices: an array of integers of any shape, which may repeat. Or the `Groups` of `[k]` indices: then the
        transpose, which needs the items of each row, sorts nothing.
      fill_value: the value of rows whose index is outside of `x`, a scalar, converted to each dtype; None means 0.
        Negative indices are outside too: -1 stands for no row.

    Returns:
      The pytree of rows, `[*indices.shape, ...]` each.

    Raises:
      TypeError: indices are not integers, or `fill_value` is no number.
      ValueError: an argument's shape is not one of the above; 2^31 rows or more without `jax_enable_x64`.

    The result is linear in `x` without a `fill_value`; the transpose is `reduce_by_id`, and the transpose of that is
    `take`. An index outside has no gradient. A call takes the time of a gather, and a gradient that of `reduce_by_id`.

    Example:
      >>> import jax, jax.numpy as jnp, jax_mgpu as mgpu
      >>> table, indices = jnp.array([0.5, 0.7, 0.9]), jnp.array([2, 0, 2, -1])
      >>> mgpu.take(table, indices, fill_value=-1)
      Array([ 0.9,  0.5,  0.9, -1. ], dtype=float32)
      >>> jax.grad(lambda table: mgpu.take(table, indices).sum())(table)
      Array([1., 0., 2.], dtype=float32)
    """
    name = "take"
    leaves = [as_array(name, "x", leaf) for leaf in jax.tree.leaves(x)]
    if not leaves or leaves[0].ndim == 0:
        raise value_error(name, "x", "an array or a pytree of arrays, with a leading axis", describe(x))
    n = leaves[0].shape[0]
    plain, restore = flatten_values(name, "x", x, n, "the first array")
    index_dtype(name, "x", n)
    if isinstance(indices, Groups):
        return _take_groups(name, x, indices, n, 0 if fill_value is None else fill_value)
    indices = index_array(name, "indices", indices, n)
    fills = [None if fill_value is None else fill_operand(name, fill_value, leaf.dtype) for leaf in plain]
    return restore([take_or_fill(leaf, indices, fill) for leaf, fill in zip(plain, fills, strict=True)])


def _take_groups(name: str, x: Pytree, groups: Groups, n: int, fill_value: ArrayLike) -> Any:
    """Repeats rows in the order of ids, and moves them to the items' positions."""
    order, heads, count = group_operands(name, groups, None, n)
    items = order.shape[0]

    def rows_of(x: jax.Array) -> jax.Array:
        form, rows = RowForm.packed(name, "x", x)
        fill = form.fill(fill_value)
        rows = _expand(values=rows, offsets=heads, total=count, fill_value=fill, size=items)[0]
        return form.unpack(scatter(rows, order, items, inside=True))

    return jax.tree.map(rows_of, x)


@jit_eager()
def inverse_permutation(order: ArrayLike, *, count: ArrayLike | None = None) -> jax.Array:
    """The inverse of a permutation, such as one from `argsort`: where each item went.

    Args:
      order: `[n]`, distinct integers from 0 to `n - 1`: the item at each position.
      count: the number of live positions, an integer scalar (default `n`). Positions past it are ignored.

    Returns: `[n]`: the position of each item, -1 for one without a live position; int32, or int64 from 2^31 items on.

    Raises:
      TypeError: `order` or count are not integers.
      ValueError: an argument's shape is not one of the above; 2^31 items or more without `jax_enable_x64`.

    A call takes the time of one scatter. On a GPU, from 2^23 items on and without `count`, it takes the time of a sort,
    which is less.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.inverse_permutation(jnp.array([2, 0, 3, 1]))
      Array([1, 3, 0, 2], dtype=int32)
      >>> mgpu.inverse_permutation(jnp.array([2, 0, 3, 1]), count=2)
      Array([ 1, -1,  0, -1], dtype=int32)
    """
    name = "inverse_permutation"
    order = expect_vector(name, "order", order)
    n = order.shape[0]
    dtype = index_dtype(name, "order", n)
    order = whole_axes(index_array(name, "order", order, n))
    count = count_operand(name, "count", count, n)
    order = permutation(name, "order", order, count)
    places = jnp.arange(n, dtype=dtype)

    def scattered(order: jax.Array, places: jax.Array) -> jax.Array:
        at = where(live_mask(n, count) & (order >= 0), wide_enough(order, n), n)
        return jnp.full((n,), -1, dtype).at[at].set(places, unique_indices=True, mode="drop")

    if count.size or not is_long_permutation(n):
        return scattered(order, places)
    return platform_dependent(order, places, cuda=sorted_back, default=scattered)


@jit_eager("size")
def select(
    x: Pytree,
    keep: ArrayLike,
    *,
    size: int | None = None,
    fill_value: ArrayLike = 0,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> Selection:
    """Keeps the items where a mask is set, in order.

    Args:
      x: a pytree of arrays with leading axis `n`, of any dtype and trailing shape.
      keep: `bool[n]`.
      size: the static number of results (default `n`).
      fill_value: the value of rows past the last kept one.
      count: the number of live items, an integer scalar (default `n`). Items past it are not kept.
      axis_name: work on the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`. Each
        device selects among its own items, and nothing travels; `size` and the number are the device's own.

    Returns:
      A `Selection`: the kept items and their true number.

    Raises:
      TypeError: `keep` is not bool, count is not an integer, or `size` is not static.
      ValueError: an argument's shape is not one of the above; 2^31 items or more without `jax_enable_x64`.

    Tangents are selected likewise; the transpose puts zeros where items were dropped. Time is O(n + size): a pass over
    the mask counts the kept items of each tile, and a second pass moves them.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> x = jnp.array([3, 1, 4, 1, 5])
      >>> mgpu.select(x, x > 2, size=3)
      Selection(values=Array([3, 4, 5], dtype=int32), count=Array(3, dtype=int32))
    """
    name = "select"
    keep = expect_mask(name, "keep", keep)
    n = keep.shape[0]
    leaves, structure = expect_rows(name, "x", x, n, "keep")
    size = n if size is None else static_size(name, "size", size)
    count = count_operand(name, "count", count, n)
    operands = (leaves, keep, size, fill_value, count)
    if axis_name is not None:
        values, total = over_axis(mesh.selections.select, name, axis_name, *operands)
    else:
        values, total = select_rows(name, *operands)
    return Selection(structure.unflatten(values), room(name, total, size))


@jit_eager("size")
def select_indices(
    keep: ArrayLike,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> SelectedIndices:
    """The positions at which a mask is set.

    Args:
      keep: `bool[n]`.
      size: the static number of results (default `n`).
      fill_value: the value of results past the last position, an integer scalar (default `n`: it is padding if the
        positions serve as heads, and out of range if they serve as indices).
      count: the number of live items, an integer scalar (default `n`).
      axis_name: see `select`. Positions are those in the global array; the default of `fill_value` is n times
        the number of devices.

    Returns:
      `SelectedIndices`: the positions in increasing order, `[size]`, and their true number, which can exceed `size`.
      int32, or int64 from 2^31 items on.

    Raises:
      TypeError: `keep` is not bool, count is not an integer, or `size` is not static.
      ValueError: an argument's shape is not one of the above; 2^31 items or more without `jax_enable_x64`.

    For complexity, see `select`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.select_indices(jnp.array([True, False, True, False]))
      SelectedIndices(indices=Array([0, 2, 4, 4], dtype=int32), count=Array(2, dtype=int32))
    """
    name = "select_indices"
    keep = expect_mask(name, "keep", keep)
    n = keep.shape[0]
    size = n if size is None else static_size(name, "size", size)
    index_dtype(name, "keep", n)
    count = count_operand(name, "count", count, n)
    if axis_name is not None:
        indices, total = over_axis(mesh.selections.select_indices, name, axis_name, keep, size, count)
        fill_value = jax.lax.axis_size(axis_name) * n if fill_value is None else fill_value
        return SelectedIndices(fill_missing(name, indices, fill_value), room(name, total, size))
    indices, total = positions(keep, count, size)
    if fill_value is not None:
        indices = fill_missing(name, where(indices < n, indices, -1), fill_value)
    return SelectedIndices(indices, room(name, total, size))


@jit_eager()
def partition(
    x: Pytree, keep: ArrayLike, *, count: ArrayLike | None = None, axis_name: AxisName | None = None
) -> Selection:
    """Moves the items at which a mask is set to the front, followed by the others; both keep their order.

    Args:
      x: a pytree of arrays with leading axis `n`, of any dtype and trailing shape.
      keep: `bool[n]`.
      count: the number of live items, an integer scalar (default `n`). Items past it stay where they are.
      axis_name: partition the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`. The
        number of items of a device does not change.

    Returns:
      `Selection`: the items in their new order, a permutation of the input, and how many are kept, on all devices.

    Raises:
      TypeError: `keep` is not bool, or count is not an integer.
      ValueError: an argument's shape is not one of the above; 2^31 items or more without `jax_enable_x64`.

    Derivatives go through the permutation. For complexity, see `select`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> x = jnp.array([3, 1, 4, 1, 5])
      >>> mgpu.partition(x, x > 2)
      Selection(values=Array([3, 4, 5, 1, 1], dtype=int32), count=Array(3, dtype=int32))
    """
    name = "partition"
    keep = expect_mask(name, "keep", keep)
    n = keep.shape[0]
    leaves, structure = expect_rows(name, "x", x, n, "keep")
    count = count_operand(name, "count", count, n)
    index_dtype(name, "keep", n)
    if axis_name is not None:
        plain, restore = plain_leaves(leaves)
        moved_leaves, total = over_axis(mesh.selections.partition, name, axis_name, plain, keep, count)
        return Selection(structure.unflatten(restore(moved_leaves)), total)
    items, total = select_rows(name, leaves, keep, n, 0, count, partition=True)
    return Selection(structure.unflatten(items), total)


@jit_eager("size", "least")
def run_starts(
    keys: Keys,
    heads: SegmentsLike | None = None,
    *,
    size: int | None = None,
    least: int = 1,
    ends: ArrayLike | None = None,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> Runs:
    """Where each run of equal neighbours starts.

    Args:
      keys: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits; not necessarily sorted. All NaNs are equal, and
        so are the zeros. Or columns: a tuple of 1 to 8 such arrays.
      heads: `[m]`, non-decreasing integers: the start positions of segments, which no run crosses. See
        `segmented_scan`. Or `Segments`, which replace `ends` and `count`.
      size: the static number of starts (default `n`).
      least: the static smallest length of a run: shorter runs are left out.
      ends: `[m]` integers: see `segmented_reduce`; no run starts outside of all segments.
      count: the number of live items, an integer scalar (default `n`).
      axis_name: find the runs of the items of all devices of a mesh axis, or of a tuple of axes, within
        `jax.shard_map`. A device's starts and heads are those among its own items, counted from its first item; a run
        continues on the next devices, up to the next start. Position 0 starts a segment on the first device that has
        items, and on another device if it is listed. Columns may have up to 64 bits in all.

    Returns:
      `Runs`: the starts, the place among them where the runs of each segment begin, and the number of runs.

    Raises:
      TypeError: an argument's dtype is not one of the above, or `size` is not static.
      ValueError: an argument's shape is not one of the above; 2^31 items or more without `jax_enable_x64`.

    Time is O(n + size + m).

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.run_starts(jnp.array([7, 7, 2, 7]), size=3).starts
      Array([0, 2, 3], dtype=int32)
    """
    name = "run_starts"
    given = whole_keys(name, "keys", keys, axis_name)
    n = given.shape[0]
    size = n if size is None else static_size(name, "size", size)
    dtype = index_dtype(name, "keys", n)
    least = min(static_size(name, "least", least), np.iinfo(dtype).max)  # no run is longer
    given_heads = ABSENT if heads is None else heads
    segments = segment_operands(name, given_heads, ends, count, n, axis_name=axis_name, whole=True)
    count = segments.count
    if axis_name is not None:
        turns = pieces(segments, name, axis_name)
        inside = None if segments.ends is None else covered(n, turns)
        starts = segments.heads if segments.ends is None else turns[2::2]
        own = (None, None) if heads is None else (starts, own_pieces(segments, turns))
        found = over_axis(
            mesh.selections.run_starts, name, axis_name, run_keys(given), *own, size, count, least, inside
        )
        return found._replace(count=room(name, found.count, size))
    if heads is None and least <= 1:
        starts, _, _, number = _run_heads(keys=run_keys(given), count=count, size=size)
        return Runs(starts, jnp.zeros((1,), dtype), room(name, number, size))
    bounds = pieces(segments)
    is_start = key_starts(given) | segment_starts(n, bounds)
    if least > 1:
        lengths = next_marked(is_start, live_items(n, count, dtype)) - jnp.arange(n, dtype=dtype)
        is_start &= lengths >= least
    if segments.ends is not None:
        is_start &= covered(n, bounds)
    starts, total = positions(is_start, count, size)
    if heads is None:
        return Runs(starts, jnp.zeros((1,), dtype), room(name, total, size))
    # An empty segment within another one has its runs, none, behind those of that segment.
    starts_of_segments = segments.heads if segments.ends is None else bounds[::2]
    before = take_or_fill(ranks(is_start, count), starts_of_segments, total[None])
    return Runs(starts, before, room(name, total, size))


@jit_eager("size", "return_index", "return_inverse", "return_counts")
def unique(
    keys: Keys,
    *,
    size: int,
    count: ArrayLike | None = None,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis_name: AxisName | None = None,
) -> tuple[Any, ...]:
    """The distinct keys in ascending order, as in `jnp.unique`.

    Args:
      keys: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits, in any order. All NaNs are equal, and so are the
        zeros. Or columns: a tuple of 1 to 8 such arrays, compared one after the other.
      size: the static number of results.
      count: the number of live items, an integer scalar (default `n`).
      return_index: whether to return the position of each key's first occurrence.
      return_inverse: whether to return, for each item, its position among the results.
      return_counts: whether to return how often each key occurs.
      axis_name: take the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`. The keys
        are sorted over all devices; a distinct key belongs to the device that then has its first copy. `size` and the
        number are the device's own. Indices are positions in the global array. The inverse is on the device of its
        item, and counts through the results of all devices. Columns may have up to 64 bits in all.

    Returns:
      A tuple. First come the keys, `[size]`, or the tuple of columns, each the first of its equal keys in the input.
      Then come indices `[size]`, inverse `[n]` and counts `[size]`, in this order, if asked for. Last comes the number
      of distinct keys, which can exceed `size`. Past it, keys and counts are 0 and indices -1. The inverse is -1 past
      `count`, and for keys that are not among the first `size`.

    Raises:
      TypeError: an argument's dtype is not one of the above, or `size` or a flag is not static.
      ValueError: an argument's shape is not one of the above; 2^31 items or more without `jax_enable_x64`.

    A call takes the time of a sort, and a pass that finds the runs of equal keys.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.unique(jnp.array([7, 2, 7, 5]), size=4, return_counts=True)
      (Array([2, 5, 7, 0], dtype=int32), Array([1, 1, 2, 0], dtype=int32), Array(3, dtype=int32))
    """
    name = "unique"
    given = whole_keys(name, "keys", keys, axis_name)
    size = static_size(name, "size", size)
    return_index = static_flag(name, "return_index", return_index)
    return_inverse = static_flag(name, "return_inverse", return_inverse)
    return_counts = static_flag(name, "return_counts", return_counts)
    n = given.shape[0]
    dtype = index_dtype(name, "keys", n, size)
    if axis_name is not None:
        wanted = {"return_index": return_index, "return_inverse": return_inverse, "return_counts": return_counts}
        live = count_operand(name, "count", count, n)
        results, found = over_axis(mesh.selections.unique, name, axis_name, given, size, live, **wanted)
        return *results, room(name, found, size)
    live = count_operand(name, "count", count, n)
    asked = Sort(name, given, count=live)
    if return_index or return_inverse:
        ordered, order = asked.indices()
    else:
        ordered = asked.run()
    sorted_keys = alike(given, ordered)
    starts, firsts, covered, found = _run_heads(keys=run_keys(sorted_keys), count=live, size=size)
    covered = covered.reshape(1)
    results = [first_keys(sorted_keys, firsts, starts)]
    if return_index:
        results.append(take_or_fill(order, starts, jnp.full((1,), -1, order.dtype)))
    if return_inverse:
        ids = _search(offsets=starts, total=covered, size=n, return_rank=False)[0]
        results.append(scattered(order, ids))
    if return_counts:
        begin, end = segment_bounds(starts, n, covered)
        results.append((end - begin).astype(dtype))
    return *results, room(name, found, size)


def select_rows(
    name: str,
    leaves: list[jax.Array],
    keep: jax.Array,
    size: int,
    fill_value: ArrayLike,
    count: jax.Array,
    *,
    partition: bool = False,
) -> tuple[list[jax.Array], jax.Array]:
    """Returns the kept items of each leaf, with `partition` followed by the others, and the number of kept ones."""
    index_dtype(name, "keep", keep.shape[0])
    total = None

    def kept(leaf: jax.Array) -> jax.Array:
        nonlocal total
        form, rows = RowForm.packed(name, "x", leaf)
        fill = form.fill(fill_value)
        items, total = _select(
            x=rows, keep=keep, count=count, fill_value=fill, size=size, indices=False, partition=partition
        )
        return form.unpack(items)

    items = [kept(leaf) for leaf in leaves]
    return items, positions(keep, count, 0)[1] if total is None else total


def positions(keep: jax.Array, count: jax.Array, size: int, *, partition: bool = False) -> tuple[jax.Array, jax.Array]:
    """Returns the positions of kept items, `n` past the last one, and their number.

    With `partition`, the positions of the other items follow.
    """
    given = {"x": NO_ROWS, "keep": keep, "count": count, "fill_value": NO_FILL}
    found, total = _select(**given, size=size, indices=True, partition=partition)
    return found, total


def ranks(keep: jax.Array, count: jax.Array) -> jax.Array:
    """Returns the number of kept items before each item."""
    n = keep.shape[0]
    marks = (whole_axes(keep) & live_mask(n, count)).astype(index_dtype("select", "keep", n))
    return scan(marks, exclusive=True)


def _shapes(x: Aval, keep: Aval, *, size: int, indices: int) -> Sequence[Any]:
    index = index_dtype("select", "keep", keep.shape[0])
    items = jax.ShapeDtypeStruct((size,), index) if indices else jax.ShapeDtypeStruct((size, x.shape[1]), x.dtype)
    return [items, jax.ShapeDtypeStruct((), index)]


def _fallback(
    x: jax.Array,
    keep: jax.Array,
    count: jax.Array,
    fill_value: jax.Array,
    *,
    size: int,
    indices: int,
    partition: int,
) -> Sequence[jax.Array]:
    (n,) = keep.shape
    places, total = _places(keep, count, partition)
    sources = jnp.full((size,), n, places.dtype).at[places].set(jnp.arange(n, dtype=places.dtype), mode="drop")
    return [sources if indices else take_or_fill(x, sources, fill_value, unique=True), total]


def _places(keep: jax.Array, count: jax.Array, partition: int) -> tuple[jax.Array, jax.Array]:
    """Returns the destination of each item, past all positions if it has none, and the number of kept items."""
    (n,) = keep.shape
    dtype = index_dtype("select", "keep", n)
    kept = keep & live_mask(n, count)
    ends = jnp.cumsum(kept, dtype=dtype)
    before = ends - kept.astype(dtype)
    total = ends[-1] if n else jnp.zeros((), dtype)
    if not partition:
        return where(kept, before, jnp.iinfo(dtype).max), total
    items = jnp.arange(n, dtype=dtype)
    others = where(live_mask(n, count), total + items - before, items)
    return where(kept, before, others), total


def _transpose(cotangents: Sequence[Any], operands: Operands, *, size: int, indices: int, partition: int) -> jax.Array:
    """Returns, for each item, the cotangent of its destination."""
    del indices
    places, _ = _places(operands.keep, operands.count, partition)
    places = where(places < size, places, size)
    return take_or_fill(cotangents[0], places, unique=True)


# With `indices`, results are positions, and x and fill_value are not read. With `partition`, the other items follow the
# kept ones, and those past the count stay in place.
_select = Operation(
    "select",
    operands={"x": 2, "keep": 1, "count": 1, "fill_value": 1},
    results=("items", "kept"),
    attributes={"size": int, "indices": bool, "partition": bool},
    shapes=_shapes,
    fallback=_fallback,
)
def_filled_jvp(_select, "x")
_select.def_transpose("x", _transpose)
