"""Draws README's picture of the speed on common tasks, compared with XLA, from saved figures.

    PYTHONPATH=. python scripts/plot_results.py

If XLA has several methods for a row, the fastest one counts.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from benchmarks import summary
from jax_mgpu._src.command.plot import Bar, draw_bars

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIGURES = summary.RESULTS / "h200.csv"
PICTURE = ROOT / "docs" / "images" / "speed.svg"
# The names of cases, and their names in the picture.
SHOWN = {
    "sort/keys uint32, 2^26": "sort 67 million integers",
    "sort/indices float32, 2^26": "argsort 67 million floats",
    "segmented_sort/keys, mean 30, uniform": "sort each row of a ragged batch",
    "reduce/segmented add float32, mean 30, uniform, 2^26": "sum each row of a ragged batch",
    "ranks/softmax, mean 30": "softmax of each row of a ragged batch",
    "ranks/top_k of 4,096 rows of 50,000, k = 50": "top 50 of each of 4,096 rows",
    "scan/exclusive add float32, 2^27": "running sum of 134 million floats",
    "functions/scan of an affine recurrence, 2^26": "linear recurrence, by your own operator",
    "intervals/expand, mean 5": "repeat each item, 5 times on average",
    "sorted_search/uint32, 2^26 in 2^26": "look up 67 million sorted keys",
    "join/inner, spread keys": "join two sorted tables",
    "tables/group_by of 2^26 keys of 10^6 values, add and max": "group 67 million rows by key",
}


class Row(NamedTuple):
    """A saved case with an XLA peer."""

    name: str
    ours: float
    peer: str
    theirs: float

    @property
    def ratio(self) -> float:
        """XLA's time divided by ours."""
        return self.theirs / self.ours


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the saved figures, chooses rows, and draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "file", nargs="?", type=pathlib.Path, default=FIGURES, help="file of saved times (default: that of the H200)"
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default=PICTURE, help="file of the picture (default: docs/images/speed.svg)"
    )
    options = parser.parse_args(arguments)
    saved = [row for row in summary.read(options.file) if row.suite == "rows"]
    rows = chosen(saved, SHOWN)
    if not rows:
        parser.error(f"file: {options.file} has none of the cases that the picture shows")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    bars = [Bar(SHOWN[row.name], row.ours, row.theirs) for row in rows]
    draw_bars(options.output, "Milliseconds on one GPU", bars, "jax_mgpu", "JAX without it (XLA)", describe(saved))
    for row in rows:
        print(f"{row.name}: {row.ours:.3g} ms, {row.peer} {row.theirs:.3g} ms, {row.ratio:.2g} x")
    return 0


def chosen(rows: Iterable[summary.Row], names: Mapping[str, str]) -> list[Row]:
    """Returns the saved cases with these names and an XLA peer, each with its fastest one, in the names' order."""
    found = {}
    for row in rows:
        xla = {name: ms for name, ms in row.peers.items() if name.startswith("XLA")}
        if row.row in names and xla:
            fastest = min(xla, key=lambda name: xla[name])
            found[row.row] = Row(row.row, row.ours, fastest, xla[fastest])
    return [found[name] for name in names if name in found]


def describe(rows: Sequence[summary.Row]) -> str:
    """Names the device, the days and the version of JAX. Exits if the cases differ in device or version."""
    for name in ("card", "jax"):
        if len(values := {getattr(row, name) for row in rows}) > 1:
            sys.exit(f"plot_results: expected cases of one {name}, got {', '.join(sorted(values))}")
    first, last = (select(row.date for row in rows)[:10] for select in (min, max))
    days = first if first == last else f"{first} to {last}"
    return f"{rows[0].card}, {days}, JAX {rows[0].jax}; medians of device time"


if __name__ == "__main__":
    sys.exit(main())
