"""The saved rows and peers that the picture of scripts/plot_results.py shows."""

from __future__ import annotations

import pytest

from benchmarks import summary
from scripts.plot_results import FIGURES, SHOWN, chosen, main


def row(name, ours, card="D", **peers):
    return summary.Row("rows", name, ours, peers, None, card, "2026-01-02T03:04", "1", "")


def test_the_fastest_way_counts():
    peers = {"XLA scan": 8.0, "XLA sort": 4.0, "CUB": 0.1}
    rows = [
        row("f/b", 1.0, XLA=9.0),
        row("f/no peer of XLA", 1.0, CUB=2.0),
        row("f/a", 1.0, **peers),
        row("f/c", 1.0),
    ]
    names = dict.fromkeys(["f/a", "f/no peer of XLA", "f/b", "f/not saved"], "")
    assert [(r.name, r.ours, r.peer, r.theirs) for r in chosen(rows, names)] == [
        ("f/a", 1, "XLA sort", 4), ("f/b", 1, "XLA", 9),
    ]  # fmt: skip


def test_every_row_of_the_picture_is_saved_and_one_of_them_is_a_loss(tmp_path, capsys):
    saved = [r for r in summary.read(FIGURES) if r.suite == "rows"]
    rows = chosen(saved, SHOWN)
    assert len(rows) == len(SHOWN) <= 12
    assert any(r.ratio < 1 for r in rows)
    assert main(["--output", str(tmp_path / "new" / "speed.svg")]) == 0
    assert [line.partition(": ")[0] for line in capsys.readouterr().out.splitlines()] == list(SHOWN)
    assert "<svg" in (tmp_path / "new" / "speed.svg").read_text()


def test_rows_of_two_devices_are_an_error(tmp_path):
    name = next(iter(SHOWN))
    summary.write(tmp_path / "d.csv", [row(name, 1.0, XLA=2.0), row("f/b", 1.0, "E", XLA=2.0)])
    with pytest.raises(SystemExit) as left:
        main([str(tmp_path / "d.csv"), "--output", str(tmp_path / "speed.svg")])
    assert left.value.code == "plot_results: expected cases of one card, got D, E"
