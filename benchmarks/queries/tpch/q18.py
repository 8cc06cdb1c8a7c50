"""Q18: the customers of the largest orders."""

from __future__ import annotations

from typing import Any

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, ordered

SQL = """
SELECT c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS sum_qty
FROM customer, orders, lineitem
WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 300)
  AND c_custkey = o_custkey AND o_orderkey = l_orderkey
GROUP BY c_custkey, o_orderkey, o_orderdate, o_totalprice ORDER BY o_totalprice DESC, o_orderdate LIMIT 100
"""


def in_pandas(t: Any, words: Any) -> Any:
    sums = t.lineitem.groupby("l_orderkey", as_index=False).l_quantity.sum()
    sums = sums[sums.l_quantity > 300].rename(columns={"l_quantity": "sum_qty"})
    orders = t.orders.merge(sums, left_on="o_orderkey", right_on="l_orderkey")
    orders = orders.merge(t.customer[["c_custkey"]], left_on="o_custkey", right_on="c_custkey")
    orders = orders.sort_values(["o_totalprice", "o_orderdate"], ascending=[False, True]).head(100)
    return orders[["c_custkey", "o_orderkey", "o_orderdate", "o_totalprice", "sum_qty"]]


def query(t: Any, words: Any) -> Answer:
    lines = mgpu.sorted_search(t.o_orderkey, t.l_orderkey)  # where the lines of each order begin: both are sorted
    quantity = mgpu.segmented_reduce(t.l_quantity, lines)
    orders, count = mgpu.select_indices(quantity > 300, size=1024)
    columns = {
        "c_custkey": t.o_custkey[orders],
        "o_orderkey": t.o_orderkey[orders],
        "o_orderdate": t.o_orderdate[orders],
        "o_totalprice": t.o_totalprice[orders],
        "sum_qty": quantity[orders],
    }
    return ordered(columns, ("o_totalprice", "o_orderdate"), (True, False), count, 100)
