"""Load-balancing search: finds the object that each work item belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import ArrayLike, Aval, AxisName
from jax_mgpu._src.arguments.check import count_operand, index_dtype, index_vector, static_flag, static_size
from jax_mgpu._src.arguments.counts import live_mask, wide_enough
from jax_mgpu._src.arguments.preconditions import non_decreasing
from jax_mgpu._src.arguments.values import fill_missing
from jax_mgpu._src.core.operation import Operation, jit_eager
from jax_mgpu._src.keys.bits import where
from jax_mgpu._src.mesh import devices_of, over_axis

__all__ = ["load_balance_search"]


@overload
def load_balance_search(
    offsets: ArrayLike,
    size: int,
    *,
    total: ArrayLike | None = None,
    return_rank: Literal[False] = False,
    fill_value: ArrayLike = -1,
    axis_name: AxisName | None = None,
) -> jax.Array: ...
@overload
def load_balance_search(
    offsets: ArrayLike,
    size: int,
    *,
    total: ArrayLike | None = None,
    return_rank: Literal[True],
    fill_value: ArrayLike = -1,
    axis_name: AxisName | None = None,
) -> tuple[jax.Array, jax.Array]: ...
@overload
def load_balance_search(
    offsets: ArrayLike,
    size: int,
    *,
    total: ArrayLike | None = None,
    return_rank: bool,
    fill_value: ArrayLike = -1,
    axis_name: AxisName | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]: ...
@jit_eager("size", "return_rank")
def load_balance_search(
    offsets: ArrayLike,
    size: int,
    *,
    total: ArrayLike | None = None,
    return_rank: bool = False,
    fill_value: ArrayLike = -1,
    axis_name: AxisName | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Finds the object that each work item belongs to.

    Each object owns a run of work items. Item `i` belongs to the last object whose run starts at `i` or before.

    Args:
      offsets: `[m]`, non-decreasing integers: the first work item of each object, which is the exclusive scan of the
        objects' work counts. Objects without work are allowed anywhere.
      size: the static number of results.
      total: the number of work items, an integer scalar (default `size`).
      return_rank: whether to return each item's position within its object too.
      fill_value: the value of results past `total`, and of items before the first object, an integer scalar. With `m`,
        JAX's indexing drops or fills these results; -1 would index the last object.
      axis_name: search the objects of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`.
        Offsets and `total` count items over all devices. Each device gets `size` results, and objects are numbered over
        all devices, `m` on each.

    Returns:
      `[size]` indices into `offsets`, or with `return_rank` a pair: the indices and the ranks. int32, or int64 if
      `size` or `m` reaches 2^31.

    Raises:
      TypeError: offsets or total are not integers, or `size` is not static.
      ValueError: an argument's shape is not one of the above, or int64 results without `jax_enable_x64`.

    Time is O(size + m): tiles of results find their objects by a binary search each, and share them by a scan. The
    search is moderngpu's (Baxter, 2013).

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.load_balance_search(jnp.array([0, 2, 7, 10, 10]), 12, total=11)
      Array([ 0,  0,  1,  1,  1,  1,  1,  2,  2,  2,  4, -1], dtype=int32)
    """
    name = "load_balance_search"
    size = static_size(name, "size", size)
    slots = size * devices_of(name, axis_name)
    offsets = non_decreasing(name, "offsets", index_vector(name, "offsets", offsets, slots))
    index_dtype(name, "size", size, offsets.shape[0])
    return_rank = static_flag(name, "return_rank", return_rank)
    total = count_operand(name, "total", total, slots)
    if axis_name is not None and offsets.shape[0]:
        searched = over_axis(mesh.intervals.load_balance_search, name, axis_name, offsets, total, size=size)
        results = searched[: 1 + return_rank]
    else:
        results = _search(offsets=offsets, total=total, size=size, return_rank=return_rank)
    results = [fill_missing(name, x, fill_value) for x in results]
    return (results[0], results[1]) if return_rank else results[0]


def find_objects(offsets: jax.Array, total: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Searches in plain JAX; objects and ranks are -1 if there is none."""
    dtype = index_dtype("load_balance_search", "size", size, offsets.shape[0])
    items = jnp.arange(size, dtype=dtype)
    if offsets.shape[0] == 0:
        return jnp.full_like(items, -1), jnp.full_like(items, -1)
    offsets = wide_enough(offsets, size)
    objects = jnp.searchsorted(offsets, items.astype(offsets.dtype), side="right").astype(dtype) - 1
    live = live_mask(size, total) & (objects >= 0)
    ranks = items - offsets[jnp.maximum(objects, 0)].astype(dtype)
    return where(live, objects, -1), where(live, ranks, -1)


def _shapes(offsets: Aval, *, size: int, return_rank: int) -> Sequence[Any]:
    dtype = index_dtype("load_balance_search", "size", size, offsets.shape[0])
    return [jax.ShapeDtypeStruct((size,), dtype)] * (1 + return_rank)


def _fallback(offsets: jax.Array, total: jax.Array, *, size: int, return_rank: int) -> Sequence[jax.Array]:
    return find_objects(offsets, total, size)[: 1 + return_rank]


_search = Operation(
    "load_balance_search",
    operands={"offsets": 1, "total": 1},
    results=("objects", "ranks"),
    attributes={"size": int, "return_rank": bool},
    shapes=_shapes,
    fallback=_fallback,
)
_search.def_linear()
