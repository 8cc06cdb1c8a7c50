"""Power iteration with a sparse matrix and its transpose, and products of the result at the matrix's entries."""

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu

WIDTH, STEPS = 16, 4
GRADIENT = 0


def inputs(rng, n):
    rows, columns = max(1, n // 20), max(1, n // 40)
    lengths = np.bincount((rows * rng.random(n) ** 2).astype(int), minlength=rows)
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
    x = rng.normal(size=(columns, WIDTH)).astype(np.float32)
    return rng.normal(size=n).astype(np.float32), rng.integers(0, columns, n).astype(np.int32), offsets, x


def ours(values, columns, offsets, x):
    A = mgpu.Csr(values, columns, offsets, (len(offsets) - 1, len(x))).with_transpose()
    for _ in range(STEPS):
        x = A.T @ (A @ x)
        x = x / jnp.linalg.norm(x, axis=0)
    return x, mgpu.sddmm(A, A @ x, x).values


def plain(values, columns, offsets, x):
    number = len(offsets) - 1
    rows = jnp.repeat(jnp.arange(number), jnp.diff(offsets), total_repeat_length=len(values))
    for _ in range(STEPS):
        y = jax.ops.segment_sum(values[:, None] * x[columns], rows, number, indices_are_sorted=True)
        x = jax.ops.segment_sum(values[:, None] * y[rows], columns, len(x))
        x = x / jnp.linalg.norm(x, axis=0)
    y = jax.ops.segment_sum(values[:, None] * x[columns], rows, number, indices_are_sorted=True)
    return x, values * (y[rows] * x[columns]).sum(1)
