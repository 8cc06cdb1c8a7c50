"""Sparse matrices, compared with scipy.sparse and dense matrices in NumPy."""

from __future__ import annotations

import functools
import itertools
import pickle
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads

import jax_mgpu as mgpu
from jax_mgpu._src.ops import sparse_product

pytestmark = pytest.mark.usefixtures("x64")

M, N, K = 13, 17, 5


def dense(rng, m=M, n=N, dtype=np.float64, share=0.3):
    x = rng.normal(size=(m, n)) if np.dtype(dtype).kind not in "iub" else rng.integers(-4, 5, (m, n))
    x = np.where(rng.random((m, n)) < share, x, 0)
    x[m // 2], x[:, n // 3] = 0, 0
    return x.astype(dtype)


def sparse(x, spare=3):
    """Returns a matrix with spare entries of arbitrary values."""
    made = mgpu.Csr.from_dense(x)
    junk = np.full(spare, np.nan if x.dtype.kind not in "iub" else 7, x.dtype)
    values, indices = (np.append(np.asarray(a), b) for a, b in ((made.values, junk), (made.indices, [1] * spare)))
    return mgpu.Csr(values.astype(x.dtype), indices, made.offsets, made.shape)


def columns_rise(A):
    offsets, indices = np.asarray(A.offsets), np.asarray(A.indices)
    return all(np.all(np.diff(indices[b:e]) > 0) for b, e in itertools.pairwise(offsets))


# ---- Conversions -----------------------------------------------------------------------------------------------------


def test_to_dense_of_a_batch_without_rows_over_an_explicit_axis():
    mesh = jax.make_mesh((4,), ("batch",), axis_types=(AxisType.Explicit,), devices=jax.devices("cpu")[:4])
    with jax.set_mesh(mesh):
        values = jax.device_put(np.ones((4, K), np.int32), jax.sharding.NamedSharding(mesh, jax.P("batch")))
        one = functools.partial(mgpu.Csr, indices=np.zeros(K, np.int32), offsets=np.zeros(1, np.int32), shape=(0, N))
        assert jax.jit(jax.vmap(lambda x: one(x).todense()))(values).shape == (4, 0, N)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "bool"])
def test_from_coo(dtype):
    call = jax.jit(lambda r, c, v: mgpu.Csr.from_coo(r, c, v, shape=(M, N)))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        rows, columns = rng.integers(-2, M + 3, 150), rng.integers(-2, N + 3, 150)
        values = rng.integers(-3, 4, 150).astype(dtype)
        inside = (rows >= 0) & (rows < M) & (columns >= 0) & (columns < N)
        expected = np.zeros((M, N), dtype)
        np.add.at(expected, (rows[inside], columns[inside]), values[inside])
        A = call(rows, columns, values)
        np.testing.assert_array_equal(A.todense(), expected)
        assert A.dtype == expected.dtype
        assert A.count == len({*zip(rows[inside].tolist(), columns[inside].tolist(), strict=True)})
        assert columns_rise(A)
    narrow = mgpu.Csr.from_coo(np.array([3, 0, 255], np.uint8), [1, 5, 0], [4.0, 1.0, 2.0], shape=(300, 8))
    np.testing.assert_array_equal(narrow.offsets, np.repeat([0, 1, 2, 3], [1, 3, 252, 45]))


def test_strict_promotion():
    with jax.numpy_dtype_promotion("strict"):
        A = mgpu.Csr.from_coo([0, 1, 1, -1], [2, 0, 0, 1], np.arange(4, dtype=np.float32), shape=(2, 3))
        B = A.with_transpose()
        assert (A.count, (A + A).count, A.matmul(A.T, size=4).count, (B @ np.ones(3, np.float32)).size) == (2, 2, 2, 2)


def test_a_size_that_is_too_small_is_reported():
    rows, columns, values = [2, 0, 9, 1, 2, -1], [0, 1, 0, 1, 2, 0], [1.0, 2.0, 9.0, 3.0, 4.0, 9.0]
    A = mgpu.Csr.from_coo(rows, columns, values, shape=(3, 3), size=2)
    assert (A.count, A.capacity) == (4, 2)
    np.testing.assert_array_equal(A.todense(), [[0, 2, 0], [0, 3, 0], [0, 0, 0]])
    np.testing.assert_array_equal(A @ jnp.ones(3), [2, 3, 0])
    B = mgpu.Csr.from_dense(np.eye(4), size=3)
    assert B.count == 4
    np.testing.assert_array_equal(B.todense(), np.diag([1, 1, 1, 0]))
    C = A.matmul(A, size=1)
    assert (C.count, C.capacity) == (2, 1)
    with pytest.raises(ValueError, match="room for all 4 entries"):
        A.to_scipy()
    with mgpu.checks(), pytest.raises(Exception, match=r"Csr.from_coo: size: expected at most 2 results"):
        jax.block_until_ready(mgpu.Csr.from_coo(rows, columns, values, shape=(3, 3), size=2))
    with mgpu.checks():
        jax.block_until_ready(jax.jit(lambda x: mgpu.Csr.from_dense(x, size=4).matmul(B.T, size=9).T @ x)(np.eye(4)))


def test_conversions():
    rng = np.random.default_rng(1)
    x = dense(rng)
    for kind in (scipy.sparse.coo_matrix, scipy.sparse.csc_array, scipy.sparse.lil_matrix):
        np.testing.assert_array_equal(mgpu.Csr.from_scipy(kind(x)).todense(), x)
    twice = scipy.sparse.csr_matrix(([1.0, 2.0, 4.0], [2, 0, 2], [0, 3]), shape=(1, 3))
    np.testing.assert_array_equal(mgpu.Csr.from_scipy(twice).values, [2, 5])
    A = sparse(x)
    np.testing.assert_array_equal(A.to_scipy().toarray(), x)
    np.testing.assert_array_equal(A.to_bcoo().todense(), x)
    np.testing.assert_array_equal(jax.jit(lambda A: A.to_bcoo())(A).todense(), x)
    np.testing.assert_array_equal(mgpu.Csr.from_bcoo(A.to_bcoo()).todense(), x)
    np.testing.assert_array_equal(jax.jit(lambda x: mgpu.Csr.from_dense(x, size=99))(x).todense(), x)
    for shape in ((0, 3), (3, 0), (0, 0)):
        nothing = mgpu.Csr.from_dense(np.zeros(shape))
        assert nothing.todense().shape == shape
        np.testing.assert_array_equal(nothing @ jnp.ones(shape[1]), np.zeros(shape[0]))
        assert nothing.T.todense().shape == shape[::-1]


def test_scipy_gets_no_columns_outside():
    values, columns, offsets = [1.0, 2, 3, 4, 5, 6, 7, 9], [3, 0, 9, 1, 1, -2, 2, 0], [0, 3, 3, 5, 7]
    made = mgpu.Csr(jnp.array(values), np.array(columns), np.array(offsets), (4, 4)).to_scipy()
    np.testing.assert_array_equal(made.toarray(), [[2, 0, 0, 1], [0, 0, 0, 0], [0, 9, 0, 0], [0, 0, 7, 0]])
    assert (made.indices.tolist(), made.indptr.tolist()) == ([3, 0, 1, 1, 2], [0, 2, 2, 4, 5])


# ---- Products --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int32"])
def test_products_with_arrays(dtype):
    rng = np.random.default_rng(2)
    x = dense(rng, dtype=jnp.dtype(dtype))
    A, y, z = sparse(x), dense(rng, N, K, jnp.dtype(dtype), 1), dense(rng, K, M, jnp.dtype(dtype), 1)
    eps = 0 if dtype == "int32" else float(jnp.finfo(dtype).eps)
    for made in (A, A.with_transpose()):
        products = jax.jit(lambda A, y, z: (A @ y, A @ y[:, 0], z @ A, z[0] @ A, A.T @ z.T))(made, y, z)
        wide = [a.astype(np.float64) for a in (x, y, z)]
        expected = [
            wide[0] @ wide[1],
            wide[0] @ wide[1][:, 0],
            wide[2] @ wide[0],
            wide[2][0] @ wide[0],
            (wide[2] @ wide[0]).T,
        ]
        for got, want in zip(products, expected, strict=True):
            assert got.dtype == dtype
            np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=4 * eps, atol=30 * eps)
    assert (np.ones(M) @ sparse(x.astype(np.float64))).shape == (N,)
    assert (mgpu.Csr.from_dense(x.astype(jnp.bfloat16)) @ jnp.ones(N, jnp.float32)).dtype == jnp.float32


@pytest.mark.parametrize("shape", [(M, N, 11), (1, 40, 40), (40, 1, 40), (3, 3, 3)])
def test_products_of_sparse_matrices(shape):
    m, n, k = shape
    call = jax.jit(lambda A, B: A.matmul(B, size=m * k))
    for seed, share in enumerate((0.1, 0.4, 0.9)):
        rng = np.random.default_rng(seed)
        x, y = dense(rng, m, n, share=share), dense(rng, n, k, share=0.4)
        C = call(*(mgpu.Csr.from_dense(z, size=z.size) for z in (x, y)))
        np.testing.assert_allclose(C.todense(), x @ y, rtol=1e-12, atol=1e-12)
        assert C.count == ((x != 0).astype(int) @ (y != 0) > 0).sum()
        assert columns_rise(C)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "bool", "float16", "bfloat16"])
def test_products_of_narrow_types(dtype):
    x = np.ones((2, 300), dtype)
    A, y = mgpu.Csr.from_dense(jnp.asarray(x)), jnp.ones((300, 2), dtype)
    expected = np.asarray(jnp.sum(x.astype(np.float32 if "float" in dtype else dtype), axis=1))
    expected = expected.astype(dtype) if "float" in dtype else expected
    for product in (A @ y, A.with_transpose() @ y, (y.T @ A.T).T, A.matmul(A.T, size=4).todense()):
        assert product.dtype == expected.dtype
        np.testing.assert_array_equal(product, np.stack([expected] * 2, axis=1))


def test_products_of_a_batch_over_an_explicit_axis(rng):
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:1])
    A, B = sparse(dense(rng)), sparse(dense(rng, N, K))

    def product(a, b):
        return A.with_values(a).matmul(B.with_values(b), size=80).todense()

    batch = [np.stack([x.values, 2 * x.values]) for x in (A, B)]
    expected = jax.vmap(product)(*batch)
    with jax.set_mesh(mesh):
        placed = [jax.device_put(x, NamedSharding(mesh, PartitionSpec("x"))) for x in batch]
        np.testing.assert_array_equal(jax.jit(jax.vmap(product))(*placed), expected)
        rows = jax.device_put(np.zeros((2, 3), np.int32), NamedSharding(mesh, PartitionSpec("x")))

        def own(rows):
            C = mgpu.Csr.from_coo(rows, np.arange(3), np.ones(3), shape=(1, 3))
            return C.matmul(C.T, size=1).values

        assert jax.jit(jax.vmap(own))(rows).tolist() == [[3], [3]]


def test_products_in_many_chunks():
    rng = np.random.default_rng(3)
    x, y = (rng.random((90, 90)) < 0.5) * rng.normal(size=(90, 90)), (rng.random((90, 90)) < 0.4) * 1.0
    A, B = mgpu.Csr.from_dense(x), mgpu.Csr.from_dense(y)
    C = A.matmul(B, size=8100)
    np.testing.assert_allclose(C.todense(), x @ y, rtol=1e-10, atol=1e-10)
    few = A.matmul(B, size=100)
    assert few.count == C.count
    np.testing.assert_allclose(few.values, C.values[:100])


def test_terms_of_a_product_may_outnumber_int32():
    rows, columns = np.arange(60_000, dtype=np.int32), np.arange(40_000, dtype=np.int32)
    column = jnp.zeros_like(rows), jnp.arange(rows.size + 1, dtype=jnp.int32), rows
    row = columns, jnp.array([0, columns.size], jnp.int32), jnp.zeros_like(columns)
    np.testing.assert_array_equal(sparse_product._before(column, row), np.arange(rows.size + 1) * columns.size)
    x, y = (scipy.sparse.random(4000, 4000, 0.003, "csr", rng=i) for i in range(2))
    A, B = (mgpu.Csr(m.data, m.indices, m.indptr, m.shape) for m in (x, y))
    assert A.capacity * B.capacity > 2**31
    with jax.numpy_dtype_promotion("strict"):
        C = A.matmul(B, size=1000)
    expected = (x @ y).sorted_indices()
    assert C.offsets.dtype == A.offsets.dtype and C.count == expected.nnz
    np.testing.assert_array_equal(C.indices, expected.indices[:1000])
    np.testing.assert_allclose(C.values, expected.data[:1000], rtol=1e-10)


def test_products_without_columns_are_zeros():
    A = mgpu.Csr.from_dense(np.zeros((5, 0), np.float32))
    for made in (A, A.with_transpose()):
        np.testing.assert_array_equal(made @ np.zeros((0, 3), np.float32), np.zeros((5, 3)))
        np.testing.assert_array_equal(made @ np.zeros(0, np.float32), np.zeros(5))


def test_sums_and_scalars():
    rng = np.random.default_rng(4)
    x, y = dense(rng), dense(rng)
    A, B = sparse(x), sparse(y, 1)
    results = jax.jit(lambda A, B, s: (A + B, A - B, -A, s * A, A * 2, A / s))(A, B, 3.0)
    for got, want in zip(results, (x + y, x - y, -x, 3 * x, 2 * x, x / 3), strict=True):
        np.testing.assert_allclose(got.todense(), want, rtol=1e-15)
        assert columns_rise(got)
    np.testing.assert_array_equal(A.T.T.todense(), x)
    np.testing.assert_array_equal(A.with_transpose().T.T.todense(), x)
    np.testing.assert_array_equal(A.astype(np.float32).todense(), x.astype(np.float32))


def test_sddmm():
    rng = np.random.default_rng(5)
    x, a, b = dense(rng), rng.normal(size=(M, 4)), rng.normal(size=(N, 4))
    got = jax.jit(mgpu.sddmm)(sparse(x), a, b)
    np.testing.assert_allclose(got.todense(), x * (a @ b.T), rtol=1e-12)
    again = jax.jit(mgpu.sddmm)(sparse(x).with_transpose(), a, b)
    np.testing.assert_allclose(again.todense(), x * (a @ b.T), rtol=1e-12)
    narrow = mgpu.sddmm(mgpu.Csr.from_dense(np.ones((1, 1), jnp.bfloat16)), *(jnp.ones((1, 999), jnp.bfloat16),) * 2)
    assert narrow.values == jnp.bfloat16(999)


# ---- Transformations -------------------------------------------------------------------------------------------------


FUNCTIONS = {
    "@": (lambda A, B, y: A @ y, lambda a, b, y: a @ y),
    "with_transpose @": (lambda A, B, y: A.with_transpose() @ y, lambda a, b, y: a @ y),
    "@ A": (lambda A, B, y: y.T @ A.T, lambda a, b, y: y.T @ a.T),
    "T": (lambda A, B, y: A.T.todense(), lambda a, b, y: a.T),
    "+": (lambda A, B, y: (A + 2 * A).todense(), lambda a, b, y: 3 * a),
    "matmul": (lambda A, B, y: A.matmul(B, size=M * K).todense(), lambda a, b, y: a @ b),
    "sddmm": (lambda A, B, y: mgpu.sddmm(A, A @ y, y).todense(), lambda a, b, y: a * ((a @ y) @ y.T)),
    "with_transpose sddmm": (
        lambda A, B, y: mgpu.sddmm(A.with_transpose(), A @ y, y).todense(),
        lambda a, b, y: a * ((a @ y) @ y.T),
    ),
    "with_transpose T": (
        lambda A, B, y: (A.with_transpose().T @ (A @ y)) + A.with_transpose().T.T.T @ (2 * A @ y),
        lambda a, b, y: 3 * a.T @ (a @ y),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name):
    ours, theirs = FUNCTIONS[name]
    rng = np.random.default_rng(6)
    a, b, y = dense(rng), dense(rng, N, K), rng.normal(size=(N, 3))
    A, B = mgpu.Csr.from_dense(a), mgpu.Csr.from_dense(b)

    def loss(a_values, b_values, y):
        return jnp.sin(ours(A.with_values(a_values), B.with_values(b_values), y)).sum()

    def plain(a_values, b_values, y):
        x, z = (jnp.zeros(C.shape).at[C.rows, C.indices].set(v) for C, v in ((A, a_values), (B, b_values)))
        return jnp.sin(theirs(x, z, y)).sum()

    given = A.values, B.values, y
    got = jax.jit(jax.grad(loss, (0, 1, 2)))(*given)
    for mine, other in zip(got, jax.grad(plain, (0, 1, 2))(*given), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-11)
    if name.startswith("with_transpose") or name == "matmul":
        check_grads(jax.jit(loss), given, order=2, modes=["rev"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_each_device_are_its_own(name, devices):
    mesh = jax.make_mesh((2,), ("d",), devices=devices[:2], axis_types=(AxisType.Auto,))
    rng = np.random.default_rng(16)
    a, b = dense(rng), dense(rng, N, K)
    A, B = mgpu.Csr.from_dense(a), mgpu.Csr.from_dense(b)

    def gradients(a_values, b_values, y):
        def loss(a_values, b_values, y):
            return jnp.sin(FUNCTIONS[name][0](A.with_values(a_values), B.with_values(b_values), y)).sum()

        return jax.grad(loss, (0, 1, 2))(a_values, b_values, y)

    def of_device(*operands):
        return jax.tree.map(lambda x: x[None], gradients(*(x[0] for x in operands)))

    spec = PartitionSpec("d")
    of_each = jax.shard_map(of_device, mesh=mesh, in_specs=spec, out_specs=spec)
    operands = *(rng.normal(size=(2, *x.values.shape)) for x in (A, B)), rng.normal(size=(2, N, 3))
    for got, expected in zip(jax.jit(of_each)(*operands), jax.vmap(gradients)(*operands), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11)


def test_derivatives_of_a_matrix_with_its_transposed_one_are_products_and_gathers():
    A = mgpu.Csr.from_dense(dense(np.random.default_rng(7)))

    def primitives(A, function):
        loss = lambda values, y: jnp.sin(function(A.with_values(values), y)).sum()  # noqa: E731
        program = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(A.values, jnp.ones((N, 2))))
        return set(re.findall(r"mgpu_(?:reduce_by_id|scan|put|csr_product|csr_dots|permutation)|scatter-add", program))

    of = {
        "A @ y": lambda A, y: A @ y,
        "A.T @": lambda A, y: A.T @ y[:M],
        "sddmm": lambda A, y: mgpu.sddmm(A, y[:M], y).values,
    }
    assert "mgpu_reduce_by_id" in primitives(A, of["A @ y"]) & primitives(A, of["sddmm"])
    B = A.with_transpose()
    assert primitives(B, of["A @ y"]) == {"mgpu_csr_product", "mgpu_csr_dots", "mgpu_permutation"}
    assert primitives(B, of["A.T @"]) == {"mgpu_csr_product", "mgpu_csr_dots", "mgpu_permutation"}
    assert primitives(B, of["sddmm"]) == {"mgpu_csr_product", "mgpu_csr_dots", "mgpu_permutation"}


@pytest.mark.parametrize("transposed", [False, True])
def test_derivatives_drop_spare_entries_and_columns_outside(transposed):
    values, columns, offsets = np.array([2.0, 3, 5, np.nan, np.nan]), np.array([1, -1, 0, 1, 7]), np.array([0, 2, 2, 3])
    x, y = np.arange(6.0).reshape(3, 2) + 1, np.arange(4.0).reshape(2, 2) - 5
    of_entry = np.array([(0, 1), (0, -1), (2, 0)])
    A = mgpu.Csr(values, columns, offsets, (3, 2))
    A = A.with_transpose() if transposed else A

    def loss(values, x, y):
        B = A.with_values(values)
        return (jnp.arange(1.0, 4)[:, None] * (B @ y)).sum() + (mgpu.sddmm(B, x, y).values[:3] ** 2).sum()

    want = np.zeros(5), np.zeros_like(x), np.zeros_like(y)
    for e, (i, j) in enumerate(of_entry):
        if j < 0:
            continue
        dot = x[i] @ y[j]
        want[0][e] = (i + 1) * y[j].sum() + 2 * values[e] * dot**2
        want[1][i] += 2 * values[e] ** 2 * dot * y[j]
        want[2][j] += (i + 1) * values[e] + 2 * values[e] ** 2 * dot * x[i]
    for got, expected in zip(jax.jit(jax.grad(loss, (0, 1, 2)))(values, x, y), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def diagonal(values):
    return mgpu.Csr(values, np.array([0, 1]), np.array([0, 1, 2]), (2, 2))


def one_row(values):
    """Returns a matrix whose second entry has a column outside of its shape."""
    return mgpu.Csr(values, np.array([0, 5]), np.array([0, 2]), (1, 2))


INF = np.array([1, np.inf])
ONES = np.ones(2)
# Losses that do not use an infinite factor, where they have which gradients, and these gradients.
UNUSED = {
    "x @ A, a column outside": (lambda x: (x @ one_row(INF)).sum(), np.ones(1), [1]),
    "x @ A by values, columns outside": (lambda v: (INF[1:] @ one_row(v))[1], ONES, [0, 0]),
    "x @ A": (lambda x: (x @ diagonal(INF))[0], ONES, [1, 0]),
    "X @ A": (lambda x: (x @ diagonal(INF))[1, 0], np.ones((3, 2)), [[0, 0], [1, 0], [0, 0]]),
    "x @ A by values": (lambda v: (INF @ diagonal(v))[0], ONES, [1, 0]),
    "A @ x": (lambda x: (diagonal(INF) @ x)[0], ONES, [1, 0]),
    "A @ X": (lambda x: (diagonal(INF) @ x)[0, 1], np.ones((2, 3)), [[0, 1, 0], [0, 0, 0]]),
    "sddmm by x": (lambda x: mgpu.sddmm(diagonal(INF), x, ONES[:, None]).values[0], ONES[:, None], [[1], [0]]),
    "sddmm by x, infinite y": (
        lambda x: mgpu.sddmm(diagonal(ONES), x, INF[:, None]).values[0],
        ONES[:, None],
        [[1], [0]],
    ),
    "sddmm by y": (lambda y: mgpu.sddmm(diagonal(INF), ONES[:, None], y).values[0], ONES[:, None], [[1], [0]]),
    "sddmm by values": (lambda v: mgpu.sddmm(diagonal(v), INF[:, None], ONES[:, None]).values[0], ONES, [1, 0]),
    "matmul by the first": (lambda v: diagonal(v).matmul(diagonal(INF), size=4).values[0], ONES, [1, 0]),
    "matmul by the second": (lambda v: diagonal(INF).matmul(diagonal(v), size=4).values[0], ONES, [1, 0]),
}


@pytest.mark.parametrize("name", UNUSED)
def test_infinite_factors_that_a_loss_does_not_use_give_no_nan(name):
    loss, at, expected = UNUSED[name]
    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(at), expected)
    np.testing.assert_array_equal(jax.vmap(jax.grad(loss))(np.stack([at] * 2)), [expected] * 2)


def test_an_infinite_row_that_a_loss_does_not_use_gives_no_nan():
    A = mgpu.Csr(np.ones(2), np.array([0, 1]), np.array([0, 1, 2]), (2, 2)).with_transpose()
    y = np.array([[1.0], [np.inf]])
    gradient = jax.jit(jax.grad(lambda values: (A.with_values(values) @ y)[0].sum()))(A.values)
    np.testing.assert_array_equal(gradient, [1, 0])


def test_batches():
    rng = np.random.default_rng(8)
    a, y = dense(rng), rng.normal(size=(3, N, 2))
    A = sparse(a)
    np.testing.assert_allclose(jax.vmap(lambda y: A @ y)(y), a @ y, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        jax.vmap(lambda s: (s * A) @ y[0])(jnp.arange(3.0)), np.arange(3)[:, None, None] * (a @ y[0])
    )
    many = [dense(rng) for _ in range(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *(mgpu.Csr.from_dense(x, size=99) for x in many))
    got = jax.vmap(lambda A, y: (A @ y, A.T.todense(), A.matmul(A.T, size=M * M).todense()))(stacked, y)
    for i, x in enumerate(many):
        for mine, want in zip(got, (x @ y[i], x.T, x @ x.T), strict=True):
            np.testing.assert_allclose(mine[i], want, rtol=1e-10, atol=1e-12)


def test_a_pytree():
    A = sparse(dense(np.random.default_rng(9))).with_transpose()
    stored = pickle.dumps(A)
    assert b"jax_mgpu._src" not in stored
    again = pickle.loads(stored)
    assert (again.shape, type(again)) == (A.shape, mgpu.Csr)
    np.testing.assert_array_equal(again.todense(), A.todense())
    doubled = jax.lax.scan(lambda A, _: (2 * A, None), A, None, length=3)[0]
    np.testing.assert_array_equal(doubled.todense(), 8 * A.todense())
    exported = jax.export.export(jax.jit(lambda A, x: (A @ x, A)), disabled_checks=mgpu.export_checks())(A, jnp.ones(N))
    product, back = jax.export.deserialize(exported.serialize()).call(A, jnp.ones(N))
    np.testing.assert_allclose(product, A @ jnp.ones(N))
    assert back.shape == A.shape
    assert repr(A) == f"Csr(13 x 17, {int(A.count)} entries, room for {A.capacity}, float64)"
    assert jax.jit(lambda A: jnp.array(len(repr(A))))(A) > 10
    assert jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(A)[0][0]) == ".values"


V, I, O = np.ones(3), np.arange(3), np.array([0, 1, 3])  # noqa: E741
ERRORS = {
    "Csr: values: expected a 1-D array": lambda: mgpu.Csr(np.ones((3, 1)), I, O, (2, 3)),
    "Csr: values: expected integers of": lambda: mgpu.Csr(V * 1j, I, O, (2, 3)),
    "Csr: indices: expected the length of values, 3, got": lambda: mgpu.Csr(V, I[:2], O, (2, 3)),
    "Csr: indices: expected integers, got": lambda: mgpu.Csr(V, V, O, (2, 3)),
    "Csr: offsets: expected 4 of them, one more than rows, got": lambda: mgpu.Csr(V, I, O, (3, 3)),
    "Csr: offsets: expected non-decreasing integers that start with 0 and": lambda: mgpu.Csr(V, I, [0, 2, 1], (2, 3)),
    "Csr: offsets: expected non-decreasing integers that start with 0 and are": lambda: mgpu.Csr(
        V, I, [0, 2, 4], (2, 3)
    ),
    "Csr: shape: expected (rows, columns), got 3": lambda: mgpu.Csr(V, I, O, 3),
    "Csr: shape: expected a static, non-negative integer, got -1": lambda: mgpu.Csr(V, I, O, (2, -1)),
    "Csr.from_coo: rows: expected the length of values, 3": lambda: mgpu.Csr.from_coo(I[:2], I, V, shape=(2, 3)),
    "Csr.from_dense: x: expected a matrix, got": lambda: mgpu.Csr.from_dense(V),
    "Csr.from_dense: size: expected the largest number of entries": lambda: jax.jit(mgpu.Csr.from_dense)(np.eye(3)),
    "Csr @: x: expected a vector [3] or a matrix [3, k], got": lambda: mgpu.Csr(V, I, O, (2, 3)) @ np.ones(2),
    "Csr @: x: expected an array (A.matmul(B, size=)": lambda: mgpu.Csr(V, I, O, (2, 3)) @ mgpu.Csr(V, I, O, (2, 3)),
    "@ Csr: x: expected a vector [2] or a matrix [k, 2], got": lambda: np.ones(3) @ mgpu.Csr(V, I, O, (2, 3)),
    "Csr +: other: expected a Csr, got": lambda: mgpu.Csr(V, I, O, (2, 3)) + 1,
    "Csr +: other: expected the shape (2, 3), got": lambda: mgpu.Csr(V, I, O, (2, 3)) + mgpu.Csr(V, I, O, (2, 4)),
    "Csr *: other: expected a scalar, got": lambda: mgpu.Csr(V, I, O, (2, 3)) * V,
    "Csr.matmul: other: expected 3 rows, got 2": lambda: mgpu.Csr(V, I, O, (2, 3)).matmul(
        mgpu.Csr(V, I, O, (2, 3)), size=3
    ),
    "sddmm: A: expected a Csr, got": lambda: mgpu.sddmm(V, V, V),
    "sddmm: x: expected [2, k], got": lambda: mgpu.sddmm(mgpu.Csr(V, I, O, (2, 3)), np.ones((3, 1)), np.ones((3, 1))),
    "sddmm: y: expected [3, 4], got": lambda: mgpu.sddmm(mgpu.Csr(V, I, O, (2, 3)), np.ones((2, 4)), np.ones((3, 1))),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(message.strip())}"):
        ERRORS[message]()
