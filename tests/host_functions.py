"""Compiles functions of callers into a library for the host, and applies them to arrays of items.

So the C++ that is generated from a jaxpr runs without a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib
import shutil
import subprocess
import tempfile

import jax
import numpy as np
import pytest

from jax_mgpu._src.core import library
from jax_mgpu._src.functions import emit

FFI = pathlib.Path(__file__).parent.parent / "ffi"

LOOP = """
extern "C" void apply{number}(const void* const* a, const void* const* b, void* const* to, const void* const* captures,
                              long n) {{
  Function function{{}};
  for (int i = 0; i < {captures}; ++i) function.captures.arrays[i] = captures[i];
  for (long i = 0; i < n; ++i) {{
    Function::Item x, y;
    mgpu::for_each_leaf<Function::Item>([&]<int kLeaf>() {{
      auto& leaf = Function::Item::leaf<kLeaf>(x);
      memcpy(leaf, static_cast<const char*>(a[kLeaf]) + i * sizeof(leaf), sizeof(leaf));
      memcpy(Function::Item::leaf<kLeaf>(y), static_cast<const char*>(b[kLeaf]) + i * sizeof(leaf), sizeof(leaf));
    }});
    Function::Item combined = function.combine(x, y);
    mgpu::for_each_leaf<Function::Item>([&]<int kLeaf>() {{
      auto& leaf = Function::Item::leaf<kLeaf>(combined);
      memcpy(static_cast<char*>(to[kLeaf]) + i * sizeof(leaf), leaf, sizeof(leaf));
    }});
  }}
}}
"""


def cpp(data: str) -> str:
    """Returns the C++ that the CPU library generates from a function's data."""
    return library.cpu_library.function_source(data)


def trace(function, item):
    """Traces a function of two items as a jaxpr of their leaves; also returns the leaves of one item."""
    leaves, structure = jax.tree.flatten(item)

    def flat(*xs):
        a, b = structure.unflatten(xs[: len(leaves)]), structure.unflatten(xs[len(leaves) :])
        return jax.tree.leaves(function(a, b))

    return jax.make_jaxpr(flat)(*leaves, *leaves), leaves


def operator(function, item) -> emit.OperatorData:
    closed, leaves = trace(function, item)
    assert [(x.shape, x.dtype) for x in closed.out_avals] == [(x.shape, x.dtype) for x in leaves]
    return emit.emit_operator(closed, leaves)


@functools.cache
def working_compiler() -> str | None:
    """Returns a C++ compiler that can also assemble and link; None if there is none."""
    name = shutil.which("c++") or shutil.which("g++")
    if name is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        command = [name, "-shared", "-x", "c++", "-", "-o", f"{folder}/empty.so"]
        made = subprocess.run(command, input="", text=True, capture_output=True, check=False)
    return name if made.returncode == 0 else None


def needs_compiler() -> str:
    return working_compiler() or pytest.skip("needs a C++ compiler, with assembler and linker")


def compile_library(text: str) -> ctypes.CDLL:
    """Compiles a source that includes the project's headers, and loads it."""
    command = [needs_compiler(), "-std=c++20", "-O0", "-ffp-contract=off", "-w", "-fPIC", "-shared", f"-I{FFI}"]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "functions.cc").write_text(text)
        subprocess.run([*command, str(path / "functions.cc"), "-o", str(path / "functions.so")], check=True)
        return ctypes.CDLL(str(path / "functions.so"))


def build(operators) -> ctypes.CDLL:
    text = [
        '#include <cstring>\n#include "function/item.h"\n#include "function/primitives.h"\nnamespace xla = mgpu::xla;'
    ]
    for number, source in enumerate(operators):
        loop = LOOP.format(number=number, captures=len(source.captures))
        text.append(f"namespace function{number} {{\n{cpp(source.data)}{loop}}}")
    return compile_library("\n".join(text))


def apply(library, number: int, source: emit.OperatorData, a, b) -> list[np.ndarray]:
    """Applies a compiled function to arrays, item by item."""
    a, b = ([np.ascontiguousarray(x) for x in jax.tree.leaves(items)] for items in (a, b))
    results = [np.zeros_like(x) for x in a]
    captures = [np.ascontiguousarray(np.asarray(x)) for x in source.captures]

    def pointers(arrays):
        return (ctypes.c_void_p * max(1, len(arrays)))(*(x.ctypes.data for x in arrays))

    run = getattr(library, f"apply{number}")
    run(pointers(a), pointers(b), pointers(results), pointers(captures), ctypes.c_long(len(a[0])))
    return results


@functools.cache
def corner_values(dtype: np.dtype) -> np.ndarray:
    if dtype == np.bool_:
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array([info.min, info.max, 0, 1, 2, 3, 7, info.max - 1, info.min + 1, dtype.itemsize * 8], dtype)
    return np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 100.0, -3.5], dtype)


def items(rng: np.random.Generator, shape, dtype, n: int) -> np.ndarray:
    """Draws items with corner values."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iub":
        wide = rng.integers(0, 2**63, (n, *shape), dtype=np.uint64) * 2 + rng.integers(0, 2, (n, *shape), np.uint64)
        x = wide.astype(dtype) if dtype != np.bool_ else (wide & 1).astype(bool)
        if dtype != np.bool_:
            x = np.where(rng.random(x.shape) < 0.4, (wide % 9).astype(dtype), x)
    else:
        x = (rng.normal(size=(n, *shape)) * 3).astype(dtype)
    corners = corner_values(dtype)
    return np.where(rng.random(x.shape) < 0.33, corners[rng.integers(0, len(corners), x.shape)], x)
