"""Helpers of calls over 2^32 + 17 items, where 32-bit counters overflow.

Keys and values are bytes that repeat every 251 items, so that a truncated offset finds another byte.
"""

from __future__ import annotations

import concurrent.futures

import numpy as np

FEW = 4099
PERIOD = 251
PATTERN = np.random.default_rng(9).permutation(PERIOD).astype(np.uint8)


def bytes_of(n):
    return np.resize(PATTERN, n)


def counts_of(x):
    whole, rest = divmod(len(x), PERIOD)
    return whole * np.bincount(x[:PERIOD], minlength=256) + np.bincount(x[:rest], minlength=256)


def bytes_by_count(counts):
    return np.repeat(np.arange(256, dtype=np.uint8), counts)


def sort_bytes(x):
    return bytes_by_count(counts_of(x))


def spots(n, index):
    """Returns ascending positions, some around 2^31 and 2^32, as far as `index` can hold them."""
    around = [2**bits + offset for bits in (31, 32) for offset in (-1, 0, 1)]
    last = min(n - 1, np.iinfo(index).max)
    return np.array(sorted({i for i in (0, 5, n // 7, n // 2, last, *around) if i <= last}), index)


def pieces(x, heads):
    return np.split(x, heads[1:])


def everywhere(n, check):
    """Runs check(begin, end) over parts of the n items in threads, because NumPy releases the GIL."""
    step = min(n, 1000) if n <= FEW else 2**26
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for result in [pool.submit(check, i, min(i + step, n)) for i in range(0, n, step)]:
            result.result()


def same(got, expected):
    got = np.asarray(got)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    got, expected = np.ravel(got), np.ravel(expected)

    def check(begin, end):
        assert np.array_equal(got[begin:end], expected[begin:end])

    everywhere(len(got), check)


def same_repeated(got, values, counts):
    """Asserts same(got, np.repeat(values, counts)), part by part."""
    got = np.asarray(got)
    assert (got.shape, got.dtype) == ((counts.sum(),), values.dtype)
    ends = np.cumsum(counts)

    def check(begin, end):
        here = np.minimum(ends, end) - np.maximum(ends - counts, begin)
        assert np.array_equal(got[begin:end], np.repeat(values, np.maximum(here, 0)))

    everywhere(len(got), check)
