"""`take`, and transposes of gathers."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from tests import mesh
from tests.families import EXAMPLES
from tests.transformed import batch_of, differentiable_cases, loss_of

NARROW_AND_WIDE = ["bfloat16", "float16", "float32"]
MANY = 1000


def adding_scatters(function, *arguments):
    """Returns a program's scatters that add floats at places that may repeat."""
    text = jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",)).as_text()
    found = []
    for part in text.split('"stablehlo.scatter"')[1:]:
        body = part[: part.index("stablehlo.return")]
        if re.search(r"stablehlo.add .*tensor<b?f\d+>", body) and "unique_indices = true" not in body:
            found.append(body)
    return found


def joined(n):
    rows = jnp.zeros(n, jnp.int32)
    return mgpu.JoinResult(rows, rows, jnp.int32(n))


ZEROS, FALLING = np.zeros(MANY, np.int32), -np.arange(MANY, dtype=np.float32)


@pytest.mark.filterwarnings("ignore:jax_mgpu runs without its kernels")
def test_adding_scatters_are_found():
    assert adding_scatters(jax.grad(lambda x: x[ZEROS].sum()), jnp.arange(4.0))
    assert not adding_scatters(lambda x: x.at[ZEROS].add(1), jnp.arange(4))


# These functions read a table of 4 rows; the derivative of the first row is MANY.
REPEATED = {
    "lookup": lambda t: mgpu.lookup(ZEROS, jnp.arange(4), t),
    "lookup, default": lambda t: mgpu.lookup(ZEROS + 9, jnp.arange(4), t, default=t[0]),
    "lookup, floats as keys": lambda t: mgpu.lookup(ZEROS.astype(np.float32), jnp.arange(4.0), t),
    "lookup, rows": lambda t: mgpu.lookup(ZEROS, jnp.arange(4), t[:, None] * jnp.ones((1, 3), t.dtype))[:, 1],
    "join_columns, a": lambda t: mgpu.join_columns(joined(MANY), t)[0],
    "join_columns, b": lambda t: mgpu.join_columns(joined(MANY), None, {"t": t})[1]["t"],
    "quantile": lambda t: mgpu.quantile(t, ZEROS.astype(np.float32)),
    "segmented_quantile": lambda t: mgpu.segmented_quantile(t, jnp.array([0]), ZEROS.astype(np.float32)),
    "scan, min": lambda t: mgpu.scan(jnp.append(t, jnp.full(MANY - 4, 9, t.dtype)), "min"),
    "segmented_scan, max": lambda t: mgpu.segmented_scan(
        jnp.append(t * 0 + t[0], jnp.full(MANY - 4, -9, t.dtype)), jnp.array([0]), "max"
    ),
    "reduce_by_id": lambda t: jax.grad(lambda x: (mgpu.reduce_by_id(x, ZEROS, 4) * t).sum())(t[:1].repeat(MANY) * 0),
    "reduce, max": lambda t: mgpu.reduce(-t, "max")[None] * -MANY,
    "segmented_reduce, min": lambda t: mgpu.segmented_reduce(t, jnp.array([0, 0, 4]), "min") * MANY,
    "segmented_reduce, rows": lambda t: mgpu.segmented_reduce(t[:, None], jnp.array([0, 4]), "min") * MANY,
    "segmented_reduce, a function": lambda t: (
        mgpu.segmented_reduce(t, jnp.array([0, 0, 4, 4]), jnp.minimum, identity=jnp.asarray(jnp.inf, t.dtype)) * MANY
    ),
    "top_k": lambda t: mgpu.top_k(t, 4, largest=False).values[:1] * MANY,
}


@pytest.mark.filterwarnings("ignore:jax_mgpu runs without its kernels")
@pytest.mark.parametrize("dtype", NARROW_AND_WIDE)
@pytest.mark.parametrize("call", REPEATED.values(), ids=REPEATED)
def test_derivatives_add_without_loss(call, dtype):
    table = jnp.arange(4, dtype=dtype)

    def loss(t):
        results = call(t)
        return jnp.where(jnp.abs(results) < jnp.inf, results, 0).astype(jnp.float32).sum()

    gradient = jax.jit(jax.grad(loss))
    assert gradient(table).dtype == dtype
    np.testing.assert_array_equal(np.asarray(gradient(table), np.float32), [MANY, 0, 0, 0])
    assert not adding_scatters(gradient, table)
    tables = jnp.stack([table, table])
    batch = jax.jit(jax.vmap(jax.grad(loss)))(tables)
    np.testing.assert_array_equal(np.asarray(batch, np.float32), [[MANY, 0, 0, 0]] * 2)


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "float32", "complex64", "float8_e5m2"])
def test_rows_by_index_to_the_bit(dtype, rng):
    x = rng.integers(0, 256, (7, 3, jnp.dtype(dtype).itemsize), np.uint8).view(jnp.dtype(dtype)).reshape(7, 3)
    x = (x.view(np.uint8) % 2).view(bool) if dtype == "bool" else x
    indices = np.array([[6, 0, -1], [7, 2, 2]], np.int8)
    for fill in (None, 1):
        expected = np.where(((indices >= 0) & (indices < 7))[..., None], x[indices % 7], x.dtype.type(fill or 0))
        for call in (mgpu.take, jax.jit(mgpu.take)):
            got = jax.device_get(call(x, indices, fill_value=fill))
            assert got.dtype == x.dtype
            assert got.tobytes() == expected.astype(x.dtype).tobytes()


def test_structures_and_shapes():
    x = {"a": jnp.arange(3), "keys": jax.random.split(jax.random.key(0), 3)}
    got = mgpu.take(x, np.array([2, 2**40, -5]))
    np.testing.assert_array_equal(got["a"], [2, 0, 0])
    np.testing.assert_array_equal(jax.random.key_data(got["keys"])[:2], [jax.random.key_data(x["keys"][2]), [0, 0]])
    assert mgpu.take(jnp.arange(3.0), 2) == 2
    assert mgpu.take(jnp.arange(3.0), 3, fill_value=7) == 7
    assert mgpu.take(jnp.arange(3), []).shape == (0,)
    np.testing.assert_array_equal(mgpu.take(jnp.zeros((0, 2)), [0, -1], fill_value=5), np.full((2, 2), 5))
    for wrong, message in [
        (lambda: mgpu.take([], [0]), "take: x: expected an array or a pytree of arrays, with a leading axis"),
        (lambda: mgpu.take(jnp.arange(3), [0.5]), "take: indices: expected integers"),
        (lambda: mgpu.take((jnp.arange(3), jnp.arange(2)), [0]), "take: x: expected arrays with the leading axis"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            wrong()


def reference(x, indices, cotangent):
    """Returns the gradient in float64: each row of x gets the sum of the cotangents of rows taken from it."""
    gradient = np.zeros(x.shape)
    inside = (indices >= 0) & (indices < len(x))
    np.add.at(gradient, indices[inside], np.asarray(cotangent, np.float64)[inside])
    return gradient


@pytest.mark.parametrize("dtype", [*NARROW_AND_WIDE, "complex64", "float8_e4m3fn"])
def test_gradient_of_repeated_rows(dtype, rng):
    x = jnp.asarray(rng.integers(-4, 5, (5, 3)), dtype)
    indices = rng.integers(-2, 7, (300, 2))
    cotangent = jnp.asarray(rng.integers(0, 2, (300, 2, 3)), dtype)
    gradient = jax.jit(lambda x, ct: jax.vjp(lambda x: mgpu.take(x, indices), x)[1](ct)[0])
    expected = reference(x, indices, np.asarray(cotangent).real.astype(np.float32))
    np.testing.assert_array_equal(gradient(x, cotangent), jnp.asarray(expected, dtype))
    both = jax.jit(lambda ct, dct: jax.vjp(lambda ct: gradient(x, ct), ct)[1](dct)[0])
    again = both(cotangent, x)
    np.testing.assert_array_equal(again, mgpu.take(x, indices))


def test_special_values_stay_in_their_rows():
    cotangent = jnp.array([jnp.inf, -jnp.inf, jnp.nan, -0.0, 3, 1, jnp.inf])
    indices = jnp.array([0, 0, 1, 2, 3, 3, -1])
    gradient = jax.vjp(lambda x: mgpu.take(x, indices), jnp.zeros(5))[1](cotangent)[0]
    np.testing.assert_array_equal(gradient, [np.nan, np.nan, 0, 4, 0])


@pytest.mark.parametrize("dtype", NARROW_AND_WIDE)
def test_any_order_and_batches(dtype, rng):
    x = jnp.asarray(rng.integers(-3, 4, (2, 4)), dtype)
    indices = rng.integers(-1, 5, (2, 40))

    def loss(x, indices):
        return (mgpu.take(x, indices) ** 3).astype(jnp.float32).sum()

    def expected(x, indices, power):
        x64 = np.asarray(x, np.float64)
        derivative = {1: 3 * x64**2, 2: 6 * x64}[power]
        return derivative * np.bincount(indices[indices >= 0], minlength=5)[:4]

    def second(x, indices):
        return jax.grad(lambda x: jax.grad(loss)(x, indices).astype(jnp.float32).sum())(x)

    for function, power in ((jax.grad(loss), 1), (second, 2)):
        rows = [expected(a, b, power) for a, b in zip(x, indices, strict=True)]
        np.testing.assert_array_equal(jax.jit(jax.vmap(function))(x, indices), jnp.asarray(np.stack(rows), dtype))
        shared = [expected(x[0], b, power) for b in indices]
        got = jax.jit(jax.vmap(function, in_axes=(None, 0)))(x[0], indices)
        np.testing.assert_array_equal(got, jnp.asarray(np.stack(shared), dtype))
        alone = [expected(a, indices[0], power) for a in x]
        got = jax.jit(jax.vmap(function, in_axes=(0, None)))(x, indices[0])
        np.testing.assert_array_equal(got, jnp.asarray(np.stack(alone), dtype))


KEYS = jnp.asarray(np.random.default_rng(5).permuted(np.tile(np.arange(3, dtype=np.float32), (MANY, 1)), axis=1))
SHARED = {
    "mergesort": lambda v: jax.vmap(lambda k: mgpu.mergesort(k, v)[1])(KEYS),
    "sort, rows": lambda v: jax.vmap(lambda k: mgpu.sort(k, jnp.stack([v, v], 1))[1][:, 1])(KEYS),
    "merge": lambda v: jax.vmap(lambda k: mgpu.merge(jnp.sort(k), k[:0], v, v[:0])[1])(KEYS),
    "reduce_by_id": lambda v: jax.vmap(lambda i: mgpu.reduce_by_id(v, i, 3, "max"))(KEYS.astype(jnp.int32)),
    "reduce_by_id, rows": lambda v: jax.vmap(lambda i: mgpu.reduce_by_id(jnp.stack([v, 2 * v], 1), i, 3, "max")[:, 0])(
        KEYS.astype(jnp.int32)
    ),
}


@pytest.mark.filterwarnings("ignore:jax_mgpu runs without its kernels")
@pytest.mark.parametrize("call", SHARED.values(), ids=SHARED)
def test_a_batch_of_permutations_of_one_array(call):
    """No problem of the batch moves a row twice, but the batch as a whole does."""
    values = jnp.arange(3, dtype=jnp.bfloat16)
    gradient = jax.jit(jax.grad(lambda v: call(v).astype(jnp.float32).sum()))
    np.testing.assert_array_equal(np.asarray(gradient(values), np.float32), [MANY] * 3)
    assert not adding_scatters(gradient, values)


@pytest.mark.parametrize("call", [
    lambda x, fill: mgpu.select(x, x < 0, fill_value=fill)[0],
    lambda x, fill: mgpu.bulk_remove(x, jnp.arange(MANY), size=MANY, fill_value=fill),
    lambda x, fill: mgpu.bulk_insert(x, jnp.zeros(0, int), x[:0], size=2 * MANY, fill_value=fill),
    lambda x, fill: mgpu.interval_expand(x, jnp.arange(MANY), MANY, total=0, fill_value=fill),
    lambda x, fill: mgpu.take(x, jnp.full(MANY, -1), fill_value=fill),
])  # fmt: skip
def test_gradient_of_a_fill_value(call):
    x = jnp.ones(MANY, jnp.bfloat16)
    gradient = jax.jit(jax.grad(lambda fill: call(x, fill).astype(jnp.float32).sum()))(jnp.ones((), jnp.bfloat16))
    assert gradient == MANY


def test_a_batch_of_indices_adds_into_one_table():
    table, indices = jnp.zeros(3, jnp.bfloat16), jnp.zeros((1000, 1), int)
    total = jax.jit(jax.grad(lambda t: jax.vmap(mgpu.take, in_axes=(None, 0))(t, indices).astype(jnp.float32).sum()))
    np.testing.assert_array_equal(total(table), jnp.array([1000, 0, 0], jnp.bfloat16))
    assert "1000,3]" not in str(jax.make_jaxpr(total)(table))


@pytest.mark.parametrize("dtype", NARROW_AND_WIDE)
def test_rows_fetched_over_a_mesh_axis_add_without_loss(dtype):
    def local(table):
        columns = mgpu.join_columns(joined(MANY), table, axis_name=mesh.AXIS, a_count=1)[0]
        return columns, mgpu.quantile(table, ZEROS.astype(np.float32), axis_name=mesh.AXIS)

    call = mesh.by_devices(local, 4)
    table = jnp.arange(4, dtype=dtype)[:, None]
    for part in (0, 1):
        gradient = jax.jit(jax.grad(lambda t, part=part: call(t)[part].astype(jnp.float32).sum()))(table)
        np.testing.assert_array_equal(np.asarray(gradient, np.float32).ravel(), [4 * MANY, 0, 0, 0])


def test_reduce_by_id_differentiates_in_any_order(rng):
    ids = rng.integers(-1, 4, 12)
    with jax.enable_x64(True):
        x = jnp.asarray(rng.normal(size=12))
        check_grads(jax.jit(lambda x: mgpu.reduce_by_id(x, ids, 3) ** 3), (x,), order=3, modes=["fwd", "rev"])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:jax_mgpu runs without its kernels")
@differentiable_cases(EXAMPLES)
def test_no_gradient_adds_by_scatters(example, rng):
    loss, places, arguments = loss_of(example), example.differentiable, example.make(rng, np.float32)
    gradient = jax.grad(loss, argnums=places)
    batch = batch_of(example, rng, 2)
    own = tuple(None if i in places else 0 for i in range(len(arguments)))
    shared = tuple(x if axis is None else y for x, y, axis in zip(arguments, batch, own, strict=True))

    def of_shared(*xs):
        return jax.vmap(loss, in_axes=own)(*xs).sum()

    def squares(*xs):
        return sum((x**2).sum() for x in gradient(*xs))

    assert not adding_scatters(jax.vmap(gradient), *batch)
    assert not adding_scatters(jax.grad(squares, argnums=places), *arguments)
    if 0 in own:
        assert not adding_scatters(jax.grad(of_shared, argnums=places), *shared)
