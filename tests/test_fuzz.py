"""The randomised tester draws every public function, finds defects, and prints how to repeat them."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.core import library
from tests import families
from tests.fuzz import __main__ as fuzz
from tests.fuzz import broken, misuse, workers
from tests.fuzz.__main__ import Report
from tests.fuzz.draw import Shape
from tests.fuzz.program import CALLS, FAMILIES, Program

FUNCTIONS = {name for name in mgpu.__all__ if inspect.isfunction(getattr(mgpu, name))} - families.INFORMATION


def test_every_public_function_is_drawn():
    calls = {make(Shape(np.random.default_rng(seed))).text for make in broken.MAKES for seed in range(60)}
    assert calls == FUNCTIONS | {"Csr"}
    assert set(misuse.FUNCTIONS) == FUNCTIONS
    arguments = [
        (name, argument) for name in FUNCTIONS for argument in inspect.signature(getattr(mgpu, name)).parameters
    ]
    known = misuse.KINDS.keys() | misuse.WITHOUT_KIND
    assert known <= {argument for _, argument in arguments}
    unknown = {f"{name}: {argument}" for name, argument in arguments if argument not in known}
    assert unknown <= families.ARGUMENTS.keys() <= {f"{name}: {argument}" for name, argument in arguments}
    assert set(broken.MAKES) < set(CALLS.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_program_follows_from_its_seed(family):
    one, other = Program(3, family, 2), Program(3, family, 2)
    assert (one.text, one.mode, one.draws) == (other.text, other.mode, other.draws)
    assert any(Program(3, family, index).text != one.text for index in range(3, 9))


def test_a_wrong_result_is_found(monkeypatch):
    right = mgpu.load_balance_search
    monkeypatch.setattr(mgpu, "load_balance_search", lambda *a, **k: _one_more(right(*a, **k)))
    programs = [Program(1, "load_balance", index) for index in range(3)]
    found = [failure for program in programs for failure in program.run(iter(range(3))) if failure]
    assert found
    assert "wrong, first at" in str(found[0].error)


def test_the_scratch_memory_of_every_program_is_sized(monkeypatch):
    """A CPU also evaluates CUDA's formulas."""

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(library, "workspace_bytes", broken)
    failures = [next(iter(Program(1, family, 0).run(iter([0])))) for family in ("sort", "sets")]
    assert all("ZeroDivisionError" in repr(failure.error) for failure in failures)


def _one_more(results):
    return tuple(x + 1 for x in results) if isinstance(results, tuple) else results + 1


def test_what_the_jax_at_hand_cannot_run_is_left_out(monkeypatch, capsys):
    monkeypatch.setattr(jax, "__version_info__", (0, 10, 2))
    found = [index for index in range(40) if Program(1, "bulk", index).left_out()]
    assert found
    monkeypatch.setattr(Program, "run", lambda *_: pytest.fail("it ran"))
    report = Report()
    assert fuzz.run_program(1, "bulk", found[0], None, report, argparse.Namespace(mode=None)) == 0
    report.summary(0)
    assert re.search(r"left out 1 times: JAX 0.10 .*\ncases 0, programs 0, failures 0", capsys.readouterr().out)


@pytest.mark.long
def test_loops_that_a_compiler_does_not_survive_are_left_out(monkeypatch):
    """On a CPU, JAX 0.11 crashes on comparators that loop over empty arrays under shard_map."""
    programs = [program for index in range(2000) if "shard_map" in (program := Program(21, "sort", index)).mode]
    with_comparators = [Program(86001, "less", 0), Program(86002, "less", 56)]
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    for version in ((0, 11, 2), (0, 12, 0)):
        monkeypatch.setattr(jax, "__version_info__", version)
        assert [bool(program.left_out()) for program in with_comparators] == [version < (0, 12)] * 2
        assert not any(program.left_out() for program in programs)


@pytest.mark.long
def test_processes_share_the_programs():
    command = [
        sys.executable,
        "-m",
        "tests.fuzz",
        "--cases",
        "60",
        "--processes",
        "2",
        "--family",
        "wide",
        "--seed",
        "4",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"^cases (\d+), programs \d+, failures 0", done.stdout, re.MULTILINE)[1]) >= 60


def test_few_cases_are_spread_over_all_families(monkeypatch):
    asked = []

    def runs(seed, family, index, draws, report, options, most):
        asked.append(family)
        return most

    monkeypatch.setattr(fuzz, "run_program", runs)
    options = argparse.Namespace(
        seed=1, cases=2 * len(FAMILIES), seconds=0, family=None, share="0/1", begin=0, report=False
    )
    fuzz.run(options, Report())
    assert sorted(asked) == sorted(FAMILIES)


def test_a_failure_that_ends_all_is_summed_up(monkeypatch, capsys):
    def lost(*_, **__):
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(mgpu, "load_balance_search", lost)
    monkeypatch.setattr(sys, "argv", ["fuzz", "--family", "load_balance", "--cases", "5"])
    assert fuzz.main() == 1
    assert re.search(r"^cases 1, programs 1, failures 1 of 1 kinds, \d+ s$", capsys.readouterr().out, re.MULTILINE)


def test_a_program_of_slow_cases_does_not_hang(monkeypatch, capsys):
    """A worker says after each case that it goes on, if HEARD_EVERY allows that."""
    monkeypatch.setattr(fuzz, "HEARD_EVERY", -1)
    monkeypatch.setattr(sys, "argv", ["fuzz", "--report", "--family", "load_balance", "--case", "1:0"])
    fuzz.main()
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith(workers.LINE)]
    cases = json.loads(told[-1].removeprefix(workers.LINE))
    assert cases["what"] == "ran"
    assert sum("goes on" in line for line in told) == cases["cases"] > 1


@pytest.mark.parametrize(
    ("end", "code"),
    [("os.kill(os.getpid(), 9)", -9), ("time.sleep(60)", -9), ("raise ValueError", 1)],
    ids=["dies", "hangs", "raises"],
)
@pytest.mark.long
def test_a_process_that_ends_is_a_failure(monkeypatch, end, code):
    tell = f"print({workers.LINE!r} + json.dumps(dict(what='program', begin=begin, repeat='--family f --case 1:7')))"
    script = f"import json, os, time\nbegin = {{}}\n{tell}\n{{}}"
    monkeypatch.setattr(
        workers.Worker,
        "command",
        lambda self, seconds: [sys.executable, "-uc", script.format(self.begin, "" if self.begin else end)],
    )
    options = argparse.Namespace(seconds=60, cases=None, processes=2, stop=False, silence=2)
    report = Report()
    workers.run(options, report)
    assert report.failures == {("f", "process"): 2}
    assert report.repeats == {f"f: a process ended with {code}": "python -m tests.fuzz --family f --case 1:7"}
