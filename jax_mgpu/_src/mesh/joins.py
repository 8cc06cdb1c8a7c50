"""Joins over a mesh axis: partners are found where both keys are aligned, and rows are dealt out by their rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.check import INT32_LIMIT
from jax_mgpu._src.join import KINDS, JoinResult
from jax_mgpu._src.live import live_items
from jax_mgpu._src.load_balance import load_balance_search
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.exchange import exchange
from jax_mgpu._src.mesh.moves import Share, begins_of, deal, fetch, put
from jax_mgpu._src.mesh.pairs import aligned_pair
from jax_mgpu._src.mesh.sorts import sort_indices
from jax_mgpu._src.preconditions import by_construction, room
from jax_mgpu._src.primitive import ABSENT
from jax_mgpu._src.select import positions
from jax_mgpu._src.sort import Method
from jax_mgpu._src.tables import saturated_offsets
from jax_mgpu._src.values import take_or_fill

__all__ = ["join", "join_columns"]


class _Side:
    """A table's keys in order, and the way back to its rows."""

    def __init__(self, axis: Axis, keys: jax.Array, count: Any, dtype: Any, *, is_sorted: bool):
        self.axis, self.n = axis, keys.shape[0]
        self.live = live_items(self.n, count, dtype)
        self.counts = axis.gather(self.live)
        self.keys, self.order, self.sorted_counts = keys, None, self.counts
        if not is_sorted:
            options: dict[str, Any] = {"even": True, "method": Method.FASTEST, "bits": None}
            with by_construction():
                found = sort_indices(axis, keys, descending=False, count=self.live, **options)
            self.keys, self.order, live = found
            self.sorted_counts = axis.gather(live.astype(dtype))

    @property
    def sorted_count(self) -> jax.Array:
        """The live keys of this device, as an operand."""
        return self.sorted_counts[self.axis.index].reshape(1)

    def to_rows(self, parts: Any, found: list[jax.Array]) -> list[jax.Array]:
        """What was found for aligned keys, at the rows that these belong to; anything past the live ones."""
        back = found if parts is None else exchange(parts.back(self.n), found)
        if self.order is None:
            return back
        live = jnp.arange(self.n) < self.sorted_count
        rows, slots = put(self.axis, back, jnp.where(live, self.order, -1), self.counts, self.n)
        return [jnp.zeros_like(x).at[slots].set(x, mode="drop", unique_indices=True) for x in rows]


def join(
    axis: Axis,
    a: jax.Array,
    b: jax.Array,
    a_count: Any,
    b_count: Any,
    *,
    kind: str,
    size: int,
    is_sorted: bool,
    null_equal: bool,
    aligned: bool,
) -> JoinResult:
    """Each device's even share of the rows."""
    name, n_a, n_b = axis.operation, a.shape[0], b.shape[0]
    dtype = axis.index_dtype("a and b", n_a + n_b)
    of_a, of_b = (_Side(axis, x, count, dtype, is_sorted=is_sorted) for x, count in ((a, a_count), (b, b_count)))
    pair, parts = aligned_pair(axis, of_a.keys, of_b.keys, of_a.sorted_count, of_b.sorted_count, aligned=aligned)
    a_parts, b_parts = (None, None) if parts is None else parts

    def partners(side: int) -> jax.Array:
        number, keys = pair.number(side), pair.keys[side]
        if null_equal or not jnp.issubdtype(keys.dtype, jnp.floating):
            return number
        return jnp.where(jnp.isnan(keys), 0, number)

    first, number = of_a.to_rows(a_parts, [pair.lower(0), partners(0)])
    a_live = jnp.arange(n_a) < of_a.live
    if kind in KINDS:
        keep_a, keep_b = KINDS[kind]
        made = jnp.where(a_live, jnp.maximum(number, 1) if keep_a else number, 0)
    else:
        keep_b = False
        made = jnp.where(a_live, (number > 0) == (kind == "semi"), False)
        number = jnp.zeros_like(number)
    rows = (axis.size * max(1, n_a)) * (axis.size * max(1, n_b)) + axis.size * (n_a + n_b)
    made = made.astype(jnp.int64 if rows >= INT32_LIMIT and jax.config.jax_enable_x64 else jnp.int32)
    largest = jnp.asarray(jnp.iinfo(made.dtype).max, made.dtype)

    def saturated(x: jax.Array, y: jax.Array) -> jax.Array:
        return x + jnp.minimum(y, largest - x)

    starts, own = saturated_offsets(made)
    before, paired = saturated_offsets(axis.gather(own))
    begins = saturated(before[axis.index], starts)
    total = paired
    if keep_b:
        b_number = of_b.to_rows(b_parts, [partners(1)])[0]
        alone, alone_count = positions(b_number == 0, of_b.live.reshape(1), n_b)
        alone_counts = axis.gather(alone_count.astype(made.dtype))
        total = saturated(paired, alone_counts.sum(dtype=made.dtype))
    share = Share(axis, total, size)

    kept, _ = positions(made > 0, ABSENT, n_a)
    a_index = begins_of(of_a.counts)[axis.index] + kept.astype(dtype)
    begins, ends = (take_or_fill(x, kept, largest[None]) for x in (begins, saturated(begins, made)))
    leaves = [a_index, *(take_or_fill(x, kept) for x in (first, number)), begins]
    (a_index, first, number, begins), items = deal(axis, leaves, begins, ends, share, size)
    slots = jnp.arange(size, dtype=made.dtype)
    starts = jnp.where(slots < items.astype(made.dtype), jnp.clip(begins - share.low, 0, size), size)
    here = jnp.clip(paired - share.low, 0, jnp.minimum(share.count, size))
    with by_construction():
        owner = load_balance_search(starts, size, total=here)
    rank = (share.low + slots - take_or_fill(begins, owner)).astype(dtype)
    partner = jnp.where((owner >= 0) & (rank < take_or_fill(number, owner)), take_or_fill(first, owner) + rank, -1)
    if of_b.order is not None:
        partner = fetch(axis, [of_b.order.astype(dtype) + 1], of_b.sorted_counts, partner, [None])[0] - 1
    a_rows = take_or_fill(a_index + 1, owner) - 1
    if keep_b:
        b_index = begins_of(of_b.counts)[axis.index] + alone.astype(dtype)
        places = jnp.arange(n_b, dtype=made.dtype)
        is_alone = places < alone_count.astype(made.dtype)
        places = saturated(saturated(paired, begins_of(alone_counts)[axis.index]), places)
        begins, ends = (jnp.where(is_alone, x, largest) for x in (places, saturated(places, jnp.ones_like(places))))
        (b_index,), items = deal(axis, [b_index], begins, ends, share, size)
        behind = slots - here
        is_alone = (behind >= 0) & (behind < items.astype(made.dtype))
        partner = jnp.where(is_alone, take_or_fill(b_index, behind), partner)
    return JoinResult(a_rows, partner, room(name, share.count, size))


def join_columns(
    axis: Axis,
    indices: jax.Array,
    leaves: Sequence[jax.Array],
    fills: Sequence[jax.Array],
    count: Any,
) -> tuple[list[jax.Array], jax.Array]:
    """The rows of a table at global indices, and where there are none."""
    n = leaves[0].shape[0]
    counts = axis.gather(axis.live("columns", n, count))
    is_null = (indices < 0) | (indices >= counts.sum(dtype=counts.dtype))
    return fetch(axis, leaves, counts, indices, fills), is_null
