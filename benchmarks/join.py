"""Inner and outer joins of sorted keys: random keys, and keys of the flights tables."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks.case import Case, HostPeer, agree_counted, array_bytes
from benchmarks.flights import key_codes
from benchmarks.inputs import FULL_SIZE, random_key, size_at

__all__ = ["CASES"]

HOT = 2**14


@functools.cache
def _inputs(keys: str) -> Any:
    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        n = size_at(scale)
        if keys == "spread":
            return tuple(
                jnp.sort(jax.random.randint(random_key(rng), (n,), 0, n, jnp.int32)).astype(jnp.uint32) for _ in "ab"
            )
        if keys == "unique":
            return tuple(
                jnp.cumsum(jax.random.randint(random_key(rng), (n,), 1, 3, jnp.int32)).astype(jnp.uint32) for _ in "ab"
            )
        # At scale 1, the hot key has 2^14 copies on each side; other keys have no match.
        hot = jnp.full((min(HOT, max(1, n // 64)),), n // 32 * 32 + 2, jnp.uint32)
        return tuple(jnp.sort(jnp.concatenate([hot, jnp.arange(side, 2 * n, 32, jnp.uint32)])) for side in (0, 1))

    return make


def _flights(other: str) -> Any:
    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        return tuple(jnp.sort(codes) for codes in key_codes(other))

    return make


def _slots(keys: str, a: Any, b: Any) -> int:
    if keys == "hot":
        return min(HOT, max(1, a.size // 5)) ** 2  # if n / 64 < HOT, a has n / 64 hot keys and n / 16 others
    # A join of spread keys has about n rows, with a standard deviation of sqrt(n).
    return a.size + 10 * math.isqrt(a.size) + (b.size if keys in ("weather", "planes") else 0)


def _xla(keys: str, a: Any, b: Any) -> Any:
    first = jnp.searchsorted(b, a, side="left", method="sort").astype(jnp.int32)
    matches = jnp.searchsorted(b, a, side="right", method="sort").astype(jnp.int32) - first
    ends = jnp.cumsum(matches)
    size = _slots(keys, a, b)
    i = jnp.repeat(jnp.arange(a.size, dtype=jnp.int32), matches, total_repeat_length=size)
    return i, first[i] + jnp.arange(size, dtype=jnp.int32) - (ends - matches)[i], ends[-1]


def _pandas(a: Any, b: Any) -> Any:
    import pandas as pd  # noqa: PLC0415

    left = pd.DataFrame({"key": a, "i": np.arange(a.size, dtype=np.int32)})
    right = pd.DataFrame({"key": b, "j": np.arange(b.size, dtype=np.int32)})
    rows = left.merge(right, on="key").sort_values(["i", "j"])
    return rows.i.to_numpy(), rows.j.to_numpy(), np.int32(len(rows))


def _case(keys: str, kind: Any, max_ms: float | None = None, target_ms: float | None = None) -> Case:
    inner = kind == "inner"
    real = keys in ("weather", "planes")
    return Case(
        family="join",
        name=f"{kind}, {f'flights with {keys}' if real else f'{keys} keys'}",
        inputs=_flights(keys) if real else _inputs(keys),
        ours=lambda a, b: mgpu.join(a, b, kind, size=_slots(keys, a, b) * (1 if inner else 2)),
        peers={"XLA": functools.partial(_xla, keys), "pandas": HostPeer(_pandas)} if inner and keys != "hot" else {},
        bytes=lambda a, b: array_bytes(a, b) + 8 * (_slots(keys, a, b) if keys == "hot" else a.size),
        agree=agree_counted,
        max_ms=max_ms,
        target_ms=target_ms,
    )


assert FULL_SIZE == 2**26  # the size of the published figures
CASES = [
    _case("spread", "inner", max_ms=1.3, target_ms=0.8),
    _case("spread", "outer"),
    _case("unique", "inner"),
    _case("hot", "inner"),
    _case("weather", "inner"),
    _case("planes", "inner"),
]
