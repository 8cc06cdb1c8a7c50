from __future__ import annotations

from typing import Any

import jax
import numpy as np

import jax_mgpu as mgpu
from tests import data, oracle
from tests.examples import (
    HEADS,
    KEYS,
    Argument,
    Example,
    N,
    at_most,
    broken_ends,
    distinct,
    few,
    integer_to,
    live,
    numbers,
    of_segments,
    positions,
    segments_apart,
    unique_positions,
)
from tests.fuzz import draw
from tests.fuzz.compare import Equal, Near, Where
from tests.fuzz.draw import Call, Shape, names_of
from tests.fuzz.functions import ItemMap
from tests.fuzz.gradients import gradients
from tests.fuzz.operators import Function, Named, before, cast, converted, operator_of, scalar
from tests.fuzz.shared import int32
from tests.many_items import bytes_of, pieces, same, spots


def product(item: Any) -> Any:
    return item[0] * item[1]


MADE = ("var", "std", "nanmean")  # operators that are made of others
ORDERED = ("median", "last")  # operators that depend on the rank or place of items
EXAMPLES = {
    "reduce": Example(
        lambda x, count: mgpu.reduce(x, count=count),
        lambda rng, real: (numbers(rng, real), live(rng)),
        differentiable=(0,),
        counts=(1,),
        exact=False,
    ),
    "reduce, map": Example(
        lambda x, y, count: mgpu.reduce((x, y), map=product, count=count),
        lambda rng, real: (numbers(rng, real), numbers(rng, real), live(rng)),
        differentiable=(0, 1),
        counts=(2,),
        exact=False,
        composed=True,
    ),
    "reduce, max": Example(
        lambda x: mgpu.reduce(x, "max"), lambda rng, real: (distinct(rng, real),), differentiable=(0,)
    ),
    "reduce, argmin": Example(
        lambda x, count: mgpu.reduce(x, "argmin", count=count),
        lambda rng, real: (distinct(rng, real), live(rng)),
        counts=(1,),
    ),
    "reduce, rows": Example(
        lambda x, keep, count: mgpu.reduce({"x": x, "keep": keep}, {"x": "mean", "keep": "all"}, count=count),
        lambda rng, real: (numbers(rng, real, N, 3), rng.random(N) < 0.95, live(rng)),
        differentiable=(0,),
        counts=(2,),
        exact=False,
    ),
    "reduce, statistics": Example(
        lambda x, count: mgpu.reduce(dict.fromkeys(MADE, x), {op: op for op in MADE}, count=count, ddof=1),
        lambda rng, real: (distinct(rng, real), live(rng)),
        differentiable=(0,),
        counts=(1,),
        exact=False,
        composed=True,
    ),
    "reduce, ordered": Example(
        lambda x, count: mgpu.reduce(dict.fromkeys(ORDERED, x), {op: op for op in ORDERED}, count=count),
        lambda rng, real: (distinct(rng, real), live(rng)),
        differentiable=(0,),
        counts=(1,),
        exact=False,
        composed=True,
    ),
    "segmented_reduce": of_segments(lambda x, heads, count: mgpu.segmented_reduce(x, heads, count=count), exact=False),
    "segmented_reduce, rows": of_segments(
        lambda x, heads, count: mgpu.segmented_reduce(x, heads, count=count), row=(3,), exact=False
    ),
    "segmented_reduce, ends": Example(
        lambda x, heads, ends: mgpu.segmented_reduce(x, heads, ends=ends),
        lambda rng, real: (numbers(rng, real), *segments_apart(rng)),
        differentiable=(0,),
        exact=False,
        composed=True,
    ),
    "segmented_reduce, min": Example(
        lambda x, heads: mgpu.segmented_reduce(x, heads, "min"),
        lambda rng, real: (distinct(rng, real), unique_positions(rng, 6)),
        differentiable=(0,),
    ),
    "segmented_reduce, indices": Example(
        lambda x, heads, indices, weights, count: mgpu.segmented_reduce(
            x, heads, indices=indices, weights=weights, count=count
        ),
        lambda rng, real: (
            numbers(rng, real, 9, 3),
            positions(rng),
            rng.integers(-1, 10, N).astype(np.int32),
            numbers(rng, real),
            live(rng),
        ),
        differentiable=(0, 3),
        counts=(4,),
        exact=False,
        composed=True,
    ),
    "segmented_reduce, max of indices": Example(
        lambda x, heads, indices: mgpu.segmented_reduce(x, heads, "max", indices=indices),
        lambda rng, real: (distinct(rng, real, 40), positions(rng), rng.integers(-1, 41, N).astype(np.int32)),
        differentiable=(0,),
        composed=True,
    ),
    "reduce_by_id": Example(
        lambda x, ids, count: mgpu.reduce_by_id(x, ids, 7, count=count),
        lambda rng, real: (numbers(rng, real, N, 3), rng.integers(-1, 8, N), live(rng)),
        differentiable=(0,),
        counts=(2,),
        exact=False,
    ),
    "reduce_by_id, statistics": Example(
        lambda x, ids: mgpu.reduce_by_id(dict.fromkeys(MADE, x), ids, 7, {op: op for op in MADE}),
        lambda rng, real: (distinct(rng, real), rng.permutation(N) % 8),
        differentiable=(0,),
        exact=False,
        composed=True,
    ),
    "reduce_by_id, ordered": Example(
        lambda x, ids: mgpu.reduce_by_id(dict.fromkeys(ORDERED, x), ids, 7, {op: op for op in ORDERED}),
        lambda rng, real: (distinct(rng, real), rng.permutation(N) % 8),
        differentiable=(0,),
        exact=False,
        composed=True,
    ),
    "reduce_by_id, max": Example(
        lambda x, ids: mgpu.reduce_by_id(x, ids, 7, "max"),
        lambda rng, real: (distinct(rng, real), rng.permutation(N) % 8),
        differentiable=(0,),
    ),
    "reduce_by_key": Example(
        lambda keys, values, count: mgpu.reduce_by_key(keys, values, size=20, count=count),
        lambda rng, real: (few(rng), numbers(rng, real), live(rng)),
        differentiable=(1,),
        counts=(2,),
        exact=False,
    ),
    "reduce_by_key, columns": Example(
        lambda keys, other, values, count: mgpu.reduce_by_key((keys, other), values, "max", size=20, count=count),
        lambda rng, real: (few(rng), few(rng, values=3), distinct(rng, real), live(rng)),
        differentiable=(2,),
        counts=(3,),
        composed=True,
    ),
}

GARBAGE = {
    "reduce": lambda keys, repeated, indices, wild: mgpu.reduce(keys, "argmin", count=wild[0]),
    "segmented_reduce": lambda keys, repeated, indices, wild: mgpu.segmented_reduce(keys, indices),
    "reduce_by_id": lambda keys, repeated, indices, wild: mgpu.reduce_by_id(
        keys, repeated, 10, "argmax", count=wild[0]
    ),
    "reduce_by_key": lambda keys, repeated, indices, wild: mgpu.reduce_by_key(
        keys, repeated, size=100, count=indices[0]
    ),
}

BROKEN = {
    "reduce: count": (lambda: mgpu.reduce(KEYS, count=7), integer_to(6), 0),
    "segmented_reduce: heads": (lambda: mgpu.segmented_reduce(KEYS, [0, 4, 2]), HEADS, 2),
    "reduce_by_id: count": (lambda: mgpu.reduce_by_id(KEYS, KEYS, 9, count=7), integer_to(6), 0),
    "reduce_by_key: count": (lambda: mgpu.reduce_by_key(KEYS, KEYS, size=9, count=7), integer_to(6), 0),
    "reduce_by_key: size": (lambda: mgpu.reduce_by_key(KEYS, KEYS, size=5), at_most(5), 0),
    **broken_ends(mgpu.segmented_reduce),
    "segmented_reduce: count": (lambda: mgpu.segmented_reduce(KEYS, [0, 3], count=7), integer_to(6), 0),
}

ARGUMENTS = {
    **{f"{name}: x": Argument("items") for name in ("reduce", "segmented_reduce", "reduce_by_id")},
    "segmented_reduce: indices": Argument("ends"),
    "segmented_reduce: weights": Argument("entry weights"),
    "reduce_by_key: keys": Argument("matched keys"),
    "reduce_by_key: values": Argument("items"),
}


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def added(x):
    return x.sum(dtype=oracle.summed(x[:0], "add").dtype)


def large_reduce(n, index):
    x = bytes_of(n)
    same(mgpu.reduce(x), added(x))
    x[n - 3] = 255
    same(mgpu.reduce(x, "max"), np.uint8(255))


def large_segmented_reduce(n, index):
    x, heads = bytes_of(n), spots(n, index)
    same(mgpu.segmented_reduce(x, heads), np.array([added(p) for p in pieces(x, heads)]))


def large_reduce_argmax(n, index):
    x = bytes_of(n)
    x[n - 3] = 255
    assert mgpu.reduce(x, "argmax") == n - 3


def large_reduce_by_id(n, index):
    at = spots(n, index)
    ids = np.zeros(n, np.int8)
    ids[at] = np.arange(1, len(at) + 1)
    got = np.asarray(mgpu.reduce_by_id(bytes_of(n), ids, 21))
    x = bytes_of(n)
    same(got[1 : len(at) + 1], oracle.summed(x[at], "add"))
    x[at] = 0
    same(got[:1], added(x)[None])


def large_reduce_by_key(n, index):
    at = spots(n, index)
    lengths = np.diff(at, append=n)
    keys = np.repeat(np.arange(len(at), dtype=np.uint8), lengths)
    got = mgpu.reduce_by_key(keys, bytes_of(n), size=20)
    assert got[2] == len(at)
    same(got[0][: len(at)], np.arange(len(at), dtype=np.uint8))
    same(got[1][: len(at)], np.array([added(p) for p in pieces(bytes_of(n), at)]))


LARGE = {"reduce": large_reduce, "segmented_reduce": large_segmented_reduce}
LARGE_WITH_INDICES = {
    "reduce, argmax": large_reduce_argmax,
    "reduce_by_id": large_reduce_by_id,
    "reduce_by_key": large_reduce_by_key,
}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def reductions(shape: Shape, item_map: ItemMap | None = None) -> Call:
    name = shape.choice(("reduce", "segmented_reduce", "reduce_by_key"))
    operator, n = operator_of(shape), shape.size()
    count = shape.count(n)
    if (
        name == "reduce"
        and operator.identity is None
        and isinstance(operator, Function)
        and (count is not None or n == 0)
    ):
        operator = Named(shape, False)
    m = shape.choice((0, 1, 3, n // 5, n, n + 3))
    head_dtype = shape.index_dtype(0)
    options: dict[str, Any] = {"op": operator.op}
    if operator.identity is not None and name != "reduce_by_key":
        options["identity"] = operator.identity
    elif name == "segmented_reduce" and isinstance(operator, Function):
        operator = Named(shape, False)
        options = {"op": operator.op}
    if item_map is not None:
        options["map"] = item_map.function
    options |= converted(shape, operator)
    dtype = options.get("dtype")
    key_dtype = shape.key_form() if name == "reduce_by_key" else None
    size = shape.choice((0, 3, n // 2, n, n + 2))
    shape.say(name, f"m={m}", f"size={size}")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        operands: dict[str, Any] = {"x": before(item_map, rng, operator.draw(rng, n))}
        if name == "segmented_reduce":
            operands["heads"] = draw.positions(rng, m, n, head_dtype)
        if name == "reduce_by_key":
            keys = draw.keys(shape, rng, key_dtype, n, few=not shape.derivative)
            if isinstance(key_dtype, draw.Columns):
                keys = draw.in_order(keys, False, None) if rng.random() < 0.5 else keys
            elif rng.random() < 0.5:
                keys = data.in_order(keys)
            elif not shape.derivative and not shape.finite:
                keys = np.repeat(data.random_keys(rng, key_dtype, n), 3)[:n]
            if shape.derivative and rng.random() < 0.5:
                keys = np.repeat(keys, 2)[:n]
            operands["keys"] = keys
        return operands | names_of(name, count=draw.drawn(count, rng))

    def function(x: Any, heads: Any = None, keys: Any = None, **others: Any) -> Any:
        if name == "reduce_by_key":
            return mgpu.reduce_by_key(keys, x, size=size, **options, **others)
        return getattr(mgpu, name)(*((x,) if heads is None else (x, heads)), **options, **others)

    def expected(x: Any, heads: Any = None, keys: Any = None, count: Any = None) -> list[Any]:
        x = x if item_map is None else item_map.function_of(x)
        x = cast(x, dtype)
        if name == "segmented_reduce":
            return operator.reduce(x, heads, count, dtype is None)
        if name == "reduce":
            return [scalar(leaf) for leaf in operator.reduce(x, np.zeros(1, np.int64), count, dtype is None)]
        live = oracle.live_count(count, n)
        ranks = oracle.rank(draw.ranked(False, keys)[0][:live])
        starts = np.flatnonzero(np.append(True, ranks[1:] != ranks[:-1])) if live else np.zeros(0, np.int64)
        reduced = operator.reduce(x, starts, live, dtype is None)
        filler = -1 if operator.gives_index else 0
        kept = [_resized(leaf, size, filler) for leaf in reduced]
        return [*(oracle.padded(x[starts], size, 0) for x in jax.tree.leaves(keys)), *kept, int32(len(starts))]

    return Call(name, function, draw_operands, expected, shape.x64, ("x",), finite=shape.finite)


def _resized(leaf: Any, size: int, filler: int) -> Any:
    if isinstance(leaf, Near):
        return Near(oracle.padded(leaf.expected, size, filler), oracle.padded(leaf.error, size, 0))
    if isinstance(leaf, Equal | Where):
        return Equal(oracle.padded(leaf.expected, size, filler))
    return oracle.padded(leaf, size, filler)


DRAWN = {"reduce": reductions, "gradients": gradients}
