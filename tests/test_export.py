"""Programs exported with unknown sizes, or kept in the compilation cache by an earlier process."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.core import operation
from tests.examples import N
from tests.families import EXAMPLES
from tests.transformed import agree, batch_of, every_function
from tests.variants import long_but

ROOT = pathlib.Path(__file__).parents[1]
LENGTH, BATCH = jax.export.symbolic_shape("n, batch")
# In these functions, the number of items is the size of a result or of a bitmap.
OF_KNOWN_SIZES = {
    "bulk_insert",
    "bulk_remove",
    "dispatch",
    "merge",
    "partition",
    "scan_by_key",
    "segmented_log_softmax",
    "segmented_softmax",
    "segmented_sort_indices",
    "set_difference",
    "set_intersection",
    "set_symmetric_difference",
    "set_union",
    "unique",
}


@pytest.fixture
def on_cpu():
    """Programs of unknown sizes run only on a CPU: scratch memory on CUDA has a fixed size."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def exported(function, *operands):
    checks = mgpu.export_checks()
    return jax.export.export(jax.jit(function), platforms=["cpu"], disabled_checks=checks)(*operands)


def test_kernels_of_functions_may_be_exported():
    names = str(mgpu.export_checks())
    for name in ("reduce_by_function", "scan_by_function", "sort_by_function"):
        assert f"jax_mgpu.{name}" in names


@pytest.mark.usefixtures("on_cpu")
@every_function
def test_batches_of_any_size(example, rng):
    one = example.make(rng, np.float32)
    shapes = [jax.ShapeDtypeStruct((BATCH, *np.shape(x)), np.asarray(x).dtype) for x in one]
    program = exported(jax.vmap(example.call), *shapes)
    for size in (1, 3):
        batch = batch_of(example, rng, size)
        got, expected = (jax.tree.leaves(call(*batch)) for call in (program.call, jax.jit(jax.vmap(example.call))))
        agree(got, expected, example.exact)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", long_but([name for name in EXAMPLES if "," not in name], EXAMPLES))
def test_arrays_of_any_length(name, rng):
    example, function = EXAMPLES[name], name.split(",")[0]
    operands = [np.asarray(x) for x in example.make(rng, np.float32)]
    lengths = [[n // N * LENGTH if n and n % N == 0 else n for n in x.shape] for x in operands]
    shapes = [jax.ShapeDtypeStruct(n, x.dtype) for n, x in zip(lengths, operands, strict=True)]
    try:
        program = exported(example.call, *shapes)
    except (TypeError, ValueError) as error:
        of_what = function if function in OF_KNOWN_SIZES else "softmax_by_id"  # the example "group_ids, taken" calls it
        assert f"{of_what}: " in str(error) and "expected" in str(error)
    else:
        agree(*(jax.tree.leaves(call(*operands)) for call in (program.call, example.call)), example.exact)


@pytest.mark.usefixtures("on_cpu")
def test_constraints_tell_of_sizes(rng):
    (n,) = jax.export.symbolic_shape("n", constraints=["n >= 101"])
    keys, some = np.sort(rng.integers(0, 99, 150).astype(np.int32)), np.arange(100, dtype=np.int32)
    program = exported(lambda keys: mgpu.set_intersection(keys, some), jax.ShapeDtypeStruct((n,), np.int32))
    agree(jax.tree.leaves(program.call(keys)), jax.tree.leaves(mgpu.set_intersection(keys, some)))


ON_THE_HOST = {
    "Segments": lambda x: mgpu.segmented_reduce(x, mgpu.Segments.from_lengths([2, 1])),
    "Segments of Ragged": lambda x: mgpu.Ragged(x, mgpu.Segments.from_lengths([2, 1])).sum(),
    "offsets of Ragged": lambda x: mgpu.Ragged(x, np.array([0, 2, 3])).sort().max(),
    "lengths of Ragged": lambda x: mgpu.Ragged.from_lengths(x, [2, 1]).mean(),
    "offsets of Csr": lambda x: mgpu.Csr(x, jnp.zeros(x.shape, int), [0, 2, 3], (2, 2)) @ np.ones(2, np.float32),
}


@pytest.mark.parametrize("name", ON_THE_HOST)
@pytest.mark.usefixtures("on_cpu")
def test_rows_on_the_host_of_an_unknown_number_of_items(name):
    call, x = ON_THE_HOST[name], np.float32([3, 1, 4, 1, 5])
    program = exported(call, jax.ShapeDtypeStruct((LENGTH,), np.float32))
    np.testing.assert_array_equal(program.call(x), call(x))


def test_kernels_of_cuda_need_known_sizes(monkeypatch):
    """CUDA's lowering rule sizes scratch memory; the test calls it directly, so that it needs no GPU."""
    op = operation.REGISTRY["scan"]
    monkeypatch.setattr(operation, "automatic_devices", lambda _: 1)
    rule = operation._kernel_lowering(op, "cuda", lambda *_: None)
    x = jax.core.ShapedArray((BATCH, 8), np.dtype(np.float32))
    absent = jax.core.ShapedArray((0,), np.dtype(np.int32))
    context = type("Context", (), {"avals_in": [x, absent, absent, absent], "avals_out": []})
    with pytest.raises(ValueError, match=r"^scan: x: expected known sizes, got float32\[batch,8\]: The scratch memory"):
        rule(context)


AGAIN = """
import gc, json, sys, time
import jax, numpy as np
from tests.families import EXAMPLES
from tests.transformed import loss_of_sums
gc.disable()  # a collection of garbage would count as part of a program's start
hits, misses = [], []
events = {"/jax/compilation_cache/cache_hits": hits, "/jax/compilation_cache/cache_misses": misses}
jax.monitoring.register_event_listener(lambda event, **_: events.get(event, []).append(event))
report = {}
for name, example in EXAMPLES.items():
    operands = example.make(np.random.default_rng(1), np.float32)
    calls = {"in jit": jax.jit(example.call), "outside": example.call}
    if example.differentiable:
        calls["derived"] = jax.jit(jax.grad(loss_of_sums(example), argnums=example.differentiable))
    for how, call in calls.items():
        before, start = len(misses), time.process_time()
        jax.block_until_ready(call(*operands))
        report[f"{name}, {how}"] = len(misses) - before, time.process_time() - start
print(json.dumps([report, len(hits)]))
"""
MAX_SECONDS = 0.2  # limit of processor time for a cached program


@pytest.mark.long
def test_a_second_process_compiles_nothing(tmp_path):
    always = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path), **always}
    command = [sys.executable, "-c", AGAIN]
    shortest = {}  # the shorter times of two processes, because other work may disturb one
    for process in range(3):
        run = subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        report, hits = json.loads(run.stdout.splitlines()[-1])
        assert hits if process else any(misses for misses, _ in report.values())
        if process:
            assert not {name for name, (misses, _) in report.items() if misses}
            shortest = {name: min(seconds, shortest.get(name, seconds)) for name, (_, seconds) in report.items()}
    assert not {name: seconds for name, seconds in shortest.items() if seconds > MAX_SECONDS}
