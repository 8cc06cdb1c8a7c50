"""64-bit numbers from NumPy, without 64-bit types: calls accept them if they fit, and never truncate them."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np

import jax_mgpu as mgpu
from tests.fuzz.broken import Other
from tests.fuzz.misuse import FUNCTIONS

WIDE = {"keys", "positions", "count"}  # kinds of arguments that may have 64 bits
FAR = (2**32, 2**32 + 1, 2**32 + 3, 2**33 + 2, 2**63 - 1)


def wide(rng: np.random.Generator) -> Other:
    """Draws a function; each run passes it 64-bit numbers."""
    name = str(rng.choice([name for name, function in FUNCTIONS.items() if WIDE & set(function.kinds.values())]))
    valid, kinds = FUNCTIONS[name].valid, FUNCTIONS[name].kinds
    call = getattr(mgpu, name)

    def leaves(given: dict[str, Any]) -> list[np.ndarray]:
        return jax.tree.leaves(jax.device_get(call(**given)))

    def run(rng: np.random.Generator) -> None:
        argument = str(rng.choice([a for a, kind in kinds.items() if kind in WIDE]))
        dtype = str(rng.choice(["int64", "uint64"]))
        names = [argument]
        if kinds[argument] == "keys":  # all arrays of keys have the same type
            names = [a for a, kind in kinds.items() if kind == "keys"]
        given = dict(valid)
        for each in names:
            given[each] = np.asarray(valid.get(each, 2), dtype)
        fits = rng.random() < 0.3
        like = {**valid, argument: np.asarray(valid.get(argument, 2), "int32")} if dtype == "int64" else None
        if not fits:
            x = given[argument] = given[argument].copy()
            x[(-1,) if x.ndim else ()] = rng.choice(FAR if dtype == "uint64" else (2**31, 2**31 + 1, *FAR))
            like = {**valid, argument: np.minimum(x, 2**31 - 1).astype(np.int32)}
        what = f"{argument} = {given[argument]!r}"
        with jax.enable_x64(False):
            try:
                got = leaves(given)
            except (TypeError, ValueError) as error:
                if fits or not re.match(rf"{name}: {argument}: expected .+, got .+", str(error)):
                    raise AssertionError(f"{what}: {error}") from error
                return
            if not fits and kinds[argument] != "positions":
                raise AssertionError(f"{what}: taken")
            if like is not None:  # a number that does not fit is padding, as in `like`
                for x, y in zip(got, leaves(like), strict=True):
                    if x.dtype == y.dtype and x.tobytes() != y.tobytes():
                        raise AssertionError(f"{what}: {x}, expected {y}")

    return Other(name, "eager", 24, run)
