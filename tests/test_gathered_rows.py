"""`segmented_reduce` with `indices=` and `weights=`."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from tests import oracle

pytestmark = pytest.mark.usefixtures("x64")

N, ENTRIES, M = 23, 400, 30
NAMES = ["add", "mul", "min", "max", "argmin", "argmax", "mean", "any", "all", "and", "xor", "logsumexp"]


def drawn(rng, dtype, *shape):
    """Draws small numbers: sums and short products are exact."""
    if dtype == "bool":
        return rng.random(shape) < 0.8
    low = 0 if dtype.startswith("u") else -2
    return rng.integers(low, 3, shape).astype(jnp.dtype(dtype))


def entries_of(rng, n=N, entries=ENTRIES, m=M):
    """Draws indices, some out of range; heads, some of empty segments or padding; a count of live entries."""
    indices = rng.integers(-2, n + 2, entries).astype(np.int32)
    heads = np.sort(rng.integers(3, entries + 5, m)).astype(np.int32)
    return indices, heads, np.int32(rng.integers(entries // 2, entries + 1))


def segments(indices, n, heads, count=None, ends=None):
    """Returns each segment's entries that are in range."""
    live = len(indices) if count is None else int(count)
    begins = np.clip(heads, 0, live)
    stops = np.append(begins[1:], live) if ends is None else np.clip(ends, 0, live)
    spans = [np.arange(b, max(b, e)) for b, e in zip(begins, stops, strict=True)]
    return [span[(indices[span] >= 0) & (indices[span] < n)] for span in spans]


def expected_of(x, op, indices, parts):
    results = [np.asarray(oracle.combined(x[indices[part]], op)) for part in parts]
    if op.startswith("arg"):
        results = [np.append(part, -1)[r].astype(np.int32) for part, r in zip(parts, results, strict=True)]
    return np.stack(results)


@pytest.mark.parametrize("op", NAMES)
@pytest.mark.parametrize("dtype", ["int8", "float32", "bfloat16", "bool"])
def test_names(op, dtype):
    floats = dtype in ("float32", "bfloat16")
    if (op in ("and", "xor") and floats) or (op == "logsumexp" and not floats):
        pytest.skip("this operator takes no items of this type")
    call = jax.jit(lambda x, h, i, c: mgpu.segmented_reduce(x, h, op, indices=i, count=c))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x, (indices, heads, count) = drawn(rng, dtype, N, 3), entries_of(rng)
        got = np.asarray(call(x, heads, indices, count))
        expected = expected_of(x, op, indices, segments(indices, N, heads, count))
        assert got.shape == expected.shape
        if op in ("mean", "logsumexp"):
            rtol = 4 * float(jnp.finfo(got.dtype).eps)
            np.testing.assert_allclose(got.astype(float), expected.astype(float), rtol=rtol, atol=rtol)
        else:
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("op", ["add", "mul", "max", "logsumexp"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_widths(op, dtype):
    rng = np.random.default_rng(len(op))
    indices, heads, count = entries_of(rng)
    tables = [drawn(rng, dtype, ENTRIES, width) for width in (2, 4, 6, 7, 8, 11, 12, 16, 17, 29, 32, 33, 72)]

    @jax.jit
    def call(tables):
        given = {"count": count, "dtype": "float32"} if op in ("add", "mul") else {"count": count}
        gathered = [mgpu.segmented_reduce(x[:N], heads, op, indices=indices, **given) for x in tables]
        return gathered, [mgpu.segmented_reduce(x, heads, op, **given) for x in tables]

    every = np.arange(ENTRIES)
    for results, rows in zip(call(tables), (indices, every), strict=True):
        parts = segments(rows, N if rows is indices else ENTRIES, heads, count)
        for x, got in zip(tables, results, strict=True):
            expected = expected_of(x.astype(np.float32), op, rows, parts)
            rtol = 2e-6 if got.dtype == np.float32 else 1e-2
            np.testing.assert_allclose(got.astype(np.float32), expected, rtol=rtol, atol=rtol)


STATISTICS = {"count": len, "first": lambda v: v[0], "last": lambda v: v[-1], "var": np.var, "median": np.median}
STATISTICS |= {"nunique": lambda v: len(np.unique(v)), "nansum": np.nansum, "nanmax": np.nanmax}


@pytest.mark.parametrize("op", STATISTICS)
def test_statistics(op):
    rng = np.random.default_rng(8)
    x, (indices, heads, count) = drawn(rng, "float32", N), entries_of(rng)
    parts = segments(indices, N, heads, count)
    got = np.asarray(jax.jit(lambda x: mgpu.segmented_reduce(x, heads, op, indices=indices, count=count))(x))
    full = [i for i, part in enumerate(parts) if len(part)]
    np.testing.assert_allclose(got[full], [STATISTICS[op](x[indices[parts[i]]]) for i in full], rtol=1e-5, atol=1e-7)


def test_nan_and_infinite_extrema_are_those_of_entries_that_are_not_dropped():
    x = jnp.array([jnp.inf, 1.0, jnp.nan, -jnp.inf])
    indices, heads = jnp.array([-1, 0, 0, 4, 3, 2, 9, 9]), jnp.array([0, 3, 5, 6])
    for op, found in {"argmin": [1, 4, 5, -1], "argmax": [1, 4, 5, -1]}.items():
        np.testing.assert_array_equal(mgpu.segmented_reduce(x, heads, op, indices=indices), found)
    np.testing.assert_array_equal(
        mgpu.segmented_reduce(x, heads, "min", indices=indices), [np.inf, -np.inf, np.nan, np.inf]
    )
    slope = jax.grad(lambda x: mgpu.segmented_reduce(x, heads, "min", indices=indices)[0])(x)
    np.testing.assert_array_equal(slope, [1, 0, 0, 0])


# ---- Weights ---------------------------------------------------------------------------------------------------------


def weighted_sums(x, weights, indices, parts, mean=False):
    """Returns each part's weighted sum or mean in float64."""
    x, weights = np.asarray(x, np.float64), np.asarray(weights, np.float64)
    weights = weights.reshape(*weights.shape, *[1] * (x.ndim - weights.ndim))
    sums = np.stack([(weights[part] * x[indices[part]]).sum(0) for part in parts])
    if not mean:
        return sums
    with np.errstate(all="ignore"):
        return sums / np.stack([weights[part].sum(0) for part in parts])


@pytest.mark.parametrize("op", ["add", "mean"])
@pytest.mark.parametrize(
    ("dtype", "weight_dtype", "axes"),
    [
        *[("float32", "float32", k) for k in range(3)],
        *[
            ("bfloat16", "bfloat16", 0),
            ("bfloat16", "float32", 1),
            ("float16", "bfloat16", 0),
            ("float64", "float32", 0),
        ],
        *[
            ("int8", "float32", 0),
            ("int8", "int8", 1),
            ("int32", "int16", 0),
            ("bool", "float32", 0),
            ("float32", "bool", 0),
        ],
    ],
)
def test_weights(op, dtype, weight_dtype, axes):
    trailing = (2, 3)
    call = jax.jit(lambda x, h, i, w, c: mgpu.segmented_reduce(x, h, op, indices=i, weights=w, count=c))
    for seed in range(2):
        rng = np.random.default_rng(seed)
        x, (indices, heads, count) = drawn(rng, dtype, N, *trailing), entries_of(rng)
        weights = drawn(rng, weight_dtype, ENTRIES, *trailing[:axes])
        if op == "mean" and weight_dtype != "bool":
            weights = np.abs(weights) + np.ones((), weights.dtype)
        got = call(x, heads, indices, weights, count)
        parts = segments(indices, N, heads, count)
        expected = weighted_sums(x, weights, indices, parts, op == "mean")
        item = jnp.result_type(x, weights)
        if not jnp.issubdtype(item, jnp.floating):
            item = jnp.result_type(float) if op == "mean" else jnp.sum(jnp.zeros(1, item)).dtype
            item = jnp.dtype(jnp.int32) if op == "add" and item.itemsize > 4 and np.dtype(dtype).itemsize == 4 else item
        assert got.dtype == item
        eps = float(jnp.finfo(item).eps) if jnp.issubdtype(item, jnp.floating) else 0
        np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=4 * eps, atol=4 * eps)


def test_weights_without_indices_and_trees():
    rng = np.random.default_rng(1)
    x = {"a": rng.normal(size=(ENTRIES, 2)), "b": rng.normal(size=ENTRIES).astype(np.float32)}
    weights, heads = rng.random(ENTRIES).astype(np.float32), np.array([5, 100, 100, 390], np.int32)
    got = mgpu.segmented_reduce(x, heads, {"a": "add", "b": "mean"}, weights=weights)
    everything = np.arange(ENTRIES)
    parts = segments(everything, ENTRIES, heads)
    np.testing.assert_allclose(got["a"], weighted_sums(x["a"], weights, everything, parts), rtol=1e-6)
    np.testing.assert_allclose(got["b"], weighted_sums(x["b"], weights, everything, parts, mean=True), rtol=1e-5)


def test_narrow_sums_and_derivatives_are_added_in_float32():
    x, w = jnp.ones((2, 1), jnp.bfloat16), jnp.ones(1000, jnp.bfloat16)
    indices, heads = jnp.zeros(1000, jnp.int32), jnp.array([0])

    def loss(x, w):
        return mgpu.segmented_reduce(x, heads, indices=indices, weights=w).sum()

    assert loss(x, w) == 1000
    by_x, by_w = jax.grad(loss, (0, 1))(x, w)
    assert by_x.dtype == by_w.dtype == jnp.bfloat16
    np.testing.assert_array_equal(by_x, [[1000], [0]])
    np.testing.assert_array_equal(by_w, np.ones(1000))
    plain = jax.grad(lambda x: mgpu.segmented_reduce(x, heads, indices=indices).sum())(x)
    np.testing.assert_array_equal(plain, [[1000], [0]])


@pytest.mark.parametrize("width", [1, 3, 16, 72])
def test_sums_round_to_even_and_nan_stays_in_its_column(rng, width):
    x = (rng.integers(-255, 256, (N, width)) * 2.0 ** rng.integers(0, 6, (N, width))).astype(jnp.bfloat16)
    x[rng.random(x.shape) < 0.02] = np.nan
    x[rng.random(x.shape) < 0.02] = np.inf
    indices = rng.integers(0, N, ENTRIES).astype(np.int32)
    heads = np.sort(rng.integers(0, ENTRIES, M)).astype(np.int32)
    sums = mgpu.segmented_reduce(x, heads, indices=indices, weights=jnp.ones(ENTRIES, jnp.bfloat16))
    exact = [x[indices[part]].astype(np.float32).sum(0) for part in segments(indices, N, heads)]
    np.testing.assert_array_equal(np.asarray(sums, np.float32), np.stack(exact).astype(jnp.bfloat16).astype(np.float32))


def test_what_is_dropped_is_not_read():
    x = jnp.array([[1.0], [jnp.inf], [3.0]])
    indices = jnp.array([1, 0, 2, -1, 3, 2, 1])
    weights = jnp.array([jnp.nan, 2.0, 1.0, jnp.inf, jnp.nan, 1.0, jnp.inf])
    heads, count = jnp.array([1, 5]), 6

    for op, expected in {"add": [[5], [3]], "mean": [[5 / 3], [3]]}.items():

        def sums(x, w, op=op):
            return mgpu.segmented_reduce(x, heads, op, indices=indices, weights=w, count=count)

        np.testing.assert_allclose(sums(x, weights), expected, rtol=1e-6)
        by_x, by_w = jax.jit(jax.grad(lambda x, w, sums=sums: sums(x, w).sum(), (0, 1)))(x, weights)
        assert np.isfinite(by_x).all()
        np.testing.assert_array_equal(np.asarray(by_w)[[0, 3, 4, 6]], 0)
        np.testing.assert_array_equal(np.asarray(by_x)[1], 0)


# ---- Derivatives, batches --------------------------------------------------------------------------------------------


def dense(x, indices, weights, heads, count, op="add"):
    """Computes the expected results with a dense matrix of segments by entries."""
    entries = indices.shape[0]
    places = jnp.arange(entries)
    ends = jnp.append(jnp.minimum(heads, count)[1:], count)
    inside = (indices >= 0) & (indices < x.shape[0])
    member = ((places >= heads[:, None]) & (places < ends[:, None]) & inside).astype(x.dtype)
    weights = weights.reshape(entries, -1)
    rows = x[jnp.clip(indices, 0, x.shape[0] - 1)]
    sums = jnp.einsum("me,ek,ekd->mkd", member, weights, rows.reshape(entries, weights.shape[1], -1))
    if op == "mean":
        sums = sums / jnp.einsum("me,ek->mk", member, weights)[..., None]
    return sums.reshape(len(heads), *x.shape[1:])


@pytest.mark.parametrize("op", ["add", "mean"])
@pytest.mark.parametrize("axes", [0, 1])
def test_derivatives_are_those_of_dense_algebra(op, axes):
    rng = np.random.default_rng(3)
    x, indices = rng.normal(size=(5, 2, 3)), np.array([0, 1, 4, -1, 4, 4, 2, 0, 5, 3, 1, 1], np.int32)
    weights, heads, count = 1 + rng.random((12, *(2,)[:axes])), np.array([1, 3, 7]), np.int32(11)

    def loss(function):
        return lambda x, w: jnp.sin(function(x, w)).sum()

    ours = loss(lambda x, w: mgpu.segmented_reduce(x, heads, op, indices=indices, weights=w, count=count))
    theirs = loss(lambda x, w: dense(x, indices, w, heads, count, op))
    for got, expected in zip(
        jax.jit(jax.grad(ours, (0, 1)))(x, weights), jax.grad(theirs, (0, 1))(x, weights), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)
    check_grads(jax.jit(ours), (x, weights), order=2, modes=["rev"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("op", ["min", "max", "mul", "logsumexp"])
def test_derivatives_of_other_names(op):
    rng = np.random.default_rng(4)
    x, (indices, heads, count) = rng.normal(size=(9, 2)), entries_of(rng, 9, 40, 5)
    parts = segments(indices, 9, heads, count)

    def ours(x):
        return jnp.sin(mgpu.segmented_reduce(x, heads, op, indices=indices, count=count))

    def plain(x):
        function = {"min": jnp.min, "max": jnp.max, "mul": jnp.prod, "logsumexp": jax.scipy.special.logsumexp}[op]
        return jnp.stack([jnp.sin(function(x[indices[part]], axis=0)) for part in parts if len(part)])

    full = np.array([len(part) > 0 for part in parts])
    got = jax.jit(jax.grad(lambda x: ours(x)[full].sum()))(x)
    expected = jax.grad(lambda x: plain(x).sum())(x)  # jnp's gather also adds cotangents of a row's entries
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


def test_extrema_differentiate_to_the_first_entry():
    x = jnp.array([2.0, 1.0, 2.0, 1.0])
    slope = jax.grad(lambda x: mgpu.segmented_reduce(x, [0], "max", indices=[-1, 1, 2, 0, 2])[0])(x)
    np.testing.assert_array_equal(slope, [0, 0, 1, 0])


@pytest.mark.parametrize("mapped", [(0,), (1,), (2,), (3,), (1, 2), (2, 3), (0, 2), (2, 4), (0, 1, 2, 3, 4)])
def test_batches_over_any_operand(mapped):
    rng = np.random.default_rng(5)
    x, (indices, heads, count) = rng.normal(size=(N, 2)), entries_of(rng)
    operands = [x, heads, indices, rng.normal(size=ENTRIES), count]
    other = [rng.normal(size=(N, 2)), *entries_of(np.random.default_rng(6))]
    others = [other[0], other[2], other[1], rng.normal(size=ENTRIES), other[3]]
    stacked = [np.stack([a, b]) if i in mapped else a for i, (a, b) in enumerate(zip(operands, others, strict=True))]
    axes = [0 if i in mapped else None for i in range(5)]

    def sums(x, h, i, w, c):
        return mgpu.segmented_reduce(x, h, indices=i, weights=w, count=c)

    def slopes(x, h, i, w, c):
        return jax.grad(lambda x, w: (sums(x, h, i, w, c) ** 2).sum(), (0, 1))(x, w)

    got = jax.jit(jax.vmap(lambda *given: (sums(*given), slopes(*given)), axes))(*stacked)
    one = jax.jit(lambda *given: (sums(*given), slopes(*given)))
    for k in range(2):
        alone = one(*(y[k] if i in mapped else y for i, y in enumerate(stacked)))
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[k], b, rtol=1e-9, atol=1e-12)


# ---- Functions, maps, edges ------------------------------------------------------------------------------------------


def test_functions_maps_and_gaps():
    rng = np.random.default_rng(7)
    x, (indices, _, _) = rng.normal(size=N), entries_of(rng, N, 60)
    heads, ends = np.array([2, 10, 30, 31]), np.array([9, 10, 31, 58])

    def affine(a, b):
        return a[0] * b[0], b[0] * a[1] + b[1]

    def item(row, place):
        return jnp.cos(row), place.astype(jnp.float64)

    given = {"indices": indices, "ends": ends, "map": item, "identity": (1.0, 0.0)}
    got = jax.jit(lambda x: mgpu.segmented_reduce(x, heads, affine, **given))(x)
    for j, part in enumerate(segments(indices, N, heads, ends=ends)):
        a, b = 1.0, 0.0
        for place in part:
            a, b = a * np.cos(x[indices[place]]), np.cos(x[indices[place]]) * b + place
        np.testing.assert_allclose([got[0][j], got[1][j]], [a, b], rtol=1e-9)
    weights = rng.normal(size=60)
    sums = mgpu.segmented_reduce(x, heads, indices=indices, weights=weights, ends=ends, map=lambda r, i: jnp.cos(r) * i)
    for j, part in enumerate(segments(indices, N, heads, ends=ends)):
        np.testing.assert_allclose(sums[j], (weights[part] * np.cos(x[indices[part]]) * part).sum(), rtol=1e-9)
    slope = jax.grad(lambda x: mgpu.segmented_reduce(x, heads, indices=indices, ends=ends, map=jnp.log).sum())(
        x * 0 + 2
    )
    counted = np.bincount(np.concatenate([indices[p] for p in segments(indices, N, heads, ends=ends)]), minlength=N)
    np.testing.assert_allclose(slope, counted / 2)


@pytest.mark.parametrize("op", ["add", "mean", "max", "argmin"])
def test_nothing(op):
    empty = jnp.zeros(0, jnp.int32)
    over_nothing = {"add": 0, "mean": np.nan, "max": -np.inf, "argmin": -1}[op]
    for x, indices in ((jnp.ones((4, 2)), empty), (jnp.ones((0, 2)), jnp.array([0, -1, 3]))):
        got = mgpu.segmented_reduce(x, jnp.array([0, 0]), op, indices=indices)
        np.testing.assert_array_equal(got, np.full((2, 2), over_nothing))
        if op in ("add", "mean"):
            weights = jnp.ones(indices.shape)
            np.testing.assert_array_equal(mgpu.segmented_reduce(x, [0, 0], op, indices=indices, weights=weights), got)
    assert mgpu.segmented_reduce(jnp.ones((4, 0)), [0, 0], op, indices=[1]).shape == (2, 0)
    assert mgpu.segmented_reduce(jnp.ones((4, 2)), empty, op, indices=[1]).shape == (0, 2)


PLATFORMS = ["cpu", *(["cuda"] if mgpu.has_cuda() else [])]


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("op", ["add", "max", "logsumexp"])
@pytest.mark.parametrize("groups", [None, (), (4,), (4, 16)])
def test_gathered_rows_are_one_call(platform, op, groups):
    if op != "add" and groups is not None:
        pytest.skip("only sums have weights")
    x, indices, heads = jnp.ones((100, 4, 16), jnp.float32), jnp.zeros(10_000, jnp.int32), jnp.arange(0, 10_000, 10)
    weights = None if groups is None else jnp.ones((10_000, *groups), jnp.float32)
    call = jax.jit(lambda x, i, w: mgpu.segmented_reduce(x, heads, op, indices=i, weights=w))
    text = call.trace(x, indices, weights).lower(lowering_platforms=(platform,)).as_text()
    assert text.count("stablehlo.custom_call") == text.count("custom_call @jax_mgpu.gathered_rows") == 1
    # Only if each element has a weight of its own, there is an array of entries by columns: the weights.
    assert "stablehlo.gather" not in text and ("tensor<10000x64x" in text) == (groups == (4, 16))


@pytest.mark.parametrize("is_weighted", [False, True])
def test_derivatives_in_the_table_have_no_row_per_entry(is_weighted):
    if not mgpu.has_cuda():
        pytest.skip("the CPU adds rows by id")
    x, indices, heads = jnp.ones((100, 64), jnp.float32), jnp.zeros(10_000, jnp.int32), jnp.arange(0, 10_000, 10)
    weights = jnp.ones(10_000, jnp.float32) if is_weighted else None
    slope = jax.grad(lambda x, i, w: jnp.sum(mgpu.segmented_reduce(x, heads, indices=i, weights=w) ** 2))
    text = jax.jit(slope).trace(x, indices, weights).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @jax_mgpu.gathered_rows") == 2 and "tensor<10000x64x" not in text
    assert "stablehlo.scatter" not in text  # of marks, for the segment of each item


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("groups", [0, 1, 4, 48])
def test_derivatives_of_wide_rows(dtype, groups):
    rng = np.random.default_rng(5)
    indices, heads, count = entries_of(rng)
    x, slope = drawn(rng, dtype, N, max(groups, 1), 48 // max(groups, 1)), drawn(rng, dtype, M, 48)
    weights = drawn(rng, dtype, ENTRIES, groups) if groups else None
    slope = slope.reshape(M, *x.shape[1:])

    def summed(x, weights):
        return mgpu.segmented_reduce(x, heads, indices=indices, weights=weights, count=count)

    got = jax.jit(lambda *operands: jax.vjp(summed, *operands)[1](slope))(x, weights)
    of_x = np.zeros(x.shape)
    of_weights = np.zeros((ENTRIES, max(groups, 1)))
    for part, one in zip(segments(indices, N, heads, count), slope.astype(np.float64), strict=True):
        for i in part:
            factor = weights[i][:, None].astype(np.float64) if groups else 1
            of_x[indices[i]] += factor * one
            of_weights[i] = (one * x[indices[i]].astype(np.float64)).sum(axis=-1)
    np.testing.assert_array_equal(got[0].astype(np.float64), of_x.astype(dtype).astype(np.float64))
    if groups:
        np.testing.assert_array_equal(got[1].astype(np.float64), of_weights.astype(dtype).astype(np.float64))


@pytest.mark.parametrize("weights", [None, 1.0])
def test_gathered_rows_are_not_in_memory(weights):
    x, indices, heads = jnp.ones((100, 64)), jnp.zeros(10_000, jnp.int32), jnp.arange(0, 10_000, 10)
    weights = weights and jnp.full(indices.shape, weights)
    call = jax.jit(lambda x, i, w: mgpu.segmented_reduce(x, heads, "mean", indices=i, weights=w))
    compiled = call.lower(x, indices, weights).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < indices.size * 64 * 4 / 4


def test_long_segments_of_weighted_rows():
    rng = np.random.default_rng(11)
    entries = 6000
    for width, groups in ((1, 1), (4, 4), (5, 5), (11, 1), (24, 3), (64, 1), (66, 2), (3, 1), (40, 40), (1100, 1)):
        x, weights = drawn(rng, "float32", N, groups, width // groups), drawn(rng, "float32", entries, groups)
        indices, heads = rng.integers(-1, N + 1, entries).astype(np.int32), np.array([5, 5, 4000, 4031, 4070], np.int32)
        got = jax.jit(lambda x, i, w, h: mgpu.segmented_reduce(x, h, indices=i, weights=w))(x, indices, weights, heads)
        parts = segments(indices, N, heads)
        np.testing.assert_array_equal(got, weighted_sums(x, weights, indices, parts))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_products_with_a_vector_round_the_edges_of_tiles(rng, dtype):
    call = jax.jit(lambda x, h, i, w, c: mgpu.segmented_reduce(x, h, indices=i, weights=w, count=c))
    x = drawn(rng, dtype, N, 1)
    for entries in (1, 255, 1000, 1024, 2305, 7000):
        indices, weights = rng.integers(-2, N + 2, entries).astype(np.int32), drawn(rng, dtype, entries)
        every, some = np.arange(entries + 3), np.arange(3, entries + 40, 17)
        few = np.array([0, 0, entries // 2, entries])
        for heads in (every, some, np.repeat(some, 5), few, few[2:3]):
            count = np.int32(rng.integers(entries // 2, entries + 1))
            got = call(x, heads.astype(np.int32), indices, weights, count)
            expected = weighted_sums(x, weights, indices, segments(indices, N, heads, count))
            narrow = np.asarray(jnp.asarray(expected).astype(dtype), np.float64)
            np.testing.assert_array_equal(np.asarray(got, np.float64), narrow)


def edges_of_tiles(n, units):
    """Returns heads of n entries, around edges of tiles of `units` entries and ends."""
    apart = [np.arange(0, n, units + d) for d in (-2, -1, 0, 1)]  # units - 1 entries and their end fill a tile
    empty = np.repeat([1, n // 2, n], [1, 4 * units + 1, units])  # tiles of ends only
    few = [np.array([0]), np.array([n - 1, n]), np.zeros(6 * units, int)]
    return [*apart, *(np.arange(0, n, 3 * units + d) for d in (-2, 0, 1)), empty, *few]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("width", [1, 2, 16, 300])
def test_segments_across_the_edges_of_tiles(rng, dtype, width):
    n, entries = 50, {16: 2112, 300: 1056}.get(width, 4224)
    call = jax.jit(lambda x, h, i, w, c: mgpu.segmented_reduce(x, h, indices=i, weights=w, count=c))
    batched = jax.jit(jax.vmap(call, in_axes=(0, None, 0, 0, 0)))
    x, weights = drawn(rng, dtype, 2, n, width), drawn(rng, dtype, 2, entries)
    indices = rng.integers(-1, n + 1, (2, entries)).astype(np.int32)
    counts = np.array([entries, entries - 300], np.int32)
    is_row = (indices >= 0) & (indices < n)
    rows = [np.where(is_row[b], weights[b].astype(np.float64), 0)[:, None] * x[b][indices[b] % n] for b in range(2)]
    sums = [np.concatenate([np.zeros((1, width)), np.cumsum(r.astype(np.float64), axis=0)]) for r in rows]
    for units in {16: (256, 512, 1024), 300: (64,)}.get(width, (1792,)):
        for given in edges_of_tiles(entries, units):
            heads = given.astype(np.int32)
            bounds = [np.append(np.minimum(heads, count), count) for count in counts]
            expected = np.stack([np.diff(s[b], axis=0) for s, b in zip(sums, bounds, strict=True)]).astype(x.dtype)
            np.testing.assert_array_equal(batched(x, heads, indices, weights, counts), expected)
            got = call(x[1], heads, indices[1], weights[1], counts[1])
            np.testing.assert_array_equal(got, expected[1])


@pytest.mark.parametrize("width", [1, 3, 16, 128])
def test_sums_of_long_segments_have_the_same_bits_in_every_run(rng, width):
    x, weights = rng.normal(size=(500, width)).astype(np.float32), rng.normal(size=60_000).astype(np.float32)
    indices = rng.integers(0, 500, weights.size).astype(np.int32)
    call = jax.jit(lambda h, w: mgpu.segmented_reduce(x, h, indices=indices, weights=w))
    for heads in (np.array([0, 59_000]), np.sort(rng.integers(0, weights.size, 40))):
        first = np.asarray(call(heads.astype(np.int32), weights))
        exact = [(weights[p, None].astype(np.float64) * x[indices[p]]).sum(0) for p in segments(indices, 500, heads)]
        np.testing.assert_allclose(first, np.stack(exact), rtol=1e-4, atol=1e-2)
        for _ in range(3):
            np.testing.assert_array_equal(call(heads.astype(np.int32), weights), first)


ERRORS = {
    "op: expected add, sum, mean where weights are given, got 'max'": {"op": "max", "weights": [1.0, 2.0]},
    "op: expected add, sum, mean where weights are given, got 'min'": {"op": {"a": "min"}, "weights": [1.0, 2.0]},
    "op: expected add, sum, mean where weights are given, got <function": {"op": lambda a, b: a, "weights": [1.0, 2.0]},
    "weights: expected one weight for each entry, [2], or": {"weights": [1.0]},
    "weights: expected real numbers or bools, got complex": {"weights": np.ones(2, complex)},
    "indices: expected integers, got float": {"indices": [0.5, 1.0]},
    "axis_name: expected None where indices is given": {"axis_name": "i"},
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    given = {"indices": [0, 1], **ERRORS[message]}
    with pytest.raises((TypeError, ValueError), match=f"^segmented_reduce: {re.escape(message)}"):
        mgpu.segmented_reduce(jnp.ones(4), [0, 1], **given)


def test_errors_of_weights_with_rows():
    x, indices = jnp.ones((4, 2, 3)), jnp.array([0, 1])
    for shape in [(2, 3), (2, 2, 2), (2, 2, 3, 1), (3,)]:
        with pytest.raises(ValueError, match=r"^segmented_reduce: weights: expected one weight for each entry"):
            mgpu.segmented_reduce(x, [0], indices=indices, weights=jnp.ones(shape))


def test_strict_promotion_takes_weights_of_the_rows_type():
    x, weights = np.arange(4, dtype=np.int32), np.int8([1, 2, 0, 3])
    with jax.numpy_dtype_promotion("strict"):
        assert mgpu.segmented_reduce(x, [0], weights=weights.astype(np.int32)) == 11
        with pytest.raises(jax.dtypes.TypePromotionError):
            mgpu.segmented_reduce(x, [0], weights=weights)


def test_gradients_of_each_device_are_its_own(rng, devices):
    mesh = jax.make_mesh((len(devices),), ("d",), devices=devices, axis_types=(jax.sharding.AxisType.Auto,))
    heads = np.array([0, 3, 3], np.int32)
    x, weights = drawn(rng, "float32", len(devices), 7, 2), drawn(rng, "float32", len(devices), 5)
    cotangents = drawn(rng, "float32", len(devices), 3, 2)
    indices = rng.integers(-1, 8, (len(devices), 5)).astype(np.int32)

    def gradients(x, weights, indices, cotangent):
        def sums(x, weights):
            return mgpu.segmented_reduce(x, heads, indices=indices, weights=weights)

        return jax.vjp(sums, x, weights)[1](cotangent)

    def of_device(*operands):
        return jax.tree.map(lambda x: x[None], gradients(*(x[0] for x in operands)))

    of_each = jax.shard_map(of_device, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"))
    operands = x, weights, indices, cotangents
    for got, expected in zip(jax.jit(of_each)(*operands), jax.vmap(gradients)(*operands), strict=True):
        np.testing.assert_array_equal(got, expected)
