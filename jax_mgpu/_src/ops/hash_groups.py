"""Groups of many rows by few keys: a GPU combines rows in tables of hashed keys, without sorting them.

Groups come out in any order, and are then sorted. The states of a group are integers of 32 bits: sums or extrema.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import Aval
from jax_mgpu._src.arguments.counts import live_mask
from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.core.compat import is_local, surely
from jax_mgpu._src.core.library import cpu_library
from jax_mgpu._src.core.operation import ABSENT, Operation
from jax_mgpu._src.functions.named_operators import Leaf
from jax_mgpu._src.functions.operators import Kind, select
from jax_mgpu._src.keys.bits import is_words, of_words, part_of, where, words_of
from jax_mgpu._src.keys.columns import Columns, columns_of
from jax_mgpu._src.ops.reduce import _run_heads, _segmented_reduce
from jax_mgpu._src.ops.sort import Sort

# The entries of a block's table: kGroupEntries of ffi/ops/hash_groups/plan.h. Some should stay empty.
BLOCK_ENTRIES: int = cpu_library.tile_sizes()["group_entries"][0]
# A table in device memory has at least LEAST_ENTRIES entries. It needs at least LEAST_ROWS rows, at least ENTRY_ROWS
# rows per entry, and at most MOST_GROUPS groups.
LEAST_ROWS, ENTRY_ROWS = 1 << 23, 32
LEAST_ENTRIES, MOST_GROUPS = 1 << 16, (1 << 22) // 3


class State(enum.IntEnum):
    """How a column's states are combined (GroupState of ffi/ops/hash_groups/operands.h)."""

    NONE = 0
    ADD = 1
    MIN = 2
    MAX = 3


class Words(NamedTuple):
    """A column as integers of 32 bits.

    Attributes:
      state: how they are combined.
      of: returns the words of a column, or `ABSENT` if each row counts 1.
      results: returns the results from the states of groups.
    """

    state: State
    of: Callable[[jax.Array], Any]
    results: Callable[[jax.Array], jax.Array]


class Table(NamedTuple):
    """The table in device memory: the number of its entries, and whether rows are partitioned first."""

    entries: int
    bucketed: bool


def table_for(keys: jax.Array | Columns, leaves: Sequence[jax.Array], size: int) -> Table | None:
    """Returns the table for up to `size` groups, or None."""
    (n,) = keys.shape
    columns = columns_of(keys)
    bits = sum(8 * x.dtype.itemsize for x in columns)
    if bits > 64 or any(jnp.issubdtype(x.dtype, jnp.floating) for x in columns) or not is_local(*columns, *leaves):
        return None
    entries = max(LEAST_ENTRIES, 1 << max(size + size // 2 - 1, 0).bit_length())
    if size == 0 or size > MOST_GROUPS or not surely(lambda: max(LEAST_ROWS, ENTRY_ROWS * entries) <= n < 2**31):
        return None
    return Table(entries, 4 * size > 3 * BLOCK_ENTRIES)


def words_for(leaf: Leaf, operator: str) -> Words | None:
    """Returns how a column becomes words; None if it cannot."""
    if operator == "count":
        return Words(State.ADD, lambda _: ABSENT, _as_signed)
    dtype = leaf.converted.x.dtype
    if leaf.made is not None or leaf.mean or leaf.x.ndim != 1 or leaf.is_empty or dtype.itemsize > 4:
        return None
    state = STATES.get(leaf.kind)
    if state is None or (leaf.kind in (Kind.AND, Kind.OR)) != (dtype == jnp.bool_):
        return None
    return _words(state, dtype)


# For bools, "and" is the minimum and "or" the maximum.
STATES = {Kind.ADD: State.ADD, Kind.MIN: State.MIN, Kind.MAX: State.MAX, Kind.AND: State.MIN, Kind.OR: State.MAX}


def _words(state: State, dtype: np.dtype) -> Words | None:
    if not jnp.issubdtype(dtype, jnp.floating):
        word = jnp.int32 if jnp.issubdtype(dtype, jnp.signedinteger) else jnp.uint32
        return Words(state, lambda x: x.astype(word), lambda states: _decoded(states, state, word).astype(dtype))
    if state == State.ADD:
        return None  # float sums depend on the order
    return Words(
        state,
        lambda x: _float_codes(x.astype(jnp.float32), state),
        lambda states: _of_float_codes(_decoded(states, state, jnp.int32)).astype(dtype),
    )


def _as_signed(states: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(states, jnp.int32)


def _decoded(states: jax.Array, state: State, dtype: Any) -> jax.Array:
    """Returns words from their codes (`HashGroupsOperands::flip`)."""
    sign = 1 << 31 if state != State.ADD and dtype == jnp.int32 else 0
    flip = sign ^ (2**32 - 1) if state == State.MIN else sign
    words = states ^ jnp.uint32(flip)
    return _as_signed(words) if dtype == jnp.int32 else words


def _float_codes(x: jax.Array, state: State) -> jax.Array:
    """Returns integers in the order of floats, -0 before +0; the extreme integer for a NaN."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    magnitude = bits & jnp.int32(2**31 - 1)
    extreme = jnp.int32(2**31 - 1 if state == State.MAX else -(2**31))
    return where(magnitude > jnp.int32(0xFF << 23), extreme, where(bits < 0, bits ^ jnp.int32(2**31 - 1), bits))


def _of_float_codes(codes: jax.Array) -> jax.Array:
    bits = where(codes < 0, codes ^ jnp.int32(2**31 - 1), codes)
    is_nan = (bits & jnp.int32(2**31 - 1)) > jnp.int32(0xFF << 23)
    return jax.lax.bitcast_convert_type(where(is_nan, jnp.int32(0x7FC << 20), bits), jnp.float32)


class HashedGroups(NamedTuple):
    """Groups in the order of their keys.

    Attributes:
      keys: `[size]`, in the caller's form; 0 past the groups.
      states: `[size]` per column.
      number: the number of groups.
      fits: whether all groups found places in the table. If not, other attributes are undefined.
    """

    keys: Any
    states: list[jax.Array]
    number: jax.Array
    fits: jax.Array


@by_construction()
def hashed_groups(
    name: str,
    keys: jax.Array | Columns,
    columns: Sequence[tuple[State, Any]],
    count: jax.Array,
    size: int,
    table: Table,
) -> HashedGroups:
    """Returns the first `size` groups of the rows. `columns` has the `State` and the words of each column."""
    code, lower = _key_operands(keys)
    narrow = code.dtype
    if narrow.itemsize < 4:
        code = code.astype(jnp.int32 if jnp.issubdtype(narrow, jnp.signedinteger) else jnp.uint32)
    given = [*columns] or [(State.ADD, ABSENT)]
    groups, states, counters, fits = code, [], ABSENT, jnp.bool_(True)
    for i in range(0, len(given), 2):
        (x_state, x), (y_state, y) = (*given[i : i + 2], (State.NONE, ABSENT))[:2]
        found, x_states, y_states, counters = _hash_groups(
            keys=code, x=x, y=y, count=count, lower=lower, x_state=x_state, y_state=y_state, **table._asdict()
        )
        groups, order = Sort(name, found).indices()
        order = order[:size]
        states += [take_or_fill(s, order, unique=True) for s in (x_states, y_states)]
        fits &= counters[1] == 0
    used = live_mask(size, counters[:1])
    groups = part_of(groups, 0, size)
    groups = groups.astype(narrow) if lower is ABSENT else groups
    firsts = keys.unpacked([groups]) if isinstance(keys, Columns) else [groups]
    firsts = [select(used, x, jnp.zeros_like(x)) for x in firsts if x is not None]
    in_form = keys.structure(firsts) if isinstance(keys, Columns) else firsts[0]
    return HashedGroups(in_form, states[: len(columns)], counters[0], fits)


def _key_operands(keys: jax.Array | Columns) -> Sequence[jax.Array]:
    """Returns keys, and their lower words or `ABSENT`."""
    if not isinstance(keys, Columns):
        return keys, ABSENT
    if [x.dtype.itemsize for x in keys.arrays] == [4, 4]:
        return keys.arrays
    return keys.codes()[0], ABSENT


def _shapes(keys: Aval, lower: Aval, *, entries: int) -> Sequence[Any]:
    states = jax.ShapeDtypeStruct((entries + 1,), jnp.uint32)
    groups = jax.ShapeDtypeStruct((entries + 1,), jnp.complex64 if lower.shape[-1] else keys.dtype)
    return [groups, states, states, jax.ShapeDtypeStruct((3,), jnp.int32)]


@by_construction()
def _fallback(
    keys: jax.Array,
    x: jax.Array,
    y: jax.Array,
    count: jax.Array,
    lower: jax.Array,
    *,
    entries: int,
    x_state: int,
    y_state: int,
) -> Sequence[jax.Array]:
    """Sorts the rows; the first slot is for the largest possible key."""
    n = keys.shape[0]
    if lower.size:
        keys = Columns("group_by", "keys", (keys, lower), False).codes()[0]
    words = [jnp.ones((n,), jnp.int32) if not column.size else column for column in (x, y)]
    ordered, moved = Sort("group_by", keys, count=count).rows(words, ordered=False)
    heads, _, covered, runs = _run_heads(keys=ordered, count=count, size=entries + 1)
    largest = _largest(keys.dtype)
    last = take_or_fill(ordered, (covered - 1).astype(heads.dtype).reshape(1))
    ends_with_largest = _are_equal(last, largest)[0]
    ends_with_largest &= runs > 0
    slots = jnp.arange(entries + 1, dtype=runs.dtype)
    run = where(slots == 0, where(ends_with_largest, runs - 1, -1), slots - 1)
    run = where((slots > 0) & (run >= runs - ends_with_largest.astype(runs.dtype)), -1, run)
    groups = take_or_fill(ordered, take_or_fill(heads, run, -1), largest)
    states = []
    for column, state in zip(moved, (x_state, y_state), strict=True):
        kind = {State.MIN: Kind.MIN, State.MAX: Kind.MAX}.get(State(state), Kind.ADD)
        found = _segmented_reduce(x=column, heads=heads, count=covered.reshape(1), op=kind, wide=False)[0]
        found = jax.lax.bitcast_convert_type(found, jnp.uint32)
        codes = jax.lax.bitcast_convert_type(_decoded(found, State(state), column.dtype), jnp.uint32)
        states.append(take_or_fill(codes, run))
    counters = [runs, (runs - ends_with_largest > entries), ends_with_largest]
    return [groups, *states, jnp.stack([x.astype(jnp.int32) for x in counters])]


def _are_equal(a: jax.Array, b: jax.Array) -> jax.Array:
    if not is_words(a):
        return a == b
    return jnp.all(jnp.stack([x == y for x, y in zip(words_of(a), words_of(b), strict=True)]), axis=0)


def _largest(dtype: np.dtype) -> jax.Array:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        words = jnp.full((1,), 2**32 - 1, jnp.uint32)
        return of_words(words, words)
    return jnp.full((1,), np.iinfo(dtype).max, dtype)


_hash_groups = Operation(
    "hash_groups",
    operands={"keys": 1, "x": 1, "y": 1, "count": 1, "lower": 1},
    results=("groups", "x_states", "y_states", "counters"),
    attributes={"entries": int, "x_state": State, "y_state": State, "bucketed": bool},
    shapes=_shapes,
    fallback=_fallback,
    only="cuda",
)
_hash_groups.def_linear()
