"""The primitives behind every sort: of keys within segments, and of two columns."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.check import index_dtype
from jax_mgpu._src.arguments.counts import segment_numbers
from jax_mgpu._src.arguments.values import Payload, sort_operands, take_keys, take_moved, take_rows
from jax_mgpu._src.core.operation import ABSENT, Operation
from jax_mgpu._src.keys.columns import Columns

__all__ = ["SORT", "SORT_COLUMNS", "Method"]


class Method(enum.IntEnum):
    """How keys are sorted: the attribute `method` of the kernels. All but MERGING go with neither heads nor flags."""

    MERGING = 0  # of whole rows; segments are sorted in the fastest way
    FASTEST = 1
    NEARLY_SORTED = 2  # by merging, where much is in its place already
    PARTITIONING = 3  # by the highest `bits` bits at least, equal keys in their order


def _shapes(keys: Any, values: Any, payload: int) -> Sequence[Any]:
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
    """lax.sort by segment (where there is more than one), by key, and stable."""
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


def _column_shapes(high: Any, low: Any, values: Any, payload: int) -> Sequence[Any]:
    return [high, *_shapes(low, values, payload)]


def _column_fallback(
    high: jax.Array,
    low: jax.Array,
    count: jax.Array,
    values: jax.Array,
    *,
    high_descending: int,
    low_descending: int,
    payload: int,
) -> Sequence[jax.Array]:
    """The sort of one code."""
    keys = Columns("sort_columns", "keys", (high, low), (bool(high_descending), bool(low_descending)))
    codes, *moved = SORT(
        keys=keys.codes()[0], count=count, values=values,
        descending=False, method=Method.FASTEST, bits=keys.bits, payload=payload,
    )  # fmt: skip
    return [*keys.restored([codes]), *moved]


def _column_jvp(primals: Any, tangents: Any, *, payload: int, **attributes: int) -> tuple[Any, Any]:
    if payload != Payload.GIVEN:
        results = SORT_COLUMNS.run(primals, **attributes, payload=payload)
        return results, [None] * len(results)
    high, low, indices = SORT_COLUMNS.run(primals._replace(values=ABSENT), **attributes, payload=Payload.INDICES)
    moved = take_rows(primals.values, indices), take_moved(tangents.values, indices)
    return [high, low, moved[0]], [None, None, moved[1]]


def _jvp(primals: Any, tangents: Any, *, payload: int, **attributes: int) -> tuple[Any, Any]:
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

SORT_COLUMNS = Operation(
    "sort_columns",
    operands={"high": 1, "low": 1, "count": 1, "values": 1},
    results=("high", "low", "values"),
    attributes={"high_descending": bool, "low_descending": bool, "payload": Payload},
    shapes=_column_shapes,
    fallback=_column_fallback,
    streamed=("high", "low", "values"),
    only="cuda",
)
SORT_COLUMNS.def_jvp(_column_jvp)
