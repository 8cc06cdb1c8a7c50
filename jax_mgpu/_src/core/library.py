"""Finds the libraries of kernels, and registers their handlers."""

from __future__ import annotations

import collections
import functools
import importlib.metadata
import importlib.util
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.export

from jax_mgpu._src.core.compat import ffi_api_version
from jax_mgpu._src.core.version import __version__

if TYPE_CHECKING:
    from jax_mgpu._kernels import Library

PACKAGE = pathlib.Path(__file__).parents[2]
# Packages of CUDA kernels, the newest CUDA version first, each with JAX's plugin for that version.
CUDA_PACKAGES = {"jax_mgpu_cuda13": "jax_cuda13_plugin", "jax_mgpu_cuda12": "jax_cuda12_plugin"}
# CUDA version and release of the oldest driver that can unpack the kernels, which are compressed.
OLDEST_DRIVER, OLDEST_DRIVER_RELEASE = 12040, "550.54.14"


Shaped = tuple[str, Sequence[int]]


class Traits(NamedTuple):
    """What plans depend on: `Traits` of ffi/runtime/plan.h."""

    multiprocessors: int = 0
    shared_memory: int = 0  # bytes that a block gets on request
    l2_cache: int = 0  # bytes
    capability: int = 0  # 90 for sm_90


class NoLibrary:
    """The CPU library of a package without kernels."""

    def __init__(self) -> None:
        self.path = PACKAGE
        build = "installed without kernels, by MGPU_KERNELS=OFF or on a system for which none are built"
        self.description = {"build": build, "is_wheel": False, "signatures": {}, "by_function": ""}

    def tile_sizes(self) -> Mapping[str, Sequence[int]]:
        """Returns a size for each name."""
        return collections.defaultdict(lambda: [2])

    def handlers(self) -> dict[str, Any]:
        """Returns an empty dictionary: there are no kernels."""
        return {}


def _in_folders(name: str, folders: Sequence[str]) -> pathlib.Path | None:
    return next((path for path in (pathlib.Path(folder) / name for folder in folders) if path.is_file()), None)


def _own_folders() -> list[str]:
    return list(sys.modules["jax_mgpu"].__path__)  # the package extends its path before it imports this module


def open_library(path: pathlib.Path) -> Library:
    """Returns the library; raises an error if the installed jaxlib cannot call it."""
    try:
        from jax_mgpu import _kernels  # noqa: PLC0415 - a package without kernels lacks it
    except ModuleNotFoundError as error:
        raise ImportError(
            f"jax_mgpu is not built for Python {sys.version_info.major}.{sys.version_info.minor}: its module _kernels "
            "is missing. Run `pip install .` in the source folder, with this Python."
        ) from error
    library = _kernels.Library(path)
    built, runtime = tuple(library.description["ffi_api_version"]), ffi_api_version()
    if runtime is not None and built > runtime:
        raise ImportError(
            f"{path} was built for version {built[0]}.{built[1]} of XLA's FFI API, but the installed jaxlib "
            f"has {runtime[0]}.{runtime[1]}. Upgrade jaxlib, or build again: pip install --no-cache-dir ."
        )
    return library


def _load_cpu() -> Library:
    path = _in_folders("libjax_mgpu_cpu.so", _own_folders())
    if path is None and _is_installed_without_kernels():
        return cast("Library", NoLibrary())
    if path is None:
        raise ImportError(
            "jax_mgpu is not built: its library libjax_mgpu_cpu.so is missing. Run `pip install .` in the source "
            "folder."
        )
    return open_library(path)


def _is_installed_without_kernels() -> bool:
    try:
        wheel = importlib.metadata.distribution("jax_mgpu").read_text("WHEEL")
    except importlib.metadata.PackageNotFoundError:
        return False
    return "Root-Is-Purelib: true" in (wheel or "").splitlines()


def cuda_extra() -> str:
    """Names the extra for the installed JAX's CUDA version, or the newest."""
    packages = [name for name, plugin in CUDA_PACKAGES.items() if importlib.util.find_spec(plugin) is not None]
    return (packages or list(CUDA_PACKAGES))[0].removeprefix("jax_mgpu_")


def _load_cuda(version: str) -> Library | None:
    """Loads CUDA kernels built with this package, or those of a package of the same version."""
    if isinstance(cpu_library, NoLibrary):  # the CPU library also plans the calls on CUDA
        return None
    if (path := _in_folders("libjax_mgpu_cuda.so", _own_folders())) is not None:
        return open_library(path)
    preferred = f"jax_mgpu_{cuda_extra()}"
    for package in sorted(CUDA_PACKAGES, key=lambda name: name != preferred):
        spec = importlib.util.find_spec(package)
        if spec is None:
            continue
        again = f"pip install --force-reinstall 'jax_mgpu[{package.removeprefix('jax_mgpu_')}]=={version}'"
        path = _in_folders("libjax_mgpu_cuda.so", list(spec.submodule_search_locations or ()))
        if path is None:
            raise ImportError(f"{package} is installed without its library libjax_mgpu_cuda.so. Run {again}")
        library = open_library(path)
        if library.description["version"] != version:
            raise ImportError(
                f"jax_mgpu {version} needs {package} {version}, but version {library.description['version']} of it is "
                f"installed. Run {again}, or uninstall {package}."
            )
        return library
    return None


def driver_problem(version: int) -> str:
    """Says which driver to install if one of this CUDA version (12040 for 12.4) is too old.

    Without a driver (0), the text is empty: such a machine can lower programs for CUDA.
    """
    if version == 0 or version >= OLDEST_DRIVER:
        return ""
    has, needs = (f"CUDA {v // 1000}.{v % 1000 // 10}" for v in (version, OLDEST_DRIVER))
    return f"install a driver for {needs} ({OLDEST_DRIVER_RELEASE}) or later, because the installed one is for {has}"


def serves(architectures: str, capability: int) -> bool:
    """Whether kernels for these architectures run on a GPU of this compute capability (90 for 9.0).

    The architectures are CMake's, such as `"80-real 90"`: code for 8.0 also runs on 8.6, and PTX on any later GPU.
    """
    for number, _, kind in (name.partition("-") for name in architectures.split()):
        if not number.isdecimal():  # those of the GPU that the build saw
            return True
        is_same = capability // 10 == int(number) // 10 and kind != "virtual"
        if (is_same or kind != "real") and capability >= int(number):
            return True
    return False


@functools.cache
def gpu_problem() -> str:
    """Says how to build kernels for this process's GPU if those that are loaded do not run on it."""
    try:
        gpu = jax.local_devices(backend="cuda")[0]
    except RuntimeError:  # programs may be lowered for CUDA on any machine
        return ""
    capability = int(str(gpu.compute_capability).replace(".", ""))
    if cuda_library is None or serves(cuda_library.description["architectures"], capability):
        return ""
    return (
        f"`MGPU_CUDA=ON MGPU_CUDA_ARCHITECTURES={capability}-real pip install .` in the sources, because the installed "
        f"ones are for {cuda_library.description['architectures']}"
    )


def expect_names(operations: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises an error if a library has other operations, or other names in them, than these sources.

    Each operation lists operands and results, and describes attributes: by the names of their values, or as `"flag"` or
    `"number"`. Attributes that no kernel reads are not in the libraries, and are not compared.
    """
    for library in filter(None, (cpu_library, cuda_library)) if platforms() else ():
        if difference := _difference(library.description, operations):
            raise _other_sources(library, difference)


def _difference(description: Mapping[str, Any], operations: Mapping[str, Mapping[str, Any]]) -> str | None:
    signatures, enumerations = description["signatures"], description["enumerations"]
    if names := operations.keys() ^ signatures.keys():
        return f"operations that only one of them has: {', '.join(sorted(names))}"
    for name, operation in operations.items():
        compiled = signatures[name]
        attributes = {key: enumerations.get(kind, kind) for key, kind in compiled["attributes"].items()}
        read = {key: kind for key, kind in operation["attributes"].items() if key in attributes}
        for what, here, there in (
            ("operands", operation["operands"], compiled["operands"]),
            ("results", operation["results"], compiled["results"]),
            ("attributes", read, attributes),
        ):
            if here != there:
                return f"the {what} of {name}: {there} in the library, {here} in the sources"
    return None


def _other_sources(library: Library, difference: str) -> ImportError:
    return ImportError(
        f"{library.path} was not built from the sources in {PACKAGE}. They differ in {difference}. Build the library "
        "again: run `pip install --no-cache-dir .` in the source folder, or `ninja -C build` if CMake built it there."
    )


def target(operation: str) -> str:
    """Returns the FFI target name of an operation."""
    return f"jax_mgpu.{operation}"


def compiler_problem() -> str:
    """Says why callers' functions cannot be compiled for CUDA; empty if they can, or without CUDA kernels."""
    return "" if cuda_library is None else cuda_library.compiler_problem()


def _compiler_folders() -> list[str]:
    """Returns the folders of the NVRTC packages that jax[cuda12] and jax[cuda13] install."""
    spec = importlib.util.find_spec("nvidia")
    roots = map(pathlib.Path, spec.submodule_search_locations or ()) if spec else ()
    folders = ("cu13/lib", "cuda_nvrtc/lib")
    return [str(root / folder) for root in roots for folder in folders if (root / folder).is_dir()]


def platforms() -> tuple[str, ...]:
    """Returns the JAX platforms that have kernels."""
    if isinstance(cpu_library, NoLibrary):
        return ()
    return ("cpu",) if cuda_library is None else ("cpu", "cuda")


def has_cuda() -> bool:
    """Whether the CUDA kernels are loaded.

    Returns:
      True if they are installed, with or without a GPU, unless the driver is too old for them.

    Example:
      >>> import jax_mgpu as mgpu
      >>> mgpu.has_cuda() == mgpu.backends()["cuda"].startswith("CUDA kernels")
      True
    """
    return cuda_library is not None


def build_decision() -> str:
    """Returns what the build found and built, and how to change that."""
    return str(cpu_library.description["build"])


def how_to_get_kernels() -> str:
    """Says how to get missing kernels, or the driver."""
    if isinstance(cpu_library, NoLibrary):
        return "install a wheel of jax_mgpu, or run `pip install .` on Linux with a C++20 compiler"
    if problem := missing_driver or gpu_problem():
        return problem
    is_wheel = cpu_library.description["is_wheel"]
    return f"pip install 'jax_mgpu[{cuda_extra()}]'" if is_wheel else "MGPU_CUDA=ON pip install ."


def backends() -> dict[str, str]:
    """Describes what each JAX platform runs.

    Returns:
      A description for each of `"cpu"`, `"cuda"` and `"others"`: kernels with the version of the FFI API that they were
      built for, or plain JAX. Without CUDA kernels, that of `"cuda"` also says what the build found, what it built and
      how to change that.

    Example:
      >>> import jax_mgpu as mgpu
      >>> list(mgpu.backends())
      ['cpu', 'cuda', 'others']
    """
    plain = "plain JAX, slower"
    if isinstance(cpu_library, NoLibrary):
        why = f"{plain}: {build_decision()}. To get the kernels: {how_to_get_kernels()}"
        return {"cpu": why, "cuda": why, "others": plain}
    cuda = f"{plain}: {build_decision()}"
    if missing_driver or cpu_library.description["is_wheel"]:
        cuda += f". To get the kernels: {how_to_get_kernels()}"
    if cuda_library is not None:
        architectures, compiler = cuda_library.description["architectures"], cuda_library.description["compiler"]
        cuda = f"CUDA kernels for {architectures} by {compiler} (FFI API {_ffi_api(cuda_library)})"
    return {"cpu": f"CPU kernels on XLA's threads (FFI API {_ffi_api(cpu_library)})", "cuda": cuda, "others": plain}


def _ffi_api(library: Library) -> str:
    return ".".join(map(str, library.description["ffi_api_version"]))


def export_checks() -> list[jax.export.DisabledSafetyCheck]:
    """The values with which `jax.export` exports programs with kernels or JAX's `ragged_all_to_all`.

    `jax.export` refuses custom calls without a promise of compatibility. The process that loads the program must import
    this package.

    Returns:
      The values of `disabled_checks=`: one for each custom call of this package, and one for `ragged_all_to_all`, by
      which programs over a mesh axis of GPUs may exchange items.

    Example:
      >>> import jax, jax.export, jax.numpy as jnp
      >>> import jax_mgpu as mgpu
      >>> exported = jax.export.export(jax.jit(mgpu.sort), disabled_checks=mgpu.export_checks())(jnp.array([3, 1, 2]))
      >>> exported.call(jnp.array([7, 8, 5]))
      Array([5, 7, 8], dtype=int32)
    """
    operations = [*cpu_library.description["signatures"], *cpu_library.description["by_function"].split()]
    targets = ["ragged_all_to_all", *map(target, operations)]
    return [jax.export.DisabledSafetyCheck.custom_call(name) for name in targets]


def workspace_bytes(
    operation: str, operands: Sequence[Any], results: Sequence[Any], attributes: Mapping[str, int]
) -> int:
    """Returns the bytes of scratch memory of the CUDA handler for these shapes."""
    return cpu_library.workspace_bytes(operation, _shaped(operands), _shaped(results), attributes)


def plan(
    operation: str, operands: Sequence[Any], results: Sequence[Any], attributes: Mapping[str, int], traits: Traits
) -> dict[str, Any]:
    """Returns the variant that runs for these shapes on a CUDA device with these traits."""
    return cpu_library.plan(operation, _shaped(operands), _shaped(results), attributes, traits)


def _shaped(avals: Sequence[Any]) -> list[Shaped]:
    return [(aval.dtype.name, aval.shape) for aval in avals]


def _register(library: Library, platform: str) -> None:
    for operation, handler in library.handlers().items():
        jax.ffi.register_ffi_target(target(operation), handler, platform=platform)
        jax.ffi.register_ffi_target_as_batch_partitionable(target(operation))  # sharding.py needs this


cpu_library: Library = _load_cpu()
cuda_library: Library | None = _load_cuda(__version__)
missing_driver = driver_problem(cuda_library.driver_version()) if cuda_library else ""
if missing_driver:  # every launch would fail
    cuda_library = None
_register(cpu_library, "cpu")
if cuda_library is not None:
    _register(cuda_library, "CUDA")
    cuda_library.set_compiler_folders(_compiler_folders())
