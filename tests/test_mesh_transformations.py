"""Operations on batches sharded over a mesh, and under shard_map."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_mgpu as mgpu
from jax_mgpu._src.core.sharding import workspace_shape
from tests.families import EXAMPLES
from tests.transformed import (
    AXIS_TYPES,
    DEVICES,
    KERNELS,
    LINEAR_CALLS,
    agree,
    axes,
    batch_of,
    differentiable_cases,
    drop,
    every_example,
    every_kernel,
    long,
    loss_of,
    mesh_of,
    one_by_one,
    place,
)


@pytest.mark.parametrize("rank", [pytest.param(1, marks=long), 2])
@pytest.mark.parametrize("axis_type", AXIS_TYPES)
@every_kernel
def test_sharded_batches_stay_where_they_are(example, rng, devices, axis_type, rank):
    mesh = mesh_of(devices, axis_type)
    spec = P(("x", "y")) if rank == 1 else P("x", "y")
    arguments = batch_of(example, rng, 8)
    for mapped in ((True,) * len(arguments), (*(True,) * (len(arguments) - 1), False)):
        if not any(mapped):
            continue
        given = drop(arguments, mapped)
        expected = one_by_one(example.call, given, mapped, 8)
        function = jax.vmap(example.call, in_axes=axes(mapped))
        if rank == 2:
            given = tuple(x.reshape(4, 2, *x.shape[1:]) if on else x for x, on in zip(given, mapped, strict=True))
            expected = jax.tree.map(lambda x: x.reshape(4, 2, *x.shape[1:]), expected)
            function = jax.vmap(function, in_axes=axes(mapped))
        with jax.set_mesh(mesh):
            placed = place(mesh, given, [spec if on else P() for on in mapped])
            compiled = jax.jit(function).lower(*placed).compile()
            agree(compiled(*placed), expected, example.exact)
        assert "all-gather" not in compiled.as_text()
        assert "all-to-all" not in compiled.as_text()


@pytest.mark.parametrize("axis_type", AXIS_TYPES)
@every_kernel
def test_own_axis_sharded(example, rng, devices, axis_type):
    mesh = mesh_of(devices, axis_type)
    arguments = example.make(rng, np.float32)
    for given, function, spec in (
        (arguments, example.call, P("x")),
        (batch_of(example, rng, 2), jax.vmap(example.call), P(None, "y")),
    ):
        expected = jax.jit(function)(*given)
        lead = len(spec) - 1
        specs = [spec if x.ndim > lead and x.shape[lead] % 2 == 0 else P() for x in map(np.asarray, given)]
        with jax.set_mesh(mesh):
            agree(jax.jit(function)(*place(mesh, given, specs)), jax.device_get(expected), example.exact)


def halves(x):
    """Returns an argument's sharding: two parts if possible; JAX splits no key of random numbers."""
    x = np.asarray(x)
    return P("x") if x.ndim and x.size and x.shape[0] % 2 == 0 and x.dtype != np.uint32 else P()


@every_example
def test_explicit_mesh_that_is_not_set(example, rng, devices):
    """Arrays name their mesh, so calls gather the own axis without `jax.set_mesh` too."""
    arguments = example.make(rng, np.float32)
    placed = place(mesh_of(devices, AxisType.Explicit), arguments, map(halves, arguments))
    agree(jax.device_get(example.call(*placed)), jax.device_get(jax.jit(example.call)(*arguments)), example.exact)


@differentiable_cases(EXAMPLES)
def test_gradient_on_an_explicit_mesh_that_is_not_set(example, rng, devices):
    """Arguments that the batch shares are replicated."""
    mesh, position = mesh_of(devices, AxisType.Explicit), example.differentiable[0]
    gradient = jax.grad(loss_of(example), argnums=position)
    arguments = batch_of(example, rng, DEVICES)
    for mapped in ((True,) * len(arguments), tuple(i == position for i in range(len(arguments)))):
        given = drop(arguments, mapped)
        placed = place(mesh, given, [P("x") if on else P() for on in mapped])
        expected = one_by_one(gradient, given, mapped, DEVICES)
        agree(jax.jit(jax.vmap(gradient, in_axes=axes(mapped)))(*placed), expected, exact=False)


@every_example
def test_shard_map(example, rng, devices):
    mesh = mesh_of(devices, AxisType.Auto)
    arguments = batch_of(example, rng, 8)
    everything = (True,) * len(arguments)
    for mapped in dict.fromkeys((everything, (True, *(False,) * (len(arguments) - 1)), (False, *everything[1:]))):
        if not any(mapped):
            continue
        given = drop(arguments, mapped)
        specs = tuple(P(("x", "y")) if on else P() for on in mapped)
        mapped_call = jax.vmap(example.call, in_axes=axes(mapped))
        compiled = jax.jit(jax.shard_map(mapped_call, mesh=mesh, in_specs=specs, out_specs=P(("x", "y"))))
        placed = place(mesh, given, specs)
        agree(compiled(*placed), one_by_one(example.call, given, mapped, 8), example.exact)
        assert "all-gather" not in compiled.lower(*placed).compile().as_text()


ROWS_WITHOUT_ELEMENTS = {
    "bulk_insert": lambda keys, x, h: mgpu.bulk_insert(x, h, x[:2]),
    "bulk_remove": lambda keys, x, h: mgpu.bulk_remove(x, h),
    "interval_expand": lambda keys, x, h: mgpu.interval_expand(x[:2], h, 6),
    "interval_gather": lambda keys, x, h: mgpu.interval_gather(x, h, h, 6),
    "interval_move": lambda keys, x, h: mgpu.interval_move(x, h, h, h, x),
    "interval_scatter": lambda keys, x, h: mgpu.interval_scatter(x, h, h, x),
    "merge": lambda keys, x, h: mgpu.merge(keys, keys, x, x)[1],
    "mergesort": lambda keys, x, h: mgpu.mergesort(keys, x)[1],
}


@pytest.mark.parametrize("is_shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("name", ROWS_WITHOUT_ELEMENTS)
def test_derivatives_of_rows_without_elements_under_shard_map(name, is_shared, devices):
    mesh, spread = mesh_of(devices, AxisType.Auto), P(("x", "y"))
    keys, x = jnp.arange(6.0 * DEVICES).reshape(DEVICES, 6), jnp.zeros((DEVICES, 6, 0))
    heads = jnp.tile(jnp.array([0, 3]), (DEVICES, 1))
    axes_in, specs = (0, None if is_shared else 0, 0), (spread, P() if is_shared else spread, spread)
    call = jax.shard_map(
        jax.vmap(ROWS_WITHOUT_ELEMENTS[name], in_axes=axes_in), mesh=mesh, in_specs=specs, out_specs=spread
    )
    given = x[0] if is_shared else x
    _, tangent = jax.jit(lambda x: jax.jvp(lambda x: call(keys, x, heads), (x,), (x,)))(given)
    gradient = jax.jit(jax.grad(lambda x: call(keys, x, heads).sum()))(given)
    assert tangent.shape[0] == DEVICES and tangent.shape[-1] == 0
    assert gradient.shape == given.shape


@differentiable_cases(KERNELS)
def test_gradient_of_a_replicated_argument_under_shard_map(example, rng, devices):
    mesh = mesh_of(devices, AxisType.Auto)
    loss = loss_of(example)
    arguments = batch_of(example, rng, DEVICES)
    for position in example.differentiable:
        mapped = tuple(i != position for i in range(len(arguments)))
        if not any(mapped):
            continue
        given = drop(arguments, mapped)
        specs = tuple(P(("x", "y")) if on else P() for on in mapped)

        def per_device(*xs, mapped=mapped):
            return jax.vmap(loss, in_axes=axes(mapped))(*xs)

        sharded = jax.shard_map(per_device, mesh=mesh, in_specs=specs, out_specs=P(("x", "y")))
        got = jax.jit(jax.grad(lambda *xs, f=sharded: f(*xs).sum(), argnums=position))(*place(mesh, given, specs))
        agree(got, one_by_one(jax.grad(loss, argnums=position), given, mapped, DEVICES).sum(0), exact=False)


def add(a, b):
    return a + b


FUNCTION_CALLS = {
    "reduce": lambda x, heads, keys, count: mgpu.reduce(x, add, count=count, identity=0.0),
    "reduce_by_key": lambda x, heads, keys, count: mgpu.reduce_by_key(keys, x, add, size=4, count=count),
    "scan": lambda x, heads, keys, count: mgpu.scan(
        x, add, exclusive=True, count=count, return_total=True, identity=0.0
    ),
    "segmented_reduce": lambda x, heads, keys, count: mgpu.segmented_reduce(x, heads, add, count=count, identity=0.0),
    "segmented_scan": lambda x, heads, keys, count: mgpu.segmented_scan(x, heads, add, reverse=True, count=count),
}


@pytest.mark.parametrize("call", FUNCTION_CALLS.values(), ids=FUNCTION_CALLS)
@pytest.mark.long
def test_functions_on_an_explicit_mesh(call, devices):
    mesh = mesh_of(devices, AxisType.Explicit)
    arguments = (
        np.arange(8, dtype=np.float32),
        np.array([0, 2, 5, 6]),
        np.array([1, 1, 2, 2, 2, 3, 3, 3]),
        np.int64(6),
    )
    arguments = tuple(np.asarray(x, np.int32 if x.dtype == np.int64 else x.dtype) for x in arguments)
    expected = call(*arguments)
    for specs in ([P("x")] * 3, [P(), P("x"), P()], [P(("x", "y")), P("x"), P("x")]):
        with jax.set_mesh(mesh):
            placed = place(mesh, arguments, [*specs, P()])
            agree(jax.device_get(jax.jit(call)(*placed)), jax.device_get(expected), exact=False)
    with jax.set_mesh(mesh):
        agree(jax.device_get(call(*placed)), jax.device_get(expected), exact=False)
    batch = tuple(np.stack([x] * 4) for x in arguments)
    expected = jax.device_get(jax.vmap(call)(*batch))
    for spec in (P("x"), P(None, "x")):
        with jax.set_mesh(mesh):
            placed = place(mesh, batch, [spec if x.ndim >= len(spec) else P() for x in batch])
            agree(jax.device_get(jax.jit(jax.vmap(call))(*placed)), expected, exact=False)
    counts = np.array([6, 3, 0, 8], np.int32)
    in_axes = (None, None, None, 0)
    expected = jax.device_get(jax.vmap(call, in_axes=in_axes)(*arguments[:3], counts))
    with jax.set_mesh(mesh):
        placed = place(mesh, (*arguments[:3], counts), [P(), P(), P(), P("x")])
        agree(jax.device_get(jax.jit(jax.vmap(call, in_axes=in_axes))(*placed)), expected, exact=False)


# Rows of a batch and of a sparse matrix whose offsets a caller placed over several devices.
OFFSETS_CALLS = {
    "Ragged.reduce": lambda x, offsets: mgpu.Ragged(x, offsets).reduce(),
    "Ragged.sort": lambda x, offsets: mgpu.Ragged(x, offsets).sort().values,
    "Ragged.lengths": lambda x, offsets: mgpu.Ragged(x, offsets).lengths,
    "Ragged.to_dense": lambda x, offsets: mgpu.Ragged(x, offsets).to_dense(4),
    "Csr.rows": lambda x, offsets: _csr(x, offsets).rows,
    "Csr.T": lambda x, offsets: _csr(x, offsets).T.todense(),
    "Csr @": lambda x, offsets: _csr(x, offsets) @ jnp.arange(5.0),
    "@ Csr": lambda x, offsets: jnp.arange(7.0) @ _csr(x, offsets),
    "Csr @, transposed": lambda x, offsets: _csr(x, offsets).with_transpose() @ jnp.arange(5.0),
    "Csr.matmul": lambda x, offsets: _csr(x, offsets).matmul(_csr(x, offsets).T, size=49).todense(),
    "sddmm": lambda x, offsets: mgpu.sddmm(_csr(x, offsets), jnp.ones((7, 2)), jnp.ones((5, 2))).values,
    "gradient": jax.grad(lambda x, offsets: (_csr(x, offsets) @ jnp.arange(5.0)).sum()),
}


def _csr(values, offsets):
    return mgpu.Csr(values, np.arange(8, dtype=np.int32) % 5, offsets, (7, 5))


@pytest.mark.parametrize("call", OFFSETS_CALLS.values(), ids=OFFSETS_CALLS)
def test_sharded_offsets_on_an_explicit_mesh(call, devices):
    """JAX cuts no item off an axis that is sharded over Explicit axes, so the offsets are gathered first."""
    mesh = mesh_of(devices, AxisType.Explicit)
    arguments = np.arange(8, dtype=np.float32), np.array([0, 1, 1, 3, 4, 5, 6, 8], np.int32)
    expected = jax.device_get(call(*map(jnp.asarray, arguments)))
    for specs in ([P("x")] * 2, [P(), P(("x", "y"))]):
        placed = place(mesh, arguments, specs)
        with jax.set_mesh(mesh):
            for form in (jax.jit(call), call):
                agree(jax.device_get(form(*placed)), expected, exact=False)
        if call is not OFFSETS_CALLS["gradient"]:  # JAX derives no sum outside of jit if no mesh is set
            agree(jax.device_get(call(*placed)), expected, exact=False)


@pytest.mark.parametrize("call", FUNCTION_CALLS.values(), ids=FUNCTION_CALLS)
def test_functions_of_nothing_under_shard_map(call, devices):
    """Functions of empty operands give results that vary, so varying cotangents fit them."""
    mesh = mesh_of(devices, AxisType.Auto)
    spec = P(("x", "y"))
    heads = np.zeros(2, np.int32)

    def like_of(y, cotangent):
        if y.dtype != cotangent.dtype:
            return np.zeros(y.shape, jax.dtypes.float0)
        return jnp.broadcast_to(cotangent[0], y.shape)

    def per_device(x, cotangent):
        results, pull = jax.vjp(lambda x: jax.tree.leaves(call(x, heads, jnp.zeros(0, jnp.int32), None)), x)
        return pull([like_of(y, cotangent) for y in results])[0]

    mapped = jax.shard_map(per_device, mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    assert jax.jit(mapped)(jnp.zeros(0), jnp.ones(len(devices))).shape == (0,)


@pytest.mark.parametrize("call, lengths", LINEAR_CALLS.values(), ids=LINEAR_CALLS)
def test_linear_transpose_on_an_explicit_mesh(call, lengths, devices):
    mesh = mesh_of(devices, AxisType.Explicit)
    zeros = [jnp.zeros(n) for n in lengths]
    shapes = jax.eval_shape(call, *zeros)
    cotangents = jax.tree.map(lambda y: np.cos(np.arange(4 * y.size)).reshape(4, *y.shape).astype(y.dtype), shapes)

    def transposed(cotangent):
        return jax.linear_transpose(call, *zeros)(cotangent)

    expected = jax.device_get(jax.vmap(transposed)(cotangents))
    with jax.set_mesh(mesh):
        placed = jax.device_put(cotangents, NamedSharding(mesh, P("x")))
        agree(jax.device_get(jax.jit(jax.vmap(transposed))(placed)), expected, exact=False)


def test_gradients_of_gathered_intervals_under_shard_map(devices):
    mesh = mesh_of(devices, AxisType.Auto)
    x = np.arange(4 * 8, dtype=np.float32).reshape(4, 8)
    starts = np.array([[0, 1], [0, 4], [3, 3], [6, 0]], np.int32)

    def loss(x, starts):
        return (mgpu.interval_gather(x, starts, np.array([0, 2]), 4) * np.arange(4.0)).sum()

    gradient = jax.vmap(jax.grad(loss))
    sharded = jax.shard_map(gradient, mesh=mesh, in_specs=P(("x", "y")), out_specs=P(("x", "y")))
    agree(jax.device_get(jax.jit(sharded)(x, starts)), jax.device_get(gradient(x, starts)))


ROW_CALLS = {
    "bulk_insert": lambda rows: mgpu.bulk_insert(rows, jnp.arange(8), rows),
    "bulk_remove": lambda rows: mgpu.bulk_remove(rows, jnp.arange(2)),
    "interval_expand": lambda rows: mgpu.interval_expand(rows, jnp.arange(8), 10),
    "interval_gather": lambda rows: mgpu.interval_gather(rows, jnp.arange(8), jnp.arange(8), 10),
    "interval_move": lambda rows: mgpu.interval_move(rows, jnp.arange(8), jnp.arange(8), jnp.arange(8), rows),
    "interval_scatter": lambda rows: mgpu.interval_scatter(rows, jnp.arange(8), jnp.arange(8), rows),
    "mergesort": lambda rows: mgpu.mergesort(jnp.arange(8), rows)[1],
    "merge": lambda rows: mgpu.merge(jnp.arange(8), jnp.arange(8), rows, rows)[1],
    "set_union": lambda rows: mgpu.set_union(jnp.arange(8), jnp.arange(8), rows, rows).values,
}


@pytest.mark.parametrize("call", ROW_CALLS.values(), ids=ROW_CALLS)
def test_rows_without_elements_under_shard_map(call, devices):
    mesh = mesh_of(devices, AxisType.Auto)
    mapped = jax.shard_map(call, mesh=mesh, in_specs=P(("x", "y")), out_specs=P(("x", "y")))
    rows = jnp.zeros((8 * len(devices), 2, 0))
    result, tangent = jax.jit(lambda x: jax.jvp(mapped, (x,), (x,)))(rows)
    assert tangent.shape == result.shape
    assert jax.jit(jax.grad(lambda x: mapped(x).sum()))(rows).shape == rows.shape


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("batch", [(1,), (3,), (7,), (16,), (3, 3), (4, 5), (1, 9), (2, 3, 5)])
def test_a_workspace_suffices_for_uneven_splits_of_a_batch(batch, devices) -> None:
    """XLA pads an axis that the devices do not divide, and passes each device its part of the workspace."""

    def bytes_of(rows: int) -> int:
        return -(-rows * 12_100 // 256) * 256 + 10_000 * (rows > 3)

    *axes, row_bytes = workspace_shape(batch, devices, bytes_of)
    assert tuple(axes) == batch
    for parts in itertools.product(range(1, devices + 1), repeat=len(batch)):
        if devices % math.prod(parts) == 0:
            rows = math.prod(math.ceil(size / part) for size, part in zip(batch, parts, strict=True))
            assert bytes_of(rows) <= rows * row_bytes
