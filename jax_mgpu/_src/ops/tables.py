"""Lookups and as-of joins, which find a row of another table by key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import ArrayLike, AsofDirection, AxisName, Keys, Pytree
from jax_mgpu._src.arguments.check import (
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
from jax_mgpu._src.arguments.counts import live_items, live_mask, of_all, partition_points
from jax_mgpu._src.arguments.preconditions import not_negative
from jax_mgpu._src.arguments.values import flatten_values, take_or_fill
from jax_mgpu._src.core.compat import cond, is_local, platform_dependent, surely, whole_axes
from jax_mgpu._src.core.library import cpu_library
from jax_mgpu._src.core.operation import ABSENT, Operation, jit_eager
from jax_mgpu._src.functions.operators import accumulator_dtype
from jax_mgpu._src.keys.bits import ordered_integers, where
from jax_mgpu._src.keys.columns import (
    Columns,
    KeyPair,
    columns_of,
    expect_keys,
    expect_pair,
    expect_sorted,
    expect_told_apart,
    pair_counts,
)
from jax_mgpu._src.mesh import over_axis
from jax_mgpu._src.ops.argsorted import Ordered, in_order, rows_in_order
from jax_mgpu._src.ops.gather import gather
from jax_mgpu._src.ops.intervals import gather_rows
from jax_mgpu._src.ops.sorted_search import _search, search_in_any_order
from jax_mgpu._src.ops.unsorted_pairs import but_nan, is_nan

__all__ = ["asof_join", "lookup"]


@jit_eager()
def lookup(
    keys: Keys,
    table_keys: Keys,
    values: Pytree,
    *,
    default: ArrayLike = 0,
    count: ArrayLike | None = None,
    table_count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> Any:
    """Looks up, for each key, the values of the row of a table that has this key.

    Args:
      keys: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits, in any order; or columns, a tuple of 1 to 8 such
        arrays.
      table_keys: `[m]` keys of the same types, in any order. Of equal keys, the first one counts.
      values: a pytree of arrays with leading axis `m`, of any dtype and trailing shape.
      default: the value of a key that is not in the table, a scalar; converted to each dtype.
      count: the number of live keys, an integer scalar (default `n`). Results past it are the default.
      table_count: the number of live rows of the table (default `m`).
      axis_name: look the keys up in the table of all devices of a mesh axis, or of a tuple of axes, within
        `jax.shard_map`; columns may have up to 64 bits in all. Each key's result is on the key's device.

    Returns:
      The pytree of values, each `[n, ...]`.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape is not one of the above; 2^31 items or more without `jax_enable_x64`.

    Gradients flow to the values. A call takes the time of a sort of the table's keys, a `search` and a gather. `keys`
    of more than 64 bits in all are sorted too. On a CPU, 4,096 `keys` or more may be sorted too. If the table's keys
    are integers with few gaps, many `keys` may be looked up by their distance from the smallest one. A CPU may compare
    each key with all keys of a table of up to 16 rows.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.lookup(jnp.array([5, 9, 5]), jnp.array([7, 5]), jnp.array([0.7, 0.5]), default=-1)
      Array([ 0.5, -1. ,  0.5], dtype=float32)
    """
    name = "lookup"
    expect_told_apart(name, keys=keys, table_keys=table_keys)
    checked, rows, _ = expect_pair(name, keys, table_keys, names=("keys", "table_keys"))
    (n,), (m,) = checked.shape, rows.shape
    live = count_operand(name, "count", count, n)
    leaves, unflatten = flatten_values(name, "values", values, m, "table_keys")
    fills = [fill_operand(name, default, x.dtype, "default") for x in leaves]
    table_live = count_operand(name, "table_count", table_count, m)
    if axis_name is not None:
        pair = KeyPair(name, checked, rows, live, table_live)
        return unflatten(over_axis(mesh.tables.lookup, name, axis_name, pair, leaves, fills))
    table = in_order(name, "table_keys", rows, table_live)

    # The branches below look up vectors with items of 4 bytes or more. For other values they return rows of the table,
    # and `moved` gathers the values of these rows.
    looked_up = [x.ndim == 1 and x.dtype.itemsize >= 4 for x in leaves]

    def moved(found: Sequence[jax.Array]) -> Any:
        parts = zip(leaves, fills, looked_up, found, strict=True)
        return unflatten([got if done else take_or_fill(x, got, fill, or_none=True) for x, fill, done, got in parts])

    def by_search() -> list[jax.Array]:
        places = _places_by_search(name, checked, live, table)
        taken = _take_few if surely(lambda: CPU_MIN_DISPATCHED <= n < CPU_MIN_PLACED) else _take
        rows = taken(table.order, places, jnp.full((1,), -1, table.order.dtype))
        is_short = surely(lambda: sum(looked_up) * m <= n)

        def values_of(x: jax.Array, fill: jax.Array) -> jax.Array:
            if is_short:
                return taken(gather(x, table.order, unique=True, inside=True), places, fill)
            return taken(x, rows, fill)

        parts = zip(leaves, fills, looked_up, strict=True)
        return [values_of(x, fill) if done else rows for x, fill, done in parts]

    if isinstance(checked, Columns) or not jnp.issubdtype(checked.dtype, jnp.integer):
        return moved(by_search())
    # Both branches below must give the same sharding.
    if not surely(lambda: 0 < m <= 2 * n) or not is_local(checked, table.keys, *leaves):
        return moved(by_search())
    gains = {"cpu": surely(lambda: n >= CPU_MIN_PLACED), "cuda": surely(lambda: 4 * m <= n)}
    platforms = [platform for platform, holds in gains.items() if holds]
    if not platforms:
        return moved(by_search())
    numbers = Numbers(checked, live, table)

    def by_place() -> list[jax.Array]:
        rows, places = numbers.rows(), numbers.places()
        parts = zip(leaves, fills, looked_up, strict=True)
        found = [take_or_fill(x, rows, fill, or_none=True) if done else rows for x, fill, done in parts]
        return [gather(x, places, inside=True) for x in found]

    ways: dict[str, Any] = {platform: lambda are_dense: are_dense for platform in platforms}
    is_by_place: jax.Array = platform_dependent(numbers.are_dense, **ways, default=jnp.zeros_like)
    return moved(cond(of_all(is_by_place), by_place, by_search))


CPU_MIN_PLACED = 4096  # from as many keys on, a CPU may sort them, or make a table of positions
CPU_MIN_DISPATCHED = 128  # from as many keys on, XLA would run the program of a lookup on another thread
MAX_COMPARED = 16  # a CPU compares keys with all keys of a table of so few
CPU_MAX_COMPARED = 32  # XLA runs more comparisons on another thread, which pays for many keys


def _take(x: jax.Array, indices: jax.Array, fill: jax.Array) -> jax.Array:
    return take_or_fill(x, indices, fill, or_none=True)


@jax.custom_jvp
def _take_few(x: jax.Array, indices: jax.Array, fill: jax.Array) -> jax.Array:
    """Does the same as `_take` for vectors, on a CPU by a kernel.

    XLA runs programs with many operations on another thread than the caller's. It does not count what a kernel does.
    """
    rows: jax.Array = platform_dependent(x, indices, fill, cpu=_take_by_kernel, default=_take)
    return rows


@_take_few.defjvp
def _(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    (x, indices, fill), (x_dot, _, fill_dot) = primals, tangents
    return _take_few(x, indices, fill), _take(x_dot, indices, fill_dot)


@jax.custom_batching.custom_vmap
def _take_by_kernel(x: jax.Array, indices: jax.Array, fill: jax.Array) -> jax.Array:
    n, dtype = indices.shape[0], indices.dtype
    offsets, total = jnp.arange(n, dtype=dtype), jnp.full((1,), n, dtype)
    rows = gather_rows(
        x=x[:, None], starts=indices, offsets=offsets, total=total, fill_value=fill, size=n, disjoint=True
    )[0]
    return rows[:, 0]


@_take_by_kernel.def_vmap
def _(axis_size: int, batched: list[bool], *operands: jax.Array) -> tuple[jax.Array, bool]:
    """Runs a batch by `_take`."""
    del axis_size
    return jax.vmap(_take, in_axes=[0 if is_batched else None for is_batched in batched])(*operands), True


def _places_by_search(name: str, keys: jax.Array | Columns, live: jax.Array, table: Ordered) -> jax.Array:
    """Returns the first place of each key among the table's sorted keys, or -1."""

    def by_sort() -> jax.Array:
        rows = in_order(name, "keys", keys, live)
        operands = KeyPair(name, rows.keys, table.keys, live, table.count).operands
        found, after = (_search.run(operands, right=side)[0] for side in (False, True))
        return rows.to_rows(where(found < after, found, -1))

    def by_kernel() -> jax.Array:
        return search_in_any_order(KeyPair(name, keys, table.keys, live, table.count).operands, exact=True)

    n, m = keys.shape[0], table.order.shape[0]
    by_order = by_sort if isinstance(keys, Columns) and not keys.fits else by_kernel
    if surely(lambda: n > 0 and 0 < m <= MAX_COMPARED and (n * m <= CPU_MAX_COMPARED or n >= CPU_MIN_PLACED)):
        return platform_dependent(cuda=by_order, default=lambda: _places_by_comparisons(keys, live, table))
    if by_order is by_sort or surely(lambda: n < CPU_MIN_PLACED):
        return by_order()
    return platform_dependent(cuda=by_kernel, default=by_sort)


def _places_by_comparisons(keys: jax.Array | Columns, live: jax.Array, table: Ordered) -> jax.Array:
    """Does the same as `_places_by_search` by comparing each key with all of the table."""
    shape = keys.shape[0], table.order.shape[0]
    same = jnp.broadcast_to(live_mask(shape[1], table.count), shape)
    if live.size:
        same &= live_mask(shape[0], live)[:, None]
    for a, b in zip(columns_of(keys), columns_of(table.keys), strict=True):
        same &= ordered_integers(a)[:, None] == ordered_integers(b)
    places = jax.lax.broadcasted_iota(table.order.dtype, shape, 1)
    first = jax.lax.reduce_min(where(same, places, shape[1]), [1])
    return whole_axes(where(first < shape[1], first, -1))


class Numbers:
    """Integer keys of a table as positions relative to its smallest key, for tables with few gaps."""

    def __init__(self, keys: jax.Array, live: jax.Array, table: Ordered):
        (m,) = table.order.shape
        self.keys, self.live, self.order, self.size = keys, live, table.order, 4 * m
        self.least, self.greatest, self.table_count = table.keys[0], table.keys[m - 1], table.count
        has_rows = jnp.ones((), bool)
        if table.count.size:
            table_live = live_items(m, table.count)
            self.greatest, has_rows = gather(table.keys, jnp.maximum(table_live - 1, 0), inside=True), table_live > 0
        self.are_dense = has_rows & (self.place(self.greatest) < self.size)
        self.table_places = self.place(table.keys).astype(jnp.uint32)

    def place(self, keys: jax.Array) -> jax.Array:
        """Returns keys less the smallest key of the table, as unsigned numbers that wrap."""
        distance = _distance(self.least, keys)
        return distance.astype(np.dtype(f"uint{max(32, 8 * keys.dtype.itemsize)}"))

    def places(self) -> jax.Array:
        """Returns the position of each key; the last position, which is empty, for dead keys and keys out of range."""
        inside = (self.keys >= self.least) & (self.keys <= self.greatest)
        if self.live.size:
            inside &= live_mask(self.keys.shape[0], self.live)
        return where(inside, self.place(self.keys), self.size).astype(self.order.dtype)

    def rows(self) -> jax.Array:
        """Returns the first row at each position, -1 if there is none."""
        ends = jnp.arange(self.size + 2, dtype=jnp.uint32)
        begins = _search(
            needles=ends, haystack=self.table_places, needles_count=ABSENT, haystack_count=self.table_count,
            right=False,
        )[0]  # fmt: skip
        begins, ends = begins[:-1], begins[1:]
        return where(begins < ends, take_or_fill(self.order, begins), -1)


@jit_eager("direction", "allow_exact_matches", "assume_sorted")
def asof_join(
    a: ArrayLike,
    b: ArrayLike,
    *,
    by_a: Keys | None = None,
    by_b: Keys | None = None,
    direction: AsofDirection = "backward",
    tolerance: ArrayLike | None = None,
    allow_exact_matches: bool = True,
    assume_sorted: bool = True,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> jax.Array:
    """For each row of a, the row of b that is nearest in time.

    Args:
      a: `[n_a]`, the times of a: integers of 8 to 64 bits or floats of 16 to 64 bits.
      b: `[n_b]`, the times of b, of the same dtype.
      by_a: `[n_a]` keys in any order, or columns, a tuple of 1 to 7 such arrays. A row of a is matched only with rows
        of b that have the same keys.
      by_b: the same for b, of the same dtypes.
      direction: `"backward"` for the last row of b whose time is at most a's, `"forward"` for the first whose time is
        at least a's, `"nearest"` for the nearer one of these two, or the earlier one if both are equally near.
      tolerance: the largest allowed difference of the times, a scalar of at least 0.
      allow_exact_matches: whether a row of b with the same time is a match. False accepts only other times.
      assume_sorted: whether a and b are sorted; False takes times in any order.
      a_count: the number of live rows of a, an integer scalar (default `n_a`).
      b_count: the number of live items of b (default `n_b`).
      axis_name: match the rows of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`; times and
        keys may have up to 64 bits in all. Positions are those in the global b.

    Returns: `[n_a]` positions in b, -1 if there is no such row and past `a_count`. Of several rows of b with the same
      time and key, a backward join takes the last one, and a forward join takes the first one. A time that is NaN has
      no partner.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape or direction is not one of the above, or one of by_a and by_b is missing; 2^31
        items or more without `jax_enable_x64`.

    Time is O(n_a + n_b) for sorted times without keys, and for sorted times with one column of integer keys that span
    at most 12,288 values in b. Other calls take at most the time of a sort of both sides, and a search.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.asof_join(jnp.array([5, 10]), jnp.array([1, 4, 9]), direction="nearest")
      Array([1, 2], dtype=int32)
    """
    name = "asof_join"
    looks = expect_choice(name, "direction", direction, ("backward", "forward", "nearest"))
    assume_sorted = static_flag(name, "assume_sorted", assume_sorted)
    exact = static_flag(name, "allow_exact_matches", allow_exact_matches)
    if (by_a is None) != (by_b is None):
        raise value_error(name, "by_a and by_b", "both or neither", "one of them")
    expect_told_apart(name, a=a, b=b)
    expect_told_apart(name, by_a=by_a, by_b=by_b)
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
    counts = pair_counts(name, "ab", times, (a_count, b_count))
    largest = None if tolerance is None else _tolerance(name, tolerance, times[0].dtype)
    if assume_sorted and not groups[0]:
        times = [expect_sorted(name, *side) for side in zip("ab", times, counts, strict=True)]
    problem = AsofJoin(name, looks, exact, assume_sorted, times, groups, counts, largest)
    if axis_name is not None:
        return over_axis(mesh.tables.asof_join, name, axis_name, problem)
    one_integer = len(groups[0]) == 1 and jnp.issubdtype(groups[0][0].dtype, jnp.integer)
    if not (assume_sorted and one_integer and times[0].size and times[1].size):
        return problem.by_sort()
    if not is_local(*times, groups[0][0], groups[1][0]):  # both branches would need the same sharding
        return problem.by_sort()
    table = GroupTable(groups[1][0], counts[1])
    if table.always_fits:
        return problem.by_table(table)
    return cond(of_all(table.fits), lambda: problem.by_table(table), problem.by_sort)


class AsofJoin(NamedTuple):
    """An as-of join, by a sort or by a table of groups. Each sequence has a's part and b's part, checked."""

    name: str
    looks: str
    exact: bool
    is_sorted: bool
    times: Sequence[jax.Array]
    groups: Sequence[tuple[Any, ...]]
    counts: Sequence[jax.Array]
    largest: jax.Array | None

    def by_sort(self) -> jax.Array:
        """Joins rows that are in the order of their groups and times; sorts them first if needed."""
        rows = [self._rows(*side) for side in zip("ab", self.keys, self.times, self.counts, strict=True)]
        pair = KeyPair(self.name, rows[0].keys, rows[1].keys, *self.counts)
        (*group, time), (*b_group, b_time) = (tuple(map(whole_axes, columns_of(side.keys))) for side in rows)
        live = but_nan(live_mask(time.shape[0], rows[0].count), time)
        b_live = live_items(b_time.shape[0], rows[1].count)

        def beside_cut(right: bool, later: bool) -> jax.Array:
            position = _search.run(pair.operands, right=right)[0] - int(not later)
            inside = live & (position < b_live if later else position >= 0)
            place = where(inside, position, -1)
            for x, y in zip(group, b_group, strict=True):
                inside &= ordered_integers(x) == ordered_integers(take_or_fill(y, place))
            return where(but_nan(inside, take_or_fill(b_time, place)), position, -1)

        found = self.nearest(time, lambda places: take_or_fill(b_time, places), beside_cut)
        return rows[0].to_rows(take_or_fill(rows[1].order, found, -1))

    @property
    def keys(self) -> list[Any]:
        """The keys of both sides: columns of groups and times, or only the times."""
        sides = zip("ab", self.groups, self.times, strict=True)
        return [Columns(self.name, side, (*group, time), False) if group else time for side, group, time in sides]

    def _rows(self, side: str, keys: jax.Array | Columns, time: jax.Array, count: jax.Array) -> Ordered:
        if not self.is_sorted or not isinstance(keys, Columns):
            return in_order(self.name, side, keys, count, is_sorted=self.is_sorted)
        groups = keys.part(0, len(keys.arrays) - 1)
        # The sort is stable, so the times of a group stay sorted.
        rows, (time,) = rows_in_order(self.name, groups, [time], count)
        return rows._replace(keys=keys.replaced([*rows.keys.arrays, time]))

    def by_table(self, table: GroupTable) -> jax.Array:
        """Joins sorted times with groups that fit a table."""
        pair = KeyPair(self.name, *self.times, *self.counts)
        (time, b_time), b_count = self.times, pair.b_count
        has_nan = jnp.issubdtype(time.dtype, jnp.floating)
        if has_nan:  # NaNs are sorted last, and have no partner
            live = but_nan(live_mask(b_time.shape[0], b_count), b_time)
            b_count = jnp.sum(live, dtype=live_items(b_time.shape[0], b_count).dtype)[None]
        given = table.operands(self.groups[0][0], self.groups[1][0])

        def beside_cut(right: bool, later: bool) -> jax.Array:
            cuts = _search.run(pair.operands, right=right)[0]
            found = _group_search(cuts=cuts, **given, a_count=pair.a_count, b_count=b_count, forward=later)[0]
            return where(is_nan(time), -1, found) if has_nan else found

        return self.nearest(time, lambda places: take_or_fill(b_time, places), beside_cut)

    def nearest(
        self,
        time: jax.Array,
        time_at: Callable[[jax.Array], jax.Array],
        beside_cut: Callable[[bool, bool], jax.Array],
    ) -> jax.Array:
        """Returns the partner of each row, -1 if it has none. `time_at` gives the times of b at positions.

        `beside_cut(right, later)` gives the nearest row of b with the same keys before (or, if `later`, after) the cut
        that a search from the given side finds, or -1. The side decides whether rows at the same time are before the
        cut.
        """

        def partner(is_later: bool) -> tuple[jax.Array, jax.Array, list[jax.Array]]:
            """Returns the row of b on one side of the cut, whether it is near enough, and how far it is in time."""
            position = beside_cut(self.exact != is_later, is_later)
            pair = [x.astype(accumulator_dtype(x.dtype)) for x in (time, time_at(position))]
            early, late = pair if is_later else pair[::-1]
            gaps, exists = [_distance(early, late)], position >= 0
            if self.largest is not None:
                exists &= gaps[0] <= self.largest.astype(gaps[0].dtype)
            if jnp.issubdtype(time.dtype, jnp.floating):
                # The difference of halves, which cannot overflow, and what rounding took from it (Knuth's two-sum).
                early, late = early * 0.5, late * 0.5
                half = _distance(early, late)
                lost = half - late
                gaps = [half, (late - (half - lost)) - (early + lost)]
            return position, exists, gaps

        if self.looks != "nearest":
            position, is_near, _ = partner(self.looks == "forward")
            return position if self.largest is None else where(is_near, position, -1)
        (before, is_before, gaps_before), (after, is_after, gaps_after) = partner(False), partner(True)
        is_later, *is_lost = (x > y for x, y in zip(gaps_before, gaps_after, strict=True))
        for more in is_lost:
            is_later |= (gaps_before[0] == gaps_after[0]) & more
        take_after = is_after & (~is_before | is_later)
        return where(take_after, after, where(is_before, before, -1))


class GroupTable:
    """The range of b's integer groups; a kernel's table has an entry for each number in it.

    Attributes:
      always_fits: whether the table has room for all values of the groups' dtype.
      fits: whether it has room for the live groups, a bool.
    """

    def __init__(self, groups: jax.Array, count: jax.Array):
        lowest, highest = int(jnp.iinfo(groups.dtype).min), int(jnp.iinfo(groups.dtype).max)
        self.always_fits = highest - lowest < MAX_GROUPS
        if self.always_fits:
            self.least = jnp.asarray(lowest, groups.dtype)
            self.number = jnp.asarray(highest - lowest + 1, jnp.int32)
            self.fits = jnp.asarray(True)
            return
        low = high = groups
        if count.size:
            live = live_mask(groups.shape[0], count)
            low, high = (where(live, groups, np.asarray(extreme, groups.dtype)) for extreme in (highest, lowest))
        self.least, greatest = jnp.min(low), jnp.max(high)
        span = _distance(self.least, greatest)
        self.fits = span < MAX_GROUPS
        self.number = jnp.minimum(span, MAX_GROUPS - 1).astype(jnp.int32) + 1

    def operands(self, a_groups: jax.Array, b_groups: jax.Array) -> dict[str, jax.Array]:
        """Returns the kernels' operands: both sides' groups, the first group, and the number of entries."""
        words = {"a_groups": a_groups, "b_groups": b_groups, "first_group": self.least[None]}
        words = {argument: self._words(x) for argument, x in words.items()}
        return {**words, "group_count": self.number[None]}

    def _words(self, x: jax.Array) -> jax.Array:
        """Returns groups as int32; kernels use only their differences from the first."""
        if x.dtype.itemsize < 4:
            return x.astype(jnp.int32)
        if x.dtype.itemsize == 8:
            x = jnp.minimum(_distance(self.least, x), jnp.asarray(2**32 - 1, jnp.uint64)).astype(jnp.uint32)
        if x.dtype == jnp.int32:
            return x
        return jax.lax.bitcast_convert_type(x, jnp.int32)


def _columns_of(name: str, argument: str, by: ArrayLike | tuple[ArrayLike, ...], length: int) -> tuple[Any, ...]:
    """Returns the columns of by_a or by_b, at most 7."""
    keys, _ = expect_keys(name, argument, by)
    columns = tuple(columns_of(keys))
    if len(columns) > 7:
        raise value_error(name, argument, "1 to 7 columns", f"{len(columns)} columns")
    if keys.shape[0] != length:
        raise value_error(name, argument, f"a key for each of the {length} times", f"{keys.shape[0]} keys")
    return columns


def _distance(early: jax.Array, late: jax.Array) -> jax.Array:
    """Returns `late - early`: of integers, the unsigned difference, which wraps; of floats, 0 for equal infinities."""
    if jnp.issubdtype(early.dtype, jnp.floating):
        return where(early == late, jnp.zeros((), early.dtype), late - early)
    word = f"uint{8 * early.dtype.itemsize}"
    return jax.lax.bitcast_convert_type(late, word) - jax.lax.bitcast_convert_type(early, word)


def _tolerance(name: str, tolerance: ArrayLike | None, dtype: np.dtype) -> jax.Array:
    """Returns the largest allowed difference, in the type of differences."""
    given = as_array(name, "tolerance", tolerance)
    if given.ndim != 0:
        raise value_error(name, "tolerance", "a scalar", describe(given))
    given = not_negative(name, "tolerance", given.reshape(1))[0]
    if jnp.issubdtype(dtype, jnp.floating):
        return given.astype(dtype)
    if not jnp.issubdtype(given.dtype, jnp.integer):
        raise type_error(name, "tolerance", f"an integer, as the times are {dtype.name}", describe(given))
    given = jnp.maximum(given, 0)  # a negative tolerance must not become a large unsigned number
    word = jnp.dtype(f"uint{8 * dtype.itemsize}")
    if given.dtype.itemsize > word.itemsize:
        given = jnp.minimum(given, jnp.asarray(jnp.iinfo(word).max, given.dtype))
    return given.astype(word)


# ---- Rows of the same group beside a cut -----------------------------------------------------------------------------

# kGroupTable of ffi/ops/group_search/operands.h.
MAX_GROUPS: int = cpu_library.tile_sizes()["group_table"][0]


def _group_search_fallback(
    cuts: jax.Array,
    a_groups: jax.Array,
    b_groups: jax.Array,
    first_group: jax.Array,
    group_count: jax.Array,
    a_count: jax.Array,
    b_count: jax.Array,
    *,
    forward: int,
) -> Sequence[jax.Array]:
    """Finds a's pairs (group, cut) among b's sorted pairs (group, position), by binary searches."""
    m = b_groups.shape[0]
    if m == 0:
        return [jnp.full_like(cuts, -1)]
    first, number = first_group.astype(jnp.uint32), group_count.astype(jnp.uint32)
    a_codes, codes = (x.astype(jnp.uint32) - first for x in (a_groups, b_groups))
    codes = where(live_mask(m, b_count), codes, number)
    order = jnp.argsort(codes, stable=True).astype(cuts.dtype)
    codes = codes[order]

    def before(places: jax.Array) -> jax.Array:
        code = codes[places]
        return (code < a_codes) | ((code == a_codes) & (order[places] < cuts))

    found = partition_points(jnp.zeros_like(cuts), jnp.full_like(cuts, m), m, before)
    places = found if forward else found - 1
    inside = live_mask(cuts.shape[0], a_count) & (a_codes < number)
    inside &= take_or_fill(codes, places, number) == a_codes
    return [where(inside, take_or_fill(order, places), -1)]


_group_search = Operation(
    "group_search",
    operands={"cuts": 1, "a_groups": 1, "b_groups": 1, "first_group": 1, "group_count": 1, "a_count": 1, "b_count": 1},
    results=("positions",),
    attributes={"forward": bool},
    shapes=lambda cuts: [cuts],
    fallback=_group_search_fallback,
)
_group_search.def_linear()
