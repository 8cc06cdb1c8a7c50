"""Arrays whose items are rows, moved whole: any dtype, any trailing shape."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.check import KEY_DTYPES, as_array, describe, type_error, value_error
from jax_mgpu._src.live import wide_enough

__all__ = ["RowForm", "rows_or_fill"]

# What a handler takes as it is; anything else travels as bytes.
HANDLER_DTYPES = KEY_DTYPES | {"bool", "complex64", "complex128"}


class RowForm:
    """One dtype and trailing shape, and how its arrays are handed to a kernel: as `[n, elements]`, elements > 0."""

    def __init__(self, operation: str, argument: str, x: Any):
        self.operation, self.argument = operation, argument
        x = as_array(operation, argument, x)
        if x.ndim == 0:
            raise value_error(operation, argument, "an array with a leading axis", describe(x))
        if not isinstance(x.dtype, np.dtype):
            raise type_error(operation, argument, "an array of numbers", x.dtype)
        self.dtype, self.trailing = x.dtype, x.shape[1:]

    def pack(self, argument: str, x: Any) -> jax.Array:
        """An array of this form as rows."""
        x = as_array(self.operation, argument, x)
        if x.ndim == 0 or x.shape[1:] != self.trailing:
            shape = ",".join(["n", *map(str, self.trailing)])
            raise value_error(self.operation, argument, f"the rows of {self.argument}, [{shape}]", describe(x))
        if x.dtype != self.dtype:
            raise type_error(self.operation, argument, f"the dtype of {self.argument}, {self.dtype.name}", x.dtype.name)
        elements = math.prod(self.trailing)
        if elements == 0:
            return jax.lax.full_like(x, 0, jnp.uint8, (x.shape[0], 1))  # varies under shard_map as x does
        return self._stored(x).reshape(x.shape[0], elements)

    def unpack(self, rows: jax.Array) -> jax.Array:
        """Rows as an array of this form."""
        shape = (rows.shape[0], *self.trailing)
        if math.prod(self.trailing) == 0:
            return jax.lax.full_like(rows, 0, self.dtype, shape)
        rows = rows.reshape(shape)
        if rows.dtype == self.dtype:
            return rows
        if jnp.issubdtype(self.dtype, jnp.integer):
            return rows.astype(self.dtype)
        return jax.lax.bitcast_convert_type(rows, self.dtype)

    def fill(self, fill_value: Any) -> jax.Array:
        """The element that fills rows without a source, as an operand of shape `[1]`."""
        value = fill_value if isinstance(fill_value, jax.Array) else np.asarray(fill_value)
        if value.ndim != 0:
            raise value_error(self.operation, "fill_value", "a scalar", describe(value))
        if math.prod(self.trailing) == 0:
            return jnp.zeros((1,), jnp.uint8)
        return self._stored(jnp.asarray(value.astype(self.dtype))).reshape(1)

    def _stored(self, x: jax.Array) -> jax.Array:
        if self.dtype.name in HANDLER_DTYPES:
            return x
        if jnp.issubdtype(self.dtype, jnp.integer):  # narrower than a byte
            return x.astype(jnp.int8 if jnp.issubdtype(self.dtype, jnp.signedinteger) else jnp.uint8)
        if self.dtype.itemsize == 1 and jnp.finfo(self.dtype).bits == 8:
            return jax.lax.bitcast_convert_type(x, jnp.uint8)
        raise type_error(self.operation, self.argument, "elements of whole bytes", self.dtype.name)


def rows_or_fill(x: jax.Array, indices: jax.Array, fill: jax.Array) -> jax.Array:
    """Rows of x by index, and rows of the fill element where the index is out of range."""
    n = x.shape[0]
    if n == 0:
        return jnp.broadcast_to(fill, (indices.shape[0], x.shape[1]))
    indices = wide_enough(indices, n)
    valid = (indices >= 0) & (indices < n)
    rows = x.at[jnp.where(valid, indices, n)].get(mode="fill", fill_value=0)
    return jnp.where(valid[:, None], rows, fill)
