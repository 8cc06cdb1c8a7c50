"""One valid call of each public operation, for the tests that hold for all of them."""

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
    """

    call: Callable[..., Any]
    make: Callable[[np.random.Generator, Any], tuple[Any, ...]]
    differentiable: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    exact: bool = True


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
    "mergesort_indices": Example(
        lambda keys: mgpu.mergesort_indices(keys, descending=True),
        lambda rng, real: (distinct(rng, real),),
        differentiable=(0,),
    ),
    "reduce": Example(
        lambda x, count: mgpu.reduce(x, count=count),
        lambda rng, real: (numbers(rng, real), live(rng)),
        differentiable=(0,),
        counts=(1,),
        exact=False,
    ),
    "reduce, max": Example(
        lambda x: mgpu.reduce(x, "max"), lambda rng, real: (distinct(rng, real),), differentiable=(0,)
    ),
    "reduce, argmin": Example(
        lambda x, count: mgpu.reduce(x, "argmin", count=count),
        lambda rng, real: (distinct(rng, real), live(rng)),
        counts=(1,),
    ),
    "reduce_by_key": Example(
        lambda keys, values, count: mgpu.reduce_by_key(keys, values, size=20, count=count),
        lambda rng, real: (few(rng), numbers(rng, real), live(rng)),
        differentiable=(1,),
        counts=(2,),
        exact=False,
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
    "segmented_reduce": Example(
        lambda x, heads, count: mgpu.segmented_reduce(x, heads, count=count),
        lambda rng, real: (numbers(rng, real), positions(rng), live(rng)),
        differentiable=(0,),
        counts=(2,),
        exact=False,
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
    "segmented_scan, max": Example(
        lambda x, heads: mgpu.segmented_scan(x, heads, "max", reverse=True),
        lambda rng, real: (distinct(rng, real), positions(rng)),
        differentiable=(0,),
    ),
    "segmented_sort": Example(
        lambda keys, heads, count, values: mgpu.segmented_sort(keys, heads, values, count=count),
        lambda rng, real: (distinct(rng, real), positions(rng), live(rng), numbers(rng, real)),
        differentiable=(0, 3),
        counts=(2,),
    ),
    "segmented_sort, rows": Example(
        lambda keys, flags, rows: mgpu.segmented_sort(keys, None, {"rows": rows}, flags=flags, descending=True),
        lambda rng, real: (distinct(rng, real), rng.random(N) < 0.2, numbers(rng, real, N, 2)),
        differentiable=(0, 2),
    ),
    "segmented_sort_indices": Example(
        lambda keys, words, count: mgpu.segmented_sort_indices(keys, flags=words, count=count),
        lambda rng, real: (distinct(rng, real), rng.integers(0, 2**32, 2, dtype=np.uint32), live(rng)),
        differentiable=(0,),
        counts=(2,),
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
}
