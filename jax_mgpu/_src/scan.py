"""Scans: every prefix of an array, or of each segment of a ragged one, combined by an associative operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.annotations import ArrayLike, AxisName, ItemFunction, OperatorName, PairFunction
from jax_mgpu._src.by_function import scan_by_function, scan_mapped
from jax_mgpu._src.check import count_operand, expect_key, index_dtype, index_vector, static_flag
from jax_mgpu._src.live import live_mask
from jax_mgpu._src.mapped import mapped
from jax_mgpu._src.mesh import over_axis
from jax_mgpu._src.operators import (
    Kind,
    Operator,
    accumulator_dtype,
    builtin,
    custom,
    operator_kind,
    result_dtype,
    scan_results,
)
from jax_mgpu._src.preconditions import non_decreasing
from jax_mgpu._src.primitive import ABSENT, Operation, one_program
from jax_mgpu._src.values import take_or_fill

__all__ = ["scan", "segmented_scan"]


@one_program("op", "exclusive", "reverse", "return_total", "commutative")
def scan(
    x: Any,
    op: OperatorName | PairFunction = "add",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    count: ArrayLike | None = None,
    return_total: bool = False,
    identity: Any = None,
    map: ItemFunction | None = None,
    commutative: bool = False,
    axis_name: AxisName | None = None,
) -> Any:
    """Combines all items up to each position.

    Args:
      x: `[n]`, integers or floats of 8 to 64 bits; with a function as `op`, a pytree of arrays with leading axis `n`.
      op: `"add"`, `"mul"`, `"min"`, `"max"`, `"argmin"`, `"argmax"`, or any associative function of two items, which
        need not commute. Integers wrap; float16 and bfloat16 accumulate in float32; a NaN makes a minimum or maximum
        NaN; argmin and argmax give the index of the first extremum, -1 over nothing.
      exclusive: leave out the position's own item; the first result is the identity.
      reverse: scan from the end; the same as flipping x and the result. A function of two items gets what lies further
        to the end first.
      count: the number of live items, an integer scalar (default `n`). Items past it are not read, and their results
        are 0 (-1 for indices).
      return_total: also return the combination of all live items.
      identity: the identity of a function `op`, a pytree like one item: needed for an exclusive scan, and for a total
        that may be over nothing.
      map: a function of an item, or of an item and its position, that gives what `op` is to combine, of another
        structure and dtype if need be; x is then any pytree of arrays with leading axis `n`. The CUDA kernels evaluate
        it as they load an item. Over a mesh axis, positions are those in the global array.
      commutative: a promise that a function `op` commutes, which may be faster.
      axis_name: scan the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`.

    Returns:
      An array of `n`, or `(array, total)`: of the type of x, or of indices (int32; int64 from 2^31 items on). Over a
      mesh axis, indices are those in the global array, and the total is the same on all devices.

    Raises:
      TypeError: an argument's dtype or structure is not one of the above.
      ValueError: an argument's shape is not one of the above, `op` is not known, or `identity` is missing; indices into
        2^31 items or more without `jax_enable_x64`.

    Time is O(n). The kernels read and write memory once (decoupled look-back, Merrill and Garland, 2016, here with a
    fixed tree of sums, so that float results are the same in every run). A function is compiled into those for CUDA;
    elsewhere, and where it cannot be compiled, it takes several passes over memory.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.scan(jnp.array([3, 1, 4, 1, 5]), exclusive=True)
      Array([0, 3, 4, 8, 9], dtype=int32)
    """
    given = (identity, map, commutative, axis_name)
    return _run("scan", x, ABSENT, op, exclusive, reverse, count, return_total, *given)


@one_program("op", "exclusive", "reverse", "commutative")
def segmented_scan(
    x: Any,
    heads: ArrayLike,
    op: OperatorName | PairFunction = "add",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    count: ArrayLike | None = None,
    identity: Any = None,
    map: ItemFunction | None = None,
    commutative: bool = False,
    axis_name: AxisName | None = None,
) -> Any:
    """Scans each segment of `x` on its own.

    Args:
      x: see `scan`.
      heads: `[m]`, non-decreasing integers: the start positions of the segments. Position 0 starts a segment whether
        listed or not; a repeated head is an empty segment; a head past the last item is padding.
      op: see `scan`.
      exclusive: see `scan`; each segment's first result is the identity.
      reverse: scan each segment from its end.
      count: see `scan`.
      identity: see `scan`.
      map: see `scan`.
      commutative: see `scan`.
      axis_name: see `scan`. A device's heads are those of the segments that start among its own items, counted from the
        first of these; a segment goes on over the devices that follow, up to the next head.

    Returns:
      An array of `n`; indices count from the start of x, or of the global array.

    Raises:
      TypeError: as `scan`.
      ValueError: as `scan`.

    Time is O(n + m), whatever the lengths of the segments; source as `scan`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.segmented_scan(jnp.array([3, 1, 4, 1, 5]), jnp.array([0, 2]))
      Array([ 3,  4,  4,  5, 10], dtype=int32)
    """
    given = (identity, map, commutative, axis_name)
    return _run("segmented_scan", x, heads, op, exclusive, reverse, count, False, *given)


def _run(
    name: str,
    x: Any,
    heads: Any,
    op: Any,
    exclusive: bool,
    reverse: bool,
    count: Any,
    return_total: bool,
    identity: Any,
    item_map: Any,
    commutative: bool,
    axis_name: Any,
) -> Any:
    exclusive, reverse = static_flag(name, "exclusive", exclusive), static_flag(name, "reverse", reverse)
    return_total = static_flag(name, "return_total", return_total)

    def needs_identity(n: int) -> str | None:
        if return_total and (count is not None or n == 0):
            return "a total that may be over nothing"
        return "an exclusive scan" if exclusive else None

    x, load = mapped(name, item_map, x, count, axis_name=axis_name)
    if callable(op):
        operator, x, n, restore = custom(name, op, x, identity, needs_identity, commutative=commutative)
    else:
        kind = operator_kind(name, op, identity)
        x = expect_key(name, "x", x)
        n = x.shape[0]
        result_dtype(name, kind, x)
    heads = ABSENT if heads is ABSENT else non_decreasing(name, "heads", index_vector(name, "heads", heads, n))
    count = count_operand(name, "count", count, n)
    flags = {"exclusive": exclusive, "reverse": reverse, "total": return_total}
    if axis_name is not None:
        segments = () if heads is ABSENT else (heads,)
        given = operator if callable(op) else kind
        results = over_axis(f"reductions.{name}", name, axis_name, given, x, n, *segments, count, **flags)
        results = [restore(states) for states in results] if callable(op) else results
    elif callable(op):
        results = [restore(states) for states in scan_by_function(name, operator, x, n, heads, count, load, **flags)]
    else:
        results = scan_mapped(name, kind, x, heads, count, load, **flags)
        results = _scan(x=x, heads=heads, count=count, op=kind, **flags) if results is None else results
    return tuple(results) if return_total else results[0]


def _shapes(x: Any, *, op: int, total: int) -> Sequence[Any]:
    dtype = result_dtype("scan", op, x)
    scanned = jax.ShapeDtypeStruct(x.shape, dtype)
    return [scanned, jax.ShapeDtypeStruct((), dtype)] if total else [scanned]


def _fallback(x: jax.Array, heads: jax.Array, count: jax.Array, *, op: int, **flags: int) -> Sequence[jax.Array]:
    results = scan_results(builtin(op, x.dtype), x, x.shape[0], heads, count, **flags)
    return [result.astype(result_dtype("scan", op, x)) for result in results]


def _jvp(primals: Any, tangents: Any, *, op: int, **flags: int) -> tuple[Any, Any]:
    dx = tangents.x
    kind = Kind(op)
    results = _scan.run(primals, op=op, **flags)
    if kind.gives_index or dx is None:
        return results, [None] * len(results)
    if kind == Kind.ADD:
        return results, _scan.run(primals._replace(x=dx), op=op, **flags)
    _expect_indices(primals.x, primals.heads)
    if kind == Kind.MUL:
        return results, _product_tangents(primals.x, dx, primals.heads, primals.count, **flags)
    indices = _scan.run(primals, op=kind.index_of, **flags)
    return results, [take_or_fill(dx, i, tangents=True) for i in indices]


def _expect_indices(x: Any, heads: Any) -> None:
    """A derivative may need the indices of items where the scan itself does not."""
    index_dtype(f"derivative of {'segmented_scan' if heads.size else 'scan'}", "x", x.shape[0])


def _product_tangents(
    x: jax.Array, dx: jax.Array, heads: jax.Array, count: jax.Array, *, exclusive: int, reverse: int, total: int
) -> Sequence[jax.Array]:
    """Tangents of a scan of products, right where items are zero.

    y[i] = x[i] y[i - 1] has the tangent dy[i] = x[i] dy[i - 1] + y[i - 1] dx[i], a scan of affine maps.
    """
    wide = accumulator_dtype(x.dtype)
    is_live = live_mask(x.shape[0], count)
    x = jnp.where(is_live, x, 0).astype(wide)
    dx = jnp.where(is_live, dx, 0)
    before = _scan(x=x, heads=heads, count=count, op=Kind.MUL, exclusive=True, reverse=reverse, total=False)[0]
    affine = Operator(
        extract=lambda maps, positions: maps,
        combine=lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]),
        finish=lambda maps: maps[1].astype(dx.dtype),
        identity=(jnp.ones((), wide), jnp.zeros((), wide)),
    )
    maps = (x, before * dx.astype(wide))
    return scan_results(affine, maps, x.shape[0], heads, count, exclusive=exclusive, reverse=reverse, total=total)


def _transpose(
    cotangents: Sequence[Any], operands: Any, *, op: int, exclusive: int, reverse: int, total: int
) -> jax.Array:
    """A scan of sums adds each item to what follows it, so its transpose is the scan the other way."""
    del total
    x = operands.x
    result = jnp.zeros(x.shape, x.dtype)
    if cotangents[0] is not None:
        backwards = operands._replace(x=cotangents[0])
        (result,) = _scan.run(backwards, op=op, exclusive=exclusive, reverse=not reverse, total=False)
    if len(cotangents) > 1 and cotangents[1] is not None:
        _expect_indices(x, operands.heads)
        result = result + jnp.where(live_mask(x.shape[0], operands.count), cotangents[1], 0)
    return result


_scan = Operation(
    "scan",
    operands={"x": 1, "heads": 1, "count": 1},
    results=("result", "totals"),
    attributes={"op": Kind, "exclusive": bool, "reverse": bool, "total": bool},
    shapes=_shapes,
    fallback=_fallback,
    streamed=("x",),
)
_scan.def_jvp(_jvp)
_scan.def_transpose("x", _transpose)
