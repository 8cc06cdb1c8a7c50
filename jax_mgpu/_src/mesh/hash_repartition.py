"""Hash repartition: brings all rows with equal keys, of two unsorted tables, to one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.values import take_rows
from jax_mgpu._src.core.compat import stack
from jax_mgpu._src.keys.bits import is_words, words_of
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.exchange import Parts, exchange
from jax_mgpu._src.mesh.splitters import Sorted, search
from jax_mgpu._src.ops.bucket_join import mixed
from jax_mgpu._src.ops.sort_strategy import partitioned

# The least number of buckets per device.
BUCKETS = 32
# The least number of bits of a bucket's number: one pass partitions by as many.
DIGIT_BITS = 8


class Meeting(NamedTuple):
    """The rows of both tables that this device received.

    Attributes:
      codes: a number for each row, equal for equal keys only; not in the order of keys.
      rows: the rows' global indices, ascending among equal keys.
      counts: the live rows, as operands.
      fits: whether all devices had room for all rows; the same on all of them.
    """

    codes: tuple[jax.Array, jax.Array]
    rows: tuple[jax.Array, jax.Array]
    counts: tuple[jax.Array, jax.Array]
    fits: jax.Array


def with_room(slots: int) -> int:
    """Returns more slots than given, for shares that differ slightly."""
    return slots + max(slots // 16, min(slots, 256))


def meet(axis: Axis, codes: Sequence[jax.Array], lives: Sequence[jax.Array], begins: Sequence[jax.Array]) -> Meeting:
    """Sends each row to the device that owns the bucket of its key.

    Buckets are ranges of hashed codes, split so that devices get about equally many rows of both tables together. A
    device may get more rows than it has room for.

    Args:
      axis: the devices.
      codes: each side's codes of keys, of up to 64 bits.
      lives: each side's number of live rows.
      begins: the global index of this device's first row, for each side.
    """
    bits = max(DIGIT_BITS, (BUCKETS * axis.size - 1).bit_length())
    tables = [_by_bucket(*side, bits) for side in zip(codes, lives, begins, strict=True)]
    buckets = jnp.arange(1, 1 << bits, dtype=jnp.uint32)[None, :] << jnp.uint32(32 - bits)
    # The number of this device's rows in earlier buckets, for each side.
    before = [
        search(Sorted(table.buckets, jnp.zeros_like(live), live), [buckets], after_equals=False)[0]
        for table, live in zip(tables, lives, strict=True)
    ]
    everywhere, total = axis.sum(before[0] + before[1]), axis.sum(lives[0] + lives[1])
    device = jnp.arange(axis.size + 1, dtype=total.dtype)
    ranks = device * (total // axis.size) + jnp.minimum(device, total % axis.size) + (total >> (bits + 1))
    cuts = jnp.sum(everywhere[None, :] <= ranks[:, None], axis=1)
    edges = [
        jnp.where(device == 0, 0, jnp.where(device < axis.size, jnp.append(jnp.zeros_like(live), x)[cuts], live))
        for x, live in zip(before, lives, strict=True)
    ]
    every = axis.gather(stack(edges))  # [from, side, to + 1]
    slots = [with_room(code.shape[0]) for code in codes]
    needed = jnp.sum(every[:, :, 1:] - every[:, :, :-1], axis=0, dtype=every.dtype)
    fits = jnp.all(jnp.max(needed, axis=1) <= jnp.asarray(slots, every.dtype))
    parts = [Parts.between(axis, every[:, side], slots[side]) for side in (0, 1)]
    (a, a_rows), (b, b_rows) = (exchange(p, [x.codes, x.rows]) for p, x in zip(parts, tables, strict=True))
    return Meeting((a, b), (a_rows, b_rows), (parts[0].total.reshape(1), parts[1].total.reshape(1)), fits)


class _Table(NamedTuple):
    """A table in the order of its rows' buckets, whose numbers are the highest bits of `buckets`."""

    buckets: jax.Array
    codes: jax.Array
    rows: jax.Array


def _by_bucket(codes: jax.Array, live: jax.Array, begin: jax.Array, bits: int) -> _Table:
    if is_words(codes):
        high, low = words_of(codes)
        buckets, order = partitioned(mixed(low ^ mixed(high)), bits, live.reshape(1))
        return _Table(buckets, take_rows(codes, order), begin + order.astype(begin.dtype))
    rows = begin + jnp.arange(codes.shape[0], dtype=begin.dtype)
    buckets, rows = partitioned(mixed(codes.astype(jnp.uint32)), bits, live.reshape(1), rows)
    return _Table(buckets, buckets, rows)  # mixing is a bijection, so mixed codes serve as codes
