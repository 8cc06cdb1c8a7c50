"""The names of operands, results and attributes that C++ tells, against the operations of Python."""

from __future__ import annotations

import pytest

from jax_mgpu._src import sets, values
from jax_mgpu._src.library import cpu_module
from jax_mgpu._src.operators import Kind
from jax_mgpu._src.primitive import REGISTRY

assert cpu_module is not None
SIGNATURES = cpu_module.signatures()


def test_every_operation_has_one():
    assert set(SIGNATURES) == set(REGISTRY)


@pytest.mark.parametrize("operation", SIGNATURES)
def test_operands_and_results(operation):
    signature = SIGNATURES[operation]
    assert len(signature["operands"]) == len(REGISTRY[operation].ranks)
    assert signature["results"]
    for names in (signature["operands"], signature["results"]):
        assert len(set(names)) == len(names)


def test_enumerations():
    enumerations = cpu_module.enumerations()
    assert enumerations.pop("op") == [kind.name.lower() for kind in Kind]
    payload = [values.NO_PAYLOAD, values.PAYLOAD_GIVEN, values.PAYLOAD_INDICES]
    assert [payload.index(i) for i in range(3)] == [0, 1, 2]
    assert enumerations.pop("payload") == ["none", "given", "indices"]
    kinds = enumerations.pop("set_operation")
    for name in kinds:
        assert getattr(sets, name.upper()) == kinds.index(name)
    assert not enumerations
