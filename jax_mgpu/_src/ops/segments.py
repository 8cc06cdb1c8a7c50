"""`Segments`: where the segments of an array lie, from and to all common forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import ArrayLike, Integers
from jax_mgpu._src.arguments.check import (
    describe,
    expect_mask,
    host_array,
    index_array,
    index_dtype,
    positions_instead,
    static_size,
    type_error,
    value_error,
)
from jax_mgpu._src.arguments.counts import common_dtype
from jax_mgpu._src.arguments.preconditions import (
    IDS_IN_ORDER,
    LENGTHS,
    ids_hold,
    ids_in_order,
    not_negative,
    row_offsets,
    segment_heads,
    segments_apart,
    without_gaps,
)
from jax_mgpu._src.arguments.segments import Ranges
from jax_mgpu._src.arguments.values import fill_missing
from jax_mgpu._src.core.compat import whole_axes
from jax_mgpu._src.ops.ragged import segment_ids
from jax_mgpu._src.ops.scan import scan
from jax_mgpu._src.ops.select import select_indices
from jax_mgpu._src.ops.sorted_search import insertion_points

__all__ = ["Segments"]

Positions: TypeAlias = jax.Array | np.ndarray  # a NumPy array if the host knows the values
# All larger positions mean the same, because they are past every array with 32-bit indices.
MOST = np.iinfo(np.int32).max - 1


@jax.tree_util.register_pytree_with_keys_class
class Segments(Ranges):
    """Where the segments of an array lie, from lengths, row splits, ids, flags or ranges.

    Every function that takes `heads` accepts a Segments instead, and then takes no `ends`, `flags` or `count`. Items in
    no segment do not take part: a sort leaves them where they are, scans and softmaxes give 0 (-1 for indices), and ids
    are -1.

    Segment `i` holds the items from `starts[i]` up to, but not including, `ends[i]`. A Segments is a pytree of arrays:
    it works in `jit`, `vmap`, `grad`, `scan` and `shard_map`, and `jit` compiles nothing anew for other values. Lists
    and NumPy arrays are checked at once and stay on the host, so that outside of `jit` a segment that ends past the
    last item is an error. JAX arrays, traced or not, are checked within `checks()`.

    Args:
      starts: `[m]`, non-decreasing integers.
      ends: `[m]` integers, none past the next segment's start. A segment that ends where it starts, or before, is
        empty.

    Raises:
      TypeError: an argument does not hold integers.
      ValueError: an argument's shape is not one of the above, or the host knows segments that overlap or are out of
        order.

    Attributes:
      starts: where each segment starts.
      ends: where each segment ends.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> segments = mgpu.Segments.from_lengths([2, 0, 3])
      >>> segments
      Segments(starts=[0, 2, 2], ends=[2, 2, 5])
      >>> mgpu.segmented_reduce(jnp.array([3, 1, 4, 1, 5]), segments)
      Array([ 4,  0, 10], dtype=int32)
      >>> mgpu.segmented_scan(jnp.array([3, 1, 4, 1, 5]), mgpu.Segments.from_ranges([0, 3], [2, 5]))
      Array([3, 4, 0, 1, 6], dtype=int32)
    """

    starts: Any
    ends: Any

    def __init__(self, starts: Integers, ends: Integers):
        self.starts, self.ends = _ranges("Segments", starts, ends)

    # ---- A pytree ----------------------------------------------------------------------------------------------------

    def tree_flatten_with_keys(self) -> tuple[Any, None]:
        """Returns its children with names, for JAX."""
        key = jax.tree_util.GetAttrKey
        return ((key("starts"), self.starts), (key("ends"), self.ends)), None

    def tree_flatten(self) -> tuple[Any, None]:
        """Returns its children, for JAX."""
        return (self.starts, self.ends), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Sequence[Any]) -> Segments:
        """Returns a Segments of children that JAX may have replaced by anything."""
        made = object.__new__(cls)
        made.starts, made.ends = children
        return made

    # ---- Constructors ------------------------------------------------------------------------------------------------

    @classmethod
    def from_heads(cls, heads: Integers, *, ends: Integers | None = None, count: ArrayLike | None = None) -> Segments:
        """Returns segments that start at `heads`, `[m]` non-decreasing integers.

        Each segment ends where the next one starts, and the last one at `count`, an integer scalar, unless `ends` gives
        the ends. A head past `count` is padding: an empty segment at the end.
        """
        name = "Segments.from_heads"
        if ends is not None:
            ranges = _ranges(name, heads, ends, "heads")
            return cls.of(*ranges) if count is None else cls._cut(*ranges, _count(name, count))
        if count is None:
            raise value_error(name, "ends and count", "one of them", "neither")
        starts = _positions(name, "heads", heads)
        most = np.iinfo(starts.dtype).max
        if isinstance(starts, np.ndarray):
            _expect_ascending(name, "heads", starts)
            stops: Positions = np.append(starts[1:], most).astype(starts.dtype)[: len(starts)]
        else:
            starts = segment_heads(name, starts, most)
            stops = jnp.append(starts[1:], jnp.full((1,), most, starts.dtype))[: starts.shape[0]]
        return cls._cut(starts, stops, _count(name, count))

    @classmethod
    def from_lengths(cls, lengths: Integers) -> Segments:
        """Returns segments of the given lengths, `[m]` integers, one after the other from position 0 on."""
        name = "Segments.from_lengths"
        given = _positions(name, "lengths", lengths)
        if isinstance(given, np.ndarray):
            _expect(name, "lengths", "a number of at least 0", given, given >= 0)
            known = np.cumsum(given, dtype=np.int64)
            return cls.of(*_narrow(known - given, known), ascends=True)
        given = not_negative(name, "lengths", given)
        ends = scan(given)
        return cls.of(ends - given, ends, ascends=True)

    @classmethod
    def from_offsets(cls, offsets: Integers) -> Segments:
        """Segments between neighbours of `offsets`, `[m + 1]` non-decreasing integers from 0 (row splits, indptr)."""
        name = "Segments.from_offsets"
        given = _positions(name, "offsets", offsets)
        if given.shape[0] == 0:
            raise value_error(name, "offsets", "the start of each segment and the end of the last one", "none")
        if isinstance(given, np.ndarray):
            if given[0] != 0:
                raise value_error(name, "offsets", f"0 as the first ({LENGTHS})", int(given[0]))
            _expect_ascending(name, "offsets", given)
            return cls.of(*_narrow(given[:-1], given[1:]), ascends=True)
        given = row_offsets(name, given)
        return cls.of(given[:-1], given[1:], ascends=True)

    @classmethod
    def from_ids(cls, ids: Integers, m: int) -> Segments:
        """`m` segments from each item's segment, `[n]` non-decreasing integers; ids outside of [0, m) mean none."""
        name = "Segments.from_ids"
        m, given = static_size(name, "m", m), _positions(name, "ids", ids)
        if isinstance(given, np.ndarray):
            return cls.of(*_ranges_of_known_ids(name, given, m))
        ids = ids_in_order(name, given, m)
        known = (ids >= 0) & (ids < m)
        # Ids outside of [0, m) become the id of the item before in `latest`, and of the item after in `earliest`.
        latest = scan(jnp.where(known, ids, -1), "max")
        earliest = scan(jnp.where(known, ids, m), "min", reverse=True)
        numbers = jnp.arange(m, dtype=ids.dtype)
        ends = insertion_points(numbers, earliest, right=True)
        return cls.of(jnp.minimum(insertion_points(numbers, latest), ends), ends)

    @classmethod
    def from_flags(cls, flags: ArrayLike | Sequence[bool], m: int) -> Segments:
        """`m` segments, each from one set flag of `bool[n]` to the next. The first item always starts a segment.

        Items from the start of segment `m` on are in no segment. If fewer than `m` start, the last segments are empty.
        """
        name = "Segments.from_flags"
        m = static_size(name, "m", m)
        host = flags if isinstance(flags, jax.Array) else host_array(flags, name, "flags", None)
        if isinstance(host, np.ndarray) and host.dtype == bool and host.ndim == 1:
            starts = np.flatnonzero(np.append(True, host[1:])[: len(host)])
            known = np.append(starts, np.full(m + 1, len(host)))[: m + 1]
            return cls.of(*_narrow(known[:-1], known[1:]))
        flags = whole_axes(expect_mask(name, "flags", host, "Segments.from_heads takes positions"))
        bounds, _ = select_indices(flags.at[:1].set(True), size=m + 1)
        return cls.of(bounds[:-1], bounds[1:])

    @classmethod
    def from_ranges(cls, starts: Integers, ends: Integers) -> Segments:
        """Segments from `starts` to `ends`, `[m]` integers each, in order, with or without gaps between segments."""
        return cls.of(*_ranges("Segments.from_ranges", starts, ends))

    @classmethod
    def of(cls, starts: Positions, ends: Positions, *, ascends: bool = False) -> Segments:
        """Segments from starts and ends known to be valid."""
        made = cls.tree_unflatten(None, (starts, ends))
        made.ascends = ascends
        return made

    @classmethod
    def _cut(cls, starts: Positions, ends: Positions, count: Positions) -> Segments:
        """Cuts segments to the first `count` items."""
        if isinstance(starts, np.ndarray) and isinstance(ends, np.ndarray) and isinstance(count, np.ndarray):
            return cls.of(*_narrow(np.minimum(starts, count), np.minimum(ends, count)))
        dtype = common_dtype(starts, ends, count)
        starts, ends, count = (jnp.asarray(x, dtype) for x in (starts, ends, count))
        return cls.of(jnp.minimum(starts, count), jnp.minimum(ends, count))

    # ---- Properties --------------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """The static number of segments."""
        result: int = self.starts.shape[-1]
        return result

    @property
    def heads(self) -> Any:
        """`[m]`: where each segment starts."""
        return self.starts

    @property
    def lengths(self) -> Any:
        """`[m]`: the number of items of each segment."""
        return self.ends - self.starts

    @property
    def offsets(self) -> Any:
        """`[m + 1]`: where each segment starts, and where the last one ends. Segments with gaps raise an error."""
        name = "Segments.offsets"
        starts, ends = self.starts, self.ends
        on_host = isinstance(starts, np.ndarray) and isinstance(ends, np.ndarray)
        if on_host:
            apart = starts[..., 1:] != ends[..., :-1]
            if apart.any():
                segment = int(np.argwhere(apart)[0][-1])
                got = f"one from {int(ends[..., segment].max())} on behind segment {segment}"
                raise value_error(name, "segments", "no gaps", got)
        else:
            ends = without_gaps(name, jnp.asarray(starts), jnp.asarray(ends))
        last = _last(ends)[..., None]
        return (np if on_host else jnp).concatenate([starts, last], axis=-1) if self.number else last

    @property
    def count(self) -> Any:
        """The largest end of a segment, a scalar; 0 without segments."""
        return _last(self.ends)

    def ids(self, n: int, fill_value: ArrayLike = -1) -> jax.Array:
        """`[n]`: the segment of each of n items, and `fill_value` for those in none."""
        return fill_missing("Segments.ids", segment_ids(self, n), fill_value)

    def flags(self, n: int) -> jax.Array:
        """`bool[n]`: which of n items are the first of a segment."""
        n = static_size("Segments.flags", "n", n)
        index_dtype("Segments.flags", "n", n)
        places = index_array("Segments.flags", "starts", jnp.where(self.ends > self.starts, self.starts, n), n)
        return jnp.zeros((n,), bool).at[places].set(True, mode="drop")

    def __repr__(self) -> str:
        def text(x: Any) -> str:
            if getattr(x, "dtype", None) == jax.dtypes.float0:  # integers have such gradients
                return f"float0{list(x.shape)}"
            if isinstance(x, (np.ndarray, jax.Array)) and not isinstance(x, jax.core.Tracer):
                return " ".join(np.array2string(np.asarray(x), separator=", ", threshold=12).split())
            return describe(x)

        return f"Segments(starts={text(self.starts)}, ends={text(self.ends)})"


def _last(ends: Positions) -> Any:
    """Returns the largest end, or 0 without segments."""
    return (np if isinstance(ends, np.ndarray) else jnp).max(ends, axis=-1, initial=0)


def _positions(name: str, argument: str, x: Integers, rank: int = 1) -> Positions:
    """Returns integers, as a NumPy array if the host knows them."""
    host = x if isinstance(x, jax.Array) else host_array(x, name, argument, MOST)
    if host.ndim != rank:
        expected = "a 1-D array (batches come from jax.vmap)" if rank else "an integer scalar"
        raise value_error(name, argument, expected, describe(host))
    if not isinstance(host, np.ndarray):
        return whole_axes(index_array(name, argument, host, MOST))
    if host.size and host.dtype.kind not in "iu":
        got = describe(host) + positions_instead(host.dtype) if rank else x
        raise type_error(name, argument, "integers" if rank else "an integer scalar", got)
    dtype = jax.dtypes.canonicalize_dtype(np.int64)
    if host.dtype.kind == "u":  # larger positions must not wrap around
        host = np.minimum(host, np.uint64(np.iinfo(dtype).max))
    return host.astype(dtype)


def _count(name: str, count: ArrayLike) -> Positions:
    given = _positions(name, "count", count, rank=0).reshape(1)
    if not isinstance(given, np.ndarray):
        return not_negative(name, "count", given)
    _expect(name, "count", "an integer of at least 0", given, given >= 0)
    return given


def _ranges(name: str, starts: Integers, ends: Integers, argument: str = "starts") -> tuple[Positions, Positions]:
    """Returns checked starts and ends; an empty segment ends where it starts."""
    begin, end = _positions(name, argument, starts), _positions(name, "ends", ends)
    if begin.shape != end.shape:
        raise value_error(name, "ends", f"the length of {argument}, {begin.shape[0]}", describe(end))
    if isinstance(begin, np.ndarray) and isinstance(end, np.ndarray):
        _expect_ascending(name, argument, begin)
        full = np.flatnonzero(end > begin)
        apart = np.ones(len(begin), bool)
        apart[full[:-1]] = end[full[:-1]] <= begin[full[1:]]
        _expect(name, "ends", "segments that do not overlap", end, apart)
        return _narrow(begin, np.maximum(begin, end))
    dtype = np.promote_types(*(np.int32 if isinstance(x, np.ndarray) else x.dtype for x in (begin, end)))
    begin, end = (jnp.asarray(x, dtype) for x in (begin, end))
    begin = segment_heads(name, begin, jnp.iinfo(dtype).max)
    return begin, segments_apart(name, "ends", begin, jnp.maximum(begin, end), jnp.iinfo(dtype).max)


def _ranges_of_known_ids(name: str, ids: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns starts and ends of segments, by ids that the host knows."""
    known = (ids >= 0) & (ids < m)
    latest = np.maximum.accumulate(np.where(known, ids, -1))
    _expect(name, "ids", IDS_IN_ORDER, ids, ids_hold(np, ids, known, latest))
    numbers = np.arange(m)
    earliest = np.minimum.accumulate(np.where(known, ids, m)[::-1])[::-1]
    ends = np.searchsorted(earliest, numbers, "right")
    return _narrow(np.minimum(np.searchsorted(latest, numbers), ends), ends)


def _narrow(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns starts and ends as int32, or as int64 if they do not fit."""
    dtype = np.int32 if max(ends.max(initial=0), starts.max(initial=0)) <= np.iinfo(np.int32).max else np.int64
    return starts.astype(dtype), ends.astype(dtype)


def _expect_ascending(name: str, argument: str, x: np.ndarray) -> None:
    expected = f"non-negative integers in non-decreasing order ({LENGTHS})"
    _expect(name, argument, expected, x, (x >= 0) & np.append(True, x[1:] >= x[:-1])[: len(x)])


def _expect(name: str, argument: str, expected: str, x: np.ndarray, holds: np.ndarray) -> None:
    broken = np.flatnonzero(~holds)
    if broken.size:
        raise value_error(name, argument, expected, f"{int(x[broken[0]])} at position {int(broken[0])}")
