"""Selections, runs, distinct keys, best items and quantiles over a mesh axis, compared with NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from tests import data, mesh, oracle

pytestmark = pytest.mark.usefixtures("x64")

SLOTS, HEADS = 23, 9
TYPES = {1: "int16", 2: "float64", 3: "float32", 4: "uint8", 8: "int32"}


def problems(rng, devices, dtype):
    """Yields keys (random, few distinct, a single one, sorted), for each distribution over devices."""
    kind = np.dtype(dtype)
    for counts in mesh.counts_of(rng, devices, SLOTS):
        total = int(counts.sum())
        keys = data.random_keys(rng, dtype, total)
        for chosen in (keys, rng.integers(0, 3, total), np.full(total, 5), data.in_order(keys)):
            yield chosen.astype(kind), counts


def selections(x, keep, count, heads):
    named = {"count": count, "axis_name": mesh.AXIS}
    return (
        mgpu.select({"x": x}, keep, size=7, fill_value=3, **named),
        mgpu.select_indices(keep, **named),
        mgpu.partition({"x": x, "rows": jax.numpy.stack([x, x], 1).astype(np.float16)}, keep, **named),
        mgpu.run_starts(x, **named),
        mgpu.run_starts(x, heads, **named),
    )


def check_selections(rng, call, devices, dtype):
    for x, counts in problems(rng, devices, dtype):
        total, ends = len(x), np.cumsum(counts)
        keep = rng.random(total) < rng.choice([0, 0.3, 1])
        heads = np.sort(rng.integers(0, total + 1, HEADS))
        own_heads, n_heads = mesh.shard_heads(heads, counts, SLOTS, HEADS)
        sharded = [mesh.shard(part, counts, SLOTS) for part in (x, keep)]
        found = jax.device_get(call(*sharded, counts, own_heads))
        kept, (indices, n), (parted, front), runs, by_heads = found
        kept_on = [np.flatnonzero(keep[end - count : end]) for count, end in zip(counts, ends, strict=True)]
        numbers = np.array([len(on) for on in kept_on])
        np.testing.assert_array_equal(kept.count, numbers)
        np.testing.assert_array_equal(n, numbers)
        for device, on in enumerate(kept_on):
            begin = ends[device] - counts[device]
            expected = np.append(x[begin:][on][:7], np.full(max(0, 7 - len(on)), 3, x.dtype))
            oracle.same_bits(kept.values["x"][device], expected)
            positions = np.append(begin + on, np.full(SLOTS - len(on), devices * SLOTS))
            np.testing.assert_array_equal(indices[device], positions)
        order = np.append(np.flatnonzero(keep), np.flatnonzero(~keep))
        assert front.tolist() == [keep.sum()] * devices
        oracle.same_bits(mesh.gather(parted["x"], counts), x[order])
        rows = np.stack([x, x], 1).astype(np.float16)
        np.testing.assert_array_equal(mesh.gather(parted["rows"], counts), rows[order])
        for device, count in enumerate(counts):
            oracle.same_bits(parted["x"][device, count:], sharded[0][device, count:])
        ranks = oracle.rank(x)
        differs = np.append(True, ranks[1:] != ranks[:-1])[:total]
        check_runs(runs, np.flatnonzero(differs), counts)
        differs[heads[heads < total]] = True
        check_runs(by_heads, np.flatnonzero(differs), counts)
        for device, count in enumerate(n_heads):
            before = np.searchsorted(by_heads.starts[device], own_heads[device, :count])
            np.testing.assert_array_equal(by_heads.heads[device, :count], before)


def check_runs(got, starts, counts):
    expected, numbers = mesh.shard_heads(starts, counts, SLOTS, SLOTS)
    np.testing.assert_array_equal(got.count, numbers)
    np.testing.assert_array_equal(got.starts, np.minimum(expected, SLOTS))


@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.usefixtures("forms")
def test_selections(rng, devices):
    check_selections(rng, mesh.by_vmap(selections), devices, TYPES[devices])


@pytest.mark.parametrize("form", [None, "_ragged", "_chunked"])
@pytest.mark.long
def test_selections_on_devices(rng, form, monkeypatch):
    if form is not None:
        mesh.use_form(monkeypatch, form)
    check_selections(rng, mesh.by_devices(selections, 3), 3, "float32")


def distinct(size):
    def call(x, count):
        named = {"count": count, "axis_name": mesh.AXIS}
        flags = {"return_index": True, "return_inverse": True, "return_counts": True}
        return (
            mgpu.unique(x, size=size, **flags, **named),
            mgpu.unique(x, size=size, **named),
            [mgpu.top_k(x, k, largest=largest, **named) for k, largest in ((5, True), (SLOTS + 9, False))],
        )

    return call


def check_distinct(rng, call, devices, dtype, size):
    for x, counts in problems(rng, devices, dtype):
        results = jax.device_get(call(mesh.shard(x, counts, SLOTS), counts))
        (keys, indices, inverse, repeats, numbers), alone, best = results
        oracle.same_bits(alone[0], keys)
        np.testing.assert_array_equal(alone[1], numbers)
        ranks = oracle.rank(x)
        _, first, inverse_of, count_of = np.unique(ranks, return_index=True, return_inverse=True, return_counts=True)
        shares = mesh.even(len(x), devices)
        begins = np.cumsum(count_of) - count_of
        device_of = np.searchsorted(np.cumsum(shares), begins, side="right")
        np.testing.assert_array_equal(numbers, np.bincount(device_of, minlength=devices)[:devices])
        rank_on = np.arange(len(first)) - np.searchsorted(device_of, device_of)
        kept = rank_on < size
        n = np.minimum(numbers, size)
        oracle.same_bits(mesh.gather(keys, n), x[first][kept])
        np.testing.assert_array_equal(mesh.gather(indices, n), first[kept])
        np.testing.assert_array_equal(mesh.gather(repeats, n), count_of[kept])
        places = np.where(kept, np.cumsum(kept) - 1, -1)
        np.testing.assert_array_equal(mesh.gather(inverse, counts), places[inverse_of])
        for results, nothing in ((keys, 0), (indices, -1), (repeats, 0)):
            assert all((row[count:] == nothing).all() for row, count in zip(results, n, strict=True))
        for top, descending in zip(best, (True, False), strict=True):
            k = top.values.shape[1]
            order = oracle.sort_indices(x, descending=descending)[:k]
            for device in range(devices):
                assert top.count[device] == len(order)
                np.testing.assert_array_equal(top.indices[device], np.append(order, np.full(k - len(order), -1)))
                oracle.same_bits(top.values[device], np.append(x[order], np.zeros(k - len(order), x.dtype)))


@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.usefixtures("forms")
def test_distinct(rng, devices):
    size = 4 if devices == 3 else SLOTS
    check_distinct(rng, mesh.by_vmap(distinct(size)), devices, TYPES[devices], size)


@pytest.mark.long
def test_distinct_on_devices(rng):
    check_distinct(rng, mesh.by_devices(distinct(SLOTS), 3), 3, "int32", SLOTS)


def test_the_best_are_the_same_on_all_devices():
    """shard_map knows that the results are replicated, so out_specs need no axis."""
    x = np.array([3.0, 9.0, 1.0, 7.0])

    def call(x):
        return mgpu.top_k(x, 3, axis_name=mesh.AXIS)

    spec = jax.sharding.PartitionSpec(mesh.AXIS)
    over = jax.shard_map(call, mesh=mesh.mesh_of(2), in_specs=spec, out_specs=jax.sharding.PartitionSpec())
    best = jax.jit(over)(x)
    assert best.values.tolist() == [9, 7, 3]
    assert best.indices.tolist() == [1, 3, 0]
    grad = jax.jit(jax.grad(lambda x: (over(x).values * np.array([1.0, 10.0, 100.0])).sum()))(x)
    assert grad.tolist() == [100, 1, 0, 10]


QUANTILES = np.array([[0.0, 0.3], [0.5, 1.0]])


def quantiles(x, count):
    return mgpu.quantile(x, QUANTILES, count=count, axis_name=mesh.AXIS)


def check_quantiles(rng, call, devices, dtype):
    for counts in mesh.counts_of(rng, devices, SLOTS):
        x = rng.integers(0, 99, int(counts.sum())).astype(jnp.dtype(dtype))
        expected = np.asarray(mgpu.quantile(x, QUANTILES))
        if len(x):
            approximate = np.quantile(x.astype(np.float64), QUANTILES)
            np.testing.assert_allclose(
                expected.astype(np.float64), approximate, rtol=1e-2 if dtype == "bfloat16" else 1e-6
            )
        got = np.asarray(call(mesh.shard(x, counts, SLOTS), counts))
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, np.broadcast_to(expected, got.shape))


@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.usefixtures("forms")
def test_quantiles(rng, devices):
    check_quantiles(rng, mesh.by_vmap(quantiles), devices, TYPES[devices])


def test_quantiles_on_devices(rng):
    check_quantiles(rng, mesh.by_devices(quantiles, 3), 3, "float32")


@pytest.mark.usefixtures("forms")
def test_quantiles_of_nan_and_their_derivatives(rng):
    counts = np.array([5, 0, 6], np.int32)
    call = mesh.by_vmap(lambda x, c: mgpu.quantile(x, [0.25, 0.6], count=c, axis_name=mesh.AXIS))
    x = mesh.shard(rng.permutation(11) * 1.5, counts, 6)
    check_grads(jax.jit(lambda x: call(x, counts)), (jnp.asarray(x),), 1)
    x[2, 3] = np.nan
    assert np.isnan(call(x, counts)).all()
