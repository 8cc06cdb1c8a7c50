"""Reductions and scans of rows and pytrees by named operators, segments with gaps, and reduce_by_id."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from jax_mgpu._src.functions import named_operators
from tests import data, oracle
from tests.test_scan import items, random_heads, same

pytestmark = pytest.mark.usefixtures("x64")

NAMES = ["add", "sum", "mul", "prod", "min", "max", "argmin", "argmax", "mean", "any", "all", "and", "or", "xor"]
NAMES = [*NAMES, "logsumexp"]
STATISTICS = [*oracle.STATISTICS, *oracle.NAN_FORMS]
FEW_DTYPES = ("int8", "uint32", "bfloat16", "float32", "bool")
ROUNDED = ("mean", "logsumexp", "var", "std", "median", "nanmean", "nansum")


def takes(op, dtype):
    if op in ("and", "or", "xor"):
        return dtype not in data.FLOAT_DTYPES
    return op != "logsumexp" or dtype in data.FLOAT_DTYPES


CASES = [
    pytest.param(
        op, dtype, marks=[] if dtype in (FEW_DTYPES[-3:] if op in STATISTICS else FEW_DTYPES) else pytest.mark.long
    )
    for op in (*NAMES, *STATISTICS)
    for dtype in (*data.KEY_DTYPES, "bool")
    if takes(op, dtype)
]


def rows(rng, dtype, op, *shape):
    """Draws items that suit an operator."""
    if dtype == "bool":
        return rng.random(shape) < 0.7
    if op in ROUNDED or op in STATISTICS:
        if dtype in data.FLOAT_DTYPES:
            x = 4 * rng.normal(size=shape)
            if op == "nunique":
                x = np.round(x)
            return np.where((rng.random(shape) < 0.4) & (op in oracle.NAN_FORMS), np.nan, x).astype(jnp.dtype(dtype))
        return rng.integers(0, 100, shape).astype(dtype)
    if op in ("any", "all"):
        return rng.integers(0, 3, shape).astype(jnp.dtype(dtype))
    return items(rng, dtype, oracle.SAME_OPERATORS.get(op, op), *shape)


def agree(got, expected, op):
    """Asserts that results are equal, or nearly so if rounded."""
    got, expected = np.asarray(got), np.asarray(expected)
    if op not in ROUNDED or expected.dtype.kind in "iu":
        return same(got, expected)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    # the mean of numbers of both signs may be near 0
    tolerance = (16 if op in ("var", "std", "nansum") else 4) * float(jnp.finfo(got.dtype).eps)
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=8 * tolerance)


def parts(n, heads, count=None, ends=None):
    live = oracle.live_count(count, n)
    begins = np.clip(np.asarray(heads, np.int64), 0, live)
    stops = np.append(begins[1:], live)
    if ends is not None:
        stops = np.clip(np.asarray(ends, np.int64), 0, live)
    return [slice(begin, max(begin, stop)) for begin, stop in zip(begins, stops, strict=True)]


def of_parts(x, op, slices, widens=True):
    """Combines each part of x; indices count from x's start."""
    results = [np.asarray(oracle.combined(x[part], op, widens)) for part in slices]
    if op.startswith("arg"):
        results = [np.where(r >= 0, r + part.start, r).astype(r.dtype) for r, part in zip(results, slices, strict=True)]
    return np.stack(results)


@functools.partial(jax.jit, static_argnames="op")
def every_reduction(x, heads, count, op):
    return (
        mgpu.reduce(x, op),
        mgpu.reduce(x, op, count=count),
        mgpu.segmented_reduce(x, heads, op),
        mgpu.segmented_reduce(x, heads, op, count=count),
    )


def check_reductions(x, heads, op, counts):
    n = len(x)
    for count in counts:
        whole, counted, segmented, both = every_reduction(x, heads, count, op)
        agree(whole, oracle.combined(x, op), op)
        agree(counted, oracle.combined(x[: max(0, count)], op), op)
        agree(segmented, of_parts(x, op, parts(n, heads)), op)
        agree(both, of_parts(x, op, parts(n, heads, count)), op)


# ---- Reductions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_rows_of_every_operator_and_type(rng, op, dtype):
    x = rows(rng, dtype, op, 300, 2, 5)
    check_reductions(x, random_heads(rng, 300, 16), op, (300, 170, 0, -1))


@pytest.mark.parametrize("op", ["mean", "any", "and", "xor", "logsumexp"])
def test_other_names_without_trailing_axes(rng, op):
    for dtype in ("int16", "uint64", "float32", "bfloat16", "bool"):
        if takes(op, dtype):
            x = rows(rng, dtype, op, 5_000)
            check_reductions(x, random_heads(rng, 5_000, 64), op, (5_000, 33))


@pytest.mark.parametrize("n, width", [(0, 3), (1, 1), (1, 4), (7, 0), (3, 1030), (200_000, 1), (70_001, 3), (513, 100)])
def test_sizes_of_rows(rng, n, width):
    for op, dtype in (("add", "float32"), ("argmax", "int8")):
        x = rows(rng, dtype, op, n, width)
        check_reductions(x, random_heads(rng, n, 24), op, (n, n // 2))


@pytest.mark.parametrize("width", [1, 2, 7, 33, 130])
@pytest.mark.parametrize("segments", [1, 40, 4000])
def test_tiles_of_rows(rng, width, segments):
    for dtype in ("float32", "float64"):
        n = min(3 * max(data.tile_sizes("reduce_rows")) // width // 2 + 3, 30_000)
        x = items(rng, dtype, "add", n, width)
        heads = random_heads(rng, n, segments)
        got = jax.jit(mgpu.segmented_reduce)(x, heads)
        sums = np.concatenate([np.zeros((1, width)), np.cumsum(x.astype(np.float64), axis=0)])
        bounds = parts(n, heads)
        expected = [sums[part.stop] - sums[part.start] for part in bounds]
        same(got, np.stack(expected).astype(dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_accumulate_in_float32(rng, dtype):
    """In narrow floats, sums of ones would stop at 2,048 or 256."""
    ones = np.ones((5_000, 3), jnp.dtype(dtype))
    ids = np.zeros(5_000, np.int32)
    for op in ("sum", "mean"):
        expected = np.full(3, 1 if op == "mean" else 5_000).astype(jnp.dtype(dtype))
        same(mgpu.reduce(ones, op), expected)
        same(mgpu.reduce(ones[:, 0], op), expected[0])
        same(mgpu.segmented_reduce(ones, [0], op)[0], expected)
        same(mgpu.reduce_by_id(ones, ids, 1, op)[0], expected)
        same(mgpu.scan(ones, op)[-1], expected)
    # A mean is rounded once: the sum of its items may exceed float16.
    same(mgpu.reduce(np.full((2_000, 2), 1_000, jnp.dtype(dtype)), "mean"), np.full(2, 1_000, jnp.dtype(dtype)))


@pytest.mark.parametrize("wide", [False, True])
def test_sums_and_products_of_integers_have_the_type_of_jnp(wide):
    with jax.enable_x64(wide):
        for dtype, value in (
            ("int8", -120),
            ("uint8", 255),
            ("int16", -30_000),
            ("uint16", 65_535),
            ("int32", 2**31 - 1),
        ):
            x, zeros = np.full(200, value, dtype), np.zeros(200, np.int32)
            kept = dtype if dtype == "int32" else None  # int32 stays int32, with x64 too
            for op, whole in (
                ("add", functools.partial(jnp.sum, dtype=kept)),
                ("mul", functools.partial(jnp.prod, dtype=kept)),
            ):
                forms = {
                    "reduce": mgpu.reduce(x, op),
                    "count": mgpu.reduce(np.append(x, x), op, count=200),
                    "rows": mgpu.reduce(np.stack([x, x], 1), op)[0],
                    "map": mgpu.reduce(x, op, map=lambda item: item),
                    "batch": jax.vmap(lambda x, op=op: mgpu.reduce(x, op))(np.stack([x, x]))[0],
                    "segmented_reduce": mgpu.segmented_reduce(x, [0], op)[0],
                    "segments of rows": mgpu.segmented_reduce(np.stack([x, x], 1), [0], op)[0, 0],
                    "reduce_by_id": mgpu.reduce_by_id(x, zeros, 1, op)[0],
                    "rows by id": mgpu.reduce_by_id(np.stack([x, x], 1), zeros, 1, op)[0, 0],
                    "reduce_by_key": mgpu.reduce_by_key(zeros, x, op, size=1)[1][0],
                    "group_by": mgpu.group_by(zeros, x, op, size=1)[1][0],
                    "Ragged": mgpu.Ragged.from_lengths(x, [200]).reduce(op)[0],
                }
                if op == "add":
                    forms["bincount"] = mgpu.bincount(zeros, 1, x)[0]
                for name, got in forms.items():
                    assert (got, got.dtype) == (whole(x), whole(x).dtype), (name, dtype, op)
                nothing = mgpu.reduce(x[:0], op)
                assert (nothing, nothing.dtype) == (whole(x[:0]), whole(x).dtype)
                assert mgpu.scan(x, op).dtype == dtype
            same(mgpu.reduce(x, lambda a, b: a + b), np.sum(x, dtype=dtype))


@pytest.mark.parametrize("wide", [False, True])
def test_sums_and_products_of_bools_have_the_type_of_jnp(wide):
    with jax.enable_x64(wide):
        x = np.array([True, True, False])
        for op, whole in (("add", jnp.sum), ("mul", jnp.prod)):
            dtype = whole(x).dtype
            for heads in ([0, 1, 2], [0]):
                expected = [whole(part) for part in np.split(x, heads[1:])]
                same(mgpu.segmented_reduce(x, heads, op), np.array(expected, dtype))
            assert mgpu.reduce_by_id(x, [0, 0, 1], 2, op).dtype == dtype
            assert mgpu.group_by(np.zeros(3, np.int32), x, op, size=1)[1].dtype == dtype
        same(mgpu.scan(x), np.asarray(jnp.cumsum(x)))
        same(mgpu.scan(x, "prod", exclusive=True), np.array([1, 1, 1], jnp.cumprod(x).dtype))


@pytest.mark.parametrize("dtype", ["int8", "int32", "float16", "bfloat16", "float32"])
def test_means_of_equal_items_are_that_item(dtype):
    """For these numbers, the sum times the reciprocal of the number of items may miss the mean."""
    with jax.enable_x64(False):
        for n, value in ((41, 127), (49, 98), (107, 101)):
            x = np.full(n, value, jnp.dtype(dtype))
            zeros = np.zeros(n, np.int32)
            means = {
                "reduce": lambda x: mgpu.reduce(x, "mean"),
                "count": lambda x, n=n: mgpu.reduce(x, "mean", count=n),
                "rows": lambda x: mgpu.reduce(jnp.stack([x, x], 1), "mean"),
                "segmented_reduce": lambda x: mgpu.segmented_reduce(x, [0], "mean"),
                "by_id": lambda x, ids=zeros: mgpu.reduce_by_id(x, ids, 1, "mean"),
                "by_key": lambda x, ids=zeros: mgpu.reduce_by_key(ids, x, "mean", size=1)[1],
                "group_by": lambda x, ids=zeros: mgpu.group_by(ids, x, "mean", size=1)[1],
                "scan": lambda x: mgpu.scan(x, "mean")[-1],
                "Ragged": lambda x, n=n: mgpu.Ragged.from_lengths(x, [n]).reduce("mean"),
                "batch": lambda x: jax.vmap(lambda x: mgpu.reduce(x, "mean"))(jnp.stack([x, x])),
            }
            for name, mean in means.items():
                assert np.all(np.asarray(mean(x)) == x[0]), (name, n)
                assert np.all(np.asarray(jax.jit(mean)(x)) == x[0]), (name, n)


def test_quotients_that_are_off_are_corrected(rng):
    correct = jax.jit(named_operators.corrected_quotient)
    for exponent in range(1, 24, 4):
        items = rng.integers(1, 2**exponent, 4096).astype(np.float32)
        exact = rng.integers(1, 128, 4096).astype(np.float32) * -items
        for sums in (exact, (rng.normal(size=4096) * 10.0 ** rng.integers(-20, 20)).astype(np.float32)):
            expected = sums / items
            for towards in np.float32([-np.inf, np.inf]):
                next_quotients = np.nextafter(expected, towards)
                for quotients in (expected, next_quotients, np.nextafter(next_quotients, towards)):
                    off = np.abs(np.asarray(correct(quotients, sums, items)) - expected)
                    assert np.sum(off > 0) <= 1  # one of them may round the other way
                    assert np.all(off <= np.spacing(np.abs(expected)))
    sums, items = np.float32([np.inf, -np.inf, np.nan, 0, -0.0, 3e38]), np.float32([3, 4, 5, 0, 6, 1])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(correct(sums / items, sums, items).view(np.int32), (sums / items).view(np.int32))


def test_means_of_more_items_than_int32_counts():
    from jax_mgpu._src.arguments.counts import segment_lengths

    none = np.zeros((0,), np.int32)
    for wide in (False, True):
        with jax.enable_x64(wide):
            heads = jnp.array([0, 5, 5, 2**31 - 1], jnp.int32)
            for n in (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**33 + 7):
                got = segment_lengths(heads, n, none, jnp.float32)
                np.testing.assert_array_equal(got, np.float32([5, 0, 2**31 - 6, n - (2**31 - 1)]))
                got = segment_lengths(heads, n, jnp.array([9]), jnp.float32)
                np.testing.assert_array_equal(got, np.float32([5, 0, 4, 0]))
                for dtype in ("float32", "int8", "bool"):
                    x = jax.ShapeDtypeStruct((n,), dtype)
                    assert jax.eval_shape(lambda x: mgpu.reduce(x, "mean"), x).shape == ()
                    assert jax.eval_shape(lambda x, h=heads: mgpu.segmented_reduce(x, h, "mean"), x).shape == (4,)


def test_a_tree_with_an_operator_a_leaf(rng):
    x = {"a": rows(rng, "float32", "mean", 90, 3), "b": (rng.random(90) < 0.9, rows(rng, "int16", "xor", 90, 2, 2))}
    ops = {"a": "mean", "b": ("all", "xor")}
    heads = random_heads(rng, 90, 9)

    def check(got, leading):
        jax.tree.map(lambda g, x, op: agree(g, leading(x, op), op), got, x, ops)

    check(mgpu.reduce(x, ops), oracle.combined)
    check(jax.jit(lambda x: mgpu.segmented_reduce(x, heads, ops))(x), lambda x, op: of_parts(x, op, parts(90, heads)))
    ids = rng.integers(0, 4, 90)
    check(
        mgpu.reduce_by_id(x, ids, 4, ops), lambda x, op: np.stack([oracle.combined(x[ids == i], op) for i in range(4)])
    )
    check(mgpu.scan(x, ops), lambda x, op: np.stack([oracle.combined(x[: i + 1], op, False) for i in range(90)]))
    keys = np.repeat(np.arange(9), 10)
    firsts, got, count = mgpu.reduce_by_key(keys, x, ops, size=11)
    assert list(firsts) == [*range(9), 0, 0] and count == 9
    check(
        jax.tree.map(lambda x: x[:9], got),
        lambda x, op: np.stack([oracle.combined(x[keys == i], op) for i in range(9)]),
    )
    assert all(not np.any(leaf[9:]) for leaf in jax.tree.leaves(got))
    # one operator may serve a part of the tree
    same(mgpu.reduce(x, {"a": "max", "b": "any"})["b"][0], np.any(x["b"][0]))
    assert mgpu.reduce({"a": {}, "b": x["a"]}, "max")["a"] == {}


def test_groups_of_rows(rng):
    keys = rng.integers(0, 5, 70)
    x = {"a": rows(rng, "float32", "mean", 70, 3), "b": rng.random(70) < 0.9, "c": rows(rng, "int8", "argmax", 70, 2)}
    ops = {"a": "mean", "b": "all", "c": "argmax"}
    found, got, _ = mgpu.group_by(keys, x, ops, size=5)
    same(found, np.arange(5))
    for name, op in ops.items():
        expected = [np.asarray(oracle.combined(x[name][keys == i], op)) for i in range(5)]
        if op == "argmax":
            expected = [np.flatnonzero(keys == i)[e].astype(np.int32) for i, e in enumerate(expected)]
        agree(got[name], np.stack(expected), op)


# ---- Scans ----------------------------------------------------------------------------------------------------------


def scanned(x, op, exclusive, reverse):
    if reverse:
        return of_parts(x, op, [slice(i + exclusive, len(x)) for i in range(len(x))], False)
    return np.stack([oracle.combined(x[: i + 1 - exclusive], op, False) for i in range(len(x))])


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("sum", "float32"), ("sum", "bool"), ("mul", "int16"), ("min", "bool"), ("argmax", "int16"),
        ("mean", "bfloat16"), ("mean", "int16"), ("any", "float32"), ("all", "bool"), ("and", "int16"),
        ("or", "bool"), ("xor", "int16"), ("logsumexp", "float32"), ("logsumexp", "bfloat16"),
    ],
)  # fmt: skip
def test_scans_of_rows(rng, op, dtype):
    n = 40
    x, heads = rows(rng, dtype, op, n, 3), np.array([0, 0, 9, 30, 50], np.int32)

    @functools.partial(jax.jit, static_argnames=("exclusive", "reverse"))
    def forms(x, count, **form):
        scans = mgpu.scan(x, op, **form, return_total=True), mgpu.scan(x, op, **form, count=count, return_total=True)
        return scans, mgpu.segmented_scan(x, heads, op, **form), mgpu.segmented_scan(x[:, 0], heads, op, **form)

    for exclusive in (False, True):
        for reverse in (False, True):
            form = {"exclusive": exclusive, "reverse": reverse}
            ((got, total), (counted, live_total)), segmented, column = forms(x, 22, **form)
            agree(got, scanned(x, op, **form), op)
            agree(total, oracle.combined(x, op, False), op)
            agree(counted[:22], scanned(x[:22], op, **form), op)
            assert np.all(np.asarray(counted[22:]) == (-1 if op == "argmax" else 0))
            agree(live_total, oracle.combined(x[:22], op, False), op)
            expected = [scanned(x[a:b], op, **form) for a, b in ((0, 9), (9, 30), (30, 40))]
            if op == "argmax":
                expected = [
                    np.where(e >= 0, e + a, -1).astype(e.dtype) for e, a in zip(expected, (0, 9, 30), strict=True)
                ]
            expected = np.concatenate(expected)
            agree(segmented, expected, op)
            agree(column, expected[:, 0], op)


# ---- Segments with gaps ---------------------------------------------------------------------------------------------

GAPS = [
    ([0, 9, 20], [5, 20, 31]),
    ([3, 3, 10, 10, 38], [7, 3, 10, 12, 60]),
    ([5], [5]),
    ([0, 8], [2, 4]),
]


def test_a_batch_of_ends_over_an_explicit_mesh(rng):
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Explicit,), devices=devices)
    x = rng.integers(-9, 9, (2 * len(devices), 12)).astype(np.int32)
    heads, ends = np.array([0, 5], np.int32), rng.integers([0, 5], [6, 13], (len(x), 2)).astype(np.int32)
    expected = [[row[:first].sum(), row[5:last].sum()] for row, (first, last) in zip(x, ends, strict=True)]
    with jax.set_mesh(mesh):
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
        run = jax.jit(jax.vmap(lambda x, ends: mgpu.segmented_reduce(x, heads, ends=ends)))
        np.testing.assert_array_equal(run(jax.device_put(x, sharding), jax.device_put(ends, sharding)), expected)


@pytest.mark.parametrize("heads, ends", GAPS)
@pytest.mark.long
def test_segments_with_gaps(rng, heads, ends):
    n = 40
    x = rows(rng, "int32", "add", n, 2)
    heads, ends = np.array(heads, np.int32), np.array(ends, np.int64)
    forms = [(op, count) for op in ("add", "max", "argmin", "mean") for count in (None, 11)]

    @jax.jit
    def every_form(x):
        return [
            (
                mgpu.segmented_reduce(x, heads, op, ends=ends, count=count),
                [
                    mgpu.segmented_scan(x, heads, op, ends=ends, exclusive=exclusive, count=count)
                    for exclusive in (False, True)
                    if op != "mean"
                ],
            )
            for op, count in forms
        ]

    for (op, count), (reduced, scans) in zip(forms, every_form(x), strict=True):
        agree(reduced, of_parts(x, op, parts(n, heads, count, ends)), op)
        fill = -1 if op == "argmin" else 0
        for exclusive, got in zip((False, True), scans, strict=False):  # means have no scans here
            expected = np.full(x.shape, fill, np.int32)
            for part in parts(n, heads, count, ends):
                piece = x[part]
                if len(piece):
                    found = scanned(piece, op, exclusive, False)
                    expected[part] = np.where(found >= 0, found + part.start, -1) if op == "argmin" else found
            same(got, expected)
    plus = mgpu.segmented_reduce(x, heads, jnp.add, ends=ends, identity=np.int32(0))
    same(plus, of_parts(x, "add", parts(n, heads, None, ends), False))
    plus = mgpu.segmented_scan(x[:, 0], heads, jnp.add, ends=ends)
    same(plus, mgpu.segmented_scan(x[:, 0], heads, ends=ends))


# ---- By id ----------------------------------------------------------------------------------------------------------


def by_id(x, ids, size, op):
    results = [np.asarray(oracle.combined(x[ids == i], op)) for i in range(size)]
    if op.startswith("arg"):
        places = [np.append(np.flatnonzero(ids == i), -1) for i in range(size)]
        results = [where[r].astype(np.int32) for where, r in zip(places, results, strict=True)]
    return np.stack(results)


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_by_id_of_every_operator_and_type(rng, op, dtype):
    n, size = 200, 7
    ids = rng.integers(-2, size + 2, n)
    x = rows(rng, dtype, op, n, 3)
    reduced = jax.jit(lambda x, ids, count: mgpu.reduce_by_id(x, ids, size, op, count=count))
    for count in (n, 60, 0):
        agree(reduced(x, ids, count), by_id(x[:count], ids[:count], size, op), op)


@pytest.mark.parametrize("n, size, width", [(0, 3, 2), (5, 0, 1), (40_000, 1, 1), (40_000, 1000, 1), (5_000, 4_000, 3)])
def test_sizes_by_id(rng, n, size, width):
    ids = rng.integers(-1, size + 1, n).astype(np.int32)
    x = items(rng, "float32", "add", n, width)
    expected = np.zeros((size + 2, width))
    np.add.at(expected, ids, x)
    reduced = jax.jit(lambda x, ids: mgpu.reduce_by_id(x, ids, size))
    same(reduced(x, ids), expected[:size].astype(np.float32))
    if width == 1:
        same(reduced(x[:, 0], ids), expected[:size, 0].astype(np.float32))


def combined_by_id(x, ids, size, op):
    """Combines each id's items."""
    inside = (ids >= 0) & (ids < size)
    if op == "argmin":
        result = np.full(size, -1, np.int32)
        places = np.flatnonzero(inside)
        order = places[np.lexsort((places, x[places], ids[places]))][::-1]  # the first of the minima is last
        result[ids[order]] = order
        return result
    update, start = {
        "add": (np.add, 0), "max": (np.maximum, -np.inf), "min": (np.minimum, np.inf), "or": (np.bitwise_or, 0),
        "and": (np.bitwise_and, -1), "xor": (np.bitwise_xor, 0),
    }[op]  # fmt: skip
    result = np.full((size, *x.shape[1:]), start, x.dtype)
    update.at(result, ids[inside], x[inside])
    return result


ANY_ORDER = [
    ("max", "float32"), ("add", "int32"), ("argmin", "float32"), ("min", "float64"), ("add", "uint64"),
    ("or", "uint32"), ("and", "int64"), ("xor", "int32"), ("max", "float16"), ("argmin", "int16"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "dtype"), ANY_ORDER)
def test_by_id_where_order_does_not_matter(rng, x64, op, dtype):
    n = 50_000
    for size in (1, 3_000, 200_000):
        reduced = jax.jit(lambda x, ids, count, size=size: mgpu.reduce_by_id(x, ids, size, op, count=count))
        for ids in (rng.integers(-2, size + 2, n), rng.zipf(1.2, n) % (size + 1), np.full(n, size - 1)):
            x = rng.integers(0, 1000, n).astype(dtype)
            for count in (n, 777):
                same(reduced(x, ids, count), combined_by_id(x[:count], ids[:count], size, op))


@pytest.mark.parametrize("op", ["max", "add"])
def test_batches_by_id_where_order_does_not_matter(rng, op):
    x, ids = rng.integers(-9, 9, (6_000, 3)).astype(np.int32), rng.integers(-1, 2_001, (4, 6_000)).astype(np.int32)
    got = jax.jit(jax.vmap(lambda ids: mgpu.reduce_by_id(x, ids, 2_000, op)))(ids)
    limits = np.iinfo(np.int32)
    expected = np.stack([combined_by_id(x.astype(np.float64), i, 2_000, op) for i in ids])
    same(got, np.maximum(expected, limits.min).astype(np.int32))


SUMMED = ["float32", "float16", "bfloat16"]


@pytest.mark.parametrize("dtype", SUMMED)
def test_float_sums_by_id_lose_less_than_float32(rng, dtype):
    n, dtype = 30_000, np.dtype(dtype)
    for size in (1, 900, 40_000):
        reduced = jax.jit(lambda x, ids, size=size: mgpu.reduce_by_id(x, ids, size))
        for drawn in (rng.integers(-1, size + 1, n), rng.zipf(1.3, n) % size, np.full(n, size // 2)):
            ids = drawn.astype(np.int32)
            magnitudes = rng.integers(-9, 4, n) + rng.integers(-4, 2, size + 2)[ids]
            x = np.ldexp(rng.normal(size=n), magnitudes).astype(dtype)
            exact, of_magnitudes = np.zeros(size + 2), np.zeros(size + 2)
            np.add.at(exact, ids, x.astype(np.float64))
            np.add.at(of_magnitudes, ids, np.abs(x.astype(np.float64)))
            got = np.asarray(reduced(x, ids)).astype(np.float64)
            rounding = 2 * float(jnp.finfo(dtype).eps) * np.abs(exact[:size]) + float(jnp.finfo(dtype).tiny)
            assert np.all(np.abs(got - exact[:size]) <= rounding + 2.0**-21 * of_magnitudes[:size])


def test_float_sums_by_id_of_special_items(rng):
    x = np.array([1, np.inf, np.inf, -np.inf, np.nan, 2, -np.inf, 2e-38, 3e-38, 3e38, 3e38, -0.0, -0.0, 5], np.float32)
    ids = np.array([0, 1, 1, 2, 3, 4, 1, 5, 5, 6, 6, 7, 7, 9], np.int32)
    with np.errstate(all="ignore"):
        expected = np.array([x[ids == i].sum(dtype=np.float64) for i in range(9)]).astype(np.float32)
    same(jax.jit(lambda x, ids: mgpu.reduce_by_id(x, ids, 9))(x, ids), expected)
    order = rng.permutation(14)
    same(jax.jit(lambda x, ids: mgpu.reduce_by_id(x, ids, 9))(x[order], ids[order]), expected)


def test_sums_by_id_are_the_same_in_every_run(rng):
    x, ids = rng.normal(size=(30_000, 2)).astype(np.float32), rng.integers(0, 300, 30_000)
    first = np.asarray(mgpu.reduce_by_id(x, ids, 300))
    exact = np.zeros((300, 2))
    np.add.at(exact, ids, x.astype(np.float64))
    np.testing.assert_allclose(first, exact, atol=1e-4)
    for _ in range(5):
        assert np.asarray(mgpu.reduce_by_id(x, ids, 300)).tobytes() == first.tobytes()


@pytest.mark.parametrize("width", [1 << 30, (1 << 30) + 1])
def test_rows_too_long_to_be_counted_in_32_bits_are_sorted(width):
    """The lowering and the kernels agree on the longest row that needs no sort."""
    from jax_mgpu._src.core import library
    from jax_mgpu._src.functions.operators import Kind
    from jax_mgpu._src.ops.reduce_by_id import _reduce_by_id

    x, ids, count = (
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in (((1, width), np.uint8), ((1,), np.int32), ((0,), np.int32))
    )
    attributes = {"op": Kind.MAX, "wide": 0, "size": 1}
    is_sorted = _reduce_by_id.prefers_xla((x, ids, count), attributes, "cuda", 1)
    assert is_sorted == (width > 1 << 30)
    states = library.workspace_bytes("reduce_by_id", (x, ids, count), (x,), attributes) // (4 * width)
    assert (states > 1) == is_sorted  # there is one state per result, or one per part of the items


def test_ids_by_sorting_give_the_same(rng):
    from jax_mgpu._src.functions.operators import Kind
    from jax_mgpu._src.ops.reduce_by_id import _by_sorting

    for op, dtype, width in (("add", "float32", 1), ("add", "bfloat16", 3), ("argmax", "int32", 1), ("min", "int8", 2)):
        x, ids = rows(rng, dtype, op, 90, width), rng.integers(-3, 9, 90)
        for count in (90, 50):
            operands = jnp.asarray(x), jnp.asarray(ids), jnp.array([count])
            (got,) = jax.jit(lambda *o, op=op: _by_sorting(*o, op=Kind[op.upper()], wide=0, size=7))(*operands)
            same(got, by_id(x[:count], ids[:count], 7, op))


@pytest.mark.parametrize(
    "dtype, width", [("bfloat16", 128), ("float32", 4), ("float64", 6), ("int16", 2), ("uint8", 4160), ("int32", 3)]
)
@pytest.mark.parametrize("op", ["add", "argmax"])
def test_gathered_rows_over_tiles(rng, dtype, width, op):
    from jax_mgpu._src.functions.operators import Kind
    from jax_mgpu._src.ops.reduce import reduce_rows

    batch, n, items, segments, live = 3, 60, 3000, 400, np.array([3000, 2500, 0])
    with jax.enable_x64(dtype == "float64"):
        x = rng.integers(0, 3, (batch, n, width)).astype(jnp.dtype(dtype))
        heads = np.sort(rng.integers(0, items + 9, (batch, segments)), axis=1).astype(np.int32)
        indices = rng.integers(-2, n + 2, (batch, items)).astype(np.int32)
        form = {"op": Kind[op.upper()], "wide": 0}
        run = jax.jit(jax.vmap(lambda *operands: reduce_rows.run(operands, **form)[0]))
        got = np.asarray(run(x, heads, indices, live[:, None].astype(np.int32)))
    for row in range(batch):
        ends = np.minimum(np.append(heads[row], live[row]), live[row])
        for i in range(0, segments, 7):
            places = indices[row, ends[i] : max(ends[i], ends[i + 1])]
            places = places[(places >= 0) & (places < n)]
            rows_of = x[row, places].astype(np.float64)
            if op == "add":
                expected = rows_of.sum(axis=0).astype(got.dtype)
            elif len(places) == 0:
                expected = np.full(width, -1)
            else:
                largest = rows_of == rows_of.max(axis=0)
                expected = np.where(largest, places[:, None], n).min(axis=0)
            np.testing.assert_array_equal(got[row, i].astype(np.float64), expected.astype(np.float64))


# ---- Transformations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["add", "mul", "max", "mean", "logsumexp"])
def test_derivatives_of_rows(rng, op):
    x = rng.permutation(24).reshape(12, 2).astype(np.float64) / 8
    heads, ids = np.array([1, 1, 5, 9], np.int32), np.array([0, 2, 0, 3, 2, 2, 5, 0, 3, 3, 0, -1])
    for call in (
        lambda x: mgpu.reduce(x, op, count=10),
        lambda x: mgpu.segmented_reduce(x, heads, op, count=10)[1:],
        lambda x: mgpu.segmented_reduce(x, heads, op, ends=heads + 3)[2:],
        lambda x: mgpu.reduce_by_id(x, ids, 4, op)[jnp.array([0, 2, 3])],
        lambda x: mgpu.scan(x, op),
    ):
        check_grads(jax.jit(call), (x,), 2 if op in ("add", "mean") else 1)


def test_batches_of_blocks_over_an_explicit_axis(rng):
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Explicit,), devices=devices)
    x = rng.integers(-9, 9, (len(devices), 5, 2, 4), np.int32)
    with jax.set_mesh(mesh):
        placed = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
        for op, expected in (("add", x.sum(1)), ("argmax", x.argmax(1))):
            np.testing.assert_array_equal(jax.vmap(lambda x, op=op: mgpu.reduce(x, op))(placed), expected)


def test_batches_of_rows(rng):
    x, heads = items(rng, "int32", "add", 3, 50, 4), np.stack([random_heads(rng, 50, 8) for _ in range(3)])
    counts, ids = np.array([50, 0, 20], np.int32), rng.integers(-1, 6, (3, 50))

    def every(x, heads, count, ids):
        segmented = mgpu.segmented_reduce(x, heads, "argmax", count=count)
        return segmented, mgpu.reduce(x, count=count), mgpu.reduce_by_id(x, ids, 5, "max", count=count)

    for axes in ((0, 0, 0, 0), (0, None, None, None), (None, 0, None, 0), (2, None, 0, None)):
        given = [a if axis is not None else a[1] for a, axis in zip((x, heads, counts, ids), axes, strict=True)]
        given[0] = np.moveaxis(x, 0, 2) if axes[0] == 2 else given[0]
        got = jax.jit(jax.vmap(every, axes))(*given)
        for row in range(3):
            one = [a[row if axis is not None else 1] for a, axis in zip((x, heads, counts, ids), axes, strict=True)]
            jax.tree.map(lambda g, e, row=row: same(np.broadcast_to(g, (3, *e.shape))[row], e), got, every(*one))


@pytest.mark.parametrize("op", ["add", "argmin", "and", "max"])
def test_plain_jax_of_rows_agrees_with_the_kernels(rng, op):
    from jax_mgpu._src.functions.operators import Kind
    from jax_mgpu._src.ops.reduce import reduce_rows

    x, heads = rows(rng, "int16", op, 14, 3), jnp.array([2, 2, 9, 20])
    indices = jnp.array([3, 14, 0, 9, -1, 7, 13, 5, 2])
    form = {"op": Kind[op.upper()], "wide": 0}
    plain = jax.jit(functools.partial(reduce_rows.fallback, **form))
    for given in (jnp.zeros((0,), jnp.int32), indices):
        for count in (14, 5, 0):
            operands = jnp.asarray(x), heads, given, jnp.array([count])
            same(reduce_rows.run(operands, **form)[0], np.asarray(plain(*operands)[0]))


# ---- Misuse ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda x: mgpu.reduce(x, "middle"), ValueError, "reduce: op: expected one of add, sum"),
        (lambda x: mgpu.reduce(x, "xor"), TypeError, "reduce: x: expected integers or bools for 'xor'"),
        (lambda x: mgpu.scan(x > 0, "logsumexp"), TypeError, "scan: x: expected floats for 'logsumexp'"),
        (lambda x: mgpu.reduce({"a": x}, {"b": "sum"}), ValueError, "reduce: op: expected names in the structure"),
        (lambda x: mgpu.reduce([x, x[:2]]), ValueError, r"reduce: x\[1\]: expected arrays with the leading axis"),
        (lambda x: mgpu.reduce(x, identity=0.0), ValueError, "reduce: identity: expected None"),
        (lambda x: mgpu.reduce(x * 1j), TypeError, "reduce: x: expected integers of 8 to 64 bits"),
        (
            lambda x: mgpu.reduce_by_id(x, [0, 1], 3),
            ValueError,
            "reduce_by_id: ids: expected one id for each",
        ),
        (lambda x: mgpu.reduce_by_id(x, [0.0] * 5, 3), TypeError, "reduce_by_id: ids: expected"),
        (lambda x: mgpu.reduce_by_id(x, [0] * 5, -1), ValueError, "reduce_by_id: size: expected"),
        (
            lambda x: mgpu.segmented_reduce(x, [0, 2], ends=[1]),
            ValueError,
            "segmented_reduce: ends: expected the length",
        ),
        (lambda x: mgpu.segmented_scan(x, [0], ends=[1.0]), TypeError, "segmented_scan: ends: expected"),
    ],
)
def test_misuse(call, error, message):
    with pytest.raises(error, match=message):
        call(jnp.ones((5, 2)))


@pytest.mark.parametrize("width", [2, 3, 8, 65, 66])
@pytest.mark.parametrize("dtype", ["int8", "uint32", "bfloat16", "float32", "float64"])
def test_short_rows_are_read_as_wider_ones(rng, dtype, width):
    n = 1 << 15 if width < 10 else 1 << 11
    x = rng.integers(0, 3, (n, width)).astype(jnp.dtype(dtype))
    x[rng.random(x.shape) < 0.999] = 1  # so that products are exact
    for op in ("add", "mean", "any", "mul", "xor"):
        for some in (x, x[: n - 1]):
            if takes(op, dtype):
                agree(jax.jit(lambda x, op=op: mgpu.reduce(x, op))(some), oracle.combined(some, op), op)
