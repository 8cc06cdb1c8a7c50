"""Merges two sorted arrays into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp

from jax_mgpu._src import mesh
from jax_mgpu._src.arguments.annotations import (
    ArrayLike,
    Aval,
    AxisName,
    Directions,
    Keys,
    LessFunction,
    Operands,
    Pytree,
    Tangents,
)
from jax_mgpu._src.arguments.check import expect_no_axis, index_dtype, static_flag
from jax_mgpu._src.arguments.counts import live_items, wide_enough
from jax_mgpu._src.arguments.values import (
    Payload,
    carried_leaf,
    flatten_pair,
    sort_operands,
    take_from_pair,
    take_or_fill,
)
from jax_mgpu._src.core.operation import ABSENT, Operation, jit_eager
from jax_mgpu._src.functions.comparator_ops import ranked_pair
from jax_mgpu._src.keys.columns import KeyPair, sorted_pair
from jax_mgpu._src.mesh import over_axis

__all__ = ["merge"]


@overload
def merge(
    a: ArrayLike,
    b: ArrayLike,
    a_values: None = None,
    b_values: None = None,
    *,
    descending: bool = False,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
) -> jax.Array: ...
@overload
def merge(
    a: ArrayLike,
    b: ArrayLike,
    a_values: Pytree,
    b_values: Pytree,
    *,
    descending: bool = False,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
) -> tuple[jax.Array, Any]: ...
@overload
def merge(
    a: Keys,
    b: Keys,
    a_values: Pytree = None,
    b_values: Pytree = None,
    *,
    descending: Directions = False,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
    axis_name: AxisName | None = None,
    even: bool = True,
    aligned: bool = False,
) -> Any: ...
@overload
def merge(
    a: Any,
    b: Any,
    a_values: Pytree = None,
    b_values: Pytree = None,
    *,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
    less: LessFunction,
) -> Any: ...
@jit_eager("descending", "aligned", "less")
def merge(
    a: Keys,
    b: Keys,
    a_values: Pytree = None,
    b_values: Pytree = None,
    *,
    descending: Directions = False,
    a_count: ArrayLike | None = None,
    b_count: ArrayLike | None = None,
    less: LessFunction | None = None,
    axis_name: AxisName | None = None,
    even: bool = True,
    aligned: bool = False,
) -> Any:
    """Merges two sorted arrays, stably, with their values; among equal keys, A comes before B.

    Args:
      a: `[n_a]`, sorted integers of 8 to 64 bits or floats of 16 to 64 bits. Floats are in the order of `jax.lax.sort`:
        NaN is largest, the two zeros are equal. Or columns: a tuple of 1 to 8 such arrays, compared one after the
        other.
      b: `[n_b]`, sorted, of the same dtype, or as many columns of the same dtypes.
      a_values: a pytree of arrays with leading axis `n_a`, of any dtype and trailing shape.
      b_values: a pytree of the same structure, dtypes and trailing shapes with leading axis `n_b`.
      descending: a and b are sorted in the reverse order, and so is the result. A tuple of bools gives a direction for
        each column.
      a_count: the number of live items of a, an integer scalar (default `n_a`). Items past it are ignored.
      b_count: the number of live items of b (default `n_b`).
      less: a comparator that replaces the order of numbers; see `mergesort`. Cannot be combined with `descending` or
        `axis_name`.
      axis_name: merge the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`; columns
        may have up to 64 bits in all.
      even: over a mesh axis, the devices' numbers of items differ by at most one; if False, devices are filled from the
        first one on.
      aligned: over a mesh axis, whether a and b are results of `align`. If they are, no item moves to another device.

    Returns:
      The merged keys, `[n_a + n_b]`, bit for bit a permutation of the live items; with values, `(keys, values)`. Slots
      past `a_count + b_count` hold 0. Over a mesh axis, if a count is given, the number of items of this device
      follows.

    Raises:
      TypeError: an argument's dtype is not one of the above.
      ValueError: an argument's shape or structure is not one of the above. Without `jax_enable_x64`, also if the result
        has 2^31 items or more and there are values other than one vector of 4- or 8-byte items, or columns that are
        floats or wider than 64 bits.

    Time is O(n_a + n_b); scratch memory on a GPU is some bytes per tile. Equal parts of the output are found by merge
    path (Odeh, Green, Mwassi, Shmueli, Birk, 2012), and each is merged sequentially. Columns of up to 64 bits in all
    are one key. For wider ones, searches of each side in the other and a scan replace the first 64 bits by a position,
    again and again until 64 bits are enough. With `less`, all items are sorted together to get ranks, which are then
    merged.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.merge(jnp.array([1, 3, 5]), jnp.array([2, 3, 9]))
      Array([1, 2, 3, 3, 5, 9], dtype=int32)
    """
    name = "merge"
    aligned = static_flag(name, "aligned", aligned)
    if less is not None:
        expect_no_axis(name, "less", axis_name)
        ranked = ranked_pair(name, a, b, less, a_count, b_count, descending=descending)
        if (a_values is None) == (b_values is None):
            counts = {"a_count": a_count, "b_count": b_count}
            keys, moved = ranked.move(merge, a_values, b_values, **counts)[1]
            return ranked.restore(keys) if a_values is None else (ranked.restore(keys), moved)
        flatten_pair(name, a_values, b_values, 0, 0)
    pair = sorted_pair(name, a, b, a_count, b_count, descending=descending)
    n_a, n_b = pair.a.shape[0], pair.b.shape[0]
    a_leaves, b_leaves, unflatten = flatten_pair(name, a_values, b_values, n_a, n_b)
    if axis_name is not None:
        (*keys, a_live, b_live), (a_rest, b_rest), number = pair.code_operands, pair.rest, len(a_leaves)
        operands = (*keys, [*a_leaves, *a_rest], [*b_leaves, *b_rest], a_live, b_live)
        flags = {"descending": bool(pair.descending), "even": static_flag(name, "even", even), "aligned": aligned}
        keys, leaves, live = over_axis(mesh.pairs.merge, name, axis_name, *operands, **flags)
        results = [pair.of_code_and_rest(keys, leaves[number:], live)]
        results += [] if a_values is None else [unflatten(leaves[:number])]
        results += [live] if a_live.size or b_live.size else []
        return results[0] if len(results) == 1 else tuple(results)
    keys, leaves = merged(name, pair, a_leaves, b_leaves)
    return keys if a_values is None else (keys, unflatten(leaves))


def merged(
    name: str, pair: KeyPair, a_leaves: Sequence[jax.Array], b_leaves: Sequence[jax.Array]
) -> tuple[Any, list[jax.Array]]:
    """Returns both sides' keys in order, with their leaves."""
    given: dict[str, Any] = {
        "a": pair.a,
        "b": pair.b,
        "a_count": pair.a_count,
        "b_count": pair.b_count,
        "descending": pair.descending,
    }
    n_a, n_b = pair.a.shape[0], pair.b.shape[0]
    given["size"] = n_a + n_b
    if pair.is_code and not a_leaves:
        return pair.restored(_merge(**given, payload=Payload.NONE)[0]), []
    if pair.is_code and carried_leaf(a_leaves) is not None:
        keys, values = _merge(**given, a_values=a_leaves[0], b_values=b_leaves[0], payload=Payload.GIVEN)
        return pair.restored(keys), [values]
    index_dtype(name, "a and b", n_a + n_b)
    keys, indices = _merge(**given, payload=Payload.INDICES)
    leaves = zip(a_leaves, b_leaves, strict=True)
    return pair.restored(keys, indices), [take_from_pair(*both, indices, n_a) for both in leaves]


def merged_runs(
    name: str, keys: jax.Array, leaves: Sequence[jax.Array], ends: jax.Array, *, descending: bool, size: int
) -> tuple[jax.Array, list[jax.Array]]:
    """Merges consecutive sorted runs of keys, with their leaves, stably.

    The first run begins at 0, and `ends` says where each ends. All runs lie within the first `size` slots. Results are
    0 past the last run. Each round merges pairs of neighbouring runs, whatever their lengths, until one run is left.
    """
    carried = carried_leaf(leaves)
    payload = Payload.NONE if not leaves else Payload.INDICES if carried is None else Payload.GIVEN
    if payload == Payload.INDICES:
        index_dtype(name, "keys", size)
    given: dict[str, Any] = {"descending": descending, "size": size}
    moved = [] if carried is None else [carried]
    rest = ends
    while True:
        values = {"a_values": moved[0]} if payload == Payload.GIVEN else {}
        keys, *moved = _merge(a=keys, **values, run_ends=rest, payload=payload, **given)
        if rest.shape[0] <= 2:
            break
        payload = Payload.GIVEN if moved else Payload.NONE
        rest = rest[1::2] if rest.shape[0] % 2 == 0 else jnp.append(rest[1::2], rest[-1:])
    if not leaves or carried is not None:
        return keys, moved
    live = jnp.arange(size, dtype=ends.dtype) < ends[-1]
    indices = jnp.where(live, moved[0], -1)
    return keys, [take_or_fill(x, indices, unique=True) for x in leaves]


def _shapes(a: Aval, a_values: Aval, *, payload: int, size: int) -> Sequence[Any]:
    keys = jax.ShapeDtypeStruct((size,), a.dtype)
    if payload == Payload.NONE:
        return [keys]
    dtype = a_values.dtype if payload == Payload.GIVEN else index_dtype("derivative of merge", "a and b", size)
    return [keys, jax.ShapeDtypeStruct((size,), dtype)]


def _fallback(
    a: jax.Array,
    b: jax.Array,
    a_values: jax.Array,
    b_values: jax.Array,
    a_count: jax.Array,
    b_count: jax.Array,
    run_ends: jax.Array,
    *,
    descending: int,
    payload: int,
    size: int,
) -> Sequence[jax.Array]:
    """Merges by a stable lax.sort: first by whether an item is dead, then by pair of runs, then by key."""
    n_a, n_b = a.shape[0], b.shape[0]
    runs = run_ends.shape[0]
    keys = a[:size] if runs else jnp.concatenate([a, b])
    positions = jnp.arange(size, dtype=index_dtype("merge", "a and b", size))
    if runs:
        ends = jax.lax.cummax(jnp.clip(wide_enough(run_ends, size), 0, size)).astype(positions.dtype)
        dead = positions >= ends[-1]
        pairs = [jnp.sum(positions[:, None] >= ends[1::2], axis=1, dtype=positions.dtype)]
    else:
        a_live, b_live = live_items(n_a, a_count, positions.dtype), live_items(n_b, b_count, positions.dtype)
        dead = jnp.where(positions < n_a, positions >= a_live, positions >= n_a + b_live)
        pairs = []
    order = (dead, *pairs, *sort_operands(keys, descending), positions)
    dead, *_, indices = jax.lax.sort(order, num_keys=len(order) - 1, is_stable=True)
    indices = jnp.where(dead, -1, indices)
    results = [take_from_pair(a, b, indices, n_a)]
    if payload == Payload.GIVEN:
        results.append(take_from_pair(a_values, b_values, indices, n_a))
    elif payload == Payload.INDICES:
        results.append(indices)
    return results


def _jvp(primals: Operands, tangents: Tangents, *, descending: int, payload: int, size: int) -> tuple[Any, Any]:
    n_a = primals.a.shape[0]
    without_values = primals._replace(a_values=ABSENT, b_values=ABSENT)
    keys, indices = _merge.run(without_values, descending=descending, payload=Payload.INDICES, size=size)
    moved_keys = take_from_pair(tangents.a, tangents.b, indices, n_a, tangents=True)
    if payload == Payload.NONE:
        return [keys], [moved_keys]
    if payload == Payload.INDICES:
        return [keys, indices], [moved_keys, None]
    values = take_from_pair(primals.a_values, primals.b_values, indices, n_a)
    moved_values = take_from_pair(tangents.a_values, tangents.b_values, indices, n_a, tangents=True)
    return [keys, values], [moved_keys, moved_values]


_merge = Operation(
    "merge",
    operands={"a": 1, "b": 1, "a_values": 1, "b_values": 1, "a_count": 1, "b_count": 1, "run_ends": 1},
    results=("keys", "values"),
    attributes={"descending": bool, "payload": Payload, "size": int},
    shapes=_shapes,
    fallback=_fallback,
)
_merge.def_jvp(_jvp)
