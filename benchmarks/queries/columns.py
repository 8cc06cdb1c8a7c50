"""Tables as columns of numbers: strings are codes, dates are days."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu

__all__ = ["Answer", "day", "factorize", "ordered"]


def factorize(*columns: Any) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns codes of strings, and the sorted distinct strings; a missing string has code -1.

    Codes compare as strings do, across columns too. They have the narrowest type that holds them.
    """
    import pandas as pd  # noqa: PLC0415

    series = [pd.Series(x.to_pandas() if hasattr(x, "to_pandas") else x).astype(object) for x in columns]
    codes, words = pd.factorize(pd.concat(series), sort=True)
    codes = codes.astype(np.min_scalar_type(-max(1, len(words))))
    return np.split(codes, np.cumsum([len(x) for x in series])[:-1]), np.asarray(words)


def day(date: str) -> int:
    """Returns the days since 1970-01-01."""
    return int(np.datetime64(date, "D").astype(int))


class Answer(NamedTuple):
    """A query's rows: columns of one static length, and the number of rows."""

    columns: dict[str, jax.Array]
    count: Any


def ordered(
    columns: dict[str, Any], by: tuple[str, ...], descending: tuple[bool, ...], count: Any, size: int | None = None
) -> Answer:
    """Returns the first `size` rows in the order of the columns in `by`, as SQL's ORDER BY and LIMIT do."""
    order = mgpu.argsort(tuple(columns[name] for name in by), descending=descending, count=count)[:size]
    return Answer({name: x[order] for name, x in columns.items()}, jnp.minimum(count, order.shape[0]))
