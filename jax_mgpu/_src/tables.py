"""Lookups and as-of joins: for each row of one table, a row of another, by keys in any order.

Keys are sorted with their positions, the work is done in that order, and results go back to the rows. So a row's number
is always its position in the caller's arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.annotations import ArrayLike, AsofDirection, Keys
from jax_mgpu._src.any_order import is_nan
from jax_mgpu._src.bits import ordered_integers
from jax_mgpu._src.check import (
    as_array,
    count_operand,
    describe,
    expect_choice,
    expect_key,
    expect_same_dtype,
    fill_operand,
    static_flag,
    type_error,
    value_error,
)
from jax_mgpu._src.columns import Columns, expect_keys, sorted_pair
from jax_mgpu._src.compat import is_local, whole_axes
from jax_mgpu._src.live import live_items, live_mask
from jax_mgpu._src.preconditions import by_construction
from jax_mgpu._src.primitive import ABSENT, one_program
from jax_mgpu._src.sort import Ordered, count_of, in_order, rows_in_order
from jax_mgpu._src.sorted_search import _search
from jax_mgpu._src.values import flatten_values, take_or_fill

__all__ = ["asof_join", "lookup"]


@one_program("default")
def lookup(
    keys: Keys,
    table_keys: Keys,
    values: Any,
    *,
    default: ArrayLike = 0,
    count: ArrayLike | None = None,
    table_count: ArrayLike | None = None,
) -> Any:
    """Looks up, for each key, the values of the row of a table that has this key.

    Args:
      keys: `[n]`, integers or floats of 8 to 64 bits, in any order; or columns, a tuple of 1 to 8 such arrays.
      table_keys: `[m]` keys of the same types, in any order, each once; among equal keys the first counts.
      values: a pytree of arrays with leading axis `m`, of any dtype and trailing shape.
      default: the value of a key that is not in the table, a scalar; converted to each dtype.
      count: the number of live keys, an integer scalar (default `n`). Results past it are the default.
      table_count: the number of live rows of the table (default `m`).

    Returns:
      The pytree of values, each `[n, ...]`.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape is not one of the above; 2^31 items or more without `jax_enable_x64`.

    Gradients flow to the values. Time is that of a sort of both keys, a search and a gather. On the CPU, integer keys
    are not sorted if the table's keys fill a quarter of the range from their least to their greatest.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.lookup(jnp.array([5, 9, 5]), jnp.array([7, 5]), jnp.array([0.7, 0.5]), default=-1)
      Array([ 0.5, -1. ,  0.5], dtype=float32)
    """
    name = "lookup"
    checked, _ = expect_keys(name, "keys", keys)
    live = count_operand(name, "count", count, checked.shape[0])
    table = in_order(name, "table_keys", table_keys, table_count)
    leaves, unflatten = flatten_values(name, "values", values, table.order.shape[0], "table_keys")
    fills = [fill_operand(name, default, x.dtype, "default") for x in leaves]
    table_live = count_of(table.count)

    # Rows of words are looked up by the branches below, all others by the places that these find: wide rows are then
    # moved once, and in a batch, where JAX selects between branches, narrow floats keep their bits.
    looked_up = [x.ndim == 1 and x.dtype.itemsize >= 4 for x in leaves]

    def moved(found: Sequence[jax.Array]) -> Any:
        parts = zip(leaves, fills, looked_up, found, strict=True)
        return unflatten([got if done else take_or_fill(x, got, fill) for x, fill, done, got in parts])

    def by_search() -> list[jax.Array]:
        rows = in_order(name, "keys", keys, count_of(live))
        with by_construction():
            pair = sorted_pair(name, rows.keys, table.keys, count_of(live), table_live, names=("keys", "table_keys"))
        found, after = (_search.run(pair.operands, right=side)[0] for side in (False, True))
        places = rows.to_rows(jnp.where(found < after, take_or_fill(table.order, found), -1))
        parts = zip(leaves, fills, looked_up, strict=True)
        return [take_or_fill(x, places, fill) if done else places for x, fill, done in parts]

    n, m = checked.shape[0], table.order.shape[0]
    if isinstance(checked, Columns) or not jnp.issubdtype(checked.dtype, jnp.integer) or not 0 < m <= 2 * n:
        return moved(by_search())
    if isinstance(table.keys, tuple) or table.keys.dtype != checked.dtype:
        return moved(by_search())  # which says what is wrong
    if not is_local(checked, table.keys, *leaves):  # the branches below would have to lie on devices alike
        return moved(by_search())

    def by_place() -> list[jax.Array]:
        numbers = Numbers(checked, live, table)
        parts = zip(leaves, fills, looked_up, strict=True)
        found = [numbers.found(x, fill) if done else numbers.table_rows for x, fill, done in parts]
        return jax.lax.cond(numbers.are_dense, lambda: [x() for x in found], by_search)

    return moved(jax.lax.platform_dependent(cpu=by_place, default=by_search))


class Numbers:
    """Integer keys of a table as places counted from its least one, where few of these places are empty.

    On a CPU, a gather from an array that has each place costs a fraction of a sort of the keys that are looked up.
    """

    def __init__(self, keys: jax.Array, live: Any, table: Ordered):
        (m,) = table.order.shape
        self.keys, self.live, self.order, self.size = keys, live, table.order, 4 * m
        table_live = live_items(m, table.count)
        self.least, self.greatest = table.keys[0], table.keys[jnp.maximum(table_live - 1, 0)]
        self.are_dense = (table_live > 0) & (self.place(self.greatest) < self.size)
        self.table_places, self.table_count = self.place(table.keys).astype(jnp.uint32), table.count

    def place(self, keys: jax.Array) -> jax.Array:
        """The difference of keys from the least one; a large number for keys that are less."""
        distance = _distance(self.least, keys)
        return distance.astype(np.dtype(f"uint{max(32, 8 * keys.dtype.itemsize)}"))

    def places(self) -> jax.Array:
        """The place of each key that is looked up, one past the last if the table does not have the key."""
        inside = live_mask(self.keys.shape[0], self.live) & (self.keys >= self.least) & (self.keys <= self.greatest)
        return jnp.where(inside, self.place(self.keys), self.size).astype(self.order.dtype)

    def rows(self) -> jax.Array:
        """The row of the table at each place, the first of several, -1 where there is none."""
        ends = jnp.arange(self.size + 1, dtype=jnp.uint32)
        begins = _search(
            needles=ends, haystack=self.table_places, needles_count=ABSENT, haystack_count=self.table_count,
            right=False,
        )[0]  # fmt: skip
        return jnp.where(begins[:-1] < begins[1:], take_or_fill(self.order, begins[:-1]), -1)

    def table_rows(self) -> jax.Array:
        """The row of the table of each key, -1 where there is none."""
        return take_or_fill(self.rows(), self.places(), jnp.full_like(self.order[:1], -1))

    def found(self, x: jax.Array, fill: jax.Array) -> Callable[[], jax.Array]:
        """A function that gives the item of x of each key."""
        return lambda: take_or_fill(take_or_fill(x, self.rows(), fill), self.places(), fill)


@one_program("direction", "assume_sorted")
def asof_join(
    a: ArrayLike,
    b: ArrayLike,
    *,
    by_a: Keys | None = None,
    by_b: Keys | None = None,
    direction: AsofDirection = "backward",
    tolerance: ArrayLike | None = None,
    assume_sorted: bool = True,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
) -> jax.Array:
    """For each row of a, the row of b that is nearest in time.

    Args:
      a: `[n_a]`, the times of a: integers or floats of 8 to 64 bits.
      b: `[n_b]`, the times of b, of the same dtype.
      by_a: `[n_a]` keys in any order, or columns, a tuple of 1 to 7 such arrays. A row of a is matched only with rows
        of b that have the same keys.
      by_b: the same for b, of the same dtypes.
      direction: `"backward"` for the last row of b whose time is at most a's, `"forward"` for the first whose time is
        at least a's, `"nearest"` for the one of these two that is nearer, the earlier one if both are as near.
      tolerance: the greatest difference of the times, a scalar from 0 on.
      assume_sorted: whether a and b are sorted; False takes times in any order.
      a_count: the number of live rows of a, an integer scalar (default `n_a`).
      b_count: the same for b (default `n_b`).

    Returns:
      `[n_a]` positions in b, -1 where there is no such row and past `a_count`. Of several rows of b with the same time
      and key, it is the last one looking backward and the first one looking forward. A time that is NaN has no partner.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape or direction is not one of the above, or one of by_a and by_b is missing; 2^31
        items or more without `jax_enable_x64`.

    Time is O(n_a + n_b) for sorted times without keys. Otherwise it is that of a sort of both sides, and a search.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.asof_join(jnp.array([5, 10]), jnp.array([1, 4, 9]), direction="nearest")
      Array([1, 2], dtype=int32)
    """
    name = "asof_join"
    looks = expect_choice(name, "direction", direction, ("backward", "forward", "nearest"))
    assume_sorted = static_flag(name, "assume_sorted", assume_sorted)
    if (by_a is None) != (by_b is None):
        raise value_error(name, "by_a and by_b", "both or neither", "one of them")
    times = [expect_key(name, side, x) for side, x in (("a", a), ("b", b))]
    expect_same_dtype(name, "a", times[0], "b", times[1])
    groups = [
        () if by is None else _columns_of(name, side, by, time.shape[0])
        for side, by, time in zip(("by_a", "by_b"), (by_a, by_b), times, strict=True)
    ]
    if len(groups[0]) != len(groups[1]):
        raise value_error(name, "by_b", f"the {len(groups[0])} columns of by_a", f"{len(groups[1])} columns")
    for x, y in zip(*groups, strict=True):
        expect_same_dtype(name, "by_a", x, "by_b", y)
    rows = [
        _by_group_and_time(name, side, group, time, count, assume_sorted)
        for side, group, time, count in zip("ab", groups, times, (a_count, b_count), strict=True)
    ]
    with by_construction(not assume_sorted or bool(groups[0])):
        pair = sorted_pair(name, rows[0].keys, rows[1].keys, *(count_of(side.count) for side in rows))
    columns = [tuple(map(whole_axes, side.keys if isinstance(side.keys, tuple) else (side.keys,))) for side in rows]
    (*group, time), (n_b,) = columns[0], times[1].shape
    live = live_mask(time.shape[0], rows[0].count) & ~is_nan(time)
    b_live = live_items(n_b, rows[1].count)
    largest = None if tolerance is None else _tolerance(name, tolerance, time.dtype)

    def partner(position: jax.Array, later: bool) -> tuple[jax.Array, jax.Array]:
        """Whether the row of b at a position is a partner of each row of a, and how far it is in time."""
        inside = live & (position >= 0) & (position < b_live)
        *keys, other = (take_or_fill(x, jnp.where(inside, position, -1)) for x in columns[1])
        for x, y in zip(group, keys, strict=True):
            inside &= ordered_integers(x) == ordered_integers(y)
        inside &= ~is_nan(other)
        distance = _distance(time, other) if later else _distance(other, time)
        if largest is not None:
            inside &= distance <= largest
        return inside, distance

    places = jnp.full(time.shape, -1, rows[1].order.dtype)
    before = _search.run(pair.operands, right=True)[0] - 1 if looks != "forward" else places
    after = _search.run(pair.operands, right=False)[0] if looks != "backward" else places
    is_before, gap_before = partner(before, False)
    is_after, gap_after = partner(after, True)
    take_after = is_after & ~(is_before & (gap_before <= gap_after))
    found = jnp.where(take_after, after, jnp.where(is_before, before, -1))
    return rows[0].to_rows(take_or_fill(rows[1].order + 1, found) - 1)


def _by_group_and_time(
    name: str, side: str, group: tuple[Any, ...], time: jax.Array, count: Any, is_sorted: bool
) -> Ordered:
    """The rows of one side, with the columns of their groups and the times as keys."""
    if not group:
        return in_order(name, side, time, count, is_sorted=is_sorted)
    if not is_sorted:
        return in_order(name, side, (*group, time), count)
    rows, (time,) = rows_in_order(name, side, group, [time], count)  # stable, so the times of a group stay sorted
    return rows._replace(keys=(*rows.keys, time))


def _columns_of(name: str, argument: str, by: Any, length: int) -> tuple[Any, ...]:
    """The keys of by_a or by_b as columns; the column of times is added to them."""
    keys, _ = expect_keys(name, argument, by)
    columns = tuple(keys.arrays) if isinstance(keys, Columns) else (keys,)
    if len(columns) > 7:
        raise value_error(name, argument, "1 to 7 columns", f"{len(columns)} columns")
    if keys.shape[0] != length:
        raise value_error(name, argument, f"a key for each of the {length} times", f"{keys.shape[0]} keys")
    return columns


def _distance(early: jax.Array, late: jax.Array) -> jax.Array:
    """How much later one time is, exactly: of integers without a sign."""
    if jnp.issubdtype(early.dtype, jnp.floating):
        return jnp.where(early == late, jnp.zeros((), early.dtype), late - early)
    word = f"uint{8 * early.dtype.itemsize}"
    return jax.lax.bitcast_convert_type(late, word) - jax.lax.bitcast_convert_type(early, word)


def _tolerance(name: str, tolerance: Any, dtype: Any) -> jax.Array:
    """The greatest difference, of the type of differences."""
    given = as_array(name, "tolerance", tolerance)
    if given.ndim != 0:
        raise value_error(name, "tolerance", "a scalar", describe(given))
    if jnp.issubdtype(dtype, jnp.floating):
        return given.astype(dtype)
    if not jnp.issubdtype(given.dtype, jnp.integer):
        raise type_error(name, "tolerance", f"an integer, as the times are {dtype.name}", describe(given))
    word = jnp.dtype(f"uint{8 * dtype.itemsize}")
    if given.dtype.itemsize > word.itemsize:
        given = jnp.minimum(given, jnp.asarray(jnp.iinfo(word).max, given.dtype))
    return given.astype(word)
