"""Sorts over a mesh axis: devices sort their keys, cut them by rank, exchange parts, and merge what they receive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.annotations import Count, Pytree
from jax_mgpu._src.arguments.check import count_operand
from jax_mgpu._src.arguments.values import flatten_values
from jax_mgpu._src.keys.bits import is_words
from jax_mgpu._src.keys.columns import Columns
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.exchange import Parts, exchange
from jax_mgpu._src.mesh.splitters import Sorted, even_edges
from jax_mgpu._src.ops.merge import merged_runs
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sort_primitives import Method

__all__ = ["one_key", "sort", "sort_indices"]

# Up to this many keys are sorted faster than they are merged in rounds.
FEW_KEYS = 1 << 14
# The received array has n / SPARE more slots than n keys need. The local sort's scratch memory is up to 2.9% longer
# than keys of 4 bytes and more, and XLA:GPU then puts both in one allocation. Otherwise it makes a second allocation,
# because GPUs receive only into a special kind of memory.
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

    Columns are sorted by one code; columns that cannot be computed from it move along like values.
    """
    (n,), name = keys.shape, axis.operation
    leaves, unflatten = ([], None) if values is None else flatten_values(name, "values", values, n, "keys")
    given = keys
    keys, leaves, restored = one_key(name, given, leaves)
    if isinstance(given, Columns) and not is_words(keys):
        bits = given.bits
    given_count = count_operand(name, "count", count, n)
    live = axis.live("keys", n, given_count)
    counts = axis.gather(live)
    options: dict[str, Any] = {"descending": descending, "bits": bits}
    keys, leaves = _sorted(name, keys, leaves, count=given_count, method=method, **options)
    if axis.size > 1:
        sequence = Sorted(keys, jnp.zeros_like(live), live, descending)
        (edges,) = even_edges(axis, [sequence], counts[:, None], None if even else n)
        parts = Parts.between(axis, edges, n)
        keys, leaves = received_in_order(name, parts, keys, leaves, **options)
        live = parts.total
    result, leaves = restored(keys, leaves, live)
    results = [result] if unflatten is None else [result, unflatten(leaves)]
    return _together(results if count is None else [*results, live])


def one_key(
    operation: str, keys: jax.Array | Columns, leaves: Sequence[jax.Array]
) -> tuple[jax.Array, list[jax.Array], Callable[..., tuple[Any, list[jax.Array]]]]:
    """Returns keys as one array, leaves that move with them, and the function that makes the caller's form of both.

    That function takes moved keys and leaves, and the number of live ones.
    """
    if not isinstance(keys, Columns):
        return keys, list(leaves), lambda keys, leaves, live: (keys, leaves)
    (code, rest), number = keys.code_and_rest(operation), len(leaves)

    def restored(code: jax.Array, leaves: list[jax.Array], live: jax.Array) -> tuple[Any, list[jax.Array]]:
        return keys.of_code_and_rest(code, leaves[number:], live), leaves[:number]

    return code, [*leaves, *rest], restored


def sort_indices(axis: Axis, keys: jax.Array | Columns, *, count: Count, **options: Any) -> Any:
    """Returns sorted keys, and the global position that each came from."""
    n = keys.shape[0]
    live = axis.live("keys", n, count_operand(axis.operation, "count", count, n))
    positions = axis.begin(axis.gather(live)) + jnp.arange(n, dtype=live.dtype)
    return sort(axis, keys, positions, count=count, **options)


def received_in_order(
    operation: str,
    parts: Parts,
    keys: jax.Array,
    leaves: Sequence[jax.Array],
    *,
    descending: bool,
    bits: int | None = None,
) -> tuple[jax.Array, list[jax.Array]]:
    """Returns the keys that this device receives, with their leaves, sorted stably; each sender has sorted its part.

    Each sender's part is a run, and neighbouring runs are merged in place, however long they are.
    """
    n = parts.slots
    options: dict[str, Any] = {"descending": descending}
    if n <= FEW_KEYS:
        keys, *leaves = exchange(parts, [keys, *leaves])
        options.update(bits=bits, method=Method.FASTEST)
        return _sorted(operation, keys, leaves, count=parts.total.reshape(1), **options)
    keys, *leaves = exchange(parts.in_slots(n + n // SPARE), [keys, *leaves])
    return merged_runs(operation, keys, leaves, parts.begins + parts.received, size=n, **options)


def _sorted(
    operation: str, keys: jax.Array, leaves: Sequence[jax.Array], **options: Any
) -> tuple[jax.Array, list[jax.Array]]:
    """Sorts this device's keys with their leaves."""
    found = Sort(operation, keys, **options).run(list(leaves) or None)
    return found if leaves else (found, [])


def _together(results: Sequence[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)
