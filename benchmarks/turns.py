"""Runs cases in processes that compile side by side and take turns on the device."""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import report
from benchmarks.case import Case

__all__ = ["Turns", "command_of", "part_of", "run_parts", "visible_gpus"]


class Turns:
    """A lock file for the device; the process that holds it may acquire it again."""

    def __init__(self, path: pathlib.Path):
        self._file = path.open("w")
        self._depth = 0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
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
    """Returns one part of the cases; cases that share their inputs are in the same part."""
    groups = collections.defaultdict(list)
    for case in cases:
        groups[case.inputs].append(case)
    return [case for group in list(groups.values())[part::parts] for case in group]


def visible_gpus() -> list[str]:
    """Returns the GPUs in CUDA_VISIBLE_DEVICES, empty if unset."""
    return [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]


def command_of(
    arguments: Sequence[str], part: int, processes: int, gpus: int, folder: pathlib.Path
) -> tuple[list[str], dict[str, str]]:
    """Returns a process's command and environment; with several `gpus`, the process sees one of them.

    Processes share a cache of compiled programs.
    """
    environment = {
        **os.environ,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_COMPILATION_CACHE_DIR": f"{folder}/compiled",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    if gpus > 1:
        environment["CUDA_VISIBLE_DEVICES"] = (visible_gpus() or list(map(str, range(gpus))))[part % gpus]
    own = ["--gpus", "1", "--turns", f"{folder}/turns{part % gpus}", "--part", f"{part}/{processes}"]
    return [sys.executable, "-m", "benchmarks", *arguments, *own, "--output", f"{folder}/{part}"], environment


def run_parts(
    arguments: Sequence[str],
    processes: int,
    gpus: int,
    output: pathlib.Path | None,
    echo: Callable[[str], Any] = print,
) -> int:
    """Runs `python -m benchmarks` in several processes; prints and saves all rows as one run.

    An interrupt ends all processes, and saves the finished rows.

    Returns: 1 if a case or a process failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = [pathlib.Path(folder) / str(part) for part in range(processes)]
        commands = [command_of(arguments, part, processes, gpus, pathlib.Path(folder)) for part in range(processes)]
        children = [subprocess.Popen(command, stdout=subprocess.DEVNULL, env=own) for command, own in commands]
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
    failures += [f"a process ended with exit status {code}" for code in broken]
    echo("\n".join([*failures, *([report.table(run, rows)] if rows else [])]))
    return int(bool(failures))
