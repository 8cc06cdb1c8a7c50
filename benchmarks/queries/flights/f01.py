"""F1: flights of a day, the latest first."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, ordered


def in_pandas(t: Any, words: Any) -> Any:
    day = t.flights[(t.flights.month == 1) & (t.flights.day == 1) & t.flights.dep_delay.notna()]
    return day.sort_values("dep_delay", ascending=False, kind="stable")[["dep_delay", "carrier", "dest"]]


def query(t: Any, words: Any) -> Answer:
    keep = (t.month == 1) & (t.day == 1) & ~jnp.isnan(t.dep_delay)
    columns = {"dep_delay": t.dep_delay, "carrier": t.carrier, "dest": t.dest}
    day = mgpu.select(columns, keep, size=2048)
    return ordered(day.values, ("dep_delay",), (True,), day.count)
