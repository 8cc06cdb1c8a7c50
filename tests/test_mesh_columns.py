"""Keys of several columns over a mesh axis, without 64-bit types, compared with NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from tests import data, mesh, oracle

DEVICES, SLOTS, OTHERS = 3, 23, 14
# Types of the columns, and whether each is descending.
TYPES = {
    "24 bits": (["uint8", "int16"], (False, True)),
    "two of 32": (["int32", "uint32"], (True, False)),
    "float and integer": (["float32", "int32"], (False, True)),
    "floats of 16": (["bfloat16", "float16"], (True, False)),
}
each_type = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if i in (1, 2) else pytest.mark.long) for i, name in enumerate(TYPES)]
)


def draw(rng, dtypes, n):
    """Draws two columns: the first has many equal items; so has the second, or it is random."""
    few = [rng.choice(data.random_keys(rng, dtype, 4), n) for dtype in dtypes]
    return few if rng.integers(2) else [few[0], data.random_keys(rng, dtypes[1], n)]


def sharded(columns, counts, slots):
    return tuple(mesh.shard(x, counts, slots) for x in columns)


def same_columns(got, counts, columns, order):
    """Asserts that columns have the live items' bits in order, followed by zeros."""
    assert isinstance(got, tuple)
    for x, y in zip(got, columns, strict=True):
        oracle.same_bits(mesh.gather(x, counts), y[order])
        assert all((row[count:] == 0).all() for row, count in zip(np.asarray(x), counts, strict=True))


def check_sorts(rng, run, dtypes, descending, devices):
    for counts in mesh.counts_of(rng, devices, SLOTS):
        columns = draw(rng, dtypes, int(counts.sum()))
        ids = np.arange(len(columns[0]), dtype=np.int32)
        (keys, values, n), (_, again, _), (found, n_filled) = jax.device_get(
            run(sharded(columns, counts, SLOTS), mesh.shard(ids, counts, SLOTS), counts)
        )
        order = np.argsort(oracle.column_ranks(columns, descending), kind="stable")
        np.testing.assert_array_equal(n, mesh.even(len(ids), devices))
        same_columns(keys, n, columns, order)
        np.testing.assert_array_equal(mesh.gather(values["x"], n), order)
        np.testing.assert_array_equal(mesh.gather(again, n), order)
        np.testing.assert_array_equal(mesh.gather(found, n_filled), order)


def sorts(descending):
    def call(keys, ids, count):
        named = {"descending": descending, "count": count, "axis_name": mesh.AXIS}
        return (
            mgpu.sort(keys, {"x": ids}, **named),
            mgpu.mergesort(keys, ids, **named),
            mgpu.argsort(keys, **named, even=False),
        )

    return call


@each_type
@pytest.mark.usefixtures("forms")
def test_sorts(rng, name):
    dtypes, descending = TYPES[name]
    check_sorts(rng, mesh.by_vmap(sorts(descending)), dtypes, descending, DEVICES)


def test_sorts_on_devices(rng):
    dtypes, descending = TYPES["two of 32"]
    check_sorts(rng, mesh.by_devices(sorts(descending), 2), dtypes, descending, 2)


def test_keys_alone(rng):
    columns = draw(rng, ["int32", "uint32"], DEVICES * SLOTS)
    given = [x.reshape(DEVICES, SLOTS) for x in columns]
    got = mesh.by_vmap(lambda *keys: mgpu.sort(keys, axis_name=mesh.AXIS))(*given)
    order = np.argsort(oracle.column_ranks(columns, (False, False)), kind="stable")
    same_columns(got, np.full(DEVICES, SLOTS), columns, order)


def pairs(rng, dtypes, descending, devices=DEVICES):
    """Yields two tables of sorted columns, for each distribution over devices."""
    for a_counts, b_counts in zip(
        mesh.counts_of(rng, devices, SLOTS), rng.permutation(mesh.counts_of(rng, devices, OTHERS)), strict=True
    ):
        columns = draw(rng, dtypes, int(a_counts.sum() + b_counts.sum()))
        rank, n_a = oracle.column_ranks(columns, descending), int(a_counts.sum())
        orders = [np.argsort(part, kind="stable") + at for part, at in ((rank[:n_a], 0), (rank[n_a:], n_a))]
        a, b = ([x[order] for x in columns] for order in orders)
        a_rank, b_rank = (rank[order] for order in orders)
        given = sharded(a, a_counts, SLOTS), sharded(b, b_counts, OTHERS), a_counts, b_counts
        yield a, b, a_rank, b_rank, given


@each_type
@pytest.mark.usefixtures("forms")
def test_merges(rng, name):
    dtypes, descending = TYPES[name]

    def call(a, b, a_count, b_count, a_ids, b_ids):
        named = {"a_count": a_count, "b_count": b_count, "descending": descending, "axis_name": mesh.AXIS}
        return mgpu.merge(a, b, a_ids, b_ids, **named)

    run = mesh.by_vmap(call)
    for a, b, a_rank, b_rank, given in pairs(rng, dtypes, descending):
        ids = np.split(np.arange(len(a_rank) + len(b_rank), dtype=np.int32), [len(a_rank)])
        ids = [mesh.shard(x, counts, slots) for x, counts, slots in zip(ids, given[2:], (SLOTS, OTHERS), strict=True)]
        keys, values, n = jax.device_get(run(*given, *ids))
        order = np.argsort(np.concatenate([a_rank, b_rank]), kind="stable")
        same_columns(keys, n, [np.concatenate(both) for both in zip(a, b, strict=True)], order)
        np.testing.assert_array_equal(mesh.gather(values, n), order)


@each_type
@pytest.mark.long
def test_searches_and_joins(rng, name):
    dtypes, ascending = TYPES[name][0], (False, False)
    size = DEVICES * SLOTS * OTHERS

    def call(a, b, a_count, b_count):
        named = {"a_count": a_count, "b_count": b_count, "axis_name": mesh.AXIS}
        counts = {"needles_count": a_count, "haystack_count": b_count}
        both = mgpu.align(a, b, **named)
        aligned = {"a_count": both.a_count, "b_count": both.b_count, "axis_name": mesh.AXIS, "aligned": True}
        return (
            mgpu.sorted_search(a, b, "right", **counts, axis_name=mesh.AXIS),
            mgpu.join(a, b, "left", size=size, **named),
            both,
            mgpu.sorted_match(both.a, both.b, **aligned),
            mgpu.sorted_equal_count(both.a, both.b, **aligned),
            mgpu.join(both.a, both.b, size=size, **aligned),
        )

    run = mesh.by_vmap(call)
    for a, b, a_rank, b_rank, given in pairs(rng, dtypes, ascending):
        found, left, both, match, number, inner = jax.device_get(run(*given))
        low, high = (np.searchsorted(b_rank, a_rank, side) for side in ("left", "right"))
        np.testing.assert_array_equal(mesh.gather(found, given[2]), high)
        same_columns(both.a, both.a_count, a, slice(None))
        same_columns(both.b, both.b_count, b, slice(None))
        np.testing.assert_array_equal(mesh.gather(match.a_index, both.a_count), low)
        assert match.a_match_count.tolist() == [(high > low).sum()] * DEVICES
        np.testing.assert_array_equal(mesh.gather(number, both.a_count), high - low)
        rows = [(i, j) for i in range(len(a_rank)) for j in range(low[i], high[i])]
        alone = [(i, -1) for i in np.flatnonzero(low == high)]
        for got, expected in ((left, sorted(rows + alone)), (inner, rows)):
            n = np.minimum(got.count, size)
            assert got.count.sum() == len(expected)
            pairs_found = np.stack([mesh.gather(got.a_indices, n), mesh.gather(got.b_indices, n)], 1)
            np.testing.assert_array_equal(pairs_found, np.array(expected, int).reshape(-1, 2))


SETS = ("intersection", "union", "difference", "symmetric_difference")


def check_sets(rng, run, dtypes, with_values, devices=DEVICES):
    """Checks that the parts, put together, are the oracle's result, and that the fill value follows each part."""
    for a, b, a_rank, b_rank, given in pairs(rng, dtypes, (False, False), devices):
        ids = np.split(np.arange(len(a_rank) + len(b_rank), dtype=np.int32), [len(a_rank)])
        ids = [mesh.shard(x, counts, slots) for x, counts, slots in zip(ids, given[2:], (SLOTS, OTHERS), strict=True)]
        both = [np.concatenate(x) for x in zip(a, b, strict=True)]
        for results in jax.device_get(run(*given, *ids)):
            for kind, found in zip(SETS, results, strict=True):
                sources = oracle.set_sources(f"set_{kind}", a_rank, b_rank)
                n = found.count
                assert isinstance(found.keys, tuple)
                for x, y in zip(found.keys, both, strict=True):
                    oracle.same_bits(mesh.gather(x, n), y[sources])
                    assert all(
                        (row[m:] == jnp.asarray(FILL).astype(x.dtype)).all() for row, m in zip(x, n, strict=True)
                    )
                if with_values:
                    np.testing.assert_array_equal(mesh.gather(found.values["x"][..., 0], n), sources)
                    assert all((row[m:] == FILL).all() for row, m in zip(found.values["x"], n, strict=True))


FILL = 7


def sets(with_values):
    def call(a, b, a_count, b_count, a_ids, b_ids):
        named = {"a_count": a_count, "b_count": b_count, "axis_name": mesh.AXIS}
        both = mgpu.align(a, b, a_ids, b_ids, **named)
        aligned = {"a_count": both.a_count, "b_count": both.b_count, "axis_name": mesh.AXIS, "aligned": True}

        def every(a, b, a_ids, b_ids, named):
            a_values, b_values = ({"x": x[:, None]} if with_values else None for x in (a_ids, b_ids))
            return [
                getattr(mgpu, f"set_{kind}")(
                    a, b, a_values, *([b_values] if kind in ("union", "symmetric_difference") else []),
                    fill_value=FILL, **named,
                )
                for kind in SETS
            ]  # fmt: skip

        return every(a, b, a_ids, b_ids, named), every(both.a, both.b, both.a_values, both.b_values, aligned)

    return call


@pytest.mark.parametrize("with_values", [False, True], ids=["keys", "values"])
@each_type
@pytest.mark.long
def test_sets(rng, name, with_values):
    check_sets(rng, mesh.by_vmap(sets(with_values)), TYPES[name][0], with_values)


@pytest.mark.long
def test_sets_on_devices(rng):
    check_sets(rng, mesh.by_devices(sets(True), 2), TYPES["two of 32"][0], True, 2)


@each_type
@pytest.mark.usefixtures("forms")
def test_segmented_sorts(rng, name):
    dtypes, descending = TYPES[name]

    def call(keys, heads, count):
        named = {"descending": descending, "count": count, "axis_name": mesh.AXIS}
        return mgpu.segmented_sort_indices(keys, heads, **named), mgpu.segmented_sort(keys, heads, **named)

    run = mesh.by_vmap(call)
    for counts in mesh.counts_of(rng, DEVICES, SLOTS):
        columns = draw(rng, dtypes, int(counts.sum()))
        heads = np.flatnonzero(rng.integers(0, 20, len(columns[0])) == 0)
        segment = np.searchsorted(heads, np.arange(len(columns[0])), "right")
        own, _ = mesh.shard_heads(heads, counts, SLOTS, SLOTS)
        (keys, indices), alone = jax.device_get(run(sharded(columns, counts, SLOTS), own, counts))
        order = np.lexsort((oracle.column_ranks(columns, descending), segment))
        same_columns(keys, counts, columns, order)
        same_columns(alone, counts, columns, order)
        np.testing.assert_array_equal(mesh.gather(indices, counts), order)


@each_type
def test_runs(rng, name):
    dtypes = TYPES[name][0]

    def call(keys, values, count):
        return mgpu.reduce_by_key(keys, values, size=SLOTS, count=count, axis_name=mesh.AXIS)

    run = mesh.by_vmap(call)
    for counts in mesh.counts_of(rng, DEVICES, SLOTS):
        total = int(counts.sum())
        repeated = np.sort(rng.integers(0, max(min(total, 3), 1), total))
        columns = [x[repeated] for x in draw(rng, dtypes, total)]
        rank, values = oracle.column_ranks(columns, (False, False)), rng.integers(0, 9, total).astype(np.int32)
        starts = np.flatnonzero(np.append(np.ones(min(total, 1), bool), rank[1:] != rank[:-1]))
        keys, sums, n = jax.device_get(run(sharded(columns, counts, SLOTS), mesh.shard(values, counts, SLOTS), counts))
        owner = np.searchsorted(np.cumsum(counts), starts, "right")
        np.testing.assert_array_equal(n, np.bincount(owner, minlength=DEVICES))
        for x, y in zip(keys, columns, strict=True):
            oracle.same_bits(mesh.gather(x, n), y[starts])
        np.testing.assert_array_equal(mesh.gather(sums, n), np.add.reduceat(values, starts) if total else [])


@each_type
@pytest.mark.usefixtures("forms")
def test_run_starts_and_distinct_keys(rng, name):
    dtypes = TYPES[name][0]
    flags = {"return_index": True, "return_inverse": True, "return_counts": True}

    def call(keys, count):
        named = {"count": count, "axis_name": mesh.AXIS}
        return mgpu.run_starts(keys, **named), mgpu.unique(keys, size=SLOTS, **flags, **named)

    run = mesh.by_vmap(call)
    for counts in mesh.counts_of(rng, DEVICES, SLOTS):
        total = int(counts.sum())
        columns = draw(rng, dtypes, total)
        ranks = oracle.column_ranks(columns, (False, False))
        runs, (keys, indices, inverse, repeats, numbers) = jax.device_get(run(sharded(columns, counts, SLOTS), counts))
        starts = np.flatnonzero(np.append(np.ones(min(total, 1), bool), ranks[1:] != ranks[:-1]))
        owner = np.searchsorted(np.cumsum(counts), starts, "right")
        np.testing.assert_array_equal(runs.count, np.bincount(owner, minlength=DEVICES))
        begins = np.cumsum(counts) - counts
        np.testing.assert_array_equal(mesh.gather(runs.starts, runs.count), starts - begins[owner])

        _, first, inverse_of, times = np.unique(ranks, return_index=True, return_inverse=True, return_counts=True)
        cuts = np.cumsum(mesh.even(total, DEVICES))
        owner = np.searchsorted(cuts, np.cumsum(times) - times, "right")
        np.testing.assert_array_equal(numbers, np.bincount(owner, minlength=DEVICES))
        same_columns(keys, numbers, columns, first)
        np.testing.assert_array_equal(mesh.gather(indices, numbers), first)
        np.testing.assert_array_equal(mesh.gather(repeats, numbers), times)
        np.testing.assert_array_equal(mesh.gather(inverse, counts), inverse_of)


def test_errors():
    keys = np.arange(3, dtype=np.int32)[None]

    def over_axis(function):
        return jax.vmap(function, axis_name=mesh.AXIS)(keys)

    with pytest.raises(ValueError, match="sort: axis_name: expected None where columns have more than 64 bits"):
        over_axis(lambda k: mgpu.sort((k, k, k), axis_name=mesh.AXIS))
    with pytest.raises(ValueError, match="merge: axis_name: expected None where columns have more than 64 bits"):
        over_axis(lambda k: mgpu.merge((k, k, k), (k, k, k), axis_name=mesh.AXIS))
    with pytest.raises(ValueError, match="sort: bits: expected None where the keys are columns"):
        over_axis(lambda k: mgpu.sort((k, k), bits=3, axis_name=mesh.AXIS))
    with pytest.raises(ValueError, match="set_union: axis_name: expected None where columns have more than 64 bits"):
        over_axis(lambda k: mgpu.set_union((k, k, k), (k, k, k), axis_name=mesh.AXIS))
    with pytest.raises(ValueError, match="set_union: a_values and b_values: expected both or neither"):
        over_axis(lambda k: mgpu.set_union((k, k), (k, k), k, axis_name=mesh.AXIS))
