"""Scans of rows along the first axis, each column alone, against tests/oracle.py."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_mgpu as mgpu
from jax_mgpu._src.core.operation import REGISTRY
from jax_mgpu._src.functions.operators import Kind
from tests import data, oracle
from tests.test_scan import FORMS, OPERATORS, items, random_heads, same
from tests.variants import long_but

pytestmark = pytest.mark.usefixtures("x64")

TILES = data.tile_sizes("scan_rows")


@functools.partial(jax.jit, static_argnames="op")
def every_form(x, heads, count, op):
    return [
        (
            mgpu.scan(x, op, **form, return_total=True),
            mgpu.scan(x, op, **form, count=count, return_total=True),
            mgpu.segmented_scan(x, heads, op, **form),
            mgpu.segmented_scan(x, heads, op, **form, count=count),
        )
        for form in FORMS
    ]


def some(columns):
    """Returns the first and last column, and some between them."""
    return sorted({0, columns - 1, *range(0, columns, 1 + columns // 9)})


def check_every_form(x, heads, count, op):
    nothing, live = np.zeros(0, np.int32), x[: max(0, count)]
    results = jax.device_get(every_form(x, heads, count, op))
    for form, ((scanned, total), (counted, live_total), segmented, both) in zip(FORMS, results, strict=True):
        for i in some(x.shape[1]):
            column = np.ascontiguousarray(x[:, i])
            same(scanned[:, i], oracle.scan(column, op, **form))
            same(total[i], oracle.total(column, op))
            same(counted[:, i], oracle.segmented_scan(column, nothing, op, **form, count=count))
            same(live_total[i], oracle.total(live[:, i], op))
            same(segmented[:, i], oracle.segmented_scan(column, heads, op, **form))
            same(both[:, i], oracle.segmented_scan(column, heads, op, **form, count=count))


@pytest.mark.parametrize("dtype", data.KEY_DTYPES)
@pytest.mark.parametrize("op", OPERATORS)
def test_matches_oracle(rng, op, dtype):
    for n, width in ((700, 3), (90, 70)):
        x = items(rng, dtype, op, n, width)
        check_every_form(x, random_heads(rng, n, 12), n - 30, op)


WIDTHS = [2, 3, 5, 8, 12, 16, 31, 32, 33, 40, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000]


@pytest.mark.parametrize("width", long_but((2, 33, 64, 257), WIDTHS))
@pytest.mark.parametrize("dtype", ["float32", "uint8", "float64", "bfloat16"])
def test_widths_and_edges_of_tiles(rng, dtype, width):
    largest = 200_000 // width
    sizes = [1, 2, *(n + by for n in TILES if n < largest for by in (-1, 0, 1))]
    cases = [(items(rng, dtype, "add", n, width), random_heads(rng, n, 1 + n // 5)) for n in sizes]
    for (x, heads), (segmented, scanned) in zip(cases, jax.device_get(forms_of_edges(cases)), strict=True):
        for i in some(width)[:4]:
            column = np.ascontiguousarray(x[:, i])
            same(scanned[:, i], oracle.scan(column, "add", exclusive=True))
            same(segmented[:, i], oracle.segmented_scan(column, heads, "add", reverse=True))


@jax.jit
def forms_of_edges(cases):
    """Scans all sizes in one program."""
    return [(mgpu.segmented_scan(x, heads, reverse=True), mgpu.scan(x, exclusive=True)) for x, heads in cases]


@pytest.mark.parametrize("width, n", [(2, 1_200_000), (64, 80_000), (100, 40_000)])
@pytest.mark.parametrize("reverse", [False, True])
def test_many_tiles(rng, width, n, reverse):
    x = rng.integers(-4, 5, (n, width)).astype(np.float32)
    heads = np.sort(rng.integers(0, n, n // 50)).astype(np.int32)
    form = {"reverse": reverse, "exclusive": reverse}
    run = jax.jit(lambda x: (mgpu.scan(x, **form), mgpu.segmented_scan(x, heads, **form)))
    scanned, segmented = jax.device_get(run(x))
    turned = x[::-1].astype(np.int64) if reverse else x.astype(np.int64)
    sums = np.cumsum(turned, 0) - turned * form["exclusive"]
    same(scanned, (sums[::-1] if reverse else sums).astype(np.float32))
    for i in some(width):
        same(segmented[:, i], oracle.segmented_scan(np.ascontiguousarray(x[:, i]), heads, "add", **form))


def test_sums_have_the_same_bits_in_every_run(rng):
    x = rng.normal(size=(3, 30_000, 5)).astype(np.float32)
    scan = jax.jit(jax.vmap(mgpu.scan))
    first = np.asarray(scan(x))
    for _ in range(3):
        np.testing.assert_array_equal(first, scan(x))
    if jax.default_backend() == "gpu":  # a batch's tiles are those of one problem
        np.testing.assert_array_equal(first[1], jax.jit(mgpu.scan)(x[1]))


@pytest.mark.parametrize("n, width", [(300, 7), (17, 4), (0, 3), (5, 64), (1500, 40)])
def test_batches(rng, n, width):
    x = rng.integers(-9, 10, (3, n, width)).astype(np.int32)
    heads = np.stack([random_heads(rng, n, 6) for _ in x])
    counts = np.array([n, n // 2, 0], np.int32)
    own = jax.jit(jax.vmap(lambda x, heads, count: mgpu.segmented_scan(x, heads, count=count, reverse=True)))
    shared = jax.jit(jax.vmap(lambda x: (mgpu.segmented_scan(x, heads[0]), mgpu.scan(x, "max", return_total=True))))
    segmented, (scanned, totals) = jax.device_get(shared(x))
    by_own = jax.device_get(own(x, heads, counts))
    for row in range(3):
        for i in some(width):
            column = np.ascontiguousarray(x[row, :, i])
            same(by_own[row, :, i], oracle.segmented_scan(column, heads[row], "add", reverse=True, count=counts[row]))
            same(segmented[row, :, i], oracle.segmented_scan(column, heads[0], "add"))
            same(scanned[row, :, i], oracle.scan(column, "max"))
            same(totals[row, i], oracle.total(column, "max"))


def test_heads_repeat_and_end_late(rng):
    x = rng.integers(-9, 10, (500, 6)).astype(np.int64)
    for listed in ([], [0], [499], [500, 500], [7] * 300, [-3, 2, 2, 9, 600], range(500)):
        heads = np.asarray(listed, np.int64)
        for reverse in (False, True):
            got = np.asarray(mgpu.segmented_scan(x, heads, reverse=reverse))
            for i in range(6):
                column = np.ascontiguousarray(x[:, i])
                same(got[:, i], oracle.segmented_scan(column, heads, "add", reverse=reverse))


def test_derivatives(rng):
    x, heads = rng.normal(size=(40, 3)), np.array([0, 7, 7, 30])
    for op in ("add", "mul", "max", "logsumexp"):
        for form in FORMS:
            check_grads(jax.jit(lambda x, op=op, form=form: mgpu.segmented_scan(x, heads, op, **form)), (x,), 1)
    total = jax.jit(lambda x: mgpu.scan(x, exclusive=True, return_total=True, count=30))
    check_grads(total, (x,), 2)
    check_grads(jax.jit(jax.vmap(mgpu.scan)), (x.reshape(4, 10, 3),), 2)


def test_columns_are_one_operation(rng):
    x, heads = rng.normal(size=(500, 64)), np.arange(0, 500, 9)

    def rows(x):
        return mgpu.segmented_scan(x, heads)

    assert "mgpu_scan_rows" in str(jax.make_jaxpr(rows)(x))
    assert "mgpu_scan_rows" in str(jax.make_jaxpr(jax.vmap(mgpu.scan, 1, 1))(x))
    gradient = str(jax.make_jaxpr(jax.grad(lambda x: jnp.sum(jnp.sin(mgpu.scan(x)))))(x))
    assert gradient.count("mgpu_scan_rows") == 2 and "mgpu_scan[" not in gradient and "transpose[" not in gradient
    if mgpu.has_cuda():
        text = jax.jit(rows).trace(x).lower(lowering_platforms=("cuda",)).as_text()
        assert "jax_mgpu.scan_rows" in text and "stablehlo.transpose" not in text
        small = jax.jit(jax.vmap(mgpu.scan)).trace(np.ones((100, 4, 4))).lower(lowering_platforms=("cuda",)).as_text()
        assert "jax_mgpu.scan_rows" not in small and "jax_mgpu.scan" in small


def test_the_operation_itself(rng):
    scan_rows = REGISTRY["scan_rows"]
    x, heads = rng.integers(0, 99, (2, 600, 9)), np.sort(rng.integers(0, 600, (2, 20)))
    for of in (heads, heads[0]):
        for form in FORMS:
            attributes = {"op": Kind.ARGMAX, **form, "total": True}
            run = jax.jit(lambda x, heads, attributes=attributes: scan_rows(x=x, heads=heads, **attributes))
            for found, row, h in zip(run(x, of)[0], x, np.broadcast_to(of, heads.shape), strict=True):
                for i in range(9):
                    same(found[:, i], oracle.segmented_scan(np.ascontiguousarray(row[:, i]), h, "argmax", **form))
