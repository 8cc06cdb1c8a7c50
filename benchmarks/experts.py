"""A mixture of experts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks.case import Case, TorchPeer, agree_within, array_bytes
from benchmarks.inputs import random_key, size_at

__all__ = ["CASES"]

EXPERTS, CHOSEN, WIDTH = 256, 8, 7168


def _inputs(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    """Makes bfloat16 tokens, their experts and weights, the dispatched rows, and each copy's position."""
    tokens, width = size_at(min(1, 32 * scale), 4096), size_at(min(1, 32 * scale), WIDTH)
    x = jax.random.normal(random_key(rng), (tokens, width), jnp.bfloat16)
    experts = jax.lax.top_k(jax.random.normal(random_key(rng), (tokens, EXPERTS)), CHOSEN)[1]
    weights = jax.nn.softmax(jax.random.normal(random_key(rng), (tokens, CHOSEN))).astype(jnp.bfloat16)
    routed = mgpu.dispatch(x, experts, EXPERTS)
    return x, experts, weights, routed.rows, routed.back


def _xla_combine(x: Any, experts: Any, weights: Any, rows: Any, back: Any) -> Any:
    order = jnp.argsort(back.reshape(-1))
    weighted = rows * weights.reshape(-1)[order][:, None]
    return jnp.zeros(x.shape, jnp.float32).at[order // CHOSEN].add(weighted.astype(jnp.float32)).astype(x.dtype)


def _torch_combine(torch: Any, x: Any, experts: Any, weights: Any, rows: Any, back: Any) -> Any:
    return torch.einsum("tk,tkd->td", weights, rows[back.long()])


CASES = [
    Case(
        family="experts",
        name="dispatch of 4,096 tokens to 8 of 256",
        inputs=_inputs,
        ours=lambda x, experts, weights, rows, back: mgpu.dispatch(x, experts, EXPERTS).rows,
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
        max_ms=0.20,
        target_ms=0.14,
    ),
    Case(
        family="experts",
        name="combine of 4,096 tokens from 8 of 256",
        inputs=_inputs,
        ours=lambda x, experts, weights, rows, back: mgpu.combine(rows, back, weights),
        peers={"XLA scatter-add": _xla_combine, "torch": TorchPeer(_torch_combine)},
        bytes=lambda x, experts, weights, rows, back: array_bytes(x, weights, rows, back),
        agree=agree_within(2e-2),
        max_ms=0.20,
        target_ms=0.14,
    ),
]
