"""Q9: profit from parts with a colour in their name, by nation and year."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, day, ordered

SQL = """
SELECT n_name, year(o_orderdate) AS o_year,
  sum(l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity) AS sum_profit
FROM part, supplier, lineitem, partsupp, orders, nation
WHERE s_suppkey = l_suppkey AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey AND p_partkey = l_partkey
  AND o_orderkey = l_orderkey AND s_nationkey = n_nationkey AND p_name LIKE '%green%'
GROUP BY n_name, o_year ORDER BY n_name, o_year DESC
"""
NEW_YEARS = [day(f"{year}-01-01") for year in range(1993, 1999)]  # orders are from 1992 to 1998


def in_pandas(t: Any, words: Any) -> Any:
    lines = t.lineitem[t.lineitem.l_partkey.isin(t.part.p_partkey[t.part.p_is_green])]
    lines = lines.merge(t.partsupp, left_on=["l_partkey", "l_suppkey"], right_on=["ps_partkey", "ps_suppkey"])
    lines = lines.merge(t.orders[["o_orderkey", "o_orderdate"]], left_on="l_orderkey", right_on="o_orderkey")
    lines = lines.merge(t.supplier, left_on="l_suppkey", right_on="s_suppkey")
    lines = lines.merge(t.nation, left_on="s_nationkey", right_on="n_nationkey")
    lines["sum_profit"] = lines.l_extendedprice * (1 - lines.l_discount) - lines.ps_supplycost * lines.l_quantity
    lines["o_year"] = 1992 + sum((lines.o_orderdate >= first).astype(int) for first in NEW_YEARS)
    sums = lines.groupby(["n_name", "o_year"], as_index=False).sum_profit.sum()
    return sums.sort_values(["n_name", "o_year"], ascending=[True, False])


def query(t: Any, words: Any) -> Answer:
    is_green = mgpu.lookup(t.l_partkey, t.p_partkey, t.p_is_green)
    lines, count = mgpu.select_indices(is_green, size=is_green.size // 8)
    part, supplier = t.l_partkey[lines], t.l_suppkey[lines]
    cost = mgpu.lookup((part, supplier), (t.ps_partkey, t.ps_suppkey), t.ps_supplycost, count=count)
    order = mgpu.sorted_search(t.l_orderkey[lines], t.o_orderkey, needles_count=count)
    year = jnp.searchsorted(jnp.array(NEW_YEARS), t.o_orderdate[order], side="right", method="compare_all")
    names = mgpu.lookup(t.s_nationkey, t.n_nationkey, t.n_name)
    nation = mgpu.lookup(supplier, t.s_suppkey, names, count=count)
    profit = t.l_extendedprice[lines] * (1 - t.l_discount[lines]) - cost * t.l_quantity[lines]
    (nations, years), profit, groups = mgpu.group_by((nation, year.astype(jnp.int8)), profit, size=256, count=count)
    columns = {"n_name": nations, "o_year": 1992 + years.astype(jnp.int32), "sum_profit": profit}
    return ordered(columns, ("n_name", "o_year"), (False, True), groups)
