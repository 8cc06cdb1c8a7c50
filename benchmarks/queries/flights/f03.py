"""F3: destinations by distance and delay."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer


def in_pandas(t: Any, words: Any) -> Any:
    arrived = t.flights[t.flights.arr_delay.notna() & (t.flights.dest != words.code("dest", "HNL"))]
    found = arrived.groupby("dest", as_index=False).agg(
        flights=("dest", "size"),
        distance=("distance", "mean"),
        delay=("arr_delay", "mean"),
        carriers=("carrier", "nunique"),
    )
    return found[found.flights > 20]


def query(t: Any, words: Any) -> Answer:
    keep = ~jnp.isnan(t.arr_delay) & (t.dest != words.code("dest", "HNL"))
    (dest, distance, delay, carrier), count = mgpu.select((t.dest, t.distance, t.arr_delay, t.carrier), keep)
    dests, found, groups = mgpu.group_by(
        dest,
        {"flights": dest, "distance": distance.astype(delay.dtype), "delay": delay, "carriers": carrier},
        {"flights": "count", "distance": "mean", "delay": "mean", "carriers": "nunique"},
        size=128,
        count=count,
    )
    return Answer(*mgpu.select({"dest": dests, **found}, found["flights"] > 20, count=groups))
