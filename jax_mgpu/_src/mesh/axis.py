"""`Axis`: the number of devices of a mesh axis, which one this is, and exchanges of a few values."""

from __future__ import annotations

import functools
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import AxisName
from jax_mgpu._src.arguments.check import index_dtype, value_error
from jax_mgpu._src.arguments.counts import live_items
from jax_mgpu._src.core.compat import invariant_gather, is_of_cpus, reconcile_vma


def before(x: jax.Array) -> jax.Array:
    """Returns, for each device, the sum of the values of earlier devices; x is `[..., devices, any]`."""
    devices = jax.lax.broadcasted_iota(jnp.int32, (x.shape[-2],) * 2, 0)
    earlier = devices > devices.T
    return jnp.sum(jnp.where(earlier[:, :, None], x[..., None, :, :], 0), axis=-2, dtype=x.dtype)


T = TypeVar("T")


class Axis:
    """The devices of a mesh axis, or of several, in the order of `jax.lax.axis_index`.

    Each device has an array of equally many slots, of which the first ones hold its live items. The global array
    consists of the live items of one device after the other.
    """

    def __init__(self, operation: str, name: AxisName):
        self.operation, self.name = operation, tuple(name) if isinstance(name, list) else name
        try:
            self.size = int(jax.lax.axis_size(self.name))
        except (NameError, TypeError, ValueError) as error:
            expected = "the name of a mesh axis, or a tuple of names, inside jax.shard_map"
            raise value_error(operation, "axis_name", expected, repr(name)) from error

    @property
    def index(self) -> jax.Array:
        """The number of this device."""
        return jax.lax.axis_index(self.name)

    def own(self, x: jax.Array, axis: int = 0) -> jax.Array:
        """Returns this device's entry along an axis of an array that has one entry per device."""
        at = [self.index if i == axis else np.int32(0) for i in range(x.ndim)]
        sizes = [1 if i == axis else n for i, n in enumerate(x.shape)]
        return jax.lax.squeeze(jax.lax.dynamic_slice(x, at, sizes, allow_negative_indices=False), (axis,))

    @property
    def devices(self) -> jax.Array:
        """The numbers of all devices."""
        return jnp.arange(self.size, dtype=jnp.int32)

    def gather(self, tree: T) -> T:
        """Gathers a few values of each device, `[size, ...]`, the same on all of them."""
        gathered: T = jax.tree.map(lambda x: invariant_gather(jnp.asarray(x), self.name, self.index), tree)
        return gathered

    def gather_rows(self, x: jax.Array) -> jax.Array:
        """Gathers the rows of all devices, one device after the other, the same on all of them."""
        if x.shape[0] == 0:  # XLA gathers no empty arrays
            return jnp.zeros(x.shape, x.dtype)
        return invariant_gather(x, self.name, self.index, tiled=True)

    @functools.cached_property
    def shares_memory(self) -> bool | None:
        """Whether the devices share their memory, as CPUs of one process do; None if the mesh names no devices.

        An axis of vmap lies within a device.
        """
        names = self.name if isinstance(self.name, tuple) else (self.name,)
        if not set(names) <= set(jax.sharding.get_abstract_mesh().manual_axes):
            return True
        return is_of_cpus() if jax.process_count() == 1 else False

    def sum(self, x: jax.Array) -> jax.Array:
        """Returns the sum over all devices."""
        result: jax.Array = jax.lax.psum(x, self.name)
        return result

    def varying(self, tree: T) -> T:
        """Types values as differing from device to device, as a loop's carry must be."""
        typed: T = jax.tree.map(lambda x: reconcile_vma((x, self.index))[0], tree)
        return typed

    def index_dtype(self, argument: str, n: int) -> np.dtype:
        """Returns the dtype of positions in a global array with n slots per device."""
        return index_dtype(self.operation, argument, self.size * n)

    def live(self, argument: str, n: int, count: jax.Array) -> jax.Array:
        """Returns the number of this device's live items, in the type of global positions."""
        return live_items(n, count, self.index_dtype(argument, n))

    def begin_and_total(self, counts: jax.Array) -> jax.Array:
        """Returns the global position of this device's first item, and the number of all items, by one reduction."""
        is_added = (self.devices < self.index) | np.array([[False], [True]])
        return jnp.sum(jnp.where(is_added, counts, 0), axis=1, dtype=counts.dtype)

    def begin(self, counts: jax.Array) -> jax.Array:
        """Returns the global position of this device's first item."""
        return jnp.sum(jnp.where(self.devices < self.index, counts, 0), dtype=counts.dtype)
