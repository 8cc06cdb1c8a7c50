"""Q2: the cheapest European suppliers of some brass parts."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, ordered

SQL = """
SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr
FROM part, supplier, partsupp, nation, region
WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND p_size = 15 AND p_type LIKE '%BRASS'
  AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE'
  AND ps_supplycost = (
    SELECT min(ps_supplycost) FROM partsupp, supplier, nation, region
    WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND s_nationkey = n_nationkey
      AND n_regionkey = r_regionkey AND r_name = 'EUROPE')
ORDER BY s_acctbal DESC, n_name, s_name, p_partkey LIMIT 100
"""


def in_pandas(t: Any, words: Any) -> Any:
    parts = t.part[(t.part.p_size == 15) & t.part.p_is_brass]
    regions = t.region[t.region.r_name == words.code("r_name", "EUROPE")]
    nations = t.nation[t.nation.n_regionkey.isin(regions.r_regionkey)]
    suppliers = t.supplier.merge(nations, left_on="s_nationkey", right_on="n_nationkey")
    offers = t.partsupp.merge(parts, left_on="ps_partkey", right_on="p_partkey")
    offers = offers.merge(suppliers, left_on="ps_suppkey", right_on="s_suppkey")
    best = offers[offers.ps_supplycost == offers.groupby("p_partkey").ps_supplycost.transform("min")]
    best = best.sort_values(["s_acctbal", "n_name", "s_name", "p_partkey"], ascending=[False, True, True, True])
    return best[["s_acctbal", "s_name", "n_name", "p_partkey", "p_mfgr"]].head(100)


def query(t: Any, words: Any) -> Answer:
    european = mgpu.lookup(t.n_regionkey, t.r_regionkey, t.r_name == words.code("r_name", "EUROPE"))
    wanted = (t.p_size == 15) & t.p_is_brass
    part = mgpu.sorted_search(t.ps_partkey, t.p_partkey)  # both are sorted
    offers, count = mgpu.select_indices(wanted[part], size=part.size // 16)
    part, cost = part[offers], t.ps_supplycost[offers]
    supplier = mgpu.lookup(t.ps_suppkey[offers], t.s_suppkey, jnp.arange(t.s_suppkey.size))
    nation = mgpu.lookup(t.s_nationkey, t.n_nationkey, jnp.arange(t.n_nationkey.size))[supplier]
    cost = jnp.where(european[nation], cost, jnp.inf)
    keys, least, keys_count = mgpu.reduce_by_key(part, cost, "min", size=part.size, count=count)
    is_best = (cost < jnp.inf) & (cost == mgpu.lookup(part, keys, least, table_count=keys_count, default=-1))
    (part, supplier, nation), count = mgpu.select((part, supplier, nation), is_best, count=count)
    columns = {
        "s_acctbal": t.s_acctbal[supplier],
        "s_name": t.s_name[supplier],
        "n_name": t.n_name[nation],
        "p_partkey": t.p_partkey[part],
        "p_mfgr": t.p_mfgr[part],
    }
    return ordered(columns, ("s_acctbal", "n_name", "s_name", "p_partkey"), (True, False, False, False), count, 100)
