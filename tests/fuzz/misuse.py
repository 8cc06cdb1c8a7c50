"""Misuse: arguments get the invalid values of their kind, and each such call must raise an error of one form."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests import families
from tests.examples import Argument
from tests.fuzz.broken import Other

N = 6


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


KEYS_A, KEYS_B = ints(1, 2, 2, 5, 7, 9), ints(0, 2, 5, 5)
ITEMS, FEW = np.arange(N, dtype=np.float32), np.arange(4, dtype=np.float32)
HEADS = ints(0, 2, 4)
MASK = KEYS_A > 2
ROWS = mgpu.JoinResult(ints(0, 1, 2), ints(0, -1, 3), np.int32(3))


HOUR = np.timedelta64(1, "h")
HOURS = np.arange(N).astype("timedelta64[h]")
NOW = np.repeat([1.7e9, 1.7e9 + 60], 3)  # float32 rounds both to the same number


def plus(a: Any, b: Any) -> Any:
    return a + b


class Traced:
    """A value that becomes an operand of the call within jit."""

    def __init__(self, value: Any):
        self.value = value

    def __repr__(self) -> str:
        return f"traced {self.value!r}"


NOT_ARRAYS = (
    *(None, "abc", object(), len, b"abc", [1, "a"], [[1], [2, 3]]),
    *(np.array([1, "a", None], object), np.array(["a", "b"]), np.array(["2020-01-01"], "datetime64[D]")),
    HOURS,
)
BAD: dict[str, Callable[[], list[Any]]] = {
    "keys": lambda: [
        *(*NOT_ARRAYS, np.ones(N, bool), np.ones(N, np.complex64), np.ones((N, 2), np.int32), np.int32(3), 4),
        *(jnp.ones(N, jnp.float8_e5m2), jnp.ones(N, jnp.int4), jax.random.split(jax.random.key(0), N), {}),
        *([KEYS_A, KEYS_A], [[1, 2]] * N),
    ],
    "items": lambda: [
        *(*NOT_ARRAYS, np.ones(N, np.complex64), np.int32(3)),
        *(jnp.ones(N, jnp.float8_e5m2), jnp.ones(N, jnp.int4), jax.random.split(jax.random.key(0), N)),
    ],
    "rows": lambda: [*NOT_ARRAYS, np.int32(3)],
    "matched keys": lambda: [*BAD["keys"](), NOW],
    "values": lambda: [
        *("abc", HOURS, object(), np.float32(1), ITEMS[:3], {"v": ITEMS[:2]}, np.array([1, None] * 3, object)),
    ],
    "columns": lambda: ["abc", HOURS, object(), len, [1, "a"], np.float32(1), np.array([1, None], object)],
    "result": lambda: [None, "abc", (ITEMS, ITEMS), ITEMS, object()],
    "positions": lambda: [
        *NOT_ARRAYS, np.array([0.0, 1.0, 2.0]), np.ones((3, 1), np.int32), np.array([True, False, True]),
        np.ones(3, np.complex64), np.int32(1), jax.random.split(jax.random.key(0), 3),
    ],
    "ends": lambda: [x for x in BAD["positions"]() if x is not None],
    "indices of any shape": lambda: [x for x in BAD["positions"]() if getattr(x, "dtype", None) != np.int32],
    "mask": lambda: [
        *NOT_ARRAYS, np.ones(N, np.int32), np.ones((N, 2), bool), np.True_, ITEMS, np.ones(N, np.complex64),
        jax.random.split(jax.random.key(0), N),
    ],
    "fractions": lambda: [*NOT_ARRAYS, np.ones(2, bool), np.ones(2, np.complex64), jax.random.key(0)],
    "weights": lambda: [*BAD["keys"]()[1:], ITEMS[:2]],
    "entry weights": lambda: [
        *(*NOT_ARRAYS[1:], np.ones(N, np.complex64), np.ones((N, 2), np.int32), np.int32(3), ITEMS[:3], {}),
        *(jnp.ones(N, jnp.float8_e5m2), jnp.ones(N, jnp.int4), jax.random.split(jax.random.key(0), N)),
    ],
    "floats": lambda: [*NOT_ARRAYS, np.float32(3), ints(1, 2), np.ones(N, np.complex64), jnp.ones(N, jnp.float8_e5m2)],
    "count": lambda: [
        *(1.5, "3", [1], ints(1), True, 2**31, -(2**31) - 1, 2**70, object(), np.float32(2), jax.random.key(0), HOUR),
    ],
    "flag": lambda: [0.5, "yes", None, [True], np.array([True, False]), 2, Traced(True), -1, np.float32(1), object()],
    "size": lambda: [HOUR, -1, 2.5, "3", Traced(3), [3], np.array([3]), True, np.float32(3), object(), -(2**70)],
    "needed size": lambda: [None],
    "op": lambda: [
        *(jnp.sum, np.max, jnp.cumsum, sum),
        *("sum of", "ADD", None, 3, b"add", ["add"], lambda a: a, lambda a, b: (a, b), lambda a, b: None),
        *(lambda a, b: jnp.stack([a, b]), lambda a, b: (a + b).astype(jnp.int8), lambda a, b: "x"),
    ],
    "dtype": lambda: [3, "foo", object(), "complex64", bool, "U3", [1], ITEMS, "float8_e5m2", Traced(1), len, ">f4"],
    "side": lambda: ["middle", None, 1, Traced(1), b"left", ["left"]],
    "kind": lambda: ["cross", None, 1, Traced(1), ["inner"], "INNER"],
    "fill": lambda: [HOUR, "x", [1, 2], None, object(), np.ones(2, np.float32), {}],
    "fill or none": lambda: [x for x in BAD["fill"]() if x is not None],
    "index fill": lambda: [HOUR, "x", [1, 2], object(), 0.5, np.ones(2, np.int32), {}],
    "identity": lambda: [HOUR, 0, 1.0, "x", (1, 2)],
    "initial": lambda: [HOUR, "x", (1, 2), {}, [1], np.ones(2), object()],
    "bins": lambda: [x for x in BAD["keys"]() if not isinstance(x, int | np.int32)] + [0, -1, 2.5, True, Traced(3)],
    "range": lambda: ["abc", 3, (1,), (1, 0), (0, np.inf), ("a", 1), (0, HOUR), (1, 2, 3), object()],
    "ddof": lambda: [HOUR, "1", None, [1], 1j, True, object(), np.array(1), np.array([1]), Traced(1), 1, 0.5],
    "direction": lambda: ["left", None, 1, Traced(1), ["backward"]],
    "by": lambda: [None, "abc", ITEMS, np.ones(N, bool), np.ones((N, 2), np.int32), KEYS_A[:3], (KEYS_A,) * 8, {}],
    "tolerance": lambda: [HOUR, "x", 1.5, [1], ints(1), object()],
    "method": lambda: ["most", None, 1, Traced(1), ["min"]],
    "step": lambda: [HOUR, 1.5, "3", [1], ints(1), True, None, 2**31, object(), np.float32(2), jax.random.key(0)],
}  # fmt: skip
# The kind of each argument; `ARGUMENTS` of a family lists exceptions.
NAMES = {
    "by": "by_a by_b",
    "columns": "a_columns b_columns",
    "count": "a_count b_count count haystack_count needles_count table_count total",
    "ddof": "ddof",
    "direction": "direction",
    "dtype": "dtype",
    "ends": "ends",
    "fill": "default fill_value",
    "flag": "allow_exact_matches assume_sorted commutative descending dropna duplicates exclusive largest null_equal "
    "return_counts return_index return_inverse return_rank return_total reverse",
    "fractions": "q",
    "identity": "identity",
    "initial": "initial",
    "keys": "a b haystack keys needles table_keys",
    "kind": "kind",
    "mask": "keep",
    "method": "method",
    "op": "op",
    "positions": "gather_starts heads ids indices lengths offsets order scatter_starts starts",
    "range": "range",
    "result": "result",
    "rows": "into x",
    "side": "side",
    "size": "k least size width",
    "step": "by",
    "tolerance": "tolerance",
    "values": "a_values b_values values",
    "weights": "weights",
}
KINDS = {argument: kind for kind, names in NAMES.items() for argument in names.split()}
# Valid values of the required arguments of a call.
VALUES: dict[str, Any] = {
    **dict.fromkeys(("a", "by_a", "by_b", "ids", "keys", "needles", "table_keys"), KEYS_A),
    **dict.fromkeys(("b", "haystack"), KEYS_B),
    **dict.fromkeys(("a_columns", "a_values", "into", "values", "x"), ITEMS),
    **dict.fromkeys(("b_columns", "b_values"), FEW),
    **dict.fromkeys(("gather_starts", "heads", "indices", "offsets", "scatter_starts", "starts"), HEADS),
    **{"by": 1, "k": 2, "q": 0.5, "size": 9, "width": 3},
    **{"keep": MASK, "lengths": ints(2, 0, 1), "order": ints(2, 0), "result": ROWS},
}  # fmt: skip
# Optional arguments that all calls here have.
GIVEN = ("a_columns", "a_values", "b_columns", "b_values", "by_a", "by_b", "heads", "values")


@dataclasses.dataclass(frozen=True)
class Function:
    valid: dict[str, Any]
    kinds: dict[str, str]
    needed_sizes: set[str]


def function_of(name: str) -> Function:
    function = Function({}, {}, set())
    for argument, parameter in inspect.signature(getattr(mgpu, name)).parameters.items():
        needed = parameter.default is parameter.empty
        own = families.ARGUMENTS.get(f"{name}: {argument}", Argument(KINDS.get(argument)))
        if own.kind is not None:
            function.kinds[argument] = own.kind
        if needed and own.kind == "size":
            function.needed_sizes.add(argument)
        value = VALUES.get(argument) if own.value is None else own.value
        if value is not None and (needed or argument in GIVEN):
            function.valid[argument] = value
    return function


# No kind of misuse fits these; the tests of their families break them.
WITHOUT_KIND = {"a_order", "aligned", "axis_name", "b_order", "bits", "emit", "even", "flags", "less", "map"}
FUNCTIONS = {
    name: function_of(name)
    for name in mgpu.__all__
    if inspect.isfunction(getattr(mgpu, name)) and name not in families.INFORMATION
}


def cases_of(name: str) -> list[tuple[str, Any]]:
    valid = FUNCTIONS[name].valid
    cases = []
    for argument, kind in FUNCTIONS[name].kinds.items():
        if argument == "values" and (name.endswith("indices") or name == "argsort"):
            continue
        bad = BAD[kind]() + (BAD["needed size"]() if argument in FUNCTIONS[name].needed_sizes else [])
        # `values` of functions with `_by` in their names may be None.
        cases += [(argument, x) for x in bad if not (x is None and argument == "values" and "_by" in name)]
        if kind == "values" and (name == "merge" or "union" in name or "symmetric" in name):
            cases.append((argument, None))
            cases.append((argument, {"v": valid[argument]}))
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
    call = getattr(mgpu, name)
    given = dict(FUNCTIONS[name].valid)
    if argument == "x, op":
        given["x"], given["op"] = value
    elif argument == "identity" and isinstance(value, str) and value == "missing":
        given |= {"op": plus, "exclusive": True}
    elif not isinstance(value, Traced):
        given[argument] = value
    try:
        if isinstance(value, Traced):
            jax.block_until_ready(jax.jit(lambda x: call(**{**given, argument: x}))(value.value))
        else:
            jax.block_until_ready(call(**given))
    except Exception as error:
        return error
    return None


CONTRADICTIONS = (r"an array, got (ndarray|list)$", r"8 to 64 bits, got float8", r", ([\w\[\],]+), got \1\b")
CONTRADICTIONS += (r"or a function of two items, got <function",)


def misuse(rng: np.random.Generator) -> Other:
    """Draws a function; each run passes it one invalid argument."""
    name = str(rng.choice([name for name in FUNCTIONS if name != "sddmm"]))  # no kind of misuse fits sddmm's arguments
    cases = cases_of(name)

    def run(rng: np.random.Generator) -> None:
        argument, value = cases[int(rng.integers(len(cases)))]
        x64 = bool(rng.random() < 0.3)
        with jax.enable_x64(x64):
            error = error_of(name, argument, value)
        what = f"{argument} = {value!r:.80}"
        if error is None and x64 and value is NOW:
            return  # float64 tells the values apart
        if error is None and x64 and isinstance(value, int) and abs(value) < 2**62 and argument != "size":
            return  # int64 holds the value
        if error is None:
            raise AssertionError(f"{what}: taken")
        first = argument.split(",")[0].replace("a_values", "[ab]_values").replace("by_a", "by_[ab]")
        form = rf"{name}: [^:]*\b{first}\b[^:]*: expected .+, got .+"
        if not isinstance(error, TypeError | ValueError) or not re.match(form, str(error), re.DOTALL):
            raise AssertionError(f"{what}: {type(error).__name__}: {str(error)[:300]}")
        for words in CONTRADICTIONS:
            if re.search(words, str(error)):
                raise AssertionError(f"{what}: contradicts itself: {str(error)[:300]}")

    return Other(name, "eager", 48, run)
