"""Selects how to sort: by one code, by two keys, or in parts; and how values move along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.check import index_dtype
from jax_mgpu._src.arguments.counts import marked_starts
from jax_mgpu._src.arguments.values import Payload, carried_leaf, packed_rows, take_keys, take_rows, travel_with_keys
from jax_mgpu._src.core.compat import platform_dependent, surely, whole_axes
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.keys.columns import Columns, SortKey, key_starts, travelling
from jax_mgpu._src.keys.digits import WIDEST, WORD
from jax_mgpu._src.ops.sort_primitives import SORT, Method

LONG_PERMUTATION = 1 << 23


def is_long_permutation(n: int) -> bool:
    """Whether a permutation of this many items takes longer on a GPU than a sort that carries them."""
    return surely(lambda: n >= LONG_PERMUTATION)


def _sorted(
    keys: jax.Array | Columns, given: dict[str, Any], bits: int | None, payload: Payload, values: Any = ABSENT
) -> list[Any]:
    """Sorts an array, or columns that one code determines, with a payload, by one call of kernels."""
    if not isinstance(keys, Columns):
        return SORT(**given, keys=keys, bits=bits, values=values, payload=payload)
    codes, *moved = SORT(**given, keys=keys.codes()[0], bits=keys.bits, values=values, payload=payload)
    return [keys.restored([codes]), *moved]


def sort_indices(
    operation: str, keys: jax.Array | Columns, given: dict[str, Any], bits: int | None
) -> tuple[Any, jax.Array]:
    """Returns sorted keys, and the position that each came from."""
    index_dtype(operation, "keys", keys.shape[0])
    if not isinstance(keys, Columns) or keys.is_code:
        sorted_keys, indices = _sorted(keys, given, bits, Payload.INDICES)
        return sorted_keys, indices
    (*higher, lowest), (*higher_bits, lowest_bits) = keys.codes(), keys.code_bits
    codes, indices = SORT(**given, keys=lowest, bits=lowest_bits, payload=Payload.INDICES)
    for code, code_bits in zip(reversed(higher), reversed(higher_bits), strict=True):
        moved = take_keys(code, indices)
        codes, indices = SORT(**given, keys=moved, bits=code_bits, values=indices, payload=Payload.GIVEN)
    return keys.restored([codes], lambda column: take_rows(column, indices)), indices


# From these numbers of items on, the columns named below may be sorted by two keys or part after part, not by one code
# or by indices. docs/notes/sort.md has figures.
LONG_WORDS = 1 << 23  # two columns of 32-bit integers, without values
LONG_FLOATS = 1 << 20  # two columns of 32 bits, of which one or both hold floats, without values
LONG_COLUMNS = 1 << 22  # columns that no code holds; outside of CUDA also codes of more than 32 bits, without values


def sort_keys(operation: str, keys: jax.Array | Columns, given: dict[str, Any], bits: int) -> Any:
    """Returns sorted keys without values."""
    if not isinstance(keys, Columns):
        return _sorted(keys, given, bits, Payload.NONE)[0]

    def by_two_keys() -> Any:
        return keys.of_two_keys(_sort_two_keys(*keys.two_keys(), given))

    def by_parts() -> Any:
        return _sort_by_parts(operation, keys, keys.cuts(travel_with_keys), [], given)[0]

    def as_any() -> Any:
        if keys.is_code:
            return _sorted(keys, given, bits, Payload.NONE)[0]
        if keys.are_integers and keys.bits <= 2 * WIDEST and not _goes_by_parts(keys):
            return by_two_keys()
        return sort_rows(operation, keys, given, bits, [])[0]

    on_gpu, elsewhere = as_any, as_any
    if given["method"] == Method.FASTEST:
        (n,) = keys.shape
        min_items = LONG_WORDS if keys.are_integers else LONG_FLOATS
        if keys.are_two_words and surely(lambda: n >= min_items):
            on_gpu = by_two_keys
        if keys.is_code and keys.bits > WORD and surely(lambda: n >= LONG_COLUMNS):
            elsewhere = by_parts
    if on_gpu is elsewhere:
        return as_any()
    return platform_dependent(cuda=on_gpu, default=elsewhere)


def _sort_two_keys(high: SortKey, low: SortKey, given: dict[str, Any]) -> list[jax.Array]:
    """Sorts by the lower keys, which carry the higher ones, then by the higher keys."""

    def sort(key: SortKey, keys: jax.Array | Columns, other: jax.Array) -> tuple[jax.Array, jax.Array]:
        in_order, (moved,) = _sort_carrying(keys, [other], {**given, "descending": key.descending}, key.bits)
        return in_order, moved

    low_keys, high_keys = sort(low, low.keys, high.keys)
    return list(sort(high, high_keys, low_keys))


def sort_rows(
    operation: str,
    keys: jax.Array | Columns,
    given: dict[str, Any],
    bits: int,
    leaves: Sequence[jax.Array],
    *,
    ordered: bool = False,
) -> tuple[Any, list[jax.Array]]:
    """Returns sorted keys and leaves; with `ordered`, the position that each key came from is the first leaf."""
    (n,) = keys.shape
    positions = [jnp.arange(n, dtype=index_dtype(operation, "keys", n))] if ordered else []
    carried = [*positions, *leaves]

    def by_indices() -> tuple[Any, list[jax.Array]]:
        sorted_keys, indices = sort_indices(operation, keys, given, bits)
        return sorted_keys, [*([indices] if ordered else []), *(take_rows(x, indices) for x in leaves)]

    if isinstance(keys, Columns) and _goes_by_parts(keys):
        cuts = keys.cuts(lambda rest: travel_with_keys([*rest, *carried]))
        if cuts:
            return _sort_by_parts(operation, keys, cuts, carried, given)
    if isinstance(keys, Columns) and not keys.is_code:
        return by_indices()
    if not ordered and carried_leaf(leaves) is not None:
        return _sort_carrying(keys, leaves, given, bits)
    # JAX keeps these functions, so they must hold no arrays.
    form, arrays = (keys.replaced([]), keys.arrays) if isinstance(keys, Columns) else (None, [keys])

    def keys_of(arrays: list[jax.Array]) -> Any:
        return arrays[0] if form is None else form.replaced(arrays)

    def packed() -> tuple[Any, list[jax.Array]]:
        return _with_derivatives_by_indices(
            lambda arrays, leaves, given: _sort_carrying(keys_of(arrays), leaves, given, bits),
            lambda arrays, given: sort_indices(operation, keys_of(arrays), given, bits),
            *(arrays, carried, given),
        )

    goes_by_indices = not is_long_permutation(n) or given["heads"].size or not travel_with_keys(carried)
    if goes_by_indices or (ordered and not leaves):  # kernels number the positions themselves
        return by_indices()
    return platform_dependent(cuda=packed, default=by_indices)


def _sort_carrying(
    keys: jax.Array | Columns, leaves: Sequence[jax.Array], given: dict[str, Any], bits: int
) -> tuple[Any, list[jax.Array]]:
    """Returns keys, and leaves that move with them as one payload. Packed leaves have no derivatives."""
    if not leaves:
        return _sorted(keys, given, bits, Payload.NONE)[0], []
    payload = carried_leaf(leaves)
    if payload is not None:
        sorted_keys, moved = _sorted(keys, given, bits, Payload.GIVEN, payload)
        return sorted_keys, [moved]
    packed, unpacked = packed_rows(leaves) or (ABSENT, list)
    sorted_keys, moved = _sorted(keys, given, bits, Payload.GIVEN, packed)
    return sorted_keys, unpacked(moved)


def _with_derivatives_by_indices(
    sort: Callable[..., tuple[Any, list[jax.Array]]],
    indices: Callable[..., tuple[Any, jax.Array]],
    keys: jax.Array | list[jax.Array],
    leaves: list[jax.Array],
    given: dict[str, Any],
) -> tuple[Any, list[jax.Array]]:
    """Runs `sort(keys, leaves, given)`, with the derivatives of `indices(keys, given)` and gathers."""
    operands = {name: x for name, x in given.items() if isinstance(x, jax.Array)}
    attributes = {name: x for name, x in given.items() if name not in operands}

    @jax.custom_jvp
    def run(keys: Any, leaves: list[jax.Array], operands: dict[str, Any]) -> Any:
        return sort(keys, leaves, {**attributes, **operands})

    @run.defjvp
    def _(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> Any:
        def by_indices(keys: Any, leaves: list[jax.Array], operands: dict[str, Any]) -> Any:
            sorted_keys, order = indices(keys, {**attributes, **operands})
            return sorted_keys, [take_rows(leaf, order) for leaf in leaves]

        return jax.jvp(by_indices, primals, tangents)

    result: tuple[Any, list[jax.Array]] = run(keys, leaves, operands)
    return result


def _goes_by_parts(keys: Columns) -> bool:
    return len(keys.arrays) == 1 or (not keys.is_code and surely(lambda: keys.shape[0] >= LONG_COLUMNS))


def _sort_by_parts(
    operation: str,
    keys: Columns,
    cuts: Sequence[tuple[int, int]],
    leaves: list[jax.Array],
    given: dict[str, Any],
) -> tuple[Any, list[jax.Array]]:
    """Sorts by the first part, then by each next one within segments of equal keys."""
    form, bits = keys.replaced([]), keys.code_bits[0]  # JAX keeps these functions, so they must hold no arrays

    def sort(arrays: list[jax.Array], leaves: list[jax.Array], given: dict[str, Any]) -> Any:
        columns = form.replaced(arrays)
        parts = [columns.part(*cut) for cut in cuts]
        sort_keys = [part.key() for part in parts]
        in_order = [key.keys for key in sort_keys]
        for i, (_, descending, bits) in enumerate(sort_keys):
            others = travelling(parts, i)
            carried = [*(in_order[j] for j in others), *leaves]
            in_order[i], moved = _sort_carrying(in_order[i], carried, {**given, "descending": descending}, bits)
            for j in others:
                in_order[j], *moved = moved
            leaves = moved
            if i + 1 < len(parts):
                given = _within_equal(parts[i].of_key(in_order[i]), given)
        restored = [part.of_key(x).arrays for part, x in zip(parts, in_order, strict=True)]
        return form.structure(list(chain.from_iterable(restored))), leaves

    def indices(arrays: list[jax.Array], given: dict[str, Any]) -> tuple[Any, jax.Array]:
        return sort_indices(operation, form.replaced(arrays), given, bits)

    arrays = [whole_axes(x) for x in keys.arrays]
    given = {name: whole_axes(x) if isinstance(x, jax.Array) else x for name, x in given.items()}
    return _with_derivatives_by_indices(sort, indices, arrays, leaves, given)


def _within_equal(keys: jax.Array | Columns, given: dict[str, Any]) -> dict[str, Any]:
    """Returns operands and attributes for a sort within the given segments, cut where sorted keys differ."""
    starts, heads, flags = key_starts(keys), given["heads"], given["flags"]
    if heads.size or flags.size:
        starts |= marked_starts(keys.shape[0], heads, flags)
    return {**given, "heads": ABSENT, "flags": starts, "method": Method.MERGING}


def partitioned(
    codes: jax.Array, bits: int, count: jax.Array, rows: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Partitions codes by their highest bits (at least 1), and returns the row of each code.

    Without `rows`, the row of a code is its position; `count` is an operand. Codes that share these bits may come in
    any order, but equal codes keep theirs.
    """
    given: dict[str, Any] = {"keys": codes, "count": count, "bits": bits, "method": Method.PARTITIONING}
    given |= {"payload": Payload.INDICES} if rows is None else {"payload": Payload.GIVEN, "values": rows}
    sorted_codes, moved = SORT(**given, descending=False)
    return sorted_codes, moved
