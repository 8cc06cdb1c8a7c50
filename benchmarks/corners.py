"""Corner cases: types, lengths and layouts for which an operation once took longer than its bytes explain."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks.case import Case, array_bytes
from benchmarks.inputs import Intervals, ragged_intervals, random_keys, row_ids, size_at
from benchmarks.reduce import tolerance

__all__ = ["CASES"]

ITEMS = 2**24
MIN_ROWS = 8
INTO_ZEROS = 0.29  # ms for 2^26 items, at most


# ---- Scans of wide types, and of rows --------------------------------------------------------------------------------


@functools.cache
def _items(dtype: str, length: int = 0) -> Callable[..., Any]:
    """Makes items close to 1, whose products stay finite; `length` is the length of a row, or 0 for one vector."""

    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        rows = max(MIN_ROWS, size_at(scale, ITEMS) // length) if length else 0
        n = rows * length or size_at(scale, ITEMS)
        x = random_keys(rng, n, dtype)
        x = x if jnp.issubdtype(x.dtype, jnp.integer) else 1 + x * 2.0**-16
        return (x.reshape(rows, length),) if rows else (x,)

    return make


def _running_argmin(x: jax.Array, *, largest: bool = False) -> jax.Array:
    """Returns the index of the first minimum (or maximum) up to each item, in plain JAX."""

    def first(a: Any, b: Any) -> Any:
        takes_later = b[0] > a[0] if largest else b[0] < a[0]
        return tuple(jnp.where(takes_later, later, earlier) for earlier, later in zip(a, b, strict=True))

    return jax.lax.associative_scan(first, (x, jnp.arange(x.shape[0], dtype=jnp.int32)))[1]


def _scan_case(op: str, dtype: str, xla: Callable[..., Any], max_ms: float, length: int = 0) -> Case:
    def over_rows(function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.vmap(function) if length else function

    index_bytes = 4 if op.startswith("arg") else None
    return Case(
        family="corners",
        name=f"scan {op} {dtype}, {f'2^20 rows of {length}' if length else '2^24'}",
        inputs=_items(dtype, length),
        ours=over_rows(lambda x: mgpu.scan(x, op)),
        peers={"XLA": over_rows(xla)},
        bytes=lambda x: array_bytes(x) + (index_bytes or x.dtype.itemsize) * x.size,
        max_ms=max_ms,
        agree=tolerance("float32") if jnp.issubdtype(dtype, jnp.inexact) and index_bytes is None else None,
        x64=jnp.dtype(dtype).itemsize == 8,
    )


# ---- Intervals of one length -----------------------------------------------------------------------------------------


@functools.cache
def _even_intervals(length: int, items: int) -> Callable[..., Any]:
    """Makes items, offsets of intervals of this length, their starts in random order, and each item's position."""

    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        m = size_at(scale, items // length)
        starts = rng.permutation(m).astype(np.int32) * length
        offsets = np.arange(m, dtype=np.int32) * length
        places = (starts[:, None] + np.arange(length, dtype=np.int32)).reshape(-1)
        return random_keys(rng, m * length), offsets, starts, places

    return make


def _interval_cases(length: int, items: int = ITEMS) -> list[Case]:
    def bytes_of(x: Any, offsets: Any, starts: Any, places: Any) -> int:
        del places
        return 2 * array_bytes(x) + array_bytes(offsets, starts)

    def scatter(x: Any, offsets: Any, starts: Any, places: Any) -> Any:
        del places
        return mgpu.interval_scatter(x, starts, offsets, jax.lax.empty(x.shape, x.dtype))

    def xla_scatter(x: Any, offsets: Any, starts: Any, places: Any) -> Any:
        del offsets, starts
        into = jax.lax.empty(x.shape, x.dtype)
        return into.at[places].set(x, unique_indices=True, mode="promise_in_bounds")

    inputs = _even_intervals(length, items)
    name = f"intervals of {length}" + (f", 2^{items.bit_length() - 1}" if items != ITEMS else "")
    return [
        Case(
            "corners",
            f"gather, {name}",
            inputs,
            lambda x, offsets, starts, places: mgpu.interval_gather(x, starts, offsets, x.size),
            {"XLA x[i]": lambda x, offsets, starts, places: x.at[places].get(mode="promise_in_bounds")},
            bytes_of,
        ),
        Case("corners", f"scatter, {name}", inputs, scatter, {"XLA x.at[i].set": xla_scatter}, bytes_of),
    ]


def _into_zeros(name: str, ours: Callable[[Intervals, jax.Array], jax.Array]) -> Case:
    """Returns a case that moves 2^26 items into zeros. The program makes the zeros, so it needs no copy of them."""

    def call(*inputs: Any) -> Any:
        runs = Intervals(*inputs)
        return ours(runs, jnp.zeros(runs.x.shape, runs.x.dtype))

    return Case(
        family="corners",
        name=f"{name} into zeros, mean 100, 2^26",
        inputs=ragged_intervals(100),
        ours=call,
        peers={},
        bytes=lambda *inputs: 2 * array_bytes(inputs[0]) + array_bytes(*inputs[2:5]),
        max_ms=INTO_ZEROS,
    )


# ---- Segments --------------------------------------------------------------------------------------------------------


def _zipf(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    """Makes keys, heads of segments, and the segment of each item. The lengths follow Zipf's law, up to n / 8."""
    n = size_at(scale, ITEMS)
    ends = np.cumsum(np.minimum(rng.zipf(1.5, n // 30 + 1), n // 8 + 1))
    heads = np.append(0, ends[ends < n]).astype(np.int32)
    return random_keys(rng, n), heads, row_ids(heads, n)


ZIPF = Case(
    family="corners",
    name="segmented sort, Zipf lengths",
    inputs=_zipf,
    ours=lambda keys, heads, ids: mgpu.segmented_sort(keys, heads),
    peers={"XLA": lambda keys, heads, ids: jax.lax.sort((ids, keys), num_keys=2, is_stable=False)[1]},
    bytes=lambda keys, heads, ids: 2 * array_bytes(keys) + array_bytes(heads),
    max_ms=0.50,
)

CASES = [
    _scan_case("argmax", "int32", functools.partial(_running_argmin, largest=True), 0.12, length=16),
    _scan_case("add", "int64", jnp.cumsum, 0.13),
    _scan_case("mul", "float64", jnp.cumprod, 0.13),
    _scan_case("min", "int64", jax.lax.cummin, 0.13),
    _scan_case("argmin", "float32", _running_argmin, 0.13),
    *(case for length in (1, 2) for case in _interval_cases(length)),
    *(case for log in (14, 18, 20, 22) for length in (1, 2) for case in _interval_cases(length, 2**log)),
    ZIPF,
    _into_zeros("scatter", lambda runs, into: mgpu.interval_scatter(runs.x, runs.scatter_starts, runs.offsets, into)),
    _into_zeros(
        "move",
        lambda runs, into: mgpu.interval_move(runs.x, runs.gather_starts, runs.scatter_starts, runs.offsets, into),
    ),
]
