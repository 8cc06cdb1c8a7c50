"""Joins over a mesh axis: by ranges of sorted keys, by buckets of hashed keys, or by searches for partners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.annotations import JoinKind
from jax_mgpu._src.arguments.check import INT32_LIMIT
from jax_mgpu._src.arguments.counts import live_items, of_all
from jax_mgpu._src.arguments.preconditions import by_construction, room
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.core.compat import cond, has_64_bits, stack
from jax_mgpu._src.keys.bits import as_columns
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.exchange import Parts, by_platform, everywhere, exchange
from jax_mgpu._src.mesh.hash_repartition import meet, with_room
from jax_mgpu._src.mesh.lookups import Gathered, Lookup, Moved
from jax_mgpu._src.mesh.pairs import AlignedPair
from jax_mgpu._src.mesh.remote_gather import Dealt, Share, begins_of, deal, fetch
from jax_mgpu._src.mesh.sorts import sort
from jax_mgpu._src.mesh.splitters import Sorted, order_codes, search
from jax_mgpu._src.ops.join import KINDS, JoinResult, expanded_rows, rows_by_key, saturated_offsets
from jax_mgpu._src.ops.join import join as local_join
from jax_mgpu._src.ops.select import positions

Rows = tuple[jax.Array, jax.Array, jax.Array]  # indices of a and of b, and their number


def keeps_b(kind: str) -> bool:
    """Whether rows of b without a partner are kept."""
    return KINDS.get(kind, (False, False))[1]


def join(
    axis: Axis,
    a: jax.Array,
    b: jax.Array,
    a_count: jax.Array,
    b_count: jax.Array,
    *,
    kind: JoinKind,
    size: int,
    is_sorted: bool,
    aligned: bool,
) -> JoinResult:
    """Returns this device's share of the result's rows.

    Shares differ by at most one row. But for aligned tables, a device gets the rows that its rows of a make, unless
    rows of b are kept.
    """
    operands = a, b, a_count, b_count

    def by_partners(lookup: Callable[..., Lookup] = Moved, **options: bool) -> Rows:
        found = lookup(axis, operands, (is_sorted, is_sorted), **options)
        return axis.varying(_by_partners(axis, found, kind, size))

    def in_place() -> Rows:
        """Joins unsorted tables by buckets; sorted ones by ranges or, to keep rows of b, by partners."""
        if not is_sorted:
            return _by_buckets(axis, operands, kind, size, by_partners)
        return by_partners() if keeps_b(kind) else _by_ranges(axis, operands, kind, size, by_partners)

    if aligned:
        rows = by_partners(aligned=True)
    else:
        is_long = axis.size * _slots(kind, a.shape[0], size) >= INT32_LIMIT and not has_64_bits()
        moved = by_partners if is_long else in_place
        forms = (
            lambda form=form: jax.tree.map(axis.varying, form()) for form in (lambda: by_partners(Gathered), moved)
        )
        rows = by_platform(axis, *forms)()
    a_indices, b_indices, count = rows
    return JoinResult(a_indices, b_indices, room(axis.operation, count, size))


def _slots(kind: str, n_a: int, size: int) -> int:
    return with_room(size if kind in KINDS else n_a)


def _by_ranges(
    axis: Axis, operands: Sequence[jax.Array], kind: JoinKind, size: int, by_partners: Callable[[], Rows]
) -> Rows:
    """Joins sorted tables where the rows of b are; by `by_partners` if a device has too little room.

    A key belongs to the first device whose last key of b is not less, or to the last device. Rows of a with this key
    are sent there, and so are rows of b with it that are on later devices.
    """
    keys, counts = operands[:2], operands[2:]
    dtype = axis.index_dtype("a and b", keys[0].shape[0] + keys[1].shape[0])
    lives = [live_items(x.shape[0], count, dtype) for x, count in zip(keys, counts, strict=True)]
    last = take_or_fill(keys[1], lives[1].reshape(1) - 1)  # any key if there is none
    lasts, b_counts = axis.gather((last, lives[1]))
    is_earlier = (b_counts > 0) & (axis.devices <= axis.devices[:, None])

    def edges(keys: jax.Array, live: jax.Array) -> jax.Array:
        """Returns where the rows for each device end."""
        found = search(Sorted(keys, jnp.zeros_like(live), live), order_codes(lasts.T, False), after_equals=True)
        return jnp.where(axis.devices + 1 < axis.size, jnp.max(jnp.where(is_earlier, found, 0), axis=1), live)

    every = axis.gather(stack([edges(x, live) for x, live in zip(keys, lives, strict=True)]))  # [from, side, to]
    every = jnp.concatenate([jnp.zeros_like(every[:, :, :1]), every], axis=2)
    needed = jnp.sum(every[:, :, 1:] - every[:, :, :-1], axis=0, dtype=dtype)  # [side, to]
    slots = [with_room(x.shape[0]) for x in keys]
    parts = [Parts.between(axis, every[:, side], slots[side]) for side in (0, 1)]
    (a,), (b,) = (exchange(p, [x]) for p, x in zip(parts, keys, strict=True))
    with by_construction():
        most = _slots(kind, keys[0].shape[0], size)
        totals: dict[str, Any] = {"a_count": parts[0].total, "b_count": parts[1].total}
        rows = local_join(as_columns(a), as_columns(b), kind, size=most, **totals)
    made = axis.gather(rows.count.astype(_count_dtype(axis, *(x.shape[0] for x in keys))))
    fits = jnp.all(jnp.max(needed, axis=1) <= jnp.asarray(slots, dtype)) & (jnp.max(made) <= most)

    def dealt() -> Rows:
        share, begins = Share.even(axis, made.sum(dtype=made.dtype), size), begins_of(made)[:, None]
        starts, ends = (jnp.clip(x - begins, 0, made[:, None]) for x in (share.lows, share.highs))
        parts = Parts(axis, starts, ends - starts, size)
        slot = jnp.arange(size, dtype=parts.sizes.dtype)
        found = []
        for side, x in enumerate(exchange(parts, [rows.a_indices, rows.b_indices])):
            firsts, index = begins_of(needed[side]), x.astype(dtype)
            row = index + firsts[0]
            for device in range(1, axis.size):
                row += jnp.where(slot >= parts.begins[device], firsts[device] - firsts[device - 1], 0)
            found.append(jnp.where((slot < parts.total) & (index >= 0), row, -1))
        return axis.varying((found[0], found[1], share.count))

    return cond(of_all(fits), dealt, by_partners)


def _by_buckets(
    axis: Axis, operands: Sequence[jax.Array], kind: JoinKind, size: int, by_partners: Callable[[], Rows]
) -> Rows:
    """Brings all rows of a key to one device, and joins there; by `by_partners` if a device has too little room."""
    a, b, *counts = operands
    dtype = axis.index_dtype("a and b", a.shape[0] + b.shape[0])
    lives = [live_items(x.shape[0], count, dtype) for x, count in zip((a, b), counts, strict=True)]
    met = meet(axis, (a, b), lives, [axis.begin(axis.gather(live)) for live in lives])
    slots = _slots(kind, a.shape[0], size)
    a_rows, b_rows, count = rows_by_key(axis.operation, kind, met.codes, met.rows, met.counts, slots)
    rows_fit = jnp.max(axis.gather(count)) <= slots

    def in_order() -> Rows:
        return axis.varying(_in_order_of_rows(axis, a_rows, b_rows, count, kind, a.shape[0], b.shape[0], size))

    return cond(of_all(met.fits & rows_fit), in_order, by_partners)


def _in_order_of_rows(
    axis: Axis, a_rows: jax.Array, b_rows: jax.Array, count: jax.Array, kind: str, n_a: int, n_b: int, size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns this device's share of rows, in a's order, followed by rows of b without a partner."""
    of_a, dtype = axis.size * n_a, a_rows.dtype
    keep_b = keeps_b(kind)
    ranks = a_rows.astype(f"uint{8 * dtype.itemsize}")
    if keep_b:
        ranks = jnp.where(a_rows < 0, of_a + b_rows.astype(ranks.dtype), ranks)
    bits = (of_a + (axis.size * n_b if keep_b else 0) - 1).bit_length()
    with by_construction():
        ranks, b_rows, live = sort(axis, ranks, b_rows, count=count, bits=max(1, bits))
    ranks, b_rows = (
        x[:size] if x.shape[0] >= size else jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, size - x.shape[0], 0)])
        for x in (ranks, b_rows)
    )
    is_row = jnp.arange(size, dtype=live.dtype) < live
    a_indices = jnp.where(is_row & (ranks < of_a), ranks.astype(dtype), -1)
    return a_indices, jnp.where(is_row, b_rows, -1), live.astype(_count_dtype(axis, n_a, n_b))


def _by_partners(axis: Axis, found: Lookup, kind: JoinKind, size: int) -> Rows:
    """Joins by the partners of each row of a, which searches find."""
    keep_a, keep_b = KINDS.get(kind, (False, False))
    (n_a, n_b), (a_live, b_live), dtype = found.lengths, found.lives, found.lives[0].dtype

    def rows_made() -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns, for each row of a, its number of result rows, where its partners begin, and their number."""
        first, number = found.equals()
        made = number  # 0 past the live rows
        if keep_a or kind not in KINDS:
            made = jnp.maximum(number, 1) if keep_a else ((number > 0) == (kind == "semi")).astype(dtype)
            made = jnp.where(jnp.arange(n_a) < a_live, made, 0)
        if kind not in KINDS:
            number = jnp.zeros_like(number)
        return made.astype(_count_dtype(axis, n_a, n_b)), first, number

    if isinstance(found, Moved) and isinstance(found.pair, AlignedPair) and not keep_b:
        return _of_own_rows(axis, found.pair, rows_made, kind, size)
    made, first, number = rows_made()
    a_begin, b_begin = found.begins()
    most = _most_rows(axis, n_a, n_b)
    starts, own = saturated_offsets(made, most)
    before, paired = saturated_offsets(axis.gather(own), most)
    begins = _saturated(axis.own(before), starts)
    alone = None
    total = paired
    if keep_b:
        alone = _Alone(axis, found.is_alone(), b_live, b_begin, paired)
        total = alone.total
    share = Share.even(axis, total, size)

    # If rows of a without a partner are dropped, the numbers of partners are not needed.
    leaves = [first, number] if keep_a or kind not in KINDS else [first]
    following = jnp.append(before, paired)[axis.index + 1]
    dealt = Dealt(axis, leaves, a_begin, begins, following, share, size)
    here = jnp.clip(paired - share.low, 0, jnp.minimum(share.count, size))
    owner, rank = dealt.owners(here)
    rank, (first, *numbers) = rank.astype(dtype), dealt.leaves
    is_pair = owner >= 0
    for number in numbers:
        is_pair &= rank < take_or_fill(number, owner)
    partner = jnp.where(is_pair, take_or_fill(first, owner) + rank, -1)
    partner = found.row_at(partner)
    if alone is not None:
        partner = alone.behind(partner, share, here)
    return dealt.numbers(owner), partner, share.count


def _of_own_rows(
    axis: Axis, pair: AlignedPair, rows_made: Callable[[], Any], kind: JoinKind, size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the result rows of this device's rows of a, by a local join if no key is on several devices."""
    (a, b), (a_begin, b_begin) = pair.keys, pair.before

    def placed(x: jax.Array, begin: jax.Array) -> jax.Array:
        return jnp.where(x < 0, -1, x.astype(pair.dtype) + begin)

    def own() -> tuple[jax.Array, jax.Array, jax.Array]:
        counts: dict[str, Any] = {"a_count": pair.live[0], "b_count": pair.live[1]}
        with by_construction():
            found = local_join(as_columns(a), as_columns(b), kind, size=size, **counts)
        count = found.count.astype(_count_dtype(axis, a.shape[0], b.shape[0]))
        return axis.varying((placed(found.a_indices, a_begin), placed(found.b_indices, b_begin), count))

    def by_ranks() -> tuple[jax.Array, jax.Array, jax.Array]:
        made, first, number = rows_made()
        rows, places, count = expanded_rows(made, first, number, size)
        return axis.varying((placed(rows, a_begin), places, count))

    return cond(pair.is_apart(axis), own, by_ranks)


class _Alone:
    """The rows of b without a partner, which follow those of a, one result row each."""

    def __init__(self, axis: Axis, is_alone: jax.Array, live: jax.Array, begin: jax.Array, paired: jax.Array):
        self._axis, self._paired = axis, paired
        kept, count = positions(is_alone, live.reshape(1), is_alone.shape[0])
        self._counts = axis.gather(count.astype(paired.dtype))
        self.total = _saturated(paired, self._counts.sum(dtype=paired.dtype))
        self._index = begin + kept.astype(begin.dtype)

    def behind(self, partner: jax.Array, share: Share, here: jax.Array) -> jax.Array:
        """Returns the partners of this device's result rows, of which the first `here` are pairs."""
        row = jnp.arange(partner.shape[0], dtype=here.dtype) - here
        if self._axis.shares_memory:
            index, items = everywhere(self._axis, self._index, self._counts)[0], share.count - here
            place = row + jnp.maximum(share.low - self._paired, 0)
        else:
            (index,), items = deal(self._axis, [self._index], *self._ranks(), share, partner.shape[0])
            place = row
        return jnp.where((row >= 0) & (row < items.astype(row.dtype)), take_or_fill(index, place), partner)

    def _ranks(self) -> tuple[jax.Array, jax.Array]:
        """Returns the ranks at which this device's rows begin and end in the result."""
        rows = jnp.arange(self._index.shape[0], dtype=self._paired.dtype)
        ranks = _saturated(_saturated(self._paired, self._axis.own(begins_of(self._counts))), rows)
        live, past = rows < self._axis.own(self._counts), jnp.iinfo(rows.dtype).max
        begins, ends = (jnp.where(live, x, past) for x in (ranks, _saturated(ranks, jnp.ones((), ranks.dtype))))
        return begins, ends


def _count_dtype(axis: Axis, n_a: int, n_b: int) -> Any:
    return jnp.int64 if _most_rows(axis, n_a, n_b) >= INT32_LIMIT and has_64_bits() else jnp.int32


def _most_rows(axis: Axis, n_a: int, n_b: int) -> int:
    return axis.size * max(1, n_a) * axis.size * max(1, n_b) + axis.size * (n_a + n_b)


def _saturated(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the sum, saturated at the largest number."""
    return x + jnp.minimum(y, jnp.asarray(jnp.iinfo(x.dtype).max, x.dtype) - x)


def join_columns(
    axis: Axis,
    indices: jax.Array,
    leaves: Sequence[jax.Array],
    fills: Sequence[jax.Array],
    count: jax.Array,
) -> tuple[list[jax.Array], jax.Array]:
    """Returns the rows of a table at global indices, and which of them are missing."""
    n = leaves[0].shape[0]
    counts = axis.gather(axis.live("columns", n, count))
    is_null = (indices < 0) | (indices >= counts.sum(dtype=counts.dtype))
    return fetch(axis, leaves, counts, indices, fills), is_null
