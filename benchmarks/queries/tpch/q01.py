"""Q1: the pricing summary of shipped lines."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, day

SQL = """
SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price,
  sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price,
  sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge,
  avg(l_quantity) AS avg_qty, avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc, count(*) AS count_order
FROM lineitem WHERE l_shipdate <= DATE '1998-09-02'
GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus
"""
SUMS = ["sum_qty", "sum_base_price", "sum_disc_price", "sum_charge", "sum_disc"]


def in_pandas(t: Any, words: Any) -> Any:
    lines = t.lineitem[t.lineitem.l_shipdate <= day("1998-09-02")]
    disc_price = lines.l_extendedprice * (1 - lines.l_discount)
    lines = lines.assign(sum_disc_price=disc_price, sum_charge=disc_price * (1 + lines.l_tax))
    return lines.groupby(["l_returnflag", "l_linestatus"], as_index=False).agg(
        sum_qty=("l_quantity", "sum"),
        sum_base_price=("l_extendedprice", "sum"),
        sum_disc_price=("sum_disc_price", "sum"),
        sum_charge=("sum_charge", "sum"),
        avg_qty=("l_quantity", "mean"),
        avg_price=("l_extendedprice", "mean"),
        avg_disc=("l_discount", "mean"),
        count_order=("l_quantity", "size"),
    )


def query(t: Any, words: Any) -> Answer:
    shipped = t.l_shipdate <= day("1998-09-02")
    disc_price = t.l_extendedprice * (1 - t.l_discount)
    values = (t.l_quantity, t.l_extendedprice, disc_price, disc_price * (1 + t.l_tax), t.l_discount)
    # nearly all rows are kept: the others become the last group, which costs less than moving the columns
    flag = jnp.where(shipped, t.l_returnflag, jnp.iinfo(t.l_returnflag.dtype).max)
    (flags, states), (*sums, rows), groups = mgpu.group_by(
        (flag, t.l_linestatus), (*values, flag), ("add",) * 5 + ("count",), size=16
    )
    sums = dict(zip(SUMS, sums, strict=True))
    discounts = sums.pop("sum_disc")
    averages = {"avg_qty": sums["sum_qty"], "avg_price": sums["sum_base_price"], "avg_disc": discounts}
    columns = {
        "l_returnflag": flags,
        "l_linestatus": states,
        **sums,
        **{name: total / rows for name, total in averages.items()},
        "count_order": rows,
    }
    is_group = (jnp.arange(16) < groups) & (flags < jnp.iinfo(flags.dtype).max)
    return Answer(columns, jnp.sum(is_group))
