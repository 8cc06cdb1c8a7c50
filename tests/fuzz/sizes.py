"""Traces calls over arrays of up to 2^33 + 5 items.

The only allowed error asks for jax_enable_x64. On a CPU, the rules that size CUDA's scratch memory run too.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests.fuzz.broken import Other
from tests.jaxprs import size_scratch_memory

SIZES = (100_000, 2**20, 2**24 + 1, 2**31 - 2, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1, 2**32, 2**33 + 5)


def plus(a: Any, b: Any) -> Any:
    return a + b


# Each call takes floats x [n], with a large n, positions h [9] and floats k [9].
CALLS: dict[str, Callable[..., Any]] = {
    "merge": lambda x, h, k: mgpu.merge(x, k, x, k),
    "sort": lambda x, h, k: mgpu.sort(x, x),
    "argsort": lambda x, h, k: mgpu.argsort(x),
    "mergesort": lambda x, h, k: mgpu.mergesort(x, x),
    "locality_sort_indices": lambda x, h, k: mgpu.locality_sort_indices(x),
    "segmented_sort": lambda x, h, k: mgpu.segmented_sort(x, h, {"x": x}),
    "sorted_search": lambda x, h, k: mgpu.sorted_search(k, x),
    "sorted_match": lambda x, h, k: mgpu.sorted_match(x, k),
    "sorted_equal_count": lambda x, h, k: mgpu.sorted_equal_count(k, x),
    "set_union": lambda x, h, k: mgpu.set_union(x, k, x, k),
    "set_difference": lambda x, h, k: mgpu.set_difference(x, k, size=9),
    "join": lambda x, h, k: mgpu.join(x, k, "outer", size=9),
    "reduce": lambda x, h, k: mgpu.reduce(x, count=h[0]),
    "reduce, mul": lambda x, h, k: mgpu.reduce(x, "mul", count=h[0]),
    "reduce, max": lambda x, h, k: mgpu.reduce(x, "max"),
    "reduce, function": lambda x, h, k: mgpu.reduce(x, plus, count=h[0], identity=0),
    "scan": lambda x, h, k: mgpu.scan(x, exclusive=True, count=h[0]),
    "scan, mul": lambda x, h, k: mgpu.scan(x, "mul", reverse=True),
    "scan, min": lambda x, h, k: mgpu.scan(x, "min"),
    "scan, function": lambda x, h, k: mgpu.scan(x, plus, count=h[0]),
    "segmented_reduce": lambda x, h, k: mgpu.segmented_reduce(x, h, count=h[0]),
    "segmented_reduce, max": lambda x, h, k: mgpu.segmented_reduce(x, h, "max"),
    "segmented_reduce, function": lambda x, h, k: mgpu.segmented_reduce(x, h, plus, identity=0),
    "segmented_scan": lambda x, h, k: mgpu.segmented_scan(x, h),
    "segmented_scan, mul": lambda x, h, k: mgpu.segmented_scan(x, h, "mul", count=h[0]),
    "segmented_scan, function": lambda x, h, k: mgpu.segmented_scan(x, h, plus),
    "segmented_reduce, rows": lambda x, h, k: mgpu.segmented_reduce(jnp.stack([x, x], 1), h, "mean", count=h[0]),
    "reduce_by_id": lambda x, h, k: mgpu.reduce_by_id(x, jnp.zeros(x.shape, h.dtype), 9, count=h[0]),
    "reduce_by_key": lambda x, h, k: mgpu.reduce_by_key(x, x, size=9),
    "reduce_by_key, function": lambda x, h, k: mgpu.reduce_by_key(x, x, plus, size=9),
    "group_by": lambda x, h, k: mgpu.group_by(x, x, size=9),
    "unique": lambda x, h, k: mgpu.unique(x, size=9),
    "top_k": lambda x, h, k: mgpu.top_k(x, 9, count=h[0]),
    "top_k, none": lambda x, h, k: mgpu.top_k(x, 0),
    "top_k, many": lambda x, h, k: mgpu.top_k(x, 2048, largest=False),
    "segmented_top_k": lambda x, h, k: mgpu.segmented_top_k(x, h, 9),
    "quantile": lambda x, h, k: mgpu.quantile(x, k),
    "segmented_quantile": lambda x, h, k: mgpu.segmented_quantile(x, h, k, count=h[0]),
    "segmented_softmax": lambda x, h, k: mgpu.segmented_softmax(x, h),
    "segmented_shift": lambda x, h, k: mgpu.segmented_shift(x, h, 2),
    "rank": lambda x, h, k: mgpu.rank(x, h),
    "run_starts": lambda x, h, k: mgpu.run_starts(x),
    "histogram": lambda x, h, k: mgpu.histogram(x, k),
    "bincount": lambda x, h, k: mgpu.bincount(jnp.zeros(x.shape, h.dtype), 9),
    "select": lambda x, h, k: mgpu.select(x, x > 0, count=h[0]),
    "partition": lambda x, h, k: mgpu.partition(x, x > 0),
    "segmented_search": lambda x, h, k: mgpu.segmented_search(k, h, x, h),
    "lookup": lambda x, h, k: mgpu.lookup(x, k, k),
    "asof_join": lambda x, h, k: mgpu.asof_join(x, k),
    "load_balance_search": lambda x, h, k: mgpu.load_balance_search(h, x.shape[0]),
    "segment_ids": lambda x, h, k: mgpu.segment_ids(h, x.shape[0]),
    "to_dense": lambda x, h, k: mgpu.to_dense(x, h, 9),
    "take_segments": lambda x, h, k: mgpu.take_segments(x, h, jnp.arange(9), size=9),
    "from_dense": lambda x, h, k: mgpu.from_dense(x[:, None], x.astype(h.dtype), size=9),
    "segmented_log_softmax": lambda x, h, k: mgpu.segmented_log_softmax(x, h),
    "segmented_sort_indices": lambda x, h, k: mgpu.segmented_sort_indices(x, h),
    "mergesort_indices": lambda x, h, k: mgpu.mergesort_indices(x),
    "locality_sort": lambda x, h, k: mgpu.locality_sort(x, x),
    "select_indices": lambda x, h, k: mgpu.select_indices(x > 0, size=9),
    "set_intersection": lambda x, h, k: mgpu.set_intersection(x, k, x),
    "set_symmetric_difference": lambda x, h, k: mgpu.set_symmetric_difference(x, k, size=9),
    "interval_expand": lambda x, h, k: mgpu.interval_expand(k, jnp.arange(9, dtype=h.dtype), x.shape[0]),
    "interval_gather": lambda x, h, k: mgpu.interval_gather(x, h, h, 9),
    "interval_gather, long": lambda x, h, k: mgpu.interval_gather(k, h, h, x.shape[0]),
    "interval_scatter": lambda x, h, k: mgpu.interval_scatter(x, h, h, x),
    "interval_move": lambda x, h, k: mgpu.interval_move(x, h, h, h, k),
    "bulk_remove": lambda x, h, k: mgpu.bulk_remove(x, h),
    "bulk_insert": lambda x, h, k: mgpu.bulk_insert(x, h, jnp.zeros(h.shape, x.dtype)),
}  # fmt: skip


def sizes(rng: np.random.Generator) -> Other:
    """Draws a function; each run traces it, or its derivative, over a large size."""
    name = str(rng.choice(list(CALLS)))
    call = CALLS[name]

    def run(rng: np.random.Generator) -> None:
        n, x64 = int(rng.choice(SIZES)), bool(rng.random() < 0.75)
        index = str(rng.choice(["int32", "uint32", "int64", "uint64"] if x64 else ["int32", "uint32"]))
        kind = str(rng.choice(["call", "forward", "reverse"]))
        with jax.enable_x64(x64):
            real = str(rng.choice(["float32", "float16", "float64"] if x64 else ["float32", "bfloat16"]))
            x, h, k = (jax.ShapeDtypeStruct((s,), t) for s, t in ((n, real), (9, index), (9, real)))

            def floats(x: Any, k: Any, h: Any) -> list[Any]:
                return [r for r in jax.tree.leaves(call(x, h, k)) if jnp.issubdtype(r.dtype, jnp.floating)]

            def function(x: Any, h: Any, k: Any) -> Any:
                if kind == "call":
                    return call(x, h, k)
                if kind == "forward":
                    return jax.jvp(lambda x, k: floats(x, k, h), (x, k), (x, k))
                results, back = jax.vjp(lambda x, k: floats(x, k, h), x, k)
                return back(results)

            try:
                with warnings.catch_warnings(action="error"):
                    jax.eval_shape(function, x, h, k)
                    size_scratch_memory(function, x, h, k)
            except ValueError as error:
                # The error that asks for jax_enable_x64 may only come without it, and names this operation.
                own = name.split(",", maxsplit=1)[0]
                operation = rf"({own}|derivative of (a sort|{own}))"
                if x64 or not re.match(rf"{operation}: \w+( (and|or) \w+)?: expected .*jax_enable_x64", str(error)):
                    raise AssertionError(f"n={n} {real} {index} {kind} x64={x64}: {str(error)[:300]}") from error
            except Exception as error:
                text = f"n={n} {real} {index} {kind} x64={x64}: {type(error).__name__}: {str(error)[:300]}"
                raise AssertionError(text) from error

    return Other(name, "traced", 3, run)
