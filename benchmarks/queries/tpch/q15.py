"""Q15: the suppliers with the largest revenue in a quarter."""

from __future__ import annotations

from typing import Any

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, day

SQL = """
WITH revenue AS (
  SELECT l_suppkey, sum(l_extendedprice * (1 - l_discount))::DECIMAL(38, 4) AS total_revenue FROM lineitem
  WHERE l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-04-01' GROUP BY l_suppkey)
SELECT s_suppkey, s_name, total_revenue FROM supplier, revenue
WHERE s_suppkey = l_suppkey AND total_revenue = (SELECT max(total_revenue) FROM revenue) ORDER BY s_suppkey
"""


def in_pandas(t: Any, words: Any) -> Any:
    lines = t.lineitem[t.lineitem.l_shipdate.between(day("1996-01-01"), day("1996-03-31"))]
    lines = lines.assign(total_revenue=lines.l_extendedprice * (1 - lines.l_discount))
    sums = lines.groupby("l_suppkey", as_index=False).total_revenue.sum()
    best = sums[sums.total_revenue == sums.total_revenue.max()]
    best = best.merge(t.supplier, left_on="l_suppkey", right_on="s_suppkey").sort_values("s_suppkey")
    return best[["s_suppkey", "s_name", "total_revenue"]]


def query(t: Any, words: Any) -> Answer:
    in_quarter = (t.l_shipdate >= day("1996-01-01")) & (t.l_shipdate < day("1996-04-01"))
    lines, count = mgpu.select_indices(in_quarter, size=in_quarter.size // 16)
    revenue = t.l_extendedprice[lines] * (1 - t.l_discount[lines])
    suppliers, revenue, groups = mgpu.group_by(t.l_suppkey[lines], revenue, size=t.s_suppkey.size, count=count)
    (suppliers, revenue), count = mgpu.select(
        (suppliers, revenue), revenue == mgpu.reduce(revenue, "max", count=groups), size=4, count=groups
    )
    names = mgpu.lookup(suppliers, t.s_suppkey, t.s_name)
    return Answer({"s_suppkey": suppliers, "s_name": names, "total_revenue": revenue}, count)
