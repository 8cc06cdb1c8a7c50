"""Which items are live, and which start a segment, in plain JAX.

A count has shape `[1]`, or is absent and empty: then all items are live. Heads are the positions where segments start.
Heads and counts may be int32 even for 2^31 items.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import DTypeLike
from jax_mgpu._src.arguments.check import index_dtype
from jax_mgpu._src.core.compat import smaller, surely
from jax_mgpu._src.keys.bits import clip, shifted, where


def live_items(n: int, count: jax.Array, dtype: DTypeLike | None = None) -> jax.Array:
    """Returns the number of live items of n, by default in the dtype of indices into them."""
    dtype = index_dtype("count", "n", n) if dtype is None else dtype
    if not count.size:
        return jnp.asarray(n, dtype)
    return clip(count.reshape(()), 0, smaller(n, jnp.iinfo(count.dtype).max)).astype(dtype)


def live_mask(n: int, count: jax.Array) -> jax.Array:
    """Returns which of n positions hold live items."""
    live = live_items(n, count)
    return jnp.arange(n, dtype=live.dtype) < live


def heads_from_zero(heads: jax.Array) -> jax.Array:
    """Returns the heads, with 0 in front."""
    first = jnp.zeros((1,), heads.dtype)
    # Under shard_map, the CPU compiler of jaxlib 0.11.2 crashes if an array is joined to an empty one.
    return jnp.concatenate([first, heads]) if heads.shape[0] else first


def partition_points(low: jax.Array, high: jax.Array, n: int, before: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Returns, for each of a few searches, the first place from `low` to `high` for which `before(places)` is false.

    `high - low` is at most n.
    """
    for _ in range(n.bit_length()):
        middle = low + ((high - low) >> 1)
        is_before = (low < high) & before(middle)
        low, high = where(is_before, middle + 1, low), where(is_before, high, middle)
    return low


@jax.custom_batching.custom_vmap
def of_all(holds: jax.Array) -> jax.Array:
    """Whether a condition holds in all of a batch."""
    return holds


@of_all.def_vmap
def _of_all_batches(size: int, in_batched: Any, holds: jax.Array) -> tuple[jax.Array, bool]:
    del size, in_batched
    return of_all(jnp.all(holds, axis=0)), False


def wide_enough(positions: jax.Array, n: int) -> jax.Array:
    """Returns positions in a type that holds all places of an array of n."""
    return positions.astype(np.promote_types(positions.dtype, index_dtype("positions", "n", n)))


def heads_inside(heads: jax.Array, n: int) -> jax.Array:
    """Returns heads limited to 0 to n, where n is padding: JAX's scatters cut larger positions to 32 bits.

    A barrier keeps XLA from the evaluation of a scatter of constant heads at compile time, which takes long.
    """
    return clip(jax.lax.optimization_barrier(wide_enough(heads, n)), 0, n)


def is_first(n: int) -> jax.Array:
    """Marks which of n positions is the first."""
    return jnp.arange(n, dtype=jnp.uint64 if surely(lambda: n > 2**32) else jnp.uint32) == 0


def segment_starts(n: int, heads: jax.Array) -> jax.Array:
    """Returns which of n positions start a segment."""
    if not heads.size:
        return is_first(n)
    return is_first(n).at[heads_inside(heads, n)].set(True, mode="drop", wrap_negative_indices=False)


def marked_starts(n: int, heads: jax.Array, flags: jax.Array) -> jax.Array:
    """Marks where segments start, given flags (bools, or bits of uint32) or heads."""
    if not flags.size:
        return segment_starts(n, heads)
    if flags.dtype == jnp.bool_:
        return flags
    bits = flags[:, None] >> jnp.arange(32, dtype=jnp.uint32) & 1
    return bits.reshape(-1)[:n].astype(bool)


def segment_numbers(positions: jax.Array, heads: jax.Array, flags: jax.Array, count: jax.Array) -> jax.Array | None:
    """Returns the segment of each position; None without heads, flags and count."""
    (n,) = positions.shape
    if not heads.size and not flags.size and not count.size:
        return None
    segments = jnp.cumsum(marked_starts(n, heads, flags), dtype=positions.dtype)
    if count.size and n:  # each item past the count is a segment after all others, so a sort leaves it in place
        segments = where(live_mask(n, count), segments, segments[-1:] + 1 + positions)
    return segments


def segment_bounds(heads: jax.Array, n: int, count: jax.Array, index: Any = None) -> tuple[jax.Array, jax.Array]:
    """Returns where segments begin and end among the live items of n.

    `index` is the dtype of the number of live items.
    """
    live = live_items(n, count, index)
    dtype = common_dtype(heads, live)
    live = live.astype(dtype)
    begin = clip(heads.astype(dtype), 0, live)
    m = heads.shape[0]
    is_last = jnp.arange(m, dtype=index_dtype("heads", "heads", m)) == m - 1
    return begin, where(is_last, live, shifted(begin, -1))


def segment_lengths(heads: jax.Array, n: int, count: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Returns the number of live items of each segment; n may exceed 2^31 even without `jax_enable_x64`."""
    positions = jax.dtypes.canonicalize_dtype(np.uint64)
    limit = smaller(n, int(jnp.iinfo(positions).max))
    begin, end = segment_bounds(jnp.maximum(heads, 0).astype(positions), limit, count, positions)
    lengths = where(end > begin, end - begin, 0).astype(dtype)
    return lengths if limit == n or count.size else lengths.at[-1:].add(np.asarray(n - limit, dtype))


def common_dtype(*integers: Any) -> np.dtype:
    """Returns NumPy's common dtype, also under strict promotion."""
    return np.result_type(*(x.dtype for x in integers))


def count_of(operand: jax.Array) -> jax.Array | None:
    """Returns the live count in an operand as a scalar; None if it is absent."""
    return operand[0] if operand.size else None
