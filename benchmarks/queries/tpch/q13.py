"""Q13: the distribution of customers by their number of orders."""

from __future__ import annotations

from typing import Any

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, ordered

SQL = """
SELECT c_count, count(*) AS custdist
FROM (SELECT c_custkey, count(o_orderkey) AS c_count
  FROM customer LEFT OUTER JOIN orders ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%'
  GROUP BY c_custkey)
GROUP BY c_count ORDER BY custdist DESC, c_count DESC
"""
MAX_ORDERS = 256  # room for this many different numbers of orders


def in_pandas(t: Any, words: Any) -> Any:
    orders = t.orders[~t.orders.o_is_special].groupby("o_custkey").size()
    number = orders.reindex(t.customer.c_custkey, fill_value=0)
    found = number.value_counts().rename_axis("c_count").rename("custdist").reset_index()
    return found.sort_values(["custdist", "c_count"], ascending=False)


def query(t: Any, words: Any) -> Answer:
    orders = mgpu.select(t.o_custkey, ~t.o_is_special)
    keys, number, groups = mgpu.group_by(
        orders.values, orders.values, "count", size=t.c_custkey.size, count=orders.count
    )
    number = mgpu.lookup(t.c_custkey, keys, number, table_count=groups)
    number, customers, groups = mgpu.group_by(number, number, "count", size=MAX_ORDERS)
    return ordered({"c_count": number, "custdist": customers}, ("custdist", "c_count"), (True, True), groups)
