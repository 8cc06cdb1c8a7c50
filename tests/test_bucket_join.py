"""Joins of long tables by hash buckets, tested with short tables on any device."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.ops import bucket_join, sort_strategy
from tests import data
from tests.jaxprs import kernel_calls
from tests.test_long_permutations import every_permutation_is_long  # noqa: F401, for all tests of this module

CAPACITY, CHUNK = bucket_join.CAPACITY, bucket_join.CHUNK
NAN, INF = np.nan, np.inf


def pairs(a, b, keep_a):
    """Returns the rows of a join, ordered by a's rows and then by b's."""
    rows = {}
    for j, key in enumerate(b):
        rows.setdefault(key, []).append(j)
    return [(i, j) for i, key in enumerate(a) for j in rows.get(key, [-1] if keep_a else [])]


def padded(rows, size):
    kept = np.full((size, 2), -1)
    kept[: min(size, len(rows))] = np.array(rows[:size]).reshape(-1, 2)
    return kept


# ---- The kernels -----------------------------------------------------------------------------------------------------

BITS = 2


def patterns(rng):
    """Yields hashed keys of a and b, with names."""
    draw = functools.partial(rng.integers, 0, 2**32, dtype=np.uint32)

    def drawn(keys, n_a, n_b):
        return rng.choice(keys, n_a), rng.choice(keys, n_b)

    yield "nearly all apart", (draw(2 * CHUNK), np.append(draw(900), rng.choice(draw(20_000), 5000)))
    for each in (1, 5, 40):
        yield f"{each} of a kind", drawn(draw(9000 // each), 6000, 9000)
    base = draw() & ~np.uint32(2**18 - 1)
    yield "one slot", drawn(base + np.arange(70, dtype=np.uint32), 700, 600)
    yield "ends of the codes", drawn(np.array([0, 1, 2**30 - 1, 2**30, 2**32 - 1], np.uint32), 90, 300)
    one = draw(1)
    yield "one key of a", (np.repeat(one, 2 * CHUNK + 5), np.append(one, draw(3000)))
    yield "one key of b", (np.append(one, draw(3000)), np.repeat(one, CAPACITY))
    yield "one key", (np.repeat(one, 30), np.repeat(one, 4000))
    yield "one bucket", (draw(CHUNK + 1) >> BITS, draw(CAPACITY) >> BITS)
    nothing = draw(0)
    yield "no b", (draw(50), nothing)
    yield "no a", (nothing, draw(50))


def partition(codes, length, fill):
    """Returns codes and rows by bucket, padded to `length`, and the bounds of the buckets."""
    order = np.argsort(codes >> (32 - BITS), kind="stable")
    bounds = np.searchsorted(codes[order] >> (32 - BITS), np.arange(2**BITS + 1))
    whole = np.concatenate([codes[order], fill.integers(0, 2**32, length - len(codes), dtype=np.uint32)])
    return whole, np.concatenate([order, np.full(length - len(codes), -9)]).astype(np.int32), bounds.astype(np.int32)


def operands(rng, a, b):
    a_codes, a_rows, a_bounds = partition(a, 3 * CHUNK, rng)
    b_codes, b_rows, b_bounds = partition(b, 3 * CAPACITY, rng)
    extra = np.append(0, np.cumsum(np.maximum((np.diff(a_bounds) - 1) // CHUNK, 0))).astype(np.int32)
    return a_codes, a_rows, b_codes, b_rows, a_bounds, b_bounds, extra


def run(size, keep_a):
    return jax.jit(lambda *given: bucket_join._bucket_join.run(given, size=size, keep_a=keep_a))


def plain(size, keep_a):
    return jax.jit(functools.partial(bucket_join._bucket_join.fallback, size=size, keep_a=keep_a))


def expect_pairs(got, expected, size):
    """Checks pairs, in any order of the rows of a."""
    a_rows, b_rows, count = map(np.asarray, got)
    assert count == len(expected)
    number = min(size, len(expected))
    assert (a_rows[number:] == -1).all() and (b_rows[number:] == -1).all()
    found = list(zip(a_rows[:number].tolist(), b_rows[:number].tolist(), strict=True))
    if number < len(expected):
        assert len(set(found)) == number and set(found) <= set(expected)
        return
    assert sorted(found, key=lambda row: row[0]) == expected
    assert np.count_nonzero(np.diff(a_rows[:number])) == max(len(set(a_rows[:number].tolist())) - 1, 0)


@pytest.mark.parametrize("keep_a", [False, True], ids=["inner", "left"])
@pytest.mark.parametrize("form", [run, plain], ids=["kernels", "plain"])
def test_pairs_of_buckets(rng, form, keep_a):
    size, few = 140_000, 1000
    programs = {n: form(n, keep_a) for n in (size, few)}
    for name, (a, b) in patterns(rng):
        given = operands(rng, a, b)
        expected = pairs(a.tolist(), b.tolist(), keep_a)
        for n in (size, few) if name in ("5 of a kind", "one key of a") else (size,):
            expect_pairs(programs[n](*given), expected, n)


def test_pairs_of_buckets_in_batches(rng):
    problems = [drawn for name, drawn in patterns(rng) if name in ("5 of a kind", "one slot", "one key of a")]
    size = 60_000
    given = [np.stack(x) for x in zip(*(operands(rng, *problem) for problem in problems), strict=True)]
    found = jax.vmap(run(size, True))(*given)
    for i, (a, b) in enumerate(problems):
        expect_pairs([x[i] for x in found], pairs(a.tolist(), b.tolist(), True), size)
    shared = [x[0] if i in (2, 3, 5) else x for i, x in enumerate(given)]  # the whole batch shares b
    found = jax.vmap(run(size, False), in_axes=[None if i in (2, 3, 5) else 0 for i in range(7)])(*shared)
    for i, (a, _) in enumerate(problems):
        expect_pairs([x[i] for x in found], pairs(a.tolist(), problems[0][1].tolist(), False), size)


def test_bounds_of_any_value(rng):
    """If bounds are invalid, kernels still end, and return no rows but -1 and those that they were given."""
    a, b = (rng.integers(0, 2**32, n, dtype=np.uint32) for n in (3 * CHUNK, 3 * CAPACITY))
    given = list(operands(rng, a, b))
    program = run(5000, True)
    for largest in (2**31 - 1, 20_000):
        for _ in range(4):
            given[4:] = [rng.integers(-largest, largest, 2**BITS + 1).astype(np.int32) for _ in range(3)]
            a_rows, b_rows, count = map(np.asarray, program(*given))
            number = min(int(count), 5000)
            assert (a_rows[number:] == -1).all()
            assert ((a_rows >= -9) & (a_rows < len(a))).all() and ((b_rows >= -9) & (b_rows < len(b))).all()


# ---- The partition ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 8, 11, 32])
def test_partition_by_the_highest_bits(rng, bits):
    for n, live in ((1000, 800), (300_000, 300_000), (300_000, 299_000)):
        codes = rng.integers(0, 2**32, n, dtype=np.uint32)
        codes[::3] = codes[0]
        sorted_codes, order = map(np.asarray, partitioned(bits)(codes, np.array([live], np.int32)))
        np.testing.assert_array_equal(sorted_codes, codes[order])
        np.testing.assert_array_equal(np.sort(order), np.arange(n))
        np.testing.assert_array_equal(order[live:], np.arange(live, n))
        bucket = sorted_codes[:live] >> (32 - bits)
        assert (bucket[:-1] <= bucket[1:]).all()
        assert (np.diff(order[sorted_codes == codes[0]]) > 0).all()


@functools.cache
def partitioned(bits):
    return jax.jit(lambda codes, count: sort_strategy.partitioned(codes, bits, count))


# ---- The join --------------------------------------------------------------------------------------------------------


def columns_of(dtype, keys):
    """Returns keys, or two columns that fit a 32-bit code, and the values by which Python compares them."""
    if dtype == "columns":
        columns = (keys.astype(np.int8), (keys >> 8).astype(np.uint16))
        return columns, list(zip(*(x.tolist() for x in columns), strict=True))
    if dtype != "float32":
        return keys.astype(dtype), keys.astype(dtype).tolist()
    special = np.array([NAN, -NAN, 0.0, -0.0, INF, -INF], np.float32)
    floats = np.where(keys < len(special), special[keys % len(special)], keys.astype(np.float32))
    return floats, ["nan" if np.isnan(x) else x for x in floats.tolist()]


@pytest.mark.parametrize("dtype", ["int32", "uint32", "float32", "columns"])
@pytest.mark.parametrize("kind", ["inner", "left"])
def test_joins_by_buckets(rng, kind, dtype):
    n_a, n_b, size = 700, 9000, 3000
    join = jax.jit(
        lambda a, b, a_count, b_count: mgpu.join(
            a, b, kind, size=size, assume_sorted=False, a_count=a_count, b_count=b_count
        )
    )
    for distinct, a_count, b_count in ((100_000, n_a, n_b), (4000, 600, 8000), (40, n_a, n_b), (9, 0, 10)):
        (a, a_keys), (b, b_keys) = (columns_of(dtype, rng.integers(0, distinct, n)) for n in (n_a, n_b))
        expected = pairs(a_keys[:a_count], b_keys[:b_count], kind == "left")
        found = join(a, b, np.int32(a_count), np.int32(b_count))
        assert int(found.count) == len(expected)
        np.testing.assert_array_equal(np.stack(found[:2], axis=1), padded(expected, size))


def test_buckets_up_to_their_capacity_and_beyond(rng):
    n_b = 2 * CAPACITY
    a = np.array([5, 6, 5], np.int32)
    join = jax.jit(lambda b: mgpu.join(a, b, "left", size=3 * n_b, assume_sorted=False))
    for number in (CAPACITY - 3, CAPACITY, CAPACITY + 1, n_b):
        b = np.append(np.full(number, 5), 2**20 + np.arange(n_b - number)).astype(np.int32)[rng.permutation(n_b)]
        found = join(b)
        assert int(found.count) == 2 * number + 1
        np.testing.assert_array_equal(np.stack(found[:2], axis=1), padded(pairs(a.tolist(), b.tolist(), True), 3 * n_b))


@pytest.mark.long
def test_batches_of_joins_by_buckets(rng):
    n_b, size = CAPACITY + 10, 9000
    join = jax.jit(jax.vmap(lambda a, b: mgpu.join(a, b, size=size, assume_sorted=False)))
    for distinct in ((5000, 3000, 5000), (5000, 1, 5000), (5000, 300, 5000)):
        a, b = (np.stack([rng.integers(0, d, n) for d in distinct]).astype(np.int32) for n in (1500, n_b))
        found = join(a, b)
        for i in range(3):
            expected = pairs(a[i].tolist(), b[i].tolist(), False)
            assert int(found.count[i]) == len(expected)
            rows = np.stack([found.a_indices[i], found.b_indices[i]], axis=1)
            np.testing.assert_array_equal(rows, padded(expected, size))


def test_joins_that_go_by_buckets():
    def goes(dtype, kind="inner", **options):
        a, b = (np.zeros(n, dtype) for n in (20, 30))
        join = functools.partial(mgpu.join, kind=kind, **{"size": 40, "assume_sorted": False, **options})
        return "mgpu_bucket_join" in {equation.primitive.name for equation in kernel_calls(join, a, b)}

    assert goes(np.int32) and goes(np.uint32, "left", null_equal=False) and goes(np.float32, "left")
    assert not goes(np.float32, null_equal=False)
    assert not goes(np.int16) and not goes(np.int32, "right") and not goes(np.int32, "outer")
    assert not goes(np.int32, assume_sorted=True) and not goes(np.int32, size=101)


def test_the_mixing_of_codes(rng):
    step = np.arange(2**16, dtype=np.uint32)
    for codes in (step, step << 16, step * 1000, np.float32(step).view(np.uint32), data.special_keys("uint32")):
        mixed = np.asarray(bucket_join.mixed(jnp.asarray(codes)))
        assert len(np.unique(mixed)) == len(np.unique(codes))
        if len(codes) == len(step):  # 2,048 is the average
            assert np.bincount(mixed >> 27, minlength=32).max() < 2300


def test_long_tables_are_joined_by_sorts_on_a_cpu(monkeypatch):
    monkeypatch.undo()
    keys = jax.ShapeDtypeStruct((sort_strategy.LONG_PERMUTATION,), jnp.int32)
    join = jax.jit(lambda a, b: mgpu.join(a, b, size=100, assume_sorted=False))
    text = join.trace(keys, keys).lower(lowering_platforms=("cpu",)).as_text()
    assert "jax_mgpu.bucket_join" not in text and "jax_mgpu.segmented_sort" in text
