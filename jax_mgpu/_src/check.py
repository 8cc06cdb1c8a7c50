"""Argument checks, and the one form of their messages: operation, argument, expected, got."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.preconditions import inside, sorted_keys

__all__ = [
    "count_operand",
    "describe",
    "expect_key",
    "expect_same_dtype",
    "expect_vector",
    "index_dtype",
    "index_vector",
    "sorted_pair",
    "static_size",
]

KEY_DTYPES = frozenset(
    [f"{kind}{width}" for kind in ("uint", "int") for width in (8, 16, 32, 64)]
    + ["float16", "bfloat16", "float32", "float64"]
)
INT32_LIMIT = 2**31


def describe(x: Any) -> str:
    """Dtype and shape, as in an error message."""
    return f"{x.dtype.name}[{','.join(map(str, x.shape))}]"


def type_error(operation: str, argument: str, expected: str, got: Any) -> TypeError:
    """The TypeError of an argument."""
    return TypeError(f"{operation}: {argument}: expected {expected}, got {got}")


def value_error(operation: str, argument: str, expected: str, got: Any) -> ValueError:
    """The ValueError of an argument."""
    return ValueError(f"{operation}: {argument}: expected {expected}, got {got}")


def as_array(operation: str, argument: str, x: Any) -> jax.Array:
    """An argument as an array."""
    if x is None or isinstance(x, (str, bytes)):
        raise type_error(operation, argument, "an array", repr(x))
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError) as error:
        raise type_error(operation, argument, "an array", type(x).__name__) from error


def expect_vector(operation: str, argument: str, x: Any) -> jax.Array:
    """An argument as a 1-D array."""
    x = as_array(operation, argument, x)
    if x.ndim != 1:
        raise value_error(operation, argument, "a 1-D array (batches come from jax.vmap)", describe(x))
    return x


def expect_key(operation: str, argument: str, x: Any) -> jax.Array:
    """An argument as a 1-D array of keys."""
    x = expect_vector(operation, argument, x)
    if x.dtype.name not in KEY_DTYPES:
        raise type_error(operation, argument, "keys of an integer or float type of 8 to 64 bits", describe(x))
    return x


def expect_same_dtype(operation: str, a_name: str, a: jax.Array, b_name: str, b: jax.Array) -> None:
    """Two operands of one dtype."""
    if a.dtype != b.dtype:
        raise type_error(operation, b_name, f"the dtype of {a_name}, {a.dtype.name}", b.dtype.name)


def index_dtype(operation: str, argument: str, length: int) -> np.dtype:
    """The dtype of indices into an array of this length: int32, or int64 where it can reach 2^31 items."""
    if length < INT32_LIMIT:
        return np.dtype(np.int32)
    if not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise value_error(operation, argument, "fewer than 2^31 items, or jax_enable_x64 for int64 indices", length)
    return np.dtype(np.int64)


def index_vector(operation: str, argument: str, x: Any, limit: int) -> jax.Array:
    """A 1-D array of positions up to `limit`, as int32 or int64 (positions beyond `limit` stay beyond it)."""
    x = expect_vector(operation, argument, x)
    if x.size == 0 and not jnp.issubdtype(x.dtype, jnp.integer):
        x = x.astype(jnp.int32)  # an empty list
    return _as_index(operation, argument, x, limit)


def static_size(operation: str, argument: str, size: Any) -> int:
    """A number of outputs, which has to be known while tracing."""
    try:
        size = operator.index(size)
    except (TypeError, jax.errors.ConcretizationTypeError) as error:
        raise type_error(operation, argument, "a static, non-negative integer", type(size).__name__) from error
    if size < 0:
        raise value_error(operation, argument, "a static, non-negative integer", size)
    return size


def count_operand(operation: str, argument: str, count: Any, length: int) -> Any:
    """A live count as an operand of shape [1], or the absent operand where there is none."""
    if count is None:
        return np.zeros((0,), np.int32)
    count = as_array(operation, argument, count)
    if count.ndim != 0:
        raise value_error(operation, argument, "an integer scalar", describe(count))
    return inside(operation, argument, _as_index(operation, argument, count, length).reshape(1), length)


def sorted_pair(
    operation: str,
    a: Any,
    b: Any,
    a_count: Any,
    b_count: Any,
    *,
    names: tuple[str, str] = ("a", "b"),
    descending: bool = False,
    unique: bool = False,
) -> tuple[jax.Array, jax.Array, Any, Any]:
    """Two sorted arrays of keys of one dtype, and their live counts as operands."""
    a_name, b_name = names
    a = expect_key(operation, a_name, a)
    b = expect_key(operation, b_name, b)
    expect_same_dtype(operation, a_name, a, b_name, b)
    a_count = count_operand(operation, f"{a_name}_count", a_count, a.shape[0])
    b_count = count_operand(operation, f"{b_name}_count", b_count, b.shape[0])
    a = sorted_keys(operation, a_name, a, a_count, descending=descending, unique=unique)
    b = sorted_keys(operation, b_name, b, b_count, descending=descending, unique=unique)
    return a, b, a_count, b_count


def _as_index(operation: str, argument: str, x: jax.Array, limit: int) -> jax.Array:
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise type_error(operation, argument, "integers", describe(x))
    if x.dtype in (jnp.int32, jnp.int64):
        return x
    if x.dtype.itemsize < 4:
        return x.astype(jnp.int32)
    # uint32 and uint64: what does not fit a signed integer lies past every array
    signed = jnp.int32 if limit < INT32_LIMIT - 1 else index_dtype(operation, argument, limit + 1)
    past = min(limit + 1, jnp.iinfo(x.dtype).max)
    return jnp.minimum(x, jnp.array(past, x.dtype)).astype(signed)


def expect_leading_axis(operation: str, argument: str, leaves: Sequence[Any], length: int, of: str) -> list[jax.Array]:
    """The leaves of a pytree as arrays, each with a leading axis of this length."""
    arrays = [as_array(operation, argument, leaf) for leaf in leaves]
    for x in arrays:
        if x.ndim == 0 or x.shape[0] != length:
            raise value_error(operation, argument, f"arrays with the leading axis of {of}, {length}", describe(x))
    return arrays
