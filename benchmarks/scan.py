from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks import peers
from benchmarks.case import Case, HostPeer, TorchPeer, agree_within, array_bytes
from benchmarks.inputs import ragged_heads, random_keys, size_at
from benchmarks.reduce import DTYPES, FULL_SCAN, numbers, tolerance

__all__ = ["CASES"]


def _both_ways(x: Any, *_: Any) -> int:
    return 2 * array_bytes(x)


def _case(name: str, dtype: str, ours: Callable[..., Any], by: dict[str, Any], **given: Any) -> Case:
    return Case("scan", f"{name} {dtype}, 2^27", numbers(dtype), ours, by, _both_ways, **given)


def _add_case(dtype: str, max_ms: float | None, target_ms: float | None) -> Case:
    by = {"XLA": lambda x: jnp.cumsum(x) - x, "CUB": peers.cub("exclusive_sum")}
    given = {"max_ms": max_ms, "target_ms": target_ms, "agree": tolerance(dtype)}
    return _case("exclusive add", dtype, lambda x: mgpu.scan(x, exclusive=True), by, **given)


def _max_case(dtype: str, max_ms: float | None, target_ms: float | None) -> Case:
    by = {"XLA": jax.lax.cummax, "CUB": peers.cub("inclusive_max"), "NumPy": HostPeer(np.maximum.accumulate)}
    return _case("max", dtype, lambda x: mgpu.scan(x, "max"), by, max_ms=max_ms, target_ms=target_ms)


def _batch_case(rows: int, length: int, op: Any) -> Case:
    ours: Callable[..., Any] = jax.vmap(lambda row: mgpu.scan(row, op))
    along_rows: Any = {"add": jnp.cumsum, "max": jax.lax.cummax}[op]
    return Case(
        family="scan",
        name=f"{op} float32, {rows} rows of {length}",
        inputs=lambda rng, scale: (random_keys(rng, size_at(scale, rows) * length, "float32").reshape(-1, length),),
        ours=ours,
        peers={"XLA": lambda x: along_rows(x, axis=1)},
        bytes=_both_ways,
        max_ms=1.2 * 0.355,
        agree=tolerance("float32"),
    )


def _by_associative_scan(x: jax.Array, heads: jax.Array) -> jax.Array:
    starts = jnp.zeros(x.shape[:1] + (1,) * (x.ndim - 1), bool).at[heads].set(True)

    def step(a: Any, b: Any) -> Any:
        return a[0] | b[0], jnp.where(b[0], b[1], a[1] + b[1])

    return jax.lax.associative_scan(step, (starts, x))[1]


def _segmented_case(mean: int, distribution: str) -> Case:
    def inputs(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        n = size_at(scale, FULL_SCAN)
        return random_keys(rng, n, "float32"), ragged_heads(rng, n, mean, distribution)

    return Case(
        family="scan",
        name=f"segmented add float32, mean {mean}, {distribution}, 2^27",
        inputs=inputs,
        ours=mgpu.segmented_scan,
        peers={"XLA": _by_associative_scan},
        bytes=lambda x, heads: 2 * array_bytes(x) + array_bytes(heads),
        agree=agree_within(1e-4),
    )


def _rows_case(width: int, op: Any, max_ms: float) -> Case:
    """Returns a case of 2^26 floats in rows, scanned along columns: as a whole, or in segments of mean length 50."""

    def inputs(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        n = size_at(scale, 2**26 // width)
        heads = (ragged_heads(rng, n, 50, "uniform"),) if op == "segmented add" else ()
        return random_keys(rng, n * width, "float32").reshape(n, width), *heads

    peers: Any = {
        "add": {"XLA": lambda x: jnp.cumsum(x, 0), "torch": TorchPeer(lambda torch, x: torch.cumsum(x, 0))},
        "max": {"XLA": jax.lax.cummax, "torch": TorchPeer(lambda torch, x: torch.cummax(x, 0)[0])},
        "segmented add": {"XLA": _by_associative_scan},
    }[op]
    return Case(
        family="scan",
        name=f"{op} float32, 2^26 in rows of {width}",
        inputs=inputs,
        ours=(lambda x: mgpu.scan(x, op)) if op in ("add", "max") else mgpu.segmented_scan,
        peers=peers,
        bytes=lambda x, *heads: 2 * array_bytes(x) + array_bytes(heads),
        max_ms=max_ms,
        agree=agree_within(1e-4),
    )


CASES = [
    *map(_add_case, DTYPES, (0.355, 0.355, None), (0.29, 0.29, None)),
    *map(_max_case, DTYPES, (0.36, 0.36, None), (0.29, 0.29, None)),
    *(_batch_case(rows, length, op) for rows, length in ((1000, 2**17), (2**17, 1000)) for op in ("add", "max")),
    *(_segmented_case(mean, distribution) for mean in (4, 300, 10_000) for distribution in ("uniform", "pareto")),
    *(
        _rows_case(width, op, max_ms)
        for op in ("add", "max", "segmented add")
        for width, max_ms in zip(
            (2, 8, 64, 1024), (0.26, 0.2, 0.18, 0.18) if op[0] == "s" else (0.19, 0.19, 0.17, 0.17), strict=True
        )
    ),
]
