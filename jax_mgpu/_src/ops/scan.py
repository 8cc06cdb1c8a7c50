"""Scans of an array or of its segments by an associative operator."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import (
    ArrayLike,
    Aval,
    AxisName,
    Count,
    DTypeLike,
    ItemFunction,
    Operands,
    OperatorTree,
    PairFunction,
    Pytree,
    ScannedName,
    SegmentsLike,
    Tangents,
)
from jax_mgpu._src.arguments.check import (
    index_dtype,
    static_flag,
    type_error,
    value_error,
)
from jax_mgpu._src.arguments.counts import heads_inside, live_items, live_mask, segment_starts
from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.arguments.segments import GivenSegments, segment_operands, split_segments
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.core.compat import partition_spec, stack, vary_as
from jax_mgpu._src.core.operation import ABSENT, REGISTRY, Operation, jit_eager
from jax_mgpu._src.functions.combination import Combination
from jax_mgpu._src.functions.custom_operator import run_mapped, scan_by_function
from jax_mgpu._src.functions.named_operators import Leaf, over_devices
from jax_mgpu._src.functions.operators import (
    Kind,
    Operator,
    accumulator_dtype,
    builtin,
    mask_dead,
    of_item,
    result_dtype,
    scan_results,
    select,
)
from jax_mgpu._src.functions.recurrence import neighbours, recurrence, weighted
from jax_mgpu._src.functions.transform import Load, emitted, one_leaf
from jax_mgpu._src.keys.bits import keeping_bits, shifted, where
from jax_mgpu._src.mesh import devices_of, over_axis

__all__ = ["scan", "segmented_scan"]

# Batches of problems with fewer elements run `_rows_fallback`.
LEAST_ROW_ITEMS = 1024


@overload
def scan(
    x: ArrayLike,
    op: ScannedName | PairFunction = "add",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    count: ArrayLike | None = None,
    return_total: Literal[False] = False,
    identity: Pytree = None,
    initial: Pytree = None,
    dtype: DTypeLike | None = None,
    commutative: bool = False,
    axis_name: AxisName | None = None,
) -> jax.Array: ...
@overload
def scan(
    x: Pytree,
    op: OperatorTree | PairFunction = "add",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    count: ArrayLike | None = None,
    return_total: bool = False,
    identity: Pytree = None,
    initial: Pytree = None,
    map: ItemFunction | None = None,
    emit: ItemFunction | None = None,
    dtype: DTypeLike | None = None,
    commutative: bool = False,
    axis_name: AxisName | None = None,
) -> Any: ...
@jit_eager("op", "exclusive", "reverse", "return_total", "commutative", "map", "emit", "dtype")
def scan(
    x: Pytree,
    op: OperatorTree | PairFunction = "add",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    count: ArrayLike | None = None,
    return_total: bool = False,
    identity: Pytree = None,
    initial: Pytree = None,
    map: ItemFunction | None = None,
    emit: ItemFunction | None = None,
    dtype: DTypeLike | None = None,
    commutative: bool = False,
    axis_name: AxisName | None = None,
) -> Any:
    """Combines all items up to each position.

    Args:
      x: an array `[n, ...]` or a pytree of such arrays: see `reduce`.
      op: a name, a pytree of names that matches x or a prefix of its structure, or any associative function of two
        items: see `reduce`. A scan does not take `"var"`, `"std"`, `"median"`, `"nunique"`, `"count"`, `"first"`,
        `"last"`, or names that begin with `nan`. Sums and products of integers have the array's type, as those of
        `jnp.cumsum` do.
      exclusive: leave out the position's own item; the first result is the identity, or `initial`.
      reverse: scan from the end, as if x and the result were flipped. A function of two items gets the item nearer to
        the end first.
      count: the number of live items, an integer scalar (default `n`). Items past it are ignored, and their results
        are 0 (-1 for indices).
      return_total: also return the combination of all live items.
      identity: the identity of a function `op`, a pytree like one item: needed for an exclusive scan, and for a total
        over possibly no items.
      initial: the initial value of the scan, an item that is combined before the first one, or a pytree of such values.
        It is the first result of an exclusive scan. Exclusive scans with `initial` need no identity, except over a mesh
        axis. Totals include it. `"mean"`, `"argmin"` and `"argmax"` accept none.
      map: a function of an item, or of an item and its position. `op` combines its results, which may have another
        structure and dtype; x is then any pytree of arrays with leading axis `n`. CUDA kernels may evaluate it as
        they load an item. Over a mesh axis, positions are global.
      emit: a function of a state (the scan's value at a position), or of a state and its position. The scan returns its
        results, which may be any pytree, and 0 past the count. Totals are states.
      dtype: convert the items to this dtype before a named `op` combines them: see `reduce`.
      commutative: a promise that a function `op` commutes, which may be faster.
      axis_name: scan the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`.

    Returns:
      For each array of x, an array `[n, ...]` of the same type or of the type that `reduce` states for `op`. With
      `return_total`, a pair `(arrays, totals)`. Over a mesh axis, indices are positions in the global array, and
      the total is the same on all devices.

    Raises:
      TypeError: an argument's dtype or structure is not one of the above.
      ValueError: an argument's shape is not one of the above, `op` is not known, or `identity` is missing; indices into
        2^31 items or more without `jax_enable_x64`.

    Time is O(n). On a GPU, the kernels read and write memory once (decoupled look-back, Merrill and Garland, 2016, with
    a fixed tree of sums, so that float results are the same in every run). A function is compiled into the CUDA
    kernels. A loop in plain JAX runs `"logsumexp"`, functions that cannot be compiled and, on other platforms, all
    functions.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.scan(jnp.array([3, 1, 4, 1, 5]), exclusive=True)
      Array([0, 3, 4, 8, 9], dtype=int32)
      >>> mgpu.scan(jnp.array([100, 100], jnp.int8), dtype=jnp.int32)
      Array([100, 200], dtype=int32)
      >>> mgpu.scan({"x": jnp.array([[3, 1], [4, 1]]), "y": jnp.array([False, True])}, {"x": "sum", "y": "any"})
      {'x': Array([[3, 1],
             [7, 2]], dtype=int32), 'y': Array([False,  True], dtype=bool)}
      >>> mgpu.scan(jnp.array([3.0, 1.0, 5.0]), emit=lambda total, i: total / (i + 1))  # running means
      Array([3., 2., 3.], dtype=float32)
    """
    asked = Scan(
        name="scan", op=op, exclusive=exclusive, reverse=reverse, return_total=return_total, identity=identity,
        initial=initial, map=map, emit=emit, dtype=dtype, commutative=commutative, axis_name=axis_name,
    )  # fmt: skip
    return run_scan(asked, x, ABSENT, None, count)


@overload
def segmented_scan(
    x: ArrayLike,
    heads: SegmentsLike,
    op: ScannedName | PairFunction = "add",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    ends: ArrayLike | None = None,
    count: ArrayLike | None = None,
    identity: Pytree = None,
    initial: Pytree = None,
    dtype: DTypeLike | None = None,
    commutative: bool = False,
) -> jax.Array: ...
@overload
def segmented_scan(
    x: Pytree,
    heads: SegmentsLike,
    op: OperatorTree | PairFunction = "add",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    ends: ArrayLike | None = None,
    count: ArrayLike | None = None,
    identity: Pytree = None,
    initial: Pytree = None,
    map: ItemFunction | None = None,
    emit: ItemFunction | None = None,
    dtype: DTypeLike | None = None,
    commutative: bool = False,
    axis_name: AxisName | None = None,
) -> Any: ...
@jit_eager("op", "exclusive", "reverse", "commutative", "map", "emit", "dtype")
def segmented_scan(
    x: Pytree,
    heads: SegmentsLike,
    op: OperatorTree | PairFunction = "add",
    *,
    exclusive: bool = False,
    reverse: bool = False,
    ends: ArrayLike | None = None,
    count: ArrayLike | None = None,
    identity: Pytree = None,
    initial: Pytree = None,
    map: ItemFunction | None = None,
    emit: ItemFunction | None = None,
    dtype: DTypeLike | None = None,
    commutative: bool = False,
    axis_name: AxisName | None = None,
) -> Any:
    """Scans each segment of `x` on its own.

    Args:
      x: see `scan`.
      heads: `[m]`, non-decreasing integers: the start positions of the segments. Position 0 starts a segment whether
        listed or not; a repeated head is an empty segment; a head past the last item is padding. Or `Segments`, which
        replace `ends` and `count`.
      op: see `scan`.
      exclusive: see `scan`; each segment's first result is the identity, or `initial`.
      reverse: scan each segment from its end.
      ends: `[m]` integers, the ends: segment `i` is `heads[i]` to `ends[i]`, and items outside of all segments have the
        result 0 (-1 for indices). See `segmented_reduce`.
      count: see `scan`.
      identity: see `scan`.
      initial: see `scan`; each segment begins with it.
      map: see `scan`.
      emit: see `scan`.
      dtype: see `scan`.
      commutative: see `scan`.
      axis_name: see `scan`; heads are given as for `segmented_reduce`.

    Returns:
      For each array of x, an array `[n, ...]`. Indices are positions in x, or in the global array over a mesh axis.

    Raises:
      TypeError: as `scan`.
      ValueError: as `scan`.

    Time is O(n + m) for any lengths of the segments. For the method, see `scan`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.segmented_scan(jnp.array([3, 1, 4, 1, 5]), jnp.array([0, 2]))
      Array([ 3,  4,  4,  5, 10], dtype=int32)
    """
    asked = Scan(
        name="segmented_scan", op=op, exclusive=exclusive, reverse=reverse, identity=identity, initial=initial, map=map,
        emit=emit, dtype=dtype, commutative=commutative, axis_name=axis_name,
    )  # fmt: skip
    return run_scan(asked, x, heads, ends, count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scan(Combination):
    """The settings of a scan of all items, of segments or of runs, by the names of the public functions' arguments."""

    exclusive: bool
    reverse: bool
    return_total: bool = False
    initial: Pytree
    emit: ItemFunction | None

    def __post_init__(self) -> None:
        """Checks the settings that do not depend on the items, and makes the flags bools."""
        for flag in ("exclusive", "reverse", "return_total"):
            object.__setattr__(self, flag, static_flag(self.name, flag, getattr(self, flag)))
        super().__post_init__()

    @property
    def moves_on(self) -> bool:
        """Whether the exclusive scan is the inclusive one, with each result moved to the next item.

        The first result is then `initial`, and the operator needs no identity.
        """
        begins = self.identity is None and self.initial is not None
        return self.exclusive and callable(self.op) and begins and self.axis_name is None

    @property
    def flags(self) -> dict[str, bool]:
        """The attributes of scan operations, except `op`."""
        return {"exclusive": self.exclusive and not self.moves_on, "reverse": self.reverse, "total": self.return_total}

    def scanned(self, x: Pytree, count: Count) -> tuple[Operator | list[Leaf], Any, int, Callable[[Any], Any]]:
        """Returns the operator or leaves of x for a scan; see `Combination.parts`."""

        def needs_identity(n: int) -> str | None:
            if self.return_total and (count is not None or n == 0):
                return "a total that may be over nothing"
            return "an exclusive scan" if self.exclusive and not self.moves_on else None

        return self.parts(x, needs_identity, initial=self.initial, scanned=True)


def run_scan(asked: Scan, x: Pytree, heads: SegmentsLike, ends: ArrayLike | None, count: Count) -> Any:
    """Scans all items, or each segment."""
    name, axis_name = asked.name, asked.axis_name
    has_ends = split_segments(name, heads, ends)[1] is not None
    inside = before_map(name, heads, ends, count, axis_name) if has_ends else None
    x, load = asked.mapped(x, count, inside=inside)
    asked_of, x, n, restore = asked.scanned(x, count)
    of = asked_of
    segments = segment_operands(name, heads, ends, count, n, axis_name=axis_name)
    heads, live_count = pieces(segments, name, axis_name), segments.count
    if isinstance(of, Operator):
        x = inside_segments(x, heads, gaps=True) if has_ends and load is None else x
    else:
        of = [leaf_inside_segments(leaf, heads, gaps=True) for leaf in of] if has_ends and load is None else of
        of = of if asked.initial is None else [_unrounded(leaf) for leaf in of]
        load, of = one_leaf(load, of)
    form, own = (_scanned, heads) if axis_name is None else (_scanned_over_axis, own_pieces(segments, heads))
    results, fills = form(asked, of, x, n, own, live_count, load)
    changes_results = asked.initial is not None or asked.emit is not None
    live = live_mask(n, live_count) if live_count.size and changes_results else None
    if has_ends:
        live = covered(n, heads) & live_mask(n, live_count)
        results[0] = jax.tree.map(lambda x, fill: select(live, x, jnp.full_like(x, fill)), results[0], fills)
    place = (n, heads, live_count, asked.reverse) if asked.moves_on else None
    results = _begun(name, asked_of, asked.initial, results, restore, live, place)
    results = [restore(parts) for parts in results]
    results[0] = emitted(name, asked.emit, results[0], n, live, live_count, axis_name)
    return tuple(results) if asked.return_total else results[0]


def _unrounded(leaf: Leaf) -> Leaf:
    """Returns a leaf whose results have the type in which an initial value is combined with them."""
    wide = accumulator_dtype(leaf.dtype)
    return leaf if wide == leaf.dtype else dataclasses.replace(leaf, x=leaf.x.astype(wide), dtype=wide)


def _scanned(
    asked: Scan, of: Any, x: Pytree, n: int, heads: jax.Array, count: jax.Array, load: Load | None
) -> tuple[list[Any], Any]:
    """Returns the results of a scan, its total if there is one, and the results of items in no segment."""
    if isinstance(of, Operator):
        results = list(scan_by_function(asked.name, of, x, n, heads, count, load, asked.moves_on, **asked.flags))
        return results, jax.tree.map(lambda _: 0, results[0])
    scanned = [_scan_leaf(asked.name, leaf, n, heads, count, load, **asked.flags) for leaf in of]
    return [list(parts) for parts in zip(*scanned, strict=True)], [leaf.fill for leaf in of]


def _scanned_over_axis(
    asked: Scan, of: Any, x: Pytree, n: int, heads: jax.Array, count: jax.Array, load: Load | None
) -> tuple[list[Any], Any]:
    del load
    name, axis_name = asked.name, asked.axis_name
    given = () if heads is ABSENT else (heads,)
    form = mesh.reductions.scan if heads is ABSENT else mesh.reductions.segmented_scan

    def scanned_over(op: Kind | Operator, x: Pytree) -> list[Any]:
        return list(over_axis(form, name, axis_name, op, x, n, *given, count, **asked.flags))

    if isinstance(of, Operator):
        results = scanned_over(of, x)
        return results, jax.tree.map(lambda _: 0, results[0])
    dtype = index_dtype(name, "x", n * devices_of(name, axis_name))
    shapes: list[tuple[int, ...]] = [(n,), ()][: 1 + asked.return_total]
    of_leaves = [over_devices(leaf, scanned_over, shapes, dtype) for leaf in of]
    results = [list(parts) for parts in zip(*of_leaves, strict=True)]
    results[0] = [_without_dead(leaf, x, n, count) for leaf, x in zip(of, results[0], strict=True)]
    return results, [leaf.fill for leaf in of]


def _begun(
    name: str,
    op: Operator | list[Leaf],
    initial: Pytree,
    results: list[Any],
    restore: Callable[[Any], Any],
    live: jax.Array | None,
    place: tuple[int, Any, Any, bool] | None,
) -> list[Any]:
    if initial is None:
        return results
    if isinstance(op, Operator):
        results = [_combined_with(op, results[0]), *(_combined_with(op, total, True) for total in results[1:])]
        results[0] = results[0] if place is None else _moved_on(op, results[0], *place)
    else:
        begins = _initial_leaves(name, initial, op, restore)
        results = [[_begun_leaf(*pair) for pair in zip(op, begins, part, strict=True)] for part in results]
    if live is not None:
        results[0] = jax.tree.map(lambda x: select(live, x, jnp.zeros_like(x)), results[0])
    return results


def _combined_with(operator: Operator, results: Pytree, is_total: bool = False) -> Any:
    rows = jax.tree.map(lambda x: x[None], results) if is_total else results
    begins = jax.tree.map(lambda i, x: jnp.broadcast_to(i, x.shape), operator.initial, rows)
    combined = operator.combine(begins, rows)
    return jax.tree.map(lambda x: x[0], combined) if is_total else combined


def _begun_leaf(leaf: Leaf, initial: jax.Array, results: jax.Array) -> jax.Array:
    wide = accumulator_dtype(leaf.dtype)
    combine = builtin(leaf.kind, leaf.dtype).combine
    result: jax.Array = combine(jnp.broadcast_to(initial, results.shape).astype(wide), results.astype(wide)).astype(
        leaf.dtype
    )
    return result


def _initial_leaves(name: str, initial: Pytree, leaves: list[Leaf], restore: Callable[[Any], Any]) -> list[jax.Array]:
    for leaf in leaves:
        if leaf.mean or leaf.kind.gives_index:
            raise value_error(name, "initial", "None for 'mean', 'argmin' and 'argmax'", "a value")
    like = restore(list(range(len(leaves))))
    try:
        given = jax.tree.leaves(jax.tree.broadcast(initial, like))
    except ValueError as error:
        raise type_error(name, "initial", f"the structure of x, {jax.tree.structure(like)}", repr(initial)) from error
    return [of_item(name, "initial", i, leaf.trailing, leaf.dtype) for i, leaf in zip(given, leaves, strict=True)]


def _moved_on(operator: Operator, results: Pytree, n: int, heads: jax.Array, count: jax.Array, reverse: bool) -> Any:
    """Moves each result of an inclusive scan to the next item of its segment."""
    starts = segment_starts(n, heads)
    if reverse:
        places = jnp.arange(n, dtype=index_dtype("scan", "x", n))
        starts = shifted(starts, -1, True) | (places == live_items(n, count) - 1)
    moved = jax.tree.map(lambda x: shifted(x, -1 if reverse else 1), results)
    return select(starts, jax.tree.map(lambda i, x: jnp.broadcast_to(i, x.shape), operator.initial, moved), moved)


def pieces(segments: GivenSegments, operation: str = "", axis_name: AxisName | None = None) -> jax.Array:
    """Returns the heads for kernels. If segments have ends, each head is followed by the head of the gap after it.

    An empty segment that lies within another one is moved to the end of that segment. Over a mesh axis, if segments
    have ends, the first two heads are those of a segment that continues from an earlier device and of the gap after it.
    """
    heads, ends = segments.heads, segments.ends
    if ends is None or (not heads.size and axis_name is None):  # a batch over an Explicit mesh cannot reshape them
        return heads
    if axis_name is not None:
        return over_axis(mesh.ranges.pieces, operation, axis_name, segments)
    if segments.ascends:
        return stack([heads, ends], -1).reshape(-1)
    return heads_of_bounds(heads, jnp.maximum(heads, ends))


def heads_of_bounds(begins: jax.Array, ends: jax.Array) -> jax.Array:
    """Returns the heads of segments and of the gaps after them."""
    return scan_columns(stack([begins, ends], -1).reshape(-1), Kind.MAX)


def own_pieces(segments: GivenSegments, heads: jax.Array) -> jax.Array:
    """Returns `pieces` over a mesh axis, without the head that it adds for an earlier device's segment."""
    return heads if segments.ends is None else heads[1:]


def covered(n: int, heads: jax.Array) -> jax.Array:
    """Returns which of n positions lie in a segment, given alternating heads of segments and gaps."""
    turns = (jnp.arange(heads.shape[0]) % 2 == 0)[:, None]
    none = jnp.zeros((1,), bool)
    return REGISTRY["interval_expand"](values=turns, offsets=heads, total=ABSENT, fill_value=none, size=n)[0][:, 0]


def _from_first(n: int, heads: jax.Array) -> jax.Array:
    """Returns which positions are not before the first segment."""
    if not heads.size:
        return jnp.zeros((n,), bool)
    first = heads_inside(heads[0], n)
    return jnp.arange(n, dtype=first.dtype) >= first


def inside_segments(x: Pytree, heads: jax.Array, *, gaps: bool) -> Any:
    """Gives items in no segment the derivative 0; an infinite partial derivative times a cotangent of 0 would be NaN.

    Without `gaps`, these are the items before the first head. With `gaps`, heads of segments and of gaps alternate, and
    items in gaps are in no segment either.
    """
    # Within shard_map, results vary like the heads, as their tangents do.
    return jax.tree.map(
        lambda x: _inside(vary_as(x, heads), heads, gaps) if jnp.issubdtype(x.dtype, jnp.inexact) else x, x
    )


def leaf_inside_segments(leaf: Leaf, heads: jax.Array, *, gaps: bool) -> Leaf:
    """`inside_segments` for the array of a named operator, if its partial derivatives depend on the items."""
    if leaf.made is None and leaf.kind not in (Kind.MUL, Kind.LOGSUMEXP):
        return leaf
    return dataclasses.replace(leaf, x=inside_segments(leaf.x, heads, gaps=gaps))


def before_map(
    name: str, heads: SegmentsLike, ends: ArrayLike | None, count: Count = None, axis_name: AxisName | None = None
) -> Callable[[jax.Array], jax.Array]:
    """Returns a function that applies `inside_segments` to an array before `map`."""
    given = None if axis_name is None else count

    def inside(x: jax.Array) -> jax.Array:
        with by_construction():  # heads are checked where they are used
            segments = segment_operands(name, heads, ends, given, x.shape[0], axis_name=axis_name)
        turns = pieces(segments, name, axis_name)
        result: jax.Array = inside_segments(x, turns, gaps=segments.ends is not None)
        return result

    return inside


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _inside(x: jax.Array, heads: jax.Array, gaps: bool) -> jax.Array:
    del heads, gaps
    return x


@_inside.defjvp
def _inside_jvp(
    gaps: bool, primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    x, heads = primals
    n = x.shape[0]
    within = covered(n, heads) if gaps else _from_first(n, heads)
    return x, select(within, tangents[0], jnp.zeros_like(tangents[0]))


def _scan_leaf(
    name: str, leaf: Leaf, n: int, heads: jax.Array, count: jax.Array, load: Load | None, **flags: bool
) -> list[jax.Array]:
    mapped = run_mapped("scan_by_function", name, leaf.kind, leaf.x, heads, count, load, **flags)
    if mapped is not None:
        return list(mapped)
    shapes: list[tuple[int, ...]] = [(n,), ()][: 1 + flags["total"]]
    if leaf.is_empty:
        return [leaf.nothing(shape) for shape in shapes]
    x = leaf.x.astype(accumulator_dtype(leaf.x.dtype)) if leaf.mean else leaf.x
    combined = _scan_items(x, heads, count, op=leaf.kind, **flags)
    counts: list[jax.Array] = []
    if leaf.mean:
        ones = jnp.ones((n,), index_dtype(name, "x", n))
        counts = _scan(x=ones, heads=heads, count=count, op=Kind.ADD, **flags)
    results = [
        leaf.results(part, shape, lambda i=i: counts[i])  # type: ignore[misc]
        for i, (part, shape) in enumerate(zip(combined, shapes, strict=True))
    ]
    return [_without_dead(leaf, results[0], n, count), *results[1:]]


def _without_dead(leaf: Leaf, results: jax.Array, n: int, count: jax.Array) -> jax.Array:
    """Sets means past the live items to 0."""
    if not (leaf.mean and count.size):
        return results
    return jnp.where(live_mask(n, count).reshape(n, *[1] * len(leaf.trailing)), results, 0)


def _scan_items(x: jax.Array, heads: jax.Array, count: jax.Array, **attributes: int) -> list[jax.Array]:
    def scan_column(column: jax.Array) -> list[jax.Array]:
        return _scan(x=column, heads=heads, count=count, **attributes)

    return scan_column(x) if x.ndim == 1 else jax.vmap(scan_column, 1, [1, 0][: 1 + attributes["total"]])(x)


def scan_columns(
    x: jax.Array,
    op: Kind,
    heads: jax.Array = ABSENT,
    count: jax.Array = ABSENT,
    *,
    exclusive: bool = False,
    reverse: bool = False,
) -> jax.Array:
    """Scans an array, or each column of rows."""
    return _scan_items(x, heads, count, op=op, exclusive=exclusive, reverse=reverse, total=False)[0]


def scan_from(initial: jax.Array, x: jax.Array, op: Kind, count: jax.Array, **flags: bool) -> jax.Array:
    """Scans from an initial item in one pass; see `begins_with_item`."""
    return _scan(x=x, count=count, initial=initial.reshape(1), op=op, total=False, **flags)[0]


def item_segments(name: str, n: int, heads: jax.Array, count: jax.Array) -> jax.Array:
    """Returns the segment of each item, -1 before the first head and past the live items."""
    index_dtype(f"derivative of {name}", "x", n)
    marks = jnp.zeros((n,), heads.dtype).at[heads_inside(heads, n)].add(1, mode="drop")
    return where(live_mask(n, count), scan_columns(marks, Kind.ADD) - 1, -1)


def next_marked(marked: jax.Array, live: jax.Array) -> jax.Array:
    """Returns, for each position, the next marked one, or the number of live items."""
    (n,) = marked.shape
    places = jnp.where(marked, jnp.arange(n, dtype=live.dtype), n)
    return jnp.minimum(_scan(x=places, op=Kind.MIN, exclusive=True, reverse=True, total=False)[0], live)


def _shapes(x: Aval, *, op: int, total: int) -> Sequence[Any]:
    dtype = result_dtype("scan", op, x)
    scanned = jax.ShapeDtypeStruct(x.shape, dtype)
    return [scanned, jax.ShapeDtypeStruct(x.shape[1:], dtype)] if total else [scanned]


def begins_with_item(op: Kind, dtype: DTypeLike) -> bool:
    """Whether the operation itself takes the initial item: for sums, and for integers and bools except indices."""
    return op == Kind.ADD or not (op.gives_index or jnp.issubdtype(dtype, jnp.inexact))


def _fallback(
    x: jax.Array, heads: jax.Array, count: jax.Array, initial: jax.Array, *, op: int, **flags: int
) -> Sequence[jax.Array]:
    operator, n = builtin(op, x.dtype), x.shape[0]
    results = scan_results(operator, x, n, heads, count, **flags)
    if initial.size:
        here = jnp.zeros((), jnp.int32)
        first = operator.extract(initial[0], here)
        begun = [operator.finish(operator.combine(first, operator.extract(result, here))) for result in results]
        results = [mask_dead(begun[0], n, count, operator.dead), *begun[1:]]
    return [result.astype(result_dtype("scan", op, x)) for result in results]


def _jvp(primals: Operands, tangents: Tangents, *, op: int, **flags: int) -> tuple[Any, Any]:
    dx, initial = tangents.x, tangents.initial
    kind = Kind(op)
    results = _scan.run(primals, op=op, **flags)
    if (dx is None and initial is None) or kind.gives_index or kind in (Kind.AND, Kind.OR, Kind.XOR):
        return results, [None] * len(results)
    dx = jnp.zeros_like(primals.x) if dx is None else dx
    initial = jnp.zeros(primals.initial.shape, dx.dtype) if initial is None else initial
    if kind == Kind.ADD:
        return results, _scan.run(primals._replace(x=dx, initial=initial), op=op, **flags)
    _expect_indices(primals.x, primals.heads)
    rules = {Kind.MUL: _product_tangents, Kind.LOGSUMEXP: _logsumexp_tangents}
    return results, rules.get(kind, functools.partial(_extremum_tangents, kind))(primals, dx, **flags)


def _expect_indices(x: Aval, heads: jax.Array) -> None:
    """Raises if indices into x, which a derivative may need, require `jax_enable_x64`."""
    index_dtype(f"derivative of {'segmented_scan' if heads.size else 'scan'}", "x", x.shape[0])


def _extremum_tangents(
    kind: Kind, primals: Operands, dx: jax.Array, *, exclusive: int, reverse: int, total: int
) -> Sequence[jax.Array]:
    """Returns the tangents of minima or maxima so far.

    The positions whose extremum is one item form a run. In a run, only the tangent of the first item is kept; a sum
    over the run gives this tangent to all positions.
    """
    flags = {"exclusive": exclusive, "reverse": reverse, "total": total}
    indices, *last = _scan.run(primals, op=kind.index_of, **flags)
    positions = jnp.arange(dx.shape[0], dtype=indices.dtype)
    by = (-1 if reverse else 1) if exclusive else 0  # an index first appears this far from its item
    firsts = jnp.where(indices == positions - by, shifted(dx, by), 0)
    # A position without an index is a run of its own. In reverse, a run ends at `indices + by`, and the next one begins
    # behind it.
    heads = jnp.where(indices < 0, positions, indices + by) + int(reverse)
    tangents = _scan(x=firsts, heads=heads, op=Kind.ADD, exclusive=False, reverse=reverse, total=False)
    return [*tangents, *(take_or_fill(dx, i, unique=True) for i in last)]


def _product_tangents(primals: Operands, dx: jax.Array, *, reverse: int, **flags: int) -> Sequence[jax.Array]:
    """Returns the tangents of products, right even for items of zero.

    y[i] = x[i] y[i - 1] has dy[i] = x[i] dy[i - 1] + y[i - 1] dx[i].
    """
    wide = accumulator_dtype(dx.dtype)
    x = primals.x.astype(wide)
    whole = primals._replace(x=x)
    before = _scan.run(whole, op=Kind.MUL, exclusive=True, reverse=reverse, total=False)[0]
    return _along(primals, x, weighted(before, dx.astype(wide)), None, dx.dtype, reverse=reverse, **flags)


def _logsumexp_tangents(primals: Operands, dx: jax.Array, *, reverse: int, **flags: int) -> Sequence[jax.Array]:
    """Returns the tangents of logsumexp: means of items' tangents, weighted by exponentials.

    Exponentials are relative to the largest item so far; when it grows, running sums are scaled down.
    """
    wide = accumulator_dtype(dx.dtype)
    x, heads, count = primals.x.astype(wide), primals.heads, primals.count
    inclusive = {"exclusive": False, "reverse": reverse, "total": False}
    largest = jax.lax.stop_gradient(_scan(x=x, heads=heads, count=count, op=Kind.MAX, **inclusive)[0])
    before = shifted(largest, -1 if reverse else 1)
    is_same = (before == largest) | jnp.isnan(largest)
    # The factor at the start of a segment is not used, but must be finite.
    factors = jnp.where(is_same, 1, jnp.nan_to_num(jnp.exp(jnp.minimum(before - largest, 0))))
    nothing = x == -jnp.inf
    powers = jnp.where(nothing, 0, jnp.exp(jnp.where(nothing, 0, x) - jnp.where(nothing, 0, largest)))
    is_number = jnp.isfinite(largest)
    sums = recurrence(factors, jnp.where(jnp.isfinite(powers), powers, 0), heads, count, reverse=reverse)
    shares = 1 / jnp.where(is_number & (sums > 0), sums, 1)
    shares = jnp.where(jnp.isnan(largest), jnp.nan, shares)
    return _along(primals, factors, weighted(powers, dx.astype(wide)), shares, dx.dtype, reverse=reverse, **flags)


def _along(
    primals: Operands,
    factors: jax.Array,
    terms: jax.Array,
    shares: jax.Array | None,
    dtype: DTypeLike,
    *,
    exclusive: int,
    reverse: int,
    total: int,
) -> Sequence[jax.Array]:
    """Returns a linear recurrence of the terms, times `shares` if given, and its total."""
    heads, count = primals.heads, primals.count
    tangents = recurrence(factors, terms, heads, count, reverse=reverse)
    if shares is not None:
        tangents = weighted(shares, tangents)
    tangents = tangents.astype(dtype)
    results = [neighbours(tangents, heads, count, reverse=reverse) if exclusive else tangents]
    if total:
        n = tangents.shape[0]
        live = live_items(n, count)
        last = jnp.where(live > 0, 0, -1) if reverse else live - 1
        results.append(take_or_fill(tangents, last, unique=True))
    return results


def _transpose(
    cotangents: Sequence[Any], operands: Operands, *, op: int, exclusive: int, reverse: int, total: int
) -> jax.Array:
    """Returns the cotangent of x, by a scan in the other direction."""
    del total
    x = operands.x
    result = jnp.zeros(x.shape, x.dtype)
    if cotangents[0] is not None:
        backwards = operands._replace(x=cotangents[0], initial=ABSENT)
        (result,) = _scan.run(backwards, op=op, exclusive=exclusive, reverse=not reverse, total=False)
    if len(cotangents) > 1 and cotangents[1] is not None:
        _expect_indices(x, operands.heads)
        result = result + jnp.where(live_mask(x.shape[0], operands.count), cotangents[1], 0)
    return result


def _transpose_initial(cotangents: Sequence[Any], operands: Operands, **attributes: int) -> jax.Array:
    del attributes
    parts = [x for x in cotangents if x is not None]
    if cotangents[0] is not None and operands.count.size:
        parts[0] = jnp.where(live_mask(operands.x.shape[0], operands.count), parts[0], 0)
    return functools.reduce(operator.add, [jnp.sum(x) for x in parts]).reshape(1)


def _rows_fallback(x: jax.Array, heads: jax.Array, count: jax.Array, **attributes: int) -> Sequence[jax.Array]:
    columns = keeping_bits(lambda x: x.T, x, repeats=True)
    result, *totals = _scan(x=columns, heads=heads, count=count, **attributes)
    return [keeping_bits(lambda x: x.T, result, repeats=True), *totals]


def _of_column(x: Any, heads: Any, count: Any, initial: Any = ABSENT) -> Any:
    operands: Any = _scan.Operands
    return operands(x, heads, count, initial)


def _rows_jvp(primals: Operands, tangents: Any, **attributes: int) -> tuple[Any, Any]:
    def of_column(x: jax.Array, dx: jax.Array | None) -> tuple[Any, Any]:
        column = _of_column(x, primals.heads, primals.count)
        return _jvp(column, _of_column(dx, None, None, None), **attributes)

    axes = [1, 0][: 1 + attributes["total"]]
    columns: Callable[..., tuple[Any, Any]] = jax.vmap(of_column, in_axes=1, out_axes=(axes, axes))
    return columns(primals.x, tangents.x)


def _rows_transpose(cotangents: Sequence[Any], operands: Operands, **attributes: int) -> jax.Array:
    column: Any = jax.ShapeDtypeStruct(operands.x.shape[:1], operands.x.dtype)

    def of_column(*cotangents: jax.Array | None) -> jax.Array:
        return _transpose(cotangents, _of_column(column, operands.heads, operands.count), **attributes)

    axes = tuple([1, 0][: len(cotangents)])
    return jax.vmap(of_column, in_axes=axes, out_axes=1)(*cotangents)


class _Scan(Operation):
    """A scan of a vector."""

    def prefers_xla(self, operands: Sequence[Any], attributes: Mapping[str, int], platform: str, devices: int) -> bool:
        del operands, platform, devices
        return attributes["op"] == Kind.LOGSUMEXP

    def _batch(self, operands: Sequence[Any], axes: Sequence[Any], **attributes: Any) -> tuple[Any, Any]:
        """Makes a batch of adjacent columns a scan of rows where it can."""
        x, heads, count, initial = operands
        if (
            tuple(axes) == (1, None, None, None)
            and not initial.size
            and x.ndim == 2
            and partition_spec(x)[1] is None
            and x.shape[1] > 1
        ):
            return _scan_rows(x=x, heads=heads, count=count, **attributes), [1, 0][: 1 + attributes["total"]]
        return super()._batch(operands, axes, **attributes)


class _ScanRows(_Scan):
    """A scan of each column of rows."""

    def prefers_xla(self, operands: Sequence[Any], attributes: Mapping[str, int], platform: str, devices: int) -> bool:
        """Whether problems are small and in a batch."""
        *batch, n, width = operands[0].shape
        is_small = bool(batch) and n * width < LEAST_ROW_ITEMS
        return is_small or super().prefers_xla(operands, attributes, platform, devices)

    _batch = Operation._batch


_scan = _Scan(
    "scan",
    operands={"x": 1, "heads": 1, "count": 1, "initial": 1},
    results=("result", "totals"),
    attributes={"op": Kind, "exclusive": bool, "reverse": bool, "total": bool},
    shapes=_shapes,
    fallback=_fallback,
    streamed=("x",),
)
_scan.def_jvp(_jvp)
_scan.def_transpose("x", _transpose)
_scan.def_transpose("initial", _transpose_initial)

_scan_rows = _ScanRows(
    "scan_rows",
    operands={"x": 2, "heads": 1, "count": 1},
    results=("result", "totals"),
    attributes={"op": Kind, "exclusive": bool, "reverse": bool, "total": bool},
    shapes=_shapes,
    fallback=_rows_fallback,
    streamed=("x",),
    only="cuda",
)
_scan_rows.def_jvp(_rows_jvp)
_scan_rows.def_transpose("x", _rows_transpose)
