from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

__all__ = ["Case", "Deterministic", "HostPeer", "TorchPeer", "agree_counted", "agree_within", "array_bytes", "equal"]


@dataclasses.dataclass(frozen=True)
class Deterministic:
    """A peer that XLA compiles to give the same bits in every run, as our function does."""

    function: Callable[..., Any]
    options: ClassVar[dict[str, bool]] = {"xla_gpu_deterministic_ops": True}

    def __call__(self, *arrays: Any) -> Any:
        return self.function(*arrays)


@dataclasses.dataclass(frozen=True)
class HostPeer:
    """A peer on NumPy arrays, timed only if JAX's device is the CPU."""

    function: Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class TorchPeer:
    """A peer on PyTorch's arrays, timed only if PyTorch has JAX's GPU too.

    Unsigned integers of more than 8 bits are reinterpreted as signed ones, because PyTorch sorts few unsigned types.
    PyTorch's results are not compared with ours.

    Args:
      function: takes the module `torch` and PyTorch's arrays.
      waits: whether the host waits for a size within the call, which excludes CUDA graphs.
    """

    function: Callable[..., Any]
    waits: bool = False


@dataclasses.dataclass(frozen=True)
class Case:
    """A case: an operation, its peers, and its limits of time.

    Args:
      name: the case's name within its family, a module.
      inputs: makes the arrays from `(rng, scale)`; scale 1 is mostly 2^26 items. Cases with one function share arrays.
      ours: our jittable function of the arrays.
      peers: jittable functions of the same arrays, `HostPeer`s or `TorchPeer`s, by name.
      bytes: computes, from the arrays, the bytes of one read of each input and one write of each output.
      max_ms: an H200's limit at scale 1.
      target_ms: a more ambitious time.
      agree: whether a peer's result equals ours. Arrays must be equal by default.
      x64: whether the case runs with 64-bit types.
      replaces: the peer with our function's name, which may be faster by at most 5%. If our function runs no kernel, no
        side is timed.
    """

    family: str
    name: str
    inputs: Callable[..., tuple[Any, ...]]
    ours: Callable[..., Any]
    peers: Mapping[str, Callable[..., Any] | HostPeer | TorchPeer]
    bytes: Callable[..., int]
    max_ms: float | None = None
    target_ms: float | None = None
    agree: Callable[[Any, Any], bool] | None = None
    x64: bool = False
    replaces: str | None = None

    @property
    def full_name(self) -> str:
        return f"{self.family}/{self.name}"


def array_bytes(*arrays: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(arrays))


@jax.jit
def _all_equal(x: jax.Array, y: jax.Array) -> jax.Array:
    same = x == y
    if jnp.issubdtype(x.dtype, jnp.inexact):
        same |= jnp.isnan(x) & jnp.isnan(y)
    return jnp.all(same)


def equal(ours: Any, theirs: Any) -> bool:
    """Compares arrays exactly; NaN equals NaN."""
    pairs = list(zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True))
    return all(x.shape == y.shape and bool(_all_equal(x, y)) for x, y in pairs)


def agree_counted(ours: Any, theirs: Any) -> bool:
    """Compares results up to the number of live items, which their last array holds."""
    *ours_arrays, count = jax.tree.leaves(ours)
    *theirs_arrays, their_count = jax.tree.leaves(theirs)
    live = int(count.reshape(()))
    return live == int(their_count.reshape(())) and equal(
        [x[:live] for x in ours_arrays], [x[:live] for x in theirs_arrays]
    )


def agree_within(relative: float) -> Callable[[Any, Any], bool]:
    """Allows differences of up to `relative` times an array's largest magnitude."""

    def agree(ours: Any, theirs: Any) -> bool:
        def close(x: jax.Array, y: jax.Array) -> bool:
            x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
            largest = jnp.max(jnp.abs(y), initial=0)
            return x.shape == y.shape and bool(jnp.max(jnp.abs(x - y), initial=0) <= relative * largest)

        return all(close(x, y) for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True))

    return agree
