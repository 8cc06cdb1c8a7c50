from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.examples import (
    HEADS,
    KEYS,
    MANY,
    Argument,
    Example,
    N,
    at_most,
    broken_ends,
    integer_to,
    live,
    numbers,
    of_segments,
    positions,
)
from tests.fuzz import draw
from tests.fuzz.compare import Near, Where
from tests.fuzz.draw import Call, Shape, names_of
from tests.fuzz.shared import filled_rows, int32, rows_of, segments
from tests.many_items import FEW, bytes_of, pieces, same, same_repeated, spots

EXAMPLES = {
    "segment_ids": Example(
        lambda heads, count: mgpu.segment_ids(heads, N, count=count),
        lambda rng, real: (positions(rng), live(rng)),
        counts=(1,),
    ),
    "to_dense": of_segments(lambda x, heads, count: mgpu.to_dense(x, heads, N, count=count), composed=True),
    "from_dense": Example(
        lambda x, lengths: mgpu.from_dense(x, lengths, size=40),
        lambda rng, real: (numbers(rng, real, 8, 7), rng.integers(0, 6, 8).astype(np.int32)),
        differentiable=(0,),
        composed=True,
    ),
    "take_segments": Example(
        lambda x, heads, order, count: mgpu.take_segments(x, heads, order, size=2 * N, count=count),
        lambda rng, real: (
            numbers(rng, real),
            np.append(np.arange(5) * 11, N).astype(np.int32),
            rng.permutation(6).astype(np.int32),
            live(rng),
        ),
        differentiable=(0,),
        counts=(3,),
        composed=True,
    ),
    "segmented_softmax": of_segments(
        lambda x, heads, count: mgpu.segmented_softmax(x, heads, count=count), exact=False
    ),
    "segmented_log_softmax": of_segments(
        lambda x, heads, count: mgpu.segmented_log_softmax(x, heads, count=count), row=(2,), exact=False, composed=True
    ),
}

GARBAGE = {
    "segment_ids": lambda keys, repeated, indices, wild: mgpu.segment_ids(indices, MANY, count=wild[0]),
    "to_dense": lambda keys, repeated, indices, wild: mgpu.to_dense(keys, indices, 8, count=wild[0]),
    "from_dense": lambda keys, repeated, indices, wild: mgpu.from_dense(keys.reshape(-1, 8), indices, size=MANY),
    "take_segments": lambda keys, repeated, indices, wild: mgpu.take_segments(keys, indices, wild, size=MANY),
    **{
        name: lambda keys, repeated, indices, wild, name=name: getattr(mgpu, name)(keys * 1e-9, indices, count=wild[0])
        for name in ("segmented_softmax", "segmented_log_softmax")
    },
}

BROKEN = {
    "segment_ids: heads": (lambda: mgpu.segment_ids([0, 4, 2], 6), HEADS, 2),
    "segment_ids: count": (lambda: mgpu.segment_ids([0, 4], 6, count=7), integer_to(6), 0),
    "segment_ids: ends": (
        lambda: mgpu.segment_ids([0, 2, 2, 5], 6, ends=[2, 2, 6, 9]),
        "segments that do not overlap",
        2,
    ),
    **broken_ends(mgpu.to_dense, 9),
    **broken_ends(mgpu.take_segments, [0], size=9),
    **broken_ends(mgpu.segmented_softmax, items=KEYS.astype(np.float32)),
    **broken_ends(mgpu.segmented_log_softmax, items=KEYS.astype(np.float32)),
    "to_dense: heads": (lambda: mgpu.to_dense(KEYS, [0, 4, 2], 6), HEADS, 2),
    "to_dense: count": (lambda: mgpu.to_dense(KEYS, [0, 4], 6, count=7), integer_to(6), 0),
    "to_dense: width": (lambda: mgpu.to_dense(KEYS, [0, 1, 5], 3), "segments of at most 3 items", 1),
    "from_dense: lengths": (
        lambda: mgpu.from_dense(KEYS.reshape(3, 2), [2, 0, 3], size=9),
        "an integer from 0 to 2",
        2,
    ),
    "from_dense: size": (lambda: mgpu.from_dense(KEYS.reshape(3, 2), [2, 0, 1], size=2), at_most(2), 0),
    "take_segments: heads": (lambda: mgpu.take_segments(KEYS, [0, 4, 2], [0], size=6), HEADS, 2),
    "take_segments: order": (
        lambda: mgpu.take_segments(KEYS, [0, 4], [1, -1, 2, 3], size=9),
        "numbers of 2 segments, or -1 or 2 as padding",
        3,
    ),
    "take_segments: count": (lambda: mgpu.take_segments(KEYS, [0, 4], [0], size=9, count=7), integer_to(6), 0),
    "take_segments: size": (lambda: mgpu.take_segments(KEYS, [0, 4], [0, 0], size=6), at_most(6), 0),
    "segmented_softmax: count": (
        lambda: mgpu.segmented_softmax(KEYS.astype(np.float32), [0, 3], count=7),
        integer_to(6),
        0,
    ),
    "segmented_softmax: heads": (lambda: mgpu.segmented_softmax(KEYS.astype(np.float32), [0, 4, 2]), HEADS, 2),
    "segmented_log_softmax: count": (
        lambda: mgpu.segmented_log_softmax(KEYS.astype(np.float32), [0, 3], count=7),
        integer_to(6),
        0,
    ),
    "segmented_log_softmax: heads": (lambda: mgpu.segmented_log_softmax(KEYS.astype(np.float32), [0, 4, 2]), HEADS, 2),
}

ARGUMENTS = {
    "from_dense: x": Argument("rows", np.ones((3, 2), np.float32)),
    "segmented_softmax: x": Argument("floats"),
    "segmented_log_softmax: x": Argument("floats"),
}


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def large_segment_ids(n, index):
    heads = spots(n, index)
    ids = np.arange(len(heads), dtype=np.int32 if n <= FEW else np.int64)
    same_repeated(mgpu.segment_ids(heads, n), ids, np.diff(heads, append=n))


def large_to_dense(n, index):
    x, heads = bytes_of(n), np.minimum(spots(n, index)[-3:], n - 1)
    got = np.asarray(mgpu.to_dense(x, heads, 2))
    for row, start in zip(got, heads, strict=True):
        assert row[0] == x[start]


def large_from_dense(n, index):
    got, _, count = mgpu.from_dense(bytes_of(n)[None], np.array([n - 3], index), size=n)
    same(np.asarray(got)[: n - 3], bytes_of(n)[: n - 3])
    assert count == n - 3


def large_take_segments(n, index):
    x, heads = bytes_of(n), spots(n, index)
    got, _, count = mgpu.take_segments(x, heads, np.arange(len(heads))[::-1], size=n)
    same(got, np.concatenate(pieces(x, heads)[::-1]))
    assert count == n


def large_segmented_softmax(n, index):
    x, heads = np.zeros(n, np.float16), np.array([0, min(n - 4, np.iinfo(index).max)], index)
    share = 1 / (n - int(heads[1]))
    np.testing.assert_allclose(np.asarray(mgpu.segmented_softmax(x, heads))[-1], share, rtol=1e-3)
    np.testing.assert_allclose(np.asarray(mgpu.segmented_log_softmax(x, heads))[-1], np.log(share), rtol=1e-3)


LARGE_WITH_INDICES = {
    "segment_ids": large_segment_ids,
    "to_dense": large_to_dense,
    "from_dense": large_from_dense,
    "take_segments": large_take_segments,
    "segmented_softmax": large_segmented_softmax,
    "segmented_log_softmax": large_segmented_softmax,
}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def batches(shape: Shape) -> Call:
    name = shape.choice(("segment_ids", "to_dense", "from_dense", "take_segments"))
    n = shape.size()
    form = rows_of(shape, n)
    m = shape.choice((0, 1, 3, n // 5, n + 3))
    width = min(shape.choice((0, 1, 5, n)), 100_000 // max(m, 1))
    if name == "from_dense":
        m = n // max(width, 1)
    taken = shape.choice((0, 1, m, 2 * m))
    count, dtype = None if name == "from_dense" else shape.count(n), shape.index_dtype(0)
    size = shape.choice((0, n // 2, n, n + 5))
    fill = shape.choice((0, 0, 2))
    shape.say(name, f"m={m}", f"width={width}", f"fill={fill}", "" if name == "to_dense" else f"size={size}")
    if name == "to_dense" and width < n:
        shape.say("short")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        if name == "from_dense":
            rows = form.draw(rng, m * width)
            return {
                "x": rows.reshape(m, width, *rows.shape[1:]),
                "lengths": rng.integers(0, min(width, np.iinfo(dtype).max) + 1, m).astype(dtype),
            }
        x = None if name == "segment_ids" else form.draw(rng, n)
        order = rng.integers(0, min(m + 1, np.iinfo(dtype).max), taken).astype(dtype)
        heads = draw.positions(rng, m, n, dtype)
        return names_of(
            name, x=x, heads=heads, order=order if name == "take_segments" else None, count=draw.drawn(count, rng)
        )

    def function(x: Any = None, **given: Any) -> Any:
        if name == "segment_ids":
            return mgpu.segment_ids(given.pop("heads"), n, **given)
        x = {"x": form.enter(x)}
        if name == "to_dense":
            return form.leave(mgpu.to_dense(x, width=width, fill_value=fill, **given)["x"])
        values, heads, found = getattr(mgpu, name)(x, size=size, fill_value=fill, **given)
        return form.leave(values["x"]), heads, found

    def expected(
        x: Any = None, heads: Any = None, lengths: Any = None, order: Any = None, count: Any = None
    ) -> list[Any]:
        live = oracle.live_count(count, n)
        if name == "segment_ids":
            ids = np.searchsorted(heads.astype(np.float64), np.arange(n), "right") - 1
            return [int32(np.where(np.arange(n) < live, ids, -1))]
        if name == "from_dense":
            rows = [row[:length] for row, length in zip(x, lengths, strict=True)]
            nothing = np.zeros((0, *x.shape[2:]), x.dtype)
        else:
            rows, nothing = segments(x, heads, live), x[:0]
        if name == "to_dense":
            laid_out = [filled_rows(form, row[:width], width, fill) for row in rows]
            if form.dtype == "key":
                mask = np.array([row.live for row in laid_out], bool).reshape(m, width)
                values = np.array([row.expected for row in laid_out], x.dtype).reshape(m, width, *x.shape[1:])
                return [Where(values, mask.all(1))] if width else [values]
            return [np.array(laid_out, x.dtype).reshape(m, width, *x.shape[1:])]
        if name == "take_segments":
            rows = [rows[i] if i < m else nothing for i in order.astype(np.int64)]
        lengths = np.array([len(row) for row in rows], np.int64)
        packed = np.concatenate([nothing, *rows])
        return [
            filled_rows(form, packed, size, fill), int32(np.cumsum(lengths) - lengths), int32(len(packed)),
        ]  # fmt: skip

    names = () if name == "segment_ids" else ("x",)
    linear = names if fill == 0 else ()
    return Call(name, function, draw_operands, expected, shape.x64, names, linear, finite=shape.finite)


def softmaxes(shape: Shape) -> Call:
    name = shape.choice(("segmented_softmax", "segmented_log_softmax"))
    shape.derivative = False  # a softmax is not affine; tests/test_segmented_softmax.py tests its derivatives
    n = shape.size()
    dtype = shape.choice(("float16", "bfloat16", "float32", *(("float64",) if shape.x64 else ())))
    trailing = shape.choice(((), (), (2,), (2, 1), (0,)))
    m, head_dtype, count = shape.choice((0, 1, 3, n // 5, n + 3)), shape.index_dtype(0), shape.count(n)
    shape.say(name, f"m={m}", dtype, list(trailing))

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        x = (8 * rng.normal(size=(n, *trailing))).astype(jnp.dtype(dtype))
        return names_of(name, x=x, heads=draw.positions(rng, m, n, head_dtype), count=draw.drawn(count, rng))

    def function(**given: Any) -> Any:
        return getattr(mgpu, name)(**given)

    def expected(x: Any, heads: Any, count: Any = None) -> list[Any]:
        live = oracle.live_count(count, n)
        out = np.zeros(x.shape, np.float64)
        first = segments(np.arange(n), np.append(0, heads.astype(np.float64)), live)
        for row in first:
            if len(row) and x.size:
                shifted = x[row].astype(np.float64) - x[row].astype(np.float64).max(0)
                sums = np.exp(shifted).sum(0)
                out[row] = np.exp(shifted) / sums if name == "segmented_softmax" else shifted - np.log(sums)
        eps = float(jnp.finfo(x.dtype).eps)
        error = 2 * eps * np.abs(out) + 1e-5 * (np.abs(out) + (name != "segmented_softmax")) + 1e-7
        return [Near(out.astype(x.dtype), error)]

    return Call(name, function, draw_operands, expected, shape.x64, (), finite=True)


DRAWN = {"batches": batches, "softmax": softmaxes}
