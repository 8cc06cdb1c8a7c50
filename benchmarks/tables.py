"""Unsorted tables: joins, groups, lookups, as-of joins, and shifts."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks.case import Case, agree_counted, array_bytes
from benchmarks.inputs import random_key, size_at

__all__ = ["CASES"]

GROUPS = 10**6
OBJECTS = 10**4
FEW_OBJECTS = 40


def _half_match(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    """Makes distinct keys of two tables, half of them in both."""
    n = size_at(scale)
    a = jax.random.permutation(random_key(rng), n).astype(jnp.int32)
    return a, jax.random.permutation(random_key(rng), n).astype(jnp.int32) + n // 2


def _pair(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Splits each key into two, in the same order."""
    return keys // 1000, keys % 1000


def _groups(rng: np.random.Generator, scale: float, split: bool) -> tuple[Any, ...]:
    """Makes at most 10^6 distinct ids and two columns, and if `split`, pairs of keys in place of the ids."""
    n = size_at(scale)
    ids = jax.random.permutation(random_key(rng), n).astype(jnp.int32) % GROUPS
    values = [jax.random.randint(random_key(rng), (n,), 0, 1000, jnp.int32) for _ in "ab"]
    return ids, *values, *(_pair(ids) if split else ())


def _lookups(rng: np.random.Generator, scale: float, rows: float, gap: int = 1) -> tuple[Any, ...]:
    """Makes keys, all of which the table has, and a table of `rows` times as many rows; keys are multiples of `gap`."""
    n = size_at(scale)
    m = max(1, int(n * rows))
    keys = gap * jax.random.randint(random_key(rng), (n,), 0, m, jnp.int32)
    table = gap * jax.random.permutation(random_key(rng), m).astype(jnp.int32)
    return keys, table, jax.random.normal(random_key(rng), (m,))


def _times(rng: np.random.Generator, scale: float, objects: int = OBJECTS) -> tuple[Any, ...]:
    """Makes sorted times of two tables, and each row's object."""
    n = size_at(scale)
    tables = []
    for rows in (n, max(1, n // 4)):
        times = jnp.sort(jax.random.randint(random_key(rng), (rows,), 0, 2**31 - 1, jnp.int32))
        tables += [times, jax.random.randint(random_key(rng), (rows,), 0, objects, jnp.int32)]
    return tuple(tables)


def _segments(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    n = size_at(scale)
    heads = jnp.sort(jax.random.randint(random_key(rng), (max(1, n // 30),), 0, n, jnp.int32))
    return jax.random.normal(random_key(rng), (n,)), heads


def _size(n: int) -> int:
    return n // 2 + 10 * math.isqrt(n)


CASES = [
    Case(
        family="tables",
        name="inner join of unsorted 2^26 and 2^26, half of them match",
        inputs=_half_match,
        ours=lambda a, b: mgpu.join(a, b, size=_size(a.size), assume_sorted=False),
        peers={},
        bytes=lambda a, b: array_bytes(a, b) + 2 * a.size * 4,
        max_ms=4.5,
        target_ms=3.0,
    ),
    *(
        Case(
            family="tables",
            name=f"group_by of 2^26 {keys} of 10^6 values, add and max",
            inputs=lambda rng, scale, split=split: _groups(rng, scale, split),
            ours=lambda ids, x, y, *pair: mgpu.group_by(pair or ids, (x, y), ("add", "max"), size=min(GROUPS, x.size)),
            peers={
                "XLA segments": lambda ids, x, y, *pair: (
                    (_pair if pair else jnp.asarray)(jnp.arange(min(GROUPS, x.size), dtype=jnp.int32)),
                    (
                        jax.ops.segment_sum(x, ids, min(GROUPS, x.size)),
                        jax.ops.segment_max(y, ids, min(GROUPS, x.size)),
                    ),
                    jnp.int32(min(GROUPS, x.size)),
                )
            },
            bytes=lambda ids, x, y, *pair: array_bytes(pair or ids, x, y),
            agree=agree_counted,
            max_ms=max_ms,
        )
        for keys, split, max_ms in (("keys", False, 1.6), ("pairs of keys", True, 2.0))
    ),
    *(
        Case(
            family="tables",
            name=f"lookup of 2^26 keys in a table of 2^{exponent}" + (", with gaps" if gap > 1 else ""),
            inputs=lambda rng, scale, exponent=exponent, gap=gap: _lookups(rng, scale, 2.0 ** (exponent - 26), gap),
            ours=mgpu.lookup,
            peers={
                "XLA search": lambda keys, table_keys, values: values[
                    jnp.argsort(table_keys)[jnp.searchsorted(jnp.sort(table_keys), keys, method="sort")]
                ]
            },
            bytes=lambda keys, table_keys, values: 2 * array_bytes(keys) + array_bytes(table_keys, values),
        )
        for gap in (1, 100)
        for exponent in (10, 20, 24)
    ),
    Case(
        family="tables",
        name="as-of join of 2^26 and 2^24 rows of 10^4 objects",
        inputs=_times,
        ours=lambda a, by_a, b, by_b: mgpu.asof_join(a, b, by_a=by_a, by_b=by_b),
        peers={},
        bytes=array_bytes,
        max_ms=1.58,
    ),
    Case(
        family="tables",
        name="as-of join of 2^26 and 2^24 rows of 40 objects",
        inputs=lambda rng, scale: _times(rng, scale, FEW_OBJECTS),
        ours=lambda a, by_a, b, by_b: mgpu.asof_join(a, b, by_a=by_a, by_b=by_b),
        peers={},
        bytes=array_bytes,
    ),
    Case(
        family="tables",
        name="a sort of 2^26 pairs and a search of 2^26 in 2^24, for comparison",
        inputs=_times,
        ours=lambda a, by_a, b, by_b: (mgpu.sort(by_a, a), mgpu.sorted_search(a, b, "right")),
        peers={},
        bytes=array_bytes,
    ),
    Case(
        family="tables",
        name="segmented_shift of 2^26 floats by 1, segments of 30",
        inputs=_segments,
        ours=lambda x, heads: mgpu.segmented_shift(x, heads, 1),
        peers={
            "XLA roll": lambda x, heads: jnp.where(
                jnp.zeros(x.shape, bool).at[:1].set(True).at[heads].set(True), 0, jnp.roll(x, 1)
            )
        },
        bytes=lambda x, heads: 2 * array_bytes(x) + array_bytes(heads),
    ),
]
