"""Exact splitters: cuts sequences that are sorted over all devices so that given numbers of items precede cuts."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.core.compat import fori_loop, stack
from jax_mgpu._src.keys.bits import is_words, ordered_integers, words_of
from jax_mgpu._src.mesh.axis import Axis

__all__ = ["Sorted", "Words", "cut_at", "edges_of", "equal", "even_ranks", "order_codes", "precede", "search"]

# The candidate codes that one round of the search counts, over all cuts: on an H200, 2^14 take as long as 2^8.
MOST_CANDIDATES = 1 << 14
# The keys that one step of a search reads, over all codes. A step is a few kernels that take longer to start than to
# run: a binary search of 2^26 keys has 27 steps, one by 2^10 parts has three.
MOST_PROBES = 1 << 18
MOST_WAYS = 10


# A long unsigned number, highest word first, so that no 64-bit type of JAX is needed.
Words = Sequence[jax.Array]


class Sorted(NamedTuple):
    """This device's part of a sorted sequence: `keys[begin:end]`, with one window for all cuts, or one per cut."""

    keys: jax.Array
    begin: jax.Array
    end: jax.Array
    descending: bool = False


def order_codes(keys: jax.Array, descending: bool) -> list[jax.Array]:
    """Unsigned codes of up to 32 bits per word, in the order of the keys, and equal for equal keys."""
    if is_words(keys):
        words = list(words_of(keys))
    else:
        code = ordered_integers(keys)
        word = jnp.dtype(f"uint{8 * keys.dtype.itemsize}")
        if jnp.issubdtype(code.dtype, jnp.signedinteger):
            code = jax.lax.bitcast_convert_type(code, word) ^ np.array(1 << (8 * word.itemsize - 1), word)
        is_long = word.itemsize == 8
        words = [(code >> word.type(32)).astype(jnp.uint32), code.astype(jnp.uint32)] if is_long else [code]
    return [~x for x in words] if descending else words


def precede(codes: Words, others: Words, *, or_equal: bool = False) -> jax.Array:
    """Which codes are less than others."""
    found = codes[-1] <= others[-1] if or_equal else codes[-1] < others[-1]
    for x, y in zip(reversed(codes[:-1]), reversed(others[:-1]), strict=True):
        found = (x < y) | ((x == y) & found)
    return found


def equal(codes: Words, others: Words) -> jax.Array:
    """Which codes equal others."""
    return functools.reduce(operator.and_, [x == y for x, y in zip(codes, others, strict=True)])


def search(sequence: Sorted, codes: Words, *, after_equals: bool) -> jax.Array:
    """How far codes, `[cuts, any]`, reach into the sequence: positions before, or after, the keys equal to them."""
    n, shape = sequence.keys.shape[0], codes[0].shape
    probes = min(MOST_PROBES, max(n, 256))
    ways = max(1, min(MOST_WAYS, (probes // max(codes[0].size, 1)).bit_length() - 1))  # 2^ways parts per step
    cuts = jnp.arange(1, 1 << ways, dtype=sequence.end.dtype)
    low, high = (jnp.broadcast_to(x.reshape(-1, 1), shape) for x in (sequence.begin, sequence.end))
    sought = [x[..., None] for x in codes]

    def part(length: jax.Array, cut: jax.Array) -> jax.Array:
        """Length * cut / 2^ways, without a product that overflows."""
        return (length >> ways) * cut + ((length & ((1 << ways) - 1)) * cut >> ways)

    for _ in range(-(-n.bit_length() // ways)):
        length = high - low
        places = part(length[..., None], cuts)
        keys = order_codes(sequence.keys.at[low[..., None] + places].get(mode="clip"), sequence.descending)
        before = precede(keys, sought, or_equal=after_equals)
        reached = jnp.sum((places < length[..., None]) & before, axis=-1, dtype=low.dtype)
        high = low + part(length, reached + 1)
        # If keys are not sorted, a part that was passed may also be the next one.
        low = jnp.where(reached > 0, jnp.minimum(low + part(length, reached) + 1, high), low)
    return low


def cut_at(axis: Axis, sequences: Sequence[Sorted], ranks: jax.Array, *, pairs: bool = False) -> jax.Array:
    """Cuts sequences so that `ranks[j]` items of all devices, in order, come before cut j.

    Among equal keys, those of the first sequence come first, in the order of the devices, then those of the second.
    With `pairs`, there are two sequences, and the r-th equal key of the first is followed by the r-th of the second; a
    cut never separates the two, and may come one item late (balanced path).

    The code of the key at each rank is found digit by digit, the highest first: each round counts the items below each
    digit on all devices.

    Args:
      axis: the devices.
      sequences: each device's parts.
      ranks: `[cuts]`, the same on all devices.
      pairs: see above.

    Returns:
      `[sequences, devices, cuts]`, the same on all devices: positions in each device's keys.
    """
    (cuts,) = ranks.shape
    if cuts == 0:
        return jnp.zeros((len(sequences), axis.size, 0), ranks.dtype)
    words = [x.dtype for x in order_codes(sequences[0].keys[:0], False)]
    word, bits = words[0], 8 * words[0].itemsize
    slots = max(sequence.keys.shape[0] for sequence in sequences)
    candidates = max(min(MOST_CANDIDATES, slots), 256)
    digit_bits = max(b for b in (1, 2, 4, 8, 16) if b <= bits and (b == 1 or cuts << b <= candidates))
    digits = np.arange(1, 1 << digit_bits).astype(word)
    code: list[jax.Array] = []

    def next_word(code: Words) -> jax.Array:
        def next_digit(done: jax.Array, prefix: jax.Array) -> jax.Array:
            shift = jnp.asarray(bits - digit_bits * (done + 1), word)
            candidate = prefix[:, None] | (jnp.asarray(digits) << shift)[None, :]
            rest = [jnp.zeros_like(candidate)] * (len(words) - len(code) - 1)
            codes = [*(jnp.broadcast_to(x, candidate.shape) for x in code), candidate, *rest]
            below = [search(s, codes, after_equals=False) - s.begin.reshape(-1, 1) for s in sequences]
            digit = jnp.sum(axis.sum(sum(below[1:], below[0])) <= ranks[:, None], axis=1).astype(word)
            return prefix | (digit << shift)

        return fori_loop(0, bits // digit_bits, next_digit, jnp.zeros((cuts,), word))[:, None]

    for _ in words:
        code.append(next_word(code))
    low, high = (stack([search(s, code, after_equals=after)[:, 0] for s in sequences]) for after in (False, True))
    begins = stack([jnp.broadcast_to(s.begin, (cuts,)) for s in sequences])
    # [sequences, devices, cuts]
    low, equal, begins = (jnp.moveaxis(x, 0, 1) for x in axis.gather((low, high - low, begins)))
    rest = ranks - (low - begins).sum((0, 1)).astype(ranks.dtype)  # this many of the equal keys come before the cut
    if pairs:
        return low + _paired(equal, rest)
    flat = equal.reshape(-1, cuts)
    earlier = (jnp.cumsum(flat, 0, dtype=flat.dtype) - flat).reshape(equal.shape)
    return low + jnp.clip(rest - earlier, 0, equal)


def _paired(equal: jax.Array, rest: jax.Array) -> jax.Array:
    """The number of equal keys of each sequence and device before a cut of the balanced path: `[2, devices, cuts]`."""
    a, b = equal.sum(1, dtype=equal.dtype)
    paired = jnp.minimum((rest + 1) // 2, jnp.minimum(a, b))
    alone = jnp.maximum(rest - 2 * jnp.minimum(a, b), 0)
    shares = stack([paired + jnp.where(a > b, alone, 0), paired + jnp.where(b > a, alone, 0)])
    earlier = jnp.cumsum(equal, 1, dtype=equal.dtype) - equal
    return jnp.clip(shares[:, None] - earlier, 0, equal)


def even_ranks(axis: Axis, total: jax.Array, slots: int | None = None) -> jax.Array:
    """The ranks at which devices 1, 2, ... begin: of equal parts, or where each earlier device is full."""
    device = jnp.arange(1, axis.size, dtype=total.dtype)
    if slots is not None:
        return jnp.minimum(device * slots, total)
    return device * (total // axis.size) + jnp.minimum(device, total % axis.size)


def edges_of(cuts: jax.Array, counts: jax.Array) -> jax.Array:
    """Each device's cuts, bounded by its first and last live item: `[devices, devices + 1]`.

    They are in order even if keys are not, and no part of an exchange leaves the array.
    """
    if cuts.shape[1]:
        cuts = jnp.clip(jax.lax.cummax(cuts.astype(counts.dtype), axis=1), 0, counts[:, None])
    return jnp.concatenate([jnp.zeros_like(counts)[:, None], cuts, counts[:, None]], axis=1)
