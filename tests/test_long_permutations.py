"""Replacements of gathers and scatters beyond a GPU's cache, tested with short arrays."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.arguments.values import packed_rows
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.ops import argsorted, sort_strategy
from tests import oracle, test_asof_join, test_sort, test_tables
from tests.oracle import same_bits


@pytest.fixture(autouse=True)
def every_permutation_is_long(monkeypatch):
    """Makes any device run CUDA's code for long arrays."""
    jax.clear_caches()
    monkeypatch.setattr(sort_strategy, "LONG_PERMUTATION", 1)
    monkeypatch.setattr(
        jax.lax, "platform_dependent", lambda *operands, cuda=None, default, **_: (cuda or default)(*operands)
    )
    yield
    jax.clear_caches()


# Leaves have at most 8 bytes per row together.
PACKED = [
    [("int32", ()), ("float32", ())],
    [("int8", ()), ("bool", ())],
    [("int16", ()), ("uint8", (3,)), ("bool", (1, 1))],
    [("float32", (2,))],
    [("bfloat16", ()), ("float16", (3,))],
    [("bfloat16", ())],
    [("float32", ()), ("int8", (0,))],
    [("uint32", (1, 1))],
]


def random_bits(rng, dtype, shape):
    if dtype == "bool":
        return rng.random(shape) < 0.5
    dtype = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    return rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype).reshape(shape)


@pytest.mark.parametrize("leaves", PACKED, ids=lambda leaves: " ".join(dtype for dtype, _ in leaves))
def test_leaves_as_one_payload(rng, leaves):
    n = 3001
    keys = rng.integers(-20, 20, n).astype(np.int16)
    values = [random_bits(rng, dtype, (n, *trailing)) for dtype, trailing in leaves]
    order = oracle.sort_indices(keys, True)
    sorted_keys, moved = mgpu.sort(keys, values, descending=True)
    same_bits(sorted_keys, keys[order])
    for got, x in zip(moved, values, strict=True):
        assert np.asarray(got).tobytes() == x[order].tobytes()
    both = [np.stack([x, x]) for x in (keys, *values)]
    _, batch = jax.device_get(jax.vmap(lambda k, *v: mgpu.sort(k, v, descending=True))(*both))
    for got, x in zip(batch, values, strict=True):
        assert np.asarray(got[1]).tobytes() == x[order].tobytes()


def test_leaves_that_no_payload_holds(rng):
    n = 100
    for leaves in ([("int32", (3,))], [("float32", ()), ("float32", ()), ("int8", ())], [("int8", (0,))]):
        assert packed_rows([jnp.zeros((n, *trailing), dtype) for dtype, trailing in leaves]) is None
    assert packed_rows([jnp.zeros(n, jnp.int4)]) is None
    assert packed_rows([jax.random.split(jax.random.key(0), n)]) is None
    assert packed_rows([jnp.zeros(n, jnp.complex64)]) is None


@pytest.mark.usefixtures("x64")
def test_sorts(rng):
    test_sort.test_a_pytree_of_values(rng, 1000)
    test_sort.test_derivatives_go_through_the_permutation(rng)


def test_derivatives_of_packed_leaves(rng):
    n = 300
    keys, x = rng.normal(size=n).astype(np.float32), rng.normal(size=n).astype(np.float32)
    weights = rng.integers(1, 9, n).astype(np.float32)
    order = oracle.sort_indices(keys)
    expected = np.zeros(n, np.float32)
    expected[order] = weights

    def loss(keys, x):
        sorted_keys, (moved, _) = mgpu.sort(keys, (x, np.arange(n, dtype=np.int32)))
        return jnp.sum(weights * (sorted_keys + moved))

    for transformed in (loss, jax.jit(loss), jax.checkpoint(loss)):
        for gradient in jax.grad(transformed, (0, 1))(keys, x):
            same_bits(gradient, expected)
    tangent = jax.jvp(loss, (keys, x), (weights, np.zeros_like(x)))[1]
    np.testing.assert_allclose(tangent, np.sum(weights * weights[order]), rtol=1e-5)


@pytest.mark.parametrize("kind", ["inner", "left", "right", "outer", "semi", "anti"])
def test_joins(rng, kind):
    test_tables.test_joins(rng, ["int32"], kind)
    a, b = (rng.permutation(60)[:n].astype(np.int32) for n in (40, 30))
    for size, a_count, b_count in ((90, None, None), (90, 33, 20), (7, None, None), (7, 33, 20)):
        expected = test_tables.join_rows(kind, a[:a_count], b[:b_count], np.zeros(40, bool), np.zeros(30, bool))
        found = mgpu.join(a, b, kind, size=size, assume_sorted=False, a_count=a_count, b_count=b_count)
        assert int(found.count) == len(expected)
        rows = np.full((max(size, len(expected)), 2), -1)
        rows[: len(expected)] = expected
        np.testing.assert_array_equal(np.stack(found[:2], 1), rows[:size])  # the first rows in a's order


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_asof_joins(rng, dtype):
    test_asof_join.test_asof_join(rng, dtype, "nearest")


@pytest.mark.long
def test_groups(rng):
    test_tables.test_groups_as_pandas(rng)
    test_tables.test_an_operator_a_column(rng)


def test_back_to_the_rows(rng, monkeypatch):
    order = rng.permutation(3001).astype(np.int32)
    for x, longest in itertools.product(
        (rng.integers(0, 99, 3001).astype(np.int32), rng.random(3001) < 0.5), (1, 10**9)
    ):
        monkeypatch.setattr(sort_strategy, "LONG_PERMUTATION", longest)
        wanted = np.zeros_like(x)
        wanted[order] = x
        got = jax.jit(lambda order, x: argsorted.Ordered(None, order, ABSENT).to_rows(x))(order, x)
        np.testing.assert_array_equal(got, wanted)
