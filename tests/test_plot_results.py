"""README's picture: which of the saved rows it shows."""

from __future__ import annotations

import pytest

from benchmarks import summary
from scripts.plot_results import FIGURES, extremes, main, xla_rows


def row(name, ours, card="D", **rivals):
    return summary.Row("rows", name, ours, rivals, None, card, "2026-01-02T03:04", "1", "")


def test_the_fastest_way_counts():
    rivals = {"XLA scan": 8.0, "XLA sort": 4.0, "CUB": 0.1}
    rows = xla_rows([row("f/a", 1.0, **rivals), row("f/no rival of XLA", 1.0, CUB=2.0), row("f/b", 1.0, XLA=9.0)])
    assert [(r.name, r.ours, r.peer, r.theirs) for r in rows] == [("a", 1, "XLA sort", 4), ("b", 1, "XLA", 9)]


def test_each_family_shows_its_least_and_largest_gain():
    rows = [row(f"f/{ratio}", 1.0, XLA=ratio) for ratio in (2.0, 0.5, 7.0)]
    shown = extremes(xla_rows([*rows, row("g/alone", 1.0, XLA=9.0)]))
    assert [(r.family, r.ratio) for r in shown] == [("g", 9), ("f", 7), ("f", 0.5)]


def test_every_family_with_a_saved_rival_is_drawn(tmp_path, capsys):
    saved = [r for r in summary.read(FIGURES) if r.suite == "rows"]
    names = {r.family for r in saved if any(name.startswith("XLA") for name in r.rivals)}
    assert main(["--output", str(tmp_path / "new" / "speed.svg")]) == 0
    assert {line.partition("/")[0] for line in capsys.readouterr().out.splitlines()} == names
    assert "<svg" in (tmp_path / "new" / "speed.svg").read_text()


def test_two_devices_are_no_picture(tmp_path):
    summary.write(tmp_path / "d.csv", [row("f/a", 1.0, XLA=2.0), row("f/b", 1.0, "E", XLA=2.0)])
    with pytest.raises(SystemExit) as left:
        main([str(tmp_path / "d.csv"), "--output", str(tmp_path / "speed.svg")])
    assert left.value.code == "plot_results: one card a picture, got D, E"
