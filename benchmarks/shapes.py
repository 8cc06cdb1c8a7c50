"""Finds slow shapes: `python -m benchmarks --shapes`.

Operations run on about 2^22 items: in rows of 8 to 8,192, of seven types, or in segments or orders of many kinds.
A shape fails if XLA is faster, or if the operation is much slower per byte than in its best shape (`failures`).
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks.case import array_bytes
from benchmarks.inputs import random_key, random_keys
from benchmarks.measure import Program, compile_program, time_program
from benchmarks.report import describe_run
from benchmarks.runner import CACHE_BYTES, ROUNDS, TINY_MS, Runner

__all__ = ["Shape", "failures", "shapes"]

ITEMS = 2**22
ROWS = (8, 32, 128, 512, 2048, 8192)
DTYPES = ("uint8", "int16", "bfloat16", "uint32", "float32", "int64", "float64")
DISTRIBUTIONS = ("uniform", "one item", "empty between", "alternating", "Zipf", "one giant", "all empty but one")
ORDERS = ("random", "sorted", "reversed", "constant", "few values", "nearly sorted")
SLOWEST = 3.0  # a shape may take this multiple of the time at the operation's best rate
NOISE = 1.02  # two timings of one program may differ by this ratio
CALLS = 8  # calls in a program; four times as many if a call takes less than TINY_MS
SAMPLES = 3  # samples in a timing
AGAIN = 2  # the most times that both sides are timed again while XLA seems faster
MIN_MS = 0.012  # no call is expected to be shorter


@dataclasses.dataclass(frozen=True)
class Shape:
    """A shape of an operation.

    Args:
      shape: the row length, the type, the distribution of lengths, or the order.
      same_rate: whether the operation should process its bytes as fast as in its other shapes.
    """

    operation: str
    shape: str
    inputs: Callable[[np.random.Generator], tuple[Any, ...]]
    ours: Callable[..., Any]
    xla: Callable[..., Any] | None = None
    same_rate: bool = True


# ---- Inputs ---------------------------------------------------------------------------------------------------------


def _sorted_pair(rows: int, n: int, dtype: str) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        return tuple(jnp.sort(_keys(rng, rows, n, dtype), axis=-1) for _ in range(2))

    return make


def _keys(rng: np.random.Generator, rows: int, n: int, dtype: str) -> jax.Array:
    """Draws keys below 4n, and below 120 for types of one byte."""
    limit = min(4 * n, 120 if jnp.dtype(dtype).itemsize == 1 else 4 * n)
    return jax.random.randint(random_key(rng), (rows, n), 0, limit, "int32").astype(dtype)


def _runs(rows: int, n: int, dtype: str) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        keys = jnp.sort(jax.random.randint(random_key(rng), (rows, n), 0, max(2, n // 4), "int32"), axis=-1)
        return keys, random_keys(rng, rows * n, "float32").reshape(rows, n).astype(dtype)

    return make


def _offsets(rows: int, n: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        lengths = rng.integers(0, 5, (rows, n // 2), np.int32)
        offsets = np.cumsum(lengths, axis=1, dtype=np.int32) - lengths
        return jnp.asarray(offsets), random_keys(rng, rows * n).reshape(rows, n)

    return make


def _places(rows: int, n: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """Makes items, ascending positions of a third of them, and values."""

    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        steps = jax.random.randint(random_key(rng), (rows, max(1, n // 3)), 1, 4, "int32")
        places = jnp.minimum(jnp.cumsum(steps, axis=1) - 1, n)
        return random_keys(rng, rows * n).reshape(rows, n), places, steps.astype("uint32")

    return make


def _distributed(name: str, items: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        lengths = {
            "uniform": lambda: rng.integers(0, 61, items // 30),
            "one item": lambda: np.ones(items, np.int64),
            "empty between": lambda: np.tile([30, 0, 0, 0], items // 30),
            "alternating": lambda: np.tile([1, 1000], items // 1001),
            "Zipf": lambda: np.minimum(rng.zipf(1.5, items // 30), items // 8),
            "one giant": lambda: np.array([*[1] * 1000, items - 2000, *[1] * 1000]),
            "all empty but one": lambda: np.append(np.zeros(items // 30, np.int64), items),
        }[name]()
        ends = np.cumsum(lengths)
        heads = np.minimum(ends - lengths, items).astype(np.int32)
        return random_keys(rng, items, "float32"), jnp.asarray(heads)

    return make


def _ordered(name: str, items: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        keys = random_keys(rng, items, "uint32")
        return (
            {
                "random": lambda: keys,
                "sorted": lambda: jnp.sort(keys),
                "reversed": lambda: jnp.sort(keys)[::-1],
                "constant": lambda: jnp.zeros_like(keys) + 7,
                "few values": lambda: keys % 13,
                "nearly sorted": lambda: jnp.arange(items, dtype="uint32") + keys % 25,
            }[name](),
        )

    return make


# ---- The operations in plain JAX ------------------------------------------------------------------------------------


def _xla_sort_two(a: Any, b: Any) -> Any:
    return jnp.sort(jnp.concatenate([a, b]))


def _xla_search(a: Any, b: Any) -> Any:
    return jnp.searchsorted(b, a)


def _xla_expand(offsets: Any, values: Any) -> Any:
    n = values.shape[0]
    marks = jnp.zeros(n, jnp.int32).at[offsets].add(1, mode="drop")
    return values[jnp.cumsum(marks) - 1]


def _segment_ids(heads: Any, n: int) -> Any:
    return jnp.cumsum(jnp.zeros(n, jnp.int32).at[heads].add(1, mode="drop")) - 1


def _xla_segment_sum(x: Any, heads: Any) -> Any:
    ids = _segment_ids(heads, x.shape[0])
    return jax.ops.segment_sum(x, ids, heads.shape[0], indices_are_sorted=True)


def _xla_segmented_sort(x: Any, heads: Any) -> Any:
    return jax.lax.sort((_segment_ids(heads, x.shape[0]), x), num_keys=2)[1]


# ---- The shapes -----------------------------------------------------------------------------------------------------

PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
    "merge": (mgpu.merge, _xla_sort_two),
    "sorted_search": (mgpu.sorted_search, _xla_search),
    "sorted_match": (mgpu.sorted_match, None),
    "sorted_equal_count": (mgpu.sorted_equal_count, None),
    "set_intersection": (mgpu.set_intersection, None),
    "set_union": (mgpu.set_union, None),
    "join": (lambda a, b: mgpu.join(a, b, size=a.shape[0]), None),
}
RUNS: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
    "reduce_by_key": (lambda k, x: mgpu.reduce_by_key(k, x, size=k.shape[0]), None),
    "scan": (lambda k, x: mgpu.scan(x), lambda k, x: jnp.cumsum(x)),
    "scan, count": (lambda k, x: mgpu.scan(x, count=k[0] + 1), None),
    "reduce": (lambda k, x: mgpu.reduce(x), lambda k, x: jnp.sum(x)),
    "mergesort": (lambda k, x: mgpu.mergesort(x), lambda k, x: jnp.sort(x)),
}
OFFSETS: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
    "load_balance_search": (lambda o, v: mgpu.load_balance_search(o, v.shape[0]), None),
    "interval_expand": (lambda o, v: mgpu.interval_expand(v[: o.shape[0]], o, v.shape[0]), _xla_expand),
    "interval_gather": (lambda o, v: mgpu.interval_gather(v, o[::-1], o, v.shape[0]), None),
    "segmented_reduce": (lambda o, v: mgpu.segmented_reduce(v, o), None),
}
PLACES: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
    "bulk_remove": (lambda x, places, values: mgpu.bulk_remove(x, places), None),
    "bulk_insert": (mgpu.bulk_insert, None),
}
SEGMENTED: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
    "segmented_sort": (mgpu.segmented_sort, _xla_segmented_sort),
    "segmented_reduce": (mgpu.segmented_reduce, _xla_segment_sum),
    "segmented_scan": (mgpu.segmented_scan, None),
    "interval_expand": (lambda x, heads: mgpu.interval_expand(x[: heads.shape[0]], heads, x.shape[0]), None),
}
SORTS: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
    "mergesort": (mgpu.mergesort, None),
    "locality_sort": (mgpu.locality_sort, None),
}
# The time of a sort depends on the number of its rounds, not only on its bytes.
SORTING = ("mergesort", "locality_sort", "segmented_sort")


def shapes(items: int = ITEMS) -> Iterator[Shape]:
    """Yields shapes of about `items` items; those that share inputs are neighbours."""
    for n in ROWS:
        rows = items // n
        for calls, inputs in (
            (PAIRS, _sorted_pair(rows, n, "int32")),
            (RUNS, _runs(rows, n, "float32")),
            (OFFSETS, _offsets(rows, n)),
            (PLACES, _places(rows, n)),
        ):
            for operation, (ours, xla) in calls.items():
                follows = operation not in SORTING
                yield Shape(operation, f"rows of {n}", inputs, jax.vmap(ours), xla and jax.vmap(xla), follows)
    for dtype in DTYPES:
        rows = items // 512
        for calls, inputs in ((PAIRS, _sorted_pair(rows, 512, dtype)), (RUNS, _runs(rows, 512, dtype))):
            for operation, (ours, xla) in calls.items():
                # Narrow types have fewer bytes, but as many items.
                same_rate = jnp.dtype(dtype).itemsize >= 4 and operation not in SORTING
                xla_rows = xla and jax.vmap(xla)
                yield Shape(operation, f"{dtype}, rows of 512", inputs, jax.vmap(ours), xla_rows, same_rate)
    for calls, names, inputs_of in ((SEGMENTED, DISTRIBUTIONS, _distributed), (SORTS, ORDERS, _ordered)):
        for name in names:
            inputs = inputs_of(name, items)
            for operation, (ours, xla) in calls.items():
                yield Shape(operation, name, inputs, ours, xla, operation not in SORTING)


@dataclasses.dataclass
class Measured:
    shape: Shape
    bytes: int
    ours: float
    xla: float | None
    is_xla: bool = False  # whether our program has only XLA's kernels

    @property
    def is_behind(self) -> bool:
        """Whether XLA is faster, by more than noise if both sides run XLA's kernels."""
        return self.xla is not None and self.ours > (NOISE if self.is_xla else 1) * self.xla

    def or_less(self, again: Measured) -> Measured:
        """Returns the smaller times."""
        xla = None if self.xla is None or again.xla is None else min(self.xla, again.xla)
        return dataclasses.replace(self, ours=min(self.ours, again.ours), xla=xla)


def failures(measured: list[Measured]) -> list[str]:
    """Returns lines about the shapes in which XLA is faster or the operation is too slow for its bytes."""
    rates: dict[str, float] = {}
    for m in measured:
        if m.shape.same_rate:
            rates[m.shape.operation] = max(rates.get(m.shape.operation, 0.0), m.bytes / m.ours)
    found = []
    for m in measured:
        where = f"{m.shape.operation}, {m.shape.shape}: {m.ours:.3f} ms"
        if m.is_behind:
            found.append(f"{where}, XLA {m.xla:.3f}")
        if m.shape.same_rate:
            expected = max(m.bytes / rates[m.shape.operation], MIN_MS)
            if m.ours > SLOWEST * expected:
                found.append(f"{where}, by its bytes {expected:.3f}")
    return found


def _measure(some: list[Shape], pool: ThreadPoolExecutor) -> list[Measured]:
    """Times shapes that share inputs: compiles in parallel, then runs one by one."""
    with jax.enable_x64(True):
        sets = [jax.block_until_ready(some[0].inputs(np.random.default_rng(0)))]
        # With so many sets, inputs leave the cache before their next use, unless 4 * CALLS sets are too few.
        min_bytes = min(array_bytes(x) for x in jax.tree.leaves(sets[0]))
        distinct = min(4 * CALLS, -(-CACHE_BYTES // max(min_bytes, 1)))
        drawn = min(distinct, CALLS)
        sets += [jax.block_until_ready(some[0].inputs(np.random.default_rng(seed))) for seed in range(1, drawn)]
        sets += [jax.tree.map(jnp.copy, sets[i % drawn]) for i in range(drawn, distinct)]

    def compile_all(some_shapes: list[Shape], calls: int) -> list[tuple[Program, Program | None]]:
        def compile_one(call: Callable[..., Any]) -> Program:
            with jax.enable_x64(True):
                return compile_program(call, [sets[i % len(sets)] for i in range(calls)], rounds=ROUNDS)

        submitted = [
            (pool.submit(compile_one, shape.ours), pool.submit(compile_one, shape.xla) if shape.xla else None)
            for shape in some_shapes
        ]
        return [(ours.result(), xla.result() if xla else None) for ours, xla in submitted]

    # No program compiles while others are timed: compilation slows the host, for which short programs wait.
    measured = []
    for shape, (ours, xla) in zip(some, compile_all(some, CALLS), strict=True):
        moved = array_bytes(sets[0], ours()[0])
        measured.append(Measured(shape, moved, *_min_medians(ours, xla), not ours.has_kernels))
    # In short programs of tiny calls, the host's work shows, so these are timed again in longer programs.
    tiny = [i for i, m in enumerate(measured) if min(m.ours, m.xla or m.ours) < TINY_MS]
    for i, (ours, xla) in zip(tiny, compile_all([some[i] for i in tiny], 4 * CALLS), strict=True):
        ours_ms, xla_ms = _min_medians(ours, xla)
        measured[i] = dataclasses.replace(measured[i], ours=ours_ms, xla=xla_ms)
    return measured


def _measured_again(m: Measured, pool: ThreadPoolExecutor) -> Measured:
    """Compiles and measures again while XLA seems faster, at most AGAIN times; keeps the shortest times."""
    for _ in range(AGAIN):
        if not m.is_behind:
            break
        m = m.or_less(_measure([m.shape], pool)[0])
    return m


def _min_medians(ours: Program, xla: Program | None) -> tuple[float, float | None]:
    """Returns the smallest medians in ms; measures again while XLA seems faster, at most AGAIN times."""
    if xla is None:
        return time_program(ours, SAMPLES).median, None
    own, peer = time_program(ours, SAMPLES).median, time_program(xla, SAMPLES).median
    for _ in range(AGAIN):
        if own <= peer:
            break
        own = min(own, time_program(ours, SAMPLES).median)
        peer = min(peer, time_program(xla, SAMPLES).median)
    return own, peer


def main(scale: float, output: pathlib.Path | None, match: list[str]) -> int:
    """Measures shapes whose name contains one of the texts, or all; returns 1 if one fails."""
    groups: dict[Any, list[Shape]] = {}
    for shape in shapes(int(ITEMS * scale)):
        if not match or any(text in f"{shape.operation}, {shape.shape}" for text in match):
            groups.setdefault(shape.inputs, []).append(shape)
    measured: list[Measured] = []
    with ThreadPoolExecutor() as pool:
        for some in groups.values():
            for first in _measure(some, pool):
                m = _measured_again(first, pool)
                measured.append(m)
                xla = "" if m.xla is None else f"  XLA {m.xla:8.3f}"
                rate = m.bytes / m.ours / 1e6
                print(f"{m.shape.operation:20s} {m.shape.shape:26s} {m.ours:8.3f} ms {rate:7.0f} GB/s{xla}", flush=True)
    found = failures(measured)
    if output:
        runner = Runner(1.0, 3, with_peers=False)
        rows = [
            {
                "operation": m.shape.operation,
                "shape": m.shape.shape,
                "bytes": m.bytes,
                "ours_ms": m.ours,
                "xla_ms": m.xla,
                "is_xla": m.is_xla,
            }
            for m in measured
        ]
        output.mkdir(parents=True, exist_ok=True)
        record = {"run": describe_run(runner, runner.copy_rate()), "rows": rows, "failures": found}
        (output / "shapes.json").write_text(json.dumps(record, indent=1) + "\n")
    print(*found, f"{len(measured)} shapes, {len(found)} failures", sep="\n", file=sys.stderr)
    return int(bool(found))
