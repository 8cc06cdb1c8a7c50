"""Set operations on sorted multisets of spread, unique or 13 distinct keys."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from benchmarks import peers
from benchmarks.case import Case, HostPeer, agree_counted, array_bytes
from benchmarks.inputs import random_key, size_at

__all__ = ["CASES"]

# Milliseconds: maximum, target.
MILLISECONDS = {
    "intersection keys": (0.50, 0.25),
    "union keys": (0.55, 0.35),
    "intersection pairs": (0.80, 0.5),
    "union pairs": (1.0, 0.7),
}
OPERATIONS = ("intersection", "union", "difference", "symmetric_difference")
TAKES_B = ("union", "symmetric_difference")
FEW = 13
UNIQUE = 2 / 3  # unique keys are this share of the integers up to the largest key


# Makes sorted keys and their positions; if A and B are of one size, about half of the spread keys are in pairs.
@functools.cache
def _inputs(keys: str, ratio: float) -> Any:
    def make(rng: np.random.Generator, scale: float) -> tuple[Any, ...]:
        n = size_at(scale)
        sides = []
        for length in (n, max(1, int(ratio * n))):
            if keys == "unique":
                side = jnp.cumsum(jax.random.randint(random_key(rng), (length,), 1, 3, jnp.int32))
            else:
                limit = FEW if keys == "few" else n
                side = jnp.sort(jax.random.randint(random_key(rng), (length,), 0, limit, jnp.int32))
            sides.append(side.astype(jnp.uint32))
        values = jnp.arange(sides[0].size + sides[1].size, dtype=jnp.uint32)
        return *sides, values[: sides[0].size], values[sides[0].size :]

    return make


@functools.cache
def _kept(keys: str, ratio: float) -> dict[str, float]:
    """Returns the expected size of each result, as a fraction of A's."""
    if keys == "few":
        paired = ratio
    elif keys == "unique":
        paired = UNIQUE * ratio
    else:  # copies of a key follow Poisson's distribution
        odds = [[math.exp(-rate) * rate**k / math.factorial(k) for k in range(20)] for rate in (1.0, ratio)]
        paired = sum(p * q * min(i, j) for i, p in enumerate(odds[0]) for j, q in enumerate(odds[1]))
    return {
        "intersection": paired,
        "union": 1 + ratio - paired,
        "difference": 1 - paired,
        "symmetric_difference": 1 + ratio - 2 * paired,
    }


def _with_count(operation: str, keys: Any) -> Any:
    """Returns the keys, and how many are not padding, the largest uint32."""
    return keys, (keys != np.uint32(2**32 - 1)).sum().astype(np.int32)


def _difference(a: Any, b: Any, size: int, fill_value: Any) -> Any:
    """Does by a sort what `jnp.setdiff1d` does."""
    return a.at[jnp.nonzero(~jnp.isin(a, b, method="sort"), size=size, fill_value=a.size)].get(
        mode="fill", fill_value=fill_value
    )


def _xla(operation: str, a: Any, b: Any, v: Any, w: Any) -> Any:
    functions: dict[str, Callable[..., Any]] = {
        "intersection": jnp.intersect1d,
        "union": jnp.union1d,
        "difference": _difference,
        "symmetric_difference": jnp.setxor1d,
    }
    size = {"intersection": min(a.size, b.size), "difference": a.size}.get(operation, a.size + b.size)
    return _with_count(operation, functions[operation](a, b, size=size, fill_value=np.uint32(2**32 - 1)))


def _numpy(operation: str, a: Any, b: Any, v: Any, w: Any) -> Any:
    functions: dict[str, Callable[..., Any]] = {
        "intersection": functools.partial(np.intersect1d, assume_unique=True),
        "union": np.union1d,
        "difference": functools.partial(np.setdiff1d, assume_unique=True),
        "symmetric_difference": functools.partial(np.setxor1d, assume_unique=True),
    }
    return _with_count(operation, functions[operation](a, b))


def _ours(operation: str, form: str, duplicates: bool, a: Any, b: Any, v: Any, w: Any) -> Any:
    values = () if form == "keys" else (v, w) if operation in TAKES_B else (v,)
    return getattr(mgpu, f"set_{operation}")(a, b, *values, duplicates=duplicates)


def _thrust(operation: str, form: str, a: Any, b: Any, v: Any, w: Any) -> Any:
    values = () if form == "keys" else (v,) if operation == "intersection" else (v, w)
    return peers.cub(f"set_{operation}")(a, b, *values)


def _case(operation: str, form: str, keys: str = "spread", ratio: float = 1) -> Case:
    unique = keys == "unique"
    case_peers: dict[str, Any] = {"Thrust": functools.partial(_thrust, operation, form)}
    if unique:  # XLA and NumPy need unique keys
        case_peers = {
            "XLA": functools.partial(_xla, operation),
            **case_peers,
            "NumPy": HostPeer(functools.partial(_numpy, operation)),
        }
    plain = keys == "spread" and ratio == 1
    max_ms, target_ms = MILLISECONDS.get(f"{operation} {form}", (None, None)) if plain else (None, None)
    width = 1 if form == "keys" else 2
    reads_b = form == "keys" or operation in TAKES_B
    return Case(
        family="sets",
        name=f"{operation} {form}, {keys} keys" + ("" if ratio == 1 else f", B {ratio:.0%} of A"),
        inputs=_inputs(keys, ratio),
        ours=functools.partial(_ours, operation, form, not unique),
        peers=case_peers,
        bytes=lambda a, b, v, w: (
            width * array_bytes(a)
            + (width if reads_b else 1) * array_bytes(b)
            + 4 * width * int(_kept(keys, ratio)[operation] * a.size)
        ),
        max_ms=max_ms,
        target_ms=target_ms,
        agree=agree_counted,
    )


CASES = [
    *[_case(operation, form) for form in ("keys", "pairs") for operation in OPERATIONS],
    *[_case(operation, "keys", "unique") for operation in OPERATIONS],
    *[_case(operation, "keys", "few") for operation in OPERATIONS],
    *[_case(operation, "keys", "spread", ratio) for ratio in (0.25, 0.5, 0.75) for operation in OPERATIONS[:2]],
]
