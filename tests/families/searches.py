"""Searches of sorted arrays in each other: what the tests know of each function."""

from __future__ import annotations

from typing import Any

import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.examples import ASCENDING, KEYS, Argument, Example, ascending, few, integer_to, keys_in, live
from tests.fuzz import draw
from tests.fuzz.draw import Call, Shape, names_of
from tests.fuzz.shared import int32
from tests.many_items import bytes_by_count, bytes_of, counts_of, same_repeated, sort_bytes

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
}

GARBAGE = {
    "sorted_search": lambda keys, few, near, far: mgpu.sorted_search(keys, few),
    "sorted_match": lambda keys, few, near, far: mgpu.sorted_match(keys, few, a_count=near[0]),
    "sorted_equal_count": lambda keys, few, near, far: mgpu.sorted_equal_count(keys, few),
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
}

ARGUMENTS = {"sorted_search: fill_value": Argument("index fill")}


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


LARGE_WITH_INDICES = {
    "sorted_search": large_sorted_search,
    "sorted_match": large_sorted_match,
    "sorted_equal_count": large_sorted_equal_count,
}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


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


DRAWN = {"search": searches}
