"""A sparse matrix in compressed rows: times a matrix, transposed times another, and sampled at their product."""

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu

WIDTH = 16
GRADIENT = (0, 3)


def inputs(rng, n):
    rows, columns = max(1, n // 20), max(1, n // 40)
    lengths = np.bincount((rows * rng.random(n) ** 2).astype(int), minlength=rows)
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
    x, y = (rng.normal(size=(number, WIDTH)).astype(np.float32) for number in (columns, rows))
    return rng.normal(size=n).astype(np.float32), rng.integers(0, columns, n).astype(np.int32), offsets, x, y


def ours(values, columns, offsets, x, y):
    A = mgpu.Csr(values, columns, offsets, (len(y), len(x)))
    return A @ x, A.T @ y, mgpu.sddmm(A, y, x).values


def plain(values, columns, offsets, x, y):
    rows = jnp.repeat(jnp.arange(len(y)), jnp.diff(offsets), total_repeat_length=len(values))
    product = jax.ops.segment_sum(values[:, None] * x[columns], rows, len(y), indices_are_sorted=True)
    transposed = jax.ops.segment_sum(values[:, None] * y[rows], columns, len(x))
    return product, transposed, values * (y[rows] * x[columns]).sum(1)
