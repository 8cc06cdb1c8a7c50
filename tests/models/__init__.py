"""Twelve models in two forms: `ours` with jax_mgpu, and `plain` in the usual plain JAX.

Each module is a model. `inputs(rng, n)` makes inputs of about n items. With `GRADIENT`, the derivative in that argument
is compared and timed too. `compare`, if present, compares the results.

python -m tests.models          # lines and times of both forms, on this device
"""

from __future__ import annotations

import importlib
import inspect
import io
import pathlib
import tokenize
from types import ModuleType

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu

NAMES = sorted(path.stem for path in pathlib.Path(__file__).parent.glob("[a-z]*.py"))
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def model(name: str) -> ModuleType:
    return importlib.import_module(f"tests.models.{name}")


def lines_of(function) -> int:
    """Returns the number of a function's lines that have code."""
    code = inspect.getsource(function)
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        is_docstring = token.type == tokenize.STRING and token.line.strip().startswith('"""')
        if token.type not in SILENT and not is_docstring:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines)


def program(module: ModuleType, form: str):
    """Returns a form of a model under jit, with its gradient if the module has `GRADIENT`."""
    function = getattr(module, form)
    if hasattr(module, "GRADIENT"):
        return jax.jit(jax.value_and_grad(lambda *x: mean_square(function(*x)), module.GRADIENT))
    return jax.jit(function)


def exported(function, arguments):
    written = jax.export.export(jax.jit(function), disabled_checks=mgpu.export_checks())(*arguments).serialize()
    return jax.jit(jax.export.deserialize(written).call)


def mean_square(results) -> jax.Array:
    """Returns the sum of the mean squares of all leaves of floats."""
    return sum(jnp.mean(leaf**2) for leaf in jax.tree.leaves(results) if jnp.issubdtype(leaf.dtype, jnp.floating))


def equal_within(ours, plain, tolerance: float = 1e-4) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(plain)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        scale = 1 + np.abs(np.where(np.isfinite(y), y, 0)).max(initial=0)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * scale)
