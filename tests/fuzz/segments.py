"""Functions of segments, given as `Segments` of each form, compared with rows in NumPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jax_mgpu as mgpu
from tests.fuzz import draw
from tests.fuzz.compare import Equal, Near, Where
from tests.fuzz.draw import Call, Shape
from tests.fuzz.shared import int32, segments_with_gaps

Rows = list[tuple[int, int]]
FORMS = ("lengths", "offsets", "heads", "heads and ends", "ids", "flags", "ranges", "raw heads and ends")
NEEDLES = np.arange(-6, 7, dtype=np.int32)


def made(form: str, m: int, given: dict[str, Any]) -> Any:
    """Makes Segments of the operands of a form, or returns heads."""
    match form:
        case "raw heads and ends":
            return given["heads"]
        case "heads" | "heads and ends":
            return mgpu.Segments.from_heads(given.pop("heads"), **given)
        case "ids" | "flags":
            return getattr(mgpu.Segments, f"from_{form}")(given[form], m)
        case "ranges":
            return mgpu.Segments.from_ranges(**given)
        case _:
            return getattr(mgpu.Segments, f"from_{form}")(given[form])


def rows_of(form: str, n: int, m: int, given: dict[str, Any]) -> Rows:
    """Returns each segment's range of items, computed in NumPy."""
    given = {name: x.astype(np.int64) for name, x in given.items()}
    match form:
        case "lengths":
            ends = np.cumsum(given["lengths"])
            starts = ends - given["lengths"]
        case "offsets":
            starts, ends = given["offsets"][:-1], given["offsets"][1:]
        case "heads":
            starts = np.minimum(given["heads"], given["count"])
            ends = np.append(starts[1:], given["count"])[: len(starts)]
        case "ids":
            places = [np.flatnonzero(given["ids"] == i) for i in range(m)]
            return [(int(p[0]), int(p[-1]) + 1) if len(p) else (0, 0) for p in places]
        case "flags":
            firsts = [i for i in range(n) if given["flags"][i] or i == 0]
            bounds = np.append(firsts, np.full(m + 1, n)).astype(np.int64)[: m + 1]
            starts, ends = bounds[:-1], bounds[1:]
        case _:
            starts, ends = given.get("heads", given.get("starts")), given["ends"]
    return [(int(b), int(e)) if e > b else (0, 0) for b, e in zip(starts, ends, strict=True)]


def drawn_form(form: str, n: int, m: int, index: str, rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
    match form:
        case "lengths" | "offsets":
            lengths = draw.lengths_of(rng, m, n)
            return {form: (lengths if form == "lengths" else np.append(0, np.cumsum(lengths))).astype(index)}
        case "heads":
            return {"heads": draw.positions(rng, m, n, index), "count": np.asarray(rng.integers(0, n + 1), index)}
        case "flags":
            return {"flags": rng.random(n) < rng.choice([0.02, 0.2, 0.9])}
    given = segments_with_gaps(rng, m, n, index, mixable)
    given = {"starts": np.minimum(given["heads"], n), "ends": np.minimum(given["ends"], n)}
    if form.endswith("heads and ends"):
        return {"heads": given["starts"], "ends": given["ends"]}
    if form == "ranges":
        return given
    ids = np.full(n, rng.choice([-1, m, m + 7]), index)
    for i, (begin, end) in enumerate(zip(given["starts"], given["ends"], strict=True)):
        ids[begin:end] = i
    return {"ids": ids}


# ---- The results of each function, from rows -------------------------------------------------------------------------


def of_items(of_row: Callable[[np.ndarray], Any], fill: float = 0) -> Callable[[np.ndarray, Rows], list[Any]]:
    def expected(x: np.ndarray, rows: Rows) -> list[Any]:
        out = np.full(len(x), fill, x.dtype)
        for begin, end in rows:
            out[begin:end] = of_row(x[begin:end])
        return [out]

    return expected


def of_rows(of_row: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray, Rows], list[Any]]:
    return lambda x, rows: [np.array([of_row(x[begin:end]) for begin, end in rows], x.dtype)]


def sorted_rows(x: np.ndarray, rows: Rows) -> list[Any]:
    out = x.copy()
    for begin, end in rows:
        out[begin:end] = np.sort(x[begin:end])
    return [out]


def sorted_indices(x: np.ndarray, rows: Rows) -> list[Any]:
    order = np.arange(len(x))
    for begin, end in rows:
        order[begin:end] = begin + np.argsort(x[begin:end], kind="stable")
    return [int32(order)]


def softmax(x: np.ndarray, rows: Rows) -> list[Any]:
    out = np.zeros(len(x), np.float64)
    for begin, end in rows:
        powers = np.exp(x[begin:end].astype(np.float64) - x[begin:end].max(initial=-np.inf))
        out[begin:end] = powers / powers.sum()
    return [Near(out.astype(x.dtype), 1e-6 + 1e-5 * out)]


def quantiles(x: np.ndarray, rows: Rows) -> list[Any]:
    found = [np.quantile(x[b:e].astype(np.float64), 0.3) if e > b else np.nan for b, e in rows]
    return [Near(np.array(found, x.dtype), 1e-5)]


def numbers_of(x: np.ndarray, rows: Rows) -> list[Any]:
    ids = np.full(len(x), -1)
    for i, (begin, end) in enumerate(rows):
        ids[begin:end] = i
    return [int32(ids)]


def top(x: np.ndarray, rows: Rows) -> list[Any]:
    values, order = np.zeros((len(rows), 3), x.dtype), np.full((len(rows), 3), -1)
    for i, (begin, end) in enumerate(rows):
        first = np.argsort(-x[begin:end], kind="stable")[:3]
        values[i, : len(first)], order[i, : len(first)] = x[begin:end][first], begin + first
    return [values, int32(order), int32([min(e - b, 3) for b, e in rows])]


def laid_out(x: np.ndarray, rows: Rows) -> list[Any]:
    out = np.full((len(rows), 5), -7, x.dtype)
    for i, (begin, end) in enumerate(rows):
        out[i, : end - begin] = x[begin:end][:5]
    return [out]


def reversed_segments(x: np.ndarray, rows: Rows) -> list[Any]:
    parts = [x[begin:end] for begin, end in rows[::-1]]
    lengths = np.array([len(part) for part in parts], np.int64)
    packed = np.concatenate([x[:0], *parts])
    filled = np.append(packed, np.zeros(len(x), x.dtype))[: len(x)]
    return [filled, int32(np.cumsum(lengths) - lengths), int32(len(packed))]


def runs(x: np.ndarray, rows: Rows) -> list[Any]:
    starts = np.array([i for b, e in rows for i in range(b, e) if i == b or x[i] != x[i - 1]], np.int64)
    heads = [np.sum(starts < b) if e > b else 0 for b, e in rows]
    firsts = np.append(starts, np.full(len(x), len(x)))[: len(x)]
    return [int32(firsts), Where(int32(heads), np.array([e > b for b, e in rows], bool)), int32(len(starts))]


def found_in_rows(x: np.ndarray, rows: Rows) -> list[Any]:
    ids = np.arange(len(NEEDLES)) % max(len(rows), 1)
    bounds = [rows[i] if i < len(rows) else None for i in ids]
    full = np.array([bound is None or bound[1] > bound[0] for bound in bounds], bool)
    places = [
        -1 if bound is None else bound[0] + np.searchsorted(np.sort(x[slice(*bound)]), needle)
        for bound, needle in zip(bounds, NEEDLES, strict=True)
    ]
    return [Where(int32(places), full)]


def number_of(s: Any) -> int:
    return s.number if isinstance(s, mgpu.Segments) else len(s)


def search(x: Any, s: Any, **ends: Any) -> Any:
    ids = np.arange(len(NEEDLES), dtype=np.int32) % max(number_of(s), 1)
    return mgpu.segmented_search(NEEDLES, ids, mgpu.segmented_sort(x, s, **ends), s, **ends)


def pooled(x: Any, s: Any, **ends: Any) -> Any:
    """Returns weighted sums of entries by index; every third entry is dropped."""
    places = np.arange(x.shape[0], dtype=np.int32)
    entries = {"indices": np.where(places % 3 == 2, -1, places[::-1]), "weights": (places % 5).astype(x.dtype)}
    return mgpu.segmented_reduce(x, s, **entries, **ends)


def sums_of_entries(x: np.ndarray, rows: Rows) -> list[Any]:
    places = np.arange(len(x))
    entries = np.where(places % 3 == 2, 0, x[::-1] * (places % 5))
    return [np.array([entries[begin:end].sum() for begin, end in rows], x.dtype)]


def chosen(x: np.ndarray, rows: Rows) -> list[Any]:
    """Returns each row's first item where the running sum of positive items exceeds half of their sum, or -1."""
    found = []
    for begin, end in rows:
        sums = np.cumsum(np.maximum(x[begin:end], 0))
        found.append(begin + np.argmax(2 * sums > sums[-1]) if end > begin and sums[-1] > 0 else -1)
    return [int32(found)]


def choose(x: Any, s: Any, **ends: Any) -> Any:
    s = mgpu.Segments.from_ranges(s, ends["ends"]) if ends else s
    return mgpu.weighted_choice(np.full(number_of(s), 0.5, np.float32), x, s)


def log_softmax(x: np.ndarray, rows: Rows) -> list[Any]:
    out = np.zeros(len(x), np.float64)
    for begin, end in rows:
        shifted = x[begin:end].astype(np.float64) - x[begin:end].max(initial=-np.inf)
        out[begin:end] = shifted - np.log(np.exp(shifted).sum() if len(shifted) else 1)
    return [Near(out.astype(x.dtype), 1e-6 + 1e-5 * np.abs(out))]


def ranks(row: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.sort(row), row) + 1


def shifted(row: np.ndarray) -> np.ndarray:
    return np.append(np.asarray([-9], row.dtype), row)[: len(row)]


@dataclasses.dataclass(frozen=True)
class Function:
    """A call on items, segments and sometimes ends; its results; and the type of its items."""

    name: str
    call: Callable[..., Any]
    expected: Callable[[np.ndarray, Rows], list[Any]]
    dtype: str = "int32"


FUNCTIONS = (
    Function("segmented_reduce", mgpu.segmented_reduce, of_rows(np.sum)),
    Function(
        "segmented_reduce",
        lambda x, s, **ends: mgpu.segmented_reduce(x, s, "or", **ends),
        of_rows(np.bitwise_or.reduce),
    ),
    Function("segmented_scan", mgpu.segmented_scan, of_items(np.cumsum)),
    Function(
        "segmented_scan",
        lambda x, s, **ends: mgpu.segmented_scan(x, s, reverse=True, exclusive=True, **ends),
        of_items(lambda row: np.cumsum(row[::-1])[::-1] - row),
    ),
    Function(
        "segmented_scan",
        lambda x, s, **ends: mgpu.segmented_scan(x, s, lambda a, b: a + b, map=lambda x: -x, **ends),
        of_items(lambda row: np.cumsum(-row)),
    ),
    Function("segmented_sort", mgpu.segmented_sort, sorted_rows),
    Function(
        "segmented_sort", lambda x, s, **ends: mgpu.segmented_sort(x, s, less=lambda a, b: a < b, **ends), sorted_rows
    ),
    Function(
        "segmented_sort_indices", lambda x, s, **ends: mgpu.segmented_sort_indices(x, s, **ends)[1], sorted_indices
    ),
    Function("segmented_softmax", mgpu.segmented_softmax, softmax, "float32"),
    Function(
        "segmented_quantile", lambda x, s, **ends: mgpu.segmented_quantile(x, s, 0.3, **ends), quantiles, "float32"
    ),
    Function("segmented_top_k", lambda x, s, **ends: mgpu.segmented_top_k(x, s, 3, **ends), top),
    Function("segment_ids", lambda x, s, **ends: mgpu.segment_ids(s, x.shape[0], **ends), numbers_of),
    Function("to_dense", lambda x, s, **ends: mgpu.to_dense(x, s, 5, fill_value=-7, **ends), laid_out),
    Function(
        "take_segments",
        lambda x, s, **ends: mgpu.take_segments(
            x, s, np.arange(number_of(s), dtype=np.int32)[::-1], size=x.shape[0], **ends
        ),
        reversed_segments,
    ),
    Function("run_starts", mgpu.run_starts, runs),
    Function("rank", mgpu.rank, lambda x, rows: [int32(of_items(ranks)(x, rows)[0])]),
    Function("segmented_shift", lambda x, s, **ends: mgpu.segmented_shift(x, s, 1, -9, **ends), of_items(shifted, -9)),
    Function("segmented_search", search, found_in_rows),
    Function("segmented_log_softmax", mgpu.segmented_log_softmax, log_softmax, "float32"),
    Function("segmented_reduce", pooled, sums_of_entries),
    Function("weighted_choice", choose, chosen),
)


def segments(shape: Shape) -> Call:
    function, form = shape.choice(FUNCTIONS), shape.choice(FORMS)
    shape.derivative = False
    n = min(shape.size(), 20_000)
    m = shape.choice((0, 1, 3, min(n // 5, 500)))
    index = shape.choice(("int32", "int64") if shape.x64 else ("int32",))
    shape.say(function.name, form, f"m={m}", index, "short" if function.name == "to_dense" else "")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        x = rng.integers(-5, 6, n).astype(function.dtype)
        return {"x": x} | drawn_form(form, n, m, index, rng, mixable)

    def call(x: Any, **given: Any) -> Any:
        ends = {"ends": given["ends"]} if form.startswith("raw") else {}
        return jax.tree.leaves(function.call(x, made(form, m, given), **ends))

    def expected(x: np.ndarray, **given: Any) -> list[Any]:
        leaves = function.expected(x, rows_of(form, n, m, given))
        return [Equal(leaf) if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f" else leaf for leaf in leaves]

    return Call(
        function.name, call, draw_operands, expected, shape.x64, (), finite=function.name != "segmented_quantile"
    )
