"""What programs over a mesh axis hold: no gather of data, and no array that grows with the number of devices."""

from __future__ import annotations

import inspect
import warnings

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_mgpu as mgpu
from tests import mesh

SLOTS = 1 << 12
KEYS = {"axis_name": mesh.AXIS}
# Calls by the function that they are of: keys, indices, a count. Those of two operands have twice as many items.
ONE = {
    "argsort": lambda k, i, c: mgpu.argsort(k, count=c, **KEYS),
    "bulk_remove": lambda k, i, c: mgpu.bulk_remove(k, i, count=c, size=SLOTS, **KEYS),
    "interval_expand": lambda k, i, c: mgpu.interval_expand(k, i, SLOTS, **KEYS),
    "interval_gather": lambda k, i, c: mgpu.interval_gather(k, i, i, SLOTS, **KEYS),
    "interval_move": lambda k, i, c: mgpu.interval_move(k, i, i, i, k, **KEYS),
    "join_columns": lambda k, i, c: mgpu.join_columns(mgpu.JoinResult(i, i, c), k, **KEYS),
    "locality_sort": lambda k, i, c: mgpu.locality_sort(k, **KEYS),
    "locality_sort_indices": lambda k, i, c: mgpu.locality_sort_indices(k, **KEYS),
    "join_columns, derivative": lambda k, i, c: jax.grad(
        lambda k: mgpu.join_columns(mgpu.JoinResult(i, i, c), k, **KEYS).a[3]
    )(k),
    "mergesort": lambda k, i, c: jax.grad(lambda k: mgpu.mergesort(k, **KEYS)[3])(k),
    "mergesort_indices": lambda k, i, c: mgpu.mergesort_indices(k, even=False, **KEYS),
    "partition": lambda k, i, c: mgpu.partition({"k": k, "i": i}, k > 0, count=c, **KEYS),
    "reduce": lambda k, i, c: mgpu.reduce(k, "argmax", count=c, **KEYS),
    "reduce_by_id": lambda k, i, c: mgpu.reduce_by_id(k, i, SLOTS, count=c, **KEYS),
    "reduce_by_id, few": lambda k, i, c: mgpu.reduce_by_id(k, i, SLOTS // 16, "argmin", **KEYS),
    "reduce_by_key": lambda k, i, c: mgpu.reduce_by_key(k, i, size=SLOTS, **KEYS),
    "run_starts": lambda k, i, c: mgpu.run_starts(k, i, count=c, **KEYS),
    "scan": lambda k, i, c: mgpu.scan(k, exclusive=True, count=c, **KEYS),
    "segmented_reduce": lambda k, i, c: mgpu.segmented_reduce(k, i, "max", count=c, **KEYS),
    "segmented_scan": lambda k, i, c: mgpu.segmented_scan(k, i, count=c, **KEYS),
    "segmented_sort": lambda k, i, c: mgpu.segmented_sort(k, i, i, count=c, **KEYS),
    "segmented_sort_indices": lambda k, i, c: mgpu.segmented_sort_indices(k, i, **KEYS),
    "select": lambda k, i, c: mgpu.select(k, k > 0, count=c, **KEYS),
    "select_indices": lambda k, i, c: mgpu.select_indices(k > 0, count=c, **KEYS),
    "sort": lambda k, i, c: mgpu.sort(k, {"k": k, "i": i}, count=c, **KEYS),
    "top_k": lambda k, i, c: mgpu.top_k(k, 100, count=c, **KEYS)[:2],
    "unique": lambda k, i, c: mgpu.unique(k, size=SLOTS, return_inverse=True, return_counts=True, count=c, **KEYS),
}
TWO = {
    "align": lambda k, i, c: mgpu.align(k, k, i, k[:, None], a_count=c, **KEYS),
    "bulk_insert": lambda k, i, c: mgpu.bulk_insert(k, i, k, count=c, size=2 * SLOTS, **KEYS),
    "join": lambda k, i, c: mgpu.join(k, k, "outer", size=SLOTS, assume_sorted=False, a_count=c, **KEYS),
    "merge": lambda k, i, c: mgpu.merge(k, k, i, i, a_count=c, **KEYS),
    "set_difference": lambda k, i, c: mgpu.set_difference(k, k, i, **KEYS),
    "set_intersection": lambda k, i, c: mgpu.set_intersection(k, k, i, b_count=c, **KEYS),
    "set_symmetric_difference": lambda k, i, c: mgpu.set_symmetric_difference(k, k, **KEYS),
    "set_union": lambda k, i, c: mgpu.set_union(k, k, i, i, **KEYS),
    "sorted_equal_count": lambda k, i, c: mgpu.sorted_equal_count(k, k, a_count=c, **KEYS),
    "sorted_match": lambda k, i, c: mgpu.sorted_match(k, k, a_count=c, **KEYS),
    "sorted_search": lambda k, i, c: mgpu.sorted_search(k, k, needles_count=c, **KEYS),
}
# These send nothing, or requests and rows, or equal parts, for which all devices need one all-to-all.
IN_PLACE = {"reduce", "reduce_by_key", "run_starts", "scan", "segmented_reduce", "segmented_scan", "select", "top_k"}
IN_PLACE |= {"select_indices"}
EQUAL_PARTS = {"join_columns", "join_columns, derivative", "reduce_by_id, few"}
WITHOUT_EXCHANGE = {"ragged_all_to_all": IN_PLACE | EQUAL_PARTS, "all_to_all": IN_PLACE}


def program_of(call, devices):
    """The program for GPUs of a mesh of so many, of which none is there."""
    devices_mesh = AbstractMesh((devices,), (mesh.AXIS,), axis_types=(AxisType.Auto,))
    spread = NamedSharding(devices_mesh, P(mesh.AXIS))
    shapes = ((devices, SLOTS), np.float32), ((devices, SLOTS), np.int32), ((devices,), np.int32)
    given = [jax.ShapeDtypeStruct(shape, dtype, sharding=spread) for shape, dtype in shapes]

    def one(*arguments):
        results = call(*jax.tree.map(lambda x: x[0], arguments))
        return jax.tree.map(lambda x: x[None], results)

    options = {"mesh": devices_mesh, "in_specs": P(mesh.AXIS), "out_specs": P(mesh.AXIS)}
    traced = jax.jit(jax.shard_map(one, **options)).trace(*given)
    with warnings.catch_warnings(action="ignore"):  # without the CUDA kernels this is another platform's program
        return traced.lower(lowering_platforms=("cuda" if mgpu.has_cuda() else "tpu",)).as_text()


def lines_of_a_device(text):
    """The program without the lines of its main function that are about global arrays."""
    main, *others = text.split("func.func")[1:]
    inside = [line for line in main.splitlines() if line.startswith(" " * 6) and "sdy." not in line]
    return [line for line in (*inside, *"".join(others).splitlines()) if "tensor<" in line]


@pytest.mark.parametrize(
    "devices, form", [(16, "all_to_all"), pytest.param(8, "ragged_all_to_all", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_no_data_is_gathered(name, devices, form):
    """What is gathered are a few numbers a device, and no array is much larger than what a device holds."""
    text = program_of(ONE.get(name) or TWO[name], devices)
    lines = lines_of_a_device(text)
    held = SLOTS if name in ONE else 2 * SLOTS
    assert held <= max(map(mesh.elements, lines)) <= 2.2 * held
    gathered = [mesh.elements(line.rsplit("->", 1)[1]) for line in lines if "stablehlo.all_gather" in line]
    assert max(gathered, default=0) <= 2 * devices * (devices + 1)
    assert (form in text) == (name not in WITHOUT_EXCHANGE[form])


def test_all_operations_are_here():
    over_axis = {name for name in mgpu.__all__ if "axis_name" in _parameters(getattr(mgpu, name))}
    assert {name.split(",")[0] for name in (*ONE, *TWO)} == over_axis


def _parameters(function):
    return () if isinstance(function, type) else inspect.signature(function).parameters
