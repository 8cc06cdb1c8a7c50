"""Values that move with the keys of a sort or merge.

A kernel moves one payload of 4 or 8 bytes with each item: a vector of such items, or leaves packed into one (see
`_packed_bits`). Other values are gathered by the sorted indices.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import ArrayLike, Pytree
from jax_mgpu._src.arguments.check import describe, expect_leading_axis, host_array, type_error, value_error
from jax_mgpu._src.arguments.counts import wide_enough
from jax_mgpu._src.core.compat import flatten, stack
from jax_mgpu._src.core.eager import on_host
from jax_mgpu._src.keys.bits import (
    is_narrow_float,
    is_random_key,
    is_words,
    keeping_bits,
    of_words,
    where,
    words_of,
)
from jax_mgpu._src.keys.digits import WIDEST, WORD, Digit, code_digits, code_of, part
from jax_mgpu._src.ops.gather import gather


class Payload(enum.IntEnum):
    """The kernels' attribute `payload`: what moves with the keys."""

    NONE = 0
    GIVEN = 1
    INDICES = 2


def flatten_values(
    operation: str, argument: str, values: Pytree, length: int, owner: str
) -> tuple[list[jax.Array], Callable[[Sequence[jax.Array]], Any]]:
    """Returns the leaves, and the function that rebuilds the pytree from moved leaves."""
    leaves, structure = flatten(values)
    plain, restore = plain_leaves(expect_leading_axis(operation, argument, leaves, length, owner))
    return plain, lambda moved: structure.unflatten(restore(moved))


def plain_leaves(
    leaves: Sequence[jax.Array],
) -> tuple[list[jax.Array], Callable[[Sequence[jax.Array]], list[jax.Array]]]:
    """Returns leaves in which random keys are rows of words, and the function that makes the keys again."""
    kinds = [jax.random.key_impl(x) if is_random_key(x.dtype) else None for x in leaves]
    plain = [x if kind is None else jax.random.key_data(x) for x, kind in zip(leaves, kinds, strict=True)]

    def restore(moved: Sequence[jax.Array]) -> list[jax.Array]:
        pairs = zip(moved, kinds, strict=True)
        return [x if kind is None else jax.random.wrap_key_data(x, impl=kind) for x, kind in pairs]

    return plain, restore


def flatten_pair(
    operation: str, a_values: Pytree, b_values: Pytree, a_length: int, b_length: int
) -> tuple[list[jax.Array], list[jax.Array], Callable[[Sequence[jax.Array]], Any]]:
    """Returns the leaves of A's and B's values, which have equal forms, and the function that rebuilds them."""
    if (a_values is None) != (b_values is None):
        raise value_error(operation, "a_values and b_values", "both or neither", "one of them")
    structures: Any = (jax.tree.structure(a_values), jax.tree.structure(b_values))
    if structures[0] != structures[1]:
        raise value_error(operation, "b_values", f"the structure of a_values, {structures[0]}", structures[1])
    a_leaves = expect_leading_axis(operation, "a_values", jax.tree.leaves(a_values), a_length, "a")
    b_leaves = expect_leading_axis(operation, "b_values", jax.tree.leaves(b_values), b_length, "b")
    for a, b in zip(a_leaves, b_leaves, strict=True):
        if a.dtype != b.dtype:
            raise type_error(operation, "b_values", f"the dtypes of a_values, {describe(a)}", describe(b))
        if a.shape[1:] != b.shape[1:]:
            raise value_error(operation, "b_values", f"the trailing shapes of a_values, {describe(a)}", describe(b))
    a_plain, restore = plain_leaves(a_leaves)
    return a_plain, plain_leaves(b_leaves)[0], lambda moved: structures[0].unflatten(restore(moved))


def carried_leaf(leaves: Sequence[jax.Array]) -> jax.Array | None:
    """Returns the only leaf if a kernel can move it."""
    if len(leaves) == 1 and leaves[0].ndim == 1 and leaves[0].dtype.itemsize in (4, 8):
        return leaves[0]
    return None


def travel_with_keys(leaves: Sequence[Any]) -> bool:
    """Whether a kernel can move all leaves: a single one, or all packed."""
    return not leaves or carried_leaf(leaves) is not None or _packed_bits(leaves) > 0


def packed_rows(leaves: Sequence[jax.Array]) -> tuple[jax.Array, Callable[[jax.Array], list[jax.Array]]] | None:
    """Packs leaves into one vector of 4- or 8-byte items; also returns the inverse function.

    None if `_packed_bits` is 0.
    """
    bits, widths = _packed_bits(leaves), [_element_bits(x.dtype) for x in leaves]
    if bits == 0:
        return None

    def unpacked(packed: jax.Array) -> list[jax.Array]:
        digits, at, rows = code_digits(packed, bits), 0, []
        for x, width in zip(leaves, widths, strict=True):
            end = at + width * math.prod(x.shape[1:])
            columns = [part(digits, begin, width).astype(f"uint{width}") for begin in range(at, end, width)]
            rows.append(_of_columns(columns, x) if columns else x)
            at = end
        return rows

    columns = [(column, width) for x, width in zip(leaves, widths, strict=True) for column in _columns(x, width)]
    return code_of([Digit(column.astype(jnp.uint32), width) for column, width in columns], 0, bits), unpacked


def _packed_bits(leaves: Sequence[Any]) -> int:
    """Returns the bits of a packed item, 0 if leaves are not packed."""
    widths = [_element_bits(x.dtype) for x in leaves]
    row_bits = sum(width * math.prod(x.shape[1:]) for x, width in zip(leaves, widths, strict=True))
    if not 0 < row_bits <= WIDEST or not all(0 < width <= WORD for width in widths):
        return 0
    return WORD if row_bits <= WORD else WIDEST


def _element_bits(dtype: np.dtype) -> int:
    """Returns the bits of an element; 0 for types narrower than a byte, or neither numbers nor bools."""
    if dtype == jnp.bool_:
        return 8
    if not jnp.issubdtype(dtype, jnp.number):
        return 0
    limits = jnp.finfo(dtype) if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype)
    return 8 * dtype.itemsize if limits.bits >= 8 else 0


def _columns(x: jax.Array, width: int) -> list[jax.Array]:
    """Returns elements of `width` bits as columns of unsigned integers."""
    words = x.astype(jnp.uint8) if x.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(x, f"uint{width}")
    if x.ndim == 1:
        return [words]
    rows = words.reshape(x.shape[0], math.prod(x.shape[1:]))
    return [rows[:, i] for i in range(rows.shape[1])]


def _of_columns(columns: Sequence[jax.Array], like: jax.Array) -> jax.Array:
    words = columns[0] if like.ndim == 1 else stack(columns, axis=1).reshape(like.shape)
    return words != 0 if like.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(words, like.dtype)


def take_rows(x: jax.Array, indices: jax.Array) -> jax.Array:
    """Returns rows of x at distinct indices."""
    return gather(x, indices, unique=True, inside=True)


def take_keys(keys: jax.Array, indices: jax.Array) -> jax.Array:
    """Returns keys at distinct indices.

    Keys of two words move as integers: a gather that XLA splits over devices adds parts, which may flush subnormal
    floats.
    """
    if is_words(keys):
        return of_words(*(take_rows(words, indices) for words in words_of(keys)))
    return take_rows(keys, indices)


def take_moved(x: jax.Array | None, indices: jax.Array) -> jax.Array | None:
    """Returns rows of a tangent like `take_rows`; None is zero."""
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
    """Gathers rows of A followed by B.

    Each index occurs at most once, except for -1, which takes the fill element, `[1]`, or 0. A tangent may be None,
    which is zero. With `tangents`, A, B and the fill element are tangents, and JAX can transpose the function.
    """

    def rows(x: jax.Array | None, indices: jax.Array) -> jax.Array | None:
        return None if x is None or x.shape[0] == 0 else gather(x, indices, unique=True)

    def take(arrays: Any, indices: jax.Array) -> jax.Array:
        a, b, fill = arrays
        from_b = indices >= a_length
        a_rows, b_rows = rows(a, indices), rows(b, indices - a_length)  # 0 where the row belongs to the other array
        if a_rows is None or b_rows is None:
            like = next(x for x in (a, b, fill) if x is not None)
            taken = next((x for x in (a_rows, b_rows) if x is not None), None)
            taken = jax.lax.full_like(like, 0, shape=(*indices.shape, *like.shape[1:])) if taken is None else taken
        else:
            taken = where(_along(from_b, a_rows), b_rows, a_rows)
        return taken if fill is None else fill_rows(taken, fill, indices >= 0)

    if a is None and b is None and fill is None:
        return None
    return take((a, b, fill), indices) if tangents else keeping_bits(take, (a, b, fill), indices)


def _along(mask: jax.Array, rows: jax.Array) -> jax.Array:
    return mask.reshape(*mask.shape, *[1] * (rows.ndim - mask.ndim))


def take_or_fill(
    x: jax.Array,
    indices: jax.Array,
    fill: jax.Array | int | None = None,
    *,
    unique: bool = False,
    or_none: bool = False,
) -> jax.Array:
    """Returns rows of x at the indices; the fill element `[1]`, or 0, at indices outside of x such as -1.

    An int as `fill` works for integers and bools; floats get 0. `unique`: no row is taken twice, so the transpose
    scatters and adds none. `or_none`: indices outside of x are negative.
    """
    if fill is None or isinstance(fill, int):
        return gather(x, indices, unique=unique, fill=fill or 0)
    taken = gather(x, indices, unique=unique)
    inside = indices >= 0
    if not or_none:
        inside &= wide_enough(indices, x.shape[0]) < x.shape[0]
    return keeping_bits(lambda pair, inside: fill_rows(pair[0], pair[1], inside), (taken, fill), inside)


def fill_rows(rows: jax.Array, fill: jax.Array, inside: jax.Array) -> jax.Array:
    """Returns rows where `inside` holds, else the fill element, whose narrow cotangents are added in float32."""
    wide = jnp.float32 if is_narrow_float(fill.dtype) else fill.dtype
    element = fill.astype(wide).reshape(())
    return where(_along(inside, rows), rows.astype(wide), element).astype(rows.dtype)


def filled_behind(x: jax.Array, live: jax.Array, fill: jax.Array) -> jax.Array:
    """Returns live rows, followed by the fill element, `[1]`."""
    is_live = jnp.arange(x.shape[0], dtype=live.dtype) < live

    def filled(arrays: tuple[jax.Array, jax.Array]) -> jax.Array:
        return where(_along(is_live, arrays[0]), *arrays)

    return keeping_bits(filled, (x, fill))


def fill_missing(operation: str, indices: jax.Array, fill_value: ArrayLike) -> jax.Array:
    """Returns indices with the caller's fill value instead of -1."""
    if type(fill_value) is int and fill_value == -1:
        return indices
    fill = fill_value if isinstance(fill_value, jax.Array) else on_host(_index, fill_value, operation, indices.dtype)
    if fill.ndim != 0 or not jnp.issubdtype(fill.dtype, jnp.integer):
        raise type_error(operation, "fill_value", "an integer scalar", describe(fill_value))
    return where(indices < 0, fill.astype(indices.dtype), indices)


def _index(x: Any, operation: str, dtype: np.dtype) -> Any:
    fill, bounds = host_array(x, operation, "fill_value", None), np.iinfo(dtype)
    if isinstance(x, int) and fill.dtype != bool and not bounds.min <= x <= bounds.max:
        raise value_error(operation, "fill_value", f"an integer that fits {dtype.name}", x)
    return fill


def sort_operands(keys: jax.Array, descending: int) -> tuple[jax.Array, ...]:
    """Returns operands of `lax.sort`, whose ascending, stable order is the requested one."""
    if is_words(keys):
        return words_of(keys)
    if not descending:
        return (keys,)
    if jnp.issubdtype(keys.dtype, jnp.floating):
        return (~jnp.isnan(keys), -keys)  # NaN first, ahead of +inf
    return (~keys,)
