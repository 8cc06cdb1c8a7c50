"""scripts/compare.py compares benchmark rows of two source trees; these tests make up the times."""

import importlib.util
import pathlib

import pytest

from benchmarks import summary
from benchmarks.summary import Row

PATH = pathlib.Path(__file__).parent.parent / "scripts" / "compare.py"


@pytest.fixture
def compare():
    spec = importlib.util.spec_from_file_location("compare", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def save(file, times):
    rows = [Row("rows", name, ms, {}, None, "D", "2026-01-01T00:00", "1", "") for name, ms in times.items()]
    summary.write(file, [*rows, Row("grid", "scan/of a grid", 9.0, {}, None, "D", "2026-01-01T00:00", "1", "")])
    return file


def run(compare, monkeypatch, before, after, arguments, trees):
    """Returns the exit status, and the rows that were measured in each tree."""
    asked = []

    def measure(tree, families, rows, repeats):
        asked.append((tree.name, *rows))
        times = trees[tree.name]
        named = {row: ms for row, ms in times.items() if row.split("/")[0] in families}
        return {row: ms for row, ms in named.items() if not rows or any(text in row for text in rows)}

    monkeypatch.setattr(compare, "measure", measure)
    monkeypatch.setattr(compare, "rows_of", lambda tree: list(trees[tree.name]))
    monkeypatch.setattr("sys.argv", ["compare.py", str(before), str(after), *arguments])
    return compare.main(), asked


def test_saved_rows_are_those_that_run_without_options(compare, tmp_path):
    file = save(tmp_path / "d.csv", {"scan/long": 2.0, "scan/short": 3.0})
    assert compare.saved(file) == {"scan/long": 2.0, "scan/short": 3.0}


@pytest.mark.parametrize(("old", "status"), [(1.1, 0), (1.0, 1)])
def test_what_seems_slower_than_saved_is_measured_in_both_trees(compare, monkeypatch, tmp_path, old, status):
    (tmp_path / "before" / "benchmarks").mkdir(parents=True)
    file = save(tmp_path / "d.csv", {"scan/long": 1.0, "scan/short": 3.0})
    trees = {"before": {"scan/long": old}, "after": {"scan/long": 1.1, "scan/short": 3.0}}
    found, asked = run(compare, monkeypatch, tmp_path / "before", tmp_path / "after", ["--saved", str(file)], trees)
    assert found == status
    assert asked[:3] == [("after",), ("before", "long"), ("after", "long")]


def test_a_row_that_is_gone_fails(compare, monkeypatch, tmp_path, capsys):
    (tmp_path / "before" / "benchmarks").mkdir(parents=True)
    trees = {"before": {"scan/long": 1.0, "scan/short": 3.0}, "after": {"scan/long": 1.0}}
    assert run(compare, monkeypatch, tmp_path / "before", tmp_path / "after", [], trees)[0] == 1
    assert "scan/short: not measured in" in capsys.readouterr().out


def test_rows_are_chosen_by_what_their_names_hold(compare, monkeypatch, tmp_path):
    file = save(tmp_path / "d.csv", {"scan/long": 1.0, "scan/short": 3.0})
    trees = {"after": {"scan/long": 1.0, "scan/short": 9.0}}
    found = run(compare, monkeypatch, file, tmp_path / "after", ["--match", "long"], trees)
    assert found == (0, [("after", "long")])
