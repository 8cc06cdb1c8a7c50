"""Load-balancing search: many short objects, few long ones."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks import peers
from benchmarks.case import Case, HostPeer, array_bytes
from benchmarks.inputs import Intervals, ragged_intervals

__all__ = ["CASES"]

# By mean work count of an object: milliseconds (must reach, aim for).
FIGURES = ((5, 0.14, 0.09), (100, 0.10, 0.075))


def _search(*inputs: Any) -> Any:
    of = Intervals(*inputs)
    return mgpu.load_balance_search(of.offsets, of.x.size)


def _search_with_rank(*inputs: Any) -> Any:
    of = Intervals(*inputs)
    return mgpu.load_balance_search(of.offsets, of.x.size, return_rank=True)


def _xla(*inputs: Any) -> Any:
    of = Intervals(*inputs)
    return jnp.repeat(jnp.arange(of.offsets.size, dtype=jnp.int32), of.lengths, total_repeat_length=of.x.size)


def _xla_with_rank(*inputs: Any) -> Any:
    of = Intervals(*inputs)
    objects = _xla(*inputs)
    return objects, jnp.arange(of.x.size, dtype=jnp.int32) - of.offsets[objects]


def _thrust(*inputs: Any) -> Any:
    of = Intervals(*inputs)
    return peers.cub("load_balance_search")(of.offsets, size=of.x.size)


def _numpy(*inputs: Any) -> Any:
    of = Intervals(*inputs)
    return np.repeat(np.arange(of.offsets.size, dtype=np.int32), of.lengths)


def _cases(mean: int, must_reach: float, aim: float) -> list[Case]:
    inputs = ragged_intervals(mean)
    return [
        Case(
            family="load_balance",
            name=f"search, mean {mean}",
            inputs=inputs,
            ours=_search,
            peers={"XLA repeat": _xla, "Thrust": _thrust, "NumPy": HostPeer(_numpy)},
            bytes=lambda *inputs: array_bytes(Intervals(*inputs).x, Intervals(*inputs).offsets),
            must_reach=must_reach,
            aim=aim,
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
