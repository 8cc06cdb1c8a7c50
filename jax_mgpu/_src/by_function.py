"""Reductions and scans by a function of the caller's, in kernels that are compiled for it.

The function is traced once, on one item, and written as C++ (emit.py), which is an attribute of the call: the handler
compiles it when XLA loads the program, here or, of an exported program, in another process. What cannot be written runs
in plain JAX, and so do derivatives, other platforms, and machines without a compiler.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src import library
from jax_mgpu._src.compat import free_of_explicit_axes, whole_axes
from jax_mgpu._src.emit import Layout, OperatorSource, Unsupported, emit_operator
from jax_mgpu._src.operators import Operator, scan_results, segment_ends, segmented_results
from jax_mgpu._src.primitive import ABSENT, Operation

__all__ = ["reduce_by_function", "scan_by_function", "segmented_reduce_by_function"]

# A row of so many bytes is scanned by tiles of its own, shorter ones share tiles.
LONG_ROW_BYTES = 1 << 17


@dataclasses.dataclass(frozen=True)
class _Captured:
    """An operand in the place of a value."""

    index: int


@dataclasses.dataclass(frozen=True)
class _Function:
    """A function that has been written, without the values that it captured."""

    source: str
    item: Layout
    state_bytes: int
    jaxpr: Any
    consts: tuple[Any, ...]  # values, or the captured operands in their places
    identity: tuple[Any, ...] | None

    def operator(self, captures: Sequence[Any]) -> Operator:
        """The function in plain JAX, over lists of leaves."""

        def filled(values: Sequence[Any]) -> list[Any]:
            return [captures[value.index] if isinstance(value, _Captured) else value for value in values]

        consts = filled(self.consts)
        one = functools.partial(jax.core.eval_jaxpr, self.jaxpr, consts)
        return Operator(
            extract=lambda x, positions: x,
            combine=jax.vmap(lambda a, b: one(*a, *b)),
            finish=lambda state: state,
            identity=None if self.identity is None else [jnp.asarray(value) for value in filled(self.identity)],
        )


_FUNCTIONS: list[_Function] = []
_NUMBERS: dict[Any, int] = {}


def reduce_by_function(operation: str, operator: Operator, x: Any, n: int, count: Any) -> Any:
    """The combination of all items, a pytree as x without its leading axis."""
    needs_nothing = operator.identity is not None
    called = _call("reduce_by_function", operation, operator, x, n, ABSENT, count, needs_nothing=needs_nothing)
    if called is None:
        return scan_results(operator, x, n, ABSENT, count, exclusive=0, reverse=0, total=1)[1]
    return called[0]


def scan_by_function(
    operation: str, operator: Operator, x: Any, n: int, heads: Any, count: Any, **flags: bool
) -> Sequence[Any]:
    """What `scan` returns, as pytrees like x."""
    needs_nothing = operator.identity is not None and (flags["exclusive"] or flags["total"])
    called = _call("scan_by_function", operation, operator, x, n, heads, count, needs_nothing=needs_nothing, **flags)
    return scan_results(operator, x, n, heads, count, **flags) if called is None else called


def segmented_reduce_by_function(operation: str, operator: Operator, x: Any, n: int, heads: Any, count: Any) -> Any:
    """What `segmented_reduce` returns: the last items of a scan of each segment."""
    flags = {"exclusive": False, "reverse": False, "total": False}
    called = _call("scan_by_function", operation, operator, x, n, heads, count, needs_nothing=False, **flags)
    if called is None:
        return segmented_results(operator, x, n, heads, count)
    return segment_ends(operator, called[0], n, whole_axes(heads), count)


def _call(
    name: str,
    operation: str,
    operator: Operator,
    x: Any,
    n: int,
    heads: Any,
    count: Any,
    *,
    needs_nothing: bool,
    reverse: bool = False,
    exclusive: bool = False,
    **flags: bool,
) -> Sequence[Any] | None:
    """The results by kernels, or None where there are none for this."""
    if n == 0 or operator.function is None or not has_kernels():
        return None
    structure: Any
    leaves, structure = jax.tree.flatten(x)
    try:
        number, captures = _written(operator, structure, leaves, needs_nothing, reverse, exclusive)
    except Unsupported as error:
        if jax.default_backend() == "gpu":
            _warn(f"{operation}: op: runs in plain JAX, which is slower: no kernel can be made of {error}")
        return None
    primitive = _operation(name, tuple(leaf.ndim for leaf in leaves), tuple(np.ndim(c) for c in captures))
    own = {"reverse": reverse, "exclusive": exclusive, **flags} if name == "scan_by_function" else {}
    results = primitive.run([*leaves, *map(jnp.asarray, captures), heads, count], function=number, **own)
    return [structure.unflatten(results[i : i + len(leaves)]) for i in range(0, len(results), len(leaves))]


def has_kernels() -> bool:
    """Whether functions can be compiled, on some platform."""
    return library.cuda_library is not None


def _written(
    operator: Operator, structure: Any, leaves: Sequence[Any], needs_nothing: bool, reverse: bool, exclusive: bool
) -> tuple[int, Sequence[Any]]:
    """The number of the function, and what it captured."""
    assert operator.function is not None
    function = operator.function
    items = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in leaves]

    def flat(*xs: Any) -> list[Any]:
        a, b = xs[: len(leaves)], xs[len(leaves) :]
        return jax.tree.leaves(function(structure.unflatten(a), structure.unflatten(b)))

    with free_of_explicit_axes():
        closed = jax.make_jaxpr(flat)(*items, *items)
    identity = jax.tree.leaves(operator.identity) if operator.identity is not None else None
    written = emit_operator(closed, items, identity if needs_nothing else None, reverse=reverse, exclusive=exclusive)
    consts = tuple(_place(const, written) for const in closed.consts)
    # Where the kernels need none, the identity is that of an empty segment, which plain JAX fills in.
    known = None if identity is None or not needs_nothing else tuple(_place(value, written) for value in identity)
    captured = tuple(const for const in (*consts, *(known or ())) if isinstance(const, _Captured))
    key = (written.text, captured, known is None, jax.sharding.get_abstract_mesh())
    if key not in _NUMBERS:
        _NUMBERS[key] = len(_FUNCTIONS)
        _FUNCTIONS.append(_Function(written.text, written.item, written.state_bytes, closed.jaxpr, consts, known))
    return _NUMBERS[key], written.captures


def _place(value: Any, written: OperatorSource) -> Any:
    """A value, or which captured operand it is. A value is NumPy's: it outlives the mesh that it was made on."""
    for index, capture in enumerate(written.captures):
        if capture is value:
            return _Captured(index)
    return np.asarray(value)


class FunctionOperation(Operation):
    """An operation by a function: its operands are the leaves of items, what the function captured, heads, count."""

    def __init__(self, name: str, leaf_ranks: Sequence[int], capture_ranks: Sequence[int]):
        self.leaves, self.captures = len(leaf_ranks), len(capture_ranks)
        is_scan = name == "scan_by_function"
        leaves = {f"x{i}": rank for i, rank in enumerate(leaf_ranks)}
        results = [f"result{i}" for i in range(self.leaves)]
        super().__init__(
            name,
            operands={**leaves, **{f"c{i}": rank for i, rank in enumerate(capture_ranks)}, "heads": 1, "count": 1},
            results=[*results, *(f"total{i}" for i in range(self.leaves if is_scan else 0))],
            attributes={"function": int, **(dict.fromkeys(["exclusive", "reverse", "total"], bool) if is_scan else {})},
            shapes=self._scanned if is_scan else self._reduced,
            fallback=self._plain_scan if is_scan else self._plain_reduction,
            streamed=tuple(leaves),
            only="cuda",
            is_registered=False,
        )
        self.def_jvp(self._jvp)

    def _by_name(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        return rule  # operands have no names of their own

    def lowers_plainly(
        self, operands: Sequence[Any], attributes: Mapping[str, int], platform: str, devices: int
    ) -> bool:
        """Whether a program that could have kernels is to have plain JAX."""
        if devices > 1 and self.captures:
            return True  # each device has rows of its own, but no part of what was captured
        problem = library.compiler_problem()
        if problem:
            _warn(f"functions as operators run in plain JAX, which is slower: {problem}")
        return bool(problem)

    def call_attributes(self, operands: Sequence[Any], attributes: Mapping[str, int]) -> dict[str, Any]:
        """The function's source and sizes in the place of its number."""
        function = _FUNCTIONS[attributes["function"]]
        widths = [function.item.leaf_bytes(leaf) for leaf in range(self.leaves)]
        batch_rank = self._batch_rank(operands)
        own = {name: value for name, value in attributes.items() if name != "function"}
        if "reverse" in own:
            row_bytes = operands[0].shape[batch_rank] * sum(widths)
            has_heads = operands[-2].size > 0
            own["segmented"] = int(has_heads or (batch_rank > 0 and row_bytes < LONG_ROW_BYTES))
        return {
            **own,
            "leaves": self.leaves,
            "captures": self.captures,
            "batch_rank": batch_rank,
            "item_bytes": function.item.bytes,
            "widest": max(widths),
            "packed": sum(widths),
            "state_bytes": function.state_bytes,
            "source": function.source,
        }

    def _batch(self, operands: Sequence[Any], axes: Sequence[Any], **attributes: int) -> tuple[Any, Any]:
        captured = axes[self.leaves : self.leaves + self.captures]
        if any(axis is not None for axis in captured):  # a function of its own for each problem
            return _map_plainly(self, operands, axes, attributes)
        return super()._batch(operands, axes, **attributes)

    def _split(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], Any, Any]:
        ends = self.leaves, self.leaves + self.captures
        return list(operands[: ends[0]]), list(operands[ends[0] : ends[1]]), operands[-2], operands[-1]

    def _reduced(self, *operands: Any, function: int) -> Sequence[Any]:
        del function
        return [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in operands[: self.leaves]]

    def _scanned(self, *operands: Any, total: int, **attributes: int) -> Sequence[Any]:
        scanned = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands[: self.leaves]]
        return [*scanned, *self._reduced(*operands, function=attributes["function"])] if total else scanned

    def _plain_reduction(self, *operands: Any, function: int) -> Sequence[Any]:
        x, captures, _, count = self._split(operands)
        operator, n = _FUNCTIONS[function].operator(captures), x[0].shape[0]
        return scan_results(operator, x, n, ABSENT, count, exclusive=0, reverse=0, total=1)[1]

    def _plain_scan(self, *operands: Any, function: int, **flags: int) -> Sequence[Any]:
        x, captures, heads, count = self._split(operands)
        operator, n = _FUNCTIONS[function].operator(captures), x[0].shape[0]
        return jax.tree.leaves(scan_results(operator, x, n, heads, count, **flags))  # type: ignore[arg-type]

    def _jvp(self, primals: Any, tangents: Any, **attributes: int) -> tuple[Any, Any]:
        live = [i for i, tangent in enumerate(tangents) if tangent is not None]

        def run(*values: Any) -> Sequence[Any]:
            operands = list(primals)
            for i, value in zip(live, values, strict=True):
                operands[i] = value
            return list(self.fallback(*operands, **attributes))

        results, moved = jax.jvp(run, [primals[i] for i in live], [tangents[i] for i in live])
        return results, [None if tangent.dtype == jax.dtypes.float0 else tangent for tangent in moved]


def _map_plainly(
    operation: FunctionOperation, operands: Sequence[Any], axes: Sequence[Any], attributes: Mapping[str, int]
) -> tuple[Any, Any]:
    function: Callable[..., Any] = functools.partial(operation.fallback, **attributes)
    ranks = operation.ranks
    own = [x.ndim - (axis is not None) for x, axis in zip(operands, axes, strict=True)]
    for _ in range(max(n - rank for n, rank in zip(own, ranks, strict=True))):
        function = jax.vmap(function, in_axes=[0 if n > rank else None for n, rank in zip(own, ranks, strict=True)])
    results = jax.vmap(function, in_axes=axes)(*operands)
    return list(results), [0] * len(results)


@functools.cache
def _operation(name: str, leaf_ranks: tuple[int, ...], capture_ranks: tuple[int, ...]) -> FunctionOperation:
    return FunctionOperation(name, leaf_ranks, capture_ranks)


def _warn(words: str) -> None:
    if words not in _WARNED:
        _WARNED.add(words)
        warnings.warn(f"jax_mgpu: {words}", stacklevel=2)


_WARNED: set[str] = set()
