"""What a call outside of jit costs where the work is nothing: three items, each public function.

The items are arrays of JAX. `jnp.sort`, one program of JAX's own, shows what any such call costs on this machine.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jax_mgpu as mgpu

__all__ = ["main"]

SAMPLES = 50
CALLS = 20


def _calls() -> dict[str, Callable[[], Any]]:
    keys = jnp.array([1, 2, 4], jnp.int32)
    reals = jnp.array([3.0, 1.0, 2.0])
    rows = jnp.ones((3, 2))
    heads = jnp.array([0, 2, 3], jnp.int32)
    count = jnp.asarray(2, jnp.int32)
    joined = mgpu.join(keys, keys, size=3)
    return {
        "jnp.sort": lambda: jnp.sort(keys),
        "argsort": lambda: mgpu.argsort(reals),
        "bulk_insert": lambda: mgpu.bulk_insert(reals, heads, reals),
        "bulk_remove": lambda: mgpu.bulk_remove(reals, heads),
        "interval_expand": lambda: mgpu.interval_expand(reals, heads, 3),
        "interval_gather": lambda: mgpu.interval_gather(reals, heads, heads, 3),
        "interval_move": lambda: mgpu.interval_move(reals, heads, heads, heads, reals),
        "interval_scatter": lambda: mgpu.interval_scatter(reals, heads, heads, reals),
        "join": lambda: mgpu.join(keys, keys, size=3),
        "join_columns": lambda: mgpu.join_columns(joined, reals, rows),
        "load_balance_search": lambda: mgpu.load_balance_search(heads, 3),
        "locality_sort": lambda: mgpu.locality_sort(reals),
        "locality_sort_indices": lambda: mgpu.locality_sort_indices(reals),
        "merge": lambda: mgpu.merge(keys, keys),
        "merge, rows": lambda: mgpu.merge(keys, keys, rows, rows),
        "mergesort": lambda: mgpu.mergesort(reals),
        "mergesort, rows": lambda: mgpu.mergesort(reals, {"rows": rows, "keys": keys}),
        "mergesort, count": lambda: mgpu.mergesort(reals, count=count),
        "mergesort, an int as count": lambda: mgpu.mergesort(reals, count=2),
        "mergesort_indices": lambda: mgpu.mergesort_indices(reals),
        "reduce": lambda: mgpu.reduce(reals),
        "reduce_by_key": lambda: mgpu.reduce_by_key(keys, reals, size=3),
        "scan": lambda: mgpu.scan(reals),
        "segmented_reduce": lambda: mgpu.segmented_reduce(reals, heads),
        "segmented_scan": lambda: mgpu.segmented_scan(reals, heads),
        "segmented_sort": lambda: mgpu.segmented_sort(reals, heads),
        "segmented_sort_indices": lambda: mgpu.segmented_sort_indices(reals, heads),
        "set_difference": lambda: mgpu.set_difference(keys, keys),
        "set_intersection": lambda: mgpu.set_intersection(keys, keys),
        "set_symmetric_difference": lambda: mgpu.set_symmetric_difference(keys, keys),
        "set_union": lambda: mgpu.set_union(keys, keys),
        "set_union, values": lambda: mgpu.set_union(keys, keys, reals, reals),
        "sort": lambda: mgpu.sort(reals),
        "sorted_equal_count": lambda: mgpu.sorted_equal_count(keys, keys),
        "sorted_match": lambda: mgpu.sorted_match(keys, keys),
        "sorted_search": lambda: mgpu.sorted_search(keys, keys),
    }


def main() -> int:
    """Prints microseconds a call, queued and waited for."""
    device = jax.devices()[0]
    print(f"{device.device_kind}: microseconds of an eager call on three items, queued and waited for")
    for name, call in _calls().items():
        for _ in range(20):
            jax.block_until_ready(call())
        queued, waited = (
            min(timeit.repeat(run, number=CALLS, repeat=SAMPLES)) / CALLS
            for run in (call, lambda call=call: jax.block_until_ready(call()))
        )
        print(f"{name}: {1e6 * queued:.0f} queued, {1e6 * waited:.0f} waited", flush=True)
    return 0
