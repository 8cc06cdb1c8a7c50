"""F2: flights and mean delay of each day."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer


def in_pandas(t: Any, words: Any) -> Any:
    departed = t.flights[t.flights.dep_delay.notna()]
    return departed.groupby(["month", "day"], as_index=False).agg(
        flights=("dep_delay", "size"), delay=("dep_delay", "mean"), worst=("dep_delay", "max")
    )


def query(t: Any, words: Any) -> Answer:
    departed = mgpu.select((t.month, t.day, t.dep_delay), ~jnp.isnan(t.dep_delay))
    month, day, delay = departed.values
    values, ops = (
        {"flights": delay, "delay": delay, "worst": delay},
        {"flights": "count", "delay": "mean", "worst": "max"},
    )
    (month, day), found, groups = mgpu.group_by((month, day), values, ops, size=366, count=departed.count)
    return Answer({"month": month, "day": day, **found}, groups)
