"""Primitives that index by data: they select among names of small arrays, and load from large ones."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import ArrayLike, DTypeLike
from jax_mgpu._src.functions.emit.lines import Equation, Lines
from jax_mgpu._src.functions.emit.memory import Memory
from jax_mgpu._src.functions.emit.scalars import Names, expect_small, scalar_text


def _place(lines: Lines, start: str, size: int) -> str:
    """Returns the place below `size` nearest to a start: a number if it is known, else the name of a value."""
    if size == 1:
        return "0"
    if start in lines.constants:
        return str(int(np.clip(lines.constants[start], 0, size - 1)))
    return lines.value(np.int64, "nearest_place", start, size)


def _picked(lines: Lines, place: str, choices: Sequence[str], dtype: DTypeLike) -> str:
    if place.isdecimal():
        return choices[int(place)]
    return lines.value(dtype, "pick", place, *choices)


def _all_of(lines: Lines, conditions: Sequence[str]) -> str | None:
    """Whether all conditions hold; None if there are none."""
    if not conditions:
        return None
    return functools.reduce(lambda a, b: lines.value(np.bool_, "and_", a, b), conditions)


def _window(lines: Lines, x: Names, places: Sequence[str], sizes: Sequence[int], dtype: DTypeLike) -> Names:
    """Returns the slice of an array that begins at these places."""
    for axis, (place, size) in enumerate(zip(places, sizes, strict=True)):
        choices: list[Names] = [np.take(x, range(k, k + size), axis) for k in range(x.shape[axis] - size + 1)]
        picked = np.empty(choices[0].shape, object)
        for index in np.ndindex(*picked.shape):
            picked[index] = _picked(lines, place, [choice[index] for choice in choices], dtype)
        x = picked
    return x


def _dynamic_slice(lines: Lines, equation: Equation, x: Any, *starts: Any) -> list[Any]:
    sizes = equation.params["slice_sizes"]
    starts = tuple(lines.loaded(start).item() for start in starts)
    places = [_place(lines, start, n - size + 1) for start, n, size in zip(starts, x.shape, sizes, strict=True)]
    if isinstance(x, Memory):
        return [x.shifted(zip(places, x.strides, strict=True), sizes, x.strides)]
    expect_small(sizes, "dynamic_slice")
    return [_window(lines, x, places, sizes, equation.outvars[0].aval.dtype)]


def _gather(lines: Lines, equation: Equation, x: Any, indices: Any) -> list[Any]:
    params, aval = equation.params, equation.outvars[0].aval
    dims, sizes = params["dimension_numbers"], params["slice_sizes"]
    expect_small(aval.shape, "gather")
    indices = lines.loaded(indices)
    fills = "FILL" in str(params["mode"])
    hidden = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    offset_axes = [axis for axis in range(x.ndim) if axis not in hidden]
    batch_axes = [axis for axis in range(aval.ndim) if axis not in dims.offset_dims]
    names = np.empty(aval.shape, object)
    windows: dict[tuple[int, ...], tuple[Any, str | None]] = {}
    for index in np.ndindex(*aval.shape):
        batch = tuple(index[axis] for axis in batch_axes)
        if batch not in windows:
            windows[batch] = _gathered(lines, x, indices, batch, dims, sizes, fills, aval.dtype)
        window, inside = windows[batch]
        offset = [0] * x.ndim
        for axis, place in zip(offset_axes, dims.offset_dims, strict=True):
            offset[axis] = index[place]
        name = lines.element(window, offset) if isinstance(window, Memory) else window[tuple(offset)]
        if inside is not None:
            fill = scalar_text(_gather_fill(params["fill_value"], aval.dtype), aval.dtype)
            name = lines.value(aval.dtype, "select", inside, name, fill)
        names[index] = name
    return [names]


def _gathered(
    lines: Lines,
    x: Any,
    indices: Names,
    batch: tuple[int, ...],
    dims: Any,
    sizes: Sequence[int],
    fills: bool,
    dtype: DTypeLike,
) -> tuple[Any, str | None]:
    """Returns the window at one start, and whether it is inside, if that matters."""
    places, checks = ["0"] * x.ndim, []
    for axis, start_axis in zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True):
        places[axis] = str(batch[start_axis])
    for k, axis in enumerate(dims.start_index_map):
        start, room = indices[(*batch, k)], x.shape[axis] - sizes[axis] + 1
        places[axis] = _place(lines, start, room)
        if fills:
            checks.append(lines.value(np.bool_, "is_place", start, room))
    inside = _all_of(lines, checks)
    if isinstance(x, Memory):
        return x.shifted(zip(places, x.strides, strict=True), sizes, x.strides), inside
    return _window(lines, x, places, sizes, dtype), inside


def _gather_fill(fill: ArrayLike | None, dtype: DTypeLike) -> Any:
    if fill is not None:
        return fill
    if jnp.issubdtype(dtype, jnp.floating):
        return np.nan
    if np.dtype(dtype) == np.bool_:
        return True
    return np.iinfo(dtype).min if np.issubdtype(dtype, np.signedinteger) else np.iinfo(dtype).max


def _dynamic_update_slice(lines: Lines, equation: Equation, x: Names, update: Names, *starts: Names) -> Names:
    dtype = equation.outvars[0].aval.dtype
    ends = [n - size + 1 for n, size in zip(x.shape, update.shape, strict=True)]
    places = [_place(lines, start.item(), end) for start, end in zip(starts, ends, strict=True)]
    names = np.empty(x.shape, object)
    for index in np.ndindex(*x.shape):
        name = x[index]
        for begin in itertools.product(
            *(range(int(p), int(p) + 1) if p.isdecimal() else range(e) for p, e in zip(places, ends, strict=True))
        ):
            inside = tuple(i - b for i, b in zip(index, begin, strict=True))
            if not all(0 <= i < size for i, size in zip(inside, update.shape, strict=True)):
                continue
            here = _all_of(
                lines,
                [
                    lines.value(np.bool_, "eq", p, scalar_text(b, np.int64))
                    for p, b in zip(places, begin, strict=True)
                    if not p.isdecimal()
                ],
            )
            chosen = update[inside]
            name = chosen if here is None else lines.value(dtype, "select", here, chosen, name)
        names[index] = name
    return names


# These also take arrays that stay in memory.
OF_MEMORY: dict[str, Callable[..., Any]] = {"dynamic_slice": _dynamic_slice, "gather": _gather}
RULES: dict[str, Callable[..., Names]] = {"dynamic_update_slice": _dynamic_update_slice}
