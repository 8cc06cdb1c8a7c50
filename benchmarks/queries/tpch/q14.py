"""Q14: the share of promoted parts in a month's revenue."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, day

SQL = """
SELECT 100.0 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount) ELSE 0 END)
  / sum(l_extendedprice * (1 - l_discount)) AS promo_revenue
FROM lineitem, part
WHERE l_partkey = p_partkey AND l_shipdate >= DATE '1995-09-01' AND l_shipdate < DATE '1995-10-01'
"""


def in_pandas(t: Any, words: Any) -> Any:
    lines = t.lineitem[t.lineitem.l_shipdate.between(day("1995-09-01"), day("1995-09-30"))]
    lines = lines.merge(t.part[["p_partkey", "p_is_promo"]], left_on="l_partkey", right_on="p_partkey")
    revenue = lines.l_extendedprice * (1 - lines.l_discount)
    return 100 * revenue[lines.p_is_promo].sum() / revenue.sum()


def query(t: Any, words: Any) -> Answer:
    in_month = (t.l_shipdate >= day("1995-09-01")) & (t.l_shipdate < day("1995-10-01"))
    lines, count = mgpu.select_indices(in_month, size=in_month.size // 32)
    is_promo = mgpu.lookup(t.l_partkey[lines], t.p_partkey, t.p_is_promo, count=count)
    revenue = t.l_extendedprice[lines] * (1 - t.l_discount[lines])
    share = mgpu.reduce(jnp.where(is_promo, revenue, 0), count=count) / mgpu.reduce(revenue, count=count)
    return Answer({"promo_revenue": 100 * share[None]}, 1)
