"""Sorted search: looks the items of one sorted array up in another, all in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp

from jax_mgpu._src.annotations import ArrayLike, AxisName, Keys, LessFunction, Side
from jax_mgpu._src.bits import ordered_together
from jax_mgpu._src.by_less import ranked_pair
from jax_mgpu._src.check import expect_choice, expect_no_axis, index_dtype, static_flag, value_error
from jax_mgpu._src.columns import sorted_pair
from jax_mgpu._src.live import live_items, live_mask, partition_points
from jax_mgpu._src.mesh import over_axis
from jax_mgpu._src.primitive import Operation, one_program
from jax_mgpu._src.sort import count_of, in_order
from jax_mgpu._src.values import fill_missing, take_or_fill

__all__ = ["SortedMatch", "sorted_equal_count", "sorted_match", "sorted_search"]


class SortedMatch(NamedTuple):
    """The result of `sorted_match`.

    Attributes:
      a_index: `[n_a]`, the insertion point of each item of A in B; -1 past `a_count`.
      b_index: `[n_b]`, the insertion point of each item of B in A; -1 past `b_count`.
      a_match: bool `[n_a]`, whether the item of A occurs in B; False past `a_count`.
      b_match: bool `[n_b]`, whether the item of B occurs in A; False past `b_count`.
      a_match_count: how many items of A occur in B.
      b_match_count: how many items of B occur in A.

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


jax.export.register_namedtuple_serialization(SortedMatch, serialized_name="jax_mgpu.SortedMatch")


@one_program("side", "fill_value", "aligned", "less")
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
    """The insertion points of sorted needles in a sorted haystack, as `jnp.searchsorted` gives them.

    Args:
      needles: `[n]`, sorted integers or floats of 8 to 64 bits. Floats are in the order of `jax.lax.sort`: NaN is
        largest, the two zeros are equal. Or columns: a tuple of 1 to 8 such arrays, compared one after the other.
      haystack: `[m]`, sorted, of the same dtype, or as many columns of the same dtypes.
      side: `"left"` for the first position whose item is not less than the needle (lower bound), `"right"` for the
        first whose item is greater (upper bound).
      needles_count: the number of live needles, an integer scalar (default `n`). Items past it are never read.
      haystack_count: the same for the haystack (default `m`).
      fill_value: the value of results past `needles_count`, an integer scalar. `m` makes them padding if the positions
        serve as heads.
      less: the order, in place of that of numbers; see `mergesort`. It excludes `axis_name`.
      axis_name: look up the needles of all devices of a mesh axis, or of a tuple of axes, in the haystack of all of
        them, within `jax.shard_map`. Positions are those in the global haystack; each is on the device of its needle.
      aligned: over a mesh axis, whether needles and haystack are results of `align`. Then no item moves to another
        device.

    Returns:
      Positions `[n]` from 0 to `haystack_count`; int32, or int64 from 2^31 haystack items on.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape or side is not one of the above; 2^31 haystack items or more without
        `jax_enable_x64`.

    Time is O(n + m), each item read once, by merge path (Odeh, Green, Mwassi, Shmueli, Birk, 2012; as a search: Baxter,
    moderngpu, 2013); O(n log m), by binary searches, for needles few enough that this is less. Columns and
    `less` cost as in `merge`.

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
        operands = pair.single_operands
        found = over_axis("pairs.sorted_search", name, axis_name, *operands, right=right, aligned=aligned)
    else:
        found = _search.run(pair.operands, right=right)[0]
    return fill_missing(name, found, fill_value)


@one_program("side", "assume_sorted", "aligned")
def sorted_match(
    a: Keys,
    b: Keys,
    side: Side = "left",
    *,
    assume_sorted: bool = True,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
    aligned: bool = False,
) -> SortedMatch:
    """Looks up the items of two sorted arrays in each other, in one pass over both.

    Args:
      a: `[n_a]`, sorted integers or floats of 8 to 64 bits, in the order of `jax.lax.sort`, or a tuple of columns.
      b: `[n_b]`, sorted, of the same dtype, or as many columns of the same dtypes.
      side: `"left"` gives the lower bounds of A in B and the upper bounds of B in A, which are the places of the items
        in a merge with A first; `"right"` gives the reverse.
      assume_sorted: whether a and b are sorted. False takes keys in any order: then the index of an item is that of
        the first item that equals it in the other array (`"left"`), or of the last (`"right"`), -1 if there is none;
        not over a mesh axis.
      a_count: the number of live items of a, an integer scalar (default `n_a`). Items past it are never read.
      b_count: the same for b (default `n_b`).
      axis_name: see `sorted_search`.
      aligned: see `sorted_search`.

    Returns:
      A `SortedMatch`; indices and counts are int32, or int64 where a or b has 2^31 items or more. Over a mesh axis, the
      numbers of matches are those of all devices.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape or side is not one of the above; 2^31 items or more without `jax_enable_x64`.

    Time is O(n_a + n_b), each item read once. Source as `sorted_search`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> found = mgpu.sorted_match(jnp.array([1, 2, 2]), jnp.array([2, 3]))
      >>> found.a_index, found.b_index, found.a_match_count
      (Array([0, 0, 0], dtype=int32), Array([3, 3], dtype=int32), Array(2, dtype=int32))
    """
    name = "sorted_match"
    if not static_flag(name, "assume_sorted", assume_sorted):
        if axis_name is not None:
            raise value_error(name, "assume_sorted", "True over a mesh axis", "False")
        return _match_any_order(name, a, b, _is_right(name, side), a_count, b_count)
    pair = sorted_pair(name, a, b, a_count, b_count)
    right, aligned = _is_right(name, side), static_flag(name, "aligned", aligned)
    if axis_name is not None:
        operands = pair.single_operands
        return over_axis("pairs.sorted_match", name, axis_name, *operands, right=right, aligned=aligned)
    return SortedMatch(*_match.run(pair.operands, right=right))


@one_program("aligned")
def sorted_equal_count(
    a: Keys,
    b: Keys,
    *,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
    aligned: bool = False,
) -> jax.Array:
    """Counts, for each item of one sorted array, the items of another that equal it.

    Args:
      a: `[n_a]`, sorted integers or floats of 8 to 64 bits, in the order of `jax.lax.sort`, or a tuple of columns.
      b: `[n_b]`, sorted, of the same dtype, or as many columns of the same dtypes.
      a_count: the number of live items of a, an integer scalar (default `n_a`). Items past it are never read.
      b_count: the same for b (default `n_b`).
      axis_name: see `sorted_search`.
      aligned: see `sorted_search`.

    Returns:
      Counts `[n_a]`, 0 past `a_count`; int32, or int64 from 2^31 items of b on.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape is not one of the above; 2^31 items of b or more without `jax_enable_x64`.

    Time is O(n_a + n_b): the difference of two searches. Source as `sorted_search`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.sorted_equal_count(jnp.array([1, 2, 2, 7]), jnp.array([2, 2, 2, 7]))
      Array([0, 3, 3, 1], dtype=int32)
    """
    name = "sorted_equal_count"
    pair = sorted_pair(name, a, b, a_count, b_count)
    aligned = static_flag(name, "aligned", aligned)
    if axis_name is not None:
        return over_axis("pairs.sorted_equal_count", name, axis_name, *pair.single_operands, aligned=aligned)
    operands = pair.operands
    index_dtype(name, "b", operands[1].shape[0])
    return _search.run(operands, right=True)[0] - _search.run(operands, right=False)[0]


def _match_any_order(name: str, a: Any, b: Any, right: bool, a_count: Any, b_count: Any) -> SortedMatch:
    """Looks each item of both arrays up in the other; results are positions in the caller's arrays."""
    rows = [in_order(name, side, keys, count) for side, keys, count in (("a", a, a_count), ("b", b, b_count))]
    pair = sorted_pair(name, rows[0].keys, rows[1].keys, *(count_of(side.count) for side in rows))
    sides = []
    swapped = (pair.b, pair.a, pair.b_count, pair.a_count)
    for own, other, operands in ((rows[0], rows[1], pair.operands), (rows[1], rows[0], swapped)):
        low, high = (_search.run(operands, right=upper)[0] for upper in (False, True))
        place = take_or_fill(other.order + 1, jnp.where(low < high, high - 1 if right else low, -1)) - 1
        sides.append((own.to_rows(place), own.to_rows(low < high), jnp.sum(low < high, dtype=place.dtype)))
    return SortedMatch(*(part for parts in zip(*sides, strict=True) for part in parts))


def _is_right(name: str, side: str) -> bool:
    return expect_choice(name, "side", side, ("left", "right")) == "right"


def _search_shapes(needles: Any, haystack: Any) -> Sequence[Any]:
    return [jax.ShapeDtypeStruct(needles.shape, index_dtype("sorted_search", "haystack", haystack.shape[0]))]


def _match_shapes(a: Any, b: Any) -> Sequence[Any]:
    index = index_dtype("sorted_match", "a and b", max(a.shape[0], b.shape[0]))
    indices = [jax.ShapeDtypeStruct(x.shape, index) for x in (a, b)]
    matches = [jax.ShapeDtypeStruct(x.shape, jnp.bool_) for x in (a, b)]
    return [*indices, *matches, *[jax.ShapeDtypeStruct((), index)] * 2]


def _bounds(needles: jax.Array, haystack: jax.Array, live: Any, right: bool, index: Any) -> jax.Array:
    """Binary searches in the first `live` items, all needles in step."""
    low = jnp.zeros(needles.shape, index)
    if haystack.shape[0] == 0:
        return low

    def before(places: jax.Array) -> jax.Array:
        return haystack[places] <= needles if right else haystack[places] < needles

    return partition_points(low, jnp.full_like(low, live.astype(index)), haystack.shape[0], before)


def insertion_points(needles: jax.Array, haystack: jax.Array, *, right: bool = False) -> jax.Array:
    """Where each of a few needles would be inserted in a sorted vector of integers of their dtype.

    The kernels read the whole haystack, and these searches some 30 items a needle, in one program without a loop.
    """
    n = haystack.shape[0]
    index = index_dtype("sorted_search", "haystack", n)
    return _bounds(needles, haystack, jnp.asarray(n, index), right, index)


def _search_fallback(
    needles: jax.Array, haystack: jax.Array, needles_count: jax.Array, haystack_count: jax.Array, *, right: int
) -> Sequence[jax.Array]:
    (n,), (m,) = needles.shape, haystack.shape
    index = index_dtype("sorted_search", "haystack", m)
    live = live_items(m, haystack_count)
    needles, haystack = ordered_together(needles, haystack)
    found = _bounds(needles, haystack, live, bool(right), index)
    return [jnp.where(live_mask(n, needles_count), found, -1)]


def _match_fallback(
    a: jax.Array, b: jax.Array, a_count: jax.Array, b_count: jax.Array, *, right: int
) -> Sequence[jax.Array]:
    index = index_dtype("sorted_match", "a and b", max(a.shape[0], b.shape[0]))
    a, b = ordered_together(a, b)

    def look_up(needles: jax.Array, count: Any, haystack: jax.Array, haystack_count: Any, upper: bool) -> Any:
        is_live, live = live_mask(needles.shape[0], count), live_items(haystack.shape[0], haystack_count)
        bounds = [_bounds(needles, haystack, live, side, index) for side in (False, True)]
        found = is_live & (bounds[0] < bounds[1])
        return jnp.where(is_live, bounds[upper], -1), found, jnp.sum(found, dtype=index)

    sides = look_up(a, a_count, b, b_count, bool(right)), look_up(b, b_count, a, a_count, not right)
    return [part for parts in zip(*sides, strict=True) for part in parts]


_search = Operation(
    "sorted_search",
    operands={"needles": 1, "haystack": 1, "needles_count": 1, "haystack_count": 1},
    results=("positions",),
    attributes={"right": bool},
    shapes=_search_shapes,
    fallback=_search_fallback,
)
_search.def_jvp(lambda primals, tangents, **attributes: (_search.run(primals, **attributes), [None]))


_match = Operation(
    "sorted_match",
    operands={"a": 1, "b": 1, "a_count": 1, "b_count": 1},
    results=SortedMatch._fields,
    attributes={"right": bool},
    shapes=_match_shapes,
    fallback=_match_fallback,
)
_match.def_jvp(lambda primals, tangents, **attributes: (_match.run(primals, **attributes), [None] * 6))
