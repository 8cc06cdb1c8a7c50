"""Numbers of any length, and their conversion to keys or payloads of kernels, which hold up to 64 bits.

A number is a list of digits of up to 32 bits, highest first. Kernels get more than 32 bits as complex64, so no 64-bit
type of JAX is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.keys.bits import of_words, words_of

WIDEST = 64  # the bits of a kernel's key or payload
WORD = 32


class Digit(NamedTuple):
    """One digit of n long numbers: `uint32[n]`, each word below `2**bits`."""

    words: jax.Array
    bits: int


def split(code: jax.Array, bits: int) -> list[Digit]:
    """Returns unsigned integers of `bits` bits as digits."""
    if bits <= WORD:
        return [Digit(code.astype(jnp.uint32), bits)]
    high = (code >> code.dtype.type(WORD)).astype(jnp.uint32)
    return [Digit(high, bits - WORD), Digit(code.astype(jnp.uint32), WORD)]


def part(digits: Sequence[Digit], at: int, bits: int) -> jax.Array:
    """Returns a part of a long number: `bits` bits, at most 32, from `at` bits below its top on."""
    found, begin, end = None, 0, at + bits
    for words, width in digits:
        first, last = max(at, begin), min(end, begin + width)
        if first < last:
            held = words >> np.uint32(begin + width - last) if last < begin + width else words
            if first > begin:
                held = held & np.uint32((1 << (last - first)) - 1)
            held = held << np.uint32(end - last) if last < end else held
            found = held if found is None else found | held
        begin += width
    assert found is not None
    return found


def code_dtype(bits: int) -> np.dtype:
    """Returns the type of kernel items that hold `bits` bits, up to 64."""
    return np.dtype(next((f"uint{width}" for width in (8, 16, 32) if bits <= width), "complex64"))


def code_of(digits: Sequence[Digit], at: int, bits: int) -> jax.Array:
    """Returns a part of a long number as one item for kernels: `bits` bits, at most 64, from `at` below its top on."""
    if bits <= WORD:
        return part(digits, at, bits).astype(code_dtype(bits))
    return of_words(part(digits, at, bits - WORD), part(digits, at + bits - WORD, WORD))


def code_digits(codes: jax.Array, bits: int) -> list[Digit]:
    """Returns items of kernels as digits."""
    if bits <= WORD:
        return [Digit(codes.astype(jnp.uint32), bits)]
    high, low = words_of(codes)
    return [Digit(high, bits - WORD), Digit(low, WORD)]
