"""segmented_softmax and segmented_log_softmax, compared with NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from tests import data, oracle

pytestmark = pytest.mark.usefixtures("x64")

HEADS = np.array([7, 30, 30, 55, 999], np.int32)
TILES = data.tile_sizes("segmented_softmax")
FUNCTIONS = {False: mgpu.segmented_softmax, True: mgpu.segmented_log_softmax}


def softmaxes(x, heads, count):
    """Returns each segment's softmax, and its logarithm."""
    x, live = x.astype(np.float64), oracle.live_count(count, len(x))
    results = np.zeros(x.shape), np.zeros(x.shape)
    for b, e in itertools.pairwise([0, *np.clip(heads, 0, live), live]):
        if b < e:
            shifted = x[b:e] - x[b:e].max(0)
            powers = np.exp(shifted)
            sums = powers.sum(0)
            results[False][b:e], results[True][b:e] = powers / sums, shifted - np.log(sums)
    return results


@pytest.mark.parametrize("dtype", data.FLOAT_DTYPES)
def test_softmax(rng, dtype):
    heads = HEADS
    for trailing, count in (((), None), ((), 33), ((3,), None), ((2, 2), 33), ((0,), None)):
        x = (50 * rng.normal(size=(70, *trailing))).astype(jnp.dtype(dtype))
        for function, expected in zip(FUNCTIONS.values(), softmaxes(x, heads, count), strict=True):
            got = function(x, heads, count=count)
            assert (got.dtype, got.shape) == (x.dtype, x.shape)
            eps = float(jnp.finfo(x.dtype).eps)
            np.testing.assert_allclose(got.astype(np.float64), expected, rtol=40 * eps, atol=10 * eps)
    assert mgpu.segmented_softmax(np.zeros(0, np.float32), heads).shape == (0,)


def test_softmax_of_infinities(rng):
    x = np.array([-np.inf, 1, 1, -np.inf, -np.inf, np.inf, 0, np.nan], np.float32)
    heads = np.array([0, 3, 5, 7], np.int32)
    for ours, theirs in (
        (mgpu.segmented_softmax, jax.nn.softmax),
        (mgpu.segmented_log_softmax, jax.nn.log_softmax),
    ):
        expected = np.concatenate([theirs(row) for row in np.split(x, heads[1:])])
        np.testing.assert_allclose(ours(x, heads), expected, rtol=1e-6)


def test_segments_that_a_loss_does_not_use_have_no_derivatives():
    """An infinite item, or NaN, reaches only the gradient of its own segment, whose softmax is NaN."""
    x = np.array([1, np.inf, 2, 3, 4, np.nan, 1], np.float32)
    heads, ids = np.array([0, 2, 5]), np.array([0, 0, 1, 1, 1, 2, 2])
    powers = np.exp(x[2:5].astype(np.float64))
    y = powers / powers.sum()
    calls = [
        (lambda x: mgpu.segmented_softmax(x, heads), False),
        (lambda x: mgpu.segmented_log_softmax(x, heads), True),
        (lambda x: mgpu.segmented_softmax(jnp.stack([x, x], 1), heads)[:, 0], False),
        (lambda x: mgpu.softmax_by_id(x, ids, 3), False),
        (lambda x: mgpu.log_softmax_by_id(x, ids, 3), True),
        (lambda x: mgpu.softmax_by_id(x, mgpu.group_ids(ids, 3), 3), False),
    ]
    of_log = (np.arange(3) == 1) - y  # the gradient of the logarithm of y[1]
    held = slice(2, 5) if jax.default_backend() == "gpu" else slice(7)  # CUDA kernels multiply NaN by 0
    for call, log in calls:
        slope = jax.grad(lambda x, call=call: call(x)[3])
        np.testing.assert_allclose(
            jax.jit(slope)(x)[held], [0, 0, *(1 if log else y[1]) * of_log, 0, 0][held], rtol=1e-5
        )
        again = -y[1] * of_log if log else (1 - 2 * y[1]) * y[1] * of_log
        got = jax.jit(jax.grad(lambda x, slope=slope: slope(x)[3]))(x)
        np.testing.assert_allclose(got[held], [0, 0, *again, 0, 0][held], rtol=1e-5)


def test_gradient_of_softmax(rng):
    x = rng.normal(size=(30, 2))
    for function in (mgpu.segmented_softmax, mgpu.segmented_log_softmax):
        check_grads(jax.jit(lambda x, f=function: f(x, HEADS, count=25)), (x,), 2, modes=["fwd", "rev"])


def check(x, heads, count=None):
    eps, expected = float(jnp.finfo(x.dtype).eps), softmaxes(x, heads, count)
    for log, function in FUNCTIONS.items():
        got = jax.jit(function)(x, heads, count=count).astype(np.float64)
        np.testing.assert_allclose(got, expected[log], rtol=40 * eps, atol=(20 if log else 1) * eps)


def heads_of(rng, n, mean, size):
    """Draws heads of segments of this mean length, some empty, and padding."""
    return np.minimum(np.cumsum(rng.integers(0, 2 * mean + 1, size)), n + 3).astype(np.int32)


WIDTHS = (None, 2, 3, 8, 9, 40)


@pytest.mark.parametrize("n", [tile + d for tile in TILES for d in (-1, 0, 1)])
def test_tile_edges(rng, n):
    width = WIDTHS[rng.integers(len(WIDTHS))]
    x = (5 * rng.normal(size=(n, width) if width else n)).astype(np.float32)
    last = np.full(n, n + 3, np.int32)
    last[0] = n - 1
    for heads in (heads_of(rng, n, 1, n), heads_of(rng, n, 30, n), last):
        check(x, heads)


@pytest.mark.parametrize("width", WIDTHS)
def test_segments_over_many_tiles(rng, width):
    tile = max(TILES) // (width or 1)
    n = 600 * tile
    x = rng.normal(size=(n, width) if width else n).astype(np.float32)
    x[tile : 3 * tile] = -np.inf
    x[500 * tile : 500 * tile + 40] = -np.inf
    x[500 * tile + 7] = 1
    near, count = [tile - 7, 5 * tile, 5 * tile + 1, 590 * tile], np.int32(595 * tile + 3)
    for ends, live in ((near, n), ([500 * tile, 500 * tile + 40, n, n], n), ([0, n, n, n], n), (near, count)):
        check(x, np.array(ends, np.int32), np.int32(live))


def test_infinities_at_tile_edges(rng):
    for tile in TILES:
        for width in (1, 8, 9):
            x = rng.normal(size=(2 * tile, width)).astype(np.float32)
            for dark in (slice(tile - 32, tile), slice(tile, tile + 32), slice(tile - 3, tile + 3)):
                masked = x.copy()
                masked[dark] = -np.inf
                check(masked, np.array([tile - 32, tile + 32], np.int32))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_larger_items_after_a_tile(width, dtype):
    """If a tile begins with a head or with dead rows, its items do not change the segment before it."""
    tile, trailing = max(TILES), (width,) if width else ()
    x = np.zeros((2, tile + 64, *trailing), dtype)
    x[1] = 1000
    heads, counts = np.zeros(1, np.int32), np.array([tile - 5, tile + 64], np.int32)
    check(x.reshape(-1, *trailing)[64:-64], np.array([0, tile], np.int32))
    got = jax.vmap(lambda x, count: mgpu.segmented_softmax(x, heads, count=count))(x, counts)
    for row in range(2):
        np.testing.assert_allclose(got[row], softmaxes(x[row], heads, counts[row])[False], rtol=1e-5)


def test_least_numbers_are_numbers():
    """As in jax.nn.softmax, a segment whose items are all the least float is uniform; one of -inf is NaN."""
    least = np.finfo(np.float32).min
    x = np.array([least, least, -np.inf, least, 0, -np.inf, -np.inf], np.float32)
    got = mgpu.segmented_softmax(np.stack([x] * 9, 1), [0, 2, 4, 5])
    np.testing.assert_array_equal(got[:, 0], [0.5, 0.5, 0, 1, 1, np.nan, np.nan])
    np.testing.assert_array_equal(got, np.stack([got[:, 0]] * 9, 1))


@pytest.mark.parametrize("dtype", data.FLOAT_DTYPES)
def test_rows_of_a_batch(rng, dtype):
    rows, n = 5, 3000
    trailing = [(), (2,), (7,), (16,)][rng.integers(4)]
    x = (3 * rng.normal(size=(rows, n, *trailing))).astype(jnp.dtype(dtype))
    heads = np.stack([heads_of(rng, n, mean, 400) for mean in (7, 30, 400, 2000, 5000)])
    counts = np.array([n, 2999, 0, 1, 1700], np.int32)
    eps = float(jnp.finfo(x.dtype).eps)
    for axes in ((0, 0, 0), (0, None, 0), (0, 0, None)):
        operands = list(zip((x, heads, counts), axes, strict=True))
        given = [operand if axis == 0 else operand[3] for operand, axis in operands]
        batched = jax.jit(jax.vmap(lambda x, h, c: mgpu.segmented_softmax(x, h, count=c), in_axes=axes))(*given)
        for row in range(rows):
            own = [
                operand[row] if axis == 0 else operand[3]
                for operand, axis in zip((x, heads, counts), axes, strict=True)
            ]
            expected = softmaxes(*own)[False]
            np.testing.assert_allclose(batched[row].astype(np.float64), expected, rtol=40 * eps, atol=eps)


def test_a_number_in_place_of_floats_is_an_error():
    message = r"segmented_softmax: x: expected float16, bfloat16, float32 or float64, got int64\[3\]"
    with pytest.raises(TypeError, match=message):
        mgpu.segmented_softmax(np.arange(3), [0])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("log", [False, True])
def test_gradients_of_rows(rng, width, log):
    n = 9000
    heads, count = heads_of(rng, n, 30, 200), np.int32(8500)
    x, cotangent = (rng.normal(size=(n, width) if width else n) for _ in range(2))
    y = softmaxes(x, heads, count)[False]
    ends = np.append(np.clip(heads, 0, count), count)
    expected = np.zeros_like(x)
    for b, e in itertools.pairwise([0, *ends]):
        if b < e:
            moved = cotangent[b:e] if log else y[b:e] * cotangent[b:e]
            expected[b:e] = moved - y[b:e] * moved.sum(0)
    for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 1e-4)):
        given, along = x.astype(dtype), cotangent.astype(dtype)
        gradient = jax.jit(jax.grad(lambda x, along=along: (FUNCTIONS[log](x, heads, count=count) * along).sum()))
        np.testing.assert_allclose(gradient(given), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(not mgpu.has_cuda(), reason="a build without CUDA kernels")
def test_rows_are_one_kernel(rng):
    x, heads = np.zeros((500, 24), np.float32), np.arange(0, 500, 9, np.int32)
    for function in FUNCTIONS.values():
        for run, calls in (
            (lambda x, f=function: f(x, heads), 1),
            (lambda x, f=function: jax.grad(lambda x: (f(x, heads) ** 2).sum())(x), 2),
        ):
            text = jax.jit(run).trace(x).lower(lowering_platforms=("cuda",)).as_text()
            assert text.count("jax_mgpu.segmented_softmax") == calls
            assert text.count("custom_call") == calls and "gather" not in text and "scatter" not in text
