"""Sorts over a mesh axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.annotations import Count, Pytree
from jax_mgpu._src.arguments.check import count_operand
from jax_mgpu._src.arguments.values import flatten_values, take_or_fill
from jax_mgpu._src.keys.bits import is_words
from jax_mgpu._src.keys.columns import Columns, alike, columns_of
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.exchange import Parts, by_size, everywhere, exchange
from jax_mgpu._src.mesh.remote_gather import Share, from_all, slots_of
from jax_mgpu._src.mesh.splitters import Sorted, even_edges
from jax_mgpu._src.ops.merge import merged_runs
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sort_primitives import Method

# A device with up to FEW_KEYS slots sorts the received keys again instead of merging them.
FEW_KEYS = 1 << 14
# Keys to merge are received in n / SPARE more slots than n, so that XLA:GPU puts them and the local sort's scratch
# memory in one allocation.
SPARE = 32


def sort(
    axis: Axis,
    keys: jax.Array | Columns,
    values: Pytree,
    *,
    descending: bool = False,
    count: Count,
    even: bool = True,
    method: Method = Method.FASTEST,
    bits: int | None = None,
) -> Any:
    """Returns sorted keys, with values if there are any, and with this device's count if one was given.

    Columns are sorted by one code; columns that it does not determine move along like values.
    """
    leaves, unflatten = flatten_values(axis.operation, "values", values, keys.shape[0], "keys")
    options: dict[str, Any] = {"descending": descending, "even": even, "method": method, "bits": bits}
    result, leaves, live = _sorted_over(axis, keys, leaves, count, **options)
    results = [result] if values is None else [result, unflatten(leaves)]
    return _together(results if count is None else [*results, live])


def sort_indices(axis: Axis, keys: jax.Array | Columns, *, count: Count, **options: Any) -> Any:
    """Returns sorted keys, and the global position that each came from."""
    result, (positions,), live = _sorted_over(axis, keys, [], count, ordered=True, **options)
    return _together([result, positions] if count is None else [result, positions, live])


def _sorted_over(
    axis: Axis,
    keys: jax.Array | Columns,
    leaves: Sequence[jax.Array],
    count: Count,
    *,
    descending: bool = False,
    even: bool = True,
    method: Method = Method.FASTEST,
    bits: int | None = None,
    ordered: bool = False,
) -> tuple[Any, list[jax.Array], jax.Array]:
    """Returns sorted keys with their leaves, and this device's number of them.

    With `ordered`, the first leaf is the global position that each key came from.
    """
    (n,), name, given = keys.shape, axis.operation, keys
    keys, leaves, restored = one_key(name, given, leaves)
    if isinstance(given, Columns) and not is_words(keys):
        bits = given.bits
    given_count = count_operand(name, "count", count, n)
    live = axis.live("keys", n, given_count)
    counts = axis.gather(live)
    options: dict[str, Any] = {"descending": descending, "bits": bits}
    moved = [keys, *leaves]

    def gathered(moved: list[jax.Array], live: jax.Array, counts: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        share = Share.even if even else Share.of_slots
        places, slots, number = order_of_all(
            axis, moved[0], counts, lambda _, total: share(axis, total, n), method=method, **options
        )
        moved = [take_or_fill(from_all(axis, x), slots, unique=True) for x in moved]
        return [moved[0], *([jnp.maximum(places, 0)] if ordered else []), *moved[1:]], number

    def spread(moved: list[jax.Array], live: jax.Array, counts: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        keys, *leaves = moved
        if ordered:
            leaves = [axis.begin(counts) + jnp.arange(n, dtype=live.dtype), *leaves]
        keys, leaves = _sorted(name, keys, leaves, count=given_count, method=method, **options)
        if axis.size > 1:
            sequence = Sorted(keys, jnp.zeros_like(live), live, descending)
            (edges,) = even_edges(axis, [sequence], counts[:, None], None if even else n)
            parts = Parts.between(axis, edges, n)
            keys, leaves = received_in_order(name, parts, keys, leaves, **options)
            live = parts.total
        return [keys, *leaves], live

    form = by_size(axis, n, gathered, spread) if axis.size > 1 else spread
    (keys, *leaves), live = form(moved, live, counts)
    positions, leaves = (leaves[:1], leaves[1:]) if ordered else ([], leaves)
    result, leaves = restored(keys, leaves, live)
    return result, [*positions, *leaves], live


def order_of_all(
    axis: Axis, keys: jax.Array, counts: jax.Array, share: Callable[[jax.Array, jax.Array], Share], **how: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Where devices share their memory: sorts the keys of all devices on each device.

    Returns: The global positions of this device's share of the sorted keys, -1 past it; their slots among those of all
    devices; and their number. `share` takes where each device's keys begin among all keys, and the number of all keys.
    """
    n = keys.shape[0]
    everything, offsets, total = everywhere(axis, jax.lax.stop_gradient(keys), counts)
    order = Sort(axis.operation, everything, count=total, **how).indices()[1]
    own = share(offsets[:-1], total[0])
    places = own.window(order.astype(counts.dtype), n)
    return places, slots_of(places, offsets[1:], n - counts), own.count


def keys_of_all(axis: Axis, keys: jax.Array | Columns, counts: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
    """`everywhere` for checked keys."""
    every = [everywhere(axis, x, counts) for x in columns_of(keys)]
    columns = [rows for rows, _, _ in every]
    return alike(keys, columns if isinstance(keys, Columns) else columns[0]), *every[0][1:]


def one_key(
    operation: str, keys: jax.Array | Columns, leaves: Sequence[jax.Array]
) -> tuple[jax.Array, list[jax.Array], Callable[..., tuple[Any, list[jax.Array]]]]:
    """Returns keys as one array, leaves that move with them, and the function that makes the caller's form.

    That function takes moved keys and leaves, and the number of live ones.
    """
    if not isinstance(keys, Columns):
        return keys, list(leaves), lambda keys, leaves, live: (keys, leaves)
    (code, rest), number = keys.code_and_rest(operation), len(leaves)

    def restored(code: jax.Array, leaves: list[jax.Array], live: jax.Array) -> tuple[Any, list[jax.Array]]:
        return keys.of_code_and_rest(code, leaves[number:], live), leaves[:number]

    return code, [*leaves, *rest], restored


def received_in_order(
    operation: str,
    parts: Parts,
    keys: jax.Array,
    leaves: Sequence[jax.Array],
    *,
    descending: bool,
    bits: int | None = None,
) -> tuple[jax.Array, list[jax.Array]]:
    """Returns received keys with their leaves, sorted stably; each sender has sorted its part."""
    n = parts.slots
    options: dict[str, Any] = {"descending": descending}
    if n <= FEW_KEYS:
        keys, *leaves = exchange(parts, [keys, *leaves])
        options.update(bits=bits, method=Method.FASTEST)
        return _sorted(operation, keys, leaves, count=parts.total.reshape(1), **options)
    keys, *leaves = exchange(parts.in_slots(n + n // SPARE), [keys, *leaves], most_travel=True)
    return merged_runs(operation, keys, leaves, parts.begins + parts.received, size=n, **options)


def _sorted(
    operation: str, keys: jax.Array, leaves: Sequence[jax.Array], **options: Any
) -> tuple[jax.Array, list[jax.Array]]:
    found = Sort(operation, keys, **options).run(list(leaves) or None)
    return found if leaves else (found, [])


def _together(results: Sequence[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)
