"""Many particle filters of any number of particles, resampled by weight.

Systematic resampling takes one random number per filter.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu


def inputs(rng, n):
    lengths = np.diff(np.sort(rng.integers(0, n + 1, max(1, n // 200) - 1)), prepend=0, append=n).astype(np.int32)
    return jax.random.key(0), rng.normal(size=(n, 3)).astype(np.float32), rng.normal(size=n).astype(np.float32), lengths


def ours(key, particles, log_weights, lengths):
    filters = mgpu.Segments.from_lengths(lengths)
    own = filters.ids(len(particles))
    part = jnp.arange(len(particles)) - filters.starts[own]
    u = (part + jax.random.uniform(key, lengths.shape)[own]) / lengths[own]
    chosen = mgpu.weighted_choice(u, mgpu.segmented_softmax(log_weights, filters), filters, own)
    return mgpu.take(particles, chosen)


def plain(key, particles, log_weights, lengths):
    number, ends = len(lengths), jnp.cumsum(lengths)
    own = jnp.repeat(jnp.arange(number), lengths, total_repeat_length=len(particles))
    starts = ends - lengths
    part = jnp.arange(len(particles)) - starts[own]
    u = (part + jax.random.uniform(key, lengths.shape)[own]) / lengths[own]
    highest = jax.ops.segment_max(log_weights, own, number, indices_are_sorted=True)
    powers = jnp.exp(log_weights - highest[own])
    totals = jax.ops.segment_sum(powers, own, number, indices_are_sorted=True)
    running = jnp.cumsum(powers / totals[own])
    before = jnp.where(starts == 0, 0, running[starts - 1])
    chosen = jnp.searchsorted(running, before[own] + u, side="right")
    return particles[jnp.clip(chosen, starts[own], ends[own] - 1)]


def compare(ours, plain):
    assert np.mean(np.asarray(ours == plain)) > 0.98  # running sums are rounded; those of `plain` are over all filters
