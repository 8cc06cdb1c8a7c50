"""Derivatives of scans, compared with float64 Jacobians by the rules of reductions."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from tests import mesh, oracle

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


def jacobian(x, op, heads, exclusive, reverse, live):
    """Returns the derivatives of each prefix, and of the total, as rows of a matrix."""
    n = len(x)
    rows = np.zeros((n + 1, n))
    for begin, end in oracle.segment_bounds(n, heads, live):
        for i in range(begin, end):
            part = slice(i + exclusive, end) if reverse else slice(begin, i + 1 - exclusive)
            rows[i, part] = oracle.partial_derivatives(x[part], op)
    rows[n, :live] = oracle.partial_derivatives(x[:live], op)
    return rows


def times(rows, vector):
    """Returns a product where 0 times any weight is 0, as in the transposes."""
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
        # No cotangent is negative: an infinite weight whose cotangents cancel would count as unused.
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


@pytest.mark.parametrize("heads", [None, [0, 3]])
@pytest.mark.parametrize("reverse", [False, True])
def test_exclusive_scans_whose_unused_items_are_infinite(reverse, heads):
    """No result includes the last item of a segment, so its infinite factor must not reach the other items."""
    maps = np.array([[2, 3, INF if heads else 4, 5, 7, INF], [1, 2, INF if heads else 3, 4, 5, INF]])
    maps = maps[:, ::-1] if reverse else maps

    def loss(maps):
        total = 0.0
        for places in np.split(np.arange(6), heads[1:] if heads else []):
            factor, term = 1.0, 0.0
            for i in places[:: -1 if reverse else 1]:
                total += factor + 2 * term
                with np.errstate(invalid="ignore"):
                    factor, term = factor * maps[0, i], term * maps[0, i] + maps[1, i]
        return total

    expected = np.zeros(maps.shape)
    for place in np.ndindex(maps.shape):  # the loss is linear in each number
        zero, one = maps.copy(), maps.copy()
        zero[place], one[place] = 0, 1
        expected[place] = loss(one) - loss(zero)

    def compose(a, b):
        return a[0] * b[0], a[1] * b[0] + b[1]

    for begun in ({"identity": (1.0, 0.0)}, {"initial": (1.0, 0.0)}):
        options = {"exclusive": True, "reverse": reverse, **begun}

        def scanned(x, options=options):
            pair = x[0], x[1]
            of_maps = (
                mgpu.segmented_scan(pair, heads, compose, **options) if heads else mgpu.scan(pair, compose, **options)
            )
            return of_maps[0].sum() + 2 * of_maps[1].sum()

        np.testing.assert_array_equal(jax.grad(scanned)(jnp.asarray(maps, jnp.float32)), expected, err_msg=str(begun))


@pytest.mark.parametrize("op", ["max", "logsumexp"])
def test_derivatives_over_a_mesh_axis(op, rng):
    slots, heads = 3, np.array([0, 4, 10])
    own = mesh.shard_heads(heads, np.full(4, slots), slots, 2)[0]
    named = {"axis_name": mesh.AXIS}

    def local(x, heads):
        scanned = [mgpu.scan(x, op, **form, **named) for form in ({}, {"exclusive": True, "reverse": True})]
        segmented = mgpu.segmented_scan(x, heads, op, **named)
        return (*scanned, segmented, mgpu.segmented_reduce(x, heads, op, **named), mgpu.reduce(x, op, **named)[None])

    call = mesh.by_devices(local, 4)
    gradient = jax.jit(lambda x, cts: jax.vjp(lambda x: call(x, own), x)[1](cts)[0])
    for name, items in ITEMS.items():
        x = np.append(items, [0.5, 0.25, 3])
        cotangents = [rng.integers(0, 3, shape) for shape in ((4, slots),) * 3 + ((4, 2), (4, 1))]
        one = np.zeros(1, int)
        parts = [
            (jacobian(x, op, one, False, False, 12)[:12], cotangents[0]),
            (jacobian(x, op, one, True, True, 12)[:12], cotangents[1]),
            (jacobian(x, op, heads, False, False, 12)[:12], cotangents[2]),
            (jacobian(x, op, heads, False, False, 12)[[3, 9, 11]], cotangents[3][[0, 1, 3], 0]),  # at the last items
            (jacobian(x, op, one, False, False, 12)[[12] * 4], cotangents[4]),
        ]
        for kept in (range(5), (2,), (3,)):
            given = [ct if i in kept else ct * 0 for i, ct in enumerate(cotangents)]
            got = gradient(
                jnp.asarray(x, jnp.float32).reshape(4, slots), tuple(jnp.asarray(c, jnp.float32) for c in given)
            )
            expected = sum(times(rows, ct.ravel()) for i, (rows, ct) in enumerate(parts) if i in kept)
            tolerance = 1e-3 if name == "large" else 3e-5  # states are rounded when devices exchange them
            np.testing.assert_allclose(got.ravel(), expected, rtol=tolerance, atol=1e-6, err_msg=f"{name} {kept}")


def test_reductions_by_the_same_rules():
    x = jnp.array([0, 1000, INF, 1, 2, -INF, -INF])
    heads, ids = jnp.array([0, 3, 5]), jnp.array([0, 0, 0, 1, 1, 2, 2])
    calls = [
        lambda x: mgpu.segmented_reduce(x, heads, "logsumexp"),
        lambda x: mgpu.reduce_by_id(x, ids, 3, "logsumexp"),
        lambda x: mgpu.segmented_reduce(jnp.stack([x, x], 1), heads, "logsumexp")[:, 0],
        lambda x: jnp.stack([mgpu.reduce(x[i:j], "logsumexp") for i, j in ((0, 3), (3, 5), (5, 7))]),
    ]
    used = np.array([[0, 0, NAN, 0, 0, 0, 0], [0, 0, 0, 0.26894143, 0.7310586, 0, 0], np.zeros(7)])
    for call in calls:
        gradients = jax.jit(jax.jacrev(call))(x)
        np.testing.assert_allclose(gradients, used, rtol=1e-5)
    # infinities in one segment do not affect the gradient of another
    products = jax.jit(jax.jacrev(lambda x: mgpu.segmented_reduce(x, jnp.array([0, 3, 5]), "mul")))(x)
    np.testing.assert_allclose(products[1], [0, 0, 0, 2, 1, 0, 0])
