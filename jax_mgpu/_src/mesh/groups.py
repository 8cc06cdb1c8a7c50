"""Groups of equal keys over a mesh axis: keys are sorted, and a group is on the device that holds its first key."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.check import index_dtype
from jax_mgpu._src.arguments.preconditions import by_construction, room
from jax_mgpu._src.arguments.values import plain_leaves
from jax_mgpu._src.core.compat import flatten
from jax_mgpu._src.functions.combination import Combination
from jax_mgpu._src.keys.columns import Columns, alike
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.exchange import by_size, everywhere
from jax_mgpu._src.mesh.remote_gather import Share, fetch
from jax_mgpu._src.mesh.sorts import keys_of_all, sort
from jax_mgpu._src.ops.gather import gather
from jax_mgpu._src.ops.groups import sorted_groups
from jax_mgpu._src.ops.reduce import run_reduce_by_key


class _Rows:
    """Keys sorted over all devices, with their leaves and global positions."""

    def __init__(self, axis: Axis, keys: jax.Array | Columns, leaves: Sequence[jax.Array], given: jax.Array):
        with by_construction():
            self.keys, self.leaves, self.live = sort(axis, keys, list(leaves), count=given)
        self.axis, self.lives = axis, axis.gather(self.live)
        self.places = axis.begin(self.lives) + jnp.arange(keys.shape[0], dtype=self.live.dtype)

    def at(self, x: jax.Array, places: jax.Array, fill: int = 0) -> jax.Array:
        """Returns rows of x, which is in the order of the sorted keys, from global positions."""
        rows = fetch(self.axis, [x], self.lives, places.reshape(-1), [jnp.full((1,), fill, x.dtype)])[0]
        return rows.reshape(*places.shape, *x.shape[1:])


def sorted_rows(
    axis: Axis, keys: jax.Array | Columns, leaves: Sequence[jax.Array], count: jax.Array
) -> tuple[Any, list[jax.Array], jax.Array]:
    """Returns sorted keys with their leaves, and this device's number of them."""
    rows = _Rows(axis, keys, leaves, axis.live("keys", keys.shape[0], count))
    return rows.keys, rows.leaves, rows.live


def group_by(
    axis: Axis,
    asked: Combination,
    keys: jax.Array | Columns,
    leaves: Sequence[jax.Array],
    dtypes: Sequence[Any],
    size: int,
    count: jax.Array,
) -> tuple[Any, list[jax.Array], jax.Array]:
    """Returns this device's groups: keys, results, and their number."""
    n, given = keys.shape[0], axis.live("keys", keys.shape[0], count)
    names: Any = asked.op

    def gathered() -> tuple[Any, list[jax.Array], jax.Array]:
        counts = axis.gather(given)
        plain, restore = plain_leaves(leaves)
        all_keys, offsets, total = keys_of_all(axis, keys, counts)
        # Results past this device's groups are taken from the last slot, which never has a group.
        slots, asked_here = axis.size * n + 1, dataclasses.replace(asked, axis_name=None)
        with by_construction():
            values = restore([everywhere(axis, x, counts, (offsets, total))[0] for x in plain])
            found, results, _, heads = sorted_groups(asked_here, all_keys, values, names, slots, total)
        first, end = Share.even(axis, total[0], n).own_firsts(heads)
        number, groups = Share.runs(first, end, size, past=heads.shape[0] - 1)
        number = number.astype(index_dtype(axis.operation, "keys", n))
        arrays, structure = flatten((found, results))
        plain, restore = plain_leaves(arrays)
        found, results = structure.unflatten(restore([gather(x, groups, inside=True) for x in plain]))
        return found, results, room(axis.operation, number, size)

    def spread() -> tuple[Any, list[jax.Array], jax.Array]:
        """Combines the values of the sorted rows on the devices that hold them.

        An extremum's position in the sorted rows is turned into the position that its row had before the sort.
        """
        plain = [plain_leaves([x]) for x in leaves]
        positions = axis.begin(axis.gather(given)) + jnp.arange(n, dtype=given.dtype)
        rows = _Rows(axis, keys, [*(x[0] for x, _ in plain), positions], given)
        *moved, order = rows.leaves
        values = [x.astype(own) if name == "mean" else x for x, name, own in zip(moved, names, dtypes, strict=True)]
        found, combined, runs = run_reduce_by_key(asked, alike(keys, rows.keys), values, size, rows.live)

        results = []
        for got, name, own, (_, restore) in zip(combined, names, dtypes, plain, strict=True):
            placed = rows.at(order, got, -1) if name in ("argmin", "argmax") else got
            results.append(restore([placed])[0] if name in ("first", "last") else placed.astype(own))
        return found, results, runs

    return by_size(axis, n, gathered, spread)()


def places_before(axis: Axis, found: jax.Array, given: jax.Array, kept: jax.Array, places: jax.Array) -> jax.Array:
    """Returns the positions that rows had before others were removed, from their positions afterwards; -1 for -1."""
    n = found.shape[0]
    begin = axis.begin(axis.gather(axis.live("keys", n, given)))
    before, lives = found.astype(begin.dtype) + begin, axis.gather(axis.live("keys", n, kept))
    fill = jnp.full((1,), -1, before.dtype)
    return fetch(axis, [before], lives, places.reshape(-1), [fill])[0].reshape(places.shape).astype(places.dtype)
