"""The product of two sparse matrices: places of entries, and values.

A term of the product pairs an entry of A with an entry of B, whose row is the column of A's entry. There may be far
more terms than entries of the result, so they are computed a chunk at a time. The values are sums over triples of
entries of A, of B and of the result, and so are the derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import Operands
from jax_mgpu._src.arguments.check import index_dtype
from jax_mgpu._src.arguments.counts import partition_points
from jax_mgpu._src.core.compat import has_64_bits, surely
from jax_mgpu._src.core.operation import Operation
from jax_mgpu._src.functions.operators import accumulator_dtype
from jax_mgpu._src.functions.recurrence import Zeroing, zeroing_product
from jax_mgpu._src.ops.gather import gather
from jax_mgpu._src.ops.reduce_by_id import reduce_by_id
from jax_mgpu._src.ops.scan import scan
from jax_mgpu._src.ops.sort import sort
from jax_mgpu._src.ops.sorted_search import sorted_search

NAME = "Csr.matmul"
MIN_CHUNK = 1024

# A matrix: the column of each entry, the offsets of rows, and the row of each entry.
Structure = Sequence[jax.Array]


def _terms_dtype(entries: int, others: int) -> np.dtype:
    """Returns the dtype of numbers of terms: there may be one for each pair of entries of A and B."""
    many = has_64_bits() and surely(lambda: entries * others > np.iinfo(np.int32).max)
    return np.dtype(np.int64) if many else index_dtype(NAME, "self", entries)


def _before(a: Structure, b: Structure) -> jax.Array:
    """Returns the number of terms before those of each entry of A, followed by the number of all terms."""
    (columns, _, rows), (_, offsets, own) = a, b
    ends = jnp.minimum(offsets, own.shape[0])
    lengths = ends[1:] - ends[:-1]
    dtype = _terms_dtype(columns.shape[0], own.shape[0])
    counts = gather(lengths.astype(dtype), jnp.where(rows >= 0, columns, -1))
    return jnp.concatenate([jnp.zeros((1,), dtype), scan(counts)])


def _chunk(a: Structure, b: Structure, size: int) -> int:
    """Returns the number of terms in a chunk: at least those of any row of A that repeats no column."""
    return max(MIN_CHUNK, a[0].shape[0] + b[0].shape[0], size)


def _entries(
    before: jax.Array, b: Structure, a: Structure, begin: jax.Array, end: jax.Array, room: int
) -> tuple[Any, Any]:
    """Returns the entries of A and of B of some terms; -1 from the end on."""
    places = begin + jnp.arange(room, dtype=before.dtype)
    is_product = places < end
    of_a = sorted_search(places, before, "right") - 1
    of_a = jnp.where(is_product, of_a, -1)
    of_b = gather(b[1], gather(a[0], of_a)).astype(before.dtype) + places - gather(before, of_a)
    return of_a, jnp.where(is_product, of_b, -1).astype(b[1].dtype)


# Operands that describe two matrices without their values.
STRUCTURES = ("a_columns", "a_offsets", "a_rows", "b_columns", "b_offsets", "b_rows")


def pattern_of_product(a: Structure, b: Structure, shape: tuple[int, int], size: int) -> tuple[jax.Array, jax.Array]:
    """Returns the columns of a product's first `size` entries, and the offsets of all."""
    columns, offsets = _pattern.run([*a, *b], n=shape[1], size=size)
    return columns, offsets


def _pattern_shapes(a_offsets: Any, b_columns: Any, a_columns: Any, *, size: int) -> Sequence[Any]:
    dtype = index_dtype(NAME, "self", a_columns.shape[0])
    return [jax.ShapeDtypeStruct((size,), b_columns.dtype), jax.ShapeDtypeStruct(a_offsets.shape, dtype)]


def _pattern_fallback(*operands: jax.Array, n: int, size: int) -> Sequence[jax.Array]:
    a, b, m = operands[:3], operands[3:], operands[1].shape[0] - 1
    before, room = _before(a, b), _chunk(a, b, size)
    of_rows = gather(before, jnp.minimum(a[1], a[0].shape[0]))
    rows_of_a, columns_of_b = a[2], b[0]

    def is_left(state: Any) -> jax.Array:
        return of_rows[state[0]] < before[-1]

    def chunk(state: Any) -> Any:
        """Adds the entries of the next rows: as many whole rows as a chunk holds, and at least one."""
        row, written, columns, counts = state
        begin = of_rows[row]
        after = sorted_search((begin + room)[None], of_rows, "right")[0].astype(row.dtype)
        end_row = jnp.maximum(row + 1, after - 1)
        of_a, of_b = _entries(before, b, a, begin, jnp.minimum(of_rows[end_row], begin + room), room)
        column = gather(columns_of_b, of_b)
        is_inside = (of_b >= 0) & (column >= 0) & (column < n)
        places = jnp.where(is_inside, gather(rows_of_a, of_a), m), jnp.where(is_inside, column, 0)
        rows, found = sort(tuple(x.astype(jnp.int32) for x in places))
        differs = (rows[1:] != rows[:-1]) | (found[1:] != found[:-1])
        is_first = jnp.concatenate([jnp.ones((1,), bool), differs]) & (rows < m)
        ranks = written + jnp.cumsum(is_first, dtype=written.dtype) - 1
        columns = columns.at[jnp.where(is_first, ranks, size)].set(found.astype(columns.dtype), mode="drop")
        counts = counts.at[rows].add(is_first.astype(counts.dtype), mode="drop")
        return end_row, written + jnp.sum(is_first, dtype=written.dtype), columns, counts

    dtype = before.dtype
    nothing = (
        jnp.zeros((), jnp.int32),
        jnp.zeros((), dtype),
        jnp.zeros((size,), columns_of_b.dtype),
        jnp.zeros((m,), dtype),
    )
    _, _, columns, counts = jax.lax.while_loop(is_left, chunk, nothing) if a[0].size and b[0].size and m else nothing
    offsets = jnp.concatenate([jnp.zeros((1,), dtype), scan(counts)])
    index = index_dtype(NAME, "self", a[0].shape[0])
    return columns, jnp.minimum(offsets, np.iinfo(index).max).astype(index)


_pattern = Operation(
    "csr_pattern",
    operands=dict.fromkeys(STRUCTURES, 1),
    results=("columns", "offsets"),
    attributes={"n": int, "size": int},
    shapes=_pattern_shapes,
    fallback=_pattern_fallback,
    only="",
)


def product_on_pattern(
    a_values: jax.Array, b_values: jax.Array, a: Structure, b: Structure, pattern: tuple[jax.Array, jax.Array]
) -> jax.Array:
    """Returns the values of the entries of a product."""
    given: dict[str, Any] = {"target": 2, "size": pattern[0].shape[0], "zeroing": Zeroing.NONE}
    return _triples.run([a_values, b_values, *a, *b, *pattern], **given)[0]


def _fallback(*operands: jax.Array, target: int, size: int, zeroing: int) -> Sequence[jax.Array]:
    x, y, *structures, columns, offsets = operands
    a, b = structures[:3], structures[3:]
    dtype = x.dtype
    exact = accumulator_dtype(dtype)
    if not x.size or not y.size or not size:
        return [jnp.zeros((size,), dtype)]
    before, entries = _before(a, b), columns.shape[0]
    room = _chunk(a, b, entries)
    x, y = x.astype(exact), y.astype(exact)

    def chunk(state: Any) -> Any:
        begin, sums = state
        of_a, of_b = _entries(before, b, a, begin, before[-1], room)
        row, column = gather(a[2], of_a), gather(b[0], of_b)
        low, high = (jnp.minimum(gather(part, row), entries) for part in (offsets[:-1], offsets[1:]))
        of_c = partition_points(low, high, entries, lambda at: gather(columns, at) < column)
        found = (of_b >= 0) & (of_c < high) & (gather(columns, of_c) == column)
        ids = [of_a, of_b, jnp.where(found, of_c, -1)]
        own = jnp.where(found, ids.pop(target), -1)
        terms = zeroing_product(gather(x, ids[0]), gather(y, ids[1]), zeroing)
        return begin + room, sums + reduce_by_id(terms, own, size)

    nothing = jnp.zeros((), before.dtype), jnp.zeros((size,), exact)
    return [jax.lax.while_loop(lambda state: state[0] < before[-1], chunk, nothing)[1].astype(dtype)]


def _transpose(by: int) -> Any:
    def rule(cotangents: Sequence[Any], operands: Operands, *, target: int, size: int, zeroing: int) -> jax.Array:
        """Returns, for each entry of the operand, the sum of the cotangent times the other operand over its triples."""
        del size, zeroing
        x, y, *structure = operands
        others = [i for i in range(3) if i != target]
        mine, other = others[by], others[1 - by]
        pair = sorted([(target, cotangents[0]), (other, (x, y)[1 - by])], key=lambda one: one[0])
        like = (x, y)[by]
        given: dict[str, Any] = {"target": mine, "size": like.shape[0]}
        given["zeroing"] = Zeroing.FIRST if target < other else Zeroing.SECOND
        return _triples.run([pair[0][1], pair[1][1], *structure], **given)[0]

    return rule


# Sums over all terms: the values of x and y at two of the three entries (of A, B and the result) are multiplied, and
# added up by the third. In a derivative, one of x and y is a cotangent.
_triples = Operation(
    "csr_triples",
    operands=dict.fromkeys(("x", "y", *STRUCTURES, "columns", "offsets"), 1),
    results=("sums",),
    attributes={"target": int, "size": int, "zeroing": Zeroing},
    shapes=lambda x, size: [jax.ShapeDtypeStruct((size,), x.dtype)],
    fallback=_fallback,
    only="",
)
_triples.def_linear(x=_transpose(0), y=_transpose(1))
