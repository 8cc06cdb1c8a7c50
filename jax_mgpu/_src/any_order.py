"""Keys in any order: sorts them with their positions, and tells the partners of each row by positions as given.

Joins, set operations and matches of keys in any order are made of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_mgpu._src.check import count_operand
from jax_mgpu._src.columns import expect_keys, sorted_pair
from jax_mgpu._src.live import live_mask
from jax_mgpu._src.preconditions import by_construction
from jax_mgpu._src.primitive import ABSENT
from jax_mgpu._src.sort import Method, Ordered, count_name, count_of, in_order, run_sort
from jax_mgpu._src.sorted_search import _search
from jax_mgpu._src.values import flatten_values, take_or_fill

__all__ = ["Matches", "in_order_with", "is_nan", "matches"]


def in_order_with(name: str, argument: str, keys: Any, values: Any, count: Any) -> tuple[Any, Any]:
    """Keys in order, and the values that go with them, or None."""
    checked, _ = expect_keys(name, argument, keys)
    n = checked.shape[0]
    live = count_operand(name, count_name(argument), count, n)
    flatten_values(name, f"{argument}_values", values, n, argument)
    given = {"descending": False, "count": count_of(live), "method": Method.FASTEST}
    with by_construction():
        found = run_sort(name, checked, ABSENT, ABSENT, values, **given)
    return (found, None) if values is None else found


class Matches(NamedTuple):
    """The partners of each row of a, of which joins in any order are made; arrays are in the order of a's keys.

    Attributes:
      rows: a's keys in order.
      first: `[n_a]`, where the partners of each row begin in b's order.
      number: `[n_a]`, how many they are; 0 past the live rows.
      a_live: bool `[n_a]`, of the rows as they came.
      b_order: `[n_b]`, the rows of b in the order of their keys, rows of equal keys in input order.
      b_alone: a function that returns bool `[n_b]`, which live rows of b have no partner.
    """

    rows: Ordered
    first: jax.Array
    number: jax.Array
    a_live: jax.Array
    b_order: jax.Array
    b_alone: Callable[[], jax.Array]

    def only_partners(self) -> jax.Array:
        """The first partner of each row of a, or -1, in the order in which the rows came."""
        places = jnp.where(self.number > 0, self.first, -1)
        return self.rows.to_rows(take_or_fill(self.b_order + 1, places) - 1)


def matches(name: str, a: Any, b: Any, a_count: Any, b_count: Any, *, is_sorted: bool, null_equal: bool) -> Matches:
    """The partners of each row, as positions in the caller's arrays."""
    rows, others = (
        in_order(name, side, keys, count, is_sorted=is_sorted)
        for side, keys, count in (("a", a, a_count), ("b", b, b_count))
    )
    with by_construction(not is_sorted):
        pair = sorted_pair(name, rows.keys, others.keys, count_of(rows.count), count_of(others.count))

    def found(operands: Any, keys: Any) -> tuple[jax.Array, jax.Array]:
        low, high = (_search.run(operands, right=right)[0] for right in (False, True))
        number = high - low
        for x in () if null_equal else jax.tree.leaves(keys):
            number = jnp.where(is_nan(x), 0, number)
        return low, number

    def b_alone() -> jax.Array:
        number = found((pair.b, pair.a, pair.b_count, pair.a_count), others.keys)[1]
        return others.to_rows(number == 0) & live_mask(number.shape[0], pair.b_count)

    first, number = found(pair.operands, rows.keys)
    return Matches(rows, first, number, live_mask(number.shape[0], pair.a_count), others.order, b_alone)


def is_nan(x: jax.Array) -> jax.Array:
    """Which items are NaN; none of integers."""
    return jnp.isnan(x) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.zeros(x.shape, bool)
