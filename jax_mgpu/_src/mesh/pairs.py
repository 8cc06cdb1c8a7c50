"""Operations on two sorted arrays over a mesh axis."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import ArrayLike, Pytree
from jax_mgpu._src.arguments.check import fill_operand
from jax_mgpu._src.arguments.counts import live_items, live_mask
from jax_mgpu._src.arguments.preconditions import by_construction, room
from jax_mgpu._src.arguments.rows import RowForm
from jax_mgpu._src.arguments.values import Payload, take_from_pair, take_or_fill
from jax_mgpu._src.core.compat import stack
from jax_mgpu._src.keys.bits import as_columns, is_words, keeping_bits, of_words, part_of, special_case
from jax_mgpu._src.keys.columns import KeyPair
from jax_mgpu._src.mesh.axis import Axis, before
from jax_mgpu._src.mesh.exchange import Parts, by_size, everywhere, exchange, exchange_together
from jax_mgpu._src.mesh.remote_gather import Share, from_all, slots_of
from jax_mgpu._src.mesh.splitters import (
    Sorted,
    Words,
    equal,
    even_edges,
    even_windows,
    order_codes,
    precede,
    search,
)
from jax_mgpu._src.mesh.visits import SortedPair, code_at
from jax_mgpu._src.ops.intervals import gather_rows
from jax_mgpu._src.ops.merge import _merge, merged, merged_runs
from jax_mgpu._src.ops.select import select_rows
from jax_mgpu._src.ops.sets import TAKES_B, Kind, SetCall, SetResult, _operate, set_leaves
from jax_mgpu._src.ops.sorted_search import SortedMatch, _search

# With `pairs`, a device's slots are a multiple of SLOTS: some of XLA's kernels are slow for odd lengths.
SLOTS = 32


def pair_parts(
    axis: Axis,
    arrays: Sequence[jax.Array],
    counts: Sequence[Any],
    *,
    pairs: bool = False,
    descending: bool = False,
    even: bool = True,
) -> list[Parts]:
    """Returns the parts that give all devices about equally many items of both arrays.

    Unless `even`, devices are filled from the first one on. Of equal items, those of the first array come first; with
    `pairs`, the r-th copies of a key stay together.
    """
    slots = pair_slots(sum(x.shape[0] for x in arrays), pairs=pairs)
    live = _live_counts(axis, arrays, counts, slots)
    every = axis.gather(stack(live))
    edges = even_edges(axis, _whole(arrays, live, descending), every, None if even else slots, pairs=pairs)
    parts = Parts.between(axis, edges, slots)
    return [jax.tree.map(lambda x, i=i: x[i], parts) for i in (0, 1)]


def pair_slots(items: int, *, pairs: bool) -> int:
    """Returns the number of a device's slots for parts; with `pairs`, a part may have an item more than its share."""
    return (items // SLOTS + 1) * SLOTS if pairs else items


def _live_counts(axis: Axis, arrays: Sequence[jax.Array], counts: Sequence[Any], slots: int) -> list[jax.Array]:
    dtype = axis.index_dtype("a and b", slots)
    return [live_items(x.shape[0], count, dtype) for x, count in zip(arrays, counts, strict=True)]


def _whole(arrays: Sequence[jax.Array], live: Sequence[jax.Array], descending: bool) -> list[Sorted]:
    return [Sorted(x, jnp.zeros_like(n), n, descending) for x, n in zip(arrays, live, strict=True)]


class AlignedPair:
    """Two sorted arrays in which no key on a device is greater than one on a later device.

    Each device searches among its own items. Copies of its least key may also lie on earlier devices, and of its
    greatest key on later ones: devices exchange the numbers of these copies.
    """

    def __init__(self, axis: Axis, keys: Sequence[jax.Array], live: Sequence[jax.Array]):
        self.axis, self.keys, self.live, self.dtype = axis, keys, live, live[0].dtype
        self.counts = axis.gather(stack(live))  # [devices, 2]
        self.before = axis.own(before(self.counts))
        self._codes_at: dict[bool, list[jax.Array]] = {}
        self._copies_at: dict[tuple[int, bool], jax.Array] = {}

    def _codes(self, side: int) -> list[jax.Array]:
        return order_codes(self.keys[side], False)

    def _end(self, smallest: bool) -> list[jax.Array]:
        """Returns the code of this device's least or greatest key."""
        if smallest not in self._codes_at:
            missing = ~0 if smallest else 0
            x, y = (
                code_at(self._codes(i), n, jnp.zeros_like(n) if smallest else n - 1, missing)
                for i, n in enumerate(self.live)
            )
            self._codes_at[smallest] = _chosen(precede(x, y) if smallest else precede(y, x), x, y)
        return self._codes_at[smallest]

    def _elsewhere(self, side: int, smallest: bool) -> jax.Array:
        """Counts a side's items on earlier (later) devices that equal this device's least (greatest) key.

        Each device counts its items for all devices.
        """
        if (side, smallest) not in self._copies_at:
            x, n = Sorted(self.keys[side], jnp.zeros_like(self.live[side]), self.live[side]), self.axis.index
            ends = [code[None] for code in self.axis.gather(self._end(smallest))]
            low, high = (search(x, ends, after_equals=after)[0] for after in (False, True))
            asking = self.axis.devices > n if smallest else self.axis.devices < n
            self._copies_at[side, smallest] = self.axis.own(self.axis.sum(jnp.where(asking, high - low, 0)))
        return self._copies_at[side, smallest]

    def is_apart(self, axis: Axis) -> jax.Array:
        """Whether each key is on one device alone; the same on all devices."""
        copies = [self._elsewhere(side, smallest) > 0 for side in (0, 1) for smallest in (True, False)]
        return axis.sum(jnp.any(stack(copies)).astype(jnp.int32)) == 0

    def cut(self, side: int, right: bool) -> jax.Array:
        """Counts, for each item, the other side's items that are less (if `right`, no greater); -1 if dead."""
        copies = self._copies(side, 1 - side, smallest=not right)
        found, before = self._search(side, 1 - side, right), self.before[1 - side]
        found += before + copies if right else before - copies
        return jnp.where(live_mask(found.shape[0], self.live[side].reshape(1)), found, -1)

    def equals(self, side: int) -> list[jax.Array]:
        """Returns, for each item of a side, how many of the other array are less, -1 if dead, and how many equal it."""
        low, high = (self.cut(side, right) for right in (False, True))
        return [low, high - low]

    def _copies(self, side: int, other: int, *, smallest: bool) -> jax.Array:
        """Returns, for each key of a side, the other side's copies on earlier devices, or on later ones."""
        return jnp.where(equal(self._codes(side), self._end(smallest)), self._elsewhere(other, smallest), 0)

    def rank(self, side: int) -> jax.Array:
        """Counts, for each item, the equal items before it in its array."""
        places = jnp.arange(self.keys[side].shape[0], dtype=self.dtype)
        return places - self._search(side, side, False) + self._copies(side, side, smallest=True)

    def _search(self, side: int, other: int, right: bool) -> jax.Array:
        """Returns the positions of this device's keys of one side among those of the other."""
        sides = (side, other)
        operands = (*(self.keys[i] for i in sides), *(self.live[i].reshape(1) for i in sides))
        return _search.run(operands, right=right)[0].astype(self.dtype)


def _chosen(first: jax.Array, codes: Words, others: Words) -> list[jax.Array]:
    return [jnp.where(first, x, y) for x, y in zip(codes, others, strict=True)]


def pair_of(
    axis: Axis, a: jax.Array, b: jax.Array, a_count: jax.Array, b_count: jax.Array, *, aligned: bool = False
) -> AlignedPair | SortedPair:
    """Returns both arrays in a form that finds places of each other's keys."""
    dtype = axis.index_dtype("a and b", a.shape[0] + b.shape[0])
    live = [live_items(x.shape[0], count, dtype) for x, count in ((a, a_count), (b, b_count))]
    return (AlignedPair if aligned else SortedPair)(axis, (a, b), live)


def copies_of(pair: AlignedPair | SortedPair, side: int) -> jax.Array:
    """Counts the items of the other array that equal each item; 0 past the live items."""
    return pair.equals(side)[1]


def align(
    axis: Axis,
    a: jax.Array,
    b: jax.Array,
    a_leaves: Sequence[jax.Array],
    b_leaves: Sequence[jax.Array],
    a_count: jax.Array,
    b_count: jax.Array,
    *,
    descending: bool,
) -> tuple[list[jax.Array], list[jax.Array], jax.Array, jax.Array]:
    """Distributes keys and leaves of both sides along the merge path; also returns this device's numbers of items."""
    return _dealt(axis, [a, *a_leaves], [b, *b_leaves], (a_count, b_count), descending=descending)


def _dealt(
    axis: Axis,
    a: list[jax.Array],
    b: list[jax.Array],
    counts: tuple[jax.Array, jax.Array],
    *,
    pairs: bool = False,
    descending: bool = False,
) -> tuple[list[jax.Array], list[jax.Array], jax.Array, jax.Array]:
    """Distributes the leaves of both sides, of which the first are the keys, as `pair_parts` says.

    Returns: This device's items of both sides, and their numbers.
    """
    slots = pair_slots(a[0].shape[0] + b[0].shape[0], pairs=pairs)

    def gathered(a: list[jax.Array], b: list[jax.Array], counts: tuple[jax.Array, jax.Array]) -> Any:
        live = _live_counts(axis, (a[0], b[0]), counts, slots)
        every = [axis.gather(x) for x in live]
        whole = _whole((a[0], b[0]), live, descending)
        edges, total, cuts, numbers = even_windows(axis, whole, every, pairs=pairs)
        ends = axis.size * a[0].shape[0], axis.size * (a[0].shape[0] + b[0].shape[0])
        moved = []
        for i, leaves in enumerate((a, b)):
            move = functools.partial(_window, axis, i, ends[i], slots)
            moved.append([keeping_bits(move, x, edges, total, cuts, numbers[i]) for x in leaves])
        return moved[0], moved[1], numbers[0], numbers[1]

    def spread(a: list[jax.Array], b: list[jax.Array], counts: tuple[jax.Array, jax.Array]) -> Any:
        a_parts, b_parts = pair_parts(axis, (a[0], b[0]), counts, pairs=pairs, descending=descending)
        return exchange(a_parts, a), exchange(b_parts, b), a_parts.total, b_parts.total

    form = by_size(axis, slots, gathered, spread) if axis.size > 1 and slots else spread
    moved: tuple[list[jax.Array], list[jax.Array], jax.Array, jax.Array] = form(a, b, counts)
    return moved


def _window(
    axis: Axis,
    side: int,
    end: int,
    slots: int,
    x: jax.Array,
    edges: jax.Array,
    total: jax.Array,
    cuts: jax.Array,
    length: jax.Array,
) -> jax.Array:
    """Returns this device's rows of one side, followed by 0; for devices that share their memory.

    Rows of all devices are first gathered to their places among the items of both sides. All places are below `end`.
    """
    form, n = RowForm(axis.operation, "x", x), x.shape[0]
    own, missing = np.arange(axis.size) * n, np.full(axis.size, axis.size * n)
    starts = np.concatenate([missing, own] if side else [own, missing])
    given: dict[str, Any] = {"fill_value": form.fill(0), "disjoint": True}
    every = {"starts": np.append(starts, axis.size * n).astype(edges.dtype), "offsets": edges, "total": total}
    rows = gather_rows(x=axis.gather_rows(form.pack("x", x)), size=end, **every, **given)[0]
    # The runs at other cuts are empty: XLA would compile a kernel to choose this side's cut.
    offsets = np.array([0, 0, 0, slots] if side else [0, slots, slots, slots], cuts.dtype)
    window = {"starts": cuts, "offsets": offsets, "total": length[None]}
    return form.unpack(gather_rows(x=rows, size=slots, **window, **given)[0])


def merge(
    axis: Axis,
    a: jax.Array,
    b: jax.Array,
    a_leaves: Sequence[jax.Array],
    b_leaves: Sequence[jax.Array],
    a_count: jax.Array,
    b_count: jax.Array,
    *,
    descending: bool,
    even: bool,
    aligned: bool,
) -> tuple[jax.Array, list[jax.Array], jax.Array]:
    """Merges arrays that are sorted over all devices; returns this device's keys, their leaves and number."""
    slots = a.shape[0] + b.shape[0]
    dtype = axis.index_dtype("a and b", slots)
    a_live, b_live = (live_items(x.shape[0], count, dtype) for x, count in ((a, a_count), (b, b_count)))
    if aligned or axis.size == 1:
        keys, leaves = _merged(a, b, a_leaves, b_leaves, a_live, b_live, slots, descending=descending)
        return keys, leaves, a_live + b_live

    def gathered(a: list[jax.Array], b: list[jax.Array]) -> tuple[list[jax.Array], jax.Array]:
        n_a, counts = axis.size * a[0].shape[0], axis.gather(stack([a_live, b_live]))
        order, number = _merge_order(axis, a[0], b[0], counts, even=even, descending=descending)
        pairs = zip(a, b, strict=True)
        return [take_from_pair(from_all(axis, x), from_all(axis, y), order, n_a) for x, y in pairs], number

    def spread(a: list[jax.Array], b: list[jax.Array]) -> tuple[list[jax.Array], jax.Array]:
        a_parts, b_parts = pair_parts(axis, (a[0], b[0]), (a_count, b_count), descending=descending, even=even)
        keys, *leaves = exchange_together([[a_parts], [b_parts.behind(a_parts)]], [a, b])
        ends = stack([a_parts.total, a_parts.total + b_parts.total])
        keys, leaves = merged_runs("merge", keys, leaves, ends, descending=descending, size=slots)
        return [keys, *leaves], ends[1]

    (keys, *leaves), number = by_size(axis, slots, gathered, spread)([a, *a_leaves], [b, *b_leaves])
    return keys, leaves, number


def _merge_order(
    axis: Axis, a: jax.Array, b: jax.Array, counts: jax.Array, *, even: bool, descending: bool
) -> tuple[jax.Array, jax.Array]:
    """Returns where the items of this device's share of the merged arrays are, and their number.

    Places count the slots of a on all devices, then those of b. Devices share their memory, and each merges all keys.
    """
    unused_a, unused_b = (x.shape[0] - counts[:, i] for i, x in enumerate((a, b)))
    (a, a_offsets, a_total), (b, b_offsets, b_total) = (
        everywhere(axis, jax.lax.stop_gradient(x), counts[:, i]) for i, x in enumerate((a, b))
    )
    n_a, n = a.shape[0], a.shape[0] + b.shape[0]
    given = {"a": a, "b": b, "a_count": a_total, "b_count": b_total, "descending": descending}
    order = _merge(**given, size=n, payload=Payload.INDICES)[1].astype(counts.dtype)
    share = (Share.even if even else Share.of_slots)(axis, a_total[0] + b_total[0], n // axis.size)
    places = share.window(order, n // axis.size)
    is_of_b = (places >= n_a)[:, None]
    ends = jnp.where(is_of_b, b_offsets[1:] + n_a, a_offsets[1:])
    return slots_of(places, ends, jnp.where(is_of_b, unused_b, unused_a)), share.count


def _merged(
    a: jax.Array,
    b: jax.Array,
    a_leaves: Sequence[jax.Array],
    b_leaves: Sequence[jax.Array],
    a_live: jax.Array,
    b_live: jax.Array,
    slots: int,
    *,
    descending: bool = False,
) -> tuple[jax.Array, list[jax.Array]]:
    pair = KeyPair("merge", a, b, a_live.reshape(1), b_live.reshape(1), descending=descending)
    keys, leaves = merged("merge", pair, a_leaves, b_leaves)
    return part_of(keys, 0, slots), [part_of(leaf, 0, slots) for leaf in leaves]


def sorted_search(
    axis: Axis,
    needles: jax.Array,
    haystack: jax.Array,
    needles_count: jax.Array,
    haystack_count: jax.Array,
    *,
    right: bool,
    aligned: bool,
) -> jax.Array:
    """Returns each needle's insertion point in the global haystack, on the needle's device."""
    return pair_of(axis, needles, haystack, needles_count, haystack_count, aligned=aligned).cut(0, right)


def sorted_equal_count(
    axis: Axis, a: jax.Array, b: jax.Array, a_count: jax.Array, b_count: jax.Array, *, aligned: bool
) -> jax.Array:
    """Returns the number of items of the global b that equal each item of a."""
    return copies_of(pair_of(axis, a, b, a_count, b_count, aligned=aligned), 0)


def sorted_match(
    axis: Axis, a: jax.Array, b: jax.Array, a_count: jax.Array, b_count: jax.Array, *, right: bool, aligned: bool
) -> SortedMatch:
    """Looks up both arrays in each other; the numbers of matches count over all devices."""
    pair = pair_of(axis, a, b, a_count, b_count, aligned=aligned)
    sides, totals = [], []
    for side in (0, 1):
        low, number = pair.equals(side)
        sides.append((low + number if right == (side == 0) else low, number > 0))
        totals.append(axis.sum(jnp.sum(number > 0, dtype=pair.dtype)))
    (a_index, a_match), (b_index, b_match) = sides
    return SortedMatch(a_index, b_index, a_match, b_match, *totals)


def set_operation(
    axis: Axis,
    kind: Kind,
    a: jax.Array,
    b: jax.Array,
    a_values: Pytree,
    b_values: Pytree,
    a_count: jax.Array,
    b_count: jax.Array,
    *,
    size: int | None,
    duplicates: bool,
    fill_value: ArrayLike,
    aligned: bool,
) -> SetResult:
    """Returns this device's part of a set operation.

    Unless arrays are aligned, items are distributed along the balanced path: the r-th copies of a key in both stay
    together, so each device works alone.
    """
    name, n_a, n_b = axis.operation, a.shape[0], b.shape[0]
    a_leaves, b_leaves, unflatten = set_leaves(name, kind, a_values, b_values, n_a, n_b)
    if aligned:
        keys, leaves, count = _aligned_set(
            axis, kind, a, b, a_leaves, b_leaves, a_count, b_count,
            size=size, duplicates=duplicates, fill_value=fill_value,
        )  # fmt: skip
        return SetResult(keys, None if a_values is None else unflatten(leaves), room(name, count, keys.shape[0]))
    if size is None:
        size = (n_a + n_b + 1) // 2 if kind == Kind.INTERSECTION else n_a + n_b
    (a, *a_moved), (b, *b_moved), *counts = _dealt(axis, [a, *a_leaves], [b, *b_leaves], (a_count, b_count), pairs=True)
    of_a, of_b = (
        [None, None] if a_values is None else [unflatten(a_moved), unflatten(b_moved) if kind in TAKES_B else None]
    )
    asked: dict[str, Any] = {"size": size, "duplicates": duplicates, "fill_value": fill_value}
    return _own_set(axis, kind, a, b, of_a, of_b, (counts[0], counts[1]), **asked)


def _own_set(
    axis: Axis,
    kind: Kind,
    a: jax.Array,
    b: jax.Array,
    a_values: Pytree,
    b_values: Pytree,
    counts: tuple[Any, Any],
    *,
    size: int,
    duplicates: bool,
    fill_value: ArrayLike,
) -> SetResult:
    """Runs the set operation on this device's items; keys of two words become columns."""
    asked = SetCall(axis.operation, kind, size, duplicates, fill_value, False, True, counts, None, None, False)
    result = _operate(asked, as_columns(a), as_columns(b), a_values, b_values)
    return result._replace(keys=of_words(*result.keys)) if is_words(a) else result


def _aligned_set(
    axis: Axis,
    kind: Kind,
    a: jax.Array,
    b: jax.Array,
    a_leaves: Sequence[jax.Array],
    b_leaves: Sequence[jax.Array],
    a_count: jax.Array,
    b_count: jax.Array,
    *,
    size: int | None,
    duplicates: bool,
    fill_value: ArrayLike,
) -> tuple[jax.Array, list[jax.Array], jax.Array]:
    """Runs the operation on this device's items if no key is on several devices, else by ranks."""
    pair = pair_of(axis, a, b, a_count, b_count, aligned=True)
    assert isinstance(pair, AlignedPair)
    if size is None:
        size = a.shape[0] + b.shape[0] if kind in TAKES_B else a.shape[0]

    def alone(a: list[jax.Array], b: list[jax.Array]) -> tuple[list[jax.Array], jax.Array]:
        counts = (pair.live[0], pair.live[1])
        of_a, of_b = a[1:] or None, (b[1:] or None) if kind in TAKES_B else None
        with by_construction():
            result = _own_set(
                axis, kind, a[0], b[0], of_a, of_b, counts, size=size, duplicates=duplicates, fill_value=fill_value
            )
        return [result.keys, *(result.values or [])], result.count.astype(pair.dtype)

    def by_ranks(a: list[jax.Array], b: list[jax.Array]) -> tuple[list[jax.Array], jax.Array]:
        return _set_by_ranks(axis, kind, pair, a, b, size, fill_value)

    operands = [a, *a_leaves], [b, *b_leaves]
    (keys, *leaves), count = special_case(lambda: pair.is_apart(axis), alone, by_ranks, *operands)
    return keys, leaves, count


def _set_by_ranks(
    axis: Axis, kind: Kind, pair: AlignedPair, a: list[jax.Array], b: list[jax.Array], size: int, fill_value: ArrayLike
) -> tuple[list[jax.Array], jax.Array]:
    """Keeps copies by their ranks and the other side's number of copies, both over all devices."""
    name, slots = axis.operation, a[0].shape[0] + b[0].shape[0]

    def kept(side: int, size: int) -> tuple[list[jax.Array], jax.Array]:
        rank, number = pair.rank(side), copies_of(pair, side)
        keep = rank < number if kind == Kind.INTERSECTION else rank >= number
        rows, count = select_rows(name, (a, b)[side], keep, size, fill_value, pair.live[side].reshape(1))
        return rows, count.astype(pair.dtype)

    if kind not in TAKES_B:
        return kept(0, size)
    (a_keys, *a_leaves), a_live = (a, pair.live[0]) if kind == Kind.UNION else kept(0, a[0].shape[0])
    (b_keys, *b_leaves), b_live = kept(1, b[0].shape[0])
    keys, leaves = _merged(a_keys, b_keys, a_leaves, b_leaves, a_live, b_live, slots)
    places = jnp.arange(size, dtype=pair.dtype)
    places = jnp.where(places < a_live + b_live, places, -1)
    rows = [take_or_fill(x, places, fill_operand(name, fill_value, x.dtype), unique=True) for x in (keys, *leaves)]
    return rows, a_live + b_live
