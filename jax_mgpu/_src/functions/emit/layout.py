"""The leaves of an item, and the kernels' struct for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.functions.emit.scalars import MAX_ITEM_SCALARS, SCALARS, Names, Unsupported, scalar_type

MAX_LEAVES = 16  # as many as ffi/function/item.h has room for


@dataclasses.dataclass(frozen=True)
class Layout:
    """The leaves of an item; the struct has the widest first, so that only its end is padded."""

    leaves: tuple[tuple[str, tuple[int, ...]], ...]  # dtype name and shape

    @classmethod
    def of(cls, avals: Sequence[Any]) -> Layout:
        """Returns the struct of an item of these leaves."""
        return cls(tuple((scalar_type(aval.dtype) and np.dtype(aval.dtype).name, tuple(aval.shape)) for aval in avals))

    def elements(self, leaf: int) -> int:
        """Returns the number of scalars of a leaf."""
        return int(np.prod(self.leaves[leaf][1]))

    def width(self, leaf: int) -> int:
        """Returns the bytes of a scalar of a leaf."""
        return jnp.dtype(self.leaves[leaf][0]).itemsize

    def leaf_bytes(self, leaf: int) -> int:
        """Returns an item's bytes in a leaf."""
        return self.elements(leaf) * self.width(leaf)

    @property
    def align(self) -> int:
        """The struct's alignment: at least 4 bytes, because threads exchange words of 4 bytes."""
        return max([4, *(self.width(leaf) for leaf in range(len(self.leaves)))])

    @property
    def bytes(self) -> int:
        """The size of the struct."""
        size = sum(self.leaf_bytes(leaf) for leaf in range(len(self.leaves)))
        return max(1, -(-size // self.align)) * self.align

    @property
    def item_bytes(self) -> int:
        """An item's bytes in the arrays of its leaves."""
        return sum(self.leaf_bytes(leaf) for leaf in range(len(self.leaves)))

    def names(self, variable: str) -> list[Names]:
        """Returns an item's scalars, leaf by leaf."""
        leaves = []
        for leaf, (_, shape) in enumerate(self.leaves):
            names = np.empty(shape, object)
            for place, index in enumerate(np.ndindex(*shape)):
                names[index] = f"{variable}{leaf}.{place}"
            leaves.append(names)
        return leaves

    def line(self, what: str) -> str:
        """Returns the word `what`, then each leaf's type and number of scalars."""
        leaves = range(len(self.leaves))
        return " ".join([what, *(f"{SCALARS[self.leaves[leaf][0]]} {self.elements(leaf)}" for leaf in leaves)])


def expect_layout(layout: Layout) -> Layout:
    """Raises unless the kernels have room for a layout."""
    leaves = len(layout.leaves)
    if not 0 < leaves <= MAX_LEAVES:
        raise Unsupported(f"items of {leaves} arrays, more than {MAX_LEAVES}")
    sizes = list(map(layout.elements, range(leaves)))
    if sum(sizes) > MAX_ITEM_SCALARS:
        raise Unsupported(f"items of {sum(sizes)} scalars, more than {MAX_ITEM_SCALARS}")
    if 0 in sizes:
        raise Unsupported("items without elements")
    return layout
