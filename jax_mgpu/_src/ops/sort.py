"""sort and argsort, which choose the fastest method."""

from __future__ import annotations

from typing import Any, overload

import jax
import jax.numpy as jnp

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import ArrayLike, AxisName, Count, Directions, Keys, Pytree
from jax_mgpu._src.arguments.check import describe, index_dtype, static_flag, static_size, type_error, value_error
from jax_mgpu._src.arguments.preconditions import keys_of_few_bits
from jax_mgpu._src.arguments.values import flatten_values
from jax_mgpu._src.core.compat import surely
from jax_mgpu._src.core.operation import ABSENT, jit_eager
from jax_mgpu._src.keys.columns import Columns, expect_keys
from jax_mgpu._src.mesh import over_axis
from jax_mgpu._src.ops.sort_primitives import Method
from jax_mgpu._src.ops.sort_strategy import given_to_sort, sort_indices, sort_keys, sort_rows

__all__ = ["argsort", "sort"]


@overload
def sort(
    keys: ArrayLike,
    values: None = None,
    *,
    descending: bool = False,
    count: ArrayLike | None = None,
    bits: int | None = None,
) -> jax.Array: ...
@overload
def sort(
    keys: ArrayLike,
    values: Pytree,
    *,
    descending: bool = False,
    count: ArrayLike | None = None,
    bits: int | None = None,
) -> tuple[jax.Array, Any]: ...
@overload
def sort(
    keys: tuple[ArrayLike, ...],
    values: Pytree = None,
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
    bits: None = None,
) -> Any: ...
@overload
def sort(
    keys: ArrayLike,
    values: Pytree = None,
    *,
    descending: bool = False,
    count: ArrayLike | None = None,
    bits: int | None = None,
    axis_name: AxisName,
    even: bool = True,
) -> Any: ...
@jit_eager("descending", "bits")
def sort(
    keys: Keys,
    values: Pytree = None,
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
    bits: int | None = None,
    axis_name: AxisName | None = None,
    even: bool = True,
) -> Any:
    """Sorts `keys`, stably, with their values, by the fastest method for their type and number.

    Args:
      keys: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits. Floats are in the order of `jax.lax.sort`: NaN
        is largest, the two zeros are equal. Or columns: a tuple of 1 to 8 such arrays, compared one after the other.
      values: a pytree of arrays with leading axis `n`, of any dtype and trailing shape, moved along with the keys.
      descending: sort in the reverse order; equal keys stay in input order. A tuple of bools gives a direction for each
        column.
      count: the number of live items, an integer scalar (default `n`). Items past it stay where they are.
      bits: a promise that the keys are integers from 0 to `2**bits - 1`. Fewer bits may be faster.
      axis_name: sort the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`; columns
        may have up to 64 bits in all.
      even: over a mesh axis, the devices' numbers of items differ by at most one; if False, devices are filled from the
        first one on.

    Returns:
      The sorted keys, bit for bit a permutation of the input; with values, `(keys, values)`. Columns come back as the
      tuple they are. Over a mesh axis, if `count` is given, the number of items of this device follows; slots past it
      hold 0.

    Raises:
      TypeError: an argument's dtype is not one of the above, or `bits` is given and keys are floats.
      ValueError: an argument's shape is not one of the above; `bits` is more than the keys have; 2^31 items or more
        with values other than one vector of 4- or 8-byte items, without `jax_enable_x64`.

    Time is O(n b) for keys of b bits; scratch memory is one copy of keys and values. On a GPU, long arrays are sorted
    by digits of 8 bits (Adinets and Merrill, "Onesweep: A Faster Least Significant Digit Radix Sort for GPUs", 2022); a
    digit that all keys share costs nothing. Short arrays are sorted by merging, as in `mergesort`. Rows of a batch
    whose keys have at most 16 bits, or at most 16 `bits`, are sorted by digits in one launch. Values of up to 8 bytes
    per row travel with the keys; others are gathered by the sorted indices. Several columns are sorted by one code, or
    one after the other.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.sort(jnp.array([3, 1, 2]), jnp.array([30, 10, 20]))
      (Array([1, 2, 3], dtype=int32), Array([10, 20, 30], dtype=int32))
    """
    checked, down = expect_keys("sort", "keys", keys, descending)
    given: dict[str, Any] = {"descending": down, "count": count, "method": Method.FASTEST, "bits": bits}
    return run_sort("sort", checked, ABSENT, ABSENT, values, **given, axis_name=axis_name, even=even)


@overload
def argsort(
    keys: Keys, *, descending: Directions = False, count: ArrayLike | None = None, bits: int | None = None
) -> jax.Array: ...
@overload
def argsort(
    keys: Keys,
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
    bits: int | None = None,
    axis_name: AxisName,
    even: bool = True,
) -> Any: ...
@jit_eager("descending", "bits")
def argsort(
    keys: Keys,
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
    bits: int | None = None,
    axis_name: AxisName | None = None,
    even: bool = True,
) -> Any:
    """The indices that sort `keys`, stably, as in `jax.numpy.argsort`.

    Args:
      keys: see `sort`.
      descending: see `sort`.
      count: see `sort`. The indices past it are their own positions.
      bits: see `sort`.
      axis_name: see `sort`.
      even: see `sort`.

    Returns:
      `[n]` indices; int32, or int64 from 2^31 items on. Over a mesh axis they are those in the global array; counts as
      `sort`.

    Raises:
      TypeError: as `sort`.
      ValueError: as `sort`; also 2^31 items or more without `jax_enable_x64`.

    Complexity and source as `sort`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.argsort(jnp.array([3, 1, 2]))
      Array([1, 2, 0], dtype=int32)
    """
    checked, down = expect_keys("argsort", "keys", keys, descending)
    given: dict[str, Any] = {"descending": down, "count": count, "method": Method.FASTEST, "bits": bits}
    _, *results = run_sort_indices("argsort", checked, ABSENT, ABSENT, **given, axis_name=axis_name, even=even)
    return results[0] if len(results) == 1 else tuple(results)


def run_sort(
    operation: str,
    keys: jax.Array | Columns,
    heads: jax.Array,
    flags: jax.Array,
    values: Pytree,
    *,
    descending: bool,
    count: Count,
    method: Method = Method.MERGING,
    bits: int | None = None,
    axis_name: AxisName | None = None,
    even: bool = True,
) -> Any:
    """Keys, checked and sorted within segments, with the pytree of their values, if there is one.

    Over a mesh axis there are no segments.
    """
    if axis_name is not None:
        options = _mesh_options(operation, keys, descending, count, even, method, bits)
        return over_axis(mesh.sorts.sort, operation, axis_name, keys, values, **options)
    given = given_to_sort(operation, keys, heads, flags, descending, count, method)
    leaves, unflatten = flatten_values(operation, "values", values, keys.shape[0], "keys")
    if isinstance(keys, Columns):
        _expect_no_bits(operation, bits)
        bits = keys.code_bits[0]
    else:
        keys, bits = _few_bits(operation, keys, given["count"], bits)
    if _has_nothing_to_sort(keys, given):
        return _as_they_are(keys) if values is None else (_as_they_are(keys), unflatten(leaves))
    if values is None:
        return sort_keys(operation, keys, given, bits)
    sorted_keys, moved = sort_rows(operation, keys, given, bits, leaves)
    return sorted_keys, unflatten(moved)


def _has_nothing_to_sort(keys: jax.Array | Columns, given: dict[str, Any]) -> bool:
    """Whether there is at most one item. Counts, heads and flags still go to the sort, which runs their checks."""
    return surely(lambda: keys.shape[0] <= 1) and not any(given[name].size for name in ("heads", "flags", "count"))


def _as_they_are(keys: jax.Array | Columns) -> Any:
    return keys.structure(keys.arrays) if isinstance(keys, Columns) else keys


def run_sort_indices(
    operation: str,
    keys: jax.Array | Columns,
    heads: jax.Array,
    flags: jax.Array,
    *,
    descending: bool,
    count: Count,
    method: Method = Method.MERGING,
    bits: int | None = None,
    axis_name: AxisName | None = None,
    even: bool = True,
) -> tuple[Any, jax.Array]:
    """Keys, checked and sorted within segments, and the position that each came from."""
    if axis_name is not None:
        options = _mesh_options(operation, keys, descending, count, even, method, bits)
        result: tuple[Any, jax.Array] = over_axis(mesh.sorts.sort_indices, operation, axis_name, keys, **options)
        return result
    given = given_to_sort(operation, keys, heads, flags, descending, count, method)
    if isinstance(keys, Columns):
        _expect_no_bits(operation, bits)
    else:
        keys, bits = _few_bits(operation, keys, given["count"], bits)
    if _has_nothing_to_sort(keys, given):
        first = keys.arrays[0] if isinstance(keys, Columns) else keys
        return _as_they_are(keys), jnp.zeros_like(first, index_dtype(operation, "keys", keys.shape[0]))
    if not isinstance(keys, Columns):
        return sort_indices(operation, keys, given, bits)
    sorted_keys, moved = sort_rows(operation, keys, given, keys.code_bits[0], [], ordered=True)
    return sorted_keys, moved[0]


def _mesh_options(
    operation: str,
    keys: jax.Array | Columns,
    descending: bool,
    count: Count,
    even: bool,
    method: Method,
    bits: int | None,
) -> dict[str, Any]:
    """The arguments of a sort over a mesh axis other than its keys and values."""
    if isinstance(keys, Columns):
        _expect_no_bits(operation, bits)
    flags = {
        "descending": static_flag(operation, "descending", descending),
        "even": static_flag(operation, "even", even),
    }
    return {**flags, "count": count, "method": method, "bits": bits}


def _few_bits(operation: str, keys: jax.Array, count: jax.Array, bits: int | None) -> tuple[jax.Array, int]:
    """Keys, and the number of their low bits that matter."""
    most = 8 * keys.dtype.itemsize
    if bits is None:
        return keys, most
    if not jnp.issubdtype(keys.dtype, jnp.integer):
        raise type_error(operation, "keys", "integers where bits is given", describe(keys))
    bits = static_size(operation, "bits", bits)
    if not 1 <= bits <= most:
        raise value_error(operation, "bits", f"an integer from 1 to {most}", bits)
    return keys_of_few_bits(operation, "keys", keys, count, bits), bits


def _expect_no_bits(operation: str, bits: int | None) -> None:
    if bits is not None:
        raise value_error(operation, "bits", "None where the keys are columns", bits)
