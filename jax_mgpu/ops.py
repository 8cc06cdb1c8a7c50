"""Functions of `jax.ops` and jraph on rows by segment: the same signatures and results, on kernels of this package.

Ids may come in any order. Sums of floats by the kernels have the same bits in every run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as _jnp
import numpy as _np

import jax_mgpu as _mgpu
from jax_mgpu._src.drop_in import NEVER, Call, is_array, is_key, item_count, like
from jax_mgpu.numpy import take

__all__ = [
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_normalize",
    "segment_prod",
    "segment_softmax",
    "segment_sum",
    "segment_variance",
]

F = TypeVar("F", bound=Callable[..., Any])

# The modes in which JAX drops ids outside of `[0, num_segments)`.
DROPPING = None, "fill", "drop", jax.lax.GatherScatterMode.FILL_OR_DROP


def _reduced(call: Call, op: Any) -> Callable[[], Any] | None:
    """Returns a program that combines the rows of segments, or None."""
    data, ids, number = call.data, call.segment_ids, call.num_segments
    if call.bucket_size is not None or call.mode not in DROPPING or getattr(call, "out_sharding", None) is not None:
        return None
    if not isinstance(number, int | _np.integer) or number < 0 or not is_key(data) or data.ndim == 0:
        return None
    if not is_array(ids) or not _jnp.issubdtype(ids.dtype, _jnp.integer):
        return None
    if ids.shape != data.shape[:1]:
        return None
    if op in _IDENTITIES and _jnp.issubdtype(data.dtype, _jnp.floating):
        return lambda: _extremum(data, ids, int(number), op)
    return lambda: _mgpu.reduce_by_id(data, ids, int(number), op).astype(data.dtype)


_IDENTITIES = {"max": -_np.inf, "min": _np.inf}


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _extremum(data: jax.Array, ids: jax.Array, number: int, op: Any) -> jax.Array:
    result: jax.Array = _mgpu.reduce_by_id(data, ids, number, op)
    return result


@_extremum.defjvp
def _extremum_jvp(number: int, op: Any, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """As in JAX, a result has the mean of the tangents of all items equal to it, the identity included."""
    data, ids = primals
    result = _extremum(data, ids, number, op)
    is_equal = data == _mgpu.take(result, ids)
    share = 1 / _mgpu.reduce_by_id(is_equal.astype(data.dtype), ids, number, "add")
    share = _jnp.where(result == _IDENTITIES[op], 1 / (1 / share + 1), share)
    moved = _jnp.where(is_equal, tangents[0] * _mgpu.take(share, ids), _jnp.zeros_like(data))
    return result, _mgpu.reduce_by_id(moved, ids, number, "add")


def _counted(function: str) -> tuple[str, Callable[[Call], Any]]:
    """Returns the argument `unsized` of `like` for a function whose segments end with the largest id."""

    def now(call: Call) -> Any:
        if not is_array(call.segment_ids) or call.segment_ids.size == 0:
            return None
        number = int(_np.max(call.segment_ids) + 1)  # as in JAX, the sum has the type of the ids
        return call.changed(num_segments=number).again(globals()[function])

    return "num_segments", now


def _freely_added(call: Call) -> int:
    """Returns the number of items; huge for floats, so that kernels on a GPU add them in a fixed order."""
    return item_count(call.data) if _jnp.issubdtype(call.data.dtype, _jnp.integer) else NEVER - 1


SMALL, PER_SEGMENT = 2**17, 32  # for fewer items, or fewer per segment, XLA's scatter may run on a GPU


def _added(call: Call) -> int:
    """Returns the number of items; less than SMALL for vectors of integers with few items per segment."""
    items, number = _freely_added(call), call.num_segments
    is_slow = call.data.ndim == 1 and items < 2**23 and isinstance(number, int) and items < PER_SEGMENT * number
    return min(items, SMALL - 1) if is_slow else items


def _by_segment(original: F, measure: Callable[[Call], int] | None = None) -> Callable[[Callable[[Call], Any]], F]:
    """Turns a plan into a function like one of `jax.ops`. On a CPU, XLA's scatter runs."""
    unsized = _counted(original.__name__)
    options: dict[str, Any] = {"min_items": NEVER, "min_items_on_gpu": SMALL, "measure": measure, "unsized": unsized}
    return like(original, "data", "segment_ids", **options)


@_by_segment(jax.ops.segment_sum, _added)
def segment_sum(call: Call) -> Any:
    """`jax.ops.segment_sum`, by the kernels of `jax_mgpu.reduce_by_id`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu.ops
      >>> jax_mgpu.ops.segment_sum(jnp.arange(5), jnp.array([0, 2, 0, -1, 2]), 3)
      Array([2, 0, 5], dtype=int32)
    """
    return _reduced(call, "add")


@_by_segment(jax.ops.segment_prod, _freely_added)
def segment_prod(call: Call) -> Any:
    """`jax.ops.segment_prod`, by the kernels of `jax_mgpu.reduce_by_id`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu.ops
      >>> jax_mgpu.ops.segment_prod(jnp.arange(5), jnp.array([0, 2, 0, -1, 2]), 3)
      Array([0, 1, 4], dtype=int32)
    """
    return _reduced(call, "mul")


@_by_segment(jax.ops.segment_max)
def segment_max(call: Call) -> Any:
    """`jax.ops.segment_max`, by the kernels of `jax_mgpu.reduce_by_id`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu.ops
      >>> jax_mgpu.ops.segment_max(jnp.arange(5.0), jnp.array([0, 2, 0, -1, 2]), 3)
      Array([  2., -inf,   4.], dtype=float32)
    """
    return _reduced(call, "max")


@_by_segment(jax.ops.segment_min)
def segment_min(call: Call) -> Any:
    """`jax.ops.segment_min`, by the kernels of `jax_mgpu.reduce_by_id`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu.ops
      >>> jax_mgpu.ops.segment_min(jnp.arange(5.0), jnp.array([0, 2, 0, -1, 2]), 3)
      Array([ 0., inf,  1.], dtype=float32)
    """
    return _reduced(call, "min")


def segment_mean(
    data: jax.Array,
    segment_ids: jax.Array,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> jax.Array:
    """The mean of each segment, like jraph's `segment_mean`; 0 for empty segments.

    Args:
      data: `[n, ...]`.
      segment_ids: `[n]` integers. Those outside of `[0, num_segments)` belong to no segment.
      num_segments: a static number; outside of `jit`, by default, one more than the largest id.
      indices_are_sorted: a promise that ids do not decrease.
      unique_indices: a promise that no id occurs twice.

    Returns:
      `[num_segments, ...]`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu.ops
      >>> jax_mgpu.ops.segment_mean(jnp.array([1.0, 2.0, 3.0]), jnp.array([0, 2, 0]), 3)
      Array([2., 0., 2.], dtype=float32)
    """
    given = num_segments, indices_are_sorted, unique_indices
    return segment_sum(data, segment_ids, *given) / _items(data, segment_ids, *given)


def segment_variance(
    data: jax.Array,
    segment_ids: jax.Array,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> jax.Array:
    """The variance of each segment, like jraph's `segment_variance`: divides by the number of items; 0 if empty.

    Args:
      data: see `segment_mean`.
      segment_ids: see `segment_mean`.
      num_segments: see `segment_mean`.
      indices_are_sorted: see `segment_mean`.
      unique_indices: see `segment_mean`.

    Returns:
      `[num_segments, ...]`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu.ops
      >>> jax_mgpu.ops.segment_variance(jnp.array([1.0, 2.0, 3.0]), jnp.array([0, 2, 0]), 3)
      Array([1., 0., 0.], dtype=float32)
    """
    given = num_segments, indices_are_sorted, unique_indices
    means = _of_items(segment_mean(data, segment_ids, *given), segment_ids)
    return segment_sum(_jnp.power(data - means, 2), segment_ids, *given) / _items(data, segment_ids, *given)


def segment_normalize(
    data: jax.Array,
    segment_ids: jax.Array,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    eps: float = 1e-8,
) -> jax.Array:
    """Items minus the mean of their segment, divided by its standard deviation, like jraph's `segment_normalize`.

    Args:
      data: see `segment_mean`.
      segment_ids: see `segment_mean`.
      num_segments: see `segment_mean`.
      indices_are_sorted: see `segment_mean`.
      unique_indices: see `segment_mean`.
      eps: the least variance; smaller ones count as this.

    Returns:
      An array of the shape of `data`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu.ops
      >>> jax_mgpu.ops.segment_normalize(jnp.array([1.0, 2.0, 3.0]), jnp.array([0, 1, 0]), 2)
      Array([-1.,  0.,  1.], dtype=float32)
    """
    given = num_segments, indices_are_sorted, unique_indices
    means = _of_items(segment_mean(data, segment_ids, *given), segment_ids)
    variances = _of_items(segment_variance(data, segment_ids, *given), segment_ids)
    return (data - means) * jax.lax.rsqrt(_jnp.maximum(variances, _jnp.array(eps, dtype=variances.dtype)))


def segment_softmax(
    logits: jax.Array,
    segment_ids: jax.Array,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> jax.Array:
    """The softmax over each segment, like jraph's `segment_softmax`.

    Args:
      logits: `[n, ...]`.
      segment_ids: see `segment_mean`.
      num_segments: see `segment_mean`.
      indices_are_sorted: see `segment_mean`.
      unique_indices: see `segment_mean`.

    Returns:
      An array of the shape of `logits`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu.ops
      >>> jax_mgpu.ops.segment_softmax(jnp.zeros(4), jnp.array([0, 1, 0, 1]), 2)
      Array([0.5, 0.5, 0.5, 0.5], dtype=float32)
    """
    given = num_segments, indices_are_sorted, unique_indices
    powers = _jnp.exp(logits - _of_items(segment_max(logits, segment_ids, *given), segment_ids))
    return powers / _of_items(segment_sum(powers, segment_ids, *given), segment_ids)


def _of_items(x: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """`x[segment_ids]`, whose derivative adds items in a fixed order."""
    number, ids = x.shape[0], _jnp.asarray(segment_ids)
    if number == 0:
        return x[segment_ids]
    if _jnp.issubdtype(ids.dtype, _jnp.unsignedinteger) and ids.dtype.itemsize >= 4:
        ids = _jnp.minimum(ids, _np.asarray(number, ids.dtype))  # else large ones would become negative
    ids = ids.astype(jax.dtypes.canonicalize_dtype(int))
    ids = _jnp.where(ids < 0, ids + number, ids)
    rows = take(x, _jnp.clip(ids, 0, number - 1), axis=0)
    is_inside = ((ids >= 0) & (ids < number)).reshape(ids.shape + (1,) * (x.ndim - 1))
    return _jnp.where(is_inside, rows, jax.lax.stop_gradient(rows))  # as in JAX, others get rows without a derivative


def _items(data: jax.Array, segment_ids: jax.Array, *given: Any) -> jax.Array:
    """Returns the number of items of each segment, at least one, in the type of the data."""
    ones = _jnp.ones(_np.shape(segment_ids), _jnp.result_type(data))
    counts = _jnp.maximum(segment_sum(ones, segment_ids, *given), _jnp.ones((), ones.dtype))
    return counts.reshape(counts.shape + (1,) * (_np.ndim(data) - 1))
