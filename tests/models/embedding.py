"""The weighted mean of the embeddings of each bag of words; -1 is padding."""

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu

WORDS, WIDTH = 5000, 32
GRADIENT = 0


def inputs(rng, n):
    lengths = np.diff(np.sort(rng.integers(0, n + 1, max(1, n // 30) - 1)), prepend=0, append=n)
    words = np.where(rng.random(n) < 0.9, (WORDS * rng.random(n) ** 3).astype(int), -1)
    table, weights = rng.normal(size=(WORDS, WIDTH)), rng.random(n) + 0.1
    return table.astype(np.float32), words.astype(np.int32), lengths.astype(np.int32), weights.astype(np.float32)


def ours(table, words, lengths, weights):
    bags = mgpu.Segments.from_lengths(lengths)
    means = mgpu.segmented_reduce(table, bags, "mean", indices=words, weights=weights)
    return jnp.nan_to_num(means)


def plain(table, words, lengths, weights):
    bag = jnp.repeat(jnp.arange(len(lengths)), lengths, total_repeat_length=len(words))
    weights = jnp.where(words < 0, 0, weights)
    rows = weights[:, None] * table[words]
    sums = jax.ops.segment_sum(rows, bag, len(lengths), indices_are_sorted=True)
    totals = jax.ops.segment_sum(weights, bag, len(lengths), indices_are_sorted=True)
    return sums / jnp.where(totals == 0, 1, totals)[:, None]
