"""Removal and insertion of many items at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import ArrayLike, Aval, AxisName, Operands, Tangents
from jax_mgpu._src.arguments.check import count_operand, index_dtype, index_vector, static_size, value_error
from jax_mgpu._src.arguments.counts import live_items
from jax_mgpu._src.arguments.preconditions import distinct_positions, non_decreasing, room
from jax_mgpu._src.arguments.rows import RowForm
from jax_mgpu._src.arguments.values import fill_rows, take_or_fill
from jax_mgpu._src.core.operation import Operation, jit_eager
from jax_mgpu._src.mesh import devices_of, over_axis
from jax_mgpu._src.ops.gather import scatter
from jax_mgpu._src.ops.intervals import filled_tangent, gather_rows, scatter_rows

__all__ = ["bulk_insert", "bulk_remove"]


@jit_eager("size")
def bulk_remove(
    x: ArrayLike,
    indices: ArrayLike,
    *,
    size: int | None = None,
    fill_value: ArrayLike = 0,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> Any:
    """Removes the items at the given positions; the others keep their order.

    Args:
      x: `[n, …]`, any dtype.
      indices: `[m]` integers, sorted and unique. An index `>= n` (or `>= count`) is padding and may be repeated.
      size: the static length of the result (default `n - m`, or 0 if `m` is larger).
      fill_value: the value of rows past the last kept one.
      count: the number of live items of `x`, an integer scalar (default `n`).
      axis_name: remove items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`. Indices are
        positions in the global array, sorted over all devices; they may be on other devices than their items. The
        default of `size` is `n`.

    Returns:
      `[size, …]`: the kept rows, as many as fit. Over a mesh axis `(rows, count)`: the device's kept items, and
      their number, which can exceed `size`.

    Raises:
      TypeError: indices or count are not integers, or `size` is not static.
      ValueError: an argument's shape is not one of the above.

    The result is linear in `x`; the transpose puts zeros where items were removed. Time is O(n + m): a load-balancing
    search over `indices[j] - j` finds how many removed items precede kept item `i` (Baxter, moderngpu, 2013).

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.bulk_remove(jnp.arange(10), jnp.array([1, 3, 4, 5, 7, 8]))
      Array([0, 2, 6, 9], dtype=int32)
    """
    name = "bulk_remove"
    form, rows = RowForm.packed(name, "x", x)
    n = rows.shape[0]
    slots = n * devices_of(name, axis_name)
    count = count_operand(name, "count", count, n)
    if axis_name is not None:
        indices = non_decreasing(name, "indices", index_vector(name, "indices", indices, slots))
        size = n if size is None else static_size(name, "size", size)
        options = {"size": size, "fill_value": form.fill(fill_value)}
        left, total = over_axis(mesh.bulk.bulk_remove, name, axis_name, rows, indices, count, **options)
        return form.unpack(left), room(name, total, size)
    indices = distinct_positions(name, "indices", index_vector(name, "indices", indices, n), count, n)
    size = max(n - indices.shape[0], 0) if size is None else static_size(name, "size", size)
    return form.unpack(_remove(x=rows, indices=indices, count=count, fill_value=form.fill(fill_value), size=size)[0])


@jit_eager("size")
def bulk_insert(
    x: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike,
    *,
    size: int | None = None,
    fill_value: ArrayLike = 0,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> Any:
    """Inserts values in front of the items at the given positions.

    Args:
      x: `[n, …]`, any dtype.
      indices: `[m]` integers, sorted, relative to `x`. Repeats are kept in order; `n` (or `count`) is the end, and an
        index past it is padding.
      values: `[m, …]`, of the dtype and trailing shape of `x`.
      size: the static length of the result (default `n + m`).
      fill_value: the value of rows past the last one.
      count: the number of live items of `x`, an integer scalar (default `n`).
      axis_name: insert into the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`.
        Indices are positions in the global array, sorted over all devices; they may be on any device, with their
        values.

    Returns:
      `[size, …]`: the rows of both, as many as fit; `values[i]` is in front of `x[indices[i]]`. Over a mesh axis
      `(rows, count)`: the device's share of the rows, and their number, which differs by at most one between devices.

    Raises:
      TypeError: indices or count are not integers, `size` is not static, or the dtypes of `x` and `values` differ.
      ValueError: an argument's shape is not one of the above.

    The result is linear in `x` and `values`. Time is O(n + m): value `i` is item `indices[i] + i` of the result, and a
    load-balancing search over these positions finds how many inserted items precede each item of `x` (Baxter,
    moderngpu, 2013).

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.bulk_insert(jnp.array([10, 11, 12]), jnp.array([1, 1, 3]), jnp.array([1, 2, 3]))
      Array([10,  1,  2, 11, 12,  3], dtype=int32)
    """
    name = "bulk_insert"
    form, rows = RowForm.packed(name, "x", x)
    inserted = form.pack("values", values)
    n, m = rows.shape[0], inserted.shape[0]
    slots = n * devices_of(name, axis_name)
    indices = non_decreasing(name, "indices", index_vector(name, "indices", indices, slots))
    if indices.shape[0] != m:
        raise value_error(name, "indices", f"the length of values, {m}", indices.shape[0])
    size = n + m if size is None else static_size(name, "size", size)
    count = count_operand(name, "count", count, n)
    fill = form.fill(fill_value)
    if axis_name is not None:
        operands = (rows, indices, inserted, count)
        both, total = over_axis(mesh.bulk.bulk_insert, name, axis_name, *operands, size=size, fill_value=fill)
        return form.unpack(both), room(name, total, size)
    return form.unpack(_insert(x=rows, indices=indices, values=inserted, count=count, fill_value=fill, size=size)[0])


def _starts(x: jax.Array, indices: jax.Array, count: jax.Array, drift: int, size: int) -> tuple[Any, Any, Any, Any]:
    """Returns the number of live items of x, which indices are in range, starts, and the number of results.

    `drift` is 1 for an insertion and -1 for a removal: an index moves later items by that. Starts are the places of
    inserted values in the result, or those of the items behind removed ones. For an index out of range, they are -1 or
    past all results.
    """
    operation = "derivative of bulk_insert" if drift > 0 else "derivative of bulk_remove"
    dtype = index_dtype(operation, "x", size + 1, x.shape[0] + indices.shape[0] + 1)
    live = live_items(x.shape[0], count, dtype)
    indices = jnp.clip(indices, -1, min(x.shape[0] + 1, jnp.iinfo(indices.dtype).max)).astype(dtype)
    in_range = (indices >= 0) & (indices < live + int(drift > 0))
    total = jnp.clip(live + drift * jnp.sum(in_range, dtype=dtype), 0, size)
    starts = indices + drift * (jnp.cumsum(in_range, dtype=dtype) - 1)
    return live, in_range, jnp.where(in_range, starts, jnp.where(indices < 0, -1, jnp.iinfo(dtype).max)), total


def _shapes(x: Aval, *, size: int) -> Sequence[Any]:
    return [jax.ShapeDtypeStruct((size, x.shape[1]), x.dtype)]


def _remove_fallback(
    x: jax.Array, indices: jax.Array, count: jax.Array, fill_value: jax.Array, *, size: int
) -> Sequence[jax.Array]:
    _, _, starts, total = _starts(x, indices, count, -1, size)
    items = jnp.arange(size, dtype=starts.dtype)
    before = jnp.searchsorted(starts, items, side="right").astype(items.dtype) - jnp.sum(indices < 0, dtype=items.dtype)
    return [take_or_fill(x, jnp.where(items < total, items + before, -1), fill_value)]


def _insert_fallback(
    x: jax.Array, indices: jax.Array, values: jax.Array, count: jax.Array, fill_value: jax.Array, *, size: int
) -> Sequence[jax.Array]:
    _, _, starts, total = _starts(x, indices, count, 1, size)
    items = jnp.arange(size, dtype=starts.dtype)
    before = jnp.searchsorted(starts, items, side="right").astype(items.dtype) - jnp.sum(indices < 0, dtype=items.dtype)
    rows = take_or_fill(x, jnp.where(items < total, items - before, -1), fill_value)
    return [rows.at[jnp.where(starts < 0, size, starts)].set(values, mode="drop")]


def _kept_runs(operands: Operands, size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns where runs between removed items start in x and in the result, and the number of live results."""
    x, indices, count, _ = operands
    _, in_range, starts, total = _starts(x, indices, count, -1, size)
    zero = jnp.zeros((1,), starts.dtype)
    sources = jnp.append(zero, jnp.where(in_range, indices + 1, 0).astype(starts.dtype))
    return sources, jnp.append(zero, jnp.clip(starts, 0, total)), total.reshape(1)


def _remove_jvp(primals: Operands, tangents: Tangents, *, size: int) -> tuple[Any, Any]:
    sources, offsets, total = _kept_runs(primals, size)

    def run(x: jax.Array, fill: jax.Array) -> jax.Array:
        given = {"x": x, "starts": sources, "offsets": offsets, "total": total, "fill_value": fill}
        return gather_rows(**given, size=size, disjoint=1)[0]

    tangent = filled_tangent(run, primals.x, tangents.x, primals.fill_value, tangents.fill_value)
    return _remove.run(primals, size=size), [tangent]


def _remove_transpose(cotangents: Sequence[Any], operands: Operands, *, size: int) -> jax.Array:
    return scatter_rows(cotangents[0], *_kept_runs(operands, size), jnp.zeros(operands.x.shape, operands.x.dtype))


def _pushed_runs(operands: Operands, size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns where runs between inserted values start in the result and in x, and the number of live items."""
    x, indices, _, count, _ = operands
    live, in_range, starts, _ = _starts(x, indices, count, 1, size)
    zero = jnp.zeros((1,), starts.dtype)
    offsets = jnp.clip(indices, 0, live.astype(indices.dtype)).astype(starts.dtype)
    places = jnp.where(in_range, starts + 1, jnp.maximum(starts, 0))
    return jnp.append(zero, places), jnp.append(zero, offsets), live.reshape(1)


def _insert_jvp(primals: Operands, tangents: Tangents, *, size: int) -> tuple[Any, Any]:
    """Scatters the runs, and inserts the values."""
    x, indices, _, count, _ = primals
    _, in_range, starts, total = _starts(x, indices, count, 1, size)
    tangent = None
    if tangents.x is not None:
        tangent = scatter_rows(tangents.x, *_pushed_runs(primals, size), jnp.zeros((size, x.shape[1]), x.dtype))
    if tangents.values is not None:
        values = scatter(tangents.values, jnp.where(in_range, starts, -1), size)
        tangent = values if tangent is None else tangent + values  # `tangent` is 0 in the slots of values
    if tangents.fill_value is not None:
        rows = jnp.zeros((size, x.shape[1]), x.dtype) if tangent is None else tangent
        tangent = fill_rows(rows, tangents.fill_value, jnp.arange(size, dtype=total.dtype) < total)
    return _insert.run(primals, size=size), [tangent]


def _insert_transpose_x(cotangents: Sequence[Any], operands: Operands, *, size: int) -> jax.Array:
    places, offsets, live = _pushed_runs(operands, size)
    n, fill = operands.x.shape[0], jnp.zeros((1,), operands.x.dtype)
    given = {"x": cotangents[0], "starts": places, "offsets": offsets, "total": live, "fill_value": fill}
    return gather_rows(**given, size=n, disjoint=1)[0]


def _insert_transpose_values(cotangents: Sequence[Any], operands: Operands, *, size: int) -> jax.Array:
    x, indices, _, count, _ = operands
    _, in_range, starts, _ = _starts(x, indices, count, 1, size)
    return take_or_fill(cotangents[0], jnp.where(in_range, starts, -1), unique=True)


_remove = Operation(
    "bulk_remove",
    operands={"x": 2, "indices": 1, "count": 1, "fill_value": 1},
    results=("result",),
    attributes={"size": int},
    shapes=_shapes,
    fallback=_remove_fallback,
)
_remove.def_jvp(_remove_jvp)
_remove.def_transpose("x", _remove_transpose)

_insert = Operation(
    "bulk_insert",
    operands={"x": 2, "indices": 1, "values": 2, "count": 1, "fill_value": 1},
    results=("result",),
    attributes={"size": int},
    shapes=_shapes,
    fallback=_insert_fallback,
)
_insert.def_jvp(_insert_jvp)
_insert.def_transpose("x", _insert_transpose_x)
_insert.def_transpose("values", _insert_transpose_values)
