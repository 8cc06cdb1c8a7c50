"""Softmax by id, against NumPy and the softmax of sorted segments; and group_ids."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from tests import data
from tests.test_take import adding_scatters

pytestmark = pytest.mark.usefixtures("x64")

FUNCTIONS = {False: mgpu.softmax_by_id, True: mgpu.log_softmax_by_id}
IDS = np.array([2, 0, 2, -1, 4, 0, 2, 7, 4, 5], np.int32)  # ids from 0 to 4 are valid; no item has 1 or 3


def softmax(x, ids, size, log=False):
    out = np.zeros(x.shape, np.float64)
    for i in range(size):
        rows = x[ids == i].astype(np.float64)
        if len(rows):
            shifted = rows - rows.max(0)
            sums = np.exp(shifted).sum(0)
            out[ids == i] = shifted - np.log(sums) if log else np.exp(shifted) / sums
    return out


@pytest.mark.parametrize("dtype", data.FLOAT_DTYPES)
@pytest.mark.parametrize("log", [False, True])
def test_softmax_of_every_float_type(rng, dtype, log):
    for trailing in ((), (3,), (2, 2), (0,)):
        x = (20 * rng.normal(size=(300, *trailing))).astype(jnp.dtype(dtype))
        ids = rng.integers(-2, 42, 300)
        got = FUNCTIONS[log](x, ids, 40)
        assert (got.dtype, got.shape) == (x.dtype, x.shape)
        eps = float(jnp.finfo(x.dtype).eps)
        np.testing.assert_allclose(got.astype(np.float64), softmax(x, ids, 40, log), rtol=40 * eps, atol=10 * eps)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint32", "int64", "uint64"])
def test_ids_of_every_integer_type(rng, kind):
    x, ids = rng.normal(size=200).astype(np.float32), rng.integers(0, 120, 200).astype(kind)
    np.testing.assert_allclose(mgpu.softmax_by_id(x, ids, 100), softmax(x, ids, 100), rtol=1e-5)


def test_nothing():
    assert mgpu.softmax_by_id(np.zeros(0, np.float32), [], 3).shape == (0,)
    np.testing.assert_array_equal(mgpu.log_softmax_by_id(np.ones(2, np.float32), [0, 1], 0), [0, 0])


@pytest.mark.parametrize("log", [False, True])
def test_infinities_stay_within_their_ids(log):
    x = np.array([-np.inf, 1, np.inf, 2, -np.inf, 1, 0, np.nan, np.inf, np.nan], np.float32)
    ids = np.array([0, 0, 1, 2, 3, 0, 1, 4, -1, 9])
    theirs = jax.nn.log_softmax if log else jax.nn.softmax
    expected = np.zeros(10, np.float32)
    for i in range(5):
        expected[ids == i] = theirs(x[ids == i])
    gradient = jax.grad(lambda x: FUNCTIONS[log](x, ids, 5)[jnp.array([0, 1, 3, 8, 9])].sum())(x)
    np.testing.assert_allclose(FUNCTIONS[log](x, ids, 5), expected, rtol=1e-6)
    np.testing.assert_array_equal(gradient[8:], [0, 0])
    assert np.isfinite(gradient[3])


@pytest.mark.parametrize("log", [False, True])
def test_derivatives(rng, log):
    x, mix = rng.normal(size=(10, 2)), rng.normal(size=(10, 2))
    function = jax.jit(lambda x: (FUNCTIONS[log](x, IDS, 5) * mix).sum(1))
    check_grads(function, (x,), 2, modes=["fwd", "rev"])
    gradient = jax.grad(lambda x: function(x).sum())(x)
    np.testing.assert_array_equal(gradient[np.array([3, 7, 9])], np.zeros((3, 2)))


@pytest.mark.parametrize("log", [False, True])
def test_gradient_of_narrow_floats(rng, log):
    """Cotangents are added in float32; a sum in bfloat16 would stop at 256."""
    ids = np.zeros(4000, int)
    gradient = jax.grad(lambda x: (FUNCTIONS[log](x, ids, 1)[:1] * 64).sum().astype(np.float32))
    expected = gradient(jnp.zeros(4000, np.float32))
    np.testing.assert_allclose(gradient(jnp.zeros(4000, jnp.bfloat16)).astype(np.float32), expected, rtol=1e-2)


@pytest.mark.parametrize("mapped", [(0, 0), (0, None), (None, 0)])
def test_batches(rng, mapped):
    x, ids = rng.normal(size=(3, 50, 2)), rng.integers(-1, 9, (3, 50))
    given = [part if axis == 0 else part[1] for part, axis in zip((x, ids), mapped, strict=True)]
    run = jax.jit(jax.vmap(lambda x, ids: mgpu.softmax_by_id(x, ids, 8), in_axes=mapped))
    gradient = jax.jit(jax.vmap(jax.grad(lambda x, ids: mgpu.softmax_by_id(x, ids, 8)[:9].sum()), in_axes=mapped))
    for row in range(3):
        own = [part[row] if axis == 0 else part[1] for part, axis in zip((x, ids), mapped, strict=True)]
        np.testing.assert_allclose(run(*given)[row], softmax(*own, 8), rtol=1e-12, atol=1e-15)
        alone = jax.grad(lambda x: mgpu.softmax_by_id(x, own[1], 8)[:9].sum())(own[0])  # noqa: B023
        np.testing.assert_allclose(gradient(*given)[row], alone, atol=1e-15)


def test_sorted_ids_are_segments(rng):
    x, ids = rng.normal(size=(1000, 2)), np.sort(rng.integers(0, 30, 1000))
    heads = np.searchsorted(ids, np.arange(30))
    for log, function in ((False, mgpu.segmented_softmax), (True, mgpu.segmented_log_softmax)):
        np.testing.assert_allclose(FUNCTIONS[log](x, ids, 30), function(x, heads), rtol=1e-12, atol=1e-12)


# ---- Groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["int8", "uint16", "int32", "uint64"])
def test_groups_are_a_stable_sort(rng, kind):
    for n, size in ((0, 3), (5, 0), (1, 1), (300, 100), (3000, 7)):
        ids = rng.integers(0 if kind.startswith("u") else -2, min(size + 3, 127), n).astype(kind)
        order, segments = mgpu.group_ids(ids, size)
        inside = (ids.astype(int) >= 0) & (ids.astype(int) < size)
        np.testing.assert_array_equal(order, np.argsort(np.where(inside, ids.astype(int), size), kind="stable"))
        np.testing.assert_array_equal(segments.lengths, np.bincount(ids[inside].astype(int), minlength=size))
        assert (order.dtype, segments.starts.dtype, segments.number) == (np.int32, np.int32, size)
        np.testing.assert_array_equal(segments.offsets, np.append(0, np.cumsum(segments.lengths)))


OPERATORS = ["add", "mul", "min", "argmax", "mean", "logsumexp", "var", "count", "first", "last", "median", "nunique"]


@pytest.mark.parametrize("op", OPERATORS)
def test_groups_reduce_as_ids_do(rng, op):
    x, ids = rng.integers(1, 4, (50, 2)).astype(np.float64), rng.integers(-1, 9, 50)
    groups = mgpu.group_ids(ids, 8)
    for rows in (x[:, 0], x):
        expected = mgpu.reduce_by_id(rows, ids, 8, op)
        got = jax.jit(lambda x, groups: mgpu.reduce_by_id(x, groups, 8, op))(rows, groups)
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-14)
        if op in ("add", "mul", "min", "mean", "logsumexp", "var", "first"):
            slopes = [
                jax.jit(jax.grad(lambda x, g=g: (jnp.nan_to_num(mgpu.reduce_by_id(x, g, 8, op)) ** 2).sum()))(rows)
                for g in (ids, groups)
            ]
            np.testing.assert_allclose(*slopes, rtol=1e-12)


@pytest.mark.parametrize("log", [False, True])
def test_softmax_of_groups(rng, log):
    x, ids = rng.normal(size=(50, 2)), rng.integers(-1, 9, 50)
    x[ids < 0] = np.nan
    groups = mgpu.group_ids(ids, 8)
    for rows in (x[:, 0], x):
        np.testing.assert_allclose(FUNCTIONS[log](rows, groups, 8), softmax(rows, ids, 8, log), rtol=1e-12, atol=1e-15)
        slopes = [jax.grad(lambda x, g=g: FUNCTIONS[log](x, g, 8)[:9].sum())(rows) for g in (ids, groups)]
        np.testing.assert_allclose(*slopes, atol=1e-14)


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "float32", "complex64"])
def test_take_by_groups(rng, dtype):
    table, ids = rng.integers(0, 2, (8, 3)).astype(jnp.dtype(dtype)), rng.integers(-1, 9, 50)
    groups, tables = mgpu.group_ids(ids, 8), {"rows": table, "items": table[:, 0], "none": table[:, :0]}
    for fill in (None, 1):
        got, expected = (mgpu.take(tables, indices, fill_value=fill) for indices in (groups, ids))
        for name in tables:
            assert got[name].dtype == expected[name].dtype
            np.testing.assert_array_equal(got[name], expected[name])


@pytest.mark.filterwarnings("ignore:jax_mgpu runs without its kernels")
def test_gradient_of_take_by_groups(rng):
    table, ids = jnp.zeros((3, 2), jnp.bfloat16), rng.integers(-1, 4, 4000)
    gradient = jax.jit(jax.grad(lambda t, g: mgpu.take(t, g).astype(np.float32).sum()))
    expected = np.bincount(ids[ids >= 0], minlength=4)[:3, None] * np.ones((3, 2))
    groups = mgpu.group_ids(ids, 3)
    np.testing.assert_array_equal(gradient(table, groups), jnp.asarray(expected, jnp.bfloat16))
    assert not adding_scatters(gradient, table, groups)
    assert "sort" not in str(jax.make_jaxpr(gradient)(table, groups))


def test_a_batch_of_groups(rng):
    x, ids = rng.normal(size=(3, 50)), rng.integers(-1, 9, (3, 50))

    def both(x, ids):
        groups = mgpu.group_ids(ids, 8)
        sums = mgpu.reduce_by_id(x, groups, 8)
        return sums, mgpu.softmax_by_id(x, groups, 8), mgpu.take(sums, groups)

    got = jax.jit(jax.vmap(both))(x, ids)
    for row in range(3):
        expected = both(x[row], ids[row])
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one[row], other, rtol=1e-12, atol=1e-14)


def test_what_a_misuse_of_groups_says():
    x, groups = np.ones(3, np.float32), mgpu.group_ids([0, 1, 0], 2)
    for error, message, call in [
        (ValueError, "reduce_by_id: ids: expected the Groups of 3 ids", lambda: mgpu.reduce_by_id(x, groups, 3)),
        (ValueError, "reduce_by_id: ids: expected the Groups of as many", lambda: mgpu.reduce_by_id(x[:2], groups, 2)),
        (ValueError, "reduce_by_id: count: expected None with", lambda: mgpu.reduce_by_id(x, groups, 2, count=1)),
        (ValueError, "softmax_by_id: ids: expected the Groups of 9", lambda: mgpu.softmax_by_id(x, groups, 9)),
        (ValueError, "take: ids: expected the Groups of 3 ids", lambda: mgpu.take(x, groups)),
        (TypeError, "take: ids: expected Groups from group_ids", lambda: mgpu.take(x, mgpu.Groups(x, x))),
        (TypeError, "group_ids: ids: expected integers", lambda: mgpu.group_ids(x, 2)),
    ]:
        with pytest.raises(error, match=f"^{message}"):
            call()


def test_what_a_misuse_says():
    x, ids = np.ones(3, np.float32), np.arange(3)
    for error, message, call in [
        (TypeError, "softmax_by_id: x: expected float16, bfloat16", lambda: mgpu.softmax_by_id(ids, ids, 3)),
        (ValueError, "softmax_by_id: x: expected an array with a leading", lambda: mgpu.softmax_by_id(x[0], ids, 3)),
        (TypeError, "softmax_by_id: ids: expected integers", lambda: mgpu.softmax_by_id(x, x, 3)),
        (ValueError, "log_softmax_by_id: ids: expected one id for each", lambda: mgpu.log_softmax_by_id(x, ids[:2], 3)),
        (ValueError, "softmax_by_id: size: expected a static, non-neg", lambda: mgpu.softmax_by_id(x, ids, -1)),
    ]:
        with pytest.raises(error, match=f"^{message}"):
            call()
