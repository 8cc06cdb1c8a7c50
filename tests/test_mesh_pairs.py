"""Operations on two sorted arrays over a mesh axis, compared with tests/oracle.py on the global arrays."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest

import jax_mgpu as mgpu
from tests import data, mesh, oracle

pytestmark = pytest.mark.usefixtures("x64")

SLOTS, OTHERS = 19, 11
TYPES = {1: "int16", 2: "uint64", 3: "float32", 4: "int8", 8: "float16"}
SIDES = ("left", "right")
SETS = ("intersection", "union", "difference", "symmetric_difference")


def problems(rng, devices, dtype):
    """Yields two sorted arrays (any keys, few, one, disjoint ones), for each distribution over devices."""
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
            sharded = mesh.shard(a, a_counts, SLOTS), mesh.shard(b, b_counts, OTHERS), a_counts, b_counts
            yield a, b, a_counts, b_counts, sharded


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
    for a, b, a_counts, b_counts, sharded in problems(rng, devices, dtype):
        (left, right), match, equal = jax.device_get(call(*sharded))
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


@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.long
@pytest.mark.usefixtures("forms")
def test_searches(rng, devices):
    check_searches(rng, mesh.by_vmap(searches), devices, TYPES[devices])


@pytest.mark.long
@pytest.mark.usefixtures("forms")
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
    for a, b, _, _, sharded in problems(rng, devices, dtype):
        for kind, (keys, values, counts) in zip(SETS, jax.device_get(call(*sharded)), strict=True):
            sources = oracle.set_sources(f"set_{kind}", a, b)
            expected = np.concatenate([a, b])[sources]
            assert (counts <= keys.shape[1]).all()
            oracle.same_bits(mesh.gather(keys, counts), expected)
            np.testing.assert_array_equal(mesh.gather(values, counts), 2 * expected.astype(np.float32))


@pytest.mark.usefixtures("forms")
@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.long
def test_sets(rng, devices):
    check_sets(rng, mesh.by_vmap(sets), devices, {**TYPES, 3: "int32", 8: "int32"}[devices])


@pytest.mark.usefixtures("forms")
@pytest.mark.long
def test_sets_on_devices(rng):
    check_sets(rng, mesh.by_devices(sets, 3), 3, "int32")


# ---- Aligned --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("forms")
@pytest.mark.parametrize("lengths", [(2, 0), (0, 2), (0, 0)])
def test_sets_of_no_slots_on_devices(lengths):
    devices = 3
    a, b = (np.arange(devices * n, dtype=np.int32).reshape(devices, n) for n in lengths)
    got = mesh.by_devices(
        lambda a, b: [getattr(mgpu, f"set_{kind}")(a, b, axis_name=mesh.AXIS) for kind in SETS], devices
    )(a, b)
    for kind, found in zip(SETS, jax.device_get(got), strict=True):
        expected = [] if kind == "intersection" else a.ravel() if kind == "difference" else [*a.ravel(), *b.ravel()]
        np.testing.assert_array_equal(mesh.gather(found.keys, found.count), expected)


def all_aligned(a, b, a_count, b_count, a_ids, b_ids):
    """Aligns both arrays once; operations then exchange no items."""
    named = {"a_count": a_count, "b_count": b_count, "axis_name": mesh.AXIS}
    both = mgpu.align(a, b, {"x": a_ids}, b_ids, **named)
    named.update(aligned=True, a_count=both.a_count, b_count=both.b_count)
    counts = {"needles_count": both.a_count, "haystack_count": both.b_count}
    values = both.a_values["x"], both.b_values
    return (
        both,
        [mgpu.sorted_search(both.a, both.b, side, **counts, axis_name=mesh.AXIS, aligned=True) for side in SIDES],
        mgpu.sorted_match(both.a, both.b, **named),
        mgpu.sorted_equal_count(both.a, both.b, **named),
        mgpu.merge(both.a, both.b, *values, **named),
        [
            getattr(mgpu, f"set_{kind}")(
                both.a, both.b, *(values if kind in ("union", "symmetric_difference") else values[:1]), **named
            )
            for kind in SETS
        ],
    )


def check_aligned(rng, call, devices, dtype):
    for a, b, a_counts, b_counts, sharded in problems(rng, devices, dtype):
        a_ids, b_ids = np.split(np.arange(len(a) + len(b), dtype=np.int32), [len(a)])
        ids = mesh.shard(a_ids, a_counts, SLOTS), mesh.shard(b_ids, b_counts, OTHERS)
        both, searched, match, equal, merged, found = jax.device_get(call(*sharded, *ids))
        n_a, n_b = both.a_count, both.b_count
        np.testing.assert_array_equal(n_a + n_b, mesh.even(len(a) + len(b), devices))
        oracle.same_bits(mesh.gather(both.a, n_a), a)
        oracle.same_bits(mesh.gather(both.b, n_b), b)
        np.testing.assert_array_equal(mesh.gather(both.a_values["x"], n_a), a_ids)
        np.testing.assert_array_equal(mesh.gather(both.b_values, n_b), b_ids)
        low, high = (oracle.sorted_search(a, b, side) for side in SIDES)
        b_low, b_high = (oracle.sorted_search(b, a, side) for side in SIDES)
        for got, expected in zip(searched, (low, high), strict=True):
            np.testing.assert_array_equal(mesh.gather(got, n_a), expected)
            assert (np.concatenate([row[count:] for row, count in zip(got, n_a, strict=True)]) == -1).all()
        np.testing.assert_array_equal(mesh.gather(equal, n_a), high - low)
        np.testing.assert_array_equal(mesh.gather(match.a_index, n_a), low)
        np.testing.assert_array_equal(mesh.gather(match.b_index, n_b), b_high)
        np.testing.assert_array_equal(mesh.gather(match.b_match, n_b), b_low < b_high)
        assert match.a_match_count.tolist() == [(high > low).sum()] * devices
        keys, values, counts = merged
        order = oracle.merge_indices(a, b)
        np.testing.assert_array_equal(counts, n_a + n_b)
        oracle.same_bits(mesh.gather(keys, counts), np.concatenate([a, b])[order])
        np.testing.assert_array_equal(mesh.gather(values, counts), order)
        for kind, (keys, values, counts) in zip(SETS, found, strict=True):
            sources = oracle.set_sources(f"set_{kind}", a, b)
            assert (counts <= keys.shape[1]).all()
            oracle.same_bits(mesh.gather(keys, counts), np.concatenate([a, b])[sources])
            np.testing.assert_array_equal(mesh.gather(values, counts), sources)


@pytest.mark.usefixtures("forms")
@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.long
def test_aligned(rng, devices):
    check_aligned(rng, mesh.by_vmap(all_aligned), devices, {**TYPES, 3: "float32", 8: "int32"}[devices])


@pytest.mark.long
def test_aligned_on_devices(rng):
    check_aligned(rng, mesh.by_devices(all_aligned, 3), 3, "int32")


def test_aligned_operations_exchange_no_items():
    x, count = np.zeros((4, 64), np.float32), np.zeros(4, np.int32)

    def call(a, b, a_count, b_count):
        named = {"a_count": a_count, "b_count": b_count, "axis_name": mesh.AXIS, "aligned": True}
        return (
            mgpu.merge(a, b, a, b, **named),
            mgpu.sorted_match(a, b, **named),
            mgpu.set_union(a, b, a, b, **named),
            mgpu.join(a, b, "outer", size=64, **named),
        )

    text = mesh.by_devices(call, 4).lower(x, x, count, count).as_text()
    moved = re.findall(r"(?:all_to_all|all_gather|all_reduce|collective\w+)\b.*?-> *(.*)", text)
    assert moved
    assert not re.search("all_to_all|collective_permute", text)


def test_fewer_slots_than_an_aligned_set_has():
    a, b = np.array([[1, 1], [2, 3]]), np.array([[1, 3], [3, 4]])

    def call(a, b):
        both = mgpu.align(a, b, axis_name=mesh.AXIS)
        named = {"a_count": both.a_count, "b_count": both.b_count, "axis_name": mesh.AXIS, "aligned": True}
        return [mgpu.set_union(both.a, both.b, size=size, fill_value=9, **named)[::2] for size in (2, 7)]

    (few, counts), (many, again) = mesh.by_vmap(call)(a, b)
    assert counts.tolist() == again.tolist() == [3, 3]
    assert few.tolist() == [[1, 1], [3, 3]]
    assert many.tolist() == [[1, 1, 2, 9, 9, 9, 9], [3, 3, 4, 9, 9, 9, 9]]
