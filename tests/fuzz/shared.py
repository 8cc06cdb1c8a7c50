"""Helpers of calls in several families."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np

from tests import oracle
from tests.fuzz import draw
from tests.fuzz.compare import Where
from tests.fuzz.draw import Rows, Shape

INT32_LARGEST = 2**31 - 1


def int32(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.int32)


def taken(forms: Any, values: Any, indices: np.ndarray) -> list[Any]:
    return [x[indices] for x in jax.tree.leaves(values)] if forms is not None else []


def filled(forms: Any, values: Any, indices: np.ndarray, size: int, fill: Any) -> list[Any]:
    if forms is None:
        return []
    leaves = []
    for form, x in zip(jax.tree.leaves(forms, is_leaf=draw.is_rows), jax.tree.leaves(values), strict=True):
        rows = oracle.padded(x[indices], size, np.asarray(fill).astype(x.dtype))
        leaves.append(Where(rows, np.arange(size) < len(indices)) if form.dtype == "key" else rows)
    return leaves


def both(a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: np.concatenate([x, y]), a, b)


def differentiable_of(shape: Shape, forms: Any, *names: str) -> tuple[str, ...]:
    return names if forms is not None and shape.derivative else ()


def directed(shape: Shape) -> tuple[Any, Any]:
    """Draws a form of keys with a direction, or a direction per column."""
    dtype, descending = shape.key_form(), shape.flag(0.3)
    if isinstance(dtype, draw.Columns) and shape.flag(0.7):
        descending = dtype.flags
    shape.say(f"descending={descending}" if descending else "")
    return dtype, descending


def ranks_in(descending: Any, *keys: Any) -> list[np.ndarray]:
    """Returns integers that ascend in the order of keys or columns."""
    columns = [x if isinstance(x, tuple) else (x,) for x in keys]
    return list(draw.ranked(descending, *columns)[:-1])


def nulls(keys: Any) -> np.ndarray:
    """Returns which rows have a NaN in their keys."""
    with np.errstate(invalid="ignore"):  # NaNs that signal
        found = [np.isnan(x) if x.dtype.kind not in "iu" else np.zeros(x.shape, bool) for x in jax.tree.leaves(keys)]
    return np.logical_or.reduce(found)


def segments_with_gaps(rng: np.random.Generator, m: int, n: int, dtype: Any, mixable: bool) -> dict[str, np.ndarray]:
    """Draws heads and ends, some past the items. If mixable, the heads of one draw fit the ends of any other."""
    last = min(n, np.iinfo(dtype).max)  # items that the dtype cannot index are in no segment
    if mixable:
        half = last // max(2 * m, 1)
        heads, ends = (np.arange(m) * 2 * half + at + rng.integers(0, half + 1, m) for at in (0, half))
    else:  # An end is at most the next head; of equal heads, all segments but the last are empty.
        heads = draw.positions(rng, m, n, dtype)
        starts = np.minimum(heads, np.asarray(last, dtype)).astype(np.int64)
        ends = starts + (rng.random(m) * (np.append(starts[1:], last)[:m] - starts + 1)).astype(np.int64)
    return {"heads": heads.astype(dtype), "ends": ends.astype(dtype)}


def first_rows(kind: str, a: np.ndarray, b: np.ndarray, size: int) -> tuple[int, np.ndarray]:
    """Returns the number of rows of a join, and the first rows."""
    ranks = oracle.rank(np.concatenate([a, b]))
    found = [np.searchsorted(ranks[len(a) :], ranks[: len(a)], side) for side in ("left", "right")]
    matches = (found[1] - found[0]).astype(np.int64)
    made = np.maximum(matches, 1) if kind in ("left", "outer") else matches
    alone = int((~np.isin(ranks[len(a) :], ranks[: len(a)])).sum()) if kind in ("right", "outer") else 0
    total = int(made.sum()) + alone
    if total <= 4 * size + 1000:
        return total, oracle.join_rows(kind, a, b)[:size]
    few = int(np.searchsorted(np.cumsum(made), size)) + 1
    rows = oracle.join_rows({"right": "inner", "outer": "left"}.get(kind, kind), a[:few], b)[:size]
    if len(rows) < size:
        rows = oracle.join_rows(kind, a, b)[:size]
    return total, rows


def rows_of(shape: Shape, n: int) -> Rows:
    form = shape.rows()
    return Rows(form.dtype, (3,), shape) if n > 5000 and int(np.prod(form.trailing)) > 8 else form


def filled_rows(form: Rows, rows: np.ndarray, size: int, fill: int) -> Any:
    """Returns rows and padding; if rows are JAX's random keys, padding is not compared."""
    padded = oracle.padded(rows, size, np.asarray(0 if form.dtype == "key" else fill).astype(rows.dtype))
    return Where(padded, np.arange(size) < len(rows)) if form.dtype == "key" else padded


def segments(x: np.ndarray, heads: np.ndarray, live: int) -> list[np.ndarray]:
    bounds = np.append(np.clip(heads.astype(np.float64), 0, live).astype(np.int64), live)
    return [x[begin:end] for begin, end in itertools.pairwise(bounds)]


def mixed_pair(shape: Shape, rng: np.random.Generator, dtype: Any, n_a: int, n_b: int) -> tuple[Any, Any]:
    """Draws two unsorted arrays of keys or columns that may share keys."""
    a, b = draw.sorted_pair(shape, rng, dtype, n_a, n_b, False, None, None)
    orders = rng.permutation(n_a), rng.permutation(n_b)
    return jax.tree.map(lambda x: x[orders[0]], a), jax.tree.map(lambda x: x[orders[1]], b)
