"""As-of joins, and `group_search`, which they may use.

`group_search` finds a row of b for each row of a: the last row of the same group before a cut (a position in b), or the
first one from the cut on.
"""

from __future__ import annotations

import fractions
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.ops import tables
from tests import data
from tests.jaxprs import kernel_calls


def asof(a, b, a_by, b_by, direction, tolerance):
    """Returns the row of b for each row of a, by a loop."""
    found = []
    for time, by in zip(a, a_by, strict=True):
        rows = [j for j in range(len(b)) if b_by[j] == by]
        before = [j for j in rows if b[j] <= time and (tolerance is None or time - b[j] <= tolerance)]
        after = [j for j in rows if b[j] >= time and (tolerance is None or b[j] - time <= tolerance)]
        last = max(before, key=lambda j: (b[j], j), default=-1)
        first = min(after, key=lambda j: (b[j], j), default=-1)
        if direction == "nearest" and before and after:
            found.append(last if time - b[last] <= b[first] - time else first)
        else:
            found.append({"backward": last, "forward": first, "nearest": max(last, first)}[direction])
    return found


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32"])
def test_asof_join(rng, dtype, direction):
    for groups, tolerance, is_sorted in itertools.product((False, True), (None, 3), (True, False)):
        a, b = (rng.integers(0, 100, n).astype(dtype) for n in (40, 30))
        if is_sorted:
            a, b = np.sort(a), np.sort(b)
        by = [rng.integers(0, 4, n) if groups else np.zeros(n, int) for n in (40, 30)]
        columns = [(x.astype(np.int8), np.float32(x)) for x in by] if groups else [None, None]
        options = {"direction": direction, "tolerance": tolerance, "assume_sorted": is_sorted}
        got = mgpu.asof_join(a, b, by_a=columns[0], by_b=columns[1], **options, b_count=25)
        expected = asof(a.astype(float), b[:25].astype(float), by[0], by[1][:25], direction, tolerance)
        assert got.tolist() == expected


def test_asof_join_over_an_explicit_axis(rng):
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Explicit,), devices=devices)
    a, b = (np.sort(rng.integers(0, 50, n * len(devices))).astype(np.int32) for n in (5, 3))
    with jax.set_mesh(mesh):
        placed = [jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))) for x in (a, b)]
        for direction in ("backward", "nearest"):
            expected = np.asarray(mgpu.asof_join(a, b, direction=direction))
            np.testing.assert_array_equal(mgpu.asof_join(*placed, direction=direction), expected)


def test_asof_join_as_pandas(rng):
    quotes = pd.DataFrame({"time": np.sort(rng.choice(5000, 300, replace=False)), "name": rng.integers(0, 5, 300)})
    trades = pd.DataFrame({"time": np.sort(rng.choice(5000, 200, replace=False)), "name": rng.integers(0, 5, 200)})
    quotes["row"] = np.arange(300)
    trades.loc[::3, "time"] = np.sort(rng.choice(quotes.time, len(trades[::3])))
    trades = trades.sort_values("time", kind="stable")
    for direction, exact in itertools.product(("backward", "forward", "nearest"), (True, False)):
        options = {"direction": direction, "allow_exact_matches": exact, "tolerance": 40}
        joined = pd.merge_asof(trades, quotes, on="time", by="name", **options)
        times = trades.time.to_numpy(np.int32), quotes.time.to_numpy(np.int32)
        names = {"by_a": trades.name.to_numpy(np.int32), "by_b": quotes.name.to_numpy(np.int32)}
        np.testing.assert_array_equal(mgpu.asof_join(*times, **names, **options), joined.row.fillna(-1).to_numpy())
        names = {name: x * 100_000 for name, x in names.items()}
        np.testing.assert_array_equal(mgpu.asof_join(*times, **names, **options), joined.row.fillna(-1).to_numpy())


def test_distances_that_need_every_bit():
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    a, b = np.array([-2, 0, 1], np.int32), np.array([low, high], np.int32)
    assert mgpu.asof_join(a, b, direction="nearest").tolist() == [0, 1, 1]
    infinite = np.array([-np.inf, 0, np.inf, np.nan], np.float32)
    assert mgpu.asof_join(infinite, infinite, tolerance=1.0).tolist() == [0, 1, 2, -1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_distances_that_round_to_the_same_number(dtype, rng):
    """Near 0, a row of b before and one after are nearly as far; which one is nearer needs the exact differences."""
    positive = rng.uniform(1, 2, 9).astype(jnp.dtype(dtype))
    a = (rng.choice([-1.0, 0.0, 1.0], 60) * 2.0 ** -rng.integers(9, 25, 60)).astype(jnp.dtype(dtype))
    for row in positive:
        b = np.array([-row, row])
        got = mgpu.asof_join(a, b, direction="nearest", assume_sorted=False)
        times, exact = ([fractions.Fraction(float(time)) for time in side] for side in (a, b))
        assert got.tolist() == [int(time - exact[0] > exact[1] - time) for time in times]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_distances_that_overflow(dtype, x64):
    dtype = jnp.dtype(dtype)
    most = float(jnp.finfo(dtype).max)
    b = np.array([-np.inf, -most, most, np.inf]).astype(dtype)
    cases = [  # a time of a, the places in `b` of two times, and which of these two is the nearest
        (-0.3 * most, [0, 2], 1),
        (0.3 * most, [1, 3], 0),
        (0.3 * most, [0, 3], 0),
        (0.3 * most, [1, 2], 1),
        (np.inf, [2, 3], 1),
        (-np.inf, [0, 2], 0),
    ]
    for time, rows, nearest in cases:
        a = np.array([time]).astype(dtype)
        for by in (
            {},
            *(
                {"by_a": np.zeros(1, dtype_of_key), "by_b": np.zeros(2, dtype_of_key)}
                for dtype_of_key in ("int32", "float32")
            ),
        ):
            assert mgpu.asof_join(a, b[rows], direction="nearest", **by).tolist() == [nearest], (time, rows)


# ---- As-of joins whose groups fit a table of one entry per group -----------------------------------------------------

MAX_GROUPS = tables.MAX_GROUPS


def rows_beside_cuts(cuts, a_groups, b_groups, forward):
    """Returns, for each row of a, the last row of b in its group before its cut, or the first one from the cut on."""
    found, rows = np.full(len(cuts), -1), {}
    if forward:
        j = len(b_groups)
        for i in reversed(range(len(cuts))):
            while j > cuts[i]:
                j -= 1
                rows[b_groups[j]] = j
            found[i] = rows.get(a_groups[i], -1)
    else:
        j = 0
        for i in range(len(cuts)):
            while j < cuts[i]:
                rows[b_groups[j]] = j
                j += 1
            found[i] = rows.get(a_groups[i], -1)
    return found


def cut_rows(rng, pattern, n, m):
    """Draws ascending cuts of n rows, and groups of n and m rows, in hard patterns."""
    if pattern == "all cuts at one end":
        cuts = np.repeat([0, m], [n // 2, n - n // 2])
    else:
        cuts = np.sort(rng.integers(0, m + 1, n))
    if pattern == "one group":
        return cuts, np.zeros(n, int), np.zeros(m, int)
    if pattern == "after its rows":
        a_tiles, b_tiles = (cuts + np.arange(n)) // 1024, (np.arange(m) + np.searchsorted(cuts, np.arange(m))) // 1024
        is_last = np.append(b_tiles[1:] != b_tiles[:-1], True)[:m]
        return cuts, a_tiles, np.where(is_last, b_tiles, 200 + np.arange(m) % 3)
    if pattern == "in turn":
        return cuts, np.arange(n) % 40, np.arange(m) % 40
    number = {"many": MAX_GROUPS, "all cuts at one end": 30}.get(pattern, 3)
    return cuts, rng.integers(0, number, n), rng.integers(0, number, m)


PATTERNS = ["few", "many", "one group", "in turn", "after its rows", "all cuts at one end"]


def search_groups(forward):
    return jax.jit(lambda *operands: tables._group_search.run(operands, forward=forward)[0])


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("forward", [False, True], ids=["backward", "forward"])
def test_rows_of_a_group_beside_a_cut(rng, pattern, forward):
    tile, *_, part = data.tile_sizes("group_search")
    program = search_groups(forward)
    for n, m, slots in (
        (3000, 2500, (0, 1, 2, *(k * tile + d for k in (1, 2, 4) for d in (-1, 0, 1)), 5500)),
        (70_000, 61_000, (part - 1, part, part + 1, 131_000)),
    ):
        for live in slots:
            a_live = int(np.clip(live * n // (n + m), live - m, n))
            b_live = live - a_live
            cuts, a_groups, b_groups = cut_rows(rng, pattern, a_live, b_live)
            operands = [np.full(n, 77, np.int32), *(rng.integers(0, 9, k).astype(np.int32) for k in (n, m))]
            for whole, x in zip(operands, (cuts, a_groups - 5, b_groups - 5), strict=True):
                whole[: len(x)] = x
            given = (*operands, *(np.array([x], np.int32) for x in (-5, MAX_GROUPS, a_live, b_live)))
            got = np.asarray(program(*given))
            expected = rows_beside_cuts(cuts, a_groups, b_groups, forward)
            np.testing.assert_array_equal(got[:a_live], expected, f"{a_live} and {b_live}")
            assert (got[a_live:] == -1).all()


@pytest.mark.parametrize("forward", [False, True], ids=["backward", "forward"])
def test_plain_search_by_group(rng, forward):
    plainly = tables._group_search.fallback
    cuts = np.sort(rng.integers(0, 31, 50)).astype(np.int32)
    a_groups, b_groups = (rng.integers(-9, 9, n).astype(np.int32) for n in (50, 40))
    counts = [np.array([x], np.int32) for x in (-3, 8, 45, 30)]
    inside = np.where((b_groups >= -3) & (b_groups < 5), b_groups, 99)[:30]
    expected = np.append(rows_beside_cuts(cuts[:45], a_groups[:45], inside, forward), [-1] * 5)
    operands = [*map(jnp.asarray, (cuts, a_groups, b_groups, *counts))]
    for got in (tables._group_search.run(operands, forward=forward), plainly(*operands, forward=forward)):
        assert got[0].tolist() == expected.tolist()
    nothing = np.zeros(0, np.int32)
    for n, m in ((0, 40), (50, 0)):
        operands = [*map(jnp.asarray, (cuts[:n] * (m > 0), a_groups[:n], b_groups[:m], *counts[:2], nothing, nothing))]
        assert tables._group_search.run(operands, forward=forward)[0].tolist() == [-1] * (n if m == 0 else 0)
        assert plainly(*operands, forward=forward)[0].tolist() == [-1] * (n if m == 0 else 0)


@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
def test_searches_by_group_in_batches(x64, rng, wide):
    index = np.int64 if wide else np.int32
    for rows, n, m in ((2, 9_000, 5_000), (500, 20, 15)):
        cuts = np.sort(rng.integers(0, m + 1, (rows, n)), axis=1).astype(index)
        groups = [rng.integers(0, 9, (rows, k)).astype(np.int32) for k in (n, m)]
        firsts, numbers = rng.integers(0, 3, (rows, 1)).astype(np.int32), rng.integers(5, 9, (rows, 1)).astype(np.int32)
        counts = [rng.integers(k // 2, k + 1, (rows, 1)).astype(np.int32) for k in (n, m)]
        batch = [cuts, *groups, firsts, numbers, *counts]
        for mixture in range(1, 2 ** len(batch), 9 if rows == 2 and not wide else 37):
            has_batch = [bool(mixture >> i & 1) for i in range(len(batch))]
            given = [x if own else x[0] for x, own in zip(batch, has_batch, strict=True)]
            mapped = jax.vmap(search_groups(mixture % 2), in_axes=[0 if own else None for own in has_batch])
            got = np.asarray(mapped(*given))
            assert got.dtype == index
            for row in {0, 1, rows - 1}:
                own = [x[row] if is_own else x for x, is_own in zip(given, has_batch, strict=True)]
                first, number, a_live, b_live = (int(x[0]) for x in own[3:])
                inside = [np.where((g >= first) & (g < first + number), g, -k) for k, g in enumerate(own[1:3], 1)]
                cut_at = np.minimum(own[0][:a_live], b_live)
                expected = rows_beside_cuts(cut_at, inside[0][:a_live], inside[1][:b_live], mixture % 2)
                np.testing.assert_array_equal(got[row], np.append(expected, [-1] * (n - a_live)))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
def test_asof_join_by_groups_of_each_type(x64, rng, dtype, direction):
    limits = np.iinfo(dtype)
    spans = [span for span in (4, MAX_GROUPS, MAX_GROUPS + 1, 2**62) if span <= int(limits.max) - int(limits.min)]
    program = jax.jit(
        lambda a, b, by_a, by_b, tolerance, a_count, b_count: mgpu.asof_join(
            a, b, by_a=by_a, by_b=by_b, direction=direction, tolerance=tolerance, a_count=a_count, b_count=b_count
        )
    )
    for span, lowest in itertools.product((*spans, None), (limits.min, 0, None)):
        ends = (limits.min, limits.max) if span is None else (0, span - 1)
        first = 0 if span is None else int(limits.max) - (span - 1) if lowest is None else int(lowest)
        values = [first + x for x in (*ends, ends[1] - 1, ends[0] + 1)]
        by_a, by_b = (np.array([values[i] for i in rng.integers(0, 4, n)], dtype) for n in (60, 50))
        by_b[40:] = rng.choice(np.array([limits.min, limits.max], dtype), 10)
        by_b[:2] = values[:2]
        a, b = (np.sort(rng.integers(0, 40, n)).astype(np.float32) for n in (60, 50))
        a[50:55], b[36:40] = np.nan, np.nan
        b[40:] = 3
        for tolerance in (2, 100):
            got = program(a, b, by_a, by_b, np.float32(tolerance), np.int32(55), np.int32(40))
            live = asof(a[:50], b[:36], by_a[:50], by_b[:36], direction, tolerance)
            assert got.tolist() == live + [-1] * 10, (span, first)


def test_rows_stay_in_place_where_groups_fit_a_table(rng):
    times = np.arange(20, dtype=np.int32)

    def primitives(dtype, **options):
        by = np.zeros(20, dtype)
        program = functools.partial(mgpu.asof_join, by_a=by, by_b=by, **options)
        return {equation.primitive.name for equation in kernel_calls(program, times, times)}

    names = {"mgpu_group_search", "mgpu_sorted_search"}
    assert names <= primitives(np.int8) and "mgpu_segmented_sort" not in primitives(np.int8)
    assert {*names, "mgpu_segmented_sort"} <= primitives(np.int32)
    assert "mgpu_group_search" not in primitives(np.float32)
    assert "mgpu_group_search" not in primitives(np.int32, assume_sorted=False)


@pytest.mark.long
def test_asof_joins_with_groups_in_batches(rng):
    a, b = (np.sort(rng.integers(0, 30, (3, n)), axis=1).astype(np.int32) for n in (40, 25))
    by_a, by_b = (rng.integers(0, 4, (3, n)).astype(np.int8) for n in (40, 25))
    given = (a, b, by_a, by_b)
    for mixture in range(1, 16):
        axes = [0 if mixture >> i & 1 else None for i in range(4)]
        call = jax.vmap(lambda a, b, x, y: mgpu.asof_join(a, b, by_a=x, by_b=y, direction="nearest"), in_axes=axes)
        rows = [x if axis == 0 else np.stack([x[0]] * 3) for x, axis in zip(given, axes, strict=True)]
        got = call(*(x if axis == 0 else x[0] for x, axis in zip(given, axes, strict=True)))
        expected = [asof(*(x.astype(int) for x in row), "nearest", None) for row in zip(*rows, strict=True)]
        np.testing.assert_array_equal(got, expected)
    wide = jax.vmap(lambda a, b, x, y: mgpu.asof_join(a, b, by_a=x, by_b=y, tolerance=3))
    whole = [x.astype(np.int32) for x in given]
    assert "cond" in str(jax.make_jaxpr(jax.vmap(wide))(*(x[None] for x in whole)))  # the whole batch takes one method
    spread = np.array([1, 1000, MAX_GROUPS])[:, None]
    got = wide(a, b, by_a * spread.astype(np.int32), by_b * spread.astype(np.int32))
    expected = [asof(*(x.astype(int) for x in row), "backward", 3) for row in zip(*given, strict=True)]
    np.testing.assert_array_equal(got, expected)
