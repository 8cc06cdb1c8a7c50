"""Operations on two sorted arrays over a mesh axis, against the oracle on the global arrays."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import jax_mgpu as mgpu
from tests import data, mesh, oracle

pytestmark = pytest.mark.usefixtures("x64")

SLOTS, OTHERS = 19, 11
TYPES = {1: "int16", 2: "uint64", 3: "float32", 4: "int8", 8: "float16"}
SETS = ("intersection", "union", "difference", "symmetric_difference")


def problems(rng, devices, dtype):
    """Pairs of sorted global arrays, dealt out in every way: any keys, few different ones, one, unlike ones."""
    kind = np.dtype(dtype)
    for a_counts, b_counts in zip(
        mesh.counts_of(rng, devices, SLOTS), rng.permutation(mesh.counts_of(rng, devices, OTHERS)), strict=True
    ):
        n_a, n_b = int(a_counts.sum()), int(b_counts.sum())
        pairs = [
            (data.random_keys(rng, dtype, n_a), data.random_keys(rng, dtype, n_b)),
            (rng.integers(0, 3, n_a), rng.integers(0, 4, n_b)),
            (np.full(n_a, 5), np.full(n_b, 5)),
            (rng.integers(0, 9, n_a), rng.integers(9, 20, n_b)),
        ]
        for pair in pairs:
            a, b = (data.in_order(x.astype(kind)) for x in pair)
            dealt = mesh.deal(a, a_counts, SLOTS), mesh.deal(b, b_counts, OTHERS), a_counts, b_counts
            yield a, b, a_counts, b_counts, dealt


def searches(a, b, a_count, b_count):
    named = {"axis_name": mesh.AXIS}
    counts = {"needles_count": a_count, "haystack_count": b_count}
    return (
        [
            mgpu.sorted_search(a, b, side, fill_value=fill, **counts, **named)
            for side, fill in (("left", -1), ("right", 99))
        ],
        mgpu.sorted_match(a, b, "right", a_count=a_count, b_count=b_count, **named),
        mgpu.sorted_equal_count(a, b, a_count=a_count, b_count=b_count, **named),
    )


def check_searches(rng, call, devices, dtype):
    for a, b, a_counts, b_counts, dealt in problems(rng, devices, dtype):
        (left, right), match, equal = jax.device_get(call(*dealt))
        low, high = (oracle.sorted_search(a, b, side) for side in ("left", "right"))
        np.testing.assert_array_equal(mesh.gather(left, a_counts), low)
        np.testing.assert_array_equal(mesh.gather(right, a_counts), high)
        np.testing.assert_array_equal(mesh.gather(equal, a_counts), high - low)
        np.testing.assert_array_equal(mesh.gather(match.a_index, a_counts), high)
        np.testing.assert_array_equal(mesh.gather(match.b_index, b_counts), oracle.sorted_search(b, a))
        np.testing.assert_array_equal(mesh.gather(match.a_match, a_counts), high > low)
        in_a = oracle.sorted_search(b, a) < oracle.sorted_search(b, a, "right")
        np.testing.assert_array_equal(mesh.gather(match.b_match, b_counts), in_a)
        assert match.a_match_count.tolist() == [(high > low).sum()] * devices
        assert match.b_match_count.tolist() == [in_a.sum()] * devices
        dead = [row[count:] for row, count in zip(left, a_counts, strict=True)]
        assert (np.concatenate(dead) == -1).all()
        assert (np.concatenate([row[count:] for row, count in zip(right, a_counts, strict=True)]) == 99).all()


@pytest.mark.parametrize("devices", mesh.SIZES)
def test_searches(rng, devices):
    check_searches(rng, mesh.by_vmap(searches), devices, TYPES[devices])


def test_searches_on_devices(rng):
    check_searches(rng, mesh.by_devices(searches, 3), 3, "int32")


def sets(a, b, a_count, b_count):
    named = {"a_count": a_count, "b_count": b_count, "axis_name": mesh.AXIS}
    values = [2 * x.astype(np.float32) for x in (a, b)]
    return [
        getattr(mgpu, f"set_{kind}")(
            a, b, *(values if kind in ("union", "symmetric_difference") else values[:1]), **named
        )
        for kind in SETS
    ]


def check_sets(rng, call, devices, dtype):
    for a, b, _, _, dealt in problems(rng, devices, dtype):
        for kind, (keys, values, counts) in zip(SETS, jax.device_get(call(*dealt)), strict=True):
            sources = oracle.set_sources(f"set_{kind}", a, b)
            expected = np.concatenate([a, b])[sources]
            assert (counts <= keys.shape[1]).all()
            oracle.same_bits(mesh.gather(keys, counts), expected)
            np.testing.assert_array_equal(mesh.gather(values, counts), 2 * expected.astype(np.float32))


@pytest.mark.parametrize("devices", mesh.SIZES)
def test_sets(rng, devices):
    check_sets(rng, mesh.by_vmap(sets), devices, {**TYPES, 3: "int32", 8: "int32"}[devices])


def test_sets_on_devices(rng):
    check_sets(rng, mesh.by_devices(sets, 3), 3, "int32")
