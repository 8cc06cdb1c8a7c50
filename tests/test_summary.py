"""benchmarks/summary.py adds a run's rows to the saved figures, which the pages show."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks import summary
from benchmarks.summary import RESULTS, Row, add_run, main, read, write

FACTS = ("NVIDIA H200", "2026-01-02T03:04", "1", "")


def run(*rows, **facts):
    described = {"device": "NVIDIA H200", "jax": "1", "scale": 1.0, "date": "2026-01-02T03:04:05+00:00", **facts}
    return {"run": described, "rows": [*rows]}


def measured(name, ms, met=None, **peers):
    family, _, rest = name.partition("/")
    reach = {"max_ms": 3.0, "met": met}
    return {"family": family, "name": rest, "ours": {"ms": ms}, "peers": peers, **reach}


def test_a_row_keeps_its_last_time_and_the_last_of_each_peer():
    early = run(measured("f/a", 1.0, CUB={"ms": 5.0, "agrees": True}, XLA={"ms": 7.0, "agrees": True}))
    late = run(measured("f/a", 2.0, XLA={"ms": 6.0, "agrees": True}), date="2026-01-03T00:00:00+00:00")
    for order in ([early, late], [late, early]):
        rows = []
        for each in order:
            rows = add_run(rows, each, usual={"f/a"})
        [row] = rows
        assert (row.suite, row.ours, row.peers, row.date) == (
            "rows",
            2.0,
            {"CUB": 5.0, "XLA": 6.0},
            "2026-01-03T00:00",
        )


def test_what_failed_or_disagrees_is_no_figure():
    broken = {**measured("f/broken", 1.0), "ours": {"error": "no"}}
    peers = {"XLA": {"ms": 1.0, "agrees": False}, "torch": {"ms": 2.0}, "CUB": {"note": "not built"}}
    assert [row.peers for row in add_run([], run(broken, measured("f/a", 1.0, **peers)))] == [{"torch": 2.0}]


def test_suites_and_figures_to_reach():
    shape = {"operation": "merge", "shape": "rows of 8", "bytes": 1, "ours_ms": 1.0, "xla_ms": None, "is_xla": False}
    rows = add_run([], run(measured("f/a", 1.0, met=True), measured("f/b", 1.0), shape), "c0ffee", {"f/a"})
    assert [(row.suite, row.row, row.max_ms) for row in rows] == [
        ("rows", "f/a", 3.0), ("grid", "f/b", None), ("shapes", "merge/rows of 8", None)
    ]  # fmt: skip
    assert {row.commit for row in rows} == {"c0ffee"}


def test_other_sizes_are_refused():
    with pytest.raises(ValueError, match=r"expected scale 1, got 0\.5"):
        add_run([], run(scale=0.5))


def test_a_file_gives_back_its_rows(tmp_path):
    rows = [
        Row("rows", "f/b, 2^4 = 16", 0.1235, {"XLA x[i]": 2.0}, 3.0, *FACTS),
        Row("grid", "f/a", 1.0, {}, None, *FACTS),
    ]
    write(tmp_path / "d.csv", rows)
    assert read(tmp_path / "d.csv") == rows[::-1]


def test_the_command_adds_runs_to_their_machine(tmp_path, capsys):
    for name, device in ("a", "NVIDIA H200"), ("b", "NVIDIA H100 80GB HBM3"), ("c", "NVIDIA GeForce RTX 4090"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "benchmarks.json").write_text(json.dumps(run(measured("f/a", 1.0), device=device)))
    assert main([str(tmp_path), "--results", str(tmp_path / "results")]) == 0
    assert {path.name for path in (tmp_path / "results").iterdir()} == {"h200.csv", "h100.csv", "geforce-rtx-4090.csv"}
    with pytest.raises(SystemExit):
        main([str(tmp_path / "results"), "--results", str(tmp_path / "results")])
    assert "none contains benchmarks.json or shapes.json" in capsys.readouterr().err


def test_saved_files_are_as_they_would_be_written(tmp_path):
    for path in RESULTS.glob("*.csv"):
        rows = read(path)
        assert len({(row.suite, row.row) for row in rows}) == len(rows)
        write(tmp_path / path.name, rows)
        assert (tmp_path / path.name).read_text() == path.read_text()


def test_the_page_has_every_case_that_a_peer_wins(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(pathlib.Path(summary.__file__).parent.parent / "docs")
    import benchmark_page

    benchmark_page.write(RESULTS, tmp_path)
    lines = (tmp_path / "benchmarks.md").read_text().splitlines()
    for path in RESULTS.glob("*.csv"):
        rows = read(path)
        title = lines.index(f"### {rows[0].card}: a peer is faster")
        lost = [row.row for row in rows if row.peers and min(row.peers.values()) < row.ours]
        listed = [line.split(" | ")[0].removeprefix("| ") for line in lines[title + 4 : title + 4 + len(lost)]]
        assert sorted(listed) == sorted(lost)
        assert not lines[title + 4 + len(lost)]


def test_the_performance_page_has_the_saved_figures():
    rows = {row.row: row for row in read(RESULTS / "h200.csv")}
    page = (pathlib.Path(summary.__file__).parent.parent / "docs" / "performance.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| ") and "/" in line.split(" | ")[0]]
    assert len(lines) > 20
    for line in lines:
        name, ours, peer = (cell.strip() for cell in line.strip("|").split("|"))
        peers = rows[name].peers
        fastest = min(peers, key=lambda peer: peers[peer], default="")
        assert (ours, peer) == (f"{rows[name].ours:.4g}", f"{fastest} {peers[fastest]:.4g}" if peers else "")


def test_the_pages_say_how_many_cases_are_won(monkeypatch):
    """README repeats a sentence of the benchmarks page; the landing page has the picture's figures."""
    root = pathlib.Path(summary.__file__).parent.parent
    monkeypatch.syspath_prepend(root / "docs")
    import benchmark_page

    rows = read(RESULTS / "h200.csv")
    said = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    assert f"On an {rows[0].card}, {benchmark_page.headline(rows)}" in said
    row = next(row for row in rows if row.row == "segmented_sort/keys, mean 30, uniform")
    said = (root / "docs" / "index.md").read_text(encoding="utf-8")
    assert f"takes {row.ours:.1g} ms, where JAX alone takes {row.peers['XLA']:.2g}:" in said
