"""Softmax by id: what the tests know of each function."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests.examples import Argument, Example, N, numbers
from tests.fuzz.compare import Near
from tests.fuzz.draw import Call, Shape
from tests.many_items import spots


def ids_of(rng: np.random.Generator) -> np.ndarray:
    """Ids of six, and some of none."""
    return rng.integers(-1, 8, N).astype(np.int32)


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
}

GARBAGE = {
    name: lambda keys, few, near, far, name=name: getattr(mgpu, name)(keys * 1e-9, few * 3 - 9, 20)
    for name in ("softmax_by_id", "log_softmax_by_id")
}

WITHOUT_PRECONDITIONS = ("softmax_by_id", "log_softmax_by_id")

ARGUMENTS = {f"{name}: x": Argument("floats") for name in ("softmax_by_id", "log_softmax_by_id")}


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def large_softmax_by_id(n, index):
    """The last items have one id, and all before them none."""
    at = spots(n, index)
    x, ids = np.zeros(n, np.float16), np.full(n, -1, np.int8)
    ids[at] = 1
    for function, expected in ((mgpu.softmax_by_id, 1 / len(at)), (mgpu.log_softmax_by_id, -np.log(len(at)))):
        np.testing.assert_allclose(np.asarray(function(x, ids, 2))[at], np.full(len(at), expected), rtol=1e-3)


LARGE_WITH_INDICES = {"softmax_by_id": large_softmax_by_id, "log_softmax_by_id": large_softmax_by_id}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def softmaxes(shape: Shape) -> Call:
    """softmax_by_id, log_softmax_by_id."""
    name = shape.choice(("softmax_by_id", "log_softmax_by_id"))
    shape.derivative = False  # is not affine between ties; tests/test_by_id.py has its derivatives
    n = shape.size()
    dtype = shape.choice(("float16", "bfloat16", "float32", *(("float64",) if shape.x64 else ())))
    trailing, size = shape.choice(((), (), (2,), (2, 1), (0,))), shape.choice((0, 1, 3, n // 5, n + 3))
    id_dtype = shape.index_dtype(0)
    shape.say(name, f"size={size}", dtype, list(trailing))

    def draw_operands(rng: np.random.Generator, apart: bool) -> dict[str, Any]:
        del apart
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


DRAWN = {"softmax_by_id": softmaxes}
