"""Interval expand, gather, scatter and move of short and long intervals, in random order, and a gather of wide rows."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks import peers
from benchmarks.case import Case, HostPeer, array_bytes
from benchmarks.inputs import Intervals, ragged_intervals, random_keys, size_at

__all__ = ["CASES"]

# Milliseconds (maximum, target) of expand, permuted gather and permuted move, by mean length.
FIGURES = {
    5: {"expand": (0.16, 0.11), "gather": (0.44, 0.35), "move": (1.2, 0.6)},
    100: {"expand": (0.11, 0.08), "gather": (0.22, 0.16), "move": (0.30, 0.2)},
}
WIDE_ELEMENTS = 64  # float32, 256 bytes per row


def _sources(intervals: Intervals, starts: Any) -> Any:
    """Returns the source position of each item, in plain JAX."""
    n = intervals.x.size
    return jnp.repeat(starts - intervals.offsets, intervals.lengths, total_repeat_length=n) + jnp.arange(
        n, dtype=jnp.int32
    )


def _expand(*inputs: Any) -> Any:
    intervals = Intervals(*inputs)
    return mgpu.interval_expand(intervals.values, intervals.offsets, intervals.x.size)


def _xla_expand(*inputs: Any) -> Any:
    intervals = Intervals(*inputs)
    return jnp.repeat(intervals.values, intervals.lengths, total_repeat_length=intervals.x.size)


def _numpy_expand(*inputs: Any) -> Any:
    intervals = Intervals(*inputs)
    return np.repeat(intervals.values, intervals.lengths)


def _expand_to_total(*inputs: Any) -> Any:
    """Expands into a quarter more slots than there are items, as the total is known only on the device."""
    intervals = Intervals(*inputs)
    size = intervals.x.size + intervals.x.size // 4
    return mgpu.interval_expand(intervals.values, intervals.offsets, size, total=jnp.sum(intervals.lengths))


def _xla_expand_to_total(*inputs: Any) -> Any:
    intervals = Intervals(*inputs)
    size = intervals.x.size + intervals.x.size // 4
    expanded = jnp.repeat(
        intervals.values, intervals.lengths, total_repeat_length=size
    )  # repeats the last value past the total
    return jnp.where(jnp.arange(size) < jnp.sum(intervals.lengths), expanded, 0)


def _gather(*inputs: Any) -> Any:
    intervals = Intervals(*inputs)
    return mgpu.interval_gather(intervals.x, intervals.gather_starts, intervals.offsets, intervals.x.size)


def _xla_gather(*inputs: Any) -> Any:
    intervals = Intervals(*inputs)
    return jnp.take(intervals.x, _sources(intervals, intervals.gather_starts), mode="clip")


def _cub_gather(*inputs: Any) -> Any:
    intervals = Intervals(*inputs)
    return peers.cub("batched_copy")(
        intervals.x, intervals.gather_starts, intervals.offsets, intervals.lengths, size=intervals.x.size
    )


def _scatter(*inputs: Any) -> Any:
    intervals = Intervals(*inputs)
    return mgpu.interval_scatter(
        intervals.x, intervals.scatter_starts, intervals.offsets, jax.lax.empty(intervals.x.shape, intervals.x.dtype)
    )


def _xla_scatter(*inputs: Any) -> Any:
    intervals = Intervals(*inputs)
    places = _sources(intervals, intervals.scatter_starts)
    return (
        jax.lax.empty(intervals.x.shape, intervals.x.dtype)
        .at[places]
        .set(intervals.x, unique_indices=True, mode="promise_in_bounds")
    )


def _cub_scatter(*inputs: Any) -> Any:
    intervals = Intervals(*inputs)
    return peers.cub("batched_copy")(
        intervals.x, intervals.offsets, intervals.scatter_starts, intervals.lengths, size=intervals.x.size
    )


def _move(*inputs: Any) -> Any:
    intervals = Intervals(*inputs)
    into = jax.lax.empty(intervals.x.shape, intervals.x.dtype)
    return mgpu.interval_move(intervals.x, intervals.gather_starts, intervals.scatter_starts, intervals.offsets, into)


def _xla_move(*inputs: Any) -> Any:
    intervals = Intervals(*inputs)
    places = _sources(intervals, intervals.scatter_starts)
    rows = _xla_gather(*inputs)
    return (
        jax.lax.empty(intervals.x.shape, intervals.x.dtype)
        .at[places]
        .set(rows, unique_indices=True, mode="promise_in_bounds")
    )


def _cub_move(*inputs: Any) -> Any:
    intervals = Intervals(*inputs)
    return peers.cub("batched_copy")(
        intervals.x, intervals.gather_starts, intervals.scatter_starts, intervals.lengths, size=intervals.x.size
    )


def _cases(mean: int) -> list[Case]:
    inputs = ragged_intervals(mean)
    figures = FIGURES[mean]

    def case(name: str, ours: Any, case_peers: Any, read: tuple[str, ...], figure: str = "") -> Case:
        """Returns a case that reads the arrays named in `read`, and writes an array like x."""

        def floor(*inputs: Any) -> int:
            intervals = Intervals(*inputs)
            return array_bytes(intervals.x, intervals.offsets, *(getattr(intervals, array) for array in read))

        max_ms, target_ms = figures.get(figure, (None, None))
        return Case("intervals", f"{name}, mean {mean}", inputs, ours, case_peers, floor, max_ms, target_ms)

    return [
        case("expand", _expand, {"XLA repeat": _xla_expand, "NumPy": HostPeer(_numpy_expand)}, ("values",), "expand"),
        case("expand to a total on the device", _expand_to_total, {"XLA repeat": _xla_expand_to_total}, ("values",)),
        case(
            "gather permuted", _gather, {"XLA take": _xla_gather, "CUB": _cub_gather}, ("x", "gather_starts"), "gather"
        ),
        case("scatter permuted", _scatter, {"XLA": _xla_scatter, "CUB": _cub_scatter}, ("x", "scatter_starts")),
        case(
            "move permuted",
            _move,
            {"XLA": _xla_move, "CUB": _cub_move},
            ("x", "gather_starts", "scatter_starts"),
            "move",
        ),
    ]


@functools.cache
def _wide_inputs(mean: int) -> Any:
    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        intervals = ragged_intervals(mean)(rng, scale / WIDE_ELEMENTS)
        rows = random_keys(rng, size_at(scale / WIDE_ELEMENTS) * WIDE_ELEMENTS, "float32")
        return rows.reshape(-1, WIDE_ELEMENTS), *intervals[1:]

    return make


def _gather_wide(*inputs: Any) -> Any:
    intervals = Intervals(*inputs)
    return mgpu.interval_gather(intervals.x, intervals.gather_starts, intervals.offsets, intervals.x.shape[0])


def _xla_gather_wide(*inputs: Any) -> Any:
    intervals = Intervals(*inputs)
    n = intervals.x.shape[0]
    sources = jnp.repeat(
        intervals.gather_starts - intervals.offsets, intervals.lengths, total_repeat_length=n
    ) + jnp.arange(n)
    return jnp.take(intervals.x, sources, axis=0, mode="clip")


WIDE = Case(
    family="intervals",
    name=f"gather permuted, rows of {WIDE_ELEMENTS} float32, mean 5",
    inputs=_wide_inputs(5),
    ours=_gather_wide,
    peers={"XLA take": _xla_gather_wide},
    bytes=lambda *inputs: (
        2 * array_bytes(inputs[0]) + array_bytes(Intervals(*inputs).offsets, Intervals(*inputs).gather_starts)
    ),
)

CASES = [*_cases(5), *_cases(100), WIDE]
