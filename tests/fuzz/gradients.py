"""Compares gradients with sums in float64: gradients of rows that are read many times, of extrema and of logsumexp.

Unlike in `derivatives.py`, items may be infinite or NaN. Cotangents are small integers, so their sums are exact.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from jax_mgpu._src.core.compat import vary_as
from tests import oracle
from tests.fuzz import draw
from tests.fuzz.compare import Near
from tests.fuzz.draw import Call, Shape

FLOATS = ("float32", "bfloat16", "float16")
MOST = 5000


def cotangents(shape: Shape, rng: np.random.Generator, dtype: str, *sizes: int) -> np.ndarray:
    """Draws small integers, none negative: an infinite partial derivative whose cotangents cancel counts as unused."""
    return (rng.integers(0, 4, sizes) * (rng.random(sizes) < rng.choice([0.1, 1]))).astype(jnp.dtype(dtype))


def _pulled(function: Any, x: Any, cotangent: Any) -> Any:
    # Within shard_map, x and y vary over the same axes: if x did not vary, its gradient would be added over devices.
    x = vary_as(x, function(x), cotangent)
    y, pull = jax.vjp(function, x)
    spec = jax.typeof(y).sharding.spec
    if jax.typeof(cotangent).sharding.spec != spec:  # the caller placed it over Explicit axes in another way
        cotangent = jax.sharding.reshard(cotangent, spec)
    return pull(vary_as(cotangent, y))[0]


def repeated(shape: Shape) -> Call:
    name = shape.choice(("take", "take", "lookup", "join_columns", "quantile"))
    n, k, dtype = min(shape.size(), MOST), min(shape.size(), MOST), shape.choice(FLOATS)
    n = max(n, 1) if name in ("lookup", "quantile") else n
    width = shape.choice(((), (), (1,), (3,))) if name != "quantile" else ()
    spread = shape.choice((1, 3, n + 2))
    shape.say(name, f"k={k}", dtype, list(width), f"spread={spread}")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        x = rng.integers(-4, 5, (n, *width)).astype(jnp.dtype(dtype))
        least, most = (-1, max(min(spread, n), 0)) if name == "join_columns" else (-2, spread)  # a join has -1 or a row
        places = rng.integers(least, most, k).astype(np.int32)
        if name == "quantile":
            return {"x": x, "places": (places > 0).astype(np.int32), "cotangent": cotangents(shape, rng, dtype, k)}
        given = {"x": x, "places": places, "cotangent": cotangents(shape, rng, dtype, k, *width)}
        return given | ({"table": rng.permutation(n).astype(np.int32)} if name == "lookup" else {})

    def function(x: Any, places: Any, cotangent: Any, table: Any = None) -> Any:
        def call(x: Any) -> Any:
            if name == "take":
                return mgpu.take(x, places)
            if name == "lookup":
                return mgpu.lookup(places, table, x)
            if name == "quantile":
                return mgpu.quantile(x, places.astype(jnp.float32))
            return mgpu.join_columns(mgpu.JoinResult(places, places, jnp.int32(k)), x)[0]

        return _pulled(call, x, cotangent)

    def expected(x: Any, places: Any, cotangent: Any, table: Any = None) -> list[Any]:
        gradient = np.zeros(x.shape)
        if name == "lookup":
            places = np.append(np.argsort(table), -1)[np.where((places >= 0) & (places < n), places, n)]
        elif name == "quantile":
            order = np.argsort(x.astype(np.float64), kind="stable")
            places = order[np.where(places > 0, n - 1, 0)]
        inside = (places >= 0) & (places < n)
        np.add.at(gradient, places[inside], cotangent[inside].astype(np.float64))
        return [Near(gradient.astype(x.dtype), 0)]

    return Call(name, function, draw_operands, expected, shape.x64, finite=shape.finite)


def ruled(shape: Shape) -> Call:
    name = shape.choice(("scan", "segmented_scan", "segmented_scan", "segmented_reduce", "reduce_by_id"))
    op, dtype, n = shape.choice(("logsumexp", "logsumexp", "min", "max")), shape.choice(FLOATS), min(shape.size(), 40)
    exclusive, reverse, m = shape.flag(), shape.flag(), shape.choice((1, 2, 5))
    count, size = shape.count(n), m if name in ("segmented_reduce", "reduce_by_id") else n
    shape.say(name, op, dtype, f"m={m}", f"exclusive={exclusive}", f"reverse={reverse}")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        x = rng.normal(size=n) * rng.choice([1, 20])
        if rng.random() < 0.5:
            x = np.round(x)  # makes ties
        if not shape.finite:
            special = rng.random(n) < rng.choice([0.1, 0.7])
            x = np.where(special, rng.choice([-np.inf, -np.inf, np.inf, np.nan, -0.0], n), x)
        heads = np.sort(rng.integers(0, n + 1, m)).astype(np.int32)
        heads = rng.integers(-1, m + 1, n).astype(np.int32) if name == "reduce_by_id" else heads
        given = {"x": x.astype(jnp.dtype(dtype)), "cotangent": cotangents(shape, rng, dtype, size)}
        given |= {} if name == "scan" else {"ids" if name == "reduce_by_id" else "heads": heads}
        return given | draw.names_of(name, count=draw.drawn(count, rng))

    def function(x: Any, cotangent: Any, heads: Any = None, ids: Any = None, count: Any = None) -> Any:
        def call(x: Any) -> Any:
            flags = {"exclusive": exclusive, "reverse": reverse, "count": count}
            if name == "scan":
                return mgpu.scan(x, op, **flags)
            if name == "segmented_scan":
                return mgpu.segmented_scan(x, heads, op, **flags)
            if name == "reduce_by_id":
                return mgpu.reduce_by_id(x, ids, m, op, count=count)
            return mgpu.segmented_reduce(x, heads, op, count=count)

        return _pulled(call, x, cotangent)

    def parts(heads: Any, ids: Any, live: int) -> list[np.ndarray]:
        if ids is not None:
            return [np.flatnonzero(ids[:live] == i) for i in range(m)]
        if name == "segmented_reduce":
            begins = np.minimum(heads, live)
            return [np.arange(i, j) for i, j in zip(begins, np.append(begins[1:], live), strict=True)]
        found = [np.arange(0)] * n
        for begin, end in oracle.segment_bounds(n, np.zeros(0) if heads is None else heads, live):
            for i in range(begin, end):
                found[i] = np.arange(i + exclusive, end) if reverse else np.arange(begin, i + 1 - exclusive)
        return found

    def expected(x: Any, cotangent: Any, heads: Any = None, ids: Any = None, count: Any = None) -> list[Any]:
        exact, weight = np.zeros(n), np.zeros(n)
        found = parts(heads, ids, oracle.live_count(count, n))
        for part, ct in zip(found, cotangent.astype(np.float64), strict=True):
            if ct:
                terms = oracle.partial_derivatives(x[part], op) * ct
                exact[part] += terms
                weight[part] += np.abs(np.nan_to_num(terms))
        if op != "logsumexp":
            return [Near(exact.astype(x.dtype), 0)]
        error = 2e-5 * weight + 1e-6 + float(jnp.finfo(x.dtype).eps) * np.nan_to_num(np.abs(exact))
        return [Near(exact.astype(x.dtype), error)]

    return Call(name, function, draw_operands, expected, shape.x64, finite=shape.finite)


def gradients(shape: Shape) -> Call:
    return shape.choice((repeated, ruled))(shape)
