"""The operations over a mesh axis: the distributed forms of public functions with `axis_name=`.

Their modules use the public functions themselves, so each is imported when it is first used.
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
        ragged,
        ranges,
        reductions,
        segments,
        selections,
        sorts,
        tables,
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
    "ragged",
    "ranges",
    "reductions",
    "segments",
    "selections",
    "sorts",
    "tables",
]

T = TypeVar("T")


def __getattr__(name: str) -> Any:
    """Imports a module of distributed forms when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def devices_of(operation: str, axis_name: AxisName | None) -> int:
    """Returns the number of devices of a mesh axis; 1 without an axis."""
    if axis_name is None:
        return 1
    result: int = importlib.import_module(f"{__name__}.axis").Axis(operation, axis_name).size
    return result


def over_axis(
    form: Callable[..., T], operation: str, axis_name: AxisName | None, *operands: object, **attributes: object
) -> T:
    """Runs an operation by its distributed form, a function of this package."""
    axis = importlib.import_module(f"{__name__}.axis").Axis(operation, axis_name)
    # Distributed forms combine positions and counts of several types, which strict promotion would refuse.
    with jax.numpy_dtype_promotion("standard"):
        return form(axis, *operands, **attributes)
