"""Functions and orders that are compiled for the CPU, by the tests of the others and over tiles of several threads.

A C++ compiler takes seconds for a function, so few are compiled here, and the rest with --long.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src import library
from tests import test_functions as functions
from tests import test_less as orders
from tests.host_functions import needs_compiler

ROOT = pathlib.Path(__file__).parent.parent
I32, F32 = np.int32, np.float32
TILE = max(library.cpu_library.describe("tile_sizes")["segmented_sort"])


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    """A folder of its own for what is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MGPU_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        yield


COMPILE_NOTHING = ("test_the_call_is_in_the_program", "test_without_a_compiler", "test_a_compiler_that_fails")


@pytest.fixture(autouse=True)
def compiled(request, monkeypatch):
    """What MGPU_CPU_JIT=1 does at the import, on a CPU, whatever else the machine has."""
    if request.node.originalname not in COMPILE_NOTHING:
        needs_compiler()
    monkeypatch.setattr(library, "COMPILES_ON_CPU", True)
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def counts() -> tuple[int, int]:
    """The functions that this process has compiled, and read from the disk."""
    compiled, read = library.cpu_library.describe("compiled_functions")
    return compiled, read


FEW = {
    "in order": lambda rng: functions.test_scan_and_reduce("affine", rng),
    "backwards, without the item": lambda rng: functions.test_flags("affine", True, True, rng),
    "batches": lambda rng: functions.test_batches("affine", rng),
    "segments": lambda rng: functions.test_segments("affine", False, rng),
    "segments over tiles": lambda rng: functions.test_segments_over_tiles("affine", rng),
    "many items": functions.test_many_items,
    "captured": functions.test_traced_captures,
    "sorts": lambda rng: orders.test_sorts("rationals", rng),
    "sorts of segments": lambda rng: orders.test_segments("12 bytes", rng),
}


@pytest.mark.parametrize("what", FEW)
@pytest.mark.long
def test_few(what, rng) -> None:
    FEW[what](rng)


@pytest.mark.long
@pytest.mark.parametrize("case", functions.CASES)
def test_functions(case, rng) -> None:
    functions.test_scan_and_reduce(case, rng)
    functions.test_segments_over_tiles(case, rng)


@pytest.mark.long
@pytest.mark.parametrize("case", ["add", "last set", "matmul 2x2"])
@pytest.mark.parametrize("reverse", [False, True])
def test_directions(case, reverse, rng) -> None:
    for exclusive in (False, True):
        functions.test_flags(case, reverse, exclusive, rng)
    functions.test_segments(case, reverse, rng)


@pytest.mark.long
@pytest.mark.parametrize(
    "test",
    [
        functions.test_floats_are_the_same_in_every_run,
        functions.test_runs_of_keys_and_batches_of_segments,
        functions.test_derivatives,
        orders.test_transformations,
        lambda rng: orders.test_two_inputs("rationals", rng),
        lambda rng: orders.test_sets("union", rng),
        lambda rng: [orders.test_sorts(case, rng) for case in ("by size", "words", "14 bytes")],
        lambda rng: [orders.test_broken_orders_lose_nothing(case, "primitive", rng) for case in orders.BROKEN],
    ],
)
def test_others(test, rng) -> None:
    test(rng)


@pytest.mark.long
@pytest.mark.parametrize("n", [9, 3 * TILE])
def test_subnormals_count(n, rng) -> None:
    """XLA's threads take them for zeros: then what is least of some would be any of them."""
    x = (rng.integers(-9, 10, n) * float(np.finfo(F32).smallest_subnormal)).astype(F32)
    np.testing.assert_array_equal(mgpu.scan(x, "max", map=lambda x: -x), np.maximum.accumulate(-x))
    least = np.minimum.accumulate(x)
    first = np.maximum.accumulate(np.where(x == least, np.arange(n), 0) * (np.append(1, np.diff(least)) != 0))
    np.testing.assert_array_equal(mgpu.scan(x, "argmin", map=lambda x: x + 0), first)
    np.testing.assert_array_equal(mgpu.reduce(x, jnp.maximum), x.max())


def test_the_call_is_in_the_program() -> None:
    """Of a function of both items; what compares keys is sorted by these."""
    x = jnp.arange(10.0)

    def text(function):
        return jax.jit(function).lower(x).as_text()

    assert "jax_mgpu.scan_by_function" in text(lambda x: mgpu.scan(x, lambda a, b: a * b + 1))
    assert "jax_mgpu.reduce_by_function" in text(lambda x: mgpu.reduce(x, map=lambda x: x * 3))
    assert "jax_mgpu.sort_by_function" in text(lambda x: mgpu.mergesort(x, less=lambda a, b: a - b < 1))
    by_keys = text(lambda x: mgpu.mergesort(x, less=lambda a, b: jnp.sin(a) < jnp.sin(b)))
    assert "jax_mgpu.segmented_sort" in by_keys
    assert "by_function" not in by_keys


def quotients(rng, n):
    """Rationals, and float64 numbers that are equal where they are."""
    x = rng.integers(1, 99, n).astype(I32), rng.integers(1, 99, n).astype(I32)
    return x, x[0] / x[1].astype(np.float64)


@pytest.mark.long
def test_sorts_over_tiles(rng) -> None:
    """Rounds of merging within segments and over the whole, up to a count."""
    n, live = 5 * TILE // 2 + 3, 2 * TILE + 5
    x, numbers = quotients(rng, n)
    wanted = np.append(np.argsort(numbers[:live], kind="stable"), np.arange(live, n))
    keys, indices = mgpu.mergesort_indices(x, less=orders.quotient, count=live)
    np.testing.assert_array_equal(indices, wanted)
    functions.expect_equal(keys, [leaf[wanted] for leaf in x])
    functions.expect_equal(mgpu.mergesort(x, less=orders.quotient, count=live), [leaf[wanted] for leaf in x])
    heads = np.array([0, 7, TILE // 2, TILE // 2 + 9, 2 * TILE], I32)
    segments = np.searchsorted(heads, np.arange(n), side="right")
    indices = mgpu.segmented_sort_indices(x, heads, less=orders.quotient)[1]
    np.testing.assert_array_equal(indices, np.lexsort((numbers, segments)))


@pytest.mark.long
def test_broken_orders_over_tiles(rng) -> None:
    """What is no order gives a permutation: neighbouring tiles never take the same item."""
    x = rng.integers(0, 1000, 3 * TILE + 1, np.uint32)
    keys, indices = mgpu.mergesort_indices(x, less=lambda a, b: (a * 40503 ^ b * 10007) % 7 < 3)
    np.testing.assert_array_equal(np.sort(indices), np.arange(len(x)))
    np.testing.assert_array_equal(keys, x[indices])


def test_threads_compile_a_function_once() -> None:
    """Many programs of one function at the same time."""
    x = np.arange(100, dtype=I32)
    before = sum(counts())

    def run(i):
        with jax.default_device(jax.devices("cpu")[0]):  # which holds in the thread that says so
            return jax.jit(lambda x: mgpu.reduce(x[i:], map=lambda x: x * 7 + 3))(x)

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(run, range(8)))
    assert got == [(x[i:] * 7 + 3).sum() for i in range(8)]
    assert sum(counts()) == before + 1


PROGRAM = """
import json, sys, warnings
import numpy as np, jax
from jax_mgpu._src import library
import jax_mgpu as mgpu
x = np.arange(9, dtype=np.int32)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        results = {body}
        results = [int(result) for result in results]
    except Exception as error:
        results = str(error)
said = [str(warning.message) for warning in caught if "jax_mgpu" in str(warning.message)]
counts = library.cpu_library.describe("compiled_functions")
print(json.dumps(dict(results=results, said=said, counts=counts)))
"""
SCAN = "mgpu.scan(x, lambda a, b: a + b + 1)"


def run_program(body: str, **settings: str) -> dict:
    """What a process of its own gives, with these settings in the environment."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MGPU_CPU_")}
    program = textwrap.dedent(PROGRAM).format(body=body)
    done = subprocess.run(
        [sys.executable, "-c", program], env={**variables, "JAX_PLATFORMS": "cpu", **settings}, cwd=ROOT,
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def scan_of(function, x):
    results = [int(x[0])]
    for item in x[1:]:
        results.append(function(results[-1], int(item)))
    return results


def test_without_a_compiler(tmp_path) -> None:
    """Plain JAX runs, with one warning that says what to install."""
    settings = {"MGPU_CPU_JIT": "1", "MGPU_CPU_COMPILER": str(tmp_path / "c++")}
    got = run_program(f"[*{SCAN}, *{SCAN}][:9]", **settings)
    assert got["results"] == scan_of(lambda a, b: a + b + 1, np.arange(9))
    (said,) = got["said"]
    assert f"there is no C++ compiler {tmp_path / 'c++'}: install g++ 11 or newer" in said
    assert got["counts"] == [0, 0]


def test_a_compiler_that_fails(tmp_path) -> None:
    """One error with what the compiler said."""
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exec echo "c++ 1"\necho "no room left" >&2\nexit 1\n')
    compiler.chmod(0o755)
    got = run_program(SCAN, MGPU_CPU_JIT="1", MGPU_CPU_COMPILER=str(compiler))
    assert f"scan_by_function: {compiler} could not compile a function" in got["results"]
    assert "no room left" in got["results"]


@pytest.mark.long
def test_export_and_disk(tmp_path) -> None:
    """A process that loads a program compiles its functions, whatever it is set to, or reads them from the disk."""
    pytest.importorskip("flatbuffers", reason="jax.export serialises with flatbuffers, which is not installed")
    x = np.arange(9, dtype=I32)
    ours = [jax.export.DisabledSafetyCheck.custom_call(library.target("scan_by_function"))]
    exported = jax.export.export(
        jax.jit(lambda x: mgpu.scan(x, lambda a, b: a + b + 5)), disabled_checks=ours, platforms=["cpu"]
    )(x)
    (tmp_path / "program").write_bytes(exported.serialize())
    body = f"jax.export.deserialize(bytearray(open({str(tmp_path / 'program')!r}, 'rb').read())).call(x)"
    for compiled, read in ((1, 0), (0, 1)):
        got = run_program(body, MGPU_CACHE_DIR=str(tmp_path))
        assert got["results"] == scan_of(lambda a, b: a + b + 5, x)
        assert got["counts"] == [compiled, read]
        assert not got["said"]
    for file in tmp_path.glob("*.kernel"):  # what is cut off is not there
        file.write_bytes(file.read_bytes()[:-9])
    assert run_program(body, MGPU_CACHE_DIR=str(tmp_path))["counts"] == [1, 0]


def test_what_cannot_be_compiled_says_so(rng, monkeypatch) -> None:
    from jax_mgpu._src import by_function

    monkeypatch.setattr(by_function, "_WARNED", set())
    x = rng.normal(size=9).astype(F32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = mgpu.scan(x, lambda a, b: jnp.sort(jnp.stack([a, b]))[1])
    np.testing.assert_array_equal(got, np.maximum.accumulate(x))
    assert ["no kernel can be made of" in str(warning.message) for warning in caught] == [True]
