"""Exact splitters: cut sequences that are sorted over all devices at given numbers of items."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.check import index_dtype
from jax_mgpu._src.core.compat import fori_loop, stack
from jax_mgpu._src.keys.bits import is_words, of_words, ordered_integers, where, words_of
from jax_mgpu._src.mesh.axis import Axis, before
from jax_mgpu._src.mesh.exchange import all_everywhere, by_platform
from jax_mgpu._src.ops.order_statistics import _order_statistics
from jax_mgpu._src.ops.sorted_search import _segmented_search

# The most candidate codes that one round of the search counts, over all cuts.
MAX_CANDIDATES = 1 << 16


# A long unsigned number, highest word first, so no 64-bit type of JAX is needed.
Words = Sequence[jax.Array]


class Sorted:
    """This device's part of a sorted sequence, `keys[begin:end]`, with one window for all cuts or one per cut."""

    def __init__(self, keys: jax.Array, begin: jax.Array, end: jax.Array, descending: bool = False):
        self.begin, self.end, self.descending = begin, end, descending
        self.n, self.keys, self.like = keys.shape[0], jax.lax.stop_gradient(keys), keys[:0]
        self.rising = jax.lax.rev(self.keys, (0,)) if descending else self.keys  # the kernel searches ascending keys


def order_codes(keys: jax.Array, descending: bool) -> list[jax.Array]:
    """Returns unsigned codes in the order of keys, up to 32 bits per word, equal for equal keys."""
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
    """Returns which codes are less than others."""
    found = codes[-1] <= others[-1] if or_equal else codes[-1] < others[-1]
    for x, y in zip(reversed(codes[:-1]), reversed(others[:-1]), strict=True):
        found = (x < y) | ((x == y) & found)
    return found


def equal(codes: Words, others: Words) -> jax.Array:
    """Returns which codes equal others."""
    return functools.reduce(operator.and_, [x == y for x, y in zip(codes, others, strict=True)])


def keys_of(codes: Words, dtype: Any) -> jax.Array:
    """Returns the keys of ascending codes.

    For a code that no key has, the result is a key that exceeds the keys of all lower codes, and no other key.
    """
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return of_words(*codes)
    word = jnp.dtype(f"uint{8 * dtype.itemsize}")
    code = codes[0] if len(codes) == 1 else codes[0].astype(word) << word.type(32) | codes[1].astype(word)
    if jnp.issubdtype(dtype, jnp.unsignedinteger):
        return code
    integer = np.dtype(f"int{8 * dtype.itemsize}")
    ordered = jax.lax.bitcast_convert_type(code ^ np.array(1 << (8 * word.itemsize - 1), word), integer)
    if not jnp.issubdtype(dtype, jnp.floating):
        return ordered
    largest = np.iinfo(integer).max
    infinity = jax.lax.bitcast_convert_type(np.array(np.inf, dtype), integer)
    ordered = jnp.maximum(ordered, ~infinity)  # smaller numbers than -inf have the bits of NaNs
    return jax.lax.bitcast_convert_type(jnp.where(ordered < 0, ordered ^ largest, ordered), dtype)


def search(sequence: Sorted, codes: Words, *, after_equals: bool) -> jax.Array:
    """Returns where codes, `[cuts, any]`, are in the sequence, before or after equal keys."""
    n, falls = sequence.n, sequence.descending
    needles = keys_of([~x if falls else x for x in codes], sequence.like.dtype)
    windows = [x.reshape(-1) for x in (sequence.begin, sequence.end)]
    (m,) = windows[0].shape
    index = index_dtype("search", "keys", n, m)
    ids = jnp.broadcast_to(jnp.arange(m, dtype=index)[:, None], needles.shape)
    heads, ends = (x.astype(index) for x in ([n - x for x in windows[::-1]] if falls else windows))
    given = {"needles": needles.reshape(-1), "ids": ids.reshape(-1), "haystack": sequence.rising}
    found = _segmented_search(**given, heads=heads, ends=ends, right=after_equals != falls, exact=False)[0]
    places = found.reshape(needles.shape).astype(sequence.end.dtype)
    return n - places if falls else places


def cut_at(
    axis: Axis,
    sequences: Sequence[Sorted],
    ranks: jax.Array,
    counts: jax.Array | None = None,
    *,
    pairs: bool = False,
) -> jax.Array:
    """Cuts sequences so that `ranks[j]` items of all devices, in order, come before cut j.

    Of equal keys, those of the first sequence come first, in the order of devices. With `pairs`, there are two
    sequences, and the r-th equal key of the first is followed by the r-th of the second; a cut never separates them,
    and may come one item late (balanced path).

    Args:
      axis: the devices.
      sequences: each device's parts.
      ranks: `[cuts]`, the same on all devices.
      counts: `[devices, sequences]`, the items of all devices, if parts begin at 0.
      pairs: see above.

    Returns:
      `[sequences, devices, cuts]`, the same on all devices: how many items of each part come before a cut.
    """
    shape = len(sequences), axis.size, ranks.shape[0]
    if 0 in shape or not any(s.n for s in sequences):
        return jnp.zeros(shape, ranks.dtype)
    bounds: Callable[..., tuple[jax.Array, jax.Array]] = functools.partial(_by_digits, axis, sequences)
    if counts is not None:
        bounds = by_platform(axis, functools.partial(_gathered, axis, sequences, counts), bounds)
    low, high = bounds(ranks)
    return _at_ranks(low, high, ranks, pairs=pairs)


def _at_ranks(low: jax.Array, high: jax.Array, ranks: jax.Array, *, pairs: bool) -> jax.Array:
    """Returns the cuts at ranks. `low` items are less than the key at a rank, and `high` items are no greater."""
    if pairs:
        return low + _paired(high - low, ranks - (low[0] + low[1]).sum(0, dtype=low.dtype))
    return low + _in_turn(low, high, ranks)


def _gathered(
    axis: Axis, sequences: Sequence[Sorted], counts: jax.Array, ranks: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns how many items of each device are less than the key at each rank, and how many are no greater.

    Both are `[sequences, devices, cuts]`. Devices share their memory, and each gathers all keys.
    """
    keys, edges, total = all_everywhere(axis, [_rising(s) for s in sequences], list(counts.T))
    runs, (cuts,) = (len(sequences), axis.size), ranks.shape
    number = runs[0] * runs[1]
    needles = _order_statistics(x=keys, ranks=jnp.tile(ranks, number), count=total)[0]
    ids = np.repeat(np.arange(number, dtype=edges.dtype), cuts)
    given = {"needles": needles, "ids": ids, "haystack": keys, "heads": edges, "haystack_count": total, "exact": False}
    low, high = (_segmented_search(**given, right=right)[0].reshape(*runs, cuts) for right in (False, True))
    begins = edges[:-1].reshape(*runs, 1)
    return low - begins, high - begins


def _rising(sequence: Sorted) -> jax.Array:
    """Returns keys in whose order the sequence ascends."""
    keys = sequence.keys
    if not sequence.descending:
        return keys
    return of_words(*(~x for x in words_of(keys))) if is_words(keys) else ~ordered_integers(keys)


def _by_digits(axis: Axis, sequences: Sequence[Sorted], ranks: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`_gathered` for devices that do not share their memory, and for windows.

    The code of the key at each rank is found digit by digit, highest first: a round counts the items below each digit
    on all devices.
    """
    (cuts,) = ranks.shape
    words = order_codes(sequences[0].like, False)
    number, word, bits = len(words), words[0].dtype, 8 * words[0].dtype.itemsize
    candidates = max(min(MAX_CANDIDATES, max(s.n for s in sequences)), 256)
    rounds = -(-bits // min(bits, max(1, (candidates // cuts).bit_length() - 1)))  # rounds per word
    digit_bits = -(-bits // rounds)
    ids = jnp.arange(cuts, dtype=jnp.int32)
    heads = ids * ((1 << digit_bits) - 1)

    def inside(digits: Any, shift: jax.Array) -> Any:
        """Limits digits to the range of the first round, which may have fewer than the others."""
        if digit_bits * rounds == bits:
            return digits
        return jnp.minimum(digits, np.array(jnp.iinfo(word).max, word) >> shift)

    def next_digit(done: jax.Array, code: jax.Array) -> jax.Array:
        digits = jax.lax.iota(word, (1 << digit_bits) - 1) + word.type(1)
        shift = jnp.asarray(digit_bits * (rounds - 1 - done % rounds), word)
        own = (np.arange(number) == done // rounds)[:, None]
        candidate = code[:, :, None] | jnp.where(own, inside(digits, shift) << shift, np.zeros((), word))[:, None]
        below = [search(s, list(candidate), after_equals=False) - s.begin.reshape(-1, 1) for s in sequences]
        everywhere = axis.sum(sum(below[1:], below[0])).reshape(-1)
        places = _segmented_search(needles=ranks, ids=ids, haystack=everywhere, heads=heads, right=True, exact=False)[0]
        return code | jnp.where(own, inside((places - heads).astype(word), shift) << shift, np.zeros((), word))

    code = list(fori_loop(0, number * rounds, next_digit, jnp.zeros((number, cuts), word))[:, :, None])
    found = [search(s, code, after_equals=after)[:, 0] - s.begin for s in sequences for after in (False, True)]
    every: jax.Array = axis.gather(stack(found)).reshape(axis.size, len(sequences), 2, cuts)
    return every[:, :, 0].swapaxes(0, 1), every[:, :, 1].swapaxes(0, 1)


def _in_turn(low: jax.Array, high: jax.Array, ranks: jax.Array) -> jax.Array:
    """Returns how many equal keys of each sequence and device come before a cut.

    `low` keys are less than these, and `high` keys are no greater.
    """
    cuts = ranks.shape[0]
    place = jax.lax.broadcasted_iota(jnp.int32, (low.shape[0] * low.shape[1],) * 2, 0)
    earlier = (place > place.T)[:, :, None]
    others = jnp.where(earlier, high.reshape(1, -1, cuts), low.reshape(1, -1, cuts))
    rest = ranks - jnp.sum(others, axis=1, dtype=low.dtype)
    return jnp.clip(rest.reshape(low.shape), 0, high - low)


def _paired(equal: jax.Array, rest: jax.Array) -> jax.Array:
    """Returns, `[2, devices, cuts]`, how many equal keys of a sequence and device precede a balanced path's cut."""
    own = equal.sum(1, dtype=equal.dtype)
    other = jax.lax.rev(own, (0,))
    fewer = jnp.minimum(own, other)
    paired, alone = jnp.minimum((rest + 1) >> 1, fewer), jnp.maximum(rest - 2 * fewer, 0)
    shares = paired + where(own > other, alone, 0)
    return jnp.clip(shares[:, None] - before(equal), 0, equal)


def even_edges(
    axis: Axis, sequences: Sequence[Sorted], counts: jax.Array, slots: int | None = None, *, pairs: bool = False
) -> jax.Array:
    """Returns where each device's items are cut for all devices, `[sequences, devices, devices + 1]`.

    `counts` are the items of all devices, `[devices, sequences]`. Parts are equal or, with `slots`, fill the devices
    from the first one on.
    """
    total, ends = counts.sum(dtype=counts.dtype), counts.T[:, :, None]
    if slots is None:
        ranks = _even_ranks(axis, total, jnp.arange(1, axis.size, dtype=total.dtype))
    else:
        ranks = jnp.minimum(jnp.arange(1, axis.size, dtype=total.dtype) * slots, total)
    cuts = cut_at(axis, sequences, ranks, counts, pairs=pairs)
    return jnp.concatenate([jnp.zeros_like(ends), cuts, ends], axis=2)


def even_windows(
    axis: Axis, sequences: Sequence[Sorted], counts: Sequence[jax.Array], *, pairs: bool
) -> tuple[jax.Array, jax.Array, jax.Array, list[jax.Array]]:
    """Cuts this device's equal part out of the items of all devices in two sequences.

    For devices that share their memory. `counts` has the items of all devices in each sequence.

    Returns: Where the items of each device begin in the first sequence followed by the second, and where the last ones
    end; the number of all items, `[1]`; where this device's part of each sequence begins and ends among the items of
    both sequences, `[4]`; the lengths of the two parts.
    """
    keys, edges, total = all_everywhere(axis, [_rising(s) for s in sequences], counts)
    heads = edges[:: axis.size][:2]
    ends = axis.index.astype(total.dtype) + np.array([0, 1, 0, 1], total.dtype)
    ranks = _even_ranks(axis, total[0], ends)
    needles = _order_statistics(x=keys, ranks=ranks, count=total)[0]
    given = {"needles": needles, "ids": np.array([0, 0, 1, 1], total.dtype), "haystack": keys, "heads": heads}
    low, high = (
        _segmented_search(**given, haystack_count=total, right=right, exact=False)[0].reshape(2, 1, 2)
        for right in (False, True)
    )
    # Places of the second sequence count the items of the first.
    cuts = _at_ranks(low, high, ranks[:2] + heads[1], pairs=pairs)[:, 0]
    return edges, total, cuts.reshape(4), list(cuts[:, 1] - cuts[:, 0])


def _even_ranks(axis: Axis, total: jax.Array, device: jax.Array) -> jax.Array:
    each, rest = (f(total, jnp.asarray(axis.size, total.dtype)) for f in (jax.lax.div, jax.lax.rem))
    return device * each + jnp.minimum(device, rest)
