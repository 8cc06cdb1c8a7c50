"""Makes programs of public functions for any number of items, and counts their equations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.core
import numpy as np

from tests import families
from tests.examples import Example, N
from tests.transformed import loss_of_sums

__all__ = ["SIZED", "equations", "of_items", "operands", "programs"]

# The example of segmented_sort_indices is left out: its flags are a bitmap, whose size is not the number of items.
SIZED = {name: example for name, example in families.EXAMPLES.items() if name != "segmented_sort_indices"}
Program = tuple[Callable[..., Any], list[Any]]


@contextlib.contextmanager
def of_items(n: int) -> Iterator[None]:
    before = [(module, name, getattr(module, name, None)) for module in families.MODULES for name in ("N", "MANY")]
    changed = [(module, name, value) for module, name, value in before if value is not None]
    for module, name, _ in changed:
        setattr(module, name, n)
    try:
        yield
    finally:
        for module, name, value in changed:
            setattr(module, name, value)


def operands(example: Example, n: int) -> list[Any]:
    """Returns the arguments of an example as shapes for n items; n is a multiple of N."""
    given = map(np.asarray, example.make(np.random.default_rng(1), np.float32))
    return [
        jax.ShapeDtypeStruct([n // N * size if size and size % N == 0 else size for size in x.shape], x.dtype)
        for x in given
    ]


def programs(example: Example, n: int) -> dict[str, Program]:
    """Returns a function and its operands for each transformation, to be traced within `of_items(n)`."""
    given = operands(example, n)
    batch = [jax.ShapeDtypeStruct((3, *x.shape), x.dtype) for x in given]
    found: dict[str, Program] = {"plain": (example.call, given), "vmap": (jax.vmap(example.call), batch)}
    if example.differentiable:
        loss = loss_of_sums(example)
        found["grad"] = jax.grad(loss, argnums=example.differentiable), given
        mapped = lambda *xs: jax.vmap(loss)(*xs).sum()  # noqa: E731
        found["grad of vmap"] = jax.grad(mapped, argnums=example.differentiable), batch
    return found


def equations(jaxpr: Any) -> int:
    inner = (part for equation in jaxpr.eqns for part in jax.extend.core.jaxprs_in_params(equation.params))
    return len(jaxpr.eqns) + sum(map(equations, inner))
