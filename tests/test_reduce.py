"""reduce, segmented_reduce and reduce_by_key against tests/oracle.py."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.functions.operators import Kind
from jax_mgpu._src.ops import reduce as reduce_primitives
from tests import data, oracle
from tests.test_scan import OPERATORS, compose, items, random_heads, same

pytestmark = pytest.mark.usefixtures("x64")

HEADS = 24
SIZES = sorted(
    {0, 1, 2, 3, 31, 32, 33, 63, 255, 1000, 300_001}
    | {tile + d for tile in data.tile_sizes("reduce") for d in (0, 1)}
    | {tile + d for tile in data.tile_sizes("segmented_reduce") for d in (-HEADS - 2, -2, -1)}
)


@functools.partial(jax.jit, static_argnames="op")
def every_form(x, heads, count, op):
    return (
        mgpu.reduce(x, op),
        mgpu.reduce(x, op, count=count),
        mgpu.segmented_reduce(x, heads, op),
        mgpu.segmented_reduce(x, heads, op, count=count),
    )


def check_every_form(x, heads, count, op):
    whole, counted, segmented, both = every_form(x, heads, count, op)
    same(whole, oracle.reduce(x, op))
    same(counted, oracle.reduce(x[: max(0, count)], op))
    same(segmented, oracle.segmented_reduce(x, heads, op))
    same(both, oracle.segmented_reduce(x, heads, op, count))


# ---- Operators, types, sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
@pytest.mark.parametrize("op", OPERATORS)
def test_every_operator_and_type(rng, op, dtype):
    n = 40_003
    x = items(rng, dtype, op, n)
    heads = random_heads(rng, n, 64)
    for count in (n, 32_769, 5, 0, -1):
        check_every_form(x, heads, count, op)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("op", ["add", "argmin"])
def test_sizes_round_the_edges_of_tiles(rng, op, dtype):
    for n in SIZES:
        x = items(rng, dtype, op, n)
        heads = random_heads(rng, n, HEADS)
        same(mgpu.reduce(x, op), oracle.reduce(x, op))
        same(mgpu.segmented_reduce(x, heads, op), oracle.segmented_reduce(x, heads, op))


@pytest.mark.parametrize(
    "m", [0, 1, 2, *(tile + d for tile in data.tile_sizes("segmented_reduce")[:-1] for d in (-3, -2, -1)), 40_000]
)
def test_numbers_of_heads(rng, m):
    for n in (0, 1, 5000):
        x = items(rng, "int32", "add", n)
        heads = np.sort(rng.integers(0, n + 2, m)).astype(np.int32)
        same(mgpu.segmented_reduce(x, heads), oracle.segmented_reduce(x, heads, "add"))


@pytest.mark.parametrize("op", ["add", "min"])
def test_segments_of_every_kind(rng, op):
    n = 40_000
    x = items(rng, "int32", op, n)
    lengths = {
        "one of everything": np.append(n, np.zeros(n - 1, np.int64)),
        "all of one item": np.ones(n, np.int64),
        "all empty but one": np.append(np.zeros(n - 1, np.int64), n),
        "half of everything in one": np.append(np.ones(n - 1, np.int64), n),
        "heavy tail": (3 * (1 - rng.random(n)) ** (-2 / 3)).astype(np.int64),
        "pairs": np.full(n, 2),
    }
    for kind in lengths.values():
        heads = np.minimum(np.append(0, np.cumsum(kind)[:-1]), n + 5).astype(np.int32)
        same(mgpu.segmented_reduce(x, heads, op), oracle.segmented_reduce(x, heads, op))


@pytest.mark.parametrize("dtype", ["int8", "float32", "int64"])
@pytest.mark.parametrize("op", ["add", "argmax"])
def test_long_segments(rng, op, dtype):
    n = 100_003
    x = items(rng, dtype, op, n)
    lengths = np.array([0, 1, 2, 127, 128, 129, 255, 256, 257, 511, 1000, 1023, 1024, 1025, 4063, 4064, 4065, 9000])
    for often in (lengths, lengths[:12], lengths[-6:], np.append(np.zeros(9, np.int64), lengths[-6:])):
        ends = np.minimum(np.cumsum(rng.choice(often, 600)), n)
        heads = np.append(rng.integers(0, 2, 1), ends[:-1]).astype(np.int32)
        for count in (n, n // 2 + 1):
            check_every_form(x, heads, count, op)


@pytest.mark.parametrize("m", [2, 3, 9, 35, 63, 72, 73, 100, 145, 700, 1150, 1300])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("op", "dtype"), [("add", "int32"), ("argmax", "int8")])
def test_few_segments_of_many_tiles(rng, op, dtype, rows, m):
    n = 300_001
    x = items(rng, dtype, op, rows, n)
    anywhere = rng.integers(0, n + 1, m)
    tile = {"int32": 4096, "int8": 2048}[dtype]
    for places in (
        anywhere,
        np.where(anywhere < n // 2, 7, anywhere),
        np.where(anywhere < n // 2, 0, n),
        n - 50 + anywhere % 99,
        n // 2 + np.arange(m) // 4 * 3,
        tile * 5 + np.arange(m) - m // 2,
        np.arange(m) // 31 * tile + tile // 2,  # 31 ends in the middle of each tile
        np.arange(m) * tile,
        np.arange(m) * tile + 1,
        np.arange(m) * 4064,
        np.arange(m) * 4063 - 9,
    ):
        heads = np.sort(places).astype(np.int32)
        counts = np.array([n, n // 3, 0], np.int32)[:rows]
        results = jax.vmap(lambda x, count, heads=heads: mgpu.segmented_reduce(x, heads, op, count=count))(x, counts)
        for row in range(rows):
            same(results[row], oracle.segmented_reduce(x[row], heads, op, counts[row]))


@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
@pytest.mark.parametrize("op", OPERATORS)
def test_short_segments(rng, op, dtype):
    n, m = 3000, 640
    x = items(rng, dtype, op, n)
    for longest in (1, 8, 9, 12, 30):
        ends = np.minimum(np.cumsum(rng.integers(0, longest + 1, m)), n)
        heads = np.append(0, ends[:-1]).astype(np.int32 if longest % 2 else np.int64)
        for count in (n, 1501):
            check_every_form(x, heads, count, op)


def test_short_segments_do_not_depend_on_the_others(rng):
    n, m = 50_000, 12_000
    x = np.where(rng.random(n) < 0.5, np.float32(-0.0), rng.normal(size=n).astype(np.float32))
    heads = np.append(0, np.cumsum(rng.integers(0, 9, m - 1))).astype(np.int32)
    bits = oracle.bits(mgpu.segmented_reduce(x, heads))
    for count in (n - 1, 30_000, 77):
        whole = np.searchsorted(heads, count, "right") - 1
        counted = oracle.bits(mgpu.segmented_reduce(x, heads, count=count))
        np.testing.assert_array_equal(counted[:whole], bits[:whole])


def test_items_before_the_first_head_belong_to_no_result():
    x = np.arange(1, 6, dtype=np.int32)
    same(mgpu.segmented_reduce(x, [2, 2, 4, 9]), np.array([0, 7, 5, 0], np.int32))
    same(mgpu.segmented_reduce(x, [2, 2, 4, 9], "argmax"), np.array([-1, 3, 4, -1], np.int32))
    same(mgpu.segmented_reduce(x, [2, 2, 4], count=3), np.array([0, 3, 0], np.int32))
    same(mgpu.segmented_reduce(x, np.zeros(0, np.int32)), np.zeros(0, np.int32))


def test_heads_out_of_order_or_range_are_safe(rng):
    n = 20_000
    x = items(rng, "int32", "add", n)
    lapses = np.arange(9000)
    lapses[::50] -= rng.integers(0, 2, 180) * 10
    wrapping = np.arange(9000) // 2
    wrapping[5000:5002] = 2**31 - 1, -5
    for heads in (
        rng.integers(-n, 2 * n, 9000),
        rng.integers(-n, 2 * n, 50),
        np.arange(9000)[::-1],
        np.full(9000, -7),
        rng.integers(-n, 2 * n, 9),
        np.arange(20)[::-1] * 1000,
        np.full(9000, 2**31 - 1),
        2**31 - 100 + np.arange(9000),
        np.arange(9000) - 4500,
        lapses,
        wrapping,
    ):
        for count in (n, 100):
            assert mgpu.segmented_reduce(x, heads.astype(np.int32), count=count).shape == heads.shape


@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
@pytest.mark.parametrize("op", OPERATORS)
def test_nothing_gives_the_identity(op, dtype):
    x = np.zeros(0, jnp.dtype(dtype))
    identity = oracle.identity(op, oracle.summed(x, op).dtype)
    same(mgpu.reduce(x, op), identity)
    same(mgpu.segmented_reduce(x, np.zeros(3, np.int32), op), np.full(3, identity))


def test_the_first_extremum_wins():
    x = np.array([2.0, -0.0, 0.0, 5.0, 5.0], np.float32)
    same(mgpu.reduce(x, "argmin"), np.int32(1))
    same(mgpu.reduce(x, "argmax"), np.int32(3))
    x[[1, 3]] = np.nan
    for op in ("argmin", "argmax"):
        same(mgpu.reduce(x, op), np.int32(1))
    assert np.isnan(mgpu.reduce(x, "min")) and np.isnan(mgpu.reduce(x, "max"))


@pytest.mark.parametrize("op", ["argmin", "argmax"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_first_extrema_among_floats_of_every_class(rng, dtype, op):
    classes = [
        [0.0, -0.0],
        [np.inf],
        [-np.inf],
        [-np.inf, np.inf, 0.0, -0.0],
        [np.nan, -np.nan, -np.inf],
        [-3.0, 2.0, 2.0, -3.0],
        [1.0] * 40 + [np.nan, -np.inf, np.inf],
    ]
    for n in (1, 3, 4, 30, 77, 257, 1000, 20_001):
        x = np.stack([rng.choice(np.array(values, np.float32), n) for values in classes]).astype(jnp.dtype(dtype))
        expected = [oracle.reduce(row, op) for row in x]
        same(jax.jit(jax.vmap(functools.partial(mgpu.reduce, op=op)))(x), np.stack(expected))
        same(mgpu.reduce(x[-1], op), expected[-1])


def test_denormal_halfs_count():
    """XLA's threads flush denormal floats, but a denormal float16 is a normal float32."""
    x = np.full(1000, 1e-5, np.float16)
    expected = np.float16(x.astype(np.float32).sum())
    same(mgpu.reduce(x), expected)
    same(mgpu.scan(x)[-1], expected)
    same(mgpu.segmented_reduce(x, [0, 500]), np.full(2, x[:500].astype(np.float32).sum(), np.float16))
    same(mgpu.reduce(np.array([1e-5, 4096], np.float16), "mul"), np.float16(np.float32(np.float16(1e-5)) * 4096))


def test_float_sums_are_accurate_and_the_same_in_every_run(rng):
    x = rng.normal(size=1_000_003).astype(np.float32)
    heads = random_heads(rng, x.size, 50)
    exact = np.sum(x.astype(np.float64))
    total, sums = mgpu.reduce(x), mgpu.segmented_reduce(x, heads)
    assert abs(float(total) - exact) < 1e-2
    same(total, np.asarray(jax.jit(mgpu.reduce)(x)))
    bounds = np.append(np.minimum(heads, x.size), x.size)
    for got, begin, end in zip(np.asarray(sums), bounds[:-1], bounds[1:], strict=True):
        assert abs(got - x[begin:end].astype(np.float64).sum()) < 1e-3
    for _ in range(3):
        np.testing.assert_array_equal(oracle.bits(mgpu.reduce(x)), oracle.bits(np.asarray(total)))
        np.testing.assert_array_equal(oracle.bits(mgpu.segmented_reduce(x, heads)), oracle.bits(np.asarray(sums)))


# ---- Batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["add", "argmax"])
@pytest.mark.parametrize(("rows", "n"), [(1, 100), (70, 1000), (5, 8192), (3, 70_001), (300, 7), (3, 0), (400, 16_411)])
def test_batches(rng, op, rows, n):
    x = items(rng, "float32", op, rows, n)
    counts = np.resize(np.array([n, n // 2, 0, n - 1], np.int32), rows)
    heads = np.stack([random_heads(rng, n, 16) for _ in range(rows)])
    results = jax.vmap(functools.partial(mgpu.reduce, op=op))(x)
    counted = jax.vmap(lambda x, c: mgpu.reduce(x, op, count=c))(x, counts)
    segmented = jax.vmap(lambda x, h, c: mgpu.segmented_reduce(x, h, op, count=c))(x, heads, counts)
    for row in range(rows):
        same(results[row], oracle.reduce(x[row], op))
        same(counted[row], oracle.reduce(x[row, : max(0, counts[row])], op))
        same(segmented[row], oracle.segmented_reduce(x[row], heads[row], op, counts[row]))


ROW_LENGTHS = [1, 2, 4, 7, 8, 16, 24, 48, 96, 100, 128, 144, 384, 496, 512, 528, 768, 1000, 1024, 1536, 2048, 4096]
ROW_LENGTHS += [8192, 16_384]


@pytest.mark.parametrize("n", ROW_LENGTHS)
@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("add", "float32"),
        ("add", "uint8"),
        ("mul", "int64"),
        ("max", "bfloat16"),
        ("argmax", "float32"),
        ("argmin", "uint8"),
    ],
    ids=str,
)
def test_short_whole_rows(rng, op, dtype, n):
    for batch in (1, 2 * max(1, 4096 // n) + 1):
        x = items(rng, dtype, op, batch, n)
        whole = np.asarray(jax.jit(jax.vmap(lambda row: mgpu.reduce(row, op)))(x))
        for row in range(batch):
            same(whole[row], oracle.reduce(x[row], op))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "float16", "bfloat16", "float32", "int64", "float64"])
def test_small_batches_of_sums(rng, dtype):
    batches = [items(rng, dtype, "add", *shape) for shape in ((1, 9), (70, 1000), (300, 7), (3, 0))]
    sums = jax.jit(lambda batches: [jax.vmap(mgpu.reduce)(x) for x in batches])
    others = jax.jit(lambda batches: [jax.vmap(mgpu.reduce)(x * 1) * 2 for x in batches])
    for x, got, twice in zip(batches, sums(batches), others(batches), strict=True):
        for row, one in zip(x, np.asarray(got), strict=True):
            same(one, oracle.reduce(row, "add"))
        np.testing.assert_array_equal(np.asarray(twice), np.asarray(got * 2))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint32", "int64"])
def test_plain_sums_of_integers_wrap(rng, dtype):
    limits = np.iinfo(dtype)
    x = rng.integers(limits.min, limits.max, 1000, dtype, endpoint=True)
    for x64 in (False, True) if x.itemsize < 8 else (True,):
        with jax.enable_x64(x64):
            (got,) = reduce_primitives._reduce.fallback(x, ABSENT, op=Kind.ADD, wide=0)
            same(got, oracle.total(x, "add"))
            (wide,) = reduce_primitives._reduce.fallback(x, ABSENT, op=Kind.ADD, wide=1)
            same(wide, oracle.reduce(x, "add"))


@pytest.mark.parametrize(("n", "columns"), [(100, 1), (700, 29), (9000, 64), (70_001, 8), (3, 300), (0, 5)])
@pytest.mark.parametrize(
    ("op", "dtype"), [("add", "int16"), ("mul", "float64"), ("max", "bfloat16"), ("argmin", "int32")]
)
def test_batches_of_columns(rng, op, dtype, n, columns):
    x = items(rng, dtype, op, n, columns)
    heads = np.sort(random_heads(rng, n, 40))
    for count in (None, n // 3):
        of_column = functools.partial(mgpu.segmented_reduce, heads=heads, op=op, count=count)
        results = np.asarray(jax.jit(jax.vmap(of_column, 1, 1))(x))
        for column in range(0, columns, 7):
            same(results[:, column], oracle.segmented_reduce(x[:, column], heads, op, count))


def test_columns_are_read_where_they_lie(rng):
    x, heads = items(rng, "float32", "add", 500, 64), np.arange(0, 500, 9, np.int32)

    def text(axis):
        reduced = jax.jit(jax.vmap(lambda x: mgpu.segmented_reduce(x, heads), axis, axis))
        return reduced.lower(x if axis else x.T).compile().as_text()

    if jax.default_backend() == "cpu":
        assert "jax_mgpu.reduce_rows" in text(1) and " transpose(" not in text(1) and " copy(" not in text(1)
        assert "jax_mgpu.segmented_reduce" in text(0)


def test_derivatives_of_columns(rng):
    x, heads = rng.normal(size=(40, 3)), jnp.array([0, 7, 7, 30])
    reduced = jax.vmap(lambda column: mgpu.segmented_reduce(column, heads), 1, 1)
    check_grads(jax.jit(reduced), (x,), 2)


def test_batches_of_any_mix_of_operands(rng):
    rows, n = 6, 3000
    x = items(rng, "int32", "add", rows, n)
    heads = np.stack([random_heads(rng, n, 16) for _ in range(rows)])
    counts = np.array([0, 1, 2999, 3000, 1500, -2], np.int32)

    def reductions(x, heads, count):
        return mgpu.reduce(x, count=count), mgpu.segmented_reduce(x, heads, count=count)

    for axes in [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0), (1, None, 0)]:
        all_rows = (x, heads, counts)
        operands = [a if axis is not None else a[2] for a, axis in zip(all_rows, axes, strict=True)]
        whole, segmented = jax.vmap(reductions, in_axes=axes)(
            operands[0].T if axes[0] == 1 else operands[0], *operands[1:]
        )
        for row in range(rows):
            one = [a[row] if axis is not None else a[2] for a, axis in zip(all_rows, axes, strict=True)]
            same(np.broadcast_to(whole, rows)[row], oracle.reduce(one[0][: max(0, one[2])], "add"))
            same(segmented[row], oracle.segmented_reduce(one[0], one[1], "add", one[2]))


@pytest.mark.parametrize("shape", [(1, 1), (3, 8), (8, 4), (100, 100), (1000, 33), (2048, 2049), (4096, 2700)], ids=str)
@pytest.mark.parametrize(("op", "dtype"), [("add", "int32"), ("max", "bfloat16"), ("argmin", "float64")], ids=str)
def test_short_rows(rng, op, dtype, shape):
    n, m = shape
    batch = data.batch_of(max(shape))
    x = items(rng, dtype, op, batch, n)
    heads = np.sort(rng.integers(0, n + 2, (batch, m)), axis=1).astype(np.int32)
    counts = data.row_counts(rng, n, batch)
    reduce = jax.jit(jax.vmap(lambda x, h, c: mgpu.segmented_reduce(x, h, op, count=c)))
    shared = jax.jit(jax.vmap(lambda x: mgpu.segmented_reduce(x, heads[0], op)))
    of_rows, of_one = np.asarray(reduce(x, heads, counts)), np.asarray(shared(x))
    for row in range(batch):
        same(of_rows[row], oracle.segmented_reduce(x[row], heads[row], op, counts[row]))
        same(of_one[row], oracle.segmented_reduce(x[row], heads[0], op))


# ---- Runs of equal keys ---------------------------------------------------------------------------------------------


def runs_of(keys, values, op, count):
    """Returns each run's key and combined values."""
    ranks = oracle.rank(keys)[:count]
    heads = [i for i in range(count) if i == 0 or ranks[i] != ranks[i - 1]]
    return keys[heads], oracle.segmented_reduce(values, np.array(heads, np.int32), op, count)


@pytest.mark.parametrize("dtype", ["int8", "float32", "bfloat16", "uint64"])
@pytest.mark.parametrize("op", ["add", "argmax"])
def test_reduce_by_key(rng, op, dtype):
    n = 3000
    keys = np.repeat(data.random_keys(rng, dtype, n), rng.integers(1, 5, n))[:n]
    values = items(rng, "int32", op, n)
    reduced = jax.jit(mgpu.reduce_by_key, static_argnames=("op", "size"))
    for count, size in ((n, n), (n, 100), (1500, n), (1, 100), (0, 100), (n, 0)):
        expected_keys, expected = runs_of(keys, values, op, count)
        got_keys, got, runs = jax.device_get(reduced(keys, values, op, size=size, count=np.int32(count)))
        assert runs == len(expected)
        kept = min(size, len(expected))
        np.testing.assert_array_equal(oracle.bits(got_keys[:kept]), oracle.bits(expected_keys[:kept]))
        same(got[:kept], expected[:kept])
        assert not np.any(np.asarray(got_keys[kept:], np.float64)) and np.all(
            got[kept:] == (-1 if op == "argmax" else 0)
        )


@pytest.mark.parametrize("dtype", ["int8", "uint32", "float64"])
def test_runs_round_the_edges_of_tiles(rng, dtype):
    for n in (31, *(tile + d for tile in data.tile_sizes("run_heads") for d in (-1, 0, 1)), 40_000):
        for runs_keys in (np.arange(n) % 7, np.arange(n) // 3, np.zeros(n), np.sort(rng.integers(0, 100, n))):
            keys = runs_keys.astype(dtype)
            expected_keys, expected = runs_of(keys, np.ones(n, np.int32), "add", n)
            got_keys, got, runs = mgpu.reduce_by_key(keys, np.ones(n, np.int32), size=n)
            assert runs == len(expected)
            same(got_keys, np.append(expected_keys, np.zeros(n - len(expected), dtype)))
            same(got, np.append(expected, np.zeros(n - len(expected), np.int32)))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
def test_tiles_with_few_runs_and_with_many(rng, dtype):
    for tile in data.tile_sizes("run_heads"):
        few = tile // 16
        counts = np.array([few, 0, tile, few + 1, 1, few - 1, few, 0, 2, tile // 2])
        heads = np.zeros((len(counts), tile), bool)
        for row, count in zip(heads, counts, strict=True):
            row[rng.permutation(tile)[:count]] = True
        heads[0, 0] = True
        n = heads.size - 5
        keys = (np.cumsum(heads) % 100).astype(dtype)[:n]
        starts = np.flatnonzero(heads.reshape(-1)[:n])
        for size in (len(starts), few // 2, few + 3, few + tile - 9, few + tile + few // 2, len(starts) - 1):
            got_keys, got, runs = mgpu.reduce_by_key(keys, np.ones(n, np.int32), size=size)
            assert runs == len(starts)
            same(got_keys, keys[starts[:size]])
            same(got, np.diff(np.append(starts, n))[:size].astype(np.int32))


@pytest.mark.long
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("length", [2, 30, 100_000])
def test_runs_of_many_keys(rng, rows, length):
    n = 10_000_019 // rows
    heads = rng.random((rows, n)) < 1 / length
    heads[:, 0] = True
    keys = np.cumsum(heads, 1).astype(np.int32)
    count = np.arange(n, n - rows, -1, dtype=np.int32)
    runs = np.array([np.count_nonzero(row[:live]) for row, live in zip(heads, count, strict=True)])
    for size in (runs.max() + 1000, runs.min() // 2):
        reduced = jax.vmap(lambda k, c, size=size: mgpu.reduce_by_key(k, k * 0 + 1, size=int(size), count=c))
        got_keys, got, found = jax.device_get(reduced(keys, count))
        np.testing.assert_array_equal(found, runs)
        for row in range(rows):
            starts = np.append(np.flatnonzero(heads[row, : count[row]]), count[row])
            kept = min(size, runs[row])
            same(got_keys[row, :kept], np.arange(1, kept + 1, dtype=np.int32))
            same(got[row, :kept], np.diff(starts)[:kept].astype(np.int32))
            assert not got_keys[row, kept:].any() and not got[row, kept:].any()


@pytest.mark.parametrize("op", OPERATORS)
def test_slots_past_the_runs(rng, op):
    keys, values = np.repeat(np.arange(9), 5).astype(np.int32), items(rng, "int32", op, 45)
    _, expected = runs_of(keys, values, op, 45)
    for size in (0, 4, 9, 20):
        _, got, _ = mgpu.reduce_by_key(keys, values, op, size=size)
        kept = min(size, 9)
        same(got[:kept], expected[:kept])
        assert np.all(got[kept:] == (-1 if op.startswith("arg") else 0))


def test_batches_of_runs(rng):
    keys = rng.integers(0, 3, (6, 5000)).astype(np.float32)
    values = rng.integers(-9, 9, (6, 5000)).astype(np.int32)
    counts = np.array([5000, 4096, 4097, 1, 0, -3], np.int32)
    reduced = jax.vmap(lambda k, v, c: mgpu.reduce_by_key(k, v, size=2000, count=c))(keys, values, counts)
    for row, count in enumerate(np.maximum(counts, 0)):
        expected_keys, expected = runs_of(keys[row], values[row], "add", count)
        kept = min(2000, len(expected))
        assert reduced[2][row] == len(expected)
        for got, want in zip(reduced, (expected_keys, expected), strict=False):
            same(got[row], np.append(want[:kept], np.zeros(2000 - kept, want.dtype)))


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64", "bfloat16"])
@pytest.mark.parametrize("n", [1, 3, 8, 17, 100, 512, 1000, 2049, 4096, 4097])
def test_short_rows_of_runs(rng, n, dtype):
    batch = data.batch_of(n)
    keys = np.stack([np.repeat(data.random_keys(rng, dtype, n), rng.integers(1, 5, n))[:n] for _ in range(batch)])
    values = rng.integers(-9, 9, (batch, n)).astype(np.int32)
    counts = data.row_counts(rng, n, batch)
    for size in (n, (n + 3) // 4):
        reduce = jax.jit(jax.vmap(lambda k, v, c: mgpu.reduce_by_key(k, v, size=size, count=c)))  # noqa: B023
        got_keys, got, runs = map(np.asarray, reduce(keys, values, counts))
        for row in range(batch):
            expected_keys, expected = runs_of(keys[row], values[row], "add", oracle.live_count(counts[row], n))
            kept = min(size, len(expected))
            assert runs[row] == len(expected)
            np.testing.assert_array_equal(oracle.bits(got_keys[row, :kept]), oracle.bits(expected_keys[:kept]))
            same(got[row, :kept], expected[:kept])
            assert not np.any(oracle.bits(got_keys[row, kept:])) and not np.any(got[row, kept:])


def test_reduce_by_key_of_pytrees_functions_and_batches(rng):
    keys = np.array([[1, 1, 2, 2, 2, 1], [3, 3, 3, 3, 3, 3]], np.int32)
    values = {"a": rng.integers(0, 9, (2, 6)), "b": rng.normal(size=(2, 6))}
    _, sums, runs = jax.vmap(lambda k, v: mgpu.reduce_by_key(k, v, size=4))(keys, values)
    same(runs, np.array([3, 1], np.int32))
    same(sums["a"][0], np.array([*np.add.reduceat(values["a"][0], [0, 2, 5]), 0]))
    maps = rng.integers(-3, 4, (2, 6))
    _, composed, _ = mgpu.reduce_by_key(keys[0], tuple(maps), compose, size=4)
    for slot, (begin, end) in enumerate([(0, 2), (2, 5), (5, 6)]):
        same(np.stack(composed)[:, slot], np.stack(functools.reduce(compose, maps[:, begin:end].T)))
    keys, values, runs = mgpu.reduce_by_key(np.zeros(0, np.float32), np.zeros(0, np.float32), size=3)
    assert keys.shape == values.shape == (3,) and runs == 0


# ---- Functions ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_affine_maps_and_matrices(rng):
    maps = rng.integers(-2, 3, (2, 13))
    same(np.stack(mgpu.reduce(tuple(maps), compose)), np.stack(functools.reduce(compose, maps.T)))
    counted = mgpu.reduce(tuple(maps), compose, count=np.int32(0), identity=(1, 0))
    same(np.stack(counted), np.array([1, 0]))
    heads = np.array([2, 5, 5, 12, 40], np.int32)
    got = mgpu.segmented_reduce(tuple(maps), heads, compose, identity=(1, 0))
    for i, (begin, end) in enumerate([(2, 5), (5, 5), (5, 12), (12, 13), (13, 13)]):
        same(np.stack(got)[:, i], np.stack(functools.reduce(compose, maps[:, begin:end].T, np.array([1, 0]))))
    matrices = rng.integers(-2, 3, (12, 2, 2))
    same(mgpu.reduce(matrices, jnp.matmul), functools.reduce(np.matmul, matrices))


# ---- Derivatives ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "zeros"),
    [
        pytest.param(op, zeros, marks=() if (op, zeros) in (("add", 0), ("mul", 2), ("max", 0)) else pytest.mark.long)
        for op, zeros in (("add", 0), ("mul", 0), ("mul", 1), ("mul", 2), ("min", 0), ("max", 0))
    ],
)
def test_derivatives(rng, op, zeros):
    x = rng.normal(size=5)
    x[1 : 1 + zeros] = 0
    heads, count = np.array([1, 3, 3], np.int32), np.int32(4)

    def reductions(x):
        segmented = mgpu.segmented_reduce(x, heads, op, count=count)
        return mgpu.reduce(x, op), mgpu.reduce(x, op, count=count), jnp.where(jnp.isinf(segmented), 0, segmented)

    check_grads(jax.jit(reductions), (x,), order=2)
    check_grads(jax.jit(jax.vmap(reductions)), (np.stack([x, x[::-1]]),), order=1)


def test_derivatives_of_runs(rng):
    keys = np.array([4, 4, 1, 1, 1, 9])
    for op in ("add", "mul", "max"):
        check_grads(
            jax.jit(lambda v, op=op: mgpu.reduce_by_key(keys, v, op, size=5)[1]), (rng.normal(size=6),), order=1
        )


def test_dead_items_and_ties():
    x = np.array([3.0, 3.0, np.nan])
    for op, expected in (("add", [1, 1, 0]), ("mul", [3, 3, 0]), ("max", [1, 0, 0])):
        same(jax.grad(lambda x, op=op: mgpu.reduce(x, op, count=np.int32(2)))(x), np.array(expected, float))


# ---- Plain JAX ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPERATORS)
def test_the_plain_jax_path_agrees_with_the_kernels(rng, op):
    from jax_mgpu._src.functions.operators import Kind
    from jax_mgpu._src.ops.reduce import _reduce, _segmented_reduce

    n, form = 14, {"op": Kind[op.upper()], "wide": int(op in ("add", "mul"))}
    x, heads = items(rng, "int16", op, n), np.array([2, 2, 9, 20], np.int32)

    @jax.jit
    def plain(x, heads, count):
        return _reduce.fallback(x, count, **form)[0], _segmented_reduce.fallback(x, heads, count, **form)[0]

    for live in (n, 12, 0):
        whole, segmented = plain(x, heads, np.array([live], np.int32))
        same(whole, oracle.reduce(x[:live], op))
        same(segmented, oracle.segmented_reduce(x, heads, op, live))


def test_the_plain_jax_path_of_runs_agrees_with_the_kernels(rng):
    from jax_mgpu._src.ops.reduce import _run_heads

    keys = np.repeat(rng.choice([0.0, -0.0, 1.0, np.nan, -np.nan], 12), 2).astype(np.float32)
    for count, size in ((24, 24), (24, 3), (7, 10), (0, 2)):
        operands = jnp.asarray(keys), jnp.array([count], jnp.int32)
        for got, expected in zip(
            _run_heads.run(operands, size=size), _run_heads.fallback(*operands, size=size), strict=True
        ):
            same(got, np.asarray(expected))
            assert got.dtype == expected.dtype


# ---- Misuse ---------------------------------------------------------------------------------------------------------


def test_errors_name_operation_and_argument():
    x = np.arange(4, dtype=np.int32)
    with pytest.raises(ValueError, match=r"reduce: op: expected one of add, sum, mul, .*, got 3"):
        mgpu.reduce(x, 3)
    with pytest.raises(TypeError, match=r"segmented_reduce: x: expected .*, got complex64\[4\]"):
        mgpu.segmented_reduce(x.astype(np.complex64), [0])
    with pytest.raises(
        ValueError, match=r"segmented_reduce: identity: expected the identity of op, for empty segments"
    ):
        mgpu.segmented_reduce(x, [0], jnp.add)
    with pytest.raises(ValueError, match=r"reduce: identity: expected the identity of op, for a reduction that may be"):
        mgpu.reduce(x, jnp.add, count=3)
    with pytest.raises(ValueError, match=r"reduce_by_key: size: expected a static, non-negative integer, got -1"):
        mgpu.reduce_by_key(x, x, size=-1)
    with pytest.raises(ValueError, match=r"reduce_by_key: values: expected arrays with the leading axis of keys, 4"):
        mgpu.reduce_by_key(x, x[:3], size=1)
