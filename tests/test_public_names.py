"""The public names of `jax_mgpu`, their types, and the imports of its modules."""

from __future__ import annotations

import ast
import graphlib
import inspect
import pathlib
import pickle
import re
import subprocess
import sys
import typing

import jax
import jax.export
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src import mesh
from scripts import signatures, ways
from tests import typed_program


def test_dir_is_the_public_names():
    assert dir(mgpu) == sorted(mgpu.__all__)


def test_public_names_are_distinct_and_defined_here():
    assert sorted(set(mgpu.__all__)) == sorted(mgpu.__all__)
    for name in mgpu.__all__:
        assert not name.startswith("_"), name
        assert getattr(mgpu, name).__module__ == "jax_mgpu", name


def test_star_import_gives_the_public_names():
    namespace: dict[str, object] = {}
    exec("from jax_mgpu import *", namespace)
    assert namespace.keys() - {"__builtins__"} == set(mgpu.__all__)


def test_the_page_of_names_has_the_current_signatures():
    page = signatures.PAGE.read_text(encoding="utf-8")
    assert signatures.replaced(page) == page


@pytest.mark.long
def test_the_page_on_architecture_has_the_current_ways():
    page = ways.PAGE.read_text(encoding="utf-8")
    assert ways.replaced(page) == page


def test_results_with_a_count_are_named():
    x, heads = np.array([3, 3, 1, 4]), np.array([0, 1])
    for result in (
        mgpu.reduce_by_key(x, x, size=3),
        mgpu.group_by(x, x, size=3),
        mgpu.select(x, x > 2),
        mgpu.select_indices(x > 2),
        mgpu.partition(x, x > 2),
        mgpu.from_dense(np.ones((2, 3)), [1, 2], size=4),
        mgpu.take_segments(x, heads, [1], size=3),
    ):
        assert result._fields[-1] == "count" and int(result.count) == int(result[-1]) == 3


def test_modules_of_one_name_with_a_function_do_not_hide_it():
    """`jax_mgpu.merge` is the function even after an import of the module."""
    code = """
import importlib.util, jax_mgpu._src.ops.merge, jax_mgpu
assert callable(jax_mgpu.merge)
assert importlib.util.find_spec("jax_mgpu.merge") is None
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_distributed_forms_are_found_without_earlier_imports():
    """`over_axis` finds the forms that `mesh` exports itself."""
    sources = pathlib.Path(mgpu.__file__).parent.rglob("*.py")
    named = {name for path in sources for name in re.findall(r"over_axis\(\s*mesh\.(\w+)\.", path.read_text("utf-8"))}
    assert named and named <= {*mesh.__all__}


def test_private_jax_is_used_in_one_file():
    package = pathlib.Path(mgpu.__file__).parent
    private = re.compile(r"\bjax\.(_src|extend|interpreters)\b|\bjaxlib\.(?!__version__)\w|from jaxlib\b")
    users = {path.name for path in package.rglob("*.py") if private.search(path.read_text(encoding="utf-8"))}
    assert users == {"compat.py"}


def test_modules_import_one_another_in_no_circle():
    """Imports within functions and for types alone do not count."""
    package = pathlib.Path(mgpu.__file__).parent
    modules = {".".join(path.relative_to(package.parent).with_suffix("").parts): path for path in package.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    needed = {}
    for name, path in modules.items():
        found = set()
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.ImportFrom):
                parts = {f"{statement.module}.{alias.name}" for alias in statement.names}
                found |= {part if part in modules else statement.module for part in parts}
            elif isinstance(statement, ast.Import):
                found |= {alias.name for alias in statement.names}
        needed[name] = found & modules.keys()
    assert needed["jax_mgpu._src.ops.sort"] > {"jax_mgpu._src.keys.columns"}
    graphlib.TopologicalSorter(needed).prepare()


CLASSES = [value for name in mgpu.__all__ if inspect.isclass(value := getattr(mgpu, name))]
CLASSES.remove(mgpu.Csr)  # its shape is a tuple of ints; tests/test_csr.py tests it


@pytest.mark.parametrize("kind", CLASSES)
def test_pickles_and_exported_programs_know_public_types(kind):
    names = tuple(typing.get_type_hints(kind))
    made = kind(*(np.arange(i, i + 3) * 0 for i in range(len(names))))
    for value in (kind, made):
        stored = pickle.dumps(value)
        assert b"jax_mgpu._src" not in stored
        again = pickle.loads(stored)
        assert again is kind or type(again) is kind
    assert getattr(kind, "_fields", names) == names
    pytest.importorskip("flatbuffers", reason="jax.export serialises with flatbuffers, which is not installed")
    program = jax.export.export(jax.jit(lambda x: jax.tree.map(lambda leaf: leaf + 1, x)))(made)
    got = jax.export.deserialize(program.serialize()).call(made)
    assert type(got) is kind
    for leaf in jax.tree.leaves(got):
        assert leaf.tolist() in ([1, 1, 1], [1, 1])  # three offsets make two segments


@pytest.mark.parametrize("name", ["sort", "checks", "group_by", "to_dense"])
def test_pickles_know_public_functions(name):
    function = getattr(mgpu, name)
    stored = pickle.dumps(function)
    assert b"_src" not in stored
    assert pickle.loads(stored) is function


def test_a_program_with_types():
    """.ci/run has mypy and pyright check its types."""
    typed_program.main()


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+\w*", mgpu.__version__)
    command = [sys.executable, "-m", "jax_mgpu", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, f"jax_mgpu {mgpu.__version__}\n")


def test_type_checkers_find_the_annotations():
    assert pathlib.Path(mgpu.__file__).with_name("py.typed").exists()
