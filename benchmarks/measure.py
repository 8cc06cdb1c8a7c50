"""Measures the device time of a jitted function.

The time of a call shorter than its dispatch would be the host's. So a program makes several short calls, which XLA
records into one CUDA graph if it can. On a GPU, a loop repeats them for several rounds.

The calls of a round take turns on several sets of inputs, because a set smaller than the L2 cache would stay in it. An
optimization barrier between calls and between rounds keeps XLA from sharing, fusing or reordering their work.

Several programs are dispatched, up to about 20 ms of work, and the clock stops when the last one is done. A program's
results are freed before the next dispatch, which then gets the same addresses. With other addresses XLA would record
the graph again.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

__all__ = ["QUEUED_MS", "SHORT_MS", "Program", "Timing", "compile_program", "time_program"]

SHORT_MS = 0.25  # a program makes several calls if a call takes less
QUEUED_MS = 20.0


@dataclasses.dataclass(frozen=True)
class Timing:
    """Times in milliseconds."""

    median: float
    shortest: float
    longest: float
    repeats: int
    calls: int  # in each repeat

    @property
    def spread(self) -> float:
        """The longest minus the shortest time, relative to the median."""
        return (self.longest - self.shortest) / self.median


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled chain of calls, their inputs, and the number of rounds."""

    run: Callable[..., Any]
    input_sets: Sequence[tuple[Any, ...]]
    rounds: int = 1

    def __call__(self) -> list[Any]:
        """Returns the results of the last round."""
        return self.run(self.input_sets)

    @property
    def calls(self) -> int:
        return self.rounds * len(self.input_sets)

    @property
    def has_kernels(self) -> bool:
        """Whether the program calls our kernels."""
        compiled: Any = self.run
        return 'custom_call_target="jax_mgpu.' in compiled.as_text()


def compile_program(
    function: Callable[..., Any],
    input_sets: Sequence[tuple[Any, ...]],
    options: dict[str, Any] | None = None,
    rounds: int = 1,
) -> Program:
    """Compiles calls on each set of inputs in turn, for `rounds` rounds."""

    def chain(input_sets: Sequence[tuple[Any, ...]]) -> list[Any]:
        results: list[Any] = []
        for inputs in input_sets:
            fresh = inputs
            if results:
                fresh, results[-1] = jax.lax.optimization_barrier((inputs, results[-1]))
            results.append(function(*fresh))
        return results

    def loop(input_sets: Sequence[tuple[Any, ...]]) -> list[Any]:
        def one_round(_: Any, results: list[Any]) -> list[Any]:
            return chain(jax.lax.optimization_barrier((input_sets, results))[0])

        return jax.lax.fori_loop(1, rounds, one_round, chain(input_sets))

    on_gpu = jax.default_backend() == "gpu"
    if not on_gpu:  # XLA for CPUs drops barriers early, and moves what no round changes out of the loop
        rounds = 1
    in_order = {"xla_gpu_command_buffer_scheduling_mode": "SERIALIZE"} if on_gpu and len(input_sets) > 1 else {}
    chosen = {**in_order, **getattr(function, "options", {}), **(options or {})}
    lowered = jax.jit(chain if rounds == 1 else loop).lower(list(input_sets))
    return Program(lowered.compile(compiler_options=chosen), list(input_sets), rounds)


def run_once(program: Program) -> float:
    """Runs a program, waits for it, and returns milliseconds."""
    return run_queued(program, 1)


def run_queued(program: Program, programs: int, *, waiting: bool = False) -> float:
    """Runs a program several times, and returns milliseconds; waits for each run if `waiting`, else for the last."""
    begin = time.perf_counter()
    for _ in range(programs):
        results = None  # frees memory for the next results
        results = program()
        if waiting:
            jax.block_until_ready(results)
    jax.block_until_ready(results)
    return 1e3 * (time.perf_counter() - begin)


def time_program(program: Program, repeats: int, *, waiting: bool = False, queued_ms: float = QUEUED_MS) -> Timing:
    """Times a program after a warm-up, which raises the clocks."""
    estimate = run_once(program)
    for programs in (1, 3, 10):
        if estimate * programs < 4 * queued_ms:
            estimate = run_queued(program, programs, waiting=waiting) / programs
    programs = max(1, min(100, round(queued_ms / estimate)))
    calls = programs * program.calls
    samples = sorted(run_queued(program, programs, waiting=waiting) / calls for _ in range(repeats))
    return Timing(statistics.median(samples), samples[0], samples[-1], repeats, calls)
