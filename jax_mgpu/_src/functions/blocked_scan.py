"""Scans and reductions by any associative operator in plain JAX, for derivatives and calls without kernels.

A loop scans each block by itself. The totals of blocks are scanned too, and each item is combined with the total before
its block. `_scanned_in_turn` scans one block after the other. A step of `_scanned_in_step` takes an item of every
block. docs/notes/plain_scans.md has figures.

An operator combines arrays of states by their leading axis, earlier states first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.annotations import Pytree
from jax_mgpu._src.core.compat import flatten, has_primitive, platform_dependent, reconcile_vma
from jax_mgpu._src.keys.bits import where

T = TypeVar("T")

Combine = Callable[[Any, Any], Any]

# In `_scanned_in_turn`, up to MAX_IN_ONE_BLOCK items are one block. More items are cut into blocks of LONG_BLOCK, which
# bounds the rounding errors of sums of floats.
LONG_BLOCK, MAX_IN_ONE_BLOCK = 1 << 14, 1 << 20
# Blocks scanned in lockstep have SHORT_BLOCK items. On any platform, up to MAX_STEPS items are scanned in one loop.
SHORT_BLOCK, MAX_STEPS = 64, 256
# At most MAX_TOTALS totals of blocks are scanned by doubling.
MAX_TOTALS = 1 << 20
# From MIN_UNROLLED items on, a step of `_scanned_in_turn` takes as many items as STEP_BYTES hold, 1 to MAX_UNROLLED.
STEP_BYTES, MAX_UNROLLED, MIN_UNROLLED = 64, 4, 1 << 13
# A reduction of more than MAX_STEPS items combines groups of GROUP neighbours without a loop.
GROUP = 8
# XLA on a CPU does not compile a loop body as one function if the name of a primitive begins with one of these.
CALLS = "dot_general", "ragged_dot", "conv", "scatter", "sort", "ffi_call", "pure_callback"


def select(condition: jax.Array, x: T, y: T) -> T:
    """`jnp.where` over pytrees by leading axes."""

    def chosen_of(x: jax.Array, y: jax.Array) -> jax.Array:
        missing = (1,) * (x.ndim - condition.ndim) if condition.ndim else ()
        return where(condition.reshape(condition.shape + missing) if missing else condition, x, y)

    chosen: T = jax.tree.map(chosen_of, x, y)
    return chosen


def scanned(combine: Combine, states: Pytree, cut: jax.Array | None = None, *, reverse: bool = False) -> Any:
    """Combines each prefix of the states (at least one); with `reverse`, each suffix.

    Where `cut` holds, a state is not combined with those before it (with `reverse`, after it).
    """
    in_turn, in_step = (
        functools.partial(way, combine, reverse=reverse) for way in (_scanned_in_turn, _scanned_in_step)
    )
    if _length(states) <= MAX_STEPS:
        return in_turn(states, cut)
    if not _is_small(combine, states):
        return in_step(states, cut)
    return platform_dependent(states, cut, cpu=in_turn, default=in_step)


def combined(combine: Combine, states: Pytree, live: jax.Array | None = None) -> Any:
    """Combines the live states in order, by default all. If none is live, the result is unspecified."""
    items = (live, states)

    def join(a: Any, b: Any) -> Any:
        if live is None:
            return None, combine(a[1], b[1])
        both = a[0] & b[0]
        pair = [or_ones(both, state) for state in (a[1], b[1])]
        return a[0] | b[0], select(both, combine(*pair), select(b[0], b[1], a[1]))

    if _length(states) > MAX_STEPS:
        grouped, rest = _cut(items, GROUP)
        parts = [jax.tree.map(lambda x, j=j: x[:, j], grouped) for j in range(GROUP)]
        while len(parts) > 1:
            parts = [join(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
        items = _joined(parts[0], rest)
    while _length(items) > SHORT_BLOCK:
        blocks, rest = _cut(items, SHORT_BLOCK)
        items = _joined(_folded(join, jax.tree.map(lambda x: x.swapaxes(0, 1), blocks)), rest)
    return jax.tree.map(lambda x: x[0], _folded(join, jax.tree.map(lambda x: x[:, None], items))[1])


def _folded(join: Combine, items: Pytree) -> Any:
    first = _first(join, items)
    rest = jax.tree.map(lambda x: x[1:], items)
    return jax.lax.scan(lambda state, item: (join(state, item), None), first, rest)[0]


def _scanned_in_turn(combine: Combine, states: Pytree, cut: jax.Array | None, *, reverse: bool) -> Any:
    n = _length(states)
    length = n if n <= MAX_IN_ONE_BLOCK else LONG_BLOCK
    item_bytes = sum(x.dtype.itemsize * math.prod(x.shape[1:]) for x in jax.tree.leaves(states))
    unroll = max(1, min(MAX_UNROLLED, STEP_BYTES // max(item_bytes, 1))) if n >= MIN_UNROLLED else 1

    def of_one(a: Any, b: Any) -> Any:
        pair = jax.tree.map(lambda x: x.reshape(1, *x.shape), (a, b))
        return jax.tree.map(lambda x: x.reshape(x.shape[1:]), combine(*pair))

    options: dict[str, Any] = {"length": length, "reverse": reverse, "unroll": unroll, "tells_cuts": length < n}
    if all(x.ndim == 1 for x in jax.tree.leaves(states)):
        begun, local = _steps(of_one, cut, states, **options)
    else:
        steps = _steps(combine, *jax.tree.map(lambda x: x[:, None], (cut, states)), **options)
        begun, local = jax.tree.map(lambda x: x[:, 0], steps)
    return _with_prefixes(combine, _scanned_in_turn, begun, local, length, reverse)


def _scanned_in_step(
    combine: Combine, states: Pytree, cut: jax.Array | None, *, reverse: bool, doubled: int = MAX_STEPS
) -> Any:
    n, length = _length(states), SHORT_BLOCK
    if reverse:
        return _flipped(_scanned_in_step(combine, *_flipped((states, cut)), reverse=False, doubled=doubled))
    if n <= doubled:
        return _doubled(combine, states, cut)
    blocks = -(-n // length)
    missing = blocks * length - n
    if missing and cut is None:
        cut = jnp.zeros((n,), bool)

    def columns(x: jax.Array) -> jax.Array:
        # Padding follows all items, so neither its values nor its derivatives reach one.
        x = jax.lax.pad(x, jnp.ones((), x.dtype), [(0, missing, 0), *[(0, 0, 0)] * (x.ndim - 1)])
        return x.reshape(blocks, length, *x.shape[1:]).swapaxes(0, 1)

    def items(x: jax.Array) -> jax.Array:
        return x.swapaxes(0, 1).reshape(blocks * length, *x.shape[2:])

    steps = _steps(
        combine, *jax.tree.map(columns, (cut, states)), length=length, reverse=False, unroll=1, tells_cuts=True
    )
    begun, local = jax.tree.map(items, steps)
    scan_totals = functools.partial(_scanned_in_step, doubled=MAX_TOTALS)
    results = _with_prefixes(combine, scan_totals, begun, local, length, reverse=False)
    return jax.tree.map(lambda x: x[:n], results)


def _doubled(combine: Combine, states: Pytree, cut: jax.Array | None) -> Any:
    """Combines each item with the one 1, 2, 4, ... places before it (Hillis and Steele 1986)."""
    n = _length(states)
    places = jnp.arange(n)

    @jax.jit
    def rolled(distance: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(jnp.concatenate([x, x]), n - distance, n)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    @jax.jit
    def step(carry: Any, distance: jax.Array) -> Any:
        begun, own = carry
        earlier, before = jax.tree.map(functools.partial(rolled, distance), carry)
        joins = places >= distance
        if begun is not None:
            joins, begun = joins & ~begun, begun | (joins & earlier)
        pair = [or_ones(joins, state) for state in (before, own)]
        return (begun, select(joins, combine(*pair), own)), None

    distances = jnp.left_shift(1, jnp.arange((n - 1).bit_length(), dtype=places.dtype))
    result: tuple[jax.Array | None, Any] = jax.lax.scan(step, (cut, states), distances)[0]
    return result[1]


def _steps(
    combine: Combine,
    cut: jax.Array | None,
    states: Pytree,
    *,
    length: int,
    reverse: bool,
    unroll: int,
    tells_cuts: bool,
) -> tuple[jax.Array | None, Any]:
    """Scans each block of each column; states are `[steps, columns, ...]`, or `[steps]` for one column.

    With `tells_cuts`, also returns whether a cut has occurred in the block up to each item; None without cuts.
    """
    steps, joins = _length(states), None
    if cut is not None or length < steps:
        places = jnp.arange(steps)
        joins = jax.lax.rem(places, jnp.asarray(length, places.dtype)) != 0
        joins = joins[:, None] if jax.tree.leaves(states)[0].ndim > 1 else joins
        joins = joins[::-1] if reverse else joins
        joins = joins if cut is None else joins & ~cut
    if not tells_cuts:
        cut = None

    def step(carry: Any, item: Any) -> Any:
        (is_later, begun, before), (joins, cut, own) = carry, item
        joins = is_later if joins is None else joins
        # Ones for uncombined states: zero times an infinite derivative would be NaN.
        pair = [or_ones(joins, state) for state in (before, own)]
        state = select(joins, combine(*pair), own)
        if cut is not None:
            begun = where(joins, begun, cut)
        return (jax.tree.map(jnp.ones_like, is_later), begun, state), (begun, state)

    begun, before = _first(lambda a, b: (b[0], combine(a[1], b[1])), (cut, states))
    carry = jnp.zeros((), bool) if joins is None else None, begun, before
    # The derivative recomputes a step, so only its state is kept.
    step = jax.checkpoint(jax.jit(step), prevent_cse=False)
    result: tuple[jax.Array | None, Any] = jax.lax.scan(
        step, carry, (joins, cut, states), reverse=reverse, unroll=unroll
    )[1]
    return result


def _with_prefixes(
    combine: Combine, way: Callable[..., Any], begun: jax.Array | None, local: Pytree, length: int, reverse: bool
) -> Any:
    """Combines the scan of each block with the total of all blocks before it."""
    n = _length(local)
    blocks = -(-n // length)
    if blocks == 1:
        return local
    forward = _flipped if reverse else lambda x: x
    last = jax.tree.map(lambda x: x[length - 1 :: length][: blocks - 1], forward((begun, local)))
    totals = way(combine, last[1], last[0], reverse=False)

    @jax.jit
    def of_items(x: jax.Array) -> jax.Array:
        """Returns the prefix before each item's block; ones before the first."""
        before = jax.lax.pad(x, jnp.ones((), x.dtype), [(1, 0, 0), *[(0, 0, 0)] * (x.ndim - 1)])
        repeated = jnp.broadcast_to(before[:, None], (blocks, length, *x.shape[1:]))
        return repeated.reshape(blocks * length, *x.shape[1:])[:n]

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def joined(totals: Any, local: Pytree) -> Any:
        joins, before = forward((jnp.arange(n) >= length, jax.tree.map(of_items, totals)))
        joins = joins if begun is None else joins & ~begun
        return select(joins, combine(*[or_ones(joins, state) for state in (before, local)]), local)

    return joined(totals, local)


def or_ones(condition: jax.Array, states: Pytree) -> Any:
    """Returns states where a condition holds, else ones: zero times an infinite derivative would be NaN."""
    return select(condition, states, jax.tree.map(jnp.ones_like, states))


def _flipped(tree: Pytree) -> Any:
    return jax.tree.map(lambda x: jax.lax.rev(x, (0,)), tree)


def _length(tree: Pytree) -> int:
    result: int = jax.tree.leaves(tree)[0].shape[0]
    return result


def _cut(items: Pytree, length: int) -> tuple[Any, Any]:
    """Returns whole blocks, `[blocks, length, ...]`, and the items after them."""
    blocks = _length(items) // length
    whole = jax.tree.map(lambda x: x[: blocks * length].reshape(blocks, length, *x.shape[1:]), items)
    return whole, jax.tree.map(lambda x: x[blocks * length :], items)


def _joined(a: Pytree, b: Pytree) -> Any:
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), a, b) if _length(b) else a


def _first(join: Combine, items: Pytree) -> Any:
    """Returns the first value of a loop; under shard_map it varies as later ones do."""
    first = jax.tree.map(lambda x: x[0], items)
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return first
    leaves, structure = flatten(first)
    return structure.unflatten(reconcile_vma([*leaves, *jax.tree.leaves(join(first, first))])[: len(leaves)])


def _is_small(combine: Combine, states: Pytree) -> bool:
    """Whether XLA on a CPU compiles a loop by the operator as one function, judged by the primitives."""
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), states)
    return not has_primitive(jax.make_jaxpr(combine)(one, one).jaxpr, CALLS)
