"""Finds the public names that a reference page documents: those it lists, and those of the families it includes."""

from __future__ import annotations

import importlib
import inspect
import re

LISTED = re.compile(r"^\.\. auto(?:function|class):: (\w+)$|^\.\. family:: ([\w ]+)$", re.MULTILINE)


def names_of_family(module: str) -> list[str]:
    """The public names of a family's module in the order of its source, functions before types."""
    family = importlib.import_module(f"jax_mgpu._src.ops.{module}")
    names = [name for name in vars(family) if name in family.__all__]
    return sorted(names, key=lambda name: inspect.isclass(getattr(family, name)))


def names_of_page(text: str) -> list[str]:
    """The public names that the text of a page documents, in its order."""
    names = []
    for name, families in LISTED.findall(text):
        names += [name] if name else [each for family in families.split() for each in names_of_family(family)]
    return names
