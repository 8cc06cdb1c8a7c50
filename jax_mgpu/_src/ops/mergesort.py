"""Mergesort, and locality sort for nearly sorted keys."""

from __future__ import annotations

from typing import Any, overload

import jax

from jax_mgpu._src.arguments.annotations import ArrayLike, AxisName, Directions, Keys, LessFunction, Pytree
from jax_mgpu._src.arguments.check import expect_no_axis
from jax_mgpu._src.core.operation import jit_eager
from jax_mgpu._src.functions.comparator_ops import SortByLess
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sort_primitives import Method

__all__ = ["locality_sort", "locality_sort_indices", "mergesort", "mergesort_indices"]


@overload
def mergesort(
    keys: ArrayLike, values: None = None, *, descending: bool = False, count: ArrayLike | None = None
) -> jax.Array: ...
@overload
def mergesort(
    keys: ArrayLike, values: Pytree, *, descending: bool = False, count: ArrayLike | None = None
) -> tuple[jax.Array, Any]: ...
@overload
def mergesort(
    keys: Keys,
    values: Pytree = None,
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
    even: bool = True,
) -> Any: ...
@overload
def mergesort(keys: Any, values: Pytree = None, *, count: ArrayLike | None = None, less: LessFunction) -> Any: ...
@jit_eager("descending", "less")
def mergesort(
    keys: Keys,
    values: Pytree = None,
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
    less: LessFunction | None = None,
    axis_name: AxisName | None = None,
    even: bool = True,
) -> Any:
    """Sorts `keys`, stably, with their values.

    Args:
      keys: see `sort`.
      values: see `sort`.
      descending: see `sort`.
      count: see `sort`.
      less: a comparator that replaces the order of numbers: a function of two items that says whether the first comes
        before the second, a strict weak order. Keys are then a pytree of arrays with leading axis `n`, of any dtypes
        and trailing shapes, and an item is the pytree without that axis. Cannot be combined with `descending` or
        `axis_name`. With a function that is not such an order, the order of the result is unspecified; on a GPU, keys
        may also repeat or be missing.
      axis_name: see `sort`.
      even: see `sort`.

    Returns:
      As `sort`.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape is not one of the above. Without `jax_enable_x64`, also if 2^31 items or more come
        with `less`, with values other than one vector of 4- or 8-byte items, or with more than 64 bits of columns
        besides the part that is sorted first.

    Time is O(n log n) for any order of the input; scratch memory is about one copy of keys and values. Blocks sort
    tiles. Rounds merge sorted runs, and merge path (Odeh, Green, Mwassi, Shmueli, Birk, "Merge Path", 2012) finds the
    items of each output tile. On a GPU, keys of up to 16 bits are sorted by their digits instead, as in `sort`.

    Columns of up to 64 bits in all are one key; wider ones take one sort for each 64 bits. From 2^22 items on, columns
    that are wider or contain floats may be sorted in parts instead: by the first part, then by each next part among
    items that are equal so far. The other parts and the values travel along.

    With `less`, CUDA kernels that are compiled for it sort keys of any width, by positions if keys have more than 16
    bytes. If `less` only compares columns, one after the other, keys of more than 8 bytes are sorted as columns. On
    other platforms, and if `less` cannot be compiled, keys are sorted as columns if `less` allows it, otherwise by
    XLA's sort or by merges with O(n log^2 n) comparisons.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.mergesort(jnp.array([3, 1, 2]), jnp.array([30, 10, 20]))
      (Array([1, 2, 3], dtype=int32), Array([10, 20, 30], dtype=int32))
      >>> mgpu.mergesort((jnp.array([1, 2, 1]), jnp.array([7, 8, 9])), descending=(False, True))
      (Array([1, 1, 2], dtype=int32), Array([9, 7, 8], dtype=int32))
    """
    if less is not None:
        expect_no_axis("mergesort", "less", axis_name)
        return SortByLess.of("mergesort", keys, less, descending, count).run(values)
    asked = Sort.of("mergesort", keys, descending, count, Method.MERGING)
    return asked.run(values, axis_name=axis_name, even=even)


@overload
def mergesort_indices(
    keys: ArrayLike, *, descending: bool = False, count: ArrayLike | None = None
) -> tuple[jax.Array, jax.Array]: ...
@overload
def mergesort_indices(
    keys: tuple[ArrayLike, ...], *, descending: Directions = False, count: ArrayLike | None = None
) -> tuple[Any, jax.Array]: ...
@overload
def mergesort_indices(
    keys: Keys,
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
    axis_name: AxisName,
    even: bool = True,
) -> Any: ...
@overload
def mergesort_indices(keys: Any, *, count: ArrayLike | None = None, less: LessFunction) -> tuple[Any, jax.Array]: ...
@jit_eager("descending", "less")
def mergesort_indices(
    keys: Keys,
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
    less: LessFunction | None = None,
    axis_name: AxisName | None = None,
    even: bool = True,
) -> Any:
    """Sorts `keys`, and gives the position that each came from.

    Args:
      keys: see `sort`.
      descending: see `sort`.
      count: see `sort`.
      less: see `mergesort`.
      axis_name: see `sort`.
      even: see `sort`.

    Returns:
      `(sorted keys, indices)` with `sorted_keys == keys[indices]`; indices are int32, or int64 from 2^31 items on. Over
      a mesh axis they are positions in the global array; if `count` is given, the number of items of this device
      follows.

    Raises:
      TypeError: as `mergesort`.
      ValueError: as `mergesort`; also 2^31 items or more without `jax_enable_x64`.

    For complexity and source, see `mergesort`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.mergesort_indices(jnp.array([3, 1, 2]))[1]
      Array([1, 2, 0], dtype=int32)
    """
    if less is not None:
        expect_no_axis("mergesort_indices", "less", axis_name)
        return SortByLess.of("mergesort_indices", keys, less, descending, count).indices()
    asked = Sort.of("mergesort_indices", keys, descending, count, Method.MERGING)
    return asked.indices(axis_name=axis_name, even=even)


@overload
def locality_sort(
    keys: ArrayLike, values: None = None, *, descending: bool = False, count: ArrayLike | None = None
) -> jax.Array: ...
@overload
def locality_sort(
    keys: ArrayLike, values: Pytree, *, descending: bool = False, count: ArrayLike | None = None
) -> tuple[jax.Array, Any]: ...
@overload
def locality_sort(
    keys: Keys,
    values: Pytree = None,
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
    even: bool = True,
) -> Any: ...
@jit_eager("descending")
def locality_sort(
    keys: Keys,
    values: Pytree = None,
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
    even: bool = True,
) -> Any:
    """Sorts `keys` as `sort` does; fast if they are nearly sorted.

    Use it for keys that were sorted and have changed a little, such as cells of particles after a time step. For random
    keys it is a little slower than `sort`.

    Args:
      keys: see `sort`.
      values: see `sort`.
      descending: see `sort`.
      count: see `sort`.
      axis_name: see `sort`.
      even: see `sort`.

    Returns:
      As `sort`.

    Raises:
      TypeError: as `mergesort`.
      ValueError: as `mergesort`.

    On a GPU, blocks sort cells of keys. Rounds merge neighbouring cells, or runs of cells, only where their keys
    overlap. So keys at most k places from their sorted position take O(n log k). Long arrays are sorted by digits, as
    in `sort`, if samples show that many keys are far from their places. It can be faster than `sort` on a GPU for more
    than 2^18 keys of 32 or 64 bits with few bytes of values. On a CPU, it takes about as long as `sort`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.locality_sort(jnp.array([1, 2, 4, 3, 5]))
      Array([1, 2, 3, 4, 5], dtype=int32)
    """
    asked = Sort.of("locality_sort", keys, descending, count, Method.NEARLY_SORTED)
    return asked.run(values, axis_name=axis_name, even=even)


@overload
def locality_sort_indices(
    keys: ArrayLike, *, descending: bool = False, count: ArrayLike | None = None
) -> tuple[jax.Array, jax.Array]: ...
@overload
def locality_sort_indices(
    keys: tuple[ArrayLike, ...], *, descending: Directions = False, count: ArrayLike | None = None
) -> tuple[Any, jax.Array]: ...
@overload
def locality_sort_indices(
    keys: Keys,
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
    axis_name: AxisName,
    even: bool = True,
) -> Any: ...
@jit_eager("descending")
def locality_sort_indices(
    keys: Keys,
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
    even: bool = True,
) -> Any:
    """Sorts `keys` as `mergesort_indices` does; fast if they are nearly sorted.

    Args:
      keys: see `sort`.
      descending: see `sort`.
      count: see `sort`.
      axis_name: see `sort`.
      even: see `sort`.

    Returns:
      As `mergesort_indices`.

    Raises:
      TypeError: as `mergesort_indices`.
      ValueError: as `mergesort_indices`.

    For complexity and source, see `locality_sort`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.locality_sort_indices(jnp.array([1, 2, 4, 3, 5]))[1]
      Array([0, 1, 3, 2, 4], dtype=int32)
    """
    asked = Sort.of("locality_sort_indices", keys, descending, count, Method.NEARLY_SORTED)
    return asked.indices(axis_name=axis_name, even=even)
