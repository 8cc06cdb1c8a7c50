"""F4: the ten planes with the most delay, among those with more than 25 flights."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, ordered


def in_pandas(t: Any, words: Any) -> Any:
    arrived = t.flights[t.flights.arr_delay.notna() & (t.flights.tailnum >= 0)]
    found = arrived.groupby("tailnum", as_index=False).agg(
        flights=("tailnum", "size"), delay=("arr_delay", "mean"), median=("arr_delay", "median")
    )
    return found[found.flights > 25].sort_values("delay", ascending=False, kind="stable").head(10)


def query(t: Any, words: Any) -> Answer:
    (plane, delay), count = mgpu.select((t.tailnum, t.arr_delay), ~jnp.isnan(t.arr_delay) & (t.tailnum >= 0))
    values, ops = (
        {"flights": plane, "delay": delay, "median": delay},
        {"flights": "count", "delay": "mean", "median": "median"},
    )
    planes, found, groups = mgpu.group_by(plane, values, ops, size=8192, count=count)
    frequent = mgpu.select({"tailnum": planes, **found}, found["flights"] > 25, count=groups)
    return ordered(frequent.values, ("delay",), (True,), frequent.count, 10)
