"""Rows by index, with a derivative that adds up rows which are taken several times.

The transpose of JAX's gather is a scatter, which adds in the table's type and, on a GPU, in any order. The transpose of
this primitive adds rows as `reduce_by_id` does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jax_mgpu._src.arguments.annotations import Attribute, Aval, Operands
from jax_mgpu._src.arguments.counts import wide_enough
from jax_mgpu._src.core.compat import on_mesh_of, partition_spec, rows_sharding, vary_as
from jax_mgpu._src.core.operation import Operation
from jax_mgpu._src.keys.bits import keeping_bits


def gather(x: jax.Array, indices: jax.Array, *, unique: bool = False, inside: bool = False, fill: int = 0) -> jax.Array:
    """Returns rows at indices of any rank; 0 at indices outside of x, negative ones included.

    `unique`: no row is taken twice, so that the transpose scatters without adding. `inside`: no index lies outside.
    `fill` replaces the 0 for integers and bools.
    """
    with on_mesh_of(x, indices):
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return _take(x, indices, inside, fill)
        return _gather(x.ndim - 1, indices.ndim)(x=x, indices=indices, unique=unique, inside=inside)[0]


def _take(x: jax.Array, indices: jax.Array, inside: int, fill: int = 0) -> jax.Array:
    n = x.shape[0]
    if n == 0:  # nothing is taken, but under shard_map the result must vary as rows of x would
        return vary_as(jax.lax.full_like(x, fill, shape=(*indices.shape, *x.shape[1:])), x, indices)
    mode: dict[str, Any] = {"mode": "promise_in_bounds"} if inside else {"mode": "fill", "fill_value": fill}
    options: dict[str, Any] = {"wrap_negative_indices": False, "out_sharding": rows_sharding(x, indices.ndim)}
    return x.at[wide_enough(indices, n)].get(**mode, **options)


class _Gather(Operation):
    """A gather of rows with `row_rank` axes by indices with `index_rank` axes."""

    def __init__(self, row_rank: int, index_rank: int):
        self.row_rank, self.index_rank = row_rank, index_rank
        super().__init__(
            "take",
            operands={"x": 1 + row_rank, "indices": index_rank},
            results=("rows",),
            attributes={"unique": bool, "inside": bool},
            shapes=lambda x, indices: [jax.ShapeDtypeStruct((*indices.shape, *x.shape[1:]), x.dtype)],
            fallback=_fallback,
            only="",
        )
        self.def_linear(x=_transpose)

    def _batch(self, operands: Sequence[Any], axes: Sequence[Any], **attributes: Attribute) -> tuple[Any, Any]:
        """Treats a batch of indices into one table as one array of indices."""
        x, indices = operands
        if axes[0] is not None:
            return super()._batch(operands, axes, **attributes)
        begin = indices.ndim - 1 - self.index_rank
        indices = jnp.moveaxis(indices, axes[1], begin)
        rows = _gather(self.row_rank, self.index_rank + 1).run([x, indices], **{**attributes, "unique": 0})
        return rows, [x.ndim - 1 - self.row_rank]

    def _abstract(self, *avals: jax.core.ShapedArray, **attributes: Attribute) -> list[Any]:
        """Shards results like the indices and the rows of x."""
        (rows,) = super()._abstract(*avals, **attributes)
        if rows.sharding.mesh.empty:
            return [rows]
        x, indices = map(partition_spec, avals)
        batch_rank = len(x) - 1 - self.row_rank
        spec = (*x[:batch_rank], *indices[len(indices) - self.index_rank :], *x[batch_rank + 1 :])
        return [rows.update(sharding=NamedSharding(rows.sharding.mesh, PartitionSpec(*spec)))]


def _fallback(x: jax.Array, indices: jax.Array, *, inside: int) -> Sequence[jax.Array]:
    return [keeping_bits(lambda x, indices: _take(x, indices, inside), x, indices)]


def _transpose(cotangents: Sequence[Any], operands: Operands, *, unique: int, inside: int) -> jax.Array:
    """Returns the cotangent of x."""
    x, indices = operands
    if not unique:
        return add_rows(cotangents[0], indices, x)
    return scatter(cotangents[0], indices, x.shape[0], inside=bool(inside))


def scatter(rows: jax.Array, indices: jax.Array, size: int, *, inside: bool = False) -> jax.Array:
    """Puts rows at distinct indices among zeros: the transpose of a gather without repeats."""
    return _scatter(rows.ndim - indices.ndim, indices.ndim)(rows=rows, indices=indices, size=size, inside=inside)[0]


@functools.cache
def _scatter(row_rank: int, index_rank: int) -> Operation:
    def shapes(rows: Aval, indices: Aval, *, size: int) -> Sequence[Any]:
        return [jax.ShapeDtypeStruct((size, *rows.shape[indices.ndim :]), rows.dtype)]

    def put(rows: jax.Array, indices: jax.Array, *, size: int, inside: int) -> Sequence[jax.Array]:
        places = jnp.zeros((size, *rows.shape[indices.ndim :]), rows.dtype).at[wide_enough(indices, size)]
        options: dict[str, Any] = {"wrap_negative_indices": False, "unique_indices": True}
        return [places.set(rows, mode="promise_in_bounds" if inside else "drop", **options)]

    def transpose(cotangents: Sequence[Any], operands: Operands, *, size: int, inside: int) -> jax.Array:
        del size
        return gather(cotangents[0], operands.indices, unique=True, inside=bool(inside))

    operation = Operation(
        "put",
        operands={"rows": index_rank + row_rank, "indices": index_rank},
        results=("result",),
        attributes={"size": int, "inside": bool},
        shapes=shapes,
        fallback=put,
        only="",
    )
    operation.def_linear(rows=transpose)
    return operation


_SUMS: list[Callable[..., jax.Array]] = []  # reduce_by_id.py, which imports this module, sets it


def add_rows(rows: jax.Array, indices: jax.Array, like: Aval) -> jax.Array:
    """Sums rows by index in a fixed order into an array like `like`; drops indices outside."""
    return _SUMS[0](rows, indices, like)


def add_taken_rows(rows: jax.Array, taken: jax.Array, weights: jax.Array, indices: jax.Array, like: Aval) -> jax.Array:
    """`add_rows` of `rows[taken]` times their weights, `[entries, groups]` or absent, by a sort of indices."""
    return _SUMS[1](rows, taken, weights, indices, like)


def set_sums(add: Callable[..., jax.Array], add_taken: Callable[..., jax.Array]) -> None:
    """Sets what `add_rows` and `add_taken_rows` call."""
    _SUMS[:] = [add, add_taken]


_gather = functools.cache(_Gather)
