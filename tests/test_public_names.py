"""What `jax_mgpu` shows: the public names and nothing else."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import jax_mgpu as mgpu


def test_dir_is_the_public_names():
    assert dir(mgpu) == sorted(mgpu.__all__)


def test_public_names_are_distinct_and_defined_here():
    assert sorted(set(mgpu.__all__)) == sorted(mgpu.__all__)
    for name in mgpu.__all__:
        assert not name.startswith("_"), name
        assert getattr(mgpu, name).__module__.split(".")[0] == "jax_mgpu", name


def test_star_import_gives_the_public_names():
    namespace: dict[str, object] = {}
    exec("from jax_mgpu import *", namespace)
    assert namespace.keys() - {"__builtins__"} == set(mgpu.__all__)


def test_modules_of_one_name_with_a_function_do_not_hide_it():
    """`jax_mgpu.merge` is the function and no module, however the family's module was imported before."""
    code = """
import importlib.util, jax_mgpu._src.merge, jax_mgpu
assert callable(jax_mgpu.merge)
assert importlib.util.find_spec("jax_mgpu.merge") is None
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_private_jax_is_used_in_one_file():
    package = pathlib.Path(mgpu.__file__).parent
    private = re.compile(r"\bjax\.(_src|extend|interpreters)\b|\bjaxlib\.(?!__version__)\w|from jaxlib\b")
    users = {path.name for path in package.rglob("*.py") if private.search(path.read_text(encoding="utf-8"))}
    assert users == {"compat.py"}


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+\w*", mgpu.__version__)
    command = [sys.executable, "-m", "jax_mgpu", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, f"jax_mgpu {mgpu.__version__}\n")


def test_type_checkers_find_the_annotations():
    assert pathlib.Path(mgpu.__file__).with_name("py.typed").exists()
