"""`explain`: what each operation of a program runs, even without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from jax_mgpu._src.core import library
from jax_mgpu._src.core.compat import Jaxpr, JaxprEqn, inner_jaxprs
from jax_mgpu._src.core.operation import REGISTRY, Operation, run_fallback, stored_aval

__all__ = ["Explanation", "Step", "explain"]


class _Device(NamedTuple):
    traits: library.Traits
    peak: float  # bytes per second


def _gpu(processors: int, shared_kib: int, l2_mib: int, capability: int, terabytes: float) -> _Device:
    return _Device(library.Traits(processors, shared_kib << 10, l2_mib << 20, capability), terabytes * 1e12)


DEVICES = {
    "T4": _gpu(40, 64, 4, 75, 0.32),
    "A100": _gpu(108, 163, 40, 80, 2.04),
    "L4": _gpu(58, 99, 48, 89, 0.3),
    "L40S": _gpu(142, 99, 96, 89, 0.864),
    "RTX 4090": _gpu(128, 99, 72, 89, 1.008),
    "H100": _gpu(132, 227, 50, 90, 3.35),
    "H200": _gpu(132, 227, 50, 90, 4.8),
    "B200": _gpu(148, 227, 126, 100, 8.0),
}
COPIED = 0.85  # the part of the peak that a copy reaches: 4.05 to 4.11 TB/s on an H200


class Step(NamedTuple):
    """What one operation of a program runs.

    Attributes:
      operation: its name. A public function may consist of several.
      variant: the name of the variant; `"one kernel"` if there is only one, `"threads"` on a CPU, `"plain JAX"`, or
        `"a compiled function"` for a kernel that CUDA compiles from a caller's function.
      condition: why this variant was chosen; empty if there is no choice.
      tiles: the items per block, by name of the tile.
      passes: passes over memory; one reads the operands and writes the results.
      scratch_bytes: the program's scratch memory for the operation.
      seconds: the time of the passes at the speed of a copy; None if unknown, as on a CPU and for plain JAX.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> (step,) = mgpu.explain(mgpu.merge, device="H200")(jnp.arange(9), jnp.arange(5)).steps
      >>> step.operation, step.variant
      ('merge', 'one kernel')
    """

    operation: str
    variant: str
    condition: str
    tiles: dict[str, int]
    passes: float
    scratch_bytes: int
    seconds: float | None


class Explanation(NamedTuple):
    """What a program runs; as text, a table.

    Attributes:
      steps: a `Step` for each operation, in the order of the program.

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> explanation = mgpu.explain(mgpu.merge, device="H200")(jnp.arange(9), jnp.arange(5))
      >>> [step.operation for step in explanation.steps]
      ['merge']
    """

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        head = ("operation", "variant", "condition", "tiles", "passes", "scratch bytes", "at copy speed")
        rows = [head, *map(_cells, self.steps)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _cells(step: Step) -> tuple[str, ...]:
    tiles = ", ".join(f"{name} {size}" for name, size in step.tiles.items())
    time = "" if step.seconds is None else f"{step.seconds * 1e6:.3g} us"
    passes = "" if step.seconds is None else f"{step.passes:g}"
    return step.operation, step.variant, step.condition, tiles, passes, str(step.scratch_bytes), time


def explain(function: Callable[..., Any], *, device: str | None = None) -> Callable[..., Explanation]:
    """Tells which kernels, or plain JAX, each operation in a function will run.

    Nothing is run, and no GPU is needed: shapes, types and the device decide. Operations inside `jit`, `vmap`, loops
    and branches are listed once each.

    Args:
      function: a function of arrays that `jax.jit` can compile.
      device: `"cpu"`, or the name of a GPU: `"T4"`, `"A100"`, `"L4"`, `"L40S"`, `"RTX 4090"`, `"H100"`, `"H200"` or
        `"B200"`. None stands for JAX's default GPU, or for an H200 if it is none of these. Without a GPU, None stands
        for `"cpu"`.

    Returns:
      A function of the same arguments or their `jax.ShapeDtypeStruct`s. It returns an `Explanation`, whose
      `steps` are a `Step` for each operation, and which is printed as a table.

    Raises:
      ValueError: no device of this name is known.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jax_mgpu as mgpu
      >>> keys = jax.ShapeDtypeStruct((1 << 26,), jnp.uint32)
      >>> explanation = mgpu.explain(mgpu.sort, device="H200")(keys)
      >>> [(step.operation, step.variant, step.passes) for step in explanation.steps]
      [('segmented_sort', 'digits', 4.5)]
    """
    name = _default_device() if device is None else device
    if name != "cpu" and name not in DEVICES:
        raise ValueError(f"explain: device: expected None, cpu or one of {', '.join(DEVICES)}, got {device!r}")

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        return Explanation(tuple(_steps(jax.make_jaxpr(function)(*args, **kwargs).jaxpr, name)))

    return explained


def _default_device() -> str:
    if jax.default_backend() != "gpu":
        return "cpu"
    return device_of_kind(jax.devices()[0].device_kind)


def device_of_kind(kind: str) -> str:
    """Returns the device with the longest name within `kind` (an L40S is no L4); by default the H200."""
    return max((name for name in DEVICES if name in kind), key=len, default="H200")


def _steps(jaxpr: Jaxpr, device: str) -> Iterator[Step]:
    """Yields steps of a program and its subprograms, without other platforms' branches."""
    platform = "cpu" if device == "cpu" else "cuda"
    for equation in jaxpr.eqns:
        operation = REGISTRY.get(_name(equation))
        if operation is not None and operation.primitive is equation.primitive:
            yield from _of_call(operation, equation, device)
        elif platforms := equation.params.get("branches_platforms"):
            branch = next(i for i, names in enumerate(platforms) if names is None or platform in names)
            yield from _steps(equation.params["branches"][branch].jaxpr, device)
        elif equation.primitive.name.startswith("mgpu_"):
            is_compiled = platform == "cuda" and _name(equation).endswith("_by_function")
            yield Step(_name(equation), "a compiled function" if is_compiled else "plain JAX", "", {}, 1, 0, None)
        else:
            for inner in inner_jaxprs(equation):
                yield from _steps(inner, device)


def _name(equation: JaxprEqn) -> str:
    return str(equation.primitive.name).removeprefix("mgpu_")


def _of_call(operation: Operation, equation: Any, device: str) -> Iterator[Step]:
    operands, results = ([stored_aval(x.aval) for x in xs] for xs in (equation.invars, equation.outvars))
    platform = "cpu" if device == "cpu" else "cuda"
    is_plain = not library.platforms() or operation.only not in (None, platform)
    if is_plain or operation.prefers_xla(operands, equation.params, platform, 1):
        yield Step(operation.name, "plain JAX", "no kernel takes this call, or XLA is faster", {}, 1, 0, None)

        def plain(*xs: Any) -> Sequence[Any]:
            return run_fallback(operation, xs, equation.params)

        yield from _steps(jax.make_jaxpr(plain)(*operands).jaxpr, device)
    elif platform == "cpu":
        yield Step(operation.name, "threads", "a CPU", {}, 1, 0, None)
    else:
        yield _on_gpu(operation, operands, results, equation.params, DEVICES[device])


def _on_gpu(
    operation: Operation, operands: Sequence[Any], results: Sequence[Any], params: dict[str, Any], device: _Device
) -> Step:
    plan = library.plan(operation.name, operands, results, operation.call_attributes(operands, params), device.traits)
    moved = sum(x.size * x.dtype.itemsize for x in (*operands, *results))
    return Step(
        operation.name,
        plan["variant"] or "one kernel",
        plan["condition"],
        plan["tiles"],
        plan["passes"],
        plan["scratch"],
        plan["passes"] * moved / (COPIED * device.peak),
    )
