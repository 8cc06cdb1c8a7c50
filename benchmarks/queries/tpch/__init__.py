"""TPC-H Q1 to Q22: one module per query, with its SQL, its pandas and its JAX."""

from __future__ import annotations

import importlib
import types

__all__ = ["QUERIES"]

QUERIES: dict[str, types.ModuleType] = {
    f"Q{i}": importlib.import_module(f"benchmarks.queries.tpch.q{i:02}") for i in range(1, 23)
}
