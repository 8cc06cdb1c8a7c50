"""Reductions of an array, of segments, or of runs of equal keys."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import (
    ArrayLike,
    Attribute,
    Aval,
    AxisName,
    Count,
    DTypeLike,
    ItemFunction,
    Keys,
    Operands,
    OperatorName,
    OperatorTree,
    PairFunction,
    Pytree,
    SegmentsLike,
    Tangents,
)
from jax_mgpu._src.arguments.check import (
    count_operand,
    describe,
    index_dtype,
    static_size,
    value_error,
)
from jax_mgpu._src.arguments.counts import (
    live_items,
    live_mask,
    segment_bounds,
    segment_lengths,
    wide_enough,
)
from jax_mgpu._src.arguments.preconditions import by_construction, room
from jax_mgpu._src.arguments.segments import segment_operands, split_segments
from jax_mgpu._src.arguments.values import flatten_values, plain_leaves, take_or_fill
from jax_mgpu._src.core.compat import has_64_bits, is_sharded, partition_spec, whole_axes
from jax_mgpu._src.core.operation import ABSENT, Operation, jit_eager
from jax_mgpu._src.functions.combination import Combination
from jax_mgpu._src.functions.custom_operator import reduce_by_function, run_mapped, segmented_reduce_by_function
from jax_mgpu._src.functions.named_operators import Grouping, Leaf
from jax_mgpu._src.functions.operators import (
    Kind,
    Operator,
    accumulator_dtype,
    builtin,
    identities,
    reduce_results,
    result_dtype,
    segmented_results,
    select,
)
from jax_mgpu._src.functions.recurrence import weighted
from jax_mgpu._src.functions.transform import Load, one_leaf
from jax_mgpu._src.keys.bits import keeping_bits, ordered_together, shifted, where
from jax_mgpu._src.keys.columns import Columns, key_ends, run_keys, whole_keys
from jax_mgpu._src.mesh import over_axis
from jax_mgpu._src.ops.gathered_rows import reduce_gathered
from jax_mgpu._src.ops.order_statistics import median, median_of_segments
from jax_mgpu._src.ops.scan import (
    before_map,
    inside_segments,
    item_segments,
    leaf_inside_segments,
    own_pieces,
    pieces,
    scan_columns,
)
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sort_primitives import Method

__all__ = ["Grouped", "reduce", "reduce_by_key", "segmented_reduce"]


class Grouped(NamedTuple):
    """The result of `reduce_by_key` and `group_by`.

    Attributes:
      keys: `[size]`, the key of each run or group, or a tuple of columns; 0 past `count`.
      values: the combined values of each run or group, a pytree of arrays `[size, ...]`; 0 past `count`, -1 for
        indices.
      count: the number of runs or groups, a scalar. It can exceed `size`: then the first `size` ones are kept.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> found = mgpu.reduce_by_key(jnp.array([7, 7, 2]), jnp.array([1, 2, 3]), size=2)
      >>> found.keys, found.values, found.count
      (Array([7, 2], dtype=int32), Array([3, 3], dtype=int32), Array(2, dtype=int32))
    """

    keys: Any
    values: Any
    count: jax.Array  # type: ignore[assignment]


@overload
def reduce(
    x: ArrayLike,
    op: OperatorName | PairFunction = "add",
    *,
    count: ArrayLike | None = None,
    identity: Pytree = None,
    dtype: DTypeLike | None = None,
    ddof: float = 0,
    commutative: bool = False,
    axis_name: AxisName | None = None,
) -> jax.Array: ...
@overload
def reduce(
    x: Pytree,
    op: OperatorTree | PairFunction = "add",
    *,
    count: ArrayLike | None = None,
    identity: Pytree = None,
    map: ItemFunction | None = None,
    dtype: DTypeLike | None = None,
    ddof: float = 0,
    commutative: bool = False,
    axis_name: AxisName | None = None,
) -> Any: ...
@jit_eager("op", "commutative", "map", "dtype", "ddof")
def reduce(
    x: Pytree,
    op: OperatorTree | PairFunction = "add",
    *,
    count: ArrayLike | None = None,
    identity: Pytree = None,
    map: ItemFunction | None = None,
    dtype: DTypeLike | None = None,
    ddof: float = 0,
    commutative: bool = False,
    axis_name: AxisName | None = None,
) -> Any:
    """Combines all items.

    Args:
      x: an array `[n, ...]` or a pytree of such arrays, of integers of 8 to 64 bits, floats of 16 to 64 bits, or bools;
        each trailing position is combined on its own. If `op` is a function, the arrays may have any type, and are
        combined together.
      op: a name, a pytree of names that matches x or a prefix of its structure, or any associative function of two
        items; it need not commute. `"add"` or `"sum"`, `"mul"` or `"prod"`: integers wrap; integers of 8 and 16 bits
        are combined in the type of `jnp.sum` (int32 or uint32, or 64 bits with `jax_enable_x64`); float16 and bfloat16
        accumulate in float32; bools count as the integers 0 and 1. `"min"`, `"max"`: a NaN makes the result NaN.
        `"argmin"`, `"argmax"`: the index of the first extremum, -1 over nothing. `"mean"`: integers and bools become
        floats; NaN over nothing. `"any"`, `"all"`: whether any item is other than 0, or all are. `"and"`, `"or"`,
        `"xor"`: combine bools, or the bits of integers. `"logsumexp"`: takes floats; -inf over nothing. `"var"`,
        `"std"`, `"median"`: integers and bools become floats; NaN over nothing, and if an item is NaN. `"nunique"`: the
        number of different items; all NaNs count as one. `"count"`: the number of items, one number for all trailing
        positions. `"first"`, `"last"`: the first or last item, 0 over nothing. These two and `"count"` take any dtype.
        `"nansum"`, `"nanmean"`, `"nanmin"`, `"nanmax"`: skip NaNs; if all items are NaN, the sum is 0 and the other
        results are NaN.
      count: the number of live items, an integer scalar (default `n`). Items past it are ignored.
      identity: the identity of a function `op`, a pytree like one item: needed with `count`, and for `n = 0`.
      map: a function of an item, or of an item and its position. `op` combines its results, which may have another
        structure and dtype; x is then any pytree of arrays with leading axis `n`. CUDA kernels may evaluate it as
        they load an item. Over a mesh axis, a position is that in the global array.
      dtype: convert the items of all arrays to this dtype, after `map`, before a named `op` combines them. Results have
        it too, including sums and products of integers, except for indices, the numbers of `"nunique"` and `"count"`,
        and the bools of `"any"` and `"all"`. Means, variances and medians need a float dtype. A function `op` accepts
        no `dtype`.
      ddof: the static number that `"var"` and `"std"` subtract from the number of items before they divide by it: 0, or
        1 for an estimate from a sample.
      commutative: a promise that a function `op` commutes, which may be faster.
      axis_name: reduce the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`.

    Returns:
      For each array of x, one item `[...]`: of the array's type, an index (int32; int64 from 2^31 items on), or of the
      type that `op` states above. Over nothing, what `op` states above, or else the operator's identity: a sum is 0, a
      product 1, a minimum the largest value (+inf). Over a mesh axis the item is the same on all devices, and an index
      is a position in the global array.

    Raises:
      TypeError: an argument's dtype or structure is not one of the above.
      ValueError: an argument's shape is not one of the above, `op` is not known, or `identity` is missing; indices into
        2^31 items or more without `jax_enable_x64`.

    Time is O(n), except that `"median"` takes the time of `quantile`, and `"nunique"` that of a sort. The tree of
    operations is fixed, so float results are the same in every run. A function is compiled into the CUDA kernels; on
    other platforms, and if it cannot be compiled, a loop in plain JAX runs it.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.reduce(jnp.array([3.0, 1.0, 4.0]), "argmax")
      Array(2, dtype=int32)
      >>> mgpu.reduce(jnp.array([[3, 1], [4, 1], [5, 9]]))
      Array([12, 11], dtype=int32)
    """
    name = "reduce"
    asked = Combination(
        name=name, op=op, identity=identity, map=map, dtype=dtype, ddof=ddof, commutative=commutative,
        axis_name=axis_name,
    )  # fmt: skip
    x, load = asked.mapped(x, count)
    needs, has_count = "a reduction that may be over nothing", count is not None
    of, x, n, restore = asked.parts(x, lambda n: needs if has_count or n == 0 else None)
    count = count_operand(name, "count", count, n)
    if isinstance(of, Operator):
        if axis_name is not None:
            return restore(over_axis(mesh.reductions.reduce, name, axis_name, of, x, n, count))
        return restore(reduce_by_function(name, of, x, n, count, load))
    if axis_name is not None:
        return restore([over_axis(mesh.groupings.all_reduced, name, axis_name, leaf, count) for leaf in of])
    return restore(_reduced(name, of, n, ABSENT, count, load))


def _reduced(
    name: str, leaves: list[Leaf], n: int, heads: jax.Array, count: jax.Array, load: Load | None
) -> list[jax.Array]:
    """Reduces leaves, or segments of them."""
    load, leaves = one_leaf(load, leaves)
    primitive = "reduce_by_function" if heads is ABSENT else "segmented_reduce_by_function"

    def reduced(leaf: Leaf) -> jax.Array:
        mapped = run_mapped(primitive, name, leaf.kind, leaf.x, heads, count, load)
        return leaf.reduced(SegmentedItems(name, n, heads, count)) if mapped is None else mapped[0]

    return [reduced(leaf) for leaf in leaves]


# From LEAST_FOLDED items on, rows may be joined to wider rows of at least FOLDED_COLUMNS columns.
LEAST_FOLDED, FOLDED_COLUMNS = 1 << 16, 64


def _fold(kind: Kind, x: jax.Array) -> int:
    """Returns how many rows become one wider row.

    Extrema are not folded: their derivative belongs to the first of equal items.
    """
    n, width = x.shape
    of_any_order = kind in (Kind.ADD, Kind.MUL, Kind.AND, Kind.OR, Kind.XOR)
    if x.size < LEAST_FOLDED or not of_any_order or is_sharded(x):
        return 1
    fold = 1
    while fold * width < FOLDED_COLUMNS or fold * width * x.dtype.itemsize % 16:
        fold *= 2
    return 1 if n % fold else fold


class SegmentedItems(Grouping):
    """The items of segments; without heads, all items as one segment."""

    def __init__(self, name: str, n: int, heads: jax.Array, count: jax.Array):
        self.name, self.n, self.count = name, n, count
        self.whole = heads is ABSENT
        self.heads = jnp.zeros((1,), jnp.int32) if self.whole else heads
        self.leading = () if self.whole else heads.shape

    @property
    def index_dtype(self) -> np.dtype:  # type: ignore[override]
        return index_dtype(self.name, "x", self.n)

    def combine(self, kind: Kind, x: jax.Array, wide: bool = False) -> jax.Array:
        given: dict[str, Any] = {"x": x, "count": self.count, "op": kind, "wide": wide}
        if x.ndim == 1 and self.whole:
            return _reduce(**given)[0]
        if x.ndim == 1:
            return _segmented_reduce(heads=self.heads, **given)[0]
        if self.whole and not self.count.size and (fold := _fold(kind, x)) > 1:
            return self._shaped(self._folded(kind, x, wide, fold))
        return self._shaped(reduce_rows(heads=self.heads, **given)[0])

    def _folded(self, kind: Kind, x: jax.Array, wide: bool, fold: int) -> jax.Array:
        """Combines all rows; `fold` consecutive ones are read as one wider row."""
        whole: dict[str, Any] = {"heads": self.heads, "count": ABSENT, "op": kind}
        exact = wide or accumulator_dtype(x.dtype) != x.dtype
        folded = reduce_rows(x=x.reshape(-1, fold * x.shape[1]), wide=exact, **whole)[0]
        rows = reduce_rows(x=folded.reshape(fold, x.shape[1]), wide=False, **whole)[0]
        return rows.astype(result_dtype(self.name, kind, x, wide))

    def counts(self, dtype: DTypeLike) -> jax.Array:
        return self._shaped(segment_lengths(self.heads, self.n, self.count, dtype))

    @property
    def bounds(self) -> tuple[jax.Array, jax.Array]:
        """Where segments begin and end among the live items."""
        return segment_bounds(self.heads, self.n, self.count)

    def places(self, last: bool) -> jax.Array:
        begin, end = self.bounds
        return self._shaped(where(begin < end, end - 1 if last else begin, -1))

    @functools.cached_property
    def _segments(self) -> jax.Array:
        return item_segments(self.name, self.n, self.heads, self.count)

    def spread(self, results: jax.Array) -> jax.Array:
        return take_or_fill(results[None] if self.whole else results, self._segments)

    def median(self, x: jax.Array) -> jax.Array:
        x = whole_axes(x)
        if self.whole:
            return median(x, self.count)
        begin, end = (x.astype(self.index_dtype) for x in self.bounds)
        return median_of_segments(x, begin, end, self.count)

    def distinct(self, x: jax.Array) -> jax.Array:
        heads = ABSENT if self.whole else self.heads
        method = Method.FASTEST if self.whole else Method.MERGING
        with by_construction():
            ordered = Sort(self.name, x, count=self.count, heads=heads, method=method).run()
        differs, places = key_ends(ordered).astype(self.index_dtype), self.places(last=True)
        # The last item of a segment counts, whether or not it differs from the item behind it.
        lasts = take_or_fill(differs, places.reshape(-1)).reshape(places.shape)
        number = self.combine(Kind.ADD, differs)
        return number + (places >= 0).astype(number.dtype) - lasts

    def _shaped(self, results: jax.Array) -> jax.Array:
        return results.squeeze(0) if self.whole else results


@overload
def segmented_reduce(
    x: ArrayLike,
    heads: SegmentsLike,
    op: OperatorName | PairFunction = "add",
    *,
    ends: ArrayLike | None = None,
    indices: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    count: ArrayLike | None = None,
    identity: Pytree = None,
    dtype: DTypeLike | None = None,
    ddof: float = 0,
    commutative: bool = False,
) -> jax.Array: ...
@overload
def segmented_reduce(
    x: Pytree,
    heads: SegmentsLike,
    op: OperatorTree | PairFunction = "add",
    *,
    ends: ArrayLike | None = None,
    indices: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    count: ArrayLike | None = None,
    identity: Pytree = None,
    map: ItemFunction | None = None,
    dtype: DTypeLike | None = None,
    ddof: float = 0,
    commutative: bool = False,
    axis_name: AxisName | None = None,
) -> Any: ...
@jit_eager("op", "commutative", "map", "dtype", "ddof")
def segmented_reduce(
    x: Pytree,
    heads: SegmentsLike,
    op: OperatorTree | PairFunction = "add",
    *,
    ends: ArrayLike | None = None,
    indices: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    count: ArrayLike | None = None,
    identity: Pytree = None,
    map: ItemFunction | None = None,
    dtype: DTypeLike | None = None,
    ddof: float = 0,
    commutative: bool = False,
    axis_name: AxisName | None = None,
) -> Any:
    """Combines the items of each segment.

    Args:
      x: see `reduce`.
      heads: `[m]`, non-decreasing integers: result `i` belongs to the segment that starts at `heads[i]` and ends at the
        next head, the last one at `n` (or `count`). Items before `heads[0]` belong to no result; a repeated head is an
        empty segment; so is a head past the last item. Or `Segments`, which replace `ends` and `count`.
      op: see `reduce`.
      ends: `[m]` integers, the ends: segment `i` is `heads[i]` to `ends[i]`, and items outside of all segments
        belong to no result. Segments do not overlap; one that ends where it starts, or before, is empty. Without `ends`
        a segment ends where the next begins.
      indices: `[entries]`, integers that may repeat: entry `j` is row `indices[j]` of x, and segments, `ends` and
        `count` refer to entries. An index out of range, or a negative one, is dropped: it adds nothing, is not counted
        and has no gradient.
      weights: real numbers `[entries]`, or `[entries, *x.shape[1:k]]` for a k from 2 to `x.ndim`, by which entries are
        multiplied, after `map`, in float32 or wider. Only for `"add"`, and for `"mean"`, which divides the sum of the
        products by the sum of the weights. Items then have the type of x and weights together, `jnp.result_type`.
        Without indices, an entry is an item of x.
      count: see `reduce`.
      identity: the identity of a function `op`, a pytree like one item: the result of an empty segment.
      map: see `reduce`.
      dtype: see `reduce`.
      ddof: see `reduce`.
      commutative: see `reduce`.
      axis_name: see `reduce`; cannot be combined with `indices` or `weights`. A device's heads are the starts of the
        segments that start among its own items, counted from its first item; a segment continues on the devices that
        follow, up to the next head.

    Returns:
      A result `[m, ...]` for each array of x. Indices are positions in x or, with `indices`, among the entries. Over a
      mesh axis, they are positions in the global array, and a segment's result is on the device that has its head.

    Raises:
      TypeError: as `reduce`.
      ValueError: as `reduce`.

    Except for `"median"` and `"nunique"`, time is O(n + m) for any lengths of the segments: items and segment ends are
    consumed in equal tiles (merge path, as in Merrill and Garland, "Merge-based Parallel Sparse Matrix-Vector
    Multiplication", 2016). With `indices`, rows are read in place, except that rows are gathered first for functions,
    `map`, `"argmin"`, `"argmax"`, `"var"`, `"std"`, `"median"`, `"nunique"`, `"count"`, `"first"`, `"last"`, and names
    that begin with `nan`. Derivatives add up rows in a fixed order, in float32 or wider.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.segmented_reduce(jnp.array([3, 1, 4, 1, 5]), jnp.array([0, 2, 2]))
      Array([ 4,  0, 10], dtype=int32)
      >>> items = {"price": jnp.array([[3.0, 1.0], [4.0, 1.0], [5.0, 9.0]]), "sold": jnp.array([False, True, False])}
      >>> mgpu.segmented_reduce(items, jnp.array([0, 2]), {"price": "mean", "sold": "any"})
      {'price': Array([[3.5, 1. ],
             [5. , 9. ]], dtype=float32), 'sold': Array([ True, False], dtype=bool)}
      >>> table = jnp.array([[1.0, 2.0], [3.0, 4.0]])  # of embeddings, for bags of words and their weights
      >>> words, weights = jnp.array([1, 0, 1, -1]), jnp.array([1.0, 1.0, 0.5, 1.0])
      >>> mgpu.segmented_reduce(table, jnp.array([0, 2]), "mean", indices=words, weights=weights)
      Array([[2., 3.],
             [3., 4.]], dtype=float32)
    """
    name = "segmented_reduce"
    asked = Combination(
        name=name, op=op, identity=identity, map=map, dtype=dtype, ddof=ddof, commutative=commutative,
        axis_name=axis_name,
    )  # fmt: skip
    if indices is not None or weights is not None:
        return reduce_gathered(segmented_reduce, asked, x, heads, indices, weights, ends, count)
    has_ends = split_segments(name, heads, ends)[1] is not None
    # Over an axis, items before the first head may belong to another device's segment.
    inside = before_map(name, heads, ends, count, axis_name) if axis_name is None or has_ends else None
    x, load = asked.mapped(x, count, inside=inside)
    of, x, n, restore = asked.parts(x, lambda n: "empty segments")
    segments = segment_operands(name, heads, ends, count, n, axis_name=axis_name)
    heads, gaps, count = pieces(segments, name, axis_name), segments.ends is not None, segments.count
    if gaps if axis_name is not None else load is None:
        if isinstance(of, Operator):
            x = inside_segments(x, heads, gaps=gaps)
        else:
            of = [leaf_inside_segments(leaf, heads, gaps=gaps) for leaf in of]
    if axis_name is not None:
        own = own_pieces(segments, heads)
        if isinstance(of, Operator):
            over_segments = mesh.reductions.segmented_reduce
            results = restore(over_axis(over_segments, name, axis_name, of, x, n, own, count))
        else:
            of_segments = mesh.groupings.segments_reduced
            results = restore([over_axis(of_segments, name, axis_name, leaf, own, count) for leaf in of])
    elif isinstance(of, Operator):
        results = restore(segmented_reduce_by_function(name, of, x, n, heads, count, load))
    else:
        results = restore(_reduced(name, of, n, heads, count, load))
    return jax.tree.map(lambda x: x[axis_name is not None :: 2], results) if gaps else results


@jit_eager("op", "size", "commutative", "map", "dtype", "ddof")
def reduce_by_key(
    keys: Keys,
    values: Pytree,
    op: OperatorTree | PairFunction = "add",
    *,
    size: int,
    count: ArrayLike | None = None,
    map: ItemFunction | None = None,
    dtype: DTypeLike | None = None,
    ddof: float = 0,
    commutative: bool = False,
    axis_name: AxisName | None = None,
) -> Grouped:
    """Combines the values of each run of equal neighbouring keys.

    Args:
      keys: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits; not necessarily sorted. All NaNs are equal, and
        so are the zeros. Or columns: a tuple of 1 to 8 such arrays.
      values: as x of `reduce`.
      op: see `reduce`.
      size: the static number of results.
      count: the number of live items, an integer scalar (default `n`).
      map: see `reduce`; a function of an item of `values`, or of an item and its position.
      dtype: see `reduce`.
      ddof: see `reduce`.
      commutative: see `reduce`.
      axis_name: see `reduce`; columns may have up to 64 bits in all. A run belongs to the device on which it starts;
        `size` and the number of runs are the device's own.

    Returns:
      `Grouped`: the first key (or the tuple of columns) of each run, its combined values, and the number of runs, which
      can exceed `size`. Slots past the number of runs hold 0 (-1 for indices).

    Raises:
      TypeError: as `reduce`; also a size that is not static.
      ValueError: as `reduce`; also a negative size, and 2^31 items or more without `jax_enable_x64`.

    Time is O(n + size): one pass over the keys finds the heads of the runs, and a segmented reduction combines the
    values.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> keys, sums, count = mgpu.reduce_by_key(jnp.array([7, 7, 2, 7]), jnp.array([1, 2, 3, 4]), size=4)
      >>> keys, sums, count
      (Array([7, 2, 7, 0], dtype=int32), Array([3, 3, 4, 0], dtype=int32), Array(3, dtype=int32))
    """
    asked = Combination(
        name="reduce_by_key", op=op, map=map, dtype=dtype, ddof=ddof, commutative=commutative, axis_name=axis_name
    )
    return run_reduce_by_key(asked, whole_keys("reduce_by_key", "keys", keys, axis_name), values, size, count)


def run_reduce_by_key(
    asked: Combination, keys: jax.Array | Columns, values: Pytree, size: int, count: Count
) -> Grouped:
    """Computes `reduce_by_key` with checked keys."""
    name, axis_name = asked.name, asked.axis_name
    given = run_keys(keys)
    n = given.shape[0]
    size = static_size(name, "size", size)
    of, values, restore, load = _items_of_runs(asked, values, n, count)
    index_dtype(name, "keys", n)
    live = count_operand(name, "count", count, n)

    on_mesh = axis_name is not None and n > 0
    if on_mesh:
        heads, firsts, runs = over_axis(mesh.segments.run_heads, name, axis_name, given, live, size=size)
    else:
        heads, firsts, covered, runs = _run_heads(keys=given, count=live, size=size)
        covered = covered.reshape(1)
    used = live_mask(size, runs.reshape(1))
    firsts = first_keys(keys, firsts, heads[:size])

    def keep(x: jax.Array, filler: int) -> jax.Array:
        plain, restore = plain_leaves([x])
        return restore([keeping_bits(lambda x, used: select(used, x, jnp.full_like(x, filler)), plain[0], used)])[0]

    def reduce_leaf(leaf: Leaf) -> jax.Array:
        if on_mesh:
            of_segments = mesh.groupings.segments_reduced
            return keep(over_axis(of_segments, name, axis_name, leaf, heads, live)[:size], leaf.fill)
        reduced = leaf.reduced(SegmentedItems(name, n, heads, covered))
        # Slots past the runs hold the identity.
        identity_fills = leaf.made is None and ((leaf.kind == Kind.ADD and not leaf.mean) or leaf.kind.gives_index)
        return reduced if identity_fills else keep(reduced, 0)

    if not isinstance(of, Operator):
        reduced = restore([reduce_leaf(leaf) for leaf in of])
    else:
        if on_mesh:
            over_segments = mesh.reductions.segmented_reduce
            reduced = over_axis(over_segments, name, axis_name, of, values, n, heads, live)
            reduced = jax.tree.map(lambda x: x[:size], reduced)
        elif n:
            reduced = segmented_reduce_by_function(name, of, values, n, heads, covered, load)
        else:
            reduced = jax.tree.map(_none_of(size), values)
        reduced = restore(jax.tree.map(lambda x: keep(x, 0), reduced))
    return Grouped(firsts, reduced, room(name, runs, size))


def first_keys(keys: jax.Array | Columns, firsts: jax.Array, starts: jax.Array) -> Any:
    """Returns the first key of each run, 0 past the runs."""
    return keys.structure([_firsts(x, starts) for x in keys.arrays]) if isinstance(keys, Columns) else firsts


def _items_of_runs(
    asked: Combination, values: Pytree, n: int, count: Count
) -> tuple[Operator | list[Leaf], Any, Callable[[Any], Any], Load | None]:
    """Returns an operator or leaves, the values, the function that restores the structure, and how to load items."""
    load = None
    if callable(asked.op) or asked.map is not None:
        leaves, unflatten = flatten_values(asked.name, "values", values, n, "keys")
        values, load = asked.mapped(unflatten(leaves), count, "values")
    if not callable(asked.op) and not jax.tree.leaves(values):
        return [], values, lambda results: values, load
    of, values, length, restore = asked.parts(values, argument="values")
    if length != n and not isinstance(of, Operator):
        got = ", ".join(describe(leaf.x) for leaf in of)
        raise value_error(asked.name, "values", f"arrays with the leading axis of keys, {n}", got)
    return of, values, restore, load


def _none_of(size: int) -> Callable[[jax.Array], jax.Array]:
    return lambda x: jax.lax.full_like(x, 0, shape=(size, *x.shape[1:]))  # under shard_map, the result varies as x does


def _reduce_fallback(x: jax.Array, count: jax.Array, *, op: int, wide: int) -> Sequence[jax.Array]:
    dtype = result_dtype("reduce", op, x, wide)
    return [reduce_results(builtin(op, x.dtype, dtype), x, x.shape[0], count).astype(dtype)]


def _segmented_shapes(x: Aval, heads: Aval, *, op: int, wide: int) -> Sequence[Any]:
    return [jax.ShapeDtypeStruct((*heads.shape, *x.shape[1:]), result_dtype("segmented_reduce", op, x, wide))]


def _segmented_fallback(x: jax.Array, heads: jax.Array, count: jax.Array, *, op: int, wide: int) -> Sequence[jax.Array]:
    dtype = result_dtype("segmented_reduce", op, x, wide)
    results = segmented_results(builtin(op, x.dtype, dtype), x, x.shape[0], heads, count)
    return [results.astype(dtype)]


def _rows_fallback(
    x: jax.Array, heads: jax.Array, indices: jax.Array, count: jax.Array, *, op: int, wide: int
) -> Sequence[jax.Array]:
    if not indices.size:
        return _segmented_fallback(x, heads, count, op=op, wide=wide)
    dtype = result_dtype("segmented_reduce", op, x, wide)
    n, items = x.shape[0], indices.shape[0]
    inside = (indices >= 0) & (indices < n)
    rows = where(inside, wide_enough(indices, n), 0)
    operator = builtin(op, x.dtype, dtype)

    def extract(x: jax.Array, positions: jax.Array) -> Any:
        del positions
        if n == 0:
            x = jnp.zeros((1, *x.shape[1:]), x.dtype)
        states = operator.extract(x[rows], rows)
        return select(inside, states, identities(operator.identity, states))

    gathered = dataclasses.replace(operator, extract=extract)
    return [segmented_results(gathered, x, items, heads, count).astype(dtype)]


def as_floats(add: Callable[[jax.Array], jax.Array], rows: jax.Array) -> jax.Array:
    """Returns `add(rows)`, a linear function of floats. Complex numbers are added by parts, float8 as float32."""
    if jnp.iscomplexobj(rows):
        return jax.lax.complex(as_floats(add, rows.real), as_floats(add, rows.imag))
    if jnp.finfo(rows.dtype).bits < 16:
        return add(rows.astype(jnp.float32)).astype(rows.dtype)
    return add(rows)


def _derivatives(operation: Operation, name: str) -> None:
    def heads_of(operands: Operands) -> Any:
        return getattr(operands, "heads", ABSENT)

    def indices_of(operands: Operands) -> Any:
        return getattr(operands, "indices", ABSENT)

    def jvp(primals: Operands, tangents: Tangents, **attributes: int) -> tuple[Any, Any]:
        def of_items(values: jax.Array) -> jax.Array:
            return _of_items(name, values, primals.x.shape, heads_of(primals), indices_of(primals), primals.count)

        def of_product(x: jax.Array, dx: jax.Array) -> jax.Array:
            """Multiplies tangents by the product of the other items, without a division by an item."""
            factors = x.astype(accumulator_dtype(x.dtype))
            before, after = _products(factors, heads_of(primals), indices_of(primals), primals.count)
            parts = weighted(before * after, dx.astype(factors.dtype))
            return operation.run(primals._replace(x=parts), op=Kind.ADD, wide=False)[0].astype(dx.dtype)

        return reduction_jvp(operation, name, primals, tangents, of_items, of_product, **attributes)

    def transpose(cotangents: Sequence[Any], operands: Operands, *, op: int, wide: int) -> jax.Array:
        """Returns, for each item, the cotangent of its segment."""
        del op, wide
        cotangent = cotangents[0].astype(operands.x.dtype)
        return _of_items(name, cotangent, operands.x.shape, heads_of(operands), indices_of(operands), operands.count)

    operation.def_jvp(jvp)
    operation.def_transpose("x", transpose)


def reduction_jvp(
    operation: Operation,
    name: str,
    primals: Operands,
    tangents: Tangents,
    of_items: Callable[[jax.Array], jax.Array],
    of_product: Callable[[jax.Array, jax.Array], jax.Array],
    **attributes: int,
) -> tuple[Any, Any]:
    """Returns the forward derivative of a reduction.

    `of_items` returns, for each item, the value of its group, and `of_product` the tangent of a product.
    """
    results = operation.run(primals, **attributes)
    x, dx, kind = primals.x, tangents.x, Kind(attributes["op"])
    if dx is None or kind.gives_index or kind in (Kind.AND, Kind.OR, Kind.XOR):
        return results, [None]

    def reduced(x: jax.Array, op: int, wide: int = 0) -> jax.Array:
        return operation.run(primals._replace(x=x), **{**attributes, "op": op, "wide": wide})[0]

    if kind == Kind.ADD:
        return results, [reduced(dx, kind, attributes["wide"])]
    if kind == Kind.LOGSUMEXP:
        exact = reduced(x, kind).astype(accumulator_dtype(x.dtype))
        weights = _logsumexp_weights(x, exact, of_items, lambda x: reduced(x, Kind.ADD))
        return results, [reduced(weighted(weights, dx.astype(exact.dtype)), Kind.ADD).astype(dx.dtype)]
    if kind == Kind.MUL:
        return results, [of_product(x, dx)]
    index_dtype(f"derivative of {name}", "x", x.shape[0])  # raises if indices do not fit
    return results, [take_columns(dx, reduced(x, kind.index_of))]


def _logsumexp_weights(
    x: jax.Array, exact: jax.Array, of_items: Callable[[jax.Array], jax.Array], summed: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """Returns each item's share of the sum of exponentials; 0 in no segment.

    Exponentials of `x - exact` are divided by their sum, because `exact` is rounded.
    """
    shift = jax.lax.stop_gradient(where(exact == -jnp.inf, 0, exact))
    inside = of_items(jnp.ones_like(exact)) > 0
    powers = where(inside, jnp.exp(where(inside, x.astype(exact.dtype) - of_items(shift), 0)), 0)
    total = of_items(summed(where(jnp.isnan(powers), 0, powers)))
    return powers / where(total == 0, 1, total)


def _of_items(
    name: str,
    values: jax.Array,
    shape: tuple[int, ...],
    heads: jax.Array,
    indices: jax.Array,
    count: jax.Array,
) -> jax.Array:
    """Returns the value of each item's segment, for items of this shape; 0 for items in no segment."""
    n, trailing = shape[0], [1] * (len(shape) - 1)
    index_dtype(f"derivative of {name}", "x", n)
    if values.ndim < len(shape):
        return where(live_mask(n, count), values, 0)
    if not heads.size:
        return jnp.zeros(shape, values.dtype)
    segments = item_segments(name, indices.shape[0] if indices.size else n, heads, count)
    if indices.size:
        inside = (indices >= 0) & (indices < n)
        places = where(inside, wide_enough(indices, n), n)
        segments = jnp.full((n,), -1, segments.dtype).at[places].set(segments, mode="drop", unique_indices=True)
    taken = take_or_fill(values, segments)
    return where((segments >= 0).reshape(-1, *trailing), taken, 0)


def _products(x: jax.Array, heads: jax.Array, indices: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns, for each item, the product of the items before it in its segment, and of those after it."""
    items = x
    if indices.size:
        items = take_or_fill(x, indices, jnp.ones((1,), x.dtype))
    before, after = (
        scan_columns(items, Kind.MUL, heads, count, exclusive=True, reverse=reverse) for reverse in (False, True)
    )
    if not indices.size:
        return before, after
    inside = (indices >= 0) & (indices < x.shape[0])
    places = where(inside, wide_enough(indices, x.shape[0]), x.shape[0])
    back = [jnp.zeros_like(x).at[places].set(part, mode="drop", unique_indices=True) for part in (before, after)]
    return back[0], back[1]


def take_columns(x: jax.Array, indices: jax.Array, *, unique: bool = True) -> jax.Array:
    """Returns items of x by index, each column by its own indices; 0 at -1. `unique` says that none is taken twice."""
    if x.ndim == 1:
        return take_or_fill(x, indices, unique=unique)
    if x.shape[0] == 0:
        return jnp.zeros(indices.shape, x.dtype)
    width = x.shape[1]
    if x.size >= 2**31 and not has_64_bits():  # 32-bit indices cannot count these items
        columns = jax.vmap(functools.partial(take_or_fill, unique=unique), in_axes=(1, -1), out_axes=-1)
        return columns(x, indices)
    places = indices.astype(index_dtype("derivative", "x", x.size))
    places = where(places < 0, -1, places * width + jnp.arange(width, dtype=places.dtype))
    return take_or_fill(x.reshape(-1), places, unique=unique)


def _run_heads_shapes(keys: Aval, *, size: int) -> Sequence[Any]:
    index = index_dtype("reduce_by_key", "keys", keys.shape[0])
    scalar = jax.ShapeDtypeStruct((), index)
    return [jax.ShapeDtypeStruct((size,), index), jax.ShapeDtypeStruct((size,), keys.dtype), scalar, scalar]


def _run_heads_fallback(keys: jax.Array, count: jax.Array, *, size: int) -> Sequence[jax.Array]:
    (n,) = keys.shape
    dtype = index_dtype("reduce_by_key", "keys", n)
    positions = jnp.arange(n, dtype=dtype)
    (classes,) = ordered_together(keys)
    is_head = ((classes != shifted(classes, 1)) | (positions == 0)) & live_mask(n, count)
    runs = jnp.sum(is_head, dtype=dtype)
    slots = where(is_head, jnp.cumsum(is_head, dtype=dtype) - 1, size + 1)
    heads = jnp.full((size + 1,), n, dtype).at[slots].set(positions, mode="drop")
    covered = jnp.minimum(heads[size], live_items(n, count))
    return [heads[:size], _firsts(keys, heads[:size]), covered, runs]


def _run_heads_jvp(primals: Operands, tangents: Tangents, *, size: int) -> tuple[Any, Any]:
    results = _run_heads.run(primals, size=size)
    firsts = None if tangents.keys is None else _firsts(tangents.keys, results[0])
    return results, [None, firsts, None, None]


def _firsts(keys: jax.Array, heads: jax.Array) -> jax.Array:
    return take_or_fill(keys, heads, unique=True)


class _SegmentedReduce(Operation):
    """A reduction of segments of a vector."""

    def _batch(self, operands: Sequence[Any], axes: Sequence[Any], **attributes: Attribute) -> tuple[Any, Any]:
        x, heads, count = operands
        if tuple(axes) == (1, None, None) and x.ndim == 2 and partition_spec(x)[1] is None and x.shape[1] > 1:
            return reduce_rows(x=x, heads=heads, count=count, **attributes), [1]
        return super()._batch(operands, axes, **attributes)


_reduce = Operation(
    "reduce",
    operands={"x": 1, "count": 1},
    results=("result",),
    attributes={"op": Kind, "wide": bool},
    shapes=lambda x, op, wide: [jax.ShapeDtypeStruct((), result_dtype("reduce", op, x, wide))],
    fallback=_reduce_fallback,
    streamed=("x",),
)
_derivatives(_reduce, "reduce")

_segmented_reduce = _SegmentedReduce(
    "segmented_reduce",
    operands={"x": 1, "heads": 1, "count": 1},
    results=("result",),
    attributes={"op": Kind, "wide": bool},
    shapes=_segmented_shapes,
    fallback=_segmented_fallback,
    streamed=("x",),
)
_derivatives(_segmented_reduce, "segmented_reduce")

# Segments of rows of x or, with `indices`, of x[indices]; each column is combined by itself. Derivatives require
# distinct indices.
reduce_rows = Operation(
    "reduce_rows",
    operands={"x": 2, "heads": 1, "indices": 1, "count": 1},
    results=("result",),
    attributes={"op": Kind, "wide": bool},
    shapes=_segmented_shapes,
    fallback=_rows_fallback,
    streamed=("x", "indices"),
)
_derivatives(reduce_rows, "segmented_reduce")

_run_heads = Operation(
    "run_heads",
    operands={"keys": 1, "count": 1},
    results=("heads", "firsts", "covered", "runs"),
    attributes={"size": int},
    shapes=_run_heads_shapes,
    fallback=_run_heads_fallback,
    streamed=("keys",),
)
_run_heads.def_jvp(_run_heads_jvp)
