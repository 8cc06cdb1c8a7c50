"""Segmented sorts of segments of mean length 4 to 1,000,000, of uniform and of heavy-tailed lengths."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks import peers
from benchmarks.case import Case, HostPeer, array_bytes
from benchmarks.inputs import ragged_heads, random_keys, row_ids, size_at

__all__ = ["CASES"]

# Mean length; max_ms of keys for uniform and for Pareto lengths; the same of pairs; target_ms of keys.
FIGURES = (
    (4, (0.68, 1.1), (1.21, 1.88), 0.4),
    (30, (0.84, 1.2), (1.38, 2.17), 0.5),
    (300, (1.4, 1.5), (2.18, 2.36), 0.8),
    (3_000, (1.6, 1.7), (2.52, 2.74), 1.0),
    (10_000, (1.8, 1.9), (2.97, 3.13), 1.2),
    (100_000, (2.3, 2.4), (4.02, 4.12), 1.5),
    (1_000_000, (2.8, 2.9), (5.18, 5.21), 1.6),
)
DISTRIBUTIONS = ("uniform", "pareto")


# Makes keys, heads, the heads followed by n, each item's segment, and values; cases share these arrays.
@functools.cache
def _inputs(mean: int, distribution: str) -> Any:
    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        n = size_at(scale)
        heads = ragged_heads(rng, n, mean, distribution)
        offsets = np.append(heads, np.int32(n))
        return random_keys(rng, n), heads, offsets, row_ids(heads, n), jnp.arange(n, dtype=jnp.uint32)

    return make


def _numpy_rows(keys: Any, heads: Any, offsets: Any, ids: Any, values: Any) -> Any:
    del heads, ids, values
    rows = keys.copy()
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        rows[begin:end].sort()
    return rows


def _keys_case(mean: int, distribution: str, max_ms: float, target_ms: float) -> Case:
    return Case(
        family="segmented_sort",
        name=f"keys, mean {mean}, {distribution}",
        inputs=_inputs(mean, distribution),
        ours=lambda keys, heads, offsets, ids, values: mgpu.segmented_sort(keys, heads),
        peers={
            "XLA": lambda keys, heads, offsets, ids, values: jax.lax.sort((ids, keys), num_keys=2, is_stable=False)[1],
            "CUB": lambda keys, heads, offsets, ids, values: peers.cub("segmented_sort")(keys, offsets),
            "CUB radix": lambda keys, heads, offsets, ids, values: peers.cub("segmented_radix_sort")(keys, offsets),
            "NumPy": HostPeer(_numpy_rows),
        },
        bytes=lambda keys, heads, offsets, ids, values: 2 * array_bytes(keys) + array_bytes(heads),
        max_ms=max_ms,
        target_ms=target_ms,
    )


def _pairs_case(mean: int, distribution: str, max_ms: float) -> Case:
    return Case(
        family="segmented_sort",
        name=f"pairs, mean {mean}, {distribution}",
        inputs=_inputs(mean, distribution),
        ours=lambda keys, heads, offsets, ids, values: mgpu.segmented_sort(keys, heads, values),
        peers={
            "XLA": lambda keys, heads, offsets, ids, values: jax.lax.sort((ids, keys, values), num_keys=2)[1:],
            "CUB": lambda keys, heads, offsets, ids, values: peers.cub("segmented_sort")(keys, offsets, values),
            "CUB radix": lambda keys, heads, offsets, ids, values: peers.cub("segmented_radix_sort")(
                keys, offsets, values
            ),
        },
        bytes=lambda keys, heads, offsets, ids, values: 2 * array_bytes(keys, values) + array_bytes(heads),
        max_ms=max_ms,
    )


def _cases(mean: int, keys_figures: Any, pairs_figures: Any, target_ms: float) -> list[Case]:
    cases = []
    for distribution, keys_figure, pairs_figure in zip(DISTRIBUTIONS, keys_figures, pairs_figures, strict=True):
        cases.append(_keys_case(mean, distribution, keys_figure, target_ms))
        cases.append(_pairs_case(mean, distribution, pairs_figure))
    return cases


CASES = [case for figures in FIGURES for case in _cases(*figures)]
