"""`dtype=` converts items before they are combined, as in jnp.sum and jnp.cumsum."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from tests import data, mesh, oracle
from tests.test_eager import compilations
from tests.test_rows import agree
from tests.test_scan import same

N, SIZE = 60, 3
HEADS, IDS = np.array([0, 20, 40]), np.repeat(np.arange(SIZE), N // SIZE)


@functools.partial(jax.jit, static_argnames=("op", "dtype"))
def every_operation(x, op, dtype):
    """Returns reductions and scans, of all items or of segments of equal length."""
    named = {"op": op, "dtype": dtype}
    return (
        mgpu.reduce(x, **named),
        mgpu.scan(x, **named),
        mgpu.segmented_reduce(x, HEADS, **named),
        mgpu.reduce_by_id(x, IDS, SIZE, **named),
        mgpu.reduce_by_key(IDS, x, size=SIZE, **named)[1],
        mgpu.segmented_scan(x, HEADS, **named).reshape(SIZE, -1),
    )


def added(x, of_numpy, dtype, axis=-1):
    """Returns NumPy's sums or products of converted items: floats in float64, rounded once; integers wrap."""
    wide = np.float64 if dtype in data.FLOAT_DTYPES else dtype
    return of_numpy(x.astype(wide), axis=axis, dtype=wide).astype(x.dtype)


@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_conversions_from_every_kind_of_type(rng, x64, dtype):
    to = jnp.dtype(dtype)
    for items in (
        rng.integers(-100, 100, N).astype(np.int16),
        rng.integers(0, 400, N) / 4,
        rng.random(N) < 0.5,
    ):
        x = items.astype(to)
        in_rows = x.reshape(SIZE, -1)
        got = every_operation(items, "add", dtype)
        same(got[0], added(x, np.sum, dtype))
        same(got[1], added(x, np.cumsum, dtype))
        for segments in got[2:5]:
            same(segments, added(in_rows, np.sum, dtype))
        same(got[5], added(in_rows, np.cumsum, dtype))
        if to.itemsize > 2 or dtype not in data.FLOAT_DTYPES:  # jnp.sum rounds 16-bit sums in other steps
            same(got[0], jnp.sum(items, dtype=dtype))
            same(got[1], jnp.cumsum(items, dtype=dtype))


@pytest.mark.parametrize("dtype", ("int8", "uint64", "bfloat16"))
def test_other_operators(rng, x64, dtype):
    to, is_float = jnp.dtype(dtype), dtype in data.FLOAT_DTYPES
    items = rng.integers(0, 9, N) / 2
    x = items.astype(to)
    for op in ("min", "argmin", "argmax", "any", "all", *(("mean", "logsumexp") if is_float else ("xor", "mul"))):
        whole, _, segments, by_id, by_key, _ = every_operation(items, op, dtype)
        agree(whole, oracle.combined(x, op, False), op)
        expected = np.stack([oracle.combined(part, op, False) for part in x.reshape(SIZE, -1)])
        if op.startswith("arg"):
            expected = expected + HEADS.astype(expected.dtype)
        for got in (segments, by_id, by_key):
            agree(got, expected, op)


def test_results_that_the_items_cannot_hold(x64):
    largest = np.full(4, 2**31 - 1, np.int32)
    same(mgpu.reduce(largest, dtype="int64"), np.int64(4 * (2**31 - 1)))
    same(mgpu.scan(np.full(3, 100, np.int8), dtype=np.int16), np.array([100, 200, 300], np.int16))
    same(mgpu.scan(np.full(3, True), dtype="float32"), np.array([1, 2, 3], np.float32))
    same(mgpu.reduce(np.array([1, 2], np.int8), "mean", dtype="float16"), np.float16(1.5))
    assert mgpu.reduce(np.full(200, 120, np.int8), dtype="int8") == np.sum(np.full(200, 120, np.int8), dtype=np.int8)


def test_one_dtype_for_all_leaves():
    x = {"rows": np.ones((4, 2), np.int8), "flags": np.array([True, False, True, True])}
    got = mgpu.reduce(x, {"rows": "sum", "flags": "sum"}, dtype="float32")
    same(got["rows"], np.full(2, 4, np.float32))
    same(got["flags"], np.float32(3))
    got = mgpu.reduce(x, {"rows": "argmax", "flags": "any"}, dtype="float32")
    same(got["rows"], np.zeros(2, np.int32))
    assert got["flags"] == np.True_ and got["flags"].dtype == bool


def test_items_are_converted_after_map():
    x = np.full(300, 200, np.uint8)

    def halved(item):
        return item.astype(jnp.float32) / 2 + 0.75  # 100.75

    same(mgpu.reduce(x, map=halved, dtype="int32"), np.int32(30_000))
    same(mgpu.scan(x, map=halved, dtype="int16")[:2], np.array([100, 200], np.int16))
    same(mgpu.segmented_reduce(x, [0], map=lambda item: item, dtype="int32"), np.array([60_000], np.int32))
    same(mgpu.reduce_by_key(x, x, size=1, map=lambda item: item, dtype="float32")[1], np.array([60_000], np.float32))


def test_batches(rng):
    x = rng.integers(-100, 100, (3, 40)).astype(np.int8)
    for dtype in ("int32", "float16"):
        same(jax.vmap(lambda x, dtype=dtype: mgpu.reduce(x, dtype=dtype))(x), x.sum(1, dtype="int32").astype(dtype))
        scanned = jax.vmap(lambda x, dtype=dtype: mgpu.scan(x, dtype=dtype))(x)
        same(scanned, x.cumsum(1, dtype="int32").astype(dtype))


@pytest.mark.parametrize(
    "given, dtype", [("float32", "float16"), ("float32", "bfloat16"), ("float16", "float32"), ("bfloat16", "float32")]
)
def test_derivatives(rng, given, dtype):
    x = rng.integers(-8, 8, 16).astype(jnp.dtype(given))
    weights = rng.integers(-4, 4, 16).astype(jnp.dtype(dtype))

    def loss(total, scan):
        def loss(x):
            scanned, whole = scan(x, dtype=dtype), total(x, dtype=dtype)
            assert scanned.dtype == whole.dtype == dtype
            return (scanned * weights).sum() + whole * weights[0]

        return jax.jit(jax.grad(loss))(x)

    same(loss(mgpu.reduce, mgpu.scan), loss(jnp.sum, jnp.cumsum))


def test_over_the_devices_of_an_axis(rng):
    x = rng.integers(-100, 100, (4, 30)).astype(np.int8)

    def call(x):
        named = {"dtype": "float32", "axis_name": mesh.AXIS}
        scanned, total = mgpu.scan(x, return_total=True, **named)
        segments = mgpu.segmented_reduce(x, jnp.zeros(1, jnp.int32), **named)
        return mgpu.reduce(x, **named), scanned, total, segments, mgpu.reduce_by_id(x, x % 4, 1, **named)

    whole, scanned, total, segments, by_id = mesh.by_devices(call, 4)(x)
    flat = x.reshape(-1).astype(np.float32)
    same(whole, np.repeat(flat.sum(), 4))
    same(total, np.repeat(flat.sum(), 4))
    same(scanned, flat.cumsum().reshape(x.shape))
    same(segments, x.astype(np.float32).sum(1, keepdims=True))
    same(by_id[:, 0], np.array([flat[flat % 4 == i].sum() for i in range(4)], np.float32))


def test_wide_types_become_narrow_without_x64_as_in_jax():
    x = np.array([1, 2], np.int8)
    for dtype, narrow in (("int64", "int32"), (np.float64, "float32")):
        for call in (mgpu.reduce, jnp.sum):
            with pytest.warns(UserWarning, match="Explicitly requested dtype"):
                assert jax.jit(functools.partial(call, dtype=dtype))(x).dtype == narrow
    assert mgpu.reduce(x, dtype=float).dtype == "float32"  # Python's float gives float32, without a warning


def test_a_dtype_is_part_of_an_eager_program():
    x = jnp.arange(37, dtype=jnp.int16)
    for dtype in ("float16", np.float16, jnp.float16, np.dtype("float16"), jnp.bfloat16, jnp.dtype("bfloat16")):
        mgpu.scan(x, dtype=dtype)
        with compilations() as programs:
            assert mgpu.scan(x, dtype=dtype).dtype == jnp.dtype(dtype)
        assert not programs
    with compilations() as programs:
        mgpu.scan(x, dtype=np.dtype("int8"))
    assert len(programs) == 1


def test_errors():
    x, ids = np.arange(3), np.zeros(3, np.int32)
    numbers = "dtype: expected integers of 8 to 64 bits, float16, bfloat16, float32 or float64, got "
    for name, call in {
        "reduce": mgpu.reduce,
        "scan": mgpu.scan,
        "segmented_reduce": lambda x, op="add", **named: mgpu.segmented_reduce(x, ids, op, **named),
        "segmented_scan": lambda x, op="add", **named: mgpu.segmented_scan(x, ids, op, **named),
        "reduce_by_key": lambda x, op="add", **named: mgpu.reduce_by_key(ids, x, op, size=1, **named),
        "reduce_by_id": lambda x, op="add", **named: mgpu.reduce_by_id(x, ids, 1, op, **named),
    }.items():
        for dtype in ("no type", "complex64", bool, 3):
            with pytest.raises(TypeError, match=f"{name}: {numbers}{dtype!r}"):
                call(x, dtype=dtype)
        with pytest.raises(TypeError, match=f"{name}: dtype: expected floats for 'mean', got int32"):
            call(x, "mean", dtype="int32")
        with pytest.raises(TypeError, match=f"{name}: dtype: expected integers or bools for 'xor', got float32"):
            call(x, "xor", dtype="float32")
        if name != "reduce_by_id":
            with pytest.raises(TypeError, match=f"{name}: dtype: expected None with a function as op"):
                call(x, lambda a, b: a + b, dtype="float32")
