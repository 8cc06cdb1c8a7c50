"""Named operators over pytrees of rows: the arrays that kernels combine, their operators, and the results.

A leaf `[n, ...]` is `[n]` or `[n, width]` for a kernel, which combines each column by itself. Some names, such as
`"any"`, stand for another operator over converted items; some, such as `"mean"`, need the number of items.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import ArrayLike, DTypeLike, OperatorTree, PairFunction, Pytree
from jax_mgpu._src.arguments.check import (
    KEY_DTYPES,
    NUMBERS,
    as_array,
    describe,
    describe_static,
    index_dtype,
    type_error,
    value_error,
)
from jax_mgpu._src.arguments.values import plain_leaves, take_or_fill
from jax_mgpu._src.core.compat import PyTreeDef, whole_axes
from jax_mgpu._src.core.operation import Operation
from jax_mgpu._src.functions.operators import (
    Kind,
    accumulator_dtype,
    expect_no_array_function,
    sum_dtype,
    wide_dtype,
)
from jax_mgpu._src.functions.recurrence import product

KINDS = {
    "add": Kind.ADD,
    "sum": Kind.ADD,
    "mul": Kind.MUL,
    "prod": Kind.MUL,
    "min": Kind.MIN,
    "max": Kind.MAX,
    "argmin": Kind.ARGMIN,
    "argmax": Kind.ARGMAX,
    "mean": Kind.ADD,
    "any": Kind.OR,
    "all": Kind.AND,
    "and": Kind.AND,
    "or": Kind.OR,
    "xor": Kind.XOR,
    "logsumexp": Kind.LOGSUMEXP,
}
SCANNED_NAMES = tuple(KINDS)


class Grouping(abc.ABC):
    """How items are grouped into results, and reductions for operators that kernels lack.

    Subclasses group all items, segments or ids. Results have the leading axes `leading`.
    """

    leading: tuple[int, ...]
    n: int
    index_dtype: np.dtype  # of positions and numbers of items

    @abc.abstractmethod
    def combine(self, kind: Kind, x: jax.Array, wide: bool = False) -> jax.Array:
        """Combines items `[n]`, or each column of `[n, width]`, by kernels."""

    def positions(self) -> jax.Array:
        """Returns the position of each item."""
        return jnp.arange(self.n, dtype=self.index_dtype)

    def counts(self, dtype: DTypeLike) -> jax.Array:
        """Returns each result's number of items."""
        return self.combine(Kind.ADD, jnp.ones((self.n,), self.index_dtype)).astype(dtype)

    def places(self, last: bool) -> jax.Array:
        """Returns each result's first or last position, -1 if there is none."""
        found = self.combine(Kind.MAX if last else Kind.MIN, self.positions())
        return jnp.maximum(found, -1) if last else jnp.where(found == jnp.iinfo(found.dtype).max, -1, found)

    def take(self, x: jax.Array, places: jax.Array) -> jax.Array:
        """Returns rows at distinct positions; 0 at -1."""
        return take_or_fill(x, places, unique=True)

    @abc.abstractmethod
    def spread(self, results: jax.Array) -> jax.Array:
        """Returns, for each item, the result of its group; 0 for items in no group."""

    @abc.abstractmethod
    def median(self, x: jax.Array) -> jax.Array:
        """Returns the median of the items `[n]`."""

    @abc.abstractmethod
    def distinct(self, x: jax.Array) -> jax.Array:
        """Returns each result's number of distinct items."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of a pytree, and how it is combined.

    Args:
      argument: its name in errors.
      x: the array for kernels, `[n]` or `[n, width]`; for operators in `OF_ANY_DTYPE`, `[n, *trailing]`.
      kind: the kernels' operator.
      wide: whether kernels' results have a wider type than `x`.
      mean: whether to divide sums by numbers of items.
      trailing: the shape of an item.
      dtype: the dtype of the results.
      fill: the value where there is no result: 0, or -1 for indices.
      made: computes operators that kernels lack by the reductions of a `Grouping`.
      ddof: the number that a variance subtracts from the number of items.
    """

    argument: str
    x: jax.Array
    kind: Kind
    wide: bool
    mean: bool
    trailing: tuple[int, ...]
    dtype: np.dtype
    fill: int
    made: Callable[[Leaf, Grouping], jax.Array] | None = None
    ddof: float = 0

    @property
    def rows(self) -> jax.Array:
        """`x` as `[n, width]`."""
        return self.x.reshape(self.x.shape[0], math.prod(self.trailing))

    @property
    def converted(self) -> Leaf:
        """The leaf in the type of its sums."""
        return dataclasses.replace(self, x=self.x.astype(wide_dtype(self.x.dtype)), wide=False) if self.wide else self

    @property
    def is_empty(self) -> bool:
        """Whether items have no elements."""
        return math.prod(self.trailing) == 0

    def reduced(self, grouping: Grouping) -> jax.Array:
        """Returns the results of a reduction."""
        if self.is_empty and self.made not in OF_ANY_DTYPE.values():
            return self.nothing(grouping.leading)
        if self.made is not None:
            return self.made(self, grouping)
        combined = grouping.combine(self.kind, self.x, self.wide)
        return self.results(combined, grouping.leading, lambda: grouping.counts(combined.dtype))

    def results(self, combined: jax.Array, leading: tuple[int, ...], counts: Callable[[], jax.Array]) -> jax.Array:
        """Returns results `[*leading, *trailing]` from the kernels' output; `counts` are numbers of items."""
        combined = combined.reshape(*leading, *self.trailing)
        if self.mean:
            combined = quotient(combined, counts())
        return combined.astype(self.dtype)

    def nothing(self, leading: tuple[int, ...]) -> jax.Array:
        """Returns results of items without elements."""
        return jnp.zeros((*leading, *self.trailing), self.dtype)


# ---- Operators that are made of others -------------------------------------------------------------------------------


def _result(leaf: Leaf, grouping: Grouping, values: jax.Array) -> jax.Array:
    return values.reshape(*grouping.leading, *leaf.trailing).astype(leaf.dtype)


def _variance(leaf: Leaf, grouping: Grouping) -> jax.Array:
    """Returns the variance, in two passes over the items minus their smallest.

    Without that subtraction, the rounding of the mean can exceed the differences of nearly equal items.
    """
    inside = grouping.spread(jnp.ones(grouping.leading, jnp.uint8)) > 0
    inside = _like_rows(inside, leaf.x)
    minima = grouping.spread(grouping.combine(Kind.MIN, jax.lax.stop_gradient(leaf.x)))
    is_integer = jnp.issubdtype(leaf.x.dtype, jnp.integer)
    exact = jnp.dtype(f"uint{8 * leaf.x.dtype.itemsize}") if is_integer else leaf.x.dtype
    excess = jnp.where(inside, leaf.x.astype(exact) - minima.astype(exact), 0).astype(accumulator_dtype(leaf.dtype))
    sums = grouping.combine(Kind.ADD, excess)
    counts = _like_rows(grouping.counts(sums.dtype), sums)
    differences = jnp.where(inside, excess - grouping.spread(sums / jnp.maximum(counts, 1)), 0)
    squares = grouping.combine(Kind.ADD, product(differences, differences))
    freedom = jnp.broadcast_to(counts - leaf.ddof, squares.shape)
    is_free = freedom > 0
    return _result(leaf, grouping, jnp.where(is_free, squares / jnp.where(is_free, freedom, 1), jnp.nan))


def _like_rows(x: jax.Array, like: jax.Array) -> jax.Array:
    return x.reshape(*x.shape, *[1] * (like.ndim - x.ndim))


def _deviation(leaf: Leaf, grouping: Grouping) -> jax.Array:
    variance = _variance(dataclasses.replace(leaf, dtype=accumulator_dtype(leaf.dtype)), grouping)
    is_positive = variance > 0
    root = jnp.sqrt(jnp.where(is_positive, variance, 1))
    return jnp.where(is_positive, root, variance).astype(leaf.dtype)


def _count(leaf: Leaf, grouping: Grouping) -> jax.Array:
    return grouping.counts(leaf.dtype)


def _end(leaf: Leaf, grouping: Grouping, last: bool) -> jax.Array:
    plain, restore = plain_leaves([leaf.x])
    return restore([grouping.take(plain[0], grouping.places(last))])[0]


def _of_columns(leaf: Leaf, grouping: Grouping, of_column: Callable[[jax.Array], jax.Array]) -> jax.Array:
    of_rows = of_column if leaf.x.ndim == 1 else jax.vmap(of_column, in_axes=1, out_axes=-1)
    return _result(leaf, grouping, of_rows(leaf.x))


def _nan_mean(leaf: Leaf, grouping: Grouping) -> jax.Array:
    """Returns the mean of items that are not NaN; NaN if there are none."""
    counts = grouping.combine(Kind.ADD, (~jnp.isnan(leaf.x)).astype(grouping.index_dtype))
    sums = grouping.combine(Kind.ADD, _without_nan(leaf.x, 0), leaf.wide)
    return _result(leaf, grouping, quotient(sums, counts))


def _without_nan(x: jax.Array, instead: ArrayLike) -> jax.Array:
    return jnp.where(jnp.isnan(x), jnp.array(instead, x.dtype), x)


def _nan_extremum(leaf: Leaf, grouping: Grouping) -> jax.Array:
    """Returns the extremum of items that are not NaN; NaN if there are none."""
    found = grouping.combine(leaf.kind, _without_nan(leaf.x, jnp.inf if leaf.kind == Kind.MIN else -jnp.inf))
    exists = grouping.combine(Kind.OR, ~jnp.isnan(leaf.x))
    return _result(leaf, grouping, jnp.where(exists, found, jnp.nan))


# Functions that compute operators which kernels lack. Operators of any dtype compute nothing with the items' values.
Make = Callable[[Leaf, Grouping], jax.Array]
OF_ANY_DTYPE: dict[str, Make] = {
    "count": _count,
    "first": functools.partial(_end, last=False),
    "last": functools.partial(_end, last=True),
}
OF_NUMBERS: dict[str, Make] = {
    "var": _variance,
    "std": _deviation,
    "median": lambda leaf, grouping: _of_columns(leaf, grouping, grouping.median),
    "nunique": lambda leaf, grouping: _of_columns(leaf, grouping, grouping.distinct),
}
# For integers and bools, each is the operator named in its pair. For floats, `nansum` replaces NaNs by 0.
WITHOUT_NAN: dict[str, tuple[str, Make | None]] = {
    "nansum": ("add", None),
    "nanmean": ("mean", _nan_mean),
    "nanmin": ("min", _nan_extremum),
    "nanmax": ("max", _nan_extremum),
}
NAMES = (*SCANNED_NAMES, *OF_ANY_DTYPE, *OF_NUMBERS, *WITHOUT_NAN)
GIVE_FLOATS = ("mean", "var", "std", "median")


def over_devices(
    leaf: Leaf,
    run: Callable[[Kind, jax.Array], Sequence[jax.Array]],
    leading: Sequence[tuple[int, ...]],
    dtype: DTypeLike,
) -> list[jax.Array]:
    """Returns a leaf's results over a mesh axis, with these leading axes. `dtype` is the type of numbers of items.

    `run` combines `[n]` or `[n, width]` by an operator.
    """
    if leaf.is_empty:
        return [leaf.nothing(shape) for shape in leading]
    combined = run(leaf.kind, leaf.converted.x)
    counts = run(Kind.ADD, jnp.ones(leaf.x.shape[:1], dtype)) if leaf.mean else combined
    return [
        leaf.results(part, shape, lambda number=number: number)  # type: ignore[misc]
        for part, shape, number in zip(combined, leading, counts, strict=True)
    ]


def named_leaves(
    operation: str,
    argument: str,
    x: Pytree,
    op: OperatorTree | PairFunction,
    identity: Pytree = None,
    devices: int = 1,
    takes_functions: bool = True,
    scanned: bool = False,
    made: bool = True,
    dtype: DTypeLike | None = None,
    ddof: float = 0,
) -> tuple[list[Leaf], Callable[[Sequence[Any]], Any], int]:
    """Returns the leaves of a pytree `[n, ...]`, the function that rebuilds it from results, and n.

    `op` is a name, or a pytree of names that matches x or a prefix of its structure. Counts and indices have a dtype
    that suffices for the items of all `devices`. Sums and products of integers have the type `sum_dtype`, unless a
    dtype is given or they are `scanned`. `made` allows operators that a `Grouping` computes.
    """
    if isinstance(x, (list, tuple)) and x and all(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(x)):
        x = as_array(operation, argument, x)
    structure: PyTreeDef
    paths, structure = jax.tree_util.tree_flatten_with_path(x)
    if not paths:
        paths, structure = [((), x)], jax.tree.structure(0)
    names = _names(operation, op, x, structure, takes_functions, NAMES if made and not scanned else SCANNED_NAMES)
    expect_ddof(operation, ddof, names)
    if identity is not None:
        raise value_error(operation, "identity", f"None, because {names[0] if names else 'op'} has its own", "a value")
    leaves: list[Leaf] = []
    n = 0
    for (path, leaf), name in zip(paths, names, strict=True):
        place = argument + jax.tree_util.keystr(path)
        array = as_array(operation, place, leaf)
        if array.ndim == 0:
            raise value_error(operation, place, "an array with a leading axis", describe(array))
        if leaves and array.shape[0] != n:
            expected = f"arrays with the leading axis of the first array, {n}"
            raise value_error(operation, place, expected, describe(array))
        n = array.shape[0]
        leaves.append(_leaf(operation, place, array, name, devices * n, not scanned, dtype, ddof))
    return leaves, structure.unflatten, n


def _names(
    operation: str,
    op: OperatorTree | PairFunction,
    x: Pytree,
    structure: PyTreeDef,
    takes_functions: bool,
    known: Sequence[str],
) -> list[str]:
    if isinstance(op, str):
        names = [op] * structure.num_leaves
    else:
        given: list[Any] = []
        try:
            jax.tree.map(lambda name, part: given.extend([name] * len(jax.tree.leaves(part))), op, x)
        except ValueError as error:
            raise value_error(operation, "op", f"names in the structure of x, {structure}", repr(op)) from error
        names = given
    for name in names:
        expect_name(operation, name, known, takes_functions)
    return names


def expect_name(operation: str, name: object, names: Sequence[str], takes_functions: bool = True) -> None:
    """Raises unless this names an operator; the error says whether a function may take its place."""
    if isinstance(name, str) and name in names:
        return
    expect_no_array_function(operation, name, takes_functions)
    expected = f"one of {', '.join(names)}" + ", or a function of two items" * takes_functions
    instead = " (group_by takes functions too)" if callable(name) else ""
    raise value_error(operation, "op", expected, repr(name) + instead)


def expect_ddof(operation: str, ddof: object, names: Sequence[str] | None) -> None:
    """Checks `ddof`: a static number, which is 0 if `names` are given without "var" and "std"."""
    is_number = isinstance(ddof, (int, float, np.integer, np.floating))
    if not is_number or isinstance(ddof, (bool, np.timedelta64)):
        raise type_error(operation, "ddof", "a static number", describe_static(ddof))
    if names is not None and ddof and not {"var", "std"} & set(names):
        raise value_error(operation, "ddof", "0 where op is not 'var' or 'std'", ddof)


def _leaf(
    operation: str,
    argument: str,
    x: jax.Array,
    name: str,
    n: int,
    widens: bool,
    convert_to: DTypeLike | None,
    ddof: float,
) -> Leaf:
    """Returns an array, converted to what its operator combines; n is the number of all items."""
    if name in OF_ANY_DTYPE:
        x = whole_axes(x if convert_to is None else _numbers(operation, argument, x, convert_to))
        dtype = index_dtype(operation, argument, n) if name == "count" else x.dtype
        return Leaf(argument, x, Kind.ADD, False, False, x.shape[1:], dtype, 0, OF_ANY_DTYPE[name])
    if name in WITHOUT_NAN:
        name, made = WITHOUT_NAN[name]
        leaf = _leaf(operation, argument, x, name, n, widens, convert_to, ddof)
        if not jnp.issubdtype(leaf.x.dtype, jnp.floating):
            return leaf
        return dataclasses.replace(leaf, made=made, x=leaf.x if made else _without_nan(leaf.x, 0))
    x = _numbers(operation, argument, x, convert_to)
    is_bool, is_float = x.dtype == jnp.bool_, jnp.issubdtype(x.dtype, jnp.floating)

    def expect(holds: bool, expected: str) -> None:
        if not holds:
            place, got = (argument, describe(x)) if convert_to is None else ("dtype", x.dtype.name)
            raise type_error(operation, place, f"{expected} for {name!r}", got)

    kind, wide = KINDS.get(name, Kind.ADD), False
    items, dtype = whole_axes(x), x.dtype
    if name in GIVE_FLOATS:
        expect(is_float or convert_to is None, "floats")
        dtype = x.dtype if is_float else jnp.result_type(float)
    if name in OF_NUMBERS:
        items, dtype = _of_numbers(items, name, dtype, index_dtype(operation, argument, n))
    elif name in ("any", "all"):
        items, dtype = (items if is_bool else items != 0), np.dtype(bool)
    elif name in ("and", "or", "xor"):
        expect(not is_float, "integers or bools")
    elif name == "logsumexp":
        expect(is_float, "floats")
    elif name == "mean":
        wide = is_float and x.dtype.itemsize < 4
        items = items.astype(dtype)
    elif is_bool:
        items, kind, dtype = _of_bools(operation, argument, items, kind, n)
    elif kind in (Kind.ADD, Kind.MUL) and widens and convert_to is None and not is_float:
        dtype = sum_dtype(x.dtype)
        wide = dtype != x.dtype
    if kind.gives_index:
        dtype = index_dtype(operation, argument, n)
    width = math.prod(x.shape[1:])
    rows = items.reshape(x.shape[0]) if width == 1 else items.reshape(x.shape[0], width)
    fill, made = -1 if kind.gives_index else 0, OF_NUMBERS.get(name)
    return Leaf(argument, rows, kind, wide, name == "mean", x.shape[1:], np.dtype(dtype), fill, made, ddof)


def _of_numbers(items: jax.Array, name: str, dtype: DTypeLike, index: np.dtype) -> tuple[jax.Array, Any]:
    """Returns the items for an operator of `OF_NUMBERS`, and the type of its results."""
    items = items.astype(jnp.uint8) if items.dtype == jnp.bool_ else items
    if name in ("var", "std"):
        items = items.astype(accumulator_dtype(items.dtype))
    return items, index if name == "nunique" else dtype


def _of_bools(operation: str, argument: str, items: jax.Array, kind: Kind, n: int) -> tuple[jax.Array, Kind, Any]:
    """Returns the array that kernels combine instead of bools, the operator, and the type of the results."""
    if kind == Kind.ADD:  # the count has the type of `jnp.sum`, or a wider one that holds n
        dtype = np.promote_types(sum_dtype(items.dtype), index_dtype(operation, argument, n))
        return items.astype(dtype), kind, dtype
    if kind.gives_index:
        return items.astype(jnp.uint8), kind, items.dtype
    dtype = sum_dtype(items.dtype) if kind == Kind.MUL else items.dtype
    return items, Kind.OR if kind == Kind.MAX else Kind.AND, dtype


def _numbers(operation: str, argument: str, x: jax.Array, convert_to: DTypeLike | None) -> jax.Array:
    """Returns numbers or bools, of the requested dtype; JAX warns of 64 bits without x64."""
    if x.dtype.name not in KEY_DTYPES and x.dtype != jnp.bool_:
        raise type_error(operation, argument, NUMBERS, describe(x))
    return x if convert_to is None else x.astype(convert_to)


def quotient(sums: jax.Array, counts: jax.Array) -> jax.Array:
    """Divides sums by numbers of items; NaN if there are none."""
    items = jnp.broadcast_to(_like_rows(counts.astype(sums.dtype), sums), sums.shape)
    return _divide(sums=sums.reshape(-1), items=items.reshape(-1))[0].reshape(sums.shape)


def _exact_quotient(sums: jax.Array, items: jax.Array) -> Sequence[jax.Array]:
    """Returns quotients without the error that XLA's multiplication by a reciprocal has.

    XLA so divides by a constant or a broadcast number. It cannot simplify this divisor: the maximum of the number and
    a number that is at most 0.
    """
    quotients = sums / jnp.maximum(items, -jnp.abs(sums))
    return [corrected_quotient(quotients, sums, items) if sums.dtype == jnp.float32 else quotients]


def corrected_quotient(quotients: jax.Array, sums: jax.Array, items: jax.Array) -> jax.Array:
    """Corrects float32 quotients, which a GPU may round wrongly, by a step of Newton's method.

    The remainder must be exact. So both factors are split into halves of 12 bits, whose products are exact with and
    without fused multiplication. If the remainder is not finite, the quotient stays.
    """
    (q, q_rest), (n, n_rest) = _halves(quotients), _halves(items.astype(sums.dtype))
    remainders = sums - q * n - q * n_rest - q_rest * n - q_rest * n_rest
    return jnp.where(jnp.isfinite(remainders) & (remainders != 0), quotients + remainders / items, quotients)


def _halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Splits float32 numbers into a high and a low part, which add up to them."""
    words = jax.lax.bitcast_convert_type(x, jnp.uint32) & jnp.uint32(0xFFFFF000)
    high = jax.lax.bitcast_convert_type(words, jnp.float32)
    return high, x - high


# An operation, because JAX cannot see that the corrected quotient is linear in the sums.
_divide = Operation(
    "divide",
    operands={"sums": 1, "items": 1},
    results=("means",),
    shapes=lambda sums: [sums],
    fallback=_exact_quotient,
    only="",
)
_divide.def_linear(sums=lambda cotangents, operands: _divide.run(operands._replace(sums=cotangents[0]))[0])
