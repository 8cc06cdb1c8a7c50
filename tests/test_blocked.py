"""Scans and reductions in plain JAX, block by block: results against Python loops, and sizes of programs."""

from __future__ import annotations

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.functions import blocked_scan

SIZES = (1, 2, 63, blocked_scan.MAX_STEPS, blocked_scan.MAX_STEPS + 1, 64 * 8 + 3, 5000)
U32 = np.uint32


def compose(a, b):
    """Composes affine maps modulo 2^32, which is associative but not commutative."""
    return a[0] * b[0], a[1] * b[0] + b[1]


def maps(rng, n):
    return tuple(rng.integers(0, 2**32, n, U32) for _ in range(2))


def loop(x, cut, reverse):
    n, state = len(x[0]), (U32(1), U32(0))
    result = [np.empty_like(leaf) for leaf in x]
    for k in range(n):
        i = n - 1 - k if reverse else k
        own = x[0][i], x[1][i]
        state = own if k == 0 or cut[i] else compose(state, own)
        for leaf, value in zip(result, state, strict=True):
            leaf[i] = value
    return result


WAYS = {
    "as chosen": blocked_scan.scanned,
    "in turn": lambda combine, x, cut, reverse: blocked_scan._scanned_in_turn(combine, x, cut, reverse=reverse),
    "in step": lambda combine, x, cut, reverse: blocked_scan._scanned_in_step(
        combine, x, cut, reverse=reverse, doubled=64
    ),
    "by doubling": lambda combine, x, cut, reverse: blocked_scan._scanned_in_step(
        combine, x, cut, reverse=reverse, doubled=1 << 20
    ),
}


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reverse", [False, True])
def test_scans(way, reverse, rng, monkeypatch) -> None:
    monkeypatch.setattr(blocked_scan, "LONG_BLOCK", 256)
    monkeypatch.setattr(blocked_scan, "MAX_IN_ONE_BLOCK", 600)
    monkeypatch.setattr(blocked_scan, "MAX_TOTALS", 8)
    for n in SIZES:
        scan = jax.jit(lambda x, cut: WAYS[way](compose, x, cut, reverse=reverse))
        x = maps(rng, n)
        np.testing.assert_array_equal(scan(x, None), loop(x, np.zeros(n, bool), reverse))
        for mean in (3, 700):
            cut = rng.random(n) < 1 / mean
            np.testing.assert_array_equal(scan(x, cut), loop(x, cut, reverse))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reverse", [False, True])
def test_derivatives(way, reverse, rng, monkeypatch) -> None:
    monkeypatch.setattr(blocked_scan, "MAX_TOTALS", 8)
    n = 600
    x, weights = (tuple(rng.normal(size=n) for _ in range(2)) for _ in range(2))
    x[0][rng.integers(0, n, 9)] = 0
    cut = rng.random(n) < 0.05

    def by_loop(x, cut):
        def step(state, item):
            own, starts = item
            state = jax.tree.map(lambda a, b: jnp.where(starts, a, b), own, compose(state, own))
            return state, state

        return jax.lax.scan(step, (1.0, 0.0), (x, cut), reverse=reverse)[1]

    def gradient(scan):
        loss = lambda x: sum((w * y).sum() for w, y in zip(weights, scan(x), strict=True))  # noqa: E731
        return jax.jit(jax.grad(loss))(x)

    for cuts in (None, cut):
        found = gradient(lambda x, cuts=cuts: WAYS[way](compose, x, cuts, reverse=reverse))
        wanted = gradient(lambda x, cuts=cuts: by_loop(x, np.zeros(n, bool) if cuts is None else cuts))
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_reductions(rng) -> None:
    for n in (*SIZES, 64 * 64 * 8 + 77):
        reduce = jax.jit(functools.partial(blocked_scan.combined, compose))
        x = maps(rng, n)
        np.testing.assert_array_equal(reduce(x), [leaf[-1] for leaf in loop(x, np.zeros(n, bool), False)])
        for live in (rng.random(n) < 0.5, np.arange(n) < n // 2, np.arange(n) == n - 1):
            if live.any():
                kept = tuple(leaf[live] for leaf in x)
                wanted = [leaf[-1] for leaf in loop(kept, np.zeros(len(kept[0]), bool), False)]
                np.testing.assert_array_equal(reduce(x, live), wanted)


@pytest.mark.parametrize(("platform", "max_kb"), [("cpu", 64), ("tpu", 64)])
def test_programs_of_many_items_are_small(platform, max_kb) -> None:
    x = (jax.ShapeDtypeStruct((2**26,), np.float32),) * 2
    gradient = jax.grad(lambda x: mgpu.scan(x, compose)[1].sum())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platforms without kernels warn
        text = jax.jit(gradient).trace(x).lower(lowering_platforms=(platform,)).as_text()
    assert len(text) < max_kb * 1024


def test_sums_of_many_floats_round_little(monkeypatch) -> None:
    monkeypatch.setattr(blocked_scan, "LONG_BLOCK", 256)
    monkeypatch.setattr(blocked_scan, "MAX_IN_ONE_BLOCK", 600)
    x = jnp.ones((2**13,), np.float16)
    assert jax.jit(lambda x: mgpu.scan(x, lambda a, b: a + b)[-1])(x) == 2**13
    assert jax.jit(lambda x: mgpu.reduce(x, lambda a, b: a + b))(x) == 2**13
