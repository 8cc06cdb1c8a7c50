"""Primitives that only move elements, as functions of NumPy arrays of names (emit/__init__.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jax_mgpu._src.functions.emit.scalars import Names


def row(x: Names, i: int) -> Names:
    """Returns a row of names as an array, even if it is one name."""
    row = np.empty(x.shape[1:], object)
    row[...] = x[i]
    return row


def _broadcast_in_dim(x: Names, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_: object) -> Names:
    wide = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, x.shape, strict=True):
        wide[axis] = size
    return np.broadcast_to(x.reshape(wide), shape)


def _slice(
    x: Names, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None
) -> Names:
    steps = strides or [1] * x.ndim
    return x[tuple(slice(*bounds) for bounds in zip(start_indices, limit_indices, steps, strict=True))]


def _split(x: Names, *, sizes: Sequence[int], axis: int) -> list[Names]:
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _pad(x: Names, value: Names, *, padding_config: Sequence[tuple[int, int, int]]) -> Names:
    shape = [
        low + high + n + max(n - 1, 0) * inner for n, (low, high, inner) in zip(x.shape, padding_config, strict=True)
    ]
    padded = np.empty(shape, object)
    padded.fill(value.item())
    for index in np.ndindex(*x.shape):
        place = tuple(low + i * (inner + 1) for i, (low, _, inner) in zip(index, padding_config, strict=True))
        if all(0 <= i < n for i, n in zip(place, shape, strict=True)):
            padded[place] = x[index]
    return padded


def _squeeze(x: Names, *, dimensions: Sequence[int]) -> Names:
    return x.reshape([n for axis, n in enumerate(x.shape) if axis not in {d % x.ndim for d in dimensions}])


def _reshape(x: Names, *, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None, **_: object) -> Names:
    return (x if dimensions is None else np.transpose(x, dimensions)).reshape(new_sizes)


MOVES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": lambda *xs, dimension: np.concatenate(xs, dimension),
    "expand_dims": lambda x, *, dimensions: np.expand_dims(x, dimensions),
    "pad": _pad,
    "reshape": _reshape,
    "rev": lambda x, *, dimensions: np.flip(x, dimensions),
    "slice": _slice,
    "split": _split,
    "squeeze": _squeeze,
    "stack": lambda *xs, axis=0, **_: np.stack(xs, axis),
    "tile": lambda x, *, reps, **_: np.tile(x, reps),
    "transpose": lambda x, *, permutation: np.transpose(x, permutation),
    "unstack": lambda x, *, axis=0, **_: [row(np.moveaxis(x, axis, 0), i) for i in range(x.shape[axis])],
}
