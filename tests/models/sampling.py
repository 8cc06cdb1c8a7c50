"""The next token of each sequence, by temperature, top-k, top-p among the top-k, and min-p."""

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu

TOKENS, TEMPERATURE, TOP_K, TOP_P, MIN_P = 4000, 0.8, 50, 0.9, 0.05


def inputs(rng, n):
    return jax.random.key(0), (3 * rng.normal(size=(max(1, n // TOKENS), TOKENS))).astype(np.float32)


def ours(key, logits):
    return mgpu.sample_logits(key, logits, temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P, min_p=MIN_P)


def plain(key, logits):
    best, order = jax.lax.top_k(logits, TOP_K)
    powers = jax.nn.softmax(best / TEMPERATURE)
    powers = jnp.where(jnp.cumsum(powers, 1) - powers < TOP_P, powers, 0)
    powers = jnp.where(powers >= MIN_P * powers[:, :1], powers, 0)
    sums = jnp.cumsum(powers, 1)
    u = jax.random.uniform(key, (len(logits), 1))
    drawn = jnp.sum(sums <= u * sums[:, -1:], axis=1, keepdims=True)
    return jnp.take_along_axis(order, drawn, axis=1)[:, 0]


def compare(ours, plain):
    assert np.mean(np.asarray(ours) == np.asarray(plain)) >= 0.9  # sums are rounded
