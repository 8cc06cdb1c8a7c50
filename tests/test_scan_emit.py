"""`emit=` maps each state, and perhaps its position, to results."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu

N, COUNT = 50, 41
HEADS, ENDS = np.array([4, 20, 20, 30]), np.array([11, 20, 26, 45])


def scanned(x, combine, bounds, exclusive, reverse, identity):
    """Returns each segment's states, item after item; None where there is none."""
    states = [None] * len(x)
    for begin, end in bounds:
        state = identity
        for i in reversed(range(begin, end)) if reverse else range(begin, end):
            after = x[i] if state is identity else combine(state, x[i])
            states[i] = state if exclusive else after
            state = after
    return states


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("has_ends", [False, True])
def test_functions_and_names(exclusive, reverse, has_ends):
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, N)).astype(np.float32)
    segments = {"heads": HEADS, **({"ends": ENDS} if has_ends else {})}
    flags = {"exclusive": exclusive, "reverse": reverse, "count": COUNT}
    last = np.minimum(ENDS if has_ends else np.append(HEADS[1:], COUNT), COUNT)
    bounds = [*zip(HEADS, last, strict=True)] + ([] if has_ends else [(0, HEADS[0])])

    def affine(x, y):
        return x[0] * y[0], x[1] * y[0] + y[1]

    def emit(state, i):
        return {"y": state[0] + 2 * state[1], "at": i}

    call = jax.jit(lambda x: mgpu.segmented_scan(x, op=affine, emit=emit, identity=(1.0, 0.0), **segments, **flags))
    got = call((a, b))
    states = scanned([*zip(a, b, strict=True)], affine, bounds, exclusive, reverse, (1.0, 0.0))
    expected = [0 if s is None else s[0] + 2 * s[1] for s in states]
    np.testing.assert_allclose(got["y"], expected, rtol=1e-4, atol=1e-4)
    assert got["y"].dtype == np.float32
    np.testing.assert_array_equal(got["at"], [0 if s is None else i for i, s in enumerate(states)])

    rows = {"sum": rng.integers(-5, 6, (N, 2)).astype(np.float32), "at": a}
    got = mgpu.segmented_scan(
        rows, op={"sum": "add", "at": "argmax"}, emit=lambda s: (s["sum"].sum() > 0) * s["at"], **segments, **flags
    )
    places = scanned(
        [*range(N)], lambda i, j: j if a[j] > a[i] or (a[j] == a[i] and j < i) else i, bounds, *(exclusive, reverse, -1)
    )
    sums = scanned(rows["sum"], np.add, bounds, exclusive, reverse, np.zeros(2))
    expected = [0 if s is None else (s.sum() > 0) * p for s, p in zip(sums, places, strict=True)]
    np.testing.assert_array_equal(got, expected)


def test_totals_are_states():
    x = jnp.arange(1, 6, dtype=jnp.int32)
    emitted, total = mgpu.scan(x, emit=lambda s: s % 2 == 0, return_total=True, count=4)
    np.testing.assert_array_equal(emitted, [False, False, True, True, False])
    assert emitted.dtype == bool
    assert total == 10
    emitted, total = mgpu.scan(x[:0], emit=lambda s, i: (s, i * 1.5), return_total=True)
    assert [y.shape for y in emitted] == [(0,), (0,)]
    assert total == 0


def test_map_and_emit():
    """One scan gives running standard deviations."""
    x = np.random.default_rng(2).normal(size=N)
    with jax.enable_x64(True):
        got = mgpu.scan(
            x,
            lambda a, b: jax.tree.map(jnp.add, a, b),
            map=lambda x: (x, x * x),
            emit=lambda s, i: jnp.sqrt(jnp.maximum(s[1] / (i + 1) - (s[0] / (i + 1)) ** 2, 0)),
        )
    np.testing.assert_allclose(got, [x[: i + 1].std() for i in range(N)], atol=1e-7)


def test_random_keys_are_emitted():
    keys = jax.random.split(jax.random.key(0), 4)
    got = mgpu.scan(keys, lambda a, b: b, emit=lambda key: (key, jax.random.uniform(key)), count=3)
    np.testing.assert_array_equal(jax.random.key_data(got[0])[:3], jax.random.key_data(keys)[:3])
    np.testing.assert_array_equal(got[1], np.append([jax.random.uniform(key) for key in keys[:3]], 0))


@pytest.mark.parametrize("op", ["add", "max", jnp.multiply])
def test_derivatives(op):
    """Past the count and in gaps, states are 0; their infinite logarithms do not affect derivatives."""
    x = jnp.array(np.random.default_rng(3).random(N) + 0.5, jnp.float32)

    def emitted(x, scale):
        return mgpu.segmented_scan(x, HEADS, op, ends=ENDS, count=COUNT, emit=lambda s, i: scale * jnp.log(s) / (i + 1))

    def plain(x, scale):
        prefix = {"add": jnp.cumsum, "max": jax.lax.cummax}.get(op, jnp.cumprod)
        parts = [slice(b, min(e, COUNT)) for b, e in zip(HEADS, ENDS, strict=True)]
        return sum((scale * jnp.log(prefix(x[p])) / (jnp.arange(N)[p] + 1)).sum() for p in parts)

    got = jax.jit(jax.grad(lambda x, scale: emitted(x, scale).sum(), (0, 1)))(x, jnp.float32(2))
    for mine, other in zip(got, jax.grad(plain, (0, 1))(x, jnp.float32(2)), strict=True):
        np.testing.assert_allclose(mine, other, rtol=2e-4, atol=1e-5)


def test_batches_and_devices():
    x = np.random.default_rng(4).integers(-5, 6, (3, 8)).astype(np.float32)

    def one(x, count):
        return mgpu.scan(x, emit=lambda s, i: s * i, count=count)

    expected = np.cumsum(x, 1) * np.arange(8) * (np.arange(8) < np.array([8, 3, 0])[:, None])
    np.testing.assert_array_equal(jax.vmap(one)(x, np.array([8, 3, 0])), expected)
    over_axis = jax.vmap(lambda x: mgpu.scan(x, emit=lambda s, i: s * i, axis_name="i"), axis_name="i")
    flat = np.cumsum(x.reshape(-1)) * np.arange(24)
    np.testing.assert_array_equal(over_axis(x).reshape(-1), flat)


ERRORS = {
    "a function of a state, or of a state and its position, got 3": 3,
    "a function of a state, or of a state and its position, got the error": lambda a, b, c: a,
    "a function of a state, or of a state and its position that gives a pytree of arrays, got an empty": lambda a: None,
    "a function of a state, or of a state and its position, got the error: Value 'x'": lambda a: "x",
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    for call in (mgpu.scan, lambda x, **options: mgpu.segmented_scan(x, [0], **options)):
        with pytest.raises(TypeError, match=f"scan: emit: expected {re.escape(message)}"):
            call(jnp.arange(4), emit=ERRORS[message])
