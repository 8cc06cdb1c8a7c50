"""Operators and comparators: built-in ones, or functions of callers, which `emit` writes as data for the kernels."""
