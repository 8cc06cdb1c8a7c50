"""Selects the variants that run without `--long`."""

from __future__ import annotations

import collections
import pathlib
import zlib
from collections.abc import Iterable
from typing import Any

import pytest

ONE_IN = 16  # a run of everything without --long runs one in so many variants of each test


def long_but(quick: Iterable[Any], variants: Iterable[Any]) -> list[Any]:
    """Marks all except the quick variants as `long`; an unknown quick one is an error."""
    quick, variants = list(quick), list(variants)
    assert all(variant in variants for variant in quick), (quick, variants)
    return [v if v in quick else pytest.param(v, marks=pytest.mark.long) for v in variants]


def pytest_addoption(parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests that take long, and all variants of each")


def is_of_everything(config) -> bool:
    """Whether a run selects no files or tests, by path or by -k. It may name folders."""
    named = [x for x in config.getoption("file_or_dir") if not pathlib.Path(x).is_dir()]
    return not named and not config.getoption("keyword")


def pytest_collection_modifyitems(config, items) -> None:
    if config.getoption("--long"):
        return
    quick = [item for item in items if not item.get_closest_marker("long")]
    if is_of_everything(config):
        variants = collections.defaultdict(list)
        for item in quick:
            variants[item.nodeid.partition("[")[0]].append(item)
        chosen = {item for alike in variants.values() for item in _some_of(alike)}
        quick = [item for item in quick if item in chosen]
    run = set(quick)
    config.hook.pytest_deselected(items=[item for item in items if item not in run])
    items[:] = quick


def _some_of(variants: list[Any]) -> list[Any]:
    """Selects one in `ONE_IN` variants, at least one: the same in every run, but different between tests."""
    alike = sorted(variants, key=lambda item: zlib.crc32(item.nodeid.encode()))
    return alike[: -(-len(alike) // ONE_IN)]
