"""Operators and comparators: named ones, and functions of callers, which `emit` writes as data for kernels."""
