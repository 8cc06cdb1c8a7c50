"""Examples of each public function for the generic tests, one module per family, found automatically.

A module may have these tables, by name of a function; a comma and more words may follow the name:

- `EXAMPLES`: valid calls, for the tests of all transformations.
- `GARBAGE`: a call with arbitrary values over many items.
- `BROKEN`: calls that break each precondition, by "operation: argument". `WITHOUT_PRECONDITIONS` names the functions
  that have none.
- `LARGE`: a call over more items than a 32-bit number counts; `LARGE_WITH_INDICES` has those that need 64-bit types.
- `DRAWN`: random calls with their oracles, for the randomised tester.
- `ARGUMENTS`: the kind of misuse of an argument, if its name does not imply it.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

# Public functions without examples: `align` works only over a mesh axis, and the others are no operations.
INFORMATION = {"align", "backends", "checks", "explain", "export_checks", "has_cuda"}
MODULES = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]


def collected(table: str) -> dict[str, Any]:
    tables = [getattr(module, table, {}) for module in MODULES]
    together = {name: entry for part in tables for name, entry in part.items()}
    assert len(together) == sum(map(len, tables)), table
    return together


EXAMPLES = collected("EXAMPLES")
GARBAGE = collected("GARBAGE")
BROKEN = collected("BROKEN")
LARGE = collected("LARGE")
LARGE_WITH_INDICES = collected("LARGE_WITH_INDICES")
DRAWN = collected("DRAWN")
ARGUMENTS = collected("ARGUMENTS")
WITHOUT_PRECONDITIONS = {name for module in MODULES for name in getattr(module, "WITHOUT_PRECONDITIONS", ())}
