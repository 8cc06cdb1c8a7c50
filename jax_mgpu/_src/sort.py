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
    NO_PAYLOAD,
    PAYLOAD_GIVEN,
    PAYLOAD_INDICES,
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
    operands = (keys, heads, flags, count_operand(operation, "count", count, keys.shape[0]))
    attributes = {"descending": static_flag(operation, "descending", descending), "nearly_sorted": nearly_sorted}
    if values is None:
        return _SORT(*operands, ABSENT, **attributes, payload=NO_PAYLOAD)[0]
    leaves, unflatten = flatten_values(operation, "values", values, keys.shape[0], "keys")
    carried = carried_leaf(leaves)
    if carried is not None:
        sorted_keys, moved = _SORT(*operands, carried, **attributes, payload=PAYLOAD_GIVEN)
        return sorted_keys, unflatten([moved])
    index_dtype(operation, "keys", keys.shape[0])
    sorted_keys, indices = _SORT(*operands, ABSENT, **attributes, payload=PAYLOAD_INDICES)
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
    operands = (keys, heads, flags, count_operand(operation, "count", count, keys.shape[0]))
    index_dtype(operation, "keys", keys.shape[0])
    attributes = {"descending": static_flag(operation, "descending", descending), "nearly_sorted": nearly_sorted}
    sorted_keys, indices = _SORT(*operands, ABSENT, **attributes, payload=PAYLOAD_INDICES)
    return sorted_keys, indices


def _shapes(
    keys: Any, heads: Any, flags: Any, count: Any, values: Any, *, descending: int, nearly_sorted: int, payload: int
) -> Sequence[Any]:
    del heads, flags, count, descending, nearly_sorted
    if payload == NO_PAYLOAD:
        return [keys]
    dtype = values.dtype if payload == PAYLOAD_GIVEN else index_dtype("derivative of a sort", "keys", keys.shape[0])
    return [keys, jax.ShapeDtypeStruct(keys.shape, dtype)]


def _fallback(
    keys: jax.Array,
    heads: jax.Array,
    flags: jax.Array,
    count: jax.Array,
    values: jax.Array,
    *,
    descending: int,
    nearly_sorted: int,
    payload: int,
) -> Sequence[jax.Array]:
    """lax.sort by segment (where there is more than one), by key, and stable."""
    del nearly_sorted
    (n,) = keys.shape
    positions = jnp.arange(n, dtype=index_dtype("segmented_sort", "keys", n))
    operands = (*_segment_numbers(positions, heads, flags, count), *sort_operands(keys, descending), positions)
    order = jax.lax.sort(operands, num_keys=len(operands) - 1, is_stable=True)[-1]
    results = [take_rows(keys, order)]
    if payload == PAYLOAD_GIVEN:
        results.append(take_rows(values, order))
    elif payload == PAYLOAD_INDICES:
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


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, descending: int, nearly_sorted: int, payload: int
) -> tuple[Any, Any]:
    keys, heads, flags, count, values = primals
    sorted_keys, indices = _SORT(
        keys, heads, flags, count, ABSENT, descending=descending, nearly_sorted=nearly_sorted, payload=PAYLOAD_INDICES
    )
    moved_keys = take_moved(tangents[0], indices)
    if payload == NO_PAYLOAD:
        return [sorted_keys], [moved_keys]
    if payload == PAYLOAD_INDICES:
        return [sorted_keys, indices], [moved_keys, None]
    return [sorted_keys, take_rows(values, indices)], [moved_keys, take_moved(tangents[4], indices)]


_SORT = Operation("segmented_sort", ranks=(1, 1, 1, 1, 1), shapes=_shapes, fallback=_fallback, streamed=(0, 4))
_SORT.def_jvp(_jvp)
