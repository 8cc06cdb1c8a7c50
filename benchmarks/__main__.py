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
    """Parses and checks the command line; `cases` are those that the options select."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Times cases against XLA, CUB, Thrust, NumPy and PyTorch, and compares results, except PyTorch's.",
    )
    parser.add_argument("--families", default="", help="comma-separated names of families (default: all)")
    parser.add_argument("--match", action="append", default=[], metavar="TEXT", help="cases whose name contains TEXT")
    parser.add_argument("--grid", action="store_true", help="run the full grids of the families `names` and `sort`")
    parser.add_argument("--sample", type=int, metavar="N", help="run N of the cases, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="seed by which --sample draws the cases (default 0)")
    parser.add_argument("--skip", type=pathlib.Path, metavar="FILE", help="skip the cases whose times FILE contains")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    parser.add_argument("--once", action="store_true", help="call our function once per case, untimed: for profilers")
    parser.add_argument("--latency", action="store_true", help="time chains of small calls, with and without graphs")
    parser.add_argument("--first-calls", action="store_true", help="time first calls, which compile their kernels")
    parser.add_argument("--eager", action="store_true", help="time calls outside of jit on 3 and on 1,000 items")
    parser.add_argument("--cpu", action="store_true", help="compare the CPU kernels with their goals")
    parser.add_argument(
        "--shapes", action="store_true", help="search row lengths, types and distributions for slow ones"
    )
    parser.add_argument("--mesh", action="store_true", help="compare operations over all devices with one device")
    scales = "size as a fraction of 2^26 items (2^28 with --mesh); default 1, on CPU 2^-6"
    parser.add_argument("--scale", type=float, help=scales)
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="samples per timing (default 5)")
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", help="save benchmarks.json in FOLDER")
    parser.add_argument("--only-ours", action="store_true", help="time only our functions, not their peers")
    parser.add_argument(
        "--quick", action="store_true", help="take short samples, unless a peer is about as fast as ours"
    )
    parser.add_argument("--processes", type=int, metavar="N", help="compile in N processes, which share the device")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="spread the processes over N GPUs (default 1)")
    parser.add_argument(
        "--calls", type=int, default=40, metavar="N", help="calls in a chain of small calls (default 40)"
    )
    parser.add_argument("--part", metavar="I/N", help=argparse.SUPPRESS)  # --processes passes this
    parser.add_argument("--turns", type=pathlib.Path, help=argparse.SUPPRESS)  # --processes passes this lock file
    options = parser.parse_args(arguments)
    options.families = [name for name in options.families.split(",") if name]
    known = {case.family for case in (grid_cases() if options.grid else all_cases())}
    unknown = sorted(set(options.families) - known)
    if unknown:
        parser.error(f"--families: expected names among {', '.join(sorted(known))}, got {', '.join(unknown)}")
    if options.scale is not None and not options.scale > 0:
        parser.error(f"--scale: expected a positive number, got {options.scale}")
    if options.processes is not None and options.processes < 1:
        parser.error(f"--processes: expected a positive number, got {options.processes}")
    processes, visible = options.processes or 1, len(visible_gpus())
    if not 1 <= options.gpus <= processes:
        parser.error(f"--gpus: expected 1 to {processes}, the number of processes, got {options.gpus}")
    if visible and options.gpus > visible:
        parser.error(f"--gpus: expected at most {visible}, the number of visible GPUs, got {options.gpus}")
    options.cases = chosen(options, parser)
    if options.part is not None:
        options.processes = None
    return options


def chosen(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Case]:
    cases = select(grid_cases() if options.grid else all_cases(), options.families, options.match)
    if not (cases or options.shapes or options.mesh or options.cpu):
        parser.error(f"--match: no name of a case contains {' or '.join(options.match)}")
    if options.skip is not None:
        if not options.skip.is_file():
            parser.error(f"--skip: {options.skip} is not a file")
        saved = report.saved_names(options.skip)
        cases = [case for case in cases if case.full_name not in saved]
    if options.sample is not None:
        if not 1 <= options.sample <= len(cases):
            parser.error(f"--sample: expected 1 to {len(cases)}, the number of cases, got {options.sample}")
        drawn = sorted(random.Random(options.seed).sample(range(len(cases)), options.sample))
        cases = [cases[i] for i in drawn]
    return cases if options.part is None else part_of(cases, *map(int, options.part.split("/")))


def main(arguments: list[str]) -> int:
    """Runs what the command line requests; returns 1 if something failed."""
    options = parse(arguments)
    if options.list:
        print("\n".join(case.full_name for case in options.cases))
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
            print(f"{result.case.full_name}: {result.ours.error or 'ran'}", flush=True)
        return int(any(result.failed for result in results))

    copy_rate = runner.copy_rate()
    run = report.describe_run(runner, copy_rate)
    rows = []
    for case in options.cases:
        rows.append(report.row_record(runner.run(case), copy_rate, runner.judged))
        print(f"{case.full_name}: {rows[-1]['seconds']:.1f} s", file=sys.stderr, flush=True)
        if options.output:
            report.save(options.output, run, rows)
    failures = [failure for row in rows for failure in report.row_failures(row)]
    print(*failures, report.table(run, rows), sep="\n")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
