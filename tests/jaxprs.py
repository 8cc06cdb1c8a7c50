"""Finds the calls of kernels in a program, and the scratch memory that these take on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.core

from jax_mgpu._src.core import library
from jax_mgpu._src.core.operation import REGISTRY, stored_aval


def kernel_calls(function: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
    """Yields the equations of jax_mgpu's primitives, inner programs included."""

    def walk(jaxpr: Any) -> Iterator[Any]:
        for equation in jaxpr.eqns:
            if equation.primitive.name.startswith("mgpu_"):
                yield equation
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from walk(inner)

    return walk(jax.make_jaxpr(function)(*arguments).jaxpr)


def scratch_bytes(call: Any) -> int:
    """Returns a kernel call's bytes of scratch memory on CUDA; 0 if no kernel runs there."""
    operation = REGISTRY[call.primitive.name.removeprefix("mgpu_")]
    operands, results = ([stored_aval(variable.aval) for variable in some] for some in (call.invars, call.outvars))
    has_kernels = bool(library.platforms()) and operation.only in (None, "cuda")
    if not has_kernels or operation.prefers_xla(operands, call.params, "cuda", 1):
        return 0
    return library.workspace_bytes(operation.name, operands, results, operation.call_attributes(operands, call.params))


def size_scratch_memory(function: Callable[..., Any], *arguments: Any) -> None:
    """On a CPU, runs the rules that size scratch memory for CUDA: otherwise, only lowering for CUDA runs them."""
    if jax.default_backend() == "cpu":
        for call in kernel_calls(function, *arguments):
            if call.primitive.name.removeprefix("mgpu_") in REGISTRY:
                scratch_bytes(call)
