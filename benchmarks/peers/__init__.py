"""Algorithms of CUB and Thrust under jit. benchmarks/README.md says how to build them."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.core.library import open_library

__all__ = ["NotBuilt", "cub", "library"]

PATH = pathlib.Path(__file__).parent.parent / "libjax_mgpu_peers.so"
library = open_library(PATH) if PATH.is_file() else None

if library is not None:
    for _name, _handler in library.handlers().items():
        jax.ffi.register_ffi_target(f"jax_mgpu.peers.{_name}", _handler, platform="CUDA")

Spec = jax.ShapeDtypeStruct
COUNT = Spec((), np.int32)


class NotBuilt(RuntimeError):
    """The library of peers, or the GPU that it needs, is missing."""


def cub(name: str) -> Callable[..., Any]:
    return _ALGORITHMS[name]


def _call(name: str, results: Any, *operands: Any, **attributes: int) -> Any:
    if library is None or jax.default_backend() != "gpu":
        raise NotBuilt("libjax_mgpu_peers.so is not built" if library is None else "no GPU")
    given = [jnp.asarray(x) for x in operands if x is not None]
    wide = {key: np.int64(value) for key, value in attributes.items()}
    return jax.ffi.ffi_call(f"jax_mgpu.peers.{name}", results)(*given, **wide)


def _like(x: Any, size: int | None = None) -> jax.ShapeDtypeStruct:
    return Spec(x.shape if size is None else (size,), x.dtype)


def _sort(name: str, without_values: int = 1) -> Callable[..., Any]:
    def sort(keys: Any, *others: Any) -> Any:
        """Sorts keys, or (keys, values); heads of segments, followed by n, come between keys and values."""
        is_of_keys = 1 + len(others) == without_values
        return _call(name, _like(keys) if is_of_keys else (_like(keys), _like(others[-1])), keys, *others)

    return sort


def _merge(a: Any, b: Any, a_values: Any = None, b_values: Any = None) -> Any:
    n = a.size + b.size
    results = _like(a, n) if a_values is None else (_like(a, n), _like(a_values, n))
    return _call("merge", results, a, b, a_values, b_values)


def _set_operation(name: str) -> Callable[..., Any]:
    def set_operation(a: Any, b: Any, a_values: Any = None, b_values: Any = None) -> Any:
        """Returns (keys, count) or (keys, values, count) in arrays of the largest size; the intersection takes only
        a_values.
        """
        size = {"set_intersection": min(a.size, b.size), "set_difference": a.size}.get(name, a.size + b.size)
        values = () if a_values is None else (_like(a_values, size),)
        return _call(name, (_like(a, size), *values, COUNT), a, b, a_values, b_values)

    return set_operation


def _batched_copy(x: Any, gather_starts: Any, scatter_starts: Any, lengths: Any, size: int) -> Any:
    """Copies x[gather_starts[i]:][:lengths[i]] to out[scatter_starts[i]:]; other outputs are undefined."""
    return _call("batched_copy", _like(x, size), x, gather_starts, scatter_starts, lengths)


def _same_shape(name: str) -> Callable[[Any], Any]:
    return lambda x: _call(name, _like(x), x)


def _argmax(x: Any) -> Any:
    return _call("argmax", (Spec((), x.dtype), COUNT), x)[1]


def _segmented_reduce_sum(values: Any, offsets: Any) -> Any:
    return _call("segmented_reduce_sum", _like(values, offsets.size - 1), values, offsets)


def _reduce_by_key(keys: Any, values: Any) -> Any:
    return _call("reduce_by_key", (_like(keys), _like(values), COUNT), keys, values)


def _sorted_search(needles: Any, haystack: Any, side: str = "left") -> Any:
    return _call("sorted_search", Spec(needles.shape, np.int32), needles, haystack, right=side == "right")


_ALGORITHMS: dict[str, Callable[..., Any]] = {
    "argmax": _argmax,  # int32 and float32; the index of the first maximum
    "batched_copy": _batched_copy,  # uint32, starts and lengths int32
    "exclusive_sum": _same_shape("exclusive_sum"),  # int32, float32, bfloat16
    "inclusive_max": _same_shape("inclusive_max"),  # int32, float32, bfloat16
    "load_balance_search": lambda offsets, size: _call("load_balance_search", Spec((size,), np.int32), offsets),
    "merge": _merge,  # uint32, uint64, float32; values uint32
    "merge_sort": _sort("merge_sort"),  # uint32, uint64, float32; values uint32
    "radix_sort": _sort("radix_sort"),  # uint32, uint64, float32; values uint32
    "reduce_by_key": _reduce_by_key,  # keys uint32; values int32 or float32; (keys, sums, count)
    "segmented_radix_sort": _sort("segmented_radix_sort", 2),  # uint32, offsets int32, values uint32
    "segmented_reduce_sum": _segmented_reduce_sum,  # int32 and float32, offsets int32
    "segmented_sort": _sort("segmented_sort", 2),  # uint32, offsets int32, values uint32
    "select_flagged": lambda x, flags: _call("select_flagged", (_like(x), COUNT), x, flags),  # uint32, float32; bool
    "set_difference": _set_operation("set_difference"),  # uint32, values uint32
    "set_intersection": _set_operation("set_intersection"),
    "set_symmetric_difference": _set_operation("set_symmetric_difference"),
    "set_union": _set_operation("set_union"),
    "sorted_search": _sorted_search,  # uint32 and float32
    "sum": lambda x: _call("sum", Spec((), x.dtype), x),  # int32, float32, bfloat16
}
