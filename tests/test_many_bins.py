"""Counts in many bins, compared with NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from tests import data

pytestmark = pytest.mark.usefixtures("x64")


def counted(x, edges):
    """Returns items per bin; the last edge may be NaN."""
    numbers, inner = (v[~np.isnan(v.astype(np.float64))].astype(object) for v in (x, edges[1:-1]))
    first, last = edges[[0, -1]].astype(object)
    inside = (numbers >= first) & ~(numbers > last)  # nothing is above a NaN
    return np.bincount(np.searchsorted(inner, numbers[inside.astype(bool)], "right"), minlength=len(edges) - 1)


@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_bins_of_every_type(rng, dtype):
    x, edges = data.random_keys(rng, dtype, 20_000), data.sorted_keys(rng, dtype, 5001)
    got, _ = jax.jit(mgpu.histogram)(x, edges)
    np.testing.assert_array_equal(got, counted(np.asarray(x), np.asarray(edges)))


@pytest.mark.parametrize("kind", ["even", "normal", "outliers", "equal", "tiny", "far apart"])
def test_bins_of_every_spacing(rng, kind):
    x = rng.normal(size=100_000).astype(np.float32)
    edges = {
        "even": lambda: np.linspace(-4, 4, 30_001),
        "normal": lambda: np.sort(rng.normal(size=30_000)),
        "outliers": lambda: np.concatenate([[-1e30], np.linspace(-1, 1, 3000), [np.inf]]),
        "equal": lambda: np.concatenate([np.full(2000, x[3]), np.full(2000, max(x[3], x[5]))]),
        "tiny": lambda: np.linspace(0.5, 0.5 + 1e-4, 4000),
        "far apart": lambda: np.sort(np.ldexp(rng.choice([-1, 1], 4000), rng.integers(-140, 127, 4000))),
    }[kind]()
    edges = edges.astype(np.float32)
    x[:1000], x[1000:1010] = rng.choice(edges, 1000), [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, 0.5, -0.5]
    got, given = mgpu.histogram(x, edges)
    np.testing.assert_array_equal(got, counted(x, edges))
    np.testing.assert_array_equal(given, edges)


def test_many_bins_of_equal_width(rng):
    x = rng.uniform(-3, 5, 200_000).astype(np.float32)
    for bins in (2047, 2048, 100_000):
        got, edges = mgpu.histogram(x, bins, range=(-2, 4))
        np.testing.assert_array_equal(got, counted(x, np.asarray(edges)))


@pytest.mark.parametrize("shared", [False, True])
def test_a_batch(rng, shared):
    x, edges = rng.normal(size=(3, 9000)), np.sort(rng.normal(size=(3, 4000)), axis=1)
    got = jax.vmap(lambda x, e: mgpu.histogram(x, e)[0], in_axes=(0, None if shared else 0))(
        x, edges[0] if shared else edges
    )
    for row in range(3):
        np.testing.assert_array_equal(got[row], counted(x[row], edges[0 if shared else row]))


@pytest.mark.parametrize("size", [12_288, 12_289, 1_000_000])
@pytest.mark.parametrize("kind", ["uniform", "skewed", "one id"])
def test_many_ids(rng, size, kind):
    n = 300_001
    ids = {
        "uniform": lambda: rng.integers(-5, size + 5, n),
        "skewed": lambda: (rng.zipf(1.2, n) - 1) % (size + 3),
        "one id": lambda: np.full(n, size - 1),
    }[kind]()
    inside = ids[(ids >= 0) & (ids < size)]
    for dtype in (np.int32, np.int64):
        got = mgpu.bincount(ids.astype(dtype), size)
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, np.bincount(inside, minlength=size))
    rows = jnp.stack([jnp.asarray(ids), jnp.full(n, 7)])
    batch = jax.vmap(lambda ids: mgpu.bincount(ids, size))(rows)
    np.testing.assert_array_equal(batch[0], got)
    assert batch[1, 7] == n
