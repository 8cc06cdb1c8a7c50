"""segmented_sort against tests/oracle.py: sizes of arrays, segments and batches."""

from __future__ import annotations

import itertools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import jax_mgpu as mgpu
from tests import data, oracle
from tests.oracle import same_bits
from tests.segmented_sorts import BLOCK, CELLS, TILES, batched_cases, check, forms, jitted, random_heads

pytestmark = pytest.mark.usefixtures("x64")


# ---- Sizes ----------------------------------------------------------------------------------------------------------


def edge_lengths(total):
    """Returns lengths around CELLS, warps and TILES, and multiples of these."""
    edges = [k * cell + d for cell in CELLS for k in (1, 2, 32) for d in (-1, 0, 1)]
    edges += [k * 32 + d for k in (1, 2, 4, 8) for d in (-1, 0, 1)] + [0, 1, 2, 3]
    edges += [tile + d for tile in TILES for d in (-1, 0, 1)] + [k * TILES[-1] for k in (2, 3, 5)]
    assert sum(edges) <= total
    return edges


N = 2**18  # one shape for all mixtures
M = 2**12  # the number of heads, padding included


def lengths_to_heads(lengths):
    heads = data.heads_of(np.asarray(lengths))
    return np.concatenate([heads, np.full(M - len(heads), N, np.int32)])


MIXTURES = {
    "one segment": lambda rng: [N],
    "every listed segment empty": lambda rng: [0] * M,
    "empty segments, then one of everything": lambda rng: [0] * (M - 1) + [N],
    "every edge, ascending": lambda rng: sorted(edge_lengths(N)),
    "every edge, shuffled": lambda rng: rng.permutation(edge_lengths(N)),
    "every edge, shuffled again": lambda rng: rng.permutation(edge_lengths(N)),
    "sizes 0 to 3": lambda rng: rng.integers(0, 4, M),
    "mean 60, uniform": lambda rng: rng.integers(0, 120, M),
    "heavy tail": lambda rng: np.minimum(20 / (1 - rng.random(M)) ** (2 / 3), 40_000).astype(int),
    "cells, exactly": lambda rng: [17] * M,
    "tiles, exactly": lambda rng: [BLOCK] * (N // BLOCK),
    "half tiles across tiles": lambda rng: [BLOCK // 2] + [BLOCK] * (N // BLOCK - 1),
    "three of several tiles between short ones": lambda rng: [5, 70_000, 3, 100_000, 1, 1, 60_000, 9],
    "one item, then everything": lambda rng: [1, N - 1],
    "everything, then one item": lambda rng: [N - 1, 1],
}


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
@pytest.mark.parametrize("mixture", MIXTURES)
def test_mixtures_of_segment_lengths(rng, mixture, dtype):
    keys = data.random_keys(rng, dtype, N)
    heads = lengths_to_heads(MIXTURES[mixture](rng))
    order = oracle.segmented_sort_indices(keys, heads)
    for segments in forms(N, heads).values():
        sorted_keys, indices = jitted()(keys, **segments)
        same_bits(sorted_keys, keys[order])
        same_bits(indices, order.astype(np.int32))


def test_a_million_segments_of_one_item(rng):
    n = 2**20
    keys = data.random_keys(rng, "uint32", n)
    same_bits(mgpu.segmented_sort(keys, np.arange(n, dtype=np.int32)), keys)
    same_bits(mgpu.segmented_sort(keys, flags=np.ones(n, bool)), keys)


@pytest.mark.parametrize("dtype", ["int16", "float64"])
def test_array_lengths_around_every_limit(rng, dtype):
    lengths = [
        0,
        1,
        2,
        3,
        31,
        32,
        33,
        *(limit + d for limit in (*CELLS, *TILES) for d in (-1, 0, 1)),
        2 * TILES[-1] + 1,
    ]
    for n in lengths:
        keys = data.random_keys(rng, dtype, n)
        check(keys, random_heads(rng, n, 8))
        check(keys, np.zeros(0, np.int32), descending=True)


def test_no_items_in_every_form():
    for dtype in ("uint8", "bfloat16", "int64"):
        keys = np.zeros(0, jnp.dtype(dtype))
        for segments in (
            {"heads": []},
            {"heads": [0, 0]},
            {"flags": np.zeros(0, bool)},
            {"flags": np.zeros(0, np.uint32)},
        ):
            sorted_keys, (rows, words) = mgpu.segmented_sort(keys, values=(np.zeros((0, 2)), keys), count=0, **segments)
            assert sorted_keys.shape == (0,)
            assert rows.shape == (0, 2)
            assert words.dtype == keys.dtype


@pytest.mark.parametrize("shape", ["sorted", "reversed", "constant", "organ pipe", "two values"])
def test_shapes_of_data(rng, shape):
    ramp = np.arange(N, dtype=np.uint32)
    keys = {
        "sorted": ramp,
        "reversed": ramp[::-1].copy(),
        "constant": np.zeros_like(ramp),
        "organ pipe": np.minimum(ramp, N - ramp),
        "two values": rng.integers(0, 2, N, dtype=np.uint32),
    }[shape]
    for lengths in ([N], [N // 3, 0, 5, N // 2]):
        heads = lengths_to_heads(lengths)
        for descending in (False, True):
            check(keys, heads, descending=descending)


@hypothesis.given(
    lengths=st.lists(st.integers(0, 40), max_size=24),
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 300),
    descending=st.booleans(),
    form=st.sampled_from(["heads", "bool", "words"]),
)
@hypothesis.settings(max_examples=150, deadline=None)
def test_any_lengths(lengths, seed, count, descending, form):
    rng = np.random.default_rng(seed)
    heads = np.minimum(data.heads_of(np.array(lengths, int)), 300)
    heads = np.concatenate([heads, np.full(24 - len(heads), 300, np.int32)])
    check(data.random_keys(rng, "float32", 300), heads, form=form, descending=descending, count=np.int32(count))


# ---- Long segments --------------------------------------------------------------------------------------------------

# From these mean lengths on, CUDA may sort segments by digits.
LONG_MEANS = {1: 2**14, 2: 2**14, 4: 2**15, 8: 2**19}  # keyed by the bytes of a key
LONG_HEADS = 7


def long_length(dtype):
    return (LONG_HEADS + 1) * LONG_MEANS[jnp.dtype(dtype).itemsize] + 4321


def long_heads(lengths, n):
    """Returns padded heads; lengths are numbers or shares of n."""
    lengths = [int(x * n) if isinstance(x, float) else x for x in lengths]
    heads = data.heads_of(np.asarray(lengths))
    return np.concatenate([heads, np.full(LONG_HEADS - len(heads), n + 3)]).astype(np.int32)


LONG_MIXTURES = {
    "one segment": [],
    "equal": [0.125] * 7,
    "one of almost everything between ones of one item": [1, 1, 1, 0.99, 1, 1, 1],
    "one of almost everything, then short ones": [0.98, 3, 100, 5, 700],
    "empty ones first": [0, 0, 0, 0, 0.4],
    "empty ones between": [0.2, 0, 0, 0.5, 0, 0.1, 0],
    "nothing behind the last": [0.3, 0.2, 0.5],
    "each twice as long": [0.01, 0.02, 0.04, 0.08, 0.16, 0.32],
}


def check_long(keys, heads, count, descending=False):
    order = oracle.segmented_sort_indices(keys, heads, descending, count)
    sorted_keys, indices = jitted(descending=descending)(keys, heads, count=np.int32(count))
    same_bits(sorted_keys, keys[order])
    same_bits(indices, order.astype(np.int32))


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
@pytest.mark.parametrize("mixture", LONG_MIXTURES)
def test_mixtures_of_long_segments(rng, mixture, dtype):
    n = long_length(dtype)
    keys = data.random_keys(rng, dtype, n)
    for count in (n, n // 3):
        check_long(keys, long_heads(LONG_MIXTURES[mixture], n), count)


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_long_segments_of_every_key_type(rng, dtype, descending):
    n = long_length(dtype)
    keys = data.random_keys(rng, dtype, n)
    heads = np.sort(rng.integers(0, n + n // 8, LONG_HEADS)).astype(np.int32)
    for count in (n + 1, int(heads[3])) if keys.itemsize == 8 else (n + 1, n - 1, int(heads[3]), 1, 0):
        check_long(keys, heads, count, descending)


def test_long_segments_of_64_bit_keys_alone(rng):
    n = long_length("uint64")
    keys = rng.integers(0, 2**64, n, dtype=np.uint64)
    heads = long_heads([0.1, 5, 0.3, 0, 0.4], n)
    expected = np.concatenate([np.sort(x) for x in np.split(keys, heads[heads < n])])
    same_bits(jax.jit(mgpu.segmented_sort)(keys, heads), expected)


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "uint64"])
def test_values_of_long_segments(rng, dtype, width):
    n = long_length(dtype)
    keys = data.random_keys(rng, dtype, n)
    values = rng.integers(0, 2**62, n).astype(f"u{width}")
    heads = long_heads([0.3, 1, 0, 0.4], n)
    order = oracle.segmented_sort_indices(keys, heads)
    sorted_keys, moved = jax.jit(mgpu.segmented_sort)(keys, heads, values)
    same_bits(sorted_keys, keys[order])
    same_bits(moved, values[order])
    same_bits(jax.jit(mgpu.segmented_sort)(keys, heads), keys[order])


def test_long_segments_at_the_edges_of_tiles(rng):
    n = long_length("uint8")
    keys = rng.integers(0, 256, n, dtype=np.uint8)
    for tile in data.tile_sizes("sort_digits"):
        for lengths in ([tile - 1, tile, tile + 1], [tile + 1, 2 * tile, 1, 2 * tile - 1], [5 * tile, 5 * tile + 1]):
            check_long(keys, long_heads(lengths, n), n)
        check_long(keys, long_heads([0.5], n), n // 2 + tile)


def test_long_segments_whose_keys_differ_in_other_digits(rng):
    n = long_length("int32")
    heads = long_heads([0.125] * 7, n)
    masks = np.array([0, 0xFF, 0xFF00, 0x7F000000, 0xFF00FF, 0xFFFF00, 0x7F00FFFF, 0x7FFFFFFF])
    segment = np.searchsorted(heads, np.arange(n), side="right")
    for which in (masks, masks[::-1], masks[[5]].repeat(8)):
        keys = ((rng.integers(0, 2**31, n) & which[segment]) + 0x00010000).astype(np.int32)
        check_long(keys, heads, n)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_equal_keys_of_other_bits_stay_in_order_in_long_segments(rng, dtype):
    n = long_length(dtype)
    keys = rng.choice(np.array([0.0, -0.0, np.nan, -np.nan, np.inf, 1.0], dtype), n)
    for descending in (False, True):
        check_long(keys, long_heads([0.2, 0.3, 0.4], n), n - 5, descending)


@pytest.mark.parametrize("heads_axis", [0, None])
@pytest.mark.parametrize("counts_axis", [0, None])
def test_batches_of_long_segments(rng, heads_axis, counts_axis):
    batch, n, m = 5, 2**18 + 77, 3
    keys, heads, counts, _ = batched_cases(rng, batch, n, m, "int32")
    keys[1] = 5
    counts[:4] = n, 0, n + 1, heads[3, 1]
    given = [keys, heads if heads_axis == 0 else heads[0], counts if counts_axis == 0 else counts[0]]
    sort = jax.vmap(lambda k, h, c: mgpu.segmented_sort_indices(k, h, count=c), in_axes=(0, heads_axis, counts_axis))
    sorted_keys, indices = jax.jit(sort)(*given)
    for b in range(batch):
        row_heads = heads[b if heads_axis == 0 else 0]
        order = oracle.segmented_sort_indices(keys[b], row_heads, count=counts[b if counts_axis == 0 else 0])
        same_bits(sorted_keys[b], keys[b][order])
        same_bits(indices[b], order.astype(np.int32))


def test_broken_heads_of_long_segments_stay_in_their_row(rng):
    batch, n, m = 3, 2**16, 3
    sort = jax.jit(jax.vmap(mgpu.segmented_sort_indices))
    for _ in range(12):
        keys = data.random_keys(rng, "uint8", batch, n)
        heads = np.stack([random_heads(rng, n, m) for _ in range(batch)])
        broken = rng.integers(batch)
        indices, wild = rng.integers(-9, n + 9, m), rng.integers(-(2**31), 2**31, m)
        heads[broken] = np.where(rng.random(m) < 0.5, indices, wild)
        sorted_keys, indices = sort(keys, heads)
        for b in set(range(batch)) - {broken}:
            order = oracle.segmented_sort_indices(keys[b], heads[b])
            same_bits(sorted_keys[b], keys[b][order])
            same_bits(indices[b], order.astype(np.int32))
        same_bits(np.sort(indices[broken]), np.arange(n, dtype=np.int32))


# ---- Long segments among short ones ---------------------------------------------------------------------------------

# At this size, CUDA may sort long segments by digits and short ones by merging.
MIXED = 2**22 + 4321
MIXED_HEADS = 2047


def mixed_heads(lengths, n=MIXED):
    """Returns MIXED_HEADS heads: surplus ones are cut off, missing ones lie past n."""
    heads = data.heads_of(np.asarray(lengths))[:MIXED_HEADS]
    return np.concatenate([heads, np.full(MIXED_HEADS - len(heads), n + 3)]).astype(np.int32)


def check_mixed(keys, heads, form="heads", descending=False, count=None):
    sort = jitted(descending=descending)
    order = oracle.segmented_sort_indices(keys, heads, descending, count)
    sorted_keys, indices = sort(keys, **forms(len(keys), heads)[form], count=count)
    same_bits(sorted_keys, keys[order])
    same_bits(indices, order.astype(np.int32))


def mixed_lengths(rng, dtype):
    """Draws lengths, some around LONG_MEANS or multiples of tiles; one segment has a third of all items."""
    least = LONG_MEANS[jnp.dtype(dtype).itemsize]
    edges = [least + d for d in (-1, 0, 1)] + [least + tile + d for tile in TILES for d in (-1, 0, 1)]
    edges += [4 * tile + d for tile in data.tile_sizes("sort_digits") for d in (-1, 0, 1)] + [MIXED // 3]
    short = [0, 0, 1, 2, *rng.integers(0, 900, 400)]
    return rng.permutation(np.concatenate([edges, short]))


@pytest.mark.parametrize("form", ["heads", "bool", "words"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_long_segments_among_short_ones(rng, dtype, form):
    keys = data.random_keys(rng, dtype, MIXED)
    check_mixed(keys, mixed_heads(mixed_lengths(rng, dtype)), form)
    check_mixed(keys, mixed_heads(mixed_lengths(rng, dtype)), form, count=np.int32(rng.integers(MIXED)))


@pytest.mark.parametrize("lengths", [[5, 700_000, 3, 100_000, 1, 1, 60_000, 9], [1, MIXED - 1], [7] * MIXED_HEADS, []])
def test_one_segment_of_almost_everything_among_short_ones(rng, lengths):
    check_mixed(data.random_keys(rng, "int32", MIXED), mixed_heads(lengths))


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("dtype", [dtype for dtype in data.KEY_DTYPES if jnp.dtype(dtype).itemsize <= 4])
def test_long_segments_among_short_ones_of_every_narrow_key_type(rng, dtype, descending):
    keys = data.random_keys(rng, dtype, MIXED)
    check_mixed(keys, mixed_heads(mixed_lengths(rng, dtype)), descending=descending)


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_values_of_long_segments_among_short_ones(rng, dtype, width):
    keys = data.random_keys(rng, dtype, MIXED)
    values = rng.integers(0, 2**62, MIXED).astype(f"u{width}")
    heads = mixed_heads(mixed_lengths(rng, dtype))
    order = oracle.segmented_sort_indices(keys, heads)
    sorted_keys, moved = jax.jit(mgpu.segmented_sort)(keys, heads, values)
    same_bits(sorted_keys, keys[order])
    same_bits(moved, values[order])
    same_bits(jax.jit(mgpu.segmented_sort)(keys, heads), keys[order])


@pytest.mark.long
def test_broken_heads_do_not_reach_the_long_segments_of_other_rows(rng):
    batch, n = 3, 2**21 + 77
    sort = jax.jit(jax.vmap(mgpu.segmented_sort_indices))
    for step in range(4):
        keys = data.random_keys(rng, "int32", batch, n)
        lengths = [np.append(rng.integers(0, 5000, 50), [n // 4, 9, n // 5]) for _ in range(batch)]
        heads = np.stack([mixed_heads(row, n) for row in lengths])
        broken = step % batch
        if step < 2:
            heads[broken] = rng.permutation(heads[broken])
        else:
            limit = 2**31 - 1 if step == 3 else n + 9
            heads[broken] = rng.integers(-limit, limit, MIXED_HEADS)
        sorted_keys, indices = sort(keys, heads)
        for b in set(range(batch)) - {broken}:
            order = oracle.segmented_sort_indices(keys[b], heads[b])
            same_bits(sorted_keys[b], keys[b][order])
            same_bits(indices[b], order.astype(np.int32))


# ---- Batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["heads", "bool", "words"])
@pytest.mark.parametrize(
    "mapped",
    [mix for mix in itertools.product([True, False], repeat=4) if any(mix)],
    ids=lambda mix: "".join(name if on else "-" for name, on in zip("khcv", mix, strict=True)),
)
def test_vmap_over_every_mix_of_operands(rng, mapped, form):
    batch, n = 5, 700
    everything = batched_cases(rng, batch, n, 16, "float32")
    keys, heads, counts, values = everything
    flags = np.stack([data.flags_of(n, row) for row in heads])
    segments = {"heads": heads, "bool": flags, "words": np.stack([data.words_of(row) for row in flags])}[form]
    given = [x if on else x[0] for x, on in zip((keys, segments, counts, values), mapped, strict=True)]
    argument = "heads" if form == "heads" else "flags"

    def sort(keys, segments, count, values):
        return mgpu.segmented_sort(keys, values=values, count=count, **{argument: segments})

    sorted_keys, moved = jax.vmap(sort, in_axes=[0 if on else None for on in mapped])(*given)
    for b in range(batch):
        k, h, c, v = (x[b if on else 0] for x, on in zip((keys, heads, counts, values), mapped, strict=True))
        order = oracle.segmented_sort_indices(k, h, count=c)
        same_bits(sorted_keys[b], k[order])
        same_bits(moved[b], v[order])


@pytest.mark.parametrize(
    "shape", [(1, 40_000), (3, 20_000), (7, 4352), (300, 100), (5000, 3), (20_000, 1), (4, 0), (0, 9)], ids=str
)
def test_batches_of_every_shape(rng, shape):
    batch, n = shape
    keys, heads, counts, _ = batched_cases(rng, max(batch, 1), n, 8, "int32")
    keys, heads, counts = keys[:batch], heads[:batch], counts[:batch]
    for heads_axis, counts_axis in ((0, None), (None, 0)):
        sort = jax.vmap(
            lambda k, h, c: mgpu.segmented_sort_indices(k, h, count=c), in_axes=(0, heads_axis, counts_axis)
        )
        h = heads if heads_axis == 0 else np.full(8, n // 3, np.int32)
        c = counts if counts_axis == 0 else np.int32(n // 2)
        sorted_keys, indices = sort(keys, h, c)
        assert sorted_keys.shape == indices.shape == shape
        for b in range(batch) if batch < 1000 else rng.integers(0, batch, 100):
            row_heads = h[b] if heads_axis == 0 else h
            order = oracle.segmented_sort_indices(keys[b], row_heads, count=c[b] if counts_axis == 0 else c)
            same_bits(sorted_keys[b], keys[b][order])
            same_bits(indices[b], order.astype(np.int32))


def test_nested_vmap_with_other_axes(rng):
    keys = data.random_keys(rng, "uint16", 4, 300, 3)
    heads = np.stack([random_heads(rng, 300, 16) for _ in range(4)])
    counts = np.array([300, 0, 150], np.int32)
    sort = jax.vmap(
        jax.vmap(lambda k, h, c: mgpu.segmented_sort(k, h, count=c), in_axes=(1, None, 0), out_axes=1),
        in_axes=(0, 0, None),
    )
    got = jax.jit(sort)(keys, heads, counts)
    assert got.shape == keys.shape
    for i, j in itertools.product(range(4), range(3)):
        order = oracle.segmented_sort_indices(keys[i, :, j], heads[i], count=counts[j])
        same_bits(got[i, :, j], keys[i, :, j][order])
