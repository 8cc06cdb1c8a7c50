"""What the annotations of public functions share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from jax.typing import ArrayLike

__all__ = ["ArrayLike", "JoinKind", "OperatorName", "PairFunction", "Side"]

OperatorName: TypeAlias = Literal["add", "mul", "min", "max", "argmin", "argmax"]
PairFunction: TypeAlias = Callable[[Any, Any], Any]  # of two items, each a pytree
JoinKind: TypeAlias = Literal["inner", "left", "right", "outer"]
Side: TypeAlias = Literal["left", "right"]
