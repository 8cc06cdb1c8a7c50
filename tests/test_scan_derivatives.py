"""Derivatives of scans, beside Jacobians in float64 that follow from the rules of the reductions of each prefix."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from tests import oracle

N = 9
INF, NAN = np.inf, np.nan
HEADS = np.array([0, 4, 4, 7], np.int32)
ITEMS = {
    "ties": [1, 3, 3, -2, 0, 0, 0, 5, -1],
    "minus infinity first": [-INF, -INF, 0, 1, -INF, 2, -INF, -INF, -INF],
    "infinities": [0, 1, INF, 2, INF, INF, -INF, 1, 2],
    "nan": [0, 1, 2, NAN, 3, 4, 5, INF, NAN],
    "zeros": [0, 2, -0.0, 3, 0, -0.0, 0, 4, 5],
    "large": [1e4, 1e4 + 1, -1e4, 0, 1e4, 1e4, 9e3, -1e4, 1e4],
}


def weights_of(x, op):
    """The partial derivatives of a reduction, by the rules of `reduce`."""
    weights = np.zeros(len(x))
    if not len(x):
        return weights
    with np.errstate(all="ignore"):
        if op in ("min", "max"):
            weights[oracle.combined(x, "arg" + op)] = 1
        elif op == "add":
            weights[:] = 1
        elif op == "mul":
            weights[:] = [np.prod(np.delete(x, i)) for i in range(len(x))]
        elif np.isnan(x).any():
            weights[:] = NAN
        elif (x == INF).any():
            weights[x == INF] = NAN
        elif (x > -INF).any():
            weights[:] = np.exp(x - x.max())
            weights /= weights.sum()
    return weights


def jacobian(x, op, heads, exclusive, reverse, live):
    """Of each prefix of each segment, and of the total."""
    rows = np.zeros((N + 1, N))
    for begin, end in oracle.segment_bounds(N, heads, live):
        for i in range(begin, end):
            part = slice(i + exclusive, end) if reverse else slice(begin, i + 1 - exclusive)
            rows[i, part] = weights_of(x[part], op)
    rows[N, :live] = weights_of(x[:live], op)
    return rows


def times(rows, vector):
    """A product in which 0 wins over any weight, as the transposes take it."""
    with np.errstate(all="ignore"):
        return np.where(vector[:, None] == 0, 0, rows * vector[:, None]).sum(0)


CASES = [
    (op, segmented, exclusive, reverse, segmented != reverse)
    for op in ("max", "logsumexp")
    for segmented, exclusive, reverse in itertools.product((False, True), repeat=3)
] + [
    ("min", True, False, False, True),
    ("min", False, True, True, False),
    ("mul", True, True, False, True),
    ("mul", False, False, True, True),
    ("mul", False, True, False, False),
]


@pytest.mark.parametrize("op, segmented, exclusive, reverse, counted", CASES)
def test_derivatives_of_each_prefix(op, segmented, exclusive, reverse, counted, rng):
    heads = HEADS if segmented else np.zeros(1, np.int32)
    live = 8 if counted else N
    options = {"exclusive": exclusive, "reverse": reverse, "count": live if counted else None}

    def scanned(x):
        if segmented:
            return jnp.append(mgpu.segmented_scan(x, heads, op, **options), 0)
        return jnp.append(*mgpu.scan(x, op, return_total=True, **options))

    both = jax.jit(lambda x, dx, ct: (jax.jvp(scanned, (x,), (dx,))[1], jax.vjp(scanned, x)[1](ct)[0]))
    gradient = jax.jit(
        jax.vmap(jax.grad(lambda x, ct: jnp.where(ct == 0, 0, ct * scanned(x)).sum()), in_axes=(None, 0))
    )
    for name, items in ITEMS.items():
        if op == "mul" and name not in ("ties", "zeros"):
            continue
        x = np.asarray(items)
        rows = jacobian(x, op, heads, exclusive, reverse, live)
        if segmented:
            rows[N] = 0
        # none negative: those of an infinite weight that cancel would count as unused
        cotangents = np.vstack([np.eye(N + 1)[[0, 5, 7, N - 1, N]], rng.integers(0, 3, N + 1)])
        tangent = rng.integers(-2, 3, N)
        cotangent = cotangents[-1]
        forward, backward = both(*(jnp.asarray(y, jnp.float32) for y in (x, tangent, cotangent)))
        with np.errstate(all="ignore"):
            expected = np.where(rows == 0, 0, rows * tangent).sum(1)
        defined = ~np.isnan(expected)
        np.testing.assert_allclose(np.asarray(forward)[defined], expected[defined], rtol=2e-5, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(backward, times(rows, cotangent), rtol=2e-5, atol=1e-6, err_msg=name)
        got = gradient(jnp.asarray(x, jnp.float32), jnp.asarray(cotangents, jnp.float32))
        for row, one in zip(got, cotangents, strict=True):
            np.testing.assert_allclose(row, times(rows, one), rtol=2e-5, atol=1e-6, err_msg=f"{name} {one}")
