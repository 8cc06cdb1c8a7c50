"""Lookups, joins, sets, groups and windows of keys in any order, and their oracles."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.fuzz import draw, ordered
from tests.fuzz.compare import Near, Where
from tests.fuzz.draw import Call, Shape, names_of
from tests.fuzz.ordered import int32
from tests.fuzz.ragged import items, near
from tests.fuzz.selection import rows_of


def mixed_pair(shape: Shape, rng: np.random.Generator, dtype: Any, n_a: int, n_b: int) -> tuple[Any, Any]:
    """Two arrays of keys in any order that share some, or columns of them."""
    a, b = draw.sorted_pair(shape, rng, dtype, n_a, n_b, False, None, None)
    orders = rng.permutation(n_a), rng.permutation(n_b)
    return jax.tree.map(lambda x: x[orders[0]], a), jax.tree.map(lambda x: x[orders[1]], b)


def lookups(shape: Shape) -> Call:
    """lookup."""
    dtype, forms = shape.key_form(), shape.values(1)
    n, m = shape.size(), shape.size()
    count, table_count = shape.count(n), shape.count(m)
    default = shape.choice((0, 0, 2))
    shape.say(f"default={default}")

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        del apart
        keys, table = mixed_pair(shape, rng, dtype, n, m)
        counts = {"count": draw.drawn(count, rng), "table_count": draw.drawn(table_count, rng)}
        return names_of("lookup", keys=keys, table_keys=table, values=draw.draw_values(forms, rng, m), **counts)

    def function(keys: Any, table_keys: Any, values: Any, **counts: Any) -> Any:
        found = mgpu.lookup(keys, table_keys, draw.enter(forms, values), default=default, **counts)
        return draw.leave(forms, found)

    def expected(keys: Any, table_keys: Any, values: Any, count: Any = None, table_count: Any = None) -> list[Any]:
        live, table_live = oracle.live_count(count, n), oracle.live_count(table_count, m)
        ranks, table_ranks, _ = draw.ranked(False, keys, table_keys)
        both = oracle.rank(np.concatenate([ranks, table_ranks]))
        first = {int(r): i for i, r in reversed([*enumerate(both[n:][:table_live])])}
        places = np.array([first.get(int(r), -1) for r in both[:live]] + [-1] * (n - live), np.int64)
        leaves: list[Any] = []
        for form, x in zip(jax.tree.leaves(forms, is_leaf=draw.is_rows), jax.tree.leaves(values), strict=True):
            out = np.broadcast_to(np.asarray(default).astype(x.dtype), (n, *x.shape[1:])).copy()
            out[places >= 0] = x[places[places >= 0]]
            leaves.append(Where(out, places >= 0) if form.dtype == "key" else out)
        return leaves

    names = ordered.differentiable_of(shape, forms, "values")
    return Call("lookup", function, draw_operands, expected, shape.x64, names, finite=shape.finite)


def asof(shape: Shape) -> Call:
    """asof_join."""
    dtype, direction = shape.key_dtype(), shape.choice(("backward", "forward", "nearest"))
    n_a, n_b = (min(n, 1500) for n in (shape.size(), shape.size()))
    a_count, b_count = shape.count(n_a), shape.count(n_b)
    groups = shape.choice((None, None, ("int8",), ("float32", "uint16")))
    is_sorted, tolerance = shape.flag(), shape.choice((None, 0, 3))
    shape.say(direction, f"groups={groups}", f"sorted={is_sorted}", f"tolerance={tolerance}")
    a_name, b_name = ("a", "b") if is_sorted and groups is None else ("a_times", "b_times")

    def draw_times(rng: np.random.Generator, n: int, live: Any) -> np.ndarray:
        times = rng.integers(0, 100, n).astype(jnp.dtype(dtype))  # where differences are exact
        if times.dtype.kind not in "iu" and n and not shape.finite:
            times[int(rng.integers(n))] = np.nan
        if is_sorted:
            live = oracle.live_count(live, n)
            times[:live] = times[:live][oracle.sort_indices(times[:live])]
        return times

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        counts = {"a_count": draw.drawn(a_count, rng), "b_count": draw.drawn(b_count, rng)}
        times = {
            name: draw_times(rng, n, None if apart else counts[f"{name[0]}_count"])
            for name, n in ((a_name, n_a), (b_name, n_b))
        }
        by = {
            f"by_{side}": None if groups is None else tuple(rng.integers(0, 4, n).astype(x) for x in groups)
            for side, n in (("a", n_a), ("b", n_b))
        }
        return names_of("asof_join", **times, **by, **counts)

    def function(**given: Any) -> Any:
        times = given.pop(a_name), given.pop(b_name)
        options = {"direction": direction, "tolerance": tolerance, "assume_sorted": is_sorted}
        return mgpu.asof_join(*times, **options, **given)

    def expected(by_a: Any = None, by_b: Any = None, a_count: Any = None, b_count: Any = None, **times: Any) -> Any:
        live, b_live = oracle.live_count(a_count, n_a), oracle.live_count(b_count, n_b)
        a, b = (times[name].astype(np.float64) for name in (a_name, b_name))
        found = np.full(n_a, -1)
        if not b_live:
            return [int32(found)]
        order = np.argsort(b[:b_live], kind="stable")
        for i in range(live):
            same = np.ones(b_live, bool)
            for x, y in zip(by_a or (), by_b or (), strict=True):
                same &= y[:b_live] == x[i]
            rows = order[same[order] & ~np.isnan(b[order])]
            gaps = b[rows] - a[i]
            most = np.inf if tolerance is None else tolerance
            before, after = rows[(gaps <= 0) & (-gaps <= most)], rows[(gaps >= 0) & (gaps <= most)]
            last, first = [*before[-1:], -1][0], [*after[:1], -1][0]
            if direction == "nearest":
                takes_last = first < 0 or (last >= 0 and a[i] - b[last] <= b[first] - a[i])
                found[i] = last if takes_last else first
            else:
                found[i] = last if direction == "backward" else first
        return [int32(found)]

    return Call("asof_join", function, draw_operands, expected, shape.x64, finite=shape.finite)


OPERATORS = ("add", "min", "max", "mul", "argmin", "argmax", "mean", "median", "count", "nunique", "first", "last")


def groups(shape: Shape) -> Call:
    """group_by."""
    op = shape.choice(("add", "max", "mean", "first", "last") if shape.derivative else OPERATORS)
    keys_form, n = shape.key_form(), shape.size()
    count, size = shape.count(n), shape.choice((0, 3, n // 2, n, n + 2))
    form = rows_of(shape, n) if op in ("first", "last", "count") else None
    dtype = shape.key_dtype() if form is None else None
    shape.say(op, f"size={size}")

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        del apart
        keys = draw.keys(shape, rng, keys_form, n, few=not shape.derivative)
        if form is not None:
            x = form.draw(rng, n)
        elif op in ("mean", "median"):
            x = (rng.choice(100, n, replace=False) if shape.derivative else rng.integers(0, 100, n)).astype(dtype)
        elif op == "max" and shape.derivative:
            x = draw.keys(shape, rng, dtype, n)
        else:
            x = items(shape, rng, dtype, op, n)
        return names_of("group_by", keys=keys, x=x, count=draw.drawn(count, rng))

    def function(keys: Any, x: Any, **others: Any) -> Any:
        given = x if form is None else form.enter(x)
        keys, values, found = mgpu.group_by(keys, {"x": given}, {"x": op}, size=size, **others)
        leave = form is not None and op != "count"
        return keys, form.leave(values["x"]) if leave else values["x"], found

    def expected(keys: Any, x: Any, count: Any = None) -> list[Any]:
        live = oracle.live_count(count, n)
        (ranks, _) = draw.ranked(False, keys)
        ranks = oracle.rank(ranks[:live])
        order = np.argsort(ranks, kind="stable")
        heads = np.flatnonzero(np.append(True, ranks[order][1:] != ranks[order][:-1])[:live])
        used, number = heads[:size], np.diff([*heads, live])[:size]
        found = [oracle.padded(key[order[used]], size, 0) for key in jax.tree.leaves(keys)]
        rows = np.split(order, heads[1:])[: len(used)]
        return [*found, _combined(op, form, x, order, rows, heads, number, size), int32(len(heads))]

    names = ("x",) if shape.derivative else ()
    return Call("group_by", function, draw_operands, expected, shape.x64, names, finite=shape.finite)


def _combined(
    op: str, form: Any, x: Any, order: np.ndarray, rows: Any, heads: np.ndarray, number: Any, size: int
) -> Any:
    """The combined values of the groups, whose rows in order are given."""
    if op == "count":
        return oracle.padded(int32(number), size, 0)
    if op in ("first", "last"):
        picked = np.array([row[0 if op == "first" else -1] for row in rows], np.int64)
        out = oracle.padded(x[picked], size, np.asarray(0).astype(x.dtype))
        return Where(out, np.arange(size) < len(picked)) if form.dtype == "key" else out
    if op == "nunique":
        return oracle.padded(int32([len(np.unique(oracle.rank(x[row]))) for row in rows]), size, 0)
    if op in ("mean", "median"):
        real = x.dtype if x.dtype.kind not in "iu" else np.dtype("float64" if x.dtype.itemsize == 8 else "float32")
        middle = {"mean": np.mean, "median": np.median}[op]
        exact = oracle.padded(np.array([middle(x[row].astype(np.float64)) for row in rows], np.float64), size, 0)
        rounding = float(jnp.finfo(real).eps) * (4 if op == "median" else 8)
        sums = oracle.padded(np.array([np.abs(x[row].astype(np.float64)).sum() for row in rows], np.float64), size, 0)
        error = rounding * np.abs(exact) + 1e-5 * (1 + np.abs(exact)) + 1e-7 * sums * (op == "mean")
        return Near(exact.astype(real), error)
    moved = x[order]
    plain = oracle.segmented_reduce(moved, heads, op)[:size]
    if op.startswith("arg"):
        return oracle.padded(int32(order[plain]) if len(plain) else int32(plain), size, -1)
    with np.errstate(invalid="ignore"):
        magnitudes = np.nan_to_num(np.abs(moved.astype(np.float64)), nan=0, posinf=0)
    return near(
        op, oracle.padded(plain, size, 0),
        lambda: oracle.padded(oracle.segmented_reduce(magnitudes, heads, "add"), size, 0),
    )  # fmt: skip


def windows(shape: Shape) -> Call:
    """rank, segmented_shift."""
    name = shape.choice(("rank", "segmented_shift"))
    n = shape.size()
    count, m, head_dtype = shape.count(n), shape.choice((0, 1, 3, n // 5, n + 3)), shape.index_dtype(0)
    if name == "rank":
        return _ranks(shape, n, count, m, head_dtype)
    form, fill = rows_of(shape, n), shape.choice((0, 0, 2))
    step_dtype = shape.choice(("int32", "int8", "uint8", "uint32"))
    shape.say(name, f"m={m}", f"by={step_dtype}", f"fill={fill}")

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        del apart
        steps = [0, 1, 2, 5, n, *([-1, -3, -n] if step_dtype.startswith("int") else [])]
        limits = np.iinfo(step_dtype)
        step = np.asarray(np.clip(rng.choice(steps), limits.min, limits.max), step_dtype)
        heads = draw.positions(rng, m, n, head_dtype)
        return names_of(name, x=form.draw(rng, n), heads=heads, by=step, count=draw.drawn(count, rng))

    def function(x: Any, heads: Any, by: Any, **others: Any) -> Any:
        return form.leave(mgpu.segmented_shift({"x": form.enter(x)}, heads, by, fill, **others)["x"])

    def expected(x: Any, heads: Any, by: Any, count: Any = None) -> list[Any]:
        live = oracle.live_count(count, n)
        begins = oracle.segment_firsts(live, heads)
        sources = np.arange(live) - int(by)
        inside = (sources >= 0) & (sources < live)
        inside[inside] = begins[sources[inside]] == begins[inside]
        out = np.broadcast_to(np.asarray(fill).astype(x.dtype), x.shape).copy()
        out[:live][inside] = x[sources[inside]]
        moved = np.append(inside, np.zeros(n - live, bool))
        return [Where(out, moved) if form.dtype == "key" else out]

    return Call(name, function, draw_operands, expected, shape.x64, ("x",), finite=shape.finite)


def _ranks(shape: Shape, n: int, count: Any, m: int, head_dtype: str) -> Call:
    method, (dtype, descending) = shape.choice(("min", "dense", "ordinal")), ordered.directed(shape)
    has_heads = shape.flag()
    shape.say(method, f"m={m}" if has_heads else "")

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        del apart
        heads = draw.positions(rng, m, n, head_dtype) if has_heads else None
        keys = draw.keys(shape, rng, dtype, n)
        return names_of("rank", keys=keys, heads=heads, count=draw.drawn(count, rng))

    def function(keys: Any, heads: Any = None, **others: Any) -> Any:
        return mgpu.rank(keys, heads, method, descending=descending, **others)

    def expected(keys: Any, heads: Any = None, count: Any = None) -> list[Any]:
        ranks, turned = draw.ranked(descending, keys)
        codes = oracle.rank(ranks).astype(np.int64) * (-1 if turned else 1)
        out = np.zeros(n, np.int64)
        for begin, end in oracle.segment_bounds(n, np.zeros(0) if heads is None else heads, count):
            row = codes[begin:end]
            if method == "ordinal":
                out[begin:end][np.argsort(row, kind="stable")] = np.arange(1, end - begin + 1)
            else:
                out[begin:end] = 1 + np.searchsorted(np.unique(row) if method == "dense" else np.sort(row), row)
        return [int32(out)]

    return Call("rank", function, draw_operands, expected, shape.x64, finite=shape.finite)


def any_order(shape: Shape) -> Call:
    """Joins of all kinds, sorted_match and sets, of keys in any order; joins of nulls, of sorted keys too."""
    name = shape.choice(("join", "join", "join", "sorted_match", "set_union", "set_difference", "set_intersection"))
    dtype = shape.key_form()
    n_a, n_b = (min(n, 300) for n in (shape.size(), shape.size()))
    a_count, b_count = shape.count(n_a), shape.count(n_b)
    kind, null_equal = shape.choice(("inner", "left", "right", "outer", "semi", "anti")), shape.flag()
    is_sorted, side = name == "join" and shape.flag(0.3), shape.choice(("left", "right"))
    size = shape.choice((0, 3, n_a + n_b, 2 * (n_a + n_b)))
    options: dict[str, Any] = {"assume_sorted": is_sorted}
    if name == "join":
        options |= {"kind": kind, "null_equal": null_equal}
    elif name == "sorted_match":
        options |= {"side": side}
    if name != "sorted_match":
        options |= {"size": size}
    shape.say(*(f"{what}={x}" for what, x in options.items()))

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        counts = {"a_count": draw.drawn(a_count, rng), "b_count": draw.drawn(b_count, rng)}
        if is_sorted:
            lives = (None, None) if apart else tuple(counts.values())
            x, y = draw.sorted_pair(shape, rng, dtype, n_a, n_b, False, *lives)
        else:
            x, y = mixed_pair(shape, rng, dtype, n_a, n_b)
        return names_of(name, x=x, y=y, **counts)

    def function(x: Any, y: Any, **counts: Any) -> Any:
        return getattr(mgpu, name)(x, y, **options, **counts)

    def expected(x: Any, y: Any, a_count: Any = None, b_count: Any = None) -> list[Any]:
        ranks = draw.ranked(False, x, y)[:2]
        lives = oracle.live_count(a_count, n_a), oracle.live_count(b_count, n_b)
        codes = oracle.rank(np.concatenate([r[:n] for r, n in zip(ranks, lives, strict=True)]))
        a, b = codes[: lives[0]], codes[lives[0] :]
        if name == "sorted_match":
            return _matched(a, b, n_a, n_b, side)
        if name == "join":
            nulls = [_nulls(keys)[:n] & (not null_equal) for keys, n in zip((x, y), lives, strict=True)]
            return _joined(kind, (a[:, None] == b) & ~nulls[0][:, None] & ~nulls[1], size)
        orders = [np.argsort(r, kind="stable") for r in (a, b)]
        sources = oracle.set_sources(name, a[orders[0]], b[orders[1]])
        places = np.concatenate([orders[0], n_a + orders[1]])[sources]
        keys = [oracle.padded(leaf[places], size, 0) for leaf in jax.tree.leaves(ordered.both(x, y))]
        return [*keys, int32(len(sources))]

    return Call(name, function, draw_operands, expected, shape.x64, finite=shape.finite)


def _nulls(keys: Any) -> np.ndarray:
    """Which rows have a NaN in their key."""
    found = [np.isnan(x) if x.dtype.kind not in "iu" else np.zeros(x.shape, bool) for x in jax.tree.leaves(keys)]
    return np.logical_or.reduce(found)


def _joined(kind: str, partners: np.ndarray, size: int) -> list[Any]:
    """The rows of a join, where `partners` says which rows of both sides go together."""
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
    """What sorted_match gives of keys in any order: the first or the last item of the other side that is equal."""
    indices, found, numbers = [], [], []
    for own, other, n in ((a, b, n_a), (b, a, n_b)):
        places = [np.flatnonzero(other == key) for key in own]
        index = [p[0 if side == "left" else -1] if len(p) else -1 for p in places]
        indices.append(oracle.padded(int32(index), n, -1))
        found.append(indices[-1] >= 0)
        numbers.append(int32(found[-1].sum()))
    return [*indices, *found, *numbers]
