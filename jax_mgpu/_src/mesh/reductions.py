"""Reductions and scans over a mesh axis: each device combines its items, and all exchange a state each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.annotations import Pytree
from jax_mgpu._src.arguments.counts import live_mask, wide_enough
from jax_mgpu._src.core.compat import platform_dependent, reconcile_vma
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.functions.blocked_scan import or_ones
from jax_mgpu._src.functions.operators import (
    Kind,
    Operator,
    accumulator_dtype,
    builtin,
    identities,
    reduce_results,
    scan_results,
    segmented_results,
    select,
)
from jax_mgpu._src.functions.recurrence import log_add, product
from jax_mgpu._src.keys.bits import ordered_integers
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.ops.reduce import _reduce, _segmented_reduce, reduce_rows, take_columns
from jax_mgpu._src.ops.scan import begins_with_item, scan_columns, scan_from
from jax_mgpu._src.ops.sorted_search import insertion_points


class _Named:
    """A built-in operator over this device's items or rows; kernels' results become states."""

    def __init__(self, axis: Axis, kind: Kind, x: jax.Array, count: jax.Array):
        self.kind, self.count, self.n = kind, count, x.shape[0]
        self.dtype = axis.index_dtype("x", self.n) if kind.gives_index else x.dtype
        self.builtin = builtin(kind, x.dtype)
        self.dead, self.identity = self.builtin.dead, self.builtin.identity
        # Sums and products of narrow floats are rounded to their type at the end.
        summed = kind in (Kind.ADD, Kind.MUL, Kind.LOGSUMEXP)
        self.x = x.astype(accumulator_dtype(x.dtype)) if summed else x
        self.live = axis.live("x", self.n, count)
        self.starts_from_items = begins_with_item(kind, x.dtype)
        # None: the total of no items is the identity, and is combined like any other.
        self.has_items = None if self.starts_from_items else self.live > 0
        self.begin = axis.begin(axis.gather(self.live)) if kind.gives_index else jnp.zeros((), self.live.dtype)

    def total(self, count: jax.Array, reverse: int = 0) -> Any:
        del reverse  # the built-in operators commute
        if self.x.ndim == 1:
            return self._states(_reduce(x=self.x, count=count, op=self.kind, wide=False)[0])
        whole = {"heads": jnp.zeros((1,), jnp.int32), "indices": ABSENT}
        return self._states(reduce_rows(x=self.x, **whole, count=count, op=self.kind, wide=False)[0][0])

    def segments(self, heads: jax.Array) -> Any:
        given = {"x": self.x, "heads": heads, "count": self.count, "op": self.kind, "wide": False}
        return self._states(_segmented_reduce(**given)[0] if self.x.ndim == 1 else reduce_rows(**given)[0])

    def scan(self, heads: jax.Array, exclusive: int, reverse: int) -> Any:
        flags = {"exclusive": bool(exclusive), "reverse": bool(reverse)}
        return self._states(scan_columns(self.x, self.kind, heads, self.count, **flags))

    def item(self, position: jax.Array) -> Any:
        x = self.x[position]
        return (x, jnp.broadcast_to(self.begin + position.astype(self.dtype), x.shape)) if self.kind.gives_index else x

    def combine(self, reverse: int) -> Callable[[Any, Any], Any]:
        """Returns the function that combines two states.

        Of equal extrema, the earlier item wins in either direction, and gets the derivative.
        """
        if self.kind.gives_index:
            return self._first_extremum
        if self.kind == Kind.LOGSUMEXP:
            return log_add
        if self.kind == Kind.MUL and jnp.issubdtype(self.x.dtype, jnp.inexact):
            return product
        if self.kind not in (Kind.MIN, Kind.MAX):
            return self.builtin.combine
        return lambda a, b: jnp.where(self._better(a, b) if reverse else ~self._better(b, a), a, b)

    def finish(self, states: Any) -> jax.Array:
        result: jax.Array = (states[1] if self.kind.gives_index else states).astype(self.dtype)
        return result

    def _states(self, results: jax.Array) -> Any:
        if not self.kind.gives_index:
            return results
        places = jnp.where(results >= 0, self.begin + results.astype(self.dtype), -1)
        return take_columns(self.x, results), places

    def _better(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """Whether `a` is the better extremum: less, or greater, than `b`; a NaN is better than any number."""
        x, y = ordered_integers(a), ordered_integers(b)
        if self.kind in (Kind.MAX, Kind.ARGMAX):
            return x > y
        if not jnp.issubdtype(a.dtype, jnp.floating):
            return x < y
        return jnp.where(jnp.isnan(a) | jnp.isnan(b), jnp.isnan(a) & ~jnp.isnan(b), x < y)

    def _first_extremum(self, a: tuple[jax.Array, jax.Array], b: tuple[jax.Array, jax.Array]) -> Any:
        (x, i), (y, j) = a, b
        equal = ~self._better(x, y) & ~self._better(y, x)
        take_b = (j >= 0) & ((i < 0) | self._better(y, x) | (equal & (j < i)))
        return jnp.where(take_b, y, x), jnp.where(take_b, j, i)


class _Function:
    """A caller's function over this device's items, by the general path; its results are states."""

    dead = 0

    def __init__(self, axis: Axis, operator: Operator, x: Pytree, n: int, count: jax.Array):
        self.operator, self.x, self.n, self.count = operator, x, n, count
        self.identity = operator.identity
        self.live = axis.live("x", n, count)
        self.has_items = self.live > 0

    def total(self, count: jax.Array, reverse: int = 0) -> Any:
        if self.n == 0:
            return self.identity
        operator = self.operator
        if reverse:
            operator = dataclasses.replace(operator, combine=lambda a, b: self.operator.combine(b, a))
        return reduce_results(operator, self.x, self.n, count)

    def segments(self, heads: jax.Array) -> Any:
        return segmented_results(self.operator, self.x, self.n, heads, self.count)

    def scan(self, heads: jax.Array, exclusive: int, reverse: int) -> Any:
        flags = {"exclusive": exclusive, "reverse": reverse, "total": 0}
        return scan_results(self.operator, self.x, self.n, heads, self.count, **flags)[0]

    def item(self, position: jax.Array) -> Any:
        return jax.tree.map(lambda x: x[position], self.x)

    def combine(self, reverse: int) -> Callable[[Any, Any], Any]:
        del reverse  # with `reverse`, states from the end come first
        return self.operator.combine

    def finish(self, states: Any) -> Any:
        return states


def _local(axis: Axis, op: Kind | Operator, x: Any, n: int, count: jax.Array) -> _Named | _Function:
    return _Named(axis, op, x, count) if isinstance(op, Kind) else _Function(axis, op, x, n, count)


def reduce(axis: Axis, op: Kind | Operator, x: Pytree, n: int, count: jax.Array) -> Any:
    """Returns one result, the same on all devices."""
    local = _local(axis, op, x, n, count)
    if isinstance(local, _Named) and local.kind == Kind.ADD and jnp.issubdtype(local.x.dtype, jnp.integer):
        return local.finish(axis.sum(local.total(count)))
    every = _EveryState(axis, local.has_items, local.total(count))
    return local.finish(_or_identity(local, *every.total(local.combine(0))))


def scan(
    axis: Axis, op: Kind | Operator, x: Pytree, n: int, count: jax.Array, *, exclusive: int, reverse: int, total: int
) -> Sequence[Any]:
    """Returns the results of a scan over all devices at this device's items, and the total if it is asked for."""
    local = _local(axis, op, x, n, count)
    if n == 0 and not total:  # an inclusive scan by a function may have no identity
        return [local.finish(local.scan(ABSENT, exclusive, reverse))]
    combine = local.combine(reverse)
    every = _EveryState(axis, local.has_items, local.total(count, reverse))
    carry = every.before(combine, reverse)
    if isinstance(local, _Named) and local.starts_from_items and local.x.ndim == 1:
        begin = jnp.where(*carry, local.identity.astype(local.x.dtype))
        flags = {"exclusive": bool(exclusive), "reverse": bool(reverse)}
        results = [local.finish(scan_from(begin, local.x, local.kind, count, **flags))]
    else:
        results = [_with_carry(local, local.scan(ABSENT, exclusive, reverse), carry, True, reverse)]
    if not total:
        return results
    return [*results, local.finish(_or_identity(local, *every.total(combine, reverse)))]


def segmented_reduce(axis: Axis, op: Kind | Operator, x: Pytree, n: int, heads: jax.Array, count: jax.Array) -> Any:
    """Reduces segments; a result is on the device with its head, and later devices contribute items."""
    local = _local(axis, op, x, n, count)
    if n == 0 or heads.shape[0] == 0:
        return local.finish(local.segments(heads))
    starts, first, _, last_slot = own_ends(heads, n, local.live)
    # The items before the first head are a segment too.
    front_first = local.segments(jnp.append(jnp.zeros_like(heads[:1]), heads))
    front, results = _row(front_first, 0), _row(front_first, slice(1, None))
    # The scan begins at the last device, but within a segment earlier items come first.
    combine = local.combine(0)
    every = _EveryState(axis, first > 0, front, starts)
    has, rest = every.before(lambda later, earlier: combine(earlier, later), 1)
    # Ones for uncombined states: zero times an infinite derivative would be NaN.
    whole = _one(combine, *(or_ones(has & starts, state) for state in (_row(results, last_slot), rest)))
    is_last = (jnp.arange(heads.shape[0], dtype=last_slot.dtype) == last_slot) & starts & has
    return local.finish(select(is_last, jax.tree.map(lambda x: x[None], whole), results))


def segmented_scan(
    axis: Axis,
    op: Kind | Operator,
    x: Pytree,
    n: int,
    heads: jax.Array,
    count: jax.Array,
    *,
    exclusive: int,
    reverse: int,
    total: int,
) -> Sequence[Any]:
    """Scans segments; one that begins on an earlier (or later) device starts from the total there."""
    local = _local(axis, op, x, n, count)
    assert not total
    scanned = local.scan(heads, exclusive, reverse)
    if n == 0:
        return [local.finish(scanned)]
    positions = jnp.arange(n, dtype=local.live.dtype)
    starts, first, last, _ = own_ends(heads, n, local.live)
    # This device passes on the total of its last segment or, in reverse, of the items before its first head.
    at = jnp.zeros_like(first) if reverse else jnp.maximum(local.live - 1, 0)
    state = _row(scanned, at)
    combine = local.combine(reverse)
    if exclusive:
        state = _one(combine, state, local.item(at))
    every = _EveryState(axis, first > 0 if reverse else local.live > 0, state, starts)
    carry = every.before(combine, reverse)
    where = positions >= last if reverse else positions < first
    return [_with_carry(local, scanned, carry, where, reverse)]


def number_before(positions: jax.Array, end: jax.Array) -> jax.Array:
    """Returns how many sorted positions lie before an end of their dtype."""

    def by_search(positions: jax.Array, end: jax.Array) -> jax.Array:
        return insertion_points(end.reshape(1), positions)[0].astype(end.dtype)

    def by_sum(positions: jax.Array, end: jax.Array) -> jax.Array:
        return jnp.sum(positions < end, dtype=end.dtype)

    return platform_dependent(*reconcile_vma((positions, end)), cpu=by_search, default=by_sum)


def own_ends(heads: jax.Array, n: int, live: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns whether a segment starts here, where the first and last ones start, and the last head's number.

    If none starts here, the first position is past the live items, and the last is 0.
    """
    if heads.shape[0] == 0:
        return jnp.zeros_like(live, bool), live, jnp.zeros_like(live), jnp.zeros_like(live)
    heads = wide_enough(heads, n)
    slot = jnp.maximum(number_before(heads, live.astype(heads.dtype)) - 1, 0).astype(live.dtype)
    first, last = (jnp.clip(heads[at], 0, n).astype(live.dtype) for at in (0, slot))
    starts = first < live
    return starts, jnp.where(starts, first, live), jnp.where(starts, last, 0), slot


States = tuple[jax.Array, jax.Array, Any]  # whether devices have a state, whether a segment starts there, the states


class _EveryState:
    """The states of all devices.

    Args:
      axis: the devices.
      has: whether this device has a state; None if all have one.
      state: its state.
      starts: whether a segment starts on this device, so its state is not combined with those before it; None: nowhere.
    """

    def __init__(self, axis: Axis, has: jax.Array | None, state: Pytree, starts: jax.Array | None = None):
        self.axis, self.all_have, self.none_starts = axis, has is None, starts is None
        bits = [flag.astype(jnp.int32) << i for i, flag in enumerate((has, starts)) if flag is not None]
        self.flags, self.states = axis.gather((sum(bits[1:], bits[0]) if bits else None, state))

    def _told(self, flags: jax.Array | None, states: Pytree) -> States:
        none = jnp.zeros((self.axis.size,), bool)
        has = ~none if flags is None or self.all_have else flags & 1 == 1
        return has, none if flags is None or self.none_starts else flags & 2 == 2, states

    def total(self, combine: Callable[[Any, Any], Any], reverse: int = 0) -> tuple[jax.Array, Any]:
        """Returns whether there are any states, and all states combined, `[1]` each."""
        return _combined(combine, self._told(self.flags, self.states), reverse)

    def before(self, combine: Callable[[Any, Any], Any], reverse: int = 0) -> tuple[jax.Array, Any]:
        """Returns whether earlier devices (with `reverse`, later ones) have states, and these states combined."""
        axis, beyond = self.axis, 1 if reverse else 0

        def nearest(x: jax.Array) -> jax.Array:
            """Rotates all devices' entries: those before this device come last or, reversed, those after it first."""
            window = jax.lax.dynamic_slice_in_dim(
                jnp.concatenate([x, x]), axis.index, axis.size + beyond, allow_negative_indices=False
            )
            return window[beyond:]

        has, starts, states = self._told(*jax.tree.map(nearest, (self.flags, self.states)))
        is_before = axis.devices < axis.size - 1 - axis.index if reverse else axis.devices >= axis.size - axis.index
        has, states = _combined(combine, (has & is_before, starts, states), reverse)
        return has[0], _row(states, 0)


def _combined(combine: Callable[[Any, Any], Any], every: States, reverse: int = 0) -> tuple[jax.Array, Any]:
    """Combines neighbouring states until one is left.

    Returns whether there are any states, and the combined state, `[1]` each. With `reverse`, the last one comes first.
    """

    def step(a: States, b: States) -> States:
        (a_has, a_starts, a_states), (b_has, b_starts, b_states) = a, b
        states = select(b_has | b_starts, b_states, a_states)
        joins = a_has & b_has & ~b_starts
        states = select(joins, combine(*(or_ones(joins, state) for state in (a_states, b_states))), states)
        return b_has | (a_has & ~b_starts), a_starts | b_starts, states

    # jax.lax.associative_scan adds zeros to results, where XLA's CPU code loses subnormal floats
    while (n := every[0].shape[0]) > 1:
        pairs = slice(0, n - n % 2) if reverse else slice(n % 2, n)
        evens, odds = (_row(_row(every, pairs), slice(i, None, 2)) for i in (0, 1))
        joined = step(odds, evens) if reverse else step(evens, odds)
        if n % 2:
            parts = (joined, _row(every, slice(-1, None))) if reverse else (_row(every, slice(0, 1)), joined)
            joined = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), *parts)
        every = joined
    return every[0], every[2]


def _with_carry(
    local: _Named | _Function, scanned: Pytree, carry: tuple[jax.Array, Any], where: jax.Array | bool, reverse: int
) -> Any:
    """Returns a scan's live results, combined with the preceding state `where` it applies."""
    has, state = carry
    before = jax.tree.map(lambda c, s: jnp.broadcast_to(c, s.shape), state, scanned)
    here = where & jnp.broadcast_to(has, (local.n,))
    if local.count.size:
        here &= live_mask(local.n, local.count)
    combined = local.combine(reverse)(*(or_ones(here, state) for state in (before, scanned)))
    results = local.finish(select(here, combined, scanned))
    if not local.count.size:
        return results
    dead = jax.tree.map(lambda r: jnp.full_like(r, local.dead), results)
    return select(live_mask(local.n, local.count), results, dead)


def _or_identity(local: _Named | _Function, has: jax.Array, states: Pytree) -> Any:
    if local.identity is not None:
        states = select(has, states, identities(local.identity, states))
    return _row(states, 0)


def _one(combine: Callable[[Any, Any], Any], a: Pytree, b: Pytree) -> Any:
    a, b = (jax.tree.map(lambda x: x[None], state) for state in (a, b))
    return _row(combine(a, b), 0)


def _row(states: Pytree, index: jax.Array | int | slice) -> Any:
    return jax.tree.map(lambda x: x[index], states)
