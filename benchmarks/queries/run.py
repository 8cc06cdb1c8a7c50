"""Runs a query in each library, and compares the rows."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.queries.columns import Answer

__all__ = ["arrays", "compiled", "expect_same", "named", "rows"]


def arrays(tables: types.SimpleNamespace) -> dict[str, jax.Array]:
    return {name: jnp.asarray(column.to_numpy()) for table in vars(tables).values() for name, column in table.items()}


def named(tables: types.SimpleNamespace, function: Callable[..., Any]) -> types.SimpleNamespace:
    """Returns the columns that a function names; pandas' filters would move the other columns too."""
    words = {*re.findall(r"\w+", inspect.getsource(function))}
    return types.SimpleNamespace(
        **{name: frame[[column for column in frame if column in words]] for name, frame in vars(tables).items()}
    )


def compiled(query: Callable[..., Answer], words: Any) -> Callable[[dict[str, jax.Array]], Answer]:
    """Returns a jitted program of the columns; columns that the query does not read are not part of it."""
    return jax.jit(lambda columns: query(types.SimpleNamespace(**columns), words))


def rows(answer: Answer) -> dict[str, np.ndarray]:
    count, sizes = int(answer.count), {x.shape[0] for x in answer.columns.values()}
    assert len(sizes) == 1 and count <= min(sizes), f"{count} rows, room for {sizes}"
    return {name: np.asarray(x)[:count] for name, x in answer.columns.items()}


def expect_same(found: dict[str, np.ndarray], expected: Any, words: dict[str, np.ndarray]) -> None:
    """Compares rows with those of a frame, which has words where the rows have codes, or with a number."""
    if not hasattr(expected, "columns"):
        (column,) = found.values()
        np.testing.assert_allclose(column, [float(expected)], rtol=1e-9)
        return
    assert {*found} == {*expected.columns}
    for name, x in found.items():
        y = expected[name]
        if y.dtype.kind not in "iufbM":
            assert words[_words_of(name)][x].tolist() == y.tolist(), name
        elif y.dtype.kind == "M":
            assert x.astype("datetime64[D]").tolist() == y.to_numpy().astype("datetime64[D]").tolist(), name
        else:
            np.testing.assert_allclose(x, y.to_numpy(float), rtol=1e-9, err_msg=name)


def _words_of(column: str) -> str:
    """Returns the column whose words this column's codes stand for."""
    return {"supp_nation": "n_name", "cust_nation": "n_name"}.get(column, column)
