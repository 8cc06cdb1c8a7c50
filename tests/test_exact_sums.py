"""Sums of floats by id, compared with exact sums."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.core.operation import run_fallback
from jax_mgpu._src.functions.operators import Kind
from jax_mgpu._src.ops import reduce_by_id as module
from jax_mgpu._src.ops.reduce_by_id import _reduce_by_id
from tests import data

ON_GPU = jax.default_backend() == "gpu"
SUBNORMAL = np.float32(1e-45)


def exact(x, ids, size):
    """Returns each id's sum of rows, rounded once."""
    items = [[[] for _ in range(x.shape[1])] for _ in range(size)]
    for row, i in zip(x.astype(np.float64), ids.tolist(), strict=True):
        if 0 <= i < size:
            for column, value in enumerate(row):
                items[i][column].append(value)

    def total(values):
        special = [v for v in values if not math.isfinite(v)]
        if special:
            return sum(special)
        rounded = math.fsum(values)
        rest = math.fsum([*values, -rounded])
        is_even = np.float64(rounded).view(np.uint64) % 2 == 0
        # Rounds to odd: an odd last bit marks an inexact float64, so that rounding it again, to float32, does no harm.
        return math.nextafter(rounded, math.copysign(math.inf, rest)) if rest and is_even else rounded

    with np.errstate(over="ignore"):
        return np.array([[total(column) for column in row] for row in items]).reshape(size, -1).astype(np.float32)


def has_kernel(n, width, size):
    """Whether CUDA has an exact kernel for these shapes."""
    operands = jax.ShapeDtypeStruct((n, width), np.float32), jax.ShapeDtypeStruct((n,), np.int32), None
    return not _reduce_by_id.prefers_xla(operands, {"op": Kind.ADD, "wide": False, "size": size}, "cuda", 1)


def check(got, x, ids, size, n=None):
    """Compares with the exact sums; n is the number of items of the call, if x has only live ones."""
    expected = exact(x, ids, size)
    if ON_GPU and has_kernel(x.shape[0] if n is None else n, x.shape[1], size):
        return np.testing.assert_array_equal(got, expected.astype(got.dtype))
    check_nearly(got, expected, x, ids, size)


def check_nearly(got, expected, x, ids, size):
    kept = np.where(np.isfinite(x), np.abs(x), 0).astype(np.float64)
    magnitudes = exact(kept, ids, size) if x.size else np.zeros_like(expected)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    error = np.abs(got[finite].astype(np.float64) - expected[finite])
    subnormal = 1.2e-38 * len(x)  # XLA's CPU code may treat subnormals as zeros
    eps = float(jnp.finfo(got.dtype).eps)
    assert np.all(error <= 1e-5 * magnitudes[finite] + np.abs(expected[finite]) * eps + subnormal)


def mixed(rng, shape, low, high):
    signs = rng.choice([-1, 1], shape)
    return np.ldexp(signs * rng.uniform(1, 2, shape), rng.integers(low, high, shape)).astype(np.float32)


@pytest.mark.parametrize("width", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("size", [1, 7, 1000, 30_000])
def test_sums_of_numbers_of_one_magnitude(rng, width, size):
    for n in (0, 1, 1003, 20_011):
        x, ids = rng.normal(size=(n, width)).astype(np.float32), rng.integers(-2, size + 2, n)
        check(np.asarray(mgpu.reduce_by_id(x, ids, size)), x, ids, size)


@pytest.mark.parametrize(("low", "high"), [(-149, -120), (-149, 120), (-40, 40), (90, 127), (-3, 3)])
def test_sums_of_numbers_of_many_magnitudes(rng, low, high):
    for size, n in ((1, 3000), (50, 5000), (4000, 6000)):
        x, ids = mixed(rng, (n, 2), low, high), rng.integers(0, size, n)
        x[1::3] = -x[::3][: len(x[1::3])]
        ids[1::3] = ids[::3][: len(ids[1::3])]
        check(np.asarray(mgpu.reduce_by_id(x, ids, size)), x, ids, size)


def test_one_item_is_its_own_sum(rng):
    x = np.concatenate([mixed(rng, 500, -149, 127), [SUBNORMAL, -SUBNORMAL, 0, np.float32(3.4028235e38)]])
    x = x.astype(np.float32)
    ids = rng.permutation(len(x))
    if ON_GPU:  # XLA's CPU code may treat subnormals as zeros
        np.testing.assert_array_equal(mgpu.reduce_by_id(x, ids, len(x))[ids], x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_special_values_stay_within_their_ids(rng, dtype):
    x = np.asarray(data.random_keys(rng, dtype, 4000, 1))
    ids = rng.integers(-1, 900, 4000)
    got = np.asarray(mgpu.reduce_by_id(x, ids, 899)).astype(np.float64)
    expected = exact(x, ids, 899).astype(x.dtype).astype(np.float64)
    special = ~np.isfinite(expected)
    np.testing.assert_array_equal(got[special], expected[special])
    assert not np.isnan(got[~special]).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_narrow_floats_are_rounded_at_the_end(rng, dtype):
    x, ids = rng.normal(size=(9000, 2)).astype(jnp.dtype(dtype)), rng.integers(0, 3, 9000)
    check(np.asarray(mgpu.reduce_by_id(x, ids, 3)), x, ids, 3)
    wide = mgpu.reduce_by_id(x, ids, 3, dtype=np.float32)
    assert wide.dtype == np.float32
    check(np.asarray(wide), x, ids, 3)


@pytest.mark.parametrize("n", [1000, 5000, 20_000])
def test_items_past_the_count_and_without_an_id_add_nothing(rng, n):
    x, ids = rng.normal(size=(n, 2)).astype(np.float32), rng.integers(-3, 70, n)
    x[n // 2 :], x[(ids < 0) | (ids >= 60)] = np.nan, np.inf
    for count in (0, 1, n // 2 - 1):
        got = np.asarray(jax.jit(lambda x, count: mgpu.reduce_by_id(x, ids, 60, count=count))(x, count))
        check(got, x[:count], ids[:count], 60, n=n)


@pytest.mark.parametrize("n", [1, 33, 1025, 2048, 2049, 2**14, 2**14 + 1])
@pytest.mark.parametrize("size", [1, 3, 130, 2048])
def test_sums_of_few_items(rng, n, size):
    x = mixed(rng, (n, 1), -60, 60)
    x[rng.random(n) < 0.001] = np.inf
    drawn = rng.integers(-1, size + 1, n)
    for ids in (drawn, np.sort(drawn), np.full(n, size - 1, np.int32)):
        check(np.asarray(mgpu.reduce_by_id(x, ids, size)), x, ids, size)


@pytest.mark.parametrize("n", [500, 4000])
def test_ids_of_64_bits_count_whole(rng, n):
    x, ids = mixed(rng, (n, 2), -20, 20), rng.integers(-1, 9, n)
    with jax.enable_x64(True):
        far = np.where(rng.random(n) < 0.1, ids + 2**32, ids)
        check(np.asarray(mgpu.reduce_by_id(x, far, 9)), x, far, 9)


@pytest.mark.parametrize("n", [700, 2000])
@pytest.mark.parametrize("mapped", [(0, 0), (None, 0), (0, None)])
def test_a_batch_has_the_bits_of_its_problems(rng, mapped, n):
    x, ids = mixed(rng, (5, n, 2), -30, 20), rng.integers(-1, 300, (5, n))
    x[3] *= 2.0**40
    given = [part if axis == 0 else part[0] for part, axis in zip((x, ids), mapped, strict=True)]
    run = jax.jit(jax.vmap(lambda x, ids: mgpu.reduce_by_id(x, ids, 299), in_axes=mapped))
    for row, got in enumerate(np.asarray(run(*given))):
        own = [part[row] if axis == 0 else part[0] for part, axis in zip((x, ids), mapped, strict=True)]
        np.testing.assert_array_equal(got, mgpu.reduce_by_id(*own, 299))
        check(got, *own, 299)


def test_a_batch_of_many_results_has_the_bits_of_its_problems(rng):
    n, size = 20_011, 20_000
    x, ids = mixed(rng, (10, n, 1), -30, 20), rng.integers(-1, size, (10, n))
    got = jax.jit(jax.vmap(lambda x, ids: mgpu.reduce_by_id(x, ids, size)))(x, ids)
    for row, *own in zip(np.asarray(got), x, ids, strict=True):
        np.testing.assert_array_equal(row, mgpu.reduce_by_id(*own, size))


@pytest.mark.parametrize("values", [(0, 0), (1e-30, 1e30), (0, np.inf)], ids=["zeros", "a gap", "infinite"])
def test_limbs_without_an_item_are_clear(rng, values):
    """A search finds the limbs to clear, as there are more limbs than 2^21 and more than items."""
    n, size = 1_060_000, 150_000
    x, ids = rng.choice(np.float32(values), (n, 1)), rng.integers(0, size, n)
    expected = np.bincount(ids, x[:, 0].astype(np.float64), size)
    check_nearly(np.asarray(mgpu.reduce_by_id(x, ids, size)), expected[:, None], x, ids, size)


@pytest.mark.parametrize("size", [3, 5000, 200_000])
@pytest.mark.parametrize("skewed", [False, True])
def test_sums_of_many_items(rng, size, skewed):
    n = 2_000_003
    ids = (rng.zipf(1.2, n) - 1) % size if skewed else rng.integers(0, size, n)
    for x in (rng.normal(size=n).astype(np.float32), mixed(rng, n, -20, 10)):
        order = rng.permutation(n)
        got = np.asarray(mgpu.reduce_by_id(x, ids, size))
        magnitudes = np.bincount(ids, np.abs(x), size)
        sums = np.bincount(ids, x, size)
        error = 1e-13 * magnitudes + 6e-8 * np.abs(sums) if ON_GPU else 1e-4 * magnitudes
        assert np.all(np.abs(got - sums) <= error)
        if ON_GPU:
            np.testing.assert_array_equal(mgpu.reduce_by_id(x[order], ids[order], size), got)


MANY = 2**24  # enough for tables of digits (kDigitItems of ffi/ops/reduce_by_id/plan.h)
with_many_items = pytest.mark.skipif(not ON_GPU, reason="only kernels for a GPU have tables of digits, for many items")


def sums_of_columns(x, ids, size):
    inside = (ids >= 0) & (ids < size)
    return np.stack([np.bincount(ids[inside], column[inside], size) for column in x.T.astype(np.float64)], 1)


def short_numbers(rng, shape):
    """Draws multiples of 2^-8 of at most 2^16: sums of 2^24 of them are exact in float64."""
    return np.ldexp(rng.integers(-(2**20), 2**20, shape), rng.integers(-8, -3, shape)).astype(np.float32)


def drawn_ids(rng, kind, n, size):
    if kind == "skewed":
        return (rng.zipf(1.2, n) - 1) % size
    if kind == "one id":
        return np.full(n, size // 2)
    ids = rng.integers(-1, size + 1, n)
    return np.sort(ids) if kind == "sorted" else ids


@with_many_items
@pytest.mark.parametrize("kind", ["uniform", "skewed", "one id", "sorted"])
@pytest.mark.parametrize(
    ("width", "size"), [(1, 1), (1, 5000), (1, 17_000), (1, 30_000), (2, 100), (3, 700), (8, 2048), (16, 1024)]
)
def test_sums_in_tables_of_digits_are_exact(rng, width, size, kind):
    n = MANY // width + 3
    x, ids = short_numbers(rng, (n, width)), drawn_ids(rng, kind, n, size)
    for items in (x, np.abs(x)):
        expected = sums_of_columns(items, ids, size).astype(np.float32)
        np.testing.assert_array_equal(mgpu.reduce_by_id(items, ids, size), expected)


@with_many_items
@pytest.mark.parametrize("kind", ["uniform", "one id"])
@pytest.mark.parametrize(("width", "size"), [(1, 50), (1, 5000), (8, 2048)])
def test_sums_in_tables_of_digits_have_the_bits_of_any_order(rng, width, size, kind):
    n = MANY // width + 3
    x, ids, order = mixed(rng, (n, width), -60, 20), drawn_ids(rng, kind, n, size), rng.permutation(n)
    x[:: n // 7] *= np.float32(2.0**90)
    got = np.asarray(mgpu.reduce_by_id(x, ids, size))
    np.testing.assert_array_equal(mgpu.reduce_by_id(x[order], ids[order], size), got)
    error = 1e-12 * sums_of_columns(np.abs(x), ids, size) + 6e-8 * np.abs(got)
    assert np.all(np.abs(got - sums_of_columns(x, ids, size)) <= error)


@with_many_items
def test_tables_of_digits_leave_special_values_zeros_and_dead_items_to_others(rng):
    n, size = MANY + 100, 900
    x, ids = short_numbers(rng, (n, 1)), rng.integers(0, size, n)
    x[rng.random(n) < 0.5] = 0
    x[ids == 3], x[ids == 4] = SUBNORMAL, -0.0
    x[np.flatnonzero(ids == 5)[7]], x[np.flatnonzero(ids == 6)[8]], x[np.flatnonzero(ids == 7)[9]] = (
        np.inf,
        -np.inf,
        np.nan,
    )
    x[np.flatnonzero(ids == 8)[:2]] = [[np.inf], [-np.inf]]
    x[MANY:] = np.nan
    got = np.asarray(jax.jit(lambda count: mgpu.reduce_by_id(x, ids, size, count=count))(MANY))
    np.testing.assert_array_equal(got, sums_of_columns(x[:MANY], ids[:MANY], size).astype(np.float32))


@with_many_items
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tables_of_digits_add_narrow_floats(rng, dtype):
    n, size = MANY // 2, 1000
    x, ids = rng.normal(size=(n, 2)).astype(jnp.dtype(dtype)), rng.integers(0, size, n)
    x = (np.round(x.astype(np.float32) * 1024) / 1024).astype(x.dtype)  # sums of these are exact in float64
    expected = sums_of_columns(x, ids, size).astype(np.float32)
    np.testing.assert_array_equal(mgpu.reduce_by_id(x, ids, size, dtype=np.float32), expected)


@with_many_items
def test_a_batch_of_many_items_has_the_bits_of_its_problems(rng):
    n, size = MANY // 8, 2048
    x, ids = mixed(rng, (n, 2), -30, 20), rng.integers(-1, size, (4, n))
    got = jax.jit(jax.vmap(lambda ids: mgpu.reduce_by_id(x, ids, size)))(ids)
    for row, own in zip(np.asarray(got), ids, strict=True):
        np.testing.assert_array_equal(row, mgpu.reduce_by_id(x, own, size))


def test_shapes_of_sums_that_have_kernels():
    with_kernel = [(2**25, 1, 10**6), (2**20, 2, 2048), (1000, 1, 10_000), (2_000_003, 1, 200_000)]
    assert all(has_kernel(*shape) for shape in with_kernel)
    assert not any(has_kernel(*shape) for shape in [(2**25, 1, 10**7), (2**19, 64, 10**5), (20_011, 8, 30_000)])


def batch_has_kernel(x, ids, count, size, devices=1):
    operands = [
        jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in ((x, np.float32), (ids, np.int32), (count, np.int32))
    ]
    return not _reduce_by_id.prefers_xla(operands, {"op": Kind.ADD, "wide": False, "size": size}, "cuda", devices)


def test_batches_that_have_kernels():
    x, ids = (1024, 65536, 1), (65536,)
    assert not batch_has_kernel(x, ids, (0,), 12_123)
    assert not batch_has_kernel((4, 256, 65536, 1), ids, (1,), 12_123)
    assert batch_has_kernel(x, ids, (0,), 12_123, devices=2)
    assert batch_has_kernel(x, (1024, 65536), (0,), 12_123)
    assert batch_has_kernel(x, ids, (1024, 1), 12_123)
    assert batch_has_kernel((33, 4096, 1), (4096,), (0,), 512)
    assert batch_has_kernel((16, 2**22, 1), (2**22,), (0,), 2048)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("batch", [(24,), (3, 5)])
@pytest.mark.parametrize("count", [None, 0, 2999])
def test_problems_with_the_same_ids_are_columns(rng, monkeypatch, dtype, batch, count):
    monkeypatch.setattr(module, "FEW_ITEMS", 1 << 12)
    x, ids = rng.normal(size=(*batch, 4000, 2)).astype(jnp.dtype(dtype)), rng.integers(-2, 302, 4000).astype(np.int32)
    x[..., 4, :], ids[4] = np.nan, -1
    given = x, ids, np.zeros(0, np.int32) if count is None else np.array([count], np.int32)

    def run(*operands, size=300):
        return run_fallback(_reduce_by_id, operands, {"op": Kind.ADD, "wide": False, "size": size})[0]

    assert jax.eval_shape(lambda *operands: run(*operands, size=0), *given).shape == (*batch, 0, 2)
    assert f"[4000,{2 * math.prod(batch)}]" in str(jax.make_jaxpr(run)(*given)).replace(" ", "")
    got = np.asarray(jax.jit(run)(*given))
    assert (got.shape, got.dtype) == ((*batch, 300, 2), x.dtype)
    live = slice(4000 if count is None else count)
    for own, of_problem in zip(got.reshape(-1, 300, 2), x.reshape(-1, 4000, 2), strict=True):
        kept = of_problem[live].astype(np.float32)
        check_nearly(own, exact(kept, ids[live], 300), kept, ids[live], 300)
