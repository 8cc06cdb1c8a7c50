"""A mixture of experts: each token goes to the experts that its router scores highest."""

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu

EXPERTS, SLOTS, WIDTH = 16, 2, 32
GRADIENT = 0


def inputs(rng, n):
    shapes = {"router": (WIDTH, EXPERTS), "experts": (EXPERTS, WIDTH, WIDTH)}
    params = {name: rng.normal(size=shape).astype(np.float32) / 6 for name, shape in shapes.items()}
    return params, rng.normal(size=(max(1, n // 32), WIDTH)).astype(np.float32)


def ours(params, x):
    logits, best = jax.lax.top_k(x @ params["router"], SLOTS)
    routed = mgpu.dispatch(x, best, EXPERTS)
    made = jax.lax.ragged_dot(routed.rows, params["experts"], routed.segments.lengths)
    return mgpu.combine(made, routed.back, jax.nn.softmax(logits))


def plain(params, x):
    logits, best = jax.lax.top_k(x @ params["router"], SLOTS)
    experts = best.reshape(-1)
    order = jnp.argsort(experts, stable=True)
    token = order // SLOTS
    lengths = jnp.bincount(experts, length=EXPERTS)
    made = jax.lax.ragged_dot(x[token], params["experts"], lengths)
    weights = jax.nn.softmax(logits).reshape(-1)[order]
    return jnp.zeros_like(x).at[token].add(weights[:, None] * made)
