"""sort and argsort, which choose the fastest way, and the one primitive behind every sort."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp

from jax_mgpu._src.annotations import ArrayLike, AxisName, Directions, Keys
from jax_mgpu._src.check import (
    count_operand,
    describe,
    index_dtype,
    static_flag,
    static_size,
    type_error,
    value_error,
)
from jax_mgpu._src.columns import Columns, SortKey, expect_keys, key_starts, travelling
from jax_mgpu._src.compat import whole_axes
from jax_mgpu._src.digits import WIDEST, WORD
from jax_mgpu._src.live import marked_starts, segment_numbers
from jax_mgpu._src.mesh import over_axis
from jax_mgpu._src.preconditions import by_construction, keys_of_few_bits
from jax_mgpu._src.primitive import ABSENT, Operation, one_program
from jax_mgpu._src.values import (
    Payload,
    carried_leaf,
    flatten_values,
    packed_rows,
    plain_leaves,
    sort_operands,
    take_keys,
    take_moved,
    take_rows,
    travel_with_keys,
)

__all__ = ["argsort", "sort"]


# A permutation of more words than a GPU's cache holds reads or writes a line for each. For 2^26 words on an H200, a
# scatter takes 4.4 ms, a gather 1.7, a sort of the words by their places 1.7, 4 bytes more of payload in a sort 0.6.
LONG_PERMUTATION = 1 << 23


def is_long_permutation(n: int) -> bool:
    """Whether a permutation of so many items takes longer on a GPU than a sort that carries them."""
    return n >= LONG_PERMUTATION


class Method(enum.IntEnum):
    """How keys are sorted: the attribute `method` of the kernels. All but MERGING go with neither heads nor flags."""

    MERGING = 0  # of whole rows; segments are sorted in the fastest way
    FASTEST = 1
    NEARLY_SORTED = 2  # by merging, where much is in its place already
    PARTITIONING = 3  # by the highest `bits` bits at least, equal keys in their order


@overload
def sort(
    keys: ArrayLike,
    values: None = None,
    *,
    descending: bool = False,
    count: ArrayLike | None = None,
    bits: int | None = None,
) -> jax.Array: ...
@overload
def sort(
    keys: ArrayLike,
    values: Any,
    *,
    descending: bool = False,
    count: ArrayLike | None = None,
    bits: int | None = None,
) -> tuple[jax.Array, Any]: ...
@overload
def sort(
    keys: tuple[ArrayLike, ...],
    values: Any = None,
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
    bits: None = None,
) -> Any: ...
@overload
def sort(
    keys: ArrayLike,
    values: Any = None,
    *,
    descending: bool = False,
    count: ArrayLike | None = None,
    bits: int | None = None,
    axis_name: AxisName,
    even: bool = True,
) -> Any: ...
@one_program("descending", "bits")
def sort(
    keys: Keys,
    values: Any = None,
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
    bits: int | None = None,
    axis_name: AxisName | None = None,
    even: bool = True,
) -> Any:
    """Sorts `keys`, stable, with the values that belong to them, in the fastest way for their type and number.

    Args:
      keys: `[n]`, integers or floats of 8 to 64 bits. Floats are in the order of `jax.lax.sort`: NaN is largest, the
        two zeros are equal. Or columns: a tuple of 1 to 8 such arrays, compared one after the other.
      values: a pytree of arrays with leading axis `n`, of any dtype and trailing shape, moved along with the keys.
      descending: sort in the reverse order; equal keys stay in input order. A tuple of bools is a direction a column.
      count: the number of live items, an integer scalar (default `n`). Items past it stay where they are.
      bits: a promise that the keys are integers from 0 to `2**bits - 1`. Fewer bits may take less time.
      axis_name: sort the items of all devices of a mesh axis, or of a tuple of axes, within `jax.shard_map`; columns
        may have up to 64 bits in all.
      even: over a mesh axis, devices get numbers of items that differ by at most one; if False, devices are filled from
        the first one on.

    Returns:
      The sorted keys, bit for bit a permutation of the input; with values, `(keys, values)`. Columns come back as the
      tuple they are. Over a mesh axis, if `count` is given, the number of items of this device follows; slots past it
      hold 0.

    Raises:
      TypeError: an argument's dtype is not one of the above, or `bits` is given and keys are floats.
      ValueError: an argument's shape is not one of the above; `bits` is more than the keys have; 2^31 items or more
        with values other than one vector of 4- or 8-byte items, without `jax_enable_x64`.

    Time is O(n b) for keys of b bits; scratch memory is one copy of keys and values. On a GPU, long arrays are sorted
    by digits of 8 bits (Adinets and Merrill, "Onesweep: A Faster Least Significant Digit Radix Sort for GPUs", 2022);
    a digit that all keys share costs nothing. Short arrays are sorted by merging, as `mergesort` does; rows of a batch
    whose keys have 16 bits at most, or `bits` of no more, by digits in one launch. Values of up to 8 bytes a row travel
    with the keys; others are gathered by the sorted indices. Several columns are sorted by one code, or one after the
    other.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.sort(jnp.array([3, 1, 2]), jnp.array([30, 10, 20]))
      (Array([1, 2, 3], dtype=int32), Array([10, 20, 30], dtype=int32))
    """
    keys, descending = expect_keys("sort", "keys", keys, descending)
    given: dict[str, Any] = {"descending": descending, "count": count, "method": Method.FASTEST, "bits": bits}
    return run_sort("sort", keys, ABSENT, ABSENT, values, **given, axis_name=axis_name, even=even)


@overload
def argsort(
    keys: Keys, *, descending: Directions = False, count: ArrayLike | None = None, bits: int | None = None
) -> jax.Array: ...
@overload
def argsort(
    keys: Keys,
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
    bits: int | None = None,
    axis_name: AxisName,
    even: bool = True,
) -> Any: ...
@one_program("descending", "bits")
def argsort(
    keys: Keys,
    *,
    descending: Directions = False,
    count: ArrayLike | None = None,
    bits: int | None = None,
    axis_name: AxisName | None = None,
    even: bool = True,
) -> Any:
    """The indices that sort `keys`, stable, as `jax.numpy.argsort`.

    Args:
      keys: see `sort`.
      descending: see `sort`.
      count: see `sort`. The indices past it are their own positions.
      bits: see `sort`.
      axis_name: see `sort`.
      even: see `sort`.

    Returns:
      `[n]` indices; int32, or int64 from 2^31 items on. Over a mesh axis they are those in the global array; counts as
      `sort`.

    Raises:
      TypeError: as `sort`.
      ValueError: as `sort`; also 2^31 items or more without `jax_enable_x64`.

    Complexity and source as `sort`.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.argsort(jnp.array([3, 1, 2]))
      Array([1, 2, 0], dtype=int32)
    """
    keys, descending = expect_keys("argsort", "keys", keys, descending)
    given: dict[str, Any] = {"descending": descending, "count": count, "method": Method.FASTEST, "bits": bits}
    _, *results = run_sort_indices("argsort", keys, ABSENT, ABSENT, **given, axis_name=axis_name, even=even)
    return results[0] if len(results) == 1 else tuple(results)


def run_sort(
    operation: str,
    keys: Any,
    heads: Any,
    flags: Any,
    values: Any,
    *,
    descending: bool,
    count: Any,
    method: Method = Method.MERGING,
    bits: int | None = None,
    axis_name: Any = None,
    even: bool = True,
) -> Any:
    """Keys, checked, sorted within segments, with the pytree of values that belong to them, if there is one.

    Over a mesh axis there are no segments.
    """
    if axis_name is not None:
        options = _mesh_options(operation, keys, descending, count, even, method, bits)
        return over_axis("sorts.sort", operation, axis_name, keys, values, **options)
    given = _given(operation, keys, heads, flags, descending, count, method)
    leaves, unflatten = flatten_values(operation, "values", values, keys.shape[0], "keys")
    if isinstance(keys, Columns):
        _expect_no_bits(operation, bits)
        bits = keys.code_bits[0]
    else:
        keys, bits = _few_bits(operation, keys, given["count"], bits)
    if _has_nothing_to_sort(keys, given):
        return _as_they_are(keys) if values is None else (_as_they_are(keys), unflatten(leaves))
    if values is None:
        return _sort_keys(operation, keys, given, bits)
    sorted_keys, moved = _sort_rows(operation, keys, given, bits, leaves)
    return sorted_keys, unflatten(moved)


def _has_nothing_to_sort(keys: Any, given: dict[str, Any]) -> bool:
    """Whether there is one item at most. Counts, heads and flags go to the sort, with which their checks run."""
    return keys.shape[0] <= 1 and not any(given[name].size for name in ("heads", "flags", "count"))


def _as_they_are(keys: Any) -> Any:
    return keys.structure(keys.arrays) if isinstance(keys, Columns) else keys


def run_sort_indices(
    operation: str,
    keys: Any,
    heads: Any,
    flags: Any,
    *,
    descending: bool,
    count: Any,
    method: Method = Method.MERGING,
    bits: int | None = None,
    axis_name: Any = None,
    even: bool = True,
) -> Any:
    """Keys, checked, sorted within segments, and the place that each came from."""
    if axis_name is not None:
        options = _mesh_options(operation, keys, descending, count, even, method, bits)
        return over_axis("sorts.sort_indices", operation, axis_name, keys, **options)
    given = _given(operation, keys, heads, flags, descending, count, method)
    if isinstance(keys, Columns):
        _expect_no_bits(operation, bits)
    else:
        keys, bits = _few_bits(operation, keys, given["count"], bits)
    if _has_nothing_to_sort(keys, given):
        first = keys.arrays[0] if isinstance(keys, Columns) else keys
        return _as_they_are(keys), jnp.zeros_like(first, index_dtype(operation, "keys", keys.shape[0]))
    if not isinstance(keys, Columns):
        return _sort_indices(operation, keys, given, bits)
    sorted_keys, moved = _sort_rows(operation, keys, given, keys.code_bits[0], [], ordered=True)
    return sorted_keys, moved[0]


def partitioned(codes: jax.Array, bits: int, count: Any, rows: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Codes in the order of their highest bits, from 1 on, and the row of each; `count` is an operand.

    Without rows they are where each code was. Codes that share these bits may come in any order, but equal ones stay in
    theirs.
    """
    given: dict[str, Any] = {"keys": codes, "count": count, "bits": bits, "method": Method.PARTITIONING}
    given |= {"payload": Payload.INDICES} if rows is None else {"payload": Payload.GIVEN, "values": rows}
    sorted_codes, moved = _SORT(**given, descending=False)
    return sorted_codes, moved


class Ordered(NamedTuple):
    """Keys in order, and where each was.

    Attributes:
      keys: the sorted keys, an array or a tuple of columns.
      order: `[n]`, the position of each in the caller's array.
      count: the live count as an operand.
    """

    keys: Any
    order: jax.Array
    count: Any

    def to_rows(self, x: jax.Array) -> jax.Array:
        """Brings values of the sorted keys, integers or bools, back to the rows of the input."""
        n = self.order.shape[0]
        if not is_long_permutation(n):
            return _scattered(self.order, x)
        return jax.lax.platform_dependent(self.order, x, cuda=_sorted_back, default=_scattered)


def _scattered(order: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.zeros_like(x).at[order].set(x, unique_indices=True, mode="promise_in_bounds")


def _sorted_back(order: jax.Array, x: jax.Array) -> jax.Array:
    words = x if x.dtype.itemsize in (4, 8) else x.astype(jnp.int32)
    given: dict[str, Any] = {"descending": False, "count": None, "method": Method.FASTEST}
    with by_construction():
        moved = run_sort("sort", order, ABSENT, ABSENT, words, **given, bits=max(1, (order.shape[0] - 1).bit_length()))
    return moved[1].astype(x.dtype)


def count_name(argument: str) -> str:
    """The name of the live count of keys: `count` of `keys`, `table_count` of `table_keys`, `a_count` of `a`."""
    return f"{argument.removesuffix('keys')}count" if argument.endswith("keys") else f"{argument}_count"


def count_of(operand: Any) -> Any:
    """The live count that an operand holds, which was checked under its own name; None where it is absent."""
    return operand[0] if operand.size else None


def in_order(
    name: str, argument: str, keys: Any, count: Any, *, descending: Any = False, is_sorted: bool = False
) -> Ordered:
    """Keys, checked, in order, in which they may be already."""
    checked, down = expect_keys(name, argument, keys, descending)
    n = checked.shape[0]
    live = count_operand(name, count_name(argument), count, n)
    if is_sorted:
        return Ordered(keys, jnp.arange(n, dtype=index_dtype(name, argument, n)), live)
    with by_construction():
        sorted_keys, order = run_sort_indices(
            name, checked, ABSENT, ABSENT, descending=down, count=count_of(live), method=Method.FASTEST
        )
    return Ordered(sorted_keys, order, live)


def rows_in_order(
    name: str, argument: str, keys: Any, leaves: Sequence[jax.Array], count: Any, *, ordered: bool = True
) -> tuple[Ordered, list[jax.Array]]:
    """The same of keys in any order, with rows that belong to them; without `ordered`, the order is `ABSENT`."""
    checked, _ = expect_keys(name, argument, keys)
    live = count_operand(name, count_name(argument), count, checked.shape[0])
    with by_construction():
        given = _given(name, checked, ABSENT, ABSENT, False, count_of(live), Method.FASTEST)
        bits = checked.code_bits[0] if isinstance(checked, Columns) else 8 * checked.dtype.itemsize
        plain, restore = plain_leaves(leaves)
        sorted_keys, moved = _sort_rows(name, checked, given, bits, plain, ordered=ordered)
    order, *moved = moved if ordered else [ABSENT, *moved]
    return Ordered(sorted_keys, order, live), restore(moved)


def _sorted(keys: Any, given: dict[str, Any], bits: int | None, payload: Payload, values: Any = ABSENT) -> list[Any]:
    """Keys in their order, an array or columns that follow from a code, and their payload, by one call of kernels."""
    if not isinstance(keys, Columns):
        return _SORT(**given, keys=keys, bits=bits, values=values, payload=payload)
    if _are_two_operands(keys, given, payload):
        high, low = keys.arrays
        directions = dict(zip(("high_descending", "low_descending"), keys.descending, strict=True))
        columns = _SORT_COLUMNS(high=high, low=low, count=given["count"], values=values, **directions, payload=payload)
        return [keys.structure(columns[:2]), *columns[2:]]
    codes, *moved = _SORT(**given, keys=keys.codes()[0], bits=keys.bits, values=values, payload=payload)
    return [keys.restored([codes]), *moved]


def _are_two_operands(keys: Columns, given: dict[str, Any], payload: Payload) -> bool:
    """Whether kernels take two columns as they are."""
    if not (keys.are_two_words and keys.are_integers) or given["method"] != Method.FASTEST:
        return False
    least = {Payload.NONE: LONG_WORDS, Payload.GIVEN: LONG_PAIRS, Payload.INDICES: LONG_INDICES}[payload]
    return least <= keys.shape[0] < MOST_WORDS


def _sort_indices(operation: str, keys: Any, given: dict[str, Any], bits: int | None) -> tuple[Any, jax.Array]:
    index_dtype(operation, "keys", keys.shape[0])
    if not isinstance(keys, Columns) or keys.is_code:
        sorted_keys, indices = _sorted(keys, given, bits, Payload.INDICES)
        return sorted_keys, indices
    (*higher, lowest), (*higher_bits, lowest_bits) = keys.codes(), keys.code_bits
    codes, indices = _SORT(**given, keys=lowest, bits=lowest_bits, payload=Payload.INDICES)
    for code, code_bits in zip(reversed(higher), reversed(higher_bits), strict=True):  # stable over the lower ones
        moved = take_keys(code, indices)
        codes, indices = _SORT(**given, keys=moved, bits=code_bits, values=indices, payload=Payload.GIVEN)
    return keys.restored([codes], lambda column: take_rows(column, indices)), indices


# The least number of items from which columns go another way than by one code, or by the indices that it gives. On an
# H200, 2^26 keys of two columns of 32 bits take 3.8 ms by their code, 3.5 by two sorts of pairs, and 3.3 as two
# operands. Of 2^22, values and indices take longer as two operands than by the code. With floats, 2^26 keys take 8.7 ms
# by the code, and three columns take 4.3 to 6.2 part after part. docs/performance.md has more figures.
LONG_WORDS = 1 << 22  # two columns of integers of 32 bits, keys alone: from here on, kernels sort 64 bits by digits
LONG_PAIRS = 1 << 23  # the same with values
LONG_INDICES = 1 << 24  # the same, and their indices
MOST_WORDS = 1 << 30  # the kernels have places of 32 bits
LONG_FLOATS = 1 << 20  # two columns of 32 bits, one of them of floats, keys alone
LONG_COLUMNS = 1 << 22  # part after part: those that no code holds, and on a CPU the keys of any


def _sort_keys(operation: str, keys: Any, given: dict[str, Any], bits: int) -> Any:
    """Keys in their order, with nothing that belongs to them."""
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
        return _sort_rows(operation, keys, given, bits, [])[0]

    on_gpu, elsewhere = as_any, as_any
    if given["method"] == Method.FASTEST:
        (n,) = keys.shape
        if keys.are_two_words and n >= (MOST_WORDS if keys.are_integers else LONG_FLOATS):
            on_gpu = by_two_keys
        if keys.is_code and keys.bits > WORD and n >= LONG_COLUMNS:
            elsewhere = by_parts
    if on_gpu is elsewhere:
        return as_any()
    return jax.lax.platform_dependent(cuda=on_gpu, default=elsewhere)


def _sort_two_keys(high: SortKey, low: SortKey, given: dict[str, Any]) -> list[jax.Array]:
    """By the lower keys, which bring the higher ones, then by those."""

    def sort(key: SortKey, keys: jax.Array, other: jax.Array) -> tuple[jax.Array, jax.Array]:
        in_order, (moved,) = _sort_carrying(keys, [other], {**given, "descending": key.descending}, key.bits)
        return in_order, moved

    low_keys, high_keys = sort(low, low.keys, high.keys)
    return list(sort(high, high_keys, low_keys))


def _sort_rows(
    operation: str, keys: Any, given: dict[str, Any], bits: int, leaves: Sequence[jax.Array], *, ordered: bool = False
) -> tuple[Any, list[jax.Array]]:
    """Keys and the leaves in their order; with `ordered`, the position that each had is the first of the leaves."""
    (n,), is_columns = keys.shape, isinstance(keys, Columns)
    positions = [jnp.arange(n, dtype=index_dtype(operation, "keys", n))] if ordered else []
    carried = [*positions, *leaves]

    def by_indices() -> tuple[Any, list[jax.Array]]:
        sorted_keys, indices = _sort_indices(operation, keys, given, bits)
        return sorted_keys, [*([indices] if ordered else []), *(take_rows(x, indices) for x in leaves)]

    if is_columns and _goes_by_parts(keys):
        cuts = keys.cuts(lambda rest: travel_with_keys([*rest, *carried]))
        if cuts:
            return _sort_by_parts(operation, keys, cuts, carried, given)
    if is_columns and not keys.is_code:
        return by_indices()
    if not ordered and carried_leaf(leaves) is not None:
        return _sort_carrying(keys, leaves, given, bits)
    form = keys.replaced([]) if is_columns else None  # what JAX keeps of these functions must hold no arrays

    def keys_of(arrays: list[jax.Array]) -> Any:
        return arrays[0] if form is None else form.replaced(arrays)

    def packed() -> tuple[Any, list[jax.Array]]:
        return _with_derivatives_by_indices(
            lambda arrays, leaves, given: _sort_carrying(keys_of(arrays), leaves, given, bits),
            lambda arrays, given: _sort_indices(operation, keys_of(arrays), given, bits),
            *(keys.arrays if is_columns else [keys], carried, given),
        )

    goes_by_indices = not is_long_permutation(n) or given["heads"].size or not travel_with_keys(carried)
    if goes_by_indices or (ordered and not leaves):  # kernels count positions by themselves
        return by_indices()
    return jax.lax.platform_dependent(cuda=packed, default=by_indices)


def _sort_carrying(
    keys: Any, leaves: Sequence[jax.Array], given: dict[str, Any], bits: int
) -> tuple[Any, list[jax.Array]]:
    """Keys, and leaves that travel with them as one payload. Those that are packed for it have no derivatives."""
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
    keys: Any,
    leaves: list[jax.Array],
    given: dict[str, Any],
) -> tuple[Any, list[jax.Array]]:
    """`sort(keys, leaves, given)`, whose derivatives are those of `indices(keys, given)` and gathers."""
    operands = {name: x for name, x in given.items() if isinstance(x, jax.Array)}
    attributes = {name: x for name, x in given.items() if name not in operands}

    @jax.custom_jvp
    def run(keys: Any, leaves: list[jax.Array], operands: dict[str, Any]) -> Any:
        return sort(keys, leaves, {**attributes, **operands})

    @run.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        def by_indices(keys: Any, leaves: list[jax.Array], operands: dict[str, Any]) -> Any:
            sorted_keys, order = indices(keys, {**attributes, **operands})
            return sorted_keys, [take_rows(leaf, order) for leaf in leaves]

        return jax.jvp(by_indices, primals, tangents)

    return run(keys, leaves, operands)


def _goes_by_parts(keys: Columns) -> bool:
    """Whether columns are sorted part after part."""
    return len(keys.arrays) == 1 or (not keys.is_code and keys.shape[0] >= LONG_COLUMNS)


def _sort_by_parts(
    operation: str, keys: Columns, cuts: Sequence[tuple[int, int]], leaves: list[jax.Array], given: dict[str, Any]
) -> tuple[Any, list[jax.Array]]:
    """By the first part, then by each that follows, within the segments of equal keys."""
    form, bits = keys.replaced([]), keys.code_bits[0]  # what JAX keeps of these functions must hold no arrays

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
            given = _within_equal(parts[i].of_key(in_order[i]), given)
        restored = [part.of_key(x).arrays for part, x in zip(parts, in_order, strict=True)]
        return form.structure(list(chain.from_iterable(restored))), leaves

    def indices(arrays: list[jax.Array], given: dict[str, Any]) -> tuple[Any, jax.Array]:
        return _sort_indices(operation, form.replaced(arrays), given, bits)

    arrays = [whole_axes(x) for x in keys.arrays]
    given = {name: whole_axes(x) if isinstance(x, jax.Array) else x for name, x in given.items()}
    return _with_derivatives_by_indices(sort, indices, arrays, leaves, given)


def _within_equal(keys: Columns, given: dict[str, Any]) -> dict[str, Any]:
    """The operands and attributes of a sort within the segments that are given, cut where sorted keys differ."""
    starts, heads, flags = key_starts(keys), given["heads"], given["flags"]
    if heads.size or flags.size:
        starts |= marked_starts(keys.shape[0], heads, flags)
    return {**given, "heads": ABSENT, "flags": starts, "method": Method.MERGING}


def _given(
    operation: str, keys: Any, heads: Any, flags: Any, descending: bool, count: Any, method: Method
) -> dict[str, Any]:
    """The operands and attributes of every sort, except the keys and their bits."""
    return {
        "heads": heads,
        "flags": flags,
        "count": count_operand(operation, "count", count, keys.shape[0]),
        "descending": static_flag(operation, "descending", descending),
        "method": method,
    }


def _mesh_options(
    operation: str, keys: Any, descending: bool, count: Any, even: bool, method: Method, bits: int | None
) -> dict[str, Any]:
    """The arguments of a sort over a mesh axis other than its keys and values."""
    if isinstance(keys, Columns):
        _expect_no_bits(operation, bits)
    flags = {
        "descending": static_flag(operation, "descending", descending),
        "even": static_flag(operation, "even", even),
    }
    return {**flags, "count": count, "method": method, "bits": bits}


def _few_bits(operation: str, keys: jax.Array, count: Any, bits: Any) -> tuple[jax.Array, int]:
    """Keys, and how many of their low bits matter."""
    most = 8 * keys.dtype.itemsize
    if bits is None:
        return keys, most
    if not jnp.issubdtype(keys.dtype, jnp.integer):
        raise type_error(operation, "keys", "integers where bits is given", describe(keys))
    bits = static_size(operation, "bits", bits)
    if not 1 <= bits <= most:
        raise value_error(operation, "bits", f"an integer from 1 to {most}", bits)
    return keys_of_few_bits(operation, "keys", keys, count, bits), bits


def _expect_no_bits(operation: str, bits: Any) -> None:
    if bits is not None:
        raise value_error(operation, "bits", "None where the keys are columns", bits)


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
    codes, *moved = _SORT(
        keys=keys.codes()[0], count=count, values=values,
        descending=False, method=Method.FASTEST, bits=keys.bits, payload=payload,
    )  # fmt: skip
    return [*keys.restored([codes]), *moved]


def _column_jvp(primals: Any, tangents: Any, *, payload: int, **attributes: int) -> tuple[Any, Any]:
    if payload != Payload.GIVEN:
        results = _SORT_COLUMNS.run(primals, **attributes, payload=payload)
        return results, [None] * len(results)
    high, low, indices = _SORT_COLUMNS.run(primals._replace(values=ABSENT), **attributes, payload=Payload.INDICES)
    moved = take_rows(primals.values, indices), take_moved(tangents.values, indices)
    return [high, low, moved[0]], [None, None, moved[1]]


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
    attributes={"descending": bool, "method": Method, "bits": int, "payload": Payload},
    shapes=_shapes,
    fallback=_fallback,
    streamed=("keys", "values"),
)
_SORT.def_jvp(_jvp)

_SORT_COLUMNS = Operation(
    "sort_columns",
    operands={"high": 1, "low": 1, "count": 1, "values": 1},
    results=("high", "low", "values"),
    attributes={"high_descending": bool, "low_descending": bool, "payload": Payload},
    shapes=_column_shapes,
    fallback=_column_fallback,
    streamed=("high", "low", "values"),
    only="cuda",
)
_SORT_COLUMNS.def_jvp(_column_jvp)
