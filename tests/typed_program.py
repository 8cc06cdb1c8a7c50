"""A user's program, which mypy and pyright check strictly (.ci/run), and a test runs."""

# pyright: strict, reportUnknownMemberType=false
# (the types of some members of jax.numpy are partly unknown)

from __future__ import annotations

from typing import assert_type

import jax
import jax.numpy as jnp

import jax_mgpu as mgpu
from jax_mgpu import numpy, ops


def centred(rows: mgpu.Ragged) -> mgpu.Ragged:
    largest: jax.Array = rows.reduce("max")
    return rows - largest


def arithmetic(rows: mgpu.Ragged) -> None:
    x = jnp.ones(len(rows))
    assert_type(rows + 1, mgpu.Ragged)
    assert_type(2 * rows - x, mgpu.Ragged)
    assert_type(rows / rows**2, mgpu.Ragged)
    assert_type(-abs(rows), mgpu.Ragged)
    assert_type((rows < 2) & ~(rows >= 3), mgpu.Ragged)
    assert_type(rows == 2, mgpu.Ragged)
    assert_type(rows[1:], mgpu.Ragged)
    assert_type(rows[jnp.array([1, 0])], mgpu.Ragged)
    assert_type(rows.map(jnp.exp).softmax(), mgpu.Ragged)
    assert_type(mgpu.Ragged.concatenate([rows, rows.astype(jnp.float16)]), mgpu.Ragged)
    segments = mgpu.Segments.from_lengths([1, 1])
    assert_type(mgpu.Segments.from_ids(segments.ids(2), 2), mgpu.Segments)
    assert_type(mgpu.Ragged(x, segments).sort(), mgpu.Ragged)
    assert_type(mgpu.segmented_scan(x, segments), jax.Array)
    assert_type(mgpu.segmented_sort(x, segments), jax.Array)
    assert_type(rows.lengths, jax.Array)
    for row in rows:
        first: jax.Array = row[:1]
        assert first.ndim == 1


def names(x: jax.Array, ids: jax.Array) -> None:
    assert_type(numpy.sort(x, axis=0, descending=True), jax.Array)
    assert_type(numpy.top_k(x, 1)[0], jax.Array)
    assert_type(ops.segment_sum(x, ids, 2), jax.Array)
    assert_type(ops.segment_mean(x, ids, num_segments=2), jax.Array)


def tables(keys: jax.Array, values: jax.Array) -> None:
    assert_type(mgpu.sort(keys), jax.Array)
    assert_type(mgpu.argsort((keys, values), descending=(True, False)), jax.Array)
    joined = mgpu.join(keys, keys, "left", size=9, assume_sorted=False)
    assert_type(joined, mgpu.JoinResult)
    assert_type(joined.count, jax.Array)
    selected = mgpu.select(values, values > 0)
    assert_type(selected.count, jax.Array)
    assert_type(mgpu.top_k(values, 2).indices, jax.Array)
    assert_type(mgpu.run_starts(keys).starts, jax.Array)
    assert_type(mgpu.segmented_softmax(values, jnp.array([0, 1])), jax.Array)


def main() -> None:
    rows = mgpu.Ragged.from_rows([[1.0, 2.0], [3.0]])
    with mgpu.checks():
        arithmetic(centred(rows))
        tables(jnp.array([1, 1, 2]), jnp.array([1.0, 2.0, 3.0]))
        names(jnp.array([1.0, 2.0, 3.0]), jnp.array([1, 1, 0]))
    assert_type(mgpu.has_cuda(), bool)


if __name__ == "__main__":
    main()
