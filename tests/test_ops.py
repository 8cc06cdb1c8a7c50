"""`jax_mgpu.ops`, compared with `jax.ops` and jraph's documentation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_mgpu import ops
from tests import dropin


@pytest.mark.parametrize("name", dropin.OPS)
def test_drawn_calls_are_like_those_of_jax(name):
    dropin.drawn(name, 200)()


@pytest.mark.parametrize("name", dropin.OPS)
def test_rows_are_combined_by_kernels(name):
    ours, theirs = dropin.pair(name)
    x = np.random.default_rng(1).standard_normal((90, 3)).astype(np.float32)
    ids = np.random.default_rng(2).integers(-3, 12, 90).astype(np.int32)
    with dropin.kernels_everywhere():
        assert "reduce_by_id" in str(jax.make_jaxpr(lambda x, ids: ours(x, ids, 10))(x, ids))
        got = ours(x, ids % 8, 10), ours(x, ids, 10)
    for one, i in zip(got, (ids % 8, ids), strict=True):
        np.testing.assert_allclose(one, theirs(x, i, 10), rtol=1e-5)


X = np.array([[1.0, 2.0], [4.0, 4.0], [3.0, 8.0], [5.0, 5.0]], np.float32)
IDS = np.array([0, 3, 0, 7])


@pytest.mark.parametrize("everywhere", [False, True])
def test_statistics_are_those_of_jraph(everywhere):
    with dropin.kernels_everywhere() if everywhere else jax.named_scope("as they are"):
        mean, variance = ops.segment_mean(X, IDS, 5), ops.segment_variance(X, IDS, 5)
        softmax = ops.segment_softmax(jnp.asarray(X[:3]), IDS[:3], 5)
        normal = ops.segment_normalize(X[:3], IDS[:3], 5)
    np.testing.assert_allclose(mean, [[2, 5], [0, 0], [0, 0], [4, 4], [0, 0]])
    np.testing.assert_allclose(variance, [[1, 9], [0, 0], [0, 0], [0, 0], [0, 0]])
    first = np.exp(X[[0, 2]]) / np.exp(X[[0, 2]]).sum(axis=0)
    np.testing.assert_allclose(softmax, [first[0], [1, 1], first[1]], rtol=1e-6)
    np.testing.assert_allclose(normal, [[-1, -1], [0, 0], [1, 1]], rtol=1e-6)


def test_ids_of_any_kind_find_their_segment():
    """A negative index counts from the end, and an index past the end finds the last segment, as in `means[ids]`."""
    ids = np.array([-1, 0, 2, 9])
    for kind in ("int32", "int8", "uint8"):
        given = ids.astype(kind)
        means = jnp.asarray(ops.segment_mean(X, given, 7))
        np.testing.assert_array_equal(ops._of_items(means, given), means[given])


def test_the_number_of_segments_may_be_left_out_of_eager_calls():
    assert ops.segment_mean(X, IDS).shape == (8, 2)
    assert ops.segment_sum(X, IDS).tolist() == jax.ops.segment_sum(X, IDS).tolist()
    with pytest.raises(Exception) as theirs:
        jax.jit(jax.ops.segment_sum)(X, IDS)
    with dropin.kernels_everywhere(), pytest.raises(theirs.type):
        jax.jit(ops.segment_sum)(X, IDS)


def test_derivatives():
    def total(x, module):
        return jnp.sum(module.segment_sum(x, IDS, 8) ** 2)

    with dropin.kernels_everywhere():
        got = jax.jit(jax.grad(lambda x: total(x, ops)))(X)
        finite = jax.jit(jax.grad(lambda x: jnp.sum(ops.segment_softmax(x, IDS % 2, 2) * X)))(X)
    np.testing.assert_allclose(got, jax.grad(lambda x: total(x, jax.ops))(X), rtol=1e-4)
    np.testing.assert_allclose(finite[IDS % 2 == 1].sum(axis=0), 0, atol=1e-6)


def test_items_without_a_segment_have_no_part_in_derivatives():
    x, ids, weights = jnp.array([1.0, 2.0, 3.0, 200.0]), jnp.array([0, 1, 1, 2]), jnp.array([1.0, 2.0, 3.0, 4.0])

    def loss(x):
        return jnp.sum(jnp.where(ids < 2, ops.segment_softmax(x, ids, 2), 0) * weights)

    first, second, third, _ = jax.grad(loss)(x).tolist()
    share = 1 / (1 + np.e) * (1 - 1 / (1 + np.e))
    np.testing.assert_allclose([first, second, third], [0, -share, share], atol=1e-6)
    gradient = jax.grad(lambda x: jnp.sum(ops.segment_normalize(x, ids, 2) * weights))(x.at[3].set(4.0))
    np.testing.assert_allclose(gradient[:3], 0, atol=1e-4)  # two items become -1 and 1


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "int32"])
def test_ids_of_each_width_that_are_no_segments(dtype):
    ids = np.array([0, 1, np.iinfo(dtype).max], dtype)
    softmax = ops.segment_softmax(jnp.array([1.0, 2.0, 2.0]), ids, 2)
    np.testing.assert_allclose(softmax, [1, 1, 1])  # as in JAX, too large an id reads the last segment


@pytest.mark.parametrize("name", ["segment_max", "segment_min"])
def test_equal_extrema_share_their_derivative(name):
    ours, theirs = dropin.pair(name)
    sign = 1 if name == "segment_max" else -1
    x = sign * jnp.array([[1, 1, 0, 2, -np.inf, 5, -np.inf], [3, 1, 3, 2, 0, 5, np.inf]]).T.astype(np.float32)
    ids, direction = jnp.array([0, 0, 0, 1, 2, -1, 2]), jnp.arange(14.0).reshape(7, 2)
    with dropin.kernels_everywhere():
        got = jax.jvp(lambda x: ours(x, ids, 4), (x,), (direction,))
        gradient = jax.grad(lambda x: jnp.vdot(ours(x, ids, 3)[:2], direction[:2]))(x)
    for one, other in zip(got, jax.jvp(lambda x: theirs(x, ids, 4), (x,), (direction,)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    np.testing.assert_allclose(gradient, jax.grad(lambda x: jnp.vdot(theirs(x, ids, 3)[:2], direction[:2]))(x))
