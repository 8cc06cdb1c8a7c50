"""Makes the benchmarks page: conclusions from the saved figures, and their tables."""

from __future__ import annotations

import collections
import pathlib
import statistics
from collections.abc import Sequence

from benchmarks import summary
from benchmarks.summary import Row

HEAD = ("| row | jax_mgpu, ms | rivals, ms | fastest rival / ours | to reach, ms |", "|---|--:|---|--:|--:|")
AHEAD = 1.1
SHOWN = ("rows", "shapes")  # a grid has thousands of rows; the page shows those that a rival wins


def write(results: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes conclusions.md and benchmarks.md, from the files of all machines, those with most rows first."""
    folder.mkdir(exist_ok=True)
    machines = sorted((summary.read(path) for path in results.glob("*.csv")), key=len, reverse=True)
    said = [f"- **{rows[0].card}.** {headline(rows)} {losses(rows)}\n" for rows in machines]
    (folder / "conclusions.md").write_text("".join(said), encoding="utf-8")
    parts = [part for rows in machines for part in machine(rows)]
    (folder / "benchmarks.md").write_text("\n".join(parts), encoding="utf-8")


def headline(rows: Sequence[Row]) -> str:
    """Compares a machine's rows with their rivals, in one sentence."""
    ratios = [row.ratio for row in rows if row.suite == "rows" and row.ratio is not None]
    first, median = sum(ratio >= 1 for ratio in ratios), statistics.median(ratios)
    return (
        f"jax_mgpu is the fastest in {first} of the {len(ratios)} rows that have a rival, and in the median row the "
        f"fastest rival takes {median:.2g} times as long."
    )


def losses(rows: Sequence[Row]) -> str:
    """Where rivals are ahead by more than `AHEAD`, by family."""
    ahead = [row for row in won(rows) if row.suite == "rows" and row.ratio is not None and row.ratio < 1 / AHEAD]
    if not ahead:
        return "No rival is ahead by more than 10%."
    families = collections.Counter(row.family for row in ahead).most_common()
    where = ", ".join(f"{family} ({count})" for family, count in families)
    return f"A rival is ahead by more than 10% in {len(ahead)} of them: {where}."


def machine(rows: Sequence[Row]) -> list[str]:
    """The conclusions from one machine's rows, those that a rival wins, and the tables."""
    card = rows[0].card
    suites = {suite: [row for row in rows if row.suite == suite] for suite in ("rows", "grid", "shapes")}
    parts = [f"## {card}\n", conclusions(suites), f"### {card}: a rival is faster\n", table(won(rows))]
    for suite in SHOWN:
        for family in dict.fromkeys(row.family for row in suites[suite]):
            title = f"### {card}: {family}{', shapes' if suite == 'shapes' else ''}\n"
            parts += [title, table([row for row in suites[suite] if row.family == family])]
    return parts


def won(rows: Sequence[Row]) -> list[Row]:
    """The rows that a rival wins, the largest loss first."""
    ratios = [(row.ratio, row) for row in rows if row.ratio is not None and row.ratio < 1]
    return [row for _, row in sorted(ratios, key=lambda pair: pair[0])]


def conclusions(suites: dict[str, list[Row]]) -> str:
    """One line per suite."""
    lines = [
        "| suite | measured | rows | beside rivals | median of the fastest rival / ours | a rival is faster |"
        " by more than 2% | with a figure to reach | missed |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for suite, rows in suites.items():
        if rows:
            days = sorted({row.date[:10] for row in rows})
            ratios = [row.ratio for row in rows if row.ratio is not None]
            judged = [row for row in rows if row.to_reach is not None]
            cells = [
                suite,
                f"{days[0]} to {days[-1]}, JAX {', '.join(sorted({row.jax for row in rows}))}",
                len(rows),
                len(ratios),
                f"{statistics.median(ratios):.3g}" if ratios else "",
                sum(ratio < 1 for ratio in ratios),
                sum(ratio < 1 / 1.02 for ratio in ratios),
                len(judged),
                sum(is_missed(row) for row in judged),
            ]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def is_missed(row: Row) -> bool:
    """Whether the row misses its target."""
    return row.to_reach is not None and row.ours > row.to_reach


def table(rows: Sequence[Row]) -> str:
    """The rows, with each rival's time."""
    return "\n".join([*HEAD, *map(line, rows)]) + "\n"


def line(row: Row) -> str:
    """A row of a table; rows that a rival wins, and missed targets, are bold."""
    rivals = ", ".join(f"{name} {ms:.4g}" for name, ms in sorted(row.rivals.items(), key=lambda pair: pair[1]))
    ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
    to_reach = "" if row.to_reach is None else f"{row.to_reach:.4g}"
    cells = [
        row.row.replace("|", "\\|"),
        f"{row.ours:.4g}",
        rivals,
        f"**{ratio}**" if row.ratio is not None and row.ratio < 1 else ratio,
        f"**{to_reach}**" if is_missed(row) else to_reach,
    ]
    return f"| {' | '.join(cells)} |"
