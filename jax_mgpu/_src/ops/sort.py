"""`sort` and `argsort`, which choose a method by type and number."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import ArrayLike, AxisName, Count, Directions, Keys, Pytree
from jax_mgpu._src.arguments.check import (
    count_operand,
    describe,
    index_dtype,
    static_flag,
    static_size,
    type_error,
    value_error,
)
from jax_mgpu._src.arguments.counts import count_of
from jax_mgpu._src.arguments.preconditions import keys_of_few_bits
from jax_mgpu._src.arguments.values import flatten_values
from jax_mgpu._src.core.compat import surely
from jax_mgpu._src.core.operation import ABSENT, jit_eager
from jax_mgpu._src.keys.columns import Columns, columns_of, expect_keys, in_form
from jax_mgpu._src.mesh import over_axis
from jax_mgpu._src.ops.sort_primitives import Method
from jax_mgpu._src.ops.sort_strategy import sort_indices, sort_keys, sort_rows

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
    keys: Keys,
    values: Pytree = None,
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
    bits: int | None = None,
    axis_name: AxisName | None = None,
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
      bits: a promise that the keys, one array, are integers from 0 to `2**bits - 1`. Fewer bits may be faster.
      axis_name: sort the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`; columns
        may have up to 64 bits in all.
      even: over a mesh axis, the devices' numbers of items differ by at most one; if False, devices are filled from the
        first one on.

    Returns:
      The sorted keys, bit for bit a permutation of the input, or the tuple of sorted columns; with values, `(keys,
      values)`. Over a mesh axis with `count`, the last element of the tuple is the number of items of this device, and
      slots past it hold 0.

    Raises:
      TypeError: an argument's dtype is not one of the above, or `bits` is given and keys are floats.
      ValueError: an argument's shape is not one of the above; `bits` is more than the keys have; 2^31 items or more
        with values other than one vector of 4- or 8-byte items, or with columns as in `mergesort`, without
        `jax_enable_x64`.

    Time is O(n b) for keys of b bits; scratch memory is about one copy of keys and values. On a GPU, long arrays are
    sorted by digits of 8 bits (Adinets and Merrill, "Onesweep: A Faster Least Significant Digit Radix Sort for GPUs",
    2022). Short arrays may be sorted by merging, as in `mergesort`. Values travel with the keys, or are gathered by the
    sorted indices. Several columns are sorted by one integer that combines them, or one after the other.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.sort(jnp.array([3, 1, 2]), jnp.array([30, 10, 20]))
      (Array([1, 2, 3], dtype=int32), Array([10, 20, 30], dtype=int32))
    """
    asked = Sort.of("sort", keys, descending, count, Method.FASTEST, bits)
    return asked.run(values, axis_name=axis_name, even=even)


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
      `[n]` indices; int32, or int64 from 2^31 items on. Over a mesh axis, they are positions in the global array; if
      `count` is given, the result is `(indices, number of items of this device)`.

    Raises:
      TypeError: see `sort`.
      ValueError: see `sort`; also if there are 2^31 items or more without `jax_enable_x64`.

    For complexity and source, see `sort`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.argsort(jnp.array([3, 1, 2]))
      Array([1, 2, 0], dtype=int32)
    """
    asked = Sort.of("argsort", keys, descending, count, Method.FASTEST, bits)
    _, *results = asked.indices(axis_name=axis_name, even=even)
    return results[0] if len(results) == 1 else tuple(results)


@dataclasses.dataclass(frozen=True)
class Sort:
    """A sort with checked arguments.

    Args:
      operation: the public function.
      keys: an array, or columns, which have a direction each.
      descending: the direction of an array.
      count: the number of live items as an operand, or `ABSENT`.
      heads, flags: where segments start.
      method: how to sort.
      bits: how many low bits of an array's keys matter; None for all.
    """

    operation: str
    keys: jax.Array | Columns
    descending: bool = False
    count: jax.Array = dataclasses.field(default_factory=lambda: ABSENT)
    heads: jax.Array = dataclasses.field(default_factory=lambda: ABSENT)
    flags: jax.Array = dataclasses.field(default_factory=lambda: ABSENT)
    method: Method = Method.FASTEST
    bits: int | None = None

    @classmethod
    def of(
        cls, operation: str, keys: Keys, descending: Directions, count: Count, method: Method, bits: int | None = None
    ) -> Sort:
        """Checks a public function's arguments."""
        checked, down = expect_keys(operation, "keys", keys, descending)
        live = count_operand(operation, "count", count, checked.shape[0])
        if isinstance(checked, Columns) and bits is not None:
            raise value_error(operation, "bits", "None where the keys are columns", bits)
        return cls(operation, checked, down, live, method=method, bits=bits)

    def run(self, values: Pytree = None, *, axis_name: AxisName | None = None, even: bool = True) -> Any:
        """Returns sorted keys or, with values, `(keys, values)`."""
        if axis_name is not None:
            return self._over_axis(mesh.sorts.sort, axis_name, even, values)
        leaves, unflatten = flatten_values(self.operation, "values", values, self.keys.shape[0], "keys")
        keys, bits = self._low_bits()
        if self._has_nothing_to_sort():
            return in_form(keys) if values is None else (in_form(keys), unflatten(leaves))
        if values is None:
            return sort_keys(self.operation, keys, self._given, bits)
        sorted_keys, moved = sort_rows(self.operation, keys, self._given, bits, leaves)
        return sorted_keys, unflatten(moved)

    def indices(self, *, axis_name: AxisName | None = None, even: bool = True) -> tuple[Any, ...]:
        """Returns sorted keys, and the position that each came from."""
        if axis_name is not None:
            over_devices: tuple[Any, ...] = self._over_axis(mesh.sorts.sort_indices, axis_name, even)
            return over_devices
        keys, bits = self._low_bits()
        if self._has_nothing_to_sort():
            return in_form(keys), jnp.zeros_like(
                columns_of(keys)[0], index_dtype(self.operation, "keys", keys.shape[0])
            )
        if not isinstance(keys, Columns):
            return sort_indices(self.operation, keys, self._given, bits)
        sorted_keys, moved = self.rows([], ordered=True)
        return sorted_keys, moved[0]

    def rows(self, leaves: Sequence[jax.Array], *, ordered: bool) -> tuple[Any, list[jax.Array]]:
        """Returns sorted keys and leaves; with `ordered`, the position that each key came from is the first leaf."""
        keys, bits = self._low_bits()
        return sort_rows(self.operation, keys, self._given, bits, leaves, ordered=ordered)

    @property
    def _given(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("heads", "flags", "count", "descending", "method")}

    def _low_bits(self) -> tuple[Any, int]:
        """Returns keys, and how many of their low bits one call of the kernels sorts by."""
        if isinstance(self.keys, Columns):
            return self.keys, self.keys.code_bits[0]
        return _few_bits(self.operation, self.keys, self.count, self.bits)

    def _has_nothing_to_sort(self) -> bool:
        """Whether there is at most one item, and no count, heads or flags; a sort would check these."""
        return surely(lambda: self.keys.shape[0] <= 1) and not (self.heads.size or self.flags.size or self.count.size)

    def _over_axis(self, form: Callable[..., Any], axis_name: AxisName, even: bool, *values: Pytree) -> Any:
        return over_axis(
            form, self.operation, axis_name, self.keys, *values, descending=self.descending, method=self.method,
            even=static_flag(self.operation, "even", even), count=count_of(self.count), bits=self.bits,
        )  # fmt: skip


def _few_bits(operation: str, keys: jax.Array, count: jax.Array, bits: int | None) -> tuple[jax.Array, int]:
    """Returns keys, and how many of their low bits matter."""
    max_bits = 8 * keys.dtype.itemsize
    if bits is None:
        return keys, max_bits
    if not jnp.issubdtype(keys.dtype, jnp.integer):
        raise type_error(operation, "keys", "integers where bits is given", describe(keys))
    bits = static_size(operation, "bits", bits)
    if not 1 <= bits <= max_bits:
        raise value_error(operation, "bits", f"an integer from 1 to {max_bits}", bits)
    return keys_of_few_bits(operation, "keys", keys, count, bits), bits
