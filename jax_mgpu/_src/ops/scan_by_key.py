"""Scans that restart at each run of equal keys."""

from __future__ import annotations

from typing import Any

import jax

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import (
    ArrayLike,
    AxisName,
    DTypeLike,
    ItemFunction,
    Keys,
    OperatorTree,
    PairFunction,
    Pytree,
)
from jax_mgpu._src.arguments.check import count_operand, expect_leading_axis, index_dtype
from jax_mgpu._src.arguments.counts import count_of
from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.core.operation import jit_eager
from jax_mgpu._src.keys.columns import run_keys, whole_keys
from jax_mgpu._src.mesh import over_axis
from jax_mgpu._src.ops.reduce import _run_heads
from jax_mgpu._src.ops.scan import Scan, run_scan

__all__ = ["scan_by_key"]


@jit_eager("op", "exclusive", "reverse", "commutative", "map", "emit", "dtype")
def scan_by_key(
    keys: Keys,
    x: Pytree,
    op: OperatorTree | PairFunction = "add",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    count: ArrayLike | None = None,
    identity: Pytree = None,
    initial: Pytree = None,
    map: ItemFunction | None = None,
    emit: ItemFunction | None = None,
    dtype: DTypeLike | None = None,
    commutative: bool = False,
    axis_name: AxisName | None = None,
) -> Any:
    """Scans each run of equal neighbouring keys on its own.

    Args:
      keys: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits; not necessarily sorted. All NaNs are equal, and
        so are the zeros. Or columns: a tuple of 1 to 8 such arrays.
      x: see `scan`.
      op: see `scan`.
      exclusive: see `scan`; each run's first result is the identity, or `initial`.
      reverse: scan each run from its end.
      count: see `scan`.
      identity: see `scan`.
      initial: see `scan`; each run begins with it.
      map: see `scan`.
      emit: see `scan`.
      dtype: see `scan`.
      commutative: see `scan`.
      axis_name: see `scan`; a run may lie on several devices. Columns may have up to 64 bits in all.

    Returns:
      An array `[n, ...]` for each array of x.

    Raises:
      TypeError: as `scan`.
      ValueError: as `scan`; also if the numbers of keys and items differ, and for 2^31 items or more without
        `jax_enable_x64`.

    Time is O(n): one pass over the keys finds the heads of the runs, and `segmented_scan` does the rest.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.scan_by_key(jnp.array([7, 7, 2, 7]), jnp.array([1, 2, 3, 4]))
      Array([1, 3, 3, 4], dtype=int32)
    """
    name = "scan_by_key"
    given = run_keys(whole_keys(name, "keys", keys, axis_name))
    n = given.shape[0]
    expect_leading_axis(name, "x", jax.tree.leaves(x), n, "keys")
    index_dtype(name, "keys", n)
    live = count_operand(name, "count", count, n)
    if axis_name is not None and n > 0:
        heads = over_axis(mesh.segments.run_heads, name, axis_name, given, live, size=n)[0]
    else:
        heads = _run_heads(keys=given, count=live, size=n)[0]
    asked = Scan(
        name=name, op=op, exclusive=exclusive, reverse=reverse, identity=identity, initial=initial, map=map, emit=emit,
        dtype=dtype, commutative=commutative, axis_name=axis_name,
    )  # fmt: skip
    with by_construction():
        return run_scan(asked, x, heads, None, count_of(live))
