"""Q7: revenue of goods shipped between France and Germany, by year."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, day

SQL = """
SELECT n1.n_name AS supp_nation, n2.n_name AS cust_nation, year(l_shipdate) AS l_year,
  sum(l_extendedprice * (1 - l_discount)) AS revenue
FROM supplier, lineitem, orders, customer, nation n1, nation n2
WHERE s_suppkey = l_suppkey AND o_orderkey = l_orderkey AND c_custkey = o_custkey AND s_nationkey = n1.n_nationkey
  AND c_nationkey = n2.n_nationkey AND (n1.n_name = 'FRANCE' AND n2.n_name = 'GERMANY'
    OR n1.n_name = 'GERMANY' AND n2.n_name = 'FRANCE')
  AND l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
GROUP BY supp_nation, cust_nation, l_year ORDER BY supp_nation, cust_nation, l_year
"""


def in_pandas(t: Any, words: Any) -> Any:
    nations = t.nation[t.nation.n_name.isin([words.code("n_name", name) for name in ("FRANCE", "GERMANY")])]
    names = nations[["n_nationkey", "n_name"]]
    suppliers = t.supplier.merge(names, left_on="s_nationkey", right_on="n_nationkey")
    customers = t.customer.merge(names, left_on="c_nationkey", right_on="n_nationkey")
    suppliers, customers = (
        suppliers.rename(columns={"n_name": "supp_nation"}),
        customers.rename(columns={"n_name": "cust_nation"}),
    )
    lines = t.lineitem[t.lineitem.l_shipdate.between(day("1995-01-01"), day("1996-12-31"))]
    lines = lines.merge(suppliers[["s_suppkey", "supp_nation"]], left_on="l_suppkey", right_on="s_suppkey")
    orders = t.orders.merge(customers[["c_custkey", "cust_nation"]], left_on="o_custkey", right_on="c_custkey")
    lines = lines.merge(orders[["o_orderkey", "cust_nation"]], left_on="l_orderkey", right_on="o_orderkey")
    lines = lines[lines.supp_nation != lines.cust_nation]
    lines["l_year"] = 1995 + (lines.l_shipdate >= day("1996-01-01"))
    lines["revenue"] = lines.l_extendedprice * (1 - lines.l_discount)
    return lines.groupby(["supp_nation", "cust_nation", "l_year"], as_index=False).revenue.sum()


def query(t: Any, words: Any) -> Answer:
    france, germany = (words.code("n_name", name) for name in ("FRANCE", "GERMANY"))
    names = jnp.where((t.n_name == france) | (t.n_name == germany), t.n_name, -1)
    supplier = mgpu.lookup(t.s_nationkey, t.n_nationkey, names)
    customer = mgpu.lookup(t.c_nationkey, t.n_nationkey, names)
    seller = mgpu.lookup(t.l_suppkey, t.s_suppkey, supplier)
    in_years = (t.l_shipdate >= day("1995-01-01")) & (t.l_shipdate <= day("1996-12-31"))
    lines, count = mgpu.select_indices(in_years & (seller >= 0), size=seller.size // 8)
    order = mgpu.sorted_search(t.l_orderkey[lines], t.o_orderkey, needles_count=count)
    buyer = mgpu.lookup(t.o_custkey[order], t.c_custkey, customer, count=count)
    seller = seller[lines]
    keep = (buyer >= 0) & (buyer != seller)
    (lines, seller, buyer), count = mgpu.select((lines, seller, buyer), keep, size=lines.size // 4, count=count)
    year = (1995 + (t.l_shipdate[lines] >= day("1996-01-01"))).astype(jnp.int16)
    revenue = t.l_extendedprice[lines] * (1 - t.l_discount[lines])
    (sellers, buyers, years), revenue, groups = mgpu.group_by((seller, buyer, year), revenue, size=8, count=count)
    return Answer({"supp_nation": sellers, "cust_nation": buyers, "l_year": years, "revenue": revenue}, groups)
