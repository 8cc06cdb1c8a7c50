"""Joins over a mesh axis: both sides' keys are aligned to find partners, and rows are distributed by their rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.annotations import DTypeLike, JoinKind
from jax_mgpu._src.arguments.check import INT32_LIMIT
from jax_mgpu._src.arguments.counts import live_items, of_all
from jax_mgpu._src.arguments.preconditions import by_construction, room
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.core.compat import cond, has_64_bits
from jax_mgpu._src.keys.bits import as_columns
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.exchange import by_platform
from jax_mgpu._src.mesh.hash_repartition import meet, with_room
from jax_mgpu._src.mesh.pairs import AlignedPair, copies_of, pair_of
from jax_mgpu._src.mesh.remote_gather import Share, begins_of, deal, deal_from, fetch, put
from jax_mgpu._src.mesh.sorts import sort, sort_indices
from jax_mgpu._src.ops.join import KINDS, JoinResult, expanded_rows, rows_by_key, saturated_offsets
from jax_mgpu._src.ops.join import join as local_join
from jax_mgpu._src.ops.load_balance import load_balance_search
from jax_mgpu._src.ops.select import positions

__all__ = ["Side", "join", "join_columns"]

T = TypeVar("T")


class Side:
    """A table's sorted keys, which can send results back to its rows.

    If a side `only_asks`, no keys are looked up in it. Then its rows stay in place if all devices can read the other
    side's keys, because the rows' keys may be looked up in any order.
    """

    def __init__(
        self,
        axis: Axis,
        keys: jax.Array,
        count: jax.Array,
        dtype: DTypeLike,
        *,
        is_sorted: bool,
        only_asks: bool = False,
    ):
        self.axis, self.n, self.only_asks = axis, keys.shape[0], only_asks
        self.live = live_items(self.n, count, dtype)
        self.counts = axis.gather(self.live)
        self.keys, self.order, self.sorted_counts = keys, None, self.counts
        if not is_sorted:
            self.keys, self.order, live = self._by_platform(self._kept, self._sorted)(keys)
            self.sorted_counts = axis.gather(live.astype(dtype))

    def _by_platform(self, kept: Callable[..., T], moved: Callable[..., T]) -> Callable[..., T]:
        """Returns a call of `kept` if rows stay in place, else of `moved`."""
        if not self.only_asks:
            return moved
        kept, moved = (lambda x, form=form: jax.tree.map(self.axis.varying, form(x)) for form in (kept, moved))
        return by_platform(self.axis, kept, moved)

    def _kept(self, keys: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return keys, jnp.zeros((self.n,), self.live.dtype), self.live

    def _sorted(self, keys: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        with by_construction():
            sorted_keys, order, live = sort_indices(self.axis, keys, count=self.live)
        return sorted_keys, order, live

    @property
    def begin(self) -> jax.Array:
        """The global index of this device's first row."""
        return begins_of(self.counts)[self.axis.index]

    @property
    def sorted_count(self) -> jax.Array:
        """The live keys of this device, as an operand."""
        return self.sorted_counts[self.axis.index].reshape(1)

    def to_rows(self, found: list[jax.Array]) -> list[jax.Array]:
        """Moves results for sorted keys back to the rows of the keys; results past the live rows are unspecified."""
        if self.order is None:
            return found
        live = jnp.arange(self.n) < self.sorted_count
        places = jnp.where(live, self.order, -1)

        def moved(found: list[jax.Array]) -> list[jax.Array]:
            rows, slots = put(self.axis, found, places, self.counts, self.n)
            return [jnp.zeros_like(x).at[slots].set(x, mode="drop", unique_indices=True) for x in rows]

        results: list[jax.Array] = self._by_platform(lambda found: found, moved)(found)
        return results


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
    """Returns each device's equal share of the result's rows.

    For aligned tables, unless rows of b are kept, a device instead gets the rows that its own rows of a make.
    """
    dtype = axis.index_dtype("a and b", a.shape[0] + b.shape[0])
    given: dict[str, Any] = {"kind": kind, "size": size, "is_sorted": is_sorted, "aligned": aligned}
    slots = with_room(size if kind in KINDS else a.shape[0])
    if is_sorted or (axis.size * slots >= INT32_LIMIT and not has_64_bits()):
        a_indices, b_indices, count = _by_partners(axis, a, b, a_count, b_count, dtype, **given)
        return JoinResult(a_indices, b_indices, room(axis.operation, count, size))
    lives = [live_items(x.shape[0], count, dtype) for x, count in ((a, a_count), (b, b_count))]
    met = meet(axis, (a, b), lives, [axis.begin(axis.gather(live)) for live in lives])
    a_rows, b_rows, count = rows_by_key(axis.operation, kind, met.codes, met.rows, met.counts, slots)
    rows_fit = jnp.max(axis.gather(count)) <= slots

    def in_order() -> tuple[jax.Array, jax.Array, jax.Array]:
        return _in_order_of_rows(axis, a_rows, b_rows, count, kind, a.shape[0], b.shape[0], size)

    def by_partners() -> tuple[jax.Array, jax.Array, jax.Array]:
        return _by_partners(axis, a, b, a_count, b_count, dtype, **given)

    a_indices, b_indices, count = cond(of_all(met.fits & rows_fit), in_order, by_partners)
    return JoinResult(a_indices, b_indices, room(axis.operation, count, size))


def _in_order_of_rows(
    axis: Axis, a_rows: jax.Array, b_rows: jax.Array, count: jax.Array, kind: str, n_a: int, n_b: int, size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns each device's share of the rows, in the order of a's rows, followed by rows of b without a partner."""
    of_a, dtype = axis.size * n_a, a_rows.dtype
    keep_b = KINDS.get(kind, (False, False))[1]
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


def _by_partners(
    axis: Axis,
    a: jax.Array,
    b: jax.Array,
    a_count: jax.Array,
    b_count: jax.Array,
    dtype: DTypeLike,
    *,
    kind: JoinKind,
    size: int,
    is_sorted: bool,
    aligned: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Joins by the partners of each row of a: both sides are aligned, and searches find the partners.

    It works for any number of copies of a key, and with fewer slots than rows.
    """
    n_a, n_b = a.shape[0], b.shape[0]
    keep_a, keep_b = KINDS.get(kind, (False, False))
    of_a = Side(axis, a, a_count, dtype, is_sorted=is_sorted, only_asks=not keep_b)
    of_b = Side(axis, b, b_count, dtype, is_sorted=is_sorted)
    pair = pair_of(axis, of_a.keys, of_b.keys, of_a.sorted_count, of_b.sorted_count, aligned=aligned)

    def rows_made() -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns, for each row of a, the number of its result rows, where its partners begin, and their number."""
        low, high = pair.lower_and_upper(0)
        first, number = of_a.to_rows([low, high - low])
        made = jnp.maximum(number, 1) if keep_a else number
        if kind not in KINDS:
            made, number = ((number > 0) == (kind == "semi")).astype(dtype), jnp.zeros_like(number)
        made = jnp.where(jnp.arange(n_a) < of_a.live, made, 0)
        return made.astype(_count_dtype(axis, n_a, n_b)), first, number

    if isinstance(pair, AlignedPair) and not keep_b:
        return _of_own_rows(axis, pair, rows_made, kind, size)
    made, first, number = rows_made()
    starts, own = saturated_offsets(made)
    before, paired = saturated_offsets(axis.gather(own))
    begins = _saturated(before[axis.index], starts)
    alone = None
    total = paired
    if keep_b:
        is_alone = of_b.to_rows([copies_of(pair, 1)])[0] == 0
        alone = _Alone(axis, is_alone, of_b, paired)
        total = alone.total
    share = Share.even(axis, total, size)

    # If no row of a without a partner is kept, each result row of a row of a has a partner, and no numbers are needed.
    leaves = [first, number] if keep_a or kind not in KINDS else [first]
    leaves = [of_a.begin + jnp.arange(n_a, dtype=dtype), *leaves]
    following = jnp.append(before, paired)[axis.index + 1]
    (a_index, first, *numbers), begins, items = deal_from(axis, leaves, begins, following, share, size)
    item = jnp.arange(begins.shape[0], dtype=made.dtype)
    starts = jnp.where(item < items.astype(made.dtype), jnp.clip(begins - share.low, 0, size), size)
    slots = jnp.arange(size, dtype=made.dtype)
    here = jnp.clip(paired - share.low, 0, jnp.minimum(share.count, size))
    with by_construction():
        owner = load_balance_search(starts, size, total=here)
    rank = (share.low + slots - take_or_fill(begins, owner)).astype(dtype)
    is_pair = owner >= 0
    for number in numbers:
        is_pair &= rank < take_or_fill(number, owner)
    partner = jnp.where(is_pair, take_or_fill(first, owner) + rank, -1)
    if of_b.order is not None:
        partner = fetch(axis, [of_b.order.astype(dtype) + 1], of_b.sorted_counts, partner, [None])[0] - 1
    if alone is not None:
        partner = alone.behind(partner, share, here)
    return take_or_fill(a_index, owner, -1), partner, share.count


def _of_own_rows(
    axis: Axis, pair: AlignedPair, rows_made: Callable[[], Any], kind: JoinKind, size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the result rows of this device's rows of a: by a local join if no key has copies on several devices."""
    (a, b), (a_begin, b_begin) = pair.keys, pair.before

    def placed(x: jax.Array, begin: jax.Array) -> jax.Array:
        return jnp.where(x < 0, -1, x.astype(pair.dtype) + begin)

    def own() -> tuple[jax.Array, jax.Array, jax.Array]:
        counts: dict[str, Any] = {"a_count": pair.live[0], "b_count": pair.live[1]}
        with by_construction():
            found = local_join(as_columns(a), as_columns(b), kind, size=size, **counts)
        count = found.count.astype(_count_dtype(axis, a.shape[0], b.shape[0]))
        return placed(found.a_indices, a_begin), placed(found.b_indices, b_begin), count

    def by_ranks() -> tuple[jax.Array, jax.Array, jax.Array]:
        made, first, number = rows_made()
        rows, places, count = expanded_rows(made, first, number, size)
        return placed(rows, a_begin), places, count

    return cond(pair.is_apart(axis), own, by_ranks)


class _Alone:
    """The rows of b without a partner, which follow those of a, with one result row each."""

    def __init__(self, axis: Axis, is_alone: jax.Array, of_b: Side, paired: jax.Array):
        self.axis = axis
        kept, count = positions(is_alone, of_b.live.reshape(1), of_b.n)
        counts = axis.gather(count.astype(paired.dtype))
        self.total = _saturated(paired, counts.sum(dtype=paired.dtype))
        self.index = of_b.begin + kept.astype(of_b.begin.dtype)
        rows = jnp.arange(of_b.n, dtype=paired.dtype)
        ranks = _saturated(_saturated(paired, begins_of(counts)[axis.index]), rows)
        live, past = rows < counts[axis.index], jnp.iinfo(paired.dtype).max
        self.begins, self.ends = (
            jnp.where(live, x, past) for x in (ranks, _saturated(ranks, jnp.ones((), ranks.dtype)))
        )

    def behind(self, partner: jax.Array, share: Share, here: jax.Array) -> jax.Array:
        """Returns the partners of this device's result rows, of which the first ones are pairs."""
        (index,), items = deal(self.axis, [self.index], self.begins, self.ends, share, partner.shape[0])
        row = jnp.arange(partner.shape[0], dtype=here.dtype) - here
        return jnp.where((row >= 0) & (row < items.astype(row.dtype)), take_or_fill(index, row), partner)


def _count_dtype(axis: Axis, n_a: int, n_b: int) -> Any:
    """Returns the dtype of numbers of rows, which is that of a join on one device."""
    rows = axis.size * max(1, n_a) * axis.size * max(1, n_b) + axis.size * (n_a + n_b)
    return jnp.int64 if rows >= INT32_LIMIT and has_64_bits() else jnp.int32


def _saturated(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the sum, saturated at the largest number of its type."""
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
