"""Variants of a test of which few always run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def long_but(quick: Iterable[Any], variants: Iterable[Any]) -> list[Any]:
    """The variants, all but the quick ones marked `long`. One that is quick and not there is an error."""
    quick, variants = list(quick), list(variants)
    assert all(variant in variants for variant in quick), (quick, variants)
    return [v if v in quick else pytest.param(v, marks=pytest.mark.long) for v in variants]
