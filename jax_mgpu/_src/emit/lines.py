"""The lines of a function in C++, and the names that they give to values."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jax_mgpu._src.bits import is_random_key
from jax_mgpu._src.emit.memory import Memory
from jax_mgpu._src.emit.scalars import Names, Unsupported, expect_small, scalar_text, scalar_type

__all__ = ["Emitted", "Lines", "stored"]

MOST_LINES = 8192
# Larger functions are called: copied to each place that combines, they take seconds to compile. A costly primitive
# counts for several lines.
MOST_INLINE_LINES = 100
COSTLY_LINES = 12


@dataclasses.dataclass(frozen=True)
class Emitted:
    """A function in C++.

    Args:
      body: the lines that compute the results, and their last names.
      results: the names of the results' elements.
      is_large: whether it is to be called and not copied.
      branches: whether it is large or has control flow, so that it is not to be run for nothing.
      neutral: what changes nothing in a combination, a scalar a leaf, where the function combines each leaf by a
        primitive that has such a value; all of these commute.
    """

    body: str
    results: list[Names]
    is_large: bool
    branches: bool
    neutral: list[Any] | None


class Lines:
    """The lines of one function, as far as they are written.

    Attributes:
      lines: the text, indented by `depth` steps.
      costly: how many scalars are computed by primitives that take many instructions.
      branches: whether there is control flow.
      may_not_end: whether there is a while loop.
      made: for the name of a call's result, the function and its arguments.
      constants: for the text of a constant, its value.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 2
        self.costly = 0
        self.branches = False
        self.may_not_end = False
        self.made: dict[str, tuple[str, ...]] = {}
        self.constants: dict[str, Any] = {}
        self._numbers = itertools.count()

    def fresh(self, prefix: str) -> str:
        """A name that no line has yet."""
        return f"{prefix}{next(self._numbers)}"

    def line(self, text: str) -> None:
        """Writes a line."""
        self.lines.append("  " * self.depth + text)
        if len(self.lines) > MOST_LINES:
            raise Unsupported(f"more than {MOST_LINES} operations on scalars")

    def scalar(self, expression: str, dtype: Any) -> str:
        """The name of a new constant."""
        name = self.fresh("v")
        self.line(f"const {scalar_type(dtype)} {name} = {expression};")
        return name

    def called(self, function: str, arguments: Sequence[str], dtype: Any) -> str:
        """The name of what a function of ffi/function/primitives.h gives."""
        name = self.scalar(f"xla::{function}({', '.join(arguments)})", dtype)
        self.made[name] = (function, *arguments)
        return name

    def variables(self, aval: Any) -> Names:
        """The names of new variables, which have no values yet."""
        expect_small(aval.shape, "a value")
        names = np.empty(aval.shape, object)
        for index in np.ndindex(*aval.shape):
            names[index] = self.fresh("v")
            self.line(f"{scalar_type(aval.dtype)} {names[index]};")
        return names

    def assign(self, variables: Names, values: Names) -> None:
        """Gives variables their values."""
        for index in np.ndindex(*variables.shape):
            self.line(f"{variables[index]} = {values[index]};")

    def constant(self, value: Any, dtype: Any) -> Names:
        """Constants, written where names are used."""
        value = np.asarray(value)
        names = np.empty(value.shape, object)
        for index in np.ndindex(*value.shape):
            text = scalar_text(value[index], dtype)
            self.constants[text] = value[index]
            names[index] = text
        return names

    def loaded(self, x: Any) -> Names:
        """A value's names; those of a view of memory once it is loaded."""
        if not isinstance(x, Memory):
            return x
        expect_small(x.shape, "a captured array, used other than by indexing it,")
        names = np.empty(x.shape, object)
        for index in np.ndindex(*x.shape):
            place = sum(i * stride for i, stride in zip(index, x.strides, strict=True))
            names[index] = self.scalar(f"{x.name}[{x.offset} + {place}]", x.dtype)
        return names

    def each(self, write: Callable[..., str], arguments: Sequence[Names], shape: tuple[int, ...]) -> Names:
        """The names that `write` gives for each element of the arguments."""
        names = np.empty(shape, object)
        arrays = [np.broadcast_to(x, shape) for x in arguments]
        for index in np.ndindex(*shape):
            names[index] = write(*(x[index] for x in arrays))
        return names

    def emitted(self, results: list[Names], neutral: list[Any] | None) -> Emitted:
        """All that has been written, as one function."""
        is_large = len(self.lines) + COSTLY_LINES * self.costly > MOST_INLINE_LINES
        return Emitted("\n".join(self.lines), results, is_large, is_large or self.branches, neutral)


def stored(aval: Any) -> Any:
    """The aval of a value's names: random keys are rows of words."""
    if not is_random_key(aval.dtype):
        return aval
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
