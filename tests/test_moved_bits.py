"""Moved items keep their bits, including NaNs of narrow floats, and have derivatives.

XLA's CPU code may convert floats of less than 32 bits to float32, which quiets NaNs. Its optimizations decide where, so
these tests compile with optimizations.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jax_mgpu as mgpu
from tests import oracle
from tests.variants import long_but

FLOAT8 = ["float8_e4m3fn", "float8_e5m2"]
NARROW = ["float16", "bfloat16", *FLOAT8]


@pytest.fixture(autouse=True)
def optimized():
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def every_pattern(dtype):
    """Returns all values of a narrow float type."""
    kind = jnp.dtype(dtype)
    return np.arange(2 ** (8 * kind.itemsize), dtype=f"u{kind.itemsize}").view(kind)


def same_bits(got, expected):
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(oracle.bits(np.asarray(got)), oracle.bits(np.asarray(expected)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_keys_that_serve_a_whole_batch(dtype):
    x = every_pattern(dtype)
    heads = np.stack([np.arange(len(x), dtype=np.int32)] * 2)  # each key is a segment, so nothing moves
    same_bits(jax.jit(jax.vmap(lambda h: mgpu.segmented_sort(x, h)))(heads), np.stack([x, x]))


@pytest.mark.parametrize("dtype", NARROW)
def test_first_items_of_groups(dtype):
    x = every_pattern(dtype)
    keys = np.arange(len(x), dtype=np.int32)
    expected = np.append(x, np.zeros(1, x.dtype))
    for call in (mgpu.group_by, mgpu.reduce_by_key):
        for op in ("first", "last"):
            same_bits(call(keys, x, op, size=len(x) + 1)[1], expected)

            def first(x, keys, call=call, op=op):
                return call(keys, x, op, size=4)[1].astype(jnp.float32).sum()

            slopes = jax.vmap(jax.grad(first), (None, 0))(x[:9], np.stack([keys[:9], keys[:9] // 5]))
            assert slopes.astype(np.float32).sum(axis=1).tolist() == [4, 2]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_few_keys_that_serve_an_outer_batch(dtype):
    x = every_pattern(dtype)
    b = x[np.isnan(x.astype(np.float32))][:60]
    a = np.zeros((2, 1, 4), b.dtype)
    merged = jax.jit(jax.vmap(jax.vmap(mgpu.merge), in_axes=(0, None)))(a, b[None])
    same_bits(merged, np.stack([np.concatenate([a[0, 0], b])[None]] * 2))


@pytest.mark.parametrize("dtype", NARROW)
def test_constant_rows_that_serve_a_batch_over_a_mesh(dtype):
    x = every_pattern(dtype)
    x = x[np.isnan(x.astype(np.float32))][:60]
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(AxisType.Auto,))
    starts = jax.device_put(np.zeros((jax.device_count(), 1), np.int32), NamedSharding(mesh, PartitionSpec("x")))
    program = jax.jit(jax.vmap(lambda s: mgpu.interval_gather(x, s, np.zeros(1, np.int32), len(x))))
    with jax.set_mesh(mesh):
        same_bits(program(starts), np.stack([x] * len(starts)))


@pytest.mark.parametrize("dtype", NARROW)
def test_rows_that_serve_a_whole_batch(dtype):
    x = every_pattern(dtype)

    @jax.jit
    def moved(x, places):
        return jax.vmap(lambda p: mgpu.interval_move(x, [2], p, [0], x, total=1))(places)

    expected = np.stack([x, x])
    expected[0, 5] = expected[1, 7] = x[2]
    same_bits(moved(x, np.array([[5], [7]], np.int32)), expected)


@pytest.mark.parametrize("dtype", NARROW)
def test_values_of_a_sort(dtype):
    x = every_pattern(dtype)
    keys = np.arange(len(x), 0, -1, dtype=np.int32)
    for values, got in (((x,), x), (np.stack([x, x], 1), np.stack([x, x], 1))):
        moved = jax.tree.leaves(jax.jit(mgpu.mergesort)(keys, values)[1])[0]
        same_bits(moved, got[::-1])


@pytest.mark.parametrize("dtype", NARROW)
def test_values_of_sets_and_columns_of_joins(dtype):
    x = every_pattern(dtype)
    n = len(x)
    keys = np.arange(n, dtype=np.int32)
    a, b = keys[::2], keys[1::2]
    size = n + 3
    for at in (3, n - 1):
        fill, padding = x[at : at + 1].reshape(()), x[[at] * 5]  # not scalars, because NumPy changes some scalar NaNs
        union = jax.jit(lambda fill: mgpu.set_union(a, b, x[::2], x[1::2], size=size, fill_value=fill))(fill)
        same_bits(union.values, np.concatenate([x, padding[:3]]))
        rows = mgpu.join(keys, keys[: n - 2], "left", size=size)
        joined = jax.jit(lambda rows, a, b, fill: mgpu.join_columns(rows, a, b, fill_value=fill))
        columns = joined(rows, x, x[: n - 2], fill)
        same_bits(columns.a, np.concatenate([x, padding[:3]]))
        same_bits(columns.b, np.concatenate([x[: n - 2], padding]))
        assert np.asarray(columns.b_null[-5:]).all() and not np.asarray(columns.b_null[:-5]).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_keys_of_a_batch_along_another_axis(dtype):
    x = every_pattern(dtype)
    x = np.resize(x[np.isnan(x.astype(np.float32))], (17, 3))
    same_bits(jax.jit(jax.vmap(mgpu.sort, in_axes=1))(x), x.T)


@pytest.mark.parametrize("dtype", NARROW)
def test_rows_of_columns_of_joins(dtype):
    x = every_pattern(dtype)
    rows = np.stack([x, x[::-1]], 1)
    keys = np.arange(len(x), dtype=np.int32)
    found = mgpu.join(keys, keys[:5], "left", size=len(x) + 2)
    columns = jax.jit(lambda found, x: mgpu.join_columns(found, x, fill_value=2))(found, rows)
    same_bits(columns.a, np.concatenate([rows, np.full((2, 2), 2, dtype)]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_subnormal_keys_that_serve_a_batch(dtype):
    keys = np.tile(np.array([0, 1], "uint16"), 16).view(jnp.dtype(dtype))
    heads = np.stack([np.arange(0, 32, 2, np.int8)] * 2)
    ranks = jax.jit(lambda keys, heads: jax.vmap(lambda heads: mgpu.rank(keys, heads, "dense"))(heads))
    np.testing.assert_array_equal(ranks(keys, heads), [[1, 2] * 16] * 2)


# ---- Derivatives of float8 rows --------------------------------------------------------------------------------------


ROWS_OF_FLOAT8 = {
    "interval_expand": (lambda x: mgpu.interval_expand(x, [0, 2, 3], 5), [2, 1, 2]),
    "interval_gather": (lambda x: mgpu.interval_gather(x, [1, 0], [0, 2], 4), [1, 2, 1]),
    "interval_scatter": (lambda x: mgpu.interval_scatter(x, [2], [0], jnp.zeros(4, x.dtype), total=2), [1, 1, 0]),
    "interval_move": (lambda x: mgpu.interval_move(x, [1], [0], [0], x, total=2), [0, 1, 2]),
    "bulk_remove": (lambda x: mgpu.bulk_remove(x, [1]), [1, 0, 1]),
    "bulk_insert": (lambda x: mgpu.bulk_insert(x, [1], x[:1]), [2, 1, 1]),
    "mergesort values": (lambda x: mgpu.mergesort(np.array([3, 1, 2], np.int32), x)[1], [1, 1, 1]),
    "join_columns": (
        lambda x: mgpu.join_columns(mgpu.join(np.arange(3), np.array([0, 0, 2]), size=4), x).a,
        [2, 0, 1],
    ),
}


@pytest.mark.parametrize("name", ROWS_OF_FLOAT8)
@pytest.mark.parametrize("dtype", long_but(["float8_e4m3fn"], FLOAT8))
def test_derivatives_of_float8_rows(name, dtype):
    call, times = ROWS_OF_FLOAT8[name]
    x = jnp.array([1.0, 0.5, 2.0]).astype(dtype)

    def loss(x):
        return call(x).astype(jnp.float32).sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(x).astype(jnp.float32), np.array(times, np.float32))
    tangent = jnp.array([1.0, 2.0, 4.0]).astype(dtype)
    _, moved = jax.jvp(call, (x,), (tangent,))
    same_bits(moved, call(tangent))
    batch = jnp.stack([x, x[::-1]])
    np.testing.assert_array_equal(
        jax.vmap(jax.grad(loss))(batch).astype(jnp.float32), np.array([times, times], np.float32)
    )


def test_derivatives_outside_of_jit():
    """Tangents may be NumPy arrays outside of jit."""
    rows = mgpu.join(np.arange(3), np.array([0, 0, 2]), size=4)
    x = np.array([1, 2, 4], np.float16)
    _, moved = jax.jvp(lambda x: mgpu.join_columns(rows, x).a, (x,), (x,))
    same_bits(moved, np.array([1, 1, 4, 0], np.float16))


def test_derivative_of_an_insertion_without_results():
    x = jnp.ones((8, 2))
    pulled = jax.grad(lambda v: mgpu.bulk_insert(x, jnp.array([3]), v, size=0).sum())(x[:1])
    same_bits(pulled, np.zeros((1, 2), np.float32))


# ---- Random keys -----------------------------------------------------------------------------------------------------


ORDER = np.array([2, 0, 1], np.int32)
THREE = np.arange(3, dtype=np.int32)
MOVES_RANDOM_KEYS = {
    "mergesort": (lambda k: mgpu.mergesort(ORDER, k)[1], [1, 2, 0]),
    "segmented_sort": (lambda k: mgpu.segmented_sort(ORDER, [0, 2], {"k": k})[1]["k"], [1, 0, 2]),
    "locality_sort": (lambda k: mgpu.locality_sort(ORDER, k)[1], [1, 2, 0]),
    "merge": (lambda k: mgpu.merge(THREE, THREE, k, k)[1], [0, 0, 1, 1, 2, 2]),
    "set_union": (lambda k: mgpu.set_union(THREE, THREE[:1], k, k[2:], size=4).values, [0, 1, 2, None]),
    "set_intersection": (lambda k: mgpu.set_intersection(THREE, THREE[1:], k).values, [1, 2]),
    "join_columns": (
        lambda k: mgpu.join_columns(mgpu.join(THREE, THREE[1:], "left", size=4), None, k[:2]).b,
        [None, 0, 1, None],
    ),
    "interval_expand": (lambda k: mgpu.interval_expand(k, [0, 2, 3], 5, total=4), [0, 0, 1, 2, None]),
    "interval_gather": (lambda k: mgpu.interval_gather(k, [1, 0], [0, 2], 4), [1, 2, 0, 1]),
    "interval_scatter": (lambda k: mgpu.interval_scatter(k[:2], [1], [0], k), [0, 0, 1]),
    "interval_move": (lambda k: mgpu.interval_move(k, [1], [0], [0], k, total=2), [1, 2, 2]),
    "bulk_remove": (lambda k: mgpu.bulk_remove(k, [1], size=3), [0, 2, None]),
    "bulk_insert": (lambda k: mgpu.bulk_insert(k, [1], k[2:]), [0, 2, 1, 2]),
    "scan": (lambda k: mgpu.scan(k, lambda a, b: a), [0, 0, 0]),
    "segmented_reduce": (
        lambda k: mgpu.segmented_reduce(k, [0, 2], lambda a, b: b, identity=k[0]),
        [1, 2],
    ),
    "reduce_by_key": (lambda k: mgpu.reduce_by_key(np.array([4, 4, 5]), k, lambda a, b: b, size=3)[1], [1, 2, None]),
}


@pytest.mark.parametrize("name", MOVES_RANDOM_KEYS)
@pytest.mark.parametrize("impl", long_but(["threefry2x32"], ["threefry2x32", "rbg"]))
def test_random_keys_are_moved_as_any_values(name, impl):
    call, sources = MOVES_RANDOM_KEYS[name]
    keys = jax.random.split(jax.random.key(3, impl=impl), 3)
    words = np.asarray(jax.random.key_data(keys))
    expected = np.stack([words[0] * 0 if i is None else words[i] for i in sources])
    for way in (call, jax.jit(call)):
        got = way(keys)
        assert got.dtype == keys.dtype
        np.testing.assert_array_equal(jax.random.key_data(got), expected)
    batch = jax.vmap(call)(jnp.stack([keys, keys]))
    np.testing.assert_array_equal(jax.random.key_data(batch), np.stack([expected, expected]))


# ---- The caller's padding --------------------------------------------------------------------------------------------


def test_padding_of_load_balance_search():
    offsets, table = np.array([1, 2, 7], np.int32), jnp.array([10.0, 20.0, 30.0])
    for fill in (3, np.int64(3), jnp.int32(3)):
        objects, ranks = mgpu.load_balance_search(offsets, 6, total=4, return_rank=True, fill_value=fill)
        np.testing.assert_array_equal(objects, [3, 0, 1, 1, 3, 3])
        np.testing.assert_array_equal(ranks, [3, 0, 0, 1, 3, 3])
    np.testing.assert_array_equal(mgpu.load_balance_search(offsets, 6, total=4), [-1, 0, 1, 1, -1, -1])
    np.testing.assert_array_equal(table.at[objects].get(mode="fill", fill_value=0), [0, 10, 20, 20, 0, 0])


def test_padding_of_sorted_search():
    needles, haystack = np.array([0, 2, 9, 1], np.int32), np.array([1, 2, 2, 5], np.int32)
    search = jax.jit(lambda fill: mgpu.sorted_search(needles, haystack, needles_count=3, fill_value=fill))
    np.testing.assert_array_equal(search(4), [0, 1, 4, 4])
    np.testing.assert_array_equal(mgpu.sorted_search(needles, haystack, needles_count=3), [0, 1, 4, -1])


@pytest.mark.parametrize("dtype", NARROW)
def test_values_looked_up_in_a_batch(dtype):
    x = every_pattern(dtype)[:300]
    places = np.arange(len(x), dtype=np.int32)
    keys = np.stack([places, places * 7_000_000])
    same_bits(jax.jit(jax.vmap(lambda k: mgpu.lookup(k, k, x)))(keys), np.stack([x, x]))
