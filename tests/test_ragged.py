"""segment_ids, to_dense, from_dense and take_segments, compared with lists of rows."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from tests import oracle
from tests.oracle import same_bits

pytestmark = pytest.mark.usefixtures("x64")


def rows_of(x, heads, count=None):
    live = oracle.live_count(count, len(x))
    bounds = np.append(np.clip(heads, 0, live), live)
    return [x[b:e] for b, e in itertools.pairwise(bounds)]


def dense(rows, width, fill_value, like):
    out = np.full((len(rows), width, *like.shape[1:]), fill_value, like.dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row[:width]
    return out


def heads_of(rng, m, n):
    heads = np.sort(rng.integers(0, n + 1, m)).astype(np.int32)
    heads[m - m // 5 :] = n + 3  # padding
    return heads


CASES = [(0, 0), (0, 3), (5, 0), (1, 1), (60, 9), (5000, 40), (300, 2000)]


@pytest.mark.parametrize("n, m", CASES)
def test_segment_ids(rng, n, m):
    for heads in (heads_of(rng, m, n), np.zeros(m, np.int64)):
        for count in (None, n // 2):
            expected = np.full(n, -1, np.int32)
            live = oracle.live_count(count, n)
            for i in range(live):
                expected[i] = np.searchsorted(heads, i, "right") - 1
            same_bits(mgpu.segment_ids(heads, n, count=count), expected)


@pytest.mark.parametrize("n, m", CASES)
def test_to_dense(rng, n, m):
    x = {"a": rng.normal(size=n).astype(np.float32), "b": rng.integers(0, 99, (n, 2)).astype(np.int16)}
    heads = heads_of(rng, m, n)
    for count in (None, n // 2):
        for width in (0, 1, 6, 30):
            got = mgpu.to_dense(x, heads, width, count=count, fill_value=-3)
            for name, leaf in x.items():
                same_bits(got[name], dense(rows_of(leaf, heads, count), width, -3, leaf))


@pytest.mark.parametrize("m, width", [(0, 3), (3, 0), (1, 1), (50, 7), (300, 40)])
def test_from_dense(rng, m, width):
    x = {"a": rng.normal(size=(m, width)).astype(np.float32), "b": rng.integers(0, 99, (m, width, 3)).astype(np.int8)}
    lengths = rng.integers(0, width + 1, m)
    total = int(lengths.sum())
    for size in (0, total // 2, total, total + 9):
        got, heads, count = mgpu.from_dense(x, lengths, size=size, fill_value=5)
        same_bits(heads, (np.cumsum(lengths) - lengths).astype(np.int32))
        assert int(count) == total
        for name, leaf in x.items():
            rows = [row[:length] for row, length in zip(leaf, lengths, strict=True)]
            packed = np.concatenate([leaf[:0].reshape(0, *leaf.shape[2:]), *rows])
            same_bits(got[name], oracle.padded(packed, size, 5))


def test_there_and_back(rng):
    heads = np.array([0, 4, 4, 20], np.int32)
    x = rng.normal(size=(50, 2))
    lengths = np.diff([*heads, 50])
    padded = mgpu.to_dense(x, heads, 30)
    again, starts, count = mgpu.from_dense(padded, lengths, size=50)
    same_bits(again, x)
    same_bits(starts, heads)
    assert int(count) == 50


@pytest.mark.parametrize("n, m", [(0, 3), (60, 9), (5000, 40), (300, 2000)])
def test_take_segments(rng, n, m):
    x = {"a": rng.normal(size=n).astype(np.float32), "b": rng.integers(0, 99, (n, 2)).astype(np.uint8)}
    heads = heads_of(rng, m, n)
    for order in (rng.permutation(m), rng.integers(-1, m + 1, m + 3), np.zeros(0, np.int32)):
        for count in (None, n // 2):
            taken = {name: rows_of(leaf, heads, count) for name, leaf in x.items()}
            lengths = [len(taken["a"][i]) if 0 <= i < m else 0 for i in order]
            total = sum(lengths)
            for size in (total, total // 2, total + 3):
                got, starts, found = mgpu.take_segments(x, heads, order, size=size, count=count, fill_value=1)
                same_bits(starts, (np.cumsum(lengths) - lengths).astype(np.int32))
                assert int(found) == total
                for name, leaf in x.items():
                    rows = [taken[name][i] for i in order if 0 <= i < m]
                    same_bits(got[name], oracle.padded(np.concatenate([leaf[:0], *rows]), size, 1))


def test_a_number_that_int32_cannot_hold(rng):
    x = jax.ShapeDtypeStruct((2**30,), np.uint8)
    with jax.enable_x64(False):
        shapes = jax.eval_shape(lambda x: mgpu.take_segments(x, np.zeros(1, np.int32), np.zeros(9, int), size=3), x)
    assert shapes[1].dtype == shapes[2].dtype == np.int32
    from jax_mgpu._src.ops.ragged import _offsets

    lengths = jnp.full(5, 2**30, jnp.int32)
    offsets, total = _offsets(lengths, 2**30)
    same_bits(offsets, np.minimum(np.arange(5) * 2**30, 2**31 - 1).astype(np.int32))
    assert int(total) == 2**31 - 1


def test_derivatives(rng):
    x, heads = rng.normal(size=40), np.array([3, 10, 10, 25], np.int32)
    weights = rng.normal(size=(4, 12))
    gradient = jax.grad(lambda x: jnp.vdot(mgpu.to_dense(x, heads, 12), weights))(x)
    expected = np.zeros(40)
    for i, (b, e) in enumerate(zip(heads, [*heads[1:], 40], strict=True)):
        expected[b : min(e, b + 12)] = weights[i, : min(e - b, 12)]
    np.testing.assert_array_equal(gradient, expected)

    lengths, weights = np.array([5, 0, 12, 3]), rng.normal(size=18)
    gradient = jax.grad(lambda x: jnp.vdot(mgpu.from_dense(x, lengths, size=18)[0], weights))(rng.normal(size=(4, 12)))
    np.testing.assert_array_equal(gradient, dense(np.split(weights[:20], [5, 5, 17]), 12, 0, weights))

    order, weights = np.array([2, 0, 2]), rng.normal(size=22 + 15)
    gradient = jax.grad(lambda x: jnp.vdot(mgpu.take_segments(x, heads, order, size=37)[0], weights))(x)
    expected = np.zeros(40)
    expected[10:25] = weights[:15] + weights[22:]
    expected[3:10] = weights[15:22]
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)


def test_random_keys_and_bools(rng):
    keys, heads = jax.random.split(jax.random.key(0), 5), np.array([0, 2], np.int32)
    same_bits(jax.random.key_data(mgpu.to_dense(keys, heads, 3))[1], jax.random.key_data(keys)[2:])
    flags = rng.random(5) < 0.5
    same_bits(mgpu.to_dense(flags, heads, 3, fill_value=True), dense(np.split(flags, [2]), 3, True, flags))


ERRORS = {
    "to_dense: x: expected arrays with the leading axis of the first array, 3, got int64[4]": lambda: mgpu.to_dense(
        (np.arange(3), np.arange(4)), [0], 2
    ),
    "to_dense: x: expected an array or a pytree of arrays with a leading axis, got no array": lambda: mgpu.to_dense(
        (), [0], 2
    ),
    "to_dense: width: expected a static, non-negative integer, got 2.5": lambda: mgpu.to_dense(np.arange(3), [0], 2.5),
    "from_dense: x: expected arrays [m, width, …] of one width, got int64[3]": lambda: mgpu.from_dense(
        np.arange(3), [0], size=2
    ),
    "from_dense: lengths: expected one length for each of 2 rows of x, got 1": lambda: mgpu.from_dense(
        np.ones((2, 2)), [0], size=2
    ),
    "take_segments: order: expected integers, got float64[1]": lambda: mgpu.take_segments(
        np.arange(3), [0], np.ones(1), size=3
    ),
    "segment_ids: size: expected a static, non-negative integer, got None": lambda: mgpu.segment_ids([0], None),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises((TypeError, ValueError)) as caught:
        ERRORS[message]()
    assert str(caught.value) == message


WITHOUT_SEGMENTS = {
    "segmented_quantile": lambda x, heads: mgpu.segmented_quantile(x, heads, 0.5),
    "segmented_reduce": lambda x, heads: mgpu.segmented_reduce(x, heads, ends=heads),
    "segmented_scan": lambda x, heads: mgpu.segmented_scan(x, heads, ends=heads),
    "segmented_search": lambda x, heads: mgpu.segmented_search(x, jnp.zeros(x.shape, jnp.int32), x, heads, ends=heads),
    "segmented_sort": lambda x, heads: mgpu.segmented_sort(x, heads, ends=heads),
    "segmented_top_k": lambda x, heads: mgpu.segmented_top_k(x, heads, 3),
    "take_segments": lambda x, heads: mgpu.take_segments(x, heads, heads, size=5),
    "to_dense": lambda x, heads: mgpu.to_dense(x, heads, 4),
}


@pytest.mark.parametrize("name", WITHOUT_SEGMENTS)
def test_no_segments_over_an_explicit_mesh(name) -> None:
    """JAX 0.11 cannot infer the sharding of a reshaped empty array."""
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Explicit,), devices=devices)
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    with jax.set_mesh(mesh):
        x = jax.ShapeDtypeStruct((len(devices), 60), np.float32, sharding=spec)
        heads = jax.ShapeDtypeStruct((len(devices), 0), np.int32, sharding=spec)
        result = jax.eval_shape(jax.jit(jax.vmap(WITHOUT_SEGMENTS[name])), x, heads)
    alone = jax.eval_shape(WITHOUT_SEGMENTS[name], np.zeros(60, np.float32), np.zeros(0, np.int32))
    shapes = [(len(devices), *leaf.shape) for leaf in jax.tree.leaves(alone)]
    assert [leaf.shape for leaf in jax.tree.leaves(result)] == shapes


def test_keys_of_no_width_over_an_explicit_mesh() -> None:
    """JAX 0.11 cannot infer the sharding of a reshaped empty array of random keys either."""
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Explicit,), devices=devices)
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    keys = jax.eval_shape(jax.random.key, 0)
    with jax.set_mesh(mesh):
        x = jax.ShapeDtypeStruct((len(devices), 5), keys.dtype, sharding=spec)
        heads = jax.ShapeDtypeStruct((len(devices), 3), np.int32, sharding=spec)
        dense = jax.vmap(lambda x, heads: mgpu.to_dense(x, heads, 0))
        result = jax.eval_shape(jax.jit(dense), x, heads)
    assert (result.shape, result.dtype) == ((len(devices), 3, 0), keys.dtype)
