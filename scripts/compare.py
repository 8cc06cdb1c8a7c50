"""Times our side of the benchmark cases in two source trees on one device, and fails if the new tree is slower.

    git worktree add ../before HEAD~1 && (cd ../before && cmake ... && ninja ...)      # see CONTRIBUTING.md
    python scripts/compare.py ../before .
    python scripts/compare.py benchmarks/results/h200.csv .       # with times saved on the same kind of device

Each tree runs its own cases with its own kernels, in turns with the other tree. A case that is slower by more than
--limit is measured again, and fails if its smallest median is still slower. A file of saved times
(benchmarks/summary.py) can replace the old tree. With --saved, only cases that seem slower than such a file says are
measured in both trees.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks import summary

AGAIN = 3  # the most times that slower cases are measured again


def measure(tree: pathlib.Path, families: Sequence[str], rows: Sequence[str], repeats: int) -> dict[str, float]:
    """Runs the named cases, or all cases of these families; returns the milliseconds of each case."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks", "--only-ours", "--families", ",".join(families)]
        command += ["--repeat", str(repeats), "--output", folder]
        for row in rows:
            command += ["--match", row]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
        saved = pathlib.Path(folder) / "benchmarks.json"
        if not saved.exists():
            print(f"{tree}: {' '.join(families)}: exit status {done.returncode}\n{done.stderr[-2000:]}", flush=True)
            return {}
        records = json.loads(saved.read_text())["rows"]
    return {f"{row['family']}/{row['name']}": row["ours"]["ms"] for row in records if "ms" in row["ours"]}


def saved(file: pathlib.Path) -> dict[str, float]:
    """Reads the milliseconds of the cases that `python -m benchmarks` runs by default."""
    return {row.row: row.ours for row in summary.read(file) if row.suite == "rows"}


def rows_of(tree: pathlib.Path) -> list[str]:
    """Lists the cases of a tree."""
    command = [sys.executable, "-m", "benchmarks", "--list"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def families_of(rows: Sequence[str]) -> list[str]:
    """Returns the families of cases, in the order of the cases."""
    return list(dict.fromkeys(row.partition("/")[0] for row in rows))


def name_of(row: str) -> str:
    """Returns a case's name without its family."""
    return row.partition("/")[2]


def slower_rows(pairs: dict[str, tuple[float, float]], limit: float) -> list[str]:
    """Returns the cases that are slower in the new tree by more than the limit."""
    return [row for row, (old, new) in pairs.items() if new > old * (1 + limit)]


def line(row: str, old: float, new: float) -> str:
    """Formats a case, its milliseconds in both trees, and their relative difference."""
    return f"{row:72} {old:8.3f} {new:8.3f} {new / old - 1:+7.1%}"


def main() -> int:
    """Runs both trees; returns 1 if a case is slower or missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path, help="the old tree, or a file of saved times")
    parser.add_argument("after", type=pathlib.Path, help="the new tree")
    parser.add_argument("--families", default="", help="comma-separated (default: all families of the old tree)")
    parser.add_argument(
        "--match", action="append", default=[], metavar="TEXT", help="run only cases whose name contains TEXT"
    )
    parser.add_argument("--saved", type=pathlib.Path, help="file of saved times to compare the new tree with first")
    parser.add_argument(
        "--limit", type=float, default=0.02, help="how much slower a case may be, as a fraction (default 0.02)"
    )
    parser.add_argument("--repeat", type=int, default=5, help="samples per timing (default 5)")
    parser.add_argument(
        "--output", type=pathlib.Path, metavar="FILE", help="save the times of both trees in FILE, as JSON"
    )
    options = parser.parse_args()
    before, after = options.before.resolve(), options.after.resolve()
    old_rows = rows_of(before) if (before / "benchmarks").is_dir() else []
    known = saved(options.saved or before) if options.saved or not old_rows else {}
    remembered = set(known)
    families = [name for name in options.families.split(",") if name] or families_of(list(known) or old_rows)
    pairs: dict[str, tuple[float, float]] = {}
    missing: list[str] = []
    for family in families:
        of_family = {row: ms for row, ms in known.items() if row.startswith(f"{family}/")}
        if options.match:
            of_family = {
                row: ms for row, ms in of_family.items() if any(text in name_of(row) for text in options.match)
            }
        old = of_family if known else measure(before, [family], options.match, options.repeat)
        new = measure(after, [family], options.match, options.repeat)
        missing += [row for row in old if row not in new]
        pairs |= {row: (old[row], new[row]) for row in old if row in new}
        for row in old:
            if row in new:
                print(line(row, old[row], new[row]), flush=True)
        for _ in range(AGAIN):
            again = [row for row in slower_rows(pairs, options.limit) if row in old]
            if not again:
                break
            names = [name_of(row) for row in again]
            old_names = [name_of(row) for row in again if row in old_rows]
            old_again = measure(before, [family], old_names, options.repeat) if old_names else {}
            new_again = measure(after, [family], names, options.repeat)
            for row in again:
                was, now = pairs[row]
                if row in remembered and row in old_again:
                    remembered.remove(row)
                    was = old_again[row]  # the time on this device counts, not the saved one
                pairs[row] = min(was, old_again.get(row, was)), min(now, new_again.get(row, now))
                print(f"again {line(row, *pairs[row])}", flush=True)
    slower = slower_rows(pairs, options.limit)
    if options.output:
        options.output.write_text(
            json.dumps({row: {"before": o, "after": n} for row, (o, n) in pairs.items()}, indent=1)
        )
    for row in slower:
        print(f"SLOWER {line(row, *pairs[row])}")
    for row in missing:
        print(f"{row}: not measured in {after}")
    print(f"{len(pairs)} cases, {len(slower)} slower by more than {options.limit:.0%}, {len(missing)} missing")
    return int(bool(slower or missing))


if __name__ == "__main__":
    sys.exit(main())
