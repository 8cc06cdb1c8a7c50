"""What the first call of each public function costs: how large its program is, and the time until it can run.

Each function is traced, lowered and compiled for 60, 10^6 and 2^26 items, of which only shapes are made: plain, mapped,
derived, and both. Times are of the processor; run it five times and take medians. `python scripts/first_calls.py WORD`
takes the functions whose names have the word, `--sizes 60` fewer sizes, `--no-compile` no times of the compiler.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import jax

from tests import budgets

SIZES = 60, 60 * 16_667, 60 * 1_118_481  # 10^6 and 2^26, as multiples of the examples' own size


def main() -> int:
    """Prints a row for each program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    print("function | program | items | equations | KB of text | trace, lower, compile: seconds of the processor")
    for name, example in budgets.SIZED.items():
        if options.word not in name:
            continue
        for n in options.sizes:
            programs = budgets.programs(example, n)
            with budgets.of_items(n):
                for how, (function, operands) in programs.items():
                    times = [time.process_time()]
                    traced = jax.jit(function).trace(*operands)
                    times.append(time.process_time())
                    lowered = traced.lower()
                    times.append(time.process_time())
                    if not options.no_compile:
                        lowered.compile()
                        times.append(time.process_time())
                    seconds = ", ".join(f"{b - a:.3f}" for a, b in itertools.pairwise(times))
                    size = len(lowered.as_text()) / 1024
                    row = name, how, n, budgets.equations(traced.jaxpr.jaxpr), f"{size:.1f}", seconds
                    print(" | ".join(map(str, row)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
