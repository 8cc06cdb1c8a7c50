"""`jax_mgpu.numpy` and `jax_mgpu.ops` against JAX: `python -m benchmarks --grid --families names`.

A case fails if JAX is faster by more than 5%. If our function calls JAX's, the case says so and is not timed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu.numpy
import jax_mgpu.ops
from benchmarks.case import Case, Deterministic, agree_within, array_bytes

__all__ = ["GRID"]

Shape = tuple[int, ...]
Draw = Callable[[np.random.Generator, Shape], np.ndarray]
Row = tuple[str, Callable[[Any], Callable[..., Any]], Callable[..., tuple[Any, ...]]]

SHAPES: list[Shape] = [(256,), (1024,), (2**14,), (2**20,), (1024, 8), (4096, 64), (64, 2**14)]
ROUNDED = (
    "cum",
    "median",
    "quantile",
    "segment_sum",
    "columns",
)  # the results of functions whose names begin so agree within rounding


class _Jax:
    def __getattr__(self, name: str) -> Any:
        return next(getattr(module, name) for module in (jnp, jax.lax, jax.ops) if hasattr(module, name))


class _Ours:
    def __getattr__(self, name: str) -> Any:
        return getattr(jax_mgpu.ops if name.startswith("segment_") else jax_mgpu.numpy, name)


def _call(name: str, *arguments: Any, **options: Any) -> Callable[[Any], Callable[..., Any]]:
    """Binds further arguments; the result takes a namespace, `_Ours()` or `_Jax()`."""
    return lambda names: lambda *arrays: getattr(names, name)(*arrays, *arguments, **options)


def _reals(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def _sorted(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return np.sort(_reals(rng, shape))


def _weights(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return rng.random(shape, np.float32)


def _keep(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return _weights(rng, shape) < 0.5


def _edges(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return np.linspace(-3, 3, shape[0], dtype=np.float32)


@functools.cache
def _below(limit: int, dtype: str = "int32") -> Draw:
    return lambda rng, shape: rng.integers(0, limit, shape, dtype)


@functools.cache
def _arrays(*drawn: tuple[Draw, Shape]) -> Callable[..., tuple[Any, ...]]:
    return lambda rng, scale: tuple(draw(rng, shape) for draw, shape in drawn)


def _of_rows(shape: Shape) -> Iterator[Row]:
    """Yields functions along an axis."""
    reals, words = _arrays((_reals, shape)), _arrays((_below(2**30), shape))
    for axis in (-1, 0) if len(shape) > 1 else (-1,):
        where = f"{list(shape)}" + (", axis 0" if axis == 0 else "")
        for name in ("sort", "argsort", "cumsum", "cumprod", "median"):
            yield f"{name} float32 {where}", _call(name, axis=axis), reals
        yield f"sort int32 {where}", _call("sort", axis=axis), words
        nine = np.linspace(0.1, 0.9, 9, dtype=np.float32)
        yield f"quantile float32, 9 of {where}", _call("quantile", nine, axis=axis), reals
    yield f"top_k float32, 8 of {list(shape)}", _call("top_k", 8), reals
    yield f"top_k float32, half of {list(shape)}", _call("top_k", shape[-1] // 2), reals


def _of_vectors(n: int) -> Iterator[Row]:
    """Yields functions of about n items."""
    reals, word, keep = (_reals, (n,)), (_below(n), (n,)), (_keep, (n,))
    rows, ids = (_reals, (n // 8, 8)), _below(n // 8)
    yield f"sort uint8 [{n}]", _call("sort"), _arrays((_below(255, "uint8"), (n,)))
    yield f"lexsort, 2 of [{n}]", lambda names: lambda a, b: names.lexsort((a, b)), _arrays(reals, (ids, (n,)))
    yield f"unique [{n}]", _call("unique", size=n), _arrays(word)
    yield f"unique, inverse and counts [{n}]", _call("unique", False, True, True, size=n), _arrays(word)
    for name in ("union1d", "intersect1d", "setxor1d"):
        yield f"{name} [{n}]", _call(name, size=n), _arrays(word, word)
    if n <= 2**14:  # JAX compares all pairs
        yield f"setdiff1d [{n}]", _call("setdiff1d", size=n), _arrays(word, word)
    for tests in sorted({64, 256, min(n, 2**14)}):
        yield f"isin [{n}] in [{tests}]", _call("isin"), _arrays(word, (_below(n), (tests,)))
    yield f"nonzero [{n}]", _call("nonzero", size=n), _arrays(keep)
    yield f"flatnonzero [{n}]", _call("flatnonzero", size=n, fill_value=n), _arrays(reals)
    yield f"argwhere [{n // 8}, 8]", _call("argwhere", size=n), _arrays((_keep, (n // 8, 8)))
    yield f"compress [{n}]", _call("compress", size=n), _arrays(keep, reals)
    yield f"compress [{n // 8}, 8]", _call("compress", axis=0, size=n // 8), _arrays((_keep, (n // 8,)), rows)
    yield f"repeat [{n}]", _call("repeat", total_repeat_length=2 * n), _arrays(reals, (_below(4), (n,)))
    yield f"take [{n}]", _call("take"), _arrays(reals, word)
    yield f"searchsorted [{n}] in [{n}]", _call("searchsorted"), _arrays((_sorted, (n,)), reals)
    yield f"bincount [{n}]", _call("bincount", length=n // 8), _arrays((ids, (n,)))
    yield f"histogram [{n}]", _call("histogram"), _arrays(reals, (_edges, (101,)))
    yield f"segment_sum [{n}]", _call("segment_sum", n // 8), _arrays(reals, (ids, (n,)))
    yield f"segment_max [{n // 8}, 8]", _call("segment_max", n // 64), _arrays(rows, (_below(n // 64), (n // 8,)))


def _sums_of_columns(names: Any) -> Callable[..., Any]:
    return jax.vmap(lambda column, ids: names.segment_sum(column, ids, 12_123), (1, None))


def _resample(names: Any) -> Callable[..., Any]:
    places = jnp.linspace(0, 1, 2**20, dtype=jnp.float32)
    return lambda weights: names.searchsorted((sums := names.cumsum(weights)), places * sums[-1])


def _of_issues() -> Iterator[Row]:
    """Yields calls that users of JAX reported as slow, by the number of the issue."""
    yield "argsort int64 [2^24], jax#34912", _call("argsort"), _arrays((_below(1024, "int64"), (2**24,)))
    yield "sort float32 [4096, 512], jax#30296", _call("sort", axis=1), _arrays((_reals, (4096, 512)))
    for size in (1, 1024):
        items = _arrays((_reals, (100_000,)), (_below(size), (100_000,)))
        yield f"segment_sum [100000] into {size}, jax#38806", _call("segment_sum", size), items
    columns = _arrays((_reals, (2**16, 1024)), (_below(12_123), (2**16,)))
    yield "columns, segment_sum [65536, 1024] into 12123, jax#39959", _sums_of_columns, columns
    yield "cumsum, searchsorted [2^20], jax#40864", _resample, _arrays((_weights, (2**20,)))


def _rows() -> Iterator[Row]:
    for shape in SHAPES:
        yield from _of_rows(shape)
    for (n,) in (shape for shape in SHAPES if len(shape) == 1):
        yield from _of_vectors(n)
    yield from _of_issues()


def _case(name: str, bound: Callable[[Any], Callable[..., Any]], inputs: Callable[..., tuple[Any, ...]]) -> Case:
    jax_again = {"JAX, deterministic": Deterministic(bound(_Jax()))} if name.startswith("segment_sum") else {}
    return Case(
        family="names",
        name=name,
        inputs=inputs,
        ours=bound(_Ours()),
        peers={"JAX": bound(_Jax()), **jax_again},
        bytes=array_bytes,
        x64="int64" in name,
        agree=agree_within(1e-4) if name.startswith(ROUNDED) else None,
        replaces="JAX",
    )


GRID = [_case(*row) for row in _rows()]
