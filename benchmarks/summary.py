"""Keeps the saved times: a file per machine in benchmarks/results/, a line per case. This command adds raw runs:

    python -m benchmarks.summary build/results --commit "$(git rev-parse --short HEAD)"

A run without some peer does not remove that peer's saved time. Times are medians of device time in ms, to four digits.
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
RAW_FILES = {"benchmarks.json", "shapes.json"}  # the files that runs save


class Row(NamedTuple):
    """A case and its times.

    Args:
      suite: "rows" of `python -m benchmarks`, "grid" of --grid, "shapes" of --shapes.
      row: family and name, or operation and shape, with a slash.
      ours: ms.
      peers: ms of each peer that ran and does not disagree.
      max_ms: the limit, if the run was on an H200 at scale 1.
      date: of our time, in UTC.
      commit: the measured commit; empty if unknown.
    """

    suite: str
    row: str
    ours: float
    peers: dict[str, float]
    max_ms: float | None
    card: str
    date: str
    jax: str
    commit: str

    @property
    def family(self) -> str:
        return self.row.partition("/")[0]

    @property
    def name(self) -> str:
        return self.row.partition("/")[2]

    @property
    def ratio(self) -> float | None:
        return min(self.peers.values()) / self.ours if self.peers else None


def read(path: pathlib.Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return [_row(record) for record in csv.DictReader(file)]


def _row(record: dict[str, str]) -> Row:
    pairs = [peer.rpartition("=") for peer in record["peers"].split(";") if peer]
    peers = {name: float(ms) for name, _, ms in pairs}
    max_ms = float(record["max_ms"]) if record["max_ms"] else None
    typed = {"ours": float(record["ours"]), "peers": peers, "max_ms": max_ms}
    return Row(**{**record, **typed})  # type: ignore[arg-type]  # the fields left are strings


def write(path: pathlib.Path, rows: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        for row in sorted(rows, key=lambda row: (row.suite, row.family, row.name)):
            peers = ";".join(f"{name}={ms:.4g}" for name, ms in row.peers.items())
            max_ms = "" if row.max_ms is None else f"{row.max_ms:.4g}"
            writer.writerow(row._replace(ours=f"{row.ours:.4g}", peers=peers, max_ms=max_ms))  # type: ignore[arg-type]


def add_run(rows: Sequence[Row], run: dict[str, Any], commit: str = "", usual: Collection[str] = ()) -> list[Row]:
    """Returns the rows, updated by a raw run; `usual` are the names of the suite "rows"."""
    if run["run"]["scale"] != 1:
        raise ValueError(f"summary: run: expected scale 1, got {run['run']['scale']}")
    known = {(row.suite, row.row): row for row in rows}
    facts = (run["run"]["device"], run["run"]["date"][:16], run["run"]["jax"], commit)
    for record in run["rows"]:
        if new := _measured(record, facts, usual):
            key = (new.suite, new.row)
            first, last = sorted([known.get(key, new), new], key=lambda row: row.date)
            known[key] = last._replace(peers=first.peers | last.peers)
    return list(known.values())


def _measured(record: dict[str, Any], facts: tuple[str, str, str, str], usual: Collection[str]) -> Row | None:
    """Returns a row, or None if our side has no time."""
    if "shape" in record:
        peers = {} if record["xla_ms"] is None else {"XLA": record["xla_ms"]}
        return Row("shapes", f"{record['operation']}/{record['shape']}", record["ours_ms"], peers, None, *facts)
    if "ms" not in record["ours"]:
        return None
    row = f"{record['family']}/{record['name']}"
    peers = {
        name: peer["ms"] for name, peer in record["peers"].items() if "ms" in peer and peer.get("agrees") is not False
    }
    max_ms = None if record["met"] is None else record["max_ms"]
    return Row("rows" if row in usual else "grid", row, record["ours"]["ms"], peers, max_ms, *facts)


def file_of(device: str) -> str:
    """Returns the name of a device's file, such as h200.csv or geforce-rtx-4090.csv."""
    short = re.sub(r"^nvidia | \d+gb.*$", "", device.lower())
    return re.sub(r"[^a-z0-9]+", "-", short).strip("-") + ".csv"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=pathlib.Path, help="folders that contain raw runs")
    parser.add_argument("--commit", default="", help="the commit that was measured (default: unknown)")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="folder (default: benchmarks/results)")
    options = parser.parse_args(arguments)
    from benchmarks.runner import all_cases  # here, so that reading the summary needs no JAX  # noqa: PLC0415

    usual = {case.full_name for case in all_cases()}
    paths = sorted(path for folder in options.folders for path in folder.rglob("*.json") if path.name in RAW_FILES)
    if not paths:
        parser.error(f"folders: none contains {' or '.join(sorted(RAW_FILES))}")
    for path in paths:
        run = json.loads(path.read_text(encoding="utf-8"))
        file = options.results / file_of(run["run"]["device"])
        rows = add_run(read(file) if file.exists() else [], run, options.commit, usual)
        write(file, rows)
        print(f"{path}: {len(run['rows'])} rows to {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
