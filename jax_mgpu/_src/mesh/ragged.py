"""Ragged batches over a mesh axis: rows of segments are fetched from their devices."""

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
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.ranges import OverAxis, pieces
from jax_mgpu._src.mesh.remote_gather import fetch
from jax_mgpu._src.mesh.segments import segmented_sort, segmented_sort_indices
from jax_mgpu._src.ops.join import saturated_offsets
from jax_mgpu._src.ops.load_balance import load_balance_search
from jax_mgpu._src.ops.ranks import TopK
from jax_mgpu._src.ops.scan import covered

__all__ = ["flags_of_gaps", "ordered_items", "segmented_top_k", "take_segments", "to_dense"]


def to_dense(
    axis: Axis, given: GivenSegments, rows: Sequence[jax.Array], fills: Sequence[jax.Array], *, width: int
) -> list[jax.Array]:
    """Returns the segments that start on this device, `[m width, elements]` each."""
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
    """Returns the segments that this device asks for, numbered over all devices."""
    segments = OverAxis(axis, given)
    bounds = [segments.begin, segments.end - segments.begin]
    starts, lengths = fetch(axis, bounds, axis.gather(segments.own), order, [None, None])
    offsets, total = saturated_offsets(lengths)
    with by_construction():
        owner, rank = load_balance_search(offsets, size, total=jnp.minimum(total, size), return_rank=True)
    wanted = jnp.where(owner >= 0, take_or_fill(starts, owner) + rank.astype(starts.dtype), -1)
    return segments.take(rows, wanted, fills), offsets, total


def segmented_top_k(axis: Axis, given: GivenSegments, x: jax.Array, k: int, largest: bool) -> TopK:
    """Returns the first k items of each segment by a sort of all segments."""
    options: dict[str, Any] = {"descending": largest, "count": count_of(given.count)}
    with by_construction():
        ordered, order = segmented_sort_indices(axis, x, *heads_or_flags(axis, given), **options)
    segments = OverAxis(axis, given)
    taken = jnp.minimum(segments.end - segments.begin, k)
    nothing = jnp.full((1,), -1, order.dtype)
    values, indices = segments.take([ordered, order], segments.firsts(taken, k), [None, nothing])
    return TopK(values, indices, taken)


def ordered_items(
    axis: Axis, given: GivenSegments, x: jax.Array
) -> tuple[jax.Array, jax.Array, Callable[[jax.Array], jax.Array]]:
    """Returns where this device's segments begin and end, and a function that gives items in order."""
    options: dict[str, Any] = {"descending": False, "count": count_of(given.count)}
    with by_construction():
        ordered = segmented_sort(axis, x, *heads_or_flags(axis, given), None, **options)
    segments = OverAxis(axis, given)
    return segments.begin, segments.end, lambda places: segments.take([ordered], places, [None])[0]


def heads_or_flags(axis: Axis, given: GivenSegments) -> tuple[jax.Array, jax.Array]:
    """Returns segments as heads or as flags, the other absent, as a sort takes them."""
    return (given.heads, ABSENT) if given.ends is None else (ABSENT, flags_of_gaps(axis, given))


def flags_of_gaps(axis: Axis, given: GivenSegments) -> jax.Array:
    """Flags starts of segments and each item of a gap, so that a sort leaves gaps in place."""
    turns = pieces(axis, given)
    gaps = ~covered(given.n, turns)
    return gaps.at[heads_inside(turns[2::2], given.n)].set(True, mode="drop", wrap_negative_indices=False)
