"""Reads segments in any form: heads, with or without ends and a count, or a `Segments`."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import ArrayLike, AxisName, Count, SegmentsLike
from jax_mgpu._src.arguments.check import count_operand, describe, index_vector, type_error, value_error
from jax_mgpu._src.arguments.counts import common_dtype, live_items, segment_bounds
from jax_mgpu._src.arguments.preconditions import segment_heads, segments_apart, segments_inside
from jax_mgpu._src.core.compat import whole_axes
from jax_mgpu._src.core.eager import HostChecked, check_on_host
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.mesh import devices_of


class Ranges(HostChecked):
    """The base class of `Segments`, for modules that `Segments` imports."""

    starts: Any
    ends: Any
    # Whether starts and ends, by turns, are known to ascend. A Segments that JAX makes of its arrays does not know it.
    ascends = False


class Groups(NamedTuple):
    """The items of each id, found by `group_ids`. Functions by id accept it in place of ids.

    Attributes:
      order: `[n]`, the items sorted by id, stably; items without an id come last.
      segments: `Segments` of the sorted items, one for each id.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> groups = mgpu.group_ids(jnp.array([2, 0, 2, -1]), 3)
      >>> groups.order, groups.segments.lengths
      (Array([1, 0, 2, 3], dtype=int32), Array([1, 0, 2], dtype=int32))
    """

    order: jax.Array
    segments: Any


@dataclasses.dataclass(frozen=True)
class GivenSegments:
    """The segments of n items, as operands.

    Args:
      heads: `[m]`, the starts.
      ends: `[m]`; None if each segment ends where the next one begins, the last one after the last live item.
      count: the live items, `[1]` or absent.
      ascends: whether heads and ends, by turns, are known to ascend.
    """

    heads: jax.Array
    ends: jax.Array | None
    count: jax.Array
    n: int
    ascends: bool = False

    @property
    def m(self) -> int:
        """The number of segments."""
        return self.heads.shape[0]

    def bounds(self) -> tuple[jax.Array, jax.Array]:
        """Returns where each segment begins and ends among the live items."""
        if self.ends is None:
            return segment_bounds(self.heads, self.n, self.count)
        live = live_items(self.n, self.count)
        dtype = common_dtype(self.heads, self.ends, live)
        begin, end = (jnp.clip(x.astype(dtype), 0, live.astype(dtype)) for x in (self.heads, self.ends))
        return begin, jnp.maximum(begin, end)


def split_segments(
    operation: str,
    heads: SegmentsLike,
    ends: ArrayLike | None = None,
    count: Count = None,
    argument: str = "count",
    **others: object,
) -> tuple[ArrayLike, ArrayLike | None, Count]:
    """Returns heads, ends and count. A `Segments` as `heads` gives heads and ends; all other arguments must be None."""
    if not isinstance(heads, Ranges):
        return heads, ends, count
    for name, given in {"ends": ends, argument: count, **others}.items():
        if given is not None:
            raise value_error(operation, name, "None with Segments, which contain it", describe(given))
    return heads.starts, heads.ends, None


def segment_operands(
    operation: str,
    heads: SegmentsLike,
    ends: ArrayLike | None,
    count: Count,
    n: int,
    *,
    argument: str = "count",
    axis_name: AxisName | None = None,
    whole: bool = False,
) -> GivenSegments:
    """Checks the segments of a public function.

    `argument` is the name of the count in that function. `whole` unshards heads and ends for plain JAX. If heads are
    `ABSENT`, there is only a count.
    """
    if heads is ABSENT:
        if ends is not None:
            raise value_error(operation, "ends", "None without heads", describe(ends))
        return GivenSegments(ABSENT, None, count_operand(operation, argument, count, n), n)
    says_all = isinstance(heads, Ranges)
    ascends = isinstance(heads, Ranges) and heads.ascends
    reach = n * devices_of(operation, axis_name)
    heads, ends, count = split_segments(operation, heads, ends, count, argument)
    if says_all:
        check_on_host(_expect_inside, (heads, ends), operation, "heads", reach)
    heads = segment_heads(operation, index_vector(operation, "heads", heads, n), n)
    heads = whole_axes(heads) if whole else heads
    live = count_operand(operation, argument, count, n)
    if ends is None:
        return GivenSegments(heads, None, live, n)
    ends = index_vector(operation, "ends", ends, reach)
    ends = whole_axes(ends) if whole else ends
    if ends.shape != heads.shape:
        raise value_error(operation, "ends", f"the length of heads, {heads.shape[0]}", describe(ends))
    dtype = common_dtype(heads, ends)
    heads, ends = heads.astype(dtype), ends.astype(dtype)
    ends = segments_apart(operation, "ends", heads, ends, reach)
    if says_all:
        ends = segments_inside(operation, "heads", heads, ends, reach)
    return GivenSegments(heads, ends, live, n, ascends)


def group_operands(operation: str, groups: Groups, n: int | None, size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the order of items by id, where each of `size` ids begins, and how many items have an id, `[1]`."""
    order, segments = groups
    if not isinstance(segments, Ranges) or np.ndim(order) != 1:
        raise type_error(operation, "ids", "Groups from group_ids", repr(groups))
    if n is not None and order.shape[0] != n:
        raise value_error(operation, "ids", f"the Groups of as many ids as items of x, {n}", order.shape[0])
    if segments.starts.shape != (size,):
        raise value_error(operation, "ids", f"the Groups of {size} ids", describe(segments.starts))
    ends = jnp.asarray(segments.ends)
    count = ends[-1:] if size else jnp.zeros((1,), ends.dtype)
    return jnp.asarray(order), jnp.asarray(segments.starts), count


def expect_inside(operation: str, argument: str, segments: Any, n: int) -> Any:
    """Raises unless the segments lie within n items."""
    check_on_host(_expect_inside, (segments.starts, segments.ends), operation, argument, n)
    if not isinstance(segments.ends, jax.Array):
        return segments
    return segments.of(segments.starts, segments_inside(operation, argument, segments.starts, segments.ends, n))


def _expect_inside(bounds: Any, operation: str, argument: str, n: int) -> None:
    starts, ends = bounds
    if not (isinstance(n, int) and isinstance(starts, np.ndarray) and isinstance(ends, np.ndarray)):
        return
    past = np.flatnonzero((ends > n) & (ends > starts))
    if past.size:
        segment = int(past[0])
        got = f"segment {segment} from {int(starts[segment])} to {int(ends[segment])}"
        raise value_error(operation, argument, f"Segments within {n} items{_meant(ends - starts, n)}", got)


def _meant(lengths: np.ndarray, n: int) -> str:
    """Returns a hint if lengths look like offsets (they ascend from 0 to n) or like ids (there are n, ascending)."""
    if np.all(lengths[1:] >= lengths[:-1]):
        if lengths[0] == 0 and lengths[-1] == n:
            return " (Segments.from_offsets takes offsets)"
        if len(lengths) == n:
            return " (Segments.from_ids takes the segment of each item)"
    return ""
