"""F10: the mean delay by the delay of the previous flight from the same airport."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer

STEP, MOST = 10, 120  # minutes


def in_pandas(t: Any, words: Any) -> Any:
    departed = t.flights[t.flights.dep_delay.notna()]
    departed = departed.sort_values(["origin", "month", "day", "dep_time"], kind="stable")
    before = departed.groupby("origin").dep_delay.shift(1)
    departed = departed.assign(before=before.clip(upper=MOST) // STEP).dropna(subset="before")
    return departed.groupby("before", as_index=False).agg(flights=("before", "size"), delay=("dep_delay", "mean"))


def query(t: Any, words: Any) -> Answer:
    columns = (t.origin, t.month, t.day, t.dep_time.astype(jnp.int16), t.dep_delay)
    (*keys, delay), count = mgpu.select(columns, ~jnp.isnan(t.dep_delay))
    (origin, *_), delay = mgpu.sort(tuple(keys), delay, count=count)
    airports = mgpu.run_starts(origin, size=3, count=count).starts
    before = mgpu.segmented_shift(delay, airports, 1, fill_value=jnp.nan, count=count)
    (before, delay), count = mgpu.select((before, delay), ~jnp.isnan(before), count=count)
    before = jnp.floor(jnp.minimum(before, MOST) / STEP)
    values, ops = {"flights": before, "delay": delay}, {"flights": "count", "delay": "mean"}
    found_before, found, groups = mgpu.group_by(before, values, ops, size=32, count=count)
    return Answer({"before": found_before, **found}, groups)
