"""Describes in a line of text what the library runs for a random problem, and stores these lines in a file."""

from __future__ import annotations

import hashlib
import pathlib

import jax

from jax_mgpu._src.core import library
from jax_mgpu._src.core.operation import REGISTRY
from tests.plans.problems import OPERATIONS, Problem, drawn

# The file has the first block of each operation's 97 blocks of 32 problems, and hashes of the others.
BLOCK, BLOCKS = 32, 97
PLATFORMS = ("cpu", "cuda")
H200 = library.Traits(multiprocessors=132, shared_memory=227 << 10, l2_cache=50 << 20, capability=90)
FILE = pathlib.Path(__file__).parent / "choices.txt"


def choice(problem: Problem) -> str:
    """Returns the platforms that run plain JAX, and the kernels' plan and scratch memory on an H200."""
    operation, operands, results, attributes = problem
    registered, plain = REGISTRY.get(operation), []
    if registered is not None:
        plain = [platform for platform in PLATFORMS if registered.prefers_xla(operands, attributes, platform, 1)]
    words = [f"plain on {platform}" for platform in plain]
    if "cuda" not in plain:
        plan = library.plan(operation, operands, results, attributes, H200)
        words += [*filter(None, [plan["variant"]]), f"{plan['scratch']} bytes"]
    return ", ".join(words)


def block(operation: str, number: int) -> list[str]:
    with jax.enable_x64(True):
        problems = [drawn(operation, i) for i in range(number * BLOCK, (number + 1) * BLOCK)]
        return [f"{problem}: {choice(problem)}" for problem in problems]


def summary(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]


def write() -> None:
    with FILE.open("w") as file:
        for operation in OPERATIONS:
            print(*block(operation, 0), sep="\n", file=file)
            print(operation, *(summary(block(operation, number)) for number in range(1, BLOCKS)), file=file)


def remembered() -> dict[str, tuple[list[str], list[str]]]:
    """Returns each operation's lines of the first block, and hashes of the others."""
    lines = FILE.read_text().splitlines()
    table = {}
    for begin in range(0, len(lines), BLOCK + 1):
        *first, hashes = lines[begin : begin + BLOCK + 1]
        operation, *others = hashes.split()
        table[operation] = first, others
    return table
