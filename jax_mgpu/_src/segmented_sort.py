"""Segmented sort: each segment of a ragged array sorted on its own, in one call."""

from __future__ import annotations

from typing import Any, overload

import jax
import jax.numpy as jnp

from jax_mgpu._src.annotations import ArrayLike
from jax_mgpu._src.check import describe, expect_key, expect_vector, index_vector, type_error, value_error
from jax_mgpu._src.preconditions import non_decreasing
from jax_mgpu._src.primitive import ABSENT, one_program
from jax_mgpu._src.sort import sort, sort_indices

__all__ = ["segmented_sort", "segmented_sort_indices"]


@overload
def segmented_sort(
    keys: ArrayLike,
    heads: ArrayLike | None = None,
    values: None = None,
    *,
    flags: ArrayLike | None = None,
    descending: bool = False,
    count: ArrayLike | None = None,
) -> jax.Array: ...
@overload
def segmented_sort(
    keys: ArrayLike,
    heads: ArrayLike | None,
    values: Any,
    *,
    flags: ArrayLike | None = None,
    descending: bool = False,
    count: ArrayLike | None = None,
) -> tuple[jax.Array, Any]: ...
@overload
def segmented_sort(
    keys: ArrayLike,
    heads: ArrayLike | None = None,
    *,
    values: Any,
    flags: ArrayLike | None = None,
    descending: bool = False,
    count: ArrayLike | None = None,
) -> tuple[jax.Array, Any]: ...
@one_program("descending")
def segmented_sort(
    keys: ArrayLike,
    heads: ArrayLike | None = None,
    values: Any = None,
    *,
    flags: ArrayLike | None = None,
    descending: bool = False,
    count: ArrayLike | None = None,
) -> Any:
    """Sorts each segment of `keys`, stable, with the values that belong to them.

    Args:
      keys: `[n]`, integers or floats of 8 to 64 bits. Floats are in the order of `jax.lax.sort`: NaN is largest, the
        two zeros are equal.
      heads: `[m]`, non-decreasing integers: the start positions of the segments. Position 0 starts a segment whether
        listed or not; a repeated head is an empty segment; a head past the last item is padding.
      values: a pytree of arrays with leading axis `n`, of any dtype and trailing shape, moved along with the keys.
      flags: the segments in the other form, instead of heads: `bool[n]`, or `uint32[ceil(n / 32)]` with item `i` at bit
        `i % 32` of word `i // 32`. A set flag starts a segment.
      descending: sort in the reverse order; equal keys stay in input order.
      count: the number of live items, an integer scalar (default `n`). Items past it stay where they are.

    Returns:
      The sorted keys, bit for bit a permutation of the input; with values, `(keys, values)`.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape is not one of the above, or both or neither of heads and flags are given; 2^31
        items or more with values other than one vector of 4- or 8-byte items, without `jax_enable_x64`.

    Time is O(n log t) for tiles of t items and O(n log(s / t)) for segments of s > t items, whatever the mixture of
    lengths; scratch memory is one copy of keys and values. The algorithm is a block sort and merge rounds that stop
    where a segment is done (Baxter, moderngpu, 2013), with runs counted from each segment's own start.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.segmented_sort(jnp.array([3, 1, 2, 9, 8, 7, 5]), jnp.array([0, 3, 6]))
      Array([1, 2, 3, 7, 8, 9, 5], dtype=int32)
    """
    name = "segmented_sort"
    keys = expect_key(name, "keys", keys)
    return sort(name, keys, *_segments(name, keys, heads, flags), values, descending=descending, count=count)


@one_program("descending")
def segmented_sort_indices(
    keys: ArrayLike,
    heads: ArrayLike | None = None,
    *,
    flags: ArrayLike | None = None,
    descending: bool = False,
    count: ArrayLike | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Sorts each segment of `keys` and tells where each key came from.

    Args:
      keys: see `segmented_sort`.
      heads: see `segmented_sort`.
      flags: see `segmented_sort`.
      descending: see `segmented_sort`.
      count: see `segmented_sort`.

    Returns:
      `(sorted keys, indices)` with `sorted_keys == keys[indices]`: indices count from the start of `keys`, not of the
      segment; int32, or int64 from 2^31 items on.

    Raises:
      TypeError: as `segmented_sort`.
      ValueError: as `segmented_sort`; also 2^31 items or more without `jax_enable_x64`.

    Complexity and source as `segmented_sort`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.segmented_sort_indices(jnp.array([3, 1, 2, 9, 8]), jnp.array([0, 3]))[1]
      Array([1, 2, 0, 4, 3], dtype=int32)
    """
    name = "segmented_sort_indices"
    keys = expect_key(name, "keys", keys)
    return sort_indices(name, keys, *_segments(name, keys, heads, flags), descending=descending, count=count)


def _segments(name: str, keys: jax.Array, heads: Any, flags: Any) -> tuple[Any, Any]:
    """The operands heads and flags, one of them absent."""
    if (heads is None) == (flags is None):
        got = "neither" if heads is None else "both"
        raise value_error(name, "heads and flags", "exactly one of them", got)
    n = keys.shape[0]
    if flags is None:
        return non_decreasing(name, "heads", index_vector(name, "heads", heads, n)), ABSENT
    flags = expect_vector(name, "flags", flags)
    if flags.dtype not in (jnp.bool_, jnp.uint32):
        raise type_error(name, "flags", "bool[n] or uint32[ceil(n / 32)]", describe(flags))
    length = n if flags.dtype == jnp.bool_ else -(-n // 32)
    if flags.shape[0] != length:
        raise value_error(name, "flags", f"{flags.dtype.name}[{length}] for {n} keys", describe(flags))
    return ABSENT, flags
