"""F5: flights of planes that are missing from the table of planes, by carrier."""

from __future__ import annotations

from typing import Any

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, ordered


def in_pandas(t: Any, words: Any) -> Any:
    unknown = t.flights[~t.flights.tailnum.isin(t.planes.p_tailnum)]
    found = unknown.groupby("carrier", as_index=False).agg(flights=("carrier", "size"))
    return found.sort_values("flights", ascending=False, kind="stable")


def query(t: Any, words: Any) -> Answer:
    unknown = mgpu.join(t.tailnum, t.p_tailnum, "anti", size=t.tailnum.size, assume_sorted=False)
    carrier = t.carrier[unknown.a_indices]
    carriers, flights, groups = mgpu.group_by(carrier, carrier, "count", size=16, count=unknown.count)
    return ordered({"carrier": carriers, "flights": flights}, ("flights",), (True,), groups)
