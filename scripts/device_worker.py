"""A plugin for pytest-xdist: assigns GPUs to workers, and replaces a worker that lost its device."""

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

GPUS = "JAX_MGPU_TEST_GPUS"  # the number of GPUs that the workers share; if unset, each worker sees all

if (worker := os.environ.get("PYTEST_XDIST_WORKER", "")) and GPUS in os.environ:  # before JAX looks for devices
    os.environ["CUDA_VISIBLE_DEVICES"] = str(int(worker.removeprefix("gw")) % int(os.environ[GPUS]))

_lost = False


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes that a test report tells of a lost device."""
    global _lost  # noqa: PLW0603
    _lost |= report.failed and any(word in str(report.longrepr) for word in LOST)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """Ends the worker once it has sent its report; xdist then starts another."""
    if _lost and "PYTEST_XDIST_WORKER" in os.environ:
        os._exit(70)
