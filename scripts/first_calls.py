"""The cost of the first call of each public function: the size of its program, and the time until it can run.

Each function is traced, lowered and compiled for 60, 10^6 and 2^26 items, given only as shapes: plain, mapped, derived,
and both. Times are processor times; run it five times and take medians. `python scripts/first_calls.py WORD` selects
the functions whose names contain the word, `--sizes 60` selects sizes, `--no-compile` leaves out the compiler.

With `--devices 4`, the programs are those of a mesh axis of this many CPU devices, each with 4,096 items.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import jax

SIZES = 60, 60 * 16_667, 60 * 1_118_481  # 10^6 and 2^26, as multiples of the examples' own size


def main() -> int:
    """Prints a row for each program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--devices", type=int, default=0)
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    print("function | program | items | equations | KB of text | trace, lower, compile: seconds of the processor")
    rows = programs_over_devices(options.devices) if options.devices else programs_of_examples(options.sizes)
    for name, how, n, trace in rows:
        if options.word in name:
            print(" | ".join(map(str, (name, how, n, *cost(trace, compiles=not options.no_compile)))), flush=True)
    return 0


Row = tuple[str, str, int, Callable[[], Any]]


def programs_of_examples(sizes: list[int]) -> Iterator[Row]:
    """Each function's programs: its name, its transformation, the number of items, and a function that traces it."""
    from tests import budgets

    for name, example in budgets.SIZED.items():
        for n in sizes:
            programs = budgets.programs(example, n)
            for how, (function, operands) in programs.items():

                def trace(function: Any = function, operands: Any = operands, n: int = n) -> Any:
                    with budgets.of_items(n):
                        return jax.jit(function).trace(*operands)

                yield name, how, n, trace


def programs_over_devices(devices: int) -> Iterator[Row]:
    """The same for the functions over a mesh axis."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices} {os.environ.get('XLA_FLAGS', '')}"
    from tests import mesh, test_mesh_programs

    there = mesh.mesh_of(devices)
    for name, call in {**test_mesh_programs.ONE, **test_mesh_programs.TWO}.items():

        def trace(call: Any = call) -> Any:
            return test_mesh_programs.traced(call, devices, mesh_of_devices=there)

        yield name, f"{devices} devices", test_mesh_programs.SLOTS, trace


def cost(trace: Callable[[], Any], *, compiles: bool) -> tuple[int, str, str]:
    """The number of equations of a program, KB of its text, and the seconds to trace, lower and compile it."""
    from tests import budgets

    times = [time.process_time()]
    traced = trace()
    times.append(time.process_time())
    lowered = traced.lower()
    times.append(time.process_time())
    if compiles:
        lowered.compile()
        times.append(time.process_time())
    seconds = ", ".join(f"{b - a:.3f}" for a, b in itertools.pairwise(times))
    return budgets.equations(traced.jaxpr.jaxpr), f"{len(lowered.as_text()) / 1024:.1f}", seconds


if __name__ == "__main__":
    raise SystemExit(main())
