"""`bincount` and `histogram`: the occurrences of each id, and the items in each bin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import ArrayLike, AxisName
from jax_mgpu._src.arguments.check import (
    describe,
    expect_key,
    expect_same_dtype,
    fill_operand,
    index_dtype,
    index_vector,
    static_size,
    value_error,
)
from jax_mgpu._src.arguments.preconditions import by_construction, sorted_keys
from jax_mgpu._src.arguments.renamed import renamed
from jax_mgpu._src.core.compat import whole_axes
from jax_mgpu._src.core.operation import ABSENT, Operation, jit_eager
from jax_mgpu._src.functions.operators import Kind, accumulator_dtype, sum_dtype
from jax_mgpu._src.keys.bits import ordered_integers, where
from jax_mgpu._src.mesh import devices_of, over_axis
from jax_mgpu._src.ops.reduce import reduce
from jax_mgpu._src.ops.reduce_by_id import _reduce_by_id
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sorted_search import _search, search

__all__ = ["bincount", "histogram"]


@renamed(length="size")
@jit_eager("size")
def bincount(
    ids: ArrayLike, size: int, weights: ArrayLike | None = None, *, axis_name: AxisName | None = None
) -> jax.Array:
    """The number of occurrences of each id, or the sum of its weights, as in `jnp.bincount`.

    Args:
      ids: `[n]` integers. One outside of 0 to `size - 1` is not counted.
      size: the static number of results.
      weights: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits: the number that each item adds (default 1).
      axis_name: see `reduce_by_id`: each device has `size` of the results.

    Returns: `[size]`: numbers of items, int32 (int64 from 2^31 items on), or sums of the weights, in the type of the
      weights or, for integers of 8 and 16 bits, of `jnp.sum`.

    Raises:
      TypeError: ids are not integers, weights are not numbers, or `size` is not static.
      ValueError: an argument's shape is not one of the above; 2^31 items or more without `jax_enable_x64`.

    Sums of floats have the same bits in every run, and take the time of `reduce_by_id`. Results are linear in
    `weights`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.bincount(jnp.array([2, 0, 2, 7]), 4)
      Array([1, 0, 2, 0], dtype=int32)
    """
    name = "bincount"
    size = static_size(name, "size", size)
    devices = devices_of(name, axis_name)
    ids = whole_axes(index_vector(name, "ids", ids, size * devices))
    n = ids.shape[0]
    dtype = index_dtype(name, "ids", n * devices)
    index_dtype(name, "size", size * devices)
    if weights is None and axis_name is not None:
        weights = jnp.ones((n,), dtype)
    if weights is None:
        return _count_bins(x=ids, bins=size)[0]
    weights = _weights(name, weights, "ids", n)
    if axis_name is not None:
        operands = Kind.ADD, weights[:, None], ids, ABSENT
        return over_axis(mesh.ids.reduce_by_id, name, axis_name, *operands, size=size)[:, 0].astype(weights.dtype)
    return _sums(weights, ids, size)


def _weights(name: str, weights: ArrayLike, owner: str, n: int) -> jax.Array:
    weights = whole_axes(expect_key(name, "weights", weights))
    if weights.shape[0] != n:
        raise value_error(name, "weights", f"the length of {owner}, {n}", describe(weights))
    return weights.astype(sum_dtype(weights.dtype)) if jnp.issubdtype(weights.dtype, jnp.integer) else weights


def _sums(weights: jax.Array, ids: jax.Array, size: int) -> jax.Array:
    ids = _inside(ids, size)
    if jnp.issubdtype(weights.dtype, jnp.integer):
        return jnp.zeros((size,), weights.dtype).at[ids].add(weights, mode="drop")
    return _reduce_by_id(x=weights[:, None], ids=ids, op=Kind.ADD, wide=False, size=size)[0][:, 0]


@renamed(edges="bins")
def histogram(
    x: ArrayLike,
    bins: ArrayLike = 10,
    *,
    range: tuple[ArrayLike, ArrayLike] | None = None,
    weights: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The number of items in each bin, or the sum of their weights, as in `jnp.histogram`.

    Args:
      x: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits.
      bins: the edges, `[m]`, sorted, of the same dtype, at least two; or a static number, at least 1, of bins of equal
        width. A bin includes its lower edge but not its upper one; the last bin includes both.
      range: the lowest and the highest edge of a number of bins. By default these are the smallest and the largest
        item. If these are equal, the edges are 0.5 below and 0.5 above; without items, they are 0 and 1.
      weights: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits: what each item counts (default 1).
      axis_name: count the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`. All
        devices have the same edges, and get the same numbers.

    Returns: `(counts, edges)`. Counts are numbers of items, `[m - 1]`, int32 (int64 from 2^31 items on), or sums of the
      weights, as in `bincount`. Items outside of the edges, and NaNs, are not counted. Computed edges have the type of
      x or, for integers, JAX's default float. Without `range`, one NaN makes all edges NaN, and no item is counted.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape is not one of the above, or the host knows that the range is not finite or
        descends; 2^31 items or more without `jax_enable_x64`.

    Time is O(n log m), in one pass over memory; on CUDA with 2,048 bins or more, that of a sort. A number of bins
    without `range` takes two more passes. With `weights`, a call takes the time of `search` and `bincount`. Results are
    linear in `weights`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.histogram(jnp.array([0.5, 1.0, 2.0, 9.0]), jnp.array([0.0, 1.0, 2.0]))[0]
      Array([1, 2], dtype=int32)
      >>> mgpu.histogram(jnp.array([0.5, 1.0, 2.0, 9.0]), 2, range=(0, 2), weights=jnp.array([1.0, 0.5, 0.25, 8.0]))
      (Array([1.  , 0.75], dtype=float32), Array([0., 1., 2.], dtype=float32))
    """
    name = "histogram"
    if _is_number(bins):
        number = static_size(name, "bins", bins)
        if number == 0:
            raise value_error(name, "bins", "at least one", number)
        index_dtype(name, "bins", number)
        bounds = None if range is None else _range(range)
        return _between_even_edges(x, bounds, weights, size=number, axis_name=axis_name)
    if range is not None:
        raise value_error(name, "range", "None where bins are edges", repr(range))
    if weights is None and axis_name is None:
        return _between_edges(x, bins)
    return _between_edges(x, bins, weights, axis_name=axis_name)


def _range(bounds: Any) -> Any:
    """Returns the lowest and the highest edge, checked if the host knows them."""
    expected = "two finite numbers, the lower one first"
    if not isinstance(bounds, (tuple, list, np.ndarray, jax.Array)) or len(bounds) != 2:
        raise value_error("histogram", "range", expected, repr(bounds))
    low, high = bounds
    on_host = all(isinstance(bound, (int, float, np.integer, np.floating)) for bound in (low, high))
    if on_host and not (np.isfinite(low) and np.isfinite(high) and low <= high):
        raise value_error("histogram", "range", expected, repr(bounds))
    return low, high


def _is_number(bins: ArrayLike) -> bool:
    """Whether bins are a number."""
    try:
        return np.ndim(bins) == 0
    except ValueError:
        return False


@jit_eager("size")
def _between_even_edges(
    x: ArrayLike, bounds: Any, weights: ArrayLike | None, *, size: int, axis_name: AxisName | None = None
) -> tuple[jax.Array, jax.Array]:
    name = "histogram"
    x = whole_axes(expect_key(name, "x", x))
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    dtype = x.dtype if is_float else jnp.dtype(jax.dtypes.canonicalize_dtype(jnp.float64))
    if bounds is None:
        low, high = (reduce(x, op, axis_name=axis_name).astype(dtype) for op in ("min", "max"))
        low, high = where(low > high, 0, low), where(low > high, 1, high)
    else:
        low, high = (fill_operand(name, bound, dtype, "range")[0] for bound in bounds)
    half = where(low == high, 0.5, 0).astype(dtype)
    low, high, wide = low - half, high + half, accumulator_dtype(dtype)
    places = jnp.arange(size + 1)
    parts = places.astype(wide) / size  # the parts of jnp.linspace, which fails in a batch over an Explicit axis
    edges = low.astype(wide) * (1 - parts) + high.astype(wide) * parts
    # Bins narrower than the spacing of floats must not make edges descend.
    edges = where(places == size, high, jnp.minimum(jax.lax.cummax(edges.astype(dtype)), high))
    with by_construction():
        return _between_edges(x.astype(dtype), edges, weights, axis_name=axis_name)


@jit_eager()
def _between_edges(
    x: ArrayLike, edges: ArrayLike, weights: ArrayLike | None = None, *, axis_name: AxisName | None = None
) -> tuple[jax.Array, jax.Array]:
    name = "histogram"
    x = whole_axes(expect_key(name, "x", x))
    edges = whole_axes(sorted_keys(name, "bins", expect_key(name, "bins", edges), ABSENT))
    expect_same_dtype(name, "x", x, "bins", edges)
    size = edges.shape[0] - 1
    if size < 1:
        raise value_error(name, "bins", "at least two edges", edges.shape[0])
    dtype = index_dtype(name, "x", x.shape[0] * devices_of(name, axis_name))
    if weights is None:
        numbers = _count_bins(x=x, edges=edges, bins=size)[0]
        return numbers if axis_name is None else jax.lax.psum(numbers.astype(dtype), axis_name), edges
    weights = _weights(name, weights, "x", x.shape[0])
    with by_construction():
        places = search(x, edges, "right") - 1
        # Integers are compared, because XLA may flush subnormal floats.
        is_last = (ordered_integers(x) == ordered_integers(edges[-1:])) & (places == size)
        places = where(jnp.isnan(x), size, where(is_last, size - 1, places))
        sums = _sums(weights, places, size)
    return sums if axis_name is None else jax.lax.psum(sums, axis_name), edges


def _inside(ids: jax.Array, length: int) -> jax.Array:
    return where((ids >= 0) & (ids < length), ids, length)


class _CountBins(Operation):
    """Counts of items in bins."""

    def prefers_xla(self, operands: Sequence[Any], attributes: Mapping[str, int], platform: str, devices: int) -> bool:
        """Whether there are too many bins for the kernels."""
        max_bins = CUDA_MAX_BINS_BETWEEN_EDGES if operands[1].size else CUDA_MAX_BINS
        return platform == "cuda" and attributes["bins"] > max_bins


# kMaxNumberedBins of ffi/ops/count_bins/plan.h, and one less than kMaxCountedEdges.
CUDA_MAX_BINS = 2**31 - 1
CUDA_MAX_BINS_BETWEEN_EDGES = 2047


def _count_fallback(x: jax.Array, edges: jax.Array, *, bins: int) -> Sequence[jax.Array]:
    if edges.shape[0] == 0:
        dtype = index_dtype("count_bins", "x", x.shape[0])
        return [jnp.zeros((bins,), dtype).at[_inside(x, bins)].add(1, mode="drop")]
    with by_construction():
        keys = Sort("histogram", x).run()
    before, through = (
        _search(needles=edges, haystack=keys, needles_count=ABSENT, haystack_count=ABSENT, right=right)[0]
        for right in (False, True)
    )
    last = where(jnp.isnan(edges[-1:]), before[-1:], through[-1:])
    return [jnp.diff(jnp.concatenate([before[:-1], last]))]


_count_bins = _CountBins(
    "count_bins",
    operands={"x": 1, "edges": 1},
    results=("counts",),
    attributes={"bins": int},
    shapes=lambda x, bins: [jax.ShapeDtypeStruct((bins,), index_dtype("count_bins", "x", x.shape[0]))],
    fallback=_count_fallback,
)
_count_bins.def_linear()
