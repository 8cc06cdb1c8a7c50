"""dispatch and combine against loops over tokens and their chosen experts (slots); models of docs/experts.md."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

import jax_mgpu as mgpu
from tests.test_documentation import FENCE, PARSER, ROOT
from tests.test_take import adding_scatters

EXPERTS = np.array([[2, 0], [0, 5], [-1, 2], [2, 2], [9, -3]], np.int32)


def routed(x, experts, number):
    """Returns rows by expert, token and slot; each expert's number of rows; and each slot's row."""
    experts = experts.reshape(len(experts), -1).astype(int)
    back, rows, lengths = np.full(experts.shape, -1), [], []
    for expert in range(number):
        places = np.argwhere(experts == expert)
        back[tuple(places.T)] = len(rows) + np.arange(len(places))
        rows += [x[token] for token, _ in places]
        lengths.append(len(places))
    rows += [np.zeros_like(x[0])] * (experts.size - len(rows))
    return np.array(rows, x.dtype).reshape(experts.size, *x.shape[1:]), lengths, back


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"])
def test_rows_by_expert_token_and_slot(rng, dtype):
    for n, slots, number in ((5, 2, 6), (300, 3, 40), (1, 1, 1), (40, 8, 2)):
        experts = EXPERTS if n == 5 else rng.integers(-1, number + 1, (n, slots))
        for trailing in ((4,), (), (2, 3)):
            x = rng.integers(0, 2, (n, *trailing)).astype(jnp.dtype(dtype))
            rows, lengths, back = routed(x, experts, number)
            got = jax.jit(lambda x, experts, number=number: mgpu.dispatch(x, experts, number))(x, experts)
            assert (got.rows.dtype, got.back.dtype) == (x.dtype, np.int32)
            np.testing.assert_array_equal(got.rows, rows)
            np.testing.assert_array_equal(got.segments.lengths, lengths)
            np.testing.assert_array_equal(got.back, back)
            assert got.segments.number == number
    one = mgpu.dispatch(np.arange(3.0), np.array([1, 0, 7]), 2)
    assert (one.rows.tolist(), one.back.tolist()) == ([1, 0, 0], [1, 0, -1])


def test_nothing_to_dispatch():
    for shape, number in (((0, 2), 3), ((4, 0), 3), ((4, 2), 0)):
        got = mgpu.dispatch(np.ones((shape[0], 5), np.float32), np.zeros(shape, int), number)
        assert got.rows.shape == (shape[0] * shape[1], 5)
        assert not np.any(got.rows)
        assert got.segments.number == number
        out = mgpu.combine(got.rows, got.back, np.ones(shape, np.float32))
        np.testing.assert_array_equal(out, np.zeros((shape[0], 5)))


def test_nothing_to_combine_in_a_batch_over_explicit_axes():
    mesh = jax.make_mesh((4,), ("batch",), axis_types=(AxisType.Explicit,), devices=jax.devices("cpu")[:4])
    operands = jnp.ones((4, 3, 5)), jnp.zeros((4, 0, 3), int), jnp.ones((4, 0, 3))
    with jax.set_mesh(mesh):
        sharded = [jax.device_put(x, NamedSharding(mesh, P("batch"))) for x in operands]
        assert jax.jit(jax.vmap(mgpu.combine)).lower(*sharded).out_info.shape == (4, 0, 5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_sums_of_slots_are_in_float32(rng, dtype):
    experts = rng.integers(-1, 9, (200, 4))
    back = routed(np.zeros(200), experts, 8)[2]
    rows, weights = rng.normal(size=(800, 3)).astype(jnp.dtype(dtype)), rng.random((200, 4)).astype(np.float32)
    rows[back.max() + 1 :], weights[back < 0] = np.nan, np.inf  # these rows and slots must not count
    got = jax.jit(mgpu.combine)(rows, back, weights)
    exact, expected = rows.astype(np.float64), np.zeros((200, 3))
    for token, slot in np.argwhere(back >= 0):
        expected[token] += weights[token, slot] * exact[back[token, slot]]
    assert got.dtype == rows.dtype
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=float(jnp.finfo(dtype).eps), atol=1e-6)


def test_slots_are_added_in_order():
    rows = np.array([[1e8], [1.0], [-1e8], [1.0]], np.float32)
    for back, total in (([[0, 2, 1, 3]], 2), ([[0, 1, 2, 3]], 1), ([[1, 3, 0, 2]], 0)):
        assert mgpu.combine(rows, np.array(back), np.ones((1, 4), np.float32))[0, 0] == total


def test_derivatives_of_any_order(rng):
    with jax.enable_x64(True):
        x, weights, mix = rng.normal(size=(5, 3)), rng.normal(size=(5, 2)), rng.normal(size=(10, 3))

        def layer(x, weights):
            got = mgpu.dispatch(x, EXPERTS, 6)
            return mgpu.combine(jnp.sin(got.rows) * mix, got.back, weights)

        check_grads(jax.jit(layer), (x, weights), order=2, modes=["fwd", "rev"])
        got = mgpu.dispatch(x, EXPERTS, 6)
        rows = rng.normal(size=got.rows.shape)
        back = got.back.at[0, 0].set(-1)  # one row then belongs to no token
        check_grads(jax.jit(lambda r, w: mgpu.combine(r, back, w)), (rows, weights), order=2, modes=["fwd", "rev"])
        slopes = jax.grad(lambda r, w: mgpu.combine(r, back, w).sum(), argnums=(0, 1))(rows, weights)
        assert not slopes[0][got.back[0, 0]].any()
        assert not slopes[1][back < 0].any()


@pytest.mark.filterwarnings("ignore:jax_mgpu runs without its kernels")
def test_gradients_do_not_scatter_and_lose_no_precision(rng):
    """A token's cotangents are added in float32; in bfloat16, 1 + 1/256 + ... would stay 1."""
    experts = np.tile(np.arange(8), (3, 1))

    def loss(x):
        got = mgpu.dispatch(x, experts, 8)
        scale = jnp.where(jnp.arange(24) < 3, 1, 1 / 256).astype(jnp.bfloat16)
        return (got.rows * scale).astype(np.float32).sum()

    x = jnp.ones(3, jnp.bfloat16)
    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(x), np.full(3, 1 + 7 / 256).astype(jnp.bfloat16))
    both = jax.grad(
        lambda x, w: mgpu.combine(mgpu.dispatch(x, experts, 8)[0], mgpu.dispatch(x, experts, 8)[2], w).sum(), (0, 1)
    )
    assert not adding_scatters(both, jnp.ones(3), jnp.ones((3, 8)))


@pytest.mark.parametrize("mapped", [(0, 0), (0, None), (None, 0)])
def test_batches_of_tokens(rng, mapped):
    x, experts = rng.normal(size=(3, 6, 2)).astype(np.float32), rng.integers(-1, 5, (3, 6, 2))
    given = [part if axis == 0 else part[1] for part, axis in zip((x, experts), mapped, strict=True)]

    def both(x, experts):
        got = mgpu.dispatch(x, experts, 4)
        return got.rows, got.back, mgpu.combine(got.rows, got.back, jnp.ones(experts.shape))

    got = jax.jit(jax.vmap(both, mapped))(*given)
    slope = jax.jit(jax.vmap(jax.grad(lambda x, e: (both(x, e)[2] ** 2).sum()), mapped))(*given)
    for row in range(3):
        own = [part[row] if axis == 0 else part[1] for part, axis in zip((x, experts), mapped, strict=True)]
        rows, _, back = routed(*own, 4)
        inside = (back >= 0).sum(1, keepdims=True)
        np.testing.assert_array_equal(got[0][row], rows)
        np.testing.assert_array_equal(got[1][row], back)
        np.testing.assert_allclose(got[2][row], own[0] * inside, rtol=1e-6)
        np.testing.assert_allclose(slope[row], 2 * own[0] * inside**2, rtol=1e-5)


def test_what_a_misuse_says():
    x, experts = np.ones((3, 2), np.float32), np.zeros((3, 2), int)
    for error, message, call in [
        (ValueError, "dispatch: x: expected a row for each of 3 tokens", lambda: mgpu.dispatch(x[:2], experts, 3)),
        (TypeError, "dispatch: experts: expected integers", lambda: mgpu.dispatch(x, x, 3)),
        (ValueError, "dispatch: experts: expected one or more experts", lambda: mgpu.dispatch(x, experts[None], 3)),
        (TypeError, "dispatch: number: expected a static", lambda: mgpu.dispatch(x, experts, 2.5)),
        (TypeError, "combine: rows: expected float16", lambda: mgpu.combine(experts, experts, x)),
        (TypeError, "combine: back: expected integers", lambda: mgpu.combine(x, x, x)),
        (TypeError, "combine: weights: expected float16", lambda: mgpu.combine(x, experts, experts)),
        (ValueError, "combine: weights: expected the shape of back", lambda: mgpu.combine(x, experts, x[:2])),
    ]:
        with pytest.raises(error, match=f"^{re.escape(message)}"):
            call()


# ---- The models of docs/experts.md -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page():
    text = (ROOT / "docs" / "experts.md").read_text(encoding="utf-8")
    namespace: dict[str, object] = {}
    for block in FENCE.finditer(text):
        for example in PARSER.get_examples(block[2]):
            if example.source.startswith(("def ", "import ", "class ", "@")):
                exec(example.source, namespace)
    return namespace


def dense(matrices, router, x, slots):
    """Computes the layer in NumPy; every expert processes every token."""
    logits = x @ router
    chosen = np.argsort(-logits, axis=1, kind="stable")[:, :slots]
    powers = np.exp(np.take_along_axis(logits, chosen, 1))
    weights = powers / powers.sum(1, keepdims=True)
    made = np.einsum("td,edf->tef", x, matrices)
    return np.einsum("ts,tsf->tf", weights, np.take_along_axis(made, chosen[..., None], 1))


@jax.default_matmul_precision("float32")  # otherwise a GPU rounds the matrices to 11 bits
def learned(rng, apply, step, model, parts):
    """Compares a layer with one that runs all experts; returns whether training halves its loss."""
    x = rng.normal(size=(64, 6)).astype(np.float32)
    target = np.tanh(x @ rng.normal(size=(6, 6))).astype(np.float32)
    np.testing.assert_allclose(apply(model, x), dense(*map(np.asarray, parts(model)), x, 2), rtol=1e-4, atol=1e-5)
    losses = []
    for _ in range(30):
        model, loss = step(model, x, target)
        losses.append(float(loss))
    return losses[-1] < 0.5 * losses[0]


def test_functions_are_trained(rng, page):
    init, apply = page["init"], page["apply"]

    @jax.jit
    def step(params, x, target):
        loss, slopes = jax.value_and_grad(lambda params: ((apply(params, x) - target) ** 2).mean())(params)
        return jax.tree.map(lambda p, g: p - 0.5 * g, params, slopes), loss

    params = init(jax.random.key(0), 6, 5)
    assert learned(rng, apply, step, params, lambda params: (params["experts"], params["router"]))


@pytest.mark.parametrize("library", ["equinox", "flax"])
def test_modules_are_trained(rng, library):
    pytest.importorskip(library)
    text = (ROOT / "docs" / "experts.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"^```py\n(.*?)^```$", text, re.M | re.S) if library in block]
    names: dict[str, object] = {}
    exec(block, names)
    key = {"key": jax.random.key(0)} if library == "equinox" else {"rngs": names["nnx"].Rngs(0)}
    model = names["Experts"](6, 5, 2, **key)
    parts = lambda model: (model.experts[...], model.router[...])  # noqa: E731
    assert learned(rng, lambda model, x: model(x), names["step"], model, parts)
