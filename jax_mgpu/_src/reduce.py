"""Reductions: an array, each segment of a ragged one, or each run of equal keys, combined by an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.annotations import ArrayLike, AxisName, ItemFunction, Keys, OperatorName, PairFunction
from jax_mgpu._src.bits import ordered_together
from jax_mgpu._src.by_function import reduce_by_function, reduce_mapped, segmented_reduce_by_function
from jax_mgpu._src.check import count_operand, expect_key, index_dtype, index_vector, static_size
from jax_mgpu._src.columns import Columns, expect_keys, expect_one_array
from jax_mgpu._src.compat import whole_axes
from jax_mgpu._src.live import heads_inside, live_items, live_mask
from jax_mgpu._src.mapped import mapped
from jax_mgpu._src.mesh import over_axis
from jax_mgpu._src.operators import (
    Kind,
    accumulator_dtype,
    builtin,
    custom,
    operator_kind,
    result_dtype,
    scan_results,
    segmented_results,
)
from jax_mgpu._src.preconditions import non_decreasing, room
from jax_mgpu._src.primitive import ABSENT, Operation, one_program
from jax_mgpu._src.scan import _scan
from jax_mgpu._src.values import flatten_values, take_or_fill

__all__ = ["reduce", "reduce_by_key", "run_reduce_by_key", "segmented_reduce"]


@one_program("op", "commutative")
def reduce(
    x: Any,
    op: OperatorName | PairFunction = "add",
    *,
    count: ArrayLike | None = None,
    identity: Any = None,
    map: ItemFunction | None = None,
    commutative: bool = False,
    axis_name: AxisName | None = None,
) -> Any:
    """Combines all items.

    Args:
      x: `[n]`, integers or floats of 8 to 64 bits; with a function as `op`, a pytree of arrays with leading axis `n`.
      op: `"add"`, `"mul"`, `"min"`, `"max"`, `"argmin"`, `"argmax"`, or any associative function of two items, which
        need not commute. Integers wrap; float16 and bfloat16 accumulate in float32; a NaN makes a minimum or maximum
        NaN; argmin and argmax give the index of the first extremum, -1 over nothing.
      count: the number of live items, an integer scalar (default `n`). Items past it are not read.
      identity: the identity of a function `op`, a pytree like one item: needed with `count`, and for `n = 0`.
      map: a function of an item, or of an item and its position, that gives what `op` is to combine, of another
        structure and dtype if need be; x is then any pytree of arrays with leading axis `n`. The CUDA kernels evaluate
        it as they load an item. Over a mesh axis, positions are those in the global array.
      commutative: a promise that a function `op` commutes, which may be faster.
      axis_name: reduce the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`.

    Returns:
      A scalar of the type of x, or an index (int32; int64 from 2^31 items on). Over nothing it is 0, 1, the largest
      value (+inf), the smallest (-inf), -1, -1, in the order of the operators above. Over a mesh axis it is the same on
      all devices, and an index is that in the global array.

    Raises:
      TypeError: an argument's dtype or structure is not one of the above.
      ValueError: an argument's shape is not one of the above, `op` is not known, or `identity` is missing; indices into
        2^31 items or more without `jax_enable_x64`.

    Time is O(n), in one pass over memory; the tree is fixed, so float results are the same in every run. A function is
    compiled into the CUDA kernels; elsewhere, and where it cannot be compiled, it takes several passes over memory.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.reduce(jnp.array([3.0, 1.0, 4.0]), "argmax")
      Array(2, dtype=int32)
    """
    name = "reduce"
    x, load = mapped(name, map, x, count, axis_name=axis_name)
    if callable(op):
        needs = "a reduction that may be over nothing"
        has_count = count is not None
        operator, x, n, restore = custom(
            name, op, x, identity, lambda n: needs if has_count or n == 0 else None, commutative=commutative
        )
        count = count_operand(name, "count", count, n)
        if axis_name is not None:
            return restore(over_axis("reductions.reduce", name, axis_name, operator, x, n, count))
        return restore(reduce_by_function(name, operator, x, n, count, load))
    kind = operator_kind(name, op, identity)
    x = expect_key(name, "x", x)
    count = count_operand(name, "count", count, x.shape[0])
    if axis_name is not None:
        return over_axis("reductions.reduce", name, axis_name, kind, x, x.shape[0], count)
    result = reduce_mapped(name, kind, x, count, load)
    return _reduce(x=x, count=count, op=kind)[0] if result is None else result


@one_program("op", "commutative")
def segmented_reduce(
    x: Any,
    heads: ArrayLike,
    op: OperatorName | PairFunction = "add",
    *,
    count: ArrayLike | None = None,
    identity: Any = None,
    map: ItemFunction | None = None,
    commutative: bool = False,
    axis_name: AxisName | None = None,
) -> Any:
    """Combines the items of each segment.

    Args:
      x: see `reduce`.
      heads: `[m]`, non-decreasing integers: result `i` belongs to the segment that starts at `heads[i]` and ends at the
        next head, the last one at `n` (or `count`). Items before `heads[0]` belong to no result; a repeated head is an
        empty segment; so is a head past the last item.
      op: see `reduce`.
      count: see `reduce`.
      identity: the identity of a function `op`, a pytree like one item: the result of an empty segment.
      map: see `reduce`.
      commutative: see `reduce`.
      axis_name: see `reduce`. A device's heads are those of the segments that start among its own items, counted from
        the first of these; a segment goes on over the devices that follow, up to the next head.

    Returns:
      An array of `m`; indices count from the start of x, or of the global array. Over a mesh axis, a segment's result
      is on the device that has its head.

    Raises:
      TypeError: as `reduce`.
      ValueError: as `reduce`.

    Time is O(n + m), whatever the lengths of the segments: items and segment ends are consumed in equal tiles (merge
    path, as in Merrill and Garland, "Merge-based Parallel Sparse Matrix-Vector Multiplication", 2016).

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.segmented_reduce(jnp.array([3, 1, 4, 1, 5]), jnp.array([0, 2, 2]))
      Array([ 4,  0, 10], dtype=int32)
    """
    name = "segmented_reduce"
    x, load = mapped(name, map, x, count, axis_name=axis_name)
    if callable(op):
        operator, x, n, restore = custom(name, op, x, identity, lambda n: "empty segments", commutative=commutative)
    else:
        kind = operator_kind(name, op, identity)
        x = expect_key(name, "x", x)
        n = x.shape[0]
    heads = non_decreasing(name, "heads", index_vector(name, "heads", heads, n))
    count = count_operand(name, "count", count, n)
    if axis_name is not None:
        given = operator if callable(op) else kind
        results = over_axis("reductions.segmented_reduce", name, axis_name, given, x, n, heads, count)
        return restore(results) if callable(op) else results
    if callable(op):
        return restore(segmented_reduce_by_function(name, operator, x, n, heads, count, load))
    return _segmented_reduce(x=x, heads=heads, count=count, op=kind)[0]


@one_program("op", "size", "commutative")
def reduce_by_key(
    keys: Keys,
    values: Any,
    op: OperatorName | PairFunction = "add",
    *,
    size: int,
    count: ArrayLike | None = None,
    map: ItemFunction | None = None,
    commutative: bool = False,
    axis_name: AxisName | None = None,
) -> tuple[Any, Any, jax.Array]:
    """Combines the values of each run of equal neighbouring keys.

    Args:
      keys: `[n]`, integers or floats of 8 to 64 bits; not necessarily sorted. All NaNs are equal, and so are the zeros.
        Or columns: a tuple of 1 to 8 such arrays.
      values: `[n]`, integers or floats, or a pytree of such arrays, each reduced on its own; with a function as `op`, a
        pytree of arrays with leading axis `n`, reduced together.
      op: see `reduce`.
      size: the static number of results.
      count: the number of live items, an integer scalar (default `n`).
      map: see `reduce`; of an item of `values`, and its position among them.
      commutative: see `reduce`.
      axis_name: see `reduce`. A run is on the device on which it starts; `size` and the number of runs are this
        device's.

    Returns:
      `(keys, values, count)`: the first key (or the tuple of columns) of each run, its combined values, and the number
      of runs, which can exceed `size`. Slots past the number of runs hold 0 (-1 for indices).

    Raises:
      TypeError: as `reduce`.
      ValueError: as `reduce`; also a size that is not a non-negative integer, and 2^31 items or more without
        `jax_enable_x64`.

    Time is O(n + size): one pass over the keys finds the heads of the runs, with decoupled look-back (Merrill and
    Garland, 2016), and a segmented reduction combines the values.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.reduce_by_key(jnp.array([7, 7, 2, 7]), jnp.array([1, 2, 3, 4]), size=4)
      (Array([7, 2, 7, 0], dtype=int32), Array([3, 3, 4, 0], dtype=int32), Array(3, dtype=int32))
    """
    given: dict[str, Any] = {"item_map": map, "commutative": commutative, "axis_name": axis_name}
    return run_reduce_by_key("reduce_by_key", keys, values, op, size=size, count=count, **given)


def run_reduce_by_key(
    name: str,
    keys: Any,
    values: Any,
    op: Any,
    *,
    size: int,
    count: Any,
    item_map: Any = None,
    commutative: bool = False,
    axis_name: Any = None,
) -> tuple[Any, Any, jax.Array]:
    """`reduce_by_key` of the operation of this name."""
    given, _ = expect_keys(name, "keys", keys)
    n = given.shape[0]
    columns = given.replaced(map(whole_axes, given.arrays)) if isinstance(given, Columns) else None
    given = whole_axes(given) if columns is None else columns.run_keys()
    size = static_size(name, "size", size)
    leaves, unflatten = flatten_values(name, "values", values, n, "keys")
    values, load = mapped(name, item_map, unflatten(leaves), count, "values", axis_name)
    index_dtype(name, "keys", n)
    live = count_operand(name, "count", count, n)

    over_devices = axis_name is not None and n > 0
    if over_devices:
        expect_one_array(name, columns)
        heads, firsts, runs = over_axis("segments.run_heads", name, axis_name, given, live, size=size)
    else:
        heads, firsts, covered, runs = _run_heads(keys=given, count=live, size=size)
        covered = covered.reshape(1)
    used = live_mask(size, runs.reshape(1))
    if columns is not None:
        firsts = columns.structure([_firsts(x, heads) for x in columns.arrays])

    def keep(x: jax.Array, filler: int) -> jax.Array:
        return jnp.where(used.reshape(size, *[1] * (x.ndim - 1)), x, jnp.asarray(filler, x.dtype))

    def reduce_over_axis(op: Any, x: Any) -> Any:
        reduced = over_axis("reductions.segmented_reduce", name, axis_name, op, x, n, heads, live)
        return jax.tree.map(lambda x: x[:size], reduced)

    def reduce_leaf(leaf: jax.Array) -> jax.Array:
        leaf = expect_key(name, "values", leaf)
        if over_devices:
            return keep(reduce_over_axis(kind, leaf), -1 if kind.gives_index else 0)
        reduced = _segmented_reduce(x=leaf, heads=heads, count=covered, op=kind)[0]
        # past the runs there are empty segments
        identity_fills = kind == Kind.ADD or kind.gives_index
        return reduced if identity_fills else keep(reduced, 0)

    if callable(op):
        operator, values, _, restore = custom(name, op, values, None, argument="values", commutative=commutative)
        if over_devices:
            reduced = reduce_over_axis(operator, values)
        elif n:
            reduced = segmented_reduce_by_function(name, operator, values, n, heads, covered, load)
        else:
            reduced = jax.tree.map(_none_of(size), values)
        reduced = restore(jax.tree.map(lambda x: keep(x, 0), reduced))
    else:
        kind = operator_kind(name, op, None)
        reduced = jax.tree.map(reduce_leaf, values)
    return firsts, reduced, room(name, runs, size)


def _none_of(size: int) -> Callable[[jax.Array], jax.Array]:
    return lambda x: jax.lax.full_like(x, 0, shape=(size, *x.shape[1:]))  # varies under shard_map as x does


def _reduce_shapes(x: Any, *, op: int) -> Sequence[Any]:
    return [jax.ShapeDtypeStruct((), result_dtype("reduce", op, x))]


def _reduce_fallback(x: jax.Array, count: jax.Array, *, op: int) -> Sequence[jax.Array]:
    results = scan_results(builtin(op, x.dtype), x, x.shape[0], ABSENT, count, exclusive=0, reverse=0, total=1)
    return [results[1].astype(result_dtype("reduce", op, x))]


def _reduce_jvp(primals: Any, tangents: Any, *, op: int) -> tuple[Any, Any]:
    def reduced(x: jax.Array, op: int) -> jax.Array:
        return _reduce.run(primals._replace(x=x), op=op)[0]

    tangent = _tangent(primals.x, tangents.x, ABSENT, primals.count, Kind(op), reduced)
    return _reduce.run(primals, op=op), [tangent]


def _reduce_transpose(cotangents: Sequence[Any], operands: Any, *, op: int) -> jax.Array:
    del op
    _expect_indices(operands.x, ABSENT)
    return jnp.where(live_mask(operands.x.shape[0], operands.count), cotangents[0], 0)


def _segmented_shapes(x: Any, heads: Any, *, op: int) -> Sequence[Any]:
    return [jax.ShapeDtypeStruct(heads.shape, result_dtype("segmented_reduce", op, x))]


def _segmented_fallback(x: jax.Array, heads: jax.Array, count: jax.Array, *, op: int) -> Sequence[jax.Array]:
    results = segmented_results(builtin(op, x.dtype), x, x.shape[0], heads, count)
    return [results.astype(result_dtype("segmented_reduce", op, x))]


def _segmented_jvp(primals: Any, tangents: Any, *, op: int) -> tuple[Any, Any]:
    def reduced(x: jax.Array, op: int) -> jax.Array:
        return _segmented_reduce.run(primals._replace(x=x), op=op)[0]

    tangent = _tangent(primals.x, tangents.x, primals.heads, primals.count, Kind(op), reduced)
    return _segmented_reduce.run(primals, op=op), [tangent]


def _segmented_transpose(cotangents: Sequence[Any], operands: Any, *, op: int) -> jax.Array:
    """Each item gets the cotangent of its segment."""
    del op
    x, heads, count = operands
    (n,) = x.shape
    _expect_indices(x, heads)
    marks = jnp.zeros((n,), heads.dtype).at[heads_inside(heads, n)].add(1, mode="drop")
    segments = _scan(x=marks, op=Kind.ADD, exclusive=False, reverse=False, total=False)[0] - 1
    return jnp.where(live_mask(n, count), take_or_fill(cotangents[0], segments, tangents=True), 0)


def _run_heads_shapes(keys: Any, *, size: int) -> Sequence[Any]:
    index = index_dtype("reduce_by_key", "keys", keys.shape[0])
    scalar = jax.ShapeDtypeStruct((), index)
    return [jax.ShapeDtypeStruct((size,), index), jax.ShapeDtypeStruct((size,), keys.dtype), scalar, scalar]


def _run_heads_fallback(keys: jax.Array, count: jax.Array, *, size: int) -> Sequence[jax.Array]:
    (n,) = keys.shape
    dtype = index_dtype("reduce_by_key", "keys", n)
    positions = jnp.arange(n, dtype=dtype)
    (classes,) = ordered_together(keys)
    is_head = ((classes != jnp.roll(classes, 1)) | (positions == 0)) & live_mask(n, count)
    runs = jnp.sum(is_head, dtype=dtype)
    slots = jnp.where(is_head, jnp.cumsum(is_head, dtype=dtype) - 1, size + 1)
    heads = jnp.full((size + 1,), n, dtype).at[slots].set(positions, mode="drop")
    covered = jnp.minimum(heads[size], live_items(n, count))
    return [heads[:size], _firsts(keys, heads[:size]), covered, runs]


def _run_heads_jvp(primals: Any, tangents: Any, *, size: int) -> tuple[Any, Any]:
    results = _run_heads.run(primals, size=size)
    firsts = None if tangents.keys is None else _firsts(tangents.keys, results[0], tangents=True)
    return results, [None, firsts, None, None]


def _firsts(keys: jax.Array, heads: jax.Array, *, tangents: bool = False) -> jax.Array:
    return take_or_fill(keys, jnp.where(heads < keys.shape[0], heads, -1), tangents=tangents)


def _tangent(
    x: jax.Array,
    dx: jax.Array | None,
    heads: Any,
    count: Any,
    kind: Kind,
    reduced: Callable[..., jax.Array],
) -> jax.Array | None:
    """The tangent of a reduction, `reduced(x, op=...)`."""
    if dx is None or kind.gives_index:
        return None
    if kind == Kind.ADD:
        return reduced(dx, op=kind)
    if kind == Kind.MUL:
        # each item's partial derivative is the product of the others, right where items are zero
        wide = x.astype(accumulator_dtype(x.dtype))
        before, after = (
            _scan(x=wide, heads=heads, count=count, op=kind, exclusive=True, reverse=reverse, total=False)[0]
            for reverse in (False, True)
        )
        return reduced(before * after * dx.astype(wide.dtype), op=Kind.ADD).astype(dx.dtype)
    _expect_indices(x, heads)
    return take_or_fill(dx, reduced(x, op=kind.index_of), tangents=True)


def _expect_indices(x: Any, heads: Any) -> None:
    """A derivative may need the indices of items where the reduction itself does not."""
    index_dtype(f"derivative of {'segmented_reduce' if heads.size else 'reduce'}", "x", x.shape[0])


_reduce = Operation(
    "reduce",
    operands={"x": 1, "count": 1},
    results=("result",),
    attributes={"op": Kind},
    shapes=_reduce_shapes,
    fallback=_reduce_fallback,
    streamed=("x",),
)
_reduce.def_jvp(_reduce_jvp)
_reduce.def_transpose("x", _reduce_transpose)

_segmented_reduce = Operation(
    "segmented_reduce",
    operands={"x": 1, "heads": 1, "count": 1},
    results=("result",),
    attributes={"op": Kind},
    shapes=_segmented_shapes,
    fallback=_segmented_fallback,
    streamed=("x",),
    columns="x",
)
_segmented_reduce.def_jvp(_segmented_jvp)
_segmented_reduce.def_transpose("x", _segmented_transpose)

_run_heads = Operation(
    "run_heads",
    operands={"keys": 1, "count": 1},
    results=("heads", "firsts", "covered", "runs"),
    attributes={"size": int},
    shapes=_run_heads_shapes,
    fallback=_run_heads_fallback,
    streamed=("keys",),
)
_run_heads.def_jvp(_run_heads_jvp)
