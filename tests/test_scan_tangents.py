"""Derivatives of scans by functions, compared with differences of loops in NumPy."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.core.compat import without_unused
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.functions import custom_operator
from jax_mgpu._src.functions.recurrence import NEUTRAL, combined, recurrence, recurrence_of_products
from tests import oracle

N = 7
HEADS = np.array([0, 3, 3, 5], np.int32)


@pytest.fixture(autouse=True)
def primitives(monkeypatch):
    """Makes callers' functions use their primitives, even where these lower to plain JAX."""
    monkeypatch.setattr(custom_operator, "has_kernels", lambda: True)


def affine(xp, a, b):
    return a[0] * b[0], a[1] * b[0] + b[1]


def integrals(xp, a, b):
    """Combines iterated integrals: the third part depends on the first one, not the other way round."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2] + a[0] * b[1]


def shifted_sums(xp, a, b):
    largest = xp.maximum(a[0], b[0])
    return largest, a[1] * xp.exp(a[0] - largest) + b[1] * xp.exp(b[0] - largest)


def logaddexp(xp, a, b):
    return (xp.logaddexp(a[0], b[0]),)


def complex_product(xp, a, b):
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def last_set(xp, a, b):
    return a[0] | b[0], xp.where(b[0], b[1], a[1])


def weighted_product(xp, a, b):
    return (a[0] * WEIGHT * b[0],)


WEIGHT = 0.75
IDENTITIES = {
    affine: (1.0, 0.0),
    integrals: (0.0, 0.0, 0.0),
    shifted_sums: (-50.0, 0.0),
    logaddexp: (-50.0,),
    complex_product: (1.0, 0.0),
    last_set: (False, 0.0),
    weighted_product: (1 / WEIGHT,),
}
FORMS = {
    "plain": {},
    "reverse": {"reverse": True},
    "exclusive": {"exclusive": True},
    "exclusive, reverse, count": {"exclusive": True, "reverse": True, "count": 5},
    "total": {"return_total": True},
    "total, reverse, count": {"return_total": True, "reverse": True, "count": 5},
    "segments": {"heads": HEADS},
    "segments, reverse, count": {"heads": HEADS, "reverse": True, "count": 6},
    "segments, exclusive": {"heads": HEADS, "exclusive": True},
}


def loop(function, x, heads=None, count=N, reverse=False, exclusive=False, return_total=False):
    """Returns the scanned leaves and, if asked for, the total's."""
    results = [np.zeros(leaf.shape, leaf.dtype) for leaf in x]
    total = None
    for begin, end in oracle.segment_bounds(N, np.zeros(1, int) if heads is None else heads, count):
        state = None
        for i in range(begin, end)[:: -1 if reverse else 1]:
            item = tuple(leaf[i] for leaf in x)
            before = IDENTITIES[function] if state is None else state
            state = item if state is None else function(np, state, item)
            for result, value in zip(results, before if exclusive else state, strict=True):
                result[i] = value
        total = state
    return [*results, *map(np.asarray, total)] if return_total else results


def scanned(function, x, heads=None, **form):
    given = (tuple(x),) if heads is None else (tuple(x), heads)
    call = mgpu.scan if heads is None else mgpu.segmented_scan
    if form.get("exclusive") or "count" in form:
        form["identity"] = IDENTITIES[function]
    return jax.tree.leaves(call(*given, op=lambda a, b: function(jnp, a, b), **form))


def items(function, rng, shape=(N,)):
    made = [rng.uniform(0.4, 1.6, shape) for _ in IDENTITIES[function]]
    return [rng.random(shape) < 0.4, made[1]] if function is last_set else made


def loss(results, weights):
    """Uses results in a way whose first and second derivatives differ from item to item."""
    terms = [(w * y * (y + 2)).sum() for y, w in zip(results, weights, strict=True) if y.dtype != bool]
    return sum(terms[1:], terms[0])


def gradient(function, x, h):
    """Returns the derivatives of a function by central differences."""
    flat = np.concatenate([leaf.ravel() for leaf in x])
    ends = np.cumsum([leaf.size for leaf in x])[:-1]

    def at(values):
        return function([part.reshape(leaf.shape) for part, leaf in zip(np.split(values, ends), x, strict=True)])

    steps = np.eye(len(flat)) * h
    slopes = np.array([(at(flat + step) - at(flat - step)) / (2 * h) for step in steps])
    return [part.reshape(leaf.shape) for part, leaf in zip(np.split(slopes, ends), x, strict=True)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("function", IDENTITIES, ids=lambda function: function.__name__)
def test_derivatives_are_those_of_a_loop(function, form, rng):
    options, x = FORMS[form], items(function, rng)
    fixed = [leaf for leaf in x if leaf.dtype == bool]
    moving, tangent = x[len(fixed) :], [rng.uniform(-1, 1, N) for _ in x[len(fixed) :]]
    shapes = [leaf.shape for leaf in loop(function, x, **options)]
    weights = [rng.uniform(0.5, 1.5, shape) for shape in shapes]

    def expected(moved):
        return loss(loop(function, [*fixed, *moved], **options), weights)

    def got(*moved):
        return loss(scanned(function, [*map(jnp.asarray, fixed), *moved], **options), weights)

    def along(moved):
        return sum((g * t).sum() for g, t in zip(gradient(expected, moved, 1e-4), tangent, strict=True))

    given = [jnp.asarray(leaf, jnp.float32) for leaf in moving]
    directions = [jnp.asarray(t, jnp.float32) for t in tangent]
    places = tuple(range(len(given)))
    by_reverse = jax.jit(jax.grad(got, places))
    first, second = jax.jit(lambda x, dx: jax.jvp(by_reverse, x, dx))(tuple(given), tuple(directions))
    forward = jax.jvp(got, tuple(given), tuple(directions))[1]
    again = jax.grad(lambda *x: sum((g * t).sum() for g, t in zip(by_reverse(*x), directions, strict=True)), places)(
        *given
    )
    slopes, curvature = gradient(expected, moving, 1e-5), gradient(along, moving, 1e-3)
    np.testing.assert_allclose(forward, along(moving), rtol=2e-4, atol=2e-4)
    for g, s, o, want, want_second in zip(first, second, again, slopes, curvature, strict=True):
        scale = 1 + np.abs(want_second).max()
        np.testing.assert_allclose(g, want, rtol=2e-4, atol=1e-4 * (1 + np.abs(want).max()))
        np.testing.assert_allclose(s, want_second, rtol=2e-3, atol=2e-4 * scale)
        np.testing.assert_allclose(o, want_second, rtol=2e-3, atol=2e-4 * scale)


@pytest.mark.parametrize("segmented", [False, True], ids=["reduce", "segmented_reduce"])
@pytest.mark.parametrize("function", [affine, integrals, complex_product], ids=lambda function: function.__name__)
def test_derivatives_of_reductions_are_those_of_a_loop(function, segmented, rng):
    x, count = items(function, rng), 6
    ends = [end - 1 for _, end in oracle.segment_bounds(N, HEADS, count)] if segmented else [-1]
    weights = [rng.uniform(0.5, 1.5, len(ends)) for _ in x]

    def expected(moved):
        form = {"heads": HEADS} if segmented else {"return_total": True}
        results = loop(function, moved, count=count, **form)
        return loss([leaf[ends] if segmented else leaf.reshape(1) for leaf in results[-len(x) :]], weights)

    def got(*moved):
        form = {"count": count, "identity": IDENTITIES[function]}
        given = (moved, np.unique(HEADS)) if segmented else (moved,)
        call = mgpu.segmented_reduce if segmented else mgpu.reduce
        results = call(*given, op=lambda a, b: function(jnp, a, b), **form)
        return loss([leaf.reshape(-1) for leaf in results], weights)

    places = tuple(range(len(x)))
    slopes = jax.jit(jax.grad(got, places))(*(jnp.asarray(leaf, jnp.float32) for leaf in x))
    for slope, want in zip(slopes, gradient(expected, x, 1e-5), strict=True):
        np.testing.assert_allclose(slope, want, rtol=2e-4, atol=1e-4 * (1 + np.abs(want).max()))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(N,), (N, 3)], ids=["vector", "rows"])
def test_recurrences_and_their_derivatives(shape, reverse, late, rng):
    a, b, da, db, ct = (rng.uniform(-1, 1, shape) for _ in range(5))
    heads, count = HEADS, 6

    def solved(a, b):
        result = np.zeros(shape)
        for begin, end in oracle.segment_bounds(N, heads, count):
            places = [*range(begin, end)][:: -1 if reverse else 1]
            for before, i in zip([None, *places], places, strict=False):
                result[i] = b[i] if before is None else a[before if late else i] * result[before] + b[i]
        return result

    def ours(a, b):
        return recurrence(a, b, jnp.asarray(heads), jnp.array([count]), reverse=reverse, late=late)

    given, moved = [jnp.asarray(x, jnp.float32) for x in (a, b)], [jnp.asarray(x, jnp.float32) for x in (da, db)]
    expected = solved(a, b), (solved(a + 1e-6 * da, b + 1e-6 * db) - solved(a - 1e-6 * da, b - 1e-6 * db)) / 2e-6
    for got, want in zip(jax.jvp(ours, given, moved), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    slopes = gradient(lambda x: (solved(*x) * ct).sum(), [a, b], 1e-6)
    for got, want in zip(jax.vjp(ours, *given)[1](jnp.asarray(ct, jnp.float32)), slopes, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("live", [0, 1, 5, N])
def test_recurrences_of_products_and_their_derivatives(live, reverse, rng):
    primals, tangents = ([jnp.asarray(x, jnp.float32) for x in rng.uniform(-1, 1, (4, N, 3))] for _ in range(2))
    ct = jnp.asarray(rng.uniform(-1, 1, (N, 3)), jnp.float32)

    def ours(a, w, t, b):
        return recurrence_of_products(a, w, t, b, jnp.array([live]), reverse=reverse)

    def loop(a, w, t, b):
        y, before = [jnp.zeros(3)] * N, None
        for i in range(live)[:: -1 if reverse else 1]:
            y[i] = b[i] if before is None else a[i] * y[before] + w[before] * t[i] + b[i]
            before = i
        return jnp.stack(y)

    def close(got, want):
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5), got, want)

    def slopes(function):
        """Returns the cotangents if only t and b move, as in a gradient, and if all operands do."""
        of_terms = jax.vjp(lambda t, b: function(*primals[:2], t, b), *primals[2:])[1](ct)
        return of_terms, jax.vjp(function, *primals)[1](ct)

    def curvature(function):
        by_reverse = jax.grad(lambda *x: (function(*x) ** 2 * ct).sum(), (0, 1, 2, 3))
        return jax.jvp(by_reverse, primals, tangents)

    close(jax.jvp(ours, primals, tangents), jax.jvp(loop, primals, tangents))
    close(slopes(ours), slopes(loop))
    close(curvature(ours), curvature(loop))


@pytest.mark.parametrize("late", [False, True])
def test_states_of_the_kernel_combine_in_any_order(late, rng):
    """Neutral states may lie anywhere but after the item whose result is taken."""
    a, b = rng.uniform(-1, 1, (2, 12))
    a[0], b[:3], a[1:3] = np.inf, 0, 1e30  # nothing but zeros is multiplied by these
    value, before = 0.0, 0.0
    for i in range(12):
        value = b[i] + (0 if value == 0 else (before if late else a[i]) * value)
        before = a[i]
    neutral = [np.float32(part) for part in NEUTRAL[: 2 + late]]
    states = [[np.float32(part) for part in ((1, y, x) if late else (x, y))] for x, y in zip(a, b, strict=True)]
    for _ in range(20):
        row = list(states)
        for _ in range(6):
            row.insert(rng.integers(len(row)), neutral)
        while len(row) > 1:
            i = rng.integers(len(row) - 1)
            with np.errstate(all="ignore"):
                row[i : i + 2] = [combined(*row[i : i + 2])]
        np.testing.assert_allclose(row[0][1], value, rtol=1e-5)


@pytest.mark.parametrize("function", [affine, shifted_sums, integrals], ids=lambda function: function.__name__)
def test_derivatives_of_rows_in_a_batch(function, rng):
    rows = [jnp.asarray(leaf, jnp.float32) for leaf in items(function, rng, (2, N, 3))]

    def of_one(*x):
        results = scanned(function, x, reverse=True)
        return sum((w * y * y).sum() for w, y in zip((1, 2, 3), results, strict=False))

    by_reverse = jax.grad(of_one, tuple(range(len(rows))))
    together = jax.jit(jax.vmap(by_reverse))(*rows)
    columns = jax.jit(by_reverse)
    for problem, column in np.ndindex(2, 3):
        alone = columns(*(leaf[problem, :, column] for leaf in rows))
        for got, want in zip(together, alone, strict=True):
            np.testing.assert_allclose(got[problem, :, column], want, rtol=1e-5, atol=1e-5)


def test_derivatives_by_captured_values(rng):
    x = jnp.asarray(rng.uniform(0.5, 1.5, N), jnp.float32)

    def scan(x, weight):
        return jnp.sum(jnp.square(mgpu.scan(x, lambda a, b: a * weight * b)))

    def expected(x, weight):
        factors = jnp.concatenate([x[:1], x[1:] * weight])
        return jnp.sum(jnp.square(jnp.cumprod(factors)))

    for places in (0, 1, (0, 1)):
        got, want = (jax.jit(jax.grad(f, places))(x, jnp.float32(0.9)) for f in (scan, expected))
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-5), got, want)


def test_narrow_floats_are_summed_in_float32(rng):
    n = 3000
    x = jnp.asarray(rng.uniform(0, 1, n), jnp.bfloat16)
    factors = jnp.full((n,), 1, jnp.bfloat16)
    got = recurrence(factors, x, ABSENT, ABSENT, reverse=False, late=True)
    np.testing.assert_allclose(got.astype(np.float32), np.cumsum(x.astype(np.float32)), rtol=1e-2)


def test_unused_results_are_not_computed(rng):
    x = [jnp.asarray(leaf, jnp.float32) for leaf in items(integrals, rng)]
    closed = jax.make_jaxpr(lambda *x: scanned(integrals, x, return_total=True))(*x)
    used = [False, True, False, False, False, True]
    cut = without_unused(closed, used)
    (equation,) = (e for e in cut.jaxpr.eqns if e.primitive.name == "mgpu_scan_by_function")
    assert len(equation.outvars) == 4
    again = without_unused(cut, [False, True])
    (equation,) = (e for e in again.jaxpr.eqns if e.primitive.name == "mgpu_scan_by_function")
    assert len(equation.outvars) == 2
    whole = scanned(integrals, x, return_total=True)
    for part, kept in ((cut, [1, 5]), (again, [5])):
        results = jax.jit(lambda *x, part=part: jax.core.eval_jaxpr(part.jaxpr, part.consts, *x))(*x)
        for got, i in zip(results, kept, strict=True):
            np.testing.assert_allclose(got, whole[i], rtol=1e-6)  # another program may round products otherwise
        of_part = jax.grad(lambda x, part=part: sum(map(jnp.sum, jax.core.eval_jaxpr(part.jaxpr, part.consts, *x))))(x)
        want = jax.grad(lambda x, kept=kept: sum(jnp.sum(scanned(integrals, x, return_total=True)[i]) for i in kept))(x)
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-6), of_part, want)


@pytest.mark.usefixtures("lowers_for_cuda")
@pytest.mark.parametrize("shape", [(N,), (N, 16), (4, N, 16)], ids=["vector", "rows", "batch"])
def test_gradient_by_emit_is_two_scans(shape):
    """The first scan writes the used leaf; the second reads the items in place."""

    def used(a, b):
        return jnp.sum(jnp.square(mgpu.scan((a, b), lambda a, b: affine(jnp, a, b), emit=lambda state: state[1])))

    mapped = used if len(shape) < 3 else lambda a, b: jnp.sum(jax.vmap(used)(a, b))
    x = jax.ShapeDtypeStruct(shape, np.float32)
    text = jax.jit(jax.grad(mapped, (0, 1))).trace(x, x).lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in text.splitlines() if "custom_call @jax_mgpu" in line]
    of_rows = len(shape) > 1
    assert [re.findall(r"results = (\d)", line) for line in calls] == [["1"], ["2" if of_rows else "1"]]
    assert all("(%arg0, " in line for line in calls)
    assert not re.search("transpose|gather|while|concatenate", text)
    assert not of_rows or re.search(r"return (%\w+)#1, \1#0 ", text)
