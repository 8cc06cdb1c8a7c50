"""Sorts and merges over a mesh axis, against tests/oracle.py, through each form of the exchange."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from jax_mgpu._src.mesh import sorts
from tests import data, mesh, oracle
from tests.variants import long_but

pytestmark = pytest.mark.usefixtures("x64")

SLOTS = 29
TYPES = {1: "int16", 2: "float32", 3: "uint8", 4: "int64", 8: "bfloat16"}
MERGED = {1: "uint16", 2: "int8", 3: "float64", 4: "uint32", 8: "float16"}


def arrays(rng, dtype, total):
    """Yields keys: random, few distinct, a single one, sorted, reversed, half of them equal."""
    keys = data.random_keys(rng, dtype, total)
    kind = jnp.dtype(dtype)
    yield keys
    yield rng.integers(0, 3, total).astype(kind)
    yield np.full(total, 5).astype(kind)
    yield data.in_order(keys)
    yield data.in_order(keys, descending=True)
    yield np.where(np.arange(total) < total // 2, 3, rng.integers(0, 100, total)).astype(kind)


def filled(total, devices, slots):
    """Returns counts that fill the devices one after the other."""
    return np.clip(total - slots * np.arange(devices), 0, slots).astype(np.int32)


def every_sort(keys, values, count):
    named = {"axis_name": mesh.AXIS}
    return (
        mgpu.mergesort(keys, values, count=count, **named),
        mgpu.mergesort_indices(keys, descending=True, count=count, even=False, **named),
    )


def check_sorts(got, keys, counts):
    devices, total = len(counts), len(keys)
    (ascending, values, n), (descending, indices, n_filled) = jax.device_get(got)
    np.testing.assert_array_equal(n, mesh.even(total, devices))
    np.testing.assert_array_equal(n_filled, filled(total, devices, SLOTS) if devices > 1 else n)
    order, reverse = oracle.sort_indices(keys), oracle.sort_indices(keys, descending=True)
    oracle.same_bits(mesh.gather(ascending, n), keys[order])
    np.testing.assert_array_equal(mesh.gather(values, n), order * 2)
    oracle.same_bits(mesh.gather(descending, n_filled), keys[reverse])
    np.testing.assert_array_equal(mesh.gather(indices, n_filled), reverse)


def check_every_sort(rng, call, dtype, devices):
    for counts in mesh.counts_of(rng, devices, SLOTS):
        for keys in arrays(rng, dtype, int(counts.sum())):
            values = mesh.shard(np.arange(len(keys), dtype=np.int32) * 2, counts, SLOTS)
            check_sorts(call(mesh.shard(keys, counts, SLOTS), values, counts), keys, counts)


@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.usefixtures("forms")
def test_sorts(rng, devices):
    check_every_sort(rng, mesh.by_vmap(every_sort), TYPES[devices], devices)


@pytest.mark.parametrize(
    "dtype", long_but(["int8", "uint64", "float64"], [d for d in data.KEY_DTYPES if d not in TYPES.values()])
)
@pytest.mark.usefixtures("forms")
def test_sorts_of_every_type(rng, dtype):
    call = mesh.by_vmap(lambda keys, count: mgpu.mergesort_indices(keys, count=count, axis_name=mesh.AXIS))
    for counts in mesh.counts_of(rng, 3, SLOTS)[:2]:
        for keys in arrays(rng, dtype, int(counts.sum())):
            got, indices, n = jax.device_get(call(mesh.shard(keys, counts, SLOTS), counts))
            order = oracle.sort_indices(keys)
            oracle.same_bits(mesh.gather(got, n), keys[order])
            np.testing.assert_array_equal(mesh.gather(indices, n), order)


@pytest.mark.parametrize("devices", (2, 4))
def test_sorts_on_devices(rng, devices):
    check_every_sort(rng, mesh.by_devices(every_sort, devices), "float32", devices)


@pytest.mark.usefixtures("forms")
def test_without_counts(rng):
    keys = rng.integers(0, 9, (3, SLOTS)).astype(np.int32)
    rows = rng.normal(size=(3, SLOTS, 2)).astype(np.float16)
    random = jax.random.split(jax.random.key(3), (3, SLOTS))

    def call(keys, rows, random):
        named = {"axis_name": mesh.AXIS}
        values = {"rows": rows, "random": random}
        return (
            mgpu.mergesort(keys, **named),
            mgpu.mergesort(keys, values, **named),
            mgpu.locality_sort(keys, **named),
            mgpu.locality_sort_indices(keys, **named),
            mgpu.merge(*(jnp.full(5, jax.lax.axis_index(mesh.AXIS)),) * 2, **named),
        )

    alone, (again, values), nearly, (_, indices), merged = mesh.by_vmap(call)(keys, rows, random)
    order = oracle.sort_indices(keys.reshape(-1))
    for got in (alone, again, nearly):
        np.testing.assert_array_equal(got.reshape(-1), keys.reshape(-1)[order])
    np.testing.assert_array_equal(indices.reshape(-1), order)
    oracle.same_bits(values["rows"].reshape(-1, 2), rows.reshape(-1, 2)[order])
    words = jax.random.key_data(random).reshape(3 * SLOTS, -1)
    np.testing.assert_array_equal(jax.random.key_data(values["random"]).reshape(3 * SLOTS, -1), words[order])
    np.testing.assert_array_equal(merged.reshape(-1), np.repeat(np.arange(3), 10))


def every_merge(a, b, a_values, b_values, a_count, b_count):
    counts = {"a_count": a_count, "b_count": b_count}
    return (
        mgpu.merge(a, b, a_values, b_values, **counts, axis_name=mesh.AXIS),
        mgpu.merge(a[::-1], b, b_count=b_count, a_count=0, axis_name=mesh.AXIS, even=False),
    )


@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.long
@pytest.mark.usefixtures("forms")
def test_merges(rng, devices):
    check_merges(rng, mesh.by_vmap(every_merge), devices, MERGED[devices])


@pytest.mark.parametrize("form", [None, "_ragged", "_chunked"])
@pytest.mark.long
def test_merges_on_devices(rng, form, monkeypatch):
    if form is not None:
        mesh.use_form(monkeypatch, form)
    check_merges(rng, mesh.by_devices(every_merge, 2), 2, "float16" if form else "int32")


def check_merges(rng, call, devices, dtype):
    slots = SLOTS + 17
    for a_counts, b_counts in zip(
        mesh.counts_of(rng, devices, SLOTS), rng.permutation(mesh.counts_of(rng, devices, 17)), strict=True
    ):
        total = int(a_counts.sum() + b_counts.sum())
        for keys in arrays(rng, dtype, total):
            a, b = (data.in_order(x) for x in np.split(keys, [a_counts.sum()]))
            ids = np.arange(total, dtype=np.int32)
            a_ids, b_ids = np.split(ids, [len(a)])
            given = [(a, a_counts, SLOTS), (b, b_counts, 17), (a_ids, a_counts, SLOTS), (b_ids, b_counts, 17)]
            sharded = [mesh.shard(*problem) for problem in given]
            (merged, values, n), (copied, n_b) = jax.device_get(call(*sharded, a_counts, b_counts))
            order = oracle.merge_indices(a, b)
            np.testing.assert_array_equal(n, mesh.even(total, devices))
            oracle.same_bits(mesh.gather(merged, n), np.concatenate([a, b])[order])
            np.testing.assert_array_equal(mesh.gather(values, n), ids[order])
            np.testing.assert_array_equal(n_b, filled(len(b), devices, slots))
            oracle.same_bits(mesh.gather(copied, n_b), b)


@pytest.mark.usefixtures("forms")
def test_merges_descending_with_rows(rng):
    devices = 3
    a, b = (data.in_order(data.random_keys(rng, "float32", devices * n), descending=True) for n in (SLOTS, 17))
    a_rows, b_rows = (rng.normal(size=(len(x), 2)).astype(np.float16) for x in (a, b))

    def call(a, b, a_rows, b_rows):
        return mgpu.merge(a, b, {"r": a_rows}, {"r": b_rows}, descending=True, axis_name=mesh.AXIS)

    sharded = [x.reshape(devices, -1, *x.shape[1:]) for x in (a, b, a_rows, b_rows)]
    keys, values = mesh.by_vmap(call)(*sharded)
    order = oracle.merge_indices(a, b, descending=True)
    oracle.same_bits(keys.reshape(-1), np.concatenate([a, b])[order])
    oracle.same_bits(values["r"].reshape(-1, 2), np.concatenate([a_rows, b_rows])[order])


# ---- Forms ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ("_ragged", "_chunked"))
@pytest.mark.long
def test_forms_of_the_exchange(rng, form, monkeypatch):
    mesh.use_form(monkeypatch, form)
    check_every_sort(rng, mesh.by_vmap(every_sort), "int32", 4)
    check_every_sort(rng, mesh.by_devices(every_sort, 3), "int32", 3)


@pytest.mark.parametrize(
    "devices, form, dtype",
    [(2, "_ragged", "bfloat16"), (3, "_gathered", "int32"), (3, "_chunked", "uint8"), (4, "_ragged", "int64")],
)
@pytest.mark.long
def test_runs_are_merged_in_pairs(rng, devices, form, dtype, monkeypatch):
    mesh.use_form(monkeypatch, form)
    monkeypatch.setattr(sorts, "FEW_KEYS", 0)
    check_every_sort(rng, mesh.by_vmap(every_sort), dtype, devices)


@pytest.mark.parametrize("dtype", ["float32", "uint64"])
def test_runs_on_devices(rng, dtype, monkeypatch):
    mesh.use_form(monkeypatch, "_gathered")
    monkeypatch.setattr(sorts, "FEW_KEYS", 0)
    check_every_sort(rng, mesh.by_devices(every_sort, 2), dtype, 2)


def every_wide_sort(keys, values, count):
    """Returns the results of every_sort; values have two leaves, which sorted indices gather."""
    ascending, rows, n = mgpu.mergesort(
        keys, {"ids": values, "rows": values[:, None] + 1.0}, count=count, axis_name=mesh.AXIS
    )
    descending, *rest = every_sort(keys, values, count)[1]
    return (ascending, rows["ids"] + (rows["rows"][:, 0] != rows["ids"] + 1), n), (descending, *rest)


def test_runs_with_values_of_several_leaves(rng, monkeypatch):
    mesh.use_form(monkeypatch, "_gathered")
    monkeypatch.setattr(sorts, "FEW_KEYS", 0)
    check_every_sort(rng, mesh.by_vmap(every_wide_sort), "int32", 3)


# ---- Derivatives, transformations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", long_but(["_gathered"], ["_gathered", "_chunked"]))
@pytest.mark.long
def test_derivatives(rng, form, monkeypatch):
    mesh.use_form(monkeypatch, form)
    keys = rng.permutation(12).reshape(2, 6).astype(np.float64)
    values = rng.normal(size=(2, 6, 2))
    counts = np.array([6, 4], np.int32)

    def call(keys, values, count):
        named = {"axis_name": mesh.AXIS}
        sorted_keys, moved, n = mgpu.mergesort(keys, values, count=count, **named)
        return sorted_keys, moved, mgpu.merge(sorted_keys, sorted_keys + 0.5, a_count=n, b_count=n, **named)[0]

    def weighted(results):
        return sum(jnp.sum(jnp.sin(r) * jnp.cos(jnp.arange(r.size).reshape(r.shape))) for r in results)

    function = jax.vmap(call, axis_name=mesh.AXIS)
    check_grads(jax.jit(lambda k, v: function(k, v, counts)), (keys, values), order=1, modes=["fwd", "rev"], eps=1e-4)
    sharded = mesh.by_devices(call, 2)
    by_vmap, by_devices = (
        jax.jit(jax.grad(lambda k, v, f=f: weighted(f(k, v, counts)), argnums=(0, 1)))(keys, values)
        for f in (function, sharded)
    )
    for got, expected in zip(by_devices, by_vmap, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-9)


@pytest.mark.long
def test_a_batch_within(rng):
    keys = rng.integers(0, 9, (2, 3, SLOTS)).astype(np.int32)
    counts = rng.integers(0, SLOTS + 1, (2, 3)).astype(np.int32)

    def call(keys, count):
        return jax.vmap(lambda k, c: mgpu.mergesort(k, count=c, axis_name=mesh.AXIS))(keys, count)

    for function in (mesh.by_vmap(call), mesh.by_devices(call, 2)):
        got, n = jax.device_get(function(keys, counts))
        for row in range(3):
            expected = np.sort(mesh.gather(keys[:, row], counts[:, row]))
            np.testing.assert_array_equal(mesh.gather(got[:, row], n[:, row]), expected)
