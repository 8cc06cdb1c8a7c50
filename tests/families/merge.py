from __future__ import annotations

from typing import Any

import jax
import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.examples import (
    ASCENDING,
    KEYS,
    Example,
    N,
    ascending,
    broken_columns,
    few,
    integer_to,
    keys_in,
    live,
    numbers,
)
from tests.fuzz import draw
from tests.fuzz.draw import Call, Shape, names_of
from tests.fuzz.shared import both, differentiable_of, directed, filled
from tests.many_items import bytes_by_count, bytes_of, counts_of, same

EXAMPLES = {
    "merge": Example(
        lambda a, b, a_count, b_count: mgpu.merge(a, b, a_count=a_count, b_count=b_count),
        lambda rng, real: (ascending(rng, real), ascending(rng, real, 40) + real(0.5), live(rng), live(rng, 40)),
        differentiable=(0, 1),
        counts=(2, 3),
    ),
    # If each column is sorted, so are the tuples, whichever columns a batch combines.
    "merge, columns": Example(
        lambda a, x, b, y, a_count, b_count: mgpu.merge((a, x), (b, y), a_count=a_count, b_count=b_count),
        lambda rng, real: (
            *(few(rng), ascending(rng, real), few(rng, 40), ascending(rng, real, 40) + real(0.5)),
            *(live(rng), live(rng, 40)),
        ),
        differentiable=(1, 3),
        counts=(4, 5),
        composed=True,
    ),
    "merge, values": Example(
        lambda a, b, a_values, b_values: mgpu.merge(a, b, {"v": a_values}, {"v": b_values}),
        lambda rng, real: (few(rng), few(rng, 40), numbers(rng, real, N, 2), numbers(rng, real, 40, 2)),
        differentiable=(2, 3),
    ),
}

GARBAGE = {
    "merge": lambda keys, repeated, indices, wild: mgpu.merge(keys, repeated, repeated, keys, a_count=indices[0]),
}

BROKEN = {
    "merge: a": (lambda: mgpu.merge(KEYS, ASCENDING), keys_in("ascending"), 2),
    "merge: b": (
        lambda: mgpu.merge(ASCENDING[::-1].astype(float), np.array([np.nan, 5, 4, np.inf]), descending=True),
        keys_in("descending"),
        3,
    ),
    **{
        f"merge: {count}": (lambda count=count: mgpu.merge(ASCENDING, ASCENDING, **{count: 7}), integer_to(6), 0)
        for count in ("a_count", "b_count")
    },
    **broken_columns(mgpu.merge, 2),
}


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def large_merge(n, index):
    a_counts, b_counts = counts_of(bytes_of(n // 2)), counts_of(bytes_of(n - n // 2))
    same(mgpu.merge(bytes_by_count(a_counts), bytes_by_count(b_counts)), bytes_by_count(a_counts + b_counts))


LARGE = {"merge": large_merge}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def merge(shape: Shape) -> Call:
    dtype, descending = directed(shape)
    n_a, n_b = shape.size(), shape.size()
    a_count, b_count, forms = shape.count(n_a), shape.count(n_b), shape.values()

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        a_live, b_live = draw.drawn(a_count, rng), draw.drawn(b_count, rng)
        lives = (None, None) if mixable else (a_live, b_live)
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


DRAWN = {"merge": merge}
