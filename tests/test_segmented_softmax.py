"""segmented_softmax against NumPy."""

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


def softmax(x, heads, count, log):
    out = np.zeros(x.shape, np.float64)
    live = oracle.live_count(count, len(x))
    for b, e in itertools.pairwise([0, *np.clip(heads, 0, live), live]):
        if b < e:
            shifted = x[b:e].astype(np.float64) - x[b:e].astype(np.float64).max(0)
            sums = np.exp(shifted).sum(0)
            out[b:e] = shifted - np.log(sums) if log else np.exp(shifted) / sums
    return out


@pytest.mark.parametrize("dtype", data.FLOAT_DTYPES)
def test_softmax(rng, dtype):
    heads = HEADS
    for trailing, count in (((), None), ((), 33), ((3,), None), ((2, 2), 33), ((0,), None)):
        x = (50 * rng.normal(size=(70, *trailing))).astype(jnp.dtype(dtype))
        for log, function in ((False, mgpu.segmented_softmax), (True, mgpu.segmented_log_softmax)):
            got = function(x, heads, count=count)
            assert (got.dtype, got.shape) == (x.dtype, x.shape)
            eps = float(jnp.finfo(x.dtype).eps)
            expected = softmax(x, heads, count, log)
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


def test_gradient_of_softmax(rng):
    x = rng.normal(size=(30, 2))
    for function in (mgpu.segmented_softmax, mgpu.segmented_log_softmax):
        check_grads(jax.jit(lambda x, f=function: f(x, HEADS, count=25)), (x,), 2, modes=["fwd", "rev"])


def check(x, heads, count=None):
    eps = float(jnp.finfo(x.dtype).eps)
    for log, function in FUNCTIONS.items():
        got = jax.jit(function)(x, heads, count=count).astype(np.float64)
        np.testing.assert_allclose(got, softmax(x, heads, count, log), rtol=40 * eps, atol=(20 if log else 1) * eps)


def heads_of(rng, n, mean, size):
    """`size` heads of segments of this mean length, some of them empty; heads past the items are padding."""
    return np.minimum(np.cumsum(rng.integers(0, 2 * mean + 1, size)), n + 3).astype(np.int32)


@pytest.mark.parametrize("n", [tile + d for tile in TILES for d in (-1, 0, 1)])
def test_tile_edges(rng, n):
    x = (5 * rng.normal(size=n)).astype(np.float32)
    last = np.full(n, n + 3, np.int32)
    last[0] = n - 1
    for heads in (heads_of(rng, n, 1, n), heads_of(rng, n, 30, n), last):
        check(x, heads)


def test_segments_over_many_tiles(rng):
    """Segments end at a tile's edge, beside it, or after hundreds of tiles; some parts of them are all -inf."""
    tile = max(TILES)
    n = 600 * tile
    x = rng.normal(size=n).astype(np.float32)
    x[tile : 3 * tile] = -np.inf
    x[500 * tile : 500 * tile + 40] = -np.inf
    x[500 * tile + 7] = 1
    near, count = [tile - 7, 5 * tile, 5 * tile + 1, 590 * tile], np.int32(595 * tile + 3)
    for ends, live in ((near, n), ([500 * tile, 500 * tile + 40, n, n], n), ([0, n, n, n], n), (near, count)):
        check(x, np.array(ends, np.int32), np.int32(live))


@pytest.mark.parametrize("dtype", data.FLOAT_DTYPES)
def test_rows_of_a_batch(rng, dtype):
    """Rows that begin and end within tiles, with heads and counts of their own."""
    rows, n = 5, 3000
    x = (3 * rng.normal(size=(rows, n))).astype(jnp.dtype(dtype))
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
            expected = softmax(*own, False)
            np.testing.assert_allclose(batched[row].astype(np.float64), expected, rtol=40 * eps, atol=eps)


def test_a_number_in_place_of_floats_is_an_error():
    message = r"segmented_softmax: x: expected float16, bfloat16, float32 or float64, got int64\[3\]"
    with pytest.raises(TypeError, match=message):
        mgpu.segmented_softmax(np.arange(3), [0])
