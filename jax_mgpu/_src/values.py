"""What a sort or a merge carries along with its keys.

A kernel moves one payload of 4 or 8 bytes an item. A single vector of such items travels as it is; anything else (a
pytree, rows, other widths) is fetched after the sort, by the sorted indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.check import describe, expect_leading_axis, type_error, value_error
from jax_mgpu._src.compat import rows_sharding

__all__ = [
    "NO_PAYLOAD",
    "PAYLOAD_GIVEN",
    "PAYLOAD_INDICES",
    "carried_leaf",
    "flatten_pair",
    "flatten_values",
    "ordered_integers",
    "sort_operands",
    "take_from_pair",
    "take_moved",
    "take_or_zero",
    "take_rows",
]

# The attribute `payload` of the kernels.
NO_PAYLOAD, PAYLOAD_GIVEN, PAYLOAD_INDICES = 0, 1, 2


def flatten_values(
    operation: str, argument: str, values: Any, length: int, of: str
) -> tuple[list[jax.Array], Callable[[Sequence[jax.Array]], Any]]:
    """The leaves of a values pytree, checked, and the function that puts new leaves in their places."""
    structure: Any
    leaves, structure = jax.tree.flatten(values)
    return expect_leading_axis(operation, argument, leaves, length, of), structure.unflatten


def flatten_pair(
    operation: str, a_values: Any, b_values: Any, a_length: int, b_length: int
) -> tuple[list[jax.Array], list[jax.Array], Callable[[Sequence[jax.Array]], Any]]:
    """The leaves of the values of A and of B, checked to be alike, and the function that puts leaves in place."""
    if (a_values is None) != (b_values is None):
        raise value_error(operation, "a_values and b_values", "both or neither", "one of them")
    a_leaves, unflatten = flatten_values(operation, "a_values", a_values, a_length, "a")
    b_leaves, _ = flatten_values(operation, "b_values", b_values, b_length, "b")
    structures: Any = (jax.tree.structure(a_values), jax.tree.structure(b_values))
    if structures[0] != structures[1]:
        raise value_error(operation, "b_values", f"the structure of a_values, {structures[0]}", structures[1])
    for a, b in zip(a_leaves, b_leaves, strict=True):
        if a.dtype != b.dtype:
            raise type_error(operation, "b_values", f"the dtypes of a_values, {describe(a)}", describe(b))
        if a.shape[1:] != b.shape[1:]:
            raise value_error(operation, "b_values", f"the trailing shapes of a_values, {describe(a)}", describe(b))
    return a_leaves, b_leaves, unflatten


def carried_leaf(leaves: Sequence[jax.Array]) -> jax.Array | None:
    """The leaf that a kernel can carry itself, if the pytree is just that."""
    if len(leaves) == 1 and leaves[0].ndim == 1 and leaves[0].dtype.itemsize in (4, 8):
        return leaves[0]
    return None


def take_rows(x: jax.Array, indices: jax.Array) -> jax.Array:
    """Rows of x by a permutation, or a part of one."""
    return x.at[indices].get(mode="promise_in_bounds", unique_indices=True, out_sharding=rows_sharding(x))


def take_moved(x: jax.Array | None, indices: jax.Array) -> jax.Array | None:
    """Rows of a tangent that may be zero (None)."""
    return None if x is None else take_rows(x, indices)


def take_from_pair(
    a: jax.Array | None,
    b: jax.Array | None,
    indices: jax.Array,
    a_length: int,
    fill: jax.Array | None = None,
    *,
    tangents: bool = False,
) -> Any:
    """Rows of A and B by indices into their concatenation, each used once at most; the fill element, `[1]`, at -1.

    Both are read in place: no concatenation is written. What is None is zero: the tangent of any of the three. With
    `tangents` all three are tangents, and the function one that JAX can transpose.
    """

    def rows(x: jax.Array | None, inside: jax.Array, position: jax.Array) -> jax.Array | None:
        if x is None or x.shape[0] == 0:
            return None
        taken = x.at[jnp.where(inside, position, x.shape[0])].get(
            mode="fill", fill_value=0, unique_indices=True, out_sharding=rows_sharding(x)
        )
        return jnp.where(_along(inside, x), taken, jnp.zeros((), x.dtype))

    def take(indices: jax.Array, a: jax.Array | None, b: jax.Array | None, fill: jax.Array | None) -> jax.Array:
        from_b = indices >= a_length
        a_rows = rows(a, (indices >= 0) & ~from_b, indices)
        b_rows = rows(b, from_b, indices - a_length)
        if a_rows is None or b_rows is None:
            like = next(x for x in (a, b, fill) if x is not None)
            taken = next((x for x in (a_rows, b_rows) if x is not None), None)
            taken = jnp.zeros((*indices.shape, *like.shape[1:]), like.dtype) if taken is None else taken
        else:
            taken = jnp.where(_along(from_b, a_rows), b_rows, a_rows)
        return taken if fill is None else jnp.where(_along(indices >= 0, taken), taken, fill)

    if a is None and b is None and fill is None:
        return None
    return take(indices, a, b, fill) if tangents else _keeping_bits(take, indices, a, b, fill)


def _along(mask: jax.Array, rows: jax.Array) -> jax.Array:
    """A mask of rows, of the rank of the rows."""
    return mask.reshape(-1, *[1] * (rows.ndim - 1))


def take_or_zero(x: jax.Array, indices: jax.Array, *, tangents: bool = False) -> jax.Array:
    """The items at the indices, 0 at index -1; `tangents` as for `take_from_pair`."""

    def take(indices: jax.Array, x: jax.Array) -> jax.Array:
        taken = x.at[jnp.maximum(indices, 0)].get(mode="promise_in_bounds")
        return jnp.where(indices < 0, jnp.zeros((), x.dtype), taken)

    if x.shape[0] == 0:
        return jnp.zeros(indices.shape, x.dtype)
    return take(indices, x) if tangents else _keeping_bits(take, indices, x)


def _keeping_bits(take: Callable[..., jax.Array], indices: jax.Array, *arrays: Any) -> jax.Array:
    """`take(indices, *arrays)`, which is linear in the arrays (or None) and moves their items, to the bit.

    XLA's CPU code selects among floats of less than 32 bits by way of float32, where a signalling NaN turns quiet. So
    such floats are taken as integers, and their tangents, whose linearity that would hide, as they are.
    """
    dtype = jax.tree.leaves(arrays)[0].dtype
    if not jnp.issubdtype(dtype, jnp.floating) or jnp.finfo(dtype).bits not in (8, 16):
        return take(indices, *arrays)
    word = jnp.dtype(f"uint{jnp.finfo(dtype).bits}")

    @jax.custom_jvp
    def take_bits(indices: jax.Array, *arrays: Any) -> jax.Array:
        bits = jax.tree.map(lambda x: jax.lax.bitcast_convert_type(x, word), arrays)
        return jax.lax.bitcast_convert_type(take(indices, *bits), dtype)

    @take_bits.defjvp
    def _(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
        return take_bits(*primals), take(primals[0], *tangents[1:])

    return take_bits(indices, *arrays)


def ordered_integers(keys: jax.Array) -> jax.Array:
    """Integers in the order of the keys: of floats, the bits, with one code for all NaNs and one for the zeros."""
    if not jnp.issubdtype(keys.dtype, jnp.floating):
        return keys
    keys = jnp.where(jnp.isnan(keys), jnp.array(jnp.nan, keys.dtype), jnp.where(keys == 0, jnp.zeros_like(keys), keys))
    bits = jax.lax.bitcast_convert_type(keys, jnp.dtype(f"int{8 * keys.dtype.itemsize}"))
    return jnp.where(bits < 0, bits ^ jnp.iinfo(bits.dtype).max, bits)


def sort_operands(keys: jax.Array, descending: int) -> tuple[jax.Array, ...]:
    """Operands of lax.sort whose ascending, stable order is the order asked for."""
    if not descending:
        return (keys,)
    if jnp.issubdtype(keys.dtype, jnp.floating):
        return (~jnp.isnan(keys), -keys)  # NaN first, ahead of +inf
    return (~keys,)
