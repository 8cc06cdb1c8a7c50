"""The set operations against the oracle."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from jax_mgpu._src.core.operation import REGISTRY
from tests import data, oracle
from tests.oracle import same_bits

pytestmark = pytest.mark.usefixtures("x64")

OPERATIONS = ["set_intersection", "set_union", "set_difference", "set_symmetric_difference"]
TAKES_B = ("set_union", "set_symmetric_difference")
TILES = data.tile_sizes("sets")
SEVERAL_TILES = 3 * max(TILES) + 77


@functools.cache
def jitted(operation, **options):
    return jax.jit(functools.partial(getattr(mgpu, operation), **options))


def filled(sources, size, *arrays, fill=0):
    """Returns the rows at the first sources, then the fill value."""
    joined = np.concatenate(arrays)
    rows = joined[sources[:size]]
    return np.concatenate([rows, np.full((size - len(rows), *joined.shape[1:]), fill).astype(joined.dtype)])


def check(operation, a, b, *, counts=None, duplicates=True, values=True, size=None, fill=0):
    """Checks one call; values are positions, which show the source of each key."""
    options = {"duplicates": duplicates, "fill_value": fill, **({} if size is None else {"size": size})}
    a_live, b_live = counts or (len(a), len(b))
    sources = oracle.set_sources(operation, a[:a_live], b[:b_live])
    in_b = sources >= a_live
    sources[in_b] += len(a) - a_live
    kwargs = {"a_count": a_live, "b_count": b_live} if counts else {}
    if values:
        kwargs["a_values"] = np.arange(len(a), dtype=np.uint32)
        if operation in TAKES_B:
            kwargs["b_values"] = np.arange(len(a), len(a) + len(b), dtype=np.uint32)
    result = jitted(operation, **options)(a, b, **kwargs)
    assert int(result.count) == len(sources)
    length = len(result.keys)
    same_bits(result.keys, filled(sources, length, a, b, fill=fill))
    if values:
        positions = np.arange(len(a) + len(b), dtype=np.uint32)
        same_bits(result.values, filled(sources, length, positions, fill=fill))
    else:
        assert result.values is None


# ---- Keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_every_key_type(rng, dtype, operation):
    for n_a, n_b in ((1000, 700), (SEVERAL_TILES, 20000)):
        a, b = (data.in_order(data.random_keys(rng, dtype, n)) for n in (n_a, n_b))
        check(operation, a, b)
    check(operation, a, b, values=False)
    for counts in ((n_a, 0), (0, n_b), (1, 1), (n_a - 1, n_b // 2), (n_a + 5, -3)):
        clipped = tuple(min(max(count, 0), n) for count, n in zip(counts, (n_a, n_b), strict=True))
        check(operation, a, b, counts=clipped)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("keys", [2, 13, 256, 2**31])
def test_duplicates_at_tile_edges(rng, keys, operation):
    n = max(TILES) + 2
    a = np.sort(rng.integers(0, keys, n)).astype(np.uint32)
    b = np.sort(rng.integers(0, keys, 2 * n)).astype(np.uint32)
    for tile in TILES:
        for a_live in (tile - 1, tile, tile + 1):
            for b_live in (0, 1, a_live // 2, a_live, a_live + 1, 2 * a_live):
                start = int(rng.integers(0, n - a_live + 1))
                shifted = np.concatenate([a[start:], a[:start]])
                check(operation, shifted, b, counts=(a_live, b_live))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_key_on_both_sides(operation):
    a, b = np.full(20000, 7, np.int32), np.full(40000, 7, np.int32)
    for a_live, b_live in ((0, 0), (1, 40000), (20000, 1), (20000, 19999), (20000, 20000), (20000, 20001), (1, 1)):
        check(operation, a, b, counts=(a_live, b_live))
    for longer in (a, b):
        short = np.concatenate([np.full(5887 // 2, 7), np.full(100, 9)]).astype(np.int32)
        check(operation, longer, short)
        check(operation, short, longer)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", ["uint32", "int64", "float32", "uint8"])
def test_unique_keys(rng, dtype, operation):
    pool = np.unique(data.random_keys(rng, dtype, 60000))
    pool = pool[oracle.sort_indices(pool)]
    pool = pool[np.append(True, np.diff(oracle.rank(pool)) > 0)]
    a, b = (pool[np.sort(rng.permutation(len(pool))[: int(part * len(pool))])] for part in (0.7, 0.5))
    check(operation, a, b, duplicates=False)
    check(operation, a, b)
    check(operation, a, a, duplicates=False)
    for part in (0.25, 0.5, 0.75):
        check(operation, a, b, duplicates=False, counts=(len(a), int(part * len(b))))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_empty_arrays(operation):
    nothing, three = np.zeros(0, np.float32), np.array([-np.inf, 0.0, np.nan], np.float32)
    for a, b in ((nothing, three), (three, nothing), (nothing, nothing)):
        check(operation, a, b)
        check(operation, a, b, size=5, fill=2)
        check(operation, a, b, size=0)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_zeros_are_equal_and_nans_are_equal_and_bits_survive(operation):
    quiet, other = np.array([0x7FC00001, 0xFFC00002], np.uint32).view(np.float32)
    a = np.array([-0.0, 0.0, -0.0, quiet, other], np.float32)
    b = np.array([0.0, -0.0, other, quiet, quiet], np.float32)
    check(operation, a, b)


# ---- Sizes and fill values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", OPERATIONS)
def test_sizes_below_and_above_the_count(rng, operation):
    a, b = (np.sort(rng.integers(0, 30000, n)).astype(np.int32) for n in (20000, 15000))
    for size in (0, 1, 100, 5888, 9000, 40000):
        check(operation, a, b, size=size, fill=-5)


@pytest.mark.parametrize("fill", [np.nan, np.inf, -1.5, True])
def test_fill_values(fill):
    a, b = np.array([1.0, 2.0], np.float32), np.array([2.0, 3.0], np.float32)
    check("set_union", a, b, fill=fill, values=False)
    check("set_intersection", a, b, size=4, fill=fill, values=False)


def test_fill_value_of_another_type():
    result = mgpu.set_union(np.array([3], np.uint32), np.array([3], np.uint32), fill_value=2**32 - 1)
    same_bits(result.keys, np.array([3, 2**32 - 1], np.uint32))
    traced = jax.jit(lambda fill: mgpu.set_union(np.array([3]), np.array([3]), fill_value=fill).keys)(9)
    np.testing.assert_array_equal(traced, [3, 9])


# ---- Values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", ["int32", "float64", "complex64"])
def test_a_leaf_of_4_or_8_bytes(rng, dtype, operation):
    a, b = (np.sort(rng.integers(0, 900, 1000)).astype(np.uint16) for _ in range(2))
    a_values, b_values = (rng.normal(size=1000).astype(dtype) for _ in range(2))
    sources = oracle.set_sources(operation, a, b)
    values = ({"v": a_values}, {"v": b_values}) if operation in TAKES_B else ({"v": a_values},)
    result = jitted(operation, fill_value=3)(a, b, *values)
    same_bits(result.values["v"], filled(sources, len(result.keys), a_values, b_values, fill=3))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_pytree_of_values(rng, operation):
    a, b = (np.sort(rng.integers(0, 90, n)).astype(np.int8) for n in (120, 70))

    def columns(n):
        return {
            "bfloat16": data.random_keys(rng, "bfloat16", n),
            "bool": rng.integers(0, 2, n).astype(bool),
            "rows": [rng.normal(size=(n, 3)).astype(np.float32), data.random_keys(rng, "uint8", n, 2, 2)],
            "complex128": rng.normal(size=n) + 1j * rng.normal(size=n),
        }

    sources = oracle.set_sources(operation, a, b)
    values = columns(120), columns(70)
    result = getattr(mgpu, operation)(a, b, *values[: 1 + (operation in TAKES_B)], fill_value=1)
    for got, x, y in zip(*map(jax.tree.leaves, (result.values, *values)), strict=True):
        expected = filled(sources, len(result.keys), x, y, fill=1)
        assert np.asarray(got).dtype == expected.dtype
        assert np.asarray(got).tobytes() == expected.tobytes()


# ---- Transformations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", OPERATIONS)
def test_batches(rng, operation):
    rows, n_a, n_b = 3, 5000, 4000
    a = np.sort(rng.integers(0, 3000, (rows, n_a)), axis=1).astype(np.int32)
    b = np.sort(rng.integers(0, 3000, (rows, n_b)), axis=1).astype(np.int32)
    a_counts, b_counts = np.array([n_a, 17, 0]), np.array([100, n_b, n_b])
    a_values, b_values = np.arange(rows * n_a).reshape(rows, n_a), -np.arange(rows * n_b).reshape(rows, n_b)
    function = getattr(mgpu, operation)
    takes_b = operation in TAKES_B

    def call(a, b, a_values, b_values, a_count, b_count):
        values = (a_values, b_values) if takes_b else (a_values,)
        return function(a, b, *values, a_count=a_count, b_count=b_count, fill_value=-7)

    everything = (a, b, a_values, b_values, a_counts, b_counts)
    for axes in ((0,) * 6, (0, None, 0, None, 0, None), (None, 0, None, None, None, 0), (None, None, 0, 0, None, None)):
        operands = [x if axis == 0 else x[0] for x, axis in zip(everything, axes, strict=True)]
        batched = jax.jit(jax.vmap(call, in_axes=axes))(*operands)
        for row in range(rows):
            one = call(*(x[row] if axis == 0 else x for x, axis in zip(operands, axes, strict=True)))
            jax.tree.map(lambda got, expected, row=row: same_bits(got[row], expected), batched, one)
    program = str(jax.make_jaxpr(jax.vmap(call))(*everything))
    assert program.count("mgpu_sets[") == 1


@pytest.mark.parametrize("lengths", data.SHORT_ROWS, ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_short_rows(rng, operation, lengths):
    (n_a, n_b), batch = lengths, data.batch_of(sum(lengths))
    a_counts, b_counts = (data.row_counts(rng, n, batch) for n in lengths)
    a, b = (data.sorted_rows(rng, data.SHORT_ROWS[lengths], *x) for x in ((n_a, a_counts), (n_b, b_counts)))
    a[0] = data.in_order(a[0])
    sides = (np.arange(n_a, dtype=np.uint32), np.arange(n_a, n_a + n_b, dtype=np.uint32))
    function = functools.partial(getattr(mgpu, operation), fill_value=1)
    values = sides if operation in TAKES_B else sides[:1]
    size = (n_a + n_b) // 2
    whole = jax.jit(jax.vmap(lambda a, b, m, n: function(a, b, *values, a_count=m, b_count=n)))
    part = jax.jit(jax.vmap(lambda a, b, n: function(a, b, size=size, b_count=n), (None, 0, 0)))
    results, parts = jax.tree.map(np.asarray, (whole(a, b, a_counts, b_counts), part(a[0], b, b_counts)))
    for row in range(batch):
        m, n = (oracle.live_count(*x) for x in ((a_counts[row], n_a), (b_counts[row], n_b)))
        sources = oracle.set_sources(operation, a[row, :m], b[row, :n])
        sources += (sources >= m) * (n_a - m)
        assert results.count[row] == len(sources)
        same_bits(results.keys[row], filled(sources, results.keys.shape[1], a[row], b[row], fill=1))
        same_bits(results.values[row], filled(sources, results.keys.shape[1], *sides, fill=1))
        sources = oracle.set_sources(operation, a[0], b[row, :n])
        assert parts.count[row] == len(sources)
        same_bits(parts.keys[row], filled(sources, size, a[0], b[row], fill=1))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_short_rows_without_order_stay_inside(rng, operation):
    for n_a, n_b in ((8, 8), (40, 3), (700, 900)):
        batch = data.batch_of(n_a + n_b)
        a, b = (rng.integers(0, 9, (batch, n), dtype=np.int32) for n in (n_a, n_b))
        results = jax.vmap(getattr(mgpu, operation))(a, b)
        assert np.all((results.count >= 0) & (results.count <= n_a + n_b))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_derivatives(rng, operation):
    a, b = np.sort(rng.normal(size=12)), np.sort(rng.normal(size=9))
    b[3:6] = a[4:7]
    b.sort()
    values = [rng.normal(size=n) for n in (12, 9)]
    rows = [rng.normal(size=(n, 2)) for n in (12, 9)]
    function, sides = getattr(mgpu, operation), 1 + (operation in TAKES_B)

    @jax.jit
    def moved(values, rows):
        pytrees = [{"v": v, "r": r} for v, r in zip(values, rows, strict=True)]
        return function(a, b, *values[:sides], fill_value=2).values, function(a, b, *pytrees[:sides]).values

    check_grads(moved, (values, rows), order=1, modes=["fwd", "rev"])

    def weighted(a, b):
        keys = function(a, b).keys
        return (keys * jnp.arange(1, 1 + len(keys))).sum()

    sources = oracle.set_sources(operation, a, b)
    expected = np.zeros(21)
    expected[sources] = np.arange(1, 1 + len(sources))
    np.testing.assert_array_equal(np.concatenate(jax.jit(jax.grad(weighted, argnums=(0, 1)))(a, b)), expected)


def test_the_gradient_of_a_batch(rng):
    a, b = (np.sort(rng.integers(0, 20, (3, 15)), axis=1) for _ in range(2))
    values = rng.normal(size=(3, 15))

    def total(values):
        batch = jax.vmap(lambda a, b, v: mgpu.set_difference(a, b, v).values)(a, b, values)
        return (batch**2).sum()

    expected = np.zeros((3, 15))
    for row in range(3):
        kept = oracle.set_sources("set_difference", a[row], b[row])
        expected[row, kept] = 2 * values[row, kept]
    np.testing.assert_allclose(jax.grad(total)(values), expected)


def test_the_result_of_one_is_the_input_of_the_next(rng):
    traces = []

    @jax.jit
    def query(a, b, c, d, counts):
        traces.append(1)
        both = mgpu.set_intersection(a, b, a_count=counts[0], b_count=counts[1])
        more = mgpu.set_union(both.keys, c, a_count=both.count, b_count=counts[2])
        return mgpu.set_difference(more.keys, d, a_count=more.count, b_count=counts[3])

    arrays = [np.sort(rng.integers(0, 500, n)).astype(np.uint32) for n in (1000, 1200, 900, 800)]
    for counts in ((1000, 1200, 900, 800), (0, 1200, 900, 5), (10, 3, 0, 800), (1000, 1, 1, 0)):
        got = query(*arrays, np.array(counts))
        a, b, c, d = (x[:count] for x, count in zip(arrays, counts, strict=True))
        expected = a[oracle.set_sources("set_intersection", a, b)]
        expected = np.concatenate([expected, c])[oracle.set_sources("set_union", expected, c)]
        expected = expected[oracle.set_sources("set_difference", expected, d)]
        assert int(got.count) == len(expected)
        same_bits(got.keys[: len(expected)], expected)
    assert len(traces) == 1


@pytest.mark.parametrize("operation", range(4), ids=OPERATIONS)
def test_the_fallback(rng, operation):
    name = OPERATIONS[operation]
    absent, fill = jnp.zeros((0,), jnp.int32), np.float32(4)
    options = {"kind": operation, "size": 75, "duplicates": 1}
    fallback = jax.jit(REGISTRY["sets"].fallback, static_argnames=(*options, "payload"))
    for n_a, n_b, counts in ((60, 40, (50, 40)), (0, 40, (0, 33)), (0, 0, (0, 0))):
        a, b = (data.in_order(data.without_subnormals(data.random_keys(rng, "float32", n))) for n in (n_a, n_b))
        sources = oracle.set_sources(name, a[: counts[0]], b[: counts[1]])
        sources[sources >= counts[0]] += n_a - counts[0]
        a_values, b_values = np.arange(n_a, dtype=np.int32), np.arange(n_b, dtype=np.int32) - 1000
        for payload, values in (
            (1, (a_values, b_values if name in TAKES_B else absent, np.array([-9], np.int32))),
            (2, (absent, absent, absent)),
        ):
            operands = [
                jnp.asarray(x) for x in (a, b, np.array([counts[0]]), np.array([counts[1]]), fill[None], *values)
            ]
            keys, *moved, count = fallback(*operands, **options, payload=payload)
            assert int(count) == len(sources)
            same_bits(keys, filled(sources, 75, a, b, fill=4))
            if payload == 1:
                same_bits(moved[0], filled(sources, 75, a_values, b_values, fill=-9))
            else:
                same_bits(moved[0], filled(sources, 75, np.arange(n_a + n_b, dtype=np.int32), fill=-1))


# ---- Misuse ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", OPERATIONS)
def test_unsorted_keys_harm_nothing(rng, operation):
    a, b = (rng.integers(0, 50, n).astype(np.int32) for n in (40000, 30000))
    for duplicates in (True, False):
        result = jitted(operation, duplicates=duplicates)(a, b)
        jax.block_until_ready(result)
        assert 0 <= int(result.count) <= 70000 + 70000 // 8


def test_errors():
    a, f = np.arange(4), np.arange(4.0)
    for error, call in {
        "set_union: b: expected the dtype of a, int64, got float64": lambda: mgpu.set_union(a, f),
        "set_union: a: expected a 1-D array": lambda: mgpu.set_union(a[None], a),
        "set_difference: a: expected integers of 8 to 64 bits, float16": lambda: mgpu.set_difference(a > 2, a > 2),
        "set_union: a_values and b_values: expected both or neither": lambda: mgpu.set_union(a, a, f),
        "set_union: b_values: expected the dtypes of a_values": lambda: mgpu.set_union(a, a, a, f),
        "set_intersection: a_values: expected arrays with the leading axis": lambda: mgpu.set_intersection(a, a, f[1:]),
        "set_intersection: size: expected a static": lambda: jax.jit(
            lambda size: mgpu.set_intersection(a, a, size=size)
        )(3),
        "set_symmetric_difference: size: expected a static, non-negative integer, got -1": (
            lambda: mgpu.set_symmetric_difference(a, a, size=-1)
        ),
        "set_union: fill_value: expected a scalar, got": lambda: mgpu.set_union(a, a, fill_value=f),
        "set_union: a_count: expected an integer scalar": lambda: mgpu.set_union(a, a, a_count=a),
    }.items():
        with pytest.raises((TypeError, ValueError)) as raised:
            call()
        assert str(raised.value).startswith(error), raised.value


def test_checks():
    a, b = np.array([1, 3, 3, 0]), np.array([1, 2])
    with mgpu.checks():
        assert int(mgpu.set_union(a, b, a_count=3).count) == 4
        with pytest.raises(Exception, match=r"set_union: b: expected keys in ascending order.*1"):
            jax.block_until_ready(mgpu.set_union(a[:3], b[::-1]))
        with pytest.raises(Exception, match=r"set_difference: a: expected unique keys in ascending order.*2"):
            jax.block_until_ready(mgpu.set_difference(a[:3], b, duplicates=False))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_results_asked_for(rng, operation):
    a, b = (data.in_order(rng.integers(0, 40, n).astype(np.int32)) for n in (26, 7))
    expected = len(oracle.set_sources(operation, a, b))
    for trailing in ((), (3,), (0,)):
        a_values, b_values = (rng.random((n, *trailing), np.float32) for n in (26, 7))
        values = {"a_values": a_values, **({"b_values": b_values} if operation in TAKES_B else {})}
        got = getattr(mgpu, operation)(a, b, size=0, **values)
        assert int(got.count) == expected
        assert (got.keys.shape, got.values.shape) == ((0,), (0, *trailing))
