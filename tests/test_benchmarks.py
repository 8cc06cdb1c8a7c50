"""The code of benchmarks/. Each family's first row runs on few items; our result and the peers' agree."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import benchmarks
import jax_mgpu as mgpu
from benchmarks import measure, mesh, report, runner, shapes, summary, turns
from benchmarks.__main__ import main
from benchmarks.case import Case, Deterministic, agree_counted, agree_within, equal
from benchmarks.measure import QUEUED_MS
from benchmarks.runner import Runner, all_cases, grid_cases
from benchmarks.summary import Row
from scripts import compare

FIRST_CASES = {case.family: case for case in reversed(all_cases())}
SCALE = 2.0**-15  # 2,048 items


@pytest.mark.parametrize("family", sorted(FIRST_CASES))
def test_first_case(family):
    result = Runner(SCALE, repeats=1).run(FIRST_CASES[family])
    record = report.row_record(result, copy_rate=1.0, judged=False)
    assert not report.row_failures(record)
    assert result.ours.timing is not None


@pytest.mark.long
def test_rows_over_all_devices(capsys):
    assert mesh.main(2.0**-15, 1, ["segmented_reduce", "sorted_search, aligned", "1,000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = ["top_k, 1,000", "segmented_reduce, mean 300", "reduce_by_id, 1,000", "sorted_search, aligned"]
    assert [line.split(":")[0] for line in lines[1:]] == rows
    assert mesh.main(2.0**-15, 1, ["no row"]) == 1


@pytest.mark.long
def test_a_library_beside_the_rows_is_no_module(tmp_path):
    folder = tmp_path / "benchmarks"
    shutil.copytree(benchmarks.__path__[0], folder, ignore=shutil.ignore_patterns("results", "*.so"))
    (folder / "libnothing.so").touch()
    command = [sys.executable, "-m", "benchmarks", "--list", "--match", "2^26"]
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(benchmarks.__path__[0]).parent)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("rows", [all_cases, grid_cases])
def test_names_are_unique(rows):
    names = [case.full_name for case in rows()]
    assert names
    assert len(names) == len(set(names))


def test_a_sample_of_rows_is_drawn_by_its_seed(capsys):
    drawn = {}
    for seed in "1", "1", "2":
        assert main(["--grid", "--list", "--sample", "20", "--seed", seed]) == 0
        rows = capsys.readouterr().out.splitlines()
        assert len(set(rows)) == 20
        assert drawn.setdefault(seed, rows) == rows
    assert drawn["1"] != drawn["2"]
    merges = [case.full_name for case in all_cases() if case.family == "merge"]
    assert main(["--families", "merge", "--list", "--sample", str(len(merges))]) == 0
    assert capsys.readouterr().out.splitlines() == merges


@pytest.mark.long
def test_processes_share_the_rows(tmp_path, capfd):
    chosen = ["--families", "load_balance", "--scale", str(SCALE), "--repeat", "1", "--only-ours"]
    assert main([*chosen, "--processes", "2", "--output", str(tmp_path)]) == 0
    saved = json.loads((tmp_path / "benchmarks.json").read_text())
    names = sorted(case.name for case in all_cases() if case.family == "load_balance")
    assert sorted(row["name"] for row in saved["rows"]) == names
    assert f"{len(names)} cases: 0 exceed" in capfd.readouterr().out


def test_processes_spread_over_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    commands = [turns.command_of(["--grid"], part, 4, 2, pathlib.Path("there")) for part in range(4)]
    assert [own["CUDA_VISIBLE_DEVICES"] for _, own in commands] == ["3", "1", "3", "1"]
    locks = [command[command.index("--turns") + 1] for command, _ in commands]
    assert locks == ["there/turns0", "there/turns1", "there/turns0", "there/turns1"]
    assert len({command[command.index("--output") + 1] for command, _ in commands}) == 4
    assert {own["JAX_COMPILATION_CACHE_DIR"] for _, own in commands} == {"there/compiled"}
    _, alone = turns.command_of(["--grid"], 1, 2, 1, pathlib.Path("there"))
    assert alone["CUDA_VISIBLE_DEVICES"] == "3,1"


@pytest.mark.parametrize(
    "options, words",
    [
        (["--gpus", "2"], "--gpus: expected 1 to 1, the number of processes, got 2"),
        (["--gpus", "3", "--processes", "3"], "--gpus: expected at most 2, the number of visible GPUs, got 3"),
        (["--skip", "missing.json"], "--skip: missing.json is not a file"),
    ],
)
def test_wrong_options_of_many_rows_are_errors(monkeypatch, capsys, options, words):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    with pytest.raises(SystemExit):
        main(["--families", "load_balance", *options])
    assert words in capsys.readouterr().err


@pytest.mark.long
def test_an_interrupt_saves_the_rows_of_all_processes(tmp_path):
    chosen = ["--families", "sort", "--scale", str(SCALE), "--repeat", "1", "--only-ours", "--processes", "2"]
    command = [sys.executable, "-m", "benchmarks", *chosen, "--output", str(tmp_path)]
    # Children of a process that ignores interrupts (a background job of a shell) ignore them too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        signal.signal(signal.SIGINT, before)
        # JAX may print warnings before, if the other process is writing the same program to their cache.
        assert any(line.startswith("sort/") for line in running.stderr)
        running.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in running.communicate(timeout=60)[1]
    rows = report.saved_names(tmp_path / "benchmarks.json")
    assert 0 < len(rows) < len([case for case in all_cases() if case.family == "sort"])


def test_saved_cases_are_skipped(tmp_path, capsys):
    rows = [case for case in all_cases() if case.family == "load_balance"]
    first = {"family": "load_balance", "name": rows[0].name}
    (tmp_path / "saved.json").write_text(json.dumps({"run": {}, "rows": [first]}))
    assert main(["--families", "load_balance", "--list", "--skip", str(tmp_path / "saved.json")]) == 0
    assert capsys.readouterr().out.splitlines() == [case.full_name for case in rows[1:]]


def test_parts_of_rows_are_all_of_them():
    rows = grid_cases()[:300]
    parts = [turns.part_of(rows, part, 7) for part in range(7)]
    assert sorted(case.full_name for part in parts for case in part) == sorted(case.full_name for case in rows)
    owners = collections.defaultdict(set)
    for number, part in enumerate(parts):
        for case in part:
            owners[case.inputs].add(number)
    assert all(len(of_inputs) == 1 for of_inputs in owners.values())


@pytest.mark.parametrize("ratio, fails", [(0.9, True), (0.97, False), (3.0, False)])
def test_a_function_may_not_be_slower_than_the_one_it_replaces(ratio, fails):
    row = {"family": "names", "name": "sort", "ours": {"ms": 1.0}, "peers": {"JAX": {"ms": ratio, "ratio": ratio}}}
    assert bool(report.row_failures({**row, "replaces": "JAX"})) == fails
    assert not report.row_failures({**row, "replaces": None})


@pytest.mark.parametrize("near_ms, again", [(30.0, ""), (10.5, "ours near")])
def test_quick_cases_are_timed_again_if_a_peer_is_close(monkeypatch, near_ms, again):
    taken = []

    def compile_program(function, input_sets):
        return measure.Program(function, input_sets)

    def time_program(program, repeats, *, queued_ms):
        name = program.run.__name__
        taken.append((name, repeats, queued_ms))
        ms = {"ours": 10.0, "near": near_ms, "far": 20.0}[name]
        return measure.Timing(ms, ms, ms, repeats, 1)

    def side(name):
        def call(sets):
            return [sets[0][0]]

        call.__name__ = name
        return call

    monkeypatch.setattr(runner, "compile_program", compile_program)
    monkeypatch.setattr(runner, "time_program", time_program)
    peers = {name: side(name) for name in ("near", "far")}
    case = Case("family", "name", lambda rng, scale: (jnp.ones(3),), side("ours"), peers, len)
    result = runner.Runner(1.0, 5, quick=True).run(case)
    assert taken[:3] == [(name, 3, runner.QUICK.queued_ms) for name in ("ours", "near", "far")]
    assert taken[3:] == [(name, 5, QUEUED_MS) for name in again.split()]
    samples = {name: outcome.timing.repeats for name, outcome in result.peers.items()}
    assert samples == {"near": 5 if again else 3, "far": 3}
    assert not result.failed


@pytest.mark.parametrize("on_cpu", [False, True])
@pytest.mark.parametrize("spreads", [[0.2], [0.3, 0.1], [0.5, 0.3, 0.4]], ids=str)
def test_disturbed_samples_are_taken_again(monkeypatch, spreads, on_cpu):
    samples = iter(spreads)

    def time_program(program, repeats, *, queued_ms):
        return measure.Timing(1.0, 1.0, 1.0 + next(samples), repeats, 1)

    monkeypatch.setattr(runner, "time_program", time_program)
    one = runner.Runner(1.0, 5)
    one.on_cpu = on_cpu
    timing = one._timing(measure.Program(len, []))
    assert timing.spread == pytest.approx(spreads[0] if on_cpu else min(spreads))
    assert list(samples) == (spreads[1:] if on_cpu else [])


def test_rounds_of_short_calls():
    assert [runner.Pace(5).rounds(ms) for ms in (0.001, 0.2)] == [runner.ROUNDS] * 2
    assert [runner.QUICK.rounds(ms) for ms in (0.001, 0.05, 0.1, 0.5, 1.0)] == [runner.ROUNDS, 5, 4, 1, 1]


def test_rows_slower_than_saved_ones_are_found(monkeypatch, tmp_path, capsys):
    """A row more than 2% slower than saved is measured up to three times more; the shortest time counts."""
    saved = tmp_path / "saved.csv"
    summary.write(saved, [Row("rows", f"merge/{name}", 1.0, {}, None, "D", "2026-01-01", "1", "") for name in "abc"])
    times = {"merge/a": [1.01], "merge/b": [1.2, 1.3, 1.0, 1.4], "merge/c": [1.1, 1.2, 1.03, 1.1]}

    def measure(tree, families, rows, repeats):
        return {row: ms.pop(0) for row, ms in times.items() if not rows or row in {f"merge/{x}" for x in rows}}

    monkeypatch.setattr(compare, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["compare", str(saved), ".", "--families", "merge"])
    assert compare.main() == 1
    *_, slower, last = capsys.readouterr().out.splitlines()
    assert slower.split() == ["SLOWER", "merge/c", "1.000", "1.030", "+3.0%"]
    assert last == "3 cases, 1 slower by more than 2%, 0 missing"


def failing_case(**changes):
    def inputs(rng, scale):
        return (jnp.arange(8),)

    fields = {
        "family": "family",
        "name": "row",
        "inputs": inputs,
        "ours": jnp.sort,
        "peers": {},
        "bytes": lambda x: 64,
        **changes,
    }
    return report.row_record(Runner(1.0, repeats=1).run(Case(**fields)), copy_rate=1.0, judged=True)


def raises(*_):
    raise RuntimeError("so it is\nat length")


def test_failures_are_recorded():
    assert report.row_failures(failing_case(ours=raises)) == ["family/row: ours: RuntimeError: so it is"]
    assert report.row_failures(failing_case(inputs=raises)) == ["family/row: ours: RuntimeError: so it is"]
    row = failing_case(peers={"B": raises, "C": lambda x: x + 1, "D": lambda x: x}, max_ms=1e-9)
    failures = ["family/row: B: RuntimeError: so it is", "family/row: C: its result differs from ours"]
    assert report.row_failures(row) == failures
    assert row["met"] is False
    table = report.table(report.describe_run(Runner(1.0, repeats=1), 1.0), [row])
    assert "B FAILED" in table
    assert "DIFFERS" in table
    assert "1 cases: 1 exceed their max ms" in table


def test_command_line(tmp_path, capsys):
    row = next(iter(FIRST_CASES.values())).full_name
    arguments = ["--match", row, "--scale", str(SCALE), "--repeat", "1"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    saved = json.loads((tmp_path / "benchmarks.json").read_text())
    assert saved["run"]["scale"] == SCALE
    assert [f"{row['family']}/{row['name']}" for row in saved["rows"]] == [row]
    assert main([*arguments, "--once"]) == 0
    assert main([*arguments, "--latency", "--calls", "3"]) == 0
    with pytest.raises(SystemExit, match="2"):
        main(["--families", "nothing"])
    capsys.readouterr()


def test_agreement():
    x = jnp.array([1.0, jnp.nan])
    assert equal((x, x), [x, x])
    assert not equal(x, x.at[0].set(2))
    assert not equal(x, x[:1])
    assert agree_counted((jnp.array([1, 2, 0]), jnp.array(2)), (jnp.array([1, 2, 9]), jnp.array(2)))
    assert not agree_counted((jnp.array([1, 2, 0]), jnp.array(2)), (jnp.array([1, 2, 0]), jnp.array(3)))
    assert agree_within(1e-3)(jnp.array([1000.0, 1.0]), jnp.array([1000.5, 1.5]))
    assert not agree_within(1e-3)(jnp.array([1000.0, 1.0]), jnp.array([1000.5, 3.5]))


def test_shapes_run_and_are_written(tmp_path):
    main(["--shapes", "--scale", str(2.0**-8), "--match", "sorted_search, rows of 8", "--output", str(tmp_path)])
    rows = json.loads((tmp_path / "shapes.json").read_text())["rows"]
    assert [row["shape"] for row in rows] == ["rows of 8", "rows of 8192"]
    assert all(row["ours_ms"] > 0 and row["xla_ms"] > 0 for row in rows)


def test_short_calls_of_shapes_are_timed_in_longer_programs(tmp_path, monkeypatch):
    calls = []

    def time_as(ms):
        def time_program(program, *_):
            calls.append(len(program.input_sets))
            return measure.Timing(ms, ms, ms, 1, 1)

        return time_program

    arguments = ["--shapes", "--scale", str(2.0**-8), "--match", "scan, rows of 512", "--output", str(tmp_path)]
    for ms, expected in ((0.5, {8}), (0.01, {8, 32})):
        calls.clear()
        monkeypatch.setattr(shapes, "time_program", time_as(ms))
        main(arguments)
        assert set(calls) == expected
    assert calls[-1] == 32
    assert [row["ours_ms"] for row in json.loads((tmp_path / "shapes.json").read_text())["rows"]] == [0.01]


def test_each_round_of_a_program_makes_its_calls():
    """Programs for a CPU have one round."""
    inputs = [(jnp.arange(9) + i,) for i in range(3)]
    program = measure.compile_program(mgpu.mergesort, inputs, rounds=5)
    assert [list(result) for result in program()] == [list(range(i, 9 + i)) for i in range(3)]
    rounds = 5 if jax.default_backend() == "gpu" else 1
    assert program.calls == 3 * rounds
    if mgpu.has_cuda() or rounds == 1:  # the calls appear once before the loop, and once in it
        assert program.run.as_text().count('custom_call_target="jax_mgpu.segmented_sort"') == 3 * min(2, rounds)


@pytest.mark.parametrize(
    "times, failed", [([(1.1, 1.0), (1.2, 0.9), (1.0, 1.1)], True), ([(1.1, 1.0), (0.9, 1.2)], False)]
)
def test_a_shape_that_xla_does_faster_is_measured_again(tmp_path, monkeypatch, times, failed):
    measurements = iter(times)

    def measure_shapes(some, _):
        return [shapes.Measured(shape, 10**6, *next(measurements)) for shape in some]

    monkeypatch.setattr(shapes, "_measure", measure_shapes)
    arguments = ["--shapes", "--scale", str(2.0**-8), "--match", "scan, uint8, rows of 512", "--output", str(tmp_path)]
    assert main(arguments) == failed
    (row,) = json.loads((tmp_path / "shapes.json").read_text())["rows"]
    assert (row["ours_ms"], row["xla_ms"]) == tuple(map(min, *times))
    assert next(measurements, None) is None


def test_slow_shapes_are_failures():
    def measured(name, ours, xla=None, same_rate=True):
        shape = shapes.Shape("merge", name, lambda rng: (), jnp.sort, same_rate=same_rate)
        return shapes.Measured(shape, 10**9, ours, xla)

    fast, even = measured("rows of 2048", 1.0, 2.0), measured("rows of 512", 2.9)
    assert shapes.failures([fast, even]) == []
    assert shapes.failures([fast, measured("rows of 8", 3.1)]) == ["merge, rows of 8: 3.100 ms, by its bytes 1.000"]
    assert shapes.failures([fast, measured("int8", 3.1, same_rate=False)]) == []
    slower = measured("rows of 8", 1.1, 1.0)
    assert shapes.failures([slower]) == ["merge, rows of 8: 1.100 ms, XLA 1.000"]
    assert len(shapes.failures([dataclasses.replace(slower, is_xla=True)])) == 1
    assert len(shapes.failures([measured("rows of 8", 1.01, 1.0)])) == 1
    assert shapes.failures([dataclasses.replace(slower, ours=1.01, is_xla=True)]) == []


@pytest.mark.skipif(not mgpu.has_cuda() and jax.default_backend() == "gpu", reason="there are no kernels for the GPU")
def test_programs_without_kernels_are_recognized():
    inputs = [(jnp.arange(9),)]
    assert measure.compile_program(mgpu.mergesort, inputs).has_kernels
    assert not measure.compile_program(jnp.sort, inputs).has_kernels
    text = 'HloModule jit_chain\n\nFileNames\n1 "jax_mgpu/_src/ops/reduce.py"\n'  # the text also names source files
    assert not measure.Program(types.SimpleNamespace(as_text=lambda: text), inputs).has_kernels


def test_a_peer_has_its_own_options_of_the_compiler():
    inputs = [(jnp.arange(9),)]
    assert list(measure.compile_program(Deterministic(jnp.flip), inputs)()[0]) == list(range(8, -1, -1))

    class Unknown(Deterministic):
        options = {"xla_unknown": True}  # noqa: RUF012

    with pytest.raises(Exception, match="No such compile option: 'xla_unknown'"):
        measure.compile_program(Unknown(jnp.flip), inputs)


def test_sums_of_floats_by_id_have_a_deterministic_peer():
    rows = {case.full_name: case.peers for case in (*all_cases(), *grid_cases())}
    assert "XLA, deterministic" in rows["reduce/add by 1,000 ids, uniform, float32 2^24"]
    assert "XLA, deterministic" not in rows["reduce/add by 5,000 ids, uniform, int32 2^25"]
    assert "JAX, deterministic" in rows["names/segment_sum [100000] into 1, jax#38806"]


@pytest.mark.parametrize("issue", [34912, 38806, 39959, 40864, 30296])
def test_each_issue_of_jax_has_a_row(issue):
    (case, *_) = [case for case in grid_cases() if f"jax#{issue}" in case.name]
    with jax.enable_x64(case.x64):
        arrays = case.inputs(np.random.default_rng(0), 1.0)
        of_both = [jax.eval_shape(side, *arrays) for side in (case.ours, case.peers["JAX"])]
    assert of_both[0] == of_both[1]


def test_names_of_shapes_are_unique():
    names = [f"{shape.operation}, {shape.shape}" for shape in shapes.shapes()]
    assert len(names) == len(set(names))
