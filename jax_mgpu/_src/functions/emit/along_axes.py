"""The primitives that combine elements along axes: sums, prefixes, extrema and products of matrices."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from jax_mgpu._src.arguments.annotations import DTypeLike
from jax_mgpu._src.functions.emit.lines import Equation, Lines
from jax_mgpu._src.functions.emit.scalars import Names, neutral, scalar_text

FOLDS = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "and_",
    "reduce_or": "or_",
    "reduce_xor": "xor_",
}
PREFIXES = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min"}


def _folded(lines: Lines, function: str, items: Sequence[str], dtype: DTypeLike) -> str:
    total = items[0]
    for item in items[1:]:
        total = lines.value(dtype, function, total, item)
    return total


def _fold(lines: Lines, equation: Equation, x: Names, *, function: str) -> Names:
    aval, axes = equation.outvars[0].aval, equation.params["axes"]
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    rows = np.transpose(x, (*kept, *axes)).reshape(*aval.shape, math.prod(x.shape[axis] for axis in axes))
    if rows.shape[-1] == 0:
        return lines.constant(np.full(aval.shape, neutral(function, aval.dtype)), aval.dtype)
    names = np.empty(aval.shape, object)
    for index in np.ndindex(*aval.shape):
        names[index] = _folded(lines, function, list(rows[index]), aval.dtype)
    return names


def _prefixes(lines: Lines, equation: Equation, x: Names, *, function: str) -> Names:
    params, dtype = equation.params, equation.outvars[0].aval.dtype
    rows = np.moveaxis(x, params["axis"], 0)
    rows = rows[::-1] if params["reverse"] else rows
    names = rows.copy()
    for i in range(1, len(rows)):
        for index in np.ndindex(*rows.shape[1:]):
            names[(i, *index)] = lines.value(dtype, function, names[(i - 1, *index)], rows[(i, *index)])
    return np.moveaxis(names[::-1] if params["reverse"] else names, 0, params["axis"])


def _argument(lines: Lines, equation: Equation, x: Names, *, order: str) -> Names:
    aval, item_dtype = equation.outvars[0].aval, equation.invars[0].aval.dtype
    (axis,) = equation.params["axes"]
    rows = np.moveaxis(x, axis, -1)
    names = np.empty(aval.shape, object)
    for index in np.ndindex(*aval.shape):
        best, place = rows[index][0], scalar_text(0, aval.dtype)
        for i, item in enumerate(rows[index][1:], 1):
            better = lines.value(np.bool_, order, item, best)
            best = lines.value(item_dtype, "select", better, item, best)
            place = lines.value(aval.dtype, "select", better, scalar_text(i, aval.dtype), place)
        names[index] = place
    return names


def _dot_general(lines: Lines, equation: Equation, a: Names, b: Names) -> Names:
    aval = equation.outvars[0].aval
    (a_folded, b_folded), (a_batch, b_batch) = equation.params["dimension_numbers"]

    def arranged(x: Names, batch: Sequence[int], folded: Sequence[int]) -> Names:
        free = [axis for axis in range(x.ndim) if axis not in batch and axis not in folded]
        sizes = [int(np.prod([x.shape[axis] for axis in axes])) for axes in (batch, free, folded)]
        return np.transpose(x, (*batch, *free, *folded)).reshape(sizes)

    def wide(x: str, dtype: DTypeLike) -> str:
        return x if dtype == aval.dtype else lines.value(aval.dtype, "convert", x)

    add, mul = ("or_", "and_") if aval.dtype == np.bool_ else ("add", "mul")
    a_dtype, b_dtype = (var.aval.dtype for var in equation.invars)
    a, b = arranged(a, a_batch, a_folded), arranged(b, b_batch, b_folded)
    names = np.empty((a.shape[0], a.shape[1], b.shape[1]), object)
    for batch, i, j in np.ndindex(*names.shape):
        products = [
            lines.value(aval.dtype, mul, wide(x, a_dtype), wide(y, b_dtype))
            for x, y in zip(a[batch, i], b[batch, j], strict=True)
        ]
        names[batch, i, j] = _folded(lines, add, products, aval.dtype) if products else scalar_text(0, aval.dtype)
    return names.reshape(aval.shape)


RULES: dict[str, Callable[..., Names]] = {
    **{name: functools.partial(_fold, function=function) for name, function in FOLDS.items()},
    **{name: functools.partial(_prefixes, function=function) for name, function in PREFIXES.items()},
    "argmax": functools.partial(_argument, order="above"),
    "argmin": functools.partial(_argument, order="below"),
    "dot_general": _dot_general,
}
