"""`interval_gather` over a mesh axis for few, long intervals: all devices know them, and send runs of rows."""

from __future__ import annotations

import copy
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


def fits(axis: Axis, intervals: int, size: int) -> bool:
    """Whether an array `[devices, intervals of all devices]` has no more entries than a device has slots."""
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
      whole: the number of rows of all intervals together.
      fill: the fill element, `[1]`.
      size: the number of slots of a device.
    """
    starts, offsets = jnp.moveaxis(axis.gather(stack([starts, offsets])), 1, 0).reshape(2, -1)
    forms = (functools.partial(form, axis, size) for form in (_gathered, _spread))
    move = by_platform(axis, *forms)
    return keeping_bits(move, rows, starts, offsets, whole.astype(offsets.dtype), fill.astype(rows.dtype), adds=True)


def _gathered(
    axis: Axis, size: int, rows: jax.Array, starts: jax.Array, offsets: jax.Array, whole: jax.Array, fill: jax.Array
) -> jax.Array:
    """Gathers all rows on all devices, for devices that share their memory."""
    here = axis.index.astype(offsets.dtype) * size
    offsets = offsets - here
    everything = jax.lax.all_gather(rows, axis.name, tiled=True)
    return _gather(everything, starts + jnp.maximum(-offsets, 0), offsets, whole - here, fill, size)


def _spread(
    axis: Axis, size: int, rows: jax.Array, starts: jax.Array, offsets: jax.Array, whole: jax.Array, fill: jax.Array
) -> jax.Array:
    """Gathers own rows while others travel, and moves received ones to the slots between them."""
    runs = _Runs(axis, rows, starts, offsets, whole, size)
    received, runs = runs.received(rows)
    # The barrier lets XLA compute the moves and gather own rows while other rows travel.
    ready = jax.lax.optimization_barrier((received, *runs.moves(), runs.of_own(rows, fill)))
    return move_rows(*ready)


def _gather(
    rows: jax.Array, starts: jax.Array, offsets: jax.Array, end: jax.Array, fill: jax.Array, size: int
) -> jax.Array:
    """Returns slots 0 to `size`, which runs of rows fill.

    `starts` has, for each run, the row of its first slot from 0 on.
    """
    lists = {"starts": starts, "offsets": jnp.clip(offsets, 0, size), "fill_value": fill}
    return gather_rows(x=rows, **lists, total=jnp.clip(end, 0, size).reshape(1), size=size, disjoint=False)[0]


class _Runs:
    """The rows that each device sends to every other one. A run is the part of an interval on one device.

    A device packs its runs in the order of slots, so the rows for another device are a range of packed rows.
    """

    def __init__(self, axis: Axis, rows: jax.Array, starts: jax.Array, offsets: jax.Array, whole: jax.Array, size: int):
        self.axis, self.size, self.n, dtype = axis, size, rows.shape[0], offsets.dtype
        self.starts, self.offsets, self.total = starts, offsets, whole
        cuts = self.cuts
        sizes = cuts[1:] - cuts[:-1]
        self.packed = jax.vmap(lambda x: scan_columns(x, Kind.ADD, exclusive=True))(sizes)  # [devices, intervals]
        # Where each device's packed rows for the slots of each device begin: [from, to + 1].
        bounds = jnp.arange(axis.size + 1, dtype=dtype) * size
        at = jnp.maximum(insertion_points(bounds, offsets, right=True).astype(dtype) - 1, 0)
        ends = self.packed[:, at] + jnp.clip(bounds - offsets[at] - cuts[:-1, at], 0, sizes[:, at])
        self.begins, ends = ends[:, :-1], ends[:, 1:]  # [from, to]: where the packed rows that are sent begin
        self.lengths = jnp.where(axis.devices[:, None] != axis.devices, jnp.maximum(ends - self.begins, 0), 0)
        self.places = Parts(axis, self.begins, self.lengths, size).places

    @property
    def cuts(self) -> jax.Array:
        """Where each device's rows begin in each interval, `[devices + 1, intervals]`."""
        lengths = jnp.append(self.offsets[1:], self.total[None]) - self.offsets
        edges = jnp.arange(self.axis.size + 1, dtype=self.offsets.dtype)[:, None] * self.n
        return jnp.clip(edges - self.starts, 0, lengths)

    def _after(self, x: jax.Array) -> tuple[jax.Array, _Runs]:
        """Returns x, and these runs, of which XLA computes nothing more before it has x."""
        later = copy.copy(self)
        barrier = jax.lax.optimization_barrier((x, self.starts, self.offsets, self.packed))
        x, later.starts, later.offsets, later.packed = barrier
        return x, later

    def received(self, rows: jax.Array) -> tuple[jax.Array, _Runs]:
        """Returns the rows that other devices send, and the runs for what follows."""
        axis, size, ends = self.axis, self.size, self.begins + self.lengths
        last = jnp.max(jnp.where(self.lengths > 0, ends, 0), axis=1)
        first = jnp.min(jnp.where(self.lengths > 0, self.begins, last[:, None]), axis=1)

        def send_from(begin: jax.Array, window: jax.Array, into: jax.Array) -> jax.Array:
            begin = begin[:, None]
            low, high = (jnp.clip(x, self.begins, ends) for x in (begin, begin + size))
            moved = jnp.clip(low - begin, 0, size), self.places + low - self.begins, high - low
            return send(Parts.unflatten((axis, size), moved), window, into)

        def send_window(done: jax.Array, into: jax.Array) -> jax.Array:
            begin = first + jnp.asarray(done, first.dtype) * size
            return send_from(begin, self._packed(rows, axis.own(begin)), into)

        into = axis.varying(jax.lax.empty((size, rows.shape[1]), rows.dtype))
        if axis.size == 2:
            window, later = self._after(self._packed(rows, axis.own(first)))
            return send_from(first, window, into), later
        needed = -(-jnp.max(last - first) // size)  # equal on all devices, which must all enter a round or none
        return in_rounds(send_window, needed, axis.size, into), self

    def _packed(self, rows: jax.Array, begin: jax.Array) -> jax.Array:
        """Returns this device's packed rows from `begin` on, `[size, width]`."""
        axis = self.axis
        cuts, packed = self.cuts, axis.own(self.packed)
        cut = axis.own(cuts[:-1])
        total = packed[-1] + axis.own(cuts[1:])[-1] - cut[-1]
        offsets = packed - begin
        starts = self.starts + cut - axis.index.astype(cut.dtype) * self.n + jnp.maximum(-offsets, 0)
        return _gather(rows, starts, offsets, total - begin, jnp.zeros((1,), rows.dtype), self.size)

    def of_own(self, rows: jax.Array, fill: jax.Array) -> jax.Array:
        """Returns this device's slots, with its own rows and the fill element in all others."""
        axis, dtype = self.axis, self.starts.dtype
        here, cuts = axis.index.astype(dtype) * self.size, self.cuts
        cut = axis.own(cuts[:-1])
        begins, ends = (self.offsets + x - here for x in (cut, axis.own(cuts[1:])))
        sources = self.starts + cut - axis.index.astype(dtype) * self.n + jnp.maximum(-begins, 0)
        # After each part that lies on this device come slots without own rows.
        nowhere = jnp.full_like(sources, -1 - self.size)
        starts, offsets = (stack(x, -1).reshape(-1) for x in ([sources, nowhere], [begins, ends]))
        return _gather(rows, starts, offsets, self.total - here, fill, self.size)

    def moves(self) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Returns the runs that bring received rows to their slots, as `move_rows` takes them."""
        axis, dtype = self.axis, self.starts.dtype
        others = (axis.index + np.arange(1, axis.size, dtype=np.int32)) % axis.size
        begin, length, place = (axis.own(x, 1)[others][:, None] for x in (self.begins, self.lengths, self.places))
        packed = self.packed[others]
        places = self.offsets + self.cuts[others] - axis.index.astype(dtype) * self.size
        offsets = before(length) + jnp.clip(packed - begin, 0, length)
        sources = place + jnp.maximum(packed - begin, 0)
        total = length.sum(dtype=dtype).reshape(1)
        return sources.reshape(-1), jnp.maximum(places, 0).reshape(-1), offsets.reshape(-1), total
