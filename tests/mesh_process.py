"""One of several processes that share a mesh of CPU devices: `python -m tests.mesh_process PROCESS PROCESSES PORT`."""

from __future__ import annotations

import os
import sys
import time
import traceback

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

EACH = 2  # devices of each process
SECONDS = 30  # within which all processes must find each other


def start(process: int, processes: int, port: str) -> None:
    """Joins the other processes; JAX must not have been asked for devices yet."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", EACH)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_enable_x64", True)
    # With JAX 0.11, a program from the cache has no order between the collectives within a loop and those outside of
    # it, so processes would wait for each other for ever.
    jax.config.update("jax_enable_compilation_cache", False)
    address = f"127.0.0.1:{port}"
    options = {"coordinator_bind_address": address, "initialization_timeout": SECONDS}
    jax.distributed.initialize(address, processes, process, **options)


def over_processes(function, devices):
    """Returns a function over all processes' devices, `[devices, ...]` in and out; each process gets all results."""
    from tests import mesh

    spread, whole = (NamedSharding(mesh.mesh_of(devices), spec) for spec in (P(mesh.AXIS), P()))
    program = jax.jit(mesh.by_devices(function, devices), out_shardings=whole)

    def call(*arguments):
        arrays = [np.asarray(x) for x in arguments]
        return program(*(jax.make_array_from_callback(x.shape, spread, x.__getitem__) for x in arrays))

    return call


def main(process: str, processes: str, port: str) -> None:
    """Runs checks of several families, and prints those that passed."""
    start(int(process), int(processes), port)
    from tests import mesh, test_mesh_ids, test_mesh_joins, test_mesh_reductions, test_mesh_segments, test_mesh_sorts

    devices = EACH * int(processes)
    assert (jax.process_count(), len(jax.devices()), len(jax.local_devices())) == (int(processes), devices, EACH)

    # Two distributions are enough: uneven counts, and empty devices.
    every_count = mesh.counts_of
    mesh.counts_of = lambda *arguments: every_count(*arguments)[1:3]

    def sorts(rng):
        call = over_processes(test_mesh_sorts.every_sort, devices)
        test_mesh_sorts.check_every_sort(rng, call, "float32", devices)

    def reductions(rng):
        call = over_processes(test_mesh_reductions.every_form("argmin"), devices)
        for x, heads, counts, arguments in test_mesh_reductions.problems(rng, devices, "argmin", "int32"):
            test_mesh_reductions.check(call(*arguments), x, heads, "argmin", counts)

    def segmented_sorts(rng):
        call = over_processes(test_mesh_segments.every_sort, devices)
        test_mesh_segments.check_every_sort(rng, call, devices, "int16")

    def reduce_by_key(rng):
        test_mesh_segments.check_reduce_by_key(rng, over_processes(test_mesh_segments.runs, devices), devices)

    def reduce_by_id(rng):
        for size in test_mesh_ids.FORMS.values():
            call = over_processes(test_mesh_ids.reduced("argmin", size), devices)
            test_mesh_ids.check(rng, call, "argmin", "int32", devices, size)

    def joins(rng):
        kinds, size = ("outer",), 40
        call = over_processes(test_mesh_joins.any_order(kinds, size), devices)
        test_mesh_joins.check_any_order(rng, call, devices, kinds, "int32", size)

    for check in (sorts, reductions, segmented_sorts, reduce_by_key, reduce_by_id, joins):
        begin = time.monotonic()
        check(np.random.default_rng(3))
        print(f"{check.__name__}: {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # at exit, JAX would wait for the others, which wait for this one
