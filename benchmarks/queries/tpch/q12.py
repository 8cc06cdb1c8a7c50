"""Q12: whether cheaper ways to ship delay urgent orders."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, day

SQL = """
SELECT l_shipmode,
  sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS high_line_count,
  sum(CASE WHEN o_orderpriority NOT IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS low_line_count
FROM orders, lineitem
WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate
  AND l_shipdate < l_commitdate AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1995-01-01'
GROUP BY l_shipmode ORDER BY l_shipmode
"""


def in_pandas(t: Any, words: Any) -> Any:
    lines = t.lineitem
    lines = lines[
        lines.l_shipmode.isin([words.code("l_shipmode", mode) for mode in ("MAIL", "SHIP")])
        & (lines.l_commitdate < lines.l_receiptdate)
        & (lines.l_shipdate < lines.l_commitdate)
        & (lines.l_receiptdate >= day("1994-01-01"))
        & (lines.l_receiptdate < day("1995-01-01"))
    ]
    lines = lines.merge(t.orders, left_on="l_orderkey", right_on="o_orderkey")
    high = lines.o_orderpriority <= words.code("o_orderpriority", "2-HIGH")
    lines = lines.assign(high_line_count=high.astype(int), low_line_count=(~high).astype(int))
    return lines.groupby("l_shipmode", as_index=False)[["high_line_count", "low_line_count"]].sum()


def query(t: Any, words: Any) -> Answer:
    mail, ship = (words.code("l_shipmode", mode) for mode in ("MAIL", "SHIP"))
    keep = (t.l_shipmode == mail) | (t.l_shipmode == ship)
    keep &= (t.l_commitdate < t.l_receiptdate) & (t.l_shipdate < t.l_commitdate)
    keep &= (t.l_receiptdate >= day("1994-01-01")) & (t.l_receiptdate < day("1995-01-01"))
    lines, count = mgpu.select_indices(keep, size=keep.size // 64)
    order = mgpu.sorted_search(t.l_orderkey[lines], t.o_orderkey, needles_count=count)  # both are sorted
    high = (t.o_orderpriority[order] <= words.code("o_orderpriority", "2-HIGH")).astype(jnp.int32)
    modes, (high, low), groups = mgpu.group_by(t.l_shipmode[lines], (high, 1 - high), size=2, count=count)
    return Answer({"l_shipmode": modes, "high_line_count": high, "low_line_count": low}, groups)
