"""Prepares public names: makes the package their module, documents fields, and registers types with `jax.export`."""

from __future__ import annotations

import inspect
import re
import typing
from typing import Any

from jax_mgpu._src.core.compat import exportable


def publish(value: Any) -> None:
    """Makes `jax_mgpu` the module of a public function or class: pickles and exported programs contain this name."""
    if inspect.isclass(value):
        value.__annotations__ = typing.get_type_hints(value)  # before its module changes: they use that module's names
        if hasattr(value, "_fields"):
            _document_fields(value)
        exportable(value)
    value.__module__ = "jax_mgpu"


def _document_fields(result: Any) -> None:
    """Gives each field of a named tuple the text of its line under `Attributes:`, which `help` shows."""
    words = inspect.getdoc(result) or ""
    listed = re.search(r"^Attributes:\n((?:  .*\n?)+)", words, re.MULTILINE)
    for name, text in re.findall(r"^  (\w+): ((?:.*\n?)(?:    .*\n?)*)", listed[1] if listed else "", re.MULTILINE):
        getattr(result, name).__doc__ = " ".join(text.split())
