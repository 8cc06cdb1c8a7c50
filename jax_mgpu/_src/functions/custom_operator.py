"""Reductions and scans by a caller's function, in kernels that are compiled for it.

The function is traced on two items, and written as lines of operations (emit/), an attribute of the call. The handler
compiles these lines when XLA loads the program, perhaps in another process. Plain JAX serves functions that cannot be
written so, other platforms, machines without NVRTC, and derivatives that are no recurrences (scan_tangents.py).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import (
    Aval,
    DTypeLike,
    Operands,
    Pytree,
    Tangents,
)
from jax_mgpu._src.arguments.counts import segment_bounds
from jax_mgpu._src.core import library
from jax_mgpu._src.core.compat import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    PyTreeDef,
    def_unused,
    evaluate,
    flatten,
    free_of_explicit_axes,
    has_primitive,
    inner_jaxprs,
    moving_jvp,
    whole_axes,
    without_values,
)
from jax_mgpu._src.core.operation import ABSENT, REGISTRY, Keyed
from jax_mgpu._src.functions.compiled_operation import CompiledOperation, warn_once
from jax_mgpu._src.functions.emit import OperatorData, Stage, Unsupported, elementwise, emit_operator
from jax_mgpu._src.functions.operators import (
    Kind,
    Operator,
    builtin,
    identities,
    reduce_results,
    scan_results,
    segment_ends,
    segmented_results,
    select,
)
from jax_mgpu._src.functions.scan_tangents import Partials, partials_of, scan_tangents
from jax_mgpu._src.functions.transform import Load, map_leaves

RULES = "custom_jvp", "custom_vjp"  # how names of primitives with a caller's derivative rules begin

# If a function combines each element of an item's arrays by itself, columns may be scanned separately
# (`_column_operator`): by a kernel that walks along rows if `_fit_rows` holds, else as a batch if items have more than
# MOST_JOINT_SCALARS numbers.
MAX_ROW_ITEM_BYTES = 32
MOST_JOINT_SCALARS = 16
ELEMENTWISE = {*elementwise.RULES} - {"iota", "bitcast_convert_type"}
# A segmented reduction of larger items or states would exceed a block's shared memory.
MAX_SEGMENT_BYTES = 72
DIRECTIONS = "exclusive", "reverse", "total"  # attributes that a caller of a scan chooses


@dataclasses.dataclass(frozen=True)
class _Captured:
    """Stands for a captured value that is an operand of the call."""

    index: int


@dataclasses.dataclass(frozen=True)
class _Traced:
    """A traced function, without captured values."""

    jaxpr: Any
    consts: tuple[Any, ...]  # each is a value, or a reference to a captured operand

    def __call__(self, captures: Sequence[Any]) -> Callable[..., Any]:
        return functools.partial(evaluate, self.jaxpr, _filled(self.consts, captures))


@dataclasses.dataclass(frozen=True)
class _Function:
    """A function as data, without captured values.

    Args:
      written: its lines and layouts.
      identity: the result over no items, if it can occur.
      load: makes items from those in memory.
      kind: the built-in operator, or None.
      position_dtype: of the positions that `load` takes.
      commutes: a promise that the operator commutes.
      whole: the function with all results, if a scan writes only those in `kept`.
      kept: places among the results of `whole`.
    """

    written: OperatorData
    combine: _Traced
    identity: tuple[Any, ...] | None
    load: _Traced | None
    kind: Kind | None
    position_dtype: Any
    commutes: bool
    whole: Keyed | None = None
    kept: tuple[int, ...] = ()

    @functools.cached_property
    def partials(self) -> Partials | None:
        """The partial derivatives of the operator; None if it is built in, or `partials_of` returns None."""
        if self.kind is not None:
            return None
        leaves = self.results
        consts = [x.aval for x in self.combine.jaxpr.invars[: -2 * len(leaves)]]
        return partials_of(self.combine.jaxpr, consts, leaves)

    @property
    def results(self) -> tuple[Any, ...]:
        """The leaves of a result."""
        return self.written.results

    @property
    def largest_segment_bytes(self) -> int:
        """The bytes per item for which a thread of a segmented reduction needs room."""
        return max(self.written.state_bytes, self.written.largest_bytes)

    def keeping(self, key: Keyed, kept: tuple[int, ...], *, reverse: int, exclusive: int) -> Keyed:
        """Returns the function with these results only; it captures nothing."""
        if self.whole is not None:
            kept = tuple(self.kept[i] for i in kept)
            whole: _Function = self.whole.value
            return whole.keeping(self.whole, kept, reverse=reverse, exclusive=exclusive)
        states = self.results
        load = None
        with free_of_explicit_axes():
            closed = jax.make_jaxpr(self.combine(()))(*states, *states)
            finish = Stage(
                (jax.make_jaxpr(lambda *state: [state[i] for i in kept])(*states),), tuple(states[i] for i in kept)
            )
            if self.load is not None:
                items = [var.aval for var in self.load.jaxpr.invars[len(self.load.consts) :]]
                load = Stage((jax.make_jaxpr(self.load(()))(*items),), tuple(items[:-1]))
        written = emit_operator(
            closed,
            states,
            None if self.identity is None else [self.identity[i] for i in kept],
            reverse=bool(reverse),
            exclusive=bool(exclusive),
            commutes=self.commutes,
            load=load,
            finish=finish,
        )
        function = dataclasses.replace(self, written=written, whole=key, kept=kept)
        return Keyed((key, kept), function)

    def operator(self, captures: Sequence[Any]) -> Operator:
        """Returns the operator in plain JAX, over lists of leaves."""
        one = self.combine(captures)
        return Operator(
            extract=lambda x, positions: x,
            combine=jax.vmap(lambda a, b: one(*a, *b)),
            finish=lambda state: state,
            identity=None
            if self.identity is None
            else [jnp.asarray(value) for value in _filled(self.identity, captures)],
        )

    def items(self, leaves: Sequence[Any], captures: Sequence[Any], count: jax.Array) -> list[Any]:
        if self.load is None:
            return list(leaves)
        result: list[Any] = map_leaves(self.load(captures), leaves, count, self.position_dtype)
        return result


def _filled(values: Sequence[Any], captures: Sequence[Any]) -> list[Any]:
    return [captures[value.index] if isinstance(value, _Captured) else value for value in values]


@dataclasses.dataclass(frozen=True)
class _Prepared:
    keyed: Keyed
    leaves: Sequence[Any]
    captures: Sequence[Any]
    structure: PyTreeDef
    results: int

    @property
    def function(self) -> _Function:
        function: _Function = self.keyed.value
        return function

    def run(self, name: str, heads: jax.Array, count: jax.Array, **attributes: int) -> Sequence[Any]:
        ranks = tuple(leaf.ndim for leaf in self.leaves), tuple(np.ndim(c) for c in self.captures)
        primitive = _operation(name, *ranks, self.results)
        operands = [*self.leaves, *map(jnp.asarray, self.captures), heads, count]
        results = primitive.run(operands, function=self.keyed, **attributes)
        step = self.results
        return [self.structure.unflatten(results[i : i + step]) for i in range(0, len(results), step)]


def reduce_by_function(
    operation: str, operator: Operator, x: Pytree, n: int, count: jax.Array, load: Load | None = None
) -> Any:
    """Combines items into a pytree like x without the leading axis. `load` makes x from items in memory."""
    prepared = _prepare(operation, operator, x, n, load, needs_nothing=operator.identity is not None)
    if prepared is None:
        return reduce_results(operator, x, n, count)
    return prepared.run("reduce_by_function", ABSENT, count)[0]


def scan_by_function(
    operation: str,
    operator: Operator,
    x: Pytree,
    n: int,
    heads: jax.Array,
    count: jax.Array,
    load: Load | None = None,
    is_moved: bool = False,
    **flags: bool,
) -> Sequence[Any]:
    """Returns the results of `scan`, which are pytrees like x. For `is_moved`, see `scan_results`."""
    needs_nothing = operator.identity is not None and (flags["exclusive"] or flags["total"])
    of_column = None if n == 0 or load is not None or needs_nothing else _column_operator(operator, x)
    if of_column is not None:
        columns = jax.tree.map(lambda leaf: leaf.reshape(n, -1), x)
        scanned = _scan_columns(operation, of_column, columns, n, heads, count, {**flags, "total": False})
        results = [jax.tree.map(lambda result, leaf: result.reshape(leaf.shape), scanned, x)]
        if flags["total"]:
            last = 0 if flags["reverse"] else n - 1
            results.append(jax.tree.map(lambda result: result[last], results[0]))
        return results
    prepared = _prepare(operation, operator, x, n, load, needs_nothing=needs_nothing, **_directions(flags))
    if prepared is None:
        return scan_results(operator, x, n, heads, count, is_moved=is_moved, **flags)
    return prepared.run("scan_by_function", heads, count, width=0, **flags)


def _scan_columns(
    operation: str,
    of_column: Operator,
    columns: Pytree,
    n: int,
    heads: jax.Array,
    count: jax.Array,
    flags: Mapping[str, bool],
) -> Pytree:
    """Scans each column of `[n, width]` leaves, without totals."""
    if _fit_rows(jax.tree.leaves(columns)):
        column = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((n,), leaf.dtype), columns)
        prepared = _prepare(operation, of_column, column, n, None, **_directions(flags))
        if prepared is not None:
            leaves = jax.tree.leaves(columns)
            prepared = dataclasses.replace(prepared, leaves=leaves)
            return prepared.run("scan_by_function", heads, count, width=leaves[0].shape[1], **flags)[0]

    def scan_column(column: Pytree) -> Pytree:
        return scan_by_function(operation, of_column, column, n, heads, count, None, **flags)[0]

    return jax.vmap(scan_column, 1, 1)(columns)


def _fit_rows(leaves: Sequence[jax.Array]) -> bool:
    widths = {leaf.dtype.itemsize for leaf in leaves}
    return len(widths) == 1 and max(widths) <= 8 and len(leaves) * max(widths) <= MAX_ROW_ITEM_BYTES


def _column_operator(operator: Operator, x: Pytree) -> Operator | None:
    """Returns the operator of one column, or None if columns are not scanned separately."""
    leaves, structure = flatten(x)
    shape = leaves[0].shape[1:]
    scalars = len(leaves) * math.prod(shape)
    if operator.function is None or not shape or any(leaf.shape[1:] != shape for leaf in leaves) or not has_kernels():
        return None
    if not _fit_rows(leaves) and scalars <= MOST_JOINT_SCALARS:
        return None
    with free_of_explicit_axes():
        closed, _ = _traced_function(operator, structure, [jax.ShapeDtypeStruct(shape, leaf.dtype) for leaf in leaves])
    if not _is_elementwise(closed.jaxpr, shape):
        return None

    def combine(a: Pytree, b: Pytree) -> Any:
        given = *jax.tree.leaves(a), *jax.tree.leaves(b)
        rules = {"broadcast_in_dim": lambda parameters, value: [value]}
        return structure.unflatten(evaluate(closed.jaxpr, closed.consts, *given, rules=rules))

    return dataclasses.replace(operator, function=combine, combine=jax.vmap(combine), identity=None)


def _is_elementwise(jaxpr: Jaxpr, shape: tuple[int, ...]) -> bool:
    """Whether a function of scalars, and of arrays of this shape, combines each element by itself."""

    def shapes(variables: Sequence[Any]) -> set[tuple[int, ...]]:
        return {var.aval.shape for var in variables}

    def serves(equation: JaxprEqn) -> bool:
        if not shapes([*equation.invars, *equation.outvars]) <= {(), shape}:
            return False
        if equation.primitive.name in ("pjit", "jit"):
            return all(_is_elementwise(inner, shape) for inner in inner_jaxprs(equation))
        repeats = equation.primitive.name == "broadcast_in_dim" and shapes(equation.invars) == {()}
        return repeats or equation.primitive.name in ELEMENTWISE

    return shapes(jaxpr.constvars) <= {()} and all(map(serves, jaxpr.eqns))


def segmented_reduce_by_function(
    operation: str,
    operator: Operator,
    x: Pytree,
    n: int,
    heads: jax.Array,
    count: jax.Array,
    load: Load | None = None,
) -> Any:
    """Returns the result of `segmented_reduce`."""
    prepared = _prepare(operation, operator, x, n, load)
    if prepared is None:
        return segmented_results(operator, x, n, heads, count)
    heads = whole_axes(heads)
    if prepared.function.largest_segment_bytes > MAX_SEGMENT_BYTES:
        (scanned,) = prepared.run(
            "scan_by_function", heads, count, width=0, exclusive=False, reverse=False, total=False
        )
        return segment_ends(operator, scanned, n, heads, count)
    (results,) = prepared.run("segmented_reduce_by_function", heads, count)
    if operator.identity is None:
        return results
    begin, end = segment_bounds(heads, n, count)
    return select(begin < end, results, identities(operator.identity, results))


def run_mapped(
    primitive: str,
    operation: str,
    kind: Kind,
    x: jax.Array,
    heads: jax.Array,
    count: jax.Array,
    load: Load | None,
    **flags: bool,
) -> Sequence[Any] | None:
    """Runs a built-in operator over mapped items; returns None if kernels do not map them.

    `flags` are those of a scan.
    """
    if load is None:
        return None
    with jax.ensure_compile_time_eval():
        operator = builtin(kind, x.dtype)
    prepared = _prepare(operation, operator, x, x.shape[0], load, **_directions(flags))
    is_wide = prepared is not None and prepared.function.largest_segment_bytes > MAX_SEGMENT_BYTES
    if prepared is None or (is_wide and primitive == "segmented_reduce_by_function"):
        return None
    return prepared.run(primitive, heads, count, **({"width": 0} if flags else {}), **flags)


def _directions(flags: Mapping[str, bool]) -> dict[str, bool]:
    return {name: on for name, on in flags.items() if name in ("reverse", "exclusive")}


def _prepare(
    operation: str,
    operator: Operator,
    x: Pytree,
    n: int,
    load: Load | None,
    **how: bool,
) -> _Prepared | None:
    """Returns the function as kernels take it, or None if no kernel can run it.

    `how` has keyword arguments of `_written`.
    """
    if n == 0 or (operator.function is None and operator.kind is None) or not has_kernels():
        return None
    leaves, structure = flatten(x)
    try:
        function, captures = _written(operator, structure, leaves, load, **how)
    except Unsupported as error:
        warn_of_plain_jax(operation, "op" if load is None else "op or map", error)
        return None
    return _Prepared(function, leaves if load is None else load.leaves, captures, structure, len(leaves))


def has_kernels() -> bool:
    """Whether the CUDA library, which compiles functions, is loaded."""
    return library.has_cuda()


def warn_of_plain_jax(operation: str, what: str, error: Unsupported) -> None:
    """Warns once that a function cannot be compiled, on a machine that compiles others."""
    if jax.default_backend() == "gpu" and has_kernels():
        warn_once(f"{operation}: {what}: runs in plain JAX, which is slower: no kernel can be made of {error}")


def _written(
    operator: Operator,
    structure: PyTreeDef,
    leaves: Sequence[Any],
    load: Load | None,
    *,
    needs_nothing: bool = False,
    **directions: bool,
) -> tuple[Keyed, Sequence[Any]]:
    """Returns the function and its captured arrays.

    `needs_nothing`: whether kernels need the result over no items.
    """
    items = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in leaves]
    with free_of_explicit_axes():
        load_closed = None if load is None else jax.make_jaxpr(load.function)(*load.item, _scalar(load.position_dtype))
        if operator.kind is None:
            closed, given = _traced_function(operator, structure, items)
        else:
            assert load is not None and load_closed is not None
            closed, given = _traced_builtin(operator, items[0], load.position_dtype)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.explicit_axes or mesh.manual_axes:
        for one in (closed, load_closed):
            if one is not None and has_primitive(one.jaxpr, RULES):  # JAX differentiates these without the mesh
                raise Unsupported("a function with derivative rules of its own under a mesh, Explicit or of shard_map")
    stages = given.pop("stages", ())
    given |= directions
    if load is not None:
        given["load"] = Stage((load_closed, *stages), tuple(load.item))
    identity = None
    if operator.kind is None and operator.identity is not None and needs_nothing:
        identity = jax.tree.leaves(operator.identity)
    written = emit_operator(closed, nothing=identity, commutes=operator.commutes, **given)
    # Kernels do not need the identity of empty segments, which plain JAX fills in.
    known = None if identity is None else tuple(_place(value, written.captures) for value in identity)
    traced = [
        None
        if one is None
        else _Traced(without_values(one), tuple(_place(const, written.captures) for const in one.consts))
        for one in (closed, load_closed)
    ]
    consts = [const for one in traced if one is not None for const in one.consts]
    captured = tuple(const for const in (*consts, *(known or ())) if isinstance(const, _Captured))
    rules = tuple(map(_rules, (closed, load_closed)))
    key = (written.data, rules, captured, known is None, operator.kind, mesh)
    combine, loaded = traced
    assert combine is not None
    function = _Function(
        written=dataclasses.replace(written, captures=()),
        combine=combine,
        identity=known,
        load=loaded,
        kind=operator.kind,
        position_dtype=None if load is None else load.position_dtype,
        commutes=operator.commutes,
    )
    return Keyed(key, function), written.captures


def _rules(closed: ClosedJaxpr) -> Any:
    """Returns a key that distinguishes functions with the same lines and different derivatives."""
    texts: list[Any] = []
    for _ in range(2):
        if closed is None or not has_primitive(closed.jaxpr, (*RULES, "stop_gradient")):
            break
        variables = (*closed.jaxpr.constvars, *closed.jaxpr.invars)
        texts.append(_text(closed.jaxpr))
        try:
            closed = jax.make_jaxpr(functools.partial(_gradient, closed))(
                *(jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in variables)
            )
        except (TypeError, ValueError, NotImplementedError):  # a loop, for instance, has no such derivative
            break
        texts.append(_text(closed.jaxpr))
        texts += [np.asarray(const).tobytes() for const in closed.consts if not isinstance(const, jax.core.Tracer)]
    return tuple(texts)


def _text(jaxpr: Jaxpr) -> str:
    """Returns a jaxpr without addresses of rules, which differ in each trace."""
    return re.sub("0x[0-9a-f]+", "", str(jaxpr))


def _gradient(closed: ClosedJaxpr, *operands: jax.Array) -> Sequence[Any]:
    moving = [i for i, x in enumerate(operands) if jnp.issubdtype(x.dtype, jnp.inexact)]
    consts = len(closed.jaxpr.constvars)

    def function(*moved: jax.Array) -> Any:
        given = list(operands)
        for i, x in zip(moving, moved, strict=True):
            given[i] = x
        results = jax.core.eval_jaxpr(closed.jaxpr, given[:consts], *given[consts:])
        return [x for x in results if jnp.issubdtype(x.dtype, jnp.inexact)]

    results, pullback = jax.vjp(function, *(operands[i] for i in moving))
    result: Sequence[Any] = pullback(results)
    return result


def _scalar(dtype: DTypeLike) -> Any:
    return jax.ShapeDtypeStruct((), dtype)


def _traced_function(operator: Operator, structure: PyTreeDef, items: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    """Traces a caller's function over two items' leaves; also returns its arguments of `emit_operator`."""
    assert operator.function is not None
    function = operator.function

    def flat(*xs: jax.Array) -> list[Any]:
        a, b = xs[: len(items)], xs[len(items) :]
        return jax.tree.leaves(function(structure.unflatten(a), structure.unflatten(b)))

    return jax.make_jaxpr(flat)(*items, *items), {"avals": items}


def _traced_builtin(operator: Operator, item: Aval, position_dtype: DTypeLike) -> tuple[Any, dict[str, Any]]:
    """Traces a built-in operator; also returns its arguments of `emit_operator`.

    States are made from an item and its position.
    """
    position = _scalar(position_dtype)
    # The identity of argmin and argmax has the index -1, in the type of positions.
    identity = jax.tree.leaves(operator.identity)
    states: Any
    avals, states = jax.tree.flatten(jax.eval_shape(operator.extract, item, position))

    def flat(*xs: jax.Array) -> list[Any]:
        a, b = xs[: len(avals)], xs[len(avals) :]
        return jax.tree.leaves(operator.combine(states.unflatten(a), states.unflatten(b)))

    extract = jax.make_jaxpr(lambda *given: jax.tree.leaves(operator.extract(*given)))(item, position)
    finish = jax.make_jaxpr(lambda *xs: [operator.finish(states.unflatten(xs))])(*avals)
    given = {
        "avals": avals,
        "neutral": [np.asarray(value).astype(aval.dtype) for value, aval in zip(identity, avals, strict=True)],
        "dead": operator.dead,
        "stages": (extract,),
        "finish": Stage((finish,), tuple(jax.ShapeDtypeStruct(one.shape, one.dtype) for one in finish.out_avals)),
    }
    return jax.make_jaxpr(flat)(*avals, *avals), given


def _place(value: Any, captures: Sequence[Any]) -> Any:
    """Returns a NumPy array, which outlives its mesh, or the number of a captured operand."""
    for index, capture in enumerate(captures):
        if capture is value:
            return _Captured(index)
    return np.asarray(value)


class FunctionOperation(CompiledOperation):
    """An operation by a caller's operator or `map`. Operands are items' leaves, captured values, heads and a count."""

    def __init__(self, name: str, leaf_ranks: Sequence[int], capture_ranks: Sequence[int], result_leaves: int):
        self.leaves, self.leaf_ranks = len(leaf_ranks), leaf_ranks
        is_scan = name == "scan_by_function"
        shapes: dict[str, Callable[..., Sequence[Any]]] = {
            "reduce_by_function": self._reduced,
            "segmented_reduce_by_function": self._segmented,
            "scan_by_function": self._scanned,
        }
        leaves = {f"x{i}": rank for i, rank in enumerate(leaf_ranks)}
        results = [f"result{i}" for i in range(result_leaves)]
        super().__init__(
            name,
            "operators",
            self.leaves,
            len(capture_ranks),
            operands={**leaves, **{f"c{i}": rank for i, rank in enumerate(capture_ranks)}, "heads": 1, "count": 1},
            results=[*results, *(f"total{i}" for i in range(result_leaves if is_scan else 0))],
            attributes={"function": Keyed, **({"width": int, **dict.fromkeys(DIRECTIONS, bool)} if is_scan else {})},
            shapes=shapes[name],
            fallback=self._plain,
            streamed=tuple(leaves),
        )
        self.def_jvp(self._jvp)
        if is_scan and not capture_ranks:
            def_unused(self.primitive, self._without_unused)

    def _without_unused(self, used: Sequence[bool], equation: JaxprEqn) -> JaxprEqn:
        """Returns a scan that does not write unused leaves."""
        attributes = dict(equation.params)
        leaves = len(attributes["function"].value.results)
        kept = tuple(i for i in range(leaves) if any(used[i::leaves]))
        if len(kept) == leaves:
            return equation
        flags = {name: attributes[name] for name in ("reverse", "exclusive")}
        attributes["function"] = attributes["function"].value.keeping(attributes["function"], kept, **flags)
        scan = _operation(self.name, self.leaf_ranks, (), len(kept))
        results = [var for i, var in enumerate(equation.outvars) if i % leaves in kept]
        changed: JaxprEqn = equation.replace(primitive=scan.primitive, params=attributes, outvars=results)
        return changed

    def call_attributes(self, operands: Sequence[Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Replaces the `Keyed` function by its lines and its sizes."""
        function: _Function = attributes["function"].value
        own = {name: value for name, value in attributes.items() if name != "function"}
        return self.attributes_of(function.written, operands, own)

    def _reduced(self, *operands: Aval, function: Keyed) -> Sequence[Any]:
        del operands
        result: Sequence[Any] = function.value.results
        return result

    def _segmented(self, *operands: Aval, function: Keyed) -> Sequence[Any]:
        segments = operands[-2].shape[0]
        results = self._reduced(function=function)
        return [jax.ShapeDtypeStruct((segments, *result.shape), result.dtype) for result in results]

    def _scanned(self, *operands: Aval, width: int, total: int, **attributes: Any) -> Sequence[Any]:
        results, n = self._reduced(function=attributes["function"]), operands[0].shape[0]
        rows = (n, width) if width else (n,)
        scanned = [jax.ShapeDtypeStruct((*rows, *result.shape), result.dtype) for result in results]
        return [*scanned, *results] if total else scanned

    def _plain(self, *operands: jax.Array, function: Keyed, width: int = 0, **flags: int) -> Sequence[Any]:
        if width:
            scan_column = functools.partial(self._plain, function=function, **flags)
            of_column = [1] * self.leaves + [None] * (self.captures + 2)
            return jax.vmap(lambda *given: list(scan_column(*given)), of_column, 1)(*operands)
        leaves, captures, (heads, count) = operands[: self.leaves], operands[self.captured], operands[-2:]
        compiled, n, operation = function.value, leaves[0].shape[0], self.name.removesuffix("_by_function")
        x = compiled.items(leaves, captures, count)
        if compiled.kind is not None:
            segments = {} if operation == "reduce" else {"heads": heads}
            attributes: dict[str, int] = flags or {"wide": False}
            return REGISTRY[operation](x=x[0], **segments, count=count, op=compiled.kind, **attributes)
        operator = compiled.operator(captures)
        if operation == "reduce":
            results = reduce_results(operator, x, n, count)
        elif operation == "segmented_reduce":
            results = segmented_results(operator, x, n, heads, count)
        else:
            results = scan_results(operator, x, n, heads, count, **flags)
        values = jax.tree.leaves(results)
        if compiled.whole is None:
            return values
        step = len(compiled.whole.value.results)
        return [values[i + j] for i in range(0, len(values), step) for j in compiled.kept]

    def _jvp(self, primals: Operands, tangents: Tangents, **attributes: Any) -> tuple[Any, Any]:
        function = attributes["function"].value
        is_scan = "reverse" in attributes and function.whole is None
        if (
            is_scan
            and all(tangent is None for tangent in list(tangents)[self.captured])
            and function.partials is not None
        ):
            return self._scan_jvp(function.partials, primals, list(tangents)[: self.leaves], **attributes)
        return moving_jvp(functools.partial(self._run_whole, **attributes), list(primals), list(tangents))

    def _run_whole(self, *operands: Any, function: Keyed, **attributes: Any) -> list[Any]:
        """Runs the operation in a form that JAX can differentiate: by a scan, if its derivative has kernels."""
        compiled, is_scan = function.value, "reverse" in attributes
        if compiled.whole is None and (is_scan or compiled.partials is None):
            return list(self.fallback(*operands, function=function, **attributes))
        whole = function if compiled.whole is None else compiled.whole
        leaves = len(whole.value.results)
        scan = _operation("scan_by_function", self.leaf_ranks, self.ranks[self.captured], leaves)
        if is_scan:
            results = scan.run(operands, function=whole, **attributes)
            return [results[i + j] for i in range(0, len(results), leaves) for j in compiled.kept]
        flags = {"exclusive": False, "reverse": False, "total": self.name == "reduce_by_function"}
        results = scan.run(operands, function=whole, width=0, **flags)
        if flags["total"]:
            return results[leaves:]
        n, (heads, count) = operands[0].shape[0], operands[-2:]
        ends: list[Any] = segment_ends(compiled.operator(operands[self.captured]), results, n, heads, count)
        return ends

    def _scan_jvp(
        self, partials: Partials, primals: Operands, tangents: Sequence[Any], function: Keyed, width: int, **flags: int
    ) -> tuple[Any, Any]:
        results = self.run(primals, function=function, width=width, **flags)
        compiled, operands = function.value, list(primals)
        captures, (heads, count) = operands[self.captured], operands[-2:]
        x: Sequence[Any] = operands[: self.leaves]
        dx = list(tangents)
        if compiled.load is not None:
            x, dx = moving_jvp(lambda *leaves: compiled.items(leaves, captures, count), x, dx)
        consts = _filled(compiled.combine.consts, captures)
        return results, scan_tangents(partials, consts, results, x, dx, heads, count, **flags)


_operation = functools.cache(FunctionOperation)
