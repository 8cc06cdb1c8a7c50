"""Memory: what runs out of it is an error, after which the next call is right; and none is kept for long."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import resource
import jax, jax.numpy as jnp, numpy as np
import jax_mgpu as mgpu

def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) << 10

def virtual():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) << 10
"""

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def run(program: str) -> str:
    """What a process of its own prints; that it ends well."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(program)], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout.strip()


def test_a_call_without_memory_is_an_error_and_the_next_is_right():
    """Tasks that find no memory, on whatever thread they run."""
    failures = run("""
        x = np.random.default_rng(0).integers(0, 1 << 30, 1 << 23, dtype=np.int32)
        large, small = jnp.asarray(x), jnp.asarray(x[: 1 << 17])
        ordered = np.sort(x[: small.size])
        cases = [
            (jax.jit(lambda x: mgpu.top_k(x, x.size // 16)[0]), ordered[::-1][: small.size // 16]),
            (jax.jit(lambda x: mgpu.mergesort(x)), ordered),
        ]
        for f, _ in cases:
            jax.block_until_ready([f(large), f(small)])
        failures = 0
        for spare in (20, 60, 100, 140):
            for f, expected in cases:
                resource.setrlimit(resource.RLIMIT_AS, (virtual() + (spare << 20), resource.RLIM_INFINITY))
                try:
                    jax.block_until_ready(f(large))
                except (ValueError, jax.errors.JaxRuntimeError) as error:
                    assert str(error).startswith("RESOURCE_EXHAUSTED"), error
                    failures += 1
                resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                np.testing.assert_array_equal(f(small), expected)
        print(failures)
    """)
    assert int(failures) > 0


def test_threads_keep_no_large_room():
    grown = run("""
        x = jnp.asarray(np.random.default_rng(0).integers(0, 1 << 30, 1 << 24, dtype=np.int32))
        top = jax.jit(lambda x: mgpu.top_k(x, 3 << 20)[0].sum()).lower(x).compile()
        before = resident()
        jax.block_until_ready(top(x))
        print(resident() - before)
    """)
    assert int(grown) < 64 << 20  # a thread had 400 MB at work
