"""Makes the benchmarks page from the saved figures: conclusions, and tables of the cases. conf.py calls `write`."""

from __future__ import annotations

import collections
import pathlib
import statistics
from collections.abc import Sequence

from benchmarks import summary
from benchmarks.summary import Row

HEAD = ("| case | jax_mgpu, ms | peers, ms | fastest peer / ours | max, ms |", "|---|--:|---|--:|--:|")
AHEAD = 1.1
SHOWN = ("rows", "shapes")  # a grid has thousands of cases; the page shows those that a peer wins


def write(results: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes conclusions.md and benchmarks.md from the files of all machines, the one with the most cases first."""
    folder.mkdir(exist_ok=True)
    machines = sorted((summary.read(path) for path in results.glob("*.csv")), key=len, reverse=True)
    said = [
        f"- **{rows[0].card}.** {headline(rows)} {losses(rows)} {losses(rows, 'CUB or Thrust', ('CUB', 'Thrust'))}\n"
        for rows in machines
    ]
    (folder / "conclusions.md").write_text("".join(said), encoding="utf-8")
    parts = [part for rows in machines for part in machine(rows)]
    (folder / "benchmarks.md").write_text("\n".join(parts), encoding="utf-8")


def headline(rows: Sequence[Row]) -> str:
    """Returns a sentence that compares a machine's cases with their peers."""
    ratios = [row.ratio for row in rows if row.suite == "rows" and row.ratio is not None]
    first, median = sum(ratio >= 1 for ratio in ratios), statistics.median(ratios)
    return (
        f"jax_mgpu is the fastest in {first} of the {len(ratios)} cases that have a peer, and in the median case the "
        f"fastest peer takes {median:.2g} times as long."
    )


def losses(rows: Sequence[Row], who: str = "A peer", names: tuple[str, ...] = ("",)) -> str:
    """Returns a sentence with the number of cases, by family, in which ours takes more than `AHEAD` times as long.

    Only peers whose names begin with one of `names` count. The sentence calls them `who`.
    """
    ratios = [
        (row.family, min(ms for name, ms in row.peers.items() if name.startswith(names)) / row.ours)
        for row in rows
        if row.suite == "rows" and any(name.startswith(names) for name in row.peers)
    ]
    families = collections.Counter(family for family, ratio in ratios if ratio < 1 / AHEAD)
    if not families:
        return f"{who} is nowhere ahead by more than 10%."
    where = ", ".join(f"{family} ({count})" for family, count in families.most_common())
    return f"{who} is ahead by more than 10% in {families.total()} of {len(ratios)} cases: {where}."


def machine(rows: Sequence[Row]) -> list[str]:
    """Returns one machine's conclusions, the table of the cases that a peer wins, and the tables of SHOWN."""
    card = rows[0].card
    suites = {suite: [row for row in rows if row.suite == suite] for suite in ("rows", "grid", "shapes")}
    parts = [f"## {card}\n", conclusions(suites), f"### {card}: a peer is faster\n", table(won(rows))]
    for suite in SHOWN:
        for family in dict.fromkeys(row.family for row in suites[suite]):
            title = f"### {card}: {family}{', shapes' if suite == 'shapes' else ''}\n"
            parts += [title, table([row for row in suites[suite] if row.family == family])]
    return parts


def won(rows: Sequence[Row]) -> list[Row]:
    """Returns the cases that a peer wins, the largest loss first."""
    ratios = [(row.ratio, row) for row in rows if row.ratio is not None and row.ratio < 1]
    return [row for _, row in sorted(ratios, key=lambda pair: pair[0])]


def conclusions(suites: dict[str, list[Row]]) -> str:
    """Returns a table with one line for each suite that has cases."""
    lines = [
        "| suite | measured | cases | with a peer | median of the fastest peer / ours | a peer is faster |"
        " by more than 2% | with a max | missed |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for suite, rows in suites.items():
        if rows:
            days = sorted({row.date[:10] for row in rows})
            ratios = [row.ratio for row in rows if row.ratio is not None]
            judged = [row for row in rows if row.max_ms is not None]
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
    """Returns whether the case takes longer than its max_ms."""
    return row.max_ms is not None and row.ours > row.max_ms


def table(rows: Sequence[Row]) -> str:
    """Returns a table of the cases, with the time of each peer."""
    return "\n".join([*HEAD, *map(line, rows)]) + "\n"


def line(row: Row) -> str:
    """Returns a line of a table. Ratios of cases that a peer wins, and missed limits, are bold."""
    peers = ", ".join(f"{name} {ms:.4g}" for name, ms in sorted(row.peers.items(), key=lambda pair: pair[1]))
    ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
    max_ms = "" if row.max_ms is None else f"{row.max_ms:.4g}"
    cells = [
        row.row.replace("|", "\\|"),
        f"{row.ours:.4g}",
        peers,
        f"**{ratio}**" if row.ratio is not None and row.ratio < 1 else ratio,
        f"**{max_ms}**" if is_missed(row) else max_ms,
    ]
    return f"| {' | '.join(cells)} |"
