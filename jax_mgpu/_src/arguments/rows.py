"""Converts arrays of any dtype and trailing shape to rows, which kernels move whole, and back."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import ArrayLike, Pytree
from jax_mgpu._src.arguments.check import as_array, describe, fill_operand, type_error, value_error
from jax_mgpu._src.keys.bits import is_random_key


class RowForm:
    """A dtype and a trailing shape; kernels get such arrays as `[n, elements]`, with at least one element."""

    def __init__(self, operation: str, argument: str, x: jax.Array):
        self.operation, self.argument = operation, argument
        self.dtype, self.trailing = x.dtype, x.shape[1:]
        self.random = jax.random.key_impl(x) if is_random_key(x.dtype) else None

    @classmethod
    def packed(cls, operation: str, argument: str, x: Pytree) -> tuple[RowForm, jax.Array]:
        """Returns an argument's form, and the argument as rows `[n, elements]`."""
        x = as_array(operation, argument, x)
        if x.ndim == 0:
            raise value_error(operation, argument, "an array with a leading axis", describe(x))
        form = cls(operation, argument, x)
        return form, form._rows(x)

    def pack(self, argument: str, x: Pytree) -> jax.Array:
        """Returns an argument of this form as rows."""
        x = as_array(self.operation, argument, x)
        if x.ndim == 0 or x.shape[1:] != self.trailing:
            shape = ",".join(["n", *map(str, self.trailing)])
            raise value_error(self.operation, argument, f"the rows of {self.argument}, [{shape}]", describe(x))
        if x.dtype != self.dtype:
            raise type_error(self.operation, argument, f"the dtype of {self.argument}, {self.dtype.name}", x.dtype.name)
        return self._rows(x)

    def _rows(self, x: jax.Array) -> jax.Array:
        if math.prod(self.trailing) == 0:
            # under shard_map, the result varies as x does
            return jax.lax.full_like(self._stored(x), 0, jnp.uint8, (x.shape[0], 1))
        rows = self._stored(x)
        return rows.reshape(x.shape[0], math.prod(rows.shape[1:]))

    def unpack(self, rows: jax.Array) -> jax.Array:
        """Returns rows as an array of this form."""
        shape = (rows.shape[0], *self.trailing)
        if math.prod(self.trailing) == 0:
            return self._nothing(rows, shape)
        if self.random is not None:
            words = rows.shape[1] // math.prod(self.trailing)
            result: jax.Array = jax.random.wrap_key_data(rows.reshape(*shape, words), impl=self.random)
            return result
        return rows.reshape(shape).astype(self.dtype)

    def fill(self, fill_value: ArrayLike) -> jax.Array:
        """Returns the element that fills rows without a source, as an operand of shape `[1]`."""
        dtype = np.dtype(np.uint32) if self.random is not None else self.dtype
        fill = fill_operand(self.operation, fill_value, dtype)
        if math.prod(self.trailing) == 0:
            return jnp.zeros((1,), jnp.uint8)
        return fill if self.random is not None else self._stored(fill)

    def _nothing(self, rows: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Returns an array without elements, which varies as the rows do under shard_map."""
        if self.random is None:
            return jax.lax.full_like(rows, 0, self.dtype, shape)
        words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=self.random))).shape
        result: jax.Array = jax.random.wrap_key_data(
            jax.lax.full_like(rows, 0, jnp.uint32, (*shape, *words)), impl=self.random
        )
        return result

    def _stored(self, x: jax.Array) -> jax.Array:
        """Returns the form in which arrays travel: random keys as words, integers narrower than a byte as bytes."""
        if self.random is not None:
            return jax.random.key_data(x)
        if jnp.issubdtype(self.dtype, jnp.integer) and jnp.iinfo(self.dtype).bits < 8:
            return x.astype(jnp.int8 if jnp.issubdtype(self.dtype, jnp.signedinteger) else jnp.uint8)
        if jnp.issubdtype(self.dtype, jnp.floating) and jnp.finfo(self.dtype).bits < 8:
            raise type_error(self.operation, self.argument, "elements of whole bytes", self.dtype.name)
        return x
