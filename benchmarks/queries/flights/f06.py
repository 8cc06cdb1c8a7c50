"""F6: the three latest arrivals of each day."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer


def in_pandas(t: Any, words: Any) -> Any:
    by_day = t.flights.groupby(["month", "day"]).arr_delay
    worst = t.flights[by_day.rank(method="min", ascending=False) <= 3]
    return worst[["month", "day", "tailnum", "arr_delay"]].sort_values(["month", "day"], kind="stable")


def query(t: Any, words: Any) -> Answer:
    order = mgpu.argsort((t.month, t.day))
    month, day, tailnum, delay = (x[order] for x in (t.month, t.day, t.tailnum, t.arr_delay))
    days = mgpu.run_starts(month.astype(jnp.int16) * 32 + day, size=366).starts
    rank = mgpu.rank(jnp.where(jnp.isnan(delay), -jnp.inf, delay), days, descending=True)
    columns = {"month": month, "day": day, "tailnum": tailnum, "arr_delay": delay}
    return Answer(*mgpu.select(columns, rank <= 3, size=2048))
