"""The tables of TPC-H, made by tpchgen-cli. DuckDB reads them: strings become codes, dates days, money float64.

JAX cannot evaluate LIKE, so pandas makes a column of bools per pattern.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sysconfig
import types
from typing import Any

import numpy as np

from benchmarks.queries.columns import factorize

__all__ = ["Words", "connect", "generate", "load"]

# For each table: the columns of numbers (decimals become float64, others int32), of strings, and of dates.
NUMBERS = {
    "region": "r_regionkey",
    "nation": "n_nationkey n_regionkey",
    "supplier": "s_suppkey s_nationkey s_acctbal",
    "customer": "c_custkey c_nationkey c_acctbal",
    "part": "p_partkey p_size",
    "partsupp": "ps_partkey ps_suppkey ps_availqty ps_supplycost",
    "orders": "o_orderkey o_custkey o_totalprice o_shippriority",
    "lineitem": "l_orderkey l_partkey l_suppkey l_quantity l_extendedprice l_discount l_tax",
}
STRINGS = {
    "region": "r_name",
    "nation": "n_name",
    "supplier": "s_name",
    "customer": "c_mktsegment",
    "part": "p_mfgr p_brand p_type p_container",
    "orders": "o_orderstatus o_orderpriority",
    "lineitem": "l_returnflag l_linestatus l_shipinstruct l_shipmode",
}
DATES = {"orders": "o_orderdate", "lineitem": "l_shipdate l_commitdate l_receiptdate"}
# For each column of bools: the column of strings that is searched, and the regular expression.
PATTERNS = {
    "part": {
        "p_is_brass": ("p_type", "BRASS$"),
        "p_is_green": ("p_name", "green"),
        "p_is_promo": ("p_type", "^PROMO"),
        "p_is_medium_polished": ("p_type", "^MEDIUM POLISHED"),
        "p_is_forest": ("p_name", "^forest"),
    },
    "orders": {"o_is_special": ("o_comment", "special.*requests")},
    "supplier": {"s_has_complaints": ("s_comment", "Customer.*Complaints")},
}
IN_ORDER = ["o_orderkey", "l_orderkey", "p_partkey", "ps_partkey"]  # the queries rely on the order of these columns


class Words:
    """The scale of the tables, and the words of codes."""

    def __init__(self, scale: float, words: dict[str, np.ndarray]):
        self.scale, self.words = scale, words

    def code(self, column: str, word: str) -> int:
        place = int(np.searchsorted(self.words[column], word))
        assert self.words[column][place] == word, f"no {word} in {column}"
        return place


def generate(scale: float, folder: pathlib.Path) -> None:
    """Makes missing Parquet files."""
    if all((folder / f"{name}.parquet").exists() for name in NUMBERS):
        return
    program = pathlib.Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
    found = str(program) if program.exists() else shutil.which("tpchgen-cli")
    if found is None:
        raise ModuleNotFoundError("tpchgen-cli")
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([found, "parquet", f"--scale-factor={scale}", f"--output-dir={folder}"], check=True)


def connect(folder: pathlib.Path) -> Any:
    """Returns a connection with the tables in memory."""
    import duckdb  # noqa: PLC0415

    connection = duckdb.connect()
    for name in NUMBERS:
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM '{folder / name}.parquet'")
    return connection


def load(connection: Any, scale: float) -> tuple[types.SimpleNamespace, Words]:
    """Returns pandas frames of numbers, and the words of codes."""
    frames, words = {}, {}
    for name in NUMBERS:
        frames[name], found = _frame(connection, name)
        words.update(found)
    tables = types.SimpleNamespace(**frames)
    for column in IN_ORDER:
        table = next(frame for frame in frames.values() if column in frame)
        assert table[column].is_monotonic_increasing
    return tables, Words(scale, words)


def _frame(connection: Any, name: str) -> tuple[Any, dict[str, np.ndarray]]:
    patterns, strings = PATTERNS.get(name, {}), STRINGS.get(name, "").split()
    searched = {column for column, _ in patterns.values()}
    types_of = dict(connection.execute(f"SELECT column_name, column_type FROM (DESCRIBE {name})").fetchall())
    read = [f"{x}::{_number_type(types_of[x])} AS {x}" for x in NUMBERS[name].split()]
    read += [f"({x} - DATE '1970-01-01')::INTEGER AS {x}" for x in DATES.get(name, "").split()]
    read += ["substring(c_phone, 1, 2)::INTEGER AS c_country"] if name == "customer" else []
    frame = connection.execute(f"SELECT {', '.join([*read, *strings, *(searched - {*strings})])} FROM {name}").df()
    for column, (text, pattern) in patterns.items():
        frame[column] = frame[text].str.contains(pattern).to_numpy(bool)
    words = {}
    for column in strings:
        (frame[column],), words[column] = factorize(frame[column])
    return frame.drop(columns=searched - {*strings}), words


def _number_type(of_column: str) -> str:
    return "DOUBLE" if of_column.startswith("DECIMAL") else "INTEGER"
