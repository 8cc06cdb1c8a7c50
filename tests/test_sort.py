"""sort and argsort against tests/oracle.py."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from jax_mgpu._src.core import library
from jax_mgpu._src.ops.sort_primitives import Method
from tests import data, oracle
from tests.oracle import same_bits
from tests.variants import long_but

pytestmark = pytest.mark.usefixtures("x64")

N = 2**20 + 4321 if jax.default_backend() == "gpu" else 2**17 + 4321


@functools.cache
def jitted(**attributes):
    """Returns a function that sorts keys alone, with values of 4 and of 8 bytes, and as indices."""

    def sorts(keys, four, eight, count):
        sort = functools.partial(mgpu.sort, count=count, **attributes)
        return sort(keys), sort(keys, four), sort(keys, eight), mgpu.argsort(keys, count=count, **attributes)

    return jax.jit(sorts)


def order_of(keys, descending=False, count=None):
    live = len(keys) if count is None else count
    return np.concatenate([oracle.sort_indices(keys[:live], descending), np.arange(live, len(keys))])


def check(keys, *, count=None, descending=False, **attributes):
    order = order_of(keys, descending, count)
    four = np.arange(len(keys), dtype=np.uint32) * np.uint32(0x9E3779B1)
    eight = -np.arange(len(keys), dtype=np.float64)
    alone, (with_four, moved_four), (with_eight, moved_eight), indices = jitted(descending=descending, **attributes)(
        keys, four, eight, count
    )
    for got in (alone, with_four, with_eight):
        same_bits(got, keys[order])
    same_bits(moved_four, four[order])
    same_bits(moved_eight, eight[order])
    same_bits(indices, order.astype(np.int32))


# ---- Types, digits, sizes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_every_key_type(rng, dtype, descending):
    keys = data.random_keys(rng, dtype, N)
    check(keys, descending=descending)
    for count in (N - 1, 5000, 1, 0):
        check(keys, descending=descending, count=count)


INPUTS = {
    "sorted": lambda rng, i: i,
    "reversed": lambda rng, i: i[::-1],
    "constant": lambda rng, i: np.full_like(i, 0x01020304),
    "one item far from its place": lambda rng, i: np.append(i[1:], 0),
    "all but one the same": lambda rng, i: np.where(i == i.size // 2, 2**24, 5),
    "two values": lambda rng, i: rng.integers(0, 2, i.size) * 0x7FFFFFFF,
    "the lowest digit alone": lambda rng, i: 0x11223300 + rng.integers(0, 256, i.size),
    "the highest digit alone": lambda rng, i: rng.integers(0, 128, i.size) << 24,
    "the first and the third digit": lambda rng, i: rng.integers(0, 2**31, i.size) & 0x00FF00FF,
    "three digits": lambda rng, i: rng.integers(0, 2**24, i.size),
    "mostly one value": lambda rng, i: np.where(rng.random(i.size) < 1e-3, rng.integers(0, 2**31, i.size), 2**20),
    "a digit a tile": lambda rng, i: i // 8192 % 256,
}


@pytest.mark.parametrize("dtype", ["int32", "uint64"])
@pytest.mark.parametrize("what", INPUTS)
def test_digits_that_differ_or_do_not(rng, what, dtype):
    keys = INPUTS[what](rng, np.arange(N)).astype(dtype)
    check(keys)
    check(keys, count=N - 9000)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_equal_keys_of_other_bits_stay_in_order(rng, dtype):
    specials = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1.0], dtype)
    keys = rng.choice(specials, N)
    for descending in (False, True):
        check(keys, descending=descending)


@pytest.mark.parametrize("n", [0, 1, 2, 1000, 2**14 + 1, 2**18 + 77, 2**20 - 1, 2**20])
def test_sizes(rng, n):
    check(rng.integers(0, 2**32, n, dtype=np.uint32))


def test_tile_edges(rng):
    keys = rng.integers(0, 2**32, N, dtype=np.uint32)
    for tile in data.tile_sizes("sort_digits"):
        for count in (tile - 1, tile, tile + 1, 5 * tile, 5 * tile + 1):
            check(keys, count=count)


def test_many_tiles(rng):
    n = 2**24 + 1
    keys = rng.integers(0, 2**32, n, dtype=np.uint32)
    same_bits(jax.jit(mgpu.sort)(keys), np.sort(keys))
    few = (keys % 3).astype(np.uint8)
    same_bits(jax.jit(mgpu.argsort)(few), np.argsort(few, kind="stable").astype(np.int32))


@pytest.mark.parametrize("what", ["random", "in order", "few values"])
@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_long_keys_of_many_items(rng, dtype, what):
    n = 2**22 + 4321 if jax.default_backend() == "gpu" else N
    keys = data.random_keys(rng, dtype, n)
    if what == "in order":
        keys = np.sort(keys)
    elif what == "few values":
        keys = keys[:5][rng.integers(0, 5, n)]
    tile = max(data.tile_sizes("sort_digits"))
    check(keys)
    check(keys, count=n // tile * tile - 1, descending=True)


def test_the_order_is_that_of_lax_sort(rng):
    keys = data.without_subnormals(data.random_keys(rng, "float32", 1000))
    same_bits(mgpu.sort(keys), jax.lax.sort(jnp.asarray(keys), is_stable=True))


# ---- Bits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("bits", [1, 7, 8, 9, 15])
def test_few_bits(rng, dtype, bits):
    bits = min(bits, 7) if dtype == "uint8" else bits
    keys = rng.integers(0, 2**bits, N).astype(dtype)
    for descending in (False, True):
        check(keys, bits=bits, descending=descending)
    check(keys, bits=bits, count=N // 3)


def test_all_bits(rng):
    for dtype in ("uint8", "int32", "uint64"):
        check(data.random_keys(rng, dtype, 1000), bits=8 * np.dtype(dtype).itemsize)


# ---- Rows of batches: up to some length, a block of a GPU sorts a row by digits --------------------------------------


ROWS = data.tile_sizes("sort_row_digits")
LENGTHS = sorted({520, 1000, 3001, 40001} | {tile + d for tile in ROWS for d in (-1, 0, 1)})
DTYPES = ("uint8", "int8", "int16", "uint16", "float16", "bfloat16", "int32", "float32", "uint64", "int64", "float64")
IN_BLOCKS = [*((dtype, None) for dtype in DTYPES), ("int32", 7), ("uint64", 16), ("uint32", 17), ("int64", 33)]


@pytest.mark.parametrize("dtype, bits", IN_BLOCKS)
@pytest.mark.parametrize("n", long_but([1000, ROWS[0] + 1], LENGTHS))
def test_rows_in_blocks(rng, n, dtype, bits):
    batch = N // n + 1
    if bits is not None:
        keys = rng.integers(0, 2**bits, (batch, n)).astype(dtype)
    else:
        keys = data.random_keys(rng, dtype, batch, n)
    keys[1] = keys[1, 0]
    keys[2] = rng.choice(keys[0, :5], n)
    if jnp.issubdtype(dtype, jnp.floating):  # many keys compare equal but differ in bits
        keys[3] = rng.choice(np.array([0.0, -0.0, np.nan, -np.nan, 1.0], dtype), n)
    counts = rng.integers(0, n + 3, batch).astype(np.int32)
    counts[:4] = n
    four = rng.integers(0, 2**32, (batch, n), dtype=np.uint32)
    eight = rng.integers(0, 2**63, (batch, n), dtype=np.uint64)
    for descending in (False, True):
        sorts = jax.jit(jax.vmap(jitted(descending=descending, bits=bits)))
        alone, (with_four, moved_four), (with_eight, moved_eight), indices = sorts(keys, four, eight, counts)
        order = np.stack([order_of(row, descending, min(n, live)) for row, live in zip(keys, counts, strict=True)])
        for got in (alone, with_four, with_eight):
            same_bits(got, np.take_along_axis(keys, order, 1))
        same_bits(moved_four, np.take_along_axis(four, order, 1))
        same_bits(moved_eight, np.take_along_axis(eight, order, 1))
        same_bits(indices, order.astype(np.int32))


@pytest.mark.parametrize(("dtype", "bits"), [("uint16", None), ("bfloat16", None), ("int16", 8), ("uint16", 11)])
@pytest.mark.parametrize("n", long_but([20737], [16385, 20736, 20737, 31105, 65536, 2**18 - 1]))
def test_rows_of_two_byte_keys_by_several_blocks(rng, n, dtype, bits):
    batch = max(2**18 // n + 2, 9)
    keys = rng.integers(0, 2 ** (bits or 16), (batch, n)).astype(np.uint16)
    keys[0] &= 0xFF
    keys[1] &= 0xFF00
    keys[2] = keys[2, 0]
    keys[3] = rng.choice(keys[3, :5], n)
    keys[5].sort()
    keys = keys.view(dtype)
    counts = np.full(batch, n, np.int32)
    counts[4:9] = 0, 1, n - 1, n // 3, 10369
    four = rng.integers(0, 2**32, (batch, n), dtype=np.uint32)
    eight = rng.integers(0, 2**63, (batch, n), dtype=np.uint64)
    sorts = jax.jit(jax.vmap(jitted(bits=bits)))
    alone, (with_four, moved_four), (with_eight, moved_eight), indices = sorts(keys, four, eight, counts)
    order = np.stack([order_of(row, count=live) for row, live in zip(keys, counts, strict=True)])
    for got in (alone, with_four, with_eight):
        same_bits(got, np.take_along_axis(keys, order, 1))
    same_bits(moved_four, np.take_along_axis(four, order, 1))
    same_bits(moved_eight, np.take_along_axis(eight, order, 1))
    same_bits(indices, order.astype(np.int32))


# ---- Values, batches, derivatives -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1000, N])
def test_a_pytree_of_values(rng, n):
    keys = data.random_keys(rng, "float32", n)
    values = {
        "half": data.random_keys(rng, "float16", n),
        "rows": [rng.normal(size=(n, 3)).astype(np.float32), rng.integers(0, 2, (n, 2, 2)).astype(bool)],
        "complex": rng.normal(size=n) + 1j * rng.normal(size=n),
        "nothing": None,
    }
    order = order_of(keys, True, n - 100)
    sorted_keys, moved = jax.jit(functools.partial(mgpu.sort, descending=True, count=n - 100))(keys, values)
    same_bits(sorted_keys, keys[order])
    assert jax.tree.structure(moved) == jax.tree.structure(values)
    for got, given in zip(jax.tree.leaves(moved), jax.tree.leaves(values), strict=True):
        assert np.asarray(got).tobytes() == np.asarray(given)[order].tobytes()


@pytest.mark.parametrize("dtype", ["int32", "float64", "uint8"])
@pytest.mark.parametrize("n", [40, 70001, 3 * 10**5])
def test_batches(rng, n, dtype):
    keys = data.random_keys(rng, dtype, 4, n)
    keys[3] = keys[3, 0]
    counts = np.array([n, 0, n // 3, n + 5], np.int32)
    values = rng.integers(0, 2**32, (4, n), dtype=np.uint32)
    for axes in ((0, 0, 0), (0, 0, None), (None, 0, 0), (0, None, 0)):
        given = [x if axis == 0 else x[2] for x, axis in zip((keys, values, counts), axes, strict=True)]
        sort = jax.jit(jax.vmap(lambda k, v, c: (mgpu.sort(k, v, count=c), mgpu.argsort(k, count=c)), in_axes=axes))
        (got, moved), indices = sort(*given)
        for b in range(4):
            row, value, count = (x[b] if axis == 0 else x for x, axis in zip(given, axes, strict=True))
            order = order_of(row, count=min(n, count))
            same_bits(got[b], row[order])
            same_bits(moved[b], value[order])
            same_bits(indices[b], order.astype(np.int32))


@pytest.mark.parametrize("n", [0, 1])
def test_rows_of_one_item_or_none_call_no_kernel(rng, n):
    keys, low, values = (
        data.random_keys(rng, dtype, 30).reshape(-1, 1)[:, :n] for dtype in ("float32", "int64", "uint8")
    )

    def sorts(keys, low, values):
        columns = mgpu.sort((keys, low), values, descending=(True, False))
        return mgpu.sort(keys, values), columns, mgpu.argsort((low, keys)), mgpu.argsort(low)

    program = jax.jit(jax.vmap(sorts))
    (alone, moved), ((first, second), third), *indices = program(keys, low, values)
    for got, expected in zip((alone, moved, first, second, third), (keys, values, keys, low, values), strict=True):
        same_bits(got, expected)
    for got in indices:
        same_bits(got, np.zeros((30, n), np.int32))
    assert "custom_call" not in program.lower(keys, low, values).as_text()


def test_what_is_checked_of_many_items_is_checked_of_one():
    one = jnp.ones(1, jnp.int32)
    for call in (
        lambda: mgpu.sort(one, count=3),
        lambda: mgpu.argsort(one, count=3),
        lambda: mgpu.sort((one, one), one, count=3),
        lambda: mgpu.segmented_sort(one, jnp.array([5, 2])),
        lambda: mgpu.segmented_sort_indices(one, jnp.array([5, 2])),
    ):
        with mgpu.checks(), pytest.raises(Exception, match="expected"):
            jax.block_until_ready(call())


def test_derivatives_go_through_the_permutation(rng):
    n = 200
    keys, values = rng.permutation(n).astype(np.float64), rng.normal(size=n)
    sort = functools.partial(mgpu.sort, descending=True, count=jnp.int32(150))
    check_grads(jax.jit(lambda k, v: sort(jnp.sin(k), (v, v[:, None]))), (keys / n, values), order=2, eps=1e-5)
    check_grads(jax.jit(sort), (keys, values), order=2, eps=1e-3)
    weights = np.arange(n, dtype=np.float64)
    expected = np.zeros(n)
    expected[order_of(keys, True, 150)] = weights
    same_bits(jax.grad(lambda k: jnp.sum(weights * sort(k)))(keys), expected)
    assert not jax.grad(lambda k: jnp.sum(k[mgpu.argsort(k)] * 0 + mgpu.argsort(k)))(keys).any()


def test_a_gradient_of_many_items(rng):
    keys = rng.normal(size=N).astype(np.float32)
    weights = np.arange(N, dtype=np.float32)
    expected = np.zeros(N, np.float32)
    expected[order_of(keys)] = weights
    same_bits(jax.jit(jax.grad(lambda k: jnp.sum(weights * mgpu.sort(k))))(keys), expected)


# ---- Memory ---------------------------------------------------------------------------------------------------------


def scratch_share(dtype, payload, shape):
    """Returns a sort's scratch memory in multiples of keys and values."""
    keys = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
    values = [jax.ShapeDtypeStruct(shape, jnp.dtype(payload))] if payload else []
    absent = jax.ShapeDtypeStruct((*shape[:-1], 0), np.int32)
    operands = [keys, absent, absent, absent, *(values or [absent])]
    bits = 8 * keys.dtype.itemsize
    attributes = {"descending": 0, "method": Method.FASTEST, "bits": bits, "payload": 1 if payload else 0}
    taken = library.workspace_bytes("segmented_sort", operands, [keys, *values], attributes)
    return taken / sum(x.size * x.dtype.itemsize for x in [keys, *values])


@pytest.mark.parametrize("payload", [None, "uint32", "uint64"])
@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_scratch_memory_is_a_copy_and_little_more(dtype, payload):
    for items in (18, 19, 20, 21, 22, 24, 26, 28):
        for rows in (0, 2, 4, 6, 8, 10, 16, 20):
            if rows < items:
                assert scratch_share(dtype, payload, (2**rows, 2 ** (items - rows))) <= 1.05, (items, rows)


@pytest.mark.parametrize("dtype", ["int16", "uint16", "float16", "bfloat16"])
def test_scratch_memory_of_rows_of_any_length_without_values(dtype):
    for length in range(2**14 + 1, 2**18, 997):
        assert scratch_share(dtype, None, (2**22 // length, length)) <= 1.05, length


# ---- Misuse ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "arguments", "error", "message"),
    [
        (
            np.zeros(4, bool),
            {},
            TypeError,
            "keys: expected integers of 8 to 64 bits, float16, bfloat16, float32 or float64, got bool[4] "
            "(x.astype(jnp.uint8) gives numbers)",
        ),
        (None, {}, TypeError, "keys: expected an array of numbers, got None"),
        (
            np.zeros((1, 4), np.float32),
            {},
            ValueError,
            "keys: expected a 1-D array (batches come from jax.vmap), got float32[1,4]",
        ),
        (np.zeros(4, np.float32), {"count": 1.5}, TypeError, "count: expected an integer scalar, got 1.5"),
        (
            np.zeros(4, np.float32),
            {"bits": 8},
            TypeError,
            "keys: expected integers where bits is given, got float32[4]",
        ),
        (np.zeros(4, np.int32), {"bits": 2.5}, TypeError, "bits: expected a static, non-negative integer, got 2.5"),
        (np.zeros(4, np.int32), {"bits": 0}, ValueError, "bits: expected an integer from 1 to 32, got 0"),
        (np.zeros(4, np.int8), {"bits": 9}, ValueError, "bits: expected an integer from 1 to 8, got 9"),
    ],
    ids=lambda x: x.split(":")[0] if isinstance(x, str) else None,
)
def test_error_messages(keys, arguments, error, message):
    for name in ("sort", "argsort"):
        with pytest.raises(error) as caught:
            getattr(mgpu, name)(keys, **arguments)
        assert str(caught.value) == f"{name}: {message}"


def test_values_of_another_length():
    with pytest.raises(ValueError, match="values") as caught:
        mgpu.sort(np.zeros(4, np.float32), np.zeros(3, np.float32))
    assert str(caught.value) == "sort: values: expected arrays with the leading axis of keys, 4, got float32[3]"


def test_a_broken_promise_of_bits_still_permutes(rng):
    keys = rng.integers(0, 2**31, N).astype(np.int32)
    got, indices = mgpu.sort(keys, np.arange(N, dtype=np.int32), bits=12)
    same_bits(np.sort(np.asarray(indices)), np.arange(N, dtype=np.int32))
    same_bits(got, keys[np.asarray(indices)])
