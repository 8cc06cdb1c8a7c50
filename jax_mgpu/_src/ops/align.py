"""`align`: cuts two sorted arrays on several devices at the same keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import ArrayLike, AxisName, Directions, Keys, Pytree
from jax_mgpu._src.arguments.values import flatten_values
from jax_mgpu._src.core.operation import jit_eager
from jax_mgpu._src.keys.columns import sorted_pair
from jax_mgpu._src.mesh import over_axis

__all__ = ["Aligned", "align"]


class Aligned(NamedTuple):
    """Two sorted arrays over a mesh axis that are cut at the same keys.

    Attributes:
      a: `[n_a + n_b]`, this device's keys of a; 0 past `a_count`.
      b: `[n_a + n_b]`, this device's keys of b; 0 past `b_count`.
      a_values: the values of a, a pytree of arrays with leading axis `n_a + n_b`, or None.
      b_values: the values of b, likewise.
      a_count: the number of keys of a on this device.
      b_count: the number of keys of b on this device.

    Example:
      >>> import jax, jax.numpy as jnp, jax_mgpu as mgpu
      >>> a, b = jnp.array([[1, 2], [3, 9]]), jnp.array([[3], [4]])  # one row per device
      >>> def count(a, b):
      ...     both = mgpu.align(a, b, axis_name="devices")
      ...     counts = {"a_count": both.a_count, "b_count": both.b_count}
      ...     return mgpu.sorted_equal_count(both.a, both.b, **counts, axis_name="devices", aligned=True)
      >>> jax.vmap(count, axis_name="devices")(a, b)
      Array([[0, 0, 1],
             [0, 0, 0]], dtype=int32)
    """

    a: Any
    b: Any
    a_values: Any
    b_values: Any
    a_count: jax.Array
    b_count: jax.Array


@jit_eager("descending")
def align(
    a: Keys,
    b: Keys,
    a_values: Pytree = None,
    b_values: Pytree = None,
    *,
    axis_name: AxisName,
    descending: Directions = False,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
) -> Aligned:
    """Cuts two sorted arrays over a mesh axis at the same keys, so that later operations on both need not move them.

    Each device gets about equally many items of both together, and the devices' keys are in order. `merge`,
    `sorted_search`, `sorted_match`, `sorted_equal_count`, `join` and the set operations accept the result with
    `aligned=True`. So it pays off if several of them work on the same arrays.

    Args:
      a: `[n_a]`, sorted integers of 8 to 64 bits or floats of 16 to 64 bits, over all devices of the axis. Floats are
        in the order of `jax.lax.sort`: NaN is largest, the two zeros are equal. Or columns of up to 64 bits in all: a
        tuple of such arrays, compared in turn.
      b: `[n_b]`, sorted, of the same dtype, or as many columns of the same dtypes.
      a_values: a pytree of arrays with leading axis `n_a`, of any dtype and trailing shape, moved along with a.
      b_values: a pytree of arrays with leading axis `n_b`, moved along with b.
      axis_name: a mesh axis, or a tuple of axes, within `jax.shard_map`.
      descending: a and b are sorted in the reverse order. A tuple of bools gives a direction for each column. Functions
        of the result need the same `descending`, which `sorted_search` does not have.
      a_count: the number of live items of a on this device, an integer scalar (default `n_a`).
      b_count: the number of live items of b (default `n_b`).

    Returns: `Aligned`: keys and values of both, and the number of each on this device.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape is not one of the above; 2^31 items or more on all devices without
        `jax_enable_x64`.

    Each item moves at most once. The cuts are on the merge path (Odeh, Green, Mwassi, Shmueli, Birk, 2012): of equal
    keys, those of a come first, and a key with more copies than a device has room for continues on the next devices.

    Example:
      >>> import jax, jax.numpy as jnp, jax_mgpu as mgpu
      >>> a, b = jnp.array([[1, 2], [3, 9]]), jnp.array([[3], [4]])  # one row per device
      >>> both = jax.vmap(lambda a, b: mgpu.align(a, b, axis_name="devices"), axis_name="devices")(a, b)
      >>> both.a_count, both.b_count
      (Array([3, 1], dtype=int32), Array([0, 2], dtype=int32))
      >>> both.a
      Array([[1, 2, 3],
             [9, 0, 0]], dtype=int32)
    """
    name = "align"
    pair = sorted_pair(name, a, b, a_count, b_count, descending=descending)
    keys, (a_rest, b_rest) = pair.code_operands, pair.rest
    a_leaves, a_unflatten = flatten_values(name, "a_values", a_values, pair.a.shape[0], "a")
    b_leaves, b_unflatten = flatten_values(name, "b_values", b_values, pair.b.shape[0], "b")
    a_number, b_number = len(a_leaves), len(b_leaves)
    operands = (*keys[:2], [*a_leaves, *a_rest], [*b_leaves, *b_rest], *keys[2:])
    moved = over_axis(mesh.pairs.align, name, axis_name, *operands, descending=bool(pair.descending))
    (a_keys, *a_leaves), (b_keys, *b_leaves), a_live, b_live = moved
    a_moved = None if a_values is None else a_unflatten(a_leaves[:a_number])
    b_moved = None if b_values is None else b_unflatten(b_leaves[:b_number])
    a_keys = pair.of_code_and_rest(a_keys, a_leaves[a_number:], a_live)
    b_keys = pair.of_code_and_rest(b_keys, b_leaves[b_number:], b_live)
    return Aligned(a_keys, b_keys, a_moved, b_moved, a_live, b_live)
