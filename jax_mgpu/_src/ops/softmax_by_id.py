"""Softmax over the items of each id, in any order."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.annotations import ArrayLike, Pytree
from jax_mgpu._src.arguments.check import describe, index_vector, static_size, value_error
from jax_mgpu._src.arguments.segments import Groups, group_operands
from jax_mgpu._src.arguments.values import take_or_fill, take_rows
from jax_mgpu._src.core.compat import whole_axes
from jax_mgpu._src.core.operation import ABSENT, jit_eager
from jax_mgpu._src.functions.operators import Kind, select
from jax_mgpu._src.ops.gather import gather, scatter
from jax_mgpu._src.ops.reduce_by_id import _has_id, _reduce_by_id
from jax_mgpu._src.ops.segmented_softmax import expect_floats, softmax_rows, softmax_tangents, widened

__all__ = ["log_softmax_by_id", "softmax_by_id"]


@jit_eager("size")
def softmax_by_id(x: ArrayLike, ids: ArrayLike | Groups, size: int) -> jax.Array:
    """The softmax over the items of each id, in any order.

    Use it for attention over edges in any order; `segmented_softmax` is for items sorted by id.

    Args:
      x: `[n, …]`, floats; each trailing position has a softmax of its own.
      ids: `[n]`, integers: the id of each item. An item whose id is negative, or not below `size`, belongs to none. Or
        the `Groups` of such ids.
      size: the static number of ids.

    Returns:
      `[n, …]`, of the type of `x`: non-negative numbers whose sum over each id with items is 1; 0 for an item without
      an id.
      float16 and bfloat16 are computed in float32.

    Raises:
      TypeError: `x` does not hold floats of 16 to 64 bits, ids are not integers, or `size` is not static.
      ValueError: an argument's shape is not one of the above; a size that is negative; 2^31 items or more without
        `jax_enable_x64`.

    Sums are those of `reduce_by_id`, the same in every run. There are derivatives of any order; items without an id
    have none. With ids, a call takes the time of two calls of `reduce_by_id`, for a maximum and a sum, and of two
    gathers.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.softmax_by_id(jnp.array([1.0, 2.0, 1.0, 2.0, 9.0]), jnp.array([3, 0, 3, 0, -1]), 4)
      Array([0.5, 0.5, 0.5, 0.5, 0. ], dtype=float32)
    """
    return _normalize("softmax_by_id", x, ids, size, log=False)


@jit_eager("size")
def log_softmax_by_id(x: ArrayLike, ids: ArrayLike | Groups, size: int) -> jax.Array:
    """The logarithm of `softmax_by_id`: precise where the softmax is small.

    Args:
      x: see `softmax_by_id`.
      ids: see `softmax_by_id`.
      size: see `softmax_by_id`.

    Returns:
      `[n, …]`, of the type of `x`; 0 for an item without an id.

    Raises:
      TypeError: as `softmax_by_id`.
      ValueError: as `softmax_by_id`.

    For derivatives and time, see `softmax_by_id`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.log_softmax_by_id(jnp.array([1.0, 5.0, 1.0]), jnp.array([2, 0, 2]), 3)
      Array([-0.6931472,  0.       , -0.6931472], dtype=float32)
    """
    return _normalize("log_softmax_by_id", x, ids, size, log=True)


def _normalize(name: str, x: Pytree, ids: ArrayLike | Groups, size: int, *, log: bool) -> jax.Array:
    x, size = expect_floats(name, x), static_size(name, "size", size)
    n = x.shape[0]
    if isinstance(ids, Groups):
        return _of_groups(x, group_operands(name, ids, n, size), log=log)
    ids = whole_axes(index_vector(name, "ids", ids, size))
    if ids.shape[0] != n:
        raise value_error(name, "ids", f"one id for each of {n} items of x", describe(ids))
    if x.size == 0 or size == 0:
        return jnp.zeros_like(x)
    # A compiled function may close over NumPy arrays, which jax.custom_jvp refuses; a copy is a JAX array.
    rows = jnp.copy(whole_axes(x)).reshape(n, -1)
    has_id = jnp.broadcast_to(_has_id(ids, ABSENT, size)[:, None], rows.shape)
    results = _softmax(select(has_id, rows, jnp.zeros_like(rows)), jnp.copy(ids), size, log)
    return select(has_id, results, jnp.zeros_like(rows)).reshape(x.shape)


def _of_groups(x: jax.Array, groups: tuple[jax.Array, jax.Array, jax.Array], *, log: bool) -> jax.Array:
    """Computes the softmax of items in the order of their ids, and moves it back to the items."""
    order, heads, count = groups
    if x.size == 0 or heads.size == 0:
        return jnp.zeros_like(x)
    rows = take_rows(whole_axes(x).reshape(x.shape[0], -1), order)
    return scatter(softmax_rows(rows, heads, count, log=log), order, x.shape[0]).reshape(x.shape)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _softmax(x: jax.Array, ids: jax.Array, size: int, log: bool) -> jax.Array:
    wide = widened(x)
    shifted = wide - _per_item(wide, ids, size, Kind.MAX)
    powers = jnp.exp(shifted)
    sums = _sums(powers, ids, size)
    return (shifted - jnp.log(sums) if log else powers / sums).astype(x.dtype)


@_softmax.defjvp
def _softmax_jvp(
    size: int, log: bool, primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    x, ids = primals
    y, tangent = _softmax(widened(x), ids, size, log), widened(tangents[0])
    moved = softmax_tangents(y, tangent, lambda rows: _per_item(rows, ids, size, Kind.ADD), log=log)
    return y.astype(x.dtype), moved.astype(x.dtype)


def _per_item(rows: jax.Array, ids: jax.Array, size: int, op: Kind) -> jax.Array:
    """Returns the combination of all rows of each item's id; 0 for items without one."""
    return gather(_reduce_by_id(x=rows, ids=ids, op=op, wide=False, size=size)[0], ids)


def _sums(powers: jax.Array, ids: jax.Array, size: int) -> jax.Array:
    """Returns, for each item, the sum over its id; 1 for items without an id."""
    sums = _reduce_by_id(x=powers, ids=ids, op=Kind.ADD, wide=False, size=size)[0]
    return take_or_fill(sums, ids, jnp.ones((1,), sums.dtype))
