"""Partners of keys in any order, for joins, set operations and matches: sorts keys with their positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.annotations import Count, Directions, Keys, Pytree
from jax_mgpu._src.arguments.check import count_operand
from jax_mgpu._src.arguments.counts import live_mask
from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.arguments.values import flatten_values
from jax_mgpu._src.core.compat import whole_axes
from jax_mgpu._src.keys.bits import where
from jax_mgpu._src.keys.columns import Columns, KeyPair, columns_of, expect_keys, expect_sorted
from jax_mgpu._src.ops.argsorted import Ordered, in_order
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sorted_search import _search


def in_order_with(
    name: str, argument: str, keys: Keys, values: Pytree, count: Count, descending: Directions = False
) -> tuple[Any, Any]:
    """Returns sorted keys and their values, which are None if none were given."""
    checked, down = expect_keys(name, argument, keys, descending)
    n = checked.shape[0]
    live = count_operand(name, f"{argument}_count", count, n)
    flatten_values(name, f"{argument}_values", values, n, argument)
    with by_construction():
        found = Sort(name, checked, down, live).run(values)
    return (found, None) if values is None else found


class Matches(NamedTuple):
    """Two tables with sorted keys, in which a join finds partners.

    Attributes:
      rows: a's sorted keys.
      others: b's sorted keys, with equal keys in input order.
      pair: the keys of both tables as kernels take them.
      null_equal: whether NaNs equal each other.
    """

    rows: Ordered
    others: Ordered
    pair: KeyPair
    null_equal: bool

    @property
    def a_live(self) -> jax.Array:
        """Live rows of a in input order: bool `[n_a]`."""
        return live_mask(self.rows.order.shape[0], self.pair.a_count)

    def partners(self) -> tuple[jax.Array, jax.Array]:
        """Returns, in the order of a's keys, where each row's partners begin in b's order, and how many they are."""
        return self._found(self.pair.operands, self.rows.keys)

    def b_alone(self) -> jax.Array:
        """Returns b's live rows without a partner, in input order: bool `[n_b]`."""
        pair = self.pair
        _, number = self._found((pair.b, pair.a, pair.b_count, pair.a_count), self.others.keys)
        return self.others.to_rows(number == 0) & live_mask(number.shape[0], pair.b_count)

    def _found(self, operands: Sequence[jax.Array], keys: jax.Array | Columns) -> tuple[jax.Array, jax.Array]:
        low, high = (_search.run(operands, right=right)[0] for right in (False, True))
        number = high - low
        for x in () if self.null_equal else columns_of(keys):
            number = where(is_nan(whole_axes(x)), 0, number)
        return low, number


def matches(
    name: str, keys: Sequence[Any], counts: Sequence[jax.Array], *, is_sorted: bool, null_equal: bool
) -> Matches:
    """Returns two tables of checked keys, sorted by these keys."""
    if is_sorted:
        keys = [expect_sorted(name, *side) for side in zip("ab", keys, counts, strict=True)]
    rows, others = (in_order(name, *side, is_sorted=is_sorted) for side in zip("ab", keys, counts, strict=True))
    pair = KeyPair(name, rows.keys, others.keys, *counts)
    has_nan = any(jnp.issubdtype(x.dtype, jnp.floating) for x in columns_of(rows.keys))
    return Matches(rows, others, pair, null_equal or not has_nan)


def but_nan(mask: jax.Array, x: jax.Array) -> jax.Array:
    """Returns a mask without the items that are NaN."""
    return mask & ~jnp.isnan(x) if jnp.issubdtype(x.dtype, jnp.floating) else mask


def is_nan(x: jax.Array) -> jax.Array:
    """Returns which items are NaN; none of integers."""
    return jnp.isnan(x) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.zeros(x.shape, bool)
