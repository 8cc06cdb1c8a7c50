from __future__ import annotations

from typing import Any

import jax
import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.examples import ASCENDING, KEYS, MANY, Example, at_most, few, integer_to, keys_in, live, numbers
from tests.fuzz import draw
from tests.fuzz.compare import Where
from tests.fuzz.draw import Call, Shape, names_of
from tests.fuzz.shared import INT32_LARGEST, differentiable_of, directed, first_rows, int32, ranks_in
from tests.many_items import bytes_by_count, bytes_of, counts_of, same

EXAMPLES = {
    "join": Example(
        lambda a, b, a_count, b_count: mgpu.join(a, b, "outer", size=400, a_count=a_count, b_count=b_count),
        lambda rng, real: (few(rng), few(rng, 40), live(rng), live(rng, 40)),
        counts=(2, 3),
    ),
    "join, any order": Example(
        lambda a, b, a_count: mgpu.join(a, b, "outer", size=700, assume_sorted=False, a_count=a_count),
        lambda rng, real: (rng.permutation(few(rng)), rng.permutation(few(rng, 40)), live(rng)),
        counts=(2,),
        composed=True,
    ),
    "join_columns": Example(
        lambda a, b, a_column, b_column: mgpu.join_columns(
            mgpu.join(a, b, "outer", size=400), a_column, {"b": b_column}
        ),
        lambda rng, real: (few(rng), few(rng, 40), numbers(rng, real), numbers(rng, real, 40, 2)),
        differentiable=(2, 3),
        composed=True,
    ),
}

GARBAGE = {
    "join": lambda keys, repeated, indices, wild: mgpu.join(keys, repeated, "outer", size=MANY),
    "join_columns": lambda keys, repeated, indices, wild: mgpu.join_columns(
        mgpu.JoinResult(indices, wild, wild[0]), keys, repeated
    ),
}

BROKEN = {
    "join: a": (lambda: mgpu.join(KEYS, ASCENDING, size=20), keys_in("ascending"), 2),
    "join: b": (
        lambda: mgpu.join(ASCENDING.astype(np.float32), np.array([1.0, np.nan, 2.0], np.float32), size=20),
        keys_in("ascending"),
        2,
    ),
    "join: size": (lambda: mgpu.join(ASCENDING, ASCENDING, size=5), at_most(5), 0),
    "join_columns: result.a_indices": (
        lambda: mgpu.join_columns(mgpu.join(ASCENDING, ASCENDING, size=6), KEYS[:4]),
        "indices of 4 rows, or -1",
        4,
    ),
    "join_columns: result.b_indices": (
        lambda: mgpu.join_columns(mgpu.join(ASCENDING, ASCENDING, size=6), None, KEYS[:0]),
        "indices of 0 rows, or -1",
        0,
    ),
    **{
        f"join: {count}": (lambda count=count: mgpu.join(ASCENDING, ASCENDING, size=20, **{count: 7}), integer_to(6), 0)
        for count in ("a_count", "b_count")
    },
}


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def large_join(n, index):
    counts = counts_of(bytes_of(n))
    a, b = bytes_by_count(counts), np.array([3, 240], np.uint8)
    before = np.cumsum(counts) - counts
    joined = mgpu.join(a, b, size=100)
    assert joined.count == counts[3] + counts[240]
    first = np.arange(before[3], before[3] + min(100, counts[3]))
    assert np.array_equal(np.asarray(joined.a_indices)[: len(first)], first)
    rows = mgpu.join(a, b[1:], size=10)
    assert np.array_equal(rows.a_indices, np.arange(before[240], before[240] + 10))
    return rows, a


def large_join_columns(n, index):
    rows, a = large_join(n, index)
    columns = mgpu.join_columns(rows, {"a": a}, {"b": np.array([7], np.int32)})
    same(columns.a["a"], np.full(10, 240, np.uint8))
    same(columns.b["b"], np.full(10, 7, np.int32))
    assert not np.asarray(columns.a_null | columns.b_null).any()


LARGE_WITH_INDICES = {"join": large_join, "join_columns": large_join_columns}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def join(shape: Shape) -> Call:
    (dtype, descending), kind = directed(shape), shape.choice(("inner", "left", "right", "outer"))
    n_a, n_b = shape.size(), shape.size()
    if shape.flag(0.15) and not shape.derivative:
        n_a = shape.choice((128, 256))  # a type of 8 bits may hold all indices, but not n_a
    a_count, b_count = shape.count(n_a, 0.3), shape.count(n_b, 0.3)
    size = shape.choice((0, 3, n_a + n_b, 2 * (n_a + n_b), min(n_a * n_b, 4000)))
    columns = shape.flag(0.5) or shape.derivative
    a_forms, b_forms = (shape.values(0.8), shape.values(0.8)) if columns else (None, None)
    a_order, b_order = (
        shape.index_dtype(max(n - 1, 0), narrow=0.3) if forms is not None and shape.flag() else None
        for n, forms in ((n_a, a_forms), (n_b, b_forms))
    )
    fill = shape.choice((0, 2))
    a_rows = n_a
    if a_forms is not None and a_order is None and shape.flag(0.1):
        a_rows = max(n_a - 2, 0)
        shape.say("short")
    traced_fill = columns and shape.flag(0.2) and not shape.derivative
    count_dtype = np.int64 if shape.x64 and max(1, n_a) * max(1, n_b) + n_a + n_b > INT32_LARGEST else np.int32
    shape.say(kind, f"size={size}", "columns" if columns else "")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        counts = {"a_count": draw.drawn(a_count, rng), "b_count": draw.drawn(b_count, rng)}
        lives = (None, None) if mixable else counts.values()
        a, b = draw.sorted_pair(shape, rng, dtype, n_a, n_b, descending, *lives)
        operands = names_of("join", a=a, b=b, **counts)
        if a_forms is not None:
            operands["a_columns"] = draw.draw_values(a_forms, rng, a_rows)
        if b_forms is not None:
            operands["b_columns"] = draw.draw_values(b_forms, rng, n_b)
        if a_order is not None:
            operands["a_order"] = rng.permutation(n_a).astype(a_order)
        if b_order is not None:
            operands["b_order"] = rng.permutation(n_b).astype(b_order)
        if traced_fill:
            operands["fill_value"] = np.int32(fill)
        return operands

    def function(
        a: Any,
        b: Any,
        a_columns: Any = None,
        b_columns: Any = None,
        a_count: Any = None,
        b_count: Any = None,
        **others: Any,
    ) -> Any:
        rows = mgpu.join(a, b, kind, size=size, descending=descending, a_count=a_count, b_count=b_count)
        if not columns:
            return rows
        entered = {"a_columns": draw.enter(a_forms, a_columns), "b_columns": draw.enter(b_forms, b_columns)}
        found = mgpu.join_columns(rows, **entered, **{"fill_value": fill, **others})
        found = found._replace(a=draw.leave(a_forms, found.a), b=draw.leave(b_forms, found.b))
        return rows, found

    def expected(
        a: Any, b: Any, a_columns: Any = None, b_columns: Any = None, a_count: Any = None, b_count: Any = None,
        a_order: Any = None, b_order: Any = None, fill_value: Any = fill,
    ) -> list[Any]:  # fmt: skip
        ranks, counts = ranks_in(descending, a, b), (a_count, b_count)
        live = [x[: oracle.live_count(count, len(x))] for x, count in zip(ranks, counts, strict=True)]
        total, rows = first_rows(kind, *live, size)
        if count_dtype == np.int32:
            total = min(total, INT32_LARGEST)
        padded = oracle.padded(rows, size, -1)
        leaves: list[Any] = [*int32(padded.T), np.asarray(total, count_dtype)]
        if not columns:
            return leaves
        padded[padded[:, 0] >= a_rows, 0] = -1
        for side, forms, values, order in ((0, a_forms, a_columns, a_order), (1, b_forms, b_columns, b_order)):
            leaves += _columns(forms, values, padded[:, side], order, fill_value)
        return [*leaves, padded[:, 0] < 0, padded[:, 1] < 0]

    return Call(
        "join", function, draw_operands, expected, shape.x64,
        differentiable_of(shape, a_forms, "a_columns") + differentiable_of(shape, b_forms, "b_columns"),
        finite=shape.finite,
    )  # fmt: skip


def _columns(forms: Any, values: Any, indices: np.ndarray, order: Any, fill: Any) -> list[Any]:
    if forms is None:
        return []
    null = indices < 0
    leaves: list[Any] = []
    for form, x in zip(jax.tree.leaves(forms, is_leaf=draw.is_rows), jax.tree.leaves(values), strict=True):
        source = x if order is None else x[order.astype(np.int64)]
        out = np.broadcast_to(np.asarray(fill).astype(x.dtype), (len(indices), *x.shape[1:])).copy()
        out[~null] = source[indices[~null]]
        leaves.append(Where(out, ~null) if form.dtype == "key" else out)
    return leaves


DRAWN = {"join": join}
