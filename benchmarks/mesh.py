"""Compares operations over all default devices with one device, on the same global arrays.

Each of several devices has an equal part. Results are compared before programs are timed. Memory is XLA's plan per
device, as a multiple of the device's operands.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_mgpu as mgpu
from benchmarks.inputs import ragged_heads, size_at
from benchmarks.measure import Program, compile_program, time_program

__all__ = ["AXIS", "CASES_OVER_DEVICES", "global_size", "main", "over_devices"]

AXIS = "devices"
FULL_SIZE = 2**28
# On GPUs, a program makes CALLS calls if one takes at most SHORT_MS.
SHORT_MS = 1.0
CALLS = 8


def _equal(one: np.ndarray, several: np.ndarray) -> bool:
    return np.array_equal(one, several)


def _equal_sums(one: np.ndarray, several: np.ndarray) -> bool:
    """Compares sums of results that are not distributed in equal parts."""
    return one.sum(dtype=np.int64) == several.sum(dtype=np.int64)


def _equal_rows(one: np.ndarray, several: np.ndarray) -> bool:
    """Compares sums of indices; empty slots hold -1."""
    return _equal_sums(one[one >= 0], several[several >= 0])


@dataclasses.dataclass(frozen=True)
class MeshCase:
    """An operation on global arrays.

    Attributes:
      call: the operation, over `axis_name` if given.
      make: makes the arrays from a generator and the number of items of the case.
      xla: JAX's implementation for one device, or None.
      heads: whether the last array holds heads, which each device gets for its own part.
      shared: whether the result is the same on all devices.
      agree: whether results on one device and on several are equal.
      prepare: transforms the arrays of several devices before the clock runs.
      target: what four H200s must reach at scale 1: a time in milliseconds, or a speed-up over one.
    """

    call: Callable[..., Any]
    make: Callable[[np.random.Generator, int], tuple[np.ndarray, ...]]
    xla: Callable[..., Any] | None = None
    heads: bool = False
    shared: bool = False
    agree: Callable[[np.ndarray, np.ndarray], bool] = _equal
    prepare: Callable[..., Any] | None = None
    target: str = ""


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


def _align(a: jax.Array, b: jax.Array, **named: Any) -> tuple[jax.Array, ...]:
    both = mgpu.align(a, b, **named)
    return both.a, both.b, both.a_count[None], both.b_count[None]


def _counts(counts: tuple[jax.Array, ...], a: str = "a_count", b: str = "b_count") -> dict[str, Any]:
    """Returns the arguments for arrays that `_align` made; none on one device."""
    return {a: counts[0][0], b: counts[1][0], "aligned": True} if counts else {}


def _aligned_match(a: jax.Array, b: jax.Array, *counts: jax.Array, **named: Any) -> jax.Array:
    return jnp.maximum(mgpu.sorted_match(a, b, **_counts(counts), **named).a_index, 0)


def _aligned_search(a: jax.Array, b: jax.Array, *counts: jax.Array, **named: Any) -> jax.Array:
    given = _counts(counts, "needles_count", "haystack_count")
    return mgpu.sorted_search(a, b, fill_value=0, **given, **named)


def _aligned_intersection(a: jax.Array, b: jax.Array, *counts: jax.Array, **named: Any) -> jax.Array:
    return mgpu.set_intersection(a, b, **_counts(counts), **named).keys


def _aligned_join(a: jax.Array, b: jax.Array, *counts: jax.Array, **named: Any) -> Any:
    # `_align` makes each array as long as a and b together. So there is room for as many rows with it as without.
    size = a.shape[0] if counts else a.shape[0] * 2
    return mgpu.join(a, b, size=size, **_counts(counts), **named)[:2]


def _segments(mean: int) -> Callable[[np.random.Generator, int], tuple[np.ndarray, ...]]:
    return lambda rng, n: (*_integers(rng, n), ragged_heads(rng, n, mean, "pareto"))


def _runs(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    return np.cumsum(rng.integers(0, 30, n, dtype=np.uint8) == 0, dtype=np.int32), *_integers(rng, n)


def _ids(id_count: int | None) -> Callable[[np.random.Generator, int], tuple[np.ndarray, ...]]:
    """Makes items, and ids below `id_count`; None means a thirtieth of the number of items."""
    return lambda rng, n: (*_integers(rng, n), rng.integers(0, id_count or n // 30, n, dtype=np.int32))


def _reduce_by_id(id_count: int | None) -> Callable[..., Any]:
    def call(x: jax.Array, ids: jax.Array, **named: Any) -> jax.Array:
        devices = jax.lax.axis_size(AXIS) if named else 1
        return mgpu.reduce_by_id(x, ids, -(-(id_count or x.shape[0] * devices // 30) // devices), **named)

    return call


def _own_heads(heads: np.ndarray, n: int, devices: int) -> np.ndarray:
    """Returns the devices' heads, relative to their parts and padded to equal numbers, concatenated."""
    edges = np.searchsorted(heads, np.arange(devices + 1) * (n // devices))
    padded = np.full((devices, np.diff(edges).max()), n, np.int32)
    for device, row in enumerate(padded):
        mine = heads[edges[device] : edges[device + 1]]
        row[: len(mine)] = mine - device * (n // devices)
    return padded.reshape(-1)


def _stable_pairs(keys: jax.Array, values: jax.Array) -> Any:
    return tuple(jax.lax.sort((keys, values), num_keys=1, is_stable=True))


SEGMENTS = _segments(300)

# Cases with the same arrays follow each other, so that the arrays are made once.
CASES_OVER_DEVICES = {
    "sort uint32": MeshCase(mgpu.sort, _keys, jax.lax.sort, target="3.0 ms"),
    "mergesort uint32": MeshCase(mgpu.mergesort, _keys),
    "top_k, 1,000": MeshCase(lambda keys, **named: mgpu.top_k(keys, 1000, **named)[:2], _keys, shared=True),
    "unique": MeshCase(
        lambda keys, **named: mgpu.unique(keys, size=keys.shape[0], **named)[0], _keys, agree=_equal_sums
    ),
    "sort uint32 pairs": MeshCase(mgpu.sort, _pairs, _stable_pairs, target="5.0 ms"),
    "sort of two uint32 columns": MeshCase(lambda *columns, **named: mgpu.sort(columns, **named), _pairs),
    "segmented_sort, mean 300": MeshCase(mgpu.segmented_sort, SEGMENTS, heads=True, target="3.2 times"),
    "segmented_reduce, mean 300": MeshCase(
        mgpu.segmented_reduce, SEGMENTS, heads=True, agree=_equal_sums, target="2.8 times"
    ),
    "segmented_scan, mean 300": MeshCase(mgpu.segmented_scan, SEGMENTS, heads=True),
    "reduce_by_key, mean 30": MeshCase(
        lambda keys, values, **named: mgpu.reduce_by_key(keys, values, size=keys.shape[0] // 20, **named)[1],
        _runs,
        agree=_equal_sums,
        target="3.2 times",
    ),
    "reduce": MeshCase(mgpu.reduce, _integers, jnp.sum, shared=True, target="2.5 times"),
    "scan": MeshCase(mgpu.scan, _integers, jnp.cumsum, target="2.2 times"),
    "select, a half": MeshCase(lambda x, **named: mgpu.select(x, x < 0, **named).values, _integers, agree=_equal_sums),
    "partition": MeshCase(lambda x, **named: mgpu.partition(x, x < 0, **named)[0], _integers),
    "reduce_by_id, 1,000": MeshCase(_reduce_by_id(1000), _ids(1000), agree=_equal_sums),
    "reduce_by_id, mean 30": MeshCase(_reduce_by_id(None), _ids(None), agree=_equal_sums),
    "join of any order": MeshCase(
        lambda a, b, **named: mgpu.join(a, b, size=a.shape[0] * 2, assume_sorted=False, **named)[:2],
        _tables,
        agree=_equal_rows,
        target="2.6 times",
    ),
    "merge": MeshCase(mgpu.merge, _sorted_pair),
    "join": MeshCase(
        lambda a, b, **named: mgpu.join(a, b, size=a.shape[0] * 2, **named)[:2], _sorted_pair, agree=_equal_rows
    ),
    "join, aligned": MeshCase(_aligned_join, _sorted_pair, agree=_equal_rows, prepare=_align, target="3.0 times"),
    "sorted_search": MeshCase(mgpu.sorted_search, _sorted_pair),
    "sorted_search, aligned": MeshCase(
        _aligned_search, _sorted_pair, agree=_equal_sums, prepare=_align, target="3.0 times"
    ),
    "sorted_match": MeshCase(lambda a, b, **named: mgpu.sorted_match(a, b, **named).a_index, _sorted_pair),
    "sorted_match, aligned": MeshCase(
        _aligned_match, _sorted_pair, agree=_equal_sums, prepare=_align, target="3.0 times"
    ),
    "set_intersection": MeshCase(
        lambda a, b, **named: mgpu.set_intersection(a, b, **named)[0], _sorted_pair, agree=_equal_sums
    ),
    "set_intersection, aligned": MeshCase(
        _aligned_intersection, _sorted_pair, agree=_equal_sums, prepare=_align, target="3.0 times"
    ),
    "interval_expand": MeshCase(
        lambda x, offsets, **named: mgpu.interval_expand(x, offsets, 2 * x.shape[0], **named), _intervals
    ),
    "interval_gather": MeshCase(
        lambda x, starts, offsets, **named: mgpu.interval_gather(x, starts, offsets, x.shape[0], **named), _gathers
    ),
}


def global_size(scale: float, devices: int) -> int:
    """Returns the number of items of all devices; each has a multiple of 64."""
    return size_at(scale, FULL_SIZE) // (64 * devices) * 64 * devices


def over_devices(
    case: MeshCase, arrays: tuple[np.ndarray, ...], n: int, mesh: jax.sharding.Mesh
) -> tuple[Callable[..., Any], tuple[jax.Array, ...]]:
    """Returns a call over a mesh, and its distributed operands."""
    over_axis = functools.partial(jax.shard_map, mesh=mesh, in_specs=P(AXIS))
    own = (*arrays[:-1], _own_heads(arrays[-1], n, mesh.size)) if case.heads else arrays
    operands = tuple(jax.device_put(x, NamedSharding(mesh, P(AXIS))) for x in own)
    if case.prepare is not None:
        operands = jax.jit(over_axis(functools.partial(case.prepare, axis_name=AXIS), out_specs=P(AXIS)))(*operands)
    call = functools.partial(case.call, axis_name=AXIS)
    return over_axis(call, out_specs=P() if case.shared else P(AXIS)), operands


def main(scale: float, repeats: int, match: list[str]) -> int:
    """Prints milliseconds on one device and on all; returns 1 if results disagree, or if no case was selected."""
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), (AXIS,), axis_types=(AxisType.Auto,))
    n = global_size(scale, len(devices))
    print(f"{len(devices)} x {devices[0].device_kind}, {n} items in all: milliseconds", flush=True)
    chosen = [name for name in CASES_OVER_DEVICES if not match or any(text in name for text in match)]
    made: Any = None
    arrays: tuple[np.ndarray, ...] = ()
    failed = not chosen
    for name in chosen:
        case, begin = CASES_OVER_DEVICES[name], time.monotonic()
        if case.make is not made:
            made, arrays = case.make, case.make(np.random.default_rng(7), n)
        on_one = tuple(jax.device_put(x, devices[0]) for x in arrays)
        call, on_all = over_devices(case, arrays, n, mesh)
        one, several = compile_program(case.call, [on_one]), compile_program(call, [on_all])
        results = [list(map(np.asarray, jax.tree.leaves(program()))) for program in (one, several)]
        agree = all(map(case.agree, *results))
        del results
        failed |= not agree
        times = [_time(case.call, one, repeats), _time(call, several, repeats)]
        line = f"{name}: one {times[0]:.3f}, all {times[1]:.3f}, {times[0] / times[1]:.2f} times"
        if case.xla is not None:
            line += f", XLA on one {_time(case.xla, compile_program(case.xla, [on_one]), repeats):.3f}"
        line += f", memory {_memory(one):.2f} and {_memory(several):.2f}"
        line += f", four H200s must reach {case.target}" if case.target else ""
        print(line if agree else f"{line}, BUT THEY DISAGREE", f"({time.monotonic() - begin:.0f} s)", flush=True)
    return int(failed)


def _time(call: Callable[..., Any], program: Program, repeats: int) -> float:
    """Returns a call's time in milliseconds."""
    # Collectives of CPU devices hang if more programs are in flight than there are threads.
    waiting = jax.default_backend() == "cpu"
    once = time_program(program, repeats, waiting=waiting).median
    if waiting or once > SHORT_MS:
        return once
    return time_program(compile_program(call, [*program.input_sets] * CALLS), repeats).median


def _memory(program: Program) -> float:
    """Returns a device's memory for operands, results and temporaries, as a multiple of its operands."""
    plan = program.run.memory_analysis()  # type: ignore[attr-defined]
    needed = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    return needed / plan.argument_size_in_bytes
