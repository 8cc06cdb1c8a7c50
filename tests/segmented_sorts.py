"""Helpers of the tests of segmented sorts."""

from __future__ import annotations

import functools

import jax
import numpy as np

import jax_mgpu as mgpu
from tests import data, oracle
from tests.oracle import same_bits

# CELLS are the numbers of items that a thread sorts, TILES those that a block or a CPU task sorts.
CELLS = data.tile_sizes("sort_items")
TILES = data.tile_sizes("segmented_sort")
BLOCK = TILES[-2]  # a block's tile for keys of up to 32 bits
SEVERAL_TILES = 3 * TILES[-1] + 77


def random_heads(rng, n, m):
    """Draws heads of m segments, some empty, with padding at the end."""
    padding = m // 8
    return np.concatenate([np.sort(rng.integers(0, max(n, 1), m - padding)), np.full(padding, n + 3)]).astype(np.int32)


def forms(n, heads):
    """Returns the arguments that describe the segments in each form."""
    flags = data.flags_of(n, heads)
    return {"heads": {"heads": heads}, "bool": {"flags": flags}, "words": {"flags": data.words_of(flags)}}


def check(keys, heads, *, form="heads", descending=False, count=None, sort=mgpu.segmented_sort_indices):
    order = oracle.segmented_sort_indices(keys, heads, descending, count)
    sorted_keys, indices = sort(keys, **forms(len(keys), heads)[form], descending=descending, count=count)
    same_bits(sorted_keys, keys[order])
    same_bits(indices, order.astype(np.int32))


@functools.cache
def jitted(**attributes):
    return jax.jit(functools.partial(mgpu.segmented_sort_indices, **attributes))


def batched_cases(rng, batch, n, m, dtype):
    keys = data.random_keys(rng, dtype, batch, n)
    heads = np.stack([random_heads(rng, n, m) for _ in range(batch)])
    counts = rng.integers(0, n + 1, batch).astype(np.int32)
    values = rng.integers(0, 2**32, (batch, n), dtype=np.uint32)
    return keys, heads, counts, values
