"""Groups and ranks of keys in any order, by sorts, scans and reductions; and shifts within segments."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import (
    ArrayLike,
    AxisName,
    Directions,
    DTypeLike,
    Keys,
    Operands,
    OperatorTree,
    PairFunction,
    Pytree,
    RankMethod,
    SegmentsLike,
)
from jax_mgpu._src.arguments.check import (
    as_array,
    count_operand,
    describe,
    expect_choice,
    expect_leading_axis,
    index_dtype,
    static_flag,
    static_size,
    type_error,
    value_error,
)
from jax_mgpu._src.arguments.counts import (
    count_of,
    heads_from_zero,
    heads_inside,
    live_items,
    live_mask,
    of_all,
    segment_starts,
)
from jax_mgpu._src.arguments.preconditions import room
from jax_mgpu._src.arguments.rows import RowForm
from jax_mgpu._src.arguments.segments import segment_operands
from jax_mgpu._src.arguments.values import flatten_values, plain_leaves, take_or_fill
from jax_mgpu._src.core.compat import PyTreeDef, cond, platform_dependent, smaller
from jax_mgpu._src.core.operation import ABSENT, Operation, jit_eager
from jax_mgpu._src.functions.combination import Combination
from jax_mgpu._src.functions.named_operators import (
    GIVE_FLOATS,
    NAMES,
    OF_ANY_DTYPE,
    Leaf,
    expect_ddof,
    expect_name,
    named_leaves,
)
from jax_mgpu._src.functions.operators import Kind, select
from jax_mgpu._src.keys.bits import is_random_key, keeping_bits, shifted, where
from jax_mgpu._src.keys.columns import (
    Columns,
    alike,
    columns_of,
    expect_keys,
    expect_one_code,
    expect_told_apart,
    key_starts,
    run_keys,
)
from jax_mgpu._src.mesh import devices_of, over_axis
from jax_mgpu._src.ops.argsorted import Ordered, rows_in_order
from jax_mgpu._src.ops.hash_groups import Words, hashed_groups, table_for, words_for
from jax_mgpu._src.ops.intervals import def_filled_jvp
from jax_mgpu._src.ops.reduce import Grouped, SegmentedItems, _run_heads, run_reduce_by_key
from jax_mgpu._src.ops.scan import _scan, covered, next_marked, own_pieces, pieces
from jax_mgpu._src.ops.select import positions
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sort_primitives import Method
from jax_mgpu._src.ops.unsorted_pairs import but_nan

__all__ = ["group_by", "rank", "segmented_shift"]

# These operators need the position of each sorted row in the caller's arrays.
GIVE_POSITIONS = ("first", "last", "argmin", "argmax")


@jit_eager("op", "size", "dropna", "dtype", "ddof")
def group_by(
    keys: Keys,
    values: Pytree,
    op: OperatorTree | PairFunction = "add",
    *,
    size: int,
    dropna: bool = False,
    count: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
    ddof: float = 0,
    axis_name: AxisName | None = None,
) -> Grouped:
    """Combines the values of each key: `reduce_by_key` for keys in any order.

    Args:
      keys: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits, in any order; or columns, a tuple of 1 to 8 such
        arrays. All NaNs are equal, and so are the zeros.
      values: a pytree of arrays with leading axis `n`.
      op: how to combine each value: one name for all, a pytree of names that is a prefix of `values`, or a function as
        in `reduce_by_key`. Names are those of `reduce`.
      size: the static number of results.
      dropna: whether rows with a NaN among their keys belong to no group, as in pandas. False makes groups of them.
      count: the number of live items, an integer scalar (default `n`).
      dtype: see `reduce`.
      ddof: see `reduce`.
      axis_name: group the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`. The keys
        are sorted over all devices; a group belongs to the device that then has its first row. `size` and the number of
        keys are the device's own. Columns may have up to 64 bits in all.

    Returns:
      `Grouped`: each key once, in order, its combined values, and the number of keys, which can exceed `size`. Slots
      past the number of keys hold 0, or -1 for indices. The index of an extremum is a position in the given values or,
      over a mesh axis, in the global array.

    Raises:
      TypeError: an argument's dtype is not one of the above, or `size` or `dropna` is not static.
      ValueError: an argument's shape is not one of the above, or `op` is not known; 2^31 items or more without
        `jax_enable_x64`.

    Without `dtype`, a mean, variance, standard deviation or median of integers is a float of 32 bits, or of 64 for
    64-bit integers. Rows of a key are combined in input order. A call takes the time of a sort of the keys and, per
    value, of a segmented reduction, and of a gather unless the value moves with the keys as in `sort`. `"nunique"`
    sorts once more; `"median"` selects as `segmented_quantile` does. A GPU may combine 2^23 rows or more in tables, and
    sort only the groups. It does so for few groups of integer keys, if the results are vectors of sums of integers,
    extrema, counts or bools of up to 32 bits.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> day, sales = jnp.array([2, 1, 2]), jnp.array([5.0, 3.0, 1.0])
      >>> days, found, count = mgpu.group_by(day, {"sum": sales, "n": day}, {"sum": "add", "n": "count"}, size=2)
      >>> days, found
      (Array([1, 2], dtype=int32), {'n': Array([1, 2], dtype=int32), 'sum': Array([3., 6.], dtype=float32)})
    """
    name = "group_by"
    expect_told_apart(name, keys=keys)
    checked, _ = expect_keys(name, "keys", keys)
    (n,) = checked.shape
    index_dtype(name, "keys", n)
    size = static_size(name, "size", size)
    dropna = static_flag(name, "dropna", dropna)
    asked = Combination(name=name, op=op, dtype=dtype, ddof=ddof, axis_name=axis_name)
    if axis_name is not None:
        expect_one_code(name, checked)
    live = count_operand(name, "count", count, n)
    kept = _Kept(name, checked, live, axis_name) if dropna else None
    if kept is not None:
        checked, live = kept.keys, kept.count
    if callable(op):
        leaves, unflatten = flatten_values(name, "values", values, n, "keys")
        leaves = leaves if kept is None else kept.rows(leaves)
        if axis_name is not None:
            ordered_keys, leaves, own = over_axis(mesh.groups.sorted_rows, name, axis_name, checked, leaves, live)
            return run_reduce_by_key(asked, alike(checked, ordered_keys), unflatten(leaves), size, own)
        rows, leaves = rows_in_order(name, checked, leaves, live, ordered=False)
        return run_reduce_by_key(asked, rows.keys, unflatten(leaves), size, count_of(live))
    structure: PyTreeDef = jax.tree.structure(values)
    leaves = expect_leading_axis(name, "values", jax.tree.leaves(values), n, "keys")
    leaves = leaves if kept is None else kept.rows(leaves)
    try:
        names = jax.tree.leaves(jax.tree.broadcast(op, values)) if not isinstance(op, str) else [op] * len(leaves)
    except ValueError as error:
        raise value_error(name, "op", f"a name, or a pytree of names like values, {structure}", repr(op)) from error
    for operator in names:
        expect_name(name, operator, NAMES)
    expect_ddof(name, ddof, names)
    forms = [leaf_of_group(asked, x, operator) for x, operator in zip(leaves, names, strict=True)]
    if axis_name is not None:
        operands = (dataclasses.replace(asked, op=names), checked, leaves, [form[1] for form in forms], size, live)
        keys, results, runs = over_axis(mesh.groups.group_by, name, axis_name, *operands)
    else:
        keys, results, runs = _groups_of_one_device(asked, checked, leaves, names, size, live)
    if kept is not None:
        results = [kept.places(x) if form[0].kind.gives_index else x for x, form in zip(results, forms, strict=True)]
    return Grouped(keys, structure.unflatten(results), runs)


def _groups_of_one_device(
    asked: Combination,
    keys: jax.Array | Columns,
    leaves: list[jax.Array],
    names: list[str],
    size: int,
    live: jax.Array,
) -> tuple[Any, list[jax.Array], jax.Array]:
    """Groups by tables on a GPU if they suffice; else, and for derivatives, by a sort of the rows."""
    table = table_for(keys, leaves, size)
    # JAX keeps these functions, so they must hold no arrays.
    form = keys.replaced([]) if isinstance(keys, Columns) else None

    def keys_of(arrays: list[jax.Array]) -> Any:
        return arrays[0] if form is None else form.replaced(arrays)

    def by_sort(arrays: list[jax.Array], leaves: list[jax.Array], live: jax.Array) -> Any:
        return sorted_groups(asked, keys_of(arrays), leaves, names, size, live)[:3]

    def by_table(arrays: list[jax.Array], leaves: list[jax.Array], live: jax.Array) -> Any:
        assert table is not None
        columns = _as_words(asked, leaves, names) or []
        words = [(how.state, how.of(leaf.converted.x)) for leaf, _, how in columns]
        found = hashed_groups(asked.name, keys_of(arrays), words, live, size, table)

        def results() -> Any:
            used = live_mask(size, found.number.reshape(1))
            made = [
                filled_groups(leaf, how.results(states), used, dtype)
                for states, (leaf, dtype, how) in zip(found.states, columns, strict=True)
            ]
            return found.keys, made, found.number

        return cond(of_all(found.fits), results, lambda: by_sort(arrays, leaves, live))

    @jax.custom_jvp
    def run(arrays: list[jax.Array], leaves: list[jax.Array], live: jax.Array) -> Any:
        return platform_dependent(arrays, leaves, live, cuda=by_table, default=by_sort)

    @run.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        return jax.jvp(by_sort, primals, tangents)

    way = by_sort if table is None or _as_words(asked, leaves, names) is None else run
    firsts, results, runs = way(columns_of(keys), leaves, live)
    return firsts, results, room(asked.name, runs, size)


def _as_words(asked: Combination, leaves: list[jax.Array], names: list[str]) -> list[tuple[Leaf, Any, Words]] | None:
    """Returns how each value is combined, the type of results, and how it becomes words; None if one cannot."""
    columns = []
    for x, operator in zip(leaves, names, strict=True):
        leaf, dtype = leaf_of_group(asked, x, operator)
        words = words_for(leaf, operator)
        if words is None:
            return None
        columns.append((leaf, dtype, words))
    return columns


def sorted_groups(
    asked: Combination,
    keys: jax.Array | Columns,
    leaves: list[jax.Array],
    names: list[str],
    size: int,
    live: jax.Array,
) -> tuple[Any, list[jax.Array], jax.Array, jax.Array]:
    """Sorts the rows; returns the groups' keys, the values' results, the number of groups, and where they start."""
    name = asked.name
    moving = [x for x, operator in zip(leaves, names, strict=True) if operator not in OF_ANY_DTYPE]
    ordered = any(operator in GIVE_POSITIONS for operator in names)
    rows, moved = rows_in_order(name, keys, moving, live, ordered=ordered)
    heads, _, covered, runs = _run_heads(keys=run_keys(rows.keys), count=live, size=size)
    groups = Groups(name, keys.shape[0], heads, covered.reshape(1), runs, size, rows.order)
    firsts = [groups.first(x) for x in columns_of(rows.keys)]
    in_order = iter(moved)
    results = [
        groups.combined(asked, x if operator in OF_ANY_DTYPE else next(in_order), operator)
        for x, operator in zip(leaves, names, strict=True)
    ]
    of_keys = keys.structure(firsts) if isinstance(keys, Columns) else firsts[0]
    return of_keys, results, runs, heads


class _Kept:
    """The rows without a NaN in their keys, packed."""

    def __init__(self, name: str, keys: jax.Array | Columns, count: jax.Array, axis_name: AxisName | None):
        columns = columns_of(keys)
        self.name, self.axis_name, self.n = name, axis_name, columns[0].shape[0]
        keep = jnp.ones((self.n,), bool)
        for x in columns:
            keep = but_nan(keep, x)
        self.found, total = positions(keep, count, self.n)
        self.given, self.count = count, total.reshape(1)
        moved = self.rows(columns)
        self.keys = keys.replaced(moved) if isinstance(keys, Columns) else moved[0]

    def rows(self, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the kept rows of each array."""
        plain, restore = plain_leaves(leaves)
        return restore([take_or_fill(x, self.found, unique=True) for x in plain])

    def places(self, x: jax.Array) -> jax.Array:
        """Returns the positions of kept rows in the caller's arrays; -1 for -1."""
        if self.axis_name is None:
            return take_or_fill(self.found.astype(x.dtype), x, -1)
        operands = (self.found, self.given, self.count, x)
        return over_axis(mesh.groups.places_before, self.name, self.axis_name, *operands)


class Groups(SegmentedItems):
    """Runs of equal sorted keys; without operators of `GIVE_POSITIONS`, `order` may be absent."""

    def __init__(
        self, name: str, n: int, heads: jax.Array, covered: jax.Array, runs: jax.Array, size: int, order: jax.Array
    ):
        super().__init__(name, n, heads, covered)
        self.used, self.order = live_mask(size, runs.reshape(1)), order

    @property
    def bounds(self) -> tuple[jax.Array, jax.Array]:
        """Where groups begin and end: heads are in range, and n past the groups."""
        ends = jnp.minimum(shifted(self.heads, -1, fill=self.n), self.count)
        return self.heads, jnp.maximum(ends, self.heads)

    def first(self, x: jax.Array) -> jax.Array:
        """Returns the first row of each group of `x`, which is sorted; 0 past the groups."""
        return take_or_fill(x, self.heads, unique=True)

    def take(self, x: jax.Array, places: jax.Array) -> jax.Array:
        """Returns the rows of x, which is in the caller's order, that are at these places among the sorted rows."""
        return take_or_fill(x, self._given(places), unique=True)

    def _given(self, places: jax.Array) -> jax.Array:
        """Returns positions in the caller's arrays; -1 for -1."""
        return take_or_fill(self.order, places, -1)

    def combined(self, asked: Combination, x: jax.Array, operator: str) -> jax.Array:
        """Combines x by group.

        x is sorted or, for operators of `OF_ANY_DTYPE`, in the caller's order.
        """
        leaf, dtype = leaf_of_group(asked, x, operator)
        reduced = leaf.reduced(self)
        if leaf.kind.gives_index:
            reduced = self._given(reduced)
        return filled_groups(leaf, reduced, self.used, dtype)


def filled_groups(leaf: Leaf, results: jax.Array, used: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Returns the results of groups, and the leaf's `fill` in unused slots."""
    plain, restore = plain_leaves([results])
    fill = leaf.fill
    kept = keeping_bits(lambda x, used: select(used, x, jnp.full_like(x, fill)), plain[0], used)
    return restore([kept])[0].astype(dtype)


def leaf_of_group(asked: Combination, x: jax.Array, operator: str) -> tuple[Leaf, Any]:
    """Returns a value as its operator combines it, and the dtype of results."""
    floats = operator in GIVE_FLOATS and asked.dtype is None and not is_random_key(x.dtype)
    if floats and operator == "mean":
        x = x.astype(float_dtype(x.dtype))
    ddof = asked.ddof if operator in ("var", "std") else 0
    (leaf,), _, _ = named_leaves(asked.name, "values", x, operator, dtype=asked.dtype, ddof=ddof)
    return leaf, float_dtype(x.dtype) if floats else leaf.dtype


def float_dtype(dtype: np.dtype) -> Any:
    """Returns the dtype of results of `GIVE_FLOATS` for values of this dtype."""
    if jnp.issubdtype(dtype, jnp.floating):
        return dtype
    return jnp.float64 if dtype.itemsize == 8 else jnp.float32


@jit_eager("method", "descending")
def rank(
    keys: Keys,
    heads: SegmentsLike | None = None,
    method: RankMethod = "min",
    *,
    descending: Directions = False,
    ends: ArrayLike | None = None,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> jax.Array:
    """The rank of each key among all keys, or within its segment, from 1 on.

    Args:
      keys: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits, in any order; or columns, a tuple of 1 to 8 such
        arrays. NaN is largest, all NaNs are equal, and so are the zeros.
      heads: `[m]`, non-decreasing integers: the start positions of segments, each of which is ranked on its own. Or
        `Segments`, which replace `ends` and `count`.
      method: `"min"`: one more than the number of smaller keys. `"max"`: the number of keys that are not greater.
        `"average"`: the mean of these two. `"dense"`: one more than the number of distinct smaller keys. `"ordinal"` or
        `"first"`: a different rank for each item; equal keys are ranked in input order.
      descending: rank the greatest first; a tuple of bools gives a direction for each column.
      ends: `[m]` integers: see `segmented_reduce`.
      count: the number of live items, an integer scalar (default `n`).
      axis_name: rank the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`. Heads are
        given as for `segmented_reduce`. Columns may have up to 64 bits in all.

    Returns: `[n]` ranks, 0 past `count` and outside of all segments; int32, or int64 from 2^31 items on. Averages have
      JAX's default float type: float32 holds the ranks of up to 2^23 items exactly.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape or method is not one of the above; 2^31 items or more without `jax_enable_x64`.

    A call takes the time of a sort with indices, up to three scans, and a scatter or a sort of the ranks.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.rank(jnp.array([7, 3, 7, 9]))
      Array([2, 1, 2, 4], dtype=int32)
    """
    name = "rank"
    form = expect_choice(name, "method", method, ("min", "dense", "ordinal", "first", "max", "average"))
    form = "ordinal" if form == "first" else form
    if form != "ordinal":
        expect_told_apart(name, keys=keys)
    checked, down = expect_keys(name, "keys", keys, descending)
    n = checked.shape[0]
    given_heads = ABSENT if heads is None else heads
    segments = segment_operands(name, given_heads, ends, count, n, axis_name=axis_name, whole=True)
    starts = pieces(segments, name, axis_name)
    if axis_name is not None:
        expect_one_code(name, checked)
        given = {"ties": form, "descending": down, "count": segments.count}
        ranks = over_axis(mesh.selections.rank, name, axis_name, checked, own_pieces(segments, starts), **given)
        return ranks if segments.ends is None else jnp.where(covered(n, starts), ranks, 0)
    ranks = local_ranks(name, checked, starts, segments.count, ties=form, descending=down)
    return ranks if segments.ends is None else where(covered(n, starts), ranks, 0)


def local_ranks(
    name: str, keys: jax.Array | Columns, heads: jax.Array, count: jax.Array, *, ties: str, descending: bool
) -> jax.Array:
    """Returns ranks on one device; 0 past the count."""
    n, method = keys.shape[0], Method.MERGING if heads.size else Method.FASTEST
    sorted_keys, order = Sort(name, keys, descending, count, heads=heads, method=method).indices()
    places = jnp.arange(n, dtype=order.dtype)
    first = segment_starts(n, heads)
    begins = _last_marked(places, first)
    differs = key_starts(alike(keys, sorted_keys)) | first
    if ties == "ordinal":
        ranks = places - begins + 1
    elif ties == "dense":
        marks = differs.astype(order.dtype)
        runs = _scan(x=marks, op=Kind.ADD, exclusive=False, reverse=False, total=False)[0]
        ranks = runs - take_or_fill(runs, begins) + 1
    else:
        live = live_items(n, count, order.dtype)
        ranks = rank_of_run(ties, _last_marked(places, differs), next_marked(differs, live), begins)
    ranks = Ordered(sorted_keys, order, ABSENT).to_rows(ranks)
    return where(live_mask(n, count), ranks, 0)


def rank_of_run(form: str, begin: jax.Array, end: jax.Array, segment: jax.Array) -> jax.Array:
    """Returns the rank of equal keys from `begin` to `end` in a segment that begins at `segment`."""
    lowest, highest = begin - segment + 1, end - segment
    if form == "average":
        dtype = jax.dtypes.canonicalize_dtype(jnp.float64)
        return lowest.astype(dtype) + (highest - lowest).astype(dtype) / 2
    return highest if form == "max" else lowest


def _last_marked(places: jax.Array, marked: jax.Array) -> jax.Array:
    """Returns, for each position, the last marked one up to it; 0 before the first."""
    marks = where(marked, places, 0)
    return _scan(x=marks, op=Kind.MAX, exclusive=False, reverse=False, total=False)[0]


@jit_eager()
def segmented_shift(
    x: Pytree,
    heads: SegmentsLike,
    by: ArrayLike,
    fill_value: ArrayLike = 0,
    *,
    ends: ArrayLike | None = None,
    count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
) -> Any:
    """Shifts rows within their segment: row `i` gets the value of row `i - by` of the same segment.

    Args:
      x: a pytree of arrays with leading axis `n`, of any dtype and trailing shape.
      heads: `[m]`, non-decreasing integers: the start positions of the segments. See `segmented_scan`. Or `Segments`,
        which replace `ends` and `count`.
      by: how far, an integer; a negative one takes the values of later rows.
      fill_value: the value of rows without a source, a scalar; converted to each dtype.
      ends: `[m]` integers: see `segmented_reduce`; rows outside of all segments have no source.
      count: the number of live rows, an integer scalar (default `n`). Rows past it have no source.
      axis_name: shift the rows of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`. Rows of
        one segment of the global array may come from other devices. Heads are given as for `segmented_reduce`.

    Returns:
      A pytree like x.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape is not one of the above.

    The result is linear in `x`; the transpose shifts rows back. Time is O(n + m): one pass, with a load-balancing
    search (Baxter, moderngpu, 2013).

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.segmented_shift(jnp.array([1, 2, 3, 4, 5]), jnp.array([0, 3]), 1, fill_value=-1)
      Array([-1,  1,  2, -1,  4], dtype=int32)
    """
    name = "segmented_shift"
    leaves = jax.tree.leaves(x)
    if not leaves:
        return x
    n = as_array(name, "x", leaves[0]).shape[0] if np.ndim(leaves[0]) else 0
    plain, unflatten = flatten_values(name, "x", x, n, "x")
    segments = segment_operands(name, heads, ends, count, n, axis_name=axis_name, whole=True)
    heads = pieces(segments, name, axis_name)
    step = as_array(name, "by", by)
    if step.ndim != 0 or not jnp.issubdtype(step.dtype, jnp.integer):
        raise type_error(name, "by", "an integer scalar", describe(step))
    slots = n * devices_of(name, axis_name)
    dtype = index_dtype(name, "x", 2 * slots)
    limits = jnp.iinfo(step.dtype)
    given = {
        "heads": heads_from_zero(heads_inside(heads, n).astype(dtype)),
        "by": jnp.clip(step, -smaller(slots, -limits.min), smaller(slots, limits.max)).astype(dtype)[None],
        "count": segments.count,
    }
    inside = None if segments.ends is None else covered(n, heads)

    def shifted(leaf: jax.Array) -> jax.Array:
        form, rows = RowForm.packed(name, "x", leaf)
        fill = form.fill(fill_value)
        if axis_name is not None:
            operands = (rows, own_pieces(segments, heads), given["by"], given["count"], fill)
            moved = over_axis(mesh.segments.segmented_shift, name, axis_name, *operands)
            return form.unpack(moved if inside is None else select(inside, moved, jnp.broadcast_to(fill, moved.shape)))
        (rows,) = _shift(x=rows, fill_value=fill, **given)
        return form.unpack(rows if inside is None else select(inside, rows, jnp.broadcast_to(fill, rows.shape)))

    return unflatten(list(map(shifted, plain)))


def _shift_fallback(
    x: jax.Array, heads: jax.Array, by: jax.Array, count: jax.Array, fill_value: jax.Array
) -> Sequence[jax.Array]:
    n = x.shape[0]
    places = jnp.arange(n, dtype=heads.dtype)
    live = live_items(n, count, heads.dtype)
    sources = places - by.astype(heads.dtype)
    inside = (sources >= 0) & (sources < live) & (places < live)
    segments = jnp.cumsum(segment_starts(n, heads), dtype=heads.dtype)
    same = take_or_fill(segments, where(inside, sources, -1)) == segments
    return [take_or_fill(x, where(inside & same, sources, -1), fill_value)]


def _shift_transpose(cotangents: Sequence[Any], operands: Operands) -> jax.Array:
    fill = jnp.zeros((1,), cotangents[0].dtype)
    return _shift.run(operands._replace(x=cotangents[0], by=-operands.by, fill_value=fill))[0]


_shift = Operation(
    "segmented_shift",
    operands={"x": 2, "heads": 1, "by": 1, "count": 1, "fill_value": 1},
    results=("result",),
    shapes=lambda x: [x],
    fallback=_shift_fallback,
)
def_filled_jvp(_shift, "x")
_shift.def_transpose("x", _shift_transpose)
