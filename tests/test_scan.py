"""scan and segmented_scan against tests/oracle.py."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from tests import data, oracle
from tests.variants import long_but

pytestmark = pytest.mark.usefixtures("x64")

OPERATORS = ["add", "mul", "min", "max", "argmin", "argmax"]
FORMS = [{"exclusive": e, "reverse": r} for e in (False, True) for r in (False, True)]
TILES = data.tile_sizes("scan")
MANY_TILES = (32 * 32 + 1) * 4096 + 5


def items(rng, dtype, op, *shape):
    """Draws items with exact sums and products; for extrema, any keys."""
    if op not in ("add", "mul") or dtype not in data.FLOAT_DTYPES:
        return data.random_keys(rng, dtype, *shape)
    few = (-1, 0, 1, 2) if op == "add" else (-1, 1)
    return rng.choice(few, shape).astype(jnp.dtype(dtype))


def same(got, expected):
    """Asserts equal types and values. All NaNs are equal, and so are both zeros."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype
    if got.dtype.kind not in "iu":
        with np.errstate(invalid="ignore"):  # signalling NaNs
            got, expected = got.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(got, expected)


def random_heads(rng, n, m):
    """Draws heads of m segments, some empty, with padding at the end."""
    padding = m // 8
    return np.concatenate([np.sort(rng.integers(0, max(n, 1), m - padding)), np.full(padding, n + 3)]).astype(np.int32)


@functools.partial(jax.jit, static_argnames="op")
def every_form(x, heads, count, op):
    scans = [mgpu.scan(x, op, **form, return_total=True) for form in FORMS]
    counted = [mgpu.scan(x, op, **form, count=count, return_total=True) for form in FORMS]
    segmented = [mgpu.segmented_scan(x, heads, op, **form) for form in FORMS]
    both = [mgpu.segmented_scan(x, heads, op, **form, count=count) for form in FORMS]
    return scans, counted, segmented, both


def check_every_form(x, heads, count, op):
    scans, counted, segmented, both = every_form(x, heads, count, op)
    nothing = np.zeros(0, np.int32)
    live = x[: max(0, count)]
    for i, form in enumerate(FORMS):
        same(scans[i][0], oracle.scan(x, op, **form))
        same(scans[i][1], oracle.total(x, op))
        same(counted[i][0], oracle.segmented_scan(x, nothing, op, **form, count=count))
        same(counted[i][1], oracle.total(live, op))
        same(segmented[i], oracle.segmented_scan(x, heads, op, **form))
        same(both[i], oracle.segmented_scan(x, heads, op, **form, count=count))


# ---- Operators, types, sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
@pytest.mark.parametrize("op", OPERATORS)
def test_every_operator_and_type(rng, op, dtype):
    n = 20_003
    x = items(rng, dtype, op, n)
    check_every_form(x, random_heads(rng, n, 64), 16_385, op)


@pytest.mark.parametrize("dtype", long_but(["int32"], ["int32", "float32"]))
@pytest.mark.parametrize("op", ["add", "argmax"])
@pytest.mark.long
def test_sizes_round_the_edges_of_tiles(rng, op, dtype):
    sizes = {0, 1, 2, 3, 31, 32, 33, 127, 128, 129, MANY_TILES}
    sizes |= {tile * k + d for tile in TILES for k, d in ((1, -1), (1, 0), (1, 1), (2, 1))}
    for n in sorted(sizes):
        x = items(rng, dtype, op, n)
        same(mgpu.scan(x, op), oracle.scan(x, op))
        same(mgpu.scan(x, op, exclusive=True, reverse=True), oracle.scan(x, op, True, True))


@pytest.mark.parametrize("op", ["add", "max"])
def test_counts(rng, op):
    n = 33_000
    x = items(rng, "int32", op, n)
    heads = random_heads(rng, n, 100)
    for count in (-3, 0, 1, 8191, 8192, 8193, 16_384, 32_999, n, n + 7):
        check_every_form(x, heads, np.int32(count), op)


def test_segments_of_every_kind(rng):
    n = 40_000
    x = items(rng, "int32", "add", n)
    lengths = {
        "one of everything": np.array([n]),
        "all of one item": np.ones(n, np.int64),
        "all empty but one": np.append(np.zeros(n - 1, np.int64), n),
        "empty ones at the end": np.append(n, np.zeros(n - 1, np.int64)),
        "heavy tail": np.minimum((3 * (1 - rng.random(n)) ** (-2 / 3)).astype(np.int64), n),
    }
    for kind in lengths.values():
        heads = np.resize(np.minimum(data.heads_of(kind), n), n)  # one shape for all cases
        heads = np.maximum.accumulate(heads)  # resize repeats heads, and this puts them in order
        for form in FORMS:
            same(mgpu.segmented_scan(x, heads, **form), oracle.segmented_scan(x, heads, "add", **form))


def test_indices_count_from_the_start_of_x(rng):
    x = np.array([5, 5, 1, 9, 9], np.int32)
    same(mgpu.segmented_scan(x, [0, 2], "argmax"), np.array([0, 0, 2, 3, 3], np.int32))
    same(mgpu.scan(x, "argmax", exclusive=True), np.array([-1, 0, 0, 0, 3], np.int32))
    same(mgpu.scan(x, "argmax", reverse=True), np.array([3, 3, 3, 3, 4], np.int32))


def test_heads_out_of_order_or_range_are_safe(rng):
    n = 20_000
    x = items(rng, "int32", "add", n)
    for heads in (rng.integers(-n, 2 * n, 300), np.arange(300)[::-1], np.full(300, -7), np.full(300, 2**31 - 1)):
        assert mgpu.segmented_scan(x, heads.astype(np.int32)).shape == (n,)
        assert mgpu.segmented_scan(x, heads.astype(np.int32), reverse=True).shape == (n,)


def test_sixteen_bit_floats_accumulate_in_float32():
    ones = np.ones(4096, jnp.bfloat16)
    same(mgpu.scan(ones)[-1], jnp.bfloat16(4096))
    same(mgpu.scan(np.full(4096, 0.25, np.float16), reverse=True)[0], np.float16(1024))


def test_float_sums_are_accurate_and_the_same_in_every_run(rng):
    x = rng.normal(size=300_007).astype(np.float32)
    exact = np.cumsum(x.astype(np.float64))
    got = mgpu.scan(x)
    error = np.max(np.abs(np.asarray(got, np.float64) - exact))
    assert error <= np.max(np.abs(np.asarray(jnp.cumsum(x), np.float64) - exact))
    for _ in range(3):
        np.testing.assert_array_equal(oracle.bits(mgpu.scan(x)), oracle.bits(np.asarray(got)))


# ---- Batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["add", "min", "argmin"])
@pytest.mark.parametrize(("rows", "n"), [(1, 100), (70, 1000), (5, 8192), (3, 70_000), (2, 65_536), (40, 7), (3, 0)])
def test_batches(rng, op, rows, n):
    x = items(rng, "float32", op, rows, n)
    for form in FORMS:
        scanned, totals = jax.vmap(lambda row, form=form: mgpu.scan(row, op, **form, return_total=True))(x)
        for row in range(rows):
            same(scanned[row], oracle.scan(x[row], op, **form))
            same(totals[row], oracle.total(x[row], op))


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float64"])
@pytest.mark.parametrize("op", ["add", "max", "argmin"])
def test_batches_of_rows_of_every_length(rng, op, dtype):
    @functools.partial(jax.jit, static_argnames=("exclusive", "reverse"))
    def scan(x, counts, **form):
        one = functools.partial(mgpu.scan, op=op, **form, return_total=True)
        return jax.vmap(one)(x), jax.vmap(lambda row, count: one(row, count=count))(x, counts)

    for row_bytes in (496, 512, 2064, 32_752, 32_768, 49_168):
        n = row_bytes // jnp.dtype(dtype).itemsize
        counts = np.array([n, 0, n // 2 + 3, n - 1], np.int32)
        x = items(rng, dtype, op, len(counts), n)
        for form in FORMS:
            whole, counted = scan(x, counts, **form)
            for row, count in enumerate(counts):
                same(whole[0][row], oracle.scan(x[row], op, **form))
                same(whole[1][row], oracle.total(x[row], op))
                same(counted[0][row], oracle.segmented_scan(x[row], np.zeros(0, np.int32), op, **form, count=count))
                same(counted[1][row], oracle.total(x[row][:count], op))


@pytest.mark.parametrize("n", [1, 3, 7, 8, 31, 77, 100, 129, 497, 1000, 2049, 4096])
@pytest.mark.parametrize(
    ("op", "dtype"), [("add", "bfloat16"), ("mul", "int32"), ("max", "float64"), ("argmin", "uint8")], ids=str
)
def test_short_rows(rng, op, dtype, n):
    batch = data.batch_of(n)
    x = items(rng, dtype, op, batch, n)
    counts = data.row_counts(rng, n, batch)
    scans = [functools.partial(mgpu.scan, op=op, **form, return_total=True) for form in FORMS]
    whole = jax.jit(jax.vmap(lambda x: [scan(x) for scan in scans]))(x)
    whole = jax.tree.map(np.asarray, whole)
    counted = jax.jit(jax.vmap(lambda x, count: [scan(x, count=count) for scan in scans]))(x, counts)
    counted = jax.tree.map(np.asarray, counted)
    for form, (scanned, totals), (parts, part_totals) in zip(FORMS, whole, counted, strict=True):
        for row in range(batch):
            same(scanned[row], oracle.scan(x[row], op, **form))
            same(totals[row], oracle.total(x[row], op))
            expected = oracle.segmented_scan(x[row], np.zeros(0, np.int32), op, **form, count=counts[row])
            same(parts[row], expected)
            same(part_totals[row], oracle.total(x[row][: max(0, counts[row])], op))


def test_batches_of_any_mix_of_operands(rng):
    rows, n = 6, 3000
    x = items(rng, "int32", "add", rows, n)
    heads = np.stack([random_heads(rng, n, 16) for _ in range(rows)])
    counts = np.array([0, 1, 2999, 3000, 1500, -2], np.int32)

    def scan(x, heads, count):
        return [mgpu.segmented_scan(x, heads, **form, count=count) for form in FORMS]

    for axes in [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0), (1, None, 0)]:
        operands = (
            x.T if axes[0] == 1 else x if axes[0] == 0 else x[0],
            heads if axes[1] == 0 else heads[0],
            counts if axes[2] == 0 else counts[2],
        )
        results = jax.vmap(scan, in_axes=axes)(*operands)
        for row in range(rows):
            one = (
                x[row if axes[0] is not None else 0],
                heads[row if axes[1] == 0 else 0],
                counts[row if axes[2] == 0 else 2],
            )
            for form, result in zip(FORMS, results, strict=True):
                same(result[row], oracle.segmented_scan(*one[:2], "add", **form, count=one[2]))
    nested = jax.vmap(jax.vmap(mgpu.segmented_scan, in_axes=(0, None)), in_axes=(None, 0))(x, heads)
    same(nested[3, 4], oracle.segmented_scan(x[4], heads[3], "add"))


# ---- Functions ------------------------------------------------------------------------------------------------------


def compose(f, g):
    return g[0] * f[0], g[0] * f[1] + g[1]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_affine_maps_as_tuples(rng, form):
    n, heads = 14, np.array([3, 3, 7, 60], np.int32)
    maps = rng.integers(-3, 4, (2, n))
    got = mgpu.segmented_scan(tuple(maps), heads, compose, **form, count=12, identity=(1, 0))
    expected = np.zeros((2, n), np.int64)
    for begin, end in oracle.segment_bounds(n, heads, 12):
        state = (1, 0)
        for i in range(end - 1, begin - 1, -1) if form["reverse"] else range(begin, end):
            following = compose(state, maps[:, i])
            expected[:, i] = state if form["exclusive"] else following
            state = following
    same(np.stack(got), expected)


def test_matrix_products(rng):
    matrices = rng.integers(-2, 3, (13, 2, 2))
    got, total = mgpu.scan(matrices, jnp.matmul, exclusive=True, return_total=True, identity=np.eye(2, dtype=np.int64))
    state = np.eye(2, dtype=np.int64)
    for i, matrix in enumerate(matrices):
        same(got[i], state)
        state = state @ matrix
    same(total, state)
    same(mgpu.scan(matrices, jnp.matmul)[-1], state)


def test_functions_of_scalars_agree_with_the_operators(rng):
    x = rng.integers(0, 1000, 13)
    for form in FORMS:
        same(mgpu.scan(x, jnp.add, **form, identity=0), oracle.scan(x, "add", **form))


# ---- Derivatives ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "form"), [*((op, FORMS[i]) for op in ("add", "mul") for i in (1, 2)), ("min", FORMS[3]),
                                          ("max", FORMS[0])], ids=str)  # fmt: skip
def test_derivatives(rng, op, form):
    x = rng.normal(size=5)
    if op == "mul":
        x[[1, 3]] = 0
    heads, count = np.array([1, 2, 2, 20], np.int32), np.int32(4)
    finite = functools.partial(jnp.nan_to_num, posinf=0, neginf=0)  # replaces infinite identities of extrema

    def whole(x):
        return [finite(y) for y in mgpu.scan(x, op, **form, return_total=True)]

    def segmented(x):
        return finite(mgpu.segmented_scan(x, heads, op, **form, count=count))

    check_grads(jax.jit(whole), (x,), order=2)
    check_grads(jax.jit(jax.vmap(segmented)), (np.stack([x, x[::-1]]),), order=1)


def test_the_gradient_of_an_extremum_goes_to_the_first():
    x = np.array([1.0, 3.0, 3.0, 2.0])
    same(jax.grad(lambda x: mgpu.scan(x, "max")[-1])(x), np.array([0.0, 1.0, 0.0, 0.0]))
    same(jax.grad(lambda x: mgpu.scan(x, "min", reverse=True)[0])(x), np.array([1.0, 0.0, 0.0, 0.0]))


def test_dead_items_do_not_reach_derivatives():
    x = np.array([1.0, 2.0, np.nan])
    for op in ("add", "mul", "max"):
        for reverse in (False, True):
            scanned = functools.partial(mgpu.scan, op=op, reverse=reverse, count=np.int32(2))
            assert np.isfinite(jax.grad(lambda x, scan=scanned: scan(x).sum())(x)).all()


# ---- Plain JAX ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPERATORS)
def test_the_plain_jax_path_agrees_with_the_kernels(rng, op):
    from jax_mgpu._src.functions.operators import Kind
    from jax_mgpu._src.ops.scan import _scan

    x, heads, count = items(rng, "float32", op, 14), np.array([2, 2, 9, 20], np.int32), np.array([12], np.int32)
    with np.errstate(invalid="ignore"):  # XLA's CPU code treats subnormals as zeros
        x[np.abs(x) < 1e-30] = 0

    @jax.jit
    def plain(x, heads, count):
        given = {"op": Kind[op.upper()], "total": False}
        return [_scan.fallback(x, heads, count, count[:0], **given, **form)[0] for form in FORMS]

    for form, got in zip(FORMS, plain(x, heads, count), strict=True):
        same(got, oracle.segmented_scan(x, heads, op, **form, count=12))


# ---- Initial items --------------------------------------------------------------------------------------------------

INITIAL_SHAPES = [(0,), (1,), (5,), (1000,), (4097,), (300_001,), (3, 17), (5, 2048), (2, 40_000), (3, 33_333), (2, 0)]


FUNCTIONS = {
    "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "and": np.bitwise_and,
}  # fmt: skip
FROM_AN_ITEM = [(dtype, op) for dtype in ("int8", "uint16", "int32", "uint64") for op in FUNCTIONS]
FROM_AN_ITEM += [("bool", op) for op in ("or", "and", "xor")] + [("float32", "add"), ("float64", "add")]


@pytest.mark.parametrize("case", long_but([("int32", "add"), ("float64", "add"), ("uint64", "max")], FROM_AN_ITEM))
def test_scans_from_an_initial_item(rng, case):
    from jax_mgpu._src.functions.operators import Kind
    from jax_mgpu._src.ops.scan import _scan, begins_with_item

    dtype, op = jnp.dtype(case[0]), case[1]
    kind = Kind[op.upper()]
    assert begins_with_item(kind, dtype)

    @jax.jit
    def scanned(x, count, initial):
        def one(x, count, initial):
            given = {"x": x, "count": count, "initial": initial, "op": kind, "total": True}
            return [_scan(**given, **form) for form in FORMS]

        return jax.vmap(one)(x, count, initial) if x.ndim == 2 else one(x, count, initial)

    for shape in INITIAL_SHAPES:
        *batch, n = shape
        x = rng.integers(0, 2, shape).astype(bool) if dtype.kind == "b" else rng.integers(-9, 9, shape).astype(dtype)
        initial = rng.integers(0, 2, (*batch, 1)).astype(dtype)
        for count in (np.zeros((*batch, 0), np.int32), rng.integers(0, n + 1, (*batch, 1)).astype(np.int32)):
            for form, found in zip(FORMS, scanned(x, count, initial), strict=True):
                got, totals = map(np.asarray, found)
                for row in np.ndindex(*batch):
                    live = int(count[row][0]) if count.size else n
                    items = x[row][:live][:: -1 if form["reverse"] else 1]
                    through = FUNCTIONS[op].accumulate(np.append(initial[row], items), dtype=dtype)
                    expected = through[:-1] if form["exclusive"] else through[1:]
                    expected = expected[:: -1 if form["reverse"] else 1]
                    np.testing.assert_array_equal(got[row], np.append(expected, np.zeros(n - live, dtype)))
                    np.testing.assert_array_equal(totals[row], through[-1])


def test_derivatives_of_scans_from_an_initial_item(rng):
    from jax_mgpu._src.functions.operators import Kind
    from jax_mgpu._src.ops.scan import scan_from

    x, begin = rng.normal(size=9), rng.normal(size=())
    for form in FORMS:
        for count in (np.zeros(0, np.int32), np.array([6], np.int32)):
            call = lambda b, x, count=count, form=form: scan_from(b, x, Kind.ADD, count, **form)  # noqa: E731
            check_grads(call, (begin, x), order=2, modes=("fwd", "rev"))
            rows = np.stack([x, 2 * x])
            check_grads(jax.vmap(call), (np.array([begin, 1.5]), rows), order=1, modes=("fwd", "rev"))


# ---- Misuse ---------------------------------------------------------------------------------------------------------


def test_errors_name_operation_and_argument():
    x = np.arange(4, dtype=np.int32)
    with pytest.raises(ValueError, match=r"scan: op: expected one of add, sum, mul, .*, got 'total'"):
        mgpu.scan(x, "total")
    with pytest.raises(TypeError, match=r"scan: x: expected .*, got complex64\[4\]"):
        mgpu.scan(x.astype(np.complex64))
    with pytest.raises(TypeError, match=r"segmented_scan: heads: expected integers, got float32\[1\]"):
        mgpu.segmented_scan(x, np.zeros(1, np.float32))
    with pytest.raises(ValueError, match=r"scan: identity: expected the identity of op, for an exclusive scan"):
        mgpu.scan(x, jnp.add, exclusive=True)
    with pytest.raises(ValueError, match=r"scan: identity: expected None, because add has its own, got a value"):
        mgpu.scan(x, identity=0)
    with pytest.raises(TypeError, match=r"scan: identity: expected the structure of x"):
        mgpu.scan((x, x), compose, exclusive=True, identity=1)
    with pytest.raises(ValueError, match=r"scan: count: expected an integer scalar, got int32\[4\]"):
        mgpu.scan(x, count=x)
