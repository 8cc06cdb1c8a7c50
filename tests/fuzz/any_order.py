"""Joins, matches and sets of keys in any order, and their oracles."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.fuzz import draw
from tests.fuzz.draw import Call, Shape, names_of
from tests.fuzz.shared import both, directed, int32, mixed_pair, nulls, ranks_in


def any_order(shape: Shape) -> Call:
    """Draws a join, a sorted_match or a set operation; the keys of a join may also be sorted."""
    name = shape.choice(("join", "join", "join", "sorted_match", "set_union", "set_difference", "set_intersection"))
    dtype, descending = directed(shape)
    n_a, n_b = (min(n, 300) for n in (shape.size(), shape.size()))
    a_count, b_count = shape.count(n_a), shape.count(n_b)
    kind, null_equal = shape.choice(("inner", "left", "right", "outer", "semi", "anti")), shape.flag()
    is_sorted, side = name == "join" and shape.flag(0.3), shape.choice(("left", "right"))
    size = shape.choice((0, 3, n_a + n_b, 2 * (n_a + n_b)))
    options: dict[str, Any] = {"assume_sorted": is_sorted, "descending": descending}
    if name == "join":
        options |= {"kind": kind, "null_equal": null_equal}
    elif name == "sorted_match":
        options |= {"side": side}
    if name != "sorted_match":
        options |= {"size": size}
    shape.say(*(f"{what}={x}" for what, x in options.items() if what != "descending"))

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        counts = {"a_count": draw.drawn(a_count, rng), "b_count": draw.drawn(b_count, rng)}
        if is_sorted:
            lives = (None, None) if mixable else tuple(counts.values())
            x, y = draw.sorted_pair(shape, rng, dtype, n_a, n_b, descending, *lives)
        else:
            x, y = mixed_pair(shape, rng, dtype, n_a, n_b)
        return names_of(name, x=x, y=y, **counts)

    def function(x: Any, y: Any, **counts: Any) -> Any:
        return getattr(mgpu, name)(x, y, **options, **counts)

    def expected(x: Any, y: Any, a_count: Any = None, b_count: Any = None) -> list[Any]:
        ranks = ranks_in(descending, x, y)
        lives = oracle.live_count(a_count, n_a), oracle.live_count(b_count, n_b)
        codes = oracle.rank(np.concatenate([r[:n] for r, n in zip(ranks, lives, strict=True)]))
        a, b = codes[: lives[0]], codes[lives[0] :]
        if name == "sorted_match":
            return _matched(a, b, n_a, n_b, side)
        if name == "join":
            unequal = [nulls(keys)[:n] & (not null_equal) for keys, n in zip((x, y), lives, strict=True)]
            return _joined(kind, (a[:, None] == b) & ~unequal[0][:, None] & ~unequal[1], size)
        orders = [np.argsort(r, kind="stable") for r in (a, b)]
        sources = oracle.set_sources(name, a[orders[0]], b[orders[1]])
        places = np.concatenate([orders[0], n_a + orders[1]])[sources]
        keys = [oracle.padded(leaf[places], size, 0) for leaf in jax.tree.leaves(both(x, y))]
        return [*keys, int32(len(sources))]

    return Call(name, function, draw_operands, expected, shape.x64, finite=shape.finite)


def _joined(kind: str, partners: np.ndarray, size: int) -> list[Any]:
    has = partners.any(1)
    if kind in ("semi", "anti"):
        rows = [(i, -1) for i in np.flatnonzero(has if kind == "semi" else ~has)]
    else:
        rows = []
        for i, row in enumerate(partners):
            alone = [-1] if kind in ("left", "outer") and not has[i] else []
            rows += [(i, j) for j in (*np.flatnonzero(row), *alone)]
        if kind in ("right", "outer"):
            rows += [(-1, j) for j in np.flatnonzero(~partners.any(0))]
    table = oracle.padded(np.array(rows, np.int64).reshape(-1, 2), size, -1)
    return [int32(table[:, 0]), int32(table[:, 1]), int32(len(rows))]


def _matched(a: np.ndarray, b: np.ndarray, n_a: int, n_b: int, side: str) -> list[Any]:
    indices, found, numbers = [], [], []
    for own, other, n in ((a, b, n_a), (b, a, n_b)):
        places = [np.flatnonzero(other == key) for key in own]
        index = [p[0 if side == "left" else -1] if len(p) else -1 for p in places]
        indices.append(oracle.padded(int32(index), n, -1))
        found.append(indices[-1] >= 0)
        numbers.append(int32(found[-1].sum()))
    return [*indices, *found, *numbers]
