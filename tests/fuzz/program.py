"""A drawn call under transformations, and its runs over drawn values."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from tests import families
from tests.families.reductions import reductions
from tests.families.scans import scans
from tests.fuzz import any_order, broken, functions, misuse, modes, programs, rows, segments, sizes, wide
from tests.fuzz.compare import Zeros, compare, holds_items, values_of
from tests.fuzz.derivatives import derivative
from tests.fuzz.draw import Call, Shape
from tests.jaxprs import size_scratch_memory


def mapped(shape: Shape) -> Call:
    item_map = shape.choice(functions.MAPS)
    shape.say(item_map.name)
    return shape.choice((reductions, scans))(shape, item_map)


# The calls of `OTHERS` draw their own modes.
CALLS: dict[str, Callable[[Shape], Call]] = {
    **families.DRAWN,
    "rows": rows.rows,
    "segments": segments.segments,
    "map": mapped,
    "less": functions.less,
    "any_order": any_order.any_order,
    "programs": programs.programs,
}
OTHERS: dict[str, Callable[[np.random.Generator], Any]] = {
    "garbage": broken.garbage,
    "preconditions": broken.preconditions,
    "misuse": misuse.misuse,
    "sizes": sizes.sizes,
    "wide": wide.wide,
}
FAMILIES = (*CALLS, *OTHERS)
WORK = 150_000  # about the items of all runs of a program, within the limits of `Program.draws`
AHEAD = 16  # runs that are started before the first is compared


@dataclasses.dataclass(frozen=True)
class Failure:
    """A failure of a draw, which is -1 while compiling."""

    draw: int
    mode: str
    text: str
    error: BaseException


def generator(seed: int, family: str, *path: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(family.encode()), *path])


class Program:
    def __init__(self, seed: int, family: str, index: int):
        self.seed, self.family, self.index = seed, family, index
        rng = generator(seed, family, index)
        if family in OTHERS:
            other = OTHERS[family](rng)
            self.call, self.mode, self.other, self.draws = None, other.mode, other, other.draws
            self.text = other.text
            return
        self.other = None
        self.call, self.mode, self.runner = _drawn(CALLS[family], rng)
        # On a CPU, XLA's optimizations take most of the time; but some errors only appear with them.
        self.optimizes = bool(rng.random() < 0.25) or jax.default_backend() != "cpu"
        operands = self.call.draw(generator(seed, family, index, 0), False)
        items = sum(x.size for x in jax.tree.leaves(operands))
        most = self.runner.draws * (1 if jax.default_backend() == "cpu" else 2)  # on a GPU, compilation takes longer
        self.draws = int(np.clip(WORK // max(items, 1), 3, most))
        self.text = self.call.text

    def left_out(self) -> str | None:
        """Returns the defect of the installed JAX that prevents this program, or None."""
        if self.call is None or jax.__version_info__ >= (0, 12):
            return None
        operands = self.call.draw(generator(self.seed, self.family, self.index, 0), False)
        if jax.__version_info__ >= (0, 11):
            words = {*self.mode.split("+")}
            is_empty = not all(np.size(leaf) for leaf in jax.tree.leaves(operands))
            if "loop of" in self.text and is_empty and "shard_map" in words and jax.default_backend() == "cpu":
                return "JAX 0.11's CPU compiler crashes if a comparator under shard_map loops over an empty argument"
        elif "explicit" in self.mode:
            expected = self.call.oracle(**operands)
            if not all(isinstance(leaf, Zeros) or holds_items(leaf) for leaf in expected):
                return "JAX 0.10 cannot fetch empty arrays over an Explicit mesh: each shard has the shape of the whole"
        elif "shard_map" in self.mode and self._reads_nothing(operands):
            return "JAX 0.10 cannot compile shard_map of a function that reads empty arrays alone, as of a sort of one"
        return None

    def _reads_nothing(self, operands: dict[str, Any]) -> bool:
        """Whether all operands that results depend on are empty."""
        if all(map(np.size, jax.tree.leaves(operands))):
            return False
        try:
            with jax.enable_x64(self.call.x64), self.runner.context():
                program = jax.make_jaxpr(modes.over_dict(self.call))(operands).jaxpr
        except Exception:  # `run` meets it, too, and reports it
            return False
        reads = dce_jaxpr(program, [True] * len(program.outvars))[1]
        return not any(x.aval.size for x, is_read in zip(program.invars, reads, strict=True) if is_read)

    def run(self, draws: Iterator[int]) -> Iterator[Failure | None]:
        if self.other is not None:
            for draw in draws:
                try:
                    self.other.run(generator(self.seed, self.family, self.index, draw))
                    yield None
                except Exception as error:
                    yield Failure(draw, self.mode, self.text, error)
            return
        call = self.call
        with jax.enable_x64(call.x64), self.runner.context(), optimizations(self.optimizes):
            try:
                sample = call.draw(generator(self.seed, self.family, self.index, 0), False)
                size_scratch_memory(modes.over_dict(call), sample)
                start = self.runner.start(call, sample)
            except Exception as error:
                yield Failure(-1, self.mode, self.text, error)
                return
            batch: list[tuple[int, Any, Any]] = []
            for draw in draws:
                operands = call.draw(generator(self.seed, self.family, self.index, draw), False)
                try:
                    batch.append((draw, operands, start(operands)))
                except Exception as error:
                    if self._has_no_place(error, operands):
                        yield None
                        continue
                    yield Failure(draw, self.mode, self.text, error)
                    if not batch and draw == 0:  # the program does not compile
                        return
                if len(batch) == AHEAD:
                    yield from self._compared(batch)
                    batch = []
            yield from self._compared(batch)

    def _compared(self, batch: list[tuple[int, Any, Any]]) -> Iterator[Failure | None]:
        for draw, operands, got in batch:
            try:
                leaves = jax.tree.leaves(jax.device_get(got))
                expected = self.call.oracle(**operands)
                if len(leaves) != len(expected):
                    raise AssertionError(f"{len(leaves)} results, expected {len(expected)}")
                for k, (x, leaf) in enumerate(zip(leaves, expected, strict=True)):
                    compare(x, leaf, f"result {k}")
                yield None
            except Exception as error:
                yield None if self._has_no_place(error, operands) else Failure(draw, self.mode, self.text, error)

    def _has_no_place(self, error: Exception, operands: dict[str, Any]) -> bool:
        """Whether checks correctly report that results outnumber their places."""
        told = re.search(r": size: expected at most (\d+) results,.* got (\d+)", str(error))
        if not told or "checks" not in self.mode:
            return False
        size, count = map(int, told.groups())
        counts = [values_of(leaf) for leaf in self.call.oracle(**operands) if not isinstance(leaf, Zeros)]
        return count > size and any(count in x for x in counts if x.dtype in (np.int32, np.int64))


def _drawn(make: Callable[[Shape], Call], rng: np.random.Generator) -> tuple[Call, str, modes.Runner]:
    differentiates = rng.random() < 0.15
    transforms = rng.random() < 0.45
    meshes = rng.random() < 0.08
    small = differentiates or transforms or meshes
    shape = Shape(rng, derivative=differentiates, largest=300 if small else 40_000)
    call = make(shape)
    call = dataclasses.replace(call, text=f"{call.text}: {' '.join(filter(None, shape.words))}{' x64' * shape.x64}")
    names = []
    if differentiates and (derived := derivative(call, rng)) is not None:
        call = derived
        names += ["derivative", call.text.split()[0]]
    if transforms:
        for _ in range(int(rng.integers(1, 3))):
            call = modes.batched(call, rng)
            names.append("vmap")
        if rng.random() < 0.3:
            bodies = [("scan", modes.scanned), ("while", modes.looped), ("cond", modes.branched)]
            # under shard_map, a loop's first carry and both branches would have to vary alike
            name, change = bodies[0 if meshes else int(rng.integers(3))]
            call = change(call, rng)
            names.append(name)
    if meshes:
        with jax.enable_x64(call.x64):
            name, call, runner = modes.meshed(call, rng)
        return call, "+".join([*names, name]), runner
    options = {name: r for name, r in modes.RUNNERS.items() if r.fits(call)}
    weights = np.array([r.weight for r in options.values()])
    name = str(rng.choice(list(options), p=weights / weights.sum()))
    return call, "+".join([*names, name]), options[name]


@contextlib.contextmanager
def optimizations(on: bool) -> Iterator[None]:
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", not on)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
