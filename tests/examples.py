"""Classes and helpers of the examples in tests/families/."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Example:
    """A call of an operation.

    Attributes:
      call: the operation over positional array arguments.
      make: makes valid arguments, always of the same shapes, from a generator and a dtype.
      differentiable: positions of the arguments that have derivatives.
      counts: positions of the live counts.
      exact: whether a batch has the same bits as single calls. Float sums may differ in order.
      composed: whether the operation is made of others that have their own examples, so that `KERNELS` lacks it.
    """

    call: Callable[..., Any]
    make: Callable[[np.random.Generator, Any], tuple[Any, ...]]
    differentiable: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    exact: bool = True
    composed: bool = False


N = 60


def distinct(rng: np.random.Generator, dtype: Any, n: int = N) -> np.ndarray:
    """Draws keys that are so far apart that finite differences keep their order."""
    return rng.permutation(n).astype(dtype)


def ascending(rng: np.random.Generator, dtype: Any, n: int = N) -> np.ndarray:
    return np.sort(rng.choice(4 * n, n, replace=False)).astype(dtype)


def few(rng: np.random.Generator, n: int = N, values: int = 13) -> np.ndarray:
    return np.sort(rng.integers(0, values, n)).astype(np.int32)


def numbers(rng: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray:
    return rng.normal(size=shape or N).astype(dtype)


def positions(rng: np.random.Generator, m: int = 6, n: int = N) -> np.ndarray:
    """Draws sorted positions, the last of which is padding."""
    return np.append(np.sort(rng.integers(0, n, m - 1)), n).astype(np.int32)


def unique_positions(rng: np.random.Generator, m: int = 20, n: int = N) -> np.ndarray:
    return np.sort(rng.choice(n, m, replace=False)).astype(np.int32)


def segments_apart(rng: np.random.Generator, m: int = 6, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Returns starts and ends of segments; there may be gaps between them."""
    heads = unique_positions(rng, m, n)
    ends = np.append(heads[1:], n) - rng.integers(0, 3, m)
    return heads, np.maximum(heads, ends).astype(np.int32)


def live(rng: np.random.Generator, n: int = N) -> np.int32:
    return np.int32(rng.integers(n // 2, n + 1))


def interval_operands(rng: np.random.Generator, m: int = 9) -> tuple[np.ndarray, np.ndarray, np.int32]:
    """Returns starts and offsets of m intervals, and the sum of their lengths, at most 5 m.

    Starts are 7 apart, so that intervals do not overlap if a batch pairs them with another problem's lengths. The last
    interval has the last start, because another problem's total can make it longer.
    """
    lengths = rng.integers(0, 6, m)
    starts = np.append(rng.permutation(m - 1), m - 1) * 7
    return starts.astype(np.int32), (np.cumsum(lengths) - lengths).astype(np.int32), np.int32(lengths.sum())


def of_segments(call: Callable[..., Any], row: tuple[int, ...] = (), **options: Any) -> Example:
    """Returns an example over items or rows, heads of segments, and a live count."""
    return Example(
        call,
        lambda rng, real: (numbers(rng, real, N, *row), positions(rng), live(rng)),
        differentiable=(0,),
        counts=(2,),
        **options,
    )


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument whose misuse its name does not imply.

    Attributes:
      kind: the kind of its misuse, from tests/fuzz/misuse.py; None: separate tests break it.
      value: a valid value, if it differs from that of other arguments with this name.
    """

    kind: str | None
    value: Any = None


# ---- Operands that break preconditions -------------------------------------------------------------------------------

# A call of `GARBAGE` gets two unsorted arrays of keys, then positions, then any integers.
MANY = 150_000

# `BROKEN` maps "operation: argument" to a call, the expectation, and the first offending position.
KEYS = np.array([1, 3, 2, 5, 4, 9], np.int32)
ASCENDING = np.arange(6, dtype=np.int32)
OFFSETS = np.array([0, 2, 3], np.int32)
POSITIONS = "non-negative integers in non-decreasing order"
HEADS = f"{POSITIONS} (Segments.from_lengths takes lengths)"


def keys_in(order: str) -> str:
    return f"keys in {order} order"


def at_most(size: int) -> str:
    return f"at most {size} results"


def integer_to(limit: int) -> str:
    return f"an integer from 0 to {limit}"


def columns_with(keys: np.ndarray, place: int | None, width: int) -> tuple[np.ndarray, ...]:
    return tuple(keys if i == place else np.zeros_like(keys) for i in range(width))


Broken = tuple[Callable[[], Any], str, int]


def broken_columns(call: Callable[..., Any], width: int) -> dict[str, Broken]:
    return {
        f"{call.__name__}: {side}[{i}]": (
            functools.partial(call, **{x: columns_with(KEYS, i if x == side else None, width) for x in ("a", "b")}),
            keys_in("ascending") + (", where the columns before are equal" if i else ""),
            2,
        )
        for side in ("a", "b")
        for i in range(width)
    }


def broken_ends(call: Callable[..., Any], *before: Any, items: Any = KEYS, **named: Any) -> dict[str, Broken]:
    """Returns a call with a segment that ends within the next one; `before` follow the heads by position."""
    run = functools.partial(call, items, [0, 2, 2, 5], *before, ends=[2, 2, 6, 9], **named)
    return {f"{call.__name__}: ends": (run, "segments that do not overlap", 2)}
