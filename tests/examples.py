"""Calls of each public operation, for the tests that hold for all of them: one valid, one of any values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.core
import numpy as np

import jax_mgpu as mgpu


@dataclasses.dataclass(frozen=True)
class Example:
    """A call of an operation.

    Attributes:
      call: the operation over positional array arguments.
      make: valid arguments, always of the same shapes: (generator, float dtype of what is differentiable).
      differentiable: positions of the arguments that have derivatives.
      counts: positions of the live counts.
      exact: whether a batch gives the bits of the single calls (float sums may be ordered otherwise).
      composed: whether it is made of operations that have examples of their own. It takes part in the tests that can
        find what a composition does wrong; the others are about the rules of kernels.
      function: whether an argument is a function: called outside jit, the operation is then several programs.
    """

    call: Callable[..., Any]
    make: Callable[[np.random.Generator, Any], tuple[Any, ...]]
    differentiable: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    exact: bool = True
    composed: bool = False
    function: bool = False


def kernel_calls(function: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
    """The equations of a program that call kernels, those of inner programs too."""

    def walk(jaxpr: Any) -> Iterator[Any]:
        for equation in jaxpr.eqns:
            if equation.primitive.name.startswith("mgpu_"):
                yield equation
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from walk(inner)

    return walk(jax.make_jaxpr(function)(*arguments).jaxpr)


N = 60


def distinct(rng: np.random.Generator, dtype: Any, n: int = N) -> np.ndarray:
    """Keys far apart, so that finite differences keep their order."""
    return rng.permutation(n).astype(dtype)


def ascending(rng: np.random.Generator, dtype: Any, n: int = N) -> np.ndarray:
    """Sorted keys far apart."""
    return np.sort(rng.choice(4 * n, n, replace=False)).astype(dtype)


def few(rng: np.random.Generator, n: int = N, values: int = 13) -> np.ndarray:
    """Sorted keys with many ties."""
    return np.sort(rng.integers(0, values, n)).astype(np.int32)


def numbers(rng: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray:
    """Numbers of either sign."""
    return rng.normal(size=shape or N).astype(dtype)


def positions(rng: np.random.Generator, m: int = 6, n: int = N) -> np.ndarray:
    """Sorted positions, the last of them padding."""
    return np.append(np.sort(rng.integers(0, n, m - 1)), n).astype(np.int32)


def unique_positions(rng: np.random.Generator, m: int = 20, n: int = N) -> np.ndarray:
    """Sorted positions without repeats."""
    return np.sort(rng.choice(n, m, replace=False)).astype(np.int32)


def segments_apart(rng: np.random.Generator, m: int = 6, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of segments, with a gap before some of them."""
    heads = unique_positions(rng, m, n)
    ends = np.append(heads[1:], n) - rng.integers(0, 3, m)
    return heads, np.maximum(heads, ends).astype(np.int32)


def by_difference(a: Any, b: Any) -> Any:
    """An order that is no comparison of keys."""
    return a - b < 0


def live(rng: np.random.Generator, n: int = N) -> np.int32:
    """A live count."""
    return np.int32(rng.integers(n // 2, n + 1))


def intervals(rng: np.random.Generator, m: int = 9) -> tuple[np.ndarray, np.ndarray, np.int32]:
    """Starts and offsets of m intervals, and the sum of their lengths, at most 5 m.

    The starts lie 7 apart, so that no interval lies over another, also where a batch pairs the starts of one problem
    with the lengths of the next. The last interval has the last start: it is the one that grows with another problem's
    total. Where scattered intervals overlap, what stays differs from device to device.
    """
    lengths = rng.integers(0, 6, m)
    starts = np.append(rng.permutation(m - 1), m - 1) * 7
    return starts.astype(np.int32), (np.cumsum(lengths) - lengths).astype(np.int32), np.int32(lengths.sum())


EXAMPLES = {
    "argsort": Example(
        lambda keys, count: mgpu.argsort(keys, count=count),
        lambda rng, real: (few(rng), live(rng)),
        counts=(1,),
    ),
    "bincount": Example(
        lambda ids, weights: (mgpu.bincount(ids, 9), mgpu.bincount(ids, 9, weights)),
        lambda rng, real: (rng.integers(-1, 10, N).astype(np.int32), numbers(rng, real)),
        differentiable=(1,),
        exact=False,
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
    "bulk_insert": Example(
        lambda x, indices, values, count: mgpu.bulk_insert(x, indices, values, count=count),
        lambda rng, real: (numbers(rng, real), positions(rng, 20), numbers(rng, real, 20), live(rng)),
        differentiable=(0, 2),
        counts=(3,),
    ),
    "bulk_remove": Example(
        lambda x, indices, count: mgpu.bulk_remove(x, indices, count=count),
        lambda rng, real: (numbers(rng, real), unique_positions(rng), live(rng)),
        differentiable=(0,),
        counts=(2,),
    ),
    "from_dense": Example(
        lambda x, lengths: mgpu.from_dense(x, lengths, size=40),
        lambda rng, real: (numbers(rng, real, 8, 7), rng.integers(0, 6, 8).astype(np.int32)),
        differentiable=(0,),
        composed=True,
    ),
    "histogram": Example(mgpu.histogram, lambda rng, real: (numbers(rng, real), np.array([-1, 0, 0.5, 2], real))),
    "group_by": Example(
        lambda keys, x, y, count: mgpu.group_by(
            keys, {"x": x, "y": y}, {"x": "max", "y": "first"}, size=20, count=count
        ),
        lambda rng, real: (rng.permutation(few(rng)), distinct(rng, real), numbers(rng, real, N, 2), live(rng)),
        differentiable=(1, 2),
        counts=(3,),
        composed=True,
    ),
    "interval_expand": Example(
        lambda values, offsets, total: mgpu.interval_expand(values, offsets, 64, total=total),
        lambda rng, real: (numbers(rng, real, 9), *intervals(rng)[1:]),
        differentiable=(0,),
        counts=(2,),
    ),
    "interval_expand, rows": Example(
        lambda values, offsets: mgpu.interval_expand(values, offsets, 64),
        lambda rng, real: (numbers(rng, real, 9, 3), intervals(rng)[1]),
        differentiable=(0,),
    ),
    "interval_gather": Example(
        lambda x, starts, offsets, total: mgpu.interval_gather(x, starts, offsets, 64, total=total),
        lambda rng, real: (numbers(rng, real, 70), *intervals(rng)),
        differentiable=(0,),
        counts=(3,),
    ),
    "interval_move": Example(
        lambda x, gather, scatter, offsets, into, total: mgpu.interval_move(
            x, gather, scatter, offsets, into, total=total
        ),
        lambda rng, real: (
            numbers(rng, real, 70),
            rng.integers(0, 20, 9).astype(np.int32),
            (moved := intervals(rng))[0],
            moved[1],
            numbers(rng, real, 80),
            moved[2],
        ),
        differentiable=(0, 4),
        counts=(5,),
    ),
    "interval_scatter": Example(
        lambda x, starts, offsets, into, total: mgpu.interval_scatter(x, starts, offsets, into, total=total),
        lambda rng, real: (
            numbers(rng, real, 64),
            *(moved := intervals(rng))[:2],
            numbers(rng, real, 80),
            moved[2],
        ),
        differentiable=(0, 3),
        counts=(4,),
    ),
    "join": Example(
        lambda a, b, a_count, b_count: mgpu.join(a, b, "outer", size=400, a_count=a_count, b_count=b_count),
        lambda rng, real: (few(rng), few(rng, 40), live(rng), live(rng, 40)),
        counts=(2, 3),
    ),
    "join_columns": Example(
        lambda a, b, a_column, b_column: mgpu.join_columns(
            mgpu.join(a, b, "outer", size=400), a_column, {"b": b_column}
        ),
        lambda rng, real: (few(rng), few(rng, 40), numbers(rng, real), numbers(rng, real, 40, 2)),
        differentiable=(2, 3),
        composed=True,
    ),
    "join, any order": Example(
        lambda a, b, a_count: mgpu.join(a, b, "outer", size=700, assume_sorted=False, a_count=a_count),
        lambda rng, real: (rng.permutation(few(rng)), rng.permutation(few(rng, 40)), live(rng)),
        counts=(2,),
        composed=True,
    ),
    "load_balance_search": Example(
        lambda offsets, total: mgpu.load_balance_search(offsets, 64, total=total, return_rank=True),
        lambda rng, real: intervals(rng)[1:],
        counts=(1,),
    ),
    "locality_sort": Example(
        lambda keys, values, count: mgpu.locality_sort(keys, values, count=count),
        lambda rng, real: (distinct(rng, real), numbers(rng, real), live(rng)),
        differentiable=(0, 1),
        counts=(2,),
    ),
    "locality_sort_indices": Example(
        lambda keys: mgpu.locality_sort_indices(keys, descending=True),
        lambda rng, real: (distinct(rng, real),),
        differentiable=(0,),
    ),
    "merge": Example(
        lambda a, b, a_count, b_count: mgpu.merge(a, b, a_count=a_count, b_count=b_count),
        lambda rng, real: (ascending(rng, real), ascending(rng, real, 40) + real(0.5), live(rng), live(rng, 40)),
        differentiable=(0, 1),
        counts=(2, 3),
    ),
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
    # Columns that are each sorted are so together, whatever a batch pairs.
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
    "mergesort": Example(
        lambda keys, values, count: mgpu.mergesort(keys, values, count=count),
        lambda rng, real: (distinct(rng, real), numbers(rng, real), live(rng)),
        differentiable=(0, 1),
        counts=(2,),
    ),
    "mergesort, columns": Example(
        lambda group, keys, values, count: mgpu.mergesort(
            (group, keys), {"v": values}, descending=(True, False), count=count
        ),
        lambda rng, real: (rng.permutation(few(rng)), distinct(rng, real), numbers(rng, real), live(rng)),
        differentiable=(1, 2),
        counts=(3,),
        composed=True,
    ),
    "mergesort, less": Example(
        lambda keys, values, count: mgpu.mergesort(keys, values, less=by_difference, count=count),
        lambda rng, real: (distinct(rng, real), numbers(rng, real), live(rng)),
        differentiable=(0, 1),
        counts=(2,),
        composed=True,
        function=True,
    ),
    "mergesort, wide columns": Example(
        lambda group, keys, other: mgpu.mergesort((group, keys, other)),
        lambda rng, real: (rng.permutation(few(rng)), distinct(rng, real), few(rng)),
        differentiable=(1,),
        composed=True,
    ),
    "mergesort_indices": Example(
        lambda keys: mgpu.mergesort_indices(keys, descending=True),
        lambda rng, real: (distinct(rng, real),),
        differentiable=(0,),
    ),
    "partition": Example(
        lambda x, keep, count: mgpu.partition({"x": x}, keep, count=count),
        lambda rng, real: (numbers(rng, real), rng.random(N) < 0.5, live(rng)),
        differentiable=(0,),
        counts=(2,),
        composed=True,
    ),
    "quantile": Example(
        lambda x, q, count: mgpu.quantile(x, q, count=count),
        lambda rng, real: (distinct(rng, real), np.array([0.13, 0.5, 0.77], real), live(rng)),
        differentiable=(0,),
        counts=(2,),
        exact=False,
    ),
    "rank": Example(
        lambda keys, heads, count: mgpu.rank(keys, heads, "dense", count=count),
        lambda rng, real: (rng.permutation(few(rng)), positions(rng), live(rng)),
        counts=(2,),
        composed=True,
    ),
    "reduce": Example(
        lambda x, count: mgpu.reduce(x, count=count),
        lambda rng, real: (numbers(rng, real), live(rng)),
        differentiable=(0,),
        counts=(1,),
        exact=False,
    ),
    "reduce, map": Example(
        lambda x, y, count: mgpu.reduce((x, y), map=lambda item: item[0] * item[1], count=count),
        lambda rng, real: (numbers(rng, real), numbers(rng, real), live(rng)),
        differentiable=(0, 1),
        counts=(2,),
        exact=False,
        composed=True,
        function=True,
    ),
    "reduce, max": Example(
        lambda x: mgpu.reduce(x, "max"), lambda rng, real: (distinct(rng, real),), differentiable=(0,)
    ),
    "reduce, argmin": Example(
        lambda x, count: mgpu.reduce(x, "argmin", count=count),
        lambda rng, real: (distinct(rng, real), live(rng)),
        counts=(1,),
    ),
    "reduce, rows": Example(
        lambda x, keep, count: mgpu.reduce({"x": x, "keep": keep}, {"x": "mean", "keep": "all"}, count=count),
        lambda rng, real: (numbers(rng, real, N, 3), rng.random(N) < 0.95, live(rng)),
        differentiable=(0,),
        counts=(2,),
        exact=False,
    ),
    "reduce_by_id": Example(
        lambda x, ids, count: mgpu.reduce_by_id(x, ids, 7, count=count),
        lambda rng, real: (numbers(rng, real, N, 3), rng.integers(-1, 8, N), live(rng)),
        differentiable=(0,),
        counts=(2,),
        exact=False,
    ),
    "reduce_by_id, max": Example(
        lambda x, ids: mgpu.reduce_by_id(x, ids, 7, "max"),
        lambda rng, real: (distinct(rng, real), rng.permutation(N) % 8),
        differentiable=(0,),
    ),
    "reduce_by_key": Example(
        lambda keys, values, count: mgpu.reduce_by_key(keys, values, size=20, count=count),
        lambda rng, real: (few(rng), numbers(rng, real), live(rng)),
        differentiable=(1,),
        counts=(2,),
        exact=False,
    ),
    "run_starts": Example(
        lambda keys, heads, count: mgpu.run_starts(keys, heads, size=50, count=count),
        lambda rng, real: (few(rng), positions(rng), live(rng)),
        counts=(2,),
    ),
    "run_starts, one segment": Example(lambda keys: mgpu.run_starts(keys, size=20), lambda rng, real: (few(rng),)),
    "reduce_by_key, columns": Example(
        lambda keys, other, values, count: mgpu.reduce_by_key((keys, other), values, "max", size=20, count=count),
        lambda rng, real: (few(rng), few(rng, values=3), distinct(rng, real), live(rng)),
        differentiable=(2,),
        counts=(3,),
        composed=True,
    ),
    "scan": Example(
        lambda x, count: mgpu.scan(x, exclusive=True, return_total=True, count=count),
        lambda rng, real: (numbers(rng, real), live(rng)),
        differentiable=(0,),
        counts=(1,),
        exact=False,
    ),
    "scan, max": Example(
        lambda x: mgpu.scan(x, "max", reverse=True), lambda rng, real: (distinct(rng, real),), differentiable=(0,)
    ),
    "scan, argmax": Example(lambda x: mgpu.scan(x, "argmax", exclusive=True), lambda rng, real: (distinct(rng, real),)),
    "segment_ids": Example(
        lambda heads, count: mgpu.segment_ids(heads, N, count=count),
        lambda rng, real: (positions(rng), live(rng)),
        counts=(1,),
    ),
    "segmented_log_softmax": Example(
        lambda x, heads, count: mgpu.segmented_log_softmax(x, heads, count=count),
        lambda rng, real: (numbers(rng, real, N, 2), positions(rng), live(rng)),
        differentiable=(0,),
        counts=(2,),
        exact=False,
        composed=True,
    ),
    "segmented_quantile": Example(
        mgpu.segmented_quantile,
        lambda rng, real: (distinct(rng, real), np.arange(0, N, 10).astype(np.int32), real(0.31)),
        differentiable=(0,),
        exact=False,
        composed=True,
    ),
    "segmented_reduce": Example(
        lambda x, heads, count: mgpu.segmented_reduce(x, heads, count=count),
        lambda rng, real: (numbers(rng, real), positions(rng), live(rng)),
        differentiable=(0,),
        counts=(2,),
        exact=False,
    ),
    "segmented_reduce, rows": Example(
        lambda x, heads, count: mgpu.segmented_reduce(x, heads, count=count),
        lambda rng, real: (numbers(rng, real, N, 3), positions(rng), live(rng)),
        differentiable=(0,),
        counts=(2,),
        exact=False,
    ),
    "segmented_reduce, ends": Example(
        lambda x, heads, ends: mgpu.segmented_reduce(x, heads, ends=ends),
        lambda rng, real: (numbers(rng, real), *segments_apart(rng)),
        differentiable=(0,),
        exact=False,
        composed=True,
    ),
    "segmented_reduce, min": Example(
        lambda x, heads: mgpu.segmented_reduce(x, heads, "min"),
        lambda rng, real: (distinct(rng, real), unique_positions(rng, 6)),
        differentiable=(0,),
    ),
    "segmented_scan": Example(
        lambda x, heads, count: mgpu.segmented_scan(x, heads, count=count),
        lambda rng, real: (numbers(rng, real), positions(rng), live(rng)),
        differentiable=(0,),
        counts=(2,),
        exact=False,
    ),
    "segmented_scan, map": Example(
        lambda x, heads, count: mgpu.segmented_scan(x, heads, map=lambda x, i: x * i.astype(x.dtype), count=count),
        lambda rng, real: (numbers(rng, real), positions(rng), live(rng)),
        differentiable=(0,),
        counts=(2,),
        exact=False,
        composed=True,
        function=True,
    ),
    "segmented_scan, max": Example(
        lambda x, heads: mgpu.segmented_scan(x, heads, "max", reverse=True),
        lambda rng, real: (distinct(rng, real), positions(rng)),
        differentiable=(0,),
    ),
    "segmented_softmax": Example(
        lambda x, heads, count: mgpu.segmented_softmax(x, heads, count=count),
        lambda rng, real: (numbers(rng, real), positions(rng), live(rng)),
        differentiable=(0,),
        counts=(2,),
        exact=False,
    ),
    "segmented_shift": Example(
        lambda x, heads, count: mgpu.segmented_shift(x, heads, 2, count=count),
        lambda rng, real: (numbers(rng, real, N, 2), positions(rng), live(rng)),
        differentiable=(0,),
        counts=(2,),
        composed=True,
    ),
    "segmented_sort": Example(
        lambda keys, heads, count, values: mgpu.segmented_sort(keys, heads, values, count=count),
        lambda rng, real: (distinct(rng, real), positions(rng), live(rng), numbers(rng, real)),
        differentiable=(0, 3),
        counts=(2,),
    ),
    "segmented_sort, less": Example(
        lambda keys, heads, count: mgpu.segmented_sort(keys, heads, less=lambda a, b: a > b, count=count),
        lambda rng, real: (distinct(rng, real), positions(rng), live(rng)),
        differentiable=(0,),
        counts=(2,),
        composed=True,
        function=True,
    ),
    "segmented_sort, rows": Example(
        lambda keys, flags, rows: mgpu.segmented_sort(keys, None, {"rows": rows}, flags=flags, descending=True),
        lambda rng, real: (distinct(rng, real), rng.random(N) < 0.2, numbers(rng, real, N, 2)),
        differentiable=(0, 2),
    ),
    "segmented_sort, ends": Example(
        lambda keys, heads, ends, count, values: mgpu.segmented_sort(keys, heads, values, ends=ends, count=count),
        lambda rng, real: (distinct(rng, real), *segments_apart(rng), live(rng), numbers(rng, real)),
        differentiable=(0, 4),
        counts=(3,),
        composed=True,
    ),
    "segmented_sort_indices": Example(
        lambda keys, words, count: mgpu.segmented_sort_indices(keys, flags=words, count=count),
        lambda rng, real: (distinct(rng, real), rng.integers(0, 2**32, 2, dtype=np.uint32), live(rng)),
        differentiable=(0,),
        counts=(2,),
    ),
    "segmented_top_k": Example(
        lambda x, heads, count: mgpu.segmented_top_k(x, heads, 4, count=count),
        lambda rng, real: (distinct(rng, real), positions(rng), live(rng)),
        differentiable=(0,),
        counts=(2,),
        composed=True,
    ),
    "select": Example(
        lambda x, keep, rows, count: mgpu.select({"x": x, "rows": rows}, keep, size=N, count=count),
        lambda rng, real: (numbers(rng, real), rng.random(N) < 0.5, numbers(rng, real, N, 2), live(rng)),
        differentiable=(0, 2),
        counts=(3,),
    ),
    "select_indices": Example(
        lambda keep, count: mgpu.select_indices(keep, size=N, count=count),
        lambda rng, real: (rng.random(N) < 0.5, live(rng)),
        counts=(1,),
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
    "set_union, values": Example(
        lambda a, b, a_values, b_values: mgpu.set_union(a, b, a_values, b_values, size=80),
        # b has keys of its own
        lambda rng, real: (few(rng), few(rng, 40, 17), numbers(rng, real), numbers(rng, real, 40)),
        differentiable=(2, 3),
    ),
    "sort": Example(
        lambda keys, values, count: mgpu.sort(keys, values, count=count),
        lambda rng, real: (distinct(rng, real), numbers(rng, real), live(rng)),
        differentiable=(0, 1),
        counts=(2,),
    ),
    "sort, bits": Example(lambda keys: mgpu.sort(keys, descending=True, bits=8), lambda rng, real: (few(rng) % 256,)),
    "set_union, columns": Example(
        lambda a, b, x, a_count: mgpu.set_union((a, a, x), (b, b, b), size=80, a_count=a_count),
        lambda rng, real: (few(rng), few(rng, 40), few(rng), live(rng)),
        counts=(3,),
        composed=True,
    ),
    "sorted_equal_count": Example(
        lambda a, b, a_count, b_count: mgpu.sorted_equal_count(a, b, a_count=a_count, b_count=b_count),
        lambda rng, real: (few(rng), few(rng, 40), live(rng), live(rng, 40)),
        counts=(2, 3),
    ),
    "sorted_match": Example(
        lambda a, b, a_count, b_count: mgpu.sorted_match(a, b, "right", a_count=a_count, b_count=b_count),
        lambda rng, real: (few(rng), few(rng, 40), live(rng), live(rng, 40)),
        counts=(2, 3),
    ),
    "sorted_search": Example(
        lambda needles, haystack, needles_count, haystack_count: mgpu.sorted_search(
            needles, haystack, needles_count=needles_count, haystack_count=haystack_count
        ),
        lambda rng, real: (ascending(rng, real, 40), ascending(rng, real), live(rng, 40), live(rng)),
        counts=(2, 3),
    ),
    "take_segments": Example(
        lambda x, heads, order, count: mgpu.take_segments(x, heads, order, size=2 * N, count=count),
        lambda rng, real: (
            numbers(rng, real),
            np.append(np.arange(5) * 11, N).astype(np.int32),
            rng.permutation(6).astype(np.int32),
            live(rng),
        ),
        differentiable=(0,),
        counts=(3,),
        composed=True,
    ),
    "to_dense": Example(
        lambda x, heads, count: mgpu.to_dense(x, heads, N, count=count),
        lambda rng, real: (numbers(rng, real), positions(rng), live(rng)),
        differentiable=(0,),
        counts=(2,),
        composed=True,
    ),
    "top_k": Example(
        lambda x, count: mgpu.top_k(x, 5, largest=False, count=count),
        lambda rng, real: (distinct(rng, real), live(rng)),
        differentiable=(0,),
        counts=(1,),
    ),
    "unique": Example(
        lambda keys, count: mgpu.unique(
            keys, size=20, return_index=True, return_inverse=True, return_counts=True, count=count
        ),
        lambda rng, real: (rng.integers(0, 13, N).astype(np.int32), live(rng)),
        counts=(1,),
        composed=True,
    ),
}

# The same over operands that break preconditions, several tiles' worth, where tasks and blocks share the work. `keys`
# and `few` are without order, the second with many ties; `near` are positions in and just outside the array, `far` any
# integers.
MANY = 150_000
GARBAGE: dict[str, Callable[..., Any]] = {
    "argsort": lambda keys, few, near, far: mgpu.argsort(keys, count=near[0], bits=9),
    "bincount": lambda keys, few, near, far: (mgpu.bincount(keys, 99), mgpu.bincount(few, 9, keys * 1.5)),
    "bulk_insert": lambda keys, few, near, far: mgpu.bulk_insert(keys, near, far),
    "bulk_remove": lambda keys, few, near, far: mgpu.bulk_remove(keys, near, count=far[0]),
    "from_dense": lambda keys, few, near, far: mgpu.from_dense(keys.reshape(-1, 8), near, size=MANY),
    "histogram": lambda keys, few, near, far: mgpu.histogram(keys, few[:30]),
    "interval_expand": lambda keys, few, near, far: mgpu.interval_expand(far, near, MANY),
    "interval_gather": lambda keys, few, near, far: mgpu.interval_gather(keys, far, near, MANY),
    "interval_move": lambda keys, few, near, far: mgpu.interval_move(keys, near, near, far, few),
    "interval_scatter": lambda keys, few, near, far: mgpu.interval_scatter(keys, near, near, few),
    "join": lambda keys, few, near, far: mgpu.join(keys, few, "outer", size=MANY),
    "join_columns": lambda keys, few, near, far: mgpu.join_columns(mgpu.JoinResult(near, far, far[0]), keys, few),
    "load_balance_search": lambda keys, few, near, far: mgpu.load_balance_search(near, MANY, return_rank=True),
    "locality_sort": lambda keys, few, near, far: mgpu.locality_sort(keys, few, count=far[0]),
    "asof_join": lambda keys, few, near, far: mgpu.asof_join(keys, few, by_a=few, by_b=keys, a_count=near[0]),
    "group_by": lambda keys, few, near, far: mgpu.group_by(few, keys, "median", size=100, count=far[0]),
    "lookup": lambda keys, few, near, far: mgpu.lookup(keys, few, keys, count=near[0]),
    "rank": lambda keys, few, near, far: mgpu.rank(few, near, count=far[0]),
    "segmented_shift": lambda keys, few, near, far: mgpu.segmented_shift(keys, near, far[0], count=near[0]),
    "locality_sort_indices": lambda keys, few, near, far: mgpu.locality_sort_indices(few, count=near[0]),
    "merge": lambda keys, few, near, far: mgpu.merge(keys, few, few, keys, a_count=near[0]),
    "mergesort": lambda keys, few, near, far: mgpu.mergesort(keys, few, count=near[0]),
    "mergesort_indices": lambda keys, few, near, far: mgpu.mergesort_indices(keys, count=far[0]),
    "partition": lambda keys, few, near, far: mgpu.partition(keys, few > 5, count=far[0]),
    "quantile": lambda keys, few, near, far: mgpu.quantile(keys, far * 1e-3, count=near[0]),
    "reduce": lambda keys, few, near, far: mgpu.reduce(keys, "argmin", count=far[0]),
    "reduce_by_id": lambda keys, few, near, far: mgpu.reduce_by_id(keys, few, 10, "argmax", count=far[0]),
    "reduce_by_key": lambda keys, few, near, far: mgpu.reduce_by_key(keys, few, size=100, count=near[0]),
    "run_starts": lambda keys, few, near, far: mgpu.run_starts(few, near, count=far[0]),
    "scan": lambda keys, few, near, far: mgpu.scan(keys, count=near[0], return_total=True),
    "segment_ids": lambda keys, few, near, far: mgpu.segment_ids(near, MANY, count=far[0]),
    **{
        name: lambda keys, few, near, far, name=name: getattr(mgpu, name)(keys * 1e-9, near, count=far[0])
        for name in ("segmented_softmax", "segmented_log_softmax")
    },
    "segmented_quantile": lambda keys, few, near, far: mgpu.segmented_quantile(keys, near, far[:3] * 1e-3),
    "segmented_reduce": lambda keys, few, near, far: mgpu.segmented_reduce(keys, near),
    "segmented_scan": lambda keys, few, near, far: mgpu.segmented_scan(keys, near, reverse=True),
    "segmented_sort": lambda keys, few, near, far: mgpu.segmented_sort(keys, near, few),
    "segmented_sort_indices": lambda keys, few, near, far: mgpu.segmented_sort_indices(keys, near, count=far[0]),
    "segmented_top_k": lambda keys, few, near, far: mgpu.segmented_top_k(keys, near, 3, count=far[0]),
    "select": lambda keys, few, near, far: mgpu.select(keys, few > 5, size=1000, count=near[0]),
    "select_indices": lambda keys, few, near, far: mgpu.select_indices(few > 5, count=far[0]),
    **{
        f"set_{kind}": lambda keys, few, near, far, call=f"set_{kind}": getattr(mgpu, call)(keys, few)
        for kind in ("difference", "intersection", "symmetric_difference", "union")
    },
    "sort": lambda keys, few, near, far: mgpu.sort(keys, few, count=far[0], bits=3),
    "sorted_equal_count": lambda keys, few, near, far: mgpu.sorted_equal_count(keys, few),
    "sorted_match": lambda keys, few, near, far: mgpu.sorted_match(keys, few, a_count=near[0]),
    "sorted_search": lambda keys, few, near, far: mgpu.sorted_search(keys, few),
    "take_segments": lambda keys, few, near, far: mgpu.take_segments(keys, near, far, size=MANY),
    "to_dense": lambda keys, few, near, far: mgpu.to_dense(keys, near, 8, count=far[0]),
    "top_k": lambda keys, few, near, far: mgpu.top_k(keys, 100, count=far[0]),
    "unique": lambda keys, few, near, far: mgpu.unique(
        keys, size=50, return_index=True, return_inverse=True, return_counts=True, count=near[0]
    ),
}
