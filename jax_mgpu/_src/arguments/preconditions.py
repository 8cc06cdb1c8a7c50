"""Preconditions: what operations require of their arguments' values, checked on request.

A public function passes an argument through a function below. With checks off, that function returns the argument. With
checks on, it also finds the first offending position, and a custom call raises the error.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp

from jax_mgpu._src.core import library
from jax_mgpu._src.core.compat import Primitive, ad, automatic, batching, compile_eagerly, mlir, switch
from jax_mgpu._src.keys.bits import ordered_integers

_ON = switch("jax_mgpu_checks", "Whether jax_mgpu raises an error where a precondition of an operation is broken.")


def checks(on: bool = True) -> AbstractContextManager[None]:
    """Turns each broken precondition into an error, within the context.

    The error, a `jax.errors.JaxRuntimeError`, names the operation, the argument, the first offending position and its
    value. The running program raises it, so asynchronous dispatch raises it where the caller waits for the result. On a
    CPU, a program's second call and later ones may raise a `ValueError` instead, as for callbacks. A `size` below the
    number of results is an error too, unless it is 0. An argument is not checked if no result depends on it. Checks
    cost time, and on a GPU they wait for the device. JAX_MGPU_CHECKS=1 in the environment turns them on everywhere.
    Platforms without kernels check nothing.

    Like JAX's settings, this one belongs to the thread. Leave the context before `yield` and `await`: a suspended
    generator or task would leave checks on for other code.

    Args:
      on: whether to check.

    Returns:
      A context manager.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> with mgpu.checks():
      ...     mgpu.segmented_sort(jnp.array([3, 1, 2]), jnp.array([0, 1]))
      Array([3, 1, 2], dtype=int32)
      >>> with mgpu.checks():
      ...     mgpu.segmented_sort(jnp.array([3, 1, 2]), jnp.array([0, 2, 1])).block_until_ready()
      Traceback (most recent call last):
      jax.errors.JaxRuntimeError: INVALID_ARGUMENT: segmented_sort: heads: expected non-negative integers in
      non-decreasing order (Segments.from_lengths takes lengths), first broken at position 2, got 1...
    """
    result: AbstractContextManager[None] = _ON(on)
    return result


ASCENDING = "non-negative integers in non-decreasing order"


def non_decreasing(operation: str, argument: str, x: jax.Array) -> jax.Array:
    """With checks on, requires non-negative positions in non-decreasing order."""
    return _require(operation, argument, ASCENDING, x, _is_ascending)


# Hints for callers who may have passed lengths or ids instead of heads or offsets.
LENGTHS = "Segments.from_lengths takes lengths"
IDS = "Segments.from_ids takes the segment of each item"


def segment_heads(operation: str, heads: jax.Array, length: int) -> jax.Array:
    """With checks on, requires heads that can start segments. Heads of `length` or more are padding.

    Padding repeats one number. A number above `length` that repeats before a larger one shows that ids of items were
    passed by mistake.
    """

    def holds(heads: jax.Array) -> jax.Array:
        repeats = jnp.concatenate([jnp.zeros((1,), bool), heads[1:] == heads[:-1]])
        return ~(repeats & (heads > length) & (heads < heads[-1]))

    heads = _require(operation, "heads", f"{ASCENDING} ({LENGTHS})", heads, _is_ascending)
    starts = f"the positions where segments start, padded with one number ({IDS})"
    return _require(operation, "heads", starts, heads, holds)


def segment_numbers(operation: str, argument: str, x: jax.Array, number: int) -> jax.Array:
    """With checks on, requires numbers of segments; -1 and `number` are padding."""
    expected = f"numbers of {number} segments, or -1 or {number} as padding"
    return _require(operation, argument, expected, x, lambda x: (x >= -1) & (x <= number))


def distinct_positions(operation: str, argument: str, x: jax.Array, count: jax.Array, length: int) -> jax.Array:
    """With checks on, requires non-negative positions that do not decrease, and increase at positions of live items.

    Of `length` items, `count` are live; it has shape `[1]`, or is empty if all are.
    """

    def holds(x: jax.Array) -> jax.Array:
        repeats = jnp.concatenate([jnp.zeros((1,), bool), x[1:] == x[:-1]])
        return _is_ascending(x) & ~(repeats & (x < (count[0] if count.size else length)))

    return _require(operation, argument, "non-negative integers in increasing order", x, holds)


def permutation(operation: str, argument: str, x: jax.Array, count: jax.Array) -> jax.Array:
    """With checks on, requires live items that are distinct positions in an array as long as x.

    `count` has shape `[1]`, or is empty.
    """
    n = x.shape[0]

    def holds(x: jax.Array) -> jax.Array:
        live = jnp.arange(n) < (count[0] if count.size else n)
        return ~live | ((x >= 0) & (x < n) & _is_first(jnp.where(live, x, -1), n))

    return _require(operation, argument, f"distinct positions of {n} items", x, holds)


def distinct_rows(operation: str, argument: str, x: jax.Array, length: int) -> jax.Array:
    """With checks on, requires that the positions inside an array of this length are distinct."""
    expected = f"distinct positions of {length} items"
    return _require(operation, argument, expected, x, lambda x: (x < 0) | (x >= length) | _is_first(x, length))


def _is_first(x: jax.Array, length: int) -> jax.Array:
    places = jnp.arange(x.shape[0])
    at = jnp.where((x >= 0) & (x < length), x, length)
    first = jnp.full((length + 1,), x.shape[0]).at[at].min(places)
    return first[at] == places


def inside(operation: str, argument: str, x: jax.Array, limit: int) -> jax.Array:
    """With checks on, requires integers from 0 to `limit`."""
    return _require(operation, argument, f"an integer from 0 to {limit}", x, lambda x: (x >= 0) & (x <= limit))


def not_negative(operation: str, argument: str, x: jax.Array) -> jax.Array:
    """Returns x; with checks on, raises unless it holds numbers of at least 0."""
    return _require(operation, argument, "a number of at least 0", x, lambda x: x >= 0)


def fractions(operation: str, argument: str, x: jax.Array) -> jax.Array:
    """Returns x; with checks on, raises unless it holds numbers from 0 to 1."""
    return _require(operation, argument, "numbers from 0 to 1", x, lambda x: (x >= 0) & (x <= 1))


def row_indices(operation: str, argument: str, x: jax.Array, length: int) -> jax.Array:
    """With checks on, requires -1 or indices into an array of this length."""
    return _require(operation, argument, f"indices of {length} rows, or -1", x, lambda x: (x >= -1) & (x < length))


def segments_fit(operation: str, heads: jax.Array, lengths: Callable[[], jax.Array], width: int) -> jax.Array:
    """With checks on, requires segments of at most `width` items."""
    expected = f"segments of at most {width} items"
    return _require(operation, "width", expected, heads, lambda heads: lengths() <= width, shown=lengths)


def same_rows(
    operation: str, starts: jax.Array, ends: jax.Array, other_starts: jax.Array, other_ends: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """With checks on, requires that two ragged batches have rows of the same lengths at the same places."""
    lengths, others = ends - starts, other_ends - other_starts

    def holds(_: jax.Array) -> jax.Array:
        return (lengths == others) & ((starts == other_starts) | (lengths == 0))

    expected = "rows of the same lengths at the same places"
    return starts, _require(operation, "other", expected, ends, holds, shown=lambda: others)


def row_offsets(operation: str, offsets: jax.Array, capacity: int | None = None) -> jax.Array:
    """With checks on, requires offsets that begin with 0 and neither decrease nor exceed `capacity`, if it is known."""

    def holds(x: jax.Array) -> jax.Array:
        return _is_ascending(x) & ((x == 0) | (jnp.arange(x.shape[0]) > 0)) & (capacity is None or x <= capacity)

    expected = f"{ASCENDING} that start with 0 ({LENGTHS})"
    if capacity is not None:
        expected = f"non-decreasing integers that start with 0 and are at most {capacity}"
    return _require(operation, "offsets", expected, offsets, holds)


IDS_IN_ORDER = "ids in non-decreasing order, and no id out of range between two equal ids"


def ids_in_order(operation: str, ids: jax.Array, number: int) -> jax.Array:
    """With checks on, requires that the ids in [0, `number`) are in order; other ids name no segment."""

    def holds(ids: jax.Array) -> jax.Array:
        known = (ids >= 0) & (ids < number)
        result: jax.Array = ids_hold(jnp, ids, known, jax.lax.cummax(jnp.where(known, ids, -1)))
        return result

    return _require(operation, "ids", IDS_IN_ORDER, ids, holds)


def ids_hold(numpy: Any, ids: Any, known: Any, latest: Any) -> Any:
    """Whether each id is in order; `numpy` is NumPy or `jax.numpy`.

    `known` marks the ids that name a segment, and `latest` is the last of these up to each item.
    """
    n = ids.shape[0]
    goes_on = numpy.append(numpy.full((1,), -1, latest.dtype), latest)[:n] == ids
    is_behind_gap = numpy.append(numpy.ones((1,), bool), ~known)[:n]
    return ~known | ((ids == latest) & ~(goes_on & is_behind_gap))


def without_gaps(operation: str, starts: jax.Array, ends: jax.Array) -> jax.Array:
    """With checks on, requires each end to be the start of the next segment."""
    last = starts.shape[-1] - 1

    def holds(ends: jax.Array) -> jax.Array:
        return (jnp.arange(last + 1) == last) | (ends == jnp.roll(starts, -1, axis=-1))

    return _require(operation, "segments", "no gaps", ends, holds)


def row_lengths(operation: str, lengths: jax.Array, capacity: int) -> jax.Array:
    """With checks on, requires non-negative lengths, of at most `capacity` items in all."""

    def holds(lengths: jax.Array) -> jax.Array:
        ends = jnp.cumsum(jnp.minimum(lengths, capacity + 1))  # later sums may overflow
        return (lengths >= 0) & (ends >= 0) & (ends <= capacity)

    return _require(operation, "lengths", f"lengths of at least 0, at most {capacity} items in all", lengths, holds)


def room(operation: str, count: jax.Array, size: int) -> jax.Array:
    """With checks on, requires a count of at most `size`; a `size` of 0 only counts."""
    if size == 0:
        return count
    return _require(operation, "size", f"at most {size} results", count, lambda count: count <= size)


def keys_of_few_bits(operation: str, argument: str, keys: jax.Array, count: jax.Array, bits: int) -> jax.Array:
    """With checks on, requires live keys from 0 to 2^bits - 1.

    `count` has shape `[1]`, or is empty.
    """

    def holds(keys: jax.Array) -> jax.Array:
        largest = jnp.array(min(2**bits - 1, jnp.iinfo(keys.dtype).max), keys.dtype)
        fits = (keys >= 0) & (keys <= largest)
        return fits | (jnp.arange(keys.shape[0]) >= count[0]) if count.size else fits

    return _require(operation, argument, f"integers from 0 to 2**{bits} - 1", keys, holds)


def sorted_keys(
    operation: str,
    argument: str,
    keys: jax.Array,
    count: jax.Array,
    *,
    descending: bool = False,
    unique: bool = False,
    within: Callable[[], jax.Array] | None = None,
) -> jax.Array:
    """With checks on, requires live keys in the order of lax.sort or its reverse.

    `within` marks keys that follow another key of their segment; only these are checked.
    """
    options: dict[str, Any] = {"descending": [descending], "unique": unique, "within": within}
    return sorted_columns(operation, [argument], [keys], count, **options)[0]


def sorted_columns(
    operation: str,
    names: Sequence[str],
    columns: Sequence[jax.Array],
    count: jax.Array,
    *,
    descending: Sequence[bool],
    unique: bool = False,
    within: Callable[[], jax.Array] | None = None,
) -> list[jax.Array]:
    """With checks on, requires live keys in order: each column is sorted where all previous ones are equal."""
    if not _ON.value or BY_CONSTRUCTION.get():
        return list(columns)
    tied: Any = True
    checked = []
    for i, (name, x, down) in enumerate(zip(names, columns, descending, strict=True)):
        distinct = unique and i + 1 == len(columns)

        def holds(x: jax.Array, down: bool = down, distinct: bool = distinct, tied: Any = tied) -> jax.Array:
            codes = ordered_integers(x)
            low, high = (codes[1:], codes[:-1]) if down else (codes[:-1], codes[1:])
            live = jnp.arange(1, x.shape[0]) < count[0] if count.size else True
            follows = jnp.asarray(live) & jnp.asarray(within()[1:] if within else True) & jnp.asarray(tied)
            return jnp.concatenate([jnp.ones((1,), bool), ~follows | (low < high if distinct else low <= high)])

        order = f"keys in {'descending' if down else 'ascending'} order{' within segments' if within else ''}"
        expected = ("unique " if distinct else "") + order + (", where the columns before are equal" if i else "")
        checked.append(_require(operation, name, expected, x, holds))
        codes = ordered_integers(x)
        tied = tied & (codes[1:] == codes[:-1])
    return checked


def intervals_inside(
    operation: str, argument: str, starts: jax.Array, lengths: Callable[[], jax.Array], length: int
) -> jax.Array:
    """With checks on, requires that intervals with items lie within an array."""

    def holds(starts: jax.Array) -> jax.Array:
        return (lengths() <= 0) | ((starts >= 0) & (starts <= length - lengths()))  # a sum could overflow

    return _require(operation, argument, f"intervals within an array of {length}", starts, holds)


def intervals_disjoint(operation: str, argument: str, starts: jax.Array, lengths: Callable[[], jax.Array]) -> jax.Array:
    """With checks on, requires intervals without overlap."""

    def holds(starts: jax.Array) -> jax.Array:
        # Compares each interval with its predecessor in the order of starts; empty ones are last.
        order = jnp.lexsort((starts, lengths() <= 0))
        ends = (starts + lengths())[order]
        overlaps = (starts[order][1:] < ends[:-1]) & (lengths()[order][1:] > 0)
        return jnp.ones(starts.shape, bool).at[order[1:]].set(~overlaps)

    return _require(operation, argument, "intervals that do not overlap", starts, holds)


def segments_apart(operation: str, argument: str, heads: jax.Array, ends: jax.Array, length: int) -> jax.Array:
    """With checks on, requires that no segment reaches into a later one. Empty segments may lie anywhere."""

    def holds(ends: jax.Array) -> jax.Array:
        starts, stops = jnp.clip(heads, 0, length), jnp.clip(ends, 0, length)
        full = stops > starts
        later = jax.lax.cummin(jnp.where(full, starts, length), reverse=True)
        return ~full | (stops <= jnp.append(later[1:], length))

    return _require(operation, argument, "segments that do not overlap", ends, holds)


def segments_inside(operation: str, argument: str, heads: jax.Array, ends: jax.Array, length: int) -> jax.Array:
    """With checks on, requires that each segment with items ends within an array."""

    def holds(ends: jax.Array) -> jax.Array:
        return (ends <= length) | (ends <= heads)

    return _require(operation, argument, f"Segments within {length} items", ends, holds)


def interval_lengths(offsets: jax.Array, total: jax.Array, size: int) -> Callable[[], jax.Array]:
    """Returns a function that computes the lengths of intervals; `total` has shape `[1]`, or is empty."""

    def lengths() -> jax.Array:
        end = total if total.size else jnp.full((1,), size, offsets.dtype)
        return jnp.concatenate([offsets[1:], end.astype(offsets.dtype)]) - offsets

    return lengths


def _is_ascending(x: jax.Array) -> jax.Array:
    return (x >= 0) & jnp.concatenate([jnp.ones((1,), bool), x[1:] >= x[:-1]])


BY_CONSTRUCTION = contextvars.ContextVar("by_construction", default=False)


@contextlib.contextmanager
def by_construction(holds: bool = True) -> Iterator[None]:
    """Disables checks of operands that an operation made itself."""
    token = BY_CONSTRUCTION.set(holds or BY_CONSTRUCTION.get())
    try:
        yield
    finally:
        BY_CONSTRUCTION.reset(token)


def _require(
    operation: str,
    argument: str,
    expected: str,
    x: jax.Array,
    holds: Callable[[jax.Array], jax.Array],
    shown: Callable[[], jax.Array] | None = None,
) -> jax.Array:
    """Returns x; with checks on, ties it to an error at the first position where `holds(x)` is false.

    The error shows the value there in x or, if given, in `shown()`.
    """
    if not _ON.value or x.size == 0 or BY_CONSTRUCTION.get():
        return x

    def first_broken(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        with jax.numpy_dtype_promotion("standard"):  # positions are compared with counts of any type
            broken = ~holds(x)
        position = jnp.where(broken.any(), jnp.argmax(broken), -1).astype(jnp.int32)
        value = (x if shown is None else shown()).reshape(-1)[jnp.maximum(position, 0)]
        return position, value.astype(jnp.float32) if value.dtype.name in ("float16", "bfloat16") else value

    position, value = automatic(first_broken)(jax.lax.stop_gradient(x))
    result: jax.Array = _check.bind(x, position, value, expected=f"{operation}: {argument}: expected {expected}")
    return result


# This custom call returns its first operand, or fails.
_check = Primitive("mgpu_check")
_check.def_abstract_eval(lambda x, position, value, *, expected: x)
ad.primitive_jvps[_check] = lambda primals, tangents, *, expected: (
    _check.bind(*primals, expected=expected),
    tangents[0],
)


def _batch(operands: Sequence[Any], axes: Sequence[Any], *, expected: str) -> tuple[Any, int]:
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    fronted = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(operands, axes, strict=True)
    ]
    return _check.bind(*fronted, expected=expected), 0


compile_eagerly(_check)
batching.primitive_batchers[_check] = _batch
mlir.register_lowering(_check, lambda ctx, x, position, value, *, expected: [x])
for _platform in library.platforms():
    _lowering = jax.ffi.ffi_lowering(library.target("check"), operand_output_aliases={0: 0})
    mlir.register_lowering(_check, _lowering, platform=_platform)
