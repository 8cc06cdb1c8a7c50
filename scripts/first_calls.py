"""Measures the first call of each public function: the size of its program, and the time until it can run.

Functions are traced, lowered and compiled for 60 and for about 10^6 and 2^26 items: plain, under vmap and, if they have
derivatives, under grad and under both. A scan by a caller's operator is compiled plain and under grad. Times are
seconds of CPU time over all threads, the medians of five processes. `python scripts/first_calls.py WORD ...` selects
the functions whose names contain one of the words.

With `--devices 4`, the functions run over a mesh axis of 4 CPU devices, each with 4,096 items.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import jax
import numpy as np

SIZES = 60, 60 * 16_667, 60 * 1_118_481  # the examples' own size, and its multiples near 10^6 and 2^26


def main() -> int:
    """Prints a line for each program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="measure only functions whose names contain a word (default: all)")
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=SIZES, help="numbers of items (default: the three above)"
    )
    parser.add_argument("--devices", type=int, default=0, help="size of the mesh axis (default: no mesh)")
    parser.add_argument("--processes", type=int, default=5, help="processes; their median is shown (default 5)")
    parser.add_argument("--no-compile", action="store_true", help="trace and lower, but do not compile")
    options = parser.parse_args()
    if options.processes == 0:  # a measuring process, started by another
        print(json.dumps(list(costs(options))))
        return 0
    command = [sys.executable, __file__, *sys.argv[1:], "--processes", "0"]
    runs = [json.loads(subprocess.check_output(command, text=True)) for _ in range(options.processes)]
    print("function | program | items | equations | KB of text | trace, lower, compile: seconds of CPU time")
    for (name, how, n, equations, size, _), *times in zip(
        runs[0], *([row[-1] for row in run] for run in runs), strict=True
    ):
        seconds = ", ".join(f"{statistics.median(part):.3f}" for part in zip(*times, strict=True))
        print(f"{name} | {how} | {n} | {equations} | {size:.1f} | {seconds}")
    return 0


def costs(options: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    """Yields the name, transformation, number of items and costs of each selected program."""
    rows = programs_over_devices(options.devices) if options.devices else programs_of_examples(options.sizes)
    is_warm = False
    for name, how, n, trace in rows:
        if not options.words or any(word in name for word in options.words):
            if not is_warm:  # this initializes parts of JAX
                jax.jit(lambda x: x + 1).lower(1).compile()
                is_warm = True
            yield name, how, n, *cost(trace, compiles=not options.no_compile)


Row = tuple[str, str, int, Callable[[], Any]]


def programs_of_examples(sizes: list[int]) -> Iterator[Row]:
    """Yields each program's function name, transformation and number of items, and a function that traces it."""
    from tests import budgets

    for name in ("scan by a function", *budgets.SIZED):
        for n in sizes:
            programs = budgets.programs(budgets.SIZED[name], n) if name in budgets.SIZED else scans_by_a_function(n)
            for how, (function, operands) in programs.items():

                def trace(function: Any = function, operands: Any = operands, n: int = n) -> Any:
                    with budgets.of_items(n):
                        return jax.jit(function).trace(*operands)

                yield name, how, n, trace


def scans_by_a_function(n: int) -> dict[str, tuple[Callable[..., Any], list[Any]]]:
    """Returns the programs of a scan of affine maps, which are loops on a CPU."""
    import jax_mgpu as mgpu

    def scan(a: Any, b: Any) -> Any:
        return mgpu.scan((a, b), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]))[1]

    x = jax.ShapeDtypeStruct((n,), np.float32)
    return {"plain": (scan, [x, x]), "grad": (jax.grad(lambda a, b: scan(a, b).sum(), argnums=(0, 1)), [x, x])}


def programs_over_devices(devices: int) -> Iterator[Row]:
    """Yields the programs of functions over a mesh axis, as `programs_of_examples` does."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices} {os.environ.get('XLA_FLAGS', '')}"
    from tests import mesh, test_mesh_programs

    there = mesh.mesh_of(devices)
    for name, call in {**test_mesh_programs.ONE, **test_mesh_programs.TWO}.items():

        def trace(call: Any = call) -> Any:
            return test_mesh_programs.traced(call, devices, mesh_of_devices=there)

        yield name, f"{devices} devices", test_mesh_programs.SLOTS, trace


def cost(trace: Callable[[], Any], *, compiles: bool) -> tuple[int, float, list[float]]:
    """Measures a program: its equations, the KB of its text, and the seconds to trace, lower and compile it."""
    from tests import budgets

    gc.collect()  # or this program would pay for the objects of earlier ones
    times = [time.process_time()]
    traced = trace()
    times.append(time.process_time())
    lowered = traced.lower()
    times.append(time.process_time())
    if compiles:
        lowered.compile()
        times.append(time.process_time())
    seconds = [after - before for before, after in itertools.pairwise(times)]
    return budgets.equations(traced.jaxpr.jaxpr), len(lowered.as_text()) / 1024, seconds


if __name__ == "__main__":
    raise SystemExit(main())
