"""Reductions of intervals that may overlap: moving extrema, sums over windows.

Kernels combine items by named operators. For functions as operators, and for some derivatives, plain JAX cuts the items
into blocks. Within a block, an interval combines a suffix of the left half and a prefix of the right half of the
smallest aligned part that contains it (a disjoint sparse table). Over several blocks, it combines a suffix of the
first, a prefix of the last, and an interval of the blocks' totals. No item outside of an interval contributes to its
result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.annotations import (
    ArrayLike,
    DTypeLike,
    ItemFunction,
    Operands,
    OperatorTree,
    PairFunction,
    Pytree,
    Tangents,
)
from jax_mgpu._src.arguments.check import (
    count_operand,
    describe,
    index_dtype,
    index_vector,
    value_error,
)
from jax_mgpu._src.arguments.counts import common_dtype, live_items, of_all
from jax_mgpu._src.core.compat import cond, known_size, transposed, whole_axes
from jax_mgpu._src.core.operation import Operation, jit_eager
from jax_mgpu._src.functions.blocked_scan import or_ones, select
from jax_mgpu._src.functions.combination import Combination
from jax_mgpu._src.functions.named_operators import Leaf
from jax_mgpu._src.functions.operators import Kind, Operator, builtin, identities, result_dtype
from jax_mgpu._src.functions.recurrence import log_add, product
from jax_mgpu._src.ops.gather import gather
from jax_mgpu._src.ops.reduce import take_columns
from jax_mgpu._src.ops.sorted_search import _search

__all__ = ["interval_reduce"]

LEVELS = 4  # a block of 16 items is halved 4 times


@jit_eager("op", "map", "dtype")
def interval_reduce(
    x: Pytree,
    starts: ArrayLike,
    ends: ArrayLike,
    op: OperatorTree | PairFunction = "add",
    *,
    map: ItemFunction | None = None,
    count: ArrayLike | None = None,
    identity: Pytree = None,
    dtype: DTypeLike | None = None,
) -> Any:
    """Combines the items of each interval; intervals may overlap.

    Args:
      x: see `reduce`.
      starts: `[k]`, integers: where each interval starts, in any order.
      ends: `[k]`, integers: interval `i` is `starts[i]` to `ends[i]`, cut to the live items. An interval that ends
        where it starts, or before, is empty.
      op: see `reduce`. The names `"var"`, `"std"`, `"median"`, `"nunique"`, `"count"`, `"first"`, `"last"` and those
        that begin with `"nan"` are not allowed.
      map: see `reduce`.
      count: the number of live items, an integer scalar (default `n`).
      identity: the result of an empty interval if `op` is a function, a pytree like one item.
      dtype: see `reduce`.

    Returns:
      A result `[k, ...]` for each array of `x`, one for each interval, in the form in which `segmented_reduce` returns
      results of segments.

    Raises:
      TypeError: as `reduce`.
      ValueError: as `reduce`; also another number of ends than of starts.

    Sums add only the items of their interval: nothing is subtracted, so a large item elsewhere cancels nothing. Time
    and memory are O(n + k log w) for intervals of up to w items.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> x, i = jnp.array([3, 1, 4, 1, 5]), jnp.arange(5)
      >>> mgpu.interval_reduce(x, i - 1, i + 2, "max")  # of each item and its neighbours
      Array([3, 4, 4, 5, 5], dtype=int32)
    """
    name = "interval_reduce"
    asked = Combination(name=name, op=op, identity=identity, map=map, dtype=dtype)
    x, _ = asked.mapped(x, count)
    of, x, n, restore = asked.parts(x, lambda n: "empty intervals", made=False)
    starts, ends = index_vector(name, "starts", starts, n), index_vector(name, "ends", ends, n)
    if ends.shape != starts.shape:
        raise value_error(name, "ends", f"the length of starts, {starts.shape[0]}", describe(ends))
    index = common_dtype(starts, ends)
    where = (starts.astype(index), ends.astype(index), count_operand(name, "count", count, n))
    if not isinstance(of, Operator):
        return restore([_reduce_leaf(leaf, *where) for leaf in of])
    low, high = _cut(n, *where)
    return restore(_of_intervals(of, x, whole_axes(low), whole_axes(high)))


def _cut(n: int, starts: jax.Array, ends: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cuts intervals to the live items; empty ones end where they begin."""
    live = live_items(n, count)
    wide = common_dtype(starts, live)
    low, high = (jnp.clip(x.astype(wide), 0, live.astype(wide)).astype(live.dtype) for x in (starts, ends))
    return low, jnp.maximum(low, high)


def _reduce_leaf(leaf: Leaf, starts: jax.Array, ends: jax.Array, count: jax.Array) -> jax.Array:
    if leaf.is_empty:
        return leaf.nothing(starts.shape)
    leaf = leaf.converted
    results = _by_name(x=leaf.rows, starts=starts, ends=ends, count=count, op=leaf.kind)[0]

    def widths() -> jax.Array:
        low, high = _cut(leaf.x.shape[0], starts, ends, count)
        return high - low

    return leaf.results(results, starts.shape, widths)


def _of_intervals(operator: Operator, states: Pytree, low: jax.Array, high: jax.Array) -> Any:
    n = jax.tree.leaves(states)[0].shape[0]
    if n == 0:
        found = jax.tree.map(lambda s: jnp.zeros((*low.shape, *s.shape[1:]), s.dtype), states)
        return identities(operator.identity, found)
    inside = jnp.minimum(low, n - 1)
    found = _combined(operator, states, inside, jnp.maximum(inside, high - 1))
    return select(low < high, found, identities(operator.identity, found))


def _combined(operator: Operator, states: Pytree, low: jax.Array, last: jax.Array) -> Any:
    """Combines the states from `low` to `last`, both included; `last` is not less than `low`."""
    combine = operator.combine
    n = known_size(jax.tree.leaves(states)[0].shape[0])
    levels = min(LEVELS, (n - 1).bit_length())
    blocks = -(-n // (1 << levels))
    size = blocks << levels
    # Padding is after all intervals.
    states = jax.tree.map(lambda s: jnp.concatenate([s, jnp.ones((size - n, *s.shape[1:]), s.dtype)]), states)
    table, totals = _table(combine, states, levels)
    index_dtype("interval_reduce", "x", (levels + 2) * size)

    def joined(condition: jax.Array, a: Pytree, b: Pytree) -> Any:
        if operator.kind == Kind.ADD:  # no derivative is infinite
            return combine(a, select(condition, b, jax.tree.map(jnp.zeros_like, b)))
        return select(condition, combine(or_ones(condition, a), or_ones(condition, b)), a)

    def rows(table_row: jax.Array, places: jax.Array) -> Any:
        return jax.tree.map(lambda s: gather(s, table_row * size + places, inside=True), table)

    first, final = low >> levels, last >> levels
    split = 8 * low.dtype.itemsize - 1 - jax.lax.clz(jnp.maximum(low ^ last, 1))
    is_within = first == final
    found = rows(jnp.where(is_within, split, levels), low)
    if blocks > 2:
        is_wide = final - first > 1

        def with_middle() -> Any:
            ends = (jnp.where(is_wide, block, 0) for block in (first + 1, final - 1))
            return joined(is_wide, found, _combined(operator, totals, *ends))

        found = cond(of_all(~jnp.any(is_wide)), lambda: found, with_middle)
    return joined(low < last, found, rows(jnp.where(is_within, split, levels + 1), last))


def _table(combine: Callable[[Any, Any], Any], states: Pytree, levels: int) -> tuple[Any, Any]:
    """Returns tables, one after the other, and the totals of blocks of `1 << levels` states.

    For each level, the entry of a state combines the states between it and the middle of its part, itself included. In
    the last two tables, it combines the states from it to the end of its block, and from the start of its block to it.
    """
    tables, begins, ends = [], states, states
    for level in range(levels):
        (left_begins, right_begins), (left_ends, right_ends) = (_halves(x, level) for x in (begins, ends))
        tables.append(_whole(left_ends, right_begins))
        left, right = (_repeated(x) for x in (left_begins, right_begins))
        begins = _whole(left_begins, _along(combine, left, right_begins))
        ends = _whole(_along(combine, left_ends, right), right_ends)
    totals = jax.tree.map(lambda x: x[(1 << levels) - 1 :: 1 << levels], begins)
    return jax.tree.map(lambda *xs: jnp.concatenate(xs), *tables, ends, begins), totals


def _halves(states: Pytree, level: int) -> tuple[Any, Any]:
    """Returns left and right halves of parts of `2 << level` states, `[parts, 1 << level, ...]`."""
    parts = jax.tree.map(lambda x: x.reshape(-1, 2, 1 << level, *x.shape[1:]), states)
    left, right = (jax.tree.map(lambda x, side=side: x[:, side], parts) for side in range(2))
    return left, right


def _whole(left: Pytree, right: Pytree) -> Any:
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y], 1).reshape(-1, *x.shape[2:]), left, right)


def _repeated(begins: Pytree) -> Any:
    """Returns the total of each half, repeated for each of its states."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x[:, -1:], x.shape), begins)


def _along(combine: Callable[[Any, Any], Any], a: Pytree, b: Pytree) -> Any:
    flat = [jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), x) for x in (a, b)]
    return jax.tree.map(lambda x, like: x.reshape(like.shape), combine(*flat), a)


# ---- By name, each column of rows on its own -------------------------------------------------------------------------


def _fallback(x: jax.Array, starts: jax.Array, ends: jax.Array, count: jax.Array, *, op: int) -> Sequence[jax.Array]:
    return [_in_jax(x, *_cut(x.shape[0], starts, ends, count), op)]


def _in_jax(x: jax.Array, low: jax.Array, high: jax.Array, op: int) -> jax.Array:
    operator = builtin(op, x.dtype)
    # Their derivatives are 0 for a cotangent of 0, also next to infinite items.
    combine = {Kind.MUL: product, Kind.LOGSUMEXP: log_add}.get(Kind(op), operator.combine)
    operator = dataclasses.replace(operator, combine=combine)
    positions = jnp.arange(x.shape[0], dtype=result_dtype("interval_reduce", Kind.ARGMIN, x))
    result: jax.Array = operator.finish(_of_intervals(operator, operator.extract(x, positions), low, high))
    return result


def _jvp(primals: Operands, tangents: Tangents, *, op: int) -> tuple[Any, Any]:
    results, dx, kind = _by_name.run(primals, op=op), tangents.x, Kind(op)
    if dx is None or kind.gives_index or kind in (Kind.AND, Kind.OR, Kind.XOR):
        return results, [None]
    if kind == Kind.ADD:
        return results, _by_name.run(primals._replace(x=dx), op=op)
    if kind in (Kind.MIN, Kind.MAX):
        places = _by_name.run(primals, op=kind.index_of)[0]
        return results, [take_columns(dx, places, unique=False)]
    return results, jax.jvp(lambda x: _fallback(*primals._replace(x=x), op=op), (primals.x,), (dx,))[1]


def _transpose(cotangents: Sequence[Any], operands: Operands, *, op: int) -> jax.Array:
    """Returns, for each row, the sum of the cotangents of the intervals that contain it.

    If begins and ends ascend, these intervals are consecutive ones.
    """
    (x, *where), cotangent = operands, cotangents[0]
    low, high = _cut(x.shape[0], *where)

    def of_windows() -> jax.Array:
        rows = jnp.arange(x.shape[0], dtype=low.dtype)
        first, end = (_search(needles=rows, haystack=bounds, right=True)[0] for bounds in (high, low))
        return _by_name(x=cotangent, starts=first, ends=end, op=op)[0]

    def of_tree() -> jax.Array:
        result: jax.Array = transposed(lambda x: _in_jax(x, low, high, op), x, cotangent, low, high)
        return result

    are_in_order = jnp.all((low[1:] >= low[:-1]) & (high[1:] >= high[:-1]))
    return cond(of_all(are_in_order), of_windows, of_tree)


_by_name = Operation(
    "interval_reduce",
    operands={"x": 2, "starts": 1, "ends": 1, "count": 1},
    results=("result",),
    attributes={"op": Kind},
    shapes=lambda x, starts, op: [
        jax.ShapeDtypeStruct((*starts.shape, x.shape[1]), result_dtype("interval_reduce", op, x))
    ],
    fallback=_fallback,
)
_by_name.def_jvp(_jvp)
_by_name.def_transpose("x", _transpose)
