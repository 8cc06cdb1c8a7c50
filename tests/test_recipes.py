"""The functions of docs/recipes.md, compared with pandas and plain Python."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jax_mgpu as mgpu
from tests.test_documentation import FENCE, PARSER, ROOT

SIZES = (200, 1)


@pytest.fixture(scope="module")
def recipes():
    """Returns the names that the page defines."""
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
    assert moving_sums(np.full(300, 100, np.int8), heads, 7).max() == 700  # sums have the type of jnp.sum


TIMES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32")


def times_of(rng, dtype, n, steps=300):
    """Draws times: integers over a type's range, many near its ends, or multiples of 1/4."""
    if dtype.startswith("float"):
        return (rng.integers(-steps, steps, n) / 4).astype(dtype), 2.5, float
    limits = np.iinfo(dtype)
    times = rng.integers(limits.min, limits.max, n, endpoint=True)
    centres = [limits.min + 20, limits.max - 20] @ np.eye(2, dtype=np.int64)[rng.integers(0, 2, n)].T
    times[::2] = np.clip(centres + rng.integers(-20, 21, n), limits.min, limits.max)[::2]
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
    """Draws sorted edges; returns the head of each node's edges, and each edge's node."""
    sources = np.sort(integers(rng, nodes, edges))
    return np.searchsorted(sources, np.arange(nodes)).astype(np.int32), sources


@pytest.mark.parametrize("n", SIZES)
def test_edges_between(rng, recipes, n):
    heads, sources = graph(rng, 20, n)
    neighbours, segments = integers(rng, 20, n), mgpu.Segments.from_heads(heads, count=n)
    neighbours = neighbours[np.lexsort((neighbours, sources))]
    first = {}
    for i, edge in enumerate(zip(sources.tolist(), neighbours.tolist(), strict=True)):
        first.setdefault(edge, i)
    pairs = list(itertools.product(range(20), repeat=2))
    found = jax.jit(recipes["edges_between"])(*np.array(pairs, np.int32).T, segments, neighbours)
    assert found.tolist() == [first.get(pair, -1) for pair in pairs]


# ---- Language models -------------------------------------------------------------------------------------------------


def test_beam_search(rng, recipes):
    """With as many beams as prefixes, the search finds all sequences in order of probability."""
    tokens, length = 3, 4
    table = np.log(rng.dirichlet(np.ones(tokens), (length, tokens))).astype(np.float32)
    search = jax.jit(lambda: recipes["beam_search"](lambda x, i: jnp.asarray(table)[i, x[:, i - 1]], 1, 27, length))
    found, scores = search()
    every = {
        (1, *rest): sum(table[i + 1, before, token] for i, (before, token) in enumerate(itertools.pairwise((1, *rest))))
        for rest in itertools.product(range(tokens), repeat=length - 1)
    }
    best = sorted(every, key=every.get, reverse=True)
    assert [tuple(row) for row in found.tolist()] == best
    np.testing.assert_allclose(scores, [every[row] for row in best], rtol=1e-5)


def test_packing(rng, recipes):
    lengths = integers(rng, 8, 30, 1)
    tokens = integers(rng, 99, lengths.sum(), 1)
    rows, width = 30, 8
    expected = np.zeros((3, rows, width), int)
    row, at, first = 0, 0, 0
    for number, n in enumerate(lengths, 1):
        if at + n > width:
            row, at = row + 1, 0
        expected[:, row, at : at + n] = tokens[first : first + n], np.full(n, number), np.arange(n)
        at, first = at + n, first + n
    got = jax.jit(lambda tokens, lengths: recipes["pack"](tokens, lengths, rows, width))(tokens, lengths)
    np.testing.assert_array_equal(np.array(got), expected)
    mask = np.asarray(recipes["attention_mask"](got[1]))
    for i, j in itertools.product(range(width), repeat=2):
        seen = (expected[1][:, i] == expected[1][:, j]) & (expected[1][:, i] > 0) & (j <= i)
        np.testing.assert_array_equal(mask[:, i, j], seen)


def test_embedding_bags(rng, recipes):
    table, lengths = rng.normal(size=(20, 3)).astype(np.float32), integers(rng, 6, 40)
    words, weights = integers(rng, 20, lengths.sum(), -1), rng.random(lengths.sum()).astype(np.float32) + 0.1
    bags = np.split(np.arange(words.size), np.cumsum(lengths)[:-1])
    for given in (None, weights):
        shares = np.where(words >= 0, 1 if given is None else given, 0)
        expected = [(shares[bag, None] * table[words[bag]]).sum(0) / max(shares[bag].sum(), 1e-9) for bag in bags]
        found = jax.jit(recipes["embedding_bags"])(table, words, lengths, given)
        np.testing.assert_allclose(np.nan_to_num(found), np.array(expected), rtol=1e-4, atol=1e-6)


# ---- Samples ---------------------------------------------------------------------------------------------------------


def test_replay(rng, recipes):
    priorities, count, batch = rng.random(50).astype(np.float32), 40, 20_000
    priorities[::7] = 0
    rows, weights = jax.jit(lambda key, p: recipes["replay"](key, p, count, batch))(jax.random.key(1), priorities)
    shares = np.where(np.arange(50) < count, priorities, 0) ** 0.6
    shares /= shares.sum()
    found = np.bincount(rows, minlength=50)
    assert (np.abs(found - batch * shares) <= 2).all()  # a row may have a part of a stratum at each end
    expected = (count * shares[rows]) ** -0.4
    np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-4)


def test_resample(rng, recipes):
    weights = rng.random(64).astype(np.float32) ** 4
    weights[::5] = 0
    resample = jax.jit(recipes["resample"])
    mean = np.zeros(64)
    for seed in range(50):
        found = np.bincount(resample(jax.random.key(seed), np.arange(64), jnp.log(weights)), minlength=64)
        exact = 64 * weights / weights.sum()
        assert (found >= np.floor(exact - 1e-3)).all()
        assert (found <= np.ceil(exact + 1e-3)).all()
        mean += found / 50
    assert np.abs(mean - exact).max() < 0.35


# ---- Boxes, graphs and points ----------------------------------------------------------------------------------------


def test_keep_boxes(rng, recipes):
    low = rng.random((60, 2)).astype(np.float32)
    high, scores = low + 0.1 + 0.3 * rng.random((60, 2)), rng.random(60)
    boxes = np.concatenate([low, high], axis=1).astype(np.float32)
    kept = []
    for i in np.argsort(-scores):
        shared = [
            np.prod(np.maximum(np.minimum(boxes[i, 2:], boxes[j, 2:]) - np.maximum(boxes[i, :2], boxes[j, :2]), 0))
            for j in kept
        ]
        areas = [np.prod(boxes[k, 2:] - boxes[k, :2]) for k in (i, *kept)]
        if all(s <= 0.3 * (areas[0] + area - s) for s, area in zip(shared, areas[1:], strict=True)):
            kept.append(i)
    found = jax.jit(lambda *x: recipes["keep_boxes"](*x, 0.3))(boxes, scores.astype(np.float32))
    assert np.flatnonzero(found).tolist() == sorted(kept)
    assert 0 < len(kept) < 60


def test_components(rng, recipes):
    run = jax.jit(lambda s, t: recipes["components"](s, t, 100))
    for sources, targets in (
        integers(rng, 100, (2, 60)),
        (np.arange(60), np.arange(60) + 1),
        integers(rng, 3, (2, 60)),
    ):
        labels = np.arange(100)
        for _ in range(100):
            for s, t in zip(sources, targets, strict=True):
                labels[labels == max(labels[s], labels[t])] = min(labels[s], labels[t])
        assert run(sources.astype(np.int32), targets.astype(np.int32)).tolist() == labels.tolist()


def test_points_near_each_other(rng, recipes):
    points, queries, radius = rng.random((150, 2)).astype(np.float32), rng.random((40, 2)).astype(np.float32), 0.12
    squares = ((queries[:, None] - points) ** 2).sum(2)
    (i, j), room = jax.jit(lambda p, q: recipes["pairs_near"](p, q, radius, 3000))(points, queries)
    live = int((i >= 0).sum())
    assert room <= 3000
    pairs = sorted(zip(i[:live].tolist(), j[:live].tolist(), strict=True))
    assert pairs == list(map(tuple, np.argwhere(squares < radius**2).tolist()))
    found = jax.jit(lambda p, q: recipes["nearest"](p, q, 4, radius, 3000))(points, queries)
    for row, neighbours in zip(squares, found, strict=True):
        best = [k for k in np.argsort(row)[:4] if row[k] < radius**2]
        assert neighbours.tolist() == [*best, -1, -1, -1, -1][:4]


def test_pivot(rng, recipes):
    frame = pd.DataFrame({"row": integers(rng, 9, 200), "column": integers(rng, 7, 200, -1), "x": rng.random(200)})
    for op in ("sum", "mean", "max"):
        table = frame[frame.column.between(0, 4)].pivot_table("x", "row", "column", op)
        found = jax.jit(lambda *x, op=op: recipes["pivot"](*x, (9, 5), op))(*(frame[name].to_numpy() for name in frame))
        expected = table.reindex(index=range(9), columns=range(5)).to_numpy()
        where = ~np.isnan(expected)
        np.testing.assert_allclose(np.asarray(found)[where], expected[where], rtol=1e-6)
        assert where.sum() > 30
