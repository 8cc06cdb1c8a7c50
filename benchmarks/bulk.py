"""Bulk removal and insertion of a third of the items."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks import peers
from benchmarks.case import Case, HostPeer, array_bytes
from benchmarks.inputs import random_keys, size_at

__all__ = ["CASES"]


def _inputs(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    """Makes x [n], a mask of kept items, the positions of the m dropped ones, m values, and where to insert these."""
    n = size_at(scale)
    keep = rng.random(n, np.float32) >= 1 / 3
    indices = np.flatnonzero(~keep).astype(np.int32)
    places = np.sort(rng.integers(0, n + 1, indices.size, np.int32))
    return random_keys(rng, n), keep, indices, random_keys(rng, indices.size), places


def _cub_select(x: Any, keep: Any, indices: Any, values: Any, places: Any) -> Any:
    selected, _ = peers.cub("select_flagged")(x, keep)
    return selected[: x.size - indices.size]


CASES = [
    Case(
        family="bulk",
        name="remove a third",
        inputs=_inputs,
        ours=lambda x, keep, indices, values, places: mgpu.bulk_remove(x, indices),
        peers={
            "XLA compress": lambda x, keep, indices, values, places: jnp.compress(
                keep, x, size=x.size - indices.size, fill_value=0
            ),
            "CUB": _cub_select,
            "NumPy": HostPeer(lambda x, keep, indices, values, places: np.delete(x, indices)),
        },
        # The m dropped items are not written, but m indices are read.
        bytes=lambda x, keep, indices, values, places: 2 * array_bytes(x),
        max_ms=0.20,
        target_ms=0.15,
    ),
    Case(
        family="bulk",
        name="insert a third",
        inputs=_inputs,
        ours=lambda x, keep, indices, values, places: mgpu.bulk_insert(x, places, values),
        peers={
            "XLA insert": lambda x, keep, indices, values, places: jnp.insert(x, places, values),
            "NumPy": HostPeer(lambda x, keep, indices, values, places: np.insert(x, places, values)),
        },
        bytes=lambda x, keep, indices, values, places: 2 * array_bytes(x, values) + array_bytes(places),
        max_ms=0.30,
        target_ms=0.22,
    ),
]
