"""A mixture of experts: tokens dispatched to their experts and combined again, as docs/experts.md composes it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks.case import Case, TorchPeer, agree_within, array_bytes
from benchmarks.inputs import random_key, size_at

__all__ = ["CASES", "combine", "dispatch"]

EXPERTS, CHOSEN, WIDTH = 256, 8, 7168


@jax.custom_vjp
def copies(tokens: Any, order: Any, back: Any) -> Any:
    """Gathers token `order[i] // k` into row i. The gradient sums the k copies of each token in a fixed order."""
    del back
    each = order.size // tokens.shape[0]
    return mgpu.interval_gather(tokens, order // each, jnp.arange(order.size, dtype=order.dtype), order.size)


def _copies_forward(tokens: Any, order: Any, back: Any) -> Any:
    return copies(tokens, order, back), (back, tokens.shape[0])


def _copies_backward(kept: Any, cotangent: Any) -> Any:
    back, tokens = kept
    return cotangent[back].reshape(tokens, -1, *cotangent.shape[1:]).sum(1), None, None


copies.defvjp(_copies_forward, _copies_backward)


def dispatch(tokens: Any, experts: Any, count: int) -> tuple[mgpu.Ragged, Any]:
    """A ragged batch with one row of tokens per expert, and the position of each token's copies in it."""
    ids = experts.reshape(-1)
    order = mgpu.argsort(ids, bits=max(1, (count - 1).bit_length()))
    back = jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=order.dtype), unique_indices=True)
    ends = jnp.cumsum(mgpu.bincount(ids, count))
    return mgpu.Ragged(copies(tokens, order, back), jnp.pad(ends, (1, 0))), back


def combine(rows: Any, back: Any, weights: Any) -> Any:
    """The weighted sum of the experts' outputs for each token."""
    picked = rows.at[back].get(unique_indices=True, mode="promise_in_bounds")
    return jnp.einsum("tk,tkd->td", weights, picked.reshape(*weights.shape, -1))


def _inputs(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    """Tokens of bfloat16, their experts, the weights, the dispatched rows, and the position of each copy."""
    tokens, width = size_at(min(1, 32 * scale), 4096), size_at(min(1, 32 * scale), WIDTH)
    x = jax.random.normal(random_key(rng), (tokens, width), jnp.bfloat16)
    experts = jax.lax.top_k(jax.random.normal(random_key(rng), (tokens, EXPERTS)), CHOSEN)[1]
    weights = jax.nn.softmax(jax.random.normal(random_key(rng), (tokens, CHOSEN))).astype(jnp.bfloat16)
    rows, back = dispatch(x, experts, EXPERTS)
    return x, experts, weights, rows.values, back


def _xla_combine(x: Any, experts: Any, weights: Any, rows: Any, back: Any) -> Any:
    order = jnp.argsort(back)
    weighted = rows * weights.reshape(-1)[order][:, None]
    return jnp.zeros(x.shape, jnp.float32).at[order // CHOSEN].add(weighted.astype(jnp.float32)).astype(x.dtype)


def _torch_combine(torch: Any, x: Any, experts: Any, weights: Any, rows: Any, back: Any) -> Any:
    return torch.einsum("tk,tkd->td", weights, rows[back.long()].reshape(*weights.shape, -1))


CASES = [
    Case(
        family="experts",
        name="dispatch of 4,096 tokens to 8 of 256",
        inputs=_inputs,
        ours=lambda x, experts, weights, rows, back: dispatch(x, experts, EXPERTS)[0].values,
        peers={
            "XLA argsort": lambda x, experts, weights, rows, back: x[
                jnp.argsort(experts.reshape(-1), stable=True) // CHOSEN
            ],
            "torch": TorchPeer(
                lambda torch, x, experts, weights, rows, back: x[
                    torch.argsort(experts.reshape(-1), stable=True) // CHOSEN
                ]
            ),
        },
        bytes=lambda x, experts, weights, rows, back: array_bytes(x, experts, rows),
        must_reach=0.20,
        aim=0.14,
    ),
    Case(
        family="experts",
        name="combine of the same",
        inputs=_inputs,
        ours=lambda x, experts, weights, rows, back: combine(rows, back, weights),
        peers={"XLA scatter-add": _xla_combine, "torch": TorchPeer(_torch_combine)},
        bytes=lambda x, experts, weights, rows, back: array_bytes(x, weights, rows, back),
        agree=agree_within(2e-2),
        must_reach=0.20,
        aim=0.14,
    ),
]
