"""bulk_remove and bulk_insert, compared with numpy.delete and numpy.insert."""

from __future__ import annotations

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax.test_util import check_grads

import jax_mgpu as mgpu
from jax_mgpu._src.core.operation import REGISTRY
from tests import data, oracle
from tests.oracle import same_bits

pytestmark = pytest.mark.usefixtures("x64")


def removed(x, indices, size, fill_value=0, count=None):
    live = len(x) if count is None else min(max(count, 0), len(x))
    indices = np.asarray(indices, np.int64)
    return oracle.padded(np.delete(x[:live], indices[(indices >= 0) & (indices < live)], 0), size, fill_value)


def inserted(x, indices, values, size, fill_value=0, count=None):
    live = len(x) if count is None else min(max(count, 0), len(x))
    keep = (np.asarray(indices) >= 0) & (np.asarray(indices) <= live)
    return oracle.padded(np.insert(x[:live], np.asarray(indices, np.int64)[keep], values[keep], 0), size, fill_value)


def sorted_unique(rng, n, m):
    return np.sort(rng.choice(n, min(n, m), replace=False)).astype(np.int32)


def test_examples_of_the_documentation():
    same_bits(mgpu.bulk_remove(np.arange(10, dtype=np.int32), [1, 3, 4, 5, 7, 8]), np.array([0, 2, 6, 9], np.int32))
    got = mgpu.bulk_insert(np.array([20, 21, 22]), [1, 1, 2, 3, 3], np.array([10, 11, 12, 13, 14]))
    same_bits(got, np.array([20, 10, 11, 21, 12, 22, 13, 14]))


@pytest.mark.parametrize("n", [0, 1, 23, 123, 3234])
@pytest.mark.parametrize("m", [0, 1, 52, 556, 5676])
def test_sizes(rng, n, m):
    x = rng.integers(0, 2**31, n).astype(np.int32)
    values = -rng.integers(1, 2**31, m).astype(np.int32)
    places = np.sort(rng.integers(0, n + 1, m)).astype(np.int32)
    same_bits(mgpu.bulk_insert(x, places, values), np.insert(x, places, values))
    gone = sorted_unique(rng, n, m)
    same_bits(mgpu.bulk_remove(x, gone), np.delete(x, gone))


@pytest.mark.parametrize("n", [*(tile + d for tile in data.tile_sizes("load_balance") for d in (-1, 0, 1)), 40000])
def test_tile_edges(rng, n):
    x = rng.integers(0, 2**31, n).astype(np.int32)
    for part in (3, 50):
        gone = sorted_unique(rng, n, n // part)
        same_bits(mgpu.bulk_remove(x, gone), np.delete(x, gone))
        places = np.sort(rng.integers(0, n + 1, n // part)).astype(np.int32)
        values = -np.arange(1, len(places) + 1, dtype=np.int32)
        same_bits(mgpu.bulk_insert(x, places, values), np.insert(x, places, values))


def test_all_none_first_last_and_one_place(rng):
    x = rng.integers(0, 99, 9000).astype(np.int32)
    everything = np.arange(9000, dtype=np.int32)
    same_bits(mgpu.bulk_remove(x, everything, size=5), np.zeros(5, np.int32))
    same_bits(mgpu.bulk_remove(x, everything[1:]), x[:1])
    same_bits(mgpu.bulk_remove(x, everything[:-1]), x[-1:])
    same_bits(mgpu.bulk_remove(x, everything[100:8000]), np.delete(x, everything[100:8000]))
    values = -np.arange(1, 40001, dtype=np.int32)
    for place in (0, 4096, 9000):
        same_bits(
            mgpu.bulk_insert(x, np.full(40000, place, np.int32), values), np.insert(x, np.full(40000, place), values)
        )


def test_padding_sizes_and_counts(rng):
    x = rng.integers(0, 99, 500).astype(np.int32)
    values = -np.arange(1, 61, dtype=np.int32)
    for count in (None, 500, 499, 300, 0, -5, 900):
        live = 500 if count is None else min(max(count, 0), 500)
        for padding in (live, live + 1, 500, 501, 2**31 - 1):
            gone = np.append(sorted_unique(rng, max(live, 1), 50), [padding] * 10)[:60].astype(np.int32)
            gone = np.sort(gone)
            places = np.sort(
                np.append(rng.integers(0, live + 1, 50), [padding + 1 if padding < 2**31 - 1 else padding] * 10)
            )
            for size in (None, 480, 30, 700):
                expected_size = (500 - len(gone) if size is None else size, 560 if size is None else size)
                if size is None or padding == 501:  # a given size is tested with one padding alone
                    same_bits(mgpu.bulk_remove(x, gone, size=size, fill_value=-3, count=count),
                         removed(x, gone, expected_size[0], -3, count))  # fmt: skip
                    same_bits(mgpu.bulk_insert(x, places, values, size=size, fill_value=-3, count=count),
                         inserted(x, places, values, expected_size[1], -3, count))  # fmt: skip


def test_negative_indices_are_dropped(rng):
    x = np.arange(20, dtype=np.int32)
    indices = np.array([-7, -2, 0, 3, 19], np.int32)
    values = np.array([-1, -2, -3, -4, -5], np.int32)
    same_bits(mgpu.bulk_remove(x, indices, size=20, fill_value=-1), removed(x, indices, 20, -1))
    same_bits(mgpu.bulk_insert(x, indices, values, fill_value=-1), inserted(x, indices, values, 25, -1))


@pytest.mark.parametrize("trailing", [(), (2,), (3,), (7, 2), (64,), (129,), (0,)], ids=str)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "bfloat16", "float32", "float64", "complex128"])
def test_rows_of_every_width(rng, dtype, trailing):
    x, values = (rng.integers(0, 250, (n, *trailing)).astype(jnp.dtype(dtype)) for n in (300, 40))
    gone, places = sorted_unique(rng, 300, 60), np.sort(rng.integers(0, 301, 40)).astype(np.int32)
    same_bits(mgpu.bulk_remove(x, gone, size=250, fill_value=1), removed(x, gone, 250, 1))
    same_bits(mgpu.bulk_insert(x, places, values, size=350, fill_value=1), inserted(x, places, values, 350, 1))


@pytest.mark.parametrize(
    "in_axes", [(0, 0, 0, 0), (0, None, None, None), (None, 0, None, 0), (None, None, 0, None)], ids=str
)
def test_batch(rng, in_axes):
    x, values = rng.integers(0, 99, (3, 5000)).astype(np.int32), -rng.integers(1, 99, (3, 700)).astype(np.int32)
    indices = np.stack([sorted_unique(rng, 5000, 700) for _ in range(3)])
    counts = np.array([5000, 4000, 17], np.int32)
    one = [a if axis == 0 else a[0] for a, axis in zip((x, indices, values, counts), in_axes, strict=True)]
    remove = jax.vmap(lambda x, i, v, c: mgpu.bulk_remove(x, i, count=c, size=4999), in_axes)
    insert = jax.vmap(lambda x, i, v, c: mgpu.bulk_insert(x, i, v, count=c), in_axes)
    for i in range(3):
        xi, ii, vi, ci = (a[i] if axis == 0 else a for a, axis in zip(one, in_axes, strict=True))
        if in_axes != (None, None, 0, None):
            same_bits(remove(*one)[i], removed(xi, ii, 4999, count=int(ci)))
        same_bits(insert(*one)[i], inserted(xi, ii, vi, 5700, count=int(ci)))


@pytest.mark.parametrize("trailing", [(), (3,), (17,)], ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 1), (3, 0), (2, 1), (8, 3), (17, 30), (100, 33), (700, 300), (3000, 1096), (4096, 1)], ids=str
)
def test_short_rows(rng, shape, trailing):
    n, m = shape
    batch = data.batch_of(n + m, data.WORK_ROWS)
    x, values = (rng.integers(0, 99, (batch, k, *trailing)).astype(np.int16) for k in (n, m))
    counts = data.row_counts(rng, n, batch)
    gone = np.stack([np.append(sorted_unique(rng, n, m), np.full(m - min(n, m), n)) for _ in range(batch)])
    places = np.sort(rng.integers(-1, n + 2, (batch, m))).astype(np.int32)
    remove = jax.vmap(lambda x, i, c: mgpu.bulk_remove(x, i, count=c, size=n, fill_value=5))
    insert = jax.vmap(lambda x, i, v, c: mgpu.bulk_insert(x, i, v, count=c, fill_value=5))
    shared = jax.vmap(lambda i, v: mgpu.bulk_insert(x[0], i, v))
    got = remove(x, gone.astype(np.int32), counts), insert(x, places, values, counts), shared(places, values)
    got = [np.asarray(x) for x in got]
    for i in range(batch):
        count = int(counts[i])
        same_bits(got[0][i], removed(x[i], gone[i], n, 5, count=count))
        same_bits(got[1][i], inserted(x[i], places[i], values[i], n + m, 5, count=count))
        same_bits(got[2][i], inserted(x[0], places[i], values[i], n + m))


def test_short_rows_of_garbage_are_safe(rng):
    x = rng.normal(size=(70, 50))
    for low, high in ((-60, 60), (-(2**31), 2**31)):
        garbage = rng.integers(low, high, (70, 30)).astype(np.int32)
        assert jax.vmap(mgpu.bulk_remove)(x, garbage).shape == (70, 20)
        assert jax.vmap(mgpu.bulk_insert)(x, garbage, x[:, :30]).shape == (70, 80)


def test_garbage_is_safe(rng):
    x = rng.normal(size=(300, 3))
    for low, high in ((0, 300), (-400, 400), (-(2**31), 2**31)):
        garbage = rng.integers(low, high, 5000).astype(np.int32)
        assert mgpu.bulk_remove(x, garbage, size=299).shape == (299, 3)
        assert mgpu.bulk_insert(x, garbage, rng.normal(size=(5000, 3))).shape == (5300, 3)


@pytest.mark.long
def test_derivatives(rng):
    x, values, fill = (jnp.asarray(rng.normal(size=shape)) for shape in ((12, 2), (5, 2), ()))
    gone, places = np.array([-1, 0, 3, 4, 12], np.int32), np.array([-1, 2, 2, 11, 13], np.int32)
    remove = jax.jit(lambda x, f, c: mgpu.bulk_remove(x, gone, size=13, fill_value=f, count=c))
    insert = jax.jit(lambda x, v, f, c: mgpu.bulk_insert(x, places, v, size=18, fill_value=f, count=c))
    for count in (12, 11):
        check_grads(jax.jit(lambda x, f, c=count: remove(x, f, c)), (x, fill), 2)
        check_grads(jax.jit(lambda x, v, f, c=count: insert(x, v, f, c)), (x, values, fill), 1)
    check_grads(jax.jit(lambda v: mgpu.bulk_insert(x, places, v, size=9)), (values,), 1)
    jacobian = jax.jacobian(lambda x: mgpu.bulk_remove(x, [1, 3]))(jnp.arange(5.0))
    same_bits(jacobian, np.delete(np.eye(5), [1, 3], 0))


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(st.lists(st.integers(0, 64), min_size=24, max_size=24), st.integers(0, 64))
def test_property_insert_then_remove_restores(places, count):
    # One program serves all examples.
    x, values = np.arange(64, dtype=np.int32), -np.arange(1, 25, dtype=np.int32)
    places = np.sort(np.minimum(places, count)).astype(np.int32)
    both = mgpu.bulk_insert(x, places, values, count=count)
    same_bits(both, inserted(x, places, values, 88, count=count))
    restored = mgpu.bulk_remove(both, places + np.arange(24, dtype=np.int32), count=count + 24)
    same_bits(restored, oracle.padded(x[:count], 64, 0))


def test_plain_jax_agrees(rng):
    x, values = rng.integers(0, 99, (60, 2)).astype(np.int32), -rng.integers(1, 99, (12, 2)).astype(np.int32)
    fill = np.array([7], np.int32)

    def run(name, *xs, **attributes):
        return jax.jit(functools.partial(REGISTRY[name].fallback, **attributes))(*map(jnp.asarray, xs))[0]

    for count in (None, 40):
        operand = np.array([] if count is None else [count], np.int32)
        gone = np.append([-3], np.append(sorted_unique(rng, 40, 9), [60, 61])).astype(np.int32)
        places = np.append([-3], np.append(np.sort(rng.integers(0, 41, 9)), [61, 70])).astype(np.int32)
        same_bits(run("bulk_remove", x, gone, operand, fill, size=55), removed(x, gone, 55, 7, count))
        same_bits(
            run("bulk_insert", x, places, values, operand, fill, size=75), inserted(x, places, values, 75, 7, count)
        )


def test_errors():
    x = jnp.zeros((5, 2))
    with pytest.raises(TypeError, match="bulk_remove: indices: expected integers, got float32"):
        mgpu.bulk_remove(x, jnp.array([1.0], jnp.float32))
    with pytest.raises(ValueError, match=r"bulk_remove: count: expected an integer scalar, got int64\[1\]"):
        mgpu.bulk_remove(x, [1], count=jnp.array([3]))
    with pytest.raises(ValueError, match="bulk_insert: indices: expected the length of values, 2, got 1"):
        mgpu.bulk_insert(x, [1], x[:2])
    with pytest.raises(TypeError, match="bulk_insert: values: expected the dtype of x, float64, got int32"):
        mgpu.bulk_insert(x, [1], x[:1].astype(jnp.int32))
    with pytest.raises(ValueError, match=r"bulk_insert: values: expected the rows of x, \[n,2\], got float64\[1\]"):
        mgpu.bulk_insert(x, [1], x[:1, 0])
