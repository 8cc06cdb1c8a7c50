"""Q6: the revenue that removing some discounts would add."""

from __future__ import annotations

from typing import Any

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, day

SQL = """
SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem
WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
  AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24
"""


def in_pandas(t: Any, words: Any) -> Any:
    lines = t.lineitem
    lines = lines[
        (lines.l_shipdate >= day("1994-01-01"))
        & (lines.l_shipdate < day("1995-01-01"))
        & (lines.l_discount >= 0.05)
        & (lines.l_discount <= 0.07)
        & (lines.l_quantity < 24)
    ]
    return (lines.l_extendedprice * lines.l_discount).sum()


def query(t: Any, words: Any) -> Answer:
    keep = (t.l_shipdate >= day("1994-01-01")) & (t.l_shipdate < day("1995-01-01"))
    keep &= (t.l_discount >= 0.05) & (t.l_discount <= 0.07) & (t.l_quantity < 24)
    lines, count = mgpu.select_indices(keep, size=keep.size // 32)  # few rows, so their columns are gathered
    return Answer({"revenue": mgpu.reduce(t.l_extendedprice[lines] * t.l_discount[lines], count=count)[None]}, 1)
