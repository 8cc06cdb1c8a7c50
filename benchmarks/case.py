"""One row of the benchmarks: an operation, its rivals, and its target times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["Case", "HostPeer", "TorchPeer", "agree_counted", "agree_within", "array_bytes", "equal"]


@dataclasses.dataclass(frozen=True)
class HostPeer:
    """A rival that runs on NumPy arrays, and is timed only if JAX's device is the CPU."""

    function: Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class TorchPeer:
    """A rival that takes PyTorch and its arrays, and is timed only if PyTorch has JAX's GPU too.

    PyTorch sorts few unsigned types, so it gets those as signed ones: its result is not compared with ours.

    Args:
      function: takes the module `torch`, then the arrays.
      waits: whether the host waits for a size within the call, which excludes CUDA graphs.
    """

    function: Callable[..., Any]
    waits: bool = False


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the benchmarks.

    Args:
      family: name of the module.
      name: distinguishes the row within its family.
      inputs: a function from `(rng, scale)` to a tuple of NumPy or JAX arrays. Sizes are `int(2**26 * scale)` and so
        on: scale 1 is the size of the published figures, on a GPU; less on a CPU. Rows that share this function share
        the arrays.
      ours: jittable, takes the inputs. peers: rivals by name, jittable with the same inputs, or a `HostPeer` or a
      `TorchPeer`. bytes: from the input arrays to the fewest bytes, with each input read once and each output written
      once. must_reach: milliseconds on an H200 at scale 1. aim: a more ambitious target, in milliseconds too. agree:
      whether a rival's result equals ours; the default is exact equality of the arrays. x64: run with 64-bit types.
    """

    family: str
    name: str
    inputs: Callable[..., tuple[Any, ...]]
    ours: Callable[..., Any]
    peers: Mapping[str, Callable[..., Any] | HostPeer | TorchPeer]
    bytes: Callable[..., int]
    must_reach: float | None = None
    aim: float | None = None
    agree: Callable[[Any, Any], bool] | None = None
    x64: bool = False

    @property
    def row(self) -> str:
        """The name that a command line gives to the row."""
        return f"{self.family}/{self.name}"


def array_bytes(*arrays: Any) -> int:
    """Bytes of arrays."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(arrays))


@jax.jit
def _all_equal(x: jax.Array, y: jax.Array) -> jax.Array:
    same = x == y
    if jnp.issubdtype(x.dtype, jnp.inexact):
        same |= jnp.isnan(x) & jnp.isnan(y)
    return jnp.all(same)


def equal(ours: Any, theirs: Any) -> bool:
    """Exact equality of the arrays in two pytrees; NaN equals NaN."""
    pairs = list(zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True))
    return all(x.shape == y.shape and bool(_all_equal(x, y)) for x, y in pairs)


def agree_counted(ours: Any, theirs: Any) -> bool:
    """Equality of results whose last array is the number of live items; items past it may be anything."""
    *ours_arrays, count = jax.tree.leaves(ours)
    *theirs_arrays, their_count = jax.tree.leaves(theirs)
    live = int(count.reshape(()))
    return live == int(their_count.reshape(())) and equal(
        [x[:live] for x in ours_arrays], [x[:live] for x in theirs_arrays]
    )


def agree_within(relative: float) -> Callable[[Any, Any], bool]:
    """Equality up to rounding: differences below `relative` times the largest magnitude of the array."""

    def agree(ours: Any, theirs: Any) -> bool:
        def close(x: jax.Array, y: jax.Array) -> bool:
            x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
            largest = jnp.max(jnp.abs(y), initial=0)
            return x.shape == y.shape and bool(jnp.max(jnp.abs(x - y), initial=0) <= relative * largest)

        return all(close(x, y) for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True))

    return agree
