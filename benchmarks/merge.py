"""Merge of two sorted arrays, of equal and of very unequal size."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks import peers
from benchmarks.case import Case, HostPeer, array_bytes
from benchmarks.inputs import FULL_SIZE, random_keys, size_at

__all__ = ["CASES"]

CUB_KEYS = ("uint32", "uint64", "float32")
MILLISECONDS = {"keys uint32": (0.30, 0.27), "pairs uint32": (0.618, 0.55)}  # milliseconds: maximum, target


# Makes keys, and their positions as values; cases share these arrays.
@functools.cache
def _inputs(dtype: str, n_a: int, n_b: int) -> Any:
    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        a, b = (jnp.sort(random_keys(rng, min(n, size_at(scale)), dtype)) for n in (n_a, n_b))
        sources = jnp.arange(a.size + b.size, dtype=jnp.uint32)
        return a, b, sources[: a.size], sources[a.size :]

    return make


def _xla_pairs(a: Any, b: Any, a_values: Any, b_values: Any) -> Any:
    operands = jnp.concatenate([a, b]), jnp.concatenate([a_values, b_values])
    return tuple(jax.lax.sort(operands, num_keys=1))


def _numpy_pairs(a: Any, b: Any, a_values: Any, b_values: Any) -> Any:
    keys = np.concatenate([a, b])
    order = np.argsort(keys, kind="stable")
    return keys[order], np.concatenate([a_values, b_values])[order]


OURS: dict[str, Callable[..., Any]] = {"keys": lambda a, b, v, w: mgpu.merge(a, b), "pairs": mgpu.merge}
XLA = {"keys": lambda a, b, v, w: jnp.sort(jnp.concatenate([a, b])), "pairs": _xla_pairs}
NUMPY = {"keys": lambda a, b, v, w: np.sort(np.concatenate([a, b]), kind="stable"), "pairs": _numpy_pairs}
CUB = {
    "keys": lambda a, b, v, w: peers.cub("merge")(a, b),
    "pairs": peers.cub("merge"),
}


def _case(form: str, dtype: str, n_a: int, n_b: int) -> Case:
    case_peers: dict[str, Any] = {"XLA": XLA[form]}
    if dtype in CUB_KEYS:
        case_peers["CUB"] = CUB[form]
    case_peers["NumPy"] = HostPeer(NUMPY[form])
    full = n_a == n_b == FULL_SIZE
    max_ms, target_ms = MILLISECONDS.get(f"{form} {dtype}", (None, None)) if full else (None, None)
    size = f"2 x 2^{n_a.bit_length() - 1}" if n_a == n_b else f"2^{n_a.bit_length() - 1} and 2^{n_b.bit_length() - 1}"
    return Case(
        family="merge",
        name=f"{form} {dtype}, {size}",
        inputs=_inputs(dtype, n_a, n_b),
        ours=OURS[form],
        peers=case_peers,
        bytes=lambda a, b, v, w: 2 * array_bytes(*((a, b) if form == "keys" else (a, b, v, w))),
        max_ms=max_ms,
        target_ms=target_ms,
        x64=dtype == "uint64",
    )


CASES = [
    *[_case(form, dtype, FULL_SIZE, FULL_SIZE) for dtype in ("uint32", "uint64", "float32") for form in OURS],
    *[_case("keys", "uint32", 2**exponent, FULL_SIZE) for exponent in (0, 10, 20)],
    *[_case("keys", "uint32", 2**exponent, 2**exponent) for exponent in (10, 14, 18, 20, 22)],
]
