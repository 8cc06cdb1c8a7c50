"""Q3: the unshipped orders with the largest revenue."""

from __future__ import annotations

from typing import Any

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, day, ordered

SQL = """
SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
FROM customer, orders, lineitem
WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
  AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
GROUP BY l_orderkey, o_orderdate, o_shippriority ORDER BY revenue DESC, o_orderdate LIMIT 10
"""


def in_pandas(t: Any, words: Any) -> Any:
    date = day("1995-03-15")
    customers = t.customer[t.customer.c_mktsegment == words.code("c_mktsegment", "BUILDING")]
    orders = t.orders[t.orders.o_orderdate < date]
    orders = orders.merge(customers[["c_custkey"]], left_on="o_custkey", right_on="c_custkey")
    lines = t.lineitem[t.lineitem.l_shipdate > date]
    lines = lines.merge(orders, left_on="l_orderkey", right_on="o_orderkey")
    lines["revenue"] = lines.l_extendedprice * (1 - lines.l_discount)
    sums = lines.groupby(["l_orderkey", "o_orderdate", "o_shippriority"], as_index=False).revenue.sum()
    sums = sums.sort_values(["revenue", "o_orderdate"], ascending=[False, True]).head(10)
    return sums[["l_orderkey", "revenue", "o_orderdate", "o_shippriority"]]


def query(t: Any, words: Any) -> Answer:
    date = day("1995-03-15")
    building = mgpu.lookup(t.o_custkey, t.c_custkey, t.c_mktsegment == words.code("c_mktsegment", "BUILDING"))
    wanted = building & (t.o_orderdate < date)
    order = mgpu.sorted_search(t.l_orderkey, t.o_orderkey)  # both are sorted
    lines, count = mgpu.select_indices(wanted[order] & (t.l_shipdate > date), size=order.size // 64)
    revenue = t.l_extendedprice[lines] * (1 - t.l_discount[lines])
    orders, revenue, groups = mgpu.reduce_by_key(order[lines], revenue, size=lines.size, count=count)
    columns = {
        "l_orderkey": t.o_orderkey[orders],
        "revenue": revenue,
        "o_orderdate": t.o_orderdate[orders],
        "o_shippriority": t.o_shippriority[orders],
    }
    return ordered(columns, ("revenue", "o_orderdate"), (True, False), groups, 10)
