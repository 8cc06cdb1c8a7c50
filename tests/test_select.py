"""select, select_indices, partition, run_starts and inverse_permutation, compared with NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from tests import data, oracle
from tests.oracle import same_bits

pytestmark = pytest.mark.usefixtures("x64")

EDGES = (0, 1, 2, 33, *(tile + d for tile in data.tile_sizes("select") for d in (-1, 0, 1)), 40_000)


def masks(rng, n):
    runs = np.repeat(rng.random(n // 50 + 1) < 0.5, 50)[:n]
    return [np.ones(n, bool), np.zeros(n, bool), rng.random(n) < 0.01, rng.random(n) < 0.5, runs]


def kept(keep, count=None):
    return np.flatnonzero(keep[: oracle.live_count(count, len(keep))])


@pytest.mark.parametrize("n", EDGES)
def test_select_and_indices(rng, n):
    x = rng.integers(0, 2**31, n).astype(np.int32)
    for keep in masks(rng, n):
        for count in (None, n // 3):
            indices = kept(keep, count)
            got = mgpu.select(x, keep, count=count, fill_value=-7)
            same_bits(got.values, oracle.padded(x[indices], n, -7))
            assert int(got.count) == len(indices)
            positions, found = mgpu.select_indices(keep, count=count)
            same_bits(positions, oracle.padded(indices.astype(np.int32), n, n))
            assert int(found) == len(indices)


@pytest.mark.long
@pytest.mark.parametrize("rows", [1, 2])
def test_select_of_many(rng, rows):
    n = 10_000_019 // rows
    x = rng.integers(0, 2**31, (rows, n)).astype(np.int32)
    keep = rng.random((rows, n)) < 0.3
    count = np.arange(n, n - rows, -1, dtype=np.int32)
    size = n // 4
    got = jax.vmap(lambda x, keep, count: mgpu.select(x, keep, size=size, count=count))(x, keep, count)
    moved = jax.vmap(lambda x, keep, count: mgpu.partition(x, keep, count=count)[0])(x, keep, count)
    for row in range(rows):
        indices, live = kept(keep[row], count[row]), count[row]
        same_bits(got.values[row], x[row][indices[:size]])
        assert int(got.count[row]) == len(indices)
        others = np.flatnonzero(~keep[row, :live])
        same_bits(moved[row], x[row][np.concatenate([indices, others, np.arange(live, n)])])


@pytest.mark.parametrize("n", EDGES)
def test_partition(rng, n):
    x = rng.integers(0, 2**31, n).astype(np.int32)
    for keep in masks(rng, n):
        for count in (None, n // 3):
            live = oracle.live_count(count, n)
            indices = kept(keep, count)
            others = np.flatnonzero(~keep[:live])
            got, found = mgpu.partition(x, keep, count=count)
            same_bits(got, x[np.concatenate([indices, others, np.arange(live, n)])])
            assert int(found) == len(indices)


@pytest.mark.parametrize("size", [0, 1, 7, 300])
def test_other_sizes(rng, size):
    x, keep = rng.normal(size=100).astype(np.float32), rng.random(100) < 0.5
    indices = kept(keep)
    got = mgpu.select(x, keep, size=size, fill_value=np.nan)
    same_bits(got.values, oracle.padded(x[indices], size, np.float32(np.nan)))
    assert int(got.count) == len(indices)
    same_bits(mgpu.select_indices(keep, size=size, fill_value=-1)[0], oracle.padded(indices.astype(np.int32), size, -1))


@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_every_bit_is_kept(rng, dtype):
    x, keep = data.random_keys(rng, dtype, 500), rng.random(500) < 0.5
    same_bits(mgpu.select(x, keep, size=int(keep.sum())).values, x[keep])
    same_bits(mgpu.partition(x, keep)[0], np.concatenate([x[keep], x[~keep]]))


def test_pytrees_of_rows(rng):
    keep = rng.random(40) < 0.5
    x = {
        "rows": rng.normal(size=(40, 3)),
        "flags": rng.random((40, 2, 2)) < 0.5,
        "nothing": np.zeros((40, 0), np.int8),
        "words": rng.normal(size=40) + 1j,
    }
    got = mgpu.select(x, keep, size=int(keep.sum()))
    moved, _ = mgpu.partition(x, keep)
    for name, leaf in x.items():
        same_bits(got.values[name], leaf[keep])
        same_bits(moved[name], np.concatenate([leaf[keep], leaf[~keep]]))
    keys = jax.random.split(jax.random.key(0), 40)
    for result in (mgpu.select(keys, keep).values, mgpu.partition(keys, keep)[0]):
        same_bits(jax.random.key_data(result)[: keep.sum()], np.asarray(jax.random.key_data(keys))[keep])
    empty = mgpu.select((), keep)
    assert empty.values == ()
    assert int(empty.count) == keep.sum()


@pytest.mark.parametrize("n", [1, 8, 300, 4096, 4097, 9000])
def test_batches(rng, n):
    x, keep = rng.integers(0, 99, (7, n)), rng.random((7, n)) < 0.4
    for mapped in ((0, 0), (None, 0), (0, None)):
        given = [a if axis == 0 else a[0] for a, axis in zip((x, keep), mapped, strict=True)]
        got = jax.jit(jax.vmap(mgpu.select, in_axes=mapped))(*given)
        moved, counts = jax.vmap(mgpu.partition, in_axes=mapped)(*given)
        for b in range(7):
            row, mask = (a[b] if axis == 0 else a for a, axis in zip(given, mapped, strict=True))
            same_bits(got.values[b], oracle.padded(row[mask], n, 0))
            same_bits(moved[b], np.concatenate([row[mask], row[~mask]]))
            assert int(counts[b]) == int(got.count[b]) == mask.sum()


@pytest.mark.parametrize("trailing", [(3,), (5, 7), (40,), (129,)])
def test_wide_rows(rng, trailing):
    for dtype in (np.uint8, np.float32, np.complex128):
        for n in (10, 5000):
            x, keep = rng.integers(0, 99, (n, *trailing)).astype(dtype), rng.random(n) < 0.5
            got = mgpu.select(x, keep, fill_value=7)
            same_bits(got.values, oracle.padded(x[keep], n, 7))
            same_bits(
                mgpu.partition(x, keep, count=n - 3)[0][: int(got.count) - 3],
                x[: n - 3][keep[: n - 3]][: int(got.count) - 3],
            )


def test_counts_of_a_batch(rng):
    keep, counts = rng.random((9, 5000)) < 0.5, np.array([-1, 0, 1, 4096, 4097, 4999, 5000, 5001, 2**31 - 1], np.int32)
    indices, found = jax.vmap(lambda keep, count: mgpu.select_indices(keep, count=count, size=2000))(keep, counts)
    for b, count in enumerate(counts):
        same_bits(indices[b], oracle.padded(kept(keep[b], count).astype(np.int32), 2000, 5000))
        assert int(found[b]) == len(kept(keep[b], count))


def test_derivatives(rng):
    x, keep, weights = rng.normal(size=50), rng.random(50) < 0.5, rng.normal(size=50)
    order = np.argsort(~keep, kind="stable")
    slots = np.argsort(order)
    gradient = jax.grad(lambda x: jnp.vdot(mgpu.select(x, keep).values, weights))(x)
    np.testing.assert_array_equal(gradient, np.where(keep, weights[slots], 0))
    gradient = jax.grad(lambda x: jnp.vdot(mgpu.partition(x, keep)[0], weights))(x)
    np.testing.assert_array_equal(gradient, weights[slots])
    _, tangent = jax.jvp(lambda x, f: mgpu.select(x, keep, fill_value=f).values, (x, 2.0), (weights, 3.0))
    np.testing.assert_array_equal(tangent, oracle.padded(weights[keep], 50, 3.0))


# ---- Runs ------------------------------------------------------------------------------------------------------------


def runs_of(keys, heads, size, count):
    """Returns starts of runs, the number of runs before each segment, and the number of all runs."""
    n = len(keys)
    live = oracle.live_count(count, n)
    ranks = oracle.rank(keys[:live])
    cuts = {0, *np.asarray([] if heads is None else heads).tolist()}
    starts = np.array([i for i in range(live) if i in cuts or ranks[i] != ranks[i - 1]], np.int32)
    before = [0] if heads is None else [int(np.sum(starts < head)) for head in heads]
    return oracle.padded(starts, size, n), np.array(before, np.int32), len(starts)


@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_run_starts(rng, dtype):
    for n in (0, 1, 1000):
        keys = np.repeat(data.random_keys(rng, dtype, n), rng.integers(1, 4, n))[:n]
        heads = np.append(np.sort(rng.integers(0, n + 1, 20)), [n, n + 5]).astype(np.int32)
        for given in (None, heads, heads[:0]):
            for count in (None, n // 2):
                got = mgpu.run_starts(keys, given, count=count)
                starts, before, total = runs_of(keys, given, n, count)
                same_bits(got.starts, starts)
                same_bits(got.heads, before)
                assert int(got.count) == total


def test_runs_are_a_ragged_batch(rng):
    keys, heads = rng.integers(0, 3, 60), np.array([0, 10, 10, 35], np.int32)
    runs = mgpu.run_starts(keys, heads)
    lengths = mgpu.segmented_reduce(np.ones(60, np.int32), runs.starts)
    longest = mgpu.segmented_reduce(lengths, runs.heads, "max", count=runs.count)
    for i, row in enumerate(np.split(keys, heads[1:])):
        changes = np.flatnonzero(np.append(True, row[1:] != row[:-1])) if len(row) else []
        assert int(longest[i]) == (np.diff([*changes, len(row)]).max() if len(row) else np.iinfo(np.int32).min)


def test_a_size_that_is_too_small(rng):
    keys, heads = rng.integers(0, 3, 60), np.array([0, 30], np.int32)
    for given in (None, heads):
        got, (starts, before, total) = mgpu.run_starts(keys, given, size=5), runs_of(keys, given, 5, None)
        same_bits(got.starts, starts)
        same_bits(got.heads, before)
        assert int(got.count) == total > 5


ERRORS = {
    "select: keep: expected bool[n], got int64[3] (take selects by positions)": lambda: mgpu.select(
        np.arange(3), np.arange(3)
    ),
    "select: x: expected arrays with the leading axis of keep, 3, got int64[4]": lambda: mgpu.select(
        {"x": np.arange(4)}, np.ones(3, bool)
    ),
    "select: size: expected a static, non-negative integer, got -1": lambda: mgpu.select(
        np.arange(3), np.ones(3, bool), size=-1
    ),
    "select_indices: keep: expected a 1-D array (batches come from jax.vmap), got bool[2,2]": lambda: (
        mgpu.select_indices(np.ones((2, 2), bool))
    ),
    "select_indices: fill_value: expected an integer scalar, got 0.5": lambda: mgpu.select_indices(
        np.ones(2, bool), fill_value=0.5
    ),
    "partition: count: expected an integer scalar, got int64[1]": lambda: mgpu.partition(
        np.arange(2), np.ones(2, bool), count=np.ones(1, int)
    ),
    "run_starts: heads: expected integers, got float64[1]": lambda: mgpu.run_starts(np.arange(2), np.ones(1)),
}


def test_runs_of_single_items_under_shard_map():
    """The compiler of jaxlib 0.11.2 crashes on an empty array of indices."""
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices)
    spec = jax.sharding.PartitionSpec("x")
    batch = jax.vmap(mgpu.run_starts, in_axes=(0, None))
    over = jax.shard_map(batch, mesh=mesh, in_specs=(spec, jax.sharding.PartitionSpec()), out_specs=spec)
    got = jax.jit(over)(np.zeros((len(devices), 1), np.uint16), np.zeros(4, np.uint32))
    same_bits(got.starts, np.zeros((len(devices), 1), np.int32))
    same_bits(got.count, np.ones(len(devices), np.int32))


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises((TypeError, ValueError)) as caught:
        ERRORS[message]()
    assert str(caught.value) == message


@pytest.mark.parametrize("n", [0, 1, 1000])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_inverse_permutation(rng, n, dtype):
    n = min(n, int(np.iinfo(dtype).max))
    order = rng.permutation(n).astype(dtype)
    for call in (mgpu.inverse_permutation, jax.jit(mgpu.inverse_permutation)):
        same_bits(call(order), np.argsort(order).astype(np.int32))
        for count in (-1, 0, n // 3, n, n + 5):
            expected = np.full(n, -1, np.int32)
            expected[order[: max(count, 0)].astype(int)] = np.arange(n)[: max(count, 0)]
            same_bits(call(order, count=count), expected)


def test_inverse_permutation_drops_what_is_outside():
    same_bits(mgpu.inverse_permutation(np.array([4, -1, 1, 0])), np.array([3, 2, -1, -1], np.int32))
    same_bits(mgpu.inverse_permutation([]), np.zeros(0, np.int32))
    for error, message, order in [
        (TypeError, "inverse_permutation: order: expected integers", [0.5]),
        (ValueError, "inverse_permutation: order: expected a 1-D array", [[0]]),
    ]:
        with pytest.raises(error, match=message):
            mgpu.inverse_permutation(order)


def test_positions_of_a_permutation_are_checked():
    message = "order: expected distinct positions of 6 items, first broken at position 1, got -1"
    with mgpu.checks():
        mgpu.inverse_permutation(np.array([3, 1, 0, 6, 6, -6]), count=3)
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
            jax.block_until_ready(mgpu.inverse_permutation(np.array([3, -1, 0, 6, 6, 6]), count=3))


def test_a_batch_of_inverse_permutations(rng):
    orders, counts = rng.permuted(np.tile(np.arange(50), (3, 1)), axis=1), np.array([50, 0, 20])
    got = jax.jit(jax.vmap(lambda order, count: mgpu.inverse_permutation(order, count=count)))(orders, counts)
    for row, order, count in zip(got, orders, counts, strict=True):
        same_bits(row, np.where(np.argsort(order) < count, np.argsort(order), -1).astype(np.int32))


def test_runs_around_an_empty_segment_within_another_one():
    keys, heads, ends = jnp.array([3, 1, 1, 2, 2, 9, 7]), jnp.array([0, 2, 5]), jnp.array([5, 2, 7])
    over_axis = jax.vmap(lambda *x: mgpu.run_starts(x[0], x[1], ends=x[2], axis_name="i"), axis_name="i")
    for runs in (mgpu.run_starts(keys, heads, ends=ends), over_axis(keys[None], heads[None], ends[None])):
        np.testing.assert_array_equal(runs.heads.reshape(-1), [0, 3, 3])
        np.testing.assert_array_equal(runs.starts.reshape(-1)[:5], [0, 1, 3, 5, 6])
