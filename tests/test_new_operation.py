"""scripts/new_operation.py writes an operation that builds and passes its tests."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture
def clone(tmp_path):
    for name in ("jax_mgpu", "ffi", "cmake", "tests", "docs"):
        left_out = shutil.ignore_patterns("*.so", "__pycache__", "images", "notes")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=left_out)
    for name in ("CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(*command, cwd, **variables):
    environment = {**os.environ, "PYTHONPATH": str(cwd / "site"), **variables}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def test_few_files_make_an_operation(clone):
    before = files_of(clone)
    run(sys.executable, ROOT / "scripts" / "new_operation.py", "turn_round", "--root", clone, cwd=clone)
    after = files_of(clone)
    assert before.keys() <= after.keys()
    changed = [path for path in before if before[path] != after[path]]
    assert len(changed) <= 4
    assert len(changed) + len(after.keys() - before.keys()) <= 12
    again = subprocess.run(
        [sys.executable, ROOT / "scripts" / "new_operation.py", "turn_round", "--root", clone],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert again.returncode == 2
    assert "name: operation 'turn_round' already exists" in again.stderr
    assert files_of(clone) == after


@pytest.mark.long
def test_a_new_operation_works(clone):
    run(sys.executable, ROOT / "scripts" / "new_operation.py", "turn_round", "--root", clone, cwd=clone)
    site = clone / "site"  # the sources beside it have no kernels; jax_mgpu/__init__.py finds those of `site`
    options = ["--quiet", "--no-deps", "--config-settings=cmake.build-type=None", "--target", site]
    if importlib.util.find_spec("scikit_build_core") and importlib.util.find_spec("nanobind"):
        options.append("--no-build-isolation")  # then pip needs no network
    run(sys.executable, "-m", "pip", "install", *options, clone, cwd=clone, MGPU_CUDA="OFF")
    tests = sys.executable, "-m", "pytest", "-n", "0", "-q"
    cpu = {"cwd": clone, "JAX_PLATFORMS": "cpu"}  # a GPU would have no kernels, and the library would warn
    said = run(*tests, "tests/test_turn_round.py", **cpu)
    assert "14 passed" in said
    words = ("-k", "turn_round and (vmap or jit or grad or cuda_lowering or plain_jax)")
    said = run(*tests, "tests/test_transformations.py", *words, **cpu)
    assert "passed" in said
