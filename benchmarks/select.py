from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks import peers
from benchmarks.case import Case, HostPeer, TorchPeer, agree_counted, array_bytes
from benchmarks.inputs import random_key, random_keys, size_at

__all__ = ["CASES"]


def _half(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    n = size_at(scale)
    return random_keys(rng, n, "float32"), jax.random.bernoulli(random_key(rng), 0.5, (n,))


def _rows(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    """Makes rows, and a mask that keeps about 30% of them."""
    n = size_at(scale, 2**19)
    return random_keys(rng, 64 * n, "float32").reshape(n, 64), jax.random.bernoulli(random_key(rng), 0.3, (n,))


def _few_values(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    """Makes random keys of at most 100,000 distinct values."""
    n = size_at(scale, 2**24)
    return (jax.random.randint(random_key(rng), (n,), 0, min(100_000, n)),)


def _half_bytes(x: Any, keep: Any) -> int:
    return array_bytes(x, keep) + array_bytes(x) // 2


def _distinct(x: Any) -> int:
    return min(100_000, x.size)


CASES = [
    Case(
        family="select",
        name="half of float32",
        inputs=_half,
        ours=mgpu.select,
        peers={
            "XLA compress": lambda x, keep: (
                jnp.compress(keep, x, size=x.size, fill_value=0),
                jnp.sum(keep, dtype=jnp.int32),
            ),
            "CUB": peers.cub("select_flagged"),
            "torch": TorchPeer(lambda torch, x, keep: torch.masked_select(x, keep), waits=True),
            "NumPy": HostPeer(lambda x, keep: (np.append(x[keep], np.zeros((~keep).sum(), x.dtype)), keep.sum())),
        },
        bytes=_half_bytes,
        agree=agree_counted,
        max_ms=0.16,
        target_ms=0.12,
    ),
    Case(
        family="select",
        name="30% of the rows of float32 [2^19, 64]",
        inputs=_rows,
        ours=mgpu.select,
        peers={
            "XLA compress": lambda x, keep: (
                jnp.compress(keep, x, axis=0, size=x.shape[0], fill_value=0),
                jnp.sum(keep, dtype=jnp.int32),
            ),
        },
        bytes=lambda x, keep: array_bytes(keep) + 13 * array_bytes(x) // 10,
        agree=agree_counted,
        max_ms=0.08,
        target_ms=0.055,
    ),
    Case(
        family="select",
        name="indices of half",
        inputs=_half,
        ours=lambda x, keep: mgpu.select_indices(keep),
        peers={
            "XLA nonzero": lambda x, keep: (
                jnp.flatnonzero(keep, size=keep.size, fill_value=keep.size),
                jnp.sum(keep, dtype=jnp.int32),
            ),
            "torch": TorchPeer(lambda torch, x, keep: torch.nonzero(keep), waits=True),
        },
        bytes=lambda x, keep: array_bytes(keep) + 4 * keep.size,
    ),
    Case(
        family="select",
        name="partition, float32",
        inputs=_half,
        ours=mgpu.partition,
        peers={"XLA argsort": lambda x, keep: (x[jnp.argsort(~keep, stable=True)], jnp.sum(keep, dtype=jnp.int32))},
        bytes=lambda x, keep: array_bytes(keep) + 2 * array_bytes(x),
    ),
    Case(
        family="select",
        name="unique of int32, 10^5 values",
        inputs=_few_values,
        ours=lambda x: mgpu.unique(x, size=_distinct(x)),
        peers={
            "XLA unique": lambda x: (
                jnp.unique(x, size=_distinct(x), fill_value=0),
                jnp.sum(jnp.diff(jnp.sort(x), prepend=-1) != 0, dtype=jnp.int32),
            ),
            "torch": TorchPeer(lambda torch, x: torch.unique(x), waits=True),
        },
        bytes=array_bytes,
        agree=agree_counted,
        max_ms=0.40,
        target_ms=0.30,
    ),
]
