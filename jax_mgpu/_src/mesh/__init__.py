"""The operations over a mesh axis: what public functions do where `axis_name=` is given.

A public function checks its arguments, then hands its operands over to a form of its own in a module of this package.
The module is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

import jax

__all__ = ["devices_of", "over_axis"]


def devices_of(operation: str, axis_name: Any) -> int:
    """How many devices a mesh axis has; one without an axis."""
    if axis_name is None:
        return 1
    return importlib.import_module("jax_mgpu._src.mesh.axis").Axis(operation, axis_name).size


def over_axis(form: str, operation: str, axis_name: Any, *operands: Any, **attributes: Any) -> Any:
    """Runs an operation over the devices of a mesh axis; its form is named as `module.function` of this package."""
    axis = importlib.import_module("jax_mgpu._src.mesh.axis").Axis(operation, axis_name)
    module, function = form.split(".")
    run = getattr(importlib.import_module(f"jax_mgpu._src.mesh.{module}"), function)
    with jax.numpy_dtype_promotion("standard"):  # whatever the caller's is: places and counts of several types meet
        return run(axis, *operands, **attributes)
