"""Sorts by several columns, compared with XLA's and with our sort of one uint64 key."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks.case import Case, equal
from benchmarks.inputs import FULL_SIZE, random_keys, size_at

__all__ = ["CASES", "lax_sort"]

WORDS = ("uint32", "uint32")
FLOATS = ("float32", "float32")
MIXED = ("uint32", "int32 descending", "float32")
ONE_KEY = {"keys": 3.34, "pairs": 5.17, "indices": 5.13}  # milliseconds of a sort of 2^26 uint64 keys


def lax_sort(columns: Sequence[jax.Array], descending: Sequence[bool], *values: jax.Array) -> list[jax.Array]:
    """Sorts by lax.sort, which only ascends, so descending columns are negated."""

    def negated(arrays: Sequence[jax.Array]) -> list[jax.Array]:
        pairs = zip(arrays, descending, strict=True)
        return [x if not down else -x if jnp.issubdtype(x.dtype, jnp.floating) else ~x for x, down in pairs]

    results = jax.lax.sort((*negated(columns), *values), num_keys=len(columns))
    return [*negated(results[: len(columns)]), *results[len(columns) :]]


@functools.cache
def _inputs(columns: tuple[str, ...], values: str, n: int) -> Any:
    """Makes columns, positions and, from two columns of uint32, one uint64 key.

    With "1,000 values", each column has at most 1,000 different ones. With "two values", the first column has two,
    which differ in all bits.
    """

    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        items = min(n, size_at(scale))
        arrays = [random_keys(rng, items, column.split()[0]) for column in columns]
        if values == "1,000 values":
            arrays = [(random_keys(rng, items) % 1000).astype(x.dtype) for x in arrays]
        elif values == "two values":
            arrays[0] = jnp.where(arrays[0] % 2 == 0, np.uint32(0), np.uint32(2**32 - 1))
        joined = [arrays[0].astype(jnp.uint64) << 32 | arrays[1]] if columns == WORDS else []
        return (*arrays, jnp.arange(items, dtype=jnp.uint32), *joined)

    return make


def _equal(ours: Any, theirs: Any) -> bool:
    """Compares results exactly; a uint64 key of the peer equals our two columns."""
    words = []
    for x in jax.tree.leaves(theirs):
        is_key = x.dtype == jnp.uint64
        words += [(x >> 32).astype(jnp.uint32), x.astype(jnp.uint32)] if is_key else [x]
    return equal(jax.tree.leaves(ours), words)


def _case(form: str, columns: tuple[str, ...], values: str = "random", exponent: int = 26) -> Case:
    count = len(columns)
    descending = tuple(column.endswith("descending") for column in columns)

    def in_form(sort: Callable[..., Any], argsort: Callable[..., Any]) -> Callable[..., Any]:
        return {"keys": lambda keys, _: sort(keys), "pairs": sort, "indices": lambda keys, _: argsort(keys)}[form]

    ours = in_form(
        functools.partial(mgpu.sort, descending=descending), functools.partial(mgpu.argsort, descending=descending)
    )

    def by_xla(*arrays: jax.Array) -> Any:
        positions = {"keys": [], "pairs": [arrays[count]], "indices": [jnp.arange(arrays[0].size, dtype=jnp.int32)]}
        results = lax_sort(arrays[:count], descending, *positions[form])
        return results[count:] if form == "indices" else results

    peers: dict[str, Any] = {"XLA": by_xla}
    if columns == WORDS:
        one_key = in_form(mgpu.sort, mgpu.argsort)
        peers["one uint64 key"] = lambda *arrays: one_key(arrays[count + 1], arrays[count])
    plain = (values, exponent) == ("random", 26)
    item_bytes = {"keys": 8 * count, "pairs": 8 * count + 8, "indices": 4 * count + 4}[form]
    return Case(
        family="columns",
        name=f"{form} {', '.join(columns)}, 2^{exponent}{'' if values == 'random' else ', ' + values}",
        inputs=_inputs(columns, values, min(2**exponent, FULL_SIZE)),
        ours=lambda *arrays: ours(arrays[:count], arrays[count]),
        peers=peers,
        bytes=lambda *arrays: item_bytes * arrays[0].size,
        max_ms=ONE_KEY[form] * (count - 1) if plain else None,
        agree=_equal,
        x64=columns == WORDS,
    )


FORMS = tuple(ONE_KEY)
CASES = [
    *(_case(form, columns) for columns in (WORDS, ("int32", "float32"), FLOATS, MIXED) for form in FORMS),
    *(_case("keys", WORDS, values) for values in ("1,000 values", "two values")),
    *(_case("keys", MIXED, values) for values in ("1,000 values", "two values")),
    *(_case(form, WORDS, exponent=exponent) for exponent in (18, 19, 20, 22, 24) for form in FORMS),
    *(_case("keys", FLOATS, exponent=exponent) for exponent in (10, 14, 18, 20, 22, 24)),
]
