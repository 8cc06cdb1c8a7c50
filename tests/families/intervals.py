from __future__ import annotations

from typing import Any

import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.examples import (
    KEYS,
    MANY,
    OFFSETS,
    POSITIONS,
    Argument,
    Example,
    N,
    distinct,
    integer_to,
    interval_operands,
    live,
    numbers,
)
from tests.fuzz import draw
from tests.fuzz.compare import Where
from tests.fuzz.draw import Call, Rows, Shape, names_of
from tests.many_items import bytes_of, same, spots

EXAMPLES = {
    "interval_expand": Example(
        lambda values, offsets, total: mgpu.interval_expand(values, offsets, 64, total=total),
        lambda rng, real: (numbers(rng, real, 9), *interval_operands(rng)[1:]),
        differentiable=(0,),
        counts=(2,),
    ),
    "interval_expand, rows": Example(
        lambda values, offsets: mgpu.interval_expand(values, offsets, 64),
        lambda rng, real: (numbers(rng, real, 9, 3), interval_operands(rng)[1]),
        differentiable=(0,),
    ),
    "interval_gather": Example(
        lambda x, starts, offsets, total: mgpu.interval_gather(x, starts, offsets, 64, total=total),
        lambda rng, real: (numbers(rng, real, 70), *interval_operands(rng)),
        differentiable=(0,),
        counts=(3,),
    ),
    "interval_move": Example(
        lambda x, gather, scatter, offsets, into, total: mgpu.interval_move(
            x, gather, scatter, offsets, into, total=total
        ),
        lambda rng, real: (
            numbers(rng, real, 70),
            rng.integers(0, 20, 9).astype(np.int32),
            (moved := interval_operands(rng))[0],
            moved[1],
            numbers(rng, real, 80),
            moved[2],
        ),
        differentiable=(0, 4),
        counts=(5,),
    ),
    "interval_scatter": Example(
        lambda x, starts, offsets, into, total: mgpu.interval_scatter(x, starts, offsets, into, total=total),
        lambda rng, real: (
            numbers(rng, real, 64),
            *(moved := interval_operands(rng))[:2],
            numbers(rng, real, 80),
            moved[2],
        ),
        differentiable=(0, 3),
        counts=(4,),
    ),
    "interval_reduce": Example(
        lambda x, starts, ends, count: mgpu.interval_reduce(x, starts, ends, count=count),
        lambda rng, real: (numbers(rng, real), *rng.integers(-2, N + 3, (2, 9)).astype(np.int32), live(rng)),
        differentiable=(0,),
        counts=(3,),
        exact=False,
        composed=True,
    ),
    "interval_reduce, max": Example(
        lambda x, starts, ends: mgpu.interval_reduce(x, starts, ends, "max"),
        lambda rng, real: (distinct(rng, real), *np.sort(rng.integers(-2, N + 3, (2, 9)), 0).astype(np.int32)),
        differentiable=(0,),
        composed=True,
    ),
}

GARBAGE = {
    "interval_reduce": lambda keys, repeated, indices, wild: mgpu.interval_reduce(keys, indices, wild, "max"),
    "interval_expand": lambda keys, repeated, indices, wild: mgpu.interval_expand(wild, indices, MANY),
    "interval_gather": lambda keys, repeated, indices, wild: mgpu.interval_gather(keys, wild, indices, MANY),
    "interval_move": lambda keys, repeated, indices, wild: mgpu.interval_move(keys, indices, indices, wild, repeated),
    "interval_scatter": lambda keys, repeated, indices, wild: mgpu.interval_scatter(keys, indices, indices, repeated),
}

BROKEN = {
    "interval_reduce: count": (lambda: mgpu.interval_reduce(KEYS, [0], [3], count=7), integer_to(6), 0),
    "interval_expand: offsets": (lambda: mgpu.interval_expand(KEYS[:3], [0, 5, 4], 9), POSITIONS, 2),
    "interval_expand: total": (lambda: mgpu.interval_expand(KEYS[:3], OFFSETS, 9, total=10), integer_to(9), 0),
    "interval_gather: starts": (
        lambda: mgpu.interval_gather(KEYS, [0, 6, 1], OFFSETS, 5),
        "intervals within an array of 6",
        1,
    ),
    "interval_gather: offsets": (lambda: mgpu.interval_gather(KEYS, OFFSETS, [0, 5, 4], 5), POSITIONS, 2),
    "interval_gather: total": (lambda: mgpu.interval_gather(KEYS, OFFSETS, OFFSETS, 5, total=-1), integer_to(5), 0),
    "interval_move: gather_starts": (
        lambda: mgpu.interval_move(KEYS, [0, -1, 2], [4, 3, 0], OFFSETS, KEYS, total=5),
        "intervals within an array of 6",
        1,
    ),
    "interval_move: scatter_starts": (
        lambda: mgpu.interval_move(KEYS, [0, 1, 2], [5, 3, 0], OFFSETS, KEYS, total=5),
        "intervals within an array of 6",
        0,
    ),
    "interval_move: offsets": (lambda: mgpu.interval_move(KEYS, OFFSETS, OFFSETS, [0, 5, 4], KEYS), POSITIONS, 2),
    "interval_move: total": (
        lambda: mgpu.interval_move(KEYS, OFFSETS, OFFSETS, OFFSETS, KEYS, total=-1),
        integer_to(6),
        0,
    ),
    "interval_scatter: starts": (
        lambda: mgpu.interval_scatter(KEYS[:5], [1, 2, 4], OFFSETS, KEYS),
        "intervals that do not overlap",
        1,
    ),
    "interval_scatter: offsets": (lambda: mgpu.interval_scatter(KEYS, OFFSETS, [0, 5, 4], KEYS), POSITIONS, 2),
    "interval_scatter: total": (lambda: mgpu.interval_scatter(KEYS, OFFSETS, OFFSETS, KEYS, total=7), integer_to(6), 0),
}

ARGUMENTS = {
    "interval_expand: values": Argument("rows", np.ones(3, np.float32)),
    "interval_reduce: x": Argument("items"),
    "interval_reduce: ends": Argument("positions", np.array([2, 1, 5], np.int32)),
}


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def backwards(n, index):
    """Returns offsets of intervals that cover n items, their starts in the opposite order, and their lengths."""
    offsets = spots(n, index)
    starts = n - np.append(offsets[1:].astype(np.int64), n)
    if starts[0] > np.iinfo(index).max:  # int32 cannot hold this start, so both have one order
        starts = offsets
    return offsets, starts.astype(index), np.diff(offsets, append=n)


def large_interval_expand(n, index):
    offsets = spots(n, index)
    values = bytes_of(len(offsets))
    same(mgpu.interval_expand(values, offsets, n), np.repeat(values, np.diff(offsets, append=n)))


def large_interval_gather(n, index):
    x = bytes_of(n)
    offsets, starts, lengths = backwards(n, index)
    expected = np.concatenate([x[s : s + length] for s, length in zip(starts, lengths, strict=True)])
    same(mgpu.interval_gather(x, starts, offsets, n), expected)


def large_interval_move(n, index):
    x = bytes_of(n)
    offsets, starts, _ = backwards(n, index)
    same(mgpu.interval_move(x, starts, starts, offsets, np.zeros(n, np.uint8)), x)


def large_interval_scatter(n, index):
    x = bytes_of(n)
    offsets, starts, lengths = backwards(n, index)
    expected = np.zeros(n, np.uint8)
    for o, s, length in zip(offsets, starts, lengths, strict=True):
        expected[s : s + length] = x[o : o + length]
    same(mgpu.interval_scatter(x, starts, offsets, np.zeros(n, np.uint8)), expected)


def large_interval_reduce(n, index):
    x, at = bytes_of(n), spots(n, index)
    ends = np.append(at[1:], n).astype(np.uint64)
    same(mgpu.interval_reduce(x, at, ends, "max"), np.array([x[b:e].max() for b, e in zip(at, ends, strict=True)]))


LARGE = {"interval_expand": large_interval_expand}
LARGE_WITH_INDICES = {
    "interval_reduce": large_interval_reduce,
    "interval_gather": large_interval_gather,
    "interval_move": large_interval_move,
    "interval_scatter": large_interval_scatter,
}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def intervals(shape: Shape) -> Call:
    name = shape.choice(("interval_expand", "interval_gather", "interval_scatter", "interval_move", "interval_move"))
    form, size = shape.rows(), shape.size()
    if size > 5000 and int(np.prod(form.trailing)) > 8:
        form = Rows(form.dtype, (2, 2), shape)
    m = shape.choice((0, 1, 3, size // 4, size, size, 2 * size + 1))
    if shape.largest > 10_000 and shape.flag(0.25):
        size = m = int(shape.rng.integers(1024, 9000))
    total = shape.count(size)
    gathers, scatters = name in ("interval_gather", "interval_move"), name in ("interval_scatter", "interval_move")
    places = size + shape.choice((0, 7)) if scatters else size
    rows = {"interval_expand": m, "interval_scatter": size}.get(name, places + shape.choice((0, 0, 5)))
    most = places if name == "interval_move" else size  # an expansion gets this total if none is given
    fill = shape.choice((0, 0, 2))
    dtypes = [shape.index_dtype(largest) for largest in (most, rows, places)]
    shape.say(name, f"m={m}", f"fill={fill}")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        live = draw.drawn(total, rng)
        put = spaced if mixable and scatters else side_by_side
        lengths, starts = put(rng, m, most if live is None else int(live), places)
        operands: dict[str, Any] = {"x": form.draw(rng, rows)}
        if gathers:
            operands["gather_starts"] = rng.integers(0, np.maximum(rows - lengths, 0) + 1).astype(dtypes[1])
        if scatters:
            operands["scatter_starts"] = starts.astype(dtypes[2])
            operands["into"] = form.draw(rng, places)
        return operands | names_of(name, offsets=(np.cumsum(lengths) - lengths).astype(dtypes[0]), total=live)

    def function(
        x: Any, offsets: Any, gather_starts: Any = None, scatter_starts: Any = None, into: Any = None, **others: Any
    ) -> Any:
        x, into = form.enter(x), None if into is None else form.enter(into)
        if name == "interval_expand":
            result = mgpu.interval_expand(x, offsets, size, fill_value=fill, **others)
        elif name == "interval_gather":
            result = mgpu.interval_gather(x, gather_starts, offsets, size, fill_value=fill, **others)
        elif name == "interval_scatter":
            result = mgpu.interval_scatter(x, scatter_starts, offsets, into, **others)
        else:
            result = mgpu.interval_move(x, gather_starts, scatter_starts, offsets, into, **others)
        return form.leave(result)

    def expected(
        x: Any, offsets: Any, gather_starts: Any = None, scatter_starts: Any = None, into: Any = None, total: Any = None
    ) -> list[Any]:
        live = oracle.live_count(total, most)
        offsets = offsets.astype(np.int64)
        objects, ranks = oracle.work_items(offsets, live)
        first = min(int(offsets[0]), live) if m else 0
        work = first + np.arange(len(objects))
        sources = objects if name == "interval_expand" else work
        if gathers:
            sources = gather_starts.astype(np.int64)[objects] + ranks
        if scatters:
            return [oracle.moved(x, sources, scatter_starts.astype(np.int64)[objects] + ranks, into)]
        out = np.broadcast_to(
            np.asarray(0 if form.dtype == "key" else fill).astype(x.dtype), (size, *x.shape[1:])
        ).copy()
        inside = (sources >= 0) & (sources < len(x))
        out[work[inside]] = x[sources[inside]]
        return [Where(out, np.isin(np.arange(size), work[inside])) if form.dtype == "key" else out]

    names = ("x",) if name in ("interval_expand", "interval_gather") else ("x", "into")
    return Call(
        name, function, draw_operands, expected, shape.x64, names, names if fill == 0 else (), finite=shape.finite
    )


def side_by_side(rng: np.random.Generator, m: int, end: int, places: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws lengths that add up to `end`, and places for consecutive intervals in any order."""
    lengths = draw.lengths_of(rng, m, end)
    lengths[-1:] += end - lengths.sum()
    order = [np.arange(m), np.arange(m)[::-1], rng.permutation(m)][int(rng.integers(3))]
    starts = np.empty(m, np.int64)
    starts[order] = np.cumsum(lengths[order]) - lengths[order]
    return lengths, starts + rng.integers(0, places - end + 1)


def spaced(rng: np.random.Generator, m: int, end: int, places: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws lengths, and places that fit the lengths of any other draw; the last interval may grow."""
    width = places // max(m, 1)
    lengths = rng.integers(0, width + 1, m)
    lengths[np.cumsum(lengths) > end] = 0
    return lengths, width * np.append(rng.permutation(max(m - 1, 0)), max(m - 1, 0))[:m]


DRAWN = {"intervals": intervals}
