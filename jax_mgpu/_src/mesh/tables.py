"""Searches, lookups and as-of joins over a mesh axis: rows' keys are looked up among sorted keys of all devices."""

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
from jax_mgpu._src.mesh.lookups import Lookup, by_lookup
from jax_mgpu._src.mesh.ranges import OverAxis, item_codes
from jax_mgpu._src.mesh.remote_gather import fetch
from jax_mgpu._src.mesh.segments import segment_ids
from jax_mgpu._src.ops.tables import AsofJoin
from jax_mgpu._src.ops.unsorted_pairs import is_nan


def search(axis: Axis, pair: KeyPair, *, right: bool) -> jax.Array:
    """Returns each needle's insertion point in the global haystack, on the needle's device."""
    return by_lookup(axis, pair.codes, (False, True), lambda found: found.cut(right))


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
    """Searches within segments: items are in the order of segments, then of keys."""
    number = axis.sum(OverAxis(axis, segments).own)
    is_inside = live_mask(ids.shape[0], needles_count) & (ids >= 0) & (ids < number.astype(ids.dtype))
    if segments.ends is None:
        of_items = segment_ids(axis, segments.heads, segments.n, segments.count)
        own = jnp.where(is_inside, ids, -1).astype(of_items.dtype)
    else:  # gaps have numbers too, and all keys in gaps become equal
        of_items = item_codes(axis, segments)
        own = jnp.where(is_inside, 2 * ids.astype(of_items.dtype) + 2, -1)
        haystack = [jnp.where(of_items % 2 == 0, x, jnp.zeros((), x.dtype)) for x in haystack]
    with by_construction():  # the order within segments is checked
        counts = count_of(needles_count), count_of(segments.count)
        pair = sorted_pair(axis.operation, (own, *needles), (of_items, *haystack), *counts)
    return jnp.where(is_inside, search(axis, pair, right=right), -1)


def lookup(axis: Axis, pair: KeyPair, leaves: Sequence[jax.Array], fills: Sequence[jax.Array]) -> list[jax.Array]:
    """Returns the values of each key's row of the table, from that row's device."""
    rows = by_lookup(axis, pair.codes, (False, False), lambda found: found.row_at(found.first_equal()))
    return fetch(axis, leaves, axis.gather(axis.live("table_keys", leaves[0].shape[0], pair.b_count)), rows, fills)


def asof_join(axis: Axis, problem: AsofJoin) -> jax.Array:
    """Returns the global row of b for each row of a."""
    (time, b_time), (group, b_group) = problem.times, problem.groups
    known = problem.is_sorted and not group
    counts = axis.gather(axis.live("b", b_time.shape[0], problem.counts[1]))
    live = live_mask(time.shape[0], problem.counts[0]) & ~is_nan(time)

    def time_at(rows: jax.Array) -> jax.Array:
        return fetch(axis, [b_time], counts, rows, [None])[0]

    def nearest(found: Lookup) -> jax.Array:
        def beside_cut(right: bool, later: bool) -> jax.Array:
            rows = found.row_at(jnp.where(live, found.cut(right) - int(not later), -1))
            inside = rows >= 0
            its_time, *its_group = fetch(axis, [b_time, *b_group], counts, rows, [None] * (1 + len(b_group)))
            for x, y in zip(group, its_group, strict=True):
                inside &= ordered_integers(x) == ordered_integers(y)
            return jnp.where(inside & ~is_nan(its_time), rows, -1)

        return problem.nearest(time, time_at, beside_cut)

    pair = KeyPair(problem.name, *problem.keys, *problem.counts)
    return by_lookup(axis, pair.code_operands if known else pair.codes, (known, known), nearest)
