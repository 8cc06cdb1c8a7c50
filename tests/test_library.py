"""The choice of a library of kernels, and the errors of incompatible installations.

A copy of the CPU library stands in for CUDA's, so nvcc is not needed.
"""

from __future__ import annotations

import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import jax
import jax.numpy as jnp
import pytest
from packaging.requirements import Requirement

import jax_mgpu as mgpu
from jax_mgpu import _kernels
from jax_mgpu._src.core import library, operation

ROOT = pathlib.Path(__file__).parent.parent
CPU = library.cpu_library.path
without_cuda = pytest.mark.skipif(mgpu.has_cuda(), reason="a build with CUDA kernels loads no package of kernels")


def add_package(folder, name, content=None):
    """Adds a package whose library has this content."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").touch()
    if content is not None:
        (folder / name / "libjax_mgpu_cuda.so").write_bytes(content)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Makes a folder for packages, the only one on the path. CUDA kernels of jax_mgpu itself are not found."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(library, "_own_folders", list)
    return tmp_path


def test_kernels_of_the_same_version_are_loaded(packages):
    assert library._load_cuda(mgpu.__version__) is None
    add_package(packages, "jax_mgpu_cuda13", CPU.read_bytes())
    loaded = library._load_cuda(mgpu.__version__)
    assert loaded.path == packages / "jax_mgpu_cuda13" / "libjax_mgpu_cuda.so"
    assert loaded.description == library.cpu_library.description


@pytest.mark.parametrize(
    ("plugins", "chosen"),
    [
        ([], "cuda13"),
        (["jax_cuda12_plugin"], "cuda12"),
        (["jax_cuda13_plugin"], "cuda13"),
        (["jax_cuda12_plugin", "jax_cuda13_plugin"], "cuda13"),
    ],
)
def test_of_two_packages_that_of_the_installed_jax_is_loaded(packages, monkeypatch, plugins, chosen):
    monkeypatch.setattr(library, "CUDA_PACKAGES", {name: f"other_{p}" for name, p in library.CUDA_PACKAGES.items()})
    for plugin in plugins:
        add_package(packages, f"other_{plugin}")
    assert library.cuda_extra() == chosen
    for name in ("jax_mgpu_cuda12", "jax_mgpu_cuda13"):
        add_package(packages, name, CPU.read_bytes())
    assert library._load_cuda(mgpu.__version__).path.parent.name == f"jax_mgpu_{chosen}"


def test_kernels_of_another_version_are_one_error(packages):
    add_package(packages, "jax_mgpu_cuda12", CPU.read_bytes())
    with pytest.raises(ImportError) as caught:
        library._load_cuda("9.8.7")
    assert str(caught.value) == (
        f"jax_mgpu 9.8.7 needs jax_mgpu_cuda12 9.8.7, but version {mgpu.__version__} of it is installed. Run "
        "pip install --force-reinstall 'jax_mgpu[cuda12]==9.8.7', or uninstall jax_mgpu_cuda12."
    )


def test_a_package_without_its_library_is_one_error(packages):
    add_package(packages, "jax_mgpu_cuda13")
    expected = "jax_mgpu_cuda13 is installed without its library libjax_mgpu_cuda.so. Run pip install --force-reinstall"
    with pytest.raises(ImportError, match=re.escape(expected)):
        library._load_cuda(mgpu.__version__)


def test_what_is_no_library_is_one_error(packages):
    add_package(packages, "jax_mgpu_cuda13", b"not an ELF file")
    with pytest.raises(ImportError, match=r"libjax_mgpu_cuda.so cannot be loaded: .*(ELF|short|invalid)"):
        library._load_cuda(mgpu.__version__)


def test_without_the_cpu_library(monkeypatch):
    monkeypatch.setattr(library, "_own_folders", list)
    with pytest.raises(ImportError, match=r"jax_mgpu is not built: .*`pip install .` in the source folder"):
        library._load_cpu()


def test_an_older_runtime_is_one_error(monkeypatch):
    monkeypatch.setattr(library, "ffi_api_version", lambda: (0, 0))
    with pytest.raises(ImportError, match=r"version 0\.\d of XLA's FFI API, but the installed jaxlib has 0\.0"):
        library._load_cpu()


def test_a_request_that_c_cannot_answer_is_a_value_error():
    with pytest.raises(ValueError, match="no operation of this name: rotate"):
        library.cpu_library.workspace_bytes("rotate", [], [], {})
    with pytest.raises(ValueError, match="element type without a kernel: float8_e4m3"):
        library.cpu_library.workspace_bytes("merge", [("float8_e4m3", (3,))], [], {})


@without_cuda
@pytest.mark.parametrize(
    ("is_wheel", "command"), [(True, "pip install 'jax_mgpu[cuda13]'"), (False, "MGPU_CUDA=ON pip install .")]
)
def test_a_gpu_without_the_kernels_is_one_warning(monkeypatch, is_wheel, command):
    monkeypatch.setattr(operation, "_WARNED", set())
    monkeypatch.setitem(library.cpu_library.description, "is_wheel", is_wheel)
    monkeypatch.setattr(library, "CUDA_PACKAGES", {"jax_mgpu_cuda13": "no_such_plugin"})
    with pytest.warns(UserWarning) as warned:
        for function in (mgpu.mergesort, mgpu.reduce):
            jax.jit(lambda x, function=function: function(x)).trace(jnp.arange(9.0)).lower(lowering_platforms=("cuda",))
    assert [str(warning.message) for warning in warned] == [
        "jax_mgpu runs without its kernels on cuda: every operation works, through plain JAX, and is slower. To get "
        f"the kernels: {command}"
    ]


def test_a_driver_that_is_too_old_is_one_warning(monkeypatch):
    needs = "install a driver for CUDA 12.4 (550.54.14) or later, because the installed one is for CUDA 12.2"
    assert [library.driver_problem(version) for version in (0, 12020, 12040, 13000)] == ["", needs, "", ""]
    monkeypatch.setattr(library, "cuda_library", None)
    monkeypatch.setattr(library, "missing_driver", needs)
    assert library.backends()["cuda"].endswith(f". To get the kernels: {needs}")
    monkeypatch.setattr(operation, "_WARNED", set())
    with pytest.warns(UserWarning, match="without its kernels on cuda: every operation works") as warned:
        operation._warn_without_kernels(["cuda"])
    assert str(warned[0].message).endswith(f"To get the kernels: {needs}")


@pytest.mark.parametrize(
    ("architectures", "served", "unserved"),
    [
        ("75-real 80-real 90-real", (75, 80, 86, 89, 90), (70, 100, 120)),
        ("100-real 120-real", (100, 103, 120, 121), (90, 110, 130)),
        ("80-real 90", (80, 86, 90, 100, 120), (75,)),
        ("90-virtual", (90, 100), (80, 89)),
        ("native", (75, 130), ()),
    ],
)
def test_the_gpus_that_kernels_serve(architectures, served, unserved):
    assert all(library.serves(architectures, capability) for capability in served)
    assert not any(library.serves(architectures, capability) for capability in unserved)


@pytest.mark.skipif(not mgpu.has_cuda(), reason="a build without CUDA kernels")
def test_a_gpu_that_no_kernel_serves_is_one_warning(monkeypatch):
    class Gpu:
        compute_capability = "13.0"

    monkeypatch.setattr(jax, "local_devices", lambda backend: [Gpu()])
    monkeypatch.setattr(library, "gpu_problem", library.gpu_problem.__wrapped__)
    monkeypatch.setattr(operation, "_WARNED", set())
    monkeypatch.setitem(library.cuda_library.description, "architectures", "80-real 90-real")
    with pytest.warns(UserWarning) as warned:
        for function in (mgpu.mergesort, mgpu.reduce):
            traced = jax.jit(lambda x, function=function: function(x)).trace(jnp.arange(9.0))
            assert "custom_call @jax_mgpu" not in traced.lower(lowering_platforms=("cuda",)).as_text()
    assert [str(warning.message) for warning in warned] == [
        "jax_mgpu runs without its kernels on cuda: every operation works, through plain JAX, and is slower. To get "
        "the kernels: `MGPU_CUDA=ON MGPU_CUDA_ARCHITECTURES=130-real pip install .` in the sources, because the "
        "installed ones are for 80-real 90-real"
    ]


@pytest.mark.skipif(not mgpu.has_cuda(), reason="a build without CUDA kernels")
def test_the_driver_of_a_machine_with_a_gpu_is_known():
    version = library.cuda_library.driver_version()
    assert version == 0 or version >= library.OLDEST_DRIVER
    if jax.default_backend() == "gpu":
        assert version > 0


@without_cuda
def test_an_import_beside_kernels_of_another_version(tmp_path):
    package = pathlib.Path(mgpu.__file__).parent  # the sources of a clone, or the files of a wheel
    shutil.copytree(package, tmp_path / "jax_mgpu", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for built in (CPU, _kernels.__file__):
        shutil.copy(built, tmp_path / "jax_mgpu")
    version = tmp_path / "jax_mgpu" / "_src" / "core" / "version.py"
    version.write_text(version.read_text().replace(f'__version__ = "{mgpu.__version__}"', '__version__ = "9.8.7"'))
    add_package(tmp_path, "jax_mgpu_cuda13", CPU.read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "jax_mgpu", "--version"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: jax_mgpu 9.8.7 needs jax_mgpu_cuda13 9.8.7, but")


WITHOUT_KERNELS = """
import pkgutil, warnings
pkgutil.extend_path = lambda path, name: path  # finds no libraries of an installed package
import jax, jax.export, jax.numpy as jnp
import jax_mgpu as mgpu
how = "To get the kernels: install a wheel of jax_mgpu, or run `pip install .` on Linux with a C++20 compiler"
assert all(mgpu.backends()[name].startswith("plain JAX, slower") for name in ("cpu", "cuda", "others"))
assert mgpu.backends()["cpu"].endswith(how) and not mgpu.has_cuda()
x, heads = jnp.array([3.0, 1.0, 2.0]), jnp.array([0, 1])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert jax.jit(mgpu.segmented_sort)(x, heads).tolist() == [3, 1, 2]
    assert jax.jit(jax.vmap(mgpu.mergesort))(jnp.stack([x, -x])).tolist() == [[1, 2, 3], [-3, -2, -1]]
assert [str(warning.message).endswith(how) for warning in caught] == [True]
assert {step.variant for step in mgpu.explain(mgpu.sort, device="H200")(x).steps} == {"plain JAX"}
exported = jax.export.export(jax.jit(mgpu.sort), disabled_checks=mgpu.export_checks())(x)
assert exported.call(x).tolist() == [1, 2, 3]
"""


@pytest.mark.long
def test_an_installation_without_kernels_is_plain_jax(tmp_path):
    """`Root-Is-Purelib` in WHEEL tells an installation without kernels (MGPU_KERNELS=OFF) from a failed build."""
    shutil.copytree(CPU.parent, tmp_path / "jax_mgpu", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu"}

    def run():
        command = [sys.executable, "-c", WITHOUT_KERNELS]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    information = tmp_path / f"jax_mgpu-{mgpu.__version__}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: jax_mgpu\nVersion: {mgpu.__version__}\n")
    (information / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
    assert "ImportError: jax_mgpu is not built" in run().stderr
    (information / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
    assert (done := run()).returncode == 0, done.stderr


def project(folder):
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]


def test_a_citation_names_the_same_version():
    assert f"\nversion: {mgpu.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_extras_ask_for_packages_of_the_same_version():
    extras = project(".")["optional-dependencies"]
    for package in library.CUDA_PACKAGES:
        extra = package.removeprefix("jax_mgpu_")
        assert extras[extra] == [f"{package}=={mgpu.__version__}"]
        assert project(f"wheels/{extra}")["name"] == package
    assert {name for name in extras if name.startswith("cuda")} == {
        path.name for path in (ROOT / "wheels").glob("cuda*")
    }


AGAIN = """
import sys
import jax, jax.numpy as jnp, jax.export
import jax_mgpu as first
for name in [name for name in sys.modules if name.partition(".")[0] == "jax_mgpu"]:
    del sys.modules[name]
import jax_mgpu as second
assert second is not first
x, mask = jnp.array([3, 1, 2]), jnp.array([True, False, True])
for mgpu in (second, first):
    assert mgpu.mergesort(x).tolist() == [1, 2, 3]
    assert jax.jit(mgpu.segmented_sort)(x, jnp.array([0, 1])).tolist() == [3, 1, 2]
    assert jax.grad(lambda x: mgpu.scan(x)[1])(jnp.ones(3)).tolist() == [1, 1, 0]
    with mgpu.checks():
        try:
            mgpu.segmented_sort(x, jnp.array([0, 2, 1])).block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            assert "heads" in str(error)
        else:
            raise AssertionError
program = jax.jit(lambda x, mask: second.select(x, mask))
exported = jax.export.export(program, disabled_checks=second.export_checks())(x, mask)
try:
    data = exported.serialize()
except ImportError:  # flatbuffers
    sys.exit()
got = jax.export.deserialize(data).call(x, mask)
assert type(got) is second.Selection and got.count == 2
"""


def test_the_package_is_imported_again() -> None:
    """A notebook or a test runner may have dropped the modules of the package."""
    subprocess.run([sys.executable, "-c", AGAIN], check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}, cwd=ROOT)


def test_the_stub_of_the_module_is_what_nanobind_writes(tmp_path) -> None:
    written = tmp_path / "_kernels.pyi"
    arguments = ("-q", "-m", "jax_mgpu._kernels", "--exclude-docstrings", "-o", str(written))
    subprocess.run([sys.executable, "-m", "nanobind.stubgen", *arguments], check=True, cwd=ROOT)
    stub = pathlib.Path(mgpu.__file__).with_name("_kernels.pyi")
    classes = [
        [ast.dump(part) for part in ast.parse(file.read_text()).body if isinstance(part, ast.ClassDef)]
        for file in (stub, written)
    ]
    assert classes[0] == classes[1] != []


PACKAGES = {"base": ROOT, "cuda13": ROOT / "wheels" / "cuda13", "cuda12": ROOT / "wheels" / "cuda12"}
HASHED = re.compile(r"^([\w.-]+)==(\S+) \\\n(?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", re.MULTILINE)


@pytest.mark.parametrize("name", PACKAGES)
def test_wheels_are_built_by_what_has_hashes(name) -> None:
    """Build requirements allow the versions that scripts/build_wheels.py installs by hash."""
    project = tomllib.loads((PACKAGES[name] / "pyproject.toml").read_text())
    settings = project["tool"]["scikit-build"]
    files = {ROOT / "wheels" / "requirements.txt", PACKAGES[name] / "requirements.txt"}
    texts = [file.read_text() for file in sorted(files) if file.exists()]
    hashed = {package: version for text in texts for package, version in HASHED.findall(text)}
    assert all(len(HASHED.findall(text)) == text.count("==") for text in texts)
    for given in project["build-system"]["requires"] + settings.get("build", {}).get("requires", []):
        requirement = Requirement(given)
        assert requirement.specifier.contains(hashed[requirement.name]), given


@pytest.mark.parametrize("name", PACKAGES)
def test_wheels_carry_notices(name) -> None:
    project = tomllib.loads((PACKAGES[name] / "pyproject.toml").read_text())["project"]
    assert project["license-files"] == ["LICENSE", "NOTICE"]
    notice = (PACKAGES[name] / "NOTICE").read_text()
    for part in ("libstdc++", "XLA", "CUDA runtime"):
        assert part in notice


def test_a_clone_finds_the_libraries_of_an_installed_package(tmp_path):
    clone, site = tmp_path / "clone", tmp_path / "site" / "jax_mgpu"
    shutil.copytree(ROOT / "jax_mgpu", clone / "jax_mgpu", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    site.mkdir(parents=True)
    (site / "__init__.py").touch()
    for file in map(pathlib.Path, (CPU, _kernels.__file__)):
        (site / file.name).symlink_to(file)
    code = "import jax_mgpu; print(jax_mgpu._src.core.library.cpu_library.path)"
    paths = os.pathsep.join(map(str, (clone, site.parent)))
    found = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == str(site / CPU.name), found.stderr
