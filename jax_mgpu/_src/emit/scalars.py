"""Scalars in C++: their types, constants and neutral values, and how many of them a value may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = [
    "MOST_ITEM_SCALARS",
    "MOST_SCALARS",
    "SCALARS",
    "Names",
    "Unsupported",
    "expect_small",
    "neutral",
    "scalar_text",
    "scalar_type",
]

Names = Any  # a NumPy array of the C++ names of an array's elements

SCALARS = {
    "bool": "bool",
    **{f"{kind}int{width}": f"{kind}int{width}_t" for kind in ("", "u") for width in (8, 16, 32, 64)},
    "float16": "mgpu::Half",
    "bfloat16": "mgpu::BFloat16",
    "float32": "float",
    "float64": "double",
}
MOST_SCALARS = 512  # of a value, unless it stays in memory
MOST_ITEM_SCALARS = 128


class Unsupported(Exception):
    """What is in a function that no kernel can be made of."""


def scalar_type(dtype: Any) -> str:
    """The C++ type of a dtype."""
    name = np.dtype(dtype).name if not jnp.issubdtype(dtype, jax.dtypes.extended) else str(dtype)
    if name not in SCALARS:
        raise Unsupported(f"values of {name}")
    return SCALARS[name]


def scalar_text(value: Any, dtype: Any) -> str:
    """A constant in C++, to the bit."""
    dtype = np.dtype(dtype)
    kind = scalar_type(dtype)
    scalar = np.asarray(value).astype(dtype)[()]
    if dtype == np.bool_:
        return "true" if scalar else "false"
    if dtype.kind in "iu":
        number = int(scalar)
        if number == -(2**63):
            return f"{kind}(-0x7fffffffffffffffll - 1)"
        suffix = "ull" if number >= 2**63 else "ll" if abs(number) >= 2**31 else ""
        return f"{kind}({number}{suffix})"
    if dtype.itemsize > 2 and np.isfinite(scalar):
        return float(scalar).hex() + ("f" if dtype.itemsize == 4 else "")
    word = int(np.asarray(scalar).view(f"u{dtype.itemsize}"))
    return f"xla::bits<{kind}>(uint{8 * dtype.itemsize}_t({word}{'ull' if dtype.itemsize == 8 else 'u'}))"


def expect_small(shape: Sequence[int], what: str) -> None:
    """Small arrays are taken apart, a name an element."""
    if np.prod(shape) > MOST_SCALARS:
        raise Unsupported(f"{what} of shape {list(shape)}, more than {MOST_SCALARS} scalars")


def neutral(function: str, dtype: Any) -> Any:
    """The identity of a function of two scalars, exact in that it changes no bit of what it is combined with."""
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
