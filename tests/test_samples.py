"""weighted_choice and sample_logits, against their definitions in NumPy, and statistics of draws."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jax_mgpu as mgpu
from tests import data
from tests.variants import long_but

LARGEST = np.nextafter(np.float32(1), np.float32(0))


# ---- weighted_choice -------------------------------------------------------------------------------------------------


def chosen(u, weights, begin=0, end=None):
    """Returns the choice by the definition, which is exact if the sums are."""
    weights = np.nan_to_num(np.maximum(np.asarray(weights, np.float64)[begin:end], 0))
    positive = np.flatnonzero(weights > 0)
    if not len(positive):
        return -1
    sums = np.cumsum(weights)
    found = np.flatnonzero(sums > u * sums[-1])
    return begin + (found[0] if len(found) else positive[-1])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "uint8", "int8"])
def test_choices_of_exact_weights(rng, dtype):
    run = jax.jit(mgpu.weighted_choice)
    u = np.append(rng.integers(0, 256, 200) / 256, [0, LARGEST, 1]).astype(np.float32)
    for n in (1, 7, 1000):
        for low in (0, -3) if dtype != "uint8" else (0,):
            weights = rng.integers(low, 3, n).astype(jnp.dtype(dtype))
            weights[rng.random(n) < 0.5] = 0
            got = run(u, weights)
            assert got.dtype == np.int32
            assert got.tolist() == [chosen(x, weights.astype(np.float32)) for x in u]
    assert run(u[:4].reshape(2, 2), np.ones(4, dtype)).shape == (2, 2)
    assert mgpu.weighted_choice(0.6, np.ones(4, dtype)) == 2


def test_choices_of_segments(rng):
    weights = rng.integers(0, 3, 300).astype(np.float32)
    weights[::17], weights[100:150] = np.nan, 0
    starts = np.array([0, 40, 40, 100, 150, 220], np.int32)
    ends = np.array([30, 40, 100, 150, 200, 300], np.int32)
    u, ids = (rng.integers(0, 256, 500) / 256).astype(np.float32), rng.integers(-1, 7, 500)
    for segments, stops in (
        (mgpu.Segments.from_ranges(starts, ends), ends),
        (mgpu.Segments.from_heads(starts, count=280), np.minimum(np.append(starts[1:], 280), 280)),
        (starts, np.append(starts[1:], 300)),
    ):
        got = jax.jit(mgpu.weighted_choice)(u, weights, segments, ids)
        bounds = [(starts[i], stops[i]) if 0 <= i < 6 else (0, 0) for i in ids]
        assert got.tolist() == [chosen(x, weights, *bound) for x, bound in zip(u, bounds, strict=True)]
        each = mgpu.weighted_choice(u[:6], weights, segments)
        assert each.tolist() == [chosen(*given) for given in zip(u[:6], [weights] * 6, starts, stops, strict=True)]


def test_nothing_to_choose():
    u = np.array([0, 0.5, LARGEST], np.float32)
    for weights in ([], [0.0], [-1.0, np.nan, -np.inf], np.zeros(3000)):
        assert mgpu.weighted_choice(u, np.asarray(weights, np.float32)).tolist() == [-1] * 3
    assert mgpu.weighted_choice(u[:0], u).shape == (0,)
    assert mgpu.weighted_choice(
        np.array([0.5, 0.5], np.float32), u[:0], mgpu.Segments.from_lengths([0, 0])
    ).tolist() == [-1, -1]


def test_special_weights():
    """NaNs and negative weights count as 0. If a weight is infinite, the last item of positive weight is chosen."""
    weights = np.array([np.nan, -np.inf, -1, 2, np.nan, 2, 0], np.float32)
    assert mgpu.weighted_choice(np.array([0, 0.49, 0.5, 1, 7, np.nan], np.float32), weights).tolist() == [
        3,
        3,
        5,
        5,
        5,
        5,
    ]
    assert mgpu.weighted_choice(np.array([0.5], np.float32), np.array([1, np.inf, 1, 0], np.float32)).tolist() == [2]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_no_item_of_weight_0_is_chosen(rng, dtype):
    n, heads = 1000, np.array([0, 600], np.int32)
    weights = np.where(rng.random(n) < 0.7, 0, rng.random(n)).astype(dtype)
    sample = jax.jit(lambda u, ids: mgpu.weighted_choice(u, weights, heads, ids))
    exact = weights.astype(float)
    for segment, (begin, end) in enumerate(((0, 600), (600, n))):
        ends = np.cumsum(exact[begin:end]) / exact[begin:end].sum()
        near_ends = (ends.astype(np.float32)[:, None] * np.float32([1 - 1e-7, 1, 1 + 1e-7])).ravel()
        u = np.concatenate([rng.random(4000, np.float32), near_ends, [0, LARGEST]]).astype(np.float32)
        found = np.asarray(sample(u, np.full(u.shape, segment)))
        assert ((found >= begin) & (found < end)).all()
        assert (weights[found] > 0).all()
        expected = begin + np.searchsorted(ends, u, "right")
        assert (found[:4000] == expected[:4000]).mean() > 0.99


def test_batches_of_choices(rng):
    u, weights = rng.random((3, 5), np.float32), rng.integers(0, 4, (3, 40)).astype(np.float32)
    got = jax.jit(jax.vmap(mgpu.weighted_choice))(u, weights)
    heads = mgpu.Segments.from_lengths([10, 0, 30])
    ragged = jax.jit(jax.vmap(lambda u, w: mgpu.weighted_choice(u, w, heads, jnp.array([0, 1, 2, 2, 0]))))(u, weights)
    for row in range(3):
        assert got[row].tolist() == [chosen(x, weights[row]) for x in u[row]]
        bounds = [(0, 10), (10, 10), (10, 40), (10, 40), (0, 10)]
        assert ragged[row].tolist() == [chosen(x, weights[row], *b) for x, b in zip(u[row], bounds, strict=True)]


def test_what_a_misuse_of_weighted_choice_says():
    u, w = np.array([0.5, 0.1], np.float32), np.ones(4, np.float32)
    for error, message, call in [
        (TypeError, "u: expected float16, bfloat16, float32", lambda: mgpu.weighted_choice([1, 2], w)),
        (TypeError, "weights: expected integers of 8", lambda: mgpu.weighted_choice(u, w > 0)),
        (ValueError, "weights: expected a 1-D array", lambda: mgpu.weighted_choice(u, w[None])),
        (ValueError, "ids: expected None without segments", lambda: mgpu.weighted_choice(u, w, ids=[0, 0])),
        (ValueError, "ids: expected the length of u, 2", lambda: mgpu.weighted_choice(u, w, [0], [0])),
        (ValueError, "u: expected one number for each of 1 segments", lambda: mgpu.weighted_choice(u, w, [0])),
        (ValueError, "u: expected a 1-D array where segments", lambda: mgpu.weighted_choice(u[None], w, [0], [0])),
    ]:
        with pytest.raises(error, match=f"^weighted_choice: {message}"):
            call()


# ---- sample_logits ---------------------------------------------------------------------------------------------------


def distribution(logits, temperature=1.0, top_k=None, top_p=None, min_p=None):
    """Returns each token's probability by the definition."""
    logits = np.asarray(logits, np.float64)
    logits = np.where(np.isnan(logits), -np.inf, logits)
    if not (logits > -np.inf).any():
        return np.zeros(len(logits))
    if temperature == 0:
        return (np.arange(len(logits)) == np.argmax(logits)).astype(float)
    order = np.argsort(-logits, kind="stable")
    powers = np.exp((logits[order] - logits.max()) / temperature)
    if top_k is not None:
        powers[max(top_k, 1) :] = 0
    p = powers / powers.sum()
    if top_p is not None and top_p < 1:
        p[np.flatnonzero(np.cumsum(p) >= top_p)[0] + 1 :] = 0
    if min_p is not None:
        p[p < min_p * p[0]] = 0
    out = np.zeros(len(logits))
    out[order] = p / p.sum()
    return out


SETTINGS = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 3},
    {"top_k": 99},
    {"top_p": 0.62},
    {"top_p": 0.0},
    {"top_p": 1.0},
    {"min_p": 0.21},
    {"min_p": 1.0},
    {"temperature": 0.7, "top_k": 4, "top_p": 0.83, "min_p": 0.1},
    {"temperature": 1.6, "top_p": 0.83, "min_p": 0.4},
    {"temperature": 0.0, "top_k": 2, "top_p": 0.5},
]
# Rows have ties, logits that are far apart, infinities and NaNs.
ROWS = np.array([
    [0.3, 1.7, 1.1, -0.4, 0.9, 1.2, -2.0],
    [1.0, 2.0, 2.0, 0.5, 2.0, 0.5, 0.5],
    [-np.inf, 0.0, np.nan, 1.0, -np.inf, 0.3, -30.0],
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [200.0, -300.0, 199.0, 5e8 * 0, 198.5, 0.0, 0.0],
], np.float32)  # fmt: skip


def expect_draws(tokens, p):
    """Compares draws with p by chi-squared."""
    counts, draws = np.bincount(tokens, minlength=len(p)), len(tokens)
    assert (counts[p == 0] == 0).all(), (counts, p)
    often = p * draws >= 5
    statistic = ((counts - p * draws)[often] ** 2 / (p * draws)[often]).sum()
    freedom = max(int(often.sum()) - 1, 1)
    assert statistic < freedom + 6 * np.sqrt(2 * freedom) + 12, (counts, p * draws)


def check_draws(draws, seed):
    for i, settings in enumerate(SETTINGS):
        arrays = {name: jnp.asarray(x) for name, x in settings.items() if name != "top_k"}
        number = {name: x for name, x in settings.items() if name == "top_k"}
        run = jax.jit(lambda key, rows, arrays, number=number: mgpu.sample_logits(key, rows, **number, **arrays))
        rows = np.repeat(ROWS, draws // len(ROWS), axis=0)
        tokens = np.asarray(run(jax.random.key(seed + i), rows, arrays)).reshape(len(ROWS), -1)
        assert tokens.dtype == np.int32
        for row, drawn in zip(ROWS, tokens, strict=True):
            expect_draws(drawn, distribution(row, **settings))


def test_draws():
    check_draws(20_000, 0)


@pytest.mark.long
def test_a_million_draws():
    check_draws(1_000_000, 100)


def test_parameters_of_rows(rng):
    rows = rng.normal(size=(6, 5, 50)).astype(np.float32)
    t, k = np.array([0, 1, 0.5, 2, 1, 0.1] * 5).reshape(6, 5), rng.integers(1, 60, (6, 5))
    p, q = rng.random((6, 5)), rng.random((6, 5)) * 0.3
    given = {"temperature": t, "top_k": k, "top_p": p, "min_p": q}
    for seed in range(20):
        got = np.asarray(mgpu.sample_logits(jax.random.key(seed), rows, **given))
        assert got.shape == (6, 5)
        for i in np.ndindex(6, 5):
            assert distribution(rows[i], *(x[i] for x in given.values()))[got[i]] > 0
    scalars = mgpu.sample_logits(jax.random.key(1), rows, top_k=7, top_p=0.9)
    arrays = mgpu.sample_logits(jax.random.key(1), rows, top_k=np.full((6, 5), 7), top_p=np.full((6, 5), 0.9))
    assert scalars.tolist() == arrays.tolist()


def test_special_rows():
    key, nothing = jax.random.key(3), np.full((3, 9), -np.inf, np.float32)
    nothing[1], nothing[2, 4] = np.nan, 1.0
    for settings in SETTINGS:
        assert mgpu.sample_logits(key, nothing, **settings).tolist() == [-1, -1, 4]
    assert mgpu.sample_logits(key, np.zeros((3, 0), np.float32)).tolist() == [-1, -1, -1]
    assert mgpu.sample_logits(key, np.zeros((0, 3), np.float32), top_p=0.5).shape == (0,)
    infinite = np.tile(np.array([1, np.inf, 5, np.inf, np.nan], np.float32), (200, 1))
    assert set(mgpu.sample_logits(key, infinite, top_p=0.99, temperature=0.3).tolist()) == {1, 3}
    assert mgpu.sample_logits(key, infinite[0], temperature=0) == 1
    cold = np.tile(np.array([10.0, 20.0], np.float32), (50, 1))  # quotients of these logits overflow
    assert set(mgpu.sample_logits(key, cold, temperature=1e-38).tolist()) == {1}


def test_a_row_takes_its_own_uniform_number(rng):
    rows = rng.normal(size=(40, 30)).astype(np.float32)
    key = jax.random.key(7)
    u = jax.random.uniform(key, (40,))
    powers = np.exp(rows - rows.max(1, keepdims=True))
    expected = [mgpu.weighted_choice(x, row) for x, row in zip(u, powers, strict=True)]
    assert mgpu.sample_logits(key, rows).tolist() == [int(x) for x in expected]
    assert mgpu.sample_logits(jax.random.PRNGKey(7), rows).tolist() == [int(x) for x in expected]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_logits_are_drawn_in_float32(rng, dtype):
    rows = rng.normal(size=(300, 4000)).astype(jnp.dtype(dtype))
    for settings in ({}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.2, "temperature": 0.5}):
        got, expected = (mgpu.sample_logits(jax.random.key(5), x, **settings) for x in (rows, rows.astype(np.float32)))
        assert got.tolist() == expected.tolist()


def expect_place(token, u, logits, temperature, top_p, min_p):
    """Checks, up to rounding, that the running sum of kept weights passes the share `u` of their total at the token."""
    logits = np.asarray(logits, np.float64)
    logits = np.where(np.isnan(logits), -np.inf, logits)
    best = logits.max()
    if best == -np.inf or temperature == 0:
        assert token == (-1 if best == -np.inf else np.argmax(logits))
        return
    order = np.argsort(-logits, kind="stable")
    with np.errstate(invalid="ignore"):
        powers = np.exp(np.where(logits[order] == best, 0, (logits[order] - best) / temperature))
    powers = np.where(logits[order] > -np.inf, powers, 0)
    sums = np.cumsum(powers)
    before = sums - powers

    def target(top_p):
        kept = (powers >= min_p) & ((before < top_p * sums[-1]) | (top_p >= 1) | (np.arange(len(sums)) == 0))
        return u * sums[kept][-1]

    low, high = (target(min(top_p * (1 + d), 1) if top_p < 1 else 1) for d in (-1e-6, 1e-6))
    slack = 1e-5 * sums[-1]
    (place,) = np.flatnonzero(order == token)
    assert powers[place] > 0 and powers[place] >= min_p * (1 - 1e-6)
    assert before[place] <= high + slack and sums[place] >= low - slack
    assert before[place] <= top_p * sums[-1] + slack


def logits_of_kind(rng, kind, rows, n):
    x = rng.normal(size=(rows, n)) * (rng.integers(1, 9) if kind == "random" else 1)
    if kind == "equal":
        x[...] = 0.7
    elif kind == "few":
        x = rng.integers(0, 3, (rows, n)).astype(float)
    elif kind == "masked":
        x[rng.random((rows, n)) < 0.7] = -np.inf
        x[:, 1::7] = -1e9
    elif kind == "peak":
        x[np.arange(rows), rng.integers(0, n, rows)] = 40
    elif kind == "zeros":
        x = np.where(rng.random((rows, n)) < 0.5, 0.0, -0.0)
    elif kind == "nan":
        x[rng.random((rows, n)) < 0.5] = np.nan
        x[0] = np.nan
    return x


SAMPLE_SIZES = [
    1,
    2,
    100,
    2047,
    2048,
    *(tile + d for tile in data.tile_sizes("sample_top_p") for d in (-1, 0, 1)),
    70_001,
]


def test_logits_of_float64_that_float32_cannot_tell_apart():
    with jax.enable_x64(True):
        for logits in ([1, 1 + 1e-12, 0], [3e300, 4e300, -np.inf], [np.nan, 1e300, -1e300], [0, np.inf, 1]):
            row, key = jnp.array(logits, np.float64), jax.random.key(0)
            assert int(mgpu.sample_logits(key, row, temperature=0)) == 1
            assert int(mgpu.sample_logits(key, row, top_k=1)) == 1


def test_tokens_have_no_derivative_in_parameters():
    logits, key = jnp.array([[0.1, 0.5, 0.2], [1.0, 2.0, 3.0]]), jax.random.key(0)

    def loss(temperature, top_p, min_p):
        tokens = mgpu.sample_logits(key, logits, temperature=temperature, top_p=top_p, min_p=min_p)
        return jnp.sum(jax.nn.log_softmax(logits / temperature)[jnp.arange(2), tokens])

    tokens = mgpu.sample_logits(key, logits, temperature=1.0, top_p=0.5, min_p=0.1)
    expected = jax.grad(lambda t: jnp.sum(jax.nn.log_softmax(logits / t)[jnp.arange(2), tokens]))(1.0)
    got = jax.grad(loss, (0, 1, 2))(1.0, 0.5, 0.1)
    np.testing.assert_allclose(got, [expected, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("kind", ["random", "equal", "few", "masked", "peak", "zeros", "nan"])
@pytest.mark.parametrize("dtype", long_but(["float32", "bfloat16"], ["float32", "bfloat16", "float16"]))
def test_tokens_of_top_p(rng, dtype, kind):
    for n in SAMPLE_SIZES:
        rows = 11
        x = logits_of_kind(rng, kind, rows, n).astype(jnp.dtype(dtype))
        top_p = np.resize(np.array([0.9, 0.5, 0.05, 0.0, 0.999, 1.0, 1e-6], np.float32), rows)
        temperature = np.resize(np.array([1, 1, 0.3, 1, 8, 0, 100, 1, 1e-30, 1, 1], np.float32), rows)
        min_p = np.resize(np.array([0, 0.1, 0, 0.01, 1], np.float32), rows)
        key = jax.random.key(n)
        u = np.asarray(jax.random.uniform(key, (rows,)))
        for t, q in ((np.ones(rows, np.float32), np.zeros(rows, np.float32)), (temperature, min_p)):
            tokens = jax.jit(lambda key, x, t, p, q: mgpu.sample_logits(key, x, temperature=t, top_p=p, min_p=q))(
                key, x, t, top_p, q
            )
            for row, token in enumerate(np.asarray(tokens)):
                expect_place(token, u[row], x[row].astype(np.float32), t[row], top_p[row], q[row])


def test_which_kernels_sample():
    if not mgpu.has_cuda():
        pytest.skip("a build without CUDA kernels")
    key, x = jax.random.key(0), jax.ShapeDtypeStruct((4, 50_000), np.float32)
    for options, kernels in (
        ({"top_p": 0.9}, ["sample_top_p"]),
        ({"top_p": 0.9, "top_k": jnp.full((4,), 9)}, ["scan", "segmented_sort"]),
    ):
        run = jax.jit(lambda key, x, given=options: mgpu.sample_logits(key, x, **given))
        text = run.trace(key, x).lower(lowering_platforms=("cuda",)).as_text()
        assert set(kernels) <= set(re.findall(r"@jax_mgpu\.(\w+)\(", text))
        assert ("segmented_sort" in text) == ("top_k" in options)


def test_transformations_of_samples(rng):
    rows, keys = rng.normal(size=(3, 4, 20)).astype(np.float32), jax.random.split(jax.random.key(2), 3)
    p = np.array([0.1, 0.5, 0.9])
    got = jax.jit(jax.vmap(lambda key, x, p: mgpu.sample_logits(key, x, top_p=p, top_k=9)))(keys, rows, p)
    for i in range(3):
        assert got[i].tolist() == mgpu.sample_logits(keys[i], rows[i], top_p=p[i], top_k=9).tolist()
    slope = jax.grad(lambda x: jnp.take_along_axis(x, mgpu.sample_logits(keys[0], x, top_p=0.5)[:, None], 1).sum())
    assert slope(rows[0]).sum() == 4


def test_samples_of_shared_rows_over_an_explicit_axis(rng):
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:1])
    rows, p = rng.normal(size=(3, 20)).astype(np.float32), np.array([0.1, 0.9], np.float32)
    seeds = np.arange(2, dtype=np.uint32)
    for settings in ({"top_k": 5}, {"top_k": np.int32(5)}, {}):
        call = jax.vmap(lambda seed, p, s=settings: mgpu.sample_logits(jax.random.key(seed), rows, top_p=p, **s))
        expected = call(seeds, p).tolist()
        with jax.set_mesh(mesh):
            placed = [jax.device_put(x, NamedSharding(mesh, PartitionSpec("x"))) for x in (seeds, p)]
            assert jax.jit(call)(*placed).tolist() == expected
            alone = jax.vmap(lambda seed, s=settings: mgpu.sample_logits(jax.random.key(seed), rows, top_p=0.5, **s))
            assert jax.jit(alone)(placed[0]).shape == (2, 3)


def test_what_a_misuse_of_sample_logits_says():
    key, x = jax.random.key(0), np.ones((2, 3), np.float32)
    for error, message, call in [
        (TypeError, "key: expected a random key", lambda: mgpu.sample_logits(3, x)),
        (ValueError, "key: expected one random key", lambda: mgpu.sample_logits(jax.random.split(key), x)),
        (TypeError, "logits: expected float16, bfloat16", lambda: mgpu.sample_logits(key, x > 0)),
        (ValueError, "logits: expected rows", lambda: mgpu.sample_logits(key, x[0, 0])),
        (ValueError, "temperature: expected a scalar, or a number", lambda: mgpu.sample_logits(key, x, temperature=x)),
        (TypeError, "temperature: expected real numbers", lambda: mgpu.sample_logits(key, x, temperature=True)),
        (TypeError, "top_k: expected integers", lambda: mgpu.sample_logits(key, x, top_k=1.5)),
        (ValueError, "top_p: expected a scalar, or a number", lambda: mgpu.sample_logits(key, x, top_p=[1.0] * 3)),
    ]:
        with pytest.raises(error, match=f"^sample_logits: {message}"):
            call()
