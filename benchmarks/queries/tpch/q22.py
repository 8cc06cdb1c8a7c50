"""Q22: customers with money but without orders, by the country of their telephone."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer

SQL = """
SELECT cntrycode, count(*) AS numcust, sum(c_acctbal) AS totacctbal
FROM (SELECT substring(c_phone FROM 1 FOR 2)::INTEGER AS cntrycode, c_acctbal, c_custkey FROM customer
  WHERE substring(c_phone FROM 1 FOR 2) IN ('13', '31', '23', '29', '30', '18', '17') AND c_acctbal > (
    SELECT avg(c_acctbal) FROM customer WHERE c_acctbal > 0.00
      AND substring(c_phone FROM 1 FOR 2) IN ('13', '31', '23', '29', '30', '18', '17')))
WHERE NOT EXISTS (SELECT * FROM orders WHERE o_custkey = c_custkey)
GROUP BY cntrycode ORDER BY cntrycode
"""
COUNTRIES = [13, 31, 23, 29, 30, 18, 17]


def in_pandas(t: Any, words: Any) -> Any:
    customers = t.customer[t.customer.c_country.isin(COUNTRIES)]
    mean = customers.c_acctbal[customers.c_acctbal > 0].mean()
    customers = customers[(customers.c_acctbal > mean) & ~customers.c_custkey.isin(t.orders.o_custkey)]
    found = customers.groupby("c_country", as_index=False).agg(
        numcust=("c_custkey", "size"), totacctbal=("c_acctbal", "sum")
    )
    return found.rename(columns={"c_country": "cntrycode"})


def query(t: Any, words: Any) -> Answer:
    there = jnp.isin(t.c_country, jnp.array(COUNTRIES, t.c_country.dtype), method="compare_all")
    mean = jnp.mean(t.c_acctbal, where=there & (t.c_acctbal > 0))
    rich, count = mgpu.select_indices(there & (t.c_acctbal > mean), size=there.size // 4)
    without = mgpu.join(t.c_custkey[rich], t.o_custkey, "anti", size=rich.size, assume_sorted=False, a_count=count)
    customer = rich[without.a_indices]
    values = {"numcust": customer, "totacctbal": t.c_acctbal[customer]}
    countries, found, groups = mgpu.group_by(
        t.c_country[customer], values, {"numcust": "count", "totacctbal": "add"}, size=8, count=without.count
    )
    return Answer({"cntrycode": countries, **found}, groups)
