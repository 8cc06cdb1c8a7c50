"""Every operation under every transformation and on every mesh: walks the registry of operations."""

from __future__ import annotations

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

import jax_mgpu as mgpu
from jax_mgpu._src import by_function, library, primitive
from tests import oracle
from tests.examples import Example, distinct
from tests.families import EXAMPLES
from tests.jaxprs import kernel_calls

DEVICES = 4
AXIS_TYPES = [
    pytest.param(AxisType.Auto, id="auto", marks=pytest.mark.long),
    pytest.param(AxisType.Explicit, id="explicit"),
]

long = pytest.mark.long
every_example = pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
KERNELS = {name: example for name, example in EXAMPLES.items() if not example.composed}
every_kernel = pytest.mark.parametrize("example", KERNELS.values(), ids=KERNELS)


def primitives(function, *arguments):
    """The names of the operations that a call binds."""
    return {call.primitive.name.removeprefix("mgpu_") for call in kernel_calls(function, *arguments)}


def agree(got, expected, exact=True):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for g, e in zip(map(np.asarray, jax.tree.leaves(got)), map(np.asarray, jax.tree.leaves(expected)), strict=True):
        assert (g.dtype, g.shape) == (e.dtype, e.shape)
        if exact or g.dtype.kind in "biu":
            np.testing.assert_array_equal(oracle.bits(g), oracle.bits(e))
        else:
            np.testing.assert_allclose(g, e, rtol=1e-5, atol=1e-5)


def stack(problems):
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *problems)


def batch_of(example, rng, size, real=np.float32):
    return stack([example.make(rng, real) for _ in range(size)])


def one_by_one(function, arguments, mapped, size):
    """What vmap must give: the calls of the batch, one after the other."""
    function = jax.jit(function)
    return stack([function(*(x[b] if on else x for x, on in zip(arguments, mapped, strict=True))) for b in range(size)])


def mixes(arity):
    """All arguments mapped, each one alone, all but one."""
    alone = [tuple(i == j for j in range(arity)) for i in range(arity)]
    return dict.fromkeys([(True,) * arity, *alone, *(tuple(not on for on in mix) for mix in alone if arity > 1)])


def drop(arguments, mapped):
    """A batch's arguments, of which those that are not mapped are the first problem's."""
    return tuple(x if on else x[0] for x, on in zip(arguments, mapped, strict=True))


def axes(mapped, axis=0):
    return tuple(axis if on else None for on in mapped)


def test_every_operation_has_an_example(rng):
    covered = set().union(*(primitives(example.call, *example.make(rng, np.float32)) for example in EXAMPLES.values()))
    assert covered - set(by_function.OPERATIONS) == set(primitive.REGISTRY)
    information = {"backends", "checks", "has_cuda"} | {"align"}  # which is there over a mesh axis alone
    functions = {name for name in mgpu.__all__ if callable(getattr(mgpu, name)) and name[0].islower()} - information
    assert functions == {name.split(",")[0] for name in EXAMPLES}


@functools.cache
def mesh_devices():
    """Four devices of the default platform, or two, or else four of the CPU."""
    for platform, least in ((None, 2), ("cpu", DEVICES)):
        try:
            devices = jax.devices(platform)
        except RuntimeError:
            continue
        if len(devices) >= least:
            return tuple(devices[: DEVICES if len(devices) >= DEVICES else 2])
    return ()


@pytest.fixture
def devices():
    if not mesh_devices():
        pytest.skip(f"fewer than two devices of the default platform, and fewer than {DEVICES} of the CPU")
    return mesh_devices()


def mesh_of(devices, axis_type):
    shape = (2, len(devices) // 2)
    return jax.make_mesh(shape, ("x", "y"), axis_types=(axis_type,) * 2, devices=devices)


def place(mesh, arguments, specs):
    return tuple(jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arguments, specs, strict=True))


# ---- Batches --------------------------------------------------------------------------------------------------------


@every_example
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
    # the first argument mapped by the inner vmap alone, along its last axis; the others by the outer one alone
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
    """What a compiled function closes over are values of a type of their own when it is linearized."""
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
    # Of all operations: where one has no kernel for its platform or its shapes, the program calls what it is made of.
    ours = [jax.export.DisabledSafetyCheck.custom_call(library.target(name)) for name in primitive.REGISTRY]
    exported = jax.export.export(jax.jit(example.call), disabled_checks=ours)(*arguments)
    pytest.importorskip("flatbuffers", reason="jax.export serialises with flatbuffers, which is not installed")
    restored = jax.export.deserialize(exported.serialize())
    agree(jax.tree.leaves(restored.call(*arguments)), jax.tree.leaves(example.call(*arguments)))


@pytest.mark.skipif(not mgpu.has_cuda(), reason="the CUDA kernels are not built, so there is no CUDA lowering")
@every_example
def test_cuda_lowering(example, rng):
    for function, arguments in (
        (example.call, example.make(rng, np.float32)),
        (jax.vmap(example.call), batch_of(example, rng, 3)),
    ):
        text = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
        calls = [line for line in text.splitlines() if "custom_call @jax_mgpu." in line]
        called = {line.split("custom_call @jax_mgpu.")[1].split("(")[0] for line in calls}
        names = primitives(function, *arguments)
        by_functions = names & set(by_function.OPERATIONS)
        if by_functions and library.compiler_problem():
            pytest.skip(f"functions cannot be compiled here: {library.compiler_problem()}")
        with_kernels = {n for n in names if n in by_functions or "cuda" in primitive.REGISTRY[n].platforms}
        assert called == names if with_kernels == names else called > with_kernels  # what the others are made of
        assert all("xui8>" in line.rsplit("->", 1)[1] for line in calls)  # the workspace
        assert "callback" not in text


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
    with warnings.catch_warnings(action="ignore"):  # not every argument's buffer has a use
        agree(donate(*(jnp.array(x) for x in arguments)), expected)


@every_example
def test_without_jit(example, rng):
    """Under jax.disable_jit a public function runs line by line, and a kernel as any primitive of JAX."""
    arguments = example.make(rng, np.float32)
    expected = example.call(*arguments)
    with jax.disable_jit():
        agree(example.call(*arguments), expected, example.exact)
        if example.composed:
            return
        agree(jax.vmap(example.call)(*(x[None] for x in map(jnp.asarray, arguments))), stack([expected]), example.exact)
        with mgpu.checks():
            agree(example.call(*arguments), expected, example.exact)


@pytest.mark.parametrize("example", [pytest.param(e, id=name) for name, e in EXAMPLES.items() if not e.function])
def test_an_eager_call_is_one_program(example, rng):
    """Arrays in, one program run: nothing is converted, padded or gathered by a dispatch of its own."""
    arguments = tuple(map(jnp.asarray, example.make(rng, np.float32)))
    programs = []
    jax.clear_caches()

    def count(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            programs.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        example.call(*arguments)
        # join_columns takes what a join gives; bincount is called with weights and without
        functions = 2 if example in (EXAMPLES["join_columns"], EXAMPLES["bincount"]) else 1
        assert len(programs) == functions
        example.call(*arguments)
        assert len(programs) == functions
    finally:
        jax.monitoring.unregister_event_duration_listener(count)


def plain_jax(operation, operands, **attributes):
    return primitive._run_fallback(operation, [jnp.asarray(x) for x in operands], attributes)


@pytest.mark.parametrize("wide", [False, pytest.param(True, marks=long)], ids=["x32", "x64"])
@every_example
def test_strict_promotion(example, rng, wide, monkeypatch):
    """A setting of the caller's: with jax_numpy_dtype_promotion="strict" JAX refuses to mix the types of arrays."""
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
        monkeypatch.setattr(primitive.Operation, "run", plain_jax)
        jax.eval_shape(functools.partial(example.call), *arguments)  # traced anew


@every_kernel
def test_plain_jax_gives_the_same(example, rng, monkeypatch):
    """The lowering of platforms without kernels, run here."""
    cases = [example.make(rng, np.float32) for _ in range(3)]
    batch = stack(cases)
    expected = [example.call(*arguments) for arguments in cases], jax.jit(jax.vmap(example.call))(*batch)

    monkeypatch.setattr(primitive.Operation, "run", plain_jax)
    got = [jax.jit(example.call)(*arguments) for arguments in cases], jax.jit(jax.vmap(example.call))(*batch)
    agree(got, expected, example.exact)


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
    """A platform without kernels gets plain JAX, also on a mesh, and one warning that says so."""
    monkeypatch.setattr(primitive, "_WARNED", set())
    mesh = mesh_of(devices, axis_type)
    with jax.set_mesh(mesh), pytest.warns(UserWarning, match=f"without its kernels on {platform}") as warned:
        arguments = batch_of(example, rng, 8)
        placed = place(mesh, arguments, [P("x")] * len(arguments))
        text = jax.jit(jax.vmap(example.call)).trace(*placed).lower(lowering_platforms=(platform,)).as_text()
    assert [str(warning.message).endswith("No kernels exist for this platform.") for warning in warned] == [True]
    assert "jax_mgpu." not in text


# ---- Derivatives and control flow -----------------------------------------------------------------------------------


def differentiable_cases(examples):
    found = {name: example for name, example in examples.items() if example.differentiable}
    return pytest.mark.parametrize("example", found.values(), ids=found)


def floats(tree):
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def loss_of(example):
    """A scalar of an operation's results that weighs each item differently."""

    def loss(*arguments):
        return sum(
            jnp.sum(jnp.sin(x) * jnp.cos(jnp.arange(x.size).reshape(x.shape))) for x in floats(example.call(*arguments))
        )

    return loss


def loss_of_sums(example):
    """A loss that mixes no types of its own."""
    return lambda *arguments: sum(x.astype(jnp.float32).sum() for x in floats(example.call(*arguments)))


def tangent_of(x):
    return jnp.ones_like(x) if jnp.issubdtype(x.dtype, jnp.floating) else np.zeros(x.shape, jax.dtypes.float0)


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
        # an argument that serves the whole batch gets the sum
        summed = tuple(x if mapped[i] else x.sum(0) for i, x in zip(example.differentiable, expected, strict=True))
        total = jax.grad(lambda *xs: jax.vmap(loss, in_axes=axes(mapped))(*xs).sum(), argnums=example.differentiable)  # noqa: B023
        agree(jax.jit(total)(*given), summed, exact=False)


@long
@differentiable_cases(KERNELS)
def test_jacobians(example, rng):
    """A batch of tangents, and one of cotangents, at one place: both modes give one matrix."""
    arguments = example.make(rng, np.float32)
    for position in example.differentiable:

        def of_one(x, position=position):
            return floats(example.call(*arguments[:position], x, *arguments[position + 1 :]))

        forward, reverse = jax.jit(lambda x, f=of_one: (jax.jacfwd(f)(x), jax.jacrev(f)(x)))(arguments[position])
        assert any(np.asarray(matrix).any() for matrix in forward)
        agree(forward, reverse, exact=False)


def float_keys(call):
    """A call whose keys are floats without ties, and so have derivatives."""
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
    """Their bits are moved as integers, which has no transpose; tangents must not be."""
    arguments = example.make(rng, real)

    def of_floats(*moving):
        given = dict(enumerate(arguments)) | dict(zip(example.differentiable, moving, strict=True))
        return floats(example.call(*given.values()))

    moving = tuple(jnp.asarray(arguments[i]) for i in example.differentiable)
    # one tangent and one cotangent: <cotangent, J tangent> is the same from either side
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


@pytest.mark.parametrize("batched", [False, True], ids=["one", "batch"])
@pytest.mark.parametrize("call, lengths", LINEAR_CALLS.values(), ids=LINEAR_CALLS)
def test_linear_transpose(call, lengths, batched):
    """The columns of the matrix, from its action on unit vectors."""
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


# ---- Meshes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [pytest.param(1, marks=long), 2])
@pytest.mark.parametrize("axis_type", AXIS_TYPES)
@every_kernel
def test_sharded_batches_stay_where_they_are(example, rng, devices, axis_type, rank):
    """Batch axes sharded over the mesh: each device does its own rows and nothing is gathered."""
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
    """The operation's own axis sharded: gathered, and right."""
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


@differentiable_cases(KERNELS)
def test_gradient_of_a_replicated_argument_under_shard_map(example, rng, devices):
    """Each differentiable argument in turn serves all devices: its gradient is the sum over them."""
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


@pytest.mark.parametrize("call", FUNCTION_CALLS.values(), ids=FUNCTION_CALLS)
def test_functions_of_nothing_under_shard_map(call, devices):
    """Their results vary over the mesh as others do, so that cotangents that vary fit them."""
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
    """Cotangents of a batch over the mesh."""
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
    """They choose by whether intervals overlap, which within a batch is a selection."""
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
