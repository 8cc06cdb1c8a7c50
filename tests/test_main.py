"""The command line, as a user runs it, and what the package says of itself."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu.__main__ import main


def run(*arguments):
    command = [sys.executable, "-m", "jax_mgpu", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_default_input_is_sorted_and_checked():
    done = run()
    assert done.returncode == 0, done.stderr
    assert "standard library" in done.stdout
    assert "bit for bit" in done.stdout
    assert "kernels ran" in done.stdout


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
        "end.npz": "from 0 to 3, got 0 to 2",
        "falls.npz": "a fall after position 1",
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


def test_bad_option_gives_one_line_and_exit_status_2():
    done = run("--sort-of")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "jax_mgpu: unrecognized arguments: --sort-of (try --help)\n"


def test_wrong_result_is_reported(tmp_path, capsys, monkeypatch):
    (tmp_path / "words.txt").write_text("b a\n", encoding="utf-8")
    monkeypatch.setattr(mgpu, "segmented_sort", lambda keys, heads: keys)
    assert main([str(tmp_path / "words.txt")]) == 1
    assert "WRONG at position 0" in capsys.readouterr().err


def test_information(capsys):
    assert main(["--info"]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("jaxlib", "devices:", "cpu: CPU kernels", "FFI API", "segmented_sort")), said


def test_backends_and_has_cuda():
    backends = mgpu.backends()
    assert set(backends) == {"cpu", "cuda", "others"}
    assert backends["cpu"].startswith("CPU kernels")
    assert mgpu.has_cuda() == backends["cuda"].startswith("CUDA kernels")
    if not mgpu.has_cuda():
        assert "MGPU_CUDA=ON" in backends["cuda"]


@pytest.mark.parametrize("name", ["backends", "has_cuda"])
def test_public(name):
    assert name in mgpu.__all__
