"""`Ragged`: rows of any lengths as a pytree, whose methods call the functions of ragged batches."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, overload

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import ArrayLike, DTypeLike, Integers, OperatorTree, PairFunction, Pytree
from jax_mgpu._src.arguments.check import (
    as_array,
    describe,
    expect_item_dtype,
    expect_leading_axis,
    expect_mask,
    host_array,
    index_array,
    index_dtype,
    index_vector,
    known_integers,
    static_size,
    type_error,
    value_error,
)
from jax_mgpu._src.arguments.preconditions import row_lengths, row_offsets, same_rows
from jax_mgpu._src.arguments.segments import expect_inside
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.core.compat import PyTreeDef, flatten, whole_axes
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.keys.bits import is_random_key
from jax_mgpu._src.ops.intervals import interval_expand
from jax_mgpu._src.ops.ragged import (
    from_dense,
    segment_ids,
    take_segments,
    to_dense,
)
from jax_mgpu._src.ops.ragged_foreign import arrow_parts, awkward_parts, to_arrow, to_awkward
from jax_mgpu._src.ops.ranks import TopK, segmented_quantile, segmented_top_k
from jax_mgpu._src.ops.reduce import segmented_reduce
from jax_mgpu._src.ops.scan import heads_of_bounds, segmented_scan
from jax_mgpu._src.ops.segmented_softmax import segmented_log_softmax, segmented_softmax
from jax_mgpu._src.ops.segmented_sort import segmented_sort, segmented_sort_indices
from jax_mgpu._src.ops.segments import Segments
from jax_mgpu._src.ops.select import ranks, run_starts, select_rows

__all__ = ["Ragged"]

SHOWN = 3  # rows at either end of a repr, and items at either end of a row


Binary: TypeAlias = "Callable[[Ragged, Any], Ragged]"


def _binary(symbol: str, function: Callable[..., Any]) -> Binary:
    return lambda self, other: self._combine(f"Ragged {symbol}", function, other)


def _binaries(symbol: str, function: Callable[..., Any]) -> tuple[Binary, Binary]:
    """Returns an operator with a Ragged on its left, and on its right."""
    return _binary(symbol, function), _binary(symbol, lambda x, y: function(y, x))


def _unary(function: Callable[[Any], Any]) -> Callable[[Ragged], Ragged]:
    return lambda self: self.with_values(jax.tree.map(function, self.values))


@jax.tree_util.register_pytree_with_keys_class
class Ragged:
    """Rows of any lengths, as a pytree: all items, and where each row lies among them.

    Methods call functions of this package, so a Ragged works in `jit`, `vmap`, `scan` and `shard_map`. Its children are
    `values` and `segments`; `jax.grad` by a Ragged needs `allow_int=True`, because segments are integers. Items in no
    row are padding.

    Args:
      values: a pytree of arrays with leading axis `capacity`: the items, of any dtype and trailing shape.
      segments: `Segments`: where each row lies; or offsets, `[m + 1]` non-decreasing integers from 0: the start of each
        row, and the end of the last one.

    Raises:
      TypeError: offsets are not integers.
      ValueError: an argument's shape is not one of the above; or, if the host knows the values, offsets do not start at
        0 or are out of order, or a row ends past the last item.

    Attributes:
      values: the items.
      segments: where each row lies.

    Arithmetic and comparisons work item by item, with another Ragged of the same rows, an array with an entry per row,
    or a scalar. Different rows are an error; within `jit`, it may take `checks()` to find that they differ.

    Outside of `jit`, `ragged[i]` is row i, and a loop goes over the rows. `ragged[a:b]`, `ragged[indices]` and
    `ragged[mask]` are a Ragged of the selected rows.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> scores = mgpu.Ragged.from_rows([[3.0, 1.0], [], [2.0, 5.0, 4.0]])
      >>> scores
      Ragged([[3., 1.], [], [2., 5., 4.]], float32)
      >>> scores - scores.reduce("max")
      Ragged([[0., -2.], [], [-3., 0., -1.]], float32)
      >>> scores.sort()[jnp.array([2, 0])]
      Ragged([[2., 4., 5.], [1., 3.]], float32)
    """

    values: Any
    segments: Segments

    def __init__(self, values: Pytree, segments: Segments | Integers):
        name = "Ragged"
        self.values, capacity = _items(name, values)
        if isinstance(segments, Segments):
            self.segments = expect_inside(name, "segments", segments, capacity)
            return
        _expect_ends(name, segments, capacity)
        offsets = index_vector(name, "offsets", segments, capacity)
        if offsets.shape[0] == 0:
            raise value_error(name, "offsets", "the start of each row and the end of the last one", "none")
        offsets = whole_axes(row_offsets(name, offsets, capacity)).astype(index_dtype(name, "values", capacity))
        self.segments = Segments.of(offsets[:-1], offsets[1:])

    # ---- A pytree ----------------------------------------------------------------------------------------------------

    def tree_flatten_with_keys(self) -> tuple[Any, None]:
        """Its children with names, for JAX."""
        key = jax.tree_util.GetAttrKey
        return ((key("values"), self.values), (key("segments"), self.segments)), None

    def tree_flatten(self) -> tuple[Any, None]:
        """Its children, for JAX."""
        return (self.values, self.segments), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Sequence[Any]) -> Ragged:
        """A Ragged of children that JAX may have replaced by anything."""
        made = object.__new__(cls)
        made.values, made.segments = children
        return made

    # ---- Constructors ------------------------------------------------------------------------------------------------

    @classmethod
    def from_lengths(cls, values: Pytree, lengths: Integers) -> Ragged:
        """Rows of the given lengths, `[m]` integers; `values` holds their items, one row after the other."""
        name = "Ragged.from_lengths"
        values, capacity = _items(name, values)
        _expect_lengths(name, lengths, capacity)
        dtype = index_dtype(name, "values", capacity)
        lengths = row_lengths(name, index_vector(name, "lengths", lengths, capacity).astype(dtype), capacity)
        return cls(values, Segments.from_lengths(lengths))

    @classmethod
    def from_ids(cls, values: Pytree, ids: Integers, m: int) -> Ragged:
        """`m` rows, given the row of each item as non-decreasing integers; an id outside of [0, m) means no row."""
        name = "Ragged.from_ids"
        values, capacity = _items(name, values)
        if as_array(name, "ids", ids, capacity).shape != (capacity,):
            raise value_error(name, "ids", f"one id for each of {capacity} items", describe(ids))
        return cls(values, Segments.from_ids(ids, m))

    @classmethod
    def from_ranges(cls, values: Pytree, starts: Integers, ends: Integers) -> Ragged:
        """Row `i` has the items from `starts[i]` to `ends[i]`; rows are in order, with or without gaps between them."""
        return cls(values, Segments.from_ranges(starts, ends))

    @classmethod
    def concatenate(cls, parts: Sequence[Ragged]) -> Ragged:
        """The rows of several Ragged as one, part after part."""
        name = "Ragged.concatenate"
        parts = list(parts)
        if not parts or not all(isinstance(part, Ragged) for part in parts):
            got = "none" if not parts else next(describe(part) for part in parts if not isinstance(part, Ragged))
            raise type_error(name, "parts", "at least one Ragged, and nothing else", got)
        expected: Any = jax.tree.structure(parts[0].values)
        for part in parts:
            if jax.tree.structure(part.values) != expected:
                got = jax.tree.structure(part.values)
                raise value_error(name, "parts", f"items of one structure, {expected}", got)
        values = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(part.values for part in parts))
        begins = np.cumsum([0, *(part.capacity for part in parts[:-1])])
        dtype = index_dtype(name, "parts", sum(part.capacity for part in parts))
        bounds = [
            [jnp.asarray(x, dtype) + np.asarray(begin, dtype) for begin, x in zip(begins, bound, strict=True)]
            for bound in zip(*((part.segments.starts, part.segments.ends) for part in parts), strict=True)
        ]
        joined = cls(values, Segments.of(*map(jnp.concatenate, bounds)))
        return joined.take(np.arange(len(joined)))

    @classmethod
    def from_dense(cls, x: Pytree, lengths: Integers, *, size: int | None = None) -> Ragged:
        """The first `lengths[i]` items of each row of arrays `[m, width, …]`; room for `size` items (default all)."""
        leaves = jax.tree.leaves(x)
        if size is None and leaves and np.ndim(leaves[0]) > 1:
            size = leaves[0].shape[0] * leaves[0].shape[1]
        values, heads, count = from_dense(x, lengths, size=0 if size is None else size)
        return cls(values, jnp.minimum(jnp.append(heads, count), jax.tree.leaves(values)[0].shape[0]))

    @classmethod
    def from_rows(cls, rows: Iterable[Any], *, size: int | None = None) -> Ragged:
        """Rows from a list, each an array, a list or a pytree of arrays; not within `jit`. Room for `size` items."""
        name = "Ragged.from_rows"
        rows = _listed(name, rows)
        lists = [
            isinstance(row, (list, tuple)) and not any(_is_array(item) and item.ndim for item in row) for row in rows
        ]
        trees = [
            np.asarray(host_array(row, name, "rows", None)) if is_list else row
            for row, is_list in zip(rows, lists, strict=True)
        ]
        if any(lists) and all(map(_is_array, trees)) and any(row.size for row in trees):
            # An empty list has no type; items of lists take the type of an array.
            known = [row for row, is_list in zip(trees, lists, strict=True) if not is_list]
            known = known or [row for row in trees if row.size]
            kind, like = np.result_type(*(row.dtype for row in known)), known[0]
            trees = [
                row if not is_list else row.astype(kind) if row.size else np.zeros((0, *like.shape[1:]), kind)
                for row, is_list in zip(trees, lists, strict=True)
            ]
        if not trees:
            raise value_error(name, "rows", "at least one row", "none")
        structure: PyTreeDef = jax.tree.structure(trees[0])
        flat = []
        for i, row in enumerate(trees):
            if jax.tree.structure(row) != structure:
                got = f"{jax.tree.structure(row)} in row {i}"
                raise value_error(name, "rows", f"the structure of row 0, {structure}", got)
            leaves = jax.tree.leaves(row)
            if not leaves or any(is_random_key(leaf.dtype) for leaf in leaves if isinstance(leaf, jax.Array)):
                raise value_error(name, "rows", "an array or a pytree of arrays, of numbers", f"{row} in row {i}")
            flat.append([np.asarray(leaf) for leaf in leaves])
            for leaf, first in zip(flat[i], flat[0], strict=True):
                if leaf.ndim == 0:
                    raise value_error(name, "rows", "an array or a list for each row", f"{row!r} in row {i}")
                if (leaf.dtype, leaf.shape[1:]) != (first.dtype, first.shape[1:]):
                    got = f"{describe(leaf)} in row {i}"
                    raise value_error(name, "rows", f"items like those of row 0, {describe(first)}", got)
                if len(leaf) != len(flat[i][0]):
                    got = f"{len(flat[i][0])} and {len(leaf)} in row {i}"
                    raise value_error(name, "rows", "arrays of one length in each row", got)
        lengths = np.array([len(row[0]) for row in flat], np.int64)
        total = int(lengths.sum())
        size = total if size is None else static_size(name, "size", size)
        if size < total:
            raise value_error(name, "size", f"at least {total}, the number of items", size)
        columns = []
        for leaves in zip(*flat, strict=True):
            padding = np.zeros((size - total, *leaves[0].shape[1:]), leaves[0].dtype)
            columns.append(np.concatenate([*leaves, padding]))
        return cls(structure.unflatten(columns), np.append(0, np.cumsum(lengths)))

    @classmethod
    def from_awkward(cls, array: Any) -> Ragged:
        """The lists of an Awkward Array as rows; records become dicts or tuples of arrays. Not within `jit`."""
        return cls(*awkward_parts("Ragged.from_awkward", array))

    @classmethod
    def from_arrow(cls, array: Any) -> Ragged:
        """The lists of an Arrow `ListArray`, or chunks of it, as rows; structs become dicts. Not within `jit`."""
        return cls(*arrow_parts("Ragged.from_arrow", array))

    # ---- Properties --------------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """The static number of items that there is room for."""
        result: int = jax.tree.leaves(self.values)[0].shape[self.segments.starts.ndim - 1]
        return result

    @property
    def dtype(self) -> Any:
        """The dtype of the items; for a pytree, one per leaf."""
        return jax.tree.map(lambda x: x.dtype, self.values)

    @property
    def offsets(self) -> jax.Array:
        """`[m + 1]`: where each row starts, and where the last one ends. Rows with gaps between them have none."""
        return jnp.asarray(self.segments.offsets)

    @property
    def heads(self) -> jax.Array:
        """`[m]`: where each row starts."""
        return jnp.asarray(self.segments.starts)

    @property
    def count(self) -> jax.Array:
        """Where the last row ends, a scalar, which is the number of items if rows begin at 0 without gaps."""
        return jnp.asarray(self.segments.count)

    @property
    def lengths(self) -> jax.Array:
        """`[m]`: the number of items of each row."""
        return jnp.asarray(self.segments.lengths)

    @property
    def segment_ids(self) -> jax.Array:
        """`[capacity]`: the row of each item, -1 for those in none."""
        return segment_ids(self.segments, self.capacity)

    def __len__(self) -> int:
        return self.segments.number

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice | ArrayLike | Sequence[int]) -> Ragged: ...
    def __getitem__(self, index: Any) -> Any:
        """Row `i` (not within `jit`), or the rows of a slice, of an array of indices or of a mask, as a Ragged.

        Within `jit`, a mask must not be traced, and the result has room for as many items as this Ragged. Repeated rows
        may need more: see `take`.
        """
        name = "Ragged[]"
        if isinstance(index, jax.core.Tracer):
            if index.ndim != 1 or not jnp.issubdtype(index.dtype, jnp.integer):
                raise type_error(name, "index", "a slice or an array of integers within jit", describe(index))
            index = index_array(name, "index", index, len(self))
            return self.take(jnp.where(index < 0, index + len(self), index))
        try:
            rows = np.arange(len(self))[_on_host(index) if isinstance(index, jax.Array) else index]
        except (IndexError, ValueError) as error:
            raise IndexError(f"{name}: index: expected one for {len(self)} rows, got {index!r}") from error
        is_known = _is_concrete(self.segments.starts) and _is_concrete(self.segments.ends)
        if rows.ndim > 1 or (rows.ndim == 0 and not is_known):
            expected = "a row, a slice or [k] rows" if is_known else "a slice or [k] rows within jit"
            raise type_error(name, "index", expected, repr(index))
        bounds = (self.segments.starts, self.segments.ends)
        begins, ends = (np.asarray(x)[rows] for x in bounds) if is_known else (0, 0)
        if rows.ndim == 0:
            return jax.tree.map(lambda x: x[begins:ends], self.values)
        return self.take(rows, size=max(self.capacity, int(np.sum(ends - begins))))

    def __bool__(self) -> bool:
        got = f"a Ragged of {len(self)} rows (.values holds its items, and len(rows) is the number of rows)"
        raise type_error("Ragged", "bool", "one truth value", got)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __array__(self, *_: object, **__: object) -> Any:
        return np.asarray(_NoArray())

    def __jax_array__(self) -> Any:
        # A Ragged is no array: operators of `jax.Array` leave the work to ours, and functions raise errors.
        return _NoArray()

    def to_rows(self) -> list[Any]:
        """A list of the rows as NumPy arrays or pytrees of them; not within `jit`. A batch gives a list of lists."""
        if self.segments.starts.ndim > 1:
            return [jax.tree.map(lambda x, i=i: x[i], self).to_rows() for i in range(self.segments.starts.shape[0])]
        values = jax.tree.map(_on_host, self.values)
        return [jax.tree.map(lambda x, b=b, e=e: x[b:e], values) for b, e in _bounds(self.segments)]

    def to_awkward(self) -> Any:
        """The rows as an Awkward Array, dicts and tuples as records; not within `jit`."""
        return to_awkward(
            "Ragged.to_awkward", self.values, np.asarray(self.segments.starts), np.asarray(self.segments.ends)
        )

    def to_arrow(self) -> Any:
        """The rows as a `ListArray` of Arrow, dicts and tuples as structs; not within `jit`."""
        rows = self if _has_offsets(self.segments) else self.take(np.arange(len(self)))
        return to_arrow("Ragged.to_arrow", rows.values, np.asarray(rows.offsets))

    def to_dense(self, width: int, *, fill_value: ArrayLike = 0) -> Any:
        """The rows as arrays `[m, width, …]`: see `to_dense`."""
        return to_dense(self.values, self.segments, width, fill_value=fill_value)

    def __repr__(self) -> str:
        leaves, structure = flatten(self.values)
        bounds = jax.tree.leaves(self.segments)
        if not all(_is_concrete(x) for x in (*leaves, *bounds)) or any(
            x.dtype.kind != "i" or x.ndim > 1 for x in bounds
        ):
            # The leaves are traced, batched, or replaced by JAX.
            shown = _tree_text([describe(leaf) for leaf in leaves], structure)
            return f"Ragged({shown}, {self.segments!r})"
        texts = [f"{_rows_text(_on_host(leaf), _bounds(self.segments))}, {leaf.dtype.name}" for leaf in leaves]
        return f"Ragged({texts[0] if structure == jax.tree.structure(0) else _tree_text(texts, structure)})"

    # ---- Item by item ------------------------------------------------------------------------------------------------

    def with_values(self, values: Pytree) -> Ragged:
        """Other items in the same rows."""
        return Ragged(values, self.segments)

    def astype(self, dtype: DTypeLike) -> Ragged:
        """The items converted to a dtype."""
        expect_item_dtype("Ragged.astype", dtype)
        return self.with_values(jax.tree.map(lambda x: jnp.asarray(x).astype(dtype), self.values))

    def map(self, function: Callable[..., Any]) -> Ragged:
        """The results of a function of one item, item by item."""
        if not callable(function):
            raise type_error("Ragged.map", "function", "a function of one item", describe(function))
        return self.with_values(jax.vmap(function)(self.values))

    def _combine(self, name: str, function: Callable[..., Any], other: Any) -> Any:
        if isinstance(other, Ragged):
            segments = self._common_segments(name, other)
            expected: Any = jax.tree.structure(self.values)
            got: Any = jax.tree.structure(other.values)
            if expected != got:
                raise value_error(name, "other", f"items of one structure, {expected}", got)
            return Ragged(jax.tree.map(function, self.values, other.values), segments)
        if not isinstance(other, (jax.Array, np.ndarray, np.generic, int, float, complex)):
            return NotImplemented
        if is_random_key(as_array(name, "other", other).dtype):
            raise type_error(name, "other", "numbers", describe(other))
        if isinstance(other, (int, float, complex, np.generic)) or other.ndim == 0:
            return self.with_values(jax.tree.map(lambda x: function(x, other), self.values))
        if other.shape[0] != len(self):
            raise value_error(name, "other", f"an entry for each of {len(self)} rows", describe(other))
        # Items past the last row get 1: a division by 0 would make derivatives NaN. Those in gaps get a row's entry.
        items = interval_expand(other, _heads_in_order(self.segments), self.capacity, total=self.count, fill_value=1)

        def with_row(x: jax.Array) -> jax.Array:
            rank = max(x.ndim, items.ndim)
            result: jax.Array = function(*(y.reshape(*y.shape, *[1] * (rank - y.ndim)) for y in (x, items)))
            return result

        return self.with_values(jax.tree.map(with_row, self.values))

    def _common_segments(self, name: str, other: Ragged) -> Segments:
        """Raises unless both have the same rows."""
        ours, theirs = self.segments, other.segments
        if ours is theirs:
            return ours
        if len(self) != len(other) or self.capacity != other.capacity:
            expected = f"{len(self)} rows and room for {self.capacity} items"
            raise value_error(name, "other", expected, f"{len(other)} and {other.capacity}")
        if not all(_is_concrete(x) for x in jax.tree.leaves((ours, theirs))):
            return Segments.of(
                *same_rows(name, *map(jnp.asarray, (ours.starts, ours.ends, theirs.starts, theirs.ends)))
            )
        starts, other_starts, ends, other_ends = map(  # within jit, results of jnp are traced
            np.asarray, (ours.starts, theirs.starts, ours.ends, theirs.ends)
        )
        lengths, other_lengths = np.maximum(ends - starts, 0), np.maximum(other_ends - other_starts, 0)
        for row in np.flatnonzero(lengths != other_lengths):
            expected = f"rows of the same lengths, {lengths[row]} items in row {row}"
            raise value_error(name, "other", expected, int(other_lengths[row]))
        for row in np.flatnonzero((starts != other_starts) & (lengths > 0)):
            expected = f"rows that start at the same places, {starts[row]} in row {row}"
            raise value_error(name, "other", expected, int(other_starts[row]))
        return ours

    __add__, __radd__ = _binaries("+", operator.add)
    __sub__, __rsub__ = _binaries("-", operator.sub)
    __mul__, __rmul__ = _binaries("*", operator.mul)
    __truediv__, __rtruediv__ = _binaries("/", operator.truediv)
    __floordiv__, __rfloordiv__ = _binaries("//", operator.floordiv)
    __mod__, __rmod__ = _binaries("%", operator.mod)
    __pow__, __rpow__ = _binaries("**", operator.pow)
    __and__, __rand__ = _binaries("&", operator.and_)
    __or__, __ror__ = _binaries("|", operator.or_)
    __xor__, __rxor__ = _binaries("^", operator.xor)
    __lt__, __gt__ = _binary("<", operator.lt), _binary(">", operator.gt)
    __le__, __ge__ = _binary("<=", operator.le), _binary(">=", operator.ge)
    __neg__, __abs__, __invert__ = _unary(operator.neg), _unary(operator.abs), _unary(operator.invert)
    __hash__ = None  # type: ignore[assignment]  # as an array: == compares items
    __array_priority__ = 1000  # a NumPy array on the left leaves the operator to us

    def __eq__(self, other: object) -> Ragged:  # type: ignore[override]
        result: Ragged = self._combine("Ragged ==", operator.eq, other)
        return result

    def __ne__(self, other: object) -> Ragged:  # type: ignore[override]
        result: Ragged = self._combine("Ragged !=", operator.ne, other)
        return result

    # ---- Row by row --------------------------------------------------------------------------------------------------

    def sort(self, *, descending: bool = False) -> Ragged:
        """Each row sorted: see `segmented_sort`."""
        return self.with_values(segmented_sort(self._array("sort"), self.segments, descending=descending))

    def argsort(self, *, descending: bool = False) -> Ragged:
        """The order that sorts each row, stable: positions that count from the start of the row."""
        indices = segmented_sort_indices(self._array("argsort"), self.segments, descending=descending)[1]
        return self.with_values(indices) - self.heads.astype(indices.dtype)

    def top_k(self, k: int, *, largest: bool = True) -> TopK:
        """The k largest items of each row, or the smallest ones: see `segmented_top_k`."""
        return segmented_top_k(self._array("top_k"), self.segments, k, largest=largest)

    def quantile(self, q: ArrayLike) -> jax.Array:
        """Quantiles of each row, `[…, m]`: see `segmented_quantile`."""
        return segmented_quantile(self._array("quantile"), self.segments, q)

    def reduce(self, op: OperatorTree | PairFunction = "add", **options: Any) -> Any:
        """The combination of each row, `[m]`: see `segmented_reduce`."""
        return segmented_reduce(self.values, self.segments, op, **options)

    def sum(self) -> Any:
        """The sum of each row, `[m]`."""
        return self.reduce("sum")

    def mean(self) -> Any:
        """The mean of each row, `[m]`; NaN for an empty one."""
        return self.reduce("mean")

    def max(self) -> Any:
        """The largest item of each row, `[m]`; for an empty row, the smallest value of the dtype."""
        return self.reduce("max")

    def min(self) -> Any:
        """The smallest item of each row, `[m]`; for an empty row, the largest value of the dtype."""
        return self.reduce("min")

    def scan(self, op: OperatorTree | PairFunction = "add", **options: Any) -> Ragged:
        """Each row scanned: see `segmented_scan`."""
        return self.with_values(segmented_scan(self.values, self.segments, op, **options))

    def softmax(self) -> Ragged:
        """The softmax of each row: see `segmented_softmax`."""
        return self.with_values(segmented_softmax(self._array("softmax"), self.segments))

    def log_softmax(self) -> Ragged:
        """The logarithm of the softmax of each row: see `segmented_log_softmax`."""
        return self.with_values(segmented_log_softmax(self._array("log_softmax"), self.segments))

    def unique(self) -> Ragged:
        """The distinct items of each row in ascending order."""
        ordered = segmented_sort(self._array("unique"), self.segments)
        runs = run_starts(ordered, self.segments)
        return Ragged(take_or_fill(ordered, runs.starts, unique=True), jnp.append(runs.heads, runs.count))

    def take(self, order: Integers, *, size: int | None = None) -> Ragged:
        """Rows in another order, repeated or left out: see `take_segments`. `size` is the capacity of the result."""
        size = self.capacity if size is None else size
        values, heads, count = take_segments(self.values, self.segments, order, size=size)
        return Ragged(values, jnp.minimum(jnp.append(heads, count), size))

    def select(self, keep: Ragged | ArrayLike, *, size: int | None = None) -> Ragged:
        """The items where a mask is set, in their rows. `keep` is a Ragged of bools, or `bool[capacity]`."""
        name, segments = "Ragged.select", self.segments
        if isinstance(keep, Ragged):
            segments, keep = self._common_segments(name, keep), keep.values
        keep = expect_mask(name, "keep", keep)
        if keep.shape[0] != self.capacity:
            raise value_error(name, "keep", f"one bool for each of {self.capacity} items", describe(keep))
        size = self.capacity if size is None else static_size(name, "size", size)
        leaves, structure = flatten(self.values)
        keep = keep & (segment_ids(segments, self.capacity) >= 0)
        kept, total = select_rows(name, leaves, keep, size, 0, ABSENT)
        offsets = jnp.append(take_or_fill(ranks(keep, ABSENT), _heads_in_order(segments), total[None]), total)
        return Ragged(structure.unflatten(kept), jnp.minimum(offsets, size))

    def _array(self, method: str) -> jax.Array:
        if not _is_array(self.values):
            raise type_error(f"Ragged.{method}", "values", "one array", jax.tree.structure(self.values))
        result: jax.Array = self.values
        return result


class _NoArray:
    """What JAX gets when it asks a Ragged for an array."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "a Ragged (.map(function) applies a function to its items; .values and .to_dense(width) are arrays)"

    def __array__(self, *_: object, **__: object) -> Any:
        raise type_error("Ragged", "conversion", "an array", repr(self))


def _is_array(x: object) -> bool:
    return isinstance(x, (jax.Array, np.ndarray))


def _is_concrete(x: object) -> bool:
    """Whether values are known here."""
    return _is_array(x) and not isinstance(x, jax.core.Tracer)


def _on_host(x: jax.Array | np.ndarray) -> np.ndarray:
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


def _items(name: str, values: Pytree) -> tuple[Any, int]:
    leaves, structure = flatten(values)
    if not leaves:
        raise value_error(name, "values", "an array or a pytree of arrays", "no array")
    first = as_array(name, "values", leaves[0])
    if first.ndim == 0:
        raise value_error(name, "values", "arrays with a leading axis", describe(first))
    capacity = first.shape[0]
    return structure.unflatten(expect_leading_axis(name, "values", leaves, capacity, "the first array")), capacity


def _listed(name: str, rows: Iterable[Any]) -> list[Any]:
    try:
        rows = list(rows)
    except TypeError as error:
        raise type_error(name, "rows", "a list of rows", describe(rows)) from error
    for leaf in jax.tree.leaves(rows):
        if isinstance(leaf, jax.core.Tracer):
            raise type_error(name, "rows", "known values, outside of jit", f"a traced {describe(leaf)}")
    return rows


def _expect_lengths(name: str, lengths: Integers, capacity: int) -> None:
    """Checks lengths that the host knows: they are not negative, and sum up to at most the number of items."""
    host = known_integers(lengths)
    if host is None or not isinstance(capacity, int):  # the capacity may be a symbol of an exported program
        return
    ends = np.cumsum(np.where(host > capacity, np.int64(capacity + 1), host), dtype=np.int64)
    broken = np.flatnonzero((host < 0) | (ends > capacity))
    if broken.size:
        row = int(broken[0])
        left = capacity - int(ends[row - 1] if row else 0)
        expected = f"row {row} to have between 0 and {left} items, as only {left} are left"
        raise value_error(name, "lengths", expected, int(host[row]))


def _expect_ends(name: str, offsets: Integers, capacity: int) -> None:
    """Checks offsets that the host knows: they are in order, from 0 to at most the number of items."""
    host = known_integers(offsets)
    if host is None or not isinstance(capacity, int):  # the capacity may be a symbol of an exported program
        return
    ends = host.astype(np.int64)
    if ends[0] != 0:
        raise value_error(name, "offsets", "row 0 to start at 0 (Ragged.from_lengths takes lengths)", int(ends[0]))
    broken = np.flatnonzero((ends[1:] < ends[:-1]) | (ends[1:] > capacity))
    if broken.size:
        row = int(broken[0])
        expected = f"row {row} to end between its start, {ends[row]}, and the number of items, {capacity}"
        raise value_error(name, "offsets", expected, int(ends[row + 1]))


def _has_offsets(segments: Segments) -> bool:
    """Whether rows begin at 0 without gaps."""
    ends = np.asarray(segments.ends)
    return np.array_equal(np.asarray(segments.starts), np.append(0, ends)[: len(ends)])


def _heads_in_order(segments: Segments) -> jax.Array:
    """Returns where rows start; an empty row within another one is moved to the end of that row."""
    return heads_of_bounds(jnp.asarray(segments.starts), jnp.asarray(segments.ends))[::2]


def _bounds(segments: Segments) -> list[tuple[int, int]]:
    return list(zip(np.asarray(segments.starts).tolist(), np.asarray(segments.ends).tolist(), strict=True))


def _rows_text(values: np.ndarray, bounds: Sequence[tuple[int, int]]) -> str:
    """Returns rows as nested lists; if there are many, the middle ones are left out."""
    m = len(bounds)
    shown = [*range(m)] if m <= 2 * SHOWN else [*range(SHOWN), -1, *range(m - SHOWN, m)]
    options: dict[str, Any] = {"separator": ", ", "threshold": 2 * SHOWN, "edgeitems": SHOWN, "max_line_width": 10_000}
    texts = {i: np.array2string(values[slice(*bounds[i])], **options) for i in shown if i >= 0}
    rows = [re.sub(r"(?<=\[)\s+|\s+(?=[],])", "", " ".join(texts[i].split())) if i >= 0 else "..." for i in shown]
    return f"[{', '.join(rows)}]"


def _tree_text(texts: Sequence[str], structure: PyTreeDef) -> str:
    """Returns the text of a pytree with these texts in place of its leaves."""
    return str(structure.unflatten([_Text(text) for text in texts]))


class _Text(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
