"""Floats as integers: in the order of keys, and in moves and selections that keep every bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import ArrayLike, DTypeLike
from jax_mgpu._src.core.compat import cond

T = TypeVar("T")


def is_random_key(dtype: DTypeLike) -> bool:
    """Whether arrays of this dtype are typed random keys, which kernels cannot take."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def where(condition: jax.Array, x: Any, y: Any) -> jax.Array:
    """`jnp.where`, without its nested `jit` where it can do without."""
    like = next((v for v in (x, y) if isinstance(v, jax.Array) and condition.shape in ((), v.shape)), None)
    if like is None or _over_a_mesh(like):
        return jnp.where(condition, x, y)
    numbers = (int, float) if jnp.issubdtype(like.dtype, jnp.floating) else int
    same = [v if v is like or not _fills(v, like, numbers) else jax.lax.full_like(like, v) for v in (x, y)]
    if any(getattr(v, "shape", None) != like.shape or v.dtype != like.dtype for v in same):
        return jnp.where(condition, x, y)
    return jax.lax.select(condition, *same)


def _over_a_mesh(x: jax.Array) -> bool:
    """Whether an array's type has a mesh, for which jnp's functions find a common sharding."""
    return not jax.typeof(x).sharding.mesh.empty


def _fills(v: Any, like: jax.Array, numbers: Any) -> bool:
    """Whether a scalar can be repeated in the shape and dtype of an array unchanged."""
    if hasattr(v, "dtype"):
        return bool(v.ndim == 0 and v.dtype == like.dtype)
    return isinstance(v, numbers) and not isinstance(v, bool)


def clip(x: jax.Array, low: Any, high: Any) -> jax.Array:
    """`jnp.clip` between scalars that the type of x holds, as one step of a program."""
    low, high = (np.asarray(v, x.dtype) if isinstance(v, int) else jnp.asarray(v, x.dtype) for v in (low, high))
    return jnp.clip(x, low, high) if _over_a_mesh(x) else jax.lax.clamp(low, x, high)


def ordered_integers(keys: jax.Array) -> jax.Array:
    """Returns integers in the order of the keys: one for all NaNs, one for both zeros.

    They are made of the floats' bits, because XLA's CPU code compares subnormal floats as zeros.
    """
    if not jnp.issubdtype(keys.dtype, jnp.floating):
        return keys
    word = jnp.dtype(f"int{8 * keys.dtype.itemsize}")
    bits, infinity = jax.lax.bitcast_convert_type(keys, word), np.asarray(np.inf, keys.dtype).view(word)
    largest = jnp.asarray(jnp.iinfo(word).max, word)
    magnitude = bits & largest
    ordered = where((bits < 0) & (magnitude > 0), bits ^ largest, magnitude)
    return where(magnitude > infinity, largest, ordered)


def ordered_together(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Returns `ordered_integers` that compare across arrays of one dtype; keys of two words are numbered in order."""
    if not is_words(arrays[0]):
        return tuple(map(ordered_integers, arrays))
    keys = jnp.concatenate(arrays)
    high, low = words_of(keys)
    order = jnp.lexsort((low, high))
    high, low = high[order], low[order]
    distinct = (high != shifted(high, 1)) | (low != shifted(low, 1))
    ranks = jnp.zeros(order.shape, order.dtype).at[order].set(jnp.cumsum(distinct, dtype=order.dtype))
    cuts = np.cumsum([x.shape[0] for x in arrays])[:-1]
    return tuple(jnp.split(ranks, cuts))


def shifted(x: jax.Array, by: int, fill: ArrayLike = 0) -> jax.Array:
    """Returns `x[i - by]` for each i of the leading axis, `fill` where there is no such item.

    `jnp.roll` fails in JAX 0.11 on an Explicit axis of one device.
    """
    rest = [(0, 0, 0)] * (x.ndim - 1)
    return jax.lax.pad(x, jnp.asarray(fill, x.dtype), [(by, -by, 0), *rest])


def is_words(keys: jax.Array) -> bool:
    """Whether keys are 64-bit numbers of two words, of which the low one is the real part (see `of_words`)."""
    return jnp.issubdtype(keys.dtype, jnp.complexfloating)


def words_of(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns high and low words."""
    high, low = (jax.lax.bitcast_convert_type(part(keys), jnp.uint32) for part in (jax.lax.imag, jax.lax.real))
    return high, low


def as_columns(keys: jax.Array) -> Any:
    """Returns keys as public functions take them: two words become two columns."""
    return words_of(keys) if is_words(keys) else keys


def of_words(high: jax.Array, low: jax.Array) -> jax.Array:
    """Returns keys of two words."""
    return jax.lax.complex(*(jax.lax.bitcast_convert_type(x, jnp.float32) for x in (low, high)))


def opaque(words: jax.Array) -> jax.Array:
    """Returns the same unsigned integers, but hides from compilers that they are, or become, the bits of floats.

    LLVM may turn a flip of a float's sign bit into a negation of the float, which on a GPU changes NaNs. The product
    of neighbouring integers is even, so its lowest bit is 0.
    """
    return words ^ (words * (words + 1) & 1)


def is_narrow_float(dtype: DTypeLike) -> bool:
    """Whether XLA's CPU code selects and repeats items as float32, which quiets signalling NaNs."""
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits in (8, 16)


def keeping_bits(
    move: Callable[..., jax.Array], arrays: Any, *others: Any, repeats: bool = False, adds: bool = False
) -> jax.Array:
    """`move(arrays, *others)`, bit for bit; `move` is linear in the arrays, whose items it moves. An array may be None.

    Narrow floats move as integers. Tangents move as floats, and as float32 if the transpose `adds`. If `move` only
    `repeats` items, a barrier keeps XLA from repeating floats instead.
    """
    dtype = jax.tree.leaves(arrays)[0].dtype
    if not is_narrow_float(dtype):
        return move(arrays, *others)
    word = jnp.dtype(f"uint{jnp.finfo(dtype).bits}")

    @jax.custom_jvp
    def move_bits(arrays: Any, *others: Any) -> jax.Array:
        bits = jax.tree.map(lambda x: jax.lax.bitcast_convert_type(x, word), arrays)
        moved = move(bits, *others)
        moved = opaque(moved)  # otherwise XLA's CPU code selects among vectors of bfloat16
        return jax.lax.bitcast_convert_type(jax.lax.optimization_barrier(moved) if repeats else moved, dtype)

    @move_bits.defjvp
    def _(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        wide = jnp.float32 if adds else dtype
        # Tangents outside of jit may be NumPy arrays.
        moving = jax.tree.map(lambda x: jnp.asarray(x).astype(wide), tangents[0])
        return move_bits(*primals), move(moving, *primals[1:]).astype(dtype)

    return move_bits(arrays, *others)


def part_of(x: jax.Array, begin: int, end: int) -> jax.Array:
    """`x[begin:end]`, bit for bit."""
    return keeping_bits(lambda x: x[begin:end], x)


def special_case(
    holds: Callable[[], jax.Array], special: Callable[..., T], general: Callable[..., T], *operands: Any
) -> T:
    """`general(*operands)`, or `special(*operands)` if `holds()`, which then gives the same bits.

    In a batch, JAX selects between the two results, which may change the NaNs of narrow floats: these always use
    `general`.
    """
    if any(is_narrow_float(x.dtype) for x in jax.tree.leaves(operands)):
        return general(*operands)
    return cond(holds(), special, general, *operands)
