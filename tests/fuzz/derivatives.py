"""Turns a call into one that returns derivatives, which are compared with differences of the oracle.

While the order of items stays the same, each call drawn for derivatives, even a product, is affine in each number. So
central differences of the oracle in float64, with any step that keeps the order, are exactly its Jacobian.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.core.compat import reconcile_vma, vary_as
from tests.fuzz.compare import Near, Zeros, values_of
from tests.fuzz.draw import Call

STEP = 0.25
MOST = 48  # the most numbers to differentiate by


def is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def float_leaves(tree: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(tree) if is_float(x)]


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if is_float(x) else x


class Jacobian:
    """The derivatives of the oracle's float results in the float leaves of named operands."""

    def __init__(self, call: Call, names: tuple[str, ...], operands: dict[str, Any]):
        self.call, self.names = call, names
        self.operands = {n: jax.tree.map(wide, x) if n in names else x for n, x in operands.items()}

    def results(self, named: dict[str, Any]) -> list[np.ndarray]:
        leaves = self.call.oracle(**{**self.operands, **named})
        return [np.zeros(0) if isinstance(x, Zeros) else values_of(x).astype(np.float64) for x in leaves]

    def columns(self, kept: list[int]) -> list[list[list[np.ndarray]]]:
        """Returns, for each number of the operands, the derivatives of the kept results."""
        named = {n: self.operands[n] for n in self.names}
        leaves, structure = jax.tree.flatten(named)
        columns = []
        for at, leaf in enumerate(leaves):
            if not is_float(leaf):
                continue
            columns.append([])
            for i in range(leaf.size):
                sides = []
                for sign in (1, -1):
                    moved = leaf.copy()
                    moved.reshape(-1)[i] += sign * STEP
                    sides.append(self.results(structure.unflatten([*leaves[:at], moved, *leaves[at + 1 :]])))
                with np.errstate(invalid="ignore"):
                    columns[-1].append(
                        [(np.nan_to_num(sides[0][k]) - np.nan_to_num(sides[1][k])) / (2 * STEP) for k in kept]
                    )
        return columns


def names_to_differentiate(call: Call) -> tuple[str, ...]:
    """Returns the names of the differentiable operands of floats; none if they have more than MOST numbers together."""
    operands = call.draw(np.random.default_rng(0), True)
    names = tuple(n for n in call.differentiable if n in operands and all(map(is_float, jax.tree.leaves(operands[n]))))
    names = tuple(n for n in names if jax.tree.leaves(operands[n]))
    total = sum(x.size for n in names for x in jax.tree.leaves(operands[n]))
    return names if total <= MOST else ()


def _error(dtype: Any, expected: np.ndarray, magnitude: float) -> np.ndarray:
    steps = 1 if jnp.finfo(dtype).bits == 8 else 40
    return steps * float(jnp.finfo(dtype).eps) * (np.abs(expected) + magnitude) + 1e-30


def varying_alike(trees: Any, others: Any) -> Any:
    """Returns `trees`, whose leaves, under shard_map, vary over the mesh if any leaf of `trees` or `others` does.

    JAX would add the cotangents of numbers that do not vary over the devices.
    """
    leaves, structure = jax.tree.flatten(trees)
    given = [jnp.asarray(x) for x in (*leaves, *jax.tree.leaves(others))]
    return structure.unflatten(reconcile_vma(given)[: len(leaves)])


def derivative(call: Call, rng: np.random.Generator) -> Call | None:
    """Returns a call for the tangents of results, for the cotangents of operands or for the transpose."""
    names = names_to_differentiate(call)
    if not names:
        return None
    options = ["forward", "reverse", "reverse"]
    if set(names) <= set(call.linear):
        options.append("transpose")
    kind = str(rng.choice(options))

    sample = call.draw(np.random.default_rng(0), True)
    with jax.enable_x64(call.x64):
        shapes = jax.tree.leaves(jax.eval_shape(lambda operands: call.function(**operands), sample))
    kept = [k for k, leaf in enumerate(shapes) if is_float(leaf)]
    if not kept:
        return None
    specs = [shapes[k] for k in kept]

    def split(operands: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        named = {n: operands[n] for n in names}
        return named, {n: x for n, x in operands.items() if n not in names}

    def draw(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        operands = call.draw(rng, mixable)
        named, _ = split(operands)
        like = named if kind == "forward" else specs
        directions = jax.tree.map(lambda x: rng.integers(-1, 2, x.shape).astype(x.dtype), like)
        return {**operands, "direction": directions}

    def function(direction: Any, **operands: Any) -> Any:
        named, others = split(operands)
        named, direction = varying_alike((named, direction), others)

        def floats(named: dict[str, Any]) -> list[Any]:
            leaves = jax.tree.leaves(call.function(**named, **others))
            # Results vary as the directions do, even if they do not depend on the named operands.
            return [vary_as(leaves[k], *jax.tree.leaves(direction)) for k in kept]

        if kind == "forward":
            return jax.jvp(floats, (named,), (direction,))[1]
        if kind == "reverse":
            return jax.tree.leaves(jax.vjp(floats, named)[1](direction)[0])
        return jax.tree.leaves(jax.linear_transpose(floats, named)(direction)[0])

    def expected(direction: Any, **operands: Any) -> list[Any]:
        named, _ = split(operands)
        columns = Jacobian(call, names, operands).columns(kept)
        if kind == "forward":
            along = [float(d) for x in jax.tree.leaves(direction) for d in x.astype(np.float64).reshape(-1)]
            rows = [column for leaf in columns for column in leaf]
            leaves = []
            for k, spec in enumerate(specs):
                exact = np.zeros(spec.shape)
                weight = 0.0
                for d, row in zip(along, rows, strict=True):
                    exact = exact + d * row[k]
                    weight = weight + np.abs(d * row[k])
                leaves.append(Near(exact.astype(spec.dtype), _error(spec.dtype, exact, weight)))
            return leaves
        cotangents = [x.astype(np.float64) for x in direction]
        leaves = []
        for x, column in zip(jax.tree.leaves(named), columns, strict=True):
            exact = np.array(
                [sum(float((c * r).sum()) for c, r in zip(cotangents, row, strict=True)) for row in column]
            )
            weight = np.array(
                [sum(float(np.abs(c * r).sum()) for c, r in zip(cotangents, row, strict=True)) for row in column]
            )
            exact, weight = exact.reshape(x.shape), weight.reshape(x.shape)
            leaves.append(Near(exact.astype(x.dtype), _error(x.dtype, exact, weight)))
        return leaves

    return dataclasses.replace(
        call, text=f"{kind} derivative of {call.text}", function=function, draw=draw, oracle=expected,
        differentiable=(), linear=(),
    )  # fmt: skip
