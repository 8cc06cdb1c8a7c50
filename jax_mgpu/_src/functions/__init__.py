"""Operators and comparators: named ones, and functions of callers."""
