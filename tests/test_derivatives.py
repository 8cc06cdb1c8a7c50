"""Derivatives of operations, and operations within loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from tests.examples import Example, distinct
from tests.families import EXAMPLES
from tests.transformed import (
    KERNELS,
    LINEAR_CALLS,
    agree,
    axes,
    batch_of,
    differentiable_cases,
    drop,
    every_kernel,
    floats,
    long,
    loss_of,
    one_by_one,
)


@differentiable_cases(EXAMPLES)
def test_derivatives_match_differences(example, rng):
    with jax.enable_x64(True):
        arguments = example.make(rng, np.float64)

        def of_floats(*moving):
            given = list(arguments)
            for position, x in zip(example.differentiable, moving, strict=True):
                given[position] = x
            return floats(example.call(*given))

        moving = tuple(arguments[i] for i in example.differentiable)
        check_grads(jax.jit(of_floats), moving, order=2, modes=["fwd", "rev"], eps=1e-4)


@differentiable_cases(EXAMPLES)
def test_vmap_of_grad_and_grad_of_vmap(example, rng):
    loss = loss_of(example)
    gradient = jax.grad(loss, argnums=example.differentiable)
    arguments = batch_of(example, rng, 3)
    everything = (True,) * len(arguments)
    for mapped in (everything, tuple(i != example.differentiable[0] for i in range(len(arguments)))):
        if not any(mapped):
            continue
        given = drop(arguments, mapped)
        expected = one_by_one(gradient, given, mapped, 3)
        agree(jax.jit(jax.vmap(gradient, in_axes=axes(mapped)))(*given), expected, exact=False)
        # The gradient of a shared argument is a sum over the batch.
        summed = tuple(x if mapped[i] else x.sum(0) for i, x in zip(example.differentiable, expected, strict=True))
        total = jax.grad(lambda *xs: jax.vmap(loss, in_axes=axes(mapped))(*xs).sum(), argnums=example.differentiable)  # noqa: B023
        agree(jax.jit(total)(*given), summed, exact=False)


@long
@differentiable_cases(KERNELS)
def test_jacobians(example, rng):
    arguments = example.make(rng, np.float32)
    for position in example.differentiable:

        def of_one(x, position=position):
            return floats(example.call(*arguments[:position], x, *arguments[position + 1 :]))

        forward, reverse = jax.jit(lambda x, f=of_one: (jax.jacfwd(f)(x), jax.jacrev(f)(x)))(arguments[position])
        assert any(np.asarray(matrix).any() for matrix in forward)
        agree(forward, reverse, exact=False)


def float_keys(call):
    """Returns a call on sorted float keys without ties, so that derivatives exist."""
    return lambda x: call(jnp.sort(x), jnp.sort(x)[:40] + x.dtype.type(0.5))


HALF_CASES = {
    **{name: example for name, example in KERNELS.items() if example.differentiable},
    **{
        name: Example(call, lambda rng, real: (distinct(rng, real),), differentiable=(0,))
        for name, call in {
            "reduce, mul": lambda x: mgpu.reduce(x / 8 + 1, "mul", count=5),
            "scan, mul": lambda x: mgpu.scan(x / 8 + 1, "mul", count=5),
            "scan, total": lambda x: mgpu.scan(x, "min", return_total=True),
            "set_symmetric_difference, keys": float_keys(mgpu.set_symmetric_difference),
            "set_union, keys": float_keys(mgpu.set_union),
            "reduce_by_key, keys": lambda x: mgpu.reduce_by_key(x, x, size=70)[0],
            "reduce_by_key, max": lambda x: mgpu.reduce_by_key(x // 7, x, "max", size=70)[1],
        }.items()
    },
}


@pytest.mark.parametrize(
    "real", [pytest.param(np.float16, marks=long), jnp.bfloat16.dtype.type], ids=["float16", "bfloat16"]
)
@pytest.mark.parametrize("example", HALF_CASES.values(), ids=HALF_CASES)
def test_reverse_derivatives_of_narrow_floats(example, rng, real):
    """Kernels move narrow floats as integers, which have no transpose; tangents must still be floats."""
    arguments = example.make(rng, real)

    def of_floats(*moving):
        given = dict(enumerate(arguments)) | dict(zip(example.differentiable, moving, strict=True))
        return floats(example.call(*given.values()))

    moving = tuple(jnp.asarray(arguments[i]) for i in example.differentiable)
    # <cotangent, J tangent> must equal <J^T cotangent, tangent>
    tangent = jax.tree.map(lambda x: jnp.asarray(rng.integers(-2, 3, x.shape), x.dtype), moving)
    results, forward = jax.jit(lambda xs, dxs: jax.jvp(of_floats, xs, dxs))(moving, tangent)
    cotangent = jax.tree.map(lambda x: jnp.asarray(rng.integers(-2, 3, x.shape), x.dtype), results)
    backward = jax.jit(lambda xs, cts: jax.vjp(of_floats, *xs)[1](cts))(moving, cotangent)

    def dot(xs, ys):
        return sum(
            np.vdot(np.asarray(x, np.float64), np.asarray(y, np.float64))
            for x, y in zip(jax.tree.leaves(xs), jax.tree.leaves(ys), strict=True)
        )

    np.testing.assert_allclose(dot(forward, cotangent), dot(tangent, backward), rtol=2e-2, atol=1)


@pytest.mark.parametrize("batched", [False, True], ids=["one", "batch"])
@pytest.mark.parametrize("call, lengths", LINEAR_CALLS.values(), ids=LINEAR_CALLS)
def test_linear_transpose(call, lengths, batched):
    """The transpose is that of the call's matrix, whose columns are the results for unit vectors."""
    if batched:
        call, lengths = jax.vmap(call), [(2, n) for n in lengths]
    zeros = [jnp.zeros(n) for n in lengths]
    units = [jnp.eye(x.size).reshape(x.size, *x.shape) for x in zeros]
    results = call(*zeros)
    cotangents = jax.tree.map(lambda y: jnp.cos(jnp.arange(y.size)).reshape(y.shape), results)
    got = jax.linear_transpose(call, *zeros)(cotangents)
    for i, directions in enumerate(units):
        columns = jax.vmap(lambda x, i=i: call(*zeros[:i], x, *zeros[i + 1 :]))(directions)
        weighted = jax.tree.map(lambda c, ct: (c * ct).reshape(len(c), -1).sum(1), columns, cotangents)
        np.testing.assert_allclose(got[i].ravel(), sum(jax.tree.leaves(weighted)), rtol=1e-5, atol=1e-6)


@long
@differentiable_cases(KERNELS)
def test_checkpoint(example, rng):
    arguments = example.make(rng, np.float32)
    loss = loss_of(example)
    expected, got = (jax.grad(f, argnums=example.differentiable) for f in (loss, jax.checkpoint(loss)))
    agree(jax.jit(got)(*arguments), jax.jit(expected)(*arguments), exact=False)


@every_kernel
def test_inside_scan_and_while_loop(example, rng):
    arguments = batch_of(example, rng, 3)
    expected = one_by_one(example.call, arguments, (True,) * len(arguments), 3)
    scanned = jax.jit(lambda arguments: jax.lax.scan(lambda carry, xs: (carry, example.call(*xs)), 0, arguments)[1])
    agree(scanned(arguments), expected, example.exact)

    @jax.jit
    def loop(arguments):
        shapes = jax.eval_shape(example.call, *(x[0] for x in arguments))
        filled = jax.tree.map(lambda s: jnp.zeros((3, *s.shape), s.dtype), shapes)

        def body(state):
            i, results = state
            once = example.call(*(x[i] for x in arguments))
            return i + 1, jax.tree.map(lambda whole, x: whole.at[i].set(x), results, once)

        return jax.lax.while_loop(lambda state: state[0] < 3, body, (0, filled))[1]

    agree(loop(jax.tree.map(jnp.asarray, arguments)), expected, example.exact)
