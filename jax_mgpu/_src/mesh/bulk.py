"""Removal and insertion over a mesh axis: removed items are marked in place; inserted ones are merged by position."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.check import fill_operand
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.pairs import merge
from jax_mgpu._src.mesh.reductions import number_before
from jax_mgpu._src.mesh.remote_gather import put
from jax_mgpu._src.ops.select import select_rows


def bulk_remove(
    axis: Axis, rows: jax.Array, indices: jax.Array, count: jax.Array, *, size: int, fill_value: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the items that remain on this device, and their number."""
    n = rows.shape[0]
    counts = axis.gather(axis.live("x", n, count))
    (keep,) = put(axis, [jnp.zeros((), bool)], indices, counts, [jnp.ones((n,), bool)])
    (kept,), total = select_rows(axis.operation, [rows], keep, size, fill_value[0], count)
    return kept, total


def bulk_insert(
    axis: Axis,
    rows: jax.Array,
    indices: jax.Array,
    inserted: jax.Array,
    count: jax.Array,
    *,
    size: int,
    fill_value: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Merges inserted and existing items by position, inserted ones first; returns this device's items."""
    n = rows.shape[0]
    live = axis.live("x", n, count)
    counts = axis.gather(live)
    total, dtype = counts.sum(dtype=live.dtype), axis.index_dtype("x", n + 1)
    places = (axis.begin(counts) + jnp.arange(n, dtype=live.dtype)).astype(dtype)
    indices = jnp.clip(indices, -1, axis.size * n + 1).astype(dtype)
    of_values = number_before(indices, total.astype(dtype) + 1).reshape(1)
    _, (moved,), found = merge(
        axis,
        indices,
        places,
        [inserted],
        [rows],
        of_values,
        live.reshape(1),
        descending=False,
        even=True,
        aligned=False,
    )
    slots = jnp.arange(size, dtype=found.dtype)
    fill = fill_operand(axis.operation, fill_value[0], rows.dtype)
    return take_or_fill(moved, jnp.where(slots < found, slots, -1), fill, unique=True), found
