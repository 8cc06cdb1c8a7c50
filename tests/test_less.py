"""Sorts and two-input operations by a comparator, against Python's sort."""

from __future__ import annotations

import fractions
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.core import library
from jax_mgpu._src.functions import comparator, comparator_ops, custom_operator
from tests.variants import long_but

F32, I32 = np.float32, np.int32


@pytest.fixture(params=["plain", "primitive"])
def way(request, monkeypatch):
    """Runs a test twice: in plain JAX, and through the primitive."""
    monkeypatch.setattr(custom_operator, "has_kernels", lambda: request.param == "primitive")
    return request.param


def by_size(a, b):
    return jnp.abs(a) < jnp.abs(b)


def quotient(a, b):
    return a[0] * b[1] < b[0] * a[1]


def few(rng, n):
    return rng.integers(-6, 7, n).astype(F32)


def rationals(rng, n):
    return rng.integers(1, 9, n).astype(I32), rng.integers(1, 9, n).astype(I32)


def words(rng, n):
    return {"text": rng.integers(0, 3, (n, 3)).astype(np.uint8), "number": rng.integers(0, 2, n).astype(bool)}


def lexicographic(a, b):
    weights = jnp.array([9, 3, 1], jnp.int32)
    x, y = ((i["text"].astype(jnp.int32) * weights).sum() * 2 + i["number"] for i in (a, b))
    return x > y


def numbered_rationals(rng, n):
    return *rationals(rng, n), rng.integers(0, 99, n).astype(I32)


def mixed(rng, n):
    return {**words(rng, n), "x": few(rng, 2 * n).reshape(n, 2), "half": few(rng, n).astype(np.float16)}


def mixed_with_rows(rng, n):
    return {**mixed(rng, n), "row": np.ones((n, 4), F32)}


def heavier(a, b):
    """Compares by an expression of both items, so there is no key to sort by."""
    by_x, by_text = (a["x"] - b["x"]).sum(), a["text"].astype(jnp.int32) - b["text"].astype(jnp.int32)
    by_half = (a["half"] - b["half"]).astype(jnp.float32)
    return jnp.where(a["number"] == b["number"], by_x + by_text.sum() - by_half > 0, a["number"] > b["number"])


def weight(x, i):
    return -int(x["number"][i]), -float(x["x"][i].sum() + int(x["text"][i].astype(int).sum()) - float(x["half"][i]))


# A case draws keys, and has a comparator and Python's sort key.
CASES = {
    "by size": (few, by_size, lambda x, i: abs(x[i])),
    "rationals": (rationals, quotient, lambda x, i: fractions.Fraction(int(x[0][i]), int(x[1][i]))),
    "words": (words, lexicographic, lambda x, i: [-int(t) for t in x["text"][i]] + [-int(x["number"][i])]),
    "rows too wide for a word": (
        lambda rng, n: rng.integers(0, 2, (n, 5)).astype(F32),
        lambda a, b: a.sum() < b.sum(),
        lambda x, i: x[i].sum(),
    ),
    "any of nothing": (
        few,
        lambda a, b: (a < b) | jnp.broadcast_to(a < b, (0, 3)).any(axis=1).any(),
        lambda x, i: x[i],
    ),
    "12 bytes": (numbered_rationals, quotient, lambda x, i: fractions.Fraction(int(x[0][i]), int(x[1][i]))),
    "16 bytes": (
        lambda rng, n: rng.integers(0, 3, (n, 4)).astype(F32),
        lambda a, b: (a - b) @ jnp.array([1.0, 2, 3, 4]) < 0,
        lambda x, i: x[i] @ np.array([1, 2, 3, 4]),
    ),
    "14 bytes": (mixed, heavier, weight),
    "30 bytes": (mixed_with_rows, heavier, weight),
}


def wanted_order(case, x, begin, end):
    return sorted(range(begin, end), key=lambda i: CASES[case][2](x, i))


def at(x, order):
    return jax.tree.map(lambda leaf: leaf[np.asarray(order, int)], x)


def expect_equal(got, wanted):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(got), jax.device_get(wanted))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("way")
def test_sorts(case, rng) -> None:
    make, less, _ = CASES[case]

    @jax.jit
    def run(x, values, count):
        keys, moved = mgpu.mergesort(x, values, less=less, count=count)
        return mgpu.mergesort(x, less=less, count=count), keys, moved, mgpu.mergesort_indices(x, less=less, count=count)

    for n, lives in ((1, (1,)), (77, (0, 40, 77))):
        x = make(rng, n)
        for live in lives:
            order = [*wanted_order(case, x, 0, live), *range(live, n)]
            alone, keys, moved, (same_keys, indices) = run(x, np.arange(n), live)
            for got in (alone, keys, same_keys):
                expect_equal(got, at(x, order))
            np.testing.assert_array_equal(moved, order)
            np.testing.assert_array_equal(indices, order)
    assert mgpu.mergesort_indices(make(rng, 0), less=less)[1].shape == (0,)


def lighter(a, b):
    """Compares sums of leaves by an expression of both items."""
    return sum(jnp.sum(x.astype(jnp.float64) - y.astype(jnp.float64)) for x, y in zip(a, b, strict=True)) < 0


WIDE = {
    "int8, float64": ((np.int8, ()), (np.float64, ())),
    "bool, bfloat16, int64": ((np.bool_, (3,)), (jnp.bfloat16, ()), (np.int64, ())),
    "uint8, float32": ((np.uint8, ()), (F32, (2,))),
    "float64, float16": ((np.float64, ()), (np.float16, (2, 2))),
    "float64 twice": ((np.float64, ()), (np.float64, ())),
    "uint16, bool": ((np.uint16, (7,)), (np.bool_, ())),
    "uint8": ((np.uint8, (11,)),),
    "complex64, float32": ((np.complex64, ()), (F32, ())),
}


@pytest.mark.parametrize("case", long_but(["int8, float64", "bool, bfloat16, int64"], WIDE))
@pytest.mark.usefixtures("way", "x64")
@pytest.mark.filterwarnings("ignore:jax_mgpu. mergesort(_indices)?. less. runs in plain JAX.*complex64")
def test_wide_types(case, rng) -> None:
    n = 50
    x = tuple(rng.integers(0, 2, (n, *shape)).astype(dtype) for dtype, shape in WIDE[case])
    weights = sum(leaf.reshape(n, -1).real.astype(np.float64).sum(axis=1) for leaf in x)
    less = lighter if "complex" not in case else lambda a, b: lighter((a[0].real, a[1]), (b[0].real, b[1]))
    order = np.argsort(weights, kind="stable")
    expect_equal(mgpu.mergesort(x, less=less), at(x, order))
    keys, indices = mgpu.mergesort_indices(x, less=less)
    np.testing.assert_array_equal(indices, order)
    expect_equal(keys, at(x, order))


@pytest.mark.parametrize("case", ["by size", "rationals", "12 bytes"])
@pytest.mark.usefixtures("way")
def test_segments(case, rng) -> None:
    make, less, _ = CASES[case]
    n, live = 90, 80
    x, heads = make(rng, n), np.array([0, 0, 7, 30, 31, 70, 90, 95], I32)
    bounds = [0, 7, 30, 31, 70, live]
    order = [i for a, b in itertools.pairwise(bounds) for i in wanted_order(case, x, a, b)]
    order += range(live, n)
    keys, moved = mgpu.segmented_sort(x, heads, np.arange(n), less=less, count=live)
    expect_equal(keys, at(x, order))
    np.testing.assert_array_equal(moved, order)
    flags = np.isin(np.arange(n), heads)
    keys, indices = mgpu.segmented_sort_indices(x, flags=flags, less=less, count=live)
    expect_equal(keys, at(x, order))
    np.testing.assert_array_equal(indices, order)
    separate = mgpu.segmented_sort_indices(x, np.array([3, 20]), ends=np.array([9, 60]), less=less)[1]
    order = [*range(3), *wanted_order(case, x, 3, 9), *range(9, 20), *wanted_order(case, x, 20, 60), *range(60, n)]
    np.testing.assert_array_equal(separate, order)


def by_difference(a, b):
    return jnp.where(a[1] == b[1], a[0] - b[0], a[0] - b[0] + (a[1] - b[1])) < 0


@pytest.mark.parametrize("width", [2, 3, 5])
def test_many_items(width, rng) -> None:
    n, live = 70_001, 66_000
    numbers = rng.integers(0, 3000, n).astype(F32)
    x = (numbers, *(np.full(n, i, F32) for i in range(width - 1)))
    order = np.argsort(numbers, kind="stable")
    np.testing.assert_array_equal(mgpu.mergesort_indices(x, less=by_difference)[1], order)
    np.testing.assert_array_equal(mgpu.mergesort(x, less=by_difference)[0], numbers[order])
    heads = np.sort(np.append(rng.integers(40_000, n, 300), [0, 9, 20_000])).astype(I32)
    segment = np.searchsorted(heads, np.arange(n), side="right")
    wanted = np.append(np.lexsort((numbers[:live], segment[:live])), np.arange(live, n))
    got = mgpu.segmented_sort_indices(x, heads, less=by_difference, count=live)[1]
    np.testing.assert_array_equal(got, wanted)
    rows = tuple(leaf[: n // 7 * 7].reshape(7, -1) for leaf in x)
    got = jax.vmap(lambda *keys: mgpu.mergesort_indices(keys, less=by_difference)[1])(*rows)
    np.testing.assert_array_equal(got, np.argsort(rows[0], axis=1, kind="stable"))


def sorted_inputs(case, rng, n_a, n_b):
    """Returns two sorted inputs, and the items' sort keys."""
    make, _, key = CASES[case]
    inputs = []
    for n in (n_a, n_b):
        x = make(rng, n)
        inputs.append(at(x, wanted_order(case, x, 0, n)))
    return inputs, [[key(x, i) for i in range(n)] for x, n in zip(inputs, (n_a, n_b), strict=True)]


@pytest.mark.parametrize("case", ["by size", "rationals"])
@pytest.mark.usefixtures("way")
def test_two_inputs(case, rng) -> None:
    less = CASES[case][1]
    (a, b), (a_keys, b_keys) = sorted_inputs(case, rng, 50, 37)
    both = jax.tree.map(lambda x, y: np.concatenate([x, y]), a, b)
    order = sorted(range(87), key=lambda i: [*a_keys, *b_keys][i])
    expect_equal(mgpu.merge(a, b, less=less), at(both, order))
    keys, moved = mgpu.merge(a, b, np.arange(50), np.arange(50, 87), less=less)
    expect_equal(keys, at(both, order))
    np.testing.assert_array_equal(moved, order)

    found = mgpu.sorted_search(a, b, less=less)
    np.testing.assert_array_equal(found, [sum(y < x for y in b_keys) for x in a_keys])
    found = mgpu.sorted_search(a, b, "right", less=less, needles_count=9, haystack_count=20)
    np.testing.assert_array_equal(found[:9], [sum(y <= x for y in b_keys[:20]) for x in a_keys[:9]])

    rows = [(i, j) for i, x in enumerate(a_keys) for j, y in enumerate(b_keys) if x == y]
    joined = mgpu.join(a, b, size=len(rows), less=less)
    assert joined.count == len(rows)
    np.testing.assert_array_equal(joined.a_indices, [i for i, _ in rows])
    np.testing.assert_array_equal(joined.b_indices, [j for _, j in rows])
    shuffle = rng.permutation(50)
    semi = mgpu.join(at(a, shuffle), b, "semi", size=50, less=less, assume_sorted=False)
    partners = [i for i in range(50) if a_keys[shuffle[i]] in b_keys]
    np.testing.assert_array_equal(semi.a_indices[: len(partners)], partners)


@pytest.mark.parametrize("name", ["intersection", "union", "difference", "symmetric_difference"])
@pytest.mark.usefixtures("way")
def test_sets(name, rng) -> None:
    (a, b), (a_keys, b_keys) = sorted_inputs("rationals", rng, 40, 45)
    kept = []
    for side, own, other in ((0, a_keys, b_keys), (1, b_keys, a_keys)):
        for i, key in enumerate(own):
            has_partner = own[:i].count(key) < other.count(key)
            if {
                "intersection": side == 0 and has_partner,
                "union": side == 0 or not has_partner,
                "difference": side == 0 and not has_partner,
                "symmetric_difference": not has_partner,
            }[name]:
                kept.append((key, side * 40 + i))
    order = [i for _, i in sorted(kept)]
    both = jax.tree.map(lambda x, y: np.concatenate([x, y]), a, b)
    values = {"a_values": np.arange(40)}
    if name in ("union", "symmetric_difference"):
        values["b_values"] = np.arange(40, 85)
    result = getattr(mgpu, f"set_{name}")(a, b, **values, less=quotient)
    assert result.count == len(order)
    expect_equal(at(result.keys, range(len(order))), at(both, order))
    np.testing.assert_array_equal(result.values[: len(order)], order)
    assert getattr(mgpu, f"set_{name}")(a, b, less=quotient, size=3).values is None


@pytest.mark.usefixtures("way")
def test_transformations(rng) -> None:
    x, weights = rng.normal(size=12).astype(F32), np.arange(12, dtype=F32)
    order = np.argsort(np.abs(x), kind="stable")

    def loss(x):
        return (mgpu.mergesort(x, less=by_size) ** 2 * weights).sum()

    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x)[order], 2 * x[order] * weights, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.hessian(loss))(x), np.diag(2 * weights[np.argsort(order)]), rtol=1e-6)
    merged = jax.jit(jax.grad(lambda a: (mgpu.merge(a, a[:5], less=by_size) * np.arange(17)).sum()))(x[order])
    places = np.argsort(np.abs(np.append(x[order], x[order][:5])), kind="stable")
    ranks = np.argsort(places)
    np.testing.assert_allclose(merged, ranks[:12] + np.append(ranks[12:], np.zeros(7)), rtol=1e-6)
    rows = np.stack([x, -x, x[::-1]])
    got = jax.jit(jax.vmap(lambda x: mgpu.mergesort_indices(x, less=by_size)[1]))(rows)
    np.testing.assert_array_equal(got, np.argsort(np.abs(rows), axis=1, kind="stable"))
    got = jax.vmap(lambda k: mgpu.mergesort(x, less=lambda a, b: a * k < b * k))(np.array([1, -1], F32))
    np.testing.assert_array_equal(got, [np.sort(x), np.sort(x)[::-1]])
    places = np.argsort(x, kind="stable")
    wide = (x, np.zeros(12, F32), np.arange(12, dtype=F32))
    got = jax.grad(lambda x: (mgpu.mergesort((x, *wide[1:]), less=by_difference)[0] ** 2 * weights).sum())(x)
    np.testing.assert_allclose(got[places], 2 * x[places] * weights, rtol=1e-6)
    got = jax.vmap(lambda k: mgpu.mergesort(wide, less=lambda a, b: a[0] * k - b[0] * k < 0)[2])(np.array([1, -1], F32))
    np.testing.assert_array_equal(got, [places, places[::-1]])
    pairs = jax.vmap(lambda a, b: mgpu.sorted_search(a, b, less=by_size))(rows[:2, order], rows[:2, order])
    np.testing.assert_array_equal(pairs, np.tile(np.arange(12), (2, 1)))


# ---- Comparators in plain JAX


def halved(x):
    """Counts how often a number is halved until it is less than 1, by a while loop."""
    return jax.lax.while_loop(lambda s: s[0] >= 1, lambda s: (s[0] / 2, s[1] + 1), (jnp.abs(x), 0))[1]


TABLE = jnp.asarray(np.random.default_rng(7).permutation(300).astype(np.int32))

# Each case has the method that sorts, a comparator of (float, int), and Python's sort key. "keys" is a sort by
# keys made of each item, "region" is XLA's sort with a comparator of scalars, "loops" are merges in plain JAX.
PLAIN = {
    "one key": ("keys", lambda a, b: a[0] < b[0], lambda x, i: x),
    "descending": ("keys", lambda a, b: ~(b[0] >= a[0]), lambda x, i: -x),
    "a loop of each": ("keys", lambda a, b: halved(a[0]) < halved(b[0]), lambda x, i: math.frexp(abs(x))[1] * (x != 0)),
    "a table of each": ("keys", lambda a, b: TABLE[a[1]] > TABLE[b[1]], lambda x, i: -int(TABLE[i])),
    "two keys": ("keys", lambda a, b: (a[1] < b[1]) | ((a[1] == b[1]) & (a[0] > b[0])), lambda x, i: (i, -x)),
    "two keys, where": (
        "keys",
        jax.jit(lambda a, b: jnp.where(a[1] != b[1], a[1] > b[1], (a[0] <= b[0]) & (a[0] != b[0]))),
        lambda x, i: (-i, x),
    ),
    "any of two": (
        "keys",
        lambda a, b: jnp.any(jnp.stack([a[1] < b[1], (a[1] == b[1]) & (a[0] < b[0])])),
        lambda x, i: (i, x),
    ),
    "a difference": ("region", lambda a, b: (b[1] - a[1]).astype(jnp.float32) > a[0] - b[0], lambda x, i: x + i),
    "a sum of differences": (
        "region",
        lambda a, b: (jnp.stack([a[0], a[1]]) - jnp.stack([b[0], b[1]])).sum() < 0,
        lambda x, i: x + i,
    ),
    "six columns": (
        "region",
        lambda a, b: (jnp.arange(1.0, 7.0) * a[0] - jnp.arange(1.0, 7.0) * b[0]).sum() < 0,
        lambda x, i: x,
    ),
    "a branch": (
        "region",
        lambda a, b: jax.lax.cond(a[1] < b[1], lambda: True, lambda: (a[1] == b[1]) & (a[0] - b[0] < 0)),
        lambda x, i: (i, x),
    ),
    "a loop of both": (
        "loops",
        lambda a, b: halved((b[1] - a[1]).astype(jnp.float32)) * (b[1] > a[1]) > 0,
        lambda x, i: i,
    ),
    "a place of both": ("loops", lambda a, b: jnp.arange(600)[300 + a[1] - b[1]] < 300, lambda x, i: i),
}  # fmt: skip


def way_of(function, *arguments):
    """Returns the method by which a program sorts."""
    text = str(jax.make_jaxpr(function)(*arguments))
    found = [
        way
        for way, word in (("keys", "mgpu_segmented_sort["), ("region", "comparator_sort["), ("loops", "while["))
        if word in text
    ]
    return found[0]


@pytest.mark.parametrize("case", PLAIN)
def test_ways_of_plain_jax(case, rng, monkeypatch) -> None:
    monkeypatch.setattr(custom_operator, "has_kernels", lambda: False)
    way, less, key = PLAIN[case]
    n, live = 83, 61
    x, i = (
        (rng.integers(-4, 5, (2, n)) / 2).astype(F32),
        rng.integers(0, 300 if "table" in case else 5, (2, n)).astype(I32),
    )
    heads = np.array([0, 9, 9, 40], I32)

    def run(x, i):
        whole = mgpu.mergesort_indices((x, i), less=less)[1]
        return whole, mgpu.segmented_sort_indices((x, i), heads, less=less, count=live)[1]

    assert way_of(lambda *x: mgpu.mergesort_indices(x, less=less)[1], x[0], i[0]) == way
    program = jax.jit(jax.vmap(run))
    got = program(x, i)
    again = jax.export.export(program, disabled_checks=mgpu.export_checks())(x, i).serialize()
    jax.tree.map(np.testing.assert_array_equal, jax.export.deserialize(again).call(x, i), got)
    for row in range(2):
        whole, segments = ([*range(a, b)] for a, b in ((0, n), (live, n)))
        whole.sort(key=lambda k, row=row: key(float(x[row, k]), int(i[row, k])))
        parts = [sorted(range(a, b), key=lambda k, row=row: key(float(x[row, k]), int(i[row, k])))
                 for a, b in ((0, 9), (9, 40), (40, live))]  # fmt: skip
        np.testing.assert_array_equal(got[0][row], whole)
        np.testing.assert_array_equal(got[1][row], [*itertools.chain(*parts), *segments])


@pytest.mark.parametrize("case", ["a table of each", "a difference", "a loop of both"])
def test_batches_over_a_mesh(case, rng, monkeypatch) -> None:
    """Over a manual axis, items vary, but a loop's initial state does not."""
    monkeypatch.setattr(custom_operator, "has_kernels", lambda: False)
    less, devices = PLAIN[case][1], jax.devices()
    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Explicit,), devices=devices)
    x, i = (rng.integers(0, 5, (2 * len(devices), 3, 40)).astype(dtype) for dtype in (F32, I32))
    run = jax.jit(jax.vmap(jax.vmap(lambda *keys: mgpu.mergesort_indices(keys, less=less)[1])))
    expected = jax.device_get(run(x, i))
    with jax.set_mesh(mesh):
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
        placed = [jax.device_put(keys, sharding) for keys in (x, i)]
        got = run(*placed)
        of_shards = jax.jit(jax.shard_map(run, in_specs=sharding.spec, out_specs=sharding.spec))(*placed)
    assert got.sharding.is_equivalent_to(sharding, got.ndim)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(of_shards, expected)


def test_an_order_for_each_problem_of_a_shard(rng, monkeypatch) -> None:
    """A comparator is traced with items that do not vary over the mesh; here, items and captured values vary."""
    monkeypatch.setattr(custom_operator, "has_kernels", lambda: True)
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices)
    x, signs = few(rng, 2 * len(devices) * 3 * 20).reshape(-1, 3, 20), rng.choice([-1, 1], (2 * len(devices), 3))

    def run(x, sign):
        return mgpu.segmented_sort_indices(x, np.array([0, 7], I32), less=lambda a, b: a * sign < b * sign)[1]

    spec = jax.sharding.PartitionSpec("x")
    run = jax.shard_map(jax.vmap(jax.vmap(run)), mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    got = jax.jit(run)(x, signs.astype(F32))
    keys = x * signs[..., None]
    expected = np.concatenate([np.argsort(part, axis=-1, kind="stable") for part in (keys[..., :7], keys[..., 7:])], -1)
    np.testing.assert_array_equal(got, expected + np.where(np.arange(20) < 7, 0, 7))


def test_same_programs_are_compiled_once(rng, monkeypatch) -> None:
    monkeypatch.setattr(custom_operator, "has_kernels", lambda: False)
    x = few(rng, 50)
    programs, sort = set(), comparator._sort_by_program
    monkeypatch.setattr(
        comparator, "_sort_by_program", lambda program, xs: (programs.add(program), sort(program, xs))[1]
    )
    for _ in range(3):
        mgpu.mergesort((x, x), less=lambda a, b: a[0] * b[1] - b[0] * a[1] < -0.5)
    mgpu.mergesort((x, x), less=lambda a, b: a[0] * b[1] - b[0] * a[1] < -0.25)
    assert len(programs) == 2


NOISE = jnp.asarray(np.random.default_rng(8).integers(0, 2, 997).astype(bool))
BROKEN = {
    "always": lambda a, b: (a == b) | (a != b) | (a != a),  # noqa: PLR0124 - NaNs too
    "the second alone": lambda a, b: b > 0,
    "a circle": lambda a, b: (a - b) % 3 == 1,
    "noise": lambda a, b: jnp.sin(a * 12.9 + b * 78.2) > 0,
    "noise by a table": lambda a, b: NOISE[(jnp.abs(a * 13 + b * 7)).astype(jnp.int32) % 997],
    "NaN": lambda a, b: a < b,
    "NaN of both": lambda a, b: a - b < 0,
}


@pytest.mark.parametrize("case", long_but(["always", "a circle", "noise by a table", "NaN of both"], BROKEN))
def test_broken_orders_lose_nothing(case, way, rng) -> None:
    """A function that is no strict weak order gives a permutation; CUDA's kernels may give some keys twice."""
    if way == "primitive" and jax.default_backend() == "gpu":
        x, less = few(rng, 9029), BROKEN[case]
        for keys, order in ((x, less), ((x, x, x), lambda a, b: less(a[0], b[0]))):
            got, indices = mgpu.mergesort_indices(keys, less=order)
            assert set(np.asarray(indices)) <= set(range(9029))
            expect_equal(got, at(keys, indices))
        return
    less = BROKEN[case]
    for n in (2, 100, 1029):
        x = np.where(rng.random(n) < 0.2, np.nan, few(rng, n)).astype(F32)
        keys, indices = mgpu.mergesort_indices(x, less=less)
        np.testing.assert_array_equal(np.sort(indices), np.arange(n))
        np.testing.assert_array_equal(keys, x[indices])
    heads, count = np.array([0, 300], I32), 800
    indices = mgpu.segmented_sort_indices(x, heads, less=less, count=count)[1]
    for begin, end in ((0, 300), (300, count)):
        np.testing.assert_array_equal(np.sort(indices[begin:end]), np.arange(begin, end))
    np.testing.assert_array_equal(indices[count:], np.arange(count, n))
    mgpu.set_union(x[:100], x[:100], less=less)


def test_errors() -> None:
    x = jnp.arange(5.0)
    with pytest.raises(TypeError, match="mergesort: less: expected a function of two items, got 'up'"):
        mgpu.mergesort(x, less="up")
    with pytest.raises(TypeError, match="mergesort: less: expected a function of two items that gives a bool"):
        mgpu.mergesort(x, less=lambda a, b: a)
    with pytest.raises(TypeError, match="merge: less: expected a function of two items that gives a bool"):
        mgpu.merge(x, x, less=lambda a: a)
    with pytest.raises(ValueError, match="merge: descending: expected False, because less defines the order, got True"):
        mgpu.merge(x, x, less=by_size, descending=True)
    with pytest.raises(ValueError, match="segmented_sort: axis_name: expected None where less is given, got 'i'"):
        mgpu.segmented_sort(x, jnp.array([0]), less=by_size, axis_name="i")
    with pytest.raises(TypeError, match="sorted_search: haystack: expected the structure, dtypes and trailing shapes"):
        mgpu.sorted_search(x, jnp.arange(5), less=by_size)
    with pytest.raises(ValueError, match="join: null_equal: expected True where less is given, got False"):
        mgpu.join(x, x, size=3, less=by_size, null_equal=False)
    with pytest.raises(ValueError, match="set_union: a_values and b_values: expected both or neither"):
        mgpu.set_union(x, x, x, less=by_size)
    with pytest.raises(ValueError, match="mergesort: keys: expected arrays with a leading axis"):
        mgpu.mergesort(jnp.float32(1), less=by_size)


def lowered(monkeypatch, function, *arguments):
    """Returns the text of the program for a GPU."""
    monkeypatch.setattr(custom_operator, "has_kernels", lambda: True)
    if library.cuda_library is None:
        monkeypatch.setattr(library, "platforms", lambda: ("cpu", "cuda"))
    monkeypatch.setattr(library, "compiler_problem", lambda: "")
    comparator_ops._operation.cache_clear()
    comparator_ops._position_operation.cache_clear()
    text = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    comparator_ops._operation.cache_clear()
    comparator_ops._position_operation.cache_clear()
    return text


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="tests the lowering for a GPU on machines without one")
@pytest.mark.filterwarnings("ignore:jax_mgpu runs without its kernels on cuda")
def test_calls_for_cuda(monkeypatch) -> None:
    x, table = jnp.arange(10.0), jnp.arange(1000.0)
    sort = functools.partial(mgpu.mergesort, less=lambda a, b: a * table[7] < b)
    text = lowered(monkeypatch, sort, x)
    call = next(line for line in text.splitlines() if "jax_mgpu.sort_by_function" in line)
    assert "payload = 0 : i64" in call
    assert "word_bytes = 4 : i64" in call
    assert "captures = 1 : i64" in call
    pairs = lowered(monkeypatch, lambda x: mgpu.mergesort_indices((x, x), less=quotient), x)
    call = next(line for line in pairs.splitlines() if "jax_mgpu.sort_by_function" in line)
    assert "payload = 2 : i64" in call
    assert "word_bytes = 8 : i64" in call

    for count, attributes in (
        (3, ["sort_by_function", "payload = 0 : i64", "word_bytes = 16 : i64", "tensor<10x4xui32>"]),
        (4, ["sort_by_function", "payload = 0 : i64", "word_bytes = 16 : i64", "tensor<10x4xui32>"]),
        (5, ["sort_indices_by_function", "leaves = 5 : i64", "item_bytes = 20 : i64"]),
    ):
        sort = functools.partial(mgpu.mergesort, less=lambda a, b: a[0] * b[1] < table[7] * b[2])
        wide = lowered(monkeypatch, lambda x, sort=sort, count=count: sort((x,) * count), x)
        call = next(line for line in wide.splitlines() if "by_function" in line)
        for attribute in [*attributes, "captures = 1 : i64"]:
            assert attribute in call
    columns = lowered(monkeypatch, lambda x: mgpu.mergesort((x, x, x), less=lambda a, b: a[1] > b[1]), x)
    assert "by_function" not in columns

    def slow(a, b):
        return jax.lax.while_loop(lambda s: s[0] < 9, lambda s: (s[0] + 1, s[1]), (a, b))[0] < b

    assert "sort_by_function" not in lowered(monkeypatch, lambda x: mgpu.mergesort(x, less=slow), x)


@pytest.mark.long
def test_counts_of_a_batch_over_an_explicit_mesh() -> None:
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Explicit,), devices=devices)
    a, b = np.array([1, 4, 6, 9], np.float32), np.array([2, 3], np.float32)
    counts = np.arange(len(devices), dtype=np.int32) % 5
    with jax.set_mesh(mesh):
        placed = jax.device_put(counts, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
        merged = jax.vmap(lambda count: mgpu.merge(a, b, a_count=count, less=lambda x, y: x < y))(placed)
    for count, row in zip(counts, np.asarray(merged), strict=True):
        np.testing.assert_array_equal(row[: count + 2], np.sort(np.append(a[:count], b)))
