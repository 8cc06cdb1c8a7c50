"""Segments over a mesh axis as ranges of the global array, and as alternating segments and gaps."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.counts import wide_enough
from jax_mgpu._src.arguments.segments import GivenSegments
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.reductions import number_before, own_ends
from jax_mgpu._src.mesh.remote_gather import fetch
from jax_mgpu._src.ops.load_balance import _search
from jax_mgpu._src.ops.scan import heads_of_bounds


class OverAxis:
    """The segments that start on this device, by global positions.

    Attributes:
      lives: the live items of all devices.
      begin: `[m]`, where each segment begins.
      end: `[m]`, where each ends; without given ends, at the next head on any device or with the last item.
      own: how many of these segments are numbered: all if ends are given, else those that are no padding.
    """

    def __init__(self, axis: Axis, segments: GivenSegments):
        n, heads = segments.n, segments.heads
        live = axis.live("x", n, segments.count)
        self.axis, self.lives = axis, axis.gather(live)
        here, total = axis.begin_and_total(self.lives)
        if segments.ends is not None:
            _, begin, end = _own_ranges(axis, segments)
            self.begin, self.end = here + begin, jnp.minimum(here + end, total)
            self.own = jnp.full_like(live, segments.m)
            return
        starts, first, _, _ = own_ends(heads, n, live)
        firsts = axis.gather(jnp.where(starts, here + first, total))
        following = jnp.min(jnp.where(axis.devices > axis.index, firsts, total))
        is_own = heads < live.astype(heads.dtype)
        self.begin = jnp.where(is_own, here + jnp.maximum(heads, 0).astype(live.dtype), following)
        self.end = jnp.append(self.begin[1:], following)[: heads.shape[0]]
        self.own = number_before(heads, live.astype(heads.dtype)).astype(live.dtype)

    def firsts(self, lengths: jax.Array, width: int) -> jax.Array:
        """Returns the places of each segment's first items, `[m, width]`, -1 past their number."""
        slots = jnp.arange(width, dtype=self.begin.dtype)[None]
        return jnp.where(slots < lengths[:, None], self.begin[:, None] + slots, -1)

    def take(
        self, leaves: Sequence[jax.Array], places: jax.Array, fills: Sequence[jax.Array | None]
    ) -> list[jax.Array]:
        """Returns rows from global positions, in the shape of `places`."""
        found = fetch(self.axis, leaves, self.lives, places.reshape(-1), fills)
        return [x.reshape(*places.shape, *x.shape[1:]) for x in found]


def pieces(axis: Axis, segments: GivenSegments) -> jax.Array:
    """Returns `[2 m + 2]` local positions: in turn, where a segment and the gap after it start.

    The first pair is the local part of an earlier device's segment, which begins at 0 and may be empty.
    """
    live, begin, end = _own_ranges(axis, segments)
    here = axis.begin(axis.gather(live))
    turns = heads_of_bounds(begin, end)
    reached = axis.gather(here + (turns[-1] if segments.m else 0))
    rest = jnp.clip(jnp.max(jnp.where(axis.devices < axis.index, reached, 0)) - here, 0, live)
    return jnp.concatenate([jnp.zeros_like(rest)[None], rest[None], jnp.clip(turns, rest, live)])


def segment_ids(axis: Axis, segments: GivenSegments) -> jax.Array:
    """Returns each item's segment, numbered over all devices with m segments each; -1 outside of segments."""
    codes = item_codes(axis, segments)
    return jnp.where(codes % 2 == 0, codes // 2 - 1, -1)


def item_codes(axis: Axis, segments: GivenSegments) -> jax.Array:
    """Returns non-decreasing numbers: `2 i + 2` in segment i, one more in the gap after it, -1 past live items."""
    n, m = segments.n, segments.m
    dtype = axis.index_dtype("n", 2 * max(n, m) + 2)
    _, begin, end = _own_ranges(axis, segments)
    first = axis.index.astype(dtype) * m
    latest = jnp.max(jnp.where(end > begin, first + jnp.arange(m, dtype=dtype), -1), initial=-1)
    earlier = jnp.max(jnp.where(axis.devices < axis.index, axis.gather(latest), -1))
    (piece,) = _search(offsets=pieces(axis, segments), total=segments.count, size=n, return_rank=False)
    number = jnp.where(piece == 0, earlier, first + piece.astype(dtype) // 2 - 1)
    return jnp.where(piece < 0, -1, 2 * number + 2 + piece.astype(dtype) % 2)


def _own_ranges(axis: Axis, segments: GivenSegments) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the number of live items, and where segments begin and end, counted from this device's first item.

    Segments that start past the live items are padding, which is empty.
    """
    n = segments.n
    live = axis.live("x", n, segments.count)
    assert segments.ends is not None
    slots = (axis.size - axis.index).astype(live.dtype) * n  # of this device and of later ones
    begin, end = (
        jnp.clip(wide_enough(x, axis.size * n), 0, slots).astype(live.dtype) for x in (segments.heads, segments.ends)
    )
    own = jnp.minimum(begin, live)
    return live, own, jnp.where(begin < live, jnp.maximum(begin, end), own)
