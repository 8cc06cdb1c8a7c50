"""Ragged batches over a mesh axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.counts import count_of, heads_inside
from jax_mgpu._src.arguments.preconditions import by_construction, segments_fit
from jax_mgpu._src.arguments.segments import GivenSegments
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.keys.bits import keeping_bits
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.exchange import by_size, everywhere
from jax_mgpu._src.mesh.ranges import OverAxis, pieces
from jax_mgpu._src.mesh.remote_gather import fetch
from jax_mgpu._src.mesh.segments import segmented_sort, segmented_sort_indices
from jax_mgpu._src.ops.intervals import gather_rows
from jax_mgpu._src.ops.join import saturated_offsets
from jax_mgpu._src.ops.load_balance import load_balance_search
from jax_mgpu._src.ops.order_statistics import _segmented_order_statistics
from jax_mgpu._src.ops.ranks import TopK, _select_first_of_segments
from jax_mgpu._src.ops.scan import covered


def to_dense(
    axis: Axis, given: GivenSegments, rows: Sequence[jax.Array], fills: Sequence[jax.Array], *, width: int
) -> list[jax.Array]:
    """Returns the m segments that start on this device, with `width` slots each: `[m width, elements]` per array."""
    segments = OverAxis(axis, given)
    begin = segments_fit(axis.operation, segments.begin, lambda: segments.end - segments.begin, width)
    return segments.take(rows, segments.firsts(segments.end - begin, width).reshape(-1), fills)


def take_segments(
    axis: Axis,
    given: GivenSegments,
    rows: Sequence[jax.Array],
    order: jax.Array,
    fills: Sequence[jax.Array],
    *,
    size: int,
) -> tuple[list[jax.Array], jax.Array, jax.Array]:
    """Returns segments one after the other: their items, offsets and total.

    `order` has the numbers of the segments that this device asks for; the segments of all devices are numbered in turn.
    """
    segments = OverAxis(axis, given)
    bounds = [segments.begin, segments.end - segments.begin]
    numbers, most = axis.gather(segments.own), order.shape[0] * axis.size * given.n

    def gathered() -> tuple[list[jax.Array], jax.Array, jax.Array]:
        starts, lengths = (take_or_fill(everywhere(axis, x, numbers)[0], order) for x in bounds)
        offsets, total = saturated_offsets(lengths, most)
        runs = {"starts": starts, "offsets": offsets, "total": total[None]}
        every = [keeping_bits(lambda x, lives: everywhere(axis, x, lives)[0], x, segments.lives) for x in rows]
        pairs = zip(every, fills, strict=True)
        items = [gather_rows(x=x, **runs, fill_value=fill, size=size, disjoint=False)[0] for x, fill in pairs]
        return items, offsets, total

    def spread() -> tuple[list[jax.Array], jax.Array, jax.Array]:
        starts, lengths = fetch(axis, bounds, numbers, order, [None, None])
        offsets, total = saturated_offsets(lengths, most)
        with by_construction():
            owner, rank = load_balance_search(offsets, size, total=jnp.minimum(total, size), return_rank=True)
        wanted = jnp.where(owner >= 0, take_or_fill(starts, owner) + rank.astype(starts.dtype), -1)
        return segments.take(rows, wanted, fills), offsets, total

    return by_size(axis, given.n, gathered, spread)()


def segmented_top_k(axis: Axis, given: GivenSegments, x: jax.Array, k: int, largest: bool) -> TopK:
    """Returns up to k first items of each segment that starts on this device."""
    segments = OverAxis(axis, given)
    begin, end = segments.begin, segments.end
    taken = jnp.minimum(end - begin, k)

    def gathered() -> list[jax.Array]:
        rows, _, total = everywhere(axis, x, segments.lives)
        return _select_first_of_segments(x=rows, begins=begin, ends=end, count=total, k=k, largest=largest)

    def spread() -> list[jax.Array]:
        options: dict[str, Any] = {"descending": largest, "count": count_of(given.count)}
        with by_construction():
            ordered, order = segmented_sort_indices(axis, x, *heads_or_flags(axis, given), **options)
        nothing = jnp.full((1,), -1, order.dtype)
        return segments.take([ordered, order], segments.firsts(taken, k), [None, nothing])

    values, indices = by_size(axis, given.n, gathered, spread)()
    return TopK(values, indices, taken)


def ordered_items(
    axis: Axis, given: GivenSegments, x: jax.Array
) -> tuple[jax.Array, jax.Array, Callable[[jax.Array], jax.Array]]:
    """Returns where this device's m segments begin and end, and a function from ranks to items.

    The function takes ranks within the segments, `[k, m]`, and returns the items at these ranks.
    """
    segments = OverAxis(axis, given)
    begin, end = segments.begin, segments.end

    def gathered(ranks: jax.Array) -> jax.Array:
        rows, _, total = everywhere(axis, x, segments.lives)
        return _segmented_order_statistics(x=rows, begins=begin, ends=end, ranks=ranks, count=total)[0]

    def spread(ranks: jax.Array) -> jax.Array:
        options: dict[str, Any] = {"descending": False, "count": count_of(given.count)}
        with by_construction():
            ordered = segmented_sort(axis, x, *heads_or_flags(axis, given), None, **options)
        return segments.take([ordered], begin[None] + ranks, [None])[0]

    return begin, end, by_size(axis, given.n, gathered, spread)


def heads_or_flags(axis: Axis, given: GivenSegments) -> tuple[jax.Array, jax.Array]:
    """Returns segments as heads or as flags, the other absent, as a sort takes them."""
    return (given.heads, ABSENT) if given.ends is None else (ABSENT, flags_of_gaps(axis, given))


def flags_of_gaps(axis: Axis, given: GivenSegments) -> jax.Array:
    """Flags starts of segments and each item of a gap, so that a sort leaves gaps in place."""
    turns = pieces(axis, given)
    gaps = ~covered(given.n, turns)
    return gaps.at[heads_inside(turns[2::2], given.n)].set(True, mode="drop", wrap_negative_indices=False)
