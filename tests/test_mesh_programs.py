"""Programs over a mesh axis."""

from __future__ import annotations

import dataclasses
import inspect
import warnings

import jax
import jax.export
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_mgpu as mgpu
from jax_mgpu._src.ops.sort_strategy import LONG_PERMUTATION
from tests import budgets, mesh

SLOTS = 1 << 12
KEYS = {"axis_name": mesh.AXIS}


def ranges_of(i):
    """Returns Segments of one item each."""
    return mgpu.Segments.from_ranges(2 * i, 2 * i + 1)


# An AbstractDevice has two fields or three, by JAX's version.
FIELDS = len(dataclasses.fields(jax.sharding.AbstractDevice))
CPU, GPU = (jax.sharding.AbstractDevice(*(kind, None, kind)[:FIELDS]) for kind in ("cpu", "gpu"))

# The calls of TWO have two operands, so twice as many items.
ONE = {
    "argsort": lambda k, i, c: mgpu.argsort(k, count=c, **KEYS),
    "bincount": lambda k, i, c: mgpu.bincount(i, SLOTS, k, **KEYS),
    "bulk_remove": lambda k, i, c: mgpu.bulk_remove(k, i, count=c, size=SLOTS, **KEYS),
    "from_dense": lambda k, i, c: mgpu.from_dense(k.reshape(-1, 8), i[: k.shape[0] // 8], size=SLOTS, **KEYS),
    "group_by": lambda k, i, c: mgpu.group_by(k, (i, k, i), ("add", "last", "argmax"), size=SLOTS, count=c, **KEYS),
    "group_by, ranks": lambda k, i, c: mgpu.group_by(i, (k, i), ("median", "nunique"), size=SLOTS, count=c, **KEYS),
    "histogram": lambda k, i, c: mgpu.histogram(k, np.arange(9, dtype=np.float32), **KEYS),
    "interval_expand": lambda k, i, c: mgpu.interval_expand(k, i, SLOTS, **KEYS),
    "interval_gather": lambda k, i, c: mgpu.interval_gather(k, i, i, SLOTS, **KEYS),
    "interval_move": lambda k, i, c: mgpu.interval_move(k, i, i, i, k, **KEYS),
    "interval_scatter": lambda k, i, c: mgpu.interval_scatter(k, i, i, k, **KEYS),
    "join_columns": lambda k, i, c: mgpu.join_columns(mgpu.JoinResult(i, i, c), k, **KEYS),
    "load_balance_search": lambda k, i, c: mgpu.load_balance_search(i, SLOTS, return_rank=True, **KEYS),
    "locality_sort": lambda k, i, c: mgpu.locality_sort(k, **KEYS),
    "locality_sort_indices": lambda k, i, c: mgpu.locality_sort_indices(k, **KEYS),
    "join_columns, derivative": lambda k, i, c: jax.grad(
        lambda k: mgpu.join_columns(mgpu.JoinResult(i, i, c), k, **KEYS).a[3]
    )(k),
    "mergesort": lambda k, i, c: jax.grad(lambda k: mgpu.mergesort(k, **KEYS)[3])(k),
    "mergesort_indices": lambda k, i, c: mgpu.mergesort_indices(k, even=False, **KEYS),
    "partition": lambda k, i, c: mgpu.partition({"k": k, "i": i}, k > 0, count=c, **KEYS),
    "quantile": lambda k, i, c: mgpu.quantile(k, [0.1, 0.5], count=c, **KEYS),
    "rank": lambda k, i, c: mgpu.rank(k, count=c, **KEYS),
    "rank, segments": lambda k, i, c: mgpu.rank(k, i, "dense", count=c, **KEYS),
    "reduce": lambda k, i, c: mgpu.reduce(k, "argmax", count=c, **KEYS),
    "reduce_by_id": lambda k, i, c: mgpu.reduce_by_id(k, i, SLOTS, count=c, **KEYS),
    "reduce_by_id, few": lambda k, i, c: mgpu.reduce_by_id(k, i, SLOTS // 16, "argmin", **KEYS),
    "reduce_by_key": lambda k, i, c: mgpu.reduce_by_key(k, i, size=SLOTS, **KEYS),
    "run_starts": lambda k, i, c: mgpu.run_starts(k, i, count=c, **KEYS),
    "scan": lambda k, i, c: mgpu.scan(k, exclusive=True, count=c, **KEYS),
    "segment_ids": lambda k, i, c: mgpu.segment_ids(i, SLOTS, count=c, **KEYS),
    "segmented_log_softmax": lambda k, i, c: mgpu.segmented_log_softmax(k, i, count=c, **KEYS),
    "segmented_reduce": lambda k, i, c: mgpu.segmented_reduce(k, i, "max", count=c, **KEYS),
    "scan_by_key": lambda k, i, c: mgpu.scan_by_key(i, k, count=c, **KEYS),
    "segmented_scan": lambda k, i, c: mgpu.segmented_scan(k, i, count=c, **KEYS),
    "segmented_shift": lambda k, i, c: mgpu.segmented_shift(k, i, 3, count=c, **KEYS),
    "segmented_softmax": lambda k, i, c: mgpu.segmented_softmax(k, i, count=c, **KEYS),
    "segmented_sort": lambda k, i, c: mgpu.segmented_sort(k, i, i, count=c, **KEYS),
    "segmented_sort_indices": lambda k, i, c: mgpu.segmented_sort_indices(k, i, **KEYS),
    "select": lambda k, i, c: mgpu.select(k, k > 0, count=c, **KEYS),
    "select_indices": lambda k, i, c: mgpu.select_indices(k > 0, count=c, **KEYS),
    "segmented_quantile": lambda k, i, c: mgpu.segmented_quantile(k, i[: k.shape[0] // 8], [0.1, 0.5], count=c, **KEYS),
    "segmented_reduce, ranges": lambda k, i, c: mgpu.segmented_reduce(k, ranges_of(i), **KEYS),
    "segmented_scan, ranges": lambda k, i, c: mgpu.segmented_scan(k, ranges_of(i), **KEYS),
    "segmented_softmax, ranges": lambda k, i, c: mgpu.segmented_softmax(k, ranges_of(i), **KEYS),
    "segmented_sort, ranges": lambda k, i, c: mgpu.segmented_sort(k, ranges_of(i), **KEYS),
    "segmented_top_k": lambda k, i, c: mgpu.segmented_top_k(k, i[: k.shape[0] // 4], 4, count=c, **KEYS),
    "take_segments": lambda k, i, c: mgpu.take_segments(k, i, i, size=SLOTS, count=c, **KEYS),
    "to_dense": lambda k, i, c: mgpu.to_dense(k, i[: k.shape[0] // 8], 8, count=c, **KEYS),
    "sort": lambda k, i, c: mgpu.sort(k, {"k": k, "i": i}, count=c, **KEYS),
    "sort, columns": lambda k, i, c: mgpu.sort((k, i), count=c, **KEYS),
    "top_k": lambda k, i, c: mgpu.top_k(k, 100, count=c, **KEYS)[:2],
    "unique": lambda k, i, c: mgpu.unique(k, size=SLOTS, return_inverse=True, return_counts=True, count=c, **KEYS),
}
TWO = {
    "asof_join": lambda k, i, c: mgpu.asof_join(k, k, by_a=i, by_b=i, a_count=c, **KEYS),
    "asof_join, nearest": lambda k, i, c: mgpu.asof_join(k, k, direction="nearest", tolerance=1, **KEYS),
    "lookup": lambda k, i, c: mgpu.lookup(k, k, (k, i), count=c, **KEYS),
    "search": lambda k, i, c: mgpu.search(k, k, count=c, **KEYS),
    "segmented_search": lambda k, i, c: mgpu.segmented_search(k, i, k, i, haystack_count=c, **KEYS),
    "align": lambda k, i, c: mgpu.align(k, k, i, k[:, None], a_count=c, **KEYS),
    "bulk_insert": lambda k, i, c: mgpu.bulk_insert(k, i, k, count=c, size=2 * SLOTS, **KEYS),
    "join": lambda k, i, c: mgpu.join(k, k, "outer", size=SLOTS, assume_sorted=False, a_count=c, **KEYS),
    "join, columns": lambda k, i, c: mgpu.join((k, i), (k, i), "left", size=SLOTS, a_count=c, **KEYS),
    "join, columns in any order": lambda k, i, c: mgpu.join((k, i), (k, i), size=SLOTS, assume_sorted=False, **KEYS),
    "merge": lambda k, i, c: mgpu.merge(k, k, i, i, a_count=c, **KEYS),
    "set_difference": lambda k, i, c: mgpu.set_difference(k, k, i, **KEYS),
    "set_intersection": lambda k, i, c: mgpu.set_intersection(k, k, i, b_count=c, **KEYS),
    "set_symmetric_difference": lambda k, i, c: mgpu.set_symmetric_difference(k, k, **KEYS),
    "set_difference, columns": lambda k, i, c: mgpu.set_difference((k, i), (k, i), i, a_count=c, **KEYS),
    "set_union": lambda k, i, c: mgpu.set_union(k, k, i, i, **KEYS),
    "sorted_equal_count": lambda k, i, c: mgpu.sorted_equal_count(k, k, a_count=c, **KEYS),
    "sorted_match": lambda k, i, c: mgpu.sorted_match(k, k, a_count=c, **KEYS),
    "sorted_search": lambda k, i, c: mgpu.sorted_search(k, k, needles_count=c, **KEYS),
}
# Calls of IN_PLACE send no items. Those of EQUAL_PARTS send parts of equal size, by all_to_all. All others send parts
# of any size: by ragged_all_to_all on up to MAX_RAGGED devices (exchange.py), by all_to_all on more.
IN_PLACE = {
    "reduce",
    "reduce_by_key",
    "run_starts",
    "scan",
    "scan_by_key",
    "segmented_reduce",
    "segmented_scan",
    "select",
}
IN_PLACE |= {"from_dense", "segmented_reduce, ranges", "segmented_scan, ranges", "segmented_softmax, ranges"}
IN_PLACE |= {"histogram", "segment_ids", "segmented_log_softmax", "segmented_softmax", "select_indices", "top_k"}
EQUAL_PARTS = {
    "join_columns",
    "join_columns, derivative",
    "reduce_by_id, few",
    "segmented_shift",
    "take_segments",
    "to_dense",
}
# In these calls, needles stay on their devices, so no array holds both sides.
SEARCHES = {"asof_join, nearest", "lookup", "search", "sorted_equal_count", "sorted_match", "sorted_search"}
WITHOUT_EXCHANGE = {"ragged_all_to_all": IN_PLACE | EQUAL_PARTS, "all_to_all": IN_PLACE}


def traced(call, devices, slots=SLOTS, mesh_of_devices=None):
    """Traces a call on devices that need not exist."""
    devices_mesh = mesh_of_devices or AbstractMesh((devices,), (mesh.AXIS,), axis_types=(AxisType.Auto,))
    spread = NamedSharding(devices_mesh, P(mesh.AXIS))
    shapes = ((devices, slots), np.float32), ((devices, slots), np.int32), ((devices,), np.int32)
    given = [jax.ShapeDtypeStruct(shape, dtype, sharding=spread) for shape, dtype in shapes]

    def one(*arguments):
        results = call(*jax.tree.map(lambda x: x[0], arguments))
        return jax.tree.map(lambda x: x[None], results)

    options = {"mesh": devices_mesh, "in_specs": P(mesh.AXIS), "out_specs": P(mesh.AXIS)}
    return jax.jit(jax.shard_map(one, **options)).trace(*given)


def program_of(call, devices):
    """Returns the text of a lowered program."""
    with warnings.catch_warnings(action="ignore"):  # without CUDA kernels, another platform stands in
        lowered = traced(call, devices).lower(lowering_platforms=("cuda" if mgpu.has_cuda() else "tpu",))
    return lowered.as_text()


def lines_of_a_device(text):
    """Returns lines with tensors, except those of the main function on global arrays."""
    main, *others = text.split("func.func")[1:]
    inside = [line for line in main.splitlines() if line.startswith(" " * 6) and "sdy." not in line]
    return [line for line in (*inside, *"".join(others).splitlines()) if "tensor<" in line]


@pytest.mark.parametrize(
    "devices, form", [(16, "all_to_all"), pytest.param(8, "ragged_all_to_all", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_no_data_is_gathered(name, devices, form):
    """Devices gather a few numbers, and no array is much larger than a device's share."""
    text = program_of(ONE.get(name) or TWO[name], devices)
    lines = lines_of_a_device(text)
    held = SLOTS if name in ONE or name in SEARCHES else 2 * SLOTS
    assert SLOTS <= max(map(mesh.elements, lines)) <= 2.2 * held
    gathered = [mesh.elements(line.rsplit("->", 1)[1]) for line in lines if "stablehlo.all_gather" in line]
    arrays = 1 if name in ONE else 2  # the arrays whose cuts are gathered together
    assert max(gathered, default=0) <= arrays * 2 * devices * (devices + 1)
    assert (form in text) == (name not in WITHOUT_EXCHANGE[form])


# The most equations, and KB of text, of a program. Those of LONG_PROGRAMS have their own two limits.
MAX_EQUATIONS, MAX_TEXT = 475, 50
LONG_PROGRAMS = {
    "join": (410, 52),
    "set_difference, columns": (450, 48),
}


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_programs_are_short(name):
    """Long programs take long to compile; `python scripts/first_calls.py --devices 4` prints the times."""
    made = traced(ONE.get(name) or TWO[name], 4, mesh_of_devices=AbstractMesh((4,), (mesh.AXIS,), abstract_device=CPU))
    most, most_text = LONG_PROGRAMS.get(name, (MAX_EQUATIONS, MAX_TEXT))
    assert budgets.equations(made.jaxpr.jaxpr) <= most
    assert len(made.lower(lowering_platforms=("cpu",)).as_text()) <= most_text << 10


# The most memory that a program needs, as a multiple of its operands, by number of devices.
PLANS = {
    "sort": (lambda k, v: mgpu.sort(k, v, **KEYS), {2: 3.1, 4: 4.1}),
    "merge": (lambda k, v: mgpu.merge(k, v, **KEYS), {2: 3.1, 4: 3.1}),
}


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("name", PLANS)
def test_memory_that_is_planned(name, devices, monkeypatch):
    mesh.use_form(monkeypatch, "_ragged")
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", lambda x, into, *sizes, axis_name: into)
    call, most = PLANS[name]
    slots, options = 1 << 20, {"mesh": mesh.mesh_of(devices), "in_specs": P(mesh.AXIS), "out_specs": P(mesh.AXIS)}
    if options["mesh"].devices.flat[0].platform != "cpu":
        pytest.skip("only CPU devices use the stand-in for the exchange")
    given = jax.ShapeDtypeStruct((devices * slots,), np.uint32, sharding=NamedSharding(options["mesh"], P(mesh.AXIS)))
    plan = jax.jit(jax.shard_map(call, **options)).lower(given, given).compile().memory_analysis()
    needed = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    assert 2 < needed / plan.argument_size_in_bytes <= most[devices]


@pytest.mark.skipif(not mgpu.has_cuda(), reason="the CUDA kernels are not built, so there is no CUDA lowering")
def test_long_tables_are_joined_by_buckets():
    with warnings.catch_warnings(action="ignore"):
        call = traced(lambda k, i, c: mgpu.join(i, i, size=SLOTS, assume_sorted=False, **KEYS), 2, LONG_PERMUTATION)
        text = call.lower(lowering_platforms=("cuda",)).as_text()
    assert "custom_call @jax_mgpu.bucket_join(" in text


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_other_axes_are_left_to_jax(name, kind):
    """`shard_map` is over the operation's axis alone; JAX distributes the other axis."""
    both = AbstractMesh((4, 2), (mesh.AXIS, "other"), axis_types=(kind,) * 2)
    options = {"mesh": both, "in_specs": P(mesh.AXIS), "out_specs": P(mesh.AXIS), "axis_names": {mesh.AXIS}}

    def one(*arguments):
        results = (ONE.get(name) or TWO[name])(*jax.tree.map(lambda x: x[0], arguments))
        return jax.tree.map(lambda x: x[None], results)

    spread = NamedSharding(both, P(mesh.AXIS))
    shapes = ((4, 64), np.float32), ((4, 64), np.int32), ((4,), np.int32)
    given = [jax.ShapeDtypeStruct(shape, dtype, sharding=spread) for shape, dtype in shapes]
    with jax.sharding.use_abstract_mesh(both):
        results = jax.jit(jax.shard_map(one, **options)).trace(*given).out_info
    assert all(x.shape[0] == 4 for x in jax.tree.leaves(results))


@pytest.mark.parametrize("wide", [False, True], ids=["x32", "x64"])
@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_strict_promotion(name, wide):
    with jax.enable_x64(wide), jax.numpy_dtype_promotion("strict"):
        traced(ONE.get(name) or TWO[name], 4, 64)


def test_all_operations_are_here():
    over_axis = {name for name in mgpu.__all__ if "axis_name" in _parameters(getattr(mgpu, name))}
    assert {name.split(",")[0] for name in (*ONE, *TWO)} == over_axis


def _parameters(function):
    return () if isinstance(function, type) else inspect.signature(function).parameters


# The results of these calls are positions in global arrays, or counts of their items.
POSITIONS = {
    "argsort": lambda k, i, c: mgpu.argsort(k, **KEYS),
    "join": lambda k, i, c: mgpu.join(k, k, size=8, **KEYS)[:2],
    "reduce": lambda k, i, c: (mgpu.reduce(k, "argmin", **KEYS), mgpu.reduce(k > 0, **KEYS)),
    "reduce_by_id": lambda k, i, c: mgpu.reduce_by_id(k, i, 8, "argmax", **KEYS),
    "scan": lambda k, i, c: mgpu.scan(k, "argmax", **KEYS),
    "segmented_sort_indices": lambda k, i, c: mgpu.segmented_sort_indices(k, i, **KEYS)[1],
    "select_indices": lambda k, i, c: mgpu.select_indices(k > 0, size=8, **KEYS)[0],
    "sorted_search": lambda k, i, c: mgpu.sorted_search(k, k, **KEYS),
    "top_k": lambda k, i, c: mgpu.top_k(k, 8, **KEYS).indices,
}


@pytest.mark.parametrize("name", POSITIONS)
def test_more_items_than_int32_counts(name):
    """On 16 devices, the calls have 2^31 items in all; on 8, 2^29."""
    call, slots = POSITIONS[name], 1 << 27
    with jax.enable_x64(True):
        results = jax.tree.leaves(traced(call, 16, slots).out_info)
    assert results and all(x.dtype == np.int64 for x in results)
    with jax.enable_x64(False), pytest.raises(ValueError, match=f"{name}: .*jax_enable_x64"):
        traced(call, 16, slots)
    with jax.enable_x64(False):
        assert all(x.dtype == np.int32 for x in jax.tree.leaves(traced(call, 8, slots // 2).out_info))


def test_more_slots_for_rows_than_int32_counts():
    """All devices together have slots for 2^31 rows, but indices are below that."""
    with jax.enable_x64(False):
        call = lambda k, i, c: mgpu.join(k, k, size=1 << 28, assume_sorted=False, **KEYS)  # noqa: E731
        assert all(x.dtype == np.int32 for x in jax.tree.leaves(traced(call, 8, 64).out_info))


@pytest.mark.parametrize("named", [True, False], ids=["devices", "any devices"])
def test_exported_programs(rng, named):
    keys = rng.integers(0, 99, 2 * 60).astype(np.int32)
    devices = mesh.mesh_of(2)
    platform = devices.devices.flat[0].platform.replace("gpu", "cuda")
    any_devices = AbstractMesh((2,), (mesh.AXIS,), axis_types=(AxisType.Auto,))
    options = {"mesh": devices if named else any_devices, "in_specs": P(mesh.AXIS), "out_specs": P(mesh.AXIS)}
    program = jax.jit(jax.shard_map(lambda k: mgpu.mergesort_indices(k, **KEYS), **options))
    like = jax.ShapeDtypeStruct(keys.shape, keys.dtype, sharding=NamedSharding(options["mesh"], P(mesh.AXIS)))
    pytest.importorskip("flatbuffers", reason="jax.export serialises with flatbuffers, which is not installed")
    exported = jax.export.export(program, platforms=[platform], disabled_checks=mgpu.export_checks())(like)
    given = jax.device_put(keys, NamedSharding(devices, P(mesh.AXIS)))
    ordered, indices = jax.jit(jax.export.deserialize(exported.serialize()).call)(given)
    np.testing.assert_array_equal(indices, np.argsort(keys, kind="stable"))
    np.testing.assert_array_equal(ordered, np.sort(keys))


@pytest.mark.parametrize("call", [ONE["mergesort_indices"], TWO["lookup"]], ids=["mergesort_indices", "lookup"])
def test_forms_of_other_platforms_are_not_traced(call):
    """If the mesh names its devices, the program has only the form of their platform; otherwise it has all forms."""
    meshes = [AbstractMesh((4,), (mesh.AXIS,), abstract_device=device) for device in (None, CPU, GPU)]
    texts = [str(traced(call, 4, mesh_of_devices=one).jaxpr) for one in meshes]
    assert ["ragged_all_to_all[" in text for text in texts] == [True, False, True]
    assert len(texts[0]) > max(map(len, texts[1:]))
