"""The libraries of kernels: finds them, reads what they hold, and registers their handlers."""

from __future__ import annotations

import collections
import ctypes
import importlib.metadata
import importlib.util
import json
import pathlib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.export

from jax_mgpu._src.core.compat import ffi_api_version
from jax_mgpu._src.core.version import __version__

__all__ = [
    "Library",
    "Traits",
    "backends",
    "build_decision",
    "compiler_problem",
    "cpu_library",
    "cuda_extra",
    "cuda_library",
    "driver_problem",
    "expect_names",
    "export_checks",
    "has_cuda",
    "how_to_get_kernels",
    "plan",
    "platforms",
    "target",
    "workspace_bytes",
]

PACKAGE = pathlib.Path(__file__).parent.parent
# The packages of CUDA kernels, the newest first, each with the plugin of the JAX that it is meant for.
CUDA_PACKAGES = {"jax_mgpu_cuda13": "jax_cuda13_plugin", "jax_mgpu_cuda12": "jax_cuda12_plugin"}
# CUDA's version of the oldest driver that unpacks kernels as the build compresses them, and the release that had it.
OLDEST_DRIVER, OLDEST_DRIVER_RELEASE = 12040, "550.54.14"


Shaped = tuple[str, Sequence[int]]  # the name of a type, and a shape


class _Entry(ctypes.Structure):
    """`HandlerEntry` of ffi/runtime/library.h."""

    _fields_ = [("operation", ctypes.c_char_p), ("stage", ctypes.c_char_p), ("address", ctypes.c_void_p)]


class _Array(ctypes.Structure):
    """`ArraySpec` of ffi/runtime/library_cpu.cc."""

    _fields_ = [
        ("dtype", ctypes.c_char_p),
        ("dimensions", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int64),
    ]


class _Attribute(ctypes.Structure):
    """`AttributeSpec` of ffi/runtime/library_cpu.cc."""

    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_int64)]


class _Call(ctypes.Structure):
    """`CallSpec` of ffi/runtime/library_cpu.cc."""

    _fields_ = [
        ("operation", ctypes.c_char_p),
        ("arrays", ctypes.POINTER(_Array)),
        ("operand_count", ctypes.c_int64),
        ("result_count", ctypes.c_int64),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_int64),
    ]

    @classmethod
    def of(
        cls, operation: str, operands: Sequence[Shaped], results: Sequence[Shaped], attributes: Mapping[str, int]
    ) -> _Call:
        arrays = [
            _Array(dtype.encode(), (ctypes.c_int64 * len(shape))(*shape), len(shape))
            for dtype, shape in (*operands, *results)
        ]
        pairs = [_Attribute(name.encode(), value) for name, value in attributes.items()]
        of = (_Array * len(arrays))(*arrays), (_Attribute * len(pairs))(*pairs)
        return cls(operation.encode(), of[0], len(operands), len(results), of[1], len(pairs))


class Traits(ctypes.Structure):
    """`Traits` of ffi/runtime/plan.h: what plans ask of a device."""

    _fields_ = [
        ("multiprocessors", ctypes.c_int64),
        ("shared_memory", ctypes.c_int64),
        ("l2_cache", ctypes.c_int64),
        ("capability", ctypes.c_int64),
    ]


class Library:
    """A plain shared library of kernels, the same for every Python, through its C interface (ffi/runtime/library.h).

    Attributes:
      path: the file.
      description: what the library says of itself: its version, that of XLA's FFI, the names of operations, and how it
        was built.
    """

    def __init__(self, path: pathlib.Path):
        self.path = path
        try:
            self._c = ctypes.CDLL(str(path))
        except OSError as error:
            raise ImportError(f"{path} cannot be loaded: {error}") from error
        self._c.jax_mgpu_describe.restype = ctypes.c_char_p
        self._c.jax_mgpu_handlers.restype = ctypes.POINTER(_Entry)
        self.description: dict[str, Any] = self.describe("library")

    def describe(self, what: str) -> Any:
        """What the library knows under a name: `"library"`, `"tile_sizes"`, `"kernel_shapes"`, ..."""
        return json.loads(self._c.jax_mgpu_describe(what.encode()))

    def handlers(self) -> dict[str, Any]:
        """By the name of the operation: its FFI handler, a capsule, or a capsule a stage where there are several."""
        table: dict[str, dict[str, Any]] = {}
        for entry in self._c.jax_mgpu_handlers():
            if entry.operation is None:
                break
            stages = table.setdefault(entry.operation.decode(), {})
            stages[entry.stage.decode()] = jax.ffi.pycapsule(ctypes.c_void_p(entry.address))
        return {name: stages if len(stages) > 1 else stages["execute"] for name, stages in table.items()}

    def workspace_bytes(
        self, operation: str, operands: Sequence[Shaped], results: Sequence[Shaped], attributes: Mapping[str, int]
    ) -> int:
        """Bytes of scratch memory of the CUDA handler."""
        ask, error = self._c.jax_mgpu_workspace_bytes, ctypes.c_char_p()
        ask.restype = ctypes.c_int64
        size = ask(ctypes.byref(_Call.of(operation, operands, results, attributes)), ctypes.byref(error))
        if size < 0:
            raise ValueError((error.value or b"").decode())
        return size

    def plan(
        self,
        operation: str,
        operands: Sequence[Shaped],
        results: Sequence[Shaped],
        attributes: Mapping[str, int],
        traits: Traits,
    ) -> dict[str, Any]:
        """What runs for a call on a CUDA device of these traits: `PlanReport` of ffi/runtime/plan.h."""
        ask, error = self._c.jax_mgpu_plan, ctypes.c_char_p()
        ask.restype = ctypes.c_char_p
        call = _Call.of(operation, operands, results, attributes)
        report = ask(ctypes.byref(call), ctypes.byref(traits), ctypes.byref(error))
        if report is None:
            raise ValueError((error.value or b"").decode())
        return json.loads(report)

    def function_source(self, data: str) -> str:
        """The C++ that the data of a function become, where they are of one."""
        make, error = self._c.jax_mgpu_function_source, ctypes.c_char_p()
        make.restype = ctypes.c_char_p
        source = make(data.encode(), ctypes.byref(error))
        if source is None:
            raise ValueError((error.value or b"").decode())
        return source.decode()

    def set_compiler_folders(self, folders: Sequence[str]) -> None:
        """Where the CUDA kernels look for NVRTC."""
        self._c.jax_mgpu_set_compiler_folders("\n".join(folders).encode())

    @property
    def ffi_api(self) -> str:
        """The version of the FFI API that the handlers were built for."""
        return ".".join(map(str, self.description["ffi_api_version"]))


class NoLibrary(Library):
    """Stands for the CPU library in a package that was installed without kernels: every operation is plain JAX."""

    def __init__(self) -> None:
        self.path = PACKAGE
        build = "installed without kernels, by MGPU_KERNELS=OFF or on a system for which none are built"
        self.description = {"build": build, "is_wheel": False, "signatures": {}}

    def describe(self, what: str) -> Any:
        """Tiles that no kernel has: the least that is a size."""
        return collections.defaultdict(lambda: [2]) if what == "tile_sizes" else None

    def handlers(self) -> dict[str, Any]:
        """None."""
        return {}


def _in_folders(name: str, folders: Sequence[str]) -> pathlib.Path | None:
    """The first file of this name in the folders of a package."""
    return next((path for path in (pathlib.Path(folder) / name for folder in folders) if path.is_file()), None)


def _own_folders() -> list[str]:
    """Where a library of this package may lie: beside these sources, and where the package is installed."""
    return pkgutil.extend_path([str(pathlib.Path(__file__).parents[2])], "jax_mgpu")


def _load(path: pathlib.Path) -> Library:
    """The library, if the installed jaxlib can call it."""
    library = Library(path)
    built, runtime = tuple(library.description["ffi_api_version"]), ffi_api_version()
    if runtime is not None and built > runtime:
        # Left alone, this would surface much later, as "No FFI handler registered".
        raise ImportError(
            f"{path} was built for version {built[0]}.{built[1]} of XLA's FFI API, but the installed jaxlib "
            f"has {runtime[0]}.{runtime[1]}. Upgrade jaxlib, or build again: pip install --no-cache-dir ."
        )
    return library


def _load_cpu() -> Library:
    path = _in_folders("libjax_mgpu_cpu.so", _own_folders())
    if path is None and _is_installed_without_kernels():
        return NoLibrary()
    if path is None:
        raise ImportError(
            "jax_mgpu is not built: its library libjax_mgpu_cpu.so is missing. Run `pip install .` in the source "
            "folder."
        )
    return _load(path)


def _is_installed_without_kernels() -> bool:
    """Whether the wheel that was installed says that it holds nothing of any platform."""
    try:
        wheel = importlib.metadata.distribution("jax_mgpu").read_text("WHEEL")
    except importlib.metadata.PackageNotFoundError:
        return False
    return "Root-Is-Purelib: true" in (wheel or "").splitlines()


def cuda_extra() -> str:
    """The extra that asks for the CUDA kernels: of the CUDA that the installed JAX has, or else of the newest."""
    packages = [name for name, plugin in CUDA_PACKAGES.items() if importlib.util.find_spec(plugin) is not None]
    return (packages or list(CUDA_PACKAGES))[0].removeprefix("jax_mgpu_")


def _load_cuda(version: str) -> Library | None:
    """The CUDA kernels: those built with this package, or else those of a package of kernels of the same version."""
    if isinstance(cpu_library, NoLibrary):  # which plans the calls of CUDA too
        return None
    if (path := _in_folders("libjax_mgpu_cuda.so", _own_folders())) is not None:
        return _load(path)
    preferred = f"jax_mgpu_{cuda_extra()}"
    for package in sorted(CUDA_PACKAGES, key=lambda name: name != preferred):
        spec = importlib.util.find_spec(package)
        if spec is None:
            continue
        again = f"pip install --force-reinstall 'jax_mgpu[{package.removeprefix('jax_mgpu_')}]=={version}'"
        path = _in_folders("libjax_mgpu_cuda.so", list(spec.submodule_search_locations or ()))
        if path is None:
            raise ImportError(f"{package} is installed without its library libjax_mgpu_cuda.so. Run {again}")
        library = _load(path)
        if library.description["version"] != version:
            raise ImportError(
                f"jax_mgpu {version} needs {package} {version}, but version {library.description['version']} of it is "
                f"installed. Run {again}, or uninstall {package}."
            )
        return library
    return None


def driver_problem(version: int) -> str:
    """Why no kernel can be loaded by a driver of this version of CUDA (12040 for 12.4, 0 for none); or nothing."""
    if version == 0 or version >= OLDEST_DRIVER:
        return ""
    has, needs = (f"CUDA {v // 1000}.{v % 1000 // 10}" for v in (version, OLDEST_DRIVER))
    return f"a driver of {needs} ({OLDEST_DRIVER_RELEASE}) or later, where this one is of {has}"


def expect_names(operations: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises an error where a library was not built of these sources: it has other operations, or other names.

    Each operation has lists of operands and results, and a dictionary of attributes, each with the names of its values,
    `"flag"` or `"number"`. An attribute that no kernel reads is not in the libraries.
    """
    for library in filter(None, (cpu_library, cuda_library)) if platforms() else ():
        if difference := _difference(library.description, operations):
            raise _other_sources(library, difference)


def _difference(description: Mapping[str, Any], operations: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The first difference of a library's operations from these."""
    signatures, enumerations = description["signatures"], description["enumerations"]
    if names := operations.keys() ^ signatures.keys():
        return f"operations {', '.join(sorted(names))}"
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
                return f"{what} of {name}, {there} in place of {here}"
    return None


def _other_sources(library: Library, difference: str) -> ImportError:
    return ImportError(
        f"{library.path} was not built of the sources in {PACKAGE}: it has other {difference}. Build it again: "
        "`pip install --no-cache-dir .` in the source folder, or `ninja -C build` where it was built by CMake."
    )


def target(operation: str) -> str:
    """The FFI target name of an operation."""
    return f"jax_mgpu.{operation}"


def compiler_problem() -> str:
    """Why no function can be compiled for CUDA; nothing where all is well."""
    return "" if cuda_library is None else cuda_library.describe("compiler_problem")


def _compiler_folders() -> list[str]:
    """Where packages of NVRTC have it: those that jax[cuda12] and jax[cuda13] depend on."""
    spec = importlib.util.find_spec("nvidia")
    roots = map(pathlib.Path, spec.submodule_search_locations or ()) if spec else ()
    folders = ("cu13/lib", "cuda_nvrtc/lib")
    return [str(root / folder) for root in roots for folder in folders if (root / folder).is_dir()]


def platforms() -> tuple[str, ...]:
    """The JAX platforms that have kernels."""
    if isinstance(cpu_library, NoLibrary):
        return ()
    return ("cpu",) if cuda_library is None else ("cpu", "cuda")


def has_cuda() -> bool:
    """Whether the CUDA kernels are installed.

    Returns:
      True if the package has them, whether or not there is a GPU.

    Example:
      >>> import jax_mgpu as mgpu
      >>> mgpu.has_cuda() == mgpu.backends()["cuda"].startswith("CUDA kernels")
      True
    """
    return cuda_library is not None


def build_decision() -> str:
    """What the build found, what it built and how to change that; pip hides the build's own line."""
    return cpu_library.description["build"]


def how_to_get_kernels() -> str:
    """The command that gives this installation the kernels that it lacks, or the driver that it takes."""
    if isinstance(cpu_library, NoLibrary):
        return "a wheel of jax_mgpu, or `pip install .` on Linux with a C++20 compiler"
    if missing_driver:
        return missing_driver
    is_wheel = cpu_library.description["is_wheel"]
    return f"pip install 'jax_mgpu[{cuda_extra()}]'" if is_wheel else "MGPU_CUDA=ON pip install ."


def backends() -> dict[str, str]:
    """What each JAX platform runs, in words.

    Returns:
      A description for each of `"cpu"`, `"cuda"` and `"others"`: kernels with the version of the FFI API that they were
      built for, or plain JAX. For CUDA, it also says what the build found, what it built and how to change that.

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
        cuda = f"CUDA kernels for {architectures} by {compiler} (FFI API {cuda_library.ffi_api})"
    return {"cpu": f"CPU kernels on XLA's threads (FFI API {cpu_library.ffi_api})", "cuda": cuda, "others": plain}


def export_checks() -> list[jax.export.DisabledSafetyCheck]:
    """What lets `jax.export` write programs with calls of the kernels, and with one of JAX's own.

    `jax.export` refuses custom calls of which JAX does not promise that later versions of it run them. Those of this
    package are run by the package itself, which a process that loads the program has to import.

    Returns:
      The values of `disabled_checks=`: one for each kernel of any platform, and one for `ragged_all_to_all`, by which
      programs over a mesh axis of GPUs exchange items.

    Example:
      >>> import jax, jax.export, jax.numpy as jnp
      >>> import jax_mgpu as mgpu
      >>> exported = jax.export.export(jax.jit(mgpu.sort), disabled_checks=mgpu.export_checks())(jnp.array([3, 1, 2]))
      >>> exported.call(jnp.array([7, 8, 5]))
      Array([5, 7, 8], dtype=int32)
    """
    targets = ["ragged_all_to_all", *map(target, cpu_library.description["signatures"])]
    return [jax.export.DisabledSafetyCheck.custom_call(name) for name in targets]


def workspace_bytes(
    operation: str, operands: Sequence[Any], results: Sequence[Any], attributes: Mapping[str, int]
) -> int:
    """Bytes of scratch memory of the CUDA handler for avals of these shapes."""
    return cpu_library.workspace_bytes(operation, _shaped(operands), _shaped(results), attributes)


def plan(
    operation: str, operands: Sequence[Any], results: Sequence[Any], attributes: Mapping[str, int], traits: Traits
) -> dict[str, Any]:
    """What runs for avals of these shapes on a CUDA device of these traits."""
    return cpu_library.plan(operation, _shaped(operands), _shaped(results), attributes, traits)


def _shaped(avals: Sequence[Any]) -> list[Shaped]:
    return [(aval.dtype.name, aval.shape) for aval in avals]


def _register(library: Library, platform: str) -> None:
    for operation, handler in library.handlers().items():
        jax.ffi.register_ffi_target(target(operation), handler, platform=platform)
        jax.ffi.register_ffi_target_as_batch_partitionable(target(operation))  # see partition.py


cpu_library = _load_cpu()
cuda_library = _load_cuda(__version__)
missing_driver = driver_problem(cuda_library.describe("driver_version")) if cuda_library else ""
if missing_driver:  # every launch would fail
    cuda_library = None
_register(cpu_library, "cpu")
if cuda_library is not None:
    _register(cuda_library, "CUDA")
    cuda_library.set_compiler_folders(_compiler_folders())
