"""Operations over a mesh axis of two processes, which JAX connects: the exchange is then one of equal chunks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from tests import data, mesh, oracle
from tests.test_mesh_joins import rows_of

PROCESSES, DEVICES, SLOTS = 2, 2, 16

# Each process has two of the four devices, and prints the results of its own.
PROGRAM = """
import json, sys
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

number, port, processes, devices, slots, seed = map(int, sys.argv[1:])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", devices)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.config.update("jax_disable_most_optimizations", True)
jax.distributed.initialize(f"localhost:{port}", processes, number)

import jax_mgpu as mgpu

assert jax.process_count() == processes and jax.device_count() == processes * devices
over = jax.make_mesh((processes * devices,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
sharding = NamedSharding(over, P("devices"))
rng = np.random.default_rng(seed)
keys, others = (rng.integers(0, 12, processes * devices * slots).astype(np.int32) for _ in range(2))
counts = np.array([slots, 0, 5, slots // 2], np.int32)


def call(a, b, count):
    named = {"axis_name": "devices"}
    a_sorted, ids, n = mgpu.sort(a, b, count=count[0], **named)
    rows = mgpu.join(a, b, size=200, assume_sorted=False, a_count=count[0], b_count=count[0], **named)
    total = mgpu.reduce(a, count=count[0], **named)
    return jax.tree.map(lambda x: x[None], (a_sorted, ids, n, *rows, total))


given = [jax.make_array_from_callback(x.shape, sharding, lambda i, x=x: x[i]) for x in (keys, others, counts)]
program = jax.jit(jax.shard_map(call, mesh=over, in_specs=P("devices"), out_specs=P("devices"), check_vma=False))
for result in program(*given):
    shards = sorted(result.addressable_shards, key=lambda shard: shard.index[0].start)
    print("RESULT", json.dumps([np.asarray(shard.data)[0].tolist() for shard in shards]))
"""


@pytest.mark.long
def test_two_processes():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    settings = {name: text for name, text in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    arguments = [str(x) for x in (port, PROCESSES, DEVICES, SLOTS, 5)]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(number), *arguments],
            env=settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    said = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0] * PROCESSES, said
    found = [
        [json.loads(line.removeprefix("RESULT ")) for line in out.splitlines() if line.startswith("RESULT ")]
        for out, _ in said
    ]
    keys, ids, n, a_rows, b_rows, rows, total = (
        [row for part in parts for row in part] for parts in zip(*found, strict=True)
    )

    devices, rng = PROCESSES * DEVICES, np.random.default_rng(5)
    counts = np.array([SLOTS, 0, 5, SLOTS // 2])
    a, b = (
        mesh.gather(rng.integers(0, 12, devices * SLOTS).astype(np.int32).reshape(devices, SLOTS), counts)
        for _ in range(2)
    )
    assert n == mesh.even(len(a), devices).tolist()
    oracle.same_bits(mesh.gather(keys, n), data.in_order(a))
    np.testing.assert_array_equal(mesh.gather(ids, n), b[oracle.sort_indices(a)])
    expected = rows_of("inner", a, b)
    assert rows == mesh.even(len(expected), devices).tolist()
    assert max(rows) <= 200
    np.testing.assert_array_equal(mesh.gather(a_rows, rows), expected[:, 0])
    np.testing.assert_array_equal(mesh.gather(b_rows, rows), expected[:, 1])
    assert total == [a.sum()] * devices
