"""Segments and runs over a mesh axis."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.annotations import Count, Pytree
from jax_mgpu._src.arguments.check import count_operand
from jax_mgpu._src.arguments.counts import count_of, heads_inside, live_mask, wide_enough
from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.arguments.values import flatten_values, take_or_fill
from jax_mgpu._src.core.compat import stack
from jax_mgpu._src.functions.operators import select
from jax_mgpu._src.functions.recurrence import exponential, logarithm, ratio
from jax_mgpu._src.keys.bits import special_case
from jax_mgpu._src.keys.columns import Columns
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.exchange import Parts, by_platform, by_size, everywhere, exchange
from jax_mgpu._src.mesh.reductions import number_before, own_ends
from jax_mgpu._src.mesh.remote_gather import Share, fetch, from_all
from jax_mgpu._src.mesh.sorts import one_key, order_of_all
from jax_mgpu._src.mesh.splitters import Sorted, Words, cut_at, equal, order_codes
from jax_mgpu._src.ops.load_balance import _search
from jax_mgpu._src.ops.reduce import _firsts, _run_heads
from jax_mgpu._src.ops.scan import segmented_scan
from jax_mgpu._src.ops.segmented_softmax import softmax_rows
from jax_mgpu._src.ops.segmented_sort import flags_of_gaps
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sort_primitives import Method

# `_cut_and_sorted` may sort only the segments at both ends of a device again, if each has at most FEW_ITEMS items here.
FEW_ITEMS = 1 << 16


def segmented_sort(
    axis: Axis,
    keys: jax.Array | Columns,
    heads: jax.Array,
    flags: jax.Array,
    values: Pytree,
    *,
    descending: bool,
    count: Count,
) -> Any:
    """Sorts segments, which stay in place; they may cross boundaries between devices."""
    name, (n,) = axis.operation, keys.shape
    leaves, unflatten = ([], None) if values is None else flatten_values(name, "values", values, n, "keys")
    keys, leaves, restored = one_key(name, keys, leaves)

    given = count_operand(axis.operation, "count", count, n)
    live = axis.live("keys", n, given)

    def gathered(moved: list[jax.Array], heads: jax.Array, flags: jax.Array, live: jax.Array) -> list[jax.Array]:
        counts = axis.gather(live)
        if flags.size:
            flags = everywhere(axis, flags if flags.dtype == jnp.bool_ else _unpacked(flags, n), counts)[0]
        else:
            heads = heads_of_all(axis, heads, n, counts)
        how = {"descending": descending, "heads": heads, "flags": flags, "method": Method.MERGING}
        _, slots, _ = order_of_all(axis, moved[0], counts, lambda begins, _: Share(axis, begins, counts, n), **how)
        return [take_or_fill(from_all(axis, x), slots, unique=True) for x in moved]

    def spread(moved: list[jax.Array], heads: jax.Array, flags: jax.Array, live: jax.Array) -> list[jax.Array]:
        return _cut_and_sorted(axis, moved, heads, flags, live, given, descending)

    form = by_size(axis, n, gathered, spread) if axis.size > 1 else spread
    keys, *leaves = form([keys, *leaves], heads, flags, live)
    result, leaves = restored(keys, leaves, live)
    return result if unflatten is None else (result, unflatten(leaves))


def heads_of_all(axis: Axis, heads: jax.Array, n: int, counts: jax.Array) -> jax.Array:
    """Returns the heads on all devices as sorted global positions; for devices that share their memory."""
    own, past = heads_inside(heads, n).astype(counts.dtype), jnp.iinfo(counts.dtype).max
    given = jnp.where(own < axis.own(counts), own + axis.begin(counts), past)
    heads = Sort(axis.operation, from_all(axis, given)).run()
    return heads


def own_part(axis: Axis, x: jax.Array, counts: jax.Array, n: int) -> jax.Array:
    """Returns the rows at this device's positions from those of all devices; 0 past them."""
    own = jax.lax.dynamic_slice_in_dim(x, axis.begin(counts), n)
    is_live = live_mask(n, axis.own(counts).reshape(1)).reshape(-1, *[1] * (x.ndim - 1))
    return jnp.where(is_live, own, jnp.zeros_like(own))


def _cut_and_sorted(
    axis: Axis,
    moved: list[jax.Array],
    heads: jax.Array,
    flags: jax.Array,
    live: jax.Array,
    given: jax.Array,
    descending: bool,
) -> list[jax.Array]:
    """Sorts segments on each device, then cuts those that cross a boundary by rank, and exchanges items.

    A device keeps its number of items, so a segment that crosses a boundary is cut at the rank of the item there. After
    the exchange, items are sorted again.
    """
    name, n = axis.operation, moved[0].shape[0]

    def sort_locally(keys: jax.Array, leaves: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
        found = Sort(name, keys, descending, given, heads, flags, Method.MERGING).run(leaves or None)
        return found if leaves else (found, [])

    keys, leaves = sort_locally(moved[0], moved[1:])
    if axis.size > 1 and n > 0:
        starts, first, last = _flagged_ends(flags, n, live) if flags.size else own_ends(heads, n, live)[:3]
        lives, has_head, firsts, lasts = axis.gather((live, starts, first, last))
        device, boundary = axis.devices[:, None], axis.devices[None, 1:]
        heads_until = jnp.cumsum(has_head, dtype=live.dtype)  # devices up to this one on which a segment starts
        heads_before = heads_until - has_head.astype(live.dtype)
        before = device < boundary
        # No segment starts between the device and the boundary, so its last segment, or first items, reach it.
        reaches_up = heads_until[boundary - 1] == heads_until[device]
        reaches_down = heads_before[device] == heads_until[boundary - 1]
        lives, firsts, lasts = lives[:, None], firsts[:, None], lasts[:, None]
        begin = jnp.where(before, jnp.where(reaches_up, lasts, lives), 0)
        end = jnp.where(before, lives, jnp.where(reaches_down, firsts, 0))
        ranks = jnp.sum(jnp.where(before, end - begin, 0), axis=0, dtype=live.dtype)
        cuts = cut_at(axis, [Sorted(keys, axis.own(begin), axis.own(end), descending)], ranks)
        edges = jnp.concatenate([jnp.zeros_like(lives), begin + cuts[0], lives], axis=1)
        parts = Parts.between(axis, edges, n)
        keys, *leaves = exchange(parts, [keys, *leaves])
        ends = ((jnp.zeros_like(first), first), (last, live))
        window = min(FEW_ITEMS, n)

        def sort_ends(keys: jax.Array, leaves: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
            for begin, end in ends:
                at = jnp.minimum(begin, n - window)
                window_arrays = [jax.lax.dynamic_slice_in_dim(x, at, window) for x in (keys, *leaves)]
                flags = flags_of_gaps((begin - at)[None], (end - at)[None], window)
                moved = Sort(name, window_arrays[0], descending, flags=flags, method=Method.MERGING).run(
                    window_arrays[1:] or None
                )
                window_arrays = [moved] if not leaves else [moved[0], *moved[1]]
                keys, *leaves = (
                    jax.lax.dynamic_update_slice_in_dim(x, part, at, 0)
                    for x, part in zip((keys, *leaves), window_arrays, strict=True)
                )
            return keys, leaves

        def is_short() -> jax.Array:
            return jnp.max(stack([end - begin for begin, end in ends])) <= window

        def sort_again(keys: jax.Array, leaves: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
            return special_case(is_short, sort_ends, sort_locally, keys, leaves)

        keys, leaves = by_platform(axis, sort_locally, sort_again)(keys, leaves)
    return [keys, *leaves]


def segmented_sort_indices(
    axis: Axis, keys: jax.Array | Columns, heads: jax.Array, flags: jax.Array, *, descending: bool, count: Count
) -> tuple[Any, jax.Array]:
    """Returns sorted keys, and the global position that each came from."""
    n = keys.shape[0]
    live = axis.live("keys", n, count_operand(axis.operation, "count", count, n))
    positions = axis.begin(axis.gather(live)) + jnp.arange(n, dtype=live.dtype)
    result: tuple[Any, jax.Array] = segmented_sort(
        axis, keys, heads, flags, positions, descending=descending, count=count
    )
    return result


def _flagged_ends(flags: jax.Array, n: int, live: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`own_ends` for flags."""
    positions = jnp.arange(n, dtype=live.dtype)
    starts = (flags if flags.dtype == jnp.bool_ else _unpacked(flags, n)) & (positions < live)
    return jnp.any(starts), jnp.min(jnp.where(starts, positions, live)), jnp.max(jnp.where(starts, positions, 0))


def _unpacked(words: jax.Array, n: int) -> jax.Array:
    positions = jnp.arange(n)
    return ((words[positions // 32] >> (positions % 32).astype(jnp.uint32)) & 1).astype(bool)


def run_heads(axis: Axis, keys: jax.Array, count: jax.Array, *, size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns starts of this device's runs, with the last one's end, their keys, and their number.

    Items before the first start belong to a run of an earlier device.
    """
    n = keys.shape[0]
    live = axis.live("keys", n, count)
    heads, _, _, runs = _run_heads(keys=keys, count=count, size=size + 2)
    codes = order_codes(keys, False)
    goes_on = run_goes_on(axis, live, [x[jnp.maximum(live - 1, 0)] for x in codes], [x[0] for x in codes])
    own = jax.lax.dynamic_slice_in_dim(heads, goes_on.astype(jnp.int32), size + 1)
    return own, _firsts(keys, own[:size]), runs - goes_on.astype(runs.dtype)


def run_goes_on(axis: Axis, live: jax.Array, lasts: Words, firsts: Words) -> jax.Array:
    """Returns whether this device's first key equals the last one of the nearest earlier device that has keys."""
    has, lasts = axis.gather((live > 0, list(lasts)))
    # One reduction finds the device and whether its key is equal.
    found = 2 * axis.devices + equal(lasts, firsts).astype(jnp.int32)
    nearest = jnp.max(jnp.where(has & (axis.devices < axis.index), found, 0))
    return (live > 0) & (nearest & 1 == 1)


def segment_ids(axis: Axis, heads: jax.Array, n: int, count: jax.Array) -> jax.Array:
    """Returns each item's segment, numbered over all devices; -1 for items in none."""
    dtype = axis.index_dtype("n", max(n, heads.shape[0]))
    if heads.shape[0] == 0:
        return axis.varying(jnp.full((n,), -1, dtype))
    live = axis.live("n", n, count)
    (ids,) = _search(offsets=heads, total=count, size=n, return_rank=False)
    heads = wide_enough(heads, n)
    own = number_before(heads, live.astype(heads.dtype)).astype(dtype)
    return jnp.where(live_mask(n, count), ids.astype(dtype) + axis.begin(axis.gather(own)), -1)


def segmented_shift(
    axis: Axis, x: jax.Array, heads: jax.Array, by: jax.Array, count: jax.Array, fill: jax.Array
) -> jax.Array:
    """Fetches the row that moves to each place, and the number of its segment."""
    n = x.shape[0]
    live = axis.live("x", n, count)
    lives = axis.gather(live)
    ids = segment_ids(axis, heads, n, count)
    slots = jnp.arange(n, dtype=live.dtype)
    sources = jnp.where(slots < live, axis.begin(lives) + slots - by.astype(live.dtype), -1)
    none = jnp.full((1,), -2, ids.dtype)
    rows, their_ids = fetch(axis, [x, ids], lives, sources, [fill, none])
    return select((their_ids == ids)[:, None], rows, jnp.broadcast_to(fill.astype(x.dtype), rows.shape))


def segmented_softmax(axis: Axis, x: jax.Array, heads: jax.Array, count: jax.Array, *, log: bool) -> jax.Array:
    """Returns the softmax of each segment; 0 past the live items."""
    n = x.shape[0]

    def gathered(x: jax.Array, heads: jax.Array, count: jax.Array) -> jax.Array:
        counts = axis.gather(axis.live("x", n, count))
        rows, _, total = everywhere(axis, x.reshape(n, -1), counts)
        results = softmax_rows(rows, heads_of_all(axis, heads, n, counts), total, log=log)
        return axis.varying(own_part(axis, results, counts, n).reshape(x.shape))

    def spread(x: jax.Array, heads: jax.Array, count: jax.Array) -> jax.Array:
        return _scanned_softmax(axis, x, heads, count, log=log)

    return by_size(axis, n, gathered, spread)(x, heads, count)


def _scanned_softmax(axis: Axis, x: jax.Array, heads: jax.Array, count: jax.Array, *, log: bool) -> jax.Array:
    """Computes the softmax by scans in both directions, which give each item its segment's maximum and sum."""
    named: dict[str, Any] = {"count": count_of(count), "axis_name": axis.name}
    is_live = live_mask(x.shape[0], count).reshape(-1, *[1] * (x.ndim - 1))
    x = jnp.where(is_live, x, 0)
    with by_construction():
        extremes = (
            segmented_scan(jax.lax.stop_gradient(x), heads, "max", reverse=down, **named) for down in (False, True)
        )
        shifted = x - jnp.maximum(*extremes)
        powers = exponential(shifted)
        sums = segmented_scan(powers, heads, **named)
        sums += segmented_scan(powers, heads, reverse=True, exclusive=True, **named)
    sums = jnp.where(is_live, sums, 1)
    return jnp.where(is_live, shifted - logarithm(sums) if log else ratio(powers, sums), 0)
