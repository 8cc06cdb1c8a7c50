"""Locality sort: nearly sorted keys, and particles that have moved since they were sorted."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks import mergesort
from benchmarks.case import Case, HostPeer
from benchmarks.inputs import random_key, random_keys, size_at

__all__ = ["CASES"]

FIGURES = ((25, 1.1, 0.6), (4096, 1.3, 0.7), (2**20, 1.9, 1.2))  # width of the disorder; milliseconds: maximum, target

CELLS = 128  # cells along a side of the box
STEP = 0.1  # standard deviation of a particle's move, in cells


@functools.cache
def _nearly_sorted(width: int) -> Any:
    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        positions = jnp.arange(size_at(scale), dtype=jnp.uint32)
        return positions + random_keys(rng, positions.size) % jnp.uint32(width), positions

    return make


def _random(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    keys = random_keys(rng, size_at(scale))
    return keys, jnp.arange(keys.size, dtype=jnp.uint32)


@jax.jit
def _cells(x: jax.Array) -> jax.Array:
    cell = jnp.floor(x).astype(jnp.uint32) % CELLS
    return (cell[0] * CELLS + cell[1]) * CELLS + cell[2]


def _moved_particles(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    """Makes the cells of particles that were sorted one time step ago."""
    shape = (3, size_at(scale))
    x = jax.random.uniform(random_key(rng), shape) * CELLS
    x = jnp.take(x, jnp.argsort(_cells(x)), axis=1)
    x = x + STEP * jax.random.normal(random_key(rng), shape)
    return _cells(x), jnp.arange(shape[1], dtype=jnp.uint32)


OURS = {
    "keys": lambda keys, values: mgpu.locality_sort(keys),
    "pairs": lambda keys, values: mgpu.locality_sort(keys, values=values),
    "indices": lambda keys, values: mgpu.locality_sort_indices(keys),
}


def _case(form: str, what: str, inputs: Any, max_ms: float | None = None, target_ms: float | None = None) -> Case:
    return Case(
        family="locality_sort",
        name=f"{form} uint32, {what}",
        inputs=inputs,
        ours=OURS[form],
        peers={
            "XLA": mergesort.XLA[form],
            "CUB radix": functools.partial(mergesort.CUB[form], "radix_sort"),
            "CUB merge": functools.partial(mergesort.CUB[form], "merge_sort"),
            "NumPy": HostPeer(mergesort.NUMPY[form]),
        },
        bytes=lambda keys, values: mergesort.ITEM_BYTES[form](keys.dtype.itemsize) * keys.size,
        max_ms=max_ms,
        target_ms=target_ms,
    )


CASES = [
    *[_case("keys", f"i + rand({width})", _nearly_sorted(width), *figures) for width, *figures in FIGURES],
    *[_case("pairs", f"i + rand({width})", _nearly_sorted(width)) for width, *_ in FIGURES],
    *[_case("indices", f"i + rand({width})", _nearly_sorted(width)) for width, *_ in FIGURES],
    *[_case(form, "particles one step on", _moved_particles) for form in ("keys", "indices")],
    _case("keys", "random", _random),
]
