"""`segmented_reduce` of gathered or weighted rows, as in pooled embeddings.

The operators in `DIRECT` are one operation over the table: kernels read, weight and combine rows at once. Other
operators gather rows first. Entries whose index is outside of the table are dropped.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import (
    ArrayLike,
    Attribute,
    Aval,
    Count,
    DTypeLike,
    Operands,
    Pytree,
    SegmentsLike,
    Tangents,
)
from jax_mgpu._src.arguments.check import (
    INT32_LIMIT,
    KEY_DTYPES,
    as_array,
    describe,
    expect_leading_axis,
    expect_no_axis,
    index_dtype,
    index_vector,
    type_error,
    value_error,
)
from jax_mgpu._src.arguments.counts import live_items, segment_bounds, wide_enough
from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.arguments.segments import segment_operands
from jax_mgpu._src.arguments.values import plain_leaves, take_or_fill
from jax_mgpu._src.core.compat import flatten, is_sharded, platform_dependent, transposed
from jax_mgpu._src.core.operation import ABSENT, REGISTRY, Operation
from jax_mgpu._src.functions.combination import Combination
from jax_mgpu._src.functions.named_operators import Leaf
from jax_mgpu._src.functions.operators import Kind, result_dtype, sum_dtype, wide_dtype
from jax_mgpu._src.functions.recurrence import ratio, weighted
from jax_mgpu._src.functions.transform import takes_position
from jax_mgpu._src.ops.gather import add_rows, add_taken_rows, gather
from jax_mgpu._src.ops.scan import before_map, pieces, scan_columns

NAME = "segmented_reduce"
SUMS = ("add", "sum", "mean")  # operators with weights
DIRECT = (*SUMS, "mul", "prod", "min", "max", "any", "all", "and", "or", "xor", "logsumexp")
POSITIONS = ("argmin", "argmax")
# For rows at least this wide, the derivative by x on CUDA sorts the indices.
LEAST_SORTED_WIDTH = 16
NO_WEIGHTS = cast(jax.Array, np.zeros((0, 0), np.int32))  # absent weights: `ABSENT` has one axis, weights have two


def reduce_gathered(
    reduce: Callable[..., Any],
    asked: Combination,
    x: Pytree,
    heads: SegmentsLike,
    indices: ArrayLike | None,
    weights: ArrayLike | None,
    ends: ArrayLike | None,
    count: Count,
) -> Any:
    """`segmented_reduce` with indices or weights; `reduce` is that function."""
    expect_no_axis(NAME, "weights" if indices is None else "indices", asked.axis_name)
    names = jax.tree.leaves(asked.op)
    if weights is not None:
        other = [name for name in names if callable(name) or name not in SUMS]
        if other:
            raise value_error(NAME, "op", f"{', '.join(SUMS)} where weights are given", repr(other[0]))
    if indices is None and asked.map is not None:
        x, _ = asked.mapped(x, count, inside=before_map(NAME, heads, ends))
        asked = dataclasses.replace(asked, map=None)
    if asked.map is not None or any(callable(name) or name not in DIRECT for name in names):
        return _reduce_kept(reduce, asked, x, heads, indices, weights, ends, count)
    if weights is not None:
        weights = _weights(weights)
        x = jax.tree.map(lambda leaf: _as_weighted(leaf, weights), _table(x))
    of_names: Any = asked.parts(x)
    leaves, _, n, restore = of_names
    entries = n
    if indices is not None:
        indices = index_vector(NAME, "indices", indices, n)
        entries = indices.shape[0]
    segments = segment_operands(NAME, heads, ends, count, entries)
    heads = pieces(segments)
    results = restore([_reduce_leaf(leaf, heads, indices, weights, entries, segments.count) for leaf in leaves])
    return results if segments.ends is None else jax.tree.map(lambda x: x[::2], results)


def weighted_rows(
    x: jax.Array, heads: jax.Array, indices: jax.Array, weights: jax.Array, count: jax.Array
) -> jax.Array:
    """Returns the sums of rows of x, `[n, width]`, each times its weight, by segments; x and weights have one type."""
    if not indices.size:
        return jnp.zeros((heads.shape[0], x.shape[1]), x.dtype)
    given = {"x": x, "heads": heads, "indices": indices, "weights": weights[:, None], "count": count}
    return _gathered_rows(**given, op=Kind.ADD, wide=False)[0]


def _table(x: Pytree) -> Any:
    """Returns x, with a list of numbers as an array."""
    if isinstance(x, (list, tuple)) and x and all(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(x)):
        return as_array(NAME, "x", x)
    return x


def _weights(weights: ArrayLike) -> jax.Array:
    weights = as_array(NAME, "weights", weights)
    if weights.ndim == 0:
        raise value_error(NAME, "weights", "one or more weights for each entry, [entries, ...]", describe(weights))
    if weights.dtype.name not in KEY_DTYPES and weights.dtype != jnp.bool_:
        raise type_error(NAME, "weights", "real numbers or bools", describe(weights))
    return weights


def _as_weighted(x: ArrayLike, weights: jax.Array) -> jax.Array:
    """Converts an array of numbers to the type of its products with weights."""
    x = as_array(NAME, "x", x)
    is_number = x.dtype.name in KEY_DTYPES or x.dtype == jnp.bool_
    return x.astype(jnp.result_type(x, weights)) if is_number else x


def _reduce_leaf(
    leaf: Leaf, heads: jax.Array, indices: jax.Array | None, weights: jax.Array | None, entries: int, count: jax.Array
) -> jax.Array:
    if weights is not None:
        k = weights.ndim - 1
        if weights.shape[0] != entries or weights.shape[1:] != leaf.trailing[:k]:
            name = leaf.argument
            wider = f"the shape [{entries}, *{name}.shape[1:k]] for a k from 2 to {name}.ndim"
            expected = f"one weight for each entry, [{entries}], or {wider}"
            raise value_error(NAME, "weights", expected, describe(weights))
    if leaf.is_empty:
        return leaf.nothing(heads.shape)
    if weights is not None and jnp.issubdtype(leaf.x.dtype, jnp.integer):
        leaf = dataclasses.replace(leaf, x=leaf.x.astype(sum_dtype(leaf.x.dtype)), wide=False)
    x, given = leaf.rows, {"heads": heads, "count": count}
    if entries == 0:  # empty indices would be taken for absent ones
        x, indices = x[:0], None
    if weights is not None:
        groups = math.prod(weights.shape[1:])
        factors = weights.astype(leaf.x.dtype).reshape(entries, groups)
    else:
        factors = NO_WEIGHTS
    if indices is not None:
        given["indices"] = indices
    sums = _gathered_rows(x=x, weights=factors, op=leaf.kind, wide=leaf.wide, **given)[0]
    if weights is None or not leaf.mean:
        return leaf.results(sums, heads.shape, lambda: _number_inside(leaf.x.shape[0], heads, indices, entries, count))
    masses = _masked(factors, indices, x.shape[0]).astype(sums.dtype)
    masses = REGISTRY["reduce_rows"](x=masses, heads=heads, count=count, op=Kind.ADD, wide=False)[0]
    sums = sums.reshape(*masses.shape, sums.shape[1] // groups)
    means = ratio(sums, jnp.broadcast_to(masses[..., None], sums.shape))
    return means.reshape(*heads.shape, *leaf.trailing).astype(leaf.dtype)


def _number_inside(n: int, heads: jax.Array, indices: jax.Array | None, entries: int, count: jax.Array) -> jax.Array:
    """Returns, for each segment, the number of entries whose index is a row of n."""
    dtype = index_dtype(NAME, "indices", entries)
    marks = jnp.ones((entries,), dtype) if indices is None else _inside(indices, n).astype(dtype)
    return REGISTRY["segmented_reduce"](x=marks, heads=heads, count=count, op=Kind.ADD, wide=False)[0]


def _inside(indices: jax.Array, n: int) -> jax.Array:
    return (indices >= 0) & (wide_enough(indices, n) < n)


def _masked(weights: jax.Array, indices: jax.Array | None, n: int) -> jax.Array:
    """Sets the weights of dropped entries, `[entries, groups]`, to 0: an infinite weight times 0 would be NaN."""
    if indices is None or not indices.size:
        return weights
    return jnp.where(_inside(indices, n)[:, None], weights, 0)


def _reduce_kept(
    reduce: Callable[..., Any],
    asked: Combination,
    x: Pytree,
    heads: SegmentsLike,
    indices: ArrayLike | None,
    weights: ArrayLike | None,
    ends: ArrayLike | None,
    count: Count,
) -> Any:
    """Gathers the rows of live entries whose index is inside of the table, and reduces them by `reduce`."""
    op, item_map = asked.op, asked.map
    x = _table(x) if item_map is None and not callable(op) else x
    leaves, structure = flatten(x)
    first = as_array(NAME, "x", leaves[0]) if leaves else None
    if first is None or first.ndim == 0:
        raise value_error(NAME, "x", "an array or a pytree of arrays, with a leading axis", describe(x))
    n = first.shape[0]
    plain, restore = plain_leaves(expect_leading_axis(NAME, "x", leaves, n, "the first array"))
    indices = index_vector(NAME, "indices", indices, n)
    entries = indices.shape[0]
    segments = segment_operands(NAME, heads, ends, count, entries)
    kept, total, before = _kept(_inside(indices, n), segments.count)
    rows = take_or_fill(indices, kept, jnp.full((1,), -1, indices.dtype))
    items = structure.unflatten(restore([gather(leaf, rows) for leaf in plain]))
    if weights is not None:
        weights = gather(_weights(weights), kept, unique=True)
    if item_map is not None and takes_position(item_map):
        items, by_position = (items, kept), item_map
        item_map = lambda pair: by_position(*pair)  # noqa: E731 - of an entry's own position
    with by_construction():
        results = reduce(
            items,
            before(segments.heads),
            op,
            weights=weights,
            ends=None if segments.ends is None else before(segments.ends),
            count=total,
            map=item_map,
            identity=asked.identity,
            dtype=asked.dtype,
            ddof=asked.ddof,
            commutative=asked.commutative,
        )

    def of_entries(name: Any, part: Any) -> Any:
        is_position = not callable(name) and name in POSITIONS
        return jax.tree.map(lambda i: jnp.where(i >= 0, gather(kept, i), -1), part) if is_position else part

    return jax.tree.map(of_entries, op, results)


def _kept(keep: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array, Callable[[jax.Array], jax.Array]]:
    """Returns kept positions, their number, and a function that counts the kept positions before given ones."""
    n = keep.shape[0]
    dtype = index_dtype(NAME, "indices", n)
    none = {"x": np.zeros((0, 1), np.int32), "fill_value": np.zeros((1,), np.int32)}
    kept, total = REGISTRY["select"](keep=keep, count=count, size=n, indices=True, partition=False, **none)
    ranks = scan_columns(keep.astype(dtype), Kind.ADD, exclusive=True)

    def before(positions: jax.Array) -> jax.Array:
        at = take_or_fill(ranks, jnp.maximum(positions, 0), total[None])
        return jnp.minimum(at, total)

    return kept, total, before


# ---- The operation ---------------------------------------------------------------------------------------------------


def _shapes(x: Aval, heads: Aval, *, op: int, wide: int) -> Sequence[Any]:
    return [jax.ShapeDtypeStruct((*heads.shape, x.shape[1]), result_dtype(NAME, op, x, wide))]


def _fallback(
    x: jax.Array,
    heads: jax.Array,
    indices: jax.Array,
    weights: jax.Array,
    count: jax.Array,
    *,
    op: int,
    wide: int,
) -> Sequence[jax.Array]:
    given: dict[str, Any] = {"heads": heads, "count": count, "op": op}
    if not weights.size:
        return REGISTRY["reduce_rows"](x=x, indices=indices, wide=wide, **given)
    exact = wide_dtype(x.dtype)
    rows = (gather(x, indices) if indices.size else x).astype(exact)
    factors = _of_columns(_masked(weights, indices, x.shape[0]).astype(exact), x.shape[1])
    sums = REGISTRY["reduce_rows"](x=rows * factors, wide=False, **given)[0]
    return [sums.astype(result_dtype(NAME, op, x, wide))]


def _of_columns(weights: jax.Array, width: int) -> jax.Array:
    """Returns the weight of each column, which is that of its group of neighbours."""
    entries, groups = weights.shape
    return jnp.broadcast_to(weights[:, :, None], (entries, groups, width // groups)).reshape(entries, width)


def _jvp(primals: Operands, tangents: Tangents, *, op: int, wide: int) -> tuple[Any, Any]:
    if op == Kind.ADD:
        return _gathered_rows.linear_jvp(primals, tangents, op=op, wide=wide)
    results = _gathered_rows.run(primals, op=op, wide=wide)
    if tangents.x is None:
        return results, [None]

    def gathered(x: jax.Array) -> jax.Array:
        """Returns the results from rows that are gathered first."""
        kept, total, before = _kept(_inside(primals.indices, x.shape[0]), primals.count)
        rows = gather(x, take_or_fill(primals.indices, kept, jnp.full((1,), -1, primals.indices.dtype)))
        live = total.reshape(1)
        return REGISTRY["reduce_rows"](x=rows, heads=before(primals.heads), count=live, op=op, wide=wide)[0]

    return results, [jax.jvp(gathered, (primals.x,), (tangents.x,))[1]]


def _of_entries(cotangent: jax.Array, operands: Operands, dtype: DTypeLike) -> jax.Array:
    """Returns, for each entry, the row of cotangents of its segment."""
    entries = operands.indices.shape[0] or operands.x.shape[0]

    def summed(rows: jax.Array) -> jax.Array:
        return REGISTRY["reduce_rows"](x=rows, heads=operands.heads, count=operands.count, op=Kind.ADD, wide=False)[0]

    rows = jax.ShapeDtypeStruct((entries, operands.x.shape[1]), dtype)
    result: jax.Array = transposed(summed, rows, cotangent.astype(dtype), operands.heads, operands.count)
    return result


def _transpose_x(cotangents: Sequence[Any], operands: Operands, *, op: int, wide: int) -> jax.Array:
    """Returns, for each row of x, the sum of its entries' cotangents, times their weights if given."""
    del op, wide
    x, indices = operands.x, operands.indices
    exact = wide_dtype(x.dtype)
    given = cotangents[0], operands.weights

    def in_memory(cotangent: jax.Array, weights: jax.Array) -> jax.Array:
        rows = _of_entries(cotangent, operands, exact)
        if weights.size:
            factors = _masked(weights, indices, x.shape[0]).astype(exact)
            rows = weighted(_of_columns(factors, x.shape[1]), rows)
        if indices.size:
            rows = add_rows(rows, indices, jax.ShapeDtypeStruct(x.shape, exact))
        return rows.astype(x.dtype)

    def by_sorting(cotangent: jax.Array, weights: jax.Array) -> jax.Array:
        given = {"offsets": operands.heads, "total": operands.count, "size": indices.shape[0]}
        (segments,) = REGISTRY["load_balance_search"](return_rank=False, **given)
        if weights.size:
            weights = weights.astype(cotangent.dtype)
        return add_taken_rows(cotangent, segments, weights, indices, x).astype(x.dtype)

    if not indices.size or x.shape[1] < LEAST_SORTED_WIDTH:
        return in_memory(*given)
    return platform_dependent(*given, cuda=by_sorting, default=in_memory)


def _transpose_weights(cotangents: Sequence[Any], operands: Operands, *, op: int, wide: int) -> jax.Array:
    """Returns, for each weight, the dot of the items that it multiplies and their cotangents."""
    del op, wide
    x, indices, weights = operands.x, operands.indices, operands.weights
    exact = wide_dtype(x.dtype)
    rows = (gather(x, indices) if indices.size else x).astype(exact)
    products = weighted(rows, _of_entries(cotangents[0], operands, exact))
    entries, groups = weights.shape
    return products.reshape(entries, groups, x.shape[1] // groups).sum(axis=-1).astype(weights.dtype)


class _GatheredRows(Operation):
    """Segments of gathered or weighted rows. A batch over one table can be one problem with all segments."""

    def _batch(self, operands: Sequence[Any], axes: Sequence[Any], **attributes: Attribute) -> tuple[Any, Any]:
        x, heads, indices, weights, count = operands
        size = next(y.shape[axis] for y, axis in zip(operands, axes, strict=True) if axis is not None)
        ranks = [rank + (axis is not None) for rank, axis in zip(self.ranks, axes, strict=True)]
        entries = indices.size // (1 if axes[2] is None else max(size, 1))
        is_one = axes[0] is None and size * entries > 0 and [y.ndim for y in operands] == ranks
        if not is_one or size * entries >= INT32_LIMIT or any(map(is_sharded, operands)):
            return super()._batch(operands, axes, **attributes)

        def bounds(i: jax.Array, heads: jax.Array, count: jax.Array) -> jax.Array:
            """Returns where segments of one problem begin, and where the last one ends, among the entries of all."""
            live = live_items(entries, count)[None]
            begins = segment_bounds(heads, entries, count)[0].astype(live.dtype)
            result: jax.Array = i * entries + jnp.concatenate([begins, live])
            return result

        def together(y: jax.Array, axis: int | None) -> jax.Array:
            rows = jnp.broadcast_to(y, (size, *y.shape)) if axis is None else jnp.moveaxis(y, axis, 0)
            return rows.reshape(size * rows.shape[1], *rows.shape[2:])

        problems = jnp.arange(size, dtype=jnp.int32)
        starts = jax.vmap(bounds, in_axes=(0, axes[1], axes[4]))(problems, heads, count)
        given = [x, starts.reshape(-1), together(indices, axes[2]), weights, ABSENT]
        if weights.size:
            given[3] = together(weights, axes[3])
        (sums,) = self.run(given, **attributes)
        return [sums.reshape(*starts.shape, *sums.shape[1:])[:, :-1]], [0]


_gathered_rows = _GatheredRows(
    "gathered_rows",
    operands={"x": 2, "heads": 1, "indices": 1, "weights": 2, "count": 1},
    results=("result",),
    attributes={"op": Kind, "wide": bool},
    shapes=_shapes,
    fallback=_fallback,
    streamed=("x", "indices", "weights"),
)
_gathered_rows.def_jvp(_jvp)
_gathered_rows.def_transpose("x", _transpose_x)
_gathered_rows.def_transpose("weights", _transpose_weights)
