"""mergesort, locality_sort and their indices, against tests/oracle.py."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from tests import data, oracle
from tests.oracle import same_bits
from tests.variants import long_but

pytestmark = pytest.mark.usefixtures("x64")

SORTS = ["mergesort", "locality_sort"]


@functools.cache
def jitted(name, **attributes):
    return jax.jit(functools.partial(getattr(mgpu, name), **attributes))


def order_of(keys, descending=False, count=None):
    live = len(keys) if count is None else count
    return np.concatenate([oracle.sort_indices(keys[:live], descending), np.arange(live, len(keys))])


def check(keys, name="mergesort", *, descending=False, count=None):
    """Checks keys and original positions, which show stability."""
    order = order_of(keys, descending, count)
    sorted_keys, indices = jitted(f"{name}_indices", descending=descending)(keys, count=count)
    same_bits(sorted_keys, keys[order])
    same_bits(indices, order.astype(np.int32))


# ---- Types, directions, sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
def test_every_key_type(rng, dtype, descending):
    n = 5 * 16384 + 77
    keys = data.random_keys(rng, dtype, n)
    values = rng.integers(0, 2**32, n, dtype=np.uint32)
    for name in SORTS:
        check(keys, name, descending=descending)
        for count in (n, n - 1, 16384, 1, 0):
            check(keys, name, descending=descending, count=count)
        order = order_of(keys, descending)
        same_bits(getattr(mgpu, name)(keys, descending=descending), keys[order])
        sorted_keys, moved = getattr(mgpu, name)(keys, values, descending=descending)
        same_bits(sorted_keys, keys[order])
        same_bits(moved, values[order])


@pytest.mark.parametrize("dtype", ["uint32", "float64"])
@pytest.mark.parametrize("name", SORTS)
def test_sizes_around_powers_of_two(rng, name, dtype):
    # The live count stands for the number of items, so few shapes serve all sizes.
    for exponents in (range(7), range(7, 14), range(14, 18), (18, 20) if dtype == "float64" else (20, 22)):
        keys = data.random_keys(rng, dtype, 2 ** max(exponents) + 9)
        for count in (2**exponent + d for exponent in exponents for d in (-1, 0, 1)):
            got = np.asarray(jitted(name)(keys, count=count))
            same_bits(got[count:], keys[count:])
            live, given = got[:count], keys[:count]
            if count < 2**15:
                same_bits(live, given[oracle.sort_indices(given)])
            else:  # the oracle would take seconds, so only order and completeness are checked
                same_bits(np.sort(oracle.bits(live)), np.sort(oracle.bits(given)))
                numbers = live[~np.isnan(live.astype(np.float64))]
                same_bits(live[: len(numbers)], numbers)
                assert np.all(numbers[:-1] <= numbers[1:])


def with_equals(rng, keys):
    """Replaces three keys in ten: floats by zeros, NaNs and infinities, integers by the largest of their type."""
    if np.issubdtype(keys.dtype, np.integer):
        return np.where(rng.random(keys.size) < 0.3, np.iinfo(keys.dtype).max, keys)
    specials = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf], keys.dtype)
    return np.where(rng.random(keys.size) < 0.3, rng.choice(specials, keys.size), keys)


@pytest.mark.parametrize("dtype", long_but(["uint8", "float64"], ["uint8", "int32", "float32", "float64"]))
@pytest.mark.parametrize("n", [1025, 4095, 4096, 4097, 8193, 16384, 16385, 65536, 65537, 2**18, 2**18 + 1])
def test_sizes_around_cells_and_tiles(rng, dtype, n):
    plain = rng.permutation(n).astype(dtype)
    for keys in (plain, with_equals(rng, plain)):
        for descending in (False, True):
            order = order_of(keys, descending)
            same_bits(mgpu.mergesort(keys, descending=descending), keys[order])
            same_bits(mgpu.mergesort_indices(keys, descending=descending)[1], order.astype(np.int32))


@pytest.mark.parametrize("n", [0, 1, 2, 3])
@pytest.mark.parametrize("name", SORTS)
def test_a_few_items(name, n):
    check(np.arange(n, 0, -1).astype(np.int32), name)
    same_bits(getattr(mgpu, name)(np.zeros(n, np.float32)), np.zeros(n, np.float32))


N = 2**19 + 4321
INPUTS = {
    "sorted": lambda rng, i: i,
    "reversed": lambda rng, i: i[::-1],
    "organ pipe": lambda rng, i: np.minimum(i, i[::-1]),
    "valley": lambda rng, i: np.maximum(i, i[::-1]),
    "constant": lambda rng, i: np.zeros_like(i),
    "two values": lambda rng, i: rng.integers(0, 2, i.size),
    "two halves": lambda rng, i: (i + i.size // 2) % i.size,
    "sawtooth": lambda rng, i: i % 4097,
    "i + rand(25)": lambda rng, i: i + rng.integers(0, 25, i.size),
    "i + rand(4096)": lambda rng, i: i + rng.integers(0, 4096, i.size),
    "i + rand(2^17)": lambda rng, i: i + rng.integers(0, 2**17, i.size),
    "one item far from its place": lambda rng, i: np.append(i[1:], 0),
    "two items exchanged": lambda rng, i: np.concatenate([i[-1:], i[1:-1], i[:1]]),
    "crowded, one in 10,000 far away": lambda rng, i: np.where(
        rng.random(i.size) < 1e-4, rng.integers(0, 2**31, i.size), 2**20 + rng.integers(0, 9, i.size)
    ),
    "every 1000th at random": lambda rng, i: np.where(i % 1000 == 0, rng.integers(0, i.size, i.size), i),
    "sorted tiles in any order": lambda rng, i: (
        np.resize(rng.permutation(i.size // 4352 + 1) * 4352, i.size) + i % 4352
    ),
    "a random third between sorted ones": lambda rng, i: np.where(
        (i > i.size // 3) & (i < 2 * i.size // 3), rng.integers(i.size // 3, 2 * i.size // 3, i.size), i
    ),
}


@pytest.mark.parametrize("dtype", long_but(["uint32"], ["uint32", "int64"]))
@pytest.mark.parametrize("what", INPUTS)
def test_inputs_with_a_shape(rng, what, dtype):
    keys = INPUTS[what](rng, np.arange(N)).astype(dtype)
    for name in SORTS:
        check(keys, name)
        check(keys, name, count=N - 5000)


@pytest.mark.parametrize("cells", [16, 17, 20, 33])
@pytest.mark.parametrize("width", [1, 25, 140, 4096, 2**14, 2**17])
def test_nearly_sorted_keys_around_the_limits_of_cells(rng, cells, width):
    n = cells * 2**14 + 1
    keys = np.arange(n) + rng.integers(0, width, n)
    for dtype, descending in (("uint32", False), ("float32", True)):
        typed = (keys[::-1] if descending else keys).astype(dtype)
        for count in (n, n - 1, n - 2):
            live = typed[:count]
            got = np.asarray(jitted("locality_sort", descending=descending)(typed, count=count))
            same_bits(got[count:], typed[count:])
            same_bits(got[:count], np.sort(live)[::-1] if descending else np.sort(live))
        check(typed, "locality_sort", descending=descending)


@pytest.mark.parametrize("width", [1, 25, 2**14, 2**18, 2**21])
def test_nearly_sorted_keys_in_three_phases(rng, width):
    n = 257 * 2**13 + 5
    check((np.arange(n) + rng.integers(0, width, n)).astype(np.int32), "locality_sort")


def test_more_tiles_to_merge_than_blocks(rng):
    n = (2500 if jax.default_backend() == "gpu" else 100) * 2**12 + 5
    keys = np.arange(n) + rng.integers(0, 2**13, n)
    same_bits(jitted("locality_sort")(keys), np.sort(keys))


def test_more_keys_and_indices_than_merge_in_pairs(rng):
    n = 257 * 2**13 + 5
    keys = rng.integers(0, 2**20, n).astype(np.int32)
    check(keys)
    check(keys, count=n - 5000)


def test_a_batch_of_nearly_sorted_rows(rng):
    n = 5 * 2**14 + 1001
    i = np.arange(n)
    rows = [i, i + rng.integers(0, 25, n), i + rng.integers(0, 2**14, n), rng.integers(0, n, n), i[::-1]] * 2
    counts = rng.integers(n - 2**15, n + 1, len(rows)).astype(np.int32)
    counts[:4] = n, 0, 1, 2**14
    keys = np.stack(rows).astype(np.int32)
    sort = jax.jit(jax.vmap(lambda k, c: (mgpu.locality_sort(k, count=c), mgpu.locality_sort_indices(k, count=c))))
    alone, (got, indices) = sort(keys, counts)
    for b, (row, count) in enumerate(zip(keys, counts, strict=True)):
        order = order_of(row, count=count)
        same_bits(alone[b], row[order])
        same_bits(got[b], row[order])
        same_bits(indices[b], order.astype(np.int32))


def test_the_order_is_that_of_lax_sort(rng):
    keys = data.random_keys(rng, "float32", 1000)
    # XLA's CPU code flushes subnormals when it sorts, and its GPU code does not, so these keys have none.
    keys[np.abs(keys) < np.finfo(np.float32).tiny] = 0
    for name in SORTS:
        same_bits(getattr(mgpu, name)(keys), jax.lax.sort(jnp.asarray(keys), is_stable=True))


# ---- Values, batches, derivatives -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SORTS)
def test_a_pytree_of_values(rng, name):
    n = 1000
    keys = data.random_keys(rng, "float64", n)
    values = {
        "half": data.random_keys(rng, "float16", n),
        "rows": [rng.normal(size=(n, 3)).astype(np.float32), rng.integers(0, 2, (n, 2, 2)).astype(bool)],
        "complex": rng.normal(size=n) + 1j * rng.normal(size=n),
        "nothing": None,
    }
    order = order_of(keys, True, 900)
    sorted_keys, moved = getattr(mgpu, name)(keys, values, descending=True, count=900)
    same_bits(sorted_keys, keys[order])
    assert jax.tree.structure(moved) == jax.tree.structure(values)
    for got, given in zip(jax.tree.leaves(moved), jax.tree.leaves(values), strict=True):
        assert np.asarray(got).tobytes() == np.asarray(given)[order].tobytes()


@pytest.mark.parametrize("name", SORTS)
@pytest.mark.parametrize("n", [40, 2500, 5000, 8191, 40000, 70001])
def test_batches(rng, n, name):
    keys = data.random_keys(rng, "int32", 4, n)
    counts = np.array([n, 0, n // 3, n + 5], np.int32)
    sort = getattr(mgpu, f"{name}_indices")
    for axes in ((0, 0), (0, None), (None, 0)):
        batch_keys = keys if axes[0] == 0 else keys[0]
        batch_counts = counts if axes[1] == 0 else counts[2]
        got, indices = jax.jit(jax.vmap(lambda k, c: sort(k, count=c), in_axes=axes))(batch_keys, batch_counts)
        for b in range(4):
            row, count = keys[b if axes[0] == 0 else 0], min(n, counts[b if axes[1] == 0 else 2])
            order = order_of(row, count=count)
            same_bits(got[b], row[order])
            same_bits(indices[b], order.astype(np.int32))


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
@pytest.mark.parametrize(
    ("rows", "n"), [(1000, 33), (300, 1000), (270, 1001), (90, 3000), (70_000, 2), (40_000, 4), (20_000, 17)]
)
def test_many_short_rows(rng, rows, n, dtype):
    keys = rng.integers(0, 100, (rows, n)).astype(dtype)
    counts = rng.integers(0, n + 1, rows).astype(np.int32)
    counts[:3] = n, 0, 1
    dead = np.arange(n) >= counts[:, None]
    order = np.argsort(np.where(dead, 1000, keys.astype(np.int64)), axis=1, kind="stable").astype(np.int32)
    sort = jax.jit(jax.vmap(lambda k, c: (mgpu.mergesort(k, count=c), mgpu.mergesort_indices(k, count=c))))
    alone, (got, indices) = sort(keys, counts)
    same_bits(alone, np.take_along_axis(keys, order, axis=1))
    same_bits(got, np.take_along_axis(keys, order, axis=1))
    same_bits(indices, order)


@pytest.mark.parametrize(
    "case",
    long_but(
        [("float32", 200, False), ("uint16", 256, True), ("int64", 128, True), ("bfloat16", 512, False)],
        [
            (dtype, n, descending)
            for dtype in data.KEY_DTYPES
            for n, descending in [(64, False), (128, True), (129, False), (200, False), (256, True), (512, False)]
        ],
    ),
    ids=str,
)
def test_rows_that_share_a_block(rng, case):
    dtype, n, descending = case
    rows = max(2**24 // n**2 + 3, 70)
    keys = data.random_keys(rng, dtype, rows, n)
    keys[rows // 2 :] = rng.integers(1, 100, (rows - rows // 2, n)).astype(keys.dtype)  # neither NaNs nor zeros
    counts = rng.integers(0, n + 2, rows).astype(np.int32)
    counts[:3] = n, 0, 1
    ranks = oracle.rank(keys).astype(np.int64)
    for live in (None, counts):
        dead = np.arange(n) >= (n if live is None else live[:, None])
        order = np.argsort(np.where(dead, 2**60, -ranks if descending else ranks), axis=1, kind="stable")
        expected = np.take_along_axis(keys, order, axis=1)
        axes = (0, None if live is None else 0)
        sort = jax.vmap(lambda k, c: mgpu.mergesort(k, count=c, descending=descending), axes)
        same_bits(jax.jit(sort)(keys, live), expected)
        indices = jax.vmap(lambda k, c: mgpu.mergesort_indices(k, count=c, descending=descending), axes)
        got, places = jax.jit(indices)(keys, live)
        same_bits(got, expected)
        same_bits(places, order.astype(np.int32))


@pytest.mark.parametrize("name", SORTS)
def test_derivatives_go_through_the_permutation(rng, name):
    n = 200
    keys, values = rng.permutation(n).astype(np.float64), rng.normal(size=n)
    sort = functools.partial(getattr(mgpu, name), descending=True, count=jnp.int32(150))
    check_grads(jax.jit(lambda k, v: sort(jnp.sin(k), (v, v[:, None]))), (keys / n, values), order=2, eps=1e-5)
    check_grads(jax.jit(sort), (keys, values), order=2, eps=1e-3)

    weights = np.arange(n, dtype=np.float64)
    order = order_of(keys, True, 150)
    expected = np.zeros(n)
    expected[order] = weights
    same_bits(jax.grad(lambda k: jnp.sum(weights * sort(k)))(keys), expected)
    rows = np.stack([keys, keys[::-1]])
    gradients = jax.vmap(jax.grad(lambda k: jnp.sum(weights * sort(k))))(rows)
    same_bits(gradients[0], expected)


# ---- Misuse ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "count", "error", "message"),
    [
        (
            np.zeros(4, bool),
            None,
            TypeError,
            "keys: expected integers of 8 to 64 bits, float16, bfloat16, float32 or float64, got bool[4] "
            "(x.astype(jnp.uint8) gives numbers)",
        ),
        (None, None, TypeError, "keys: expected an array of numbers, got None"),
        (
            np.zeros((1, 4), np.float32),
            None,
            ValueError,
            "keys: expected a 1-D array (batches come from jax.vmap), got float32[1,4]",
        ),
        (np.zeros(4, np.float32), 1.5, TypeError, "count: expected an integer scalar, got 1.5"),
        (np.zeros(4, np.float32), np.zeros(2, np.int32), ValueError, "count: expected an integer scalar, got int32[2]"),
    ],
    ids=lambda x: x.split(":")[0] if isinstance(x, str) else None,
)
def test_error_messages(keys, count, error, message):
    for name in [*SORTS, *(f"{name}_indices" for name in SORTS)]:
        with pytest.raises(error) as caught:
            getattr(mgpu, name)(keys, count=count)
        assert str(caught.value) == f"{name}: {message}"


def test_values_of_another_length():
    for name in SORTS:
        with pytest.raises(ValueError, match="values") as caught:
            getattr(mgpu, name)(np.zeros(4, np.float32), np.zeros(3, np.float32))
        assert str(caught.value) == f"{name}: values: expected arrays with the leading axis of keys, 4, got float32[3]"
