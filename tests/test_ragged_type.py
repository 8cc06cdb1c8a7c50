"""Ragged, compared with lists of rows."""

from __future__ import annotations

import operator
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_mgpu as mgpu
from tests.oracle import same_bits

ROWS = [[3.0, 1.0, 3.0], [], [2.0, 5.0], [4.0]]


def floats(rows):
    return [np.array(row, np.float32) for row in rows]


@pytest.fixture
def ragged():
    return mgpu.Ragged.from_rows(ROWS, size=9)


def same_rows(got, expected, same=same_bits):
    rows = got.to_rows()
    assert len(rows) == len(expected) == len(got)
    for row, want in zip(rows, expected, strict=True):
        same(row, np.asarray(want))


def close(got, expected):
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


# ---- Conversions -----------------------------------------------------------------------------------------------------


def test_what_it_is(ragged):
    same_rows(ragged, floats(ROWS))
    assert (ragged.capacity, len(ragged), int(ragged.count)) == (9, 4, 6)
    np.testing.assert_array_equal(ragged.offsets, [0, 3, 3, 5, 6])
    np.testing.assert_array_equal(ragged.heads, [0, 3, 3, 5])
    np.testing.assert_array_equal(ragged.lengths, [3, 0, 2, 1])
    np.testing.assert_array_equal(ragged.segment_ids, [0, 0, 0, 2, 2, 3, -1, -1, -1])


def test_ways_to_make_one(ragged):
    same_rows(mgpu.Ragged.from_lengths(ragged.values, jnp.array([3, 0, 2, 1])), floats(ROWS))
    dense = ragged.to_dense(3, fill_value=-1)
    expected = np.full((4, 3), -1, np.float32)
    for row, values in zip(expected, ROWS, strict=True):
        row[: len(values)] = values
    same_bits(dense, expected)
    same_rows(mgpu.Ragged.from_dense(dense, ragged.lengths), floats(ROWS))
    same_rows(
        mgpu.Ragged.from_dense(dense, ragged.lengths, size=4), [*floats(ROWS[:2]), np.float32([2]), np.float32([])]
    )
    same_rows(mgpu.Ragged.from_rows(floats(ROWS)), floats(ROWS))
    trees = [{"a": np.arange(n), "b": np.ones((n, 2), np.int8)} for n in (2, 0, 3)]
    made = mgpu.Ragged.from_rows(trees)
    for got, want in zip(made.to_rows(), trees, strict=True):
        np.testing.assert_array_equal(got["a"], want["a"])
        same_bits(got["b"], want["b"])


def test_rows_of_ids_ranges_and_segments(ragged):
    values = jnp.arange(6.0, dtype=jnp.float32)
    ids = np.array([0, 0, -1, 2, 2, 7])
    expected = [np.float32([0, 1]), np.float32([]), np.float32([3, 4])]
    for given in (ids, ids.tolist(), jnp.asarray(ids)):
        same_rows(mgpu.Ragged.from_ids(values, given, 3), expected)
    same_rows(mgpu.Ragged.from_ranges(values, [0, 2, 3], [2, 2, 5]), expected)
    same_rows(mgpu.Ragged(values, mgpu.Segments.from_ranges([0, 2, 3], [2, 2, 5])), expected)
    same_rows(mgpu.Ragged(ragged.values, ragged.segments), floats(ROWS))


def with_gaps():
    """Returns a Ragged of ROWS, with other items before, between and after them."""
    return mgpu.Ragged.from_ranges(np.float32([9, 3, 1, 3, 9, 9, 2, 5, 4, 9]), [1, 5, 6, 8], [4, 5, 8, 9])


def test_rows_with_gaps_are_as_those_without(ragged):
    gaps = with_gaps()
    assert repr(gaps) == repr(ragged)
    same_rows(gaps, floats(ROWS))
    assert (gaps.capacity, len(gaps)) == (10, 4)
    np.testing.assert_array_equal(gaps.lengths, ragged.lengths)
    np.testing.assert_array_equal(gaps.segment_ids, [-1, 0, 0, 0, -1, -1, 2, 2, 3, -1])
    with pytest.raises(ValueError, match=r"^Segments\.offsets: segments: expected no gaps, got one from 4 on"):
        _ = gaps.offsets
    per_row = np.array([2.0, 7.0, 3.0, 4.0], np.float32)
    for function in (
        lambda r: r.sort(),
        lambda r: r.sort(descending=True),
        lambda r: r.argsort(),
        lambda r: r.scan(),
        lambda r: r.softmax(),
        lambda r: r.log_softmax(),
        lambda r: r.unique(),
        lambda r: r.take([2, 0, 0]),
        lambda r: r.select(r > 2),
        lambda r: r[[3, 0]],
        lambda r: r[::2],
        lambda r: r / per_row + r,
        lambda r: r.astype(jnp.int32) * 2,
        lambda r: mgpu.Ragged.concatenate([r, r]),
        lambda r: r.map(lambda x: {"x": x, "y": -x}),
    ):
        got, expected = (jax.tree.leaves(function(r).to_rows()) for r in (gaps, ragged))
        for row, want in zip(got, expected, strict=True):
            close(row, want)
    for function in (
        lambda r: r.reduce("max"),
        lambda r: r.sum(),
        lambda r: r.mean(),
        lambda r: r.quantile([0.3, 0.5]),
        lambda r: r.top_k(2).values,
        lambda r: r.to_dense(4),
    ):
        close(function(gaps), function(ragged))
    with pytest.raises(ValueError, match=r"^Ragged \+: other: expected 4 rows and room for 10 items, got 4 and 9"):
        gaps + ragged
    other = mgpu.Ragged(gaps.values, [0, 3, 3, 5, 6])
    with pytest.raises(ValueError, match=r"^Ragged \+: other: expected rows that start at the same places, 1 in row 0"):
        gaps + other


@pytest.mark.parametrize("place", [0, 2])
def test_an_empty_row_within_another_one(place):
    values = jnp.array([3.0, 1.0, 3.0, 2.0, 5.0])
    rows = mgpu.Ragged.from_ranges(values, [0, place, 3], [3, place, 5])
    same_rows(rows, floats([[3, 1, 3], [], [2, 5]]))
    same_rows(rows + jnp.array([10.0, 20.0, 30.0]), floats([[13, 11, 13], [], [32, 35]]))
    same_rows(rows.unique(), floats([[1, 3], [], [2, 5]]))
    same_rows(rows.select(values > 2), floats([[3, 3], [], [5]]))


def test_padding_does_not_spoil_gradients():
    """Items in no row are divided by 1, not by 0."""
    gaps = with_gaps()
    by_values = jax.grad(lambda x: (gaps.with_values(x) / jnp.array([2.0, 7, 3, 4])).sum().sum())(gaps.values)
    inside = np.asarray(gaps.segment_ids) >= 0
    assert np.all(by_values[~inside] == 0)
    np.testing.assert_allclose(by_values[inside], 1 / np.array([2.0, 2, 2, 3, 3, 4]))


def test_rows_put_together(ragged):
    rows = floats(ROWS)
    same_rows(mgpu.Ragged.concatenate([ragged, with_gaps(), ragged[:0]]), rows + rows)
    joined = jax.jit(lambda a, b: mgpu.Ragged.concatenate([a, b]))(ragged, ragged)
    same_rows(joined, rows + rows)
    np.testing.assert_array_equal(joined.offsets, [0, 3, 3, 5, 6, 9, 9, 11, 12])
    tree = ragged.map(lambda x: {"x": x, "y": (x, x > 2)})
    for row, want in zip(mgpu.Ragged.concatenate([tree, tree]).to_rows(), rows + rows, strict=True):
        same_bits(row["y"][0], want)
    for parts, got in (([], "none"), ([ragged, 3], "3")):
        with pytest.raises(TypeError, match=f"^Ragged.concatenate: parts: expected at least one Ragged.*, got {got}"):
            mgpu.Ragged.concatenate(parts)
    with pytest.raises(ValueError, match=r"^Ragged\.concatenate: parts: expected items of one structure"):
        mgpu.Ragged.concatenate([ragged, tree])


def test_comparisons_have_no_truth_value(ragged):
    """A Ragged has a length, by which Python would take each comparison of rows for true."""
    same, message = ragged + 0, "^Ragged: bool: expected one truth value, got a Ragged of {} rows"
    for one in (ragged == same, ragged != same, ragged < 2, ragged, ragged[:0]):
        with pytest.raises(TypeError, match=message.format(len(one))):
            assert one


def test_rows_of_awkward_arrays(ragged):
    ak = pytest.importorskip("awkward")
    for r in (ragged, with_gaps(), ragged[::-1]):
        array = r.to_awkward()
        assert array.tolist() == [row.tolist() for row in r.to_rows()]
        same_rows(mgpu.Ragged.from_awkward(array), r.to_rows())
    tree = ragged.map(lambda x: {"x": x, "y": (jnp.stack([x, x]), x > 2)})
    again = mgpu.Ragged.from_awkward(tree.to_awkward())
    assert repr(again) == repr(tree)
    same_rows(mgpu.Ragged.from_awkward(ak.Array([[1, 2], [], [3]])[1:]), [np.int32([]), np.int32([3])])
    for array in ([1, 2], [[1, None]], [[[1]], []], [["a"]], [None, [1]]):
        with pytest.raises(TypeError, match=r"^Ragged\.from_awkward: array: expected .*lists"):
            mgpu.Ragged.from_awkward(ak.Array(array))


def test_rows_of_arrow_arrays(ragged):
    pa = pytest.importorskip("pyarrow")
    for r in (ragged, with_gaps(), ragged[::-1]):
        array = r.to_arrow()
        assert array.to_pylist() == [row.tolist() for row in r.to_rows()]
        same_rows(mgpu.Ragged.from_arrow(array), r.to_rows())
    tree = ragged.map(lambda x: {"x": x, "y": jnp.stack([x, x])})
    assert repr(mgpu.Ragged.from_arrow(tree.to_arrow())) == repr(tree)
    chunks = pa.chunked_array([pa.array([[1, 2], [3]]), pa.array([[4, 5], [6]])[1:]])
    same_rows(mgpu.Ragged.from_arrow(chunks), [np.int32([1, 2]), np.int32([3]), np.int32([6])])
    for array in (pa.array([1]), pa.array([["a"]]), [[1]]):
        with pytest.raises(TypeError, match=r"^Ragged\.from_arrow: array: expected "):
            mgpu.Ragged.from_arrow(array)
    for array in (pa.array([[1, None]]), pa.array([[1], None])):
        with pytest.raises(ValueError, match=r"^Ragged\.from_arrow: array: expected no nulls, got 1 of"):
            mgpu.Ragged.from_arrow(array)


def test_packages_that_are_not_there(ragged, monkeypatch):
    for name, call in (("awkward", ragged.to_awkward), ("pyarrow", ragged.to_arrow)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match=f"expected the package {name}, got none: pip install {name}"):
            call()


def test_any_iterable_of_rows(ragged):
    same_rows(mgpu.Ragged.from_rows(row for row in floats(ROWS)), floats(ROWS))
    same_rows(mgpu.Ragged.from_rows(np.ones((2, 3), np.float32)), [np.ones(3, np.float32)] * 2)
    same_rows(mgpu.Ragged.from_rows(ragged), floats(ROWS))
    for dtype in (np.uint8, np.int8, np.int64, np.uint64):
        lengths = np.array([3, 0, 2, 1], dtype)
        same_rows(mgpu.Ragged.from_lengths(np.resize(ragged.values, 1000), lengths), floats(ROWS))


INDICES = {
    "slice": slice(1, 3),
    "reversed": slice(None, None, -1),
    "none": slice(4, None),
    "list": [3, 0, -2, 0, 0, 2, 2],
    "array": np.array([1, -1, 0], np.int8),
    "device": jnp.array([2, -4, 0]),
    "mask": np.array([True, False, False, True]),
    "device mask": jnp.array([True, True, False, True]),
    "empty": np.zeros(0, np.int32),
}


@pytest.mark.parametrize("name", INDICES)
def test_rows_by_index(ragged, name):
    index = INDICES[name]
    expected = [floats(ROWS)[i] for i in np.arange(4)[np.asarray(index) if not isinstance(index, slice) else index]]
    same_rows(ragged[index], expected)
    if isinstance(index, slice):
        same_rows(jax.jit(lambda r: r[index])(ragged), expected)
    elif np.asarray(index).dtype != bool:
        traced = jax.jit(lambda r, i: r[i])(ragged, np.asarray(index, np.int32))
        kept = np.concatenate([*expected, np.zeros(0, np.float32)])[:9]  # there is room for as many items as before
        same_bits(np.concatenate([*traced.to_rows(), np.zeros(0, np.float32)]), kept)


def test_one_row_and_iteration(ragged):
    for i in range(-4, 4):
        same_bits(ragged[i], floats(ROWS)[i])
        same_bits(ragged[np.int8(i)], floats(ROWS)[i])
    assert [row.tolist() for row in ragged] == ROWS
    tree = ragged.map(lambda x: {"a": x, "b": jnp.stack([x, x])})
    assert [row["b"].shape for row in tree] == [(3, 2), (0, 2), (2, 2), (1, 2)]
    gradient = jax.grad(lambda x: (ragged.with_values(x)[2] ** 2).sum())(ragged.values)
    assert gradient.tolist() == [0, 0, 0, 4, 10, 0, 0, 0, 0]


def test_a_ragged_is_no_array(ragged):
    for call in (
        np.asarray,
        jnp.asarray,
        jnp.exp,
        np.exp,
        lambda r: np.add(np.ones(4), r),
        jnp.sum,
        jax.nn.relu,
        lambda r: jnp.add(r, 1),
        lambda r: np.array([r]),
    ):
        with pytest.raises(TypeError, match=r"got a Ragged|of a Ragged") as caught:
            call(ragged)
        assert "(.map(function) applies a function to its items; " in str(caught.value)
    with pytest.raises(TypeError, match="sort: keys: expected an array of numbers, got Ragged"):
        mgpu.sort(ragged)


def test_repr(ragged):
    assert repr(ragged) == "Ragged([[3., 1., 3.], [], [2., 5.], [4.]], float32)"
    assert repr(ragged > 2) == "Ragged([[True, False, True], [], [False, True], [True]], bool)"
    many = mgpu.Ragged(jnp.arange(80, dtype=jnp.int32), np.arange(0, 81, 8))
    assert repr(many).startswith("Ragged([[0, 1, 2, ..., 5, 6, 7], [8, 9, 10, ..., 13, 14, 15], [16,")
    assert repr(many).count("...") == 7
    tree = mgpu.Ragged({"a": jnp.arange(3, dtype=jnp.int32), "b": jnp.zeros((3, 1))}, [0, 2, 2])
    assert repr(tree) == "Ragged({'a': [[0, 1], []], int32, 'b': [[[0.], [0.]], []], float32})"
    shown = []
    jax.jit(lambda r: shown.append(repr(r)))(ragged)
    batch = jax.tree.map(lambda x: jnp.stack([x, x]), ragged)
    assert [*shown, repr(batch)] == [
        "Ragged(float32[9], Segments(starts=int32[4], ends=int32[4]))",
        "Ragged(float32[2,9], Segments(starts=[[0, 3, 3, 5], [0, 3, 3, 5]], ends=[[3, 3, 5, 6], [3, 3, 5, 6]]))",
    ]
    repr(jax.tree.structure(ragged).unflatten([None] * 3))
    repr(mgpu.Ragged(jax.random.split(jax.random.key(0), 3), [0, 2]))


# ---- Item by item ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "eq", "ne"]
)
def test_arithmetic(ragged, name):
    function = getattr(operator, name)
    same = close if name in ("truediv", "pow") else same_bits  # rounding depends on the device
    other = mgpu.Ragged.from_rows([[1.0, 2.0, 4.0], [], [2.0, 3.0], [4.0]], size=9)
    per_row = np.array([2.0, 7.0, 3.0, 4.0], np.float32)
    rows = floats(ROWS)
    same_rows(function(ragged, other), [function(a, b) for a, b in zip(rows, other.to_rows(), strict=True)], same)
    same_rows(function(ragged, 2.0), [function(a, np.float32(2)) for a in rows], same)
    same_rows(function(2.0, ragged), [function(np.float32(2), a) for a in rows], same)
    for given in (per_row, jnp.asarray(per_row)):
        same_rows(function(ragged, given), [function(a, b) for a, b in zip(rows, per_row, strict=True)], same)
        same_rows(function(given, ragged), [function(b, a) for a, b in zip(rows, per_row, strict=True)], same)


def test_bits_and_signs(ragged):
    high, low = ragged > 2, ragged < 4
    for name in ("and", "or", "xor"):
        function = getattr(operator, f"__{name}__")
        same_rows(function(high, low), [function(a, b) for a, b in zip(high.to_rows(), low.to_rows(), strict=True)])
    same_rows(~high, [~row for row in high.to_rows()])
    same_rows(-ragged, [-row for row in floats(ROWS)])
    same_rows(abs(-ragged), floats(ROWS))


def test_rows_of_rows_and_pytrees(ragged):
    wide = ragged.map(lambda x: jnp.stack([x, 2 * x]))
    same_rows(wide * np.arange(4, dtype=np.float32), [np.stack([r, 2 * r], 1) * i for i, r in enumerate(floats(ROWS))])
    same_rows(wide * np.ones((4, 2), np.float32), wide.to_rows())
    same_rows(ragged * np.array([[1, 2]] * 4, np.float32), wide.to_rows())
    tree = ragged.map(lambda x: {"x": x, "y": (x > 2, x)})
    doubled = (tree + tree).values
    np.testing.assert_array_equal(doubled["x"], 2 * ragged.values)
    np.testing.assert_array_equal((tree * 2).values["y"][1], 2 * ragged.values)


def test_map_takes_one_item(ragged):
    same_rows(ragged.map(lambda x: x[None].sum()), floats(ROWS))
    same_rows(ragged.map(lambda x: 1), [np.ones(len(row), np.int32) for row in ROWS])


# ---- Row by row ------------------------------------------------------------------------------------------------------


def test_rows_sorted_reduced_scanned(ragged):
    rows = floats(ROWS)
    same_rows(ragged.sort(), [np.sort(row) for row in rows])
    same_rows(ragged.sort(descending=True), [np.sort(row)[::-1] for row in rows])
    same_bits(ragged.reduce(), np.array([row.sum() for row in rows], np.float32))
    same_bits(ragged.reduce("max"), np.array([row.max(initial=-np.inf) for row in rows], np.float32))
    same_rows(ragged.scan(), [np.cumsum(row) for row in rows])
    same_rows(ragged.argsort(), [np.argsort(row, kind="stable").astype(np.int32) for row in rows])
    same_rows(ragged.argsort(descending=True), [np.argsort(-row, kind="stable").astype(np.int32) for row in rows])
    same_bits(ragged.sum(), ragged.reduce())
    close(ragged.mean(), np.array([row.mean() if len(row) else np.nan for row in rows], np.float32))
    same_bits(ragged.min(), np.array([row.min(initial=np.inf) for row in rows], np.float32))
    same_bits(ragged.max(), np.array([row.max(initial=-np.inf) for row in rows], np.float32))
    middle = ragged.quantile([0.25, 0.5])
    close(middle, np.array([np.quantile(r, [0.25, 0.5]) if len(r) else [np.nan] * 2 for r in rows], np.float32).T)
    assert (ragged.dtype, ragged.astype(jnp.int8).dtype) == (np.float32, np.int8)
    same_rows(ragged.scan(exclusive=True), [np.cumsum(row) - row for row in rows])
    same_rows(ragged.unique(), [np.unique(row) for row in rows])
    best = ragged.top_k(2)
    same_bits(best.values, np.array([[3, 3], [0, 0], [5, 2], [4, 0]], np.float32))
    np.testing.assert_array_equal(best.count, [2, 0, 2, 1])
    for got, row in zip(ragged.softmax().to_rows(), rows, strict=True):
        np.testing.assert_allclose(got, np.exp(row) / np.exp(row).sum(), rtol=1e-6)
    for got, row in zip(ragged.log_softmax().to_rows(), rows, strict=True):
        if not len(row):
            continue
        np.testing.assert_allclose(got, row - np.log(np.exp(row).sum()), rtol=1e-5, atol=1e-6)


def test_rows_taken_and_items_selected(ragged):
    rows = floats(ROWS)
    same_rows(ragged.take(jnp.array([2, 0, 1])), [rows[2], rows[0], rows[1]])
    same_rows(ragged.take(jnp.array([3, 4, 3]), size=2), [rows[3], rows[1], rows[3]])
    same_rows(ragged.take(jnp.array([2, 0, 2]), size=4), [rows[2], rows[0][:2], rows[1]])
    kept = [row[row > 2] for row in rows]
    same_rows(ragged.select(ragged > 2), kept)
    same_rows(ragged.select((ragged > 2).values, size=20), kept)
    same_rows(ragged.map(lambda x: {"x": x}).select(ragged > 2).map(lambda item: item["x"]), kept)


# ---- Transformations -------------------------------------------------------------------------------------------------


def program(r):
    scaled = (r - r.reduce("max")).softmax() * r
    return scaled.sort(), scaled.reduce()


def agree(got, expected):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), got, expected)


def batch_of(ragged):
    other = mgpu.Ragged.from_rows([[1.0], [2.0, 6.0], [], [7.0, 8.0]], size=9)
    return jax.tree.map(lambda *x: jnp.stack(x), ragged, other), [ragged, other]


def test_jit_and_lowering(ragged):
    expected = program(ragged)
    agree(jax.jit(program)(ragged), expected)
    shapes = jax.eval_shape(program, ragged)
    assert isinstance(shapes[0], mgpu.Ragged)
    agree(jax.jit(program).lower(ragged).compile()(ragged), expected)


def test_vmap_and_scan(ragged):
    batch, parts = batch_of(ragged)
    expected = jax.tree.map(lambda *x: jnp.stack(x), *map(program, parts))
    agree(jax.vmap(program)(batch), expected)
    for got, part in zip(batch.to_rows(), parts, strict=True):
        same_rows(part, got)
    assert (len(batch), batch.capacity, batch.count.tolist()) == (4, 9, [6, 5])
    agree(jax.lax.scan(lambda carry, r: (carry, program(r)), 0, batch)[1], expected)
    carried = jax.lax.fori_loop(0, 3, lambda _, r: r.sort() + 1, ragged)
    same_rows(carried, [np.sort(row) + 3 for row in floats(ROWS)])


@pytest.mark.long
def test_grad(ragged):
    def loss(r):
        return (r.softmax() * r).map(jnp.sin).reduce().sum()

    gradient = jax.grad(loss, allow_int=True)(ragged)
    assert isinstance(gradient, mgpu.Ragged)
    assert "float0" in repr(gradient)
    by_values = jax.jit(jax.grad(lambda values: loss(ragged.with_values(values))))(ragged.values)
    agree(gradient.values, by_values)
    assert not np.any(by_values[6:])
    for b, e in ((0, 3), (3, 5), (5, 6)):
        expected = jax.grad(lambda row: jnp.sin(jax.nn.softmax(row) * row).sum())(ragged.values[b:e])
        agree(by_values[b:e], expected)


def test_shard_map(ragged):
    if len(jax.devices()) < 2:
        pytest.skip("fewer than two devices")
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    batch, parts = batch_of(ragged)
    flat = jax.tree.map(lambda x: x.reshape(-1), batch)
    over = jax.shard_map(program, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    expected = jax.tree.map(lambda *x: jnp.concatenate(x), *map(program, parts))
    agree(jax.jit(over)(flat), expected)


def test_donation(ragged):
    expected = [np.sort(row) for row in floats(ROWS)]
    given = jax.tree.map(jnp.array, ragged)
    same_rows(jax.jit(lambda r: r.sort(), donate_argnums=0)(given), expected)


def test_exported_programs_take_and_give_a_ragged(ragged):
    pytest.importorskip("flatbuffers", reason="jax.export serialises with flatbuffers, which is not installed")
    function = jax.jit(lambda r: {"sorted": r.sort()[::-1], "best": r.top_k(1)})
    stored = jax.export.export(function, disabled_checks=mgpu.export_checks())(ragged).serialize()
    got = jax.export.deserialize(stored).call(ragged)
    same_rows(got["sorted"], [np.sort(row) for row in floats(ROWS)[::-1]])
    assert got["best"].indices.tolist() == [[0], [-1], [4], [5]]


def test_tree_map_and_paths(ragged):
    twice = jax.tree.map(lambda x: x * 2 if x.dtype == jnp.float32 else x, ragged)
    same_rows(twice, [2 * row for row in floats(ROWS)])
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(ragged)[0]]
    assert paths == [".values", ".segments.starts", ".segments.ends"]
    assert jax.tree.structure(ragged) == jax.tree.structure(twice)


# ---- Errors ----------------------------------------------------------------------------------------------------------


X = np.arange(5, dtype=np.float32)
ERRORS = {
    "Ragged.from_lengths: lengths: expected row 1 to have between 0 and 4 items, as only 4 are left, got 5": (
        lambda r: mgpu.Ragged.from_lengths(X, [1, 5])
    ),
    "Ragged.from_lengths: lengths: expected row 1 to have between 0 and 3 items, as only 3 are left, got -1": (
        lambda r: mgpu.Ragged.from_lengths(X, [2, -1, 1])
    ),
    f"Ragged.from_lengths: lengths: expected row 0 to have between 0 and 5 items, as only 5 are left, got {2**40}": (
        lambda r: mgpu.Ragged.from_lengths(X, [2**40])
    ),
    "Ragged.from_rows: rows: expected an array or a list for each row, got 1 in row 0": (
        lambda r: mgpu.Ragged.from_rows([1, 2])
    ),
    "Ragged.from_rows: rows: expected a list of rows, got 3": lambda r: mgpu.Ragged.from_rows(3),
    "Ragged[]: index: expected one for 4 rows, got 4": lambda r: r[4],
    "Ragged[]: index: expected one for 4 rows, got 'a'": lambda r: r["a"],
    "Ragged[]: index: expected a row, a slice or [k] rows, got [[1]]": lambda r: r[[[1]]],
    "Ragged[]: index: expected a slice or [k] rows within jit, got 0": jax.jit(lambda r: r[0]),
    "Ragged[]: index: expected a slice or an array of integers within jit, got int32[]": (
        lambda r: jax.jit(lambda r, i: r[i])(r, np.int32(0))
    ),
    "Ragged: offsets: expected row 1 to end between its start, 3, and the number of items, 5, got 2": lambda r: (
        mgpu.Ragged(X, [0, 3, 2])
    ),
    "Ragged: offsets: expected row 0 to end between its start, 0, and the number of items, 5, got 6": lambda r: (
        mgpu.Ragged(X, np.array([0, 6]))
    ),
    "Ragged: offsets: expected row 0 to start at 0 (Ragged.from_lengths takes lengths), got 1": (
        lambda r: mgpu.Ragged(X, [1, 2])
    ),
    "Ragged: offsets: expected the start of each row and the end of the last one, got none": lambda r: mgpu.Ragged(
        X, []
    ),
    "Ragged: values: expected an array or a pytree of arrays, got no array": lambda r: mgpu.Ragged((), [0]),
    "Ragged: values: expected arrays with the leading axis of the first array, 5, got float32[4]": lambda r: (
        mgpu.Ragged((X, X[:4]), [0])
    ),
    "Ragged +: other: expected rows of the same lengths, 3 items in row 0, got 2": lambda r: (
        r + mgpu.Ragged.from_rows([[1.0, 2.0], [], [], []], size=9)
    ),
    "Ragged *: other: expected 4 rows and room for 9 items, got 1 and 2": lambda r: (
        r * mgpu.Ragged.from_rows([[1.0, 2.0]])
    ),
    "Ragged /: other: expected an entry for each of 4 rows, got float32[3]": lambda r: r / X[:3],
    "Ragged.sort: values: expected one array, got PyTreeDef({'a': *})": lambda r: r.map(lambda x: {"a": x}).sort(),
    "Ragged.from_rows: rows: expected items like those of row 0, float32[5], got int64[2] in row 1": lambda r: (
        mgpu.Ragged.from_rows([X, np.arange(2)])
    ),
    "Ragged.from_rows: rows: expected arrays of one length in each row, got 1 and 2 in row 0": lambda r: (
        mgpu.Ragged.from_rows([(X[:1], X[:2])])
    ),
    "Ragged.from_rows: size: expected at least 3, the number of items, got 2": lambda r: mgpu.Ragged.from_rows(
        [[1, 2, 3]], size=2
    ),
    "Ragged.select: keep: expected one bool for each of 9 items, got bool[4]": lambda r: r.select(np.ones(4, bool)),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(ragged, message):
    with pytest.raises((TypeError, ValueError, IndexError)) as caught:
        ERRORS[message](ragged)
    assert str(caught.value) == message


def test_checks_within_jit(ragged):
    other = mgpu.Ragged(ragged.values, jnp.array([0, 3, 4, 5, 6]))
    with mgpu.checks():
        with pytest.raises(Exception, match=r"Ragged \+: other: expected rows of the same lengths at .* position 1"):
            jax.block_until_ready(jax.jit(lambda a, b: a + b)(ragged, other))
        jax.block_until_ready(jax.jit(lambda a, b: a + b)(ragged, jax.tree.map(jnp.array, ragged)))
        for lengths, at in (
            ([3, 3], "1, got 3"),
            ([2, -1, 3], "1, got -1"),
            ([0, 2**31 - 1, 9], f"1, got {2**31 - 1}"),
        ):
            message = rf"Ragged\.from_lengths: lengths: expected lengths of at least 0, at most 5 items in all, .* {at}"
            with pytest.raises(Exception, match=message):
                jax.block_until_ready(mgpu.Ragged.from_lengths(X, jnp.array(lengths)))
        jax.block_until_ready(mgpu.Ragged.from_lengths(X, jnp.array([3, 0, 2])))


@pytest.mark.parametrize(
    ("offsets", "position"), [([1, 2, 5], 0), ([0, 4, 3], 2), ([0, 2, 6], 2), ([-1, 0, 5], 0)], ids=str
)
def test_checks_of_offsets(offsets, position):
    message = f"Ragged: offsets: expected non-decreasing integers that start with 0 and are at most 5, .* {position}"
    with mgpu.checks():
        jax.block_until_ready(mgpu.Ragged(X, jnp.array([0, 5, 5])).offsets)
        with pytest.raises(Exception, match=message):
            jax.block_until_ready(mgpu.Ragged(X, jnp.array(offsets)).offsets)


# ---- Experts ---------------------------------------------------------------------------------------------------------


def test_experts(rng):
    tokens, count, chosen, width = 12, 5, 2, 3
    x, matrices = rng.normal(size=(tokens, width)), rng.normal(size=(count, width, width))
    ids = np.stack([rng.permutation(count)[:chosen] for _ in range(tokens)]).astype(np.int32)
    weights = rng.random((tokens, chosen))
    x, matrices, weights = (a.astype(np.float32) for a in (x, matrices, weights))

    def ours(x, matrices, weights):
        rows, segments, back = mgpu.dispatch(x, ids, count)
        return mgpu.combine(jax.lax.ragged_dot(rows, matrices, segments.lengths), back, weights)

    def dense(x, matrices, weights):
        made = jnp.einsum("td,edf->tef", x, matrices)
        return jnp.einsum("tk,tkf->tf", weights, jnp.take_along_axis(made, ids[..., None], 1))

    rows, segments, _ = mgpu.dispatch(x, ids, count)
    same_rows(mgpu.Ragged(rows, segments), [x[np.flatnonzero((ids == e).any(1))] for e in range(count)])
    tolerance = {"rtol": 2e-2, "atol": 2e-2}  # a GPU multiplies matrices with fewer bits
    np.testing.assert_allclose(ours(x, matrices, weights), dense(x, matrices, weights), **tolerance)
    got, expected = (
        jax.jit(jax.grad(lambda *a, f=f: jnp.sin(f(*a)).sum(), argnums=(0, 1, 2)))(x, matrices, weights)
        for f in (ours, dense)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), got, expected)
