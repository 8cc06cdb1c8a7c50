"""Linear recurrences, y[i] = a[i] y[i - 1] + b[i] within each segment: the derivatives of scans.

Derivatives of scans by "mul", "logsumexp" and many functions are such recurrences. A recurrence is linear in b. Its
transpose is a recurrence in the other direction, where each item has the factor of the item before it: it is `late`.
The transpose of a late one is not late, and the derivative by a is another recurrence.

Arrays are `[n]`, or `[n, width]` with a recurrence per column.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import DTypeLike, Operands, Tangents
from jax_mgpu._src.arguments.counts import live_items, live_mask, segment_starts
from jax_mgpu._src.core.compat import ad, free_of_explicit_axes, is_sharded, is_zero, moving_jvp
from jax_mgpu._src.core.operation import ABSENT, Operation
from jax_mgpu._src.functions import blocked_scan
from jax_mgpu._src.functions.blocked_scan import select
from jax_mgpu._src.functions.compiled_operation import CompiledOperation
from jax_mgpu._src.functions.emit import OperatorData, Stage, emit_operator
from jax_mgpu._src.functions.operators import accumulator_dtype
from jax_mgpu._src.keys.bits import shifted


def recurrence(
    a: jax.Array, b: jax.Array, heads: jax.Array, count: jax.Array, *, reverse: int, late: int = False
) -> jax.Array:
    """Returns y[i] = a[i] y[i - 1] + b[i] from the start of each segment, or from its end; 0 for dead items.

    If it is late, y[i] = a[i - 1] y[i - 1] + b[i].
    """
    return _recurrence(a.ndim)(a=a, b=b, heads=heads, count=count, reverse=reverse, late=late)[0]


def neighbours(y: jax.Array, heads: jax.Array, count: jax.Array, *, reverse: int) -> jax.Array:
    """Returns y[i - 1], or y[i + 1], within each segment; 0 where there is none, and for dead items."""
    moved = shifted(y, -1 if reverse else 1)
    return select(edges(y.shape[0], heads, count, reverse), jnp.zeros_like(moved), moved)


@functools.partial(jax.jit, static_argnums=(0, 3))
def edges(n: int, heads: jax.Array, count: jax.Array, reverse: int) -> jax.Array:
    """Returns which items get no carry: the first of each segment (or the last), and dead items."""
    live = live_items(n, count)
    starts = segment_starts(n, heads)
    alone = shifted(starts, -1, True) if reverse else starts
    return alone | (jnp.arange(n, dtype=live.dtype) >= live - int(reverse))


def recurrence_of_products(
    a: jax.Array, w: jax.Array, t: jax.Array, b: jax.Array, count: jax.Array, *, reverse: int
) -> jax.Array:
    """Returns y[i] = a[i] y[i - 1] + w[i - 1] t[i] + b[i] of rows, or with i + 1; w is 0 before the first row.

    With the cotangents of y as terms, a late recurrence in the other direction has a solution z. The cotangents of t
    and b are z[i] w[i - 1] and z[i].
    """
    return _of_products(a=a, w=w, t=t, b=b, count=count, reverse=reverse)[0]


def weighted(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Returns products of weights and tangents, where 0 times any weight is 0."""
    return _weighted(x.ndim)(weights=weights, x=x)[0]


class Zeroing(enum.IntEnum):
    """The factor of a product that is a cotangent: where it is 0, the product is 0, whatever the other factor is."""

    NONE = 0
    FIRST = 1
    SECOND = 2


def zeroing_product(a: jax.Array, b: jax.Array, zeroing: int) -> jax.Array:
    """Returns a product of which one factor may be a cotangent."""
    if zeroing == Zeroing.NONE:
        return a * b
    return weighted(b, a) if zeroing == Zeroing.FIRST else weighted(a, b)


@jax.custom_jvp
def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns a product whose derivative is 0 for a cotangent of 0, even where a factor is infinite."""
    return a * b


@product.defjvp
def _(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    (a, b), (da, db) = primals, tangents
    return product(a, b), weighted(b, da) + weighted(a, db)


@jax.custom_jvp
def exponential(x: jax.Array) -> jax.Array:
    """Returns an exponential whose derivative is 0 for a cotangent of 0, even where it is infinite or NaN."""
    return jnp.exp(x)


@exponential.defjvp
def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    power = exponential(*primals)
    return power, weighted(power, *tangents)


@jax.custom_jvp
def ratio(a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns a quotient whose derivative is 0 for a cotangent of 0, even where the divisor is 0 or NaN."""
    return a / b


@ratio.defjvp
def _(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    quotient = ratio(*primals)
    return quotient, weighted(1 / primals[1], tangents[0] - weighted(quotient, tangents[1]))


@jax.custom_jvp
def logarithm(x: jax.Array) -> jax.Array:
    """Returns a logarithm whose derivative is 0 for a cotangent of 0, even where x is 0 or NaN."""
    return jnp.log(x)


@logarithm.defjvp
def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return logarithm(*primals), weighted(1 / primals[0], *tangents)


@jax.custom_jvp
def log_add(a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns the logarithm of a sum of exponentials, whose derivative is 0 for a cotangent of 0."""
    return jnp.logaddexp(a, b)


@log_add.defjvp
def _(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    """A state's derivative is its share of the sum; states that equal an infinite sum have equal shares."""
    largest = jax.lax.stop_gradient(jnp.maximum(*primals))
    same = [jnp.where(x == largest, 0, -jnp.inf).astype(x.dtype) for x in primals]
    powers = [jnp.exp(jnp.where(jnp.isinf(largest), y, x - largest)) for x, y in zip(primals, same, strict=True)]
    total = powers[0] + powers[1]
    parts = [weighted(power / total, tangent) for power, tangent in zip(powers, tangents, strict=True)]
    return log_add(*primals), parts[0] + parts[1]


class _Recurrence(CompiledOperation):
    """A recurrence of arrays of a given rank, 1 or 2, by the kernel that scans by a function.

    If it is `multiplied`, it has one more operand w, and one more result: each y times w of the next item of the scan.
    """

    def __init__(self, rank: int, multiplied: bool = False):
        leaves = ("a", "b", "w") if multiplied else ("a", "b")
        self.multiplied = multiplied
        super().__init__(
            "scan_by_function",
            "derivatives of scans",
            len(leaves),
            0,
            operands={**dict.fromkeys(leaves, rank), "heads": 1, "count": 1},
            results=("y", "products") if multiplied else ("y",),
            attributes={"reverse": bool, "late": bool},
            shapes=lambda b: [b, b] if multiplied else [b],
            fallback=_multiplied if multiplied else _fallback,
            streamed=leaves,
        )
        if multiplied:
            self.def_jvp(functools.partial(jvp_by, self, _multiplied))
        else:
            self.def_jvp(self._jvp)
            self.def_transpose("b", _transpose)

    def prefers_xla(self, operands: Sequence[Any], attributes: Mapping[str, Any], platform: str, devices: int) -> bool:
        b = operands[1]
        if b.size == 0 or not jnp.issubdtype(b.dtype, jnp.floating) or b.dtype.itemsize < 2:
            return True
        return super().prefers_xla(operands, attributes, platform, devices)

    def call_attributes(self, operands: Sequence[Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
        a, reverse = operands[0], attributes["reverse"]
        width = a.shape[-1] if self.ranks[0] > 1 else 0
        own = {"width": width, "exclusive": 0, "reverse": reverse, "total": 0}
        written = _written(np.dtype(a.dtype), bool(reverse), bool(attributes["late"]), self.multiplied)
        return self.attributes_of(written, operands, own)

    def _batch(self, operands: Sequence[Any], axes: Sequence[Any], **attributes: Any) -> tuple[Any, Any]:
        """Returns a batch of adjacent columns as a recurrence of rows, read in place."""
        a, b, *_, heads, count = operands
        is_of_columns = self.ranks[0] == 1 and tuple(axes) == (1, 1, None, None) and a.ndim == b.ndim == 2
        if is_of_columns and not is_sharded(a) and not is_sharded(b):
            return [recurrence(a, b, heads, count, **attributes)], [1]
        return super()._batch(operands, axes, **attributes)

    def _jvp(self, primals: Operands, tangents: Tangents, *, reverse: int, late: int) -> tuple[Any, Any]:
        a, _, heads, count = primals
        results = self.run(primals, reverse=reverse, late=late)
        given: dict[str, Any] = {"heads": heads, "count": count, "reverse": reverse}
        parts = [] if tangents.b is None else [tangents.b]
        if tangents.a is not None:
            y, da = results[0], tangents.a
            parts.append(neighbours(da * y, **given) if late else da * neighbours(y, **given))
        return results, [recurrence(a, sum(parts[1:], parts[0]), **given, late=late) if parts else None]


def _fallback(
    a: jax.Array, b: jax.Array, heads: jax.Array, count: jax.Array, *, reverse: int, late: int
) -> Sequence[jax.Array]:
    n = a.shape[0]
    if n == 0:
        return [b]
    alone = edges(n, heads, count, reverse) if heads.size or count.size else None
    wide = accumulator_dtype(b.dtype)
    given = ((shifted(a, -1 if reverse else 1) if late else a).astype(wide), b.astype(wide), alone)
    y = (_flipped(_solved(*_flipped(given))) if reverse else _solved(*given)).astype(b.dtype)
    return [select(live_mask(n, count), y, jnp.zeros_like(y)) if count.size else y]


def _flipped(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.lax.rev(x, (0,)), tree)


@jax.jit
def _solved(a: jax.Array, b: jax.Array, alone: jax.Array | None) -> jax.Array:
    result: jax.Array = blocked_scan.scanned(lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]), (a, b), alone)[1]
    return result


def _transpose(cotangents: Sequence[Any], operands: Operands, *, reverse: int, late: int) -> jax.Array:
    given = operands.a, cotangents[0], operands.heads, operands.count
    return recurrence(*given, reverse=not reverse, late=not late)


def _multiplied(
    a: jax.Array, b: jax.Array, w: jax.Array, heads: jax.Array, count: jax.Array, *, reverse: int, late: int
) -> Sequence[jax.Array]:
    y = recurrence(a, b, heads, count, reverse=reverse, late=late)
    return [y, y * neighbours(w, heads, count, reverse=not reverse)]


def jvp_by(
    operation: Operation,
    function: Callable[..., Sequence[jax.Array]],
    primals: Operands,
    tangents: Tangents,
    **attributes: Any,
) -> tuple[Any, Any]:
    """Returns the results of an operation, and their tangents as those of a function that computes the same."""
    moved = moving_jvp(functools.partial(function, **attributes), list(primals), list(tangents))[1]
    return operation.run(primals, **attributes), moved


class _RecurrenceOfProducts(Operation):
    """A recurrence whose terms are products and sums."""

    def __init__(self) -> None:
        super().__init__(
            "recurrence_of_products",
            operands={"a": 2, "w": 2, "t": 2, "b": 2, "count": 1},
            results=("y",),
            attributes={"reverse": bool},
            shapes=lambda b: [b],
            fallback=_products,
            only="",
        )
        self.def_jvp(functools.partial(jvp_by, self, _products))
        self.def_transpose("t", _transpose_to_t)
        self.def_transpose("b", _transpose_to_b)

    def _transpose(self, cotangents: Sequence[Any], *operands: Any, **attributes: Any) -> list[Any]:
        a, w, t, b, count = operands
        of_one_batch = a.ndim == w.ndim == getattr(t, "aval", t).ndim == getattr(b, "aval", b).ndim
        are_linear = ad.is_undefined_primal(t) and ad.is_undefined_primal(b)
        if not (of_one_batch and are_linear) or is_zero(cotangents[0]):
            return super()._transpose(cotangents, *operands, **attributes)
        back = {"reverse": not attributes["reverse"], "late": True}
        y, products = _recurrence(2, True).run([a, cotangents[0], w, ABSENT, count], **back)
        return [None, None, products, y, None]


def _products(
    a: jax.Array, w: jax.Array, t: jax.Array, b: jax.Array, count: jax.Array, *, reverse: int
) -> Sequence[jax.Array]:
    alone = edges(a.shape[0], ABSENT, count, reverse)
    products = select(alone, jnp.zeros_like(b), (shifted(w, -1 if reverse else 1) * t).astype(b.dtype))
    return [recurrence(a, products + b, ABSENT, count, reverse=reverse)]


def _transpose_to_b(cotangents: Sequence[Any], operands: Operands, *, reverse: int) -> jax.Array:
    return recurrence(operands.a, cotangents[0], ABSENT, operands.count, reverse=not reverse, late=True)


def _transpose_to_t(cotangents: Sequence[Any], operands: Operands, *, reverse: int) -> jax.Array:
    before = neighbours(operands.w, ABSENT, operands.count, reverse=reverse)
    return before * _transpose_to_b(cotangents, operands, reverse=reverse)


NEUTRAL = 1, 0, 1  # as a state of a late recurrence


def combined(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> list[jax.Array]:
    """Combines two states of the kernel, the earlier first.

    A state is the map from the value before its items to the value at their last one: v -> factor v + term. In a late
    recurrence, the third part of a state is the factor of its last item, which is applied at the next item. A term of 0
    adds nothing, even if factors are infinite. In a late recurrence, a neutral state after another state applies the
    factor of that state's last item, so no kernel may take a result from the combination of these two.
    """
    (factor, term, *pending), (next_factor, next_term, *last) = a, b
    for still_to_come in pending:
        next_factor = next_factor * still_to_come
    return [next_factor * factor, jnp.where(term == 0, next_term, next_factor * term + next_term), *last]


@functools.cache
def _written(dtype: DTypeLike, reverse: bool, late: bool, multiplied: bool) -> OperatorData:
    number = jax.ShapeDtypeStruct((), dtype)
    part = jax.ShapeDtypeStruct((), accumulator_dtype(dtype))
    parts = [part] * (2 + late)
    leaves = [number] * (2 + multiplied)

    def load(a: jax.Array, b: jax.Array, *others: jax.Array) -> Sequence[jax.Array]:
        del others  # w, and the position
        a, b = a.astype(part.dtype), b.astype(part.dtype)
        return (jnp.ones_like(a), b, a) if late else (a, b)

    def results(*given: jax.Array) -> Sequence[jax.Array]:
        y, w = given[1], given[-1]
        return [y.astype(dtype), (y * w.astype(y.dtype)).astype(dtype)] if multiplied else [y.astype(dtype)]

    with free_of_explicit_axes():
        position = jax.ShapeDtypeStruct((), jnp.int32)
        items = Stage((jax.make_jaxpr(load)(*leaves, position),), tuple(leaves))
        closed = jax.make_jaxpr(results)(*parts, *(leaves if multiplied else ()))
        finish = Stage((closed,), tuple(leaves[1:]))
        closed = jax.make_jaxpr(lambda *pair: combined(pair[: len(parts)], pair[len(parts) :]))(*parts, *parts)
    neutral = NEUTRAL[: len(parts)]
    return emit_operator(
        closed, parts, neutral=neutral, load=items, finish=finish, reverse=reverse, takes_next=multiplied
    )


_recurrence = functools.cache(_Recurrence)
_of_products = _RecurrenceOfProducts()


@functools.cache
def _weighted(rank: int) -> Operation:
    def product(weights: jax.Array, x: jax.Array) -> Sequence[jax.Array]:
        return [jnp.where(x == 0, 0, weights * x)]

    def jvp(primals: Operands, tangents: Tangents) -> tuple[Any, Any]:
        pairs = ((primals.weights, tangents.x), (primals.x, tangents.weights))
        parts = [weighted(factor, tangent) for factor, tangent in pairs if tangent is not None]
        return operation.run(primals), [sum(parts[1:], parts[0]) if parts else None]

    operation = Operation(
        "weighted",
        operands={"weights": rank, "x": rank},
        results=("product",),
        shapes=lambda x: [x],
        fallback=product,
        only="",
    )
    operation.def_jvp(jvp)
    operation.def_transpose("x", lambda cotangents, operands: weighted(operands.weights, cotangents[0]))
    return operation
