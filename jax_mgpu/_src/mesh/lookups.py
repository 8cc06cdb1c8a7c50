"""Looks up keys of table a among those of table b, whose rows are spread over devices.

`Gathered` copies all keys of b to each device; `Moved` searches among keys that are sorted over all devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.annotations import DTypeLike
from jax_mgpu._src.arguments.counts import live_items, live_mask
from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.exchange import by_platform, everywhere
from jax_mgpu._src.mesh.pairs import copies_of, pair_of
from jax_mgpu._src.mesh.remote_gather import begins_of, fetch, put
from jax_mgpu._src.mesh.sorts import sort_indices
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sorted_search import search_in_any_order

T = TypeVar("T")


class _Side:
    """A table's sorted keys; results can be sent back to the rows of these keys."""

    def __init__(self, axis: Axis, keys: jax.Array, count: jax.Array, dtype: DTypeLike, *, is_sorted: bool):
        self.axis, self.n = axis, keys.shape[0]
        self.live = live_items(self.n, count, dtype)
        self.counts = axis.gather(self.live)
        self.keys, self.order, self.sorted_counts = keys, None, self.counts
        if not is_sorted:
            with by_construction():
                self.keys, self.order, live = sort_indices(axis, keys, count=self.live)
            self.sorted_counts = axis.gather(live.astype(dtype))

    @property
    def begin(self) -> jax.Array:
        return self.axis.own(begins_of(self.counts))

    @property
    def sorted_count(self) -> jax.Array:
        return self.axis.own(self.sorted_counts).reshape(1)

    def to_rows(self, found: list[jax.Array]) -> list[jax.Array]:
        """Sends results for sorted keys to the rows of the keys; results of rows past `count` are unspecified."""
        if self.order is None:
            return found
        live = jnp.arange(self.n) < self.sorted_count
        return put(self.axis, found, jnp.where(live, self.order, -1), self.counts, [jnp.zeros_like(x) for x in found])


class Moved:
    """A lookup by keys that are sorted over all devices; results are sent back to the rows of unsorted tables.

    Args:
      operands: the keys of a's rows and of b's, and their counts.
      is_sorted: whether each table's keys are sorted over all devices.
      aligned: whether the keys of both are results of `align`.
    """

    def __init__(
        self, axis: Axis, operands: Sequence[jax.Array], is_sorted: tuple[bool, bool], *, aligned: bool = False
    ):
        self._axis, dtype = axis, axis.index_dtype("a and b", operands[0].shape[0] + operands[1].shape[0])
        self._a, self._b = (
            _Side(axis, keys, count, dtype, is_sorted=known)
            for keys, count, known in zip(operands[:2], operands[2:], is_sorted, strict=True)
        )
        counts = self._a.sorted_count, self._b.sorted_count
        self.pair = pair_of(axis, self._a.keys, self._b.keys, *counts, aligned=aligned)
        self.lengths, self.lives = (self._a.n, self._b.n), (self._a.live, self._b.live)

    def begins(self) -> tuple[jax.Array, jax.Array]:
        """Returns the global index of this device's first row, for a and for b."""
        return self._a.begin, self._b.begin

    def _to_rows(self, found: jax.Array) -> jax.Array:
        rows: jax.Array = self._a.to_rows([found])[0]
        return jnp.where(live_mask(self._a.n, self.lives[0].reshape(1)), rows, -1)

    def cut(self, right: bool) -> jax.Array:
        """Returns the insertion point of each row's key among b's sorted keys; -1 past the live rows."""
        return self._to_rows(self.pair.cut(0, right))

    def first_equal(self) -> jax.Array:
        """Returns the place of the first equal key among b's sorted keys; -1 if there is none."""
        low, number = self.pair.equals(0)
        return self._to_rows(jnp.where(number > 0, low, -1))

    def equals(self) -> list[jax.Array]:
        """Returns each row's place among b's sorted keys, unspecified past the live rows, and its number of equals."""
        return self._a.to_rows(self.pair.equals(0))

    def is_alone(self) -> jax.Array:
        """Returns which rows of b have no equal key in a; unspecified past the live rows."""
        return self._b.to_rows([copies_of(self.pair, 1)])[0] == 0

    def row_at(self, places: jax.Array) -> jax.Array:
        """Returns the global row of b whose key is at a place in the sorted order; -1 for places outside."""
        if self._b.order is None:
            return jnp.where((places >= 0) & (places < self._b.counts.sum(dtype=places.dtype)), places, -1)
        order = self._b.order.astype(places.dtype) + 1
        return fetch(self._axis, [order], self._b.sorted_counts, places, [None])[0] - 1


class Gathered:
    """A lookup for devices that share their memory: each looks up its rows of a among all keys of b."""

    def __init__(self, axis: Axis, operands: Sequence[jax.Array], is_sorted: tuple[bool, bool]):
        a, b, *counts = operands
        self._axis, self._operands, self._is_sorted = axis, operands, is_sorted
        dtype = axis.index_dtype("a and b", a.shape[0] + b.shape[0])
        a_live, b_live = (live_items(x.shape[0], count, dtype) for x, count in zip((a, b), counts, strict=True))
        self.lengths, self.lives, self._b_counts = (a.shape[0], b.shape[0]), (a_live, b_live), axis.gather(b_live)
        self._b, _, self._total = everywhere(axis, b, self._b_counts)
        self._order = None
        if not is_sorted[1]:
            with by_construction():
                self._b, self._order = Sort(axis.operation, self._b, count=self._total).indices()

    def begins(self) -> tuple[jax.Array, jax.Array]:
        """Returns the global index of this device's first row, for a and for b."""
        return self._axis.begin(self._axis.gather(self.lives[0])), self._axis.begin(self._b_counts)

    def _search(self, **how: bool) -> jax.Array:
        a, live = self._operands[0], self.lives[0].reshape(1)
        found = search_in_any_order((a, self._b, live, self._total), **how)
        return jnp.where(live_mask(a.shape[0], live), found.astype(live.dtype), -1)

    def cut(self, right: bool) -> jax.Array:
        """Returns the insertion point of each row's key among b's sorted keys; -1 past the live rows."""
        return self._search(right=right)

    def first_equal(self) -> jax.Array:
        """Returns the place of the first equal key among b's sorted keys; -1 if there is none."""
        return self._search(exact=True)

    def equals(self) -> list[jax.Array]:
        """Returns each row's place among b's sorted keys, unspecified past the live rows, and its number of equals."""
        low, high = (self._search(right=right) for right in (False, True))
        return [low, high - low]

    def is_alone(self) -> jax.Array:
        """Returns which rows of b have no equal key in a; unspecified past the live rows."""
        swapped = [self._operands[i] for i in (1, 0, 3, 2)]
        return Gathered(self._axis, swapped, self._is_sorted[::-1]).first_equal() < 0

    def row_at(self, places: jax.Array) -> jax.Array:
        """Returns the global row of b whose key is at a place in the sorted order; -1 for places outside."""
        places = jnp.where(places < self._total, places, -1)
        return places if self._order is None else take_or_fill(self._order.astype(places.dtype), places, -1)


Lookup = Moved | Gathered


def by_lookup(
    axis: Axis, operands: Sequence[jax.Array], is_sorted: tuple[bool, bool], find: Callable[[Lookup], jax.Array]
) -> jax.Array:
    """Returns `find(lookup)` for a `Gathered` lookup where devices share their memory, else for a `Moved` one."""

    def by(form: Callable[..., Lookup]) -> Callable[[], jax.Array]:
        return lambda: axis.varying(find(form(axis, operands, is_sorted)))

    return by_platform(axis, by(Gathered), by(Moved))()
