"""unique, top_k, quantiles and counts, compared with NumPy and plain Python."""

from __future__ import annotations

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from jax_mgpu._src.core.operation import REGISTRY, run_fallback
from jax_mgpu._src.ops import order_statistics, ranks
from tests import data, oracle
from tests.jaxprs import kernel_calls, scratch_bytes
from tests.oracle import same_bits
from tests.variants import long_but

pytestmark = pytest.mark.usefixtures("x64", "selected_on_cuda")

HEADS = np.array([0, 0, 7, 30, 30, 55, 999], np.int32)
FEW_DTYPES = ["uint8", "int32", "bfloat16", "float64"]


@pytest.fixture
def selected_on_cuda(monkeypatch):
    """Makes CUDA select where it would otherwise sort."""
    monkeypatch.setattr(order_statistics, "CUDA_MIN_IN_LONG_SEGMENTS", 0)
    monkeypatch.setattr(order_statistics, "CUDA_MAX_SORTED", 0)
    monkeypatch.setattr(ranks, "CUDA_SORTED_SEGMENT", 2**40)


def bounds_of(heads, n, count):
    live = oracle.live_count(count, n)
    return list(itertools.pairwise([*np.clip(heads, 0, live), live]))


# ---- unique ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", long_but(FEW_DTYPES, data.KEY_DTYPES))
def test_unique(rng, dtype):
    for n in (0, 1, 600):
        keys = data.random_keys(rng, dtype, n)
        for count in (None, n // 2):
            live = oracle.live_count(count, n)
            order = oracle.sort_indices(keys[:live])
            ranks = oracle.rank(keys[:live])[order]
            starts = np.flatnonzero(np.append(True, ranks[1:] != ranks[:-1])[:live])
            counts = np.diff([*starts, live]).astype(np.int32)
            ids = np.full(n, -1, np.int32)
            ids[order] = np.repeat(np.arange(len(starts)), counts)
            for size in (0, len(starts) // 2, n + 2):
                options = {"size": size, "count": count}
                values, index, inverse, times, found = mgpu.unique(
                    keys, return_index=True, return_inverse=True, return_counts=True, **options
                )
                same_bits(values, oracle.padded(keys[order][starts], size, 0))
                same_bits(index, oracle.padded(order[starts].astype(np.int32), size, -1))
                same_bits(inverse, np.where(ids < size, ids, -1).astype(np.int32))
                same_bits(times, oracle.padded(counts, size, 0))
                assert int(found) == len(starts)


def test_unique_gives_what_is_asked_for(rng):
    keys = rng.integers(0, 9, 50)
    assert [len(mgpu.unique(keys, size=9)), len(mgpu.unique(keys, size=9, return_inverse=True))] == [2, 3]
    expected = np.unique(keys, return_counts=True)
    got = mgpu.unique(keys, size=len(expected[0]), return_counts=True)
    same_bits(got[0], expected[0])
    same_bits(got[1], expected[1].astype(np.int32))


# ---- top_k -----------------------------------------------------------------------------------------------------------


def first_of(x, begin, end, k, largest):
    """Returns the indices of the first k items in a stable order."""
    return begin + oracle.sort_indices(x[begin:end], descending=largest)[:k]


@pytest.mark.parametrize("dtype", long_but(FEW_DTYPES, data.KEY_DTYPES))
def test_top_k(rng, dtype):
    x = data.random_keys(rng, dtype, 70)
    for k, count, largest in itertools.product((0, 1, 5, 90), (None, 33), (True, False)):
        live = oracle.live_count(count, 70)
        one = jax.device_get(mgpu.top_k(x, k, largest=largest, count=count))
        rows = jax.device_get(mgpu.segmented_top_k(x, HEADS, k, largest=largest, count=count))
        for b, e, values, indices, found in [
            (0, live, *one),
            *((b, e, *(leaf[i] for leaf in rows)) for i, (b, e) in enumerate(bounds_of(HEADS, 70, count))),
        ]:
            order = first_of(x, b, e, k, largest)
            same_bits(values, oracle.padded(x[order], k, 0))
            same_bits(indices, oracle.padded(order.astype(np.int32), k, -1))
            assert int(found) == len(order)


@pytest.mark.parametrize(("rows", "n"), [(300, 40), (5, 3000), (2, 2**16), (1, 2**16 + 1), (2, 200_001)])
@pytest.mark.parametrize(
    "dtype", long_but(["uint8", "bfloat16", "float64"], ["uint8", "float32", "bfloat16", "int64", "float64"])
)
def test_top_k_of_rows(rng, rows, n, dtype):
    x = data.random_keys(rng, dtype, rows, n)
    x[-1, 1::2] = np.sort(x[-1, 1::2])
    counts = np.resize(np.array([n, n - 1, n // 5, 3, 0], np.int32), rows)
    for k, largest in ((1, True), (n // 50 + 2, False), (n // 4, True)):
        top = jax.vmap(lambda x, count, k=k, largest=largest: mgpu.top_k(x, k, largest=largest, count=count))
        best = jax.device_get(top(x, counts))
        for row in (*range(min(rows, 5)), rows - 1):
            order = first_of(x[row], 0, counts[row], k, largest)
            same_bits(best.values[row], oracle.padded(x[row, order], k, 0))
            same_bits(best.indices[row], oracle.padded(order.astype(np.int32), k, -1))
            assert int(best.count[row]) == len(order)


def keys_of_kind(rng, dtype, kind, *shape):
    if kind == "random":
        return data.random_keys(rng, dtype, *shape)
    if kind == "equal":
        return np.full(shape, 7, jnp.dtype(dtype))
    if kind == "descending":
        return np.broadcast_to(-np.arange(shape[-1]).astype(dtype), shape)
    if kind == "sampled":  # the sampled items are the largest
        n = shape[-1]
        x = -np.arange(n)
        places = top_k_sample(n, jnp.dtype(dtype).itemsize)
        x[places] = n + rng.permutation(len(places))
        return np.broadcast_to(x.astype(dtype), shape)
    return np.broadcast_to(np.sort(rng.integers(0, 120, shape[-1])).astype(jnp.dtype(dtype)), shape)


def top_k_sample(n, itemsize):
    """Returns positions that CUDA's top_k may sample."""
    pair = 32 // itemsize
    places = []
    for sample in (512, 1024, 2048, 4096):
        stretches = np.arange(sample // pair, dtype=np.uint64)
        stride = n // len(stretches)
        hashes = (stretches + 1) * np.uint64(0x9E3779B9) & np.uint64(2**32 - 1)
        begins = stretches * stride + ((hashes * np.uint64(max(stride - pair, 0))) >> np.uint64(32))
        places.append((begins.astype(int) // pair * pair)[:, None] + np.arange(pair))
    return np.unique(np.concatenate(places, axis=None))


TOP_K_TILES = data.tile_sizes("top_k")


@pytest.mark.parametrize("kind", ["random", "equal", "ascending"])
@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "int64"])
def test_top_k_at_the_edges_of_tiles(rng, dtype, kind):
    for tile, delta in itertools.product(TOP_K_TILES, (-1, 0, 1)):
        n = tile + delta
        x = keys_of_kind(rng, dtype, kind, n)
        for k, largest in ((1, False), (min(2048, n // 4), True)):
            best = mgpu.top_k(x, k, largest=largest)
            order = first_of(x, 0, n, k, largest)
            same_bits(best.values, x[order])
            same_bits(best.indices, order.astype(np.int32))


@pytest.mark.parametrize("kind", long_but(["random", "ascending"], ["random", "ascending", "descending", "sampled"]))
@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize(
    ("rows", "n", "k"),
    [
        (3, 9_001, 2048),
        (3, 16_384, 1000),
        (1, 100_000, 2048),
        (2, 600_000, 2048),
        (265, 8_192, 700),
        (1, 9_000, 2049),
    ],
)
def test_top_k_of_many_parts(rng, dtype, rows, n, k, kind):
    x = keys_of_kind(rng, dtype, kind, rows, n)
    counts = np.resize(np.array([n, n - 1, n // 2], np.int32), rows)
    best = jax.vmap(lambda x, count: mgpu.top_k(x, k, count=count))(x, counts)
    for row, count in enumerate(counts[:3]):
        order = first_of(x[row], 0, count, k, True)
        same_bits(best.values[row], x[row, order])
        same_bits(best.indices[row], order.astype(np.int32))


@pytest.mark.parametrize("n", [0, 1, 2048, 2049, 100_000, 2**20])
def test_top_k_of_no_items(n):
    def call(x):
        return jax.vmap(lambda x: mgpu.top_k(x, 0))(x)

    x = jnp.zeros((2, n), jnp.float32)
    assert all(scratch_bytes(equation) >= 0 for equation in kernel_calls(call, x))
    best = jax.device_get(jax.jit(call)(x))
    assert best.values.shape == best.indices.shape == (2, 0)
    same_bits(best.count, np.zeros(2, np.int32))


SHORT_ROWS = [0, 1, 2, *(edge + d for edge in (8, 32, 64, 256, 512, 1024, 2048) for d in (-1, 0, 1))]


def short_rows(rng, dtype, rows, n):
    """Returns rows of several kinds."""
    place = np.arange(n)
    kinds = [
        data.random_keys(rng, dtype, n),
        data.random_keys(rng, dtype, n),
        rng.choice(data.special_keys(dtype), n),
        rng.integers(0, 3, n),
        np.full(n, 7),
        place % 128,
        place[::-1] % 128,
        np.where(place % 32 == 3, 100, place % 50),
    ]
    return np.array([kinds[row % len(kinds)].astype(jnp.dtype(dtype)) for row in range(rows)]).reshape(rows, n)


@pytest.mark.parametrize(
    "dtype",
    long_but(["float32"], ["int8", "uint8", "bfloat16", "float16", "float32", "int32", "uint64", "float64"]),
)
@pytest.mark.long
def test_top_k_of_short_rows(rng, dtype):
    for i, n in enumerate(SHORT_ROWS):
        rows = 67 if n <= 33 else 9
        x = short_rows(rng, dtype, rows, n)
        for k, largest in ((8, i % 2 == 0), ((1, n, 13, 64, 2)[i % 5], i % 2 == 1)):
            counts = np.where(rng.random(rows) < 0.5, n, data.row_counts(rng, n, rows)).astype(np.int32)
            top = jax.vmap(lambda x, count, k=k, largest=largest: mgpu.top_k(x, k, largest=largest, count=count))
            best = jax.device_get(jax.jit(top)(x, counts))
            for row in range(rows):
                order = first_of(x[row], 0, np.clip(counts[row], 0, n), k, largest)
                same_bits(best.values[row], oracle.padded(x[row, order], k, 0))
                same_bits(best.indices[row], oracle.padded(order.astype(np.int32), k, -1))
                assert int(best.count[row]) == len(order)


def test_a_sort_in_the_place_of_a_selection_agrees(rng):
    x = data.random_keys(rng, "float32", 3, 500)
    counts = np.array([[500], [44], [3]], np.int32)
    fallback = jax.jit(jax.vmap(lambda *operands: REGISTRY["top_k"].fallback(*operands, k=50, largest=1)))
    best = jax.vmap(lambda x, count: mgpu.top_k(x, 50, count=count))(x, counts[:, 0])
    for got, expected in zip(fallback(x, counts), best[:2], strict=True):
        same_bits(got, np.asarray(expected))


def lengths_at_edges(operation, most):
    """Returns lengths around edges of kernels, and some empty segments."""
    edges = (1, 32, 64, *data.tile_sizes(operation))
    return np.array([0, *(edge + d for edge in edges if edge < most for d in (-1, 0, 1)), 0, most, 0, 5])


def check_top_k_of_segments(x, heads, ends, k, **options):
    best = jax.device_get(jax.jit(lambda x: mgpu.segmented_top_k(x, heads, k, ends=ends, **options))(x))
    bounds = np.minimum([heads, ends], oracle.live_count(options.get("count"), len(x)))
    orders = [first_of(x, b, e, k, options.get("largest", True)) for b, e in bounds.T]
    same_bits(best.count, np.array([len(order) for order in orders], np.int32))
    same_bits(best.indices, np.stack([oracle.padded(order.astype(np.int32), k, -1) for order in orders]))
    same_bits(best.values, np.stack([oracle.padded(x[order], k, 0) for order in orders]))


@pytest.mark.parametrize("dtype", long_but(FEW_DTYPES, data.KEY_DTYPES))
@pytest.mark.parametrize("kind", ["random", "equal", "descending"])
def test_top_k_of_segments_of_any_length(rng, dtype, kind):
    lengths = lengths_at_edges("segmented_top_k", 70_001)
    ends = np.cumsum(lengths).astype(np.int32)
    n = int(ends[-1]) + 9
    x = np.asarray(keys_of_kind(rng, dtype, kind, n))
    for k, largest, count in ((1, True, None), (3, False, n // 2), (32, True, n - 10)):
        check_top_k_of_segments(x, ends - lengths.astype(np.int32), ends, k, largest=largest, count=count)


@pytest.mark.parametrize("mean", [0.5, 3, 7, 14, 30, 60])
@pytest.mark.parametrize("dtype", ["uint16", "float32", "float64"])
def test_top_k_of_many_short_segments(rng, dtype, mean):
    m = int(3000 / (mean + 1))
    lengths = np.concatenate([rng.poisson(mean, m), [1100, 40, 300, 17]])
    lengths = rng.permutation(lengths)
    ends = np.cumsum(lengths + rng.integers(0, 2, len(lengths))).astype(np.int32)
    x = rng.permutation(np.resize(data.special_keys(dtype), ends[-1]))
    for k, largest in ((1, False), (3, True), (9, True), (20, False), (33, True)):
        check_top_k_of_segments(x, ends - lengths.astype(np.int32), ends, k, largest=largest)


@pytest.mark.parametrize("shared", ["nothing", "x", "heads"])
def test_top_k_of_segments_of_a_batch(rng, shared):
    x, counts = rng.integers(0, 50, (3, 2500)).astype(np.int16), np.array([2500, 1300, 0], np.int32)
    heads = np.sort(rng.integers(0, 2600, (3, 40)), axis=1).astype(np.int32)
    heads[1:, 3:] = 100
    x, heads = (x[:1] if shared == "x" else x), (heads[:1] if shared == "heads" else heads)
    axes = (None if shared == "x" else 0, None if shared == "heads" else 0, 0)
    given = [y[0] if axis is None else y for y, axis in zip((x, heads, counts), axes, strict=True)]
    best = jax.jit(jax.vmap(lambda x, heads, count: mgpu.segmented_top_k(x, heads, 4, count=count), axes))(*given)
    for row, count in enumerate(counts):
        own, bounds = x[row % len(x)], bounds_of(heads[row % len(heads)], 2500, count)
        for i, (b, e) in enumerate(bounds):
            order = first_of(own, b, e, 4, True)
            same_bits(best.values[row, i], oracle.padded(own[order], 4, 0))
            same_bits(best.indices[row, i], oracle.padded(order.astype(np.int32), 4, -1))


def test_gradient_of_a_selection(rng):
    x, weights = rng.permutation(40).astype(float), rng.normal(size=3)
    gradient = jax.grad(lambda x: jnp.vdot(mgpu.top_k(x, 3, largest=False).values, weights))(x)
    np.testing.assert_array_equal(gradient, np.where(x < 3, weights[np.minimum(x, 2).astype(int)], 0))


def test_gradient_of_top_k(rng):
    x, weights = rng.permutation(40).astype(float), rng.normal(size=(7, 3))
    gradient = jax.grad(lambda x: jnp.vdot(mgpu.segmented_top_k(x, HEADS, 3).values, weights))(x)
    expected = np.zeros(40)
    for i, (b, e) in enumerate(bounds_of(HEADS, 40, None)):
        order = first_of(x, b, e, 3, True)
        expected[order] = weights[i, : len(order)]
    np.testing.assert_array_equal(gradient, expected)


# ---- More items than CUDA's selection keeps: a sort of candidates ----------------------------------------------------


def candidate_sample(n, dtype):
    """Returns the positions that CUDA samples in a row."""
    count = min(max(n // 24, 2048), 2**15 // max(jnp.dtype(dtype).itemsize, 4), n)
    step = np.uint64((n << 32) // count)
    i = np.arange(count + 1, dtype=np.uint64)
    begins = i * step >> np.uint64(32)
    hashes = (i[1:] * np.uint64(0x9E3779B9)) & np.uint64(2**32 - 1)
    return (begins[:-1] + (hashes * (begins[1:] - begins[:-1]) >> np.uint64(32))).astype(int)


CANDIDATE_KINDS = ["random", "equal", "few", "ascending", "descending", "special", "best sampled", "worst sampled"]


def rows_of_kind(rng, dtype, kind, rows, n):
    """Returns rows of one kind."""
    kind_of = jnp.dtype(dtype)
    x = data.random_keys(rng, dtype, rows, n)
    if kind == "equal":
        x[...] = 7
    elif kind == "few":
        x = rng.integers(0, 3, (rows, n)).astype(kind_of)
    elif kind in ("ascending", "descending"):
        order = [oracle.sort_indices(row, descending=kind == "descending") for row in x]
        x = np.take_along_axis(x, np.array(order), axis=1)
    elif kind == "special":
        x = rng.choice(data.special_keys(dtype), (rows, n))
    elif kind.endswith("sampled"):
        x = (10 + rng.integers(0, 90, (rows, n))).astype(kind_of)
        places = candidate_sample(n, dtype)
        x[:, places] = (rng.integers(0, 9, (rows, len(places))) + (110 if kind == "best sampled" else 0)).astype(
            kind_of
        )
    return x


@pytest.mark.parametrize("kind", CANDIDATE_KINDS)
@pytest.mark.parametrize(
    "dtype",
    long_but(["float32", "int8", "bfloat16", "int64"], ["float32", "int8", "bfloat16", "int64", *data.KEY_DTYPES]),
)
def test_top_k_of_more_than_a_block_keeps(rng, dtype, kind):
    for rows, n, k in ((3, 8_196, 2049), (2, 50_003, 12_500), (1, 140_001, 3_000)):
        x = rows_of_kind(rng, dtype, kind, rows, n)
        counts = np.resize(np.array([n, n // 2, k - 3], np.int32), rows)
        for largest in (True, False):
            top = jax.jit(jax.vmap(lambda x, count, k=k, up=largest: mgpu.top_k(x, k, largest=up, count=count)))
            best = jax.device_get(top(x, counts))
            whole = jax.device_get(jax.jit(lambda x, k=k, up=largest: mgpu.top_k(x, k, largest=up))(x[0]))
            for row, count in enumerate(counts):
                order = first_of(x[row], 0, count, k, largest)
                same_bits(best.values[row], oracle.padded(x[row, order], k, 0))
                same_bits(best.indices[row], oracle.padded(order.astype(np.int32), k, -1))
                assert int(best.count[row]) == len(order)
            order = first_of(x[0], 0, n, k, largest)
            same_bits(whole.values, x[0, order])
            same_bits(whole.indices, order.astype(np.int32))


CANDIDATE_EDGES = [edge + d for edge in data.tile_sizes("top_k_candidates") for d in (-1, 0, 1)]


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "uint64"])
def test_candidates_of_top_k(rng, dtype):
    """A stable sort of the candidates begins with the first k items."""
    candidates = REGISTRY["top_k_candidates"]
    for i, n in enumerate([1, 33, *CANDIDATE_EDGES]):
        x = rows_of_kind(rng, dtype, CANDIDATE_KINDS[i % 6], 2, n)
        counts = np.array([[n], [n // 3 + 1]], np.int32)
        for k, largest in (((0, 0), (n // 2, 1)), ((1, 1), (n, 0)))[i % 2]:
            room = min(n, k + (k + n) // 8)
            run = jax.jit(
                lambda x, count, **given: candidates(x=x, count=count, **given),
                static_argnames=("k", "room", "largest"),
            )
            values, positions, found = jax.device_get(run(x, counts, k=k, room=room, largest=largest))
            for row, (count,) in enumerate(counts):
                assert min(k, count) <= found[row, 0] <= max(room, min(k, count))
                own = values[row, : found[row, 0]]
                in_order = oracle.sort_indices(own, descending=bool(largest))[: min(k, count)]
                order = first_of(x[row], 0, count, k, bool(largest))
                same_bits(positions[row][in_order], order.astype(np.int32))
                same_bits(own[in_order], x[row, order])


def test_which_kernels_select(rng):
    if not mgpu.has_cuda():
        pytest.skip("a build without CUDA kernels")
    x = jax.ShapeDtypeStruct((2**20,), np.float32)
    for k, kernels in (
        (1, ["reduce"]),
        (2048, ["top_k"]),
        (2049, ["segmented_sort", "top_k_candidates"]),
        (2**19, ["segmented_sort"]),
    ):
        assert kernels_on_cuda(lambda x, k=k: mgpu.top_k(x, k), x) == kernels, k


def test_which_kernels_select_in_segments(rng):
    if not mgpu.has_cuda():
        pytest.skip("a build without CUDA kernels")
    x, heads = jax.ShapeDtypeStruct((2**20,), np.float32), jax.ShapeDtypeStruct((2**15,), np.int32)
    assert kernels_on_cuda(lambda x, heads: mgpu.segmented_top_k(x, heads, 32), x, heads) == ["segmented_top_k"]
    assert "segmented_sort" in kernels_on_cuda(lambda x, heads: mgpu.segmented_top_k(x, heads, 33), x, heads)


def kernels_on_cuda(function, *shapes):
    text = jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
    return sorted(set(re.findall(r"@jax_mgpu\.(\w+)\(", text)))


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", "bfloat16"])
def test_the_first_item_alone(rng, dtype):
    for rows, n in ((3, 2049), (2, 70_001)):
        x = rng.choice(data.special_keys(dtype), (rows, n))
        x[0] = data.random_keys(rng, dtype, n)
        counts = np.resize(np.array([n, n // 2, 0], np.int32), rows)
        for largest in (True, False):
            top = jax.vmap(lambda x, count, up=largest: mgpu.top_k(x, 1, largest=up, count=count))
            plain = jax.vmap(lambda x, c, up=largest: REGISTRY["top_k"].fallback(x, c, k=1, largest=int(up)))
            best, other = jax.device_get((jax.jit(top)(x, counts), jax.jit(plain)(x, counts[:, None])))
            for row, count in enumerate(counts):
                order = first_of(x[row], 0, count, 1, largest)
                for values, indices in ((best.values, best.indices), other):
                    same_bits(values[row], oracle.padded(x[row, order], 1, 0))
                    same_bits(indices[row], oracle.padded(order.astype(np.int32), 1, -1))


def test_gradient_of_a_sort_of_candidates(rng):
    x, weights = rng.normal(size=9_001), rng.normal(size=2_100)
    gradient = jax.grad(lambda x: jnp.vdot(mgpu.top_k(x, 2_100).values, weights))(x)
    expected = np.zeros(9_001)
    expected[first_of(x, 0, 9_001, 2_100, True)] = weights
    np.testing.assert_array_equal(gradient, expected)


# ---- Quantiles -------------------------------------------------------------------------------------------------------


QUANTILES = np.array([[0.0, 0.1], [0.5, 1.0]], np.float32)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "uint8"])
def test_quantile(rng, dtype):
    x = rng.integers(0, 90, 70).astype(jnp.dtype(dtype))
    if dtype.startswith("float") or dtype == "bfloat16":
        x[40] = np.nan
    result = jnp.dtype(dtype) if x.dtype.kind not in "iu" else np.float64
    for count in (None, 33):
        live = oracle.live_count(count, 70)
        got = mgpu.quantile(x, QUANTILES, count=count)
        rows = mgpu.segmented_quantile(x, HEADS, QUANTILES, count=count)
        assert (got.dtype, got.shape, rows.dtype, rows.shape) == (result, (2, 2), result, (2, 2, 7))
        for b, e, values in [
            (0, live, got), *((b, e, rows[..., i]) for i, (b, e) in enumerate(bounds_of(HEADS, 70, count)))
        ]:  # fmt: skip
            wide = x[b:e].astype(np.float64)
            expected = np.quantile(wide, QUANTILES.astype(float)) if e > b else np.full((2, 2), np.nan)
            tolerance = 1e-6 + (float(jnp.finfo(result).eps) if result != np.float64 else 0)
            np.testing.assert_allclose(values.astype(np.float64), expected, rtol=tolerance, atol=1e-5)


@pytest.mark.parametrize("dtype", long_but(FEW_DTYPES, data.KEY_DTYPES))
@pytest.mark.parametrize("kind", ["random", "equal", "descending"])
def test_quantiles_of_segments_of_any_length_are_items(rng, dtype, kind):
    lengths = lengths_at_edges("segmented_order_statistics", 70_001)
    n = int(lengths.sum()) + 9
    x = np.array(keys_of_kind(rng, dtype, kind, n))
    x = np.where(np.isnan(x.astype(np.float64)), x.dtype.type(3), x) if dtype in data.FLOAT_DTYPES else x
    ends = np.cumsum(lengths)
    heads = (ends - lengths).astype(np.int32)
    q = np.array([0.0, 0.3, 1.0])
    for count in (None, n // 2):
        got = np.asarray(mgpu.segmented_quantile(x, heads, q, ends=ends, count=count, method="lower"))
        for i, (b, e) in enumerate(zip(*np.minimum([heads, ends], oracle.live_count(count, n)), strict=True)):
            if e > b:
                ordered = x[b:e][oracle.sort_indices(x[b:e])]
                at = np.floor(q * (e - b - 1) + 1e-9).astype(int)
                np.testing.assert_array_equal(got[:, i], ordered[at].astype(got.dtype))


@pytest.mark.parametrize("mean", [0.5, 3, 14, 30, 60, 200])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_quantiles_of_many_short_segments(rng, dtype, mean):
    m = int(3000 / (mean + 1))
    lengths = rng.permutation(np.concatenate([rng.poisson(mean, m), [1100, 40, 300, 17]]))
    ends = np.cumsum(lengths + rng.integers(0, 2, len(lengths))).astype(np.int32)
    x = rng.permutation(np.resize(np.array([-np.inf, -2.5, -0.0, 0.0, 7, 9.5, np.inf]), ends[-1]))
    x = x.astype(dtype) if dtype != "uint8" else rng.integers(0, 256, len(x)).astype(dtype)
    q = np.array([0.0, 0.3, 0.5, 1.0])
    got = np.asarray(mgpu.segmented_quantile(x, ends - lengths.astype(np.int32), q, ends=ends, method="lower"))
    for i, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        ordered = np.sort(x[end - length : end])
        at = np.floor(q * (length - 1) + 1e-9).astype(int)
        np.testing.assert_array_equal(got[:, i], ordered[at] if length else np.full(4, np.nan))


def test_segments_of_no_items():
    x, heads = np.zeros(0, np.float32), np.zeros(3, np.int32)
    assert np.isnan(mgpu.segmented_quantile(x, heads, [0.5, 1.0])).all()
    for k in (3, 20):
        best = mgpu.segmented_top_k(x, heads, k)
        assert (np.asarray(best.indices) == -1).all() and not np.asarray(best.values).any()


@pytest.mark.parametrize("n", [1, 31, 33, 300, 4097])
def test_quantiles_of_rows_of_any_length(rng, n):
    x = rng.normal(size=(66_000 // n + 1, n)).astype(np.float32)
    got = jax.jit(jax.vmap(lambda row: mgpu.quantile(row, 0.25, method="higher")))(x)
    np.testing.assert_array_equal(got, np.quantile(x, 0.25, axis=1, method="higher"))


@pytest.mark.parametrize("dtype", long_but(FEW_DTYPES, data.KEY_DTYPES))
def test_quantiles_at_ranks_are_items(rng, dtype):
    for n in (1, 2, 33, *(tile + d for tile in data.tile_sizes("order_statistics") for d in (-1, 1)), 100_001):
        kind = rng.choice(["random", "equal", "ascending"])
        x = keys_of_kind(rng, dtype, kind, n)
        x = np.where(np.isnan(x), x.dtype.type(3), x) if dtype in data.FLOAT_DTYPES else x
        for count in (None, n // 2 + 1):
            live = oracle.live_count(count, n)
            ordered = x[oracle.sort_indices(x[:live])]
            got = np.asarray(mgpu.quantile(x, np.array([0.0, 0.5, 1.0]), count=count))
            at = [0, live // 2, live - 1]
            own = [True, live % 2 == 1, True]  # the median of an even number of items lies between two of them
            np.testing.assert_array_equal(got[own], ordered[at].astype(got.dtype)[own])


def sampled_places(n, sample=2**13):
    """Returns the positions that CUDA samples in a row of float32."""
    stride = n // sample
    hashes = (np.arange(sample, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    return np.arange(sample) * stride + ((hashes * np.uint64(stride)) >> np.uint64(32)).astype(int)


LONG_ROWS = [("float32", kind) for kind in ("random", "equal", "few", "half", "descending", "misled")]
LONG_ROWS += [(dtype, kind) for dtype in ("float64", "uint8", "bfloat16") for kind in ("random", "half")]


@pytest.mark.parametrize("case", long_but([("float32", "misled")], LONG_ROWS), ids=str)
def test_quantiles_of_long_rows(rng, case):
    dtype, kind = case
    rows = 1 if dtype == "float32" else 9
    n = 2**24 // rows // 4 * 4 + 5
    x = rng.integers(0, 256, (rows, n)) if dtype == "uint8" else rng.standard_normal((rows, n), np.float32)
    if kind == "equal":
        x[...] = 7
    elif kind == "few":
        x = np.round(x / 3)
    elif kind == "half":
        x[:, ::2] = 0
    elif kind == "descending":
        x = -np.sort(-x)
    elif kind == "misled":
        x[0, sampled_places(n)] = 99
    x = x.astype(jnp.dtype(dtype))
    counts = np.resize(np.array([n, n - n // 20 * 4, 5, 0], np.int32), rows)
    q = np.array([0.0, 0.5, 0.75]) if rows > 1 or kind != "misled" else np.array([0.5])
    got = [jax.vmap(lambda row, count, q=each: mgpu.quantile(row, q, count=count))(x, counts) for each in q]
    wide = x.astype(np.float32) if dtype == "bfloat16" else x
    for row, live in enumerate(counts):
        places = (q * (live - 1)).astype(int)
        expected = np.partition(wide[row, :live], places)[places] if live else np.full(len(q), np.nan)
        np.testing.assert_array_equal([np.float64(each[row]) for each in got], expected.astype(np.float64))


@pytest.mark.long
@pytest.mark.parametrize("count", [None, 0, 3])
def test_ranks_past_the_items_give_the_last_item(count):
    x, ranks = jnp.array([5, 1, 4, 2], jnp.int32), jnp.array([0, 2, 3, 9, -1], jnp.int32)
    live = np.sort(np.asarray(x)[:count])
    given = jnp.array([] if count is None else [count], jnp.int32)
    expected = live[np.clip(ranks, 0, len(live) - 1)] if len(live) else np.zeros(5)
    kernel, segmented = REGISTRY["order_statistics"], REGISTRY["segmented_order_statistics"]
    for call in (kernel.run, functools.partial(run_fallback, kernel, attributes={})):
        np.testing.assert_array_equal(call([x, ranks, given])[0], expected)
    if len(live):  # the values of an empty segment are unspecified
        operands = x, *(jnp.array([bound], jnp.int32) for bound in (0, len(live))), ranks[:, None], given
        for call in (segmented.run, functools.partial(run_fallback, segmented, attributes={})):
            np.testing.assert_array_equal(call(operands)[0][:, 0], expected)


def test_quantiles_of_a_batch(rng):
    x, q = rng.normal(size=(5, 20_000)), rng.random((5, 2))
    expected = [np.quantile(row, at) for row, at in zip(x, q, strict=True)]
    np.testing.assert_allclose(jax.vmap(mgpu.quantile)(x, q), expected, rtol=1e-9)
    shared = jax.vmap(lambda at: mgpu.quantile(x[0], at))(q)
    np.testing.assert_allclose(shared, np.quantile(x[0], q), rtol=1e-9)
    few = jax.vmap(lambda at: mgpu.quantile(x[0], at))(q[:2, 0])
    np.testing.assert_allclose(few, np.quantile(x[0], q[:2, 0]), rtol=1e-9)
    many = jax.vmap(lambda row: mgpu.quantile(row, q.reshape(-1)))(x)
    np.testing.assert_allclose(many, np.quantile(x, q.reshape(-1), axis=1).T, rtol=1e-9)
    assert np.isnan(mgpu.quantile(np.append(x[0], np.nan), 0.5))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_histogram_as_numpy(rng, dtype):
    x = rng.integers(0, 40, 500).astype(dtype)
    floats = np.float32 if dtype == "float32" else np.float64
    for bins, limits in ((10, None), (8, (3, 35)), (1, (5.5, 20.25)), (64, (0, 64)), (5, (7, 7))):
        expected, edges = np.histogram(x, bins, limits)
        got, got_edges = mgpu.histogram(x, bins, range=limits)
        same_bits(got, expected.astype(np.int32))
        np.testing.assert_allclose(got_edges, edges, rtol=1e-6)
        assert got_edges.dtype == floats
        for weights in (rng.integers(-5, 6, 500).astype(np.int8), rng.integers(-5, 6, 500).astype(np.float32)):
            sums = np.histogram(x, bins, limits, weights=weights)[0]
            got = mgpu.histogram(x, bins, range=limits, weights=weights)[0]
            same_bits(got, sums.astype(oracle.summed(weights, "add").dtype))
    edges = np.array([0, 3, 3, 20, 40, 40], dtype)
    weights = rng.integers(0, 9, 500).astype(np.float32)
    same_bits(mgpu.histogram(x, edges, weights=weights)[0], np.histogram(x, edges, weights=weights)[0])
    traced = jax.jit(lambda x, low: mgpu.histogram(x, 7, range=(low, low + 30)))(x, 2.0)
    same_bits(traced[0], np.histogram(x, 7, (2, 32))[0].astype(np.int32))


def test_histogram_edge_cases():
    nothing = np.zeros(0, np.float32)
    counts, edges = mgpu.histogram(nothing, 4)
    assert counts.tolist() == [0] * 4 and edges.tolist() == [0, 0.25, 0.5, 0.75, 1]
    counts, edges = mgpu.histogram(np.full(3, 7.0, np.float32), 2)
    assert counts.tolist() == [0, 3] and edges.tolist() == [6.5, 7, 7.5]
    assert mgpu.histogram(np.array([np.nan, 1, 2], np.float32), 2)[0].tolist() == [0, 0]
    x, weights = np.array([np.nan, 1, 2, np.inf], np.float32), np.arange(4.0)
    assert mgpu.histogram(x, 2, range=(0, 2), weights=weights)[0].tolist() == [0, 3]
    tiny = np.array([1e-40, -1e-40, -0.0, 0.0], np.float32)  # the first number is above the last edge
    edges = np.array([-1, 0], np.float32)
    assert jax.jit(mgpu.histogram)(tiny, edges, weights=weights)[0].tolist() == [6]
    edges = np.array([0, np.nan], np.float32)  # below a last edge of NaN are all numbers, but no NaN
    assert mgpu.histogram(x, edges)[0].tolist() == [3]
    assert mgpu.histogram(x, edges, weights=weights)[0].tolist() == [6]
    for call, message in {
        lambda: mgpu.histogram(x, 2, range=(2, 1)): "range: expected two finite numbers, the lower one first",
        lambda: mgpu.histogram(x, 2, range=(0, np.inf)): "range: expected two finite numbers, the lower one first",
        lambda: mgpu.histogram(x, x, range=(0, 1)): "range: expected None where bins are edges",
        lambda: mgpu.histogram(x, 0): "bins: expected at least one, got 0",
        lambda: mgpu.histogram(x, 2, weights=x[:2]): "weights: expected the length of x, 4, got float32",
    }.items():
        with pytest.raises(ValueError, match=f"histogram: {message}"):
            call()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("bins", [7, 50, 3000])
def test_bins_narrower_than_the_spacing_of_floats(rng, dtype, bins):
    with jax.enable_x64(dtype == "float64"):
        for low in rng.uniform(1, 2, 8).astype(dtype):
            x = low + np.arange(6, dtype=dtype) * np.finfo(dtype).eps
            counts, edges = mgpu.histogram(x, bins)
            sums, _ = mgpu.histogram(x, bins, weights=np.ones(6, dtype))
            assert edges[0] == x[0]
            assert edges[-1] == x[-1]
            assert (np.diff(edges) >= 0).all()
            np.testing.assert_array_equal(counts, np.histogram(x, np.asarray(edges))[0])
            np.testing.assert_array_equal(sums, counts)


@pytest.mark.parametrize("old, new", [("length", "size"), ("edges", "bins"), ("n", "size")])
def test_old_names_warn_once(old, new):
    name, ids = {"length": "bincount", "edges": "histogram", "n": "segment_ids"}[old], np.array([0, 2, 2])
    value = ids if old == "edges" else 3
    for _ in range(2):
        with pytest.warns(DeprecationWarning, match=f"{name}: {old}= is called {new}=") as caught:
            got = getattr(mgpu, name)(ids, **{old: value})
        assert len(caught) == 1 and caught[0].filename == __file__
        expected = getattr(mgpu, name)(ids, **{new: value})
        assert jax.tree.all(jax.tree.map(np.array_equal, got, expected))
    with pytest.raises(TypeError, match=f"{name}: {old}: expected {new} alone, got both"):
        getattr(mgpu, name)(ids, **{old: value, new: value})


@pytest.mark.parametrize("method", ["lower", "higher", "nearest", "midpoint"])
def test_methods_of_quantiles(rng, method):
    q = np.array([0, 0.125, 0.25, 0.375, 0.5, 0.9, 1, np.nan])
    for n, dtype in ((1, "float32"), (5, "float32"), (9, "int16"), (12, "bfloat16"), (1000, "int32")):
        x = rng.integers(-50, 50, n).astype(jnp.dtype(dtype))
        expected = np.append(np.quantile(x.astype(np.float64), q[:-1], method=method), np.nan)
        got = mgpu.quantile(x, q, method=method)
        assert got.dtype == (jnp.dtype(dtype) if "float" in dtype else jnp.float64)
        np.testing.assert_array_equal(np.asarray(got, np.float64), expected)
        segments = mgpu.segmented_quantile(np.append(x, x[:3]), [0, n, n + 9], q, method=method)
        np.testing.assert_array_equal(np.asarray(segments[:, 0], np.float64), expected)
        assert np.isnan(np.asarray(segments[:, 2], np.float64)).all()
    x, k = rng.integers(-50, 50, 76).astype(np.int32), np.arange(101)  # q = k / 100 has the rank 3 k / 4
    low, high, nearest = (np.sort(x)[part(3 * k / 4).astype(int)] for part in (np.floor, np.ceil, np.around))
    expected = {"lower": low, "higher": high, "nearest": nearest, "midpoint": (low + high) / 2}[method]
    for real in (np.float32, np.float64):
        np.testing.assert_array_equal(mgpu.quantile(x, (k / 100).astype(real), method=method), expected)
    x = np.array([np.nan, 1, 2], np.float32)
    assert np.isnan(mgpu.quantile(x, 0.0, method=method))
    sums = jax.grad(lambda x: mgpu.quantile(x, 0.4, method=method))(np.array([3.0, 1, 2, 9, 5], np.float32))
    assert sums.sum() == 1


def test_infinities():
    x = np.array([-np.inf, 1.0, np.inf, np.inf], np.float32)
    np.testing.assert_array_equal(mgpu.quantile(x, np.array([0.0, 1 / 3, 1.0])), [-np.inf, 1.0, np.inf])
    assert np.isnan(mgpu.quantile(x, np.nan))


def test_ranks_of_long_segments_are_exact():
    from jax_mgpu._src.ops.order_statistics import _neighbours

    for last in (2**24 + 1, 2**26 + 3, 2**31 - 3):
        for q in (0.0, 0.25, 0.5, 0.75, 1.0):
            lower, upper, weight, _ = _neighbours(
                np.float32(q).reshape(1, 1), np.full((1, 1), last + 1, np.int32), 2**-24
            )
            exact = int(q * 4) * last
            assert (int(lower[0, 0]), float(weight[0, 0])) == (exact // 4, exact % 4 / 4)
            assert int(upper[0, 0]) == -(-exact // 4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_quantiles_rise_between_their_neighbours(rng, dtype):
    dtype = jnp.dtype(dtype)
    wide = np.float64 if dtype == np.float64 else np.float32
    edges = (np.arange(0, 4097, 17) / 4096).astype(wide)
    q = np.concatenate([edges, np.nextafter(edges, wide(2)), np.nextafter(edges, wide(-2)), rng.random(300)])
    q = np.unique(np.clip(q.astype(wide), 0, 1))
    largest = float(jnp.finfo(dtype).max)
    for n in (2, 3, 7, 8, 97):
        for scale in (0.1, 1.0, 3.7e4, largest):
            x = (rng.uniform(-1, 1, n) * scale).astype(dtype)
            if scale == 0.1:
                x = rng.choice(np.array([0.1, -0.3], dtype), n)
            elif scale == largest:
                x[:2] = -largest, largest
            ordered = np.sort(x.astype(np.float64))
            places = q.astype(np.float64) * (n - 1)
            below, above = (ordered[part(places).astype(int)] for part in (np.floor, np.ceil))
            slack = 1e-6 if wide == np.float32 else 1e-13
            near_rank = np.abs(places - np.round(places)) < n * slack
            for found in (mgpu.quantile(x, q), mgpu.segmented_quantile(x, [0], q)[:, 0]):
                got = np.asarray(found).astype(np.float64)
                assert np.all(np.diff(got) >= 0)
                assert np.all((near_rank | (got >= below)) & (near_rank | (got <= above)))
                exact = below * (1 - places % 1) + above * (places % 1)
                error = np.maximum(np.abs(below), np.abs(above)) * (4 * float(jnp.finfo(dtype).eps) + n * slack)
                assert np.all(near_rank | (np.abs(got - exact) <= error))


def test_quantiles_of_equal_items_are_that_item():
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        for value in (0.1, -0.1, 1 / 3, float(jnp.finfo(dtype).max), np.inf, -np.inf):
            x = np.full(3, value, jnp.dtype(dtype))
            q = np.linspace(0, 1, 50, dtype=np.float32)
            assert np.all(np.asarray(mgpu.quantile(x, q)) == x[0])
            assert np.all(np.asarray(mgpu.segmented_quantile(x, [0], q)) == x[0])


def test_quantiles_beside_infinities():
    x = np.array([-np.inf, -2.0, 3.0, np.inf], np.float32)
    got = mgpu.quantile(x, np.array([0.1, 0.5, 0.9], np.float32))
    np.testing.assert_array_equal(got, [-np.inf, 0.5, np.inf])


@pytest.mark.parametrize("real", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_quantiles_at_whole_ranks_are_items(dtype, real):
    """If q is k / (n - 1), rounded, the result is an item."""
    for n in (4, 6, 7, 10, 11, 21, 101):
        ranks = np.arange(n)
        x = np.where(ranks == ranks[:, None], 5, np.where(ranks < ranks[:, None], -np.inf, np.inf)).astype(dtype)
        q = (ranks / (n - 1)).astype(real)
        np.testing.assert_array_equal(jax.vmap(mgpu.quantile)(x, q), np.full(n, 5))
        heads = np.zeros(1, np.int32)
        found = jax.vmap(lambda row, at, heads=heads: mgpu.segmented_quantile(row, heads, at))(x, q)
        np.testing.assert_array_equal(found, np.full((n, 1), 5))


def test_derivatives_of_quantiles_that_are_rounded():
    x = np.array([-0.3, 0.1, 0.1, 0.7, 1e8], np.float32)
    q = np.linspace(0, 1, 501, dtype=np.float32)
    shares = jax.jit(jax.jacrev(mgpu.quantile))(x, q)
    np.testing.assert_allclose(np.sum(shares, axis=1), 1, rtol=1e-6)
    slopes = jax.jit(jax.vmap(jax.grad(mgpu.quantile, 1), (None, 0)))(x, q[1:-1])
    gaps = np.diff(np.sort(x))[np.floor(q[1:-1] * np.float64(4)).astype(int)]
    inside = np.abs(q[1:-1] * 4 % 1 - 0.5) < 0.49
    np.testing.assert_allclose(slopes[inside], 4 * gaps[inside], rtol=1e-5)


def test_gradient_of_quantiles(rng):
    x = rng.permutation(40).astype(float)
    q = np.array([0.21, 0.52, 0.83])
    quantile = jax.jit(lambda x, q: mgpu.segmented_quantile(x, HEADS[1:4], q))
    check_grads(quantile, (x, q), 1, modes=["fwd", "rev"], eps=1e-4)


# ---- Counts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_bincount(rng, dtype):
    for n in (0, 1, 5000):
        ids = rng.integers(0, 60, n).astype(dtype)
        if dtype != "uint8" and n:
            ids[:1] = -1
        inside = ids[(ids >= 0) & (ids < 50)].astype(np.int64)
        same_bits(mgpu.bincount(ids, 50), np.bincount(inside, minlength=50).astype(np.int32))
        for weights in (rng.integers(-9, 9, n).astype(np.int16), rng.integers(-9, 9, n).astype(np.float32)):
            kept = weights[(ids >= 0) & (ids < 50)]
            expected = np.bincount(inside, kept, minlength=50)
            same_bits(mgpu.bincount(ids, 50, weights), expected.astype(oracle.summed(weights, "add").dtype))
    assert mgpu.bincount(np.array([1, 2]), 0).shape == (0,)


@pytest.mark.parametrize("length", [1, 2, 1000, 12_288, 12_289])
def test_bincount_of_many(rng, length):
    n = 3 * max(data.tile_sizes("count_bins")) + 5
    ids = rng.integers(-1, length + 1, (3, n)).astype(np.int32)
    ids[1] = length - 1
    ids[2, 7:] = -5
    expected = [np.bincount(row[(row >= 0) & (row < length)], minlength=length) for row in ids]
    same_bits(jax.vmap(lambda row: mgpu.bincount(row, length))(ids), np.array(expected, np.int32))
    same_bits(mgpu.bincount(ids[0], length), expected[0].astype(np.int32))


def test_gradient_of_bincount(rng):
    ids, weights, directions = rng.integers(0, 9, 40), rng.normal(size=40), rng.normal(size=7)
    gradient = jax.grad(lambda w: jnp.vdot(mgpu.bincount(ids, 7, w), directions))(weights)
    np.testing.assert_array_equal(gradient, np.append(directions, [0, 0])[ids])


@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_histogram(rng, dtype):
    x = rng.integers(0, 60, 800).astype(jnp.dtype(dtype))
    edges = np.array([3, 5, 5, 20, 41], x.dtype)
    if dtype in data.FLOAT_DTYPES:
        x[:9] = [np.nan, np.inf, -np.inf, 41, 3, 2.5, 20, -0.0, 0.0]
        edges[0] = -0.0
    counts, same = mgpu.histogram(x, edges)
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
    expected = np.histogram(wide[np.isfinite(wide)], edges.astype(np.float64))[0]
    same_bits(counts, expected.astype(np.int32))
    same_bits(same, edges)


@pytest.mark.parametrize("kind", ["random", "equal"])
@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_histogram_between_many_edges(rng, dtype, kind):
    n = max(data.tile_sizes("count_bins")) + 5
    x = keys_of_kind(rng, dtype, kind, 2, n)
    for m, edge_kind in ((2, "equal"), (2, "random"), (101, "random"), (2048, "random"), (2049, "random")):
        edges = data.in_order(keys_of_kind(rng, dtype, edge_kind, m))
        ranks = oracle.rank(np.concatenate([edges, *x]))
        bounds, items = ranks[:m], ranks[m:].reshape(2, n)
        bins = np.searchsorted(bounds, items, side="right") - 1
        last_is_nan = dtype in data.FLOAT_DTYPES and bool(np.isnan(edges[-1]))
        bins = np.where(items == bounds[-1], -1 if last_is_nan else m - 2, np.where(bins == m - 1, -1, bins))
        expected = np.array([np.bincount(row[row >= 0], minlength=m - 1) for row in bins], np.int32)
        same_bits(jax.vmap(lambda x, edges=edges: mgpu.histogram(x, edges)[0])(x), expected)
        shared = jax.vmap(lambda edges: mgpu.histogram(x[0], edges)[0])(np.stack([edges, edges]))
        same_bits(shared, np.stack([expected[0]] * 2))


ERRORS = {
    "segmented_top_k: heads: expected an array of numbers, got None": lambda: mgpu.segmented_top_k(
        np.arange(3), None, 2
    ),
    "segmented_quantile: heads: expected an array of numbers, got None": lambda: mgpu.segmented_quantile(
        np.arange(3), None, 0.5
    ),
    "top_k: k: expected a static, non-negative integer, got -1": lambda: mgpu.top_k(np.arange(3), -1),
    "segmented_top_k: largest: expected a static True or False, got 2": lambda: mgpu.segmented_top_k(
        np.arange(3), [0], 1, largest=2
    ),
    "quantile: q: expected numbers from 0 to 1, got complex128[]": lambda: mgpu.quantile(np.arange(3), 1j),
    "unique: return_index: expected a static True or False, got None": lambda: mgpu.unique(
        np.arange(3), size=3, return_index=None
    ),
    "bincount: weights: expected the length of ids, 2, got int64[3]": lambda: mgpu.bincount([0, 1], 2, np.arange(3)),
    "histogram: bins: expected the dtype of x, int64, got float64": lambda: mgpu.histogram(np.arange(3), np.ones(3)),
    "histogram: bins: expected at least two edges, got 1": lambda: mgpu.histogram(np.arange(3), np.arange(1)),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises((TypeError, ValueError)) as caught:
        ERRORS[message]()
    assert str(caught.value) == message
