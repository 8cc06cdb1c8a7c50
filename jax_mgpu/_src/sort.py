"""The sort behind segmented sort, mergesort and locality sort: one primitive, one call with its checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.check import count_operand, index_dtype, static_flag
from jax_mgpu._src.live import live_mask, segment_starts
from jax_mgpu._src.primitive import ABSENT, Operation
from jax_mgpu._src.values import (
    Payload,
    carried_leaf,
    flatten_values,
    sort_operands,
    take_moved,
    take_rows,
)

__all__ = ["sort", "sort_indices"]


def sort(
    operation: str,
    keys: jax.Array,
    heads: Any,
    flags: Any,
    values: Any,
    *,
    descending: bool,
    count: Any,
    nearly_sorted: bool = False,
) -> Any:
    """Keys, checked, sorted within segments, with the pytree of values that belong to them where there is one.

    `nearly_sorted` has the kernels look for what is in its place already; it goes with neither heads nor flags.
    """
    given = _given(operation, keys, heads, flags, descending, count, nearly_sorted)
    if values is None:
        return _SORT(**given, payload=Payload.NONE)[0]
    leaves, unflatten = flatten_values(operation, "values", values, keys.shape[0], "keys")
    carried = carried_leaf(leaves)
    if carried is not None:
        sorted_keys, moved = _SORT(**given, values=carried, payload=Payload.GIVEN)
        return sorted_keys, unflatten([moved])
    index_dtype(operation, "keys", keys.shape[0])
    sorted_keys, indices = _SORT(**given, payload=Payload.INDICES)
    return sorted_keys, unflatten([take_rows(leaf, indices) for leaf in leaves])


def sort_indices(
    operation: str,
    keys: jax.Array,
    heads: Any,
    flags: Any,
    *,
    descending: bool,
    count: Any,
    nearly_sorted: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Keys, checked, sorted within segments, and where each came from."""
    given = _given(operation, keys, heads, flags, descending, count, nearly_sorted)
    index_dtype(operation, "keys", keys.shape[0])
    sorted_keys, indices = _SORT(**given, payload=Payload.INDICES)
    return sorted_keys, indices


def _given(
    operation: str, keys: jax.Array, heads: Any, flags: Any, descending: bool, count: Any, nearly_sorted: bool
) -> dict[str, Any]:
    """The operands and attributes of every sort."""
    return {
        "keys": keys,
        "heads": heads,
        "flags": flags,
        "count": count_operand(operation, "count", count, keys.shape[0]),
        "descending": static_flag(operation, "descending", descending),
        "nearly_sorted": nearly_sorted,
    }


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
    operands = (*_segment_numbers(positions, heads, flags, count), *sort_operands(keys, descending), positions)
    order = jax.lax.sort(operands, num_keys=len(operands) - 1, is_stable=True)[-1]
    results = [take_rows(keys, order)]
    if payload == Payload.GIVEN:
        results.append(take_rows(values, order))
    elif payload == Payload.INDICES:
        results.append(order)
    return results


def _segment_numbers(
    positions: jax.Array, heads: jax.Array, flags: jax.Array, count: jax.Array
) -> tuple[jax.Array, ...]:
    """Each position's segment, or nothing where all are in one."""
    (n,) = positions.shape
    if not heads.size and not flags.size and not count.size:
        return ()
    if flags.size:
        if flags.dtype != jnp.bool_:
            flags = (flags[positions // 32] >> (positions % 32).astype(jnp.uint32)) & 1
        starts = flags.astype(bool)
    else:
        starts = segment_starts(n, heads)
    segments = jnp.cumsum(starts, dtype=positions.dtype)
    if count.size:
        # a dead item is a segment of its own, after all live ones
        segments = jnp.where(live_mask(n, count), segments, (segments[-1:] + 1 + positions) if n else segments)
    return (segments,)


def _jvp(primals: Any, tangents: Any, *, payload: int, **attributes: int) -> tuple[Any, Any]:
    without_values = primals._replace(values=ABSENT)
    sorted_keys, indices = _SORT.run(without_values, **attributes, payload=Payload.INDICES)
    moved_keys = take_moved(tangents.keys, indices)
    if payload == Payload.NONE:
        return [sorted_keys], [moved_keys]
    if payload == Payload.INDICES:
        return [sorted_keys, indices], [moved_keys, None]
    return [sorted_keys, take_rows(primals.values, indices)], [moved_keys, take_moved(tangents.values, indices)]


_SORT = Operation(
    "segmented_sort",
    operands={"keys": 1, "heads": 1, "flags": 1, "count": 1, "values": 1},
    results=("keys", "values"),
    attributes={"descending": bool, "nearly_sorted": bool, "payload": Payload},
    shapes=_shapes,
    fallback=_fallback,
    streamed=("keys", "values"),
)
_SORT.def_jvp(_jvp)
