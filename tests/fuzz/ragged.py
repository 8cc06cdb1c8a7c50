"""Calls over segments, intervals and positions: reductions, scans, load balancing, intervals, bulk; their oracles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests import data, oracle
from tests.fuzz import draw
from tests.fuzz.compare import Equal, Near, Where
from tests.fuzz.draw import Call, Rows, Shape, names_of
from tests.fuzz.functions import MAPS, ItemMap
from tests.fuzz.ordered import int32

OPERATORS = ("add", "add", "mul", "min", "max", "argmin", "argmax")


def items(shape: Shape, rng: np.random.Generator, dtype: str, op: str, n: int) -> np.ndarray:
    """Items that an operator combines without overflow on the way, so that any order of combination is right."""
    kind = jnp.dtype(dtype)
    if kind.kind in "iu" or op not in ("add", "mul"):
        return draw.keys(shape, rng, dtype, n)
    if op == "mul":
        x = np.where(rng.random(n) < 0.5, 1.0, -1.0)
        if shape.derivative:
            x = rng.integers(-2, 3, n).astype(float)
        elif n:
            few = rng.integers(0, n, min(n, 12))
            x[few] *= rng.choice([0.5, 2.0], len(few))
            if rng.random() < 0.3:
                x[rng.integers(n)] = 0.0
            if dtype == "float16" and rng.random() < 0.3:
                x[rng.integers(n)] = 2.0**-20  # a subnormal here, not in float32
        return x.astype(kind)
    at = rng.random()
    if shape.derivative or at < 0.4:
        return rng.integers(-8, 9, n).astype(kind)
    if at < 0.6:  # subnormals, which are to count
        return (rng.integers(0, 64, n) * float(jnp.finfo(kind).smallest_subnormal)).astype(kind)
    x = rng.normal(size=n).astype(kind)
    if not shape.finite and n and rng.random() < 0.3:
        x[rng.integers(0, n, 2)] = rng.choice([np.inf, -np.inf, np.nan], 2)
    return x


def near(op: str, results: np.ndarray, magnitudes: Callable[[], np.ndarray]) -> Any:
    """What an operator's results may be: sums differ by their rounding, extrema of any zero or NaN are that."""
    dtype = results.dtype
    if op in ("argmin", "argmax") or dtype.kind in "iu":
        return results
    if op in ("min", "max"):
        return Equal(results)
    limits, work = jnp.finfo(dtype), jnp.finfo(np.promote_types(np.float32, dtype) if dtype.kind == "f" else np.float32)
    with np.errstate(all="ignore"):
        error = 2 * float(limits.eps) * np.abs(results.astype(np.float64)) + 2 * float(limits.smallest_subnormal)
        if op == "add":
            error = error + 150 * float(work.eps) * magnitudes().astype(np.float64)
        if float(limits.tiny) <= float(work.tiny):  # XLA's threads may take subnormals for zeros
            flushed = 64 * float(limits.tiny)
            error = error + (np.minimum(magnitudes(), draw.LARGEST * float(limits.tiny)) if op == "add" else flushed)
    return Near(results, error)


class Named:
    """An operator by name."""

    def __init__(self, shape: Shape, exclusive: bool):
        del exclusive
        self.name = shape.choice(("add", "mul", "min", "max") if shape.derivative else OPERATORS)
        self.dtype = shape.key_dtype()
        self.op: Any = self.name
        self.identity = None
        self.gives_index = self.name.startswith("arg")
        self.shape = shape
        shape.say(self.name)

    def draw(self, rng: np.random.Generator, n: int) -> Any:
        return items(self.shape, rng, self.dtype, self.name, n)

    def scan(self, x: Any, heads: np.ndarray, *form: Any) -> list[Any]:
        results = oracle.segmented_scan(x, heads, self.name, *form)
        return [near(self.name, results, lambda: self._wide(x, heads, *form))]

    def _wide(self, x: np.ndarray, heads: np.ndarray, exclusive: bool = False, *form: Any) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            magnitudes = np.nan_to_num(np.abs(x.astype(np.float64)), nan=0, posinf=0)
        return oracle.segmented_scan(magnitudes, heads, "add", False, *form)

    def reduce(self, x: Any, heads: np.ndarray, count: Any) -> list[Any]:
        results = oracle.segmented_reduce(x, heads, self.name, count)
        with np.errstate(invalid="ignore"):
            magnitudes = np.nan_to_num(np.abs(x.astype(np.float64)), nan=0, posinf=0)
        return [near(self.name, results, lambda: oracle.segmented_reduce(magnitudes, heads, "add", count))]


def _affine(a: Any, b: Any) -> Any:
    """One affine map after the other: does not commute."""
    return {"m": a["m"] * b["m"], "t": a["t"] * b["m"] + b["t"]}


def _last(a: Any, b: Any) -> Any:
    del a
    return b


# A function, the same in NumPy, the identity, the leaves of an item.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Any, tuple[str, ...]]] = {
    "plus": (lambda a, b: a + b, 0, ()),
    "maximum": (lambda a, b: jnp.where(a > b, a, b), None, ()),
    "affine": (_affine, {"m": 1, "t": 0}, ("m", "t")),
    "last": (_last, None, ()),
}


class Function:
    """An operator by function, over an array or a pytree; items are small integers of any type, and results exact."""

    def __init__(self, shape: Shape, exclusive: bool):
        names = ("plus", "affine") if exclusive or shape.derivative else tuple(FUNCTIONS)
        self.name = shape.choice(names)
        self.op, self.identity, self.leaves = FUNCTIONS[self.name]
        dtypes = ("float32", "float32", *(("float64",) if shape.x64 else ()))
        self.dtype = shape.choice(dtypes if shape.derivative else ("int32", "uint8", "int16", *dtypes))
        self.trailing = shape.choice(((), (), (2,))) if not self.leaves else ()
        self.shape = shape
        self.gives_index = False
        shape.say("function", self.name, self.dtype, list(self.trailing))

    def draw(self, rng: np.random.Generator, n: int) -> Any:
        def leaf(low: int, high: int) -> np.ndarray:
            return rng.integers(low, high, (n, *self.trailing)).astype(self.dtype)

        signed = np.dtype(self.dtype).kind != "u"
        if not self.leaves:
            return leaf(-9 if signed else 0, 10)
        return {"m": leaf(-1 if signed else 0, 2), "t": leaf(0, 5)}

    def _combine(self, a: list[np.ndarray], b: list[np.ndarray]) -> list[np.ndarray]:
        with np.errstate(over="ignore"):
            if self.name == "affine":
                return [a[0] * b[0], a[1] * b[0] + b[1]]
            return [{"plus": np.add, "maximum": np.maximum, "last": lambda x, y: y}[self.name](a[0], b[0])]

    def _nothing(self, leaf: np.ndarray, i: int) -> Any:
        return np.asarray([1, 0][i] if self.leaves else 0, leaf.dtype)

    def scan(
        self, x: Any, heads: np.ndarray, exclusive: bool = False, reverse: bool = False, count: Any = None
    ) -> list[Any]:
        leaves = jax.tree.leaves(x)
        live = oracle.live_count(count, len(leaves[0]))
        begins = oracle.segment_firsts(live, heads, reverse)
        turn = slice(None, None, -1 if reverse else 1)
        found = []
        for i, r in enumerate(oracle.prefixes([leaf[:live][turn] for leaf in leaves], begins, self._combine)):
            if exclusive:
                at_first = (begins == np.arange(live)).reshape(-1, *[1] * (r.ndim - 1))
                r = np.where(at_first, self._nothing(r, i), np.roll(r, 1, axis=0))  # noqa: PLW2901
            found.append(Equal(np.concatenate([r[turn], np.zeros((len(leaves[0]) - live, *r.shape[1:]), r.dtype)])))
        return found

    def reduce(self, x: Any, heads: np.ndarray, count: Any) -> list[Any]:
        n = len(jax.tree.leaves(x)[0])
        live = oracle.live_count(count, n)
        bounds = np.append(np.clip(heads.astype(np.float64), 0, live).astype(np.int64), live)
        found = []
        for i, leaf in enumerate(self.scan(x, heads, False, False, count)):
            nothing = self._nothing(leaf.expected, i)
            rows = (
                leaf.expected[np.maximum(bounds[1:], 1) - 1]
                if n
                else np.zeros((len(heads), *leaf.expected.shape[1:]), leaf.expected.dtype)
            )
            full = (bounds[:-1] < bounds[1:]).reshape(-1, *[1] * (rows.ndim - 1))
            # an empty segment without an identity is not specified
            found.append(
                Where(rows, full.reshape(-1)) if self.identity is None else Equal(np.where(full, rows, nothing))
            )
        return found


def before(item_map: ItemMap | None, rng: np.random.Generator, x: Any) -> Any:
    """The items of which a function makes these."""
    return x if item_map is None else item_map.before(rng, x)


def operator_of(shape: Shape, exclusive: bool = False) -> Named | Function:
    return Function(shape, exclusive) if shape.flag(0.25) else Named(shape, exclusive)


def mapped(shape: Shape) -> Call:
    """Reductions and scans of what a function makes of the items."""
    item_map = shape.choice(MAPS)
    shape.say(item_map.name)
    return shape.choice((reductions, scans))(shape, item_map)


def reductions(shape: Shape, item_map: ItemMap | None = None) -> Call:
    """reduce, segmented_reduce, reduce_by_key."""
    name = shape.choice(("reduce", "segmented_reduce", "reduce_by_key"))
    operator, n = operator_of(shape), shape.size()
    count = shape.count(n)
    if (
        name == "reduce"
        and operator.identity is None
        and isinstance(operator, Function)
        and (count is not None or n == 0)
    ):
        operator = Named(shape, False)
    m = shape.choice((0, 1, 3, n // 5, n, n + 3))
    head_dtype = shape.index_dtype(0)
    options: dict[str, Any] = {"op": operator.op}
    if operator.identity is not None and name != "reduce_by_key":
        options["identity"] = operator.identity
    elif name == "segmented_reduce" and isinstance(operator, Function):
        operator = Named(shape, False)
        options = {"op": operator.op}
    if item_map is not None:
        options["map"] = item_map.function
    key_dtype = shape.key_form() if name == "reduce_by_key" else None
    size = shape.choice((0, 3, n // 2, n, n + 2))
    shape.say(name, f"m={m}", f"size={size}")

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        del apart
        operands: dict[str, Any] = {"x": before(item_map, rng, operator.draw(rng, n))}
        if name == "segmented_reduce":
            operands["heads"] = draw.positions(rng, m, n, head_dtype)
        if name == "reduce_by_key":
            keys = draw.keys(shape, rng, key_dtype, n, few=not shape.derivative)
            if isinstance(key_dtype, draw.Columns):
                keys = draw.in_order(keys, False, None) if rng.random() < 0.5 else keys
            elif rng.random() < 0.5:
                keys = data.in_order(keys)
            elif not shape.derivative and not shape.finite:
                keys = np.repeat(data.random_keys(rng, key_dtype, n), 3)[:n]
            if shape.derivative and rng.random() < 0.5:
                keys = np.repeat(keys, 2)[:n]
            operands["keys"] = keys
        return operands | names_of(name, count=draw.drawn(count, rng))

    def function(x: Any, heads: Any = None, keys: Any = None, **others: Any) -> Any:
        if name == "reduce_by_key":
            return mgpu.reduce_by_key(keys, x, size=size, **options, **others)
        return getattr(mgpu, name)(*((x,) if heads is None else (x, heads)), **options, **others)

    def expected(x: Any, heads: Any = None, keys: Any = None, count: Any = None) -> list[Any]:
        x = x if item_map is None else item_map.of(x)
        if name == "segmented_reduce":
            return operator.reduce(x, heads, count)
        if name == "reduce":
            return [_scalar(leaf) for leaf in operator.reduce(x, np.zeros(1, np.int64), count)]
        live = oracle.live_count(count, n)
        ranks = oracle.rank(draw.ranked(False, keys)[0][:live])
        starts = np.flatnonzero(np.append(True, ranks[1:] != ranks[:-1])) if live else np.zeros(0, np.int64)
        reduced = operator.reduce(x, starts, live)
        filler = -1 if operator.gives_index else 0
        kept = [_resized(leaf, size, filler) for leaf in reduced]
        return [*(oracle.padded(x[starts], size, 0) for x in jax.tree.leaves(keys)), *kept, int32(len(starts))]

    return Call(name, function, draw_operands, expected, shape.x64, ("x",), finite=shape.finite)


def _scalar(leaf: Any) -> Any:
    if isinstance(leaf, Near):
        return Near(leaf.expected[0], leaf.error[0])
    return Equal(leaf.expected[0]) if isinstance(leaf, Equal | Where) else leaf[0]


def _resized(leaf: Any, size: int, filler: int) -> Any:
    if isinstance(leaf, Near):
        return Near(oracle.padded(leaf.expected, size, filler), oracle.padded(leaf.error, size, 0))
    if isinstance(leaf, Equal | Where):
        return Equal(oracle.padded(leaf.expected, size, filler))
    return oracle.padded(leaf, size, filler)


def scans(shape: Shape, item_map: ItemMap | None = None) -> Call:
    """scan and segmented_scan."""
    name = shape.choice(("scan", "segmented_scan"))
    exclusive, reverse = shape.flag(0.4), shape.flag(0.4)
    operator, n = operator_of(shape, exclusive), shape.size()
    count, total = shape.count(n), name == "scan" and shape.flag(0.4)
    if total and isinstance(operator, Function) and operator.identity is None and (count is not None or n == 0):
        total = False
    m = shape.choice((0, 1, 3, n // 5, n, n + 3))
    head_dtype = shape.index_dtype(0)
    options: dict[str, Any] = {"op": operator.op, "exclusive": exclusive, "reverse": reverse}
    if operator.identity is not None:
        options["identity"] = operator.identity
    if total:
        options["return_total"] = True
    if item_map is not None:
        options["map"] = item_map.function
    shape.say(name, f"m={m}", "exclusive" * exclusive, "reverse" * reverse, "total" * total)

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        del apart
        heads = draw.positions(rng, m, n, head_dtype) if name == "segmented_scan" else None
        x = before(item_map, rng, operator.draw(rng, n))
        return names_of(name, x=x, heads=heads, count=draw.drawn(count, rng))

    def function(x: Any, heads: Any = None, **others: Any) -> Any:
        return getattr(mgpu, name)(*((x,) if heads is None else (x, heads)), **options, **others)

    def expected(x: Any, heads: Any = (), count: Any = None) -> list[Any]:
        heads = np.asarray(heads, np.int64) if not len(heads) else heads
        x = x if item_map is None else item_map.of(x)
        scanned = operator.scan(x, heads, exclusive, reverse, count)
        if not total:
            return scanned
        flipped = x if not reverse or isinstance(operator, Named) else jax.tree.map(lambda leaf: _flip(leaf, count), x)
        return [*scanned, *map(_scalar, operator.reduce(flipped, np.zeros(1, np.int64), count))]

    return Call(name, function, draw_operands, expected, shape.x64, ("x",), finite=shape.finite)


def _flip(x: np.ndarray, count: Any) -> np.ndarray:
    live = oracle.live_count(count, len(x))
    return np.concatenate([x[:live][::-1], x[live:]])


def load_balance(shape: Shape) -> Call:
    size, rank = shape.size(), shape.flag()
    m = shape.choice((0, 1, 3, size // 4, size, 2 * size + 1))
    total, dtype = shape.count(size), shape.index_dtype(size)
    fill = shape.choice((-1, -1, m, 0))
    options = {} if fill == -1 else {"fill_value": fill}
    shape.say(f"m={m}", "rank" * rank, f"fill={fill}")

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        del apart
        live = draw.drawn(total, rng)
        lengths = draw.lengths_of(rng, m, size if live is None else int(live))
        offsets = np.cumsum(lengths) - lengths
        return names_of("load_balance_search", offsets=offsets.astype(dtype), total=live)

    def function(offsets: Any, **others: Any) -> Any:
        return mgpu.load_balance_search(offsets, size, return_rank=rank, **options, **others)

    def expected(offsets: Any, total: Any = None) -> list[Any]:
        objects, ranks = oracle.work_items(offsets, oracle.live_count(total, size))
        begin = min(int(offsets[0]), oracle.live_count(total, size)) if m else 0
        out = [np.full(size, fill, np.int32) for _ in range(2)]
        for to, found in zip(out, (objects, ranks), strict=True):
            to[begin : begin + len(found)] = found
        return out[: 1 + rank]

    return Call("load_balance_search", function, draw_operands, expected, shape.x64, finite=True)


def intervals(shape: Shape) -> Call:
    """interval_expand, interval_gather, interval_scatter, interval_move."""
    name = shape.choice(("interval_expand", "interval_gather", "interval_scatter", "interval_move", "interval_move"))
    form, size = shape.rows(), shape.size()
    if size > 5000 and int(np.prod(form.trailing)) > 8:
        form = Rows(form.dtype, (2, 2), shape)
    m = shape.choice((0, 1, 3, size // 4, size, size, 2 * size + 1))
    if shape.largest > 10_000 and shape.flag(0.25):  # more objects in a tile than it keeps what it knows of
        size = m = int(shape.rng.integers(1024, 9000))
    total = shape.count(size)
    gathers, scatters = name in ("interval_gather", "interval_move"), name in ("interval_scatter", "interval_move")
    places = size + shape.choice((0, 7)) if scatters else size
    rows = {"interval_expand": m, "interval_scatter": size}.get(name, places + shape.choice((0, 0, 5)))
    most = places if name == "interval_move" else size  # the total where none is given
    fill = shape.choice((0, 0, 2))
    dtypes = [shape.index_dtype(largest) for largest in (most, rows, places)]
    shape.say(name, f"m={m}", f"fill={fill}")

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        live = draw.drawn(total, rng)
        put = spaced if apart and scatters else side_by_side
        lengths, starts = put(rng, m, most if live is None else int(live), places)
        operands: dict[str, Any] = {"x": form.draw(rng, rows)}
        if gathers:
            operands["gather_starts"] = rng.integers(0, np.maximum(rows - lengths, 0) + 1).astype(dtypes[1])
        if scatters:
            operands["scatter_starts"] = starts.astype(dtypes[2])
            operands["into"] = form.draw(rng, places)
        return operands | names_of(name, offsets=(np.cumsum(lengths) - lengths).astype(dtypes[0]), total=live)

    def function(
        x: Any, offsets: Any, gather_starts: Any = None, scatter_starts: Any = None, into: Any = None, **others: Any
    ) -> Any:
        x, into = form.enter(x), None if into is None else form.enter(into)
        if name == "interval_expand":
            result = mgpu.interval_expand(x, offsets, size, fill_value=fill, **others)
        elif name == "interval_gather":
            result = mgpu.interval_gather(x, gather_starts, offsets, size, fill_value=fill, **others)
        elif name == "interval_scatter":
            result = mgpu.interval_scatter(x, scatter_starts, offsets, into, **others)
        else:
            result = mgpu.interval_move(x, gather_starts, scatter_starts, offsets, into, **others)
        return form.leave(result)

    def expected(
        x: Any, offsets: Any, gather_starts: Any = None, scatter_starts: Any = None, into: Any = None, total: Any = None
    ) -> list[Any]:
        live = oracle.live_count(total, most)
        offsets = offsets.astype(np.int64)
        objects, ranks = oracle.work_items(offsets, live)
        first = min(int(offsets[0]), live) if m else 0
        work = first + np.arange(len(objects))
        sources = objects if name == "interval_expand" else work
        if gathers:
            sources = gather_starts.astype(np.int64)[objects] + ranks
        if scatters:
            return [oracle.moved(x, sources, scatter_starts.astype(np.int64)[objects] + ranks, into)]
        out = np.broadcast_to(
            np.asarray(0 if form.dtype == "key" else fill).astype(x.dtype), (size, *x.shape[1:])
        ).copy()
        inside = (sources >= 0) & (sources < len(x))
        out[work[inside]] = x[sources[inside]]
        return [Where(out, np.isin(np.arange(size), work[inside])) if form.dtype == "key" else out]

    names = ("x",) if name in ("interval_expand", "interval_gather") else ("x", "into")
    return Call(
        name, function, draw_operands, expected, shape.x64, names, names if fill == 0 else (), finite=shape.finite
    )


def side_by_side(rng: np.random.Generator, m: int, end: int, places: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths whose sum is `end`, and places for the intervals, one behind the other in any order."""
    lengths = draw.lengths_of(rng, m, end)
    lengths[-1:] += end - lengths.sum()
    order = [np.arange(m), np.arange(m)[::-1], rng.permutation(m)][int(rng.integers(3))]
    starts = np.empty(m, np.int64)
    starts[order] = np.cumsum(lengths[order]) - lengths[order]
    return lengths, starts + rng.integers(0, places - end + 1)


def spaced(rng: np.random.Generator, m: int, end: int, places: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths, and places that no other draw's lengths fill; the last interval, which grows with a total, lies last."""
    width = places // max(m, 1)
    lengths = rng.integers(0, width + 1, m)
    lengths[np.cumsum(lengths) > end] = 0
    return lengths, width * np.append(rng.permutation(max(m - 1, 0)), max(m - 1, 0))[:m]


def bulk(shape: Shape) -> Call:
    """bulk_remove and bulk_insert."""
    name = shape.choice(("bulk_remove", "bulk_insert"))
    form, n = shape.rows(), shape.size()
    if n > 5000 and int(np.prod(form.trailing)) > 8:
        form = Rows(form.dtype, (3,), shape)
    removes = name == "bulk_remove"
    m = shape.choice((0, 1, 3, n // 4, n)) if removes else shape.choice((0, 1, 3, n // 4, n + 5, 2 * n))
    m = min(m, n) if removes and shape.flag(0.8) else m
    count, dtype = shape.count(n), shape.index_dtype(n + 1)
    default = max(n - m, 0) if removes else n + m
    size = shape.choice((None, None, 0, default // 2, default + 4))
    slots = default if size is None else size
    fill = shape.choice((0, 0, 2))
    shape.say(name, f"m={m}", f"size={size}", f"fill={fill}")

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        live_count = draw.drawn(count, rng)
        live = n if live_count is None or apart else int(live_count)
        past = n + 1 if rng.random() < 0.7 else int(np.iinfo(dtype).max)
        if removes:
            # distinct ones, then padding: the count, repeated, too
            kept = int(rng.integers(0, min(m, live) + 1)) if m > live or rng.random() < 0.3 else m
            indices = np.sort(rng.choice(live, kept, replace=False)).astype(np.uint64)
            padding = live if rng.random() < 0.3 and not apart else max(n, 0)
            indices = np.append(indices, np.full(m - kept, padding, np.uint64))
        else:
            indices = np.sort(rng.integers(0, live + 1, m)).astype(np.uint64)
            if m and rng.random() < 0.3:
                indices[m - int(rng.integers(0, m)) :] = past
        operands: dict[str, Any] = {"x": form.draw(rng, n), "indices": indices.astype(dtype)}
        if not removes:
            operands["values"] = form.draw(rng, m)
        return operands | names_of(name, count=live_count)

    def function(x: Any, indices: Any, values: Any = None, **others: Any) -> Any:
        given = (form.enter(x), indices) if removes else (form.enter(x), indices, form.enter(values))
        return form.leave(getattr(mgpu, name)(*given, size=size, fill_value=fill, **others))

    def expected(x: Any, indices: Any, values: Any = None, count: Any = None) -> list[Any]:
        live = oracle.live_count(count, n)
        indices = indices.astype(np.float64)
        if removes:
            rows = np.delete(x[:live], indices[indices < live].astype(np.int64), axis=0)
        else:
            inside = indices <= live
            rows = np.insert(x[:live], indices[inside].astype(np.int64), values[inside], axis=0)
        padded = oracle.padded(rows, slots, np.asarray(0 if form.dtype == "key" else fill).astype(x.dtype))
        return [Where(padded, np.arange(slots) < len(rows)) if form.dtype == "key" else padded]

    names = ("x",) if removes else ("x", "values")
    return Call(
        name, function, draw_operands, expected, shape.x64, names, names if fill == 0 else (), finite=shape.finite
    )
