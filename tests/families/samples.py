from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests.examples import HEADS, Argument, Example, N, numbers, positions
from tests.fuzz.compare import Equal, Where
from tests.fuzz.draw import Call, Shape
from tests.fuzz.shared import int32, rows_of
from tests.many_items import bytes_of, same

SLOTS = 2


def uniform(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.random(shape, np.float32)


def key_of(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 2**32, 2, np.uint32)


def experts_of(rng: np.random.Generator, n: int = N) -> np.ndarray:
    """Draws the experts of each token, some out of range."""
    return rng.integers(-1, 6, (n, SLOTS)).astype(np.int32)


def back_of(rng: np.random.Generator) -> np.ndarray:
    """Draws the row of each slot: no row occurs twice, and some slots have none (-1)."""
    return np.where(rng.random(N) < 0.2, -1, rng.permutation(N)).reshape(-1, SLOTS).astype(np.int32)


EXAMPLES = {
    "weighted_choice": Example(
        mgpu.weighted_choice,
        lambda rng, real: (uniform(rng, 9), rng.integers(0, 4, N).astype(real)),
        composed=True,
    ),
    "weighted_choice, segments": Example(
        mgpu.weighted_choice,
        lambda rng, real: (
            uniform(rng, 9),
            rng.integers(0, 4, N).astype(real),
            positions(rng),
            rng.integers(-1, 7, 9).astype(np.int32),
        ),
        composed=True,
    ),
    "sample_logits": Example(
        lambda key, logits, p: mgpu.sample_logits(key, logits, top_k=7, top_p=p, min_p=0.01),
        lambda rng, real: (key_of(rng), numbers(rng, real, 4, 20), uniform(rng, 4)),
        composed=True,
    ),
    "sample_logits, top_k of rows": Example(
        lambda key, logits, k: mgpu.sample_logits(key, logits, top_k=k, temperature=0.7),
        lambda rng, real: (key_of(rng), numbers(rng, real, 4, 20), rng.integers(1, 25, 4)),
        composed=True,
    ),
    "dispatch": Example(
        lambda x, experts: jax.tree.leaves(mgpu.dispatch(x, experts, 5)),
        lambda rng, real: (numbers(rng, real, N, 3), experts_of(rng)),
        differentiable=(0,),
        composed=True,
    ),
    "combine": Example(
        mgpu.combine,
        lambda rng, real: (numbers(rng, real, N, 3), back_of(rng), numbers(rng, real, N // SLOTS, SLOTS)),
        differentiable=(0, 2),
        exact=False,
        composed=True,
    ),
}

GARBAGE = {
    "weighted_choice": lambda keys, repeated, indices, wild: mgpu.weighted_choice(indices * 1e-6, keys, indices, wild),
    "sample_logits": lambda keys, repeated, indices, wild: mgpu.sample_logits(
        jax.random.key(0),
        keys.reshape(-1, 8) * 1e-9,
        temperature=repeated[0] * 0.1,
        top_k=wild,
        top_p=0.5,
    ),
    "dispatch": lambda keys, repeated, indices, wild: mgpu.dispatch(keys, repeated, 7),
    "combine": lambda keys, repeated, indices, wild: mgpu.combine(keys * 1e-9, indices, indices * 0.1),
}

WEIGHTS = np.ones(6, np.float32)
BROKEN = {
    "weighted_choice: heads": (lambda: mgpu.weighted_choice([0.5], WEIGHTS, [0, 4, 2], [0]), HEADS, 2),
    "sample_logits: temperature": (
        lambda: mgpu.sample_logits(jax.random.key(0), np.ones((3, 2), np.float32), temperature=[1.0, 0.0, -1.0]),
        "a number of at least 0",
        2,
    ),
    **{
        f"sample_logits: {name}": (
            lambda name=name: mgpu.sample_logits(
                jax.random.key(0), np.ones((3, 2), np.float32), **{name: [1.0, 1.5, -1.0]}
            ),
            "numbers from 0 to 1",
            1,
        )
        for name in ("top_p", "min_p")
    },
    "combine: back": (
        lambda: mgpu.combine(WEIGHTS, np.array([[3, -1], [-1, 2], [9, 3]]), np.ones((3, 2), np.float32)),
        "distinct positions of 6 items",
        5,
    ),
}

WITHOUT_PRECONDITIONS = ("dispatch",)

ARGUMENTS = {
    "weighted_choice: u": Argument("fractions", np.array([0.5, 0.2], np.float32)),
    "weighted_choice: weights": Argument("keys", WEIGHTS),
    "weighted_choice: segments": Argument(None),
    "weighted_choice: ids": Argument(None),
    "sample_logits: key": Argument(None, np.array([0, 1], np.uint32)),
    "sample_logits: logits": Argument("floats", WEIGHTS),
    **{f"sample_logits: {name}": Argument(None) for name in ("temperature", "top_k", "top_p", "min_p")},
    "dispatch: experts": Argument("indices of any shape", np.zeros(6, np.int32)),
    "dispatch: number": Argument("size", 3),
    "combine: rows": Argument("floats", WEIGHTS),
    "combine: back": Argument("indices of any shape", np.arange(6, dtype=np.int32)),
    "combine: weights": Argument("floats", WEIGHTS),
}


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def large_weighted_choice(n, index):
    weights = np.zeros(n, np.uint8)
    weights[[5, n - 2]] = 1
    assert mgpu.weighted_choice(np.array([0.2, 0.7], np.float32), weights).tolist() == [5, n - 2]


def large_sample_logits(n, index):
    logits = np.full(n, -np.inf, np.float16)
    logits[n - 2] = 0
    for options in ({}, {"top_k": 3}, {"top_p": 0.5}):
        assert mgpu.sample_logits(jax.random.key(0), logits, **options) == n - 2


def large_dispatch(n, index):
    experts = np.zeros(n, np.int8)
    experts[n - 3 :] = [1, -1, 1]
    got = mgpu.dispatch(bytes_of(n), experts, 2)
    same(np.asarray(got.rows)[-3:], np.append(bytes_of(n)[[n - 3, n - 1]], np.uint8(0)))
    assert np.asarray(got.back)[-3:].tolist() == [n - 3, -1, n - 2]


def large_combine(n, index):
    rows = bytes_of(n).astype(np.float16)
    got = mgpu.combine(rows, np.arange(n, dtype=index)[::-1], np.ones(n, np.float16))
    same(np.asarray(got)[:1000], rows[::-1][:1000])


LARGE_WITH_INDICES = {
    "weighted_choice": large_weighted_choice,
    "sample_logits": large_sample_logits,
    "dispatch": large_dispatch,
    "combine": large_combine,
}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def choices(shape: Shape) -> Call:
    """Draws a choice by weights whose sums are exact."""
    n, k, dtype = shape.size(), shape.size(), shape.choice(("float32", "int32", "uint8", "bfloat16", "int8"))
    m = shape.choice((None, 1, 3, n // 5))
    shape.say(dtype, f"m={m}", f"k={k}")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        weights = rng.integers(0 if dtype == "uint8" else -2, 3, n).astype(jnp.dtype(dtype))
        operands = {"u": (rng.integers(0, 2**10, k) / 2**10).astype(np.float32), "weights": weights}
        if m is not None:
            operands["segments"] = np.sort(rng.integers(0, n + 1, m)).astype(np.int32)
            operands["ids"] = rng.integers(-1, m + 1, k).astype(np.int32)
        return operands

    def expected(u: Any, weights: Any, segments: Any = None, ids: Any = None) -> list[Any]:
        exact = np.maximum(weights.astype(np.float64), 0)
        heads, numbers = (np.zeros(1, int), np.zeros(k, int)) if m is None else (segments, ids)
        out = np.full(k, -1)
        for i, (begin, end) in enumerate(zip(heads, np.append(heads[1:], n), strict=False)):
            sums, own = np.cumsum(exact[begin:end]), numbers == i
            if len(sums) and sums[-1] > 0:
                out[own] = begin + np.searchsorted(sums, u[own].astype(np.float64) * sums[-1], "right")
        return [int32(out)]

    return Call("weighted_choice", mgpu.weighted_choice, draw_operands, expected, shape.x64)


def tokens(shape: Shape) -> Call:
    rows, n = shape.choice((0, 1, 5, 40)), shape.choice((0, 1, 7, 300))
    dtype = shape.choice(("float32", "float16", "bfloat16"))
    one = shape.choice(({"temperature": 0}, {"top_k": 1}, {"top_p": 0.0}, {"top_k": np.int32(1)}))
    more = shape.choice(({}, {"min_p": 0.3}, {"temperature": 0.5} if "temperature" not in one else {}))
    shape.say(f"rows={rows}", f"n={n}", dtype, one, more)

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        logits = rng.integers(-9, 9, (rows, n)).astype(jnp.dtype(dtype))
        if not shape.finite:
            special = rng.random((rows, n))
            logits[special < 0.3], logits[special < 0.2] = -np.inf, np.nan
        return {"seed": np.uint32(rng.integers(2**32)), "logits": logits}

    def function(seed: Any, logits: Any) -> Any:
        return mgpu.sample_logits(jax.random.key(seed), logits, **one, **more)

    def expected(seed: Any, logits: Any) -> list[Any]:
        exact = np.nan_to_num(logits.astype(np.float64), nan=-np.inf, neginf=-np.inf)
        found = np.argmax(exact, axis=1) if n else np.full(rows, -1)
        return [int32(np.where(np.isfinite(exact).any(axis=1), found, -1))]

    return Call("sample_logits", function, draw_operands, expected, shape.x64, finite=shape.finite)


def routes(shape: Shape) -> Call:
    name = shape.choice(("dispatch", "combine"))
    n, slots, number = shape.size(), shape.choice((1, 2, 3)), shape.choice((0, 1, 5, 300))
    n = min(n, 5000)
    form = rows_of(shape, n)
    dtype = shape.choice(("float32", "bfloat16"))
    shape.say(f"slots={slots}", f"number={number}")

    def draw_dispatch(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        return {"x": form.draw(rng, n), "experts": rng.integers(-1, number + 2, (n, slots)).astype(np.int32)}

    def dispatched(x: Any, experts: Any) -> Any:
        got = mgpu.dispatch(form.enter(x), experts, number)
        return form.leave(got.rows), got.segments.lengths, got.back

    def expect_dispatched(x: Any, experts: Any) -> list[Any]:
        ids = experts.reshape(-1)
        keys = np.where((ids >= 0) & (ids < number), ids, number)
        order, live = np.argsort(keys, kind="stable"), int((keys < number).sum())
        rows, back = x[order // slots], np.full(n * slots, -1, np.int32)
        rows[live:] = 0
        back[order[:live]] = np.arange(live)
        lengths = np.bincount(keys, minlength=number + 1)[:number]
        return [
            rows if form.dtype != "key" else Where(rows, np.arange(n * slots) < live),
            int32(lengths),
            back.reshape(n, slots),
        ]

    def draw_combine(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        back = np.where(rng.random(n * slots) < 0.2, -1, rng.permutation(n * slots))
        rows = rng.integers(-8, 9, (n * slots, 2)).astype(jnp.dtype(dtype))
        weights = (rng.integers(-8, 9, (n, slots)) / 4).astype(np.float32)
        return {"rows": rows, "back": back.reshape(n, slots).astype(np.int32), "weights": weights}

    def expect_combined(rows: Any, back: Any, weights: Any) -> list[Any]:
        exact = np.append(rows.astype(np.float64), np.zeros((1, 2)), axis=0)
        sums = (exact[back] * weights.astype(np.float64)[..., None]).sum(axis=1)
        return [Equal(sums.astype(rows.dtype))]

    if name == "dispatch":
        return Call(name, dispatched, draw_dispatch, expect_dispatched, shape.x64, ("x",), ("x",), finite=shape.finite)
    return Call(name, mgpu.combine, draw_combine, expect_combined, shape.x64, ("rows", "weights"), finite=True)


DRAWN = {"choices": choices, "tokens": tokens, "routes": routes}
