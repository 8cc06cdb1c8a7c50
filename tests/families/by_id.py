from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests.examples import Argument, Example, N, numbers
from tests.fuzz.compare import Near
from tests.fuzz.draw import Call, Shape
from tests.fuzz.shared import int32
from tests.many_items import spots


def ids_of(rng: np.random.Generator) -> np.ndarray:
    """Draws ids from -1 to 7; for a size of 6, the ids -1, 6 and 7 are invalid."""
    return rng.integers(-1, 8, N).astype(np.int32)


@jax.jit
def by_groups(x: Any, table: Any, ids: Any) -> Any:
    groups = mgpu.group_ids(ids, 6)
    return mgpu.reduce_by_id(x, groups, 6), mgpu.softmax_by_id(x, groups, 6), mgpu.take(table, groups)


EXAMPLES = {
    "softmax_by_id": Example(
        lambda x, ids: mgpu.softmax_by_id(x, ids, 6),
        lambda rng, real: (numbers(rng, real), ids_of(rng)),
        differentiable=(0,),
        exact=False,
        composed=True,
    ),
    "log_softmax_by_id": Example(
        lambda x, ids: mgpu.log_softmax_by_id(x, ids, 6),
        lambda rng, real: (numbers(rng, real, N, 2), ids_of(rng)),
        differentiable=(0,),
        exact=False,
        composed=True,
    ),
    "group_ids": Example(
        lambda ids: jax.tree.leaves(mgpu.group_ids(ids, 6)), lambda rng, real: (ids_of(rng),), composed=True
    ),
    "group_ids, taken": Example(
        by_groups,
        lambda rng, real: (numbers(rng, real), numbers(rng, real, 6, 2), ids_of(rng)),
        differentiable=(0, 1),
        exact=False,
        composed=True,
    ),
}

GARBAGE = {"group_ids": lambda keys, repeated, indices, wild: mgpu.group_ids(keys, 99)} | {
    name: lambda keys, repeated, indices, wild, name=name: getattr(mgpu, name)(keys * 1e-9, repeated * 3 - 9, 20)
    for name in ("softmax_by_id", "log_softmax_by_id")
}

WITHOUT_PRECONDITIONS = ("softmax_by_id", "log_softmax_by_id", "group_ids")

ARGUMENTS = {f"{name}: x": Argument("floats") for name in ("softmax_by_id", "log_softmax_by_id")}


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def large_softmax_by_id(n, index):
    at = spots(n, index)
    x, ids = np.zeros(n, np.float16), np.full(n, -1, np.int8)
    ids[at] = 1
    for function, expected in ((mgpu.softmax_by_id, 1 / len(at)), (mgpu.log_softmax_by_id, -np.log(len(at)))):
        np.testing.assert_allclose(np.asarray(function(x, ids, 2))[at], np.full(len(at), expected), rtol=1e-3)


def large_group_ids(n, index):
    at = spots(n, index)
    ids = np.full(n, 3, np.int8)
    ids[at] = np.arange(len(at)) % 3
    order, segments = mgpu.group_ids(ids, 3)
    expected = at[np.argsort(ids[at], kind="stable")]
    assert np.array_equal(np.asarray(order)[: len(at)], expected)
    assert np.array_equal(segments.lengths, np.bincount(ids[at]))


LARGE_WITH_INDICES = {"group_ids": large_group_ids} | {
    "softmax_by_id": large_softmax_by_id,
    "log_softmax_by_id": large_softmax_by_id,
}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def softmaxes(shape: Shape) -> Call:
    name = shape.choice(("softmax_by_id", "log_softmax_by_id"))
    shape.derivative = False  # a softmax is not affine; tests/test_by_id.py tests its derivatives
    n = shape.size()
    dtype = shape.choice(("float16", "bfloat16", "float32", *(("float64",) if shape.x64 else ())))
    trailing, size = shape.choice(((), (), (2,), (2, 1), (0,))), shape.choice((0, 1, 3, n // 5, n + 3))
    id_dtype = shape.index_dtype(0)
    shape.say(name, f"size={size}", dtype, list(trailing))

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        limits = np.iinfo(id_dtype)
        ids = rng.integers(max(-2, limits.min), min(size + 2, limits.max), n).astype(id_dtype)
        return {"x": (8 * rng.normal(size=(n, *trailing))).astype(jnp.dtype(dtype)), "ids": ids}

    def function(x: Any, ids: Any) -> Any:
        return getattr(mgpu, name)(x, ids, size)

    def expected(x: Any, ids: Any) -> list[Any]:
        out, exact = np.zeros(x.shape, np.float64), x.astype(np.float64)
        order = np.argsort(ids, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(ids[order].astype(object))) + 1):
            if len(rows) and x.size and 0 <= int(ids[rows[0]]) < size:
                shifted = exact[rows] - exact[rows].max(0)
                sums = np.exp(shifted).sum(0)
                out[rows] = np.exp(shifted) / sums if name == "softmax_by_id" else shifted - np.log(sums)
        eps = float(jnp.finfo(x.dtype).eps)
        error = 2 * eps * np.abs(out) + 1e-5 * (np.abs(out) + (name != "softmax_by_id")) + 1e-7
        return [Near(out.astype(x.dtype), error)]

    return Call(name, function, draw_operands, expected, shape.x64, (), finite=True)


def groups(shape: Shape) -> Call:
    n, size, dtype = shape.size(), shape.choice((0, 1, 3, 200, 5000)), shape.index_dtype(0)
    shape.say(f"size={size}")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        limits = np.iinfo(dtype)
        return {"ids": rng.integers(max(-2, limits.min), min(size + 2, limits.max), n).astype(dtype)}

    def function(ids: Any) -> Any:
        return tuple(mgpu.group_ids(ids, size))

    def expected(ids: Any) -> list[Any]:
        ids = ids.astype(np.int64)
        keys = np.where((ids >= 0) & (ids < size), ids, size)
        bounds = np.searchsorted(np.sort(keys), np.arange(size + 1))
        return [int32(np.argsort(keys, kind="stable")), int32(bounds[:-1]), int32(bounds[1:])]

    return Call("group_ids", function, draw_operands, expected, shape.x64)


DRAWN = {"softmax_by_id": softmaxes, "groups": groups}
