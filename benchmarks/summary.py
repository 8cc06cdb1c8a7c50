"""The saved figures: one file per machine in benchmarks/results/, one line per row. This adds raw runs to it:

    python -m benchmarks.summary build/results --commit "$(git rev-parse --short HEAD)"

A row keeps its last time, and the last time of each rival, so a run that leaves a rival out does not remove it. Times
are medians of device time in ms, rounded to four digits.
"""

from __future__ import annotations

import argparse
import csv
import json
import pathlib
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

__all__ = ["RESULTS", "Row", "add_run", "read", "write"]

RESULTS = pathlib.Path(__file__).parent / "results"
ENDING = {"benchmarks.json", "shapes.json"}  # the files that runs save


class Row(NamedTuple):
    """One line.

    Args:
      suite: "rows" of `python -m benchmarks`, "grid" of --grid, "shapes" of --shapes.
      row: family and name, or operation and shape, with a slash between them.
      ours: milliseconds.
      rivals: milliseconds of each rival that ran and agrees.
      to_reach: the row's target in milliseconds, if the run was judged by it.
      card: the device.
      date: of ours, UTC.
      jax: its version.
      commit: the measured commit; empty if unknown.
    """

    suite: str
    row: str
    ours: float
    rivals: dict[str, float]
    to_reach: float | None
    card: str
    date: str
    jax: str
    commit: str

    @property
    def family(self) -> str:
        """The first part of the row."""
        return self.row.partition("/")[0]

    @property
    def name(self) -> str:
        """The rest of the row."""
        return self.row.partition("/")[2]

    @property
    def ratio(self) -> float | None:
        """The time of the fastest rival over ours."""
        return min(self.rivals.values()) / self.ours if self.rivals else None


def read(path: pathlib.Path) -> list[Row]:
    """The rows of a file."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_row(record) for record in csv.DictReader(file)]


def _row(record: dict[str, str]) -> Row:
    pairs = [rival.rpartition("=") for rival in record["rivals"].split(";") if rival]
    rivals = {name: float(ms) for name, _, ms in pairs}
    to_reach = float(record["to_reach"]) if record["to_reach"] else None
    typed = {"ours": float(record["ours"]), "rivals": rivals, "to_reach": to_reach}
    return Row(**{**record, **typed})  # type: ignore[arg-type]  # the fields left are strings


def write(path: pathlib.Path, rows: Iterable[Row]) -> None:
    """Writes the rows in order of suite, family and name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        for row in sorted(rows, key=lambda row: (row.suite, row.family, row.name)):
            rivals = ";".join(f"{name}={ms:.4g}" for name, ms in row.rivals.items())
            to_reach = "" if row.to_reach is None else f"{row.to_reach:.4g}"
            writer.writerow(row._replace(ours=f"{row.ours:.4g}", rivals=rivals, to_reach=to_reach))  # type: ignore[arg-type]


def add_run(rows: Sequence[Row], run: dict[str, Any], commit: str = "", usual: Collection[str] = ()) -> list[Row]:
    """The rows, updated by a raw run; rows of a family that are not among the usual ones belong to its grid."""
    if run["run"]["scale"] != 1:
        raise ValueError(f"summary: run: expected scale 1, got {run['run']['scale']}")
    known = {(row.suite, row.row): row for row in rows}
    facts = (run["run"]["device"], run["run"]["date"][:16], run["run"]["jax"], commit)
    for record in run["rows"]:
        if new := _measured(record, facts, usual):
            key = (new.suite, new.row)
            first, last = sorted([known.get(key, new), new], key=lambda row: row.date)
            known[key] = last._replace(rivals=first.rivals | last.rivals)
    return list(known.values())


def _measured(record: dict[str, Any], facts: tuple[str, str, str, str], usual: Collection[str]) -> Row | None:
    """A record of a raw run as a row; None if it failed."""
    if "shape" in record:
        rivals = {} if record["xla_ms"] is None else {"XLA": record["xla_ms"]}
        return Row("shapes", f"{record['operation']}/{record['shape']}", record["ours_ms"], rivals, None, *facts)
    if "ms" not in record["ours"]:
        return None
    row = f"{record['family']}/{record['name']}"
    rivals = {
        name: rival["ms"]
        for name, rival in record["peers"].items()
        if "ms" in rival and rival.get("agrees") is not False
    }
    to_reach = None if record["met"] is None else record["must_reach_ms"]
    return Row("rows" if row in usual else "grid", row, record["ours"]["ms"], rivals, to_reach, *facts)


def file_of(device: str) -> str:
    """The name of a device's file: h200.csv, geforce-rtx-4090.csv."""
    short = re.sub(r"^nvidia | \d+gb.*$", "", device.lower())
    return re.sub(r"[^a-z0-9]+", "-", short).strip("-") + ".csv"


def main(arguments: Sequence[str] | None = None) -> int:
    """Adds saved runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=pathlib.Path, help="of raw runs; their subfolders too")
    parser.add_argument("--commit", default="", help="what was measured")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="default: benchmarks/results")
    options = parser.parse_args(arguments)
    from benchmarks.runner import all_cases  # those who read the summary need no JAX  # noqa: PLC0415

    usual = {case.row for case in all_cases()}
    paths = sorted(path for folder in options.folders for path in folder.rglob("*.json") if path.name in ENDING)
    if not paths:
        parser.error(f"folders: expected some with {' or '.join(sorted(ENDING))}")
    for path in paths:
        run = json.loads(path.read_text(encoding="utf-8"))
        file = options.results / file_of(run["run"]["device"])
        rows = add_run(read(file) if file.exists() else [], run, options.commit, usual)
        write(file, rows)
        print(f"{path}: {len(run['rows'])} rows to {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
