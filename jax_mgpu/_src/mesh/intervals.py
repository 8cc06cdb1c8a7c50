"""Intervals over a mesh axis."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.counts import live_items
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.interval_runs import fits, gather_runs
from jax_mgpu._src.mesh.remote_gather import Dealt, Share, fetch, put
from jax_mgpu._src.ops.intervals import _expand


class _Own:
    """The intervals that fill this device's slots.

    Attributes:
      dealt: the intervals.
      total: the number of filled slots, an operand.
    """

    def __init__(self, axis: Axis, leaves: Sequence[jax.Array], offsets: jax.Array, size: int, total: jax.Array):
        (m,) = offsets.shape
        dtype = axis.index_dtype("size", max(size, m, 1))
        whole = live_items(axis.size * size, total, dtype)
        offsets = jnp.clip(offsets, 0, whole.astype(offsets.dtype)).astype(dtype)
        firsts = axis.gather(offsets[0] if m else whole)
        following = jnp.where(axis.index + 1 < axis.size, firsts[jnp.minimum(axis.index + 1, axis.size - 1)], whole)
        share = Share.of_slots(axis, whole, size)
        self.dealt = Dealt(axis, leaves, axis.index.astype(dtype) * m, offsets, following, share, size)
        self.total = share.count.reshape(1)

    def places(self, *starts: jax.Array) -> list[jax.Array]:
        """For each of `starts`, returns the start of each slot's interval plus the slot's rank; -1 for empty slots."""
        owner, rank = self.dealt.owners(self.total[0])
        return [jnp.where(owner >= 0, take_or_fill(x, owner) + rank.astype(x.dtype), -1) for x in starts]


def interval_expand(
    axis: Axis, rows: jax.Array, offsets: jax.Array, total: jax.Array, fill: jax.Array, *, size: int
) -> jax.Array:
    """Repeats rows over their intervals, which may span several devices."""
    own = _Own(axis, [rows], offsets, size, total)
    (values,) = own.dealt.leaves
    return _expand(values=values, offsets=own.dealt.starts, total=own.total, fill_value=fill, size=size)[0]


def load_balance_search(axis: Axis, offsets: jax.Array, total: jax.Array, *, size: int) -> list[jax.Array]:
    """Returns the objects of this device's slots, numbered over all devices, and ranks; -1 for empty slots."""
    dtype = axis.index_dtype("size", max(size, offsets.shape[0]))
    own = _Own(axis, [], offsets, size, total)
    owner, rank = own.dealt.owners(own.total[0])
    return [own.dealt.numbers(owner).astype(dtype), jnp.where(owner >= 0, rank.astype(dtype), -1)]


def interval_gather(
    axis: Axis, rows: jax.Array, starts: jax.Array, offsets: jax.Array, total: jax.Array, fill: jax.Array, *, size: int
) -> jax.Array:
    """Gathers rows from any device: by runs of rows if `fits`, else row by row."""
    starts = _wide(axis, starts, rows, size)
    if fits(axis, starts.shape[0], size):
        whole = live_items(axis.size * size, total, starts.dtype)
        offsets = jnp.clip(offsets, 0, whole.astype(offsets.dtype)).astype(starts.dtype)
        return gather_runs(axis, rows, starts, offsets, whole, fill, size)
    own = _Own(axis, [starts], offsets, size, total)
    (places,) = own.places(*own.dealt.leaves)
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
    """Fetches this device's share of the rows, and puts them at their positions."""
    size = max(rows.shape[0], into.shape[0])
    starts = [_wide(axis, gather_starts, rows, size), _wide(axis, scatter_starts, into, size)]
    own = _Own(axis, starts, offsets, size, total)
    sources, places = own.places(*own.dealt.leaves)
    counts = _slots(axis, rows)
    inside = (sources >= 0) & (sources < counts.sum(dtype=counts.dtype))
    (fetched,) = fetch(axis, [rows], counts, sources, [None])
    return put(axis, [fetched], jnp.where(inside, places, -1), _slots(axis, into), [into])[0]


def _slots(axis: Axis, x: jax.Array) -> jax.Array:
    """Returns each device's number of slots."""
    return jnp.full((axis.size,), x.shape[0], axis.index_dtype("x", x.shape[0]))


def _wide(axis: Axis, starts: jax.Array, x: jax.Array, size: int) -> jax.Array:
    """Returns global positions in a type that holds their sums with ranks.

    Invalid positions are clipped so that their sums with ranks are invalid too.
    """
    dtype = axis.index_dtype("x", x.shape[0] + size)
    return jnp.clip(starts, -1 - axis.size * size, axis.size * x.shape[0]).astype(dtype)
