"""Captured arrays that stay in memory, and views of these arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jax_mgpu._src.arguments.annotations import DTypeLike
from jax_mgpu._src.arguments.check import describe
from jax_mgpu._src.functions.emit.scalars import Unsupported, scalar_type

MAX_CAPTURES = 16  # as many as ffi/function/item.h has room for


@dataclasses.dataclass(frozen=True)
class Memory:
    """A captured array, or a view of one, that stays in memory."""

    capture: int  # the number of the captured array
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    steps: tuple[tuple[str, int], ...] = ()  # names of places that are known at run time, and their strides

    @classmethod
    def of(cls, capture: int, dtype: DTypeLike, shape: Sequence[int]) -> Memory:
        """Returns the reference to a whole array."""
        strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        return cls(capture, np.dtype(dtype), tuple(shape), tuple(strides))

    @property
    def size(self) -> int:
        """The number of its elements."""
        return int(np.prod(self.shape))

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return len(self.shape)

    def shifted(self, steps: Iterable[tuple[str, int]], shape: Sequence[int], strides: Sequence[int]) -> Memory:
        """Returns a view that begins further on, by each place (a number or a name) times its stride."""
        offset, named = self.offset, list(self.steps)
        for place, stride in steps:
            if place.isdecimal():
                offset += int(place) * stride
            else:
                named.append((place, stride))
        return dataclasses.replace(self, shape=tuple(shape), strides=tuple(strides), offset=offset, steps=tuple(named))


class Captures:
    """The captured arrays that stay in memory."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []

    def __call__(self, const: Any) -> Memory:
        """Returns the reference to an array."""
        known = [i for i, other in enumerate(self.arrays) if other is const]
        if not known:
            known = [len(self.arrays)]
            self.arrays.append(const)
        if len(self.arrays) > MAX_CAPTURES:
            raise Unsupported(f"more than {MAX_CAPTURES} captured arrays")
        scalar_type(const.dtype)
        return Memory.of(known[0], const.dtype, const.shape)


def _view_squeeze(x: Memory, params: Mapping[str, Any]) -> Memory:
    gone = {d % x.ndim for d in params["dimensions"]}
    kept = [axis for axis in range(x.ndim) if axis not in gone]
    return x.shifted([], [x.shape[axis] for axis in kept], [x.strides[axis] for axis in kept])


def _view_transpose(x: Memory, params: Mapping[str, Any]) -> Memory:
    order = params["permutation"]
    return x.shifted([], [x.shape[axis] for axis in order], [x.strides[axis] for axis in order])


def _view_slice(x: Memory, params: Mapping[str, Any]) -> Memory:
    starts, steps = params["start_indices"], params["strides"] or [1] * x.ndim
    shape = [
        -(-(limit - start) // step) for start, limit, step in zip(starts, params["limit_indices"], steps, strict=True)
    ]
    strides = [stride * step for stride, step in zip(x.strides, steps, strict=True)]
    return x.shifted(zip(map(str, starts), x.strides, strict=True), shape, strides)


def _view_broadcast(x: Memory, params: Mapping[str, Any]) -> Memory:
    shape, strides = params["shape"], [0] * len(params["shape"])
    for axis, place in enumerate(params["broadcast_dimensions"]):
        strides[place] = x.strides[axis] if x.shape[axis] == shape[place] else 0
    return x.shifted([], shape, strides)


def _view_reshape(x: Memory, params: Mapping[str, Any]) -> Memory:
    whole = Memory.of(x.capture, x.dtype, x.shape)
    axes = [axis for axis, n in enumerate(x.shape) if n != 1]
    if params.get("dimensions") is not None or any(x.strides[axis] != whole.strides[axis] for axis in axes):
        raise Unsupported(f"reshape of a slice, transpose or broadcast of a captured array, {describe(x)}")
    shape = tuple(params["new_sizes"])
    return x.shifted([], shape, Memory.of(x.capture, x.dtype, shape).strides)


# Primitives that give views of arrays in memory.
VIEWS: dict[str, Callable[[Memory, Any], Memory]] = {
    "broadcast_in_dim": _view_broadcast,
    "reshape": _view_reshape,
    "slice": _view_slice,
    "squeeze": _view_squeeze,
    "transpose": _view_transpose,
}
