"""Scans by a function in plain JAX against lax.scan and lax.associative_scan: `python -m benchmarks.plain_scans`.

Each row scans affine maps whose states are `width` pairs of float32, on the default device, or on a CPU with
JAX_PLATFORMS=cpu. It shows medians of the scan and of its gradient in ms (processor time on a CPU, wall time
elsewhere), and the seconds that tracing and compiling the gradient take.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu

MAX_FLOATS = 1 << 25  # of both arrays
CALLS = 7


def affine(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] * b[0] + b[1]


def by_lax_scan(x: Any) -> Any:
    def step(state: Any, item: Any) -> Any:
        state = affine(state, item)
        return state, state

    first = jnp.ones_like(x[0][0]), jnp.zeros_like(x[1][0])
    return jax.lax.scan(step, first, x)[1]


WAYS: dict[str, Callable[[Any], Any]] = {
    "jax_mgpu": lambda x: mgpu.scan(x, affine),
    "lax.scan": by_lax_scan,
    "associative_scan": lambda x: jax.lax.associative_scan(affine, x),
}


def _clock() -> float:
    return time.process_time() if jax.default_backend() == "cpu" else time.perf_counter()


def median_ms(function: Callable[..., Any], *arguments: Any) -> float:
    """Returns the median of CALLS timings, each of several calls if a call is shorter than 2 ms."""
    jax.block_until_ready(function(*arguments))
    begin = _clock()
    jax.block_until_ready(function(*arguments))
    repeats = max(1, int(2e-3 / max(_clock() - begin, 1e-6)))
    times = []
    for _ in range(CALLS):
        begin = _clock()
        for _ in range(repeats):
            jax.block_until_ready(function(*arguments))
        times.append((_clock() - begin) / repeats)
    return 1e3 * statistics.median(times)


def row(n: int, width: int) -> dict[str, tuple[float, float, float]]:
    """Measures each implementation: ms of the scan, ms of its gradient, seconds to trace and compile the gradient."""
    rng = np.random.default_rng(0)
    shape = (n,) if width == 1 else (n, width)
    factors, terms, weights = (jnp.asarray(rng.uniform(0.5, 1, shape), jnp.float32) for _ in range(3))
    x = factors, terms

    def measured(way: Callable[[Any], Any]) -> tuple[float, float, float]:
        def loss(x: Any, weights: jax.Array) -> jax.Array:
            return jnp.sum(way(x)[1] * weights)

        begin = _clock()
        gradient = jax.jit(jax.grad(loss)).lower(x, weights).compile()
        compiled = _clock() - begin
        return median_ms(jax.jit(way), x), median_ms(gradient, x, weights), compiled

    return {name: measured(way) for name, way in WAYS.items()}


def main() -> None:
    """Prints a table with a line for each number of items and width."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=float, nargs="*", default=[1e2, 1e3, 1e4, 1e5, 1e6, 1e7])
    parser.add_argument("--widths", type=int, nargs="*", default=[1, 4, 16, 64])
    options = parser.parse_args()
    print("| items x width | " + " | ".join(f"{name}: scan, gradient, compile s" for name in WAYS) + " |")
    print("|---|" + "--:|" * len(WAYS))
    for width in options.widths:
        for n in map(int, options.items):
            if 2 * n * width <= MAX_FLOATS:
                cells = (" {:.3f}, {:.3f}, {:.2f} ".format(*figures) for figures in row(n, width).values())
                print(f"| {n:,} x {width} |" + "|".join(cells) + "|", flush=True)


if __name__ == "__main__":
    main()
