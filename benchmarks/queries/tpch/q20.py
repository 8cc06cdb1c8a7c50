"""Q20: Canadian suppliers with more of some parts than half a year's sales."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, day, ordered

SQL = """
SELECT s_name FROM supplier, nation
WHERE s_nationkey = n_nationkey AND n_name = 'CANADA' AND s_suppkey IN (
  SELECT ps_suppkey FROM partsupp
  WHERE ps_partkey IN (SELECT p_partkey FROM part WHERE p_name LIKE 'forest%')
    AND ps_availqty > (
      SELECT 0.5 * sum(l_quantity) FROM lineitem WHERE l_partkey = ps_partkey AND l_suppkey = ps_suppkey
        AND l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'))
ORDER BY s_name
"""


def in_pandas(t: Any, words: Any) -> Any:
    stock = t.partsupp[t.partsupp.ps_partkey.isin(t.part.p_partkey[t.part.p_is_forest])]
    lines = t.lineitem[t.lineitem.l_shipdate.between(day("1994-01-01"), day("1994-12-31"))]
    lines = lines.merge(stock, left_on=["l_partkey", "l_suppkey"], right_on=["ps_partkey", "ps_suppkey"])
    sold = lines.groupby(["ps_partkey", "ps_suppkey", "ps_availqty"], as_index=False).l_quantity.sum()
    enough = sold.ps_suppkey[sold.ps_availqty > 0.5 * sold.l_quantity]
    nations = t.nation[t.nation.n_name == words.code("n_name", "CANADA")]
    found = t.supplier[t.supplier.s_nationkey.isin(nations.n_nationkey) & t.supplier.s_suppkey.isin(enough)]
    return found[["s_name"]].sort_values("s_name")


def query(t: Any, words: Any) -> Answer:
    in_year = (t.l_shipdate >= day("1994-01-01")) & (t.l_shipdate < day("1995-01-01"))
    is_forest = mgpu.lookup(t.l_partkey, t.p_partkey, t.p_is_forest)
    lines, count = mgpu.select_indices(in_year & is_forest, size=in_year.size // 64)
    keys = (t.l_partkey[lines], t.l_suppkey[lines])
    (parts, suppliers), sold, groups = mgpu.group_by(keys, t.l_quantity[lines], size=lines.size, count=count)
    stock = mgpu.lookup((parts, suppliers), (t.ps_partkey, t.ps_suppkey), t.ps_availqty, count=groups)
    enough = mgpu.select(suppliers, stock > 0.5 * sold, count=groups)
    canadian = mgpu.lookup(t.s_nationkey, t.n_nationkey, t.n_name == words.code("n_name", "CANADA"))
    delivers = mgpu.lookup(t.s_suppkey, enough.values, jnp.ones(enough.values.shape, bool), table_count=enough.count)
    names = mgpu.select(t.s_name, canadian & delivers)
    return ordered({"s_name": names.values}, ("s_name",), (False,), names.count)
