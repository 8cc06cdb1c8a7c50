"""Q17: the yearly revenue of small orders of some parts."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer

SQL = """
SELECT coalesce(sum(l_extendedprice), 0) / 7.0 AS avg_yearly FROM lineitem, part
WHERE p_partkey = l_partkey AND p_brand = 'Brand#23' AND p_container = 'MED BOX'
  AND l_quantity < (SELECT 0.2 * avg(l_quantity) FROM lineitem WHERE l_partkey = p_partkey)
"""


def in_pandas(t: Any, words: Any) -> Any:
    parts = t.part[
        (t.part.p_brand == words.code("p_brand", "Brand#23"))
        & (t.part.p_container == words.code("p_container", "MED BOX"))
    ]
    lines = t.lineitem[t.lineitem.l_partkey.isin(parts.p_partkey)]
    small = lines.l_quantity < 0.2 * lines.groupby("l_partkey").l_quantity.transform("mean")
    return lines.l_extendedprice[small].sum() / 7


def query(t: Any, words: Any) -> Answer:
    wanted = t.p_brand == words.code("p_brand", "Brand#23")
    wanted &= t.p_container == words.code("p_container", "MED BOX")
    lines, count = mgpu.select_indices(mgpu.lookup(t.l_partkey, t.p_partkey, wanted), size=t.l_partkey.size // 128)
    part, quantity = t.l_partkey[lines], t.l_quantity[lines]
    parts, mean, groups = mgpu.group_by(part, quantity, "mean", size=lines.size, count=count)
    small = quantity < 0.2 * mgpu.lookup(part, parts, mean, table_count=groups)
    total = mgpu.reduce(jnp.where(small, t.l_extendedprice[lines], 0), count=count)
    return Answer({"avg_yearly": total[None] / 7}, 1)
