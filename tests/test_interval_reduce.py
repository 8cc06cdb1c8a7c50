"""Reductions of intervals that may overlap, compared with NumPy."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.core.library import cpu_library
from tests import oracle
from tests.jaxprs import kernel_calls, scratch_bytes
from tests.oracle import same_bits

pytestmark = pytest.mark.usefixtures("x64")

NAMES = ["add", "mul", "min", "max", "argmin", "argmax", "mean", "any", "all", "and", "xor", "logsumexp"]


def drawn(rng, dtype, *shape):
    """Draws small numbers with exact sums and products."""
    if dtype == "bool":
        return rng.random(shape) < 0.8
    return rng.integers(0 if dtype.startswith("u") else -1, 2, shape).astype(jnp.dtype(dtype))


def intervals(rng, n, k, most=None):
    """Returns starts and ends, some out of range, some reversed."""
    starts = rng.integers(-3, n + 4, k)
    lengths = rng.integers(-2, (most or n) + 3, k)
    return starts.astype(np.int32), (starts + lengths).astype(np.int32)


def parts_of(starts, ends, live):
    return [np.arange(max(s, 0), max(min(e, live), 0)) for s, e in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("op", NAMES)
@pytest.mark.parametrize("dtype", ["int8", "float32", "bfloat16", "bool"])
def test_names(op, dtype):
    floats = dtype in ("float32", "bfloat16")
    if (op in ("and", "xor") and floats) or (op == "logsumexp" and not floats):
        pytest.skip("this operator takes no items of this type")
    n, k = 300, 80
    call = jax.jit(lambda x, s, e, c: mgpu.interval_reduce(x, s, e, op, count=c))
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x, (starts, ends) = drawn(rng, dtype, n, 2), intervals(rng, n, k, (None, 3, 20, 70)[seed])
        count = np.int32(rng.integers(n // 2, n + 1))
        got = np.asarray(call(x, starts, ends, count))
        expected = []
        for part in parts_of(starts, ends, count):
            found = np.asarray(oracle.combined(x[part], op))
            expected.append(np.append(part, -1)[found].astype(np.int32) if op.startswith("arg") else found)
        expected = np.stack(expected)
        if op in ("mean", "logsumexp"):
            rtol = 4 * float(jnp.finfo(got.dtype).eps)
            np.testing.assert_allclose(got.astype(float), expected.astype(float), rtol=rtol, atol=rtol)
        else:
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("n", [1, 2, 3, 15, 16, 17, 33, 257, 529])
def test_all_intervals_of_a_few_items_by_an_operator_that_does_not_commute(n):
    """The operator joins runs of positions, so results show which items they have, and in which order."""
    starts, ends = (x.reshape(-1) for x in np.mgrid[: n + 1, : n + 1])
    if n > 40:
        chosen = np.random.default_rng(n).choice(len(starts), 900, replace=False)
        starts, ends = starts[chosen], ends[chosen]

    def joined(a, b):  # first, last and number of items, and whether they are consecutive
        return a[0], b[1], a[2] + b[2], a[3] & b[3] & (a[1] + 1 == b[0])

    places = jnp.arange(n)
    items = (places, places, jnp.ones(n, jnp.int32), jnp.ones(n, bool))
    nothing = (jnp.int64(-1), jnp.int64(-1), 0, True)
    got = jax.jit(lambda s, e: mgpu.interval_reduce(items, s, e, joined, identity=nothing))(starts, ends)
    full = ends > starts
    np.testing.assert_array_equal(got[0], np.where(full, starts, -1))
    np.testing.assert_array_equal(got[1], np.where(full, ends - 1, -1))
    np.testing.assert_array_equal(got[2], np.maximum(ends - starts, 0))
    assert np.all(got[3])


@pytest.mark.parametrize("width", [7, 1000])
def test_moving_windows(width):
    rng = np.random.default_rng(1)
    x = rng.normal(size=5000).astype(np.float32)
    i = np.arange(len(x))
    for op, of in {"max": np.max, "min": np.min}.items():
        got = mgpu.interval_reduce(x, i - width + 1, i + 1, op)
        np.testing.assert_array_equal(got, [of(x[max(0, j - width + 1) : j + 1]) for j in i])
    exact = np.append(0, np.cumsum(x.astype(np.longdouble)))
    got = mgpu.interval_reduce(x, i - width + 1, i + 1)
    np.testing.assert_allclose(got, exact[i + 1] - exact[np.maximum(i - width + 1, 0)], rtol=1e-4, atol=1e-4)


def test_large_items_cancel_nothing():
    x = np.ones(100, np.float32)
    x[40], x[60] = 1e30, np.inf
    i = np.arange(100)
    got = np.asarray(mgpu.interval_reduce(x, i, i + 5))
    np.testing.assert_array_equal(got[:36], 5)
    np.testing.assert_array_equal(got[41:56], 5)
    np.testing.assert_array_equal(got[61:95], 5)
    narrow = mgpu.interval_reduce(np.ones(5000, jnp.bfloat16), [0, 7], [5000, 4000])
    np.testing.assert_array_equal(narrow, np.array([5000, 3993], np.float32).astype(jnp.bfloat16))


def test_trees_maps_and_types():
    x = {"a": jnp.array([1, 2, 3, 100], jnp.int8), "b": jnp.array([[1.0, 5.0], [2.0, 4.0], [3.0, 3.0], [9.0, 9.0]])}
    starts, ends = [2, 0, 1], jnp.array([4, 3, 1], jnp.uint8)
    got = mgpu.interval_reduce(x, starts, ends, {"a": "add", "b": "mean"})
    np.testing.assert_array_equal(got["a"], [103, 6, 0])
    assert got["a"].dtype == jnp.sum(x["a"]).dtype
    np.testing.assert_array_equal(got["b"], [[6, 6], [2, 4], [np.nan, np.nan]])
    mapped = mgpu.interval_reduce(x["a"], starts, ends, "max", map=lambda a, i: a * i, dtype=jnp.float32)
    np.testing.assert_array_equal(mapped, np.array([300, 6, -np.inf], np.float32))
    assert mgpu.interval_reduce(x["a"], starts, ends, dtype=jnp.int8).dtype == jnp.int8


@pytest.mark.parametrize("op", ["add", "max", "mean", "argmin", "mul"])
def test_nothing(op):
    over_nothing = {"add": 0, "max": -np.inf, "mean": np.nan, "argmin": -1, "mul": 1}[op]
    for x, count in ((jnp.ones(0), None), (jnp.ones((0, 2)), 0), (jnp.ones(5), 0), (jnp.ones(3), None)):
        got = mgpu.interval_reduce(x, [0, 2, 2], [0, 1, -5], op, count=count)
        np.testing.assert_array_equal(got, np.full((3, *x.shape[1:]), over_nothing))
    assert mgpu.interval_reduce(jnp.ones((4, 2)), [], [], op).shape == (0, 2)
    assert mgpu.interval_reduce(jnp.ones((4, 0)), [0], [2], op).shape == (1, 0)
    if op == "add":
        nothing = mgpu.interval_reduce(jnp.ones(0), [0, 1], [1, 1], jnp.add, identity=7.0)
        np.testing.assert_array_equal(nothing, [7, 7])


# ---- Derivatives, batches --------------------------------------------------------------------------------------------


def affine(a, b):
    return a[0] * b[0], a[1] * b[0] + b[1]


@pytest.mark.parametrize("op", ["add", "mean", "max", "mul", "logsumexp", "affine"])
def test_derivatives(op):
    rng = np.random.default_rng(2)
    n, k = 40, 12  # three groups of 16 items; the last is not full
    x, (starts, ends) = rng.normal(size=n), intervals(rng, n, k)
    ends = np.where(np.maximum(starts, 0) < np.minimum(ends, n), ends, starts)
    parts = parts_of(starts, ends, n)
    if op == "affine":

        def ours(x):
            return mgpu.interval_reduce((x, x + 1), starts, ends, affine, identity=(1.0, 0.0))[1]
    else:

        def ours(x):
            return mgpu.interval_reduce(x, starts, ends, op)

    def one(x):
        if op == "affine":
            state = (jnp.ones(()), jnp.zeros(()))
            for item in x:
                state = affine(state, (item, item + 1))
            return state[1]
        functions = {"add": jnp.sum, "mean": jnp.mean, "max": jnp.max, "mul": jnp.prod}
        return functions.get(op, jax.scipy.special.logsumexp)(x)

    full = [i for i, part in enumerate(parts) if len(part)]
    assert full and len(full) < k

    def loss(x):
        return jnp.sin(ours(x)[np.array(full)]).sum()

    got = jax.jit(jax.grad(loss))(x)
    expected = jax.jit(jax.grad(lambda x: sum(jnp.sin(one(x[parts[i]])) for i in full)))(x)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("d", [1, 3])
def test_derivatives_of_windows(d):
    rng = np.random.default_rng(4)
    n, k, count = 700, 900, 650
    x = rng.normal(size=(n, d))
    low = np.sort(rng.integers(-5, n + 5, k))
    moving = np.stack([low, np.maximum.accumulate(low + rng.integers(-2, 40, k))])
    other = np.stack([rng.permutation(low), rng.permutation(moving[1])])
    weights = rng.normal(size=(k, d))

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(None, 0))
    def slope(x, where):
        return jax.grad(lambda x: (mgpu.interval_reduce(x, *where, count=count) * weights).sum())(x)

    for batch in ([moving], [moving, moving], [moving, other]):
        for got, where in zip(slope(x, np.stack(batch)), batch, strict=True):
            expected = np.zeros((n, d))
            for part, weight in zip(parts_of(*where, count), weights, strict=True):
                expected[part] += weight
            np.testing.assert_allclose(got, expected, atol=1e-12)


def test_extrema_differentiate_to_the_first():
    x = jnp.array([1.0, 3.0, 2.0, 3.0, 3.0, 0.0])
    slope = jax.grad(
        lambda x: mgpu.interval_reduce(x, [0, 2, 5, 4], [6, 5, 6, 4], "max") @ jnp.array([1.0, 10, 100, 9])
    )
    np.testing.assert_array_equal(slope(x), [0, 1, 0, 10, 0, 100])


def test_items_in_no_interval_have_a_derivative_of_0():
    x = jnp.full(64, 1e200)
    slope = jax.grad(lambda x: mgpu.interval_reduce(x / 1e200, [0], [2], "mul").sum())(x)
    assert np.isfinite(slope).all()
    slope = jax.grad(lambda x: mgpu.interval_reduce(x, [3, 60], [4, 61], "mul").sum())(x)
    np.testing.assert_array_equal(slope, np.isin(np.arange(64), [3, 60]))


def slopes_of(op, part):
    """Returns the gradient of the combination of a part."""
    if op == "logsumexp":
        return np.exp(part) / np.exp(part).sum()
    return np.prod(part) / part


@pytest.mark.parametrize("op", ["mul", "logsumexp"])
def test_items_outside_of_intervals_reach_no_gradient(op):
    """Infinite items, NaN and zeros lie between intervals, in whole blocks of them, and past the count."""
    rng = np.random.default_rng(8)
    for n, live in ((4, 2), (6, 6), (70, 64), (700, 650)):
        x = rng.uniform(0.9, 1.1, n)
        walls = np.unique([*rng.integers(0, live, n // 60), *range(n // 4, n // 3), live])
        x[walls[walls < n]], x[live:] = rng.choice([0, np.inf, np.nan, 1e300], np.sum(walls < n)), np.nan
        rooms = [(a, b) for a, b in zip(np.append(0, walls[:-1] + 1), walls, strict=True) if a < b]
        chosen = np.array(rooms)[rng.integers(0, len(rooms), 2 * len(rooms))]
        low = rng.integers(chosen[:, 0], chosen[:, 1])
        ends = np.where(chosen[:, 1] == live, n + 9, chosen[:, 1])
        low, high = np.r_[low, chosen[:, 0], 0, live], np.r_[ends, ends, 0, live + 1]

        def loss(x, low, high, live):
            return mgpu.interval_reduce(x, low, high, op, count=live)[: len(low) - 2].sum()

        expected = np.zeros(n)
        for a, b in zip(low[:-2], np.minimum(high[:-2], live), strict=True):
            expected[a:b] += slopes_of(op, x[a:b])
        got = jax.jit(jax.grad(loss))(x, low, high, live)
        np.testing.assert_allclose(got, expected, rtol=1e-9, err_msg=str(n))


@pytest.mark.parametrize("op", ["mul", "logsumexp"])
def test_intervals_that_a_loss_does_not_use_have_no_derivatives(op):
    x = np.array([2, 3, 4, 5.0])
    for bad in (np.inf, np.nan):
        given = np.append(x, [bad, 1])
        slope = jax.jit(jax.grad(lambda x: mgpu.interval_reduce(x, [3, 0, 1], [6, 3, 5], op)[1]))(given)
        np.testing.assert_allclose(slope, np.append(slopes_of(op, x[:3]), [0, 0, 0]), rtol=1e-9)


@pytest.mark.parametrize("mapped", [(0,), (1,), (0, 1, 2), (2, 3)])
def test_batches_over_any_operand(mapped):
    rng = np.random.default_rng(3)
    n, k = 30, 20
    given = [(rng.normal(size=n), *intervals(rng, n, k), np.int32(rng.integers(n // 2, n))) for _ in range(2)]
    operands = [np.stack(pair) if i in mapped else pair[0] for i, pair in enumerate(zip(*given, strict=True))]
    axes = [0 if i in mapped else None for i in range(4)]

    def both(x, s, e, c):
        sums = mgpu.interval_reduce(x, s, e, count=c)
        slope = jax.grad(lambda x: (mgpu.interval_reduce(x, s, e, count=c) ** 2).sum())(x)
        return sums, slope

    got = jax.jit(jax.vmap(both, axes))(*operands)
    alone = jax.jit(both)
    for i in range(2):
        for a, b in zip(got, alone(*(x[i] if j in mapped else x for j, x in enumerate(operands))), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-10)


ERRORS = {
    "ends: expected the length of starts, 2, got int": lambda: mgpu.interval_reduce(jnp.ones(3), [0, 1], [2]),
    "starts: expected integers, got float": lambda: mgpu.interval_reduce(jnp.ones(3), [0.5], [2]),
    "identity: expected the identity of op, for empty intervals, got None": lambda: mgpu.interval_reduce(
        jnp.ones(3), [0], [2], jnp.add
    ),
    "op: expected one of add, sum, mul, prod, min, max, argmin, argmax, mean": lambda: mgpu.interval_reduce(
        jnp.ones(3), [0], [2], "median"
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises((TypeError, ValueError), match=f"^interval_reduce: {re.escape(message)}"):
        ERRORS[message]()


@pytest.mark.parametrize("op", ["add", "max", "argmin"])
@pytest.mark.parametrize("trailing", [(), (3,)], ids=str)
def test_many_intervals(op, trailing):
    rng = np.random.default_rng(5)
    n, k = 9000, 9500
    x = rng.integers(-50, 50, (n, *trailing)).astype(np.int32)
    begins = np.sort(rng.integers(0, n, k))
    moving = [np.stack([begins, np.minimum(begins + w, n)]) for w in (1, 7, 1000, 4200)]
    some_empty = moving[1] - (np.arange(k) % 5 == 0) * np.array([[0], [9]])
    random = np.sort(rng.integers(0, n + 1, (2, k)), axis=0)
    call = jax.jit(lambda x, low, high: mgpu.interval_reduce(x, low, high, op))
    for low, high in (*moving, some_empty, random, random[:, ::-1]):
        got = np.asarray(call(x, low.astype(np.int32), high.astype(np.int32)))
        for i in (*range(0, k, 97), k - 1):
            part = x[low[i] : max(low[i], high[i])]
            if op == "argmin":
                expected = low[i] + part.argmin(0) if len(part) else np.full(trailing, -1)
            else:
                nothing = 0 if op == "add" else np.iinfo(np.int32).min
                expected = part.sum(0) if op == "add" else part.max(0, initial=nothing)
            np.testing.assert_array_equal(got[i], expected)


def test_batches_over_one_array_and_over_windows():
    rng = np.random.default_rng(6)
    x, low = rng.normal(size=(3, 500)).astype(np.float32), np.sort(rng.integers(0, 400, (3, 60)), axis=1)
    high = low + rng.integers(0, 100, (3, 60))

    def run(x, low, high):
        return mgpu.interval_reduce(x, low, high, "max")

    def expected_of(x, low, high):
        return [x[a:b].max(initial=-np.inf) for a, b in zip(low, high, strict=True)]

    expected = np.stack([[expected_of(row, *windows) for windows in zip(low, high, strict=True)] for row in x])
    of_one = jax.jit(jax.vmap(run, (None, 0, 0)))(x[0], low, high)
    np.testing.assert_array_equal(of_one, expected[0])
    np.testing.assert_array_equal(jax.jit(jax.vmap(run))(x, low, high), expected[np.arange(3), np.arange(3)])
    np.testing.assert_array_equal(jax.jit(jax.vmap(run, (0, None, None)))(x, low[0], high[0]), expected[:, 0])


# ---- Shapes of the kernels on CUDA -----------------------------------------------------------------------------------


def test_one_kernel_with_little_scratch_memory():
    n = 1 << 24
    x, i = jax.ShapeDtypeStruct((n,), np.float32), jax.ShapeDtypeStruct((n,), np.int32)
    for op in ("add", "max", "mean"):
        call, *rest = kernel_calls(lambda *x, op=op: mgpu.interval_reduce(*x, op), x, i, i)
        assert call.primitive.name == "mgpu_interval_reduce"
        assert [other.primitive.name for other in rest] == ["mgpu_divide"] * (op == "mean")
        assert scratch_bytes(call) <= 4 * n // 14
    if mgpu.has_cuda():
        text = jax.jit(mgpu.interval_reduce).trace(x, i, i).lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("@jax_mgpu.interval_reduce(") == 1


@pytest.mark.parametrize("op", ["add", "max", "argmin", "mul"])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "int64"])
def test_around_the_edges_of_tiles(op, dtype):
    group, groups, intervals, room = sorted(cpu_library.tile_sizes()["interval_reduce"])
    rng = np.random.default_rng(7)
    n = 3 * room
    values = np.array([1, -1] if dtype.startswith("float") else [1, 3]) if op == "mul" else np.arange(1, 100)
    x = rng.choice(values, n).astype(dtype)
    of_part = {"add": np.sum, "max": functools.partial(np.max, initial=0), "mul": np.prod, "argmin": np.argmin}[op]
    call = jax.jit(lambda x, low, high: mgpu.interval_reduce(x, low, high, op, dtype=None if op == "argmin" else dtype))
    most = 2 * intervals + 1
    for begin in (0, group - 1, groups, groups + group + 1):
        for span in (room // 4, room // 2, room, room - begin % groups, room - begin % groups + 1, group, groups + 1):
            low = np.sort(rng.integers(begin, begin + span, most))
            high = np.minimum(low + rng.integers(0, span, most), begin + span)
            low[0], high[0] = begin, begin + span
            got = np.asarray(call(x, low.astype(np.int32), high.astype(np.int32)))
            for i in (0, 1, *rng.integers(0, most, 60)):
                part = x[low[i] : high[i]]
                if len(part):
                    expected = of_part(part) + (low[i] if op == "argmin" else 0)
                    np.testing.assert_array_equal(got[i], np.asarray(expected).astype(got.dtype))


def test_a_sum_depends_on_its_interval_alone():
    rng = np.random.default_rng(8)
    n = 20_000
    x = rng.normal(size=n).astype(np.float32)
    low = np.arange(n, dtype=np.int32)
    order = rng.permutation(n)
    call = jax.jit(mgpu.interval_reduce)
    for width in (5, 16, 17, 40, 300, 1500, 5000):
        high = low + width
        in_order, others = np.asarray(call(x, low, high)), np.asarray(call(x, low[order], high[order]))
        if jax.default_backend() == "gpu":
            same_bits(in_order[order], others)
        else:
            np.testing.assert_allclose(in_order[order], others, atol=1e-3)


@pytest.mark.parametrize("op", ["add", "mean", "mul", "max", "logsumexp", "function"])
def test_gradients_of_each_device_are_its_own(op, devices):
    mesh = jax.make_mesh((2,), ("d",), devices=devices[:2], axis_types=(jax.sharding.AxisType.Auto,))
    rng = np.random.default_rng(9)
    n, k = 20, 6
    x, cotangents = rng.normal(size=(2, n)), rng.normal(size=(2, k))
    given = {"op": lambda a, b: a + b, "identity": 0.0} if op == "function" else {"op": op}

    def gradient(x, starts, ends, cotangent):
        return jax.vjp(lambda x: mgpu.interval_reduce(x, starts, ends, **given), x)[1](cotangent)[0]

    def of_device(*operands):
        return gradient(*(x[0] for x in operands))[None]

    of_each = jax.jit(jax.shard_map(of_device, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d")))
    starts = rng.integers(0, n - 5, (2, k)).astype(np.int32)
    for low in (starts, np.sort(starts)):
        operands = x, low, low + np.int32(5), cotangents
        expected = np.stack([jax.jit(gradient)(*(y[i] for y in operands)) for i in range(2)])
        np.testing.assert_allclose(of_each(*operands), expected, rtol=1e-12)
