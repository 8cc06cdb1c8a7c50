"""merge compared with tests/oracle.py."""

from __future__ import annotations

import functools
import itertools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax.test_util import check_grads

import jax_mgpu as mgpu
from jax_mgpu._src.ops.merge import _merge, merged_runs
from tests import data, oracle
from tests.jaxprs import kernel_calls, scratch_bytes
from tests.oracle import same_bits

pytestmark = pytest.mark.usefixtures("x64")

TILES = data.tile_sizes("merge")


def live_part(x, indices, slots):
    """Returns the rows of x at the indices, then zeros."""
    return np.concatenate([x[indices], np.zeros((slots - len(indices), *x.shape[1:]), x.dtype)])


def check(a, b, *, descending=False, a_count=None, b_count=None, merge=mgpu.merge):
    """Checks keys alone, with values, and with rows."""
    counts = {"a_count": a_count, "b_count": b_count}
    slots = len(a) + len(b)
    order = oracle.merge_indices(a, b, descending, **counts)
    expected = live_part(np.concatenate([a, b]), order, slots)
    sources = np.arange(1, slots + 1, dtype=np.uint32)
    same_bits(merge(a, b, descending=descending, **counts), expected)
    keys, carried = merge(a, b, sources[: len(a)], sources[len(a) :], descending=descending, **counts)
    same_bits(keys, expected)
    same_bits(carried, live_part(sources, order, slots))
    pairs = sources[:, None] + np.zeros((1, 2), np.uint16)
    keys, fetched = merge(a, b, pairs[: len(a)], pairs[len(a) :], descending=descending, **counts)
    same_bits(keys, expected)
    same_bits(fetched, live_part(pairs, order, slots))


@functools.cache
def jitted(descending=False):
    return jax.jit(functools.partial(mgpu.merge), static_argnames="descending")


# ---- Types and values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_every_key_type(rng, dtype, descending):
    for counts in ({}, {"a_count": np.int32(4000), "b_count": np.int32(2500)}):
        a = data.sorted_keys(rng, dtype, 5000, descending=descending, count=counts.get("a_count"))
        b = data.sorted_keys(rng, dtype, 3001, descending=descending, count=counts.get("b_count"))
        check(a, b, descending=descending, merge=jitted(), **counts)


@pytest.mark.parametrize("keys", ["uint16", "float64"])
@pytest.mark.parametrize("dtype", ["int32", "float32", "int64", "float64", "complex64"])
def test_a_leaf_of_4_or_8_bytes(rng, keys, dtype):
    a, b = data.sorted_keys(rng, keys, 5000), data.sorted_keys(rng, keys, 700)
    values = rng.integers(0, 256, 5700 * jnp.dtype(dtype).itemsize, dtype=np.uint8).view(dtype)
    order = oracle.merge_indices(a, b, b_count=600)
    merged, moved = mgpu.merge(a, b, {"v": values[:5000]}, {"v": values[5000:]}, b_count=600)
    same_bits(merged, live_part(np.concatenate([a, b]), order, 5700))
    same_bits(moved["v"], live_part(values, order, 5700))


def test_a_pytree_of_any_dtype_and_trailing_shape(rng):
    a, b = data.sorted_keys(rng, "float32", 300, descending=True), data.sorted_keys(rng, "float32", 45, descending=True)
    values = {
        "bfloat16": data.random_keys(rng, "bfloat16", 345),
        "bool": rng.integers(0, 2, 345).astype(bool),
        "rows": [rng.normal(size=(345, 3)).astype(np.float32), data.random_keys(rng, "uint8", 345, 2, 2)],
        "complex128": rng.normal(size=345) + 1j * rng.normal(size=345),
        "no width": np.zeros((345, 0), np.int32),
        "nothing": None,
    }
    a_values, b_values = (jax.tree.map(lambda x: x[part], values) for part in (slice(300), slice(300, None)))  # noqa: B023
    order = oracle.merge_indices(a, b, True, a_count=200)
    merged, moved = mgpu.merge(a, b, a_values, b_values, descending=True, a_count=200)
    same_bits(merged, live_part(np.concatenate([a, b]), order, 345))
    assert jax.tree.structure(moved) == jax.tree.structure(values)
    for got, given in zip(jax.tree.leaves(moved), jax.tree.leaves(values), strict=True):
        assert np.asarray(got).dtype == given.dtype
        assert np.asarray(got).tobytes() == live_part(given, order, 345).tobytes()


def test_values_without_a_leaf(rng):
    a, b = data.sorted_keys(rng, "int32", 30), data.sorted_keys(rng, "int32", 20)
    merged, moved = mgpu.merge(a, b, {}, {})
    same_bits(merged, np.concatenate([a, b])[oracle.merge_indices(a, b)])
    assert moved == {}


# ---- Sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_sizes_given_by_counts(rng, dtype):
    for n_a, n_b in itertools.product((0, 1, 23, 123, 3234), (0, 1, 52, 556, 56767)):
        a, b = data.sorted_keys(rng, dtype, 3234, count=n_a), data.sorted_keys(rng, dtype, 56767, count=n_b)
        check(a, b, a_count=np.int32(n_a), b_count=np.int32(n_b), merge=jitted())


@pytest.mark.parametrize("sizes", [(0, 0), (0, 1), (52, 0), (1, 1), (23, 556), (1, 56767), (56767, 1)], ids=str)
def test_sizes_given_by_shapes(rng, sizes):
    for dtype in ("uint16", "float64"):
        check(*(data.sorted_keys(rng, dtype, n) for n in sizes))


LONG = 2 * max(TILES) + 9


@pytest.mark.parametrize("dtype", ["int16", "uint32", "float64"])
def test_a_tile_and_one_less_and_one_more(rng, dtype):
    for tile, d in itertools.product(TILES, (-1, 0, 1)):
        for n_a, n_b in ((tile + d, 1), (1, tile + d), (tile, tile + d)):
            a, b = data.sorted_keys(rng, dtype, LONG, count=n_a), data.sorted_keys(rng, dtype, LONG, count=n_b)
            counts = {"a_count": np.int32(n_a), "b_count": np.int32(n_b)}
            order = oracle.merge_indices(a, b, **counts)
            same_bits(jitted()(a, b, **counts), live_part(np.concatenate([a, b]), order, 2 * LONG))


@pytest.mark.parametrize("shape", ["equal", "all of a first", "all of b first", "alternating", "runs", "two values"])
def test_shapes_of_data(rng, shape):
    ramp = np.arange(LONG, dtype=np.uint32)
    a, b = {
        "equal": (np.full(LONG, 7, np.uint32), np.full(LONG, 7, np.uint32)),
        "all of a first": (ramp, ramp + np.uint32(LONG)),
        "all of b first": (ramp + np.uint32(LONG), ramp),
        "alternating": (2 * ramp, 2 * ramp + np.uint32(1)),
        "runs": (ramp // 5000, ramp // 3000),
        "two values": (
            np.sort(rng.integers(0, 2, LONG, dtype=np.uint32)),
            np.sort(rng.integers(0, 2, LONG, dtype=np.uint32)),
        ),
    }[shape]
    check(a, b, merge=jitted())
    check(a[::-1].copy(), b[::-1].copy(), descending=True, merge=jitted())


@hypothesis.given(
    a=st.lists(st.integers(-3, 3), max_size=12),
    b=st.lists(st.integers(-3, 3), max_size=12),
    a_count=st.integers(-2, 14),
    b_count=st.integers(-2, 14),
)
@hypothesis.settings(max_examples=100, deadline=None)
def test_any_items(a, b, a_count, b_count):
    padded = [np.array(sorted(x) + [9] * (12 - len(x)), np.int8) for x in (a, b)]
    check(*padded, a_count=np.int32(a_count), b_count=np.int32(b_count), merge=jitted())


# ---- Batches, derivatives, misuse -----------------------------------------------------------------------------------


MIXES = [mix for mix in itertools.product([True, False], repeat=6) if any(mix) and mix[0] + mix[3] + mix[5] != 1]


@pytest.mark.parametrize(
    "mapped", MIXES, ids=lambda mix: "".join(c if on else "-" for c, on in zip("abvwmn", mix, strict=True))
)
def test_vmap_over_mixes_of_operands(rng, mapped):
    batch, n_a, n_b = 4, 70, 33
    counts = rng.integers(0, n_a + 1, batch).astype(np.int32), rng.integers(0, n_b + 1, batch).astype(np.int32)
    everything = (
        np.stack([data.sorted_keys(rng, "float32", n_a) for _ in range(batch)]),
        np.stack([data.sorted_keys(rng, "float32", n_b) for _ in range(batch)]),
        rng.integers(0, 2**32, (batch, n_a), dtype=np.uint32),
        rng.integers(0, 2**32, (batch, n_b), dtype=np.uint32),
        *counts,
    )
    given = [x if on else x[0] for x, on in zip(everything, mapped, strict=True)]
    merge = jax.vmap(
        lambda a, b, v, w, m, n: mgpu.merge(a, b, v, w, a_count=m, b_count=n), [0 if on else None for on in mapped]
    )
    keys, values = merge(*given)
    for row in range(batch):
        a, b, v, w, m, n = (x[row if on else 0] for x, on in zip(everything, mapped, strict=True))
        order = oracle.merge_indices(a, b, a_count=m, b_count=n)
        same_bits(keys[row], live_part(np.concatenate([a, b]), order, n_a + n_b))
        same_bits(values[row], live_part(np.concatenate([v, w]), order, n_a + n_b))


@pytest.mark.parametrize(
    "shape", [(1, 70000, 9), (3, 3840, 3840), (300, 5, 11), (9, 1, 0), (5, 0, 4), (4, 0, 0), (0, 3, 2)], ids=str
)
def test_batches_of_every_shape(rng, shape):
    batch, n_a, n_b = shape
    for dtype in ("uint8", "float64"):
        a = np.array([data.sorted_keys(rng, dtype, n_a) for _ in range(batch)], jnp.dtype(dtype)).reshape(batch, n_a)
        b = np.array([data.sorted_keys(rng, dtype, n_b) for _ in range(batch)], jnp.dtype(dtype)).reshape(batch, n_b)
        got = jax.vmap(mgpu.merge)(a, b)
        assert got.shape == (batch, n_a + n_b)
        for row in range(batch):
            same_bits(got[row], np.concatenate([a[row], b[row]])[oracle.merge_indices(a[row], b[row])])


@pytest.mark.parametrize("lengths", data.SHORT_ROWS, ids=str)
def test_short_rows(rng, lengths):
    (n_a, n_b), batch = lengths, data.batch_of(sum(lengths))
    a_counts, b_counts = (data.row_counts(rng, n, batch) for n in lengths)
    a, b = (data.sorted_rows(rng, data.SHORT_ROWS[lengths], *x) for x in ((n_a, a_counts), (n_b, b_counts)))
    v, w = np.arange(batch * n_a).reshape(batch, n_a), -np.arange(batch * n_b).reshape(batch, n_b).astype(np.int64)
    merge = jax.jit(jax.vmap(lambda a, b, v, w, m, n: mgpu.merge(a, b, v, w, a_count=m, b_count=n)))
    shared = jax.jit(jax.vmap(lambda a, b, n: mgpu.merge(a, b, b_count=n), (None, 0, 0)))
    a[0] = data.in_order(a[0])
    keys, values = map(np.asarray, merge(a, b, v, w, a_counts, b_counts))
    keys_of_one = np.asarray(shared(a[0], b, b_counts))
    for row in range(batch):
        order = oracle.merge_indices(a[row], b[row], a_count=a_counts[row], b_count=b_counts[row])
        same_bits(keys[row], live_part(np.concatenate([a[row], b[row]]), order, n_a + n_b))
        same_bits(values[row], live_part(np.concatenate([v[row], w[row]]), order, n_a + n_b))
        order = oracle.merge_indices(a[0], b[row], b_count=b_counts[row])
        same_bits(keys_of_one[row], live_part(np.concatenate([a[0], b[row]]), order, n_a + n_b))


def test_short_rows_without_order_keep_their_items(rng):
    for n_a, n_b in ((8, 8), (40, 3), (700, 900)):
        batch = data.batch_of(n_a + n_b)
        a, b = (rng.integers(0, 50, (batch, n), dtype=np.int32) for n in (n_a, n_b))
        merged = np.asarray(jax.vmap(mgpu.merge)(a, b))
        for row in range(batch):
            assert np.isin(merged[row], np.concatenate([a[row], b[row]])).all()


def test_vmap_of_vmap(rng):
    a = np.stack([data.sorted_keys(rng, "int32", 40) for _ in range(6)]).reshape(2, 3, 40)
    b = np.stack([data.sorted_keys(rng, "int32", 9) for _ in range(3)])
    got = jax.vmap(jax.vmap(mgpu.merge), (0, None))(a, b)
    for i, j in itertools.product(range(2), range(3)):
        same_bits(got[i, j], np.concatenate([a[i, j], b[j]])[oracle.merge_indices(a[i, j], b[j])])


@pytest.mark.long
def test_derivatives_go_with_the_items(rng):
    a, b = np.sort(rng.normal(size=7)), np.sort(rng.normal(size=5))
    v, w = rng.normal(size=(7, 2)), rng.normal(size=(5, 2))
    x, y = rng.normal(size=7), rng.normal(size=5)
    check_grads(jax.jit(lambda a, b: mgpu.merge(a, b, a_count=6)), (a, b), order=2, eps=1e-6)
    check_grads(jax.jit(lambda a, b, v, w: mgpu.merge(a, b, v, w, b_count=3)), (a, b, v, w), order=2, eps=1e-6)
    check_grads(jax.jit(lambda x, y: mgpu.merge(a, b, x, y)[1] ** 2), (x, y), order=2)
    check_grads(jax.jit(lambda x: mgpu.merge(a, b, x, y)[1] ** 2), (x,), order=2)
    batch = np.stack([a, a + 0.1])
    check_grads(jax.jit(lambda b: jax.vmap(mgpu.merge, (0, None))(batch, b)), (b,), order=1, eps=1e-6)
    both = jax.jit(lambda a, b: jax.vmap(lambda a: mgpu.merge(a, b, a, b))(a))
    check_grads(both, (np.stack([a, 2 * a]), b), order=1, eps=1e-6)
    integers = jax.grad(lambda x: mgpu.merge(np.arange(7), np.arange(5), x, y)[1] @ jnp.arange(12.0))(x)
    np.testing.assert_array_equal(integers, [0, 2, 4, 6, 8, 10, 11])


def test_unsorted_input_stays_inside(rng):
    for n_a, n_b in ((LONG, LONG), (LONG, 5)):
        a, b = (rng.integers(0, 100, n, dtype=np.uint32) + np.uint32(1) for n in (n_a, n_b))
        merged, moved = mgpu.merge(a, b, a, b)
        assert np.all((np.asarray(merged) >= 1) & (np.asarray(merged) <= 100))
        assert np.all((np.asarray(moved) >= 1) & (np.asarray(moved) <= 100))


# ---- Neighbouring runs of one array, merged in pairs ----------------------------------------------------------------


def ends_of_runs(rng, runs, n):
    """Yields the ends of runs in an array of n: random, even, all items in the first or in the last run, no items."""
    yield np.sort(rng.integers(0, n + 1, runs)).astype(np.int32)
    yield (n * (np.arange(runs) + 1) // runs).astype(np.int32)
    yield np.full(runs, n, np.int32)
    yield np.append(np.zeros(runs - 1, np.int32), np.int32(n))
    yield np.zeros(runs, np.int32)


def in_runs(keys, ends, descending=False):
    keys, begin = keys.copy(), 0
    for end in ends:
        keys[begin:end] = data.in_order(keys[begin:end], descending)
        begin = end
    return keys


def order_of_pairs(keys, ends, descending=False):
    """Returns the live items' positions after a round of merges."""
    order, begin = [], 0
    for end in (*ends[1::2], *ends[-1:]):
        order.append(begin + oracle.sort_indices(keys[begin:end], descending))
        begin = end
    return np.concatenate(order)


def a_round(keys, values, ends, *, descending, size):
    """Returns a round of merges of keys alone, with values, and with indices."""
    given = {"a": keys, "run_ends": ends, "descending": descending, "size": size}
    alone = _merge(**given, payload=0)
    return *alone, *_merge(**given, a_values=values, payload=1), *_merge(**given, payload=2)


def check_round(got, keys, values, ends, *, descending, size):
    alone, with_values, moved, with_indices, indices = map(np.asarray, got)
    order = order_of_pairs(keys, ends, descending)
    for x in (alone, with_values, with_indices):
        same_bits(x, live_part(keys, order, size))
    same_bits(moved, live_part(values, order, size))
    np.testing.assert_array_equal(indices, np.append(order, np.full(size - len(order), -1)))


RUN_SIZES = sorted(
    {1, 2, 3, 700, LONG, *(tile + by for tile in TILES[:: max(1, len(TILES) // 4)] for by in (-1, 0, 1))}
)


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_rounds_of_runs(rng, dtype, descending):
    n, size = 5001, 4997
    options = {"descending": descending, "size": size}
    call = jax.jit(functools.partial(a_round, **options))
    for runs in (2, 5):
        for ends in ends_of_runs(rng, runs, size):
            keys, values = in_runs(data.random_keys(rng, dtype, n), ends, descending), rng.integers(0, 99, n)
            check_round(call(keys, values, ends), keys, values, ends, **options)


@pytest.mark.parametrize("runs", [1, 2, 3, 8])
@pytest.mark.parametrize("n", RUN_SIZES)
def test_runs_of_every_size(rng, n, runs):
    options = {"descending": False, "size": n}
    call = jax.jit(functools.partial(a_round, **options))
    for dtype in ("uint8", "float32"):
        for ends in ends_of_runs(rng, runs, n):
            keys, values = in_runs(data.random_keys(rng, dtype, n), ends), np.arange(n, dtype=np.uint32) * 3
            check_round(call(keys, values, ends), keys, values, ends, **options)


def test_many_runs(rng):
    n, runs = 40_000, 501
    options = {"descending": False, "size": n}
    call = jax.jit(functools.partial(a_round, **options))
    for ends in ends_of_runs(rng, runs, n):
        keys, values = in_runs(data.random_keys(rng, "float32", n), ends), np.arange(n, dtype=np.uint32) * 3
        check_round(call(keys, values, ends), keys, values, ends, **options)


def test_scratch_memory_of_runs():
    def scratch(runs):
        keys, ends = np.zeros(n, np.float32), np.zeros(runs, np.int32)
        (call,) = kernel_calls(lambda a, run_ends: _merge(a=a, run_ends=run_ends, **options), keys, ends)
        return scratch_bytes(call)

    n, runs = 40_000, 501
    options = {"descending": False, "size": n, "payload": 0}
    assert scratch(runs) - scratch(1) >= (runs - 1) // 2 * 8


def test_batches_of_runs(rng):
    rows, n, runs = 3, 3001, 6
    options = {"descending": False, "size": n}
    ends = np.stack([*ends_of_runs(rng, runs, n)][:rows])
    keys = np.stack([in_runs(data.random_keys(rng, "int16", n), row) for row in ends])
    values = rng.integers(0, 2**32, (rows, n), dtype=np.uint32)
    one = data.in_order(data.random_keys(rng, "int16", n))  # any ends cut it into runs
    call = jax.jit(jax.vmap(functools.partial(a_round, **options)))
    of_one = jax.jit(jax.vmap(functools.partial(a_round, **options), (None, None, 0)))
    of_ends = jax.jit(jax.vmap(functools.partial(a_round, **options), (0, 0, None)))
    same_ends = np.stack([in_runs(row, ends[0]) for row in keys])
    for got, expected_rows in (
        (call(keys, values, ends), [*zip(keys, values, ends, strict=True)]),
        (of_one(one, values[0], ends), [(one, values[0], row) for row in ends]),
        (of_ends(same_ends, values, ends[0]), [(*x, ends[0]) for x in zip(same_ends, values, strict=True)]),
    ):
        for row, given in enumerate(expected_rows):
            check_round([x[row] for x in got], *given, **options)


@pytest.mark.parametrize("runs", [1, 2, 5, 8])
def test_runs_as_one(rng, runs):
    n, size = 700, 690
    rows = rng.normal(size=(n, 2)).astype(np.float16)
    for ends in ends_of_runs(rng, runs, size):
        keys, ids = in_runs(data.random_keys(rng, "float32", n), ends), np.arange(n, dtype=np.int32) + 1
        order = oracle.sort_indices(keys[: ends[-1]])
        for leaves in ([], [ids], [ids, rows]):
            options = {"descending": False, "size": size}
            call = jax.jit(functools.partial(merged_runs, "test", **options))
            got, moved = jax.device_get(call(keys, leaves, ends))
            same_bits(got, live_part(keys, order, size))
            for x, leaf in zip(moved, leaves, strict=True):
                same_bits(x, live_part(leaf, order, size))


def test_derivatives_of_runs(rng):
    ends = np.array([3, 5, 9], np.int32)
    keys, values = in_runs(rng.normal(size=11), ends), rng.normal(size=11)
    call = jax.jit(lambda k, v: merged_runs("test", k, [v], ends, descending=False, size=10))
    check_grads(call, (keys, values), order=2, eps=1e-6)


def test_broken_runs_stay_inside(rng):
    for n in (100, LONG):
        keys = rng.integers(1, 100, n, dtype=np.uint32)
        ends = np.array([n - 3, -5, n // 2, 2_000_000_000, 3, n - 1, -2_000_000_000, n], np.int32)
        for some in (ends, ends[::-1], ends[:3]):
            got, moved = map(np.asarray, _merge(a=keys, a_values=keys, run_ends=some, descending=0, payload=1, size=n))
            assert np.all(got < 100) and np.all(moved < 100)


def test_the_plain_lowering_of_runs_agrees(rng):
    n, size = 90, 85
    for dtype, descending, runs in itertools.product(("uint8", "float32"), (False, True), (1, 2, 5)):
        for ends in ends_of_runs(rng, runs, size):
            keys = data.random_keys(rng, dtype, n)
            keys = data.without_subnormals(keys) if dtype == "float32" else keys
            keys, values = in_runs(keys, ends, descending), rng.integers(0, 99, n)

            def fallback(a, a_values, run_ends, *, payload, descending=descending):
                given = dict.fromkeys(_merge.operands, np.zeros(0, np.int32))
                given.update(a=a, a_values=a_values, run_ends=run_ends)
                return _merge.fallback(
                    *map(jnp.asarray, given.values()), descending=descending, payload=payload, size=size
                )

            got = [x for p in range(3) for x in fallback(keys, values, ends, payload=p)]
            check_round(got, keys, values, ends, descending=descending, size=size)


def test_what_a_misuse_says():
    a, b = np.arange(3), np.arange(2)
    for error, message, call in [
        (TypeError, "merge: a: expected integers of 8 to 64 bits, float16, bfloat16", lambda: mgpu.merge(a > 1, b)),
        (TypeError, "merge: b: expected the dtype of a, int64, got float32", lambda: mgpu.merge(a, np.float32(b))),
        (ValueError, "merge: b: expected a 1-D array", lambda: mgpu.merge(a, b[None])),
        (ValueError, "merge: a_values and b_values: expected both or neither", lambda: mgpu.merge(a, b, a)),
        (ValueError, "merge: b_values: expected arrays with the leading axis of b, 2", lambda: mgpu.merge(a, b, a, a)),
        (ValueError, "merge: b_values: expected the structure of a_values", lambda: mgpu.merge(a, b, [a], b)),
        (TypeError, "merge: b_values: expected the dtypes of a_values", lambda: mgpu.merge(a, b, a, np.float32(b))),
        (ValueError, "merge: b_values: expected the trailing shapes", lambda: mgpu.merge(a, b, a, b[:, None])),
        (TypeError, "merge: a_count: expected an integer scalar", lambda: mgpu.merge(a, b, a_count=1.0)),
        (ValueError, "merge: b_count: expected an integer scalar", lambda: mgpu.merge(a, b, b_count=b)),
    ]:
        with pytest.raises(error, match=message.replace("[", r"\[")):
            call()


def test_the_plain_lowering_agrees(rng):
    for dtype, descending in itertools.product(("uint8", "float32"), (False, True)):
        a, b = rng.integers(0, 40, 90).astype(dtype), rng.integers(0, 40, 50).astype(dtype)
        if dtype == "float32":
            a[:9], b[:5], a[9:15], b[5:9] = np.nan, -np.nan, 0.0, -0.0
        a[:70], b = a[:70][oracle.sort_indices(a[:70], descending)], b[oracle.sort_indices(b, descending)]
        counts = np.array([70], np.int32), np.zeros(0, np.int32)
        keys, indices = _merge.fallback(
            *map(jnp.asarray, (a, b, counts[1], counts[1], *counts, counts[1])),
            descending=descending,
            payload=2,
            size=140,
        )
        order = oracle.merge_indices(a, b, descending, a_count=70)
        same_bits(keys, live_part(np.concatenate([a, b]), order, 140))
        same_bits(indices, np.concatenate([order, np.full(20, -1)]).astype(np.int32))
