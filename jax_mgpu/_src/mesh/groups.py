"""Groups of equal keys over a mesh axis: keys are sorted over all devices; a group is where its first one then is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.check import expect_key, value_error
from jax_mgpu._src.arguments.counts import live_mask
from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.arguments.values import plain_leaves
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.functions.named_operators import named_leaves
from jax_mgpu._src.functions.operators import accumulator_dtype
from jax_mgpu._src.keys.bits import is_random_key
from jax_mgpu._src.keys.columns import Columns, expect_keys
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.remote_gather import fetch
from jax_mgpu._src.mesh.selections import rank, run_marks
from jax_mgpu._src.mesh.sorts import sort
from jax_mgpu._src.ops.groups import GIVE_POSITIONS, float_dtype
from jax_mgpu._src.ops.ranks import between
from jax_mgpu._src.ops.reduce import run_reduce_by_key
from jax_mgpu._src.ops.sort_primitives import Method

__all__ = ["group_by", "sorted_rows"]


class _Rows:
    """Keys in their order, with the leaves that belong to them, and the places that they now have."""

    def __init__(self, axis: Axis, keys: jax.Array | Columns, leaves: Sequence[jax.Array], given: jax.Array):
        options: dict[str, Any] = {"descending": False, "even": True, "method": Method.FASTEST, "bits": None}
        with by_construction():
            self.keys, self.leaves, self.live = sort(axis, keys, list(leaves), count=given, **options)
        self.axis, self.lives = axis, axis.gather(self.live)
        self.places = axis.begin(self.lives) + jnp.arange(keys.shape[0], dtype=self.live.dtype)

    def combined(self, keys: Any, values: Any, ops: Any, size: int) -> tuple[Any, Any, jax.Array]:
        """The first key of each group, what its values give, and the number of groups."""
        options: dict[str, Any] = {"size": size, "count": self.live, "axis_name": self.axis.name}
        return run_reduce_by_key(self.axis.operation, keys, values, ops, **options)

    def at(self, x: jax.Array, places: jax.Array, fill: int = 0) -> jax.Array:
        """Rows of x, which is in order, from anywhere."""
        rows = fetch(self.axis, [x], self.lives, places.reshape(-1), [jnp.full((1,), fill, x.dtype)])[0]
        return rows.reshape(*places.shape, *x.shape[1:])


def sorted_rows(
    axis: Axis, keys: jax.Array | Columns, leaves: Sequence[jax.Array], count: Any
) -> tuple[Any, list[jax.Array], jax.Array]:
    """Keys and leaves in the order of the keys, and how many of them this device has."""
    rows = _Rows(axis, keys, leaves, axis.live("keys", keys.shape[0], count))
    return rows.keys, rows.leaves, rows.live


def group_by(
    axis: Axis, keys: jax.Array | Columns, leaves: Sequence[jax.Array], names: Sequence[Any], size: int, count: Any
) -> tuple[Any, list[jax.Array], jax.Array]:
    """Each value is combined where its rows lie; first and last rows, and indices, are fetched by their places."""
    n = keys.shape[0]
    given = axis.live("keys", n, count)
    plain = [plain_leaves([x]) for x in leaves]
    positions = axis.begin(axis.gather(given)) + jnp.arange(n, dtype=given.dtype)
    rows = _Rows(axis, keys, [*(x[0] for x, _ in plain), positions], given)
    *moved, order = rows.leaves
    stand_ins = {
        "count": (jnp.ones_like(rows.places), "add"),
        "first": (rows.places, "min"),
        "last": (rows.places, "max"),
    }

    def asked(x: jax.Array, like: jax.Array, name: Any) -> tuple[jax.Array, Any]:
        if isinstance(name, str) and name in stand_ins:
            return stand_ins[name]
        if is_random_key(like.dtype):
            x = like  # which no operator takes
        elif name == "mean":
            x = x.astype(float_dtype(x.dtype))
        named_leaves(axis.operation, "values", x, name)  # an error names values, not a leaf of a list
        return x, name

    of_ranks = ("nunique", "median")
    given_values = list(zip(moved, leaves, names, strict=True))
    values = [asked(*value) for value in given_values if value[2] not in of_ranks]
    found, combined, runs = rows.combined(rows.keys, [x for x, _ in values], [name for _, name in values], size)
    used, in_turn = live_mask(size, runs.reshape(1)), iter(combined)

    def result(x: jax.Array, like: jax.Array, name: Any, restore: Any) -> jax.Array:
        if name in of_ranks:
            special = _distinct if name == "nunique" else _median
            return special(axis, keys, expect_key(axis.operation, "values", like), size, count)
        got = next(in_turn)
        if name in ("first", "last"):
            return restore([rows.at(x, jnp.where(used, got, -1))])[0]
        if name in GIVE_POSITIONS:
            return rows.at(order, got, -1)
        return got.astype(rows.places.dtype) if name == "count" else got

    results = [result(*value, restore) for value, (_, restore) in zip(given_values, plain, strict=True)]
    return found, results, runs


def _by_value(axis: Axis, keys: jax.Array | Columns, x: jax.Array, count: Any) -> _Rows:
    """Rows in the order of keys and values, whose ranks are columns of one code."""
    given = axis.live("keys", keys.shape[0], count)
    if given.dtype.itemsize == 8:
        expected = 'None where "nunique" or "median" is of 2^31 items or more'
        raise value_error(axis.operation, "axis_name", expected, "an axis")
    options: dict[str, Any] = {"ties": "dense", "descending": False, "count": given.reshape(1)}
    ranks = tuple(rank(axis, part, ABSENT, **options) for part in (keys, x))
    return _Rows(axis, expect_keys(axis.operation, "keys", ranks)[0], [x], given)


def _distinct(axis: Axis, keys: jax.Array | Columns, x: jax.Array, size: int, count: Any) -> jax.Array:
    """How many different values each group has."""
    rows = _by_value(axis, keys, x, count)
    both = expect_keys(axis.operation, "keys", rows.keys)[0]
    marks = run_marks(axis, both.run_keys(), rows.live).astype(rows.live.dtype)
    return rows.combined(rows.keys[0], marks, "add", size)[1].astype(marks.dtype)


def _median(axis: Axis, keys: jax.Array | Columns, x: jax.Array, size: int, count: Any) -> jax.Array:
    """The middle item of each group, or the mean of two."""
    rows = _by_value(axis, keys, x, count)
    values = {"first": rows.places, "count": jnp.ones_like(rows.places)}
    _, found, runs = rows.combined(rows.keys[0], values, {"first": "min", "count": "add"}, size)
    first, number, used = found["first"], found["count"].astype(rows.places.dtype), live_mask(size, runs.reshape(1))
    dtype = float_dtype(x.dtype)

    def item(rank: jax.Array) -> jax.Array:
        return rows.at(rows.leaves[0], jnp.where(used, first + rank, -1)).astype(accumulator_dtype(dtype))

    below, above = item((number - 1) // 2), item(number // 2)
    middle = between(below, above, jnp.where(number % 2 == 1, 0, 0.5).astype(below.dtype))
    if jnp.issubdtype(x.dtype, jnp.floating):  # NaNs come last
        middle = jnp.where(jnp.isnan(item(number - 1)), jnp.nan, middle)
    return jnp.where(used, middle, 0).astype(dtype)
