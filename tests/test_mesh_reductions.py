"""Reductions and scans over a mesh axis, against tests/oracle.py on the global array."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

import jax_mgpu as mgpu
from tests import data, mesh, oracle
from tests.test_rows import NAMES, agree, of_parts, parts, rows, takes
from tests.test_rows import scanned as every_prefix
from tests.test_scan import FORMS, OPERATORS, items, same
from tests.variants import long_but

pytestmark = pytest.mark.usefixtures("x64")

SLOTS, HEADS = 23, 9
TYPES = {"add": "float16", "mul": "int32", "min": "float32", "max": "uint8", "argmin": "float64", "argmax": "int16"}


def every_form(op, **options):
    """Returns a function that calls all four operations in all forms."""
    named = {**options, "axis_name": mesh.AXIS}

    def call(x, heads, count):
        return (
            mgpu.reduce(x, op, count=count, **named),
            [mgpu.scan(x, op, **form, count=count, return_total=True, **named) for form in FORMS],
            mgpu.segmented_reduce(x, heads, op, count=count, **named),
            [mgpu.segmented_scan(x, heads, op, **form, count=count, **named) for form in FORMS],
        )

    return call


def check(got, x, heads, op, counts):
    devices, dtype = len(counts), jnp.dtype(x.dtype)
    total, scans, segments, segmented = jax.device_get(got)
    same(total, np.repeat(oracle.reduce(x, op), devices))
    own = mesh.shard_heads(heads, counts, SLOTS, HEADS)[1]
    live_heads = np.sort(heads[heads < len(x)])
    nothing = oracle.identity(op, dtype)
    for form, (scanned, totals), restarted in zip(FORMS, scans, segmented, strict=True):
        same(mesh.gather(scanned, counts), oracle.scan(x, op, **form))
        same(totals, np.repeat(oracle.total(x, op), devices))
        same(mesh.gather(restarted, counts), oracle.segmented_scan(x, live_heads, op, **form))
        for results in (scanned, restarted):
            dead = np.concatenate([row[count:] for row, count in zip(results, counts, strict=True)])
            assert (dead == (-1 if op.startswith("arg") else 0)).all()
    same(mesh.gather(segments, own), oracle.segmented_reduce(x, live_heads, op))
    padding = np.concatenate([row[count:] for row, count in zip(segments, own, strict=True)])
    same(padding, np.full(len(padding), nothing, segments.dtype))


def problems(rng, devices, op, dtype):
    """Yields arrays with heads, for each distribution over devices."""
    for counts in mesh.counts_of(rng, devices, SLOTS):
        for m in (0, 1, 5, HEADS):
            total = int(counts.sum())
            x = items(rng, dtype, op, total)
            ends = np.cumsum(counts)
            heads = rng.integers(0, max(total, 1), m)
            if m == 5:  # some heads are at the boundaries of devices, and repeat
                heads = rng.choice(np.concatenate([[0], ends, heads]), m)
            heads = np.sort(heads[heads < total])
            sharded, _ = mesh.shard_heads(heads, counts, SLOTS, HEADS)
            yield x, heads, counts, (mesh.shard(x, counts, SLOTS), sharded, counts)


QUICK = [("add", 3), ("mul", 3), ("argmin", 3), ("argmin", 1), ("argmin", 8)]


@pytest.mark.parametrize(
    "case", long_but(QUICK, [*((op, 3) for op in OPERATORS), *(("argmin", p) for p in mesh.SIZES if p != 3)]), ids=str
)
def test_every_operator_and_number_of_devices(rng, case):
    op, devices = case
    call = mesh.by_vmap(every_form(op))
    for x, heads, counts, arguments in problems(rng, devices, op, TYPES[op]):
        check(call(*arguments), x, heads, op, counts)


@pytest.mark.parametrize("dtype", long_but(["int8", "uint32", "bfloat16", "float64"], data.KEY_DTYPES))
def test_every_type(rng, dtype):
    def call(x, count):
        named = {"count": count, "axis_name": mesh.AXIS}
        return [(mgpu.reduce(x, op, **named), mgpu.scan(x, op, **named)) for op in ("add", "min", "argmax")]

    call = mesh.by_vmap(call)
    for counts in mesh.counts_of(rng, 3, SLOTS):
        total = int(counts.sum())
        for small in (True, False):
            x = items(rng, dtype, "add" if small else "min", total)
            for op, (reduced, scanned) in zip(
                ("add", "min", "argmax"), call(mesh.shard(x, counts, SLOTS), counts), strict=True
            ):
                if op == "add" and not small and dtype in data.FLOAT_DTYPES:
                    continue
                same(reduced, np.repeat(oracle.reduce(x, op), 3))
                same(mesh.gather(scanned, counts), oracle.scan(x, op))


OF_ROWS = {"sum": "bool", "min": "bool", "prod": "int8", "argmax": "int16", "mean": "bfloat16", "and": "uint8"}


@pytest.mark.parametrize(
    "op", [pytest.param(op, marks=() if op in OF_ROWS or op == "logsumexp" else pytest.mark.long) for op in NAMES]
)
def test_rows_of_every_operator(rng, op):
    devices, dtype = 3, OF_ROWS.get(op, "float32" if takes(op, "float32") else "int32")
    form, back = {"exclusive": True, "reverse": False}, {"exclusive": False, "reverse": True}

    def call(x, heads, keys, count):
        named = {"count": count, "axis_name": mesh.AXIS}
        return (
            mgpu.reduce(x, op, **named),
            mgpu.segmented_reduce(x, heads, op, **named),
            mgpu.scan(x, op, **form, return_total=True, **named),
            mgpu.segmented_scan(x, heads, op, **back, **named),
            mgpu.reduce_by_key(keys, {"x": x, "column": x[:, 1]}, op, size=HEADS + 1, **named)[1:],
        )

    call = mesh.by_vmap(call)
    for _, heads, counts, (_, sharded, _) in problems(rng, devices, "add", "int32"):
        total = int(counts.sum())
        x, keys = rows(rng, dtype, op, total, 2), np.searchsorted(heads, np.arange(total), side="right")
        given = (mesh.shard(x, counts, SLOTS), sharded, mesh.shard(keys, counts, SLOTS), counts)
        whole, segments, (scanned_rows, last), restarted, (runs, found) = jax.device_get(call(*given))
        for result, widens in ((whole, True), (last, False)):
            agree(result, np.stack([oracle.combined(x, op, widens)] * devices), op)
        own = mesh.shard_heads(heads, counts, SLOTS, HEADS)[1]
        if len(heads):
            agree(mesh.gather(segments, own), of_parts(x, op, parts(total, heads)), op)
        if total == 0:
            continue
        agree(mesh.gather(scanned_rows, counts), every_prefix(x, op, **form), op)
        starts = np.unique(np.append(0, heads))
        places = [slice(i, stop) for a, stop in zip(starts, [*starts[1:], total], strict=True) for i in range(a, stop)]
        agree(mesh.gather(restarted, counts), of_parts(x, op, places, False), op)
        dead = np.concatenate([row[count:] for row, count in zip(restarted, counts, strict=True)])
        assert (dead == (-1 if op.startswith("arg") else 0)).all()
        np.testing.assert_array_equal(found, mesh.shard_heads(starts, counts, SLOTS, HEADS + 1)[1])
        expected = of_parts(x, op, parts(total, starts))
        agree(mesh.gather(runs["x"], found), expected, op)
        agree(mesh.gather(runs["column"], found), expected[:, 1], op)


@pytest.mark.parametrize("devices", (2, 4))
def test_on_devices(rng, devices):
    for op in ("add", "argmin"):
        call = mesh.by_devices(every_form(op), devices)
        for x, heads, counts, arguments in problems(rng, devices, op, "int32"):
            check(call(*arguments), x, heads, op, counts)


def composed(a, b):
    """Composes affine maps, which is associative but not commutative."""
    return {"scale": a["scale"] * b["scale"], "shift": a["shift"] * b["scale"] + b["shift"]}


def prefixes_of(x, firsts, reverse):
    """Returns the composition of affine maps from `firsts[i]` to item i."""
    turn = slice(None, None, -1 if reverse else 1)
    states = [x["scale"][turn], x["shift"][turn]]
    return oracle.prefixes(states, firsts, lambda a, b: [a[0] * b[0], a[1] * b[0][:, None] + b[1]])


@pytest.mark.parametrize("identity", (True, False), ids=["identity", "none"])
@pytest.mark.long
def test_functions(rng, identity):
    devices = 3
    one = {"scale": np.int32(1), "shift": np.zeros(2, np.int32)} if identity else None
    forms = FORMS if identity else FORMS[:2]

    def call(x, heads, count):
        named = {"count": count, "axis_name": mesh.AXIS}
        scans = [mgpu.scan(x, composed, **form, **named, identity=one) for form in forms]
        segmented = [mgpu.segmented_scan(x, heads, composed, **form, **named, identity=one) for form in forms]
        if not identity:
            return scans, segmented
        reduced = mgpu.reduce(x, composed, **named, identity=one)
        return scans, segmented, reduced, mgpu.segmented_reduce(x, heads, composed, **named, identity=one)

    forms = [form for form in forms if identity or not form["exclusive"]]
    call = mesh.by_vmap(call)
    for _, heads, counts, (_, sharded, _) in problems(rng, devices, "add", "int32"):
        total = int(counts.sum())
        x = {
            "scale": rng.integers(-3, 4, total).astype(np.int32),
            "shift": rng.integers(-9, 9, (total, 2)).astype(np.int32),
        }
        given = {name: mesh.shard(leaf, counts, SLOTS) for name, leaf in x.items()}
        got = jax.device_get(call(given, sharded, counts))
        begins = oracle.segment_firsts(total, heads) if total else np.zeros(0, int)

        for scanned, restarted, form in zip(got[0], got[1], forms, strict=True):
            for results, flags in ((scanned, np.zeros(0, int)), (restarted, heads)):
                firsts = oracle.segment_firsts(total, flags, form["reverse"]) if total else begins
                scale, shift = prefixes_of(x, firsts, form["reverse"])
                if form["exclusive"]:
                    at = firsts == np.arange(total)
                    scale = np.where(at, 1, np.append(1, scale)[:total])
                    shift = np.where(at[:, None], 0, np.concatenate([np.zeros((1, 2), int), shift])[:total])
                turn = slice(None, None, -1 if form["reverse"] else 1)
                np.testing.assert_array_equal(mesh.gather(results["scale"], counts), scale[turn])
                np.testing.assert_array_equal(mesh.gather(results["shift"], counts), shift[turn])
        if identity:
            scale, shift = prefixes_of(x, np.zeros(total, int), False)
            np.testing.assert_array_equal(got[2]["scale"], np.repeat(scale[-1] if total else 1, devices))
            np.testing.assert_array_equal(got[2]["shift"], np.tile(shift[-1] if total else np.zeros(2), (devices, 1)))
            own = mesh.shard_heads(heads, counts, SLOTS, HEADS)[1]
            ends = np.append(heads, total)[1:]
            scale, shift = prefixes_of(x, begins, False)
            for leaf, whole, nothing in (("scale", scale, 1), ("shift", shift[:, 0], 0)):
                expected = [whole[end - 1] if head < end else nothing for head, end in zip(heads, ends, strict=True)]
                segments = got[3][leaf] if leaf == "scale" else got[3][leaf][..., 0]
                np.testing.assert_array_equal(mesh.gather(segments, own), np.array(expected, int))


# ---- Derivatives, transformations -----------------------------------------------------------------------------------


LOSSES = {
    "add": lambda x, heads, count, **named: (
        mgpu.reduce(x, count=count, **named) * jnp.sin(x[0]),
        mgpu.scan(x, count=count, exclusive=True, return_total=True, **named),
        mgpu.segmented_reduce(x, heads, count=count, **named),
        mgpu.segmented_scan(x, heads, count=count, reverse=True, **named),
    ),
    "mul": lambda x, heads, count, **named: (
        mgpu.scan(x, "mul", count=count, **named),
        mgpu.segmented_reduce(x, heads, "mul", count=count, **named),
    ),
    "logsumexp": lambda x, heads, count, **named: (
        mgpu.reduce(jnp.stack([x, jnp.sin(x)], -1), "logsumexp", count=count, **named),
        mgpu.scan(jnp.stack([x, jnp.sin(x)], -1), "mean", count=count, **named),
        mgpu.segmented_scan(jnp.stack([x, jnp.sin(x)], -1), heads, "max", count=count, **named),
    ),
    "max": lambda x, heads, count, **named: (
        mgpu.reduce(x, "max", count=count, **named) * x[0],
        mgpu.segmented_scan(x, heads, "max", count=count, reverse=True, **named),
    ),
}


@pytest.mark.parametrize("op", long_but(["add", "logsumexp"], LOSSES))
@pytest.mark.long
def test_derivatives(rng, op):
    devices = 2
    heads = np.array([[0, 4, 4], [5, 9, 99]], np.int32)
    counts = np.array([8, 7], np.int32)
    x = rng.permutation(2 * 8).reshape(devices, 8) / 8 - 1
    call = lambda x, heads, count: LOSSES[op](x, heads, count, axis_name=mesh.AXIS)  # noqa: E731
    function = jax.vmap(call, axis_name=mesh.AXIS)
    check_grads(jax.jit(lambda x: function(x, heads, counts)), (x,), order=2, modes=["fwd", "rev"], eps=1e-4)

    def loss(x, results):
        return sum(jnp.sum(jnp.sin(r) * jnp.cos(jnp.arange(r.size).reshape(r.shape))) for r in jax.tree.leaves(results))

    expected = jax.jit(jax.grad(lambda x: loss(x, function(x, heads, counts))))(x)
    for options in ({}, {"check_vma": False}):
        sharded = mesh.by_devices(call, devices, **options)
        gradient = jax.jit(jax.grad(lambda x, f=sharded: loss(x, f(x, heads, counts))))
        np.testing.assert_allclose(gradient(x), expected, atol=1e-9)


def test_the_first_extremum_has_the_derivative():
    x = jnp.array([[1.0, 5, 5], [5, 2, 5]])
    ones = np.ones((2, 3))

    def on_devices(function):
        return np.asarray(jax.grad(lambda x: jax.vmap(function, axis_name=mesh.AXIS)(x).sum())(x))

    np.testing.assert_array_equal(
        on_devices(lambda x: mgpu.reduce(x, "max", axis_name=mesh.AXIS)), [[0, 2, 0], [0, 0, 0]]
    )
    np.testing.assert_array_equal(
        on_devices(lambda x: mgpu.scan(x, "max", axis_name=mesh.AXIS)), [[1, 5, 0], [0, 0, 0]]
    )
    reverse = on_devices(lambda x: mgpu.scan(x, "max", reverse=True, axis_name=mesh.AXIS))
    np.testing.assert_array_equal(reverse, [[0, 2, 1], [1, 0, 2]])
    assert ones.sum() == reverse.sum()


@pytest.mark.parametrize("op", ["mul", jnp.multiply])
def test_infinite_items_leave_derivatives_elsewhere_finite(op):
    """A device's state takes no part in derivatives of segments with which it is not combined."""
    x = np.array([[2.0, 3, 1], [np.inf, 1, 4], [1, np.inf, 5]])
    sharded_heads, heads = np.array([[0, 9], [0, 1], [1, 9]]), np.array([0, 3, 4, 7])
    options = {} if op == "mul" else {"identity": 1.0}

    def call(x, heads, **named):
        scans = [mgpu.segmented_scan(x, heads, op, **form, **options, **named) for form in FORMS]
        return scans, mgpu.segmented_reduce(x, heads, op, **options, **named)

    def gradient(function, finite, x):
        return jax.jit(lambda x: jax.vjp(function, x)[1](finite)[0])(x)

    scans, reduced = call(x.reshape(-1), heads)
    finite = [np.isfinite(results).astype(float) for results in scans], np.isfinite(reduced).astype(float)
    expected = gradient(lambda x: call(x, heads), finite, x.reshape(-1))
    sharded_finite = [part.reshape(3, 3) for part in finite[0]], np.array([[1.0, 0], [0, 1], [0, 0]])
    over = jax.vmap(functools.partial(call, axis_name=mesh.AXIS), axis_name=mesh.AXIS)
    got = gradient(lambda x: over(x, sharded_heads), sharded_finite, x)
    assert np.isfinite(got).sum() == 8  # the last item is in a segment that begins with an infinite one
    np.testing.assert_allclose(got.reshape(-1), expected)


def test_results_are_the_same_on_all_devices():
    """shard_map knows that the results are replicated, so out_specs need no axis."""
    call = functools.partial(mgpu.reduce, axis_name=mesh.AXIS)
    x = jnp.arange(8.0)
    reduced = jax.jit(jax.shard_map(call, mesh=mesh.mesh_of(2), in_specs=P(mesh.AXIS), out_specs=P()))
    assert reduced(x) == 28
    assert jax.jit(jax.grad(lambda x: reduced(x) ** 2))(x).tolist() == [56.0] * 8
    whole = jax.shard_map(
        lambda x: mgpu.scan(x, return_total=True, axis_name=mesh.AXIS)[1],
        mesh=mesh.mesh_of(2),
        in_specs=P(mesh.AXIS),
        out_specs=P(),
    )
    assert jax.jit(whole)(x) == 28


def test_axes_of_a_larger_mesh(rng):
    found = mesh.mesh_of(4).devices.reshape(2, 2)
    grid = jax.sharding.Mesh(found, ("rows", "columns"))
    x = rng.integers(-9, 9, (4, 6)).astype(np.int32)
    spec = P("rows", "columns")

    def scanned(axis_name):
        def call(x):
            return jax.vmap(lambda row: mgpu.scan(row, axis_name=axis_name))(x)

        return jax.jit(jax.shard_map(call, mesh=grid, in_specs=spec, out_specs=spec))(x)

    same(scanned("columns"), np.cumsum(x, 1, dtype=np.int32))
    both = jax.jit(
        jax.shard_map(
            lambda x: mgpu.scan(x, axis_name=("rows", "columns")),
            mesh=grid,
            in_specs=P(("rows", "columns")),
            out_specs=P(("rows", "columns")),
        )
    )
    same(both(x.reshape(-1)), np.cumsum(x.reshape(-1), dtype=np.int32))
    explicit = jax.sharding.Mesh(found, ("rows", "columns"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    with jax.set_mesh(explicit):
        along = jax.shard_map(
            jax.vmap(lambda row: mgpu.scan(row, "max", axis_name="columns")),
            in_specs=P(None, "columns"),
            out_specs=P(None, "columns"),
            axis_names={"columns"},
        )
        placed = jax.device_put(x, jax.sharding.NamedSharding(explicit, spec))
        same(jax.jit(along)(placed), np.maximum.accumulate(x, 1))


def test_same_bits_in_every_run(rng):
    x = rng.normal(size=(4, 1000)).astype(np.float32)
    call = mesh.by_vmap(lambda x: mgpu.scan(x, return_total=True, axis_name=mesh.AXIS))
    first = jax.device_get(call(x))
    for _ in range(3):
        again = jax.device_get(call(x))
        for a, b in zip(first, again, strict=True):
            oracle.same_bits(a, b)


def test_a_name_that_is_no_axis_is_an_error():
    with pytest.raises(ValueError, match=r"reduce: axis_name: expected the name of a mesh axis.*got 'nowhere'"):
        mgpu.reduce(jnp.arange(3), axis_name="nowhere")
    with pytest.raises(ValueError, match=r"scan: axis_name: expected the name of a mesh axis.*got \('no', 'where'\)"):
        mgpu.scan(jnp.arange(3), axis_name=("no", "where"))


def test_nothing_at_all():
    def call(x, heads):
        named = {"axis_name": mesh.AXIS}
        return (
            mgpu.reduce(x, "min", **named),
            mgpu.scan(x, return_total=True, **named),
            mgpu.segmented_reduce(x, heads, **named),
            mgpu.segmented_scan(x, heads, **named),
        )

    empty = (np.zeros((3, 0), np.float32), np.zeros((3, 2), np.int32))
    minima, (scanned, total), segments, segmented = mesh.by_vmap(call)(*empty)
    assert minima.tolist() == [np.inf] * 3
    assert total.tolist() == [0] * 3
    assert scanned.shape == segmented.shape == (3, 0)
    assert not segments.any()
    segments, segmented = mesh.by_vmap(call)(np.ones((3, 2), np.int32), np.zeros((3, 0), np.int32))[2:]
    assert segments.shape == (3, 0)
    assert segmented.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_a_function_of_nothing_needs_no_identity():
    def call(x):
        return [mgpu.scan(x, lambda a, b: a * 0.5 + b, axis_name=mesh.AXIS, **form) for form in ({}, {"reverse": True})]

    assert [x.shape for x in mesh.by_vmap(call)(np.zeros((3, 0), np.float32))] == [(3, 0)] * 2
