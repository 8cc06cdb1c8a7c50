"""Operations over 2^32 + 17 items, where 32-bit counters end: asked for by JAX_MGPU_TEST_LARGE=1, as they take a GPU of
some 140 GB and some 100 GB of the host's memory. The same tests run over few items on any machine.

Keys and values are bytes that repeat every 251 items, so that an offset that is cut to 32 bits meets another byte.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import os

import jax
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src import primitive
from tests.examples import EXAMPLES

FEW = 4099
LARGE = 2**32 + 17
PERIOD = 251
PATTERN = np.random.default_rng(9).permutation(PERIOD).astype(np.uint8)


def bytes_of(n):
    return np.resize(PATTERN, n)


def counts_of(x):
    """How often each byte occurs in a stretch of the repeated pattern."""
    whole, rest = divmod(len(x), PERIOD)
    return whole * np.bincount(x[:PERIOD], minlength=256) + np.bincount(x[:rest], minlength=256)


def bytes_by_count(counts):
    return np.repeat(np.arange(256, dtype=np.uint8), counts)


def sort_bytes(x):
    return bytes_by_count(counts_of(x))


def spots(n, index):
    """Increasing positions of 0 to n - 1, those round the ends of 31 and 32 bits among them, as far as `index` goes."""
    around = [2**bits + offset for bits in (31, 32) for offset in (-1, 0, 1)]
    last = min(n - 1, np.iinfo(index).max)
    return np.array(sorted({i for i in (0, 5, n // 7, n // 2, last, *around) if i <= last}), index)


def pieces(x, heads):
    return np.split(x, heads[1:])


def everywhere(n, check):
    """Runs check(begin, end) over stretches of n items, in threads: NumPy leaves them to each other."""
    step = min(n, 1000) if n <= FEW else 2**26
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for result in [pool.submit(check, i, min(i + step, n)) for i in range(0, n, step)]:
            result.result()


def same(got, expected):
    got = np.asarray(got)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    got, expected = np.ravel(got), np.ravel(expected)

    def check(begin, end):
        assert np.array_equal(got[begin:end], expected[begin:end])

    everywhere(len(got), check)


def same_repeated(got, values, counts):
    """As same(got, np.repeat(values, counts)), of which only stretches are made."""
    got = np.asarray(got)
    assert (got.shape, got.dtype) == ((counts.sum(),), values.dtype)
    ends = np.cumsum(counts)

    def check(begin, end):
        here = np.minimum(ends, end) - np.maximum(ends - counts, begin)
        assert np.array_equal(got[begin:end], np.repeat(values, np.maximum(here, 0)))

    everywhere(len(got), check)


# ---- Operations whose results hold no index: tested with and without jax_enable_x64 ---------------------------------


def bulk_insert(n, index):
    x, at = bytes_of(n), spots(n, index)
    expected = np.insert(x, at.astype(np.int64), bytes_of(len(at)))  # NumPy adds the length to them
    same(mgpu.bulk_insert(x, at, bytes_of(len(at))), expected)


def bulk_remove(n, index):
    x, at = bytes_of(n), spots(n, index)
    same(mgpu.bulk_remove(x, at), np.delete(x, at))


def interval_expand(n, index):
    offsets = spots(n, index)
    values = bytes_of(len(offsets))
    same(mgpu.interval_expand(values, offsets, n), np.repeat(values, np.diff(offsets, append=n)))


def backwards(n, index):
    """Intervals that cover n items, and their starts in the opposite order."""
    offsets = spots(n, index)
    starts = n - np.append(offsets[1:].astype(np.int64), n)
    if starts[0] > np.iinfo(index).max:  # a start that int32 cannot hold: both in one order then
        starts = offsets
    return offsets, starts.astype(index), np.diff(offsets, append=n)


def interval_gather(n, index):
    x = bytes_of(n)
    offsets, starts, lengths = backwards(n, index)
    expected = np.concatenate([x[s : s + length] for s, length in zip(starts, lengths, strict=True)])
    same(mgpu.interval_gather(x, starts, offsets, n), expected)


def interval_scatter(n, index):
    x = bytes_of(n)
    offsets, starts, lengths = backwards(n, index)
    expected = np.zeros(n, np.uint8)
    for o, s, length in zip(offsets, starts, lengths, strict=True):
        expected[s : s + length] = x[o : o + length]
    same(mgpu.interval_scatter(x, starts, offsets, np.zeros(n, np.uint8)), expected)


def interval_move(n, index):
    x = bytes_of(n)
    offsets, starts, _ = backwards(n, index)
    same(mgpu.interval_move(x, starts, starts, offsets, np.zeros(n, np.uint8)), x)


def locality_sort(n, index):
    x = bytes_of(n)
    same(mgpu.locality_sort(x), sort_bytes(x))


def merge(n, index):
    a_counts, b_counts = counts_of(bytes_of(n // 2)), counts_of(bytes_of(n - n // 2))
    same(mgpu.merge(bytes_by_count(a_counts), bytes_by_count(b_counts)), bytes_by_count(a_counts + b_counts))


def mergesort(n, index):
    x = bytes_of(n)
    same(mgpu.mergesort(x, descending=True), sort_bytes(x)[::-1])


def reduce(n, index):
    x = bytes_of(n)
    same(mgpu.reduce(x), x.sum(dtype=np.uint8))
    x[n - 3] = 255
    same(mgpu.reduce(x, "max"), np.uint8(255))


def scan(n, index):
    x = bytes_of(n)
    same(mgpu.scan(x), np.cumsum(x, dtype=np.uint8))


def segmented_reduce(n, index):
    x, heads = bytes_of(n), spots(n, index)
    same(mgpu.segmented_reduce(x, heads), np.array([p.sum(dtype=np.uint8) for p in pieces(x, heads)]))


def segmented_scan(n, index):
    x, heads = bytes_of(n), spots(n, index)
    expected = np.concatenate([np.cumsum(p, dtype=np.uint8) for p in pieces(x, heads)])
    same(mgpu.segmented_scan(x, heads), expected)


def segmented_sort(n, index):
    x, heads = bytes_of(n), spots(n, index)
    same(mgpu.segmented_sort(x, heads), np.concatenate([sort_bytes(p) for p in pieces(x, heads)]))


def sort(n, index):
    x = bytes_of(n)
    same(mgpu.sort(x, descending=True), sort_bytes(x)[::-1])


# ---- Operations whose results hold indices or counts: with jax_enable_x64 -------------------------------------------


def sorted_with_indices(x, heads, result):
    keys, indices = map(np.asarray, result)
    same(keys, np.concatenate([sort_bytes(p) for p in pieces(x, heads)]))
    bounds = np.append(heads, len(x))

    def check(begin, end):
        assert np.array_equal(x[indices[begin:end]], keys[begin:end])
        last = min(end + 1, len(x))
        ties = keys[begin + 1 : last] == keys[begin : last - 1]
        inner = bounds[(bounds > begin) & (bounds < last)]
        ties[inner - begin - 1] = False
        assert (np.diff(indices[begin:last]) > 0)[ties].all()  # stable, so no index occurs twice
        for first, limit in itertools.pairwise(np.unique(np.clip(bounds, begin, end))):
            segment = np.searchsorted(bounds, first, "right") - 1
            assert indices[first:limit].min() >= bounds[segment]
            assert indices[first:limit].max() < bounds[segment + 1]

    everywhere(len(x), check)


def locality_sort_indices(n, index):
    sorted_with_indices(bytes_of(n), np.zeros(1, index), mgpu.locality_sort_indices(bytes_of(n)))


def mergesort_indices(n, index):
    sorted_with_indices(bytes_of(n), np.zeros(1, index), mgpu.mergesort_indices(bytes_of(n)))


def argsort(n, index):
    x = bytes_of(n)
    sorted_with_indices(x, np.zeros(1, index), (sort_bytes(x), mgpu.argsort(x)))


def segmented_sort_indices(n, index):
    heads = spots(n, index)
    sorted_with_indices(bytes_of(n), heads, mgpu.segmented_sort_indices(bytes_of(n), heads))


def reduce_argmax(n, index):
    x = bytes_of(n)
    x[n - 3] = 255
    assert mgpu.reduce(x, "argmax") == n - 3


def scan_argmax(n, index):
    x = np.zeros(n, np.uint8)
    at = spots(n, index)
    x[at] = np.arange(1, len(at) + 1)
    got = np.asarray(mgpu.scan(x, "argmax"))
    assert np.array_equal(got[at], at)
    assert np.array_equal(got[at[1:] - 1], at[:-1])


def reduce_by_id(n, index):
    at = spots(n, index)
    ids = np.zeros(n, np.int8)
    ids[at] = np.arange(1, len(at) + 1)
    got = np.asarray(mgpu.reduce_by_id(bytes_of(n), ids, 21))
    x = bytes_of(n)
    same(got[1 : len(at) + 1], x[at])
    x[at] = 0
    same(got[:1], x.sum(dtype=np.uint8, keepdims=True))


def reduce_by_key(n, index):
    at = spots(n, index)
    lengths = np.diff(at, append=n)
    keys = np.repeat(np.arange(len(at), dtype=np.uint8), lengths)
    got = mgpu.reduce_by_key(keys, bytes_of(n), size=20)
    assert got[2] == len(at)
    same(got[0][: len(at)], np.arange(len(at), dtype=np.uint8))
    same(got[1][: len(at)], np.array([p.sum(dtype=np.uint8) for p in pieces(bytes_of(n), at)]))


def load_balance_search(n, index):
    offsets = spots(n, index)
    intervals = np.arange(len(offsets), dtype=np.int32 if n <= FEW else np.int64)  # a type for the number of outputs
    same_repeated(mgpu.load_balance_search(offsets, n), intervals, np.diff(offsets, append=n))


def join(n, index):
    counts = counts_of(bytes_of(n))
    a, b = bytes_by_count(counts), np.array([3, 240], np.uint8)
    before = np.cumsum(counts) - counts
    joined = mgpu.join(a, b, size=100)
    assert joined.count == counts[3] + counts[240]
    first = np.arange(before[3], before[3] + min(100, counts[3]))
    assert np.array_equal(np.asarray(joined.a_indices)[: len(first)], first)
    rows = mgpu.join(a, b[1:], size=10)
    assert np.array_equal(rows.a_indices, np.arange(before[240], before[240] + 10))
    return rows, a


def join_columns(n, index):
    rows, a = join(n, index)
    columns = mgpu.join_columns(rows, {"a": a}, {"b": np.array([7], np.int32)})
    same(columns.a["a"], np.full(10, 240, np.uint8))
    same(columns.b["b"], np.full(10, 7, np.int32))
    assert not np.asarray(columns.a_null | columns.b_null).any()


def set_operation(call, count_of):
    def run(n, index):
        a_counts, b_counts = counts_of(bytes_of(n)), counts_of(bytes_of(1000))
        counts = count_of(a_counts, b_counts)
        got = call(bytes_by_count(a_counts), bytes_by_count(b_counts))
        assert got.count == counts.sum()
        assert np.array_equal(np.asarray(got.keys)[: int(got.count)], bytes_by_count(counts))

    return run


def sorted_search(n, index):
    needles, haystack = sort_bytes(bytes_of(1000)), sort_bytes(bytes_of(n))
    assert np.array_equal(mgpu.sorted_search(needles, haystack, "right"), np.searchsorted(haystack, needles, "right"))


def sorted_equal_count(n, index):
    a, counts = sort_bytes(bytes_of(1000)), counts_of(bytes_of(n))
    assert np.array_equal(mgpu.sorted_equal_count(a, bytes_by_count(counts)), counts[a])


def sorted_match(n, index):
    counts = counts_of(bytes_of(n))
    a, b = bytes_by_count(counts), np.arange(0, 256, 2, dtype=np.uint8)
    got = mgpu.sorted_match(a, b)
    same_repeated(got.a_index, np.searchsorted(b, np.arange(256)).astype(got.a_index.dtype), counts)
    assert np.array_equal(got.b_index, np.cumsum(counts)[b])
    assert got.a_match_count == counts[::2].sum()
    assert got.b_match_count == (counts[::2] > 0).sum()


def lookup(n, index):
    keys = bytes_of(n)
    got = mgpu.lookup(keys, np.arange(0, 256, 2, dtype=np.uint8), np.arange(128, dtype=np.int16), default=-1)
    same(got, np.where(keys % 2, -1, keys.astype(np.int16) // 2).astype(np.int16))


def asof_join(n, index):
    counts = counts_of(bytes_of(n))
    a, b = bytes_by_count(counts), np.arange(0, 256, 2, dtype=np.uint8)
    same_repeated(mgpu.asof_join(a, b), (np.arange(256) // 2).astype(np.int32), counts)


def group_by(n, index):
    keys = bytes_of(n)
    counts = counts_of(keys)
    found, sizes, count = mgpu.group_by(keys, keys, "count", size=256)
    distinct = np.flatnonzero(counts)
    assert count == len(distinct)
    assert np.array_equal(found[: len(distinct)], distinct)
    assert np.array_equal(sizes[: len(distinct)], counts[distinct])


def rank(n, index):
    keys = bytes_of(n)
    before = np.cumsum(counts_of(keys)) - counts_of(keys)
    got = np.asarray(mgpu.rank(keys))
    same(got, (before + 1).astype(got.dtype)[keys])


def segmented_shift(n, index):
    x, heads = bytes_of(n), spots(n, index)
    got = np.asarray(mgpu.segmented_shift(x, heads, 1, 7))
    expected = np.concatenate([np.full(1, 7, np.uint8), x[:-1]])
    expected[heads] = 7
    same(got, expected)


def mask_of(n, at):
    mask = np.zeros(n, bool)
    mask[at] = True
    return mask


def select(n, index):
    at = spots(n, index)
    got = mgpu.select(bytes_of(n), mask_of(n, at), size=len(at))
    same(got.values, bytes_of(n)[at])
    assert got.count == len(at)


def select_indices(n, index):
    at = spots(n, index)
    assert np.array_equal(mgpu.select_indices(mask_of(n, at), size=len(at))[0], at)


def partition(n, index):
    at, x = spots(n, index), bytes_of(n)
    got, count = mgpu.partition(x, mask_of(n, at))
    same(np.asarray(got)[: len(at)], x[at])
    same(np.asarray(got)[len(at) :], np.delete(x, at))
    assert count == len(at)


def run_starts(n, index):
    at = spots(n, index)
    keys = np.repeat(np.arange(len(at), dtype=np.uint8), np.diff(at, append=n))
    for heads in (None, at[2:3]):
        runs = mgpu.run_starts(keys, heads, size=len(at))
        assert np.array_equal(runs.starts, at)
        assert runs.heads == (0 if heads is None else 2)


def unique(n, index):
    values, last, counts, found = mgpu.unique(bytes_of(n)[::-1], size=260, return_index=True, return_counts=True)
    assert found == PERIOD
    assert np.array_equal(values[:PERIOD], np.arange(PERIOD))
    assert np.array_equal(counts[:PERIOD], counts_of(bytes_of(n))[:PERIOD])
    assert np.array_equal(bytes_of(n)[::-1][np.asarray(last)[:PERIOD]], np.arange(PERIOD))


def top_k(n, index):
    x = bytes_of(n)
    x[n - 3] = 255
    assert mgpu.top_k(x, 1).indices == n - 3
    best = mgpu.segmented_top_k(x, spots(n, index), 1)
    assert best.indices[-1, 0] == (n - 3 if spots(n, index)[-1] <= n - 3 else n - 1)


def quantile(n, index):
    x = bytes_of(n)
    x[n - 3] = 255
    assert mgpu.quantile(x, 1.0) == 255
    x[n - 1] = 255
    assert mgpu.segmented_quantile(x, spots(n, index), 1.0)[-1] == 255


def bincount(n, index):
    assert np.array_equal(mgpu.bincount(bytes_of(n), 256), counts_of(bytes_of(n)))


def histogram(n, index):
    counts = counts_of(bytes_of(n))
    got = mgpu.histogram(bytes_of(n), np.array([0, 100, 255], np.uint8))[0]
    assert np.array_equal(got, [counts[:100].sum(), counts[100:].sum()])


def segment_ids(n, index):
    heads = spots(n, index)
    ids = np.arange(len(heads), dtype=np.int32 if n <= FEW else np.int64)
    same_repeated(mgpu.segment_ids(heads, n), ids, np.diff(heads, append=n))


def to_dense(n, index):
    x, heads = bytes_of(n), np.minimum(spots(n, index)[-3:], n - 1)
    got = np.asarray(mgpu.to_dense(x, heads, 2))
    for row, start in zip(got, heads, strict=True):
        assert row[0] == x[start]


def from_dense(n, index):
    got, _, count = mgpu.from_dense(bytes_of(n)[None], np.array([n - 3], index), size=n)
    same(np.asarray(got)[: n - 3], bytes_of(n)[: n - 3])
    assert count == n - 3


def take_segments(n, index):
    x, heads = bytes_of(n), spots(n, index)
    got, _, count = mgpu.take_segments(x, heads, np.arange(len(heads))[::-1], size=n)
    same(got, np.concatenate(pieces(x, heads)[::-1]))
    assert count == n


def segmented_softmax(n, index):
    x, heads = np.zeros(n, np.float16), np.array([0, min(n - 4, np.iinfo(index).max)], index)
    share = 1 / (n - int(heads[1]))
    np.testing.assert_allclose(np.asarray(mgpu.segmented_softmax(x, heads))[-1], share, rtol=1e-3)
    np.testing.assert_allclose(np.asarray(mgpu.segmented_log_softmax(x, heads))[-1], np.log(share), rtol=1e-3)


WITHOUT_INDICES = {
    function.__name__: function
    for function in (
        *(bulk_insert, bulk_remove, interval_expand, interval_gather, interval_move, interval_scatter, locality_sort),
        *(merge, mergesort, reduce, scan, segmented_reduce, segmented_scan, segmented_sort, sort),
    )
}
WITH_INDICES = {
    **{function.__name__: function for function in (asof_join, group_by, lookup, rank, segmented_shift)},
    "argsort": argsort,
    "join": join,
    "join_columns": join_columns,
    "load_balance_search": load_balance_search,
    "locality_sort_indices": locality_sort_indices,
    "mergesort_indices": mergesort_indices,
    **{
        function.__name__: function
        for function in (
            *(bincount, from_dense, histogram, partition, quantile, run_starts, segment_ids, segmented_softmax, select),
            *(select_indices, take_segments, to_dense, top_k, unique),
        )
    },
    "segmented_log_softmax": segmented_softmax,
    "segmented_quantile": quantile,
    "segmented_top_k": top_k,
    "reduce, argmax": reduce_argmax,
    "reduce_by_id": reduce_by_id,
    "reduce_by_key": reduce_by_key,
    "scan, argmax": scan_argmax,
    "segmented_sort_indices": segmented_sort_indices,
    "set_difference": set_operation(mgpu.set_difference, lambda a, b: np.maximum(a - b, 0)),
    "set_intersection": set_operation(mgpu.set_intersection, np.minimum),
    "set_symmetric_difference": set_operation(mgpu.set_symmetric_difference, lambda a, b: abs(a - b)),
    "set_union": set_operation(mgpu.set_union, np.maximum),
    "sorted_equal_count": sorted_equal_count,
    "sorted_match": sorted_match,
    "sorted_search": sorted_search,
}
CASES = [
    *(pytest.param(run, wide, id=f"{name}, {wide}") for name, run in WITHOUT_INDICES.items() for wide in (False, True)),
    *(pytest.param(run, True, id=name) for name, run in WITH_INDICES.items()),
]
is_large = pytest.mark.skipif(
    os.environ.get("JAX_MGPU_TEST_LARGE") != "1", reason="2^31 items and more, which JAX_MGPU_TEST_LARGE=1 asks for"
)
on_each_operation = pytest.mark.parametrize(("run", "wide"), CASES)


def test_every_operation_is_here():
    assert {name.split(",")[0] for name in (*WITHOUT_INDICES, *WITH_INDICES)} == {n.split(",")[0] for n in EXAMPLES}


@on_each_operation
def test_few_items(run, wide):
    with jax.enable_x64(wide):
        run(FEW, np.int64 if wide else np.int32)


@is_large
@on_each_operation
def test_more_items_than_32_bits_count(run, wide):
    with jax.enable_x64(wide):
        run(LARGE, np.int64 if wide else np.int32)


def test_31_bits_are_not_enough_without_x64():
    """Indices past 2^31 - 1 ask for int64: an error of the operation that was called, before anything is allocated."""
    x, y, h = (jax.ShapeDtypeStruct(*of) for of in (((2**31,), np.int8), ((2**31 + 1,), np.int8), ((4,), np.int32)))
    calls = {
        "interval_move": lambda: jax.eval_shape(lambda y, h, x: mgpu.interval_move(y, h, h, h, x), y, h, x),
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
            for name in WITH_INDICES
            if name.startswith(("set_", "sorted_"))
        },
    }
    with jax.enable_x64(False):
        for name, call in calls.items():
            with pytest.raises(ValueError, match=f"^{name}: .*: expected fewer than 2.31 items"):
                call()


# ---- What 2^31 items trace to, which takes neither memory nor time --------------------------------------------------


def add(a, b):
    return a + b


def trace_calls(n, index):
    """Calls on n items and four positions of the type `index`: (function, shapes of its arguments)."""
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


@pytest.mark.parametrize("n, index", [(2**31 - 1, np.int32), (2**31, np.int32), (2**32 + 17, np.uint32)])
def test_sizes_past_int32_are_traced(n, index, monkeypatch, x64):
    """Calls, their reverse derivatives and, for the most items, their plain JAX, with live counts of int32."""
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
        return primitive._run_fallback(operation, [jax.numpy.asarray(x) for x in operands], attributes)

    monkeypatch.setattr(primitive.Operation, "run", plain)
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
