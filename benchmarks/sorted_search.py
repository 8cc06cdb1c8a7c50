from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks import peers
from benchmarks.case import Case, HostPeer, TorchPeer, array_bytes
from benchmarks.inputs import FULL_SIZE, ragged_heads, random_key, random_keys, row_ids, size_at

__all__ = ["CASES"]


@functools.cache
def _inputs(dtype: str, n: int, m: int, in_order: bool) -> Any:
    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        share = min(1.0, size_at(scale) / max(n, m))
        needles, haystack = (random_keys(rng, max(1, int(size * share)), dtype) for size in (n, m))
        return jnp.sort(needles) if in_order else needles, jnp.sort(haystack)

    return make


def _searchsorted(method: str, side: str) -> Any:
    return lambda needles, haystack: jnp.searchsorted(haystack, needles, side=side, method=method)


def _search(
    name: str, n: int, m: int, dtype: str = "uint32", side: Any = "left", in_order: bool = True, **figures: float
) -> Case:
    case_peers: dict[str, Any] = {f"XLA {way}": _searchsorted(way, side) for way in ("scan", "scan_unrolled", "sort")}
    if dtype in ("uint32", "float32"):
        case_peers["CUB"] = lambda needles, haystack: peers.cub("sorted_search")(needles, haystack, side)
    case_peers["NumPy"] = HostPeer(lambda needles, haystack: np.searchsorted(haystack, needles, side).astype(np.int32))
    if dtype == "float32" and not in_order:  # torch would get unsigned integers as signed ones
        case_peers["torch"] = TorchPeer(lambda torch, needles, haystack: torch.searchsorted(haystack, needles))
    return Case(
        family="sorted_search",
        name=name if in_order else f"any order, {name}",
        inputs=_inputs(dtype, n, m, in_order),
        ours=lambda needles, haystack: (mgpu.sorted_search if in_order else mgpu.search)(needles, haystack, side),
        peers=case_peers,
        bytes=lambda needles, haystack: array_bytes(needles, haystack) + 4 * needles.size,
        x64=np.dtype(dtype).itemsize == 8,
        **figures,  # type: ignore[arg-type]
    )


def _xla_match(a: Any, b: Any) -> Any:
    a_index, a_upper = (jnp.searchsorted(b, a, side=side) for side in ("left", "right"))
    b_lower, b_index = (jnp.searchsorted(a, b, side=side) for side in ("left", "right"))
    a_match, b_match = a_index < a_upper, b_lower < b_index
    return mgpu.SortedMatch(a_index, b_index, a_match, b_match, a_match.sum(), b_match.sum())


def _xla_equal_count(a: Any, b: Any) -> Any:
    return jnp.searchsorted(b, a, side="right") - jnp.searchsorted(b, a, side="left")


@functools.cache
def _segments(dtype: str, mean: float, distribution: str, in_order: bool) -> Any:
    """Makes needles, their segments, a haystack of as many items, and heads of segments of this mean length."""

    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        n = size_at(scale)
        heads = ragged_heads(rng, n, mean, distribution) if mean < n else np.zeros(1, np.int32)
        _, haystack = jax.lax.sort((row_ids(heads, n), random_keys(rng, n, dtype)), num_keys=2)
        ids = jax.random.randint(random_key(rng), (n,), 0, heads.size)
        return random_keys(rng, n, dtype), jnp.sort(ids) if in_order else ids, haystack, jnp.asarray(heads)

    return make


def _xla_segmented(needles: Any, ids: Any, haystack: Any, heads: Any) -> Any:
    """Searches for all needles at once."""
    n = haystack.size

    def step(_: Any, bounds: Any) -> Any:
        low, high = bounds
        middle = low + (high - low) // 2
        is_before = (low < high) & (haystack[middle] < needles)
        return jnp.where(is_before, middle + 1, low), jnp.where(is_before, high, middle)

    bounds = heads[ids], jnp.append(heads, n).astype(heads.dtype)[ids + 1]
    return jax.lax.fori_loop(0, n.bit_length(), step, bounds)[0]


def _numpy_segmented(needles: Any, ids: Any, haystack: Any, heads: Any) -> Any:
    """Searches 64-bit keys whose upper half is the segment."""
    rows = np.repeat(np.arange(heads.size), np.diff(heads, append=haystack.size))
    keys, wanted = (row.astype(np.uint64) << np.uint64(32) | x for row, x in ((rows, haystack), (ids, needles)))
    return np.searchsorted(keys, wanted).astype(np.int32)


def _segmented(name: str, mean: float, distribution: str = "uniform", dtype: str = "uint32", **order: bool) -> Case:
    case_peers: dict[str, Any] = {"XLA": _xla_segmented}
    if dtype == "uint32":
        case_peers["NumPy"] = HostPeer(_numpy_segmented)
    return Case(
        family="sorted_search",
        name=f"segmented {dtype}, {name}",
        inputs=_segments(dtype, mean, distribution, order.get("in_order", False)),
        ours=mgpu.segmented_search,
        peers=case_peers,
        bytes=lambda needles, ids, haystack, heads: array_bytes(needles, ids, haystack, heads) + 4 * needles.size,
    )


N = FULL_SIZE
CASES = [
    _search("uint32, 2^26 in 2^26", N, N, max_ms=0.36, target_ms=0.24),
    _search("uint32, right, 2^26 in 2^26", N, N, side="right"),
    _search("float32, 2^26 in 2^26", N, N, dtype="float32"),
    *[_search(f"uint32, {part}% in 2^26", N * part // 100, N) for part in (1, 25, 50)],
    _search("uint32, 2^26 in 2^10", N, 2**10),
    *[_search(f"uint32, 2^{exponent} in 2^{exponent}", 2**exponent, 2**exponent) for exponent in (10, 14, 18, 20)],
    Case(
        family="sorted_search",
        name="match uint32, 2^26 and 2^26",
        inputs=_inputs("uint32", N, N, True),
        ours=mgpu.sorted_match,
        peers={"XLA": _xla_match},
        bytes=lambda a, b: array_bytes(a, b) + 5 * (a.size + b.size) + 8,
    ),
    Case(
        family="sorted_search",
        name="equal count uint32, 2^26 in 2^26",
        inputs=_inputs("uint32", N, N, True),
        ours=mgpu.sorted_equal_count,
        peers={"XLA": _xla_equal_count},
        bytes=lambda a, b: array_bytes(a, b) + 4 * a.size,
    ),
    *[
        _search(f"{dtype}, 2^24 in 2^20", 2**24, 2**20, dtype, in_order=False, max_ms=0.50)
        for dtype in ("uint8", "uint16", "uint32", "float32", "uint64")
    ],
    _search("float32, 2^26 in 2^26", N, N, "float32", in_order=False),
    _search("float32, 2^26 in 2^10", N, 2**10, "float32", in_order=False),
    _segmented("mean 30", 30),
    _segmented("mean 30, ids in order", 30, in_order=True),
    *[_segmented(f"mean 1,000{', ids in order' * in_order}", 1000, in_order=in_order) for in_order in (False, True)],
    _segmented("pareto, mean 100", 100, "pareto"),
    _segmented("pareto, mean 100, ids in order", 100, "pareto", in_order=True),
    _segmented("one segment", 2 * N),
    _segmented("mean 100", 100, dtype="float32"),
]
