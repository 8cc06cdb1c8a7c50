"""Injects faults into separate processes, and prints the outcomes as the table that docs/reliability.md shows.

    python scripts/inject_faults.py                              # all faults; fails if one is not survived
    python scripts/inject_faults.py --faults memory threads      # some faults
    python scripts/inject_faults.py --functions mergesort join   # inject memory faults into these functions only

Faults of device memory and of the cache of compiled functions need a GPU. Without one, they are left out, and the table
says so; `tests/cpp/images.cc` injects those of the cache into the cache alone.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).parent.parent
MAX_FAILURES = 100  # for each function and set of operands
# The source of a library that is loaded before the C library, and makes one allocation of the kernels' library fail.
FAILING_MALLOC = """
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

static uintptr_t begin, end;
static atomic_long left, failed;
void* __libc_malloc(size_t);
void* __libc_memalign(size_t, size_t);

static int find(struct dl_phdr_info* info, size_t size, void* name) {
  if (!strstr(info->dlpi_name, name)) return 0;
  begin = info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    uintptr_t last = begin + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
    if (info->dlpi_phdr[i].p_type == PT_LOAD && last > end) end = last;
  }
  return 1;
}
/* Lets the next allocations succeed, `before` of them, and the one after them fail. */
void let_fail(const char* library, long before) {
  dl_iterate_phdr(find, (void*)library);
  failed = 0;
  left = before + 1;
}
/* Lets all allocations succeed again; returns whether one failed. */
int end_failing(void) {
  left = 0;
  return failed;
}
static int fails(void* caller) {
  if ((uintptr_t)caller < begin || (uintptr_t)caller >= end || left <= 0) return 0;
  if (atomic_fetch_sub(&left, 1) != 1) return 0;
  failed = 1;
  errno = ENOMEM;
  return 1;
}
void* malloc(size_t size) { return fails(__builtin_return_address(0)) ? 0 : __libc_malloc(size); }
void* aligned_alloc(size_t align, size_t size) {
  return fails(__builtin_return_address(0)) ? 0 : __libc_memalign(align, size);
}
"""
THREADS = 32
JAX_STILL_WAITS = re.compile(r"Recursively calling <weakref at \w+; to '(Closed)?Jaxpr'")


# ---- Workers, which run in separate processes. Each prints lines of JSON.


def say(**words: object) -> None:
    """Prints a line for the process that started this one."""
    print(json.dumps(words), flush=True)


def programs_over_many(
    names: list[str], in_order: bool = False
) -> Iterator[tuple[str, Callable[..., object], tuple[object, ...]]]:
    """Yields each function's program twice, with random operands, which are sorted if `in_order`."""
    import jax
    import numpy as np

    from tests.examples import MANY
    from tests.families import GARBAGE

    rng = np.random.default_rng(1)
    anything = rng.integers(-(2**31), 2**31, MANY, dtype=np.int32)
    repeated = rng.integers(0, 13, MANY, dtype=np.int32)
    indices = rng.integers(-5, MANY + 5, MANY // 8, dtype=np.int32)
    wild = rng.integers(-(2**31), 2**31, MANY // 8, dtype=np.int32)
    if in_order:
        anything, repeated, indices, wild = map(np.sort, (anything, repeated, indices, wild))
    for name in names:
        program = jax.jit(GARBAGE[name])
        yield name, program, jax.device_put((anything, repeated, indices, wild))
        yield name, program, jax.device_put((repeated, anything, wild, indices))


def run_without_memory(given: list[str]) -> None:
    """Makes calls, each with another failing allocation. After each, a call without a failure must be right."""
    import ctypes

    import jax
    import numpy as np

    malloc, *names = given
    library = ctypes.CDLL(malloc)
    for name, program, operands in programs_over_many(names):
        expected = jax.device_get(program(*operands))
        for before in range(MAX_FAILURES):
            say(name=name, before=before)
            outcome = "a right result"
            library.let_fail(b"libjax_mgpu_cpu.so", ctypes.c_long(before))
            try:
                jax.block_until_ready(program(*operands))
            except (jax.errors.JaxRuntimeError, ValueError) as error:
                outcome = str(error).partition(":")[0]
            if not library.end_failing():
                break
            try:
                jax.tree.map(np.testing.assert_array_equal, jax.device_get(program(*operands)), expected)
            except AssertionError:
                outcome += ", then a wrong one"
            say(name=name, before=before, outcome=outcome)


def run_without_device_memory() -> None:
    """Makes each call on a GPU whose memory is full, and again after memory is freed."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from tests.families import GARBAGE

    def fill(log_bytes: int, least: int = 8) -> list[jax.Array]:
        """Takes all free pieces of 2^log_bytes bytes, then of each smaller power of two, down to 2^least bytes."""
        held = []
        for log in range(log_bytes, least - 1, -1):
            try:
                while True:
                    held.append(jax.block_until_ready(jnp.zeros(2**log, jnp.uint8)))
            except jax.errors.JaxRuntimeError:
                pass
        return held

    if jax.default_backend() != "gpu":
        say(outcome="left out: there is no GPU")
        return
    ballast = fill(33, 30)  # filling all memory again for each call would take minutes
    del ballast[-4:]

    def equal(got: object, expected: object) -> bool:
        return jax.tree.all(
            jax.tree.map(lambda a, b: np.asarray(a).tobytes() == np.asarray(b).tobytes(), got, expected)
        )

    for name, program, operands in programs_over_many(list(GARBAGE), in_order=True):
        expected = jax.device_get(program(*operands))
        jax.block_until_ready(jnp.full(2**30, 165, jnp.uint8))  # the next call may find these bytes in its memory
        # If operands break preconditions, a kernel may leave parts of its results unwritten.
        is_defined = equal(jax.device_get(program(*operands)), expected)
        held, outcome = fill(32), "a right result"
        try:
            if not equal(jax.device_get(program(*operands)), expected) and is_defined:
                outcome = "a wrong result"
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            outcome = str(error).partition(":")[0]
        del held
        if not equal(jax.device_get(program(*operands)), expected) and is_defined:
            outcome += ", then a wrong one"
        say(name=name, outcome=outcome)


def small_programs() -> list[tuple[str, Callable[..., object], list[tuple[object, ...]], list[object]]]:
    """Returns examples' programs, three sets of operands of each, and the expected results."""
    import jax
    import numpy as np

    from tests.families import EXAMPLES

    rng = np.random.default_rng(3)
    programs = []
    for name, example in EXAMPLES.items():
        program = jax.jit(example.call)
        operands = [jax.device_put(example.make(rng, np.float32)) for _ in range(3)]
        programs.append((name, program, operands, [jax.device_get(program(*each)) for each in operands]))
    return programs


def expect_right(program: Callable[..., object], operands: tuple[object, ...], expected: object) -> None:
    """Calls a program; raises unless its results have exactly the expected bits."""
    import jax

    from tests import oracle

    jax.tree.map(oracle.same_bits, jax.device_get(program(*operands)), expected)


def run_threads(seconds: float) -> None:
    """Calls random functions from many threads at once."""
    programs, calls, errors = small_programs(), collections.Counter[int](), list[str]()
    end = time.monotonic() + seconds

    def work(thread: int) -> None:
        generator = random.Random(thread)
        try:
            while time.monotonic() < end and not errors:
                name, program, operands, expected = generator.choice(programs)
                k = generator.randrange(len(operands))
                expect_right(program, operands[k], expected[k])
                calls[thread] += 1
        except Exception as error:  # any error is reported
            errors.append(f"{name}: {error}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say(outcome=errors[0][:300] if errors else "right results", calls=sum(calls.values()))


def run_signals(seconds: float) -> None:
    """Interrupts programs at random times. The next call must be right."""
    import jax

    programs, interrupts, left_by_jax = small_programs(), 0, 0
    end = time.monotonic() + seconds
    generator = random.Random(5)
    while time.monotonic() < end:
        _, program, operands, expected = generator.choice(programs)
        jax.clear_caches()
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, generator.uniform(0.001, 0.2))
            expect_right(program, operands[0], expected[0])
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupts += 1
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        try:
            expect_right(program, operands[0], expected[0])
        except RecursionError as error:  # a cache of JAX for (Closed)Jaxprs still waits for the interrupted call
            if not JAX_STILL_WAITS.match(str(error)):
                raise
            left_by_jax += 1
            jax.clear_caches()
            expect_right(program, operands[0], expected[0])
    cleared = f", {left_by_jax} after jax.clear_caches(), as an entry of JAX's own cache was left" * bool(left_by_jax)
    say(outcome="right results" + cleared, calls=interrupts)


def run_fork() -> None:
    """Forks after all functions were used. The child, which has none of XLA's threads, must end; the parent goes on."""
    programs = small_programs()
    for _ in range(3):
        child = os.fork()
        if child == 0:
            os._exit(0 if sum(range(1000)) == 499500 else 1)
        _, status = os.waitpid(child, 0)
        if status != 0:
            say(outcome=f"the child ended with {status}")
            return
        for _, program, operands, expected in programs:
            expect_right(program, operands[0], expected[0])
    say(outcome="right results", calls=3 * len(programs))


def run_function() -> None:
    """Runs a scan by a compiled function; reports how many kernels were compiled and how many were read."""
    import jax
    import jax.numpy as jnp

    import jax_mgpu as mgpu
    from jax_mgpu._src.core import library

    if jax.default_backend() != "gpu" or library.cuda_library is None:
        say(outcome="no kernels")
        return
    say(begins=True)
    try:
        got = mgpu.scan(jnp.arange(9), lambda a, b: a + b + 5).tolist()
        outcome = "a right result" if got == [i * (i + 1) // 2 + 5 * i for i in range(9)] else "a wrong result"
    except jax.errors.JaxRuntimeError as error:
        outcome = str(error)
    say(outcome=outcome, counts=library.cuda_library.compiled_functions())


# ---- Starters of workers


def start(worker: str, *arguments: object, **settings: str) -> subprocess.Popen[str]:
    """Runs a worker in a separate process, with these settings in the environment."""
    command = [sys.executable, __file__, "--worker", worker, *map(str, arguments)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    variables |= {"JAX_TRACEBACK_FILTERING": "off", **settings}  # so a traceback ends with its exception, not a hint
    return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[list[dict], str]:
    """Waits for a worker. Returns its lines and its standard error; if it failed, a last line says how it ended."""
    said, errors = process.communicate()
    lines = [json.loads(line) for line in said.splitlines()]
    if process.returncode != 0:
        what = f"signal {-process.returncode}" if process.returncode < 0 else f"code {process.returncode}"
        lines.append({"ended": f"the process ended by {what}: {errors.strip().splitlines()[-1:]}"})
    return lines, errors


class Table:
    """Prints rows of injected faults and their outcomes. `failed` is set if an outcome is not the expected one."""

    def __init__(self) -> None:
        self.failed = False
        print("| fault | outcome |\n|---|---|", flush=True)

    def add(self, fault: str, outcome: str, is_good: bool) -> None:
        """Prints a row."""
        self.failed |= not is_good
        print(f"| {fault} | {'' if is_good else '**'}{outcome}{'' if is_good else '**'} |", flush=True)


def inject_memory(table: Table, arguments: argparse.Namespace) -> None:
    """Makes allocations fail, one per call."""
    from tests.families import GARBAGE

    names = arguments.functions or list(GARBAGE)
    outcomes: collections.Counter[str] = collections.Counter()
    ends = []
    with tempfile.TemporaryDirectory() as folder:
        malloc = pathlib.Path(folder) / "malloc.so"
        source = malloc.with_suffix(".c")
        source.write_text(FAILING_MALLOC, encoding="ascii")
        subprocess.run(["cc", "-O1", "-fno-builtin", "-shared", "-fPIC", source, "-o", malloc], check=True)
        settings = {"JAX_PLATFORMS": "cpu", "LD_PRELOAD": str(malloc)}
        while names:
            lines, _ = finish(start("memory", malloc, *names, **settings))
            outcomes.update(line["outcome"] for line in lines if "outcome" in line)
            if "ended" not in lines[-1]:
                break
            reached = [line for line in lines if "name" in line]
            last = reached[-1] if reached else {"name": names[0], "before": 0}
            ends.append(f"{last['name']}, after {last['before']} allocations: {lines[-1]['ended']}")
            names = names[names.index(last["name"]) + 1 :]
    told = ", ".join(f"{count} x {outcome}" for outcome, count in outcomes.most_common())
    fault = f"{outcomes.total()} calls with one failing allocation of ours each, and one without after each"
    table.add(fault, told, bool(outcomes) and outcomes.keys() <= {"RESOURCE_EXHAUSTED", "a right result"})
    for end in ends:
        table.add("one failing allocation", end, False)


def inject_device_memory(table: Table, arguments: argparse.Namespace) -> None:
    """Runs calls on a GPU whose memory is full."""
    del arguments
    lines, _ = finish(start("device_memory", XLA_PYTHON_CLIENT_ALLOCATOR="platform"))
    outcomes = collections.Counter(line["outcome"] for line in lines if "outcome" in line)
    told = ", ".join(f"{count} x {outcome}" for outcome, count in outcomes.most_common())
    good = {"RESOURCE_EXHAUSTED", "a right result"}, {"left out: there is no GPU"}
    is_good = "ended" not in lines[-1] and any(outcomes.keys() <= each for each in good)
    fault = "calls on a GPU whose memory is taken, and one with room after each"
    table.add(fault, lines[-1].get("ended", told) if not is_good else told, is_good)


def inject_one(worker: str, fault: str) -> Callable[[Table, argparse.Namespace], None]:
    """Returns a function that injects a fault whose worker prints one line."""

    def inject(table: Table, arguments: argparse.Namespace) -> None:
        seconds = [] if worker == "fork" else [arguments.seconds]
        lines, _ = finish(start(worker, *seconds))
        calls = lines[0].get("calls", 0)
        outcome = lines[-1].get("ended", lines[0].get("outcome", "nothing"))
        table.add(fault.format(calls=calls), outcome, str(outcome).startswith("right results"))

    return inject


class Cache:
    """A folder of compiled functions. What the processes that use it report becomes rows of the table."""

    def __init__(self, table: Table, root: pathlib.Path) -> None:
        self.table, self.root, self.folder = table, root, root / "cache"

    def start(self, **settings: str) -> subprocess.Popen[str]:
        """Starts a process that uses the folder."""
        return start("function", **{"MGPU_CACHE_DIR": str(self.folder), **settings})

    def row(self, fault: str, expected: str, **settings: str) -> None:
        """Runs a process and adds its report: the outcome, whether it compiled or read kernels, and how many warnings.

        The report must equal `expected`, or contain it if `expected` has a colon.
        """
        lines, errors = finish(self.start(**settings))
        compiled, read = lines[-1].get("counts", (0, 0))
        did = ", ".join(word for word, count in (("compiled", compiled), ("read", read)) if count)
        words = [lines[-1].get("ended", lines[-1].get("outcome", "nothing")).partition("\n")[0], did]
        warnings = errors.count("jax_mgpu: warning")
        words += [f"{warnings} warning"] * bool(warnings)
        outcome = ", ".join(filter(None, words))
        self.table.add(fault, outcome, outcome == expected or (":" in expected and expected in outcome))

    def entries(self) -> list[pathlib.Path]:
        """Lists the files of the cache, or whatever replaced them."""
        return sorted(self.folder.glob("*.kernel"))

    def replace(self, put: Callable[[pathlib.Path], object]) -> None:
        """Deletes each entry, and calls `put` with its path."""
        for entry in self.entries():
            if entry.is_dir():
                entry.rmdir()
            else:
                entry.unlink()
            put(entry)


COMPILED, READ = "a right result, compiled", "a right result, read"


def inject_cache(table: Table, _: argparse.Namespace) -> None:
    """Damages the folder of compiled functions, and disturbs processes that use it."""
    with tempfile.TemporaryDirectory() as name:
        cache = Cache(table, pathlib.Path(name))
        if finish(cache.start())[0][-1].get("outcome") == "no kernels":
            table.add("the cache", "left out: no function is compiled here", True)
            return
        cache.row("the cache of an earlier process", READ)
        plant_entries(cache)
        cache.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        cache.folder.chmod(0o777)
        cache.row("a folder that others may write to", f"{COMPILED}, 1 warning")
        cache.folder.chmod(0o700)
        cache.row("MGPU_CACHE_BYTES=256MB", "MGPU_CACHE_BYTES: expected", MGPU_CACHE_BYTES="256MB")
        fill_disk(cache)
        use_at_once(cache)


def plant_entries(cache: Cache) -> None:
    """Damages or replaces entries; the next process must compile again."""
    contents = {entry: entry.read_bytes() for entry in cache.entries()}
    elsewhere = cache.root / "elsewhere"
    elsewhere.write_bytes(b"not to be written to")
    for fault, put in {
        "entries cut off": lambda entry: entry.write_bytes(contents[entry][:-9]),
        "entries with other bytes": lambda entry: entry.write_bytes(contents[entry][:-9] + b"x" * 9),
        "empty entries": lambda entry: entry.touch(),
        "FIFOs in the place of entries": os.mkfifo,
        "links in the place of entries": lambda entry: entry.symlink_to(elsewhere),
    }.items():
        cache.replace(put)
        cache.row(fault, COMPILED)
        cache.row(f"{fault}, the process after that", READ)
    if elsewhere.read_bytes() != b"not to be written to":
        cache.table.add("links in the place of entries", "the file elsewhere was written to", False)
    for entry in cache.entries():
        entry.chmod(0o666)
    cache.row("entries that others may write to", COMPILED)
    cache.replace(lambda entry: entry.mkdir())
    cache.row("folders in the place of entries", COMPILED)
    cache.replace(lambda entry: None)


def fill_disk(cache: Cache) -> None:
    """Runs a process whose cache is on a disk with no room for an entry."""
    small = cache.root / "small"
    small.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k,mode=700", "none", str(small)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        cache.table.add("a full disk", "left out: no tmpfs can be mounted here", True)
        return
    try:
        cache.row("a full disk", COMPILED, MGPU_CACHE_DIR=str(small))
    finally:
        subprocess.run(["umount", small], check=True)


def use_at_once(cache: Cache) -> None:
    """Runs processes that compile the same function at once, then kills others at random times."""
    together = [cache.start() for _ in range(4)]
    outcomes = {finish(process)[0][-1].get("outcome") for process in together}
    cache.table.add("4 processes at once", ", ".join(map(str, outcomes)), outcomes == {"a right result"})
    cache.row("4 processes at once, the process after that", READ)
    cache.replace(lambda entry: None)
    for _ in range(5):
        process = cache.start()
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.uniform(0, 1))
        process.kill()
        process.communicate()
    outcome = finish(cache.start())[0][-1].get("outcome")
    cache.table.add("5 processes killed while they compile, the process after that", str(outcome),
                    outcome == "a right result")  # fmt: skip
    cache.row("the process after that", READ)


FAULTS: dict[str, Callable[[Table, argparse.Namespace], None]] = {
    "memory": inject_memory,
    "device_memory": inject_device_memory,
    "threads": inject_one("threads", f"{THREADS} threads over all functions, {{calls}} calls"),
    "signals": inject_one("signals", "{calls} interrupts while programs are traced, compiled or run"),
    "fork": inject_one("fork", "forks between {calls} calls of all functions"),
    "cache": inject_cache,
}
WORKERS: dict[str, Callable[[list[str]], None]] = {
    "memory": run_without_memory,
    "device_memory": lambda given: run_without_device_memory(),
    "threads": lambda given: run_threads(float(given[0])),
    "signals": lambda given: run_signals(float(given[0])),
    "fork": lambda given: run_fork(),
    "function": lambda given: run_function(),
}


def main() -> None:
    """Injects the requested faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--faults", nargs="+", choices=FAULTS, default=list(FAULTS), help="faults to inject (default: all)"
    )
    parser.add_argument("--functions", nargs="+", help="functions into which 'memory' injects faults (default: all)")
    parser.add_argument(
        "--seconds", type=float, default=60, help="duration of the faults 'threads' and 'signals' (default: 60)"
    )
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if arguments.worker:
        WORKERS[arguments.worker[0]](arguments.worker[1:])
        return
    table = Table()
    for fault in arguments.faults:
        FAULTS[fault](table, arguments)
    if table.failed:
        sys.exit("an outcome is not as expected: see the rows in bold")


if __name__ == "__main__":
    main()
