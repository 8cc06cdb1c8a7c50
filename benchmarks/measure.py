"""Device time of a jitted function.

Two things would spoil it. A call shorter than its dispatch would measure the host: so short calls run several to a
program, where XLA also records those that allow it into one CUDA graph, and the program does so several rounds, in a
loop. Without the loop, a program of 32 calls of 5 us waits for the host, which takes some 200 us for its inputs and
results. And inputs smaller than the L2 would come from there: so each call of a round has inputs of its own. An
optimization barrier between the calls, and between the rounds, keeps XLA from sharing work among them, from fusing them
and from reordering them; the graph's commands are told to run in order.

Programs are dispatched without waiting, until about 20 ms of work is queued, and the clock stops when the last is done.
The results of one are let go before the next is dispatched, which then has them at the same addresses. Otherwise XLA
would record its graph again for each program, on the host, and take longer than the device where calls are short.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

__all__ = ["QUEUED_MS", "SHORT_MS", "Program", "Timing", "compile_program", "time_program"]

SHORT_MS = 0.25  # below this, several calls to a program
QUEUED_MS = 20.0


@dataclasses.dataclass(frozen=True)
class Timing:
    """Milliseconds a call."""

    median: float
    least: float
    most: float
    repeats: int
    calls: int  # in one repeat

    @property
    def spread(self) -> float:
        """Most minus least, relative to the median."""
        return (self.most - self.least) / self.median


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled chain of calls, its inputs, and how many rounds it takes."""

    run: Callable[..., Any]
    input_sets: Sequence[tuple[Any, ...]]
    rounds: int = 1

    def __call__(self) -> list[Any]:
        """Dispatches the calls; one result a call of the last round."""
        return self.run(self.input_sets)

    @property
    def calls(self) -> int:
        """Calls of the function."""
        return self.rounds * len(self.input_sets)

    @property
    def has_kernels(self) -> bool:
        """Whether it calls kernels of this library: what it lowers to plain JAX is XLA's own."""
        compiled: Any = self.run
        return 'custom_call_target="jax_mgpu.' in compiled.as_text()


def compile_program(
    function: Callable[..., Any],
    input_sets: Sequence[tuple[Any, ...]],
    options: dict[str, Any] | None = None,
    rounds: int = 1,
) -> Program:
    """The calls of a function on each set of inputs, one after another in one program, so many rounds."""

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
    if not on_gpu:  # XLA for CPUs forgets the barriers early, and takes out of the loop what no round changes
        rounds = 1
    in_order = {"xla_gpu_command_buffer_scheduling_mode": "SERIALIZE"} if on_gpu and len(input_sets) > 1 else {}
    lowered = jax.jit(chain if rounds == 1 else loop).lower(list(input_sets))
    return Program(lowered.compile(compiler_options={**in_order, **(options or {})}), list(input_sets), rounds)


def run_once(program: Program) -> float:
    """Milliseconds of one program, waited for."""
    return run_queued(program, 1)


def run_queued(program: Program, programs: int, *, waiting: bool = False) -> float:
    """Milliseconds of so many programs in a row, the host waiting for each, or for all."""
    begin = time.perf_counter()
    for _ in range(programs):
        results = None  # so that the next ones get this memory
        results = program()
        if waiting:
            jax.block_until_ready(results)
    jax.block_until_ready(results)
    return 1e3 * (time.perf_counter() - begin)


def time_program(program: Program, repeats: int, *, waiting: bool = False, queued_ms: float = QUEUED_MS) -> Timing:
    """Times a program, after a warm-up that also raises the clocks; `waiting` for each before the next is begun."""
    estimate = run_once(program)
    for programs in (1, 3, 10):
        if estimate * programs < 4 * queued_ms:
            estimate = run_queued(program, programs, waiting=waiting) / programs
    programs = max(1, min(100, round(queued_ms / estimate)))
    calls = programs * program.calls
    samples = sorted(run_queued(program, programs, waiting=waiting) / calls for _ in range(repeats))
    return Timing(statistics.median(samples), samples[0], samples[-1], repeats, calls)
