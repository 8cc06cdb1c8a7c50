"""Routing of a mixture of experts: dispatches tokens, and combines experts' outputs per token.

Both gather rows. Without weights, each is the transpose of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import ArrayLike, Operands
from jax_mgpu._src.arguments.check import as_array, describe, index_array, index_dtype, static_size, value_error
from jax_mgpu._src.arguments.counts import wide_enough
from jax_mgpu._src.arguments.preconditions import by_construction, distinct_rows
from jax_mgpu._src.arguments.rows import RowForm
from jax_mgpu._src.core.compat import known_size, whole_axes
from jax_mgpu._src.core.operation import ABSENT, Operation, jit_eager
from jax_mgpu._src.functions.operators import wide_dtype
from jax_mgpu._src.ops.argsorted import Ordered
from jax_mgpu._src.ops.gather import gather
from jax_mgpu._src.ops.intervals import interval_gather
from jax_mgpu._src.ops.reduce_by_id import _order_of_ids
from jax_mgpu._src.ops.segmented_softmax import expect_floats
from jax_mgpu._src.ops.segments import Segments

__all__ = ["Dispatched", "combine", "dispatch"]

NO_WEIGHTS = np.zeros((0, 0), np.int32)  # absent weights: `ABSENT` has one axis, weights have two


class Dispatched(NamedTuple):
    """The result of `dispatch`.

    Attributes:
      rows: `[n * slots, ...]`, the tokens of each expert one after the other; 0 past the last.
      segments: `Segments` of the rows, one for each expert.
      back: the position in `rows` of each token's slot, of the shape of `experts`; -1 if the expert is out of range.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> routed = mgpu.dispatch(jnp.array([5.0, 7.0]), jnp.array([[2, 0], [0, 9]]), 3)
      >>> routed.rows, routed.segments.lengths
      (Array([5., 7., 5., 0.], dtype=float32), Array([2, 0, 1], dtype=int32))
      >>> routed.back
      Array([[ 2,  0],
             [ 1, -1]], dtype=int32)
    """

    rows: jax.Array
    segments: Segments
    back: jax.Array


@jit_eager("number")
def dispatch(x: ArrayLike, experts: ArrayLike, number: int) -> Dispatched:
    """Brings each token to the experts that it chose.

    There is no capacity: only slots with experts out of range are dropped.

    Args:
      x: `[n, ...]`, any dtype: a row for each token.
      experts: `[n, slots]`, or `[n]` for one slot, integers: the experts of each token. A number that is negative, or
        not below `number`, means none.
      number: the static number of experts.

    Returns: A `Dispatched`. Its `rows`, of the type of x, are one row per slot, ordered by expert, then token, then
      slot. Its `segments` are the rows of each expert: `segments.lengths` are the group sizes of `jax.lax.ragged_dot`.
      `combine` takes its `back`.

    Raises:
      TypeError: experts are not integers, or `number` is not static.
      ValueError: an argument's shape is not one of the above; 2^31 slots or more without `jax_enable_x64`.

    The result is linear in `x`. The transpose adds the slots of a token in their order, in float32 or wider, without a
    sort. A call takes the time of a sort of small numbers and of a gather.

    Example:
      >>> import jax, jax.numpy as jnp, jax_mgpu as mgpu
      >>> x, experts = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[1, 0], [1, -1]])
      >>> matrices = jnp.array([jnp.eye(2), 10 * jnp.eye(2)])
      >>> routed = mgpu.dispatch(x, experts, 2)
      >>> made = jax.lax.ragged_dot(routed.rows, matrices, routed.segments.lengths)
      >>> mgpu.combine(made, routed.back, jnp.array([[0.5, 0.5], [1.0, 0.0]]))
      Array([[ 5.5,  0. ],
             [ 0. , 10. ]], dtype=float32)
    """
    name = "dispatch"
    number = static_size(name, "number", number)
    experts = whole_axes(index_array(name, "experts", experts, number))
    if experts.ndim not in (1, 2):
        raise value_error(name, "experts", "one or more experts for each token, [n] or [n, slots]", describe(experts))
    form, rows = RowForm.packed(name, "x", x)
    rows = whole_axes(rows)
    if rows.shape[0] != experts.shape[0]:
        raise value_error(name, "x", f"a row for each of {experts.shape[0]} tokens", describe(as_array(name, "x", x)))
    slots = experts.size // max(experts.shape[0], 1)
    index = index_dtype(name, "experts", experts.size)
    order, bounds = _order_of_ids(experts.reshape(-1), ABSENT, number)
    order, places = order.astype(index), jnp.arange(known_size(experts.size), dtype=index)
    back = Ordered(None, order, ABSENT).to_rows(jnp.where(places < bounds[-1], places, -1))
    tokens = jnp.where(places < bounds[-1], order // max(slots, 1), -1)
    rows = _spread(x=rows, tokens=tokens, back=back.reshape(-1, max(slots, 1)), count=bounds[-1:])[0]
    with by_construction():
        segments = Segments.from_offsets(bounds)
    return Dispatched(form.unpack(rows), segments, back.reshape(experts.shape))


@jit_eager()
def combine(rows: ArrayLike, back: ArrayLike, weights: ArrayLike) -> jax.Array:
    """Adds up the experts' outputs for each token, weighted by slot.

    Args:
      rows: `[size, ...]`, floats: a row for each row of `Dispatched`.
      back: `[n, slots]` or `[n]`, integers: the row of each slot. A row occurs at most once. An index that is negative,
        or not below `size`, adds nothing.
      weights: floats, of the shape of back.

    Returns: `[n, ...]`, of the type of rows: for each token the sum over its slots, in their order, of the weight times
      the row, computed in float32 or wider.

    Raises:
      TypeError: rows or weights are not floats of 16 to 64 bits, or back are not integers.
      ValueError: an argument's shape is not one of the above; 2^31 rows or more without `jax_enable_x64`.

    The result is linear in rows and in weights. The transpose is a gather for rows, and a dot of rows for weights. A
    call takes the time of a gather.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> rows, back = jnp.array([[1.0], [2.0], [4.0]]), jnp.array([[2, 0], [1, -1]])
      >>> mgpu.combine(rows, back, jnp.array([[0.5, 1.0], [3.0, 9.0]]))
      Array([[3.],
             [6.]], dtype=float32)
    """
    name = "combine"
    rows = expect_floats(name, rows, "rows")
    back = whole_axes(index_array(name, "back", back, rows.shape[0]))
    if back.ndim not in (1, 2):
        raise value_error(name, "back", "the row for each slot, [n] or [n, slots]", describe(back))
    if back.size:  # in a batch over an Explicit axis, JAX 0.11 cannot reshape empty arrays
        back = distinct_rows(name, "back", back.reshape(-1), rows.shape[0]).reshape(back.shape)
    weights = expect_floats(name, weights, "weights")
    if weights.shape != back.shape:
        raise value_error(name, "weights", f"the shape of back, {list(back.shape)}", describe(weights))
    n, slots = back.shape[0], back.size // max(back.shape[0], 1)
    shape = (n, *rows.shape[1:])
    if rows.size == 0 or back.size == 0:
        return jnp.zeros(shape, rows.dtype)
    table = whole_axes(rows).reshape(rows.shape[0], -1)
    pairs = {"back": back.reshape(n, slots), "weights": whole_axes(weights).reshape(n, slots)}
    return _combine(rows=table, **pairs)[0].reshape(shape)


# ---- Rows of tokens: a gather, whose transpose adds the slots of each token ------------------------------------------


def _spread_fallback(x: jax.Array, tokens: jax.Array, count: jax.Array) -> Sequence[jax.Array]:
    if not count.size:
        return [gather(x, tokens)]
    (size,) = tokens.shape
    with by_construction():
        return [interval_gather(x, tokens, jnp.arange(size, dtype=tokens.dtype), size, total=count[0])]


def _spread_transpose(cotangents: Sequence[Any], operands: Operands) -> jax.Array:
    return _combine(rows=cotangents[0], back=operands.back, weights=NO_WEIGHTS)[0]


_spread = Operation(
    "spread",
    operands={"x": 2, "tokens": 1, "back": 2, "count": 1},
    results=("rows",),
    shapes=lambda x, tokens: [jax.ShapeDtypeStruct((*tokens.shape, x.shape[1]), x.dtype)],
    fallback=_spread_fallback,
    only="",
)
_spread.def_linear(x=_spread_transpose)


# ---- Sums of slots ---------------------------------------------------------------------------------------------------


def _combine_fallback(rows: jax.Array, back: jax.Array, weights: jax.Array) -> Sequence[jax.Array]:
    exact = wide_dtype(rows.dtype)
    sums = jnp.zeros((back.shape[0], rows.shape[1]), exact)
    for slot in range(back.shape[1]):
        row = gather(rows, back[:, slot]).astype(exact)
        if weights.size:
            inside = (back[:, slot] >= 0) & (wide_enough(back[:, slot], rows.shape[0]) < rows.shape[0])
            row = row * jnp.where(inside, weights[:, slot].astype(exact), 0)[:, None]
        sums = sums + row
    return [sums.astype(rows.dtype)]


def _combine_transpose_rows(cotangents: Sequence[Any], operands: Operands) -> jax.Array:
    """Returns, for each row, the cotangent of its token times the weight of its slot."""
    rows, back, weights = operands
    size, slots = rows.shape[0], back.shape[1]
    index = index_dtype("combine", "back", max(size, back.size))
    inside = (back >= 0) & (wide_enough(back, size) < size)
    at = jnp.where(inside, wide_enough(back, size), size).reshape(-1)
    slot = jnp.full((size,), -1, index).at[at].set(jnp.arange(back.size, dtype=index), mode="drop", unique_indices=True)
    tokens = jnp.where(slot >= 0, slot // slots, -1)
    moved = _spread(x=cotangents[0], tokens=tokens, back=back)[0]
    if weights.size:
        exact = wide_dtype(rows.dtype)
        factors = gather(weights.reshape(-1), slot, unique=True).astype(exact)
        moved = (moved.astype(exact) * factors[:, None]).astype(rows.dtype)
    return moved


def _combine_transpose_weights(cotangents: Sequence[Any], operands: Operands) -> jax.Array:
    """Returns, for each weight, the dot of its row and the cotangent of its token."""
    rows, back, weights = operands
    exact = wide_dtype(rows.dtype)
    products = gather(rows, back, unique=True).astype(exact) * cotangents[0].astype(exact)[:, None]
    result: jax.Array = products.sum(axis=-1).astype(weights.dtype)
    return result


_combine = Operation(
    "combine",
    operands={"rows": 2, "back": 2, "weights": 2},
    results=("result",),
    shapes=lambda rows, back: [jax.ShapeDtypeStruct((back.shape[0], rows.shape[1]), rows.dtype)],
    fallback=_combine_fallback,
    only="",
)
_combine.def_linear(rows=_combine_transpose_rows, weights=_combine_transpose_weights)
