"""A plugin for pytest-xdist's workers: each has its GPU, and one that lost its device stops; a fresh one takes over.

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

GPUS = "JAX_MGPU_TEST_GPUS"  # over so many the workers are spread; unset: each sees all

if (worker := os.environ.get("PYTEST_XDIST_WORKER", "")) and GPUS in os.environ:  # before JAX looks for devices
    os.environ["CUDA_VISIBLE_DEVICES"] = str(int(worker.removeprefix("gw")) % int(os.environ[GPUS]))

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
