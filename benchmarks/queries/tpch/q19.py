"""Q19: revenue of parts of three kinds, delivered in person by air."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer

SQL = """
SELECT sum(l_extendedprice * (1 - l_discount)) AS revenue FROM lineitem, part
WHERE p_partkey = l_partkey AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON' AND (
  p_brand = 'Brand#12' AND p_container IN ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
    AND l_quantity BETWEEN 1 AND 11 AND p_size BETWEEN 1 AND 5
  OR p_brand = 'Brand#23' AND p_container IN ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
    AND l_quantity BETWEEN 10 AND 20 AND p_size BETWEEN 1 AND 10
  OR p_brand = 'Brand#34' AND p_container IN ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
    AND l_quantity BETWEEN 20 AND 30 AND p_size BETWEEN 1 AND 15)
"""
KINDS = [
    ("Brand#12", ("SM CASE", "SM BOX", "SM PACK", "SM PKG"), 1, 11, 5),
    ("Brand#23", ("MED BAG", "MED BOX", "MED PKG", "MED PACK"), 10, 20, 10),
    ("Brand#34", ("LG CASE", "LG BOX", "LG PACK", "LG PKG"), 20, 30, 15),
]


def in_pandas(t: Any, words: Any) -> Any:
    lines = t.lineitem[
        (t.lineitem.l_shipmode == words.code("l_shipmode", "AIR"))
        & (t.lineitem.l_shipinstruct == words.code("l_shipinstruct", "DELIVER IN PERSON"))
    ]
    lines = lines.merge(t.part, left_on="l_partkey", right_on="p_partkey")
    revenue = lines.l_extendedprice * (1 - lines.l_discount)
    return sum(
        revenue[
            (lines.p_brand == words.code("p_brand", brand))
            & lines.p_container.isin([words.code("p_container", name) for name in containers])
            & lines.l_quantity.between(least, most)
            & lines.p_size.between(1, size)
        ].sum()
        for brand, containers, least, most, size in KINDS
    )


def query(t: Any, words: Any) -> Answer:
    keep = t.l_shipmode == words.code("l_shipmode", "AIR")  # no line has the other word, "AIR REG"
    keep &= t.l_shipinstruct == words.code("l_shipinstruct", "DELIVER IN PERSON")
    lines, count = mgpu.select_indices(keep, size=keep.size // 16)
    part = mgpu.lookup(t.l_partkey[lines], t.p_partkey, jnp.arange(t.p_partkey.size), count=count)
    brand, container, size, quantity = t.p_brand[part], t.p_container[part], t.p_size[part], t.l_quantity[lines]
    keep = jnp.zeros(lines.shape, bool)
    for name, containers, least, most, largest in KINDS:
        codes = jnp.array([words.code("p_container", name) for name in containers], container.dtype)
        is_kind = (brand == words.code("p_brand", name)) & jnp.isin(container, codes, method="compare_all")
        keep |= is_kind & (quantity >= least) & (quantity <= most) & (size >= 1) & (size <= largest)
    revenue = jnp.where(keep, t.l_extendedprice[lines] * (1 - t.l_discount[lines]), 0)
    return Answer({"revenue": mgpu.reduce(revenue, count=count)[None]}, 1)
