"""Sorts over a mesh axis: sort locally, cut where the devices' parts begin, exchange, merge what came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.check import count_operand
from jax_mgpu._src.arguments.values import flatten_values
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.keys.bits import is_words
from jax_mgpu._src.keys.columns import Columns
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.exchange import Parts, exchange
from jax_mgpu._src.mesh.splitters import Sorted, cut_at, edges_of, even_ranks
from jax_mgpu._src.ops.merge import merged_runs
from jax_mgpu._src.ops.sort import run_sort as local_sort
from jax_mgpu._src.ops.sort_primitives import Method

__all__ = ["one_key", "sort", "sort_indices"]

# A sort of no more keys takes less time than rounds of merges.
FEW_KEYS = 1 << 14
# What is received has n / SPARE slots more than n keys need. The local sort's scratch memory is up to 2.9% longer
# than keys of 4 bytes and more, and XLA:GPU puts it in the same allocation if it fits: otherwise it makes a second one,
# as what GPUs receive needs memory of a kind of its own.
SPARE = 32


def sort(
    axis: Axis,
    keys: jax.Array | Columns,
    values: Any,
    *,
    descending: bool,
    count: jax.Array,
    even: bool,
    method: Method,
    bits: int | None,
) -> Any:
    """Sorted keys, with values where there are any, and with this device's count where one was given.

    Columns are sorted by their code; those that do not follow from it travel as values do.
    """
    (n,), name = keys.shape, axis.operation
    leaves, unflatten = ([], None) if values is None else flatten_values(name, "values", values, n, "keys")
    given = keys
    keys, leaves, restored = one_key(name, given, leaves)
    if isinstance(given, Columns) and not is_words(keys):
        bits = given.bits
    live = axis.live("keys", n, count_operand(name, "count", count, n))
    counts = axis.gather(live)
    options: dict[str, Any] = {"descending": descending, "bits": bits}
    keys, leaves = _sorted(name, keys, leaves, count=count, method=method, **options)
    if axis.size > 1:
        cuts = cut_at(
            axis,
            [Sorted(keys, jnp.zeros_like(live), live, descending)],
            even_ranks(axis, counts.sum(dtype=counts.dtype), None if even else n),
        )
        parts = Parts.between(axis, edges_of(cuts[0], counts), n)
        keys, leaves = received_in_order(name, parts, keys, leaves, **options)
        live = parts.total
    result, leaves = restored(keys, leaves, live)
    results = [result] if unflatten is None else [result, unflatten(leaves)]
    return _together(results if count is None else [*results, live])


def one_key(
    operation: str, keys: jax.Array | Columns, leaves: Sequence[jax.Array]
) -> tuple[jax.Array, list[jax.Array], Callable[..., tuple[Any, list[jax.Array]]]]:
    """Keys as one array, the leaves that go with them, and what makes the caller's of those and of the live count."""
    if not isinstance(keys, Columns):
        return keys, list(leaves), lambda keys, leaves, live: (keys, leaves)
    (code, rest), number = keys.code_and_rest(operation), len(leaves)

    def restored(code: jax.Array, leaves: list[jax.Array], live: jax.Array) -> tuple[Any, list[jax.Array]]:
        return keys.of_code_and_rest(code, leaves[number:], live), leaves[:number]

    return code, [*leaves, *rest], restored


def sort_indices(axis: Axis, keys: jax.Array | Columns, *, count: jax.Array, **options: Any) -> Any:
    """Sorted keys, and where each lay in the global array."""
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
    """The keys that this device receives, and the leaves that go with them, as each sender has sorted them; stable.

    Each sender's are a run, and neighbouring runs are merged where they lie, however long.
    """
    n = parts.slots
    options: dict[str, Any] = {"descending": descending}
    if n <= FEW_KEYS:
        keys, *leaves = exchange(parts, [keys, *leaves])
        options.update(bits=bits, method=Method.FASTEST)
        return _sorted(operation, keys, leaves, count=parts.total, **options)
    keys, *leaves = exchange(parts.in_slots(n + n // SPARE), [keys, *leaves])
    return merged_runs(operation, keys, leaves, parts.begins + parts.received, size=n, **options)


def _sorted(
    operation: str, keys: jax.Array, leaves: Sequence[jax.Array], **options: Any
) -> tuple[jax.Array, list[jax.Array]]:
    """This device's keys sorted, with what belongs to them."""
    if not leaves:
        return local_sort(operation, keys, ABSENT, ABSENT, None, **options), []
    keys, moved = local_sort(operation, keys, ABSENT, ABSENT, list(leaves), **options)
    return keys, moved


def _together(results: Sequence[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)
