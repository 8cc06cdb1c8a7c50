"""Operators and comparators: by name, or functions of callers, which `emit` writes as data for the kernels."""
