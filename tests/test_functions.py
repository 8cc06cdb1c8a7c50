"""Reductions and scans by callers' functions, compared with loops in NumPy."""

from __future__ import annotations

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_mgpu as mgpu
from jax_mgpu._src.core import library
from jax_mgpu._src.functions import compiled_operation, custom_operator
from tests.variants import long_but

U8, I32, U32 = np.uint8, np.int32, np.uint32


@pytest.fixture(autouse=True)
def primitives(monkeypatch):
    """Makes callers' functions use their primitives, even where these lower to plain JAX."""
    monkeypatch.setattr(custom_operator, "has_kernels", lambda: True)


def affine(a, b):
    return a[0] * b[0], a[1] * b[0] + b[1]


def matmul(a, b):
    return (a[:, :, None] * b[None]).sum(1, dtype=a.dtype)


def last_set(a, b):
    return {"set": a["set"] | b["set"], "x": jnp.where(b["set"], b["x"], a["x"])}


def np_last_set(a, b):
    return {"set": a["set"] | b["set"], "x": b["x"] if b["set"] else a["x"]}


def integers(rng, n, dtype, *shape):
    return rng.integers(0, 200, (n, *shape)).astype(dtype)


def odd(rng, n, dtype):
    """Draws odd numbers."""
    return integers(rng, n, dtype) | dtype(1)


def invertible(rng, n, size):
    """Draws matrices of determinant 1, whose products depend on all factors."""
    below, above = (np.tril(integers(rng, n, U32, size, size), -1) + np.eye(size, dtype=U32) for _ in range(2))
    return below @ above.transpose(0, 2, 1)


def mixed(rng, n):
    return {"set": rng.random(n) < 0.3, "x": rng.integers(0, 99, n).astype(I32)}


def with_table(table):
    return lambda a, b: a + b + table[(a & 1) * 0 + 3]


# A case draws items, and has a function, and the same function in NumPy or None if one serves both.
CASES = {
    "add": (lambda rng, n: integers(rng, n, I32), lambda a, b: a + b, None),
    "add bytes": (lambda rng, n: integers(rng, n, U8), lambda a, b: a + b, None),
    "maximum": (lambda rng, n: integers(rng, n, np.int16), jnp.maximum, np.maximum),
    "last": (lambda rng, n: integers(rng, n, np.uint16), lambda a, b: b, None),
    "first": (lambda rng, n: integers(rng, n, I32), lambda a, b: a, None),
    "affine": (lambda rng, n: (odd(rng, n, U32), integers(rng, n, U32)), affine, affine),
    "affine bytes": (lambda rng, n: (odd(rng, n, U8), integers(rng, n, U8)), affine, affine),
    "last set": (mixed, last_set, np_last_set),
    "matmul 2x2": (lambda rng, n: invertible(rng, n, 2), matmul, matmul),
    "matmul 3x3": (lambda rng, n: invertible(rng, n, 3), matmul, matmul),
    "matmul 4x4": (lambda rng, n: invertible(rng, n, 4), matmul, matmul),
    "matmul 8x8": (lambda rng, n: invertible(rng, n, 8), matmul, matmul),
    "gcd": (
        lambda rng, n: integers(rng, n, U32) * 12,
        lambda a, b: lax.while_loop(lambda s: s[1] != 0, lambda s: (s[1], s[0] % s[1]), (a, b))[0],
        np.gcd,
    ),
    "captured table": (
        lambda rng, n: integers(rng, n, I32),
        with_table(jnp.arange(500, dtype=jnp.int32)),
        lambda a, b: a + b + I32(3),
    ),
}


def pair_function(case):
    _, function, in_numpy = CASES[case]
    return in_numpy or function


def at(x, i):
    return jax.tree.map(lambda leaf: leaf[i], x)


def scanned(function, x, n, live, *, reverse=False, exclusive=False, identity=None):
    """Returns the scan of the first `live` items, and their total."""
    results = jax.tree.map(np.zeros_like, x)
    state = None
    with np.errstate(over="ignore"):
        for i in range(live)[:: -1 if reverse else 1]:
            before, state = state, at(x, i) if state is None else function(state, at(x, i))
            kept = (identity if before is None else before) if exclusive else state
            for to, value in zip(jax.tree.leaves(results), jax.tree.leaves(kept), strict=True):
                to[i] = value
    return results, identity if state is None else state


def expect_equal(got, wanted):
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(np.asarray(g), w)


@pytest.mark.parametrize("case", long_but(["add", "affine", "last set", "matmul 2x2", "gcd", "captured table"], CASES))
def test_scan_and_reduce(case, rng) -> None:
    make, function, _ = CASES[case]
    scan = jax.jit(lambda x: mgpu.scan(x, function))
    reduce = jax.jit(lambda x: mgpu.reduce(x, function))
    for n in (1, 5000) if "8x8" in case else (1, 300, 9001):
        x = make(rng, n)
        results, total = scanned(pair_function(case), x, n, n)
        expect_equal(scan(x), results)
        expect_equal(reduce(x), total)


@pytest.mark.parametrize("case", long_but(["affine", "last set"], ["add", "affine", "last set", "matmul 2x2"]))
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_flags(case, reverse, exclusive, rng) -> None:
    make, function, _ = CASES[case]
    n = 4500
    x = make(rng, n)
    identity = jax.tree.map(lambda leaf: leaf.dtype.type(7) * np.ones(leaf.shape[1:], leaf.dtype), x)

    @jax.jit
    def run(x, count, identity):
        flags = {"reverse": reverse, "exclusive": exclusive, "return_total": True}
        return mgpu.scan(x, function, count=count, identity=identity, **flags)

    reduce = jax.jit(lambda x, count, identity: mgpu.reduce(x, function, count=count, identity=identity))
    for live in (0, 1, 2048, 4097, n):
        results, total = scanned(
            pair_function(case), x, n, live, reverse=reverse, exclusive=exclusive, identity=identity
        )
        got, got_total = run(x, live, identity)
        expect_equal(got, results)
        expect_equal(got_total, total)
        if not reverse:
            expect_equal(reduce(x, live, identity), total)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("width", [2, 40])
def test_totals_of_rows_without_an_identity(width, reverse, rng) -> None:
    x = {"set": rng.random((300, width)) < 0.3, "x": rng.integers(0, 99, (300, width)).astype(I32)}
    columns = [jax.tree.map(lambda leaf, i=i: leaf[:, i], x) for i in range(width)]
    expected = [scanned(np_last_set, column, 300, 300, reverse=reverse) for column in columns]
    results, totals = ([parts[i] for parts in expected] for i in (0, 1))
    got, total = jax.jit(lambda x: mgpu.scan(x, last_set, reverse=reverse, return_total=True))(x)
    expect_equal(got, jax.tree.map(lambda *parts: np.stack(parts, 1), *results))
    expect_equal(total, jax.tree.map(lambda *parts: np.stack(parts), *totals))


@pytest.mark.parametrize(
    "case", long_but(["affine bytes", "matmul 3x3"], ["add", "affine", "affine bytes", "matmul 3x3"])
)
def test_batches(case, rng) -> None:
    make, function, _ = CASES[case]
    for rows, n in ((7, 5), (3, 1000), (2, 5003)):
        x = [make(rng, n) for _ in range(rows)]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *x)
        counts = rng.integers(1, n + 1, rows).astype(np.int32)
        wanted = [scanned(pair_function(case), row, n, int(live)) for row, live in zip(x, counts, strict=True)]
        identity = jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), x[0])
        got = jax.jit(jax.vmap(lambda x, c: mgpu.scan(x, function, count=c)))(stacked, counts)
        reduce = functools.partial(mgpu.reduce, op=function, identity=identity)
        totals = jax.jit(jax.vmap(lambda x, c, reduce=reduce: reduce(x, count=c)))(stacked, counts)
        for row in range(rows):
            expect_equal(at(got, row), wanted[row][0])
            expect_equal(at(totals, row), wanted[row][1])


def segments_of(heads, live):
    """Returns starts and ends of segments; position 0 starts one even without a head."""
    begins = sorted({0, *(int(head) for head in heads if head < live)})
    return list(zip(begins, [*begins[1:], live], strict=True)) if live else []


@pytest.mark.parametrize(
    "case", long_but(["affine", "last set"], ["add", "affine", "last set", "matmul 2x2", "matmul 8x8"])
)
@pytest.mark.parametrize("reverse", [False, True])
def test_segments(case, reverse, rng) -> None:
    make, function, _ = CASES[case]
    n, live = 3000, 2900
    x = make(rng, n)
    heads = np.sort(np.concatenate([rng.integers(0, n, 60), [5, 5, 2000, n, n + 7]])).astype(I32)
    identity = jax.tree.map(lambda leaf: np.full(leaf.shape[1:], 7).astype(leaf.dtype), x)

    @functools.partial(jax.jit, static_argnums=2)
    def run(x, heads, exclusive):
        flags = {"exclusive": exclusive, "identity": identity, "reverse": reverse}
        return mgpu.segmented_scan(x, heads, function, count=live, **flags)

    for exclusive in (False, True):
        wanted = jax.tree.map(np.zeros_like, x)
        for begin, end in segments_of(heads, live):
            part, _ = scanned(
                pair_function(case), at(x, slice(begin, end)), end - begin, end - begin,
                reverse=reverse, exclusive=exclusive, identity=identity,
            )  # fmt: skip
            for to, value in zip(jax.tree.leaves(wanted), jax.tree.leaves(part), strict=True):
                to[begin:end] = value
        expect_equal(run(x, heads, exclusive), wanted)
    if reverse:
        return
    ends = [*heads[1:], live]
    spans = [(min(int(begin), live), min(int(end), live)) for begin, end in zip(heads, ends, strict=True)]
    totals = [
        scanned(pair_function(case), at(x, slice(*span)), span[1] - span[0], span[1] - span[0], identity=identity)[1]
        for span in spans
    ]
    reduce = jax.jit(lambda x, heads: mgpu.segmented_reduce(x, heads, function, count=live, identity=identity))
    expect_equal(reduce(x, heads), jax.tree.map(lambda *leaves: np.stack(leaves), *totals))


@pytest.mark.parametrize("case", long_but(["affine bytes", "last set", "matmul 8x8"], CASES))
def test_segments_over_tiles(case, rng) -> None:
    make, function, _ = CASES[case]
    ends_between = (np.cumsum([600, 1200] * 5)[:, None] + np.arange(20)).ravel()
    for n, live, ends in (
        (9000, 9000, rng.integers(0, 9000, 700)),
        (9000, 8123, rng.integers(0, 9000, 700)),
        (9000, 8123, rng.integers(0, 9000, 4)),
        (9000, 8123, ends_between),
    ):
        x = make(rng, n)
        heads = np.sort(np.concatenate([ends, [7, 7, 7, 4096, 8992]])).astype(I32)
        spans = [(min(int(a), live), min(int(b), live)) for a, b in zip(heads, [*heads[1:], live], strict=True)]
        got = jax.jit(lambda x, heads, live: mgpu.segmented_reduce(x, heads, function, count=live, identity=ones(x)))(
            x, heads, live
        )
        wanted = [scanned(pair_function(case), at(x, slice(a, b)), b - a, b - a, identity=ones(x))[1] for a, b in spans]
        expect_equal(got, jax.tree.map(lambda *leaves: np.stack(leaves), *wanted))


def ones(x):
    return jax.tree.map(lambda leaf: np.ones(leaf.shape[1:], leaf.dtype), x)


def test_runs_of_keys_and_batches_of_segments(rng) -> None:
    n = 2000
    keys = np.repeat(rng.integers(0, 9, n // 4), rng.integers(1, 9, n // 4))[:n].astype(I32)
    n = len(keys)
    x = (odd(rng, n, U32), integers(rng, n, U32))
    begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    ends = np.append(begins[1:], n)
    totals = [scanned(affine, at(x, slice(b, e)), e - b, e - b)[1] for b, e in zip(begins, ends, strict=True)]
    firsts, reduced, count = mgpu.reduce_by_key(keys, x, affine, size=len(begins))
    assert count == len(begins)
    expect_equal(firsts, keys[begins])
    expect_equal(reduced, [np.array(leaf) for leaf in zip(*totals, strict=True)])

    stacked = jax.tree.map(lambda leaf: leaf[: n // 3 * 3].reshape(3, -1), x)
    heads = np.array([[0, 9, 300], [4, 4, 5], [1, 100, 10**6]], I32)
    got = jax.vmap(lambda x, heads: mgpu.segmented_scan(x, heads, affine))(stacked, heads)
    for row in range(3):
        expect_equal(at(got, row), mgpu.segmented_scan(at(stacked, row), heads[row], affine))


def test_many_items(rng) -> None:
    n = 3_000_017
    x = (np.where(rng.random(n) < 0.001, 3, 1).astype(U32), integers(rng, n, U32))
    with np.errstate(over="ignore"):
        factor = np.multiply.accumulate(x[0], dtype=U32)
        inverse = np.multiply.accumulate(np.where(x[0] == 3, U32(0xAAAAAAAB), U32(1)), dtype=U32)  # 1 / 3 modulo 2^32
        wanted = factor, factor * np.add.accumulate(x[1] * inverse, dtype=U32)
        heads = np.array([0, 17, 2_000_003, 2_000_004], I32)
        before = np.repeat(heads, np.diff(np.append(heads, n))) - 1
        of_segments = factor * np.where(before < 0, U32(1), inverse[before])
        of_segments = of_segments, wanted[1] - np.where(before < 0, U32(0), wanted[1][before]) * of_segments
    expect_equal(mgpu.scan(x, affine), wanted)
    expect_equal(mgpu.reduce(x, affine), [leaf[-1] for leaf in wanted])
    expect_equal(mgpu.segmented_scan(x, heads, affine), of_segments)
    lasts = np.append(heads[1:], n) - 1
    expect_equal(
        mgpu.segmented_reduce(x, heads, affine, identity=(U32(1), U32(0))), [leaf[lasts] for leaf in of_segments]
    )


def test_traced_captures(rng) -> None:
    x = integers(rng, 3000, I32)

    def run(x, k):
        return mgpu.scan(x, lambda a, b: a + b + k)

    compiled = jax.jit(run)
    for k in (0, 5):
        expect_equal(compiled(x, k), np.cumsum(x + k, dtype=I32) - k)
    many = jax.jit(jax.vmap(run, (None, 0)))(x, jnp.arange(3))
    expect_equal(many, [np.stack([np.cumsum(x + k, dtype=I32) - k for k in range(3)])])
    rows = jax.jit(jax.vmap(run, (0, None)))(x.reshape(3, 1000), 2)
    expect_equal(rows, np.cumsum(x.reshape(3, -1) + 2, 1, dtype=I32) - 2)


def test_captures_leak_no_tracers() -> None:
    x = np.arange(40, dtype=I32)
    with jax.checking_leaks():
        jax.jit(lambda x, k: mgpu.scan(x, lambda a, b: a + b + k))(x, 3)
        jax.jit(lambda x, k: mgpu.reduce(x, map=lambda item: item + k))(x, 4)
        jax.jit(lambda x, k: mgpu.mergesort(x, less=lambda a, b: a * k < b * k))(x, -1)


def test_floats_are_the_same_in_every_run(rng) -> None:
    x = (rng.random(200_000).astype(np.float32), rng.normal(size=200_000).astype(np.float32))
    for run in (jax.jit(lambda x: mgpu.scan(x, affine)), jax.jit(lambda x: mgpu.reduce(x, affine))):
        first = jax.device_get(run(x))
        for _ in range(3):
            expect_equal(run(x), first)
    wide = [leaf.astype(np.float64) for leaf in x]
    total = 0.0
    for a, b in zip(*wide, strict=True):
        total = total * a + b
    np.testing.assert_allclose(mgpu.reduce(x, affine)[1], total, rtol=1e-4, atol=1e-4)


def test_derivatives(rng) -> None:
    x = (rng.random(50).astype(np.float32), rng.normal(size=50).astype(np.float32))

    def loss(scan):
        return lambda x: sum(jnp.sum(jnp.sin(leaf)) for leaf in scan(x))

    ours, plain = loss(lambda x: mgpu.scan(x, affine)), loss(lambda x: lax.associative_scan(jax.vmap(affine), x))
    got, wanted = (jax.jit(lambda x, f=f: jax.jvp(jax.grad(f), (x,), (x,)))(x) for f in (ours, plain))
    for tolerance, *pair in zip((1e-4, 1e-3), got, wanted, strict=True):
        for g, w in zip(*pair, strict=True):
            np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance / 10)


def largest(a, b):
    takes_b = jnp.max(b[1]) >= jnp.max(a[1])
    return jnp.where(takes_b, b[0], a[0]), jnp.where(takes_b, b[1], a[1])


@pytest.mark.parametrize("function", [affine, largest])
def test_columns_of_large_items(rng, function) -> None:
    n, width = 300, 24
    x = (rng.random((n, width)).astype(np.float32), rng.normal(size=(n, 4, 6)).astype(np.float32))
    x = (x[0].reshape(n, 4, 6), x[1])
    heads = np.array([0, 40, 40, 190], np.int32)
    forms = [{}, {"reverse": True}]

    def run(x):
        return [(mgpu.scan(x, function, **form), mgpu.segmented_scan(x, heads, function, **form)) for form in forms]

    def expected(turn, starts):
        state, results = None, [None] * n
        for i in turn:
            item = tuple(leaf[i].astype(np.float64) for leaf in x)
            state = item if state is None or i in starts else tuple(map(np.asarray, function(state, item)))
            results[i] = state
        return [np.stack(leaf) for leaf in zip(*results, strict=True)]

    for form, pair in zip(forms, jax.jit(run)(x), strict=True):
        turn = range(n)[::-1] if form else range(n)
        for got, starts in zip(pair, ((), (39, 189) if form else (40, 190)), strict=True):
            for leaf, wanted in zip(got, expected(turn, starts), strict=True):
                np.testing.assert_allclose(leaf, wanted, rtol=2e-4, atol=1e-5)
    names = str(jax.make_jaxpr(run)(x))
    assert ("width=24" in names) == (function is affine)


@pytest.mark.usefixtures("lowers_for_cuda")
@pytest.mark.skipif(jax.default_backend() == "gpu", reason="tests the lowering for a GPU on machines without one")
def test_calls_for_cuda() -> None:
    x, table = jnp.arange(10.0), jnp.arange(1000.0)

    def run(x, table):
        return mgpu.scan(x, lambda a, b: a * b + table[7])

    text = jax.jit(run).trace(x, table).lower(lowering_platforms=("cuda",)).as_text()
    call = next(line for line in text.splitlines() if "jax_mgpu.scan_by_function" in line)
    assert "function combine" in call
    assert "f32 load 0 7" in call
    assert "captures = 1 : i64" in call


def choose_later(a, b):
    """Returns the greater number and its random key."""
    return jnp.maximum(a[0], b[0]), jnp.where(a[0] > b[0], a[1], b[1])


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_random_keys_are_chosen(impl, rng) -> None:
    x = rng.permutation(300).astype(I32)
    keys = jax.random.split(jax.random.key(3, impl=impl), 300)
    words = np.asarray(jax.random.key_data(keys))
    best = np.array([np.argmax(x[: i + 1]) for i in range(len(x))])
    numbers, chosen = jax.jit(lambda x, keys: mgpu.scan((x, keys), choose_later))(x, keys)
    np.testing.assert_array_equal(numbers, x[best])
    assert chosen.dtype == keys.dtype
    np.testing.assert_array_equal(jax.random.key_data(chosen), words[best])
    _, last = jax.jit(lambda x, keys: mgpu.reduce((x, keys), choose_later))(x, keys)
    np.testing.assert_array_equal(jax.random.key_data(last), words[best[-1]])


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_random_keys_in_kernels(impl) -> None:
    keys = jax.random.split(jax.random.key(3, impl=impl), 5)
    x = jnp.arange(5)

    def runs_in_a_kernel(function, x):
        return "scan_by_function" in str(jax.make_jaxpr(lambda x: mgpu.scan(x, function))(x))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert runs_in_a_kernel(lambda a, b: b, keys)
        assert runs_in_a_kernel(choose_later, (x, keys))
        assert not runs_in_a_kernel(lambda a, b: jax.random.fold_in(a, 1), keys)
        assert not runs_in_a_kernel(lambda a, b: (a[0], jnp.stack([a[1], b[1]])[0]), (x, keys))
        assert not runs_in_a_kernel(lambda a, b: jnp.where(True, keys[0], b), keys)


@pytest.mark.usefixtures("lowers_for_cuda")
@pytest.mark.skipif(jax.default_backend() == "gpu", reason="tests the lowering for a GPU on machines without one")
def test_without_a_compiler(monkeypatch) -> None:
    monkeypatch.setattr(library, "compiler_problem", lambda: "NVRTC is missing: pip install it")
    monkeypatch.setattr(compiled_operation, "_WARNED", set())
    traced = jax.jit(lambda x: mgpu.scan(x, lambda a, b: a * b + 1)).trace(jnp.arange(10.0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "custom_call" not in text
    assert [str(w.message) for w in caught if "pip install it" in str(w.message)]


def columns_of(combine, x, heads, count, reverse):
    """Scans columns of pairs by a loop over rows; rows past the count are not compared."""
    results = [np.array(leaf) for leaf in x]
    rows = range(count - 2, -1, -1) if reverse else range(1, count)
    starts = {int(head) for head in heads}
    for row in rows:
        before = row + 1 if reverse else row - 1
        if (before if reverse else row) in starts:
            continue
        combined = combine([leaf[before] for leaf in results], [leaf[row] for leaf in x])
        for leaf, value in zip(results, combined, strict=True):
            leaf[row] = value
    return results


WIDTHS = [1, 2, 3, 5, 8, 31, 32, 33, 64, 65, 200, 256, 300, 1000, 1024]


@pytest.mark.parametrize("width", long_but([2, 33, 200], WIDTHS))
@pytest.mark.parametrize("dtype", [U8, np.uint16, U32, np.uint64])
@pytest.mark.usefixtures("x64")
def test_functions_of_rows(rng, width, dtype):
    for n in (1, 2, 40, 700, 3000 if width < 300 else 350):
        x = integers(rng, n, dtype, width) | dtype(1), integers(rng, n, dtype, width)
        heads = np.unique(rng.integers(0, n, 1 + n // 30)).astype(I32)
        count = max(n - n // 5, 1)
        for reverse in (False, True):
            for starts, live in (([], n), (heads, n), (heads, count), ([], count)):
                expected = columns_of(affine, x, starts, live, reverse)
                if len(starts):
                    got = mgpu.segmented_scan(x, jnp.asarray(starts), affine, reverse=reverse, count=live)
                else:
                    got = mgpu.scan(x, affine, reverse=reverse, count=live)
                expect_equal([leaf[:live] for leaf in got], [leaf[:live] for leaf in expected])
    rows = tuple(np.stack([leaf[i : i + 300] for i in (0, 7, 50)]) for leaf in x)
    counts = np.array([300, 1, 77], I32)
    batched = jax.vmap(lambda x, count: mgpu.scan(x, affine, count=count))(rows, counts)
    for i, live in enumerate(counts):
        expected = columns_of(affine, [leaf[i] for leaf in rows], [], live, False)
        expect_equal([leaf[i, :live] for leaf in batched], [leaf[:live] for leaf in expected])


@pytest.mark.parametrize("width, n", [(2, 900_000), (64, 60_000)])
@pytest.mark.parametrize("reverse", [False, True])
def test_functions_of_rows_in_many_tiles(rng, width, n, reverse):
    factors, terms = rng.choice([-1, 1], (n, width)), rng.integers(-4, 5, (n, width))
    heads, count = np.array([0, n // 3, n // 2]), n - n // 4
    x = tuple(leaf.astype(np.float32) for leaf in (factors, terms))
    run = jax.jit(lambda *x: mgpu.scan(x, affine, reverse=reverse, count=count))
    segmented = jax.jit(lambda *x: mgpu.segmented_scan(x, heads.astype(I32), affine, reverse=reverse, count=count))
    for got, starts in ((run(*x), heads[:1]), (segmented(*x), heads)):
        for begin, end in zip(starts, [*starts[1:], count], strict=True):
            rows = slice(end - 1, begin - 1 if begin else None, -1) if reverse else slice(begin, end)
            signs = np.cumprod(factors[rows], 0)  # each is its own inverse
            expected = signs, signs * np.cumsum(signs * terms[rows], 0)
            expect_equal([np.asarray(leaf)[rows] for leaf in got], [leaf.astype(np.float32) for leaf in expected])


def test_functions_of_rows_of_floats(rng):
    x = [rng.normal(size=(5000, 24)).astype(np.float32) * scale for scale in (0.5, 1.0)]
    got = jax.device_get(jax.jit(lambda *x: mgpu.scan(x, affine))(*x))
    expect_equal(got, jax.device_get(jax.jit(lambda *x: mgpu.scan(x, affine))(*x)))
    expected = columns_of(affine, [leaf.astype(np.float64) for leaf in x], [], 5000, False)
    for leaf, exact in zip(got, expected, strict=True):
        np.testing.assert_allclose(leaf, exact, rtol=1e-4, atol=1e-4)
    halves = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), tuple(x))
    mixed = mgpu.scan((jnp.asarray(x[0]), halves[1]), lambda a, b: (a[0] * b[0], a[1] + b[1]))
    assert mixed[1].dtype == jnp.bfloat16
    states = mgpu.scan(tuple(x), affine, emit=lambda state: state[1])
    expect_equal([states], [got[1]])
    gradient = jax.grad(lambda a, b: jnp.sum(mgpu.scan((a, b), affine)[1]), (0, 1))(*x)
    assert all(np.isfinite(leaf).all() for leaf in gradient)


@pytest.mark.parametrize("width, n", [(1, 3000), (2, 60_000), (5, 9000), (33, 3000), (64, 8000), (300, 700)])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_rows_in_many_tiles(rng, width, n, reverse):
    problems, dtype = (2 if n < 5000 else 1), (jnp.bfloat16 if width in (5, 64) else jnp.float32)
    factors, terms = rng.choice([-1, 1], (problems, n, width)), rng.integers(-1, 2, (problems, n, width))
    terms *= rng.random(terms.shape) < 0.02  # bfloat16 holds integers up to 256
    used = (np.arange(n) % 50 == 0)[:, None] & (rng.random((n, width)) < 0.5)
    live = n - n // 4

    def loss(factors, terms):
        states = mgpu.scan((factors, terms), affine, reverse=reverse, count=live, emit=lambda state: state[1])
        return jnp.sum(states * used.astype(dtype), dtype=jnp.float32)

    given = jnp.asarray(factors, dtype), jnp.asarray(terms, dtype)
    got = jax.jit(jax.vmap(jax.grad(loss, (0, 1))))(*given)
    for problem in range(problems):
        a, b, weights = (x[:live][:: -1 if reverse else 1] for x in (factors[problem], terms[problem], used))
        signs = np.cumprod(a, 0)
        states = signs * np.cumsum(signs * b, 0)
        of_terms = signs * np.cumsum((signs * weights)[::-1], 0)[::-1]
        of_factors = of_terms * np.concatenate([0 * states[:1], states[:-1]])
        tolerance = 1e-6 if dtype == jnp.float32 else 3e-2
        for leaf, want in zip(got, (of_factors, of_terms), strict=True):
            values = np.asarray(leaf[problem], np.float32)
            assert not values[live:].any()
            values = values[:live][:: -1 if reverse else 1]
            np.testing.assert_allclose(values, want, rtol=tolerance, atol=tolerance * np.abs(want).max())
