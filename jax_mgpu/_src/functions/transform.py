"""`map=` of reductions and scans: a function of an item, or of an item and its position.

Compiled kernels may evaluate it when they load an item. Otherwise `jax.vmap` maps the items first.

`emit=` of scans maps a function of a state over the states that a scan wrote.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.annotations import AxisName, Count, DTypeLike, ItemFunction, Pytree
from jax_mgpu._src.arguments.check import count_operand, expect_pytree, index_dtype, result_shapes, type_error
from jax_mgpu._src.arguments.counts import live_mask
from jax_mgpu._src.arguments.values import plain_leaves
from jax_mgpu._src.core.compat import flatten, whole_axes
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.functions.blocked_scan import select
from jax_mgpu._src.functions.named_operators import Leaf
from jax_mgpu._src.functions.operators import Kind
from jax_mgpu._src.mesh.axis import Axis


@dataclasses.dataclass(frozen=True)
class Load:
    """Items in memory, and how an operation makes its items from them.

    Args:
      leaves: `[n, ...]`.
      function: makes an item's leaves from those in memory and, last, the position.
    """

    leaves: tuple[jax.Array, ...]
    function: Callable[..., list[Any]]
    position_dtype: Any

    @property
    def item(self) -> list[Any]:
        """The leaves of one item in memory."""
        return [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in self.leaves]


def mapped(
    operation: str,
    function: ItemFunction | None,
    x: Pytree,
    count: Count,
    argument: str = "x",
    axis_name: AxisName | None = None,
    inside: Callable[[jax.Array], jax.Array] | None = None,
) -> tuple[Any, Load | None]:
    """Returns the items that the operation works on, and how they are loaded; without a function, the given items.

    `count` is the argument of the public function. Over a mesh axis, a position is that in the global array. `inside`
    excludes items that belong to no segment from the derivatives of an array.
    """
    if function is None:
        return x, None
    expected = "a function of an item, or of an item and its position"
    if not callable(function):
        raise type_error(operation, "map", expected, repr(function))
    leaves, structure, n = expect_pytree(operation, argument, x)
    count = count_operand(operation, "count", count, n)
    plain, restore = plain_leaves(leaves)
    plain = [whole_axes(leaf) for leaf in plain]
    if inside is not None:
        plain = [inside(leaf) for leaf in plain]
    item_of = _checked(operation, "map", expected, function, plain, lambda given: structure.unflatten(restore(given)))
    position_dtype, begin = _positions(operation, argument, n, count, axis_name)
    items = map_leaves(item_of, plain, count, position_dtype, begin)
    load = Load(tuple(plain), lambda *given: plain_leaves(jax.tree.leaves(item_of(*given)))[0], position_dtype)
    return items, load


def _checked(
    operation: str,
    argument: str,
    expected: str,
    function: Callable[..., Any],
    leaves: Sequence[jax.Array],
    item_of: Callable[[Sequence[Any]], Any],
) -> Callable[..., Any]:
    """Wraps a function to take an item's leaves and a position of any integer type."""
    has_position = takes_position(function)

    def of_leaves(*given: jax.Array) -> Any:
        item = item_of(given[:-1])
        return jax.tree.map(jnp.asarray, function(item, given[-1]) if has_position else function(item))

    one = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in leaves]
    result = result_shapes(operation, argument, expected, of_leaves, *one, jax.ShapeDtypeStruct((), jnp.int32))
    if not jax.tree.leaves(result):
        raise type_error(operation, argument, f"{expected} that gives a pytree of arrays", "an empty pytree")
    return of_leaves


def emitted(
    operation: str,
    function: ItemFunction | None,
    states: Pytree,
    n: int,
    live: jax.Array | None,
    count: jax.Array,
    axis_name: AxisName | None = None,
) -> Any:
    """Maps a caller's function over n states, or states and their positions; 0 for those that are not `live`.

    The first live state replaces dead ones. Without a function, the states are returned.
    """
    if function is None:
        return states
    expected = "a function of a state, or of a state and its position"
    if not callable(function):
        raise type_error(operation, "emit", expected, repr(function))
    leaves, structure = flatten(states)
    plain, restore = plain_leaves(leaves)
    emit = _checked(operation, "emit", expected, function, plain, lambda given: structure.unflatten(restore(given)))
    position_dtype, begin = _positions(operation, "x", n, count, axis_name)
    if live is not None and n:
        first = jnp.argmax(live)
        plain = [select(live, leaf, jnp.broadcast_to(jax.lax.stop_gradient(leaf[first]), leaf.shape)) for leaf in plain]
    items: Any
    results, items = jax.tree.flatten(map_leaves(emit, plain, ABSENT, position_dtype, begin))
    if live is not None:
        results, restore = plain_leaves(results)
        results = restore([select(live, x, jnp.zeros_like(x)) for x in results])
    return items.unflatten(results)


def _positions(
    operation: str, argument: str, n: int, count: jax.Array, axis_name: AxisName | None
) -> tuple[Any, jax.Array | None]:
    """Returns the type of positions and, over a mesh axis, the first item's position."""
    if axis_name is None:
        return index_dtype(operation, argument, n), None
    axis = Axis(operation, axis_name)
    return axis.index_dtype(argument, n), axis.begin(axis.gather(axis.live(argument, n, count)))


def one_leaf(load: Load | None, leaves: list[Leaf]) -> tuple[Load | None, list[Leaf]]:
    """Returns the load and the leaf for a kernel that maps items as it loads them; without one, None and the leaves.

    Such kernels support one named operator over one array of numbers.
    """
    if load is None or len(leaves) != 1:
        return None, leaves
    leaf, function = leaves[0].converted, load.function
    if leaf.made is not None or leaf.trailing or leaf.mean or leaf.kind > Kind.ARGMAX:
        return None, leaves
    return dataclasses.replace(load, function=lambda *given: [function(*given)[0].astype(leaf.x.dtype)]), [leaf]


def map_leaves(
    function: Callable[..., Any],
    leaves: Sequence[jax.Array],
    count: jax.Array,
    position_dtype: DTypeLike,
    begin: jax.Array | None = None,
) -> Any:
    """Maps a function of an item's leaves and its position over all items.

    The first item replaces items past the count.
    """
    n = leaves[0].shape[0]
    positions = jnp.arange(n, dtype=position_dtype)
    if begin is not None:
        positions = positions + begin
    if count.size and n:
        live = live_mask(n, count)

        def chosen(x: jax.Array) -> jax.Array:
            return jnp.where(live.reshape(n, *[1] * (x.ndim - 1)), x, jax.lax.stop_gradient(x[:1]))

        leaves = [chosen(leaf) for leaf in leaves]
    return jax.vmap(function)(*leaves, positions)


def takes_position(function: Callable[..., Any]) -> bool:
    """Whether a function has exactly two positional arguments without defaults."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters) == 2
