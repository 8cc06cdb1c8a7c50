"""Runs the tests and the benchmarks on a machine with a GPU.

    python3 scripts/device.py --families segmented_sort,merge
    python3 scripts/device.py --families merge --sanitize
    python3 scripts/device.py --large --test-timeout 300
    python3 scripts/device.py --profile "merge/keys uint32"

Child processes with a time limit use the device, so that a hanging kernel or a device error stops only one of them.
Logs, benchmarks.json and profiles go to --output.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import csv
import importlib.util
import io
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
SANITIZED_SCALE = 2.0**-12  # most cases have 16,384 items: checkers are slow
# XLA starts compilers as child processes, which can hang under a checker, so the checkers ignore child processes.
SANITIZER_OPTIONS = ["--target-processes", "application-only", "--show-backtrace", "no", "--print-limit", "0"]
# Known findings, by tool, program and kernel. racecheck does not model bar.arrive, after which the copying warp of a
# merge pipeline reads the ends of a run. The program "garbage" passes arbitrary values, for which two threads may write
# one word of shared memory, and kernels may read uninitialized scratch memory.
KNOWN = {
    ("racecheck", "merge"): {"merge_tiles"},
    ("racecheck", "sorted_search"): {"match_tiles", "search_tiles"},
    ("racecheck", "garbage"): {"expand_words", "match_tiles", "move_words", "search_tiles"},
    ("initcheck", "garbage"): {"merge_tiles", "plan_tiles"},
}
GARBAGE_SHARES = 6  # the number of programs among which the calls on arbitrary values are divided
TEST_SHARE = 0.6  # if benchmarks follow, tests may take at most this share of the time


class Clock:
    """Counts down the remaining time."""

    def __init__(self, seconds: float):
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        """Returns the remaining seconds, but at least one."""
        return max(1.0, self.end - time.monotonic())


def start(command: list[str], log: pathlib.Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Starts a command in its own process group; its output goes to the log."""
    with log.open("wb") as stream:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )


def finish(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Waits for a process; returns its exit status, or None if it had to be stopped.

    SIGINT comes first, so that the process can still report its results.
    """
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return None


def run(command: list[str], log: pathlib.Path, environment: dict[str, str], seconds: float) -> int | None:
    """Runs a command until it ends or its time is up. Returns what `finish` returns."""
    return finish(start(command, log, environment), seconds)


def text_of(log: pathlib.Path) -> str:
    """Reads the output of a command."""
    return log.read_text(errors="replace") if log.exists() else ""


def heading(title: str) -> None:
    """Prints a heading of the output."""
    print(f"\n=== {title}", flush=True)


def child_environment(options: argparse.Namespace, **more: str) -> dict[str, str]:
    """Returns the environment of a child process that uses the device."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "JAX_PLATFORMS": "cuda,cpu" if options.platform == "cuda" else "cpu",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
        **more,
    }


def test_files(families: list[str]) -> list[str]:
    """Returns the test files of these families, or the folder of all tests if no family is named."""
    if not families:
        return ["tests"]
    return [f"tests/test_{family}.py" for family in families if (ROOT / f"tests/test_{family}.py").exists()]


def pytest_command(options: argparse.Namespace, files: list[str]) -> list[str]:
    """Returns the command of pytest, with options for those plugins that are installed."""
    command = [sys.executable, "-m", "pytest", *files, "--long", "-v", "--tb=short", "-rfE", "--durations=8"]
    command += ["-p", "no:cacheprovider"]
    if options.tests_match:
        command += ["-k", options.tests_match]
    if importlib.util.find_spec("pytest_timeout"):  # a thread, because a signal does not reach a test that waits
        command += [f"--timeout={options.test_timeout:g}", "--timeout-method=thread"]
    else:
        print("pytest-timeout is missing: a hanging test takes all the tests' time")
    if importlib.util.find_spec("xdist"):
        command += ["-n", str(options.workers), f"--maxprocesses={options.workers}", "--dist=worksteal"]
        command += ["-p", "scripts.device_worker"]
    else:  # pyproject.toml has options for the plugin, so they are replaced
        command += ["-o", "addopts=--import-mode=importlib"]
    return command


def run_tests(options: argparse.Namespace, clock: Clock) -> bool:
    """Runs the tests, and shows the failures; returns whether all passed."""
    heading("tests")
    files = test_files(options.families)
    if without := [family for family in options.families if f"tests/test_{family}.py" not in files]:
        print(f"without a test file of that name: {', '.join(without)}")
    if not files:
        return True
    log = options.output / "tests.log"
    environment = child_environment(options, XLA_PYTHON_CLIENT_PREALLOCATE="false", COLUMNS="220")
    if options.gpus:
        from scripts import device_worker

        environment[device_worker.GPUS] = str(options.gpus)
    seconds = clock.left() * (TEST_SHARE if options.benchmarks else 1)
    status = run(pytest_command(options, files), log, environment, seconds)
    if status is None:
        print("STOPPED at the end of the tests' time")
    print(summary_of_tests(text_of(log)))
    return status == 0


def run_large(options: argparse.Namespace, clock: Clock) -> bool:
    """Runs the tests of 2^32 + 17 items: first those without indices, three at a time, then those with indices."""
    heading("2^32 + 17 items")
    environment = child_environment(options, JAX_MGPU_TEST_LARGE="1", XLA_PYTHON_CLIENT_ALLOCATOR="platform")
    with_indices = "indices or argmax or load or match"
    good = True
    for match, workers in ((f"not ({with_indices})", 3), (with_indices, 1)):
        one = argparse.Namespace(**vars(options) | {"tests_match": f"more_items and ({match})", "workers": workers})
        log = options.output / f"large-{workers}.log"
        status = run(pytest_command(one, ["tests/test_sizes.py"]), log, environment, clock.left())
        print("STOPPED" if status is None else summary_of_tests(text_of(log)))
        good &= status == 0
    return good


def summary_of_tests(text: str) -> str:
    """Returns the failures and the totals of pytest's output."""
    lines = re.findall(r"^(?:FAILED|ERROR) .*$", text, re.MULTILINE)
    if "short test summary" not in text:  # cut short: take the failures reported so far, and the last lines
        lines += [f"FAILED {name}" for name in re.findall(r"^\[gw\d+\].*(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)]
        lines += text[-1500:].splitlines() if not text.rstrip().endswith("=") else []
    lines = list(dict.fromkeys(line[:240] for line in lines))
    if len(lines) > 30:
        lines[30:] = [f"... and {len(lines) - 30} more in tests.log"]
    if tested := re.search(r"^=+ what was tested =+\n(.*?)(?=^=)", text, re.MULTILINE | re.DOTALL):
        lines.append(tested[1].strip())
    lines += re.findall(r"^=+ (.*(?:passed|failed|error|skipped|no tests).*) =+$", text, re.MULTILINE)[-1:]
    return "\n".join(lines)


def benchmark_families(families: list[str]) -> list[str]:
    """Returns those of these families that have cases, or all families with cases if none is named."""
    from benchmarks.runner import all_cases

    known = list(dict.fromkeys(case.family for case in all_cases()))
    return [family for family in known if not families or family in families]


def run_benchmarks(options: argparse.Namespace, clock: Clock) -> tuple[bool, str]:
    """Runs the cases, one process per family; returns whether nothing failed, and the table."""
    heading("benchmarks")
    from benchmarks import report

    families = benchmark_families(options.families)
    log = options.output / "benchmarks.log"
    good, logs, files = True, [], []
    with tempfile.TemporaryDirectory() as scratch:
        for i, family in enumerate(families):
            folder = pathlib.Path(scratch) / family
            folder.mkdir()
            command = [sys.executable, "-m", "benchmarks", "--families", family, "--output", str(folder)]
            command += ["--repeat", str(options.repeat)]
            for text in options.match:
                command += ["--match", text]
            if options.scale:
                command += ["--scale", str(options.scale)]
            if options.only_ours:
                command += ["--only-ours"]
            # twice the family's share, so that a slow family may use the time that fast ones leave
            seconds = min(clock.left() - 5, max(30.0, 2 * clock.left() / (len(families) - i)))
            status = run(command, folder / "log", child_environment(options), seconds)
            text = text_of(folder / "log")
            logs.append(f"##### {family}\n{text}")
            if (folder / "benchmarks.json").exists():
                files.append(folder / "benchmarks.json")
            if status is None:
                print(f"{family}: STOPPED after {seconds:.0f} s")
            elif "no name of a case contains" in text:
                continue
            elif not files or files[-1].parent != folder:
                print(f"{family}: exit status {status}\n{text[-1500:]}")
            good &= status == 0
        log.write_text("\n".join(logs))
        if not files:
            return good, "no benchmarks ran"
        described, rows = report.merge_files(files)
        report.save(options.output, described, rows)
    for row in rows:
        for failure in report.row_failures(row):
            print(failure[:400])
    return good, report.table(described, rows)


def run_latency(options: argparse.Namespace, clock: Clock) -> bool:
    """Times chains of small calls, recorded into command buffers and not recorded."""
    heading("latency")
    log = options.output / "latency.log"
    command = [sys.executable, "-m", "benchmarks", "--latency"]
    command += ["--families", ",".join(benchmark_families(options.families))]
    for text in options.match:
        command += ["--match", text]
    status = run(command, log, child_environment(options), clock.left() / 2)
    print(text_of(log)[-3000:])
    return status == 0


def sanitized_programs(options: argparse.Namespace) -> dict[str, list[str]]:
    """Returns the programs to check: small cases and, if no family is named, calls on arbitrary values."""
    rows = [sys.executable, "-m", "benchmarks", "--once", "--scale", str(SANITIZED_SCALE)]
    for text in options.match:
        rows += ["--match", text]
    programs = {family: [*rows, "--families", family] for family in benchmark_families(options.families)}
    if not options.families:
        from tests.families import GARBAGE

        pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-v"]
        calls = [f"tests/test_garbage.py::test_many_operands_of_any_values[{name}]" for name in GARBAGE]
        programs |= {f"garbage-{i}": [*pytest, *calls[i::GARBAGE_SHARES]] for i in range(GARBAGE_SHARES)}
    return programs


def run_sanitizers(options: argparse.Namespace, clock: Clock) -> bool:
    """Runs each program under each tool of compute-sanitizer, --workers at a time. Returns whether all are clean."""
    heading("compute-sanitizer")
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on the path")
        return False
    # Each array has its own cudaMalloc, so that accesses beyond it fail. Without graphs, checkers see each kernel.
    environment = child_environment(
        options, XLA_PYTHON_CLIENT_ALLOCATOR="platform", XLA_FLAGS="--xla_gpu_enable_command_buffer="
    )

    def check(job: tuple[str, str, list[str]]) -> tuple[str, str, int | None, str]:
        tool, name, program = job
        command = ["compute-sanitizer", "--tool", tool, *SANITIZER_OPTIONS]
        if tool != "initcheck":  # initcheck must also see what XLA's kernels write
            command += ["--kernel-name", "kernel_substring=mgpu"]
        log = options.output / f"{tool}-{name}.log"
        seconds = clock.left() - 20
        status = run([*command, *program], log, environment, seconds) if seconds > 0 else None
        return tool, name, status, text_of(log)

    jobs = [(tool, name, program) for name, program in sanitized_programs(options).items() for tool in SANITIZERS]
    good = True
    with concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
        for tool, name, status, text in pool.map(check, jobs):
            ran = len(re.findall(r": ran$|PASSED", text, re.MULTILINE))
            allowed = KNOWN.get((tool, name.split("-")[0]), set())
            findings, known = findings_of(text, allowed)
            if tool != "initcheck" and not known and not re.search(r"SUMMARY: 0 (?:errors|hazards)", text):
                findings["errors outside of kernels, or no summary"] += 1
            ended = "STOPPED" if status is None else f"exit {status}"
            print(f"{tool} {name}: {ended}, {ran} ran, {sum(findings.values())} findings", flush=True)
            print("".join(f"  {kernel}: {count}, known\n" for kernel, count in known.items()), end="")
            print("".join(f"  {finding}: {count}\n" for finding, count in findings.items()), end="")
            good &= status == 0 and not findings and ran > 0 and not re.search(r": \w*Error|FAILED", text)
    return good


KERNEL = re.compile(r"(?:^| )at (?:void )?mgpu::(?:(?:\w+|<unnamed>)::)*(\w+)[<(]")


def findings_of(text: str, allowed: set[str]) -> tuple[collections.Counter[str], collections.Counter[str]]:
    """Counts a tool's findings in our kernels that are not `allowed`, and in those that are."""
    findings: collections.Counter[str] = collections.Counter()
    known: collections.Counter[str] = collections.Counter()
    for record in re.split(r"^=+ *$", text, flags=re.MULTILINE):
        lines = [said[1].strip() for line in record.splitlines() if (said := re.search(r"(?:^|\s)={9} (.*)", line))]
        places = [(i, place) for i, line in enumerate(lines) if (place := KERNEL.search(line))]
        if not places:
            continue
        i, place = places[0]
        what = lines[i][: place.start()].strip() or lines[i - 1]
        if place[1] in allowed:
            known[place[1]] += 1
        else:
            findings[f"{place[1]}: {what}"] += 1
    return findings, known


STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active")
SHOWN_COLUMNS = "us, DRAM %, SM %, active warps %, registers, shared KB, conflicts per wavefront, stalls, grid, kernel"


def run_profile(options: argparse.Namespace, clock: Clock) -> bool:
    """Profiles the first --launches of a case's kernels with Nsight Compute; prints a line for each launch."""
    heading(f"profile of {options.profile}")
    if shutil.which("ncu") is None:
        print("ncu is not on the path")
        return False
    report = options.output / "profile"
    log = options.output / "profile.log"
    command = ["ncu", "--clock-control", "none", "--set", "full", "--kernel-name-base", "demangled"]
    command += ["--kernel-name", "regex:mgpu", "--launch-count", str(options.launches), "-f", "-o", str(report)]
    command += [sys.executable, "-m", "benchmarks", "--once", "--match", options.profile]
    if options.scale:
        command += ["--scale", str(options.scale)]
    environment = child_environment(options, XLA_FLAGS="--xla_gpu_enable_command_buffer=")
    status = run(command, log, environment, clock.left() - 30)
    print("\n".join(text_of(log).splitlines()[-4:]))
    raw = options.output / "profile.csv"
    run(["ncu", "--import", f"{report}.ncu-rep", "--csv", "--page", "raw"], raw, dict(os.environ), 25)
    print(kernel_table(text_of(raw)))
    return status == 0


def kernel_table(raw: str) -> str:
    """Formats one line per launch, from Nsight Compute's raw page."""
    begin = raw.find('"ID"')
    rows = list(csv.DictReader(io.StringIO(raw[begin:]))) if begin >= 0 else []
    if len(rows) < 2:
        return "no kernels were profiled"
    units, *launches = rows

    def number(row: dict[str, str], name: str) -> float:
        try:
            return float(row.get(name, "").replace(",", ""))
        except ValueError:
            return float("nan")

    def microseconds(row: dict[str, str]) -> float:
        scale = {"nsecond": 1e-3, "ns": 1e-3, "msecond": 1e3, "ms": 1e3, "second": 1e6, "s": 1e6}
        return number(row, "gpu__time_duration.sum") * scale.get(units.get("gpu__time_duration.sum", ""), 1.0)

    def kernel(row: dict[str, str]) -> str:
        name = re.sub(r"\bmgpu::|\(anonymous namespace\)::|<unnamed>::|^void ", "", row.get("Kernel Name", ""))
        return name.split("(")[0][:60]

    lines = [SHOWN_COLUMNS]
    for row in launches:
        stalls = sorted(((number(row, name), match[1]) for name in row if (match := STALL.match(name))), reverse=True)
        worst = " ".join(f"{name} {value:.1f}" for value, name in stalls[:3])
        conflicts = number(row, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum")
        wavefronts = number(row, "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum")
        shared = number(row, "launch__shared_mem_per_block")
        shared_unit = {"byte/block": 1e-3, "Mbyte/block": 1e3}.get(units.get("launch__shared_mem_per_block", ""), 1.0)
        lines.append(
            f"{microseconds(row):9.1f} {number(row, 'dram__throughput.avg.pct_of_peak_sustained_elapsed'):5.1f} "
            f"{number(row, 'sm__throughput.avg.pct_of_peak_sustained_elapsed'):5.1f} "
            f"{number(row, 'sm__warps_active.avg.pct_of_peak_sustained_active'):5.1f} "
            f"{number(row, 'launch__registers_per_thread'):4.0f} {shared * shared_unit:6.1f} "
            f"{conflicts / wavefronts if wavefronts else 0:5.2f} "
            f"{worst} {row.get('launch__grid_size', '')} {kernel(row)}"
        )
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default="", help="comma-separated names of families (default: all)")
    results = pathlib.Path(os.environ.get("OUT") or ROOT / "build/results")
    parser.add_argument(
        "--output", type=pathlib.Path, default=results, help="folder of the results (default: $OUT or build/results)"
    )
    parser.add_argument("--seconds", type=float, default=560, help="time limit of the whole script (default 560)")
    parser.add_argument("--no-tests", dest="tests", action="store_false", help="run no tests")
    parser.add_argument("--no-benchmarks", dest="benchmarks", action="store_false", help="run no benchmarks")
    parser.add_argument("--tests-match", default="", metavar="EXPRESSION", help="passed to pytest as -k EXPRESSION")
    parser.add_argument("--test-timeout", type=float, default=120, help="time limit per test in seconds (default 120)")
    parser.add_argument(
        "--workers", type=int, default=min(12, os.cpu_count() or 1), help="number of concurrent processes"
    )
    parser.add_argument("--gpus", type=int, help="number of GPUs over which tests are spread (default: each sees all)")
    parser.add_argument(
        "--match", action="append", default=[], metavar="TEXT", help="run only cases whose name contains TEXT"
    )
    parser.add_argument("--scale", type=float, help="size of benchmarks and of the profile, as in python -m benchmarks")
    parser.add_argument("--repeat", type=int, default=5, help="samples per timing (default 5)")
    parser.add_argument("--only-ours", action="store_true", help="time only our functions, not their peers")
    parser.add_argument("--latency", action="store_true", help="time chains of small calls too")
    parser.add_argument("--large", action="store_true", help="run only the tests of 2^32 + 17 items")
    parser.add_argument(
        "--sanitize",
        action="store_true",
        help="run only small cases and calls on arbitrary values, under compute-sanitizer",
    )
    parser.add_argument("--profile", metavar="FAMILY/CASE", help="run only this case, under ncu")
    parser.add_argument("--launches", type=int, default=24, help="number of kernel launches to profile (default 24)")
    parser.add_argument(
        "--platform", choices=("cuda", "cpu"), default="cuda", help="'cpu' tries the script without a GPU"
    )
    options = parser.parse_args()
    options.families = [name for name in options.families.split(",") if name]
    return options


def main() -> int:
    """Runs what the command line requests; returns 1 if something failed."""
    options = parse()
    clock = Clock(options.seconds)
    options.output.mkdir(parents=True, exist_ok=True)
    options.output = options.output.resolve()
    os.environ["JAX_PLATFORMS"] = "cpu"  # this process leaves the GPU to others
    sys.path.insert(0, str(ROOT))

    info = options.output / "info.log"
    if run([sys.executable, "-m", "jax_mgpu", "--info"], info, child_environment(options), 120) != 0:
        print(f"python -m jax_mgpu --info failed:\n{text_of(info)[-3000:]}")
        return 1
    print(text_of(info).strip())

    if options.large:
        return int(not run_large(options, clock))
    if options.sanitize:
        return int(not run_sanitizers(options, clock))
    if options.profile:
        return int(not run_profile(options, clock))
    good, table = True, ""
    if options.tests:
        good &= run_tests(options, clock)
    if options.latency:
        good &= run_latency(options, clock)
    if options.benchmarks:
        rows_good, table = run_benchmarks(options, clock)
        good &= rows_good
    print(f"\n{table}\n{'all good' if good else 'SOMETHING FAILED, see above'}")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
