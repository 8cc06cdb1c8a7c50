"""Checks calls outside of `jit` for memory leaks, by the size of the process during many runs of each call.

The calls pass NumPy arrays and changing numbers, some in batches and derivatives, and run 10^4 times. Two others pass
new functions, which compile each time, and run 200 times. `python scripts/eager_memory.py [--calls 10000]`
"""

from __future__ import annotations

import argparse
import gc
import pathlib
import resource
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu

KEYS = np.arange(100)
ROWS = np.arange(100, dtype=np.float32)
HEADS = np.arange(0, 100, 10)
PAIRS = np.stack([ROWS, ROWS])
SAMPLES = 5
MAX_GROWTH = 8 << 20  # bytes that the process may grow after the first fifth of the calls

CALLS: dict[str, Callable[[int], Any]] = {
    "lookup": lambda i: mgpu.lookup(KEYS + i % 7, KEYS, ROWS, default=i / 3),
    "lookup, mapped": lambda i: jax.vmap(lambda rows: mgpu.lookup(KEYS + i % 7, KEYS, rows))(PAIRS),
    "lookup, derived": lambda i: jax.grad(lambda rows: mgpu.lookup(KEYS + i % 7, KEYS, rows).sum())(ROWS),
    "asof_join": lambda i: mgpu.asof_join(KEYS + i % 7, KEYS, by_a=KEYS % 3, by_b=KEYS % 3),
    "quantile": lambda i: mgpu.quantile(ROWS, i % 100 / 100),
    "interval_gather, derived": lambda i: jax.grad(
        lambda x: mgpu.interval_gather(x, HEADS + i % 3, HEADS, 100, fill_value=i).sum()
    )(ROWS),
    "take_segments, derived": lambda i: jax.grad(
        lambda x: mgpu.take_segments(x, HEADS, KEYS[:10], size=100, fill_value=i)[0].sum()
    )(ROWS),
    "segmented_sort": lambda i: mgpu.segmented_sort(KEYS[::-1] + i, HEADS),
    "group_by": lambda i: mgpu.group_by((KEYS + i) % 7, ROWS, size=9),
    "select": lambda i: mgpu.select(ROWS, i % 100 < ROWS, size=100, count=50 + i % 50, fill_value=i),
}
FUNCTIONS: dict[str, Callable[[int], Any]] = {
    "reduce by a new function": lambda i: mgpu.reduce(ROWS, lambda a, b: a + b + i),
    "mergesort by a new order": lambda i: mgpu.mergesort(KEYS, less=lambda a, b: a * i - b * i < 0),
}


def resident() -> int:
    """Returns the memory of the process, in bytes."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def growth(call: Callable[[int], Any], calls: int) -> list[int]:
    """Makes the calls. Returns the size of the process after each fifth of the calls."""
    sizes = []
    for i in range(calls):
        jax.block_until_ready(call(i + 1))
        if (i + 1) % (calls // SAMPLES) == 0:
            gc.collect()
            sizes.append(resident())
    return sizes


def main() -> int:
    """Prints the sizes; returns 1 if the process grew by more than MAX_GROWTH during the calls of a function."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="calls of each function (default 10000)")
    parser.add_argument("--functions", type=int, default=200, help="calls that take a new function (default 200)")
    options = parser.parse_args()
    jnp.zeros(1).block_until_ready()
    grown = False
    for calls, table in ((options.calls, CALLS), (options.functions, FUNCTIONS)):
        for name, call in table.items():
            sizes = growth(call, calls)
            grown |= sizes[-1] - sizes[0] > MAX_GROWTH
            print(f"{name}, {calls} calls: {', '.join(f'{size / 2**20:.0f}' for size in sizes)} MiB", flush=True)
    return int(grown)


if __name__ == "__main__":
    raise SystemExit(main())
