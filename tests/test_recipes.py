"""The functions of docs/recipes.md, as they stand there, against pandas and plain Python."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pandas as pd
import pytest

import jax_mgpu as mgpu
from tests.test_documentation import FENCE, PARSER, ROOT

SIZES = (200, 1)


@pytest.fixture(scope="module")
def recipes():
    """What the page defines; what it shows is compared in test_documentation.py."""
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    namespace = {}
    for block in FENCE.finditer(text):
        for example in PARSER.get_examples(block[2]):
            if example.source.startswith(("def ", "import ")):
                exec(example.source, namespace)
    return namespace


def integers(rng, high, n, low=0):
    return rng.integers(low, high, n).astype(np.int32)


@pytest.mark.parametrize("n", SIZES)
def test_running_totals(rng, recipes, n):
    frame = pd.DataFrame({"group": integers(rng, 9, n), "time": integers(rng, 50, n), "x": integers(rng, 99, n)})
    found = jax.jit(recipes["running_totals"])(*(frame[name].to_numpy() for name in frame))
    expected = frame.sort_values("time", kind="stable").groupby("group").x.cumsum().sort_index()
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("n", SIZES)
def test_ranks_in_groups(rng, recipes, n):
    frame = pd.DataFrame({"group": integers(rng, 9, n), "x": integers(rng, 20, n)})
    found = jax.jit(recipes["ranks_in_groups"])(frame.group.to_numpy(), frame.x.to_numpy())
    assert found.tolist() == frame.groupby("group").x.rank(method="min", ascending=False).tolist()


@pytest.mark.parametrize("n", SIZES)
def test_best_of_groups(rng, recipes, n):
    groups, scores = integers(rng, 70, n), integers(rng, 20, n)
    rows, found, count = jax.jit(lambda g, s: recipes["best_of_groups"](g, s, 3, 100))(groups, scores)
    distinct = np.unique(groups)
    assert found[: int(count)].tolist() == distinct.tolist()
    for group, best in zip(distinct, rows, strict=False):
        expected = sorted(np.flatnonzero(groups == group), key=lambda i: (-scores[i], i))[:3]
        assert best.tolist() == [*expected, -1, -1, -1][:3]


@pytest.mark.parametrize("n", SIZES)
def test_moving_sums(rng, recipes, n):
    frame = pd.DataFrame({"group": np.sort(integers(rng, 30, n)), "x": integers(rng, 99, n)})
    heads = np.flatnonzero(np.diff(frame.group, prepend=-1))
    expected = frame.groupby("group").x.rolling(4, min_periods=1).sum()
    assert jax.jit(recipes["moving_sums"])(frame.x.to_numpy(), heads, 4).tolist() == expected.tolist()


def test_moving_sums_of_floats(rng, recipes):
    """A window's sum knows nothing of the rows outside: large ones, infinities."""
    moving_sums = jax.jit(recipes["moving_sums"])
    assert moving_sums(np.array([1e8, 1, 1, 1, 1], np.float32), np.array([0]), 2).tolist()[2:] == [2, 2, 2]
    x = (rng.random(300) * 10.0 ** rng.integers(-4, 5, 300)).astype(np.float32)
    x[[40, 200]] = np.inf
    heads = np.array([0, 3, 150, 150])
    found = moving_sums(x, heads, 7)
    frame = pd.DataFrame({"segment": np.searchsorted(heads, np.arange(300), "right"), "x": x.astype(float)})
    expected = [
        group.x.iloc[max(i - 6, 0) : i + 1].sum() for _, group in frame.groupby("segment") for i in range(len(group))
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert moving_sums(np.full(300, 100, np.int8), heads, 7).max() == 700  # in the type of jnp.sum


TIMES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32")


def times_of(rng, dtype, n, steps=300):
    """Times over the whole range of a type, many of them near its ends, a power of two of a unit apart."""
    if dtype.startswith("float"):
        return (rng.integers(-steps, steps, n) / 4).astype(dtype), 2.5, float
    limits = np.iinfo(dtype)
    times = rng.integers(limits.min, limits.max, n, endpoint=True)
    near = [limits.min + 20, limits.max - 20] @ np.eye(2, dtype=np.int64)[rng.integers(0, 2, n)].T
    times[::2] = np.clip(near + rng.integers(-20, 21, n), limits.min, limits.max)[::2]
    return times.astype(dtype), 7, int


@pytest.mark.parametrize("dtype", TIMES)
def test_windows_and_sessions_of_times_of_any_type(rng, recipes, dtype):
    users, (times, gap, number) = integers(rng, 9, 200), times_of(rng, dtype, 200)
    order = np.lexsort((times, users))
    expected, session = np.zeros(200, int), -1
    for before, i in itertools.pairwise([None, *order]):
        same = before is not None and users[i] == users[before]
        session += not (same and number(times[i]) - number(times[before]) <= gap)
        expected[i] = session
    assert jax.jit(recipes["sessions"])(users, times, gap).tolist() == expected.tolist()
    times, x = np.sort(times), integers(rng, 99, 200)
    found = jax.jit(recipes["sums_of_the_last"])(gap, times, x)
    wide = times.astype(float if number is float else np.int64)
    assert found.tolist() == [int(x[(wide > t - gap) & (wide <= t)].sum()) for t in wide]


@pytest.mark.parametrize("n", SIZES)
def test_sums_of_the_last(rng, recipes, n):
    times, x = np.sort(integers(rng, 300, n)), integers(rng, 99, n)
    expected = [int(x[(times > t - 7) & (times <= t)].sum()) for t in times]
    assert jax.jit(recipes["sums_of_the_last"])(7, times, x).tolist() == expected


@pytest.mark.parametrize("n", SIZES)
def test_sessions(rng, recipes, n):
    frame = pd.DataFrame({"user": integers(rng, 9, n), "time": integers(rng, 900, n)})
    ordered = frame.sort_values(["user", "time"], kind="stable")
    starts = ~(ordered.groupby("user").time.diff() <= 20)
    found = jax.jit(recipes["sessions"])(frame.user.to_numpy(), frame.time.to_numpy(), 20)
    assert found.tolist() == (starts.cumsum() - 1).sort_index().tolist()


def test_quotes_and_trades(rng):
    def table(n):
        return pd.DataFrame({"stock": integers(rng, 9, n), "time": np.sort(integers(rng, 2000, n))})

    trades, quotes = table(200), table(150).assign(price=np.arange(150))
    expected = pd.merge_asof(trades, quotes, on="time", by="stock", tolerance=100).price.fillna(-1)
    (trade_stock, trade_time), (stock, time, _) = trades.to_numpy().T, quotes.to_numpy().T
    found = jax.jit(lambda *x: mgpu.asof_join(x[0], x[1], by_a=x[2], by_b=x[3], tolerance=100))(
        trade_time, time, trade_stock, stock
    )
    assert found.tolist() == expected.tolist()
    assert (found < 0).any()


@pytest.mark.parametrize("n", SIZES)
def test_overlaps(rng, recipes, n):
    sides = [(start := integers(rng, 500, m), start + integers(rng, 12, m, 1)) for m in (n, 150)]
    (a_start, a_end), (b_start, b_end) = sides
    a, b, count = jax.jit(lambda *x: recipes["overlaps"](*x, 2000))(a_start, a_end, b_start, b_end)
    live = int(count)
    pairs = list(zip(a[:live].tolist(), b[:live].tolist(), strict=True))
    meets = (a_start[:, None] < b_end) & (b_start < a_end[:, None])
    assert sorted(pairs) == list(zip(*(x.tolist() for x in np.nonzero(meets)), strict=True))
    assert set(a[live:].tolist()) <= {-1}


@pytest.mark.parametrize("n", SIZES)
def test_first_of_each(rng, recipes, n):
    frame = pd.DataFrame({"x": integers(rng, 9, n), "y": integers(rng, 9, n)})
    found, count = jax.jit(lambda x, y: recipes["first_of_each"]((x, y), 100))(*frame.to_numpy().T)
    assert found[: int(count)].tolist() == frame.drop_duplicates().index.tolist()


@pytest.mark.parametrize("n", SIZES)
def test_csr(rng, recipes, n):
    rows, columns, values = integers(rng, 20, n), integers(rng, 10, n), integers(rng, 99, n)
    offsets, column, value = jax.jit(lambda *x: recipes["csr"](*x, 25, 210))(rows, columns, values)
    dense, found = np.zeros((25, 10), int), np.zeros((25, 10), int)
    np.add.at(dense, (rows, columns), values)
    for i, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        assert column[begin:end].tolist() == sorted({*columns[rows == i].tolist()})
        found[i, column[begin:end]] = value[begin:end]
    np.testing.assert_array_equal(found, dense)


def test_csr_of_narrow_rows(recipes):
    for dtype, height in (("int8", 128), ("uint8", 256), ("int16", 2**15)):
        rows = np.array([0, height - 1, height - 1, 3], dtype)
        columns, values = np.array([1, 0, 2, 5], dtype), np.array([1, 2, 3, 4], np.float32)
        offsets, column, value = recipes["csr"](rows, columns, values, height, 4)
        assert np.flatnonzero(np.diff(offsets)).tolist() == [0, 3, height - 1]
        assert (int(offsets[-1]), column.tolist(), value.tolist()) == (4, [1, 5, 0, 2], [1, 4, 2, 3])


@pytest.mark.parametrize("n", SIZES)
def test_run_lengths(rng, recipes, n):
    x = integers(rng, 3, n)
    values, lengths, count = jax.jit(lambda x: recipes["run_lengths"](x, 210))(x)
    runs = [(value, len([*run])) for value, run in itertools.groupby(x.tolist())]
    assert list(zip(values.tolist(), lengths.tolist(), strict=True))[: int(count)] == runs
    assert jax.jit(lambda *runs: recipes["decoded"](*runs, n))(values, lengths, count).tolist() == x.tolist()


def test_keys_of_64_bits(rng, recipes):
    whole = rng.integers(-(2**63), 2**63, 300)
    whole[::3] = rng.integers(-5, 5, 100)
    real = np.concatenate([whole * 1e-30, [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 5e-324, -5e-324]])
    with jax.enable_x64(False):
        for x, columns in ((whole, "columns_of_int64"), (real, "columns_of_float64")):
            assert mgpu.argsort(recipes[columns](x)).tolist() == np.argsort(x, kind="stable").tolist()


@pytest.mark.long
def test_sums_of_64_bits(rng, recipes):
    keys, x = integers(rng, 9, 300), rng.integers(-(2**50), 2**50, 300)
    with jax.enable_x64(False):
        _, (high, low), _ = mgpu.group_by(keys, recipes["columns_of_int64"](x), recipes["add_int64"], size=9)
    found = (np.asarray(high, np.int64) << 32) + np.asarray(low)
    assert found.tolist() == [int(x[keys == key].sum()) for key in np.unique(keys)]


def graph(rng, nodes, edges):
    """Heads of the edges of each node, and these."""
    sources = np.sort(integers(rng, nodes, edges))
    return np.searchsorted(sources, np.arange(nodes)).astype(np.int32), sources


@pytest.mark.parametrize("n", SIZES)
def test_sample_edges(rng, recipes, n):
    heads, _ = graph(rng, 40, n)
    weights = integers(rng, 4, n).astype(np.float32)
    random, nodes = (integers(rng, 1024, 300) / 1024).astype(np.float32), integers(rng, 40, 300)
    found = jax.jit(recipes["sample_edges"])(random, nodes, heads, weights)
    bounds = np.append(heads, n)
    for u, node, edge in zip(random, nodes, found, strict=True):
        begin, row = bounds[node], weights[bounds[node] : bounds[node + 1]]
        expected = begin + np.searchsorted(np.cumsum(row), u * row.sum(), "right") if row.sum() else -1
        assert edge == expected


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8"])
def test_no_edge_of_weight_0_is_sampled(rng, recipes, dtype):
    """Wherever the running sums round, and for the largest random number below 1."""
    n, heads = 1000, np.array([0, 600], np.int32)
    weights = rng.random(n) if dtype.startswith("float") else rng.integers(1, 100, n)
    weights = np.where(rng.random(n) < 0.7, 0, weights).astype(dtype)
    sample = jax.jit(lambda u, nodes: recipes["sample_edges"](u, nodes, heads, weights))
    exact = weights.astype(float)
    for node, (begin, end) in enumerate(((0, 600), (600, n))):
        ends = np.cumsum(exact[begin:end]) / exact[begin:end].sum()
        near = (ends.astype(np.float32)[:, None] * np.float32([1 - 1e-7, 1, 1 + 1e-7])).ravel()
        random = np.concatenate([rng.random(4000).astype(np.float32), near, np.nextafter(np.float32([0, 1]), 0)])
        random = np.clip(random, 0, np.nextafter(np.float32(1), np.float32(0)))
        found = np.asarray(sample(random, np.full(random.shape, node, np.int32)))
        assert ((found >= begin) & (found < end)).all() and (weights[found] > 0).all()
        expected = begin + np.searchsorted(ends, random, "right")
        assert (found[:4000] == expected[:4000]).mean() > 0.99


@pytest.mark.parametrize("n", SIZES)
def test_edges_between(rng, recipes, n):
    heads, sources = graph(rng, 20, n)
    neighbours = integers(rng, 20, n)
    neighbours = neighbours[np.lexsort((neighbours, sources))]
    first = {}
    for i, edge in enumerate(zip(sources.tolist(), neighbours.tolist(), strict=True)):
        first.setdefault(edge, i)
    pairs = list(itertools.product(range(20), repeat=2))
    found = jax.jit(recipes["edges_between"])(*np.array(pairs, np.int32).T, heads, neighbours)
    assert found.tolist() == [first.get(pair, -1) for pair in pairs]
