"""Weighted choices of items, and samples of tokens from logits."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import ArrayLike, Pytree, SegmentsLike
from jax_mgpu._src.arguments.check import (
    KEY_DTYPES,
    as_array,
    describe,
    expect_vector,
    index_array,
    index_dtype,
    type_error,
    value_error,
)
from jax_mgpu._src.arguments.preconditions import fractions, not_negative
from jax_mgpu._src.arguments.segments import segment_operands
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.core.compat import surely, whole_axes
from jax_mgpu._src.core.operation import ABSENT, Operation, jit_eager
from jax_mgpu._src.functions.operators import Kind
from jax_mgpu._src.keys.bits import is_random_key
from jax_mgpu._src.ops.ranks import top_k as first_items
from jax_mgpu._src.ops.reduce import _segmented_reduce
from jax_mgpu._src.ops.scan import pieces, scan_columns
from jax_mgpu._src.ops.sort import Sort
from jax_mgpu._src.ops.sorted_search import _segmented_search

__all__ = ["sample_logits", "weighted_choice"]


@jit_eager()
def weighted_choice(
    u: ArrayLike, weights: ArrayLike, segments: SegmentsLike | None = None, ids: ArrayLike | None = None
) -> jax.Array:
    """Chooses an item by weight for each random number, among all items or those of a segment.

    Args:
      u: random numbers from 0 to 1, floats, an array of any shape; with `segments` 1-D, `[k]`.
      weights: `[n]`, integers of 8 to 64 bits or floats of 16 to 64 bits, which need not add up to 1. Negative weights
        and NaN count as 0.
      segments: `Segments` of the weights, or their heads: each number then chooses within one segment.
      ids: `[k]` integers: the segment of each number (default: number `j` chooses within segment `j`). A number whose
        id is out of range belongs to no segment.

    Returns:
      An index into `weights` for each number, of the shape of `u`: the first `i` with `C[i] > u * C[last]`, where `C`
      are the running sums of the weights, or the last item with a weight above 0 if there is no such `i`. -1 if all
      weights are 0, or if the number belongs to no segment. int32, or int64 from 2^31 items on.

    Raises:
      TypeError: u does not hold floats, weights do not hold numbers, or ids do not hold integers.
      ValueError: an argument's shape is not one of the above, or ids are given without segments; 2^31 items or more
        without `jax_enable_x64`.

    Sums are computed in float32 or wider. An item of weight 0 is never chosen, whatever the rounding. There are no
    derivatives. Time is O(n + m + k log n).

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> weights = jnp.array([1.0, 0.0, 3.0, 2.0, 2.0])
      >>> mgpu.weighted_choice(jnp.array([0.1, 0.2, 0.9]), weights)
      Array([0, 2, 4], dtype=int32)
      >>> mgpu.weighted_choice(jnp.array([0.1, 0.9]), weights, mgpu.Segments.from_lengths([3, 2]), jnp.array([1, 0]))
      Array([3, 2], dtype=int32)
    """
    name = "weighted_choice"
    u = _floats(name, "u", u)
    weights = whole_axes(expect_vector(name, "weights", weights))
    if weights.dtype.name not in KEY_DTYPES:
        raise type_error(name, "weights", "integers of 8 to 64 bits or floats of 16 to 64 bits", describe(weights))
    n, wide = weights.shape[0], any(x.dtype == jnp.float64 for x in (u, weights))
    dtype = jnp.dtype(jnp.float64 if wide else jnp.float32)
    index = index_dtype(name, "weights", n)
    if segments is None:
        if ids is not None:
            raise value_error(name, "ids", "None without segments", describe(ids))
        heads, numbers = jnp.zeros((1,), index), jnp.zeros((u.size,), index)
        begin, end = heads, jnp.full((1,), n, index)
    else:
        if u.ndim != 1:
            raise value_error(name, "u", "a 1-D array where segments are given", describe(u))
        given = segment_operands(name, segments, None, None, n, whole=True)
        begin, end = (x.astype(index) for x in given.bounds())
        heads = pieces(given).astype(index)
        numbers = _numbers(name, u.shape[0], ids, given.m, index)
    u, weights = (jax.lax.stop_gradient(x).astype(dtype) for x in (u, weights))
    weights = jnp.where(weights > 0, weights, 0)
    sums = _running_sums(weights, ABSENT if segments is None else heads)
    totals = jnp.where(begin < end, take_or_fill(sums, end - 1), 0)
    places = jnp.maximum(u.reshape(-1) * take_or_fill(totals, numbers), 0)
    found = _segmented_search(
        needles=places, ids=numbers, haystack=sums, heads=begin, ends=end, right=True, exact=False
    )[0]
    positive = jnp.where(weights > 0, jnp.arange(n, dtype=index), -1)
    last = _segmented_reduce(x=positive, heads=heads, op=Kind.MAX, wide=False)[0]
    last = last if segments is None or given.ends is None else last[::2]
    last = take_or_fill(jnp.maximum(last, -1), numbers, -1)
    return jnp.where(found < take_or_fill(end, numbers), found, last).reshape(u.shape)


def _numbers(name: str, k: int, ids: ArrayLike | None, m: int, index: np.dtype) -> jax.Array:
    """Returns the segment of each number; -1 for none."""
    if ids is None:
        if k != m:
            raise value_error(name, "u", f"one number for each of {m} segments, or ids too", f"{k} numbers")
        return jnp.arange(m, dtype=index)
    ids = whole_axes(index_array(name, "ids", ids, m))
    if ids.shape != (k,):
        raise value_error(name, "ids", f"the length of u, {k}", describe(ids))
    return jnp.where((ids >= 0) & (ids < m), ids, -1).astype(index)


def _running_sums(weights: jax.Array, heads: jax.Array = ABSENT) -> jax.Array:
    """Returns running sums that change only at positive weights and never fall, whatever a scan rounds."""
    sums = scan_columns(weights, Kind.ADD, heads)
    return scan_columns(jnp.where(weights > 0, sums, 0), Kind.MAX, heads)


def _floats(name: str, argument: str, x: Pytree) -> jax.Array:
    x = as_array(name, argument, x)
    if x.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        raise type_error(name, argument, "float16, bfloat16, float32 or float64", describe(x))
    return whole_axes(x)


def sample_logits(
    key: ArrayLike,
    logits: ArrayLike,
    *,
    temperature: ArrayLike = 1.0,
    top_k: ArrayLike | None = None,
    top_p: ArrayLike | None = None,
    min_p: ArrayLike | None = None,
) -> jax.Array:
    """Samples a token for each row of logits.

    Probabilities are the softmax of `logits / temperature`. `top_k` filters the tokens first, then `top_p` by the
    renormalized probabilities of those that remain, then `min_p`. One of the remaining tokens is drawn by its
    probability. Equal logits rank in their order.

    Args:
      key: a random key.
      logits: `[..., n]`, floats: a row for each token to draw. NaN counts as -inf.
      temperature: numbers of at least 0. At 0, the first token with the largest logit is taken.
      top_k: integers: how many tokens with the largest logits to keep; at least one is kept. A Python integer may be
        faster than an array.
      top_p: numbers from 0 to 1: keep the fewest most probable tokens whose probabilities add up to at least this.
      min_p: numbers from 0 to 1: keep tokens that are at least this probable, relative to the most probable one.

    The last four arguments are scalars, or have one number for each row, `[...]`.

    Returns:
      `[...]` tokens, int32; -1 for a row that holds only -inf and NaN.

    Raises:
      TypeError: an argument's dtype is not one of the above, or `key` is not a random key.
      ValueError: an argument's shape is not one of the above.

    Probabilities are computed in float32. Each row takes one random number, from `jax.random.uniform(key,
    logits.shape[:-1])`. There are no derivatives. An array as `top_k` costs a sort of each row, and so may `top_p`
    without `top_k`. An integer `top_k` costs as much as `jax_mgpu.top_k`.

    Example:
      >>> import jax, jax.numpy as jnp, jax_mgpu as mgpu
      >>> logits = jnp.log(jnp.array([[0.1, 0.6, 0.3], [0.5, 0.0, 0.5]]))
      >>> mgpu.sample_logits(jax.random.key(0), logits, temperature=0)
      Array([1, 0], dtype=int32)
      >>> mgpu.sample_logits(jax.random.key(0), logits, top_p=jnp.array([0.5, 1.0]))[0]
      Array(1, dtype=int32)
    """
    number = operator.index(top_k) if isinstance(top_k, (int, np.integer)) and not isinstance(top_k, bool) else None
    numbers = None if number is not None else top_k
    return _sample_logits(key, logits, temperature, numbers, top_p, min_p, number)


@jit_eager("most")
def _sample_logits(
    key: ArrayLike,
    logits: ArrayLike,
    temperature: ArrayLike,
    top_k: ArrayLike | None,
    top_p: ArrayLike | None,
    min_p: ArrayLike | None,
    most: int | None,
) -> jax.Array:
    """`sample_logits` with `top_k` static, as `most`, or traced."""
    name = "sample_logits"
    logits, key = _floats(name, "logits", logits), _random_key(name, key)
    if logits.ndim == 0:
        raise value_error(name, "logits", "rows of logits, [..., n]", describe(logits))
    *batch, n = logits.shape
    index_dtype(name, "logits", n)

    def parameter(argument: str, x: ArrayLike | None, holds: Callable[..., jax.Array]) -> jax.Array | None:
        if x is None:
            return None
        x = as_array(name, argument, x)
        if x.dtype.name not in KEY_DTYPES:
            raise type_error(name, argument, "real numbers", describe(x))
        rows = _of_rows(name, argument, holds(name, argument, x), batch)
        return jax.lax.stop_gradient(rows.astype(jnp.float32))

    temperatures = parameter("temperature", temperature, not_negative)
    if temperatures is None:
        raise type_error(name, "temperature", "real numbers", None)
    masses, shares = parameter("top_p", top_p, fractions), parameter("min_p", min_p, fractions)
    numbers = None if top_k is None else _of_rows(name, "top_k", index_array(name, "top_k", top_k, n), batch)
    u = jax.random.uniform(key, tuple(batch), jnp.float32)
    if logits.size == 0:
        return jnp.full(batch, -1, jnp.int32)
    x = jax.lax.stop_gradient(logits).reshape(-1, n)
    if x.dtype == jnp.float64:
        x = _narrowed(x)
    if masses is not None and numbers is None and most is None:
        tokens = _top_p_tokens(x, u.reshape(-1, 1), temperatures, masses, shares)
        return tokens.astype(jnp.int32).reshape(batch)
    x = _without_nan(x)
    order = None
    if most is not None:
        x, order, _ = jax.vmap(lambda row: first_items(row, max(1, min(most, n))))(x)
    elif numbers is not None:
        x, order = jax.vmap(lambda row: Sort(name, row, True).indices())(x)
    tokens = _drawn(u.reshape(-1, 1), x.astype(jnp.float32), order, temperatures, numbers, masses, shares)
    return tokens.astype(jnp.int32).reshape(batch)


def _narrowed(x: jax.Array) -> jax.Array:
    """Returns float32 logits that differ from those of float64 by a number per row, so that large ones stay apart."""
    largest = jnp.max(_without_nan(x), axis=1, keepdims=True)
    return (x - jnp.where(jnp.isfinite(largest), largest, 0)).astype(jnp.float32)


def _without_nan(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isnan(x), -jnp.inf, x)


def _top_p_tokens(
    x: jax.Array, u: jax.Array, temperature: jax.Array, mass: jax.Array, share: jax.Array | None
) -> jax.Array:
    """Draws a token from each row. Other arguments are columns: a number per row, or one."""
    columns = [u, temperature, mass, jnp.zeros((1, 1), jnp.float32) if share is None else share]
    axes = [0 if column.shape[0] == x.shape[0] else None for column in columns]
    given = [column[0] if axis is None else column for column, axis in zip(columns, axes, strict=True)]
    return jax.vmap(lambda *row: _sample_top_p.run(row)[0], in_axes=(0, *axes))(x, *given)


class _SampleTopP(Operation):
    """A token of a row, drawn among the most probable ones."""

    def prefers_xla(self, operands: Sequence[Any], attributes: Mapping[str, int], platform: str, devices: int) -> bool:
        n = operands[0].shape[-1]
        return platform == "cuda" and (surely(lambda: n < CUDA_MIN_TOKENS) or n >= 2**31)


CUDA_MIN_TOKENS = 2048


def _top_p_fallback(
    logits: jax.Array, u: jax.Array, temperature: jax.Array, mass: jax.Array, share: jax.Array
) -> Sequence[jax.Array]:
    x, order = (part[None] for part in Sort("sample_logits", _without_nan(logits), True).indices())
    u, temperature, mass, share = (part[None] for part in (u, temperature, mass, share))
    return [_drawn(u, x.astype(jnp.float32), order, temperature, None, mass, share)[0]]


_sample_top_p = _SampleTopP(
    "sample_top_p",
    operands={"logits": 1, "u": 1, "temperature": 1, "mass": 1, "share": 1},
    results=("token",),
    shapes=lambda logits: [jax.ShapeDtypeStruct((1,), index_dtype("sample_logits", "logits", logits.shape[0]))],
    fallback=_top_p_fallback,
    streamed=("logits",),
    only="cuda",
)


def _drawn(
    u: jax.Array,
    x: jax.Array,
    order: jax.Array | None,
    temperature: Any,
    number: jax.Array | None,
    mass: jax.Array | None,
    share: jax.Array | None,
) -> jax.Array:
    """Draws a token from each row. With `order`, rows are sorted, descending, and it holds their tokens.

    Filters keep the first tokens of a sorted row, so running sums from before a filter hold after it too.
    """
    best = x.max(axis=1, keepdims=True)
    differences = jnp.where(x == best, 0, x - best) / jnp.where(temperature == 0, 1, temperature)
    powers = jnp.where(x > -jnp.inf, jnp.exp(differences), 0)
    places = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
    if number is not None:
        kept = jnp.clip(number, 1, x.shape[1]).astype(jnp.int32)
        powers = jnp.where(places < kept, powers, 0)
    if order is None and share is not None:
        powers = jnp.where(powers >= jnp.minimum(share, 1), powers, 0)
    sums = jax.vmap(_running_sums)(powers)
    if mass is not None:
        before = jnp.pad(sums[:, :-1], ((0, 0), (1, 0)))
        powers = jnp.where((before < mass * sums[:, -1:]) | (mass >= 1) | (places == 0), powers, 0)
    if share is not None:
        powers = jnp.where(powers >= jnp.minimum(share, 1), powers, 0)
    last = jnp.max(jnp.where(powers > 0, places, -1), axis=1, keepdims=True)
    total = jax.vmap(take_or_fill)(sums, jnp.maximum(last, 0))
    drawn = jnp.minimum(jnp.sum(sums <= u * total, axis=1, keepdims=True, dtype=jnp.int32), last)
    drawn = jnp.where(temperature == 0, jnp.argmax(x, axis=1, keepdims=True).astype(jnp.int32), drawn)
    tokens = drawn if order is None else jax.vmap(take_or_fill)(order, jnp.maximum(drawn, 0))
    return jnp.where(last < 0, -1, tokens)


def _of_rows(name: str, argument: str, x: jax.Array, batch: list[int]) -> jax.Array:
    """Returns a number for each row, as a column, or one for all rows."""
    if x.ndim and x.shape != tuple(batch):
        raise value_error(name, argument, f"a scalar, or a number for each row, {batch}", describe(x))
    return whole_axes(x).reshape(-1, 1)


def _random_key(name: str, key: ArrayLike) -> jax.Array:
    if not isinstance(key, jax.Array):
        key = as_array(name, "key", key)
    if is_random_key(key.dtype):
        if key.ndim:
            raise value_error(name, "key", "one random key", describe(key))
        return key
    if key.dtype == jnp.uint32 and key.ndim == 1:
        try:
            jax.random.wrap_key_data(key)
        except TypeError as error:
            raise type_error(name, "key", "as many words as a random key has", describe(key)) from error
        return key
    raise type_error(name, "key", "a random key", f"{describe(key)} (jax.random.key(0) makes one)")
