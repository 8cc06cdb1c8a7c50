"""Interval operations: ragged intervals of rows expanded, gathered, scattered and moved.

`offsets` is the exclusive scan of lengths, and `total` their sum.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import ArrayLike, Attribute, Aval, AxisName, Operands, Tangents
from jax_mgpu._src.arguments.check import count_operand, index_dtype, index_vector, static_size, value_error
from jax_mgpu._src.arguments.counts import common_dtype, live_items, of_all, wide_enough
from jax_mgpu._src.arguments.preconditions import (
    by_construction,
    interval_lengths,
    intervals_disjoint,
    intervals_inside,
    non_decreasing,
)
from jax_mgpu._src.arguments.rows import RowForm
from jax_mgpu._src.arguments.values import fill_rows, take_or_fill
from jax_mgpu._src.core.compat import cond, surely, vary_as
from jax_mgpu._src.core.operation import Operation, jit_eager
from jax_mgpu._src.mesh import devices_of, over_axis
from jax_mgpu._src.ops.gather import add_rows
from jax_mgpu._src.ops.load_balance import find_objects, load_balance_search
from jax_mgpu._src.ops.reduce import as_floats, segmented_reduce
from jax_mgpu._src.ops.scan import scan
from jax_mgpu._src.ops.sort import Sort

__all__ = ["interval_expand", "interval_gather", "interval_move", "interval_scatter"]

# Results with fewer elements are summed by id if a row is in more than 64 intervals.
MANY_ELEMENTS = 1 << 14


@jit_eager("size")
def interval_expand(
    values: ArrayLike,
    offsets: ArrayLike,
    size: int,
    *,
    total: ArrayLike | None = None,
    fill_value: ArrayLike = 0,
    axis_name: AxisName | None = None,
) -> jax.Array:
    """Repeats each value over its interval.

    Args:
      values: `[m, …]`, any dtype: one row for each interval.
      offsets: `[m]`, non-decreasing integers: where each interval starts in the result, the exclusive scan of the
        lengths. Empty intervals are allowed anywhere.
      size: the static length of the result.
      total: the sum of the lengths, an integer scalar (default `size`).
      fill_value: the value of rows past `total`.
      axis_name: expand the values of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`. Offsets
        and total count over all devices. Slots are filled one device after the other, so an interval may continue on
        the next device.

    Returns:
      `[size, …]`: row `offsets[i] + r` is `values[i]`.

    Raises:
      TypeError: offsets or total are not integers, or `size` is not static.
      ValueError: an argument's shape is not one of the above.

    The result is linear in `values`; the transpose adds up each interval. Time is O(size + m), by a load-balancing
    search (Baxter, moderngpu, 2013).

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.interval_expand(jnp.array([7, 8, 9]), jnp.array([0, 2, 2]), 6, total=5)
      Array([7, 7, 9, 9, 9, 0], dtype=int32)
    """
    name = "interval_expand"
    size = static_size(name, "size", size)
    form, rows = RowForm.packed(name, "values", values)
    slots = size * devices_of(name, axis_name)
    offsets = _offsets(name, offsets, slots, rows.shape[0], "values")
    total = count_operand(name, "total", total, slots)
    fill = form.fill(fill_value)
    if axis_name is not None and rows.shape[0]:
        expanded = over_axis(mesh.intervals.interval_expand, name, axis_name, rows, offsets, total, fill, size=size)
        return form.unpack(expanded)
    return form.unpack(_expand(values=rows, offsets=offsets, total=total, fill_value=fill, size=size)[0])


@jit_eager("size")
def interval_gather(
    x: ArrayLike,
    starts: ArrayLike,
    offsets: ArrayLike,
    size: int,
    *,
    total: ArrayLike | None = None,
    fill_value: ArrayLike = 0,
    axis_name: AxisName | None = None,
) -> jax.Array:
    """Gathers intervals of rows, one after the other.

    Args:
      x: `[n, …]`, any dtype.
      starts: `[m]` integers: where each interval starts in `x`. Intervals may overlap.
      offsets: `[m]`, non-decreasing integers: where each interval starts in the result.
      size: the static length of the result.
      total: the sum of the lengths, an integer scalar (default `size`).
      fill_value: the value of rows past `total`, and of rows from outside `x`.
      axis_name: see `interval_expand`. Starts are positions in the global array; each device has `n` rows of it.

    Returns:
      `[size, …]`: row `offsets[i] + r` is `x[starts[i] + r]`.

    Raises:
      TypeError: starts, offsets or total are not integers, or `size` is not static.
      ValueError: an argument's shape is not one of the above; 2^31 rows or more without `jax_enable_x64`.

    The result is linear in `x`; the transpose is `interval_scatter`, which adds where intervals overlap. Time is
    O(size + m), by a load-balancing search (Baxter, moderngpu, 2013).

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.interval_gather(jnp.arange(10), jnp.array([6, 1]), jnp.array([0, 3]), 5)
      Array([6, 7, 8, 1, 2], dtype=int32)
    """
    name = "interval_gather"
    size = static_size(name, "size", size)
    form, rows = RowForm.packed(name, "x", x)
    _expect_rows(name, x=rows.shape[0], size=size)
    devices = devices_of(name, axis_name)
    starts = index_vector(name, "starts", starts, rows.shape[0] * devices)
    offsets = _offsets(name, offsets, size * devices, starts.shape[0], "starts")
    fill = form.fill(fill_value)
    total = count_operand(name, "total", total, size * devices)
    if axis_name is not None and starts.shape[0]:
        operands = (rows, starts, offsets, total, fill)
        return form.unpack(over_axis(mesh.intervals.interval_gather, name, axis_name, *operands, size=size))
    starts = intervals_inside(name, "starts", starts, interval_lengths(offsets, total, size), rows.shape[0])
    gathered = gather_rows(
        x=rows, starts=starts, offsets=offsets, total=total, fill_value=fill, size=size, disjoint=False
    )
    return form.unpack(gathered[0])


@jit_eager()
def interval_scatter(
    x: ArrayLike,
    starts: ArrayLike,
    offsets: ArrayLike,
    into: ArrayLike,
    *,
    total: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> jax.Array:
    """Scatters consecutive rows to intervals of another array.

    Args:
      x: `[n, …]`, any dtype.
      starts: `[m]` integers: where each interval starts in `into`. Where intervals overlap, it is not specified which
        of their rows stays.
      offsets: `[m]`, non-decreasing integers: where each interval starts in `x`.
      into: `[k, …]`, of the dtype of `x`: the rows of the result outside of all intervals. Its buffer is reused when it
        is donated.
      total: the sum of the lengths, an integer scalar (default `n`).
      axis_name: see `interval_move`. Offsets are positions in the global array of x.

    Returns:
      `[k, …]`: row `starts[i] + r` is `x[offsets[i] + r]`; rows to positions outside are dropped.

    Raises:
      TypeError: starts, offsets or total are not integers, or the dtypes of `x` and `into` differ.
      ValueError: an argument's shape is not one of the above; 2^31 rows or more without `jax_enable_x64`.

    The result is linear in `x` and `into`; the transpose for `x` is `interval_gather`. Time is O(n + m), by a
    load-balancing search (Baxter, moderngpu, 2013), and a copy of `into` unless it is donated.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.interval_scatter(jnp.arange(1, 6), jnp.array([6, 1]), jnp.array([0, 3]), jnp.zeros(10, jnp.int32))
      Array([0, 4, 5, 0, 0, 0, 1, 2, 3, 0], dtype=int32)
    """
    name = "interval_scatter"
    form, rows = RowForm.packed(name, "x", x)
    into = form.pack("into", into)
    _expect_rows(name, x=rows.shape[0], into=into.shape[0])
    devices = devices_of(name, axis_name)
    n = rows.shape[0] * devices
    starts = index_vector(name, "starts", starts, into.shape[0] * devices)
    offsets = _offsets(name, offsets, n, starts.shape[0], "starts")
    if axis_name is not None and offsets.shape[0]:
        total = count_operand(name, "total", np.asarray(n, index_dtype(name, "x", n)) if total is None else total, n)
        return form.unpack(
            over_axis(mesh.intervals.interval_move, name, axis_name, rows, offsets, starts, offsets, total, into)
        )
    total = count_operand(name, "total", total, n)
    lengths = interval_lengths(offsets, total, n)
    starts = intervals_disjoint(
        name, "starts", intervals_inside(name, "starts", starts, lengths, into.shape[0]), lengths
    )
    return form.unpack(scatter_rows(rows, starts, offsets, total, into))


@jit_eager()
def interval_move(
    x: ArrayLike,
    gather_starts: ArrayLike,
    scatter_starts: ArrayLike,
    offsets: ArrayLike,
    into: ArrayLike,
    *,
    total: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> jax.Array:
    """Moves intervals of rows from positions in one array to positions in another.

    Args:
      x: `[n, …]`, any dtype.
      gather_starts: `[m]` integers: where each interval starts in `x`. Intervals may overlap there.
      scatter_starts: `[m]` integers: where each interval starts in `into`. Where intervals overlap there, it is not
        specified which of their rows stays.
      offsets: `[m]`, non-decreasing integers: the exclusive scan of the lengths.
      into: `[k, …]`, of the dtype of `x`: the rows of the result outside of all intervals. Its buffer is reused when it
        is donated.
      total: the sum of the lengths, an integer scalar (default `k`); no more than max(n, k) rows are moved.
      axis_name: see `interval_gather`. `gather_starts` are positions in the global array of `x`, `scatter_starts` in
        that of `into`, where intervals must not overlap.

    Returns:
      `[k, …]`: row `scatter_starts[i] + r` is `x[gather_starts[i] + r]`; rows from or to positions outside are dropped.

    Raises:
      TypeError: starts, offsets or total are not integers, or the dtypes of `x` and `into` differ.
      ValueError: an argument's shape is not one of the above; 2^31 rows or more without `jax_enable_x64`.

    The result is linear in `x` and `into`. Time is O(n + k + m), by a load-balancing search (Baxter, moderngpu, 2013),
    and a copy of `into` unless it is donated.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> starts, places, offsets = jnp.array([6, 1]), jnp.array([0, 4]), jnp.array([0, 3])
      >>> mgpu.interval_move(jnp.arange(10), starts, places, offsets, jnp.zeros(8, jnp.int32), total=5)
      Array([6, 7, 8, 0, 1, 2, 0, 0], dtype=int32)
    """
    name = "interval_move"
    form, rows = RowForm.packed(name, "x", x)
    into = form.pack("into", into)
    _expect_rows(name, x=rows.shape[0], into=into.shape[0])
    devices = devices_of(name, axis_name)
    size = max(rows.shape[0], into.shape[0]) * devices
    gather_starts = index_vector(name, "gather_starts", gather_starts, rows.shape[0] * devices)
    scatter_starts = index_vector(name, "scatter_starts", scatter_starts, into.shape[0] * devices)
    if gather_starts.shape != scatter_starts.shape:
        expected = f"the length of gather_starts, {gather_starts.shape[0]}"
        raise value_error(name, "scatter_starts", expected, scatter_starts.shape[0])
    offsets = _offsets(name, offsets, size, gather_starts.shape[0], "gather_starts")
    if total is None and size > into.shape[0] * devices:  # without a total it is `size`
        total = np.asarray(into.shape[0] * devices, index_dtype(name, "total", into.shape[0] * devices))
    total = count_operand(name, "total", total, size)
    if axis_name is not None and offsets.shape[0]:
        operands = (rows, gather_starts, scatter_starts, offsets, total, into)
        return form.unpack(over_axis(mesh.intervals.interval_move, name, axis_name, *operands))
    lengths = interval_lengths(offsets, total, size)
    gather_starts = intervals_inside(name, "gather_starts", gather_starts, lengths, rows.shape[0])
    scatter_starts = intervals_inside(name, "scatter_starts", scatter_starts, lengths, into.shape[0])
    scatter_starts = intervals_disjoint(name, "scatter_starts", scatter_starts, lengths)
    moved = _move(
        x=rows, gather_starts=gather_starts, scatter_starts=scatter_starts, offsets=offsets, total=total, into=into,
        gathers=True, adds=False,
    )  # fmt: skip
    return form.unpack(moved[0])


def move_rows(
    rows: jax.Array, starts: jax.Array, places: jax.Array, offsets: jax.Array, total: jax.Array, into: jax.Array
) -> jax.Array:
    """Moves intervals of rows, like `interval_move`."""
    runs = {"gather_starts": starts, "scatter_starts": places, "offsets": offsets, "total": total}
    return _move(x=rows, **runs, into=into, gathers=True, adds=False)[0]


def scatter_rows(
    rows: jax.Array, starts: jax.Array, offsets: jax.Array, total: jax.Array, into: jax.Array
) -> jax.Array:
    """Scatters consecutive rows to intervals, like `interval_scatter`."""
    return _move(x=rows, scatter_starts=starts, offsets=offsets, total=total, into=into, gathers=False, adds=False)[0]


def _expect_rows(name: str, **counts: int) -> None:
    """Raises if positions need 64 bits without `jax_enable_x64`."""
    for argument, count in counts.items():
        index_dtype(name, argument, count)


def _offsets(name: str, offsets: ArrayLike, size: int, count: int, owner: str) -> jax.Array:
    offsets = non_decreasing(name, "offsets", index_vector(name, "offsets", offsets, size))
    if offsets.shape[0] != count:
        raise value_error(name, "offsets", f"the length of {owner}, {count}", offsets.shape[0])
    return offsets


def _expand_fallback(
    values: jax.Array, offsets: jax.Array, total: jax.Array, fill_value: jax.Array, *, size: int
) -> Sequence[jax.Array]:
    return [take_or_fill(values, find_objects(offsets, total, size)[0], fill_value)]


def _places(starts: jax.Array, objects: jax.Array, ranks: jax.Array, limit: int) -> jax.Array:
    """Returns the positions of work items in an array of `limit` rows; `limit` for items without one."""
    if starts.shape[0] == 0:
        return jnp.full(objects.shape, limit, wide_enough(objects, limit).dtype)
    starts = wide_enough(starts, limit)
    dtype = common_dtype(starts, ranks)
    places = starts[jnp.maximum(objects, 0)].astype(dtype) + ranks.astype(dtype)
    return jnp.where((objects >= 0) & (places >= 0) & (places < limit), places, limit)


def _gather_fallback(
    x: jax.Array, starts: jax.Array, offsets: jax.Array, total: jax.Array, fill_value: jax.Array, *, size: int
) -> Sequence[jax.Array]:
    return [take_or_fill(x, _places(starts, *find_objects(offsets, total, size), x.shape[0]), fill_value)]


def _moved_items(x: Aval, into: Aval, gathers: int) -> int:
    """Returns the largest number of work items of a move, as the kernels count them."""
    return max(x.shape[0], into.shape[0]) if gathers else x.shape[0]


def _move_fallback(
    x: jax.Array,
    gather_starts: jax.Array,
    scatter_starts: jax.Array,
    offsets: jax.Array,
    total: jax.Array,
    into: jax.Array,
    *,
    gathers: int,
    adds: int,
) -> Sequence[jax.Array]:
    n, k = x.shape[0], into.shape[0]
    size = _moved_items(x, into, gathers)
    objects, ranks = find_objects(offsets, total, size)
    sources = _places(gather_starts, objects, ranks, n) if gathers else jnp.arange(size)
    places = jnp.where(sources < n, _places(scatter_starts, objects, ranks, k), k)
    rows = take_or_fill(x, sources)
    return [into + add_rows(rows, places, into) if adds else into.at[places].set(rows, mode="drop")]


# Derivatives: tangents move as rows do.


def filled_tangent(
    run: Callable[[jax.Array, jax.Array], jax.Array],
    x: jax.Array,
    x_dot: jax.Array | None,
    fill: jax.Array,
    fill_dot: jax.Array | None,
) -> jax.Array | None:
    """Returns the tangent of `run(x, fill)`, which moves rows of x and fills the rest."""
    tangent = None if x_dot is None else run(x_dot, jnp.zeros_like(fill))
    if fill_dot is None:
        return tangent
    moved = run(jnp.ones(x.shape, jnp.bool_), jnp.zeros(fill.shape, jnp.bool_))
    rows = jnp.zeros(moved.shape, fill.dtype) if tangent is None else tangent
    return fill_rows(rows, fill_dot, moved)


def def_filled_jvp(operation: Operation, rows: str) -> None:
    """Sets the forward derivative of an operation that moves rows into its first result, and fills it.

    No other result has a tangent.
    """

    def jvp(primals: Operands, tangents: Tangents, **attributes: int) -> tuple[Any, Any]:
        def run(x: jax.Array, fill: jax.Array) -> jax.Array:
            return operation.run(primals._replace(**{rows: x, "fill_value": fill}), **attributes)[0]

        moved = getattr(primals, rows), getattr(tangents, rows)
        results = operation.run(primals, **attributes)
        tangent = filled_tangent(run, *moved, primals.fill_value, tangents.fill_value)
        return results, [tangent, *[None] * (len(results) - 1)]

    operation.def_jvp(jvp)


def _move_jvp(primals: Operands, tangents: Tangents, *, gathers: int, adds: int) -> tuple[Any, Any]:
    tangent = None
    if tangents.x is not None:
        into = jnp.zeros(primals.into.shape, tangents.x.dtype)
        tangent = _move.run(primals._replace(x=tangents.x, into=into), gathers=gathers, adds=adds)[0]
    if tangents.into is not None:
        rest = tangents.into if adds else jnp.where(_is_moved(primals, gathers), 0, tangents.into)
        tangent = rest if tangent is None else tangent + rest
    return _move.run(primals, gathers=gathers, adds=adds), [tangent]


def _expand_transpose(cotangents: Sequence[Any], operands: Operands, *, size: int) -> jax.Array:
    index_dtype("derivative of interval_expand", "size", size)
    return _add_runs(cotangents[0], operands.offsets, live_items(size, operands.total))


def _gather_transpose(cotangents: Sequence[Any], operands: Operands, *, size: int, disjoint: int) -> jax.Array:
    x, starts, offsets, total, _ = operands
    return _add_intervals(cotangents[0], starts, offsets, total, x.shape[0], disjoint)


def _is_moved(operands: Operands, gathers: int) -> jax.Array:
    """Returns which elements of a move's result come from x."""
    marks, nothing = jnp.ones(operands.x.shape, jnp.bool_), jnp.zeros(operands.into.shape, jnp.bool_)
    return _move.run(operands._replace(x=marks, into=nothing), gathers=gathers, adds=False)[0]


def _move_transpose_into(cotangents: Sequence[Any], operands: Operands, *, gathers: int, adds: int) -> jax.Array:
    cotangent: jax.Array = cotangents[0]
    return cotangent if adds else jnp.where(_is_moved(operands, gathers), 0, cotangent)


def _move_transpose(cotangents: Sequence[Any], operands: Operands, *, gathers: int, adds: int) -> jax.Array:
    x, gather_starts, scatter_starts, offsets, total, into = operands
    size = _moved_items(x, into, gathers)
    fill = jnp.zeros((1,), x.dtype)
    items = gather_rows(
        x=cotangents[0], starts=scatter_starts, offsets=offsets, total=total, fill_value=fill, size=size,
        disjoint=not adds,
    )[0]  # fmt: skip
    return _add_intervals(items, gather_starts, offsets, total, x.shape[0], adds) if gathers else items


def _add_runs(rows: jax.Array, heads: jax.Array, live: jax.Array) -> jax.Array:
    """Returns the sum of each run of live rows, in a fixed order; `heads` are the starts of runs."""
    return as_floats(lambda rows: segmented_reduce(rows, heads, count=live), rows)


def _add_intervals(
    rows: jax.Array, starts: jax.Array, offsets: jax.Array, total: jax.Array, count: int, disjoint: int
) -> jax.Array:
    """Scatters rows to intervals of an array of zeros; adds where intervals overlap."""
    size, objects = rows.shape[0], starts.shape[0]
    if disjoint or objects == 0 or count == 0:
        return scatter_rows(rows, starts, offsets, total, jnp.zeros((count, rows.shape[1]), rows.dtype))
    # The operands of all branches must vary alike.
    live = vary_as(jnp.asarray(live_items(size, total)), rows, offsets)
    dtype = common_dtype(starts, offsets, live)
    starts, offsets, live = (x.astype(dtype) for x in (starts, offsets, live))
    bounds = jnp.clip(jnp.append(offsets, live), 0, live)
    lengths = jnp.where(offsets < 0, 0, bounds[1:] - bounds[:-1])

    def add_ordered(rows: jax.Array, **intervals: Any) -> jax.Array:
        def add(rows: jax.Array) -> jax.Array:
            return _move(x=rows, into=jnp.zeros((count, rows.shape[1]), rows.dtype), adds=True, **intervals)[0]

        return as_floats(add, rows)

    def in_order(rows: jax.Array) -> jax.Array:
        return add_ordered(rows, scatter_starts=starts, offsets=offsets, total=live.reshape(1), gathers=False)

    def in_any_order(rows: jax.Array) -> jax.Array:
        with by_construction():  # empty intervals come last; differences below do not overflow
            keys = jnp.where(lengths > 0, starts, np.iinfo(dtype).max - size)
            begins, order = Sort("interval_gather", keys).indices()
        firsts, sizes = offsets[order], lengths[order]

        def when_sorted(rows: jax.Array) -> jax.Array:
            heads, items = scan(sizes, exclusive=True, return_total=True)
            given = {"gather_starts": firsts, "scatter_starts": begins, "offsets": heads, "total": items.reshape(1)}
            return add_ordered(rows, **given, gathers=True)

        def add_by_id(rows: jax.Array) -> jax.Array:
            found, ranks = load_balance_search(offsets, size, total=live, return_rank=True)
            like = jax.ShapeDtypeStruct((count, rows.shape[1]), rows.dtype)
            return add_rows(rows, _places(starts, found, ranks, count), like)

        return cond(_are_ordered(begins, sizes, most), when_sorted, add_by_id, rows)

    # On a GPU, a thread adds all items of one element, so an element in many intervals is slow.
    most = 64 if count * rows.shape[1] < MANY_ELEMENTS else max(64, 2 * -(-size // count))
    return cond(_are_ordered(starts, lengths, most), in_order, in_any_order, rows)


def _are_ordered(starts: jax.Array, lengths: jax.Array, most: int) -> jax.Array:
    """Whether begins and ends ascend, and no row is in more than `most` intervals."""
    # A difference that overflows is negative, so the answer is no.
    gaps, shrinks = starts[1:] - starts[:-1], lengths[:-1] - lengths[1:]
    are_ordered = jnp.all((starts[1:] >= starts[:-1]) & (shrinks <= gaps))
    if starts.shape[0] > most:
        are_ordered &= jnp.all(lengths[:-most] <= starts[most:] - starts[:-most])
    result: jax.Array = of_all(are_ordered)
    return result


_expand = Operation(
    "interval_expand",
    operands={"values": 2, "offsets": 1, "total": 1, "fill_value": 1},
    results=("result",),
    attributes={"size": int},
    shapes=lambda values, size: [jax.ShapeDtypeStruct((size, values.shape[1]), values.dtype)],
    fallback=_expand_fallback,
)
def_filled_jvp(_expand, "values")
_expand.def_transpose("values", _expand_transpose)


class _IntervalOperation(Operation):
    """An operation whose starts and offsets have one dtype."""

    def run(self, operands: Operands | Sequence[Any], **attributes: Attribute) -> list[jax.Array]:
        """Converts starts and offsets to one dtype, and binds the primitive."""
        counts = [x.shape[-2] for x, rank in zip(operands, self.ranks, strict=True) if rank == 2 and x.ndim > 1]
        names = zip(self.operands, operands, strict=True)
        indices = [x for name, x in names if name.endswith(("starts", "offsets")) and x.size]
        dtype = common_dtype(*indices) if indices else np.dtype(np.int32)
        sizes, largest = [*counts, attributes.get("size", 0)], np.iinfo(dtype).max
        if any(surely(operator.gt, size, largest) for size in sizes):
            dtype = index_dtype(self.name, "x", *sizes)
        operands = [x.astype(dtype) if any(x is y for y in indices) and x.dtype != dtype else x for x in operands]
        return super().run(operands, **attributes)


# `disjoint`: no row of x is gathered twice, so the transpose only scatters.
gather_rows = _IntervalOperation(
    "interval_gather",
    operands={"x": 2, "starts": 1, "offsets": 1, "total": 1, "fill_value": 1},
    results=("result",),
    attributes={"size": int, "disjoint": bool},
    shapes=lambda x, size: [jax.ShapeDtypeStruct((size, x.shape[1]), x.dtype)],
    fallback=_gather_fallback,
)
def_filled_jvp(gather_rows, "x")
gather_rows.def_transpose("x", _gather_transpose)

# `gathers`: False if rows are consecutive, and `gather_starts` is absent. `adds`: rows of floats are added to those of
# `into`; the intervals' begins and ends then ascend.
_move = _IntervalOperation(
    "interval_move",
    operands={"x": 2, "gather_starts": 1, "scatter_starts": 1, "offsets": 1, "total": 1, "into": 2},
    results=("result",),
    attributes={"gathers": bool, "adds": bool},
    shapes=lambda into: [into],
    fallback=_move_fallback,
    aliases={"into": "result"},
)
_move.def_jvp(_move_jvp)
_move.def_transpose("x", _move_transpose)
_move.def_transpose("into", _move_transpose_into)
