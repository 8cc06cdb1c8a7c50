from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.examples import (
    HEADS,
    KEYS,
    Argument,
    Example,
    broken_ends,
    distinct,
    few,
    integer_to,
    live,
    numbers,
    of_segments,
    positions,
)
from tests.fuzz import draw
from tests.fuzz.compare import Equal
from tests.fuzz.draw import Call, Shape, names_of
from tests.fuzz.functions import ItemMap
from tests.fuzz.operators import Function, Named, before, cast, converted, operator_of, scalar
from tests.many_items import bytes_of, pieces, same, spots


def weighted(x: Any, i: Any) -> Any:
    return x * i.astype(x.dtype)


EXAMPLES = {
    "scan": Example(
        lambda x, count: mgpu.scan(x, exclusive=True, return_total=True, count=count),
        lambda rng, real: (numbers(rng, real), live(rng)),
        differentiable=(0,),
        counts=(1,),
        exact=False,
    ),
    "scan, max": Example(
        lambda x: mgpu.scan(x, "max", reverse=True), lambda rng, real: (distinct(rng, real),), differentiable=(0,)
    ),
    "scan, argmax": Example(lambda x: mgpu.scan(x, "argmax", exclusive=True), lambda rng, real: (distinct(rng, real),)),
    "segmented_scan": of_segments(lambda x, heads, count: mgpu.segmented_scan(x, heads, count=count), exact=False),
    "segmented_scan, map": of_segments(
        lambda x, heads, count: mgpu.segmented_scan(x, heads, map=weighted, count=count),
        exact=False,
        composed=True,
    ),
    "segmented_scan, emit": of_segments(
        lambda x, heads, count: mgpu.segmented_scan(x, heads, emit=weighted, count=count),
        exact=False,
        composed=True,
    ),
    "segmented_scan, initial": of_segments(
        lambda x, heads, count: mgpu.segmented_scan(x, heads, initial=2, exclusive=True, count=count),
        exact=False,
        composed=True,
    ),
    "scan_by_key": Example(
        lambda keys, x, count: mgpu.scan_by_key(keys, x, count=count),
        lambda rng, real: (few(rng), numbers(rng, real), live(rng)),
        differentiable=(1,),
        counts=(2,),
        exact=False,
        composed=True,
    ),
    "segmented_scan, max": Example(
        lambda x, heads: mgpu.segmented_scan(x, heads, "max", reverse=True),
        lambda rng, real: (distinct(rng, real), positions(rng)),
        differentiable=(0,),
    ),
}


def placed(state: Any, i: Any) -> Any:
    return state, i


GARBAGE = {
    "scan": lambda keys, repeated, indices, wild: mgpu.scan(keys, count=indices[0], return_total=True),
    "segmented_scan": lambda keys, repeated, indices, wild: mgpu.segmented_scan(keys, indices, reverse=True),
    "scan_by_key": lambda keys, repeated, indices, wild: mgpu.scan_by_key(repeated, keys, "max", count=indices[0]),
}

BROKEN = {
    "scan: count": (lambda: mgpu.scan(KEYS, count=7), integer_to(6), 0),
    "scan_by_key: count": (lambda: mgpu.scan_by_key(KEYS, KEYS, count=7), integer_to(6), 0),
    "segmented_scan: heads": (lambda: mgpu.segmented_scan(KEYS, [0, 4, 2]), HEADS, 2),
    **broken_ends(mgpu.segmented_scan),
    "segmented_scan: count": (lambda: mgpu.segmented_scan(KEYS, [0, 3], count=7), integer_to(6), 0),
}

ARGUMENTS = {
    **{f"{name}: x": Argument("items") for name in ("scan", "segmented_scan", "scan_by_key")},
    "scan_by_key: keys": Argument("matched keys"),
}


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def large_scan(n, index):
    x = bytes_of(n)
    same(mgpu.scan(x), np.cumsum(x, dtype=np.uint8))


def large_segmented_scan(n, index):
    x, heads = bytes_of(n), spots(n, index)
    expected = np.concatenate([np.cumsum(p, dtype=np.uint8) for p in pieces(x, heads)])
    same(mgpu.segmented_scan(x, heads), expected)


def large_scan_argmax(n, index):
    x = np.zeros(n, np.uint8)
    at = spots(n, index)
    x[at] = np.arange(1, len(at) + 1)
    got = np.asarray(mgpu.scan(x, "argmax"))
    assert np.array_equal(got[at], at)
    assert np.array_equal(got[at[1:] - 1], at[:-1])


LARGE = {"scan": large_scan, "segmented_scan": large_segmented_scan}


def large_scan_by_key(n, index):
    at = spots(n, index)
    keys = np.repeat(np.arange(len(at), dtype=np.uint8), np.diff(at, append=n))
    expected = np.concatenate([np.cumsum(part, dtype=np.uint8) for part in pieces(bytes_of(n), at)])
    same(mgpu.scan_by_key(keys, bytes_of(n)), expected)


LARGE_WITH_INDICES = {"scan, argmax": large_scan_argmax, "scan_by_key": large_scan_by_key}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def scans(shape: Shape, item_map: ItemMap | None = None) -> Call:
    name = shape.choice(("scan", "segmented_scan", "segmented_scan", "scan_by_key"))
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
    options |= converted(shape, operator)
    dtype = options.get("dtype")
    emits = shape.flag(0.2)
    if emits:
        options["emit"] = placed
    begins = isinstance(operator, Named) and operator.op in ("add", "min", "max") and shape.flag(0.3)
    begins = begins and np.dtype(jnp.dtype(dtype or operator.dtype)).kind in "iu"
    begins = begins and not (total or emits or shape.derivative)
    if begins:
        options["initial"] = 3
    shape.say(
        name,
        f"m={m}",
        "emit" * emits,
        "initial" * begins,
        "exclusive" * exclusive,
        "reverse" * reverse,
        "total" * total,
    )

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        heads = draw.positions(rng, m, n, head_dtype) if name == "segmented_scan" else None
        x = before(item_map, rng, operator.draw(rng, n))
        keys = np.sort(rng.integers(0, max(m, 1), n)).astype(np.int16) if name == "scan_by_key" else None
        return names_of(name, keys=keys, x=x, heads=heads, count=draw.drawn(count, rng))

    def function(x: Any, heads: Any = None, keys: Any = None, **others: Any) -> Any:
        if keys is not None:
            return mgpu.scan_by_key(keys, x, **options, **others)
        return getattr(mgpu, name)(*((x,) if heads is None else (x, heads)), **options, **others)

    def expected(x: Any, heads: Any = (), keys: Any = None, count: Any = None) -> list[Any]:
        heads = heads if keys is None else np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[:n])
        heads = np.asarray(heads, np.int64) if not len(heads) else heads
        x = x if item_map is None else item_map.function_of(x)
        x = cast(x, dtype)
        scanned = operator.scan(x, heads, exclusive, reverse, count)
        if begins:
            scanned = [_begun(leaf, operator.op, oracle.live_count(count, n)) for leaf in scanned]
        if emits:
            places = np.arange(n, dtype=np.int32)
            is_live = places < oracle.live_count(count, n)
            if operator.gives_index:
                scanned = [np.where(is_live, leaf, 0).astype(np.int32) for leaf in scanned]
            scanned = [*scanned, np.where(is_live, places, 0).astype(np.int32)]
        if not total:
            return scanned
        flipped = x if not reverse or isinstance(operator, Named) else jax.tree.map(lambda leaf: _flip(leaf, count), x)
        return [*scanned, *map(scalar, operator.reduce(flipped, np.zeros(1, np.int64), count, widens=False))]

    return Call(name, function, draw_operands, expected, shape.x64, ("x",), finite=shape.finite)


def _begun(leaf: Any, op: str, live: int) -> Any:
    """Returns the results of the scan that starts from the state 3."""
    results = leaf.expected if isinstance(leaf, Equal) else leaf
    combine = {"add": np.add, "min": np.minimum, "max": np.maximum}[op]
    with np.errstate(over="ignore"):
        return np.where(np.arange(len(results)) < live, combine(results, results.dtype.type(3)), 0).astype(
            results.dtype
        )


def _flip(x: np.ndarray, count: Any) -> np.ndarray:
    live = oracle.live_count(count, len(x))
    return np.concatenate([x[:live][::-1], x[live:]])


DRAWN = {"scan": scans}
