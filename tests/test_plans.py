"""What runs for 100,000 drawn problems of all operations is what tests/plans/choices.txt remembers."""

from __future__ import annotations

import pytest

from jax_mgpu._src.primitive import REGISTRY
from tests.plans.choices import BLOCKS, block, remembered, summary
from tests.plans.problems import FUNCTION_DRAWS, OPERATIONS

REMEMBERED = remembered()


def test_all_operations_are_drawn() -> None:
    assert REGISTRY.keys() | FUNCTION_DRAWS.keys() == set(OPERATIONS) == REMEMBERED.keys()


def test_choices_are_those_remembered() -> None:
    for operation in OPERATIONS:
        assert block(operation, 0) == REMEMBERED[operation][0]


@pytest.mark.long
@pytest.mark.parametrize("operation", OPERATIONS)
def test_all_choices_are_those_remembered(operation: str) -> None:
    hashes = [summary(block(operation, number)) for number in range(1, BLOCKS)]
    assert hashes == REMEMBERED[operation][1], "`python -m tests.plans` prints them, to compare with the tree before"
