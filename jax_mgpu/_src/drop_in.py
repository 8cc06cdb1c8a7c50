"""`like` makes functions with JAX's names, signatures and results, which run kernels where these are faster.

A function's plan inspects a call's shapes, types and options, and returns a program of kernels. If it returns None, or
kernels would be slower, JAX's own function runs, and raises its own errors.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from jax_mgpu._src.arguments.annotations import ScannedName
from jax_mgpu._src.arguments.check import KEY_DTYPES
from jax_mgpu._src.arguments.preconditions import by_construction
from jax_mgpu._src.core.compat import (
    compiles,
    evaluate,
    flatten,
    is_sharded,
    on_mesh_of,
    platform_dependent,
    recomputed,
    varying_alike,
)
from jax_mgpu._src.core.library import platforms
from jax_mgpu._src.ops.order_statistics import _order_statistics

Function = TypeVar("Function", bound=Callable[..., Any])
Program = Callable[[], Any]

MAX_COLUMNS = 8  # the most columns of keys that kernels sort by
# As a minimum number of items, this means that kernels are never faster.
NEVER = 1 << 62


class Signed:
    """A function of JAX, and its array arguments' names."""

    def __init__(self, original: Callable[..., Any], operands: Sequence[str], takes_sequence: bool):
        self.original, self.operands, self.signature = original, operands, inspect.signature(original)
        self.takes_sequence = takes_sequence
        self.defaults = {name: parameter.default for name, parameter in self.signature.parameters.items()}

    def split(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns arguments that are operands of a program, and static ones."""
        operands = {name: arguments[name] for name in self.operands if self._is_operand(arguments[name])}
        return operands, {name: value for name, value in arguments.items() if name not in operands}

    def may_take(self, x: object) -> bool:
        """Whether kernels take this argument: an array or, if `takes_sequence`, a sequence of arrays."""
        if self.takes_sequence and isinstance(x, list | tuple):
            return len(x) > 0 and all(map(_is_array_taken, x))
        return _is_array_taken(x)

    def _is_operand(self, x: object) -> bool:
        """Whether this is an operand: an array, a float or a complex number. Other values are static."""
        return self.may_take(x) or isinstance(x, jax.Array | np.ndarray | np.inexact | float | complex)


class Call:
    """A call of JAX's function: its arguments by name as attributes, defaults included."""

    def __init__(self, function: Signed, arguments: Mapping[str, Any]):
        self._function, self._arguments = function, dict(arguments)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._arguments[name]
        except KeyError:
            raise AttributeError(name) from None

    def gives_only(self, *names: str) -> bool:
        """Whether all other arguments have their defaults, also those that newer versions of JAX add."""
        others = {name: value for name, value in self._arguments.items() if name not in names}
        return all(value is self._function.defaults[name] for name, value in others.items())

    def changed(self, **changes: Any) -> Call:
        """Returns this call with some arguments changed."""
        return Call(self._function, {**self._arguments, **changes})

    def again(self, function: Callable[..., Any]) -> Any:
        """Calls another function of the same signature."""
        bound = inspect.BoundArguments(self._function.signature, self._arguments)
        return function(*bound.args, **bound.kwargs)

    def run(self, **changes: Any) -> Any:
        """Calls JAX's function, with some arguments changed."""
        return self.changed(**changes).again(self._function.original)

    def with_kernels(self, **changes: Any) -> Program:
        """Returns JAX's program, with kernels for its sorts, running sums and products."""

        def program() -> Any:
            operands, options = self._function.split({**self._arguments, **changes})
            leaves, structure = flatten(operands)
            trace = jax.make_jaxpr(
                lambda *leaves: self.run(**options, **structure.unflatten(leaves)), return_shape=True
            )
            closed, shapes = trace(*leaves)
            results = evaluate(closed.jaxpr, closed.consts, *leaves, rules=_RULES)
            return jax.tree.unflatten(jax.tree.structure(shapes), results)

        return program


def like(
    original: Function,
    *operands: str,
    min_items: int,
    min_items_on_gpu: int = 0,
    takes_sequence: bool = False,
    measure: Callable[[Call], Any] | None = None,
    unsized: tuple[str, Callable[[Call], Any]] | None = None,
) -> Callable[[Callable[[Call], Program | None]], Function]:
    """Turns a plan into a function with the signature, types and results of JAX's.

    Args:
      original: JAX's function.
      operands: its arguments that are arrays. Kernels run only if `Signed.may_take` holds for the first one; the others
        may be numbers.
      min_items: the number of items of the first operand from which kernels are faster on a CPU.
      min_items_on_gpu: the same on a GPU.
      takes_sequence: whether the first operand may be a sequence.
      measure: returns the number to compare with both minima, instead of the number of items.
      unsized: the argument for the size of the results, and the function to run outside of `jit` if that argument is
        omitted.
    """
    signed = Signed(original, operands, takes_sequence)
    place = list(signed.defaults).index(operands[0])

    def decorate(plan: Callable[[Call], Program | None]) -> Function:
        @functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
        def run(options: tuple[Any, ...], on_cpu: bool, on_cuda: bool, arrays: Mapping[str, Any]) -> Any:
            call = Call(signed, {**{name: value for name, _, value in options}, **arrays})
            ours = plan(call)
            assert ours is not None
            # As in JAX, results are truncated if `size` is too small.
            with by_construction(), on_mesh_of(arrays):
                ours, default = varying_alike([ours, recomputed(call.run)], *jax.tree.leaves(arrays))
                forms = {"cpu": ours} if on_cpu else {}
                forms |= {"cuda": ours} if on_cuda else {}
                return platform_dependent(**forms, default=default)

        def answer(positional: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
            """Returns the kernels' result, or None if JAX's function must run."""
            kernels = platforms()
            least = min(min_items, min_items_on_gpu) if "cuda" in kernels else min_items
            if measure is None and len(positional) > place and not is_faster(least, item_count(positional[place])):
                return None
            try:
                given = {**signed.defaults, **signed.signature.bind(*positional, **named).arguments}
            except TypeError:
                return None
            call, first = Call(signed, given), given[operands[0]]
            if not signed.may_take(first):
                return None
            measured = item_count(first) if measure is None else measure(call)
            on_cpu = "cpu" in kernels and is_faster(min_items, measured)
            on_cuda = "cuda" in kernels and is_faster(min_items_on_gpu, measured)
            if not (on_cpu or on_cuda) or not compiles():
                return None
            if unsized is not None and given[unsized[0]] is None:
                traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(given))
                return None if traced else unsized[1](call)
            arrays, settings = signed.split(given)
            options = tuple((name, type(value), value) for name, value in settings.items())
            return run(options, on_cpu, on_cuda, arrays) if _is_hashable(options) and plan(call) is not None else None

        @functools.wraps(original)
        def function(*positional: Any, **named: Any) -> Any:
            result = answer(positional, named)
            return original(*positional, **named) if result is None else result

        function.__doc__, function.__module__ = plan.__doc__, plan.__module__
        function.__name__ = function.__qualname__ = plan.__name__
        return function  # type: ignore[return-value]

    return decorate


def is_faster(min_items: int, measured: int) -> bool:
    """Whether a call on that many items, or of that measure, is faster with kernels."""
    return measured >= min_items


def is_array(x: object) -> bool:
    """Whether an argument is an array of JAX or NumPy."""
    return isinstance(x, jax.Array | np.ndarray)


def is_key(x: jax.Array | np.ndarray) -> bool:
    """Whether kernels sort and add this type."""
    return x.dtype.name in KEY_DTYPES


def is_float(x: jax.Array | np.ndarray) -> bool:
    """Whether kernels sort and add these floats."""
    return is_key(x) and jnp.issubdtype(x.dtype, jnp.floating)


def _is_array_taken(x: object) -> bool:
    if isinstance(x, np.ndarray):
        return x.dtype.isnative and _is_taken(x)
    return isinstance(x, jax.Array) and not getattr(x, "weak_type", False) and not is_sharded(x) and _is_taken(x)


def _is_taken(x: jax.Array | np.ndarray) -> bool:
    return x.dtype == bool or x.dtype.name in KEY_DTYPES


def item_count(x: object) -> int:
    """Returns the number of items of an array or a sequence of arrays; 0 if it is symbolic."""
    sizes = [getattr(leaf, "size", 0) for leaf in (x if isinstance(x, list | tuple) else [x])]
    return sum(size for size in sizes if isinstance(size, int))


def _is_hashable(value: Any) -> bool:
    """Whether options may be part of a key; floats may not, because zeros are equal, and NaNs never are."""
    if any(isinstance(part, float) for option in value for part in option):
        return False
    try:
        hash(value)
    except TypeError:
        return False
    return True


def along(axis: int, function: Callable[..., Any], *operands: jax.Array) -> Any:
    """Applies a function of vectors along an axis."""
    rank = operands[0].ndim
    for _ in range(rank - 1):
        function = jax.vmap(function)
    results = function(*(jnp.moveaxis(x, axis, -1) for x in operands))
    return jax.tree.map(lambda x: jnp.moveaxis(x, -1, axis), results)


def order_statistics(ranks: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """Returns a function that gives the items of a vector that a sort would put at these ranks."""
    return lambda x: _order_statistics(x=x, ranks=ranks)[0]


def _sort(parameters: Mapping[str, Any], *operands: jax.Array) -> list[jax.Array] | None:
    """Sorts rows like `lax.sort`; returns None if kernels cannot."""
    number = parameters["num_keys"]
    if number > MAX_COLUMNS or operands[0].size == 0 or not all(x.dtype == bool or is_key(x) for x in operands):
        return None

    def sort(*columns: jax.Array) -> list[jax.Array]:
        keys = tuple(x.astype(jnp.uint8) if x.dtype == bool else x for x in columns[:number])
        if len(columns) == 1:
            results = [mgpu.sort(keys[0])]
        else:
            first, rest = mgpu.sort(keys if number > 1 else keys[0], list(columns[number:]))
            results = [*(first if number > 1 else [first]), *rest]
        return [x.astype(column.dtype) for x, column in zip(results, columns, strict=True)]

    result: list[jax.Array] | None = along(parameters["dimension"], sort, *operands)
    return result


def _scan(op: ScannedName) -> Callable[..., Any]:
    def rule(parameters: Mapping[str, Any], x: jax.Array) -> list[jax.Array] | None:
        if not is_key(x) or x.size == 0:
            return None
        return [along(parameters["axis"], lambda row: mgpu.scan(row, op, reverse=parameters["reverse"]), x)]

    return rule


_RULES = {"sort": _sort, "cumsum": _scan("add"), "cumprod": _scan("mul")}
