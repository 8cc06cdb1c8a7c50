"""Q21: Saudi suppliers who were the only one to keep an order waiting."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, ordered

SQL = """
SELECT s_name, count(*) AS numwait FROM supplier, lineitem l1, orders, nation
WHERE s_suppkey = l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F'
  AND l1.l_receiptdate > l1.l_commitdate
  AND EXISTS (SELECT * FROM lineitem l2 WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey)
  AND NOT EXISTS (SELECT * FROM lineitem l3 WHERE l3.l_orderkey = l1.l_orderkey AND l3.l_suppkey <> l1.l_suppkey
    AND l3.l_receiptdate > l3.l_commitdate)
  AND s_nationkey = n_nationkey AND n_name = 'SAUDI ARABIA'
GROUP BY s_name ORDER BY numwait DESC, s_name LIMIT 100
"""


def in_pandas(t: Any, words: Any) -> Any:
    late = t.lineitem[t.lineitem.l_receiptdate > t.lineitem.l_commitdate]
    several = t.lineitem.groupby("l_orderkey").l_suppkey.nunique()
    alone = late.groupby("l_orderkey").l_suppkey.nunique()
    late = late[late.l_orderkey.isin(several.index[several > 1]) & late.l_orderkey.isin(alone.index[alone == 1])]
    orders = t.orders.o_orderkey[t.orders.o_orderstatus == words.code("o_orderstatus", "F")]
    nations = t.nation[t.nation.n_name == words.code("n_name", "SAUDI ARABIA")]
    suppliers = t.supplier[t.supplier.s_nationkey.isin(nations.n_nationkey)]
    late = late[late.l_orderkey.isin(orders)].merge(suppliers, left_on="l_suppkey", right_on="s_suppkey")
    found = late.groupby("s_name").size().rename("numwait").reset_index()
    return found.sort_values(["numwait", "s_name"], ascending=[False, True]).head(100)


def query(t: Any, words: Any) -> Answer:
    saudi = mgpu.lookup(t.s_nationkey, t.n_nationkey, t.n_name == words.code("n_name", "SAUDI ARABIA"))
    lines = mgpu.sorted_search(t.o_orderkey, t.l_orderkey)  # where the lines of each order begin: both are sorted
    late = t.l_receiptdate > t.l_commitdate
    # only one supplier is late if the smallest and the largest late one are the same
    limits = jnp.iinfo(t.l_suppkey.dtype)
    first = mgpu.segmented_reduce(jnp.where(late, t.l_suppkey, limits.max), lines, "min")
    last = mgpu.segmented_reduce(jnp.where(late, t.l_suppkey, limits.min), lines, "max")
    lowest, highest = (mgpu.segmented_reduce(t.l_suppkey, lines, op) for op in ("min", "max"))
    waits = (t.o_orderstatus == words.code("o_orderstatus", "F")) & (first == last) & (lowest < highest)
    order = mgpu.sorted_search(t.l_orderkey, t.o_orderkey)
    waiting = mgpu.select(t.l_suppkey, waits[order] & late, size=late.size // 4)
    supplier = mgpu.lookup(waiting.values, t.s_suppkey, jnp.arange(saudi.size), count=waiting.count)
    kept = mgpu.select(t.s_name[supplier], saudi[supplier], size=late.size // 32, count=waiting.count)
    names, number, groups = mgpu.group_by(kept.values, kept.values, "count", size=saudi.size, count=kept.count)
    return ordered({"s_name": names, "numwait": number}, ("numwait", "s_name"), (True, False), groups, 100)
