"""Without checks, operands of any values: no operation crashes, hangs or gives anything but its results' shapes."""

from __future__ import annotations

import functools

import hypothesis.extra.numpy
import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jax_mgpu as mgpu
from tests.examples import EXAMPLES

ROWS = 2


def corners(dtype: np.dtype) -> list[int]:
    """What indices and counts must not be: far outside on either side, and just outside."""
    limits = np.iinfo(dtype)
    return [int(limits.min), int(limits.min) + 1, -61, -1, 0, 59, 60, 61, int(limits.max) - 1, int(limits.max)]


def garbage_like(x: np.ndarray) -> st.SearchStrategy:
    """Arrays of this shape and type: any values, and few values that repeat."""
    if x.dtype == bool:
        elements = st.booleans()
    elif x.dtype.kind == "f":
        elements = st.floats(width=32) | st.integers(0, 3).map(float)
    else:
        limits = np.iinfo(x.dtype)
        known = [value for value in corners(x.dtype) if value >= limits.min]
        elements = st.sampled_from(known) | st.integers(0, 61) | st.integers(int(limits.min), int(limits.max))
    return hypothesis.extra.numpy.arrays(x.dtype, x.shape, elements=elements, fill=elements)


@functools.cache
def program_of(name: str, wide: bool):
    """A call of an example on the first row and on all rows of a batch, compiled; its operands; its results' shapes."""
    example = EXAMPLES[name]
    rng = np.random.default_rng(5)
    problems = [tuple(map(np.asarray, example.make(rng, np.float32))) for _ in range(ROWS)]
    arguments = tuple(np.stack(leaves) for leaves in zip(*problems, strict=True))
    if wide:
        arguments = tuple(x.astype(np.int64) if x.dtype == np.int32 else x for x in arguments)

    def both(*batch):
        return example.call(*(x[0] for x in batch)), jax.vmap(example.call)(*batch)

    return jax.jit(both).lower(*arguments).compile(), arguments, jax.eval_shape(both, *arguments)


@pytest.mark.parametrize("wide", [False, pytest.param(True, marks=pytest.mark.long)], ids=["int32", "int64"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_operands_of_any_values(name, wide):
    with jax.enable_x64(wide):
        program, arguments, shapes = program_of(name, wide)

        @settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(st.tuples(*map(garbage_like, arguments)))
        def run(garbage):
            results = jax.block_until_ready(program(*garbage))
            assert jax.tree.map(lambda x: (x.shape, x.dtype), results) == jax.tree.map(
                lambda x: (x.shape, x.dtype), shapes
            )

        run()


# Several tiles' worth, where tasks and blocks share the work. `keys` and `few` are without order, the second with many
# ties; `near` are positions in and just outside the array, `far` any integers.
MANY = 150_000
CALLS = {
    "argsort": lambda keys, few, near, far: mgpu.argsort(keys, count=near[0], bits=9),
    "bincount": lambda keys, few, near, far: (mgpu.bincount(keys, 99), mgpu.bincount(few, 9, keys * 1.5)),
    "bulk_insert": lambda keys, few, near, far: mgpu.bulk_insert(keys, near, far),
    "bulk_remove": lambda keys, few, near, far: mgpu.bulk_remove(keys, near, count=far[0]),
    "from_dense": lambda keys, few, near, far: mgpu.from_dense(keys.reshape(-1, 8), near, size=MANY),
    "histogram": lambda keys, few, near, far: mgpu.histogram(keys, few[:30]),
    "interval_expand": lambda keys, few, near, far: mgpu.interval_expand(far, near, MANY),
    "interval_gather": lambda keys, few, near, far: mgpu.interval_gather(keys, far, near, MANY),
    "interval_move": lambda keys, few, near, far: mgpu.interval_move(keys, near, near, far, few),
    "interval_scatter": lambda keys, few, near, far: mgpu.interval_scatter(keys, near, near, few),
    "join": lambda keys, few, near, far: mgpu.join(keys, few, "outer", size=MANY),
    "join_columns": lambda keys, few, near, far: mgpu.join_columns(mgpu.JoinResult(near, far, far[0]), keys, few),
    "load_balance_search": lambda keys, few, near, far: mgpu.load_balance_search(near, MANY, return_rank=True),
    "locality_sort": lambda keys, few, near, far: mgpu.locality_sort(keys, few, count=far[0]),
    "asof_join": lambda keys, few, near, far: mgpu.asof_join(keys, few, by_a=few, by_b=keys, a_count=near[0]),
    "group_by": lambda keys, few, near, far: mgpu.group_by(few, keys, "median", size=100, count=far[0]),
    "lookup": lambda keys, few, near, far: mgpu.lookup(keys, few, keys, count=near[0]),
    "rank": lambda keys, few, near, far: mgpu.rank(few, near, count=far[0]),
    "segmented_shift": lambda keys, few, near, far: mgpu.segmented_shift(keys, near, far[0], count=near[0]),
    "locality_sort_indices": lambda keys, few, near, far: mgpu.locality_sort_indices(few, count=near[0]),
    "merge": lambda keys, few, near, far: mgpu.merge(keys, few, few, keys, a_count=near[0]),
    "mergesort": lambda keys, few, near, far: mgpu.mergesort(keys, few, count=near[0]),
    "mergesort_indices": lambda keys, few, near, far: mgpu.mergesort_indices(keys, count=far[0]),
    "partition": lambda keys, few, near, far: mgpu.partition(keys, few > 5, count=far[0]),
    "quantile": lambda keys, few, near, far: mgpu.quantile(keys, far * 1e-3, count=near[0]),
    "reduce": lambda keys, few, near, far: mgpu.reduce(keys, "argmin", count=far[0]),
    "reduce_by_id": lambda keys, few, near, far: mgpu.reduce_by_id(keys, few, 10, "argmax", count=far[0]),
    "reduce_by_key": lambda keys, few, near, far: mgpu.reduce_by_key(keys, few, size=100, count=near[0]),
    "run_starts": lambda keys, few, near, far: mgpu.run_starts(few, near, count=far[0]),
    "scan": lambda keys, few, near, far: mgpu.scan(keys, count=near[0], return_total=True),
    "segment_ids": lambda keys, few, near, far: mgpu.segment_ids(near, MANY, count=far[0]),
    **{
        name: lambda keys, few, near, far, name=name: getattr(mgpu, name)(keys * 1e-9, near, count=far[0])
        for name in ("segmented_softmax", "segmented_log_softmax")
    },
    "segmented_quantile": lambda keys, few, near, far: mgpu.segmented_quantile(keys, near, far[:3] * 1e-3),
    "segmented_reduce": lambda keys, few, near, far: mgpu.segmented_reduce(keys, near),
    "segmented_scan": lambda keys, few, near, far: mgpu.segmented_scan(keys, near, reverse=True),
    "segmented_sort": lambda keys, few, near, far: mgpu.segmented_sort(keys, near, few),
    "segmented_sort_indices": lambda keys, few, near, far: mgpu.segmented_sort_indices(keys, near, count=far[0]),
    "segmented_top_k": lambda keys, few, near, far: mgpu.segmented_top_k(keys, near, 3, count=far[0]),
    "select": lambda keys, few, near, far: mgpu.select(keys, few > 5, size=1000, count=near[0]),
    "select_indices": lambda keys, few, near, far: mgpu.select_indices(few > 5, count=far[0]),
    **{
        f"set_{kind}": lambda keys, few, near, far, call=f"set_{kind}": getattr(mgpu, call)(keys, few)
        for kind in ("difference", "intersection", "symmetric_difference", "union")
    },
    "sort": lambda keys, few, near, far: mgpu.sort(keys, few, count=far[0], bits=3),
    "sorted_equal_count": lambda keys, few, near, far: mgpu.sorted_equal_count(keys, few),
    "sorted_match": lambda keys, few, near, far: mgpu.sorted_match(keys, few, a_count=near[0]),
    "sorted_search": lambda keys, few, near, far: mgpu.sorted_search(keys, few),
    "take_segments": lambda keys, few, near, far: mgpu.take_segments(keys, near, far, size=MANY),
    "to_dense": lambda keys, few, near, far: mgpu.to_dense(keys, near, 8, count=far[0]),
    "top_k": lambda keys, few, near, far: mgpu.top_k(keys, 100, count=far[0]),
    "unique": lambda keys, few, near, far: mgpu.unique(
        keys, size=50, return_index=True, return_inverse=True, return_counts=True, count=near[0]
    ),
}


def test_every_operation_is_called():
    assert set(CALLS) == {name.split(",")[0] for name in EXAMPLES}


@pytest.mark.parametrize("name", CALLS)
def test_many_operands_of_any_values(name):
    rng = np.random.default_rng(1)
    anything = rng.integers(-(2**31), 2**31, MANY, dtype=np.int32)
    few = rng.integers(0, 13, MANY, dtype=np.int32)
    near = rng.integers(-5, MANY + 5, MANY // 8, dtype=np.int32)
    far = rng.integers(-(2**31), 2**31, MANY // 8, dtype=np.int32)
    program = jax.jit(CALLS[name])
    for keys, ties in ((anything, few), (few, anything)):
        for one, other in ((near, far), (far, near)):
            jax.block_until_ready(program(keys, ties, one, other))
