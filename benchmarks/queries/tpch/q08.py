"""Q8: Brazil's share of the American market for a type of part, by year."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, day

SQL = """
SELECT year(o_orderdate) AS o_year,
  sum(CASE WHEN n2.n_name = 'BRAZIL' THEN l_extendedprice * (1 - l_discount) ELSE 0 END)
    / sum(l_extendedprice * (1 - l_discount)) AS mkt_share
FROM part, supplier, lineitem, orders, customer, nation n1, nation n2, region
WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey AND l_orderkey = o_orderkey AND o_custkey = c_custkey
  AND c_nationkey = n1.n_nationkey AND n1.n_regionkey = r_regionkey AND r_name = 'AMERICA'
  AND s_nationkey = n2.n_nationkey AND o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
  AND p_type = 'ECONOMY ANODIZED STEEL'
GROUP BY o_year ORDER BY o_year
"""


def in_pandas(t: Any, words: Any) -> Any:
    parts = t.part[t.part.p_type == words.code("p_type", "ECONOMY ANODIZED STEEL")]
    regions = t.region[t.region.r_name == words.code("r_name", "AMERICA")]
    nations = t.nation[t.nation.n_regionkey.isin(regions.r_regionkey)]
    customers = t.customer[t.customer.c_nationkey.isin(nations.n_nationkey)]
    orders = t.orders[t.orders.o_orderdate.between(day("1995-01-01"), day("1996-12-31"))]
    orders = orders[orders.o_custkey.isin(customers.c_custkey)]
    lines = t.lineitem[t.lineitem.l_partkey.isin(parts.p_partkey)]
    lines = lines.merge(orders, left_on="l_orderkey", right_on="o_orderkey")
    lines = lines.merge(t.supplier, left_on="l_suppkey", right_on="s_suppkey")
    lines = lines.merge(t.nation, left_on="s_nationkey", right_on="n_nationkey")
    lines["o_year"] = 1995 + (lines.o_orderdate >= day("1996-01-01"))
    lines["all"] = lines.l_extendedprice * (1 - lines.l_discount)
    lines["brazil"] = lines["all"].where(lines.n_name == words.code("n_name", "BRAZIL"), 0)
    sums = lines.groupby("o_year")[["brazil", "all"]].sum()
    return (sums.brazil / sums["all"]).rename("mkt_share").reset_index()


def query(t: Any, words: Any) -> Answer:
    american = mgpu.lookup(t.n_regionkey, t.r_regionkey, t.r_name == words.code("r_name", "AMERICA"))
    customer = mgpu.lookup(t.c_nationkey, t.n_nationkey, american)
    supplier = mgpu.lookup(t.s_nationkey, t.n_nationkey, t.n_name == words.code("n_name", "BRAZIL"))
    wanted = mgpu.lookup(t.l_partkey, t.p_partkey, t.p_type == words.code("p_type", "ECONOMY ANODIZED STEEL"))
    lines, count = mgpu.select_indices(wanted, size=wanted.size // 32)
    order = mgpu.sorted_search(t.l_orderkey[lines], t.o_orderkey, needles_count=count)
    date = t.o_orderdate[order]
    keep = (date >= day("1995-01-01")) & (date <= day("1996-12-31"))
    keep &= mgpu.lookup(t.o_custkey[order], t.c_custkey, customer)
    (lines, date), count = mgpu.select((lines, date), keep, count=count)
    revenue = t.l_extendedprice[lines] * (1 - t.l_discount[lines])
    brazil = jnp.where(mgpu.lookup(t.l_suppkey[lines], t.s_suppkey, supplier), revenue, 0)
    year = 1995 + (date >= day("1996-01-01"))
    years, sums, groups = mgpu.group_by(year, {"brazil": brazil, "all": revenue}, size=2, count=count)
    return Answer({"o_year": years, "mkt_share": sums["brazil"] / sums["all"]}, groups)
