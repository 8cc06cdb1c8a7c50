"""F9: delay by visibility in the hour of departure."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer

HOUR = ["month", "day", "hour", "origin"]


def in_pandas(t: Any, words: Any) -> Any:
    departed = t.flights[t.flights.dep_delay.notna()]
    known = departed.merge(t.weather, left_on=HOUR, right_on=[f"w_{name}" for name in HOUR])
    known["miles"] = known.w_visib.round()
    return known.groupby("miles", as_index=False).agg(flights=("miles", "size"), delay=("dep_delay", "mean"))


def query(t: Any, words: Any) -> Answer:
    hour, table = (t.month, t.day, t.hour, t.origin), (t.w_month, t.w_day, t.w_hour, t.w_origin)
    miles = mgpu.lookup(hour, table, jnp.round(t.w_visib), default=jnp.nan)
    (miles, delay), count = mgpu.select((miles, t.dep_delay), ~jnp.isnan(miles) & ~jnp.isnan(t.dep_delay))
    values, ops = {"flights": miles, "delay": delay}, {"flights": "count", "delay": "mean"}
    seen, found, groups = mgpu.group_by(miles, values, ops, size=16, count=count)
    return Answer({"miles": seen, **found}, groups)
