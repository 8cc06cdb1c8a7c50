"""Operations over 2^32 + 17 items, which overflow 32-bit counters. With JAX_MGPU_TEST_LARGE=1, they run over that many,
and need a GPU of about 140 GB and 100 GB of host memory. Otherwise, they run over few items.
"""

from __future__ import annotations

import os

import jax
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.core.operation import Operation, run_fallback
from tests.families import EXAMPLES, LARGE, LARGE_WITH_INDICES
from tests.many_items import FEW, bytes_of, everywhere

PAST_32_BITS = 2**32 + 17
CASES = [
    *(pytest.param(run, wide, id=f"{name}, {wide}") for name, run in LARGE.items() for wide in (False, True)),
    *(pytest.param(run, True, id=name) for name, run in LARGE_WITH_INDICES.items()),
]
is_large = pytest.mark.skipif(
    os.environ.get("JAX_MGPU_TEST_LARGE") != "1", reason="2^31 items and more run only with JAX_MGPU_TEST_LARGE=1"
)
on_each_operation = pytest.mark.parametrize(("run", "wide"), CASES)


def test_every_operation_is_here():
    assert {name.split(",")[0] for name in (*LARGE, *LARGE_WITH_INDICES)} == {n.split(",")[0] for n in EXAMPLES}


@on_each_operation
def test_few_items(run, wide):
    with jax.enable_x64(wide):
        run(FEW, np.int64 if wide else np.int32)


@is_large
@on_each_operation
def test_more_items_than_32_bits_count(run, wide):
    with jax.enable_x64(wide):
        run(PAST_32_BITS, np.int64 if wide else np.int32)


def test_scans_of_live_items_need_no_index():
    x, h = jax.ShapeDtypeStruct((2**32,), np.float32), jax.ShapeDtypeStruct((4,), np.int32)
    for call in (mgpu.scan, lambda x, count: mgpu.scan(x, "min", exclusive=True, count=count)):
        assert jax.eval_shape(lambda x, h, call=call: call(x, count=h[0]), x, h).shape == x.shape
    assert jax.eval_shape(lambda x, h: mgpu.segmented_scan(x, h, count=h[0]), x, h).shape == x.shape


def test_31_bits_are_not_enough_without_x64():
    x, y, h = (jax.ShapeDtypeStruct(*spec) for spec in (((2**31,), np.int8), ((2**31 + 1,), np.int8), ((4,), np.int32)))
    calls = {
        "interval_move": lambda: jax.eval_shape(lambda y, h, x: mgpu.interval_move(y, h, h, h, x), y, h, x),
        "group_by": lambda: jax.eval_shape(lambda x: mgpu.group_by(x, x, size=3), x),
        "take_segments": lambda: jax.eval_shape(lambda x, h: mgpu.take_segments(x, h, h, size=3), x, h),
        "to_dense": lambda: jax.eval_shape(lambda x, h: mgpu.to_dense(x, h, 3), x, h),
        "interval_gather": lambda: jax.eval_shape(lambda x, h: mgpu.interval_gather(x, h, h, 9), x, h),
        "interval_scatter": lambda: jax.eval_shape(lambda x, h: mgpu.interval_scatter(x, h, h, x), x, h),
        "join": lambda: jax.eval_shape(lambda a, b: mgpu.join(a, b, size=10), x, x),
        "load_balance_search": lambda: jax.eval_shape(lambda h: mgpu.load_balance_search(h, 2**31), h),
        "reduce": lambda: jax.eval_shape(lambda x: mgpu.reduce(x, "argmax"), x),
        "reduce_by_key": lambda: jax.eval_shape(lambda x: mgpu.reduce_by_key(x, x, size=3), x),
        "scan": lambda: jax.eval_shape(lambda x: mgpu.scan(x, "argmin"), x),
        "segmented_reduce": lambda: jax.eval_shape(lambda x, h: mgpu.segmented_reduce(x, h, "argmax"), x, h),
        "segmented_scan": lambda: jax.eval_shape(lambda x, h: mgpu.segmented_scan(x, h, "argmin"), x, h),
        "segmented_sort_indices": lambda: jax.eval_shape(mgpu.segmented_sort_indices, x, h),
        **{
            name: lambda name=name: jax.eval_shape(getattr(mgpu, name), x)
            for name in ("argsort", "locality_sort_indices", "mergesort_indices")
        },
        **{
            name: lambda name=name: jax.eval_shape(getattr(mgpu, name), x, x)
            for name in LARGE_WITH_INDICES
            if name.startswith(("set_", "sorted_"))
        },
    }
    with jax.enable_x64(False):
        for name, call in calls.items():
            with pytest.raises(ValueError, match=f"^{name}: .*: expected fewer than 2.31 items"):
                call()


# ---- Calls on 2^31 items, which are only traced ----------------------------------------------------------------------


def add(a, b):
    return a + b


def trace_calls(n, index):
    """Returns functions and shapes of arguments: n items and four positions of the type `index`."""
    shape = jax.ShapeDtypeStruct
    x, few, rows = shape((n,), np.float32), shape((50,), np.float32), shape((n, 3), np.float16)
    some, at, count = shape((50, 3), np.float16), shape((4,), index), shape((), np.int32)
    inserted = shape((4, 3), np.float16)
    return {
        "bulk_insert": (lambda x, i, v, c: mgpu.bulk_insert(x, i, v, count=c), (rows, at, inserted, count)),
        "bulk_remove": (lambda x, i, c: mgpu.bulk_remove(x, i, count=c), (rows, at, count)),
        "interval_expand": (lambda x, i, c: mgpu.interval_expand(x, i, n, total=c), (inserted, at, count)),
        "interval_gather, from": (lambda x, i, c: mgpu.interval_gather(x, i, i, 64, total=c), (rows, at, count)),
        "interval_gather, to": (lambda x, i, c: mgpu.interval_gather(x, i, i, n, total=c), (some, at, count)),
        "interval_move": (lambda x, i, c: mgpu.interval_move(x, i, i, i, x, total=c), (rows, at, count)),
        "interval_scatter, from": (
            lambda x, i, into, c: mgpu.interval_scatter(x, i, i, into, total=c),
            (rows, at, some, count),
        ),
        "interval_scatter, to": (
            lambda x, i, into, c: mgpu.interval_scatter(x, i, i, into, total=c),
            (some, at, rows, count),
        ),
        "join": (lambda a, b, c: mgpu.join(a, b, "outer", size=50, a_count=c, b_count=c), (x, few, count)),
        "load_balance_search": (lambda i, c: mgpu.load_balance_search(i, n, total=c, return_rank=True), (at, count)),
        "merge": (lambda a, b, c: mgpu.merge(a, b, a_count=c, b_count=c), (x, x, count)),
        "mergesort": (lambda x, c: mgpu.mergesort(x, x, count=c), (x, count)),
        "reduce_by_key": (lambda x, c: mgpu.reduce_by_key(x, x, "max", size=8, count=c), (x, count)),
        "reduce_by_key, function": (lambda x, c: mgpu.reduce_by_key(x, x, add, size=8, count=c), (x, count)),
        "segmented_sort": (lambda x, i, v, c: mgpu.segmented_sort(x, i, v, count=c), (x, at, rows, count)),
        "set_union": (lambda a, b, c: mgpu.set_union(a, b, a, b, a_count=c, b_count=c), (x, few, count)),
        "sorted_match": (lambda a, b, c: mgpu.sorted_match(a, b, a_count=c, b_count=c), (few, x, count)),
        "sorted_search": (lambda a, b, c: mgpu.sorted_search(a, b, needles_count=c, haystack_count=c), (x, x, count)),
        **{
            f"{call.__name__}, {op if isinstance(op, str) else 'function'}": (
                lambda *xs, call=call, op=op: call(
                    *xs[:-1], op=op, identity=0.0 if callable(op) else None, count=xs[-1]
                ),
                (x, at, count) if "segmented" in call.__name__ else (x, count),
            )
            for call in (mgpu.reduce, mgpu.scan, mgpu.segmented_reduce, mgpu.segmented_scan)
            for op in ("add", "mul", "max", "argmin", add)
        },
    }


@pytest.mark.parametrize("n, index", [
    (2**31 - 1, np.int32), (2**31, np.int32), pytest.param(2**32 + 17, np.uint32, marks=pytest.mark.long),
])  # fmt: skip
def test_sizes_past_int32_are_traced(n, index, monkeypatch, x64):
    """Calls have int32 counts; their reverse derivatives and, for the largest n, plain JAX are traced too."""
    calls = trace_calls(n, index)

    def run(call, arguments):
        jax.eval_shape(call, *arguments)
        real = [i for i, x in enumerate(arguments) if np.issubdtype(x.dtype, np.floating)]

        def pull_back(*xs):
            def of_reals(*moving):
                given = dict(enumerate(xs)) | dict(zip(real, moving, strict=True))
                results = jax.tree.leaves(call(*given.values()))
                return [y for y in results if np.issubdtype(y.dtype, np.floating)]

            results, transpose = jax.vjp(of_reals, *(xs[i] for i in real))
            return transpose([jax.numpy.zeros(y.shape, y.dtype) for y in results])

        jax.eval_shape(pull_back, *arguments)

    for call, arguments in calls.values():
        run(call, arguments)

    if n < 2**32:
        return

    def plain(operation, operands, **attributes):
        return run_fallback(operation, [jax.numpy.asarray(x) for x in operands], attributes)

    monkeypatch.setattr(Operation, "run", plain)
    for call, arguments in trace_calls(n, index).values():
        run(call, arguments)


# ---- Short intervals scattered over many rows, which CUDA first puts in order, by 32-bit positions ---


@pytest.mark.parametrize("n", [FEW, *(pytest.param(2**31 + more, marks=is_large) for more in (-1, 0, 1))])
def test_scattered_intervals_round_31_bits(n):
    offsets = np.arange(0, n, 1000, dtype=np.int32)
    lengths = np.diff(offsets, append=n)
    order = np.random.default_rng(4).permutation(len(offsets))
    places = np.empty(len(offsets), np.int32)
    places[order] = np.cumsum(lengths[order]) - lengths[order]
    x, into = bytes_of(n), np.zeros(n, np.uint8)
    with jax.enable_x64(True):
        scattered = np.asarray(mgpu.interval_scatter(x, places, offsets, into))
        moved = np.asarray(mgpu.interval_move(x, offsets, places, offsets, into))

    def check(begin, end):
        for start, place, length in zip(offsets[begin:end], places[begin:end], lengths[begin:end], strict=True):
            interval = x[start : start + length]
            assert np.array_equal(scattered[place : place + length], interval)
            assert np.array_equal(moved[place : place + length], interval)

    everywhere(len(offsets), check)
