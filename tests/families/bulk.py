from __future__ import annotations

from typing import Any

import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.examples import (
    KEYS,
    OFFSETS,
    POSITIONS,
    Argument,
    Example,
    integer_to,
    live,
    numbers,
    positions,
    unique_positions,
)
from tests.fuzz import draw
from tests.fuzz.compare import Where
from tests.fuzz.draw import Call, Rows, Shape, names_of
from tests.many_items import bytes_of, same, spots

EXAMPLES = {
    "bulk_insert": Example(
        lambda x, indices, values, count: mgpu.bulk_insert(x, indices, values, count=count),
        lambda rng, real: (numbers(rng, real), positions(rng, 20), numbers(rng, real, 20), live(rng)),
        differentiable=(0, 2),
        counts=(3,),
    ),
    "bulk_remove": Example(
        lambda x, indices, count: mgpu.bulk_remove(x, indices, count=count),
        lambda rng, real: (numbers(rng, real), unique_positions(rng), live(rng)),
        differentiable=(0,),
        counts=(2,),
    ),
}

GARBAGE = {
    "bulk_insert": lambda keys, repeated, indices, wild: mgpu.bulk_insert(keys, indices, wild),
    "bulk_remove": lambda keys, repeated, indices, wild: mgpu.bulk_remove(keys, indices, count=wild[0]),
}

BROKEN = {
    "bulk_insert: indices": (lambda: mgpu.bulk_insert(KEYS, [0, 3, 2], KEYS[:3]), POSITIONS, 2),
    "bulk_insert: count": (lambda: mgpu.bulk_insert(KEYS, OFFSETS, KEYS[:3], count=7), integer_to(6), 0),
    "bulk_remove: indices": (
        lambda: mgpu.bulk_remove(KEYS, [0, 3, 3]),
        "non-negative integers in increasing order",
        2,
    ),
    "bulk_remove: count": (lambda: mgpu.bulk_remove(KEYS, OFFSETS, count=7), integer_to(6), 0),
}

ARGUMENTS = {"bulk_insert: values": Argument("rows", np.ones(3, np.float32))}


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def large_bulk_insert(n, index):
    x, at = bytes_of(n), spots(n, index)
    expected = np.insert(x, at.astype(np.int64), bytes_of(len(at)))  # np.insert needs signed positions
    same(mgpu.bulk_insert(x, at, bytes_of(len(at))), expected)


def large_bulk_remove(n, index):
    x, at = bytes_of(n), spots(n, index)
    same(mgpu.bulk_remove(x, at), np.delete(x, at))


LARGE = {"bulk_insert": large_bulk_insert, "bulk_remove": large_bulk_remove}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def bulk(shape: Shape) -> Call:
    name = shape.choice(("bulk_remove", "bulk_insert"))
    form, n = shape.rows(), shape.size()
    if n > 5000 and int(np.prod(form.trailing)) > 8:
        form = Rows(form.dtype, (3,), shape)
    removes = name == "bulk_remove"
    m = shape.choice((0, 1, 3, n // 4, n)) if removes else shape.choice((0, 1, 3, n // 4, n + 5, 2 * n))
    m = min(m, n) if removes and shape.flag(0.8) else m
    count, dtype = shape.count(n), shape.index_dtype(n + 1)
    default = max(n - m, 0) if removes else n + m
    size = shape.choice((None, None, 0, default // 2, default + 4))
    slots = default if size is None else size
    fill = shape.choice((0, 0, 2))
    shape.say(name, f"m={m}", f"size={size}", f"fill={fill}")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        live_count = draw.drawn(count, rng)
        live = n if live_count is None or mixable else int(live_count)
        past = n + 1 if rng.random() < 0.7 else int(np.iinfo(dtype).max)
        if removes:
            # distinct positions, then padding, which may be the count itself
            kept = int(rng.integers(0, min(m, live) + 1)) if m > live or rng.random() < 0.3 else m
            indices = np.sort(rng.choice(live, kept, replace=False)).astype(np.uint64)
            padding = live if rng.random() < 0.3 and not mixable else max(n, 0)
            indices = np.append(indices, np.full(m - kept, padding, np.uint64))
        else:
            indices = np.sort(rng.integers(0, live + 1, m)).astype(np.uint64)
            if m and rng.random() < 0.3:
                indices[m - int(rng.integers(0, m)) :] = past
        operands: dict[str, Any] = {"x": form.draw(rng, n), "indices": indices.astype(dtype)}
        if not removes:
            operands["values"] = form.draw(rng, m)
        return operands | names_of(name, count=live_count)

    def function(x: Any, indices: Any, values: Any = None, **others: Any) -> Any:
        given = (form.enter(x), indices) if removes else (form.enter(x), indices, form.enter(values))
        return form.leave(getattr(mgpu, name)(*given, size=size, fill_value=fill, **others))

    def expected(x: Any, indices: Any, values: Any = None, count: Any = None) -> list[Any]:
        live = oracle.live_count(count, n)
        indices = indices.astype(np.float64)
        if removes:
            rows = np.delete(x[:live], indices[indices < live].astype(np.int64), axis=0)
        else:
            inside = indices <= live
            rows = np.insert(x[:live], indices[inside].astype(np.int64), values[inside], axis=0)
        padded = oracle.padded(rows, slots, np.asarray(0 if form.dtype == "key" else fill).astype(x.dtype))
        return [Where(padded, np.arange(slots) < len(rows)) if form.dtype == "key" else padded]

    names = ("x",) if removes else ("x", "values")
    return Call(
        name, function, draw_operands, expected, shape.x64, names, names if fill == 0 else (), finite=shape.finite
    )


DRAWN = {"bulk": bulk}
