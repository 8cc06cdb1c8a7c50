"""Q5: revenue by nation of Asian customers from suppliers of their own nation."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, day, ordered

SQL = """
SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
FROM customer, orders, lineitem, supplier, nation, region
WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey AND c_nationkey = s_nationkey
  AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'ASIA'
  AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01'
GROUP BY n_name ORDER BY revenue DESC
"""


def in_pandas(t: Any, words: Any) -> Any:
    regions = t.region[t.region.r_name == words.code("r_name", "ASIA")]
    nations = t.nation[t.nation.n_regionkey.isin(regions.r_regionkey)]
    customers = t.customer.merge(nations, left_on="c_nationkey", right_on="n_nationkey")
    orders = t.orders[t.orders.o_orderdate.between(day("1994-01-01"), day("1994-12-31"))]
    orders = orders.merge(customers, left_on="o_custkey", right_on="c_custkey")
    lines = t.lineitem.merge(orders, left_on="l_orderkey", right_on="o_orderkey")
    lines = lines.merge(t.supplier, left_on=["l_suppkey", "c_nationkey"], right_on=["s_suppkey", "s_nationkey"])
    lines["revenue"] = lines.l_extendedprice * (1 - lines.l_discount)
    return lines.groupby("n_name", as_index=False).revenue.sum().sort_values("revenue", ascending=False)


def query(t: Any, words: Any) -> Answer:
    asian = mgpu.lookup(t.n_regionkey, t.r_regionkey, t.r_name == words.code("r_name", "ASIA"))
    in_year = (t.o_orderdate >= day("1994-01-01")) & (t.o_orderdate < day("1995-01-01"))
    order = mgpu.sorted_search(t.l_orderkey, t.o_orderkey)  # both are sorted
    lines, count = mgpu.select_indices(in_year[order], size=order.size // 4)
    customer = t.o_custkey[order[lines]]
    nation = mgpu.lookup(t.l_suppkey[lines], t.s_suppkey, t.s_nationkey, count=count)
    local = nation == mgpu.lookup(customer, t.c_custkey, t.c_nationkey, default=-1, count=count)
    (lines, nation), count = mgpu.select((lines, nation), local, size=lines.size // 8, count=count)
    nation = mgpu.lookup(nation, t.n_nationkey, jnp.where(asian, t.n_name, -1), default=-1)
    (lines, nation), count = mgpu.select((lines, nation), nation >= 0, count=count)
    revenue = t.l_extendedprice[lines] * (1 - t.l_discount[lines])
    names, revenue, groups = mgpu.group_by(nation, revenue, size=32, count=count)
    return ordered({"n_name": names, "revenue": revenue}, ("revenue",), (True,), groups)
