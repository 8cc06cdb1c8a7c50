"""Variants of a test, of which few always run. pytest takes the options and the choice from here."""

from __future__ import annotations

import collections
import pathlib
import zlib
from collections.abc import Iterable
from typing import Any

import pytest

# Of a test's variants a run of everything takes one in so many, without --long.
ONE_IN = 16


def long_but(quick: Iterable[Any], variants: Iterable[Any]) -> list[Any]:
    """The variants, all but the quick ones marked `long`. One that is quick and not there is an error."""
    quick, variants = list(quick), list(variants)
    assert all(variant in variants for variant in quick), (quick, variants)
    return [v if v in quick else pytest.param(v, marks=pytest.mark.long) for v in variants]


def pytest_addoption(parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests that take long, and all variants of each")


def is_of_everything(config) -> bool:
    """Whether a run names no tests: neither files, nor tests in them, nor words. A folder names none."""
    named = [x for x in config.getoption("file_or_dir") if not pathlib.Path(x).is_dir()]
    return not named and not config.getoption("keyword")


def pytest_collection_modifyitems(config, items) -> None:
    if config.getoption("--long"):
        return
    variants = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="takes long: pytest --long runs it"))
        else:
            variants[item.nodeid.partition("[")[0]].append(item)
    if not is_of_everything(config):
        return
    for alike in variants.values():  # the same ones in every run, and others of each test
        alike.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        for item in alike[-(-len(alike) // ONE_IN) :]:
            item.add_marker(pytest.mark.skip(reason="another variant of the test runs: pytest --long runs all"))
