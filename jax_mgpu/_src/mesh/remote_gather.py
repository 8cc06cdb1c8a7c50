"""Moves between devices of what lies anywhere: rows dealt out by rank, items fetched from places, and put in places."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.values import take_or_fill, take_rows
from jax_mgpu._src.core.compat import axes_bound, cond, fori_loop
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.keys.bits import keeping_bits
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.exchange import Parts, exchange
from jax_mgpu._src.ops.gather import gather
from jax_mgpu._src.ops.sort import run_sort_indices
from jax_mgpu._src.ops.sort_primitives import Method
from jax_mgpu._src.ops.sorted_search import insertion_points

__all__ = ["Share", "begins_of", "deal", "fetch", "put"]


class Share:
    """What each device has of results that are numbered over all devices: ranks from `low`, `count` of them.

    Those that have a slot are the ranks from `lows` to `highs` of all devices.
    """

    def __init__(self, axis: Axis, lows: jax.Array, counts: jax.Array, size: int):
        self.lows, self.highs = lows, lows + jnp.minimum(counts, size)
        self.low, self.count = lows[axis.index], counts[axis.index]

    @classmethod
    def even(cls, axis: Axis, total: jax.Array, size: int) -> Share:
        """Numbers that differ by one at most."""
        device = axis.devices.astype(total.dtype)
        lows = device * (total // axis.size) + jnp.minimum(device, total % axis.size)
        return cls(axis, lows, total // axis.size + (device < total % axis.size).astype(total.dtype), size)

    @classmethod
    def of_slots(cls, axis: Axis, total: jax.Array, size: int) -> Share:
        """Devices are filled from the first one on."""
        lows = jnp.minimum(axis.devices.astype(total.dtype) * size, total)
        return cls(axis, lows, jnp.minimum(total - lows, size), size)


def begins_of(counts: jax.Array) -> jax.Array:
    """Where each device's items begin in the global array, by the numbers of all devices."""
    return jnp.cumsum(counts, dtype=counts.dtype) - counts


def deal(
    axis: Axis, leaves: Sequence[jax.Array], begins: jax.Array, ends: jax.Array, share: Share, slots: int
) -> tuple[list[jax.Array], jax.Array]:
    """Gives each device the items that make its share of results.

    Item i makes the results of ranks `begins[i]` to `ends[i]`, at least one; ranks are in order over all devices, and
    larger than any for what is no item. An item goes to each device that has a part of its results.

    Returns:
      The leaves, `[slots, ...]`, and how many items there are: no more than results.
    """
    if begins.shape[0] == 0:
        leaves = [jnp.zeros((1, *x.shape[1:]), x.dtype) for x in leaves]
    first = insertion_points(share.lows.astype(ends.dtype), ends, right=True).astype(jnp.int32)
    last = insertion_points(share.highs.astype(begins.dtype), begins).astype(jnp.int32)
    starts, sizes = axis.gather((first, jnp.maximum(last - first, 0)))
    parts = Parts(axis, starts, sizes, slots)
    return exchange(parts, leaves), parts.total


def _in_order(axis: Axis, places: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Global places in order, where they stood, and which of them lie on each device: `[devices + 1]`."""
    total = counts.sum(dtype=counts.dtype)
    places = jnp.where((places >= 0) & (places < total), places, total).astype(counts.dtype)
    options: dict[str, Any] = {"descending": False, "count": None, "method": Method.FASTEST}
    places, order = run_sort_indices(axis.operation, places, ABSENT, ABSENT, **options)
    edges = insertion_points(jnp.append(begins_of(counts), total), places).astype(counts.dtype)
    return places, order, edges


def fetch(
    axis: Axis,
    leaves: Sequence[jax.Array],
    counts: jax.Array,
    places: jax.Array,
    fills: Sequence[jax.Array | None],
) -> list[jax.Array]:
    """Rows from places in the global array, any of them any number of times; the fill element for places outside.

    Devices ask each other in rounds of equal chunks. One round does where each asks all for about as much; where all
    ask one device there are as many as devices, and none takes more memory.

    Args:
      axis: the devices.
      leaves: each device's part of the global arrays, `[slots, ...]`.
      counts: how many rows of it are live on each device, `[devices]`.
      places: `[n]`, of this device.
      fills: the fill element of each leaf, `[1]`, or None for 0.

    Returns:
      The rows, `[n, ...]` each.
    """
    (n,) = places.shape
    inside = (places >= 0) & (places < counts.sum(dtype=counts.dtype))
    if n == 0 or leaves[0].shape[0] == 0:
        nowhere = jnp.full((n,), -1, jnp.int32)
        return [take_or_fill(x, nowhere, fill) for x, fill in zip(leaves, fills, strict=True)]
    asked, order, edges = _in_order(axis, places, counts)
    chunk = max(1, -(-n // axis.size) + -(-n // (32 * axis.size)))
    sizes = edges[1:] - edges[:-1]
    needed = -(-jnp.max(axis.gather(sizes)) // chunk)  # the same on all devices, who all enter a round or none
    bound = axes_bound(axis.name)

    # All that is traced is an argument: a rule of jax.custom_jvp that closes over it fails under shard_map.
    def move(x: jax.Array, asked: jax.Array, order: jax.Array, edges: jax.Array, begins: jax.Array, needed: Any) -> Any:
        starts, sizes = edges[:-1, None], (edges[1:] - edges[:-1])[:, None]
        item = jnp.arange(chunk, dtype=edges.dtype)
        unused = n + jnp.arange(axis.size * chunk, dtype=edges.dtype).reshape(-1, chunk)

        def ask(done: jax.Array, into: jax.Array) -> jax.Array:
            at = jnp.asarray(done, edges.dtype) * chunk + item
            wanted = asked.at[starts + at].get(mode="clip") - begins[:, None]
            wanted = jax.lax.all_to_all(wanted, axis.name, 0, 0)
            rows = jax.lax.all_to_all(gather(x, wanted), axis.name, 0, 0)
            return into.at[jnp.where(at < sizes, starts + at, unused)].set(rows, mode="drop", unique_indices=True)

        @functools.partial(jax.checkpoint, prevent_cse=False)  # as in `exchange`
        def round_of(done: jax.Array, into: jax.Array) -> jax.Array:
            result: jax.Array = cond(jnp.asarray(done, edges.dtype) < needed, ask, lambda _, into: into, done, into)
            return result

        with bound():
            into = axis.varying(jnp.zeros((n, *x.shape[1:]), x.dtype))
            rows = fori_loop(0, -(-n // chunk), round_of, into)
            return jnp.zeros_like(rows).at[order].set(rows, unique_indices=True)

    traced = (asked, order, edges, begins_of(counts), needed)
    found = [keeping_bits(move, x, *traced, adds=True) for x in leaves]
    own = jnp.where(inside, jnp.arange(n), -1)
    return [
        x if fill is None else take_or_fill(x, own, fill, unique=True) for x, fill in zip(found, fills, strict=True)
    ]


def put(
    axis: Axis, leaves: Sequence[jax.Array], places: jax.Array, counts: jax.Array, slots: int
) -> tuple[list[jax.Array], jax.Array]:
    """Rows at places in the global array, each place used once at most; those for places outside go nowhere.

    Args:
      axis: the devices.
      leaves: this device's rows, `[n, ...]` each.
      places: `[n]`, of this device's rows.
      counts: how many places each device has, `[devices]`.
      slots: the number of slots of a device.

    Returns:
      The rows that have come, `[slots, ...]` each, and the slots that they belong to, `slots` behind the last.
    """
    if places.shape[0] == 0:
        places = jnp.full((1,), -1, jnp.int32)
        leaves = [jnp.zeros((1, *x.shape[1:]), x.dtype) for x in leaves]
    places, order, edges = _in_order(axis, places, counts)
    parts = Parts.between(axis, axis.gather(edges), slots)
    places, *rows = exchange(parts, [places, *(take_rows(x, order) for x in leaves)])
    live = jnp.arange(slots, dtype=counts.dtype) < parts.total
    return rows, jnp.where(live, places - begins_of(counts)[axis.index], slots)
