"""The command line: `python -m benchmarks.queries [--scale 1] [--match TEXT] [--repeat 5] [--folder FOLDER]`.

Times each query jitted and in pandas on the CPU, those of TPC-H also in DuckDB in memory, and compares the rows. In
TPC-H, pandas gets only the columns that the query names. The libraries take turns, and the shortest times count.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from benchmarks.queries import run

ROOT = pathlib.Path(__file__).parent.parent.parent


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queries", description=__doc__.split("\n\n")[1])
    parser.add_argument(
        "--scale", type=float, default=1.0, help="scale factor of TPC-H (default 1: six million line items)"
    )
    parser.add_argument("--match", default="", metavar="NAMES", help="comma-separated, such as Q1,F3 (default: all)")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="runs of each query (default 5)")
    parser.add_argument("--folder", type=pathlib.Path, help="folder of TPC-H's tables (default build/tpch-SCALE)")
    return parser.parse_args(arguments)


def min_ms(runs: Mapping[str, Callable[..., Any]], repeats: int) -> dict[str, float]:
    """Calls functions in turns, after an untimed call of each; returns the shortest milliseconds of each."""
    for call in runs.values():
        call()
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, call in runs.items():
            begin = time.perf_counter()
            call()
            samples[name].append(1e3 * (time.perf_counter() - begin))
    return {name: min(times) for name, times in samples.items()}


def tpch(options: argparse.Namespace) -> None:
    from benchmarks.queries import tables, tpch  # noqa: PLC0415

    chosen = matching(tpch.QUERIES, options)
    if chosen:
        folder = options.folder or ROOT / "build" / f"tpch-{options.scale:g}"
        tables.generate(options.scale, folder)
        connection = tables.connect(folder)
        compare(options, chosen, *tables.load(connection, options.scale), connection)


def flights(options: argparse.Namespace) -> None:
    from benchmarks.queries import flights  # noqa: PLC0415

    chosen = matching(flights.QUERIES, options)
    if chosen:
        compare(options, chosen, *flights.load())


def matching(queries: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    names = options.match.split(",")
    return {name: query for name, query in queries.items() if not options.match or name in names}


def compare(
    options: argparse.Namespace, queries: dict[str, Any], frames: Any, words: Any, database: Any = None
) -> None:
    """Checks the rows of each query, and prints its times; DuckDB takes part if there is a database."""
    columns = run.arrays(frames)
    for name, query in queries.items():
        program = run.compiled(query.query, words)
        needed = run.named(frames, query.in_pandas) if database else frames
        runs: dict[str, Callable[..., Any]] = {
            "jax": lambda program=program: jax.block_until_ready(program(columns)),
            "pandas": functools.partial(query.in_pandas, needed, words),
        }
        found = run.rows(runs["jax"]())
        run.expect_same(found, runs["pandas"](), words.words)
        if database:
            sql = query.SQL.replace("{scale}", str(options.scale))
            runs["DuckDB"] = lambda sql=sql: database.execute(sql).fetchall()
            run.expect_same(found, database.execute(sql).df(), words.words)
        report(name, query.__doc__, min_ms(runs, options.repeat))


def report(name: str, text: str | None, times: dict[str, float]) -> None:
    cells = [f"{times[peer]:.1f}" if peer in times else "-" for peer in ("jax", "DuckDB", "pandas")]
    print(f"| {(text or name).strip().removesuffix('.')} | {' | '.join(cells)} |", flush=True)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    jax.config.update("jax_enable_x64", True)
    print(
        f"Milliseconds, the minimum of {options.repeat}, scale {options.scale:g}; jax on {jax.devices()[0].device_kind}"
    )
    print("| query | jax_mgpu | DuckDB | pandas |\n|---|---|---|---|", flush=True)
    tpch(options)
    flights(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
