"""Sorted keys with their positions in the input, for operations that accept any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.check import index_dtype
from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.arguments.values import plain_leaves
from jax_mgpu._src.core.compat import platform_dependent
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.keys.columns import Columns, alike
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sort_strategy import is_long_permutation


class Ordered(NamedTuple):
    """Sorted keys, and their positions in the input.

    Attributes:
      keys: the sorted keys, checked.
      order: `[n]`, the position of each in the caller's array.
      count: the live count as an operand.
    """

    keys: Any
    order: jax.Array
    count: Any

    def to_rows(self, x: jax.Array) -> jax.Array:
        """Moves values of sorted keys, integers or bools, back to the input's rows."""
        n = self.order.shape[0]
        if not is_long_permutation(n):
            return scattered(self.order, x)
        return platform_dependent(self.order, x, cuda=sorted_back, default=scattered)


def scattered(order: jax.Array, x: jax.Array) -> jax.Array:
    """Returns an array in which `x[i]` is at place `order[i]`."""
    given: dict[str, Any] = {"mode": "promise_in_bounds", "unique_indices": True, "wrap_negative_indices": False}
    return jnp.zeros_like(x).at[order].set(x, **given)


def sorted_back(order: jax.Array, x: jax.Array) -> jax.Array:
    """Returns the same as `scattered`, by a sort."""
    words = x if x.dtype.itemsize in (4, 8) else x.astype(jnp.int32)
    with by_construction():
        moved = Sort("sort", order, bits=max(1, (order.shape[0] - 1).bit_length())).run(words)
    result: jax.Array = moved[1].astype(x.dtype)
    return result


def in_order(
    name: str, argument: str, keys: jax.Array | Columns, count: jax.Array, *, is_sorted: bool = False
) -> Ordered:
    """Sorts checked keys, unless they are sorted."""
    if is_sorted:
        n = keys.shape[0]
        return Ordered(keys, jnp.arange(n, dtype=index_dtype(name, argument, n)), count)
    with by_construction():
        sorted_keys, order = Sort(name, keys, count=count).indices()
    return Ordered(alike(keys, sorted_keys), order, count)


def rows_in_order(
    name: str, keys: jax.Array | Columns, leaves: Sequence[jax.Array], count: jax.Array, *, ordered: bool = True
) -> tuple[Ordered, list[jax.Array]]:
    """Sorts checked keys and their rows; without `ordered`, the order is `ABSENT`."""
    with by_construction():
        plain, restore = plain_leaves(leaves)
        sorted_keys, moved = Sort(name, keys, count=count).rows(plain, ordered=ordered)
    order, *moved = moved if ordered else [ABSENT, *moved]
    return Ordered(alike(keys, sorted_keys), order, count), restore(moved)
