"""Sorts by a caller's comparator, a function of two items that says whether the first comes first.

The comparator is traced on two items, and written as data for the kernels of CUDA, like the operators of
custom_operator.py. Other platforms run `plain_sort_indices` (comparator.py), and so does CUDA if `_order` returns None.
Operations on two inputs work on ranks: each item gets an integer in the order of the items of both inputs, and equal
items get the same one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import Aval, Count, Directions, Keys, LessFunction, Pytree
from jax_mgpu._src.arguments.check import (
    count_operand,
    describe,
    expect_pytree,
    index_dtype,
    result_shapes,
    type_error,
    value_error,
)
from jax_mgpu._src.arguments.counts import live_mask
from jax_mgpu._src.arguments.values import Payload, flatten_values, plain_leaves, take_or_fill, take_rows
from jax_mgpu._src.core.compat import evaluate, free_of_explicit_axes, surely, whole_axes, without_values
from jax_mgpu._src.core.operation import ABSENT, Keyed, in_program
from jax_mgpu._src.functions import custom_operator
from jax_mgpu._src.functions.comparator import compare_all, compares_keys, plain_sort_indices
from jax_mgpu._src.functions.compiled_operation import CompiledOperation, warn_once
from jax_mgpu._src.functions.emit import Unsupported, emit_order


@dataclasses.dataclass(frozen=True)
class Items:
    """Keys of any structure, and their comparator.

    Args:
      leaves: `[n, ...]`; random keys are rows of words.
      restore: makes the caller's keys from leaves.
      less: whether the first item comes first, by the leaves of both.
    """

    leaves: tuple[jax.Array, ...]
    restore: Callable[[Sequence[jax.Array]], Any]
    less: Callable[..., Any]

    @property
    def n(self) -> int:
        """The number of items."""
        return self.leaves[0].shape[0]

    @property
    def item(self) -> list[Any]:
        """The leaves of one item."""
        return [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in self.leaves]

    def taken(self, indices: jax.Array) -> Any:
        """Returns the keys at these places."""
        return self.restore([take_rows(leaf, indices) for leaf in self.leaves])


def expect_items(
    operation: str, argument: str, keys: Keys, less: LessFunction, descending: Directions = False
) -> Items:
    """Returns keys and their comparator, checked."""
    if not callable(less):
        raise type_error(operation, "less", "a function of two items", repr(less))
    if descending is not False:
        raise value_error(operation, "descending", "False, because less defines the order", repr(descending))
    arrays, structure, n = expect_pytree(operation, argument, keys)
    index_dtype(operation, argument, n)
    leaves, restore_leaves = plain_leaves(arrays)
    leaves = [whole_axes(leaf) for leaf in leaves]

    def flat(*both: jax.Array) -> jax.Array:
        a, b = (structure.unflatten(restore_leaves(half)) for half in (both[: len(leaves)], both[len(leaves) :]))
        return jnp.asarray(less(a, b))

    items = Items(tuple(leaves), lambda moved: structure.unflatten(restore_leaves(moved)), flat)
    expected = "a function of two items that gives a bool"
    result = result_shapes(operation, "less", expected, flat, *items.item, *items.item)
    if result.shape or result.dtype != jnp.bool_:
        raise type_error(operation, "less", expected, describe(result))
    return items


Places = Sequence[jax.Array]  # the operands heads, flags and count of a sort
NO_PLACES: Places = (ABSENT, ABSENT, ABSENT)


@dataclasses.dataclass(frozen=True)
class SortByLess:
    """A sort by a comparator, whose arguments are checked once."""

    operation: str
    items: Items
    places: Places = NO_PLACES

    @classmethod
    def of(
        cls,
        operation: str,
        keys: Keys,
        less: LessFunction,
        descending: Directions,
        count: Count,
        heads: jax.Array = ABSENT,
        flags: jax.Array = ABSENT,
    ) -> SortByLess:
        """Checks a public function's arguments; heads or flags say where segments start."""
        items = expect_items(operation, "keys", keys, less, descending)
        return cls(operation, items, (heads, flags, count_operand(operation, "count", count, items.n)))

    def run(self, values: Pytree) -> Any:
        """Returns the sorted keys, with values if there are any."""
        leaves, unflatten = flatten_values(self.operation, "values", values, self.items.n, "keys")
        if values is None:
            return self._sorted(with_indices=False)[0]
        sorted_keys, indices = self.indices()
        return sorted_keys, unflatten([take_rows(leaf, indices) for leaf in leaves])

    def indices(self) -> tuple[Any, jax.Array]:
        """Returns the sorted keys, and their former positions."""
        return self._sorted(with_indices=True)

    def _sorted(self, *, with_indices: bool) -> tuple[Any, Any]:
        """Returns the sorted keys, and indices; None if they are not asked for and the sort does not compute them."""
        items, order = self.items, _order(self.operation, self.items)
        if order is None:
            indices = plain_sort_indices(items.less, items.leaves, *self.places)
        elif not _fits_a_word(items.item):
            indices = _sort_positions(order[0], items.leaves, self.places, order[1])
        elif with_indices:
            indices = _sort_words(order[0], items.leaves, self.places, order[1], Payload.INDICES)[1]
        else:
            places = [in_program(x) for x in self.places]  # jax.custom_jvp makes constants of absent ones
            return items.restore(_sort_keys(order[0], list(items.leaves), places, list(order[1]))), None
        return items.taken(indices), indices


# ---- The kernels


WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32, 16: jnp.uint32}
FEW_BYTES = 8  # a GPU sorts keys this small by these kernels, even if a sort of columns would do


@dataclasses.dataclass(frozen=True)
class _Order:
    """An order written for kernels, without captured values.

    Args:
      data: the lines that the call carries.
      item: the leaves of a key.
      jaxpr: the comparator, for plain JAX.
    """

    data: str
    item: tuple[Any, ...]
    jaxpr: Any
    consts: tuple[Any, ...]


def _order(operation: str, items: Items) -> tuple[Keyed, Sequence[Any]] | None:
    """Writes an order for kernels; returns it with its captured values, or None if `plain_sort_indices` sorts."""
    if items.n == 0 or not custom_operator.has_kernels():
        return None
    try:
        if surely(lambda: items.n >= 2**31):
            raise Unsupported("2^31 items or more")
        return _compiled_comparator(items)
    except Unsupported as error:
        custom_operator.warn_of_plain_jax(operation, "less", error)
        return None


def _sort_words(
    order: Keyed, leaves: Sequence[jax.Array], places: Places, captures: Sequence[Any], payload: Payload
) -> Sequence[jax.Array]:
    words = _to_words(leaves, _word_bytes(order.value.item))
    primitive = _operation(words.ndim, tuple(np.ndim(c) for c in captures))
    return primitive.run([words, *places, *map(jnp.asarray, captures)], order=order, payload=payload)


def _sort_positions(order: Keyed, leaves: Sequence[jax.Array], places: Places, captures: Sequence[Any]) -> jax.Array:
    """Returns the indices that sort items too large for a word."""
    plain = [jax.lax.stop_gradient(leaf) for leaf in leaves]
    ranks = tuple(leaf.ndim for leaf in leaves), tuple(np.ndim(c) for c in captures)
    return _position_operation(*ranks).run([*plain, *places, *map(jnp.asarray, captures)], order=order)[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _sort_keys(order: Keyed, leaves: Sequence[jax.Array], places: Places, captures: Sequence[Any]) -> list[jax.Array]:
    """Returns sorted keys."""
    return _of_words(_sort_words(order, leaves, places, captures, Payload.NONE)[0], order.value.item)


@_sort_keys.defjvp
def _sort_keys_jvp(order: Keyed, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    given, places, captures = primals
    leaves = [jnp.asarray(leaf) for leaf in given]
    indices = _sort_words(order, leaves, places, captures, Payload.INDICES)[1]
    moved = [t if t.dtype == jax.dtypes.float0 else take_rows(jnp.asarray(t), indices) for t in tangents[0]]
    return [take_rows(leaf, indices) for leaf in leaves], moved


def _item_bytes(aval: Aval) -> int:
    return int(np.prod(aval.shape)) * jnp.dtype(aval.dtype).itemsize


def _fits_a_word(item: Sequence[Any]) -> bool:
    return sum(map(_item_bytes, item)) <= max(WORDS)


def _word_bytes(item: Sequence[Any]) -> int:
    size = sum(map(_item_bytes, item))
    return next(width for width in WORDS if width >= size)


def _in_words(item: Sequence[Any]) -> list[int]:
    """Returns leaves in the order of the kernels' struct: wide elements come first."""
    return sorted(range(len(item)), key=lambda leaf: -jnp.dtype(item[leaf].dtype).itemsize)


def _to_words(leaves: Sequence[jax.Array], width: int) -> jax.Array:
    """Returns words, `[n]`, or `[n, 2]` and `[n, 4]` for 8 and 16 bytes. The bytes after an item are zero."""
    n, word = leaves[0].shape[0], jnp.dtype(WORDS[width])
    parts = [leaf.astype(jnp.uint8) if leaf.dtype == jnp.bool_ else leaf for leaf in leaves]
    parts = [parts[leaf].reshape(n, -1) for leaf in _in_words(parts)]
    columns = [jax.lax.bitcast_convert_type(x, word).reshape(n, -1) for x in parts if x.dtype.itemsize >= word.itemsize]
    narrow = [
        jax.lax.bitcast_convert_type(x, jnp.uint8).reshape(n, -1) for x in parts if x.dtype.itemsize < word.itemsize
    ]
    if narrow:
        data = jnp.concatenate(narrow, axis=1)
        data = jnp.pad(data, ((0, 0), (0, -data.shape[1] % word.itemsize)))
        columns.append(jax.lax.bitcast_convert_type(data.reshape(n, -1, word.itemsize), word))
    words = jnp.concatenate(columns, axis=1)
    words = jnp.pad(words, ((0, 0), (0, width // word.itemsize - words.shape[1])))
    return words if width > word.itemsize else words[:, 0]


def _of_words(words: jax.Array, item: Sequence[Any]) -> list[jax.Array]:
    n, width = words.shape[0], words.dtype.itemsize
    columns = words.reshape(n, -1)
    data = jax.lax.bitcast_convert_type(columns, jnp.uint8).reshape(n, -1)
    leaves, begin = {}, 0
    for leaf in _in_words(item):
        aval, size = item[leaf], _item_bytes(item[leaf])
        dtype = jnp.dtype(jnp.uint8 if aval.dtype == jnp.bool_ else aval.dtype)
        parts, unit = (columns, width) if dtype.itemsize >= width else (data, 1)
        part = parts[:, begin // unit : (begin + size) // unit]
        rows = part.reshape(n, *aval.shape, *([dtype.itemsize // unit] if dtype.itemsize > unit else []))
        leaves[leaf] = jax.lax.bitcast_convert_type(rows, dtype).astype(aval.dtype)
        begin += size
    return [leaves[leaf] for leaf in range(len(item))]


def _compiled_comparator(items: Items) -> tuple[Keyed, Sequence[Any]] | None:
    """Writes an order for kernels; returns None if a sort of columns takes its place."""
    is_wide = sum(map(_item_bytes, items.item)) > FEW_BYTES
    with free_of_explicit_axes():
        closed = jax.make_jaxpr(items.less)(*items.item, *items.item)
    if is_wide and compares_keys(closed, len(items.item)):
        return None
    written = emit_order(closed, items.item)
    consts = tuple(custom_operator._place(const, written.captures) for const in closed.consts)
    captured = tuple(const for const in consts if isinstance(const, custom_operator._Captured))
    key = (written.data, captured, jax.sharding.get_abstract_mesh())
    order = _Order(written.data, tuple(items.item), without_values(closed), consts)
    return Keyed(key, order), written.captures


class _OrderOperation(CompiledOperation):
    """A sort by an order. Operands are keys in some form, segments, a count, and captured values."""

    def __init__(self, name: str, keys: Mapping[str, int], capture_ranks: Sequence[int], **description: Any):
        self.given = len(keys) + 3
        super().__init__(
            name,
            "orders",
            self.given,
            len(capture_ranks),
            operands={
                **{**keys, "heads": 1, "flags": 1, "count": 1},
                **{f"c{i}": rank for i, rank in enumerate(capture_ranks)},
            },
            streamed=tuple(keys),
            **description,
        )
        self.def_linear()

    def call_attributes(self, operands: Sequence[Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
        own = {name: value for name, value in attributes.items() if name != "order"}
        return {**own, "captures": self.captures, "function": attributes["order"].value.data}

    def _plain_indices(self, order: Keyed, leaves: Sequence[Any], operands: Sequence[Any]) -> jax.Array:
        compiled = order.value
        consts = custom_operator._filled(compiled.consts, operands[self.given :])

        def less(*both: jax.Array) -> Any:
            return evaluate(compiled.jaxpr, consts, *both)[0]

        return plain_sort_indices(less, leaves, *operands[self.given - 3 : self.given])


class LessOperation(_OrderOperation):
    """A sort of words."""

    def __init__(self, word_rank: int, capture_ranks: Sequence[int]):
        self.word_rank = word_rank
        super().__init__(
            "sort_by_function",
            {"keys": word_rank},
            capture_ranks,
            results=("keys", "values"),
            attributes={"order": Keyed, "payload": Payload},
            shapes=self._sorted_shapes,
            fallback=self._plain_sort,
        )

    def call_attributes(self, operands: Sequence[Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Replaces the `Keyed` order by its lines and the size of a word."""
        words = operands[0].shape[-1] if self.word_rank == 2 else 1
        return {**super().call_attributes(operands, attributes), "word_bytes": words * operands[0].dtype.itemsize}

    def _sorted_shapes(self, *operands: Aval, payload: int, **_: int) -> Sequence[Any]:
        keys = jax.ShapeDtypeStruct(operands[0].shape, operands[0].dtype)
        if payload == Payload.NONE:
            return [keys]
        return [keys, jax.ShapeDtypeStruct(keys.shape[:1], index_dtype("sort", "keys", keys.shape[0]))]

    def _plain_sort(self, *operands: jax.Array, order: Keyed, payload: int) -> Sequence[Any]:
        indices = self._plain_indices(order, _of_words(operands[0], order.value.item), operands)
        sorted_keys = take_rows(operands[0], indices)
        return [sorted_keys] if payload == Payload.NONE else [sorted_keys, indices]


_operation = functools.cache(LessOperation)


class LessIndexOperation(_OrderOperation):
    """A sort of the positions of items, which stay in the arrays of their leaves."""

    def __init__(self, leaf_ranks: Sequence[int], capture_ranks: Sequence[int]):
        self.leaves = len(leaf_ranks)
        super().__init__(
            "sort_indices_by_function",
            {f"x{i}": rank for i, rank in enumerate(leaf_ranks)},
            capture_ranks,
            results=("indices",),
            attributes={"order": Keyed},
            shapes=self._index_shapes,
            fallback=self._plain_positions,
        )

    def prefers_xla(self, operands: Sequence[Any], attributes: Mapping[str, Any], platform: str, devices: int) -> bool:
        """Whether to run plain JAX: one device may have the whole batch, and numbers its items in 32 bits."""
        if int(np.prod(operands[0].shape[: self._batch_rank(operands) + 1])) >= 2**32:
            warn_once("less: batches of 2^32 items or more run in plain JAX, which is slower")
            return True
        return super().prefers_xla(operands, attributes, platform, devices)

    def call_attributes(self, operands: Sequence[Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Replaces the `Keyed` order by its lines and the size of an item."""
        item_bytes = sum(map(_item_bytes, attributes["order"].value.item))
        return {
            **super().call_attributes(operands, attributes),
            "leaves": self.leaves,
            "item_bytes": item_bytes,
        }

    def _index_shapes(self, *operands: Aval, order: Keyed) -> Sequence[Any]:
        del order
        n = operands[0].shape[0]
        return [jax.ShapeDtypeStruct((n,), index_dtype("sort", "keys", n))]

    def _plain_positions(self, *operands: jax.Array, order: Keyed) -> Sequence[Any]:
        return [self._plain_indices(order, operands[: self.leaves], operands)]


_position_operation = functools.cache(LessIndexOperation)


# ---- Ranks


@dataclasses.dataclass(frozen=True)
class RankedPair:
    """Two inputs as ranks in the order of all items.

    Args:
      ranks: integers for each input, equal for equal items. Past a count they have no meaning.
      restore: makes the caller's keys from leaves.
    """

    a: tuple[jax.Array, ...]
    b: tuple[jax.Array, ...]
    ranks: tuple[jax.Array, jax.Array]
    restore: Callable[[Sequence[jax.Array]], Any]

    def move(self, run: Callable[..., Any], a_values: Pytree, b_values: Pytree, **given: Any) -> Any:
        """Runs an operation on ranks, which moves keys and values along."""
        return run(*self.ranks, (self.a, a_values), (self.b, b_values), **given)


def ranked_pair(
    operation: str,
    a: Keys,
    b: Keys,
    less: LessFunction,
    a_count: Count,
    b_count: Count,
    *,
    names: tuple[str, str] = ("a", "b"),
    descending: Directions = False,
) -> RankedPair:
    """Checks two inputs with a comparator; returns them as ranks."""
    first = expect_items(operation, names[0], a, less, descending)
    second = expect_items(operation, names[1], b, less, descending)
    kinds = [[(leaf.dtype, leaf.shape[1:]) for leaf in one.leaves] for one in (first, second)]
    if str(jax.tree.structure(a)) != str(jax.tree.structure(b)) or kinds[0] != kinds[1]:
        got = ", ".join(map(describe, second.leaves))
        raise type_error(operation, names[1], f"the structure, dtypes and trailing shapes of {names[0]}", got)
    n_a, n = first.n, first.n + second.n
    dtype = index_dtype(operation, " and ".join(names), n)
    if n == 0:
        nothing = jnp.zeros((0,), dtype)
        return RankedPair(first.leaves, second.leaves, (nothing, nothing), first.restore)
    both = [jnp.concatenate(pair) for pair in zip(first.leaves, second.leaves, strict=True)]
    counts = [
        count_operand(operation, f"{name}_count", count, one.n)
        for name, count, one in zip(names, (a_count, b_count), (first, second), strict=True)
    ]
    if counts[0].size or counts[1].size:  # the first live item replaces items past a count
        live = jnp.concatenate([live_mask(n_a, counts[0]), live_mask(n - n_a, counts[1])])
        at = jnp.argmax(live)
        both = [jnp.where(live.reshape(n, *[1] * (leaf.ndim - 1)), leaf, take_or_fill(leaf, at)) for leaf in both]
    items = Items(tuple(jnp.asarray(jax.lax.stop_gradient(leaf)) for leaf in both), first.restore, first.less)
    _, indices = SortByLess(operation, items).indices()
    in_order = [take_rows(leaf, indices) for leaf in items.leaves]
    is_new = compare_all(items.less, [leaf[:-1] for leaf in in_order], [leaf[1:] for leaf in in_order])
    sorted_ranks = jnp.cumsum(jnp.concatenate([jnp.zeros((1,), bool), is_new]), dtype=dtype)
    ranks = jnp.zeros((n,), dtype).at[indices].set(sorted_ranks, mode="drop")
    return RankedPair(first.leaves, second.leaves, (ranks[:n_a], ranks[n_a:]), first.restore)
