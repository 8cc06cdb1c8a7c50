"""Python functions as operators, compared with named operators that do the same and with XLA."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks.case import Case, agree_within, array_bytes
from benchmarks.inputs import random_key, random_keys, size_at
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.functions.comparator import plain_sort_indices

__all__ = ["CASES"]


@functools.cache
def _numbers(items: int) -> Callable[..., tuple[Any, ...]]:
    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        return (random_keys(rng, size_at(scale, items), "float32"),)

    return make


def _steps(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    """Makes the factors and terms of an affine recurrence."""
    n = size_at(scale)
    return random_keys(rng, n, "float32") * 0.5 + 0.25, random_keys(rng, n, "float32")


@functools.cache
def _rows_of_steps(*shape: int) -> Callable[..., tuple[Any, ...]]:
    """Returns `inputs` of 2^26 steps of a recurrence, with the trailing dimensions `shape`."""

    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        rows = max(size_at(scale) // math.prod(shape), 1)
        return tuple(x[: rows * math.prod(shape)].reshape(rows, *shape) for x in _steps(rng, scale))

    return make


@functools.cache
def _segments(mean: int) -> Callable[..., tuple[Any, ...]]:
    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        n = size_at(scale)
        ends = np.cumsum(rng.integers(0, 2 * mean + 1, n // mean, np.int32))
        heads = np.minimum(np.concatenate([[0], ends[:-1]]), n).astype(np.int32)
        return random_keys(rng, n, "float32"), jnp.asarray(heads)

    return make


def _rationals(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
    """Makes numerators and denominators whose products fit int32, and positions."""
    n = size_at(scale, 2**24)
    parts = [jax.random.randint(random_key(rng), (n,), 1, 30_000, jnp.int32) for _ in range(2)]
    return *parts, jnp.arange(n, dtype=jnp.int32)


def _by_quotient(a: Any, b: Any) -> Any:
    return a[0] * b[1] < b[0] * a[1]


def _xla_by_quotient(*keys: Any) -> Any:
    """Sorts by XLA's own sort, which calls the comparator."""
    indices = plain_sort_indices(lambda p, q, _, r, s, __: p * s < r * q, keys, ABSENT, ABSENT, ABSENT)
    return tuple(key[indices] for key in keys)


def _add(a: Any, b: Any) -> Any:
    return a + b


def _affine(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] * b[0] + b[1]


def _xla_affine(factors: Any, terms: Any) -> Any:
    return jax.lax.associative_scan(_affine, (factors, terms))


def _xla_terms(factors: Any, terms: Any) -> Any:
    return _xla_affine(factors, terms)[1]


def _terms(factors: Any, terms: Any) -> Any:
    return mgpu.scan((factors, terms), _affine, emit=lambda state: state[1])


def _gradient(scan: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda factors, terms: jnp.sum(jnp.square(scan(factors, terms))), (0, 1))


def _recurrence(
    name: str, shape: tuple[int, ...], ours: Callable[..., Any], xla: Callable[..., Any], moved: float, max_ms: float
) -> Case:
    """Returns a case of one recurrence per column, which moves `moved` times the bytes of its inputs."""
    return Case(
        family="functions",
        name=f"affine recurrences of rows, [{', '.join(map(str, ('n', *shape)))}]{name}",
        inputs=_rows_of_steps(*shape),
        ours=ours,
        peers={"XLA": xla},
        bytes=lambda *x: int(moved * array_bytes(*x)),
        agree=agree_within(1e-3),
        max_ms=max_ms,
    )


def _segmented(op: Any, item: Callable[[Any], Any] | None) -> Callable[..., Any]:
    identity = 0.0 if callable(op) else None
    return lambda x, heads: mgpu.segmented_reduce(x, heads, op, identity=identity, map=item)


_BATCH, _XLA_BATCH = jax.vmap(_terms), jax.vmap(_xla_terms)

CASES = [
    Case(
        family="functions",
        name="scan by a + b, float32, 2^27",
        inputs=_numbers(2**27),
        ours=lambda x: mgpu.scan(x, _add),
        peers={"by name": lambda x: mgpu.scan(x, "add")},
        bytes=lambda x: 2 * array_bytes(x),
        agree=agree_within(1e-5),
    ),
    Case(
        family="functions",
        name="scan of an affine recurrence, 2^26",
        inputs=_steps,
        ours=lambda factors, terms: mgpu.scan((factors, terms), _affine),
        peers={"XLA": _xla_affine},
        bytes=lambda *x: 2 * array_bytes(*x),
        agree=agree_within(1e-4),
        max_ms=0.45,
        target_ms=0.30,
    ),
    *(
        _recurrence("", (width,), lambda *steps: mgpu.scan(steps, _affine), _xla_affine, 2, 0.36)
        for width in (2, 8, 64, 1024)
    ),
    *(_recurrence(", terms alone", (width,), _terms, _xla_terms, 1.5, 0.28) for width in (2, 64)),
    _recurrence(", by vmap", (1024, 1024), _BATCH, _XLA_BATCH, 1.5, 0.23),
    _recurrence(", by vmap, gradient", (1024, 1024), _gradient(_BATCH), _gradient(_XLA_BATCH), 3.5, 0.75),
    Case(
        family="functions",
        name="reduce by a + b, float32, 2^27",
        inputs=_numbers(2**27),
        ours=lambda x: mgpu.reduce(x, _add),
        peers={"by name": lambda x: mgpu.reduce(x, "add")},
        bytes=array_bytes,
        agree=agree_within(1e-5),
    ),
    *(
        Case(
            family="functions",
            name=f"segmented_reduce by {name}, mean {mean}, 2^26",
            inputs=_segments(mean),
            ours=_segmented(_add, item),
            peers={"by name": _segmented("add", item)},
            bytes=lambda x, heads: array_bytes(x) + 2 * array_bytes(heads),
            agree=agree_within(1e-5),
        )
        for mean in (30, 300)
        for name, item in (("a + b", None), ("a + b of squares", lambda x: x * x))
    ),
    Case(
        family="functions",
        name="sort by a < b, float32, 2^26",
        inputs=_numbers(2**26),
        ours=lambda x: mgpu.mergesort(x, less=lambda a, b: a < b),
        peers={"by name": mgpu.mergesort, "XLA": jnp.sort},
        bytes=lambda x: 2 * array_bytes(x),
        max_ms=4.0,
        target_ms=3.0,
    ),
    Case(
        family="functions",
        name="sort of rationals with a number, 12 bytes, 2^24",
        inputs=_rationals,
        ours=lambda *keys: mgpu.mergesort(keys, less=_by_quotient),
        peers={"XLA": _xla_by_quotient},
        bytes=lambda *keys: 2 * array_bytes(*keys),
    ),
]
