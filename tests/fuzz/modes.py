"""The transformations under which a call runs."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_mgpu as mgpu
from jax_mgpu._src.keys.bits import is_narrow_float
from tests.fuzz.compare import Batch, Equal, Repeated, Zeros, values_of
from tests.fuzz.draw import Call

DEVICES = 4  # on a mesh, batches have multiples of this many rows, whatever the number of devices


def names_of(call: Call) -> list[str]:
    return list(call.draw(np.random.default_rng(0), True))


def leaf_count(call: Call) -> int:
    return len(call.oracle(**call.draw(np.random.default_rng(0), True)))


# ---- Changes of a call -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Mix:
    """A batch that may share operands: its size, and each operand's batch axis or None."""

    size: int
    axes: dict[str, int | None]

    @staticmethod
    def draw(call: Call, rng: np.random.Generator, sizes: tuple[int, ...], *, first: bool = False) -> Mix:
        names = names_of(call)
        mapped = [bool(rng.random() < 0.6) for _ in names] if rng.random() < 0.6 else [True] * len(names)
        if not any(mapped):
            mapped[int(rng.integers(len(names)))] = True
        sample = call.draw(np.random.default_rng(0), True)
        axes: dict[str, int | None] = {}
        for name, on in zip(names, mapped, strict=True):
            other = isinstance(sample[name], np.ndarray) and sample[name].ndim > 0 and rng.random() < 0.15 and not first
            axes[name] = (1 if other else 0) if on else None
        return Mix(int(rng.choice(sizes)), axes)

    @property
    def whole(self) -> bool:
        return all(axis is not None for axis in self.axes.values())

    def row(self, operands: dict[str, Any], b: int) -> dict[str, Any]:
        return {
            name: x
            if self.axes[name] is None
            else jax.tree.map(lambda leaf, axis=self.axes[name]: np.take(leaf, b, axis), x)
            for name, x in operands.items()
        }

    def of(self, call: Call, text: str, function: Callable[..., Any]) -> Call:
        leaves = leaf_count(call)

        def draw(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
            rows = [call.draw(rng, mixable or not self.whole) for _ in range(max(self.size, 1))]
            operands = {}
            for name, axis in self.axes.items():
                columns = [row[name] for row in rows]
                if axis is None:
                    operands[name] = columns[0]
                else:
                    stacked = jax.tree.map(lambda *xs, axis=axis: np.stack(xs, axis), *columns)
                    operands[name] = jax.tree.map(lambda x, axis=axis: np.take(x, range(self.size), axis), stacked)
            return operands

        def oracle(**operands: Any) -> list[Any]:
            rows = [call.oracle(**self.row(operands, b)) for b in range(self.size)]
            return [Batch([row[k] for row in rows]) for k in range(leaves)]

        shared = ",".join(name for name, axis in self.axes.items() if axis is None)
        return dataclasses.replace(
            call, text=f"{text}({self.size}{' shared ' * bool(shared)}{shared}) of {call.text}",
            function=function, draw=draw, oracle=oracle, linear=(),
        )  # fmt: skip

    def vmapped(self, call: Call, text: str, over: Callable[[dict[str, Any]], Any]) -> Call:
        batch = self.of(call, text, lambda **operands: over(operands))
        if self.whole or not self.size or jax.default_backend() != "cpu":
            return batch

        def oracle(**operands: Any) -> list[Any]:
            return [
                Batch(list(map(_repeated, leaf.leaves))) if self.jax_repeats(call, k, leaf, operands) else leaf
                for k, leaf in enumerate(batch.oracle(**operands))
            ]

        return dataclasses.replace(batch, oracle=oracle)

    def jax_repeats(self, call: Call, k: int, leaf: Any, operands: dict[str, Any]) -> bool:
        """Whether result k has narrow floats and does not depend on the batch."""
        if not _is_narrow(leaf):
            return False
        one = over_dict(call)
        alone = jax.vmap(lambda operands: jax.tree.leaves(one(operands))[k], in_axes=(self.axes,), out_axes=None)
        try:
            jax.eval_shape(alone, operands)
        except ValueError:  # it has a batch axis
            return False
        return True


def batched(call: Call, rng: np.random.Generator) -> Call:
    mix = Mix.draw(call, rng, (0, 1, 2, 2, 3, 5))
    return mix.vmapped(call, "vmap", jax.vmap(over_dict(call), in_axes=(mix.axes,)))


def _is_narrow(leaf: Any) -> bool:
    if isinstance(leaf, Batch):
        return any(map(_is_narrow, leaf.leaves))
    return isinstance(leaf, np.ndarray | Equal) and is_narrow_float(values_of(leaf).dtype)


def _repeated(leaf: Any) -> Any:
    if isinstance(leaf, Batch):
        return Batch([_repeated(row) for row in leaf.leaves])
    return Repeated(values_of(leaf)) if isinstance(leaf, np.ndarray | Equal) else leaf


def scanned(call: Call, rng: np.random.Generator) -> Call:
    mix = Mix.draw(call, rng, (1, 3), first=True)

    def function(**operands: Any) -> Any:
        xs = {name: x for name, x in operands.items() if mix.axes[name] is not None}
        others = {name: x for name, x in operands.items() if mix.axes[name] is None}
        return jax.lax.scan(lambda carry, x: (carry, call.function(**x, **others)), 0, xs)[1]

    narrow = ("float8", "bfloat16") if jax.__version_info__ < (0, 11) else ("float8",)
    return mix.of(_with_any_nan(call, narrow), "scan", function)


def _with_any_nan(call: Call, narrow: tuple[str, ...]) -> Call:
    def oracle(**operands: Any) -> list[Any]:
        return [_any_nan(leaf, narrow) for leaf in call.oracle(**operands)]

    return dataclasses.replace(call, oracle=oracle)


def _any_nan(leaf: Any, narrow: tuple[str, ...]) -> Any:
    """May make an expected leaf of these types accept any NaN: on a CPU, XLA makes some NaNs of them quiet."""
    if isinstance(leaf, Batch):
        return Batch([_any_nan(row, narrow) for row in leaf.leaves])
    quiets = isinstance(leaf, np.ndarray) and leaf.dtype.name.startswith(narrow) and jax.default_backend() == "cpu"
    return Equal(leaf) if quiets else leaf


def looped(call: Call, rng: np.random.Generator) -> Call:
    del rng

    def function(**operands: Any) -> Any:
        shapes = jax.eval_shape(over_dict(call), operands)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.while_loop(
            lambda state: state[0] < 2, lambda state: (state[0] + 1, call.function(**operands)), (0, zeros)
        )[1]

    return dataclasses.replace(call, text=f"while of {call.text}", function=function)


def branched(call: Call, rng: np.random.Generator) -> Call:
    """Returns the call as a branch of lax.cond whose other branch returns zeros."""
    del rng
    leaves = leaf_count(call)

    def draw(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        return {**call.draw(rng, mixable), "on": np.asarray(rng.random() < 0.7)}

    def function(on: Any, **operands: Any) -> Any:
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(over_dict(call), operands))
        return jax.lax.cond(on, lambda: call.function(**operands), lambda: zeros)

    def oracle(on: Any, **operands: Any) -> list[Any]:
        return call.oracle(**operands) if on else [Zeros()] * leaves

    return dataclasses.replace(call, text=f"cond of {call.text}", function=function, draw=draw, oracle=oracle)


def over_dict(call: Call) -> Callable[[dict[str, Any]], Any]:
    return lambda operands: call.function(**operands)


# ---- How a call runs -------------------------------------------------------------------------------------------------

Start = Callable[[dict[str, Any]], Any]


def eager(call: Call, sample: Any) -> Start:
    """Runs without jit, on NumPy arrays, JAX arrays and Python numbers."""
    del sample
    # Within a loop or branch, JAX's vmap fails for a custom_jvp of NumPy arrays.
    inside = call.text.startswith(("scan", "while", "cond"))

    def start(operands: dict[str, Any]) -> Any:
        given = {}
        for i, (name, x) in enumerate(operands.items()):
            if not isinstance(x, np.ndarray):
                given[name] = jax.tree.map(jnp.asarray, x) if inside else x
            elif x.ndim == 0 and x.dtype.kind in "iu" and name.endswith(("count", "total")):
                given[name] = int(x)
            else:
                given[name] = jnp.asarray(x) if i % 2 or inside else x
        return call.function(**given)

    return start


def jitted(call: Call, sample: Any) -> Start:
    del sample
    return jax.jit(over_dict(call))


def ahead_of_time(call: Call, sample: Any) -> Start:
    return jax.jit(over_dict(call)).lower(sample).compile()


def exported(call: Call, sample: Any) -> Start:
    leaves = jax.jit(lambda operands: jax.tree.leaves(call.function(**operands)))
    out = jax.export.export(leaves, disabled_checks=mgpu.export_checks())(sample)
    return jax.export.deserialize(out.serialize()).call


def donated(call: Call, sample: Any) -> Start:
    del sample
    program = jax.jit(over_dict(call), donate_argnums=0)

    def start(operands: dict[str, Any]) -> Any:
        with warnings.catch_warnings(action="ignore"):  # some operands' buffers have no use
            return program(jax.tree.map(jnp.array, operands))

    return start


def twice(call: Call, sample: Any) -> Start:
    """Runs a call twice, which must give the same bits."""
    del sample
    program = jax.jit(over_dict(call))

    def start(operands: dict[str, Any]) -> Any:
        first, second = jax.device_get((program(operands), program(operands)))
        for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
            if x.tobytes() != y.tobytes():
                raise AssertionError("a second run gave other bits")
        return first

    return start


def fits_checks(words: list[str]) -> bool:
    """Whether a call can run with checks."""
    if {"shared", "short"} & set(words):
        return False
    return "derivative" not in words or not any(word.startswith("size=") for word in words)


@contextlib.contextmanager
def strict_checks() -> Iterator[None]:
    """Enables checks under strict promotion of types."""
    with mgpu.checks(), jax.numpy_dtype_promotion("strict"):
        yield


@dataclasses.dataclass(frozen=True)
class Runner:
    """A way to run a call.

    Attributes:
      start: makes the function that runs, from the call and sample operands.
      context: the settings for tracing and running.
      weight: how often it is drawn.
      draws: the maximum number of draws of values.
      fits: whether a call can run in this mode.
    """

    start: Callable[[Call, Any], Start]
    context: Callable[[], Any] = contextlib.nullcontext
    weight: float = 1
    draws: int = 128
    fits: Callable[[Call], bool] = lambda call: True


RUNNERS = {
    "jit": Runner(jitted, weight=10),
    "eager": Runner(eager, weight=2, draws=12),
    "aot": Runner(ahead_of_time, weight=2),
    "export": Runner(exported, weight=1.2),
    "donate": Runner(donated, weight=1.2),
    "twice": Runner(twice, weight=0.8, draws=16),
    "strict": Runner(jitted, lambda: jax.numpy_dtype_promotion("strict"), weight=1.5, draws=24),
    "leaks": Runner(jitted, jax.checking_leaks, weight=0.3, draws=8),
    "nans": Runner(jitted, lambda: jax.debug_nans(True), weight=0.8, draws=32, fits=lambda call: call.finite),
    "no_jit": Runner(eager, jax.disable_jit, weight=0.2, draws=3),
    "checks": Runner(
        jitted,
        strict_checks,
        weight=1.2,
        draws=32,
        fits=lambda call: fits_checks(call.text.replace(")", " ").split()),
    ),
}


# ---- Meshes ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def on_mesh(mesh: Any) -> Iterator[None]:
    with jax.set_mesh(mesh):
        yield


def mesh_of(axis_type: Any) -> Any:
    devices = jax.devices()[:DEVICES]
    return jax.make_mesh((len(devices),), ("x",), axis_types=(axis_type,), devices=devices)


def meshed(call: Call, rng: np.random.Generator) -> tuple[str, Call, Runner]:
    """Returns the call over a mesh, as a batch or along its own axis."""
    # XLA gathers an operation's own axis through sums, in which subnormals may become zeros.
    kind = str(
        rng.choice(["shard_map", "explicit", "auto", *["own_explicit"] * (call.finite and " of " not in call.text)])
    )
    mesh = mesh_of(AxisType.Explicit if "explicit" in kind else AxisType.Auto)
    one = over_dict(call)
    if kind == "own_explicit":
        specs = {}
        for name, x in call.draw(np.random.default_rng(0), True).items():
            along = all(leaf.ndim and leaf.shape[0] % DEVICES == 0 for leaf in jax.tree.leaves(x))
            specs[name] = P("x") if along and rng.random() < 0.7 else P()
        batch = call
    else:
        mix = Mix.draw(call, rng, (DEVICES, 2 * DEVICES), first=True)
        specs = {name: P() if axis is None else P("x") for name, axis in mix.axes.items()}
        over = jax.vmap(one, in_axes=(mix.axes,))
        if kind == "shard_map":
            over = jax.shard_map(over, mesh=mesh, in_specs=(specs,), out_specs=P("x"))
        else:  # XLA's collectives on a CPU convert these types to float32
            call = _with_any_nan(call, ("float8", "bfloat16"))
        batch = mix.vmapped(call, kind, over)

    def start(call: Call, sample: Any) -> Start:
        del sample
        program = jax.jit(over_dict(call))

        def run(operands: dict[str, Any]) -> Any:
            placed = {
                name: jax.tree.map(lambda leaf, spec=specs[name]: jax.device_put(leaf, NamedSharding(mesh, spec)), x)
                for name, x in operands.items()
            }
            return program(placed)

        return run

    return kind, batch, Runner(start, lambda: on_mesh(mesh), draws=12)
