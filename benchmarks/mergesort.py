from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks import peers
from benchmarks.case import Case, HostPeer
from benchmarks.inputs import FULL_SIZE, random_keys, size_at

__all__ = ["CASES"]

CUB_KEYS = ("uint32", "uint64", "float32")
MILLISECONDS = {"keys uint32": (2.90, 1.6), "pairs uint32": (4.5, 2.5)}  # milliseconds: maximum, target


# Makes keys, and their positions as values; cases share these arrays.
@functools.cache
def _inputs(dtype: str, n: int) -> Any:
    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        items = min(n, size_at(scale))
        return random_keys(rng, items, dtype), jnp.arange(items, dtype=jnp.uint32)

    return make


def _xla_pairs(keys: Any, values: Any) -> Any:
    return tuple(jax.lax.sort((keys, values), num_keys=1))


def _xla_indices(keys: Any, values: Any) -> Any:
    return tuple(jax.lax.sort((keys, jax.lax.iota(jnp.int32, keys.size)), num_keys=1))


def _numpy_indices(keys: Any, values: Any) -> Any:
    order = np.argsort(keys, kind="stable")
    return keys[order], order.astype(np.int32)


def _numpy_pairs(keys: Any, values: Any) -> Any:
    order = np.argsort(keys, kind="stable")
    return keys[order], values[order]


def _cub_indices(name: str, keys: Any, values: Any) -> Any:
    keys, indices = peers.cub(name)(keys, values)
    return keys, indices.astype(jnp.int32)


OURS = {
    "keys": lambda keys, values: mgpu.mergesort(keys),
    "pairs": lambda keys, values: mgpu.mergesort(keys, values=values),
    "indices": lambda keys, values: mgpu.mergesort_indices(keys),
}
XLA = {"keys": lambda keys, values: jnp.sort(keys), "pairs": _xla_pairs, "indices": _xla_indices}
NUMPY = {"keys": lambda keys, values: np.sort(keys), "pairs": _numpy_pairs, "indices": _numpy_indices}
CUB = {
    "keys": lambda name, keys, values: peers.cub(name)(keys),
    "pairs": lambda name, keys, values: peers.cub(name)(keys, values),
    "indices": _cub_indices,
}
ITEM_BYTES = {  # The bytes that are read and written for an item, by the width of its key.
    "keys": lambda width: 2 * width,
    "pairs": lambda width: 2 * (width + 4),
    "indices": lambda width: 2 * width + 4,
}


def _case(form: str, dtype: str, n: int) -> Case:
    case_peers: dict[str, Any] = {"XLA": XLA[form]}
    if dtype in CUB_KEYS:
        case_peers["CUB radix"] = functools.partial(CUB[form], "radix_sort")
        case_peers["CUB merge"] = functools.partial(CUB[form], "merge_sort")
    case_peers["NumPy"] = HostPeer(NUMPY[form])
    max_ms, target_ms = MILLISECONDS.get(f"{form} {dtype}", (None, None)) if n == FULL_SIZE else (None, None)
    return Case(
        family="mergesort",
        name=f"{form} {dtype}, 2^{n.bit_length() - 1}",
        inputs=_inputs(dtype, n),
        ours=OURS[form],
        peers=case_peers,
        bytes=lambda keys, values: ITEM_BYTES[form](keys.dtype.itemsize) * keys.size,
        max_ms=max_ms,
        target_ms=target_ms,
        x64=dtype in ("uint64", "int64"),
    )


def _less_case(max_ms: float) -> Case:
    return Case(
        family="mergesort",
        name=f"keys by less float32, 2^{FULL_SIZE.bit_length() - 1}",
        inputs=_inputs("float32", FULL_SIZE),
        ours=lambda keys, values: mgpu.mergesort(keys, less=lambda a, b: a < b),
        peers={"XLA": XLA["keys"]},
        bytes=lambda keys, values: 2 * keys.nbytes,
        max_ms=max_ms,
        target_ms=None,
    )


LARGE = [(form, dtype, FULL_SIZE) for dtype in ("uint32", "uint64", "int64", "float32") for form in OURS]
SMALL = [
    *[(form, "uint32", 2**exponent) for form in ("keys", "indices") for exponent in (10, 12, 14, 16, 18, 20, 22)],
    *[("keys", "float32", 2**exponent) for exponent in (10, 14, 18, 20)],
    *[("indices", "int64", 2**exponent) for exponent in (10, 14, 18, 20)],
]
CASES = [*(_case(*row) for row in (*LARGE, *SMALL)), _less_case(4.0)]
