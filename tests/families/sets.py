from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.examples import ASCENDING, KEYS, Example, at_most, broken_columns, few, integer_to, keys_in, live, numbers
from tests.fuzz import draw
from tests.fuzz.draw import Call, Shape, names_of
from tests.fuzz.shared import both, differentiable_of, directed, filled, int32, ranks_in
from tests.many_items import bytes_by_count, bytes_of, counts_of

EXAMPLES = {
    "set_union, values": Example(
        lambda a, b, a_values, b_values: mgpu.set_union(a, b, a_values, b_values, size=80),
        lambda rng, real: (few(rng), few(rng, 40, 17), numbers(rng, real), numbers(rng, real, 40)),
        differentiable=(2, 3),
    ),
    "set_union, columns": Example(
        lambda a, b, x, a_count: mgpu.set_union((a, a, x), (b, b, b), size=80, a_count=a_count),
        lambda rng, real: (few(rng), few(rng, 40), few(rng), live(rng)),
        counts=(3,),
        composed=True,
    ),
    **{
        f"set_{kind}": Example(
            lambda a, b, a_count, b_count, call=f"set_{kind}": getattr(mgpu, call)(
                a, b, a_count=a_count, b_count=b_count
            ),
            lambda rng, real: (few(rng), few(rng, 40), live(rng), live(rng, 40)),
            counts=(2, 3),
        )
        for kind in ("difference", "intersection", "symmetric_difference", "union")
    },
}

GARBAGE = {
    **{
        f"set_{kind}": lambda keys, repeated, indices, wild, call=f"set_{kind}": getattr(mgpu, call)(keys, repeated)
        for kind in ("difference", "intersection", "symmetric_difference", "union")
    },
}

BROKEN = {
    "set_union: a": (
        lambda: mgpu.set_union(np.array([1, 1, 2], np.int32), ASCENDING, duplicates=False),
        "unique keys in ascending order",
        1,
    ),
    **{
        f"{call.__name__}: {argument}": (functools.partial(call, **{"a": ASCENDING, "b": ASCENDING} | given), *expected)
        for call in (mgpu.set_difference, mgpu.set_intersection, mgpu.set_symmetric_difference, mgpu.set_union)
        for argument, given, *expected in (
            *(() if call is mgpu.set_union else (("a", {"a": KEYS}, keys_in("ascending"), 2),)),
            ("b", {"b": KEYS}, keys_in("ascending"), 2),
            ("a_count", {"a_count": 7}, integer_to(6), 0),
            ("b_count", {"b_count": 7}, integer_to(6), 0),
            ("size", {"b": ASCENDING[::2], "size": 1}, at_most(1), 0),
        )
    },
    **broken_columns(mgpu.set_union, 3),
}


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def set_operation(call, count_of):
    def run(n, index):
        a_counts, b_counts = counts_of(bytes_of(n)), counts_of(bytes_of(1000))
        counts = count_of(a_counts, b_counts)
        got = call(bytes_by_count(a_counts), bytes_by_count(b_counts))
        assert got.count == counts.sum()
        assert np.array_equal(np.asarray(got.keys)[: int(got.count)], bytes_by_count(counts))

    return run


LARGE_WITH_INDICES = {
    "set_difference": set_operation(mgpu.set_difference, lambda a, b: np.maximum(a - b, 0)),
    "set_intersection": set_operation(mgpu.set_intersection, np.minimum),
    "set_symmetric_difference": set_operation(mgpu.set_symmetric_difference, lambda a, b: abs(a - b)),
    "set_union": set_operation(mgpu.set_union, np.maximum),
}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def sets(shape: Shape) -> Call:
    name = "set_" + shape.choice(("intersection", "union", "difference", "symmetric_difference"))
    takes_b = name in ("set_union", "set_symmetric_difference")
    (dtype, descending), duplicates = directed(shape), shape.flag(0.75)
    n_a, n_b = shape.size(), shape.size()
    if isinstance(dtype, draw.Columns):
        duplicates = True
    else:
        duplicates |= max(n_a, n_b) > 200 and jnp.dtype(dtype).itemsize == 1  # a narrow type has too few distinct keys
    a_count, b_count, forms = shape.count(n_a), shape.count(n_b), shape.values()
    default = {"set_intersection": min(n_a, n_b), "set_difference": n_a}.get(name, n_a + n_b)
    size = shape.choice((None, None, 0, default // 2, default + 3))
    fill = shape.choice((0, 0, 3, 1))
    traced_fill = shape.flag(0.2) and not shape.derivative
    slots = default if size is None else size
    shape.say(name, f"size={size}", f"duplicates={duplicates}", f"fill={fill}{' traced' * traced_fill}")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        a_live, b_live = draw.drawn(a_count, rng), draw.drawn(b_count, rng)
        if mixable:
            live_a, live_b = n_a, n_b
        else:
            live_a, live_b = oracle.live_count(a_live, n_a), oracle.live_count(b_live, n_b)
        a, b = draw.sorted_pair(shape, rng, dtype, n_a, n_b, descending, live_a, live_b)
        if not duplicates:
            a, b = (_distinct(shape, rng, x, live, descending) for x, live in ((a, live_a), (b, live_b)))
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
        options = {"size": size, "duplicates": duplicates, "descending": descending, "fill_value": fill_value}
        found = getattr(mgpu, name)(a, b, **values, **options, **counts)
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
        a_ranks, b_ranks = ranks_in(descending, a, b)
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


def _distinct(shape: Shape, rng: np.random.Generator, keys: np.ndarray, live: int, descending: bool) -> np.ndarray:
    """Draws distinct live keys."""
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
    out[:live] = pool[first[np.sort(rng.choice(len(first), live, replace=False))]][:: -1 if descending else 1]
    return out


DRAWN = {"sets": sets}
