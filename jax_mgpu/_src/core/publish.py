"""Settings of public names: the package as their module, documented fields, types that `jax.export` knows."""

from __future__ import annotations

import inspect
import re
import typing
from typing import Any

from jax_mgpu._src.core.compat import exportable


def publish(value: Any) -> None:
    """Makes a public function or class one of `jax_mgpu`, by which pickles and exported programs name it."""
    if inspect.isclass(value):
        value.__annotations__ = typing.get_type_hints(value)  # annotations name what the module imports
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
