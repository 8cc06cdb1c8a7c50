"""The names of operands, results and attributes: Python and the compiled modules have the same, or the import fails."""

from __future__ import annotations

import re
import types

import jax
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src import library, primitive

COMPILED = library.cpu_module


class Altered(types.SimpleNamespace):
    """The CPU module, but for what is given."""

    def __init__(self, **changes):
        names = ("handlers", "signatures", "enumerations", "__file__")
        super().__init__(**{name: getattr(COMPILED, name) for name in names} | changes)


def changed(operation, **changes):
    """The signatures of C++ with other entries for one operation."""
    table = COMPILED.signatures()
    table[operation] = {**table[operation], **changes}
    return Altered(signatures=lambda: table)


def other_enumerations():
    return {**COMPILED.enumerations(), "payload": ["given", "none", "indices"]}


def more_handlers():
    return {**COMPILED.handlers(), "rotate": None}


OTHER_SOURCES = {
    "an operation more": (lambda: Altered(handlers=more_handlers), "operations rotate"),
    "an operation less": (lambda: Altered(handlers=lambda: {"check": None}), "operations bulk_insert, bulk_remove"),
    "before names": (
        lambda: types.SimpleNamespace(handlers=COMPILED.handlers, __file__="_cpu.so"),
        "names of operands",
    ),
    "operands in another order": (
        lambda: changed("reduce", operands=["count", "x"]),
        "operands of reduce, ['count', 'x'] in place of ['x', 'count']",
    ),
    "another result": (lambda: changed("merge", results=["keys"]), "results of merge, ['keys'] in place of"),
    "another attribute": (lambda: changed("merge", attributes={"reverse": "flag"}), "attributes of merge"),
    "values in another order": (lambda: Altered(enumerations=other_enumerations), "attributes of segmented_sort"),
}


@pytest.mark.parametrize("name", OTHER_SOURCES)
def test_a_module_of_other_sources_is_one_error(name, monkeypatch):
    module, difference = OTHER_SOURCES[name]
    monkeypatch.setattr(library, "cpu_module", module())
    with pytest.raises(ImportError, match=f"was not built of the sources.*other {re.escape(difference)}") as caught:
        primitive.expect_compiled_names()
    assert "pip install" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cuda_module_of_other_sources_is_one_error(monkeypatch):
    monkeypatch.setattr(library, "cuda_module", Altered(handlers=more_handlers))
    with pytest.raises(ImportError, match="other operations rotate"):
        primitive.expect_compiled_names()


def test_names_of_a_call_and_of_a_rule_are_checked():
    """A misspelt name is an error where it stands, not another operand."""
    reduce = primitive.REGISTRY["reduce"]
    with pytest.raises(TypeError, match="reduce: operands and attributes: expected attributes op, got op, counts"):
        reduce(x=jax.numpy.arange(3), op=0, counts=jax.numpy.arange(1))
    with pytest.raises(TypeError, match="reduce: rule: expected the names of operands and attributes, got y"):

        def rule(x, y):
            return x

        reduce._by_name(rule)
    assert mgpu.reduce(jax.numpy.arange(3)) == 3
