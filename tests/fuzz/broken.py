"""Broken preconditions: without checks, no crash and no write out of bounds; with checks, errors of one form."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests import data, families, oracle
from tests.fuzz import any_order, rows, segments
from tests.fuzz.draw import Call, Shape

MAKES = (*families.DRAWN.values(), rows.rows, any_order.any_order)
# Calls with Segments have other preconditions, which tests/test_segments.py breaks.
OF_GARBAGE = (*MAKES, segments.segments)
KEYS = ("a", "b", "needles", "haystack")
POSITIONS = ("heads", "ends", "offsets", "indices", "order", "lengths", "gather_starts", "scatter_starts")
POSITIONS += ("a_order", "b_order", "ids", "starts")
CANARY = 0x5AFE_C0DE


@dataclasses.dataclass(frozen=True)
class Other:
    """A case without an oracle: `run` raises if something is wrong."""

    text: str
    mode: str
    draws: int
    run: Callable[[np.random.Generator], None]


def _call(rng: np.random.Generator, makes: tuple[Callable[[Shape], Call], ...], largest: int) -> tuple[Call, str]:
    shape = Shape(rng, largest=largest)
    call = makes[int(rng.integers(len(makes)))](shape)
    return call, f"{call.text}: {' '.join(filter(None, shape.words))}{' x64' * shape.x64}"


def any_positions(rng: np.random.Generator, x: np.ndarray, n: int) -> np.ndarray:
    """Draws positions, in range or out of it."""
    limits = np.iinfo(x.dtype)
    corners = [limits.min, limits.min + 1, -61, -1, 0, n - 1, n, n + 1, limits.max - 1, limits.max]
    corners = [c for c in corners if limits.min <= c <= limits.max]
    anything = np.frombuffer(rng.bytes(x.nbytes), x.dtype).reshape(x.shape)
    almost_valid = rng.integers(max(-5, limits.min), min(n + 6, limits.max) + 1, x.shape).astype(x.dtype)
    chosen = rng.choice(np.array(corners, x.dtype), x.shape)
    at = rng.random(x.shape)
    if rng.random() < 0.5:
        at = np.full(x.shape, rng.random())
    return np.where(at < 0.3, anything, np.where(at < 0.6, almost_valid, chosen)).astype(x.dtype)


def garbage(rng: np.random.Generator) -> Other:
    """Draws operands that may break preconditions. A run looks for wrong shapes, and for writes to other memory."""
    call, text = _call(rng, OF_GARBAGE, 300 if rng.random() < 0.6 else 40_000)
    batched = rng.random() < 0.3
    function = (lambda operands: call.function(**operands)) if not batched else jax.vmap(lambda o: call.function(**o))
    program = jax.jit(function)

    def spoil(rng: np.random.Generator) -> dict[str, Any]:
        operands = call.draw(rng, True)
        n = max((x.shape[0] for x in jax.tree.leaves(operands) if x.ndim), default=0)
        for name, x in operands.items():
            if name in POSITIONS or name.endswith(("count", "total")):
                if rng.random() < 0.8:
                    operands[name] = any_positions(rng, x, n)
            elif name in KEYS and rng.random() < 0.8:
                operands[name] = jax.tree.map(rng.permutation, x)
        return operands

    def run(rng: np.random.Generator) -> None:
        operands = spoil(rng)
        if batched:
            operands = jax.tree.map(lambda *rows: np.stack(rows), operands, spoil(rng))
        with jax.enable_x64(call.x64):
            placed, canaries = [], []
            leaves, structure = jax.tree.flatten(operands)
            for leaf in leaves:
                placed.append(jnp.array(leaf))
                canaries.append(jnp.full((64,), CANARY, jnp.uint32))
            shapes = jax.eval_shape(program, operands)
            results = jax.device_get(program(structure.unflatten(placed)))
            for got, spec in zip(jax.tree.leaves(results), jax.tree.leaves(shapes), strict=True):
                if (got.shape, got.dtype) != (spec.shape, spec.dtype):
                    raise AssertionError(f"{got.dtype}{got.shape}, expected {spec.dtype}{spec.shape}")
            for before, after in zip(leaves, placed, strict=True):
                if np.asarray(after).tobytes() != np.ascontiguousarray(before).tobytes() and before.dtype.itemsize > 1:
                    raise AssertionError("an operand was written")
            if any(np.any(np.asarray(canary) != CANARY) for canary in canaries):
                raise AssertionError("memory beside an operand was written")

    return Other(text, "garbage" + "+vmap" * batched, 32, run)


# ---- With checks -----------------------------------------------------------------------------------------------------


Broken = tuple[np.ndarray, int | None]  # an argument, and the first position at which it is broken


def unsorted(rng: np.random.Generator, x: np.ndarray, live: int, *, descending: bool, unique: bool) -> Broken | None:
    """Draws keys whose first disorder is at a known position."""
    if live < 2:
        return None
    at = int(rng.integers(1, live))
    keys = data.in_order(x[:live], descending)
    if x.dtype.name in data.MANTISSA_BITS and rng.random() < 0.3 and (at == 1 or not unique):
        low = float(jnp.finfo(x.dtype).smallest_subnormal)
        before, then = (low, 2 * low) if descending else (-low, -2 * low)
        keys = np.where(np.arange(live) < at, before, then).astype(x.dtype)
    elif len(np.unique(oracle.rank(keys[[0, at - 1]]))) == 1:
        return None
    else:
        keys[at] = keys[0]
    return np.concatenate([keys, x[live:]]), at


def decreasing(rng: np.random.Generator, x: np.ndarray) -> Broken | None:
    """Draws positions, one of which is negative or less than the one before it."""
    if len(x) == 0:
        return None
    at = int(rng.integers(0, len(x)))
    x = x.copy()
    if x.dtype.kind == "i" and (at == 0 or rng.random() < 0.3):
        x[at] = rng.choice([-1, -7])
    elif at == 0 or x[at - 1] == 0 or x[at - 1] > 200:  # heads past the items are not compared
        return None
    else:
        x[at] = x[at - 1] - 1
    return x, at


def ids_as_heads(x: np.ndarray) -> Broken | None:
    """Draws segment numbers in place of heads."""
    if len(x) < 3 or x.dtype.name not in ("int32", "int64"):  # unsigned heads past the items are not compared
        return None
    return (100_000 + np.arange(len(x)) // 2).astype(x.dtype), 1


def unknown(rng: np.random.Generator, x: np.ndarray, m: int) -> Broken | None:
    limits = np.iinfo(x.dtype)
    options = [i for i in (-7, -2, m + 1, m + 90) if limits.min <= i <= limits.max]
    if len(x) == 0 or not options:
        return None
    at = int(rng.integers(len(x)))
    return np.where(np.arange(len(x)) == at, rng.choice(options), x).astype(x.dtype), at


def outside(rng: np.random.Generator, x: np.ndarray) -> Broken | None:
    options = [-1] * (x.dtype.kind == "i") + [100_000] * (np.iinfo(x.dtype).max > 100_000)
    return (np.asarray(rng.choice(options), x.dtype), None) if options else None


# These arguments have the names of checked ones, but may have any values.
ANY_VALUES = {("interval_reduce", "heads"), ("search", "needles"), ("segmented_reduce", "indices")}


def preconditions(rng: np.random.Generator) -> Other:
    """Draws a call; a run breaks one of its arguments, if it can, and expects an error."""
    call, text = _call(rng, MAKES, 200)
    name = text.split(":")[0]
    program = jax.jit(lambda operands: call.function(**operands))

    def broken(rng: np.random.Generator, operands: dict[str, Any], argument: str) -> Broken | None:
        x = operands[argument]
        # tests/test_checks.py breaks keys of several columns and the haystack of segmented_search. The offsets of sddmm
        # are those of its Csr, which checks them.
        is_free = (name, argument) in ANY_VALUES or name in ("take", "sddmm")
        if is_free or isinstance(x, tuple) or (name == "segmented_search" and argument in KEYS):
            return None
        if argument in KEYS:
            count = "count" if name == "search" else f"{argument}_count"
            live = oracle.live_count(operands.get(count), len(x))
            descending = "descending" in text and name != "sorted_search"  # its keys always ascend
            return unsorted(rng, x, live, descending=descending, unique="duplicates=False" in text)
        if argument == "order" and name == "take_segments":
            return unknown(rng, x, len(operands["heads"]))
        if argument == "order":
            live = oracle.live_count(operands.get("count"), len(x))
            found = unknown(rng, x[:live], len(x))
            return found and (np.concatenate([found[0], x[live:]]), found[1])
        if argument in ("heads", "offsets", "indices"):
            return ids_as_heads(x) if argument == "heads" and rng.random() < 0.3 else decreasing(rng, x)
        return outside(rng, x) if argument.endswith(("count", "total")) else None

    def run(rng: np.random.Generator) -> None:
        found = None
        for _ in range(8):
            operands = call.draw(rng, False)
            argument = str(rng.choice(list(operands)))
            found = broken(rng, operands, argument)
            if found is not None:
                break
        if found is None:
            return
        operands[argument], position = found
        where = "" if position is None or len(operands[argument]) == 1 else rf" first broken at position {position}\b"
        wanted = rf"INVALID_ARGUMENT: {name}: {argument}: expected .*,{where}"
        if argument == "offsets":  # wrong offsets may be reported as wrong intervals
            wanted = rf"INVALID_ARGUMENT: {name}: (offsets|\w*starts): expected"
        with jax.enable_x64(call.x64), mgpu.checks():
            try:
                results = jax.block_until_ready(program(operands))
            except (jax.errors.JaxRuntimeError, ValueError) as error:  # `checks` allows both types
                if not re.search(wanted, str(error), re.DOTALL):
                    raise AssertionError(f"{str(error)[:300]}; wanted {wanted}") from None
                return
        # If results or operands are empty, the check is often not computed. A scan by the last item ignores the heads.
        if "function last" in text and argument == "heads":
            return
        if any(x.size for x in jax.tree.leaves(results)) and all(np.size(x) for x in jax.tree.leaves(operands)):
            raise AssertionError(f"checks say nothing of {argument}")

    return Other(text, "checks", 24, run)
