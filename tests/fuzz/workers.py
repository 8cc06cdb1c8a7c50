"""Several processes that share the programs. If one dies or hangs, that is a failure."""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import threading
import time
from typing import Any

SPOILT = 3  # exit status of a process that has lost its device and reported the failure
LINE = "@fuzz "  # a worker's messages start with this


def tell(**facts: Any) -> None:
    print(LINE + json.dumps(facts), flush=True)


class Worker:
    """A process that runs share `at` of the programs, from number `begin` of the share."""

    def __init__(self, options: argparse.Namespace, at: int, lines: queue.Queue[tuple[int, str | None]]):
        self.options, self.at, self.lines = options, at, lines
        self.begin = self.cases = 0
        self.program = ""
        self.heard = time.monotonic()
        self.process: subprocess.Popen[str]

    def command(self, seconds: float) -> list[str]:
        options = self.options
        words = [sys.executable, "-m", "tests.fuzz", "--report", "--seed", str(options.seed)]
        words += ["--share", f"{self.at}/{options.processes}", "--begin", str(self.begin), "--seconds", str(seconds)]
        if options.cases is not None:
            words += ["--cases", str(max(0, -(-options.cases // options.processes) - self.cases))]
        if options.mode:
            words += ["--mode", options.mode]
        return words + [word for family in options.family or [] for word in ("--family", family)]

    def start(self, seconds: float) -> None:
        self.process = subprocess.Popen(
            self.command(seconds), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.heard = time.monotonic()
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self.lines.put((self.at, line))
        self.lines.put((self.at, None))


def run(options: argparse.Namespace, report: Any) -> None:
    end = time.monotonic() + options.seconds
    lines: queue.Queue[tuple[int, str | None]] = queue.Queue()
    workers = {at: Worker(options, at, lines) for at in range(options.processes)}
    for worker in workers.values():
        worker.start(options.seconds)
    while workers and not (options.stop and report.failures):
        end_silent(workers, options.silence)
        try:
            at, line = lines.get(timeout=5)
        except queue.Empty:
            continue
        workers[at].heard = time.monotonic()
        if line is None:
            if not ended(workers[at], report, end):
                del workers[at]
        elif line.startswith(LINE):
            take(workers[at], json.loads(line.removeprefix(LINE)), report)
        elif line.strip():
            print(f"[{at}] {line}", end="", flush=True)
    for worker in workers.values():
        worker.process.kill()


def end_silent(workers: dict[int, Worker], silence: float) -> None:
    for worker in workers.values():
        if time.monotonic() - worker.heard > silence:
            worker.process.kill()


def ended(worker: Worker, report: Any, end: float) -> bool:
    """Handles the end of a process; returns whether it was restarted, after the program that failed."""
    code = worker.process.wait()
    if code == 0:
        return False
    if code != SPOILT:
        family = worker.program.split()[1] if worker.program else "none"
        text = f"{family}: a process ended with {code}"
        report.failed(family, "process", text, f"python -m tests.fuzz {worker.program}", text)
    left = end - time.monotonic()
    if not worker.program or (worker.options.cases is None and left < 10):
        return False
    worker.begin, worker.program = worker.begin + 1, ""
    worker.start(max(left, 0))
    return True


def take(worker: Worker, facts: dict[str, Any], report: Any) -> None:
    what = facts.pop("what")
    if what == "program":
        worker.begin, worker.program = facts["begin"], facts["repeat"]
    elif what == "failed":
        report.failed(**facts)
    elif what == "left":
        report.left(**facts)
    elif what == "ran":
        worker.cases += facts["cases"]
        report.ran(**facts)
