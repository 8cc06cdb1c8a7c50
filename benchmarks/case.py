"""A case of the benchmarks: an operation, its peers, and its target times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

__all__ = ["Case", "Deterministic", "HostPeer", "TorchPeer", "agree_counted", "agree_within", "array_bytes", "equal"]


@dataclasses.dataclass(frozen=True)
class Deterministic:
    """A peer that XLA compiles so that every run on a GPU gives the same bits, as ours does."""

    function: Callable[..., Any]
    options: ClassVar[dict[str, bool]] = {"xla_gpu_deterministic_ops": True}

    def __call__(self, *arrays: Any) -> Any:
        return self.function(*arrays)


@dataclasses.dataclass(frozen=True)
class HostPeer:
    """A peer that runs on NumPy arrays, and is timed only if JAX's device is the CPU."""

    function: Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class TorchPeer:
    """A peer on PyTorch's arrays, timed only if PyTorch has JAX's GPU too.

    PyTorch sorts few unsigned types, so unsigned integers are reinterpreted as signed ones. That peer's result is not
    compared with ours.

    Args:
      function: takes the module `torch` and PyTorch's arrays.
      waits: whether the host waits for a size within the call, which excludes CUDA graphs.
    """

    function: Callable[..., Any]
    waits: bool = False


@dataclasses.dataclass(frozen=True)
class Case:
    """One case of the benchmarks.

    Args:
      family: name of the module.
      name: distinguishes the case within its family.
      inputs: makes the arrays from `(rng, scale)`; scale 1 is mostly 2^26 items. Cases that share it share arrays.
      ours: our function, jittable, which takes the arrays.
      peers: the peers by name: a jittable function of the same arrays, a `HostPeer` or a `TorchPeer`.
      bytes: computes, from the arrays, the bytes of one read of each input and one write of each output.
      max_ms: the longest time that an H200 may take at scale 1, in milliseconds.
      target_ms: a more ambitious time, in milliseconds.
      agree: whether a peer's result equals ours. By default, the arrays must be equal.
      x64: whether the case runs with 64-bit types.
      replaces: the peer with our function's name. It may be faster than ours by at most 5%. If our function calls it,
        neither is timed.
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
        """The name by which a command line selects the case."""
        return f"{self.family}/{self.name}"


def array_bytes(*arrays: Any) -> int:
    """Adds the sizes of arrays, in bytes."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(arrays))


@jax.jit
def _all_equal(x: jax.Array, y: jax.Array) -> jax.Array:
    same = x == y
    if jnp.issubdtype(x.dtype, jnp.inexact):
        same |= jnp.isnan(x) & jnp.isnan(y)
    return jnp.all(same)


def equal(ours: Any, theirs: Any) -> bool:
    """Compares the arrays in two pytrees exactly; NaN equals NaN."""
    pairs = list(zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True))
    return all(x.shape == y.shape and bool(_all_equal(x, y)) for x, y in pairs)


def agree_counted(ours: Any, theirs: Any) -> bool:
    """Compares results whose last array is the number of live items. Items past that number may differ."""
    *ours_arrays, count = jax.tree.leaves(ours)
    *theirs_arrays, their_count = jax.tree.leaves(theirs)
    live = int(count.reshape(()))
    return live == int(their_count.reshape(())) and equal(
        [x[:live] for x in ours_arrays], [x[:live] for x in theirs_arrays]
    )


def agree_within(relative: float) -> Callable[[Any, Any], bool]:
    """Returns a comparison that allows differences of up to `relative` times the largest magnitude in an array."""

    def agree(ours: Any, theirs: Any) -> bool:
        def close(x: jax.Array, y: jax.Array) -> bool:
            x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
            largest = jnp.max(jnp.abs(y), initial=0)
            return x.shape == y.shape and bool(jnp.max(jnp.abs(x - y), initial=0) <= relative * largest)

        return all(close(x, y) for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True))

    return agree
