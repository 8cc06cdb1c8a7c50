"""Without --long, a run that names no tests takes a sample of each test's variants; named tests run all of theirs."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

from tests.variants import ONE_IN

ROOT = pathlib.Path(__file__).parents[1]
VARIANTS = 20
TESTS = f"""
import pytest

@pytest.mark.parametrize("i", range({VARIANTS}))
def test_variants(i):
    pass

@pytest.mark.parametrize("i", range({VARIANTS}))
def test_others(i):
    pass

@pytest.mark.long
def test_that_takes_long():
    pass
"""


def test_named_tests_run_whole(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "test_some.py").write_text(TESTS)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def passed(*arguments):
        command = [sys.executable, "-m", "pytest", "-p", "tests.variants", "-p", "xdist.plugin", *arguments]
        options = {"cwd": tmp_path, "env": environment, "timeout": 240}
        done = subprocess.run(command, **options, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return int(re.search(r"(\d+) passed", done.stdout)[1])

    sample = -(-VARIANTS // ONE_IN)
    assert passed("folder") == 2 * sample
    assert passed("-k", "others") == VARIANTS
    for processes in ("0", "1"):
        assert passed("-n", processes) == 2 * sample
        assert passed("-n", processes, "folder/test_some.py::test_others") == VARIANTS
    assert passed("--long") == 2 * VARIANTS + 1
