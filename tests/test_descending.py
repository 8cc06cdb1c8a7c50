"""Descending keys, compared with ascending keys in the opposite order."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import jax_mgpu as mgpu
from tests import mesh
from tests.oracle import join_rows, rank, same_bits, set_sources

SETS = ("set_intersection", "set_union", "set_difference", "set_symmetric_difference")
SPECIAL = {"float32": [np.nan, np.inf, 2.0, 0.0, -0.0, -1.5, -np.inf], "int8": [127, 5, 0, -3, -128], "uint32": [0, 9]}


def descending_keys(rng, dtype, n):
    return np.asarray(mgpu.sort(rng.choice(np.array(SPECIAL[dtype], dtype), n), descending=True))


def negated_ranks(*sides):
    """Returns integers that compare in the opposite order of the keys."""
    ranks = -rank(np.concatenate(sides)).astype(np.int64)
    return np.split(ranks, [len(sides[0])])


@pytest.mark.parametrize("dtype", SPECIAL)
def test_sets(rng, dtype):
    a, b = descending_keys(rng, dtype, 30), descending_keys(rng, dtype, 23)
    values = np.arange(30, dtype=np.int16), np.arange(100, 123, dtype=np.int16)
    both_keys, both_values = np.concatenate([a, b]), np.concatenate(values)
    for name in SETS:
        sources = set_sources(name, *negated_ranks(a, b))
        given = values if name in ("set_union", "set_symmetric_difference") else values[:1]
        for keys, form in (((a, b), lambda x: x), (((a,), (b,)), lambda x: x[0])):
            for options in ({"size": 60}, {"size": 60, "assume_sorted": False}):
                found = getattr(mgpu, name)(*keys, *given, descending=True, **options)
                assert found.count == len(sources)
                same_bits(form(found.keys)[: len(sources)], both_keys[sources])
                same_bits(found.values[: len(sources)], both_values[sources])
            without_values = getattr(mgpu, name)(*keys, size=60, descending=True)
            same_bits(form(without_values.keys)[: len(sources)], both_keys[sources])


@pytest.mark.parametrize("dtype", SPECIAL)
def test_joins_and_matches(rng, dtype):
    a, b = descending_keys(rng, dtype, 12), descending_keys(rng, dtype, 9)
    a_ranks, b_ranks = negated_ranks(a, b)
    for kind in ("inner", "left", "outer"):
        rows = join_rows(kind, a_ranks, b_ranks)
        for sorted_keys in (True, False):
            got = mgpu.join(a, b, kind, size=120, descending=True, assume_sorted=sorted_keys)
            assert got.count == len(rows)
            np.testing.assert_array_equal(np.stack(got[:2], 1)[: len(rows)], rows)
    match = mgpu.sorted_match(a, b, descending=True)
    np.testing.assert_array_equal(match.a_index, np.searchsorted(b_ranks, a_ranks))
    np.testing.assert_array_equal(match.b_index, np.searchsorted(a_ranks, b_ranks, "right"))
    np.testing.assert_array_equal(match.a_match, np.isin(a_ranks, b_ranks))
    counts = mgpu.sorted_equal_count(a, b, descending=True)
    np.testing.assert_array_equal(counts, (a_ranks[:, None] == b_ranks).sum(axis=1))


def test_columns_with_a_direction_each(rng):
    first, second = np.sort(rng.integers(0, 3, 20)), rng.integers(0, 4, 20)
    order = np.lexsort((-second, first))
    a = first[order].astype(np.int8), second[order].astype(np.float32)
    b = tuple(x[::2] for x in a)
    got = mgpu.set_difference(a, b, descending=(False, True))
    pairs = [tuple(map(float, pair)) for pair in zip(*a, strict=True)]
    rest = list(pairs)
    for pair in zip(*b, strict=True):
        rest.remove(tuple(map(float, pair)))
    kept = [tuple(map(float, pair)) for pair in zip(*(x[: len(rest)] for x in got.keys), strict=True)]
    assert kept == rest and got.count == len(rest)


def test_over_devices(rng):
    a, b = descending_keys(rng, "int8", 17), descending_keys(rng, "int8", 12)
    a_counts, b_counts = np.array([6, 7, 4], np.int32), np.array([7, 0, 5], np.int32)

    def call(a, b, a_count, b_count):
        given = {"a_count": a_count, "b_count": b_count, "axis_name": mesh.AXIS, "descending": True}
        union, rows = mgpu.set_union(a, b, **given), mgpu.join(a, b, size=60, **given)
        return union.keys, union.count, rows.count, mgpu.sorted_equal_count(a, b, **given)

    parts = mesh.shard(a, a_counts, 7), mesh.shard(b, b_counts, 7)
    keys, number, rows, counts = jax.device_get(mesh.by_vmap(call)(*parts, a_counts, b_counts))
    a_ranks, b_ranks = negated_ranks(a, b)
    same_bits(mesh.gather(keys, number), np.concatenate([a, b])[set_sources("set_union", a_ranks, b_ranks)])
    assert rows.sum() == len(join_rows("inner", a_ranks, b_ranks))
    np.testing.assert_array_equal(mesh.gather(counts, a_counts), (a_ranks[:, None] == b_ranks).sum(axis=1))


def test_misuse():
    ascending, descending = np.arange(4), np.arange(4)[::-1]
    with pytest.raises(ValueError, match="set_union: descending: expected False, because less defines the order"):
        mgpu.set_union(ascending, ascending, less=lambda x, y: x < y, descending=True)
    with pytest.raises(TypeError, match="join: descending: expected a static True or False, got 'yes'"):
        mgpu.join(ascending, ascending, size=4, descending="yes")
    with mgpu.checks(), pytest.raises(Exception, match="set_union: b: expected keys in descending order"):
        mgpu.set_union(descending, ascending, descending=True).count.block_until_ready()
    with pytest.raises(TypeError, match="set_union: a: expected integers"):
        mgpu.set_union(descending > 2, descending > 2, descending=True)
