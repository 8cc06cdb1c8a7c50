"""Scalars: their types, constants and neutral values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import ArrayLike, DTypeLike

Names = Any  # a NumPy array of names of elements

SCALARS = {
    "bool": "bool",
    **{f"{kind}int{width}": f"{kind or 'i'}{width}" for kind in ("", "u") for width in (8, 16, 32, 64)},
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}
MAX_SCALARS = 512  # the most scalars of a value that does not stay in memory
MAX_ITEM_SCALARS = 128


class Unsupported(Exception):
    """A function that no kernel can run; the message names the unsupported part."""


def scalar_type(dtype: DTypeLike) -> str:
    """Returns the lines' name of a dtype."""
    name = np.dtype(dtype).name if not jnp.issubdtype(dtype, jax.dtypes.extended) else str(dtype)
    if name not in SCALARS:
        raise Unsupported(f"values of {name}")
    return SCALARS[name]


def scalar_text(value: ArrayLike, dtype: DTypeLike) -> str:
    """Returns a constant's type and bits."""
    dtype = np.dtype(dtype)
    bits = int(np.asarray(value).astype(dtype).view(f"u{dtype.itemsize}"))
    return f"{scalar_type(dtype)}:{bits:x}"


def expect_small(shape: Sequence[int], what: str) -> None:
    """Raises unless an array is small enough for one name per element."""
    if np.prod(shape) > MAX_SCALARS:
        raise Unsupported(f"{what} of shape {list(shape)}, more than {MAX_SCALARS} scalars")


def neutral(function: str, dtype: DTypeLike) -> Any:
    """Returns the identity of a function of two scalars."""
    dtype = np.dtype(dtype)
    floats = jnp.issubdtype(dtype, jnp.floating)
    if function in ("max", "min"):
        if floats:
            return -np.inf if function == "max" else np.inf
        if dtype == np.bool_:
            return function == "min"
        return np.iinfo(dtype).min if function == "max" else np.iinfo(dtype).max
    zero = -0.0 if floats and function == "add" else 0
    return {"add": zero, "mul": 1, "and_": True if dtype == np.bool_ else -1, "or_": 0, "xor_": 0}[function]
