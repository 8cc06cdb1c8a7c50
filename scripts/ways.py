"""Lists, in docs/architecture.md, the files from each public function to its kernel.

PYTHONPATH=. python scripts/ways.py    # writes them into the page

It traces the tests' examples of each function. If an example binds an operation, the files of the calls that led there
are its path in Python. In C++, the plan, the launch and the kernels follow. If a function binds several operations, the
table has one of those with kernels: the one with its name, or a part of its name, or the one with the fewest files.
"""

from __future__ import annotations

import collections
import functools
import pathlib
import re
import sys
import types
from collections.abc import Mapping
from typing import Any
from unittest import mock

import jax
import numpy as np

from jax_mgpu._src.core.operation import Operation
from jax_mgpu._src.functions import custom_operator
from tests.families import EXAMPLES

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- scripts/ways.py writes this table -->\n", "<!-- end -->\n"
MAX_FILES = 7
COMMON = {"core/eager.py", "core/compat.py", "core/operation.py", "arguments/renamed.py"}

Way = tuple[str, ...]


def ways() -> dict[str, dict[str, Way]]:
    """Returns, for each public function, the files on the way to each operation that its examples bind."""
    found: dict[str, dict[str, Way]] = collections.defaultdict(dict)
    bind = Operation.run

    def run(operation: Operation, *operands: Any, **attributes: Any) -> list[jax.Array]:
        way = files_of_calls()
        if len(way) < len(found[name].get(operation.name, way + way)):
            found[name][operation.name] = way
        return bind(operation, *operands, **attributes)

    # Kernels of callers' functions need CUDA's library; the table must be the same without it.
    without_functions = mock.patch.object(custom_operator, "has_kernels", lambda: False)
    with without_functions, mock.patch.object(Operation, "run", run):
        for key, example in EXAMPLES.items():
            name = key.split(",")[0]
            jax.clear_caches()  # a function that was traced before would not run again
            jax.eval_shape(example.call, *example.make(np.random.default_rng(0), np.float32))
    return {name: {operation: (*way, *kernels(operation)) for operation, way in found[name].items()} for name in found}


def files_of_calls() -> Way:
    """Returns the files of jax_mgpu/_src on the call stack, without those in COMMON."""
    frame: types.FrameType | None = sys._getframe(2)
    files = []
    while frame is not None:
        folder, _, file = frame.f_code.co_filename.rpartition("/jax_mgpu/_src/")
        files += [file] if folder and file not in COMMON else []
        frame = frame.f_back
    return tuple(dict.fromkeys(reversed(files)))


@functools.cache
def kernels(operation: str) -> Way:
    """Returns the C++ files of an operation: its plan, the launch, and the largest of its headers with kernels."""
    launches = sorted((ROOT / "ffi" / "ops").rglob("*.cu"))
    launch = next((path for path in launches if f"\nvoid {operation}(const Call& call" in path.read_text()), None)
    if launch is None:
        return ()
    headers = included(launch)
    while headers and not any("__global__" in path.read_text() for path in headers):
        headers = [header for path in headers for header in included(path)]
    with_kernels = [path for path in headers if "__global__" in path.read_text()]
    own = [path for path in with_kernels if path.parent == launch.parent] or with_kernels
    largest = sorted(own, key=lambda path: len(path.read_text()))[-1:]
    files = [launch.parent / "plan.cc", launch, *largest]
    return tuple(str(path.relative_to(ROOT / "ffi")) for path in files if path.exists())


def included(path: pathlib.Path) -> list[pathlib.Path]:
    """Returns the headers of operations that a file includes."""
    return [ROOT / "ffi" / name for name in re.findall(r'#include "(ops/\w+/\w+\.(?:cuh|h))"', path.read_text())]


def main_operation(name: str, operations: Mapping[str, Way]) -> str:
    """Chooses among operations with kernels, if any: by the function's name, or a part of it, or the shortest path."""

    def rank(operation: str) -> tuple[bool, bool, bool, int, str]:
        way = operations[operation]
        return not (way and way[-1].endswith(".cuh")), operation != name, operation not in name, len(way), operation

    return min(operations, key=rank)


def table() -> str:
    """Returns a table with one row for all functions that have the same operation and path."""
    rows: dict[tuple[str, Way], list[str]] = collections.defaultdict(list)
    for name, operations in sorted(ways().items()):
        operation = main_operation(name, operations)
        rows[operation, operations[operation]].append(name)
    lines = ["| functions | files | on the way |", "|---|---|---|"]
    for (_, way), names in sorted(rows.items(), key=lambda row: row[0][1]):
        assert len(way) <= MAX_FILES, (names, way)
        lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {len(way)} | {', '.join(short(way))} |")
    return "\n".join(lines) + "\n"


def short(way: Way) -> list[str]:
    """Leaves out the folder of a file if the previous file is in the same folder of an operation."""
    folders = [file.rpartition("/")[0] for file in way]
    pairs = zip(way, ["", *folders], folders, strict=False)
    return [file.rpartition("/")[2] if before == folder != "ops" else file for file, before, folder in pairs]


def replaced(page: str) -> str:
    """Returns the page with the current paths."""
    before, rest = page.split(BEGIN, 1)
    return before + BEGIN + table() + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
