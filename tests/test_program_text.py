"""Programs are short whatever the number of items, without large constants."""

from __future__ import annotations

import math
import re
import warnings

import jax
import numpy as np
import pytest

import jax_mgpu as mgpu
from tests import budgets
from tests.examples import N
from tests.families import GARBAGE

ITEMS = 1 << 26
MAX_TEXT = 64 << 10  # bytes of a program's text
MAX_CONSTANT = 1 << 10  # bytes
CONSTANT = re.compile(r"stablehlo\.constant dense<[\"\[].*tensor<((?:\d+x)*)(\w+)>")


def expect_short(function, *operands, platform=None):
    platforms = {"lowering_platforms": (platform,)} if platform else {}
    expect_short_text(jax.jit(function).trace(*operands).lower(**platforms).as_text(), MAX_TEXT)


def expect_short_text(text, max_bytes):
    for sizes, kind in CONSTANT.findall(text):
        bits = int("".join(filter(str.isdigit, kind)) or 8)
        assert math.prod(map(int, sizes.split("x")[:-1])) * bits // 8 <= MAX_CONSTANT, f"a constant {sizes}{kind}"
    assert len(text) <= max_bytes


# Limits of programs that exceed MAX_EQUATIONS or MAX_TEXT under some transformation: equations, and KB of text.
MAX_EQUATIONS = 170
LONG_PROGRAMS = {
    "interval_reduce": (2800, 244),
    "join, any order": (195, 64),
    "quantile": (190, 64),
    "reduce, ordered": (225, 64),
    "reduce, statistics": (340, 64),
    "reduce_by_id, ordered": (250, 64),
    "reduce_by_id, statistics": (390, 64),
    "segmented_quantile": (200, 64),
}


@pytest.mark.parametrize("name", budgets.SIZED)
def test_programs_are_short(name):
    most_equations, most_kilobytes = LONG_PROGRAMS.get(name, (MAX_EQUATIONS, MAX_TEXT >> 10))
    for n in (N, ITEMS // N * N):
        programs = budgets.programs(budgets.SIZED[name], n)
        with budgets.of_items(n):
            for how, (function, operands) in programs.items():
                traced = jax.jit(function).trace(*operands)
                assert budgets.equations(traced.jaxpr.jaxpr) <= most_equations, (how, n)
                expect_short_text(traced.lower().as_text(), most_kilobytes << 10)


@pytest.mark.parametrize("name", GARBAGE)
def test_programs_of_many_segments_are_short(name):
    lengths = (ITEMS, ITEMS, ITEMS // 8, ITEMS // 8)
    with budgets.of_items(ITEMS):
        expect_short(GARBAGE[name], *(jax.ShapeDtypeStruct((n,), np.int32) for n in lengths))


def affine(a, b):
    return a[0] * b[0], a[1] * b[0] + b[1]


SCANS = {
    "scan": mgpu.scan,
    "reduce": mgpu.reduce,
    "segmented_scan": lambda x, op: mgpu.segmented_scan(x, np.arange(9), op),
    "segmented_reduce": lambda x, op: mgpu.segmented_reduce(x, np.arange(9), op, identity=NOTHING.get(op)),
}
NOTHING = {affine: (1.0, 0.0)}


@pytest.mark.parametrize("op", ["mul", "max", "logsumexp", affine], ids=lambda op: getattr(op, "__name__", op))
@pytest.mark.parametrize("name", SCANS)
def test_gradients_of_scans_are_short(name, op):
    def loss(x):
        return sum(leaf.sum() for leaf in jax.tree.leaves(SCANS[name]((x, x) if callable(op) else x, op)))

    with warnings.catch_warnings(action="ignore"):  # platforms without kernels warn
        for platform in ("cpu", *(["cuda"] if mgpu.has_cuda() else ["tpu"] if callable(op) else [])):
            expect_short(jax.grad(loss), jax.ShapeDtypeStruct((ITEMS,), np.float32), platform=platform)


def test_counts_of_unique_keys_are_no_constant():
    keys = jax.ShapeDtypeStruct((ITEMS,), np.int32)
    flags = {"return_index": True, "return_inverse": True, "return_counts": True}
    expect_short(lambda keys: mgpu.unique(keys, size=ITEMS, **flags), keys)


FEW_ITEMS = 1 << 14
HEADS = np.arange(0, FEW_ITEMS, 7, dtype=np.int32)
OF_CONSTANT_HEADS = {
    "segmented_reduce": lambda x: (mgpu.segmented_reduce(x, HEADS) ** 2).sum(),
    "segmented_softmax": lambda x: (mgpu.segmented_softmax(x, HEADS) ** 2).sum(),
    "interval_gather": lambda x: (mgpu.interval_gather(x, HEADS, HEADS, FEW_ITEMS) ** 2).sum(),
    "rank": lambda x: x.sum() * mgpu.rank(x, HEADS).max(),
    "take_segments": lambda x: (mgpu.take_segments(x, HEADS, HEADS // 7, size=FEW_ITEMS)[0] ** 2).sum(),
}


@pytest.mark.parametrize("name", OF_CONSTANT_HEADS)
def test_xla_evaluates_nothing_of_constant_heads(name):
    x = jax.ShapeDtypeStruct((FEW_ITEMS,), np.float32)
    text = jax.jit(jax.grad(OF_CONSTANT_HEADS[name])).lower(x).compile().as_text()
    made = {line.split(" = ")[1].split("{")[0] for line in text.splitlines() if " constant({" in line}
    sizes = [math.prod(map(int, re.findall(r"\d+", shape.split("[")[1]))) for shape in made]
    assert all(size < FEW_ITEMS for size in sizes), made
