"""Common mistakes are errors that name operation, argument, expectation and value.

Shapes, types and host values are checked at once, values on a device under `mgpu.checks()`. If another function does
what was meant, the message names it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu

KEYS = np.int32([3, 1, 2, 5, 4, 0])
SORTED = np.sort(KEYS)
ITEMS = np.float32([1, 2, 3, 4, 5, 6])
HEADS = np.int32([0, 2])
TIMES = np.array(["2020-01-01"], "datetime64[D]")
SEGMENTS = mgpu.Segments.from_lengths([2, 4])
RAGGED = mgpu.Ragged.from_lengths(ITEMS, [2, 4])
RANDOM_KEY = jax.random.key(0)
MATRIX = mgpu.Csr(np.float32([1, 2]), np.int32([0, 4]), np.int32([0, 1, 2, 2, 2]), (4, 5))

AT_ONCE = {
    "lengths past the items": (
        lambda: mgpu.segmented_reduce(ITEMS, mgpu.Segments.from_lengths([2, 5])),
        "segmented_reduce: heads: expected Segments within 6 items, got segment 1 from 2 to 7",
    ),
    "lengths negative": (
        lambda: mgpu.Segments.from_lengths([2, -1]),
        "Segments.from_lengths: lengths: expected a number of at least 0, got -1 at position 1",
    ),
    "lengths float": (
        lambda: mgpu.Segments.from_lengths([2.0, 1.0]),
        "Segments.from_lengths: lengths: expected integers, got float64[2]",
    ),
    "offsets fall": (
        lambda: mgpu.Segments.from_offsets([0, 3, 2]),
        "Segments.from_offsets: offsets: expected non-negative integers in non-decreasing order "
        "(Segments.from_lengths takes lengths), got 2 at position 2",
    ),
    "ids fall": (
        lambda: mgpu.Segments.from_ids([0, 2, 1], 3),
        "Segments.from_ids: ids: expected ids in non-decreasing order, and no id out "
        "of range between two equal ids, got 1 at position 2",
    ),
    "flags as ints of 1": (
        lambda: mgpu.Segments.from_flags([1, 1, 1], 2),
        "Segments.from_flags: flags: expected bool[n], got int32[3] (Segments.from_heads takes positions)",
    ),
    "flags as ints": (
        lambda: mgpu.Segments.from_flags([0, 3], 2),
        "Segments.from_flags: flags: expected bool[n], got int32[2] (Segments.from_heads takes positions)",
    ),
    "ranges overlap": (
        lambda: mgpu.Segments.from_ranges([0, 1], [3, 4]),
        "Segments.from_ranges: ends: expected segments that do not overlap, got 3 at position 0",
    ),
    "ranges lengths": (
        lambda: mgpu.Segments.from_ranges([0, 1], [3]),
        "Segments.from_ranges: ends: expected the length of starts, 2, got int32[1]",
    ),
    "heads without ends": (
        lambda: mgpu.Segments.from_heads([0, 2]),
        "Segments.from_heads: ends and count: expected one of them, got neither",
    ),
    "segments and ends": (
        lambda: mgpu.segmented_reduce(ITEMS, SEGMENTS, ends=[2, 6]),
        "segmented_reduce: ends: expected None with Segments, which contain it, got [2, 6]",
    ),
    "segments and count": (
        lambda: mgpu.segmented_reduce(ITEMS, SEGMENTS, count=3),
        "segmented_reduce: count: expected None with Segments, which contain it, got 3",
    ),
    "segments and flags": (
        lambda: mgpu.segmented_sort(ITEMS, SEGMENTS, flags=[True] * 6),
        "segmented_sort: heads and flags: expected exactly one of them, got both",
    ),
    "flags as heads": (
        lambda: mgpu.segmented_reduce(ITEMS, np.array([True, False, True, False, False, False])),
        "segmented_reduce: heads: expected integers, got bool[6] (select takes a mask; "
        "Segments.from_flags takes flags of segment starts)",
    ),
    "float heads": (
        lambda: mgpu.segmented_reduce(ITEMS, [0.0, 2.0]),
        "segmented_reduce: heads: expected integers, got float32[2]",
    ),
    "2d heads": (
        lambda: mgpu.segmented_reduce(ITEMS, np.int32([[0], [2]])),
        "segmented_reduce: heads: expected a 1-D array (batches come from jax.vmap), got int32[2,1]",
    ),
    "no heads": (
        lambda: mgpu.segmented_sort(ITEMS),
        "segmented_sort: heads and flags: expected exactly one of them, got neither",
    ),
    "count float": (lambda: mgpu.reduce(ITEMS, count=2.0), "reduce: count: expected an integer scalar, got 2.0"),
    "count array": (
        lambda: mgpu.reduce(ITEMS, count=np.int32([1, 2])),
        "reduce: count: expected an integer scalar, got int32[2]",
    ),
    "ends short": (
        lambda: mgpu.segmented_reduce(ITEMS, HEADS, ends=np.int32([2])),
        "segmented_reduce: ends: expected the length of heads, 2, got int32[1]",
    ),
    "ragged lengths": (
        lambda: mgpu.Ragged.from_lengths(ITEMS, [1, 9]),
        "Ragged.from_lengths: lengths: expected row 1 to have between 0 and 5 items, as only 5 are left, got 9",
    ),
    "ragged offsets": (
        lambda: mgpu.Ragged(ITEMS, [0, 9]),
        "Ragged: offsets: expected row 0 to end between its start, 0, and the number of items, 6, got 9",
    ),
    "ragged asarray": (
        lambda: np.asarray(RAGGED),
        "Ragged: conversion: expected an array, got a Ragged (.map(function) applies a function to its items; "
        ".values and .to_dense(width) are arrays)",
    ),
    "ragged other segments": (
        lambda: RAGGED + mgpu.Ragged.from_lengths(ITEMS, [3, 3]),
        "Ragged +: other: expected rows of the same lengths, 2 items in row 0, got 3",
    ),
    "ragged rows scalars": (
        lambda: mgpu.Ragged.from_rows([1, 2]),
        "Ragged.from_rows: rows: expected an array or a list for each row, got 1 in row 0",
    ),
    "op jnp.sum": (
        lambda: mgpu.reduce(ITEMS, jnp.sum),
        "reduce: op: expected the name 'add', or a function of two items, got sum, a function of an array",
    ),
    "op avg": (
        lambda: mgpu.reduce_by_id(ITEMS, KEYS, 6, "avg"),
        "reduce_by_id: op: expected one of add, sum, mul, prod, min, max, argmin, argmax, mean, any, all, and, or,"
        " xor, logsumexp, count, first, last, var, std, median, nunique, nansum, nanmean, nanmin, nanmax, got "
        "'avg'",
    ),
    "op no identity": (
        lambda: mgpu.segmented_reduce(ITEMS, HEADS, lambda a, b: a * b + 1),
        "segmented_reduce: identity: expected the identity of op, for empty segments, got None",
    ),
    "op None": (
        lambda: mgpu.reduce(ITEMS, None),
        "reduce: op: expected names in the structure of x, PyTreeDef(*), got None",
    ),
    "weights max": (
        lambda: mgpu.segmented_reduce(ITEMS, HEADS, "max", weights=ITEMS),
        "segmented_reduce: op: expected add, sum, mean where weights are given, got 'max'",
    ),
    "weights length": (
        lambda: mgpu.segmented_reduce(ITEMS, HEADS, weights=ITEMS[:3]),
        "segmented_reduce: weights: expected one weight for each entry, [6], or the shape [6, "
        "*x.shape[1:k]] for a k from 2 to x.ndim, got float32[3]",
    ),
    "weights for x, indices": (
        lambda: mgpu.segmented_reduce(ITEMS, HEADS, indices=[0, 1], weights=ITEMS),
        "segmented_reduce: weights: expected one weight for each entry, [2], or the shape [2, "
        "*x.shape[1:k]] for a k from 2 to x.ndim, got float32[6]",
    ),
    "indices float": (
        lambda: mgpu.segmented_reduce(ITEMS, HEADS, indices=[0.0, 1.0]),
        "segmented_reduce: indices: expected integers, got float32[2]",
    ),
    "sort list of arrays": (
        lambda: mgpu.sort([KEYS, KEYS]),
        "sort: keys: expected a 1-D array, or columns as a tuple, got a list of 2 arrays",
    ),
    "sort strings": (
        lambda: mgpu.sort(np.array(["a", "b"])),
        "sort: keys: expected an array of numbers, got str32[2] (np.unique(x, return_inverse=True)[1] or "
        "pandas.factorize(x, sort=True)[0] gives codes in the same order)",
    ),
    "sort datetime": (
        lambda: mgpu.sort(TIMES),
        "sort: keys: expected an array of numbers, got datetime64[D][1] (np.unique(x, return_inverse=True)[1] or "
        "pandas.factorize(x, sort=True)[0] gives codes in the same order; x.astype(np.int64) gives times as integers)",
    ),
    "sort timedelta": (
        lambda: mgpu.sort(TIMES - TIMES),
        "sort: keys: expected an array of numbers, got timedelta64[D][1] (np.unique(x, return_inverse=True)[1] or "
        "pandas.factorize(x, sort=True)[0] gives codes in the same order; x.astype(np.int64) gives times as integers)",
    ),
    "sort bool": (
        lambda: mgpu.sort(np.array([True, False])),
        "sort: keys: expected integers of 8 to 64 bits, float16, bfloat16, float32 or float64, got bool[2] "
        "(x.astype(jnp.uint8) gives numbers)",
    ),
    "sort values length": (
        lambda: mgpu.sort(KEYS, ITEMS[:3]),
        "sort: values: expected arrays with the leading axis of keys, 6, got float32[3]",
    ),
    "sort descending array": (
        lambda: mgpu.sort(KEYS, descending=np.array([True])),
        "sort: descending: expected a static True or False, got bool[1]",
    ),
    "sort bits": (lambda: mgpu.sort(KEYS, bits=40), "sort: bits: expected an integer from 1 to 32, got 40"),
    "side typo": (lambda: mgpu.search(KEYS, SORTED, "lower"), "search: side: expected 'left' or 'right', got 'lower'"),
    "search types": (
        lambda: mgpu.search(ITEMS, SORTED),
        "search: haystack: expected the dtype of needles, float32, got int32",
    ),
    "join negative size": (
        lambda: mgpu.join(SORTED, SORTED, size=-1),
        "join: size: expected a static, non-negative integer, got -1",
    ),
    "join size traced": (
        lambda: jax.jit(lambda n: mgpu.join(SORTED, SORTED, size=n))(5),
        "join: size: expected a static, non-negative integer, got a traced int32[]",
    ),
    "join columns unlike": (
        lambda: mgpu.join((SORTED, SORTED), SORTED, size=9),
        "join: b: expected a tuple of columns, like a, got int32[6]",
    ),
    "join kind": (
        lambda: mgpu.join(SORTED, SORTED, "full", size=9),
        "join: kind: expected 'inner' or 'left' or 'right' or 'outer' or 'semi' or 'anti', got 'full'",
    ),
    "lookup values": (
        lambda: mgpu.lookup(KEYS, SORTED, ITEMS[:3]),
        "lookup: values: expected arrays with the leading axis of table_keys, 6, got float32[3]",
    ),
    "asof direction": (
        lambda: mgpu.asof_join(SORTED, SORTED, direction="backwards"),
        "asof_join: direction: expected 'backward' or 'forward' or 'nearest', got 'backwards'",
    ),
    "asof by one": (
        lambda: mgpu.asof_join(SORTED, SORTED, by_a=SORTED),
        "asof_join: by_a and by_b: expected both or neither, got one of them",
    ),
    "merge one values": (
        lambda: mgpu.merge(SORTED, SORTED, ITEMS),
        "merge: a_values and b_values: expected both or neither, got one of them",
    ),
    "insert values": (
        lambda: mgpu.bulk_insert(ITEMS, np.int32([1, 3]), np.float32([7])),
        "bulk_insert: indices: expected the length of values, 1, got 2",
    ),
    "remove mask": (
        lambda: mgpu.bulk_remove(ITEMS, ITEMS > 2),
        "bulk_remove: indices: expected integers, got bool[6] (select takes a mask; "
        "Segments.from_flags takes flags of segment starts)",
    ),
    "load balance size": (
        lambda: mgpu.load_balance_search(np.int32([0, 2]), -1),
        "load_balance_search: size: expected a static, non-negative integer, got -1",
    ),
    "quantile method": (
        lambda: mgpu.quantile(ITEMS, 0.5, method="linea"),
        "quantile: method: expected 'linear' or 'lower' or 'higher' or 'nearest' or 'midpoint', got 'linea'",
    ),
    "top_k negative": (lambda: mgpu.top_k(ITEMS, -1), "top_k: k: expected a static, non-negative integer, got -1"),
    "top_k float": (lambda: mgpu.top_k(ITEMS, 2.0), "top_k: k: expected a static, non-negative integer, got 2.0"),
    "select ints": (
        lambda: mgpu.select(ITEMS, KEYS),
        "select: keep: expected bool[n], got int32[6] (take selects by positions)",
    ),
    "select shape": (
        lambda: mgpu.select(ITEMS, ITEMS[:3] > 0),
        "select: x: expected arrays with the leading axis of keep, 3, got float32[6]",
    ),
    "ids float": (lambda: mgpu.reduce_by_id(ITEMS, ITEMS, 6), "reduce_by_id: ids: expected integers, got float32[6]"),
    "ids length": (
        lambda: mgpu.reduce_by_id(ITEMS, KEYS[:3], 6),
        "reduce_by_id: ids: expected one id for each of 6 items of x, got int32[3]",
    ),
    "size negative": (
        lambda: mgpu.reduce_by_id(ITEMS, KEYS, -6),
        "reduce_by_id: size: expected a static, non-negative integer, got -6",
    ),
    "take float": (lambda: mgpu.take(ITEMS, [0.5]), "take: indices: expected integers, got float32[1]"),
    "choice by int": (
        lambda: mgpu.weighted_choice(np.int32([0]), ITEMS),
        "weighted_choice: u: expected float16, bfloat16, float32 or float64, got int32[1]",
    ),
    "logits seed": (
        lambda: mgpu.sample_logits(0, ITEMS[None]),
        "sample_logits: key: expected a random key, got int32[] (jax.random.key(0) makes one)",
    ),
    "csr x": (
        lambda: MATRIX @ np.ones(4, np.float32),
        "Csr @: x: expected a vector [5] or a matrix [5, k], got float32[4]",
    ),
    "csr matrix": (lambda: MATRIX * np.ones((4, 5), np.float32), "Csr *: other: expected a scalar, got float32[4,5]"),
    "csr coo": (
        lambda: mgpu.Csr.from_coo([0, 1], [0], [1.0, 2.0], shape=(2, 2)),
        "Csr.from_coo: columns: expected the length of values, 2, got int32[1]",
    ),
    "csr shape": (
        lambda: mgpu.Csr.from_coo([0, 1], [0, 1], [1.0, 2.0], shape=2),
        "Csr.from_coo: shape: expected (rows, columns), got 2",
    ),
    "csr offsets": (
        lambda: mgpu.Csr(np.float32([1, 2]), np.int32([0, 1]), np.int32([0, 3]), (1, 2)),
        "Csr: offsets: expected non-decreasing integers that start with 0 and are at most 2, got [0 3]",
    ),
    "dispatch float": (
        lambda: mgpu.dispatch(ITEMS, ITEMS[:, None], 4),
        "dispatch: experts: expected integers, got float32[6,1]",
    ),
    "combine weights": (
        lambda: mgpu.combine(ITEMS[:, None], np.int32([[0], [1]]), ITEMS),
        "combine: weights: expected the shape of back, [2, 1], got float32[6]",
    ),
    "hist range": (
        lambda: mgpu.histogram(ITEMS, 5, range=(3, 1)),
        "histogram: range: expected two finite numbers, the lower one first, got (3, 1)",
    ),
    "hist bins float": (
        lambda: mgpu.histogram(ITEMS, 5.0),
        "histogram: bins: expected a static, non-negative integer, got 5.0",
    ),
    "axis_name outside": (
        lambda: mgpu.reduce(ITEMS, axis_name="i"),
        "reduce: axis_name: expected the name of a mesh axis, or a tuple of names, inside jax.shard_map, got 'i'",
    ),
    "group dict": (
        lambda: mgpu.group_by(KEYS, {"x": ITEMS}, {"y": "add"}, size=6),
        "group_by: op: expected a name, or a pytree of names like values, PyTreeDef({'x': *}), got {'y': 'add'}",
    ),
    "shift float": (
        lambda: mgpu.segmented_shift(ITEMS, HEADS, 1.5),
        "segmented_shift: by: expected an integer scalar, got float32[]",
    ),
    "interval_reduce lens": (
        lambda: mgpu.interval_reduce(ITEMS, [0, 1], [3]),
        "interval_reduce: ends: expected the length of starts, 2, got int32[1]",
    ),
    "scan identity": (
        lambda: mgpu.scan(ITEMS, lambda a, b: a + b, exclusive=True),
        "scan: identity: expected the identity of op, for an exclusive scan, got None",
    ),
    "bcoo array": (
        lambda: mgpu.Csr.from_bcoo(ITEMS),
        "Csr.from_bcoo: x: expected a jax.experimental.sparse.BCOO, got float32[6]",
    ),
    "scipy array": (
        lambda: mgpu.Csr.from_scipy(ITEMS),
        "Csr.from_scipy: x: expected a sparse matrix or array of SciPy, got float32[6]",
    ),
    "csr times text": (
        lambda: MATRIX * "2",
        "Csr *: other: expected an array of numbers, got '2'",
    ),
    "csr times None": (
        lambda: MATRIX / None,
        "Csr /: other: expected an array of numbers, got None",
    ),
    "csr times large": (
        lambda: MATRIX * 2**40,
        "Csr *: other: expected integers that fit int32 (int64 needs jax_enable_x64), got 1099511627776",
    ),
    "csr times key": (
        lambda: RANDOM_KEY * MATRIX,
        "Csr *: other: expected integers of 8 to 64 bits, float16, bfloat16, float32 or float64, or bools, "
        "got key<fry>[]",
    ),
    "minus bools": (
        lambda: -MATRIX.astype(bool),
        "Csr -: values: expected numbers, got bool[2] (.astype converts)",
    ),
    "matrix of text": (
        lambda: MATRIX.astype("text"),
        "Csr.astype: dtype: expected a dtype of numbers or bools, got 'text'",
    ),
    "matrix of times": (
        lambda: MATRIX.astype("timedelta64[s]"),
        "Csr.astype: dtype: expected a dtype of numbers or bools, got 'timedelta64[s]'",
    ),
    "offsets of lists": (
        lambda: mgpu.Csr(ITEMS[:2], [0, 1], [[0], [1, 2]], (1, 2)),
        "Csr: offsets: expected an array of numbers, got a list of items of different shapes",
    ),
    "fill of lists": (
        lambda: mgpu.select(ITEMS, ITEMS > 2, fill_value=[[1], [2, 3]]),
        "select: fill_value: expected a scalar, got a list",
    ),
    "csr product size": (
        lambda: MATRIX.matmul(MATRIX.T, size=2**40),
        "Csr.matmul: size: expected fewer than 2^31 items, or jax_enable_x64 for int64 indices, got 1099511627776",
    ),
    "ragged of text": (
        lambda: RAGGED.astype(3),
        "Ragged.astype: dtype: expected a dtype of numbers or bools, got 3",
    ),
    "ragged traced dtype": (
        lambda: jax.jit(lambda x: RAGGED.astype(x).values)(1),
        "Ragged.astype: dtype: expected a dtype of numbers or bools, got a traced int32[]",
    ),
    "ragged map name": (
        lambda: RAGGED.map("exp"),
        "Ragged.map: function: expected a function of one item, got 'exp'",
    ),
    "ragged offsets of lists": (
        lambda: mgpu.Ragged(ITEMS, [[0], [1, 2]]),
        "Ragged: offsets: expected an array of numbers, got a list of items of different shapes",
    ),
    "ragged lengths of lists": (
        lambda: mgpu.Ragged.from_lengths(ITEMS, [[0], [1, 2]]),
        "Ragged.from_lengths: lengths: expected an array of numbers, got a list of items of different shapes",
    ),
    "ragged ids of lists": (
        lambda: mgpu.Ragged.from_ids(ITEMS, [[0], [1, 2]], 2),
        "Ragged.from_ids: ids: expected an array of numbers, got a list of items of different shapes",
    ),
    "ragged rows of lists": (
        lambda: mgpu.Ragged.from_rows([[[1], [2, 3]]]),
        "Ragged.from_rows: rows: expected an array of numbers, got a list of items of different shapes",
    ),
    "ragged rows traced": (
        lambda: jax.jit(lambda x: mgpu.Ragged.from_rows(x).values)(ITEMS[None]),
        "Ragged.from_rows: rows: expected known values, outside of jit, got a traced float32[6]",
    ),
    "ragged plus large": (
        lambda: RAGGED + 2**40,
        "Ragged +: other: expected integers that fit int32 (int64 needs jax_enable_x64), got 1099511627776",
    ),
    "ragged plus key": (
        lambda: RAGGED + RANDOM_KEY,
        "Ragged +: other: expected numbers, got key<fry>[]",
    ),
    "temperature None": (
        lambda: mgpu.sample_logits(RANDOM_KEY, ITEMS, temperature=None),
        "sample_logits: temperature: expected real numbers, got None",
    ),
    "random key too short": (
        lambda: mgpu.sample_logits(jnp.zeros(3, jnp.uint32), ITEMS),
        "sample_logits: key: expected as many words as a random key has, got uint32[3]",
    ),
    "heads huge": (
        lambda: mgpu.segmented_reduce(ITEMS, 2**70),
        "segmented_reduce: heads: expected a 1-D array (batches come from jax.vmap), got 1180591620717411303424",
    ),
    "k huge": (
        lambda: mgpu.top_k(ITEMS, 2**40),
        "top_k: k: expected fewer than 2^31 items, or jax_enable_x64 for int64 indices, got 1099511627776",
    ),
    "k of segments huge": (
        lambda: mgpu.segmented_top_k(ITEMS, HEADS, 2**31),
        "segmented_top_k: k: expected fewer than 2^31 items, or jax_enable_x64 for int64 indices, got 2147483648",
    ),
    "bins huge": (
        lambda: mgpu.histogram(ITEMS, 2**31),
        "histogram: bins: expected fewer than 2^31 items, or jax_enable_x64 for int64 indices, got 2147483648",
    ),
    "flags huge": (
        lambda: SEGMENTS.flags(2**31),
        "Segments.flags: n: expected fewer than 2^31 items, or jax_enable_x64 for int64 indices, got 2147483648",
    ),
    "size beyond 64 bits": (
        lambda: mgpu.select(ITEMS, ITEMS > 2, size=2**70),
        "select: size: expected a static, non-negative integer below 2^63, got 1180591620717411303424",
    ),
}

UNDER_CHECKS = {
    "lengths as heads": (
        lambda: mgpu.segmented_reduce(ITEMS, np.int32([4, 2])),
        "segmented_reduce: heads: expected non-negative integers in non-decreasing order (Segments.from_lengths "
        "takes lengths), first broken at position 1, got 2",
    ),
    "ids as heads": (
        lambda: mgpu.segmented_reduce(ITEMS, np.int32([0, 0, 7, 7, 8, 8])),
        "segmented_reduce: heads: expected the positions where segments start, padded with one number "
        "(Segments.from_ids takes the segment of each item), first broken at position 3, got 7",
    ),
    "negative head": (
        lambda: mgpu.segmented_reduce(ITEMS, np.int32([-1, 2])),
        "segmented_reduce: heads: expected non-negative integers in non-decreasing order (Segments.from_lengths "
        "takes lengths), first broken at position 0, got -1",
    ),
    "count too large": (
        lambda: mgpu.segmented_reduce(ITEMS, HEADS, count=9),
        "segmented_reduce: count: expected an integer from 0 to 6, got 9",
    ),
    "count negative": (
        lambda: mgpu.reduce(ITEMS, count=-2),
        "reduce: count: expected an integer from 0 to 6, got -2",
    ),
    "ragged width": (
        lambda: RAGGED.to_dense(3),
        "to_dense: width: expected segments of at most 3 items, first broken at position 1, got 4",
    ),
    "from_dense lengths": (
        lambda: mgpu.from_dense(np.ones((2, 3)), np.int32([2, 4]), size=6),
        "from_dense: lengths: expected an integer from 0 to 3, first broken at position 1, got 4",
    ),
    "from_dense size small": (
        lambda: mgpu.from_dense(np.ones((2, 3)), np.int32([2, 3]), size=3),
        "from_dense: size: expected at most 3 results, got 5",
    ),
    "search swapped": (
        lambda: mgpu.sorted_search(SORTED, KEYS),
        "sorted_search: haystack: expected keys in ascending order, first broken at position 1, got 1",
    ),
    "needles unsorted": (
        lambda: mgpu.sorted_search(KEYS, SORTED),
        "sorted_search: needles: expected keys in ascending order, first broken at position 1, got 1",
    ),
    "search haystack unsorted": (
        lambda: mgpu.search(SORTED, KEYS),
        "search: haystack: expected keys in ascending order, first broken at position 1, got 1",
    ),
    "join unsorted": (
        lambda: mgpu.join(KEYS, SORTED, size=9),
        "join: a: expected keys in ascending order, first broken at position 1, got 1",
    ),
    "join result short": (
        lambda: mgpu.join(SORTED, SORTED, size=2),
        "join: size: expected at most 2 results, got 6",
    ),
    "asof unsorted": (
        lambda: mgpu.asof_join(KEYS, SORTED),
        "asof_join: a: expected keys in ascending order, first broken at position 1, got 1",
    ),
    "set unsorted": (
        lambda: mgpu.set_union(KEYS, SORTED),
        "set_union: a: expected keys in ascending order, first broken at position 1, got 1",
    ),
    "merge unsorted": (
        lambda: mgpu.merge(KEYS, SORTED),
        "merge: a: expected keys in ascending order, first broken at position 1, got 1",
    ),
    "insert fall": (
        lambda: mgpu.bulk_insert(ITEMS, np.int32([3, 1]), np.float32([7, 8])),
        "bulk_insert: indices: expected non-negative integers in non-decreasing order, first broken at position 1,"
        " got 1",
    ),
    "remove fall": (
        lambda: mgpu.bulk_remove(ITEMS, np.int32([3, 1])),
        "bulk_remove: indices: expected non-negative integers in increasing order, first broken at position 1, got 1",
    ),
    "expand fall": (
        lambda: mgpu.interval_expand(ITEMS, np.int32([0, 2, 1, 4, 5, 6]), 9),
        "interval_expand: offsets: expected non-negative integers in non-decreasing order, first broken at "
        "position 2, got 1",
    ),
    "expand lengths": (
        lambda: mgpu.interval_expand(ITEMS, np.int32([3, 1, 2, 1, 1, 1]), 9),
        "interval_expand: offsets: expected non-negative integers in non-decreasing order, first broken at "
        "position 1, got 1",
    ),
    "gather past": (
        lambda: mgpu.interval_gather(ITEMS, np.int32([0, 5]), np.int32([0, 3]), 9),
        "interval_gather: starts: expected intervals within an array of 6, first broken at position 1, got 5",
    ),
    "quantile 50": (
        lambda: mgpu.quantile(ITEMS, 50),
        "quantile: q: expected numbers from 0 to 1, got 50",
    ),
    "top_p 90": (
        lambda: mgpu.sample_logits(RANDOM_KEY, ITEMS[None], top_p=90.0),
        "sample_logits: top_p: expected numbers from 0 to 1, got 90",
    ),
    "temperature negative": (
        lambda: mgpu.sample_logits(RANDOM_KEY, ITEMS[None], temperature=-1.0),
        "sample_logits: temperature: expected a number of at least 0, got -1",
    ),
    "hist bins": (
        lambda: mgpu.histogram(ITEMS, np.float32([3, 1, 2])),
        "histogram: bins: expected keys in ascending order, first broken at position 1, got 1",
    ),
    "group size": (
        lambda: mgpu.group_by(KEYS, ITEMS, size=2),
        "group_by: size: expected at most 2 results, got 6",
    ),
    "inverse repeats": (
        lambda: mgpu.inverse_permutation(np.int32([0, 0, 1])),
        "inverse_permutation: order: expected distinct positions of 3 items, first broken at position 1, got 0",
    ),
}


def error_of(call):
    """Returns an error's first line, without the program's name, which newer JAX adds."""
    with pytest.raises(Exception, match=r"expected|Cannot determine") as caught:
        jax.block_until_ready(call())
    return str(caught.value).splitlines()[0].removeprefix("INVALID_ARGUMENT: ").split(" [executable_name=")[0]


@pytest.mark.parametrize("mistake", AT_ONCE)
def test_error_at_once(mistake):
    call, message = AT_ONCE[mistake]
    assert error_of(call) == message


@pytest.mark.parametrize("mistake", UNDER_CHECKS)
def test_error_under_checks(mistake):
    call, message = UNDER_CHECKS[mistake]
    jax.block_until_ready(call())
    with mgpu.checks():
        assert error_of(call) == message


def test_a_run_of_more_items_than_int32_counts_is_none():
    assert mgpu.run_starts(KEYS, size=3, least=2**40).count == 0


def test_narrow_indices_of_many_rows():
    rows = mgpu.Ragged.from_lengths(np.arange(300.0), np.ones(300, int))
    assert jax.jit(lambda i: rows[i].reduce())(jnp.int8([-1, 5])).tolist() == [299, 5]


def test_offsets_of_traced_numbers():
    assert jax.jit(lambda k: mgpu.Ragged(ITEMS, [0, k, 6]).lengths)(2).tolist() == [2, 4]
