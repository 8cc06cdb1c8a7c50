"""Settings that speed up many small programs."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

MODULES_A_CONTEXT = 64  # a context keeps data of each module, which would fill the memory


def lower_quickly() -> None:
    """Speeds up lowering and Python."""
    import jax

    jax.config.update("jax_traceback_in_locations_limit", 0)
    gc.set_threshold(100_000, 50, 1000)
    if jax.__version_info__ < (0, 11):
        _share_contexts()


def _share_contexts() -> None:
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    make = mlir.make_ir_context
    kept = threading.local()

    def context() -> Any:
        try:
            ir.InsertionPoint.current  # noqa: B018 - an error unless a module is being made
            return make()
        except ValueError:
            pass
        if getattr(kept, "left", 0) == 0:
            kept.context, kept.left = make(), MODULES_A_CONTEXT
        kept.left -= 1
        return kept.context

    mlir.make_ir_context = context


def compile_quickly() -> None:
    """Speeds up XLA's compilation on a CPU. Call this before JAX is asked for devices."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_backend_extra_options" not in flags:
        flags += " --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
    if "xla_cpu_parallel_codegen_split_count" not in flags:
        flags += " --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = flags.strip()
    import jax

    if jax.default_backend() == "cpu":
        jax.config.update("jax_disable_most_optimizations", True)
