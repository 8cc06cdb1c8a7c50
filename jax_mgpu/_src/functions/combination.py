"""The operator of a reduction or scan and its settings, checked once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from jax_mgpu._src.arguments.annotations import (
    AxisName,
    Count,
    DTypeLike,
    ItemFunction,
    OperatorTree,
    PairFunction,
    Pytree,
)
from jax_mgpu._src.arguments.check import expect_dtype, static_flag
from jax_mgpu._src.functions.named_operators import Leaf, expect_ddof, named_leaves
from jax_mgpu._src.functions.operators import Operator, custom
from jax_mgpu._src.functions.transform import Load, mapped
from jax_mgpu._src.mesh import devices_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Combination:
    """How a public function combines items, by its arguments' names."""

    name: str
    op: OperatorTree | PairFunction
    identity: Pytree = None
    map: ItemFunction | None = None
    dtype: DTypeLike | None = None
    ddof: float = 0
    commutative: bool = False
    axis_name: AxisName | None = None

    def __post_init__(self) -> None:
        """Checks the settings that do not depend on the items."""
        object.__setattr__(self, "commutative", static_flag(self.name, "commutative", self.commutative))
        expect_dtype(self.name, self.dtype, self.op)
        expect_ddof(self.name, self.ddof, () if callable(self.op) else None)

    def mapped(
        self, x: Pytree, count: Count, argument: str = "x", inside: Callable[[jax.Array], jax.Array] | None = None
    ) -> tuple[Any, Load | None]:
        """Returns the items to combine, and how they are loaded; see `transform.mapped`."""
        return mapped(self.name, self.map, x, count, argument, self.axis_name, inside)

    def parts(
        self,
        x: Pytree,
        needs_identity: Callable[[int], str | None] = lambda n: None,
        argument: str = "x",
        *,
        initial: Pytree = None,
        scanned: bool = False,
        made: bool = True,
    ) -> tuple[Operator | list[Leaf], Any, int, Callable[[Any], Any]]:
        """Returns an operator or leaves, the items, the number of items, and the function that restores the tree.

        If `op` is a function, the first result is an operator; if `op` has names, leaves. Options are those of `custom`
        and `named_leaves`.
        """
        if callable(self.op):
            given: dict[str, Any] = {"argument": argument, "commutative": self.commutative, "initial": initial}
            return custom(self.name, self.op, x, self.identity, needs_identity, **given)
        given = {"devices": devices_of(self.name, self.axis_name), "dtype": self.dtype, "ddof": self.ddof}
        operands = (self.name, argument, x, self.op, self.identity)
        leaves, restore, n = named_leaves(*operands, **given, scanned=scanned, made=made)
        return leaves, x, n, restore
