"""Prints the lines and times of both forms of each model: `python -m tests.models [--items N] [MODEL ...]`."""

from __future__ import annotations

import argparse
import time

import jax
import numpy as np

from tests.models import NAMES, exported, lines_of, model, program


def milliseconds(runs, arguments, repeats: int) -> list[float]:
    """Returns each program's shortest time in milliseconds; programs take turns."""
    times = [[] for _ in runs]
    for repeat in range(repeats + 1):
        for run, of_run in zip(runs, times, strict=True):
            begin = time.perf_counter()
            jax.block_until_ready(run(*arguments))
            if repeat:  # the first run compiles
                of_run.append(1e3 * (time.perf_counter() - begin))
    return [min(of_run) for of_run in times]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--items", type=int, default=100_000, help="about so many items (default 100,000)")
    parser.add_argument("--repeats", type=int, default=15, help="runs of each form; the shortest counts (default 15)")
    options = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, {options.items:,} items; ms\n")
    print("| model | lines | in plain JAX | share | jax_mgpu | plain JAX | share |\n|---|---|---|---|---|---|---|")
    for name in options.models or NAMES:
        module = model(name)
        arguments = jax.device_put(module.inputs(np.random.default_rng(0), options.items))
        lines = [lines_of(getattr(module, form)) for form in ("ours", "plain")]
        forms = [program(module, form) for form in ("ours", "plain")]
        if hasattr(module, "EXPORTED"):
            forms = [exported(form, arguments) for form in forms]
        times = milliseconds(forms, arguments, options.repeats)
        row = [name, *lines, f"{lines[0] / lines[1]:.2f}", *(f"{t:.2f}" for t in times), f"{times[0] / times[1]:.2f}"]
        print("|", " | ".join(map(str, row)), "|", flush=True)


if __name__ == "__main__":
    main()
