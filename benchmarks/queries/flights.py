"""Ten questions about the flights out of New York in 2013.

Strings are codes, keys are narrow integers, missing values are NaN or -1. Columns of the weather begin with w_, those
of planes with p_.
"""

from __future__ import annotations

import types
from typing import Any

import jax.numpy as jnp

import jax_mgpu as mgpu
from benchmarks.flights import read
from benchmarks.queries.columns import Answer, factorize, ordered

__all__ = ["QUERIES", "load"]

HOUR = ["month", "day", "hour", "origin"]
OLDEST = 25  # age in years
STEP, MOST = 10, 120  # minutes: the width of a bin of delays, and where the last one begins
FLIGHTS = [*HOUR, "dep_time", "dep_delay", "arr_delay", "carrier", "tailnum", "dest", "distance"]


class Words:
    def __init__(self, words: dict[str, Any]):
        self.words = words

    def code(self, column: str, word: str) -> int:
        return self.words[column].tolist().index(word)


def load() -> tuple[types.SimpleNamespace, Words]:
    """Returns pandas frames of numbers, and the words of their codes."""
    flights = read("flights", FLIGHTS)
    weather = read("weather", [*HOUR, "visib"])
    planes = read("planes", ["tailnum", "year"])
    words = {}
    for name, others in (("origin", [weather]), ("tailnum", [planes]), ("carrier", []), ("dest", [])):
        tables = [flights, *others]
        codes, words[name] = factorize(*(table[name] for table in tables))
        for table, column in zip(tables, codes, strict=True):
            table[name] = column
    for table in (flights, weather):
        for name in ("month", "day", "hour"):
            table[name] = table[name].astype("int8")
    weather = weather.drop_duplicates(HOUR)  # one hour occurs twice at the end of summer time
    return types.SimpleNamespace(
        flights=flights, weather=weather.add_prefix("w_"), planes=planes.add_prefix("p_")
    ), Words(words)


class F1:
    """F1: the flights of one day, the latest departures first."""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        day = t.flights[(t.flights.month == 1) & (t.flights.day == 1) & t.flights.dep_delay.notna()]
        return day.sort_values("dep_delay", ascending=False, kind="stable")[["dep_delay", "carrier", "dest"]]

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        keep = (t.month == 1) & (t.day == 1) & ~jnp.isnan(t.dep_delay)
        columns = {"dep_delay": t.dep_delay, "carrier": t.carrier, "dest": t.dest}
        day = mgpu.select(columns, keep, size=2048)
        return ordered(day.values, ("dep_delay",), (True,), day.count)


class F2:
    """F2: the number of flights and the mean delay of each day."""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        departed = t.flights[t.flights.dep_delay.notna()]
        return departed.groupby(["month", "day"], as_index=False).agg(
            flights=("dep_delay", "size"), delay=("dep_delay", "mean"), worst=("dep_delay", "max")
        )

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        departed = mgpu.select((t.month, t.day, t.dep_delay), ~jnp.isnan(t.dep_delay))
        month, day, delay = departed.values
        values, ops = (
            {"flights": delay, "delay": delay, "worst": delay},
            {"flights": "count", "delay": "mean", "worst": "max"},
        )
        (month, day), found, groups = mgpu.group_by((month, day), values, ops, size=366, count=departed.count)
        return Answer({"month": month, "day": day, **found}, groups)


class F3:
    """F3: the mean distance and delay of flights to each destination, and how many carriers fly there."""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        arrived = t.flights[t.flights.arr_delay.notna() & (t.flights.dest != words.code("dest", "HNL"))]
        found = arrived.groupby("dest", as_index=False).agg(
            flights=("dest", "size"),
            distance=("distance", "mean"),
            delay=("arr_delay", "mean"),
            carriers=("carrier", "nunique"),
        )
        return found[found.flights > 20]

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        keep = ~jnp.isnan(t.arr_delay) & (t.dest != words.code("dest", "HNL"))
        (dest, distance, delay, carrier), count = mgpu.select((t.dest, t.distance, t.arr_delay, t.carrier), keep)
        dests, found, groups = mgpu.group_by(
            dest,
            {"flights": dest, "distance": distance.astype(delay.dtype), "delay": delay, "carriers": carrier},
            {"flights": "count", "distance": "mean", "delay": "mean", "carriers": "nunique"},
            size=128,
            count=count,
        )
        return Answer(*mgpu.select({"dest": dests, **found}, found["flights"] > 20, count=groups))


class F4:
    """F4: the ten planes with the largest mean delay, among those with more than 25 flights."""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        arrived = t.flights[t.flights.arr_delay.notna() & (t.flights.tailnum >= 0)]
        found = arrived.groupby("tailnum", as_index=False).agg(
            flights=("tailnum", "size"), delay=("arr_delay", "mean"), median=("arr_delay", "median")
        )
        return found[found.flights > 25].sort_values("delay", ascending=False, kind="stable").head(10)

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        (plane, delay), count = mgpu.select((t.tailnum, t.arr_delay), ~jnp.isnan(t.arr_delay) & (t.tailnum >= 0))
        values, ops = (
            {"flights": plane, "delay": delay, "median": delay},
            {"flights": "count", "delay": "mean", "median": "median"},
        )
        planes, found, groups = mgpu.group_by(plane, values, ops, size=8192, count=count)
        frequent = mgpu.select({"tailnum": planes, **found}, found["flights"] > 25, count=groups)
        return ordered(frequent.values, ("delay",), (True,), frequent.count, 10)


class F5:
    """F5: flights of planes that the table of planes lacks, by carrier."""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        unknown = t.flights[~t.flights.tailnum.isin(t.planes.p_tailnum)]
        found = unknown.groupby("carrier", as_index=False).agg(flights=("carrier", "size"))
        return found.sort_values("flights", ascending=False, kind="stable")

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        unknown = mgpu.join(t.tailnum, t.p_tailnum, "anti", size=t.tailnum.size, assume_sorted=False)
        carrier = t.carrier[unknown.a_indices]
        carriers, flights, groups = mgpu.group_by(carrier, carrier, "count", size=16, count=unknown.count)
        return ordered({"carrier": carriers, "flights": flights}, ("flights",), (True,), groups)


class F6:
    """F6: the three latest arrivals of each day."""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        by_day = t.flights.groupby(["month", "day"]).arr_delay
        worst = t.flights[by_day.rank(method="min", ascending=False) <= 3]
        return worst[["month", "day", "tailnum", "arr_delay"]].sort_values(["month", "day"], kind="stable")

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        order = mgpu.argsort((t.month, t.day))
        month, day, tailnum, delay = (x[order] for x in (t.month, t.day, t.tailnum, t.arr_delay))
        days = mgpu.run_starts(month.astype(jnp.int16) * 32 + day, size=366).starts
        rank = mgpu.rank(jnp.where(jnp.isnan(delay), -jnp.inf, delay), days, descending=True)
        columns = {"month": month, "day": day, "tailnum": tailnum, "arr_delay": delay}
        return Answer(*mgpu.select(columns, rank <= 3, size=2048))


class F7:
    """F7: the flights with the largest shares of the delay of all flights to their destination."""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        popular = t.flights[t.flights.groupby("dest").dest.transform("size") > 365]
        late = popular[popular.arr_delay > 0]
        late = late.assign(share=late.arr_delay / late.groupby("dest").arr_delay.transform("sum"))
        best = late.sort_values(["share", "dest"], ascending=[False, True], kind="stable").head(20)
        return best[["month", "day", "dest", "arr_delay", "share"]]

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        dests, flights, groups = mgpu.group_by(t.dest, t.dest, "count", size=128)
        popular = mgpu.lookup(t.dest, dests, flights, table_count=groups) > 365
        columns = {"month": t.month, "day": t.day, "dest": t.dest, "arr_delay": t.arr_delay}
        late, count = mgpu.select(columns, popular & (t.arr_delay > 0))
        dests, total, groups = mgpu.group_by(late["dest"], late["arr_delay"], size=128, count=count)
        share = late["arr_delay"] / mgpu.lookup(late["dest"], dests, total, default=1, table_count=groups)
        return ordered({**late, "share": share}, ("share", "dest"), (True, False), count, 20)


class F8:
    """F8: the mean delay by the age of the plane."""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        known = t.flights[t.flights.dep_delay.notna()].merge(t.planes.dropna(), left_on="tailnum", right_on="p_tailnum")
        known["age"] = (2013 - known.p_year).clip(upper=OLDEST)
        return known.groupby("age", as_index=False).agg(flights=("age", "size"), delay=("dep_delay", "mean"))

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        year = mgpu.lookup(t.tailnum, t.p_tailnum, t.p_year, default=jnp.nan)
        (year, delay), count = mgpu.select((year, t.dep_delay), ~jnp.isnan(year) & ~jnp.isnan(t.dep_delay))
        age = jnp.minimum(2013 - year, OLDEST).astype(jnp.int8)
        values, ops = {"flights": age, "delay": delay}, {"flights": "count", "delay": "mean"}
        ages, found, groups = mgpu.group_by(age, values, ops, size=OLDEST + 1, count=count)
        return Answer({"age": ages, **found}, groups)


class F9:
    """F9: the mean delay by visibility in the hour of departure."""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        departed = t.flights[t.flights.dep_delay.notna()]
        known = departed.merge(t.weather, left_on=HOUR, right_on=[f"w_{name}" for name in HOUR])
        known["miles"] = known.w_visib.round()
        return known.groupby("miles", as_index=False).agg(flights=("miles", "size"), delay=("dep_delay", "mean"))

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        hour, table = (t.month, t.day, t.hour, t.origin), (t.w_month, t.w_day, t.w_hour, t.w_origin)
        miles = mgpu.lookup(hour, table, jnp.round(t.w_visib), default=jnp.nan)
        (miles, delay), count = mgpu.select((miles, t.dep_delay), ~jnp.isnan(miles) & ~jnp.isnan(t.dep_delay))
        values, ops = {"flights": miles, "delay": delay}, {"flights": "count", "delay": "mean"}
        seen, found, groups = mgpu.group_by(miles, values, ops, size=16, count=count)
        return Answer({"miles": seen, **found}, groups)


class F10:
    """F10: the mean delay by the delay of the previous flight from the same airport."""

    @staticmethod
    def in_pandas(t: Any, words: Any) -> Any:
        departed = t.flights[t.flights.dep_delay.notna()]
        departed = departed.sort_values(["origin", "month", "day", "dep_time"], kind="stable")
        before = departed.groupby("origin").dep_delay.shift(1)
        departed = departed.assign(before=before.clip(upper=MOST) // STEP).dropna(subset="before")
        return departed.groupby("before", as_index=False).agg(flights=("before", "size"), delay=("dep_delay", "mean"))

    @staticmethod
    def query(t: Any, words: Any) -> Answer:
        columns = (t.origin, t.month, t.day, t.dep_time.astype(jnp.int16), t.dep_delay)
        (*keys, delay), count = mgpu.select(columns, ~jnp.isnan(t.dep_delay))
        (origin, *_), delay = mgpu.sort(tuple(keys), delay, count=count)
        airports = mgpu.run_starts(origin, size=3, count=count).starts
        before = mgpu.segmented_shift(delay, airports, 1, fill_value=jnp.nan, count=count)
        (before, delay), count = mgpu.select((before, delay), ~jnp.isnan(before), count=count)
        before = jnp.floor(jnp.minimum(before, MOST) / STEP)
        values, ops = {"flights": before, "delay": delay}, {"flights": "count", "delay": "mean"}
        found_before, found, groups = mgpu.group_by(before, values, ops, size=32, count=count)
        return Answer({"before": found_before, **found}, groups)


QUERIES: dict[str, Any] = {f"F{i}": globals()[f"F{i}"] for i in range(1, 11)}
