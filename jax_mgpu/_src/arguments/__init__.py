"""Checks and conversions of public functions' arguments: types, shapes, counts, values, rows."""
