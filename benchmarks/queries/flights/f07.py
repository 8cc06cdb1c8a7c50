"""F7: the flights with the largest shares of their destination's delay."""

from __future__ import annotations

from typing import Any

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, ordered


def in_pandas(t: Any, words: Any) -> Any:
    popular = t.flights[t.flights.groupby("dest").dest.transform("size") > 365]
    late = popular[popular.arr_delay > 0]
    late = late.assign(share=late.arr_delay / late.groupby("dest").arr_delay.transform("sum"))
    best = late.sort_values(["share", "dest"], ascending=[False, True], kind="stable").head(20)
    return best[["month", "day", "dest", "arr_delay", "share"]]


def query(t: Any, words: Any) -> Answer:
    dests, flights, groups = mgpu.group_by(t.dest, t.dest, "count", size=128)
    popular = mgpu.lookup(t.dest, dests, flights, table_count=groups) > 365
    columns = {"month": t.month, "day": t.day, "dest": t.dest, "arr_delay": t.arr_delay}
    late, count = mgpu.select(columns, popular & (t.arr_delay > 0))
    dests, total, groups = mgpu.group_by(late["dest"], late["arr_delay"], size=128, count=count)
    share = late["arr_delay"] / mgpu.lookup(late["dest"], dests, total, default=1, table_count=groups)
    return ordered({**late, "share": share}, ("share", "dest"), (True, False), count, 20)
