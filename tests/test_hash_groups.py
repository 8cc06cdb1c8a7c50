"""Groups by tables of hashes, CUDA's method for many rows of few keys, against plain Python."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.core.operation import ABSENT, REGISTRY
from jax_mgpu._src.ops import hash_groups
from jax_mgpu._src.ops.hash_groups import State
from tests import data, oracle
from tests.oracle import same_bits

TILES = sorted(data.tile_sizes("hash_groups"))
ENTRIES = data.tile_sizes("group_entries")[0]
TYPES = ["int32", "uint32", "int64", "uint64"]


# ---- The kernels -----------------------------------------------------------------------------------------------------


def drawn_keys(rng, dtype, n, groups):
    """Draws keys of at most `groups` distinct values."""
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max, max(groups, 2), dtype, endpoint=True)
    values[:2] = limits.min, limits.max
    return rng.choice(values[:groups] if groups > 1 else values[1:], n)


def codes_of(x, state):
    """Returns the unsigned words whose maximum, or sum, is sought."""
    words = x.view(np.uint32)
    if state == State.ADD:
        return words
    words = words ^ np.uint32(2**31 if x.dtype == np.int32 else 0)
    return ~words if state == State.MIN else words


def expected_groups(keys, columns, states, n):
    found = {}
    for i, key in enumerate(keys.tolist()):
        own = [int(column[i]) for column in columns]
        if key not in found:
            found[key] = own
            continue
        for c, state in enumerate(states):
            both = found[key][c], own[c]
            found[key][c] = sum(both) % 2**32 if state == State.ADD else max(both)
    return found


def check_table(keys, columns, states, counts, entries, results):
    largest = np.iinfo(keys.dtype).max
    for row, (groups, x_states, y_states, counters) in enumerate(zip(*results, strict=True)):
        n = int(counts[row])
        given = zip(columns, states, strict=True)
        own = [np.ones(n, np.uint32) if column is None else codes_of(column[row, :n], state) for column, state in given]
        expected = expected_groups(keys[row, :n], own, states, n)
        has_largest = largest in expected
        assert counters.tolist() == [len(expected), 0, int(has_largest)]
        assert groups[0] == largest
        used = np.flatnonzero((groups != largest) | ((np.arange(entries + 1) == 0) & has_largest))
        got = [found[used].tolist() for found in (x_states, y_states)[: len(states)]]
        assert dict(zip(groups[used].tolist(), map(list, zip(*got, strict=True)), strict=True)) == expected


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("bucketed", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_table_of_groups(rng, dtype, bucketed):
    table = jax.jit(REGISTRY["hash_groups"].__call__, static_argnames=("entries", "x_state", "y_state", "bucketed"))
    cases = [
        (1, 1, 64), (33, 3, 64), (TILES[0] + 1, 2, 64), (TILES[-1] - 1, 30, 64), (3 * TILES[-1], 700, 2048),
        (40_000, 20_000, 2**16),
    ]  # fmt: skip
    pairs = [(State.ADD, State.MAX), (State.MIN, State.ADD), (State.MAX, State.NONE)]
    for i, (n, groups, entries) in enumerate(cases):
        keys = np.stack([drawn_keys(rng, dtype, n, groups) for _ in range(2)])
        counts = np.array([[n], [n // 3]], np.int32)
        states = [state for state in pairs[i % 3] if state]
        columns = [data.random_keys(rng, ("int32", "uint32")[(i + c) % 2], 2 * n).reshape(2, n) for c in range(2)]
        if i == 3:
            columns[0] = None
        x, y = (ABSENT if column is None else column for column in columns)
        given = {"x_state": pairs[i % 3][0], "y_state": pairs[i % 3][1], "entries": entries, "bucketed": bucketed}
        results = jax.device_get(table(keys=keys, x=x, y=y if len(states) > 1 else ABSENT, count=counts, **given))
        check_table(keys, columns[: len(states)], states, counts[:, 0], entries, results)


@pytest.mark.parametrize("bucketed", [False, True])
@pytest.mark.parametrize("signs", ["int32 uint32", "uint32 int32"])
def test_table_of_pairs(rng, signs, bucketed):
    n = 3 * TILES[-1] + 7
    columns = [drawn_keys(rng, dtype, 2 * n, 40).reshape(2, n) for dtype in signs.split()]
    x, counts = rng.integers(0, 99, n).astype(np.int32), np.array([[n], [n // 2]], np.int32)
    for column in columns:
        column[:, 5] = np.iinfo(column.dtype).max
    given = {"x_state": State.MAX, "y_state": State.ADD, "entries": 4096, "bucketed": bucketed}
    results = REGISTRY["hash_groups"](keys=columns[0], lower=columns[1], x=x, count=counts, **given)
    groups, *results = jax.device_get(results)
    flipped = [column.view(np.uint32) ^ np.uint32(2**31 * (column.dtype == np.int32)) for column in columns]
    codes = flipped[0].astype(np.uint64) << np.uint64(32) | flipped[1]
    found = groups.imag.view(np.uint32).astype(np.uint64) << np.uint64(32) | groups.real.view(np.uint32)
    states = [State.MAX, State.ADD]
    check_table(codes, [np.broadcast_to(x, codes.shape), None], states, counts[:, 0], 4096, [found, *results])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", ["int32", "uint64"])
def test_rows_of_many_tiles(rng, dtype):
    tile = TILES[-1]
    n = 34 * tile + 5
    keys = drawn_keys(rng, dtype, n, 3000)
    ordered = np.sort(keys)
    ordered[5 * tile : 12 * tile] = 77
    frequent = np.where(rng.random(n) < 0.9, keys[0], keys)
    keys = np.stack([keys, ordered, frequent])
    counts = np.array([[n], [n - tile - 9], [33 * tile]], np.int32)
    x = rng.integers(0, 1000, n).astype(np.uint32)
    y = rng.permutation(3 * n).astype(np.int32).reshape(3, n)
    given = {"x_state": State.ADD, "y_state": State.MAX, "entries": 8192, "bucketed": True}
    results = REGISTRY["hash_groups"](keys=keys, x=x, y=y, count=counts, **given)
    columns = [np.broadcast_to(x, y.shape), y]
    check_table(keys, columns, [State.ADD, State.MAX], counts[:, 0], 8192, jax.device_get(results))


@pytest.mark.parametrize("bucketed", [False, True])
def test_groups_without_a_place(rng, bucketed):
    keys = np.arange(5000, dtype=np.int32)
    table = REGISTRY["hash_groups"]
    given = {"x_state": State.ADD, "y_state": State.NONE, "bucketed": bucketed}
    assert table(keys=keys, entries=1024, **given)[3][1] == 1
    assert table(keys=keys, entries=8192, **given)[3].tolist() == [5000, 0, 0]
    assert table(keys=keys, entries=8192, count=np.array([0], np.int32), **given)[3].tolist() == [0, 0, 0]


# ---- group_by --------------------------------------------------------------------------------------------------------


@pytest.fixture
def tables_are_used(monkeypatch):
    """Makes any device group few rows by CUDA's code for many."""
    jax.clear_caches()
    for name, value in {"LEAST_ROWS": 1, "ENTRY_ROWS": 0, "LEAST_ENTRIES": 16}.items():
        monkeypatch.setattr(hash_groups, name, value)
    monkeypatch.setattr(
        jax.lax, "platform_dependent", lambda *operands, cuda=None, default, **_: (cuda or default)(*operands)
    )
    yield
    jax.clear_caches()


def same_by_sort(keys, values, ops, size, **given):
    """Compares with a call that sorts rows, because it has a median."""
    text = jax.jit(lambda k, v: mgpu.group_by(k, v, ops, size=size, **given)).trace(keys, values).jaxpr.pretty_print()
    assert "mgpu_hash_groups" in text
    found = mgpu.group_by(keys, values, ops, size=size, **given)
    by_sort = mgpu.group_by(keys, [*values, values[0]], [*ops, "median"], size=size, **given)
    jax.tree.map(same_bits, (found.keys, found.values, found.count), (by_sort.keys, by_sort.values[:-1], by_sort.count))
    return found


OPS = {
    "int32": ["add", "min", "max", "count"],
    "uint32": ["max", "min", "sum"],
    "int8": ["add", "min", "max"],
    "uint16": ["max", "add", "count"],
    "float32": ["max", "min"],
    "bfloat16": ["min", "max", "count"],
    "bool": ["any", "all", "min", "max", "add"],
}


@pytest.mark.usefixtures("tables_are_used")
@pytest.mark.parametrize("dtype", OPS)
def test_group_by_of_each_type(rng, dtype):
    n = 3001
    keys = rng.choice(np.array([5, -7, 2**31 - 1, -(2**31), 0, 11], np.int32), n)
    x = rng.random(n) < 0.5 if dtype == "bool" else data.random_keys(rng, dtype, n)
    if "float" in dtype:
        x = np.where(
            keys == 5,
            rng.choice(np.array([-0.0, 0.0], x.dtype), n),
            np.where(np.isnan(x.astype(np.float32)), x.dtype.type(1), x),
        )
    found = same_by_sort(keys, [x] * len(OPS[dtype]), OPS[dtype], 8)
    assert found.count == 6
    assert found.keys.tolist() == [-(2**31), -7, 0, 5, 11, 2**31 - 1, 0, 0]


@pytest.mark.usefixtures("tables_are_used")
def test_group_by_of_nans(rng):
    x = np.array([1, np.nan, 2, -np.nan, np.inf, -np.inf], np.float32)
    found = mgpu.group_by(np.array([1, 1, 1, 2, 3, 3]), (x, x), ("max", "min"), size=4)
    np.testing.assert_array_equal(found.values[0], np.array([np.nan, np.nan, np.inf, 0], np.float32))
    np.testing.assert_array_equal(found.values[1], np.array([np.nan, np.nan, -np.inf, 0], np.float32))


KEYS = {
    "int8": ["int8"], "uint16": ["uint16"], "uint32": ["uint32"],
    "two columns": ["int32", "int32"], "mixed signs": ["uint32", "int32"],
    "three columns": ["int8", "uint16", "uint8"], "narrow columns": ["int8", "uint8"],
}  # fmt: skip


@pytest.mark.usefixtures("tables_are_used")
@pytest.mark.parametrize("form", KEYS.values(), ids=KEYS)
def test_group_by_of_each_key(rng, form):
    n = 2000
    columns = tuple(rng.choice(data.special_keys(dtype), n) for dtype in form)
    keys = columns if len(columns) > 1 else columns[0]
    x = data.random_keys(rng, "int32", n)
    for count in (n, 700, 0):
        found = same_by_sort(keys, [x, x], ["add", "max"], 400, count=count)
        ranks = oracle.column_ranks(columns)[:count] if len(columns) > 1 else columns[0][:count]
        assert found.count == len(np.unique(ranks))
    assert mgpu.group_by(keys, None, size=400).count == len(np.unique(np.stack(columns), axis=1).T)


@pytest.mark.usefixtures("tables_are_used")
@pytest.mark.parametrize("groups", [40, 5000])
def test_more_groups_than_size(rng, groups):
    keys = np.concatenate([rng.permutation(groups), rng.integers(0, groups, 100)]).astype(np.int32)
    x = rng.integers(-9, 9, keys.size).astype(np.int32)
    found = same_by_sort(keys, [x], ["add"], 10)
    assert found.count == groups
    assert found.keys.tolist() == list(range(10))
    assert found.values[0].tolist() == [int(x[keys == key].sum()) for key in range(10)]


@pytest.mark.usefixtures("tables_are_used")
def test_batches_and_derivatives(rng):
    keys = rng.integers(0, 9, (3, 500)).astype(np.int32)
    x = rng.permutation(1500).astype(np.float32).reshape(3, 500)

    def most(keys, x):
        return mgpu.group_by(keys, x, "max", size=9).values

    got = jax.jit(jax.vmap(most))(keys, x)
    expected = np.array([[x[i][keys[i] == key].max() for key in range(9)] for i in range(3)])
    np.testing.assert_array_equal(got, expected)
    gradient = jax.grad(lambda x: jnp.sum(most(keys[0], x)))(x[0])
    np.testing.assert_array_equal(gradient, [float(v == expected[0][k]) for v, k in zip(x[0], keys[0], strict=True)])


def test_which_calls_use_tables():
    if not mgpu.has_cuda():
        pytest.skip("a build without CUDA kernels")

    def uses_table(dtype="int32", keys="int32", op="add", n=2**24, size=1000):
        shapes = jax.ShapeDtypeStruct((n,), keys), jax.ShapeDtypeStruct((n,), dtype)
        program = jax.jit(lambda k, x: mgpu.group_by(k, x, op, size=size))
        text = program.trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
        return bool(re.search(r"@jax_mgpu\.hash_groups\(", text))

    assert uses_table()
    assert uses_table("float32", op="max")
    assert not uses_table("float32")
    assert not uses_table(op="first")
    assert not uses_table(keys="float32")
    assert not uses_table(n=2**20)
    assert not uses_table(size=2**22)
