"""Moves rows between devices: distributes them by rank, fetches them from any position, sends them to any."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.arguments.values import take_or_fill, take_rows
from jax_mgpu._src.core.compat import stack
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.keys.bits import keeping_bits, where
from jax_mgpu._src.mesh.axis import Axis, before
from jax_mgpu._src.mesh.exchange import MAX_RAGGED, Parts, by_platform, by_size, exchange, in_rounds
from jax_mgpu._src.ops.gather import gather
from jax_mgpu._src.ops.load_balance import load_balance_search
from jax_mgpu._src.ops.select import positions
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sorted_search import insertion_points


class Share:
    """This device's share of results, which are numbered over all devices: `count` ranks from `low` on.

    `lows` and `counts` are those of all devices, and `highs` bound the ranks that have a slot on each device.
    """

    # The first `_longer` shares have `_each + 1` ranks. The others have `_each`, those by `of_slots` at most `_each`.
    _each: jax.Array
    _longer: jax.Array

    def __init__(self, axis: Axis, lows: jax.Array, counts: jax.Array, size: int):
        self.lows, self.counts, self.highs = lows, counts, lows + jnp.minimum(counts, size)
        self.low, self.count = axis.own(lows), axis.own(counts)

    @classmethod
    def even(cls, axis: Axis, total: jax.Array, size: int) -> Share:
        """Returns shares whose sizes differ by at most one."""
        device, devices = axis.devices.astype(total.dtype), jnp.asarray(axis.size, total.dtype)
        each, rest = jax.lax.div(total, devices), jax.lax.rem(total, devices)
        share = cls(axis, device * each + jnp.minimum(device, rest), each + (device < rest).astype(total.dtype), size)
        share._each, share._longer = each, rest
        return share

    @classmethod
    def of_slots(cls, axis: Axis, total: jax.Array, size: int) -> Share:
        """Returns shares that fill the `size` slots of each device, from the first device on."""
        lows = jnp.minimum(axis.devices.astype(total.dtype) * size, total)
        share = cls(axis, lows, jnp.minimum(total - lows, size), size)
        share._each, share._longer = jnp.asarray(size, total.dtype), jnp.zeros_like(total)
        return share

    def firsts(self, starts: jax.Array) -> jax.Array:
        """Returns how many runs start before each device's share, and the number of all runs, `[devices + 1]`.

        The ranks at which runs start ascend.
        """
        ends = jnp.append(self.lows, self.lows[-1:] + self.counts[-1:])
        return insertion_points(ends.astype(starts.dtype), starts)

    def own_firsts(self, starts: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns how many runs start before this device's share, and before its end."""
        first, end = insertion_points(stack((self.low, self.low + self.count)).astype(starts.dtype), starts)
        return first, end

    @staticmethod
    def runs(first: jax.Array, end: jax.Array, size: int, past: int) -> tuple[jax.Array, jax.Array]:
        """Returns the number of runs from `first` to `end`, and the run in each of `size` slots, else `past`."""
        number, slot = end - first, jnp.arange(size, dtype=first.dtype)
        return number, where(slot < number, first + slot, past)

    def within(self, ranks: jax.Array) -> jax.Array:
        """Returns the place of each rank within the share that it is in, of shares by `even` or `of_slots`."""
        longer, each = (x.astype(ranks.dtype) for x in (self._longer, self._each))
        past = ranks - longer * (each + 1)
        return jnp.where(past < 0, jax.lax.rem(ranks, each + 1), jax.lax.rem(past, jnp.maximum(each, 1)))

    def window(self, x: jax.Array, size: int) -> jax.Array:
        """Returns the entries of x at this share's ranks, `[size]`; -1 past the last one."""
        part = jax.lax.dynamic_slice(x, (self.low,), (size,), allow_negative_indices=False)
        return jnp.where(jnp.arange(size, dtype=self.count.dtype) < self.count, part, -1)


def begins_of(counts: jax.Array) -> jax.Array:
    """Returns where each device's items begin in the global array, from their numbers."""
    return before(counts[:, None])[:, 0]


def deal(
    axis: Axis, leaves: Sequence[jax.Array], begins: jax.Array, ends: jax.Array, share: Share, slots: int
) -> tuple[list[jax.Array], jax.Array]:
    """Gives each device the items that contribute to its share of results.

    Item i contributes to the results of ranks `begins[i]` to `ends[i]`, at least one. Ranks ascend over all devices,
    and padding has larger ranks than any item. An item goes to each device that has one of its results.

    Returns: The leaves, `[slots, ...]`, and the number of items, at most that of the results.
    """
    if begins.shape[0] == 0:
        leaves = [jnp.zeros((1, *x.shape[1:]), x.dtype) for x in leaves]
    first = insertion_points(share.lows.astype(ends.dtype), ends, right=True).astype(jnp.int32)
    last = insertion_points(share.highs.astype(begins.dtype), begins).astype(jnp.int32)
    starts, sizes = axis.gather((first, jnp.maximum(last - first, 0)))
    parts = Parts(axis, starts, sizes, slots)
    return exchange(parts, leaves), parts.total


class Dealt:
    """The items that contribute to this device's share of results.

    The results of an item end where those of the next one begin. An item may have no results.

    Args:
      axis: the devices.
      leaves: the data of each item, `[n, ...]`.
      number: the number of this device's first item among the items of all devices.
      begins: `[n]`, the rank of each item's first result, ascending over all devices.
      following: the rank at which the results of this device's last item end.
      share: this device's share.
      size: the number of a device's results, and the number of slots if there is no room for all items.

    Attributes:
      leaves: the data of each item, `[slots, ...]`.
      starts: `[slots]`, where each item's results begin among those of this device; `size` past the last item.
    """

    def __init__(
        self,
        axis: Axis,
        leaves: Sequence[jax.Array],
        number: jax.Array,
        begins: jax.Array,
        following: jax.Array,
        share: Share,
        size: int,
    ):
        self._axis, self._size = axis, size
        self._numbers: jax.Array | None
        numbers = number + jnp.arange(begins.shape[0], dtype=number.dtype)
        if axis.shares_memory:
            *self.leaves, self._numbers, begins = (
                axis.gather(x).reshape(-1, *x.shape[1:]) for x in (*leaves, numbers, begins)
            )
            self.starts = jnp.clip(begins - share.low, 0, size)
            self._passed = jnp.maximum(share.low - begins, 0)
            return
        if begins.shape[0] == 0:
            *leaves, numbers = (jnp.zeros((1, *x.shape[1:]), x.dtype) for x in (*leaves, numbers))
            begins = jnp.full((1,), jnp.iinfo(begins.dtype).max, begins.dtype)
        (n,), lows, highs = begins.shape, share.lows.astype(begins.dtype), share.highs.astype(begins.dtype)
        slots, moved = axis.size * n, list(leaves)
        if slots <= size:
            first = jnp.maximum(insertion_points(lows, begins, right=True) - 1, 0) + (following <= lows)
            last = jnp.where(lows < highs, insertion_points(highs, begins), 0)
        else:
            slots, ends = size, jnp.append(begins[1:], following)
            kept, _ = positions(ends > begins, ABSENT, n)
            past = jnp.full((1,), jnp.iinfo(begins.dtype).max, begins.dtype)
            begins, ends = (take_or_fill(x, kept, past) for x in (begins, ends))
            moved, numbers = [take_or_fill(x, kept) for x in leaves], take_or_fill(numbers, kept)
            first, last = insertion_points(lows, ends, right=True), insertion_points(highs, begins)
        sizes = jnp.maximum(last - first, 0)
        firsts, sizes, heads, begin = axis.gather((first, sizes, take_or_fill(begins, first), numbers[0]))
        parts = Parts(axis, firsts, sizes, slots)
        self.leaves = exchange(parts, moved)
        # Items know their place on the device of their first result. Only the first item that a device receives may
        # begin on an earlier device.
        (starts,) = exchange(parts, [share.within(begins)], fill=size)
        head, is_there = axis.own(heads, 1)[jnp.argmax(parts.received > 0)], parts.total > 0
        self.starts = starts.at[:1].set(jnp.where(is_there, jnp.maximum(head - share.low, 0), size))
        self._passed = jnp.where(is_there, jnp.maximum(share.low - head, 0), 0)
        if axis.size * n <= size and axis.size <= MAX_RAGGED:  # neighbouring items stay neighbours
            self._numbers, self._edges, self._shifts = None, parts.begins, begin + axis.own(firsts, 1) - parts.begins
        else:
            (self._numbers,) = exchange(parts, [numbers])

    def owners(self, total: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the item of each of this device's `total` results, and the result's rank in it; -1 past them."""
        with by_construction():
            owner, rank = load_balance_search(self.starts, self._size, total=total, return_rank=True)
        if self._axis.shares_memory:  # all items of earlier devices are here
            passed = take_or_fill(self._passed, owner)
        else:
            passed = jnp.where(owner == 0, self._passed, 0)
        return owner, rank.astype(passed.dtype) + passed

    def numbers(self, owner: jax.Array) -> jax.Array:
        """Returns the numbers of items among those of all devices; -1 for -1."""
        if self._numbers is not None:
            return take_or_fill(self._numbers, owner, -1)
        number = owner.astype(self._shifts.dtype) + self._shifts[0]
        for device in range(1, self._axis.size):
            step = self._shifts[device] - self._shifts[device - 1]
            number += jnp.where(owner >= self._edges[device], step, 0)
        return jnp.where(owner >= 0, number, -1)


def _in_order(axis: Axis, places: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns sorted global positions, the unsorted place of each, and where those on each device begin and end."""
    total = counts.sum(dtype=counts.dtype)
    places = jnp.where((places >= 0) & (places < total), places, total).astype(counts.dtype)
    places, order = Sort(axis.operation, places).indices()
    edges = insertion_points(jnp.append(begins_of(counts), total), places).astype(counts.dtype)
    return places, order, edges


def fetch(
    axis: Axis,
    leaves: Sequence[jax.Array],
    counts: jax.Array,
    places: jax.Array,
    fills: Sequence[jax.Array | None],
) -> list[jax.Array]:
    """Returns rows from global positions, which may repeat; the fill element outside of the array.

    Args:
      axis: the devices.
      leaves: each device's part of the global arrays, `[slots, ...]`.
      counts: each device's number of live rows, `[devices]`.
      places: `[n]`, global positions.
      fills: the fill element of each leaf, `[1]`, or None for 0.

    Returns:
      The rows, `[n, ...]` each.
    """
    (n,) = places.shape
    ends = begins_of(counts) + counts
    inside = (places >= 0) & (places < ends[-1:])
    if n == 0 or leaves[0].shape[0] == 0:
        nowhere = jnp.full((n,), -1, jnp.int32)
        return [take_or_fill(x, nowhere, fill) for x, fill in zip(leaves, fills, strict=True)]
    move = by_platform(axis, functools.partial(_gathered, axis), functools.partial(_in_rounds, axis))
    # Traced values are arguments: under shard_map, a rule of jax.custom_jvp that closes over one fails.
    known = jnp.where(inside, places, -1).astype(counts.dtype)
    traced = known, counts, *(() if axis.shares_memory else _in_order(axis, places, counts))
    found = [keeping_bits(move, x, *traced, adds=True) for x in leaves]
    own = jnp.where(inside, jnp.arange(n), -1)
    return [
        x if fill is None else take_or_fill(x, own, fill, unique=True) for x, fill in zip(found, fills, strict=True)
    ]


def _gathered(axis: Axis, x: jax.Array, places: jax.Array, counts: jax.Array, *_: jax.Array) -> jax.Array:
    """Gathers all rows on all devices, for devices that share their memory."""
    slots = slots_of(places, begins_of(counts) + counts, x.shape[0] - counts)
    return gather(jax.lax.all_gather(x, axis.name, tiled=True), slots)


def slots_of(places: jax.Array, ends: jax.Array, unused: jax.Array) -> jax.Array:
    """Returns the slots of global positions; -1 for -1.

    `ends` has the global positions at which the items of each device end, and `unused` the numbers of unused slots.
    """
    passed = jnp.where(places[:, None] >= ends, unused, 0).sum(axis=1, dtype=unused.dtype)
    return jnp.where(places < 0, -1, places + passed)


def from_all(axis: Axis, x: jax.Array) -> jax.Array:
    """Returns the slots of all devices on each device, bit for bit."""
    return keeping_bits(lambda x: jax.lax.all_gather(x, axis.name, tiled=True), x)


def _in_rounds(
    axis: Axis, x: jax.Array, places: jax.Array, counts: jax.Array, asked: jax.Array, order: jax.Array, edges: jax.Array
) -> jax.Array:
    """Requests rows in rounds of equal chunks, in the order of positions.

    One round suffices if devices request about as much from each device; at worst there are as many rounds as devices.
    """
    (n,), begins = places.shape, begins_of(counts)
    chunk = max(1, -(-n // axis.size) + -(-n // (32 * axis.size)))
    starts, sizes = edges[:-1, None], (edges[1:] - edges[:-1])[:, None]
    needed = -(-jnp.max(axis.gather(sizes)) // chunk)  # equal on all devices, which must all enter a round or none
    item = jnp.arange(chunk, dtype=edges.dtype)
    unused = n + jnp.arange(axis.size * chunk, dtype=edges.dtype).reshape(-1, chunk)

    def ask(done: jax.Array, into: jax.Array) -> jax.Array:
        at = jnp.asarray(done, edges.dtype) * chunk + item
        wanted = asked.at[starts + at].get(mode="clip") - begins[:, None]
        wanted = jax.lax.all_to_all(wanted, axis.name, 0, 0)
        rows = jax.lax.all_to_all(gather(x, wanted), axis.name, 0, 0)
        return into.at[jnp.where(at < sizes, starts + at, unused)].set(rows, mode="drop", unique_indices=True)

    into = axis.varying(jnp.zeros((n, *x.shape[1:]), x.dtype))
    rows = in_rounds(ask, needed, -(-n // chunk), into)
    return jnp.zeros_like(rows).at[order].set(rows, unique_indices=True)


def put(
    axis: Axis, leaves: Sequence[jax.Array], places: jax.Array, counts: jax.Array, into: Sequence[jax.Array]
) -> list[jax.Array]:
    """Writes rows to distinct global positions; those outside of the arrays are dropped.

    Args:
      axis: the devices.
      leaves: this device's rows, `[n, ...]`, or scalars that all devices write.
      places: `[n]`, the global positions of this device's rows.
      counts: the number of positions of each device, `[devices]`.
      into: this device's parts of the arrays that are written.
    """
    if places.shape[0] == 0:
        return [axis.varying(x) for x in into]

    def written(form: Callable[..., tuple[list[jax.Array], jax.Array]]) -> Callable[..., list[jax.Array]]:
        def run(leaves: list[jax.Array], places: jax.Array, counts: jax.Array, into: list[jax.Array]) -> Any:
            rows, slots = form(axis, [x for x in leaves if x.ndim], places, counts, into[0].shape[0])
            received = iter(rows)
            pairs = [(x, next(received) if row.ndim else row) for x, row in zip(into, leaves, strict=True)]
            return [keeping_bits(_set_rows, pair, slots) for pair in pairs]

        return run

    form = by_size(axis, places.shape[0], written(_rows_of_all), written(_received))
    return form(list(leaves), places, counts, list(into))


def _set_rows(arrays: tuple[jax.Array, jax.Array], slots: jax.Array) -> jax.Array:
    # JAX transposes this scatter only if its indices are unique.
    return arrays[0].at[slots].set(arrays[1], mode="drop", unique_indices=True)


def _rows_of_all(
    axis: Axis, leaves: list[jax.Array], places: jax.Array, counts: jax.Array, slots: int
) -> tuple[list[jax.Array], jax.Array]:
    """Returns the rows of all devices, and their slots here, for devices that share their memory."""
    own = from_all(axis, places) - axis.begin(counts)
    is_here = (own >= 0) & (own < axis.own(counts))
    return [from_all(axis, x) for x in leaves], jnp.where(is_here, own, slots).astype(counts.dtype)


def _received(
    axis: Axis, leaves: list[jax.Array], places: jax.Array, counts: jax.Array, slots: int
) -> tuple[list[jax.Array], jax.Array]:
    """Returns received rows, `[slots, ...]`, and their slots; `slots` past the last."""
    places, order, edges = _in_order(axis, places, counts)
    parts = Parts.between(axis, axis.gather(edges), slots)
    places, *rows = exchange(parts, [places, *(take_rows(x, order) for x in leaves)])
    live = jnp.arange(slots, dtype=counts.dtype) < parts.total
    return rows, jnp.where(live, places - axis.own(begins_of(counts)), slots)
