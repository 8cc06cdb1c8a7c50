"""Ragged batches under vmap in an exported program: the median and the largest items of each segment."""

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu

BATCH, LARGEST = 4, 3
EXPORTED = True


def inputs(rng, n):
    n //= BATCH
    lengths = rng.integers(0, 60, (BATCH, max(1, n // 40))).astype(np.int32)
    lengths[np.cumsum(lengths, 1) > n] = 0
    return rng.normal(size=(BATCH, n)).astype(np.float32), lengths


def ours(x, lengths):
    def of_batch(x, lengths):
        segments = mgpu.Segments.from_lengths(lengths)
        return mgpu.segmented_quantile(x, segments, 0.5), mgpu.segmented_top_k(x, segments, LARGEST).values

    return jax.vmap(of_batch)(x, lengths)


def plain(x, lengths):
    def of_batch(x, lengths):
        ends = jnp.cumsum(lengths)
        starts = ends - lengths
        own = jnp.repeat(jnp.arange(lengths.size), lengths, total_repeat_length=x.size)
        own = jnp.where(jnp.arange(x.size) < ends[-1], own, lengths.size)
        _, ordered = jax.lax.sort((own, x), num_keys=2)
        low, high = starts + (lengths - 1) // 2, starts + lengths // 2
        median = jnp.where(lengths > 0, (ordered[low] + ordered[high]) / 2, jnp.nan)
        at = ends[:, None] - 1 - jnp.arange(LARGEST)
        return median, jnp.where(at >= starts[:, None], ordered[at], 0)

    return jax.vmap(of_batch)(x, lengths)
