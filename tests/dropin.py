"""Random calls of the functions that have JAX's names, compared with JAX.

`python -m tests.dropin --cases 1000` makes 1,000 calls of each function; `--match unique` selects functions by name.
One call in 20 has new shapes, types or options; the others only have new values.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import jax_mgpu.numpy
import jax_mgpu.ops
from jax_mgpu._src import drop_in
from tests import quick

Draw = Callable[..., Any]

SHAPES = [(), (0,), (1,), (5,), (64,), (300,), (1100,), (3, 40), (40, 3), (2, 3, 8), (0, 4), (2, 1030)]
INTEGERS = [f"{sign}{bits}" for sign in ("int", "uint") for bits in (8, 16, 32)]
FLOATS = ["float16", "bfloat16", "float32"]
OTHERS = ["bool", "complex64", "float8_e4m3fn", "int4"]
WIDE = ["int64", "uint64", "float64"]
DTYPES = INTEGERS + FLOATS + OTHERS
SPECIAL = [-np.inf, -2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0, np.inf, np.nan]


class Case:
    def __init__(self, *arrays: Any, **options: Any):
        self.arrays, self.options = arrays, options
        self.rounds = False
        self.fixed: tuple[int, ...] = ()

    def rounded(self) -> Case:
        self.rounds = True
        return self

    def with_fixed(self, *positions: int) -> Case:
        """Marks arguments whose values stay."""
        self.fixed = positions
        return self

    def redraw(self, rng: np.random.Generator) -> None:
        """Draws new items of each argument that is not fixed from the items that it has."""

        def redrawn(x: Any) -> Any:
            return rng.choice(x.ravel(), x.shape) if isinstance(x, np.ndarray) and x.size else x

        self.arrays = tuple(x if i in self.fixed else jax.tree.map(redrawn, x) for i, x in enumerate(self.arrays))

    def __repr__(self) -> str:
        shown = [
            f"{x.dtype}{list(x.shape)} {x.ravel()[:8].tolist()}" for x in map(np.asarray, jax.tree.leaves(self.arrays))
        ]
        return f"({', '.join(shown)}, {self.options})"


def pick(draw: Draw, *choices: Any) -> Any:
    return draw(st.sampled_from(choices))


def seeded(draw: Draw) -> np.random.Generator:
    return np.random.default_rng(draw(st.integers(0, 2**16)))


def array(draw: Draw, shape: Sequence[int] | None = None, dtypes: Sequence[str] = DTYPES, finite: bool = False) -> Any:
    """Draws an array with many equal or extreme values."""
    shape = pick(draw, *SHAPES) if shape is None else tuple(shape)
    dtype = jnp.dtype(pick(draw, *dtypes, *(WIDE if jax.config.jax_enable_x64 and len(dtypes) > 3 else [])))
    rng = seeded(draw)
    if jnp.issubdtype(dtype, jnp.floating) and not finite and pick(draw, True, False):
        x = rng.choice(SPECIAL, shape)
    elif dtype.kind in "iu" and pick(draw, True, False, False):
        info = jnp.iinfo(dtype)
        x = rng.choice([info.min, info.max, 0, 1, info.max // 2], shape)
    elif dtype.kind == "c":
        x = rng.choice([-1.0, 0.0, 2.0], shape) + 1j * rng.choice([0.0, 1.0], shape)
    else:
        x = rng.integers(0 if dtype.kind in "ub" else -4, 6, shape)
        x = x * 0.75 if jnp.issubdtype(dtype, jnp.floating) else x
    return np.asarray(x).astype(dtype)


def rows(draw: Draw, dtypes: Sequence[str] = DTYPES, finite: bool = False) -> tuple[Any, int | None]:
    """Draws an array, and an axis that may be invalid."""
    x = array(draw, None, dtypes, finite)
    return x, pick(draw, -1, 0, None, 1, x.ndim - 1)


def fill(draw: Draw) -> Any:
    return pick(draw, None, None, 0, 3, -1, 1.5, np.nan, np.float32(2), np.int32(7), (1,), "wrong shape")


def filled(draw: Draw, **options: Any) -> dict[str, Any]:
    """Draws options of a function with `size=`."""
    size = pick(draw, None, 0, 1, 4, 60, 400)
    if size is None:
        return options
    value = fill(draw)
    value = np.zeros(2) if isinstance(value, str) else value
    return {**options, "size": size, **({} if value is None else {"fill_value": value})}


def _sort(draw: Draw) -> Case:
    x, axis = rows(draw)
    stable = x.dtype.kind not in "iub" or pick(draw, True, False)  # unstable sorts mix zeros of both signs
    options = {"axis": axis, "descending": pick(draw, False, True), "stable": stable}
    if pick(draw, False, False, False, True):
        options["kind"] = "stable"
    return Case(x, **options)


def _argsort(draw: Draw) -> Case:
    case = _sort(draw)
    case.options["stable"] = True  # an unstable order may differ from JAX's
    if pick(draw, False, False, True):
        case.options["dtype"] = pick(draw, "int32", "int8", "float32")
    return case


def _lexsort(draw: Draw) -> Case:
    shape = pick(draw, *SHAPES)
    keys = [array(draw, shape) for _ in range(pick(draw, 1, 2, 3))]
    return Case(keys if pick(draw, True, False) else tuple(keys), axis=pick(draw, -1, 0, 1))


def _top_k(draw: Draw) -> Case:
    x = array(draw)
    return Case(x, k=pick(draw, 1, 3, 40, 64, 0, 2000), axis=pick(draw, -1, 0, 1))


def _cumulative(draw: Draw) -> Case:
    x, axis = rows(draw)
    dtype = pick(draw, None, None, "float32", "int8", "bool", "int32")
    return Case(x, axis=axis, dtype=dtype).rounded()


def _cumprod(draw: Draw) -> Case:
    """Draws factors whose products do not overflow in any order."""
    case = _cumulative(draw)
    x = case.arrays[0]
    choices = [-1.0, 1.0, 0.5, 0.0, np.nan] if jnp.issubdtype(x.dtype, jnp.inexact) else [0, 1, 1]
    return Case(seeded(draw).choice(choices, x.shape).astype(x.dtype), **case.options).rounded()


def _quantile(draw: Draw) -> Case:
    x, axis = rows(draw)
    axis = pick(draw, axis, (0,), (0, 1), (-1, 0), (0, 0))
    q = pick(draw, 0.5, 0.1, 1.0, np.float32(0.3), np.array([0.2, 0.9], np.float32), 0, np.linspace(0, 1, 7), np.nan)
    q = q.astype(np.float32) if isinstance(q, np.ndarray) else q
    method = pick(draw, "linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf", "wrong")
    return Case(x, q, axis=axis, keepdims=pick(draw, False, True), method=method)


def _percentile(draw: Draw) -> Case:
    case = _quantile(draw)
    q = pick(draw, 50, 33.3, 100, 0, np.array([20, 90]), np.array([0.5, 99.5], np.float32))
    return Case(case.arrays[0], q, **case.options).rounded()  # XLA may multiply by 0.01 where JAX divides by 100


def _median(draw: Draw) -> Case:
    x, axis = rows(draw)
    return Case(x, axis=pick(draw, axis, (0, 1), (-1, 0)), keepdims=pick(draw, False, True))


def _nonzero(draw: Draw) -> Case:
    x = array(draw)
    if pick(draw, True, False):
        x = x.astype(bool)
    return Case(x, **filled(draw))


def _compress(draw: Draw) -> Case:
    x, axis = rows(draw)
    n = pick(draw, x.size if axis is None else x.shape[axis] if -x.ndim <= axis < x.ndim else 3, 2)
    condition = array(draw, (n,), ["bool", "bool", "int32", "float32"])
    options = {"axis": axis}
    if pick(draw, True, False):
        options |= {"size": pick(draw, 0, 1, 3, n)}
        if pick(draw, True, False):
            options["fill_value"] = pick(draw, 0, 7, 1.5, np.nan, True)
    return Case(condition, x, **options)


def _extract(draw: Draw) -> Case:
    case = _compress(draw)
    del case.options["axis"]
    return case


def _repeat(draw: Draw) -> Case:
    x, axis = rows(draw)
    n = x.size if axis is None else x.shape[axis] if -x.ndim <= axis < x.ndim else 3
    lengths = (
        np.random.default_rng(draw(st.integers(0, 99))).integers(0, 4, n).astype(pick(draw, "int32", "int8", "uint32"))
    )
    lengths = pick(draw, lengths, lengths, lengths, lengths[:1], np.int32(2), 3)
    if pick(draw, True, False):
        return Case(x, lengths, axis=axis)
    return Case(x, lengths, axis=axis, total_repeat_length=pick(draw, 0, 1, 7, int(np.sum(lengths)), 200))


def _take(draw: Draw) -> Case:
    x, axis = rows(draw)
    indices = array(draw, pick(draw, (), (0,), (5,), (3, 40)), ["int32", "int8", "uint8"])
    mode = pick(draw, None, None, "fill", "clip", "wrap", "raise")
    options = {} if pick(draw, True, True, False) else {"fill_value": 7}
    return Case(x, indices, axis=axis, mode=mode, **options)


def _searchsorted(draw: Draw) -> Case:
    dtype = pick(draw, *DTYPES)
    a = array(draw, pick(draw, (0,), (1,), (5,), (300,)), [dtype])
    v = array(draw, None, [dtype if pick(draw, True, True, True, False) else pick(draw, *DTYPES)])
    options: dict[str, Any] = {"side": pick(draw, "left", "right")}
    if pick(draw, True, True, False):
        options["method"] = pick(draw, "scan", "scan_unrolled", "sort", "compare_all", "wrong")
    ordered = jnp.sort(a.astype(np.int8)).astype(dtype) if "int4" in dtype else jnp.sort(a)  # XLA:GPU sorts no int4
    if a.dtype.kind == "c" or pick(draw, False, False, True):
        return Case(ordered, v, sorter=np.arange(a.shape[0], dtype=np.int32), **options).with_fixed(0)
    return Case(np.asarray(ordered), v, **options).with_fixed(0)  # NumPy mixes NaN of bfloat16 with numbers


def _bincount(draw: Draw) -> Case:
    x = array(draw, pick(draw, (0,), (5,), (300,), (3, 40)), ["int32", "int8", "uint8", "float32", "bool"])
    x = x if x.dtype.kind in "fb" else np.minimum(x, 50)
    options: dict[str, Any] = {"length": pick(draw, 0, 3, 20)} if pick(draw, True, False) else {}
    if pick(draw, True, False):
        options["minlength"] = pick(draw, 0, 9)
    weights = (
        [array(draw, x.shape, ["float32", "float16", "int32", "int8", "bool"], True)] if pick(draw, True, False) else []
    )
    return Case(x, *weights, **options).rounded()


def _histogram(draw: Draw) -> Case:
    # JAX counts in the type of the items, and bfloat16 counts only to 256.
    x = array(draw, None, ["float32", "float32", "int32", "bool"], pick(draw, True, True, False))
    bins = pick(draw, 10, 3, 1, 0, np.array([-1, 0, 0.5, 3], np.float32), np.array([0.0]), np.array([0, 1, 5]))
    options: dict[str, Any] = {"bins": bins}
    if pick(draw, True, False):
        options["range"] = (-1.0, 2.0)
    if pick(draw, False, True):
        options["density"] = pick(draw, True, False)
    if pick(draw, False, False, True):
        options["weights"] = array(draw, x.shape, ["float32"], True)
    return Case(x, **options).rounded()


def _unique(draw: Draw) -> Case:
    x = array(draw)
    options = {name: True for name in ("return_index", "return_inverse", "return_counts") if pick(draw, True, False)}
    if pick(draw, False, False, True):
        options["axis"] = pick(draw, 0, -1, 1)
        x = x if x.size < 300 else x[..., :40]  # XLA takes minutes to compile a sort by 1,000 keys
    if pick(draw, False, False, True):
        options["equal_nan"] = False
    return Case(x, **filled(draw, **options))


def _unique_part(draw: Draw) -> Case:
    return Case(array(draw), **filled(draw))


def _sets(draw: Draw) -> Case:
    a = array(draw)
    b = array(draw, None, [a.dtype.name if pick(draw, True, True, False) else pick(draw, *DTYPES)])
    options: dict[str, Any] = {}
    if pick(draw, False, False, True):
        options["assume_unique"] = True
        a, b = (np.asarray(jnp.unique(x)) for x in (a, b))
    case = Case(a, b, **filled(draw, **options))
    return case.with_fixed(0, 1) if "assume_unique" in options else case


def _union1d(draw: Draw) -> Case:
    case = _sets(draw)
    case.options.pop("assume_unique", None)
    return case


def _intersect1d(draw: Draw) -> Case:
    case = _sets(draw)
    if pick(draw, True, False):
        case.options["return_indices"] = True
    return case


def _isin(draw: Draw) -> Case:
    case = _sets(draw)
    options: dict[str, Any] = {"invert": True} if pick(draw, False, True) else {}
    if pick(draw, True, False):
        options["method"] = pick(draw, "auto", "compare_all", "binary_search", "sort", "wrong")
    return Case(*case.arrays, **options)


def _segments(draw: Draw) -> Case:
    x = array(draw)
    n = x.shape[0] if x.ndim else 3
    ids = (
        np.random.default_rng(draw(st.integers(0, 99))).integers(-2, 7, n).astype(pick(draw, "int32", "int8", "uint8"))
    )
    options: dict[str, Any] = {}
    if pick(draw, False, False, True):
        ids, options["indices_are_sorted"] = np.sort(ids), True
    if pick(draw, True, True, False):
        options["num_segments"] = pick(draw, 5, 5, 8, 0, -1)
    if pick(draw, False, False, True):
        options["mode"] = pick(draw, "drop", "fill", "clip", jax.lax.GatherScatterMode.FILL_OR_DROP)
    if pick(draw, False, False, False, True):
        options["bucket_size"] = pick(draw, 2, 16)
    case = Case(x, ids, **options).rounded()
    return case.with_fixed(1) if "indices_are_sorted" in options else case


NUMPY: dict[str, Callable[[Draw], Case]] = {
    "argsort": _argsort,
    "argwhere": _nonzero,
    "bincount": _bincount,
    "compress": _compress,
    "cumprod": _cumprod,
    "cumsum": _cumulative,
    "extract": _extract,
    "flatnonzero": _nonzero,
    "histogram": _histogram,
    "intersect1d": _intersect1d,
    "isin": _isin,
    "lexsort": _lexsort,
    "median": _median,
    "nonzero": _nonzero,
    "percentile": _percentile,
    "quantile": _quantile,
    "repeat": _repeat,
    "searchsorted": _searchsorted,
    "setdiff1d": _sets,
    "setxor1d": _sets,
    "sort": _sort,
    "take": _take,
    "top_k": _top_k,
    "union1d": _union1d,
    "unique": _unique,
    "unique_counts": _unique_part,
    "unique_values": _unique_part,
}
OPS = {f"segment_{op}": _segments for op in ("sum", "prod", "max", "min")}


@contextlib.contextmanager
def kernels_everywhere() -> Iterator[None]:
    kept, drop_in.is_faster = drop_in.is_faster, lambda min_items, items: items > 0
    try:
        yield
    finally:
        drop_in.is_faster = kept


def pair(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    if name in OPS:
        return getattr(jax_mgpu.ops, name), getattr(jax.ops, name)
    return getattr(jax_mgpu.numpy, name), jax.lax.top_k if name == "top_k" else getattr(jnp, name)


def caller(function: Callable[..., Any], case: Case, mode: str) -> Callable[..., Any]:
    """Returns a function of the case's arguments that returns the results or the type of an error."""
    options = case.options
    static = {i: x for i, x in enumerate(case.arrays) if isinstance(x, int)}

    def call(*arrays: Any) -> Any:
        rest = iter(arrays)
        return function(*(static[i] if i in static else next(rest) for i in range(len(case.arrays))), **options)

    transformed = {"jit": jax.jit, "vmap": jax.vmap}.get(mode, lambda function: function)(call)

    def attempt(*arguments: Any) -> Any:
        given = [x for i, x in enumerate(arguments) if i not in static]
        if mode != "numpy":
            given = [jax.tree.map(jnp.asarray, x) if isinstance(x, np.ndarray | list | tuple) else x for x in given]
        try:
            return transformed(*given)
        except Exception as error:
            return type(error)

    return attempt


def outcome(function: Callable[..., Any], case: Case, mode: str) -> Any:
    return caller(function, case, mode)(*case.arrays)


def compare(ours: Any, theirs: Any, rounds: bool) -> None:
    """Checks that two results agree, or are the same type of error."""
    if isinstance(theirs, type):
        assert ours is theirs, f"{ours} instead of {theirs}"
        return
    assert not isinstance(ours, type), f"{ours} is raised, not {theirs}"
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        one_type, other_type = jax.typeof(one), jax.typeof(other)
        assert one_type == other_type, f"{one_type} instead of {other_type}"
        assert one_type.weak_type == other_type.weak_type, f"weak type: {one_type.weak_type}"
        x, y = np.asarray(jax.device_get(one)), np.asarray(jax.device_get(other))
        if rounds and jnp.issubdtype(x.dtype, jnp.inexact):
            wide = np.complex128 if x.dtype.kind == "c" else np.float64
            tolerance = 8 * float(jnp.finfo(x.dtype).eps) * max(1, x.size) ** 0.5
            np.testing.assert_allclose(x.astype(wide), y.astype(wide), rtol=tolerance, atol=tolerance * 64)
        elif x.tobytes() != y.tobytes():
            np.testing.assert_array_equal(x.astype(complex), y.astype(complex))
            signs = [np.signbit(part.astype(np.float64).real) for part in (x, y)] if x.dtype.kind != "c" else [0, 0]
            np.testing.assert_array_equal(
                np.where(np.isnan(x.astype(complex)), 0, signs[0]),
                np.where(np.isnan(y.astype(complex)), 0, signs[1]),
                "signs of zeros",
            )


VALUES = 20  # calls per compiled program
PART = 250  # calls per part; each part has its own seed

MODES = "eager", "eager", "numpy", "jit", "vmap", "x64", "strict"


def check(name: str, draw: Draw) -> None:
    mode = pick(draw, *MODES)
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if mode == "x64":
            stack.enter_context(jax.enable_x64(True))
        if mode == "strict":
            stack.enter_context(jax.numpy_dtype_promotion("strict"))
        case = {**NUMPY, **OPS}[name](draw)
        rng = seeded(draw)
        ours, theirs = (caller(function, case, mode) for function in pair(name))
        for turn in range(VALUES):
            with kernels_everywhere():
                got = ours(*case.arrays)
            try:
                compare(got, theirs(*case.arrays), case.rounds)
            except AssertionError as error:
                error.add_note(f"{name}{case!r} in mode {mode}, values {turn}")
                raise
            case.redraw(rng)


# Each example may compile a program, so failures are not shrunk.
SETTINGS = hypothesis.settings(
    deadline=None,
    database=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)


def drawn(name: str, cases: int, seed: int = 0) -> Callable[[], None]:
    @hypothesis.seed(seed)
    @hypothesis.settings(SETTINGS, max_examples=-(-cases // VALUES))
    @hypothesis.given(st.data())
    def run(data: Any) -> None:
        check(name, data.draw)

    return run


def difference(name: str, cases: int, seed: int) -> str:
    """Describes the first drawn call that differs; returns an empty text if none does."""
    quick.compile_quickly()
    quick.lower_quickly()
    try:
        drawn(name, cases, seed)()
    except Exception as error:
        return f"{error}\n  {getattr(error, '__notes__', '')}"
    finally:
        jax.clear_caches()
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.dropin", description=__doc__)
    parser.add_argument("--cases", type=int, default=200, help="calls of each function (default 200)")
    parser.add_argument("--match", default="", help="functions with this in their name")
    parser.add_argument("--processes", type=int, default=1, help="number of processes (default 1)")
    options = parser.parse_args()
    names = [name for name in (*NUMPY, *OPS) if options.match in name]
    parts = [min(PART, options.cases - begin) for begin in range(0, options.cases, PART)]
    failed = []
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=4) as pool:
        running = [[pool.apply_async(difference, (name, part, i)) for i, part in enumerate(parts)] for name in names]
        for name, results in zip(names, running, strict=True):
            differing = [text for text in (result.get() for result in results) if text]
            failed += [name] * bool(differing)
            print(f"{name}: {differing[0] if differing else f'{options.cases} calls are alike'}", flush=True)
    print(f"{len(failed)} functions differ: {', '.join(failed)}" if failed else "no function differs")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
