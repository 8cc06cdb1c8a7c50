"""Ten questions about the flights out of New York in 2013: one module per question, with its pandas and its JAX."""

from __future__ import annotations

import importlib
import types

from benchmarks.queries.flights.tables import load

__all__ = ["QUERIES", "load"]

QUERIES: dict[str, types.ModuleType] = {
    f"F{i}": importlib.import_module(f"benchmarks.queries.flights.f{i:02}") for i in range(1, 11)
}
