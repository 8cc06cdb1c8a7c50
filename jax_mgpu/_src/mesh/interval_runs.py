"""`interval_gather` over a mesh axis for few, long intervals: all devices know all intervals, and send runs of rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.core.compat import axes_bound
from jax_mgpu._src.functions.operators import Kind
from jax_mgpu._src.keys.bits import keeping_bits
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.exchange import Parts, in_rounds, send
from jax_mgpu._src.ops.intervals import gather_rows
from jax_mgpu._src.ops.scan import scan_columns
from jax_mgpu._src.ops.sorted_search import insertion_points

__all__ = ["fits", "gather_runs"]

# XLA's exchange copies each row in words of up to this many bytes.
UNIT_BYTES = 16


def fits(axis: Axis, intervals: int, size: int) -> bool:
    """Whether a device has room for data of all intervals and all devices."""
    return axis.size**2 * intervals <= size


def gather_runs(
    axis: Axis, rows: jax.Array, starts: jax.Array, offsets: jax.Array, whole: jax.Array, fill: jax.Array, size: int
) -> jax.Array:
    """Returns this device's slots.

    Args:
      axis: the devices.
      rows: this device's rows, `[n, width]`.
      starts: `[m]`, where this device's intervals start in the global array, of a type that holds sums of such
        positions.
      offsets: `[m]`, where the intervals start among the slots of all devices, of the same type, at most `whole`.
      whole: the number of all rows of all intervals.
      fill: the fill element, `[1]`.
      size: the number of slots of a device.
    """
    runs = _Runs(axis, rows, *axis.gather((starts, offsets)), whole, size)
    bound = axes_bound(axis.name)

    def move(rows: jax.Array, runs: _Runs, fill: jax.Array) -> jax.Array:
        with bound():
            return runs.gathered(runs.received(rows), fill)

    return keeping_bits(move, rows, runs, fill.astype(rows.dtype), adds=True)


class _Runs:
    """The rows that each device sends to each other one. A run is the part of an interval that lies on one device.

    A device packs its runs in the order of the slots, so the rows for another device are a range of the packed rows.
    They are sent in units of several rows; the receiver skips rows of the first and last unit that it did not ask for.
    """

    def __init__(self, axis: Axis, rows: jax.Array, starts: jax.Array, offsets: jax.Array, whole: jax.Array, size: int):
        self.axis, self.size, self.n, dtype = axis, size, rows.shape[0], offsets.dtype
        row_bytes = rows.shape[1] * rows.dtype.itemsize
        self.unit = UNIT_BYTES // row_bytes if row_bytes and UNIT_BYTES % row_bytes == 0 else 1
        self.starts, self.offsets = starts.reshape(-1), offsets.reshape(-1)
        self.total = whole.astype(dtype)
        lengths = jnp.append(self.offsets[1:], self.total[None]) - self.offsets
        edges = jnp.arange(axis.size + 1, dtype=dtype)[:, None] * self.n
        # [devices + 1, intervals]: where in each interval the rows of each device begin.
        self.cuts = jnp.clip(edges - self.starts, 0, lengths)
        sizes = self.cuts[1:] - self.cuts[:-1]
        self.packed = jax.vmap(lambda x: scan_columns(x, Kind.ADD, exclusive=True))(sizes)  # [devices, intervals]
        # Where the packed rows of each device for the slots of each begin: [from, to + 1].
        bounds = jnp.arange(axis.size + 1, dtype=dtype) * size
        at = jnp.maximum(insertion_points(bounds, self.offsets, right=True).astype(dtype) - 1, 0)
        ends = self.packed[:, at] + jnp.clip(bounds - self.offsets[at] - self.cuts[:-1, at], 0, sizes[:, at])
        begins, ends = ends[:, :-1], ends[:, 1:]
        others = (axis.devices[:, None] != axis.devices) & (begins < ends)
        self.begins, self.ends = begins // self.unit, jnp.where(others, -(-ends // self.unit), begins // self.unit)
        slots = -(-size // self.unit) + 2 * axis.size
        self.parts = Parts(axis, self.begins, self.ends - self.begins, slots)

    def flatten(self) -> tuple[Any, Any]:
        """Returns the traced arrays, and the static values."""
        arrays = self.starts, self.offsets, self.total, self.cuts, self.packed, self.begins, self.ends, self.parts
        return arrays, (self.axis, self.size, self.n, self.unit)

    @classmethod
    def unflatten(cls, fixed: Any, arrays: Any) -> _Runs:
        """Returns the inverse of `flatten`."""
        runs = cls.__new__(cls)
        runs.axis, runs.size, runs.n, runs.unit = fixed
        (
            runs.starts, runs.offsets, runs.total, runs.cuts, runs.packed, runs.begins, runs.ends, runs.parts
        ) = arrays  # fmt: skip
        return runs

    def received(self, rows: jax.Array) -> jax.Array:
        """Returns the rows that other devices send, in units, followed by this device's own rows."""
        axis, dtype, width = self.axis, self.starts.dtype, rows.shape[1] * self.unit
        window = -(-self.size // self.unit) + -(-self.size // (32 * self.unit))  # the packed units that a round sends
        needed = -(-jnp.max(self.ends) // window)  # equal on all devices, which must all enter a round or none
        own = jnp.pad(rows, ((self.parts.slots * self.unit, -self.n % self.unit), (0, 0))).reshape(-1, width)

        def send_window(done: jax.Array, into: jax.Array) -> jax.Array:
            begin = jnp.asarray(done, dtype) * window
            units = self._packed(rows, begin * self.unit, window * self.unit).reshape(window, width)
            first, last = (jnp.clip(x, self.begins, self.ends) for x in (begin, begin + window))
            moved = jnp.clip(first - begin, 0, window), self.parts.places + first - self.begins, last - first
            return send(Parts.unflatten((axis, into.shape[0]), moved), units, into)

        return in_rounds(send_window, needed, axis.size, axis.varying(own)).reshape(-1, rows.shape[1])

    def _packed(self, rows: jax.Array, begin: jax.Array, size: int) -> jax.Array:
        """Returns `size` of this device's packed rows."""
        axis = self.axis
        packed, cut = axis.own(self.packed), axis.own(self.cuts[:-1])
        total = packed[-1] + axis.own(self.cuts[1:])[-1] - cut[-1]
        offsets = packed - begin
        starts = self.starts + cut - axis.index.astype(cut.dtype) * self.n + jnp.maximum(-offsets, 0)
        runs = {"starts": starts, "offsets": jnp.clip(offsets, 0, size), "fill_value": jnp.zeros((1,), rows.dtype)}
        total = jnp.clip(total - begin, 0, size).reshape(1)
        return gather_rows(x=rows, **runs, total=total, size=size, disjoint=False)[0]

    def gathered(self, rows: jax.Array, fill: jax.Array) -> jax.Array:
        """Returns the rows of this device's slots, from those that it received and its own."""
        axis, dtype = self.axis, self.starts.dtype
        here = axis.index.astype(dtype) * self.size
        # Each interval has a part before the global array, one on each device, and one after the array.
        first = jnp.concatenate([jnp.zeros_like(self.cuts[:1]), self.cuts])
        offsets = self.offsets + first - here
        received = (axis.own(self.parts.places, 1) - axis.own(self.begins, 1))[:, None] * self.unit + self.packed
        at_home = self.starts + self.cuts[:-1] + (self.parts.slots * self.unit - axis.index.astype(dtype) * self.n)
        sources = jnp.where((axis.devices == axis.index)[:, None], at_home, received) + jnp.maximum(-offsets[1:-1], 0)
        nowhere = jnp.full_like(sources[:1], -1 - self.size)
        starts = jnp.concatenate([nowhere, sources, nowhere])
        lists = {"starts": starts.T.reshape(-1), "offsets": jnp.clip(offsets, 0, self.size).T.reshape(-1)}
        total = jnp.clip(self.total - here, 0, self.size).reshape(1)
        return gather_rows(x=rows, **lists, total=total, fill_value=fill, size=self.size, disjoint=False)[0]


jax.tree_util.register_pytree_node(_Runs, _Runs.flatten, _Runs.unflatten)
