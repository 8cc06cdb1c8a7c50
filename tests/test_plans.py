"""The plans of drawn problems are those in tests/plans/choices.txt."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jax_mgpu._src.core import library
from jax_mgpu._src.core.operation import REGISTRY
from tests.plans.choices import BLOCKS, block, remembered, summary
from tests.plans.problems import FUNCTION_DRAWS, OPERATIONS, drawn

REMEMBERED = remembered()


def test_all_operations_are_drawn() -> None:
    with_plans = {name for name, operation in REGISTRY.items() if operation.only != "cpu"}
    assert with_plans | FUNCTION_DRAWS.keys() == set(OPERATIONS) == REMEMBERED.keys()


def test_choices_are_those_recorded() -> None:
    for operation in OPERATIONS:
        assert block(operation, 0) == REMEMBERED[operation][0]


@pytest.mark.long
@pytest.mark.parametrize("operation", OPERATIONS)
def test_all_choices_are_those_recorded(operation: str) -> None:
    hashes = [summary(block(operation, number)) for number in range(1, BLOCKS)]
    assert hashes == REMEMBERED[operation][1], "`python -m tests.plans` prints them, to compare with the tree before"


KIB = 1024
DEVICES = [library.Traits(shared_memory=limit * KIB) for limit in (64, 99, 163, 227)]


def test_no_plan_of_any_device_needs_more_than_the_scratch_memory() -> None:
    with jax.enable_x64(True):
        for number in range(300):
            _, *call = drawn("segmented_sort", number)
            plans = [library.plan("segmented_sort", *call, device) for device in DEVICES]
            assert all(plan["variant"] and plan["workspace"] <= plan["scratch"] for plan in plans), (number, plans)


def sort_plan(n: int, dtype: str, shared_memory: int) -> str:
    keys, absent = jax.ShapeDtypeStruct((n,), jnp.dtype(dtype)), jax.ShapeDtypeStruct((0,), jnp.dtype("int32"))
    attributes = {"descending": 0, "method": 1, "bits": 8 * keys.dtype.itemsize, "payload": 0}
    operands = [keys, absent, absent, absent, absent]
    device = library.Traits(shared_memory=shared_memory)
    return library.plan("segmented_sort", operands, [keys], attributes, device)["variant"]


def test_a_device_with_less_shared_memory_sorts_by_another_method() -> None:
    for dtype, least in (("uint8", 64), ("uint32", 64), ("uint64", 99)):
        assert [sort_plan(1 << 24, dtype, limit * KIB) for limit in (64, 99)] == [
            "digits" if limit >= least else "segments" for limit in (64, 99)
        ]


def test_plans_of_one_row_by_its_length() -> None:
    sizes = [1 << 10, 1 << 16, 1 << 19, 1 << 21]
    assert [sort_plan(n, "uint64", 227 * KIB) for n in sizes] == ["ranks", "few items", "pairs", "pairs"]


def test_the_cpu_includes_no_plans() -> None:
    ffi = pathlib.Path(__file__).parent.parent / "ffi"

    def included(file: str, seen: set[str]) -> set[str]:
        if file not in seen and (ffi / file).exists():
            seen.add(file)
            for name in re.findall(r'^#include "(.*)"', (ffi / file).read_text(), re.MULTILINE):
                included(name, seen)
        return seen

    files = [str(path.relative_to(ffi)) for path in ffi.glob("ops/*/cpu.cc")]
    assert files
    for file in files:
        names = included(file, set()) - {"cuda/ptx.cuh"}  # included only where a device compiles
        assert not [name for name in names if name.startswith("cuda/") or name.endswith("/plan.h")], file


def search_plan(n: int, m: int, segments: int, shared_memory: int = 227 * KIB, dtype: str = "uint32") -> dict[str, Any]:
    keys = [jax.ShapeDtypeStruct((length,), jnp.dtype(dtype)) for length in (n, m)]
    absent, heads, found = (jax.ShapeDtypeStruct((length,), jnp.dtype("int32")) for length in (0, segments, n))
    operands = [keys[0], absent, keys[1], heads, absent, absent, absent]
    device = library.Traits(shared_memory=shared_memory)
    return library.plan("segmented_search", operands, [found], {"right": 0, "exact": 0}, device)


def test_many_needles_get_a_search_tree() -> None:
    million = 1 << 20
    assert search_plan(1 << 17, million, 1)["variant"] == "search tree"
    assert search_plan(1 << 17, million, 1, 64 * KIB)["variant"] == "search tree with a small top"
    assert search_plan(1 << 17, 1 << 12, 1, 64 * KIB)["variant"] == "search tree"  # the whole search tree fits
    for few in ((1 << 16, million, 1), (1 << 18, 1 << 26, 1), (1 << 24, million, million // 30)):
        assert search_plan(*few)["variant"] == "single searches"
    assert search_plan(1 << 24, million, million // 100)["variant"] == "search tree"
    for dtype, part in (("uint8", 31), ("uint32", 7), ("uint64", 3)):
        scratch = search_plan(1 << 24, 1 << 24, 1, dtype=dtype)["scratch"]
        assert scratch <= (1 << 24) * jnp.dtype(dtype).itemsize / part * 1.01
