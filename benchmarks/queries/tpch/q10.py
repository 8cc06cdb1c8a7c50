"""Q10: the customers who returned most."""

from __future__ import annotations

from typing import Any

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, day

SQL = """
SELECT c_custkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, c_acctbal, n_name
FROM customer, orders, lineitem, nation
WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND o_orderdate >= DATE '1993-10-01'
  AND o_orderdate < DATE '1994-01-01' AND l_returnflag = 'R' AND c_nationkey = n_nationkey
GROUP BY c_custkey, c_acctbal, n_name ORDER BY revenue DESC LIMIT 20
"""


def in_pandas(t: Any, words: Any) -> Any:
    orders = t.orders[t.orders.o_orderdate.between(day("1993-10-01"), day("1993-12-31"))]
    lines = t.lineitem[t.lineitem.l_returnflag == words.code("l_returnflag", "R")]
    lines = lines.merge(orders[["o_orderkey", "o_custkey"]], left_on="l_orderkey", right_on="o_orderkey")
    lines["revenue"] = lines.l_extendedprice * (1 - lines.l_discount)
    best = lines.groupby("o_custkey", as_index=False).revenue.sum().nlargest(20, "revenue")
    best = best.merge(t.customer, left_on="o_custkey", right_on="c_custkey")
    best = best.merge(t.nation, left_on="c_nationkey", right_on="n_nationkey")
    return best[["c_custkey", "revenue", "c_acctbal", "n_name"]].sort_values("revenue", ascending=False)


def query(t: Any, words: Any) -> Answer:
    in_quarter = (t.o_orderdate >= day("1993-10-01")) & (t.o_orderdate < day("1994-01-01"))
    order = mgpu.sorted_search(t.l_orderkey, t.o_orderkey)  # both are sorted
    returned = (t.l_returnflag == words.code("l_returnflag", "R")) & in_quarter[order]
    lines, count = mgpu.select_indices(returned, size=order.size // 16)
    customer = t.o_custkey[order[lines]]
    revenue = t.l_extendedprice[lines] * (1 - t.l_discount[lines])
    customers, revenue, groups = mgpu.group_by(customer, revenue, size=lines.size // 2, count=count)
    best = mgpu.top_k(revenue, 20, count=groups)
    customers = customers[best.indices]
    nation, balance = mgpu.lookup(customers, t.c_custkey, (t.c_nationkey, t.c_acctbal))
    nation = mgpu.lookup(nation, t.n_nationkey, t.n_name)
    columns = {"c_custkey": customers, "revenue": best.values, "c_acctbal": balance, "n_name": nation}
    return Answer(columns, best.count)
