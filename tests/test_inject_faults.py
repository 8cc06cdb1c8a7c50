"""Runs parts of scripts/inject_faults.py."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parent.parent / "scripts" / "inject_faults.py"


def run(*arguments: str) -> str:
    """Runs the script, which must succeed; returns its table."""
    done = subprocess.run([sys.executable, SCRIPT, *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "**" not in done.stdout
    return done.stdout


@pytest.mark.long
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_allocations_fail() -> None:
    table = run("--faults", "memory", "--functions", "mergesort", "top_k", "join", "scan")
    assert "x RESOURCE_EXHAUSTED" in table


@pytest.mark.long
@pytest.mark.parametrize("fault", ["threads", "signals"])
def test_threads_and_signals(fault) -> None:
    assert "right results" in run("--faults", fault, "--seconds", "3")
