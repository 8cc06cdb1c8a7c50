"""Floats as integers: keys in their order, and moves that keep every bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["keeping_bits", "ordered_integers"]


def ordered_integers(keys: jax.Array) -> jax.Array:
    """Integers in the order of the keys, equal where keys are: one for all NaNs, and one for both zeros.

    They are made of the bits alone: XLA's CPU code takes subnormal floats for zeros where it compares them.
    """
    if not jnp.issubdtype(keys.dtype, jnp.floating):
        return keys
    word = jnp.dtype(f"int{8 * keys.dtype.itemsize}")
    bits, infinity = (jax.lax.bitcast_convert_type(x, word) for x in (keys, jnp.asarray(jnp.inf, keys.dtype)))
    largest = jnp.asarray(jnp.iinfo(word).max, word)
    magnitude = bits & largest
    ordered = jnp.where((bits < 0) & (magnitude > 0), bits ^ largest, magnitude)
    return jnp.where(magnitude > infinity, largest, ordered)


def keeping_bits(move: Callable[..., jax.Array], arrays: Any, *others: Any, repeats: bool = False) -> jax.Array:
    """`move(arrays, *others)`, which moves items of the arrays (or None), linear in them, to the bit.

    XLA's CPU code selects among floats of less than 32 bits, and repeats them, by way of float32, where a signalling
    NaN turns quiet. So such floats move as integers, and their tangents, whose linearity that would hide, as they are.
    Where `move` only repeats, XLA would find that floats can be repeated as well, if a barrier did not hide it.
    """
    dtype = jax.tree.leaves(arrays)[0].dtype
    if not jnp.issubdtype(dtype, jnp.floating) or jnp.finfo(dtype).bits not in (8, 16):
        return move(arrays, *others)
    word = jnp.dtype(f"uint{jnp.finfo(dtype).bits}")

    @jax.custom_jvp
    def move_bits(arrays: Any, *others: Any) -> jax.Array:
        bits = jax.tree.map(lambda x: jax.lax.bitcast_convert_type(x, word), arrays)
        moved = move(bits, *others)
        return jax.lax.bitcast_convert_type(jax.lax.optimization_barrier(moved) if repeats else moved, dtype)

    @move_bits.defjvp
    def _(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
        moving = jax.tree.map(jnp.asarray, tangents[0])  # they may be NumPy's own, outside of jit
        return move_bits(*primals), move(moving, *primals[1:])

    return move_bits(arrays, *others)
