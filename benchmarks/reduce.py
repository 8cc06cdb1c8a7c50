from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks import peers
from benchmarks.case import Case, Deterministic, HostPeer, TorchPeer, agree_counted, agree_within, array_bytes
from benchmarks.inputs import ragged_heads, random_key, random_keys, row_ids, size_at

__all__ = ["CASES"]

FULL_SCAN = 2**27
DTYPES = ("int32", "float32", "bfloat16")

# For each mean length: milliseconds (maximum, target).
SEGMENTED_FIGURES: tuple[tuple[int, float | None, float | None], ...] = (
    (4, 0.25, 0.12),
    (30, None, None),
    (300, 0.13, 0.08),
    (3_000, None, None),
    (10_000, 0.12, 0.08),
    (100_000, None, None),
    (1_000_000, None, None),
)


@functools.cache
def numbers(dtype: str) -> Callable[..., tuple[Any, ...]]:
    """Returns one function per type, so that cases share arrays."""

    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        n = size_at(scale, FULL_SCAN)
        if dtype == "bfloat16":
            return (jax.random.normal(random_key(rng), (n,), jnp.bfloat16),)
        return (random_keys(rng, n, dtype),)

    return make


def tolerance(dtype: str) -> Callable[[Any, Any], bool] | None:
    """Returns a comparison that allows the rounding of sums; None if sums must be equal."""
    return {"int32": None, "float32": agree_within(1e-3), "bfloat16": agree_within(3e-2)}[dtype]


def _one_read(x: Any, *_: Any) -> int:
    return array_bytes(x)


def _case(name: str, dtype: str, ours: Callable[..., Any], peers: dict[str, Any], **given: Any) -> Case:
    return Case("reduce", f"{name}, 2^27", numbers(dtype), ours, peers, _one_read, **given)


def _add_case(dtype: str, max_ms: float | None, target_ms: float | None) -> Case:
    by = {"XLA": jnp.sum, "CUB": peers.cub("sum")}
    figures = {"max_ms": max_ms, "target_ms": target_ms, "agree": tolerance(dtype)}
    return _case(f"add {dtype}", dtype, mgpu.reduce, by, **figures)


def _argmax_case(dtype: str, max_ms: float | None, target_ms: float | None) -> Case:
    by = {"XLA": jnp.argmax, "NumPy": HostPeer(lambda x: np.argmax(x).astype(np.int32))}
    if dtype != "bfloat16":
        by["CUB"] = peers.cub("argmax")
    return _case(f"argmax {dtype}", dtype, lambda x: mgpu.reduce(x, "argmax"), by, max_ms=max_ms, target_ms=target_ms)


def _batch_case(rows: int, length: int, op: Any) -> Case:
    ours: Callable[..., Any] = jax.vmap(lambda row: mgpu.reduce(row, op))
    along_rows: Any = {"add": jnp.sum, "argmax": jnp.argmax}[op]
    return Case(
        family="reduce",
        name=f"{op} float32, {rows} rows of {length}",
        inputs=lambda rng, scale: (random_keys(rng, size_at(scale, rows) * length, "float32").reshape(-1, length),),
        ours=ours,
        peers={"XLA": lambda x: along_rows(x, axis=1)},
        bytes=_one_read,
        max_ms=1.2 * 0.131,
        agree=tolerance("float32") if op == "add" else None,
    )


@functools.cache
def _segments(mean: int, distribution: str, dtype: str) -> Callable[..., tuple[Any, ...]]:
    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        n = size_at(scale)
        heads = ragged_heads(rng, n, mean, distribution)
        return random_keys(rng, n, dtype), heads, np.append(heads, np.int32(n)), row_ids(heads, n)

    return make


def _segmented_case(mean: int, distribution: str, dtype: str, max_ms: float | None, target_ms: float | None) -> Case:
    return Case(
        family="reduce",
        name=f"segmented add {dtype}, mean {mean}, {distribution}, 2^26",
        inputs=_segments(mean, distribution, dtype),
        ours=lambda x, heads, *_: mgpu.segmented_reduce(x, heads),
        peers={
            "XLA": lambda x, heads, offsets, ids: jax.ops.segment_sum(
                x, ids, num_segments=heads.size, indices_are_sorted=True
            ),
            "CUB": lambda x, heads, offsets, ids: peers.cub("segmented_reduce_sum")(x, offsets),
        },
        bytes=lambda x, heads, offsets, ids: array_bytes(x) + 2 * array_bytes(heads),
        max_ms=max_ms,
        target_ms=target_ms,
        agree=tolerance(dtype),
    )


def _empty_segments_case() -> Case:
    def inputs(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        n = size_at(scale)
        return random_keys(rng, n, "float32"), np.full(size_at(scale, 2**24), n // 2, np.int32)

    return Case(
        family="reduce",
        name="segmented add float32, 2^24 empty, one of half, 2^26",
        inputs=inputs,
        ours=mgpu.segmented_reduce,
        peers={},
        bytes=lambda x, heads: array_bytes(x) + 2 * array_bytes(heads),
    )


def _by_key_case(shortening: int) -> Case:
    """Returns a reduction by key, with room for n / `shortening` runs."""

    def inputs(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        n = size_at(scale)
        ids = row_ids(ragged_heads(rng, n, 30, "uniform"), n)
        return ids.astype(jnp.uint32), random_keys(rng, n, "int32")

    return Case(
        family="reduce",
        name="by key, add int32, mean 30, 2^26" + (f", at most n / {shortening}" if shortening > 1 else ""),
        inputs=inputs,
        ours=lambda keys, values: mgpu.reduce_by_key(keys, values, size=keys.size // shortening),
        peers={"CUB": peers.cub("reduce_by_key")},
        bytes=array_bytes,
        agree=agree_counted,
    )


# For each type of rows: milliseconds (maximum, target) in the order of their segments, and shuffled.
ROW_FIGURES = {"bfloat16": ((0.085, 0.072), (0.25, 0.15)), "float32": ((0.15, 0.145), (0.32, 0.22))}
# Elements of a row, and log2 of the number of segments, for 2^27 float32; their times should agree within a third.
ROW_SHAPES = ((1, 20), (3, 10), (8, 0), (8, 20), (64, 10), (512, 0), (512, 16), (8192, 0), (8192, 12))


@functools.cache
def _rows(dtype: str, rows: int, width: int, segments: int) -> Callable[..., tuple[Any, ...]]:
    """Makes rows, heads, and ids in order and shuffled."""

    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        n = size_at(scale, rows)
        ids = np.sort(rng.integers(0, segments, n)).astype(np.int32)
        heads = np.searchsorted(ids, np.arange(segments)).astype(np.int32)
        x = jax.random.normal(random_key(rng), (n, width), jnp.dtype(dtype))
        return x, heads, ids, rng.permutation(ids)

    return make


def _row_bytes(x: Any, heads: Any, *_: Any) -> int:
    return array_bytes(x) + heads.size * x.shape[1] * x.dtype.itemsize


def _torch_sums(torch: Any, x: Any, ids: Any, segments: int) -> Any:
    return x.new_zeros(segments, *x.shape[1:]).index_add_(0, ids, x)


def _rows_case(
    dtype: str,
    what: str,
    shape: tuple[int, int, int],
    rtol: float,
    max_ms: float | None = None,
    target_ms: float | None = None,
) -> Case:
    return Case(
        family="reduce",
        name=f"segmented add of rows, {dtype} {what}",
        inputs=_rows(dtype, *shape),
        ours=lambda x, heads, *_: mgpu.segmented_reduce(x, heads),
        peers={
            "XLA": lambda x, heads, ids, _: jax.ops.segment_sum(x, ids, heads.size, indices_are_sorted=True),
            "torch": TorchPeer(lambda torch, x, heads, ids, _: _torch_sums(torch, x, ids, heads.shape[0])),
        },
        bytes=_row_bytes,
        max_ms=max_ms,
        target_ms=target_ms,
        agree=agree_within(rtol),
    )


def _by_id_case(dtype: str, max_ms: float, target_ms: float) -> Case:
    return Case(
        family="reduce",
        name=f"add of rows by shuffled ids, {dtype} [2^20, 128] into 2^16",
        inputs=_rows(dtype, 2**20, 128, 2**16),
        ours=lambda x, heads, _, ids: mgpu.reduce_by_id(x, ids, heads.size),
        peers={
            "XLA": lambda x, heads, _, ids: jax.ops.segment_sum(x, ids, heads.size),
            "torch": TorchPeer(lambda torch, x, heads, _, ids: _torch_sums(torch, x, ids, heads.shape[0])),
        },
        bytes=_row_bytes,
        max_ms=max_ms,
        target_ms=target_ms,
        agree=agree_within(1e-1 if dtype == "bfloat16" else 1e-4),
    )


def _by_id_of_items_case(
    op: str, dtype: str, log_items: int, width: int, size: int, ids: str, max_ms: float | None, target_ms: float | None
) -> Case:
    """Returns a reduction by ids that are uniform, skewed (Zipf's law, exponent 1.2), or all equal."""

    def inputs(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        n = size_at(scale, 2**log_items // width)
        drawn = {
            "uniform": lambda: rng.integers(0, size, n),
            "skewed": lambda: (rng.zipf(1.2, n) - 1) % size,
            "one id": lambda: np.full(n, size // 2),
        }[ids]()
        x = random_keys(rng, n * width, dtype)
        return x if width == 1 else x.reshape(n, width), drawn.astype(np.int32)

    xla = functools.partial({"max": jax.ops.segment_max, "add": jax.ops.segment_sum}[op], num_segments=size)
    is_inexact = (op, dtype, width) == ("add", "float32", 1)
    shape = f"2^{log_items}" if width == 1 else f"[2^{log_items} / {width}, {width}]"
    return Case(
        family="reduce",
        name=f"{op} by {size:,} ids, {ids}, {dtype} {shape}",
        inputs=inputs,
        ours=lambda x, ids: mgpu.reduce_by_id(x, ids, size, op),
        peers={"XLA": xla, **({"XLA, deterministic": Deterministic(xla)} if is_inexact else {})},
        bytes=array_bytes,
        max_ms=max_ms,
        target_ms=target_ms,
        agree=agree_within(1e-3) if op == "add" and dtype == "float32" else None,
    )


def _boosting_case() -> Case:
    """Returns the case of sums of boosted trees: rows are added by their bin, for each of 28 features."""
    bins, features = 2048, 28

    def inputs(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        n = size_at(scale, 2**20)
        return random_keys(rng, 2 * n, "float32").reshape(n, 2), rng.integers(0, bins, (features, n)).astype(np.int32)

    def by_feature(sums: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, ids: jax.vmap(lambda ids: sums(x, ids, bins))(ids)

    return Case(
        family="reduce",
        name="histograms of 28 features, add by 2,048 ids, uniform, float32 [2^20, 2]",
        inputs=inputs,
        ours=by_feature(mgpu.reduce_by_id),
        peers={"XLA": by_feature(jax.ops.segment_sum)},
        bytes=array_bytes,
        max_ms=0.30,
        target_ms=0.15,
        agree=agree_within(1e-3),
    )


# For float32: log2 of the number of elements, columns, number and distribution of ids; milliseconds (maximum, target).
MAXIMA_BY_ID: tuple[tuple[int, int, int, str, float, float], ...] = (
    (25, 1, 5_000, "uniform", 0.076, 0.07),
    (25, 1, 5_000, "skewed", 0.076, 0.07),
    (25, 1, 1_000_000, "uniform", 0.35, 0.30),
    (25, 1, 1_000_000, "skewed", 0.20, 0.15),
    (25, 2, 2_048, "uniform", 0.07, 0.05),
    (25, 8, 2_048, "uniform", 0.06, 0.045),
)
SUMS_BY_ID: tuple[tuple[int, int, int, str, float, float], ...] = (
    (24, 1, 1_000, "uniform", 0.15, 0.06),
    (25, 1, 5_000, "uniform", 0.30, 0.15),
    (25, 1, 5_000, "skewed", 0.33, 0.15),
    (25, 1, 1_000_000, "uniform", 0.45, 0.38),
    (25, 1, 1_000_000, "skewed", 0.45, 0.38),
    (25, 1, 1_000_000, "one id", 0.45, 0.38),
    (25, 2, 2_048, "uniform", 0.22, 0.10),
    (25, 8, 2_048, "uniform", 0.12, 0.07),
    (25, 64, 100_000, "uniform", 0.087, 0.06),
)


CASES = [
    *map(_add_case, DTYPES, (0.131, 0.131, None), (0.125, 0.125, None)),
    _case(
        "add of squares float32",
        "float32",
        lambda x: mgpu.reduce(x, "add", map=lambda x: x * x),
        {"XLA": lambda x: jnp.sum(x * x)},
        agree=tolerance("float32"),
    ),
    *map(_argmax_case, DTYPES, (0.135, 0.135, None), (0.125, 0.125, None)),
    *(_batch_case(rows, length, op) for rows, length in ((1000, 2**17), (2**17, 1000)) for op in ("add", "argmax")),
    *(
        _segmented_case(mean, distribution, "float32", max_ms, target_ms)
        for mean, max_ms, target_ms in SEGMENTED_FIGURES
        for distribution in ("uniform", "pareto")
    ),
    *(
        _segmented_case(mean, "uniform", "int32", max_ms, target_ms)
        for mean, max_ms, target_ms in SEGMENTED_FIGURES
        if max_ms
    ),
    _empty_segments_case(),
    *(_by_key_case(shortening) for shortening in (1, 20)),
    *(
        _rows_case(
            dtype, "[2^20, 128] into 2^16", (2**20, 128, 2**16), 3e-2 if dtype == "bfloat16" else 1e-4, *figures[0]
        )
        for dtype, figures in ROW_FIGURES.items()
    ),
    *(_by_id_case(dtype, *figures[1]) for dtype, figures in ROW_FIGURES.items()),
    *(_by_id_of_items_case("max", "float32", *figures) for figures in MAXIMA_BY_ID),
    *(_by_id_of_items_case("add", "float32", *figures) for figures in SUMS_BY_ID),
    _boosting_case(),
    *(
        _by_id_of_items_case("add", "int32", 25, 1, size, ids, None, None)
        for size in (5_000, 1_000_000)
        for ids in ("uniform", "skewed", "one id")
    ),
    *(
        _rows_case("float32", f"[2^27 / {width}, {width}] into 2^{log}", (FULL_SCAN // width, width, 2**log), 1e-2)
        for width, log in ROW_SHAPES
    ),
]
