"""`SORT`, the primitive of all sorts, which sorts keys within segments."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.annotations import Aval, Operands, Tangents
from jax_mgpu._src.arguments.check import index_dtype
from jax_mgpu._src.arguments.counts import segment_numbers
from jax_mgpu._src.arguments.values import Payload, sort_operands, take_keys, take_moved, take_rows
from jax_mgpu._src.core.operation import ABSENT, Operation


class Method(enum.IntEnum):
    """How kernels sort keys: their attribute `method`. Heads and flags need MERGING."""

    MERGING = 0  # merges rows without segments, and sorts segments by the fastest method
    FASTEST = 1
    NEARLY_SORTED = 2  # merges runs only where they overlap
    PARTITIONING = 3  # a stable partition by the highest `bits` bits, or more


def _shapes(keys: Aval, values: Aval, payload: int) -> Sequence[Any]:
    if payload == Payload.NONE:
        return [keys]
    dtype = values.dtype if payload == Payload.GIVEN else index_dtype("derivative of a sort", "keys", keys.shape[0])
    return [keys, jax.ShapeDtypeStruct(keys.shape, dtype)]


def _fallback(
    keys: jax.Array,
    heads: jax.Array,
    flags: jax.Array,
    count: jax.Array,
    values: jax.Array,
    *,
    descending: int,
    payload: int,
) -> Sequence[jax.Array]:
    """Sorts stably by segment, then by key."""
    (n,) = keys.shape
    positions = jnp.arange(n, dtype=index_dtype("segmented_sort", "keys", n))
    segments = segment_numbers(positions, heads, flags, count)
    operands = (*(() if segments is None else (segments,)), *sort_operands(keys, descending), positions)
    order = jax.lax.sort(operands, num_keys=len(operands) - 1, is_stable=True)[-1]
    results = [take_keys(keys, order)]
    if payload == Payload.GIVEN:
        results.append(take_rows(values, order))
    elif payload == Payload.INDICES:
        results.append(order)
    return results


def _jvp(primals: Operands, tangents: Tangents, *, payload: int, **attributes: int) -> tuple[Any, Any]:
    without_values = primals._replace(values=ABSENT)
    sorted_keys, indices = SORT.run(without_values, **attributes, payload=Payload.INDICES)
    moved_keys = take_moved(tangents.keys, indices)
    if payload == Payload.NONE:
        return [sorted_keys], [moved_keys]
    if payload == Payload.INDICES:
        return [sorted_keys, indices], [moved_keys, None]
    return [sorted_keys, take_rows(primals.values, indices)], [moved_keys, take_moved(tangents.values, indices)]


SORT = Operation(
    "segmented_sort",
    operands={"keys": 1, "heads": 1, "flags": 1, "count": 1, "values": 1},
    results=("keys", "values"),
    attributes={"descending": bool, "method": Method, "bits": int, "payload": Payload},
    shapes=_shapes,
    fallback=_fallback,
    streamed=("keys", "values"),
)
SORT.def_jvp(_jvp)
