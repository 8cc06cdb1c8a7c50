"""Whole queries, each a jitted function, compared with DuckDB or pandas."""

from __future__ import annotations

import jax
import numpy as np
import pandas as pd
import pytest

from benchmarks.queries import flights, run, tables
from benchmarks.queries.columns import factorize
from benchmarks.queries.tpch import QUERIES

SCALE = 0.01  # a table of 60,000 lines
QUICK = ["Q1", "Q3", "Q6", "Q12", "Q18"]


@pytest.fixture(scope="module")
def tpch(tmp_path_factory):
    """Returns a DuckDB connection, the frames, the words behind codes, and the columns as arrays."""
    pytest.importorskip("duckdb")
    folder = tmp_path_factory.mktemp("tpch")
    try:
        tables.generate(SCALE, folder)
    except ModuleNotFoundError as error:
        pytest.skip(f"the package that makes the tables is missing: {error}")
    connection = tables.connect(folder)
    frames, words = tables.load(connection, SCALE)
    with jax.enable_x64(True):
        return connection, frames, words, run.arrays(frames)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in QUERIES]
)
def test_tpch(tpch, name):
    connection, frames, words, columns = tpch
    query = QUERIES[name]
    with jax.enable_x64(True):
        found = run.rows(run.compiled(query.query, words)(columns))
    run.expect_same(found, connection.execute(query.SQL.replace("{scale}", str(SCALE))).df(), words.words)
    needed = run.named(frames, query.in_pandas)
    run.expect_same(found, query.in_pandas(needed, words), words.words)


@pytest.fixture(scope="module")
def new_york():
    """Returns the frames, the words behind codes, and the columns as arrays."""
    frames, words = flights.load()
    with jax.enable_x64(True):
        return frames, words, run.arrays(frames)


@pytest.mark.parametrize(
    "name", [name if name in ("F6", "F9") else pytest.param(name, marks=pytest.mark.long) for name in flights.QUERIES]
)
def test_flights(new_york, name):
    frames, words, columns = new_york
    query = flights.QUERIES[name]
    with jax.enable_x64(True):
        found = run.rows(run.compiled(query.query, words)(columns))
    run.expect_same(found, query.in_pandas(frames, words), words.words)


def arrow(words):
    return pytest.importorskip("pyarrow").array(words)


def categories(words):
    """Returns words as categories in order of occurrence, which is not alphabetical."""
    return pd.Series(pd.Categorical(words, categories=[*dict.fromkeys(words)]))


@pytest.mark.parametrize("kind", [np.array, pd.Series, categories, arrow])
def test_codes_keep_the_order(kind):
    a, b = ["oak", "fir", "", "ash"], ["yew", "fir"]
    (a_codes, b_codes), words = factorize(kind(a), kind(b))
    assert words.tolist() == sorted({*a, *b})
    assert words[a_codes].tolist() == a
    assert words[b_codes].tolist() == b
    assert a_codes.dtype == np.int8


def test_codes_of_missing_words_and_of_many_words():
    (codes,), words = factorize(pd.Series(["b", None, "a"]))
    assert codes.tolist() == [1, -1, 0]
    assert words.tolist() == ["a", "b"]
    many = np.arange(1000).astype(str)
    (codes,), words = factorize(many)
    assert codes.dtype == np.int16
    assert words[codes].tolist() == many.tolist()
    (codes,), words = factorize(np.array([], str))
    assert codes.size == words.size == 0
