"""Finds the public names that a reference page documents: the names that it lists, and all names of its families.

`python docs/reference_pages.py` writes docs/reference/README.md, the list of all functions that GitHub shows.
"""

from __future__ import annotations

import importlib
import inspect
import pathlib
import re
import sys
from collections.abc import Callable

DOCS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent)]  # the package of this tree

import jax_mgpu  # noqa: E402

ON_GITHUB = DOCS / "reference" / "README.md"

LISTED = re.compile(r"^\.\. auto(?:function|class):: (\w+)$|^\.\. family:: ([\w ]+)$", re.MULTILINE)


def names_of_family(module: str) -> list[str]:
    """Returns the public names of a family's module in the order of its source, functions before types."""
    family = importlib.import_module(f"jax_mgpu._src.ops.{module}")
    names = [name for name in vars(family) if name in family.__all__]
    return sorted(names, key=lambda name: inspect.isclass(getattr(family, name)))


def names_of_page(text: str) -> list[str]:
    """Returns the public names that the text of a page documents, in its order."""
    names = []
    for name, families in LISTED.findall(text):
        names += [name] if name else [each for family in families.split() for each in names_of_family(family)]
    return names


def table_of_operations(link: Callable[[str], str]) -> str:
    """Returns tables of the public names, a table for each page in the order of the site, with their first lines."""
    parts = []
    for page in re.findall(r"^reference/(\w+)$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE):
        text = (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")
        names = names_of_page(text)
        operations = [name for name in names if not hasattr(getattr(jax_mgpu, name), "_fields")]  # no result types
        if operations:
            title = text.partition("# ")[2].splitlines()[0]
            parts += [f"### [{title}]({page}.md)\n", "| function | what it does |", "|---|---|"]
            parts += [f"| {link(name)} | {first_line(name)} |" for name in operations]
            parts += [""]
    return "\n".join(parts)


def first_line(name: str) -> str:
    """Returns the purpose of a public name, as a cell of a table."""
    return (inspect.getdoc(getattr(jax_mgpu, name)) or "").splitlines()[0].replace("|", "\\|")


def source_link(name: str) -> str:
    """Returns a public name, linked to the file that has its docstring."""
    source = pathlib.Path(inspect.getsourcefile(inspect.unwrap(getattr(jax_mgpu, name)))).resolve()
    return f"[`{name}`](../../{source.relative_to(DOCS.parent)})"


def on_github() -> str:
    """Returns the list of all functions as GitHub shows it."""
    begin = """<!-- Written by docs/reference_pages.py -->
# All functions

This page has one line for each function. The name links to the file with its docstring, which says shapes, types,
errors and running time, and has an example; `help(jax_mgpu.sort)` shows it too. Another page has the [rules](index.md)
for all functions. `sphinx-build docs docs/_build` makes the site, where each family has a page of its docstrings.
"""
    return f"{begin}\n{table_of_operations(source_link)}"


if __name__ == "__main__":
    ON_GITHUB.write_text(on_github(), encoding="utf-8")
