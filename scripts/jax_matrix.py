"""Builds one wheel against the headers of the jaxlib that pyproject.toml pins; tests it with several Pythons and JAXs.

The wheel is that of the Python which runs the script: of 3.12, it serves all later ones with a lock. Each pair of
versions gets a fresh virtual environment. The tests that need no GPU run in it, with one in sixteen of
each test's variants:

    python scripts/jax_matrix.py                                  # this Python, and the versions of JAX below
    python scripts/jax_matrix.py --pythons python3.12 python3.13 --versions newest
    python scripts/jax_matrix.py --versions 0.10.1 -- -k sort     # arguments after -- go to pytest

`newest` is the newest version that a Python can install, and `nightly` is last night's build from JAX's own index.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).parent.parent
NEWEST, NIGHTLY = "newest", "nightly"
NIGHTLIES = "https://us-python.pkg.dev/ml-oss-artifacts-published/jax-public-nightly-artifacts-registry/simple/"
OLDEST = "0.10.0"  # the requirement in pyproject.toml
VERSIONS = (OLDEST, "0.10.2", NEWEST)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of one environment."""

    python: str
    jax: str
    jaxlib: str
    passed: int
    failed: int
    skipped: int
    seconds: float


def run(*command: str | pathlib.Path, quiet: bool = True, **options) -> subprocess.CompletedProcess:
    """Runs a command; if `quiet`, shows its output only if it fails."""
    if not quiet:
        return subprocess.run(command, check=False, **options)
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done


def environment(folder: pathlib.Path, interpreter: str = sys.executable) -> pathlib.Path:
    """Makes a fresh virtual environment of an interpreter; returns its Python."""
    run(interpreter, "-m", "venv", "--clear", folder)
    return folder / "bin" / "python"


def copy_sources(target: pathlib.Path) -> None:
    """Copies the repository's files without build outputs, so that no module of a developer's build is tested."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def build_wheel(temporary: pathlib.Path, sources: pathlib.Path) -> pathlib.Path:
    """Builds the wheel in pip's isolation, which has the jaxlib that pyproject.toml pins; returns its path."""
    python = environment(temporary / "build")
    wheels = temporary / "wheels"
    run(python, "-m", "pip", "wheel", "--no-deps", "-w", wheels, sources, env={**os.environ, "MGPU_CUDA": "OFF"})
    (wheel,) = wheels.glob("*.whl")
    return wheel


def test(
    interpreter: str, version: str, temporary: pathlib.Path, sources: pathlib.Path, wheel: pathlib.Path, options
) -> Outcome:
    """Installs the wheel and a version of JAX for a Python, and runs the tests."""
    python = environment(temporary / "environment", interpreter)
    wanted = "jax" if version in (NEWEST, NIGHTLY) else f"jax=={version}"
    run(python, "-m", "pip", "install", "--upgrade", wanted, f"{wheel}[test]")
    if version == NIGHTLY:
        run(python, "-m", "pip", "install", "--upgrade", "--pre", "--extra-index-url", NIGHTLIES, "jax", "jaxlib")
    names = "import sys, jax, jaxlib; print(sys.version.split()[0], jax.__version__, jaxlib.__version__)"
    found = run(python, "-c", names).stdout.split()
    report = temporary / "report.xml"
    report.unlink(missing_ok=True)
    begin = time.monotonic()
    run(python, "-m", "pytest", "-q", f"--junitxml={report}", *options, cwd=sources, quiet=False)
    seconds = time.monotonic() - begin
    if not report.exists():
        sys.exit(f"Python and JAX {found}: pytest wrote no report")
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in xml.etree.ElementTree.parse(report).iter("testsuite"):
        for name in counts:
            counts[name] += int(suite.get(name, 0))
    failed = counts["failures"] + counts["errors"]
    return Outcome(*found[-3:], counts["tests"] - failed - counts["skipped"], failed, counts["skipped"], seconds)


def main() -> int:
    """Prints a table, one row per pair; returns 1 if a test failed, or if none ran, for some pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", default=VERSIONS, help=f"versions of JAX, '{NEWEST}' or '{NIGHTLY}'")
    parser.add_argument(
        "--pythons", nargs="+", default=[sys.executable], help="Python interpreters (default: this one)"
    )
    parser.add_argument("--wheel", type=pathlib.Path, help="test this wheel instead of building one")
    parser.add_argument("pytest", nargs="*", help="options that are passed to pytest, after --")
    arguments = parser.parse_args()
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        temporary = pathlib.Path(folder)
        sources = temporary / "sources"
        copy_sources(sources)
        wheel = arguments.wheel or build_wheel(temporary, sources)
        for interpreter in arguments.pythons:
            for version in arguments.versions:
                print(f"==== {interpreter}, jax {version}", flush=True)
                outcomes.append(test(interpreter, version, temporary, sources, wheel, arguments.pytest))
    print(f"\n{wheel.name}\n")
    print("| Python | JAX | jaxlib | passed | failed | skipped | seconds |")
    print("|---|---|---|---:|---:|---:|---:|")
    for o in outcomes:
        print(f"| {o.python} | {o.jax} | {o.jaxlib} | {o.passed} | {o.failed} | {o.skipped} | {o.seconds:.0f} |")
    return int(any(o.failed or not o.passed for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
