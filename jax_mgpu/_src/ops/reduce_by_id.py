"""Combines the rows of each id; ids may be in any order."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import (
    ArrayLike,
    Aval,
    AxisName,
    DTypeLike,
    Operands,
    OperatorTree,
    Pytree,
    Tangents,
)
from jax_mgpu._src.arguments.check import (
    count_operand,
    describe,
    expect_dtype,
    expect_no_axis,
    index_dtype,
    index_vector,
    static_size,
    value_error,
)
from jax_mgpu._src.arguments.counts import live_mask, wide_enough
from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.arguments.segments import Groups, group_operands
from jax_mgpu._src.arguments.values import take_or_fill, take_rows
from jax_mgpu._src.core.compat import is_symbolic, partition_spec, whole_axes
from jax_mgpu._src.core.operation import ABSENT, REGISTRY, Operation, jit_eager
from jax_mgpu._src.functions.named_operators import Grouping, named_leaves
from jax_mgpu._src.functions.operators import Kind, result_dtype, wide_dtype
from jax_mgpu._src.keys.bits import keeping_bits
from jax_mgpu._src.mesh import devices_of, over_axis
from jax_mgpu._src.ops.gather import gather, scatter, set_sums
from jax_mgpu._src.ops.reduce import SegmentedItems, _segmented_reduce, as_floats, reduce_rows, reduction_jvp
from jax_mgpu._src.ops.segments import Segments
from jax_mgpu._src.ops.sort import Sort, sort
from jax_mgpu._src.ops.sorted_search import sorted_search

__all__ = ["Groups", "group_ids", "reduce_by_id"]

# The bytes that a warp of the CUDA kernel has for all states (kIdTableBytes of ffi/ops/reduce_by_id/plan.h).
TABLE_BYTES = 46 << 10
# On CUDA, sums of floats of up to 32 bits may be computed exactly, in integers, if all sums together take at most
# EXACT_WORDS_PER_ITEM words for each element of x, and FEW_EXACT_WORDS more.
EXACT_WORDS_PER_ITEM = 2
FEW_EXACT_WORDS = 1 << 18
# On CUDA, rows of more than FEW_COLUMNS columns may be sorted by id if x has more than FEW_ITEMS elements.
FEW_COLUMNS = 8
MAX_COLUMNS = 1 << 30  # kMaxIdColumns of ffi/ops/reduce_by_id/plan.h
FEW_ITEMS = 1 << 22
# Tables of digits (ffi/ops/reduce_by_id/sum_by_digits.cuh) can hold exact sums of up to DIGIT_COLUMNS columns with at
# most DIGIT_SLOTS results.
DIGIT_COLUMNS = 16
DIGIT_SLOTS = 1 << 14


@jit_eager("op", "size", "dtype", "ddof")
def reduce_by_id(
    x: Pytree,
    ids: ArrayLike | Groups,
    size: int,
    op: OperatorTree = "add",
    *,
    count: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
    ddof: float = 0,
    axis_name: AxisName | None = None,
) -> Any:
    """Combines items by id, with the same bits in every run; ids may be in any order.

    Args:
      x: see `reduce`.
      ids: `[n]`, integers: each item's row of the result. An item whose id is negative, or not below `size`, belongs to
        no row. Or the `Groups` of such ids, which accept no `count` and no `axis_name`.
      size: the static number of results.
      op: see `reduce`, except for functions.
      count: the number of live items, an integer scalar (default `n`).
      dtype: see `reduce`.
      ddof: see `reduce`.
      axis_name: reduce the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`, by ids
        below `size` times the number of devices. Each device has `size` of the results: that of id `i` is on device `i
        // size`.

    Returns:
      A result `[size, ...]` for each array of x. An id that no item has gets the operator's identity. Over a mesh axis,
      indices are positions in the global array.

    Raises:
      TypeError: as `reduce`; also a size that is not static.
      ValueError: as `reduce`; also a negative size, another number of ids than of items, or `"median"` or `"nunique"`
        with `axis_name`.

    Time is O(n + size) on a CPU, except for `"median"` and `"nunique"`. On a GPU it is O(n + size) too if the order of
    items does not matter, as in sums of integers, minima and maxima, and for few results of short rows. Sums of floats
    of at most 32 bits may be added as integers, exactly, and rounded once. In other cases a GPU may sort the ids, and
    read rows in that order.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.reduce_by_id(jnp.array([1.0, 2.0, 4.0, 8.0]), jnp.array([2, 0, 2, -1]), 3)
      Array([2., 0., 5.], dtype=float32)
    """
    name = "reduce_by_id"
    expect_dtype(name, dtype)
    devices = devices_of(name, axis_name)
    given: dict[str, Any] = {"devices": devices, "takes_functions": False, "dtype": dtype, "ddof": ddof}
    leaves, restore, n = named_leaves(name, "x", x, op, **given)
    size = static_size(name, "size", size)
    if isinstance(ids, Groups):
        expect_no_axis(name, "Groups", axis_name)
        if count is not None:
            raise value_error(name, "count", "None with Groups, which contain it", describe(count))
        items = _ItemsOfGroups(*group_operands(name, ids, n, size))
        return restore([leaf.reduced(items) for leaf in leaves])
    ids = index_vector(name, "ids", ids, size * devices)
    if ids.shape[0] != n:
        raise value_error(name, "ids", f"one id for each of {n} items of x", describe(ids))
    count = count_operand(name, "count", count, n)

    if axis_name is not None:
        of_ids = mesh.groupings.ids_reduced
        return restore([over_axis(of_ids, name, axis_name, leaf, ids, count, size=size) for leaf in leaves])
    return restore([leaf.reduced(_ItemsOfIds(ids, count, size)) for leaf in leaves])


class _ItemsOfIds(Grouping):
    def __init__(self, ids: jax.Array, count: jax.Array, size: int):
        self.ids, self.count, self.n, self.leading = ids, count, ids.shape[0], (size,)

    @property
    def index_dtype(self) -> np.dtype:  # type: ignore[override]
        return index_dtype("reduce_by_id", "x", self.n)

    def combine(self, kind: Kind, x: jax.Array, wide: bool = False) -> jax.Array:
        (size,), rows = self.leading, x.reshape(self.n, math.prod(x.shape[1:]))
        found = _reduce_by_id(x=rows, ids=self.ids, count=self.count, op=kind, wide=wide, size=size)[0]
        return found.reshape(size, *x.shape[1:])

    def spread(self, results: jax.Array) -> jax.Array:
        return _of_items(results, self.ids, self.count)

    @functools.cached_property
    def _in_order(self) -> tuple[jax.Array, SegmentedItems]:
        """Returns the items in the order of their ids, and the segments that they form."""
        order, bounds = _order_of_ids(self.ids, self.count, self.leading[0])
        return order, SegmentedItems("reduce_by_id", self.n, bounds[:-1], bounds[-1:])

    def median(self, x: jax.Array) -> jax.Array:
        order, segments = self._in_order
        return segments.median(take_rows(x, order))

    def distinct(self, x: jax.Array) -> jax.Array:
        order, segments = self._in_order
        return segments.distinct(take_rows(x, order))


class _ItemsOfGroups(_ItemsOfIds):
    """The items of each id in a known order."""

    def __init__(self, order: jax.Array, heads: jax.Array, count: jax.Array):
        self.n, self.leading = order.shape[0], heads.shape
        self._in_order = order, SegmentedItems("reduce_by_id", self.n, heads, count)

    def combine(self, kind: Kind, x: jax.Array, wide: bool = False) -> jax.Array:
        order, segments = self._in_order
        rows, heads, count = x.reshape(self.n, math.prod(x.shape[1:])), segments.heads, segments.count
        found = reduce_rows(x=rows, heads=heads, indices=order, count=count, op=kind, wide=wide)[0]
        return found.reshape(*self.leading, *x.shape[1:])

    def spread(self, results: jax.Array) -> jax.Array:
        order, segments = self._in_order
        return scatter(segments.spread(results), order, self.n)


@jit_eager("size")
def group_ids(ids: ArrayLike, size: int) -> Groups:
    """Finds the items of each id by a stable sort, once for several functions by the same ids.

    Without it, `reduce_by_id`, `softmax_by_id` and gradients of `take` may sort the ids in each call.

    Args:
      ids: `[n]`, integers. An item whose id is negative, or not below `size`, belongs to none.
      size: the static number of ids.

    Returns: `Groups`: the items sorted by their ids, and the segments that they form there.

    Raises:
      TypeError: ids are not integers, or `size` is not static.
      ValueError: ids are not 1-D; a size that is negative; 2^31 items or more without `jax_enable_x64`.

    A call takes the time of a sort of numbers up to `size`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> groups = mgpu.group_ids(jnp.array([2, 0, 2, -1]), 3)
      >>> mgpu.reduce_by_id(jnp.array([1.0, 2.0, 4.0, 8.0]), groups, 3)
      Array([2., 0., 5.], dtype=float32)
      >>> mgpu.softmax_by_id(jnp.array([1.0, 2.0, 1.0, 8.0]), groups, 3)
      Array([0.5, 1. , 0.5, 0. ], dtype=float32)
    """
    name = "group_ids"
    size = static_size(name, "size", size)
    ids = whole_axes(index_vector(name, "ids", ids, size))
    index_dtype(name, "ids", ids.shape[0])
    order, bounds = _order_of_ids(ids, ABSENT, size)
    with by_construction():
        return Groups(order, Segments.from_offsets(bounds))


@by_construction()
def _by_sorting(x: jax.Array, ids: jax.Array, count: jax.Array, *, op: int, wide: int, size: int) -> Sequence[Any]:
    if x.shape[1] == 1 and x.dtype.itemsize in (4, 8) and not Kind(op).gives_index:
        keys, needles, bits = _sorted_by(ids, count, size)
        keys, column = sort(keys, x[:, 0], bits=bits)
        bounds = sorted_search(needles, keys)
        found = _segmented_reduce(x=column, heads=bounds[:size], count=bounds[size:], op=op, wide=wide)[0]
        return [found[:, None]]
    order, bounds = _order_of_ids(ids, count, size)
    return reduce_rows(x=x, heads=bounds[:size], indices=order, count=bounds[size:], op=op, wide=wide)


def _sorted_by(ids: jax.Array, count: jax.Array, size: int) -> tuple[jax.Array, jax.Array, int]:
    """Returns the items' sort keys (`size` for items without an id), the list of all keys, and the bits of a key."""
    dtype = np.min_scalar_type(size)
    keys = jnp.where(_has_id(ids, count, size), ids, size).astype(dtype)
    return keys, jnp.arange(size + 1, dtype=dtype), max(1, size.bit_length())


@by_construction()
def _order_of_ids(ids: jax.Array, count: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Returns items in the order of their ids, and where each id begins there, `[size + 1]`."""
    keys, needles, bits = _sorted_by(ids, count, size)
    keys, order = Sort("reduce_by_id", keys, bits=bits).indices()
    return order, sorted_search(needles, keys)


def _has_id(ids: jax.Array, count: jax.Array, size: int) -> jax.Array:
    return (ids >= 0) & (wide_enough(ids, size) < size) & live_mask(ids.shape[0], count)


def _jvp(primals: Operands, tangents: Tangents, **attributes: int) -> tuple[Any, Any]:
    def of_product(x: jax.Array, dx: jax.Array) -> Any:
        def products(x: jax.Array) -> Any:
            return _by_sorting(x, primals.ids, primals.count, **attributes)[0]

        return jax.jvp(products, (x,), (dx,))[1]

    of_items = functools.partial(_of_items, ids=primals.ids, count=primals.count)
    return reduction_jvp(_reduce_by_id, "reduce_by_id", primals, tangents, of_items, of_product, **attributes)


def _transpose(cotangents: Sequence[Any], operands: Operands, **attributes: int) -> jax.Array:
    del attributes
    return _of_items(cotangents[0].astype(operands.x.dtype), operands.ids, operands.count)


def _of_items(values: jax.Array, ids: jax.Array, count: jax.Array) -> jax.Array:
    """Returns the value of each item's id; 0 for items without one."""
    index_dtype("derivative of reduce_by_id", "x", ids.shape[0])
    ids = jnp.where(_has_id(ids, count, values.shape[0]), ids, -1)
    return take_or_fill(values, ids)


def _add_rows(rows: jax.Array, indices: jax.Array, like: Aval) -> jax.Array:
    """Transposes a gather from an array like `like`: each row gets the sum of its cotangents."""
    if not rows.size or not math.prod(like.shape):
        return jnp.zeros(like.shape, like.dtype)

    def add(rows: jax.Array) -> jax.Array:
        return _reduce_by_id(x=rows, ids=ids, count=ABSENT, op=Kind.ADD, wide=False, size=like.shape[0])[0]

    ids = indices.reshape(-1)
    return as_floats(add, rows.reshape(ids.size, math.prod(like.shape[1:]))).reshape(like.shape)


@by_construction()
def _add_taken_rows(rows: jax.Array, taken: jax.Array, weights: jax.Array, indices: jax.Array, like: Aval) -> jax.Array:
    order, bounds = _order_of_ids(indices, ABSENT, like.shape[0])
    given = {"indices": gather(taken, order, inside=True), "heads": bounds[:-1], "count": bounds[-1:]}
    if weights.size:
        weights = gather(weights, order, unique=True, inside=True)
    return REGISTRY["gathered_rows"](x=rows, weights=weights, op=Kind.ADD, wide=False, **given)[0]


def _is_narrow_float(x: Aval) -> bool:
    """Whether kernels can sum these floats in integers (`ffi/ops/reduce_by_id/sum_by_id.cuh`)."""
    return jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize <= 4


def _exact_words(n: int) -> int:
    """Returns the words of an exact sum of n items (`ExactSum` of `ffi/algorithm/exact_sum.h`)."""
    binades = min(max(40 - max(n - 1, 0).bit_length(), 1), 32)
    return -(-254 // binades) + 1


def _are_columns(x: Aval, ids: Aval, count: Aval) -> bool:
    """Whether a batch can run as the columns of one problem, whose ids are sorted once."""
    if x.ndim == 2 or ids.ndim > 1 or count.ndim > 1 or is_symbolic(x):
        return False
    *batch, n, width = x.shape
    columns = math.prod(batch) * width
    is_whole = all(names is None for operand in (x, ids, count) for names in partition_spec(operand))
    return is_whole and width <= FEW_COLUMNS < columns <= MAX_COLUMNS and n * columns > FEW_ITEMS


def _in_any_order(op: Kind, x: Aval) -> bool:
    """Whether atomic operations may combine items, because their order does not matter."""
    if op.gives_index:  # a position fits beside the key
        return x.dtype.itemsize < 4 or (x.dtype.itemsize == 4 and x.shape[-2] < 2**32 - 1)
    if op == Kind.ADD:
        return not jnp.issubdtype(x.dtype, jnp.floating)
    return op not in (Kind.MUL, Kind.LOGSUMEXP)


class _ReduceById(Operation):
    """A reduction by id."""

    def fold_batch(self, operands: Sequence[Any], attributes: Mapping[str, int]) -> Sequence[jax.Array] | None:
        x, ids, count = operands
        if not _are_columns(x, ids, count):
            return None
        *batch, n, width = x.shape
        rows = keeping_bits(lambda x: jnp.moveaxis(x, -2, 0).reshape(n, -1), x, repeats=True)
        found = _by_sorting(rows, ids, count, **attributes)[0].reshape(attributes["size"], *batch, width)
        return [keeping_bits(lambda x: jnp.moveaxis(x, 0, -2), found, repeats=True)]

    def prefers_xla(self, operands: Sequence[Any], attributes: Mapping[str, int], platform: str, devices: int) -> bool:
        """Whether plain JAX runs, which sorts the ids."""
        x, op = operands[0], Kind(attributes["op"])
        n, width = x.shape[-2:]
        slots = attributes["size"] * width
        if platform != "cuda" or (_in_any_order(op, x) and slots < 2**32 and width <= MAX_COLUMNS):
            return False
        sums_exactly = op == Kind.ADD and _is_narrow_float(x)
        has_digits = sums_exactly and width <= DIGIT_COLUMNS and slots <= DIGIT_SLOTS
        if width > FEW_COLUMNS and n * width > FEW_ITEMS and not has_digits:
            return True
        if sums_exactly and devices == 1 and _are_columns(*operands):
            # Tables of digits replace that sort if results fit them and problems have enough items.
            return bool(slots > DIGIT_SLOTS or n * width < FEW_ITEMS)
        if sums_exactly:
            words = slots * _exact_words(n)
            return bool(words > EXACT_WORDS_PER_ITEM * n * width + FEW_EXACT_WORDS or words >= 2**32)
        state = max(4, np.dtype(wide_dtype(x.dtype) if attributes["wide"] else x.dtype).itemsize)
        if op.gives_index:
            state = 16
        elif op == Kind.LOGSUMEXP:
            state *= 2
        return bool(slots * state > TABLE_BYTES)


_reduce_by_id = _ReduceById(
    "reduce_by_id",
    operands={"x": 2, "ids": 1, "count": 1},
    results=("result",),
    attributes={"op": Kind, "wide": bool, "size": int},
    shapes=lambda x, op, wide, size: [
        jax.ShapeDtypeStruct((size, x.shape[1]), result_dtype("reduce_by_id", op, x, wide))
    ],
    fallback=_by_sorting,
)
_reduce_by_id.def_jvp(_jvp)
_reduce_by_id.def_transpose("x", _transpose)
set_sums(_add_rows, _add_taken_rows)
