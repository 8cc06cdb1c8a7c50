from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.examples import (
    HEADS,
    KEYS,
    OFFSETS,
    Argument,
    Example,
    N,
    at_most,
    broken_ends,
    distinct,
    integer_to,
    keys_in,
    live,
    numbers,
    positions,
)
from tests.fuzz import draw
from tests.fuzz.compare import Near
from tests.fuzz.draw import Call, Shape, names_of
from tests.fuzz.shared import int32, segments
from tests.many_items import PERIOD, bytes_of, counts_of, spots

EXAMPLES = {
    "top_k": Example(
        lambda x, count: mgpu.top_k(x, 5, largest=False, count=count),
        lambda rng, real: (distinct(rng, real), live(rng)),
        differentiable=(0,),
        counts=(1,),
    ),
    "segmented_top_k": Example(
        lambda x, heads, count: mgpu.segmented_top_k(x, heads, 4, count=count),
        lambda rng, real: (distinct(rng, real), positions(rng), live(rng)),
        differentiable=(0,),
        counts=(2,),
        composed=True,
    ),
    "quantile": Example(
        lambda x, q, count: mgpu.quantile(x, q, count=count),
        lambda rng, real: (distinct(rng, real), np.array([0.13, 0.5, 0.77], real), live(rng)),
        differentiable=(0,),
        counts=(2,),
        exact=False,
    ),
    "segmented_quantile": Example(
        mgpu.segmented_quantile,
        lambda rng, real: (distinct(rng, real), np.arange(0, N, 10).astype(np.int32), real(0.31)),
        differentiable=(0,),
        exact=False,
        composed=True,
    ),
    "unique": Example(
        lambda keys, count: mgpu.unique(
            keys, size=20, return_index=True, return_inverse=True, return_counts=True, count=count
        ),
        lambda rng, real: (rng.integers(0, 13, N).astype(np.int32), live(rng)),
        counts=(1,),
        composed=True,
    ),
    "unique, columns": Example(
        lambda a, b, count: mgpu.unique((a, b), size=20, return_inverse=True, return_counts=True, count=count),
        lambda rng, real: (rng.integers(0, 4, N).astype(np.int32), rng.integers(0, 5, N).astype(real), live(rng)),
        counts=(2,),
        composed=True,
    ),
    "bincount": Example(
        lambda ids, weights: (mgpu.bincount(ids, 9), mgpu.bincount(ids, 9, weights)),
        lambda rng, real: (rng.integers(-1, 10, N).astype(np.int32), numbers(rng, real)),
        differentiable=(1,),
        exact=False,
        composed=True,
    ),
    "histogram": Example(mgpu.histogram, lambda rng, real: (numbers(rng, real), np.array([-1, 0, 0.5, 2], real))),
    "histogram, weights": Example(
        lambda x, weights: mgpu.histogram(x, 7, weights=weights)[0],
        lambda rng, real: (np.append(numbers(rng, np.float32, N - 2), [9, -9]), numbers(rng, real)),
        differentiable=(1,),
        exact=False,
        composed=True,
    ),
}

GARBAGE = {
    "top_k": lambda keys, repeated, indices, wild: mgpu.top_k(keys, 100, count=wild[0]),
    "segmented_top_k": lambda keys, repeated, indices, wild: mgpu.segmented_top_k(keys, indices, 3, count=wild[0]),
    "quantile": lambda keys, repeated, indices, wild: mgpu.quantile(keys, wild * 1e-3, count=indices[0]),
    "segmented_quantile": lambda keys, repeated, indices, wild: mgpu.segmented_quantile(keys, indices, wild[:3] * 1e-3),
    "unique": lambda keys, repeated, indices, wild: mgpu.unique(
        keys, size=50, return_index=True, return_inverse=True, return_counts=True, count=indices[0]
    ),
    "bincount": lambda keys, repeated, indices, wild: (mgpu.bincount(keys, 99), mgpu.bincount(repeated, 9, keys * 1.5)),
    "histogram": lambda keys, repeated, indices, wild: mgpu.histogram(keys, repeated[:30]),
}

BROKEN = {
    **broken_ends(mgpu.segmented_top_k, 2),
    **broken_ends(mgpu.segmented_quantile, 0.5),
    "quantile: q": (lambda: mgpu.quantile(KEYS, np.array([0.5, 1.5])), "numbers from 0 to 1", 1),
    "segmented_quantile: q": (lambda: mgpu.segmented_quantile(KEYS, [0], np.nan), "numbers from 0 to 1", 0),
    "unique: size": (lambda: mgpu.unique(KEYS, size=3), at_most(3), 0),
    "histogram: bins": (lambda: mgpu.histogram(KEYS, KEYS), keys_in("ascending"), 2),
    "top_k: count": (lambda: mgpu.top_k(KEYS, k=2, count=7), integer_to(6), 0),
    "quantile: count": (lambda: mgpu.quantile(KEYS, q=0.5, count=7), integer_to(6), 0),
    "unique: count": (lambda: mgpu.unique(KEYS, size=6, count=7), integer_to(6), 0),
    "segmented_top_k: count": (
        lambda: mgpu.segmented_top_k(KEYS.astype(np.float32), [0, 3], k=2, count=7),
        integer_to(6),
        0,
    ),
    "segmented_top_k: heads": (lambda: mgpu.segmented_top_k(KEYS.astype(np.float32), [0, 4, 2], k=2), HEADS, 2),
    "segmented_quantile: count": (
        lambda: mgpu.segmented_quantile(KEYS.astype(np.float32), [0, 3], q=0.5, count=7),
        integer_to(6),
        0,
    ),
    "segmented_quantile: heads": (lambda: mgpu.segmented_quantile(KEYS.astype(np.float32), [0, 4, 2], q=0.5), HEADS, 2),
}
WITHOUT_PRECONDITIONS = ("bincount",)

ARGUMENTS = {
    "bincount: ids": Argument("positions", OFFSETS),
    "histogram: bins": Argument("bins", np.sort(KEYS)),
    **{
        f"{name}: x": Argument("keys", KEYS)
        for name in ("top_k", "segmented_top_k", "quantile", "segmented_quantile", "histogram")
    },
}


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def large_top_k(n, index):
    x = bytes_of(n)
    x[n - 3] = 255
    assert mgpu.top_k(x, 1).indices == n - 3
    best = mgpu.segmented_top_k(x, spots(n, index), 1)
    assert best.indices[-1, 0] == (n - 3 if spots(n, index)[-1] <= n - 3 else n - 1)


def large_quantile(n, index):
    x = bytes_of(n)
    x[n - 3] = 255
    assert mgpu.quantile(x, 1.0) == 255
    x[n - 1] = 255
    assert mgpu.segmented_quantile(x, spots(n, index), 1.0)[-1] == 255


def large_unique(n, index):
    values, last, counts, found = mgpu.unique(bytes_of(n)[::-1], size=260, return_index=True, return_counts=True)
    assert found == PERIOD
    assert np.array_equal(values[:PERIOD], np.arange(PERIOD))
    assert np.array_equal(counts[:PERIOD], counts_of(bytes_of(n))[:PERIOD])
    assert np.array_equal(bytes_of(n)[::-1][np.asarray(last)[:PERIOD]], np.arange(PERIOD))


def large_bincount(n, index):
    assert np.array_equal(mgpu.bincount(bytes_of(n), 256), counts_of(bytes_of(n)))


def large_histogram(n, index):
    counts = counts_of(bytes_of(n))
    got = mgpu.histogram(bytes_of(n), np.array([0, 100, 255], np.uint8))[0]
    assert np.array_equal(got, [counts[:100].sum(), counts[100:].sum()])


LARGE_WITH_INDICES = {
    "top_k": large_top_k,
    "segmented_top_k": large_top_k,
    "quantile": large_quantile,
    "segmented_quantile": large_quantile,
    "unique": large_unique,
    "bincount": large_bincount,
    "histogram": large_histogram,
}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def ranks(shape: Shape) -> Call:
    name = shape.choice(("unique", "top_k", "segmented_top_k", "quantile", "segmented_quantile"))
    n = shape.size()
    dtype, count = shape.key_dtype(), shape.count(n)
    m, head_dtype = shape.choice((0, 1, 3, n // 5, n + 3)), shape.index_dtype(0)
    size = shape.choice((0, 1, n // 2, n, n + 2))
    k = min(shape.choice((0, 1, 3, 8, 50, n, n + 2)), 200_000 // max(m, 1))
    largest = shape.flag()
    asked = {f"return_{what}": shape.flag() for what in ("index", "inverse", "counts")}
    method = shape.choice(("linear", "linear", "lower", "higher", "nearest", "midpoint"))
    method = "linear" if shape.derivative else method
    parts = 128 if shape.derivative else 100  # a float32 holds multiples of 1/128 exactly
    q = (np.round(parts * shape.rng.random(int(shape.rng.integers(0, 4)))) / parts).astype(np.float32)
    if not shape.derivative and shape.flag():
        q = np.append(q, np.float32([0, 1]))
    turn, has_order = np.argsort(q), not shape.derivative and len(q) > 0
    shape.say(name, method, f"m={m}", f"k={k}", f"size={size}" if name == "unique" else "", "largest" * largest)
    by_segment = name.startswith("segmented")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        x = draw.keys(shape, rng, dtype, n)
        if "quantile" in name and not shape.derivative:
            x = rng.integers(0, rng.choice([2, 100]), n).astype(x.dtype)
            if x.dtype.kind not in "iu" and rng.random() < 0.5:
                x = (x * x.dtype.type(rng.choice([0.1, -0.1, 0.7]))).astype(x.dtype)
            if x.dtype.kind not in "iu" and n and not shape.finite and rng.random() < 0.3:
                x[int(rng.integers(n))] = np.nan
        heads = draw.positions(rng, m, n, head_dtype) if by_segment else None
        return names_of(name, x=x, heads=heads, count=draw.drawn(count, rng))

    def function(x: Any, **given: Any) -> Any:
        if name == "unique":
            return mgpu.unique(x, size=size, **asked, **given)
        if "top_k" in name:
            return getattr(mgpu, name)(x, k=k, largest=largest, **given)
        found = getattr(mgpu, name)(x, q=q, method=method, **given)
        steps = found[turn[1:]] >= found[turn[:-1]]
        return (found, jnp.all(steps | jnp.isnan(found[turn[1:]]))) if has_order else found

    def expected(x: Any, heads: Any = None, count: Any = None) -> list[Any]:
        live = oracle.live_count(count, n)
        if name == "unique":
            return _unique(x[:live], n, size, asked)
        rows = segments(np.arange(n), heads, live) if by_segment else [np.arange(live)]
        if "top_k" in name:
            firsts = [row[oracle.sort_indices(x[row], largest)][:k] for row in rows]
            values = np.array([oracle.padded(x[row], k, 0) for row in firsts], x.dtype).reshape(len(rows), k)
            indices = np.array([oracle.padded(int32(row), k, -1) for row in firsts], np.int32).reshape(len(rows), k)
            found = [values, indices, int32([len(row) for row in firsts])]
            return found if by_segment else [leaf[0] for leaf in found]
        kind = x.dtype if x.dtype.kind not in "iu" else np.dtype("float64" if shape.x64 else "float32")
        values = [
            _quantiles(x[row].astype(np.float64), q, method) if len(row) else np.full(len(q), np.nan) for row in rows
        ]
        table = np.array(values, np.float64).reshape(len(rows), len(q)).T
        table = table if by_segment else table[:, 0]
        error = 1e-5 * (1 + np.abs(np.nan_to_num(table))) + float(jnp.finfo(kind).eps) * np.abs(np.nan_to_num(table))
        error = error + 200 * 2.0**-20  # rounding of the weight, between neighbours that are at most 200 apart
        return [Near(table.astype(kind), error), *[np.True_] * has_order]

    names = ("x",)
    return Call(name, function, draw_operands, expected, shape.x64, names, finite=shape.finite and "quant" not in name)


def _quantiles(x: np.ndarray, q: np.ndarray, method: str) -> np.ndarray:
    """Returns NumPy's quantiles; `q` is in hundredths, so ranks within 1e-6 of a multiple of 1/2 are rounded to it."""
    if method == "linear" or np.isnan(x).any():
        return np.asarray(np.quantile(x, q.astype(np.float64)))
    ranks = np.round(q.astype(np.float64), 4) * (len(x) - 1)
    ranks = np.where(np.abs(2 * ranks - np.round(2 * ranks)) < 1e-6, np.round(2 * ranks) / 2, ranks)
    lower, higher = (np.sort(x)[part(ranks).astype(int)] for part in (np.floor, np.ceil))
    nearest = np.sort(x)[np.around(ranks).astype(int)]
    return {"lower": lower, "higher": higher, "nearest": nearest, "midpoint": (lower + higher) / 2}[method]


def _unique(x: np.ndarray, n: int, size: int, asked: dict[str, bool]) -> list[Any]:
    order, live = oracle.sort_indices(x), len(x)
    classes = oracle.rank(x)[order]
    starts = np.flatnonzero(np.append(True, classes[1:] != classes[:-1])[:live])
    times = np.diff([*starts, live])
    ids = np.full(n, -1)
    ids[order] = np.repeat(np.arange(len(starts)), times)
    others = {
        "return_index": oracle.padded(int32(order[starts]), size, -1),
        "return_inverse": int32(np.where(ids < size, ids, -1)),
        "return_counts": oracle.padded(int32(times), size, 0),
    }
    keys = oracle.padded(x[order][starts], size, 0)
    return [keys, *(leaf for what, leaf in others.items() if asked[what]), int32(len(starts))]


def counts(shape: Shape) -> Call:
    name = shape.choice(("bincount", "histogram"))
    n = shape.size()
    dtype = shape.key_dtype() if name == "histogram" else shape.index_dtype(0)
    length = shape.choice((0, 1, 13, 1000)) if name == "bincount" else shape.choice((1, 2, 32))
    weight = shape.choice((None, "float32", "int32", "int8"))
    even = name == "histogram" and dtype in ("float32", "float64") and shape.flag()
    shape.say(name, f"length={length}", str(weight), "even" * even)

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        if name == "histogram":
            edges = draw.sorted_keys(shape, rng, dtype, length + 1)
            if even:
                edges = np.linspace(0, 64, length + 1).astype(dtype)
            x = rng.integers(-9, 80, n).astype(dtype) if even else draw.keys(shape, rng, dtype, n)
            weights = None if weight is None else rng.integers(-8, 9, n).astype(weight)
            return names_of(name, x=x, edges=edges, weights=weights)
        low = 0 if np.dtype(dtype).kind == "u" else -1
        ids = rng.integers(low, min(length + 2, np.iinfo(dtype).max), n).astype(dtype)
        weights = None if weight is None else rng.integers(-8, 9, n).astype(weight)
        return names_of(name, ids=ids, weights=weights)

    def function(edges: Any = None, **given: Any) -> Any:
        if name == "bincount":
            return mgpu.bincount(size=length, **given)
        options = {"bins": length, "range": (0, 64)} if even else {"bins": edges}
        return mgpu.histogram(**given, **options)[0]

    def expected(ids: Any = None, weights: Any = None, x: Any = None, edges: Any = None) -> list[Any]:
        if name == "bincount":
            inside = (ids.astype(np.float64) >= 0) & (ids.astype(np.float64) < length)
            kept = ids[inside].astype(np.int64)
            found = np.bincount(kept, None if weights is None else weights[inside], minlength=length)
            return [found[:length].astype(np.int32 if weights is None else oracle.summed(weights, "add").dtype)]
        both = oracle.rank(np.concatenate([x, edges]))
        codes, cuts = both[:n], both[n:]
        with np.errstate(invalid="ignore"):
            number = ~np.isnan(x.astype(np.float64))
        bins = np.where(codes == cuts[-1], length - 1, np.searchsorted(cuts, codes, "right") - 1)
        inside = number & (codes >= cuts[0]) & (codes <= cuts[-1])
        if weights is None:
            return [int32(np.bincount(bins[inside], minlength=length))]
        sums = np.bincount(bins[inside], weights[inside], minlength=length)
        return [sums.astype(oracle.summed(weights, "add").dtype)]

    names = ("weights",) if weight == "float32" else ()
    return Call(name, function, draw_operands, expected, shape.x64, names, names, finite=shape.finite)


DRAWN = {"ranks": ranks, "counts": counts}
