"""The operators of reductions and scans: built-in ones, and associative functions of callers.

The general path is plain JAX. As in kernels, an operator extracts states from items and positions, combines them, and
finishes results.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import Aval, DTypeLike, Pytree
from jax_mgpu._src.arguments.check import (
    as_array,
    describe,
    expect_pytree,
    index_dtype,
    result_shapes,
    type_error,
    value_error,
)
from jax_mgpu._src.arguments.counts import live_items, live_mask, segment_bounds, segment_starts
from jax_mgpu._src.arguments.values import plain_leaves
from jax_mgpu._src.core.compat import PyTreeDef, flatten, vary_as, whole_axes
from jax_mgpu._src.functions import blocked_scan
from jax_mgpu._src.functions.blocked_scan import select
from jax_mgpu._src.keys.bits import shifted
from jax_mgpu._src.ops.gather import gather

# Imported names that other modules take from here.
__all__ = ["select"]


class Kind(enum.IntEnum):
    """The kernels' attribute `op`."""

    ADD = 0
    MUL = 1
    MIN = 2
    MAX = 3
    ARGMIN = 4
    ARGMAX = 5
    AND = 6
    OR = 7
    XOR = 8
    LOGSUMEXP = 9

    @property
    def gives_index(self) -> bool:
        return self in (Kind.ARGMIN, Kind.ARGMAX)

    @property
    def index_of(self) -> Kind:
        """The operator that finds the extremum's position."""
        return {Kind.MIN: Kind.ARGMIN, Kind.MAX: Kind.ARGMAX}[self]


def result_dtype(operation: str, kind: int, x: Aval | jax.Array, wide: int = 0) -> Any:
    """Returns the results' dtype: that of x, of indices into it, or of sums."""
    if Kind(kind).gives_index:
        return index_dtype(operation, "x", x.shape[0])
    return wide_dtype(x.dtype) if wide else x.dtype


@dataclasses.dataclass(frozen=True)
class Operator:
    """An operator of the general path.

    States are pytrees with a leading axis, one per item.

    Args:
      extract: states of `(x, positions)`.
      combine: combines two arrays of states, the earlier first.
      finish: results from states.
      identity: the state over no items, without the leading axis, or None.
      dead: the result for an item past the count.
      function: the caller's function, if it is one.
      initial: a scan's initial value, without the leading axis, or None.
      kind: the built-in operator, up to `ARGMAX`; its identity changes no state that it is combined with.
      commutes: whether the operator is known to commute.
    """

    extract: Callable[[Any, jax.Array], Any]
    combine: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any]
    identity: Any
    dead: int = 0
    function: Callable[[Any, Any], Any] | None = None
    initial: Any = None
    kind: Kind | None = None
    commutes: bool = False


def accumulator_dtype(dtype: DTypeLike) -> Any:
    """Returns the type in which sums and products are computed: float32 for narrower floats."""
    narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4
    return jnp.dtype(jnp.float32) if narrow else dtype


def sum_dtype(dtype: DTypeLike) -> np.dtype:
    """Returns the type of sums and products: `jnp.sum`'s for bools, 8 and 16 bits, else that of the integers."""
    if np.dtype(dtype).itemsize >= 4:
        return np.dtype(dtype)
    default = np.uint64 if jnp.issubdtype(dtype, jnp.unsignedinteger) else np.int64
    return np.promote_types(dtype, jax.dtypes.canonicalize_dtype(default))


def wide_dtype(dtype: DTypeLike) -> Any:
    """Returns the type of precise sums: `sum_dtype` of integers, `accumulator_dtype` of floats."""
    return sum_dtype(dtype) if jnp.issubdtype(dtype, jnp.integer) else accumulator_dtype(dtype)


def builtin(kind: int, dtype: DTypeLike, result: DTypeLike | None = None) -> Operator:
    """Returns a built-in operator over items or rows of this type."""
    kind = Kind(kind)
    known: dict[str, Any] = {"kind": kind, "commutes": True}
    wide = accumulator_dtype(dtype)
    if kind in (Kind.ADD, Kind.MUL):
        wide = np.promote_types(wide, dtype if result is None else result)
        return Operator(
            extract=lambda x, positions: x.astype(wide),
            combine=jnp.add if kind == Kind.ADD else jnp.multiply,
            finish=lambda state: state.astype(dtype if result is None else result),
            identity=np.asarray(0 if kind == Kind.ADD else 1, wide),
            **known,
        )
    if kind in (Kind.AND, Kind.OR, Kind.XOR):
        none = np.zeros((), dtype)
        return Operator(
            extract=lambda x, positions: x,
            combine={Kind.AND: jnp.bitwise_and, Kind.OR: jnp.bitwise_or, Kind.XOR: jnp.bitwise_xor}[kind],
            finish=lambda state: state,
            identity=~none if kind == Kind.AND else none,
        )
    if kind == Kind.LOGSUMEXP:
        return Operator(
            extract=lambda x, positions: x.astype(wide),
            combine=jnp.logaddexp,
            finish=lambda state: state.astype(dtype),
            identity=np.asarray(-np.inf, wide),
        )
    largest = kind in (Kind.MAX, Kind.ARGMAX)
    if not kind.gives_index:
        limits: Any = jnp.finfo(dtype) if wide != dtype or jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype)
        bounds = (-jnp.inf, jnp.inf) if jnp.issubdtype(dtype, jnp.floating) else (limits.min, limits.max)
        return Operator(
            extract=lambda x, positions: x,
            combine=jnp.maximum if largest else jnp.minimum,
            finish=lambda state: state,
            identity=np.asarray(bounds[0 if largest else 1], dtype),
            **known,
        )

    def combine(a: tuple[jax.Array, jax.Array], b: tuple[jax.Array, jax.Array]) -> Any:
        (x, i), (y, j) = a, b
        x_nan, y_nan = jnp.isnan(x), jnp.isnan(y)
        better = jnp.where(x_nan | y_nan, y_nan & ~x_nan, y > x if largest else y < x)
        equal = (x == y) | (x_nan & y_nan)
        take = (j >= 0) & ((i < 0) | better | (equal & (j < i)))
        return jnp.where(take, y, x), jnp.where(take, j, i)

    def extract(x: jax.Array, positions: jax.Array) -> Any:
        places = positions.reshape(*positions.shape, *[1] * (x.ndim - positions.ndim))
        return x, jnp.broadcast_to(places, x.shape)

    return Operator(
        extract=extract,
        combine=combine,
        finish=lambda state: state[1],
        identity=(np.zeros((), dtype), np.asarray(-1)),
        dead=-1,
        **known,
    )


def custom(
    operation: str,
    op: Callable[..., Any],
    x: Pytree,
    identity: Pytree,
    needs_identity: Callable[[int], str | None] = lambda n: None,
    argument: str = "x",
    commutative: bool = False,
    initial: Pytree = None,
) -> tuple[Operator, Any, int, Callable[[Any], Any]]:
    """Returns a caller's function as an operator, the items, their number, and the function that restores results.

    Random keys are rows of words everywhere but in the function. `needs_identity` says why an identity is needed for a
    number of items, or returns None. `commutative` is the caller's promise.
    """
    expect_no_array_function(operation, op)
    leaves, structure, n = expect_pytree(operation, argument, x, "with a function as op a list is a pytree")
    _expect_items(operation, op, [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in leaves], structure)
    needs = needs_identity(n)
    if initial is not None:
        initial = _like_item(operation, "initial", initial, leaves, structure)
    if identity is not None:
        identity = _like_item(operation, "identity", identity, leaves, structure)
    elif needs is not None:
        raise value_error(operation, "identity", f"the identity of op, for {needs}", "None")
    index_dtype(operation, argument, n)
    plain, restore_leaves = plain_leaves(leaves)
    plain = [whole_axes(leaf) for leaf in plain]

    def restore(tree: Pytree) -> Any:
        return structure.unflatten(restore_leaves(jax.tree.leaves(tree)))

    def combine_items(a: Pytree, b: Pytree) -> Any:
        results = zip(jax.tree.leaves(op(restore(a), restore(b))), leaves, strict=True)
        arrays = [x if isinstance(x, jax.Array) else jnp.asarray(x, leaf.dtype) for x, leaf in results]
        return structure.unflatten(plain_leaves(arrays)[0])

    operator = Operator(
        extract=lambda x, positions: x,
        combine=jax.vmap(combine_items),
        finish=lambda state: state,
        identity=identity,
        function=combine_items,
        initial=initial,
        commutes=commutative,
    )
    return operator, structure.unflatten(plain), n, restore


# Functions of arrays that callers may pass by mistake, and the operators that do the same.
ARRAY_FUNCTIONS = [
    (getattr(module, function), name)
    for module in (builtins, np, jnp, jax.lax, jax.nn)
    for names, name in (
        ("sum cumsum cumulative_sum", "add"),
        ("prod cumprod cumulative_prod", "mul"),
        ("min amin cummin", "min"),
        ("max amax cummax", "max"),
        ("logsumexp cumlogsumexp", "logsumexp"),
        *((name, name) for name in ("argmin", "argmax", "mean", "any", "all")),
    )
    for function in names.split()
    if hasattr(module, function)
]


def expect_no_array_function(operation: str, op: Any, takes_functions: bool = True) -> None:
    """Raises if an operator is `jnp.sum` or the like."""
    for function, name in ARRAY_FUNCTIONS:
        if op is function:
            expected = f"the name {name!r}" + ", or a function of two items" * takes_functions
            raise type_error(operation, "op", expected, f"{function.__name__}, a function of an array")


def _like_item(operation: str, argument: str, item: Pytree, leaves: Sequence[jax.Array], structure: PyTreeDef) -> Any:
    given, given_structure = flatten(item)
    if given_structure != structure:
        raise type_error(operation, argument, f"the structure of x, {structure}", given_structure)
    pairs = zip(given, leaves, strict=True)
    arrays = [of_item(operation, argument, i, leaf.shape[1:], leaf.dtype) for i, leaf in pairs]
    return structure.unflatten(plain_leaves(arrays)[0])


def of_item(operation: str, argument: str, x: Pytree, shape: tuple[int, ...], dtype: DTypeLike | None) -> jax.Array:
    """Returns an argument of the shape and type of an item."""
    x = as_array(operation, argument, x)
    if x.ndim > len(shape) or any(a not in (1, b) for a, b in zip(x.shape[::-1], shape[::-1], strict=False)):
        raise value_error(operation, argument, f"the shape of an item, {list(shape)}", describe(x))
    return jnp.broadcast_to(x if x.dtype == dtype else x.astype(dtype), shape)


def _expect_items(operation: str, op: Callable[..., Any], item: Sequence[Any], structure: PyTreeDef) -> None:
    """Checks that a function of two items returns one like them."""
    expected = "a function of two items that gives one like them, "
    items = [structure.unflatten(item)] * 2
    leaves, result_structure = flatten(result_shapes(operation, "op", f"{expected}{structure}", op, *items))
    if result_structure != structure:
        raise type_error(operation, "op", f"{expected}{structure}", result_structure)
    for leaf, like in zip(leaves, item, strict=True):
        if (leaf.shape, leaf.dtype) != (like.shape, like.dtype):
            raise type_error(operation, "op", expected + describe(like), describe(leaf))


def identities(identity: Pytree, like: Pytree) -> Any:
    """Returns the identity in the shape and dtype of states."""
    return jax.tree.map(lambda i, s: jnp.broadcast_to(i, s.shape).astype(s.dtype), identity, like)


def of_nothing(operator: Operator, *operands: object) -> Any:
    """Returns the identity as a state that varies under shard_map as results do."""
    given = [x for x in jax.tree.leaves(operands) if isinstance(x, jax.Array)]
    return jax.tree.map(lambda x: vary_as(jnp.asarray(x), *given), operator.identity)


def _states(operator: Operator, x: Pytree, n: int, *heads: jax.Array) -> tuple[jax.Array, Any]:
    positions = jnp.arange(n, dtype=index_dtype("scan", "x", n))
    # A function may compute a part of an item from its position alone: under shard_map that part must vary as the rest
    # does.
    made, structure = flatten(operator.extract(x, positions))
    return positions, structure.unflatten([vary_as(x, *made, *heads) for x in made])


def general_scan(
    operator: Operator,
    x: Pytree,
    n: int,
    heads: jax.Array,
    count: jax.Array,
    *,
    exclusive: int,
    reverse: int,
    uses_lasts: bool = True,
) -> tuple[Any, Any]:
    """Scans segments; returns states, and the total of the segment that the scan reaches last.

    Without `uses_lasts`, no result that the caller uses includes the last item of a segment.
    """
    heads = whole_axes(heads)
    positions, states = _states(operator, x, n, heads)
    if n == 0:
        return states, of_nothing(operator, x, count)
    live = live_items(n, count)
    starts = segment_starts(n, heads)
    lasts = shifted(starts, -1, True) | (positions == live - 1)
    if reverse:
        starts, lasts = lasts, starts
    if not uses_lasts:  # zero times the infinite derivative by an unused item would be NaN
        states = blocked_scan.or_ones(~lasts, states)
    # Dead items are not combined with live ones.
    cut = starts if heads.size else None
    if count.size:
        cut = starts | (positions >= live)
    scanned = blocked_scan.scanned(operator.combine, states, cut, reverse=bool(reverse))
    last = jax.tree.map(lambda s: s[0] if reverse else _rows_at(s, jnp.maximum(live - 1, 0)[None])[0], scanned)
    total = last if operator.identity is None else select(live > 0, last, identities(operator.identity, last))
    if exclusive:
        before = jax.tree.map(lambda s: shifted(s, -1 if reverse else 1), scanned)
        scanned = select(starts, identities(operator.identity, before), before)
    return scanned, total


def _rows_at(x: jax.Array, indices: jax.Array) -> jax.Array:
    return gather(x, indices, unique=True)


def mask_dead(results: Pytree, n: int, count: jax.Array, dead: int) -> Any:
    """Returns results with a fixed value past the live items."""
    if not count.size:
        return results
    return select(live_mask(n, count), results, jax.tree.map(lambda r: jnp.full_like(r, dead), results))


def scan_results(
    operator: Operator,
    x: Pytree,
    n: int,
    heads: jax.Array,
    count: jax.Array,
    *,
    exclusive: int,
    reverse: int,
    total: int,
    is_moved: int = 0,
) -> Sequence[Any]:
    """Returns the results of `scan`; if the caller moves them (`Scan.moves_on`), it drops those at the last items."""
    uses_lasts = bool(total) or not (exclusive or is_moved)
    states, last = general_scan(
        operator, x, n, heads, count, exclusive=exclusive, reverse=reverse, uses_lasts=uses_lasts
    )
    results = [mask_dead(operator.finish(states), n, count, operator.dead)]
    return [*results, operator.finish(last)] if total else results


def reduce_results(operator: Operator, x: Pytree, n: int, count: jax.Array) -> Any:
    if n == 0:
        return operator.finish(of_nothing(operator, x, count))
    _, states = _states(operator, x, n)
    total = blocked_scan.combined(operator.combine, states, live_mask(n, count) if count.size else None)
    if count.size and operator.identity is not None:
        total = select(live_items(n, count) > 0, total, identities(operator.identity, total))
    return operator.finish(total)


def segmented_results(operator: Operator, x: Pytree, n: int, heads: jax.Array, count: jax.Array) -> Any:
    """Returns the result of `segmented_reduce`; without an identity, empty segments are unspecified."""
    heads = whole_axes(heads)
    m = heads.shape[0]
    if n == 0:
        states = jax.tree.map(lambda i: jnp.broadcast_to(i, (m, *jnp.shape(i))), of_nothing(operator, x, heads, count))
        return operator.finish(states)
    states, _ = general_scan(operator, x, n, heads, count, exclusive=0, reverse=0)
    return segment_ends(operator, states, n, heads, count)


def segment_ends(operator: Operator, states: Pytree, n: int, heads: jax.Array, count: jax.Array) -> Any:
    """Returns the results of segments from the scan of their states."""
    begin, end = segment_bounds(heads, n, count)
    last = jnp.where(begin < end, end - 1, -1)
    states = jax.tree.map(lambda s: _rows_at(s, last), states)
    if operator.identity is not None:
        states = select(begin < end, states, identities(operator.identity, states))
    return operator.finish(states)
