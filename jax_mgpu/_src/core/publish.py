"""Makes the package the module of public names, documents fields, and registers types with `jax.export`."""

from __future__ import annotations

import inspect
import re
import typing
from typing import Any

from jax_mgpu._src.core.compat import exportable


def publish(value: Any) -> None:
    """Makes `jax_mgpu` the module of a public name, which pickles and exported programs contain."""
    if inspect.isclass(value):
        # The names in annotations belong to the module that defines the value.
        value.__annotations__ = typing.get_type_hints(value)
        if hasattr(value, "_fields"):
            _document_fields(value)
        exportable(value)
    value.__module__ = "jax_mgpu"


def _document_fields(result: Any) -> None:
    """Gives a named tuple's fields their texts under `Attributes:`, which `help` shows."""
    words = inspect.getdoc(result) or ""
    listed = re.search(r"^Attributes:\n((?:  .*\n?)+)", words, re.MULTILINE)
    for name, text in re.findall(r"^  (\w+): ((?:.*\n?)(?:    .*\n?)*)", listed[1] if listed else "", re.MULTILINE):
        getattr(result, name).__doc__ = " ".join(text.split())
