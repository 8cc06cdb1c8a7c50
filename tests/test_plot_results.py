"""README's picture: which of the saved rows it shows."""

from __future__ import annotations

import json

import pytest

from scripts.plot_results import RESULTS, extremes, main, xla_rows


def row(family, name, ours, **peers):
    return {"family": family, "name": name, "ours": {"ms": ours}, "peers": peers}


def peer(ms, agrees=True):
    return {"ms": ms, "agrees": agrees}


def file(*rows, **run):
    return {"run": {"device": "D", "jax": "1", "scale": 1.0, "date": "2026-01-02T03:04", **run}, "rows": [*rows]}


def write(path, *rows, **run):
    path.write_text(json.dumps(file(*rows, **run)))
    return str(path)


def test_the_fastest_way_and_the_last_run_count():
    rivals = {"XLA scan": peer(8.0), "XLA sort": peer(4.0), "XLA wrong": peer(1.0, agrees=False), "CUB": peer(0.1)}
    earlier = file(row("f", "a", 1.0, **rivals), row("f", "b", 2.0, XLA=peer(4.0)))
    later = file(row("f", "b", 1.0, XLA=peer(9.0)), row("f", "no rival", 1.0, CUB=peer(2.0)))
    rows = xla_rows([earlier, later])
    assert [(r.name, r.ours, r.peer, r.theirs) for r in rows] == [("a", 1, "XLA sort", 4), ("b", 1, "XLA", 9)]


def test_each_family_shows_its_least_and_largest_gain():
    rows = [row("f", str(ratio), 1.0, XLA=peer(ratio)) for ratio in (2.0, 0.5, 7.0)]
    rows += [row("g", "alone", 1.0, XLA=peer(9.0))]
    shown = extremes(xla_rows([file(*rows)]))
    assert [(r.family, r.ratio) for r in shown] == [("g", 9), ("f", 7), ("f", 0.5)]


def test_every_family_with_a_saved_rival_is_drawn(tmp_path, capsys):
    saved = [json.loads(path.read_text()) for path in RESULTS.glob("*.json")]
    names = {r["family"] for f in saved for r in f["rows"] if any(name.startswith("XLA") for name in r["peers"])}
    assert main(["--output", str(tmp_path / "new" / "speed.svg")]) == 0
    assert {line.partition("/")[0] for line in capsys.readouterr().out.splitlines()} == names
    assert "<svg" in (tmp_path / "new" / "speed.svg").read_text()


def test_two_devices_are_no_picture(tmp_path):
    rows = row("f", "a", 1.0, XLA=peer(2.0))
    files = [write(tmp_path / f"{device}.json", rows, device=device) for device in "DE"]
    with pytest.raises(SystemExit) as left:
        main([*files, "--output", str(tmp_path / "speed.svg")])
    assert left.value.code == "plot_results: one device a picture, got D, E"
