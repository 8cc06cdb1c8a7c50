"""Gradients and their forward passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks.case import Case, agree_within, array_bytes
from benchmarks.inputs import ragged_heads, random_keys, row_ids, size_at

__all__ = ["CASES"]

ITEMS = 2**24
WIDTH = 64
MEAN = 50  # mean number of items in a segment


def _cases(
    name: str,
    inputs: Callable[..., tuple[Any, ...]],
    ours: Callable[..., jax.Array],
    xla: Callable[..., jax.Array],
) -> list[Case]:
    """Returns two cases: the forward pass, and the gradient of the sum of squared results by the first argument."""

    def gradient(function: Callable[..., jax.Array]) -> Callable[..., Any]:
        def loss(*arrays: Any) -> jax.Array:
            return jnp.sum(jnp.square(function(*arrays).astype(jnp.float32)))

        return jax.grad(loss)

    def case(what: str, change: Callable[..., Any], passes: int) -> Case:
        return Case(
            family="derivatives",
            name=f"{name}, {what}",
            inputs=inputs,
            ours=change(ours),
            peers={"XLA": change(xla)},
            bytes=lambda *arrays: passes * array_bytes(*arrays),
            agree=agree_within(1e-3),
        )

    return [case("forward", lambda f: f, 1), case("gradient", gradient, 2)]


def _items(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    return (random_keys(rng, size_at(scale, ITEMS), "float32"),)


def _windows(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    """Makes items, starts of intervals of 16 that begin 8 apart, their offsets, and the positions of their items."""
    n = size_at(scale, ITEMS)
    starts = np.arange(0, n - 16, 8, dtype=np.int32)
    offsets = np.arange(starts.size, dtype=np.int32) * 16
    return (
        random_keys(rng, n, "float32"),
        starts,
        offsets,
        (starts[:, None] + np.arange(16, dtype=np.int32)).reshape(-1),
    )


def _rows(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    """Makes rows, heads of segments, and each row's segment."""
    n = size_at(scale, ITEMS // WIDTH)
    heads = ragged_heads(rng, n, MEAN, "uniform")
    return random_keys(rng, n * WIDTH, "float32").reshape(n, WIDTH), heads, row_ids(heads, n)


def _softmax(x: jax.Array, ids: jax.Array, segments: int) -> jax.Array:
    """Computes the softmax of segments by functions of JAX."""
    powers = jnp.exp(x - jax.lax.stop_gradient(jax.ops.segment_max(x, ids, segments))[ids])
    return powers / jax.ops.segment_sum(powers, ids, segments)[ids]


CASES = [
    *_cases("scan max, 2^24", _items, lambda x: mgpu.scan(x, "max"), jax.lax.cummax),
    *_cases(
        "scan add of rows, [2^24 / 64, 64]",
        _rows,
        lambda x, heads, ids: mgpu.scan(x),
        lambda x, heads, ids: jnp.cumsum(x, axis=0),
    ),
    *_cases(
        "intervals that overlap, 2^24",
        _windows,
        lambda x, starts, offsets, places: mgpu.interval_gather(x, starts, offsets, places.size),
        lambda x, starts, offsets, places: x[places],
    ),
    *_cases(
        "segmented max of rows, [2^24 / 64, 64]",
        _rows,
        lambda x, heads, ids: mgpu.segmented_reduce(x, heads, "max"),
        lambda x, heads, ids: jax.ops.segment_max(x, ids, heads.size),
    ),
    *_cases(
        "segmented softmax of rows, [2^24 / 64, 64]",
        _rows,
        lambda x, heads, ids: mgpu.segmented_softmax(x, heads),
        lambda x, heads, ids: _softmax(x, ids, heads.size),
    ),
]
