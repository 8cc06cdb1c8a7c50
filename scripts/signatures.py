"""Writes the signatures of all public functions into docs/notes/naming.md.

PYTHONPATH=. python scripts/signatures.py    # writes them into the page
"""

from __future__ import annotations

import inspect
import pathlib

import jax_mgpu as mgpu

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "notes" / "naming.md"
BEGIN, END = "```text\n", "```\n"


def signatures() -> str:
    """Returns one line per function: its name, and its arguments with their defaults, without types."""
    lines = []
    for name in sorted(mgpu.__all__):
        function = getattr(mgpu, name)
        if inspect.isfunction(function):
            known = inspect.signature(function)
            bare = [p.replace(annotation=inspect.Parameter.empty) for p in known.parameters.values()]
            lines.append(f"{name}{known.replace(parameters=bare, return_annotation=inspect.Signature.empty)}\n")
    return "".join(lines)


def replaced(page: str) -> str:
    """Returns the page with the current signatures."""
    before, rest = page.split(BEGIN, 1)
    return before + BEGIN + signatures() + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
