"""Calls with comparators, `less=`, and with a `map=` before a reduction or scan; and their oracles."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.fuzz import draw
from tests.fuzz.draw import Call, Shape, names_of
from tests.fuzz.shared import both, differentiable_of, filled, first_rows, int32, taken

# ---- Comparators

TABLE = np.random.default_rng(9).integers(0, 4, 300).astype(np.int32)


def _until(x: Any) -> Any:
    return jax.lax.while_loop(lambda s: s[0] > 0, lambda s: (s[0] - 1, s[1] + 1), (x, 0))[1]


def _keys(a: Any, b: Any) -> Any:
    return jnp.where(a["g"] == b["g"], a["k"] > b["k"], a["g"] < b["g"])


def _difference(a: Any, b: Any) -> Any:
    return (a["k"] - b["k"]).astype(jnp.float32) + 256 * (a["g"] - b["g"]).astype(jnp.float32) < 0


def _elements(a: Any, b: Any) -> Any:
    """Compares by the first elements that differ."""
    smaller, equal = a["v"] < b["v"], a["v"] == b["v"]
    return smaller[0] | (equal[0] & (smaller[1] | (equal[1] & smaller[2])))


# Each comparator, and columns that have its order, the most significant column first. Numbers are small integers, so
# that all comparators are exact.
ORDERS: dict[str, tuple[Callable[..., Any], Callable[[Any], list[np.ndarray]]]] = {
    "one": (lambda a, b: a["k"] < b["k"], lambda x: [x["k"]]),
    "turned": (lambda a, b: ~(a["k"] <= b["k"]), lambda x: [-x["k"].astype(np.float64)]),
    "keys": (_keys, lambda x: [x["g"], -x["k"].astype(np.float64)]),
    "difference": (_difference, lambda x: [x["k"].astype(np.float64) + 256 * x["g"]]),
    "sums": (lambda a, b: a["v"].sum() < b["v"].sum(), lambda x: [x["v"].sum(1)]),
    "elements": (_elements, lambda x: [*x["v"].T]),
    "differences": (
        lambda a, b: ((a["v"] - b["v"]) * jnp.array([16, 4, 1], jnp.int32)).sum() > 0,
        lambda x: [-x["v"] @ np.array([16, 4, 1])],
    ),
    "table": (lambda a, b: jnp.asarray(TABLE)[a["g"]] < jnp.asarray(TABLE)[b["g"]], lambda x: [TABLE[x["g"]]]),
    "branch": (
        lambda a, b: jax.lax.cond(a["g"] == b["g"], lambda: a["k"] - b["k"] < 0, lambda: a["g"] < b["g"]),
        lambda x: [x["g"], x["k"]],
    ),
    "loop of one": (lambda a, b: _until(a["g"]) > _until(b["g"]), lambda x: [-x["g"]]),
    "loop of both": (lambda a, b: _until(b["g"] - a["g"]) > 0, lambda x: [x["g"]]),
}  # fmt: skip


def _ranks(order: str, *items: Any) -> list[np.ndarray]:
    """Returns integers that compare as the items do."""
    columns = [ORDERS[order][1](x) for x in items]
    ranks = oracle.column_ranks([np.concatenate(column) for column in zip(*columns, strict=True)])
    return np.split(ranks, np.cumsum([len(x["g"]) for x in items])[:-1])


def _items(shape: Shape, rng: np.random.Generator, dtype: str, n: int, offset: int = 0) -> dict[str, np.ndarray]:
    """Draws items with many equal parts; for derivatives, all `k` are distinct, even those of two inputs."""
    if shape.derivative:
        k = 2 * rng.choice(100, n, replace=False) - 100 + offset
    else:
        k = rng.integers(-int(rng.choice([1, 3, 100])), 4, n)
    parts = int(rng.choice([1, 2, 7]))
    return {
        "k": k.astype(dtype),
        "g": rng.integers(0, parts, n).astype(np.int32),
        "v": rng.integers(-2, 2, (n, 3)).astype(np.int32),
    }


def _in_order(order: str, x: Any, live: Any) -> Any:
    n = len(x["g"])
    (ranks,) = _ranks(order, x)
    live = oracle.live_count(live, n)
    places = np.append(np.argsort(ranks[:live], kind="stable"), np.arange(live, n))
    return jax.tree.map(lambda leaf: leaf[places], x)


def _drawn_order(shape: Shape) -> tuple[str, Callable[..., Any], str]:
    order = shape.choice(tuple(ORDERS))
    dtype = shape.choice(("float32",) if shape.derivative else ("float32", "float16", "int8", "int32"))
    shape.say(order, dtype)
    return order, ORDERS[order][0], dtype


def less(shape: Shape) -> Call:
    return shape.choice((_sorts, _sorts, _pairs))(shape)


def _sorts(shape: Shape) -> Call:
    order, precedes, dtype = _drawn_order(shape)
    name = shape.choice(("mergesort", "segmented_sort"))
    n, indices = shape.size(), shape.flag(0.4)
    count, forms = shape.count(n), None if indices else shape.values()
    segments = shape.choice(("heads", "flags")) if name == "segmented_sort" else ""
    m, head_dtype = shape.choice((0, 1, 3, n // 5, n)), shape.index_dtype(0)
    captures = order == "one" and shape.flag()
    call = getattr(mgpu, f"{name}_indices" if indices else name)
    shape.say(segments, f"m={m}", "captures" * captures)

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        flags = rng.random(n) < rng.choice([0.02, 0.5]) if segments == "flags" else None
        return names_of(
            name,
            keys=_items(shape, rng, dtype, n),
            heads=draw.positions(rng, m, n, head_dtype) if segments == "heads" else None,
            flags=flags,
            values=None if forms is None else draw.draw_values(forms, rng, n),
            sign=np.asarray(rng.choice([-1, 1]), dtype) if captures else None,
            count=draw.drawn(count, rng),
        )

    def function(keys: Any, values: Any = None, sign: Any = None, **others: Any) -> Any:
        def captured(a: Any, b: Any) -> Any:
            return a["k"] * sign - b["k"] * sign < 0

        given = {"less": precedes if sign is None else captured, **others}
        if forms is None:
            return call(keys, **given)
        sorted_keys, moved = call(keys, values=draw.enter(forms, values), **given)
        return sorted_keys, draw.leave(forms, moved)

    def expected(
        keys: Any, heads: Any = (), flags: Any = None, values: Any = None, sign: Any = None, count: Any = None
    ) -> list[Any]:
        heads = np.flatnonzero(flags) if flags is not None else np.asarray(heads)
        (ranks,) = _ranks(order, keys)
        ranks = ranks if sign is None or sign > 0 else -ranks
        places = oracle.segmented_sort_indices(ranks, heads[heads < n].astype(np.int64), False, count, None)
        return [
            *(x[places] for x in jax.tree.leaves(keys)),
            *([int32(places)] if indices else taken(forms, values, places)),
        ]

    names = ("keys", *differentiable_of(shape, forms, "values")) if not captures else ()
    return Call(call.__name__, function, draw_operands, expected, shape.x64, names, finite=shape.finite)


def _pairs(shape: Shape) -> Call:
    order, precedes, dtype = _drawn_order(shape)
    sets = tuple(f"set_{word}" for word in ("intersection", "union", "difference", "symmetric_difference"))
    name = shape.choice(("merge", "sorted_search", "join", "sets"))
    name = shape.choice(sets) if name == "sets" else name
    one, other = ("needles", "haystack") if name == "sorted_search" else ("a", "b")
    n_a, n_b = (min(shape.size(), 3000) for _ in range(2))
    a_count, b_count, forms = shape.count(n_a), shape.count(n_b), shape.values() if name == "merge" else None
    side, kind = shape.choice(("left", "right")), shape.choice(("inner", "left", "right", "outer"))
    size = n_a + n_b if name != "join" else shape.choice((0, 3, n_a + n_b, min(n_a * n_b, 4000)))
    options = {"sorted_search": {"side": side}, "join": {"kind": kind, "size": size}}.get(name, {})
    if name.startswith("set"):
        options = {"size": size}
    shape.say(name, *options.values())

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        lives = draw.drawn(a_count, rng), draw.drawn(b_count, rng)
        items = [_items(shape, rng, dtype, n, offset) for offset, n in enumerate((n_a, n_b))]
        a, b = (_in_order(order, x, None if mixable else live) for x, live in zip(items, lives, strict=True))
        values = {} if forms is None else {
            f"{x}_values": draw.draw_values(forms, rng, n) for x, n in (("a", n_a), ("b", n_b))
        }  # fmt: skip
        return names_of(name, **{one: a, other: b, f"{one}_count": lives[0], f"{other}_count": lives[1]}, **values)

    def function(a_values: Any = None, b_values: Any = None, **operands: Any) -> Any:
        call = getattr(mgpu, name)
        if forms is None:
            return call(**operands, **options, less=precedes)
        values = {"a_values": draw.enter(forms, a_values), "b_values": draw.enter(forms, b_values)}
        keys, merged = call(**operands, **values, **options, less=precedes)
        return keys, draw.leave(forms, merged)

    def expected(a_values: Any = None, b_values: Any = None, **operands: Any) -> list[Any]:
        a, b, *lives = (operands.get(x) for x in (one, other, f"{one}_count", f"{other}_count"))
        a_ranks, b_ranks = _ranks(order, a, b)
        a_live, b_live = oracle.live_count(lives[0], n_a), oracle.live_count(lives[1], n_b)
        if name == "sorted_search":
            return [int32(oracle.sorted_search(a_ranks, b_ranks, side, *lives))]
        if name == "join":
            total, rows = first_rows(kind, a_ranks[:a_live], b_ranks[:b_live], size)
            rows = oracle.padded(rows, size, -1)
            wide = shape.x64 and max(1, n_a) * max(1, n_b) + n_a + n_b >= 2**31
            return [int32(rows[:, 0]), int32(rows[:, 1]), np.asarray(total, np.int64 if wide else np.int32)]
        counts = []
        if name == "merge":
            places = oracle.merge_indices(a_ranks, b_ranks, False, *lives)
        else:
            sources = oracle.set_sources(name, a_ranks[:a_live], b_ranks[:b_live])
            places, counts = np.where(sources >= a_live, sources - a_live + n_a, sources), [int32(len(sources))]
        keys = [oracle.padded(x[places], size, 0) for x in jax.tree.leaves(both(a, b))]
        values = both(a_values, b_values) if forms is not None else None
        return [*keys, *filled(forms, values, places, size, 0), *counts]

    names = ("a", "b", *differentiable_of(shape, forms, "a_values", "b_values")) if name == "merge" else ()
    return Call(name, function, draw_operands, expected, shape.x64, names, finite=shape.finite)


# ---- Functions of an item


@dataclasses.dataclass(frozen=True)
class ItemMap:
    """A map of items.

    Attributes:
      function: the function that `map=` takes.
      function_of: the same function in NumPy, of all items.
      before: makes items that the function maps to given results.
    """

    name: str
    function: Callable[..., Any]
    function_of: Callable[[Any], Any]
    before: Callable[[np.random.Generator, Any], Any]


def _turned(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return (-x).astype(x.dtype)


def _turned_at_odd(x: np.ndarray) -> np.ndarray:
    at = np.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1))
    return np.where(at % 2 == 1, _turned(x), x)


def _other(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    return rng.integers(0, 3, x.shape).astype(x.dtype)


def _each(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jax.tree.map(function, x)


MAPS = (
    ItemMap("turned", _each(lambda x: -x), _each(_turned), lambda rng, x: _each(_turned)(x)),
    ItemMap(
        "turned at odd positions",
        lambda x, i: jax.tree.map(lambda leaf: jnp.where(i % 2 == 1, -leaf, leaf), x),
        _each(_turned_at_odd),
        lambda rng, x: _each(_turned_at_odd)(x),
    ),
    ItemMap(
        "a part",
        lambda x: x["part"],
        lambda x: x["part"],
        lambda rng, x: {"part": x, "rest": jax.tree.map(lambda leaf: _other(rng, leaf), x)},
    ),
    ItemMap(
        "a row",
        _each(lambda x: x[1]),
        _each(lambda x: x[:, 1]),
        lambda rng, x: jax.tree.map(lambda leaf: np.stack([_other(rng, leaf), leaf], 1), x),
    ),
)
