"""Joins, matches, sets, lookups, groups, ranks and shifts of unsorted keys, against pandas and plain Python."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

import jax_mgpu as mgpu
from jax_mgpu._src.ops import tables
from tests import data, mesh, oracle
from tests.oracle import same_bits

FORMS = {
    "one column": ["int16"],
    "a float": ["float32"],
    "two columns": ["int32", "float16"],
    "wide": ["uint32", "float32", "int32"],
}
form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def few_keys(rng, form, n):
    """Draws n keys, whose columns have at most 4 distinct values each."""
    columns = tuple(rng.choice(rng.choice(data.special_keys(d), 4), n) for d in form)
    return columns if len(columns) > 1 else columns[0]


def ranks_of(*sides):
    """Returns the ranks of both sides' keys among all keys."""
    columns = [np.concatenate(x) for x in zip(*(s if isinstance(s, tuple) else (s,) for s in sides), strict=True)]
    cuts = np.cumsum([len(s[0] if isinstance(s, tuple) else s) for s in sides])[:-1]
    return np.split(oracle.column_ranks(columns), cuts)


def is_null(keys):
    columns = keys if isinstance(keys, tuple) else (keys,)
    return np.any(
        [np.isnan(x.astype(np.float32)) for x in columns if x.dtype.kind == "f"] or [columns[0] != columns[0]], 0
    )


def join_rows(kind, a, b, a_null, b_null):
    """Joins by nested loops."""
    partners = [[j for j in range(len(b)) if a[i] == b[j] and not a_null[i]] for i in range(len(a))]
    if kind in ("semi", "anti"):
        return [(i, -1) for i in range(len(a)) if bool(partners[i]) == (kind == "semi")]
    rows = [(i, j) for i in range(len(a)) for j in partners[i] or ([-1] if kind in ("left", "outer") else [])]
    matched = {j for row in partners for j in row}
    return rows + [(-1, j) for j in range(len(b)) if j not in matched and kind in ("right", "outer")]


# ---- Joins, matches, sets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["inner", "left", "right", "outer", "semi", "anti"])
@form
def test_joins(rng, form, kind):
    for counts, null_equal in itertools.product(((None, None), (50, 31)), (True, False)):
        a, b = few_keys(rng, form, 60), few_keys(rng, form, 40)
        a_count, b_count = counts
        a_ranks, b_ranks = ranks_of(a, b)
        nulls = [is_null(x) & (not null_equal) for x in (a, b)]
        expected = join_rows(kind, a_ranks[:a_count], b_ranks[:b_count], nulls[0], nulls[1])
        options = {"size": 900, "assume_sorted": False, "null_equal": null_equal}
        found = mgpu.join(a, b, kind, **options, a_count=a_count, b_count=b_count)
        assert int(found.count) == len(expected)
        rows = np.full((900, 2), -1)
        rows[: len(expected)] = np.reshape(expected[:900], (-1, 2))
        np.testing.assert_array_equal(np.stack(found[:2], 1), rows)


@pytest.mark.parametrize("kind", ["inner", "outer", "semi", "anti"])
def test_sorted_joins_of_nulls(rng, kind):
    a, b = (np.sort(np.append(rng.integers(0, 9, 30), [np.nan] * 3)).astype(np.float32) for _ in range(2))
    expected = join_rows(kind, *ranks_of(a, b), np.isnan(a), np.isnan(b))
    found = mgpu.join(a, b, kind, size=300, null_equal=False)
    live = int(found.count)
    assert [*zip(found.a_indices[:live].tolist(), found.b_indices[:live].tolist(), strict=True)] == expected


def test_a_join_too_large_to_count():
    n = 2**16
    keys = np.zeros(n, np.int32)
    for kind in ("inner", "outer"):
        found = mgpu.join(keys, keys, kind, size=3, assume_sorted=False)
        assert int(found.count) == 2**31 - 1
        assert found.b_indices.tolist() == [0, 1, 2]


@form
def test_matches_in_any_order(rng, form):
    a, b = few_keys(rng, form, 60), few_keys(rng, form, 40)
    a_ranks, b_ranks = ranks_of(a, b)
    for side, pick in (("left", 0), ("right", -1)):
        found = mgpu.sorted_match(a, b, side, assume_sorted=False, a_count=50)
        for index, match, count, own, other in (
            (found.a_index, found.a_match, found.a_match_count, a_ranks[:50], b_ranks),
            (found.b_index, found.b_match, found.b_match_count, b_ranks, a_ranks[:50]),
        ):
            places = [np.flatnonzero(other == x) for x in own]
            expected = [p[pick] if len(p) else -1 for p in places]
            assert index[: len(own)].tolist() == expected
            assert match[: len(own)].tolist() == [x >= 0 for x in expected]
            assert int(count) == sum(x >= 0 for x in expected)
        assert found.a_index[50:].tolist() == [-1] * 10


@pytest.mark.parametrize("name", ["set_union", "set_difference"])
@form
def test_sets_in_any_order(rng, form, name):
    a, b = few_keys(rng, form, 60), few_keys(rng, form, 40)
    orders = [np.argsort(x, kind="stable") for x in ranks_of(a, b)]
    in_order = [jax.tree.map(lambda x, order=order: x[order], keys) for keys, order in zip((a, b), orders, strict=True)]
    values = [np.arange(60, dtype=np.int32), np.arange(60, 100, dtype=np.int32)]
    sides = 2 if name == "set_union" else 1
    expected = getattr(mgpu, name)(*in_order, *[v[o] for v, o in zip(values, orders, strict=True)][:sides])
    found = getattr(mgpu, name)(a, b, *values[:sides], assume_sorted=False)
    jax.tree.map(same_bits, found, expected)


# ---- Lookups ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "m"), [(60, 70), (60, 16), (4, 8), (32, 1), (tables.CPU_MIN_PLACED, tables.MAX_COMPARED)]
)
@form
def test_lookup(rng, form, n, m):
    for count, table_count in ((None, None), (3 * n // 4, 2 * m // 3), (0, m), (n, 0)):
        keys, table = few_keys(rng, form, n), few_keys(rng, form, m)
        ranks, table_ranks = ranks_of(keys, table)
        values = {"x": rng.normal(size=m).astype(np.float32), "rows": rng.integers(0, 9, (m, 2), np.int8)}
        got = mgpu.lookup(keys, table, values, default=7, count=count, table_count=table_count)
        first = {r: i for i, r in reversed([*enumerate(table_ranks[:table_count].tolist())])}
        is_live = np.arange(n) < (n if count is None else count)
        places = np.array([first.get(r, -1) if live else -1 for r, live in zip(ranks.tolist(), is_live, strict=True)])
        for name, x in values.items():
            expected = np.where((places >= 0).reshape(-1, *[1] * (x.ndim - 1)), x[places], x.dtype.type(7))
            same_bits(got[name], expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_lookup_of_numbers(rng, dtype, monkeypatch):
    monkeypatch.setattr(tables, "CPU_MIN_PLACED", 0)
    limits = np.iinfo(dtype)
    lookup = jax.jit(mgpu.lookup)
    with jax.enable_x64(True):
        for start, is_sparse, table_count in itertools.product(
            (limits.min, 3, limits.max - 49), (False, True), (50, 20, 0)
        ):
            table = (rng.integers(0, 50, 50) + start).astype(dtype)
            if is_sparse:
                table[7] = limits.min if start > 0 else limits.max
            keys = np.concatenate([table, rng.integers(limits.min, limits.max, 40, dtype, endpoint=True)])
            keys = np.concatenate([keys, [limits.min, limits.max]]).astype(dtype)
            values = rng.normal(size=50).astype(np.float32)
            rows = rng.integers(0, 9, (50, 3), np.int8)
            first = {key: i for i, key in reversed([*enumerate(table[:table_count].tolist())])}
            places = np.array([first.get(key, -1) for key in keys.tolist()])
            places[80:] = -1
            found = lookup(keys, table, (values, rows), default=7, count=80, table_count=table_count)
            same_bits(found[0], np.where(places >= 0, values[places], np.float32(7)))
            same_bits(found[1], np.where(places[:, None] >= 0, rows[places], np.int8(7)))


@form
def test_many_lookups(rng, form):
    n, m = (1 << 17) + 1, 3000
    keys, table = few_keys(rng, form, n), few_keys(rng, form, m)
    ranks, table_ranks = ranks_of(keys, table)
    values = {"x": rng.normal(size=m).astype(np.float32), "rows": rng.integers(0, 9, (m, 2), np.int8)}
    got = jax.jit(mgpu.lookup)(keys, table, values, default=7, count=n - 5, table_count=m - 100)
    first = np.full(max(ranks.max(), table_ranks.max()) + 1, -1)
    first[table_ranks[: m - 100][::-1]] = np.arange(m - 100)[::-1]
    places = np.where(np.arange(n) < n - 5, first[ranks], -1)
    for name, x in values.items():
        same_bits(got[name], np.where((places >= 0).reshape(-1, *[1] * (x.ndim - 1)), x[places], x.dtype.type(7)))


def test_many_lookups_in_a_table_with_gaps(rng):
    keys = rng.choice(2**31 - 1, 5000, replace=False).astype(np.int32)
    wanted = np.where(rng.random(1 << 17) < 0.5, rng.choice(keys, 1 << 17), rng.integers(0, 2**31 - 1, 1 << 17))
    places = {key: i for i, key in enumerate(keys.tolist())}
    values = np.arange(5000, dtype=np.float32)
    expected = [places.get(key, -1) for key in wanted.tolist()]
    same_bits(mgpu.lookup(wanted.astype(np.int32), keys, values, default=-1), np.array(expected, np.float32))


@pytest.mark.parametrize("m", [0, 40, 400])
@pytest.mark.parametrize("dtype", ["int32", "uint64", "float32", "complex64"])
def test_lookups_of_hundreds_of_keys(rng, dtype, m):
    n = 2 * tables.CPU_MIN_DISPATCHED
    with jax.enable_x64(True):
        keys, table = rng.integers(0, 2 * m + 1, (3, n)), rng.permutation(2 * m)[:m]
        values, default = rng.integers(0, 99, m).astype(dtype), np.dtype(dtype).type(7)
        places = [[table.tolist().index(key) if key in table else -1 for key in row] for row in keys]
        expected = np.where(np.array(places) >= 0, np.append(values, default)[places], default)
        lookup = functools.partial(mgpu.lookup, default=default)
        same_bits(lookup(keys[0], table, values), expected[0])
        same_bits(jax.vmap(lookup, in_axes=(0, None, None))(keys, table, values), expected)
        same_bits(jax.vmap(lookup)(keys, np.stack([table] * 3), np.stack([values] * 3)), expected)


def test_derivatives_of_lookups_of_hundreds_of_keys(rng):
    n, m = 2 * tables.CPU_MIN_DISPATCHED, 40
    keys, table = rng.integers(0, 50, (3, n)), rng.permutation(50)[:m]
    weights = rng.integers(-9, 9, (3, n)).astype(np.float32)

    def loss(values, default, keys, weights):
        return mgpu.lookup(keys, table, values, default=default) @ weights

    grads = jax.vmap(jax.grad(loss, (0, 1)), in_axes=(None, None, 0, 0))(jnp.ones(m), 1.0, keys, weights)
    expected = [[row[own == key].sum() for key in table] for own, row in zip(keys, weights, strict=True)]
    same_bits(grads[0], np.array(expected, np.float32))
    same_bits(grads[1], weights.sum(1) - grads[0].sum(1))
    same_bits(jax.grad(loss)(jnp.ones(m), 1.0, keys[0], weights[0]), grads[0][0])
    with jax.enable_x64(True):
        check_grads(functools.partial(loss, keys=keys[0], weights=weights[0]), (np.ones(m), 1.0), order=2)


def test_a_lookup_runs_on_its_callers_thread():
    """XLA runs programs of many operations on another thread."""
    keys, values = jnp.arange(tables.CPU_MIN_PLACED - 1), jnp.ones(tables.CPU_MIN_PLACED - 1)
    compiled = jax.jit(mgpu.lookup).trace(keys, keys, values).lower(lowering_platforms=("cpu",)).compile()
    assert "cpu" not in mgpu.backends() or compiled.cost_analysis()["flops"] < 1000


def test_nothing_to_look_up():
    nothing = np.zeros(0, np.int32)
    assert mgpu.lookup(nothing, np.arange(3), np.arange(3)).shape == (0,)
    assert mgpu.lookup(np.arange(3), nothing, nothing, default=-1).tolist() == [-1] * 3
    found = jax.shard_map(
        lambda count: mgpu.lookup(jnp.arange(3), nothing, nothing, default=7, count=count[0]),
        mesh=mesh.mesh_of(1),
        in_specs=P(mesh.AXIS),
        out_specs=P(mesh.AXIS),
    )
    assert jax.jit(found)(jnp.full(1, 2)).tolist() == [7] * 3


# ---- Groups ----------------------------------------------------------------------------------------------------------

OPERATORS = ["add", "mul", "min", "max", "mean", "median", "nunique", "count", "first", "last"]


@pytest.mark.long
def test_groups_as_pandas(rng):
    table = pd.DataFrame({"a": rng.integers(0, 4, 200), "b": rng.integers(-3, 3, 200)})
    values = {"x": rng.integers(1, 5, 200).astype(np.int32), "y": rng.integers(-9, 9, 200).astype(np.float32)}
    keys = (table.a.to_numpy(np.int8), table.b.to_numpy(np.int32))
    for count in (None, 150):
        frame = table.assign(**values)[:count].groupby(["a", "b"])
        for operator in OPERATORS:
            found, got, groups = mgpu.group_by(keys, values, operator, size=40, count=count)
            names = {"add": "sum", "mul": "prod"}
            expected = frame.agg(names.get(operator, operator))
            n = len(expected)
            assert int(groups) == n
            np.testing.assert_array_equal(np.stack(found, 1)[:n], np.array(list(expected.index)))
            for column in values:
                wrapped = np.asarray(got[column][:n])
                right = expected[column].to_numpy()
                if operator == "mul" and column == "x":
                    right = right.astype(wrapped.dtype)
                np.testing.assert_allclose(wrapped, right, rtol=1e-5)
                assert not np.asarray(got[column][n:]).any()


@pytest.mark.parametrize("op", ["add", "mean", "median", "nunique", "argmax"])
def test_random_keys_are_no_numbers(op):
    keys = jax.random.split(jax.random.key(0), 3)
    with pytest.raises(TypeError, match=r"^group_by: values: expected integers .*, got key<fry>\[3\]$"):
        mgpu.group_by(np.array([2, 1, 2]), keys, op, size=2)
    groups = mgpu.group_by(np.array([2, 1, 2]), keys, "first", size=2)
    np.testing.assert_array_equal(jax.random.key_data(groups[1]), jax.random.key_data(keys)[np.array([1, 0])])


def test_an_operator_a_column(rng):
    keys = few_keys(rng, ["float32"], 50)
    rows = rng.normal(size=(50, 2)).astype(np.float32)
    x = rng.integers(0, 9, 50).astype(np.int32)
    found, got, count = mgpu.group_by(keys, {"r": rows, "x": x}, {"r": "last", "x": "argmax"}, size=9)
    ranks = oracle.rank(keys)
    for i, r in enumerate(np.unique(ranks)):
        members = np.flatnonzero(ranks == r)
        same_bits(found[i], keys[members[0]])
        same_bits(got["r"][i], rows[members[-1]])
        assert got["x"][i] == members[np.argmax(x[members])]
    assert int(count) == len(np.unique(ranks))
    assert got["x"][int(count) :].tolist() == [-1] * (9 - int(count))
    keys, products, _ = mgpu.group_by(np.array([2, 1, 2]), np.array([5, 3, 4]), lambda a, b: a * b, size=2)
    assert products.tolist() == [3, 20]


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16"])
def test_groups_of_nothing(dtype):
    _, values, count = mgpu.group_by(np.zeros(0, np.uint16), np.zeros(0, dtype), "last", size=3)
    assert count == 0
    same_bits(values, np.zeros(3, dtype))


def test_fewer_places_than_groups():
    found, got, count = mgpu.group_by(np.array([3, 1, 2, 1]), np.array([1, 2, 3, 4]), "median", size=2)
    assert (found.tolist(), got.tolist(), int(count)) == ([1, 2], [3.0, 3.0], 3)
    found, got, count = mgpu.group_by(np.zeros(0, np.int32), np.zeros(0, np.float32), "first", size=2)
    assert (found.tolist(), got.tolist(), int(count)) == ([0, 0], [0.0, 0.0], 0)


def test_medians_of_special_numbers():
    x = np.array([np.inf, np.inf, -np.inf, np.inf, np.nan, 1, 3, 4], np.float32)
    keys = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    _, got, _ = mgpu.group_by(keys, x, "median", size=4)
    np.testing.assert_array_equal(got, [np.inf, np.nan, np.nan, 3.5])


@pytest.mark.parametrize("columns", [False, True])
def test_groups_without_nan_keys(rng, columns):
    x = rng.normal(size=50).astype(np.float32)
    keys = np.where(rng.random(50) < 0.3, np.nan, rng.integers(0, 4, 50)).astype(np.float32)
    other = rng.integers(0, 2, 50).astype(np.int8)
    table = pd.DataFrame({"k": keys, "o": other, "x": x, "i": np.arange(50)})
    names = ["o", "k"] if columns else ["k"]
    given = tuple(table[name].to_numpy(keys.dtype if name == "k" else np.int8) for name in names)
    values = {"sum": x, "last": x, "count": x, "most": x}
    ops = {"sum": "add", "last": "last", "count": "count", "most": "argmax"}
    for dropna, count in ((True, None), (False, None), (True, 31)):
        frame = table[:count].groupby(names, dropna=dropna)
        options = {"dropna": dropna, "size": 20, "count": count}
        found, got, number = mgpu.group_by(given if columns else given[0], values, ops, **options)
        n = len(frame)
        assert number == n
        np.testing.assert_allclose(got["sum"][:n], frame.x.sum(), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(got["last"][:n], frame.i.last().map(lambda i: x[i]))
        np.testing.assert_array_equal(got["count"][:n], frame.i.count())
        np.testing.assert_array_equal(got["most"][:n], frame.x.idxmax())
        first = found[1] if columns else found
        np.testing.assert_array_equal(first[:n], frame.x.sum().reset_index().k.astype(np.float32))
        by_function = mgpu.group_by(given if columns else given[0], x, lambda a, b: a + b, **options)[1]
        np.testing.assert_allclose(by_function[:n], frame.x.sum(), rtol=1e-4, atol=1e-5)
    assert (
        mgpu.group_by(other, other, size=2, dropna=True)[1].tolist() == mgpu.group_by(other, other, size=2)[1].tolist()
    )


def test_groups_over_devices_without_nan_keys(rng):
    counts, slots = np.array([5, 0, 6], np.int32), 6
    keys, x = rng.choice(np.array([np.nan, 1, 2], np.float32), 11), rng.normal(size=11).astype(np.float32)
    keys[:3] = np.nan, 1, 2

    def call(k, x, count):
        options = {"size": 4, "dropna": True, "count": count, "axis_name": mesh.AXIS}
        return mgpu.group_by(k, {"add": x, "argmax": x}, {"add": "add", "argmax": "argmax"}, **options)

    found, got, number = mesh.by_vmap(call)(mesh.shard(keys, counts, slots), mesh.shard(x, counts, slots), counts)
    assert mesh.gather(found, number).tolist() == [1, 2]
    sums = [x[keys == key].sum() for key in (1, 2)]
    np.testing.assert_allclose(mesh.gather(got["add"], number), sums, rtol=1e-5, atol=1e-6)
    most = [np.flatnonzero(keys == key)[x[keys == key].argmax()] for key in (1, 2)]
    assert mesh.gather(got["argmax"], number).tolist() == most


def test_dtype_of_groups():
    keys, x = np.array([1, 1, 2]), np.array([100, 100, 3], np.int8)
    for op, expected in (("add", [200, 3]), ("mean", [100, 3]), ("median", [100, 3]), ("var", [0, 0])):
        got = mgpu.group_by(keys, x, op, size=2, dtype="float32")[1]
        assert (got.dtype, got.tolist()) == (np.float32, expected)
    assert mgpu.group_by(keys, x, "add", size=2, dtype="int8")[1].dtype == np.int8
    with pytest.raises(TypeError, match="group_by: dtype: expected None with a function as op"):
        mgpu.group_by(keys, x, lambda a, b: a, size=2, dtype="int8")


# ---- Windows ---------------------------------------------------------------------------------------------------------


@form
def test_rank(rng, form):
    heads = np.array([0, 7, 7, 30, 99], np.int32)
    for segments, count, descending in itertools.product((None, heads), (None, 45), (False, True)):
        keys = few_keys(rng, form, 60)
        ranks = ranks_of(keys)[0] * (-1 if descending else 1)
        bounds = oracle.segment_bounds(60, [] if segments is None else segments, count)
        for method, name in (("ordinal", "first"), *((name, name) for name in ("min", "dense", "max", "average"))):
            expected = np.zeros(60, np.float32 if method == "average" else np.int32)
            for begin, end in bounds:
                expected[begin:end] = pd.Series(ranks[begin:end]).rank(method=name)
            got = mgpu.rank(keys, segments, method, descending=descending, count=count)
            same_bits(got, expected)


def shifted(x, heads, by, fill, count=None):
    """Returns, in place of row i of a segment, the segment's row i - by; `fill` where there is none."""
    out = np.full_like(x, fill)
    for begin, end in oracle.segment_bounds(len(x), heads, count):
        rows = x[begin:end]
        if by >= 0:
            out[begin:end][by:] = rows[: max(len(rows) - by, 0)]
        else:
            out[begin:end][: max(len(rows) + by, 0)] = rows[-by:]
    return out


def test_segmented_shift(rng):
    heads = np.array([0, 4, 4, 11, 90], np.int32)
    x = {"x": rng.normal(size=30).astype(np.float32), "rows": rng.integers(1, 9, (30, 2)).astype(np.int8)}
    for by, count in itertools.product((0, 1, -1, 3, -40, 40), (None, 22)):
        got = mgpu.segmented_shift(x, heads, by, 7, count=count)
        for name, column in x.items():
            same_bits(got[name], shifted(column, heads, by, 7, count))


@pytest.mark.parametrize(("dtype", "trailing"), [("int8", ()), ("float32", ()), ("uint16", (3,)), ("float32", (40,))])
def test_segmented_shift_over_tiles(rng, dtype, trailing):
    n = 20_011 if not trailing else 5_003
    program = jax.jit(lambda x, heads, by, count: mgpu.segmented_shift(x, heads, by, 7, count=count))
    x = rng.integers(0, 100, (n, *trailing)).astype(dtype)
    few = np.sort(rng.choice(np.arange(1, n + 9), 400))
    crowded = np.append(np.repeat(4096, 300), np.arange(4000, 4100))
    for heads in (few, np.sort(crowded), np.full(400, n)):
        for by, count in ((1, n), (-1, n - 5), (4096, n), (-4095, n - 1), (-(2**31), n)):
            got = program(x, heads.astype(np.int32), np.int32(by), np.int32(count))
            same_bits(got, shifted(x, heads, by, 7, count))


@pytest.mark.parametrize("n", [13, 9_000])
def test_segmented_shift_of_batches(rng, n):
    x = rng.normal(size=(3, n, 2)).astype(np.float32)
    heads = np.sort(rng.integers(0, n + 1, (3, 5)), axis=1).astype(np.int32)
    by, fill, count = np.array([1, -2, 0], np.int32), np.array([5, 6, 7], np.float32), np.array([n, n - 3, 0], np.int32)
    program = jax.jit(jax.vmap(lambda x, h, b, f, c: mgpu.segmented_shift(x, h, b, f, count=c)))
    expected = [shifted(*row) for row in zip(x, heads, by, fill, count, strict=True)]
    same_bits(program(x, heads, by, fill, count), np.stack(expected))
    shared = jax.jit(jax.vmap(lambda b: mgpu.segmented_shift(x[0], heads[0], b, 9)))
    same_bits(shared(by), np.stack([shifted(x[0], heads[0], b, 9) for b in by]))


# ---- Transformations -------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_derivatives(rng):
    keys, table = np.array([3, 1, 9, 3]), np.array([1, 3, 5])
    values = rng.normal(size=3).astype(np.float32)
    check_grads(jax.jit(lambda v: mgpu.lookup(keys, table, v)), (values,), order=1, atol=1e-2, rtol=1e-2)
    x = rng.permutation(12).astype(np.float32)
    groups = rng.integers(0, 3, 12)
    for operator in ("add", "max", "mean", "median", "first", "last"):
        grouped = jax.jit(lambda v, op=operator: mgpu.group_by(groups, v, op, size=4)[1])
        check_grads(grouped, (x,), order=1, atol=1e-2, rtol=1e-2)
    shift = jax.jit(lambda v: mgpu.segmented_shift(v, np.array([0, 5]), 2))
    check_grads(shift, (x,), order=1, atol=1e-2, rtol=1e-2)


def test_batches(rng):
    keys = rng.integers(0, 5, (3, 40)).astype(np.int32)
    x = rng.normal(size=(3, 40)).astype(np.float32)
    calls = [
        lambda k, x: mgpu.group_by(k, x, "max", size=6),
        lambda k, x: mgpu.rank(k, method="dense"),
        lambda k, x: mgpu.lookup(k, k[:7], x[:7]),
        lambda k, x: mgpu.join(k, k[:9], "outer", size=90, assume_sorted=False),
        lambda k, x: mgpu.asof_join(jnp.sort(x), jnp.sort(x)[:9], by_a=k, by_b=k[:9]),
        lambda k, x: mgpu.segmented_shift(x, jnp.sort(k) * 3, 1),
    ]
    for call in calls:
        got, one = jax.jit(jax.vmap(call))(keys, x), jax.jit(call)
        rows = [one(k, v) for k, v in zip(keys, x, strict=True)]
        jax.tree.map(lambda g, *r: np.testing.assert_array_equal(g, np.stack(r)), got, *rows)


# ---- Misuse ----------------------------------------------------------------------------------------------------------


def test_errors():
    x = np.arange(3, dtype=np.int32)
    with pytest.raises(ValueError, match=r"group_by: op: expected a name, or a pytree of names like values"):
        mgpu.group_by(x, {"x": x}, {"y": "add"}, size=3)
    with pytest.raises(ValueError, match=r"group_by: op: expected .*got 'total'"):
        mgpu.group_by(x, x, "total", size=3)
    with pytest.raises(ValueError, match=r"asof_join: by_a and by_b: expected both or neither, got one of them"):
        mgpu.asof_join(x, x, by_a=x)
    with pytest.raises(ValueError, match=r"asof_join: direction: expected 'backward' or"):
        mgpu.asof_join(x, x, direction="left")
    with pytest.raises(TypeError, match=r"asof_join: tolerance: expected an integer, as the times are int32"):
        mgpu.asof_join(x, x, tolerance=1.5)
    with pytest.raises(ValueError, match=r"rank: method: expected 'min' or 'dense' or 'ordinal' or .*, got 'least'"):
        mgpu.rank(x, method="least")
    with pytest.raises(TypeError, match=r"segmented_shift: by: expected an integer scalar, got float32\[\]"):
        mgpu.segmented_shift(x, x, 1.0)
    with pytest.raises(TypeError, match=r"lookup: table_keys: expected the dtype of keys, int32, got float32"):
        mgpu.lookup(x, x.astype(np.float32), x)
    with pytest.raises(ValueError, match=r"lookup: values: expected arrays with the leading axis of table_keys, 3"):
        mgpu.lookup(x, x, x[:2])
