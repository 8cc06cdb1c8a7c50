"""Sparse matrices in compressed rows (CSR), on the functions of segments."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import ArrayLike, DTypeLike, Operands
from jax_mgpu._src.arguments.check import (
    KEY_DTYPES,
    NUMBERS,
    as_array,
    describe,
    expect_item_dtype,
    index_dtype,
    index_vector,
    known_integers,
    static_size,
    type_error,
    value_error,
)
from jax_mgpu._src.arguments.preconditions import by_construction, room, row_offsets
from jax_mgpu._src.core.compat import whole_axes
from jax_mgpu._src.core.operation import ABSENT, Operation, jit_eager
from jax_mgpu._src.functions.operators import accumulator_dtype, sum_dtype
from jax_mgpu._src.functions.recurrence import product, weighted
from jax_mgpu._src.ops.gather import gather
from jax_mgpu._src.ops.gathered_rows import weighted_rows
from jax_mgpu._src.ops.groups import group_by
from jax_mgpu._src.ops.ragged import segment_ids
from jax_mgpu._src.ops.reduce import segmented_reduce
from jax_mgpu._src.ops.reduce_by_id import _order_of_ids, reduce_by_id
from jax_mgpu._src.ops.scan import scan
from jax_mgpu._src.ops.select import inverse_permutation, select_indices
from jax_mgpu._src.ops.sorted_search import sorted_search
from jax_mgpu._src.ops.sparse_product import pattern_of_product, product_on_pattern

__all__ = ["Csr", "sddmm"]


@jax.tree_util.register_pytree_with_keys_class
class Csr:
    """A sparse matrix in compressed rows, a pytree of values, columns, and starts of rows.

    Methods call functions of this package, so a matrix works in `jit`, `vmap`, `grad` and `scan`. Derivatives are by
    the values and by dense operands; `jax.grad` by a matrix needs `allow_int=True`, because columns are integers.
    Results have the same bits in every run.

    Args:
      values: `[capacity]`, numbers. Values past the last entry are padding, without a meaning.
      indices: `[capacity]`, integers: the column of each entry. An entry with a column out of range does not count.
      offsets: `[rows + 1]`, non-decreasing integers from 0: where each row starts, and the number of entries.
      shape: `(rows, columns)`.

    Raises:
      TypeError: values are not numbers, or indices or offsets not integers.
      ValueError: an argument's shape is not one of the above, or offsets that are not a `jax.Array` are not in order.

    Attributes:
      values: the values of the entries.
      indices: their columns.
      offsets: where each row starts, and the number of entries.
      shape: the numbers of rows and columns.

    `A @ x` takes vectors `[columns]` and matrices `[columns, k]`, `x @ A` vectors `[rows]` and matrices `[k, rows]`. `A
    + B`, `A - B`, `-A`, `s * A` and `A / s` are matrices, for scalars s. Methods that make new entries return them with
    ascending columns within each row. If a `size` is too small for all entries, `count` is their true number, and the
    first ones are kept.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> A = mgpu.Csr.from_coo([2, 0, 2, 0], [1, 3, 1, 0], jnp.array([1.0, 2.0, 3.0, 4.0]), shape=(3, 4))
      >>> A
      Csr(3 x 4, 3 entries, room for 4, float32)
      >>> A @ jnp.array([1.0, 10.0, 100.0, 1000.0])
      Array([2004.,    0.,   40.], dtype=float32)
      >>> A.T.todense()
      Array([[4., 0., 0.],
             [0., 0., 4.],
             [0., 0., 0.],
             [2., 0., 0.]], dtype=float32)
    """

    values: jax.Array
    indices: jax.Array
    offsets: jax.Array
    shape: tuple[int, int]
    _transposed: tuple[jax.Array, jax.Array, jax.Array, jax.Array] | None

    __hash__ = None  # type: ignore[assignment]  # as an array
    __array_ufunc__ = None  # a NumPy array on the left leaves the operator to us

    def __init__(self, values: ArrayLike, indices: ArrayLike, offsets: ArrayLike, shape: Sequence[int]):
        name = "Csr"
        self.shape = _shape(name, shape)
        self.values = _numbers(name, "values", values)
        capacity = self.values.shape[0]
        self.indices = index_vector(name, "indices", indices, self.shape[1])
        if self.indices.shape != self.values.shape:
            raise value_error(name, "indices", f"the length of values, {capacity}", describe(self.indices))
        _expect_offsets(name, offsets, capacity)
        offsets = index_vector(name, "offsets", offsets, capacity)
        if offsets.shape[0] != self.shape[0] + 1:
            raise value_error(name, "offsets", f"{self.shape[0] + 1} of them, one more than rows", describe(offsets))
        self.offsets = row_offsets(name, offsets, capacity).astype(index_dtype(name, "values", capacity))
        self._transposed = None

    # ---- A pytree ----------------------------------------------------------------------------------------------------

    def tree_flatten_with_keys(self) -> tuple[Any, tuple[int, int]]:
        """Returns its children with names, for JAX."""
        children, shape = self.tree_flatten()
        names = ("values", "indices", "offsets", "_transposed")
        return tuple(zip(map(jax.tree_util.GetAttrKey, names), children, strict=True)), shape

    def tree_flatten(self) -> tuple[Any, tuple[int, int]]:
        """Returns its children, and its shape, for JAX."""
        return (self.values, self.indices, self.offsets, self._transposed), self.shape

    @classmethod
    def tree_unflatten(cls, shape: tuple[int, int], children: Sequence[Any]) -> Csr:
        """Returns a matrix of children that JAX may have replaced by anything."""
        made = object.__new__(cls)
        made.values, made.indices, made.offsets, made._transposed = children
        made.shape = shape
        return made

    # ---- Constructors ------------------------------------------------------------------------------------------------

    @classmethod
    def from_coo(
        cls, rows: ArrayLike, columns: ArrayLike, values: ArrayLike, *, shape: Sequence[int], size: int | None = None
    ) -> Csr:
        """Returns the matrix of entries in any order; entries at the same place are added up in order.

        An entry outside of the shape, also at a negative place, is dropped; zeros are entries like others. There is
        room for `size` entries (default as many as values).
        """
        name = "Csr.from_coo"
        m, n = _shape(name, shape)
        values = _numbers(name, "values", values)
        rows, columns = index_vector(name, "rows", rows, m), index_vector(name, "columns", columns, n)
        for argument, given in (("rows", rows), ("columns", columns)):
            if given.shape != values.shape:
                raise value_error(name, argument, f"the length of values, {values.shape[0]}", describe(given))
        size = values.shape[0] if size is None else static_size(name, "size", size)
        is_inside = (rows >= 0) & (rows < m) & (columns >= 0) & (columns < n)
        # Entries outside of the shape go to an extra last row.
        places = jnp.where(is_inside, rows, m).astype(jnp.int32), jnp.where(is_inside, columns, 0).astype(jnp.int32)
        dtype = index_dtype(name, "values", size)
        with by_construction():
            (kept_rows, kept_columns), sums, found = group_by(places, values, size=size + 1)
            needles = jnp.arange(m + 1, dtype=jnp.int32)
            offsets = sorted_search(needles, kept_rows, haystack_count=jnp.minimum(found, size + 1))
        number = found.astype(dtype) - jnp.any(~is_inside).astype(dtype)
        offsets = jnp.minimum(offsets, size).astype(dtype).at[-1].set(number)
        offsets = offsets.at[-1].set(room(name, offsets[-1], size))
        return _made(sums[:size].astype(values.dtype), kept_columns[:size], offsets, (m, n))

    @classmethod
    def from_dense(cls, x: ArrayLike, *, size: int | None = None) -> Csr:
        """The nonzero items of a matrix. Within `jit` it needs `size`, the room for entries. Zeros get no gradient."""
        name = "Csr.from_dense"
        x = as_array(name, "x", x)
        if x.ndim != 2:
            raise value_error(name, "x", "a matrix", describe(x))
        m, n = x.shape
        kept = x != 0
        if size is None:
            if isinstance(x, jax.core.Tracer):
                raise value_error(name, "size", "the largest number of entries, within jit", "None")
            size = int(kept.sum())
        dtype = index_dtype(name, "x", x.size)
        with by_construction():
            places, _ = select_indices(kept.reshape(-1), size=size, fill_value=-1)
        offsets = jnp.concatenate([jnp.zeros((1,), dtype), scan(kept.sum(axis=1, dtype=dtype))])
        offsets = offsets.at[-1].set(room(name, offsets[-1], size))
        values = gather(_numbers(name, "x", x.reshape(-1)), places, unique=True)
        return _made(values, jnp.where(places < 0, 0, places % max(n, 1)), offsets, (m, n))

    @classmethod
    def from_bcoo(cls, x: Any, *, size: int | None = None) -> Csr:
        """Returns the matrix of a `jax.experimental.sparse.BCOO` with two sparse axes: see `from_coo`."""
        name = "Csr.from_bcoo"
        if not isinstance(x, _jax_sparse().BCOO):
            raise type_error(name, "x", "a jax.experimental.sparse.BCOO", describe(x))
        if x.n_batch or x.n_dense or len(x.shape) != 2:
            got = f"shape {x.shape}, {x.n_batch} of a batch and {x.n_dense} dense"
            raise value_error(name, "x", "two sparse axes", got)
        return cls.from_coo(x.indices[:, 0], x.indices[:, 1], x.data, shape=x.shape, size=size)

    @classmethod
    def from_scipy(cls, x: Any) -> Csr:
        """Returns the matrix of a sparse matrix or array of SciPy, of any format; not within `jit`."""
        if not hasattr(x, "tocsr"):
            raise type_error("Csr.from_scipy", "x", "a sparse matrix or array of SciPy", describe(x))
        rows = x.tocsr(copy=True)
        rows.sum_duplicates()  # sorts columns too
        return cls(jnp.asarray(rows.data), rows.indices, rows.indptr, rows.shape)

    def to_bcoo(self) -> Any:
        """Returns the matrix as a `jax.experimental.sparse.BCOO`, whose padding has indices outside of the shape."""
        rows, is_entry = self.rows, self._entries()
        places = [jnp.where(is_entry, x, size) for x, size in zip((rows, self.indices), self.shape, strict=True)]
        values = jnp.where(is_entry, self.values, 0)
        return _jax_sparse().BCOO((values, jnp.stack(places, axis=1)), shape=self.shape)

    def to_scipy(self) -> Any:
        """Returns the matrix as a `scipy.sparse.csr_matrix`; not within `jit`."""
        live = int(self.count)
        if live > self.capacity:
            raise value_error(
                "Csr.to_scipy",
                "size",
                f"room for all {live} entries where the matrix was made",
                self.capacity,
            )
        kept = np.asarray(self._entries())[:live]  # SciPy trusts columns, also those outside of the shape
        values, columns, rows = (np.asarray(x)[:live][kept] for x in (self.values, self.indices, self.rows))
        parts = values, columns, np.append(0, np.cumsum(np.bincount(rows, minlength=self.shape[0])))
        return importlib.import_module("scipy.sparse").csr_matrix(parts, shape=self.shape)

    def todense(self) -> jax.Array:
        """Returns the matrix as an array `[rows, columns]`."""
        m, n = self.shape
        if not m * n:  # JAX 0.11 cannot reshape such arrays in a batch over an Explicit axis
            return jnp.zeros((m, n), self.dtype)
        places = jnp.where(self._entries(), self.rows.astype(index_dtype("Csr.todense", "shape", m * n)) * n, -1)
        places = jnp.where(places < 0, -1, places + self.indices)
        values = self.values.astype(jnp.int32) if self.values.dtype == jnp.bool_ else self.values
        result: jax.Array = reduce_by_id(values, places, m * n).reshape(m, n).astype(self.dtype)
        return result

    # ---- Properties --------------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """The static number of entries that there is room for."""
        return self.values.shape[0]

    @property
    def count(self) -> jax.Array:
        """The number of entries, a scalar, which exceeds the capacity if a `size` was too small."""
        return self._whole_offsets[-1]

    @property
    def dtype(self) -> np.dtype:
        """The type of the values."""
        return self.values.dtype

    @property
    def rows(self) -> jax.Array:
        """`[capacity]`: the row of each entry, -1 past the last one."""
        heads = self._whole_offsets[:-1]
        return segment_ids(heads, self.capacity, count=jnp.minimum(self.count, self.capacity))

    @property
    def _whole_offsets(self) -> jax.Array:
        """The offsets, not sharded over Explicit axes: JAX cuts no item off a sharded axis."""
        return whole_axes(self.offsets)

    @property
    def T(self) -> Csr:
        """The transposed matrix, in compressed rows too. It sorts the entries, unless `with_transpose` did."""
        if self._transposed is None:
            order, rows, offsets = self._transpose()
            return _made(gather(self.values, order, unique=True, inside=True), rows, offsets, self.shape[::-1])
        order, back, rows, offsets = self._transposed
        transposed = back, order, self.indices, self.offsets
        return _made(_permuted(self.values, order, back), rows, offsets, self.shape[::-1], transposed)

    def with_transpose(self) -> Csr:
        """Returns the matrix with its transpose's order, so that derivatives of `A @ x` and `sddmm` need no sort."""
        order, rows, offsets = self._transpose()
        with by_construction():
            back = inverse_permutation(order).astype(order.dtype)
        return self._with(self.values, (order, back, rows, offsets))

    def with_values(self, values: ArrayLike) -> Csr:
        """Returns the matrix with other values at the same places."""
        values = _numbers("Csr.with_values", "values", values)
        if values.shape != self.values.shape:
            raise value_error("Csr.with_values", "values", f"{self.capacity}", describe(values))
        return self._with(values, self._transposed)

    def astype(self, dtype: DTypeLike) -> Csr:
        """Returns the matrix with its values converted to another type."""
        expect_item_dtype("Csr.astype", dtype)
        return self.with_values(self.values.astype(dtype))

    def __repr__(self) -> str:
        m, n = self.shape
        known = all(isinstance(x, (jax.Array, np.ndarray)) for x in (self.values, self.offsets))
        if not known or isinstance(self.offsets, jax.core.Tracer) or self.offsets.ndim != 1:
            return f"Csr({m} x {n}, values={describe(self.values)})"
        return f"Csr({m} x {n}, {int(self.count)} entries, room for {self.capacity}, {self.dtype.name})"

    @property
    def _pattern(self) -> tuple[jax.Array, ...]:
        """The operands PATTERN of a matrix whose transpose is known."""
        assert self._transposed is not None
        return self.indices, self._whole_offsets, *self._transposed

    def _with(self, values: jax.Array, transposed: Any) -> Csr:
        return _made(values, self.indices, self.offsets, self.shape, transposed)

    def _entries(self) -> jax.Array:
        """Returns which places hold entries."""
        return (self.rows >= 0) & (self.indices >= 0) & (self.indices < self.shape[1])

    def _transpose(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns the entries in the order of their columns, their rows, and where columns start."""
        columns = jnp.where(self._entries(), self.indices, -1)
        order, offsets = _order_of_ids(columns, ABSENT, self.shape[1])
        return order, gather(self.rows, order, inside=True), offsets.astype(self.offsets.dtype)

    # ---- Products ----------------------------------------------------------------------------------------------------

    def __matmul__(self, x: ArrayLike) -> jax.Array:
        name = "Csr @"
        if isinstance(x, Csr):
            raise type_error(name, "x", "an array (A.matmul(B, size=) multiplies sparse matrices)", "a Csr")
        x = _numbers(name, "x", x, None)
        if x.ndim not in (1, 2) or x.shape[0] != self.shape[1]:
            n = self.shape[1]
            raise value_error(name, "x", f"a vector [{n}] or a matrix [{n}, k]", describe(x))
        if self._transposed is None:
            count = jnp.minimum(self.count, self.capacity)
            return segmented_reduce(x, self._whole_offsets[:-1], indices=self.indices, weights=self.values, count=count)
        dtype = _product_dtype(self.values, x)
        x, values = x.astype(dtype), self.values.astype(dtype)
        result = _product.run([x if x.ndim == 2 else x[:, None], values, *self._pattern])[0]
        return result.reshape(result.shape[0], *x.shape[1:])

    def __rmatmul__(self, x: ArrayLike) -> jax.Array:
        name = "@ Csr"
        x = _numbers(name, "x", x, None)
        m, n = self.shape
        if x.ndim not in (1, 2) or x.shape[-1] != m:
            raise value_error(name, "x", f"a vector [{m}] or a matrix [k, {m}]", describe(x))
        dtype = accumulator_dtype(_product_dtype(self.values, x))
        rows = self.rows
        taken = gather(x.T.astype(dtype), rows)
        values = self.values.astype(dtype).reshape(-1, *[1] * (x.ndim - 1))
        taken = product(taken, jnp.broadcast_to(values, taken.shape))
        sums = reduce_by_id(taken, jnp.where(rows >= 0, self.indices, -1), n)
        result: jax.Array = sums.T.astype(_product_dtype(self.values, x))
        return result

    def matmul(self, other: Csr, *, size: int) -> Csr:
        """The product of two sparse matrices, with room for `size` entries. No row of `self` may repeat a column.

        Without `jax_enable_x64`, fewer than 2^31 pairs of entries may be multiplied.
        """
        name = "Csr.matmul"
        if not isinstance(other, Csr):
            raise type_error(name, "other", "a Csr (A @ x multiplies by arrays)", describe(other))
        if self.shape[1] != other.shape[0]:
            raise value_error(name, "other", f"{self.shape[1]} rows", other.shape[0])
        size = static_size(name, "size", size)
        index_dtype(name, "size", size)
        a, b = ((x.indices, x._whole_offsets, x.rows) for x in (self, other))
        shape = self.shape[0], other.shape[1]
        dtype = _product_dtype(self.values, other.values)
        with by_construction():
            pattern = columns, offsets = pattern_of_product(a, b, shape, size)
            values = product_on_pattern(self.values.astype(dtype), other.values.astype(dtype), a, b, pattern)
        return _made(values, columns, offsets.at[-1].set(room(name, offsets[-1], size)), shape)

    # ---- Arithmetic --------------------------------------------------------------------------------------------------

    def __add__(self, other: Csr) -> Csr:
        return self._sum("Csr +", other, operator.pos)

    def __sub__(self, other: Csr) -> Csr:
        return self._sum("Csr -", other, _negative)

    def _sum(self, name: str, other: Csr, sign: Callable[[Any], Any]) -> Csr:
        if not isinstance(other, Csr):
            raise type_error(name, "other", "a Csr", describe(other))
        if other.shape != self.shape:
            raise value_error(name, "other", f"the shape {self.shape}", other.shape)
        dtype = jnp.result_type(self.values, other.values)
        rows = jnp.concatenate([self.rows, other.rows])
        columns = jnp.concatenate([self.indices, other.indices])
        values = jnp.concatenate([self.values.astype(dtype), sign(other.values.astype(dtype))])
        return Csr.from_coo(rows, columns, values, shape=self.shape)

    def __mul__(self, scale: ArrayLike) -> Csr:
        return self._scaled("Csr *", operator.mul, scale)

    __rmul__ = __mul__

    def __truediv__(self, scale: ArrayLike) -> Csr:
        return self._scaled("Csr /", operator.truediv, scale)

    def __neg__(self) -> Csr:
        return self.with_values(_negative(self.values))

    def _scaled(self, name: str, function: Callable[[Any, Any], Any], scale: ArrayLike) -> Csr:
        if isinstance(scale, Csr) or _numbers(name, "other", scale, None).ndim != 0:
            raise value_error(name, "other", "a scalar", describe(scale))
        return self.with_values(function(self.values, scale))


def _jax_sparse() -> Any:
    """Returns JAX's module of sparse arrays, whose import takes long."""
    return importlib.import_module("jax.experimental.sparse")


def _negative(values: jax.Array) -> jax.Array:
    if values.dtype == jnp.bool_:
        raise type_error("Csr -", "values", "numbers", f"{describe(values)} (.astype converts)")
    return -values


def _made(
    values: jax.Array, indices: jax.Array, offsets: jax.Array, shape: tuple[int, int], transposed: Any = None
) -> Csr:
    """Returns a matrix without checks; the number of entries may exceed the room."""
    return Csr.tree_unflatten(shape, (values, indices, offsets, transposed))


@jit_eager()
def sddmm(A: Csr, x: ArrayLike, y: ArrayLike) -> Csr:
    """Multiplies each entry of a sparse matrix by the dot of a row of x and a row of y.

    Args:
      A: the sparse matrix, `(m, n)`.
      x: `[m, k]`, numbers.
      y: `[n, k]`, numbers.

    Returns: The matrix whose entry `(i, j)` is that of A times the dot of `x[i]` and `y[j]`. Floats are computed in
      float32 or wider; values have the type of all three together.

    Raises:
      TypeError: x or y are not numbers.
      ValueError: an argument's shape is not one of the above.

    Time is O(capacity k). Derivatives by x and y add rows in a fixed order.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> A = mgpu.Csr.from_dense(jnp.array([[1.0, 0.0], [0.0, 2.0]]))
      >>> mgpu.sddmm(A, jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[5.0, 6.0], [7.0, 8.0]])).values
      Array([ 17., 106.], dtype=float32)
    """
    name = "sddmm"
    if not isinstance(A, Csr):
        raise type_error(name, "A", "a Csr", describe(A))
    x, y = (_numbers(name, argument, given, None) for argument, given in (("x", x), ("y", y)))
    for argument, given, length in (("x", x, A.shape[0]), ("y", y, A.shape[1])):
        if given.ndim != 2 or given.shape[0] != length or given.shape[1] != x.shape[-1]:
            k = "k" if argument == "x" else x.shape[1]
            raise value_error(name, argument, f"[{length}, {k}]", describe(given))
    dtype = jnp.result_type(A.values, x, y)
    exact = accumulator_dtype(dtype)
    x, y = x.astype(exact), y.astype(exact)
    if A._transposed is None:
        rows = A.rows
        dots = product(gather(x, rows), gather(y, jnp.where(rows >= 0, A.indices, -1))).sum(axis=1)
    else:
        dots = _dots.run([x, y, *A._pattern], zeroing=False)[0]
    values = jnp.where(A._entries(), A.values, 0)
    return A.with_values(product(values.astype(exact), dots).astype(dtype))


def _shape(name: str, shape: Any) -> tuple[int, int]:
    try:
        m, n = shape
    except (TypeError, ValueError) as error:
        raise value_error(name, "shape", "(rows, columns)", repr(shape)) from error
    m, n = static_size(name, "shape", m), static_size(name, "shape", n)
    index_dtype(name, "shape", max(m, n) + 1)
    return m, n


def _numbers(name: str, argument: str, x: ArrayLike, ndim: int | None = 1) -> jax.Array:
    x = as_array(name, argument, x)
    if x.dtype.name not in KEY_DTYPES and x.dtype != jnp.bool_:
        raise type_error(name, argument, f"{NUMBERS}, or bools", describe(x))
    if ndim is not None and x.ndim != ndim:
        raise value_error(name, argument, "a 1-D array (batches come from jax.vmap)", describe(x))
    return x


def _expect_offsets(name: str, offsets: ArrayLike, capacity: int) -> None:
    """Checks offsets that the host knows: they are in order, from 0 to at most the number of values."""
    host = known_integers(offsets)
    if host is None or not isinstance(capacity, int):  # the capacity may be a symbol of an exported program
        return
    ends = host.astype(np.int64)
    broken = np.flatnonzero(np.diff(ends, prepend=0) < 0)
    if ends[0] != 0 or broken.size or ends[-1] > capacity:
        expected = f"non-decreasing integers that start with 0 and are at most {capacity}"
        raise value_error(name, "offsets", expected, host)


# ---- Matrices whose transpose is known -------------------------------------------------------------------------------

# `order` lists the entries in the order of the transposed matrix, `back` is its inverse, and `rows` and `columns` are
# the transposed matrix's indices and offsets.
PATTERN = {"indices": 1, "offsets": 1, "order": 1, "back": 1, "rows": 1, "columns": 1}


def _of_transposed(indices: Any, offsets: Any, order: Any, back: Any, rows: Any, columns: Any) -> tuple[Any, ...]:
    """Returns the operands PATTERN of the transposed matrix."""
    return rows, columns, back, order, indices, offsets


def _product_dtype(*factors: jax.Array) -> Any:
    """Returns the type of a product, in which narrow integers do not wrap."""
    dtype = jnp.result_type(*factors)
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else sum_dtype(dtype)


def _permuted(values: jax.Array, order: jax.Array, back: jax.Array) -> jax.Array:
    """Returns values in an order; the derivative goes back by the inverse order."""
    if not jnp.issubdtype(values.dtype, jnp.inexact):
        return gather(values, order, inside=True)
    return _permutation(values=values, order=order, back=back)[0]


def _product_by_rows(x: jax.Array, values: jax.Array, indices: jax.Array, offsets: jax.Array) -> Sequence[jax.Array]:
    return [weighted_rows(x, offsets[:-1], indices, values, offsets[-1:])]


def _product_by_x(cotangents: Sequence[Any], operands: Operands) -> jax.Array:
    _, values, *pattern = operands
    values = _permuted(values, operands.order, operands.back)
    return _product.run([cotangents[0], values, *_of_transposed(*pattern)])[0]


def _product_by_values(cotangents: Sequence[Any], operands: Operands) -> jax.Array:
    x, _, *pattern = operands
    return _dots.run([cotangents[0], x, *pattern], zeroing=True)[0]


def _dots_of_entries(
    x: jax.Array, y: jax.Array, indices: jax.Array, back: jax.Array, rows: jax.Array, *, zeroing: int
) -> Sequence[jax.Array]:
    """Returns the dot of a row of x and a row of y for each entry. With `zeroing`, 0 in x times infinity is 0."""
    exact = accumulator_dtype(x.dtype)
    own_rows = gather(rows, back, inside=True)  # -1 past the last entry
    columns = jnp.where(own_rows >= 0, indices, -1)
    x_rows, y_rows = gather(x, own_rows).astype(exact), gather(y, columns).astype(exact)
    products = weighted(y_rows, x_rows) if zeroing else x_rows * y_rows
    return [products.sum(axis=1).astype(x.dtype)]


def _dots_by_x(cotangents: Sequence[Any], operands: Operands, *, zeroing: int) -> jax.Array:
    del zeroing
    _, y, *pattern = operands
    return _product.run([y, cotangents[0], *pattern])[0]


def _dots_by_y(cotangents: Sequence[Any], operands: Operands, *, zeroing: int) -> jax.Array:
    del zeroing
    x, _, *pattern = operands
    values = _permuted(cotangents[0], operands.order, operands.back)
    return _product.run([x, values, *_of_transposed(*pattern)])[0]


_permutation = Operation(
    "permutation",
    operands={"values": 1, "order": 1, "back": 1},
    results=("permuted",),
    shapes=lambda values: [values],
    fallback=lambda values, order: [gather(values, order, unique=True, inside=True)],
    only="",
)
_permutation.def_linear(values=lambda cotangents, given: _permuted(cotangents[0], given.back, given.order))
_product = Operation(
    "csr_product",
    operands={"x": 2, "values": 1, **PATTERN},
    results=("product",),
    shapes=lambda x, offsets: [jax.ShapeDtypeStruct((offsets.shape[0] - 1, x.shape[1]), x.dtype)],
    fallback=_product_by_rows,
    only="",
)
_product.def_linear(x=_product_by_x, values=_product_by_values)
_dots = Operation(
    "csr_dots",
    operands={"x": 2, "y": 2, **PATTERN},
    results=("dots",),
    attributes={"zeroing": bool},
    shapes=lambda x, indices: [jax.ShapeDtypeStruct(indices.shape, x.dtype)],
    fallback=_dots_of_entries,
    only="",
)
_dots.def_linear(x=_dots_by_x, y=_dots_by_y)
