"""The oracle's order of keys, checked by comparisons of all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from tests import data, oracle


@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_ranks_and_orders(rng, dtype):
    keys = np.append(data.special_keys(dtype), data.random_keys(rng, dtype, 200))
    values = [float(key) if keys.dtype.kind not in "iub" else int(key) for key in keys]

    def is_less(i, j):
        return values[i] < values[j] or (values[i] == values[i] and values[j] != values[j])

    less = np.array([[is_less(i, j) for j in range(len(keys))] for i in range(len(keys))])
    ranks = oracle.rank(keys)
    np.testing.assert_array_equal(ranks[:, None] < ranks[None], less)

    before = less.sum(0) + np.tril(~less & ~less.T, -1).sum(1)
    np.testing.assert_array_equal(oracle.sort_indices(keys), np.argsort(before))
    reverse = less.sum(1) + np.tril(~less & ~less.T, -1).sum(1)
    np.testing.assert_array_equal(oracle.sort_indices(keys, descending=True), np.argsort(reverse))
    heads = np.array([0, 50, 50, 120])
    order = [begin + oracle.sort_indices(keys[begin:end]) for begin, end in ((0, 50), (50, 120), (120, 180))]
    expected = np.concatenate([*order, np.arange(180, len(keys))])
    np.testing.assert_array_equal(oracle.segmented_sort_indices(keys, heads, count=180), expected)
