"""Q11: the parts that make up most of the value of Germany's stock."""

from __future__ import annotations

from typing import Any

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, ordered

SQL = """
SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value
FROM partsupp, supplier, nation
WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY'
GROUP BY ps_partkey
HAVING value > (
  SELECT sum(ps_supplycost * ps_availqty) * 0.0001 / {scale} FROM partsupp, supplier, nation
  WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY')
ORDER BY value DESC, ps_partkey
"""


def in_pandas(t: Any, words: Any) -> Any:
    nations = t.nation[t.nation.n_name == words.code("n_name", "GERMANY")]
    suppliers = t.supplier[t.supplier.s_nationkey.isin(nations.n_nationkey)]
    stock = t.partsupp[t.partsupp.ps_suppkey.isin(suppliers.s_suppkey)]
    stock = stock.assign(value=stock.ps_supplycost * stock.ps_availqty)
    sums = stock.groupby("ps_partkey", as_index=False).value.sum()
    sums = sums[sums.value > stock.value.sum() * 0.0001 / words.scale]
    return sums.sort_values(["value", "ps_partkey"], ascending=[False, True])


def query(t: Any, words: Any) -> Answer:
    german = mgpu.lookup(t.s_nationkey, t.n_nationkey, t.n_name == words.code("n_name", "GERMANY"))
    german = mgpu.lookup(t.ps_suppkey, t.s_suppkey, german)
    stock, count = mgpu.select_indices(german, size=german.size // 8)
    value = t.ps_supplycost[stock] * t.ps_availqty[stock]
    total = mgpu.reduce(value, count=count)
    parts, value, groups = mgpu.reduce_by_key(t.ps_partkey[stock], value, size=stock.size, count=count)  # sorted
    (parts, value), count = mgpu.select((parts, value), value > total * 0.0001 / words.scale, count=groups)
    return ordered({"ps_partkey": parts, "value": value}, ("value", "ps_partkey"), (True, False), count)
