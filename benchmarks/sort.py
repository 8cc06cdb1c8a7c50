"""Sort and argsort over forms, types, sizes, rows of a batch, and orders of the input.

`CASES` vary at most one axis besides form and type, and have rows of other lengths. `GRID` has all combinations, except
rows of one item or none.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks import mergesort
from benchmarks.case import Case, HostPeer, TorchPeer
from benchmarks.inputs import random_keys, size_at

__all__ = ["CASES", "GRID"]

FORMS = ("keys", "pairs", "indices")
DTYPES = (
    *("uint32", "float32", "uint64", "uint8"),  # only these have all sizes in CASES
    *("uint16", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float64"),
)
EXPONENTS = (26, 10, 14, 18, 20, 22, 24, 28)
ROWS = (0, 6, 10, 16, 20)  # log2 of the number of rows
ORDERS = ("random", "sorted", "few values", "nearly sorted")
# Forms and types of short rows, which are combined with all LENGTHS, in two sizes.
SHORT_ROWS = (
    ("keys", "uint8"),
    ("keys", "float32"),
    ("indices", "uint32"),
    ("indices", "bfloat16"),
    ("indices", "float64"),
)
LENGTHS = (4, 64, 128, 200, 256, 512)
# Forms and types, and lengths, of rows that one block sorts by digits or merges.
BLOCK_ROWS = (("keys", "uint8"), ("keys", "uint16"), ("indices", "int8"), ("indices", "bfloat16"), ("pairs", "float16"))
BLOCK_LENGTHS = (600, 1024, 2048, 4096, 8192, 16384)

# Milliseconds for 2^26 random keys: maximum, target.
FIGURES = {
    "keys uint32": (1.40, 1.0),
    "pairs uint32": (1.90, 1.5),
    "indices uint32": (1.90, 1.5),
    "keys float32": (1.60, 1.1),
}


@functools.cache
def _inputs(dtype: str, exponent: int, rows: int, order: str, length: int | None) -> Any:
    """Makes keys and positions, in 2^rows rows or in rows of a given length."""

    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        items = max(1, size_at(scale, 2**exponent) >> rows) << rows
        if length is not None:
            items = max(1, items // length) * length
        random, places = random_keys(rng, items, jnp.dtype(dtype)), jnp.arange(items, dtype=jnp.uint32)
        keys = {
            "random": lambda: random,
            "sorted": lambda: jnp.sort(random),
            "few values": lambda: (random_keys(rng, items) % 16).astype(dtype),
            "nearly sorted": lambda: (places + random_keys(rng, items) % 4096).astype(dtype),
        }[order]()
        if rows == 0 and length is None:
            return keys, places
        shape = (2**rows, -1) if length is None else (-1, length)
        return keys.reshape(shape), places.reshape(shape)

    return make


def _indices(sort: Callable[..., Any]) -> Callable[..., Any]:
    return lambda keys, values: sort(keys, values)[1]


def _torch_keys(torch: Any, keys: Any, values: Any) -> Any:
    return torch.sort(keys, stable=True)[0]


def _torch_pairs(torch: Any, keys: Any, values: Any) -> Any:
    in_order, indices = torch.sort(keys, stable=True)
    return in_order, torch.take_along_dim(values, indices, -1)


def _torch_indices(torch: Any, keys: Any, values: Any) -> Any:
    return torch.argsort(keys, stable=True)


OURS: dict[str, Callable[..., Any]] = {
    "keys": lambda keys, values: mgpu.sort(keys),
    "pairs": mgpu.sort,
    "indices": lambda keys, values: mgpu.argsort(keys),
}
XLA = {**mergesort.XLA, "indices": _indices(mergesort.XLA["indices"])}
NUMPY = {**mergesort.NUMPY, "indices": _indices(mergesort.NUMPY["indices"])}
TORCH = {"keys": _torch_keys, "pairs": _torch_pairs, "indices": _torch_indices}
ITEM_BYTES = {**mergesort.ITEM_BYTES, "indices": lambda width: width + 4}


def _case(
    form: str, dtype: str, exponent: int = 26, rows: int = 0, order: str = "random", length: int | None = None
) -> Case:
    of_one_row = rows == 0 and length is None
    over_rows = (lambda function: function) if of_one_row else jax.vmap
    case_peers: dict[str, Any] = {"XLA": over_rows(XLA[form])}
    if dtype in mergesort.CUB_KEYS and of_one_row:
        for name, sort in (("CUB radix", "radix_sort"), ("CUB merge", "merge_sort")):
            cub = functools.partial(mergesort.CUB[form], sort)
            case_peers[name] = _indices(cub) if form == "indices" else cub
    case_peers["torch"] = TorchPeer(TORCH[form])
    if of_one_row:
        case_peers["NumPy"] = HostPeer(NUMPY[form])
    plain = of_one_row and (exponent, order) == (26, "random")
    max_ms, target_ms = FIGURES.get(f"{form} {dtype}", (None, None)) if plain else (None, None)
    in_rows = f", 2^{rows} rows" if rows else f" in rows of {length}" if length else ""
    return Case(
        family="sort",
        name=f"{form} {dtype}, 2^{exponent}{in_rows}{'' if order == 'random' else ', ' + order}",
        inputs=_inputs(dtype, exponent, rows, order, length),
        ours=over_rows(OURS[form]),
        peers=case_peers,
        bytes=lambda keys, values: ITEM_BYTES[form](keys.dtype.itemsize) * keys.size,
        max_ms=max_ms,
        target_ms=target_ms,
        x64=jnp.dtype(dtype).itemsize == 8,
    )


def _axes() -> Iterator[tuple[Any, ...]]:
    """Yields type, exponent, rows and order of `CASES`, up to the last that is not the default."""
    yield from ((dtype,) for dtype in DTYPES)
    yield from itertools.product(DTYPES[:4], EXPONENTS[1:])
    yield from itertools.product(DTYPES[:1], EXPONENTS[:1], ROWS[1:])
    yield from itertools.product(DTYPES[:1], EXPONENTS[:1], ROWS[:1], ORDERS[1:])


CASES = [_case(form, *values) for values in _axes() for form in FORMS]
CASES += [_case(*kind, exponent, length=length) for exponent in (18, 22) for length in LENGTHS for kind in SHORT_ROWS]
CASES += [
    _case(*kind, exponent, length=length)
    for exponent in (16, 18, 22)
    for length in BLOCK_LENGTHS
    for kind in BLOCK_ROWS
]
GRID = [
    _case(form, *values)
    for values in itertools.product(DTYPES, EXPONENTS, ROWS, ORDERS)
    for form in FORMS
    if values[2] < values[1]
]
