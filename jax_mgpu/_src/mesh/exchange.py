"""Exchanges parts of arrays between devices, by the collectives that suit the program's platform."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.rows import RowForm
from jax_mgpu._src.core.compat import axes_bound, cond, fori_loop, platform_dependent, surely
from jax_mgpu._src.keys.bits import keeping_bits
from jax_mgpu._src.mesh.axis import Axis, before
from jax_mgpu._src.ops.intervals import gather_rows, move_rows
from jax_mgpu._src.ops.scan import scan

T = TypeVar("T")

# The most updates (contiguous pieces) of a part in a ragged all-to-all. XLA:GPU copies an odd number of updates faster.
MOST_UPDATES = 1023
# A part is cut at multiples of LINE_ITEMS items of the receiver's array.
LINE_ITEMS = 32
# For more than MAX_RAGGED devices, XLA:GPU uses NCCL, with an operation per update.
MAX_RAGGED = 8
# If devices share their memory and have at most FEW_ITEMS slots in all, each device may do the whole operation, because
# such programs compile faster (`by_size`).
FEW_ITEMS = 1 << 16


class Parts:
    """How many items each device sends to each device, and from where; known to all devices.

    Args:
      starts: `[..., from, to]`, where the part begins in the sender's array.
      sizes: `[..., from, to]`, the number of its items.
      slots: the number of slots that receive.
      behind: other parts, after which these are placed in the same slots.
    """

    sizes: jax.Array

    def __init__(self, axis: Axis, starts: jax.Array, sizes: jax.Array, slots: int, *, behind: Parts | None = None):
        self.axis, self.starts, self.slots = axis, starts, slots
        begins = before(sizes)
        if behind is not None:
            begins += behind.sizes.sum(0, dtype=sizes.dtype)
        # Items without a slot are not sent.
        self.places = jnp.minimum(begins, slots)  # on the receiver, [from, to]
        self.sizes = jnp.minimum(begins + sizes, slots) - self.places

    @classmethod
    def between(cls, axis: Axis, edges: jax.Array, slots: int) -> Parts:
        """Device i sends its items from `edges[i, j]` to `edges[i, j + 1]` to device j; none where edges descend."""
        return cls(axis, edges[..., :-1], jnp.maximum(edges[..., 1:] - edges[..., :-1], 0), slots)

    def behind(self, other: Parts) -> Parts:
        """Returns the same parts, received in the same slots after other parts."""
        return Parts(self.axis, self.starts, self.sizes, self.slots, behind=other)

    def back(self, chunk: int) -> Parts:
        """Returns the parts that bring items back to their senders; those from device i get slots `i * chunk` on."""
        places = jnp.broadcast_to(self.axis.devices.astype(self.sizes.dtype)[:, None] * chunk, self.sizes.shape)
        return Parts.unflatten((self.axis, self.axis.size * chunk), (self.places.T, places, self.sizes.T))

    def of_others(self) -> Parts:
        """Returns the same parts, without those that devices keep."""
        sizes = jnp.where(self.axis.devices[:, None] == self.axis.devices, 0, self.sizes)
        return Parts.unflatten((self.axis, self.slots), (self.starts, self.places, sizes))

    def in_slots(self, slots: int) -> Parts:
        """Returns the same parts with more slots."""
        return Parts.unflatten((self.axis, slots), (self.starts, self.places, self.sizes))

    @property
    def received(self) -> jax.Array:
        """How many items this device gets from each device: `[devices]`."""
        return self.axis.own(self.sizes, 1)

    @property
    def begins(self) -> jax.Array:
        """Where the parts from each device begin on this one: `[devices]`."""
        return self.axis.own(self.places, 1)

    @property
    def total(self) -> jax.Array:
        """How many items this device gets in all."""
        return self.axis.own(self.places[-1] + self.sizes[-1] - self.places[0])

    def flatten(self) -> tuple[Any, Any]:
        """Returns the traced arrays, and the static values."""
        return (self.starts, self.places, self.sizes), (self.axis, self.slots)

    @classmethod
    def unflatten(cls, fixed: Any, arrays: Any) -> Parts:
        """Returns the inverse of `flatten`."""
        parts = cls.__new__(cls)
        (parts.axis, parts.slots), (parts.starts, parts.places, parts.sizes) = fixed, arrays
        return parts


jax.tree_util.register_pytree_node(Parts, Parts.flatten, Parts.unflatten)


def exchange(
    parts: Parts, leaves: Sequence[jax.Array], *, fill: int | None = 0, most_travel: bool = False
) -> list[jax.Array]:
    """Returns arrays of the items that this device receives, in the order of the devices, each followed by `fill`.

    If `fill` is None, any values follow. If most items travel, XLA:GPU also copies the others during the exchange.
    """
    return exchange_together([[parts]], [leaves], fill=fill, most_travel=most_travel)


def exchange_together(
    parts: Sequence[Sequence[Parts]],
    sources: Sequence[Sequence[jax.Array]],
    *,
    fill: int | None = 0,
    most_travel: bool = False,
) -> list[jax.Array]:
    """`exchange` for the leaves of several sources, each with one or more parts, received in the same slots."""
    axis, slots = parts[0][0].axis, parts[0][0].slots
    run = _runner(axis, fill=fill or 0, most_travel=most_travel)

    def move(arrays: Sequence[jax.Array], parts: Sequence[Sequence[Parts]]) -> jax.Array:
        sent = [(list(parts_of), x) for parts_of, x in zip(parts, arrays, strict=True) if x.shape[0] > 0]
        shape, dtype = (slots, *arrays[0].shape[1:]), arrays[0].dtype
        if fill is None and sent:
            return run(sent, axis.varying(jax.lax.empty(shape, dtype)))
        value = jnp.asarray(fill or 0, dtype)
        if most_travel:  # slots that are filled once the arrays are made can reuse memory that was needed to make them
            value, *_ = jax.lax.optimization_barrier((value, *arrays))
        return run(sent, axis.varying(jnp.full(shape, value)))

    return [keeping_bits(move, list(arrays), list(parts)) for arrays in zip(*sources, strict=True)]


def send(parts: Parts, x: jax.Array, into: jax.Array) -> jax.Array:
    """Returns `into` with the received items in their places."""
    run = _runner(parts.axis, fill=None, most_travel=True)

    def move(arrays: Sequence[jax.Array], parts: Parts) -> jax.Array:
        return run([([parts], arrays[0])], arrays[1])

    return keeping_bits(move, [x, into], parts)


Sent = Sequence[tuple[Sequence[Parts], jax.Array]]


def _runner(axis: Axis, *, fill: int | None, most_travel: bool) -> Callable[[Sent, jax.Array], jax.Array]:
    """Returns the exchange in the form of the platform.

    A `fill` follows the items. With None, slots without items keep their values.
    """
    # XLA:GPU refuses ragged all-to-alls over several processes.
    is_ragged = jax.process_count() == 1 and axis.size <= MAX_RAGGED
    spread = functools.partial(_ragged, most_travel=most_travel) if is_ragged else _chunked
    run = by_platform(axis, functools.partial(_gathered, fill=fill), spread)

    return lambda sent, into: run(sent, into) if sent else into


def by_platform(axis: Axis, gathered: Callable[..., T], spread: Callable[..., T]) -> Callable[..., T]:
    """Calls `gathered` where devices share their memory (`Axis.shares_memory`), else `spread`.

    If the mesh names its devices, only the form of their platform is traced. Otherwise both are, and the lowered
    program has one.
    """
    bound, known = axes_bound(axis.name), axis.shares_memory

    def of(form: Callable[..., T], shares_memory: bool) -> Callable[..., T]:
        def run(*operands: Any) -> T:
            outer, axis.shares_memory = axis.shares_memory, shares_memory
            try:
                return form(*operands)
            finally:
                axis.shares_memory = outer

        return run

    here, apart = of(gathered, True), of(spread, False)

    def run(*operands: Any) -> T:
        with bound():
            if known is None:
                return platform_dependent(*operands, cpu=here, default=apart)
            return (here if known else apart)(*operands)

    return run


def by_size(axis: Axis, slots: int, gathered: Callable[..., T], spread: Callable[..., T]) -> Callable[..., T]:
    """`by_platform`, if all devices have few `slots`; else `spread`."""
    are_few = surely(lambda: 0 < axis.size * slots <= FEW_ITEMS)
    return by_platform(axis, gathered, spread) if are_few else spread


def everywhere(
    axis: Axis, x: jax.Array, counts: jax.Array, edges: tuple[jax.Array, jax.Array] | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the live rows of all devices on each device, followed by 0; for devices that share their memory.

    Args:
      axis: the devices.
      x: this device's rows.
      counts: the rows of each device.
      edges: the last two results of an earlier call with these counts.

    Returns: The rows, where those of each device begin and the last ones end, and the number of all rows, `[1]`.
    """
    return all_everywhere(axis, [x], [counts], edges)


def all_everywhere(
    axis: Axis,
    arrays: Sequence[jax.Array],
    counts: Sequence[jax.Array],
    edges: tuple[jax.Array, jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`everywhere` for several arrays, in one result: the rows of the first one come first."""
    dtype, form, slots = counts[0].dtype, RowForm(axis.operation, "x", arrays[0]), [x.shape[0] for x in arrays]
    ends = np.cumsum([axis.size * n for n in slots])
    begins = [end - axis.size * n + np.arange(axis.size) * n for n, end in zip(slots, ends, strict=True)]
    # The last run is empty. Without its 0, XLA:CPU would compile a kernel that makes these evenly spaced numbers.
    starts = np.concatenate([*begins, [0]]).astype(dtype)
    if edges is None:
        offsets, total = scan(jnp.concatenate([*counts, np.zeros(1, dtype)]), exclusive=True, return_total=True)
        edges = offsets, total.reshape(1)
    offsets, total = edges
    gathered = [axis.gather_rows(form.pack("x", x)) for x in arrays]
    every = jnp.concatenate(gathered) if len(arrays) > 1 else gathered[0]
    runs = {"starts": starts, "offsets": offsets, "total": total, "fill_value": form.fill(0)}
    rows = gather_rows(x=every, **runs, size=int(ends[-1]), disjoint=True)
    return form.unpack(rows[0]), offsets, total


def _gathered(sent: Sent, into: jax.Array, *, fill: int | None) -> jax.Array:
    """Gathers all arrays on all devices, for devices that share their memory.

    A kernel copies the runs that a device receives, one per sender.
    """
    is_first = fill is not None
    for parts_of, x in sent:
        axis, form = parts_of[0].axis, RowForm(parts_of[0].axis.operation, "x", x)
        everything = jax.lax.all_gather(form.pack("x", x), axis.name, tiled=True)
        for parts in parts_of:
            starts = axis.own(parts.starts, 1) + x.shape[0] * axis.devices.astype(parts.starts.dtype)
            if fill is None:  # runs may come in any order of places
                lengths = parts.received
                offsets, total = before(lengths[:, None])[:, 0], lengths.sum(dtype=lengths.dtype).reshape(1)
                into = form.unpack(move_rows(everything, starts, parts.begins, offsets, total, form.pack("into", into)))
                continue
            end = parts.total if is_first else parts.begins[0] + parts.total
            runs = {"starts": starts, "offsets": parts.begins, "total": end.reshape(1), "fill_value": form.fill(fill)}
            # No item of one sender comes to a device twice.
            taken = form.unpack(gather_rows(x=everything, **runs, size=parts.slots, disjoint=True)[0])
            if not is_first:
                slot = jnp.arange(parts.slots, dtype=parts.sizes.dtype)
                taken = jnp.where(_along(slot < parts.begins[0], taken), into, taken)
            into, is_first = taken, False
    return into


def _ragged(sent: Sent, into: jax.Array, *, most_travel: bool) -> jax.Array:
    """Sends parts by ragged all-to-alls, each part cut into updates.

    One exchange sends all parts of an array. If most items travel, it also copies a device's own parts. Otherwise a
    pass before the exchanges copies them.
    """
    axis = sent[0][0][0].axis
    for parts_of, x in () if most_travel else sent:
        source = kept = jnp.zeros((), parts_of[0].sizes.dtype)
        for i, parts in enumerate(parts_of):
            place, size, start = (axis.own(axis.own(x)) for x in (parts.places, parts.sizes, parts.starts))
            rank = jnp.arange(parts.slots, dtype=parts.sizes.dtype) - place
            here = (rank >= 0) & (rank < size)
            source, kept = (jnp.where(here, rank + start, source), kept | here) if i else (rank + start, here)
        own = x.at[source].get(mode="clip")
        into = axis.varying(jnp.where(_along(kept, own), own, into))
    for parts_of, x in sent:
        updates = zip(*(_updates(parts if most_travel else parts.of_others()) for parts in parts_of), strict=True)
        lists = [jnp.concatenate(part, axis=1).reshape(-1) for part in updates]
        into = jax.lax.ragged_all_to_all(x, into, *lists, axis_name=axis.name)
    return into


def _updates(parts: Parts) -> list[jax.Array]:
    """Returns where updates to each device begin, their sizes and places, and the sizes of received ones.

    Each is `[devices, updates]`.
    """
    axis, number = parts.axis, min(MOST_UPDATES, parts.slots // LINE_ITEMS | 1)
    updates = jnp.arange(number + 1, dtype=parts.sizes.dtype)

    def cut(sizes: jax.Array, places: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns where the updates of parts of these sizes begin, and their sizes."""
        sizes, places = sizes[:, None], places[:, None]
        edges = sizes // number * updates + sizes % number * updates // number
        aligned = jnp.maximum(((places + edges) & -LINE_ITEMS) - places, 0)
        edges = jnp.where(updates == number, sizes, aligned)
        return edges[:, :-1], edges[:, 1:] - edges[:, :-1]

    own_starts, own_places = (axis.own(x)[:, None] for x in (parts.starts, parts.places))
    begins, sizes = cut(axis.own(parts.sizes), axis.own(parts.places))
    return [own_starts + begins, sizes, own_places + begins, cut(parts.received, parts.begins)[1]]


def _chunked(sent: Sent, into: jax.Array) -> jax.Array:
    """Exchanges items in rounds of all-to-alls of equal chunks."""
    for parts_of, x in sent:
        for parts in parts_of:
            into = _in_chunks(parts, x, parts.axis.varying(into))
    return into


def _in_chunks(parts: Parts, x: jax.Array, into: jax.Array) -> jax.Array:
    """Exchanges an array in rounds of equal chunks: one round if parts are about equal, at most as many as devices."""
    axis, slots, dtype = parts.axis, x.shape[0], parts.sizes.dtype
    chunk = max(1, -(-slots // axis.size) + -(-slots // (32 * axis.size)))
    max_rounds = -(-slots // chunk)
    needed = -(-jnp.max(parts.sizes) // chunk)  # equal on all devices, which must all enter a round or none
    item = jnp.arange(chunk, dtype=dtype)
    unused = parts.slots + jnp.arange(axis.size * chunk, dtype=dtype)  # distinct places outside of the result
    own_starts = axis.own(parts.starts)[:, None]

    def send(done: jax.Array, into: jax.Array) -> jax.Array:
        at = jnp.asarray(done, dtype) * chunk + item
        chunks = x.at[own_starts + at].get(mode="clip")
        chunks = jax.lax.all_to_all(chunks, axis.name, 0, 0)
        places = jnp.where(at < parts.received[:, None], parts.begins[:, None] + at, unused.reshape(-1, chunk))
        return into.at[places].set(chunks, mode="drop", unique_indices=True)

    return in_rounds(send, needed, max_rounds, into)


def in_rounds(
    step: Callable[[jax.Array, jax.Array], jax.Array], needed: jax.Array, most: int, into: jax.Array
) -> jax.Array:
    """Calls `step(done, into)` in `needed` rounds, or in one if `most` is 1.

    `needed` must be the same on all devices, and at most `most`.
    """
    if most == 1:
        return step(jnp.zeros((), needed.dtype), into)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def round_of(done: jax.Array, into: jax.Array) -> jax.Array:
        result: jax.Array = cond(jnp.asarray(done, needed.dtype) < needed, step, lambda _, into: into, done, into)
        return result

    return fori_loop(0, most, round_of, into)


def _along(mask: jax.Array, rows: jax.Array) -> jax.Array:
    return mask.reshape(-1, *[1] * (rows.ndim - 1))
