"""Sparse matrices: what the tests know of each function."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests.examples import KEYS, Argument, Example, numbers
from tests.fuzz.compare import Equal
from tests.fuzz.draw import Call, Shape
from tests.many_items import bytes_of, same, spots


def matrix(values, indices):
    """Of 9 rows, the last of which is full."""
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
    "sddmm": lambda keys, few, near, far: (
        mgpu.sddmm(mgpu.Csr(few, keys, near[:10], (9, 100)), few[:27].reshape(9, 3), few[:300].reshape(100, 3)).values
    )
}
BROKEN = {
    "Csr: offsets": (
        lambda: mgpu.Csr(KEYS, KEYS, jnp.array([0, 4, 2]), (2, 10)).offsets,
        "integers from 0, the first one, to 6 in non-decreasing order",
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
    """sddmm, of small integers, whose sums are exact."""
    entries, m, n, k = min(shape.size(), 3000), *(shape.choice((0, 1, 7, 60)) for _ in range(3))
    shape.say(f"{m} x {n} x {k}")

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        del apart
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


DRAWN = {"sparse": products}
