"""Makes most random inputs on the device, because the host would take seconds for each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = [
    "FULL_SIZE",
    "Intervals",
    "ragged_heads",
    "ragged_intervals",
    "random_key",
    "random_keys",
    "row_ids",
    "size_at",
]

FULL_SIZE = 2**26


def size_at(scale: float, full: int = FULL_SIZE) -> int:
    return max(1, int(full * scale))


def random_key(rng: np.random.Generator) -> jax.Array:
    return jax.random.key(int(rng.integers(2**31)))


def random_keys(rng: np.random.Generator, n: int, dtype: Any = "uint32") -> jax.Array:
    """Draws integers over their type's range, or normal floats."""
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return jax.random.normal(random_key(rng), (n,), dtype)
    bits = jax.random.bits(random_key(rng), (n,), f"uint{8 * dtype.itemsize}")
    return jax.lax.bitcast_convert_type(bits, dtype)


def ragged_heads(rng: np.random.Generator, n: int, mean: float, distribution: str) -> np.ndarray:
    """Draws heads over n items.

    Lengths are `"uniform"` in 0..2·mean, or `"pareto"`: floor((mean / 3) / (1 - r)^(2/3)), a heavy tail.
    """
    heads = np.zeros(1, np.int64)
    while heads[-1] < n:
        draws = int(1.1 * (n - heads[-1]) / mean) + 16
        if distribution == "uniform":
            lengths = rng.integers(0, 2 * int(mean) + 1, draws, np.int32)
        else:
            lengths = ((mean / 3) * (1 - rng.random(draws)) ** (-2 / 3)).astype(np.int64)
        heads = np.concatenate([heads, heads[-1] + np.cumsum(lengths, dtype=np.int64)])
    return heads[: np.searchsorted(heads, n)].astype(np.int32)


def row_ids(heads: np.ndarray, n: int) -> jax.Array:
    return jnp.cumsum(jnp.zeros(n, jnp.int32).at[jnp.asarray(heads)].add(1)) - 1


class Intervals(NamedTuple):
    """Intervals of uniform lengths, with sources and targets in random order."""

    x: Any  # [n] uint32
    values: Any  # [m] uint32
    offsets: Any  # [m] int32
    lengths: Any
    gather_starts: Any
    scatter_starts: Any


@functools.cache
def ragged_intervals(mean: int) -> Callable[[np.random.Generator, float], Intervals]:
    """Returns one function per mean length, so that cases share arrays."""

    def make(rng: np.random.Generator, scale: float) -> Intervals:
        n = size_at(scale)
        offsets = ragged_heads(rng, n, mean, "uniform")
        lengths = np.diff(offsets, append=np.int32(n))

        def permuted_starts() -> np.ndarray:
            order = rng.permutation(lengths.size)
            starts = np.empty_like(offsets)
            starts[order] = np.cumsum(lengths[order], dtype=np.int32) - lengths[order]
            return starts

        x, values = random_keys(rng, n), random_keys(rng, lengths.size)
        return Intervals(x, values, offsets, lengths, permuted_starts(), permuted_starts())

    return make
