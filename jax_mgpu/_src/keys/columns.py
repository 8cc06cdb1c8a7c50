"""Keys of several columns: packs them into codes that kernels compare, and unpacks results.

Each column becomes a number of its width that has the order of the column: the sign of an integer is flipped, a float
becomes its `ordered_integers`, and all bits are flipped for a descending column. These numbers, the first column
highest, form one long number. If it has up to 64 bits, it is the key for kernels, in the narrowest of 8, 16, 32 and 64
bits.

The code of a float does not hold its bits: all NaNs have one code, and so have both zeros. So the floats of results
come from the operands. A long sort may do without codes of floats: it sorts by some columns first, and then by the next
ones within segments of equal keys (`Columns.cuts`).

Wider numbers are cut into pieces of 64 bits. A sort by pieces takes the lowest one first; each pass is stable. Two
sorted operands are searched in each other by their highest 64 bits. The place of a key in the merge replaces these
bits, until at most 64 bits remain.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import ArrayLike, AxisName, Count, Directions, Keys
from jax_mgpu._src.arguments.check import (
    as_array,
    count_operand,
    describe,
    expect_key,
    expect_same_dtype,
    fill_operand,
    index_dtype,
    static_flag,
    type_error,
    value_error,
)
from jax_mgpu._src.arguments.counts import is_first, live_items
from jax_mgpu._src.arguments.preconditions import sorted_columns, sorted_keys
from jax_mgpu._src.arguments.values import filled_behind, take_from_pair
from jax_mgpu._src.core.compat import has_64_bits, whole_axes
from jax_mgpu._src.core.eager import check_on_host
from jax_mgpu._src.core.operation import REGISTRY
from jax_mgpu._src.functions.operators import Kind
from jax_mgpu._src.keys.bits import opaque, ordered_integers, shifted, where
from jax_mgpu._src.keys.digits import WIDEST, WORD, Digit, code_digits, code_dtype, code_of, part, split

MAX_COLUMNS = 8


class SortKey(NamedTuple):
    """One of the keys that kernels sort by: its direction, and how many of its low bits may differ."""

    keys: jax.Array
    descending: bool
    bits: int


class Columns:
    """Checked keys, with a direction for each."""

    def __init__(self, operation: str, argument: str, columns: tuple[ArrayLike, ...], descending: Directions):
        if not 0 < len(columns) <= MAX_COLUMNS:
            raise value_error(operation, argument, f"1 to {MAX_COLUMNS} columns", f"{len(columns)} columns")
        # Errors call a single column by the caller's name, without an index.
        self.names = [argument] if len(columns) == 1 else [f"{argument}[{i}]" for i in range(len(columns))]
        self.arrays = [expect_key(operation, *pair) for pair in zip(self.names, columns, strict=True)]
        for name, x in zip(self.names, self.arrays, strict=True):
            if x.shape != self.shape:
                raise value_error(operation, name, f"the length of {self.names[0]}, {self.shape[0]}", describe(x))
        if not self.fits:  # packing is elementwise, but other steps for several codes are not
            self.arrays = [whole_axes(x) for x in self.arrays]
        self.descending = _directions(operation, descending, len(columns))
        self.structure: Callable[[Sequence[Any]], Any] = getattr(columns, "_make", tuple)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each column."""
        return self.arrays[0].shape

    @property
    def bits(self) -> int:
        """The width of all columns together."""
        return sum(8 * x.dtype.itemsize for x in self.arrays)

    @property
    def fits(self) -> bool:
        """Whether one key holds the columns."""
        return self.bits <= WIDEST

    @property
    def are_integers(self) -> bool:
        """Whether the columns can be computed from their codes."""
        return all(map(_is_integer, self.arrays))

    @property
    def is_code(self) -> bool:
        """Whether the columns can be computed from the code of one key."""
        return self.fits and self.are_integers

    @property
    def code_bits(self) -> list[int]:
        """The codes' bits, highest first."""
        return [min(WIDEST, self.bits - at) for at in range(0, self.bits, WIDEST)]

    def replaced(self, arrays: Iterable[jax.Array]) -> Columns:
        """Returns other arrays with the same types and directions."""
        other = object.__new__(Columns)
        other.__dict__.update(self.__dict__, arrays=list(arrays))
        return other

    def part(self, begin: int, end: int) -> Columns:
        """Returns some neighbouring columns."""
        other = object.__new__(Columns)
        other.__dict__.update(self.__dict__)
        for name in ("names", "arrays", "descending"):
            setattr(other, name, getattr(self, name)[begin:end])
        return other

    @property
    def is_key(self) -> bool:
        """Whether one key determines the columns: a code, or the only column."""
        return len(self.arrays) == 1 or self.is_code

    def key(self) -> SortKey:
        """Returns the columns as one key that holds all their bits."""
        if len(self.arrays) > 1:
            return SortKey(self.codes()[0], False, self.code_bits[0])
        return SortKey(self.arrays[0], self.descending[0], self.bits)

    def of_key(self, keys: jax.Array) -> Columns:
        """Returns the columns of items with this `key`."""
        return self.replaced([keys] if len(self.arrays) == 1 else self.unpacked([keys]))  # type: ignore[arg-type]

    @property
    def are_two_words(self) -> bool:
        """Whether there are two columns of 32 bits each."""
        return [x.dtype.itemsize for x in self.arrays] == [4, 4]

    def two_keys(self) -> tuple[SortKey, SortKey]:
        """Returns a high and a low key for two columns of 32 bits, or for integers of 65 to 128 bits in all."""
        if self.are_two_words:
            return self.part(0, 1).key(), self.part(1, 2).key()
        high, low = (SortKey(code, False, bits) for code, bits in zip(self.codes(), self.code_bits, strict=True))
        return high, low

    def of_two_keys(self, keys: list[jax.Array]) -> Any:
        """Returns columns from two keys, in the input's structure."""
        return self.structure(keys) if self.are_two_words else self.restored(keys)

    def cuts(self, travel: Callable[[list[jax.ShapeDtypeStruct]], bool]) -> list[tuple[int, int]]:
        """Returns where to cut the columns into parts that kernels sort by, one after the other.

        `travel` tells whether kernels can move these keys. The first part has as few columns as `travel` allows, but
        all leading integers that fit 32 bits together. The list is empty if the columns cannot be cut.
        """
        n = len(self.arrays)
        for first, most_bits in product(range(1, n + 1), (WIDEST, WORD)):
            if first < n and self.part(0, first + 1).is_word:
                continue
            cuts = self._cuts_behind(first, most_bits)
            parts = [self.part(*cut) for cut in cuts]
            along = ([parts[j].key_struct() for j in travelling(parts, i)] for i in range(len(parts)))
            if parts[0].is_key and all(map(travel, along)):
                return cuts
        return []

    def _cuts_behind(self, first: int, most_bits: int) -> list[tuple[int, int]]:
        """Cuts into the first `first` columns, then single ones or integers of up to `most_bits` bits together."""
        n, edges = len(self.arrays), [0, first]
        for end in range(first + 1, n):
            joined = self.part(edges[-1], end + 1)
            if joined.bits > most_bits or not joined.are_integers:
                edges.append(end)
        return list(pairwise(edges if first == n else [*edges, n]))

    @property
    def is_word(self) -> bool:
        """Whether columns are integers of up to 32 bits together."""
        return self.bits <= WORD and self.are_integers

    def key_struct(self) -> jax.ShapeDtypeStruct:
        """Returns the key's shape and type."""
        dtype = self.arrays[0].dtype if len(self.arrays) == 1 else code_dtype(self.bits)
        return jax.ShapeDtypeStruct(self.shape, dtype)

    def digits(self) -> list[Digit]:
        """Returns the long number, highest digit first."""
        return [digit for x, down in zip(self.arrays, self.descending, strict=True) for digit in _digits(x, down)]

    def codes(self) -> list[jax.Array]:
        """Returns the long number as keys, highest first."""
        digits = self.digits()
        return [code_of(digits, WIDEST * i, bits) for i, bits in enumerate(self.code_bits)]

    def unpacked(self, codes: Sequence[jax.Array]) -> list[jax.Array | None]:
        """Returns the columns of items from their highest codes; None for floats, and for columns not all in these."""
        pairs = zip(codes, self.code_bits, strict=False)
        digits = [digit for code, bits in pairs for digit in code_digits(code, bits)]
        columns: list[jax.Array | None] = []
        at = 0
        for x, down in zip(self.arrays, self.descending, strict=True):
            end = at + 8 * x.dtype.itemsize
            held = _is_integer(x) and end <= WIDEST * len(codes)
            columns.append(_column(digits, at, x.dtype, down) if held else None)
            at = end
        return columns

    def restored(self, codes: Sequence[jax.Array], take: Callable[[jax.Array], jax.Array] | None = None) -> Any:
        """Restores keys from codes in the input's structure; gathers columns that codes do not hold."""
        columns = self.unpacked(codes)
        if take is not None:
            columns = [take(x) if y is None else y for x, y in zip(self.arrays, columns, strict=True)]
        return self.structure(columns)

    def code_and_rest(self, operation: str) -> tuple[jax.Array, list[jax.Array]]:
        """Returns the code over a mesh axis, and the columns that it does not determine."""
        expect_one_code(operation, self)
        return self.codes()[0], [] if self.are_integers else [x for x in self.arrays if not _is_integer(x)]

    def of_code_and_rest(
        self,
        code: jax.Array,
        rest: Sequence[jax.Array],
        live: jax.Array,
        fill: Callable[[Any], jax.Array] = lambda dtype: jnp.zeros((1,), dtype),
    ) -> Any:
        """Returns the columns of moved codes in the input's structure; `fill(dtype)` past the live items."""
        floats = iter(rest)
        columns = [next(floats) if x is None else x for x in self.unpacked([code])]
        return self.structure([filled_behind(x, live, fill(x.dtype)) for x in columns])

    def run_keys(self) -> jax.Array:
        """Returns codes, or the numbers of runs: two neighbours are equal exactly if their keys are."""
        if self.fits:
            return self.codes()[0]
        starts = _run_starts(self.digits()).astype(index_dtype("keys", "keys", self.shape[0]))
        return REGISTRY["scan"](x=starts, op=Kind.ADD, exclusive=False, reverse=False, total=False)[0]


def travelling(parts: Sequence[Columns], i: int) -> list[int]:
    """Returns the parts that the i-th sort moves along: later ones, and earlier ones with floats."""
    return [j for j, part in enumerate(parts) if j > i or (j < i and not part.are_integers)]


def key_starts(keys: jax.Array | Columns) -> jax.Array:
    """Returns which keys differ from the previous one, as the first does."""
    return _run_starts(keys.digits() if isinstance(keys, Columns) else _digits(keys, False))


def key_ends(keys: jax.Array) -> jax.Array:
    """Returns which keys but the last differ from the next one."""
    differs = [words[:-1] != words[1:] for words, _ in _digits(keys, False)]
    return functools.reduce(operator.or_, differs)


def expect_keys(
    operation: str, argument: str, keys: Keys, descending: Directions = False
) -> tuple[jax.Array | Columns, bool]:
    """Returns an array or `Columns`, and whether an array is in descending order; `Columns` know their directions."""
    if _is_columns(keys):
        return Columns(operation, argument, keys, descending), False
    if isinstance(keys, list) and _has_arrays(keys):
        raise value_error(operation, argument, "a 1-D array, or columns as a tuple", f"a list of {len(keys)} arrays")
    return expect_key(operation, argument, keys), static_flag(operation, "descending", descending)


def expect_pair(
    operation: str, a: Keys, b: Keys, *, names: tuple[str, str] = ("a", "b"), descending: Directions = False
) -> tuple[Any, Any, bool]:
    """Returns two operands of one type, and whether they are arrays in descending order."""
    a_name, b_name = names
    if _is_columns(a) != _is_columns(b):
        expected = "a tuple of columns" if _is_columns(a) else "one array"
        got = f"{len(b)} columns" if _is_columns(b) else describe(as_array(operation, b_name, b))
        raise type_error(operation, b_name, f"{expected}, like {a_name}", got)
    (x, down), (y, _) = (expect_keys(operation, *side, descending) for side in ((a_name, a), (b_name, b)))
    x_columns, y_columns = columns_of(x), columns_of(y)
    if len(x_columns) != len(y_columns):
        raise value_error(operation, b_name, f"the {len(x_columns)} columns of {a_name}", f"{len(y_columns)} columns")
    x_names, y_names = (
        keys.names if isinstance(keys, Columns) else [name] for keys, name in ((x, a_name), (y, b_name))
    )
    for columns in zip(x_names, x_columns, y_names, y_columns, strict=True):
        expect_same_dtype(operation, *columns)
    return x, y, down


def pair_counts(operation: str, names: Sequence[str], keys: Sequence[Any], counts: Sequence[Count]) -> list[jax.Array]:
    """Returns live counts of two operands."""
    sides = zip(names, counts, keys, strict=True)
    return [count_operand(operation, f"{name}_count", count, x.shape[0]) for name, count, x in sides]


def columns_of(keys: jax.Array | Columns) -> list[jax.Array]:
    """Returns the columns of checked keys."""
    return keys.arrays if isinstance(keys, Columns) else [keys]


def alike(keys: jax.Array | Columns, other: Any) -> Any:
    """Returns `other`, keys of the same types in the caller's form, as checked keys."""
    return keys.replaced(other) if isinstance(keys, Columns) else other


def run_keys(keys: jax.Array | Columns) -> jax.Array:
    """Returns an array whose neighbours are equal exactly if neighbouring keys are."""
    return keys.run_keys() if isinstance(keys, Columns) else keys


def in_form(keys: jax.Array | Columns) -> Any:
    """Returns checked keys in the caller's form."""
    return keys.structure(keys.arrays) if isinstance(keys, Columns) else keys


def expect_told_apart(operation: str, **keys: Keys | None) -> None:
    """Raises if 64-bit floats of the host become equal once JAX cuts them to 32 bits."""
    wide = (getattr(x, "dtype", np.float64) == np.float64 for x in jax.tree.leaves(keys))
    if not has_64_bits() and any(wide):
        check_on_host(_expect_told_apart, tuple(keys.values()), operation, tuple(keys))


def _expect_told_apart(keys: Sequence[Any], operation: str, names: Sequence[str]) -> None:
    for columns in zip(*(x if _is_columns(x) else (x,) for x in keys), strict=False):
        sides = zip(names, map(_wide_floats, columns), strict=True)
        host = {argument: floats for argument, floats in sides if floats is not None}
        if not host:
            continue
        numbers = np.concatenate(list(host.values()))
        with np.errstate(over="ignore"):
            if np.array_equal(numbers, numbers.astype(np.float32), equal_nan=True):
                continue  # float32 holds these floats exactly
            numbers.sort()
            cut = numbers.astype(np.float32)
        merged = np.flatnonzero((numbers[1:] != numbers[:-1]) & (cut[1:] == cut[:-1]))
        if merged.size:
            first, second = numbers[merged[0] : merged[0] + 2].tolist()
            expected = "floats that float32 tells apart (float64 needs jax_enable_x64)"
            raise value_error(operation, " and ".join(host), expected, f"{first} and {second}")


def _wide_floats(x: object) -> np.ndarray | None:
    """Returns a vector of 64-bit floats of the host or of Python; None for anything else."""
    leaves = x if isinstance(x, (list, tuple)) else [x]
    if any(isinstance(leaf, jax.Array) or hasattr(leaf, "__jax_array__") for leaf in leaves):
        return None
    try:
        host = np.asarray(x)
    except (TypeError, ValueError):
        return None
    return host if (host.dtype.kind, host.dtype.itemsize, host.ndim) == ("f", 8, 1) else None


def _is_columns(keys: object) -> TypeGuard[tuple[ArrayLike, ...]]:
    """Whether keys are columns; a tuple of numbers is an array."""
    return isinstance(keys, tuple) and (not keys or _has_arrays(keys))


def _has_arrays(items: Iterable[Any]) -> bool:
    return any(isinstance(x, (list, tuple)) or getattr(x, "ndim", 0) for x in items)


def _directions(operation: str, descending: Directions, columns: int) -> tuple[bool, ...]:
    if not isinstance(descending, tuple):
        return (static_flag(operation, "descending", descending),) * columns
    if len(descending) != columns:
        expected = f"a static True or False, or a tuple of {columns}, one per column"
        raise value_error(operation, "descending", expected, descending)
    return tuple(static_flag(operation, f"descending[{i}]", flag) for i, flag in enumerate(descending))


class KeyPair:
    """Two sorted operands as kernels take them; also restores the caller's keys from the kernels' results.

    Attributes:
      a, b: keys, or columns' codes.
      a_count, b_count: live counts as operands.
      descending: whether `a` and `b` are in descending order.
      is_code: whether the caller's keys can be computed from the keys that a kernel returns, without indices.
    """

    def __init__(
        self,
        operation: str,
        a: jax.Array | Columns,
        b: jax.Array | Columns,
        a_count: jax.Array,
        b_count: jax.Array,
        *,
        descending: bool = False,
    ):
        self.a_count, self.b_count, self.descending = a_count, b_count, descending
        self.is_code, self._operation = True, operation
        self._columns: tuple[Columns, Columns] | None = None
        if isinstance(a, Columns) and isinstance(b, Columns):
            self._columns, self.is_code = (a, b), a.is_code
            a, b = _pair_codes(a, b, a_count, b_count)
        assert not isinstance(a, Columns) and not isinstance(b, Columns)
        self.a, self.b = a, b

    @property
    def operands(self) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """The keys and their counts."""
        return self.a, self.b, self.a_count, self.b_count

    @property
    def code_operands(self) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """`operands` over a mesh axis, where one code holds all columns."""
        if self._columns is not None:
            expect_one_code(self._operation, self._columns[0])
        return self.operands

    @property
    def rest(self) -> list[list[jax.Array]]:
        """The columns of both sides that their codes do not determine."""
        return [[], []] if self._columns is None else [x.code_and_rest(self._operation)[1] for x in self._columns]

    @property
    def are_columns(self) -> bool:
        """Whether the keys are columns."""
        return self._columns is not None

    def of_code_and_rest(
        self, keys: jax.Array, rest: Sequence[jax.Array], live: jax.Array, fill_value: ArrayLike = 0
    ) -> Any:
        """Returns the caller's keys from keys that were moved over a mesh axis."""
        if self._columns is None:
            return keys
        fill = functools.partial(fill_operand, self._operation, fill_value)
        return self._columns[0].of_code_and_rest(keys, rest, live, fill)

    @property
    def codes(self) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """The pair as codes of unsigned words, even for keys that are one array."""
        _, _, a_count, b_count = self.code_operands
        a, b = self._columns or (_one_column(self._operation, x) for x in (self.a, self.b))
        return a.codes()[0], b.codes()[0], a_count, b_count

    def with_nans_apart(self) -> KeyPair:
        """Returns a pair in which no NaN of a equals one of b.

        Floats become integers that order them, and a's NaNs come just before b's.
        """
        a, b = self._columns or (_one_column(self._operation, x) for x in (self.a, self.b))
        if a.are_integers:
            return self
        a, b = a.replaced(map(_nans_apart, a.arrays)), b.replaced(map(ordered_integers, b.arrays))
        return KeyPair(self._operation, a, b, self.a_count, self.b_count)

    def fill(self, fill_value: ArrayLike) -> jax.Array:
        """Returns the fill value of the kernel's keys, `[1]`; `restored` fills columns."""
        if self._columns is None:
            return fill_operand(self._operation, fill_value, self.a.dtype)
        return jnp.zeros((1,), self.a.dtype)

    def restored(
        self,
        keys: jax.Array,
        indices: jax.Array | None = None,
        *,
        count: jax.Array | None = None,
        fill_value: ArrayLike = 0,
    ) -> Any:
        """Returns the caller's keys from those that a kernel returned.

        `count` of them hold items, by default all that are live on both sides. Unless `is_code`, `indices` point into
        both sides, -1 past the count.
        """
        if self._columns is None:
            return keys
        a, b = self._columns
        count = self._live() if count is None else count
        used = jnp.arange(keys.shape[0], dtype=count.dtype) < count

        def restore(a: jax.Array, b: jax.Array, unpacked: jax.Array | None) -> jax.Array:
            fill = fill_operand(self._operation, fill_value, a.dtype)
            if unpacked is not None:
                return where(used, unpacked, fill)
            assert indices is not None
            result: jax.Array = take_from_pair(a, b, indices, self.a.shape[0], fill)
            return result

        unpacked = a.unpacked([keys]) if a.fits else [None] * len(a.arrays)
        return a.structure([restore(*x) for x in zip(a.arrays, b.arrays, unpacked, strict=True)])

    def _live(self) -> jax.Array:
        n_a, n_b = self.a.shape[0], self.b.shape[0]
        dtype = index_dtype(self._operation, "a and b", n_a + n_b)
        return live_items(n_a, self.a_count, dtype) + live_items(n_b, self.b_count, dtype)


def expect_one_code(operation: str, keys: jax.Array | Columns) -> None:
    """Raises an error for keys over a mesh axis if one code cannot hold all columns."""
    if isinstance(keys, Columns) and not keys.fits:
        raise value_error(operation, "axis_name", f"None where columns have more than {WIDEST} bits", "an axis")


def whole_keys(operation: str, argument: str, keys: Keys, axis_name: AxisName | None) -> Any:
    """Returns checked keys that no mesh axis divides: an array, or `Columns` in ascending direction."""
    expect_told_apart(operation, **{argument: keys})
    given, _ = expect_keys(operation, argument, keys)
    if axis_name is not None:
        expect_one_code(operation, given)
    return given.replaced(map(whole_axes, given.arrays)) if isinstance(given, Columns) else whole_axes(given)


def _nans_apart(x: jax.Array) -> jax.Array:
    """Returns `ordered_integers`, where those of NaNs are one less."""
    ordered = ordered_integers(x)
    return ordered if _is_integer(x) else where(jnp.isnan(x), ordered - 1, ordered)


def _one_column(operation: str, keys: jax.Array) -> Columns:
    return Columns(operation, "keys", (keys,), False)


def directed_pair(
    operation: str, a: Keys, b: Keys, descending: Directions
) -> tuple[Any, Any, Any, Callable[[Any], Any]]:
    """Returns two operands, their directions, and the function that gives keys of results the caller's form.

    `expect_told_apart` checks the keys, because operations test them for equality. Arrays in descending order become
    columns of one array, whose codes are in ascending order.
    """
    expect_told_apart(operation, a=a, b=b)
    if _is_columns(a) or not static_flag(operation, "descending", descending):
        return a, b, descending, lambda keys: keys
    return (a,), b if _is_columns(b) else (b,), (True,), lambda keys: keys[0]


def sorted_pair(
    operation: str,
    a: Keys,
    b: Keys,
    a_count: Count,
    b_count: Count,
    *,
    names: tuple[str, str] = ("a", "b"),
    descending: Directions = False,
    unique: bool = False,
) -> KeyPair:
    """Checks two sorted operands; returns them as kernels take them."""
    x, y, down = expect_pair(operation, a, b, names=names, descending=descending)
    counts = pair_counts(operation, names, (x, y), (a_count, b_count))
    sides = zip(names, (x, y), counts, strict=True)
    x, y = (expect_sorted(operation, *side, descending=down, unique=unique) for side in sides)
    return KeyPair(operation, x, y, *counts, descending=down)


def expect_sorted(
    operation: str,
    argument: str,
    keys: jax.Array | Columns,
    count: jax.Array,
    *,
    descending: bool = False,
    unique: bool = False,
    within: Callable[[], jax.Array] | None = None,
) -> Any:
    """Returns keys; with checks on, requires that live ones are in order.

    For `within`, see `sorted_keys`.
    """
    if not isinstance(keys, Columns):
        return sorted_keys(operation, argument, keys, count, descending=descending, unique=unique, within=within)
    options: dict[str, Any] = {"descending": keys.descending, "unique": unique, "within": within}
    return keys.replaced(sorted_columns(operation, keys.names, keys.arrays, count, **options))


def _pair_codes(a: Columns, b: Columns, a_count: jax.Array, b_count: jax.Array) -> list[jax.Array]:
    """Returns keys of up to 64 bits that compare as the columns of both sides do."""
    digits, counts, bits = [a.digits(), b.digits()], (a_count, b_count), a.bits
    while bits > WIDEST:
        codes = [code_of(x, 0, WIDEST) for x in digits]
        places = [_merge_places(codes[i], codes[1 - i], counts[i], counts[1 - i]) for i in range(2)]
        digits = [[*place, *_rest(x, bits)] for place, x in zip(places, digits, strict=True)]
        bits = sum(digit.bits for digit in digits[0])
    return [code_of(x, 0, bits) for x in digits]


def _merge_places(codes: jax.Array, others: jax.Array, count: jax.Array, others_count: jax.Array) -> list[Digit]:
    """Returns, for each code, how many codes of both sides are less, as digits; both sides are sorted."""
    n = codes.shape[0] + others.shape[0]
    dtype = index_dtype("keys", "a and b", n)
    positions = jnp.arange(codes.shape[0], dtype=dtype)
    firsts = where(_run_starts(code_digits(codes, WIDEST)), positions, 0)
    firsts = REGISTRY["scan"](x=firsts, op=Kind.MAX, exclusive=False, reverse=False, total=False)[0]
    before = REGISTRY["sorted_search"](
        needles=codes, haystack=others, needles_count=count, haystack_count=others_count, right=False
    )[0]
    places = firsts + before.astype(dtype)
    word = 8 * dtype.itemsize
    return split(places.astype(f"uint{word}"), n.bit_length() if isinstance(n, int) else word)


def _rest(digits: Sequence[Digit], bits: int) -> list[Digit]:
    """Returns the digits below the highest 64 bits."""
    cuts = [(at, min(WORD, bits - at)) for at in range(WIDEST, bits, WORD)]
    return [Digit(part(digits, *cut), cut[1]) for cut in cuts]


def _run_starts(digits: Sequence[Digit]) -> jax.Array:
    starts = is_first(digits[0].words.shape[0])
    for words, _ in digits:
        starts |= words != shifted(words, 1)
    return starts


def _is_integer(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.integer)


def _digits(x: jax.Array, descending: bool) -> list[Digit]:
    """Returns a column as a number in the requested order."""
    bits, word = 8 * x.dtype.itemsize, _word(x.dtype)
    code = ordered_integers(x)
    if code.dtype != word:
        code = _sign_flipped(jax.lax.bitcast_convert_type(code, word))
    return split(~code if descending else code, bits)


def _column(digits: Sequence[Digit], at: int, dtype: np.dtype, descending: bool) -> jax.Array:
    """Returns the column of integers whose number begins `at` bits below the top."""
    bits, word = 8 * dtype.itemsize, _word(dtype)
    code = part(digits, at, min(bits, WORD)).astype(word)
    if bits > WORD:
        code = code << word.type(WORD) | part(digits, at + WORD, bits - WORD).astype(word)
    code = ~code if descending else code
    if dtype == word:
        return code
    return jax.lax.bitcast_convert_type(_sign_flipped(code), dtype)


def _sign_flipped(code: jax.Array) -> jax.Array:
    """Returns the signed integers of a code, or the reverse.

    The flip of 32 bits is `opaque`.
    """
    bits = 8 * code.dtype.itemsize
    flipped: jax.Array = (opaque(code) if bits == WORD else code) ^ code.dtype.type(1 << (bits - 1))
    return flipped


def _word(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"uint{8 * dtype.itemsize}")
