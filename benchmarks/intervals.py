"""Expands, gathers, scatters and moves of intervals, a gather of wide rows, and sums and maxima over windows."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks import peers
from benchmarks.case import Case, HostPeer, agree_within, array_bytes
from benchmarks.inputs import Intervals, ragged_intervals, random_keys, size_at

__all__ = ["CASES"]

# For each mean length, milliseconds (maximum, target) of an expand, a permuted gather and a permuted move.
FIGURES = {
    5: {"expand": (0.16, 0.11), "gather": (0.44, 0.35), "move": (1.2, 0.6)},
    100: {"expand": (0.11, 0.08), "gather": (0.22, 0.16), "move": (0.30, 0.2)},
}
WIDE_ELEMENTS = 64  # elements of a float32 row of 256 bytes


def _sources(runs: Intervals, starts: Any) -> Any:
    n = runs.x.size
    return jnp.repeat(starts - runs.offsets, runs.lengths, total_repeat_length=n) + jnp.arange(n, dtype=jnp.int32)


def _expand(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    return mgpu.interval_expand(runs.values, runs.offsets, runs.x.size)


def _xla_expand(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    return jnp.repeat(runs.values, runs.lengths, total_repeat_length=runs.x.size)


def _numpy_expand(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    return np.repeat(runs.values, runs.lengths)


def _expand_to_total(*inputs: Any) -> Any:
    """Expands into a quarter more slots than items: the total is an operand."""
    runs = Intervals(*inputs)
    size = runs.x.size + runs.x.size // 4
    return mgpu.interval_expand(runs.values, runs.offsets, size, total=jnp.sum(runs.lengths))


def _xla_expand_to_total(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    size = runs.x.size + runs.x.size // 4
    expanded = jnp.repeat(runs.values, runs.lengths, total_repeat_length=size)  # repeats the last value past the total
    return jnp.where(jnp.arange(size) < jnp.sum(runs.lengths), expanded, 0)


def _gather(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    return mgpu.interval_gather(runs.x, runs.gather_starts, runs.offsets, runs.x.size)


def _xla_gather(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    return jnp.take(runs.x, _sources(runs, runs.gather_starts), mode="clip")


def _cub_gather(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    return peers.cub("batched_copy")(runs.x, runs.gather_starts, runs.offsets, runs.lengths, size=runs.x.size)


def _scatter(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    return mgpu.interval_scatter(runs.x, runs.scatter_starts, runs.offsets, jax.lax.empty(runs.x.shape, runs.x.dtype))


def _xla_scatter(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    places = _sources(runs, runs.scatter_starts)
    return (
        jax.lax.empty(runs.x.shape, runs.x.dtype).at[places].set(runs.x, unique_indices=True, mode="promise_in_bounds")
    )


def _cub_scatter(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    return peers.cub("batched_copy")(runs.x, runs.offsets, runs.scatter_starts, runs.lengths, size=runs.x.size)


def _move(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    into = jax.lax.empty(runs.x.shape, runs.x.dtype)
    return mgpu.interval_move(runs.x, runs.gather_starts, runs.scatter_starts, runs.offsets, into)


def _xla_move(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    places = _sources(runs, runs.scatter_starts)
    rows = _xla_gather(*inputs)
    return jax.lax.empty(runs.x.shape, runs.x.dtype).at[places].set(rows, unique_indices=True, mode="promise_in_bounds")


def _cub_move(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    return peers.cub("batched_copy")(runs.x, runs.gather_starts, runs.scatter_starts, runs.lengths, size=runs.x.size)


def _cases(mean: int) -> list[Case]:
    inputs = ragged_intervals(mean)
    figures = FIGURES[mean]

    def case(name: str, ours: Any, case_peers: Any, read: tuple[str, ...], figure: str = "") -> Case:
        """Returns a case, with the bytes of the offsets, of the arrays named in `read`, and of a result like x."""

        def floor(*inputs: Any) -> int:
            runs = Intervals(*inputs)
            return array_bytes(runs.x, runs.offsets, *(getattr(runs, array) for array in read))

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
        runs = ragged_intervals(mean)(rng, scale / WIDE_ELEMENTS)
        rows = random_keys(rng, size_at(scale / WIDE_ELEMENTS) * WIDE_ELEMENTS, "float32")
        return rows.reshape(-1, WIDE_ELEMENTS), *runs[1:]

    return make


def _gather_wide(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    return mgpu.interval_gather(runs.x, runs.gather_starts, runs.offsets, runs.x.shape[0])


def _xla_gather_wide(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    n = runs.x.shape[0]
    sources = jnp.repeat(runs.gather_starts - runs.offsets, runs.lengths, total_repeat_length=n) + jnp.arange(n)
    return jnp.take(runs.x, sources, axis=0, mode="clip")


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


@functools.cache
def _window_inputs(width: int) -> Any:
    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        places = np.arange(size_at(scale / 4), dtype=np.int32)
        return random_keys(rng, places.size, "float32"), places - (width - 1), places + 1

    return make


def _windows(width: int, op: str, max_ms: float) -> Case:
    def ours(x: jax.Array, starts: jax.Array, ends: jax.Array) -> jax.Array:
        return mgpu.interval_reduce(x, starts, ends, op)

    def xla(x: jax.Array, starts: jax.Array, ends: jax.Array) -> jax.Array:
        del starts, ends
        first, combine = (0.0, jax.lax.add) if op == "add" else (-jnp.inf, jax.lax.max)
        return jax.lax.reduce_window(x, first, combine, (width,), (1,), [(width - 1, 0)])

    return Case(
        family="intervals",
        name=f"windows of {width}, {op}",
        inputs=_window_inputs(width),
        ours=ours,
        peers={"XLA reduce_window": xla},
        bytes=lambda x, starts, ends: array_bytes(x, x, starts, ends),
        max_ms=max_ms,
        agree=agree_within(1e-3) if op == "add" else None,
    )


# An H200 may take 2 times (windows of 7) or 3 times (windows of 1000) as long as a scan of as many items.
WINDOWS = [_windows(width, op, most) for width, most in ((7, 0.08), (1000, 0.12)) for op in ("add", "max")]

CASES = [*_cases(5), *_cases(100), WIDE, *WINDOWS]
