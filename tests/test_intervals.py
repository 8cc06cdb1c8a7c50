"""interval_expand, _gather, _scatter and _move compared with tests/oracle.py."""

from __future__ import annotations

import functools
import itertools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax.test_util import check_grads

import jax_mgpu as mgpu
from jax_mgpu._src.core.operation import REGISTRY
from tests import data, oracle
from tests.jaxprs import kernel_calls, scratch_bytes
from tests.oracle import same_bits
from tests.variants import long_but

pytestmark = pytest.mark.usefixtures("x64")

DTYPES = ["bool", "uint8", "int16", "float16", "bfloat16", "float32", "int32", "float64", "uint64"]
DTYPES += ["complex64", "complex128", "float8_e4m3fn", "int4"]
WIDE = (64,)
TRAILING = [(), (1,), (2,), (3,), (2, 5), (33,), WIDE, (129,), (2, 0)]


def rows(rng, dtype, n, *trailing):
    """Draws random items."""
    kind = jnp.dtype(dtype)
    if dtype in ("bool", "int4"):
        return rng.integers(0, 2, (n, *trailing)).astype(kind)
    size = n * int(np.prod(trailing, dtype=int))
    return rng.integers(0, 256, size * kind.itemsize, dtype=np.uint8).view(kind).reshape(n, *trailing)


def shuffled_starts(rng, lengths):
    """Draws non-overlapping places in random order."""
    order = rng.permutation(len(lengths))
    starts = np.empty(len(lengths), np.int32)
    starts[order] = data.heads_of(lengths[order])
    return starts


def check_all(rng, lengths, size, total, dtype="int32", trailing=(), fill_value=0):
    """Checks all four operations."""
    offsets = data.heads_of(lengths)
    m, summed = len(lengths), int(lengths.sum())
    live = min(max(summed if total is None else total, 0), size)
    objects, ranks = oracle.work_items(offsets, live if m else 0)

    values = rows(rng, dtype, m, *trailing)
    got = mgpu.interval_expand(values, offsets, size, total=total, fill_value=fill_value)
    same_bits(got, oracle.padded(values[objects], size, fill_value))

    x = rows(rng, dtype, summed + 5, *trailing)
    into = rows(rng, dtype, summed + 3, *trailing)
    gather_starts, scatter_starts = shuffled_starts(rng, lengths), shuffled_starts(rng, lengths)
    sources = gather_starts[objects] + ranks
    got = mgpu.interval_gather(x, gather_starts, offsets, size, total=total, fill_value=fill_value)
    same_bits(got, oracle.padded(x[sources], size, fill_value))

    items = x[:size]
    got = mgpu.interval_scatter(items, scatter_starts, offsets, into, total=total)
    if len(items) == size:
        same_bits(got, oracle.moved(items, np.arange(len(objects)), scatter_starts[objects] + ranks, into))

    moved = min(live, max(len(x), len(into)))
    got = mgpu.interval_move(x, gather_starts, scatter_starts, offsets, into, total=live)
    same_bits(got, oracle.moved(x, sources[:moved], (scatter_starts[objects] + ranks)[:moved], into))


@pytest.mark.parametrize("m", [0, 1, 52, 556, 5676])
@pytest.mark.parametrize("size", [0, 1, 23, 123, 3234])
def test_sizes(rng, m, size):
    lengths = np.diff(np.sort(rng.integers(0, size + 1, m + 1)))
    if m:
        lengths[-1] += size - lengths.sum()
    check_all(rng, lengths, size, None if m else 0)


@pytest.mark.parametrize("trailing", TRAILING, ids=str)
def test_row_shapes(rng, trailing):
    lengths = rng.integers(0, 7, 400)
    check_all(rng, lengths, int(lengths.sum()) + 40, int(lengths.sum()), "float32", trailing, fill_value=2.5)
    check_all(rng, lengths, int(lengths.sum()) + 40, int(lengths.sum()), "uint8", trailing, fill_value=7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_type(rng, dtype):
    lengths = rng.integers(0, 7, 90)
    for trailing in ((), (3,)):
        check_all(rng, lengths, int(lengths.sum()) + 7, int(lengths.sum()), dtype, trailing, fill_value=1)


@pytest.mark.parametrize("size", [tile + d for tile in data.tile_sizes("load_balance") for d in (-1, 0, 1)])
def test_tile_edges(rng, size):
    for mean in (2, 700):
        lengths = rng.integers(0, 2 * mean + 1, 1 + size // mean)
        for total in (size, 4096):
            check_all(rng, lengths, size, min(total, int(lengths.sum())))
        if size < 2000:
            for trailing in ((3,), WIDE):
                check_all(rng, lengths, size, int(lengths.sum()), trailing=trailing)


def lengths_of_each_pattern(rng):
    zeros = np.zeros(5000, int)
    return {
        "empty at the start": np.append(zeros, [5000]),
        "empty at the end": np.append([5000], zeros),
        "empty in runs": np.concatenate([rng.integers(0, 2, 1000), zeros, [4000], zeros, [17], zeros]),
        "zero or one": rng.integers(0, 2, 10000),
        "one each": np.ones(5000, int),
        "one of everything": np.array([5000]),
        "all empty": zeros,
    }


@pytest.mark.parametrize("pattern", lengths_of_each_pattern(np.random.default_rng(0)))
def test_patterns(rng, pattern):
    lengths = lengths_of_each_pattern(rng)[pattern]
    for trailing in ((), WIDE):
        check_all(rng, lengths, 6500, int(lengths.sum()), trailing=trailing)


@functools.partial(jax.jit, static_argnames="size")
def scatter_into_nines(x, starts, offsets, total, size=None):
    """Scatters into an array of nines, by default as many as there are items."""
    return mgpu.interval_scatter(x, starts, offsets, jnp.full(size or len(x), 9, x.dtype), total=total)


@pytest.mark.parametrize(
    ("mean", "in_order"),
    [(1, False), (5, True), *(pytest.param(mean, False, marks=pytest.mark.long) for mean in (5, 700))],
)
def test_short_intervals_into_a_result_larger_than_a_cache(rng, mean, in_order):
    size = 2**23 + 77
    lengths = rng.integers(0, 2 * mean + 1, size // mean)
    lengths = lengths[: np.searchsorted(np.cumsum(lengths), size)]
    offsets, total = data.heads_of(lengths), int(lengths.sum())
    sources, targets = (shuffled_starts(rng, lengths) for _ in range(2))
    if in_order:
        targets = offsets + np.int32(size - total)
    x = rng.integers(0, 2**32, size, np.uint32)
    into = np.arange(size, dtype=np.uint32)
    before = np.array([-7, -3], np.int32)  # these intervals and those that begin at the total are empty
    offsets_given = np.concatenate([before, offsets, [total, total + 9]]).astype(np.int32)
    sources_given, targets_given = (np.concatenate([[5, 6], s, [7, 8]]).astype(np.int32) for s in (sources, targets))
    items = np.arange(total)
    places = np.repeat(targets - offsets, lengths) + items
    got = mgpu.interval_move(x, sources_given, targets_given, offsets_given, into, total=total)
    same_bits(got, oracle.moved(x, np.repeat(sources - offsets, lengths) + items, places, into))
    got = mgpu.interval_scatter(x, targets_given, offsets_given, into, total=total)
    same_bits(got, oracle.moved(x, items, places, into))
    got = scatter_into_nines(x, targets_given, offsets_given, total)
    same_bits(got, oracle.moved(x, items, places, np.full_like(into, 9)))


def test_few_intervals_of_wide_elements_into_a_result_larger_than_a_cache(rng):
    size, m = 2**21 + 77, 9000  # the fewest elements that are put in the order of regions
    lengths = rng.integers(0, 5, m)
    offsets, total = data.heads_of(lengths), int(lengths.sum())
    targets = shuffled_starts(rng, lengths) + np.int32(size - total)
    x = rows(rng, "complex128", total + 9)
    got = scatter_into_nines(x, targets, offsets, total, size=size)
    places = np.repeat(targets - offsets, lengths) + np.arange(total)
    same_bits(got, oracle.moved(x, np.arange(total), places, np.full(size, 9, x.dtype)))


LARGE = 2**23 if jax.default_backend() == "gpu" else 2**16
CACHED = 2**14


def ones_but(size, *changes):
    """Returns the offsets of intervals of one row each, with some offsets changed."""
    offsets = np.arange(size, dtype=np.int32)
    for at, offset in changes:
        offsets[at] = offset
    return offsets


def ones_of_each_case(size, half):
    """Returns the offsets and the total of each case."""
    return {
        "one row each": (ones_but(size), None),
        "fewer items than intervals": (ones_but(size, (slice(half, None), half)), half),
        "the last ones past the total": (ones_but(size), half - 3),
        "two rows after an empty interval": (ones_but(size, (half, half - 1)), None),
        "the last item in an interval numbered past the total": (
            ones_but(size, (half - 1, half - 2), (half, half - 2)),
            half - 1,
        ),
        "two rows after an interval before the items": (ones_but(size, (0, -5), (1, 0)), None),
    }


@pytest.mark.parametrize("dtype", long_but(["uint32"], ["bool", "float16", "uint32", "float64", "complex128"]))
@pytest.mark.parametrize("case", ones_of_each_case(4, 2))
@pytest.mark.parametrize("least", [CACHED, LARGE])
def test_one_row_each(rng, least, case, dtype):
    size = least // min(4, np.dtype(dtype).itemsize) * 4 + 77
    offsets, total = ones_of_each_case(size, least // 2)[case]
    objects, ranks = oracle.work_items(offsets, size if total is None else total)
    x, into = rows(rng, dtype, size), rows(rng, dtype, size)
    places, sources = rng.permutation(size).astype(np.int32), rng.integers(-3, size + 3, size).astype(np.int32)
    places[rng.integers(0, size, 9)] = [-1, -size, size, size + 1, 2**31 - 1, -(2**31), -7, size + 77, 2**30]
    second = places[objects[ranks > 0]] + np.int32(1)
    places[np.isin(places, second)] = -5  # so that the places do not overlap
    to, source = (at[objects].astype(np.int64) + ranks for at in (places, sources))
    assert np.bincount(to[(to >= 0) & (to < size)]).max() == 1
    items = np.arange(len(objects))
    taken = np.where((source >= 0) & (source < size), x[source % size], np.zeros((), x.dtype))
    got = mgpu.interval_gather(x, sources, offsets, size, total=total)
    same_bits(got, oracle.padded(taken, size, 0))
    got = mgpu.interval_scatter(x, places, offsets, into, total=total)
    same_bits(got, oracle.moved(x, items, to, into))
    got = scatter_into_nines(x, places, offsets, size if total is None else total)
    same_bits(got, oracle.moved(x, items, to, np.full_like(into, 9)))
    got = mgpu.interval_move(x, sources, places, offsets, into, total=total)
    same_bits(got, oracle.moved(x, source, to, into))


def test_one_row_of_each_place_remains(rng):
    """If places overlap, one of their rows remains, and no row at another place is lost."""
    size = LARGE + 77
    x = rng.integers(1, 2**32, size, np.uint32)
    places = np.where(np.arange(size) % 3 > 0, np.arange(size), 5).astype(np.int32)
    got = np.asarray(mgpu.interval_scatter(x, places, np.arange(size, dtype=np.int32), np.zeros(size, np.uint32)))
    same_bits(got[6:], np.where(np.arange(size) % 3 > 0, x, 0)[6:])
    assert got[5] in x[places == 5]


@pytest.mark.parametrize("odd", ["none", "the second", "the first of a tile", "the last of a tile"])
@pytest.mark.parametrize("least", [CACHED, LARGE])
def test_pairs_of_rows(rng, least, odd):
    size, half = least + 76, least // 2
    offsets = np.arange(0, size, 2, dtype=np.int32)
    if odd != "none":
        offsets[{"the second": 1, "the first of a tile": half // 4, "the last of a tile": half - 1}[odd]] += 1
    sources, x = rng.integers(-2, size, size // 2).astype(np.int32), rng.integers(0, 2**32, size, np.uint32)
    for total in (size, size - 1, half + 1):
        objects, ranks = oracle.work_items(offsets, total)
        source = sources[objects] + ranks
        taken = np.where((source >= 0) & (source < size), x[source % size], 7).astype(np.uint32)
        got = mgpu.interval_gather(x, sources, offsets, size, total=total, fill_value=7)
        same_bits(got, oracle.padded(taken, size, 7))
        places = (rng.permutation(size // 2) * 4 - 1).astype(np.int32)
        items, to, into = np.arange(len(objects)), places[objects] + ranks, np.zeros(2 * size - 5, np.uint32)
        got = mgpu.interval_scatter(x, places, offsets, into, total=total)
        same_bits(got, oracle.moved(x, items, to, into))
        got = mgpu.interval_move(x, sources, places, offsets, into, total=total)
        same_bits(got, oracle.moved(x, source, to, into))


@pytest.mark.parametrize("rows", [2**20, 2**24, 2**28])
def test_scratch_memory_of_scatters_follows_what_is_moved(rows):
    m = min(rows, 2**24)
    x, starts = jax.ShapeDtypeStruct((m,), np.float32), jax.ShapeDtypeStruct((m,), np.int32)
    into = jax.ShapeDtypeStruct((rows,), np.float32)
    (call,) = kernel_calls(mgpu.interval_scatter, x, starts, starts, into)
    assert scratch_bytes(call) <= 17 * m


@pytest.mark.parametrize("length", [1, 2])
def test_gathers_from_no_rows(length):
    offsets = np.arange(0, LARGE, length, dtype=np.int32)
    got = mgpu.interval_gather(np.zeros(0, np.float32), offsets, offsets, LARGE, fill_value=3)
    same_bits(got, np.full(LARGE, 3, np.float32))


@pytest.mark.parametrize(
    "indices",
    long_but(
        [(np.int32,) * 3, (np.int64,) * 3, (np.int32, np.int64, np.int32)],
        itertools.product([np.int32, np.int64], repeat=3),
    ),
    ids=str,
)
@pytest.mark.parametrize("pattern", ["one row each", "one row each, two tiles", "a few, and many empty"])
def test_many_intervals_by_indices_of_each_type(rng, pattern, indices):
    lengths = {
        "one row each": np.ones(2815, int),
        "one row each, two tiles": np.ones(8192, int),
        "a few, and many empty": np.concatenate([np.full(4, 700), np.zeros(2811, int)]),
    }[pattern]
    total = int(lengths.sum())
    to_offsets, to_sources, to_targets = indices
    offsets, objects = data.heads_of(lengths), np.repeat(np.arange(len(lengths)), lengths)
    ranks = np.arange(total) - offsets[objects]
    targets = (total - lengths - offsets).astype(np.int32)
    for dtype, trailing in (("uint16", (2, 2)), ("int8", (2, 2)), ("uint8", ()), ("int16", ()), ("uint64", (2,))):
        x, into = rows(rng, dtype, 800, *trailing), rows(rng, dtype, total, *trailing)
        sources = rng.integers(0, 801 - lengths.max(), len(lengths))
        arguments = sources.astype(to_sources), offsets.astype(to_offsets)
        same_bits(mgpu.interval_gather(x, *arguments, total), x[sources[objects] + ranks])
        got = mgpu.interval_move(x, arguments[0], targets.astype(to_targets), arguments[1], into, total=total)
        same_bits(got, oracle.moved(x, sources[objects] + ranks, targets[objects] + ranks, into))
        items = rows(rng, dtype, total, *trailing)
        got = mgpu.interval_scatter(items, targets.astype(to_targets), arguments[1], into)
        same_bits(got, oracle.moved(items, np.arange(total), targets[objects] + ranks, into))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64", "complex128", "bfloat16", "bool"])
def test_into_one_element(rng, dtype):
    lengths = rng.integers(0, 9, 3000)
    offsets, total = data.heads_of(lengths), int(lengths.sum())
    starts = shuffled_starts(rng, lengths)
    places = np.repeat(starts - offsets, lengths) + np.arange(total)
    for trailing in ((), (3,), (2, 5)):
        x, element = rows(rng, dtype, total, *trailing), rows(rng, dtype, 1)[0]
        into = np.full((total + 77, *trailing), element)

        @jax.jit
        def scatter(x, starts, element, shape=into.shape):
            return mgpu.interval_scatter(x, starts, offsets, jnp.full(shape, element))

        same_bits(scatter(x, starts, element), oracle.moved(x, np.arange(total), places, into))
        got = jax.jit(
            lambda x, shape=into.shape: mgpu.interval_move(x, starts, starts, offsets, jnp.zeros(shape, dtype))
        )
        same_bits(got(x), oracle.moved(x, places, places, np.zeros_like(into)))
        both = np.stack([x, x[::-1]]), np.stack([starts, starts]), element
        two = jax.device_get(jax.vmap(scatter, (0, 0, None))(*both))
        same_bits(two[1], oracle.moved(x[::-1], np.arange(total), places, into))


def test_into_one_element_is_not_made_by_the_program():
    x, at = jnp.ones(100), jnp.arange(10) * 10

    def lowered(into):
        return jax.jit(lambda x: mgpu.interval_scatter(x, at, at, into(x))).lower(x).as_text()

    for into in (lambda x: jnp.zeros(200), lambda x: jnp.full(200, x[3]), jnp.zeros_like):
        assert "output_operand_alias" not in lowered(into)
    assert "output_operand_alias" in lowered(lambda x: 2 * x)


def test_overlapping_sources_and_default_totals(rng):
    x = rows(rng, "int32", 50)
    starts, offsets = np.array([3, 3, 0, 45], np.int32), np.array([0, 10, 20, 25], np.int32)
    objects, ranks = oracle.work_items(offsets, 30)
    same_bits(mgpu.interval_gather(x, starts, offsets, 30), x[starts[objects] + ranks])
    into = rows(rng, "int32", 30)
    same_bits(mgpu.interval_scatter(x[:30], np.array([20, 10, 5, 0], np.int32), offsets, into),
              oracle.moved(x, np.arange(30), np.array([20, 10, 5, 0])[objects] + ranks, into))  # fmt: skip
    same_bits(mgpu.interval_move(x, starts, offsets, offsets, into), x[starts[objects] + ranks])


def test_rows_outside_are_dropped_and_gathered_as_fill_value(rng):
    x, into = rows(rng, "int32", 60), rows(rng, "int32", 40)
    starts = np.array([-3, 58, 10, -100, 2**31 - 9, 59], np.int32)
    places = np.array([5, 0, 38, -4, 12, 2**31 - 3], np.int32)
    offsets = np.array([0, 8, 16, 24, 40, 52], np.int32)
    objects, ranks = oracle.work_items(offsets, 60)
    sources, targets = starts[objects].astype(np.int64) + ranks, places[objects].astype(np.int64) + ranks
    inside = (sources >= 0) & (sources < 60)
    expected = np.where(inside, x[np.where(inside, sources, 0)], np.int32(-7))
    same_bits(mgpu.interval_gather(x, starts, offsets, 60, fill_value=-7), expected)
    distinct = np.array([5, 100, 34, -14, 20, 2**31 - 3], np.int32)  # some rows are inside, and none overlap
    targets = distinct[objects].astype(np.int64) + ranks
    same_bits(mgpu.interval_scatter(x, distinct, offsets, into), oracle.moved(x, np.arange(60), targets, into))
    same_bits(mgpu.interval_move(x, starts, distinct, offsets, into, total=60), oracle.moved(x, sources, targets, into))


def test_garbage_is_safe(rng):
    x = rows(rng, "float32", 500, 3)
    for _ in range(5):
        garbage = rng.integers(-(2**31), 2**31, (3, 4000)).astype(np.int32)
        assert mgpu.interval_expand(x, garbage[0, :500], 9000).shape == (9000, 3)
        assert mgpu.interval_gather(x, garbage[1], garbage[0], 9000).shape == (9000, 3)
        assert mgpu.interval_scatter(x, garbage[1], garbage[0], x).shape == x.shape
        assert mgpu.interval_move(x, garbage[2], garbage[1] % 500, garbage[0] % 500, x).shape == x.shape


def test_counts_and_offsets_are_traced_and_of_any_integer_type(rng):
    values = rows(rng, "int32", 30)
    lengths = rng.integers(0, 5, 30)
    expand = jax.jit(lambda v, offsets, total: mgpu.interval_expand(v, offsets, 90, total=total))
    for dtype in ("uint8", "int16", "uint32", "int64", "uint64"):
        offsets = data.heads_of(lengths).astype(dtype)
        for total in (0, 40, int(lengths.sum())):
            objects, _ = oracle.work_items(offsets, total)
            same_bits(expand(values, offsets, np.int32(total)), oracle.padded(values[objects], 90, 0))


def batch_arguments(rng):
    lengths = rng.integers(0, 6, (3, 300))
    offsets = np.stack([data.heads_of(row) for row in lengths])
    x = rng.integers(0, 99, (3, 2000, 3)).astype(np.int16)
    starts = np.stack([shuffled_starts(rng, row) for row in lengths])
    return x, starts, offsets, lengths.sum(1).astype(np.int32), -x


OPERATIONS = {
    "expand": lambda x, starts, offsets, total, into: mgpu.interval_expand(x[:300], offsets, 1601, total=total),
    "gather": lambda x, starts, offsets, total, into: mgpu.interval_gather(x, starts, offsets, 1601, total=total),
    "scatter": lambda x, starts, offsets, total, into: mgpu.interval_scatter(x, starts, offsets, into, total=total),
    "move": lambda x, starts, offsets, total, into: mgpu.interval_move(
        x, starts, starts[::-1], offsets, into, total=total
    ),
}


def spaced_starts(repeats):
    """Returns non-overlapping places for 300 intervals of at most 5 items."""
    return np.tile(np.arange(300, dtype=np.int32) * 6, repeats)


IN_AXES = [(0, 0, 0, 0, 0), (0, None, None, None, None), (None, 0, 0, 0, None), (None, None, 0, 0, 0), (1, 0, 1, 0, 2)]


@pytest.mark.parametrize("in_axes", IN_AXES, ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_batch(rng, operation, in_axes):
    function = OPERATIONS[operation]
    arguments = batch_arguments(rng)
    if operation in ("scatter", "move"):  # targets do not overlap, whichever operands are mapped
        arguments = (arguments[0], spaced_starts((3, 1)), *arguments[2:])
    one = [x if axis is not None else x[0] for x, axis in zip(arguments, in_axes, strict=True)]
    moved = [x if axis is None else np.moveaxis(x, 0, axis) for x, axis in zip(one, in_axes, strict=True)]
    mapped = jax.vmap(function, in_axes)
    assert str(jax.make_jaxpr(mapped)(*moved)).count(" mgpu_") == 1
    got = np.asarray(jax.jit(mapped)(*moved))
    for i in range(3):
        same_bits(got[i], np.asarray(function(*[x if a is None else x[i] for x, a in zip(one, in_axes, strict=True)])))


def test_a_batch_of_no_problems():
    x, starts = np.zeros((0, CACHED), np.float32), np.arange(CACHED, dtype=np.int32)
    gather = jax.vmap(lambda x: mgpu.interval_gather(x, starts, starts, CACHED))
    scatter = jax.vmap(lambda x: mgpu.interval_scatter(x, starts, starts, x))
    assert gather(x).shape == scatter(x).shape == x.shape


SHORT_ROWS = [(1, 1), (4, 8), (17, 3), (9, 100), (200, 700), (1100, 3000)]
SHORT_WIDE_ROWS = [(shape, trailing) for trailing in ((3,), (9,)) for shape in SHORT_ROWS] + [((4, 8), (600,))]


@pytest.mark.parametrize(("shape", "trailing"), [(shape, ()) for shape in SHORT_ROWS] + SHORT_WIDE_ROWS, ids=str)
def test_short_rows(rng, shape, trailing):
    m, size = shape
    batch = data.batch_of(max(shape) * (1 if trailing == () else 4), data.WORK_ROWS)
    lengths = rng.integers(0, 2 * size // m + 2, (batch, m))
    offsets = np.stack([data.heads_of(row) for row in lengths])
    totals = np.minimum(data.row_counts(rng, size, batch), lengths.sum(1)).astype(np.int32)
    places = int(lengths.sum(1).max())
    starts = np.stack([shuffled_starts(rng, row) for row in lengths])
    values, x, into = (
        rows(rng, "int16", batch * n, *trailing).reshape(batch, n, *trailing) for n in (m, places, places)
    )
    fills = rng.integers(0, 9, batch).astype(np.int16)
    expand = jax.vmap(lambda v, o, t, f: mgpu.interval_expand(v, o, size, total=t, fill_value=f))(
        values, offsets, totals, fills
    )
    gather = jax.vmap(lambda x, s, o, t: mgpu.interval_gather(x, s, o, size, total=t))(x, starts, offsets, totals)
    scatter = jax.vmap(lambda s, o, t, into: mgpu.interval_scatter(x[0], s, o, into, total=t))(
        starts, offsets, totals, into
    )
    expand, gather, scatter = (np.asarray(x) for x in (expand, gather, scatter))
    for i in range(batch):
        objects, ranks = oracle.work_items(offsets[i], oracle.live_count(totals[i], size))
        same_bits(expand[i], oracle.padded(values[i][objects], size, fills[i]))
        same_bits(gather[i], oracle.padded(x[i][starts[i][objects] + ranks], size, 0))
        objects, ranks = oracle.work_items(offsets[i], oracle.live_count(totals[i], places))
        same_bits(scatter[i], oracle.moved(x[0], np.arange(len(objects)), starts[i][objects] + ranks, into[i]))


def test_nested_batch_with_a_shared_fill_and_into(rng):
    x, starts, offsets, totals, into = batch_arguments(rng)
    nested = jax.vmap(jax.vmap(OPERATIONS["scatter"], (None, 0, 0, 0, None)), (0, None, None, None, None))
    got = nested(x[:2], starts, offsets, totals, into[0])
    for i in range(2):
        for j in range(3):
            same_bits(got[i, j], np.asarray(OPERATIONS["scatter"](x[i], starts[j], offsets[j], totals[j], into[0])))


@pytest.mark.parametrize("gathers", [False, True])
def test_into_is_kept_unless_donated(rng, gathers):
    x, _, offsets, totals, into = (a[0] for a in batch_arguments(rng))
    starts, into = spaced_starts((1,)), jnp.add(into, 0)  # a JAX array: memory that NumPy shares is not donated
    before = np.array(into)
    move = OPERATIONS["move" if gathers else "scatter"]
    expected = np.asarray(jax.jit(move)(x, starts, offsets, totals, into))
    same_bits(into, before)
    pointer = into.unsafe_buffer_pointer()
    got = jax.jit(move, donate_argnums=4)(x, starts, offsets, totals, into)
    assert into.is_deleted()
    assert got.unsafe_buffer_pointer() == pointer
    same_bits(got, expected)


def test_derivatives(rng):
    offsets, total = np.array([0, 0, 3, 7, 7, 9], np.int32), 12
    starts, distinct = np.array([0, 2, 5, 6, 1, 4], np.int32), np.array([0, 9, 4, 0, 13, 17], np.int32)
    values, x, into = (jnp.asarray(rng.normal(size=shape)) for shape in ((6, 2), (14, 2), (24, 2)))
    fill = jnp.asarray(1.5)

    def check(function, *xs, order=1):
        check_grads(jax.jit(function), xs, order=order, modes=["fwd", "rev"])

    check(lambda v, f: mgpu.interval_expand(v, offsets, 15, total=total, fill_value=f), values, fill, order=2)
    check(lambda x, f: mgpu.interval_gather(x, starts, offsets, 15, total=total, fill_value=f), x, fill)
    check(lambda x: mgpu.interval_gather(x, distinct, offsets, 15, total=total), x)
    check(lambda x, i: mgpu.interval_scatter(x, distinct, offsets, i, total=total), x, into)
    check(lambda x, i: mgpu.interval_move(x, starts, distinct, offsets, i, total=total), x, into)


def test_derivatives_in_a_batch_and_of_one_operand(rng):
    offsets = np.array([[0, 2, 2], [0, 0, 5]], np.int32)
    values = rng.normal(size=(3,))
    weights = rng.normal(size=(2, 8))

    def loss(values):
        expanded = jax.vmap(lambda o: mgpu.interval_expand(values, o, 8, total=7))(offsets)
        return jnp.sum(expanded * weights)

    expected = np.zeros(3)
    for i in range(2):
        np.add.at(expected, oracle.work_items(offsets[i], 7)[0], weights[i, :7])
    np.testing.assert_allclose(jax.grad(loss)(values), expected)
    into_grad = jax.grad(lambda i: jnp.sum(mgpu.interval_scatter(values, [1], [0], i, total=2) * 3.0))(jnp.ones(5))
    np.testing.assert_array_equal(into_grad, [3, 0, 0, 3, 3])


def test_cotangents_of_overlapping_intervals_add_up(rng):
    starts = np.array([[0, 2, 5], [3, 0, 3]], np.int32)  # first without, then with overlap
    offsets = np.array([0, 2, 5], np.int32)
    weights = rng.normal(size=(2, 8, 2)) + 1j * rng.normal(size=(2, 8, 2))
    gather = jax.vmap(lambda x, s: mgpu.interval_gather(x, s, offsets, 8), (None, 0))
    _, pull = jax.vjp(lambda x: gather(x, starts), jnp.zeros((9, 2), complex))
    objects, ranks = oracle.work_items(offsets, 8)
    expected = np.zeros((9, 2), complex)
    for i in range(2):
        np.add.at(expected, starts[i][objects] + ranks, weights[i])
    np.testing.assert_allclose(pull(jnp.asarray(weights))[0], expected)


def windows(hop, length, count, first=0):
    """Returns starts and lengths of windows, each `hop` rows after the previous one."""
    starts = np.arange(first, count, hop, dtype=np.int32)
    return starts, np.full(len(starts), length, np.int32)


def overlapping(rng):
    """Returns starts and lengths over 3,000 rows for each pattern of overlap."""
    count, even = 3000, np.arange(0, 3000, 6, dtype=np.int32)
    starts, lengths = windows(8, 16, count)
    order = rng.permutation(len(starts))
    mixed = np.sort(rng.integers(-40, count, 900)).astype(np.int32)
    mixed_ends = np.sort(rng.integers(-40, count + 40, 900)).astype(np.int32)
    random_starts = rng.integers(-20, count + 20, 500).astype(np.int32)
    return {
        "windows": (starts, lengths),
        "windows in any order": (starts[order], lengths),
        "windows past both ends": windows(5, 33, count, -100),
        "windows of 60 at each row": windows(1, 60, count),
        "windows of 150 at each row": windows(1, 150, count),
        "apart": (even, np.full(500, 5, np.int32)),
        "apart in any order": (rng.permutation(even), rng.integers(0, 6, 500).astype(np.int32)),
        "of any lengths": (mixed, np.maximum(mixed_ends - mixed, 0)),
        "one row, 64 times": (np.sort(np.repeat(even[:50], 64)), np.ones(3200, np.int32)),
        "one row, very often": (np.sort(np.append(even, np.full(4000, 7, np.int32))), np.ones(4500, np.int32)),
        "nested": (random_starts, rng.integers(0, 300, 500).astype(np.int32)),
        "extreme": (np.array([-(2**31), -5, 2990, 2**31 - 1], np.int32), np.array([9, 9, 90, 9], np.int32)),
        "empty": (random_starts, np.zeros(500, np.int32)),
        "one": (np.array([7], np.int32), np.array([900], np.int32)),
    }


def pulled_back(starts, lengths, weights, count, total=None, **given):
    """Returns the gradient of a weighted sum of gathered rows, and the expected one."""
    offsets = data.heads_of(lengths)
    live = int(lengths.sum()) if total is None else total
    like = jax.ShapeDtypeStruct((count, *weights.shape[1:]), weights.dtype)

    @jax.jit
    def transpose(starts, offsets, weights):
        def gather(x):
            return mgpu.interval_gather(x, starts, offsets, weights.shape[0], total=live)

        return jax.linear_transpose(gather, like)(weights)[0]

    objects, ranks = oracle.work_items(offsets, live)
    places = starts[objects].astype(np.int64) + ranks
    inside = (places >= 0) & (places < count)
    kind = complex if jnp.iscomplexobj(weights) else np.float64
    expected = np.zeros(like.shape, kind)
    np.add.at(expected, places[inside], np.asarray(weights[:live]).astype(kind)[inside])
    return transpose(given.get("starts", starts), given.get("offsets", offsets), weights), expected


def whole_weights(rng, n, *trailing, dtype="float32"):
    """Draws small whole numbers."""
    return rng.integers(-4, 5, (n, *trailing)).astype(jnp.dtype(dtype))


@pytest.mark.parametrize("pattern", overlapping(np.random.default_rng(0)))
def test_rows_gathered_several_times(rng, pattern):
    starts, lengths = overlapping(rng)[pattern]
    size = int(lengths.sum()) + 3
    for trailing in ((), (2,), (4,), (3, 7)) if size < 10**5 else ((), (7,)):
        got, expected = pulled_back(starts, lengths, whole_weights(rng, size, *trailing), 3000)
        np.testing.assert_array_equal(got, expected)
    got, expected = pulled_back(starts, lengths, whole_weights(rng, size), 3000, total=size // 2)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64", "float8_e4m3fn"])
@pytest.mark.parametrize("width", [1, 8, 40, 2600])
def test_rows_of_each_float_gathered_several_times(rng, dtype, width):
    for starts, lengths in (windows(3, 9, 400), windows(1, 40, 60)):
        weights = whole_weights(rng, int(lengths.sum()), width, dtype=dtype)
        got, expected = pulled_back(starts, lengths, weights, 400)
        same = np.asarray(got).astype(expected.dtype)
        np.testing.assert_array_equal(same, np.asarray(expected.astype(got.dtype)).astype(expected.dtype))
    if dtype in ("float16", "bfloat16"):  # sums are 6060, but these types hold all integers only to 2048 or 256
        starts, lengths = np.zeros(3000, np.int32), np.ones(3000, np.int32)
        starts[:] = np.arange(3000) // 60
        got, expected = pulled_back(starts, lengths, jnp.full((3000, width), 101, dtype), 50)
        np.testing.assert_array_equal(np.asarray(got).astype(float), np.asarray(expected.astype(dtype)).astype(float))


@pytest.mark.parametrize("n", [1, 255, 2048, 2049, 100_000])
def test_rows_gathered_several_times_around_the_edges_of_tiles(rng, n):
    for hop, length in ((1, 3), (700, 1500), (2047, 2049)):
        starts, lengths = windows(hop, length, n)
        for trailing in ((), (5,)):
            got, expected = pulled_back(starts, lengths, whole_weights(rng, int(lengths.sum()), *trailing), n)
            np.testing.assert_array_equal(got, expected)


def test_rows_gathered_several_times_in_a_batch_and_by_indices_of_64_bits(rng):
    starts, lengths = windows(4, 10, 100)
    offsets, size = data.heads_of(lengths), int(lengths.sum())
    weights = whole_weights(rng, 3 * size, 2).reshape(3, size, 2)
    many = np.stack([starts, starts[rng.permutation(len(starts))], np.zeros_like(starts)])

    def transposed(weights, starts):
        def gather(x):
            return mgpu.interval_gather(x, starts, offsets.astype(starts.dtype), size)

        return jax.linear_transpose(gather, jax.ShapeDtypeStruct((100, 2), np.float32))(weights)[0]

    expected = [[pulled_back(at, lengths, one, 100)[1] for at in many] for one in weights]
    for axes, dtype in (((0, 0), np.int32), ((None, 0), np.int64), ((0, None), np.int32), ((0, None), np.int64)):
        of_weights, of_starts = (range(3) if axis == 0 else [0] * 3 for axis in axes)
        mapped = jax.jit(jax.vmap(transposed, axes))
        for at in (many, many[[0, 0, 0]]):
            got = mapped(weights if axes[0] == 0 else weights[0], (at if axes[1] == 0 else at[0]).astype(dtype))
            places = [0, 1, 2] if at is many else [0, 0, 0]
            for i in range(3):
                np.testing.assert_array_equal(got[i], expected[of_weights[i]][places[of_starts[i]]])


def test_derivatives_of_rows_gathered_several_times(rng):
    offsets = np.array([0, 4, 8, 12], np.int32)

    @jax.jit
    def loss(x, starts):
        return jnp.sum(mgpu.interval_gather(x, starts, offsets, 16) ** 3)

    x = jnp.asarray(rng.normal(size=(10, 2)))
    for starts in ([0, 2, 4, 6], [4, 0, 6, 2], [0, 5, 0, 3]):
        check_grads(functools.partial(loss, starts=np.array(starts, np.int32)), (x,), order=2, modes=["fwd", "rev"])
    gradient = jax.jit(jax.grad(loss))
    check_grads(functools.partial(gradient, starts=np.array([0, 2, 4, 6], np.int32)), (x,), order=2, modes=["rev"])


def test_sums_of_windows_have_a_kernel_without_scratch_memory():
    x, starts = jnp.zeros(1000), jnp.arange(0, 990, 5)

    def loss(x, starts):
        return jnp.sum(mgpu.interval_gather(x, starts, starts * 2, 1980) ** 2)

    adding = [call for call in kernel_calls(jax.grad(loss), x, starts) if call.params.get("adds")]
    assert sorted(call.params["gathers"] for call in adding) == [0, 1]  # for intervals in order, and for sorted ones
    assert all(scratch_bytes(call) == 0 for call in adding)


def test_sums_keep_their_order(rng):
    starts, lengths = windows(1, 50, 300)
    weights = rng.normal(size=(int(lengths.sum()), 3)).astype(np.float32)
    got, _ = pulled_back(starts, lengths, weights, 300)
    offsets = data.heads_of(lengths)
    expected = np.zeros((300, 3), np.float32)
    for start, offset in zip(starts, offsets, strict=True):
        part = weights[offset : offset + 50][: 300 - start]
        expected[start : start + 50] += part
    same_bits(got, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_cotangents_add_up_in_float32(dtype):
    total = jax.grad(lambda v: mgpu.interval_expand(v, np.array([0]), 5000).astype(jnp.float32).sum())(
        jnp.ones(1, dtype)
    )
    assert total.dtype == dtype and float(total[0]) == float(jnp.asarray(5000, dtype))


# ---- Properties, on static shapes, so that one program serves all examples ------------------------------------------

LENGTHS = st.lists(st.integers(0, 30), min_size=32, max_size=32)


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(LENGTHS, st.integers(0, 2**32 - 1))
def test_property_expand_then_reduce_counts(lengths, seed):
    values = np.random.default_rng(seed).integers(-1000, 1000, 32).astype(np.int32)
    expanded = np.asarray(mgpu.interval_expand(values, data.heads_of(np.array(lengths)), 960, total=sum(lengths)))
    sums = [int(part.sum()) for part in np.split(expanded, np.cumsum(lengths))[:-1]]
    np.testing.assert_array_equal(sums, np.array(lengths) * values)


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(LENGTHS, st.integers(0, 2**32 - 1))
def test_property_scatter_after_gather_restores(lengths, seed):
    rng = np.random.default_rng(seed)
    lengths = np.array(lengths)
    x, offsets, starts = rows(rng, "uint32", 960), data.heads_of(lengths), shuffled_starts(rng, lengths)
    gathered = mgpu.interval_gather(x, starts, offsets, 960, total=lengths.sum())
    restored = mgpu.interval_scatter(gathered, starts, offsets, np.zeros_like(x), total=lengths.sum())
    expected = x.copy()
    expected[lengths.sum() :] = 0
    same_bits(restored, expected)


def test_plain_jax_agrees(rng):
    for lengths in (np.repeat(rng.integers(0, 5, 20), 2), np.zeros(0, int)):
        offsets, total = data.heads_of(lengths), np.array([lengths.sum()], np.int32)
        objects, ranks = oracle.work_items(offsets, total[0])
        x, into, fill = rows(rng, "int32", 150, 2), rows(rng, "int32", 170, 2), np.array([5], np.int32)
        m = len(lengths)
        starts = shuffled_starts(rng, lengths)
        odd = starts.copy()
        odd[: m // 9] -= 30

        def run(name, *xs, **attributes):
            return jax.jit(functools.partial(REGISTRY[name].fallback, **attributes))(*map(jnp.asarray, xs))[0]

        same_bits(run("interval_expand", x[:m], offsets, total, fill, size=160), oracle.padded(x[:m][objects], 160, 5))
        sources = odd[objects] + ranks
        inside = ((sources >= 0) & (sources < 150))[:, None]
        expected = oracle.padded(np.where(inside, x[np.where(inside[:, 0], sources, 0)], np.int32(5)), 160, 5)
        same_bits(run("interval_gather", x, odd, offsets, total, fill, size=160, disjoint=0), expected)
        none = np.zeros(0, np.int32)
        got = run("interval_move", x, none, starts, offsets, total, into, gathers=0, adds=0)
        same_bits(got, oracle.moved(x, np.arange(len(objects)), starts[objects] + ranks, into))
        got = run("interval_move", x, odd, starts, offsets, total, into, gathers=1, adds=0)
        same_bits(got, oracle.moved(x, sources, starts[objects] + ranks, into))
        few, ones = whole_weights(rng, len(x), 2), np.ones((170, 2), np.float32)
        targets = np.repeat(data.heads_of(lengths[::2]), 2)  # begins and ends of intervals ascend
        for gathers, firsts, taken in ((0, none, np.arange(len(objects))), (1, odd, sources)):
            operands = (few, firsts, targets, offsets, total, ones)
            expected, is_there = ones.copy(), (taken >= 0) & (taken < len(x))
            np.add.at(expected, (targets[objects] + ranks)[is_there], few[taken[is_there]])
            np.testing.assert_array_equal(run("interval_move", *operands, gathers=gathers, adds=1), expected)
            kernels = jax.jit(functools.partial(REGISTRY["interval_move"].run, gathers=gathers, adds=1))
            np.testing.assert_array_equal(kernels([*map(jnp.asarray, operands)])[0], expected)


def test_errors():
    x, starts = jnp.zeros((5, 2)), jnp.array([0, 1])
    with pytest.raises(ValueError, match=r"interval_expand: offsets: expected the length of values, 5, got 2"):
        mgpu.interval_expand(x, starts, 9)
    with pytest.raises(
        ValueError, match=r"interval_expand: values: expected an array with a leading axis, got float64\[\]"
    ):
        mgpu.interval_expand(1.0, starts, 9)
    with pytest.raises(ValueError, match="interval_expand: fill_value: expected a scalar"):
        mgpu.interval_expand(x, jnp.arange(5), 9, fill_value=[1, 2])
    with pytest.raises(TypeError, match="interval_gather: starts: expected integers, got float32"):
        mgpu.interval_gather(x, starts.astype(jnp.float32), starts, 9)
    with pytest.raises(ValueError, match="interval_gather: offsets: expected the length of starts, 2, got 3"):
        mgpu.interval_gather(x, starts, jnp.arange(3), 9)
    with pytest.raises(TypeError, match="interval_scatter: into: expected the dtype of x, float64, got int32"):
        mgpu.interval_scatter(x, starts, starts, x.astype(jnp.int32))
    with pytest.raises(ValueError, match=r"interval_scatter: into: expected the rows of x, \[n,2\], got float64\[5\]"):
        mgpu.interval_scatter(x, starts, starts, x[:, 0])
    with pytest.raises(
        ValueError, match="interval_move: scatter_starts: expected the length of gather_starts, 2, got 3"
    ):
        mgpu.interval_move(x, starts, jnp.arange(3), starts, x)
