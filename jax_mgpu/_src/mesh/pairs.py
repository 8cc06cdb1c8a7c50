"""Operations on two sorted arrays over a mesh axis: both are cut into parts that are problems of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.live import live_items, live_mask
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.exchange import Parts, exchange
from jax_mgpu._src.mesh.splitters import Sorted, cut_at, edges_of, even_ranks
from jax_mgpu._src.sets import TAKES_B, Kind, SetResult, _operate
from jax_mgpu._src.sorted_search import SortedMatch
from jax_mgpu._src.sorted_search import sorted_search as local_search
from jax_mgpu._src.values import flatten_pair, flatten_values

__all__ = ["set_operation", "sorted_equal_count", "sorted_match", "sorted_search"]


class _Cut:
    """Two sorted arrays, dealt out again so that all devices have equally many items of both together.

    The first one's items come before equal ones of the second; with `pairs`, the r-th copies of a key are together.
    `parts` are those of either, `keys` what this device has got, `counts` how many, and `before` how many items all
    earlier devices have got.
    """

    def __init__(self, axis: Axis, arrays: Sequence[jax.Array], counts: Sequence[Any], *, pairs: bool = False):
        slots = sum(x.shape[0] for x in arrays) + pairs  # a pair that a cut would part comes late
        dtype = axis.index_dtype("a and b", slots)
        live = [live_items(x.shape[0], count, dtype) for x, count in zip(arrays, counts, strict=True)]
        every = axis.gather(jnp.stack(live))
        sequences = [Sorted(x, jnp.zeros_like(n), n) for x, n in zip(arrays, live, strict=True)]
        cuts = cut_at(axis, sequences, even_ranks(axis, every.sum(dtype=dtype)), pairs=pairs)
        edges = [edges_of(cuts[i], every[:, i]) for i in (0, 1)]
        self.parts = [Parts.between(axis, e, slots) for e in edges]
        self.keys = [exchange(p, [x])[0] for p, x in zip(self.parts, arrays, strict=True)]
        self.counts = [p.runs[-1] for p in self.parts]
        self.before = [e[:, axis.index].sum(dtype=dtype) for e in edges]


def _places(axis: Axis, a: jax.Array, b: jax.Array, counts: Sequence[Any], wanted: Sequence[int]) -> list[jax.Array]:
    """Of a's items the lower bounds in b, and of b's the upper bounds in a, each where its item lies; -1 elsewhere."""
    cut = _Cut(axis, (a, b), counts)
    results = []
    for side in wanted:
        mine, other = side, 1 - side
        found = local_search(
            cut.keys[mine],
            cut.keys[other],
            "right" if side else "left",
            needles_count=cut.counts[mine],
            haystack_count=cut.counts[other],
        )
        n = (a, b)[side].shape[0]
        (back,) = exchange(cut.parts[mine].back(n), [found.astype(cut.before[other].dtype) + cut.before[other]])
        results.append(jnp.where(live_mask(n, counts[side]), back, -1))
    return results


def sorted_search(
    axis: Axis, needles: Any, haystack: Any, needles_count: Any, haystack_count: Any, *, right: bool
) -> Any:
    """Each needle's insertion point in the global haystack, where the needle lies."""
    if right:
        return _places(axis, haystack, needles, (haystack_count, needles_count), (1,))[0]
    return _places(axis, needles, haystack, (needles_count, haystack_count), (0,))[0]


def sorted_equal_count(axis: Axis, a: Any, b: Any, a_count: Any, b_count: Any) -> jax.Array:
    """How many items of the global b equal each item of a."""
    low, high = (sorted_search(axis, a, b, a_count, b_count, right=right) for right in (False, True))
    return high - low


def sorted_match(axis: Axis, a: Any, b: Any, a_count: Any, b_count: Any, *, right: bool) -> SortedMatch:
    """Both arrays looked up in each other; the numbers of matches are those of all devices."""
    a_low, b_high = _places(axis, a, b, (a_count, b_count), (0, 1))
    b_low, a_high = _places(axis, b, a, (b_count, a_count), (0, 1))
    a_match, b_match = a_low < a_high, b_low < b_high
    totals = [axis.sum(jnp.sum(match, dtype=a_low.dtype)) for match in (a_match, b_match)]
    indices = (a_high, b_low) if right else (a_low, b_high)
    return SortedMatch(*indices, a_match, b_match, *totals)


def set_operation(
    axis: Axis,
    kind: Kind,
    a: Any,
    b: Any,
    a_values: Any,
    b_values: Any,
    a_count: Any,
    b_count: Any,
    *,
    size: int | None,
    duplicates: bool,
    fill_value: Any,
) -> SetResult:
    """Each device's part of the result. Balanced path makes its operands multisets of their own."""
    name, n_a, n_b = axis.operation, a.shape[0], b.shape[0]
    if size is None:  # what a part can hold at most
        size = (n_a + n_b + 1) // 2 if kind == Kind.INTERSECTION else n_a + n_b
    if kind in TAKES_B:
        a_leaves, b_leaves, unflatten = flatten_pair(name, a_values, b_values, n_a, n_b)
    else:
        a_leaves, unflatten = flatten_values(name, "a_values", a_values, n_a, "a")
        b_leaves = []
    cut = _Cut(axis, (a, b), (a_count, b_count), pairs=True)
    a_moved, b_moved = (exchange(p, leaves) for p, leaves in zip(cut.parts, (a_leaves, b_leaves), strict=True))
    values = [None, None] if a_values is None else [unflatten(a_moved), unflatten(b_moved) if b_moved else None]
    (a, b), (of_a, of_b) = cut.keys, values
    return _operate(name, kind, a, b, of_a, of_b, size, duplicates, fill_value, True, (cut.counts[0], cut.counts[1]))
