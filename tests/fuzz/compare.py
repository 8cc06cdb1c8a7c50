"""Compares a program's results with the oracle's, leaf by leaf.

An expected leaf is an array, which results must match bit for bit, or one of the classes below.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tests import oracle


class Mismatch(Exception):
    """A result that differs from the expected one."""


@dataclasses.dataclass(frozen=True)
class Near:
    """Values that may differ by an error per item; items that are not finite must be equal."""

    expected: np.ndarray
    error: Any


@dataclasses.dataclass(frozen=True)
class Equal:
    """Equal values; any NaN stands for a NaN, and either zero for a zero."""

    expected: np.ndarray


@dataclasses.dataclass(frozen=True)
class Repeated(Equal):
    """Equal values, or zeros for subnormal numbers. For narrow floats that do not depend on the batch (modes.py)."""


@dataclasses.dataclass(frozen=True)
class Zeros:
    """A leaf of zeros, of any shape."""


@dataclasses.dataclass(frozen=True)
class Where:
    """The expected rows where `live` is set. Other rows are not compared."""

    expected: np.ndarray
    live: np.ndarray


@dataclasses.dataclass(frozen=True)
class Batch:
    """A leaf that has an expected leaf for each item of the leading axis."""

    leaves: Sequence[Any]


def values_of(leaf: Any) -> np.ndarray:
    if isinstance(leaf, Batch):
        return np.stack([values_of(row) for row in leaf.leaves])
    return leaf.expected if isinstance(leaf, Near | Equal | Where) else np.asarray(leaf)


def holds_items(leaf: Any) -> bool:
    return bool(all(map(holds_items, leaf.leaves)) and leaf.leaves if isinstance(leaf, Batch) else values_of(leaf).size)


def compare(got: Any, leaf: Any, path: str) -> None:
    got = np.asarray(got)
    if isinstance(leaf, Batch):
        if got.shape[:1] != (len(leaf.leaves),):
            raise Mismatch(f"{path}: shape {got.shape}, expected a batch of {len(leaf.leaves)}")
        for row, expected in enumerate(leaf.leaves):
            compare(got[row], expected, f"{path}[{row}]")
        return
    if isinstance(leaf, Zeros):
        if np.any(got):
            raise Mismatch(f"{path}: expected zeros, got {got}")
        return
    expected = values_of(leaf)
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        raise Mismatch(f"{path}: {got.dtype}{list(got.shape)}, expected {expected.dtype}{list(expected.shape)}")
    wrong = _wrong(got, leaf, expected).reshape(expected.shape)
    if isinstance(leaf, Where):
        wrong &= leaf.live.reshape(-1, *[1] * (wrong.ndim - 1))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise Mismatch(
            f"{path}: {int(wrong.sum())} of {wrong.size} wrong, first at {at}: {got[at]!r}, expected {expected[at]!r}"
        )


def _wrong(got: np.ndarray, leaf: Any, expected: np.ndarray) -> np.ndarray:
    if not isinstance(leaf, Near | Equal):
        if expected.dtype.name in ("int4", "uint4"):
            return got.astype(np.int8) != expected.astype(np.int8)
        if expected.dtype.kind in "biu":
            return got != expected
        if expected.dtype.itemsize == 16:
            return (oracle.bits(got.real) != oracle.bits(expected.real)) | (
                oracle.bits(got.imag) != oracle.bits(expected.imag)
            )
        return oracle.bits(got) != oracle.bits(expected)
    if expected.dtype.kind in "biu":
        return got != expected
    with np.errstate(all="ignore"):
        wide, right = got.astype(np.float64), expected.astype(np.float64)
        wrong = ~((wide == right) | (np.isnan(wide) & np.isnan(right)))
        if isinstance(leaf, Repeated):
            wrong &= ~((wide == 0) & (np.abs(right) < float(ml_dtypes.finfo(expected.dtype).smallest_normal)))
        if isinstance(leaf, Near):
            wrong &= ~(np.abs(wide - right) <= leaf.error)
        return wrong
