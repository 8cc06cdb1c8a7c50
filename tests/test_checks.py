"""mgpu.checks(): broken preconditions raise errors with operation, argument and first bad position."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.arguments import preconditions
from tests.examples import ASCENDING, HEADS, KEYS, OFFSETS, POSITIONS
from tests.families import BROKEN, EXAMPLES, INFORMATION, WITHOUT_PRECONDITIONS
from tests.variants import long_but


def full_error_of(call):
    """Returns the first line of an error, without the program's name, which newer JAX adds."""
    with pytest.raises(Exception, match="INVALID_ARGUMENT") as caught:
        jax.block_until_ready(call())
    return str(caught.value).splitlines()[0].removeprefix("INVALID_ARGUMENT: ").split(" [executable_name=")[0]


def error_of(call):
    """Returns the first line of an error, without the offending value."""
    return full_error_of(call).rpartition(", got ")[0]


def where(name, position):
    """Returns how an error says where an argument is broken: nothing if it is a scalar."""
    is_scalar = name.endswith(("count", "total", "size", "tolerance", "segmented_quantile: q"))
    return "" if is_scalar else f", first broken at position {position}"


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_precondition(name):
    call, expected, position = BROKEN[name]
    jax.block_until_ready(call())
    with mgpu.checks():
        assert error_of(call) == f"{name}: expected {expected}" + where(name, position)
    jax.block_until_ready(call())


@pytest.mark.long
@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_precondition_under_jit(name):
    call, expected, position = BROKEN[name]
    with mgpu.checks():
        assert error_of(jax.jit(call)) == f"{name}: expected {expected}" + where(name, position)


def test_errors_of_a_program_that_has_run():
    """If JAX runs the program synchronously, the error is a ValueError."""
    message = "INVALID_ARGUMENT: reduce: count: expected an integer from 0 to 5, got 6"
    with mgpu.checks():
        program = jax.jit(lambda x, count: mgpu.reduce(x, count=count))
        assert program(np.arange(5), np.int32(3)) == 3
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
            jax.block_until_ready(program(np.arange(5), np.int32(6)))
        assert program(np.arange(5), np.int32(5)) == 10


def test_every_precondition_is_here(monkeypatch):
    asked = set()

    def require(operation, argument, expected, x, holds, shown=None):
        if not preconditions.BY_CONSTRUCTION.get():
            asked.add(f"{operation}: {argument}")
        return x

    monkeypatch.setattr(preconditions, "_require", require)
    jax.clear_caches()  # other tests compiled programs without checks
    with mgpu.checks():  # without checks, operations on columns skip some steps
        for example in EXAMPLES.values():
            jax.eval_shape(example.call, *example.make(np.random.default_rng(3), np.float32))
        for call, _, _ in BROKEN.values():
            jax.eval_shape(call)
    assert asked == set(BROKEN)


def test_keys_are_in_order_within_segments():
    follows = np.array([False, True, False, True, False, True])

    @jax.jit
    def call(keys, count):
        return preconditions.sorted_keys("name", "keys", keys, count, within=lambda: follows)

    with mgpu.checks():
        jax.block_until_ready(call(KEYS, np.zeros(0, np.int32)))
        message = error_of(lambda: call(KEYS[::-1], np.int32([6])))
        assert message == "name: keys: expected keys in ascending order within segments, first broken at position 1"
        jax.block_until_ready(call(KEYS[::-1], np.int32([1])))


def test_ends_of_intervals_do_not_overflow():
    starts = np.array([0, 2**31 - 1, 0], np.int32)
    with mgpu.checks():
        message = error_of(lambda: mgpu.interval_gather(KEYS, starts, OFFSETS, 5))
    assert message == "interval_gather: starts: expected intervals within an array of 6, first broken at position 1"


def test_every_operation_with_preconditions_is_here():
    functions = {name for name in mgpu.__all__ if inspect.isfunction(getattr(mgpu, name))}
    without = WITHOUT_PRECONDITIONS | INFORMATION
    asked = {name.split(":")[0] for name in BROKEN}
    assert functions | {"Csr"} == asked | without  # Csr is a class, which sddmm takes
    assert not asked & without


@pytest.mark.parametrize("name", long_but([name for name in EXAMPLES if "," not in name], EXAMPLES))
def test_valid_calls_pass(name):
    example = EXAMPLES[name]
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
def test_the_offending_value_is_reported(x64, value):
    with mgpu.checks():
        message = full_error_of(lambda: mgpu.merge(OFFENDERS[value], OFFENDERS[value][:1]))
    if OFFENDERS[value].dtype == jnp.bfloat16:
        value = "3.0040553e+38"
    assert message == f"merge: a: expected keys in ascending order, first broken at position 1, got {value.strip()}"


ITEMS = KEYS.astype(np.float32)
WITH_HEADS = {
    "rank": lambda heads: mgpu.rank(KEYS, heads),
    "run_starts": lambda heads: mgpu.run_starts(KEYS, heads),
    "segment_ids": lambda heads: mgpu.segment_ids(heads, 6),
    "segmented_quantile": lambda heads: mgpu.segmented_quantile(KEYS, heads, 0.5),
    "segmented_reduce": lambda heads: mgpu.segmented_reduce(ITEMS, heads),
    "segmented_scan": lambda heads: mgpu.segmented_scan(ITEMS, heads),
    "segmented_shift": lambda heads: mgpu.segmented_shift(KEYS, heads, 1),
    "segmented_softmax": lambda heads: mgpu.segmented_softmax(ITEMS, heads),
    "segmented_sort": lambda heads: mgpu.segmented_sort(KEYS, heads),
    "segmented_top_k": lambda heads: mgpu.segmented_top_k(KEYS, heads, 2),
    "take_segments": lambda heads: mgpu.take_segments(KEYS, heads, [0], size=9),
    "to_dense": lambda heads: mgpu.to_dense(KEYS, heads, 9),
}


@pytest.mark.parametrize("name", WITH_HEADS)
def test_ids_given_as_heads_are_reported_where_they_exceed_the_items(name):
    call = jax.jit(WITH_HEADS[name])
    ids = np.int32([6, 7, 7, 7, 90, 90])
    expected = "padded with one number (Segments.from_ids takes the segment of each item), first broken at position 2"
    jax.block_until_ready(call(ids))
    with mgpu.checks():
        assert error_of(lambda: call(ids)).endswith(expected)
        for padded in (
            [0, 0, 3, 3, 6, 6],
            [0, 2, 6, 6, 7, 7],
            [0, 2, 6, 2**31 - 1, 2**31 - 1, 2**31 - 1],
            [0, 5, 6, 7, 8, 9],
        ):
            jax.block_until_ready(call(np.int32(padded)))


def test_mistaken_structure_is_reported():
    heads = np.int32([0, 2])
    calls = {
        "quantile: q: expected numbers from 0 to 1, got 50": lambda: mgpu.quantile(KEYS, 50),
        "segmented_quantile: q: expected numbers from 0 to 1, first broken at position 1, got 50": (
            lambda: mgpu.segmented_quantile(KEYS, heads, [0.5, 50])
        ),
        "segmented_reduce: count: expected an integer from 0 to 6, got 7": (
            lambda: mgpu.segmented_reduce(KEYS, heads, count=7)
        ),
        "sort: count: expected an integer from 0 to 6, got -1": (lambda: mgpu.sort(KEYS, count=-1)),
        "to_dense: width: expected segments of at most 3 items, first broken at position 1, got 4": (
            lambda: mgpu.to_dense(KEYS, heads, 3)
        ),
        "to_dense: width: expected segments of at most 2 items, first broken at position 0, got 3": (
            lambda: mgpu.to_dense({"x": KEYS}, np.int32([0, 3]), 2)
        ),
        f"interval_expand: offsets: expected {POSITIONS}, first broken at position 2, got 1": (
            lambda: mgpu.interval_expand(KEYS[:3], np.int32([0, 4, 1]), 6)
        ),
    }
    with mgpu.checks():
        for message, call in calls.items():
            assert full_error_of(call) == message


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


@pytest.mark.long
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
