"""The tables and figures of the benchmarks page, made of benchmarks/results/*.json: every row of every file."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, NullLocator

from benchmarks.report import row_failures

Row = dict[str, Any]
Run = dict[str, Any]

# A colour for the first word of each way's name; ways that share it differ in their sign.
COLOURS = {"jax_mgpu": "#1f77b4", "XLA": "#e08214", "CUB": "#1b9e77", "Thrust": "#7b5fb0"}
SIGNS = "os^Dv<>P"


def write(results: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes benchmarks.md and its figures."""
    folder.mkdir(exist_ok=True)
    families: dict[str, list[tuple[str, Run, list[Row]]]] = {}
    for path in sorted(results.glob("*.json")):
        file = json.loads(path.read_text(encoding="utf-8"))
        for family in dict.fromkeys(row["family"] for row in file["rows"]):
            rows = [row for row in file["rows"] if row["family"] == family]
            families.setdefault(family, []).append((path.name, file["run"], rows))
    parts = [overview(families)]
    for family, runs in sorted(families.items()):
        parts.append(f"## {family}\n")
        for name, run, rows in runs:
            parts.append(describe(name, run))
            parts.append(figure(folder / f"{pathlib.Path(name).stem}-{family}.svg", family, rows))
            parts.append(table(rows))
    (folder / "benchmarks.md").write_text("\n".join(parts))


def measured(row: Row) -> dict[str, float]:
    """The times of a row in milliseconds, by way, ours first."""
    ways = {"jax_mgpu": row["ours"], **row["peers"]}
    return {name: outcome["ms"] for name, outcome in ways.items() if "ms" in outcome}


def is_slower(row: Row) -> bool:
    """Whether a rival took less time."""
    times = measured(row)
    return "jax_mgpu" in times and min(times.values()) < times["jax_mgpu"]


def overview(families: dict[str, list[tuple[str, Run, list[Row]]]]) -> str:
    """One line a family and run: how many figures are met, and how many rows have a faster rival."""
    lines = [
        "| family | run | rows | with a figure to reach | met | missed | beside rivals | a rival is faster | failed |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for family, runs in sorted(families.items()):
        for _, run, rows in runs:
            judged = [row["met"] for row in rows if row["met"] is not None]
            rivals = sum(len(measured(row)) > 1 for row in rows)
            failed = sum(bool(row_failures(row)) for row in rows)
            counts = [
                len(rows),
                len(judged),
                sum(judged),
                judged.count(False),
                rivals,
                sum(map(is_slower, rows)),
                failed,
            ]
            where = f"[{family}](#{family}) | {run['device']}, {run['date'][:10]}"
            lines.append(f"| {where} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines) + "\n"


def describe(name: str, run: Run) -> str:
    """Where, when and with what a run was made."""
    facts = [
        run["device"],
        run["date"][:10],
        f"JAX {run['jax']}",
        f"jaxlib {run['jaxlib']}",
        f"driver {run['driver']}" if run["driver"] else None,
        run["cuda_compiler"],
        f"CCCL {run['cccl']}" if run["cccl"] else None,
        f"copy {run['copy_bytes_per_second'] / 1e12:.2f} TB/s in the same run",
        f"scale {run['scale']:g}" if run["scale"] != 1 else None,
    ]
    note = f" Noted: {run['note']}." if run.get("note") else ""
    return f"{', '.join(filter(None, facts))}.{note} File: `benchmarks/results/{name}`.\n"


def table(rows: Sequence[Row]) -> str:
    """The rows; of a rival its time, and that as a multiple of ours."""
    rivals = list(dict.fromkeys(rival for row in rows for rival in row["peers"]))
    shown = [rival for rival in rivals if any("ms" in row["peers"].get(rival, {}) for row in rows)]
    lines = [
        "| " + " | ".join(["row", "jax_mgpu, ms", *(f"{rival}, ms" for rival in shown), "to reach, ms"]) + " |",
        "|---" + "|--:" * (len(shown) + 1) + "|---|",
    ]
    for row in rows:
        cells = [row["name"].replace("|", "\\|"), time(row["ours"])]
        cells += [time(row["peers"].get(rival, {}), row["peers"].get(rival, {}).get("ratio")) for rival in shown]
        lines.append("| " + " | ".join([*cells, verdict(row)]) + " |")
    notes = [f"`{failure.splitlines()[0]}`" for row in rows for failure in row_failures(row)]
    silent = [rival for rival in rivals if rival not in shown]
    if silent:
        notes.append(f"{', '.join(silent)}: not measured on this device.")
    if not rivals:
        notes.append("No rival was measured in this run.")
    return "\n".join([*lines, "", *(f"- {note}" for note in notes), ""])


def time(outcome: Row, ratio: float | None = None) -> str:
    """A median in milliseconds, with half the spread of the samples where that is more than 2%."""
    if "ms" not in outcome:
        return "failed" if "error" in outcome else ""
    spread = f" ±{outcome['spread'] / 2:.0%}" if outcome["spread"] > 0.04 else ""
    multiple = f" ({ratio:.3g}×)" if ratio and ratio < 1000 else f" ({ratio:.0f}×)" if ratio else ""
    return f"{outcome['ms']:.3f}{spread}{multiple}" if outcome["ms"] < 10 else f"{outcome['ms']:.1f}{spread}{multiple}"


def verdict(row: Row) -> str:
    """The figure that the row has to reach, and whether it does."""
    if row["must_reach_ms"] is None:
        return ""
    if row["met"] is None:
        return f"{row['must_reach_ms']:g}"
    return f"{row['must_reach_ms']:g} {'met' if row['met'] else '**missed**'}"


def figure(path: pathlib.Path, family: str, rows: Sequence[Row]) -> str:
    """The times of all rows that have some on one logarithmic axis; the figures to reach as bars."""
    rows = [row for row in rows if measured(row)]
    if not rows:
        return ""
    ways = list(dict.fromkeys(way for row in rows for way in measured(row)))
    plot, axes = plt.subplots(figsize=(8.4, 1.1 + 0.26 * len(rows)), layout="constrained")
    for way, sign in reversed(list(zip(ways, itertools.cycle(SIGNS), strict=False))):  # ours above the others
        colour = COLOURS.get(way.split()[0], "#777777")
        points = [(measured(row)[way], i) for i, row in enumerate(rows) if way in measured(row)]
        axes.scatter(*zip(*points, strict=True), s=34, color=colour, marker=sign, label=way, zorder=3, linewidths=0)
    bars = [(row["must_reach_ms"], i) for i, row in enumerate(rows) if row["must_reach_ms"] is not None]
    if bars:
        axes.scatter(*zip(*bars, strict=True), s=150, color="black", marker="|", label="to reach", zorder=4)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("milliseconds of device time (logarithmic; less is better)")
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.6)
    axes.grid(axis="y", color="#f0f0f0", linewidth=0.6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: (labels[i] == "to reach", [*ways, "to reach"].index(labels[i])))
    plot.legend(
        [handles[i] for i in order], [labels[i] for i in order],
        loc="outside upper left", ncols=7, frameon=False, fontsize=9,
    )  # fmt: skip
    plot.savefig(path, metadata={"Date": None})
    plt.close(plot)
    return f"![Times of {family}, each way](generated/{path.name})\n"
