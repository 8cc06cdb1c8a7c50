"""Both forms of each model in tests/models agree; ours has at most two thirds of the lines."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import NAMES, equal_within, exported, lines_of, model, program


def test_all_are_here():
    assert len(NAMES) == 12


@pytest.mark.parametrize("name", NAMES)
def test_lines(name):
    ours, plain = (lines_of(getattr(model(name), form)) for form in ("ours", "plain"))
    assert 3 * ours <= 2 * plain


def test_lines_are_of_code():
    def written(x):
        """Says what it does.

        On several lines.
        """
        # why
        y = [
            x,
        ]

        return y

    assert lines_of(written) == 5


@pytest.mark.parametrize("name", NAMES)
def test_results(rng, name):
    module = model(name)
    arguments = jax.tree.map(jnp.asarray, module.inputs(rng, 4000))
    compare = getattr(module, "compare", equal_within)
    if hasattr(module, "EXPORTED"):
        forms = [exported(getattr(module, form), arguments) for form in ("ours", "plain")]
    elif hasattr(module, "GRADIENT"):
        forms, compare = [program(module, form) for form in ("ours", "plain")], equal_within
        compare(*(jax.jit(getattr(module, form))(*arguments) for form in ("ours", "plain")))
    else:
        forms = [jax.jit(getattr(module, form)) for form in ("ours", "plain")]
    results = [form(*arguments) for form in forms]
    compare(*results)
    assert all(np.size(leaf) for leaf in jax.tree.leaves(results[0]))
