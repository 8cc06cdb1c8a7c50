"""Times our calls outside of jit, and JAX's counterparts in jit, on 3 items (overhead alone) and on 1,000.

Operands are JAX arrays and, in cases named "host", NumPy's 64-bit arrays and Python numbers. Times are microseconds of
CPU time over all threads until the result is ready. The median of five processes' shortest samples is shown.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu

__all__ = ["main"]

SIZES = 3, 1000
PROCESSES = 5
SAMPLES = 10
CALLS = 100

Call = Callable[[], Any]


def _calls(n: int) -> dict[str, tuple[Call, Call]]:
    keys, reals = jnp.arange(n, dtype=jnp.int32), jnp.asarray(np.random.default_rng(1).random(n, np.float32))
    host, rows = np.arange(n), jnp.ones((n, 2))
    heads, lengths, keep = keys[::2], jnp.ones((n,), jnp.int32), reals > 0.5
    segments, half, halves = heads.shape[0], jnp.float32(0.5), keys // 2

    def jitted(peer: Callable[..., Any], *operands: Any) -> Call:
        compiled = jax.jit(peer)
        return lambda: compiled(*operands)

    ids = jitted(lambda x, i: jax.ops.segment_sum(x, i, segments), reals, halves)
    sort, search = jitted(jnp.sort, reals), jitted(jnp.searchsorted, keys, keys)
    return {
        "argsort": (lambda: mgpu.argsort(reals), jitted(jnp.argsort, reals)),
        "bincount": (lambda: mgpu.bincount(keys, n), jitted(lambda x: jnp.bincount(x, length=n), keys)),
        "histogram": (lambda: mgpu.histogram(reals, reals), jitted(lambda x, e: jnp.histogram(x, e)[0], reals, reals)),
        "interval_expand": (
            lambda: mgpu.interval_expand(reals, keys, n),
            jitted(lambda x, lengths: jnp.repeat(x, lengths, total_repeat_length=n), reals, lengths),
        ),
        "lookup": (lambda: mgpu.lookup(keys, keys, reals), jitted(lambda k, x: x[jnp.searchsorted(k, k)], keys, reals)),
        "lookup, host": (
            lambda: mgpu.lookup(host, keys, reals, default=1.5),
            jitted(
                lambda h, k, x, default: jnp.where(h < n, x[jnp.searchsorted(k, h)], default), host, keys, reals, 1.5
            ),
        ),
        "mergesort": (lambda: mgpu.mergesort(reals), sort),
        "quantile": (lambda: mgpu.quantile(reals, half), jitted(lambda x: jnp.quantile(x, 0.5), reals)),
        "quantile, host": (lambda: mgpu.quantile(reals, 0.5), jitted(jnp.quantile, reals, 0.5)),
        "reduce": (lambda: mgpu.reduce(reals), jitted(jnp.sum, reals)),
        "reduce_by_id": (lambda: mgpu.reduce_by_id(reals, halves, size=segments), ids),
        "scan": (lambda: mgpu.scan(reals), jitted(jnp.cumsum, reals)),
        "segmented_reduce": (lambda: mgpu.segmented_reduce(reals, heads), ids),
        "segmented_sort": (lambda: mgpu.segmented_sort(reals, heads), sort),
        "select": (
            lambda: mgpu.select(reals, keep, size=n),
            jitted(lambda x, keep: x[jnp.nonzero(keep, size=n, fill_value=0)[0]], reals, keep),
        ),
        "set_union": (
            lambda: mgpu.set_union(keys, keys, size=n),
            jitted(lambda a, b: jnp.union1d(a, b, size=n), keys, keys),
        ),
        "sort": (lambda: mgpu.sort(reals), sort),
        "sort, host": (lambda: mgpu.sort(host), jitted(jnp.sort, host)),
        "sorted_search": (lambda: mgpu.sorted_search(keys, keys), search),
        "take": (lambda: mgpu.take(rows, keys), jitted(lambda x, i: x[i], rows, keys)),
        "top_k": (lambda: mgpu.top_k(reals, 2), jitted(lambda x: jax.lax.top_k(x, 2), reals)),
        "unique": (lambda: mgpu.unique(keys, size=n), jitted(lambda x: jnp.unique(x, size=n), keys)),
    }


def _microseconds(call: Call) -> float:
    """Returns a call's CPU time in microseconds, the shortest of SAMPLES samples."""
    samples = []
    for _ in range(SAMPLES + 1):
        before = time.process_time()
        for _ in range(CALLS):
            jax.block_until_ready(call())
        samples.append((time.process_time() - before) / CALLS)
    return 1e6 * min(samples[1:])


def _times() -> list[list[float]]:
    return [[*map(_microseconds, (call, peer))] for n in SIZES for call, peer in _calls(n).values()]


def main() -> int:
    if sys.argv[-1] == "--one-process":
        print(json.dumps(_times()))
        return 0
    command = [sys.executable, "-m", "benchmarks.eager", "--one-process"]
    runs = [json.loads(subprocess.check_output(command, text=True).splitlines()[-1]) for _ in range(PROCESSES)]
    print(f"{jax.devices()[0].device_kind}: CPU time in us of an eager call and of its peer in jit, and their ratio")
    names = [f"{name}, {n} items" for n in SIZES for name in _calls(n)]
    for name, *samples in zip(names, *runs, strict=True):
        call, peer = (statistics.median(times) for times in zip(*samples, strict=True))
        print(f"{name}: {call:.1f} {peer:.1f} {call / peer:.2f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
