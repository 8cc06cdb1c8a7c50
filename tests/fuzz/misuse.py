"""Misuse: every argument of every function given what it must not be; each is an error of the house's form."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests.fuzz.broken import Other

N = 6


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


KEYS_A, KEYS_B = ints(1, 2, 2, 5, 7, 9), ints(0, 2, 5, 5)
ITEMS, FEW = np.arange(N, dtype=np.float32), np.arange(4, dtype=np.float32)
HEADS = ints(0, 2, 4)
MASK = KEYS_A > 2
ROWS = mgpu.JoinResult(ints(0, 1, 2), ints(0, -1, 3), np.int32(3))


def plus(a: Any, b: Any) -> Any:
    return a + b


class Traced:
    """A value that is traced: the call is made within jit, where the argument is an operand."""

    def __init__(self, value: Any):
        self.value = value

    def __repr__(self) -> str:
        return f"traced {self.value!r}"


NOT_ARRAYS = (
    *(None, "abc", object(), len, b"abc", [1, "a"], [[1], [2, 3]]),
    *(np.array([1, "a", None], object), np.array(["a", "b"]), np.array(["2020-01-01"], "datetime64[D]")),
)
BAD: dict[str, Callable[[], list[Any]]] = {
    "keys": lambda: [
        *(*NOT_ARRAYS, np.ones(N, bool), np.ones(N, np.complex64), np.ones((N, 2), np.int32), np.int32(3), 4),
        *(jnp.ones(N, jnp.float8_e5m2), jnp.ones(N, jnp.int4), jax.random.split(jax.random.key(0), N), {}),
    ],
    "items": lambda: [
        *(*NOT_ARRAYS, np.ones(N, np.complex64), np.int32(3)),
        *(jnp.ones(N, jnp.float8_e5m2), jnp.ones(N, jnp.int4), jax.random.split(jax.random.key(0), N)),
    ],
    "rows": lambda: [*NOT_ARRAYS, np.int32(3)],
    "values": lambda: ["abc", object(), np.float32(1), ITEMS[:3], {"v": ITEMS[:2]}, np.array([1, None] * 3, object)],
    "columns": lambda: ["abc", object(), len, [1, "a"], np.float32(1), np.array([1, None], object)],
    "result": lambda: [None, "abc", (ITEMS, ITEMS), ITEMS, object()],
    "positions": lambda: [
        *NOT_ARRAYS, np.array([0.0, 1.0, 2.0]), np.ones((3, 1), np.int32), np.array([True, False, True]),
        np.ones(3, np.complex64), np.int32(1), jax.random.split(jax.random.key(0), 3),
    ],
    "ends": lambda: [x for x in BAD["positions"]() if x is not None],
    "mask": lambda: [
        *NOT_ARRAYS, np.ones(N, np.int32), np.ones((N, 2), bool), np.True_, ITEMS, np.ones(N, np.complex64),
        jax.random.split(jax.random.key(0), N),
    ],
    "fractions": lambda: [*NOT_ARRAYS, np.ones(2, bool), np.ones(2, np.complex64), jax.random.key(0)],
    "weights": lambda: [*BAD["keys"]()[1:], ITEMS],
    "floats": lambda: [*NOT_ARRAYS, np.float32(3), ints(1, 2), np.ones(N, np.complex64), jnp.ones(N, jnp.float8_e5m2)],
    "count": lambda: [
        *(1.5, "3", [1], ints(1), True, 2**31, -(2**31) - 1, 2**70, object(), np.float32(2), jax.random.key(0)),
    ],
    "flag": lambda: [0.5, "yes", None, [True], np.array([True, False]), 2, Traced(True), -1, np.float32(1), object()],
    "size": lambda: [-1, 2.5, "3", Traced(3), [3], np.array([3]), True, np.float32(3), object(), -(2**70)],
    "needed size": lambda: [None],
    "op": lambda: [
        *("sum of", "ADD", None, 3, b"add", ["add"], lambda a: a, lambda a, b: (a, b), lambda a, b: None),
        *(lambda a, b: jnp.stack([a, b]), lambda a, b: (a + b).astype(jnp.int8), lambda a, b: "x"),
    ],
    "side": lambda: ["middle", None, 1, Traced(1), b"left", ["left"]],
    "kind": lambda: ["cross", None, 1, Traced(1), ["inner"], "INNER"],
    "fill": lambda: ["x", [1, 2], None, object(), np.ones(2, np.float32), {}],
    "index fill": lambda: ["x", [1, 2], object(), 0.5, np.ones(2, np.int32), {}],
    "identity": lambda: [0, 1.0, "x", (1, 2)],
    "direction": lambda: ["left", None, 1, Traced(1), ["backward"]],
    "by": lambda: [None, "abc", ITEMS, np.ones(N, bool), np.ones((N, 2), np.int32), KEYS_A[:3], (KEYS_A,) * 8, {}],
    "tolerance": lambda: ["x", 1.5, [1], ints(1), object()],
    "method": lambda: ["max", None, 1, Traced(1), ["min"]],
    "step": lambda: [1.5, "3", [1], ints(1), True, None, 2**31, object(), np.float32(2), jax.random.key(0)],
}  # fmt: skip
SORT = {"keys": "keys", "values": "values", "descending": "flag", "count": "count"}
PAIR = {"a": "keys", "b": "keys", "a_count": "count", "b_count": "count"}
SET = {**PAIR, "a_values": "values", "size": "size", "duplicates": "flag", "fill_value": "fill"}
REDUCE = {"x": "items", "op": "op", "count": "count", "identity": "identity"}
BULK = {"x": "rows", "indices": "positions", "size": "size", "fill_value": "fill", "count": "count"}

# For each function: valid arguments, and what kind each argument is.
FUNCTIONS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "merge": (
        {"a": KEYS_A, "b": KEYS_B, "a_values": ITEMS, "b_values": FEW},
        {**PAIR, "a_values": "values", "b_values": "values", "descending": "flag"},
    ),
    **{
        name: ({"keys": KEYS_A}, SORT)
        for name in ("argsort", "mergesort_indices", "locality_sort_indices")
    },
    **{
        name: ({"keys": KEYS_A, "values": ITEMS}, SORT)
        for name in ("sort", "mergesort", "locality_sort")
    },
    "segmented_sort": ({"keys": KEYS_A, "heads": HEADS, "values": ITEMS}, {**SORT, "heads": "positions"}),
    "segmented_sort_indices": (
        {"keys": KEYS_A, "heads": HEADS, "ends": HEADS},
        {**SORT, "heads": "positions", "ends": "ends"},
    ),
    "sorted_search": (
        {"needles": KEYS_A, "haystack": KEYS_B},
        {"needles": "keys", "haystack": "keys", "side": "side", "needles_count": "count", "haystack_count": "count"},
    ),
    "sorted_match": ({"a": KEYS_A, "b": KEYS_B}, {**PAIR, "side": "side"}),
    "sorted_equal_count": ({"a": KEYS_A, "b": KEYS_B}, PAIR),
    "set_intersection": ({"a": KEYS_A, "b": KEYS_B, "a_values": ITEMS}, SET),
    "set_difference": ({"a": KEYS_A, "b": KEYS_B, "a_values": ITEMS}, SET),
    "set_union": ({"a": KEYS_A, "b": KEYS_B, "a_values": ITEMS, "b_values": FEW}, {**SET, "b_values": "values"}),
    "set_symmetric_difference": (
        {"a": KEYS_A, "b": KEYS_B, "a_values": ITEMS, "b_values": FEW},
        {**SET, "b_values": "values"},
    ),
    "join": ({"a": KEYS_A, "b": KEYS_B, "size": 9}, {**PAIR, "kind": "kind", "size": "size"}),
    "join_columns": (
        {"result": ROWS, "a_columns": ITEMS, "b_columns": FEW},
        {"result": "result", "a_columns": "columns", "b_columns": "columns", "fill_value": "fill"},
    ),
    "reduce": ({"x": ITEMS}, REDUCE),
    "segmented_reduce": ({"x": ITEMS, "heads": HEADS}, {**REDUCE, "heads": "positions", "ends": "ends"}),
    "scan": ({"x": ITEMS}, {**REDUCE, "exclusive": "flag", "reverse": "flag", "return_total": "flag"}),
    "segmented_scan": (
        {"x": ITEMS, "heads": HEADS},
        {**REDUCE, "heads": "positions", "ends": "ends", "exclusive": "flag", "reverse": "flag"},
    ),
    "reduce_by_id": (
        {"x": ITEMS, "ids": KEYS_A, "size": 4},
        {"x": "items", "ids": "positions", "size": "size", "count": "count"},
    ),
    "reduce_by_key": (
        {"keys": KEYS_A, "values": ITEMS, "size": 4},
        {"keys": "keys", "values": "items", "op": "op", "size": "size", "count": "count"},
    ),
    "load_balance_search": (
        {"offsets": HEADS, "size": 6},
        {"offsets": "positions", "size": "size", "total": "count", "return_rank": "flag"},
    ),
    "interval_expand": (
        {"values": np.ones(3, np.float32), "offsets": HEADS, "size": 6},
        {"values": "rows", "offsets": "positions", "size": "size", "total": "count", "fill_value": "fill"},
    ),
    "interval_gather": (
        {"x": ITEMS, "starts": HEADS, "offsets": HEADS, "size": 6},
        {
            "x": "rows", "starts": "positions", "offsets": "positions", "size": "size", "total": "count",
            "fill_value": "fill",
        },
    ),
    "interval_scatter": (
        {"x": ITEMS, "starts": HEADS, "offsets": HEADS, "into": ITEMS},
        {"x": "rows", "starts": "positions", "offsets": "positions", "into": "rows", "total": "count"},
    ),
    "interval_move": (
        {"x": ITEMS, "gather_starts": HEADS, "scatter_starts": HEADS, "offsets": HEADS, "into": ITEMS},
        {
            "x": "rows", "gather_starts": "positions", "scatter_starts": "positions", "offsets": "positions",
            "into": "rows", "total": "count",
        },
    ),
    "bulk_remove": ({"x": ITEMS, "indices": HEADS}, BULK),
    "bulk_insert": ({"x": ITEMS, "indices": HEADS, "values": np.ones(3, np.float32)}, {**BULK, "values": "rows"}),
    "select": (
        {"x": ITEMS, "keep": MASK},
        {"x": "values", "keep": "mask", "size": "size", "fill_value": "fill", "count": "count"},
    ),
    "select_indices": ({"keep": MASK}, {"keep": "mask", "size": "size", "fill_value": "index fill", "count": "count"}),
    "partition": ({"x": ITEMS, "keep": MASK}, {"x": "values", "keep": "mask", "count": "count"}),
    "run_starts": (
        {"keys": KEYS_A, "heads": HEADS},
        {"keys": "keys", "size": "size", "count": "count"},
    ),
    "segment_ids": ({"heads": HEADS, "n": N}, {"heads": "positions", "n": "size", "count": "count"}),
    "to_dense": (
        {"x": ITEMS, "heads": HEADS, "width": 3},
        {"x": "rows", "heads": "positions", "width": "size", "fill_value": "fill", "count": "count"},
    ),
    "from_dense": (
        {"x": np.ones((3, 2), np.float32), "lengths": ints(2, 0, 1), "size": 4},
        {"x": "rows", "lengths": "positions", "size": "size", "fill_value": "fill"},
    ),
    "take_segments": (
        {"x": ITEMS, "heads": HEADS, "order": ints(2, 0), "size": 6},
        {"x": "rows", "heads": "positions", "order": "positions", "size": "size", "fill_value": "fill",
         "count": "count"},
    ),
    "unique": (
        {"keys": KEYS_A, "size": 4},
        {
            "keys": "keys", "size": "size", "count": "count", "return_index": "flag", "return_inverse": "flag",
            "return_counts": "flag",
        },
    ),
    "top_k": ({"x": KEYS_A, "k": 2}, {"x": "keys", "k": "size", "largest": "flag", "count": "count"}),
    "segmented_top_k": (
        {"x": KEYS_A, "heads": HEADS, "k": 2},
        {"x": "keys", "heads": "positions", "k": "size", "largest": "flag", "count": "count"},
    ),
    "quantile": ({"x": KEYS_A, "q": 0.5}, {"x": "keys", "q": "fractions", "count": "count"}),
    "segmented_quantile": (
        {"x": KEYS_A, "heads": HEADS, "q": 0.5},
        {"x": "keys", "heads": "positions", "q": "fractions", "count": "count"},
    ),
    "bincount": ({"ids": HEADS, "length": 4}, {"ids": "positions", "length": "size", "weights": "weights"}),
    "histogram": ({"x": KEYS_A, "edges": KEYS_B}, {"x": "keys", "edges": "keys"}),
    **{
        name: ({"x": ITEMS, "heads": HEADS}, {"x": "floats", "heads": "positions", "count": "count"})
        for name in ("segmented_softmax", "segmented_log_softmax")
    },
}  # fmt: skip
FUNCTIONS |= {
    "lookup": (
        {"keys": KEYS_A, "table_keys": KEYS_A, "values": ITEMS},
        {
            "keys": "keys", "table_keys": "keys", "values": "values", "default": "fill", "count": "count",
            "table_count": "count",
        },
    ),
    "asof_join": (
        {"a": KEYS_A, "b": KEYS_A, "by_a": KEYS_A, "by_b": KEYS_A},
        {
            **PAIR, "by_a": "by", "by_b": "by", "direction": "direction", "tolerance": "tolerance",
            "assume_sorted": "flag",
        },
    ),
    "group_by": (
        {"keys": KEYS_A, "values": ITEMS, "size": 4},
        {"keys": "keys", "values": "items", "op": "op", "size": "size", "count": "count"},
    ),
    "rank": (
        {"keys": KEYS_A, "heads": HEADS},
        {"keys": "keys", "method": "method", "descending": "flag", "count": "count"},
    ),
    "segmented_shift": (
        {"x": ITEMS, "heads": HEADS, "by": 1},
        {"x": "columns", "heads": "positions", "by": "step", "fill_value": "fill", "count": "count"},
    ),
}  # fmt: skip
SIZED = ("join", "reduce_by_key", "group_by", "load_balance_search", "interval_expand", "interval_gather")
SIZED += (
    "group_by",
    "segment_ids",
    "to_dense",
    "from_dense",
    "take_segments",
    "unique",
    "top_k",
    "segmented_top_k",
    "bincount",
    "reduce_by_id",
)


def cases_of(name: str) -> list[tuple[str, Any]]:
    """Every argument of a function with every value that it must not have."""
    valid, kinds = FUNCTIONS[name]
    cases = []
    for argument, kind in kinds.items():
        if argument == "values" and (name.endswith("indices") or name == "argsort"):
            continue
        bad = BAD[kind]() + (BAD["needed size"]() if kind == "size" and name in SIZED else [])
        # of no values, reduce_by_key and group_by give keys and count
        cases += [(argument, x) for x in bad if not (x is None and argument == "values" and "_by" in name)]
        if kind == "values" and (name == "merge" or "union" in name or "symmetric" in name):
            cases.append((argument, None))  # values of one side
            cases.append((argument, {"v": valid[argument]}))  # of another structure
            cases.append((argument, valid[argument].astype(np.int32)))
            cases.append((argument, np.stack([valid[argument]] * 2, 1)))
        if argument == "fill_value" and name.startswith("set"):
            cases.append((argument, 2**70))  # keys are integers
        if argument in ("b", "haystack"):
            cases.append((argument, valid[argument].astype(np.float32)))
        if argument in ("into",) or (argument == "values" and name == "bulk_insert"):
            cases.append((argument, valid[argument].astype(np.int32)))
            cases.append((argument, np.stack([valid[argument]] * 2, 1)))
        if kind == "items" and "_by" not in name:
            cases += [
                ("x, op", ({}, plus)),
                ("x, op", (None, plus)),
                ("x, op", ("abc", plus)),
                ("x, op", ((ITEMS, 3), plus)),
            ]
    if name in ("scan", "segmented_scan"):
        cases.append(("identity", "missing"))
    return cases


def error_of(name: str, argument: str, value: Any) -> BaseException | None:
    valid, _ = FUNCTIONS[name]
    call = getattr(mgpu, name)
    given = dict(valid)
    if argument == "x, op":
        given["x"], given["op"] = value
    elif argument == "identity" and isinstance(value, str) and value == "missing":
        given |= {"op": plus, "exclusive": True}
    elif not isinstance(value, Traced):
        given[argument] = value
        if argument == "op" and name == "segmented_reduce" and callable(value):
            given["identity"] = 0.0
    try:
        if isinstance(value, Traced):
            jax.block_until_ready(jax.jit(lambda x: call(**{**given, argument: x}))(value.value))
        else:
            jax.block_until_ready(call(**given))
    except Exception as error:
        return error
    return None


CONTRADICTIONS = (r"an array, got (ndarray|list)$", r"8 to 64 bits, got float8")


def misuse(rng: np.random.Generator) -> Other:
    """One function, whose arguments are wrong in turn."""
    name = str(rng.choice(list(FUNCTIONS)))
    cases = cases_of(name)

    def run(rng: np.random.Generator) -> None:
        argument, value = cases[int(rng.integers(len(cases)))]
        x64 = bool(rng.random() < 0.3)
        with jax.enable_x64(x64):
            error = error_of(name, argument, value)
        what = f"{argument} = {value!r:.80}"
        if error is None and x64 and isinstance(value, int) and abs(value) < 2**62 and argument != "size":
            return  # int64 holds it
        if error is None:
            raise AssertionError(f"{what}: taken")
        first = argument.split(",")[0].replace("a_values", "[ab]_values")
        form = rf"{name}: [^:]*\b{first}\b[^:]*: expected .+, got .+"
        if not isinstance(error, TypeError | ValueError) or not re.match(form, str(error), re.DOTALL):
            raise AssertionError(f"{what}: {type(error).__name__}: {str(error)[:300]}")
        for words in CONTRADICTIONS:
            if re.search(words, str(error)):
                raise AssertionError(f"{what}: contradicts itself: {str(error)[:300]}")

    return Other(name, "eager", 48, run)
