"""Draws README's picture of the speed from saved figures: each family beside XLA's way.

    PYTHONPATH=. python scripts/plot_results.py

Of each family the two rows in which it gains least and most over XLA's way are drawn, so that all others lie between;
where a row has several of XLA's ways, the fastest counts.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from benchmarks import summary
from jax_mgpu._src.command.plot import Bar, draw_bars

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIGURES = summary.RESULTS / "h200.csv"
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
    parser.add_argument("file", nargs="?", type=pathlib.Path, default=FIGURES, help="default: that of the H200")
    parser.add_argument("--output", type=pathlib.Path, default=PICTURE, help="default: docs/images/speed.svg")
    options = parser.parse_args(arguments)
    saved = [row for row in summary.read(options.file) if row.suite == "rows"]
    rows = xla_rows(saved)
    if not rows:
        parser.error("no row of this file has a rival by XLA")
    shown = extremes(rows)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    bars = [Bar(f"{row.family}\n{row.name}", row.ours, row.theirs) for row in shown]
    draw_bars(
        options.output,
        f"Of {len(rows)} saved rows, those of each family that gain least and most over XLA's way",
        bars,
        "jax_mgpu",
        "XLA's way",
        describe(saved),
    )
    for row in shown:
        print(f"{row.family}/{row.name}: {row.ours:.3g} ms, {row.peer} {row.theirs:.3g} ms, {row.ratio:.2g} x")
    return 0


def xla_rows(rows: Iterable[summary.Row]) -> list[Row]:
    """The rows that XLA has ways for, with the fastest of them."""
    found = []
    for row in rows:
        ways = {name: ms for name, ms in row.rivals.items() if name.startswith("XLA")}
        if ways:
            fastest = min(ways, key=lambda name: ways[name])
            found.append(Row(row.family, row.name, row.ours, fastest, ways[fastest]))
    return found


def extremes(rows: Iterable[Row]) -> list[Row]:
    """Of each family, the rows of the least and of the largest ratio, families by their largest, those first."""
    families: dict[str, list[Row]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    pairs = [sorted(family, key=lambda row: row.ratio) for family in families.values()]
    pairs.sort(key=lambda family: family[-1].ratio, reverse=True)
    return [row for family in pairs for row in dict.fromkeys((family[-1], family[0]))]


def describe(rows: Sequence[summary.Row]) -> str:
    """Where, when and with what; one picture is of one device and one JAX."""
    for name in ("card", "jax"):
        if len(values := {getattr(row, name) for row in rows}) > 1:
            sys.exit(f"plot_results: one {name} a picture, got {', '.join(sorted(values))}")
    first, last = (select(row.date for row in rows)[:10] for select in (min, max))
    days = first if first == last else f"{first} to {last}"
    return f"{rows[0].card}, {days}, JAX {rows[0].jax}; medians of device time"


if __name__ == "__main__":
    sys.exit(main())
