from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.examples import (
    ASCENDING,
    HEADS,
    KEYS,
    Argument,
    Example,
    N,
    ascending,
    broken_ends,
    distinct,
    few,
    integer_to,
    keys_in,
    live,
    numbers,
    of_segments,
    positions,
)
from tests.fuzz import draw
from tests.fuzz.compare import Equal, Near, Where
from tests.fuzz.draw import Call, Shape, names_of
from tests.fuzz.operators import cast, close_to, items
from tests.fuzz.shared import differentiable_of, directed, int32, mixed_pair, nulls, rows_of
from tests.many_items import bytes_by_count, bytes_of, counts_of, same, same_repeated, spots

EXAMPLES = {
    "lookup": Example(
        lambda keys, table, values, count: mgpu.lookup(keys, table, values, count=count),
        lambda rng, real: (
            rng.permutation(few(rng)),
            rng.permutation(9).astype(np.int32),
            numbers(rng, real, 9),
            live(rng),
        ),
        differentiable=(2,),
        counts=(3,),
        composed=True,
    ),
    "asof_join": Example(
        lambda a, b, by_a, by_b, a_count: mgpu.asof_join(a, b, by_a=by_a, by_b=by_b, tolerance=9, a_count=a_count),
        lambda rng, real: (
            *(ascending(rng, np.int32), ascending(rng, np.int32, 40)),
            *(rng.permutation(few(rng, values=3)), rng.permutation(few(rng, 40, 3)), live(rng)),
        ),
        counts=(4,),
        composed=True,
    ),
    "group_by": Example(
        lambda keys, x, y, count: mgpu.group_by(
            keys, {"x": x, "y": y}, {"x": "max", "y": "first"}, size=20, count=count
        ),
        lambda rng, real: (rng.permutation(few(rng)), distinct(rng, real), numbers(rng, real, N, 2), live(rng)),
        differentiable=(1, 2),
        counts=(3,),
        composed=True,
    ),
    "rank": Example(
        lambda keys, heads, count: mgpu.rank(keys, heads, "dense", count=count),
        lambda rng, real: (rng.permutation(few(rng)), positions(rng), live(rng)),
        counts=(2,),
        composed=True,
    ),
    "segmented_shift": of_segments(lambda x, heads, count: mgpu.segmented_shift(x, heads, 2, count=count), row=(2,)),
}

GARBAGE = {
    "lookup": lambda keys, repeated, indices, wild: mgpu.lookup(keys, repeated, keys, count=indices[0]),
    "asof_join": lambda keys, repeated, indices, wild: mgpu.asof_join(
        keys, repeated, by_a=repeated, by_b=keys, a_count=indices[0]
    ),
    "group_by": lambda keys, repeated, indices, wild: mgpu.group_by(repeated, keys, "median", size=100, count=wild[0]),
    "rank": lambda keys, repeated, indices, wild: mgpu.rank(repeated, indices, count=wild[0]),
    "segmented_shift": lambda keys, repeated, indices, wild: mgpu.segmented_shift(
        keys, indices, wild[0], count=indices[0]
    ),
}

BROKEN = {
    **broken_ends(mgpu.rank),
    **broken_ends(mgpu.segmented_shift, 1),
    "lookup: count": (lambda: mgpu.lookup(KEYS, KEYS, KEYS, count=7), integer_to(6), 0),
    "lookup: table_count": (lambda: mgpu.lookup(KEYS, KEYS, KEYS, table_count=7), integer_to(6), 0),
    "asof_join: a": (lambda: mgpu.asof_join(np.array([1, 3, 2]), np.arange(3)), keys_in("ascending"), 2),
    "asof_join: b": (lambda: mgpu.asof_join(np.arange(3), np.array([1, 3, 2])), keys_in("ascending"), 2),
    "asof_join: a_count": (lambda: mgpu.asof_join(np.arange(3), np.arange(3), a_count=4), integer_to(3), 0),
    "asof_join: b_count": (lambda: mgpu.asof_join(np.arange(3), np.arange(3), b_count=4), integer_to(3), 0),
    "asof_join: tolerance": (
        lambda: mgpu.asof_join(np.arange(3), np.arange(3), tolerance=-1),
        "a number of at least 0",
        0,
    ),
    "group_by: count": (lambda: mgpu.group_by(KEYS, KEYS, size=6, count=7), integer_to(6), 0),
    "group_by: size": (lambda: mgpu.group_by(np.arange(6), KEYS, size=2), "at most 2 results", 0),
    "rank: count": (lambda: mgpu.rank(KEYS, [0, 3], count=7), integer_to(6), 0),
    "rank: heads": (lambda: mgpu.rank(KEYS, [0, 4, 2]), HEADS, 2),
    "segmented_shift: count": (lambda: mgpu.segmented_shift(KEYS, [0, 3], by=1, count=7), integer_to(6), 0),
    "segmented_shift: heads": (lambda: mgpu.segmented_shift(KEYS, [0, 4, 2], by=1), HEADS, 2),
}

ARGUMENTS = {
    "asof_join: b": Argument("keys", ASCENDING),
    "group_by: keys": Argument("matched keys"),
    "group_by: values": Argument("items"),
    "rank: heads": Argument("ends"),  # may be left out
    "segmented_shift: x": Argument("columns"),
}


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def large_lookup(n, index):
    keys = bytes_of(n)
    got = mgpu.lookup(keys, np.arange(0, 256, 2, dtype=np.uint8), np.arange(128, dtype=np.int16), default=-1)
    same(got, np.where(keys % 2, -1, keys.astype(np.int16) // 2).astype(np.int16))


def large_asof_join(n, index):
    counts = counts_of(bytes_of(n))
    a, b = bytes_by_count(counts), np.arange(0, 256, 2, dtype=np.uint8)
    same_repeated(mgpu.asof_join(a, b), (np.arange(256) // 2).astype(np.int32), counts)


def large_group_by(n, index):
    keys = bytes_of(n)
    counts = counts_of(keys)
    found, sizes, count = mgpu.group_by(keys, keys, "count", size=256)
    distinct = np.flatnonzero(counts)
    assert count == len(distinct)
    assert np.array_equal(found[: len(distinct)], distinct)
    assert np.array_equal(sizes[: len(distinct)], counts[distinct])


def large_rank(n, index):
    keys = bytes_of(n)
    before = np.cumsum(counts_of(keys)) - counts_of(keys)
    got = np.asarray(mgpu.rank(keys))
    same(got, (before + 1).astype(got.dtype)[keys])


def large_segmented_shift(n, index):
    x, heads = bytes_of(n), spots(n, index)
    got = np.asarray(mgpu.segmented_shift(x, heads, 1, 7))
    expected = np.concatenate([np.full(1, 7, np.uint8), x[:-1]])
    expected[heads] = 7
    same(got, expected)


LARGE_WITH_INDICES = {
    "lookup": large_lookup,
    "asof_join": large_asof_join,
    "group_by": large_group_by,
    "rank": large_rank,
    "segmented_shift": large_segmented_shift,
}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def lookups(shape: Shape) -> Call:
    dtype, forms = shape.key_form(), shape.values(1)
    n, m = shape.size(), shape.size()
    count, table_count = shape.count(n), shape.count(m)
    default = shape.choice((0, 0, 2))
    shape.say(f"default={default}")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
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

    names = differentiable_of(shape, forms, "values")
    return Call("lookup", function, draw_operands, expected, shape.x64, names, finite=shape.finite)


def asof(shape: Shape) -> Call:
    dtype, direction = shape.key_dtype(), shape.choice(("backward", "forward", "nearest"))
    n_a, n_b = (min(n, 1500) for n in (shape.size(), shape.size()))
    a_count, b_count = shape.count(n_a), shape.count(n_b)
    groups = shape.choice((None, None, ("int8",), ("int32",), ("uint16",), ("float32", "uint16")))
    # Groups are up to 30,000 apart; the kernels have a table for those within 12,288 (`kGroupTable`).
    spread = shape.choice((1, 1, 3000, 10_000)) if groups in (("int32",), ("uint16",)) else 1
    is_sorted, tolerance, overflows = shape.flag(), shape.choice((None, 0, 3)), shape.flag(0.2)
    exact = not shape.flag(0.3)
    shape.say(
        "overflows" * overflows,
        direction,
        "" if exact else "not exact",
        f"groups={groups}",
        f"spread={spread}",
        f"sorted={is_sorted}",
        f"tolerance={tolerance}",
    )
    a_name, b_name = ("a", "b") if is_sorted and groups is None else ("a_times", "b_times")

    def draw_times(rng: np.random.Generator, n: int, live: Any) -> np.ndarray:
        kind = jnp.dtype(dtype)
        times = rng.integers(0, 100, n).astype(kind)  # differences are exact
        if overflows and kind.kind not in "iu":
            times = rng.choice(np.array([-np.inf, -1, -0.5, 0, 0.5, 1, np.inf]), n) * np.float64(jnp.finfo(kind).max)
            times = np.nan_to_num(times, nan=0.0, posinf=np.inf, neginf=-np.inf).astype(kind)
        if times.dtype.kind not in "iu" and n and not shape.finite:
            times[int(rng.integers(n))] = np.nan
        if is_sorted:
            live = oracle.live_count(live, n)
            times[:live] = times[:live][oracle.sort_indices(times[:live])]
        return times

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        counts = {"a_count": draw.drawn(a_count, rng), "b_count": draw.drawn(b_count, rng)}
        times = {
            name: draw_times(rng, n, None if mixable else counts[f"{name[0]}_count"])
            for name, n in ((a_name, n_a), (b_name, n_b))
        }
        by = {
            f"by_{side}": None if groups is None else tuple((rng.integers(0, 4, n) * spread).astype(x) for x in groups)
            for side, n in (("a", n_a), ("b", n_b))
        }
        return names_of("asof_join", **times, **by, **counts)

    def function(**given: Any) -> Any:
        times = given.pop(a_name), given.pop(b_name)
        options = {
            "direction": direction,
            "tolerance": tolerance,
            "assume_sorted": is_sorted,
            "allow_exact_matches": exact,
        }
        return mgpu.asof_join(*times, **options, **given)

    def expected(by_a: Any = None, by_b: Any = None, a_count: Any = None, b_count: Any = None, **times: Any) -> Any:
        live, b_live = oracle.live_count(a_count, n_a), oracle.live_count(b_count, n_b)
        a, b = (times[name].astype(np.float64).astype(np.longdouble) for name in (a_name, b_name))
        found = np.full(n_a, -1)
        if not b_live:
            return [int32(found)]
        order = np.argsort(b[:b_live], kind="stable")
        for i in range(live):
            same = np.ones(b_live, bool)
            for x, y in zip(by_a or (), by_b or (), strict=True):
                same &= y[:b_live] == x[i]
            rows = order[same[order] & ~np.isnan(b[order])]
            with np.errstate(invalid="ignore"):
                gaps = np.where(b[rows] == a[i], 0, b[rows] - a[i])
            limit = np.inf if tolerance is None else tolerance
            other = exact | (gaps != 0)
            before, after = rows[other & (gaps <= 0) & (-gaps <= limit)], rows[other & (gaps >= 0) & (gaps <= limit)]
            last, first = [*before[-1:], -1][0], [*after[:1], -1][0]
            if direction == "nearest":
                close_to = [abs(gaps[rows == row]) for row in (last, first)]
                takes_last = first < 0 or (last >= 0 and bool(close_to[0] <= close_to[1]))
                found[i] = last if takes_last else first
            else:
                found[i] = last if direction == "backward" else first
        return [int32(found)]

    return Call("asof_join", function, draw_operands, expected, shape.x64, finite=shape.finite)


OPERATORS = ("add", "min", "max", "mul", "argmin", "argmax", "mean", "median", "count", "nunique", "first", "last")
OPERATORS, ROUNDED = (*OPERATORS, "var", "std"), ("mean", "median", "var", "std")


def groups(shape: Shape) -> Call:
    op = shape.choice(("add", "max", "mean", "first", "last") if shape.derivative else OPERATORS)
    keys_form, n = shape.key_form(), shape.size()
    count, size = shape.count(n), shape.choice((0, 3, n // 2, n, n + 2))
    form = rows_of(shape, n) if op in ("first", "last", "count") else None
    dtype = shape.key_dtype() if form is None else None
    dropna = shape.flag(0.4) and not shape.derivative
    options: dict[str, Any] = {"dropna": dropna}
    if op in ("var", "std") and shape.flag():
        options["ddof"] = 1
    converts = dtype not in (None, "bfloat16") and op in ("add", "min", "max", *ROUNDED)
    if converts and not shape.derivative and shape.flag(0.4):
        whole = jnp.dtype(dtype).kind in "iu"
        options["dtype"] = shape.choice(("int8", "float32") if whole and op not in ROUNDED else ("float32",))
        options |= {"dtype": "float64"} if dtype == "float64" else {}
    shape.say(op, f"size={size}", *(f"{what}={x}" for what, x in options.items()))

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        keys = draw.keys(shape, rng, keys_form, n, few=not shape.derivative)
        if not shape.finite and rng.random() < 0.5:
            for x in jax.tree.leaves(keys):
                if x.dtype.kind not in "iu":
                    x[rng.random(n) < 0.2] = np.nan
        if form is not None:
            x = form.draw(rng, n)
        elif op in ROUNDED:
            x = (rng.choice(100, n, replace=False) if shape.derivative else rng.integers(0, 100, n)).astype(dtype)
        elif op == "max" and shape.derivative:
            x = draw.keys(shape, rng, dtype, n)
        else:
            x = items(shape, rng, dtype, op, n)
        return names_of("group_by", keys=keys, x=x, count=draw.drawn(count, rng))

    def function(keys: Any, x: Any, **others: Any) -> Any:
        given = x if form is None else form.enter(x)
        keys, values, found = mgpu.group_by(keys, {"x": given}, {"x": op}, size=size, **options, **others)
        leave = form is not None and op != "count"
        return keys, form.leave(values["x"]) if leave else values["x"], found

    def expected(keys: Any, x: Any, count: Any = None) -> list[Any]:
        live = oracle.live_count(count, n)
        (ranks, _) = draw.ranked(False, keys)
        ranks = oracle.rank(ranks[:live])
        order = np.argsort(ranks, kind="stable")
        order = order[~nulls(keys)[order]] if dropna else order
        heads = np.flatnonzero(np.append(True, ranks[order][1:] != ranks[order][:-1])[: len(order)])
        used, number = heads[:size], np.diff([*heads, len(order)])[:size]
        found = [oracle.padded(key[order[used]], size, 0) for key in jax.tree.leaves(keys)]
        rows = np.split(order, heads[1:])[: len(used)]
        given = cast(x, options.get("dtype"))
        values = _combined(op, form, given, order, rows, heads, number, size, options.get("ddof", 0))
        if "dtype" in options and not isinstance(values, Near | Equal):
            values = values.astype(options["dtype"])
        return [*found, values, int32(len(heads))]

    names = ("x",) if shape.derivative else ()
    finite = shape.finite and "ddof" not in options  # of one item, such a variance is NaN
    return Call("group_by", function, draw_operands, expected, shape.x64, names, finite=finite)


def _combined(
    op: str, form: Any, x: Any, order: np.ndarray, rows: Any, heads: np.ndarray, number: Any, size: int, ddof: int
) -> Any:
    """Returns each group's combined values, given the positions of its rows in order."""
    if op == "count":
        return oracle.padded(int32(number), size, 0)
    if op in ("first", "last"):
        picked = np.array([row[0 if op == "first" else -1] for row in rows], np.int64)
        out = oracle.padded(x[picked], size, np.asarray(0).astype(x.dtype))
        return Where(out, np.arange(size) < len(picked)) if form.dtype == "key" else out
    if op == "nunique":
        return oracle.padded(int32([len(np.unique(oracle.rank(x[row]))) for row in rows]), size, 0)
    if op in ROUNDED:
        real = x.dtype if x.dtype.kind not in "iu" else np.dtype("float64" if x.dtype.itemsize == 8 else "float32")
        combine = np.mean if op == "mean" else functools.partial(oracle.statistic, op=op, ddof=ddof)
        exact = oracle.padded(np.array([combine(x[row].astype(np.float64)) for row in rows], np.float64), size, 0)
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
    return close_to(
        op, oracle.padded(plain, size, 0),
        lambda: oracle.padded(oracle.segmented_reduce(magnitudes, heads, "add"), size, 0),
    )  # fmt: skip


def windows(shape: Shape) -> Call:
    name = shape.choice(("rank", "segmented_shift"))
    n = shape.size()
    count, m, head_dtype = shape.count(n), shape.choice((0, 1, 3, n // 5, n + 3)), shape.index_dtype(0)
    if name == "rank":
        return _ranks(shape, n, count, m, head_dtype)
    form, fill = rows_of(shape, n), shape.choice((0, 0, 2))
    step_dtype = shape.choice(("int32", "int8", "uint8", "uint32"))
    shape.say(name, f"m={m}", f"by={step_dtype}", f"fill={fill}")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
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
    method, (dtype, descending) = shape.choice(("min", "dense", "ordinal", "max", "average")), directed(shape)
    has_heads = shape.flag()
    shape.say(method, f"m={m}" if has_heads else "")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        heads = draw.positions(rng, m, n, head_dtype) if has_heads else None
        keys = draw.keys(shape, rng, dtype, n)
        return names_of("rank", keys=keys, heads=heads, count=draw.drawn(count, rng))

    def function(keys: Any, heads: Any = None, **others: Any) -> Any:
        return mgpu.rank(keys, heads, method, descending=descending, **others)

    def expected(keys: Any, heads: Any = None, count: Any = None) -> list[Any]:
        ranks, is_negated = draw.ranked(descending, keys)
        codes = oracle.rank(ranks).astype(np.int64) * (-1 if is_negated else 1)
        out = np.zeros(n, np.float64)
        for begin, end in oracle.segment_bounds(n, np.zeros(0) if heads is None else heads, count):
            row = codes[begin:end]
            if method == "ordinal":
                out[begin:end][np.argsort(row, kind="stable")] = np.arange(1, end - begin + 1)
            else:
                firsts = 1 + np.searchsorted(np.unique(row) if method == "dense" else np.sort(row), row)
                lasts = np.searchsorted(np.sort(row), row, "right")
                out[begin:end] = {"max": lasts, "average": (firsts + lasts) / 2}.get(method, firsts)
        return [out.astype("float64" if shape.x64 else "float32") if method == "average" else int32(out)]

    return Call("rank", function, draw_operands, expected, shape.x64, finite=shape.finite)


DRAWN = {"lookup": lookups, "asof_join": asof, "group_by": groups, "windows": windows}
