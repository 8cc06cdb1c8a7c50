"""Reductions and scans of mapped items, compared with NumPy."""

from __future__ import annotations

import ctypes

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.functions import custom_operator
from tests.host_functions import compile_library, cpp
from tests.jaxprs import kernel_calls

F32, I32, U8 = np.float32, np.int32, np.uint8


@pytest.fixture(params=["plain", "primitives"])
def way(request, monkeypatch):
    """Runs a test twice: with maps by jax.vmap, and through the primitives."""
    monkeypatch.setattr(custom_operator, "has_kernels", lambda: request.param == "primitives")


def affine(a, b):
    return a[0] * b[0], a[1] * b[0] + b[1]


def make_affine(x):
    return jnp.float32(0.5), x["a"].astype(jnp.float32)


def whole(rng, n):
    return rng.integers(-9, 10, n).astype(F32)


def narrow(x):
    return x.astype(np.int8) * np.int8(3)


# Each case has a map of an item, perhaps with its position; the same map of arrays; an operator; and NumPy's reduction
# and scan.
NAMED = {
    "squares": (lambda x: x * x, lambda x, i: x * x, "add", np.sum, np.cumsum),
    "widened": (narrow, lambda x, i: narrow(x), "min", np.min, np.minimum.accumulate),
    "placed": (lambda x, i: (x + i) % 7, lambda x, i: (x + i) % 7, "max", np.max, np.maximum.accumulate),
    "last": (lambda x, i: x.astype(I32) * (i % 3), lambda x, i: x.astype(I32) * (i % 3), "argmax", np.argmax, None),
    "half": (lambda x: x.astype(jnp.bfloat16), lambda x, i: x.astype(ml_dtypes.bfloat16), "add", None, None),
}


def prefixes(op, mapped):
    """Returns the position of each prefix's first maximum."""
    return np.array([np.argmax(mapped[: i + 1]) for i in range(len(mapped))], I32)


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.usefixtures("way")
def test_named_operators(name, rng) -> None:
    function, in_numpy, op, fold, accumulate = NAMED[name]
    for n, live in ((1, 1), (70, 70), (70, 41)):
        x = whole(rng, n)
        mapped = in_numpy(x, np.arange(n, dtype=I32))[:live]
        count = None if live == n else live
        total = mgpu.reduce(x, op, map=function, count=count)
        scanned = mgpu.scan(x, op, map=function, count=count)
        if name == "half":  # sums of narrow floats are rounded once
            wide = mapped.astype(F32)
            assert total.dtype == jnp.bfloat16
            np.testing.assert_array_equal(total, wide.sum().astype(ml_dtypes.bfloat16))
            np.testing.assert_array_equal(scanned[:live], wide.cumsum().astype(ml_dtypes.bfloat16))
            continue
        results = prefixes(op, mapped) if accumulate is None else accumulate(mapped)
        if op == "add":
            assert total.dtype == mapped.dtype
        np.testing.assert_array_equal(total, fold(mapped))
        np.testing.assert_array_equal(scanned[:live], results)
        np.testing.assert_array_equal(scanned[live:], np.full(n - live, -1 if op == "argmax" else 0))


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.usefixtures("way")
def test_named_operators_of_segments(name, rng) -> None:
    function, in_numpy, op, fold, _ = NAMED[name]
    n, live = 500, 450
    x = whole(rng, n)
    mapped = in_numpy(x, np.arange(n, dtype=I32))
    heads = np.array([0, 0, 3, 60, 61, 200, 449, 480], I32)
    got = mgpu.segmented_reduce(x, heads, op, map=function, count=live)
    for i, (begin, end) in enumerate(zip(heads, [*heads[1:], live], strict=True)):
        part = mapped[min(begin, live) : min(end, live)]
        if part.size == 0:
            np.testing.assert_array_equal(got[i], mgpu.reduce(jnp.asarray(mapped[:0]), op))
        elif name == "half":  # sums of narrow floats are rounded once
            assert got.dtype == jnp.bfloat16
            np.testing.assert_array_equal(got[i], part.astype(F32).sum().astype(ml_dtypes.bfloat16))
        else:
            np.testing.assert_array_equal(got[i], fold(part) + (begin if op == "argmax" else 0))


NEGATIVES = {
    "negative": lambda x: -x,
    "from zero": lambda x: 0 - x,
    "times -1": lambda x: x * -1,
    "of complements": lambda x: ~x + 1,
    "wide": lambda x: (-x.astype(jnp.int32)).astype(x.dtype),
    "signless": lambda x: (-x.view(jnp.uint16)).view(x.dtype) if x.dtype == jnp.int16 else -x,
}


@pytest.mark.parametrize("items", ["least", "small"])
@pytest.mark.parametrize("name", NEGATIVES)
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_extrema_of_negatives(dtype, name, items, rng) -> None:
    """ptxas may compile negations of the smallest integers wrongly."""
    least = np.iinfo(dtype).min
    if items == "small":
        x = rng.integers(-3, 1, 7554).astype(dtype)
    else:
        x = np.where(rng.random(7554) < 0.06, least, rng.integers(least + 1, 5 - least, 7554)).astype(dtype)
        x[rng.integers(100, 7000, 99)] = least + 1
    negative = (0 - x.astype(np.int64)).astype(dtype)
    function = NEGATIVES[name]
    heads = np.arange(0, 7554, 100, dtype=I32)
    parts = np.split(negative, heads[1:])
    extrema = {"max": np.max, "min": np.min, "argmax": np.argmax, "argmin": np.argmin}

    @jax.jit
    def results(x, heads):
        return (
            [mgpu.reduce(x, op, map=function) for op in extrema],
            [mgpu.segmented_reduce(x, heads, op, map=function) for op in extrema],
            [mgpu.scan(x, op, map=function) for op in ("max", "min")],
            mgpu.reduce(x, lambda a, b: jnp.where(function(b) < function(a), b, a)),
            mgpu.mergesort(x, less=lambda a, b: function(a) < function(b)),
        )

    reduced, of_parts, scanned, least_first, in_order = results(x, heads)
    for op, fold, got, got_parts in zip(extrema, extrema.values(), reduced, of_parts, strict=True):
        begins = heads if op.startswith("arg") else 0 * heads
        np.testing.assert_array_equal(got, fold(negative))
        np.testing.assert_array_equal(got_parts, np.array([fold(part) for part in parts]) + begins)
    np.testing.assert_array_equal(scanned[0], np.maximum.accumulate(negative))
    np.testing.assert_array_equal(scanned[1], np.minimum.accumulate(negative))
    np.testing.assert_array_equal(least_first, x[np.argmin(negative)])
    np.testing.assert_array_equal(in_order, x[np.argsort(negative, kind="stable")])


@pytest.mark.usefixtures("way")
def test_another_structure(rng) -> None:
    n = 50
    x = {"a": rng.integers(0, 9, n).astype(U8), "b": rng.normal(size=(n, 3)).astype(F32)}
    decay, state, states = 1.0, 0.0, []
    for a in x["a"]:
        decay, state = decay * 0.5, state * 0.5 + float(a)
        states.append(state)
    got = jax.jit(lambda x: mgpu.scan(x, affine, map=make_affine))(x)
    np.testing.assert_allclose(got[1], states, rtol=1e-6)
    heads = np.array([0, 20, 20, 45], I32)
    identity = (F32(1), F32(0))
    reduced = mgpu.segmented_reduce(x, heads, affine, map=make_affine, identity=identity)[1]
    wanted = []
    for begin, end in ((0, 20), (20, 20), (20, 45), (45, 50)):
        state = 0.0
        for a in x["a"][begin:end]:
            state = state * 0.5 + float(a)
        wanted.append(state)
    np.testing.assert_allclose(reduced, wanted, rtol=1e-6)
    keys = np.array([0] * 20 + [1] * 25 + [7] * 5, I32)
    by_key = mgpu.reduce_by_key(keys, x, affine, size=3, map=make_affine)[1][1]
    np.testing.assert_allclose(by_key, [wanted[0], wanted[2], wanted[3]], rtol=1e-6)
    rows = mgpu.reduce_by_key(keys, x, size=3, map=lambda x: x["b"][1])[1]
    np.testing.assert_allclose(rows, [x["b"][a:b, 1].sum() for a, b in ((0, 20), (20, 45), (45, 50))], rtol=1e-4)
    sums = mgpu.segmented_scan(x, heads, map=lambda x, i: i * x["a"].astype(jnp.int32), reverse=True)
    products = np.arange(n) * x["a"].astype(I32)
    for begin, end in ((0, 20), (20, 45), (45, 50)):
        np.testing.assert_array_equal(sums[begin:end], products[begin:end][::-1].cumsum()[::-1])


@pytest.mark.usefixtures("way")
def test_batches(rng) -> None:
    x = whole(rng, 60).reshape(3, 20)
    got = jax.jit(jax.vmap(lambda x: mgpu.reduce(x, map=lambda x, i: x * i)))(x)
    np.testing.assert_array_equal(got, (x * np.arange(20)).sum(1))
    factors = np.array([1, 2, 3, 4], F32)
    got = jax.vmap(lambda k: mgpu.reduce(x[0], map=lambda x: x * k))(factors)
    np.testing.assert_array_equal(got, factors * x[0].sum())
    counts = np.array([3, 0, 20], I32)
    got = jax.vmap(lambda x, c: mgpu.scan(x, map=lambda x: x + 1, count=c))(x, counts)
    for row, live in enumerate(counts):
        wanted = np.append(np.cumsum(x[row, :live] + 1), np.zeros(20 - live))
        np.testing.assert_array_equal(got[row], wanted)


@pytest.mark.usefixtures("way")
@pytest.mark.long
def test_derivatives(rng) -> None:
    x = rng.random(12).astype(F32) + 1

    def cubes(x):
        return mgpu.reduce(x, map=lambda x: x * x * x)

    np.testing.assert_allclose(jax.grad(cubes)(x), 3 * x**2, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.hessian(cubes))(x), np.diag(6 * x), rtol=1e-5)
    np.testing.assert_allclose(
        jax.grad(lambda k: mgpu.reduce(x, map=lambda x: jnp.sin(k * x)))(0.5), (x * np.cos(0.5 * x)).sum(), rtol=1e-5
    )
    dead = np.append(x, [0, 0]).astype(F32)
    logs = jax.jit(jax.grad(lambda x: mgpu.scan(x, map=jnp.log, count=12)[11]))(dead)
    np.testing.assert_allclose(logs, np.append(1 / x, [0, 0]), rtol=1e-5)
    tangent = jax.jvp(lambda x: mgpu.scan(x, affine, map=lambda x: (x, x))[1], (x,), (np.ones_like(x),))[1]
    step = 1e-3
    high, low = (mgpu.scan(x + sign * step, affine, map=lambda x: (x, x))[1] for sign in (1, -1))
    np.testing.assert_allclose(tangent, (np.asarray(high) - np.asarray(low)) / (2 * step), rtol=2e-2)


def test_promise_of_commutativity(monkeypatch) -> None:
    monkeypatch.setattr(custom_operator, "has_kernels", lambda: True)
    x = jnp.arange(5.0)

    def choose(a, b):
        return jnp.where(a > b, a, b)

    for promised in (False, True):
        assert mgpu.reduce(x, choose, commutative=promised) == 4
        source = source_of(lambda x, promised=promised: mgpu.reduce(x, choose, commutative=promised), x)[0].data
        assert ("\nflags commutes\n" in source) == promised
    with pytest.raises(TypeError, match="scan: commutative: expected"):
        mgpu.scan(x, choose, commutative=2)


def test_errors() -> None:
    x = jnp.arange(5.0)
    with pytest.raises(TypeError, match="reduce: map: expected a function of an item, or of an item and its position"):
        mgpu.reduce(x, map=3)
    with pytest.raises(TypeError, match="scan: map: expected"):
        mgpu.scan(x, map=lambda x, i, k: x)
    with pytest.raises(TypeError, match="scan: map: expected"):
        mgpu.scan(x, map=lambda x: ())
    with pytest.raises(ValueError, match="reduce: x: expected arrays with a leading axis"):
        mgpu.reduce(jnp.float32(3), map=lambda x: x)
    with pytest.raises(TypeError, match="reduce: x: expected"):
        mgpu.reduce(x, map=lambda x: jax.lax.complex(x, x))


@pytest.mark.filterwarnings("ignore:.*derivative rules of its own")
@pytest.mark.parametrize(
    "function, in_kernels", [(jnp.sin, True), (jax.jit(jax.nn.relu), False)], ids=["plain", "with a rule"]
)
def test_derivatives_over_an_explicit_mesh(function, in_kernels, rng, monkeypatch) -> None:
    """JAX batches custom derivative rules as if there were no mesh, so such functions stay in plain JAX there."""
    monkeypatch.setattr(custom_operator, "has_kernels", lambda: True)
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Explicit,), devices=devices)
    x = rng.normal(size=(2 * len(devices), 9)).astype(F32)
    run = jax.vmap(jax.grad(lambda x: (mgpu.scan(x, map=lambda x, i: function(x) * i) ** 2).sum()))
    expected = jax.device_get(jax.jit(run)(x))
    with jax.set_mesh(mesh):
        placed = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
        program = str(jax.make_jaxpr(lambda x: mgpu.scan(x, map=function))(x[0]))
        assert ("scan_by_function" in program) == in_kernels
        np.testing.assert_allclose(jax.device_get(jax.jit(run)(placed)), expected, rtol=1e-5, atol=1e-5)


def test_derivatives_of_choices_over_an_explicit_mesh(rng) -> None:
    """Items are chosen by position: in a batch over Explicit axes, items are batched, but the choice is not."""
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Explicit,), devices=devices)
    x = rng.normal(size=(2 * len(devices), 3, 2)).astype(F32)

    def loss(x):
        return (mgpu.scan(x, lambda a, b: a + b, map=lambda x, i: jnp.where(i % 2 == 1, -x, x)) ** 2).sum()

    def plain(x):
        return (jnp.cumsum(x * np.array([[1], [-1], [1]], F32), axis=0) ** 2).sum()

    expected = jax.device_get(jax.jit(jax.vmap(jax.grad(plain)))(x))
    with jax.set_mesh(mesh):
        placed = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
        got = jax.device_get(jax.jit(jax.vmap(jax.grad(loss)))(placed))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("operation", ["reduce", "scan", "segmented_reduce"])
@pytest.mark.long
def test_derivatives_of_items_made_of_positions(operation, rng) -> None:
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices)
    x = rng.normal(size=(len(devices), 7)).astype(F32)

    def affine(a, b):
        return a[0] * b[0], a[1] * b[0] + b[1]

    def item(x, i):
        return jnp.where(i % 2 == 1, 0.5, 2.0).astype(x.dtype), jnp.where(i % 2 == 1, -x, x)

    def loss(x):
        heads = () if operation != "segmented_reduce" else (np.array([0, 3]),)
        identity = {"identity": (F32(1), F32(0))} if heads else {}
        results = getattr(mgpu, operation)(x, *heads, affine, map=item, **identity)
        return sum((leaf**2).sum() for leaf in jax.tree.leaves(results))

    expected = jax.vmap(jax.grad(loss))(x)
    spec = jax.sharding.PartitionSpec("x")
    split = jax.jit(jax.shard_map(jax.vmap(jax.grad(loss)), mesh=mesh, in_specs=spec, out_specs=spec))
    np.testing.assert_allclose(split(x), expected, rtol=1e-5, atol=1e-5)
    tangents = jax.jit(
        jax.shard_map(lambda x: jax.jvp(jax.vmap(loss), (x,), (x,))[1], mesh=mesh, in_specs=spec, out_specs=spec)
    )
    np.testing.assert_allclose(tangents(x), (expected * x).sum(1), rtol=1e-4, atol=1e-4)


def test_defaults_and_nothing() -> None:
    x = jnp.arange(5.0)
    assert mgpu.reduce(x, map=lambda x, k=2: x * k) == 20
    assert mgpu.reduce(x[:0], map=lambda x: x + 1) == 0
    assert mgpu.scan(x[:0], map=lambda x, i: i).shape == (0,)
    assert mgpu.reduce(x, map=lambda x: jnp.float32(1)) == 5


# ---- The C++, by the host's compiler


def source_of(call, *arguments):
    """Returns the operator of a call's kernels, and the call's equation."""
    (equation,) = kernel_calls(call, *arguments)
    return equation.params["function"].value.written, equation


HEAD = """
#include <cstring>

#include "function/operator.h"
#include "function/primitives.h"
namespace xla = mgpu::xla;
"""
LOOP = """
namespace function{number} {{
{source}
extern "C" void fold{number}(const void* const* x, long n, const void* const* captures, void* const* result) {{
  mgpu::FunctionOperator<Function> op{{}};
  for (int i = 0; i < {captures}; ++i) op.captures.arrays[i] = captures[i];
  op.length = n;
  auto state = op.identity();
  for (long i = 0; i < n; ++i) {{
    Function::Element element;
    mgpu::for_each_leaf<Function::Element>([&]<int kLeaf>() {{
      auto& leaf = Function::Element::leaf<kLeaf>(element);
      memcpy(leaf, static_cast<const char*>(x[kLeaf]) + i * sizeof(leaf), sizeof(leaf));
    }});
    state = op.combine(state, op.extract(element, 2 * n + i));  // an item of the third row
  }}
  auto finished = op.finish(state, 0);
  mgpu::for_each_leaf<Function::Result>([&]<int kLeaf>() {{
    auto& leaf = Function::Result::leaf<kLeaf>(finished);
    memcpy(result[kLeaf], leaf, sizeof(leaf));
  }});
}}
}}
"""


def test_cpp(rng, monkeypatch) -> None:
    monkeypatch.setattr(custom_operator, "has_kernels", lambda: True)
    n, table = 40, rng.integers(0, 99, 500).astype(I32)
    floats, pairs = whole(rng, n), {"a": rng.integers(0, 9, n).astype(U8), "b": whole(rng, 3 * n).reshape(n, 3)}
    calls = [
        *((floats, lambda x, f=f, op=op: mgpu.reduce(x, op, map=f)) for f, _, op, *_ in NAMED.values()),
        (floats, lambda x: mgpu.reduce(x.astype(jnp.float16), "mul", map=lambda x: jnp.where(x > 5, x, 1) / 8)),
        (floats, lambda x: mgpu.reduce(x[:1], "argmin", map=lambda x, i: x + i)),
        (pairs, lambda x: mgpu.reduce(x, affine, map=make_affine)),
        (pairs, lambda x: mgpu.reduce(x, lambda a, b: jnp.where(a > b, a, b), map=lambda x: x["b"].sum())),
        (pairs, lambda x: mgpu.reduce(x, lambda a, b: a + b, map=lambda x, i: x["b"] * i)),
        (pairs, lambda x: mgpu.reduce(x, "max", map=lambda x: jnp.asarray(table)[x["a"]])),
    ]
    text, sources = [], []
    for number, (x, call) in enumerate(calls):
        function, equation = source_of(call, x)
        operands = len(equation.invars)
        captured = operands - 2 - len(function.element.leaves)
        text.append(LOOP.format(number=number, source=cpp(function.data), captures=captured))
        sources.append((function, captured))
    compiled = compile_library(HEAD + "".join(text))
    for number, ((x, call), (function, captured)) in enumerate(zip(calls, sources, strict=True)):
        given = floats.astype(np.float16) if number == len(NAMED) else floats[:1] if number == len(NAMED) + 1 else x
        leaves = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(given)]
        results = [np.zeros(one.shape, one.dtype) for one in function.results]
        pointers = [
            (ctypes.c_void_p * max(1, len(arrays)))(*(array.ctypes.data for array in arrays))
            for arrays in (leaves, [table] * captured, results)
        ]
        getattr(compiled, f"fold{number}")(pointers[0], ctypes.c_long(len(leaves[0])), pointers[1], pointers[2])
        for got, wanted in zip(results, jax.tree.leaves(call(x)), strict=True):
            np.testing.assert_allclose(got.astype(np.float64), np.asarray(wanted, np.float64), rtol=1e-2)


@pytest.mark.usefixtures("lowers_for_cuda")
@pytest.mark.skipif(jax.default_backend() == "gpu", reason="tests the lowering for a GPU on machines without one")
def test_calls_for_cuda() -> None:
    x = jnp.arange(1000, dtype=jnp.uint8)
    text = jax.jit(lambda x: mgpu.scan(x, map=lambda x: jnp.exp(x.astype(jnp.float32))))
    text = text.trace(x).lower(lowering_platforms=("cuda",)).as_text()
    call = next(line for line in text.splitlines() if "jax_mgpu.scan_by_function" in line)
    assert "item_bytes = 4 : i64" in call
    assert "packed = 1 : i64" in call
    assert "result_bytes = 4 : i64" in call


@pytest.mark.usefixtures("lowers_for_cuda")
@pytest.mark.skipif(jax.default_backend() == "gpu", reason="tests the lowering for a GPU on machines without one")
def test_calls_for_cuda_in_batches_over_an_explicit_mesh() -> None:
    devices = jax.devices()[:2]
    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Explicit,), devices=devices)
    with jax.set_mesh(mesh):
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
        x = jax.device_put(np.ones((4, 3, 300), np.int8), sharding)
        run = jax.vmap(jax.vmap(lambda x: mgpu.scan((x, x), "argmin", map=lambda x: x[0])))
        text = jax.jit(run).trace(x).lower(lowering_platforms=("cuda",)).as_text()
    call = next(line for line in text.splitlines() if "jax_mgpu.scan_by_function" in line)
    assert "batch_rank = 2 : i64" in call
    assert 'num_batch_dims = "2"' in call
