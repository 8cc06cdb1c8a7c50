"""Settings, options and fixtures of all tests, and a summary of what was skipped."""

from __future__ import annotations

import collections
import os
import pathlib

import numpy as np
import pytest

from tests import quick, variants
from tests.variants import pytest_collection_modifyitems  # noqa: F401

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")  # so that any machine tests meshes
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the processes of a run share a GPU
for module in ("families", "many_items", "segmented_sorts", "transformed"):
    pytest.register_assert_rewrite(f"tests.{module}")  # failed assertions of these modules show values


def pytest_addoption(parser) -> None:
    variants.pytest_addoption(parser)
    parser.addoption("--optimized", action="store_true", help="compile as users do, with all of XLA's passes")


def pytest_configure(config) -> None:
    config.addinivalue_line("markers", "long: takes long, and runs only with --long")
    if not config.getoption("--optimized"):
        quick.compile_quickly()
    quick.lower_quickly()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.fixture
def x64():
    import jax

    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True, scope="module")
def compiled_programs():
    """Drops the programs that a test file compiled."""
    yield
    import jax

    jax.clear_caches()


def pytest_report_header() -> list[str]:
    import jax

    import jax_mgpu

    devices = jax.devices()
    return [
        f"jax_mgpu: {pathlib.Path(jax_mgpu.__file__).parent}",
        f"jax {jax.__version__}: {len(devices)} x {devices[0].device_kind} ({devices[0].platform})",
    ]


def pytest_terminal_summary(terminalreporter) -> None:
    import jax

    from jax_mgpu._src.core import library

    def words(report) -> str:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return reason.removeprefix("Skipped: ")

    skipped = collections.Counter(words(report) for report in terminalreporter.stats.get("skipped", []))
    terminalreporter.section("what was tested")
    terminalreporter.line(f"default platform: {jax.default_backend()}; kernels built: {', '.join(library.platforms())}")
    if jax.default_backend() != "gpu":
        terminalreporter.line(
            "NO KERNEL RAN ON A GPU: on a machine with one, run MGPU_CUDA=ON pip install '.[test]' && pytest"
        )
    if not terminalreporter.config.getoption("--long"):
        terminalreporter.line(
            "without --long, no long test ran; unless tests were named, one in sixteen variants of each test ran"
        )
    terminalreporter.line(f"skipped: {sum(skipped.values())}")
    for reason, times in skipped.most_common():
        terminalreporter.line(f"  {times} x {reason}")


@pytest.fixture
def lowers_for_cuda(monkeypatch):
    """Makes functions of callers lower to CUDA's kernels, even without a GPU or CUDA build."""
    from jax_mgpu._src.core import library
    from jax_mgpu._src.functions import custom_operator, recurrence

    monkeypatch.setattr(custom_operator, "has_kernels", lambda: True)
    if library.cuda_library is None:
        monkeypatch.setattr(library, "platforms", lambda: ("cpu", "cuda"))
    monkeypatch.setattr(library, "compiler_problem", lambda: "")
    operations = custom_operator._operation, recurrence._recurrence
    for cached in operations:
        cached.cache_clear()
    yield
    for cached in operations:
        cached.cache_clear()


@pytest.fixture
def devices():
    """Returns the devices over which tests shard batches."""
    from tests.transformed import DEVICES, mesh_devices

    if not mesh_devices():
        pytest.skip(f"fewer than two devices of the default platform, and fewer than {DEVICES} of the CPU")
    return mesh_devices()


@pytest.fixture(params=[None, "_gathered", "_chunked"], ids=["few", "gathered", "moved"])
def forms(request, monkeypatch):
    """Runs a test of a mesh by the exchange for few items, and by two forms of exchange.py."""
    from tests import mesh

    if request.param:
        mesh.use_form(monkeypatch, request.param)
