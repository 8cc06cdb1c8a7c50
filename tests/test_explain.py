"""The output of `explain`, which describes a program without running it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu as mgpu
from jax_mgpu._src.core.explain import device_of_kind


def shaped(n, dtype=jnp.uint32):
    return jax.ShapeDtypeStruct((n,), dtype)


def names(explanation):
    return [(step.operation, step.variant) for step in explanation.steps]


def test_a_sort_is_a_row_of_its_table():
    (step,) = mgpu.explain(mgpu.sort, device="H200")(shaped(1 << 26)).steps
    assert step.operation == "segmented_sort"
    assert (step.variant, step.tiles, step.passes) == ("digits", {"tile": 384 * 23}, 4.5)
    assert 4 << 26 < step.scratch_bytes < 1.1 * (4 << 26)
    moved = 4.5 * 8 * 2**26
    assert moved / 4.8e12 < step.seconds < moved / 3.5e12
    (small,) = mgpu.explain(mgpu.sort, device="H200")(shaped(1000)).steps
    assert small.variant == "ranks"


def test_devices_differ():
    steps = [
        mgpu.explain(mgpu.sort, device=name)(shaped(1 << 26, jnp.int32)).steps[0] for name in ("H200", "A100", "T4")
    ]
    assert len({step.seconds for step in steps}) == 3
    pairs = jax.jit(mgpu.sort)
    assert names(mgpu.explain(pairs, device="T4")(shaped(1 << 26), shaped(1 << 26))) == [("segmented_sort", "segments")]
    assert names(mgpu.explain(pairs, device="L4")(shaped(1 << 26), shaped(1 << 26))) == [("segmented_sort", "digits")]
    with pytest.raises(ValueError, match=r"explain: device: expected None, cpu or one of T4, .*, got 'V100'"):
        mgpu.explain(mgpu.sort, device="V100")


def test_operations_inside_of_other_programs_are_found():
    def program(keys, rows):
        keys = jax.lax.fori_loop(0, 3, lambda _, k: mgpu.sort(k), keys)
        largest = jax.vmap(lambda row: mgpu.top_k(row, 3).values)(rows)
        return jax.lax.cond(keys[0] > 0, mgpu.scan, lambda k: k, keys), largest

    rows = jax.ShapeDtypeStruct((50, 1000), jnp.float32)
    found = [step.operation for step in mgpu.explain(program, device="H100")(shaped(1 << 20, jnp.int32), rows).steps]
    assert sorted(found) == ["scan", "segmented_sort", "top_k"]


def test_branches_of_other_platforms_are_left_out():
    keys = [shaped(1 << 23), shaped(1 << 23), shaped(1 << 23)]

    def program(a, b, c):
        return mgpu.sort(a, (b, c))

    for device in ("H200", "cpu"):
        assert len(mgpu.explain(program, device=device)(*keys).steps) == 1


def test_plain_jax_is_named_with_what_it_runs():
    explained = mgpu.explain(lambda x: mgpu.top_k(x, 3000), device="H200")(shaped(1 << 14, jnp.float32))
    assert names(explained)[0] == ("top_k", "plain JAX")
    assert [name for name, _ in names(explained)[1:]] == ["top_k_candidates", "segmented_sort"]
    assert explained.steps[0].seconds is None


def test_rows_that_no_32_bit_position_passes_have_candidates():
    """A block takes 256 items at a time, so its positions in a longer row would pass 2^31 - 1."""
    for n, has_candidates in ((2**31 - 256, True), (2**31 - 255, False)):
        steps = mgpu.explain(lambda x: mgpu.top_k(x, 3000), device="H200")(shaped(n, jnp.uint8)).steps
        assert ("top_k_candidates" in {step.operation for step in steps}) == has_candidates


def test_few_items_are_sorted_for_their_median():
    for n, runs in ((1 << 16, "segmented_sort"), (1 << 22, "order_statistics")):
        steps = mgpu.explain(lambda x: mgpu.quantile(x, 0.5), device="H200")(shaped(n, jnp.float32)).steps
        assert runs in {step.operation for step in steps if step.variant != "plain JAX"}


def test_what_has_no_kernels_is_plain_jax():
    taken = mgpu.explain(mgpu.take, device="H200")(shaped(1000, jnp.float32), shaped(3, jnp.int32))
    assert names(taken) == [("take", "plain JAX")]


def test_as_text_it_is_a_table():
    explained = mgpu.explain(mgpu.sort)(np.arange(5))
    if jax.default_backend() == "cpu":
        assert names(explained) == [("segmented_sort", "threads")]
    head, row = str(explained).splitlines()
    assert head.split()[:3] == ["operation", "variant", "condition"]
    assert row.startswith("segmented_sort")


def test_devices_by_the_names_of_jax():
    # explain does not know GB999, and assumes an H200
    kinds = {"NVIDIA L40S": "L40S", "NVIDIA L4": "L4", "NVIDIA H100 80GB HBM3": "H100", "NVIDIA GB999": "H200"}
    assert {kind: device_of_kind(kind) for kind in kinds} == kinds
