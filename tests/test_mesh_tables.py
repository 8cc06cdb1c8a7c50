"""Lookups, as-of joins and searches in any order over a mesh axis, compared with Python and NumPy."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

import jax_mgpu as mgpu
from tests import data, mesh

pytestmark = pytest.mark.usefixtures("x64")

SLOTS = 13
KEYS = {"axis_name": mesh.AXIS}


def pairs_of_counts(rng, devices):
    """Returns two tables' live counts, which differ in their distribution."""
    kinds = mesh.counts_of(rng, devices, SLOTS)
    return list(zip(kinds, kinds[2:] + kinds[:2], strict=True))


def sharded(x, counts):
    return mesh.shard(x, counts, SLOTS)


@pytest.mark.parametrize("dtype", ["int32", "float32", "uint8", "bfloat16", "int64"])
@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.usefixtures("forms")
def test_search(rng, devices, dtype):
    call = mesh.by_vmap(
        lambda needles, haystack, count: [
            mgpu.search(needles, haystack, side, count=count, **KEYS) for side in ("left", "right")
        ]
    )
    for counts in mesh.counts_of(rng, devices, SLOTS):
        keys = rng.choice(data.special_keys(dtype), int(counts.sum()))
        needles = rng.choice(data.special_keys(dtype), devices * SLOTS)
        codes = np.unique(data_codes(np.concatenate([keys, needles])), return_inverse=True)[1]
        order = np.argsort(codes[: len(keys)], kind="stable")
        given = needles.reshape(devices, SLOTS), sharded(keys[order], counts), counts
        for got, side in zip(call(*given), ("left", "right"), strict=True):
            expected = np.searchsorted(codes[: len(keys)][order], codes[len(keys) :], side)
            np.testing.assert_array_equal(np.asarray(got).reshape(-1), expected)


def data_codes(keys):
    """Returns numbers that compare like keys: NaN last, both zeros equal."""
    wide = keys.astype(np.float64) if keys.dtype.kind not in "iu" else keys
    order = np.unique(np.where(wide == 0, 0, wide))  # all NaNs become one, the last
    return np.searchsorted(order, np.where(wide == 0, 0, wide))


@pytest.mark.usefixtures("forms")
def test_search_of_columns(rng):
    devices, counts = 3, np.array([13, 0, 7], np.int32)
    columns = np.sort(rng.integers(0, 4, (int(counts.sum()), 2)).astype(np.int32) @ [10, 1])
    haystack = tuple(sharded((columns // by % 10).astype(np.int16), counts) for by in (10, 1))
    needles = rng.integers(0, 5, (2, devices, SLOTS)).astype(np.int16)
    call = mesh.by_vmap(lambda needles, haystack, count: mgpu.search(needles, haystack, count=count, **KEYS))
    expected = np.searchsorted(columns, needles[0] * 10 + needles[1])
    np.testing.assert_array_equal(call(tuple(needles), haystack, counts), expected)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.usefixtures("forms")
def test_lookup(rng, devices, dtype):
    call = mesh.by_vmap(
        lambda keys, table, values, counts: mgpu.lookup(
            keys, table, values, default=-5, count=counts[0], table_count=counts[1], **KEYS
        )
    )
    for counts, table_counts in pairs_of_counts(rng, devices):
        table, keys = (rng.integers(0, 30, int(n.sum())).astype(dtype) for n in (table_counts, counts))
        values = {"row": np.arange(len(table)), "pair": rng.normal(size=(len(table), 2)).astype(np.float16)}
        given = (
            sharded(keys, counts),
            sharded(table, table_counts),
            {name: sharded(x, table_counts) for name, x in values.items()},
        )
        got = call(*given, np.stack([counts, table_counts], 1))
        rows = {key: row for row, key in reversed(list(enumerate(table)))}
        for name, x in values.items():
            missing = np.full(x.shape[1:], -5)
            expected = [x[rows[key]] if key in rows else missing for key in keys]
            np.testing.assert_array_equal(mesh.gather(got[name], counts), np.array(expected).reshape(-1, *x.shape[1:]))
            past = np.arange(SLOTS) >= counts[:, None]
            assert (np.asarray(got[name])[past] == -5).all()


def test_lookup_is_linear_in_the_values(rng):
    keys, table = rng.integers(0, 20, (3, SLOTS)), rng.permutation(3 * SLOTS).reshape(3, SLOTS)
    look_up = mesh.by_vmap(lambda values: mgpu.lookup(keys_of(keys), keys_of(table), values, **KEYS))
    check_grads(look_up, (rng.normal(size=(3, SLOTS)),), 1, modes=("fwd", "rev"))


def keys_of(x):
    """Returns this device's row of an array that every device has."""
    return jax.numpy.asarray(x)[jax.lax.axis_index(mesh.AXIS)]


LOOKS = tuple(itertools.product(("backward", "forward", "nearest"), (False, True)))


def asof_joins(a, b, by_a, by_b, counts):
    """Returns as-of joins of sorted times, with and without groups, and of unsorted times."""
    given = {"a_count": counts[0], "b_count": counts[1], **KEYS}
    found = []
    for direction, exact in LOOKS:
        options = {"direction": direction, "allow_exact_matches": exact, **given}
        tolerance = 3 if direction == "nearest" else None
        found.append(
            [
                mgpu.asof_join(a, b, **options),
                mgpu.asof_join(a, b, by_a=by_a, by_b=by_b, tolerance=tolerance, **options),
            ]
        )
    shuffled = mgpu.asof_join(a[::-1], b, assume_sorted=False, axis_name=mesh.AXIS)
    return found, shuffled


def partner(time, candidates, direction, exact, tolerance=None):
    """Returns the row of b by the definition; candidates are (time, row), ordered by row."""
    earlier = [(t, row) for t, row in candidates if t < time or (exact and t == time)]
    later = [(t, row) for t, row in candidates if t > time or (exact and t == time)]
    before = max(earlier, default=None)
    after = min(later, default=None)
    if direction != "nearest":
        chosen = before if direction == "backward" else after
    else:
        within = [x for x in (before, after) if x is not None and (tolerance is None or abs(x[0] - time) <= tolerance)]
        chosen = min(within, key=lambda x: abs(x[0] - time), default=None)
    return -1 if chosen is None else chosen[1]


@pytest.mark.parametrize("dtype", ["int32", "float32"])
@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.usefixtures("forms")
def test_asof_join(rng, devices, dtype):
    call = mesh.by_vmap(asof_joins)
    for a_counts, b_counts in pairs_of_counts(rng, devices)[:4]:
        a, b = (np.sort(rng.integers(0, 40, int(n.sum()))).astype(dtype) for n in (a_counts, b_counts))
        by_a, by_b = (rng.integers(0, 3, len(x)).astype(np.int8) for x in (a, b))
        given = [sharded(x, n) for x, n in ((a, a_counts), (b, b_counts), (by_a, a_counts), (by_b, b_counts))]
        found, shuffled = jax.device_get(call(*given, np.stack([a_counts, b_counts], 1)))
        for (direction, exact), (all_rows, of_group) in zip(LOOKS, found, strict=True):
            tolerance = 3 if direction == "nearest" else None
            rows = list(zip(b.tolist(), range(len(b)), strict=True))
            expected = [partner(time, rows, direction, exact) for time in a.tolist()]
            np.testing.assert_array_equal(mesh.gather(all_rows, a_counts), expected, err_msg=f"{direction} {exact}")
            expected = [
                partner(time, [row for row in rows if by_b[row[1]] == group], direction, exact, tolerance)
                for time, group in zip(a.tolist(), by_a, strict=True)
            ]
            np.testing.assert_array_equal(mesh.gather(of_group, a_counts), expected, err_msg=f"{direction} {exact} by")
        every_b = given[1].reshape(-1).tolist()
        rows = list(zip(every_b, range(len(every_b)), strict=True))
        expected = [partner(time, rows, "backward", True) for time in given[0][:, ::-1].reshape(-1).tolist()]
        np.testing.assert_array_equal(shuffled.reshape(-1), expected)


@pytest.mark.parametrize("rows", [8, 4800])
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_lookups_of_keys_over_explicit_axes_in_a_small_table(devices, dtype, rows):
    pair = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,), devices=devices[:2])
    keys = np.resize(np.array([0, 3, 1, 9], dtype), rows)
    with jax.set_mesh(pair):
        spread = jax.device_put(keys, NamedSharding(pair, P("d")))
        found = mgpu.lookup(spread, np.array([3, 2, 1, 0], dtype), np.arange(4.0, dtype=np.float32))
    assert found.tolist() == np.resize([3, 0, 2, 0], rows).tolist()


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_joins_without_equal_nulls_of_spread_keys(devices, kind):
    pair = jax.make_mesh((2,), ("d",), axis_types=(kind,), devices=devices[:2])
    with jax.set_mesh(pair):
        keys = jax.device_put(np.array([0, 1, np.nan, np.nan], np.float32), NamedSharding(pair, P("d")))
        assert mgpu.join(keys, keys, "left", size=5, null_equal=False).a_indices.tolist() == [0, 1, 2, 3, -1]


def test_lookups_of_no_keys_within_shard_map(devices):
    pair = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,), devices=devices[:2])
    specs = {"in_specs": (P("d"), P("d"), P()), "out_specs": P("d")}
    found = jax.jit(jax.shard_map(mgpu.lookup, mesh=pair, **specs))
    table, values = np.zeros(8, np.int32), np.ones(4, np.float32)
    assert jax.eval_shape(found, np.zeros(0, np.int32), table, values).shape == (0,)
