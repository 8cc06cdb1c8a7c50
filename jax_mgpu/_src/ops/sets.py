"""Set operations on two sorted arrays of keys that may repeat."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
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
    Keys,
    LessFunction,
    Operands,
    Pytree,
    Tangents,
)
from jax_mgpu._src.arguments.check import (
    expect_no_axis,
    fill_operand,
    index_dtype,
    static_flag,
    static_size,
    value_error,
)
from jax_mgpu._src.arguments.counts import live_items
from jax_mgpu._src.arguments.preconditions import room
from jax_mgpu._src.arguments.values import (
    Payload,
    carried_leaf,
    filled_behind,
    flatten_pair,
    flatten_values,
    take_from_pair,
)
from jax_mgpu._src.core.operation import ABSENT, Operation, jit_eager
from jax_mgpu._src.functions.comparator_ops import ranked_pair
from jax_mgpu._src.keys.bits import ordered_together
from jax_mgpu._src.keys.columns import KeyPair, directed_pair, sorted_pair
from jax_mgpu._src.mesh import over_axis
from jax_mgpu._src.ops.unsorted_pairs import in_order_with

__all__ = ["SetResult", "set_difference", "set_intersection", "set_symmetric_difference", "set_union"]


class Kind(enum.IntEnum):
    """The kernels' attribute `kind`."""

    INTERSECTION = 0
    UNION = 1
    DIFFERENCE = 2
    SYMMETRIC_DIFFERENCE = 3


TAKES_B = (Kind.UNION, Kind.SYMMETRIC_DIFFERENCE)


class SetResult(NamedTuple):
    """The result of a set operation.

    Attributes:
      keys: `[size]`, sorted; past `count`, the fill value. Columns are a tuple.
      values: a pytree of arrays with leading axis `size`, or None if no values were given.
      count: the number of items of the result, a scalar. It can exceed `size`: then the first `size` items are kept.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> found = mgpu.set_difference(jnp.array([1, 2, 5]), jnp.array([2, 3]), jnp.array([10, 20, 50]))
      >>> found.keys, found.values, found.count
      (Array([1, 5, 0], dtype=int32), Array([10, 50,  0], dtype=int32), Array(2, dtype=int32))
    """

    keys: Any
    values: Any
    count: jax.Array  # type: ignore[assignment]


@jit_eager("size", "duplicates", "descending", "assume_sorted", "aligned", "less")
def set_intersection(
    a: Keys,
    b: Keys,
    a_values: Pytree = None,
    *,
    size: int | None = None,
    duplicates: bool = True,
    fill_value: ArrayLike = 0,
    descending: Directions = False,
    assume_sorted: bool = True,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
    less: LessFunction | None = None,
    axis_name: AxisName | None = None,
    aligned: bool = False,
) -> SetResult:
    """The multiset intersection of two sorted arrays: for p copies in a and q in b, the first min(p, q) of a.

    Args:
      a: `[n_a]`, sorted integers of 8 to 64 bits or floats of 16 to 64 bits. Floats are in the order of `jax.lax.sort`:
        NaN is largest, all NaNs are equal, and so are the two zeros. Or columns: a tuple of 1 to 8 such arrays,
        compared one after the other.
      b: `[n_b]`, sorted, of the same dtype, or as many columns of the same dtypes.
      a_values: a pytree of arrays with leading axis `n_a`, of any dtype and trailing shape.
      size: the static length of the result (default `min(n_a, n_b)`).
      duplicates: False promises that no key occurs twice in a, nor twice in b, which may save time.
      fill_value: the value of keys and values past the last one, a scalar; converted to the dtype of each.
      descending: whether a and b, and the result, are in descending order; a tuple of bools gives a direction for each
        column. It cannot be combined with `less`.
      assume_sorted: whether a and b are sorted. False takes keys in any order, and sorts both with their values. It
        cannot be combined with `axis_name`.
      a_count: the number of live items of a, an integer scalar (default `n_a`). Items past it are ignored.
      b_count: the number of live items of b (default `n_b`).
      less: a comparator that replaces the order of numbers; see `mergesort`. Keys are equal if neither comes first.
        Cannot be combined with `axis_name`.
      axis_name: work on the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`; columns
        may then have up to 64 bits in all. Each device computes a part of the result, from about an equal share of
        all items of a and b. `size` and `count` are those of the part. The default of `size` is the most that a part
        can have: n_a + n_b, or half of it, rounded up, for the intersection.
      aligned: over a mesh axis, whether a and b are results of `align`. Then no item moves to another device. The
        default of `size` is then n_a, or n_a + n_b for a union or symmetric difference.

    Returns: A `SetResult`: keys and values as in a, bit for bit, and their number.

    Raises:
      TypeError: an argument's dtype is not one of the above, or `size` is not static.
      ValueError: an argument's shape is not one of the above; 2^31 items or more in both inputs together without
        `jax_enable_x64`.

    Time is O(n_a + n_b). Balanced path finds equal parts of both inputs (Baxter, moderngpu, 2013), such that the r-th
    copies of a key in a and in b are in the same part. On a GPU, a scan with decoupled look-back (Merrill and Garland,
    2016) finds where the results go. Columns cost as in `merge`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.set_intersection(jnp.array([1, 2, 2, 2, 5]), jnp.array([2, 2, 3, 5]))
      SetResult(keys=Array([2, 2, 5, 0], dtype=int32), values=None, count=Array(3, dtype=int32))
    """
    options = duplicates, fill_value, descending, assume_sorted, (a_count, b_count), less, axis_name, aligned
    return _operate(SetCall("set_intersection", Kind.INTERSECTION, size, *options), a, b, a_values, None)


@jit_eager("size", "duplicates", "descending", "assume_sorted", "aligned", "less")
def set_union(
    a: Keys,
    b: Keys,
    a_values: Pytree = None,
    b_values: Pytree = None,
    *,
    size: int | None = None,
    duplicates: bool = True,
    fill_value: ArrayLike = 0,
    descending: Directions = False,
    assume_sorted: bool = True,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
    less: LessFunction | None = None,
    axis_name: AxisName | None = None,
    aligned: bool = False,
) -> SetResult:
    """The multiset union of two sorted arrays: for p copies in a and q in b, those of a, then those of b past the p-th.

    Args:
      a: see `set_intersection`.
      b: see `set_intersection`.
      a_values: a pytree of arrays with leading axis `n_a`, of any dtype and trailing shape.
      b_values: a pytree of the same structure, dtypes and trailing shapes with leading axis `n_b`.
      size: the static length of the result (default `n_a + n_b`).
      duplicates: see `set_intersection`.
      fill_value: see `set_intersection`.
      descending: see `set_intersection`.
      assume_sorted: see `set_intersection`.
      a_count: see `set_intersection`.
      b_count: see `set_intersection`.
      less: see `set_intersection`.
      axis_name: see `set_intersection`.
      aligned: see `set_intersection`.

    Returns:
      A `SetResult`, each value from the array that its key comes from.

    Raises:
      TypeError: as `set_intersection`.
      ValueError: as `set_intersection`; also values of only one side, or of two structures.

    For complexity and source, see `set_intersection`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.set_union(jnp.array([1, 2, 2]), jnp.array([2, 2, 2, 3]), size=6).keys
      Array([1, 2, 2, 2, 3, 0], dtype=int32)
    """
    options = duplicates, fill_value, descending, assume_sorted, (a_count, b_count), less, axis_name, aligned
    return _operate(SetCall("set_union", Kind.UNION, size, *options), a, b, a_values, b_values)


@jit_eager("size", "duplicates", "descending", "assume_sorted", "aligned", "less")
def set_difference(
    a: Keys,
    b: Keys,
    a_values: Pytree = None,
    *,
    size: int | None = None,
    duplicates: bool = True,
    fill_value: ArrayLike = 0,
    descending: Directions = False,
    assume_sorted: bool = True,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
    less: LessFunction | None = None,
    axis_name: AxisName | None = None,
    aligned: bool = False,
) -> SetResult:
    """The multiset difference of two sorted arrays: for p copies in a and q in b, those of a past the q-th.

    Args:
      a: see `set_intersection`.
      b: see `set_intersection`.
      a_values: see `set_intersection`.
      size: the static length of the result (default `n_a`).
      duplicates: see `set_intersection`.
      fill_value: see `set_intersection`.
      descending: see `set_intersection`.
      assume_sorted: see `set_intersection`.
      a_count: see `set_intersection`.
      b_count: see `set_intersection`.
      less: see `set_intersection`.
      axis_name: see `set_intersection`.
      aligned: see `set_intersection`.

    Returns:
      A `SetResult`.

    Raises:
      TypeError: as `set_intersection`.
      ValueError: as `set_intersection`.

    For complexity and source, see `set_intersection`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.set_difference(jnp.array([1, 2, 2, 2, 5]), jnp.array([2, 2, 3, 5]), size=2).keys
      Array([1, 2], dtype=int32)
    """
    options = duplicates, fill_value, descending, assume_sorted, (a_count, b_count), less, axis_name, aligned
    return _operate(SetCall("set_difference", Kind.DIFFERENCE, size, *options), a, b, a_values, None)


@jit_eager("size", "duplicates", "descending", "assume_sorted", "aligned", "less")
def set_symmetric_difference(
    a: Keys,
    b: Keys,
    a_values: Pytree = None,
    b_values: Pytree = None,
    *,
    size: int | None = None,
    duplicates: bool = True,
    fill_value: ArrayLike = 0,
    descending: Directions = False,
    assume_sorted: bool = True,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
    less: LessFunction | None = None,
    axis_name: AxisName | None = None,
    aligned: bool = False,
) -> SetResult:
    """The multiset symmetric difference: for p copies in a and q in b, the last abs(p - q) of the side with more.

    Args:
      a: see `set_intersection`.
      b: see `set_intersection`.
      a_values: see `set_union`.
      b_values: see `set_union`.
      size: the static length of the result (default `n_a + n_b`).
      duplicates: see `set_intersection`.
      fill_value: see `set_intersection`.
      descending: see `set_intersection`.
      assume_sorted: see `set_intersection`.
      a_count: see `set_intersection`.
      b_count: see `set_intersection`.
      less: see `set_intersection`.
      axis_name: see `set_intersection`.
      aligned: see `set_intersection`.

    Returns:
      A `SetResult`, each value from the array that its key comes from.

    Raises:
      TypeError: as `set_union`.
      ValueError: as `set_union`.

    For complexity and source, see `set_intersection`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.set_symmetric_difference(jnp.array([1, 2, 2]), jnp.array([2, 2, 2, 3]), size=3).keys
      Array([1, 2, 3], dtype=int32)
    """
    options = duplicates, fill_value, descending, assume_sorted, (a_count, b_count), less, axis_name, aligned
    return _operate(
        SetCall("set_symmetric_difference", Kind.SYMMETRIC_DIFFERENCE, size, *options), a, b, a_values, b_values
    )


class SetCall(NamedTuple):
    """The arguments of a set operation except keys and values. `counts` are the numbers of live items of a and b."""

    name: str
    kind: Kind
    size: int | None
    duplicates: bool
    fill_value: ArrayLike
    descending: Directions
    assume_sorted: bool
    counts: tuple[Count, Count]
    less: LessFunction | None
    axis_name: AxisName | None
    aligned: bool


def _operate(asked: SetCall, a: Keys, b: Keys, a_values: Pytree, b_values: Pytree) -> SetResult:
    name, kind, counts = asked.name, asked.kind, asked.counts
    if asked.less is not None:
        expect_no_axis(name, "less", asked.axis_name)
        ranked = ranked_pair(name, a, b, asked.less, *counts, descending=asked.descending)
        if kind not in TAKES_B or (a_values is None) == (b_values is None):
            moved_b = None if kind not in TAKES_B else (ranked.b, b_values)
            of_ranks = asked._replace(less=None, descending=False, aligned=False)
            result = _operate(of_ranks, *ranked.ranks, (ranked.a, a_values), moved_b)
            keys, values = result.values
            return SetResult(ranked.restore(keys), values, result.count)
        flatten_pair(name, a_values, b_values, 0, 0)
    a, b, descending, restore = directed_pair(name, a, b, asked.descending)
    flags = {flag: static_flag(name, flag, getattr(asked, flag)) for flag in ("duplicates", "aligned", "assume_sorted")}
    if not flags["assume_sorted"]:
        if asked.axis_name is not None:
            raise value_error(name, "assume_sorted", "True over a mesh axis", "False")
        a, a_values = in_order_with(name, "a", a, a_values, counts[0], descending)
        b, b_values = in_order_with(name, "b", b, b_values, counts[1], descending)
    asked = asked._replace(duplicates=flags["duplicates"], aligned=flags["aligned"])
    pair = sorted_pair(name, a, b, *counts, descending=descending, unique=not asked.duplicates)
    result = (_on_device if asked.axis_name is None else _over_axis)(asked, pair, a_values, b_values)
    return result._replace(keys=restore(result.keys))


def set_leaves(
    name: str, kind: Kind, a_values: Pytree, b_values: Pytree, n_a: int, n_b: int
) -> tuple[list[jax.Array], list[jax.Array], Callable[[Sequence[jax.Array]], Any]]:
    """Returns the leaves of both sides' values, and the function that restores the tree. b may have no leaves."""
    if kind in TAKES_B:
        return flatten_pair(name, a_values, b_values, n_a, n_b)
    a_leaves, unflatten = flatten_values(name, "a_values", a_values, n_a, "a")
    return a_leaves, [], unflatten


def _on_device(asked: SetCall, pair: KeyPair, a_values: Pytree, b_values: Pytree) -> SetResult:
    name, kind, size = asked.name, asked.kind, asked.size
    n_a, n_b = pair.a.shape[0], pair.b.shape[0]
    index_dtype(name, "a and b", n_a + n_b)
    if size is None:
        size = min(n_a, n_b) if kind == Kind.INTERSECTION else n_a if kind == Kind.DIFFERENCE else n_a + n_b
    size = static_size(name, "size", size)
    a_leaves, b_leaves, unflatten = set_leaves(name, kind, a_values, b_values, n_a, n_b)
    carried = carried_leaf(a_leaves)
    payload, moving = Payload.INDICES, {}
    if pair.is_code and a_values is None:
        payload = Payload.NONE
    elif pair.is_code and carried is not None:
        payload = Payload.GIVEN
        fill = fill_operand(name, asked.fill_value, carried.dtype)
        moving = {"a_values": carried, "b_values": b_leaves[0] if b_leaves else ABSENT, "values_fill": fill}
    keys, *moved, count = _sets(
        a=pair.a, b=pair.b, a_count=pair.a_count, b_count=pair.b_count, fill=pair.fill(asked.fill_value), kind=kind,
        size=size, duplicates=asked.duplicates, payload=payload, **moving,
    )  # fmt: skip
    if payload == Payload.INDICES:
        (sources,) = moved
        others: Sequence[jax.Array | None] = b_leaves or [None] * len(a_leaves)
        moved = [
            take_from_pair(x, y, sources, n_a, fill_operand(name, asked.fill_value, x.dtype))
            for x, y in zip(a_leaves, others, strict=True)
        ]
        keys = pair.restored(keys, sources, count=count, fill_value=asked.fill_value)
    else:
        keys = pair.restored(keys, count=count, fill_value=asked.fill_value)
    return SetResult(keys, None if a_values is None else unflatten(moved), room(name, count, size))


def _over_axis(asked: SetCall, pair: KeyPair, a_values: Pytree, b_values: Pytree) -> SetResult:
    """Computes a device's part. Columns become one code; floats also move as values."""
    name, kind = asked.name, asked.kind
    size = None if asked.size is None else static_size(name, "size", asked.size)
    a, b, a_count, b_count = pair.code_operands

    def run(a_values: Pytree, b_values: Pytree, fill_value: ArrayLike) -> SetResult:
        operands = (kind, a, b, a_values, b_values, a_count, b_count)
        flags = {"size": size, "duplicates": asked.duplicates, "aligned": asked.aligned}
        return over_axis(mesh.pairs.set_operation, name, asked.axis_name, *operands, fill_value=fill_value, **flags)

    if not pair.are_columns:
        return run(a_values, b_values, asked.fill_value)
    a_leaves, b_leaves, unflatten = set_leaves(name, kind, a_values, b_values, a.shape[0], b.shape[0])
    (a_rest, b_rest), number = pair.rest, len(a_leaves)
    of_a, of_b = [*a_leaves, *a_rest], [*b_leaves, *b_rest]
    found = run(of_a or None, of_b if of_a and kind in TAKES_B else None, 0)
    moved = found.values or []
    keys = pair.of_code_and_rest(found.keys, moved[number:], found.count, asked.fill_value)
    leaves = [filled_behind(x, found.count, fill_operand(name, asked.fill_value, x.dtype)) for x in moved[:number]]
    return SetResult(keys, None if a_values is None else unflatten(leaves), found.count)


def _shapes(a: Aval, b: Aval, a_values: Aval, *, size: int, payload: int) -> Sequence[Any]:
    index = index_dtype("set operation", "a and b", a.shape[0] + b.shape[0])
    keys, count = jax.ShapeDtypeStruct((size,), a.dtype), jax.ShapeDtypeStruct((), index)
    if payload == Payload.NONE:
        return [keys, count]
    return [keys, jax.ShapeDtypeStruct((size,), a_values.dtype if payload == Payload.GIVEN else index), count]


def _fallback(
    a: jax.Array,
    b: jax.Array,
    a_count: jax.Array,
    b_count: jax.Array,
    fill: jax.Array,
    a_values: jax.Array,
    b_values: jax.Array,
    values_fill: jax.Array,
    *,
    kind: int,
    size: int,
    payload: int,
) -> Sequence[jax.Array]:
    """Sorts both sides together, and counts the copies of a key on either side."""
    n_a, n = a.shape[0], a.shape[0] + b.shape[0]
    index = index_dtype("set operation", "a and b", n)
    if n == 0:
        a, n_a, n = jnp.zeros((1,), a.dtype), 1, 1
        a_count = jnp.zeros((1,), jnp.int32)
    positions = jnp.arange(n, dtype=index)
    a_live, b_live = live_items(n_a, a_count, index), live_items(n - n_a, b_count, index)
    dead = jnp.where(positions < n_a, positions >= a_live, positions >= n_a + b_live)
    (keys,) = ordered_together(jnp.concatenate([a, b]))
    dead, keys, positions = jax.lax.sort((dead, keys, positions), num_keys=3)
    from_a = positions < n_a
    starts = jnp.concatenate([jnp.ones((1,), bool), (keys[1:] != keys[:-1]) | dead[1:]])
    runs = jnp.cumsum(starts, dtype=index) - 1
    a_copies, b_copies = (
        jnp.zeros((n,), index).at[runs].add((side & ~dead).astype(index), indices_are_sorted=True)[runs]
        for side in (from_a, ~from_a)
    )
    first = jax.lax.cummax(jnp.where(starts, jnp.arange(n, dtype=index), 0))
    rank = jnp.arange(n, dtype=index) - first - jnp.where(from_a, 0, a_copies)
    past = rank >= jnp.where(from_a, b_copies, a_copies)  # the other side has no such copy
    keep = {
        Kind.INTERSECTION: from_a & ~past,
        Kind.UNION: from_a | past,
        Kind.DIFFERENCE: from_a & past,
        Kind.SYMMETRIC_DIFFERENCE: past,
    }[Kind(kind)] & ~dead
    slots = jnp.where(keep, jnp.cumsum(keep, dtype=index) - 1, size)
    sources = jnp.full((size,), -1, index).at[slots].set(positions, mode="drop")
    count = jnp.sum(keep, dtype=index)
    result_keys = take_from_pair(a, b, sources, n_a, fill)
    if payload == Payload.NONE:
        return [result_keys, count]
    if payload == Payload.INDICES:
        return [result_keys, sources, count]
    return [result_keys, take_from_pair(a_values, _given(b_values, kind), sources, n_a, values_fill), count]


def _jvp(primals: Operands, tangents: Tangents, *, payload: int, **attributes: int) -> tuple[Any, Any]:
    n_a = primals.a.shape[0]
    without_values = primals._replace(a_values=ABSENT, b_values=ABSENT, values_fill=ABSENT)
    keys, sources, count = _sets.run(without_values, **attributes, payload=Payload.INDICES)

    key_tangents = take_from_pair(tangents.a, tangents.b, sources, n_a, tangents.fill, tangents=True)
    if payload == Payload.NONE:
        return [keys, count], [key_tangents, None]
    if payload == Payload.INDICES:
        return [keys, sources, count], [key_tangents, None, None]
    b_values = _given(primals.b_values, attributes["kind"])
    values = take_from_pair(primals.a_values, b_values, sources, n_a, primals.values_fill)
    return [keys, values, count], [
        key_tangents,
        take_from_pair(tangents.a_values, tangents.b_values, sources, n_a, tangents.values_fill, tangents=True),
        None,
    ]


def _given(b_values: jax.Array, kind: int) -> jax.Array | None:
    """Returns b's values, if the operation takes any."""
    return b_values if kind in TAKES_B else None


_sets = Operation(
    "sets",
    operands=dict.fromkeys(("a", "b", "a_count", "b_count", "fill", "a_values", "b_values", "values_fill"), 1),
    results=("keys", "values", "count"),
    attributes={"kind": Kind, "size": int, "duplicates": bool, "payload": Payload},
    shapes=_shapes,
    fallback=_fallback,
)
_sets.def_jvp(_jvp)
