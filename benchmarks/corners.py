"""Intervals with one or two items each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jax_mgpu as mgpu
from benchmarks.case import Case, array_bytes
from benchmarks.inputs import random_keys, size_at

__all__ = ["CASES"]

ITEMS = 2**24


@functools.cache
def _even_intervals(length: int, items: int) -> Callable[..., Any]:
    """Makes items, offsets of equally long intervals, their starts in random order, and each item's position."""

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


CASES = [
    *(case for length in (1, 2) for case in _interval_cases(length)),
    *(case for log in (14, 18, 20, 22) for length in (1, 2) for case in _interval_cases(length, 2**log)),
]
