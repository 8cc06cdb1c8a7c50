"""Load-balancing search: many objects with few work items, or few with many."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks import peers
from benchmarks.case import Case, HostPeer, array_bytes
from benchmarks.inputs import Intervals, ragged_intervals

__all__ = ["CASES"]

# For each mean number of work items per object: milliseconds (maximum, target).
FIGURES = ((5, 0.14, 0.09), (100, 0.10, 0.075))


def _search(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    return mgpu.load_balance_search(runs.offsets, runs.x.size)


def _search_with_rank(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    return mgpu.load_balance_search(runs.offsets, runs.x.size, return_rank=True)


def _xla(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    return jnp.repeat(jnp.arange(runs.offsets.size, dtype=jnp.int32), runs.lengths, total_repeat_length=runs.x.size)


def _xla_with_rank(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    objects = _xla(*inputs)
    return objects, jnp.arange(runs.x.size, dtype=jnp.int32) - runs.offsets[objects]


def _thrust(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    return peers.cub("load_balance_search")(runs.offsets, size=runs.x.size)


def _numpy(*inputs: Any) -> Any:
    runs = Intervals(*inputs)
    return np.repeat(np.arange(runs.offsets.size, dtype=np.int32), runs.lengths)


def _cases(mean: int, max_ms: float, target_ms: float) -> list[Case]:
    inputs = ragged_intervals(mean)
    return [
        Case(
            family="load_balance",
            name=f"search, mean {mean}",
            inputs=inputs,
            ours=_search,
            peers={"XLA repeat": _xla, "Thrust": _thrust, "NumPy": HostPeer(_numpy)},
            bytes=lambda *inputs: array_bytes(Intervals(*inputs).x, Intervals(*inputs).offsets),
            max_ms=max_ms,
            target_ms=target_ms,
        ),
        Case(
            family="load_balance",
            name=f"search with ranks, mean {mean}",
            inputs=inputs,
            ours=_search_with_rank,
            peers={"XLA repeat": _xla_with_rank},
            bytes=lambda *inputs: 2 * array_bytes(Intervals(*inputs).x) + array_bytes(Intervals(*inputs).offsets),
        ),
    ]


CASES = [case for figures in FIGURES for case in _cases(*figures)]
