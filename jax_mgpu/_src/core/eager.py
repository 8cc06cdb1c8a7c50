"""Runs each eager call of a public function as one compiled program, which later calls reuse.

Static arguments are part of the program, as under `jax.jit`. JAX arrays are its operands, and so are NumPy arrays whose
types JAX has, or whose integers fit these types. Other values belong to the host, such as Python numbers, or 64-bit
floats without `jax_enable_x64`. The code that checks and converts them must see the values, so it runs on the host, and
its results are operands.

The first call with given shapes traces the function with a `HostValue` for each value of the host; `on_host` and
`check_on_host` record the conversions and checks. Later calls repeat only these.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten

from jax_mgpu._src.core.compat import (
    OPTIONS,
    ArrayImpl,
    InconclusiveSize,
    PyTreeDef,
    compiles,
    flatten,
    has_64_bits,
    is_eager,
    is_symbolic,
    is_within_program,
    on_mesh_of,
)

try:
    from jax_mgpu._kernels import EagerCalls
except ImportError:  # a package without kernels
    EagerCalls = None  # type: ignore[assignment, misc]

# The types of arrays from the host, and what JAX makes of them without `jax_enable_x64`.
NARROW = "bool int8 int16 int32 uint8 uint16 uint32 float16 bfloat16 float32 complex64".split()  # noqa: SIM905
WIDE = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}
DTYPES = {jnp.dtype(given): jnp.dtype(made) for given, made in [*zip(NARROW, NARROW, strict=True), *WIDE.items()]}
# A `Width` of ffi/python/eager_calls.h for each of these types.
WIDTHS = {given: 0 if given is made else {"i": 1, "u": 2}.get(given.kind, 3) for given, made in DTYPES.items()}

Function = TypeVar("Function", bound=Callable[..., Any])

# Python numbers; `_Step` keeps repeated ones on the device.
NUMBERS = frozenset([bool, int, float])
# Operands that a program takes as they are.
ARRAYS = frozenset([type(None), ArrayImpl])
# Settings that `jax.jit` tells apart, as static arguments, by type and value.
SETTINGS = frozenset([type(None), bool, int, str])

# The most programs in `_PROGRAMS`, and in `known` of each public function.
MAX_PROGRAMS = 4096
# The most numbers that one conversion remembers.
MAX_NUMBERS = 16


def jit_eager(*static: str) -> Callable[[Function], Function]:
    """Runs an eager call as one program.

    `static` names flags, sizes, strings and functions, which are part of the program.
    """

    def decorate(function: Function) -> Function:
        run = _Public(function, static).calls()

        @functools.wraps(function)
        def call(*positional: Any, **named: Any) -> Any:
            try:
                return run(positional, named)
            except Exception as error:
                _forget_notes(error)
                raise

        return call  # type: ignore[return-value]

    return decorate


class _Public:
    def __init__(self, function: Callable[..., Any], static: Sequence[str]):
        @functools.wraps(function)
        def on_mesh(*positional: Any, **named: Any) -> Any:
            with on_mesh_of(positional, named):
                return function(*positional, **named)

        self.function, self.static = on_mesh, frozenset(static)
        self.names = tuple(inspect.signature(function).parameters)
        assert self.static <= set(self.names)
        # By keys of `EagerCalls`: programs with their `sources`, or functions of leaves with the order of the leaves.
        self.known: dict[Any, tuple[Callable[..., Any], Sequence[Any]]] = {}

    def calls(self) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        if EagerCalls is None:
            program = jax.jit(self.function, static_argnames=tuple(self.static))

            def call(positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
                is_plain = is_eager() and self._are_plain(positional, named)
                return program(*positional, **named) if is_plain else self.run(positional, named)

            return call
        named_tuple = self._named_tuple()

        @functools.wraps(self.function)
        def unnamed(*positional: Any, **named: Any) -> Any:
            result = self.function(*positional, **named)
            return result if named_tuple is None else tuple(result)

        program = jax.jit(unnamed, static_argnames=tuple(self.static))
        are_settings = tuple([name in self.static for name in self.names])
        common = ArrayImpl, np.ndarray, WIDTHS, *OPTIONS
        return EagerCalls(program, self.run, self.known, are_settings, self.static, named_tuple, common).run

    def _named_tuple(self) -> type | None:
        """Returns the type of the results if it is a named tuple, which `EagerCalls` makes in less time than JAX."""
        name: str = self.function.__annotations__.get("return", "")
        result = inspect.unwrap(self.function).__globals__.get(name)
        return result if hasattr(result, "_fields") else None

    def _are_plain(self, positional: tuple[Any, ...], named: dict[str, Any]) -> bool:
        """Whether all arguments are arrays of JAX and settings that `jax.jit` tells apart."""
        if len(positional) > len(self.names):
            return False
        for name, x in [*zip(self.names, positional, strict=False), *named.items()]:
            if type(x) not in (SETTINGS if name in self.static else ARRAYS):
                return False
        return True

    def run(self, positional: Sequence[Any], named: Mapping[str, Any], found_by: object = None) -> Any:
        """Runs any call; with a key of `EagerCalls`, stores the program for later calls."""
        if (not is_eager() and is_within_program()) or named.get("axis_name") is not None or not compiles():
            return self.within_program(positional, named)
        function, static = self.function, self.static
        given = {**dict(zip(self.names, positional, strict=False)), **named}
        names = [name for name in self.names if name in given]
        if len(names) < len(positional) + len(named):
            return function(*positional, **named)
        for name, value in given.items():
            if isinstance(value, HostChecked):
                given[name] = value.on_host()
        settings = {name: given.pop(name) for name in names if name in static}
        try:
            key = tuple([(name, _key(value)) for name, value in settings.items()]) if settings else ()
        except TypeError:  # an argument is not hashable, such as a traced size: the function raises
            return function(*positional, **named)
        names = [name for name in names if name not in static]
        leaves, structure = flatten([given[name] for name in names])
        program = _program((function, key, tuple(names), structure), settings, leaves)
        if found_by is not None:
            kept = [name for name, value in given.items() if value is not None]
            order = sorted(range(len(kept)), key=lambda i: names.index(kept[i]))
            if len(self.known) >= MAX_PROGRAMS:
                self.known.clear()
            is_usual = not program.checks and order == [*range(len(kept))]
            self.known[found_by] = (program.run, program.sources) if is_usual else (program.call, tuple(order))
        return program.call(*leaves)

    def within_program(self, positional: Sequence[Any], named: Mapping[str, Any]) -> Any:
        try:
            return self.function(*positional, **named)
        except (InconclusiveSize, UnknownSizeError) as error:  # the error names the outermost function
            given = {**dict(zip(self.names, positional, strict=False)), **named}
            raise unknown_size(self.function.__name__, given, error) from error


class HostChecked:
    """A pytree whose NumPy arrays the host checks before each call, even if none needs a conversion."""

    def on_host(self) -> Any:
        """Returns the pytree with its NumPy arrays as host values, which checks see."""
        children, structure = flatten(self)
        return structure.unflatten([x.view(_HostArray) if type(x) is np.ndarray else x for x in children])


class _HostArray(np.ndarray):
    """A NumPy array as a host value, whatever its type."""


def on_host(convert: Callable[..., Any], x: object, *static: object) -> jax.Array:
    """Returns `convert(x, *static)` of an argument, or of a list, as an array.

    In the program of an eager call, host values give an operand, which the host converts before a call.
    """
    leaves, structure = flatten(x)
    if not any(isinstance(leaf, HostValue) for leaf in leaves):
        converted = convert(x, *static)
        # `jnp.asarray` would compile a program for each shape.
        return jnp.asarray(converted) if is_within_program() else jax.device_put(converted)
    if all(isinstance(leaf, HostValue) for leaf in leaves):
        result: jax.Array = leaves[0].operands.of(_Conversion.of(convert, static, leaves, structure))
        return result
    arrays = [on_host(convert, leaf, *static) if isinstance(leaf, HostValue) else leaf for leaf in leaves]
    return jnp.asarray(structure.unflatten(arrays))  # a list of numbers and arrays


def check_on_host(check: Callable[..., None], x: object, *static: object) -> None:
    """Runs `check(x, *static)` on a pytree; for an eager call's program, the host runs it before each call.

    `check` then gets `ARRAY` for each array operand.
    """
    leaves, structure = flatten(x)
    host = [leaf for leaf in leaves if isinstance(leaf, HostValue)]
    if host:
        host[0].operands.of(_Conversion.of(check, static, leaves, structure))
    else:
        check(x, *static)


class UnknownSizeError(ValueError):
    """A program depends on a size that `jax.export` does not know."""

    def __init__(self, message: str, reason: str):
        super().__init__(message)
        self.reason = reason


def unknown_size(operation: str, arguments: Mapping[str, Any], error: object) -> UnknownSizeError:
    """Returns the error of a call whose program depends on a size that `jax.export` does not know."""
    unknown = [(name, x) for name, given in arguments.items() for x in tree_flatten(given)[0] if is_symbolic(x)]
    argument, x = unknown[0] if unknown else ("size", None)
    got = "one" if x is None else f"{x.dtype.name}[{','.join(map(str, x.shape))}]"
    reason = error.reason if isinstance(error, UnknownSizeError) else str(error).splitlines()[0]
    return UnknownSizeError(f"{operation}: {argument}: expected known sizes, got {got}: {reason}", reason)


def _forget_notes(error: Exception) -> None:
    notes = [note for note in getattr(error, "__notes__", ()) if "internal frames" not in note]
    if hasattr(error, "__notes__"):
        error.__notes__ = notes


ARRAY, LEAF = jax.ShapeDtypeStruct((0,), bool), jax.tree.structure(0)


class HostValue:
    """An argument that the host converts: tracing may use its shape and type, but not its value."""

    def __init__(self, operands: _Noted | _Known, place: int, value: Any):
        self.operands, self.place, self.value = operands, place, value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def __repr__(self) -> str:
        return repr(self.value)


@dataclasses.dataclass(frozen=True)
class _Conversion:
    """A conversion or check of some leaves of a call by the host."""

    convert: Callable[..., Any]
    static: tuple[Any, ...]
    structure: PyTreeDef
    places: tuple[int | None, ...]

    @classmethod
    def of(
        cls, convert: Callable[..., Any], static: tuple[Any, ...], leaves: Sequence[Any], structure: PyTreeDef
    ) -> Any:
        places = [leaf.place if isinstance(leaf, HostValue) else None for leaf in leaves]
        return cls(convert, static, structure, tuple(places))

    def __call__(self, leaves: Sequence[Any]) -> Any:
        given = [ARRAY if place is None else leaves[place] for place in self.places]
        return self.convert(self.structure.unflatten(given), *self.static)


class _Step:
    """The conversion of one leaf in later calls."""

    def __init__(self, conversion: _Conversion, place: int):
        self.convert, self.static, self.place = conversion.convert, conversion.static, place
        self.numbers: dict[Any, Any] = {}  # all are of one type; zeros are found by text, which tells 0.0 from -0.0

    @classmethod
    def of(cls, conversion: _Conversion) -> Callable[[Sequence[Any]], Any]:
        """Returns a step, or the conversion itself if it takes a list or another pytree."""
        place = conversion.places[0] if conversion.structure == LEAF else None
        return conversion if place is None else cls(conversion, place)

    def __call__(self, leaves: Sequence[Any]) -> Any:
        leaf = leaves[self.place]
        if type(leaf) not in NUMBERS:
            return self.convert(leaf, *self.static)
        number = leaf or repr(leaf)
        known = self.numbers.get(number)
        if known is not None:
            return known
        converted = self.convert(leaf, *self.static)
        if number in self.numbers and is_eager():
            converted = self.numbers[number] = jax.device_put(converted)
        else:
            if len(self.numbers) >= MAX_NUMBERS:
                self.numbers.clear()
            self.numbers[number] = None
        return converted


class _Noted:
    """The conversions that a program's first trace asks for."""

    def __init__(self, leaves: Sequence[Any]):
        self.leaves = leaves
        self.conversions: dict[_Conversion, bool] = {}  # the value says whether the conversion makes an operand

    def of(self, conversion: _Conversion) -> Any:
        """Returns an operand like the one that the conversion makes."""
        converted = conversion(self.leaves)
        self.conversions[conversion] = converted is not None
        return None if converted is None else jax.lax.full_like(jnp.asarray(converted), 0)


@dataclasses.dataclass(frozen=True)
class _Known:
    operands: Mapping[_Conversion, Any]

    def of(self, conversion: _Conversion) -> Any:
        """Returns the operand that a conversion made; None for a check."""
        return self.operands.get(conversion)


def _program(key: tuple[Any, ...], settings: Mapping[str, Any], leaves: Sequence[Any]) -> _Program:
    host = tuple([i for i, leaf in enumerate(leaves) if not _is_operand(leaf)])
    kinds: list[Any] = []
    if host:  # conversions depend on shapes and types; jax.jit tells calls without conversions apart
        kinds = [_kind(leaf) for leaf in leaves]
        key = *key, host, has_64_bits(), *kinds
    program = _PROGRAMS.get(key)
    if program is None:
        program = _Program(key, settings, leaves, host)
        if None not in kinds:
            program.keep(key, [value for value in settings.values() if callable(value)])
    return program


_PROGRAMS: dict[Any, _Program] = {}


class _Program:
    """A public function's program, which refers weakly to the caller's functions, and is dropped with them."""

    def __init__(self, key: tuple[Any, ...], settings: Mapping[str, Any], leaves: Sequence[Any], host: Sequence[int]):
        function, _, names, structure, *_ = key
        self.operands = [i for i in range(len(leaves)) if i not in host]
        stand_ins = {i: _stand_in(leaves[i]) for i in host}

        def call(settings: Mapping[str, Any], values: Mapping[int, Any], converted: Any, operands: Any) -> Any:
            rest, places = iter(operands), range(len(values) + len(operands))
            filled = [HostValue(converted, i, values[i]) if i in values else next(rest) for i in places]
            return function(**settings, **dict(zip(names, structure.unflatten(filled), strict=True)))

        noted = _Noted(leaves)
        if host:
            values = {i: leaves[i] for i in host}
            jax.eval_shape(
                lambda *operands: call(settings, values, noted, operands), *[leaves[i] for i in self.operands]
            )
        self.checks = [conversion for conversion, gives in noted.conversions.items() if not gives]
        conversions = [conversion for conversion, gives in noted.conversions.items() if gives]
        self.steps = [_Step.of(conversion) for conversion in conversions]
        # Where `EagerCalls` finds operands: known numbers or what a step makes, and leaves by their places.
        steps = [(step.place, step.numbers, step) if isinstance(step, _Step) else step for step in self.steps]
        self.sources = (*steps, *self.operands)
        held = {name: _Weak(value) if callable(value) else value for name, value in settings.items()}

        def run(*operands: Any) -> Any:
            given = {name: value.get() if isinstance(value, _Weak) else value for name, value in held.items()}
            converted = _Known(dict(zip(conversions, operands)))  # noqa: B905 - the caller's operands follow
            return call(given, stand_ins, converted, operands[len(conversions) :])

        run.__name__ = run.__qualname__ = function.__name__
        self.run = jax.jit(run)
        self.call = self._call_of_host if host else self.run

    def _call_of_host(self, *leaves: Any) -> Any:
        for check in self.checks:
            check(leaves)
        return self.run(*[step(leaves) for step in self.steps], *[leaves[i] for i in self.operands])

    def keep(self, key: tuple[Any, ...], functions: Sequence[Any]) -> None:
        """Lets later calls find the program as long as these functions live."""

        def forget(_: object, programs: dict[Any, _Program] = _PROGRAMS) -> None:  # the module may be gone at exit
            programs.pop(key, None)

        try:
            self.watched = [weakref.ref(part, forget) for one in functions for part in _parts(one)]
        except TypeError:  # the function allows no weak references
            return
        if len(_PROGRAMS) >= MAX_PROGRAMS:
            for oldest in list(_PROGRAMS)[: len(_PROGRAMS) + 1 - MAX_PROGRAMS]:
                _PROGRAMS.pop(oldest, None)
        _PROGRAMS[key] = self


class _Weak:
    """A caller's function, which the caller holds while its program is traced."""

    def __init__(self, function: Callable[..., Any]):
        try:
            self.get: Any = weakref.WeakMethod(function) if inspect.ismethod(function) else weakref.ref(function)
        except TypeError:
            self.get = lambda: function


def _parts(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Returns the objects that identify a function; a bound method is a new object at each access."""
    return (function.__self__, function.__func__) if isinstance(function, types.MethodType) else (function,)


def _key(value: Any) -> Any:
    """Returns a setting's key, which tells 1 from True, and 0.0 from -0.0."""
    kind = type(value)
    if value is None or kind in (str, bool, int) or isinstance(value, np.dtype):
        return kind, value
    if kind in (float, complex):
        return kind, repr(value)
    if isinstance(value, np.generic):
        return kind, value.dtype, value.tobytes()
    if kind in (tuple, list):
        return kind, tuple(map(_key, value))
    if kind is dict:
        return kind, tuple([(_key(name), _key(x)) for name, x in value.items()])
    if callable(value):
        return tuple(map(id, _parts(value)))
    raise TypeError(kind)


def _is_operand(leaf: jax.Array | np.ndarray) -> bool:
    """Whether a program takes a leaf unconverted; tracers are operands too."""
    return isinstance(leaf, jax.Array) or _is_kept(leaf)


def _is_kept(leaf: Any) -> bool:
    """Whether a program takes a leaf as it is.

    It takes arrays of JAX, None, and NumPy arrays whose types JAX has, or whose integers fit these types.
    """
    kind = type(leaf)
    if kind is not np.ndarray:
        return kind is ArrayImpl or leaf is None
    dtype = leaf.dtype
    narrow = DTYPES.get(dtype)
    if narrow is dtype or has_64_bits():
        return narrow is not None
    if narrow is None or narrow.kind not in "iu":  # floats may be rounded, which some functions check
        return False
    return not np.count_nonzero(leaf.astype(narrow) != leaf)


def _kind(leaf: object) -> Any:
    """Returns the properties on which conversions may depend; None if unknown."""
    kind = type(leaf)
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
        return leaf.shape, leaf.dtype
    if kind in (bool, float, complex, str):
        return kind
    return (kind, np.asarray(leaf).dtype) if kind is int else None


def _stand_in(leaf: jax.Array | np.ndarray) -> Any:
    return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape) if isinstance(leaf, np.ndarray) else leaf
