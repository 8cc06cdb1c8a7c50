"""Functions of segments and runs over a mesh axis, compared with NumPy on the global array."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from jax_mgpu._src.mesh import segments
from tests import data, mesh, oracle
from tests.test_scan import items, same

pytestmark = pytest.mark.usefixtures("x64")

SLOTS, HEADS = 23, 9
TYPES = {1: "int8", 2: "float32", 3: "int64", 4: "bfloat16", 8: "uint16"}


def heads_of(rng, counts):
    """Yields heads: none, two, many, at the boundaries of devices."""
    total = int(counts.sum())
    ends = np.cumsum(counts)
    yield np.zeros(0, np.int32)
    for heads in (rng.integers(0, max(total, 1), 2), rng.integers(0, max(total, 1), HEADS), ends):
        yield np.sort(heads[heads < total]).astype(np.int32)


def every_sort(keys, values, heads, flags, count):
    named = {"count": count, "axis_name": mesh.AXIS}
    return (
        mgpu.segmented_sort(keys, heads, values, **named),
        mgpu.segmented_sort_indices(keys, flags=flags, descending=True, **named),
    )


def check_every_sort(rng, call, devices, dtype):
    for counts in mesh.counts_of(rng, devices, SLOTS):
        total = int(counts.sum())
        for heads in heads_of(rng, counts):
            for keys in (data.random_keys(rng, dtype, total), rng.integers(0, 3, total).astype(jnp.dtype(dtype))):
                sharded, _ = mesh.shard_heads(heads, counts, SLOTS, HEADS)
                flags = mesh.shard(data.flags_of(total, heads), counts, SLOTS)
                words = np.array([data.words_of(row) for row in flags])
                values = mesh.shard(np.arange(total) * 2, counts, SLOTS)
                given = (mesh.shard(keys, counts, SLOTS), values, sharded, words, counts)
                (ascending, moved), (descending, indices) = jax.device_get(call(*given))
                order = oracle.segmented_sort_indices(keys, heads)
                oracle.same_bits(mesh.gather(ascending, counts), keys[order])
                np.testing.assert_array_equal(mesh.gather(moved, counts), order * 2)
                order = oracle.segmented_sort_indices(keys, heads, descending=True)
                oracle.same_bits(mesh.gather(descending, counts), keys[order])
                np.testing.assert_array_equal(mesh.gather(indices, counts), order)


@pytest.fixture
def few_items(monkeypatch):
    """Lowers FEW_ITEMS, so that few slots take both methods."""
    monkeypatch.setattr(segments, "FEW_ITEMS", 6)


@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.usefixtures("few_items")
@pytest.mark.usefixtures("forms")
def test_segmented_sorts(rng, devices):
    check_every_sort(rng, mesh.by_vmap(every_sort), devices, TYPES[devices])


@pytest.mark.usefixtures("few_items")
def test_segmented_sorts_on_devices(rng):
    check_every_sort(rng, mesh.by_devices(every_sort, 3), 3, "int32")


@pytest.mark.usefixtures("forms")
def test_only_segments_across_boundaries_travel(rng):
    keys = rng.permutation(60).astype(np.int32)
    heads = np.array([0, 10, 15, 30, 38, 50])
    counts = np.full(3, 20, np.int32)
    sharded, _ = mesh.shard_heads(heads, counts, 20, 4)
    call = mesh.by_vmap(lambda keys, heads: mgpu.segmented_sort_indices(keys, heads, axis_name=mesh.AXIS)[1])
    indices = np.asarray(call(keys.reshape(3, 20), sharded)).reshape(-1)
    moved = np.flatnonzero(indices // 20 != np.arange(60) // 20)
    assert moved.size
    assert set(np.searchsorted(heads, moved, "right") - 1) <= {2, 4}


def runs_of(keys, x, op):
    """Returns the heads of runs, and each run's combined values."""
    ranks = oracle.rank(keys)
    heads = np.flatnonzero(np.append(True, ranks[1:] != ranks[:-1])[: len(keys)])
    return heads, oracle.segmented_reduce(x, heads, op)


def runs(keys, x, y, count):
    named = {"count": count, "axis_name": mesh.AXIS}
    return (
        mgpu.reduce_by_key(keys, {"x": x, "y": y}, size=SLOTS, **named),
        mgpu.reduce_by_key(keys, x, "argmax", size=4, **named),
        mgpu.reduce_by_key(keys, x, jnp.maximum, size=SLOTS, **named),
    )


@pytest.mark.parametrize("devices", mesh.FEW)
def test_reduce_by_key(rng, devices):
    check_reduce_by_key(rng, mesh.by_vmap(runs), devices)


def check_reduce_by_key(rng, call, devices):
    for counts in mesh.counts_of(rng, devices, SLOTS):
        total = int(counts.sum())
        few, none = rng.integers(0, 5, total), np.zeros(total, int)
        for chosen in (np.sort(few), rng.integers(0, 2, total), none, np.arange(total) % 18):
            keys = data.special_keys("float32")[chosen]
            x, y = items(rng, "int32", "add", total), items(rng, "float16", "add", total)
            given = [mesh.shard(leaf, counts, SLOTS) for leaf in (keys, x, y)]
            (firsts, sums, n), (few, places, n_few), (_, largest, _) = jax.device_get(call(*given, counts))
            heads, expected = runs_of(keys, x, "add")
            starts = mesh.shard_heads(heads, counts, SLOTS, SLOTS)[1]
            np.testing.assert_array_equal(n, starts)
            np.testing.assert_array_equal(n_few, starts)
            oracle.same_bits(mesh.gather(firsts, n), keys[heads])
            same(mesh.gather(sums["x"], n), expected)
            same(mesh.gather(sums["y"], n), runs_of(keys, y, "add")[1])
            same(mesh.gather(largest, n), runs_of(keys, x, "max")[1])
            kept = np.concatenate([np.arange(count) < 4 for count in starts]) if len(starts) else np.zeros(0, bool)
            oracle.same_bits(mesh.gather(few, np.minimum(starts, 4)), keys[heads][kept])
            found = mesh.gather(places, np.minimum(starts, 4))
            np.testing.assert_array_equal(found, runs_of(keys, x, "argmax")[1][kept])
            for results, nothing in ((sums["x"], 0), (places, -1)):
                dead = np.concatenate([row[count:] for row, count in zip(results, starts, strict=True)])
                assert (dead == nothing).all()


@pytest.mark.long
def test_derivatives(rng):
    keys = rng.permutation(12).reshape(2, 6).astype(np.float64)
    values = rng.normal(size=(2, 6))
    heads, runs = np.array([[0, 3], [2, 9]], np.int32), np.array([[0, 0, 1, 1, 1, 2], [2, 2, 2, 2, 3, 3]])

    def call(keys, values, heads, runs):
        named = {"axis_name": mesh.AXIS}
        sums = mgpu.reduce_by_key(runs, values, size=4, **named)[1]
        return *mgpu.segmented_sort(keys, heads, values, **named), sums, jax.lax.psum(sums[0] ** 2, mesh.AXIS)

    function = jax.vmap(call, axis_name=mesh.AXIS)
    check_grads(
        jax.jit(lambda k, v: function(k, v, heads, runs)), (keys, values), order=1, modes=["fwd", "rev"], eps=1e-4
    )


# ---- Ids and softmaxes -----------------------------------------------------------------------------------------------


def segments_of(rng, devices):
    """Yields live counts, their sum, global heads, and each device's heads."""
    for counts in mesh.counts_of(rng, devices, SLOTS):
        for heads in heads_of(rng, counts):
            yield counts, int(counts.sum()), heads, mesh.shard_heads(heads, counts, SLOTS, 3 * SLOTS)[0]


def ids_and_softmaxes(x, rows, heads, count):
    named = {"count": count, "axis_name": mesh.AXIS}
    return (
        mgpu.segment_ids(heads, SLOTS, **named),
        mgpu.segmented_softmax(x, heads, **named),
        mgpu.segmented_log_softmax(rows, heads, **named),
    )


def softmax_of(x, heads):
    parts = np.split(x.astype(np.float64), heads)
    return np.concatenate([np.exp(part) / np.exp(part).sum(0, keepdims=True) for part in parts])


def check_ids_and_softmaxes(rng, call, devices):
    for counts, total, heads, sharded in segments_of(rng, devices):
        x, rows = rng.normal(size=total).astype(np.float32), rng.normal(size=(total, 2)).astype(np.float16)
        given = (mesh.shard(x, counts, SLOTS), mesh.shard(rows, counts, SLOTS), sharded, counts)
        ids, weights, logs = jax.device_get(call(*given))
        expected = np.searchsorted(heads, np.arange(total), "right") - 1
        np.testing.assert_array_equal(mesh.gather(ids, counts), expected)
        assert all((row[count:] == -1).all() for row, count in zip(ids, counts, strict=True))
        assert (weights.dtype, logs.dtype) == (np.float32, np.float16)
        np.testing.assert_allclose(mesh.gather(weights, counts), softmax_of(x, heads), rtol=1e-5)
        np.testing.assert_allclose(mesh.gather(logs, counts), np.log(softmax_of(rows, heads)), rtol=1e-2, atol=2e-3)
        for result in (weights, logs):
            assert all((row[count:] == 0).all() for row, count in zip(result, counts, strict=True))


@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.usefixtures("forms")
def test_ids_and_softmaxes(rng, devices):
    check_ids_and_softmaxes(rng, mesh.by_vmap(ids_and_softmaxes), devices)


def test_ids_and_softmaxes_on_devices(rng):
    check_ids_and_softmaxes(rng, mesh.by_devices(ids_and_softmaxes, 3), 3)


@pytest.mark.usefixtures("forms")
def test_derivatives_of_softmaxes(rng):
    counts, heads = np.array([6, 0, 5], np.int32), np.array([2, 8], np.int32)
    sharded, _ = mesh.shard_heads(heads, counts, 6, 3)
    x = mesh.shard(rng.normal(size=11), counts, 6)
    for function in (mgpu.segmented_softmax, mgpu.segmented_log_softmax):
        call = mesh.by_vmap(lambda x, h, c, f=function: f(x, h, count=c, axis_name=mesh.AXIS))
        check_grads(jax.jit(lambda x, call=call: call(x, sharded, counts)), (jnp.asarray(x),), 2)


@pytest.mark.usefixtures("forms")
def test_segments_that_a_loss_does_not_use_have_no_derivatives():
    """The softmax of a segment with an infinite item, or NaN, is NaN, and reaches no other segment's gradient."""
    counts, heads = np.array([3, 0, 4], np.int32), np.array([0, 2, 5], np.int32)
    x = np.array([1, np.inf, 2, 3, 4, np.nan, 1], np.float32)
    slots, sharded = mesh.shard(x, counts, 4), mesh.shard_heads(heads, counts, 4, 3)[0]
    y = softmax_of(x[2:5], [])
    of_log = (np.arange(3) == 1) - y  # the gradient of the logarithm of y[1]
    for function, expected in ((mgpu.segmented_softmax, y[1] * of_log), (mgpu.segmented_log_softmax, of_log)):
        call = mesh.by_vmap(lambda x, h, c, f=function: f(x, h, count=c, axis_name=mesh.AXIS))
        got = jax.jit(jax.grad(lambda x, call=call: call(x, sharded, counts)[2, 0]))(slots)
        held = slice(2, 5) if jax.default_backend() == "gpu" else slice(7)  # CUDA kernels multiply NaN by 0
        np.testing.assert_allclose(mesh.gather(got, counts)[held], [0, 0, *expected, 0, 0][held], rtol=1e-5)


# ---- Shifts and ranks ------------------------------------------------------------------------------------------------


def shifts(x, rows, heads, by, count):
    named = {"count": count, "axis_name": mesh.AXIS}
    return mgpu.segmented_shift({"x": x, "rows": rows}, heads, by, 7, **named)


def shifted(x, heads, by):
    """Returns, in place of row i of a segment, the segment's row i - by; 7 where there is none."""
    moved = np.full_like(x, 7)
    for begin, end in oracle.segment_bounds(len(x), heads):
        for i in range(begin, end):
            if begin <= i - by < end:
                moved[i] = x[i - by]
    return moved


def check_shifts(rng, call, devices):
    for counts, total, heads, sharded in segments_of(rng, devices):
        x, rows = rng.integers(8, 99, total), rng.normal(size=(total, 2)).astype(np.float16)
        for by in (1, -1, int(rng.integers(-SLOTS, SLOTS)), 10_000):
            given = (mesh.shard(x, counts, SLOTS), mesh.shard(rows, counts, SLOTS), sharded)
            found = jax.device_get(call(*given, np.full(devices, by), counts))
            for key, expected in (("x", shifted(x, heads, by)), ("rows", shifted(rows, heads, by))):
                oracle.same_bits(mesh.gather(found[key], counts), expected)
                assert all((row[count:] == 7).all() for row, count in zip(found[key], counts, strict=True))


@pytest.mark.parametrize("devices", mesh.FEW)
def test_segmented_shift(rng, devices):
    check_shifts(rng, mesh.by_vmap(shifts), devices)


def test_segmented_shift_on_devices(rng):
    check_shifts(rng, mesh.by_devices(shifts, 3), 3)


def test_derivative_of_a_shift(rng):
    counts, heads = np.array([6, 0, 5], np.int32), np.array([2, 8], np.int32)
    sharded, _ = mesh.shard_heads(heads, counts, 6, 3)
    named = {"axis_name": mesh.AXIS}
    call = mesh.by_vmap(lambda x, h, c: mgpu.segmented_shift(x, h, 2, count=c, **named))
    check_grads(
        jax.jit(lambda x: call(x, sharded, counts)), (jnp.asarray(mesh.shard(rng.normal(size=11), counts, 6)),), 2
    )


FORMS = ("min", "dense", "ordinal", "max", "average")


def every_rank(keys, other, heads, count):
    named = {"count": count, "axis_name": mesh.AXIS}
    return (
        [mgpu.rank(keys, method=form, **named) for form in FORMS],
        [mgpu.rank(keys, heads, form, descending=True, **named) for form in FORMS],
        mgpu.rank((other, keys), method="dense", descending=(True, False), **named),
    )


def ranks_of(keys, heads, form, descending=False):
    """Returns ranks of keys in segments; a list has integers that compare like the keys."""
    ranks = oracle.column_ranks([keys], descending) if not isinstance(keys, list) else keys[0]
    found = np.zeros(len(ranks))
    for begin, end in oracle.segment_bounds(len(ranks), heads):
        part = ranks[begin:end].tolist()
        for i, key in enumerate(part):
            smaller = [other for other in part if other < key]
            ties = sum(other == key for other in part[:i])
            most = len(smaller) + part.count(key) - 1
            ranked = {"min": len(smaller), "dense": len(set(smaller)), "ordinal": len(smaller) + ties, "max": most}
            found[begin + i] = 1 + ranked.get(form, (len(smaller) + most) / 2)
    return found


def check_ranks(rng, call, devices):
    for counts, total, heads, sharded in segments_of(rng, devices):
        keys = rng.choice(data.special_keys("float32"), total)
        other = rng.integers(0, 3, total).astype(np.int8)
        given = (mesh.shard(keys, counts, SLOTS), mesh.shard(other, counts, SLOTS), sharded, counts)
        whole, parts, columns = jax.device_get(call(*given))
        both = oracle.column_ranks([other, keys], (True, False))
        expected = [ranks_of(keys, [], form) for form in FORMS]
        expected += [ranks_of(keys, heads, form, descending=True) for form in FORMS]
        expected.append(ranks_of([both], [], "dense"))
        for got, ranks in zip([*whole, *parts, columns], expected, strict=True):
            np.testing.assert_array_equal(mesh.gather(got, counts), ranks)
            assert all((row[count:] == 0).all() for row, count in zip(got, counts, strict=True))


@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.usefixtures("forms")
def test_rank(rng, devices):
    check_ranks(rng, mesh.by_vmap(every_rank), devices)


def test_rank_on_devices(rng):
    check_ranks(rng, mesh.by_devices(every_rank, 3), 3)


def test_lists_of_no_heads(rng):
    """Without heads, all items are one segment without a number."""
    counts, none = np.array([5, 0, 6], np.int32), np.zeros((3, 0), np.int32)
    x = rng.normal(size=11).astype(np.float32)
    for run in (mesh.by_vmap, lambda function: mesh.by_devices(function, 3)):
        ids, weights, _ = jax.device_get(run(ids_and_softmaxes)(*[mesh.shard(x, counts, SLOTS)] * 2, none, counts))
        assert (ids == -1).all()
        np.testing.assert_allclose(mesh.gather(weights, counts), softmax_of(x, []), rtol=1e-5)
        given = [mesh.shard(x, counts, SLOTS)] * 2
        moved = jax.device_get(run(shifts)(*given, none, np.full(3, 2), counts))
        oracle.same_bits(mesh.gather(moved["x"], counts), shifted(x, [], 2))
        _, parts, _ = jax.device_get(run(every_rank)(*given, none, counts))
        np.testing.assert_array_equal(mesh.gather(parts[0], counts), ranks_of(x, [], "min", descending=True))
