"""Describes a run, saves the records of its cases (rows), and prints them as a table."""

from __future__ import annotations

import datetime
import json
import pathlib
import platform
import subprocess
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxlib.version import __version__ as jaxlib_version

from benchmarks import peers
from benchmarks.runner import Outcome, Result, Runner

__all__ = ["describe_run", "merge_files", "save", "saved_names", "table"]

CLOSE = 1.02  # our time counts as equally fast up to this multiple of a peer's
SLOWER = 1.05  # our function may take up to this multiple of the time of the peer that it replaces


def describe_run(runner: Runner, copy_rate: float) -> dict[str, Any]:
    device = runner.device
    built = peers.library
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": device.device_kind if device.platform != "cpu" else f"CPU: {_processor()}",
        "driver": _driver() if device.platform == "gpu" else None,
        "platform": device.client.platform_version.splitlines()[0],
        "cuda_compiler": built.description["compiler"] if built else None,
        "cccl": _cccl(int(built.description["cub_version"])) if built else None,
        "jax": jax.__version__,
        "jaxlib": jaxlib_version,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "scale": runner.scale,
        "repeats": runner.repeats,
        "copy_bytes_per_second": copy_rate * 1e3,
    }


def _cccl(version: int) -> str:
    return f"{version // 100000}.{version // 100 % 1000}.{version % 100}"


def _processor() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def _outcome(outcome: Outcome) -> dict[str, Any]:
    record: dict[str, Any] = {}
    if outcome.timing:
        timing = outcome.timing
        record = {
            "ms": timing.median,
            "shortest_ms": timing.shortest,
            "longest_ms": timing.longest,
            "spread": timing.spread,
            "repeats": timing.repeats,
            "calls": timing.calls,
        }
    for name in ("agrees", "note", "error"):
        if getattr(outcome, name) is not None:
            record[name] = getattr(outcome, name)
    return record


def row_record(result: Result, copy_rate: float, judged: bool) -> dict[str, Any]:
    case, timing = result.case, result.ours.timing
    met = None
    if judged and timing and case.max_ms is not None:
        met = timing.median <= case.max_ms
    return {
        "family": case.family,
        "name": case.name,
        "ours": _outcome(result.ours),
        "peers": {name: {**_outcome(outcome), "ratio": result.ratio(name)} for name, outcome in result.peers.items()},
        "floor_bytes": result.floor_bytes,
        "copy_share": result.floor_bytes / copy_rate / timing.median if timing else None,
        "max_ms": case.max_ms,
        "target_ms": case.target_ms,
        "met": met,
        "replaces": case.replaces,
        "seconds": result.seconds,
    }


def save(folder: pathlib.Path, run: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Rewrites benchmarks.json, so that a run that is cut short keeps the rows of finished cases."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "benchmarks.json.part"
    unfinished.write_text(json.dumps({"run": run, "rows": list(rows)}, indent=1))
    unfinished.rename(folder / "benchmarks.json")


def row_of(record: dict[str, Any]) -> str:
    return f"{record['family']}/{record['name']}"


def saved_names(path: pathlib.Path) -> set[str]:
    return {row_of(record) for record in json.loads(path.read_text())["rows"]}


def table(run: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    copy = run["copy_bytes_per_second"]
    lines = [
        f"{run['device']}, jax {run['jax']}, CCCL {run['cccl'] or 'not built'}, scale {run['scale']:g}, "
        f"copy {copy / 1e12:.2f} TB/s, {run['date']}",
        "case: ours ms | peer ms x ratio to ours | share of copy speed | max ms",
    ]
    width = max((len(row["name"]) for row in rows), default=0)
    family = None
    for row in rows:
        if row["family"] != family:
            family = row["family"]
            lines.append(f"-- {family}")
        lines.append(f"{row['name']:{width}} {_ours(row)}{_peers(row)}{_figure(row)}")
    lines += _behind(rows)
    missed = sum(row["met"] is False for row in rows)
    slower = sum(any((peer["ratio"] or 9) < 1 for peer in row["peers"].values()) for row in rows)
    broken = sum(bool(row_failures(row)) for row in rows)
    lines.append(f"{len(rows)} cases: {missed} exceed their max ms, {slower} slower than a peer, {broken} failed")
    return "\n".join(lines)


def _behind(rows: Sequence[dict[str, Any]]) -> list[str]:
    fastest = [(min((peer["ratio"] or 9 for peer in row["peers"].values()), default=9), row) for row in rows]
    behind = sorted((pair for pair in fastest if 1 / pair[0] > CLOSE), key=lambda pair: pair[0])
    return [f"behind by {1 / ratio - 1:.0%}: {row_of(row)}" for ratio, row in behind]


def row_failures(row: dict[str, Any]) -> list[str]:
    failures = []
    for name, outcome in {"ours": row["ours"], **row["peers"]}.items():
        if "error" in outcome:
            failures.append(f"{row_of(row)}: {name}: {outcome['error']}")
        if outcome.get("agrees") is False:
            failures.append(f"{row_of(row)}: {name}: its result differs from ours")
        if row.get("replaces") == name and outcome.get("ratio") and outcome["ratio"] < 1 / SLOWER:
            failures.append(f"{row_of(row)}: {name} is faster by more than {SLOWER - 1:.0%}")
    return failures


def _ours(row: dict[str, Any]) -> str:
    if "ms" not in row["ours"]:
        return "FAILED" if "error" in row["ours"] else "-"
    noisy = f" ±{row['ours']['spread'] / 2:.0%}" if row["ours"]["spread"] > 0.04 else ""
    return f"{_ms(row['ours']['ms']):>7}{noisy}"


def _peers(row: dict[str, Any]) -> str:
    parts = []
    for name, peer in row["peers"].items():
        if "ms" in peer:
            ratio = f" x{peer['ratio']:.3g}" if peer["ratio"] else ""
            parts.append(f"{name} {_ms(peer['ms'])}{ratio}{' DIFFERS' if peer.get('agrees') is False else ''}")
        else:
            parts.append(f"{name} {'FAILED' if 'error' in peer else '-'}")
    return " | " + ", ".join(parts) if parts else ""


def _figure(row: dict[str, Any]) -> str:
    share = f" | {row['copy_share']:.0%}" if row["copy_share"] else ""
    if row["max_ms"] is None or row["met"] is None:
        return share
    return f"{share} | {row['max_ms']:g} {'met' if row['met'] else 'MISSED'}"


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.3f}" if milliseconds < 10 else f"{milliseconds:.1f}"


def merge_files(paths: Sequence[pathlib.Path]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Joins the files of several processes, with the first one's description."""
    files = [json.loads(path.read_text()) for path in paths]
    return files[0]["run"], [row for file in files for row in file["rows"]]
