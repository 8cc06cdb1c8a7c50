"""Without checks, operands of any values cause no crash or hang, and results have the right shapes."""

from __future__ import annotations

import functools

import hypothesis.extra.numpy
import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import MANY
from tests.families import EXAMPLES, GARBAGE

ROWS = 2


def corners(dtype: np.dtype) -> list[int]:
    """Returns indices and counts around both ends of 60 items, and the type's extremes."""
    limits = np.iinfo(dtype)
    return [int(limits.min), int(limits.min) + 1, -61, -1, 0, 59, 60, 61, int(limits.max) - 1, int(limits.max)]


def garbage_like(x: np.ndarray) -> st.SearchStrategy:
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
    """Returns an example's compiled calls on a row and on a batch, operands, and shapes of results."""
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


def test_every_operation_is_called():
    assert set(GARBAGE) == {name.split(",")[0] for name in EXAMPLES}


@pytest.mark.parametrize("name", GARBAGE)
def test_many_operands_of_any_values(name):
    rng = np.random.default_rng(1)
    anything = rng.integers(-(2**31), 2**31, MANY, dtype=np.int32)
    repeated = rng.integers(0, 13, MANY, dtype=np.int32)
    indices = rng.integers(-5, MANY + 5, MANY // 8, dtype=np.int32)
    wild = rng.integers(-(2**31), 2**31, MANY // 8, dtype=np.int32)
    program = jax.jit(GARBAGE[name])
    for keys, ties in ((anything, repeated), (repeated, anything)):
        for one, other in ((indices, wild), (wild, indices)):
            jax.block_until_ready(program(keys, ties, one, other))
