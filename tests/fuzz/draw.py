"""Draws the arguments of a call: types, sizes, keys, positions, counts and rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests import data, oracle

# Some drawn sizes lie near multiples of these.
EDGES = (32, 64, 256, 512, 640, 704, 896, 1024, 1152, 1344, 1408, 1792, 2048, 2560, 2816, 3072, 3584, 4080, 4096, 5120)
EDGES += (5632, 6144, 7168, 8160, 8192, 12288, 16384, 32768)
LARGEST = 40_000
INDEX_DTYPES = ("int32",) * 3 + ("int64",) * 3 + ("int8", "uint8", "int16", "uint16", "uint32", "uint64")
NARROW_FLOATS = ("float8_e4m3fn", "float8_e5m2")
VALUE_DTYPES = (
    *("float32", "int32", "uint32", "float16", "bfloat16", "bool", "int8", "uint16", "complex64", "int4", "key"),
    *NARROW_FLOATS,
)
TRAILING = ((), (), (), (1,), (2,), (3,), (2, 2), (5, 1), (36,), (0,), (2, 0))


@dataclasses.dataclass(frozen=True)
class Call:
    """A call with drawn static parts, which takes operands by name: arrays or pytrees.

    Attributes:
      text: the call in words.
      draw: draws valid operands of fixed shapes and types. With `mixable`, a batch may mix operands of several draws.
      oracle: returns the expected leaves.
      differentiable: the operands that have derivatives; small steps keep their order.
      linear: the differentiable operands in which the call is jointly linear.
      finite: whether operands and results have no NaN.
    """

    text: str
    function: Callable[..., Any]
    draw: Callable[[np.random.Generator, bool], dict[str, Any]]
    oracle: Callable[..., list[Any]]
    x64: bool = False
    differentiable: tuple[str, ...] = ()
    linear: tuple[str, ...] = ()
    finite: bool = False


class Shape:
    """Draws the static parts of a program."""

    def __init__(self, rng: np.random.Generator, *, derivative: bool = False, largest: int = LARGEST):
        self.rng = rng
        self.x64 = bool(rng.random() < 0.4)
        self.plain = largest == LARGEST  # not transformed: under some transformations, XLA cannot slice 4-bit arrays
        self.derivative = derivative  # whether to draw few floats, and those far apart
        self.finite = derivative or bool(rng.random() < 0.3)
        self.largest = 10 if derivative else largest
        self.words: list[str] = []

    def say(self, *words: Any) -> None:
        self.words += [str(word) for word in words]

    def flag(self, p: float = 0.5) -> bool:
        return bool(self.rng.random() < p)

    def choice(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def size(self) -> int:
        """Draws a size."""
        at = self.rng.random()
        if self.derivative:
            n = int(self.rng.integers(0, 11))
        elif at < 0.14:
            n = int(self.rng.integers(0, 4))
        elif at < 0.6:
            n = int(self.rng.integers(4, 81))
        elif at < 0.8:
            n = int(self.rng.integers(81, 1200))
        elif at < 0.9:
            n = int(np.exp(self.rng.uniform(np.log(1200), np.log(20_000))))
        else:
            edge = self.choice(EDGES)
            n = edge * int(self.rng.integers(1, max(2, min(5, LARGEST // edge)))) + int(self.rng.integers(-1, 2))
        n = min(n, self.largest)
        self.say(f"n={n}")
        return n

    def key_dtype(self) -> str:
        options = data.FLOAT_DTYPES if self.derivative else data.KEY_DTYPES
        dtype = self.choice([d for d in options if self.x64 or not d.endswith("64")])
        self.say(dtype)
        return dtype

    def key_form(self) -> Any:
        """Draws a type of keys, or types of columns with directions."""
        if self.derivative or not self.flag(0.3):
            return self.key_dtype()
        dtypes = tuple(self.key_dtype() for _ in range(self.choice((1, 2, 2, 2, 3, 3, 8))))
        return Columns(dtypes, tuple(self.flag() for _ in dtypes))

    def index_dtype(self, largest: int, narrow: float = 0) -> str:
        """Draws a type of positions that holds `largest`; with the probability `narrow`, one of the narrowest."""
        fit = [d for d in INDEX_DTYPES if np.iinfo(d).max >= largest and (self.x64 or not d.endswith("64"))]
        if self.flag(narrow):
            width = min(np.dtype(d).itemsize for d in fit)
            fit = [d for d in fit if np.dtype(d).itemsize == width]
        dtype = self.choice(fit)
        self.say(dtype)
        return dtype

    def count(self, n: int, p: float = 0.45) -> Count | None:
        if not self.flag(p):
            return None
        self.say("count")
        return Count(n, self.index_dtype(n))

    def rows(self) -> Rows:
        if self.derivative:
            dtypes = ["float32", "float16", "bfloat16", *NARROW_FLOATS] + ["float64"] * self.x64
            form = Rows(self.choice(dtypes), self.choice(((), (), (1,), (2,), (0,))), self)
        else:
            dtypes = [d for d in VALUE_DTYPES if self.plain or d != "int4"]
            dtypes = [*dtypes, *(["float64", "int64", "complex128"] if self.x64 else [])]
            form = Rows(self.choice(dtypes), self.choice(TRAILING), self)
        self.say("values", form.dtype, list(form.trailing))
        return form

    def values(self, p: float = 0.6) -> Any:
        if not self.flag(p):
            return None
        kind = self.rng.random()
        if kind < 0.45:
            return self.rows()
        if kind < 0.6:
            return Rows(self.choice(("int32", "float32", "uint32")), (), self)
        if kind < 0.8:
            return {"p": self.rows(), "q": self.rows()}
        return (self.rows(),)


@dataclasses.dataclass(frozen=True)
class Count:
    n: int
    dtype: str

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        at = rng.random()
        value = 0 if at < 0.1 else self.n if at < 0.25 else int(rng.integers(0, self.n + 1))
        return np.asarray(value, self.dtype)


@dataclasses.dataclass(frozen=True)
class Columns:
    """The types of key columns, and whether each is descending if the call takes directions."""

    dtypes: tuple[str, ...]
    flags: tuple[bool, ...]


class Rows:
    """The type of rows, and their trailing shape."""

    def __init__(self, dtype: str, trailing: tuple[int, ...], shape: Shape):
        self.dtype, self.trailing, self.finite, self.derivative = dtype, trailing, shape.finite, shape.derivative

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        shape = (n, *self.trailing)
        if self.dtype == "key":
            return rng.integers(0, 2**32, (*shape, 2), dtype=np.uint32)
        if self.dtype == "bool":
            return rng.random(shape) < 0.5
        kind = jnp.dtype(self.dtype)
        if self.derivative or self.finite or self.dtype == "int4":
            return rng.integers(-4, 5, shape).astype(np.int8).astype(kind)
        size = int(np.prod(shape)) * kind.itemsize
        return np.frombuffer(rng.bytes(size), np.uint8).view(kind).reshape(shape)

    def enter(self, x: Any) -> Any:
        """Converts drawn operands to arguments."""
        return jax.random.wrap_key_data(x) if self.dtype == "key" else x

    def leave(self, x: Any) -> Any:
        """Converts results to the arrays that are compared."""
        return jax.random.key_data(x) if self.dtype == "key" else x


def is_rows(x: Any) -> bool:
    return isinstance(x, Rows)


def draw_values(forms: Any, rng: np.random.Generator, n: int) -> Any:
    return jax.tree.map(lambda form: form.draw(rng, n), forms, is_leaf=is_rows)


def enter(forms: Any, values: Any) -> Any:
    return None if forms is None else jax.tree.map(lambda form, x: form.enter(x), forms, values, is_leaf=is_rows)


def leave(forms: Any, values: Any) -> Any:
    return None if forms is None else jax.tree.map(lambda form, x: form.leave(x), forms, values, is_leaf=is_rows)


def names_of(operation: str, **operands: Any) -> dict[str, Any]:
    return {name: x for name, x in operands.items() if x is not None}


def drawn(count: Count | None, rng: np.random.Generator) -> np.ndarray | None:
    return None if count is None else count.draw(rng)


def keys(shape: Shape, rng: np.random.Generator, dtype: Any, n: int, *, few: bool = False) -> Any:
    """Draws keys; for derivatives, distinct ones."""
    if isinstance(dtype, Columns):
        varied = int(rng.integers(len(dtype.dtypes)))
        return tuple(keys(shape, rng, d, n, few=few or i != varied) for i, d in enumerate(dtype.dtypes))
    kind = jnp.dtype(dtype)
    if shape.derivative:
        return (rng.choice(200, n, replace=False) - 100).astype(kind)
    at = rng.random()
    if few or at < 0.35:
        return rng.integers(0, rng.choice([1, 2, 3, 13, 100]), n).astype(kind)
    if shape.finite:
        return (
            rng.integers(0, 128, n).astype(kind) if dtype not in data.MANTISSA_BITS else rng.normal(size=n).astype(kind)
        )
    return data.random_keys(rng, dtype, n)


def sorted_keys(
    shape: Shape, rng: np.random.Generator, dtype: str, n: int, *, descending: bool = False, live: Any = None
) -> np.ndarray:
    """Draws keys that are sorted up to `live`, and in any order after it."""
    drawn_keys = keys(shape, rng, dtype, n)
    live = oracle.live_count(live, n)
    drawn_keys[:live] = data.in_order(drawn_keys[:live], descending)
    return drawn_keys


def sorted_pair(
    shape: Shape, rng: np.random.Generator, dtype: Any, n_a: int, n_b: int, descending: Any, a_live: Any, b_live: Any
) -> tuple[Any, Any]:
    """Draws two sorted arrays that may share keys. For derivatives, a and b share none, even if of different draws."""
    both = keys(shape, rng, dtype, n_a + n_b)
    if isinstance(dtype, Columns):
        copies = np.where(rng.random(n_b) < 0.3, rng.integers(0, max(n_a, 1), n_b), n_a + np.arange(n_b))
        both = tuple(np.concatenate([x[:n_a], x[copies]]) if n_a else x for x in both)
        return in_order(tuple(x[:n_a] for x in both), descending, a_live), in_order(
            tuple(x[n_a:] for x in both), descending, b_live
        )
    if shape.derivative:
        halves = np.arange(n_a + n_b) < n_a
        both = (2 * rng.permutation(100)[: n_a + n_b] - 100 + halves).astype(both.dtype)
    if n_a and n_b and not shape.derivative and rng.random() < 0.5:
        copies = rng.integers(0, n_a, n_b)
        both[n_a:] = np.where(rng.random(n_b) < 0.6, both[:n_a][copies], both[n_a:])
    a, b = both[:n_a], both[n_a:]
    for x, live in ((a, oracle.live_count(a_live, n_a)), (b, oracle.live_count(b_live, n_b))):
        x[:live] = data.in_order(x[:live], descending)
    return a, b


def in_order(columns: tuple[np.ndarray, ...], descending: Any, live: Any) -> tuple[np.ndarray, ...]:
    n = len(columns[0])
    live = oracle.live_count(live, n)
    ranks = oracle.column_ranks([x[:live] for x in columns], descending)
    order = np.append(np.argsort(ranks, kind="stable"), np.arange(live, n))
    return tuple(x[order] for x in columns)


def ranked(descending: Any, *operands: Any) -> tuple[Any, ...]:
    """Returns each operand as one array of keys, and their direction; tuples of columns become ascending ranks."""
    if not isinstance(operands[0], tuple):
        return (*operands, descending)
    joined = [np.concatenate(column) for column in zip(*operands, strict=True)]
    cuts = np.cumsum([len(x[0]) for x in operands])[:-1]
    return (*np.split(oracle.column_ranks(joined, descending), cuts), False)


def positions(rng: np.random.Generator, m: int, n: int, dtype: str, *, padding: bool = True) -> np.ndarray:
    """Draws non-decreasing positions, from 0 to n; with `padding`, some may be larger."""
    last = min(n, int(np.iinfo(dtype).max))
    at = rng.random()
    if at < 0.15 and n:
        drawn_positions = np.minimum(np.arange(m), last)
    elif at < 0.3:
        drawn_positions = rng.choice(rng.integers(0, last + 1, 3), m)
    else:
        drawn_positions = rng.integers(0, last + 1, m)
    drawn_positions = np.sort(drawn_positions).astype(np.int64 if dtype != "uint64" else np.uint64)
    if padding and m and rng.random() < 0.3:
        past = int(rng.integers(0, m + 1))
        past_the_end = np.iinfo(dtype).max if rng.random() < 0.3 else min(n + 1, int(np.iinfo(dtype).max))
        drawn_positions[m - past :] = max(past_the_end, n if n <= np.iinfo(dtype).max else 0)
        drawn_positions = np.sort(drawn_positions)
    return drawn_positions.astype(dtype)


def lengths_of(rng: np.random.Generator, m: int, limit: int) -> np.ndarray:
    """Draws m lengths, at most `limit` together."""
    if m == 0:
        return np.zeros(0, np.int64)
    at = rng.random()
    if at < 0.3:
        return (np.arange(m) < limit).astype(np.int64)
    if at < 0.6:
        long = rng.choice(m, min(m, 4), replace=False)
        lengths = np.zeros(m, np.int64)
        lengths[long] = limit // len(long)
        return lengths
    cuts = np.sort(rng.integers(0, limit + 1, m))
    return np.diff(cuts, prepend=rng.integers(0, cuts[0] + 1))
