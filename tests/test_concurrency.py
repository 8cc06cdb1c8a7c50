"""Results and memory of many threads and many live programs."""

from __future__ import annotations

import gc
import pathlib
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from tests import oracle
from tests.families import EXAMPLES

THREADS = 8
CALLS = 10_000
N = 1 << 17


def same(got, expected):
    jax.tree.map(oracle.same_bits, got, expected)


@pytest.fixture(scope="module")
def programs():
    """Returns each example's program, not yet compiled, and three draws of its operands."""
    rng = np.random.default_rng(11)
    return [
        (jax.jit(example.call), [jax.device_put(example.make(rng, np.float32)) for _ in range(3)])
        for example in EXAMPLES.values()
    ]


@pytest.mark.long
def test_threads_trace_compile_and_call(programs):
    start = threading.Barrier(THREADS)

    def work(thread):
        start.wait()
        order = np.random.default_rng(thread).permutation(len(programs))
        rounds = [[(i, k, programs[i][0](*programs[i][1][k])) for i in order] for k in (0, 1, 2)]
        return [result for results in rounds for result in results]

    with ThreadPoolExecutor(THREADS) as pool:
        results = [result for results in pool.map(work, range(THREADS)) for result in results]
    expected = [[program(*operands) for operands in cases] for program, cases in programs]
    assert len(results) == THREADS * 3 * len(programs)
    for i, k, result in results:
        same(result, expected[i][k])


def test_threads_share_the_tasks_of_large_calls():
    rng = np.random.default_rng(12)
    keys = rng.integers(0, 1000, N, dtype=np.int32)
    ordered = np.sort(keys)
    heads = np.sort(rng.integers(0, N, 500, dtype=np.int32))
    calls = [
        jax.jit(lambda: mgpu.mergesort(keys, ordered)),
        jax.jit(lambda: mgpu.segmented_sort_indices(keys, heads)),
        jax.jit(lambda: mgpu.scan(keys.astype(np.float32))),
        jax.jit(lambda: mgpu.segmented_reduce(keys.astype(np.float32), heads)),
        jax.jit(lambda: mgpu.join(ordered[::16], ordered[::8], "outer", size=N)),
        jax.jit(lambda: mgpu.set_union(ordered[::2], ordered[::3])),
        jax.jit(lambda: mgpu.sorted_match(ordered[::2], ordered)),
        jax.jit(lambda: mgpu.interval_expand(keys[:500], heads, N)),
        jax.jit(lambda: mgpu.bulk_remove(keys, np.unique(heads))),
    ]
    expected = [call() for call in calls]
    with ThreadPoolExecutor(THREADS) as pool:
        futures = [(i, pool.submit(calls[i])) for _ in range(12) for i in range(len(calls))]
        for i, future in futures:
            same(future.result(timeout=300), expected[i])


def test_threads_give_one_kernel_tables_of_different_sizes():
    """A kernel has one limit of shared memory for all threads: no thread may lower it for the others."""
    x = np.random.default_rng(14).integers(0, 1 << 30, 1 << 16, dtype=np.int32)
    sizes = [100, 13_000, 25_000, 50_000]
    programs = [jax.jit(lambda ids, size=size: mgpu.reduce_by_id(x, ids, size, "max")) for size in sizes]
    ids = [np.arange(x.size, dtype=np.int32) % size for size in sizes]
    expected = [np.full(size, np.iinfo(np.int32).min) for size in sizes]
    for found, its_ids in zip(expected, ids, strict=True):
        np.maximum.at(found, its_ids, x)
    start = threading.Barrier(THREADS)

    def work(thread):
        start.wait()
        order = np.random.default_rng(thread).permutation(20 * len(sizes)) % len(sizes)
        return [(i, np.asarray(programs[i](ids[i]))) for i in order]

    with ThreadPoolExecutor(THREADS) as pool:
        for results in pool.map(work, range(THREADS)):
            for i, got in results:
                np.testing.assert_array_equal(got, expected[i])


def test_operations_of_one_program_side_by_side():
    rng = np.random.default_rng(13)
    keys = rng.integers(0, 1 << 20, N, dtype=np.int32)
    ordered = np.sort(keys)
    operations = [
        lambda x: mgpu.scan(x.astype(np.float32)),
        lambda x: mgpu.set_union(ordered[::2], jax.lax.cummax(x)),
        mgpu.mergesort_indices,
        lambda x: mgpu.segmented_reduce(x, jnp.arange(0, x.size, 7)),
        lambda x: mgpu.join(ordered[::64], jax.lax.cummax(x)[::64], size=1 << 18),
        lambda x: mgpu.sorted_match(ordered, jax.lax.cummax(x)),
    ]
    expected = [jax.jit(operation)(keys) for operation in operations]
    side_by_side = jax.jit(lambda x: [operation(x) for operation in operations])
    for _ in range(20):
        same(side_by_side(keys), expected)


def resident_bytes() -> int:
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not pathlib.Path("/proc/self/statm").exists(), reason="no /proc to read the resident memory from")
def test_memory_is_flat(programs):
    large = np.arange(1 << 14, dtype=np.float32)[::-1].copy()
    calls = [
        *[(program, cases[0]) for program, cases in programs],
        (jax.jit(mgpu.mergesort), jax.device_put((large,))),
        (jax.jit(lambda x: mgpu.scan(x, return_total=True)), jax.device_put((large,))),
        (jax.jit(lambda x: mgpu.set_union(x[::-1], x[::-1])), jax.device_put((large,))),
    ]

    def repeat(times):
        for i in range(times):
            program, operands = calls[i % len(calls)]
            result = program(*operands)
            if i % 100 == 0:
                jax.block_until_ready(result)
        jax.block_until_ready(result)
        gc.collect()

    repeat(CALLS // 5)
    before = resident_bytes()
    repeat(CALLS)
    assert resident_bytes() - before < 4 << 20
