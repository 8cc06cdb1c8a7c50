# ruff: noqa: PLC3002, PLR0124, PLW0108 -- functions are written as callers might
"""The C++ of callers' functions, compared with JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jax import lax

import jax_mgpu as mgpu
from jax_mgpu._src.core import library as jax_mgpu_library
from jax_mgpu._src.functions import custom_operator
from jax_mgpu._src.functions.emit import Unsupported
from tests import host_functions
from tests.jaxprs import kernel_calls

pytestmark = pytest.mark.usefixtures("x64")

N = 300


def struct(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, np.dtype(dtype))


F32, F64, F16, BF16 = (struct(t) for t in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16))
I8, I16, I32, I64 = (struct(t) for t in (np.int8, np.int16, np.int32, np.int64))
U8, U16, U32, U64 = (struct(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
BOOL = struct(bool)
V3, V4, M22, M33 = (struct(np.float32, *shape) for shape in ((3,), (4,), (2, 2), (3, 3)))
FLOATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}
INTEGERS = {"i8": I8, "i16": I16, "i32": I32, "i64": I64, "u8": U8, "u16": U16, "u32": U32, "u64": U64}
TABLE = np.random.default_rng(0).permutation(1000).astype(np.float32)
ROWS = np.random.default_rng(1).normal(size=(300, 4)).astype(np.float32)


def newton(a, b):
    def goes_on(s):
        return (jnp.abs(s[0] - s[1]) > 1e-3) & (s[2] < 50)

    def step(s):
        return s[0] * 0.5 + s[1] * 0.5, s[1], s[2] + 1

    return jnp.where(jnp.isfinite(a + b), lax.while_loop(goes_on, step, (a, b, 0))[0], a)


def welford(a, b):
    n, d = a["n"] + b["n"], b["mean"] - a["mean"]
    w = b["n"] / jnp.where(n == 0, 1, n)
    return {"n": n, "mean": a["mean"] + d * w, "m2": a["m2"] + b["m2"] + d * d * a["n"] * w}


def gcd(a, b):
    return lax.while_loop(lambda s: s[1] != 0, lambda s: (s[1], lax.rem(s[0], s[1])), (a & 1023, b & 1023))[0]


def softmax_state(a, b):
    m = jnp.maximum(a[0], b[0])
    return m, a[1] * jnp.exp(a[0] - m) + b[1] * jnp.exp(b[0] - m)


def quaternion(a, b):
    w, x, y, z = a
    s, t, u, v = b
    return jnp.stack(
        [
            w * s - x * t - y * u - z * v,
            w * t + x * s + y * v - z * u,
            w * u - x * v + y * s + z * t,
            w * v + x * u - y * t + z * s,
        ]
    )


@jax.custom_jvp
def custom(a, b):
    return a * b + a


custom.defjvp(lambda p, t: (custom(*p), t[0]))


def place(x, most=5):
    return jnp.clip(jnp.nan_to_num(x), -most, most).astype(jnp.int32)


# Each case has a type of items and a function of two items. Floats may differ by a tolerance, unless the first word of
# the case's name is in EXACT.
CASES = {
    "affine": ((F32, F32), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])),
    "affine f64": ((F64, F64), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])),
    "complex product": (
        {"r": F32, "i": F32},
        lambda a, b: {"r": a["r"] * b["r"] - a["i"] * b["i"], "i": a["r"] * b["i"]},
    ),
    "matmul 2x2": (M22, jnp.matmul),
    "matmul 3x3": (M33, lambda a, b: jnp.einsum("ij,jk->ik", a, b)),
    "matmul 4x4 f64": (struct(np.float64, 4, 4), jnp.dot),
    "matmul of bools": (struct(bool, 2, 2), jnp.matmul),
    "outer": (M22, lambda a, b: jnp.outer(a[0], b[1])),
    "trace": (M22, lambda a, b: a + jnp.trace(b)),
    "tropical": (M22, lambda a, b: jnp.max(a[:, :, None] + b[None], axis=1)),
    "quaternion": (V4, quaternion),
    "welford": ({"n": F32, "mean": F32, "m2": F32}, welford),
    "softmax state": ((F32, F32), softmax_state),
    "logaddexp": (F32, jnp.logaddexp),
    "last set": (
        {"set": BOOL, "x": I32},
        lambda a, b: {"set": a["set"] | b["set"], "x": jnp.where(b["set"], b["x"], a["x"])},
    ),
    "mixed widths": ((U8, F64, I16, BOOL), lambda a, b: (a[0] + b[0], a[1] * b[1], a[2] ^ b[2], a[3] & b[3])),
    "mod product": (I64, lambda a, b: (a % 1000003) * (b % 1000003) % 1000003),
    "gcd": (U32, gcd),
    "newton": (F32, newton),
    "cond": (F32, lambda a, b: lax.cond(a > b, lambda: a - b, lambda: b * jnp.float32(2))),
    "cond of arrays": (V3, lambda a, b: lax.cond(a[0] > b[0], lambda x: x * 2, lambda x: x[::-1], b)),
    "switch": (
        (I32, F32),
        lambda a, b: (a[0], lax.switch(b[0], [lambda x: -x, lambda x: x + 1, lambda x: x * 3], b[1])),
    ),
    "fori": (F32, lambda a, b: lax.fori_loop(0, 5, lambda i, x: x * 0.5 + b, a)),
    "fori with step": (I32, lambda a, b: lax.fori_loop(0, 9, lambda i, x: x * 3 + i, a ^ b)),
    "fori to data": (I32, lambda a, b: lax.fori_loop(0, b & 7, lambda i, x: x * 3 + i, a)),
    "fori long": (U32, lambda a, b: lax.fori_loop(0, 1000, lambda i, x: x * 1664525 + b, a)),
    "while of arrays": (
        struct(np.int32, 3),
        lambda a, b: lax.while_loop(lambda s: s[1] < 4, lambda s: (jnp.roll(s[0], 1) + b, s[1] + 1), (a, 0))[0],
    ),
    "scan": (V3, lambda a, b: lax.scan(lambda c, x: (c + x, c * x), jnp.float32(0), a + b)[1]),
    "scan reversed": (V3, lambda a, b: lax.scan(lambda c, x: (c * 0.5 + x, c), jnp.float32(1), a - b, reverse=True)[1]),
    "scan of carry": (U32, lambda a, b: lax.scan(lambda c, _: (c * 5 + b, None), a, None, length=100)[0]),
    "nested jit": (F32, jax.jit(lambda a, b: jax.jit(jnp.where)(a > b, a, b))),
    "custom_jvp": (F32, custom),
    "relu": (F32, lambda a, b: jax.nn.relu(a) + jax.nn.relu6(b)),
    "silu": (F32, lambda a, b: jax.nn.silu(a) + jax.nn.softplus(b)),
    "checkpoint": (F32, jax.checkpoint(lambda a, b: jnp.sin(a) * b)),
    "derivative": (F32, lambda a, b: jax.grad(lambda x: jnp.sinh(x) * b)(jnp.clip(a, -1, 1))),
    "vmap": (V3, lambda a, b: jax.vmap(lambda x, y: jnp.where(x > y, x, -y))(a, b)),
    "cross": (V3, jnp.cross),
    "flip and roll": (V3, lambda a, b: jnp.flip(a) * jnp.roll(b, 1)),
    "cumulate": (V3, lambda a, b: jnp.cumsum(a) + lax.cummax(b) - lax.cummin(a, reverse=True)),
    "cumprod": (struct(np.int32, 4), lambda a, b: jnp.cumprod(a) + lax.cumsum(b, reverse=True)),
    "concatenate": (V3, lambda a, b: jnp.concatenate([a[1:], b[:1]])),
    "stack": (M22, lambda a, b: jnp.stack([a[0], b[1]], 1)),
    "split": (V4, lambda a, b: (lambda x, y: jnp.concatenate([y, x]))(*jnp.split(a - b, 2))),
    "tile": (V4, lambda a, b: jnp.tile(a[:2], 2) + jnp.repeat(b[:2], 2)),
    "transpose": (M22, lambda a, b: a.T + b),
    "reductions": (V3, lambda a, b: jnp.array([jnp.max(a), jnp.min(b), a[0]])),
    "sums": (struct(np.int32, 3), lambda a, b: (a * jnp.sum(b) + jnp.prod(a)).astype(jnp.int32)),
    "any and all": (struct(bool, 3), lambda a, b: jnp.where(jnp.any(a), b, jnp.all(b)) ^ a),
    "argmax": (V3, lambda a, b: (a * 0 + jnp.argmax(a) + 3 * jnp.argmin(b)).astype(jnp.float32)),
    "pad and iota": (V3, lambda a, b: jnp.pad(a, (1, 0))[:3] + b * jnp.arange(3)),
    "pad inside": (
        V3,
        lambda a, b: lax.pad(a[:2], jnp.float32(1), ((0, 0, 1),)) + lax.pad(b, jnp.float32(0), ((-1, 1, 0),)),
    ),
    "dynamic index": (V3, lambda a, b: a + b[place(a[0])]),
    "dynamic rows": (M22, lambda a, b: a + b[place(a[0, 0])]),
    "dynamic slice": (V4, lambda a, b: jnp.concatenate([lax.dynamic_slice(a, (place(b[0]),), (2,)), b[:2]])),
    "dynamic update": (V4, lambda a, b: lax.dynamic_update_slice(a, b[:2], (place(b[0]),))),
    "dynamic update of a row": (M22, lambda a, b: lax.dynamic_update_slice(a, b[:1], (place(b[0, 0]), jnp.int32(0)))),
    "take fills": (V3, lambda a, b: a + jnp.take(b, place(a[0]))),
    "take clips": (V3, lambda a, b: jnp.take(b, jnp.stack([place(x) for x in a]), mode="clip")),
    "take along": (V3, lambda a, b: jnp.take_along_axis(a, jnp.array([2, 0, 1]), 0) + b),
    "norm": (V3, lambda a, b: (a + b) / jnp.maximum(jnp.linalg.norm(jnp.nan_to_num(a, posinf=1, neginf=1)), 1)),
    "captured number": (F32, (lambda k: lambda a, b: a * k + b)(jnp.float32(1.7))),
    "captured vector": (V3, (lambda k: lambda a, b: a * k + b)(np.array([1, 2, 3], np.float32))),
    "captured table": (F32, (lambda t: lambda a, b: t[place(a * 10, 500)] + b)(jnp.asarray(TABLE))),
    "captured table, taken": (
        F32,
        (lambda t: lambda a, b: jnp.take(t, place(a * 10, 500), mode="clip") + b)(jnp.asarray(TABLE)),
    ),
    "captured rows": (V4, (lambda t: lambda a, b: t[place(a[0], 9)] + b)(jnp.asarray(ROWS))),
    "captured columns": (F32, (lambda t: lambda a, b: t.T[place(a, 3), place(b, 99)] + b)(jnp.asarray(ROWS))),
    "captured part": (F32, (lambda t: lambda a, b: t[10:400:3][place(a, 50)] + b)(jnp.asarray(TABLE))),
    "captured in a loop": (
        F32,
        (lambda t: lambda a, b: a + lax.fori_loop(0, 3, lambda i, x: x + t[i + 5], b))(jnp.asarray(TABLE)),
    ),
    "constant large": (I64, lambda a, b: a + jnp.int64(-(2**63)) + jnp.int64(2**62)),
    "constant nan": (F32, lambda a, b: jnp.where(a > b, jnp.float32(jnp.nan), jnp.float32(jnp.inf))),
    "bitcast": (
        F32,
        lambda a, b: lax.bitcast_convert_type(
            lax.bitcast_convert_type(a, jnp.int32) ^ (lax.bitcast_convert_type(b, jnp.int32) & jnp.int32(-(2**31))),
            jnp.float32,
        ),
    ),
    "sign of b": (F32, jnp.copysign),
    "signbit": (F32, lambda a, b: jnp.where(jnp.signbit(a), b, a)),
    "is finite": (F32, lambda a, b: jnp.where(jnp.isfinite(a) & ~jnp.isnan(b), a, b)),
    "three cases": (I32, lambda a, b: lax.select_n(jnp.clip(a, 0, 2), a, b, a + b)),
    "minimum by key": ((F32, I32), lambda a, b: jax.tree.map(lambda x, y: jnp.where(a[0] <= b[0], x, y), a, b)),
    "hypot": (F32, jnp.hypot),
    "float power": (F32, lambda a, b: jnp.abs(a) ** b),
    "integer power": (I32, lambda a, b: a**3 + b**2),
    "power of integers": (I32, lambda a, b: (a & 7) ** (b & 7)),
    "negative power": (F32, lambda a, b: a**-2 + b**7),
    "exp2": (F32, lambda a, b: 2.0 ** jnp.clip(b, -5, 5) + a),
    "atan2": (F64, jnp.arctan2),
    "polynomial": (F32, lambda a, b: jnp.polyval(jnp.array([1.0, 2.0, 3.0], jnp.float32), a) + b),
    "gelu": (F32, lambda a, b: jax.nn.gelu(a) + jax.nn.elu(b)),
    "sinc": (F32, lambda a, b: jnp.sinc(jnp.nan_to_num(a, posinf=1, neginf=1)) * b),
    "xorshift": (U32, lambda a, b: (lambda x: x ^ (x >> 17))(a ^ (b << 13))),
    "rotate": (U32, lambda a, b: (a << (b & 31)) | (a >> (32 - (b & 31)))),
    "upper product": (U32, lambda a, b: ((a.astype(jnp.uint64) * b.astype(jnp.uint64)) >> 32).astype(jnp.uint32)),
    "reduced precision": (F32, lambda a, b: lax.reduce_precision(a, 8, 7) + lax.reduce_precision(b, 5, 10)),
    "to small f16": (F32, lambda a, b: lax.reduce_precision(jnp.where(b > 0, a, b) * 1e-5, 5, 10)),
    "to small f32": (F64, lambda a, b: lax.reduce_precision(jnp.where(b > 0, a, b) * 3e-39, 8, 23)),
    "to small bf16": (F64, lambda a, b: lax.reduce_precision(jnp.where(b > 0, a, b) * 3e-39, 8, 7)),
    "sums of nothing": (F32, lambda a, b: a + b + jnp.sum(jnp.broadcast_to(a, (0, 3)), axis=1).sum()),
}
for _name, _item in {**FLOATS, **INTEGERS}.items():
    CASES |= {
        f"add {_name}": (_item, lambda a, b: a + b),
        f"sub {_name}": (_item, lambda a, b: a - b),
        f"mul {_name}": (_item, lambda a, b: a * b),
        f"div {_name}": (_item, lax.div),
        f"rem {_name}": (_item, lax.rem),
        f"max {_name}": (_item, jnp.maximum),
        f"min {_name}": (_item, jnp.minimum),
        f"clamp {_name}": (_item, lambda a, b: lax.clamp(jnp.asarray(1, a.dtype), a, b)),
        f"signs {_name}": (_item, lambda a, b: jnp.where(a < b, jnp.sign(a), jnp.abs(b))),
        f"compare {_name}": (
            _item,
            lambda a, b: ((a <= b) * 2 + (a == b) + (a != a) * 4 + (a >= b) * 8).astype(a.dtype),
        ),
    }
for _name, _item in INTEGERS.items():
    CASES |= {
        f"shift left {_name}": (_item, lax.shift_left),
        f"shift right {_name}": (_item, lax.shift_right_logical),
        f"shift signed {_name}": (_item, lax.shift_right_arithmetic),
        f"bits {_name}": (_item, lambda a, b: lax.population_count(a) * 3 + lax.clz(b) + ((~a & b) | (a ^ b))),
        f"floor division {_name}": (
            _item,
            lambda a, b: jnp.where(b == 0, 0, a // jnp.where(b == 0, 1, b)).astype(a.dtype),
        ),
        f"from f32 {_name}": ((F32, _item), lambda a, b: (a[0], b[0].astype(a[1].dtype))),
        f"from f64 {_name}": ((F64, _item), lambda a, b: (a[0], (b[0] * 1e9).astype(a[1].dtype))),
        f"from f16 {_name}": ((F16, _item), lambda a, b: (a[0], b[0].astype(a[1].dtype))),
        f"to floats {_name}": (
            (F16, BF16, F32, F64, _item),
            lambda a, b: (*(a[4].astype(x.dtype) for x in a[:4]), b[4]),
        ),
        f"to i16 {_name}": ((I16, _item), lambda a, b: (b[1].astype(jnp.int16), a[1])),
        f"to u64 {_name}": ((U64, _item), lambda a, b: (b[1].astype(jnp.uint64), a[1])),
    }
for _name, _item in FLOATS.items():
    CASES |= {
        f"rounding {_name}": (_item, lambda a, b: jnp.where(a > 0, jnp.floor(a * 2), jnp.ceil(b)) + jnp.trunc(a)),
        f"round even {_name}": (_item, lambda a, b: jnp.round(a * 2)),
        f"round away {_name}": (_item, lambda a, b: lax.round(a * 2)),
        f"nextafter {_name}": (_item, jnp.nextafter),
        f"to other floats {_name}": (
            (F16, BF16, F32, F64, _item),
            lambda a, b: (*(a[4].astype(x.dtype) for x in a[:4]), b[4]),
        ),
        f"to bool {_name}": ((BOOL, _item), lambda a, b: (b[1].astype(bool), a[1])),
        f"sqrt {_name}": (_item, lambda a, b: jnp.sqrt(jnp.abs(a)) + lax.rsqrt(jnp.abs(b) + 1)),
        f"exponentials {_name}": (
            _item,
            lambda a, b: jnp.exp(-jnp.abs(a)) + jnp.expm1(-jnp.abs(b)) + jnp.exp2(jnp.clip(a, -3, 3)),
        ),
        f"logarithms {_name}": (_item, lambda a, b: jnp.log1p(jnp.abs(a)) + jnp.log(jnp.abs(b) + 1)),
        f"circle {_name}": (_item, lambda a, b: jnp.sin(a) + jnp.cos(b)),
    }
_UNARY = "log2 tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh cbrt square erf erfc lgamma log exp"
for _name in _UNARY.split():
    _function = getattr(jnp, _name, None) or getattr(lax, _name)
    for _kind, _item in (("f32", F32), ("f64", F64)):
        CASES[f"{_name} {_kind}"] = (_item, lambda a, b, f=_function: f(jnp.clip(a, -3, 3)) + 0 * jnp.nan_to_num(b))


@pytest.fixture(autouse=True)
def on_the_cpu():
    """Runs on a CPU, where XLA divides float32 like the host."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def sizes(items) -> tuple[int, int]:
    """Returns the numbers of arrays and of scalars in all items."""
    leaves = jax.tree.leaves(list(items))
    return len(leaves), sum(leaf.size for leaf in leaves)


def grouped() -> list[list[str]]:
    """Groups the cases, within the kernels' limits on items, so that one function runs a group."""
    groups: list[list[str]] = [[]]
    for name in sorted(CASES, key=lambda name: str(CASES[name][0])):
        with_it = [CASES[other][0] for other in (*groups[-1], name)]
        (arrays, _), (results, scalars) = sizes({str(item): item for item in with_it}.values()), sizes(with_it)
        if groups[-1] and (2 * arrays > 16 or results > 16 or scalars > 32):
            groups.append([])
        groups[-1].append(name)
    return groups


GROUPS = grouped()


def group_of(names):
    """Returns a group's distinct items, and a function of two tuples of them with the results of all cases."""
    items = {str(CASES[name][0]): CASES[name][0] for name in names}
    calls = [(CASES[name][1], list(items).index(str(CASES[name][0]))) for name in names]
    return list(items.values()), lambda pairs: [jax.tree.leaves(f(pairs[0][i], pairs[1][i])) for f, i in calls]


def apply_in_kernels(apply, pairs):
    """Applies a function to all pairs as the map of a scan whose segments have one item."""
    n = len(jax.tree.leaves(pairs)[0])
    return mgpu.segmented_scan(pairs, jnp.arange(n), lambda a, b: b, map=apply)


@pytest.fixture(scope="module")
def library():
    with jax.enable_x64(True):
        sources = [host_functions.operator(function, item) for item, function in CASES.values()]
    return host_functions.build(sources), sources


def test_there_are_many_cases() -> None:
    assert len(CASES) >= 150


def expect_equal(got, wanted, name: str, cancelling: float = 1) -> None:
    for g, w in zip(got, map(np.asarray, jax.tree.leaves(wanted)), strict=True):
        if w.dtype.kind in "biu":
            np.testing.assert_array_equal(g, w, err_msg=name)
            continue
        tolerance = {2: 2e-2, 4: 2e-5, 8: 1e-12}[w.dtype.itemsize]
        exact = name.split(maxsplit=1)[0] in EXACT
        np.testing.assert_allclose(
            g.astype(np.float64),
            w.astype(np.float64),
            rtol=0 if exact else tolerance,
            atol=0 if exact else cancelling * tolerance,
            err_msg=name,
        )


EXACT = {
    "add",
    "sub",
    "mul",
    "div",
    "max",
    "min",
    "clamp",
    "signs",
    "compare",
    "round",
    "nextafter",
    "to",
    "sign",
    "bitcast",
}


@pytest.mark.parametrize("name", CASES)
def test_values(library, name, rng) -> None:
    compiled, sources = library
    number = list(CASES).index(name)
    item, function = CASES[name]
    a, b = (jax.tree.map(lambda leaf: host_functions.items(rng, leaf.shape, leaf.dtype, N), item) for _ in range(2))
    with np.errstate(all="ignore"):
        got = host_functions.apply(compiled, number, sources[number], a, b)
        expect_equal(got, jax.jit(jax.vmap(function))(a, b), name)


def on_a_gpu(names, rng) -> None:
    items, apply = group_of(names)
    pairs = [jax.tree.map(lambda leaf: host_functions.items(rng, leaf.shape, leaf.dtype, N), items) for _ in range(2)]
    wanted = jax.device_get(jax.jit(jax.vmap(lambda *pair: apply(pair)))(*pairs))
    with jax.default_device(jax.devices()[0]):
        program = jax.jit(lambda pairs: apply_in_kernels(apply, pairs))
        assert [e.primitive.name for e in kernel_calls(program, pairs)] == ["mgpu_scan_by_function"]
        got = jax.device_get(program(pairs))
    for name, own, expected in zip(names, got, wanted, strict=True):
        expect_equal(own, expected, name, cancelling=100)  # a GPU fuses products and sums, which may cancel


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU, which runs the kernels of all functions")
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_values_on_a_gpu(names, rng) -> None:
    assert not jax_mgpu_library.compiler_problem()
    on_a_gpu(names, rng)


@pytest.mark.long
def test_groups(monkeypatch, rng) -> None:
    monkeypatch.setattr(custom_operator, "has_kernels", lambda: True)
    assert sorted(name for names in GROUPS for name in names) == sorted(CASES)
    on_a_gpu(GROUPS[0], rng)
    for names in GROUPS:
        items, apply = group_of(names)
        pairs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((N, *leaf.shape), leaf.dtype), [items] * 2)
        closed = jax.make_jaxpr(lambda pairs, apply=apply: apply_in_kernels(apply, pairs))(pairs)
        assert "mgpu_scan_by_function" in [e.primitive.name for e in closed.eqns], names


BINARY = [
    lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor,
    lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic,
]  # fmt: skip
UNARY = [lax.neg, lax.bitwise_not, jnp.abs, lax.sign, lax.population_count, lax.clz]
CHOICES = [lax.lt, lax.le, lax.eq, lax.gt]


def expressions():
    """Returns a strategy for trees of tuples (kind, index in its list, *operands)."""
    leaves = st.sampled_from(["a", "b", 0, 1, 7, 31])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.just("binary"), st.integers(0, len(BINARY) - 1), inner, inner),
            st.tuples(st.just("unary"), st.integers(0, len(UNARY) - 1), inner),
            st.tuples(st.just("choice"), st.integers(0, len(CHOICES) - 1), inner, inner),
        ),
        max_leaves=8,
    )


def evaluate(tree, a, b):
    if not isinstance(tree, tuple):
        if isinstance(tree, str):
            return {"a": a, "b": b}[tree]
        constant = jnp.asarray(tree, a.dtype)
        return jnp.minimum(jnp.maximum(a, constant), constant)  # hides the constant from the compiler
    kind, which, *inner = tree
    values = [evaluate(x, a, b) for x in inner]
    if kind == "choice":
        return jnp.where(CHOICES[which](*values), *values)
    return (BINARY if kind == "binary" else UNARY)[which](*values)


# The CPU compiler of JAX 0.10 dies if it folds the smallest integer divided by -1, so `evaluate` hides constants.
@settings(
    max_examples=2, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), derandomize=True
)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(INTEGERS)), expressions()), min_size=30, max_size=30), st.integers(0, 99)
)
def test_random_functions(trees, seed) -> None:
    rng = np.random.default_rng(seed)
    functions = [lambda a, b, tree=tree: evaluate(tree, a, b) for _, tree in trees]
    sources = [host_functions.operator(f, INTEGERS[kind]) for f, (kind, _) in zip(functions, trees, strict=True)]
    library = host_functions.build(sources)
    pairs = [[host_functions.items(rng, (), INTEGERS[kind].dtype, N) for _ in range(2)] for kind, _ in trees]
    wanted = jax.jit(lambda pairs: [jax.vmap(f)(*pair) for f, pair in zip(functions, pairs, strict=True)])(pairs)
    for number, (source, pair) in enumerate(zip(sources, pairs, strict=True)):
        (got,) = host_functions.apply(library, number, source, *pair)
        np.testing.assert_array_equal(got, wanted[number], err_msg=str(trees[number]))


@pytest.mark.parametrize(
    "item, function, words",
    [
        (F32, lambda a, b: a + jnp.sum(jnp.zeros(1000, jnp.float32) + a), r"shape \[1000\], more than 512 scalars"),
        (V3, lambda a, b: jnp.sort(a) + b, "the primitive sort"),
        (F32, lambda a, b: lax.digamma(a) + b, "the primitive digamma"),
        (M22, lambda a, b: jnp.linalg.inv(a) @ b, "the primitive (lu|triangular_solve)"),
        (F32, lambda a, b: (jax.debug.print("{}", a), a)[1], "effects"),
        (F32, lambda a, b: jax.pure_callback(lambda x: x, F32, a), "pure_callback"),
        (struct(np.complex64), lambda a, b: a * b, "values of complex64"),
        (tuple([F32] * 17), lambda a, b: a, "items of 17 arrays, more than 16"),
        (struct(np.float32, 0), lambda a, b: a, "without elements"),
        (struct(np.float32, 200), lambda a, b: a + b, "items of 200 scalars, more than 128"),
    ],
)
def test_what_cannot_be_emitted(item, function, words) -> None:
    with pytest.raises(Unsupported, match=words):
        host_functions.operator(function, item)


@pytest.mark.parametrize(
    "item, function, commutes",
    [
        (F32, lambda a, b: a + b, True),
        ((F32, I32), lambda a, b: (jnp.maximum(b[0], a[0]), a[1] * b[1]), True),
        (M22, lambda a, b: a + b, True),
        (F32, lambda a, b: a - b, False),
        (F32, lambda a, b: a + a, False),
        (M22, lambda a, b: a + b.T, False),
        ((F32, F32), lambda a, b: (a[0] + b[0], a[0] + b[0]), False),
        (F32, lambda a, b: a, False),
    ],
)
def test_commuting_functions_are_found(item, function, commutes) -> None:
    assert host_functions.operator(function, item).commutes == commutes


def test_traced_captures_stay_in_memory() -> None:
    def captures(k):
        return jnp.zeros(len(host_functions.operator(lambda a, b: a * k + b, F32).captures))

    assert jax.jit(captures)(jnp.float32(2)).shape == (1,)
    assert captures(jnp.float32(2)).shape == (0,)
