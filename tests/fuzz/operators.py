"""Operators of reductions and scans, and their results in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests import oracle
from tests.fuzz import draw
from tests.fuzz.compare import Equal, Near, Where
from tests.fuzz.draw import Shape
from tests.fuzz.functions import ItemMap

OPERATORS = ("add", "add", "mul", "min", "max", "argmin", "argmax")


def items(shape: Shape, rng: np.random.Generator, dtype: str, op: str, n: int) -> np.ndarray:
    """Draws items that an operator may combine in any grouping."""
    kind = jnp.dtype(dtype)
    if kind.kind in "iu" or op not in ("add", "mul"):
        return draw.keys(shape, rng, dtype, n)
    if op == "mul":
        x = np.where(rng.random(n) < 0.5, 1.0, -1.0)
        if shape.derivative:
            x = rng.integers(-2, 3, n).astype(float)
        elif n:
            few = rng.integers(0, n, min(n, 12))
            x[few] *= rng.choice([0.5, 2.0], len(few))
            if rng.random() < 0.3:
                x[rng.integers(n)] = 0.0
            if dtype == "float16" and rng.random() < 0.3:
                x[rng.integers(n)] = 2.0**-20  # it is subnormal here, but not in float32
        return x.astype(kind)
    at = rng.random()
    if shape.derivative or at < 0.4:
        return rng.integers(-8, 9, n).astype(kind)
    if at < 0.6:  # subnormals must not count as zeros
        return (rng.integers(0, 64, n) * float(jnp.finfo(kind).smallest_subnormal)).astype(kind)
    x = rng.normal(size=n).astype(kind)
    if not shape.finite and n and rng.random() < 0.3:
        x[rng.integers(0, n, 2)] = rng.choice([np.inf, -np.inf, np.nan], 2)
    return x


def close_to(op: str, results: np.ndarray, magnitudes: Callable[[], np.ndarray]) -> Any:
    """Returns the accepted results: sums and products may differ by rounding; extrema may be another zero or NaN."""
    dtype = results.dtype
    if op in ("argmin", "argmax") or dtype.kind in "iu":
        return results
    if op in ("min", "max"):
        return Equal(results)
    limits, work = jnp.finfo(dtype), jnp.finfo(np.promote_types(np.float32, dtype) if dtype.kind == "f" else np.float32)
    with np.errstate(all="ignore"):
        error = 2 * float(limits.eps) * np.abs(results.astype(np.float64)) + 2 * float(limits.smallest_subnormal)
        if op == "add":
            error = error + 150 * float(work.eps) * magnitudes().astype(np.float64)
        if float(limits.tiny) <= float(work.tiny):  # XLA's threads may treat subnormals as zeros
            flushed = 64 * float(limits.tiny)
            error = error + (np.minimum(magnitudes(), draw.LARGEST * float(limits.tiny)) if op == "add" else flushed)
    return Near(results, error)


class Named:
    def __init__(self, shape: Shape, exclusive: bool):
        del exclusive
        self.name = shape.choice(("add", "mul", "min", "max") if shape.derivative else OPERATORS)
        self.dtype = shape.key_dtype()
        self.op: Any = self.name
        self.identity = None
        self.gives_index = self.name.startswith("arg")
        self.shape = shape
        shape.say(self.name)

    def draw(self, rng: np.random.Generator, n: int) -> Any:
        return items(self.shape, rng, self.dtype, self.name, n)

    def scan(self, x: Any, heads: np.ndarray, *form: Any) -> list[Any]:
        results = oracle.segmented_scan(x, heads, self.name, *form)
        return [close_to(self.name, results, lambda: self._wide(x, heads, *form))]

    def _wide(self, x: np.ndarray, heads: np.ndarray, exclusive: bool = False, *form: Any) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            magnitudes = np.nan_to_num(np.abs(x.astype(np.float64)), nan=0, posinf=0)
        return oracle.segmented_scan(magnitudes, heads, "add", False, *form)

    def reduce(self, x: Any, heads: np.ndarray, count: Any, widens: bool = True) -> list[Any]:
        """Returns the results of segments; `widens` widens narrow integers."""
        results = oracle.segmented_reduce(x, heads, self.name, count)
        if not (widens or self.gives_index):
            results = results.astype(x.dtype)
        with np.errstate(invalid="ignore"):
            magnitudes = np.nan_to_num(np.abs(x.astype(np.float64)), nan=0, posinf=0)
        return [close_to(self.name, results, lambda: oracle.segmented_reduce(magnitudes, heads, "add", count))]


def _affine(a: Any, b: Any) -> Any:
    return {"m": a["m"] * b["m"], "t": a["t"] * b["m"] + b["t"]}


def _last(a: Any, b: Any) -> Any:
    del a
    return b


# Each name has a function of two items, its identity or None, and the names of an item's leaves.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Any, tuple[str, ...]]] = {
    "plus": (lambda a, b: a + b, 0, ()),
    "maximum": (lambda a, b: jnp.where(a > b, a, b), None, ()),
    "affine": (_affine, {"m": 1, "t": 0}, ("m", "t")),
    "last": (_last, None, ()),
}


class Function:
    """A function as operator, over an array or a pytree, with exact results: items are small integers."""

    def __init__(self, shape: Shape, exclusive: bool):
        names = ("plus", "affine") if exclusive or shape.derivative else tuple(FUNCTIONS)
        self.name = shape.choice(names)
        self.op, self.identity, self.leaves = FUNCTIONS[self.name]
        dtypes = ("float32", "float32", *(("float64",) if shape.x64 else ()))
        self.dtype = shape.choice(dtypes if shape.derivative else ("int32", "uint8", "int16", *dtypes))
        self.trailing = shape.choice(((), (), (2,))) if not self.leaves else ()
        self.shape = shape
        self.gives_index = False
        shape.say("function", self.name, self.dtype, list(self.trailing))

    def draw(self, rng: np.random.Generator, n: int) -> Any:
        def leaf(low: int, high: int) -> np.ndarray:
            return rng.integers(low, high, (n, *self.trailing)).astype(self.dtype)

        signed = np.dtype(self.dtype).kind != "u"
        if not self.leaves:
            return leaf(-9 if signed else 0, 10)
        if rng.random() < 0.3:  # a factor of zero forgets all earlier items
            return {"m": leaf(-1 if signed else 0, 2), "t": leaf(0, 5)}
        return {"m": np.where(leaf(0, 2) == 1, 1, -1 if signed else 3).astype(self.dtype), "t": leaf(0, 5)}

    def _combine(self, a: list[np.ndarray], b: list[np.ndarray]) -> list[np.ndarray]:
        with np.errstate(over="ignore"):
            if self.name == "affine":
                return [a[0] * b[0], a[1] * b[0] + b[1]]
            return [{"plus": np.add, "maximum": np.maximum, "last": lambda x, y: y}[self.name](a[0], b[0])]

    def _nothing(self, leaf: np.ndarray, i: int) -> Any:
        return np.asarray([1, 0][i] if self.leaves else 0, leaf.dtype)

    def scan(
        self, x: Any, heads: np.ndarray, exclusive: bool = False, reverse: bool = False, count: Any = None
    ) -> list[Any]:
        leaves = jax.tree.leaves(x)
        live = oracle.live_count(count, len(leaves[0]))
        begins = oracle.segment_firsts(live, heads, reverse)
        turn = slice(None, None, -1 if reverse else 1)
        found = []
        for i, r in enumerate(oracle.prefixes([leaf[:live][turn] for leaf in leaves], begins, self._combine)):
            if exclusive:
                at_first = (begins == np.arange(live)).reshape(-1, *[1] * (r.ndim - 1))
                r = np.where(at_first, self._nothing(r, i), np.roll(r, 1, axis=0))  # noqa: PLW2901
            found.append(Equal(np.concatenate([r[turn], np.zeros((len(leaves[0]) - live, *r.shape[1:]), r.dtype)])))
        return found

    def reduce(self, x: Any, heads: np.ndarray, count: Any, widens: bool = True) -> list[Any]:
        del widens
        n = len(jax.tree.leaves(x)[0])
        live = oracle.live_count(count, n)
        bounds = np.append(np.clip(heads.astype(np.float64), 0, live).astype(np.int64), live)
        found = []
        for i, leaf in enumerate(self.scan(x, heads, False, False, count)):
            nothing = self._nothing(leaf.expected, i)
            rows = (
                leaf.expected[np.maximum(bounds[1:], 1) - 1]
                if n
                else np.zeros((len(heads), *leaf.expected.shape[1:]), leaf.expected.dtype)
            )
            full = (bounds[:-1] < bounds[1:]).reshape(-1, *[1] * (rows.ndim - 1))
            # an empty segment without an identity has no specified result
            found.append(
                Where(rows, full.reshape(-1)) if self.identity is None else Equal(np.where(full, rows, nothing))
            )
        return found


def cast(x: Any, dtype: Any) -> Any:
    with np.errstate(invalid="ignore"):  # NaNs that signal
        return x if dtype is None else x.astype(dtype)


def converted(shape: Shape, operator: Named | Function) -> dict[str, Any]:
    """Draws options: a dtype to which items are converted, or whether a function commutes."""
    if isinstance(operator, Function):
        commutes = operator.name in ("plus", "maximum") and shape.flag(0.3)
        return {"commutative": True} if commutes else {}
    kind = np.dtype(jnp.dtype(operator.dtype))
    is_whole, integers = kind.kind in "iu", ("int8", "uint16", "int32")
    floats = ("float32", "float64") if shape.x64 and kind.name != "float32" else ("float32",)
    if shape.derivative or shape.flag(0.7) or not (is_whole or kind.name in ("float16", "float32")):
        return {}
    dtype = shape.choice(floats if not is_whole else integers if operator.name == "mul" else integers + floats)
    shape.say(f"dtype={dtype}")
    return {"dtype": dtype}


def operator_of(shape: Shape, exclusive: bool = False) -> Named | Function:
    return Function(shape, exclusive) if shape.flag(0.25) else Named(shape, exclusive)


def scalar(leaf: Any) -> Any:
    if isinstance(leaf, Near):
        return Near(leaf.expected[0], leaf.error[0])
    return Equal(leaf.expected[0]) if isinstance(leaf, Equal | Where) else leaf[0]


def before(item_map: ItemMap | None, rng: np.random.Generator, x: Any) -> Any:
    """Draws items that the map turns into the given ones."""
    return x if item_map is None else item_map.before(rng, x)
