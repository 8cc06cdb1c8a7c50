"""Intervals and bulk operations over a mesh axis, compared with NumPy on the global arrays."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from tests import mesh, oracle

pytestmark = pytest.mark.usefixtures("x64")

INTERVALS, ROWS, SIZE = 7, 12, 17


def problems(rng, devices):
    """Yields lengths, offsets and a total, of several kinds of intervals."""
    m, slots = devices * INTERVALS, devices * SIZE
    one, none, last = np.zeros((3, m), int)
    one[rng.integers(m)] = slots
    last[-INTERVALS:] = slots // INTERVALS
    for lengths in (rng.multinomial(slots, np.ones(m) / m), one, none, last, rng.integers(0, 2, m)):
        yield lengths, np.cumsum(lengths) - lengths, lengths.sum()


def rows_of(starts, lengths):
    """Returns each slot's interval, and its row's source position."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return owner, starts[owner] + np.arange(lengths.sum()) - (np.cumsum(lengths) - lengths)[owner]


def sharded(x, devices):
    return np.asarray(x).reshape(devices, -1, *np.shape(x)[1:])


def searches(offsets, total):
    named = {"total": total, "axis_name": mesh.AXIS}
    return (
        mgpu.load_balance_search(offsets, SIZE, return_rank=True, **named),
        mgpu.load_balance_search(offsets, SIZE, fill_value=99, **named),
    )


def check_searches(rng, call, devices, dtype=np.int32):
    for lengths, offsets, total in problems(rng, devices):
        given = sharded(offsets.astype(dtype), devices), np.full(devices, total, np.int32)
        (objects, ranks), filled = jax.tree.map(lambda x: np.asarray(x).reshape(-1), call(*given))
        owner, place = rows_of(np.zeros(len(lengths), int), lengths)
        for got, expected, fill in ((objects, owner, -1), (ranks, place, -1), (filled, owner, 99)):
            np.testing.assert_array_equal(got, oracle.padded(expected, devices * SIZE, fill))


@pytest.mark.parametrize("devices", mesh.FEW)
def test_load_balance_search(rng, devices):
    check_searches(rng, mesh.by_vmap(searches), devices)


def test_load_balance_search_on_devices(rng):
    check_searches(rng, mesh.by_devices(searches, 3), 3)


def test_load_balance_search_of_unsigned_offsets(rng):
    check_searches(rng, mesh.by_vmap(searches), 3, np.uint32)


def every_interval(values, offsets, total, x, starts, places, into):
    named = {"total": total, "axis_name": mesh.AXIS}
    return (
        mgpu.interval_expand(values, offsets, SIZE, fill_value=7, **named),
        mgpu.interval_gather(x, starts, offsets, SIZE, fill_value=7, **named),
        mgpu.interval_move(x, starts, places, offsets, into, **named),
        mgpu.interval_scatter(x, places, offsets, into, **named),
    )


def check(rng, call, devices):
    m, n, slots = devices * INTERVALS, devices * ROWS, devices * SIZE
    for lengths, offsets, total in problems(rng, devices):
        values = rng.normal(size=(m, 2)).astype(np.float16)
        x, into = rng.integers(1, 999, (2, max(n, slots)))
        x, into = x[:n].astype(np.int16), into[:slots].astype(np.int16)
        starts = rng.integers(-3, n, m).astype(np.int32)
        starts = np.where(rng.random(m) < rng.choice([0, 1]), starts[0], starts)  # starts on all devices, or all equal
        order = rng.permutation(m)
        places = np.zeros(m, np.int32)
        places[order] = np.cumsum(lengths[order]) - lengths[order]
        operands = [sharded(part, devices) for part in (values, offsets.astype(np.int32))]
        others = [sharded(part, devices) for part in (x, starts, places, into)]
        found = call(*operands, np.full(devices, total, np.int32), *others)
        expanded, gathered, moved, scattered = (
            np.asarray(part).reshape(-1, *part.shape[2:]) for part in jax.device_get(found)
        )
        owner, source = rows_of(starts, lengths)
        expected = np.full((slots, 2), 7, np.float16)
        expected[:total] = values[owner]
        oracle.same_bits(expanded, expected)
        inside = (source >= 0) & (source < n)
        expected = np.full(slots, 7, np.int16)
        expected[:total][inside] = x[source[inside]]
        np.testing.assert_array_equal(gathered, expected)
        expected = into.copy()
        expected[rows_of(places, lengths)[1][inside]] = x[source[inside]]
        np.testing.assert_array_equal(moved, expected)
        expected = into.copy()
        taken = rows_of(places, lengths)[1][:n]  # the n rows that exist
        expected[taken] = x[: len(taken)]
        np.testing.assert_array_equal(scattered, expected)


@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.usefixtures("forms")
def test_intervals(rng, devices):
    check(rng, mesh.by_vmap(every_interval), devices)


@pytest.mark.long
def test_intervals_on_devices(rng):
    check(rng, mesh.by_devices(every_interval, 3), 3)


@pytest.mark.parametrize("devices", mesh.FEW)
def test_few_long_intervals(rng, devices, monkeypatch):
    monkeypatch.setattr(f"{__name__}.SIZE", INTERVALS * devices**2)
    monkeypatch.setattr(f"{__name__}.ROWS", INTERVALS * devices**2 - 3)
    check(rng, mesh.by_vmap(every_interval), devices)


@pytest.mark.parametrize("form", [None, "_ragged", "_chunked"])
@pytest.mark.long
def test_few_long_intervals_on_devices(rng, form, monkeypatch):
    monkeypatch.setattr(f"{__name__}.SIZE", 70)
    if form is not None:
        mesh.use_form(monkeypatch, form)
    check(rng, mesh.by_devices(every_interval, 3), 3)


@pytest.mark.long
@pytest.mark.parametrize("size", [4, 8], ids=["requests", "runs"])
def test_derivatives(rng, size):
    offsets, total = np.array([[0, 5], [5, 6]], np.int32), np.full(2, 7, np.int32)
    starts, places = np.array([[1, 0], [3, 5]], np.int32), np.array([[1, 0], [6, 7]], np.int32)

    def call(values, x, into):
        def one(values, x, into, offsets, total, starts, places):
            named = {"total": total, "axis_name": mesh.AXIS}
            return (
                mgpu.interval_expand(values, offsets, size, **named),
                mgpu.interval_gather(x, starts, offsets, size, **named),
                mgpu.interval_move(x, starts, places, offsets, into, **named),
            )

        return jax.vmap(one, axis_name=mesh.AXIS)(values, x, into, offsets, total, starts, places)

    arguments = rng.normal(size=(2, 2)), rng.normal(size=(2, 3)), rng.normal(size=(2, 4))
    check_grads(jax.jit(call), jax.tree.map(jnp.asarray, arguments), order=1, modes=["fwd", "rev"], eps=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.usefixtures("forms")
def test_gradient_of_a_scatter(dtype):
    starts, offsets = np.array([[5, 0], [1, 9]], np.int32), np.array([[0, 2], [3, 7]], np.int32)
    weights = jnp.arange(1, 9, dtype=dtype).reshape(2, 4)

    def loss(x, into):
        one = functools.partial(mgpu.interval_scatter, axis_name=mesh.AXIS)
        return jnp.vdot(jax.vmap(one, axis_name=mesh.AXIS)(x, starts, offsets, into), weights)

    of_x, of_into = jax.grad(loss, argnums=(0, 1))(weights, weights)
    # Rows 0 and 1 go to 5 and 6, row 2 to 0, rows 3 to 6 to 1 and after; the last one goes nowhere.
    assert of_x.reshape(-1).tolist() == [6, 7, 1, 2, 3, 4, 5, 0]
    assert of_into.reshape(-1).tolist() == [0, 0, 0, 0, 0, 0, 0, 8]


# ---- Bulk operations ------------------------------------------------------------------------------------------------


def remove_and_insert(x, removed, inserted, values, count):
    named = {"count": count, "axis_name": mesh.AXIS}
    return (
        mgpu.bulk_remove(x, removed, fill_value=3, **named),
        mgpu.bulk_insert(x, inserted, values, size=ROWS + INTERVALS, fill_value=3, **named),
    )


def check_bulk(rng, call, devices):
    slots, m = devices * ROWS, devices * INTERVALS
    for counts in mesh.counts_of(rng, devices, ROWS):
        total = int(counts.sum())
        x, values = rng.normal(size=(total, 2)).astype(np.float16), rng.normal(size=(m, 2)).astype(np.float16)
        removed = np.full(m, slots + 1)
        number = rng.integers(0, min(m, total) + 1)
        removed[:number] = np.sort(rng.choice(total, number, replace=False))
        inserted = np.sort(rng.choice([0, total, *rng.integers(0, total + 1, m)], m))
        inserted[m - rng.integers(0, 4) :] = slots + 1
        sharded_indices = [sharded(part.astype(np.int32), devices) for part in (removed, inserted)]
        found = call(mesh.shard(x, counts, ROWS), *sharded_indices, sharded(values, devices), counts)
        (left, n), (both, shares) = jax.device_get(found)
        keep = np.ones(total, bool)
        keep[removed[:number]] = False
        np.testing.assert_array_equal(n, mesh.gather(mesh.shard(keep, counts, ROWS), counts) @ owner_of(counts))
        oracle.same_bits(mesh.gather(left, n), x[keep])
        inside = inserted <= total
        expected = np.insert(x, inserted[inside], values[inside], axis=0)
        np.testing.assert_array_equal(shares, mesh.even(len(expected), devices))
        oracle.same_bits(mesh.gather(both, shares), expected)
        for rows, live in ((left, n), (both, shares)):
            assert all((row[count:] == 3).all() for row, count in zip(rows, live, strict=True))


def owner_of(counts):
    """Returns each item's device as a one-hot array: [items, devices]."""
    return (np.repeat(np.arange(len(counts)), counts)[:, None] == np.arange(len(counts))).astype(int)


@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.usefixtures("forms")
def test_bulk(rng, devices):
    check_bulk(rng, mesh.by_vmap(remove_and_insert), devices)


@pytest.mark.long
def test_bulk_on_devices(rng):
    check_bulk(rng, mesh.by_devices(remove_and_insert, 3), 3)
