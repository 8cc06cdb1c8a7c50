"""Calls over keys in an order: sorts, merges, searches, sets, joins; each with its oracle."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests import data, oracle
from tests.fuzz import draw
from tests.fuzz.compare import Where
from tests.fuzz.draw import Call, Shape, names_of

INT32_LARGEST = 2**31 - 1


def int32(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.int32)


def taken(forms: Any, values: Any, indices: np.ndarray) -> list[Any]:
    """The leaves of values, by index."""
    return [x[indices] for x in jax.tree.leaves(values)] if forms is not None else []


def filled(forms: Any, values: Any, indices: np.ndarray, size: int, fill: Any) -> list[Any]:
    """The leaves of values by index, filled up to `size`."""
    if forms is None:
        return []
    leaves = []
    for form, x in zip(jax.tree.leaves(forms, is_leaf=draw.is_rows), jax.tree.leaves(values), strict=True):
        rows = oracle.padded(x[indices], size, np.asarray(fill).astype(x.dtype))
        leaves.append(Where(rows, np.arange(size) < len(indices)) if form.dtype == "key" else rows)
    return leaves


def both(a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: np.concatenate([x, y]), a, b)


def differentiable_of(shape: Shape, forms: Any, *names: str) -> tuple[str, ...]:
    """The names of values that have derivatives."""
    return names if forms is not None and shape.derivative else ()


def directed(shape: Shape) -> tuple[Any, Any]:
    """A form of keys and their direction, which may be one a column."""
    dtype, descending = shape.key_form(), shape.flag(0.3)
    if isinstance(dtype, draw.Columns) and shape.flag(0.7):
        descending = dtype.flags
    shape.say(f"descending={descending}" if descending else "")
    return dtype, descending


def merge(shape: Shape) -> Call:
    dtype, descending = directed(shape)
    n_a, n_b = shape.size(), shape.size()
    a_count, b_count, forms = shape.count(n_a), shape.count(n_b), shape.values()

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        a_live, b_live = draw.drawn(a_count, rng), draw.drawn(b_count, rng)
        lives = (None, None) if apart else (a_live, b_live)
        a, b = draw.sorted_pair(shape, rng, dtype, n_a, n_b, descending, *lives)
        values = (
            {}
            if forms is None
            else {f"{x}_values": draw.draw_values(forms, rng, n) for x, n in (("a", n_a), ("b", n_b))}
        )
        return names_of("merge", a=a, b=b, **values, a_count=a_live, b_count=b_live)

    def function(a: Any, b: Any, a_values: Any = None, b_values: Any = None, **counts: Any) -> Any:
        if forms is None:
            return mgpu.merge(a, b, descending=descending, **counts)
        values = draw.enter(forms, a_values), draw.enter(forms, b_values)
        keys, merged = mgpu.merge(a, b, *values, descending=descending, **counts)
        return keys, draw.leave(forms, merged)

    def expected(a: Any, b: Any, a_values: Any = None, b_values: Any = None, **counts: Any) -> list[Any]:
        *ranks, down = draw.ranked(descending, a, b)
        indices = oracle.merge_indices(*ranks, down, **counts)
        keys = [oracle.padded(x[indices], n_a + n_b, 0) for x in jax.tree.leaves(both(a, b))]
        return [*keys, *filled(forms, both(a_values, b_values) if forms is not None else None, indices, n_a + n_b, 0)]

    names = ("a", "b", *differentiable_of(shape, forms, "a_values", "b_values"))
    return Call("merge", function, draw_operands, expected, shape.x64, names, finite=shape.finite)


def segments_with_gaps(rng: np.random.Generator, m: int, n: int, dtype: Any, apart: bool) -> dict[str, np.ndarray]:
    """Heads and ends, some past the items; apart, those of each draw fit those of every other."""
    most = min(n, np.iinfo(dtype).max)  # what the dtype cannot say is in no segment
    if apart:
        half = most // max(2 * m, 1)
        heads, ends = (np.arange(m) * 2 * half + at + rng.integers(0, half + 1, m) for at in (0, half))
    else:  # the next head at most; some segments are empty, and of equal heads all but the last
        heads = draw.positions(rng, m, n, dtype)
        starts = np.minimum(heads, np.asarray(most, dtype)).astype(np.int64)
        ends = starts + (rng.random(m) * (np.append(starts[1:], most)[:m] - starts + 1)).astype(np.int64)
    return {"heads": heads.astype(dtype), "ends": ends.astype(dtype)}


def sorts(shape: Shape) -> Call:
    """sort, mergesort, locality_sort, segmented_sort, each with values or with indices."""
    name = shape.choice(("sort", "mergesort", "locality_sort", "segmented_sort", "segmented_sort"))
    (dtype, descending), n = directed(shape), shape.size()
    count, indices = shape.count(n), shape.flag(0.4)
    forms = None if indices else shape.values()
    segments = shape.choice(("heads", "heads", "ends", "flags", "words")) if name == "segmented_sort" else None
    m = 0 if segments not in ("heads", "ends") else shape.choice((0, 1, 3, n // 5, n // 2, n, n + 3))
    head_dtype = shape.index_dtype(0)
    alone = name == "sort" and indices  # without the keys
    call = mgpu.argsort if alone else getattr(mgpu, f"{name}_indices" if indices else name)
    shape.say(segments, f"m={m}")

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        keys = draw.keys(shape, rng, dtype, n)
        if isinstance(dtype, draw.Columns):
            keys = draw.in_order(keys, descending, None) if rng.random() < 0.25 else keys
        elif rng.random() < 0.25:  # nearly sorted
            keys = data.in_order(keys, descending)
            if n > 1:
                i, j = rng.integers(0, n, (2, 3))
                keys[i], keys[j] = keys[j], keys[i]
                if shape.derivative:
                    keys = rng.permutation(data.in_order(draw.keys(shape, rng, dtype, n)))
        operands: dict[str, Any] = {"keys": keys}
        if segments == "heads":
            operands["heads"] = draw.positions(rng, m, n, head_dtype)
        elif segments == "ends":
            operands |= segments_with_gaps(rng, m, n, head_dtype, apart)
        elif segments in ("flags", "words"):
            flags = rng.random(n) < rng.choice([0.02, 0.2, 0.9])
            operands["flags"] = flags if segments == "flags" else data.words_of(flags)
            if segments == "words" and n % 32 and rng.random() < 0.5:
                operands["flags"][-1:] |= np.uint32((0xFFFFFFFF << n % 32) & 0xFFFFFFFF)  # past the last item
        if forms is not None:
            operands["values"] = draw.draw_values(forms, rng, n)
        return operands | names_of(name, count=draw.drawn(count, rng))

    def function(keys: Any, values: Any = None, **others: Any) -> Any:
        if forms is None:
            return call(keys, descending=descending, **others)
        sorted_keys, moved = call(keys, values=draw.enter(forms, values), descending=descending, **others)
        return sorted_keys, draw.leave(forms, moved)

    def expected(
        keys: Any, heads: Any = (), ends: Any = None, flags: Any = None, values: Any = None, count: Any = None
    ) -> list[Any]:
        if segments == "words":
            flags = np.unpackbits(flags.view(np.uint8), bitorder="little")[:n].astype(bool)
        heads = np.flatnonzero(flags) if flags is not None else np.asarray(heads)
        ends = None if ends is None else np.asarray(ends)[heads < n].astype(np.int64)
        heads = heads[heads < n].astype(np.int64)
        ranks, down = draw.ranked(descending, keys)
        order = oracle.segmented_sort_indices(ranks, heads, down, count, ends)
        results = [] if alone else [x[order] for x in jax.tree.leaves(keys)]
        return [*results, *([int32(order)] if indices else taken(forms, values, order))]

    names = () if alone else ("keys", *differentiable_of(shape, forms, "values"))
    return Call(call.__name__, function, draw_operands, expected, shape.x64, names, finite=shape.finite)


def searches(shape: Shape) -> Call:
    """sorted_search, sorted_match, sorted_equal_count."""
    name = shape.choice(("sorted_search", "sorted_match", "sorted_equal_count"))
    one, other = ("needles", "haystack") if name == "sorted_search" else ("a", "b")
    dtype, side = shape.key_form(), shape.choice(("left", "right"))
    n_a, n_b = shape.size(), shape.size()
    a_count, b_count = shape.count(n_a), shape.count(n_b)
    options: dict[str, Any] = {} if name == "sorted_equal_count" else {"side": side}
    fill = shape.choice((-1, -1, n_b, 0))
    if name == "sorted_search" and fill != -1:
        options["fill_value"] = fill
    shape.say(side, f"fill={fill}")

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        a_live, b_live = draw.drawn(a_count, rng), draw.drawn(b_count, rng)
        a, b = draw.sorted_pair(shape, rng, dtype, n_a, n_b, False, *((None, None) if apart else (a_live, b_live)))
        return names_of(name, **{one: a, other: b, f"{one}_count": a_live, f"{other}_count": b_live})

    def function(**operands: Any) -> Any:
        return getattr(mgpu, name)(**operands, **options)

    def expected(**operands: Any) -> list[Any]:
        a, b, a_live, b_live = (operands.get(x) for x in (one, other, f"{one}_count", f"{other}_count"))
        a, b, _ = draw.ranked(False, a, b)

        def found(which: str) -> np.ndarray:
            return oracle.sorted_search(a, b, which, a_live, b_live)

        def found_in_a(which: str) -> np.ndarray:
            return oracle.sorted_search(b, a, which, b_live, a_live)

        if name == "sorted_search":
            return [int32(np.where(found(side) < 0, fill, found(side)))]
        in_b, in_a = found("right") - found("left"), found_in_a("right") - found_in_a("left")
        if name == "sorted_equal_count":
            return [int32(in_b)]
        opposite = "right" if side == "left" else "left"
        a_match, b_match = in_b > 0, in_a > 0
        return [
            int32(found(side)),
            int32(found_in_a(opposite)),
            a_match,
            b_match,
            int32(a_match.sum()),
            int32(b_match.sum()),
        ]

    return Call(name, function, draw_operands, expected, shape.x64, (), finite=shape.finite)


def sets(shape: Shape) -> Call:
    """The four set operations."""
    name = "set_" + shape.choice(("intersection", "union", "difference", "symmetric_difference"))
    takes_b = name in ("set_union", "set_symmetric_difference")
    dtype, duplicates = shape.key_form(), shape.flag(0.75)
    n_a, n_b = shape.size(), shape.size()
    if isinstance(dtype, draw.Columns):
        duplicates = True
    else:
        duplicates |= max(n_a, n_b) > 200 and jnp.dtype(dtype).itemsize == 1  # there are no more keys
    a_count, b_count, forms = shape.count(n_a), shape.count(n_b), shape.values()
    default = {"set_intersection": min(n_a, n_b), "set_difference": n_a}.get(name, n_a + n_b)
    size = shape.choice((None, None, 0, default // 2, default + 3))
    fill = shape.choice((0, 0, 3, 1))
    traced_fill = shape.flag(0.2) and not shape.derivative
    slots = default if size is None else size
    shape.say(name, f"size={size}", f"duplicates={duplicates}", f"fill={fill}{' traced' * traced_fill}")

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        a_live, b_live = draw.drawn(a_count, rng), draw.drawn(b_count, rng)
        if apart:
            live_a, live_b = n_a, n_b
        else:
            live_a, live_b = oracle.live_count(a_live, n_a), oracle.live_count(b_live, n_b)
        a, b = draw.sorted_pair(shape, rng, dtype, n_a, n_b, False, live_a, live_b)
        if not duplicates:
            a, b = _distinct(shape, rng, a, live_a), _distinct(shape, rng, b, live_b)
        values = {} if forms is None else {"a_values": draw.draw_values(forms, rng, n_a)}
        if forms is not None and takes_b:
            values["b_values"] = draw.draw_values(forms, rng, n_b)
        if traced_fill:
            values["fill_value"] = np.int32(fill)
        return names_of(name, a=a, b=b, **values, a_count=a_live, b_count=b_live)

    def function(
        a: Any, b: Any, a_values: Any = None, b_values: Any = None, fill_value: Any = fill, **counts: Any
    ) -> Any:
        values = {} if forms is None else {"a_values": draw.enter(forms, a_values)}
        if b_values is not None:
            values["b_values"] = draw.enter(forms, b_values)
        found = getattr(mgpu, name)(a, b, **values, size=size, duplicates=duplicates, fill_value=fill_value, **counts)
        return found._replace(values=draw.leave(forms, found.values))

    def expected(
        a: Any,
        b: Any,
        a_values: Any = None,
        b_values: Any = None,
        fill_value: Any = fill,
        a_count: Any = None,
        b_count: Any = None,
    ) -> list[Any]:
        a_live, b_live = oracle.live_count(a_count, n_a), oracle.live_count(b_count, n_b)
        a_ranks, b_ranks, _ = draw.ranked(False, a, b)
        sources = oracle.set_sources(name, a_ranks[:a_live], b_ranks[:b_live])
        count = int32(len(sources))
        sources = np.where(sources >= a_live, sources - a_live + n_a, sources)[:slots]
        keys = [
            oracle.padded(x[sources], slots, np.asarray(fill_value).astype(x.dtype))
            for x in jax.tree.leaves(both(a, b))
        ]
        values = both(a_values, b_values) if takes_b and forms is not None else a_values
        return [*keys, *filled(forms, values, sources, slots, fill_value), count]

    names = ("a_values", "b_values") if takes_b else ("a_values",)
    return Call(
        name, function, draw_operands, expected, shape.x64, differentiable_of(shape, forms, *names), finite=shape.finite
    )


def _distinct(shape: Shape, rng: np.random.Generator, keys: np.ndarray, live: int) -> np.ndarray:
    """Keys whose live ones are replaced by as many distinct ones in order, from the whole type."""
    word = np.dtype(f"u{keys.dtype.itemsize}")
    bits = 8 * min(word.itemsize, 4)
    whole = bits == 8 or (bits == 16 and live > 5000)
    codes = np.arange(2**bits) if whole else rng.integers(0, 2**bits, 3 * live + 64)
    if word.itemsize == 8:
        codes = (codes.astype(np.uint64) << np.uint64(32)) | codes.astype(np.uint64)
    pool = np.concatenate([codes.astype(word).view(keys.dtype), keys[:live]])
    if shape.finite:
        with np.errstate(invalid="ignore"):
            pool = pool[np.isfinite(pool.astype(np.float64))]
    first = np.unique(oracle.rank(pool), return_index=True)[1]
    out = keys.copy()
    out[:live] = pool[first[np.sort(rng.choice(len(first), live, replace=False))]]
    return out


def join(shape: Shape) -> Call:
    """join, and join_columns of its rows."""
    dtype, kind = shape.key_form(), shape.choice(("inner", "left", "right", "outer"))
    n_a, n_b = shape.size(), shape.size()
    if shape.flag(0.15) and not shape.derivative:
        n_a = shape.choice((128, 256))  # a narrow type of indices holds each of them, and no number more
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
        a_rows = max(n_a - 2, 0)  # rows of the join that point past the columns have nothing from them
        shape.say("short")
    traced_fill = columns and shape.flag(0.2) and not shape.derivative
    count_dtype = np.int64 if shape.x64 and max(1, n_a) * max(1, n_b) + n_a + n_b > INT32_LARGEST else np.int32
    shape.say(kind, f"size={size}", "columns" if columns else "")

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        a_live, b_live = draw.drawn(a_count, rng), draw.drawn(b_count, rng)
        a, b = draw.sorted_pair(shape, rng, dtype, n_a, n_b, False, *((None, None) if apart else (a_live, b_live)))
        operands = names_of("join", a=a, b=b, a_count=a_live, b_count=b_live)
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
        rows = mgpu.join(a, b, kind, size=size, a_count=a_count, b_count=b_count)
        if not columns:
            return rows
        entered = draw.enter(a_forms, a_columns), draw.enter(b_forms, b_columns)
        found = mgpu.join_columns(rows, *entered, **{"fill_value": fill, **others})
        found = found._replace(a=draw.leave(a_forms, found.a), b=draw.leave(b_forms, found.b))
        return rows, found

    def expected(
        a: Any, b: Any, a_columns: Any = None, b_columns: Any = None, a_count: Any = None, b_count: Any = None,
        a_order: Any = None, b_order: Any = None, fill_value: Any = fill,
    ) -> list[Any]:  # fmt: skip
        a_live, b_live = oracle.live_count(a_count, n_a), oracle.live_count(b_count, n_b)
        a_ranks, b_ranks, _ = draw.ranked(False, a, b)
        total, rows = first_rows(kind, a_ranks[:a_live], b_ranks[:b_live], size)
        if count_dtype == np.int32:
            total = min(total, INT32_LARGEST)
        padded = oracle.padded(rows, size, -1)
        leaves: list[Any] = [int32(padded[:, 0]), int32(padded[:, 1]), np.asarray(total, count_dtype)]
        if not columns:
            return leaves
        padded[padded[:, 0] >= a_rows, 0] = -1
        for side, forms, values, order in ((0, a_forms, a_columns, a_order), (1, b_forms, b_columns, b_order)):
            leaves += _columns(forms, values, padded[:, side], order, fill_value)
        return [*leaves, padded[:, 0] < 0, padded[:, 1] < 0]

    names = differentiable_of(shape, a_forms, "a_columns") + differentiable_of(shape, b_forms, "b_columns")
    return Call("join", function, draw_operands, expected, shape.x64, names, finite=shape.finite)


def first_rows(kind: str, a: np.ndarray, b: np.ndarray, size: int) -> tuple[int, np.ndarray]:
    """The number of rows of a join, and the first of them: only as many rows of A as these take are joined."""
    ranks = oracle.rank(np.concatenate([a, b]))
    found = [np.searchsorted(ranks[len(a) :], ranks[: len(a)], side) for side in ("left", "right")]
    matches = (found[1] - found[0]).astype(np.int64)
    made = np.maximum(matches, 1) if kind in ("left", "outer") else matches
    alone = int((~np.isin(ranks[len(a) :], ranks[: len(a)])).sum()) if kind in ("right", "outer") else 0
    total = int(made.sum()) + alone
    if total <= 4 * size + 1000:
        return total, oracle.join_rows(kind, a, b)[:size]
    few = int(np.searchsorted(np.cumsum(made), size)) + 1
    rows = oracle.join_rows({"right": "inner", "outer": "left"}.get(kind, kind), a[:few], b)[:size]
    if len(rows) < size:  # B's rows without a partner
        rows = oracle.join_rows(kind, a, b)[:size]
    return total, rows


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
