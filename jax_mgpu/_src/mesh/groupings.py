"""Reductions by named operators over a mesh axis: of all items, of each segment, or of each id."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.check import value_error
from jax_mgpu._src.arguments.counts import count_of, heads_inside, live_mask
from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.functions.named_operators import Grouping, Leaf
from jax_mgpu._src.functions.operators import Kind, wide_dtype
from jax_mgpu._src.keys.bits import shifted
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.ids import reduce_by_id
from jax_mgpu._src.mesh.reductions import reduce, segmented_reduce, segmented_scan
from jax_mgpu._src.mesh.remote_gather import fetch
from jax_mgpu._src.mesh.segments import segmented_sort
from jax_mgpu._src.mesh.selections import item_at, ordered_items, run_marks
from jax_mgpu._src.mesh.sorts import sort
from jax_mgpu._src.ops.order_statistics import FEWER, HALVINGS, middle, middle_ranks
from jax_mgpu._src.ops.reduce_by_id import _has_id


def all_reduced(axis: Axis, leaf: Leaf, count: jax.Array) -> jax.Array:
    """Returns one result, the same on all devices."""
    return leaf.reduced(_All(axis, leaf.x.shape[0], (), count))


def segments_reduced(axis: Axis, leaf: Leaf, heads: jax.Array, count: jax.Array) -> jax.Array:
    """Returns the results of the segments whose heads are on this device."""
    return leaf.reduced(_Segments(axis, leaf.x.shape[0], heads, count))


def ids_reduced(axis: Axis, leaf: Leaf, ids: jax.Array, count: jax.Array, *, size: int) -> jax.Array:
    """Returns the results of this device's ids."""
    return leaf.reduced(_Ids(axis, ids, count, size))


class _OverAxis(Grouping):
    """The live items of all devices, each with n slots; positions are global."""

    def __init__(self, axis: Axis, n: int, leading: tuple[int, ...], count: jax.Array):
        self.axis, self.n, self.leading, self.count = axis, n, leading, count

    @property
    def index_dtype(self) -> np.dtype:  # type: ignore[override]
        return self.axis.index_dtype("x", self.n)

    @functools.cached_property
    def live(self) -> jax.Array:
        return self.axis.live("x", self.n, self.count)

    @functools.cached_property
    def lives(self) -> jax.Array:
        return self.axis.gather(self.live)

    def positions(self) -> jax.Array:
        return self.axis.begin(self.lives) + jnp.arange(self.n, dtype=self.live.dtype)

    def take(self, x: jax.Array, places: jax.Array) -> jax.Array:
        return fetch(self.axis, [x], self.lives, places, [None])[0]


class _All(_OverAxis):
    def combine(self, kind: Kind, x: jax.Array, wide: bool = False) -> jax.Array:
        result: jax.Array = reduce(self.axis, kind, x.astype(wide_dtype(x.dtype)) if wide else x, self.n, self.count)
        return result

    def take(self, x: jax.Array, places: jax.Array) -> jax.Array:
        return item_at(self.axis, x, self.lives)(places.reshape(1))[0]

    def spread(self, results: jax.Array) -> jax.Array:
        live = live_mask(self.n, self.count).reshape(-1, *[1] * results.ndim)
        return jnp.where(live, results[None], 0)

    def median(self, x: jax.Array) -> jax.Array:
        number, items_at = ordered_items(self.axis, x, self.count)
        return middle(x.dtype, number, lambda: items_at(middle_ranks(number)))

    def distinct(self, x: jax.Array) -> jax.Array:
        with by_construction():
            ordered, live = sort(self.axis, x, None, count=self.live)
        marks = run_marks(self.axis, ordered, live) & live_mask(self.n, live.reshape(1))
        return self.axis.sum(jnp.sum(marks, dtype=live.dtype))


class _Segments(_OverAxis):
    def __init__(self, axis: Axis, n: int, heads: jax.Array, count: jax.Array):
        super().__init__(axis, n, heads.shape, count)
        self.heads = heads

    def combine(self, kind: Kind, x: jax.Array, wide: bool = False) -> jax.Array:
        x = x.astype(wide_dtype(x.dtype)) if wide else x
        result: jax.Array = segmented_reduce(self.axis, kind, x, self.n, self.heads, self.count)
        return result

    def spread(self, results: jax.Array) -> jax.Array:
        """Puts each result at the head of its segment, 0 at other items, and adds along each segment."""
        heads = heads_inside(self.heads, self.n)
        last = jnp.arange(heads.shape[0]) == heads.shape[0] - 1
        places = jnp.where((heads != shifted(heads, -1)) | last, heads, self.n)
        values = jnp.zeros((self.n, *results.shape[1:]), results.dtype).at[places].set(results, mode="drop")
        flags = {"exclusive": 0, "reverse": 0, "total": 0}
        result: jax.Array = segmented_scan(self.axis, Kind.ADD, values, self.n, self.heads, self.count, **flags)[0]
        return result

    def _sorted(self, x: jax.Array) -> jax.Array:
        with by_construction():
            result: jax.Array = segmented_sort(
                self.axis, x, self.heads, ABSENT, None, descending=False, count=count_of(self.count)
            )
            return result

    def median(self, x: jax.Array) -> jax.Array:
        ordered, begin = self._sorted(x), self.places(last=False)
        number = self.counts(begin.dtype)

        def items() -> list[jax.Array]:
            ranks = [middle_ranks(number, *which) for which in zip(FEWER, HALVINGS, strict=True)]
            return [self.take(ordered, jnp.where(begin >= 0, begin + rank, -1)) for rank in ranks]

        return middle(x.dtype, number, items)

    def distinct(self, x: jax.Array) -> jax.Array:
        marks = run_marks(self.axis, self._sorted(x), self.live, self.heads)
        return self.combine(Kind.ADD, marks.astype(self.index_dtype))


class _Ids(_OverAxis):
    """Items by id; each device has `size` ids."""

    def __init__(self, axis: Axis, ids: jax.Array, count: jax.Array, size: int):
        super().__init__(axis, ids.shape[0], (size,), count)
        self.ids, self.size = ids, size

    def combine(self, kind: Kind, x: jax.Array, wide: bool = False) -> jax.Array:
        rows = (x.astype(wide_dtype(x.dtype)) if wide else x).reshape(self.n, math.prod(x.shape[1:]))
        found = reduce_by_id(self.axis, kind, rows, self.ids, self.count, size=self.size)
        return found.reshape(self.size, *x.shape[1:])

    def spread(self, results: jax.Array) -> jax.Array:
        total = self.axis.size * self.size
        ids = jnp.where(_has_id(self.ids, self.count, total), self.ids, -1)
        counts = jnp.full((self.axis.size,), self.size, self.index_dtype)
        return fetch(self.axis, [results], counts, ids, [None])[0]

    def _no_order(self, x: jax.Array) -> jax.Array:
        raise value_error(self.axis.operation, "axis_name", "None for 'median' and 'nunique'", "an axis")

    median = distinct = _no_order
