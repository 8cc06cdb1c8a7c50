"""Draws README's picture of the speed from saved results: each family beside XLA's way.

    python scripts/plot_results.py

Of each family the two rows in which it gains least and most over XLA's way are drawn, so that all others lie between;
where a row has several of XLA's ways, the fastest counts. Of a row that was measured several times, the last counts.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from jax_mgpu._src.plot import Bar, draw_bars

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "images" / "speed.svg"


class Row(NamedTuple):
    """A saved row that has a rival by XLA."""

    family: str
    name: str
    ours: float
    peer: str
    theirs: float

    @property
    def ratio(self) -> float:
        """XLA's time over ours."""
        return self.theirs / self.ours


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads, chooses, draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="default: benchmarks/results/*.json")
    parser.add_argument("--output", type=pathlib.Path, default=PICTURE, help="default: docs/images/speed.svg")
    options = parser.parse_args(arguments)
    files = [json.loads(path.read_text()) for path in options.files or sorted(RESULTS.glob("*.json"))]
    files.sort(key=lambda file: file["run"]["date"])
    rows = xla_rows(files)
    if not rows:
        parser.error("no row of these files has a rival by XLA")
    shown = extremes(rows)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    bars = [Bar(f"{row.family}\n{row.name}", row.ours, row.theirs) for row in shown]
    draw_bars(
        options.output,
        f"Of {len(rows)} saved rows, those of each family that gain least and most over XLA's way",
        bars,
        "jax_mgpu",
        "XLA's way",
        describe(files),
    )
    for row in shown:
        print(f"{row.family}/{row.name}: {row.ours:.3g} ms, {row.peer} {row.theirs:.3g} ms, {row.ratio:.2g} x")
    return 0


def xla_rows(files: Iterable[dict[str, Any]]) -> list[Row]:
    """The rows of files in order of date, the last of each name, with the fastest of XLA's ways."""
    rows: dict[tuple[str, str], Row] = {}
    for file in files:
        for record in file["rows"]:
            ways = {
                name: peer["ms"]
                for name, peer in record["peers"].items()
                if name.startswith("XLA") and "ms" in peer and peer["agrees"]
            }
            if ways and "ms" in record["ours"]:
                fastest = min(ways, key=lambda name: ways[name])
                key = record["family"], record["name"]
                rows[key] = Row(*key, record["ours"]["ms"], fastest, ways[fastest])
    return list(rows.values())


def extremes(rows: Iterable[Row]) -> list[Row]:
    """Of each family, the rows of the least and of the largest ratio, families by their largest, those first."""
    families: dict[str, list[Row]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    pairs = [sorted(family, key=lambda row: row.ratio) for family in families.values()]
    pairs.sort(key=lambda family: family[-1].ratio, reverse=True)
    return [row for family in pairs for row in dict.fromkeys((family[-1], family[0]))]


def describe(files: Sequence[dict[str, Any]]) -> str:
    """Where, when and with what; one picture is of one device, one JAX and one size."""
    runs = [file["run"] for file in files]
    for name in ("device", "jax", "scale"):
        if len(values := {str(run[name]) for run in runs}) > 1:
            sys.exit(f"plot_results: one {name} a picture, got {', '.join(sorted(values))}")
    first, last = runs[0]["date"][:10], runs[-1]["date"][:10]
    days = first if first == last else f"{first} to {last}"
    return f"{runs[0]['device']}, {days}, JAX {runs[0]['jax']}; medians of device time"


if __name__ == "__main__":
    sys.exit(main())
