"""Expected results in NumPy and plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd


def rank(keys: np.ndarray) -> np.ndarray:
    """Returns integers that compare like keys: NaNs are last and equal, both zeros are equal."""
    keys = np.asarray(keys)
    is_integer, is_narrow = keys.dtype.kind in "iub", keys.dtype.itemsize <= 4
    if is_integer and is_narrow:
        return keys.astype(np.int64)
    if is_integer:
        return np.unique(keys, return_inverse=True)[1].reshape(keys.shape)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wide = keys.astype(np.float32 if is_narrow else np.float64) + 0.0
    nan = np.isnan(wide)
    if is_narrow:  # a float is a sign and a magnitude
        words = wide.view(np.int32).astype(np.int64)
        return np.where(nan, 2**31, np.where(words < 0, -(words & 0x7FFFFFFF), words))
    ranks = np.unique(np.where(nan, 0.0, wide), return_inverse=True)[1].reshape(keys.shape)
    return np.where(nan, keys.size + 1, ranks)


def column_ranks(columns: Sequence[np.ndarray], descending: bool | Sequence[bool] = False) -> np.ndarray:
    """Returns integers that compare as tuples of columns, each with its direction."""
    flags = [descending] * len(columns) if isinstance(descending, bool) else descending
    ranks = [-rank(x) if down else rank(x) for x, down in zip(columns, flags, strict=True)]
    tuples = list(zip(*(x.tolist() for x in ranks), strict=True))
    places = {item: place for place, item in enumerate(sorted(set(tuples)))}
    return np.array([places[item] for item in tuples], np.int64)


def sort_indices(keys: np.ndarray, descending: bool = False) -> np.ndarray:
    return np.lexsort(sort_columns(np.asarray(keys), descending))


def segment_bounds(n: int, heads: np.ndarray, count: int | None = None) -> list[tuple[int, int]]:
    """Returns begin and end of each non-empty segment of the live items."""
    live = n if count is None else max(0, min(int(count), n))
    starts = sorted({0, *(int(h) for h in np.asarray(heads) if 0 <= h < live)})
    return [(b, e) for b, e in zip(starts, [*starts[1:], live], strict=True) if b < e]


def segmented_sort_indices(
    keys: np.ndarray,
    heads: np.ndarray,
    descending: bool = False,
    count: int | None = None,
    ends: np.ndarray | None = None,
) -> np.ndarray:
    """Returns the stable order within each segment; items that are dead or in no segment stay in place."""
    n = len(keys)
    live = n if count is None else max(0, min(int(count), n))
    heads = np.asarray(heads, np.int64)
    if ends is not None:
        order = np.arange(n)
        for begin, end in zip(heads.tolist(), np.asarray(ends).tolist(), strict=True):
            segment = slice(max(begin, 0), max(0, min(end, live)))
            order[segment] = order[segment][sort_indices(keys[segment], descending)]
        return order
    segments = np.cumsum(np.bincount(heads[(heads >= 0) & (heads < live)], minlength=live))
    if segments.size and segments[-1] < 2**16:
        segments = segments.astype(np.uint16)  # NumPy sorts integers of 16 bits by digits
    return np.concatenate([np.lexsort((*sort_columns(keys[:live], descending), segments)), np.arange(live, n)])


def sort_columns(keys: np.ndarray, descending: bool) -> list[np.ndarray]:
    """Returns columns for np.lexsort, the most significant one last."""
    if keys.dtype.kind in "iub":
        return [~keys if descending else keys]
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wide = keys.astype(np.promote_types(keys.dtype, np.float32))
    nan = np.isnan(wide)
    numbers = np.where(nan, 0, wide)
    return [-numbers, ~nan] if descending else [numbers, nan]


def bits(x: np.ndarray) -> np.ndarray:
    """Returns an array's bits as unsigned integers; complex128 is returned unchanged."""
    x = np.ascontiguousarray(x)
    return x.view(f"u{x.dtype.itemsize}") if x.dtype.kind not in "bcV" or x.dtype.itemsize <= 8 else x


def same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    np.testing.assert_array_equal(bits(got), bits(expected))


def work_items(offsets: np.ndarray, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns each work item's object, and its position within it."""
    offsets = np.asarray(offsets).astype(np.int64)
    ends = np.append(offsets[1:], total)[: len(offsets)]
    lengths = np.clip(ends, 0, total) - np.clip(offsets, 0, total)
    objects = np.repeat(np.arange(len(offsets)), lengths)
    return objects, np.arange(len(objects)) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def padded(rows: np.ndarray, size: int, fill_value) -> np.ndarray:
    out = np.full((size, *rows.shape[1:]), fill_value).astype(rows.dtype)
    out[: len(rows)] = rows[:size]
    return out


def moved(x: np.ndarray, sources: np.ndarray, places: np.ndarray, into: np.ndarray) -> np.ndarray:
    """Returns `into` with row sources[i] of x at places[i]; pairs out of range are dropped."""
    keep = (sources >= 0) & (sources < len(x)) & (places >= 0) & (places < len(into))
    out = into.copy()
    out[places[keep]] = x[sources[keep]]
    return out


def live_count(count: int | None, n: int) -> int:
    return n if count is None else max(0, min(int(count), n))


def merge_indices(
    a: np.ndarray, b: np.ndarray, descending: bool = False, a_count: int | None = None, b_count: int | None = None
) -> np.ndarray:
    """Returns the stable merge of live items, as positions in a followed by b."""
    a_live, b_live = live_count(a_count, len(a)), live_count(b_count, len(b))
    positions = np.concatenate([np.arange(a_live), len(a) + np.arange(b_live)])
    return positions[sort_indices(np.concatenate([a, b])[positions], descending)]


def sorted_search(
    needles: np.ndarray,
    haystack: np.ndarray,
    side: str = "left",
    needles_count: int | None = None,
    haystack_count: int | None = None,
) -> np.ndarray:
    """Returns insertion points, and -1 for dead needles."""
    n, m = live_count(needles_count, len(needles)), live_count(haystack_count, len(haystack))
    ranks = rank(np.concatenate([needles[:n], haystack[:m]]))
    found = np.searchsorted(ranks[n:], ranks[:n], side)
    return np.concatenate([found, np.full(len(needles) - n, -1)]).astype(np.int64)


def identity(op: str, dtype: np.dtype) -> np.ndarray:
    """Returns the result over no items."""
    if op in ("add", "mul"):
        return np.array(op == "mul", dtype)
    if op in ("argmin", "argmax"):
        return np.array(-1, np.int32)
    if dtype.kind in "iu":
        return np.array(np.iinfo(dtype).max if op == "min" else np.iinfo(dtype).min, dtype)
    return np.array(np.inf if op == "min" else -np.inf, dtype)


def prefixes(states: Sequence[np.ndarray], begins: np.ndarray, combine: Callable[..., Any]) -> list[np.ndarray]:
    """Combines the states from `begins[i]` to i, for each i."""
    states, distance = list(states), 1
    while distance < len(begins):
        reaches = np.arange(distance, len(begins)) - distance >= begins[distance:]
        if not reaches.any():
            break
        combined = combine([s[:-distance] for s in states], [s[distance:] for s in states])
        states = [
            np.concatenate([s[:distance], np.where(reaches.reshape(-1, *[1] * (s.ndim - 1)), c, s[distance:])])
            for s, c in zip(states, combined, strict=True)
        ]
        distance *= 2
    return states


def segment_firsts(n: int, heads: np.ndarray, reverse: bool = False) -> np.ndarray:
    """Returns where each position's segment begins; with `reverse`, positions are those of the reversed array."""
    heads = np.asarray(heads)
    starts = np.zeros(n, bool)
    starts[:1] = True
    starts[heads[(heads >= 0) & (heads < n)].astype(np.int64)] = True
    firsts = np.flatnonzero(starts)
    segments = np.cumsum(starts) - 1
    return n - np.append(firsts[1:], n)[segments][::-1] if reverse else firsts[segments]


def segmented_scan(
    x: np.ndarray, heads: np.ndarray, op: str, exclusive: bool = False, reverse: bool = False, count: int | None = None
) -> np.ndarray:
    """Returns each segment's scan; past the live items 0, or -1 for indices."""
    x = np.asarray(x)
    live = live_count(count, len(x))
    begins = segment_firsts(live, heads, reverse)
    turn = slice(None, None, -1 if reverse else 1)
    is_index = op.startswith("arg")
    with np.errstate(invalid="ignore", over="ignore"):
        if op in ("add", "mul"):
            wide = np.uint64 if x.dtype.kind in "iu" else np.longdouble if x.dtype == np.float64 else np.float64
            combine = np.add if op == "add" else np.multiply
            (states,) = prefixes([x[:live][turn].astype(wide)], begins, lambda a, b: [combine(a[0], b[0])])
            results = states.astype(x.dtype)
        else:
            ranks = rank(x[:live]).astype(np.int64)
            ranks = np.where(np.isnan(x[:live].astype(np.float64)), -(2**33), -ranks if op.endswith("max") else ranks)
            codes = ranks * live + np.arange(live)  # the lowest index wins among equals
            (codes,) = prefixes([codes[turn]], begins, lambda a, b: [np.minimum(a[0], b[0])])
            indices = codes % max(live, 1)
            results = indices.astype(np.int32) if is_index else x[indices]
    if exclusive:
        nothing = identity(op, x.dtype).astype(results.dtype)
        results = np.where(begins == np.arange(live), nothing, np.append(nothing, results)[:live])
    dead = np.full(len(x) - live, -1 if is_index else 0, results.dtype)
    return np.concatenate([results[turn], dead])


def scan(x: np.ndarray, op: str, exclusive: bool = False, reverse: bool = False) -> np.ndarray:
    """Combines each prefix or, with `reverse`, each suffix."""
    return segmented_scan(x, np.zeros(0, np.int32), op, exclusive, reverse)


def total(x: np.ndarray, op: str) -> np.ndarray:
    """Returns the last item of a scan; without items, the identity."""
    return scan(x, op)[-1] if len(x) else identity(op, x.dtype)


def summed(x: np.ndarray, op: str) -> np.ndarray:
    """Converts items as reductions do: for sums and products, integers of 8 and 16 bits to the type of jnp.sum."""
    is_narrow = op in ("add", "mul") and x.dtype.kind in "iu" and x.dtype.itemsize < 4
    return x.astype(jax.eval_shape(jnp.sum, x).dtype) if is_narrow else x


def reduce(x: np.ndarray, op: str) -> np.ndarray:
    return total(summed(x, op), op)


def segmented_reduce(x: np.ndarray, heads: np.ndarray, op: str, count: int | None = None) -> np.ndarray:
    """Combines each segment, one per head; an empty segment has the identity."""
    x, heads = summed(np.asarray(x), op), np.asarray(heads)
    live = live_count(count, len(x))
    bounds = np.append(np.clip(heads.astype(np.float64), 0, live).astype(np.int64), live)
    nothing = identity(op, x.dtype)
    if live == 0:
        return np.full(len(heads), nothing, nothing.dtype)
    results = segmented_scan(x, heads, op, count=live)[np.maximum(bounds[1:], 1) - 1]
    return np.where(bounds[:-1] < bounds[1:], results, nothing.astype(results.dtype))


SAME_OPERATORS = {"sum": "add", "prod": "mul"}
BIT_OPERATORS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def partial_derivatives(x: np.ndarray, op: str) -> np.ndarray:
    """Returns the float64 derivative of min, max, mul or logsumexp with respect to each item."""
    weights = np.zeros(len(x))
    if not len(x):
        return weights
    if op in ("min", "max"):
        weights[combined(x, "arg" + op)] = 1
        return weights
    x = x.astype(np.float64)
    if op == "mul":
        weights[:] = [np.prod(np.delete(x, i)) for i in range(len(x))]
    elif np.isnan(x).any():
        weights[:] = np.nan
    elif (x == np.inf).any():
        weights[x == np.inf] = np.nan
    elif (x > -np.inf).any():
        weights[:] = np.exp(x - x.max())
        weights /= weights.sum()
    return weights


STATISTICS = ("var", "std", "median", "nunique", "count", "first", "last")
NAN_FORMS = {"nansum": "sum", "nanmean": "mean", "nanmin": "min", "nanmax": "max"}


def statistic(x: np.ndarray, op: str, ddof: float = 0) -> np.ndarray:
    """Returns a statistic as NumPy or pandas does; of too few items, NaN or 0."""
    is_float = x.dtype.kind not in "iub"
    if op == "count":
        return np.int32(len(x))
    if op in ("first", "last"):
        return x[0 if op == "first" else -1] if len(x) else np.zeros(x.shape[1:], x.dtype)
    columns = x.reshape(len(x), int(np.prod(x.shape[1:]))).T
    if op == "nunique":
        found = [len(pd.unique(column.astype(np.float64) + 0 if is_float else column)) for column in columns]
        return np.array(found, np.int32).reshape(x.shape[1:])
    if op in NAN_FORMS:
        if not is_float:
            return combined(x, NAN_FORMS[op])
        kept = [column[~np.isnan(column.astype(np.float64))] for column in columns]
        found = [combined(column, NAN_FORMS[op]) if len(column) or op == "nansum" else np.nan for column in kept]
        return np.array(found, x.dtype).reshape(x.shape[1:])
    dtype = x.dtype if is_float else np.dtype(np.float64)
    wide = columns.astype(np.longdouble)
    options, least = ({}, 0) if op == "median" else ({"ddof": ddof}, ddof)
    found = [getattr(np, op)(column, **options) if len(column) > least else np.nan for column in wide]
    return np.array(found, np.longdouble).astype(dtype).reshape(x.shape[1:])


def combined(x: np.ndarray, op: str, widens: bool = True) -> np.ndarray:
    """Combines rows `x[n, ...]` by a named operator; with `widens`, sums and products have the types of `jnp.sum`."""
    x = np.asarray(x)
    if op in NAN_FORMS or op in STATISTICS:
        return statistic(x, op)
    return _combined(x, SAME_OPERATORS.get(op, op), widens)


def _combined(x: np.ndarray, op: str, widens: bool) -> np.ndarray:
    if op in ("any", "all"):
        return getattr(np, op)(x != 0, axis=0)
    if op in BIT_OPERATORS:
        return BIT_OPERATORS[op].reduce(x, axis=0, dtype=x.dtype)
    is_float = x.dtype.kind not in "iub"
    dtype = x.dtype if is_float else np.dtype(np.float64)
    if op == "mean":
        with np.errstate(invalid="ignore"):
            return np.asarray(x.astype(np.longdouble).sum(axis=0) / np.longdouble(len(x))).astype(dtype)
    if op == "logsumexp":
        wide = x.astype(np.longdouble)
        largest = wide.max(axis=0, initial=-np.inf)
        with np.errstate(invalid="ignore", divide="ignore"):
            shifted = np.where(wide == largest, 0, wide - largest)  # avoids infinity minus infinity
            return np.asarray(largest + np.log(np.exp(shifted).sum(axis=0))).astype(dtype)
    if x.dtype == bool:
        if op in ("min", "max", "mul"):
            found = np.any(x, axis=0) if op == "max" else np.all(x, axis=0)
            return found.astype(jax.eval_shape(jnp.prod, x).dtype) if op == "mul" else found
        x, widens = x.astype(jax.eval_shape(jnp.sum, x).dtype if op == "add" else np.uint8), False
    x = summed(x, op) if widens else x
    columns = x.reshape(len(x), int(np.prod(x.shape[1:]))).T
    nothing = identity(op, x.dtype)
    results = np.array([total(column, op) for column in columns], nothing.dtype)
    return results.reshape(x.shape[1:])


def set_sources(operation: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns a set operation as indices into a followed by b, by the walk of std::set_union and similar functions."""
    ranks = rank(np.concatenate([a, b])).tolist()
    n_a, n = len(a), len(ranks)
    pairs = operation in ("set_intersection", "set_union")
    a_unpaired = operation != "set_intersection"
    b_unpaired = operation in ("set_union", "set_symmetric_difference")
    sources, i, j = [], 0, n_a
    while i < n_a or j < n:
        if j == n or (i < n_a and ranks[i] < ranks[j]):
            if a_unpaired:
                sources.append(i)
            i += 1
        elif i == n_a or ranks[j] < ranks[i]:
            if b_unpaired:
                sources.append(j)
            j += 1
        else:
            if pairs:
                sources.append(i)
            i, j = i + 1, j + 1
    return np.array(sources, np.int64)


def join_rows(kind: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns a join of sorted keys, `[rows, 2]`."""
    ranks = rank(np.concatenate([a, b]))
    a_ranks, b_ranks = ranks[: len(a)], ranks[len(a) :]
    first = np.searchsorted(b_ranks, a_ranks, "left")
    matches = np.searchsorted(b_ranks, a_ranks, "right") - first
    rows = np.maximum(matches, 1) if kind in ("left", "outer") else matches
    i = np.repeat(np.arange(len(a)), rows)
    j = np.where(matches[i] > 0, first[i] + np.arange(len(i)) - (np.cumsum(rows) - rows)[i], -1)
    alone = np.flatnonzero(~np.isin(b_ranks, a_ranks)) if kind in ("right", "outer") else np.zeros(0, np.int64)
    return np.stack([np.append(i, np.full(len(alone), -1)), np.append(j, alone)], axis=1)
