"""Operations of the registry under transformations of JAX."""

from __future__ import annotations

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_mgpu as mgpu
from jax_mgpu._src.core import library, operation
from jax_mgpu._src.ops import hash_groups
from jax_mgpu._src.ops.sort_strategy import LONG_PERMUTATION
from tests.families import EXAMPLES, INFORMATION
from tests.jaxprs import kernel_calls
from tests.transformed import (
    AXIS_TYPES,
    agree,
    axes,
    batch_of,
    drop,
    every_example,
    every_function,
    every_kernel,
    long,
    loss_of_sums,
    mesh_of,
    mixes,
    one_by_one,
    place,
    primitives,
    stack,
    tangent_of,
)

BY_FUNCTION = set(library.cpu_library.description["by_function"].split())


def test_every_operation_has_an_example(rng):
    covered = set().union(*(primitives(example.call, *example.make(rng, np.float32)) for example in EXAMPLES.values()))
    long = jax.ShapeDtypeStruct((LONG_PERMUTATION,), np.int32)  # so many rows take the join by buckets
    covered |= primitives(lambda a, b: mgpu.join(a, b, size=8, assume_sorted=False), long, long)
    covered |= primitives(mgpu.scan, jax.ShapeDtypeStruct((1 << 20, 2), np.float32))
    row, key = jax.ShapeDtypeStruct((1 << 17,), np.float32), jax.random.key(0)
    sorts = functools.partial(operation.REGISTRY["top_k"].fallback, k=3000, largest=1)
    covered |= primitives(sorts, row, jax.ShapeDtypeStruct((0,), np.int32))
    covered |= primitives(lambda x: mgpu.sample_logits(key, x, top_p=0.9), row)
    rows = jax.ShapeDtypeStruct((hash_groups.LEAST_ROWS,), np.int32)  # so many rows are grouped by tables
    covered |= primitives(lambda x: mgpu.group_by(x, x, "max", size=8), rows)
    unregistered = {"combine", "divide", "put", "spread", "take"}
    assert covered - BY_FUNCTION - unregistered == set(operation.REGISTRY)
    functions = {name for name in mgpu.__all__ if callable(getattr(mgpu, name)) and name[0].islower()} - INFORMATION
    assert functions == {name.split(",")[0] for name in EXAMPLES}


# ---- Batches --------------------------------------------------------------------------------------------------------


@every_function
def test_vmap_over_each_mix(example, rng):
    arguments = batch_of(example, rng, 3)
    for mapped in mixes(len(arguments)):
        given = drop(arguments, mapped)
        got = jax.jit(jax.vmap(example.call, in_axes=axes(mapped)))(*given)
        agree(got, one_by_one(example.call, given, mapped, 3), example.exact)


@every_kernel
def test_batches_of_one_and_none(example, rng):
    arguments = batch_of(example, rng, 1)
    everything = (True,) * len(arguments)
    expected = one_by_one(example.call, arguments, everything, 1)
    agree(jax.jit(jax.vmap(example.call))(*arguments), expected, example.exact)
    none = jax.jit(jax.vmap(example.call))(*(x[:0] for x in arguments))
    agree(none, jax.tree.map(lambda x: x[:0], expected), example.exact)


@every_kernel
def test_nested_vmap(example, rng):
    outer, inner = 2, 3
    arguments = stack([batch_of(example, rng, inner) for _ in range(outer)])
    everything = (True,) * len(arguments)
    flat = tuple(x.reshape(outer * inner, *x.shape[2:]) for x in arguments)
    expected = one_by_one(example.call, flat, everything, outer * inner)
    expected = jax.tree.map(lambda x: x.reshape(outer, inner, *x.shape[1:]), expected)
    agree(jax.jit(jax.vmap(jax.vmap(example.call)))(*arguments), expected, example.exact)
    # the inner vmap alone maps the first argument, along its last axis; the outer one maps the others
    first = np.moveaxis(arguments[0][0], 0, -1)
    rest = tuple(x[:, 0] for x in arguments[1:])
    if rest:
        inner_axes, outer_axes = (first.ndim - 1, *[None] * len(rest)), (None, *[0] * len(rest))
        got = jax.jit(jax.vmap(jax.vmap(example.call, in_axes=inner_axes), in_axes=outer_axes))(first, *rest)
        rows = [
            one_by_one(example.call, (arguments[0][0], *(x[i] for x in rest)), (True, *[False] * len(rest)), inner)
            for i in range(outer)
        ]
        agree(got, stack(rows), example.exact)


@long
@every_kernel
def test_vmap_of_constants(example, rng):
    """Values that a compiled function captures keep their type when it is linearized."""
    arguments = batch_of(example, rng, 3)
    for mapped in mixes(len(arguments)):
        given = drop(arguments, mapped)
        batched = jax.vmap(example.call, in_axes=axes(mapped))
        primal, _ = jax.vjp(jax.jit(lambda last, b=batched, g=given: b(*g[:-1], last)), given[-1])
        agree(primal, one_by_one(example.call, given, mapped, 3), example.exact)


# ---- Compilation ----------------------------------------------------------------------------------------------------


@every_example
def test_live_counts_do_not_recompile(example, rng):
    traces = []

    @jax.jit
    def program(*arguments):
        traces.append(1)
        return example.call(*arguments)

    arguments = list(example.make(rng, np.float32))
    for count in (0, 7, 30):
        for position in example.counts:
            arguments[position] = np.int32(count)
        agree(program(*arguments), example.call(*arguments))
    assert len(traces) == 1


@every_kernel
def test_ahead_of_time_and_eval_shape(example, rng):
    arguments = example.make(rng, np.float32)
    expected = example.call(*arguments)
    shapes = jax.eval_shape(example.call, *arguments)
    agree(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes), jax.tree.map(np.zeros_like, expected))
    compiled = jax.jit(example.call).lower(*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arguments)).compile()
    agree(compiled(*arguments), expected)


@every_kernel
def test_export_round_trip(example, rng):
    arguments = example.make(rng, np.float32)
    exported = jax.export.export(jax.jit(example.call), disabled_checks=mgpu.export_checks())(*arguments)
    pytest.importorskip("flatbuffers", reason="jax.export serialises with flatbuffers, which is not installed")
    restored = jax.export.deserialize(exported.serialize())
    agree(jax.tree.leaves(restored.call(*arguments)), jax.tree.leaves(example.call(*arguments)))


def operation_with_kernel(call):
    """Returns a call's operation if a GPU runs a kernel for these shapes."""
    known = operation.REGISTRY.get(call.primitive.name.removeprefix("mgpu_"))
    if known is None or "cuda" not in known.platforms:
        return None
    return None if known.prefers_xla([x.aval for x in call.invars], call.params, "cuda", 1) else known.name


@pytest.mark.skipif(not mgpu.has_cuda(), reason="the CUDA kernels are not built, so there is no CUDA lowering")
@every_example
def test_cuda_lowering(example, rng):
    for function, arguments in (
        (example.call, example.make(rng, np.float32)),
        (jax.vmap(example.call), batch_of(example, rng, 3)),
    ):
        text = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
        lines = [line for line in text.splitlines() if "custom_call @jax_mgpu." in line]
        called = {line.split("custom_call @jax_mgpu.")[1].split("(")[0] for line in lines}
        calls = kernel_calls(function, *arguments)
        names = {call.primitive.name.removeprefix("mgpu_") for call in calls}
        by_functions = names & BY_FUNCTION
        if by_functions and library.compiler_problem():
            pytest.skip(f"functions cannot be compiled here: {library.compiler_problem()}")
        with_kernels = by_functions | set(filter(None, map(operation_with_kernel, calls)))
        assert called >= with_kernels
        assert called == with_kernels or names - with_kernels  # the others may call kernels too
        assert all("xui8>" in line.rsplit("->", 1)[1] for line in lines)  # the last result is scratch memory
        assert "callback" not in text


@pytest.mark.skipif(not mgpu.has_cuda(), reason="the CUDA kernels are not built, so there is no CUDA lowering")
def test_cuda_lowering_of_long_joins():
    keys = jax.ShapeDtypeStruct((LONG_PERMUTATION,), np.int32)
    join = jax.jit(lambda a, b: mgpu.join(a, b, size=8, assume_sorted=False))
    text = join.trace(keys, keys).lower(lowering_platforms=("cuda",)).as_text()
    assert "custom_call @jax_mgpu.bucket_join(" in text and "callback" not in text


@pytest.mark.skipif(not mgpu.has_cuda(), reason="the CUDA kernels are not built, so there is no CUDA lowering")
@pytest.mark.parametrize("axis_type", AXIS_TYPES)
@every_kernel
def test_cuda_lowering_on_a_mesh(example, rng, devices, axis_type):
    mesh = mesh_of(devices, axis_type)
    arguments = batch_of(example, rng, 8)
    with jax.set_mesh(mesh):
        placed = place(mesh, arguments, [P("x")] * len(arguments))
        text = jax.jit(jax.vmap(example.call)).trace(*placed).lower(lowering_platforms=("cuda",)).as_text()
    assert "custom_call @jax_mgpu." in text


@every_kernel
def test_donated_arguments(example, rng):
    arguments = example.make(rng, np.float32)
    expected = jax.tree.map(np.array, example.call(*arguments))
    donate = jax.jit(example.call, donate_argnums=range(len(arguments)))
    with warnings.catch_warnings(action="ignore"):  # some arguments' buffers have no use
        agree(donate(*(jnp.array(x) for x in arguments)), expected)


@every_function
def test_without_jit(example, rng):
    arguments = example.make(rng, np.float32)
    expected = example.call(*arguments)
    with jax.disable_jit():
        agree(example.call(*arguments), expected, example.exact)
        if example.composed:
            return
        agree(jax.vmap(example.call)(*(x[None] for x in map(jnp.asarray, arguments))), stack([expected]), example.exact)
        with mgpu.checks():
            agree(example.call(*arguments), expected, example.exact)


def plain_jax(self, operands, **attributes):
    return operation.run_fallback(self, [jnp.asarray(x) for x in operands], attributes)


@pytest.mark.parametrize("wide", [False, pytest.param(True, marks=long)], ids=["x32", "x64"])
@every_example
def test_strict_promotion(example, rng, wide, monkeypatch):
    """With jax_numpy_dtype_promotion="strict", JAX refuses to mix types of arrays."""
    with jax.enable_x64(wide), jax.numpy_dtype_promotion("strict"):
        for real in (np.float64 if wide else jnp.bfloat16.dtype.type, np.float32):
            arguments = tuple(map(jnp.asarray, example.make(rng, real)))
            jax.eval_shape(example.call, *arguments)
            jax.eval_shape(jax.vmap(example.call), *(x[None] for x in arguments))
            if example.differentiable:
                loss = loss_of_sums(example)
                gradient = jax.grad(loss, argnums=example.differentiable)
                jax.eval_shape(gradient, *arguments)
                jax.eval_shape(lambda *xs, f=gradient: jax.jvp(f, xs, tuple(map(tangent_of, xs))), *arguments)
        monkeypatch.setattr(operation.Operation, "run", plain_jax)
        jax.eval_shape(functools.partial(example.call), *arguments)  # the call is traced anew


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64"])
def test_strict_promotion_of_positions(x64, dtype):
    """The library's own positions are combined with those of the caller and, under checks, with counts."""
    heads, count, x = jnp.array([2, 4], dtype), jnp.array(5, dtype), jnp.array([jnp.inf, 1, 2, 3, 4, 5])

    def product(x):
        return mgpu.segmented_reduce(x, heads, lambda a, b: a * b, identity=1.0, count=count)

    with jax.numpy_dtype_promotion("strict"):
        _, tangent = jax.jvp(product, (x,), (jnp.ones_like(x),))
        with mgpu.checks():
            found = mgpu.sorted_search(x[1:], x[1:], needles_count=count, haystack_count=count)
    assert tangent.tolist() == [5.0, 1.0]
    assert found.tolist() == [0, 1, 2, 3, 4]


@every_kernel
def test_plain_jax_gives_the_same(example, rng, monkeypatch):
    cases = [example.make(rng, np.float32) for _ in range(3)]
    batch = stack(cases)
    expected = [example.call(*arguments) for arguments in cases], jax.jit(jax.vmap(example.call))(*batch)

    monkeypatch.setattr(operation.Operation, "run", plain_jax)
    got = [jax.jit(example.call)(*arguments) for arguments in cases], jax.jit(jax.vmap(example.call))(*batch)
    agree(got, expected, example.exact)


def explicit_results(example, rng, mapped):
    """Traces a batch over one Explicit device, and returns the shapes of its results."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        arguments = drop(batch_of(example, rng, 1), mapped)
        placed = place(mesh, arguments, [P("x") if on else P() for on in mapped])
        return jax.eval_shape(jax.jit(jax.vmap(example.call, in_axes=axes(mapped))), *placed)


@every_example
def test_batches_over_one_explicit_device(example, rng):
    arity = len(example.make(rng, np.float32))
    assert all(x.shape[0] == 1 for x in jax.tree.leaves(explicit_results(example, rng, (True,) * arity)))


@pytest.mark.long
@every_example
def test_mixed_batches_over_one_explicit_device(example, rng):
    for mapped in mixes(len(example.make(rng, np.float32))):
        explicit_results(example, rng, mapped)


@pytest.mark.parametrize(
    ("platform", "axis_type"),
    [
        pytest.param("tpu", AxisType.Auto, id="tpu-auto", marks=pytest.mark.long),
        pytest.param("tpu", AxisType.Explicit, id="tpu-explicit"),
        pytest.param("rocm", AxisType.Explicit, id="rocm-explicit"),
    ],
)
@every_kernel
def test_lowering_without_kernels(example, rng, devices, platform, axis_type, monkeypatch):
    monkeypatch.setattr(operation, "_WARNED", set())
    mesh = mesh_of(devices, axis_type)
    with jax.set_mesh(mesh), pytest.warns(UserWarning, match=f"without its kernels on {platform}") as warned:
        arguments = batch_of(example, rng, 8)
        placed = place(mesh, arguments, [P("x")] * len(arguments))
        text = jax.jit(jax.vmap(example.call)).trace(*placed).lower(lowering_platforms=(platform,)).as_text()
    assert [str(warning.message).endswith("No kernels exist for this platform.") for warning in warned] == [True]
    assert "jax_mgpu." not in text
