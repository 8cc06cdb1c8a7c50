"""Sorts by a comparator in plain JAX.

Values that depend on one of the comparator's two items become columns, computed once per item. Values that depend on
both are left for the comparisons. If the comparator compares a few columns one after the other, the order is that of a
tuple of keys, which `Sort` sorts. Other comparisons are rewritten for scalars, as XLA's sort requires. If that is not
possible, or if XLA's sort would be slow or fail, runs of items are merged in rounds. In each round, all items of first
runs search their second runs at the same time.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jax_mgpu._src.arguments.annotations import Aval, DTypeLike
from jax_mgpu._src.arguments.check import index_dtype
from jax_mgpu._src.arguments.counts import live_mask, segment_numbers
from jax_mgpu._src.core.compat import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    LoweringContext,
    Primitive,
    automatic,
    automatic_batches,
    batching,
    broadcast,
    compile_eagerly,
    evaluate,
    evaluate_equation,
    fori_loop,
    free_of_explicit_axes,
    interpret,
    ir,
    mlir,
    partition_spec,
    reconcile_vma,
    sort_by_region,
    surely,
    vary_as,
)
from jax_mgpu._src.core.operation import ABSENT, Keyed
from jax_mgpu._src.functions.emit.along_axes import FOLDS
from jax_mgpu._src.functions.emit.elementwise import COSTLY, FUNCTIONS
from jax_mgpu._src.functions.emit.jaxpr import SAME_VALUE, called
from jax_mgpu._src.functions.emit.moves import MOVES
from jax_mgpu._src.functions.emit.scalars import MAX_ITEM_SCALARS, MAX_SCALARS, Unsupported, scalar_type
from jax_mgpu._src.keys.bits import is_random_key
from jax_mgpu._src.keys.columns import MAX_COLUMNS, expect_keys
from jax_mgpu._src.ops.scan import scan
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sort_primitives import Method

FIRST, SECOND, BOTH = 1, 2, 3  # a bitmap of the items on which a value depends
# The most columns that XLA's sort gets, because it moves all of them; merges move indices. On a CPU, the column of
# segments counts too.
MAX_SORTED = 32
MAX_SORTED_ON_CPU = 4


def plain_sort_indices(
    less: Callable[..., Any], leaves: Sequence[jax.Array], heads: jax.Array, flags: jax.Array, count: jax.Array
) -> jax.Array:
    """Returns the stable order within segments, as indices.

    Args:
      less: whether the first item comes first, by the leaves of both.
      leaves: `[n, ...]`.
      heads: as in `Sort`.
      flags: as in `Sort`.
      count: as in `Sort`.
    """
    n = leaves[0].shape[0]
    if surely(lambda: n < 2):
        return jnp.arange(n, dtype=index_dtype("sort", "keys", n))
    leaves = [jnp.asarray(jax.lax.stop_gradient(leaf)) for leaf in leaves]
    leaves = [vary_as(leaf, *leaves, heads, flags, count) for leaf in leaves]
    item: list[Any] = [leaf[0] for leaf in leaves]  # under shard_map, types tell what varies
    if jax.sharding.get_abstract_mesh().explicit_axes:
        item = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in item]
    with free_of_explicit_axes():
        closed = jax.make_jaxpr(less)(*item, *item)
    try:
        return _indices_by_parts(closed, leaves, heads, flags, count)
    except Unsupported:
        pass

    def merged(leaves: Sequence[jax.Array], consts: Sequence[Any], *segments: jax.Array) -> jax.Array:
        precedes = functools.partial(evaluate, closed.jaxpr, consts)
        return _merge_sort_indices(lambda *both: precedes(*both)[0], leaves, *segments)

    consts = [jax.lax.stop_gradient(const) for const in closed.consts]
    return automatic_batches(merged)(leaves, consts, heads, flags, count)


def compares_keys(closed: ClosedJaxpr, leaves: int) -> bool:
    """Whether a comparator compares keys, so that a sort of columns can replace it."""
    try:
        return _Comparison(closed, leaves).as_keys() is not None
    except Unsupported:
        return False


def compare_all(less: Callable[..., Any], a: Sequence[jax.Array], b: Sequence[jax.Array]) -> jax.Array:
    """Returns the comparator's result for each pair."""
    if not jax.sharding.get_abstract_mesh().explicit_axes:
        result: jax.Array = jax.vmap(less)(*a, *b)
        return result
    item = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in (*a, *b)]
    with free_of_explicit_axes():
        closed = jax.make_jaxpr(less)(*item)

    def compared(consts: Sequence[Any], pairs: Sequence[jax.Array]) -> jax.Array:
        result: jax.Array = jax.vmap(lambda *pair: evaluate(closed.jaxpr, consts, *pair)[0])(*pairs)
        return result

    return automatic_batches(compared)([jax.lax.stop_gradient(const) for const in closed.consts], [*a, *b])


def _indices_by_parts(
    closed: ClosedJaxpr, leaves: Sequence[jax.Array], heads: jax.Array, flags: jax.Array, count: jax.Array
) -> jax.Array:
    """`plain_sort_indices` for a traced comparator that can be taken apart."""
    n = leaves[0].shape[0]
    dtype = index_dtype("sort", "keys", n)
    with free_of_explicit_axes():
        comparison = _Comparison(closed, len(leaves))
        keys = comparison.as_keys()
        is_segmented = bool(heads.size or flags.size or count.size)
        program = comparison.program(dtype, segmented=is_segmented) if keys is None else None
    if count.size:  # copies of the first item replace items past the count
        live = live_mask(n, count)
        leaves = [jnp.where(live.reshape(n, *[1] * (leaf.ndim - 1)), leaf, leaf[:1]) for leaf in leaves]
    columns = comparison.columns_of(leaves)
    if keys is None:
        assert program is not None
        positions = jnp.arange(n, dtype=dtype)
        segments = segment_numbers(positions, heads, flags, count)
        return _sort_by_program(program, [*([] if segments is None else [segments]), *columns, positions])
    chosen: Any = tuple(columns[column] for column, _ in keys)
    directions: Any = tuple(is_down for _, is_down in keys)
    if len(keys) == 1:
        (chosen,), (directions,) = chosen, directions
    checked, descending = expect_keys("sort", "keys", chosen, directions)
    method = Method.MERGING if heads.size or flags.size else Method.FASTEST
    order: jax.Array = Sort("sort", checked, descending, count, heads, flags, method).indices()[1]
    return order


# ---- Merges


def _merge_sort_indices(
    less: Callable[..., Any], leaves: Sequence[jax.Array], heads: jax.Array, flags: jax.Array, count: jax.Array
) -> jax.Array:
    """`plain_sort_indices` for any comparator, which `jax.vmap` maps over all items.

    Runs double in each round. Binary searches count, for each item of a first run, the items of the second run before
    it; the second run's items fill the remaining places. That takes O(n log^2 n) comparisons.
    """
    n = leaves[0].shape[0]
    dtype = index_dtype("sort", "keys", n)
    segments = segment_numbers(jnp.arange(n, dtype=dtype), heads, flags, count)
    compare = jax.vmap(less)
    rounds = (n - 1).bit_length()
    places = vary_as(jnp.arange(1 << rounds, dtype=dtype), *leaves)
    half = places[: 1 << (rounds - 1)]

    def taken(items: jax.Array) -> list[jax.Array]:
        """Returns the leaves and segments of items; the first item stands in for the padding of the last run."""
        inside = jnp.where(items < n, items, 0)
        return [*(leaf[inside] for leaf in leaves), *([] if segments is None else [segments[inside]])]

    def comes_before(a: jax.Array, b: jax.Array, a_taken: Sequence[jax.Array], b_taken: Sequence[jax.Array]) -> Any:
        # Places past the end, which pad the last run, come last, in order.
        both, by_segment = (a < n) & (b < n), jnp.zeros(a.shape, bool)
        if segments is not None:
            (*a_taken, a_of), (*b_taken, b_of) = a_taken, b_taken
            by_segment, both = both & (a_of < b_of), both & (a_of == b_of)
        # The first item stands in for both items of a pair that the comparator does not decide.
        pair = [
            jnp.where(both.reshape(-1, *[1] * (x.ndim - 1)), x, leaf[:1])
            for taken in (a_taken, b_taken)
            for x, leaf in zip(taken, leaves, strict=True)
        ]
        return by_segment | (both & compare(*pair)) | ((a < n) & (b >= n))

    def merge(round: jax.Array, order: jax.Array) -> jax.Array:
        width = jnp.left_shift(jnp.asarray(1, dtype), jnp.asarray(round, dtype))

        def in_first(item: jax.Array) -> jax.Array:
            """Returns the place of an item, which is numbered among those of all first runs."""
            return 2 * item - (item & (width - 1))

        begin = 2 * (half & ~(width - 1))
        own = order[in_first(half)]
        own_taken = taken(own)

        def narrow(_: jax.Array, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = ends
            middle = (low + high) // 2
            theirs = order[jnp.minimum(begin + width + middle, places.shape[0] - 1)]
            precedes = comes_before(theirs, own, taken(theirs), own_taken)
            is_open = low < high
            return jnp.where(is_open & precedes, middle + 1, low), jnp.where(is_open & ~precedes, middle, high)

        none = vary_as(jnp.zeros_like(half), half)
        before, _ = fori_loop(0, round + 1, narrow, (none, none + width))
        # An inconsistent comparator may give a later item a smaller count; with the maximum, places are distinct.
        before = scan(begin + before, "max") + (half & (width - 1))
        is_first = jnp.zeros(places.shape, bool).at[before].set(True, unique_indices=True, mode="promise_in_bounds")
        firsts = scan(is_first.astype(dtype))
        return order[jnp.where(is_first, in_first(firsts - 1), in_first(places - firsts) + width)]

    return fori_loop(0, rounds, merge, places)[:n]


# ---- Taking a comparator apart


@dataclasses.dataclass(frozen=True, eq=False)
class _Value:
    """A value that a comparator computes.

    Args:
      origin: the items on which it depends: 0, `FIRST`, `SECOND` or `BOTH`.
      number: an id. Values with equal ids are the same function of their item.
      constant: its value, if known.
    """

    aval: Any
    origin: int
    number: Any
    constant: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class _Step:
    jaxpr: Any
    equation: Any
    inputs: tuple[_Value, ...]
    outputs: tuple[_Value, ...]

    def applied(self, arguments: Sequence[Any]) -> list[Any]:
        return evaluate_equation(self.jaxpr, self.equation, arguments)


class _Comparison:
    """A comparator in parts.

    The parts are steps that use one item, steps that use both items, and columns: the values of one item that steps of
    both items take.
    """

    def __init__(self, closed: ClosedJaxpr, leaves: int):
        self.captured: dict[Any, Any] = {}
        self.item_steps: list[_Step] = []
        self.pair_steps: list[_Step] = []
        self._numbers: dict[Any, tuple[_Value, ...]] = {}
        avals = closed.in_avals[:leaves]
        items = [_Value(aval, origin, ("leaf", i)) for origin in (FIRST, SECOND) for i, aval in enumerate(avals)]
        self.leaves = items[:leaves]
        (self.result,) = self._walk(closed.jaxpr, [self._of_capture(const) for const in closed.consts], items)
        passed = [x for step in self.pair_steps for x in step.inputs] + [self.result]
        # Keyed by number, so that one column serves both items.
        self.passed = {x.number: x for x in passed if x.origin != BOTH and x.constant is None}
        for value in self.passed.values():
            _expect_scalars(value.aval)
        self.scalars = [
            (number, index) for number, value in self.passed.items() for index in np.ndindex(*value.aval.shape)
        ]
        if len(self.scalars) > MAX_SORTED:
            raise Unsupported(f"comparisons of {len(self.scalars)} scalars, more than {MAX_SORTED}")

    def _of_capture(self, const: Any) -> _Value:
        aval = jax.typeof(const)
        is_known = not isinstance(const, jax.core.Tracer) and not is_random_key(aval.dtype)
        if is_known and np.size(const) <= MAX_ITEM_SCALARS:
            return _known(aval, np.asarray(const))
        number = ("capture", len(self.captured))
        self.captured[number] = jax.lax.stop_gradient(const)
        return _Value(aval, 0, number)

    def _walk(self, jaxpr: Jaxpr, consts: Sequence[_Value], arguments: Sequence[_Value]) -> list[_Value]:
        if jaxpr.effects:
            raise Unsupported(f"effects, {', '.join(sorted(map(str, jaxpr.effects)))}")

        def step(equation: JaxprEqn, inputs: Sequence[_Value]) -> Sequence[_Value]:
            if (body := called(equation)) is None:
                return self._step(jaxpr, equation, inputs)
            return self._walk(body[0], [self._of_capture(const) for const in body[1]], inputs)

        return interpret(jaxpr, consts, arguments, lambda literal: _known(literal.aval, _of_literal(literal)), step)

    def _step(self, jaxpr: Jaxpr, equation: JaxprEqn, inputs: Sequence[_Value]) -> Sequence[_Value]:
        origin = functools.reduce(operator.or_, [x.origin for x in inputs], 0)
        avals: list[Any] = [var.aval for var in equation.outvars]
        if origin == BOTH:
            outputs = tuple(_Value(aval, BOTH, object()) for aval in avals)
            self.pair_steps.append(_Step(jaxpr, equation, tuple(inputs), outputs))
            return outputs
        is_known = all(x.constant is not None for x in inputs)
        if is_known and equation.primitive.name in SAME_VALUE:
            return inputs
        if is_known and all(aval.size <= MAX_SCALARS and not is_random_key(aval.dtype) for aval in avals):
            with jax.ensure_compile_time_eval():
                found = _Step(jaxpr, equation, tuple(inputs), ()).applied([x.constant for x in inputs])
            return [_known(aval, np.asarray(x)) for aval, x in zip(avals, found, strict=True)]
        key = (equation.primitive, _structural_key(equation.params), tuple(x.number for x in inputs))
        if key not in self._numbers:
            made = len(self._numbers)
            self._numbers[key] = tuple(_Value(aval, origin, ("step", made, i)) for i, aval in enumerate(avals))
            self.item_steps.append(_Step(jaxpr, equation, tuple(inputs), self._numbers[key]))
        return [dataclasses.replace(x, origin=origin) for x in self._numbers[key]]

    def columns_of(self, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the columns of all items. Bools become bytes: XLA's CPU sort crashes if it only moves a bool."""

        def passed(item: Sequence[Any], captured: Sequence[Any]) -> list[Any]:
            values = {x.number: leaf for x, leaf in zip(self.leaves, item, strict=True)}
            values.update(zip(self.captured, captured, strict=True))

            def read(x: _Value) -> Any:
                return values[x.number] if x.constant is None else x.constant

            for step in self.item_steps:
                results = step.applied([read(x) for x in step.inputs])
                values.update((x.number, result) for x, result in zip(step.outputs, results, strict=True))
            return [values[number] for number in self.passed]

        # `automatic_batches` needs all arrays that may have a sharding as arguments, so captured values are among them.
        of_all = automatic_batches(jax.vmap(passed, in_axes=(0, None)))
        columns = []
        for x in of_all(list(leaves), list(self.captured.values())):
            rows = (x.astype(jnp.uint8) if x.dtype == jnp.bool_ else x).reshape(x.shape[0], -1)
            columns += [rows[:, i] for i in range(rows.shape[1])]
        return columns

    def compared(self, scalars: _Scalars, first: Sequence[Any], second: Sequence[Any]) -> Any:
        """Returns the result for a pair, by the columns of both items."""
        values: dict[Any, np.ndarray] = {}
        for origin, given in ((FIRST, first), (SECOND, second)):
            for number, value in self.passed.items():
                values[origin, number] = np.empty(value.aval.shape, object)
            for (number, index), scalar in zip(self.scalars, given, strict=True):
                values[origin, number][index] = scalar

        def read(x: _Value) -> np.ndarray:
            return _taken_apart(x.constant) if x.constant is not None else values[x.origin or FIRST, x.number]

        for step in self.pair_steps:
            results = scalars.equation(step.equation, [read(x) for x in step.inputs])
            values.update(((BOTH, x.number), result) for x, result in zip(step.outputs, results, strict=True))
        return read(self.result).item()

    def as_keys(self) -> list[tuple[int, bool]] | None:
        """Returns the column of each key, and whether it is descending; None if the comparator compares no keys."""
        count = len(self.scalars)
        if not 0 < count <= MAX_COLUMNS or self.result.origin != BOTH:
            return None
        sides = [[_Side(origin, column, count) for column in range(count)] for origin in (FIRST, SECOND)]
        try:
            truth = np.broadcast_to(self.compared(_Outcomes(), *sides), (3,) * count)
        except Unsupported:
            return None
        keys = []
        while truth.any():
            for column in range(count):
                less, greater = truth.take(0, column), truth.take(-1, column)
                if (less.all() and not greater.any()) or (greater.all() and not less.any()):
                    keys.append((column, bool(greater.all())))
                    truth = truth.take([truth.shape[column] // 2], column)
                    break
            else:
                return None
        return keys or None

    def program(self, position_dtype: DTypeLike, *, segmented: bool) -> Keyed:
        """Returns a sort's comparator, which takes the segments, columns and positions of two items."""
        position = jax.ShapeDtypeStruct((), position_dtype)
        dtypes = [self.passed[number].aval.dtype for number, _ in self.scalars]
        columns = [jax.ShapeDtypeStruct((), jnp.uint8 if dtype == jnp.bool_ else dtype) for dtype in dtypes]
        segment = [position] * segmented

        def precedes(*both: jax.Array) -> Any:
            (*a, _), (*b, _) = both[: len(both) // 2], both[len(both) // 2 :]
            items = ([x.astype(d) for x, d in zip(y[len(segment) :], dtypes, strict=True)] for y in (a, b))
            by_less = jnp.asarray(self.compared(_Scalars(), *items))
            return (a[0] < b[0]) | ((a[0] == b[0]) & by_less) if segmented else by_less

        item = [*segment, *columns, position]
        closed = jax.make_jaxpr(precedes)(*item, *item)
        return Keyed(_structural_key(closed), closed)


def _known(aval: Aval, value: np.ndarray) -> _Value:
    return _Value(aval, 0, (value.dtype.name, value.shape, value.tobytes()), value)


def _of_literal(literal: Any) -> np.ndarray:
    return np.asarray(literal.val, literal.aval.dtype)


def _structural_key(x: Any) -> Any:
    """Returns a key: jaxprs or parameters with equal keys have the same meaning."""
    if hasattr(x, "eqns"):
        jaxpr = getattr(x, "jaxpr", x)
        numbers = itertools.count()
        places: dict[Any, int] = dict(zip([*jaxpr.constvars, *jaxpr.invars], numbers, strict=False))
        avals: list[Any] = [var.aval for var in places]
        lines: list[Any] = [tuple((aval.dtype, aval.shape) for aval in avals)]

        def place(atom: Any) -> Any:
            return _known(atom.aval, _of_literal(atom)).number if hasattr(atom, "val") else places[atom]

        for equation in jaxpr.eqns:
            lines.append((equation.primitive, _structural_key(equation.params), tuple(map(place, equation.invars))))
            places.update((var, next(numbers)) for var in equation.outvars)
        return (*lines, tuple(map(id, getattr(x, "consts", ()))), tuple(map(place, jaxpr.outvars)))
    if isinstance(x, dict):
        return tuple((name, _structural_key(value)) for name, value in x.items())
    if isinstance(x, (tuple, list)):
        return tuple(map(_structural_key, x))
    try:
        hash(x)
    except TypeError:
        return object()
    return x


def _taken_apart(value: Any) -> np.ndarray:
    """Returns an array of objects: the elements of an array, each with the dtype of the array."""
    scalars = np.empty(value.shape, object)
    for index in np.ndindex(*value.shape):
        scalars[index] = value[index]
    return scalars


def _expect_scalars(aval: Aval) -> None:
    scalar_type(aval.dtype)
    if aval.size > MAX_SCALARS:
        raise Unsupported(f"a value of {aval.size} scalars, more than {MAX_SCALARS}")


# ---- Comparisons of scalars

BITWISE = {"and_": "bitwise_and", "or_": "bitwise_or", "xor_": "bitwise_xor"}
ALIKE = frozenset(FUNCTIONS) | {
    *("select_n", "convert_element_type", "integer_pow", "round", "reduce_precision", "bitcast_convert_type"),
}


class _Scalars:
    """Equations over arrays whose elements are traced one by one."""

    def equation(self, equation: JaxprEqn, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        name, params = equation.primitive.name, equation.params
        avals: list[Any] = [var.aval for var in equation.outvars]
        for aval in avals:
            _expect_scalars(aval)
        shape = avals[0].shape
        if name in SAME_VALUE:
            return list(arguments)
        if name == "cond":
            return self._branches(params["branches"], *arguments)
        if name in MOVES:
            moved = MOVES[name](*arguments, **params)
            return list(moved) if equation.primitive.multiple_results else [moved]
        if name in FOLDS:
            return [self._folded(FOLDS[name], arguments[0], params["axes"], shape)]
        if name not in ALIKE or (name == "bitcast_convert_type" and shape != arguments[0].shape):
            raise Unsupported(f"the primitive {name} of both items")
        results = np.empty(shape, object)
        wide = [np.broadcast_to(x, shape) for x in arguments]
        for index in np.ndindex(*shape):
            results[index] = self.one(equation, [x[index] for x in wide])
        return [results]

    def one(self, equation: JaxprEqn, scalars: Sequence[Any]) -> Any:
        return equation.primitive.bind(*scalars, **equation.params)

    def two(self, function: str, a: Any, b: Any) -> Any:
        return getattr(jax.lax, BITWISE.get(function, function))(a, b)

    def chosen(self, which: Any, cases: Sequence[Any]) -> Any:
        chosen = cases[-1]
        for i in reversed(range(len(cases) - 1)):
            chosen = jax.lax.select(which <= jnp.asarray(i, which.dtype), cases[i], chosen)
        return chosen

    def _folded(self, function: str, x: np.ndarray, axes: Sequence[int], shape: tuple[int, ...]) -> np.ndarray:
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        rows = np.transpose(x, (*kept, *axes)).reshape(*shape, math.prod(x.shape[axis] for axis in axes))
        if rows.shape[-1] == 0:
            raise Unsupported("a reduction of nothing")
        results = np.empty(shape, object)
        for index in np.ndindex(*shape):
            results[index] = functools.reduce(functools.partial(self.two, function), rows[index])
        return results

    def _branches(self, branches: Sequence[Any], which: np.ndarray, *arguments: np.ndarray) -> list[np.ndarray]:
        cases = [self._jaxpr(branch.jaxpr, branch.consts, arguments) for branch in branches]
        results = []
        for values in zip(*cases, strict=True):
            chosen = np.empty(values[0].shape, object)
            for index in np.ndindex(*chosen.shape):
                chosen[index] = self.chosen(which.item(), [value[index] for value in values])
            results.append(chosen)
        return results

    def _jaxpr(self, jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        if jaxpr.effects or any(isinstance(const, jax.core.Tracer) for const in consts):
            raise Unsupported("a branch with effects or captured arrays")

        def step(equation: JaxprEqn, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
            body = called(equation)
            return self.equation(equation, inputs) if body is None else self._jaxpr(*body, inputs)

        apart = [_taken_apart(np.asarray(const)) for const in consts]
        return interpret(jaxpr, apart, arguments, lambda literal: _taken_apart(_of_literal(literal)), step)


@dataclasses.dataclass(frozen=True)
class _Side:
    """A column of one item; `columns` is the number of an item's columns."""

    origin: int
    column: int
    columns: int


# Entries: the results if the first item's column is less, equal, greater.
OUTCOMES = {"lt": (1, 0, 0), "le": (1, 1, 0), "eq": (0, 1, 0), "ge": (0, 1, 1), "gt": (0, 0, 1), "ne": (1, 0, 1)}
LOGIC = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "eq": np.equal, "ne": np.not_equal}


class _Outcomes(_Scalars):
    """Equations over outcomes: each bool has an axis per column, with entries for less, equal, greater."""

    def one(self, equation: JaxprEqn, scalars: Sequence[Any]) -> Any:
        """Returns one element, for all outcomes."""
        name = equation.primitive.name
        if name in OUTCOMES and all(isinstance(x, _Side) for x in scalars):
            a, b = scalars
            if a.column == b.column and a.origin != b.origin:
                shape = [1] * a.columns
                shape[a.column] = 3
                return np.array(OUTCOMES[name][:: 1 if a.origin == FIRST else -1], bool).reshape(shape)
        if not all(isinstance(x, (np.ndarray, np.bool_)) for x in scalars):
            raise Unsupported(f"{name} of columns")
        if name == "not":
            return np.logical_not(scalars[0])
        if name == "convert_element_type" and equation.params["new_dtype"] == np.bool_:
            return scalars[0]
        if name == "select_n" and len(scalars) == 2 + 1:
            return np.where(scalars[0], scalars[2], scalars[1])
        if name not in LOGIC:
            raise Unsupported(f"{name} of comparisons")
        return LOGIC[name](*scalars)

    def two(self, function: str, a: Any, b: Any) -> Any:
        if function not in ("and_", "or_", "xor_") or not all(isinstance(x, (np.ndarray, np.bool_)) for x in (a, b)):
            raise Unsupported(f"{function} of columns")
        return LOGIC[function.rstrip("_")](a, b)

    def chosen(self, which: Any, cases: Sequence[Any]) -> Any:
        raise Unsupported("cond by columns")


# ---- XLA's sort

_SORT = Primitive("comparator_sort")


def _sort_by_program(program: Keyed, operands: Sequence[jax.Array]) -> jax.Array:
    """Sorts all operands stably along their last axis; returns the last one."""
    result: jax.Array = _SORT.bind(*reconcile_vma(operands), program=program)
    return result


def _abstract(*avals: Any, program: Keyed) -> Any:
    del program
    return avals[-1]


def _batch(operands: Sequence[Any], axes: Sequence[int | None], *, program: Keyed) -> tuple[Any, int]:
    moved = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes, strict=True)]
    like = next(x for x, axis in zip(moved, axes, strict=True) if axis is not None)
    spec = partition_spec(like)
    wide = [
        x if axis is not None else broadcast(x, like.shape, range(1, like.ndim), spec)
        for x, axis in zip(moved, axes, strict=True)
    ]
    return _sort_by_program(program, wide), 0


compile_eagerly(_SORT)
_SORT.def_abstract_eval(_abstract)
batching.primitive_batchers[_SORT] = _batch


def _merged(*operands: jax.Array, program: Keyed) -> list[jax.Array]:
    precedes = functools.partial(evaluate, program.value.jaxpr, program.value.consts)

    def one_problem(*columns: jax.Array) -> jax.Array:
        return _merge_sort_indices(lambda *both: precedes(*both)[0], columns, ABSENT, ABSENT, ABSENT)

    for _ in range(operands[0].ndim - 1):
        one_problem = jax.vmap(one_problem)
    return [automatic(one_problem, PartitionSpec(*partition_spec(operands[0])))(*operands)]


def _lower_sort(ctx: LoweringContext, *operands: ir.Value[Any], program: Keyed) -> list[Any]:
    closed = program.value
    precedes = functools.partial(jax.core.eval_jaxpr, closed.jaxpr, closed.consts)
    return [sort_by_region(ctx, operands, precedes, closed.in_avals)]


_lower_merges = mlir.lower_fun(_merged, multiple_results=True)


def _lower(ctx: LoweringContext, *operands: ir.Value[Any], program: Keyed) -> Any:
    # Comparators with costly primitives go to merges, because a sine in a sort's comparator crashes XLA for GPUs.
    is_costly = any(equation.primitive.name in COSTLY for equation in program.value.jaxpr.eqns)
    return (_lower_merges if is_costly else _lower_sort)(ctx, *operands, program=program)


def _lower_on_cpu(ctx: LoweringContext, *operands: ir.Value[Any], program: Keyed) -> Any:
    is_wide = len(operands) > 1 + MAX_SORTED_ON_CPU
    return (_lower_merges if is_wide else _lower_sort)(ctx, *operands, program=program)


mlir.register_lowering(_SORT, _lower)
mlir.register_lowering(_SORT, _lower_on_cpu, platform="cpu")
