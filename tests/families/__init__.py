"""Examples of each public function for the tests, one module per family, found automatically.

A family's module has tables by the names of its functions. The generic tests run them all, and fail for a function that
is in none:

- `EXAMPLES`: valid calls, for the tests of all transformations. A name may go on behind a comma.
- `GARBAGE`: a call of any values over many items.
- `BROKEN`: each precondition broken, by "operation: argument". `WITHOUT_PRECONDITIONS` has the functions without any.
- `LARGE`: a call over as many items as no 32-bit number counts; `LARGE_WITH_INDICES` has those that need 64-bit types.
- `DRAWN`: drawn calls with their oracles, by the name that the randomised tester gives them.
- `ARGUMENTS`: what kind of misuse an argument takes, where its name does not say it.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

# Public functions without arrays, and `align`, which works only over a mesh axis.
INFORMATION = {"align", "backends", "checks", "explain", "export_checks", "has_cuda"}
MODULES = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]


def collected(table: str) -> dict[str, Any]:
    """The entries of all families; their names are distinct."""
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
