"""`python -m jax_mgpu --benchmark`: compares nine operations with plain JAX on the default device.

The repository's `benchmarks/` has more operations, in many forms.
"""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu

MAX_SIZE = 2**29  # so a union of two arrays has fewer than 2^31 items
PLOT_FORMATS = (".png", ".svg", ".pdf")
MEAN_ROW, MEAN_INTERVAL = 30, 5
CPU_SIZE, GPU_SIZE = 2**20, 2**26
# A generous estimate of the memory per item.
BYTES_PER_ITEM = 128
RUNS, MAX_SECONDS = 7, 2.0


class Row(NamedTuple):
    """An operation, the same work in plain JAX, and their arrays."""

    name: str
    peer: str
    inputs: Callable[[np.random.Generator, int], tuple[np.ndarray, ...]]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]


class Measured(NamedTuple):
    """Milliseconds of the operation and of plain JAX, and whether results are equal."""

    row: Row
    ours: float
    theirs: float
    same: bool


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Prints to stderr what is being done, then how long it took."""
    begin = time.perf_counter()
    print(f"{what} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    except BaseException:
        print(file=sys.stderr, flush=True)
        raise
    print(f" {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)


def milliseconds(function: Callable[..., Any], *operands: Any) -> float:
    """Returns the shortest time of 2 to RUNS calls; after the second call, none starts later than MAX_SECONDS."""
    end = time.perf_counter() + MAX_SECONDS
    samples: list[float] = []
    while len(samples) < RUNS and (len(samples) < 2 or time.perf_counter() < end):
        begin = time.perf_counter()
        jax.block_until_ready(function(*operands))
        samples.append(1e3 * (time.perf_counter() - begin))
    return min(samples)


def default_size() -> int:
    """Returns a number of items: 2^20 on a CPU, else the largest power of two up to 2^26 that fits the memory."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return CPU_SIZE
    memory = (device.memory_stats() or {}).get("bytes_limit", BYTES_PER_ITEM * CPU_SIZE)
    result: int = min(GPU_SIZE, 2 ** (int(memory // BYTES_PER_ITEM).bit_length() - 1))
    return result


def run(size: int, device: str, plot: pathlib.Path) -> int:
    """Prints the table and draws the plot; returns 0 if all rows ran and agree."""
    measured = []
    for i, row in enumerate(ROWS, 1):
        name = f"{row.name} and {row.peer}"
        try:
            with progress(f"[{i}/{len(ROWS)}] {name}: compiling and timing"):
                measured.append(measure(row, size))
        except jax.errors.JaxRuntimeError as error:
            print(f"{name}: FAILED: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
    title = f"{device}, jax {jax.__version__}, {size:,} items, best of up to {RUNS} runs"
    print(title, table(measured), sep="\n\n", flush=True)
    if measured:
        draw(plot, title, measured)
    print("\nNext: python -m jax_mgpu FILE sorts the rows of your own text or .npz file (see --help)")
    return int(len(measured) < len(ROWS) or not all(entry.same for entry in measured))


def measure(row: Row, size: int) -> Measured:
    """Compiles both sides, compares their results, and times them."""
    inputs = [jnp.asarray(x) for x in row.inputs(np.random.default_rng(0), size)]
    ours, theirs = (jax.jit(side).lower(*inputs).compile() for side in (row.ours, row.theirs))
    pairs = zip(jax.tree.leaves(ours(*inputs)), jax.tree.leaves(theirs(*inputs)), strict=True)
    same = all(bool(jnp.array_equal(x, y)) for x, y in pairs)
    return Measured(row, milliseconds(ours, *inputs), milliseconds(theirs, *inputs), same)


def table(measured: Iterable[Measured]) -> str:
    """Formats a table with one line per row."""
    cells = [("operation", "ms", "JAX without it", "ms", "ratio", "results")]
    cells += [
        (row.name, f"{ours:.3f}", row.peer, f"{theirs:.3f}", f"{theirs / ours:.2f}", "agree" if same else "DIFFER")
        for row, ours, theirs, same in measured
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = ("operation", "JAX without it", "results")
    alignment = ["<" if heading in left else ">" for heading in cells[0]]
    lines = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, alignment, widths, strict=True))
        for line in cells
    ]
    return "\n".join(line.rstrip() for line in lines)


def draw(plot: pathlib.Path, title: str, measured: Sequence[Measured]) -> None:
    """Writes the plot, or says why there is none."""
    try:
        plotting = importlib.import_module("jax_mgpu._src.command.plot")
    except ModuleNotFoundError as missing:
        if missing.name != "matplotlib":
            raise
        print("jax_mgpu: no plot was drawn, as matplotlib is missing: pip install matplotlib", file=sys.stderr)
        return
    bars = [plotting.Bar(f"{row.name}\n{row.peer}", ours, theirs) for row, ours, theirs, _ in measured]
    plotting.draw_bars(plot, title, bars, "jax_mgpu", "JAX without it")
    print(f"\nPlot: {plot}")


# ---- Inputs ----------------------------------------------------------------------------------------------------------


def random_keys(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draws keys of 32 bits."""
    return rng.integers(0, 2**32, n, np.uint32)


def random_integers(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draws small integers."""
    return rng.integers(-100, 100, n, np.int32)


def random_heads(rng: np.random.Generator, n: int, mean: int) -> np.ndarray:
    """Draws the first positions of n // mean rows, some empty."""
    heads = np.sort(rng.integers(0, n, max(1, n // mean), np.int32))
    heads[0] = 0
    return heads


def ragged(rng: np.random.Generator, n: int, values: Callable[..., np.ndarray]) -> tuple[np.ndarray, ...]:
    """Makes values, heads, and the row of each value."""
    heads = random_heads(rng, n, MEAN_ROW)
    rows = np.repeat(np.arange(heads.size, dtype=np.int32), np.diff(heads, append=np.int32(n)))
    return values(rng, n), heads, rows


def intervals(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    """Makes a value per interval, and the offsets and lengths of intervals."""
    values = random_keys(rng, max(1, n // MEAN_INTERVAL))
    total = MEAN_INTERVAL * values.size
    offsets = random_heads(rng, total, MEAN_INTERVAL)
    return values, offsets, np.diff(offsets, append=np.int32(total))


def sorted_keys(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    """Makes two sorted arrays of random keys."""
    return tuple(np.sort(random_keys(rng, n)) for _ in "ab")


def sorted_ids(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    """Makes two sorted arrays of n ids below n, whose join has about n rows."""
    return tuple(np.sort(rng.integers(0, n, n, np.int32)) for _ in "ab")


def unique_keys(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    """Makes two sorted arrays without repeats that share about two thirds of their keys."""
    return tuple(np.cumsum(rng.integers(1, 3, n, np.int32), dtype=np.int32) for _ in "ab")


# ---- The same work in plain JAX --------------------------------------------------------------------------------------


def sort_rows(rows: jax.Array, keys: jax.Array) -> jax.Array:
    """Sorts the keys of each row by a sort by row and key."""
    return jax.lax.sort((rows, keys), num_keys=2, is_stable=True)[1]


def join_size(a: jax.Array) -> int:
    """Returns the number of slots for the rows of a join of `sorted_ids`."""
    return a.size + a.size // 4 + 16


def join(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Joins by searches, a scan and repeats."""
    first, last = (jnp.searchsorted(b, a, side=side) for side in ("left", "right"))
    ends = jnp.cumsum(last - first)
    slots = jnp.arange(join_size(a))
    i = jnp.repeat(jnp.arange(a.size), last - first, total_repeat_length=slots.size)
    j = slots - (ends - last)[i]
    live = slots < ends[-1]
    return jnp.where(live, i, -1), jnp.where(live, j, -1), ends[-1]


ROWS = (
    Row(
        "segmented_sort", "lax.sort, 2 keys",
        lambda rng, n: ragged(rng, n, random_keys),
        lambda keys, heads, rows: mgpu.segmented_sort(keys, heads),
        lambda keys, heads, rows: sort_rows(rows, keys),
    ),
    Row(
        "mergesort", "jnp.sort",
        lambda rng, n: (random_keys(rng, n),),
        mgpu.mergesort,
        jnp.sort,
    ),
    Row(
        "merge", "jnp.sort of both",
        sorted_keys,
        mgpu.merge,
        lambda a, b: jnp.sort(jnp.concatenate([a, b])),
    ),
    Row(
        "sorted_search", "jnp.searchsorted",
        sorted_keys,
        mgpu.sorted_search,
        lambda a, b: jnp.searchsorted(b, a),
    ),
    Row(
        "scan", "jnp.cumsum",
        lambda rng, n: (random_integers(rng, n),),
        mgpu.scan,
        jnp.cumsum,
    ),
    Row(
        "segmented_reduce", "jax.ops.segment_sum",
        lambda rng, n: ragged(rng, n, random_integers),
        lambda x, heads, rows: mgpu.segmented_reduce(x, heads),
        lambda x, heads, rows: jax.ops.segment_sum(x, rows, heads.size, indices_are_sorted=True),
    ),
    Row(
        "interval_expand", "jnp.repeat",
        intervals,
        lambda values, offsets, lengths: mgpu.interval_expand(values, offsets, MEAN_INTERVAL * values.size),
        lambda values, offsets, lengths: jnp.repeat(values, lengths, total_repeat_length=MEAN_INTERVAL * values.size),
    ),
    Row(
        "set_union", "jnp.union1d",
        unique_keys,
        lambda a, b: mgpu.set_union(a, b, duplicates=False).keys,
        lambda a, b: jnp.union1d(a, b, size=a.size + b.size, fill_value=0),
    ),
    Row(
        "join", "searchsorted, repeat",
        sorted_ids,
        lambda a, b: mgpu.join(a, b, size=join_size(a)),
        join,
    ),
)  # fmt: skip
