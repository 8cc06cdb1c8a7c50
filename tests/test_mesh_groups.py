"""group_by over a mesh axis, compared with NumPy on the global array."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from tests import data, mesh, oracle

pytestmark = pytest.mark.usefixtures("x64")

SLOTS, SIZE = 19, 6
OPERATORS = ("add", "min", "mean", "median", "nunique", "count", "first", "last", "argmax")


def groups(keys, x, rows, count):
    named = {"size": SIZE, "count": count, "axis_name": mesh.AXIS}
    values = dict.fromkeys(OPERATORS, x) | {"rows": rows}
    return (
        mgpu.group_by(keys, values, {name: name for name in OPERATORS} | {"rows": "last"}, **named),
        mgpu.group_by((keys, x % 2), x, jnp.maximum, **named),
    )


def expected_of(members, x, operator):
    part = x[members]
    match operator:
        case "median" | "mean":
            return getattr(np, operator)(part.astype(np.float64))
        case "nunique":
            return len(np.unique(part))
        case "count":
            return len(part)
        case "first" | "last":
            return part[0 if operator == "first" else -1]
        case "argmax":
            return members[np.argmax(part)]
    return {"add": np.sum, "min": np.min}[operator](part)


def on_devices(ranks, devices):
    """Returns each group's members, device, and place there (None if past `SIZE`)."""
    order = np.argsort(ranks, kind="stable")
    edges = np.cumsum(mesh.even(len(ranks), devices))
    _, starts = np.unique(ranks[order], return_index=True)
    device = np.searchsorted(edges, starts, "right")
    place = np.arange(len(starts)) - np.searchsorted(device, device)
    members = np.split(order, starts[1:]) if len(starts) else []
    return [(m, d, p if p < SIZE else None) for m, d, p in zip(members, device, place, strict=True)]


def check_groups(rng, call, devices, dtype):
    for counts in mesh.counts_of(rng, devices, SLOTS):
        total = int(counts.sum())
        for keys in (rng.choice(data.special_keys(dtype), total), data.random_keys(rng, dtype, total)):
            x, rows = rng.integers(-9, 9, total).astype(np.int32), rng.normal(size=(total, 2)).astype(np.float16)
            given = [mesh.shard(part, counts, SLOTS) for part in (keys, x, rows)]
            (found, got, numbers), (columns, maxima, number_of_pairs) = jax.device_get(call(*given, counts))
            in_groups = on_devices(oracle.rank(keys), devices)
            np.testing.assert_array_equal(numbers, np.bincount([d for _, d, _ in in_groups], minlength=devices))
            for members, device, place in in_groups:
                if place is None:
                    continue
                oracle.same_bits(found[device, place], keys[members[0]])
                oracle.same_bits(got["rows"][device, place], rows[members[-1]])
                for name in OPERATORS:
                    near = expected_of(members, x, name)
                    np.testing.assert_allclose(got[name][device, place], near, rtol=1e-6, err_msg=name)
            for name, x_of in got.items():
                nothing = -1 if name == "argmax" else 0
                assert all((row[n:] == nothing).all() for row, n in zip(x_of, np.minimum(numbers, SIZE), strict=True))

            in_groups = on_devices(oracle.column_ranks([keys, x % 2]), devices)
            np.testing.assert_array_equal(number_of_pairs, np.bincount([d for _, d, _ in in_groups], minlength=devices))
            for members, device, place in in_groups:
                if place is not None:
                    oracle.same_bits(columns[0][device, place], keys[members[0]])
                    assert maxima[device, place] == x[members].max()


@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.usefixtures("forms")
def test_groups(rng, devices):
    check_groups(rng, mesh.by_vmap(groups), devices, "float32" if devices > 2 else "int16")


def test_groups_on_devices(rng):
    check_groups(rng, mesh.by_devices(groups, 3), 3, "int32")


@pytest.mark.usefixtures("forms")
def test_medians_of_floats(rng):
    counts = np.array([7, 0, 8], np.int32)
    keys, x = rng.integers(0, 3, 15).astype(np.int8), rng.normal(size=15).astype(np.float32)
    x[np.flatnonzero(keys == 1)[:1]] = np.nan
    call = mesh.by_vmap(lambda k, x, c: mgpu.group_by(k, x, "median", size=9, count=c, axis_name=mesh.AXIS))
    found, medians, numbers = jax.device_get(call(mesh.shard(keys, counts, 9), mesh.shard(x, counts, 9), counts))
    kinds = mesh.gather(found, numbers)
    np.testing.assert_array_equal(kinds, np.unique(keys))
    expected = [np.median(x[keys == kind]) for kind in kinds]
    np.testing.assert_allclose(mesh.gather(medians, numbers), expected, rtol=1e-6)


@pytest.mark.usefixtures("forms")
def test_derivatives(rng):
    counts = np.array([6, 0, 5], np.int32)
    keys = mesh.shard(rng.integers(0, 3, 11), counts, 6)
    x = jnp.asarray(mesh.shard(rng.permutation(11) * 1.5, counts, 6))
    named = {"size": 4, "axis_name": mesh.AXIS}
    for op in ("mean", "max", "first"):
        call = mesh.by_vmap(lambda k, x, c, op=op: mgpu.group_by(k, x, op, count=c, **named)[1])
        check_grads(jax.jit(lambda x, call=call: call(keys, x, counts)), (x,), 1)


def test_errors():
    keys = np.arange(3)[None]
    with pytest.raises(ValueError, match="group_by: axis_name: expected None where columns have more than 64 bits"):
        jax.vmap(lambda k: mgpu.group_by((k, k), k, size=3, axis_name=mesh.AXIS), axis_name=mesh.AXIS)(keys)
    random = jax.random.split(jax.random.key(0), 3)[None]
    with pytest.raises(TypeError, match="group_by: values: expected integers"):
        jax.vmap(lambda k, r: mgpu.group_by(k, r, size=3, axis_name=mesh.AXIS), axis_name=mesh.AXIS)(keys, random)
    with pytest.raises(ValueError, match=r"group_by: op: expected .*, got 'most'"):
        jax.vmap(lambda k: mgpu.group_by(k, k, "most", size=3, axis_name=mesh.AXIS), axis_name=mesh.AXIS)(keys)
