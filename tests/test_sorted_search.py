"""Searches of sorted arrays and segments against tests/oracle.py."""

from __future__ import annotations

import functools
import itertools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import jax_mgpu as mgpu
from jax_mgpu._src.ops.sorted_search import CPU_LONG
from tests import data, oracle
from tests.families.searches import found_in_segments, reordered
from tests.segmented_sorts import random_heads

pytestmark = pytest.mark.usefixtures("x64")

MANY = (1 << 17) + 3  # enough needles for CUDA to make a search tree

TILES = data.tile_sizes("sorted_search", "sorted_match")
SIDES = ("left", "right")


def same(got, expected, dtype=np.int32):
    oracle.same_bits(got, np.asarray(expected).astype(dtype))


def expected_match(a, b, side, a_count=None, b_count=None):
    """Returns the SortedMatch made of searches of each side in the other."""
    other = {"left": "right", "right": "left"}[side]
    a_index = oracle.sorted_search(a, b, side, a_count, b_count)
    b_index = oracle.sorted_search(b, a, other, b_count, a_count)
    a_match = np.less(*(oracle.sorted_search(a, b, side, a_count, b_count) for side in SIDES))
    b_match = np.less(*(oracle.sorted_search(b, a, side, b_count, a_count) for side in SIDES))
    return mgpu.SortedMatch(a_index, b_index, a_match, b_match, a_match.sum(), b_match.sum())


def same_match(got, expected):
    for name, part in got._asdict().items():
        same(part, getattr(expected, name), np.bool_ if name in ("a_match", "b_match") else np.int32)


@functools.cache
def jitted(function, *side):
    return jax.jit(lambda a, b, m, n: function(a, b, *side, **dict(zip(COUNTS[function], (m, n), strict=True))))


COUNTS = {
    mgpu.sorted_search: ("needles_count", "haystack_count"),
    mgpu.sorted_match: ("a_count", "b_count"),
    mgpu.sorted_equal_count: ("a_count", "b_count"),
}


def check(a, b, a_count, b_count):
    """Checks searches, matches and counts of a pair."""
    counts = np.int32(a_count), np.int32(b_count)
    found = {side: oracle.sorted_search(a, b, side, *counts) for side in SIDES}
    for side in SIDES:
        same(jitted(mgpu.sorted_search, side)(a, b, *counts), found[side])
        same_match(jitted(mgpu.sorted_match, side)(a, b, *counts), expected_match(a, b, side, *counts))
    same(jitted(mgpu.sorted_equal_count)(a, b, *counts), found["right"] - found["left"])


@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_every_key_type(rng, dtype):
    for n_a, n_b in ((5000, 3001), (3500, 0), (0, 3001), (5000, 1)):
        check(data.sorted_keys(rng, dtype, 5000, count=n_a), data.sorted_keys(rng, dtype, 3001, count=n_b), n_a, n_b)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32"])
def test_as_jnp_searchsorted(rng, dtype):
    kind = jnp.dtype(dtype)
    a, b = (rng.integers(-50, 50, n).astype(kind) for n in (400, 300))
    if dtype != "int32":
        for x in (a, b):
            x[:50], x[50:70] = rng.choice(np.array([np.nan, -np.nan, np.inf, -np.inf], kind), 50), -0.0
    a, b = a[oracle.sort_indices(a)], b[oracle.sort_indices(b)]
    for side in SIDES:
        same(mgpu.sorted_search(a, b, side), jnp.searchsorted(b, a, side))


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_sizes_given_by_counts(rng, dtype):
    for n_a, n_b in itertools.product((0, 1, 23, 123, 3234), (0, 1, 52, 556, 5676)):
        check(data.sorted_keys(rng, dtype, 3234, count=n_a), data.sorted_keys(rng, dtype, 5676, count=n_b), n_a, n_b)


@pytest.mark.parametrize("sizes", [(1, 70000), (1000, 70000), (70000, 1), (0, 0), (0, 5), (5, 0), (1, 1)], ids=str)
def test_sizes_given_by_shapes(rng, sizes):
    for dtype in ("uint16", "float64"):
        a, b = (data.sorted_keys(rng, dtype, n) for n in sizes)
        check(a, b, *sizes)
        check(a, b, sizes[0] * 3 // 4, sizes[1] // 2)
        for side in SIDES:
            same(mgpu.sorted_search(a, b, side), oracle.sorted_search(a, b, side))
            same_match(mgpu.sorted_match(a, b, side), expected_match(a, b, side))


LONG = 2 * max(TILES) + 9


@pytest.mark.parametrize("dtype", ["int16", "uint32"])
def test_a_tile_and_one_less_and_one_more(rng, dtype):
    for tile, d in itertools.product(TILES, (-1, 0, 1)):
        for n_a, n_b in ((tile + d, 1), (1, tile + d), (tile, tile + d)):
            check(
                data.sorted_keys(rng, dtype, LONG, count=n_a), data.sorted_keys(rng, dtype, LONG, count=n_b), n_a, n_b
            )


@pytest.mark.parametrize("keys", [1, 2, 13, 2**31])
def test_keys_from_a_range(rng, keys):
    a, b = (np.sort(rng.integers(0, keys, LONG)).astype(np.uint32) for _ in range(2))
    check(a, b, LONG, LONG)
    check(a, b, LONG, 1)
    check(a, b, 1, LONG)
    check(a, np.arange(LONG, dtype=np.uint32), LONG, LONG)
    check(np.arange(LONG, dtype=np.uint32), a, LONG, LONG)
    check(a, b + np.uint32(keys), LONG, LONG)
    check(a + np.uint32(keys), b, LONG, LONG)


@pytest.mark.parametrize("period", [4, *TILES])
def test_equal_keys_at_the_edges_of_tiles(period):
    ramp = np.arange(LONG, dtype=np.uint32)
    for shift in (0, 1, 2):
        a, b = ramp // period, (ramp + np.uint32(shift)) // period
        check(a, b, LONG, LONG)
        check(2 * a, 2 * b + 1, LONG, LONG)


@hypothesis.given(
    a=st.lists(st.integers(-3, 3), max_size=12),
    b=st.lists(st.integers(-3, 3), max_size=12),
    a_count=st.integers(-2, 14),
    b_count=st.integers(-2, 14),
)
@hypothesis.settings(max_examples=100, deadline=None)
def test_any_items(a, b, a_count, b_count):
    padded = [np.array(sorted(x) + [9] * (12 - len(x)), np.int8) for x in (a, b)]
    check(*padded, a_count, b_count)


MIXES = [mix for mix in itertools.product([True, False], repeat=4) if any(mix)]


@pytest.mark.parametrize(
    "mapped", MIXES, ids=lambda mix: "".join(c if on else "-" for c, on in zip("abmn", mix, strict=True))
)
@pytest.mark.parametrize("sizes", [(70, 33), (3, 300)], ids=str)
def test_vmap_over_every_mix_of_operands(rng, mapped, sizes):
    batch = 4
    keys = [np.stack([data.sorted_keys(rng, "float32", n) for _ in range(batch)]) for n in sizes]
    everything = (*keys, *(rng.integers(0, n + 1, batch).astype(np.int32) for n in sizes))
    given = [x if on else x[0] for x, on in zip(everything, mapped, strict=True)]
    axes = [0 if on else None for on in mapped]
    for side in SIDES:
        found, matches = (
            jax.vmap(lambda a, b, m, n: function(a, b, side, **dict(zip(counts, (m, n), strict=True))), axes)(*given)  # noqa: B023
            for function, counts in list(COUNTS.items())[:2]
        )
        for row in range(batch):
            a, b, m, n = (x[row if on else 0] for x, on in zip(everything, mapped, strict=True))
            same(found[row], oracle.sorted_search(a, b, side, m, n))
            same_match(jax.tree.map(lambda x: x[row], matches), expected_match(a, b, side, m, n))  # noqa: B023


@pytest.mark.parametrize(
    "shape", [(1, 70000, 9), (3, 3840, 3840), (300, 5, 11), (9, 1, 0), (5, 0, 4), (4, 0, 0), (0, 3, 2)], ids=str
)
def test_batches_of_every_shape(rng, shape):
    batch, n_a, n_b = shape
    for dtype in ("uint8", "float64"):
        a = np.array([data.sorted_keys(rng, dtype, n_a) for _ in range(batch)], jnp.dtype(dtype)).reshape(batch, n_a)
        b = np.array([data.sorted_keys(rng, dtype, n_b) for _ in range(batch)], jnp.dtype(dtype)).reshape(batch, n_b)
        found, matches = jax.vmap(mgpu.sorted_search)(a, b), jax.vmap(mgpu.sorted_match)(a, b)
        assert found.shape == (batch, n_a)
        assert matches.a_match_count.shape == (batch,)
        for row in range(batch):
            same(found[row], oracle.sorted_search(a[row], b[row]))
            same_match(jax.tree.map(lambda x: x[row], matches), expected_match(a[row], b[row], "left"))  # noqa: B023


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("lengths", data.SHORT_ROWS, ids=str)
def test_short_rows(rng, lengths, side):
    (n_a, n_b), batch = lengths, data.batch_of(sum(lengths))
    a_counts, b_counts = (data.row_counts(rng, n, batch) for n in lengths)
    a, b = (data.sorted_rows(rng, data.SHORT_ROWS[lengths], *x) for x in ((n_a, a_counts), (n_b, b_counts)))
    b[0] = data.in_order(b[0])

    def look_up(a, b, m, n):
        options = dict(zip(("needles_count", "haystack_count"), (m, n), strict=True))
        return mgpu.sorted_search(a, b, side, **options), mgpu.sorted_match(a, b, side, a_count=m, b_count=n)

    of_rows = jax.jit(jax.vmap(look_up))(a, b, a_counts, b_counts)
    of_one = jax.jit(jax.vmap(look_up, (0, None, 0, None)))(a, b[0], a_counts, np.int32(n_b))
    (found, matches), (found_in_one, matches_in_one) = jax.tree.map(np.asarray, (of_rows, of_one))
    for row in range(batch):
        m, n = a_counts[row], b_counts[row]
        same(found[row], oracle.sorted_search(a[row], b[row], side, m, n))
        same_match(jax.tree.map(lambda x: x[row], matches), expected_match(a[row], b[row], side, m, n))  # noqa: B023
        same(found_in_one[row], oracle.sorted_search(a[row], b[0], side, m, n_b))
        one = jax.tree.map(lambda x: x[row], matches_in_one)  # noqa: B023
        same_match(one, expected_match(a[row], b[0], side, m, n_b))


def test_short_rows_without_order_stay_inside(rng):
    for n_a, n_b in ((8, 8), (40, 3), (700, 900)):
        batch = data.batch_of(n_a + n_b)
        a, b = (rng.integers(0, 50, (batch, n), dtype=np.int32) for n in (n_a, n_b))
        found, matches = jax.vmap(mgpu.sorted_search)(a, b), jax.vmap(mgpu.sorted_match)(a, b)
        assert np.all((found >= 0) & (found <= n_b))
        assert np.all((matches.b_index >= 0) & (matches.b_index <= n_a))
        assert np.all((matches.a_match_count >= 0) & (matches.a_match_count <= n_a))


def test_no_derivative_passes_through_a_search(rng):
    a, b = np.sort(rng.normal(size=9)), np.sort(rng.normal(size=4))

    def weighed(a, b):
        found = mgpu.sorted_match(a, b)
        return jnp.sum(b[jnp.minimum(mgpu.sorted_search(a, b), 3)] ** 2) + jnp.sum(jnp.where(found.a_match, a, 0.0))

    grads = jax.grad(weighed, (0, 1))(a, b)
    np.testing.assert_array_equal(grads[0], np.zeros(9))
    taken = np.bincount(np.minimum(np.searchsorted(b, a), 3), minlength=4)
    np.testing.assert_allclose(grads[1], 2 * b * taken)


def test_unsorted_input_does_no_harm(rng):
    for n_a, n_b in ((LONG, LONG), (LONG, 5), (5, LONG)):
        a, b = (rng.integers(0, 100, n, dtype=np.uint32) for n in (n_a, n_b))
        matches = jax.block_until_ready(mgpu.sorted_match(a, b))
        assert 0 <= matches.a_match_count <= n_a
        assert 0 <= matches.b_match_count <= n_b
        found = np.asarray(mgpu.sorted_search(a, b))
        assert found.shape == (n_a,)
    assert np.all((found >= 0) & (found <= LONG))


def test_what_a_misuse_says():
    a, b = np.arange(3), np.arange(2)
    for error, message, call in [
        (TypeError, "sorted_search: needles: expected integers of 8", lambda: mgpu.sorted_search(a > 1, b)),
        (TypeError, "sorted_search: haystack: expected the dtype of needles", lambda: mgpu.sorted_search(a, b * 1.0)),
        (
            ValueError,
            "sorted_search: side: expected 'left' or 'right', got 'top'",
            lambda: mgpu.sorted_search(a, b, "top"),
        ),
        (ValueError, "sorted_search: haystack: expected a 1-D array", lambda: mgpu.sorted_search(a, b[None])),
        (
            TypeError,
            "sorted_search: needles_count: expected an int",
            lambda: mgpu.sorted_search(a, b, needles_count=1.5),
        ),
        (TypeError, "sorted_match: b: expected the dtype of a", lambda: mgpu.sorted_match(a, b * 1.0)),
        (ValueError, "sorted_match: side: expected 'left' or 'right'", lambda: mgpu.sorted_match(a, b, None)),
        (ValueError, "sorted_match: b_count: expected an integer scalar", lambda: mgpu.sorted_match(a, b, b_count=a)),
        (TypeError, "sorted_equal_count: a: expected integers of 8", lambda: mgpu.sorted_equal_count(a + 1j, b)),
    ]:
        with pytest.raises(error, match=message):
            call()


# ---- segmented_search ------------------------------------------------------------------------------------------------


def sorted_in_segments(haystack, heads, count=None, ends=None):
    """Returns keys or columns, sorted within segments only."""
    ranks = oracle.column_ranks(haystack) if isinstance(haystack, tuple) else haystack
    inside = heads < len(ranks)
    order = oracle.segmented_sort_indices(ranks, heads[inside], False, count, None if ends is None else ends[inside])
    return reordered(haystack, order)


def needles_for(rng, haystack, n, m):
    """Returns needles, some of them from the haystack, and ids from -2 to m + 1."""
    needles = data.random_keys(rng, haystack.dtype.name, n)
    if len(haystack):
        taken = rng.choice(haystack.view(f"u{haystack.dtype.itemsize}"), n).view(haystack.dtype)
        needles = np.where(rng.random(n) < 0.5, taken, needles)
    return needles, rng.integers(-2, m + 2, n).astype(np.int32)


def check_in_segments(needles, ids, haystack, heads, **options):
    for side in SIDES:
        expected = found_in_segments(needles, ids, haystack, heads, side, **options)
        same(mgpu.segmented_search(needles, ids, haystack, heads, side, **options), expected)


@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_segments_of_every_key_type(rng, dtype):
    for n_live, live in ((1500, 3001), (700, 2000), (0, 3001), (1500, 0), (-1, 9999)):
        heads = random_heads(rng, 3001, 40)
        haystack = sorted_in_segments(data.random_keys(rng, dtype, 3001), heads, live)
        counts = {"needles_count": np.int32(n_live), "haystack_count": np.int32(live)}
        check_in_segments(*needles_for(rng, haystack, 1500, 40), haystack, heads, **counts)


@pytest.mark.parametrize("sizes", [(0, 5), (1, 0), (1, 1), (15, 90), (17, 300), (1025, 300), (4105, 7)], ids=str)
def test_sizes_of_segmented_searches(rng, sizes):
    n, size = sizes
    for m in (0, 1, 12) if n < 1025 else (12,):
        heads = random_heads(rng, size, m)
        haystack = sorted_in_segments(data.random_keys(rng, "int16", size), heads)
        check_in_segments(*needles_for(rng, haystack, n, m), haystack, heads)


def test_segments_of_every_length(rng):
    size = 2000
    lengths = np.concatenate([np.arange(18), [1 << k for k in range(5, 10)], [0, 0, 0]])
    heads = np.append(data.heads_of(rng.permutation(lengths)), size).astype(np.int32)
    haystack = sorted_in_segments(data.random_keys(rng, "uint8", size), heads)
    check_in_segments(*needles_for(rng, haystack, 3000, len(heads)), haystack, heads)
    for heads in (np.arange(27, dtype=np.int32), np.full(27, 5, np.int32), np.full(27, size, np.int32)):
        haystack = sorted_in_segments(data.random_keys(rng, "uint8", size), heads)
        check_in_segments(*needles_for(rng, haystack, 3000, 27), haystack, heads)


def test_one_segment_is_the_whole_haystack(rng):
    haystack, heads = data.sorted_keys(rng, "float32", 70000), np.zeros(1, np.int32)
    needles, _ = needles_for(rng, haystack, 5000, 1)
    for side in SIDES:
        found = mgpu.segmented_search(needles, np.zeros(5000, np.int32), haystack, heads, side)
        ranks, rows = np.split(oracle.rank(np.concatenate([needles, haystack])), [5000])
        same(found, np.searchsorted(rows, ranks, side))


def test_ends_of_searched_segments(rng):
    heads = np.array([3, 3, 10, 40, 45, 90, 200], np.int32)
    for ends in ([3, 9, 40, 45, 45, 30, 999], [3, 10, 11, 44, 90, 100, 200]):
        haystack = sorted_in_segments(data.random_keys(rng, "float64", 100), heads, ends=np.array(ends))
        needles, ids = needles_for(rng, haystack, 500, 7)
        check_in_segments(needles, ids, haystack, heads, ends=np.array(ends, np.int32))
        check_in_segments(needles, ids, haystack, heads, ends=np.array(ends, np.int32), haystack_count=95)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.uint32, np.uint64])
def test_ids_and_heads_of_every_integer_type(rng, kind):
    heads = np.append(np.sort(rng.integers(0, 120, 9).astype(kind)), kind(np.iinfo(kind).max))
    haystack = sorted_in_segments(data.random_keys(rng, "int32", 120), heads)
    needles, ids = needles_for(rng, haystack, 200, 10)
    ids = ids.clip(max(np.iinfo(kind).min, -2)).astype(kind)
    ids[:3] = np.iinfo(kind).max
    check_in_segments(needles, ids, haystack, heads)
    check_in_segments(needles, ids, haystack, np.minimum(heads, kind(120)).astype(np.int32))


@pytest.mark.parametrize(
    "form",
    [
        ("int16", "float32"),
        ("uint32", "float16", "int16"),
        ("int64", "uint8"),
        ("float64", "uint8", "int64", "uint64"),
    ],
    ids="-".join,
)
def test_columns_in_segments(rng, form):
    n, size, m = 300, 400, 9
    heads = random_heads(rng, size, m)
    columns = [data.random_keys(rng, dtype, size + n) for dtype in form]
    columns = [np.where(rng.random(size + n) < 0.7, x[0], x) if i else x for i, x in enumerate(columns)]
    columns[0] = rng.choice(columns[0][:5], size + n)
    needles, haystack = tuple(x[size:] for x in columns), tuple(x[:size] for x in columns)
    for counts in ({}, {"needles_count": 200, "haystack_count": 333}):
        haystack = sorted_in_segments(haystack, heads, counts.get("haystack_count"))
        ranks = np.split(oracle.column_ranks([np.concatenate(x) for x in zip(needles, haystack, strict=True)]), [n])
        ids = rng.integers(-1, m + 1, n).astype(np.int32)
        for side in SIDES:
            found = mgpu.segmented_search(needles, ids, haystack, heads, side, **counts)
            same(found, found_in_segments(ranks[0], ids, ranks[1], heads, side, **counts))


SEGMENTED = ("needles", "ids", "haystack", "heads", "ends", "needles_count", "haystack_count")


@pytest.mark.parametrize("mapped", [*SEGMENTED, "all", "needles and heads"])
def test_vmap_over_operands_of_a_segmented_search(rng, mapped):
    batch, n, size, m = 5, 33, 90, 8
    ends = np.sort(rng.integers(0, size + 1, (batch, 2 * m)).astype(np.int32))
    haystack = np.stack([data.sorted_keys(rng, "float32", size) for _ in range(batch)])
    everything = {
        "needles": data.random_keys(rng, "float32", batch, n),
        "ids": rng.integers(-1, m + 1, (batch, n)).astype(np.int32),
        "haystack": haystack,
        "heads": ends[:1].repeat(batch, axis=0)[:, ::2] if mapped == "ends" else ends[:, ::2],
        "ends": ends[:, 1::2],
        "needles_count": rng.integers(0, n + 1, batch).astype(np.int32),
        "haystack_count": rng.integers(0, size + 1, batch).astype(np.int32),
    }
    names = SEGMENTED if mapped == "all" else mapped.split(" and ")
    given = {name: x if name in names else x[0] for name, x in everything.items()}
    axes = {name: 0 if name in names else None for name in SEGMENTED}
    found = jax.jit(jax.vmap(lambda given: mgpu.segmented_search(**given), (axes,)))(given)
    assert found.shape == (batch, n)
    for row in range(batch):
        same(found[row], found_in_segments(**{name: x[row] if axes[name] == 0 else x for name, x in given.items()}))


@pytest.mark.parametrize("shape", [(1, 1025, 9, 3), (300, 1, 11, 2), (9, 5, 0, 2), (5, 4, 4, 0), (0, 3, 2, 1)], ids=str)
def test_batches_of_segmented_searches(rng, shape):
    batch, n, size, m = shape
    needles = data.random_keys(rng, "uint8", batch, n)
    haystack = np.sort(data.random_keys(rng, "uint8", batch, size))
    heads = np.sort(rng.integers(0, size + 1, (batch, m)).astype(np.int32))
    ids = rng.integers(-1, m + 1, (batch, n)).astype(np.int32)
    found = jax.vmap(mgpu.segmented_search)(needles, ids, haystack, heads)
    assert found.shape == (batch, n)
    for row in range(batch):
        same(found[row], found_in_segments(needles[row], ids[row], haystack[row], heads[row]))


def test_what_fills_a_segmented_search():
    needles, ids, haystack = np.array([3, 3, 3]), np.array([0, 1, 0]), np.array([1, 2, 5])
    same(mgpu.segmented_search(needles, ids, haystack, [0], fill_value=9, needles_count=2), [2, 9, 9])
    found = jax.jit(lambda fill: mgpu.segmented_search(needles, ids, haystack, [0], fill_value=fill))(7)
    same(found, [2, 7, 2])


@pytest.mark.parametrize(("n", "size"), [(9000, 5000), (MANY, 100_000)])
def test_segments_without_order_stay_inside(rng, n, size):
    m = 60
    heads = random_heads(rng, size, m)
    needles, ids = rng.integers(0, 99, n, dtype=np.int32), rng.integers(0, m, n, dtype=np.int32)
    found = np.asarray(mgpu.segmented_search(needles, ids, rng.integers(0, 99, size, dtype=np.int32), heads))
    bounds = np.minimum(np.append(heads, size), size)
    assert np.all((found >= bounds[ids]) & (found <= bounds[ids + 1]))
    shuffled = rng.permutation(np.append(heads, [-7, 2**31 - 1]).astype(np.int32))
    found = np.asarray(mgpu.segmented_search(needles, ids, np.sort(needles)[:size], shuffled, ends=shuffled[::-1]))
    assert np.all((found >= 0) & (found <= size))


def test_positions_of_64_bits_in_segments(rng):
    """Arrays of 2^31 items need 64-bit ids and heads; here, a short array has them."""
    from jax_mgpu._src.ops.sorted_search import _segmented_search

    heads = random_heads(rng, 400, 9)
    haystack = sorted_in_segments(data.random_keys(rng, "float32", 400), heads)
    needles, ids = needles_for(rng, haystack, 300, 9)
    for absent in (True, False):
        ends = None if absent else np.append(heads[1:], 400)
        indices = {"ids": ids, "heads": heads} | ({} if absent else {"ends": ends})
        wide = {name: x.astype(np.int64) for name, x in indices.items()}
        found = _segmented_search(needles=needles, haystack=haystack, **wide, right=True, exact=False)[0]
        same(found, found_in_segments(needles, ids, haystack, heads, "right", ends=ends), np.int64)


@pytest.mark.long
def test_the_plain_lowering_of_a_segmented_search_agrees(rng):
    from jax_mgpu._src.ops.sorted_search import _segmented_search

    plain = jax.jit(_segmented_search.fallback, static_argnames=("right", "exact"))

    def kernel(*operands, **attributes):
        return _segmented_search.run(operands, **attributes)

    none = np.zeros(0, np.int32)
    heads = random_heads(rng, 90, 9)
    for dtype, ends, counts in itertools.product(
        ("uint8", "float32"), (None, np.int32([*heads[1:], 85])), ((none, none), (np.int32([30]), np.int32([60])))
    ):
        given = {"ends": ends} | {
            name: x[0] if x.size else None for name, x in zip(("needles_count", "haystack_count"), counts, strict=True)
        }
        haystack = sorted_in_segments(data.random_keys(rng, dtype, 90), heads, given["haystack_count"])
        needles, ids = needles_for(rng, haystack, 40, 9)
        for side in SIDES:
            operands = (needles, ids, haystack, heads, none if ends is None else ends, *counts)
            found = plain(*map(jnp.asarray, operands), right=side == "right", exact=False)[0]
            expected = found_in_segments(needles, ids, haystack, heads, side, **given)
            same(found, expected)
        exact = [run(*map(jnp.asarray, operands), right=False, exact=True)[0] for run in (plain, kernel)]
        after = found_in_segments(needles, ids, haystack, heads, "right", **given)
        before = found_in_segments(needles, ids, haystack, heads, "left", **given)
        for found in exact:
            same(found, np.where(before < after, before, -1))


def test_no_derivative_passes_through_a_segmented_search(rng):
    haystack, heads = np.sort(rng.normal(size=9)), np.array([0, 4])

    def taken(needles, haystack):
        found = mgpu.segmented_search(needles, np.array([0, 1, 1]), haystack, heads)
        return jnp.sum(needles**2) + jnp.sum(haystack[jnp.minimum(found, 8)])

    needles = rng.normal(size=3)
    grads = jax.grad(taken, (0, 1))(needles, haystack)
    np.testing.assert_allclose(grads[0], 2 * needles)
    assert grads[1].sum() == 3


def test_what_a_misuse_of_segments_says():
    search = mgpu.segmented_search
    a, b = np.arange(3), np.arange(4)
    for error, message, call in [
        (TypeError, "needles: expected integers of 8", lambda: search(a > 1, a, b, [0])),
        (TypeError, "haystack: expected the dtype of needles, int64", lambda: search(a, a, b * 1.0, [0])),
        (TypeError, "haystack: expected a tuple of columns, like needles", lambda: search((a, a), a, b, [0])),
        (ValueError, "haystack: expected the 2 columns of needles", lambda: search((a, a), a, (b, b, b), [0])),
        (ValueError, "ids: expected one id for each of 3 needles, got int64.4.", lambda: search(a, b, b, [0])),
        (TypeError, "ids: expected integers", lambda: search(a, a * 1.0, b, [0])),
        (ValueError, "heads: expected a 1-D array", lambda: search(a, a, b, [[0]])),
        (ValueError, "ends: expected the length of heads, 2", lambda: search(a, a, b, [0, 2], ends=[1])),
        (ValueError, "side: expected 'left' or 'right', got 'top'", lambda: search(a, a, b, [0], "top")),
        (ValueError, "needles_count: expected an integer", lambda: search(a, a, b, [0], needles_count=a)),
        (TypeError, "haystack_count: expected an int", lambda: search(a, a, b, [0], haystack_count=0.5)),
        (TypeError, "fill_value: expected an integer", lambda: search(a, a, b, [0], fill_value=0.5)),
    ]:
        with pytest.raises(error, match=f"segmented_search: {message}"):
            call()


@pytest.mark.long
def test_the_plain_lowering_agrees(rng):
    from jax_mgpu._src.ops.sorted_search import _match, _search

    none = np.zeros(0, np.int32)
    search, match = (jax.jit(x.fallback, static_argnames="right") for x in (_search, _match))
    for dtype, (m, n) in itertools.product(
        ("uint8", "float32", "float16"), ((none, none), (np.int32([60]), np.int32([30])))
    ):
        a, b = (rng.integers(0, 40, length).astype(dtype) for length in (90, 50))
        if dtype != "uint8":
            a[:9], b[:5], a[9:15], b[5:9] = np.nan, -np.nan, 0.0, -0.0
        a[: m[0] if m.size else 90].sort()
        b[: n[0] if n.size else 50].sort()
        operands = tuple(map(jnp.asarray, (a, b, m, n)))
        counts = m[0] if m.size else None, n[0] if n.size else None
        for side in SIDES:
            same(search(*operands, right=side == "right")[0], oracle.sorted_search(a, b, side, *counts))
            same_match(
                mgpu.SortedMatch(*match(*operands, right=side == "right")),
                expected_match(a, b, side, *counts),
            )


# ---- Many needles ----------------------------------------------------------------------------------------------------


def expected_in_segments(needles, ids, haystack, heads, side):
    """Searches for pairs of an id and a key in segments without gaps."""
    ranks = oracle.rank(np.concatenate([needles, haystack]))
    ranks = np.unique(ranks, return_inverse=True)[1].astype(np.int64)
    rows = np.searchsorted(heads, np.arange(len(haystack)), "right") - 1
    codes = rows * len(ranks) + ranks[len(needles) :]
    found = np.searchsorted(codes, ids.astype(np.int64) * len(ranks) + ranks[: len(needles)], side)
    return np.where((ids >= 0) & (ids < len(heads)), found, -1)


@pytest.mark.parametrize("m", [0, 1, 31, 1000, 16_385, 32_777, 262_200, 300_011], ids=str)
@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_many_needles_of_every_key_type(rng, dtype, m):
    haystack = data.sorted_keys(rng, dtype, m)
    needles, _ = needles_for(rng, haystack, MANY, 1)
    run = jax.jit(mgpu.search, static_argnames="side")
    for side in SIDES:
        same(run(needles, haystack, side), oracle.sorted_search(needles, haystack, side))
        live = 2 * m // 3
        expected = oracle.sorted_search(needles, haystack[:live], side)
        same(run(needles, haystack, side, count=np.int32(live)), expected)


@pytest.mark.parametrize("keys", ["pairs", "powers", "two clusters", "few values", "dense"])
def test_many_needles_of_64_bits(rng, keys):
    m = 300_011
    of = {
        "pairs": lambda n: rng.integers(0, 1000, n) << 32 | rng.integers(0, 1000, n),
        "powers": lambda n: np.exp2(rng.random(n) * 62).astype(np.int64),
        "two clusters": lambda n: rng.choice([-(2**63), 2**62], n) + rng.integers(0, 10**6, n),
        "few values": lambda n: rng.integers(0, 9, n) << 40,
        "dense": lambda n: rng.integers(0, 3 * m, n),
    }[keys]
    haystack, needles = np.sort(of(m)), of(MANY)
    needles[::2] = rng.choice(haystack, len(needles[::2]))
    for side in SIDES:
        same(mgpu.search(needles, haystack, side), np.searchsorted(haystack, needles, side))
        same(mgpu.search(needles, haystack, side, count=m - 99), np.searchsorted(haystack[:-99], needles, side))
    begin, end = 1234, m - 4321
    haystack[:begin] = haystack[:begin][::-1]
    heads, ends, ids = np.array([begin], np.int32), np.array([end], np.int32), np.zeros(MANY, np.int32)
    found = mgpu.segmented_search(needles, ids, haystack, heads, ends=ends)
    same(found, begin + np.searchsorted(haystack[begin:end], needles))


@pytest.mark.parametrize("haystack", ["equal", "NaN", "distinct", "greatest"])
def test_many_needles_and_extremes(rng, haystack):
    m = 100_003
    keys = {
        "equal": np.full(m, 7, np.float32),
        "NaN": np.sort(np.where(np.arange(m) < m // 2, rng.normal(size=m), np.nan)).astype(np.float32),
        "distinct": np.arange(m, dtype=np.float32),
        "greatest": np.full(m, np.inf, np.float32),
    }[haystack]
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0, -0.0, 7, m - 1, m], np.float32)
    needles = np.where(rng.random(MANY) < 0.1, rng.choice(special, MANY), rng.choice(keys, MANY))
    for side in SIDES:
        same(mgpu.search(needles, keys, side), oracle.sorted_search(needles, keys, side))
    integers = np.full(m, np.iinfo(np.uint32).max, np.uint32)
    ends = rng.choice(np.array([0, 1, 2**31, 2**32 - 2, 2**32 - 1], np.uint32), MANY)
    for side in SIDES:
        same(mgpu.search(ends, integers, side), np.searchsorted(integers, ends, side))


@pytest.mark.parametrize("mean", [3, 40, 700, 50_000], ids=str)
@pytest.mark.parametrize("dtype", ["uint32", "float64", "int16", "int8", "bfloat16"])
def test_many_needles_in_segments(rng, dtype, mean):
    m = 200_003
    heads = np.unique(np.append(0, rng.integers(0, m, m // mean))).astype(np.int32)
    heads = np.sort(np.append(heads, rng.choice(heads, 5))).astype(np.int32)
    keys = data.random_keys(rng, dtype, m)
    rows = np.searchsorted(heads, np.arange(m), "right") - 1
    haystack = keys[np.lexsort((oracle.rank(keys), rows))]
    needles, ids = needles_for(rng, haystack, MANY, len(heads))
    for order in (slice(None), np.argsort(ids, kind="stable")):
        for side in SIDES:
            expected = expected_in_segments(needles[order], ids[order], haystack, heads, side)
            same(mgpu.segmented_search(needles[order], ids[order], haystack, heads, side), expected)


def test_many_needles_in_segments_with_gaps_and_counts(rng):
    m = 50_000
    bounds = np.sort(rng.integers(0, m, 80)).astype(np.int32)
    heads, ends = bounds[::2], bounds[1::2]
    haystack = sorted_in_segments(data.random_keys(rng, "float32", m), heads, ends=ends)
    needles, ids = needles_for(rng, haystack, MANY, len(heads))
    counts = {"needles_count": np.int32(MANY - 77), "haystack_count": np.int32(m // 2)}
    check_in_segments(needles, ids, haystack, heads, ends=ends)
    check_in_segments(needles, ids, haystack, heads, ends=ends, **counts)


@pytest.mark.parametrize("sizes", [(33_001, 41_003), (3000, 1001), (70_001, 7)], ids=str)
@pytest.mark.parametrize("dtype", ["uint32", "float64", "int16", "uint8"])
def test_rows_of_many_needles(rng, dtype, sizes):
    n, m = sizes
    rows = max(2, MANY // n + 1)
    needles = data.random_keys(rng, dtype, rows, n)
    haystacks = np.stack([data.sorted_keys(rng, dtype, m) for _ in range(rows)])
    counts = rng.integers(0, m + 1, rows).astype(np.int32)
    got = jax.vmap(lambda a, b, count: mgpu.search(a, b, "right", count=count))(needles, haystacks, counts)
    of_one = jax.vmap(lambda a, count: mgpu.search(a, haystacks[1], count=count))(needles, counts)
    for row, count in enumerate(counts):
        same(got[row], oracle.sorted_search(needles[row], haystacks[row][:count], "right"))
        same(of_one[row], oracle.sorted_search(needles[row], haystacks[1][:count]))


def test_many_needles_with_positions_of_64_bits(rng):
    from jax_mgpu._src.ops.sorted_search import _segmented_search

    m = 90_001
    heads = np.unique(np.append(0, rng.integers(0, m, 50)))
    keys = data.random_keys(rng, "float32", m)
    rows = np.searchsorted(heads, np.arange(m), "right") - 1
    haystack = keys[np.lexsort((oracle.rank(keys), rows))]
    needles, ids = needles_for(rng, haystack, MANY, len(heads))
    operands = {"needles": needles, "ids": ids.astype(np.int64), "haystack": haystack, "heads": heads}
    left, right = (_segmented_search(**operands, right=side, exact=False)[0] for side in (False, True))
    expected = [expected_in_segments(needles, ids, haystack, heads, side) for side in SIDES]
    same(left, expected[0], np.int64)
    same(right, expected[1], np.int64)
    exact = _segmented_search(**operands, right=False, exact=True)[0]
    same(exact, np.where(expected[0] < expected[1], expected[0], -1), np.int64)


# ---- search ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_needles_in_any_order_as_jnp_searchsorted(rng, dtype):
    """XLA's CPU code flushes subnormals, so the keys have none."""
    needles, haystack = (rng.integers(-20, 20, n).astype(dtype) for n in (300, 200))
    if dtype == "float32":
        needles[:6] = haystack[:6] = [np.nan, np.inf, -np.inf, 0.0, -0.0, -np.nan]
    haystack = np.sort(haystack)
    for side in SIDES:
        same(mgpu.search(needles, haystack, side), jnp.searchsorted(haystack, needles, side=side))


@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_needles_in_any_order_of_every_key_type(rng, dtype):
    both = data.random_keys(rng, dtype, 4000)
    needles, haystack = np.append(both[:1000], both[1500:2000]), data.in_order(both[1000:])
    run = jax.jit(mgpu.search, static_argnames="side")
    for side in SIDES:
        same(run(needles, haystack, side), oracle.sorted_search(needles, haystack, side))
        for count in (-1, 0, 1234, 9999):
            same(run(needles, haystack, side, count=count), oracle.sorted_search(needles, haystack, side, None, count))


LONG_PAIRS = ((CPU_LONG, 1000), (CPU_LONG, CPU_LONG + 5))


@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (5, 0), (1, 1), (3, 70_000), (40_000, 70_000), *LONG_PAIRS], ids=str)
def test_sizes_of_searches_in_any_order(rng, sizes):
    n, m = sizes
    needles, haystack = rng.integers(0, 50_000, n), np.sort(rng.integers(0, 50_000, m))
    for side in SIDES:
        same(mgpu.search(needles, haystack, side), np.searchsorted(haystack, needles, side))
        live = np.int32(2 * m // 3)
        same(mgpu.search(needles, haystack, side, count=live), np.searchsorted(haystack[:live], needles, side))


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64"])
def test_one_segment(rng, dtype):
    haystack = data.in_order(data.random_keys(rng, dtype, 300))
    needles, ids = data.random_keys(rng, dtype, 77), rng.integers(-1, 2, 77).astype(np.int32)
    run = jax.jit(
        lambda *operands, side, **given: mgpu.segmented_search(*operands, side, **given), static_argnames="side"
    )
    for side in SIDES:
        for begin, end in ((0, 300), (41, 200), (41, 41), (300, 300), (-3, 999)):
            found = run(needles, ids, haystack, np.array([begin]), ends=np.array([end]), side=side, needles_count=70)
            low, high = max(begin, 0), min(end, 300)
            expected = low + np.asarray(oracle.sorted_search(needles, haystack[low:high], side))
            same(found, np.where((ids == 0) & (np.arange(77) < 70), expected, -1))


@pytest.mark.parametrize("dtypes", [("int32", "float32"), ("int64", "float64", "uint8"), ("uint8",)], ids=str)
def test_columns_in_any_order(rng, dtypes):
    needles, haystack = (tuple(rng.integers(0, 5, n).astype(d) for d in dtypes) for n in (700, 900))
    ranks = np.split(oracle.column_ranks([np.append(a, b) for a, b in zip(needles, haystack, strict=True)]), [700])
    order = np.argsort(ranks[1])
    for side in SIDES:
        got = mgpu.search(needles, reordered(haystack, order), side)
        same(got, np.searchsorted(ranks[1][order], ranks[0], side))


def test_many_columns_in_any_order_without_64_bit_types(rng):
    needles, haystack = (tuple(rng.integers(-9, 9, n).astype(np.int32) for _ in "ab") for n in (CPU_LONG, 900))
    codes = [a.astype(np.int64) * 100 + b for a, b in (needles, haystack)]
    with jax.enable_x64(False):
        got = mgpu.search(needles, reordered(haystack, np.argsort(codes[1])))
    same(got, np.searchsorted(np.sort(codes[1]), codes[0]))


def test_batches_of_searches_in_any_order(rng):
    needles, haystacks = rng.normal(size=(3, 40)), np.sort(rng.normal(size=(3, 50)), axis=1)
    counts = np.array([0, 50, 20])
    got = jax.vmap(lambda a, b, count: mgpu.search(a, b, count=count))(needles, haystacks, counts)
    of_one = jax.vmap(mgpu.search, (0, None))(needles, haystacks[0])
    for row in range(3):
        same(got[row], np.searchsorted(haystacks[row][: counts[row]], needles[row]))
        same(of_one[row], np.searchsorted(haystacks[0], needles[row]))


def test_no_derivative_passes_through_a_search_in_any_order():
    gradient = jax.grad(lambda a, b: b[mgpu.search(a, b)].sum(), (0, 1))(jnp.array([2.5, 0.5]), jnp.arange(4.0))
    assert [part.tolist() for part in gradient] == [[0, 0], [0, 1, 0, 1]]


def test_what_a_misuse_of_search_says():
    a, b = np.arange(3), np.arange(2)
    for error, message, call in [
        (TypeError, "search: needles: expected integers of 8", lambda: mgpu.search(a > 1, b)),
        (TypeError, "search: haystack: expected the dtype of needles", lambda: mgpu.search(a, b * 1.0)),
        (ValueError, "search: side: expected 'left' or 'right', got 'top'", lambda: mgpu.search(a, b, "top")),
        (ValueError, "search: count: expected an integer scalar", lambda: mgpu.search(a, b, count=a)),
    ]:
        with pytest.raises(error, match=f"^{message}"):
            call()
