"""The compiled modules: what is built, where it is registered, what it needs."""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import jax

from jax_mgpu._src.compat import ffi_api_version

__all__ = [
    "backends",
    "build_decision",
    "compiler_problem",
    "cpu_module",
    "cuda_module",
    "expect_names",
    "has_cuda",
    "platforms",
    "target",
    "workspace_bytes",
]


def _load(name: str) -> ModuleType | None:
    try:
        module = importlib.import_module(f"jax_mgpu.{name}")
    except ModuleNotFoundError:
        return None
    built, runtime = tuple(module.ffi_api_version), ffi_api_version()
    if runtime is not None and built > runtime:
        # Left alone, this would surface much later, as "No FFI handler registered".
        raise ImportError(
            f"jax_mgpu.{name} was built for version {built[0]}.{built[1]} of XLA's FFI API, but the installed jaxlib "
            f"has {runtime[0]}.{runtime[1]}. Upgrade jaxlib, or build again: pip install --no-cache-dir ."
        )
    return module


def expect_names(operations: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises an error where a compiled module was not built of these sources: it has other operations, or other names.

    Each operation has lists of operands and results, and a dictionary of attributes, each with the names of its values,
    `"flag"` or `"number"`. An attribute that no kernel reads is not in the modules.
    """
    assert cpu_module is not None
    if difference := _difference(cpu_module, operations):
        raise _other_sources(cpu_module, difference)
    on_both = set(cpu_module.handlers()) - set(cpu_module.cpu_operations())
    if cuda_module is not None and (names := on_both ^ set(cuda_module.handlers())):
        raise _other_sources(cuda_module, f"operations {', '.join(sorted(names))}")


def _difference(module: ModuleType, operations: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The first difference of the CPU module's operations from these."""
    names = {"check", *operations} ^ set(module.handlers())
    if names:
        return f"operations {', '.join(sorted(names))}"
    if not hasattr(module, "signatures"):
        return "names of operands"
    signatures, enumerations = module.signatures(), module.enumerations()
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


def _other_sources(module: ModuleType, difference: str) -> ImportError:
    return ImportError(
        f"{module.__file__} was not built of the sources in {pathlib.Path(__file__).parent.parent}: it has other "
        f"{difference}. Build it again: `pip install --no-cache-dir .` in the source folder, or `ninja -C build` where "
        "it was built by CMake."
    )


cpu_module = _load("_cpu")
cuda_module = _load("_cuda")
if cpu_module is None:
    raise ImportError("jax_mgpu is not built: its module _cpu is missing. Run `pip install .` in the source folder.")


def target(operation: str) -> str:
    """The FFI target name of an operation."""
    return f"jax_mgpu.{operation}"


def compiler_problem() -> str:
    """Why no function can be compiled for CUDA; nothing where all is well."""
    return "" if cuda_module is None else cuda_module.compiler_problem()


def _compiler_folders() -> list[str]:
    """Where packages of NVRTC have it: those that jax[cuda12] and jax[cuda13] depend on."""
    spec = importlib.util.find_spec("nvidia")
    roots = map(pathlib.Path, spec.submodule_search_locations or ()) if spec else ()
    folders = ("cu13/lib", "cuda_nvrtc/lib")
    return [str(root / folder) for root in roots for folder in folders if (root / folder).is_dir()]


def platforms() -> tuple[str, ...]:
    """The JAX platforms that have kernels."""
    return ("cpu",) if cuda_module is None else ("cpu", "cuda")


def has_cuda() -> bool:
    """Whether the CUDA kernels are built.

    Returns:
      True where the package has them, whether or not there is a GPU.

    Example:
      >>> import jax_mgpu as mgpu
      >>> mgpu.has_cuda() == mgpu.backends()["cuda"].startswith("CUDA kernels")
      True
    """
    return cuda_module is not None


def build_decision() -> str:
    """What the build found, what it built and how to change that; pip hides the build's own line."""
    assert cpu_module is not None
    return cpu_module.build


def backends() -> dict[str, str]:
    """What each JAX platform runs, in words.

    Returns:
      A description for each of `"cpu"`, `"cuda"` and `"others"`: kernels and the version of the FFI API they were built
      for, or plain JAX, for CUDA with what the build found, built and how to change that.

    Example:
      >>> import jax_mgpu as mgpu
      >>> list(mgpu.backends())
      ['cpu', 'cuda', 'others']
    """

    def api(module: ModuleType) -> str:
        return "FFI API {}.{}".format(*module.ffi_api_version)

    assert cpu_module is not None
    plain = "plain JAX, slower"
    cuda = f"{plain}: {build_decision()}"
    if cuda_module is not None:
        cuda = f"CUDA kernels for {cuda_module.architectures} by {cuda_module.compiler} ({api(cuda_module)})"
    return {"cpu": f"CPU kernels on XLA's threads ({api(cpu_module)})", "cuda": cuda, "others": plain}


def workspace_bytes(
    operation: str, operands: Sequence[Any], results: Sequence[Any], attributes: Mapping[str, int]
) -> int:
    """Bytes of scratch memory of the CUDA handler for avals of these shapes."""
    assert cpu_module is not None
    specs = [[(aval.dtype.name, list(aval.shape)) for aval in avals] for avals in (operands, results)]
    return cpu_module.workspace_bytes(operation, *specs, dict(attributes))


for _module, _platform in ((cpu_module, "cpu"), (cuda_module, "CUDA")):
    if _module is not None:
        for _operation, _handler in _module.handlers().items():
            jax.ffi.register_ffi_target(target(_operation), _handler, platform=_platform)
            jax.ffi.register_ffi_target_as_batch_partitionable(target(_operation))  # see partition.py

if cuda_module is not None:
    cuda_module.set_compiler_folders(_compiler_folders())
    for _operation, _stages in cuda_module.function_handlers().items():
        jax.ffi.register_ffi_target(target(_operation), _stages, platform="CUDA")
        jax.ffi.register_ffi_target_as_batch_partitionable(target(_operation))
