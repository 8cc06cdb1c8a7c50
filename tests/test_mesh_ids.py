"""reduce_by_id and counts over a mesh axis, compared with NumPy on the global array."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from tests import data, mesh
from tests.test_rows import FEW_DTYPES, NAMES, agree, by_id, rows, takes
from tests.test_scan import same

pytestmark = pytest.mark.usefixtures("x64")

SLOTS = 24
FORMS = {"few": 3, "many": 11}
SHORT = {("add", "few"), ("argmax", "few"), ("add", "many"), ("argmin", "many"), ("mean", "many"), ("and", "many")}
TYPES = {"add": "float16", "mul": "int32", "max": "bfloat16", "argmin": "float64", "argmax": "bool", "mean": "int8"}


def reduced(op, size):
    return lambda x, ids, count: mgpu.reduce_by_id(x, ids, size, op, count=count, axis_name=mesh.AXIS)


def ids_of(rng, total, size):
    """Yields random ids, some out of range; one id for all items; the last two ids."""
    yield rng.integers(-2, size + 3, total)
    yield np.full(total, size // 2)
    yield rng.integers(size - 2, size, total)


def check(rng, call, op, dtype, devices, size, *trailing):
    for counts in mesh.counts_of(rng, devices, SLOTS):
        total = int(counts.sum())
        for ids in ids_of(rng, total, devices * size):
            x = rows(rng, dtype, op, total, *trailing)
            got = jax.device_get(call(mesh.shard(x, counts, SLOTS), mesh.shard(ids, counts, SLOTS), counts))
            agree(got.reshape(devices * size, *trailing), by_id(x, ids, devices * size, op), op)


@pytest.mark.usefixtures("forms")
@pytest.mark.parametrize(
    "op, form",
    [pytest.param(*case, marks=() if case in SHORT else pytest.mark.long) for case in itertools.product(NAMES, FORMS)],
)
def test_every_operator(rng, op, form):
    dtype = TYPES.get(op, "float32" if takes(op, "float32") else "uint8")
    check(rng, mesh.by_vmap(reduced(op, FORMS[form])), op, dtype, 3, FORMS[form], 2)


@pytest.mark.usefixtures("forms")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("devices", mesh.FEW)
def test_every_number_of_devices(rng, devices, form):
    check(rng, mesh.by_vmap(reduced("argmax", FORMS[form])), "argmax", "int16", devices, FORMS[form])


@pytest.mark.usefixtures("forms")
@pytest.mark.parametrize(
    "dtype", [pytest.param(t, marks=() if t in FEW_DTYPES else pytest.mark.long) for t in data.KEY_DTYPES]
)
def test_every_type(rng, dtype):
    check(rng, mesh.by_vmap(reduced("min", FORMS["many"])), "min", dtype, 2, FORMS["many"])


@pytest.mark.parametrize("form", FORMS)
def test_on_devices(rng, form):
    check(rng, mesh.by_devices(reduced("add", FORMS[form]), 4), "add", "int32", 4, FORMS[form], 2)


def test_a_pytree_without_counts(rng):
    x = {"a": rng.integers(0, 9, (2, SLOTS)), "b": rng.normal(size=(2, SLOTS, 0)).astype(np.float32)}
    ids = rng.integers(0, 8, (2, SLOTS), dtype=np.uint8)
    ops = {"a": "argmin", "b": "add"}
    got = mesh.by_vmap(lambda x, ids: mgpu.reduce_by_id(x, ids, 4, ops, axis_name=mesh.AXIS))(x, ids)
    same(got["a"].reshape(-1), by_id(x["a"].reshape(-1), ids.reshape(-1), 8, "argmin"))
    assert got["b"].shape == (2, 4, 0)


def test_nothing_at_all():
    call = lambda x, ids, size: mgpu.reduce_by_id(x, ids, size, "min", axis_name=mesh.AXIS)  # noqa: E731
    empty = np.zeros((3, 0), np.float32), np.zeros((3, 0), np.int32)
    assert mesh.by_vmap(lambda x, ids: call(x, ids, 2))(*empty).tolist() == [[np.inf] * 2] * 3
    assert mesh.by_vmap(lambda x, ids: call(x, ids, 0))(np.ones((3, 2)), np.zeros((3, 2), int)).shape == (3, 0)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_bits_in_every_run(rng, form):
    x, ids = rng.normal(size=(4, 500)).astype(np.float32), rng.integers(0, 400, (4, 500))
    call = mesh.by_vmap(lambda x, ids: mgpu.reduce_by_id(x, ids, {"few": 100, "many": 200}[form], axis_name=mesh.AXIS))
    first = np.asarray(call(x, ids))
    exact = np.zeros(first.size)
    np.add.at(exact, ids, x.astype(np.float64))
    np.testing.assert_allclose(first.reshape(-1), exact, atol=1e-5)
    for _ in range(3):
        assert np.asarray(call(x, ids)).tobytes() == first.tobytes()


@pytest.mark.usefixtures("forms")
@pytest.mark.parametrize("form", FORMS)
def test_derivatives(rng, form):
    size = {"few": 2, "many": 5}[form]
    ids = np.array([[0, size, 9, size, -1], [size, 0, 1, 1, size]])  # the first id of each device has items
    x = rng.permutation(10).reshape(2, 5) / 4.0
    counts = np.array([5, 4], np.int32)

    def call(x, ids, count):
        named = {"count": count, "axis_name": mesh.AXIS}
        largest = mgpu.reduce_by_id(x, ids, size, "max", **named)[:1]
        return largest * jnp.sin(mgpu.reduce_by_id(x, ids, size, **named)[:2])

    function = jax.vmap(call, axis_name=mesh.AXIS)
    check_grads(jax.jit(lambda x: function(x, ids, counts)), (x,), order=2, modes=["fwd", "rev"], eps=1e-4)
    weights = np.arange(1.0, 5).reshape(2, 2)
    by_vmap, by_devices = (
        jax.jit(jax.grad(lambda x, f=f: (f(x, ids, counts) * weights).sum()))(x)
        for f in (function, mesh.by_devices(call, 2))
    )
    np.testing.assert_allclose(by_devices, by_vmap)


def test_a_batch_within(rng):
    x, ids = rng.integers(0, 9, (2, SLOTS, 3)), rng.integers(0, 10, (2, SLOTS, 3))

    def call(x, ids):
        one = lambda x, ids: mgpu.reduce_by_id(x, ids, 5, axis_name=mesh.AXIS)  # noqa: E731
        return jax.vmap(one, 1, 1)(x, ids)

    for function in (mesh.by_vmap(call), mesh.by_devices(call, 2, check_vma=False)):
        got = np.asarray(function(x, ids)).reshape(10, 3)
        for column in range(3):
            expected = by_id(x[..., column].reshape(-1), ids[..., column].reshape(-1), 10, "add")
            np.testing.assert_array_equal(got[:, column], expected)


@pytest.mark.usefixtures("forms")
@pytest.mark.parametrize("form", FORMS)
def test_counts(rng, form):
    devices, size = 3, FORMS[form]
    edges = np.array([-1, 0, 4, 4, 9], np.float32)

    def call(ids, weights):
        named = {"axis_name": mesh.AXIS}
        numbers, same_edges = mgpu.histogram(weights, edges, **named)
        return (
            mgpu.bincount(ids, size, **named),
            mgpu.bincount(ids, size, weights, **named),
            mgpu.bincount(ids, size, weights.astype(jnp.int8), **named),
            (numbers, same_edges),
        )

    for ids in ids_of(rng, devices * SLOTS, devices * size):
        weights = rng.integers(-3, 12, ids.shape).astype(np.float32)
        given = ids.reshape(devices, SLOTS), weights.reshape(devices, SLOTS)
        numbers, sums, narrow, (between, _) = jax.device_get(mesh.by_vmap(call)(*given))
        inside = (ids >= 0) & (ids < devices * size)
        for got, of_items in ((numbers, None), (sums, weights[inside]), (narrow, weights[inside])):
            expected = np.bincount(ids[inside], of_items, devices * size)
            same(got.reshape(-1), expected.astype(np.int64).astype(got.dtype))
        same(between, np.tile(np.histogram(weights, edges)[0].astype(np.int32), (devices, 1)))
