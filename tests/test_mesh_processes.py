"""Operations over a mesh axis of two processes."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PROCESSES = 2
SECONDS = 120  # two idle cores need 15


@contextlib.contextmanager
def free_port():
    """Yields a free port that stays bound here; gRPC can bind the same port, because both use SO_REUSEPORT."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def wait(processes):
    """Waits until all processes have ended, one has failed, or time is up; returns exit statuses."""
    deadline = time.monotonic() + SECONDS
    while True:
        statuses = [process.poll() for process in processes]
        if any(statuses) or None not in statuses or time.monotonic() > deadline:
            return statuses
        time.sleep(0.05)


@pytest.mark.long
def test_two_processes():
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(free_port())
        logs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(PROCESSES)]
        processes = []
        try:
            for process, log in enumerate(logs):
                command = [sys.executable, "-m", "tests.mesh_process", str(process), str(PROCESSES), str(port)]
                started = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
                processes.append(started)
            statuses = wait(processes)
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for log in logs:
            log.seek(0)
        assert statuses == [0] * PROCESSES, "\n".join(log.read() for log in logs)
