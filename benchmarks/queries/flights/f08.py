"""F8: delay by the age of the plane."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer

OLDEST = 25


def in_pandas(t: Any, words: Any) -> Any:
    known = t.flights[t.flights.dep_delay.notna()].merge(t.planes.dropna(), left_on="tailnum", right_on="p_tailnum")
    known["age"] = (2013 - known.p_year).clip(upper=OLDEST)
    return known.groupby("age", as_index=False).agg(flights=("age", "size"), delay=("dep_delay", "mean"))


def query(t: Any, words: Any) -> Answer:
    year = mgpu.lookup(t.tailnum, t.p_tailnum, t.p_year, default=jnp.nan)
    (year, delay), count = mgpu.select((year, t.dep_delay), ~jnp.isnan(year) & ~jnp.isnan(t.dep_delay))
    age = jnp.minimum(2013 - year, OLDEST).astype(jnp.int8)
    values, ops = {"flights": age, "delay": delay}, {"flights": "count", "delay": "mean"}
    ages, found, groups = mgpu.group_by(age, values, ops, size=OLDEST + 1, count=count)
    return Answer({"age": ages, **found}, groups)
