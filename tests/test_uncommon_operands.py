"""Uncommon callables, arrays, settings and items."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import scipy.special
from jax.sharding import PartitionSpec as P

import jax_mgpu as mgpu
from jax_mgpu._src.functions import custom_operator

X = np.array([3, 1, 2], np.int32)


class Sum(NamedTuple):
    """A callable that allows no weak references."""

    factor: int = 1

    def __call__(self, a, b):
        return a + b


# Operations that use absent heads or counts, or pass them on, outside of their kernels.
LOOPED = {
    "mergesort": lambda x: mgpu.mergesort(x, less=lambda a, b: a < b),
    "segmented_sort": lambda x: mgpu.segmented_sort(x, np.array([0, 2]), less=lambda a, b: a < b),
    "rank": mgpu.rank,
    "run_starts": lambda x: mgpu.run_starts(x, least=2).starts,
    "scan": lambda x: mgpu.scan(x, lambda a, b: a + b),
}


def test_callables_without_weak_references() -> None:
    for _ in range(3):
        np.testing.assert_array_equal(mgpu.scan(X, Sum()), [3, 4, 6])
        with pytest.raises(TypeError, match="reduce: op: expected a function of two items"):
            mgpu.reduce(X, np.maximum)


def test_functions_that_give_constants() -> None:
    total, true = mgpu.reduce((X, X > 0), lambda a, b: (a[0] + b[0], True))
    assert (int(total), bool(true)) == (6, True)
    np.testing.assert_array_equal(mgpu.scan(X.astype(np.float32), lambda a, b: 1.0), [3, 1, 1])


def test_settings_that_print_alike() -> None:
    nothing, x = np.array([False]), np.zeros(1, np.float32)
    for fill in (0.100098, ml_dtypes.bfloat16(0.1), ml_dtypes.float8_e4m3fn(0.1), 0.101562):
        assert float(mgpu.select(x, nothing, fill_value=fill).values[0]) == np.float32(fill)


@pytest.mark.parametrize("dtype", [">i4", ">f4", ">u2"])
def test_arrays_of_other_byte_order(dtype) -> None:
    values = mgpu.sort(X.astype(dtype), np.array([1, 2, 3], ">i4"))
    np.testing.assert_array_equal(values[0], [1, 2, 3])
    np.testing.assert_array_equal(values[1], [2, 3, 1])
    np.testing.assert_array_equal(mgpu.segmented_reduce(X, np.array([0, 1], ">i4")), [3, 3])


def test_arrays_that_are_refused() -> None:
    with pytest.raises(TypeError, match="sort: keys: expected an array without a mask, got MaskedArray"):
        mgpu.sort(np.ma.array([3, 99, 2], mask=[0, 1, 0]))
    with pytest.raises(TypeError, match=r"sort: keys: expected an array of numbers, got (long|float)"):
        mgpu.sort(X.astype(np.longdouble))
    keys = jax.random.split(jax.random.key(0), 3)
    with pytest.raises(TypeError, match="select: fill_value: expected a number, which fills each word of random keys"):
        mgpu.select(keys, X > 9, fill_value=keys[0])
    with pytest.raises(ValueError, match="join_columns: a_columns: expected arrays with one leading axis, got"):
        mgpu.join_columns(mgpu.join(X, X, size=3), [10, 20])


def test_rank_promotion() -> None:
    heads, x = np.array([0, 1]), X.astype(np.float32)
    with jax.numpy_rank_promotion("raise"):
        np.testing.assert_array_equal(mgpu.top_k(X, 2).values, [3, 2])
        np.testing.assert_array_equal(mgpu.segmented_top_k(X, heads, 1).values, [[3], [2]])
        np.testing.assert_array_equal(mgpu.to_dense(X, heads, 2), [[3, 0], [1, 2]])
        assert float(mgpu.quantile(x, 0.5)) == 2
        np.testing.assert_array_equal(mgpu.segmented_quantile(x, heads, np.float32([0.0, 1.0])), [[3, 1], [3, 2]])
        np.testing.assert_array_equal(mgpu.group_by(X % 2, X, "median", size=2)[1], [2, 2])


def test_tolerances_from_zero_on() -> None:
    times = np.array([5, 10], np.int32), np.array([1, 5], np.int32)
    # The tolerance counts as 0, not as 2^32 - 1.
    np.testing.assert_array_equal(mgpu.asof_join(*times, tolerance=-1), [1, -1])
    with mgpu.checks(), pytest.raises(jax.errors.JaxRuntimeError, match="tolerance: expected a number of at least 0"):
        jax.block_until_ready(mgpu.asof_join(*times, tolerance=-1))


def test_offsets_are_indices() -> None:
    with jax.enable_x64(True):
        rows = mgpu.Ragged.from_rows([[3, 1], [], [2, 2]])
        assert rows.offsets.dtype == mgpu.Ragged(rows.values, [0, 1, 4]).offsets.dtype == np.int32
        last, _ = jax.lax.scan(lambda carry, _: (carry.select(carry > 1), None), rows, None, length=2)
        assert [row.tolist() for row in last.to_rows()] == [[3], [], [2, 2]]


def test_rows_of_lists_and_arrays() -> None:
    for rows in ([np.array([1.0, 2.0], np.float32), [3.0]], [[jnp.float32(1), 2.0], [3.0]], [[3.0], np.float32([4])]):
        made = mgpu.Ragged.from_rows(rows)
        assert made.values.dtype == np.float32
        assert [row.tolist() for row in made.to_rows()] == [np.asarray(row).tolist() for row in rows]
    with pytest.raises(
        ValueError, match=r"Ragged.from_rows: rows: expected an array or a pytree of arrays, of numbers"
    ):
        mgpu.Ragged.from_rows([None])
    with pytest.raises(ValueError, match=r"Ragged\.from_lengths: values: expected arrays with a leading axis"):
        mgpu.Ragged.from_lengths(1, [1, 2])


# ---- Derivatives -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["plain", "primitives"])
def way(request, monkeypatch):
    """Runs a test twice: with functions in plain JAX, and as primitives."""
    monkeypatch.setattr(custom_operator, "has_kernels", lambda: request.param == "primitives")


@jax.custom_jvp
def tripled(x):
    return x + 0


@jax.custom_vjp
def halved(x):
    return x + 0


tripled.defjvp(lambda primals, tangents: (tripled(*primals), 3 * tangents[0]))
halved.defvjp(lambda x: (halved(x), None), lambda _, cotangent: (0.5 * cotangent,))


@pytest.mark.usefixtures("way")
def test_functions_of_the_same_values_and_other_derivatives() -> None:
    x = jnp.arange(1.0, 5)
    maps = {
        "plain": (lambda v: v * v, [2, 4, 6, 8]),
        "stopped": (lambda v: v * jax.lax.stop_gradient(v), [1, 2, 3, 4]),
        "tripled": (lambda v: v * tripled(v), [4, 8, 12, 16]),
        "halved": (lambda v: v * halved(v), [1.5, 3, 4.5, 6]),
    }
    for function, expected in maps.values():
        gradient = jax.grad(lambda x, function=function: mgpu.reduce(x, "add", map=function))(x)
        np.testing.assert_allclose(gradient, expected)
    assert jax.grad(lambda x: mgpu.reduce(x, lambda a, b: a + b))(x).tolist() == [1, 1, 1, 1]
    assert jax.grad(lambda x: mgpu.reduce(x, lambda a, b: jax.lax.stop_gradient(a) + b))(x).tolist() == [0, 0, 0, 1]


@pytest.mark.usefixtures("way")
def test_a_function_with_rules_is_one_function() -> None:
    """Traced again, a function with derivative rules of its own is the same function, so nothing is compiled again."""

    def program():
        return jax.make_jaxpr(lambda x: mgpu.reduce(x, "add", map=lambda v: jax.nn.relu(v) + 7))(jnp.ones(3))

    functions = {equation.params.get("function") for _ in range(3) for equation in program().eqns}
    assert len(functions - {None}) <= 1


@pytest.mark.usefixtures("way")
@pytest.mark.filterwarnings("ignore:jax_mgpu. reduce. op or map. runs in plain JAX")  # functions with rules do so
def test_functions_within_shard_map(devices) -> None:
    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices)
    x = jnp.arange(2.0 * len(devices)) - 2
    for function in (lambda v: jax.nn.relu(v) * v, lambda v: jax.lax.stop_gradient(v) * v, lambda v: v * v):

        def local(x, function=function):
            return mgpu.reduce(x, "add", map=function)[None]

        over = jax.shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
        expected = jax.grad(lambda x, function=function: jax.vmap(function)(x).sum())(x)
        for run in (lambda f: f, jax.jit):
            np.testing.assert_allclose(run(jax.grad(lambda x, over=over: over(x).sum()))(x), expected)


def test_operations_within_shard_map_outside_of_jit(devices) -> None:
    """Absent operands are empty; as arguments, they would crash the compiler of jaxlib 0.11."""
    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices)
    x = jnp.arange(6.0 * len(devices)) % 4 - 1
    heads = jnp.array([0, 2])
    calls = {
        "scan": mgpu.scan,
        "sort": lambda x: mgpu.sort(x, -x),
        "segmented_reduce": lambda x: mgpu.segmented_reduce(x, heads, "mul"),
        "batch": lambda x: jax.vmap(lambda x: mgpu.segmented_scan(x, heads, "max"))(x.reshape(2, 3)),
        "reduce_by_key": lambda x: mgpu.reduce_by_key(x, x, size=3)[:2],
        "derivative": jax.grad(lambda x: mgpu.segmented_reduce(x * x, heads, "mul").sum()),
    }
    for name, call in calls.items():
        over = jax.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
        expected = [call(part) for part in jnp.split(x, len(devices))]
        together = jax.tree.map(lambda *parts: np.concatenate(parts), *expected)
        jax.tree.map(lambda a, b, name=name: np.testing.assert_array_equal(a, b, name), over(x), together)


@pytest.mark.parametrize("call", LOOPED.values(), ids=LOOPED)
@pytest.mark.usefixtures("way")
def test_loops_within_shard_map_carry_no_absent_operands(call, devices) -> None:
    """If an absent operand became a constant of the loop, the compiler of jaxlib 0.11 would crash."""

    def local(x):
        return jax.lax.fori_loop(0, 2, lambda _, y: call(y), x)

    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices)
    over = jax.shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    x = np.arange(6 * len(devices), dtype=np.int32) % 4
    program = jax.make_jaxpr(over)(x)
    assert all(np.size(constant) for constant in program.consts)
    expected = [call(call(part)) for part in np.split(x, len(devices))]
    np.testing.assert_array_equal(jax.jit(over)(x), np.concatenate(expected))


def parallel(a, b):
    return 1 / (1 / a + 1 / b)


def hypotenuse(a, b):
    return jnp.sqrt(a * a + b * b)


def logaddexp(a, b):
    return jnp.log(jnp.exp(a) + jnp.exp(b))


def product(a, b):
    return a * b


@pytest.mark.usefixtures("way")
def test_what_is_not_combined_has_no_derivative() -> None:
    dead = jnp.array([3.0, 4, 0, 0])
    assert jax.grad(lambda s: mgpu.reduce(s * dead, parallel, count=2, identity=jnp.inf))(2.0) == pytest.approx(12 / 7)
    ragged = jax.grad(lambda s: mgpu.Ragged(s * dead, jnp.array([0, 2])).reduce(hypotenuse, identity=0.0).sum())(2.0)
    assert ragged == pytest.approx(5)
    alone = jnp.array([100.0, 1, 2])
    for reverse in (False, True):
        gradient = jax.grad(lambda y, r=reverse: mgpu.segmented_scan(y, jnp.array([0, 1]), logaddexp, reverse=r).sum())
        share = 1 / (1 + np.exp(-1 if reverse else 1))
        expected = [1, 1 - share, 1 + share] if reverse else [1, 1 + share, 1 - share]
        np.testing.assert_allclose(gradient(alone), expected, rtol=1e-5)
    foreign = jnp.array([jnp.nan, 1, 2, 3])
    gradient = jax.grad(lambda z: mgpu.segmented_scan(z, jnp.array([0, 2]), product)[2:].sum())(foreign)
    np.testing.assert_array_equal(gradient[2:], [4, 2])
    infinite = jnp.array([1.0, 2, 3, jnp.inf, jnp.inf])
    gradient = jax.grad(lambda x: mgpu.reduce(x, product, count=3, identity=1.0))(infinite)
    np.testing.assert_array_equal(gradient, [6, 3, 2, 0, 0])


LOGSUMEXPS = {
    "reduce": lambda x, n: mgpu.reduce(x, "logsumexp", count=n),
    "segmented_reduce": lambda x, n: mgpu.segmented_reduce(x, jnp.array([0]), "logsumexp", count=n)[0],
    "reduce_by_id": lambda x, n: mgpu.reduce_by_id(x, jnp.zeros(x.shape, int), 1, "logsumexp", count=n)[0],
    "scan": lambda x, n: mgpu.scan(x, "logsumexp", count=n)[n - 1],
}


@pytest.mark.parametrize("way_to_sum", LOGSUMEXPS)
def test_logsumexp_of_dead_items(way_to_sum) -> None:
    for padding in (1000.0, np.inf, np.nan):
        x = jnp.array([1, 2, padding, padding])
        gradient = jax.grad(lambda x: LOGSUMEXPS[way_to_sum](x, 2))(x)
        np.testing.assert_allclose(gradient, [*scipy.special.softmax([1, 2]), 0, 0], rtol=1e-6)


@pytest.mark.parametrize("way_to_sum", ["reduce", "segmented_reduce", "reduce_by_id"])
def test_logsumexp_of_large_items(way_to_sum) -> None:
    def gradient(x):
        x = jnp.array(x, jnp.float32)
        return jax.grad(lambda x: LOGSUMEXPS[way_to_sum](x, len(x)))(x)

    for size in (1e3, 1e5, 1e6, 1e7):
        np.testing.assert_allclose(gradient([-size] * 3), [1 / 3] * 3, rtol=1e-6)
    np.testing.assert_array_equal(gradient([1e30, 1e30, 1]), [0.5, 0.5, 0])
    np.testing.assert_array_equal(gradient([np.inf, 1, 2]), [np.nan, 0, 0])
    np.testing.assert_array_equal(gradient([np.nan, 1, 2]), [np.nan] * 3)
    np.testing.assert_array_equal(gradient([-np.inf] * 2), [0, 0])


def test_second_derivatives_of_logsumexp() -> None:
    x = jnp.array([1.0, 2, -1])
    expected = jax.hessian(jax.scipy.special.logsumexp)(x)
    np.testing.assert_allclose(jax.hessian(lambda x: mgpu.reduce(x, "logsumexp"))(x), expected, atol=1e-6)


GAPS = {
    "mul": ("mul", None, jnp.prod, jnp.cumprod),
    "logsumexp": ("logsumexp", None, jax.nn.logsumexp, jax.lax.cumlogsumexp),
    "a function": (lambda a, b: a * b, None, jnp.prod, jnp.cumprod),
    "a map": ("add", jnp.sqrt, lambda x: jnp.sqrt(x).sum(), lambda x: jnp.cumsum(jnp.sqrt(x))),
    "a map for a function": (lambda a, b: a * b, jnp.sqrt, lambda x: jnp.sqrt(x).prod(), lambda x: jnp.cumprod(x**0.5)),
}


@pytest.mark.parametrize("name", GAPS)
def test_derivatives_where_items_of_no_segment_are_infinite(name) -> None:
    op, item_map, reduced, scanned = GAPS[name]
    x = np.array([0, 2, 3, np.inf, 2, 0, 4, 5, np.nan, np.inf], np.float32)
    heads, ends, identity = np.array([1, 6]), np.array([3, 8]), {"identity": 1.0} if callable(op) else {}
    inside = np.array([1, 2, 6, 7])

    def pairs(x):
        return x[1:3], x[6:8]

    def reduce(x):
        return mgpu.segmented_reduce(x, heads, op, ends=ends, map=item_map, **identity)

    def scan(x):
        return mgpu.segmented_scan(x, heads, op, ends=ends, map=item_map)[inside]

    for ours, by_slices in (
        (reduce, lambda x: jnp.stack([reduced(part) for part in pairs(x)])),
        (scan, lambda x: jnp.concatenate([scanned(part) for part in pairs(x)])),
    ):
        expected = jax.jacrev(by_slices)(x)
        for derivative in (jax.jacrev, jax.jacfwd):
            np.testing.assert_allclose(jax.jit(derivative(ours))(x), expected, rtol=1e-6)
        of_rows = jax.jit(jax.vmap(jax.jacrev(ours)))(np.stack([x, x[::-1]]))
        np.testing.assert_allclose(of_rows[0], expected, rtol=1e-6)

    x, heads = np.array([np.inf, 0, np.nan, 2, 3, 4, np.inf], np.float32), np.array([3, 5])
    expected = jax.jacrev(lambda x: jnp.stack([reduced(x[3:5]), reduced(x[5:6])]))(x)
    for derivative in (jax.jacrev, jax.jacfwd):
        of_heads = derivative(lambda x: mgpu.segmented_reduce(x, heads, op, count=6, map=item_map, **identity))(x)
        np.testing.assert_allclose(of_heads, expected, rtol=1e-6)
