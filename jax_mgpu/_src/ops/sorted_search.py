"""Searches of sorted arrays, for needles that are sorted or not."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import (
    ArrayLike,
    Aval,
    AxisName,
    Count,
    Directions,
    DTypeLike,
    Keys,
    LessFunction,
    SegmentsLike,
    Side,
)
from jax_mgpu._src.arguments.check import (
    count_operand,
    describe,
    expect_choice,
    expect_no_axis,
    index_dtype,
    index_vector,
    static_flag,
    value_error,
)
from jax_mgpu._src.arguments.counts import (
    live_items,
    live_mask,
    partition_points,
    segment_bounds,
    wide_enough,
)
from jax_mgpu._src.arguments.segments import segment_operands
from jax_mgpu._src.arguments.values import fill_missing, take_or_fill
from jax_mgpu._src.core.compat import platform_dependent, surely
from jax_mgpu._src.core.operation import ABSENT, Operation, jit_eager
from jax_mgpu._src.functions.comparator_ops import ranked_pair
from jax_mgpu._src.keys.bits import is_words, ordered_together, where
from jax_mgpu._src.keys.columns import (
    Columns,
    KeyPair,
    columns_of,
    directed_pair,
    expect_pair,
    expect_sorted,
    pair_counts,
    sorted_pair,
)
from jax_mgpu._src.mesh import devices_of, over_axis
from jax_mgpu._src.ops.argsorted import in_order

__all__ = ["SortedMatch", "search", "segmented_search", "sorted_equal_count", "sorted_match", "sorted_search"]


# If both needles and haystack have at least CPU_LONG items, `search` may sort the needles first on a CPU.
CPU_LONG = 1 << 17


class SortedMatch(NamedTuple):
    """The result of `sorted_match`.

    Attributes:
      a_index: `[n_a]`, the insertion point of each item of A in B; -1 past `a_count`.
      b_index: `[n_b]`, the insertion point of each item of B in A; -1 past `b_count`.
      a_match: bool `[n_a]`, whether the item of A occurs in B; False past `a_count`.
      b_match: bool `[n_b]`, whether the item of B occurs in A; False past `b_count`.
      a_match_count: the number of items of A that occur in B.
      b_match_count: the number of items of B that occur in A.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> found = mgpu.sorted_match(jnp.array([1, 2, 5]), jnp.array([2, 3]))
      >>> found.a_match, found.b_match
      (Array([False,  True, False], dtype=bool), Array([ True, False], dtype=bool))
    """

    a_index: jax.Array
    b_index: jax.Array
    a_match: jax.Array
    b_match: jax.Array
    a_match_count: jax.Array
    b_match_count: jax.Array


@jit_eager("side", "aligned", "less")
def sorted_search(
    needles: Keys,
    haystack: Keys,
    side: Side = "left",
    *,
    needles_count: ArrayLike | None = None,
    haystack_count: ArrayLike | None = None,
    fill_value: ArrayLike = -1,
    less: LessFunction | None = None,
    axis_name: AxisName | None = None,
    aligned: bool = False,
) -> jax.Array:
    """The insertion points of sorted needles in a sorted haystack, as in `jnp.searchsorted`.

    Args:
      needles: `[n]`, sorted integers of 8 to 64 bits or floats of 16 to 64 bits. Floats are in the order of
        `jax.lax.sort`: NaN is largest, the two zeros are equal. Or columns: a tuple of 1 to 8 such arrays, compared one
        after the other.
      haystack: `[m]`, sorted, of the same dtype, or as many columns of the same dtypes.
      side: `"left"` for the first position whose item is not less than the needle (lower bound), `"right"` for the
        first whose item is greater (upper bound).
      needles_count: the number of live needles, an integer scalar (default `n`). Items past it are ignored.
      haystack_count: the number of live items of the haystack (default `m`).
      fill_value: the value of results past `needles_count`, an integer scalar. `m` makes them padding if the positions
        serve as heads.
      less: a comparator that replaces the order of numbers; see `mergesort`. Cannot be combined with `axis_name`.
      axis_name: look up the needles of all devices of a mesh axis, or of a tuple of axes, in the haystack of all of
        them, within `jax.shard_map`; columns may have up to 64 bits in all. Positions are those in the global haystack;
        each is on the device of its needle.
      aligned: over a mesh axis, whether needles and haystack are results of `align`. Then no item moves to another
        device.

    Returns:
      Positions `[n]` from 0 to `haystack_count`; int32, or int64 from 2^31 haystack items on.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape or side is not one of the above; 2^31 haystack items or more without
        `jax_enable_x64`.

    Time is O(n + m), by merge path (Odeh, Green, Mwassi, Shmueli, Birk, 2012; as a search: Baxter, moderngpu, 2013).
    Few needles are found by binary searches, in time O(n log m). Columns and `less` cost as in `merge`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.sorted_search(jnp.array([0, 2, 2, 9]), jnp.array([1, 2, 2, 5]))
      Array([0, 1, 1, 4], dtype=int32)
    """
    name = "sorted_search"
    if less is not None:
        expect_no_axis(name, "less", axis_name)
        names, counts = ("needles", "haystack"), (needles_count, haystack_count)
        needles, haystack = ranked_pair(name, needles, haystack, less, *counts, names=names).ranks
    pair = sorted_pair(name, needles, haystack, needles_count, haystack_count, names=("needles", "haystack"))
    right, aligned = _is_right(name, side), static_flag(name, "aligned", aligned)
    if axis_name is not None:
        operands = pair.code_operands
        found = over_axis(mesh.pairs.sorted_search, name, axis_name, *operands, right=right, aligned=aligned)
    else:
        found = _search.run(pair.operands, right=right)[0]
    return fill_missing(name, found, fill_value)


@jit_eager("side", "descending", "assume_sorted", "aligned")
def sorted_match(
    a: Keys,
    b: Keys,
    side: Side = "left",
    *,
    descending: Directions = False,
    assume_sorted: bool = True,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
    aligned: bool = False,
) -> SortedMatch:
    """Looks up the items of two sorted arrays in each other.

    Args:
      a: `[n_a]`, sorted integers of 8 to 64 bits or floats of 16 to 64 bits, in the order of `jax.lax.sort`, or a tuple
        of columns.
      b: `[n_b]`, sorted, of the same dtype, or as many columns of the same dtypes.
      side: `"left"` gives the lower bounds of A in B and the upper bounds of B in A: with an item's own position added,
        this is its place in a merge with A first. `"right"` gives the upper bounds of A in B and the lower bounds of B
        in A.
      descending: whether a and b are in descending order; a tuple of bools gives a direction for each column.
      assume_sorted: whether a and b are sorted. False accepts keys in any order: then the index of an item is that of
        the first equal item of the other array (`"left"`), or of the last (`"right"`), -1 if there is none. False
        cannot be combined with `axis_name`.
      a_count: the number of live items of a, an integer scalar (default `n_a`). Items past it are ignored.
      b_count: the number of live items of b (default `n_b`).
      axis_name: see `sorted_search`.
      aligned: see `sorted_search`.

    Returns: A `SortedMatch`; indices and counts are int32, or int64 if a or b has 2^31 items or more. Over a mesh axis,
      the numbers of matches are those of all devices.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape or side is not one of the above; 2^31 items or more without `jax_enable_x64`.

    Time is O(n_a + n_b) for sorted arrays. `assume_sorted=False` takes the time of two sorts with indices, and of
    searches in both directions. For the source, see `sorted_search`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> found = mgpu.sorted_match(jnp.array([1, 2, 2]), jnp.array([2, 3]))
      >>> found.a_index, found.b_index, found.a_match_count
      (Array([0, 0, 0], dtype=int32), Array([3, 3], dtype=int32), Array(2, dtype=int32))
    """
    name = "sorted_match"
    a, b, descending, _ = directed_pair(name, a, b, descending)
    if not static_flag(name, "assume_sorted", assume_sorted):
        if axis_name is not None:
            raise value_error(name, "assume_sorted", "True over a mesh axis", "False")
        return _match_any_order(name, a, b, _is_right(name, side), a_count, b_count)
    pair = sorted_pair(name, a, b, a_count, b_count, descending=descending)
    right, aligned = _is_right(name, side), static_flag(name, "aligned", aligned)
    if axis_name is not None:
        operands = pair.code_operands
        return over_axis(mesh.pairs.sorted_match, name, axis_name, *operands, right=right, aligned=aligned)
    return SortedMatch(*_match.run(pair.operands, right=right))


@jit_eager("descending", "aligned")
def sorted_equal_count(
    a: Keys,
    b: Keys,
    *,
    descending: Directions = False,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
    aligned: bool = False,
) -> jax.Array:
    """Counts, for each item of one sorted array, the items of another that equal it.

    Args:
      a: `[n_a]`, sorted integers of 8 to 64 bits or floats of 16 to 64 bits, in the order of `jax.lax.sort`, or a tuple
        of columns.
      b: `[n_b]`, sorted, of the same dtype, or as many columns of the same dtypes.
      descending: whether a and b are in descending order; a tuple of bools gives a direction for each column.
      a_count: the number of live items of a, an integer scalar (default `n_a`). Items past it are ignored.
      b_count: the number of live items of b (default `n_b`).
      axis_name: see `sorted_search`.
      aligned: see `sorted_search`.

    Returns:
      Counts `[n_a]`, 0 past `a_count`; int32, or int64 from 2^31 items of b on.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape is not one of the above; 2^31 items of b or more without `jax_enable_x64`.

    Time is O(n_a + n_b), that of two searches, whose difference is the result. For the source, see `sorted_search`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.sorted_equal_count(jnp.array([1, 2, 2, 7]), jnp.array([2, 2, 2, 7]))
      Array([0, 3, 3, 1], dtype=int32)
    """
    name = "sorted_equal_count"
    a, b, descending, _ = directed_pair(name, a, b, descending)
    pair = sorted_pair(name, a, b, a_count, b_count, descending=descending)
    aligned = static_flag(name, "aligned", aligned)
    if axis_name is not None:
        return over_axis(mesh.pairs.sorted_equal_count, name, axis_name, *pair.code_operands, aligned=aligned)
    operands = pair.operands
    index_dtype(name, "b", operands[1].shape[0])
    return _search.run(operands, right=True)[0] - _search.run(operands, right=False)[0]


@jit_eager("side")
def search(
    needles: Keys,
    haystack: Keys,
    side: Side = "left",
    *,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> jax.Array:
    """The insertion points of needles in any order in a sorted haystack, as in `jnp.searchsorted`.

    If the needles are sorted too, `sorted_search` finds them in one pass.

    Args:
      needles: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits, in any order. Or columns: a tuple of 1 to 8
        such arrays, compared one after the other.
      haystack: `[m]`, sorted, of the same dtype, or as many columns of the same dtypes. Floats are in the order of
        `jax.lax.sort`: NaN is largest, the two zeros are equal.
      side: `"left"` for the first position whose item is not less than the needle (lower bound), `"right"` for the
        first whose item is greater (upper bound).
      count: the number of live items of the haystack, an integer scalar (default `m`). Items past it are ignored.
      axis_name: look up the needles of all devices of a mesh axis, or of a tuple of axes, in the haystack of all of
        them, within `jax.shard_map`; columns may have up to 64 bits in all. Positions are those in the global haystack,
        and each is on its needle's device.

    Returns:
      Positions `[n]` from 0 to `count`; int32, or int64 from 2^31 haystack items on.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape or side is not one of the above; 2^31 haystack items or more without
        `jax_enable_x64`.

    Time is O(n log m): a search for each needle. On a GPU, 2^17 needles or more, at least one per 32 keys of the
    haystack, may use a search tree with nodes of 32 bytes. The tree takes up to about a third of the memory of the
    haystack's keys. On a CPU, 2^17 needles or more in a haystack of at least 2^17 items may be sorted first. Columns of
    more than 64 bits in all are ranked first, by sorts of both sides.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.search(jnp.array([9, 2, 0, 2]), jnp.array([1, 2, 2, 5]), "right")
      Array([4, 3, 0, 3], dtype=int32)
    """
    name = "search"
    right = _is_right(name, side)
    checked, sorted_haystack, _ = expect_pair(name, needles, haystack, names=("needles", "haystack"))
    (n,), (m,) = checked.shape, sorted_haystack.shape
    live = count_operand(name, "count", count, m)
    index_dtype(name, "haystack", m)
    sorted_haystack = expect_sorted(name, "haystack", sorted_haystack, live)
    if axis_name is not None:
        pair = KeyPair(name, checked, sorted_haystack, ABSENT, live)
        return over_axis(mesh.tables.search, name, axis_name, pair, right=right)
    x, y = _comparable(name, checked, sorted_haystack, ABSENT, live)

    def by_kernel() -> jax.Array:
        return search_in_any_order((x, y, ABSENT, live), right=right)

    def by_sorting() -> jax.Array:
        ordered = in_order(name, "needles", x, ABSENT)
        return ordered.to_rows(_search(needles=ordered.keys, haystack=y, haystack_count=live, right=right)[0])

    is_long = all(surely(operator.ge, length, CPU_LONG) for length in (n, m))
    return platform_dependent(cpu=by_sorting, default=by_kernel) if is_long and not is_words(x) else by_kernel()


def search_in_any_order(operands: Sequence[jax.Array], *, right: bool = False, exact: bool = False) -> jax.Array:
    """Looks up needles in any order; operands are those of `_search`.

    If `exact`, returns the first equal item's position, or -1.
    """
    needles, haystack, needles_count, haystack_count = operands
    index = index_dtype("sorted_search", "haystack", haystack.shape[0])
    counts = {"needles_count": needles_count, "haystack_count": haystack_count}
    heads = jnp.zeros((1,), index)
    return _segmented_search(needles=needles, haystack=haystack, heads=heads, **counts, right=right, exact=exact)[0]


@jit_eager("side")
def segmented_search(
    needles: Keys,
    ids: ArrayLike,
    haystack: Keys,
    heads: SegmentsLike,
    side: Side = "left",
    *,
    ends: ArrayLike | None = None,
    needles_count: ArrayLike | None = None,
    haystack_count: ArrayLike | None = None,
    fill_value: ArrayLike = -1,
    axis_name: AxisName | None = None,
) -> jax.Array:
    """The insertion point of each needle in one segment of a ragged haystack.

    Args:
      needles: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits, in any order. Or columns: a tuple of 1 to 8
        such arrays, compared one after the other.
      ids: `[n]`, integers: the segment of each needle. A needle whose id is negative, or not below the number of
        segments, belongs to none.
      haystack: `[size]`, of the dtype of needles, or as many columns of the same dtypes; sorted within each segment.
        Floats are in the order of `jax.lax.sort`: NaN is largest, the two zeros are equal.
      heads: `[m]`, non-decreasing integers: see `segmented_reduce`. Or `Segments`, which replace `ends` and
        `haystack_count`.
      side: `"left"` for the first position whose item is not less than the needle (lower bound), `"right"` for the
        first whose item is greater (upper bound); the segment's end if it has no such item.
      ends: `[m]` integers: see `segmented_reduce`.
      needles_count: the number of live needles, an integer scalar (default `n`). Items past it are ignored.
      haystack_count: the number of live items of the haystack (default `size`).
      fill_value: the value of results past `needles_count`, and of needles that belong to no segment; an integer
        scalar.
      axis_name: look up the needles of all devices of a mesh axis, or of a tuple of axes, in the segments of all of
        them, within `jax.shard_map`. Ids are the numbers that `segment_ids` gives over the axis; an id and a key
        may have up to 64 bits together. Heads are the starts of the segments that start among a device's own items.
        Positions are those in the global haystack.

    Returns:
      Positions `[n]` in the whole haystack, not in the segment; an empty segment gives its start.
      int32, or int64 from 2^31 items of the haystack or segments on.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape or side is not one of the above; 2^31 items of the haystack or segments or more
        without `jax_enable_x64`.

    Time is O(n log s) for segments of s items: a search for each needle; on a GPU, many needles may use a search tree
    as in `search`. Columns of more than 64 bits in all are ranked first, by sorts of both sides.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> neighbours, heads = jnp.array([1, 4, 7, 0, 9]), jnp.array([0, 3])
      >>> mgpu.segmented_search(jnp.array([5, 7, 1]), jnp.array([0, 0, 1]), neighbours, heads)
      Array([2, 2, 4], dtype=int32)
    """
    name = "segmented_search"
    right = _is_right(name, side)
    checked, sorted_haystack, _ = expect_pair(name, needles, haystack, names=("needles", "haystack"))
    (n,), (size,) = checked.shape, sorted_haystack.shape
    segments = segment_operands(name, heads, ends, haystack_count, size, argument="haystack_count", axis_name=axis_name)
    m = segments.m
    ids = index_vector(name, "ids", ids, m * devices_of(name, axis_name))
    if ids.shape[0] != n:
        raise value_error(name, "ids", f"one id for each of {n} needles", describe(ids))
    lives = [count_operand(name, "needles_count", needles_count, n), segments.count]
    index = index_dtype(name, "haystack and heads", size, m)

    def positions(x: jax.Array, largest: int) -> jax.Array:
        """Returns indices in the type of the result; one that is out of range stays so."""
        return x if x.dtype == index else jnp.clip(wide_enough(x, largest), -1, largest).astype(index)

    heads, ids = positions(segments.heads, size), positions(ids, m)
    ends = ABSENT if segments.ends is None else positions(segments.ends, size)

    def follows() -> jax.Array:
        begin, end = _bounds_of_segments(heads, ends, size, segments.count)
        full = (begin < end).astype(heads.dtype)
        marks = jnp.zeros((size + 1,), heads.dtype).at[begin + 1].add(full, mode="drop").at[end].add(-full)
        return jnp.cumsum(marks[:size]) > 0

    sorted_haystack = expect_sorted(name, "haystack", sorted_haystack, segments.count, within=follows)
    if axis_name is not None:
        columns = columns_of(checked), ids, columns_of(sorted_haystack)
        form = mesh.tables.segmented_search
        found = over_axis(form, name, axis_name, *columns, segments, lives[0], right=right)
        return fill_missing(name, found, fill_value)
    x, y = _comparable(name, checked, sorted_haystack, *lives)
    found = _segmented_search.run([x, ids, y, heads, ends, *lives], right=right, exact=False)[0]
    return fill_missing(name, found, fill_value)


def _comparable(
    name: str,
    needles: jax.Array | Columns,
    haystack: jax.Array | Columns,
    needles_count: jax.Array,
    haystack_count: jax.Array,
) -> Sequence[jax.Array]:
    """Returns needles and haystack as one array each, in input order, whose items compare as the keys do."""
    counts = needles_count, haystack_count
    if not isinstance(needles, Columns) or needles.fits:
        pair = KeyPair(name, needles, haystack, *counts)
        return pair.a, pair.b
    sides = ("needles", needles, needles_count), ("haystack", haystack, haystack_count)
    rows = [in_order(name, *side) for side in sides]
    pair = KeyPair(name, rows[0].keys, rows[1].keys, *counts)
    return rows[0].to_rows(pair.a), rows[1].to_rows(pair.b)


def _match_any_order(name: str, a: Keys, b: Keys, right: bool, a_count: Count, b_count: Count) -> SortedMatch:
    """Looks up the items of each array in the other; results are positions in the caller's arrays."""
    given = expect_pair(name, a, b)[:2]
    lives = pair_counts(name, "ab", given, (a_count, b_count))
    rows = [in_order(name, *side) for side in zip("ab", given, lives, strict=True)]
    pair = KeyPair(name, rows[0].keys, rows[1].keys, *lives)
    sides = []
    swapped = (pair.b, pair.a, pair.b_count, pair.a_count)
    for own, other, operands in ((rows[0], rows[1], pair.operands), (rows[1], rows[0], swapped)):
        low, high = (_search.run(operands, right=upper)[0] for upper in (False, True))
        place = take_or_fill(other.order, where(low < high, high - 1 if right else low, -1), -1)
        sides.append((own.to_rows(place), own.to_rows(low < high), jnp.sum(low < high, dtype=place.dtype)))
    return SortedMatch(*(part for parts in zip(*sides, strict=True) for part in parts))


def _is_right(name: str, side: str) -> bool:
    return expect_choice(name, "side", side, ("left", "right")) == "right"


def _search_shapes(needles: Aval, haystack: Aval) -> Sequence[Any]:
    return [jax.ShapeDtypeStruct(needles.shape, index_dtype("sorted_search", "haystack", haystack.shape[0]))]


def _match_shapes(a: Aval, b: Aval) -> Sequence[Any]:
    index = index_dtype("sorted_match", "a and b", a.shape[0], b.shape[0])
    indices = [jax.ShapeDtypeStruct(x.shape, index) for x in (a, b)]
    matches = [jax.ShapeDtypeStruct(x.shape, jnp.bool_) for x in (a, b)]
    return [*indices, *matches, *[jax.ShapeDtypeStruct((), index)] * 2]


def _bounds(needles: jax.Array, haystack: jax.Array, live: jax.Array, right: bool, index: DTypeLike) -> jax.Array:
    """Returns insertion points among the first `live` items, by binary searches of all needles in lockstep."""
    low = jnp.zeros(needles.shape, index)
    return _bounds_between(needles, haystack, low, jnp.full_like(low, live.astype(index)), right)


def _bounds_between(needles: jax.Array, haystack: jax.Array, low: jax.Array, high: jax.Array, right: bool) -> jax.Array:
    """Returns each needle's insertion point from `low` to `high`, by a binary search."""
    if haystack.shape[0] == 0:
        return low

    def before(places: jax.Array) -> jax.Array:
        return haystack[places] <= needles if right else haystack[places] < needles

    return partition_points(low, high, haystack.shape[0], before)


def _bounds_of_segments(heads: jax.Array, ends: jax.Array, size: int, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns where segments begin and end among the live ones of `size` items; `ends` may be absent."""
    begin, end = segment_bounds(heads, size, count)
    return begin, jnp.maximum(begin, segment_bounds(ends, size, count)[0] if ends.size else end)


def insertion_points(needles: jax.Array, haystack: jax.Array, *, right: bool = False) -> jax.Array:
    """Returns where each of a few needles would be inserted in a sorted vector of integers."""
    return search_in_any_order((needles, haystack, ABSENT, ABSENT), right=right)


def _search_fallback(
    needles: jax.Array, haystack: jax.Array, needles_count: jax.Array, haystack_count: jax.Array, *, right: int
) -> Sequence[jax.Array]:
    (n,), (m,) = needles.shape, haystack.shape
    index = index_dtype("sorted_search", "haystack", m)
    live = live_items(m, haystack_count)
    needles, haystack = ordered_together(needles, haystack)
    found = _bounds(needles, haystack, live, bool(right), index)
    return [where(live_mask(n, needles_count), found, -1)]


def _match_fallback(
    a: jax.Array, b: jax.Array, a_count: jax.Array, b_count: jax.Array, *, right: int
) -> Sequence[jax.Array]:
    index = index_dtype("sorted_match", "a and b", a.shape[0], b.shape[0])
    a, b = ordered_together(a, b)

    def look_up(
        needles: jax.Array, count: jax.Array, haystack: jax.Array, haystack_count: jax.Array, upper: bool
    ) -> Any:
        is_live, live = live_mask(needles.shape[0], count), live_items(haystack.shape[0], haystack_count)
        bounds = [_bounds(needles, haystack, live, side, index) for side in (False, True)]
        found = is_live & (bounds[0] < bounds[1])
        return where(is_live, bounds[upper], -1), found, jnp.sum(found, dtype=index)

    sides = look_up(a, a_count, b, b_count, bool(right)), look_up(b, b_count, a, a_count, not right)
    return [part for parts in zip(*sides, strict=True) for part in parts]


def _segmented_fallback(
    needles: jax.Array,
    ids: jax.Array,
    haystack: jax.Array,
    heads: jax.Array,
    ends: jax.Array,
    needles_count: jax.Array,
    haystack_count: jax.Array,
    *,
    right: int,
    exact: int,
) -> Sequence[jax.Array]:
    (n,), (size,), (m,) = needles.shape, haystack.shape, heads.shape
    if m == 0:
        return [jnp.full(needles.shape, -1, heads.dtype)]
    ids = ids if ids.size else jnp.zeros(needles.shape, heads.dtype)
    has_segment = live_mask(n, needles_count) & (ids >= 0) & (ids < m)
    segments = where(has_segment, ids, 0)
    low, high = (x.astype(ids.dtype)[segments] for x in _bounds_of_segments(heads, ends, size, haystack_count))
    needles, haystack = ordered_together(needles, haystack)
    found = _bounds_between(needles, haystack, low, high, bool(right))
    if exact:
        has_segment &= (found < high) & (take_or_fill(haystack, found) == needles)
    return [where(has_segment, found, -1)]


_search = Operation(
    "sorted_search",
    operands={"needles": 1, "haystack": 1, "needles_count": 1, "haystack_count": 1},
    results=("positions",),
    attributes={"right": bool},
    shapes=_search_shapes,
    fallback=_search_fallback,
)
_search.def_linear()


_match = Operation(
    "sorted_match",
    operands={"a": 1, "b": 1, "a_count": 1, "b_count": 1},
    results=SortedMatch._fields,
    attributes={"right": bool},
    shapes=_match_shapes,
    fallback=_match_fallback,
)
_match.def_linear()


_segmented_search = Operation(
    "segmented_search",
    operands={"needles": 1, "ids": 1, "haystack": 1, "heads": 1, "ends": 1, "needles_count": 1, "haystack_count": 1},
    results=("positions",),
    attributes={"right": bool, "exact": bool},
    shapes=lambda needles, heads: [jax.ShapeDtypeStruct(needles.shape, heads.dtype)],
    fallback=_segmented_fallback,
)
_segmented_search.def_linear()
