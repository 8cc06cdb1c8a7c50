"""Arguments: 64-bit numbers without x64, flags, sizes, fill values, and arrays that hold no numbers.

Errors have the form `operation: argument: expected ..., got ...` with the operation that the caller called.
"""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.arguments import check
from jax_mgpu._src.keys import columns
from tests.families import EXAMPLES

KEYS = np.array([1, 3, 5], np.int32)
WIDE = np.array([1, 2, 2**32 + 1])  # int32 would make the last one 1
A = np.arange(4)
ROWS = (np.array([0, 1]), np.array([0, 2]))


# ---- Integers of 64 bits, where JAX has 32 ---------------------------------------------------------------------------


KEYS_THAT_DO_NOT_FIT = {
    "join: a": lambda k: mgpu.join(k, KEYS, size=4),
    "join: b": lambda k: mgpu.join(KEYS, k, size=4),
    "merge: b": lambda k: mgpu.merge(KEYS, k),
    "mergesort: keys": mgpu.mergesort,
    "mergesort: values": lambda k: mgpu.mergesort(KEYS, k),
    "mergesort_indices: keys": mgpu.mergesort_indices,
    "locality_sort: keys": mgpu.locality_sort,
    "segmented_sort: keys": lambda k: mgpu.segmented_sort(k, [0]),
    "sorted_search: needles": lambda k: mgpu.sorted_search(k, KEYS),
    "sorted_match: b": lambda k: mgpu.sorted_match(KEYS, k),
    "set_union: a": lambda k: mgpu.set_union(k, KEYS),
    "set_union: b_values": lambda k: mgpu.set_union(KEYS, KEYS, {"x": KEYS}, {"x": k}),
    "reduce: x": mgpu.reduce,
    "scan: x": mgpu.scan,
    "segmented_reduce: x": lambda k: mgpu.segmented_reduce(k, [0]),
    "reduce_by_key: keys": lambda k: mgpu.reduce_by_key(k, KEYS, size=3),
    "reduce_by_key: values": lambda k: mgpu.reduce_by_key(KEYS, k, size=3),
    "interval_expand: values": lambda k: mgpu.interval_expand(k, KEYS, 6),
    "bulk_insert: values": lambda k: mgpu.bulk_insert(KEYS, KEYS, k),
    "join_columns: a_columns": lambda k: mgpu.join_columns(mgpu.join(KEYS, KEYS, size=3), k),
}


@pytest.mark.parametrize("name", KEYS_THAT_DO_NOT_FIT)
def test_integers_that_do_not_fit_are_an_error(name):
    call = KEYS_THAT_DO_NOT_FIT[name]
    fits = "integers that fit int32 (int64 needs jax_enable_x64), got 4294967297"
    pytree = name.endswith(("_values", ": values", "_columns"))
    for given in (WIDE, pd.Series(WIDE), WIDE if pytree else WIDE.tolist()):
        with jax.enable_x64(False), pytest.raises(ValueError, match=re.escape(f"{name}: expected {fits}")):
            call(given)
    unsigned = WIDE.astype(np.uint64) + 2**33
    with jax.enable_x64(False), pytest.raises(ValueError, match=f"^{name}: expected integers that fit uint32"):
        call(unsigned)


def test_integers_that_fit_are_converted():
    for given in (np.array([4, 1, 2]), [4, 1, 2], pd.Series([4, 1, 2]), np.array([4, 1, 2], np.uint64)):
        with jax.enable_x64(False):
            got = mgpu.mergesort(given)
        assert got.dtype in (jnp.int32, jnp.uint32)
        np.testing.assert_array_equal(got, [1, 2, 4])
    with jax.enable_x64(True):
        np.testing.assert_array_equal(mgpu.mergesort(WIDE[::-1]), WIDE)
        assert int(mgpu.join([1, 2**32 + 1], [2**32 + 1], size=2).count) == 1


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("past", [2**31, 2**32, 2**32 + 1, 2**62])
def test_positions_past_the_end_stay_there(wide, past):
    x = np.arange(5, dtype=np.int32)
    with jax.enable_x64(wide):
        for heads in ([0, 3, past], np.array([0, 3, past]), np.array([0, 3, past], np.uint64), pd.Series([0, 3, past])):
            np.testing.assert_array_equal(mgpu.segmented_reduce(x, heads), [3, 7, 0])
            np.testing.assert_array_equal(mgpu.segmented_scan(x, heads), [0, 1, 3, 3, 7])
            np.testing.assert_array_equal(mgpu.segmented_sort(x[::-1], heads), [2, 3, 4, 0, 1])
        for indices in ([1, past], np.array([1, past])):
            np.testing.assert_array_equal(mgpu.bulk_remove(x, indices, size=5, fill_value=9), [0, 2, 3, 4, 9])
            np.testing.assert_array_equal(mgpu.bulk_insert(x, indices, x[:2], size=6), [0, 0, 1, 2, 3, 4])
        starts, offsets = np.array([past, 1]), np.array([0, 2])
        np.testing.assert_array_equal(mgpu.interval_gather(x, starts, offsets, 4, fill_value=9), [9, 9, 1, 2])
        np.testing.assert_array_equal(mgpu.load_balance_search([0, 2, past], 3), [0, 0, 1])


@pytest.mark.parametrize("count", [2**31, np.int64(2**32 + 1), 2**70, -(2**31) - 1])
def test_counts_that_do_not_fit_are_an_error(count):
    calls = {
        "reduce: count": lambda: mgpu.reduce(KEYS, count=count),
        "merge: a_count": lambda: mgpu.merge(KEYS, KEYS, a_count=count),
        "load_balance_search: total": lambda: mgpu.load_balance_search(KEYS, 9, total=count),
    }
    for name, call in calls.items():
        with jax.enable_x64(False), pytest.raises(ValueError, match=f"^{name}: expected integers that fit int32"):
            call()
    with jax.enable_x64(True), pytest.raises(ValueError, match=r"^reduce: count: expected integers that fit int64"):
        mgpu.reduce(KEYS, count=2**70)


# ---- Floats of 64 bits, where JAX has 32 -----------------------------------------------------------------------------


NOW = [1.7e9, 1.7e9 + 60]  # float32 rounds both to the same number
MATCHES = {
    "lookup: keys and table_keys": lambda a, b: mgpu.lookup(a, b, np.ones(len(b), np.float32)),
    "asof_join: a and b": mgpu.asof_join,
    "asof_join: by_a and by_b": lambda a, b: mgpu.asof_join(KEYS[: len(a)], KEYS[: len(b)], by_a=a, by_b=b),
    "join: a and b": lambda a, b: mgpu.join(a, b, size=4),
    "join: a and b, in any order": lambda a, b: mgpu.join(a, b, "outer", size=4, assume_sorted=False),
    "set_union: a and b": mgpu.set_union,
    "set_intersection: a and b": lambda a, b: mgpu.set_intersection(a, b, assume_sorted=False),
    "set_difference: a and b": mgpu.set_difference,
    "set_symmetric_difference: a and b": mgpu.set_symmetric_difference,
    "sorted_match: a and b": mgpu.sorted_match,
    "sorted_equal_count: a and b": mgpu.sorted_equal_count,
    "unique: keys": lambda a, b: mgpu.unique(_both(a, b), size=4),
    "run_starts: keys": lambda a, b: mgpu.run_starts(_both(a, b)),
    "reduce_by_key: keys": lambda a, b: mgpu.reduce_by_key(_both(a, b), None, size=4),
    "group_by: keys": lambda a, b: mgpu.group_by(_both(a, b), None, size=4),
    "rank: keys": lambda a, b: mgpu.rank(_both(a, b), method="dense"),
}


def _both(a, b):
    return tuple(map(_both, a, b)) if isinstance(a, tuple) else [*a, *b]


@pytest.mark.parametrize("name", MATCHES)
def test_floats_that_float32_does_not_tell_apart_are_no_matches(name):
    call, words = MATCHES[name], f"{name.split(',')[0]}: expected floats that float32 tells apart "
    message = f"{words}(float64 needs jax_enable_x64), got 1700000000.0 and 1700000060.0"
    distinct = [1.0, 2.0]
    with jax.enable_x64(False):
        for kind in (list, np.array, pd.Series):
            a, b = kind(NOW[:1]), kind(NOW[1:])
            assert raised(lambda a=a, b=b: call(a, b)) == message
            if name not in ("asof_join: a and b",):
                columns = [(np.int8([3]), x) for x in (a, b)]
                assert raised(lambda columns=columns: call(*columns)) == message
            for x, y in ((kind([0.1, np.nan]), kind([0.1, np.inf])), (kind(distinct), kind(distinct))):
                jax.block_until_ready(call(x, y))
        assert "1e+300 and 2e+300" in raised(lambda: call([1e300], [2e300]))  # float32 rounds both to infinity
        jax.block_until_ready(call(jnp.array(NOW[:1]), jnp.array(NOW[1:])))  # arrays on a device are float32 already
    with jax.enable_x64(True):
        jax.block_until_ready(call(NOW[:1], NOW[1:]))


def test_sorts_convert_floats_as_jax_does():
    with jax.enable_x64(False):
        np.testing.assert_array_equal(mgpu.sort(NOW[::-1]), jnp.sort(jnp.array(NOW)))
        assert mgpu.argsort(NOW[::-1]).tolist() == [0, 1]


def first(a):
    return a


# ---- Keys: the public function checks them, and the layers below it do not check them again --------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("search", "search, columns", "segmented_search", "segmented_search, ends", "lookup", "join, any order"),
        *("sorted_match", "set_union, columns", "merge, columns", "asof_join", "group_by", "rank", "unique, columns"),
        *("segmented_sort", "reduce_by_key, columns", "histogram, weights"),
    ],
)
def test_each_column_of_keys_is_checked_once(name, rng, monkeypatch):
    checked = []

    def expect_key(operation, argument, x):
        checked.append((operation, argument))
        return check.expect_key(operation, argument, x)

    monkeypatch.setattr(columns, "expect_key", expect_key)
    example = EXAMPLES[name]
    jax.eval_shape(example.call, *example.make(rng, np.float32))
    assert len(checked) == len(set(checked)) > 0


# ---- Errors of one form ----------------------------------------------------------------------------------------------


NUMBERS = "integers of 8 to 64 bits, float16, bfloat16, float32 or float64"
FLAG = "a static True or False"
SIZE = "a static, non-negative integer"


ITEM = "a function of two items that gives one like them, "
TRACED_FLAGS = {
    "mergesort: descending": lambda flag: mgpu.mergesort(KEYS, descending=flag),
    "mergesort_indices: descending": lambda flag: mgpu.mergesort_indices(KEYS, descending=flag),
    "segmented_sort: descending": lambda flag: mgpu.segmented_sort(KEYS, [0], descending=flag),
    "merge: descending": lambda flag: mgpu.merge(KEYS, KEYS, descending=flag),
    "scan: exclusive": lambda flag: mgpu.scan(KEYS, exclusive=flag),
    "scan: reverse": lambda flag: mgpu.scan(KEYS, reverse=flag),
    "scan: return_total": lambda flag: mgpu.scan(KEYS, return_total=flag),
    "segmented_scan: exclusive": lambda flag: mgpu.segmented_scan(KEYS, [0], exclusive=flag),
    "set_union: duplicates": lambda flag: mgpu.set_union(KEYS, KEYS, duplicates=flag),
    "load_balance_search: return_rank": lambda flag: mgpu.load_balance_search(KEYS, 9, return_rank=flag),
}
SIZES = {
    "reduce_by_key: size": lambda size: mgpu.reduce_by_key(KEYS, KEYS, size=size),
    "join: size": lambda size: mgpu.join(KEYS, KEYS, size=size),
    "set_union: size": lambda size: mgpu.set_union(KEYS, KEYS, size=size),
    "load_balance_search: size": lambda size: mgpu.load_balance_search(KEYS, size),
    "bulk_remove: size": lambda size: mgpu.bulk_remove(KEYS, [1], size=size),
}
FILLS = {
    "bulk_remove": lambda fill: mgpu.bulk_remove(KEYS, [1], fill_value=fill),
    "interval_gather": lambda fill: mgpu.interval_gather(KEYS, [0], [0], 2, fill_value=fill),
    "set_union": lambda fill: mgpu.set_union(KEYS, KEYS, fill_value=fill),
    "join_columns": lambda fill: mgpu.join_columns(mgpu.join(KEYS, KEYS, size=3), KEYS, fill_value=fill),
}


def raised(call):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("name", TRACED_FLAGS)
def test_flags(name):
    call = TRACED_FLAGS[name]
    assert raised(lambda: jax.jit(call)(True)) == f"{name}: expected {FLAG}, got a traced bool[]"
    assert raised(lambda: call(0.5)) == f"{name}: expected {FLAG}, got 0.5"
    assert raised(lambda: call(None)) == f"{name}: expected {FLAG}, got None"
    assert raised(lambda: call(2)) == f"{name}: expected {FLAG}, got 2"
    for flag in (np.True_, 1):
        jax.tree.map(np.testing.assert_array_equal, call(flag), call(True))


def test_an_error_of_the_function_precedes_that_of_a_missing_identity():
    for name, call in {
        "reduce": lambda op: mgpu.reduce(KEYS[:0], op),
        "segmented_reduce": lambda op: mgpu.segmented_reduce(KEYS, [0], op),
        "interval_reduce": lambda op: mgpu.interval_reduce(KEYS, [0], [1], op),
        "scan": lambda op: mgpu.scan(KEYS, op, exclusive=True),
    }.items():
        for op in (lambda a: a, lambda a, b: (a, b), lambda a, b: (a + b).astype(np.float16)):
            assert raised(lambda call=call, op=op: call(op)).startswith(f"{name}: op: expected {ITEM}")


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    call = SIZES[name]
    assert raised(lambda: call(True)) == f"{name}: expected {SIZE}, got True"
    assert raised(lambda: call(2.5)) == f"{name}: expected {SIZE}, got 2.5"
    assert raised(lambda: call(-1)) == f"{name}: expected {SIZE}, got -1"
    assert raised(lambda: jax.jit(call)(3)) == f"{name}: expected {SIZE}, got a traced int32[]"
    jax.tree.map(np.testing.assert_array_equal, call(np.int64(4)), call(4))


@pytest.mark.parametrize("name", FILLS)
def test_fill_values(name):
    call = FILLS[name]
    assert raised(lambda: call(2**70)) == f"{name}: fill_value: expected a scalar that int32 holds, got {2**70}"
    assert raised(lambda: call([1, 2])) == f"{name}: fill_value: expected a scalar, got int64[2]"
    assert raised(lambda: call("7")) == f"{name}: fill_value: expected an array of numbers, got '7'"
    jax.tree.map(np.testing.assert_array_equal, jax.jit(call)(7), call(7))


CODES = "np.unique(x, return_inverse=True)[1] or pandas.factorize(x, sort=True)[0] gives codes in the same order"
TIME_NUMBERS = f"({CODES}; x.astype(np.int64) gives times as integers)"
ODD_ARRAYS = {
    "object[3]": np.array([1, None, 2], object),
    f"object[3] ({CODES})": np.array(["a", None, "b"], object),
    f"str32[2] ({CODES})": np.array(["a", "b"]),
    f"bytes8[2] ({CODES})": np.array([b"a", b"b"]),
    f"datetime64[s][2] {TIME_NUMBERS}": np.array(["2026-01-01", "2026-01-02"], "datetime64[s]"),
    f"timedelta64[h][2] {TIME_NUMBERS}": np.array([1, 2], "timedelta64[h]"),
}


@pytest.mark.parametrize("got", ODD_ARRAYS)
def test_arrays_of_no_numbers(got):
    x = ODD_ARRAYS[got]
    for name, call in {
        "mergesort: keys": lambda: mgpu.mergesort(x),
        "mergesort: values": lambda: mgpu.mergesort(KEYS, {"x": x}),
        "segmented_reduce: heads": lambda: mgpu.segmented_reduce(KEYS, x),
        "interval_gather: x": lambda: mgpu.interval_gather(x, [0], [0], 1),
        "reduce: x": lambda: mgpu.reduce(x, jnp.add),
    }.items():
        assert raised(call) == f"{name}: expected an array of numbers, got {got}"


HOUR = np.timedelta64(1, "h")
TIMES = {
    "bulk_remove: fill_value": lambda: mgpu.bulk_remove(KEYS, [1], fill_value=HOUR),
    "lookup: default": lambda: mgpu.lookup(KEYS, KEYS, KEYS, default=HOUR),
    "sorted_search: fill_value": lambda: mgpu.sorted_search(KEYS, KEYS, fill_value=HOUR),
    "asof_join: tolerance": lambda: mgpu.asof_join(KEYS, KEYS, tolerance=HOUR),
    "reduce: count": lambda: mgpu.reduce(KEYS, count=HOUR),
    "reduce: identity": lambda: mgpu.reduce(KEYS, jnp.add, identity=HOUR),
    "segmented_shift: by": lambda: mgpu.segmented_shift(KEYS, [0], HOUR),
    "quantile: q": lambda: mgpu.quantile(KEYS, HOUR),
}


@pytest.mark.parametrize("name", TIMES)
def test_scalar_times_are_no_numbers(name):
    assert raised(TIMES[name]) == f"{name}: expected an array of numbers, got {HOUR!r}"


SCANNED = "add, sum, mul, prod, min, max, argmin, argmax, mean, any, all, and, or, xor, logsumexp"
NAMES = f"{SCANNED}, count, first, last, var, std, median, nunique, nansum, nanmean, nanmin, nanmax"

FUNCTIONS_OF_ARRAYS = [(jnp.sum, "add"), (jnp.max, "max"), (np.prod, "mul"), (jnp.cumsum, "add"), (sum, "add")]
FUNCTIONS_OF_ARRAYS += [(max, "max"), (jnp.argmin, "argmin"), (jax.nn.logsumexp, "logsumexp"), (jax.lax.cummin, "min")]


@pytest.mark.parametrize("op, operator", FUNCTIONS_OF_ARRAYS)
def test_functions_of_arrays_are_no_operators(op, operator):
    got = f"got {op.__name__}, a function of an array"
    for name, call in {
        "reduce": lambda: mgpu.reduce(KEYS, op),
        "scan": lambda: mgpu.scan(KEYS, op),
        "segmented_reduce": lambda: mgpu.segmented_reduce(KEYS, [0], op),
        "segmented_scan": lambda: mgpu.segmented_scan(KEYS, [0], op, exclusive=True),
        "reduce_by_key": lambda: mgpu.reduce_by_key(KEYS, KEYS, op, size=3),
        "group_by": lambda: mgpu.group_by(KEYS, KEYS, op, size=3),
        "group_by ": lambda: mgpu.group_by(KEYS, {"x": KEYS}, {"x": op}, size=3),
    }.items():
        message = f"{name.strip()}: op: expected the name {operator!r}, or a function of two items, {got}"
        assert raised(call) == message
    by_id = f"reduce_by_id: op: expected the name {operator!r}, {got}"
    assert raised(lambda: mgpu.reduce_by_id(KEYS, KEYS, 9, op)) == by_id


ERRORS = {
    f"reduce: op: expected one of {NAMES}, or a function of two items, got 'sum of'": (
        lambda: mgpu.reduce(KEYS, "sum of")
    ),
    f"reduce_by_id: op: expected one of {NAMES}, got 'sum of'": lambda: mgpu.reduce_by_id(KEYS, KEYS, 9, "sum of"),
    f"group_by: op: expected one of {NAMES}, or a function of two items, got 'sum of'": (
        lambda: mgpu.group_by(KEYS, KEYS, "sum of", size=9)
    ),
    f"group_by: op: expected one of {NAMES}, or a function of two items, got 3": (
        lambda: mgpu.group_by(KEYS, [KEYS, KEYS], ["first", 3], size=9)
    ),
    "reduce: count: expected an integer scalar, got 3.0": lambda: mgpu.reduce(KEYS, count=3.0),
    "reduce: count: expected an integer scalar, got True": lambda: mgpu.reduce(KEYS, count=True),
    "sort: keys: expected a 1-D array, or columns as a tuple, got a list of 2 arrays": lambda: mgpu.sort([KEYS, KEYS]),
    "sort: values: expected arrays with the leading axis of keys, 3, got int32[] (a list or tuple is a pytree of its "
    "items)": lambda: mgpu.sort([3, 1, 2], [1, 2, 3]),
    f"sort: keys: expected {NUMBERS}, got bool[2] (x.astype(jnp.uint8) gives numbers)": (
        lambda: mgpu.sort(np.array([True, False]))
    ),
    f"mergesort: keys: expected {NUMBERS}, got float8_e4m3fn[2]": lambda: mgpu.mergesort(
        jnp.zeros(2, jnp.float8_e4m3fn)
    ),
    f"mergesort: keys: expected {NUMBERS}, got int4[2]": lambda: mgpu.mergesort(jnp.zeros(2, jnp.int4)),
    f"reduce: x: expected {NUMBERS}, got complex64[2]": lambda: mgpu.reduce(np.ones(2, np.complex64)),
    f"reduce_by_key: values: expected {NUMBERS}, got int4[3]": lambda: mgpu.reduce_by_key(
        KEYS, jnp.zeros(3, jnp.int4), size=3
    ),
    "segmented_scan: heads: expected an array of numbers, got None": lambda: mgpu.segmented_scan(KEYS, None),
    "mergesort: keys: expected an array of numbers, got 'abc'": lambda: mgpu.mergesort("abc"),
    "segmented_reduce: heads: expected an array of numbers, got a list of items of different shapes": (
        lambda: mgpu.segmented_reduce(KEYS, [[1, 2], [3]])
    ),
    "join: kind: expected 'inner' or 'left' or 'right' or 'outer' or 'semi' or 'anti', got ['inner']": (
        lambda: mgpu.join(KEYS, KEYS, ["inner"], size=3)
    ),
    "sorted_search: side: expected 'left' or 'right', got int32[3]": lambda: mgpu.sorted_search(KEYS, KEYS, KEYS),
    "join_columns: result: expected the result of join, got tuple": lambda: mgpu.join_columns((1, 2), KEYS),
    "load_balance_search: fill_value: expected an integer scalar, got 0.5": lambda: mgpu.load_balance_search(
        KEYS, 9, fill_value=0.5
    ),
    f"sorted_search: fill_value: expected integers that fit int32 (int64 needs jax_enable_x64), got {2**40}": (
        lambda: mgpu.sorted_search(KEYS, KEYS, fill_value=2**40)
    ),
    "reduce: x: expected an array or a pytree of arrays, got {}": lambda: mgpu.reduce({}, jnp.add),
    "scan: x: expected an array or a pytree of arrays, got []": lambda: mgpu.scan([], jnp.add, return_total=True),
    "reduce: x: expected arrays with a leading axis (with a function as op a list is a pytree), got int32[]": (
        lambda: mgpu.reduce([1, 2, 3], jnp.add)
    ),
    "scan: x: expected arrays with a leading axis (with a function as op a list is a pytree), got int32[]": (
        lambda: mgpu.scan([1, 2, 3], jnp.add, return_total=True)
    ),
    f"reduce: op: expected {ITEM}int32[], got float32[]": lambda: mgpu.reduce(KEYS, lambda a, b: a + 0.5 * b),
    f"scan: op: expected {ITEM}int32[], got int32[2]": lambda: mgpu.scan(KEYS, lambda a, b: jnp.stack([a, b])),
    f"segmented_reduce: op: expected {ITEM}int32[], got bool[]": lambda: mgpu.segmented_reduce(
        KEYS, [0], lambda a, b: a < b, identity=0
    ),
    f"reduce_by_key: op: expected {ITEM}PyTreeDef(*), got PyTreeDef((*, *))": lambda: mgpu.reduce_by_key(
        KEYS, KEYS, lambda a, b: (a, b), size=3
    ),
    f"scan: op: expected {ITEM}PyTreeDef(*), got the error: first() takes 1 positional argument but 2 were given": (
        lambda: mgpu.scan(KEYS, first)
    ),
    "reduce_by_key: values: expected an array or a pytree of arrays, got None": lambda: mgpu.reduce_by_key(
        KEYS, None, jnp.add, size=3
    ),
    "reduce: identity: expected the shape of an item, [], got int32[3]": lambda: mgpu.reduce(
        KEYS, jnp.add, identity=KEYS
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with jax.enable_x64(False):
        assert raised(ERRORS[message]) == message


def test_a_function_whose_result_is_no_array():
    for call in (mgpu.reduce, mgpu.scan):
        expected = rf"{call.__name__}: op: expected {ITEM}.*, got the error: .*<class 'str'>"
        with pytest.raises(TypeError, match=expected):
            call(KEYS, lambda a, b: "x")


def test_errors_of_derivatives_name_what_was_called():
    """A derivative with int32 indices fails at 2^31 items, even if the operation needs no indices."""
    x = jax.ShapeDtypeStruct((2**31,), jnp.float32)
    few = jax.ShapeDtypeStruct((2,), jnp.float32)

    def gradient(call, *operands):
        return jax.eval_shape(jax.grad(lambda *operands: call(*operands).sum()), *operands)

    limit = "expected fewer than 2^31 items, or jax_enable_x64 for int64 indices, got"
    with jax.enable_x64(False):
        assert raised(lambda: gradient(mgpu.mergesort, x)).startswith(f"derivative of a sort: keys: {limit}")
        assert raised(lambda: gradient(lambda x: mgpu.merge(x, x), x)).startswith(
            f"derivative of merge: a and b: {limit}"
        )
        inserted = raised(lambda: gradient(lambda x, v: mgpu.bulk_insert(x, jnp.array([1, 2]), v), x, few))
        assert inserted.startswith(f"derivative of bulk_insert: x: {limit}")
        heads, rows = np.array([0, 4]), jax.ShapeDtypeStruct((2,), jnp.float32)
        for name, call, operand in (
            ("scan: x", lambda x: mgpu.scan(x, "mul"), x),
            ("segmented_scan: x", lambda x: mgpu.segmented_scan(x, heads, "min"), x),
            ("reduce: x", mgpu.reduce, x),
            ("segmented_reduce: x", lambda x: mgpu.segmented_reduce(x, heads, "max"), x),
            ("interval_expand: size", lambda x: mgpu.interval_expand(x, heads, 2**31), rows),
        ):
            message = raised(lambda call=call, operand=operand: gradient(call, operand))
            assert message.startswith(f"derivative of {name}: {limit}")
        for name, call in (  # these operations need 64-bit positions themselves
            ("interval_gather: x", lambda x: mgpu.interval_gather(x, heads, heads, 9)),
            ("interval_gather: size", lambda x: mgpu.interval_gather(x[:9], heads, heads, 2**31)),
            ("interval_scatter: into", lambda x: mgpu.interval_scatter(x[:9], heads, heads, x)),
            ("interval_move: x", lambda x: mgpu.interval_move(x, heads, heads, heads, jnp.zeros(9))),
        ):
            message = raised(lambda call=call: jax.eval_shape(call, x))
            assert message.startswith(f"{name}: {limit}")
        for name, call in {
            "scan": lambda x: mgpu.scan(x, jnp.add),
            "segmented_scan": lambda x: mgpu.segmented_scan(x, heads, jnp.add),
            "segmented_reduce": lambda x: mgpu.segmented_reduce(x, heads, jnp.add, identity=0),
        }.items():
            assert raised(lambda call=call: jax.eval_shape(call, x)).startswith(f"{name}: x: {limit}")
