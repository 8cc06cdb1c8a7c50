"""Intervals over a mesh axis: each is sent to the devices whose slots it fills, which fetch its rows."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.counts import live_items
from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.interval_runs import fits, gather_runs
from jax_mgpu._src.mesh.remote_gather import Share, deal_from, fetch, put
from jax_mgpu._src.ops.intervals import _expand
from jax_mgpu._src.ops.load_balance import load_balance_search as local_search

__all__ = ["interval_expand", "interval_gather", "interval_move", "load_balance_search"]


class _Own:
    """The intervals that fill this device's slots.

    Attributes:
      leaves: the data of each interval, `[size, ...]`.
      offsets: `[size]`, where each interval starts among the slots; `size` past the last one. If all devices together
        have fewer intervals, there is one entry for each of them.
      total: the number of filled slots, an operand.
      passed: how many slots of each interval are on earlier devices.
    """

    def __init__(self, axis: Axis, leaves: Sequence[jax.Array], offsets: jax.Array, size: int, total: jax.Array):
        dtype = axis.index_dtype("size", max(size, 1))
        whole = live_items(axis.size * size, total, dtype)

        def inside(offsets: jax.Array) -> jax.Array:
            return jnp.clip(offsets, 0, whole.astype(offsets.dtype)).astype(dtype)

        firsts = axis.gather(inside(offsets[0]))
        following = jnp.where(axis.index + 1 < axis.size, firsts[jnp.minimum(axis.index + 1, axis.size - 1)], whole)
        share = Share.of_slots(axis, whole, size)
        self.leaves, begins, items = deal_from(axis, leaves, inside(offsets), following, share, size)
        self.total = share.count.reshape(1)
        slot = jnp.arange(begins.shape[0], dtype=dtype)
        self.offsets = jnp.where(slot < items.astype(dtype), jnp.clip(begins - share.low, 0, size), size)
        self.passed = jnp.maximum(share.low - begins, 0)
        self._axis, self._size = axis, size

    def owners(self) -> tuple[jax.Array, jax.Array]:
        """Returns, for each slot, the interval that fills it, or -1, and its position within that interval."""
        with by_construction():
            owner, rank = local_search(self.offsets, self._size, total=self.total[0], return_rank=True)
        if self._axis.shares_memory:  # all intervals of earlier devices are here
            passed = take_or_fill(self.passed, owner)
        else:
            passed = jnp.where(owner == 0, take_or_fill(self.passed, jnp.zeros((1,), jnp.int32))[0], 0)
        return owner, rank.astype(passed.dtype) + passed

    def places(self, *starts: jax.Array) -> list[jax.Array]:
        """Returns, for each slot, its position in intervals that begin at these positions; -1 for empty slots."""
        owner, rank = self.owners()
        return [jnp.where(owner >= 0, take_or_fill(x, owner) + rank.astype(x.dtype), -1) for x in starts]


def interval_expand(
    axis: Axis, rows: jax.Array, offsets: jax.Array, total: jax.Array, fill: jax.Array, *, size: int
) -> jax.Array:
    """Repeats rows over their intervals, which may span several devices."""
    own = _Own(axis, [rows], offsets, size, total)
    return _expand(values=own.leaves[0], offsets=own.offsets, total=own.total, fill_value=fill, size=size)[0]


def load_balance_search(axis: Axis, offsets: jax.Array, total: jax.Array, *, size: int) -> list[jax.Array]:
    """Returns the objects of this device's slots, numbered over all devices, and the ranks; -1 for empty slots."""
    (m,) = offsets.shape
    dtype = axis.index_dtype("size", max(size, m))
    numbers = axis.index.astype(dtype) * m + jnp.arange(m, dtype=dtype)
    own = _Own(axis, [numbers], offsets, size, total)
    owner, rank = own.owners()
    return [jnp.where(owner >= 0, x.astype(dtype), -1) for x in (take_or_fill(own.leaves[0], owner), rank)]


def interval_gather(
    axis: Axis, rows: jax.Array, starts: jax.Array, offsets: jax.Array, total: jax.Array, fill: jax.Array, *, size: int
) -> jax.Array:
    """Gathers rows from any device: runs of rows if intervals are few and long, otherwise each row by a request."""
    starts = _wide(axis, starts, rows, size)
    if fits(axis, starts.shape[0], size):
        whole = live_items(axis.size * size, total, starts.dtype)
        offsets = jnp.clip(offsets, 0, whole.astype(offsets.dtype)).astype(starts.dtype)
        return gather_runs(axis, rows, starts, offsets, whole, fill, size)
    own = _Own(axis, [starts], offsets, size, total)
    (places,) = own.places(*own.leaves)
    return fetch(axis, [rows], _slots(axis, rows), places, [fill])[0]


def interval_move(
    axis: Axis,
    rows: jax.Array,
    gather_starts: jax.Array,
    scatter_starts: jax.Array,
    offsets: jax.Array,
    total: jax.Array,
    into: jax.Array,
) -> jax.Array:
    """Fetches rows in equal shares, and moves them to their positions."""
    size = max(rows.shape[0], into.shape[0])
    starts = [_wide(axis, gather_starts, rows, size), _wide(axis, scatter_starts, into, size)]
    own = _Own(axis, starts, offsets, size, total)
    sources, places = own.places(*own.leaves)
    counts = _slots(axis, rows)
    inside = (sources >= 0) & (sources < counts.sum(dtype=counts.dtype))
    (fetched,) = fetch(axis, [rows], counts, sources, [None])
    return put(axis, [fetched], jnp.where(inside, places, -1), _slots(axis, into), [into])[0]


def _slots(axis: Axis, x: jax.Array) -> jax.Array:
    """Returns the number of rows of each device: all its slots."""
    return jnp.full((axis.size,), x.shape[0], axis.index_dtype("x", x.shape[0]))


def _wide(axis: Axis, starts: jax.Array, x: jax.Array, size: int) -> jax.Array:
    """Returns global positions, in a type that holds their sums with ranks; invalid ones lie outside of the array."""
    dtype = axis.index_dtype("x", x.shape[0] + size)
    return jnp.clip(starts, -1 - axis.size * size, axis.size * x.shape[0]).astype(dtype)
