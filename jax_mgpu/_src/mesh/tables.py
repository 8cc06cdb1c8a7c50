"""Searches, lookups and as-of joins over a mesh axis: each row's key is looked up among sorted keys of all devices."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.counts import count_of, live_mask
from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.arguments.segments import GivenSegments
from jax_mgpu._src.keys.bits import ordered_integers
from jax_mgpu._src.keys.columns import KeyPair, sorted_pair
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.joins import Side
from jax_mgpu._src.mesh.pairs import pair_of
from jax_mgpu._src.mesh.ranges import OverAxis, item_codes
from jax_mgpu._src.mesh.remote_gather import fetch
from jax_mgpu._src.mesh.segments import segment_ids
from jax_mgpu._src.ops.tables import AsofJoin
from jax_mgpu._src.ops.unsorted_pairs import is_nan

__all__ = ["asof_join", "lookup", "search", "segmented_search"]


class _Found:
    """The positions of the keys of a's rows among b's sorted keys; either side may be given unsorted."""

    def __init__(self, axis: Axis, pair: KeyPair, is_sorted: tuple[bool, bool]):
        self.axis, operands = axis, pair.code_operands if all(is_sorted) else pair.codes
        dtype = axis.index_dtype("a and b", operands[0].shape[0] + operands[1].shape[0])
        self.a, self.b = (
            Side(axis, keys, count, dtype, is_sorted=known, only_asks=asks)
            for keys, count, known, asks in zip(operands[:2], operands[2:], is_sorted, (True, False), strict=True)
        )
        counts = self.a.sorted_count, self.b.sorted_count
        self._pair = pair_of(axis, self.a.keys, self.b.keys, *counts)

    def _to_rows(self, found: jax.Array) -> jax.Array:
        rows: jax.Array = self.a.to_rows([found])[0]
        return jnp.where(live_mask(self.a.n, self.a.live.reshape(1)), rows, -1)

    def cut(self, right: bool) -> jax.Array:
        """Returns the insertion point of each row's key among b's sorted keys; -1 past the live rows."""
        return self._to_rows(self._pair.cut(0, right))

    def partner(self) -> jax.Array:
        """Returns the place of the first equal key among b's sorted keys; -1 if there is none."""
        low, high = self._pair.lower_and_upper(0)
        return self._to_rows(jnp.where(low < high, low, -1))

    def row_at(self, places: jax.Array) -> jax.Array:
        """Returns the global row of b whose key is at a place in the order; -1 for places outside."""
        if self.b.order is None:
            return jnp.where((places >= 0) & (places < self.b.counts.sum(dtype=places.dtype)), places, -1)
        rows: jax.Array = fetch(self.axis, [self.b.order + 1], self.b.sorted_counts, places, [None])[0] - 1
        return rows


def search(axis: Axis, pair: KeyPair, *, right: bool) -> jax.Array:
    """Returns each needle's insertion point in the global haystack, on the needle's device."""
    return _Found(axis, pair, (False, True)).cut(right)


def segmented_search(
    axis: Axis,
    needles: Sequence[jax.Array],
    ids: jax.Array,
    haystack: Sequence[jax.Array],
    segments: GivenSegments,
    needles_count: jax.Array,
    *,
    right: bool,
) -> jax.Array:
    """Searches within segments: items are in the order of their segments' numbers, then of their keys."""
    number = axis.sum(OverAxis(axis, segments).own)
    is_inside = live_mask(ids.shape[0], needles_count) & (ids >= 0) & (ids < number.astype(ids.dtype))
    if segments.ends is None:
        of_items = segment_ids(axis, segments.heads, segments.n, segments.count)
        own = jnp.where(is_inside, ids, -1).astype(of_items.dtype)
    else:  # gaps have numbers of their own, and all keys in gaps become equal
        of_items = item_codes(axis, segments)
        own = jnp.where(is_inside, 2 * ids.astype(of_items.dtype) + 2, -1)
        haystack = [jnp.where(of_items % 2 == 0, x, jnp.zeros((), x.dtype)) for x in haystack]
    with by_construction():  # the caller has checked the order within segments
        counts = count_of(needles_count), count_of(segments.count)
        pair = sorted_pair(axis.operation, (own, *needles), (of_items, *haystack), *counts)
    return jnp.where(is_inside, _Found(axis, pair, (False, True)).cut(right), -1)


def lookup(axis: Axis, pair: KeyPair, leaves: Sequence[jax.Array], fills: Sequence[jax.Array]) -> list[jax.Array]:
    """Returns the values of each key's row of the table, from the device with that row."""
    found = _Found(axis, pair, (False, False))
    return fetch(axis, leaves, found.b.counts, found.row_at(found.partner()), fills)


def asof_join(axis: Axis, problem: AsofJoin) -> jax.Array:
    """Returns the global row of b for each row of a."""
    (time, b_time), (group, b_group) = problem.times, problem.groups
    known = problem.is_sorted and not group
    found = _Found(axis, KeyPair(problem.name, *problem.keys, *problem.counts), (known, known))
    live = live_mask(time.shape[0], found.a.live.reshape(1)) & ~is_nan(time)

    def beside_cut(right: bool, later: bool) -> jax.Array:
        places = jnp.where(live, found.cut(right) - int(not later), -1)
        rows = found.row_at(places)
        inside = rows >= 0
        its_time, *its_group = fetch(axis, [b_time, *b_group], found.b.counts, rows, [None] * (1 + len(b_group)))
        for x, y in zip(group, its_group, strict=True):
            inside &= ordered_integers(x) == ordered_integers(y)
        return jnp.where(inside & ~is_nan(its_time), rows, -1)

    def time_at(rows: jax.Array) -> jax.Array:
        return fetch(axis, [b_time], found.b.counts, rows, [None])[0]

    return problem.nearest(time, time_at, beside_cut)
