"""Calls public functions on random arguments, under random transformations, and compares results with NumPy's."""

from __future__ import annotations

import argparse
import collections
import faulthandler
import itertools
import os
import re
import sys
import time
from collections.abc import Iterator

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the processes share a GPU

import jax

from tests import quick
from tests.fuzz import workers
from tests.fuzz.program import FAMILIES, Failure, Program

REMEMBERED = 300  # programs after which JAX's caches are cleared, because they would fill the memory
HEARD_EVERY = 5  # the least number of seconds between two reports of a worker that its cases go on
SHOWN = 2  # the failures of each kind that are printed


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="time limit (default 60)")
    parser.add_argument("--cases", type=int, help="number of cases to run; there is then no time limit")
    parser.add_argument("--seed", type=int, default=1, help="seed of all draws (default 1)")
    parser.add_argument(
        "--family", action="append", choices=FAMILIES, help="draw only from this family (may be repeated)"
    )
    parser.add_argument("--mode", help="draw only programs under this mode, such as strict")
    parser.add_argument("--processes", type=int, default=1, help="number of processes (default 1)")
    parser.add_argument(
        "--case", metavar="SEED:PROGRAM[:DRAW]", help="repeat one program of --family, or one draw of it"
    )
    parser.add_argument("--stop", action="store_true", help="stop at the first failure")
    parser.add_argument(
        "--silence",
        type=float,
        default=300,
        help="kill a process that finishes no case for this many seconds (default 300)",
    )
    # Only `workers.py` passes these.
    parser.add_argument("--share", default="0/1", help=argparse.SUPPRESS)
    parser.add_argument("--begin", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--report", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case and not options.family:
        parser.error("--case requires --family")
    return options


def kind_of(failure: Failure, family: str) -> str:
    """Returns a text that is equal for failures that differ in numbers alone."""
    words = re.sub(r"-?\d[\d.]*(e[-+]\d+)?|0x[\da-f]+", "#", str(failure.error).split("\n")[0])[:90]
    return f"{family}: {failure.text.split(':')[0].split(' of ')[-1]}: {type(failure.error).__name__}: {words}"


class Report:
    def __init__(self, tells: bool = False) -> None:
        self.tells = tells
        self.told = 0.0
        self.cases: collections.Counter[tuple[str, str]] = collections.Counter()
        self.programs: collections.Counter[str] = collections.Counter()
        self.failures: collections.Counter[tuple[str, str]] = collections.Counter()
        self.kinds: collections.Counter[str] = collections.Counter()
        self.repeats: dict[str, str] = {}
        self.left_out: collections.Counter[str] = collections.Counter()

    def goes_on(self) -> None:
        """Reports that a case has run, at most once in HEARD_EVERY seconds."""
        if self.tells and time.monotonic() - self.told > HEARD_EVERY:
            self.told = time.monotonic()
            workers.tell(what="goes on")

    def ran(self, family: str, mode: str, cases: int) -> None:
        self.cases[family, mode] += cases
        self.programs[family] += 1
        if self.tells:
            workers.tell(what="ran", family=family, mode=mode, cases=cases)

    def left(self, why: str) -> None:
        self.left_out[why] += 1
        if self.tells:
            workers.tell(what="left", why=why)

    def failed(self, family: str, mode: str, kind: str, repeat: str, text: str) -> None:
        """Reports a failed case; `repeat` is the command line that runs it again."""
        if self.tells:
            workers.tell(what="failed", family=family, mode=mode, kind=kind, repeat=repeat, text=text)
            return
        self.failures[family, mode] += 1
        self.kinds[kind] += 1
        self.repeats.setdefault(kind, repeat)
        if self.kinds[kind] <= SHOWN:
            print(f"FAILED {text}\n  {repeat}", flush=True)

    def summary(self, seconds: float) -> None:
        for kind, times in self.kinds.most_common():
            print(f"{times:6} x {kind}\n         {self.repeats[kind]}")
        for title, part in (("family", 0), ("mode", 1)):
            rows: collections.Counter[str] = collections.Counter()
            wrong: collections.Counter[str] = collections.Counter()
            for source, into in ((self.cases, rows), (self.failures, wrong)):
                for key, times in source.items():
                    for word in {key[part]} if part == 0 else set(key[part].split("+")):
                        into[word] += times
            words = (
                f"{word} {times}" + f" ({wrong[word]} failed)" * bool(wrong[word]) for word, times in rows.most_common()
            )
            print(f"by {title}: {', '.join(words)}")
        for why, times in self.left_out.most_common():
            print(f"left out {times} times: {why}")
        cases, programs, failures = (sum(c.values()) for c in (self.cases, self.programs, self.failures))
        print(
            f"cases {cases}, programs {programs}, failures {failures} of {len(self.kinds)} kinds, {seconds:.0f} s",
            flush=True,
        )


def stream(families: list[str], part: int, parts: int) -> Iterator[tuple[str, int]]:
    for index in itertools.count():
        for place, family in enumerate(families):
            if (index * len(families) + place) % parts == part:
                yield family, index


def run(options: argparse.Namespace, report: Report) -> None:
    families = options.family or list(FAMILIES)
    part, parts = map(int, options.share.split("/"))
    began = time.monotonic()
    done = 0
    max_cases = None if options.cases is None else -(-options.cases // len(families))  # for each program
    programs = itertools.islice(stream(families, part, parts), options.begin, None)
    for begin, (family, index) in enumerate(programs, options.begin):
        late = time.monotonic() - began > options.seconds if options.cases is None else done >= options.cases
        if late:
            return
        if options.report:
            repeat = f"--family {family} --case {options.seed}:{index}"
            workers.tell(what="program", begin=begin, repeat=repeat)
        if (begin + 1) % REMEMBERED == 0:
            jax.clear_caches()
        done += run_program(options.seed, family, index, None, report, options, max_cases)


def run_program(
    seed: int,
    family: str,
    index: int,
    draws: Iterator[int] | None,
    report: Report,
    options: argparse.Namespace,
    max_cases: int | None = None,
) -> int:
    """Runs at most `max_cases` cases of a program; returns their number."""
    repeat = f"python -m tests.fuzz --family {family} --case {seed}:{index}"
    cases = failures = 0
    try:
        program = Program(seed, family, index)
    except Exception as error:  # the tester itself has an error
        error.add_note(repeat)
        raise
    if options.mode and options.mode not in program.mode.split("+"):
        return 0
    if (why := program.left_out()) is not None:
        report.left(why)
        return 0
    try:
        for failure in program.run(itertools.islice(range(program.draws) if draws is None else draws, max_cases)):
            cases += 1
            report.goes_on()
            if failure is None:
                continue
            failures += 1
            rerun = repeat + f":{failure.draw}" * (failure.draw >= 0)
            told = f"{type(failure.error).__name__}: {str(failure.error)[:600]}"
            words = f"{family}, {failure.mode}: {failure.text}\n  {told}"
            report.failed(family, failure.mode, kind_of(failure, family), rerun, words)
            if options.stop:
                raise SystemExit(1)
            if "CUDA_ERROR" in str(failure.error) or "CUDA error" in str(failure.error):
                raise SystemExit(workers.SPOILT)  # later results of this process mean nothing
            if failures >= 3:  # other failures of this program look alike
                break
    finally:
        report.ran(family, program.mode, cases)
    return cases


def work(options: argparse.Namespace, report: Report) -> None:
    if options.case:
        seed, index, *draw = map(int, options.case.split(":"))
        program = Program(seed, options.family[0], index)
        print(f"{program.mode}: {program.text}")
        run_program(seed, options.family[0], index, iter(draw) if draw else None, report, options)
    elif options.processes > 1:
        workers.run(options, report)
    else:
        if not options.report:
            print(f"seed {options.seed}, {jax.devices()[0].device_kind}", flush=True)
        run(options, report)


def main() -> int:
    options = arguments()
    if jax.default_backend() == "cpu":  # most of the time is compilation
        jax.config.update("jax_disable_most_optimizations", True)
    quick.lower_quickly()
    began = time.monotonic()
    report = Report(options.report)
    try:
        work(options, report)
    except KeyboardInterrupt:
        pass
    except SystemExit:  # a failure ended the run, but the summary still follows
        if options.report:
            raise
    if not options.report:
        report.summary(time.monotonic() - began)
    return 1 if report.failures else 0


if __name__ == "__main__":
    faulthandler.enable()  # prints the call if a signal ends the process
    sys.exit(main())
