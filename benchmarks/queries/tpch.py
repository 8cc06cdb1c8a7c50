"""TPC-H Q1 to Q22, each in SQL, in pandas and in JAX."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.queries.columns import Answer, day, ordered

__all__ = ["QUERIES"]


SUMS = ["sum_qty", "sum_base_price", "sum_disc_price", "sum_charge", "sum_disc"]


class Q1:
    """Q1: the pricing summary of shipped lines."""

    SQL = """
SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price,
  sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price,
  sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge,
  avg(l_quantity) AS avg_qty, avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc, count(*) AS count_order
FROM lineitem WHERE l_shipdate <= DATE '1998-09-02'
GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus
"""

    @staticmethod
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

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        shipped = t.l_shipdate <= day("1998-09-02")
        disc_price = t.l_extendedprice * (1 - t.l_discount)
        values = (t.l_quantity, t.l_extendedprice, disc_price, disc_price * (1 + t.l_tax), t.l_discount)
        # Nearly all rows are kept: the others become the last group, which costs less than moving columns.
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


class Q2:
    """Q2: the cheapest European suppliers of some brass parts."""

    SQL = """
SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr
FROM part, supplier, partsupp, nation, region
WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND p_size = 15 AND p_type LIKE '%BRASS'
  AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE'
  AND ps_supplycost = (
    SELECT min(ps_supplycost) FROM partsupp, supplier, nation, region
    WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND s_nationkey = n_nationkey
      AND n_regionkey = r_regionkey AND r_name = 'EUROPE')
ORDER BY s_acctbal DESC, n_name, s_name, p_partkey LIMIT 100
"""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        parts = t.part[(t.part.p_size == 15) & t.part.p_is_brass]
        regions = t.region[t.region.r_name == words.code("r_name", "EUROPE")]
        nations = t.nation[t.nation.n_regionkey.isin(regions.r_regionkey)]
        suppliers = t.supplier.merge(nations, left_on="s_nationkey", right_on="n_nationkey")
        offers = t.partsupp.merge(parts, left_on="ps_partkey", right_on="p_partkey")
        offers = offers.merge(suppliers, left_on="ps_suppkey", right_on="s_suppkey")
        best = offers[offers.ps_supplycost == offers.groupby("p_partkey").ps_supplycost.transform("min")]
        best = best.sort_values(["s_acctbal", "n_name", "s_name", "p_partkey"], ascending=[False, True, True, True])
        return best[["s_acctbal", "s_name", "n_name", "p_partkey", "p_mfgr"]].head(100)

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        european = mgpu.lookup(t.n_regionkey, t.r_regionkey, t.r_name == words.code("r_name", "EUROPE"))
        wanted = (t.p_size == 15) & t.p_is_brass
        part = mgpu.sorted_search(t.ps_partkey, t.p_partkey)  # both are sorted
        offers, count = mgpu.select_indices(wanted[part], size=part.size // 16)
        part, cost = part[offers], t.ps_supplycost[offers]
        supplier = mgpu.lookup(t.ps_suppkey[offers], t.s_suppkey, jnp.arange(t.s_suppkey.size))
        nation = mgpu.lookup(t.s_nationkey, t.n_nationkey, jnp.arange(t.n_nationkey.size))[supplier]
        cost = jnp.where(european[nation], cost, jnp.inf)
        keys, least, keys_count = mgpu.reduce_by_key(part, cost, "min", size=part.size, count=count)
        is_best = (cost < jnp.inf) & (cost == mgpu.lookup(part, keys, least, table_count=keys_count, default=-1))
        (part, supplier, nation), count = mgpu.select((part, supplier, nation), is_best, count=count)
        columns = {
            "s_acctbal": t.s_acctbal[supplier],
            "s_name": t.s_name[supplier],
            "n_name": t.n_name[nation],
            "p_partkey": t.p_partkey[part],
            "p_mfgr": t.p_mfgr[part],
        }
        return ordered(columns, ("s_acctbal", "n_name", "s_name", "p_partkey"), (True, False, False, False), count, 100)


class Q3:
    """Q3: the unshipped orders with the largest revenue."""

    SQL = """
SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
FROM customer, orders, lineitem
WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
  AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
GROUP BY l_orderkey, o_orderdate, o_shippriority ORDER BY revenue DESC, o_orderdate LIMIT 10
"""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        date = day("1995-03-15")
        customers = t.customer[t.customer.c_mktsegment == words.code("c_mktsegment", "BUILDING")]
        orders = t.orders[t.orders.o_orderdate < date]
        orders = orders.merge(customers[["c_custkey"]], left_on="o_custkey", right_on="c_custkey")
        lines = t.lineitem[t.lineitem.l_shipdate > date]
        lines = lines.merge(orders, left_on="l_orderkey", right_on="o_orderkey")
        lines["revenue"] = lines.l_extendedprice * (1 - lines.l_discount)
        sums = lines.groupby(["l_orderkey", "o_orderdate", "o_shippriority"], as_index=False).revenue.sum()
        sums = sums.sort_values(["revenue", "o_orderdate"], ascending=[False, True]).head(10)
        return sums[["l_orderkey", "revenue", "o_orderdate", "o_shippriority"]]

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        date = day("1995-03-15")
        building = mgpu.lookup(t.o_custkey, t.c_custkey, t.c_mktsegment == words.code("c_mktsegment", "BUILDING"))
        wanted = building & (t.o_orderdate < date)
        order = mgpu.sorted_search(t.l_orderkey, t.o_orderkey)  # both are sorted
        lines, count = mgpu.select_indices(wanted[order] & (t.l_shipdate > date), size=order.size // 64)
        revenue = t.l_extendedprice[lines] * (1 - t.l_discount[lines])
        orders, revenue, groups = mgpu.reduce_by_key(order[lines], revenue, size=lines.size, count=count)
        columns = {
            "l_orderkey": t.o_orderkey[orders],
            "revenue": revenue,
            "o_orderdate": t.o_orderdate[orders],
            "o_shippriority": t.o_shippriority[orders],
        }
        return ordered(columns, ("revenue", "o_orderdate"), (True, False), groups, 10)


class Q4:
    """Q4: orders of a quarter that were received late, by priority."""

    SQL = """
SELECT o_orderpriority, count(*) AS order_count FROM orders
WHERE o_orderdate >= DATE '1993-07-01' AND o_orderdate < DATE '1993-10-01'
  AND EXISTS (SELECT * FROM lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate)
GROUP BY o_orderpriority ORDER BY o_orderpriority
"""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        orders = t.orders[t.orders.o_orderdate.between(day("1993-07-01"), day("1993-09-30"))]
        late = t.lineitem.l_orderkey[t.lineitem.l_commitdate < t.lineitem.l_receiptdate]
        orders = orders[orders.o_orderkey.isin(late)]
        return orders.groupby("o_orderpriority", as_index=False).agg(order_count=("o_orderkey", "size"))

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        in_quarter = (t.o_orderdate >= day("1993-07-01")) & (t.o_orderdate < day("1993-10-01"))
        late = (t.l_commitdate < t.l_receiptdate).astype(jnp.int8)
        late = mgpu.segmented_reduce(late, mgpu.sorted_search(t.o_orderkey, t.l_orderkey), "max") > 0
        (priority,), count = mgpu.select((t.o_orderpriority,), in_quarter & late, size=late.size // 8)
        priorities, orders, groups = mgpu.group_by(priority, priority, "count", size=8, count=count)
        return Answer({"o_orderpriority": priorities, "order_count": orders}, groups)


class Q5:
    """Q5: revenue by nation of Asian customers from suppliers of their own nation."""

    SQL = """
SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
FROM customer, orders, lineitem, supplier, nation, region
WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey AND c_nationkey = s_nationkey
  AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'ASIA'
  AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01'
GROUP BY n_name ORDER BY revenue DESC
"""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        regions = t.region[t.region.r_name == words.code("r_name", "ASIA")]
        nations = t.nation[t.nation.n_regionkey.isin(regions.r_regionkey)]
        customers = t.customer.merge(nations, left_on="c_nationkey", right_on="n_nationkey")
        orders = t.orders[t.orders.o_orderdate.between(day("1994-01-01"), day("1994-12-31"))]
        orders = orders.merge(customers, left_on="o_custkey", right_on="c_custkey")
        lines = t.lineitem.merge(orders, left_on="l_orderkey", right_on="o_orderkey")
        lines = lines.merge(t.supplier, left_on=["l_suppkey", "c_nationkey"], right_on=["s_suppkey", "s_nationkey"])
        lines["revenue"] = lines.l_extendedprice * (1 - lines.l_discount)
        return lines.groupby("n_name", as_index=False).revenue.sum().sort_values("revenue", ascending=False)

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        asian = mgpu.lookup(t.n_regionkey, t.r_regionkey, t.r_name == words.code("r_name", "ASIA"))
        in_year = (t.o_orderdate >= day("1994-01-01")) & (t.o_orderdate < day("1995-01-01"))
        order = mgpu.sorted_search(t.l_orderkey, t.o_orderkey)  # both are sorted
        lines, count = mgpu.select_indices(in_year[order], size=order.size // 4)
        customer = t.o_custkey[order[lines]]
        nation = mgpu.lookup(t.l_suppkey[lines], t.s_suppkey, t.s_nationkey, count=count)
        local = nation == mgpu.lookup(customer, t.c_custkey, t.c_nationkey, default=-1, count=count)
        (lines, nation), count = mgpu.select((lines, nation), local, size=lines.size // 8, count=count)
        nation = mgpu.lookup(nation, t.n_nationkey, jnp.where(asian, t.n_name, -1), default=-1)
        (lines, nation), count = mgpu.select((lines, nation), nation >= 0, count=count)
        revenue = t.l_extendedprice[lines] * (1 - t.l_discount[lines])
        names, revenue, groups = mgpu.group_by(nation, revenue, size=32, count=count)
        return ordered({"n_name": names, "revenue": revenue}, ("revenue",), (True,), groups)


class Q6:
    """Q6: the revenue that removing some discounts would add."""

    SQL = """
SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem
WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
  AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24
"""

    @staticmethod
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

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        keep = (t.l_shipdate >= day("1994-01-01")) & (t.l_shipdate < day("1995-01-01"))
        keep &= (t.l_discount >= 0.05) & (t.l_discount <= 0.07) & (t.l_quantity < 24)
        lines, count = mgpu.select_indices(keep, size=keep.size // 32)  # few rows are kept, so columns are gathered
        return Answer({"revenue": mgpu.reduce(t.l_extendedprice[lines] * t.l_discount[lines], count=count)[None]}, 1)


class Q7:
    """Q7: revenue of goods shipped between France and Germany, by year."""

    SQL = """
SELECT n1.n_name AS supp_nation, n2.n_name AS cust_nation, year(l_shipdate) AS l_year,
  sum(l_extendedprice * (1 - l_discount)) AS revenue
FROM supplier, lineitem, orders, customer, nation n1, nation n2
WHERE s_suppkey = l_suppkey AND o_orderkey = l_orderkey AND c_custkey = o_custkey AND s_nationkey = n1.n_nationkey
  AND c_nationkey = n2.n_nationkey AND (n1.n_name = 'FRANCE' AND n2.n_name = 'GERMANY'
    OR n1.n_name = 'GERMANY' AND n2.n_name = 'FRANCE')
  AND l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
GROUP BY supp_nation, cust_nation, l_year ORDER BY supp_nation, cust_nation, l_year
"""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        nations = t.nation[t.nation.n_name.isin([words.code("n_name", name) for name in ("FRANCE", "GERMANY")])]
        names = nations[["n_nationkey", "n_name"]]
        suppliers = t.supplier.merge(names, left_on="s_nationkey", right_on="n_nationkey")
        customers = t.customer.merge(names, left_on="c_nationkey", right_on="n_nationkey")
        suppliers, customers = (
            suppliers.rename(columns={"n_name": "supp_nation"}),
            customers.rename(columns={"n_name": "cust_nation"}),
        )
        lines = t.lineitem[t.lineitem.l_shipdate.between(day("1995-01-01"), day("1996-12-31"))]
        lines = lines.merge(suppliers[["s_suppkey", "supp_nation"]], left_on="l_suppkey", right_on="s_suppkey")
        orders = t.orders.merge(customers[["c_custkey", "cust_nation"]], left_on="o_custkey", right_on="c_custkey")
        lines = lines.merge(orders[["o_orderkey", "cust_nation"]], left_on="l_orderkey", right_on="o_orderkey")
        lines = lines[lines.supp_nation != lines.cust_nation]
        lines["l_year"] = 1995 + (lines.l_shipdate >= day("1996-01-01"))
        lines["revenue"] = lines.l_extendedprice * (1 - lines.l_discount)
        return lines.groupby(["supp_nation", "cust_nation", "l_year"], as_index=False).revenue.sum()

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        france, germany = (words.code("n_name", name) for name in ("FRANCE", "GERMANY"))
        names = jnp.where((t.n_name == france) | (t.n_name == germany), t.n_name, -1)
        supplier = mgpu.lookup(t.s_nationkey, t.n_nationkey, names)
        customer = mgpu.lookup(t.c_nationkey, t.n_nationkey, names)
        seller = mgpu.lookup(t.l_suppkey, t.s_suppkey, supplier)
        in_years = (t.l_shipdate >= day("1995-01-01")) & (t.l_shipdate <= day("1996-12-31"))
        lines, count = mgpu.select_indices(in_years & (seller >= 0), size=seller.size // 8)
        order = mgpu.sorted_search(t.l_orderkey[lines], t.o_orderkey, needles_count=count)
        buyer = mgpu.lookup(t.o_custkey[order], t.c_custkey, customer, count=count)
        seller = seller[lines]
        keep = (buyer >= 0) & (buyer != seller)
        (lines, seller, buyer), count = mgpu.select((lines, seller, buyer), keep, size=lines.size // 4, count=count)
        year = (1995 + (t.l_shipdate[lines] >= day("1996-01-01"))).astype(jnp.int16)
        revenue = t.l_extendedprice[lines] * (1 - t.l_discount[lines])
        (sellers, buyers, years), revenue, groups = mgpu.group_by((seller, buyer, year), revenue, size=8, count=count)
        return Answer({"supp_nation": sellers, "cust_nation": buyers, "l_year": years, "revenue": revenue}, groups)


class Q8:
    """Q8: Brazil's share of the American market for a type of part, by year."""

    SQL = """
SELECT year(o_orderdate) AS o_year,
  sum(CASE WHEN n2.n_name = 'BRAZIL' THEN l_extendedprice * (1 - l_discount) ELSE 0 END)
    / sum(l_extendedprice * (1 - l_discount)) AS mkt_share
FROM part, supplier, lineitem, orders, customer, nation n1, nation n2, region
WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey AND l_orderkey = o_orderkey AND o_custkey = c_custkey
  AND c_nationkey = n1.n_nationkey AND n1.n_regionkey = r_regionkey AND r_name = 'AMERICA'
  AND s_nationkey = n2.n_nationkey AND o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
  AND p_type = 'ECONOMY ANODIZED STEEL'
GROUP BY o_year ORDER BY o_year
"""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        parts = t.part[t.part.p_type == words.code("p_type", "ECONOMY ANODIZED STEEL")]
        regions = t.region[t.region.r_name == words.code("r_name", "AMERICA")]
        nations = t.nation[t.nation.n_regionkey.isin(regions.r_regionkey)]
        customers = t.customer[t.customer.c_nationkey.isin(nations.n_nationkey)]
        orders = t.orders[t.orders.o_orderdate.between(day("1995-01-01"), day("1996-12-31"))]
        orders = orders[orders.o_custkey.isin(customers.c_custkey)]
        lines = t.lineitem[t.lineitem.l_partkey.isin(parts.p_partkey)]
        lines = lines.merge(orders, left_on="l_orderkey", right_on="o_orderkey")
        lines = lines.merge(t.supplier, left_on="l_suppkey", right_on="s_suppkey")
        lines = lines.merge(t.nation, left_on="s_nationkey", right_on="n_nationkey")
        lines["o_year"] = 1995 + (lines.o_orderdate >= day("1996-01-01"))
        lines["all"] = lines.l_extendedprice * (1 - lines.l_discount)
        lines["brazil"] = lines["all"].where(lines.n_name == words.code("n_name", "BRAZIL"), 0)
        sums = lines.groupby("o_year")[["brazil", "all"]].sum()
        return (sums.brazil / sums["all"]).rename("mkt_share").reset_index()

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        american = mgpu.lookup(t.n_regionkey, t.r_regionkey, t.r_name == words.code("r_name", "AMERICA"))
        customer = mgpu.lookup(t.c_nationkey, t.n_nationkey, american)
        supplier = mgpu.lookup(t.s_nationkey, t.n_nationkey, t.n_name == words.code("n_name", "BRAZIL"))
        wanted = mgpu.lookup(t.l_partkey, t.p_partkey, t.p_type == words.code("p_type", "ECONOMY ANODIZED STEEL"))
        lines, count = mgpu.select_indices(wanted, size=wanted.size // 32)
        order = mgpu.sorted_search(t.l_orderkey[lines], t.o_orderkey, needles_count=count)
        date = t.o_orderdate[order]
        keep = (date >= day("1995-01-01")) & (date <= day("1996-12-31"))
        keep &= mgpu.lookup(t.o_custkey[order], t.c_custkey, customer)
        (lines, date), count = mgpu.select((lines, date), keep, count=count)
        revenue = t.l_extendedprice[lines] * (1 - t.l_discount[lines])
        brazil = jnp.where(mgpu.lookup(t.l_suppkey[lines], t.s_suppkey, supplier), revenue, 0)
        year = 1995 + (date >= day("1996-01-01"))
        years, sums, groups = mgpu.group_by(year, {"brazil": brazil, "all": revenue}, size=2, count=count)
        return Answer({"o_year": years, "mkt_share": sums["brazil"] / sums["all"]}, groups)


NEW_YEARS = [day(f"{year}-01-01") for year in range(1993, 1999)]  # orders are from 1992 to 1998


class Q9:
    """Q9: profit from parts with a colour in their name, by nation and year."""

    SQL = """
SELECT n_name, year(o_orderdate) AS o_year,
  sum(l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity) AS sum_profit
FROM part, supplier, lineitem, partsupp, orders, nation
WHERE s_suppkey = l_suppkey AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey AND p_partkey = l_partkey
  AND o_orderkey = l_orderkey AND s_nationkey = n_nationkey AND p_name LIKE '%green%'
GROUP BY n_name, o_year ORDER BY n_name, o_year DESC
"""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        lines = t.lineitem[t.lineitem.l_partkey.isin(t.part.p_partkey[t.part.p_is_green])]
        lines = lines.merge(t.partsupp, left_on=["l_partkey", "l_suppkey"], right_on=["ps_partkey", "ps_suppkey"])
        lines = lines.merge(t.orders[["o_orderkey", "o_orderdate"]], left_on="l_orderkey", right_on="o_orderkey")
        lines = lines.merge(t.supplier, left_on="l_suppkey", right_on="s_suppkey")
        lines = lines.merge(t.nation, left_on="s_nationkey", right_on="n_nationkey")
        lines["sum_profit"] = lines.l_extendedprice * (1 - lines.l_discount) - lines.ps_supplycost * lines.l_quantity
        lines["o_year"] = 1992 + sum((lines.o_orderdate >= first).astype(int) for first in NEW_YEARS)
        sums = lines.groupby(["n_name", "o_year"], as_index=False).sum_profit.sum()
        return sums.sort_values(["n_name", "o_year"], ascending=[True, False])

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        is_green = mgpu.lookup(t.l_partkey, t.p_partkey, t.p_is_green)
        lines, count = mgpu.select_indices(is_green, size=is_green.size // 8)
        part, supplier = t.l_partkey[lines], t.l_suppkey[lines]
        cost = mgpu.lookup((part, supplier), (t.ps_partkey, t.ps_suppkey), t.ps_supplycost, count=count)
        order = mgpu.sorted_search(t.l_orderkey[lines], t.o_orderkey, needles_count=count)
        year = jnp.searchsorted(jnp.array(NEW_YEARS), t.o_orderdate[order], side="right", method="compare_all")
        names = mgpu.lookup(t.s_nationkey, t.n_nationkey, t.n_name)
        nation = mgpu.lookup(supplier, t.s_suppkey, names, count=count)
        profit = t.l_extendedprice[lines] * (1 - t.l_discount[lines]) - cost * t.l_quantity[lines]
        (nations, years), profit, groups = mgpu.group_by((nation, year.astype(jnp.int8)), profit, size=256, count=count)
        columns = {"n_name": nations, "o_year": 1992 + years.astype(jnp.int32), "sum_profit": profit}
        return ordered(columns, ("n_name", "o_year"), (False, True), groups)


class Q10:
    """Q10: the customers who returned most."""

    SQL = """
SELECT c_custkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, c_acctbal, n_name
FROM customer, orders, lineitem, nation
WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND o_orderdate >= DATE '1993-10-01'
  AND o_orderdate < DATE '1994-01-01' AND l_returnflag = 'R' AND c_nationkey = n_nationkey
GROUP BY c_custkey, c_acctbal, n_name ORDER BY revenue DESC LIMIT 20
"""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        orders = t.orders[t.orders.o_orderdate.between(day("1993-10-01"), day("1993-12-31"))]
        lines = t.lineitem[t.lineitem.l_returnflag == words.code("l_returnflag", "R")]
        lines = lines.merge(orders[["o_orderkey", "o_custkey"]], left_on="l_orderkey", right_on="o_orderkey")
        lines["revenue"] = lines.l_extendedprice * (1 - lines.l_discount)
        best = lines.groupby("o_custkey", as_index=False).revenue.sum().nlargest(20, "revenue")
        best = best.merge(t.customer, left_on="o_custkey", right_on="c_custkey")
        best = best.merge(t.nation, left_on="c_nationkey", right_on="n_nationkey")
        return best[["c_custkey", "revenue", "c_acctbal", "n_name"]].sort_values("revenue", ascending=False)

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        in_quarter = (t.o_orderdate >= day("1993-10-01")) & (t.o_orderdate < day("1994-01-01"))
        order = mgpu.sorted_search(t.l_orderkey, t.o_orderkey)  # both are sorted
        returned = (t.l_returnflag == words.code("l_returnflag", "R")) & in_quarter[order]
        lines, count = mgpu.select_indices(returned, size=order.size // 16)
        customer = t.o_custkey[order[lines]]
        revenue = t.l_extendedprice[lines] * (1 - t.l_discount[lines])
        customers, revenue, groups = mgpu.group_by(customer, revenue, size=lines.size // 2, count=count)
        best = mgpu.top_k(revenue, 20, count=groups)
        customers = customers[best.indices]
        nation, balance = mgpu.lookup(customers, t.c_custkey, (t.c_nationkey, t.c_acctbal))
        nation = mgpu.lookup(nation, t.n_nationkey, t.n_name)
        columns = {"c_custkey": customers, "revenue": best.values, "c_acctbal": balance, "n_name": nation}
        return Answer(columns, best.count)


class Q11:
    """Q11: the parts that make up most of the value of Germany's stock."""

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

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        nations = t.nation[t.nation.n_name == words.code("n_name", "GERMANY")]
        suppliers = t.supplier[t.supplier.s_nationkey.isin(nations.n_nationkey)]
        stock = t.partsupp[t.partsupp.ps_suppkey.isin(suppliers.s_suppkey)]
        stock = stock.assign(value=stock.ps_supplycost * stock.ps_availqty)
        sums = stock.groupby("ps_partkey", as_index=False).value.sum()
        sums = sums[sums.value > stock.value.sum() * 0.0001 / words.scale]
        return sums.sort_values(["value", "ps_partkey"], ascending=[False, True])

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        german = mgpu.lookup(t.s_nationkey, t.n_nationkey, t.n_name == words.code("n_name", "GERMANY"))
        german = mgpu.lookup(t.ps_suppkey, t.s_suppkey, german)
        stock, count = mgpu.select_indices(german, size=german.size // 8)
        value = t.ps_supplycost[stock] * t.ps_availqty[stock]
        total = mgpu.reduce(value, count=count)
        parts, value, groups = mgpu.reduce_by_key(t.ps_partkey[stock], value, size=stock.size, count=count)  # sorted
        (parts, value), count = mgpu.select((parts, value), value > total * 0.0001 / words.scale, count=groups)
        return ordered({"ps_partkey": parts, "value": value}, ("value", "ps_partkey"), (True, False), count)


class Q12:
    """Q12: whether cheaper ways to ship delay urgent orders."""

    SQL = """
SELECT l_shipmode,
  sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS high_line_count,
  sum(CASE WHEN o_orderpriority NOT IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS low_line_count
FROM orders, lineitem
WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate
  AND l_shipdate < l_commitdate AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1995-01-01'
GROUP BY l_shipmode ORDER BY l_shipmode
"""

    @staticmethod
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

    @staticmethod
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


MAX_ORDERS = 256  # the most different numbers of orders for which there is room


class Q13:
    """Q13: the distribution of customers by their number of orders."""

    SQL = """
SELECT c_count, count(*) AS custdist
FROM (SELECT c_custkey, count(o_orderkey) AS c_count
  FROM customer LEFT OUTER JOIN orders ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%'
  GROUP BY c_custkey)
GROUP BY c_count ORDER BY custdist DESC, c_count DESC
"""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        orders = t.orders[~t.orders.o_is_special].groupby("o_custkey").size()
        number = orders.reindex(t.customer.c_custkey, fill_value=0)
        found = number.value_counts().rename_axis("c_count").rename("custdist").reset_index()
        return found.sort_values(["custdist", "c_count"], ascending=False)

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        orders = mgpu.select(t.o_custkey, ~t.o_is_special)
        keys, number, groups = mgpu.group_by(
            orders.values, orders.values, "count", size=t.c_custkey.size, count=orders.count
        )
        number = mgpu.lookup(t.c_custkey, keys, number, table_count=groups)
        number, customers, groups = mgpu.group_by(number, number, "count", size=MAX_ORDERS)
        return ordered({"c_count": number, "custdist": customers}, ("custdist", "c_count"), (True, True), groups)


class Q14:
    """Q14: the share of promoted parts in a month's revenue."""

    SQL = """
SELECT 100.0 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount) ELSE 0 END)
  / sum(l_extendedprice * (1 - l_discount)) AS promo_revenue
FROM lineitem, part
WHERE l_partkey = p_partkey AND l_shipdate >= DATE '1995-09-01' AND l_shipdate < DATE '1995-10-01'
"""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        lines = t.lineitem[t.lineitem.l_shipdate.between(day("1995-09-01"), day("1995-09-30"))]
        lines = lines.merge(t.part[["p_partkey", "p_is_promo"]], left_on="l_partkey", right_on="p_partkey")
        revenue = lines.l_extendedprice * (1 - lines.l_discount)
        return 100 * revenue[lines.p_is_promo].sum() / revenue.sum()

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        in_month = (t.l_shipdate >= day("1995-09-01")) & (t.l_shipdate < day("1995-10-01"))
        lines, count = mgpu.select_indices(in_month, size=in_month.size // 32)
        is_promo = mgpu.lookup(t.l_partkey[lines], t.p_partkey, t.p_is_promo, count=count)
        revenue = t.l_extendedprice[lines] * (1 - t.l_discount[lines])
        share = mgpu.reduce(jnp.where(is_promo, revenue, 0), count=count) / mgpu.reduce(revenue, count=count)
        return Answer({"promo_revenue": 100 * share[None]}, 1)


class Q15:
    """Q15: the suppliers with the largest revenue in a quarter."""

    SQL = """
WITH revenue AS (
  SELECT l_suppkey, sum(l_extendedprice * (1 - l_discount))::DECIMAL(38, 4) AS total_revenue FROM lineitem
  WHERE l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-04-01' GROUP BY l_suppkey)
SELECT s_suppkey, s_name, total_revenue FROM supplier, revenue
WHERE s_suppkey = l_suppkey AND total_revenue = (SELECT max(total_revenue) FROM revenue) ORDER BY s_suppkey
"""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        lines = t.lineitem[t.lineitem.l_shipdate.between(day("1996-01-01"), day("1996-03-31"))]
        lines = lines.assign(total_revenue=lines.l_extendedprice * (1 - lines.l_discount))
        sums = lines.groupby("l_suppkey", as_index=False).total_revenue.sum()
        best = sums[sums.total_revenue == sums.total_revenue.max()]
        best = best.merge(t.supplier, left_on="l_suppkey", right_on="s_suppkey").sort_values("s_suppkey")
        return best[["s_suppkey", "s_name", "total_revenue"]]

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        in_quarter = (t.l_shipdate >= day("1996-01-01")) & (t.l_shipdate < day("1996-04-01"))
        lines, count = mgpu.select_indices(in_quarter, size=in_quarter.size // 16)
        revenue = t.l_extendedprice[lines] * (1 - t.l_discount[lines])
        suppliers, revenue, groups = mgpu.group_by(t.l_suppkey[lines], revenue, size=t.s_suppkey.size, count=count)
        (suppliers, revenue), count = mgpu.select(
            (suppliers, revenue), revenue == mgpu.reduce(revenue, "max", count=groups), size=4, count=groups
        )
        names = mgpu.lookup(suppliers, t.s_suppkey, t.s_name)
        return Answer({"s_suppkey": suppliers, "s_name": names, "total_revenue": revenue}, count)


SIZES = [49, 14, 23, 45, 19, 3, 36, 9]


class Q16:
    """Q16: the number of suppliers for parts with given attributes."""

    SQL = """
SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS supplier_cnt FROM partsupp, part
WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%'
  AND p_size IN (49, 14, 23, 45, 19, 3, 36, 9)
  AND ps_suppkey NOT IN (SELECT s_suppkey FROM supplier WHERE s_comment LIKE '%Customer%Complaints%')
GROUP BY p_brand, p_type, p_size ORDER BY supplier_cnt DESC, p_brand, p_type, p_size
"""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        parts = t.part[
            (t.part.p_brand != words.code("p_brand", "Brand#45"))
            & ~t.part.p_is_medium_polished
            & t.part.p_size.isin(SIZES)
        ]
        offers = t.partsupp.merge(parts, left_on="ps_partkey", right_on="p_partkey")
        offers = offers[~offers.ps_suppkey.isin(t.supplier.s_suppkey[t.supplier.s_has_complaints])]
        found = (
            offers.groupby(["p_brand", "p_type", "p_size"]).ps_suppkey.nunique().rename("supplier_cnt").reset_index()
        )
        return found.sort_values(["supplier_cnt", "p_brand", "p_type", "p_size"], ascending=[False, True, True, True])

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        wanted = (t.p_brand != words.code("p_brand", "Brand#45")) & ~t.p_is_medium_polished
        wanted &= jnp.isin(t.p_size, jnp.array(SIZES, t.p_size.dtype), method="compare_all")
        part = mgpu.sorted_search(t.ps_partkey, t.p_partkey)  # both are sorted
        offers, count = mgpu.select_indices(wanted[part], size=part.size // 4)
        part, supplier = part[offers], t.ps_suppkey[offers]
        fine = ~mgpu.lookup(supplier, t.s_suppkey, t.s_has_complaints, count=count)
        (part, supplier), count = mgpu.select((part, supplier), fine, count=count)
        keys = (t.p_brand[part], t.p_type[part], t.p_size[part])
        (brand, type_, size), number, groups = mgpu.group_by(
            keys, supplier, "nunique", size=part.size // 2, count=count
        )
        columns = {"p_brand": brand, "p_type": type_, "p_size": size, "supplier_cnt": number}
        return ordered(columns, ("supplier_cnt", "p_brand", "p_type", "p_size"), (True, False, False, False), groups)


class Q17:
    """Q17: the yearly revenue of small orders of some parts."""

    SQL = """
SELECT coalesce(sum(l_extendedprice), 0) / 7.0 AS avg_yearly FROM lineitem, part
WHERE p_partkey = l_partkey AND p_brand = 'Brand#23' AND p_container = 'MED BOX'
  AND l_quantity < (SELECT 0.2 * avg(l_quantity) FROM lineitem WHERE l_partkey = p_partkey)
"""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        parts = t.part[
            (t.part.p_brand == words.code("p_brand", "Brand#23"))
            & (t.part.p_container == words.code("p_container", "MED BOX"))
        ]
        lines = t.lineitem[t.lineitem.l_partkey.isin(parts.p_partkey)]
        small = lines.l_quantity < 0.2 * lines.groupby("l_partkey").l_quantity.transform("mean")
        return lines.l_extendedprice[small].sum() / 7

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        wanted = t.p_brand == words.code("p_brand", "Brand#23")
        wanted &= t.p_container == words.code("p_container", "MED BOX")
        lines, count = mgpu.select_indices(mgpu.lookup(t.l_partkey, t.p_partkey, wanted), size=t.l_partkey.size // 128)
        part, quantity = t.l_partkey[lines], t.l_quantity[lines]
        parts, mean, groups = mgpu.group_by(part, quantity, "mean", size=lines.size, count=count)
        small = quantity < 0.2 * mgpu.lookup(part, parts, mean, table_count=groups)
        total = mgpu.reduce(jnp.where(small, t.l_extendedprice[lines], 0), count=count)
        return Answer({"avg_yearly": total[None] / 7}, 1)


class Q18:
    """Q18: the customers of the largest orders."""

    SQL = """
SELECT c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS sum_qty
FROM customer, orders, lineitem
WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 300)
  AND c_custkey = o_custkey AND o_orderkey = l_orderkey
GROUP BY c_custkey, o_orderkey, o_orderdate, o_totalprice ORDER BY o_totalprice DESC, o_orderdate LIMIT 100
"""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        sums = t.lineitem.groupby("l_orderkey", as_index=False).l_quantity.sum()
        sums = sums[sums.l_quantity > 300].rename(columns={"l_quantity": "sum_qty"})
        orders = t.orders.merge(sums, left_on="o_orderkey", right_on="l_orderkey")
        orders = orders.merge(t.customer[["c_custkey"]], left_on="o_custkey", right_on="c_custkey")
        orders = orders.sort_values(["o_totalprice", "o_orderdate"], ascending=[False, True]).head(100)
        return orders[["c_custkey", "o_orderkey", "o_orderdate", "o_totalprice", "sum_qty"]]

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        lines = mgpu.sorted_search(t.o_orderkey, t.l_orderkey)  # where the lines of each order begin: both are sorted
        quantity = mgpu.segmented_reduce(t.l_quantity, lines)
        orders, count = mgpu.select_indices(quantity > 300, size=1024)
        columns = {
            "c_custkey": t.o_custkey[orders],
            "o_orderkey": t.o_orderkey[orders],
            "o_orderdate": t.o_orderdate[orders],
            "o_totalprice": t.o_totalprice[orders],
            "sum_qty": quantity[orders],
        }
        return ordered(columns, ("o_totalprice", "o_orderdate"), (True, False), count, 100)


KINDS = [  # brand, containers, smallest and largest quantity, largest size
    ("Brand#12", ("SM CASE", "SM BOX", "SM PACK", "SM PKG"), 1, 11, 5),
    ("Brand#23", ("MED BAG", "MED BOX", "MED PKG", "MED PACK"), 10, 20, 10),
    ("Brand#34", ("LG CASE", "LG BOX", "LG PACK", "LG PKG"), 20, 30, 15),
]


class Q19:
    """Q19: revenue of parts of three kinds, delivered in person by air."""

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

    @staticmethod
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

    @staticmethod
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


class Q20:
    """Q20: Canadian suppliers with more of some parts than half a year's sales."""

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

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        stock = t.partsupp[t.partsupp.ps_partkey.isin(t.part.p_partkey[t.part.p_is_forest])]
        lines = t.lineitem[t.lineitem.l_shipdate.between(day("1994-01-01"), day("1994-12-31"))]
        lines = lines.merge(stock, left_on=["l_partkey", "l_suppkey"], right_on=["ps_partkey", "ps_suppkey"])
        sold = lines.groupby(["ps_partkey", "ps_suppkey", "ps_availqty"], as_index=False).l_quantity.sum()
        enough = sold.ps_suppkey[sold.ps_availqty > 0.5 * sold.l_quantity]
        nations = t.nation[t.nation.n_name == words.code("n_name", "CANADA")]
        found = t.supplier[t.supplier.s_nationkey.isin(nations.n_nationkey) & t.supplier.s_suppkey.isin(enough)]
        return found[["s_name"]].sort_values("s_name")

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        in_year = (t.l_shipdate >= day("1994-01-01")) & (t.l_shipdate < day("1995-01-01"))
        is_forest = mgpu.lookup(t.l_partkey, t.p_partkey, t.p_is_forest)
        lines, count = mgpu.select_indices(in_year & is_forest, size=in_year.size // 64)
        keys = (t.l_partkey[lines], t.l_suppkey[lines])
        (parts, suppliers), sold, groups = mgpu.group_by(keys, t.l_quantity[lines], size=lines.size, count=count)
        stock = mgpu.lookup((parts, suppliers), (t.ps_partkey, t.ps_suppkey), t.ps_availqty, count=groups)
        enough = mgpu.select(suppliers, stock > 0.5 * sold, count=groups)
        canadian = mgpu.lookup(t.s_nationkey, t.n_nationkey, t.n_name == words.code("n_name", "CANADA"))
        delivers = mgpu.lookup(
            t.s_suppkey, enough.values, jnp.ones(enough.values.shape, bool), table_count=enough.count
        )
        names = mgpu.select(t.s_name, canadian & delivers)
        return ordered({"s_name": names.values}, ("s_name",), (False,), names.count)


class Q21:
    """Q21: Saudi suppliers who were the only one to keep an order waiting."""

    SQL = """
SELECT s_name, count(*) AS numwait FROM supplier, lineitem l1, orders, nation
WHERE s_suppkey = l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F'
  AND l1.l_receiptdate > l1.l_commitdate
  AND EXISTS (SELECT * FROM lineitem l2 WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey)
  AND NOT EXISTS (SELECT * FROM lineitem l3 WHERE l3.l_orderkey = l1.l_orderkey AND l3.l_suppkey <> l1.l_suppkey
    AND l3.l_receiptdate > l3.l_commitdate)
  AND s_nationkey = n_nationkey AND n_name = 'SAUDI ARABIA'
GROUP BY s_name ORDER BY numwait DESC, s_name LIMIT 100
"""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        late = t.lineitem[t.lineitem.l_receiptdate > t.lineitem.l_commitdate]
        several = t.lineitem.groupby("l_orderkey").l_suppkey.nunique()
        alone = late.groupby("l_orderkey").l_suppkey.nunique()
        late = late[late.l_orderkey.isin(several.index[several > 1]) & late.l_orderkey.isin(alone.index[alone == 1])]
        orders = t.orders.o_orderkey[t.orders.o_orderstatus == words.code("o_orderstatus", "F")]
        nations = t.nation[t.nation.n_name == words.code("n_name", "SAUDI ARABIA")]
        suppliers = t.supplier[t.supplier.s_nationkey.isin(nations.n_nationkey)]
        late = late[late.l_orderkey.isin(orders)].merge(suppliers, left_on="l_suppkey", right_on="s_suppkey")
        found = late.groupby("s_name").size().rename("numwait").reset_index()
        return found.sort_values(["numwait", "s_name"], ascending=[False, True]).head(100)

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        saudi = mgpu.lookup(t.s_nationkey, t.n_nationkey, t.n_name == words.code("n_name", "SAUDI ARABIA"))
        lines = mgpu.sorted_search(t.o_orderkey, t.l_orderkey)  # where the lines of each order begin: both are sorted
        late = t.l_receiptdate > t.l_commitdate
        # Only one supplier is late if the smallest and the largest late one are the same.
        limits = jnp.iinfo(t.l_suppkey.dtype)
        first = mgpu.segmented_reduce(jnp.where(late, t.l_suppkey, limits.max), lines, "min")
        last = mgpu.segmented_reduce(jnp.where(late, t.l_suppkey, limits.min), lines, "max")
        lowest, highest = (mgpu.segmented_reduce(t.l_suppkey, lines, op) for op in ("min", "max"))
        waits = (t.o_orderstatus == words.code("o_orderstatus", "F")) & (first == last) & (lowest < highest)
        order = mgpu.sorted_search(t.l_orderkey, t.o_orderkey)
        waiting = mgpu.select(t.l_suppkey, waits[order] & late, size=late.size // 4)
        supplier = mgpu.lookup(waiting.values, t.s_suppkey, jnp.arange(saudi.size), count=waiting.count)
        kept = mgpu.select(t.s_name[supplier], saudi[supplier], size=late.size // 32, count=waiting.count)
        names, number, groups = mgpu.group_by(kept.values, kept.values, "count", size=saudi.size, count=kept.count)
        return ordered({"s_name": names, "numwait": number}, ("numwait", "s_name"), (True, False), groups, 100)


COUNTRIES = [13, 31, 23, 29, 30, 18, 17]


class Q22:
    """Q22: customers with money but without orders, by the country of their telephone."""

    SQL = """
SELECT cntrycode, count(*) AS numcust, sum(c_acctbal) AS totacctbal
FROM (SELECT substring(c_phone FROM 1 FOR 2)::INTEGER AS cntrycode, c_acctbal, c_custkey FROM customer
  WHERE substring(c_phone FROM 1 FOR 2) IN ('13', '31', '23', '29', '30', '18', '17') AND c_acctbal > (
    SELECT avg(c_acctbal) FROM customer WHERE c_acctbal > 0.00
      AND substring(c_phone FROM 1 FOR 2) IN ('13', '31', '23', '29', '30', '18', '17')))
WHERE NOT EXISTS (SELECT * FROM orders WHERE o_custkey = c_custkey)
GROUP BY cntrycode ORDER BY cntrycode
"""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        customers = t.customer[t.customer.c_country.isin(COUNTRIES)]
        mean = customers.c_acctbal[customers.c_acctbal > 0].mean()
        customers = customers[(customers.c_acctbal > mean) & ~customers.c_custkey.isin(t.orders.o_custkey)]
        found = customers.groupby("c_country", as_index=False).agg(
            numcust=("c_custkey", "size"), totacctbal=("c_acctbal", "sum")
        )
        return found.rename(columns={"c_country": "cntrycode"})

    @staticmethod
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


QUERIES: dict[str, Any] = {f"Q{i}": globals()[f"Q{i}"] for i in range(1, 23)}
