from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.examples import KEYS, Argument, Example, numbers
from tests.fuzz.compare import Equal
from tests.fuzz.draw import Call, Shape
from tests.many_items import bytes_of, same, spots


def matrix(values, indices):
    """Returns a matrix of 9 rows; the last has all remaining entries."""
    offsets = np.append(np.arange(9) * len(values) // 20, len(values)).astype(np.int32)
    return mgpu.Csr(values, indices, offsets, (9, 7))


EXAMPLES = {
    "sddmm": Example(
        lambda values, indices, x, y: mgpu.sddmm(matrix(values, indices), x, y).values,
        lambda rng, real: (
            numbers(rng, real, 40),
            rng.integers(-1, 8, 40).astype(np.int32),
            numbers(rng, real, 9, 3),
            numbers(rng, real, 7, 3),
        ),
        differentiable=(0, 2, 3),
        exact=False,
        composed=True,
    ),
}

GARBAGE = {
    "sddmm": lambda keys, repeated, indices, wild: (
        mgpu.sddmm(
            mgpu.Csr(repeated, keys, indices[:10], (9, 100)),
            repeated[:27].reshape(9, 3),
            repeated[:300].reshape(100, 3),
        ).values
    )
}
BROKEN = {
    "Csr: offsets": (
        lambda: mgpu.Csr(KEYS, KEYS, jnp.array([0, 4, 2]), (2, 10)).offsets,
        "non-decreasing integers that start with 0 and are at most 6",
        2,
    )
}
WITHOUT_PRECONDITIONS = ("sddmm",)
ARGUMENTS = {f"sddmm: {name}": Argument(None) for name in "Axy"}


def large_sddmm(n, index):
    offsets = spots(n, index)
    m = len(offsets)
    A = mgpu.Csr(bytes_of(n), np.zeros(n, np.int32), np.append(offsets, n), (m, 1))
    rows = np.arange(m, dtype=np.uint8).repeat(np.diff(offsets, append=n))
    got = mgpu.sddmm(A, np.arange(m, dtype=np.uint8)[:, None], np.ones((1, 1), np.uint8))
    same(got.values, (rows * bytes_of(n)).astype(np.uint8))


LARGE_WITH_INDICES = {"sddmm": large_sddmm}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def products(shape: Shape) -> Call:
    entries, m, n, k = min(shape.size(), 3000), *(shape.choice((0, 1, 7, 60)) for _ in range(3))
    shape.say(f"{m} x {n} x {k}")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        values, x, y = (rng.integers(-3, 4, size).astype(np.float32) for size in (entries, (m, k), (n, k)))
        offsets = np.sort(rng.integers(0, entries + 1, m + 1)).astype(np.int32)
        offsets[0] = 0
        return {"values": values, "indices": draw_columns(rng), "offsets": offsets, "x": x, "y": y}

    def draw_columns(rng: np.random.Generator) -> np.ndarray:
        return rng.integers(-1, n + 1, entries).astype(np.int32)

    def function(values: Any, indices: Any, offsets: Any, x: Any, y: Any) -> Any:
        return mgpu.sddmm(mgpu.Csr(values, indices, offsets, (m, n)), x, y).values

    def expected(values: Any, indices: Any, offsets: Any, x: Any, y: Any) -> list[Any]:
        out = np.zeros(entries, np.float32)
        rows = np.arange(m).repeat(np.diff(offsets))
        held = np.flatnonzero((indices[: len(rows)] >= 0) & (indices[: len(rows)] < n))
        out[held] = values[held] * (x[rows[held]] * y[indices[held]]).sum(axis=1)
        return [Equal(out)]

    return Call("sddmm", function, draw_operands, expected, shape.x64, (), finite=shape.finite)


# Results of sparse A and B, dense X and vector x: by the library, then by NumPy.
PRODUCTS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "dense": (lambda A, B, X, x: A.todense(), lambda A, B, X, x: A),
    "A @ X": (lambda A, B, X, x: A @ X, lambda A, B, X, x: A @ X),
    "A @ x": (lambda A, B, X, x: A @ x, lambda A, B, X, x: A @ x),
    "transposed beside A, @ X": (lambda A, B, X, x: A.with_transpose() @ X, lambda A, B, X, x: A @ X),
    "x @ A.T": (lambda A, B, X, x: x @ A.T, lambda A, B, X, x: A @ x),
    "X.T @ A.T": (lambda A, B, X, x: X.T @ A.T, lambda A, B, X, x: X.T @ A.T),
    "A + B": (lambda A, B, X, x: (A + B).todense(), lambda A, B, X, x: A + B),
    "A - B": (lambda A, B, X, x: (A - B).todense(), lambda A, B, X, x: A - B),
    "3 A": (lambda A, B, X, x: (A * 3).todense(), lambda A, B, X, x: 3 * A),
    "A matmul B.T": (
        lambda A, B, X, x: A.matmul(B.T, size=A.capacity * B.capacity).todense(),
        lambda A, B, X, x: A @ B.T,
    ),
    "from dense": (
        lambda A, B, X, x: mgpu.Csr.from_dense(A.todense(), size=A.capacity).T.todense(),
        lambda A, B, X, x: A.T,
    ),
}


def held(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Converts whole numbers to a type, where integers wrap."""
    return x.astype(dtype) if np.dtype(dtype).kind not in "iu" else x.astype(np.int64).astype(dtype)


def matrices(shape: Shape) -> Call:
    """Draws a computation with a Csr of entries in any order, some outside of its shape. Sums of values are exact."""
    # `from_dense` has derivatives only for its entries, so none where the matrix is 0.
    what = shape.choice(tuple(what for what in PRODUCTS if not (shape.derivative and what == "from dense")))
    entries = min(shape.size(), 60 if "matmul" in what else 1000)
    m, n, k = (shape.choice((0, 1, 5, 40)) for _ in range(3))
    dtype = "float32" if shape.derivative else shape.choice(("float32", "int32", "int8", "bfloat16"))
    index = shape.choice(("int32", "int16", "int64") if shape.x64 else ("int32", "int16"))
    shape.say(what, f"{m} x {n}", f"k={k}", dtype, index)
    names = ("values", "others", "X", "x")
    sizes = entries, entries, (n, k), n

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        low = 0 if dtype == "bfloat16" else -1  # without negative numbers, no partial sum exceeds the sum
        given = {name: rng.integers(low, 2, size) for name, size in zip(names, sizes, strict=True)}
        given = {name: x.astype(jnp.dtype(dtype)) for name, x in given.items()}
        given |= {name: rng.integers(-1, m + 1, entries).astype(index) for name in ("rows", "other_rows")}
        return given | {name: rng.integers(-1, n + 1, entries).astype(index) for name in ("columns", "other_columns")}

    def function(X: Any, x: Any, **given: Any) -> Any:
        A = mgpu.Csr.from_coo(given["rows"], given["columns"], given["values"], shape=(m, n))
        B = mgpu.Csr.from_coo(given["other_rows"], given["other_columns"], given["others"], shape=(m, n))
        return PRODUCTS[what][0](A, B, X, x)

    def dense(rows: Any, columns: Any, values: Any) -> np.ndarray:
        inside = (rows >= 0) & (rows < m) & (columns >= 0) & (columns < n)
        out = np.zeros((m, n), np.float64)
        np.add.at(out, (rows[inside], columns[inside]), values[inside].astype(np.float64))
        return held(out, values.dtype).astype(np.float64)

    def expected(X: Any, x: Any, **given: Any) -> list[Any]:
        A = dense(given["rows"], given["columns"], given["values"])
        B = dense(given["other_rows"], given["other_columns"], given["others"])
        exact = PRODUCTS[what][1](A, B, X.astype(np.float64), x.astype(np.float64))
        is_sum = dtype == "int8" and ("@" in what or "matmul" in what)  # these products have the type of a sum
        result = oracle.summed(x, "add").dtype if is_sum else x.dtype
        return [Equal(held(exact, result))]

    return Call("Csr", function, draw_operands, expected, shape.x64, names, finite=True)


DRAWN = {"sparse": products, "matrices": matrices}
