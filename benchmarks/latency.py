"""Times jitted chains of small calls, with and without a command buffer (a CUDA graph).

XLA reads this setting when it compiles, so one process runs both programs.
"""

from __future__ import annotations

import argparse
import statistics

import jax

from benchmarks.measure import Program, compile_program, run_once, run_queued
from benchmarks.runner import Runner

__all__ = ["NO_COMMAND_BUFFERS", "chain_times", "main"]

SMALL_SCALE = 2.0**-14  # 4096 items
NO_COMMAND_BUFFERS = {"xla_gpu_enable_command_buffer": "", "xla_gpu_graph_min_graph_size": 10**6}


def main(options: argparse.Namespace) -> int:
    """Prints microseconds per chain, with a wait for each chain and with 20 chains queued."""
    scale = options.scale or SMALL_SCALE
    runner = Runner(scale, options.repeat)
    print(f"{runner.device.device_kind}: microseconds per chain of {options.calls} calls, scale {scale:g}")
    seen = set()
    failed = False
    for case in options.cases:
        if not options.match and case.family in seen:
            continue  # the first case of each family represents it
        seen.add(case.family)
        try:
            with jax.enable_x64(case.x64):
                inputs = runner.inputs(case, 0)
                captured = compile_program(case.ours, [inputs] * options.calls)
                parts = [chain_times(captured)]
                if not runner.on_cpu:
                    plain = compile_program(case.ours, [inputs] * options.calls, NO_COMMAND_BUFFERS)
                    parts.append(chain_times(plain))
        except Exception as error:  # the next case must run
            print(f"{case.full_name}: {type(error).__name__}: {str(error).splitlines()[0][:300]}")
            failed = True
            continue
        labels = ("with command buffers", "without")
        print(f"{case.full_name}: " + "; ".join(f"{label}: {part}" for label, part in zip(labels, parts, strict=False)))
    return int(failed)


def chain_times(program: Program, samples: int = 30, depth: int = 20) -> str:
    """Times a program in microseconds, with a wait for each run and with `depth` runs queued."""
    for _ in range(5):
        run_once(program)  # the first runs record the graph
    waited = statistics.median(run_once(program) for _ in range(samples))
    queued = statistics.median(run_queued(program, depth) / depth for _ in range(5))
    return f"{1e3 * waited:.0f} waited, {1e3 * queued:.0f} queued"
