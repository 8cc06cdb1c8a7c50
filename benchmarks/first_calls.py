"""Times a function's first call, whose kernels are compiled or read from the disk, and small calls after it.

Two processes share a folder of compiled kernels, empty at first: the first compiles by NVRTC, the second reads the
kernels from the disk. Each process compiles each program twice. The second time the kernels are loaded already, so the
difference is the time of the kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks.latency import NO_COMMAND_BUFFERS, chain_times
from benchmarks.measure import compile_program
from jax_mgpu._src.core import library

__all__ = ["main"]

ITEMS = 4096
FIRST_CALL, FROM_DISK = 1.0, 0.1  # limits in seconds


def _affine(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] * b[0] + b[1]


def _product(a: Any, b: Any) -> Any:
    return a @ b


def _later(a: Any, b: Any) -> Any:
    return jnp.where(jnp.isnan(b), a, b)


# Calls take x (float32) and heads. The first one loads NVRTC.
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "the first of a process": lambda x, heads: mgpu.reduce(x, _later),
    "reduce of affine maps": lambda x, heads: mgpu.reduce((x, x), _affine),
    "scan of affine maps": lambda x, heads: mgpu.scan((x, x), _affine),
    "scan of matrices 2 x 2": lambda x, heads: mgpu.scan(x.reshape(-1, 2, 2), _product),
    "segmented_scan of affine maps": lambda x, heads: mgpu.segmented_scan((x, x), heads, _affine),
    "segmented_reduce, the latest": lambda x, heads: mgpu.segmented_reduce(x, heads, _later, identity=0.0),
    "reduce, map=": lambda x, heads: mgpu.reduce(x, "max", map=lambda x: jnp.exp(x) * x),
    "mergesort by less, 4 bytes": lambda x, heads: mgpu.mergesort(x, less=lambda a, b: a * a < b * b),
    "mergesort by less, 12 bytes": lambda x, heads: mgpu.mergesort((x, x, x), less=lambda a, b: a[0] * b[1] < b[0]),
}


def main(calls: int) -> int:
    """Prints a line for each call; returns 1 if a time exceeds its limit."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = (_in_a_process(folder, calls if again else 0) for again in (False, True))
    print(f"{first['device']}, {ITEMS} items; seconds of a first call, then microseconds of {calls} calls in a chain")
    if not first["has_kernels"]:
        print("Functions run in plain JAX here: there are no kernels to compile.")
    columns = (
        "traced + compiled (of it kernels) + run = first call",
        "compiled, with kernels read from the disk (of it kernels)",
        "chains of small calls",
    )
    print("call: " + " | ".join(columns))
    missed = 0
    for name in CALLS:
        a, b = first["rows"][name], second["rows"][name]
        total = a["traced"] + a["compiled"] + a["run"]
        kernels, read = a["compiled"] - a["again"], b["compiled"] - b["again"]
        is_missed = first["has_kernels"] and (total > FIRST_CALL or read > FROM_DISK)
        missed += is_missed
        print(
            f"{name}: {a['traced']:.2f} + {a['compiled']:.2f} ({kernels:.2f}) + {a['run']:.3f} = {total:.2f} | "
            f"{b['compiled']:.2f} ({read:.3f}) | {b['chains']}" + " MISSED" * is_missed
        )
    print(f"kernels compiled, read from the disk: {first['counts']}, then {second['counts']}")
    return int(missed > 0)


def _in_a_process(folder: str, calls: int) -> Any:
    environment = {**os.environ, "MGPU_CACHE_DIR": folder, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    command = [sys.executable, "-m", "benchmarks.first_calls", str(calls)]
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def _measured(calls: int) -> Any:
    """Measures all calls in this process, with chains of `calls` small calls."""
    x = jnp.asarray(np.random.default_rng(0).random(ITEMS, np.float32))
    heads = jnp.arange(0, ITEMS, 32)
    jax.block_until_ready(jax.jit(lambda x: mgpu.sort(x) + mgpu.scan(x))(x))  # initializes parts of JAX
    rows = {}
    for name, call in CALLS.items():
        begin = time.perf_counter()
        lowered = jax.jit(call).lower(x, heads)
        traced = time.perf_counter()
        program = lowered.compile()
        compiled = time.perf_counter()
        jax.block_until_ready(program(x, heads))
        ran = time.perf_counter()
        same = jax.jit(lambda *xs, call=call: call(*xs)).lower(x, heads)
        begin_again = time.perf_counter()
        same.compile()
        again = time.perf_counter() - begin_again
        row: dict[str, Any] = {"traced": traced - begin, "compiled": compiled - traced, "run": ran - compiled}
        rows[name] = {**row, "again": again, "chains": _chains(call, (x, heads), calls) if calls else ""}
    counts = library.cuda_library.compiled_functions() if library.cuda_library else None
    has_kernels = jax.default_backend() == "gpu" and not library.compiler_problem()
    return {"device": jax.devices()[0].device_kind, "has_kernels": has_kernels, "rows": rows, "counts": counts}


def _chains(call: Callable[..., Any], inputs: tuple[Any, ...], calls: int) -> str:
    parts = [f"with command buffers: {chain_times(compile_program(call, [inputs] * calls))}"]
    if jax.default_backend() == "gpu":
        parts.append(f"without: {chain_times(compile_program(call, [inputs] * calls, NO_COMMAND_BUFFERS))}")
    return "; ".join(parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("calls", type=int)
    print(json.dumps(_measured(parser.parse_args().calls)))
