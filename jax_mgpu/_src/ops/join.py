"""Joins of tables by keys, sorted or in any order, and gathers of the joined columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import (
    ArrayLike,
    Aval,
    AxisName,
    Count,
    Directions,
    JoinKind,
    Keys,
    LessFunction,
    Pytree,
)
from jax_mgpu._src.arguments.check import (
    as_array,
    count_operand,
    describe,
    expect_choice,
    expect_no_axis,
    fill_operand,
    index_dtype,
    index_vector,
    static_flag,
    static_size,
    type_error,
    value_error,
)
from jax_mgpu._src.arguments.counts import live_items, live_mask, of_all
from jax_mgpu._src.arguments.preconditions import by_construction, room, row_indices
from jax_mgpu._src.arguments.values import plain_leaves, take_or_fill
from jax_mgpu._src.core.compat import cond, flatten, has_64_bits, is_of_one_device, platform_dependent, surely
from jax_mgpu._src.core.operation import ABSENT, Operation, jit_eager
from jax_mgpu._src.functions import blocked_scan
from jax_mgpu._src.functions.comparator_ops import ranked_pair
from jax_mgpu._src.functions.operators import Kind
from jax_mgpu._src.keys.bits import ordered_together, where
from jax_mgpu._src.keys.columns import KeyPair, directed_pair, expect_pair, pair_counts, sorted_pair
from jax_mgpu._src.mesh import over_axis
from jax_mgpu._src.ops.argsorted import Ordered
from jax_mgpu._src.ops.bucket_join import BucketTables, bucket_tables, fit_for_buckets, mixed
from jax_mgpu._src.ops.load_balance import load_balance_search
from jax_mgpu._src.ops.scan import _scan
from jax_mgpu._src.ops.select import positions
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sort_strategy import is_long_permutation
from jax_mgpu._src.ops.unsorted_pairs import Matches, matches

__all__ = ["JoinResult", "JoinedColumns", "join", "join_columns"]

# Whether a row of a, or of b, without a partner makes a row of the result.
KINDS = {"inner": (False, False), "left": (True, False), "right": (False, True), "outer": (True, True)}
INT32_LARGEST = 2**31 - 1


class JoinResult(NamedTuple):
    """The rows of a join.

    Attributes:
      a_indices: `[size]`, for each row of the result, its row of a, or -1.
      b_indices: `[size]`, for each row of the result, its row of b, or -1.
      count: the number of rows, a scalar. It can exceed `size`: then the first `size` rows are kept.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> rows = mgpu.join(jnp.array([1, 2, 4]), jnp.array([2, 4, 4]), size=4)
      >>> rows.a_indices, rows.b_indices, rows.count
      (Array([ 1,  2,  2, -1], dtype=int32), Array([ 0,  1,  2, -1], dtype=int32), Array(3, dtype=int32))
    """

    a_indices: jax.Array
    b_indices: jax.Array
    count: jax.Array  # type: ignore[assignment]


class JoinedColumns(NamedTuple):
    """The columns of both sides, row by row of a join.

    Attributes:
      a: the columns of a, a pytree of arrays with leading axis `size`.
      b: the columns of b, likewise.
      a_null: `bool[size]`, True in rows without a partner from a.
      b_null: `bool[size]`, True in rows without a partner from b.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> rows = mgpu.join(jnp.array([1, 2]), jnp.array([2, 3]), "left", size=2)
      >>> columns = mgpu.join_columns(rows, jnp.array([10, 20]), jnp.array([5, 6]))
      >>> columns.a, columns.b, columns.b_null
      (Array([10, 20], dtype=int32), Array([0, 5], dtype=int32), Array([ True, False], dtype=bool))
    """

    a: Any
    b: Any
    a_null: jax.Array
    b_null: jax.Array


@jit_eager("kind", "size", "descending", "assume_sorted", "null_equal", "aligned", "less")
def join(
    a: Keys,
    b: Keys,
    kind: JoinKind = "inner",
    *,
    size: int,
    descending: Directions = False,
    assume_sorted: bool = True,
    null_equal: bool = True,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
    less: LessFunction | None = None,
    axis_name: AxisName | None = None,
    aligned: bool = False,
) -> JoinResult:
    """Joins two tables on equal keys: gives the pairs of rows.

    Both tables are given by their keys: sorted, or with `assume_sorted=False` in any order. Keys that are joined more
    than once are best sorted by `jax_mgpu.mergesort_indices`, whose indices `join_columns` takes. Rows come in order of
    a's index and, for one row of a, in order of b's. If kind is left or outer, a row of a without a partner makes a row
    of its own, in its place, with `b_indices = -1`. If kind is right or outer, rows of b without a partner follow at
    the end, in b's order, with `a_indices = -1`. Kind semi gives the rows of a that have a partner, each once, and anti
    the rows that have none; `b_indices` is -1 then.

    Args:
      a: `[n_a]`, sorted integers of 8 to 64 bits or floats of 16 to 64 bits. Floats are in the order of `jax.lax.sort`:
        NaN is largest, all NaNs are equal, and so are the two zeros. Or columns: a tuple of 1 to 8 such arrays,
        compared one after the other.
      b: `[n_b]`, sorted, of the same dtype, or as many columns of the same dtypes.
      kind: `"inner"`, `"left"`, `"right"`, `"outer"`, `"semi"` or `"anti"`.
      size: the static length of the result.
      descending: whether a and b are in descending order; a tuple of bools gives a direction for each column. It cannot
        be combined with `less`.
      assume_sorted: whether the keys are sorted. False takes any order; indices are positions in the given keys.
      null_equal: whether NaNs equal each other. False: a row with a NaN in its key has no partner, as in SQL.
      a_count: the number of live items of a, an integer scalar (default `n_a`). Items past it are ignored.
      b_count: the number of live items of b (default `n_b`).
      less: a comparator that replaces the order of numbers; see `mergesort`. Keys are equal if neither comes first.
        Cannot be combined with `null_equal=False` or `axis_name`.
      axis_name: join the rows of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`; columns may
        have up to 64 bits in all. Each device gets about an equal share of the result's rows; one row of a may have its
        rows on several devices. Indices are positions in the global arrays; `size` and the number are the device's own.
      aligned: over a mesh axis, whether a and b are results of `align`. Then no key moves to another device. Each
        device gets the rows of the result that its own rows of a make. If kind is right or outer, it gets about an
        equal share instead, and rows of the result move.

    Returns: A `JoinResult`: int32 indices (int64 for an input of 2^31 items or more), -1 past the count. `count` is
      int64 if int32 might be too narrow and `jax_enable_x64` is on. Without it, a count that int32 cannot hold is given
      as 2^31 - 1.

    Raises:
      TypeError: an argument's dtype is not one of the above, or `size` is not static.
      ValueError: an argument's shape is not one of the above, or `kind` is not one of these; 2^31 items or more in an
        input without `jax_enable_x64`.

    Time is O(n_a + n_b + rows), however partners are distributed: a walk along the merge path (Odeh, Green, Mwassi,
    Shmueli, Birk, 2012) finds the partners, a scan of their numbers gives the places of rows, and blocks write equal
    parts of the output (Baxter, moderngpu, 2013, relational joins). Columns cost as in `merge`. Keys in any order add
    two sorts with indices, and a sort or a scatter that restores the order of a. Kinds semi and anti take two searches
    and a selection instead of the walk. On a GPU, inner and left joins of unsorted keys of 17 to 32 bits in all, with
    at least 2^23 rows of a, may partition both sides into buckets instead of sorting them.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.join(jnp.array([1, 2, 2]), jnp.array([2, 2, 3]), "outer", size=6)[:2]
      (Array([ 0,  1,  1,  2,  2, -1], dtype=int32), Array([-1,  0,  1,  0,  1,  2], dtype=int32))
    """
    name = "join"
    rows = expect_choice(name, "kind", kind, (*KINDS, "semi", "anti"))
    size = static_size(name, "size", size)
    assume_sorted = static_flag(name, "assume_sorted", assume_sorted)
    null_equal = static_flag(name, "null_equal", null_equal)
    if less is not None:
        expect_no_axis(name, "less", axis_name)
        if not null_equal:
            raise value_error(name, "null_equal", "True where less is given", "False")
        a, b = ranked_pair(name, a, b, less, a_count, b_count, descending=descending).ranks
    a, b, descending, _ = directed_pair(name, a, b, descending)
    aligned = static_flag(name, "aligned", aligned)
    if axis_name is not None:
        if aligned and not assume_sorted:
            raise value_error(name, "assume_sorted", "True where the keys are aligned", "False")
        with by_construction(not assume_sorted):
            pair = sorted_pair(name, a, b, a_count, b_count, descending=descending)
        if not null_equal:
            pair = pair.with_nans_apart()
        operands = pair.code_operands if assume_sorted else pair.codes
        options = {"kind": rows, "size": size, "is_sorted": assume_sorted, "aligned": aligned}
        return over_axis(mesh.joins.join, name, axis_name, *operands, **options)
    if not assume_sorted or not null_equal or rows not in KINDS:
        keys = expect_pair(name, a, b, descending=descending)[:2]
        lives = pair_counts(name, "ab", keys, (a_count, b_count))

        def found() -> Matches:
            return matches(name, keys, lives, is_sorted=assume_sorted, null_equal=null_equal)

        tables = None
        if not assume_sorted and rows in ("inner", "left"):
            tables = bucket_tables(name, keys, lives, null_equal=null_equal, size=size)
        if tables is not None:
            joined = _in_buckets(tables, found, KINDS[rows][0], size)
        else:
            joined = _of_any_order(found(), *KINDS[rows], size) if rows in KINDS else _filtered(found(), rows, size)
        return joined._replace(count=room(name, joined.count, size))
    keep_a, keep_b = KINDS[rows]
    pair = sorted_pair(name, a, b, a_count, b_count, descending=descending)
    a_indices, b_indices, count = _join.run(pair.operands, size=size, keep_a=keep_a, keep_b=keep_b)
    return JoinResult(a_indices, b_indices, room(name, count, size))


def _filtered(found: Matches, kind: str, size: int) -> JoinResult:
    has_partner = found.rows.to_rows(found.partners()[1] > 0)
    kept, count = kept_positions(found.a_live & (has_partner == (kind == "semi")), size)
    return JoinResult(kept, jnp.full((size,), -1, found.others.order.dtype), count)


def _in_buckets(tables: BucketTables, found: Callable[[], Matches], keep_a: bool, size: int) -> JoinResult:
    """Joins long tables, on a GPU by buckets if the buckets of b are short enough."""
    n_a, n_b = tables.lengths

    def by_order() -> JoinResult:
        return _of_any_order(found(), keep_a, False, size)

    def by_buckets() -> JoinResult:
        others = tables.others()

        def joined() -> JoinResult:
            a_rows, b_rows, count = tables.joined(others, size, keep_a)
            return cond(
                of_all(count <= size),
                lambda: _in_order_of_rows(a_rows, b_rows, count, n_a, n_b, False),
                lambda: _expanded(found(), keep_a, False, size),
            )

        return cond(of_all(others.fits), joined, by_order)

    return platform_dependent(cuda=by_buckets, default=by_order)


def _of_any_order(found: Matches, keep_a: bool, keep_b: bool, size: int) -> JoinResult:
    """Joins keys in any order.

    Pairs of rows of long tables may be found in the order of keys, and then sorted by a's row. If `size` is too small
    for all pairs, `_expanded` joins instead.
    """
    n_a, n_b = found.rows.order.shape[0], found.others.order.shape[0]
    if not is_long_permutation(n_a) or not found.null_equal or size > 2 * (n_a + n_b):
        return _expanded(found, keep_a, keep_b, size)
    a_places, b_places, count = _join.run(found.pair.operands, size=size, keep_a=keep_a, keep_b=keep_b)

    def ordered() -> JoinResult:
        a_rows, b_rows = _numbers(found.rows.order, a_places), _numbers(found.others.order, b_places)
        return _in_order_of_rows(a_rows, b_rows, count, n_a, n_b, keep_b)

    return cond(of_all(count <= size), ordered, lambda: _expanded(found, keep_a, keep_b, size))


def rows_by_key(
    name: str,
    kind: str,
    codes: tuple[jax.Array, jax.Array],
    rows: tuple[jax.Array, jax.Array],
    counts: tuple[Any, Any],
    size: int,
) -> list[jax.Array]:
    """Returns the rows of a and b in each row of a join of unsorted codes, and the number of rows.

    Rows of one row of a are in b's order. If there are more than `size` rows, any of them may be missing.
    """
    n_a, n_b = (code.shape[0] for code in codes)

    def found() -> Matches:
        def side(i: int) -> Ordered:
            with by_construction():
                keys, order = Sort(name, codes[i], count=counts[i]).run(rows[i])
            return Ordered(keys, order, counts[i])

        a, b = side(0), side(1)
        return Matches(a, b, KeyPair(name, a.keys, b.keys, *counts), null_equal=True)

    if kind not in KINDS:
        ordered = found()
        has_partner = ordered.partners()[1] > 0
        kept, count = kept_positions(ordered.a_live & (has_partner == (kind == "semi")), size)
        numbers = _numbers(ordered.rows.order, kept)
        return [numbers, jax.lax.full_like(numbers, -1), count]
    keep_a, keep_b = KINDS[kind]

    def by_order() -> list[jax.Array]:
        ordered = found()
        a_places, b_places, count = _join.run(ordered.pair.operands, size=size, keep_a=keep_a, keep_b=keep_b)
        return [_numbers(ordered.rows.order, a_places), _numbers(ordered.others.order, b_places), count]

    by_buckets = codes[0].dtype == jnp.uint32 and rows[0].dtype == jnp.int32 and not keep_b
    if not by_buckets or not fit_for_buckets(n_a, n_b, size) or not is_of_one_device():
        return by_order()

    def in_buckets() -> list[jax.Array]:
        tables = BucketTables((mixed(codes[0]), mixed(codes[1])), counts, rows)
        others = tables.others()
        return cond(of_all(others.fits), lambda: tables.joined(others, size, keep_a), by_order)

    return platform_dependent(cuda=in_buckets, default=by_order)


def _numbers(rows: jax.Array, places: jax.Array) -> jax.Array:
    """Returns the numbers of rows at places, -1 for none."""
    return take_or_fill(rows, places, -1)


def _in_order_of_rows(
    a_rows: jax.Array, b_rows: jax.Array, count: jax.Array, n_a: int, n_b: int, keep_b: bool
) -> JoinResult:
    """Sorts all rows of a join stably by a's rows; rows of b without a partner follow, in order."""
    ranks = a_rows.astype(f"uint{8 * a_rows.dtype.itemsize}")
    if keep_b:
        ranks = where(a_rows < 0, n_a + b_rows.astype(ranks.dtype), ranks)
    with by_construction():
        bits = ((n_a + n_b if keep_b else n_a) - 1).bit_length()
        ranks, b_rows = Sort("join", ranks, count=count.reshape(1), bits=max(1, bits)).run(b_rows)
    paired = (jnp.arange(a_rows.shape[0], dtype=count.dtype) < count) & (ranks < n_a)
    return JoinResult(where(paired, ranks.astype(a_rows.dtype), -1), b_rows, count)


def _expanded(found: Matches, keep_a: bool, keep_b: bool, size: int) -> JoinResult:
    """Returns a row for each pair of partners, in a's order, and for rows without a partner if they are kept."""
    n_a, n_b = found.rows.order.shape[0], found.others.order.shape[0]
    a_spec, b_spec, count_spec = _shapes(
        jax.ShapeDtypeStruct((n_a,), bool), jax.ShapeDtypeStruct((n_b,), bool), size=size
    )
    first, number = map(found.rows.to_rows, found.partners())
    made = jnp.maximum(number, 1) if keep_a else number
    made = where(found.a_live, made, 0).astype(count_spec.dtype)
    a_rows, places, count = expanded_rows(made, first, number, size)
    b_rows = _numbers(found.others.order, places)
    if keep_b:
        paired = jnp.minimum(count, size)
        alone, others = kept_positions(found.b_alone(), n_b)
        slots = jnp.arange(n_b, dtype=count_spec.dtype)
        slots = where((slots < others.astype(slots.dtype)) & (slots < size - paired), slots + paired, size)
        b_rows = b_rows.at[slots].set(alone, mode="drop")
        count += jnp.minimum(others.astype(count.dtype), jnp.iinfo(count.dtype).max - count)
    return JoinResult(a_rows.astype(a_spec.dtype), b_rows.astype(b_spec.dtype), count)


def expanded_rows(
    made: jax.Array, first: jax.Array, number: jax.Array, size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the row of a and its partner's position, or -1, for each row of the result, and the number of rows.

    Each row of a makes `made` rows; its `number` partners begin at `first`.
    """
    starts, count = saturated_offsets(made)
    rows, ranks = load_balance_search(starts, size, total=jnp.minimum(count, size), return_rank=True)
    first, number = (take_or_fill(x, rows) for x in (first, number))
    has_partner = (rows >= 0) & (ranks.astype(number.dtype) < number)
    return rows, where(has_partner, first + ranks.astype(first.dtype), -1), count


@jit_eager()
def join_columns(
    result: JoinResult,
    a_columns: Pytree = None,
    b_columns: Pytree = None,
    *,
    a_order: ArrayLike | None = None,
    b_order: ArrayLike | None = None,
    fill_value: ArrayLike = 0,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> JoinedColumns:
    """Gathers the columns of both tables by the rows of a join.

    Args:
      result: the result of `join`.
      a_columns: a pytree of arrays with leading axis `n_a`, of any dtype and trailing shape. An index past the columns
        gets the fill value.
      b_columns: a pytree of arrays with leading axis `n_b`.
      a_order: `[n_a]`, the indices by which a's keys were sorted, if the columns are in the order before that sort.
      b_order: `[n_b]`, the indices by which b's keys were sorted, likewise.
      fill_value: the value of columns in rows without a partner from their table, a scalar; converted to each dtype.
      a_count: the number of live rows of a, an integer scalar (default `n_a`). Indices past them get the fill value.
      b_count: the number of live rows of b, an integer scalar (default `n_b`).
      axis_name: gather over all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`: rows fetch their
        columns from any device. Cannot be combined with `a_order` and `b_order`.

    Returns: `JoinedColumns`: the columns, and for each table the mask of rows without a partner from it, which includes
      the slots past the join's count.

    Raises:
      TypeError: the indices are not integers.
      ValueError: an argument's shape is not one of the above.

    Gradients flow to the columns. A call takes the time of the gathers.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> rows = mgpu.join(jnp.array([1, 2]), jnp.array([2, 2]), "left", size=3)
      >>> mgpu.join_columns(rows, jnp.array([10.0, 20.0]), {"y": jnp.array([5.0, 6.0])})[1]
      {'y': Array([0., 5., 6.], dtype=float32)}
    """
    name = "join_columns"
    if not (hasattr(result, "a_indices") and hasattr(result, "b_indices")):
        raise type_error(name, "result", "the result of join", type(result).__name__)
    a, a_null = _gather(name, "a", result.a_indices, a_columns, a_order, fill_value, a_count, axis_name)
    b, b_null = _gather(name, "b", result.b_indices, b_columns, b_order, fill_value, b_count, axis_name)
    return JoinedColumns(a, b, a_null, b_null)


def _gather(
    name: str,
    side: str,
    indices: ArrayLike | None,
    columns: Pytree,
    order: ArrayLike | None,
    fill_value: ArrayLike,
    count: Count,
    axis_name: AxisName | None,
) -> tuple[Any, jax.Array]:
    leaves, structure = flatten(columns)
    leaves, restore = plain_leaves([as_array(name, f"{side}_columns", x) for x in leaves])
    limit = INT32_LARGEST - 1
    indices = index_vector(name, f"result.{side}_indices", indices, limit)
    if order is not None:
        order = index_vector(name, f"{side}_order", order, limit)
    length = None if order is None else order.shape[0]
    for x in leaves:
        length = x.shape[0] if length is None and x.ndim else length
        if x.ndim == 0 or x.shape[0] != length:
            how_many = "" if length is None else f", of {length} rows"
            raise value_error(name, f"{side}_columns", f"arrays with one leading axis{how_many}", describe(x))
    if length is None:
        return structure.unflatten([]), indices < 0
    live = count_operand(name, f"{side}_count", count, length)
    if axis_name is not None:
        if order is not None:
            raise value_error(name, f"{side}_order", "None over a mesh axis", describe(order))
        fills = [fill_operand(name, fill_value, x.dtype) for x in leaves]
        rows, is_null = over_axis(mesh.joins.join_columns, name, axis_name, indices, leaves, fills, live)
        return structure.unflatten(restore(rows)), is_null
    if count is not None:
        indices = where(indices < live_items(length, live), indices, -1)
    indices = row_indices(name, f"result.{side}_indices", indices, length)
    if order is not None:
        indices = take_or_fill(order, indices, -1)
    rows = [take_or_fill(x, indices, fill_operand(name, fill_value, x.dtype)) for x in leaves]
    return structure.unflatten(restore(rows)), (indices < 0) | (indices >= length)


def _shapes(a: Aval, b: Aval, *, size: int) -> Sequence[Any]:
    n_a, n_b = a.shape[0], b.shape[0]
    many = surely(lambda: max(1, n_a) * max(1, n_b) + n_a + n_b > INT32_LARGEST)
    count = jnp.int64 if many and has_64_bits() else jnp.int32
    return [
        jax.ShapeDtypeStruct((size,), index_dtype("join", "a", a.shape[0])),
        jax.ShapeDtypeStruct((size,), index_dtype("join", "b", b.shape[0])),
        jax.ShapeDtypeStruct((), count),
    ]


def _fallback(
    a: jax.Array, b: jax.Array, a_count: jax.Array, b_count: jax.Array, *, size: int, keep_a: int, keep_b: int
) -> Sequence[jax.Array]:
    """Joins by binary searches and a scan."""
    a_spec, b_spec, count_spec = _shapes(a, b, size=size)
    n_a, n_b = a.shape[0], b.shape[0]
    a_live, b_live = live_items(n_a, a_count), live_items(n_b, b_count)
    a, b = ordered_together(a, b)

    def bounds(needles: jax.Array, haystack: jax.Array, live: jax.Array) -> tuple[jax.Array, jax.Array]:
        # The largest key replaces items past the live ones, and does not count.
        past = jnp.arange(haystack.shape[0], dtype=live.dtype) >= live
        keys = where(past, np.array(np.iinfo(haystack.dtype).max, haystack.dtype), haystack)
        return tuple(  # type: ignore[return-value]
            jnp.minimum(jnp.searchsorted(keys, needles, side).astype(live.dtype), live) for side in ("left", "right")
        )

    lower, upper = bounds(a, b, b_live)
    matches = upper - lower
    made = jnp.maximum(matches, 1) if keep_a else matches
    made = where(live_mask(n_a, a_count), made, 0).astype(count_spec.dtype)

    def total(x: jax.Array, y: jax.Array) -> jax.Array:
        # A sum that overflows becomes the largest number.
        return x + jnp.minimum(y, jnp.iinfo(x.dtype).max - x)

    ends = blocked_scan.scanned(total, made) if n_a else made
    paired = ends[-1] if n_a else jnp.zeros((), count_spec.dtype)
    slots = jnp.arange(size, dtype=count_spec.dtype)
    if n_a:
        row = jnp.minimum(jnp.searchsorted(ends, slots, side="right"), n_a - 1)
        rank = slots - (ends[row] - made[row])
        inside = slots < paired
        a_indices = where(inside, row, -1).astype(a_spec.dtype)
        b_indices = where(inside & (matches[row] > 0), lower[row] + rank.astype(b_spec.dtype), -1)
    else:
        a_indices, b_indices = jnp.full((size,), -1, a_spec.dtype), jnp.full((size,), -1, b_spec.dtype)
    if not keep_b:
        return [a_indices, b_indices, paired]
    a_lower, a_upper = bounds(b, a, a_live)
    alone = (a_lower == a_upper) & live_mask(n_b, b_count)
    ranks = jnp.cumsum(alone, dtype=count_spec.dtype) - 1
    targets = where(alone & (ranks < size - jnp.minimum(paired, size)), paired + ranks, size)
    b_indices = b_indices.at[targets].set(jnp.arange(n_b, dtype=b_spec.dtype), mode="drop")
    return [a_indices, b_indices, total(paired, jnp.sum(alone, dtype=count_spec.dtype))]


def kept_positions(keep: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Returns the first kept positions, `[size]`, -1 past them, and their number."""
    found, count = positions(keep, ABSENT, size)
    return where(found < keep.shape[0], found, -1), count


def saturated_offsets(lengths: jax.Array, most: int | None = None) -> tuple[jax.Array, jax.Array]:
    """Returns the exclusive scan of lengths and their sum, saturated at the largest number of the type.

    `most`, if given, is a bound of the sum.
    """
    starts, total = _scan(x=lengths, op=Kind.ADD, exclusive=True, reverse=False, total=True)
    largest = jnp.iinfo(lengths.dtype).max
    if most is not None and surely(lambda: most <= largest):
        return starts, total
    # As no length exceeds the largest number, the first sum that does wraps around to a smaller one.
    (n,) = lengths.shape
    item = jnp.arange(n, dtype=lengths.dtype)
    last = jnp.min(where(starts + lengths < starts, item, n), initial=n)
    return where(item > last, largest, starts), where(last < n, largest, total)


_join = Operation(
    "join",
    operands={"a": 1, "b": 1, "a_count": 1, "b_count": 1},
    results=JoinResult._fields,
    attributes={"size": int, "keep_a": bool, "keep_b": bool},
    shapes=_shapes,
    fallback=_fallback,
)
_join.def_linear()
