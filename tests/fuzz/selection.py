"""Selections, runs and ragged batches, and their oracles."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.fuzz import draw
from tests.fuzz.compare import Near, Where
from tests.fuzz.draw import Call, Rows, Shape, names_of
from tests.fuzz.ordered import int32


def rows_of(shape: Shape, n: int) -> Rows:
    form = shape.rows()
    return Rows(form.dtype, (3,), shape) if n > 5000 and int(np.prod(form.trailing)) > 8 else form


def filled(form: Rows, rows: np.ndarray, size: int, fill: int) -> Any:
    """Rows and what fills the rest, of which random keys may hold anything."""
    padded = oracle.padded(rows, size, np.asarray(0 if form.dtype == "key" else fill).astype(rows.dtype))
    return Where(padded, np.arange(size) < len(rows)) if form.dtype == "key" else padded


def segments(x: np.ndarray, heads: np.ndarray, live: int) -> list[np.ndarray]:
    bounds = np.append(np.clip(heads.astype(np.float64), 0, live).astype(np.int64), live)
    return [x[begin:end] for begin, end in itertools.pairwise(bounds)]


def selections(shape: Shape) -> Call:
    """select, select_indices, partition."""
    name = shape.choice(("select", "select_indices", "partition"))
    n = shape.size()
    form = rows_of(shape, n) if name != "select_indices" else None
    count, share = shape.count(n), shape.choice((0, 0.02, 0.5, 0.5, 0.98, 1))
    size = shape.choice((None, None, 0, n // 2, n + 4)) if name != "partition" else None
    slots = n if size is None else size
    fill = shape.choice((0, 0, 2))
    options = {} if name == "partition" else {"size": size, "fill_value": fill}
    shape.say(name, f"size={size}", f"fill={fill}", f"share={share}")

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        del apart
        x = None if form is None else form.draw(rng, n)
        return names_of(name, x=x, keep=rng.random(n) < share, count=draw.drawn(count, rng))

    def function(keep: Any, x: Any = None, **others: Any) -> Any:
        if form is None:
            return mgpu.select_indices(keep, **options, **others)
        values, found = getattr(mgpu, name)({"x": form.enter(x)}, keep, **options, **others)
        return form.leave(values["x"]), found

    def expected(keep: Any, x: Any = None, count: Any = None) -> list[Any]:
        live = oracle.live_count(count, n)
        kept = np.flatnonzero(keep[:live])
        if form is None:
            return [oracle.padded(int32(kept), slots, fill), int32(len(kept))]
        if name == "select":
            return [filled(form, x[kept], slots, fill), int32(len(kept))]
        order = np.concatenate([kept, np.flatnonzero(~keep[:live]), np.arange(live, n)])
        return [x[order], int32(len(kept))]

    names = () if form is None else ("x",)
    linear = names if fill == 0 else ()
    return Call(name, function, draw_operands, expected, shape.x64, names, linear, finite=shape.finite)


def runs(shape: Shape) -> Call:
    """run_starts."""
    n = shape.size()
    dtype, count = shape.key_dtype(), shape.count(n)
    m = shape.choice((None, 0, 1, n // 5, n + 3))
    head_dtype = shape.index_dtype(0)
    size = shape.choice((None, None, 0, n // 2, n + 2))
    slots = n if size is None else size
    shape.say(f"m={m}", f"size={size}")

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        del apart
        keys = np.repeat(draw.keys(shape, rng, dtype, n, few=not shape.derivative), rng.integers(1, 4))[:n]
        heads = None if m is None else draw.positions(rng, m, n, head_dtype)
        return names_of("run_starts", keys=keys, heads=heads, count=draw.drawn(count, rng))

    def function(keys: Any, heads: Any = None, **others: Any) -> Any:
        return mgpu.run_starts(keys, heads, size=size, **others)

    def expected(keys: Any, heads: Any = None, count: Any = None) -> list[Any]:
        live = oracle.live_count(count, n)
        ranks = oracle.rank(keys[:live])
        is_start = np.append(True, ranks[1:] != ranks[:-1])[:live]
        at = np.zeros(0) if heads is None else heads.astype(np.float64)
        is_start[at[at < live].astype(np.int64)] = True
        starts = np.flatnonzero(is_start)
        before = [0] if heads is None else np.searchsorted(starts, at, "left")
        return [oracle.padded(int32(starts), slots, n), int32(before), int32(len(starts))]

    return Call("run_starts", function, draw_operands, expected, shape.x64, finite=shape.finite)


def batches(shape: Shape) -> Call:
    """segment_ids, to_dense, from_dense, take_segments."""
    name = shape.choice(("segment_ids", "to_dense", "from_dense", "take_segments"))
    n = shape.size()
    form = rows_of(shape, n)
    m = shape.choice((0, 1, 3, n // 5, n + 3))
    width = min(shape.choice((0, 1, 5, n)), 100_000 // max(m, 1))
    if name == "from_dense":
        m = n // max(width, 1)
    taken = shape.choice((0, 1, m, 2 * m))
    count, dtype = None if name == "from_dense" else shape.count(n), shape.index_dtype(0)
    size = shape.choice((0, n // 2, n, n + 5))
    fill = shape.choice((0, 0, 2))
    shape.say(name, f"m={m}", f"width={width}", f"fill={fill}", "" if name == "to_dense" else f"size={size}")
    if name == "to_dense" and width < n:
        shape.say("short")

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        del apart
        if name == "from_dense":
            rows = form.draw(rng, m * width)
            return {
                "x": rows.reshape(m, width, *rows.shape[1:]),
                "lengths": rng.integers(0, min(width, np.iinfo(dtype).max) + 1, m).astype(dtype),
            }
        x = None if name == "segment_ids" else form.draw(rng, n)
        order = rng.integers(0, min(m + 1, np.iinfo(dtype).max), taken).astype(dtype)
        heads = draw.positions(rng, m, n, dtype)
        return names_of(
            name, x=x, heads=heads, order=order if name == "take_segments" else None, count=draw.drawn(count, rng)
        )

    def function(x: Any = None, **given: Any) -> Any:
        if name == "segment_ids":
            return mgpu.segment_ids(given.pop("heads"), n, **given)
        x = {"x": form.enter(x)}
        if name == "to_dense":
            return form.leave(mgpu.to_dense(x, width=width, fill_value=fill, **given)["x"])
        values, heads, found = getattr(mgpu, name)(x, size=size, fill_value=fill, **given)
        return form.leave(values["x"]), heads, found

    def expected(
        x: Any = None, heads: Any = None, lengths: Any = None, order: Any = None, count: Any = None
    ) -> list[Any]:
        live = oracle.live_count(count, n)
        if name == "segment_ids":
            ids = np.searchsorted(heads.astype(np.float64), np.arange(n), "right") - 1
            return [int32(np.where(np.arange(n) < live, ids, -1))]
        if name == "from_dense":
            rows = [row[:length] for row, length in zip(x, lengths, strict=True)]
            nothing = np.zeros((0, *x.shape[2:]), x.dtype)
        else:
            rows, nothing = segments(x, heads, live), x[:0]
        if name == "to_dense":
            laid_out = [filled(form, row[:width], width, fill) for row in rows]
            if form.dtype == "key":
                mask = np.array([row.live for row in laid_out], bool).reshape(m, width)
                values = np.array([row.expected for row in laid_out], x.dtype).reshape(m, width, *x.shape[1:])
                return [Where(values, mask.all(1))] if width else [values]
            return [np.array(laid_out, x.dtype).reshape(m, width, *x.shape[1:])]
        if name == "take_segments":
            rows = [rows[i] if i < m else nothing for i in order.astype(np.int64)]
        lengths = np.array([len(row) for row in rows], np.int64)
        packed = np.concatenate([nothing, *rows])
        return [
            filled(form, packed, size, fill), int32(np.cumsum(lengths) - lengths), int32(len(packed)),
        ]  # fmt: skip

    names = () if name == "segment_ids" else ("x",)
    linear = names if fill == 0 else ()
    return Call(name, function, draw_operands, expected, shape.x64, names, linear, finite=shape.finite)


def ranks(shape: Shape) -> Call:
    """unique, top_k, segmented_top_k, quantile, segmented_quantile."""
    name = shape.choice(("unique", "top_k", "segmented_top_k", "quantile", "segmented_quantile"))
    n = shape.size()
    dtype, count = shape.key_dtype(), shape.count(n)
    m, head_dtype = shape.choice((0, 1, 3, n // 5, n + 3)), shape.index_dtype(0)
    size = shape.choice((0, 1, n // 2, n, n + 2))
    k = min(shape.choice((0, 1, 3, n, n + 2)), 200_000 // max(m, 1))
    largest = shape.flag()
    asked = {f"return_{what}": shape.flag() for what in ("index", "inverse", "counts")}
    q = np.round(shape.rng.random(int(shape.rng.integers(0, 4))), 2).astype(np.float32)
    shape.say(name, f"m={m}", f"k={k}", f"size={size}" if name == "unique" else "", "largest" * largest)
    by_segment = name.startswith("segmented")

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        del apart
        x = draw.keys(shape, rng, dtype, n)
        if "quantile" in name and not shape.derivative:
            x = rng.integers(0, 100, n).astype(x.dtype)  # where differences are exact
            if x.dtype.kind not in "iu" and n and not shape.finite and rng.random() < 0.3:
                x[int(rng.integers(n))] = np.nan
        heads = draw.positions(rng, m, n, head_dtype) if by_segment else None
        return names_of(name, x=x, heads=heads, count=draw.drawn(count, rng))

    def function(x: Any, **given: Any) -> Any:
        if name == "unique":
            return mgpu.unique(x, size=size, **asked, **given)
        if "top_k" in name:
            return getattr(mgpu, name)(x, k=k, largest=largest, **given)
        return getattr(mgpu, name)(x, q=q, **given)

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
            np.quantile(x[row].astype(np.float64), q.astype(np.float64)) if len(row) else np.full(len(q), np.nan)
            for row in rows
        ]
        table = np.array(values, np.float64).reshape(len(rows), len(q)).T
        table = table if by_segment else table[:, 0]
        error = 1e-5 * (1 + np.abs(np.nan_to_num(table))) + float(jnp.finfo(kind).eps) * np.abs(np.nan_to_num(table))
        error = error + 200 * 2.0**-20  # of the weight, between neighbours at most 200 apart
        return [Near(table.astype(kind), error)]

    names = ("x",)
    return Call(name, function, draw_operands, expected, shape.x64, names, finite=shape.finite and "quant" not in name)


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
    """bincount, histogram."""
    name = shape.choice(("bincount", "histogram"))
    n = shape.size()
    dtype = shape.key_dtype() if name == "histogram" else shape.index_dtype(0)
    length = shape.choice((0, 1, 13, 1000)) if name == "bincount" else shape.choice((1, 2, 30))
    weight = shape.choice((None, "float32", "int32")) if name == "bincount" else None
    shape.say(name, f"length={length}", str(weight))

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        del apart
        if name == "histogram":
            edges = draw.sorted_keys(shape, rng, dtype, length + 1)
            return {"x": draw.keys(shape, rng, dtype, n), "edges": edges}
        low = 0 if np.dtype(dtype).kind == "u" else -1
        ids = rng.integers(low, min(length + 2, np.iinfo(dtype).max), n).astype(dtype)
        weights = None if weight is None else rng.integers(-8, 9, n).astype(weight)
        return names_of(name, ids=ids, weights=weights)

    def function(**given: Any) -> Any:
        return mgpu.histogram(**given)[0] if name == "histogram" else mgpu.bincount(length=length, **given)

    def expected(ids: Any = None, weights: Any = None, x: Any = None, edges: Any = None) -> list[Any]:
        if name == "bincount":
            inside = (ids.astype(np.float64) >= 0) & (ids.astype(np.float64) < length)
            kept = ids[inside].astype(np.int64)
            found = np.bincount(kept, None if weights is None else weights[inside], minlength=length)
            return [found[:length].astype(np.int32 if weights is None else weights.dtype)]
        both = oracle.rank(np.concatenate([x, edges]))
        codes, cuts = both[:n], both[n:]
        with np.errstate(invalid="ignore"):
            number = ~np.isnan(x.astype(np.float64))
        bins = np.where(codes == cuts[-1], length - 1, np.searchsorted(cuts, codes, "right") - 1)
        inside = number & (codes >= cuts[0]) & (codes <= cuts[-1])
        return [int32(np.bincount(bins[inside], minlength=length))]

    names = ("weights",) if weight == "float32" else ()
    return Call(name, function, draw_operands, expected, shape.x64, names, names, finite=shape.finite)


def softmaxes(shape: Shape) -> Call:
    """segmented_softmax, segmented_log_softmax."""
    name = shape.choice(("segmented_softmax", "segmented_log_softmax"))
    shape.derivative = False  # is not affine between ties; tests/test_ranks.py has its derivatives
    n = shape.size()
    dtype = shape.choice(("float16", "bfloat16", "float32", *(("float64",) if shape.x64 else ())))
    trailing = shape.choice(((), (), (2,), (2, 1), (0,)))
    m, head_dtype, count = shape.choice((0, 1, 3, n // 5, n + 3)), shape.index_dtype(0), shape.count(n)
    shape.say(name, f"m={m}", dtype, list(trailing))

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        del apart
        x = (8 * rng.normal(size=(n, *trailing))).astype(jnp.dtype(dtype))
        return names_of(name, x=x, heads=draw.positions(rng, m, n, head_dtype), count=draw.drawn(count, rng))

    def function(**given: Any) -> Any:
        return getattr(mgpu, name)(**given)

    def expected(x: Any, heads: Any, count: Any = None) -> list[Any]:
        live = oracle.live_count(count, n)
        out = np.zeros(x.shape, np.float64)
        first = segments(np.arange(n), np.append(0, heads.astype(np.float64)), live)
        for row in first:
            if len(row) and x.size:
                shifted = x[row].astype(np.float64) - x[row].astype(np.float64).max(0)
                sums = np.exp(shifted).sum(0)
                out[row] = np.exp(shifted) / sums if name == "segmented_softmax" else shifted - np.log(sums)
        eps = float(jnp.finfo(x.dtype).eps)
        error = 2 * eps * np.abs(out) + 1e-5 * (np.abs(out) + (name != "segmented_softmax")) + 1e-7
        return [Near(out.astype(x.dtype), error)]

    return Call(name, function, draw_operands, expected, shape.x64, (), finite=True)
