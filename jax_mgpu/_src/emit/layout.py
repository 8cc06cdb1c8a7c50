"""The C++ struct of an item."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.emit.scalars import MOST_ITEM_SCALARS, SCALARS, Names, Unsupported, scalar_type

__all__ = ["Layout", "expect_layout"]

MOST_LEAVES = 16  # as ffi/function/item.h has room for


@dataclasses.dataclass(frozen=True)
class Layout:
    """The C++ struct of an item: its fields in memory, the wide ones first, so that only the end is padded."""

    leaves: tuple[tuple[str, tuple[int, ...]], ...]  # dtype name and shape

    @classmethod
    def of(cls, avals: Sequence[Any]) -> Layout:
        """The struct of an item of these leaves."""
        return cls(tuple((scalar_type(aval.dtype) and np.dtype(aval.dtype).name, tuple(aval.shape)) for aval in avals))

    def elements(self, leaf: int) -> int:
        """The number of scalars of a leaf."""
        return int(np.prod(self.leaves[leaf][1]))

    def width(self, leaf: int) -> int:
        """The bytes of a scalar of a leaf."""
        return jnp.dtype(self.leaves[leaf][0]).itemsize

    def leaf_bytes(self, leaf: int) -> int:
        """The bytes of an item's part of a leaf."""
        return self.elements(leaf) * self.width(leaf)

    @property
    def align(self) -> int:
        """The alignment of the struct: words of 4 bytes travel between threads."""
        return max([4, *(self.width(leaf) for leaf in range(len(self.leaves)))])

    @property
    def bytes(self) -> int:
        """The size of the struct."""
        size = sum(self.leaf_bytes(leaf) for leaf in range(len(self.leaves)))
        return max(1, -(-size // self.align)) * self.align

    @property
    def item_bytes(self) -> int:
        """What an item takes in its arrays."""
        return sum(self.leaf_bytes(leaf) for leaf in range(len(self.leaves)))

    def names(self, variable: str) -> list[Names]:
        """The leaves of a struct in C++."""
        leaves = []
        for leaf, (_, shape) in enumerate(self.leaves):
            names = np.empty(shape, object)
            for place, index in enumerate(np.ndindex(*shape)):
                names[index] = f"{variable}.f{leaf}[{place}]"
            leaves.append(names)
        return leaves

    def text(self, name: str, largest: int | None = None) -> str:
        """The struct in C++, and the bytes of the largest struct that is made of it, where that is another."""
        order = sorted(range(len(self.leaves)), key=lambda leaf: -self.width(leaf))
        fields = "".join(
            f"  {SCALARS[self.leaves[leaf][0]]} f{leaf}[{max(1, self.elements(leaf))}];\n" for leaf in order
        )
        leaf = "".join(
            f"    {'else ' if leaf else ''}if constexpr (kLeaf == {leaf}) return (item.f{leaf});\n"
            for leaf in range(len(self.leaves))
        )
        return (
            f"struct alignas({self.align}) {name} {{\n{fields}"
            f"  static constexpr int kLeaves = {len(self.leaves)};\n"
            f"  static constexpr int kLargest = {max(self.bytes, largest or 0)};\n"
            "  template <int kLeaf, typename Item>\n"
            f"  MGPU_HOST_DEVICE static auto& leaf(Item& item) {{\n{leaf}  }}\n"
            "};\n"
        )


def expect_layout(layout: Layout) -> Layout:
    """A layout that the kernels have room for."""
    leaves = len(layout.leaves)
    if not 0 < leaves <= MOST_LEAVES:
        raise Unsupported(f"items of {leaves} arrays, more than {MOST_LEAVES}")
    sizes = list(map(layout.elements, range(leaves)))
    if sum(sizes) > MOST_ITEM_SCALARS:
        raise Unsupported(f"items of {sum(sizes)} scalars, more than {MOST_ITEM_SCALARS}")
    if 0 in sizes:
        raise Unsupported("items without elements")
    return layout
