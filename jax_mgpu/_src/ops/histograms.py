"""Counting: how often each id occurs, and how many items lie between edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import ArrayLike, AxisName
from jax_mgpu._src.arguments.check import (
    describe,
    expect_key,
    expect_same_dtype,
    index_dtype,
    index_vector,
    static_size,
    value_error,
)
from jax_mgpu._src.arguments.preconditions import by_construction, sorted_keys
from jax_mgpu._src.core.compat import whole_axes
from jax_mgpu._src.core.operation import ABSENT, Operation, jit_eager
from jax_mgpu._src.functions.operators import Kind, sum_dtype
from jax_mgpu._src.mesh import devices_of, over_axis
from jax_mgpu._src.ops.reduce_by_id import _reduce_by_id
from jax_mgpu._src.ops.sort import run_sort
from jax_mgpu._src.ops.sort_primitives import Method
from jax_mgpu._src.ops.sorted_search import _search

__all__ = ["bincount", "histogram"]


@jit_eager("length")
def bincount(
    ids: ArrayLike, length: int, weights: ArrayLike | None = None, *, axis_name: AxisName | None = None
) -> jax.Array:
    """How often each id occurs, or the sum of its weights, as `jnp.bincount`.

    Args:
      ids: `[n]` integers. One outside of 0 to `length - 1` is not counted.
      length: the static number of results.
      weights: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits: what each item counts (default 1).
      axis_name: see `reduce_by_id`: each device has `length` of the results.

    Returns:
      `[length]`: numbers of items, int32 (int64 from 2^31 items on), or sums of the weights: of their type, or, of
      integers, that of `jnp.sum`.

    Raises:
      TypeError: ids are not integers, weights are not numbers, or `length` is not static.
      ValueError: an argument's shape is not one of the above; 2^31 items or more without `jax_enable_x64`.

    Sums of floats have the same bits in every run, and take the time of `reduce_by_id`. Linear in `weights`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.bincount(jnp.array([2, 0, 2, 7]), 4)
      Array([1, 0, 2, 0], dtype=int32)
    """
    name = "bincount"
    length = static_size(name, "length", length)
    devices = devices_of(name, axis_name)
    ids = whole_axes(index_vector(name, "ids", ids, length * devices))
    n = ids.shape[0]
    dtype = index_dtype(name, "ids", n * devices)
    index_dtype(name, "length", length * devices)
    if weights is None and axis_name is not None:
        weights = jnp.ones((n,), dtype)
    if weights is None:
        return _count_bins(x=ids, bins=length)[0]
    weights = whole_axes(expect_key(name, "weights", weights))
    if weights.shape[0] != n:
        raise value_error(name, "weights", f"one for each of ids, {n}", describe(weights))
    if jnp.issubdtype(weights.dtype, jnp.integer):
        weights = weights.astype(sum_dtype(weights.dtype))
    if axis_name is not None:
        operands = Kind.ADD, weights[:, None], ids, ABSENT
        return over_axis(mesh.ids.reduce_by_id, name, axis_name, *operands, size=length)[:, 0].astype(weights.dtype)
    ids = _inside(ids, length)
    if jnp.issubdtype(weights.dtype, jnp.integer):
        return jnp.zeros((length,), weights.dtype).at[ids].add(weights, mode="drop")
    return _reduce_by_id(x=weights[:, None], ids=ids, op=Kind.ADD, wide=False, size=length)[0][:, 0]


@jit_eager()
def histogram(x: ArrayLike, edges: ArrayLike, *, axis_name: AxisName | None = None) -> tuple[jax.Array, jax.Array]:
    """How many items lie between each two neighbouring edges, as `jnp.histogram`.

    Args:
      x: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits.
      edges: `[m]`, sorted, of the same dtype, at least two. A bin has its lower edge and not its upper one; the last
        bin has both.
      axis_name: count the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`. All
        devices have the same edges, and get the same numbers.

    Returns:
      `(counts, edges)`: numbers of items, `[m - 1]`, int32 (int64 from 2^31 items on), and the edges. Items outside of
      the edges, and NaNs, are not counted.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape is not one of the above; 2^31 items or more without `jax_enable_x64`.

    O(n log m), in one pass over memory; on CUDA with 2,048 bins or more, the time of a sort.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.histogram(jnp.array([0.5, 1.0, 2.0, 9.0]), jnp.array([0.0, 1.0, 2.0]))[0]
      Array([1, 2], dtype=int32)
    """
    name = "histogram"
    x = whole_axes(expect_key(name, "x", x))
    edges = whole_axes(sorted_keys(name, "edges", expect_key(name, "edges", edges), ABSENT))
    expect_same_dtype(name, "x", x, "edges", edges)
    if edges.shape[0] < 2:
        raise value_error(name, "edges", "two at least", edges.shape[0])
    dtype = index_dtype(name, "x", x.shape[0] * devices_of(name, axis_name))
    numbers = _count_bins(x=x, edges=edges, bins=edges.shape[0] - 1)[0]
    return numbers if axis_name is None else jax.lax.psum(numbers.astype(dtype), axis_name), edges


def _inside(ids: jax.Array, length: int) -> jax.Array:
    """Ids, with `length` for each that is outside of what is counted."""
    return jnp.where((ids >= 0) & (ids < length), ids, length)


class _CountBins(Operation):
    """Counts in bins; CUDA's kernels take as many bins as a block has room for."""

    def prefers_xla(self, operands: Sequence[Any], attributes: Mapping[str, int], platform: str, devices: int) -> bool:
        """Whether the kernels do not take so many bins."""
        most = CUDA_MOST_BINS_BETWEEN_EDGES if operands[1].size else CUDA_MOST_BINS
        return platform == "cuda" and attributes["bins"] > most


# kMostCountedBins and kMostCountedEdges of ffi/cuda/policy.h.
CUDA_MOST_BINS = 12_288
CUDA_MOST_BINS_BETWEEN_EDGES = 2047


def _count_shapes(x: Any, *, bins: int) -> Sequence[Any]:
    return [jax.ShapeDtypeStruct((bins,), index_dtype("count_bins", "x", x.shape[0]))]


def _count_fallback(x: jax.Array, edges: jax.Array, *, bins: int) -> Sequence[jax.Array]:
    if edges.shape[0] == 0:
        dtype = index_dtype("count_bins", "x", x.shape[0])
        return [jnp.zeros((bins,), dtype).at[_inside(x, bins)].add(1, mode="drop")]
    with by_construction():
        keys = run_sort("histogram", x, ABSENT, ABSENT, None, descending=False, count=None, method=Method.FASTEST)
    before, through = (
        _search(needles=edges, haystack=keys, needles_count=ABSENT, haystack_count=ABSENT, right=right)[0]
        for right in (False, True)
    )
    last = jnp.where(jnp.isnan(edges[-1:]), before[-1:], through[-1:])
    return [jnp.diff(jnp.concatenate([before[:-1], last]))]


def _count_jvp(primals: Any, tangents: Any, **attributes: int) -> tuple[Any, Any]:
    return _count_bins.run(primals, **attributes), [None]


_count_bins = _CountBins(
    "count_bins",
    operands={"x": 1, "edges": 1},
    results=("counts",),
    attributes={"bins": int},
    shapes=_count_shapes,
    fallback=_count_fallback,
)
_count_bins.def_jvp(_count_jvp)
