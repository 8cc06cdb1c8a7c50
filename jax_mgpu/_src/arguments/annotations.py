"""Types for annotations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import jax
from jax.typing import ArrayLike, DTypeLike

if TYPE_CHECKING:
    from jax_mgpu._src.core.operation import Keyed
    from jax_mgpu._src.ops.segments import Segments

__all__ = ["ArrayLike", "DTypeLike"]  # other modules import them from here

ScannedName: TypeAlias = Literal[
    "add", "sum", "mul", "prod", "min", "max", "argmin", "argmax", "mean", "any", "all", "and", "or", "xor", "logsumexp"
]
OperatorName: TypeAlias = (
    ScannedName
    | Literal["var", "std", "count", "first", "last", "nunique", "median", "nansum", "nanmean", "nanmin", "nanmax"]
)
OperatorTree: TypeAlias = OperatorName | Mapping[Any, Any] | Sequence[Any]  # a pytree of names
Integers: TypeAlias = ArrayLike | Sequence[int]
Keys: TypeAlias = ArrayLike | tuple[ArrayLike, ...]
Directions: TypeAlias = bool | tuple[bool, ...]
PairFunction: TypeAlias = Callable[[Any, Any], Any]
ItemFunction: TypeAlias = Callable[..., Any]  # a function of an item, or of an item and its position
LessFunction: TypeAlias = Callable[[Any, Any], Any]  # whether the first of two items comes first
JoinKind: TypeAlias = Literal["inner", "left", "right", "outer", "semi", "anti"]
AsofDirection: TypeAlias = Literal["backward", "forward", "nearest"]
QuantileMethod: TypeAlias = Literal["linear", "lower", "higher", "nearest", "midpoint"]
RankMethod: TypeAlias = Literal["min", "dense", "ordinal", "first", "max", "average"]
SegmentsLike: TypeAlias = "ArrayLike | Segments"  # heads, or a Segments
AxisName: TypeAlias = str | Sequence[str]  # one or more axes of a mesh, inside jax.shard_map
Side: TypeAlias = Literal["left", "right"]

Pytree: TypeAlias = object  # any tree of arrays
# The first `count` items are live, the others are padding; None: all are live.
Count: TypeAlias = ArrayLike | None
Aval: TypeAlias = jax.ShapeDtypeStruct | jax.core.ShapedArray | jax.Array  # a value with a shape and a dtype
Attribute: TypeAlias = "int | Keyed"


class Operands(Protocol):
    """The operands of one problem, a named tuple per operation."""

    def __getattr__(self, name: str) -> jax.Array: ...
    def __iter__(self) -> Iterator[jax.Array]: ...
    def _asdict(self) -> dict[str, jax.Array]: ...
    def _replace(self, **named: jax.Array) -> Operands: ...


class Tangents(Protocol):
    """The tangents of operands; None is zero."""

    def __getattr__(self, name: str) -> jax.Array | None: ...
    def __iter__(self) -> Iterator[jax.Array | None]: ...
    def _asdict(self) -> dict[str, jax.Array | None]: ...
