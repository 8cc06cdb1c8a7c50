"""Variances, counts, first and last items, medians, and operators that skip NaNs, compared with NumPy and pandas."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from tests import mesh, oracle
from tests.test_rows import STATISTICS, agree, of_parts, parts, rows
from tests.test_scan import same

N, IDS = 90, 7


@functools.partial(jax.jit, static_argnames=("ops", "ddof"))
def every_reduction(x, heads, ids, count, ops, ddof):
    """Applies all operators at once, one per leaf, in each reduction."""
    values, names = dict.fromkeys(ops, x), {op: op for op in ops}
    order = jnp.argsort(ids)
    given = {"count": count, "ddof": ddof}
    return {
        "reduce": mgpu.reduce(values, names, **given),
        "segmented_reduce": mgpu.segmented_reduce(values, heads, names, **given),
        "reduce_by_id": mgpu.reduce_by_id(values, ids, IDS, names, **given),
        "group_by": mgpu.group_by(ids, values, names, size=IDS + 2, **given)[1],
        "reduce_by_key": mgpu.reduce_by_key(
            ids[order], jax.tree.map(lambda x: x[order], values), names, size=IDS + 2, ddof=ddof
        )[1],
    }


def expected_of(x, heads, ids, count, op, ddof):
    def statistic(part):
        return oracle.statistic(part, op, ddof)

    def of_ids(x, ids, extra):
        found = [statistic(x[ids == i]) for i in range(IDS)]
        return np.stack([*found, *[np.zeros_like(found[0])] * extra])

    live, live_ids = x[:count], ids[:count]
    return {
        "reduce": statistic(live),
        "segmented_reduce": np.stack([statistic(x[part]) for part in parts(len(x), heads, count)]),
        "reduce_by_id": of_ids(live, live_ids, 0),
        "group_by": of_ids(live, live_ids, 2),
        "reduce_by_key": of_ids(x, ids, 2),
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16", "bool"])
@pytest.mark.parametrize("ddof", [0, 1])
def test_all_reductions_alike(rng, dtype, ddof):
    ids = np.append(np.arange(IDS), rng.integers(0, IDS, N - IDS)).astype(np.int32)
    heads = np.array([3, 3, 20, 50, 51, N], np.int32)
    with jax.enable_x64(False):
        for trailing in ((), (2,)):
            x = rows(rng, dtype, "nanmin", N, *trailing)
            got = jax.device_get(every_reduction(x, heads, ids, 70, tuple(STATISTICS), ddof))
            for op in STATISTICS:
                for name, expected in expected_of(x, heads, ids, 70, op, ddof).items():
                    is_wide = expected.dtype == np.float64
                    agree(got[name][op], expected.astype(np.float32) if is_wide else expected, op)


def test_variances_of_nearly_equal_items(rng):
    ids = rng.integers(0, 3, 5_000)
    for spread in (1e-3, 0.1, 10):
        x = rng.normal(1e6, spread, 5_000).astype(np.float32)
        wide = x.astype(np.float64)
        for op in ("var", "std"):
            got = mgpu.reduce(x, op)
            np.testing.assert_allclose(got, getattr(np, op)(wide), rtol=1e-5, atol=0)
            found = mgpu.reduce_by_id(x, ids, 3, op, ddof=1)
            expected = [getattr(np, op)(wide[ids == i], ddof=1) for i in range(3)]
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=0)
            segments = mgpu.segmented_reduce(x, [0, 1000, 4000], op)
            expected = [getattr(np, op)(part) for part in np.split(wide, [1000, 4000])]
            np.testing.assert_allclose(segments, expected, rtol=1e-5, atol=0)
    x = np.append(np.float32(-1e6), rng.normal(1e6, 1, 999).astype(np.float32))
    np.testing.assert_allclose(mgpu.reduce(x, "var"), np.var(x.astype(np.float64)), rtol=1e-5)
    x = (2**30 + rng.integers(0, 9, 1000)).astype(np.int32)
    np.testing.assert_allclose(mgpu.reduce(x, "var"), np.var(x), rtol=1e-5)
    x = np.array([-(2**31), 2**31 - 1], np.int32)
    np.testing.assert_allclose(mgpu.reduce(x, "std"), np.std(x), rtol=1e-6)
    same(mgpu.reduce(np.full(1000, 0.1, np.float32), "var"), np.float32(0))


def test_edge_cases():
    nothing, one, ops = np.zeros(0, np.float32), np.array([3.0], np.float32), {op: op for op in STATISTICS}

    def each(x):
        return dict.fromkeys(ops, x)

    found = jax.device_get(
        {
            "all": mgpu.reduce(each(nothing), ops),
            "count": mgpu.reduce(each(one), ops, count=0),
            "segments": mgpu.segmented_reduce(each(one), [1, 9], ops),
            "ids": mgpu.reduce_by_id(each(one), [1], 1, ops),
            "no ids": mgpu.reduce_by_id(each(nothing), np.zeros(0, int), 1, ops),
        }
    )
    for op in STATISTICS:
        empty = 0 if op in ("nunique", "count", "first", "last", "nansum") else np.nan
        for name, got in found.items():
            np.testing.assert_array_equal(got[op], np.full(np.shape(got[op]), empty), name)
    groups = mgpu.group_by(np.zeros(0, int), each(nothing), ops, size=1)[1]
    widths = mgpu.reduce(each(np.zeros((3, 0), np.float32)), ops)
    for op in STATISTICS:
        assert groups[op].tolist() == [0]
        assert widths[op].shape == (() if op == "count" else (0,))
    all_nan = np.full(3, np.nan, np.float32)
    assert mgpu.reduce(all_nan, "nansum") == 0 and mgpu.reduce(all_nan, "nunique") == 1
    for op in ("nanmean", "nanmin", "nanmax", "median", "var"):
        assert np.isnan(mgpu.reduce(all_nan, op))
    infinite = np.array([np.inf, np.nan, 1], np.float32)
    assert mgpu.reduce(infinite, "nanmax") == np.inf and mgpu.reduce(infinite[:2], "nanmin") == np.inf
    for ddof, expected in ((0, 0), (1, np.nan), (2, np.nan), (0.5, 0)):
        np.testing.assert_array_equal(mgpu.reduce(one, "var", ddof=ddof), np.float32(expected))
    np.testing.assert_allclose(mgpu.reduce(np.float32([1, 2, 4]), "std", ddof=1.5), np.sqrt((14 / 3) / 1.5), rtol=1e-6)


def test_first_and_last_of_any_type():
    keys = jax.random.split(jax.random.key(3), 5)
    got = mgpu.reduce_by_id({"k": keys, "c": np.arange(5) * 1j}, [1, 0, 1, 0, 0], 2, {"k": "last", "c": "first"})
    assert jax.random.key_data(got["k"]).tolist() == jax.random.key_data(keys)[jnp.array([4, 2])].tolist()
    assert got["c"].tolist() == [1j, 0]
    got = mgpu.segmented_reduce(keys, [0, 2, 2], "first")
    assert jax.random.key_data(got).tolist() == [*jax.random.key_data(keys)[jnp.array([0])].tolist(), [0, 0], *[
        jax.random.key_data(keys)[2].tolist()]]  # fmt: skip
    assert mgpu.reduce(keys, "count") == 5


def test_segments_with_gaps_and_maps(rng):
    x = rng.normal(size=60).astype(np.float32)
    heads, ends = np.array([2, 20, 40], np.int32), np.array([9, 20, 58], np.int32)
    for op in ("var", "median", "first", "last", "count", "nanmax"):
        got = mgpu.segmented_reduce(x, heads, op, ends=ends)
        agree(got, of_parts(x, op, [slice(2, 9), slice(20, 20), slice(40, 58)]), "var")
        doubled = mgpu.segmented_reduce(x, heads, op, ends=ends, map=lambda item: 2 * item)
        agree(doubled, of_parts(2 * x, op, [slice(2, 9), slice(20, 20), slice(40, 58)]), "var")


def test_as_pandas(rng):
    frame = pd.DataFrame(
        {"k": rng.integers(0, 4, 60), "x": np.where(rng.random(60) < 0.2, np.nan, rng.normal(size=60))}
    )
    x = frame.x.to_numpy(np.float32)
    groups = frame.groupby("k").x
    names = {"nansum": "sum", "nanmean": "mean", "nanmin": "min", "nanmax": "max"}
    for op, name in names.items():
        got = mgpu.group_by(frame.k.to_numpy(), x, op, size=4)[1]
        np.testing.assert_allclose(got, groups.agg(name), rtol=1e-4)
    whole = frame.fillna(1.0).groupby("k").x
    for op in ("var", "std", "median", "nunique", "first", "last", "count"):
        given = {"ddof": 1} if op in ("var", "std") else {}
        got = mgpu.group_by(frame.k.to_numpy(), np.nan_to_num(x, nan=1.0), op, size=4, **given)[1]
        np.testing.assert_allclose(got, whole.agg(op), rtol=1e-4)


# ---- Derivatives and batches -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("op", ["var", "std", "median", "first", "last", "nanmean", "nanmin", "nansum"])
def test_derivatives(rng, op):
    x, ids, heads = rng.normal(size=(20, 2)), rng.integers(-1, 4, 20), np.array([1, 9, 9], np.int32)
    x[4] = np.nan if op.startswith("nan") else 0.3
    kept = np.isfinite(x).astype(float)

    @jax.jit
    def reductions(y):
        y = jnp.where(kept, y, jnp.nan) if op.startswith("nan") else y
        found = [
            mgpu.reduce(y, op, count=17),
            mgpu.segmented_reduce(y, heads, op)[::2],
            mgpu.reduce_by_id(y, ids, 4, op),
            mgpu.group_by(ids + 1, y, op, size=5)[1],
        ]
        return [jnp.sum(jnp.where(jnp.isnan(f), 0, f) ** 2) for f in found]

    check_grads(reductions, (np.nan_to_num(x),), order=1, modes=("fwd", "rev"), rtol=1e-4, atol=1e-5)
    if op == "var":
        check_grads(reductions, (x,), order=2, modes=("rev",), rtol=1e-3, atol=1e-4)


def test_only_items_that_are_read_have_derivatives():
    x = np.array([np.nan, 1, 2, 5, np.inf, np.nan], np.float32)
    for op in ("var", "std"):
        got = jax.grad(lambda x, op=op: mgpu.segmented_reduce(x, [1], op, count=4)[0])(x)
        expected = jax.grad(lambda x, op=op: getattr(jnp, op)(x))(x[1:4])
        np.testing.assert_allclose(got, np.append(0, np.append(expected, [0, 0])), rtol=1e-5)
        got = jax.grad(lambda x, op=op: mgpu.reduce_by_id(x, [-1, 0, 0, 0, 7, -1], 1, op)[0])(x)
        np.testing.assert_allclose(got, np.append(0, np.append(expected, [0, 0])), rtol=1e-5)
        got = jax.grad(lambda x, op=op: mgpu.segmented_reduce(x, [1, 4], op, ends=[4, 4])[0])(x)
        np.testing.assert_allclose(got, np.append(0, np.append(expected, [0, 0])), rtol=1e-5)
    assert jax.grad(lambda x: mgpu.reduce(x, "std"))(np.full(3, 2.0, np.float32)).tolist() == [0, 0, 0]


def test_results_that_a_loss_does_not_use_have_no_derivatives():
    """An infinite item, or NaN, reaches only the gradient of its own result."""
    x = np.array([1, np.inf, 3, 5, np.nan, 2], np.float32)
    heads, ids = np.array([0, 2, 4]), np.array([0, 0, 1, 1, 2, 2])
    calls = [
        lambda x, op: mgpu.segmented_reduce(x, heads, op),
        lambda x, op: mgpu.segmented_reduce(jnp.stack([x, x], 1), heads, op)[:, 0],
        lambda x, op: mgpu.reduce_by_id(x, ids, 3, op),
        lambda x, op: mgpu.group_by(ids, x, op, size=3)[1],
    ]
    for op, slope in {"var": 1.0, "std": 0.5}.items():  # of 3 and 5
        for call in calls:
            got = jax.jit(jax.grad(lambda x, call=call, op=op: call(x, op)[1]))(x)
            np.testing.assert_allclose(got, [0, 0, -slope, slope, 0, 0], rtol=1e-6)
        rows = np.stack([x[:2], x[2:4], x[4:]], 1)
        got = jax.grad(lambda x, op=op: mgpu.reduce(x, op)[1])(rows)
        np.testing.assert_allclose(got, [[0, -slope, 0], [0, slope, 0]], rtol=1e-6)


def test_batches(rng):
    x, ids = rng.normal(size=(3, 40)).astype(np.float32), rng.integers(0, 4, (3, 40))
    names = tuple(STATISTICS)

    def call(x, ids, count):
        values, ops = dict.fromkeys(names, x), {op: op for op in names}
        return mgpu.reduce(values, ops, count=count), mgpu.reduce_by_id(values, ids, 4, ops, count=count)

    whole, by_id = jax.jit(jax.vmap(call))(x, ids, np.array([40, 0, 13]))
    for i, count in enumerate((40, 0, 13)):
        for op in names:
            agree(whole[op][i], oracle.statistic(x[i, :count], op), op)
            part, own = x[i, :count], ids[i, :count]
            agree(by_id[op][i], np.stack([oracle.statistic(part[own == j], op) for j in range(4)]), op)


# ---- Devices, and misuse ---------------------------------------------------------------------------------------------


@pytest.mark.long
def test_over_devices(rng):
    devices, slots, size = 3, 12, 4
    names, no_ranks = tuple(STATISTICS), tuple(op for op in STATISTICS if op not in ("median", "nunique"))

    def call(x, heads, keys, ids, count):
        named = {"count": count, "axis_name": mesh.AXIS}
        values, ops = dict.fromkeys(names, x), {op: op for op in names}
        few = {op: op for op in no_ranks}
        return (
            mgpu.reduce(values, ops, **named),
            mgpu.segmented_reduce(values, heads, ops, **named),
            mgpu.reduce_by_key(keys, values, ops, size=size, **named)[1:],
            mgpu.reduce_by_id(dict.fromkeys(few, x), ids, size, few, **named),
            mgpu.group_by(keys, values, ops, size=size, **named)[1:],
        )

    call = mesh.by_vmap(call)
    for counts in mesh.counts_of(rng, devices, slots):
        total = int(counts.sum())
        x = rows(rng, "float32", "nanmin", total, 2)
        heads = np.unique(np.append(0, rng.integers(0, max(total, 1), 3)))
        keys = np.searchsorted(heads, np.arange(total), side="right")
        ids = rng.integers(-1, devices * size + 1, total)
        sharded, own = mesh.shard_heads(heads, counts, slots, size)
        given = [mesh.shard(x, counts, slots), sharded, mesh.shard(keys, counts, slots), mesh.shard(ids, counts, slots)]
        whole, segments, (runs, run_counts), by_id, (groups, group_counts) = jax.device_get(call(*given, counts))
        for op in names:
            agree(whole[op], np.stack([oracle.statistic(x, op)] * devices), op)
            if total == 0:
                continue
            expected = of_parts(x, op, parts(total, heads))
            agree(mesh.gather(segments[op], own), expected, op)
            agree(mesh.gather(runs[op], run_counts), expected, op)
            agree(mesh.gather(groups[op], group_counts), expected, op)
            if op in by_id:
                of_ids = [oracle.statistic(x[ids == i], op) for i in range(devices * size)]
                got = by_id[op].reshape(devices * size, *by_id[op].shape[2:])
                agree(got, np.stack(of_ids), op)


def test_misuse():
    x = np.arange(3.0)
    for call, message in {
        lambda: mgpu.reduce(x, "sum", ddof=1): "reduce: ddof: expected 0 where op is not 'var' or 'std', got 1",
        lambda: mgpu.group_by([1, 1, 2], x, "mean", size=2, ddof=1): "group_by: ddof: expected 0 where op is not",
        lambda: mgpu.reduce(x, jnp.add, ddof=1): "reduce: ddof: expected 0 where op is not 'var' or 'std', got 1",
        lambda: mgpu.interval_reduce(x, [0], [2], "var"): "interval_reduce: op: expected one of .*logsumexp, or a func",
        lambda: mgpu.scan(x, "var"): "scan: op: expected one of .*logsumexp, or a function of two items, got 'var'",
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
    for call, message in {
        lambda: mgpu.reduce(x, "var", ddof="1"): "reduce: ddof: expected a static number, got '1'",
        lambda: jax.jit(lambda d: mgpu.reduce(x, "var", ddof=d))(
            1
        ): "reduce: ddof: expected a static number, got a traced",
        lambda: mgpu.reduce(x, "median", dtype="int32"): "reduce: dtype: expected floats for 'median', got int32",
        lambda: mgpu.reduce(np.array([1j]), "var"): "reduce: x: expected integers of 8",
    }.items():
        with pytest.raises(TypeError, match=message):
            call()
