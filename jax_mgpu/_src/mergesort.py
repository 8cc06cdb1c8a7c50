"""Sorting a whole array: mergesort, and locality sort for what is nearly sorted already."""

from __future__ import annotations

from typing import Any, overload

import jax

from jax_mgpu._src.annotations import ArrayLike
from jax_mgpu._src.check import expect_key
from jax_mgpu._src.primitive import ABSENT, one_program
from jax_mgpu._src.sort import sort, sort_indices

__all__ = ["locality_sort", "locality_sort_indices", "mergesort", "mergesort_indices"]


@overload
def mergesort(
    keys: ArrayLike, values: None = None, *, descending: bool = False, count: ArrayLike | None = None
) -> jax.Array: ...
@overload
def mergesort(
    keys: ArrayLike, values: Any, *, descending: bool = False, count: ArrayLike | None = None
) -> tuple[jax.Array, Any]: ...
@one_program("descending")
def mergesort(keys: ArrayLike, values: Any = None, *, descending: bool = False, count: ArrayLike | None = None) -> Any:
    """Sorts `keys`, stable, with the values that belong to them.

    Args:
      keys: `[n]`, integers or floats of 8 to 64 bits. Floats are in the order of `jax.lax.sort`: NaN is largest, the
        two zeros are equal.
      values: a pytree of arrays with leading axis `n`, of any dtype and trailing shape, moved along with the keys.
      descending: sort in the reverse order; equal keys stay in input order.
      count: the number of live items, an integer scalar (default `n`). Items past it stay where they are.

    Returns:
      The sorted keys, bit for bit a permutation of the input; with values, `(keys, values)`.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape is not one of the above; 2^31 items or more with values other than one vector of
        4- or 8-byte items, without `jax_enable_x64`.

    Time is O(n log n), whatever the order of the input; scratch memory is one copy of keys and values. Tiles are
    sorted by a block each, then runs of tiles are merged, each output tile by its own share of the merge path (Odeh,
    Green, Mwassi, Shmueli, Birk, "Merge Path", 2012).

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.mergesort(jnp.array([3, 1, 2]), jnp.array([30, 10, 20]))
      (Array([1, 2, 3], dtype=int32), Array([10, 20, 30], dtype=int32))
    """
    keys = expect_key("mergesort", "keys", keys)
    return sort("mergesort", keys, ABSENT, ABSENT, values, descending=descending, count=count)


@one_program("descending")
def mergesort_indices(
    keys: ArrayLike, *, descending: bool = False, count: ArrayLike | None = None
) -> tuple[jax.Array, jax.Array]:
    """Sorts `keys` and tells where each key came from.

    Args:
      keys: see `mergesort`.
      descending: see `mergesort`.
      count: see `mergesort`.

    Returns:
      `(sorted keys, indices)` with `sorted_keys == keys[indices]`; indices are int32, or int64 from 2^31 items on.

    Raises:
      TypeError: as `mergesort`.
      ValueError: as `mergesort`; also 2^31 items or more without `jax_enable_x64`.

    Complexity and source as `mergesort`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.mergesort_indices(jnp.array([3, 1, 2]))[1]
      Array([1, 2, 0], dtype=int32)
    """
    keys = expect_key("mergesort_indices", "keys", keys)
    return sort_indices("mergesort_indices", keys, ABSENT, ABSENT, descending=descending, count=count)


@overload
def locality_sort(
    keys: ArrayLike, values: None = None, *, descending: bool = False, count: ArrayLike | None = None
) -> jax.Array: ...
@overload
def locality_sort(
    keys: ArrayLike, values: Any, *, descending: bool = False, count: ArrayLike | None = None
) -> tuple[jax.Array, Any]: ...
@one_program("descending")
def locality_sort(
    keys: ArrayLike, values: Any = None, *, descending: bool = False, count: ArrayLike | None = None
) -> Any:
    """Sorts `keys` as `mergesort` does, fast where they are nearly sorted.

    For keys that were sorted and have changed a little, such as the cells of particles one time step on. Right for any
    keys; where they are in no order, a little slower than `mergesort`.

    Args:
      keys: see `mergesort`.
      values: see `mergesort`.
      descending: see `mergesort`.
      count: see `mergesort`.

    Returns:
      As `mergesort`.

    Raises:
      TypeError: as `mergesort`.
      ValueError: as `mergesort`.

    On a GPU, cells of some thousand keys are sorted, then merged where neighbouring cells, or runs of them, overlap:
    keys that are at most k places from where they belong take O(n log k). Time as `mergesort` on a CPU, for 2^18 keys
    or fewer, and with values or indices unless they and the keys are of 4 bytes. Memory as `mergesort`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.locality_sort(jnp.array([1, 2, 4, 3, 5]))
      Array([1, 2, 3, 4, 5], dtype=int32)
    """
    keys = expect_key("locality_sort", "keys", keys)
    return sort("locality_sort", keys, ABSENT, ABSENT, values, descending=descending, count=count, nearly_sorted=True)


@one_program("descending")
def locality_sort_indices(
    keys: ArrayLike, *, descending: bool = False, count: ArrayLike | None = None
) -> tuple[jax.Array, jax.Array]:
    """Sorts `keys` as `mergesort_indices` does, fast where they are nearly sorted.

    Args:
      keys: see `mergesort`.
      descending: see `mergesort`.
      count: see `mergesort`.

    Returns:
      As `mergesort_indices`.

    Raises:
      TypeError: as `mergesort_indices`.
      ValueError: as `mergesort_indices`.

    Complexity and source as `locality_sort`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.locality_sort_indices(jnp.array([1, 2, 4, 3, 5]))[1]
      Array([0, 1, 3, 2, 4], dtype=int32)
    """
    keys = expect_key("locality_sort_indices", "keys", keys)
    return sort_indices(
        "locality_sort_indices", keys, ABSENT, ABSENT, descending=descending, count=count, nearly_sorted=True
    )
