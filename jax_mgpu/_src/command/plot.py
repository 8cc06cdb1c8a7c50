"""Draws times as bars, by matplotlib."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure

OURS, THEIRS = "#1f5a99", "#b5b5b5"
INCHES_PER_PAIR = 0.42
SETTINGS: Any = {"svg.hashsalt": "jax_mgpu", "font.size": 9}  # the salt makes equal data give equal files


class Bar(NamedTuple):
    """A label, and milliseconds of both sides."""

    label: str
    ours: float
    theirs: float


def draw_bars(
    file: pathlib.Path, title: str, bars: Sequence[Bar], ours: str, theirs: str, caption: str | None = None
) -> None:
    """Draws horizontal bars over a logarithmic axis of milliseconds; the file's suffix is the format."""
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(9.0, 1.6 + INCHES_PER_PAIR * len(bars)), layout="constrained", facecolor="white")
        axes = figure.subplots()
        places = range(len(bars))
        times = [[bar.ours for bar in bars], [bar.theirs for bar in bars]]
        texts = [
            [duration(bar.ours) for bar in bars],
            [f"{duration(bar.theirs)}, {significant(bar.theirs / bar.ours, 2)} x" for bar in bars],
        ]
        for offset, color, name, widths, labels in zip(
            (-0.2, 0.2), (OURS, THEIRS), (ours, f"{theirs}, and as a multiple"), times, texts, strict=True
        ):
            drawn = axes.barh([place + offset for place in places], widths, height=0.38, color=color, label=name)
            axes.bar_label(drawn, labels, padding=3, fontsize=8)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda milliseconds, _: f"{milliseconds:g}")
        shortest, longest = min(map(min, times)), max(map(max, times))
        axes.set_xlim(10 ** math.floor(math.log10(0.7 * shortest)), 8 * longest)
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.set_yticks(places, [bar.label for bar in bars])
        axes.set_xlabel("milliseconds per call, logarithmic: shorter is better")
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper center", ncols=2, frameon=False, title=title)
        if caption is not None:
            figure.supxlabel(caption, fontsize=8)
        # without a date, equal data give equal files
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)


def duration(milliseconds: float) -> str:
    """Formats milliseconds with three significant digits."""
    return f"{significant(milliseconds, 3)} ms"


def significant(number: float, digits: int) -> str:
    """Formats a positive number without an exponent."""
    return f"{number:.{max(0, digits - 1 - math.floor(math.log10(number)))}f}"
