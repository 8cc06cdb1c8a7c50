"""Gathered and weighted rows: sparse products, embedding bags, graph attention, and gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse

import jax_mgpu as mgpu
from benchmarks.case import Case, TorchPeer, agree_within, array_bytes
from benchmarks.inputs import ragged_heads, random_key, row_ids, size_at

__all__ = ["CASES"]

MEAN = 16  # mean number of entries in a segment

# For each product: log2 of the number of entries, columns, and (max_ms, target_ms) for float32 and bfloat16.
PRODUCTS: tuple[tuple[int, int, tuple[float, float], tuple[float, float]], ...] = (
    (25, 1, (0.30, 0.26), (0.30, 0.26)),
    (24, 1, (0.140, 0.130), (0.140, 0.130)),
    (24, 4, (0.20, 0.16), (0.20, 0.16)),
    (23, 16, (0.145, 0.11), (0.115, 0.09)),
    (24, 32, (0.53, 0.45), (0.40, 0.31)),
    (22, 64, (0.22, 0.18), (0.13, 0.10)),
    (22, 128, (0.50, 0.42), (0.26, 0.20)),
    (20, 512, (0.35, 0.28), (0.21, 0.16)),
)


def _zipf(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
    """Draws integers below n, lower ones more often."""
    return np.minimum(n ** rng.random(count) - 1, n - 1).astype(np.int32)


@functools.cache
def _products(log: int, columns: int, dtype: str, zipf: bool) -> Callable[..., tuple[Any, ...]]:
    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        entries = size_at(scale, 2**log)
        rows = entries // MEAN
        heads = ragged_heads(rng, entries, MEAN, "pareto")
        x = jax.random.normal(random_key(rng), (rows, columns), jnp.dtype(dtype))
        indices = _zipf(rng, rows, entries) if zipf else rng.integers(0, rows, entries, np.int32)
        weights = jax.random.uniform(random_key(rng), (entries,), jnp.dtype(dtype))
        return x, jnp.asarray(heads), jnp.asarray(indices), weights, row_ids(heads, entries)

    return make


def _xla_sums(x: Any, heads: Any, indices: Any, weights: Any, ids: Any) -> Any:
    sums = jax.ops.segment_sum(
        (x[indices] * weights[:, None]).astype(jnp.float32), ids, heads.shape[0], indices_are_sorted=True
    )
    return sums.astype(x.dtype)


def _bcsr_sums(x: Any, heads: Any, indices: Any, weights: Any, ids: Any) -> Any:
    offsets = jnp.append(heads, indices.shape[0])
    return sparse.BCSR((weights, indices, offsets), shape=(heads.shape[0], x.shape[0])) @ x


def _torch_sums(torch: Any, x: Any, heads: Any, indices: Any, weights: Any, ids: Any) -> Any:
    """Returns the sums by cuSPARSE, which PyTorch calls."""
    ends = torch.full((1,), indices.shape[0], dtype=heads.dtype, device=heads.device)
    matrix = torch.sparse_csr_tensor(torch.cat([heads, ends]), indices, weights, (heads.shape[0], x.shape[0]))
    return matrix @ x


def _moved(x: Any, heads: Any, indices: Any, weights: Any, ids: Any) -> int:
    entries, item = indices.size, x.dtype.itemsize
    return entries * (4 + item + x.shape[1] * item) + heads.size * (4 + x.shape[1] * item)


def _product(log: int, columns: int, dtype: str, figures: tuple[float | None, float | None], zipf: bool) -> Case:
    return Case(
        family="gathered",
        name=f"product 2^{log} entries x {columns} {dtype}" + (", Zipf" if zipf else ""),
        inputs=_products(log, columns, dtype, zipf),
        ours=lambda x, heads, indices, weights, ids: mgpu.segmented_reduce(x, heads, indices=indices, weights=weights),
        peers={
            "XLA": _xla_sums,
            **({"BCSR": _bcsr_sums, "cuSPARSE by torch": TorchPeer(_torch_sums)} if dtype == "float32" else {}),
        },
        bytes=_moved,
        max_ms=figures[0],
        target_ms=figures[1],
        agree=agree_within(1e-4 if dtype == "float32" else 2e-2),
    )


def _bag(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    ids = size_at(scale, 2**21)
    rows = size_at(scale, 2**20)
    heads = jnp.arange(0, ids, MEAN, dtype=jnp.int32)
    table = jax.random.normal(random_key(rng), (rows, 128), jnp.bfloat16)
    return table, heads, jnp.asarray(rng.permutation(rows)[_zipf(rng, rows, ids)].astype(np.int32))


def _bag_sums(table: Any, heads: Any, indices: Any) -> Any:
    return mgpu.segmented_reduce(table, heads, indices=indices)


def _bag_gradient(table: Any, heads: Any, indices: Any) -> Any:
    return jax.grad(lambda table: jnp.sum(_bag_sums(table, heads, indices).astype(jnp.float32) ** 2))(table)


def _attention_inputs(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    edges = size_at(scale, 2**22)
    nodes = edges // MEAN
    heads = ragged_heads(rng, edges, MEAN, "pareto")
    x = jax.random.normal(random_key(rng), (nodes, 64), jnp.float32)
    logits = jax.random.normal(random_key(rng), (edges,), jnp.float32)
    return x, logits, jnp.asarray(heads), jnp.asarray(rng.integers(0, nodes, edges, np.int32))


def _attention(x: Any, logits: Any, heads: Any, indices: Any) -> Any:
    weights = mgpu.segmented_softmax(logits, heads)
    return mgpu.segmented_reduce(x, heads, indices=indices, weights=weights)


def _attention_gradient(x: Any, logits: Any, heads: Any, indices: Any) -> Any:
    return jax.value_and_grad(lambda x, logits: jnp.sum(_attention(x, logits, heads, indices) ** 2), argnums=(0, 1))(
        x, logits
    )


def _composed(name: str, inputs: Any, ours: Any, figures: tuple[float, float], passes: int) -> Case:
    def moved(x: Any, *others: Any) -> int:
        entries = others[-1].size
        return passes * entries * (4 + x.shape[1] * x.dtype.itemsize) + array_bytes(x)

    return Case("gathered", name, inputs, ours, {}, moved, *figures)


CASES = [
    *(
        _product(log, columns, dtype, figures, False)
        for log, columns, *by_type in PRODUCTS
        for dtype, figures in zip(("float32", "bfloat16"), by_type, strict=True)
    ),
    _product(25, 1, "float32", (0.20, 0.15), True),
    _composed("embedding bag of 2^21 ids, 128 bfloat16", _bag, _bag_sums, (0.20, 0.15), 1),
    _composed("embedding bag of 2^21 ids, gradient", _bag, _bag_gradient, (0.80, 0.5), 2),
    _composed("graph attention, 2^22 edges x 64", _attention_inputs, _attention, (0.35, 0.28), 1),
    _composed("graph attention, value and gradient", _attention_inputs, _attention_gradient, (1.3, 1.0), 4),
]
