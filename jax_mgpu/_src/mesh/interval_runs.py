"""`interval_gather` over a mesh axis for few, long intervals: all devices know them, and send runs of rows."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.core.compat import stack
from jax_mgpu._src.functions.operators import Kind
from jax_mgpu._src.keys.bits import keeping_bits
from jax_mgpu._src.mesh.axis import Axis, before
from jax_mgpu._src.mesh.exchange import Parts, by_platform, in_rounds, send
from jax_mgpu._src.ops.intervals import gather_rows, move_rows
from jax_mgpu._src.ops.scan import scan_columns
from jax_mgpu._src.ops.sorted_search import insertion_points

# XLA's exchange copies rows in words of up to this many bytes.
UNIT_BYTES = 16


def fits(axis: Axis, intervals: int, size: int) -> bool:
    """Whether a device has room for data of all intervals and devices."""
    return axis.size**2 * intervals <= size


def gather_runs(
    axis: Axis, rows: jax.Array, starts: jax.Array, offsets: jax.Array, whole: jax.Array, fill: jax.Array, size: int
) -> jax.Array:
    """Returns this device's slots.

    Args:
      axis: the devices.
      rows: this device's rows, `[n, width]`.
      starts: `[m]`, where this device's intervals start in the global array, in a type that holds sums of positions.
      offsets: `[m]`, where they start among the slots of all devices, of the same type, at most `whole`.
      whole: the rows of all intervals.
      fill: the fill element, `[1]`.
      size: the number of slots of a device.
    """
    starts, offsets = (x.reshape(-1) for x in axis.gather((starts, offsets)))
    forms = (functools.partial(form, axis, size) for form in (_gathered, _spread))
    move = by_platform(axis, *forms)
    return keeping_bits(move, rows, starts, offsets, whole.astype(offsets.dtype), fill.astype(rows.dtype), adds=True)


def _gathered(
    axis: Axis, size: int, rows: jax.Array, starts: jax.Array, offsets: jax.Array, whole: jax.Array, fill: jax.Array
) -> jax.Array:
    """Gathers all rows on all devices: for CPU devices, which share their memory, and for axes within one device."""
    here = axis.index.astype(offsets.dtype) * size
    offsets = offsets - here
    everything = jax.lax.all_gather(rows, axis.name, tiled=True)
    return _gather(everything, starts + jnp.maximum(-offsets, 0), offsets, whole - here, fill, size)


def _spread(
    axis: Axis, size: int, rows: jax.Array, starts: jax.Array, offsets: jax.Array, whole: jax.Array, fill: jax.Array
) -> jax.Array:
    """Gathers this device's own rows first, then moves those that it receives to the slots between them."""
    runs = _Runs(axis, rows, starts, offsets, whole, size)
    return runs.with_received(runs.received(rows), runs.of_own(rows, fill))


def _gather(
    rows: jax.Array, starts: jax.Array, offsets: jax.Array, end: jax.Array, fill: jax.Array, size: int
) -> jax.Array:
    """Returns slots 0 to `size` of runs. `starts` have the rows of their first slots that are not negative."""
    lists = {"starts": starts, "offsets": jnp.clip(offsets, 0, size), "fill_value": fill}
    return gather_rows(x=rows, **lists, total=jnp.clip(end, 0, size).reshape(1), size=size, disjoint=False)[0]


class _Runs:
    """The rows that each device sends to each other one. A run is the part of an interval on one device.

    A device packs its runs in the order of slots, so the rows for another device are a range of packed rows. They are
    sent in units of several rows; the receiver skips rows of the first and last unit that it did not ask for.
    """

    def __init__(self, axis: Axis, rows: jax.Array, starts: jax.Array, offsets: jax.Array, whole: jax.Array, size: int):
        self.axis, self.size, self.n, dtype = axis, size, rows.shape[0], offsets.dtype
        row_bytes = rows.shape[1] * rows.dtype.itemsize
        self.unit = UNIT_BYTES // row_bytes if row_bytes and UNIT_BYTES % row_bytes == 0 else 1
        self.starts, self.offsets, self.total = starts, offsets, whole
        lengths = jnp.append(offsets[1:], whole[None]) - offsets
        edges = jnp.arange(axis.size + 1, dtype=dtype)[:, None] * self.n
        # [devices + 1, intervals]: where the rows of each device begin in each interval.
        self.cuts = jnp.clip(edges - starts, 0, lengths)
        sizes = self.cuts[1:] - self.cuts[:-1]
        self.packed = jax.vmap(lambda x: scan_columns(x, Kind.ADD, exclusive=True))(sizes)  # [devices, intervals]
        # Where each device's packed rows for the slots of each device begin: [from, to + 1].
        bounds = jnp.arange(axis.size + 1, dtype=dtype) * size
        at = jnp.maximum(insertion_points(bounds, offsets, right=True).astype(dtype) - 1, 0)
        ends = self.packed[:, at] + jnp.clip(bounds - offsets[at] - self.cuts[:-1, at], 0, sizes[:, at])
        # [from, to]: the rows that are sent begin at `firsts`, and the units that have them at `begins`.
        self.firsts, ends = ends[:, :-1], ends[:, 1:]
        self.lengths = jnp.where(axis.devices[:, None] != axis.devices, jnp.maximum(ends - self.firsts, 0), 0)
        self.begins = self.firsts // self.unit
        self.ends = jnp.where(self.lengths > 0, -(-ends // self.unit), self.begins)
        self.places = Parts(axis, self.begins, self.ends - self.begins, self._slots).places

    @property
    def _slots(self) -> int:
        """The number of units that a device can receive."""
        return -(-self.size // self.unit) + 2 * self.axis.size

    def received(self, rows: jax.Array) -> jax.Array:
        """Returns the rows that other devices send, in units."""
        axis, dtype, width = self.axis, self.starts.dtype, rows.shape[1] * self.unit
        window = -(-self.size // self.unit) + 2  # packed units per round
        sent = self.ends > self.begins
        last = jnp.max(jnp.where(sent, self.ends, 0), axis=1)
        first = jnp.min(jnp.where(sent, self.begins, last[:, None]), axis=1)
        needed = -(-jnp.max(last - first) // window)  # equal on all devices, which must all enter a round or none
        # Of two devices, each sends one range of packed rows, which fits one round.
        most = 1 if axis.size == 2 else axis.size

        def send_window(done: jax.Array, into: jax.Array) -> jax.Array:
            begin = first + jnp.asarray(done, dtype) * window
            units = self._packed(rows, axis.own(begin) * self.unit, window * self.unit).reshape(window, width)
            begin = begin[:, None]
            low, high = (jnp.clip(x, self.begins, self.ends) for x in (begin, begin + window))
            moved = jnp.clip(low - begin, 0, window), self.places + low - self.begins, high - low
            return send(Parts.unflatten((axis, into.shape[0]), moved), units, into)

        into = axis.varying(jnp.zeros((self._slots, width), rows.dtype))
        return in_rounds(send_window, needed, most, into).reshape(-1, rows.shape[1])

    def _packed(self, rows: jax.Array, begin: jax.Array, size: int) -> jax.Array:
        """Returns this device's packed rows from `begin` on, `[size, width]`."""
        axis = self.axis
        packed, cut = axis.own(self.packed), axis.own(self.cuts[:-1])
        total = packed[-1] + axis.own(self.cuts[1:])[-1] - cut[-1]
        offsets = packed - begin
        starts = self.starts + cut - axis.index.astype(cut.dtype) * self.n + jnp.maximum(-offsets, 0)
        return _gather(rows, starts, offsets, total - begin, jnp.zeros((1,), rows.dtype), size)

    def of_own(self, rows: jax.Array, fill: jax.Array) -> jax.Array:
        """Returns this device's slots, with its own rows and the fill element in all others."""
        axis, dtype = self.axis, self.starts.dtype
        here, cut = axis.index.astype(dtype) * self.size, axis.own(self.cuts[:-1])
        begins, ends = (self.offsets + x - here for x in (cut, axis.own(self.cuts[1:])))
        sources = self.starts + cut - axis.index.astype(dtype) * self.n + jnp.maximum(-begins, 0)
        # After each part that lies on this device come slots without own rows.
        nowhere = jnp.full_like(sources, -1 - self.size)
        starts, offsets = (stack(x, -1).reshape(-1) for x in ([sources, nowhere], [begins, ends]))
        return _gather(rows, starts, offsets, self.total - here, fill, self.size)

    def with_received(self, rows: jax.Array, into: jax.Array) -> jax.Array:
        """Returns slots with the received rows in their places."""
        axis, dtype = self.axis, self.starts.dtype
        others = (axis.index + np.arange(1, axis.size, dtype=np.int32)) % axis.size
        first, length, begin, place = (
            axis.own(x, 1)[others][:, None] for x in (self.firsts, self.lengths, self.begins, self.places)
        )
        packed = self.packed[others]
        places = self.offsets + self.cuts[others] - axis.index.astype(dtype) * self.size
        offsets = before(length) + jnp.clip(packed - first, 0, length)
        sources = (place - begin) * self.unit + jnp.maximum(packed, first)
        sources, places, offsets = (x.reshape(-1) for x in (sources, jnp.maximum(places, 0), offsets))
        return move_rows(rows, sources, places, offsets, length.sum(dtype=dtype).reshape(1), into)
