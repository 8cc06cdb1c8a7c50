"""What a program calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.core


def kernel_calls(function: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
    """The equations of a program that call kernels, those of inner programs too."""

    def walk(jaxpr: Any) -> Iterator[Any]:
        for equation in jaxpr.eqns:
            if equation.primitive.name.startswith("mgpu_"):
                yield equation
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from walk(inner)

    return walk(jax.make_jaxpr(function)(*arguments).jaxpr)
