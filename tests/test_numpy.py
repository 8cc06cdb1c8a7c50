"""`jax_mgpu.numpy`, compared with `jax.numpy`: signatures, drawn calls, transformations."""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
import jax_mgpu.numpy as mnp
import jax_mgpu.ops
from jax_mgpu._src import drop_in
from jax_mgpu._src.core.compat import evaluate
from tests import dropin

# These calls take long to compile.
FEW_CASES = {"intersect1d", "setdiff1d", "setxor1d", "union1d", "unique", "unique_counts", "unique_values"}


@pytest.mark.parametrize("name", [*dropin.NUMPY, *dropin.OPS])
def test_signatures_are_those_of_jax(name):
    ours, theirs = dropin.pair(name)
    assert inspect.signature(ours) == inspect.signature(theirs)
    module = jax_mgpu.ops if name in dropin.OPS else mnp
    assert (ours.__module__, ours.__qualname__) == (module.__name__, name)
    assert pickle.loads(pickle.dumps(ours)) is ours


def test_every_name_is_tested():
    assert sorted(dropin.NUMPY) == mnp.__all__
    assert dropin.OPS.keys() < set(jax_mgpu.ops.__all__)


def test_all_other_names_are_those_of_jax():
    for name in ("arange", "float32", "linalg", "pi", "ndarray"):
        assert getattr(mnp, name) is getattr(jnp, name)
    assert set(dir(jnp)) <= set(dir(mnp))
    with pytest.raises(AttributeError, match="no_such_name"):
        mnp.no_such_name  # noqa: B018


@pytest.mark.parametrize("name", dropin.NUMPY)
def test_drawn_calls_are_like_those_of_jax(name):
    dropin.drawn(name, 80 if name in FEW_CASES else 200)()


def shown_by_examples(documented, numpy):
    """Returns the output of a JAX docstring's examples, which see this module as jnp."""
    namespace, shown = {"jax": jax, "jnp": numpy, "np": np}, io.StringIO()
    with contextlib.redirect_stdout(shown):
        for example in doctest.DocTestParser().get_examples(documented.__doc__):
            try:
                exec(compile(example.source, documented.__name__, "single"), namespace)
            except Exception as error:  # some examples show errors
                print(type(error).__name__, error)
    return shown.getvalue()


@pytest.mark.parametrize("name", dropin.NUMPY)
def test_examples_of_jax_show_the_same(name):
    _, theirs = dropin.pair(name)
    assert shown_by_examples(theirs, mnp) == shown_by_examples(theirs, jnp)


ROWS = np.random.default_rng(5).standard_normal((4, 1200)).astype(np.float32)
INTEGERS = np.random.default_rng(6).integers(0, 500, 1200).astype(np.int32)
NUMPY_CALLS = {
    "argsort": (lambda np: np.argsort(ROWS, axis=0), {}),
    "lexsort": (lambda np: np.lexsort((ROWS[0], INTEGERS)), {}),
    "unique": (lambda np: np.unique(INTEGERS, return_index=True, return_inverse=True, return_counts=True), {}),
    "union1d": (lambda np: np.union1d(INTEGERS[:600], INTEGERS[600:]), {}),
    "intersect1d": (lambda np: np.intersect1d(INTEGERS[:600], INTEGERS[600:]), {}),
    "setdiff1d": (lambda np: np.setdiff1d(INTEGERS[:600], INTEGERS[600:]), {}),
    "setxor1d": (lambda np: np.setxor1d(INTEGERS[:600], INTEGERS[600:]), {}),
    "isin": (lambda np: np.isin(INTEGERS.reshape(2, -1), INTEGERS[:80]), {}),
    "nonzero": (lambda np: np.nonzero(ROWS > 0.5), {}),
    "flatnonzero": (lambda np: np.flatnonzero(ROWS > 0.5), {}),
    "argwhere": (lambda np: np.argwhere(ROWS > 0.5), {}),
    "compress": (lambda np: np.compress(ROWS[0] > 0, ROWS, axis=1), {}),
    "extract": (lambda np: np.extract(ROWS > 0, ROWS), {}),
    "repeat": (lambda np: np.repeat(ROWS, INTEGERS % 3, axis=1), {}),
    "bincount": (lambda np: np.bincount(INTEGERS, minlength=600), {}),
    "cumsum": (lambda np: np.cumsum(ROWS, axis=1), {"rtol": 1e-4, "atol": 1e-4}),
    "median": (lambda np: np.median(ROWS, axis=1), {"rtol": 1e-6}),
    "quantile": (lambda np: np.quantile(ROWS, np.float32(0.3), axis=0), {"rtol": 1e-5, "atol": 1e-6}),
    "percentile": (lambda np: np.percentile(ROWS, 30.0, axis=1), {"rtol": 1e-5}),
    "histogram": (lambda np: np.histogram(ROWS, np.linspace(-1, 1, 9).astype(np.float32)), {}),
    "searchsorted": (lambda np: np.searchsorted(np.sort(ROWS[0]), ROWS[1:], side="right"), {}),
}


@pytest.mark.parametrize("name", NUMPY_CALLS)
def test_numpy_gives_the_same(name):
    call, tolerance = NUMPY_CALLS[name]
    with dropin.kernels_everywhere():
        got = call(mnp)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(call(np)), strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, **tolerance or {"rtol": 0})


def _uses_kernels(function, *arguments):
    return "mgpu_" in str(jax.make_jaxpr(function)(*arguments))


def test_kernels_run_where_they_are_faster():
    x, on_gpu = ROWS[0], mgpu.has_cuda()
    for function in (mnp.sort, mnp.argsort, mnp.median, lambda x: mnp.unique(x, size=9)):
        assert _uses_kernels(function, x)
        assert _uses_kernels(function, x[:10]) == on_gpu  # kernels on a CPU need a minimum of items
    for items, runs in ((10, False), (64, True), (2**15, True)):
        assert _uses_kernels(mnp.cumsum, jnp.zeros(items)) == runs
    assert not _uses_kernels(lambda x: mnp.sort(x.astype(complex)), x)
    assert _uses_kernels(lambda x: mnp.histogram(x)[0], x) == on_gpu  # a scatter is faster on a CPU
    with dropin.kernels_everywhere():
        assert _uses_kernels(lambda x: mnp.histogram(x)[0], x)


def test_few_short_rows_are_selected_by_jax_on_a_gpu(monkeypatch):
    monkeypatch.setattr(drop_in, "platforms", lambda: {"cuda"})
    for shape, runs in (((1024, 8), False), ((2048, 8), True), ((64, 16), True)):
        assert _uses_kernels(lambda x: mnp.top_k(x, 8), jnp.zeros(shape)) == runs


def test_running_products_are_those_of_jax_where_it_is_faster_on_a_gpu(monkeypatch):
    monkeypatch.setattr(drop_in, "platforms", lambda: {"cuda"})
    for shape, axis, runs in (((64, 2**14), 1, False), ((64, 2**14), 0, True), ((256, 2**12), 1, True)):
        assert _uses_kernels(lambda x, axis=axis: mnp.cumprod(x, axis=axis), jnp.zeros(shape)) == runs
    for n, runs in ((2**16, False), (2**20, True)):
        assert _uses_kernels(mnp.cumprod, jnp.zeros(n)) == runs


def test_running_sums_are_those_of_jax_where_it_is_as_fast_on_a_gpu(monkeypatch):
    monkeypatch.setattr(drop_in, "platforms", lambda: {"cuda"})
    for shape, axis, runs in (((16, 2**14), 1, False), ((64, 2**14), 1, True), ((64, 2**10), 1, True)):
        assert _uses_kernels(lambda x, axis=axis: mnp.cumsum(x, axis=axis), jnp.zeros(shape)) == runs
    for n, runs in ((2**18, False), (2**19, True)):
        assert _uses_kernels(mnp.cumsum, jnp.zeros(n)) == runs
        repeats = jnp.ones(n, np.int32)
        assert _uses_kernels(lambda x, r, n=n: mnp.repeat(x, r, total_repeat_length=n), repeats, repeats) == runs


def test_few_items_per_bin_are_counted_by_jax_on_a_gpu(monkeypatch):
    monkeypatch.setattr(drop_in, "platforms", lambda: {"cuda"})
    ids = jnp.zeros(2**18, np.int32)
    for bins, runs in ((2**12, True), (2**13 + 1, False)):
        assert _uses_kernels(lambda ids, bins=bins: mnp.bincount(ids, length=bins), ids) == runs
        assert _uses_kernels(lambda ids, bins=bins: jax_mgpu.ops.segment_sum(ids, ids, bins), ids) == runs
        assert _uses_kernels(lambda ids, bins=bins: jax_mgpu.ops.segment_sum(ids.astype(np.float32), ids, bins), ids)
        assert _uses_kernels(lambda ids, bins=bins: mnp.bincount(ids, ids.astype(np.float32), length=bins), ids)


def test_fill_values_that_compare_equal_are_not_the_same():
    x = jnp.zeros(300).at[3].set(1.0)
    for value in (-0.0, 0.0, 0, True, 1, 1.0):
        ours, theirs = (module.compress(x > 0, x, size=4, fill_value=value) for module in (mnp, jnp))
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


TENS = jnp.arange(300.0)
FILLS = {
    "setdiff1d, 2^40": lambda np: np.setdiff1d(TENS, TENS[:290], size=12, fill_value=2**40),
    "setdiff1d, 1j": lambda np: np.setdiff1d(TENS, TENS[:290], size=12, fill_value=1j),
    "setdiff1d, a tuple": lambda np: np.setdiff1d(TENS, TENS[:290], fill_value=(1,)),
    "setdiff1d, text": lambda np: np.setdiff1d(TENS, TENS[:290], fill_value="a"),
    "compress, an array": lambda np: np.compress(TENS > 290, TENS, fill_value=jnp.zeros(2)),
    "compress, None": lambda np: np.compress(TENS > 290, TENS, fill_value=None),
    "compress, None and a size": lambda np: np.compress(TENS > 290, TENS, size=9, fill_value=None),
    "compress, 1j": lambda np: np.compress(TENS > 290, TENS > 5, size=12, fill_value=1j),
    "extract, None": lambda np: np.extract(TENS > 290, TENS, fill_value=None),
    "extract, text": lambda np: np.extract(TENS > 290, TENS, fill_value="a"),
}


@pytest.mark.filterwarnings("ignore")  # JAX warns that it drops imaginary parts
@pytest.mark.parametrize("name", FILLS)
def test_fill_values_are_taken_or_refused_as_jax_does(name):
    call = FILLS[name]
    try:
        wanted = call(jnp)
    except Exception as error:
        with pytest.raises(type(error)):
            call(mnp)
    else:
        np.testing.assert_array_equal(call(mnp), wanted, strict=True)


def test_repeats_whose_sum_exceeds_32_bits():
    items = jnp.arange(100)
    for repeats, first in (
        (jnp.ones(100, np.int32).at[1].set(2**31 - 1), [0, 1, 1, 1, 1, 1]),
        (jnp.full(100, 2**30, np.int32).at[0].set(2), [0, 0, 1, 1, 1, 1]),
    ):
        for size in (6, 2**25):
            with dropin.kernels_everywhere():  # JAX's own function wraps around, on a GPU
                got = mnp.repeat(items, repeats, total_repeat_length=size)
            assert got[:6].tolist() == first
            assert got[6:].tolist() == [1] * (size - 6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("n", [1029, 3003])
def test_ranks_of_quantiles_are_rounded_as_in_jax(dtype, n):
    q, x = jnp.asarray(0.5, dtype), jnp.arange(float(n))[::-1]
    for method in ("linear", "lower", "higher", "midpoint", "nearest"):
        assert float(mnp.quantile(x, q, method=method)) == float(jnp.quantile(x, q, method=method))
    derivative = jax.grad(lambda q: mnp.quantile(x, q))(0.3)
    assert derivative.weak_type == jax.grad(lambda q: jnp.quantile(x, q))(0.3).weak_type


def test_an_unknown_number_of_quantiles():
    (k,) = jax.export.symbolic_shape("k")
    shape = jax.eval_shape(lambda q: mnp.quantile(ROWS[0], q), jax.ShapeDtypeStruct((k,), np.float32))
    assert shape.shape == (k,)


def test_a_number_of_bins_may_be_an_array(monkeypatch):
    monkeypatch.setattr(drop_in, "platforms", lambda: {"cuda"})
    for bins in (np.array(2), jnp.array(2)):
        assert mnp.histogram(TENS, bins)[0].tolist() == [150, 150]


def test_arrays_on_different_devices(devices):
    if len(devices) < 2:
        devices = [devices[0]] * 2
    items, repeats = jax.device_put(TENS, devices[0]), jax.device_put(jnp.arange(300) % 3, devices[1])
    for call in (
        lambda np: np.repeat(items, repeats),
        lambda np: np.compress(repeats > 0, items),
        lambda np: np.extract(repeats > 0, items),
    ):
        assert call(mnp).tolist() == call(jnp).tolist()


DERIVED = {
    "sort": lambda np, x: np.sort(x, axis=1, descending=True),
    "cumsum": lambda np, x: np.cumsum(x, axis=1),
    "cumprod": lambda np, x: np.cumprod(x[:, :40], axis=1),
    "median": lambda np, x: np.median(x, axis=1),
    "quantile": lambda np, x: np.quantile(x, jnp.array([0.1, 0.7]), axis=1),
    "percentile": lambda np, x: np.percentile(x, 40.0, axis=0),
    "compress": lambda np, x: np.compress(jnp.arange(1200) % 3 == 0, x, axis=1, size=500),
    "repeat": lambda np, x: np.repeat(x, jnp.array([2, 0, 3, 1]), axis=0, total_repeat_length=8),
    "take": lambda np, x: np.take(x, jnp.array([0, 2, 2, -1]), axis=0),
    "top_k": lambda np, x: (jax.lax.top_k if np is jnp else np.top_k)(x, 7)[0],
}


@pytest.mark.parametrize("name", DERIVED)
def test_derivatives_are_those_of_jax(name):
    call = DERIVED[name]

    def derivatives(module):
        def total(x):
            y = call(module, x)
            return jnp.sum(y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

        x, direction = jnp.asarray(ROWS), jnp.asarray(ROWS[::-1])
        return jax.jit(lambda: (jax.grad(total)(x), jax.jvp(lambda x: call(module, x), (x,), (direction,))))()

    with dropin.kernels_everywhere():
        got = derivatives(mnp)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(derivatives(jnp)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("call", [lambda np, x: np.unique(x), lambda np, x: np.nonzero(x), lambda np, x: np.isin(x, 1)])
def test_what_jit_refuses_is_refused_as_jax_refuses_it(call):
    try:
        wanted = jax.jit(lambda x: call(jnp, x))(ROWS[0])
    except Exception as error:
        with pytest.raises(type(error)):
            jax.jit(lambda x: call(mnp, x))(ROWS[0])
    else:
        assert jax.jit(lambda x: call(mnp, x))(ROWS[0]).tolist() == wanted.tolist()


def test_a_size_that_is_too_small_is_no_error_under_checks():
    x, lengths = ROWS[0], np.full(1200, 3, np.int32)
    calls = [lambda np: np.nonzero(x, size=9)[0], lambda np: np.compress(x > 0, x, size=9)]
    calls += [lambda np: np.unique(x, size=9), lambda np: np.repeat(x, lengths, total_repeat_length=70)]
    for call in calls:
        with mgpu.checks():
            assert call(mnp).tolist() == call(jnp).tolist()


SECOND = {"bincount": 0, "compress": 1, "extract": 1, "quantile": 0.5, "percentile": 50, "repeat": 2, "top_k": 3}
TWO_ARRAYS = {"compress", "extract", "intersect1d", "isin", "searchsorted", "setdiff1d", "setxor1d", "take", "union1d"}


@pytest.mark.parametrize("name", dropin.NUMPY)
def test_lists_are_refused_or_taken_as_jax_does(name):
    x = jnp.asarray(INTEGERS[:300])
    others = [x] if name in TWO_ARRAYS else [SECOND[name]] if name in SECOND and name != "bincount" else []
    ours, theirs = dropin.pair(name)
    for odd in ([x, x], (x, x), [1, 2, 3], 3, 2.5, None, "text", object()):
        for arguments in ([odd, *others], [x, *others[:-1], odd] if others else [odd]):
            wanted = dropin.outcome(theirs, dropin.Case(*arguments), "numpy")
            with dropin.kernels_everywhere():
                dropin.compare(dropin.outcome(ours, dropin.Case(*arguments), "numpy"), wanted, False)


def test_without_jit():
    with jax.disable_jit():
        assert mnp.sort(ROWS[0]).tolist() == np.sort(ROWS[0]).tolist()


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_on_a_mesh(devices, kind):
    """Kernels run within shard_map; arrays over Explicit axes are left to JAX."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(kind,), devices=devices[:2])
    spec = jax.sharding.PartitionSpec("x")
    x = jax.device_put(ROWS, jax.sharding.NamedSharding(mesh, spec))

    def sort(x):
        return mnp.sort(x, axis=1)

    with jax.set_mesh(mesh):
        for function in (sort, jax.shard_map(sort, mesh=mesh, in_specs=spec, out_specs=spec)):
            assert jax.jit(function)(x).tolist() == np.sort(ROWS, axis=1).tolist()


def test_a_batch_over_explicit_axes_meets_one_table(devices):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,), devices=devices[:2])
    table = jnp.asarray(INTEGERS[:150])
    with jax.set_mesh(mesh), dropin.kernels_everywhere():
        x = jax.device_put(INTEGERS.reshape(2, -1), jax.sharding.PartitionSpec("x"))
        got = jax.jit(jax.vmap(lambda row: mnp.isin(row, table)))(x)
    assert got.tolist() == np.isin(INTEGERS, INTEGERS[:150]).reshape(2, -1).tolist()


BATCHED = {**DERIVED, "repeat": lambda np, x: np.repeat(x, jnp.int32(x[:, 0] > 0) + 1, axis=0, total_repeat_length=8)}
# If no mesh is set, JAX cannot derive its own functions of these names.
NEED_MESH = ("cumsum", "compress", "take")
MESHES = [(name, is_set) for name in BATCHED for is_set in (True, False) if is_set or name not in NEED_MESH]


@pytest.mark.parametrize("name, is_set", MESHES, ids=[f"{name}-{'set' if on else 'unset'}" for name, on in MESHES])
def test_derivatives_of_a_batch_over_explicit_axes(devices, name, is_set):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,), devices=devices[:2])
    batch = jnp.stack([ROWS, ROWS[::-1]])

    def derivative(module, batch):
        def total(x):
            y = BATCHED[name](module, x)
            return jnp.sum(y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

        return jax.jit(jax.vmap(jax.grad(total)))(batch)

    wanted = derivative(jnp, batch)
    placed = jax.device_put(batch, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext(), dropin.kernels_everywhere():
        got = derivative(mnp, placed)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


PER_DEVICE = {
    "argsort": lambda np, x: np.argsort(x, axis=1),
    "cumprod": lambda np, x: np.cumprod(x[:, :40], axis=1),
    "histogram": lambda np, x: np.histogram(x)[0],
    "intersect1d": lambda np, x: np.intersect1d(x, x[:1], size=300),
    "isin": lambda np, x: np.isin(jnp.asarray(ROWS), x),
    "lexsort": lambda np, x: np.lexsort((jnp.asarray(INTEGERS), x[0])),
    "median": lambda np, x: np.median(x[:, :400], axis=1),
    "quantile": lambda np, x: np.quantile(jnp.asarray(ROWS), x[0, :2] ** 2 % 1, axis=1).T,
    "searchsorted": lambda np, x: np.searchsorted(jnp.sort(jnp.asarray(ROWS[0])), x),
    "setdiff1d": lambda np, x: np.setdiff1d(jnp.asarray(ROWS[0]), x, size=300),
    "setxor1d": lambda np, x: np.setxor1d(x[0], x[1], size=300),
    "top_k": lambda np, x: (jax.lax.top_k if np is jnp else np.top_k)(x, 7),
    "union1d": lambda np, x: np.union1d(jnp.asarray(ROWS[0]), x, size=300),
    "unique": lambda np, x: np.unique(x[0].astype(int), size=300, return_inverse=True, return_counts=True),
}


@pytest.mark.parametrize("name", PER_DEVICE)
def test_within_shard_map(devices, name):
    """Kernels run on each device, also where values that vary over the mesh meet values that do not."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices[:2])
    spec = jax.sharding.PartitionSpec("x")

    def results(module):
        function = jax.shard_map(lambda x: PER_DEVICE[name](module, x), mesh=mesh, in_specs=spec, out_specs=spec)
        return jax.tree.map(np.asarray, jax.jit(function)(ROWS))

    with dropin.kernels_everywhere():
        got = results(mnp)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(results(jnp)), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_bins_do_not_vary_over_a_mesh(devices):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices[:2])
    spec = jax.sharding.PartitionSpec("x")

    def edges(x):
        return mnp.histogram(x, jnp.arange(9.0))[1]

    with dropin.kernels_everywhere():
        got = jax.jit(jax.shard_map(edges, mesh=mesh, in_specs=spec, out_specs=jax.sharding.PartitionSpec()))(ROWS)
    assert got.tolist() == list(range(9))


def test_a_program_traced_elsewhere_runs_within_shard_map(devices):
    """Numbers in the program vary over the mesh as its arrays do."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices[:2])
    spec = jax.sharding.PartitionSpec("x")
    closed = jax.make_jaxpr(lambda x, y: jnp.where(x > 1.0, 2.0 * x + 1.0, jnp.clip(y, 0.5, 2.0)))(1.0, 2.0)

    def run(x):
        return evaluate(closed.jaxpr, closed.consts, x[0], 0.0)[0][None]

    got = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec))(jnp.arange(2.0) + 1.0)
    assert got.tolist() == [0.5, 5.0]
