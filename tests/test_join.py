"""join and join_columns against tests/oracle.py and pandas."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from benchmarks import flights
from jax_mgpu._src.core.operation import REGISTRY
from tests import data, oracle

pytestmark = pytest.mark.usefixtures("x64")

KINDS = ["inner", "left", "right", "outer"]
TILES = data.tile_sizes("join")


@functools.cache
def jitted(kind, size):
    return jax.jit(functools.partial(mgpu.join, kind=kind, size=size))


def check(kind, a, b, *, size, counts=None):
    a_live, b_live = counts or (len(a), len(b))
    expected = oracle.join_rows(kind, a[:a_live], b[:b_live])
    result = jitted(kind, size)(a, b, **({"a_count": a_live, "b_count": b_live} if counts else {}))
    assert int(result.count) == len(expected)
    kept = np.full((size, 2), -1)
    kept[: len(expected)] = expected[:size]
    got = np.stack([result.a_indices, result.b_indices], axis=1)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, kept)


# ---- Rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_every_key_type(rng, dtype, kind):
    a, b = (data.in_order(data.random_keys(rng, dtype, n)) for n in (900, 700))
    check(kind, a, b, size=60000)
    for counts in ((900, 0), (0, 700), (1, 1), (500, 699)):
        check(kind, a, b, size=60000, counts=counts)


@pytest.mark.parametrize("kind", KINDS)
def test_a_nested_loop(rng, kind):
    for _ in range(5):
        a, b = (np.sort(rng.integers(0, 12, 30)) for _ in range(2))
        rows = []
        for i in range(30):
            partners = [(i, j) for j in range(30) if a[i] == b[j]]
            rows += partners or ([(i, -1)] if kind in ("left", "outer") else [])
        if kind in ("right", "outer"):
            rows += [(-1, j) for j in range(30) if b[j] not in a]
        result = mgpu.join(a, b, kind, size=200)
        live = int(result.count)
        assert [*zip(result.a_indices[:live].tolist(), result.b_indices[:live].tolist(), strict=True)] == rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keys", [2**12, 2**16, 2**31])
def test_tile_edges(rng, keys, kind):
    n = max(TILES) + 2
    a, b = (np.sort(rng.integers(0, keys, length)).astype(np.uint32) for length in (n, 2 * n))
    for tile in TILES:
        for a_live in (tile - 1, tile, tile + 1):
            for b_live in (0, 1, a_live // 2, a_live, a_live + 1, 2 * a_live):
                check(kind, a, b, size=2**18, counts=(a_live, b_live))


@pytest.mark.parametrize("kind", KINDS)
def test_runs_of_a_key_across_tiles(rng, kind):
    for tile in TILES:
        for before in (tile - 2, tile - 1, tile, tile + 1):
            for a_run, b_run in ((1, 2 * tile), (2 * tile, 1), (3, tile + 1), (0, 5), (5, 0)):
                a = np.concatenate([np.arange(before), np.full(a_run, 10**6), np.arange(10**6 + 1, 10**6 + 50)])
                b = np.concatenate([np.full(b_run, 10**6), np.arange(10**6 + 25, 10**6 + 80)])
                check_once(kind, a.astype(np.int32), b.astype(np.int32))


PADDED = 4 * max(TILES)


def check_once(kind, a, b):
    """Does what `check` does, by one program for all lengths."""
    padded = [np.concatenate([x, np.full(PADDED - len(x), x.dtype.type(3))]) for x in (a, b)]
    check(kind, *padded, size=2**17, counts=(len(a), len(b)))


@pytest.mark.parametrize("kind", KINDS)
def test_no_match_all_one_key_and_one_side_empty(kind):
    even, odd = np.arange(0, 20000, 2), np.arange(1, 20001, 2)
    check(kind, even, odd, size=30000)
    check(kind, np.full(300, 5), np.full(700, 5), size=300 * 700)
    nothing = np.zeros(0, np.int64)
    for a, b in ((nothing, even), (even, nothing), (nothing, nothing)):
        check(kind, a, b, size=20000)
        check(kind, a, b, size=3)
        check(kind, a, b, size=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hot_key(kind):
    a, b = (np.concatenate([[1, 2], np.full(2**14, 7), last]) for last in ([8, 9, 9], [9, 10]))
    size = 2**20 + 5
    result = jitted(kind, size)(a, b)
    unmatched = {"inner": 0, "left": 1, "right": 1, "outer": 2}[kind]
    assert int(result.count) == 2 + 2**28 + 2 + unmatched  # 1, 2 and 9 have partners; 8 and 10 have none
    slots = np.arange(2, size)
    np.testing.assert_array_equal(result.a_indices, np.concatenate([[0, 1], 2 + (slots - 2) // 2**14]))
    np.testing.assert_array_equal(result.b_indices, np.concatenate([[0, 1], 2 + (slots - 2) % 2**14]))


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_below_and_above_the_count(rng, kind):
    a, b = (np.sort(rng.integers(0, 9000, n)) for n in (8000, 9000))
    rows = len(oracle.join_rows("inner", a, b))
    for size in (1, 100, 5888, rows - 1, rows, rows + 1, rows + 3000):
        check(kind, a, b, size=size)


def test_a_count_that_int32_cannot_hold():
    a, b = np.zeros(2**16, np.int32), np.zeros(2**15 + 1, np.int32)
    for wide, count in ((True, 2**31 + 2**16), (False, 2**31 - 1)):
        with jax.enable_x64(wide):
            result = mgpu.join(a, b, size=10)
            assert result.count.dtype == (jnp.int64 if wide else jnp.int32)
            assert int(result.count) == count
            assert int(mgpu.join(a, b, "outer", size=10, b_count=0).count) == 2**16
            np.testing.assert_array_equal(result.b_indices, np.arange(10))


# ---- Columns ---------------------------------------------------------------------------------------------------------


def test_columns(rng):
    a, b = (np.sort(rng.integers(0, 40, n)) for n in (30, 20))
    a_columns = {"x": rng.normal(size=30), "name": rng.integers(0, 99, (30, 3)).astype(np.uint8)}
    b_columns = [rng.integers(0, 2, 20).astype(bool)]
    rows = mgpu.join(a, b, "outer", size=80)
    columns = mgpu.join_columns(rows, a_columns, b_columns, fill_value=1)
    for indices, null, given, got in (
        (rows.a_indices, columns.a_null, a_columns, columns.a),
        (rows.b_indices, columns.b_null, b_columns, columns.b),
    ):
        np.testing.assert_array_equal(null, np.asarray(indices) < 0)
        for x, y in zip(jax.tree.leaves(given), jax.tree.leaves(got), strict=True):
            expected = x[indices]
            expected[np.asarray(null)] = 1
            assert y.dtype == x.dtype
            np.testing.assert_array_equal(y, expected)
    empty = mgpu.join_columns(mgpu.join(a[:0], b, "right", size=20), {"x": a[:0]}, b, fill_value=4)
    np.testing.assert_array_equal(empty.a["x"], np.full(20, 4))
    np.testing.assert_array_equal(empty.b, b)


def test_columns_in_the_order_before_the_sort(rng):
    a, b = (rng.integers(0, 40, n) for n in (30, 20))
    orders = [np.argsort(x, kind="stable") for x in (a, b)]
    rows = mgpu.join(a[orders[0]], b[orders[1]], "left", size=60)
    columns = mgpu.join_columns(rows, a, b, a_order=orders[0], b_order=orders[1])
    both = ~np.asarray(columns.b_null)
    np.testing.assert_array_equal(np.asarray(columns.a)[both], np.asarray(columns.b)[both])
    np.testing.assert_array_equal(
        np.asarray(columns.a)[: int(rows.count)], a[orders[0]][rows.a_indices[: int(rows.count)]]
    )


@pytest.mark.parametrize(("dtype", "n"), [("int8", 127), ("uint8", 256), ("int16", 300), ("uint16", 2**16)])
def test_orders_of_small_types(rng, dtype, n):
    """With 256 rows of uint8, or 2^16 of uint16, no value can stand for a missing row."""
    order = rng.permutation(n).astype(dtype)
    keys = np.arange(n, dtype=np.int32)
    rows = mgpu.join(keys, keys[: n // 2], "left", size=n + 3)
    columns = mgpu.join_columns(rows, keys, keys[: n // 2], a_order=order, fill_value=-7)
    np.testing.assert_array_equal(columns.a, np.append(order.astype(np.int32), [-7] * 3))
    np.testing.assert_array_equal(columns.b, np.append(keys[: n // 2], [-7] * (n + 3 - n // 2)))


def test_columns_of_another_length_than_the_keys():
    keys = np.arange(5)
    rows = mgpu.join(keys, keys, size=6)
    for columns in (
        mgpu.join_columns(rows, keys[:3] + 10, fill_value=9),
        mgpu.join_columns(rows, keys[:3] + 10, a_order=keys[:3], fill_value=9),
    ):
        np.testing.assert_array_equal(columns.a, [10, 11, 12, 9, 9, 9])
        np.testing.assert_array_equal(columns.a_null, [False] * 3 + [True] * 3)
    outside = mgpu.join_columns(rows, keys + 10, a_order=[4, -1, 7, 0, 2**40], fill_value=9)
    np.testing.assert_array_equal(outside.a, [14, 9, 9, 10, 9, 9])


def test_a_traced_fill_value(rng):
    rows = mgpu.join(np.arange(3), np.array([0, 2]), "left", size=4)
    x = rng.normal(size=2)

    def joined(x, fill):
        return mgpu.join_columns(rows, None, x, fill_value=fill).b

    np.testing.assert_array_equal(jax.jit(joined)(x, 7.0), [x[0], 7, x[1], 7])
    check_grads(jax.jit(joined), (x, 7.0), order=1, modes=["fwd", "rev"])


def test_gradients_flow_to_the_columns(rng):
    a, b = (np.sort(rng.integers(0, 15, n)) for n in (12, 9))
    columns = rng.normal(size=12), rng.normal(size=(9, 2))
    order = rng.permutation(9)

    def joined(x, y):
        result = mgpu.join_columns(mgpu.join(a, b, "outer", size=40), {"x": x}, y, b_order=order)
        return result.a["x"], result.b

    check_grads(jax.jit(joined), columns, order=1, modes=["fwd", "rev"])
    rows = oracle.join_rows("outer", a, b)
    times = np.bincount(rows[:, 0][rows[:, 0] >= 0], minlength=12)
    np.testing.assert_array_equal(jax.grad(lambda x: joined(x, columns[1])[0].sum())(columns[0]), times)
    zero = jax.grad(lambda k: mgpu.join_columns(mgpu.join(k, k, size=12), columns[0]).a.sum())(a.astype(float))
    np.testing.assert_array_equal(zero, np.zeros(12))


@pytest.mark.parametrize("kind", KINDS)
def test_batches(rng, kind):
    rows, n_a, n_b = 3, 5000, 4000
    a = np.sort(rng.integers(0, 3000, (rows, n_a)), axis=1)
    b = np.sort(rng.integers(0, 3000, (rows, n_b)), axis=1)
    a_counts, b_counts = np.array([n_a, 17, 0]), np.array([100, n_b, n_b])

    def call(a, b, a_count, b_count):
        return mgpu.join(a, b, kind, size=10000, a_count=a_count, b_count=b_count)

    for axes in ((0, 0, 0, 0), (0, None, 0, None), (None, 0, None, 0), (None, None, 0, None)):
        operands = [x if axis == 0 else x[0] for x, axis in zip((a, b, a_counts, b_counts), axes, strict=True)]
        batched = jax.jit(jax.vmap(call, in_axes=axes))(*operands)
        for row in range(rows):
            one = call(*(x[row] if axis == 0 else x for x, axis in zip(operands, axes, strict=True)))
            for got, expected in zip(batched, one, strict=True):
                np.testing.assert_array_equal(got[row], expected)
    assert str(jax.make_jaxpr(jax.vmap(call))(a, b, a_counts, b_counts)).count("mgpu_join[") == 1


@pytest.mark.parametrize("lengths", data.SHORT_ROWS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_short_rows(rng, kind, lengths):
    (n_a, n_b), batch = lengths, data.batch_of(sum(lengths))
    a_counts, b_counts = (data.row_counts(rng, n, batch) for n in lengths)
    a, b = (data.sorted_rows(rng, data.SHORT_ROWS[lengths], *x) for x in ((n_a, a_counts), (n_b, b_counts)))
    a[0] = data.in_order(a[0])
    size = 2 * (n_a + n_b)
    call = jax.jit(jax.vmap(lambda a, b, m, n: mgpu.join(a, b, kind, size=size, a_count=m, b_count=n)))
    shared = jax.jit(jax.vmap(lambda a, b, n: mgpu.join(a, b, kind, size=n_b, b_count=n), (None, 0, 0)))
    for result, a_rows, a_lives in (
        (call(a, b, a_counts, b_counts), a, a_counts),
        (shared(a[0], b, b_counts), a[:1].repeat(batch, 0), np.full(batch, n_a)),
    ):
        size = result.a_indices.shape[1]
        got, count = np.stack([result.a_indices, result.b_indices], axis=2), np.asarray(result.count)
        for row in range(batch):
            m, n = oracle.live_count(a_lives[row], n_a), oracle.live_count(b_counts[row], n_b)
            expected = oracle.join_rows(kind, a_rows[row, :m], b[row, :n])
            assert count[row] == len(expected)
            np.testing.assert_array_equal(got[row, : len(expected)], expected[:size])
            assert np.all(got[row, len(expected) :] == -1)


@pytest.mark.parametrize("kind", KINDS)
def test_short_rows_without_order_stay_inside(rng, kind):
    for n_a, n_b in ((8, 8), (40, 3), (700, 900)):
        batch = data.batch_of(n_a + n_b)
        a, b = (rng.integers(0, 9, (batch, n), dtype=np.int32) for n in (n_a, n_b))
        rows = jax.vmap(lambda a, b: mgpu.join(a, b, kind, size=300))(a, b)
        assert np.all((rows.a_indices >= -1) & (rows.a_indices < n_a))
        assert np.all((rows.b_indices >= -1) & (rows.b_indices < n_b))


# ---- Real tables -----------------------------------------------------------------------------------------------------


@functools.cache
def table_join(kind, size):
    @jax.jit
    def joined(a, b, a_order, b_order, a_columns, b_columns):
        rows = mgpu.join(a, b, kind, size=size)
        columns = mgpu.join_columns(rows, a_columns, b_columns, a_order=a_order, b_order=b_order, fill_value=-1)
        return rows.count, columns

    return joined


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on", ["weather", "planes"])
def test_flights_against_pandas(on, kind):
    value = {"weather": "temp", "planes": "seats"}[on]
    a, b = flights.key_codes(on)
    a_order, b_order = (np.argsort(x, kind="stable").astype(np.int32) for x in (a, b))
    given = (
        {"flight": np.arange(len(a), dtype=np.int32)},
        {"row": np.arange(len(b), dtype=np.int32), "value": flights.tables()[on][value].to_numpy(np.float32)},
    )
    size = len(a) + len(b)
    count, joined = table_join(kind, size)(a[a_order], b[b_order], a_order, b_order, *given)

    left = pd.DataFrame({"key": a, "flight": given[0]["flight"]}).iloc[a_order]
    right = pd.DataFrame({"key": b, "row": given[1]["row"], "value": given[1]["value"]}).iloc[b_order]
    expected = left.merge(right, on="key", how=kind)
    # pandas mixes one side's rows among the others; here, unmatched rows of B are last
    paired = expected[expected.flight.notna()].sort_values(["key", "flight", "row"], kind="stable")
    expected = pd.concat([paired, expected[expected.flight.isna()].sort_values(["key", "row"], kind="stable")])
    live = int(count)
    assert live == len(expected)
    np.testing.assert_array_equal(joined.a["flight"][:live], expected.flight.fillna(-1).astype(int))
    np.testing.assert_array_equal(joined.b["row"][:live], expected.row.fillna(-1).astype(int))
    null = np.asarray(joined.b_null[:live])
    np.testing.assert_array_equal(null, expected.row.isna())
    np.testing.assert_array_equal(joined.b["value"][:live], np.where(null, np.float32(-1), expected.value))
    assert np.asarray(joined.a_null[live:]).all() and np.asarray(joined.b_null[live:]).all()


def test_a_query_of_set_operations_and_a_join(rng):
    traces = []

    @jax.jit
    def query(a, b, c, d, table, counts):
        traces.append(1)
        both = mgpu.set_intersection(a, b, a_count=counts[0], b_count=counts[1])
        more = mgpu.set_union(both.keys, c, a_count=both.count, b_count=counts[2])
        rest = mgpu.set_difference(more.keys, d, a_count=more.count, b_count=counts[3])
        return rest, mgpu.join(rest.keys, table, "left", size=9000, a_count=rest.count, b_count=counts[4])

    arrays = [np.sort(rng.integers(0, 500, n)).astype(np.uint32) for n in (1000, 1200, 900, 800, 400)]
    for counts in ((1000, 1200, 900, 800, 400), (0, 1200, 900, 5, 1), (10, 3, 0, 800, 0), (1000, 1, 1, 0, 399)):
        rest, rows = query(*arrays, np.array(counts))
        a, b, c, d, table = (x[:count] for x, count in zip(arrays, counts, strict=True))
        expected = a[oracle.set_sources("set_intersection", a, b)]
        expected = np.concatenate([expected, c])[oracle.set_sources("set_union", expected, c)]
        expected = expected[oracle.set_sources("set_difference", expected, d)]
        np.testing.assert_array_equal(rest.keys[: int(rest.count)], expected)
        pairs = oracle.join_rows("left", expected, table)
        assert int(rows.count) == len(pairs)
        got = np.stack([rows.a_indices, rows.b_indices], axis=1)[: len(pairs)]
        np.testing.assert_array_equal(got, pairs)
    assert len(traces) == 1


# ---- The fallback, and misuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_fallback(rng, kind):
    options = {"keep_a": kind in ("left", "outer"), "keep_b": kind in ("right", "outer")}
    fallback = jax.jit(REGISTRY["join"].fallback, static_argnames=("size", *options))
    for n_a, n_b, counts in ((60, 40, (50, 39)), (60, 0, (60, 0)), (0, 40, (0, 33)), (0, 0, (0, 0))):
        a, b = (data.in_order(data.without_subnormals(data.random_keys(rng, "float32", n))) for n in (n_a, n_b))
        rows = oracle.join_rows(kind, a[: counts[0]], b[: counts[1]])
        for size in (len(rows) + 9, len(rows) // 2):
            operands = [jnp.asarray(x) for x in (a, b, np.array(counts[:1]), np.array(counts[1:]))]
            *indices, count = fallback(*operands, size=size, **options)
            assert int(count) == len(rows)
            expected = np.full((size, 2), -1)
            expected[: len(rows)] = rows[:size]
            np.testing.assert_array_equal(np.stack(indices, axis=1), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_unsorted_keys_harm_nothing(rng, kind):
    a, b = (rng.integers(0, 5000, n) for n in (40000, 30000))
    jax.block_until_ready(mgpu.join(a, b, kind, size=5000))


def test_errors():
    a, f = np.arange(4), np.arange(4.0)
    rows = mgpu.join(a, a, size=4)
    for error, call in {
        "join: kind: expected 'inner' or 'left' or 'right' or 'outer' or 'semi' or 'anti', got 'cross'": lambda: (
            mgpu.join(a, a, "cross", size=1)
        ),
        "join: b: expected the dtype of a, int64, got float64": lambda: mgpu.join(a, f, size=1),
        "join: a: expected a 1-D array": lambda: mgpu.join(a[None], a, size=1),
        "join: size: expected a static": lambda: jax.jit(lambda size: mgpu.join(a, a, size=size))(3),
        "join: b_count: expected an integer scalar": lambda: mgpu.join(a, a, size=1, b_count=a),
        "join_columns: a_columns: expected arrays with one leading axis, of 4 rows": lambda: mgpu.join_columns(
            rows, (f, f[1:])
        ),
        "join_columns: a_order: expected integers": lambda: mgpu.join_columns(rows, f, a_order=f),
        "join_columns: b_columns: expected arrays with one leading axis, of 3 rows": lambda: mgpu.join_columns(
            rows, f, f, b_order=a[:3]
        ),
    }.items():
        with pytest.raises((TypeError, ValueError)) as raised:
            call()
        assert str(raised.value).startswith(error), raised.value


def test_checks():
    a = np.array([1, 3, 3, 0])
    with mgpu.checks():
        assert int(mgpu.join(a, a, size=9, a_count=3, b_count=2).count) == 3
        with pytest.raises(Exception, match=r"join: b: expected keys in ascending order.*3"):
            jax.block_until_ready(mgpu.join(a[:3], a, size=9))
