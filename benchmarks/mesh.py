"""The operations over a mesh axis: all devices of the default platform beside one of them, on the same global arrays.

One device has the whole array, each of several an equal part. Both results are compared before they are timed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_mgpu as mgpu
from benchmarks.inputs import ragged_heads, size_at
from benchmarks.measure import compile_program, time_program

__all__ = ["main"]

AXIS = "devices"
FULL_SIZE = 2**28


@dataclasses.dataclass(frozen=True)
class Row:
    """A call on the global arrays.

    Attributes:
      call: the operation, over `axis_name` where that is given.
      make: the global arrays, by a generator and their length.
      xla: what JAX has for one device, if anything.
      heads: whether the last array holds heads, of which each device gets its own.
      shared: whether the result is the same on all devices.
    """

    call: Callable[..., Any]
    make: Callable[[np.random.Generator, int], tuple[np.ndarray, ...]]
    xla: Callable[..., Any] | None = None
    heads: bool = False
    shared: bool = False


def _keys(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    return (rng.integers(0, 2**32, n, dtype=np.uint32),)


def _pairs(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    return (*_keys(rng, n), np.arange(n, dtype=np.uint32))


def _integers(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    return (rng.integers(-9, 9, n, dtype=np.int32),)


def _sorted_pair(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    gap = max(2, 2**32 // n)
    return tuple(np.cumsum(rng.integers(0, gap, n // 2, dtype=np.uint32), dtype=np.uint32) for _ in range(2))


def _intervals(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    x = rng.integers(0, 9, n // 2, dtype=np.int32)
    return x, np.sort(rng.integers(0, n, n // 2, dtype=np.int32))


def _gathers(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    x, offsets = rng.integers(0, 9, n, dtype=np.int32), np.arange(0, n, 32, dtype=np.int32)
    return x, rng.integers(0, n - 32, offsets.shape[0], dtype=np.int32), offsets


def _tables(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    return rng.permutation(np.arange(n // 2, dtype=np.int32)), rng.integers(0, n // 2, n // 2, dtype=np.int32)


def _aligned_match(a: jax.Array, b: jax.Array, **named: Any) -> jax.Array:
    """The match alone is what is asked for; on one device there is nothing to align."""
    if not named:
        return mgpu.sorted_match(a, b).a_index
    both = mgpu.align(a, b, **named)
    found = mgpu.sorted_match(both.a, both.b, a_count=both.a_count, b_count=both.b_count, aligned=True, **named)
    return jnp.where(found.a_index >= 0, found.a_index, 0)


def _segments(mean: int) -> Callable[[np.random.Generator, int], tuple[np.ndarray, ...]]:
    return lambda rng, n: (*_integers(rng, n), ragged_heads(rng, n, mean, "pareto"))


def _runs(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    return np.cumsum(rng.integers(0, 30, n, dtype=np.uint8) == 0, dtype=np.int32), *_integers(rng, n)


def _own_heads(heads: np.ndarray, n: int, devices: int) -> np.ndarray:
    """Each device's heads, padded to equal numbers, one device after the other."""
    edges = np.searchsorted(heads, np.arange(devices + 1) * (n // devices))
    padded = np.full((devices, np.diff(edges).max()), n, np.int32)
    for device, row in enumerate(padded):
        mine = heads[edges[device] : edges[device + 1]]
        row[: len(mine)] = mine - device * (n // devices)
    return padded.reshape(-1)


def _stable_pairs(keys: jax.Array, values: jax.Array) -> Any:
    return tuple(jax.lax.sort((keys, values), num_keys=1, is_stable=True))


ROWS = {
    "sort uint32": Row(mgpu.mergesort, _keys, jax.lax.sort),
    "sort uint32 pairs": Row(mgpu.mergesort, _pairs, _stable_pairs),
    "merge": Row(mgpu.merge, _sorted_pair),
    "segmented_sort, mean 300": Row(mgpu.segmented_sort, _segments(300), heads=True),
    "reduce": Row(mgpu.reduce, _integers, jnp.sum, shared=True),
    "scan": Row(mgpu.scan, _integers, jnp.cumsum),
    "segmented_reduce, mean 300": Row(mgpu.segmented_reduce, _segments(300), heads=True),
    "segmented_scan, mean 300": Row(mgpu.segmented_scan, _segments(300), heads=True),
    "reduce_by_key, mean 30": Row(
        lambda keys, values, **named: mgpu.reduce_by_key(keys, values, size=keys.shape[0] // 20, **named)[1], _runs
    ),
    "sorted_search": Row(mgpu.sorted_search, _sorted_pair),
    "sorted_match": Row(lambda a, b, **named: mgpu.sorted_match(a, b, **named).a_index, _sorted_pair),
    "sorted_match, aligned": Row(_aligned_match, _sorted_pair),
    "join": Row(lambda a, b, **named: mgpu.join(a, b, size=a.shape[0] * 2, **named)[:2], _sorted_pair),
    "join, any order": Row(
        lambda a, b, **named: mgpu.join(a, b, size=a.shape[0] * 2, assume_sorted=False, **named)[:2], _tables
    ),
    "select, a half": Row(lambda x, **named: mgpu.select(x, x < 0, **named).values, _integers),
    "partition": Row(lambda x, **named: mgpu.partition(x, x < 0, **named)[0], _integers),
    "unique": Row(lambda keys, **named: mgpu.unique(keys, size=keys.shape[0], **named)[0], _keys),
    "interval_expand": Row(
        lambda x, offsets, **named: mgpu.interval_expand(x, offsets, 2 * x.shape[0], **named), _intervals
    ),
    "interval_gather": Row(
        lambda x, starts, offsets, **named: mgpu.interval_gather(x, starts, offsets, x.shape[0], **named), _gathers
    ),
    "top_k, 1,000": Row(lambda keys, **named: mgpu.top_k(keys, 1000, **named)[:2], _keys, shared=True),
    "set_intersection": Row(lambda a, b, **named: mgpu.set_intersection(a, b, **named)[0], _sorted_pair),
}
# What a device has of their results is not the global result's equal part, so only their sums are compared.
DEALT_OTHERWISE = ("segmented_reduce", "reduce_by_key", "set_", "sorted_match, al", "join", "select", "unique")


def main(scale: float, repeats: int, match: list[str]) -> int:
    """Prints milliseconds on one device and on all; 1 where they disagree."""
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), (AXIS,), axis_types=(AxisType.Auto,))
    n = size_at(scale, FULL_SIZE) // (64 * len(devices)) * 64 * len(devices)
    print(f"{len(devices)} x {devices[0].device_kind}, {n} items in all: milliseconds")
    wrong = 0
    for name, row in ROWS.items():
        if match and not any(text in name for text in match):
            continue
        arrays = row.make(np.random.default_rng(7), n)
        dealt = (*arrays[:-1], _own_heads(arrays[-1], n, len(devices))) if row.heads else arrays
        alone = [jax.device_put(x, devices[0]) for x in arrays]
        spread = [jax.device_put(x, NamedSharding(mesh, P(AXIS))) for x in dealt]
        over_axis = jax.shard_map(
            lambda *xs, call=row.call: call(*xs, axis_name=AXIS),
            mesh=mesh,
            in_specs=P(AXIS),
            out_specs=P() if row.shared else P(AXIS),
        )
        agree = _agree(name, jax.jit(row.call)(*alone), jax.jit(over_axis)(*spread))
        wrong += not agree
        programs = [(row.call, alone), (over_axis, spread), *([(row.xla, alone)] if row.xla else [])]
        one, several, *xla = (
            time_program(compile_program(call, [tuple(arrays)]), repeats).median for call, arrays in programs
        )
        line = f"{name}: one {one:.3f}, all {several:.3f}, {one / several:.2f} times"
        line += f", XLA on one {xla[0]:.3f}" if xla else ""
        print(line if agree else f"{line}, BUT THEY DISAGREE", flush=True)
    return int(wrong > 0)


def _agree(name: str, one: Any, several: Any) -> bool:
    for x, y in zip(map(np.asarray, jax.tree.leaves(one)), map(np.asarray, jax.tree.leaves(several)), strict=True):
        if name.startswith(DEALT_OTHERWISE):
            x, y = (z if z.dtype.kind == "u" else z[z >= 0] for z in (x, y)) if name.startswith("join") else (x, y)  # noqa: PLW2901
            if x.sum(dtype=np.int64) != y.sum(dtype=np.int64):
                return False
        elif not np.array_equal(x, y):
            return False
    return True
