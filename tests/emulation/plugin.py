r"""Runs tests on a CPU with the emulated CUDA kernels instead of the CPU's. Callers' functions run in plain JAX.

cmake -S tests/emulation -B build-emulated -G Ninja -DPython_EXECUTABLE=$(which python) && ninja -C build-emulated
MGPU_EMULATED=build-emulated/libjax_mgpu_emulated.so \
  python -m pytest -p tests.emulation.plugin --capture=sys -n 0 tests/test_scan.py
"""

from __future__ import annotations

import ctypes
import os
import pathlib
from collections.abc import Iterator

import pytest

LIBRARY = pathlib.Path(os.environ["MGPU_EMULATED"]).resolve()


def pytest_configure(config) -> None:
    del config
    import jax  # after the settings of tests/conftest.py

    from jax_mgpu._src.core import library, operation

    handlers = library.open_library(LIBRARY).handlers()
    target = library.target
    library.target = lambda name: f"{target(name)}.emulated" if name in handlers else target(name)
    for name, handler in handlers.items():
        jax.ffi.register_ffi_target(library.target(name), handler, platform="cpu")
        jax.ffi.register_ffi_target_as_batch_partitionable(library.target(name))
        operation.register_kernels(operation.REGISTRY[name], "cuda", on="cpu")
    jax.lax.platform_dependent = lambda *operands, default, **ways: ways.get("cuda", default)(*operands)


@pytest.fixture(autouse=True, scope="session")
def launches() -> Iterator[None]:
    """Fails if no test of the process has launched a kernel."""
    yield
    assert ctypes.CDLL(LIBRARY).mgpu_emulated_launches() > 0, "no emulated kernel was launched"
