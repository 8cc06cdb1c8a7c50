"""The command line, and what the package says about itself."""

from __future__ import annotations

import re
import subprocess
import sys

import jax
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu.__main__ import main
from jax_mgpu._src.command import benchmark
from jax_mgpu._src.core import library


def run(*arguments):
    command = [sys.executable, "-m", "jax_mgpu", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.long
def test_default_input_is_sorted_and_checked():
    done = run()
    assert done.returncode == 0, done.stderr
    assert "standard library" in done.stdout
    assert "bit for bit" in done.stdout
    assert "kernels ran" in done.stdout
    said = [line.partition(" ...")[0] for line in done.stderr.splitlines()]
    assert said == [
        "Reading Python's standard library", "Compiling segmented_sort and lax.sort",
        "Sorting each row, here and in NumPy", "Timing both",
    ]  # fmt: skip
    assert list(rows_of(done.stdout)) == ["segmented_sort"]
    assert done.stdout.splitlines()[-1].startswith("Next: python -m jax_mgpu --benchmark")


def test_npz_with_every_special_value(tmp_path):
    values = np.array([np.nan, -0.0, 0.0, -np.inf, 1.5, np.inf, -np.nan, 0.0, -0.0, 7, 3], np.float32)
    np.savez(tmp_path / "data.npz", values=values, offsets=np.array([0, 0, 7, 9, 9, 11]))
    done = run(tmp_path / "data.npz")
    assert done.returncode == 0, done.stderr
    assert "5 rows of 0 to 7 values, 11 in all" in done.stdout


def test_npz_of_64_bits_and_no_rows(tmp_path):
    np.savez(tmp_path / "data.npz", values=np.zeros(0, np.int64), offsets=np.zeros(1, np.uint8))
    done = run(tmp_path / "data.npz")
    assert done.returncode == 0, done.stderr


def test_text(tmp_path):
    (tmp_path / "words.txt").write_text("pear apple fig fig\n\nb a\n", encoding="utf-8")
    done = run(tmp_path / "words.txt")
    assert done.returncode == 0, done.stderr
    assert "apple fig fig pear" in done.stdout


def bad_inputs(folder):
    np.savez(folder / "names.npz", keys=np.arange(3))
    np.savez(folder / "rank.npz", values=np.zeros((2, 2)), offsets=np.arange(3))
    np.savez(folder / "dtype.npz", values=np.zeros(2, complex), offsets=np.array([0, 2]))
    np.savez(folder / "end.npz", values=np.arange(3), offsets=np.array([0, 2]))
    np.savez(folder / "falls.npz", values=np.arange(3), offsets=np.array([0, 2, 1, 3]))
    np.savez(folder / "objects.npz", values=np.array([{}]), offsets=np.array([0, 1]))
    (folder / "broken.npz").write_bytes(b"PK not a zip")
    (folder / "latin.txt").write_bytes(b"caf\xe9 au lait")
    return {
        "missing.txt": "No such file",
        "names.npz": "expected arrays named values and offsets, got keys",
        "rank.npz": "values: expected a vector",
        "dtype.npz": "got complex128[2]",
        "end.npz": "expected the first to be 0 and the last 3, got 0 and 2",
        "falls.npz": "expected ascending numbers, got a smaller one after position 1",
        "objects.npz": "plain arrays",
        "broken.npz": "plain arrays",
        "latin.txt": "expected UTF-8 text",
        "": "Is a directory",
    }


def test_bad_files_give_one_line_and_exit_status_2(tmp_path, capsys):
    for name, words in bad_inputs(tmp_path).items():
        assert main([str(tmp_path / name)]) == 2, name
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1, said.err
        assert said.err.startswith("jax_mgpu: "), said.err
        assert words in said.err, said.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sort-of"], "unrecognized arguments: --sort-of"),
        (["--size", "3"], "--size and --plot require --benchmark"),
        (["--plot", "speed.png"], "--size and --plot require --benchmark"),
        (["--benchmark", "--info"], "--benchmark cannot be combined with FILE or --info"),
        (["--benchmark", "words.txt"], "--benchmark cannot be combined with FILE or --info"),
        (["--benchmark", "--size", "0"], "argument --size: expected a number from 1 to 536870912, got 0"),
        (["--benchmark", "--size", "1e6"], "argument --size: expected a number from 1 to 536870912, got 1e6"),
        (
            ["--benchmark", "--plot", "speed.txt"],
            "argument --plot: expected a name that ends in .png or .svg or .pdf, got speed.txt",
        ),
        (["--benchmark", "--plot", "no/such/speed.png"], "argument --plot: no/such is not a folder"),
    ],
)
def test_bad_options_give_one_line_and_exit_status_2(capsys, options, words):
    with pytest.raises(SystemExit) as left:
        main(options)
    assert left.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"jax_mgpu: {words} (try --help)\n"


def test_wrong_result_is_reported(tmp_path, capsys, monkeypatch):
    (tmp_path / "words.txt").write_text("b a\n", encoding="utf-8")
    monkeypatch.setattr(mgpu, "segmented_sort", lambda keys, heads: keys)
    assert main([str(tmp_path / "words.txt")]) == 1
    assert "WRONG at position 0" in capsys.readouterr().err


def rows_of(table):
    """Returns, for each operation in the table: our time, JAX's, their ratio, and the verdict."""
    line = re.compile(r"^(\w+) +([\d.]+)  .* +([\d.]+) +([\d.]+)  (agree|DIFFER)$", re.MULTILINE)
    return {name: (float(a), float(b), float(c), verdict) for name, a, b, c, verdict in line.findall(table)}


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.long), 3000])
def test_benchmark(tmp_path, size):
    plot = tmp_path / "speed.png"
    done = run("--benchmark", "--size", size, "--plot", plot)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == len(benchmark.ROWS)
    assert f"[{len(benchmark.ROWS)}/{len(benchmark.ROWS)}] join and" in done.stderr
    assert done.stdout.splitlines()[-1].startswith("Next: python -m jax_mgpu FILE")
    rows = rows_of(done.stdout)
    assert list(rows) == [row.name for row in benchmark.ROWS]
    assert {verdict for *_, verdict in rows.values()} == {"agree"}
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_table():
    measured = [benchmark.Measured(benchmark.ROWS[1], 2.0, 1234.5, True)]
    assert benchmark.table(measured).splitlines() == [
        "operation     ms  JAX without it        ms   ratio  results",
        "mergesort  2.000  jnp.sort        1234.500  617.25  agree",
    ]


def scan_row(theirs):
    return next(row for row in benchmark.ROWS if row.name == "scan")._replace(theirs=theirs)


def test_benchmark_without_matplotlib(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "ROWS", [scan_row(jax.numpy.cumsum)])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "jax_mgpu._src.command.plot", raising=False)
    assert main(["--benchmark", "--size", "100", "--plot", str(tmp_path / "speed.png")]) == 0
    said = capsys.readouterr()
    assert list(rows_of(said.out)) == ["scan"]
    assert said.err.splitlines()[1:] == [
        "jax_mgpu: no plot was drawn, as matplotlib is missing: pip install matplotlib"
    ]
    assert not any(tmp_path.iterdir())


def test_benchmark_says_which_rows_differ_or_fail(capsys, tmp_path, monkeypatch):
    def no_memory(rng, n):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nand so on")

    monkeypatch.setattr(benchmark, "ROWS", [scan_row(lambda x: x), scan_row(None)._replace(inputs=no_memory)])
    assert main(["--benchmark", "--size", "100", "--plot", str(tmp_path / "speed.svg")]) == 1
    said = capsys.readouterr()
    assert rows_of(said.out)["scan"][3] == "DIFFER"
    assert said.err.endswith("\nscan and jnp.cumsum: FAILED: RESOURCE_EXHAUSTED: out of memory\n")
    assert "<svg" in (tmp_path / "speed.svg").read_text()

    monkeypatch.setattr(benchmark, "ROWS", [scan_row(jax.numpy.cumsum), scan_row(None)._replace(inputs=no_memory)])
    assert main(["--benchmark", "--size", "100", "--plot", str(tmp_path / "speed.svg")]) == 1


def test_information(capsys, monkeypatch):
    monkeypatch.setenv("JAX_MGPU_CHECKS", "0")
    assert main(["--info"]) == 0
    said = capsys.readouterr().out
    device = jax.devices()[0]
    for words in (
        f"jax {jax.__version__}, jaxlib {jax.lib.__version__}, numpy {np.__version__}",
        f"devices: {jax.device_count()} x {device.device_kind} ({device.platform})",
        "kernels built: cpu",
        "cpu: CPU kernels on XLA's threads (FFI API ",
        "FFI API of this jaxlib: 0.",
        " operations",
        "JAX_MGPU_CHECKS=0",
        "To report a bug, send these lines",
    ):
        assert words in " ".join(said.split()), said
    assert said.count("\n") <= 24
    assert max(map(len, said.splitlines())) < 80


def test_information_without_devices(capsys, monkeypatch):
    def devices():
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr(jax, "devices", devices)
    assert main(["--info"]) == 0
    assert "devices: none: Unable to initialize backend 'cuda'\n" in capsys.readouterr().out


def test_backends_and_has_cuda():
    backends = mgpu.backends()
    assert set(backends) == {"cpu", "cuda", "others"}
    assert backends["cpu"].startswith("CPU kernels")
    assert mgpu.has_cuda() == backends["cuda"].startswith("CUDA kernels")
    if not mgpu.has_cuda():
        is_wheel = library.cpu_library.description["is_wheel"]
        assert ("pip install 'jax_mgpu[cuda1" if is_wheel else "MGPU_CUDA=ON") in backends["cuda"]


def test_every_field_of_a_result_is_documented():
    results = [value for name in mgpu.__all__ if hasattr(value := getattr(mgpu, name), "_fields")]
    assert len(results) > 5
    for result in results:
        for field in result._fields:
            assert len(words := getattr(result, field).__doc__) > 10
            assert not words.startswith("Alias for field")


@pytest.mark.parametrize("name", ["backends", "has_cuda"])
def test_public(name):
    assert name in mgpu.__all__
