"""A plugin for pytest-xdist's workers: one that lost its device stops, and a fresh one takes over its tests.

After an illegal address or a failed launch every later call of the process fails too, and would hide which test did it.
"""

from __future__ import annotations

import os

import pytest

LOST = (
    "CUDA_ERROR_ILLEGAL",
    "CUDA_ERROR_LAUNCH",
    "CUDA_ERROR_MISALIGNED",
    "illegal memory access",
    "misaligned address",
    "unspecified launch failure",
)

_lost = False


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes a report that speaks of a lost device."""
    global _lost  # noqa: PLW0603
    _lost |= report.failed and any(word in str(report.longrepr) for word in LOST)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """Leaves once the report is out."""
    if _lost and "PYTEST_XDIST_WORKER" in os.environ:
        os._exit(70)
