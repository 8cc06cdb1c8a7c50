from __future__ import annotations

from typing import Any

import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.examples import (
    HEADS,
    KEYS,
    Argument,
    Example,
    N,
    at_most,
    broken_ends,
    few,
    integer_to,
    live,
    numbers,
    positions,
)
from tests.fuzz import draw
from tests.fuzz.draw import Call, Shape, names_of
from tests.fuzz.shared import filled_rows, int32, rows_of
from tests.many_items import bytes_of, same, spots

EXAMPLES = {
    "take": Example(
        lambda x, rows, indices: mgpu.take({"x": x, "rows": rows}, indices, fill_value=2),
        lambda rng, real: (numbers(rng, real), numbers(rng, real, N, 2), rng.integers(-3, N + 3, N).astype(np.int32)),
        differentiable=(0, 1),
        composed=True,
    ),
    "take, indices of any shape": Example(
        mgpu.take,
        lambda rng, real: (numbers(rng, real), rng.integers(0, 9, (4, 3)).astype(np.int32)),
        differentiable=(0,),
        composed=True,
    ),
    "inverse_permutation": Example(
        mgpu.inverse_permutation, lambda rng, real: (rng.permutation(N).astype(np.int32),), composed=True
    ),
    "inverse_permutation, count": Example(
        lambda order, count: mgpu.inverse_permutation(order, count=count),
        lambda rng, real: (rng.permutation(N).astype(np.int32), live(rng)),
        counts=(1,),
        composed=True,
    ),
    "select": Example(
        lambda x, keep, rows, count: mgpu.select({"x": x, "rows": rows}, keep, size=N, count=count),
        lambda rng, real: (numbers(rng, real), rng.random(N) < 0.5, numbers(rng, real, N, 2), live(rng)),
        differentiable=(0, 2),
        counts=(3,),
    ),
    "select_indices": Example(
        lambda keep, count: mgpu.select_indices(keep, size=N, count=count),
        lambda rng, real: (rng.random(N) < 0.5, live(rng)),
        counts=(1,),
    ),
    "partition": Example(
        lambda x, keep, count: mgpu.partition({"x": x}, keep, count=count),
        lambda rng, real: (numbers(rng, real), rng.random(N) < 0.5, live(rng)),
        differentiable=(0,),
        counts=(2,),
        composed=True,
    ),
    "run_starts": Example(
        lambda keys, heads, count: mgpu.run_starts(keys, heads, size=50, count=count),
        lambda rng, real: (few(rng), positions(rng), live(rng)),
        counts=(2,),
    ),
    "run_starts, columns": Example(
        lambda a, b, heads, count: mgpu.run_starts((a, b), heads, size=50, count=count),
        lambda rng, real: (few(rng), few(rng).astype(real), positions(rng), live(rng)),
        counts=(3,),
        composed=True,
    ),
    "run_starts, one segment": Example(lambda keys: mgpu.run_starts(keys, size=20), lambda rng, real: (few(rng),)),
}

GARBAGE = {
    "take": lambda keys, repeated, indices, wild: mgpu.take(keys, wild),
    "inverse_permutation": lambda keys, repeated, indices, wild: (
        mgpu.inverse_permutation(keys),
        mgpu.inverse_permutation(indices, count=wild[0]),
    ),
    "select": lambda keys, repeated, indices, wild: mgpu.select(keys, repeated > 5, size=1000, count=indices[0]),
    "select_indices": lambda keys, repeated, indices, wild: mgpu.select_indices(repeated > 5, count=wild[0]),
    "partition": lambda keys, repeated, indices, wild: mgpu.partition(keys, repeated > 5, count=wild[0]),
    "run_starts": lambda keys, repeated, indices, wild: mgpu.run_starts(repeated, indices, count=wild[0]),
}

BROKEN = {
    **broken_ends(mgpu.run_starts),
    "inverse_permutation: order": (
        lambda: mgpu.inverse_permutation([3, 1, 2, 3, 4, 9]),
        "distinct positions of 6 items",
        3,
    ),
    "inverse_permutation: count": (lambda: mgpu.inverse_permutation(np.arange(6), count=7), integer_to(6), 0),
    "select: size": (lambda: mgpu.select(KEYS, KEYS > 1, size=4), at_most(4), 0),
    "select_indices: count": (lambda: mgpu.select_indices(KEYS > 2, count=-1), integer_to(6), 0),
    "select_indices: size": (lambda: mgpu.select_indices(KEYS > 1, size=4), at_most(4), 0),
    "run_starts: heads": (lambda: mgpu.run_starts(KEYS, [0, 4, 2]), HEADS, 2),
    "run_starts: count": (lambda: mgpu.run_starts(KEYS, count=7), integer_to(6), 0),
    "run_starts: size": (lambda: mgpu.run_starts(KEYS, size=5), at_most(5), 0),
    "select: count": (lambda: mgpu.select(KEYS, KEYS > 2, count=7), integer_to(6), 0),
    "partition: count": (lambda: mgpu.partition(KEYS, KEYS > 2, count=7), integer_to(6), 0),
}

WITHOUT_PRECONDITIONS = ("take",)

ARGUMENTS = {
    "run_starts: keys": Argument("matched keys"),
    "unique: keys": Argument("matched keys"),
    "inverse_permutation: order": Argument("positions", np.array([2, 0, 1], np.int32)),
    "take: indices": Argument("indices of any shape"),
    "take: fill_value": Argument("fill or none"),
    "select: x": Argument("values"),
    "partition: x": Argument("values"),
    "run_starts: heads": Argument("ends"),  # may be left out
    "select_indices: fill_value": Argument("index fill"),
}


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def mask_of(n, at):
    mask = np.zeros(n, bool)
    mask[at] = True
    return mask


def large_take(n, index):
    at = spots(n, index)
    same(mgpu.take(bytes_of(n), np.append(at, n), fill_value=7), np.append(bytes_of(n)[at], np.uint8(7)))


def large_inverse_permutation(n, index):
    at = spots(n, index)
    order = np.roll(np.arange(n, dtype=index), 1)
    for count, moved in ((None, n), (n // 2, n // 2)):
        got = np.asarray(mgpu.inverse_permutation(order, count=count))[at]
        assert np.array_equal(got, np.where((at + 1) % n < moved, (at + 1) % n, -1))


def large_select(n, index):
    at = spots(n, index)
    got = mgpu.select(bytes_of(n), mask_of(n, at), size=len(at))
    same(got.values, bytes_of(n)[at])
    assert got.count == len(at)


def large_select_indices(n, index):
    at = spots(n, index)
    assert np.array_equal(mgpu.select_indices(mask_of(n, at), size=len(at))[0], at)


def large_partition(n, index):
    at, x = spots(n, index), bytes_of(n)
    got, count = mgpu.partition(x, mask_of(n, at))
    same(np.asarray(got)[: len(at)], x[at])
    same(np.asarray(got)[len(at) :], np.delete(x, at))
    assert count == len(at)


def large_run_starts(n, index):
    at = spots(n, index)
    keys = np.repeat(np.arange(len(at), dtype=np.uint8), np.diff(at, append=n))
    for heads in (None, at[2:3]):
        runs = mgpu.run_starts(keys, heads, size=len(at))
        assert np.array_equal(runs.starts, at)
        assert runs.heads == (0 if heads is None else 2)


LARGE_WITH_INDICES = {
    "inverse_permutation": large_inverse_permutation,
    "take": large_take,
    "select": large_select,
    "select_indices": large_select_indices,
    "partition": large_partition,
    "run_starts": large_run_starts,
}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def takes(shape: Shape) -> Call:
    n, k = shape.size(), shape.size()
    form, fill, index = rows_of(shape, n), shape.choice((None, 0, 2)), shape.index_dtype(0)
    spread, form_of = shape.choice((1, 2, n + 3)), shape.choice(((k,), (k,), (k, 1), (2, k // 2), ()))
    shape.say(f"k={k}", f"fill={fill}", f"spread={spread}", f"indices={form_of}", index)

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        low, high = max(-3, np.iinfo(index).min), min(spread, np.iinfo(index).max)
        return {"x": form.draw(rng, n), "indices": rng.integers(low, high, form_of).astype(index)}

    def function(x: Any, indices: Any) -> Any:
        return form.leave(mgpu.take({"x": form.enter(x)}, indices, fill_value=fill)["x"])

    def expected(x: Any, indices: Any) -> list[Any]:
        at = indices.astype(np.int64)
        inside = (at >= 0) & (at < n)
        out = np.full((*at.shape, *x.shape[1:]), np.asarray(fill or 0).astype(x.dtype), x.dtype)
        out[inside] = x[at[inside]]
        return [out]

    linear = ("x",) if fill is None else ()
    return Call("take", function, draw_operands, expected, shape.x64, ("x",), linear, finite=shape.finite)


def inverses(shape: Shape) -> Call:
    n = shape.size()
    count, dtype = shape.count(n), shape.index_dtype(n)

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        live = draw.drawn(count, rng)
        order = rng.permutation(n)
        if not mixable:  # places past the live ones are not read
            order[oracle.live_count(live, n) :] = rng.integers(0, n + 1, n)[oracle.live_count(live, n) :]
        return names_of("inverse_permutation", order=order.astype(dtype), count=live)

    def expected(order: Any, count: Any = None) -> list[Any]:
        live, out = oracle.live_count(count, n), np.full(n, -1, np.int32)
        out[order[:live].astype(np.int64)] = np.arange(live)
        return [out]

    return Call("inverse_permutation", mgpu.inverse_permutation, draw_operands, expected, shape.x64)


def selections(shape: Shape) -> Call:
    name = shape.choice(("select", "select_indices", "partition"))
    n = shape.size()
    form = rows_of(shape, n) if name != "select_indices" else None
    count, share = shape.count(n), shape.choice((0, 0.02, 0.5, 0.5, 0.98, 1))
    size = shape.choice((None, None, 0, n // 2, n + 4)) if name != "partition" else None
    slots = n if size is None else size
    fill = shape.choice((0, 0, 2))
    options = {} if name == "partition" else {"size": size, "fill_value": fill}
    shape.say(name, f"size={size}", f"fill={fill}", f"share={share}")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
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
            return [filled_rows(form, x[kept], slots, fill), int32(len(kept))]
        order = np.concatenate([kept, np.flatnonzero(~keep[:live]), np.arange(live, n)])
        return [x[order], int32(len(kept))]

    names = () if form is None else ("x",)
    linear = names if fill == 0 else ()
    return Call(name, function, draw_operands, expected, shape.x64, names, linear, finite=shape.finite)


def runs(shape: Shape) -> Call:
    n = shape.size()
    dtype, count = shape.key_dtype(), shape.count(n)
    m = shape.choice((None, 0, 1, n // 5, n + 3))
    head_dtype = shape.index_dtype(0)
    size = shape.choice((None, None, 0, n // 2, n + 2))
    slots = n if size is None else size
    least = shape.choice((1, 1, 2, 3))
    shape.say(f"m={m}", f"size={size}", f"least={least}")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        keys = np.repeat(draw.keys(shape, rng, dtype, n, few=not shape.derivative), rng.integers(1, 4))[:n]
        heads = None if m is None else draw.positions(rng, m, n, head_dtype)
        return names_of("run_starts", keys=keys, heads=heads, count=draw.drawn(count, rng))

    def function(keys: Any, heads: Any = None, **others: Any) -> Any:
        return mgpu.run_starts(keys, heads, size=size, least=least, **others)

    def expected(keys: Any, heads: Any = None, count: Any = None) -> list[Any]:
        live = oracle.live_count(count, n)
        ranks = oracle.rank(keys[:live])
        is_start = np.append(True, ranks[1:] != ranks[:-1])[:live]
        at = np.zeros(0) if heads is None else heads.astype(np.float64)
        is_start[at[at < live].astype(np.int64)] = True
        starts = np.flatnonzero(is_start)
        starts = starts[np.diff(starts, append=live) >= least]
        before = [0] if heads is None else np.searchsorted(starts, at, "left")
        return [oracle.padded(int32(starts), slots, n), int32(before), int32(len(starts))]

    return Call("run_starts", function, draw_operands, expected, shape.x64, finite=shape.finite)


DRAWN = {"take": takes, "inverse_permutation": inverses, "selection": selections, "runs": runs}
