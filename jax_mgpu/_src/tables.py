"""Tables: lookups, as-of joins, groups and windows of keys in any order, made of sorts, searches and scans.

Keys are sorted with their positions, the work is done in that order, and results go back to the rows. So a row's number
is always its position in the caller's arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.annotations import ArrayLike, AsofDirection, Directions, Keys, RankMethod
from jax_mgpu._src.bits import ordered_integers
from jax_mgpu._src.check import (
    as_array,
    count_operand,
    describe,
    expect_choice,
    expect_key,
    expect_leading_axis,
    expect_same_dtype,
    fill_operand,
    index_dtype,
    index_vector,
    static_flag,
    static_size,
    type_error,
    value_error,
)
from jax_mgpu._src.columns import Columns, expect_keys, key_starts, sorted_pair
from jax_mgpu._src.compat import is_local, whole_axes
from jax_mgpu._src.live import live_items, live_mask, segment_starts
from jax_mgpu._src.named import named_leaves
from jax_mgpu._src.operators import Kind, select
from jax_mgpu._src.preconditions import by_construction, non_decreasing, room
from jax_mgpu._src.primitive import ABSENT, one_program
from jax_mgpu._src.ranks import segmented_quantile
from jax_mgpu._src.reduce import _run_heads, _segmented_reduce, reduce_segments, run_reduce_by_key
from jax_mgpu._src.scan import _scan
from jax_mgpu._src.select import positions
from jax_mgpu._src.sort import Method, Ordered, count_name, count_of, in_order, run_sort, run_sort_indices
from jax_mgpu._src.sorted_search import _search
from jax_mgpu._src.values import flatten_values, plain_leaves, take_or_fill, take_rows

__all__ = [
    "asof_join",
    "group_by",
    "in_order_with",
    "kept_positions",
    "lookup",
    "matches",
    "rank",
    "saturated_offsets",
    "segmented_shift",
]


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
    """The partners of each row of a: what joins and matches in any order are made of.

    Attributes:
      first: `[n_a]`, where the partners of each row begin in b's order.
      number: `[n_a]`, how many they are; 0 past the live rows.
      a_live: bool `[n_a]`.
      b_order: `[n_b]`, the rows of b in the order of their keys, rows of equal keys as they came.
      b_alone: a function that gives, bool `[n_b]`, which live rows of b have no partner.
    """

    first: jax.Array
    number: jax.Array
    a_live: jax.Array
    b_order: jax.Array
    b_alone: Callable[[], jax.Array]


def matches(name: str, a: Any, b: Any, a_count: Any, b_count: Any, *, is_sorted: bool, null_equal: bool) -> Matches:
    """The partners of each row, told by positions in what the caller gave."""
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
            number = jnp.where(_is_nan(x), 0, number)
        return low, number

    def b_alone() -> jax.Array:
        number = found((pair.b, pair.a, pair.b_count, pair.a_count), others.keys)[1]
        return others.to_rows(number == 0) & live_mask(number.shape[0], pair.b_count)

    first, number = found(pair.operands, rows.keys)
    a_live = live_mask(number.shape[0], pair.a_count)
    return Matches(rows.to_rows(first), rows.to_rows(number), a_live, others.order, b_alone)


def kept_positions(keep: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """The first positions that are kept, `[size]`, -1 past them, and their number."""
    found, count = positions(keep, ABSENT, size)
    return jnp.where(found < keep.shape[0], found, -1), count


def saturated_offsets(lengths: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The exclusive scan of lengths and their sum; what the type cannot hold is the largest number that it can."""
    largest = jnp.asarray(jnp.iinfo(lengths.dtype).max, lengths.dtype)
    ends = _scan(x=lengths, op=Kind.ADD, exclusive=False, reverse=False, total=False)[0]
    before = jnp.concatenate([jnp.zeros_like(ends[:1]), ends[:-1]])
    wrapped = (ends < before).astype(lengths.dtype)  # a length is no more than the largest number
    wrapped = _scan(x=wrapped, op=Kind.MAX, exclusive=False, reverse=False, total=False)[0]
    ends = jnp.where(wrapped > 0, largest, ends)
    starts = jnp.concatenate([jnp.zeros_like(ends[:1]), ends[:-1]])
    return starts, ends[-1] if ends.shape[0] else jnp.zeros((), ends.dtype)


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

    def by_search() -> list[jax.Array]:
        rows = in_order(name, "keys", keys, count_of(live))
        with by_construction():
            pair = sorted_pair(name, rows.keys, table.keys, count_of(live), table_live, names=("keys", "table_keys"))
        found, after = (_search.run(pair.operands, right=side)[0] for side in (False, True))
        places = rows.to_rows(jnp.where(found < after, take_or_fill(table.order, found), -1))
        return [take_or_fill(x, places, fill) for x, fill in zip(leaves, fills, strict=True)]

    n, m = checked.shape[0], table.order.shape[0]
    if isinstance(checked, Columns) or not jnp.issubdtype(checked.dtype, jnp.integer) or not 0 < m <= 2 * n:
        return unflatten(by_search())
    if isinstance(table.keys, tuple) or table.keys.dtype != checked.dtype:
        return unflatten(by_search())  # which says what is wrong
    if not is_local(checked, table.keys, *leaves):  # the branches below would have to lie on devices alike
        return unflatten(by_search())

    def by_place() -> list[jax.Array]:
        numbers = Numbers(checked, live, table)
        found = [numbers.found(x, fill) for x, fill in zip(leaves, fills, strict=True)]
        return jax.lax.cond(numbers.are_dense, lambda: [x() for x in found], by_search)

    return unflatten(jax.lax.platform_dependent(cpu=by_place, default=by_search))


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
        """How much more keys are than the least one, which is a large number for those that are less."""
        distance = _distance(self.least, keys)
        return distance.astype(np.dtype(f"uint{max(32, 8 * keys.dtype.itemsize)}"))

    def places(self) -> jax.Array:
        """The place of each key that is looked up, one past the last where the table has none."""
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

    def found(self, x: jax.Array, fill: jax.Array) -> Callable[[], jax.Array]:
        """A function that gives the row of x of each key."""
        if x.ndim > 1:  # few places are better moved than wide rows
            return lambda: take_or_fill(
                x, take_or_fill(self.rows(), self.places(), jnp.full_like(self.order[:1], -1)), fill
            )
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
        in_order(name, side, (*group, time) if group else time, count, is_sorted=assume_sorted and not group)
        for side, group, time, count in zip("ab", groups, times, (a_count, b_count), strict=True)
    ]
    with by_construction(not assume_sorted or bool(groups[0])):
        pair = sorted_pair(name, rows[0].keys, rows[1].keys, *(count_of(side.count) for side in rows))
    columns = [side.keys if isinstance(side.keys, tuple) else (side.keys,) for side in rows]
    (*group, time), (n_b,) = columns[0], times[1].shape
    live = live_mask(time.shape[0], rows[0].count) & ~_is_nan(time)
    b_live = live_items(n_b, rows[1].count)
    largest = None if tolerance is None else _tolerance(name, tolerance, time.dtype)

    def partner(position: jax.Array, later: bool) -> tuple[jax.Array, jax.Array]:
        """Whether the row of b at a position goes with each row of a, and how far it is in time."""
        inside = live & (position >= 0) & (position < b_live)
        *keys, other = (take_or_fill(x, jnp.where(inside, position, -1)) for x in columns[1])
        for x, y in zip(group, keys, strict=True):
            inside &= ordered_integers(x) == ordered_integers(y)
        inside &= ~_is_nan(other)
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


def _columns_of(name: str, argument: str, by: Any, length: int) -> tuple[Any, ...]:
    """Keys to go by as columns, to which that of the times is added."""
    keys, _ = expect_keys(name, argument, by)
    columns = tuple(keys.arrays) if isinstance(keys, Columns) else (keys,)
    if len(columns) > 7:
        raise value_error(name, argument, "1 to 7 columns", f"{len(columns)} columns")
    if keys.shape[0] != length:
        raise value_error(name, argument, f"a key for each of the {length} times", f"{keys.shape[0]} keys")
    return columns


def _is_nan(x: jax.Array) -> jax.Array:
    return jnp.isnan(x) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.zeros(x.shape, bool)


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


@one_program("op", "size")
def group_by(
    keys: Keys, values: Any, op: Any = "add", *, size: int, count: ArrayLike | None = None
) -> tuple[Any, Any, jax.Array]:
    """Combines the values of each key: `reduce_by_key` for keys in any order.

    Args:
      keys: `[n]`, integers or floats of 8 to 64 bits, in any order; or columns, a tuple of 1 to 8 such arrays. All NaNs
        are equal, and so are the zeros.
      values: a pytree of arrays with leading axis `n`.
      op: how to combine each value: one name for all, a pytree of names that is a prefix of `values`, or a function, as
        for `reduce_by_key`. Names are those of `reduce`; `"mean"` and `"median"`; `"count"`, the number of rows;
        `"nunique"`, the number of different values; `"first"` and `"last"`, of any dtype and trailing shape.
      size: the static number of results.
      count: the number of live items, an integer scalar (default `n`).

    Returns:
      `(keys, values, count)`: each key once, in order, its combined values, and the number of keys, which can exceed
      `size`. Slots past it hold 0, or -1 for indices. The index of an extremum is a position in the given values.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape is not one of the above, or `op` is not known; 2^31 items or more without
        `jax_enable_x64`.

    A mean or median of integers is a float of 32 bits, or of 64 if they have 64. A median over a NaN is NaN. Rows of a
    key are combined in input order. Time is that of a sort of the keys with indices, and for each value a gather and a
    segmented reduction; `"nunique"` and `"median"` sort once more.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> day, sales = jnp.array([2, 1, 2]), jnp.array([5.0, 3.0, 1.0])
      >>> days, found, count = mgpu.group_by(day, {"sum": sales, "n": day}, {"sum": "add", "n": "count"}, size=2)
      >>> days, found
      (Array([1, 2], dtype=int32), {'n': Array([1, 2], dtype=int32), 'sum': Array([3., 6.], dtype=float32)})
    """
    name = "group_by"
    rows = in_order(name, "keys", keys, count)
    n = rows.order.shape[0]
    size = static_size(name, "size", size)
    if callable(op):
        leaves, unflatten = flatten_values(name, "values", values, n, "keys")
        moved = unflatten([take_rows(x, rows.order) for x in leaves])
        return run_reduce_by_key(name, rows.keys, moved, op, size=size, count=count_of(rows.count))
    structure: Any = jax.tree.structure(values)
    leaves = expect_leading_axis(name, "values", jax.tree.leaves(values), n, "keys")
    try:
        names = jax.tree.leaves(jax.tree.broadcast(op, values)) if not isinstance(op, str) else [op] * len(leaves)
    except ValueError as error:
        raise value_error(name, "op", f"a name, or a pytree of names like values, {structure}", repr(op)) from error
    given, _ = expect_keys(name, "keys", rows.keys)
    codes = given.run_keys() if isinstance(given, Columns) else given
    heads, _, covered, runs = _run_heads(keys=codes, count=rows.count, size=size)
    groups = Groups(name, heads, covered.reshape(1), runs, size, rows.order)
    columns = given.arrays if isinstance(given, Columns) else [given]
    firsts = [groups.first(x) for x in columns]
    keys = given.structure(firsts) if isinstance(given, Columns) else firsts[0]
    results = [groups.combined(x, operator) for x, operator in zip(leaves, names, strict=True)]
    return keys, structure.unflatten(results), room(name, runs, size)


class Groups:
    """Runs of equal keys in sorted order."""

    def __init__(self, name: str, heads: jax.Array, covered: jax.Array, runs: jax.Array, size: int, order: jax.Array):
        self.name, self.heads, self.covered, self.size, self.order = name, heads, covered, size, order
        self.used = live_mask(size, runs.reshape(1))
        self.ends = jnp.where(self.used, jnp.append(heads[1:], covered), 0)
        self.ends = jnp.where(self.used, jnp.minimum(self.ends, covered), 0)

    @property
    def counts(self) -> jax.Array:
        """The number of rows of each group."""
        return jnp.where(self.used, self.ends - self.heads, 0)

    def first(self, x: jax.Array) -> jax.Array:
        """The first row of each group of `x`, which is in sorted order; 0 past the groups."""
        return take_or_fill(x, jnp.where(self.used, self.heads, -1))

    def combined(self, x: jax.Array, operator: Any) -> jax.Array:
        """One result a group of the values x, which are in the order that was given."""
        if operator == "count":
            return self.counts
        if operator in ("first", "last"):
            places = self.heads if operator == "first" else self.ends - 1
            plain, restore = plain_leaves([x])
            found = jnp.where(self.used, take_or_fill(self.order, places), -1)
            return restore([take_or_fill(plain[0], found)])[0]
        special = {"nunique": self._distinct, "median": self._median}
        if operator in special:
            return special[operator](take_rows(expect_key(self.name, "values", x), self.order))
        if operator == "mean":
            x = x.astype(_float_dtype(x.dtype))
        (leaf,), _, _ = named_leaves(self.name, "values", take_rows(x, self.order), operator)
        reduced = reduce_segments(leaf, self.heads, self.covered)
        if leaf.kind.gives_index:
            reduced = take_or_fill(self.order, reduced.reshape(-1)).reshape(reduced.shape)
        return select(self.used, reduced, jnp.full_like(reduced, leaf.fill))

    def _sorted(self, x: jax.Array) -> jax.Array:
        return run_sort(self.name, x, self.heads, ABSENT, None, descending=False, count=self.covered[0])

    def _distinct(self, x: jax.Array) -> jax.Array:
        ordered = self._sorted(x)
        differs = key_starts(ordered) | segment_starts(x.shape[0], self.heads)
        marks = differs.astype(self.heads.dtype)
        return _segmented_reduce(x=marks, heads=self.heads, count=self.covered, op=Kind.ADD, wide=False)[0]

    def _median(self, x: jax.Array) -> jax.Array:
        found = segmented_quantile(x, self.heads, 0.5, count=self.covered[0])
        return jnp.where(self.used, found, jnp.zeros((), found.dtype)).astype(_float_dtype(x.dtype))


def _float_dtype(dtype: Any) -> Any:
    """The dtype of means and medians."""
    if jnp.issubdtype(dtype, jnp.floating):
        return dtype
    return jnp.float64 if dtype.itemsize == 8 else jnp.float32


@one_program("method", "descending")
def rank(
    keys: Keys,
    heads: ArrayLike | None = None,
    method: RankMethod = "min",
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
) -> jax.Array:
    """The rank of each key among all keys, or within its segment, from 1 on.

    Args:
      keys: `[n]`, integers or floats of 8 to 64 bits, in any order; or columns, a tuple of 1 to 8 such arrays. NaN is
        largest, all NaNs are equal, and so are the zeros.
      heads: `[m]`, non-decreasing integers: the start positions of segments, each of which is ranked on its own.
      method: `"min"`: one more than the number of smaller keys. `"dense"`: one more than the number of different
        smaller keys. `"ordinal"`: a different rank for each item, equal keys in input order.
      descending: rank the greatest first; a tuple of bools is a direction a column.
      count: the number of live items, an integer scalar (default `n`).

    Returns:
      `[n]` ranks, 0 past `count`; int32, or int64 from 2^31 items on.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape or method is not one of the above; 2^31 items or more without `jax_enable_x64`.

    Time is that of a sort with indices, two scans and a scatter.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.rank(jnp.array([7, 3, 7, 9]))
      Array([2, 1, 2, 4], dtype=int32)
    """
    name = "rank"
    form = expect_choice(name, "method", method, ("min", "dense", "ordinal"))
    checked, down = expect_keys(name, "keys", keys, descending)
    n = checked.shape[0]
    starts = (
        ABSENT if heads is None else whole_axes(non_decreasing(name, "heads", index_vector(name, "heads", heads, n)))
    )
    method_of_sort = Method.FASTEST if heads is None else Method.MERGING
    sorted_keys, order = run_sort_indices(
        name, checked, starts, ABSENT, descending=down, count=count, method=method_of_sort
    )
    places = jnp.arange(n, dtype=order.dtype)
    first = segment_starts(n, starts)
    begins = _last_marked(places, first)
    if form == "ordinal":
        ranks = places - begins + 1
    else:
        differs = key_starts(expect_keys(name, "keys", sorted_keys)[0]) | first
        if form == "min":
            ranks = _last_marked(places, differs) - begins + 1
        else:
            marks = differs.astype(order.dtype)
            runs = _scan(x=marks, op=Kind.ADD, exclusive=False, reverse=False, total=False)[0]
            ranks = runs - take_or_fill(runs, begins) + 1
    ranks = Ordered(sorted_keys, order, ABSENT).to_rows(ranks)
    return jnp.where(live_mask(n, count_operand(name, "count", count, n)), ranks, 0)


def _last_marked(places: jax.Array, marked: jax.Array) -> jax.Array:
    """For each position the last one up to it that is marked; 0 before the first."""
    marks = jnp.where(marked, places, 0)
    return _scan(x=marks, op=Kind.MAX, exclusive=False, reverse=False, total=False)[0]


@one_program("fill_value")
def segmented_shift(
    x: Any, heads: ArrayLike, by: ArrayLike, fill_value: ArrayLike = 0, *, count: ArrayLike | None = None
) -> Any:
    """Moves rows along within their segment: row `i` gets the value of row `i - by` of the same segment.

    Args:
      x: a pytree of arrays with leading axis `n`, of any dtype and trailing shape.
      heads: `[m]`, non-decreasing integers: the start positions of the segments. Position 0 starts a segment whether
        listed or not.
      by: how far, an integer; negative to get the values of later rows.
      fill_value: the value of rows that get nothing, a scalar; converted to each dtype.
      count: the number of live rows, an integer scalar (default `n`). Rows past it get nothing.

    Returns:
      A pytree like x.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape is not one of the above.

    Gradients flow to x. Time is O(n): a scan and a gather.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.segmented_shift(jnp.array([1, 2, 3, 4, 5]), jnp.array([0, 3]), 1, fill_value=-1)
      Array([-1,  1,  2, -1,  4], dtype=int32)
    """
    name = "segmented_shift"
    leaves = jax.tree.leaves(x)
    if not leaves:
        return x
    n = as_array(name, "x", leaves[0]).shape[0] if np.ndim(leaves[0]) else 0
    plain, unflatten = flatten_values(name, "x", x, n, "x")
    heads = whole_axes(non_decreasing(name, "heads", index_vector(name, "heads", heads, n)))
    step = as_array(name, "by", by)
    if step.ndim != 0 or not jnp.issubdtype(step.dtype, jnp.integer):
        raise type_error(name, "by", "an integer scalar", describe(step))
    dtype = index_dtype(name, "x", 2 * n)
    places = jnp.arange(n, dtype=dtype)
    begins = _last_marked(places, segment_starts(n, heads))
    live = live_items(n, count_operand(name, "count", count, n), dtype)
    limits = jnp.iinfo(step.dtype)
    sources = places - jnp.clip(step, max(-n, limits.min), min(n, limits.max)).astype(dtype)
    inside = (sources >= 0) & (sources < live) & (places < live)
    same = take_or_fill(begins, jnp.where(inside, sources, -1)) == begins
    sources = jnp.where(inside & same, sources, -1)
    return unflatten([take_or_fill(leaf, sources, fill_operand(name, fill_value, leaf.dtype)) for leaf in plain])
