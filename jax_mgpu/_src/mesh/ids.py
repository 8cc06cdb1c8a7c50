"""Reductions by id over a mesh axis."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.core.compat import axes_bound
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.functions.operators import Kind, accumulator_dtype, builtin
from jax_mgpu._src.keys.bits import keeping_bits
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.exchange import Parts, by_size, everywhere, exchange
from jax_mgpu._src.mesh.sorts import sort
from jax_mgpu._src.ops.reduce import _run_heads, reduce_rows, take_columns
from jax_mgpu._src.ops.reduce_by_id import _has_id, _reduce_by_id
from jax_mgpu._src.ops.sorted_search import insertion_points


def reduce_by_id(axis: Axis, kind: Kind, x: jax.Array, ids: jax.Array, count: jax.Array, *, size: int) -> jax.Array:
    """Returns this device's results, `[size, width]`, for the `size` ids from `size * axis.index` on.

    If devices do not gather all items (`by_size`), there are two ways. If all devices together have no more results
    than one has items, each device combines its items into all results, and sends each result to its owner. Otherwise
    items are sorted by id over all devices, and the results of runs are sent. A run may span devices, so a device
    receives at most `size` results and one more per device.
    """
    n, width = x.shape
    if kind in (Kind.ADD, Kind.MUL, Kind.LOGSUMEXP):
        x = x.astype(accumulator_dtype(x.dtype))
    live = axis.live("x", n, count)
    leaves = [x]
    if kind.gives_index:  # an extremum travels with the global position of its item
        places = axis.begin(axis.gather(live)) + jnp.arange(n, dtype=live.dtype)
        leaves.append(jnp.broadcast_to(places[:, None], x.shape))
    if n == 0 or size == 0:
        nothing = builtin(kind, x.dtype)
        return axis.varying(jnp.full((size, width), nothing.finish(nothing.identity), leaves[-1].dtype))

    def gathered(leaves: list[jax.Array], ids: jax.Array, live: jax.Array) -> jax.Array:
        counts = axis.gather(live)
        rows = [keeping_bits(lambda x, counts: everywhere(axis, x, counts)[0], x, counts) for x in leaves]
        ids, _, total = everywhere(axis, ids, counts)
        first = axis.index.astype(ids.dtype) * size
        ids = jnp.where((ids >= first) & (ids - first < size), ids - first, -1)
        found = _reduce_by_id(x=rows[0], ids=ids, count=total, op=kind, wide=False, size=size)[0]
        return _chosen(rows, found)[-1]

    def spread(leaves: list[jax.Array], ids: jax.Array, live: jax.Array) -> jax.Array:
        received = _from_all if axis.size * size <= n else _from_runs
        ids, leaves = received(axis, kind, leaves, ids, live, size)
        found = _reduce_by_id(x=leaves[0], ids=ids, count=ABSENT, op=kind, wide=False, size=size)[0]
        return _chosen(leaves, found)[-1]

    with by_construction():
        return by_size(axis, n, gathered, spread)(leaves, ids, live)


def _chosen(leaves: list[jax.Array], found: jax.Array) -> list[jax.Array]:
    """Returns the results or, for argmin and argmax, the items and positions at these indices."""
    if len(leaves) == 1:
        return [found]
    return [take_columns(leaves[0], found), jnp.where(found < 0, -1, take_columns(leaves[1], found))]


def _from_all(
    axis: Axis, kind: Kind, leaves: list[jax.Array], ids: jax.Array, live: jax.Array, size: int
) -> tuple[jax.Array, list[jax.Array]]:
    """Returns a result from each device for each of this device's ids, in the order of devices."""
    found = _reduce_by_id(x=leaves[0], ids=ids, count=live.reshape(1), op=kind, wide=False, size=axis.size * size)[0]
    bound = axes_bound(axis.name)

    def send(x: jax.Array) -> jax.Array:
        with bound():
            result: jax.Array = jax.lax.all_to_all(x, axis.name, 0, 0, tiled=True)
            return result

    leaves = [keeping_bits(send, x) for x in _chosen(leaves, found)]
    ids = jnp.tile(jnp.arange(size, dtype=live.dtype), axis.size)
    return jnp.where(leaves[1][:, 0] < 0, -1, ids) if kind.gives_index else ids, leaves


def _from_runs(
    axis: Axis, kind: Kind, leaves: list[jax.Array], ids: jax.Array, live: jax.Array, size: int
) -> tuple[jax.Array, list[jax.Array]]:
    """Returns the results of runs of this device's ids, in the order of ids."""
    n, total = leaves[0].shape[0], axis.size * size
    dtype = np.min_scalar_type(total)
    keys = jnp.where(_has_id(ids, live.reshape(1), total), ids, total).astype(dtype)
    keys, leaves, live = sort(axis, keys, leaves, count=live, bits=total.bit_length())
    heads, firsts, _, runs = _run_heads(keys=keys, count=live.reshape(1), size=min(n, total + 1))
    found = reduce_rows(x=leaves[0], heads=heads, indices=ABSENT, count=live.reshape(1), op=kind, wide=False)[0]
    firsts = jnp.where(jnp.arange(heads.shape[0]) < runs, firsts, total)
    edges = insertion_points(jnp.asarray((np.arange(axis.size + 1) * size).astype(dtype)), firsts).astype(live.dtype)
    parts = Parts.between(axis, axis.gather(edges), size + axis.size)
    firsts, *leaves = exchange(parts, [firsts, *_chosen(leaves, found)])
    slot = jnp.arange(parts.slots, dtype=live.dtype)
    return jnp.where(slot < parts.total, firsts.astype(live.dtype) - axis.index * size, -1), leaves
