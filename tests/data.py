"""Inputs with corner cases: every key type, ties, both zeros, NaNs with payloads, infinities, subnormals."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.core.library import cpu_library
from tests import oracle

FLOAT_DTYPES = ["float16", "bfloat16", "float32", "float64"]
KEY_DTYPES = [f"{kind}{width}" for kind in ("uint", "int") for width in (8, 16, 32, 64)] + FLOAT_DTYPES
MANTISSA_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}


def tile_sizes(*names: str) -> tuple[int, ...]:
    """Returns the sizes of the named tiles on both platforms and for items of all widths."""
    sizes = cpu_library.tile_sizes()
    return tuple(sorted(set().union(*(sizes[name] for name in names))))


def special_keys(dtype: str) -> np.ndarray:
    """Returns the corner values of a key type."""
    kind = jnp.dtype(dtype)
    if dtype not in MANTISSA_BITS:
        limits = np.iinfo(kind)
        return np.array([limits.min, limits.min + 1, 0, 1, limits.max - 1, limits.max], kind)
    word, mantissa = np.dtype(f"u{kind.itemsize}"), MANTISSA_BITS[dtype]
    infinity = (2 ** (8 * kind.itemsize - 1 - mantissa) - 1) << mantissa
    quiet = infinity | 1 << (mantissa - 1)
    largest, one_up = infinity - 1, 1 << mantissa
    positive = [0, 1, one_up, largest, infinity, quiet, quiet | 1, infinity | 1, infinity | ((1 << mantissa) - 1)]
    sign = 1 << (8 * kind.itemsize - 1)
    return np.array(positive + [bits | sign for bits in positive], word).view(kind)


def random_keys(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    """Draws keys: corner values, numbers from 0 to 12, and random bits."""
    kind = jnp.dtype(dtype)
    n = int(np.prod(shape))
    anything = rng.integers(0, 256, n * kind.itemsize, dtype=np.uint8).view(kind)
    few = rng.integers(0, 13, n).astype(kind)
    corners = rng.choice(special_keys(dtype).view(f"u{kind.itemsize}"), n).view(kind)
    return (
        np.choose(
            rng.integers(0, 3, n),
            [few.view(f"u{kind.itemsize}"), anything.view(f"u{kind.itemsize}"), corners.view(f"u{kind.itemsize}")],
        )
        .view(kind)
        .reshape(shape)
    )


def sorted_keys(
    rng: np.random.Generator, dtype: str, n: int, *, descending: bool = False, count: int | None = None
) -> np.ndarray:
    """Draws random keys, the first `count` of which are sorted."""
    keys = random_keys(rng, dtype, n)
    live = oracle.live_count(count, n)
    keys[:live] = in_order(keys[:live], descending)
    return keys


def in_order(keys: np.ndarray, descending: bool = False) -> np.ndarray:
    """Returns the keys, sorted stably."""
    return keys[oracle.sort_indices(keys, descending)]


SHORT_ROWS = {
    (1, 1): "uint32", (0, 3): "float64", (3, 5): "uint8", (8, 8): "int32", (17, 16): "bfloat16", (100, 100): "float32",
    (8, 504): "int64", (512, 512): "int16", (1000, 1048): "float32", (1024, 1025): "uint16", (2048, 2048): "uint64",
    (2049, 2048): "int32",
}  # fmt: skip


def batch_of(row_slots: int, most_rows: int = 256) -> int:
    """Returns the number of rows of a batch of short rows."""
    return 2 * min(max(2048 // max(row_slots, 1), 1), most_rows) + 1


WORK_ROWS = 1024


def sorted_rows(rng: np.random.Generator, dtype: str, n: int, counts: np.ndarray, **options) -> np.ndarray:
    """Draws rows of keys, each sorted up to its count."""
    rows = [sorted_keys(rng, dtype, n, count=int(count), **options) for count in counts]
    return np.array(rows, jnp.dtype(dtype)).reshape(len(counts), n)


def row_counts(rng: np.random.Generator, n: int, rows: int) -> np.ndarray:
    """Draws a live count for each row, from -1 to n + 1."""
    return rng.integers(-1, n + 2, rows).astype(np.int32)


def without_subnormals(keys: np.ndarray) -> np.ndarray:
    """Replaces subnormals by zeros: XLA's CPU code treats them as zeros, but the kernels do not."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        keys[np.abs(keys.astype(np.float64)) < float(jnp.finfo(keys.dtype).tiny)] = 0
    return keys


def heads_of(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int32) if len(lengths) else np.zeros(0, np.int32)


def flags_of(n: int, heads: np.ndarray) -> np.ndarray:
    flags = np.zeros(n, bool)
    flags[heads[(heads >= 0) & (heads < n)]] = True
    return flags


def words_of(flags: np.ndarray) -> np.ndarray:
    padded = np.zeros(-(-len(flags) // 32) * 32, bool)
    padded[: len(flags)] = flags
    return np.packbits(padded, bitorder="little").view(np.uint32)
