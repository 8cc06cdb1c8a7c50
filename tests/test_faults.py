"""Failed allocations and wrong direct calls are errors, the next call is right, and threads keep no large memory."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_mgpu._src.core import library

PRELUDE = """
import resource
import jax, jax.numpy as jnp, numpy as np
import jax_mgpu as mgpu

def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) << 10

def virtual():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) << 10
"""

reads_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def run(program: str) -> str:
    """Runs a program in a CPU process, which must succeed; returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(program)], capture_output=True, text=True, check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout.strip()


@reads_proc
def test_a_call_without_memory_is_an_error_and_the_next_is_right():
    """A limit on the address space makes allocations fail on any thread."""
    failures = run("""
        x = np.random.default_rng(0).integers(0, 1 << 30, 1 << 23, dtype=np.int32)
        large, small = jnp.asarray(x), jnp.asarray(x[: 1 << 17])
        ordered = np.sort(x[: small.size])
        cases = [
            (jax.jit(lambda x: mgpu.top_k(x, x.size // 16)[0]), ordered[::-1][: small.size // 16]),
            (jax.jit(lambda x: mgpu.mergesort(x)), ordered),
        ]
        for f, _ in cases:
            jax.block_until_ready([f(large), f(small)])
        failures = 0
        for spare in (20, 60, 100, 140):
            for f, expected in cases:
                resource.setrlimit(resource.RLIMIT_AS, (virtual() + (spare << 20), resource.RLIM_INFINITY))
                try:
                    jax.block_until_ready(f(large))
                except (ValueError, jax.errors.JaxRuntimeError) as error:
                    assert str(error).startswith("RESOURCE_EXHAUSTED"), error
                    failures += 1
                resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                np.testing.assert_array_equal(f(small), expected)
        print(failures)
    """)
    assert int(failures) > 0


@reads_proc
def test_threads_keep_no_large_room():
    grown = run("""
        x = jnp.asarray(np.random.default_rng(0).integers(0, 1 << 30, 1 << 24, dtype=np.int32))
        top = jax.jit(lambda x: mgpu.top_k(x, 3 << 20)[0].sum()).lower(x).compile()
        before = resident()
        jax.block_until_ready(top(x))
        print(resident() - before)
    """)
    assert int(grown) < 64 << 20


SORT = {"descending": 0, "method": 0, "bits": 32, "payload": 0}
NONE, WHOLE = jnp.zeros(0, jnp.int32), jnp.arange(8, dtype=jnp.int32)
DIRECT = {
    "keys of another type": ("segmented_sort", [WHOLE, NONE, NONE, NONE, NONE], ["int8[8]"], SORT),
    "values of another type": (
        "segmented_sort", [WHOLE, NONE, NONE, NONE, WHOLE], ["int32[8]", "float64[8]"], {**SORT, "payload": 1},
    ),
    "an unknown payload": ("segmented_sort", [WHOLE, NONE, NONE, NONE, NONE], ["int32[8]"], {**SORT, "payload": 3}),
    "counts of two widths": (
        "sorted_match", [WHOLE, WHOLE, NONE, NONE],
        ["int64[8]", "int32[8]", "bool[8]", "bool[8]", "int32[]", "int32[]"], {"right": 0},
    ),
    "totals of another width": (
        "scan", [WHOLE, NONE, NONE, NONE], ["int32[8]", "int64[]"], {"op": 4, "exclusive": 0, "reverse": 0, "total": 1},
    ),
    "an invalid flag": ("sorted_search", [WHOLE, WHOLE, NONE, NONE], ["int32[8]"], {"right": 2}),
    "a missing result": ("run_heads", [WHOLE, NONE], ["int32[8]", "int32[8]", "int32[]"], {}),
    "lengths that differ": ("order_statistics", [WHOLE, WHOLE, NONE], ["int32[5]"], {}),
    "another batch": ("top_k", [WHOLE, NONE], ["int32[2,4]", "int32[2,4]"], {"k": 4, "largest": 1}),
}  # fmt: skip


def shaped(text):
    dtype, shape = text.rstrip("]").split("[")
    return np.dtype(dtype), tuple(int(size) for size in shape.split(",") if size)


@pytest.mark.parametrize("name", DIRECT)
def test_a_direct_call_that_is_wrong_is_an_error(name):
    """Such calls come from `jax.ffi.ffi_call` or an edited program; sizing their scratch memory is an error too."""
    operation, operands, results, attributes = DIRECT[name]
    with jax.enable_x64(True):
        avals = [jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in map(shaped, results)]
        scratch = [jax.ShapeDtypeStruct((1 << 20,), np.uint8)] if jax.default_backend() == "gpu" else []
        call = jax.ffi.ffi_call(library.target(operation), [*avals, *scratch])
        with pytest.raises(
            (ValueError, jax.errors.JaxRuntimeError), match=f"INVALID_ARGUMENT: {operation}: .*expected"
        ):
            jax.block_until_ready(
                jax.jit(lambda *x: call(*x, **{k: np.int64(v) for k, v in attributes.items()}))(*operands)
            )
    with pytest.raises(ValueError, match="expected"):
        library.workspace_bytes(operation, operands, avals, attributes)


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="only handlers on a GPU get scratch memory")
@pytest.mark.parametrize("scratch", [None, np.int8])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_a_direct_call_without_scratch_memory_is_an_error(dtype, scratch):
    """The last result of a call without scratch memory could be mistaken for it."""
    x = jnp.arange(8, dtype=dtype)
    avals = [jax.ShapeDtypeStruct((8,), dtype)]
    call = jax.ffi.ffi_call(
        library.target("segmented_sort"), avals + ([jax.ShapeDtypeStruct((1 << 20,), scratch)] if scratch else [])
    )
    attributes = {**SORT, "bits": 8 * x.itemsize}
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="INVALID_ARGUMENT: segmented_sort: expected"):
        jax.block_until_ready(
            jax.jit(lambda: call(x, NONE, NONE, NONE, NONE, **{k: np.int64(v) for k, v in attributes.items()}))()
        )


@pytest.mark.parametrize(
    ("operation", "operands", "results", "attributes"),
    [
        ("join", [(1 << 20,), (1 << 20,), (0,), (0,)], [(1 << 40, 0), (1 << 40, 0), (1 << 40,)],
         {"keep_a": 1, "keep_b": 1}),
        ("sets", [(1 << 20,), (1 << 20,), (0,), (0,), (1,), (0,), (0,), (1,)], [(1 << 40, 0), (1 << 40,)],
         {"kind": 1, "duplicates": 0, "payload": 0}),
        ("merge", [(1 << 20,), (0,), (0,), (0,), (0,), (0,), (0,)], [(1 << 40, 0)],
         {"descending": 0, "payload": 0, "size": 0}),
        ("reduce_rows", [(1, 1 << 40), (0,), (1 << 30,), (0,)], [(0, 1 << 40)], {"op": 0, "wide": 0}),
    ],
)  # fmt: skip
def test_a_batch_that_shares_too_much_is_an_error(operation, operands, results, attributes):
    arrays = [[("int32", shape) for shape in shapes] for shapes in (operands, results)]
    with pytest.raises(ValueError, match=f"{operation}: .*less than 2"):
        library.cpu_library.workspace_bytes(operation, *arrays, attributes)


@pytest.mark.parametrize("size", [1 << 47, 1 << 62, (1 << 62) + 1, (1 << 63) - 1])
def test_sizes_of_no_array_are_an_error(size):
    table = [("uint32", (9,)), ("int32", (9,))]
    bounds = [("int32", (size,))]
    with pytest.raises(ValueError, match="less than 2"):
        library.cpu_library.workspace_bytes(
            "bucket_join",
            [*table, *table, *bounds * 3],
            [("int32", (9,)), ("int32", (9,)), ("int32", ())],
            {"keep_a": 0},
        )
