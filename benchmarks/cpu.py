"""Goals of the CPU kernels: `python -m benchmarks --cpu`.

Both sides are jitted, and the shortest of several calls counts. A goal is missed if results differ, or our side is not
`factor` times as fast as its peer.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks.case import agree_within, equal
from benchmarks.columns import lax_sort
from benchmarks.inputs import random_key, random_keys

__all__ = ["GOALS", "Goal", "main"]

ITEMS = 2**22
CALLS = 7
DIRECTIONS = (False, True, False)


@dataclasses.dataclass(frozen=True)
class Goal:
    """An operation that must be `factor` times as fast as its peer.

    Args:
      factor: the least ratio of the peer's time to ours; 0 if times are only shown.
      ours, peer: jittable functions of the arrays.
    """

    name: str
    factor: float
    inputs: Callable[[np.random.Generator], tuple[Any, ...]]
    ours: Callable[..., Any]
    peer: Callable[..., Any]
    agree: Callable[[Any, Any], bool] = equal


def _words(columns: int, values: int | None = None) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """Makes columns of uint32, over the whole range or below `values`."""

    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        whole = (random_keys(rng, ITEMS) for _ in range(columns))
        return tuple(x if values is None else x % np.uint32(values) for x in whole)

    return make


def _mixed(rng: np.random.Generator) -> tuple[Any, ...]:
    repeated = (random_keys(rng, ITEMS) % np.uint32(1000)).astype(jnp.int32)
    return repeated, random_keys(rng, ITEMS, "float32"), random_keys(rng, ITEMS)


def _half(rng: np.random.Generator) -> tuple[Any, ...]:
    return random_keys(rng, ITEMS, "float32"), jax.random.bernoulli(random_key(rng), 0.5, (ITEMS,))


def _rows(rng: np.random.Generator) -> tuple[Any, ...]:
    return (random_keys(rng, ITEMS, "float32").reshape(64, -1),)


def _top_k(k: int) -> Goal:
    def ours(x: jax.Array) -> Any:
        return jax.vmap(lambda row: mgpu.top_k(row, k))(x)[:2]

    return Goal(f"top-{k} of 64 rows of 65,536", 2, _rows, ours, lambda x: tuple(jax.lax.top_k(x, k)))


def _by_less(what: str, factor: float, less: Callable[..., Any]) -> Goal:
    def inputs(rng: np.random.Generator) -> tuple[Any, ...]:
        return (random_keys(rng, 2**20, "float32"),)

    def peer(x: jax.Array) -> jax.Array:
        return jax.lax.sort((jnp.abs(x), x), num_keys=1)[1]

    return Goal(
        f"mergesort of 2^20 float32 by less, {what}", factor, inputs, lambda x: mgpu.mergesort(x, less=less), peer
    )


def _affine(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] * b[0] + b[1]


def _maps(rng: np.random.Generator) -> tuple[Any, ...]:
    """Makes 2^20 affine maps."""
    return random_keys(rng, 2**20, "float32") * 0.5 + 0.25, random_keys(rng, 2**20, "float32")


def _scanned_by_jax(*maps: jax.Array) -> Any:
    return jax.lax.associative_scan(jax.vmap(_affine), maps)


def _gradient(scan: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda *maps: scan(*maps)[1].sum(), argnums=(0, 1))


def _by_function(name: str, factor: float, ours: Callable[..., Any], peer: Callable[..., Any], **given: Any) -> Goal:
    return Goal(f"{name} of 2^20 by a function", factor, given.pop("inputs", _maps), ours, peer, agree_within(1e-4))


def _numbers(rng: np.random.Generator) -> tuple[Any, ...]:
    return (random_keys(rng, 2**20, "float32"),)


def _segments_by(op: Any) -> Callable[..., Any]:
    heads = np.arange(0, 2**20, 30, dtype=np.int32)
    return lambda x: mgpu.segmented_reduce(x, heads, op, identity=0.0 if callable(op) else None)


def _add(a: Any, b: Any) -> Any:
    return a + b


def _segment_sum(items: int, width: int, segments: int) -> Goal:
    def inputs(rng: np.random.Generator) -> tuple[Any, ...]:
        ids = np.sort(rng.integers(0, segments, items)).astype(np.int32)
        heads = np.searchsorted(ids, np.arange(segments)).astype(np.int32)
        return random_keys(rng, items * width, "float32").reshape(items, width), heads, ids

    def ours(x: jax.Array, heads: jax.Array, ids: jax.Array) -> jax.Array:
        return mgpu.segmented_reduce(x, heads)

    def peer(x: jax.Array, heads: jax.Array, ids: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(x, ids, segments, indices_are_sorted=True)

    return Goal(f"segment sum of [{items:,}, {width}]", 1, inputs, ours, peer, agree_within(1e-5))


def _ids(items: int, ids: int, *trailing: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """Makes rows, and ids in random order."""

    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        x = random_keys(rng, items * int(np.prod(trailing)), "float32").reshape(items, *trailing)
        return x, rng.integers(0, ids, items).astype(np.int32)

    return make


def _weighted(width: int) -> Goal:
    entries = 2**20

    def inputs(rng: np.random.Generator) -> tuple[Any, ...]:
        table, indices = _ids(entries // 16, 1, width)(rng)[0], rng.integers(0, entries // 16, entries)
        return table, indices.astype(np.int32), random_keys(rng, entries, "float32")

    def ours(x: jax.Array, indices: jax.Array, weights: jax.Array) -> jax.Array:
        return mgpu.segmented_reduce(x, jnp.arange(0, entries, 16), indices=indices, weights=weights)

    def peer(x: jax.Array, indices: jax.Array, weights: jax.Array) -> jax.Array:
        ids = jnp.arange(entries) // 16
        return jax.ops.segment_sum(x[indices] * weights[:, None], ids, entries // 16, indices_are_sorted=True)

    return Goal(f"weighted rows of {width}", 1.5, inputs, ours, peer, agree_within(1e-4))


def _search(needles: int, items: int) -> Goal:
    def inputs(rng: np.random.Generator) -> tuple[Any, ...]:
        return random_keys(rng, needles, "float32"), jnp.sort(random_keys(rng, items, "float32"))

    name = f"search of {needles:,} needles in {items:,}"
    return Goal(name, 1, inputs, mgpu.search, lambda needles, items: jnp.searchsorted(items, needles))


GOALS = [
    Goal("sort of 2^22 uint32 pairs", 5, _words(2), mgpu.sort, lambda *x: jax.lax.sort(x, num_keys=1)),
    *(
        Goal(
            f"sort of three columns, {what}",
            5,
            inputs,
            lambda *x: mgpu.sort(x, descending=DIRECTIONS),
            lambda *x: tuple(lax_sort(x, DIRECTIONS)),
        )
        for what, inputs in (("uint32", _words(3)), ("1,000 values", _words(3, 1000)), ("three types", _mixed))
    ),
    Goal("argsort of 2^22 uint32", 5, _words(1), mgpu.argsort, jnp.argsort),
    Goal(
        "select half of 2^22 float32",
        10,
        _half,
        lambda x, keep: mgpu.select(x, keep)[0],
        lambda x, keep: jnp.compress(keep, x, size=ITEMS, fill_value=0),
    ),
    *map(_top_k, (8, 50, 1000)),
    _by_less("a comparison of keys", 5, lambda a, b: jnp.abs(a) < jnp.abs(b)),
    _by_less("a function of both items", 0.5, lambda a, b: jnp.abs(a) - jnp.abs(b) < 0),
    _by_function("scan, affine maps,", 1.5, lambda *x: mgpu.scan(x, _affine), _scanned_by_jax),
    _by_function(
        "gradient of a scan, affine maps,", 1.5, _gradient(lambda *x: mgpu.scan(x, _affine)), _gradient(_scanned_by_jax)
    ),
    _by_function(
        "reduce, affine maps,", 3, lambda *x: mgpu.reduce(x, _affine), lambda *x: [y[-1] for y in _scanned_by_jax(*x)]
    ),
    _by_function(
        "scan, a + b beside the name,",
        0,
        lambda x: mgpu.scan(x, _add),
        lambda x: mgpu.scan(x, "add"),
        inputs=_numbers,
    ),
    _by_function("reduce, a + b beside the name,", 0, lambda x: mgpu.reduce(x, _add), mgpu.reduce, inputs=_numbers),
    _by_function("segments of 30, a + b beside the name,", 0, _segments_by(_add), _segments_by("add"), inputs=_numbers),
    _segment_sum(155_000, 64, 15_500),
    _segment_sum(2**20, 8, 2**15),
    *map(_weighted, (1, 4, 64)),
    *(_search(needles, items) for needles in (10**5, 10**6) for items in (1000, 10**5, 10**6)),
    *(
        Goal(
            f"sum of {n:,} rows of {width} by {size:,} ids",
            1,
            _ids(n, size, width),
            lambda x, ids, size=size: mgpu.reduce_by_id(x, ids, size),
            lambda x, ids, size=size: jax.ops.segment_sum(x, ids, size),
            agree_within(1e-4),
        )
        for n, width, size in ((10**6, 1, 100), (10**6, 1, 10**5), (10**6, 2, 1000), (10**6, 8, 10**5))
    ),
]


def _min_ms(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[float, Any]:
    """Returns the fastest call's milliseconds, and the results."""
    function = jax.jit(function)
    results = jax.block_until_ready(function(*arguments))
    fastest = float("inf")
    for _ in range(CALLS):
        begin = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        fastest = min(fastest, 1e3 * (time.perf_counter() - begin))
    return fastest, results


def main(texts: Sequence[str]) -> int:
    """Runs the goals whose name contains one of the texts, or all; returns 1 if one is missed."""
    failed = 0
    for goal in GOALS:
        if texts and not any(text.lower() in goal.name.lower() for text in texts):
            continue
        arguments = [jnp.asarray(x) for x in goal.inputs(np.random.default_rng(0))]
        (ours, found), (peer, expected) = (_min_ms(side, arguments) for side in (goal.ours, goal.peer))
        agrees, reached = goal.agree(found, expected), peer >= goal.factor * ours
        verdict = "the results differ" if not agrees else "reached" if reached else "missed"
        failed += verdict != "reached"
        times = f"{peer / ours:.1f} times as fast, required {goal.factor}"
        print(f"{goal.name}: {ours:.2f} ms, peer {peer:.2f}: {times}: {verdict}", flush=True)
    return int(failed > 0)
