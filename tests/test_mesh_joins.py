"""Joins over a mesh axis, compared with all pairs of global rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.keys import columns
from jax_mgpu._src.mesh import hash_repartition
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.ops import sort_strategy
from tests import mesh, oracle
from tests.test_mesh_pairs import OTHERS, SLOTS, problems

pytestmark = pytest.mark.usefixtures("x64")

KINDS = ("inner", "left", "right", "outer", "semi", "anti")
KINDS_OVER = {1: ("inner", "outer"), 2: ("left", "anti"), 3: KINDS, 4: ("right", "semi"), 8: ("outer", "anti")}
TYPES = {1: "int16", 2: "float32", 3: "float32", 4: "int8", 8: "int32"}


def rows_of(kind, a, b, *, null_equal=True):
    """Returns the rows of a join, by comparing all pairs: [rows, 2]."""
    ranks = oracle.rank(np.concatenate([a, b]))
    equal = ranks[: len(a), None] == ranks[None, len(a) :]
    if not null_equal and np.issubdtype(a.dtype, np.floating):
        equal &= ~np.isnan(a)[:, None]
    has = equal.any(1)
    rows = []
    for i in range(len(a)):
        if kind in ("semi", "anti"):
            rows += [(i, -1)] if has[i] == (kind == "semi") else []
        else:
            rows += [(i, j) for j in np.flatnonzero(equal[i])]
            rows += [(i, -1)] if kind in ("left", "outer") and not has[i] else []
    if kind in ("right", "outer"):
        rows += [(-1, j) for j in np.flatnonzero(~equal.any(0))]
    return np.array(rows, np.int64).reshape(-1, 2)


def check(got, expected, devices, size):
    """Checks each device's count, and the first `size` rows of its share."""
    counts = mesh.even(len(expected), devices)
    np.testing.assert_array_equal(got.count, counts)
    kept = np.minimum(counts, size)
    for device, (end, count, n) in enumerate(zip(np.cumsum(counts), counts, kept, strict=True)):
        rows = np.stack([got.a_indices[device], got.b_indices[device]], 1)
        np.testing.assert_array_equal(rows[:n], expected[end - count : end - count + n])
        assert (rows[n:] == -1).all()


def every_join(kinds, size):
    def call(a, b, a_count, b_count):
        named = {"a_count": a_count, "b_count": b_count, "axis_name": mesh.AXIS}
        return [mgpu.join(a, b, kind, size=size, **named) for kind in kinds]

    return call


@pytest.mark.parametrize(
    "devices, kinds",
    [
        (3, ("outer", "semi")),
        (8, ("left",)),
        *(pytest.param(n, kinds, marks=pytest.mark.long) for n, kinds in KINDS_OVER.items()),
    ],
)
@pytest.mark.usefixtures("forms")
def test_sorted_keys(rng, devices, kinds):
    size = SLOTS * OTHERS * devices + OTHERS
    call = mesh.by_vmap(every_join(kinds, size))
    for a, b, _, _, sharded in problems(rng, devices, TYPES[devices]):
        for kind, got in zip(kinds, jax.device_get(call(*sharded)), strict=True):
            check(got, rows_of(kind, a, b), devices, size)


def any_order(kinds, size, **options):
    def call(a, b, a_count, b_count):
        named = {"a_count": a_count, "b_count": b_count, "axis_name": mesh.AXIS}
        rows = [mgpu.join(a, b, kind, size=size, assume_sorted=False, **options, **named) for kind in kinds]
        columns = {"key": a, "half": a.astype(np.float16)}, b
        return rows, mgpu.join_columns(rows[0], *columns, fill_value=3, **named)

    return call


def check_any_order(rng, call, devices, kinds, dtype, size, **options):
    for a, b, a_counts, b_counts, _ in problems(rng, devices, dtype):
        a, b = rng.permutation(a), rng.permutation(b)  # noqa: PLW2901
        sharded = mesh.shard(a, a_counts, SLOTS), mesh.shard(b, b_counts, OTHERS), a_counts, b_counts
        found, columns = jax.device_get(call(*sharded))
        for kind, got in zip(kinds, found, strict=True):
            check(got, rows_of(kind, a, b, **options), devices, size)
        rows = rows_of(kinds[0], a, b, **options)
        n = np.minimum(mesh.even(len(rows), devices), size)
        begins = np.cumsum(mesh.even(len(rows), devices)) - mesh.even(len(rows), devices)
        rows = np.concatenate([rows[begin : begin + count] for begin, count in zip(begins, n, strict=True)])
        for got, null, index, x in (
            (columns.a["key"], columns.a_null, rows[:, 0], a),
            (columns.b, columns.b_null, rows[:, 1], b),
        ):
            expected = np.append(x, np.array(3, x.dtype))[index]
            oracle.same_bits(mesh.gather(got, n), expected)
            np.testing.assert_array_equal(mesh.gather(null, n), index < 0)
            assert np.concatenate([row[count:] for row, count in zip(null, n, strict=True)]).all()


@pytest.mark.parametrize(
    "devices, kinds",
    [(3, ("outer",)), *(pytest.param(n, kinds, marks=pytest.mark.long) for n, kinds in KINDS_OVER.items())],
)
@pytest.mark.usefixtures("forms")
def test_any_order(rng, devices, kinds):
    size = 40
    call = mesh.by_vmap(any_order(kinds, size, null_equal=False))
    check_any_order(rng, call, devices, kinds, TYPES[devices], size, null_equal=False)


def columns_of(keys):
    """Returns two columns, of 48 bits together, equal where keys are; every third key has a NaN."""
    return (keys // 3).astype(np.int32), np.array([-1, np.nan, 0], jnp.bfloat16)[keys % 3]


@pytest.mark.parametrize(
    "kind, null_equal",
    [("outer", False), *(pytest.param(kind, True, marks=pytest.mark.long) for kind in ("semi", "left"))],
)
@pytest.mark.usefixtures("forms")
def test_columns_in_any_order(rng, kind, null_equal):
    size = 60

    def call(a, b, a_count, b_count):
        named = {"a_count": a_count, "b_count": b_count, "axis_name": mesh.AXIS}
        return mgpu.join(a, b, kind, size=size, assume_sorted=False, null_equal=null_equal, **named)

    run = mesh.by_vmap(call)
    for a_counts, b_counts in zip(mesh.counts_of(rng, 3, SLOTS), mesh.counts_of(rng, 3, OTHERS), strict=True):
        for distinct in (2, 40):
            keys = [rng.integers(0, distinct, counts.sum()) for counts in (a_counts, b_counts)]
            a, b = (
                tuple(mesh.shard(x, counts, slots) for x in columns_of(side))
                for side, counts, slots in zip(keys, (a_counts, b_counts), (SLOTS, OTHERS), strict=True)
            )
            expected = [np.where((side % 3 == 1) & (not null_equal), np.nan, side) for side in keys]
            got = jax.device_get(run(a, b, a_counts, b_counts))
            check(got, rows_of(kind, *expected, null_equal=null_equal), 3, size)


@pytest.mark.parametrize("words", [False, True])
def test_rows_of_a_key_meet(rng, words):
    """All rows of a key meet on one device, in order, unless they are too many."""
    devices, slots = 3, 400

    def call(keys, count):
        axis = Axis("join", mesh.AXIS)
        codes = columns.Columns("join", "a", (keys, keys[::-1] * 0) if words else (keys,), False).codes()[0]
        live = count.astype(np.int32)
        return hash_repartition.meet(axis, (codes, codes), (live, live), [axis.begin(axis.gather(live))] * 2)

    run = mesh.by_vmap(call)
    for distinct, fits in ((10_000, True), (30, True), (1, False)):
        counts = np.array([slots, 300, slots], np.int32)
        keys = rng.integers(0, distinct, counts.sum()).astype(np.int32)
        met = jax.device_get(run(mesh.shard(keys, counts, slots), counts))
        assert met.fits.tolist() == [fits] * devices
        if not fits:
            continue
        for side in (0, 1):
            rows = [row[:count] for row, count in zip(met.rows[side], met.counts[side][:, 0], strict=True)]
            np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(len(keys)))
            found = [set(keys[row].tolist()) for row in rows]
            assert not found[0] & found[1] and not (found[0] | found[1]) & found[2] and all(found)
            for row in rows:
                order = np.lexsort((np.arange(len(row)), keys[row]))
                assert (np.diff(row[order])[np.diff(keys[row][order]) == 0] > 0).all()


@pytest.mark.parametrize(
    "n_a, n_b, size",
    [(3, 4, 0), *(pytest.param(*sizes, marks=pytest.mark.long) for sizes in ((0, 4, 5), (3, 0, 5), (0, 0, 2)))],
)
def test_nothing_in_any_order(n_a, n_b, size):
    a, b = np.ones((3, n_a), np.int32), np.ones((3, n_b), np.int32)
    got = mesh.by_vmap(lambda a, b: mgpu.join(a, b, "outer", size=size, assume_sorted=False, axis_name=mesh.AXIS))(a, b)
    check(jax.device_get(got), rows_of("outer", a.reshape(-1), b.reshape(-1)), 3, size)


@pytest.mark.long
def test_any_order_by_buckets(rng, monkeypatch):
    """A GPU joins long tables by buckets; here, short tables count as long."""
    monkeypatch.setattr(sort_strategy, "LONG_PERMUTATION", 1)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *operands, cuda, default: cuda(*operands))
    kinds, size = ("left", "anti"), 90
    check_any_order(rng, mesh.by_vmap(any_order(kinds, size)), 3, kinds, "int32", size)


def aligned_joins(kinds, size, **options):
    def call(a, b, a_count, b_count):
        both = mgpu.align(a, b, a_count=a_count, b_count=b_count, axis_name=mesh.AXIS)
        named = {"a_count": both.a_count, "b_count": both.b_count, "axis_name": mesh.AXIS, "aligned": True}
        rows = [mgpu.join(both.a, both.b, kind, size=size, **named, **options) for kind in kinds]
        return both.a_count, rows

    return call


def check_aligned(rng, call, devices, kinds, size, **options):
    """Checks the rows of joins of aligned keys."""
    for a, b, _, _, sharded in problems(rng, devices, TYPES[devices]):
        a_counts, found = jax.device_get(call(*sharded))
        owner = np.repeat(np.arange(devices), a_counts)
        for kind, got in zip(kinds, found, strict=True):
            rows = rows_of(kind, a, b, **options)
            if kind in ("right", "outer"):
                check(got, rows, devices, size)
                continue
            for device in range(devices):
                expected = rows[owner[rows[:, 0]] == device]
                assert got.count[device] == len(expected)
                own = np.full((max(size, len(expected)), 2), -1)
                own[: len(expected)] = expected
                np.testing.assert_array_equal(np.stack([got.a_indices[device], got.b_indices[device]], 1), own[:size])


@pytest.mark.parametrize(
    "devices, kinds, size",
    [
        (3, ("inner", "semi"), 30),
        *(pytest.param(n, kinds, 900, marks=pytest.mark.long) for n, kinds in KINDS_OVER.items()),
    ],
)
def test_aligned(rng, devices, kinds, size):
    options = {"null_equal": devices != 2}
    check_aligned(rng, mesh.by_vmap(aligned_joins(kinds, size, **options)), devices, kinds, size, **options)


def test_aligned_on_devices(rng):
    check_aligned(rng, mesh.by_devices(aligned_joins(("left",), 500), 2), 2, ("left",), 500)


def test_aligned_without_slots_on_devices():
    kinds, keys = ("inner", "left", "semi", "anti"), np.array([[1, 2, 2], [2, 6, 9]])

    def call(a, b):
        named = {"size": 0, "aligned": True, "axis_name": mesh.AXIS}
        return [mgpu.join(a, b, kind, **named) for kind in kinds]

    found = mesh.by_devices(call, 2)(keys, keys[:, ::2])
    assert [rows.count.tolist() for rows in found] == [[5, 3], [5, 4], [3, 2], [0, 1]]
    assert all(rows.a_indices.shape == rows.b_indices.shape == (2, 0) for rows in found)


@pytest.mark.long
def test_aligned_keys_on_one_device_each():
    a, b = np.array([[1, 2, 2], [5, 6, 9]]), np.array([[2, 2, 3], [5, 9, 9]])

    def call(a, b):
        return mgpu.join(a, b, "left", size=8, aligned=True, axis_name=mesh.AXIS)

    got = jax.vmap(call, axis_name=mesh.AXIS)(a, b)
    expected = rows_of("left", a.reshape(-1), b.reshape(-1))
    assert got.count.tolist() == [5, 4]
    found = [np.stack([got.a_indices[i], got.b_indices[i]], 1)[:n] for i, n in enumerate((5, 4))]
    np.testing.assert_array_equal(np.concatenate(found), expected)


@pytest.mark.long
def test_any_order_on_devices(rng):
    check_any_order(rng, mesh.by_devices(any_order(("outer",), 99), 2), 2, ("outer",), "int32", 99)


@pytest.mark.long
@pytest.mark.usefixtures("forms")
def test_sorted_keys_on_devices(rng):
    call = mesh.by_devices(every_join(("right",), 500), 2)
    for a, b, _, _, sharded in problems(rng, 2, "int32"):
        check(jax.device_get(call(*sharded))[0], rows_of("right", a, b), 2, 500)


@pytest.mark.long
def test_derivatives_of_columns(rng):
    a = np.array([[1, 2, 2], [2, 4, 5]])
    b = np.array([[2, 2], [5, 7]])
    x = rng.normal(size=(2, 3))
    weights = rng.normal(size=(2, 6))

    def call(x, a, b, weights):
        rows = mgpu.join(a, b, size=6, axis_name=mesh.AXIS)
        return jax.lax.psum((mgpu.join_columns(rows, x, axis_name=mesh.AXIS).a * weights).sum(), mesh.AXIS)

    got = jax.jit(jax.grad(lambda x: jax.vmap(call, axis_name=mesh.AXIS)(x, a, b, weights)[0]))(x)
    rows = rows_of("inner", a.reshape(-1), b.reshape(-1))
    expected = np.zeros(6)
    shares = mesh.even(len(rows), 2)
    np.add.at(expected, rows[:, 0], mesh.gather(weights, shares))
    np.testing.assert_allclose(got.reshape(-1), expected)


def test_errors():
    keys = np.arange(3)

    def call(**options):
        jax.vmap(lambda a: mgpu.join(a, a, size=9, axis_name=mesh.AXIS, **options), axis_name=mesh.AXIS)(keys[None])

    with pytest.raises(ValueError, match="join: assume_sorted: expected True where the keys are aligned, got False"):
        call(assume_sorted=False, aligned=True)
    with pytest.raises(ValueError, match="join_columns: a_order: expected None over a mesh axis"):
        rows = mgpu.JoinResult(keys, keys, keys[0])
        jax.vmap(lambda a: mgpu.join_columns(rows, a, a_order=keys, axis_name=mesh.AXIS), axis_name=mesh.AXIS)(
            keys[None]
        )
