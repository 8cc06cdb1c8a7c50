"""Top-k, quantiles, counts, and the softmax of segments."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks.case import Case, TorchPeer, agree_within, array_bytes
from benchmarks.inputs import ragged_heads, random_key, random_keys, row_ids, size_at

__all__ = ["CASES"]


def _rows(rows: int, length: int) -> Any:
    def inputs(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        """Makes `rows` rows of `length` items, or fewer and shorter ones at scales below 1/64."""
        shape = (max(1, int(rows * min(1, scale * 64))), size_at(min(1, scale * 64), length))
        return (random_keys(rng, shape[0] * shape[1], "float32").reshape(shape),)

    return inputs


def _ascending(rows: int, length: int) -> Any:
    def inputs(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        return (jnp.sort(_rows(rows, length)(rng, scale)[0], axis=-1),)

    return inputs


def _top_k(
    name: str,
    rows: int,
    length: int,
    k: int,
    max_ms: float | None = None,
    target_ms: float | None = None,
    inputs_of: Any = _rows,
) -> Case:
    def ours(x: Any) -> Any:
        best = jax.vmap(lambda row: mgpu.top_k(row, min(k, x.shape[1])))(x)
        return best.values, best.indices

    return Case(
        family="ranks",
        name=name,
        inputs=inputs_of(rows, length),
        ours=ours,
        peers={
            "XLA top_k": lambda x: tuple(jax.lax.top_k(x, min(k, x.shape[1]))),
            **_unstable_top_k(k),
            "torch": TorchPeer(lambda torch, x: torch.topk(x, min(k, x.shape[1]))),
        },
        bytes=array_bytes,
        max_ms=max_ms,
        target_ms=target_ms,
    )


def _unstable_top_k(k: int) -> dict[str, Any]:
    """Returns XLA's selection with ties in any order, if JAX has one."""
    if "is_stable" not in inspect.signature(jax.lax.top_k).parameters:
        return {}
    options: dict[str, Any] = {"is_stable": False}
    return {"XLA top_k, not stable": lambda x: tuple(jax.lax.top_k(x, min(k, x.shape[1]), **options))}


def _xla_top_p(u: Any, x: Any) -> Any:
    """Draws tokens by definition, with XLA's sorts and scans."""
    order = jnp.argsort(x, axis=-1, descending=True)
    p = jax.nn.softmax(jnp.take_along_axis(x, order, -1), axis=-1)
    sums = jnp.cumsum(p, axis=-1)
    kept = jnp.where(sums - p < 0.9, p, 0)
    drawn = jnp.sum(jnp.cumsum(kept, axis=-1) <= u[:, None] * kept.sum(-1, keepdims=True), axis=-1)
    return jnp.take_along_axis(order, jnp.minimum(drawn, x.shape[-1] - 1)[:, None], -1)[:, 0]


def _top_p(rows: int, n: int, max_ms: float | None = None) -> Case:
    """Returns a case that draws tokens among the most probable ones that make up 0.9 together."""

    def inputs(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        own = max(1, int(rows * min(1, scale * 64)))
        key = random_key(rng)
        return key, jax.random.uniform(key, (own,)), jax.random.normal(random_key(rng), (own, n))

    return Case(
        family="ranks",
        name=f"top-p sampling of {rows:,} x {n:,} logits",
        inputs=inputs,
        ours=lambda key, u, x: mgpu.sample_logits(key, x, top_p=0.9),
        peers={"XLA sort, cumsum": lambda key, u, x: _xla_top_p(u, x)},
        bytes=lambda key, u, x: array_bytes(x),
        agree=lambda ours, theirs: float(np.mean(np.asarray(ours) != np.asarray(theirs))) < 0.05,  # sums are rounded
        max_ms=max_ms,
    )


def _softmax_of_rows(width: int, distribution: str, mean: int) -> Case:
    """Returns a case of 2^26 floats in rows, in segments of this mean length.

    A `width` of 0 means 2^24 single floats, a `mean` of 0 one segment.
    """

    def inputs(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        shape = (max(size_at(scale) // width, 1), width) if width else (size_at(scale, 2**24),)
        heads = ragged_heads(rng, shape[0], mean, distribution) if mean else np.zeros(1, np.int32)
        return random_keys(rng, math.prod(shape), "float32").reshape(shape), heads, row_ids(heads, shape[0])

    lengths = f"{distribution}, mean {mean:,}" if mean else "one segment"
    max_ms, target_ms = {0: (0.08, 0.045), 2: (0.25, 0.19)}.get(width, (0.20, 0.165))
    has_limits = width == 0 or (distribution, mean) == ("uniform", 50)
    return Case(
        family="ranks",
        name=f"softmax of rows of {width:,}, {lengths}" if width else f"softmax, mean {mean}",
        inputs=inputs,
        ours=lambda x, heads, ids: mgpu.segmented_softmax(x, heads),
        peers={"XLA segment_max, segment_sum": _xla_softmax, "torch": TorchPeer(_torch_softmax)},
        bytes=lambda x, heads, ids: 2 * array_bytes(x) + array_bytes(heads),
        agree=agree_within(1e-5),
        max_ms=max_ms if has_limits else None,
        target_ms=target_ms if has_limits else None,
    )


def _xla_softmax(x: Any, heads: Any, ids: Any) -> Any:
    m = heads.shape[0]
    exponentials = jnp.exp(x - jax.ops.segment_max(x, ids, m, indices_are_sorted=True)[ids])
    return exponentials / jax.ops.segment_sum(exponentials, ids, m, indices_are_sorted=True)[ids]


def _torch_softmax(torch: Any, x: Any, heads: Any, ids: Any) -> Any:
    ids = ids.long()
    places = ids.reshape(-1, *[1] * (x.ndim - 1)).expand_as(x)
    largest = torch.full((heads.shape[0], *x.shape[1:]), -torch.inf, device=x.device)
    largest.scatter_reduce_(0, places, x, "amax")
    exponentials = torch.exp(x - largest[ids])
    return exponentials / torch.zeros_like(largest).index_add_(0, ids, exponentials)[ids]


def _bincount_case(name: str, size: int, ids: Callable[[np.random.Generator, int], Any], max_ms: float | None) -> Case:
    return Case(
        family="ranks",
        name=f"bincount of {name}",
        inputs=lambda rng, scale: (jnp.asarray(ids(rng, size_at(scale, 2**24)), jnp.int32),),
        ours=lambda ids: mgpu.bincount(ids, size),
        peers={
            "XLA bincount": lambda ids: jnp.bincount(ids, length=size).astype(jnp.int32),
            "torch": TorchPeer(lambda torch, ids: torch.bincount(ids, minlength=size), waits=True),
        },
        bytes=array_bytes,
        max_ms=max_ms,
    )


def _top_k_of_segments(k: int, distribution: str, mean: int, max_ms: float | None = None) -> Case:
    def inputs(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        n = size_at(scale, 2**24)
        heads = ragged_heads(rng, n, mean, distribution)
        return random_keys(rng, n, "float32"), heads, row_ids(heads, n)

    def by_a_sort(x: jax.Array, heads: jax.Array, ids: jax.Array) -> Any:
        n, positions = x.shape[0], jnp.arange(x.shape[0], dtype=jnp.int32)
        _, ordered, order = jax.lax.sort((ids, -x, positions), num_keys=2)
        places = heads[:, None] + jnp.arange(k)
        exists = places < jnp.append(heads[1:], n)[:, None]
        places = jnp.minimum(places, n - 1)
        return jnp.where(exists, -ordered[places], 0), jnp.where(exists, order[places], -1)

    return Case(
        family="ranks",
        name=f"top {k} of segments, {distribution}, mean {mean:,}",
        inputs=inputs,
        ours=lambda x, heads, ids: mgpu.segmented_top_k(x, heads, k)[:2],
        peers={"XLA sort": by_a_sort},
        bytes=lambda x, heads, ids: array_bytes(x) + (1 + 2 * k) * array_bytes(heads),
        max_ms=max_ms,
    )


def _medians_of_segments(length: int) -> Case:
    def by_a_sort(x: jax.Array, heads: jax.Array, ids: jax.Array) -> jax.Array:
        ordered, ends = jax.lax.sort((ids, x), num_keys=2)[1], jnp.append(heads[1:], x.shape[0])
        return (ordered[(heads + ends - 1) // 2] + ordered[(heads + ends) // 2]) / 2

    return Case(
        family="ranks",
        name=f"medians of segments of {length:,}",
        inputs=lambda rng, scale: (
            random_keys(rng, size_at(scale, 2**24), "float32"),
            jnp.arange(0, size_at(scale, 2**24), length, dtype=jnp.int32),
            jnp.arange(size_at(scale, 2**24), dtype=jnp.int32) // length,
        ),
        ours=lambda x, heads, ids: mgpu.segmented_quantile(x, heads, 0.5),
        peers={"XLA sort": by_a_sort},
        bytes=lambda x, heads, ids: array_bytes(x) + 2 * array_bytes(heads),
        agree=agree_within(1e-3),
        max_ms=0.20 if length == 1000 else None,
    )


CASES = [
    _softmax_of_rows(0, "uniform", 30),
    *(
        _softmax_of_rows(width, distribution, mean)
        for width in (2, 8, 64, 1024)
        for distribution, mean in (("uniform", 50), ("uniform", 1000), ("pareto", 50), ("uniform", 0))
    ),
    _top_k("top_k of 64 rows of 524,288, k = 2,048", 64, 524_288, 2048, 0.12, 0.05),
    _top_k("top_k of 4,096 rows of 50,000, k = 50", 4096, 50_000, 50, 0.50, 0.25),
    _top_k("top_k of 4,096 ascending rows of 50,000, k = 50", 4096, 50_000, 50, inputs_of=_ascending),
    *(
        _top_k(f"top_k of {2**26 // n} rows of {n}, k = 8", 2**26 // n, n, 8)
        for n in (8, 64, 512, 2048, 8192, 2**16, 2**20, 2**26)
    ),
    _top_k("top-8 of 2^18 rows of 256", 2**18, 256, 8),
    *(
        _top_k(f"top_k of {rows} rows of {length:,}, k = {k:,}", rows, length, k, max_ms)
        for rows, length in ((1, 2**24), (128, 2**17))
        for k, max_ms in ((1, 0.035 if rows > 1 else None), (3_000, 0.18), (10_000, 0.18), (30_000, None))
    ),
    _top_p(256, 131_072, 0.20),
    _top_p(1, 131_072),
    _top_p(4_096, 8_192),
    _top_k("top_k of 1 row of 67108864, k = 2,048", 1, 2**26, 2048),
    Case(
        family="ranks",
        name="median of float32",
        inputs=lambda rng, scale: (random_keys(rng, size_at(scale), "float32"),),
        ours=lambda x: mgpu.quantile(x, 0.5),
        peers={
            "XLA quantile": lambda x: jnp.quantile(x, 0.5),
            "torch": TorchPeer(lambda torch, x: torch.median(x)),
        },
        bytes=array_bytes,
        agree=agree_within(1e-3),
        max_ms=0.40,
        target_ms=0.15,
    ),
    *(_medians_of_segments(length) for length in (30, 1000, 30_000)),
    _top_k_of_segments(3, "uniform", 30, 0.10),
    _top_k_of_segments(32, "uniform", 30),
    *(_top_k_of_segments(3, "pareto", mean) for mean in (4, 30, 300, 30_000)),
    _bincount_case("1,000 ids", 1000, lambda rng, n: rng.integers(0, 1000, n), 0.05),
    _bincount_case("one id, 1,000 bins", 1000, lambda rng, n: np.full(n, 500), None),
    _bincount_case("10^6 ids, skewed", 10**6, lambda rng, n: (rng.zipf(1.2, n) - 1) % 10**6, None),
    Case(
        family="ranks",
        name="histogram of float32, 100 bins",
        inputs=lambda rng, scale: (
            random_keys(rng, size_at(scale, 2**24), "float32"),
            np.linspace(-3, 3, 101, dtype=np.float32),
        ),
        ours=lambda x, edges: mgpu.histogram(x, edges)[0],
        peers={
            "XLA histogram": lambda x, edges: jnp.histogram(x, edges)[0].astype(jnp.int32),
            "torch": TorchPeer(lambda torch, x, edges: torch.histc(x, 100, -3, 3)),
        },
        bytes=array_bytes,
        max_ms=0.05,
        target_ms=0.025,
    ),
]
