"""Helpers of the tests of transformations, derivatives and meshes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

import jax_mgpu as mgpu
from tests import oracle
from tests.families import EXAMPLES
from tests.jaxprs import kernel_calls

DEVICES = 4

AXIS_TYPES = [
    pytest.param(AxisType.Auto, id="auto", marks=pytest.mark.long),
    pytest.param(AxisType.Explicit, id="explicit"),
]

long = pytest.mark.long

every_example = pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
# One example of each function is not `long`.
every_function = pytest.mark.parametrize(
    "example", [pytest.param(e, id=name, marks=long if "," in name else ()) for name, e in EXAMPLES.items()]
)

KERNELS = {name: example for name, example in EXAMPLES.items() if not example.composed}

every_kernel = pytest.mark.parametrize("example", KERNELS.values(), ids=KERNELS)


def primitives(function, *arguments):
    return {call.primitive.name.removeprefix("mgpu_") for call in kernel_calls(function, *arguments)}


def agree(got, expected, exact=True):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for g, e in zip(map(np.asarray, jax.tree.leaves(got)), map(np.asarray, jax.tree.leaves(expected)), strict=True):
        assert (g.dtype, g.shape) == (e.dtype, e.shape)
        if exact or g.dtype.kind in "biu":
            np.testing.assert_array_equal(oracle.bits(g), oracle.bits(e))
        else:
            largest = np.max(np.abs(e), initial=0, where=np.isfinite(e))  # the error of a sum may be a fraction of this
            np.testing.assert_allclose(g, e, rtol=1e-5, atol=max(1e-5, 1e-6 * largest))


def stack(problems):
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *problems)


def batch_of(example, rng, size, real=np.float32):
    return stack([example.make(rng, real) for _ in range(size)])


def one_by_one(function, arguments, mapped, size):
    """Returns the results of a call for each problem, stacked."""
    function = jax.jit(function)
    return stack([function(*(x[b] if on else x for x, on in zip(arguments, mapped, strict=True))) for b in range(size)])


def mixes(arity):
    """Returns which arguments are mapped: all, one, or all except one."""
    alone = [tuple(i == j for j in range(arity)) for i in range(arity)]
    return dict.fromkeys([(True,) * arity, *alone, *(tuple(not on for on in mix) for mix in alone if arity > 1)])


def drop(arguments, mapped):
    """Returns a batch's arguments; unmapped ones come from the first problem."""
    return tuple(x if on else x[0] for x, on in zip(arguments, mapped, strict=True))


def axes(mapped, axis=0):
    return tuple(axis if on else None for on in mapped)


@functools.cache
def mesh_devices():
    """Returns four or two default devices, else four of the CPU, or () if there are too few."""
    for platform, least in ((None, 2), ("cpu", DEVICES)):
        try:
            devices = jax.devices(platform)
        except RuntimeError:
            continue
        if len(devices) >= least:
            return tuple(devices[: DEVICES if len(devices) >= DEVICES else 2])
    return ()


def mesh_of(devices, axis_type):
    shape = (2, len(devices) // 2)
    return jax.make_mesh(shape, ("x", "y"), axis_types=(axis_type,) * 2, devices=devices)


def place(mesh, arguments, specs):
    return tuple(jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arguments, specs, strict=True))


def differentiable_cases(examples):
    found = {name: example for name, example in examples.items() if example.differentiable}
    return pytest.mark.parametrize("example", found.values(), ids=found)


def floats(tree):
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def loss_of(example):
    """Returns a scalar function that weighs each item of the results differently."""

    def loss(*arguments):
        return sum(
            jnp.sum(jnp.sin(x) * jnp.cos(jnp.arange(x.size).reshape(x.shape))) for x in floats(example.call(*arguments))
        )

    return loss


def loss_of_sums(example):
    """Returns a loss that does not mix types itself."""
    return lambda *arguments: sum(x.astype(jnp.float32).sum() for x in floats(example.call(*arguments)))


def tangent_of(x):
    return jnp.ones_like(x) if jnp.issubdtype(x.dtype, jnp.floating) else np.zeros(x.shape, jax.dtypes.float0)


# Linear calls, and their arguments' lengths.
LINEAR_CALLS = {
    "bulk_insert": (lambda x, values: mgpu.bulk_insert(x, ODD, values, count=7), (8, 3)),
    "bulk_insert, values": (lambda values: mgpu.bulk_insert(jnp.zeros(8), ODD, values), (3,)),
    "bulk_insert, x": (lambda x: mgpu.bulk_insert(x, ODD, jnp.zeros(3)), (8,)),
    "bulk_remove": (lambda x: mgpu.bulk_remove(x, ODD, count=7), (8,)),
    "interval_expand": (lambda x: mgpu.interval_expand(x, ODD, 6), (3,)),
    "interval_gather": (lambda x: mgpu.interval_gather(x, ODD, ODD - 1, 6), (8,)),
    "interval_move": (lambda x, into: mgpu.interval_move(x, ODD, ODD, ODD - 1, into, total=6), (8, 9)),
    "interval_move, into": (lambda into: mgpu.interval_move(jnp.zeros(8), ODD, ODD, ODD - 1, into, total=6), (9,)),
    "interval_scatter": (lambda x, into: mgpu.interval_scatter(x, ODD, ODD - 1, into), (6, 9)),
    "interval_scatter, into": (lambda into: mgpu.interval_scatter(jnp.zeros(6), ODD, ODD - 1, into), (9,)),
    "interval_scatter, x": (lambda x: mgpu.interval_scatter(x, ODD, ODD - 1, jnp.zeros(9)), (6,)),
    "reduce": (lambda x: mgpu.reduce(x, count=7), (8,)),
    "scan": (lambda x: mgpu.scan(x, return_total=True), (8,)),
    "segmented_reduce": (lambda x: mgpu.segmented_reduce(x, ODD), (8,)),
}

ODD = np.array([1, 3, 5], np.int32)
