"""Fails if a function is too long, or if too many parameters of the package are `Any`.

python scripts/check_code.py
"""

from __future__ import annotations

import ast
import itertools
import pathlib
import re
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
FUNCTION_LINES = 60  # lines of code: no comments, blank lines and docstrings
KERNEL_LINES = 90  # for functions in .cuh files
MAX_ANY = 0.05  # the share of parameters that may be `Any`

Found = tuple[str, int]


def python_functions(path: pathlib.Path) -> Iterator[Found]:
    """Yields the name and the lines of code of each function of a module. Inner functions also count for outer ones."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            documented = ast.get_docstring(node) is not None
            last = (node.body[0].end_lineno or 0) if documented else 0
            first = node.body[0].lineno if documented else 0
            numbers = [n for n in range(node.lineno, (node.end_lineno or 0) + 1) if not first <= n <= last]
            yield node.name, sum(not re.match(r"\s*(#|$)", lines[n - 1]) for n in numbers)


def cpp_functions(text: str) -> Iterator[Found]:
    """Yields the name and the lines of code of each function of a C++ file. Lambdas count for the outer function."""
    text = re.sub(r'//[^\n]*|/\*.*?\*/|"(\\.|[^"\\\n])*"|\'(\\.|[^\'\\\n])\'', "", text, flags=re.DOTALL)
    text = re.sub(r"^#(.*\\\n)*.*$", "", text, flags=re.MULTILINE)  # preprocessor
    begin, blocks, name = 0, [False], ""
    for found in re.finditer(r"[;{}]", text):
        at, mark = found.start(), found.group()
        head = re.sub(r"\btemplate\s*<[^{};]*?>\s*(?=\w)", "", text[begin:at]).strip()
        if mark == "{":
            is_scope = re.match(r"(typedef |inline |extern )*(namespace|struct|class|union|enum)\b", head)
            is_function = not any(blocks) and "(" in head and not is_scope and text[at - 1].isspace()
            if is_function:
                opened = begin + len(text[begin:at]) - len(text[begin:at].lstrip())
                name = (re.findall(r"(~?\w+)\s*\(", re.sub(r"__\w+__(\([^)]*\))?", "", head)) or ["?"])[0]
            blocks.append(is_function)
            is_initializer = not any(blocks) and not text[at - 1].isspace()
        elif mark == "}" and len(blocks) > 1:
            if blocks.pop():
                yield name, sum(bool(line.strip()) for line in text[opened : at + 1].splitlines())
            is_initializer = False if any(blocks) else text[at + 1 : at + 2] in (",", " ") and "(" in head
        else:
            is_initializer = False
        begin = begin if is_initializer else at + 1


def too_long() -> Iterator[str]:
    """Yields a message for each function that exceeds its limit."""
    for path in sorted((ROOT / "jax_mgpu").rglob("*.py")):
        for name, lines in python_functions(path):
            if lines > FUNCTION_LINES:
                yield f"{path.relative_to(ROOT)}: {name}: {lines} lines, limit {FUNCTION_LINES}"
    sources = (path for path in (ROOT / "ffi").rglob("*") if path.suffix in (".h", ".cc", ".cu", ".cuh"))
    for path in sorted(sources):
        for name, lines in cpp_functions(path.read_text(encoding="utf-8")):
            limit = KERNEL_LINES if path.suffix == ".cuh" else FUNCTION_LINES
            if lines > limit:
                yield f"{path.relative_to(ROOT)}: {name}: {lines} lines, limit {limit}"


def parameters() -> tuple[int, int]:
    """Counts the parameters of the package, and those whose type is `Any` or an alias of it, or is missing."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "jax_mgpu").rglob("*.py")]
    nodes = list(itertools.chain.from_iterable(map(ast.walk, trees)))
    names = {"Any"}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and ast.unparse(node.value) in ("Any", "'Any'"):
            names |= {ast.unparse(x) for x in (node.targets if isinstance(node, ast.Assign) else [node.target])}
    every = [
        x
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        for args in [node.args]
        for x in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg)
        if x is not None and x.arg not in ("self", "cls")
    ]
    return len(every), sum(x.annotation is None or ast.unparse(x.annotation).strip("'\"") in names for x in every)


def main() -> int:
    """Compares functions and parameters with their limits; returns 1 if a limit is exceeded."""
    long = list(too_long())
    print("\n".join(long) or f"functions have at most {FUNCTION_LINES} lines, {KERNEL_LINES} in kernels")
    every, unknown = parameters()
    print(f"parameters of type Any: {unknown} of {every}, {unknown / every:.1%} (limit {MAX_ANY:.0%})")
    return int(bool(long) or unknown > MAX_ANY * every)


if __name__ == "__main__":
    sys.exit(main())
