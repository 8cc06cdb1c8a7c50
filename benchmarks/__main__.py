"""The command line: `python -m benchmarks [--families a,b] [--match TEXT] [--scale S] [--output FOLDER]`."""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import random
import sys

import jax

from benchmarks import cpu, eager, first_calls, latency, mesh, report, shapes
from benchmarks.case import Case
from benchmarks.runner import Runner, all_cases, grid_cases, select
from benchmarks.turns import Turns, part_of, run_parts, visible_gpus

CPU_SCALE = 2.0**-6


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Times the rows of each family against XLA, CUB, Thrust and NumPy, and checks that they agree.",
    )
    parser.add_argument("--families", default="", help="comma-separated; default: all")
    parser.add_argument("--match", action="append", default=[], metavar="TEXT", help="rows whose name holds TEXT")
    parser.add_argument("--scale", type=float, help="sizes relative to 2^26, of --mesh to 2^28 (default: 1; CPU: 2^-6)")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="samples a timing (default 5)")
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", help="save benchmarks.json there")
    parser.add_argument("--list", action="store_true", help="print the rows' names and stop")
    parser.add_argument("--only-ours", action="store_true", help="leave the rivals out")
    parser.add_argument("--once", action="store_true", help="run our side once, untimed: for profilers")
    parser.add_argument("--latency", action="store_true", help="small chained calls, with command buffers and without")
    parser.add_argument("--first-calls", action="store_true", help="what functions cost until their kernels are there")
    parser.add_argument("--eager", action="store_true", help="calls outside of jit of 3 and 1,000 items, beside peers")
    parser.add_argument("--cpu", action="store_true", help="what is asked of the CPU kernels; --match chooses rows")
    parser.add_argument("--shapes", action="store_true", help="rows, types and distributions where speed falls off")
    parser.add_argument("--mesh", action="store_true", help="operations over all devices, beside one of them")
    parser.add_argument("--grid", action="store_true", help="the rows of a family's whole grid instead: sort")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of the rows, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of --sample (default 0)")
    parser.add_argument("--quick", action="store_true", help="short timings, but of us and rivals that come close")
    parser.add_argument("--processes", type=int, metavar="N", help="N processes compile, and take turns on the device")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="spread these processes over N GPUs")
    parser.add_argument("--skip", type=pathlib.Path, metavar="FILE", help="leave out rows that this file has saved")
    parser.add_argument("--part", metavar="I/N", help=argparse.SUPPRESS)  # the share of one of these processes
    parser.add_argument("--turns", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--calls", type=int, default=40, metavar="N", help="calls in a chain of --latency")
    options = parser.parse_args(arguments)
    options.families = [name for name in options.families.split(",") if name]
    known = {case.family for case in all_cases()}
    unknown = sorted(set(options.families) - known)
    if unknown:
        parser.error(f"--families: expected some of {', '.join(sorted(known))}, got {', '.join(unknown)}")
    if options.scale is not None and not options.scale > 0:
        parser.error(f"--scale: expected a positive number, got {options.scale}")
    if options.processes is not None and options.processes < 1:
        parser.error(f"--processes: expected a positive number, got {options.processes}")
    if not 1 <= options.gpus <= (options.processes or 1):
        parser.error(f"--gpus: expected a number from 1 to that of --processes, got {options.gpus}")
    if visible_gpus() and options.gpus > len(visible_gpus()):
        parser.error(f"--gpus: expected those of CUDA_VISIBLE_DEVICES, {len(visible_gpus())}, got {options.gpus}")
    options.cases = chosen(options, parser)
    if options.part is not None:
        options.processes = None
    return options


def chosen(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Case]:
    """The rows that the options select."""
    rows = grid_cases() if options.grid else all_cases()
    cases = select(rows, options.families, options.match)
    if not (cases or options.shapes or options.mesh or options.cpu):
        parser.error(f"--match: no row holds {' or '.join(options.match)}")
    if options.skip is not None:
        if not options.skip.is_file():
            parser.error(f"--skip: expected a file, got {options.skip}")
        saved = report.saved_rows(options.skip)
        cases = [case for case in cases if case.row not in saved]
    if options.sample is not None:
        if not 1 <= options.sample <= len(cases):
            parser.error(f"--sample: expected a number from 1 to {len(cases)}, got {options.sample}")
        drawn = sorted(random.Random(options.seed).sample(range(len(cases)), options.sample))
        cases = [cases[i] for i in drawn]
    return cases if options.part is None else part_of(cases, *map(int, options.part.split("/")))


def main(arguments: list[str]) -> int:
    """Runs what was requested; returns 1 if a row failed."""
    options = parse(arguments)
    if options.list:
        print("\n".join(case.row for case in options.cases))
        return 0
    others = {
        "eager": eager.main,
        "cpu": lambda: cpu.main(options.match),
        "latency": lambda: latency.main(options),
        "first_calls": lambda: first_calls.main(options.calls),
        "processes": lambda: run_parts(arguments, options.processes, options.gpus, options.output),
    }
    for name, other in others.items():
        if getattr(options, name):
            return other()
    scale = options.scale or (CPU_SCALE if jax.default_backend() == "cpu" else 1.0)
    if options.mesh:
        return mesh.main(scale, options.repeat, options.match)
    if options.shapes:
        return shapes.main(scale, options.output, options.match)
    turn = Turns(options.turns) if options.turns else contextlib.nullcontext
    runner = Runner(scale, options.repeat, with_peers=not options.only_ours, quick=options.quick, turn=turn)
    if options.once:
        results = [runner.once(case) for case in options.cases]
        for result in results:
            print(f"{result.case.row}: {result.ours.error or 'ran'}", flush=True)
        return int(any(result.failed for result in results))

    copy_rate = runner.copy_rate()
    run = report.describe_run(runner, copy_rate)
    rows = []
    for case in options.cases:
        rows.append(report.row_record(runner.run(case), copy_rate, runner.judged))
        print(f"{case.row}: {rows[-1]['seconds']:.1f} s", file=sys.stderr, flush=True)
        if options.output:
            report.save(options.output, run, rows)
    failures = [failure for row in rows for failure in report.row_failures(row)]
    print(*failures, report.table(run, rows), sep="\n")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
