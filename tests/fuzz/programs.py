"""Random programs of 3 to 6 operations on results of earlier ones, live counts included."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.fuzz.draw import Call, Shape


@dataclasses.dataclass(frozen=True)
class Vector:
    """An array of `n` items, the first `count` of which are live."""

    at: int  # the place of the array in the pool; its count is next
    n: int
    dtype: str
    in_order: bool = False


Pool = list[Any]  # arrays and counts, in JAX or in NumPy


@dataclasses.dataclass(frozen=True)
class Step:
    """One operation in JAX and in NumPy, and the vectors that it gives."""

    text: str
    run: Callable[[Pool], list[Any]]
    expect: Callable[[Pool], list[Any]]
    gives: list[tuple[int, str, bool]]


def live(pool: Pool, v: Vector) -> np.ndarray:
    return pool[v.at][: int(pool[v.at + 1])]


def counted(rows: np.ndarray, size: int, dtype: str, true: int | None = None) -> list[Any]:
    """Returns the rows that fit, padded with zeros, and their number."""
    count = len(rows) if true is None else true
    return [oracle.padded(rows.astype(jnp.dtype(dtype)), size, 0), np.int32(min(count, size))]


def clipped(count: Any, size: int) -> Any:
    return jnp.minimum(count, size).astype(jnp.int32)


def sort_step(shape: Shape, v: Vector) -> Step:
    descending = False
    name = shape.choice(("sort", "mergesort", "locality_sort"))

    def expect(pool: Pool) -> list[Any]:
        x, count = pool[v.at], int(pool[v.at + 1])
        return [x[oracle.segmented_sort_indices(x, np.zeros(0), descending, count)], np.int32(count)]

    return Step(
        name, lambda pool: [getattr(mgpu, name)(pool[v.at], count=pool[v.at + 1]), pool[v.at + 1]],
        expect, [(v.n, v.dtype, True)],
    )  # fmt: skip


def segment_step(shape: Shape, v: Vector, heads: Vector) -> Step:
    """Sorts, scans or reduces segments, whose heads are another vector's items."""
    kind = shape.choice(("segmented_sort", "segmented_scan", "segmented_reduce"))

    def as_heads(np_or_jnp: Any, pool: Pool) -> Any:
        h = np_or_jnp.where(np_or_jnp.arange(heads.n, dtype=np.int32) < pool[heads.at + 1], pool[heads.at], v.n)
        return np_or_jnp.clip(h, 0, v.n).astype(np.int32)

    def run(pool: Pool) -> list[Any]:
        x, count, h = pool[v.at], pool[v.at + 1], as_heads(jnp, pool)
        if kind == "segmented_sort":
            return [mgpu.segmented_sort(x, h, count=count), count]
        if kind == "segmented_scan":
            return [mgpu.segmented_scan(x, h, "max", count=count), count]
        return [mgpu.segmented_reduce(x, h, "min", count=count), jnp.int32(heads.n)]

    def expect(pool: Pool) -> list[Any]:
        x, count, h = pool[v.at], int(pool[v.at + 1]), as_heads(np, pool)
        if kind == "segmented_sort":
            return [x[oracle.segmented_sort_indices(x, h, False, count)], np.int32(count)]
        if kind == "segmented_scan":
            return [oracle.segmented_scan(x, h, "max", count=count), np.int32(count)]
        return [oracle.segmented_reduce(x, h, "min", count), np.int32(heads.n)]

    return Step(kind, run, expect, [(heads.n if kind == "segmented_reduce" else v.n, v.dtype, False)])


def merge_step(shape: Shape, a: Vector, b: Vector) -> Step:
    del shape

    def run(pool: Pool) -> list[Any]:
        counts = pool[a.at + 1], pool[b.at + 1]
        return [mgpu.merge(pool[a.at], pool[b.at], a_count=counts[0], b_count=counts[1]), counts[0] + counts[1]]

    def expect(pool: Pool) -> list[Any]:
        both = np.concatenate([live(pool, a), live(pool, b)])
        return counted(both[oracle.sort_indices(both)], a.n + b.n, a.dtype)

    return Step("merge", run, expect, [(a.n + b.n, a.dtype, True)])


def set_step(shape: Shape, a: Vector, b: Vector) -> Step:
    name = "set_" + shape.choice(("intersection", "union", "difference", "symmetric_difference"))
    size = int(shape.choice((a.n + b.n, max(a.n, b.n), min(a.n, b.n) // 2)))

    def run(pool: Pool) -> list[Any]:
        found = getattr(mgpu, name)(pool[a.at], pool[b.at], size=size, a_count=pool[a.at + 1], b_count=pool[b.at + 1])
        return [found.keys, clipped(found.count, size)]

    def expect(pool: Pool) -> list[Any]:
        both = np.concatenate([live(pool, a), live(pool, b)])
        found = both[oracle.set_sources(name, live(pool, a), live(pool, b))]
        return counted(found[:size], size, a.dtype, len(found))

    return Step(name + " short" * (size < a.n + b.n), run, expect, [(size, a.dtype, True)])


def key_step(shape: Shape, v: Vector) -> Step:
    """Returns the runs of equal neighbours: their keys, and the sums of their lengths as offsets."""
    size = int(shape.choice((v.n, max(v.n // 2, 1))))

    def run(pool: Pool) -> list[Any]:
        ones = jnp.ones((v.n,), jnp.int32)
        keys, lengths, count = mgpu.reduce_by_key(pool[v.at], ones, size=size, count=pool[v.at + 1])
        count = clipped(count, size)
        return [keys, count, mgpu.scan(lengths, exclusive=True, count=count), count]

    def expect(pool: Pool) -> list[Any]:
        x = live(pool, v)
        ranks = oracle.rank(x)
        starts = np.flatnonzero(np.append(True, ranks[1:] != ranks[:-1])) if len(x) else np.zeros(0, np.int64)
        offsets = counted(starts[:size], size, "int32", len(starts))
        return [*counted(x[starts][:size], size, v.dtype, len(starts)), *offsets]

    return Step(
        "reduce_by_key" + " short" * (size < v.n), run, expect, [(size, v.dtype, v.in_order), (size, "int32", True)]
    )


def expand_step(shape: Shape, v: Vector) -> Step:
    """Repeats the live item at each position i, i % 3 times."""
    size = int(shape.choice((v.n, 2 * v.n)))

    def lengths(np_or_jnp: Any, pool: Pool) -> Any:
        positions = np_or_jnp.arange(v.n, dtype=np.int32)
        return np_or_jnp.where(positions < pool[v.at + 1], positions % 3, 0).astype(np.int32)

    def run(pool: Pool) -> list[Any]:
        offsets, total = mgpu.scan(lengths(jnp, pool), exclusive=True, return_total=True)
        total = clipped(total, size)
        return [mgpu.interval_expand(pool[v.at], offsets, size, total=total), total]

    def expect(pool: Pool) -> list[Any]:
        rows = np.repeat(pool[v.at], lengths(np, pool))
        return counted(rows[:size], size, v.dtype, len(rows))

    return Step("interval_expand", run, expect, [(size, v.dtype, v.in_order)])


def search_step(shape: Shape, a: Vector, b: Vector) -> Step:
    """Searches for one vector's live items in another; slots past the live items give 0."""
    side = shape.choice(("left", "right"))

    def run(pool: Pool) -> list[Any]:
        counts = {"needles_count": pool[a.at + 1], "haystack_count": pool[b.at + 1]}
        found = mgpu.sorted_search(pool[a.at], pool[b.at], side, **counts)
        return [jnp.where(found < 0, 0, found), pool[a.at + 1]]

    def expect(pool: Pool) -> list[Any]:
        return counted(oracle.sorted_search(live(pool, a), live(pool, b), side), a.n, "int32")

    return Step("sorted_search", run, expect, [(a.n, "int32", True)])


def insert_step(shape: Shape, v: Vector, at: Vector) -> Step:
    """Inserts items before the positions in another vector."""
    del shape

    def indices(np_or_jnp: Any, pool: Pool) -> Any:
        where = np_or_jnp.where(np_or_jnp.arange(at.n, dtype=np.int32) < pool[at.at + 1], pool[at.at], v.n + 1)
        return np_or_jnp.sort(np_or_jnp.clip(where, 0, v.n + 1)).astype(np.int32)

    def run(pool: Pool) -> list[Any]:
        where, count = indices(jnp, pool), pool[v.at + 1]
        values = jnp.arange(at.n, dtype=np.int32).astype(v.dtype)
        return [
            mgpu.bulk_insert(pool[v.at], where, values, count=count),
            count + jnp.sum(where <= count, dtype=jnp.int32),
        ]

    def expect(pool: Pool) -> list[Any]:
        where, count = indices(np, pool), int(pool[v.at + 1])
        values = np.arange(at.n).astype(jnp.dtype(v.dtype))
        inside = where <= count
        return counted(np.insert(live(pool, v), where[inside], values[inside]), v.n + at.n, v.dtype)

    return Step("bulk_insert", run, expect, [(v.n + at.n, v.dtype, False)])


def join_step(shape: Shape, a: Vector, b: Vector) -> Step:
    kind = shape.choice(("inner", "left", "right", "outer"))
    size = int(shape.choice((a.n + b.n, 7)))

    def run(pool: Pool) -> list[Any]:
        rows = mgpu.join(pool[a.at], pool[b.at], kind, size=size, a_count=pool[a.at + 1], b_count=pool[b.at + 1])
        found = mgpu.join_columns(rows, pool[a.at], jnp.arange(b.n, dtype=jnp.int32))
        count = clipped(rows.count, size)
        return [found.a, count, found.b, count]

    def expect(pool: Pool) -> list[Any]:
        rows = oracle.join_rows(kind, live(pool, a), live(pool, b))
        left = np.where(
            rows[:, 0] < 0, np.zeros((), jnp.dtype(a.dtype)), np.append(pool[a.at], pool[a.at][:0].sum())[rows[:, 0]]
        )
        right = np.maximum(rows[:, 1], 0)
        return [*counted(left[:size], size, a.dtype, len(rows)), *counted(right[:size], size, "int32", len(rows))]

    return Step("join short", run, expect, [(size, a.dtype, False), (size, "int32", False)])


def programs(shape: Shape) -> Call:
    """Returns a program whose intermediate arrays and counts are all compared."""
    dtypes = ("int32", "int32", "float32", "uint8", "int16", "float16") + (("int64", "float64") if shape.x64 else ())
    dtype = shape.choice(dtypes)
    largest = 60 if shape.flag(0.8) else 2000
    sizes = [min(shape.size(), largest) for _ in range(2)]
    vectors = [Vector(2 * i, n, dtype) for i, n in enumerate(sizes)]
    steps: list[Step] = []
    for _ in range(int(shape.rng.integers(3, 7))):
        step = None
        while step is None:
            step = _next(shape, vectors)
        steps.append(step)
        for n, kind, in_order in step.gives:
            vectors.append(Vector(vectors[-1].at + 2, n, kind, in_order))
    shape.words = [dtype, f"n={sizes}", *(step.text for step in steps)]

    def draw(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        operands: dict[str, Any] = {}
        for i, n in enumerate(sizes):
            values = rng.integers(0, int(rng.choice([2, 13, 100])), n)
            operands[f"x{i}"] = values.astype(jnp.dtype(dtype))
            operands[f"c{i}"] = np.int32(rng.integers(0, n + 1))
        return operands

    def function(**operands: Any) -> list[Any]:
        pool: Pool = list(operands.values())
        for step in steps:
            pool += step.run(pool)
        return pool[2 * len(sizes) :]

    def expected(**operands: Any) -> list[Any]:
        pool: Pool = [operands[f"{kind}{i}"] for i in range(len(sizes)) for kind in "xc"]
        for step in steps:
            pool += step.expect(pool)
        return pool[2 * len(sizes) :]

    def ordered(**operands: Any) -> list[Any]:
        return function(**{f"{kind}{i}": operands[f"{kind}{i}"] for i in range(len(sizes)) for kind in "xc"})

    return Call("program", ordered, draw, expected, shape.x64, finite=True)


def _next(shape: Shape, vectors: list[Vector]) -> Step | None:
    """Returns a step on existing vectors, preferably new ones; None if none fits."""
    v = vectors[-1 - min(int(shape.rng.geometric(0.5)) - 1, len(vectors) - 1)]
    if v.n > 20_000:
        return None
    ordered = [w for w in vectors if w.in_order and w.dtype == v.dtype and w.n <= 20_000]
    positions = [w for w in vectors if w.in_order and w.dtype == "int32" and w.n <= 20_000]
    options: list[Callable[[], Step]] = [lambda: expand_step(shape, v), lambda: key_step(shape, v)]
    if not v.in_order:
        options += [lambda: sort_step(shape, v)] * 3
    if positions:
        options += [
            lambda: segment_step(shape, v, shape.choice(positions)),
            lambda: insert_step(shape, v, shape.choice(positions)),
        ]
    if v.in_order:
        pair = [
            lambda step=step: step(shape, v, shape.choice(ordered))
            for step in (merge_step, set_step, set_step, search_step, join_step)
        ]
        options += pair
    return shape.choice(options)()
