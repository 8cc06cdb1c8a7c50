from __future__ import annotations

from typing import Any

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
    columns_with,
    few,
    integer_to,
    keys_in,
    live,
    segments_apart,
)
from tests.fuzz import draw
from tests.fuzz.draw import Call, Shape, names_of
from tests.fuzz.shared import directed, int32, ranks_in, segments_with_gaps
from tests.many_items import bytes_by_count, bytes_of, counts_of, pieces, same, same_repeated, sort_bytes, spots

ROWS = np.array([0, 20, 20, 45, N], np.int32)  # one segment is empty, one head is padding


def in_rows(rng: np.random.Generator, dtype: Any) -> np.ndarray:
    """Draws keys that are sorted within each segment of ROWS."""
    return np.concatenate([np.sort(part) for part in np.split(rng.integers(0, 40, N), ROWS[1:])]).astype(dtype)


EXAMPLES = {
    "sorted_search": Example(
        lambda needles, haystack, needles_count, haystack_count: mgpu.sorted_search(
            needles, haystack, needles_count=needles_count, haystack_count=haystack_count
        ),
        lambda rng, real: (ascending(rng, real, 40), ascending(rng, real), live(rng, 40), live(rng)),
        counts=(2, 3),
    ),
    "sorted_match": Example(
        lambda a, b, a_count, b_count: mgpu.sorted_match(a, b, "right", a_count=a_count, b_count=b_count),
        lambda rng, real: (few(rng), few(rng, 40), live(rng), live(rng, 40)),
        counts=(2, 3),
    ),
    "sorted_equal_count": Example(
        lambda a, b, a_count, b_count: mgpu.sorted_equal_count(a, b, a_count=a_count, b_count=b_count),
        lambda rng, real: (few(rng), few(rng, 40), live(rng), live(rng, 40)),
        counts=(2, 3),
    ),
    "search": Example(
        lambda needles, haystack, count: mgpu.search(needles, haystack, "right", count=count),
        lambda rng, real: (rng.integers(0, 250, 50).astype(real), ascending(rng, real), live(rng)),
        counts=(2,),
    ),
    "search, columns": Example(
        lambda needles, haystack: mgpu.search((needles, needles), (haystack, haystack)),
        lambda rng, real: (rng.integers(0, 14, 50).astype(np.int32), few(rng)),
        composed=True,
    ),
    "segmented_search": Example(
        lambda needles, ids, haystack, heads, needles_count, haystack_count: mgpu.segmented_search(
            needles, ids, haystack, heads, needles_count=needles_count, haystack_count=haystack_count
        ),
        lambda rng, real: (
            rng.integers(0, 40, 50).astype(real),
            rng.integers(-1, 6, 50).astype(np.int32),
            in_rows(rng, real),
            ROWS,
            live(rng, 50),
            live(rng),
        ),
        counts=(4, 5),
    ),
    "segmented_search, ends": Example(
        lambda needles, ids, haystack, heads, ends: mgpu.segmented_search(
            (needles, needles), ids, (haystack, haystack), heads, "right", ends=ends, fill_value=7
        ),
        lambda rng, real: (few(rng, 40), rng.integers(-1, 7, 40).astype(np.int32), few(rng), *segments_apart(rng)),
        composed=True,
    ),
}

GARBAGE = {
    "sorted_search": lambda keys, repeated, indices, wild: mgpu.sorted_search(keys, repeated),
    "sorted_match": lambda keys, repeated, indices, wild: mgpu.sorted_match(keys, repeated, a_count=indices[0]),
    "sorted_equal_count": lambda keys, repeated, indices, wild: mgpu.sorted_equal_count(keys, repeated),
    "search": lambda keys, repeated, indices, wild: mgpu.search(keys, repeated, count=indices[0]),
    "segmented_search": lambda keys, repeated, indices, wild: mgpu.segmented_search(
        keys, repeated, keys, indices, ends=wild, needles_count=wild[0], haystack_count=indices[0]
    ),
}

BROKEN = {
    "sorted_search: needles": (lambda: mgpu.sorted_search(KEYS, ASCENDING), keys_in("ascending"), 2),
    "sorted_search: haystack": (lambda: mgpu.sorted_search(ASCENDING, KEYS), keys_in("ascending"), 2),
    "sorted_match: a": (lambda: mgpu.sorted_match(KEYS, ASCENDING), keys_in("ascending"), 2),
    "sorted_match: b": (lambda: mgpu.sorted_match(ASCENDING, KEYS), keys_in("ascending"), 2),
    "sorted_equal_count: b": (lambda: mgpu.sorted_equal_count(ASCENDING, KEYS), keys_in("ascending"), 2),
    "sorted_equal_count: a": (lambda: mgpu.sorted_equal_count(KEYS, ASCENDING), keys_in("ascending"), 2),
    **{
        f"{call.__name__}: {count}": (
            lambda call=call, count=count: call(ASCENDING, ASCENDING, **{count: 7}),
            integer_to(6),
            0,
        )
        for call, counts in (
            (mgpu.sorted_search, ("needles_count", "haystack_count")),
            (mgpu.sorted_match, ("a_count", "b_count")),
            (mgpu.sorted_equal_count, ("a_count", "b_count")),
        )
        for count in counts
    },
    "search: haystack": (lambda: mgpu.search(ASCENDING, KEYS), keys_in("ascending"), 2),
    **{
        f"search: haystack[{i}]": (
            lambda i=i: mgpu.search(columns_with(KEYS, i, 2), columns_with(KEYS, i, 2)),
            f"{keys_in('ascending')}{', where the columns before are equal' * i}",
            2,
        )
        for i in range(2)
    },
    "search: count": (lambda: mgpu.search(KEYS, ASCENDING, count=7), integer_to(6), 0),
    "segmented_search: haystack": (
        lambda: mgpu.segmented_search(ASCENDING, ASCENDING, KEYS, [0, 2]),
        f"{keys_in('ascending')} within segments",
        4,
    ),
    **{
        f"segmented_search: haystack[{i}]": (
            lambda i=i: mgpu.segmented_search(
                columns_with(KEYS, i, 2), ASCENDING, columns_with(KEYS, i, 2), [1, 2], ends=[2, 5]
            ),
            f"{keys_in('ascending')} within segments{', where the columns before are equal' * i}",
            4,
        )
        for i in range(2)
    },
    "segmented_search: heads": (lambda: mgpu.segmented_search(KEYS, KEYS, ASCENDING, [0, 2, 1]), HEADS, 2),
    "segmented_search: ends": (
        lambda: mgpu.segmented_search(KEYS, KEYS, ASCENDING, [0, 2, 2, 5], ends=[2, 2, 6, 9]),
        "segments that do not overlap",
        2,
    ),
    "segmented_search: needles_count": (
        lambda: mgpu.segmented_search(KEYS, KEYS, ASCENDING, [0], needles_count=7),
        integer_to(6),
        0,
    ),
    "segmented_search: haystack_count": (
        lambda: mgpu.segmented_search(KEYS, KEYS, ASCENDING, [0], haystack_count=-1),
        integer_to(6),
        0,
    ),
}

ARGUMENTS = {f"{name}: fill_value": Argument("index fill") for name in ("sorted_search", "segmented_search")}


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def large_sorted_search(n, index):
    needles, haystack = sort_bytes(bytes_of(1000)), sort_bytes(bytes_of(n))
    assert np.array_equal(mgpu.sorted_search(needles, haystack, "right"), np.searchsorted(haystack, needles, "right"))


def large_sorted_match(n, index):
    counts = counts_of(bytes_of(n))
    a, b = bytes_by_count(counts), np.arange(0, 256, 2, dtype=np.uint8)
    got = mgpu.sorted_match(a, b)
    same_repeated(got.a_index, np.searchsorted(b, np.arange(256)).astype(got.a_index.dtype), counts)
    assert np.array_equal(got.b_index, np.cumsum(counts)[b])
    assert got.a_match_count == counts[::2].sum()
    assert got.b_match_count == (counts[::2] > 0).sum()


def large_sorted_equal_count(n, index):
    a, counts = sort_bytes(bytes_of(1000)), counts_of(bytes_of(n))
    assert np.array_equal(mgpu.sorted_equal_count(a, bytes_by_count(counts)), counts[a])


def large_search(n, index):
    needles, haystack = bytes_of(1000), sort_bytes(bytes_of(n))
    assert np.array_equal(mgpu.search(needles, haystack), np.searchsorted(haystack, needles))


def large_segmented_search(n, index):
    x, heads = bytes_of(n), spots(n, index)
    haystack = np.concatenate([sort_bytes(part) for part in pieces(x, heads)])
    needles, ids = bytes_of(1000), np.arange(1000) % len(heads)
    got = mgpu.segmented_search(needles, ids, haystack, heads)
    found = [
        heads[i] + np.searchsorted(haystack[heads[i] : np.append(heads, n)[i + 1]], needle)
        for needle, i in zip(needles, ids, strict=True)
    ]
    same(got, np.array(found, np.int32 if n < 2**31 else np.int64))


LARGE_WITH_INDICES = {
    "sorted_search": large_sorted_search,
    "sorted_match": large_sorted_match,
    "sorted_equal_count": large_sorted_equal_count,
    "search": large_search,
    "segmented_search": large_segmented_search,
}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def searches(shape: Shape) -> Call:
    name = shape.choice(("sorted_search", "sorted_match", "sorted_equal_count", "segmented_search", "search"))
    if name in ("segmented_search", "search"):
        return segmented_searches(shape) if name == "segmented_search" else searches_in_any_order(shape)
    one, other = ("needles", "haystack") if name == "sorted_search" else ("a", "b")
    (dtype, descending), side = directed(shape), shape.choice(("left", "right"))
    n_a, n_b = shape.size(), shape.size()
    a_count, b_count = shape.count(n_a), shape.count(n_b)
    options: dict[str, Any] = {} if name == "sorted_equal_count" else {"side": side}
    options |= {} if name == "sorted_search" else {"descending": descending}
    fill = shape.choice((-1, -1, n_b, 0))
    if name == "sorted_search" and fill != -1:
        options["fill_value"] = fill
    shape.say(side, f"fill={fill}")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        a_live, b_live = draw.drawn(a_count, rng), draw.drawn(b_count, rng)
        lives = (None, None) if mixable else (a_live, b_live)
        a, b = draw.sorted_pair(shape, rng, dtype, n_a, n_b, options.get("descending", False), *lives)
        return names_of(name, **{one: a, other: b, f"{one}_count": a_live, f"{other}_count": b_live})

    def function(**operands: Any) -> Any:
        return getattr(mgpu, name)(**operands, **options)

    def expected(**operands: Any) -> list[Any]:
        a, b, a_live, b_live = (operands.get(x) for x in (one, other, f"{one}_count", f"{other}_count"))
        a, b = ranks_in(options.get("descending", False), a, b)

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


def found_in_segments(
    needles: np.ndarray,
    ids: np.ndarray,
    haystack: np.ndarray,
    heads: np.ndarray,
    side: str = "left",
    ends: np.ndarray | None = None,
    needles_count: int | None = None,
    haystack_count: int | None = None,
) -> np.ndarray:
    """Returns each needle's insertion point in its segment, -1 without a segment."""
    n, live = oracle.live_count(needles_count, len(needles)), oracle.live_count(haystack_count, len(haystack))
    ranks, rows = np.split(oracle.rank(np.concatenate([needles, haystack[:live]])), [len(needles)])
    begins = [min(max(int(head), 0), live) for head in heads]
    stops = [*begins[1:], live][: len(begins)] if ends is None else [min(int(end), live) for end in ends]
    found = np.full(len(needles), -1)
    for i, segment in enumerate(ids[:n].tolist()):
        if 0 <= segment < len(begins):
            begin = begins[segment]
            found[i] = begin + np.searchsorted(rows[begin : max(begin, stops[segment])], ranks[i], side)
    return found


def reordered(keys: Any, order: np.ndarray) -> Any:
    return tuple(x[order] for x in keys) if isinstance(keys, tuple) else keys[order]


def segmented_searches(shape: Shape) -> Call:
    dtype, side, gaps = shape.key_form(), shape.choice(("left", "right")), shape.flag(0.3)
    n, size = shape.size(), shape.size()
    m = shape.choice((0, 1, 3, size // 5, size // 2, size, size + 3))
    ids_dtype, head_dtype = shape.index_dtype(0), shape.index_dtype(0)
    needles_count, haystack_count = shape.count(n), shape.count(size)
    fill = shape.choice((-1, -1, size, 0))
    shape.say(side, f"m={m}", "ends" if gaps else "", f"fill={fill}")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        needles_live, live = draw.drawn(needles_count, rng), draw.drawn(haystack_count, rng)
        if gaps:
            segments = segments_with_gaps(rng, m, size, head_dtype, mixable)
        else:
            segments = {"heads": draw.positions(rng, m, size, head_dtype)}
        needles, haystack = draw.sorted_pair(shape, rng, dtype, n, size, False, None, None)
        needles = reordered(needles, rng.permutation(n))
        if not mixable:  # else one sorted haystack serves the segments of all draws
            haystack = reordered(haystack, rng.permutation(size))
            inside = segments["heads"] < size
            heads, ends = (
                x[inside].astype(np.int64) if x is not None else None for x in map(segments.get, ("heads", "ends"))
            )
            ranks, _ = draw.ranked(False, haystack)
            haystack = reordered(haystack, oracle.segmented_sort_indices(ranks, heads, False, live, ends))
        limits = np.iinfo(ids_dtype)
        ids = rng.integers(max(-2, limits.min), min(m + 2, limits.max), n).astype(ids_dtype)
        counts = {"needles_count": needles_live, "haystack_count": live}
        return names_of("segmented_search", needles=needles, ids=ids, haystack=haystack, **segments, **counts)

    def function(**operands: Any) -> Any:
        return mgpu.segmented_search(side=side, fill_value=fill, **operands)

    def expected(needles: Any, ids: Any, haystack: Any, heads: Any, **others: Any) -> list[Any]:
        needles, haystack, _ = draw.ranked(False, needles, haystack)
        found = found_in_segments(needles, ids, haystack, heads, side, **others)
        return [int32(np.where(found < 0, fill, found))]

    return Call("segmented_search", function, draw_operands, expected, shape.x64, (), finite=shape.finite)


def searches_in_any_order(shape: Shape) -> Call:
    dtype, side, n, m = shape.key_form(), shape.choice(("left", "right")), shape.size(), shape.size()
    count = shape.count(m)
    shape.say(side)

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        live = draw.drawn(count, rng)
        needles, haystack = draw.sorted_pair(shape, rng, dtype, n, m, False, None, None if mixable else live)
        return names_of("search", needles=reordered(needles, rng.permutation(n)), haystack=haystack, count=live)

    def function(**operands: Any) -> Any:
        return mgpu.search(side=side, **operands)

    def expected(needles: Any, haystack: Any, count: Any = None) -> list[Any]:
        needles, haystack, _ = draw.ranked(False, needles, haystack)
        return [int32(oracle.sorted_search(needles, haystack, side, None, count))]

    return Call("search", function, draw_operands, expected, shape.x64, (), finite=shape.finite)


DRAWN = {"search": searches}
