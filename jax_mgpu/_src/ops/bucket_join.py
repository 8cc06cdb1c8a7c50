"""Joins of long tables by buckets: a GPU pairs a bucket's rows in shared memory, without sorting the keys.

A bijection mixes keys, as codes of 32 bits, and rows are partitioned by the highest bits of the mixed codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.annotations import Aval
from jax_mgpu._src.arguments.counts import live_items, partition_points
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.core.compat import is_local, stack
from jax_mgpu._src.core.library import cpu_library
from jax_mgpu._src.core.operation import ABSENT, REGISTRY, Operation
from jax_mgpu._src.functions.operators import Kind
from jax_mgpu._src.keys.columns import Columns
from jax_mgpu._src.ops.scan import _scan
from jax_mgpu._src.ops.sort_strategy import is_long_permutation, partitioned

# kBucketCapacity and kBucketChunk of ffi/ops/bucket_join/operands.h.
CAPACITY: int = cpu_library.tile_sizes()["bucket_capacity"][0]
CHUNK: int = cpu_library.tile_sizes()["bucket_chunk"][0]
CODE_BITS = 32
# With these odd numbers, consecutive keys, multiples and floats filled buckets as evenly as random codes did.
MULTIPLIERS = (0xD9A297DB, 0xCFA391A9)


class Partition(NamedTuple):
    """A table's rows by bucket.

    Attributes:
      codes: mixed codes, bucket after bucket.
      rows: each code's row.
      bounds: where buckets begin, and where the last one ends.
    """

    codes: jax.Array
    rows: jax.Array
    bounds: jax.Array

    @property
    def sizes(self) -> jax.Array:
        """The number of rows in the buckets."""
        return self.bounds[1:] - self.bounds[:-1]

    @property
    def fits(self) -> jax.Array:
        """Whether no bucket is longer than the kernels' tables."""
        return jnp.max(self.sizes) <= CAPACITY


class BucketTables(NamedTuple):
    """Two tables, with mixed codes as keys.

    Attributes:
      codes: mixed codes of both.
      counts: live counts as operands.
      rows: the row of each code; None if that is the position of the code.
    """

    codes: tuple[jax.Array, jax.Array]
    counts: tuple[Any, Any]
    rows: tuple[jax.Array | None, jax.Array | None] = (None, None)

    @property
    def lengths(self) -> tuple[int, int]:
        """The lengths of both tables."""
        a, b = self.codes
        return a.shape[0], b.shape[0]

    @property
    def bits(self) -> int:
        """The bits of a bucket's number: the mean bucket of b fills at most half of a kernel's table."""
        return ((self.lengths[1] - 1) // (CAPACITY // 2)).bit_length()

    def others(self) -> Partition:
        """Returns the partition of b."""
        return self._partition(1)

    def joined(self, others: Partition, size: int, keep_a: bool) -> list[jax.Array]:
        """Returns the pairs of rows, as kernels give them, and their number."""
        rows = self._partition(0)
        extra = jnp.maximum((rows.sizes - 1) // CHUNK, 0)
        extra = _scan(x=extra, op=Kind.ADD, exclusive=False, reverse=False, total=False)[0]
        extra = jnp.concatenate([jnp.zeros_like(extra[:1]), extra])
        return _bucket_join(
            a_codes=rows.codes, a_rows=rows.rows, b_codes=others.codes, b_rows=others.rows,
            a_bounds=rows.bounds, b_bounds=others.bounds, extra_chunks=extra, size=size, keep_a=keep_a,
        )  # fmt: skip

    def _partition(self, side: int) -> Partition:
        codes, count, rows, bits = self.codes[side], self.counts[side], self.rows[side], self.bits
        (n,) = codes.shape
        live = live_items(n, count, jnp.int32)
        if bits == 0:
            rows = jnp.arange(n, dtype=jnp.int32) if rows is None else rows
            return Partition(codes, rows, stack([jnp.zeros_like(live), live]))
        codes, rows = partitioned(codes, bits, count, rows)
        numbers = jnp.arange(2**bits + 1, dtype=codes.dtype)
        first, behind = jnp.zeros(numbers.shape, jnp.int32), jnp.full(numbers.shape, live)
        bounds = partition_points(first, behind, n, lambda places: codes[places] >> (CODE_BITS - bits) < numbers)
        return Partition(codes, rows, bounds)


def bucket_tables(
    name: str, keys: Sequence[Any], counts: Sequence[jax.Array], *, null_equal: bool, size: int
) -> BucketTables | None:
    """Returns the tables for buckets; None if buckets cannot serve the join."""
    sides = [
        x if isinstance(x, Columns) else Columns(name, side, (x,), False) for side, x in zip("ab", keys, strict=True)
    ]
    (n_a,), (n_b,) = (x.shape for x in sides)
    if not CODE_BITS // 2 < sides[0].bits <= CODE_BITS:
        return None
    if not null_equal and any(jnp.issubdtype(x.dtype, jnp.floating) for x in sides[0].arrays):
        return None
    if not fit_for_buckets(n_a, n_b, size):
        return None
    if not is_local(*sides[0].arrays, *sides[1].arrays):  # both branches would need the same sharding
        return None
    a_codes, b_codes = (mixed(side.codes()[0].astype(jnp.uint32)) for side in sides)
    return BucketTables((a_codes, b_codes), (counts[0], counts[1]))


def fit_for_buckets(n_a: int, n_b: int, size: int) -> bool:
    """Whether buckets pay off for these lengths, and kernels can count the rows."""
    return is_long_permutation(n_a) and 0 < n_b < 2**31 - n_a and size <= 2 * (n_a + n_b)


def mixed(codes: jax.Array) -> jax.Array:
    """Returns a bijection of 32 bits whose highest bits depend on all bits."""
    for shift, factor in ((16, MULTIPLIERS[0]), (15, MULTIPLIERS[1])):
        codes ^= codes >> shift
        codes *= jnp.uint32(factor)
    return codes


def _shapes(a_codes: Aval, b_codes: Aval, *, size: int) -> Sequence[Any]:
    *_, count = REGISTRY["join"].shapes(a_codes, b_codes, ABSENT, ABSENT, size=size)
    rows = jax.ShapeDtypeStruct((size,), jnp.int32)
    return [rows, rows, count]


def _fallback(
    a_codes: jax.Array,
    a_rows: jax.Array,
    b_codes: jax.Array,
    b_rows: jax.Array,
    a_bounds: jax.Array,
    b_bounds: jax.Array,
    *,
    size: int,
    keep_a: int,
) -> Sequence[jax.Array]:
    """Joins by sorts of the codes; codes past the last bucket come last."""

    def in_order(codes: jax.Array, rows: jax.Array, bounds: jax.Array) -> tuple[jax.Array, jax.Array]:
        is_dead = jnp.arange(codes.shape[0], dtype=bounds.dtype) >= bounds[-1]
        order = jnp.lexsort((codes, is_dead))
        return codes[order], rows[order]

    a_codes, a_rows = in_order(a_codes, a_rows, a_bounds)
    b_codes, b_rows = in_order(b_codes, b_rows, b_bounds)
    counts = a_bounds[-1:], b_bounds[-1:]
    a_places, b_places, count = REGISTRY["join"].fallback(a_codes, b_codes, *counts, size=size, keep_a=keep_a, keep_b=0)
    return [
        *(take_or_fill(rows, places, -1) for rows, places in ((a_rows, a_places), (b_rows, b_places))),
        count,
    ]


_bucket_join = Operation(
    "bucket_join",
    operands={"a_codes": 1, "a_rows": 1, "b_codes": 1, "b_rows": 1, "a_bounds": 1, "b_bounds": 1, "extra_chunks": 1},
    results=("a_rows", "b_rows", "count"),
    attributes={"size": int, "keep_a": bool},
    shapes=_shapes,
    fallback=_fallback,
)
_bucket_join.def_linear()
