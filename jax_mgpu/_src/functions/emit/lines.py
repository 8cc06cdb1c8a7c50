"""Collects the lines of a function, and names the values that they compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from jax_mgpu._src.arguments.annotations import Aval, DTypeLike
from jax_mgpu._src.functions.emit.memory import Memory
from jax_mgpu._src.functions.emit.scalars import Names, Unsupported, expect_small, scalar_text, scalar_type
from jax_mgpu._src.keys.bits import is_random_key

__all__ = ["Emitted", "Equation", "Lines", "stored"]


class Atom(Protocol):
    """A value of a jaxpr, which is an array."""

    @property
    def aval(self) -> jax.core.ShapedArray: ...


class Equation(Protocol):
    """An equation of a jaxpr, whose values are arrays."""

    @property
    def invars(self) -> Sequence[Atom]: ...  # noqa: D102
    @property
    def outvars(self) -> Sequence[Atom]: ...  # noqa: D102
    @property
    def params(self) -> dict[str, Any]: ...  # noqa: D102


MAX_LINES = 8192
# Larger functions are called instead of inlined, so that they compile faster. A costly primitive counts as several
# lines.
MAX_INLINE_LINES = 100
COSTLY_LINES = 12


@dataclasses.dataclass(frozen=True)
class Emitted:
    """A written function.

    Args:
      body: its lines.
      results: names of the results' elements.
      is_large: whether it is called instead of inlined.
      branches: whether it is large or has control flow, so that kernels run it only if they need its result.
      neutral: a neutral scalar per leaf, if each leaf is combined by one commuting primitive; else None.
    """

    body: tuple[str, ...]
    results: list[Names]
    is_large: bool
    branches: bool
    neutral: list[Any] | None


class Lines:
    """The lines of one function so far.

    Attributes:
      costly: the number of scalars that primitives of many instructions compute.
      branches: whether there is control flow.
      may_not_end: whether there is a while loop.
      made: operation and operands of each named value.
      constants: their values, by text.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.costly = 0
        self.branches = False
        self.may_not_end = False
        self.made: dict[str, tuple[str, ...]] = {}
        self.constants: dict[str, Any] = {}

    def line(self, *words: object) -> None:
        """Writes a line."""
        self.lines.append(" ".join(map(str, words)))
        if len(self.lines) > MAX_LINES:
            raise Unsupported(f"more than {MAX_LINES} operations on scalars")

    def value(self, dtype: DTypeLike, operation: str, *operands: object) -> str:
        """Names the result of an operation of ffi/jit/function_data.cc."""
        name = f"v{len(self.made)}"
        self.made[name] = (operation, *map(str, operands))
        self.line(name, scalar_type(dtype), operation, *operands)
        return name

    def variables(self, aval: Aval) -> Names:
        """Names new variables without values."""
        expect_small(aval.shape, "a value")
        names = np.empty(aval.shape, object)
        for index in np.ndindex(*aval.shape):
            names[index] = self.value(aval.dtype, "variable")
        return names

    def assign(self, variables: Names, values: Names) -> None:
        """Gives variables their values."""
        for index in np.ndindex(*variables.shape):
            self.line("set", variables[index], values[index])

    def constant(self, value: Any, dtype: DTypeLike) -> Names:
        """Returns the texts of constants, which stand in place of names."""
        value = np.asarray(value)
        names = np.empty(value.shape, object)
        for index in np.ndindex(*value.shape):
            text = scalar_text(value[index], dtype)
            self.constants[text] = value[index]
            names[index] = text
        return names

    def loaded(self, x: Any) -> Names:
        """Returns a value's names; a view of memory is loaded first."""
        if not isinstance(x, Memory):
            return x
        expect_small(x.shape, "a captured array, used other than by indexing it,")
        names = np.empty(x.shape, object)
        for index in np.ndindex(*x.shape):
            names[index] = self.element(x, index)
        return names

    def element(self, x: Memory, index: Sequence[int]) -> str:
        """Loads an element; returns its name."""
        place = x.offset + sum(i * stride for i, stride in zip(index, x.strides, strict=True))
        return self.value(x.dtype, "load", x.capture, place, *(word for step in x.steps for word in step))

    def each(self, write: Callable[..., str], arguments: Sequence[Names], shape: tuple[int, ...]) -> Names:
        """Returns the names that `write` returns for each element of the arguments."""
        names = np.empty(shape, object)
        arrays = [np.broadcast_to(x, shape) for x in arguments]
        for index in np.ndindex(*shape):
            names[index] = write(*(x[index] for x in arrays))
        return names

    def emitted(self, results: list[Names], neutral: list[Any] | None) -> Emitted:
        """Returns all lines so far as one function."""
        is_large = len(self.lines) + COSTLY_LINES * self.costly > MAX_INLINE_LINES
        return Emitted(tuple(self.lines), results, is_large, is_large or self.branches, neutral)


def stored(aval: Aval) -> Any:
    """Returns the aval of a value as an array of names: random keys become rows of words."""
    if not is_random_key(aval.dtype):
        return aval
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
