"""Keys of several columns, compared with Python's sort of tuples."""

from __future__ import annotations

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from jax_mgpu._src.arguments.values import travel_with_keys
from jax_mgpu._src.core.operation import ABSENT, REGISTRY, run_fallback
from jax_mgpu._src.keys.columns import Columns, _pair_codes
from jax_mgpu._src.keys.digits import code_of
from jax_mgpu._src.ops import sort_strategy
from tests import data, oracle
from tests.oracle import same_bits
from tests.variants import long_but

# Types of the columns, and whether each is descending. The columns of a key have up to 64 bits together in NARROW, and
# more in WIDE; in WIDEST, single columns have 64 bits.
NARROW = {
    "8 bits": (["uint8"], (True,)),
    "two of 8": (["int8", "uint8"], (True, False)),
    "24 bits": (["uint8", "int16"], (False, True)),
    "floats of 16": (["bfloat16", "float16"], (False, True)),
    "40 bits": (["int8", "uint32"], (True, False)),
    "two of 32": (["int32", "uint32"], (False, True)),
    "float and integer": (["float32", "int32"], (True, False)),
    "two floats": (["float32", "float32"], (False, True)),
    "eight columns": (["uint8", "int8"] * 4, (False, True, True, False) * 2),
}
WIDE = {
    "72 bits": (["uint32", "int8", "float32"], (True, False, True)),
    "96 bits": (["int32", "uint32", "int32"], (False, True, False)),
    "eight floats": (["float32", "float16"] * 4, (True, False) * 4),
}
WIDEST = {
    "one of 64": (["int64"], (True,)),
    "two of 64": (["int64", "float64"], (True, False)),
    "across pieces": (["uint16", "uint64", "int8", "int64"], (False, True, False, True)),
    "256 bits": (["int64", "float64", "uint64", "int64"], (True, False) * 2),
}
ALL = NARROW | WIDE | WIDEST
QUICK = ("two of 8", "floats of 16", "float and integer", "eight columns", "96 bits", "one of 64", "across pieces")


@pytest.fixture(params=long_but(QUICK, ALL))
def form(request):
    with jax.enable_x64(request.param in WIDEST):
        yield ALL[request.param]


def random_columns(rng, dtypes, n):
    return tuple(data.random_keys(rng, d, n) if rng.random() < 0.3 else few(rng, d, n) for d in dtypes)


def few(rng, dtype, n):
    """Draws from at most three values."""
    return rng.choice(rng.choice(data.special_keys(dtype), 3), n)


def sorted_columns(rng, form, n_a, n_b, counts=(None, None), descending=True):
    """Returns two sorted operands that share tuples, with arbitrary dead items, and every item's rank."""
    dtypes, flags = form
    columns = random_columns(rng, dtypes, n_a + n_b)
    ranks = oracle.column_ranks(columns, flags if descending else False)
    orders = []
    for begin, n, count in ((0, n_a, counts[0]), (n_a, n_b, counts[1])):
        live = oracle.live_count(count, n)
        orders.append(begin + np.append(np.argsort(ranks[begin : begin + live], kind="stable"), np.arange(live, n)))
    sides = [tuple(x[order] for x in columns) for order in orders]
    return *sides, *(ranks[order].astype(np.int64) for order in orders)


def taken(columns, indices):
    return tuple(x[indices] for x in columns)


def joined(a, b):
    return tuple(np.concatenate(pair) for pair in zip(a, b, strict=True))


def same(got, expected):
    assert type(got) is tuple
    assert len(got) == len(expected)
    for x, y in zip(got, expected, strict=True):
        same_bits(x, y)


# ---- Sorts -----------------------------------------------------------------------------------------------------------


def test_sorts(rng, form):
    dtypes, flags = form
    n, heads = 700, np.array([0, 5, 5, 80, 400, 900], np.int32)
    segmented = jax.jit(mgpu.segmented_sort, static_argnames="descending")
    for name, count in itertools.product(("sort", "mergesort", "locality_sort"), (n, 613)):
        columns, values = random_columns(rng, dtypes, n), rng.normal(size=n).astype(np.float32)
        ranks = oracle.column_ranks(columns, flags)
        order = oracle.segmented_sort_indices(ranks, [], count=count)
        same(getattr(mgpu, name)(columns, descending=flags, count=count), taken(columns, order))
        keys, moved = getattr(mgpu, name)(columns, values, descending=flags, count=count)
        same(keys, taken(columns, order))
        same_bits(moved, values[order])
        if name == "sort":
            same_bits(mgpu.argsort(columns, descending=flags, count=count), order.astype(np.int32))
            continue
        keys, indices = getattr(mgpu, f"{name}_indices")(columns, descending=flags, count=count)
        same(keys, taken(columns, order))
        same_bits(indices, order.astype(np.int32))
        order = oracle.segmented_sort_indices(ranks, heads, count=count)
        rows = values[:, None] * np.ones(2, np.float32)
        keys, moved = segmented(columns, heads, {"rows": rows}, descending=flags, count=count)
        same(keys, taken(columns, order))
        same_bits(moved["rows"], rows[order])
        flagged = data.flags_of(n, heads)
        keys, indices = mgpu.segmented_sort_indices(columns, flags=flagged, descending=flags, count=count)
        same(keys, taken(columns, order))
        same_bits(indices, order.astype(np.int32))


@pytest.fixture(params=["cuda", "default"])
def as_if_long(monkeypatch, request):
    """Makes short columns take the sort for long ones, on any device."""
    jax.clear_caches()
    for name in ("LONG_WORDS", "LONG_FLOATS", "LONG_COLUMNS"):
        monkeypatch.setattr(sort_strategy, name, 1)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda **ways: ways[request.param]())
    yield
    jax.clear_caches()


LONG = ("two of 8", "two of 32", "floats of 16", "float and integer", "two floats")


@pytest.mark.usefixtures("as_if_long")
@pytest.mark.parametrize("name", long_but(LONG, NARROW))
def test_sorts_of_long_columns(rng, name):
    test_sorts(rng, NARROW[name])


# The columns of a mix have 64 bits in all, fewer, or more; those of "wide" have more, and some have 64 bits alone.
MIXES = {
    "64": [[32, 16, 16], [32, 16, 8, 8], [32, 8, 8, 8, 8], [16] * 4, [16, 16, 16, 8, 8], [16, 16] + [8] * 4, [8] * 8],
    "fewer": [[16, 8, 8], [8, 8, 32], [16, 16, 16], [8] * 5, [16, 8, 8, 8, 8]],
    "more": [[32, 32, 16], [32, 16, 32, 16], [32, 32, 32], [32] * 4, [16] * 6, [8, 32, 8, 32, 8, 16]],
    "wide": [[64, 32], [32, 64], [64, 8, 16, 32], [64, 64], [16, 64, 32], [32, 32, 64]],
}
TYPES = {
    8: ["int8", "uint8"],
    16: ["float16", "bfloat16", "int16"],
    32: ["float32", "uint32"],
    64: ["float64", "int64"],
}


@pytest.mark.usefixtures("as_if_long")
@pytest.mark.parametrize("mix", MIXES)
def test_any_columns(rng, mix):
    n = 300
    with jax.enable_x64(mix == "wide"):
        for widths in MIXES[mix]:
            dtypes = [str(rng.choice(TYPES[width])) for width in rng.permutation(widths)]
            flags = tuple(bool(x) for x in rng.random(len(dtypes)) < 0.5)
            columns, values = random_columns(rng, dtypes, n), rng.integers(0, 2**16, n).astype(np.uint16)
            order = np.argsort(oracle.column_ranks(columns, flags), kind="stable")
            same(jax.device_get(mgpu.sort(columns, descending=flags)), taken(columns, order))
            keys, moved = jax.device_get(mgpu.sort(columns, values, descending=flags))
            same(keys, taken(columns, order))
            same_bits(moved, values[order])
            keys, indices = jax.device_get(mgpu.mergesort_indices(columns, descending=flags))
            same(keys, taken(columns, order))
            same_bits(indices, order.astype(np.int32))
            same_bits(mgpu.argsort(columns, descending=flags), order.astype(np.int32))


# Each pair is a range of columns that one sort orders.
def test_where_columns_are_cut():
    def cuts(dtypes, *values):
        columns = Columns("test", "keys", tuple(np.zeros(2, d) for d in dtypes), False)
        leaves = [np.zeros(2, d) for d in values]
        return columns.cuts(lambda rest: travel_with_keys([*rest, *leaves]))

    u8, u16, u32, f16, f32 = np.uint8, np.uint16, np.uint32, np.float16, np.float32
    assert cuts([u32, u32]) == cuts([f32, f32]) == cuts([u32, u32], u32) == [(0, 1), (1, 2)]
    assert cuts([u8, u16, u32]) == [(0, 2), (2, 3)]
    assert cuts([u32, u32, u32]) == [(0, 1), (1, 3)]
    assert cuts([u32, u32, f32]) == cuts([u32, f32, u32]) == [(0, 1), (1, 2), (2, 3)]
    assert cuts([u32, u32, u32], u32) == [(0, 2), (2, 3)]  # a column and the values travel with a key of 64 bits
    assert cuts([f32, u8, u32]) == [(0, 1), (1, 3)]
    assert cuts([u32, u8, u32], u16) == [(0, 1), (1, 2), (2, 3)]  # the columns and values that travel have 56 bits
    assert cuts([f32, u8, u8, f16]) == [(0, 1), (1, 3), (3, 4)]
    assert cuts([f32, f32, f32]) == [(0, 1), (1, 2), (2, 3)]
    assert cuts([f32, f32, f32], u32) == cuts([f32] * 4) == []


# ---- Two columns of integers of 32 bits, alone and with values -------------------------------------------------------


def words(rng, n, dtypes=("int32", "uint32"), few=False):
    """Returns columns; with `few`, many keys are equal."""
    columns = [rng.integers(0, 2**32, n, dtype=np.uint32) for _ in dtypes]
    if few:
        columns = [x % np.uint32(300) << np.uint32(13) for x in columns]
    return tuple(x.view(d) for x, d in zip(columns, dtypes, strict=True))


def check_words(columns, flags, count=None):
    """Checks sorts of keys alone, with values, and of indices."""
    n = len(columns[0])
    live = n if count is None else min(count, n)
    order = np.arange(n)
    order[:live] = np.argsort(oracle.column_ranks([x[:live] for x in columns], flags), kind="stable")
    four, eight = np.arange(n, dtype=np.float32), np.arange(2 * n, dtype=np.int32).reshape(n, 2)

    def sorts(columns, count):
        def sort(values):
            return mgpu.sort(columns, values, descending=flags, count=count)

        return sort(None), sort(four), sort(eight), mgpu.argsort(columns, descending=flags, count=count)

    alone, (keys, moved), (keys_of_rows, rows), indices = jax.device_get(jax.jit(sorts)(columns, count))
    for got in (alone, keys, keys_of_rows):
        same(got, taken(columns, order))
    same_bits(moved, four[order])
    same_bits(rows, eight[order])
    same_bits(indices, order.astype(np.int32))


@pytest.mark.usefixtures("as_if_long")
@pytest.mark.parametrize("flags", list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("dtypes", list(itertools.product(["uint32", "int32"], repeat=2)))
def test_types_and_directions_of_words(rng, dtypes, flags):
    for few in (False, True):
        check_words(words(rng, 3001, dtypes, few), flags)


@pytest.mark.usefixtures("as_if_long")
def test_digits_of_words_that_differ(rng):
    n = 20_001
    for bits in ([], [0], [3], [7], [0, 1], [3, 4], [0, 3, 7], [0, 1, 2, 3], [4, 5, 6, 7], [0, 2, 4, 5, 6], range(8)):
        key = np.full(n, 0x1122334455667788, np.uint64)
        for place in bits:
            key ^= rng.integers(0, 256, n, dtype=np.uint64) << np.uint64(8 * place)
        check_words(((key >> np.uint64(32)).astype(np.uint32), key.astype(np.uint32)), (False, True))


@pytest.mark.usefixtures("as_if_long")
def test_live_words(rng):
    columns = words(rng, 2501)
    for count in (0, 1, 1251, 2500, 2506):
        check_words(columns, (True, False), count)


@pytest.mark.usefixtures("as_if_long")
def test_rows_of_words(rng):
    rows, n, flags = 3, 2501, (True, False)
    columns = tuple(x.reshape(rows, n) for x in words(rng, rows * n))
    values, counts = rng.normal(size=(rows, n)).astype(np.float32), np.array([n, 0, n - 700], np.int32)

    def sort(high, low, values, count):
        return mgpu.sort((high, low), values, descending=flags, count=count)

    for shared in (False, True):
        low = columns[1][0] if shared else columns[1]
        program = jax.jit(jax.vmap(sort, in_axes=(0, None if shared else 0, 0, 0)))
        keys, moved = jax.device_get(program(columns[0], low, values, counts))
        for i, count in enumerate(counts):
            row = (columns[0][i], low if shared else low[i])
            order = np.arange(n)
            order[:count] = np.argsort(oracle.column_ranks([x[:count] for x in row], flags), kind="stable")
            same(tuple(x[i] for x in keys), taken(row, order))
            same_bits(moved[i], values[i][order])


@pytest.mark.usefixtures("as_if_long")
def test_derivatives_of_what_words_carry(rng):
    columns, weights = words(rng, 500), np.arange(500, dtype=np.float32)
    order = np.lexsort(columns[::-1])
    expected = np.zeros(500, np.float32)
    expected[order] = weights
    values = rng.normal(size=500).astype(np.float32)
    for carried in (lambda v: [v], lambda v: [v.astype(jnp.bfloat16), v]):

        def weighted(v, carried=carried):
            return jnp.sum(weights * mgpu.sort(columns, carried(v))[1][-1])

        same_bits(jax.jit(jax.grad(weighted))(values), expected)
    check_grads(lambda v: mgpu.sort(columns, v)[1], (values[:500],), order=2, modes=("fwd", "rev"))


@pytest.mark.long
def test_many_words(rng):
    columns = words(rng, sort_strategy.LONG_WORDS, ("uint32", "uint32"))
    same(jax.device_get(jax.jit(mgpu.sort)(columns)), taken(columns, np.lexsort(columns[::-1])))


@pytest.mark.skipif(not mgpu.has_cuda(), reason="the CUDA kernels are not built, so there is no CUDA lowering")
@pytest.mark.parametrize(
    ("dtypes", "least", "sorts"),
    [
        (("uint32", "int32"), sort_strategy.LONG_WORDS, 2),
        (("float32", "float32"), sort_strategy.LONG_FLOATS, 2),
        (("uint32", "int32", "float32"), sort_strategy.LONG_COLUMNS, 3),
    ],
)
def test_long_columns_travel(dtypes, least, sorts):
    columns = [jax.ShapeDtypeStruct((least,), d) for d in dtypes]
    text = jax.jit(lambda *x: mgpu.sort(x)).trace(*columns).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @jax_mgpu.segmented_sort(") == sorts
    assert "gather" not in text


def test_no_positions_are_counted():
    """A sort of keys needs no positions."""
    columns = [jax.ShapeDtypeStruct((2**31,), d) for d in ("uint32", "int32", "float32")]
    assert list(jax.eval_shape(lambda *x: mgpu.sort(x), *columns)) == columns


@pytest.mark.usefixtures("x64")
def test_the_widest_keys(rng):
    flags = (True, False) * 4
    columns = random_columns(rng, ["int64", "float64", "uint64", "int64"] * 2, 200)
    order = np.argsort(oracle.column_ranks(columns, flags), kind="stable")
    same(mgpu.mergesort(columns, descending=flags), taken(columns, order))


def test_one_direction_for_all(rng):
    columns = random_columns(rng, ["int8", "float32"], 100)
    order = np.argsort(oracle.column_ranks(columns, True), kind="stable")
    same(mgpu.mergesort(columns, descending=True), taken(columns, order))


def test_the_structure_of_the_keys(rng):
    Key = collections.namedtuple("Key", "day, hour")
    keys = Key(*random_columns(rng, ["int16", "uint8"], 50))
    got = mgpu.mergesort(keys)
    assert type(got) is Key
    order = np.lexsort(keys[::-1])
    same_bits(got.day, keys.day[order])
    same_bits(mgpu.mergesort(([3, 1, 2], [0, 0, 1]))[0], np.array([1, 2, 3], np.int32))
    same_bits(mgpu.mergesort((3, 1, 2)), np.array([1, 2, 3], np.int32))  # numbers alone are one column


def test_nothing(form):
    dtypes, flags = form
    nothing = tuple(np.zeros(0, jnp.dtype(d)) for d in dtypes)
    something = tuple(np.zeros(2, jnp.dtype(d)) for d in dtypes)
    same(mgpu.mergesort(nothing, descending=flags), nothing)
    same(mgpu.merge(nothing, something, descending=flags), something)
    same(mgpu.set_union(something, nothing).keys, something)
    assert mgpu.sorted_search(something, nothing).tolist() == [0, 0]
    assert mgpu.sorted_search(nothing, something).shape == (0,)
    assert mgpu.join(something, something, size=5).count == 4
    keys, sums, count = mgpu.reduce_by_key(nothing, np.zeros(0, np.float32), size=2)
    same(keys, something)
    assert sums.shape == (2,)
    assert count == 0


# ---- Two operands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [(None, None), (280, 301)], ids=["all", "counts"])
def test_merge(rng, form, counts):
    a, b, a_ranks, b_ranks = sorted_columns(rng, form, 300, 350, counts)
    given = dict(zip(("a_count", "b_count"), counts, strict=True))
    order = oracle.merge_indices(a_ranks, b_ranks, **given)
    expected = tuple(oracle.padded(x[order], 650, 0) for x in joined(a, b))
    v = np.arange(650, dtype=np.uint32)
    if counts == (None, None):
        same(mgpu.merge(a, b, descending=form[1], **given), expected)
        v = v[:, None]
    keys, moved = mgpu.merge(a, b, v[:300], v[300:], descending=form[1], **given)
    same(keys, expected)
    same_bits(moved, oracle.padded(v[order], 650, 0))


@pytest.mark.parametrize("counts", [(None, None), (280, 301)], ids=["all", "counts"])
def test_searches_and_joins(rng, form, counts):
    a, b, a_ranks, b_ranks = sorted_columns(rng, form, 300, 350, counts, descending=False)
    a_count, b_count = counts
    for side in ("left", "right"):
        got = mgpu.sorted_search(a, b, side, needles_count=a_count, haystack_count=b_count)
        np.testing.assert_array_equal(got, oracle.sorted_search(a_ranks, b_ranks, side, *counts))
    lower, upper = (oracle.sorted_search(a_ranks, b_ranks, side, *counts) for side in ("left", "right"))
    got = mgpu.sorted_equal_count(a, b, a_count=a_count, b_count=b_count)
    np.testing.assert_array_equal(got, upper - lower)
    found = mgpu.sorted_match(a, b, a_count=a_count, b_count=b_count)
    np.testing.assert_array_equal(found.a_index, lower)
    np.testing.assert_array_equal(found.b_index, oracle.sorted_search(b_ranks, a_ranks, "right", b_count, a_count))
    np.testing.assert_array_equal(found.a_match, upper > lower)
    rows = oracle.join_rows("outer", a_ranks[:a_count], b_ranks[:b_count])
    got = mgpu.join(a, b, "outer", size=150_000, a_count=a_count, b_count=b_count)
    assert int(got.count) == len(rows)
    np.testing.assert_array_equal(np.stack(got[:2], axis=1)[: len(rows)], rows)


@pytest.mark.parametrize("name", ["set_intersection", "set_union", "set_difference", "set_symmetric_difference"])
def test_sets(rng, form, name):
    for counts, with_values in (((None, None), True), ((280, 301), False)):
        a, b, a_ranks, b_ranks = sorted_columns(rng, form, 300, 350, counts, descending=False)
        live_a, live_b = (oracle.live_count(c, n) for c, n in zip(counts, (300, 350), strict=True))
        sources = oracle.set_sources(name, a_ranks[:live_a], b_ranks[:live_b])
        sources = np.where(sources >= live_a, sources - live_a + 300, sources)
        given = {"size": 400, "a_count": counts[0], "b_count": counts[1], "fill_value": 7}
        values = np.arange(650, dtype=np.uint32)
        sides = (values[:300], values[300:])[: 2 if name in ("set_union", "set_symmetric_difference") else 1]
        found = getattr(mgpu, name)(a, b, *(sides if with_values else ()), **given)
        assert found.count == len(sources)
        same(found.keys, tuple(oracle.padded(x[sources], 400, 7) for x in joined(a, b)))
        if with_values:
            same_bits(found.values, oracle.padded(values[sources], 400, 7))


def test_reduce_by_key(rng, form):
    dtypes, _ = form
    for n, count in ((500, None), (500, 311)):
        columns = tuple(np.repeat(x, 2)[:n] for x in random_columns(rng, dtypes, n))
        ranks = oracle.column_ranks(columns)
        live = oracle.live_count(count, n)
        heads = np.flatnonzero(np.append(True, ranks[1:live] != ranks[: live - 1]))
        values = rng.integers(0, 100, n).astype(np.int32)
        keys, sums, runs = mgpu.reduce_by_key(columns, values, size=300, count=count)
        assert runs == len(heads)
        same(keys, tuple(oracle.padded(x[heads], 300, 0) for x in columns))
        same_bits(sums, oracle.padded(np.add.reduceat(values[:live], heads, dtype=np.int32), 300, 0))


def test_run_starts(rng, form):
    n, heads = 500, np.array([0, 100, 100, 333, 510], np.int32)
    columns = tuple(np.repeat(x, 2)[:n] for x in random_columns(rng, form[0], n))
    ranks = oracle.column_ranks(columns)
    for count in (None, 311):
        live = oracle.live_count(count, n)
        for given in (None, heads):
            starts = np.flatnonzero(np.append(True, ranks[1:live] != ranks[: live - 1]))
            starts = starts if given is None else np.union1d(starts, heads[heads < live])
            runs = mgpu.run_starts(columns, given, size=450, count=count)
            assert runs.count == len(starts)
            same_bits(runs.starts, oracle.padded(starts.astype(np.int32), 450, n))
            begins = [0] if given is None else np.searchsorted(starts, np.minimum(heads, live))
            np.testing.assert_array_equal(runs.heads, begins)


def test_unique(rng, form):
    flags = {"return_index": True, "return_inverse": True, "return_counts": True}
    for n, count in ((500, None), (500, 311), (1, None), (0, None)):
        columns = random_columns(rng, form[0], n)
        live = oracle.live_count(count, n)
        ranks = oracle.column_ranks(columns)[:live]
        _, first, inverse, times = np.unique(ranks, return_index=True, return_inverse=True, return_counts=True)
        for size in (len(first) // 2, n + 2):
            keys, index, ids, repeats, found = mgpu.unique(columns, size=size, count=count, **flags)
            assert found == len(first)
            expected = tuple(oracle.padded(x[first], size, 0) for x in columns)
            same(keys, expected)
            same_bits(index, oracle.padded(first.astype(np.int32), size, -1))
            same_bits(repeats, oracle.padded(times.astype(np.int32), size, 0))
            kept = np.where(inverse < size, inverse, -1)
            np.testing.assert_array_equal(ids, np.append(kept, np.full(n - live, -1)))
            same(mgpu.unique(columns, size=size, count=count)[0], expected)


# ---- Transformations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form", long_but(["float and integer", "96 bits"], ["float and integer", "two of 32", "96 bits", "eight floats"])
)
def test_batches(rng, form):
    dtypes, flags = ALL[form]
    columns = tuple(np.stack(x) for x in zip(*[random_columns(rng, dtypes, 90) for _ in range(4)], strict=True))
    shared = random_columns(rng, dtypes, 90)
    counts = np.array([90, 0, 17, 80], np.int32)
    sort = jax.vmap(lambda *keys: mgpu.mergesort(keys[:-1], descending=flags, count=keys[-1]))
    got = jax.jit(sort)(*columns, counts)
    half = jax.jit(jax.vmap(lambda first: mgpu.mergesort((first, *shared[1:]), descending=flags)))(columns[0])
    for i, count in enumerate(counts):
        row = taken(columns, i)
        order = oracle.segmented_sort_indices(oracle.column_ranks(row, flags), [], count=count)
        same(taken(got, i), taken(row, order))
        row = (row[0], *shared[1:])
        same(taken(half, i), taken(row, np.argsort(oracle.column_ranks(row, flags), kind="stable")))
    keys = [mgpu.mergesort(taken(columns, i)) for i in range(4)]
    sides = [tuple(np.stack(x) for x in zip(*pair, strict=True)) for pair in (keys, keys[::-1])]
    merged = jax.jit(jax.vmap(mgpu.merge))(*sides)
    found = jax.jit(jax.vmap(lambda a, b: mgpu.sorted_match(a, b).a_index))(*sides)
    for i in range(4):
        a, b = (taken(x, i) for x in sides)
        ranks = oracle.column_ranks(joined(a, b))
        same(taken(merged, i), taken(joined(a, b), oracle.merge_indices(ranks[:90], ranks[90:])))
        np.testing.assert_array_equal(found[i], oracle.sorted_search(ranks[:90], ranks[90:]))


@pytest.mark.parametrize("wide", [False, True], ids=["64 bits", "96 bits"])
@pytest.mark.long
def test_derivatives(rng, wide):
    check_derivatives(rng, wide)


@pytest.mark.usefixtures("as_if_long")
@pytest.mark.long
def test_derivatives_of_long_columns(rng):
    check_derivatives(rng, False)


@pytest.mark.usefixtures("as_if_long")
def test_batches_of_long_columns(rng):
    test_batches(rng, "float and integer")


def check_derivatives(rng, wide):
    n = 12
    group = rng.integers(0, 3, n).astype(np.int32)
    more = (group,) * wide
    key, value = (rng.permutation(n).astype(np.float32) for _ in range(2))

    def sort(key, value):
        keys, moved = mgpu.mergesort((group, key, *more), value, descending=(True, False, *[False] * wide))
        return keys[1], moved

    check_grads(jax.jit(sort), (key, value), order=2, modes=("fwd", "rev"), atol=1e-2, rtol=1e-2)
    order = np.lexsort((key, -group))
    cotangent = rng.normal(size=n).astype(np.float32)
    (got,) = jax.vjp(lambda key: sort(key, value)[0], key)[1](cotangent)
    same_bits(got[order], cotangent)
    halves = [tuple(x[s] for x in mgpu.mergesort((group, key, *more))) for s in (slice(0, 5), slice(5, n))]

    def merge(a, b, x, y):
        (g, _, *m), (h, _, *k) = halves
        keys, values = mgpu.merge((g, a, *m), (h, b, *k), x, y)
        union = mgpu.set_union((g, a, *m), (h, b, *k))
        return keys[1], values, union.keys[1]

    arguments = (*(x[1] for x in halves), value[:5], value[5:])
    check_grads(jax.jit(merge), arguments, order=1, modes=("fwd", "rev"), atol=1e-2, rtol=1e-2)

    @jax.jit
    def sums(key, value):
        keys, values, _ = mgpu.reduce_by_key((group, key, *more), value, size=n)
        return keys[1], values

    check_grads(sums, (key, value), order=1, atol=1e-2, rtol=1e-2)


def test_a_mesh(rng):
    if len(jax.devices()) < 2:
        pytest.skip("fewer than two devices")
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    columns = random_columns(rng, ["int32", "float32", "uint32"], 80)
    spec = jax.sharding.PartitionSpec("x")
    sort = jax.shard_map(mgpu.mergesort, mesh=mesh, in_specs=(spec,), out_specs=spec)
    got = jax.jit(sort)(columns)
    for part in (slice(0, 40), slice(40, 80)):
        rows = taken(columns, part)
        same(taken(jax.device_get(got), part), taken(rows, np.argsort(oracle.column_ranks(rows), kind="stable")))


# ---- Other platforms -------------------------------------------------------------------------------------------------


def test_plain_jax(rng):
    """The plain-JAX forms accept 64-bit keys as two words each."""
    form = ALL["float and integer"]
    a, b, a_ranks, b_ranks = sorted_columns(rng, form, 50, 70, descending=False)
    pair = [Columns("test", "a", x, False) for x in (a, b)]
    codes = _pair_codes(*pair, ABSENT, ABSENT)
    counts = [ABSENT, ABSENT]

    def run(name, *operands, **options):
        return jax.jit(lambda *xs: run_fallback(REGISTRY[name], xs, options))(*map(jnp.asarray, operands))

    found = run("sorted_search", *codes, *counts, right=0)[0]
    np.testing.assert_array_equal(found, oracle.sorted_search(a_ranks, b_ranks))
    merged = run("merge", *codes, ABSENT, ABSENT, *counts, ABSENT, descending=0, payload=2, size=120)[1]
    np.testing.assert_array_equal(merged, oracle.merge_indices(a_ranks, b_ranks))
    *rows, count = run("join", *codes, *counts, size=5000, keep_a=1, keep_b=1)
    np.testing.assert_array_equal(np.stack(rows, 1)[: int(count)], oracle.join_rows("outer", a_ranks, b_ranks))
    fill = jnp.zeros((1,), codes[0].dtype)
    kept = run("sets", *codes, *counts, fill, ABSENT, ABSENT, ABSENT, kind=0, size=50, duplicates=1, payload=2)
    expected = oracle.set_sources("set_intersection", a_ranks, b_ranks)
    np.testing.assert_array_equal(kept[1][: len(expected)], expected)
    mixed = taken(a, rng.permutation(50))
    digits = Columns("test", "a", mixed, False).digits()
    order = run("segmented_sort", code_of(digits, 0, 64), *[ABSENT] * 4, descending=0, method=0, bits=64, payload=2)[1]
    np.testing.assert_array_equal(order, np.argsort(oracle.column_ranks(mixed), kind="stable"))
    heads = run("run_heads", codes[0], ABSENT, size=50)[0]
    np.testing.assert_array_equal(heads[heads < 50], np.flatnonzero(np.append(True, np.diff(a_ranks) != 0)))


# ---- Misuse ----------------------------------------------------------------------------------------------------------


def test_errors_name_the_column():
    x, y = np.zeros(3, np.int32), np.zeros(4, np.int32)
    with pytest.raises(ValueError, match=r"mergesort: keys\[1\]: expected the length of keys\[0\], 3, got int32\[4\]"):
        mgpu.mergesort((x, y))
    with pytest.raises(TypeError, match=r"merge: a\[1\]: expected integers of 8 to 64 bits.*got bool\[3\]"):
        mgpu.merge((x, x > 0), (x, x > 0))
    with pytest.raises(ValueError, match=r"mergesort: keys\[0\]: expected a 1-D array"):
        mgpu.mergesort((x[:, None], x))
    with pytest.raises(TypeError, match=r"join: b\[1\]: expected the dtype of a\[1\], int32, got float32"):
        mgpu.join((x, x), (x, x.astype(np.float32)), size=3)
    with pytest.raises(ValueError, match=r"set_union: b: expected the 2 columns of a, got 3 columns"):
        mgpu.set_union((x, x), (x, x, x))
    with pytest.raises(TypeError, match=r"sorted_search: haystack: expected a tuple of columns, like needles, got"):
        mgpu.sorted_search((x, x), x)
    with pytest.raises(ValueError, match=r"mergesort: keys: expected 1 to 8 columns, got 9 columns"):
        mgpu.mergesort((x,) * 9)
    with pytest.raises(ValueError, match=r"unique: keys: expected 1 to 8 columns, got 0 columns"):
        mgpu.unique((), size=2)
    with pytest.raises(
        ValueError, match=r"mergesort: descending: expected .*a tuple of 2, one per column, got \(True,\)"
    ):
        mgpu.mergesort((x, x), descending=(True,))
    with pytest.raises(TypeError, match=r"mergesort: descending\[1\]: expected a static True or False, got 2"):
        mgpu.mergesort((x, x), descending=(True, 2))
    with pytest.raises(ValueError, match=r"sort: bits: expected None where the keys are columns, got 3"):
        mgpu.sort((x, x), bits=3)
    with pytest.raises(TypeError, match=r"mergesort: descending: expected a static True or False"):
        mgpu.mergesort(x, descending=(True,))


def test_checks_name_the_column():
    first, second = np.array([1, 1, 2], np.int32), np.array([5, 4, 0], np.int32)
    with mgpu.checks():
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"merge: b\[1\]: .*where the columns before are equal"):
            jax.block_until_ready(mgpu.merge((first, first), (first, second)))
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"sorted_search: haystack\[0\]: .*position 1, got 1"):
            jax.block_until_ready(mgpu.sorted_search((first, second[::-1]), (first[::-1], second)))
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"set_union: a\[1\]: expected unique keys"):
            jax.block_until_ready(mgpu.set_union((first, first), (first, first), duplicates=False))
        same(
            mgpu.merge((first, second), (first, second), descending=(False, True)),
            (np.repeat(first, 2), np.repeat(second, 2)),
        )
        mgpu.merge((first, second), (first, second), descending=(False, True), a_count=2)


def test_sorts_of_columns_leak_no_tracers():
    columns = (jnp.arange(5.0), jnp.arange(5)[::-1])
    with jax.checking_leaks():
        jax.jit(lambda keys: mgpu.mergesort((keys,)))(columns[0])
        jax.jit(mgpu.argsort)(columns)
        jax.vmap(lambda keys: mgpu.sort((keys,), keys))(columns[0][None])
