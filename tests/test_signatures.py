"""Names of operands, results and attributes must be those of the libraries, or the import fails."""

from __future__ import annotations

import re
import types

import jax
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.core import library, operation

COMPILED = library.cpu_library


def altered(**changes):
    """Returns the CPU library's description with some parts replaced."""
    return types.SimpleNamespace(path=COMPILED.path, description={**COMPILED.description, **changes})


def changed(name, **changes):
    """Returns the description with another signature of one operation."""
    table = COMPILED.description["signatures"]
    return altered(signatures={**table, name: {**table.get(name, {}), **changes}})


OTHER_SOURCES = {
    "an operation more": (lambda: changed("rotate"), "operations that only one of them has: rotate"),
    "no operations": (
        lambda: altered(signatures={}),
        "operations that only one of them has: bucket_join, bulk_insert",
    ),
    "operands in another order": (
        lambda: changed("reduce", operands=["count", "x"]),
        "the operands of reduce: ['count', 'x'] in the library, ['x', 'count'] in the sources.",
    ),
    "another result": (lambda: changed("merge", results=["keys"]), "the results of merge: ['keys'] in the library"),
    "another attribute": (lambda: changed("merge", attributes={"reverse": "flag"}), "the attributes of merge"),
    "values in another order": (
        lambda: altered(enumerations={**COMPILED.description["enumerations"], "payload": ["given", "none", "indices"]}),
        "the attributes of segmented_sort",
    ),
}


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("name", OTHER_SOURCES)
def test_a_library_of_other_sources_is_one_error(name, platform, monkeypatch):
    make, difference = OTHER_SOURCES[name]
    monkeypatch.setattr(library, f"{platform}_library", make())
    with pytest.raises(
        ImportError, match=f"was not built from the sources.*differ in {re.escape(difference)}"
    ) as caught:
        operation.expect_compiled_names()
    assert "pip install" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_every_operation_has_a_handler(platform):
    compiled = library.cpu_library if platform == "cpu" else library.cuda_library
    if compiled is None:
        pytest.skip("a build without CUDA kernels")
    with_kernels = {name for name, known in operation.REGISTRY.items() if known.only in (None, platform)}
    by_functions = set(library.cpu_library.description["by_function"].split()) if platform == "cuda" else set()
    assert compiled.handlers().keys() == {"check", *with_kernels, *by_functions}


def test_names_of_a_call_and_of_a_rule_are_checked():
    reduce = operation.REGISTRY["reduce"]
    with pytest.raises(TypeError, match=r"^reduce: operands and attributes: expected attributes op, wide, got op, c"):
        reduce(x=jax.numpy.arange(3), op=0, counts=jax.numpy.arange(1))
    with pytest.raises(TypeError, match="reduce: rule: expected the names of operands and attributes, got y"):

        def rule(x, y):
            return x

        reduce._by_name(rule)
    assert mgpu.reduce(jax.numpy.arange(3)) == 3
