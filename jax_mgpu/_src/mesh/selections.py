"""Selections, runs and ranks over a mesh axis."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.annotations import ArrayLike
from jax_mgpu._src.arguments.check import index_dtype
from jax_mgpu._src.arguments.counts import count_of, is_first, segment_starts
from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.arguments.values import take_from_pair, take_or_fill
from jax_mgpu._src.core.compat import axes_bound
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.keys.bits import shifted
from jax_mgpu._src.keys.columns import Columns, alike, in_form, run_keys
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.exchange import Parts, by_size, everywhere, exchange_together
from jax_mgpu._src.mesh.remote_gather import Share, begins_of, from_all, put, slots_of
from jax_mgpu._src.mesh.segments import heads_of_all, own_part, run_goes_on, segmented_sort_indices
from jax_mgpu._src.mesh.sorts import keys_of_all, sort, sort_indices
from jax_mgpu._src.mesh.splitters import Sorted, cut_at, equal, order_codes
from jax_mgpu._src.ops.gather import gather
from jax_mgpu._src.ops.groups import local_ranks, rank_of_run
from jax_mgpu._src.ops.load_balance import load_balance_search
from jax_mgpu._src.ops.order_statistics import _order_statistics
from jax_mgpu._src.ops.ranks import TopK
from jax_mgpu._src.ops.ranks import top_k as local_top_k
from jax_mgpu._src.ops.scan import scan, segmented_scan
from jax_mgpu._src.ops.select import Runs, positions, ranks, select_rows
from jax_mgpu._src.ops.select import partition as local_partition
from jax_mgpu._src.ops.select import unique as local_unique
from jax_mgpu._src.ops.sort import Sort


def select(
    axis: Axis, leaves: list[jax.Array], keep: jax.Array, size: int, fill_value: ArrayLike, count: jax.Array
) -> tuple[list[jax.Array], jax.Array]:
    """Returns the items that this device keeps."""
    return select_rows(axis.operation, leaves, keep, size, fill_value, count)


def select_indices(axis: Axis, keep: jax.Array, size: int, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the global positions of this device's kept items, -1 past them."""
    n = keep.shape[0]
    begin = axis.begin(axis.gather(axis.live("keep", n, count)))
    found, total = positions(keep, count, size)
    return jnp.where(found < n, found.astype(begin.dtype) + begin, -1), total


def partition(
    axis: Axis, leaves: Sequence[jax.Array], keep: jax.Array, count: jax.Array
) -> tuple[list[jax.Array], jax.Array]:
    """Moves the kept items of all devices to the front, followed by the others; a device keeps its number of items."""
    forms = (functools.partial(form, axis) for form in (_partition_of_all, _partition_by_ranks))
    return by_size(axis, keep.shape[0], *forms)(list(leaves), keep, count)


def _partition_of_all(
    axis: Axis, leaves: list[jax.Array], keep: jax.Array, count: jax.Array
) -> tuple[list[jax.Array], jax.Array]:
    """Where devices share their memory: partitions the positions of all items on each device."""
    n = keep.shape[0]
    live = axis.live("keep", n, count)
    counts = axis.gather(live)
    keeps, offsets, number = everywhere(axis, keep, counts)
    order, total = positions(keeps, number, axis.size * n, partition=True)
    places = Share(axis, offsets[:-1], counts, n).window(order.astype(live.dtype), n)
    slots, slot = slots_of(places, offsets[1:], n - counts), jnp.arange(n, dtype=live.dtype)
    slots = jnp.where(slot < live, slots, axis.index.astype(live.dtype) * n + slot)  # items past the count stay
    return [take_or_fill(from_all(axis, x), slots, unique=True) for x in leaves], total.astype(live.dtype)


def _partition_by_ranks(
    axis: Axis, leaves: list[jax.Array], keep: jax.Array, count: jax.Array
) -> tuple[list[jax.Array], jax.Array]:
    """Partitions each device's items, then moves kept items and the others to the devices of their ranks."""
    n = keep.shape[0]
    live = axis.live("keep", n, count)
    moved, kept = local_partition(leaves, keep, count=count_of(count))
    lives, kepts = axis.gather((live, kept.astype(live.dtype)))
    total, ends = kepts.sum(dtype=live.dtype), jnp.cumsum(lives, dtype=live.dtype)
    edges = jnp.append(ends - lives, ends[-1:])

    def parts(begins: jax.Array, counts: jax.Array, ranks_at: jax.Array) -> Parts:
        """Returns the parts that send `counts` items, which start at `begins`, to the devices of their ranks."""
        cuts = jnp.clip(ranks_at[None, :] - begins_of(counts)[:, None], 0, counts[:, None]) + begins[:, None]
        return Parts.between(axis, cuts, n)

    front = parts(jnp.zeros_like(kepts), kepts, jnp.minimum(edges, total))
    back = parts(kepts, lives - kepts, jnp.maximum(edges - total, 0))
    items = exchange_together([[front, back.behind(front)]], [moved], fill=None, most_travel=True)
    if count.size:  # items past the count stay in place
        slot = jnp.arange(n, dtype=live.dtype)
        dead = jnp.where(slot < live, slot, n + slot)
        items = [take_from_pair(x, y, dead, n) for x, y in zip(items, leaves, strict=True)]
    return items, total


def _earlier(axis: Axis, has: jax.Array, found: Any) -> tuple[jax.Array, Any]:
    """Returns whether an earlier device has a value, and the nearest such device's value."""
    has, found = axis.gather((has, found))
    device = jnp.max(jnp.where(has & (axis.devices < axis.index), axis.devices, -1))
    return device >= 0, jax.tree.map(lambda x: x[jnp.maximum(device, 0)], found)


def run_marks(axis: Axis, keys: jax.Array, live: jax.Array, heads: jax.Array = ABSENT) -> jax.Array:
    """Returns which items start a run over all devices; no run crosses `heads`."""
    n, codes = keys.shape[0], order_codes(keys, False)
    lasts, firsts = (
        [take_or_fill(x, at)[0] for x in codes] for at in (live.reshape(1) - 1, jnp.zeros((1,), jnp.int32))
    )
    first = ~run_goes_on(axis, live, lasts, firsts)
    marks = ~equal(codes, [shifted(x, 1) for x in codes])
    if heads.size:
        marks |= segment_starts(n, heads)
        first |= heads[0] == 0
    return jnp.where(is_first(n), first, marks)


def run_starts(
    axis: Axis,
    keys: jax.Array,
    heads: jax.Array | None,
    bounds: jax.Array | None,
    size: int,
    count: jax.Array,
    least: int,
    inside: jax.Array | None,
) -> Runs:
    """Returns the runs that start on this device, as local positions."""
    n = keys.shape[0]
    live = axis.live("keys", n, count)
    marks = run_marks(axis, keys, live, ABSENT if bounds is None else bounds)
    if least > 1:
        places = axis.begin(axis.gather(live)) + jnp.arange(n, dtype=live.dtype)
        with by_construction():
            marks &= _next_marked(axis, marks, places, live) - places >= least
    if inside is not None:
        marks &= inside
    starts, total = positions(marks, count, size)
    if heads is None:
        return Runs(starts, jnp.zeros((1,), starts.dtype), total)
    return Runs(starts, take_or_fill(ranks(marks, count), heads, total[None]), total)


def unique(
    axis: Axis, keys: jax.Array | Columns, size: int, count: jax.Array, **wanted: bool
) -> tuple[list[Any], jax.Array]:
    """Returns distinct keys after a sort over all devices; each is on the device where its run starts."""
    given = axis.live("keys", keys.shape[0], count)
    forms = (functools.partial(form, axis, keys, size, given, **wanted) for form in (_unique_of_all, _unique_in_order))
    return by_size(axis, keys.shape[0], *forms)()


def _unique_of_all(
    axis: Axis, keys: jax.Array | Columns, size: int, given: jax.Array, **wanted: bool
) -> tuple[list[Any], jax.Array]:
    """Where devices share their memory: finds the distinct keys of all devices on each device."""
    n, counts = keys.shape[0], axis.gather(given)
    all_keys, offsets, total = keys_of_all(axis, keys, counts)
    with by_construction():
        wanted_here: dict[str, Any] = {**wanted, "return_counts": True}
        # Results past this device's keys are taken from the last slot, which never has a key.
        found, *results, numbers, _ = local_unique(
            in_form(all_keys), size=axis.size * n + 1, count=total[0], **wanted_here
        )
        starts = scan(numbers, exclusive=True)
    firsts = Share.even(axis, total[0], n).firsts(starts)
    number, places = Share.runs(axis.own(firsts[:-1]), axis.own(firsts[1:]), size, past=starts.shape[0] - 1)
    outputs = [jax.tree.map(lambda x: gather(x, places, inside=True), found)]
    if wanted["return_index"]:
        outputs.append(gather(results[0], places, inside=True))
    if wanted["return_inverse"]:
        own = jax.lax.dynamic_slice(results[-1].astype(given.dtype), (offsets[axis.index],), (n,))
        begins, ends = (x.astype(given.dtype) for x in (firsts[:-1], firsts[1:]))
        lost = jnp.maximum(ends - begins - size, 0)
        rank, is_later = own[:, None] - begins, own[:, None] >= ends
        is_kept = ~jnp.any((rank >= size) & ~is_later, axis=1) & (jnp.arange(n, dtype=given.dtype) < given)
        outputs.append(jnp.where(is_kept, own - jnp.where(is_later, lost, 0).sum(axis=1, dtype=own.dtype), -1))
    if wanted["return_counts"]:
        outputs.append(gather(numbers, places, inside=True))
    return outputs, number.astype(index_dtype(axis.operation, "keys", n))


def _unique_in_order(
    axis: Axis, keys: jax.Array | Columns, size: int, given: jax.Array, **wanted: bool
) -> tuple[list[Any], jax.Array]:
    """Finds the distinct keys among sorted keys, of which each device holds a part."""
    n = keys.shape[0]
    with by_construction():
        if wanted["return_index"] or wanted["return_inverse"]:
            ordered, order, live = sort_indices(axis, keys, count=given)
        else:
            ordered, live = sort(axis, keys, None, count=given)
    codes = run_keys(alike(keys, ordered))
    starts, found = positions(run_marks(axis, codes, live), live.reshape(1), size + 1)
    firsts, past, starts = starts[:1], starts[size], starts[:size]
    slots = jnp.arange(size, dtype=found.dtype)
    results: list[Any] = [jax.tree.map(lambda x: take_or_fill(x, starts, unique=True), ordered)]
    if wanted["return_index"]:
        results.append(take_or_fill(order, starts, jnp.full((1,), -1, order.dtype)))
    every_live, every_found, every_first = axis.gather((live, found.astype(live.dtype), firsts[0].astype(live.dtype)))
    begins = begins_of(every_live)
    if wanted["return_inverse"]:
        covered = jnp.minimum(past.astype(live.dtype), live)
        ids = load_balance_search(starts, n, total=covered)
        # Items before the first run here belong to an earlier device's last run, if that is kept.
        kept = jnp.minimum(every_found, size)
        numbers = begins_of(kept)
        has_earlier, (number, is_kept) = _earlier(
            axis, found > 0, (axis.own(numbers) + found.astype(live.dtype) - 1, found <= size)
        )
        places = jnp.arange(n, dtype=live.dtype)
        goes_on = (places < jnp.minimum(axis.own(every_first), live)) & has_earlier & is_kept
        ids = jnp.where(ids >= 0, ids.astype(live.dtype) + axis.own(numbers), jnp.where(goes_on, number, -1))
        sources = jnp.where(places < live, order, -1)
        results += put(axis, [ids], sources, axis.gather(given), [jnp.full((n,), -1, ids.dtype)])
    if wanted["return_counts"]:
        # The last run here ends where the next one starts on a later device.
        later = (axis.devices > axis.index) & (every_found > 0)
        end = jnp.min(jnp.where(later, begins + every_first, every_live.sum(dtype=live.dtype)))
        begin = axis.own(begins)
        following = jnp.append(starts[1:], past[None])
        ends = jnp.where(slots + 1 < found, begin + following.astype(live.dtype), end)
        results.append(jnp.where(slots < found, ends - begin - starts.astype(live.dtype), 0))
    return results, found


def top_k(axis: Axis, x: jax.Array, k: int, largest: bool, count: jax.Array) -> TopK:
    """Returns up to k first items of all devices, on each device."""
    live = axis.live("x", x.shape[0], count)
    lives = axis.gather(live)
    values, indices, own = local_top_k(x, k, largest=largest, count=count_of(count))
    own = own.astype(live.dtype)
    here = jnp.arange(k, dtype=live.dtype) < own
    indices = jnp.where(here, indices.astype(live.dtype) + axis.begin(lives), -1)

    def gathered() -> TopK:
        counts = axis.gather(own)
        items, positions = (everywhere(axis, x, counts)[0] for x in (values, indices))
        found = local_top_k(items, k, largest=largest, count=counts.sum(dtype=counts.dtype))
        return TopK(found.values, take_or_fill(positions, found.indices, -1), found.count.astype(own.dtype))

    def spread() -> TopK:
        """Finds how many items each device has among the first k, and adds up slots with one device's item each."""
        taken, zero = jnp.minimum(lives.sum(dtype=own.dtype), k), jnp.zeros_like(own)
        if axis.size > 1 and k > 0:
            counts = jnp.minimum(lives, k)[:, None]
            cuts = cut_at(axis, [Sorted(values, zero, own, largest)], taken.reshape(1), counts)[0, :, 0]
        else:
            cuts = taken.reshape(1)
        slots = jnp.arange(k, dtype=own.dtype)
        places = jnp.where(slots < axis.own(cuts), slots + axis.own(begins_of(cuts)), k)

        positions = _added(axis, indices + 1, places) - 1
        firsts = Sort(axis.operation, _added_bits(axis, values, places), largest, taken.reshape(1))
        with by_construction():
            items, positions = firsts.run(positions)
        return TopK(items, positions, taken)

    return by_size(axis, k, gathered, spread)()


def _next_marked(axis: Axis, marked: jax.Array, places: jax.Array, live: jax.Array) -> jax.Array:
    """Returns, for each item, the next marked position on any device, or the number of all items."""
    total = axis.sum(live)
    options: dict[str, Any] = {"exclusive": True, "reverse": True, "count": live, "axis_name": axis.name}
    return jnp.minimum(scan(jnp.where(marked, places, total), "min", **options), total)


def rank(
    axis: Axis, keys: jax.Array | Columns, heads: jax.Array, *, ties: str, descending: bool, count: jax.Array
) -> jax.Array:
    """Returns the ranks of this device's items among those of all devices."""
    n, given = keys.shape[0], axis.live("keys", keys.shape[0], count)

    def gathered() -> jax.Array:
        counts = axis.gather(given)
        all_keys, _, total = keys_of_all(axis, keys, counts)
        all_heads = heads_of_all(axis, heads, n, counts) if heads.size else heads
        ranks = local_ranks(axis.operation, all_keys, all_heads, total, ties=ties, descending=descending)
        return axis.varying(own_part(axis, ranks, counts, n))

    def spread() -> jax.Array:
        with by_construction():
            if heads.size:
                in_order = segmented_sort_indices(axis, keys, heads, ABSENT, descending=descending, count=given)
                keys_in_order, order, live = *in_order, given
            else:
                keys_in_order, order, live = sort_indices(axis, keys, descending=descending, count=given)
            begin = axis.begin(axis.gather(live))
            slots = jnp.arange(n, dtype=live.dtype)
            places = begin + slots
            starts = is_first(n) & (begin == 0)
            if heads.size:
                starts = jnp.where(is_first(n), starts | (heads[0] == 0), segment_starts(n, heads))
            codes = run_keys(alike(keys, keys_in_order))
            differs = run_marks(axis, codes, live, heads)
            named: dict[str, Any] = {"count": live, "axis_name": axis.name}
            if ties == "dense":
                marks = differs.astype(live.dtype)
                ranks = segmented_scan(marks, heads, **named) if heads.size else scan(marks, **named)
            else:
                begins = scan(jnp.where(starts, places, 0), "max", **named)
                firsts = places if ties == "ordinal" else scan(jnp.where(differs, places, 0), "max", **named)
                ranks = rank_of_run(ties, firsts, _next_marked(axis, differs, places, live), begins)
        return put(axis, [ranks], jnp.where(slots < live, order, -1), axis.gather(given), [jnp.zeros_like(ranks)])[0]

    return by_size(axis, n, gathered, spread)()


def ordered_items(axis: Axis, x: jax.Array, count: jax.Array) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """Returns the number of all items, and a function that gives all devices the items of given ranks."""
    live = axis.live("x", x.shape[0], count)
    lives = axis.gather(live)

    def gathered(ranks: jax.Array) -> jax.Array:
        rows, _, total = everywhere(axis, x, lives)
        return _order_statistics(x=rows, ranks=ranks, count=total)[0]

    def spread(ranks: jax.Array) -> jax.Array:
        with by_construction():
            ordered, own = sort(axis, x, None, count=live)
        return item_at(axis, ordered, axis.gather(own))(ranks)

    return lives.sum(dtype=live.dtype), by_size(axis, x.shape[0], gathered, spread)


def item_at(axis: Axis, x: jax.Array, lives: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """Returns a function that gives all devices rows of x at global positions; 0 outside."""
    begin, live = axis.begin(lives), axis.own(lives)

    def rows(places: jax.Array) -> jax.Array:
        own = places.astype(live.dtype) - begin
        slots = jnp.where((own >= 0) & (own < live), jnp.arange(places.shape[0], dtype=live.dtype), places.size)
        return _added_bits(axis, take_or_fill(x, jnp.where(slots < places.size, own, -1)), slots)

    return rows


def _added(axis: Axis, x: jax.Array, places: jax.Array) -> jax.Array:
    """Returns, on all devices, the items of each device at their places, by a sum; no two items share a place."""
    return axis.sum(jnp.zeros_like(x).at[places].set(x, mode="drop", unique_indices=True))


def _added_bits(axis: Axis, x: jax.Array, places: jax.Array) -> jax.Array:
    """`_added` bit for bit: floats are added as integers."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return _added(axis, x, places)
    word, bound = jnp.dtype(f"uint{8 * x.dtype.itemsize}"), axes_bound(axis.name)

    @jax.custom_jvp
    def add_bits(x: jax.Array, places: jax.Array) -> jax.Array:
        with bound():
            bits = _added(axis, jax.lax.bitcast_convert_type(x, word), places)
            return jax.lax.bitcast_convert_type(bits, x.dtype)

    @add_bits.defjvp
    def _(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        with bound():
            return add_bits(*primals), _added(axis, jnp.asarray(tangents[0]), primals[1])

    return add_bits(x, places)
