"""Q16: the number of suppliers for parts with given attributes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, ordered

SQL = """
SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS supplier_cnt FROM partsupp, part
WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%'
  AND p_size IN (49, 14, 23, 45, 19, 3, 36, 9)
  AND ps_suppkey NOT IN (SELECT s_suppkey FROM supplier WHERE s_comment LIKE '%Customer%Complaints%')
GROUP BY p_brand, p_type, p_size ORDER BY supplier_cnt DESC, p_brand, p_type, p_size
"""
SIZES = [49, 14, 23, 45, 19, 3, 36, 9]


def in_pandas(t: Any, words: Any) -> Any:
    parts = t.part[
        (t.part.p_brand != words.code("p_brand", "Brand#45")) & ~t.part.p_is_medium_polished & t.part.p_size.isin(SIZES)
    ]
    offers = t.partsupp.merge(parts, left_on="ps_partkey", right_on="p_partkey")
    offers = offers[~offers.ps_suppkey.isin(t.supplier.s_suppkey[t.supplier.s_has_complaints])]
    found = offers.groupby(["p_brand", "p_type", "p_size"]).ps_suppkey.nunique().rename("supplier_cnt").reset_index()
    return found.sort_values(["supplier_cnt", "p_brand", "p_type", "p_size"], ascending=[False, True, True, True])


def query(t: Any, words: Any) -> Answer:
    wanted = (t.p_brand != words.code("p_brand", "Brand#45")) & ~t.p_is_medium_polished
    wanted &= jnp.isin(t.p_size, jnp.array(SIZES, t.p_size.dtype), method="compare_all")
    part = mgpu.sorted_search(t.ps_partkey, t.p_partkey)  # both are sorted
    offers, count = mgpu.select_indices(wanted[part], size=part.size // 4)
    part, supplier = part[offers], t.ps_suppkey[offers]
    fine = ~mgpu.lookup(supplier, t.s_suppkey, t.s_has_complaints, count=count)
    (part, supplier), count = mgpu.select((part, supplier), fine, count=count)
    keys = (t.p_brand[part], t.p_type[part], t.p_size[part])
    (brand, type_, size), number, groups = mgpu.group_by(keys, supplier, "nunique", size=part.size // 2, count=count)
    columns = {"p_brand": brand, "p_type": type_, "p_size": size, "supplier_cnt": number}
    return ordered(columns, ("supplier_cnt", "p_brand", "p_type", "p_size"), (True, False, False, False), groups)
