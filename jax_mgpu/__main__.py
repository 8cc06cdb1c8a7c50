"""`python -m jax_mgpu [FILE]`: sorts ragged data under jit, checks the result and times it.

`--benchmark` measures more operations, `--info` describes the installation.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import platform
import re
import sys
import sysconfig
import textwrap
import zipfile
from collections.abc import Iterable, Sequence
from typing import NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from jax_mgpu._src.arguments.check import KEY_DTYPES, describe
from jax_mgpu._src.command import benchmark
from jax_mgpu._src.core import library
from jax_mgpu._src.core.compat import ffi_api_version, jaxlib_version

MAX_LINES = 150_000
SHOWN_ROWS = 3
SCREEN = 80
DEFAULT_PLOT = pathlib.Path("jax_mgpu_benchmark.png")
SETTINGS = ("JAX_", "XLA_", "MGPU_", "CUDA_VISIBLE_DEVICES")  # --info prints variables with these prefixes
TOKEN = re.compile(r"\w+|[^\w\s]")


class Ragged(NamedTuple):
    """Row i is values[offsets[i]:offsets[i + 1]]."""

    what: str
    values: np.ndarray
    offsets: np.ndarray
    words: Sequence[str] | None  # a value's string is words[value]


class InputError(Exception):
    """Says in one line why a file cannot be used."""


class Parser(argparse.ArgumentParser):
    """Reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        """Prints the message, and exits with status 2."""
        self.exit(2, f"jax_mgpu: {message} (try --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = Parser(
        prog="python -m jax_mgpu", description="Sorts each row of ragged data, checks the result and times the sort."
    )
    parser.add_argument(
        "file", nargs="?", type=pathlib.Path, metavar="FILE",
        help="an .npz file with arrays named values and offsets, where row i is values[offsets[i]:offsets[i + 1]], or "
        "a text, where a row is a line's tokens (default: Python's standard library, as text)",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"jax_mgpu {mgpu.__version__}")
    parser.add_argument("--info", action="store_true", help="print versions, devices and kernels, and stop")
    parser.add_argument(
        "--benchmark", action="store_true",
        help="compare operations with the same work in plain JAX, print a table, draw a plot, and stop",
    )  # fmt: skip
    parser.add_argument(
        "--size", type=item_count, metavar="N", help="number of items in --benchmark (default: by the device)"
    )
    parser.add_argument(
        "--plot", type=plot_file, metavar="FILE",
        help=f"file of the plot of --benchmark, which needs matplotlib (default: {DEFAULT_PLOT})",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.benchmark and (options.file or options.info):
        parser.error("--benchmark cannot be combined with FILE or --info")
    if (options.size or options.plot) and not options.benchmark:
        parser.error("--size and --plot require --benchmark")
    if options.info:
        print_information()
        return 0
    if options.benchmark:
        with jax.enable_x64(False):
            size = options.size or benchmark.default_size()
            return benchmark.run(size, describe_device(), options.plot or DEFAULT_PLOT)
    try:
        if options.file:
            data = read(options.file)
        else:
            with benchmark.progress("Reading Python's standard library"):
                data = read(None)
    except InputError as error:
        print(f"jax_mgpu: {error}", file=sys.stderr)
        return 2
    with jax.enable_x64(data.values.dtype.itemsize == 8):
        return sort_and_report(data)


def item_count(text: str) -> int:
    """Parses --size; raises unless it is a number of items that --benchmark can measure."""
    if not text.isdecimal() or not 1 <= int(text) <= benchmark.MAX_SIZE:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to {benchmark.MAX_SIZE}, got {text}")
    return int(text)


def plot_file(text: str) -> pathlib.Path:
    """Parses --plot; raises unless the format is known and the folder exists."""
    file = pathlib.Path(text)
    if file.suffix not in benchmark.PLOT_FORMATS:
        raise argparse.ArgumentTypeError(
            f"expected a name that ends in {' or '.join(benchmark.PLOT_FORMATS)}, got {text}"
        )
    if not file.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{file.parent} is not a folder")
    return file


def sort_and_report(data: Ragged) -> int:
    """Sorts the rows, checks them and compares times; returns 1 if a row is wrong."""
    lengths = np.diff(data.offsets)
    print(f"{data.what}:\n{lengths.size:,} rows of 0 to {lengths.max(initial=0):,} values, {data.values.size:,} in all")

    ids = np.repeat(np.arange(lengths.size, dtype=np.int32), lengths)
    keys, heads, row_ids = jnp.asarray(data.values), jnp.asarray(data.offsets[:-1]), jnp.asarray(ids)
    with benchmark.progress("Compiling segmented_sort and lax.sort"):
        sort = jax.jit(mgpu.segmented_sort).lower(keys, heads).compile()
        plain = jax.jit(benchmark.sort_rows).lower(row_ids, keys).compile()
    with benchmark.progress("Sorting each row, here and in NumPy"):
        result = np.asarray(sort(keys, heads))
        expected = data.values[np.lexsort((data.values, ids))]  # lax.sort's order: stable, NaN last, both zeros equal
    print(f"Device: {describe_device()}; {what_runs(sort.as_text() or '')}")
    show_rows(data, result)
    wrong = np.flatnonzero(result.view(np.uint8) != expected.view(np.uint8))
    if wrong.size:
        position = int(wrong[0]) // data.values.dtype.itemsize
        found = f"NumPy has {expected[position]}, jax_mgpu has {result[position]}"
        print(f"WRONG at position {position}: {found}", file=sys.stderr)
        return 1
    print("Check: every row is bit for bit what NumPy sorts it to")

    with benchmark.progress("Timing both"):
        ours, theirs = (benchmark.milliseconds(*call) for call in ((sort, keys, heads), (plain, row_ids, keys)))
    print(f"\n{benchmark.table([benchmark.Measured(benchmark.ROWS[0], ours, theirs, True)])}\n")
    print(f"Next: {next_step()}")
    return 0


def next_step() -> str:
    """Suggests a next step after the first sort."""
    if not library.platforms() or (jax.default_backend() == "gpu" and not mgpu.has_cuda()):
        return f"get the kernels: {library.how_to_get_kernels()}"
    return "python -m jax_mgpu --benchmark compares nine operations with plain JAX, in a minute"


def show_rows(data: Ragged, result: np.ndarray) -> None:
    """Prints some rows before and after the sort."""

    def text(values: np.ndarray) -> str:
        words = [str(value) if data.words is None else data.words[value] for value in values[:12]]
        line = " ".join(words)
        return f"{line[:55]}..." if len(line) > 55 or values.size > 12 else line

    lengths = np.diff(data.offsets)
    interesting = np.flatnonzero((lengths >= 4) & (lengths <= 12))
    if interesting.size == 0:
        interesting = np.flatnonzero(lengths)
    count = min(SHOWN_ROWS, interesting.size)
    for row in interesting[np.linspace(0, interesting.size - 1, count, dtype=int)]:
        part = slice(data.offsets[row], data.offsets[row + 1])
        print(f"  row {row:,}\n    before  {text(data.values[part])}\n    after   {text(result[part])}")


def read(file: pathlib.Path | None) -> Ragged:
    """Reads a file, or text of the standard library; raises InputError if the file cannot be used."""
    if file is None:
        version = ".".join(platform.python_version_tuple()[:2])
        return tokens(f"Tokens of each line of Python {version}'s standard library", library_lines())
    try:
        if file.suffix == ".npz":
            return read_npz(file)
        return tokens(f"Tokens of each line of {file}", file.read_text(encoding="utf-8").splitlines())
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: expected UTF-8 text or an .npz file, got other bytes at {error.start}") from error
    except OSError as error:
        raise InputError(f"{file}: {error.strerror or error}") from error


def library_lines() -> Iterable[str]:
    """Yields the first MAX_LINES lines of the standard library's files, in the order of their names."""
    remaining = MAX_LINES
    for path in sorted(pathlib.Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts or remaining <= 0 or not path.is_file():  # a broken link is no file
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[:remaining]
        remaining -= len(lines)
        yield from lines


def tokens(what: str, lines: Iterable[str]) -> Ragged:
    """Makes a row of each line; a token's value is its rank in the sorted vocabulary."""
    vocabulary: dict[str, int] = {}
    ids: list[int] = []
    offsets = [0]
    for line in lines:
        ids.extend(vocabulary.setdefault(token, len(vocabulary)) for token in TOKEN.findall(line))
        offsets.append(len(ids))
    words = sorted(vocabulary)
    rank = np.empty(len(words), np.uint32)
    rank[[vocabulary[word] for word in words]] = np.arange(len(words), dtype=np.uint32)
    return Ragged(what, rank[np.asarray(ids, np.int64)], np.asarray(offsets, np.int32), words)


def read_npz(file: pathlib.Path) -> Ragged:
    """Reads values and offsets of an .npz file; raises InputError if they are not valid."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            missing = [name for name in ("values", "offsets") if name not in archive]
            if missing:
                got = ", ".join(archive) or "none"
                raise InputError(f"{file}: expected arrays named values and offsets, got {got}")
            values, offsets = archive["values"], archive["offsets"]
    except (ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{file}: expected an .npz file of plain arrays: {error}") from error
    if values.ndim != 1 or values.dtype.name not in KEY_DTYPES:
        raise InputError(f"{file}: values: expected a vector of integers or floats, got {describe(values)}")
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or offsets.size == 0:
        raise InputError(f"{file}: offsets: expected a vector of integers, got {describe(offsets)}")
    if values.size >= 2**31:
        raise InputError(f"{file}: values: expected fewer than 2^31 items, got {values.size}")
    if offsets[0] != 0 or offsets[-1] != values.size:
        ends = f"{offsets[0]} and {offsets[-1]}"
        raise InputError(f"{file}: offsets: expected the first to be 0 and the last {values.size}, got {ends}")
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if falls.size:
        raise InputError(f"{file}: offsets: expected ascending numbers, got a smaller one after position {falls[0]}")
    return Ragged(str(file), np.ascontiguousarray(values), offsets.astype(np.int32), None)


def describe_device() -> str:
    """Describes the default device."""
    device = jax.devices()[0]
    return f"{os.cpu_count()}-core CPU" if device.platform == "cpu" else device.device_kind


def what_runs(program: str) -> str:
    """Says whether a compiled program runs the kernels or plain JAX."""
    if "jax_mgpu.segmented_sort" not in program:
        return "plain JAX ran, as there are no kernels for it here"
    return "the CPU kernels ran" if jax.default_backend() == "cpu" else "the CUDA kernels ran"


def print_information() -> None:
    """Prints what a bug report needs on one screen."""
    runtime = ffi_api_version()
    platforms, operations = ", ".join(library.platforms()), len(library.cpu_library.handlers())
    built = f"{platforms}, of {operations} operations" if platforms else "none"
    settings = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)]
    lines = [
        f"jax_mgpu {mgpu.__version__} from {pathlib.Path(mgpu.__file__).parent}",
        f"Python {platform.python_version()}, jax {jax.__version__}, jaxlib {jaxlib_version}, "
        f"numpy {np.__version__}, {platform.platform()}",
        f"devices: {list_devices()}",
        f"kernels built: {built}",
        *(f"  {name}: {description}" for name, description in mgpu.backends().items()),
        *([f"build: {library.build_decision()}"] if mgpu.has_cuda() else []),  # else backends() says it
        f"FFI API of this jaxlib: {'.'.join(map(str, runtime)) if runtime else 'unknown'}",
        f"settings: {' '.join(settings) or 'none'}",
        "To report a bug, send these lines, the shortest program that shows it, and all that it printed.",
    ]
    wrapper = textwrap.TextWrapper(SCREEN - 1, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    print("\n".join(map(wrapper.fill, lines)))


def list_devices() -> str:
    """Lists devices and their driver, or says why there are none."""
    try:
        devices = jax.devices()
    except RuntimeError as error:
        return f"none: {error}"
    kinds = collections.Counter(f"{device.device_kind} ({device.platform})" for device in devices)
    driven = f"; {devices[0].client.platform_version.splitlines()[0]}" if devices[0].platform != "cpu" else ""
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) + driven


if __name__ == "__main__":
    sys.exit(main())
