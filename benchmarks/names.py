"""Compares functions of `jax_mgpu.numpy` and `jax_mgpu.ops` with JAX's: `python -m benchmarks.names [TEXT ...]`.

A row is a jitted function on arrays of one shape. Both sides take turns, and the shortest time of each counts. If our
name calls JAX's own function, the row says so instead of timing one program twice. A row fails if JAX is faster by more
than 5%.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu.numpy
import jax_mgpu.ops

__all__ = ["main"]

SECONDS = 0.15  # per side of a row
SLOWER = 1.05
SHAPES: list[tuple[int, ...]] = [(256,), (1024,), (2**14,), (2**20,), (1024, 8), (4096, 64), (64, 2**14)]

Row = tuple[str, Callable[[Any], Callable[..., Any]], Sequence[Any]]


class _Jax:
    """Finds JAX's function of a name."""

    def __getattr__(self, name: str) -> Any:
        return next(getattr(module, name) for module in (jnp, jax.lax, jax.ops) if hasattr(module, name))


class _Ours:
    def __getattr__(self, name: str) -> Any:
        return getattr(jax_mgpu.ops if name.startswith("segment_") else jax_mgpu.numpy, name)


def _call(name: str, *arguments: Any, **options: Any) -> Callable[[Any], Callable[..., Any]]:
    """Binds further arguments to a function of arrays; the result takes `_Ours()` or `_Jax()`, its namespace."""
    return lambda names: lambda *arrays: getattr(names, name)(*arrays, *arguments, **options)


def _of_rows(shape: tuple[int, ...], rng: np.random.Generator) -> Iterator[Row]:
    """Yields functions along the last axis and along the first axis."""
    reals = rng.standard_normal(shape).astype(np.float32)
    words = rng.integers(0, 2**30, shape, dtype=np.int32)
    for axis in (-1, 0) if len(shape) > 1 else (-1,):
        where = f"{list(shape)}" + (", axis 0" if axis == 0 else "")
        for name in ("sort", "argsort", "cumsum", "cumprod", "median"):
            yield f"{name} float32 {where}", _call(name, axis=axis), [reals]
        yield f"sort int32 {where}", _call("sort", axis=axis), [words]
        nine = np.linspace(0.1, 0.9, 9, dtype=np.float32)
        yield f"quantile float32, 9 of {where}", _call("quantile", nine, axis=axis), [reals]
    yield f"top_k float32, 8 of {list(shape)}", _call("top_k", 8), [reals]
    yield f"top_k float32, half of {list(shape)}", _call("top_k", shape[-1] // 2), [reals]


def _of_vectors(n: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields functions of one or two vectors, whose results have a static size."""
    reals, bytes_ = rng.standard_normal(n).astype(np.float32), rng.integers(0, 255, n, dtype=np.uint8)
    words, other = (rng.integers(0, n, n, dtype=np.int32) for _ in range(2))
    ids, lengths = rng.integers(0, n // 8, n, dtype=np.int32), rng.integers(0, 4, n, dtype=np.int32)
    keep, edges = rng.random(n) < 0.5, np.linspace(-3, 3, 101, dtype=np.float32)
    rows, few = reals.reshape(-1, 8), keep[: n // 8]
    yield f"sort uint8 [{n}]", _call("sort"), [bytes_]
    yield f"lexsort, 2 of [{n}]", lambda names: lambda a, b: names.lexsort((a, b)), [reals, ids]
    yield f"unique [{n}]", _call("unique", size=n), [words]
    yield f"unique, inverse and counts [{n}]", _call("unique", False, True, True, size=n), [words]
    for name in ("union1d", "intersect1d", "setxor1d"):
        yield f"{name} [{n}]", _call(name, size=n), [words, other]
    if n <= 2**14:  # JAX compares all pairs
        yield f"setdiff1d [{n}]", _call("setdiff1d", size=n), [words, other]
        yield f"isin [{n}] in [{n}]", _call("isin"), [words, other]
    for tests in (64, 256):
        yield f"isin [{n}] in [{tests}]", _call("isin"), [words, other[:tests]]
    yield f"nonzero [{n}]", _call("nonzero", size=n), [keep]
    yield f"flatnonzero [{n}]", _call("flatnonzero", size=n, fill_value=n), [reals]
    yield f"argwhere [{n // 8}, 8]", _call("argwhere", size=n), [keep.reshape(-1, 8)]
    yield f"compress [{n}]", _call("compress", size=n), [keep, reals]
    yield f"compress [{n // 8}, 8]", _call("compress", axis=0, size=n // 8), [few, rows]
    yield f"repeat [{n}]", _call("repeat", total_repeat_length=2 * n), [reals, lengths]
    yield f"take [{n}]", _call("take"), [reals, words]
    yield f"searchsorted [{n}] in [{n}]", _call("searchsorted"), [np.sort(reals), reals]
    yield f"bincount [{n}]", _call("bincount", length=n // 8), [ids]
    yield f"histogram [{n}]", _call("histogram"), [reals, edges]
    yield f"segment_sum [{n}]", _call("segment_sum", n // 8), [reals, ids]
    yield f"segment_max [{n // 8}, 8]", _call("segment_max", n // 64), [rows, ids[: n // 8]]


def _rows() -> Iterator[Row]:
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        yield from _of_rows(shape, rng)
    for (n,) in (shape for shape in SHAPES if len(shape) == 1):
        yield from _of_vectors(n, rng)


def _min_ms(functions: Sequence[Callable[..., Any]], arguments: Sequence[Any]) -> list[float]:
    """Calls the functions in turns, and returns the milliseconds of the fastest call of each."""
    for function in functions:
        jax.block_until_ready(function(*arguments))
    fastest, spent, calls = [float("inf")] * len(functions), 0.0, 0
    while calls < 3 or (spent < SECONDS * len(functions) and calls < 300):
        for i, function in enumerate(functions):
            begin = time.perf_counter()
            jax.block_until_ready(function(*arguments))
            took = time.perf_counter() - begin
            fastest[i], spent = min(fastest[i], 1e3 * took), spent + took
        calls += 1
    return fastest


def main(texts: Sequence[str]) -> int:
    """Prints a row for each function and shape whose name contains one of the texts; returns 1 if JAX is faster."""
    slower = 0
    print("| function | ms | JAX's | times as fast |\n|---|--:|--:|--:|")
    for name, bound, operands in _rows():
        if texts and not any(text in name for text in texts):
            continue
        arguments = [jnp.asarray(x) for x in operands]
        ours, theirs = jax.jit(bound(_Ours())), jax.jit(bound(_Jax()))
        if "jax_mgpu" not in ours.lower(*arguments).as_text():
            print(f"| {name} | | | JAX's own |", flush=True)
            continue
        own, peer = _min_ms([ours, theirs], arguments)
        slower += own > SLOWER * peer
        print(
            f"| {name} | {own:.4f} | {peer:.4f} | {peer / own:.2f} |{' slower' if own > SLOWER * peer else ''}",
            flush=True,
        )
    print(f"\n{slower} rows are slower than JAX by more than 5%.")
    return int(slower > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
