"""Operators by name over pytrees of rows: the arrays that kernels combine, their operators, and the results.

To a kernel, a leaf `[n, ...]` is `[n]` or `[n, width]`, and each column is combined on its own. Some names stand for
another operator over converted items, such as `"any"`. Some need the number of items as well, such as `"mean"`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.check import KEY_DTYPES, NUMBERS, as_array, describe, index_dtype, type_error, value_error
from jax_mgpu._src.core.compat import whole_axes
from jax_mgpu._src.core.operation import Operation
from jax_mgpu._src.functions.operators import Kind, expect_no_array_function, sum_dtype, wide_dtype

__all__ = ["NAMES", "Leaf", "expect_name", "named_leaves", "over_devices"]

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
NAMES = tuple(KINDS)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of a pytree, and how it is combined.

    Args:
      argument: its name in error messages.
      x: what the kernels combine, `[n]` or `[n, width]`.
      kind: the kernels' operator.
      wide: whether sums and products are to be wider than the items: of means of 16-bit floats, and of integers.
      mean: whether sums are divided by the numbers of items.
      trailing: the shape of an item.
      dtype: that of the results.
      fill: the result where there is none: 0, or -1 for indices.
    """

    argument: str
    x: jax.Array
    kind: Kind
    wide: bool
    mean: bool
    trailing: tuple[int, ...]
    dtype: np.dtype
    fill: int

    @property
    def rows(self) -> jax.Array:
        """The same as `[n, width]`."""
        return self.x.reshape(self.x.shape[0], math.prod(self.trailing))

    @property
    def converted(self) -> Leaf:
        """The same of items that have the type of the sums."""
        return dataclasses.replace(self, x=self.x.astype(wide_dtype(self.x.dtype)), wide=False) if self.wide else self

    @property
    def is_empty(self) -> bool:
        """Whether an item has no elements, and there is nothing to combine."""
        return math.prod(self.trailing) == 0

    def results(self, combined: jax.Array, leading: tuple[int, ...], counts: Callable[[], jax.Array]) -> jax.Array:
        """The results, `[*leading, *trailing]`, of what the kernels gave; `counts` are the items in each."""
        combined = combined.reshape(*leading, *self.trailing)
        if self.mean:
            items = counts().astype(combined.dtype).reshape(*leading, *[1] * len(self.trailing))
            items = jnp.broadcast_to(items, combined.shape).reshape(-1)
            combined = _divide(sums=combined.reshape(-1), items=items)[0].reshape(combined.shape)
        return combined.astype(self.dtype)

    def nothing(self, leading: tuple[int, ...]) -> jax.Array:
        """The results where an item has no elements."""
        return jnp.zeros((*leading, *self.trailing), self.dtype)


def over_devices(
    leaf: Leaf, run: Callable[[Kind, jax.Array], Sequence[jax.Array]], leading: Sequence[tuple[int, ...]], dtype: Any
) -> list[jax.Array]:
    """A leaf's results over a mesh axis, of these leading axes; numbers of items are of this dtype.

    `run` combines an array `[n]` or `[n, width]` by an operator.
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
    x: Any,
    op: Any,
    identity: Any = None,
    devices: int = 1,
    takes_functions: bool = True,
    widens: bool = True,
    dtype: Any = None,
) -> tuple[list[Leaf], Callable[[Sequence[Any]], Any], int]:
    """The leaves of a pytree of arrays `[n, ...]`, what puts results in their places, and n.

    `op` is a name, or a pytree of names over that of x. Numbers of items, and indices, are those of so many devices.
    With `widens`, sums and products of integers have the type of `jnp.sum`, if no dtype is asked for.
    """
    if isinstance(x, (list, tuple)) and x and all(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(x)):
        x = as_array(operation, argument, x)  # of numbers
    structure: Any
    paths, structure = jax.tree_util.tree_flatten_with_path(x)
    if not paths:
        paths, structure = [((), x)], jax.tree.structure(0)
    names = _names(operation, op, x, structure, takes_functions)
    if identity is not None:
        raise value_error(operation, "identity", f"none, as {names[0] if names else 'op'} has its own", "one")
    leaves: list[Leaf] = []
    n = 0
    for (path, leaf), name in zip(paths, names, strict=True):
        place = argument + jax.tree_util.keystr(path)
        array = as_array(operation, place, leaf)
        if array.ndim == 0:
            raise value_error(operation, place, "an array with a leading axis", describe(array))
        if leaves and array.shape[0] != n:
            expected = f"arrays with the leading axis of each other, {n}"
            raise value_error(operation, place, expected, describe(array))
        n = array.shape[0]
        leaves.append(_leaf(operation, place, array, name, devices * n, widens, dtype))
    return leaves, structure.unflatten, n


def _names(operation: str, op: Any, x: Any, structure: Any, takes_functions: bool) -> list[str]:
    """The operator's name of each leaf."""
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
        expect_name(operation, name, NAMES, takes_functions)
    return names


def expect_name(operation: str, name: Any, names: Sequence[str], takes_functions: bool = True) -> None:
    """The name of an operator; an error tells whether a function may take its place."""
    if isinstance(name, str) and name in names:
        return
    expect_no_array_function(operation, name, takes_functions)
    expected = f"one of {', '.join(names)}" + ", or a function of two items" * takes_functions
    raise value_error(operation, "op", expected, repr(name))


def _leaf(operation: str, argument: str, x: jax.Array, name: str, n: int, widens: bool, convert_to: Any) -> Leaf:
    """One array, converted to what its operator combines; n is the number of all items."""
    x = _numbers(operation, argument, x, convert_to)
    is_bool = x.dtype == jnp.bool_
    is_float = jnp.issubdtype(x.dtype, jnp.floating)

    def expect(holds: bool, expected: str) -> None:
        if not holds:
            place, got = (argument, describe(x)) if convert_to is None else ("dtype", x.dtype.name)
            raise type_error(operation, place, f"{expected} for {name!r}", got)

    kind, mean, wide = KINDS[name], name == "mean", False
    items, dtype = whole_axes(x), x.dtype
    if name in ("any", "all"):
        items, dtype = (items if is_bool else items != 0), np.dtype(bool)
    elif name in ("and", "or", "xor"):
        expect(not is_float, "integers or bools")
    elif name == "logsumexp":
        expect(is_float, "floats")
    elif mean:
        expect(is_float or convert_to is None, "floats")
        if is_float:
            wide = x.dtype.itemsize < 4
        else:
            dtype = jnp.result_type(float)
            items = items.astype(dtype)
    elif is_bool:
        if kind == Kind.ADD:  # a count, which has the type of jnp.sum and holds n
            dtype = np.promote_types(sum_dtype(x.dtype), index_dtype(operation, argument, n))
            items = items.astype(dtype)
        elif kind.gives_index:
            items = items.astype(jnp.uint8)
        else:
            dtype = sum_dtype(x.dtype) if kind == Kind.MUL else dtype
            kind = Kind.OR if kind == Kind.MAX else Kind.AND
    elif kind in (Kind.ADD, Kind.MUL) and widens and convert_to is None and not is_float:
        dtype = sum_dtype(x.dtype)
        wide = dtype != x.dtype
    if kind.gives_index:
        dtype = index_dtype(operation, argument, n)
    width = math.prod(x.shape[1:])
    rows = items.reshape(x.shape[0]) if width == 1 else items.reshape(x.shape[0], width)
    fill = -1 if kind.gives_index else 0
    return Leaf(argument, rows, kind, wide, mean, x.shape[1:], np.dtype(dtype), fill)


def _numbers(operation: str, argument: str, x: jax.Array, convert_to: Any) -> jax.Array:
    """An array of numbers or bools, of the dtype that the caller asks for: JAX warns of 64 bits without x64."""
    if x.dtype.name not in KEY_DTYPES and x.dtype != jnp.bool_:
        raise type_error(operation, argument, NUMBERS, describe(x))
    return x if convert_to is None else x.astype(convert_to)


def _exact_quotient(sums: jax.Array, items: jax.Array) -> Sequence[jax.Array]:
    """Sums divided by numbers of items, rounded as IEEE 754 rounds, so that the mean of equal items is that item.

    XLA divides by a constant or a broadcast number by multiplying by its reciprocal, of which the mean of 41 times 127
    is not 127. The greater of the number and what is not above 0 is neither.
    """
    quotients = sums / jnp.maximum(items, -jnp.abs(sums))
    return [corrected_quotient(quotients, sums, items) if sums.dtype == jnp.float32 else quotients]


def corrected_quotient(quotients: jax.Array, sums: jax.Array, items: jax.Array) -> jax.Array:
    """Float32 quotients that are a few units off, as XLA computes them on a GPU, after one step of Newton's method.

    The remainder must be exact. So both factors are cut into halves of 12 bits, whose products are exact with and
    without fused multiplication. Where it is no number, a quotient is infinite or NaN, and stays.
    """
    (q, q_rest), (n, n_rest) = _halves(quotients), _halves(items.astype(sums.dtype))
    remainders = sums - q * n - q * n_rest - q_rest * n - q_rest * n_rest
    return jnp.where(jnp.isfinite(remainders) & (remainders != 0), quotients + remainders / items, quotients)


def _halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Float32 numbers as sums of two numbers of 12 bits."""
    words = jax.lax.bitcast_convert_type(x, jnp.uint32) & jnp.uint32(0xFFFFF000)
    high = jax.lax.bitcast_convert_type(words, jnp.float32)
    return high, x - high


# An operation of its own, as it is linear in the sums, which JAX could not tell.
_divide = Operation(
    "divide",
    operands={"sums": 1, "items": 1},
    results=("means",),
    attributes={},
    shapes=lambda sums: [sums],
    fallback=_exact_quotient,
    only="",
    is_registered=False,
)
_divide.def_jvp(
    lambda primals, tangents: (
        _divide.run(primals),
        [None] if tangents.sums is None else _divide.run(primals._replace(sums=tangents.sums)),
    )
)
_divide.def_transpose("sums", lambda cotangents, operands: _divide.run(operands._replace(sums=cotangents[0]))[0])
