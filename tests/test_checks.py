"""mgpu.checks(): each broken precondition is an error that names operation, argument and first offending position."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src import preconditions
from tests.examples import EXAMPLES

KEYS = np.array([1, 3, 2, 5, 4, 9], np.int32)
ASCENDING = np.arange(6, dtype=np.int32)
OFFSETS = np.array([0, 2, 3], np.int32)
SETS = ("difference", "intersection", "symmetric_difference", "union")
HEADS = "non-negative integers in non-decreasing order"


def keys(order):
    return f"keys in {order} order"


def results(size):
    return f"at most {size} results"


def integers(limit):
    return f"an integer from 0 to {limit}"


def columns_with(keys, place, width):
    """Columns of zeros but for one."""
    return tuple(keys if i == place else np.zeros_like(keys) for i in range(width))


# operation and argument: the call, what is expected, the first offending position
BROKEN = {
    "segmented_sort: heads": (lambda: mgpu.segmented_sort(KEYS, [0, 2, 1]), HEADS, 2),
    "segmented_sort_indices: heads": (lambda: mgpu.segmented_sort_indices(KEYS, [-1, 2]), HEADS, 0),
    "segmented_sort: ends": (
        lambda: mgpu.segmented_sort(KEYS, [0, 2, 2, 5], ends=[2, 2, 6, 9]),
        "segments that do not overlap",
        2,
    ),
    **{
        f"{call.__name__}: ends": (
            lambda call=call: call(KEYS, [0, 2, 2, 5], ends=[2, 2, 6, 9]),
            "segments that do not overlap",
            2,
        )
        for call in (mgpu.segmented_reduce, mgpu.segmented_scan)
    },
    "segmented_sort: count": (lambda: mgpu.segmented_sort(KEYS, [0], count=7), integers(6), 0),
    "mergesort: count": (lambda: mgpu.mergesort(KEYS, count=-1), integers(6), 0),
    "locality_sort: count": (lambda: mgpu.locality_sort(KEYS, count=7), integers(6), 0),
    "sort: count": (lambda: mgpu.sort(KEYS, count=-1), integers(6), 0),
    "argsort: count": (lambda: mgpu.argsort(KEYS, count=7), integers(6), 0),
    "sort: keys": (lambda: mgpu.sort(KEYS, count=5, bits=2), "integers from 0 to 2**2 - 1", 3),
    "argsort: keys": (lambda: mgpu.argsort(-KEYS, bits=31), "integers from 0 to 2**31 - 1", 0),
    "bulk_remove: indices": (
        lambda: mgpu.bulk_remove(KEYS, [0, 3, 3]),
        "non-negative integers in increasing order",
        2,
    ),
    "bulk_insert: indices": (lambda: mgpu.bulk_insert(KEYS, [0, 3, 2], KEYS[:3]), HEADS, 2),
    "load_balance_search: offsets": (lambda: mgpu.load_balance_search([0, 5, 4], 9), HEADS, 2),
    "load_balance_search: total": (lambda: mgpu.load_balance_search(OFFSETS, 9, total=10), integers(9), 0),
    "interval_expand: offsets": (lambda: mgpu.interval_expand(KEYS[:3], [0, 5, 4], 9), HEADS, 2),
    "interval_gather: starts": (
        lambda: mgpu.interval_gather(KEYS, [0, 6, 1], OFFSETS, 5),
        "intervals within an array of 6",
        1,
    ),
    "interval_scatter: starts": (
        lambda: mgpu.interval_scatter(KEYS[:5], [1, 2, 4], OFFSETS, KEYS),
        "intervals that do not overlap",
        1,
    ),
    "interval_move: gather_starts": (
        lambda: mgpu.interval_move(KEYS, [0, -1, 2], [4, 3, 0], OFFSETS, KEYS, total=5),
        "intervals within an array of 6",
        1,
    ),
    "interval_move: scatter_starts": (
        lambda: mgpu.interval_move(KEYS, [0, 1, 2], [5, 3, 0], OFFSETS, KEYS, total=5),
        "intervals within an array of 6",
        0,
    ),
    "merge: a": (lambda: mgpu.merge(KEYS, ASCENDING), keys("ascending"), 2),
    "merge: b": (
        lambda: mgpu.merge(ASCENDING[::-1].astype(float), np.array([np.nan, 5, 4, np.inf]), descending=True),
        keys("descending"),
        3,
    ),
    "sorted_search: needles": (lambda: mgpu.sorted_search(KEYS, ASCENDING), keys("ascending"), 2),
    "sorted_search: haystack": (lambda: mgpu.sorted_search(ASCENDING, KEYS), keys("ascending"), 2),
    "sorted_match: a": (lambda: mgpu.sorted_match(KEYS, ASCENDING), keys("ascending"), 2),
    "sorted_match: b": (lambda: mgpu.sorted_match(ASCENDING, KEYS), keys("ascending"), 2),
    "sorted_equal_count: b": (lambda: mgpu.sorted_equal_count(ASCENDING, KEYS), keys("ascending"), 2),
    "join: a": (lambda: mgpu.join(KEYS, ASCENDING, size=20), keys("ascending"), 2),
    "join: b": (
        lambda: mgpu.join(ASCENDING.astype(np.float32), np.array([1.0, np.nan, 2.0], np.float32), size=20),
        keys("ascending"),
        2,
    ),
    **{
        f"set_{kind}: b": (
            lambda call=f"set_{kind}": getattr(mgpu, call)(ASCENDING, KEYS),
            keys("ascending"),
            2,
        )
        for kind in SETS
    },
    "set_union: a": (
        lambda: mgpu.set_union(np.array([1, 1, 2], np.int32), ASCENDING, duplicates=False),
        "unique keys in ascending order",
        1,
    ),
    "reduce: count": (lambda: mgpu.reduce(KEYS, count=7), integers(6), 0),
    "scan: count": (lambda: mgpu.scan(KEYS, count=7), integers(6), 0),
    "reduce_by_id: count": (lambda: mgpu.reduce_by_id(KEYS, KEYS, 9, count=7), integers(6), 0),
    "reduce_by_key: count": (lambda: mgpu.reduce_by_key(KEYS, KEYS, size=9, count=7), integers(6), 0),
    "segmented_reduce: heads": (lambda: mgpu.segmented_reduce(KEYS, [0, 4, 2]), HEADS, 2),
    "segmented_scan: heads": (lambda: mgpu.segmented_scan(KEYS, [0, 4, 2]), HEADS, 2),
    "interval_gather: offsets": (lambda: mgpu.interval_gather(KEYS, OFFSETS, [0, 5, 4], 5), HEADS, 2),
    "interval_scatter: offsets": (lambda: mgpu.interval_scatter(KEYS, OFFSETS, [0, 5, 4], KEYS), HEADS, 2),
    "interval_move: offsets": (lambda: mgpu.interval_move(KEYS, OFFSETS, OFFSETS, [0, 5, 4], KEYS), HEADS, 2),
    "interval_expand: total": (lambda: mgpu.interval_expand(KEYS[:3], OFFSETS, 9, total=10), integers(9), 0),
    "interval_gather: total": (lambda: mgpu.interval_gather(KEYS, OFFSETS, OFFSETS, 5, total=-1), integers(5), 0),
    "interval_scatter: total": (lambda: mgpu.interval_scatter(KEYS, OFFSETS, OFFSETS, KEYS, total=7), integers(6), 0),
    "interval_move: total": (
        lambda: mgpu.interval_move(KEYS, OFFSETS, OFFSETS, OFFSETS, KEYS, total=-1),
        integers(6),
        0,
    ),
    "bulk_insert: count": (lambda: mgpu.bulk_insert(KEYS, OFFSETS, KEYS[:3], count=7), integers(6), 0),
    "bulk_remove: count": (lambda: mgpu.bulk_remove(KEYS, OFFSETS, count=7), integers(6), 0),
    "segmented_sort_indices: count": (lambda: mgpu.segmented_sort_indices(KEYS, [0], count=-1), integers(6), 0),
    "sorted_equal_count: a": (lambda: mgpu.sorted_equal_count(KEYS, ASCENDING), keys("ascending"), 2),
    **{
        f"set_{kind}: a": (lambda call=f"set_{kind}": getattr(mgpu, call)(KEYS, ASCENDING), keys("ascending"), 2)
        for kind in ("difference", "intersection", "symmetric_difference")
    },
    **{
        f"{name}: count": (lambda name=name: getattr(mgpu, name)(KEYS, [0, 3], count=7), integers(6), 0)
        for name in ("segmented_reduce", "segmented_scan")
    },
    **{
        f"{name}: {count}": (lambda call=call, count=count: call(ASCENDING, ASCENDING, **{count: 7}), integers(6), 0)
        for name, call in {
            **{f"set_{kind}": getattr(mgpu, f"set_{kind}") for kind in SETS},
            **{name: getattr(mgpu, name) for name in ("merge", "sorted_equal_count", "sorted_match")},
            "join": functools.partial(mgpu.join, size=20),
        }.items()
        for count in ("a_count", "b_count")
    },
    **{
        f"set_{kind}: size": (
            lambda call=f"set_{kind}": getattr(mgpu, call)(ASCENDING, ASCENDING[::2], size=1),
            results(1),
            0,
        )
        for kind in SETS
    },
    "join: size": (lambda: mgpu.join(ASCENDING, ASCENDING, size=5), results(5), 0),
    "reduce_by_key: size": (lambda: mgpu.reduce_by_key(KEYS, KEYS, size=5), results(5), 0),
    **{
        f"{name}: count": (lambda call=call: call(KEYS, KEYS > 2, count=7), integers(6), 0)
        for name, call in {"select": mgpu.select, "partition": mgpu.partition}.items()
    },
    "select: size": (lambda: mgpu.select(KEYS, KEYS > 1, size=4), results(4), 0),
    "select_indices: count": (lambda: mgpu.select_indices(KEYS > 2, count=-1), integers(6), 0),
    "select_indices: size": (lambda: mgpu.select_indices(KEYS > 1, size=4), results(4), 0),
    "run_starts: heads": (lambda: mgpu.run_starts(KEYS, [0, 4, 2]), HEADS, 2),
    "run_starts: count": (lambda: mgpu.run_starts(KEYS, count=7), integers(6), 0),
    "run_starts: size": (lambda: mgpu.run_starts(KEYS, size=5), results(5), 0),
    "segment_ids: heads": (lambda: mgpu.segment_ids([0, 4, 2], 6), HEADS, 2),
    "segment_ids: count": (lambda: mgpu.segment_ids([0, 4], 6, count=7), integers(6), 0),
    "to_dense: heads": (lambda: mgpu.to_dense(KEYS, [0, 4, 2], 6), HEADS, 2),
    "to_dense: count": (lambda: mgpu.to_dense(KEYS, [0, 4], 6, count=7), integers(6), 0),
    "to_dense: width": (lambda: mgpu.to_dense(KEYS, [0, 1, 5], 3), "segments of at most 3 items", 1),
    "from_dense: lengths": (
        lambda: mgpu.from_dense(KEYS.reshape(3, 2), [2, 0, 3], size=9),
        "an integer from 0 to 2",
        2,
    ),
    "from_dense: size": (lambda: mgpu.from_dense(KEYS.reshape(3, 2), [2, 0, 1], size=2), results(2), 0),
    "take_segments: heads": (lambda: mgpu.take_segments(KEYS, [0, 4, 2], [0], size=6), HEADS, 2),
    "take_segments: count": (lambda: mgpu.take_segments(KEYS, [0, 4], [0], size=9, count=7), integers(6), 0),
    "take_segments: size": (lambda: mgpu.take_segments(KEYS, [0, 4], [0, 0], size=6), results(6), 0),
    **{
        f"{name}: count": (lambda call=call: call(KEYS, count=7), integers(6), 0)
        for name, call in {
            "top_k": functools.partial(mgpu.top_k, k=2),
            "quantile": functools.partial(mgpu.quantile, q=0.5),
            "unique": functools.partial(mgpu.unique, size=6),
        }.items()
    },
    **{
        f"{name}: {argument}": (lambda call=call, given=given: call(KEYS.astype(np.float32), **given), *expected)
        for name, call in {
            "segmented_top_k": functools.partial(mgpu.segmented_top_k, k=2),
            "segmented_quantile": functools.partial(mgpu.segmented_quantile, q=0.5),
            "segmented_softmax": mgpu.segmented_softmax,
            "segmented_log_softmax": mgpu.segmented_log_softmax,
        }.items()
        for argument, given, expected in (
            ("count", {"heads": [0, 3], "count": 7}, (integers(6), 0)),
            ("heads", {"heads": [0, 4, 2]}, (HEADS, 2)),
        )
    },
    **{
        f"{name}: {argument}": (lambda call=call, given=given: call(KEYS, **given), *expected)
        for name, call in {"rank": mgpu.rank, "segmented_shift": functools.partial(mgpu.segmented_shift, by=1)}.items()
        for argument, given, expected in (
            ("count", {"heads": [0, 3], "count": 7}, (integers(6), 0)),
            ("heads", {"heads": [0, 4, 2]}, (HEADS, 2)),
        )
    },
    "lookup: count": (lambda: mgpu.lookup(KEYS, KEYS, KEYS, count=7), integers(6), 0),
    "lookup: table_count": (lambda: mgpu.lookup(KEYS, KEYS, KEYS, table_count=7), integers(6), 0),
    "group_by: count": (lambda: mgpu.group_by(KEYS, KEYS, size=6, count=7), integers(6), 0),
    "group_by: size": (lambda: mgpu.group_by(np.arange(6), KEYS, size=2), "at most 2 results", 0),
    "asof_join: a": (lambda: mgpu.asof_join(np.array([1, 3, 2]), np.arange(3)), keys("ascending"), 2),
    "asof_join: b": (lambda: mgpu.asof_join(np.arange(3), np.array([1, 3, 2])), keys("ascending"), 2),
    "asof_join: a_count": (lambda: mgpu.asof_join(np.arange(3), np.arange(3), a_count=4), integers(3), 0),
    "asof_join: b_count": (lambda: mgpu.asof_join(np.arange(3), np.arange(3), b_count=4), integers(3), 0),
    "quantile: q": (lambda: mgpu.quantile(KEYS, np.array([0.5, 1.5])), "numbers from 0 to 1", 1),
    "segmented_quantile: q": (lambda: mgpu.segmented_quantile(KEYS, [0], np.nan), "numbers from 0 to 1", 0),
    "unique: size": (lambda: mgpu.unique(KEYS, size=3), results(3), 0),
    **{
        f"{name}: {side}[{i}]": (
            lambda name=name, side=side, i=i, width=width: getattr(mgpu, name)(
                **{x: columns_with(KEYS, i if x == side else None, width) for x in ("a", "b")}
            ),
            keys("ascending") + (", where the columns before are equal" if i else ""),
            2,
        )
        for name, width in (("merge", 2), ("set_union", 3))
        for side in ("a", "b")
        for i in range(width)
    },
    "histogram: edges": (lambda: mgpu.histogram(KEYS, KEYS), keys("ascending"), 2),
    "join_columns: result.a_indices": (
        lambda: mgpu.join_columns(mgpu.join(ASCENDING, ASCENDING, size=6), KEYS[:4]),
        "indices of 4 rows, or -1",
        4,
    ),
    "join_columns: result.b_indices": (
        lambda: mgpu.join_columns(mgpu.join(ASCENDING, ASCENDING, size=6), None, KEYS[:0]),
        "indices of 0 rows, or -1",
        0,
    ),
    **{
        f"sorted_search: {count}": (
            lambda count=count: mgpu.sorted_search(ASCENDING, ASCENDING, **{count: 7}),
            integers(6),
            0,
        )
        for count in ("needles_count", "haystack_count")
    },
}


def full_error_of(call):
    """The first line of the error that a call gives, less the name of the program, which newer JAX adds."""
    with pytest.raises(Exception, match="INVALID_ARGUMENT") as caught:
        jax.block_until_ready(call())
    return str(caught.value).splitlines()[0].removeprefix("INVALID_ARGUMENT: ").split(" [executable_name=")[0]


def error_of(call):
    """The same without the offending value."""
    return full_error_of(call).rpartition(", got ")[0]


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_precondition(name):
    call, expected, position = BROKEN[name]
    jax.block_until_ready(call())  # without checks: some values, and no error
    with mgpu.checks():
        for way in (call, jax.jit(call)):
            assert error_of(way) == f"{name}: expected {expected}, first broken at position {position}"
    jax.block_until_ready(call())


def test_every_precondition_is_here(monkeypatch):
    """Whatever the operations ask of their arguments' values, in the examples or above."""
    asked = set()

    def require(operation, argument, expected, x, holds):
        if not preconditions.BY_CONSTRUCTION.get():
            asked.add(f"{operation}: {argument}")
        return x

    monkeypatch.setattr(preconditions, "_require", require)
    jax.clear_caches()  # programs that other tests compiled ask nothing
    for example in EXAMPLES.values():
        jax.eval_shape(example.call, *example.make(np.random.default_rng(3), np.float32))
    for call, _, _ in BROKEN.values():
        jax.eval_shape(call)
    assert asked == set(BROKEN)


def test_ends_of_intervals_do_not_overflow():
    starts = np.array([0, 2**31 - 1, 0], np.int32)
    with mgpu.checks():
        message = error_of(lambda: mgpu.interval_gather(KEYS, starts, OFFSETS, 5))
    assert message == "interval_gather: starts: expected intervals within an array of 6, first broken at position 1"


def test_every_operation_with_preconditions_is_here():
    without = {"backends", "bincount", "checks", "has_cuda", "locality_sort_indices", "mergesort_indices"}
    functions = {name for name in mgpu.__all__ if callable(getattr(mgpu, name)) and name[0].islower()} - without
    assert functions == {name.split(":")[0] for name in BROKEN}


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_valid_calls_pass(example):
    rng = np.random.default_rng(3)
    batch = jax.tree.map(lambda *xs: np.stack(xs), *(example.make(rng, np.float32) for _ in range(3)))
    one = tuple(x[0] for x in batch)
    functions = [(example.call, one), (jax.jit(jax.vmap(example.call)), batch)]
    if example.differentiable:

        def loss(*arguments):
            leaves = jax.tree.leaves(example.call(*arguments))
            return sum(x.sum() for x in leaves if jnp.issubdtype(x.dtype, jnp.floating))

        functions.append((jax.jit(jax.grad(loss, argnums=example.differentiable)), one))
    for function, arguments in functions:
        expected = jax.device_get(function(*arguments))
        with mgpu.checks():
            checked = jax.device_get(function(*arguments))
        jax.tree.map(np.testing.assert_array_equal, checked, expected)


OFFENDERS = {
    "-3": np.array([2, -3], np.int8),
    "200": np.array([250, 200], np.uint8),
    "-30000": np.array([2, -30000], np.int16),
    "60000": np.array([61000, 60000], np.uint16),
    "-2147483648": np.array([2, -(2**31)], np.int32),
    "4000000000": np.array([4000000001, 4000000000], np.uint32),
    "-9223372036854775808": np.array([2, -(2**63)], np.int64),
    "18446744073709551614": np.array([2**64 - 1, 2**64 - 2], np.uint64),
    "0.1": np.array([0.2, 0.1], np.float64),
    "0.099975586": np.array([0.2, 0.1], np.float16),
    "0.1 ": np.array([np.nan, 0.1], np.float32),
    "-inf": np.array([0, -np.inf], np.float32),
    "3e+38": np.array([np.nan, 3e38], jnp.bfloat16),
}


@pytest.mark.parametrize("value", OFFENDERS)
def test_the_offending_value_is_told(x64, value):
    with mgpu.checks():
        message = full_error_of(lambda: mgpu.merge(OFFENDERS[value], OFFENDERS[value][:1]))
    if OFFENDERS[value].dtype == jnp.bfloat16:
        value = "3.0040553e+38"
    assert message == f"merge: a: expected keys in ascending order, first broken at position 1, got {value.strip()}"


def test_padding_between_count_and_the_end_may_repeat():
    with mgpu.checks():
        left = mgpu.bulk_remove(np.arange(6), [1, 4, 4, 5], size=6, count=4, fill_value=9)
        np.testing.assert_array_equal(left, [0, 2, 3, 9, 9, 9])
        message = error_of(lambda: mgpu.bulk_remove(np.arange(6), [1, 3, 3, 5], count=4))
    assert message == (
        "bulk_remove: indices: expected non-negative integers in increasing order, first broken at position 2"
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_subnormal_keys_are_compared_by_their_value(x64, dtype):
    kind = jnp.dtype(dtype)
    small = np.array([0, 1, 2], f"u{kind.itemsize}").view(kind)
    with mgpu.checks():
        jax.block_until_ready(mgpu.set_union(small, small, duplicates=False))
        jax.block_until_ready(mgpu.merge(-small, -small, descending=True))
        for way in (mgpu.merge, jax.jit(mgpu.merge)):
            message = error_of(lambda way=way: way(small[[0, 2, 1]], small))
            assert message == "merge: a: expected keys in ascending order, first broken at position 2"


def test_a_size_of_0_asks_for_the_count_alone():
    with mgpu.checks():
        assert int(mgpu.join(ASCENDING, ASCENDING, size=0).count) == 6


def test_a_batch_names_the_problem():
    heads = jnp.array([[0, 2], [3, 1], [1, 5]])
    with mgpu.checks():
        message = error_of(lambda: jax.vmap(lambda h: mgpu.segmented_sort(KEYS, h))(heads))
    assert message == f"segmented_sort: heads: expected {HEADS}, first broken at position 1 of problem 1"


def test_a_program_compiled_without_checks_is_compiled_anew():
    program = jax.jit(lambda heads: mgpu.segmented_sort(KEYS, heads))
    broken = jnp.array([3, 1])
    program(broken)
    with mgpu.checks():
        error_of(lambda: program(broken))
        with mgpu.checks(False):
            program(broken)
    assert "check" not in program.lower(broken).as_text()


def test_inside_loops_and_under_grad():
    broken = jnp.array([[0, 1], [3, 1]])
    keys = jnp.asarray(KEYS, jnp.float32)
    with mgpu.checks():
        scan = jax.jit(lambda h: jax.lax.scan(lambda c, h: (mgpu.segmented_sort(c, h), None), keys, h)[0])
        scan(broken[:1])
        error_of(lambda: scan(broken))
        gradient = jax.grad(lambda k, h: mgpu.segmented_sort(k, h).sum())
        gradient(keys, broken[0])
        error_of(lambda: gradient(keys, broken[1]))


def test_environment_variable():
    code = "import jax, jax_mgpu; jax.block_until_ready(jax_mgpu.segmented_sort(jax.numpy.arange(4), [2, 1]))"
    for value, fails in (("1", True), ("0", False)):
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "JAX_MGPU_CHECKS": value},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode != 0) == fails
        assert (f"segmented_sort: heads: expected {HEADS}" in ran.stderr) == fails
