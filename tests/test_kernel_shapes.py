"""Kernels fit the shared memory of a block: 64 KB on sm_75; 99 on sm_86, 89 and 120; 163 on sm_80; 227 on sm_90 and
100.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import jax
import pytest

from jax_mgpu._src.core.library import cuda_library

KIB = 1024
on_cuda_build = pytest.mark.skipif(cuda_library is None, reason="a build without CUDA kernels")
on_gpu = pytest.mark.skipif(jax.default_backend() != "gpu", reason="only CUDA devices have this limit")


# Returns the shared memory of the first shape that fits the limit, or None.
def taken(shapes, limit):
    return next((size for size, least in shapes if least <= limit), None)


@on_cuda_build
@pytest.mark.parametrize("limit", [48, 64, 99, 163, 227])
def test_every_kernel_has_a_shape_that_fits(limit):
    kernels = cuda_library.kernel_shapes()
    assert len(kernels) > 100
    for name, shapes, is_optional in kernels:
        assert all(size <= least for size, least in shapes), name
        assert [least for _, least in shapes] == sorted((least for _, least in shapes), reverse=True), name
        size = taken(shapes, limit * KIB)
        if limit >= 64 and not is_optional:  # no device has less
            assert size is not None, name
        if size is not None:
            assert size <= limit * KIB, name


@on_cuda_build
def test_what_99_kib_are_enough_for():
    """All kernels have a shape, except some for 8-byte keys with payloads."""
    missing = [name for name, shapes, _ in cuda_library.kernel_shapes() if taken(shapes, 99 * KIB) is None]
    assert not [name for name in missing if "uint64, payload of" not in name and "float64, payload of" not in name]


PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
import jax_mgpu as mgpu
jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
for dtype in (np.uint8, np.int32, np.float64):
    a, b = (np.sort(rng.integers(0, 200, n).astype(dtype)) for n in (70_001, 50_003))
    both = np.concatenate([a, b])
    order = np.argsort(both, kind="stable")
    for width in (np.int32, np.int64):
        values = np.arange(len(both), dtype=width)
        keys, merged = mgpu.merge(a, b, values[: len(a)], values[len(a) :])
        assert np.array_equal(keys, both[order]) and np.array_equal(merged, values[order])
        shuffled = rng.permutation(both)
        expected = np.argsort(shuffled, kind="stable")
        keys, sorted_values = mgpu.mergesort(shuffled, values)
        assert np.array_equal(keys, shuffled[expected]) and np.array_equal(sorted_values, values[expected])
    assert np.array_equal(mgpu.merge(a, b), both[order])
    large = np.resize(shuffled, 3_000_000)
    assert np.array_equal(mgpu.mergesort(large), np.sort(large))
    assert np.array_equal(mgpu.mergesort_indices(large)[1], np.argsort(large, kind="stable"))
    segments = np.concatenate([np.sort(large[:1_000_000]), np.sort(large[1_000_000:])])
    assert np.array_equal(mgpu.segmented_sort(large, [1_000_000]), segments)
    assert np.array_equal(mgpu.sorted_search(a, b), np.searchsorted(b, a))
    needles = rng.permutation(large)[:200_000]
    assert np.array_equal(mgpu.search(needles, np.sort(large)), np.searchsorted(np.sort(large), needles))
    match = mgpu.sorted_match(a, b)
    assert np.array_equal(match.a_index, np.searchsorted(b, a)) and match.a_match_count == np.isin(a, b).sum()
    union = mgpu.set_union(a, b)
    counts = np.maximum(*(np.unique_counts(np.append(x, np.arange(200))).counts - 1 for x in (a, b)))
    assert union.count == counts.sum()
    x = np.arange(1_000_000).astype(dtype)
    assert np.array_equal(mgpu.scan(x), np.cumsum(x, dtype=dtype))
    assert np.array_equal(mgpu.segmented_sort(shuffled, [0, 1000, 60_000]),
                          np.concatenate([np.sort(s) for s in np.split(shuffled, [1000, 60_000])]))
high, low = (rng.integers(0, 2**32, 2**20 + 1, dtype=np.uint32) for _ in range(2))
order = np.lexsort((low, high))
for values in (order.astype(np.uint32), order):
    keys, moved = mgpu.sort((high, low), values)
    assert all(np.array_equal(x, y[order]) for x, y in zip(keys, (high, low))) and np.array_equal(moved, values[order])
print("right")
"""


def run(program, limit):
    environment = {**os.environ, "MGPU_SHARED_MEMORY_LIMIT": str(limit), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    root = pathlib.Path(__file__).parents[1]
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=root, capture_output=True, text=True, check=False
    )


@on_gpu
@pytest.mark.parametrize("limit", [64, 99, 163])
def test_a_large_device_taken_for_a_small_one(limit):
    result = run(PROGRAM, limit * KIB)
    assert result.stdout.endswith("right\n"), result.stderr[-3000:]


SUMS_BY_ID = """
import jax, numpy as np
import jax_mgpu as mgpu

jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
for size in (1, 1500, 5000):
    ids = rng.integers(-1, size, 200_001)
    for op, dtype in (("add", np.float64), ("mul", np.float32)):
        x = (1 + rng.normal(size=len(ids)) / 100).astype(dtype)
        print(op, size, hash(np.asarray(mgpu.reduce_by_id(x, ids, size, op)).tobytes()))
"""


@on_gpu
def test_sums_by_id_have_the_same_bits_on_a_small_device(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    results = [run(SUMS_BY_ID, limit * KIB) for limit in (227, 99, 64)]
    assert len(results[0].stdout.splitlines()) == 6, results[0].stderr[-3000:]
    assert results[1].stdout == results[2].stdout == results[0].stdout


@on_gpu
def test_too_little_is_an_internal_error_and_leaves_no_trace():
    program = """
import jax, numpy as np
import jax_mgpu as mgpu
a = np.arange(100_000, dtype=np.int32)
try:
    jax.block_until_ready(mgpu.merge(a, a))
except jax.errors.JaxRuntimeError as error:
    print(error)
print(np.array_equal(mgpu.scan(a), np.cumsum(a, dtype=np.int32)))
"""
    result = run(program, 48 * KIB)
    assert "INTERNAL" in result.stdout, result.stdout + result.stderr[-3000:]
    assert "merge: shared memory: expected a GPU that grants a block" in result.stdout
    assert result.stdout.endswith("True\n"), result.stderr[-3000:]
