"""Prints the kernels, copies and collectives of operations over a mesh axis of all GPUs, in the order of their runs.

    python scripts/profile_mesh.py --scale 0.5 --match scan partition

The operations are the rows of `python -m benchmarks --mesh`. A row's time is from the beginning of its first event to
the end of its last one; `busy` is the time in which some stream of the GPU worked. With `--timeline`, each event that
took, or followed a gap of, `--least` microseconds has a line: when it began, for how long the GPU had waited, how long
it took, its instruction in the program, and the size of a copy. Command buffers are off, so short programs have longer
gaps than in the benchmark.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_enable_command_buffer="
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import jax
import numpy as np
from jax.sharding import AxisType

from benchmarks.mesh import AXIS, CASES_OVER_DEVICES, global_size, over_devices

RUNS = 3
Event = tuple[float, float, str, str]  # begin and end in microseconds, name, and what the profiler knows about it


def main() -> int:
    """Prints a table for each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="as in the benchmark (default 1)")
    parser.add_argument("--match", nargs="*", default=[], help="rows whose names match an expression (default: all)")
    parser.add_argument(
        "--least", type=float, default=3.0, help="leave out lines below this, in microseconds (default 3)"
    )
    parser.add_argument("--timeline", action="store_true", help="show each event of each GPU")
    parser.add_argument("--programs", type=pathlib.Path, help="a folder for the compiled programs' texts")
    options = parser.parse_args()
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), (AXIS,), axis_types=(AxisType.Auto,))
    n = global_size(options.scale, len(devices))
    made: Any = None
    arrays: tuple[np.ndarray, ...] = ()
    for name, case in CASES_OVER_DEVICES.items():
        if options.match and not any(re.search(word, name) for word in options.match):
            continue
        begin = time.monotonic()
        if case.make is not made:
            made, arrays = case.make, case.make(np.random.default_rng(7), n)
        call, operands = over_devices(case, arrays, n, mesh)
        compiled = jax.jit(call).lower(*operands).compile()
        if options.programs:
            (options.programs / f"{re.sub('[^a-z0-9]+', '_', name)}.txt").write_text(compiled.as_text())
        events = events_of(lambda compiled=compiled, operands=operands: compiled(*operands))
        show(name, events, options.least)
        for device, of_device in enumerate(events if options.timeline else ()):
            show_timeline(device, of_device, options.least)
        print(f"  ({time.monotonic() - begin:.1f} s)", flush=True)
    return 0


def events_of(call: Callable[[], Any]) -> list[list[Event]]:
    """Returns the events of each GPU in the last of a few runs."""
    for _ in range(RUNS):
        jax.block_until_ready(call())
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(call())
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        profile = jax.profiler.ProfileData.from_file(str(file))
    return list(device_events(profile))


def device_events(profile: Any) -> Iterator[list[Event]]:
    """Yields the events of each GPU's streams, in the order of their beginnings."""
    found = False
    for plane in profile.planes:
        if re.fullmatch(r"/device:GPU:\d+", plane.name):
            found = True
            streams = [line for line in plane.lines if line.name.startswith("Stream")]
            events = [(e.start_ns / 1e3, e.end_ns / 1e3, e.name, about(e)) for line in streams for e in line.events]
            yield sorted(events)
    if not found:
        print("no GPU in the profile:", *(f"{p.name} {[x.name for x in p.lines]}" for p in profile.planes))


def about(event: Any) -> str:
    """Returns the instruction of an event, and what a copy copies."""
    known = dict(event.stats)
    return f"{known.get('hlo_op', '')} {known.get('memcpy_details', '')}"


def show_timeline(device: int, events: Sequence[Event], least: float) -> None:
    """Prints the events that took, or followed a gap of, at least a time."""
    print(f"  GPU {device}: begin, gap, time in us")
    reached = events[0][0] if events else 0.0
    for begin, end, name, known in events:
        if max(end - begin, begin - reached) >= least:
            times = begin - events[0][0], max(begin - reached, 0.0), end - begin
            print("  {:8.0f} {:6.0f} {:6.0f}".format(*times), short(name), known)
        reached = max(reached, end)


def show(row: str, per_device: Sequence[Sequence[Event]], least: float) -> None:
    """Prints each GPU's time, and the sums of the times of events with one name."""
    for events in per_device:
        if events:
            span = max(event[1] for event in events) - events[0][0]
            print(f"{row}: {span:.0f} us, busy {busy(events):.0f}, {len(events)} events")
    first = per_device[0] if per_device else []
    names = list(dict.fromkeys(event[2] for event in first))
    for name in names:
        sums = [sum(end - begin for begin, end, other, _ in events if other == name) for events in per_device]
        if max(sums) >= least:
            times = [event[0] for event in first if event[2] == name]
            begin, count = times[0] - first[0][0], len(times)
            print(f"  at {begin:.0f}: {count} x {short(name)}: " + ", ".join(f"{us:.0f}" for us in sums))


def busy(events: Sequence[Event]) -> float:
    """Returns the time in which at least one event was running."""
    total, reached = 0.0, 0.0
    for begin, end, *_ in events:
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def short(name: str) -> str:
    """Returns a kernel's name, shortened."""
    name = re.sub(r"\b(void|mgpu|jax_mgpu|\(anonymous namespace\))(::| )|\(anonymous namespace\)::", "", name)
    return name.split("(")[0][:70]


if __name__ == "__main__":
    sys.exit(main())
