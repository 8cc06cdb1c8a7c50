"""The operations over a mesh axis: what public functions do where `axis_name=` is given.

A public function checks its arguments, then hands its operands over to a form of its own in a module of this package.
Those modules are made of the public functions' own, so a module is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import jax

from jax_mgpu._src.arguments.annotations import AxisName

if TYPE_CHECKING:
    from jax_mgpu._src.mesh import (
        bulk,
        groupings,
        groups,
        ids,
        intervals,
        joins,
        pairs,
        reductions,
        segments,
        selections,
        sorts,
    )

__all__ = [
    "bulk",
    "devices_of",
    "groupings",
    "groups",
    "ids",
    "intervals",
    "joins",
    "over_axis",
    "pairs",
    "reductions",
    "segments",
    "selections",
    "sorts",
]

T = TypeVar("T")


def __getattr__(name: str) -> Any:
    """The modules of forms, as attributes."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def devices_of(operation: str, axis_name: AxisName | None) -> int:
    """How many devices a mesh axis has; one without an axis."""
    if axis_name is None:
        return 1
    result: int = importlib.import_module(f"{__name__}.axis").Axis(operation, axis_name).size
    return result


def over_axis(
    form: Callable[..., T], operation: str, axis_name: AxisName | None, *operands: object, **attributes: object
) -> T:
    """Runs an operation over the devices of a mesh axis by its form, a function of a module of this package."""
    axis = importlib.import_module(f"{__name__}.axis").Axis(operation, axis_name)
    with jax.numpy_dtype_promotion("standard"):  # whatever the caller's is: places and counts of several types meet
        return form(axis, *operands, **attributes)
