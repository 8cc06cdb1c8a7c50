"""Attention over the neighbours of each node; edges are in any order, and padded with -1."""

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu

WIDTH = 16
GRADIENT = 0


def inputs(rng, n):
    nodes = max(2, n // 16)
    params = {name: rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 4 for name in ("query", "key", "value")}
    senders, receivers = rng.integers(0, nodes, (2, n)).astype(np.int32)
    senders[n - n // 10 :] = receivers[n - n // 10 :] = -1
    return params, rng.normal(size=(nodes, WIDTH)).astype(np.float32), senders, receivers


def ours(params, x, senders, receivers):
    query, key, value = (x @ params[name] for name in ("query", "key", "value"))
    scores = (mgpu.take(query, receivers) * mgpu.take(key, senders)).sum(1)
    attention = mgpu.softmax_by_id(scores, receivers, len(x))
    return mgpu.reduce_by_id(attention[:, None] * mgpu.take(value, senders), receivers, len(x))


def plain(params, x, senders, receivers):
    query, key, value = (x @ params[name] for name in ("query", "key", "value"))
    scores = (query[receivers] * key[senders]).sum(1)
    is_edge = receivers >= 0
    highest = jax.ops.segment_max(jax.lax.stop_gradient(scores), receivers, len(x))
    powers = jnp.exp(jnp.where(is_edge, scores - highest[receivers], -jnp.inf))
    totals = jax.ops.segment_sum(powers, receivers, len(x))
    attention = powers / jnp.where(is_edge, totals[receivers], 1)
    return jax.ops.segment_sum(attention[:, None] * value[senders], receivers, len(x))
