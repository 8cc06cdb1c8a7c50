"""Scans by key, initial values of scans, and runs of a least length."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from tests import mesh, oracle
from tests.test_scan import same

FORMS = list(itertools.product((False, True), (False, True)))


def in_turn(x, combine, first, exclusive, reverse):
    """Scans one run in plain Python, starting from `first`."""
    state, results = first, []
    for item in x[:: -1 if reverse else 1]:
        before, state = state, combine(state, item)
        results.append(before if exclusive else state)
    return np.array(results[:: -1 if reverse else 1], x.dtype).reshape(x.shape)


@pytest.mark.parametrize("exclusive, reverse", FORMS)
def test_scan_by_key(rng, exclusive, reverse):
    x = rng.integers(-9, 9, 60).astype(np.int32)
    keys = np.repeat(rng.choice(np.array([np.nan, 0.0, -0.0, 1.0], np.float32), 20), 3)
    cuts = np.flatnonzero(np.diff(np.where(np.isnan(keys), 9, np.abs(keys)))) + 1
    expected = [in_turn(part, np.add, 0, exclusive, reverse) for part in np.split(x, cuts)]
    forms = {"exclusive": exclusive, "reverse": reverse}
    same(mgpu.scan_by_key(keys, x, **forms), np.concatenate(expected))
    columns = keys, np.zeros(60, np.int8)
    same(mgpu.scan_by_key(columns, {"x": x}, "add", **forms)["x"], np.concatenate(expected))
    counted = mgpu.scan_by_key(keys, x, count=31, **forms)
    inside = [in_turn(part, np.add, 0, exclusive, reverse) for part in np.split(x[:31], cuts[cuts < 31])]
    same(counted, np.append(np.concatenate(inside), np.zeros(29, np.int32)))
    assert mgpu.scan_by_key(keys[:0], x[:0], **forms).shape == (0,)


def test_scan_by_key_over_devices(rng):
    call = mesh.by_vmap(lambda k, x, c: mgpu.scan_by_key(k, x, "max", initial=-1, count=c, axis_name=mesh.AXIS))
    for counts in mesh.counts_of(rng, 3, 9):
        total = int(counts.sum())
        keys, x = np.repeat(rng.integers(0, 3, total), 4)[:total], rng.integers(-5, 9, total).astype(np.int32)
        got = mesh.gather(call(mesh.shard(keys, counts, 9), mesh.shard(x, counts, 9), counts), counts)
        parts = np.split(x, np.flatnonzero(np.diff(keys)) + 1)
        same(got, np.concatenate([in_turn(part, max, -1, False, False) for part in parts]))


@pytest.mark.parametrize("exclusive, reverse", FORMS)
def test_initial(rng, exclusive, reverse):
    x, forms = rng.integers(1, 5, 40).astype(np.int32), {"exclusive": exclusive, "reverse": reverse}
    heads, ends = np.array([3, 20, 20], np.int32), np.array([9, 20, 37], np.int32)

    def after(a, b):
        """Composes affine maps [m, t]: first a, then b."""
        return jnp.stack([a[0] * b[0], a[1] * b[0] + b[1]])

    for op, combine, first in (("add", np.add, 7), ("max", np.maximum, 3), ("mul", np.multiply, 2)):
        got, total = mgpu.scan(x[:9], op, initial=first, return_total=True, **forms)
        same(got, in_turn(x[:9], combine, np.int32(first), exclusive, reverse))
        assert total == combine.reduce(np.append(first, x[:9]))
        counted = mgpu.scan(x, op, initial=first, count=5, **forms)
        same(counted[:5], in_turn(x[:5], combine, np.int32(first), exclusive, reverse))
        assert not np.any(counted[5:])
        pieces = mgpu.segmented_scan(x, heads, op, initial=first, ends=ends, **forms)
        expected = np.zeros(40, np.int32)
        for begin, end in ((3, 9), (20, 37)):
            expected[begin:end] = in_turn(x[begin:end], combine, np.int32(first), exclusive, reverse)
        same(pieces, expected)
    maps = np.stack([rng.integers(-1, 2, 30), rng.integers(0, 5, 30)], 1).astype(np.int32)
    first = np.array([2, 1], np.int32)

    def affine(a, b):
        return np.array([a[0] * b[0], a[1] * b[0] + b[1]])

    states = [affine, first, exclusive, reverse]
    expected = in_turn(maps, *states)
    got = mgpu.scan(jnp.asarray(maps), after, initial=first, **forms)
    same(got, expected)
    got = mgpu.segmented_scan(jnp.asarray(maps), [0, 11, 11], after, initial=first, count=25, **forms)
    same(got[:25], np.concatenate([in_turn(maps[:11], *states), in_turn(maps[11:25], *states)]))


def test_initial_of_trees_and_types(rng):
    x = {"a": rng.normal(size=(9, 2)).astype(np.float16), "b": rng.random(9) < 0.3}
    got = mgpu.scan(x, {"a": "add", "b": "any"}, initial={"a": np.array([1, 2]), "b": False})
    np.testing.assert_allclose(
        got["a"], np.float32([1, 2]) + np.cumsum(x["a"].astype(np.float32), 0), rtol=2e-3, atol=2e-3
    )
    assert got["b"].tolist() == np.logical_or.accumulate(x["b"]).tolist()
    y = np.array([0.5, 2.0, 1.0], np.float32)
    got = mgpu.scan(y, "logsumexp", initial=1.0)
    np.testing.assert_allclose(got, np.logaddexp.accumulate(np.append(1.0, y))[1:], rtol=1e-6)
    gradient = jax.grad(lambda first: mgpu.scan(y, "mul", initial=first).sum())(3.0)
    np.testing.assert_allclose(gradient, np.cumprod(y).sum())
    running = mgpu.scan(y, initial=1.0, emit=lambda state, i: state / (i + 1))
    np.testing.assert_allclose(running, (np.cumsum(y) + 1) / [1, 2, 3])
    for call, message in {
        lambda: mgpu.scan(y, "mean", initial=1.0): "scan: initial: expected None for 'mean', 'argmin' and 'argmax'",
        lambda: mgpu.scan(y, initial=np.ones(2)): r"scan: initial: expected the shape of an item, \[\], got float",
        lambda: mgpu.scan_by_key(y[:2], y): "scan_by_key: x: expected arrays with the leading axis of keys, 2",
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="scan: initial: expected the structure of x"):
        mgpu.scan(x, "add", initial={"a": 0})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op, combine", [("add", np.add), ("mul", np.multiply)])
def test_results_are_rounded_after_they_are_combined_with_initial(rng, op, combine, dtype):
    x = rng.uniform(0.9, 1.1, 40).astype(jnp.dtype(dtype))
    first = jnp.dtype(dtype).type(-17 if op == "add" else 1.7)
    wide, heads = x.astype(np.float32), [0, 25]
    expected = np.concatenate(
        [in_turn(part, combine, np.float32(first), False, False) for part in (wide[:25], wide[25:])]
    )
    got, total = mgpu.scan(x[:25], op, initial=first, return_total=True)
    assert (got.dtype, total.dtype) == (x.dtype, x.dtype)
    tolerance = 1.01 * float(jnp.finfo(dtype).eps) / 2  # of one rounding
    for found, of_loop in (
        (got, expected[:25]),
        (total, expected[24]),
        (mgpu.scan(x[:25], op, map=lambda item: item, initial=first), expected[:25]),
        (mgpu.segmented_scan(x, heads, op, initial=first), expected),
    ):
        np.testing.assert_allclose(np.asarray(found, np.float32), of_loop, rtol=tolerance, atol=1e-5)


def test_runs_of_at_least_so_many(rng):
    """Runs of at least two items are CUB's non-trivial runs; the ends of segments, and the count, end runs."""
    keys = np.repeat(rng.integers(0, 3, 40), rng.integers(1, 4, 40))
    n = len(keys)
    heads, count = np.sort(rng.integers(0, n, 6)).astype(np.int32), n - 5
    for least in (1, 2, 4):
        for given, live in ((None, n), (None, count), (heads, n), (heads, count)):
            cuts = np.append(np.flatnonzero(np.diff(keys)) + 1, [] if given is None else given)
            starts = np.unique(np.append(0, cuts)).astype(int)
            starts = starts[starts < live]
            kept = starts[np.diff(starts, append=live) >= least]
            runs = mgpu.run_starts(keys, given, least=least, count=live)
            same(runs.starts, oracle.padded(kept.astype(np.int32), n, n))
            assert runs.count == len(kept)
            before = [0] if given is None else np.searchsorted(kept, np.minimum(given, live))
            assert runs.heads.tolist() == list(before)
    call = mesh.by_vmap(lambda k, c: mgpu.run_starts(k, size=9, least=2, count=c, axis_name=mesh.AXIS))
    for counts in mesh.counts_of(rng, 3, 9):
        part = keys[: int(counts.sum())]
        starts = np.append(0, np.flatnonzero(np.diff(part)) + 1)[: len(part)]
        kept = starts[np.diff(starts, append=len(part)) >= 2]
        runs = call(mesh.shard(part, counts, 9), counts)
        begins = np.cumsum(counts) - counts
        found = [s[:c] + b for s, c, b in zip(np.asarray(runs.starts), np.asarray(runs.count), begins, strict=True)]
        assert np.concatenate(found).tolist() == kept.tolist()
