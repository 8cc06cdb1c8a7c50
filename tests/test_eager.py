"""Outside of `jax.jit`, calls that differ only in values share one program, which is dropped with its functions."""

from __future__ import annotations

import contextlib
import gc
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.core import eager
from tests.families import EXAMPLES
from tests.transformed import loss_of_sums, stack

CALLS = 10  # calls with each kind of operand: JAX arrays, NumPy arrays, values as in notebooks


@contextlib.contextmanager
def compilations():
    """Yields a list that grows with each compiled program."""
    programs = []

    def count(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            programs.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        yield programs
    finally:
        jax.monitoring.unregister_event_duration_listener(count)


def of_host(x):
    """Returns an operand as in notebooks: NumPy's 64-bit integers, and Python's numbers."""
    x = np.asarray(x)
    x = x.astype(np.int64) if x.dtype == np.int32 else x
    return x.item() if x.ndim == 0 else x


def mapped(call, arguments):
    """Maps a call over a batch of its float arrays; other operands are host values."""
    of_batch = [i for i, x in enumerate(arguments) if np.asarray(x).dtype == np.float32 and np.ndim(x)]

    def one(*floats):
        given = dict(zip(of_batch, floats, strict=True))
        return call(*(given.get(i, x) for i, x in enumerate(arguments)))

    batch = [np.stack([arguments[i]] * 2) for i in of_batch]
    return jax.vmap(one)(*batch) if batch else one()


def derived(example, arguments):
    of_argument = example.differentiable
    return jax.grad(loss_of_sums(example), argnums=of_argument)(*arguments) if of_argument else None


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_call_is_one_program(name):
    """Nothing is converted, padded or gathered by a separate dispatch."""
    arguments = tuple(map(jnp.asarray, EXAMPLES[name].make(np.random.default_rng(1), np.float32)))
    jax.clear_caches()
    with compilations() as programs:
        for _ in range(2):
            EXAMPLES[name].call(*arguments)
    # The example of join_columns also calls join; that of bincount calls bincount with and without weights.
    assert len(programs) == (2 if name in ("join_columns", "bincount") else 1)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_call_compiles_once(name):
    example, rng = EXAMPLES[name], np.random.default_rng(1)
    for run in (lambda xs: example.call(*xs), lambda xs: mapped(example.call, xs), lambda xs: derived(example, xs)):
        for kind in (jnp.asarray, np.asarray, of_host):
            run([kind(x) for x in example.make(rng, np.float32)])
            with compilations() as programs:
                for _ in range(CALLS):
                    run([kind(x) for x in example.make(rng, np.float32)])
            assert not programs


def test_numbers_compile_once():
    keys, rows = np.arange(6), np.arange(6, dtype=np.float32)
    calls = {
        "lookup": lambda i: mgpu.lookup(keys + i, keys, rows, default=0.5 * i),
        "quantile": lambda i: mgpu.quantile(rows, 0.1 * i),
        "segmented_quantile": lambda i: mgpu.segmented_quantile(rows, [0, i], 0.1 * i),
        "select": lambda i: mgpu.select(rows, rows > i, size=4, fill_value=i / 3, count=i),
        "sorted_search": lambda i: mgpu.sorted_search(keys, keys + i, fill_value=np.int64(i + 7)),
        "to_dense": lambda i: mgpu.to_dense({"x": rows, "y": keys}, [i], 3, fill_value=i),
        "segmented_shift": lambda i: mgpu.segmented_shift(rows, [0, i], 1, fill_value=complex(i).real),
        "take": lambda i: mgpu.take(rows, [i, -1], fill_value=np.float64(i)),
        "reduce": lambda i: mgpu.reduce(rows, jnp.add, identity=float(i), count=i),
    }
    for name, call in calls.items():
        call(1)
        with compilations() as programs:
            for i in range(2, 6):
                call(i)
        assert not programs, name


def test_values_of_the_host_are_those_of_each_call():
    keys = np.arange(5)
    for i in range(3):
        np.testing.assert_array_equal(mgpu.lookup(keys + i, keys, keys * 10, default=-i), [*(keys[i:] * 10), *[-i] * i])
        np.testing.assert_array_equal(mgpu.sort([3, i, 1]), sorted([3, i, 1]))
        x = np.array([0.5, 2.0, i])
        np.testing.assert_allclose(mgpu.quantile(x, i / 2), np.quantile(x, i / 2))
    with pytest.raises(ValueError, match=r"^lookup: keys: expected integers that fit int32 .* got 1099511627776"):
        mgpu.lookup(keys + 2**40, keys, keys * 10, default=-2)
    with pytest.raises(ValueError, match=r"^lookup: default: expected a scalar that int32 holds, got 1180"):
        mgpu.lookup(keys, keys, (keys * 10).astype(np.int32), default=2**70)


@pytest.mark.parametrize("n", [3, 5000])
def test_arrays_of_the_host_fit(n):
    for dtype, beyond in (np.int64, 2**31), (np.int64, -(2**31) - 1), (np.uint64, 2**32):
        x = np.arange(n, dtype=dtype)[::-1]
        for _ in range(2):
            np.testing.assert_array_equal(mgpu.sort(x), x[::-1])
            np.testing.assert_array_equal(mgpu.lookup(x, x, x, default=1), x)
        with pytest.raises(ValueError, match="sort: keys: expected integers that fit"):
            mgpu.sort(np.where(x == 1, np.array(beyond, dtype), x))
        with pytest.raises(ValueError, match="lookup: values: expected integers that fit"):
            mgpu.lookup(x, x, np.where(x == 1, np.array(beyond, dtype), x), default=1)
        rows = np.stack([x, x]).T  # not contiguous
        np.testing.assert_array_equal(mgpu.take(rows, x), rows[::-1])
        rows[-1, 1] = beyond
        with pytest.raises(ValueError, match="take: x: expected integers that fit"):
            mgpu.take(rows, x)


def test_calls_without_the_module(monkeypatch):
    """A package without kernels has no `EagerCalls`."""
    monkeypatch.setattr(eager, "EagerCalls", None)
    lookup = eager.jit_eager()(inspect.unwrap(mgpu.lookup))
    host, x = np.arange(5), jnp.arange(5)
    with compilations() as programs:
        for i in range(4):
            np.testing.assert_array_equal(lookup(host + i, host, x, default=-i), [*host[i:], *[-i] * i])
            np.testing.assert_array_equal(lookup(x, x, x), host)
    assert len(programs) == 2


def test_plain_calls_without_the_module(monkeypatch):
    """Calls that have only arrays and settings go straight to `jax.jit`; settings of other types are other settings."""
    monkeypatch.setattr(eager, "EagerCalls", None)
    public = eager._Public(lambda x, setting=None: (x, repr(setting)), ("setting",))
    monkeypatch.setattr(public, "run", lambda positional, named: (None, "run"))
    monkeypatch.setattr(jax, "jit", lambda function, **_: function)
    call, x = public.calls(), jnp.arange(3)
    for setting in (None, 1, True, "text"):
        assert call((x,), {"setting": setting})[1] == call((x, setting), {})[1] == repr(setting)
    for positional, named in (((np.arange(3),), {}), ((x, 0.5), {}), ((2,), {}), ((x, None, x), {}), ((), {"x": 1.5})):
        assert call(positional, named) == (None, "run")


def test_settings_of_equal_values_without_the_module(monkeypatch):
    monkeypatch.setattr(eager, "EagerCalls", None)
    call, x = eager.jit_eager("setting")(lambda x, setting: x + (type(setting) is bool)), jnp.arange(1)
    assert [int(call(x, setting)[0]) for setting in (1, True, 1, True)] == [0, 1, 0, 1]


def test_unknown_arguments():
    x, host = jnp.arange(3.0), np.arange(3)
    for call in (
        lambda: mgpu.sort(x, foo=x),
        lambda: mgpu.quantile(host, 0.5, foo=1),
        lambda: mgpu.quantile(x, 0.5, x=x),
        lambda: mgpu.quantile(x, 0.5, *[None] * 20),
    ):
        for _ in range(2):
            with pytest.raises(TypeError):
                call()


def test_calls_with_other_settings_have_other_results():
    x = np.array([1, 0, 2])
    assert mgpu.reduce(x, "max") == 2
    assert mgpu.reduce(x, "min") == 0
    assert mgpu.scan(x, exclusive=True).tolist() == mgpu.scan(x, exclusive=1).tolist() == [0, 1, 1]
    assert jax.tree.map(np.shape, mgpu.top_k(x, 2)) != jax.tree.map(np.shape, mgpu.top_k(x, 1))


class Operators:
    def add(self, a, b):
        return a + b


def test_a_function_as_operator_is_one_program():
    x = np.arange(1000, dtype=np.float32)
    calls = {
        "reduce": lambda op: mgpu.reduce(x, op),
        "scan": lambda op: mgpu.scan(x, op, exclusive=True, identity=0.0),
        "segmented_reduce": lambda op: mgpu.segmented_reduce(x, [0, 10], op, identity=0),
        "reduce_by_key": lambda op: mgpu.reduce_by_key(x // 7, x, op, size=1000),
    }
    operators = Operators()
    for call in calls.values():
        with compilations() as programs:
            for _ in range(3):
                call(operators.add)
        assert len(programs) == 1


def test_a_program_is_dropped_with_its_function():
    x = np.arange(3, dtype=np.float32)
    gc.collect()
    kept = len(eager._PROGRAMS)
    for i in range(5):
        assert mgpu.reduce(x, lambda a, b, i=i: a + b + i) == 3 + 2 * i
        mgpu.mergesort(x, less=lambda a, b: a < b)
        mgpu.scan(x, map=lambda x, i=i: x + i)
    gc.collect()
    assert len(eager._PROGRAMS) == kept


def test_programs_are_bounded(monkeypatch):
    monkeypatch.setattr(eager, "MAX_PROGRAMS", len(eager._PROGRAMS) + 2)
    for k in range(1, 6):
        assert mgpu.top_k(np.arange(9), k)[0].shape == (k,)
    assert len(eager._PROGRAMS) <= eager.MAX_PROGRAMS


def test_batches_and_derivatives_of_values_of_the_host():
    keys, rows = np.arange(5), jnp.arange(5.0)

    def found(i, rows):
        return mgpu.lookup(keys + i, keys, rows, default=0.5)

    for i in range(3):
        expected = [*range(i, 5), *[0.5] * i]
        np.testing.assert_array_equal(jax.vmap(lambda x, i=i: found(i, x))(stack([rows, rows])), [expected] * 2)
        gradient = jax.grad(lambda x, i=i: (found(i, x) * keys).sum())(rows)
        np.testing.assert_array_equal(gradient, [*[0] * i, *range(5 - i)])


def test_calls_are_found_by_their_arguments(monkeypatch):
    host, x, ids = np.arange(3), jnp.array([1.0, 2.0, 4.0]), jnp.array([1, 0, 1])
    a, b = jnp.array([1, 2, 2]), jnp.array([2, 3, 4])
    calls = {
        "by place": (lambda: mgpu.reduce_by_id(x, ids, size=2), [2, 5]),
        "by name": (lambda: mgpu.reduce_by_id(ids=ids, size=2, x=x), [2, 5]),
        "another size": (lambda: mgpu.reduce_by_id(x, ids, size=3), [2, 5, 0]),
        "an operator": (lambda: mgpu.reduce_by_id(x, ids, op="max", size=2), [2, 4]),
        "twice": (lambda: mgpu.sorted_search(a, a), [0, 1, 1]),
        "one way": (lambda: mgpu.sorted_search(a, b), [0, 0, 0]),
        "the other way": (lambda: mgpu.sorted_search(b, a), [1, 3, 3]),
        "True": (lambda: mgpu.scan(a, exclusive=True), [0, 1, 3]),
        "host": (lambda: mgpu.lookup(host, default=7, values=host * 2, table_keys=host[:3]), [0, 2, 4]),
        "shorter": (lambda: mgpu.lookup(host[:2], default=8, values=host * 2, table_keys=a + 5), [8, 8]),
        "a number": (lambda: mgpu.quantile(x, 0.5), 2),
        "another": (lambda: mgpu.quantile(x, 1), 4),
        "a count": (lambda: mgpu.scan(a, count=2), [1, 3, 0]),
        "fewer": (lambda: mgpu.scan(a, count=1), [1, 0, 0]),
        "nothing": (lambda: mgpu.scan(a, "sum", count=None), [1, 3, 5]),
    }
    for call, expected in calls.values():
        assert call().tolist() == expected
    monkeypatch.setattr(eager, "_program", None)  # from here on, no other program can be made
    for call, expected in calls.values():
        assert call().tolist() == expected
    with pytest.raises(TypeError):
        mgpu.scan(a, exclusive=1.5)


def test_numbers_that_come_again(monkeypatch):
    """A conversion remembers at most MAX_NUMBERS numbers. Equal numbers of another type or sign are other numbers."""
    monkeypatch.setattr(eager, "MAX_NUMBERS", 4)
    monkeypatch.setattr(eager, "_PROGRAMS", {})
    # No other test has this length: calls find earlier programs of their shapes.
    keys, table, values = jnp.array([1, *[5] * 12]), jnp.array([1]), jnp.array([2.5])
    for number in (0.0, -0.0, 1, 1.0, True, float("nan"), *np.linspace(0.5, 9, 12).tolist(), 0.0, -0.0):
        for _ in range(3):  # converted, sent to the device, then found there
            found = mgpu.lookup(keys, table, values, default=number)
            np.testing.assert_array_equal(found, np.float32([2.5, *[number] * 12]))
            assert np.signbit(found[1]) == np.signbit(number)
    kept = [step.numbers for program in eager._PROGRAMS.values() for step in program.steps]
    assert kept and all(0 < len(numbers) <= 4 for numbers in kept)
