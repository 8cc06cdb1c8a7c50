"""What the annotations of public functions share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from jax.typing import ArrayLike

__all__ = [
    "ArrayLike",
    "AsofDirection",
    "AxisName",
    "Directions",
    "JoinKind",
    "Keys",
    "OperatorName",
    "PairFunction",
    "RankMethod",
    "Side",
]

OperatorName: TypeAlias = Literal["add", "mul", "min", "max", "argmin", "argmax"]
Keys: TypeAlias = ArrayLike | tuple[ArrayLike, ...]  # one array, or columns
Directions: TypeAlias = bool | tuple[bool, ...]
PairFunction: TypeAlias = Callable[[Any, Any], Any]  # of two items, each a pytree
JoinKind: TypeAlias = Literal["inner", "left", "right", "outer", "semi", "anti"]
AsofDirection: TypeAlias = Literal["backward", "forward", "nearest"]
RankMethod: TypeAlias = Literal["min", "dense", "ordinal"]
AxisName: TypeAlias = str | Sequence[str]  # of a mesh, inside jax.shard_map
Side: TypeAlias = Literal["left", "right"]
