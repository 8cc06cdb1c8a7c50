"""Functions of `jax.numpy` on the kernels of this package: the same signatures and results, often faster than JAX's.

`import jax_mgpu.numpy as jnp` can replace the import of `jax.numpy`: all names that this module lacks come from there.
Kernels run if they should be faster or, on a GPU, if JAX's sums may have other bits in each run. Every other call is
JAX's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as _jnp
import numpy as _np

import jax_mgpu as _mgpu
from jax_mgpu._src.drop_in import (
    MAX_COLUMNS,
    NEVER,
    Call,
    along,
    is_array,
    is_float,
    is_key,
    item_count,
    like,
    order_statistics,
)

__all__ = [
    "argsort",
    "argwhere",
    "bincount",
    "compress",
    "cumprod",
    "cumsum",
    "extract",
    "flatnonzero",
    "histogram",
    "intersect1d",
    "isin",
    "lexsort",
    "median",
    "nonzero",
    "percentile",
    "quantile",
    "repeat",
    "searchsorted",
    "setdiff1d",
    "setxor1d",
    "sort",
    "take",
    "top_k",
    "union1d",
    "unique",
    "unique_counts",
    "unique_values",
]


def __getattr__(name: str) -> Any:
    return getattr(_jnp, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(_jnp)})


# From this number of items on, a CPU's kernels sort.
SORTED = 256


@like(_jnp.sort, "a", min_items=SORTED)
def sort(call: Call) -> Any:
    """`jax.numpy.sort`, by the kernels of `jax_mgpu.sort`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.sort(jnp.array([3, 1, 2]), descending=True)
      Array([3, 2, 1], dtype=int32)
    """
    return call.with_kernels()


@like(_jnp.argsort, "a", min_items=SORTED)
def argsort(call: Call) -> Any:
    """`jax.numpy.argsort`, by the kernels of `jax_mgpu.sort`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.argsort(jnp.array([[3, 1, 2], [5, 6, 4]]), axis=1)
      Array([[1, 2, 0],
             [2, 0, 1]], dtype=int32)
    """
    return call.with_kernels()


@like(_jnp.lexsort, "keys", min_items=SORTED, takes_sequence=True)
def lexsort(call: Call) -> Any:
    """`jax.numpy.lexsort`, by the kernels of `jax_mgpu.sort`, for up to eight keys.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.lexsort((jnp.array([2, 1, 2]), jnp.array([1, 0, 0])))
      Array([1, 2, 0], dtype=int32)
    """
    return call.with_kernels()


SHORT_ROW = 16


def _row(call: Call) -> int:
    """Returns a row's number of items; if the array has 2^14 items or more, at least SHORT_ROW."""
    shape = getattr(call.operand, "shape", ())
    if not (_is_size(call.axis) and -len(shape) <= call.axis < len(shape)):
        return 0
    return max(int(shape[call.axis]), SHORT_ROW if item_count(call.operand) >= 2**14 else 0)


@like(jax.lax.top_k, "operand", min_items=2**14, min_items_on_gpu=SHORT_ROW, measure=_row)
def top_k(call: Call) -> Any:
    """`jax.lax.top_k`, by the kernels of `jax_mgpu.top_k`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> values, indices = jnp.top_k(jnp.array([3, 1, 4, 1, 5]), 2)
      >>> values, indices
      (Array([5, 4], dtype=int32), Array([4, 2], dtype=int32))
    """
    x, k, axis = call.operand, call.k, call.axis
    if not (call.gives_only("operand", "k", "axis") and is_key(x) and _is_axis(axis, x) and _is_size(k)):
        return None
    if not 0 < k <= x.shape[axis]:
        return None

    def program() -> Any:
        codes = _total_order(x)
        indices = along(axis, lambda row: _mgpu.top_k(row, k).indices.astype(_np.int32), codes)
        return [_jnp.take_along_axis(x, indices, axis, mode="promise_in_bounds"), indices]

    return program


def _total_order(x: jax.Array) -> jax.Array:
    """Returns integers in `lax.top_k`'s order, where -0 is less than 0, and NaNs have signs."""
    if not _jnp.issubdtype(x.dtype, _jnp.floating):
        return x
    words = jax.lax.bitcast_convert_type(x, _jnp.dtype(f"int{8 * x.dtype.itemsize}"))
    return _jnp.where(words < 0, words ^ _jnp.iinfo(words.dtype).max, words)


# Order statistics.


@like(_jnp.quantile, "a", "q", "weights", min_items=SORTED)
def quantile(call: Call) -> Any:
    """`jax.numpy.quantile`, by a selection where rows are long, else by a sort.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.quantile(jnp.array([3.0, 1.0, 4.0, 1.0]), jnp.array([0.0, 0.5]))
      Array([1., 2.], dtype=float32)
    """
    names = "a", "q", "axis", "keepdims", "method"
    return _selection(call, call.q, call.method, names) or call.with_kernels()


@like(_jnp.percentile, "a", "q", "weights", min_items=SORTED)
def percentile(call: Call) -> Any:
    """`jax.numpy.percentile`, computed like `quantile`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.percentile(jnp.array([3.0, 1.0, 4.0, 1.0]), 50)
      Array(2., dtype=float32)
    """
    names = "a", "q", "axis", "keepdims", "method"
    return _selection(call, call.q, call.method, names, whole=100) or call.with_kernels()


@like(_jnp.median, "a", min_items=SORTED)
def median(call: Call) -> Any:
    """`jax.numpy.median`, computed like `quantile`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.median(jnp.array([[3.0, 1.0, 4.0], [1.0, 5.0, 9.0]]), axis=1)
      Array([3., 5.], dtype=float32)
    """
    return _selection(call, 0.5, "midpoint", ("a", "axis", "keepdims")) or call.with_kernels()


# Rows of fewer than SELECTED_ROW items, or more than SELECTED quantiles, take a sort.
SELECTED_ROW, SELECTED = 1024, 3


def _selection(call: Call, q: Any, method: str, names: Sequence[str], whole: int = 1) -> Callable[[], Any] | None:
    """Returns a program that computes quantiles from items of two ranks, as JAX does, or None.

    `names` are the arguments that it can serve. `whole` is 100 if `q` is in percent.
    """
    a, axis, keepdims = call.a, call.axis, call.keepdims
    axes = range(a.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if not all(_is_axis(one, a) for one in axes) or not call.gives_only(*names):
        return None
    reduced = sorted({one % a.ndim for one in axes})
    n = math.prod(a.shape[one] for one in reduced)
    kept = [one for one in range(a.ndim) if one not in reduced]
    if len(reduced) < len(axes) or n < SELECTED_ROW or a.size == 0 or not is_float(a):
        return None
    if not (isinstance(q, float) or (is_array(q) and is_float(q))):
        return None
    quantiles = _np.size(q)
    if _np.ndim(q) > 1 or not isinstance(quantiles, int) or not 0 < quantiles <= SELECTED:
        return None
    if method not in ("linear", "lower", "higher", "midpoint", "nearest"):
        return None
    given = q

    def program() -> Any:
        q = _jnp.asarray(given) / whole if whole > 1 else _jnp.asarray(given)
        rows = _jnp.transpose(a, [*kept, *reduced]).reshape(*(a.shape[one] for one in kept), n)
        last = _jnp.broadcast_to(_jnp.asarray(n, q.dtype) - 1, q.shape)  # rounded as in JAX
        ranks = jax.lax.mul(q, last)  # whose derivative has no weak type
        low, high = _jnp.floor(ranks), _jnp.ceil(ranks)
        weight = (ranks - low).reshape(q.shape + (1,) * len(kept))
        places = [_jnp.clip(bound.astype(_np.int32).ravel(), 0, n - 1) for bound in (low, high)]
        items = along(-1, order_statistics(_jnp.concatenate([*places, _jnp.full((1,), n - 1, _np.int32)])), rows)
        items = _jnp.where(_jnp.isnan(items[..., -1:]), _jnp.asarray(_np.nan, a.dtype), items)  # NaNs are last
        below, above = (
            _jnp.moveaxis(part, -1, 0).reshape(q.shape + part.shape[:-1])
            for part in _jnp.split(items[..., :-1], 2, axis=-1)
        )
        if method == "linear":
            found = below.astype(q.dtype) * (1 - weight) + above.astype(q.dtype) * weight
        elif method == "midpoint":
            found = (below + above) * _jnp.asarray(0.5, a.dtype)
        elif method == "nearest":
            found = _jnp.where(_jnp.broadcast_to(weight <= 0.5, below.shape), below, above)
        else:
            found = below if method == "lower" else above
        found = found.astype(a.dtype)
        return _jnp.expand_dims(found, [q.ndim + one for one in reduced]) if keepdims else found

    return program


# Running sums and products.


ACCUMULATED = 2**15  # for fewer items, XLA's running sums and products run on a GPU
LONG_ROW = 2**13


def _row_length(call: Call) -> int | None:
    """Returns the number of items that a running sum or product adds or multiplies; None unless along the last axis."""
    if call.axis is None:
        return item_count(call.a)
    return call.a.shape[-1] if call.a.ndim and call.axis in (-1, call.a.ndim - 1) else None


def _summed(call: Call) -> int:
    """Returns the number of items; less than ACCUMULATED wherever XLA:GPU adds them as fast."""
    items, row = item_count(call.a), _row_length(call)
    if row is None:
        return items // 16
    is_slow = 0 < items < 2**19 and row >= LONG_ROW  # a symbolic shape has no items
    return min(items, ACCUMULATED - 1) if is_slow else items


@like(_jnp.cumsum, "a", min_items=64, min_items_on_gpu=ACCUMULATED, measure=_summed)
def cumsum(call: Call) -> Any:
    """`jax.numpy.cumsum`, by the kernels of `jax_mgpu.scan`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.cumsum(jnp.array([3, 1, 4]))
      Array([3, 4, 8], dtype=int32)
    """
    return call.with_kernels()


def _multiplied(call: Call) -> int:
    """Returns the number of items; less than ACCUMULATED wherever XLA:GPU multiplies them faster."""
    items, row = item_count(call.a), _row_length(call)
    if row is None:
        return items
    is_slow = items < 2**18 or (items < 2**21 and LONG_ROW <= row < 2**20)
    return min(items, ACCUMULATED - 1) if is_slow else items


@like(_jnp.cumprod, "a", min_items=64, min_items_on_gpu=ACCUMULATED, measure=_multiplied)
def cumprod(call: Call) -> Any:
    """`jax.numpy.cumprod`, by the kernels of `jax_mgpu.scan`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.cumprod(jnp.array([3, 1, 4]))
      Array([ 3,  3, 12], dtype=int32)
    """
    return call.with_kernels()


# Selections.


def _nonzero(call: Call) -> list[jax.Array]:
    """Returns the positions of nonzero items, one array per axis."""
    a, size, fill = call.a, call.size, call.fill_value
    mask = (a if a.dtype == bool else a != 0).reshape(-1)
    flat, number = _mgpu.select_indices(mask, size=size, fill_value=0)
    flat = flat.astype(jax.dtypes.canonicalize_dtype(int))
    places = (
        [flat // math.prod(a.shape[axis + 1 :]) % a.shape[axis] for axis in range(a.ndim)] if a.ndim > 1 else [flat]
    )
    if fill is not None:
        places = [_jnp.where(_jnp.arange(size) >= number, fill, place) for place in places]
    return places


def _counted(function: str) -> tuple[str, Callable[[Call], Any]]:
    """Returns the argument `unsized` of `like` for a function whose size is the number of nonzero items."""
    return "size", lambda call: globals()[function](
        call.a, size=int(_jnp.count_nonzero(call.a)), fill_value=call.fill_value
    )


def _finds(call: Call) -> bool:
    """Whether kernels find the nonzero items."""
    fill = call.fill_value
    return (
        call.a.size > 0 < call.a.ndim
        and _is_size(call.size)
        and call.size > 0
        and (fill is None or _np.shape(fill) == ())
    )


@like(_jnp.nonzero, "a", "fill_value", min_items=64, unsized=_counted("nonzero"))
def nonzero(call: Call) -> Any:
    """`jax.numpy.nonzero`, by the kernels of `jax_mgpu.select_indices`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.nonzero(jnp.array([3, 0, 4]), size=2)
      (Array([0, 2], dtype=int32),)
    """
    return (lambda: tuple(_nonzero(call))) if _finds(call) else None


@like(_jnp.flatnonzero, "a", "fill_value", min_items=64, unsized=_counted("flatnonzero"))
def flatnonzero(call: Call) -> Any:
    """`jax.numpy.flatnonzero`, computed like `nonzero`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.flatnonzero(jnp.array([[3, 0], [0, 4]]), size=2)
      Array([0, 3], dtype=int32)
    """
    return (lambda: _nonzero(call.changed(a=_jnp.ravel(call.a)))[0]) if _finds(call) else None


@like(_jnp.argwhere, "a", "fill_value", min_items=64, unsized=_counted("argwhere"))
def argwhere(call: Call) -> Any:
    """`jax.numpy.argwhere`, computed like `nonzero`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.argwhere(jnp.array([[3, 0], [0, 4]]), size=2)
      Array([[0, 0],
             [1, 1]], dtype=int32)
    """
    return (lambda: _jnp.stack(_nonzero(call), axis=-1)) if _finds(call) else None


# Returns a program that selects the slices of `a` along `axis` where `condition` holds, or None.
def _compressed(call: Call, condition: Any, a: Any, axis: int | None) -> Callable[[], Any] | None:
    size = call.size
    axis = 0 if axis is None else axis
    if not _is_axis(axis, a) or condition.ndim != 1 or not call.gives_only(*_COMPRESSED):
        return None
    n = min(condition.shape[0], a.shape[axis])
    if n == 0 or not _is_size(size) or not 0 < size <= n or call.fill_value is None or _np.shape(call.fill_value) != ():
        return None

    def program() -> Any:
        rows = _jnp.moveaxis(a, axis, 0)[:n]
        fill = _jnp.array(call.fill_value, dtype=a.dtype)
        kept = _mgpu.select(rows, condition[:n].astype(bool), size=size, fill_value=fill).values
        return _jnp.moveaxis(kept, 0, axis)

    return program


_COMPRESSED = "condition", "a", "arr", "axis", "size", "fill_value"


def _compress_now(call: Call) -> Any:
    """Calls `compress` outside of `jit` with the number of kept items as the size."""
    condition, axis = call.condition, call.axis
    if not call.gives_only("condition", "a", "axis") or _are_apart(condition, call.a):
        return None
    if _np.ndim(condition) != 1 or _np.ndim(call.a) == 0 or not (axis is None or _is_axis(axis, call.a)):
        return None
    if len(condition) > (_np.size(call.a) if axis is None else call.a.shape[axis]):
        return None
    number = int(_jnp.count_nonzero(condition))
    return compress(condition, call.a, axis, size=number) if number else None


def _are_apart(*arrays: Any) -> bool:
    """Whether arrays are on different devices; JAX reads a condition on the host."""
    return len({frozenset(x.devices()) for x in arrays if isinstance(x, jax.Array)}) > 1


@like(_jnp.compress, "a", "condition", "fill_value", min_items=256, unsized=("size", _compress_now))
def compress(call: Call) -> Any:
    """`jax.numpy.compress`, by the kernels of `jax_mgpu.select`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> x = jnp.array([3, 1, 4])
      >>> jnp.compress(x > 1, x, size=2)
      Array([3, 4], dtype=int32)
    """
    if not is_array(call.condition) or call.a.ndim == 0:
        return None
    a = call.a.reshape(-1) if call.axis is None else call.a
    return _compressed(call, call.condition, a, call.axis)


def _extract_now(call: Call) -> Any:
    if not call.gives_only("condition", "arr") or _are_apart(call.condition, call.arr):
        return None
    return compress(_jnp.ravel(call.condition), _jnp.ravel(call.arr))


@like(_jnp.extract, "arr", "condition", "fill_value", min_items=256, unsized=("size", _extract_now))
def extract(call: Call) -> Any:
    """`jax.numpy.extract`, computed like `compress`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> x = jnp.array([[3, 1], [4, 0]])
      >>> jnp.extract(x > 1, x, size=2)
      Array([3, 4], dtype=int32)
    """
    if not is_array(call.condition):
        return None
    return _compressed(call, call.condition.reshape(-1), call.arr.reshape(-1), 0)


# For more results, a running sum of 32 bits could overflow before it exceeds them.
MOST_REPEATED = 2**30


def _repeated(call: Call) -> bool:
    """Whether kernels can repeat the items."""
    a, repeats, size, axis = call.a, call.repeats, call.total_repeat_length, call.axis
    if not call.gives_only("a", "repeats", "axis", "total_repeat_length") or not _is_size(size) or size <= 0:
        return False
    if not (axis is None or _is_axis(axis, a)) or a.size == 0:
        return False
    items = a.size if axis is None else a.shape[axis]
    if not is_array(repeats) or repeats.shape != (items,):
        return False
    dtype = jax.dtypes.canonicalize_dtype(repeats.dtype).name
    return dtype == "int64" or (dtype == "int32" and size <= MOST_REPEATED)


def _repeat_now(call: Call) -> Any:
    """Calls `repeat` outside of `jit` with the sum of the repeats as the length."""
    if not is_array(call.repeats) or call.repeats.dtype.name not in ("int32", "int64"):
        return None
    repeats = _np.asarray(call.repeats)  # as in JAX, on any device
    if repeats.size and repeats.min() < 0:
        return None
    filled = call.changed(repeats=repeats, total_repeat_length=int(repeats.sum(dtype=_np.int64)))
    return filled.again(repeat) if _repeated(filled) else None


@like(_jnp.repeat, "a", "repeats", min_items=64, min_items_on_gpu=2**19, unsized=("total_repeat_length", _repeat_now))
def repeat(call: Call) -> Any:
    """`jax.numpy.repeat`, by the kernels of `jax_mgpu.interval_expand`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.repeat(jnp.array([7, 8, 9]), jnp.array([2, 0, 1]), total_repeat_length=3)
      Array([7, 7, 9], dtype=int32)
    """
    if not _repeated(call):
        return None
    axis = 0 if call.axis is None else call.axis
    a = call.a.reshape(-1) if call.axis is None else call.a

    def program() -> Any:
        size, rows = call.total_repeat_length, _jnp.moveaxis(a, axis, 0)
        offsets = _mgpu.scan(_jnp.clip(call.repeats, 0, size), exclusive=True)
        if rows.shape[0] * size >= 2**31:  # offsets past the end may wrap around
            offsets = _mgpu.scan(offsets, "max")
        rows = _mgpu.interval_expand(rows, offsets, size)  # the last item fills the rest, as in JAX
        return _jnp.moveaxis(rows, 0, axis)

    return program


@like(_jnp.take, "a", "indices", min_items=NEVER)
def take(call: Call) -> Any:
    """`jax.numpy.take`; the derivative adds rows in a fixed order, by the kernels of `jax_mgpu.reduce_by_id`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.take(jnp.array([3.0, 1.0, 4.0]), jnp.array([2, -1, 7]))
      Array([ 4.,  4., nan], dtype=float32)
    """
    a, indices = call.a, call.indices
    if not call.gives_only("a", "indices", "axis", "mode") or call.mode not in (None, "fill") or not is_float(a):
        return None
    if not is_array(indices) or not _jnp.issubdtype(indices.dtype, _jnp.integer):
        return None
    if a.size == 0 or indices.size == 0 or not (call.axis is None or (call.axis == 0 and a.ndim > 0)):
        return None

    def program() -> Any:
        rows = a.reshape(-1) if call.axis is None else a
        places = _jnp.where(indices < 0, indices + rows.shape[0], indices).reshape(-1)
        return _mgpu.take(rows, places, fill_value=_np.nan).reshape(*indices.shape, *rows.shape[1:])

    return program


# Searches and counts.


@like(_jnp.searchsorted, "v", "a", "sorter", min_items=NEVER)
def searchsorted(call: Call) -> Any:
    """`jax.numpy.searchsorted`, by the kernels of `jax_mgpu.search`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.searchsorted(jnp.array([1, 2, 2, 5]), jnp.array([2, 0]), side="right")
      Array([3, 0], dtype=int32)
    """
    a, v, sorter = call.a, call.v, call.sorter
    if not is_array(a) or a.ndim != 1 or not is_key(v) or a.dtype != v.dtype:
        return None
    if call.side not in ("left", "right") or call.method == "compare_all" or a.size == 0 or v.size == 0:
        return None
    if call.method not in ("scan", "scan_unrolled", "sort") or a.shape[0] >= 2**31:
        return None
    if not (sorter is None or is_array(sorter)):
        return None

    def program() -> Any:
        haystack = _jnp.asarray(a) if sorter is None else _jnp.asarray(a)[sorter]
        return _mgpu.search(v.reshape(-1), haystack, call.side).reshape(v.shape)

    return program


def _bincount_now(call: Call) -> Any:
    """Calls `bincount` outside of `jit` with a length for the largest item."""
    if call.x.size == 0 or not _jnp.issubdtype(call.x.dtype, _jnp.integer) or not _is_size(call.minlength):
        return None
    return call.changed(length=max(call.minlength, int(_jnp.max(call.x)) + 1, 0)).again(bincount)


COUNTED, PER_BIN = 2**15, 32  # for fewer items, or fewer per bin, XLA's scatter may run on a GPU


def _counted_items(call: Call) -> int:
    """Returns the number of items; less than COUNTED wherever XLA:GPU counts faster."""
    items = item_count(call.x)
    is_slow = call.weights is None and items < 2**21 and _is_size(call.length) and items < PER_BIN * call.length
    return min(items, COUNTED - 1) if is_slow else items


@like(
    _jnp.bincount,
    "x",
    "weights",
    min_items=NEVER,
    min_items_on_gpu=COUNTED,
    measure=_counted_items,
    unsized=("length", _bincount_now),
)
def bincount(call: Call) -> Any:
    """`jax.numpy.bincount`, by the kernels of `jax_mgpu.bincount`; sums have the same bits in every run.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.bincount(jnp.array([2, 0, 2]), length=4)
      Array([1, 0, 2, 0], dtype=int32)
    """
    x, weights, length = call.x, call.weights, call.length
    if not call.gives_only("x", "weights", "minlength", "length") or not isinstance(call.minlength, int):
        return None
    if x.ndim != 1 or x.dtype == bool or not _jnp.issubdtype(x.dtype, _jnp.integer) or not _is_size(length):
        return None
    if weights is not None and not (is_array(weights) and weights.shape == x.shape):
        return None
    if length <= 0 or x.size == 0 or not (weights is None or is_key(weights)):
        return None

    def program() -> Any:
        counts = _mgpu.bincount(_jnp.maximum(x, 0), length, weights)
        return counts.astype(jax.dtypes.canonicalize_dtype(int) if weights is None else weights.dtype)

    return program


@like(_jnp.histogram, "a", "bins", "range", "weights", min_items=NEVER)
def histogram(call: Call) -> Any:
    """`jax.numpy.histogram`, by the kernels of `jax_mgpu.histogram`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.histogram(jnp.array([0.5, 1.0, 2.0, 9.0]), jnp.array([0.0, 1.0, 2.0]))[0]
      Array([1., 2.], dtype=float32)
    """
    if not call.gives_only("a", "bins", "range", "density") or not is_float(call.a) or call.a.size == 0:
        return None
    if not _is_size(call.bins) and not (is_array(call.bins) and call.bins.ndim == 1):
        return None
    if (call.bins if _is_size(call.bins) else call.bins.shape[0] - 1) < 1:
        return None

    def program() -> Any:
        edges = _jnp.histogram_bin_edges(call.a, call.bins, call.range)
        counts = _mgpu.histogram(call.a.reshape(-1), edges)[0].astype(call.a.dtype)
        if call.density:
            counts = counts / _jnp.diff(edges) / counts.sum()
        return counts, edges

    return program


# Sets.


def _unique_now(call: Call) -> Any:
    """Calls `unique` outside of `jit`, and cuts its results to the distinct items."""
    axis = 0 if call.axis is None else call.axis
    if call.ar.size == 0 or not (call.axis is None or _has_few_columns(call)):
        return None
    size = call.ar.size if call.axis is None else call.ar.shape[axis]
    values, *others = call.changed(size=size, fill_value=None, return_counts=True).again(unique)
    number = int(_jnp.count_nonzero(others[-1]))
    results = [jax.lax.slice_in_dim(values, 0, number, axis=axis)]
    if call.return_index:
        results.append(others[0][:number])
    if call.return_inverse:
        results.append(others[1 if call.return_index else 0])
    if call.return_counts:
        results.append(others[-1][:number])
    return results[0] if len(results) == 1 else tuple(results)


@like(_jnp.unique, "ar", "fill_value", min_items=SORTED, unsized=("size", _unique_now))
def unique(call: Call) -> Any:
    """`jax.numpy.unique`, by a sort with the kernels of `jax_mgpu.sort`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.unique(jnp.array([7, 2, 7, 5]), return_counts=True)
      (Array([2, 5, 7], dtype=int32), Array([1, 1, 2], dtype=int32))
    """
    return call.with_kernels() if call.axis is None or _has_few_columns(call) else None


def _has_few_columns(call: Call) -> bool:
    """Whether items along an axis are columns that kernels sort."""
    return _is_axis(call.axis, call.ar) and call.ar.size <= MAX_COLUMNS * call.ar.shape[call.axis]


@like(
    _jnp.unique_values,
    "x",
    "fill_value",
    min_items=SORTED,
    unsized=("size", lambda call: unique(call.x, equal_nan=False)),
)
def unique_values(call: Call) -> Any:
    """`jax.numpy.unique_values`, computed like `unique`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.unique_values(jnp.array([7, 2, 7, 5]), size=3)
      Array([2, 5, 7], dtype=int32)
    """
    return call.with_kernels()


def _unique_counts_now(call: Call) -> Any:
    if call.x.size == 0:
        return None
    found = unique_counts(call.x, size=call.x.size)
    number = int(_jnp.count_nonzero(found.counts))
    return jax.tree.map(lambda x: x[:number], found)


@like(_jnp.unique_counts, "x", "fill_value", min_items=SORTED, unsized=("size", _unique_counts_now))
def unique_counts(call: Call) -> Any:
    """`jax.numpy.unique_counts`, computed like `unique`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.unique_counts(jnp.array([7, 2, 7, 5]), size=3).counts
      Array([1, 1, 2], dtype=int32)
    """
    return call.with_kernels()


def _are_alike(call: Call) -> bool:
    """Whether both sides are arrays of one type that have items."""
    sides = call.ar1, call.ar2
    return (
        all(is_array(x) and x.size for x in sides)
        and sides[0].dtype == sides[1].dtype
        and call.assume_unique in (True, False)
    )


@like(
    _jnp.union1d,
    "ar1",
    "ar2",
    "fill_value",
    min_items=SORTED,
    unsized=("size", lambda call: unique(_jnp.concatenate([call.ar1, call.ar2], axis=None))),
)
def union1d(call: Call) -> Any:
    """`jax.numpy.union1d`, computed like `unique`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.union1d(jnp.array([3, 1, 3]), jnp.array([2, 1]))
      Array([1, 2, 3], dtype=int32)
    """
    return call.with_kernels()


def _setdiff1d_now(call: Call) -> Any:
    if not _are_alike(call) or not call.gives_only("ar1", "ar2", "assume_unique"):
        return None
    kept = _jnp.ravel(call.ar1) if call.assume_unique else unique(call.ar1)
    return compress(isin(kept, call.ar2, invert=True), kept)


@like(_jnp.setdiff1d, "ar1", "ar2", "fill_value", min_items=SORTED, unsized=("size", _setdiff1d_now))
def setdiff1d(call: Call) -> Any:
    """`jax.numpy.setdiff1d`, by sorts with the kernels of `jax_mgpu.sort`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.setdiff1d(jnp.array([3, 1, 3]), jnp.array([2, 1]))
      Array([3], dtype=int32)
    """
    size, fill = call.size, call.fill_value
    if not _are_alike(call) or not _is_size(size) or size <= 0 or _np.shape(fill) != () or isinstance(fill, complex):
        return None

    def program() -> Any:
        own = _jnp.ravel(call.ar1)
        filling = jax.lax.full_like(own, 0 if fill is None else fill, shape=())
        if call.assume_unique:
            kept = ~isin(own, call.ar2)
        else:
            n = own.shape[0]
            own = unique(own, size=n)
            number = n + 1 - _jnp.sum(own == own[0])  # without the first item's copies, which pad the array
            kept = ~isin(own, call.ar2) & (_jnp.arange(n) < number)
        return _mgpu.select(own, kept, size=size, fill_value=filling).values

    return program


def _setxor1d_now(call: Call) -> Any:
    if not _are_alike(call):
        return None
    sides = [_jnp.ravel(x) if call.assume_unique else unique(x) for x in (call.ar1, call.ar2)]
    items = sort(_jnp.concatenate(sides))
    edge = _jnp.ones((1,), bool)
    differs = _jnp.concatenate([edge, items[1:] != items[:-1], edge])
    return compress(differs[1:] & differs[:-1], items)


@like(_jnp.setxor1d, "ar1", "ar2", "fill_value", min_items=SORTED, unsized=("size", _setxor1d_now))
def setxor1d(call: Call) -> Any:
    """`jax.numpy.setxor1d`, by sorts with the kernels of `jax_mgpu.sort`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.setxor1d(jnp.array([3, 1, 3]), jnp.array([2, 1]))
      Array([2, 3], dtype=int32)
    """
    return call.with_kernels() if _are_alike(call) else None


def _intersect1d_now(call: Call) -> Any:
    if not _are_alike(call) or call.return_indices:
        return None
    sides = [_jnp.ravel(x) if call.assume_unique else unique(x) for x in (call.ar1, call.ar2)]
    items = sort(_jnp.concatenate(sides))
    return compress(items[1:] == items[:-1], items[:-1])


@like(_jnp.intersect1d, "ar1", "ar2", min_items=SORTED, unsized=("size", _intersect1d_now))
def intersect1d(call: Call) -> Any:
    """`jax.numpy.intersect1d`, by sorts with the kernels of `jax_mgpu.sort`.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.intersect1d(jnp.array([3, 1, 3]), jnp.array([2, 1]))
      Array([1], dtype=int32)
    """
    return call.with_kernels() if _are_alike(call) else None


# With `method="auto"` and at most this many test elements, JAX's own function runs.
FEW_TESTS = 128


def _pairs(call: Call) -> int:
    return item_count(call.element) * item_count(call.test_elements)


@like(_jnp.isin, "element", "test_elements", min_items=2**20, min_items_on_gpu=2**24, measure=_pairs)
def isin(call: Call) -> Any:
    """`jax.numpy.isin`, by a search; JAX compares all pairs unless `method` says otherwise.

    Example:
      >>> import jax_mgpu.numpy as jnp
      >>> jnp.isin(jnp.array([3, 1, 3]), jnp.array([2, 1]))
      Array([False,  True, False], dtype=bool)
    """
    items, tests = call.element, call.test_elements
    if not is_array(tests) or tests.dtype != items.dtype or not is_key(items) or tests.size == 0:
        return None
    if call.method not in ("auto", "binary_search", "sort") or (call.method == "auto" and tests.size <= FEW_TESTS):
        return None

    def program() -> Any:
        sought, known = _jnp.ravel(items), _mgpu.sort(_jnp.ravel(tests))
        # Unlike an index, `take` may be mapped over Explicit axes.
        found = _mgpu.take(known, _jnp.minimum(_mgpu.search(sought, known), known.shape[0] - 1))
        return (found == sought).reshape(items.shape) != call.invert

    return program


def _is_size(value: object) -> bool:
    return isinstance(value, int | _np.integer) and not isinstance(value, bool)


def _is_axis(axis: Any, x: Any) -> bool:
    return _is_size(axis) and -x.ndim <= axis < x.ndim
