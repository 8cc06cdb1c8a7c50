"""Q4: orders of a quarter that were received late, by priority."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, day

SQL = """
SELECT o_orderpriority, count(*) AS order_count FROM orders
WHERE o_orderdate >= DATE '1993-07-01' AND o_orderdate < DATE '1993-10-01'
  AND EXISTS (SELECT * FROM lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate)
GROUP BY o_orderpriority ORDER BY o_orderpriority
"""


def in_pandas(t: Any, words: Any) -> Any:
    orders = t.orders[t.orders.o_orderdate.between(day("1993-07-01"), day("1993-09-30"))]
    late = t.lineitem.l_orderkey[t.lineitem.l_commitdate < t.lineitem.l_receiptdate]
    orders = orders[orders.o_orderkey.isin(late)]
    return orders.groupby("o_orderpriority", as_index=False).agg(order_count=("o_orderkey", "size"))


def query(t: Any, words: Any) -> Answer:
    in_quarter = (t.o_orderdate >= day("1993-07-01")) & (t.o_orderdate < day("1993-10-01"))
    late = (t.l_commitdate < t.l_receiptdate).astype(jnp.int8)
    late = mgpu.segmented_reduce(late, mgpu.sorted_search(t.o_orderkey, t.l_orderkey), "max") > 0
    (priority,), count = mgpu.select((t.o_orderpriority,), in_quarter & late, size=late.size // 8)
    priorities, orders, groups = mgpu.group_by(priority, priority, "count", size=8, count=count)
    return Answer({"o_orderpriority": priorities, "order_count": orders}, groups)
