"""Segments, compared with NumPy."""

from __future__ import annotations

import functools
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu import Segments
from tests.jaxprs import kernel_calls

N, M = 13, 4

# Starts and ends of M segments of N items: consecutive, with empty ones, after other items, and with gaps.
BOUNDS = {
    "full": ([0, 3, 4, 9], [3, 4, 9, 13]),
    "with empty ones": ([0, 0, 5, 5], [0, 5, 5, 7]),
    "behind items": ([2, 4, 4, 8], [4, 4, 8, 11]),
    "with gaps": ([1, 5, 7, 11], [3, 7, 10, 12]),
    "with gaps and empty ones": ([0, 6, 6, 10], [4, 6, 9, 10]),
    "empty": ([0, 0, 0, 0], [0, 0, 0, 0]),
}


def lengths_of(starts, ends):
    return Segments.from_lengths, (ends - starts,), {}


def offsets_of(starts, ends):
    return Segments.from_offsets, (np.append(starts, ends[-1]),), {}


def heads_of(starts, ends):
    return Segments.from_heads, (np.minimum(starts, N + 5 * (starts == ends[-1])),), {"count": ends[-1]}


def heads_and_ends_of(starts, ends):
    return Segments.from_heads, (starts,), {"ends": ends, "count": N}


def ids_of(starts, ends):
    ids = np.full(N, -1, np.int32)
    for i, (begin, end) in enumerate(zip(starts, ends, strict=True)):
        ids[begin:end] = i
    return functools.partial(Segments.from_ids, m=M), (ids,), {}


def flags_of(starts, ends):
    del ends
    return functools.partial(Segments.from_flags, m=M), (np.isin(np.arange(N), starts),), {}


def ranges_of(starts, ends):
    return Segments.from_ranges, (starts, ends), {}


# For each form: a function that returns the constructor and its arguments, and the bounds that it can express.
FORMS = {
    "lengths": (lengths_of, ["full", "with empty ones", "empty"]),
    "offsets": (offsets_of, ["full", "with empty ones", "empty"]),
    "heads": (heads_of, ["full", "with empty ones", "behind items"]),
    "heads and ends": (heads_and_ends_of, list(BOUNDS)),
    "ids": (ids_of, list(BOUNDS)),
    "flags": (flags_of, ["full"]),
    "ranges": (ranges_of, list(BOUNDS)),
}
MADE = [(form, bounds) for form, (_, all_bounds) in FORMS.items() for bounds in all_bounds]


def bounds_of(name):
    return tuple(np.array(x, np.int32) for x in BOUNDS[name])


def made(form, bounds, convert=lambda x: x):
    starts, ends = bounds_of(bounds)
    make, given, named = FORMS[form][0](starts, ends)
    return make(*map(convert, given), **{name: convert(x) for name, x in named.items()})


def rows_of(segments):
    return [(int(b), int(e)) for b, e in zip(segments.starts, segments.ends, strict=True)]


# ---- Every form of segments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "bounds"), MADE)
def test_each_form_gives_the_same_segments(form, bounds):
    starts, ends = bounds_of(bounds)
    full = ends > starts
    for convert in (lambda x: x, lambda x: np.asarray(x).tolist(), jnp.asarray):
        segments = made(form, bounds, convert)
        on_host = convert is not jnp.asarray
        assert isinstance(segments.starts, np.ndarray) == isinstance(segments.ends, np.ndarray) == on_host
        assert segments.number == M
        assert segments.starts.shape == segments.ends.shape == (M,)
        np.testing.assert_array_equal(segments.lengths, ends - starts)
        np.testing.assert_array_equal(segments.starts[full], starts[full])
        np.testing.assert_array_equal(segments.ends[full], ends[full])
        np.testing.assert_array_equal(segments.heads, segments.starts)
        assert np.all(np.diff(segments.starts) >= 0)
        assert segments.count == segments.ends[-1]
        ids = np.full(N, -1)
        for i, (begin, end) in enumerate(zip(starts, ends, strict=True)):
            ids[begin:end] = i
        np.testing.assert_array_equal(segments.ids(N), ids)
        np.testing.assert_array_equal(segments.ids(N, fill_value=99), np.where(ids < 0, 99, ids))
        np.testing.assert_array_equal(segments.flags(N), np.isin(np.arange(N), starts[full]))
        again = Segments.from_ids(segments.ids(N), M)
        np.testing.assert_array_equal(again.lengths, ends - starts)


@pytest.mark.parametrize("bounds", ["full", "with empty ones", "behind items"])
def test_offsets_of_segments_without_gaps(bounds):
    starts, ends = bounds_of(bounds)
    for convert in (np.asarray, jnp.asarray):
        np.testing.assert_array_equal(made("ranges", bounds, convert).offsets, np.append(starts, ends[-1]))
    gaps = made("ranges", "with gaps")
    with pytest.raises(ValueError, match=r"^Segments.offsets: segments: expected no gaps, got one from 3 on"):
        _ = gaps.offsets
    with mgpu.checks(), pytest.raises(jax.errors.JaxRuntimeError, match="segments: expected no gaps"):
        jax.block_until_ready(jax.jit(lambda s: s.offsets)(gaps))


def test_of_no_segments():
    for segments in (
        Segments.from_lengths([]),
        Segments.from_offsets([0]),
        Segments.from_heads([], count=3),
        Segments.from_ids([3, 4], 0),
        Segments.from_flags([True], 0),
        Segments.from_ranges([], []),
        Segments.from_offsets(jnp.array([0])),
        Segments.from_flags(jnp.array([True]), 0),
        Segments.from_ids(jnp.array([3, 4]), 0),
    ):
        assert segments.number == 0
        assert segments.count == 0
        np.testing.assert_array_equal(segments.offsets, [0])
        np.testing.assert_array_equal(segments.ids(3), [-1, -1, -1])
        np.testing.assert_array_equal(mgpu.segmented_scan(jnp.arange(3), segments), [0, 0, 0])
        np.testing.assert_array_equal(mgpu.segmented_softmax(jnp.ones(3), segments), [0, 0, 0])
        np.testing.assert_array_equal(mgpu.segmented_sort(jnp.arange(3)[::-1], segments), [2, 1, 0])
        assert mgpu.segmented_reduce(jnp.arange(3), segments).shape == (0,)


def test_flags_of_fewer_and_more_segments():
    flags = np.array([False, False, True, False, True])
    for convert in (np.asarray, jnp.asarray):
        few, many = (Segments.from_flags(convert(flags), m) for m in (2, 5))
        assert rows_of(few) == [(0, 2), (2, 4)]
        assert rows_of(many) == [(0, 2), (2, 4), (4, 5), (5, 5), (5, 5)]


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64", "int64"])
def test_the_largest_number_is_padding(dtype):
    largest = np.iinfo(dtype).max
    segments = Segments.from_heads(np.array([0, 3, largest], dtype), count=5)
    assert (segments.starts.tolist(), segments.ends.tolist()) == ([0, 3, 5], [3, 5, 5])
    ids = Segments.from_ids(np.array([0, 0, 1, largest], dtype), 2)
    assert (ids.starts.tolist(), ids.ends.tolist()) == ([0, 2], [2, 3])


def test_constructors_in_programs():
    ids = np.array([-1, 0, 0, 2, 2, 7, 3])
    makers = {
        "lengths": (Segments.from_lengths, np.array([2, 0, 3])),
        "offsets": (Segments.from_offsets, np.array([0, 2, 2, 5])),
        "heads": (lambda x: Segments.from_heads(x[:-1], count=x[-1]), np.array([1, 3, 9, 5])),
        "ids": (lambda x: Segments.from_ids(x, 4), ids),
        "flags": (lambda x: Segments.from_flags(x, 4), ids == 0),
        "ranges": (lambda x: Segments.from_ranges(x[:3], x[3:]), np.array([0, 3, 4, 2, 1, 9])),
    }
    for make, x in makers.values():
        expected = make(x)
        got = jax.jit(make)(x)
        mapped = jax.vmap(make)(jnp.stack([jnp.asarray(x)] * 2))
        assert jax.tree.structure(got) == jax.tree.structure(expected)
        for leaf in ("starts", "ends"):
            np.testing.assert_array_equal(getattr(got, leaf), getattr(expected, leaf))
            np.testing.assert_array_equal(getattr(mapped, leaf)[1], getattr(expected, leaf))


# ---- Every function of segments, by each form ------------------------------------------------------------------------

X = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0, 5.0, 3.0, 5.0, 8.0, 9.0], np.float32)
ROWS = np.array([2, 0, 7, 1, 1, 3, 5, 4, 6, 2, 9, 0, 4], np.int32)
ORDER = np.array([3, 0, 0, -1], np.int32)
NEEDLES, NEEDLE_IDS = np.array([0.0, 3.0, 5.0, 7.0], np.float32), np.array([0, 1, 2, 3], np.int32)


def softmax(x):
    powers = np.exp(x - x.max()) if len(x) else x
    return powers / powers.sum()


def per_item(of_row, fill=0.0):
    """Returns a function that puts the results of `of_row` for each row's items at the items' places."""

    def expected(x, rows):
        out = np.full(N, fill, np.float64)
        for begin, end in rows:
            out[begin:end] = of_row(x[begin:end])
        return out

    return expected


def per_row(of_row):
    return lambda x, rows: np.array([of_row(x[begin:end]) for begin, end in rows])


def left_there(of_row):
    """Does the same as per_item, but items in no segment keep their values."""

    def expected(x, rows):
        out = x.astype(np.float64)
        for begin, end in rows:
            out[begin:end] = of_row(x[begin:end])
        return out

    return expected


def sorted_indices(x, rows):
    order = np.arange(N)
    for begin, end in rows:
        order[begin:end] = begin + np.argsort(x[begin:end], kind="stable")
    return order


def first_of_runs(x, rows):
    starts = [i for begin, end in rows for i in range(begin, end) if i == begin or x[i] != x[i - 1]]
    heads = [sum(i < begin for i in starts) for begin, _ in rows]
    return [np.array(starts + [N] * (N - len(starts))), np.array(heads), np.array(len(starts))]


def taken(x, rows):
    parts = [x[slice(*rows[i])] if i >= 0 else x[:0] for i in ORDER]
    lengths = np.array([len(part) for part in parts])
    packed = np.concatenate(parts)
    return [np.append(packed, np.zeros(30 - len(packed))), np.cumsum(lengths) - lengths, np.array(len(packed))]


def dense(x, rows):
    return np.array([np.append(x[b:e], np.full(9 - (e - b), -1.0)) for b, e in rows])


def shifted(x):
    return np.append(-1.0, x[:-1])[: len(x)]


def top(x, rows):
    values = [np.sort(x[b:e])[::-1][:2] for b, e in rows]
    order = [b + np.argsort(-x[b:e], kind="stable")[:2] for b, e in rows]
    found = [[np.append(row, np.full(2 - len(row), fill)) for row in kind] for kind, fill in ((values, 0), (order, -1))]
    return [*map(np.array, found), np.array([len(row) for row in values])]


def searched(x, rows):
    return np.array(
        [b + np.searchsorted(np.sort(x[b:e]), needle) for (b, e), needle in zip(rows, NEEDLES, strict=True)]
    )


CALLS = {
    "segmented_reduce": (mgpu.segmented_reduce, per_row(np.sum)),
    "segmented_reduce max": (
        lambda x, s: mgpu.segmented_reduce(x, s, "max"),
        per_row(lambda x: max(x, default=-np.inf)),
    ),
    "segmented_reduce function": (
        lambda x, s: mgpu.segmented_reduce(x, s, lambda a, b: a + b, identity=0.0, map=lambda x: x * x),
        per_row(lambda x: (x * x).sum()),
    ),
    "segmented_reduce weighted rows": (
        lambda x, s: mgpu.segmented_reduce(x[:6], s, indices=ROWS[: len(x)], weights=X[: len(x)]),
        lambda x, rows: per_row(np.sum)(np.where(ROWS < 6, x[np.minimum(ROWS, 5)] * X, 0), rows),
    ),
    "segmented_reduce rows": (
        lambda x, s: mgpu.segmented_reduce(x, s, "argmax", indices=ROWS[: len(x)]),
        lambda x, rows: np.array([b + np.argmax(x[ROWS[b:e]]) if e > b else -1 for b, e in rows]),
    ),
    "segmented_scan": (mgpu.segmented_scan, per_item(np.cumsum)),
    "segmented_scan reverse": (
        lambda x, s: mgpu.segmented_scan(x, s, "max", reverse=True),
        per_item(lambda x: np.maximum.accumulate(x[::-1])[::-1]),
    ),
    "segmented_sort": (mgpu.segmented_sort, left_there(np.sort)),
    "segmented_sort less": (
        lambda x, s: mgpu.segmented_sort(x, s, less=lambda a, b: a > b),
        left_there(lambda x: np.sort(x)[::-1]),
    ),
    "segmented_sort_indices": (lambda x, s: mgpu.segmented_sort_indices(x, s)[1], sorted_indices),
    "segmented_softmax": (mgpu.segmented_softmax, per_item(softmax)),
    "segmented_log_softmax": (mgpu.segmented_log_softmax, per_item(lambda x: np.log(softmax(x)))),
    "segmented_top_k": (lambda x, s: list(mgpu.segmented_top_k(x, s, 2)), top),
    "segmented_quantile": (
        lambda x, s: mgpu.segmented_quantile(x, s, 0.3),
        per_row(lambda x: np.quantile(x, 0.3) if len(x) else np.nan),
    ),
    "segment_ids": (lambda x, s: mgpu.segment_ids(s, len(x)), lambda x, rows: ids_of(*np.array(rows).T)[1][0]),
    "to_dense": (lambda x, s: mgpu.to_dense(x, s, 9, fill_value=-1), dense),
    "take_segments": (lambda x, s: list(mgpu.take_segments(x, s, ORDER, size=30)), taken),
    "run_starts": (lambda x, s: list(mgpu.run_starts(x // 3, s)), lambda x, rows: first_of_runs(x // 3, rows)),
    "rank": (
        mgpu.rank,
        per_item(lambda x: np.searchsorted(np.sort(x), x) + 1),
    ),
    "rank dense": (
        lambda x, s: mgpu.rank(x, s, "dense"),
        per_item(lambda x: np.unique(x, return_inverse=True)[1] + 1),
    ),
    "segmented_shift": (lambda x, s: mgpu.segmented_shift(x, s, 1, -1), per_item(shifted, -1.0)),
    "segmented_search": (
        lambda x, s: mgpu.segmented_search(NEEDLES, NEEDLE_IDS, mgpu.segmented_sort(x, s), s),
        searched,
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_function_by_each_form(name):
    call, expected = CALLS[name]
    program = jax.jit(call)
    for form, bounds in MADE:
        segments = made(form, bounds)
        wanted = jax.tree.leaves(expected(X, rows_of(segments)))
        results = [program(X, segments)] + [call(X, segments)] * (form == "ranges")
        for got in results:
            for one, other in zip(jax.tree.leaves(got), wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=f"{form} {bounds}")


@pytest.mark.parametrize("name", CALLS)
def test_batches_of_segments(name):
    call, expected = CALLS[name]
    each = [made("ranges", bounds, jnp.asarray) for bounds in BOUNDS]
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    results = jax.jit(jax.vmap(call, in_axes=(None, 0)))(X, batch)
    for i, segments in enumerate(each):
        wanted = jax.tree.leaves(expected(X, rows_of(segments)))
        for one, other in zip(jax.tree.leaves(results), wanted, strict=True):
            np.testing.assert_allclose(one[i], other, rtol=1e-5, atol=1e-6)


WITH_DERIVATIVES = [
    "segmented_reduce", "segmented_reduce max", "segmented_reduce function", "segmented_scan", "segmented_softmax",
    "segmented_log_softmax", "segmented_quantile", "to_dense", "segmented_shift",
]  # fmt: skip


@pytest.mark.parametrize("name", WITH_DERIVATIVES)
def test_items_in_no_segment_have_no_gradient(name):
    segments = made("ranges", "with gaps")
    inside = np.asarray(segments.ids(N)) >= 0

    def weighted(x, s):
        results = CALLS[name][0](x, s).ravel()
        return jnp.vdot(jnp.sin(jnp.arange(float(results.size))), results)

    gradient = jax.jit(jax.grad(weighted))

    clean = gradient(X, segments)
    assert np.any(clean != 0)
    np.testing.assert_array_equal(clean[~inside], 0)
    for poison in (np.nan, np.inf, -np.inf):
        np.testing.assert_array_equal(gradient(np.where(inside, X, np.float32(poison)), segments), clean)


# ---- Values on the host, and mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
def test_segments_past_the_last_item(name):
    call = CALLS[name][0]
    x, past = X[:10], made("ranges", "full")
    message = f"^{re.escape(name.split()[0])}: heads: expected Segments within 10 items, got segment 3 from 9 to 13"
    if name == "segmented_search":
        message = message.replace("search", "sort")
    with pytest.raises(ValueError, match=message):
        call(x, past)
    with pytest.raises(ValueError, match=message):
        jax.jit(lambda x: call(x, past))(x)
    call(X, past)
    with mgpu.checks(), pytest.raises(jax.errors.JaxRuntimeError, match="heads: expected Segments within 10 items"):
        jax.block_until_ready(jax.jit(call)(x, past))


def test_lengths_that_are_something_else():
    """The error suggests the constructor that was probably meant."""
    for given, meant in (
        ([0, 2, 5], "Segments.from_offsets takes offsets"),
        ([0, 0, 1, 2, 3], "Segments.from_ids takes"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"expected Segments within 5 items ({meant}")):
            mgpu.segmented_reduce(jnp.arange(5), Segments.from_lengths(given))


def test_segments_replace_counts_ends_and_flags():
    segments = Segments.from_lengths([2, 3])
    x = jnp.arange(5.0)
    for name, call in {
        "segmented_reduce: count": lambda: mgpu.segmented_reduce(x, segments, count=3),
        "segmented_reduce: ends": lambda: mgpu.segmented_reduce(x, segments, ends=[2, 5]),
        "segmented_scan: ends": lambda: mgpu.segmented_scan(x, segments, ends=jnp.array([2, 5])),
        "segmented_sort: heads and flags": lambda: mgpu.segmented_sort(x, segments, flags=x > 2),
        "segmented_softmax: count": lambda: mgpu.segmented_softmax(x, segments, count=np.int32(3)),
        "segmented_search: haystack_count": lambda: mgpu.segmented_search(x, [0] * 5, x, segments, haystack_count=3),
        "rank: ends": lambda: mgpu.rank(x, ends=[3]),
        "run_starts: ends": lambda: mgpu.run_starts(x, ends=[3]),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: expected "):
            call()


MISTAKES = {
    "from_lengths: lengths: expected a number of at least 0": lambda c: Segments.from_lengths(c([2, -1, 3])),
    "from_offsets: offsets: .*from_lengths takes lengths": lambda c: Segments.from_offsets(c([2, 1, 3])),
    "from_offsets: offsets: .*from_lengths takes lengths.*, got 1": lambda c: Segments.from_offsets(c([0, 2, 1])),
    "from_heads: heads: .*from_lengths takes lengths": lambda c: Segments.from_heads(c([2, 1, 3]), count=6),
    "from_heads: ends: expected segments that do not overlap": (
        lambda c: Segments.from_heads(c([0, 2]), ends=c([3, 4]))
    ),
    "from_ranges: ends: expected segments that do not overlap": lambda c: Segments.from_ranges(c([0, 2]), c([3, 4])),
    "from_ids: ids: expected ids in non-decreasing order": lambda c: Segments.from_ids(c([0, 1, 0]), 2),
    "from_ids: ids: expected ids in non-decreasing order, and": lambda c: Segments.from_ids(c([0, -1, 0]), 2),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_reported(message):
    make = MISTAKES[message]
    with pytest.raises(ValueError, match=f"^Segments.{message}"):
        make(lambda x: x)
    make(jnp.array)
    with mgpu.checks(), pytest.raises(jax.errors.JaxRuntimeError, match=f"Segments.{message}"):
        jax.block_until_ready(jax.jit(make, static_argnums=0)(jnp.array))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: Segments.from_heads([0, 2]),
            ValueError,
            "from_heads: ends and count: expected one of them, got neither",
        ),
        (
            lambda: Segments.from_heads([0, 2], count=-1),
            ValueError,
            "from_heads: count: expected an integer of at least 0",
        ),
        (lambda: Segments.from_heads([0, 2], count=[5]), ValueError, "from_heads: count: expected an integer scalar"),
        (lambda: Segments.from_heads([0, 2], count=1.5), TypeError, "from_heads: count: expected an integer scalar"),
        (lambda: Segments.from_heads([0.5], count=2), TypeError, "from_heads: heads: expected integers, got float64"),
        (lambda: Segments.from_lengths([[1, 2]]), ValueError, "from_lengths: lengths: expected a 1-D array"),
        (lambda: Segments.from_lengths("ab"), TypeError, "from_lengths: lengths: expected an array of numbers"),
        (lambda: Segments.from_offsets([]), ValueError, "from_offsets: offsets: expected the start of each segment"),
        (lambda: Segments.from_ids([0, 1], 2.5), TypeError, "from_ids: m: expected a static, non-negative integer"),
        (lambda: Segments.from_flags([0, 1], 2), TypeError, r"from_flags: flags: expected bool\[n\]"),
        (
            lambda: Segments.from_ranges([0, 1], [2]),
            ValueError,
            "from_ranges: ends: expected the length of starts, 2",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=f"^Segments.{message}"):
        call()


# ---- A pytree --------------------------------------------------------------------------------------------------------


def test_values_are_no_part_of_a_program():
    traced = []

    @jax.jit
    def program(x, segments):
        traced.append(1)
        return mgpu.segmented_reduce(x, segments)

    for bounds in BOUNDS:
        segments = made("ranges", bounds)
        np.testing.assert_allclose(program(X, segments), per_row(np.sum)(X, rows_of(segments)))
    assert len(traced) == 1


def test_segments_in_loops_and_pickles():
    segments = Segments.from_lengths([2, 3])

    def step(carry, _):
        return Segments.from_lengths(carry.lengths[::-1]), mgpu.segmented_reduce(jnp.arange(5), carry)

    last, sums = jax.lax.scan(step, segments, None, length=3)
    np.testing.assert_array_equal(sums, [[1, 9], [3, 7], [1, 9]])
    assert rows_of(last) == [(0, 3), (3, 5)]
    again = pickle.loads(pickle.dumps(segments))
    assert repr(again) == repr(segments) == "Segments(starts=[0, 2], ends=[2, 5])"
    assert repr(jax.eval_shape(lambda: segments)) == "Segments(starts=int32[2], ends=int32[2])"
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(segments)]
    assert paths == [".starts", ".ends"]


@pytest.mark.parametrize(("make", "scans"), [(Segments.from_lengths, 1), (Segments.from_offsets, 0)])
def test_segments_one_after_the_other_are_not_put_in_order(make, scans):
    def summed(x, given):
        return mgpu.segmented_reduce(x, make(given))

    names = [call.primitive.name for call in kernel_calls(summed, jnp.arange(5), jnp.array([0, 2, 3]))]
    assert names == ["mgpu_scan"] * scans + ["mgpu_segmented_reduce"]


def test_properties_of_batched_segments():
    batch = jax.vmap(Segments.from_lengths)(jnp.array([[2, 3], [1, 0]]))
    assert batch.number == 2
    np.testing.assert_array_equal(batch.lengths, [[2, 3], [1, 0]])
    np.testing.assert_array_equal(batch.count, [5, 1])
    np.testing.assert_array_equal(batch.offsets, [[0, 2, 5], [0, 1, 1]])
