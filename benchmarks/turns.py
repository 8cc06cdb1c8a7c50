"""Rows by several processes, which compile beside each other and take turns on the device: for thousands of rows.

Of a row whose calls are short, most time goes into the compilation of its programs.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import report
from benchmarks.case import Case

__all__ = ["Turns", "part_of", "run_parts"]


class Turns:
    """A file that a process locks while it uses the device; a process may come in again while it has its turn."""

    def __init__(self, path: pathlib.Path):
        self._file = path.open("w")
        self._depth = 0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """One turn."""
        if self._depth == 0:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                fcntl.flock(self._file, fcntl.LOCK_UN)


def part_of(cases: Sequence[Case], part: int, parts: int) -> list[Case]:
    """One of so many parts of the rows; neighbours that share their inputs stay together."""
    groups = [list(group) for _, group in itertools.groupby(cases, key=lambda case: case.inputs)]
    return [case for group in groups[part::parts] for case in group]


def run_parts(
    arguments: Sequence[str], processes: int, output: pathlib.Path | None, echo: Callable[[str], Any] = print
) -> int:
    """Runs `python -m benchmarks` with these arguments in so many processes, and prints and saves their rows as one.

    Returns:
      1 where a row or a process failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = [pathlib.Path(folder) / str(part) for part in range(processes)]
        environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        command = [sys.executable, "-m", "benchmarks", *arguments, "--turns", f"{folder}/turns"]
        children = [
            subprocess.Popen(
                [*command, "--part", f"{part}/{processes}", "--output", str(own)],
                stdout=subprocess.DEVNULL,
                env=environment,
            )
            for part, own in enumerate(outputs)
        ]
        try:
            broken = [code for code in [child.wait() for child in children] if code not in (0, 1)]
        finally:
            for child in children:
                child.kill()
            files = [own / "benchmarks.json" for own in outputs if (own / "benchmarks.json").exists()]
            run, rows = report.merge_files(files) if files else ({}, [])
            if output and rows:
                report.save(output, run, rows)
    failures = [failure for row in rows for failure in report.row_failures(row)]
    failures += [f"a process ended with {code}" for code in broken]
    echo("\n".join([*failures, *([report.table(run, rows)] if rows else [])]))
    return int(bool(failures))
