"""Calls over rows and their oracles: one named operator per leaf, segments with ends, and ids."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.fuzz import draw
from tests.fuzz.compare import Near
from tests.fuzz.draw import Call, Shape, names_of
from tests.fuzz.shared import segments_with_gaps

NAMES = ("add", "sum", "mean", "min", "max", "argmin", "argmax", "any", "all", "and", "or", "xor")
ALL_NAMES = (*NAMES, *oracle.STATISTICS, *oracle.NAN_FORMS)
SMOOTH = ("add", "mean", "var", "first", "last", "nansum")
EXACT = {"add", "sum", "min", "max", "argmin", "argmax", "first", "last", "count", "nunique"}
INTEGERS = ("int32", "uint8", "bool")
NAN_OVER_NOTHING = {"mean", "var", "std", "median", "nanmean", "nanmin", "nanmax"}


def _items(shape: Shape, dtype: str, op: str, rng: np.random.Generator, *sizes: int) -> np.ndarray:
    """Draws small integers, whose sums are exact in float32; for derivatives, normal numbers."""
    if dtype == "bool":
        return rng.random(sizes) < 0.8
    if shape.derivative:
        return rng.normal(size=sizes).astype(jnp.dtype(dtype))
    least = 0 if np.dtype(jnp.dtype(dtype)).kind == "u" or op in ("any", "all") else -4
    return rng.integers(least, 5, sizes).astype(jnp.dtype(dtype))


def _expected(
    x: np.ndarray, op: str, parts: list[np.ndarray], x64: bool, dtype: str | None = None, ddof: int = 0
) -> Any:
    """Returns the combination of each part's rows; indices are positions in x."""
    x = x if dtype is None else x.astype(dtype)

    def combined(rows: np.ndarray) -> np.ndarray:
        spread = ddof and op in ("var", "std")
        return np.asarray(oracle.statistic(rows, op, ddof) if spread else oracle.combined(rows, op, dtype is None))

    results = [combined(x[part]) for part in parts]
    if op.startswith("arg"):
        results = [np.append(part, -1).astype(np.int32)[r] for part, r in zip(parts, results, strict=True)]
    stacked = np.stack([*results, combined(x[:0])])[:-1]
    is_float = x.dtype.kind not in "iub"
    if op in ("var", "std", "median", "nanmean"):
        stacked = stacked if is_float or x64 else stacked.astype(np.float32)
        error = 40 * float(jnp.finfo(stacked.dtype).eps) if op != "median" else 0
        return Near(stacked, error * (1 + np.abs(np.nan_to_num(stacked.astype(np.float64)))))
    if op not in ("add", "sum", "mean", "nansum"):
        return stacked
    dtype = np.dtype(np.float64 if x64 else np.float32) if op == "mean" and not is_float else stacked.dtype
    if op != "mean" and (not is_float or np.array_equal(x, np.round(x.astype(np.float64)))):
        return stacked
    # A sum's error is relative to the sizes of its terms.
    sizes = [np.abs(np.asarray(x[part], np.float64)).sum(axis=0) for part in parts]
    scale = np.stack(sizes) if sizes else np.zeros(stacked.shape)
    if op == "mean":
        lengths = np.array([max(len(part), 1) for part in parts]).reshape(-1, *[1] * (x.ndim - 1))
        scale = scale / lengths
    return Near(stacked.astype(dtype), 4 * float(jnp.finfo(dtype).eps) * np.nan_to_num(scale) + 1e-30)


def _segments(heads: np.ndarray, ends: Any, live: int) -> list[np.ndarray]:
    begins = np.clip(heads.astype(np.float64), 0, live).astype(np.int64)
    stops = np.append(begins[1:], live)[: len(begins)]
    if ends is not None:
        stops = np.clip(ends.astype(np.float64), 0, live).astype(np.int64)
    return [np.arange(begin, max(begin, stop)) for begin, stop in zip(begins, stops, strict=True)]


def _entries(x: Any, parts: list[np.ndarray], indices: Any, weights: Any) -> tuple[Any, list[np.ndarray]]:
    """Returns the weighted entries of each array, taken by index, and the entries that each segment keeps."""
    if indices is not None:
        is_row = (indices >= 0) & (indices < len(x[0]))
        parts = [part[is_row[part]] for part in parts]
        x = [np.concatenate([leaf, np.zeros((1, *leaf.shape[1:]), leaf.dtype)]) for leaf in x]
        x = [leaf[np.where(is_row, indices, -1)] for leaf in x]
    if weights is not None:
        x = [leaf * weights.reshape(-1, *[1] * (leaf.ndim - 1)).astype(leaf.dtype) for leaf in x]
    return x, parts


def _options(shape: Shape, names: set[str], dtype: str) -> dict[str, Any]:
    options: dict[str, Any] = {"ddof": 1} if names & {"var", "std"} and shape.flag() else {}
    if names <= EXACT and shape.flag(0.4):
        options["dtype"] = shape.choice(("int8", "int32", "float32") if dtype in INTEGERS else ("float32",))
    shape.say(*(f"{what}={x}" for what, x in options.items()))
    return options


def rows(shape: Shape) -> Call:
    name = shape.choice(("reduce", "segmented_reduce", "reduce_by_id", "interval_reduce"))
    n, width = min(shape.size(), 3000), shape.choice(((), (1,), (3,), (2, 4), (17,)))
    names = NAMES if name == "interval_reduce" else ALL_NAMES
    first = shape.choice(tuple(op for op in SMOOTH if op in names) if shape.derivative else names)
    second = shape.choice(names)
    floats = ("float32", "float16", "bfloat16")
    dtype = shape.choice(floats if first not in ("and", "or", "xor") else ("int32", "uint8", "bool"))
    dtype = "float32" if shape.derivative else dtype
    m, gaps, index = shape.choice((0, 1, 3, 40)), shape.flag(0.4), shape.index_dtype(0)
    size = shape.choice((0, 1, 7, 60))
    table = shape.choice((0, 1, 5, 300)) if name == "segmented_reduce" and shape.flag(0.4) else None
    has_weights = name == "segmented_reduce" and {first, second} <= {"add", "sum"} and shape.flag(0.5)
    count = shape.count(n)
    options = {} if has_weights or shape.derivative else _options(shape, {first, second}, dtype)
    shape.say(
        name,
        first,
        second,
        dtype,
        list(width),
        f"m={m}",
        f"size={size}",
        "gaps" * gaps,
        f"of {table}",
        "w" * has_weights,
    )

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        rows = n if table is None else table
        x = _items(shape, dtype, first, rng, rows, *width)
        y = _items(shape, "int32", second, rng, rows)
        given: dict[str, Any] = {"x": x, "y": y}
        if name == "segmented_reduce":
            given |= segments_with_gaps(rng, m, n, index, mixable) if gaps else {
                "heads": draw.positions(rng, m, n, index)
            }  # fmt: skip
        if name == "interval_reduce":
            low = 0 if np.dtype(index).kind == "u" else -2
            bounds = rng.integers(low, min(n + 3, np.iinfo(index).max), (2, m))
            given |= dict(zip(("heads", "ends"), bounds.astype(index), strict=True))
        if name == "reduce_by_id":
            low = 0 if np.dtype(index).kind == "u" else -1
            given["ids"] = rng.integers(low, min(size + 2, np.iinfo(index).max), n).astype(index)
        if table is not None:
            given["indices"] = rng.integers(-1, table + 1, n).astype(np.int32)
        if has_weights:
            given["weights"] = rng.integers(0, 3, n).astype(np.int8)
        return given | names_of(name, count=draw.drawn(count, rng))

    def function(x: Any, y: Any, heads: Any = None, ids: Any = None, **others: Any) -> Any:
        given = [x for x in (heads, ids) if x is not None] + [size] * (name == "reduce_by_id")
        return getattr(mgpu, name)({"x": x, "y": y}, *given, op={"x": first, "y": second}, **options, **others)

    def expected(
        x: Any,
        y: Any,
        heads: Any = None,
        ends: Any = None,
        ids: Any = None,
        count: Any = None,
        indices: Any = None,
        weights: Any = None,
    ) -> list[Any]:
        live = oracle.live_count(count, n)
        if name == "reduce":
            parts = [np.arange(live)]
        elif name == "reduce_by_id":
            places = ids[:live].astype(np.float64)
            parts = [np.flatnonzero(places == i) for i in range(size)]
        else:
            parts = _segments(heads, ends, live)
        (x, y), parts = _entries((x, y), parts, indices, weights)
        found = [_expected(leaf, op, parts, shape.x64, **options) for leaf, op in ((x, first), (y, second))]
        if name != "reduce":
            return found
        return [Near(f.expected[0], f.error[0]) if isinstance(f, Near) else f[0] for f in found]

    shape.finite = shape.finite and not {first, second} & NAN_OVER_NOTHING
    linear = ("x",) if first in ("add", "sum", "first", "last") and dtype == "float32" else ()
    return Call(name, function, draw_operands, expected, shape.x64, linear, (), finite=shape.finite)
