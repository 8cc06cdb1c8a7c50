"""load_balance_search compared with tests/oracle.py."""

from __future__ import annotations

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import jax_mgpu as mgpu
from jax_mgpu._src.core.operation import REGISTRY
from tests import data, oracle

pytestmark = pytest.mark.usefixtures("x64")

TILES = data.tile_sizes("load_balance")


def expected(offsets, size, total):
    live = size if total is None else min(max(total, 0), size)
    objects, ranks = oracle.work_items(offsets, live if len(offsets) else 0)
    return [oracle.padded(x.astype(np.int32), size, -1) for x in (objects, ranks)]


def check(offsets, size, total=None, search=mgpu.load_balance_search):
    objects, ranks = expected(offsets, size, total)
    np.testing.assert_array_equal(search(offsets, size, total=total, return_rank=True), [objects, ranks])


def test_example_of_the_documentation():
    offsets = np.array([0, 2, 7, 10, 10], np.int32)
    objects = mgpu.load_balance_search(offsets, 11)
    assert objects.dtype == jnp.int32
    np.testing.assert_array_equal(objects, [0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 4])


@pytest.mark.parametrize("objects", [0, 1, 52, 556, 5676])
@pytest.mark.parametrize("size", [0, 1, 23, 123, 3234])
def test_sizes(rng, objects, size):
    offsets = np.sort(rng.integers(0, size + 1, objects)).astype(np.int32)
    if objects:
        offsets[0] = 0
    for total in (size, size // 2, 0):
        check(offsets, size, total)


@pytest.mark.parametrize("size", [*(tile + d for tile in TILES for d in (-1, 0, 1)), 40000])
def test_tile_edges(rng, size):
    for mean in (1, 5, 3000):
        check(data.heads_of(rng.integers(0, 2 * mean + 1, 1 + size // mean)), size)
    for total in (*(tile + d for tile in TILES for d in (-1, 0, 1)), size - 1, size + 9):
        check(data.heads_of(rng.integers(0, 11, size // 5)), size, total)


def lengths_of_each_pattern(rng):
    ones = rng.integers(0, 2, 9000)
    zeros = np.zeros(70000, int)
    return {
        "empty at the start": np.append(zeros[:40000], [9000]),
        "empty at the end": np.append([9000], zeros[:40000]),
        "empty in runs": np.concatenate([ones, zeros, ones, zeros, [4000], zeros]),
        "a run of empty ones across a tile's edge": np.concatenate([[4096], zeros, [1], zeros[:9], [4095, 3]]),
        "zero or one": rng.integers(0, 2, 20000),
        "one each": np.ones(9000, int),
        "one of everything": np.array([9000]),
        "all empty": zeros,
    }


@pytest.mark.parametrize("pattern", lengths_of_each_pattern(np.random.default_rng(0)))
def test_patterns(rng, pattern):
    lengths = lengths_of_each_pattern(rng)[pattern]
    check(data.heads_of(lengths), 17000, int(lengths.sum()))
    check(data.heads_of(lengths), int(lengths.sum()))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_index_types(dtype):
    check(np.array([0, 3, 3, 100], dtype), 120, 110)


def test_total_is_a_traced_scalar_and_offsets_of_int64_mix_with_it(rng):
    offsets = data.heads_of(rng.integers(0, 9, 500)).astype(np.int64)
    search = jax.jit(lambda offsets, total: mgpu.load_balance_search(offsets, 1500, total=total, return_rank=True))
    for total in (0, 1, 999, 1500, 9999, -3):
        check(offsets, 1500, total, lambda offsets, size, total, return_rank: search(offsets, np.int32(total)))


@pytest.mark.parametrize("in_axes", [(0, 0), (0, None), (None, 0)])
def test_batch_is_one_launch(rng, in_axes):
    offsets = np.stack([data.heads_of(rng.integers(0, 7, 1700)) for _ in range(3)])
    totals = np.array([5000, 4100, 0], np.int32)
    arguments = [x if axis == 0 else x[0] for x, axis in zip((offsets, totals), in_axes, strict=True)]
    search = jax.vmap(
        lambda offsets, total: mgpu.load_balance_search(offsets, 5001, total=total, return_rank=True), in_axes
    )
    assert str(jax.make_jaxpr(search)(*arguments)).count("mgpu_load_balance_search[") == 1
    objects, ranks = search(*arguments)
    for i in range(3):
        one = [x[i] if axis == 0 else x for x, axis in zip(arguments, in_axes, strict=True)]
        np.testing.assert_array_equal([objects[i], ranks[i]], expected(one[0], 5001, int(one[1])))


SHORT_ROWS = [
    (1, 1),
    (2, 3),
    (0, 5),
    (5, 0),
    (4, 8),
    (17, 3),
    (8, 100),
    (256, 512),
    (1000, 1100),
    (3, 4096),
    (4096, 7),
    (9, 4097),
]


@pytest.mark.parametrize("shape", SHORT_ROWS, ids=str)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_short_rows(rng, shape, dtype):
    objects, size = shape
    batch = data.batch_of(max(shape), data.WORK_ROWS)
    most = 2 * size // max(objects, 1) + 2
    offsets = np.array([data.heads_of(rng.integers(0, most, objects)) for _ in range(batch)], dtype)
    totals = data.row_counts(rng, size, batch)
    search = jax.vmap(lambda offsets, total: mgpu.load_balance_search(offsets, size, total=total, return_rank=True))
    shared = jax.vmap(lambda total: mgpu.load_balance_search(offsets[0], size, total=total, return_rank=True))
    of_rows, of_one = jax.tree.map(np.asarray, (search(offsets, totals), shared(totals)))
    for i in range(batch):
        for got, row in ((of_rows, offsets[i]), (of_one, offsets[0])):
            np.testing.assert_array_equal([x[i] for x in got], expected(row, size, int(totals[i])))


def test_short_rows_of_garbage_stay_inside(rng):
    for low, high in ((-50, 50), (-(2**31), 2**31)):
        offsets = rng.integers(low, high, (70, 60)).astype(np.int32)
        objects, _ = jax.vmap(lambda offsets: mgpu.load_balance_search(offsets, 90, return_rank=True))(offsets)
        assert objects.min() >= -1 and objects.max() < 60


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(st.lists(st.integers(0, 40), max_size=64), st.integers(0, 700))
def test_property_ranks_count_up_from_each_start(lengths, total):
    # one program serves all examples
    offsets = np.full(64, 10_000, np.int32)
    offsets[: len(lengths)] = data.heads_of(np.array(lengths, int))
    if not lengths:
        total = 0
    objects, ranks = (np.asarray(x) for x in mgpu.load_balance_search(offsets, 700, total=total, return_rank=True))
    live = np.arange(700) < total
    assert (objects[~live] == -1).all() and (ranks[~live] == -1).all()
    assert (offsets[objects[live]] + ranks[live] == np.arange(700)[live]).all()
    assert (np.diff(objects[live]) >= 0).all()


def test_garbage_offsets_stay_in_range(rng):
    for low, high in ((-50, 50), (-(2**31), 2**31), (0, 20000)):
        offsets = rng.integers(low, high, 3000).astype(np.int32)
        objects, ranks = mgpu.load_balance_search(offsets, 20000, return_rank=True)
        assert objects.min() >= -1 and objects.max() < 3000
        assert ranks.shape == (20000,)
    check(np.array([2**62, 2**62], np.int64), 9, 0)


def test_plain_jax_agrees(rng):
    run = REGISTRY["load_balance_search"].fallback
    for lengths in (rng.integers(0, 5, 300), np.zeros(9, int), np.zeros(0, int)):
        for total in (450, 0):
            got = run(data.heads_of(lengths), np.array([total], np.int32), size=500, return_rank=1)
            np.testing.assert_array_equal(got, expected(data.heads_of(lengths), 500, total))


def test_errors():
    offsets = jnp.array([0, 1])
    with pytest.raises(TypeError, match="load_balance_search: offsets: expected integers, got float32"):
        mgpu.load_balance_search(jnp.array([0.0], jnp.float32), 3)
    with pytest.raises(ValueError, match="load_balance_search: offsets: expected a 1-D array"):
        mgpu.load_balance_search(offsets[None], 3)
    with pytest.raises(TypeError, match="load_balance_search: size: expected a static, non-negative integer"):
        jax.jit(lambda size: mgpu.load_balance_search(offsets, size))(3)
    with pytest.raises(ValueError, match="load_balance_search: size: expected a static, non-negative integer, got -1"):
        mgpu.load_balance_search(offsets, -1)
    with pytest.raises(TypeError, match="load_balance_search: total: expected an integer scalar"):
        mgpu.load_balance_search(offsets, 3, total=2.5)
    with jax.enable_x64(False), pytest.raises(ValueError, match="load_balance_search: size: expected fewer than 2"):
        jax.eval_shape(lambda x: mgpu.load_balance_search(x, 2**31), offsets)
