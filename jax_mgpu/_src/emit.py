"""Writes a traced function of items as C++ for the kernels.

Small arrays are taken apart: a value is a NumPy array of C++ names, one a scalar. A primitive that works element by
element is a line an element, and one that only moves elements costs nothing. Large arrays that a function captures stay
in memory; what is indexed of them is loaded. ffi/function/primitives.h has the meaning of each primitive.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.check import describe
from jax_mgpu._src.compat import scan_operands
from jax_mgpu._src.values import is_random_key

__all__ = ["Layout", "Memory", "Stage", "Unsupported", "emit_function", "emit_operator", "emit_order", "scalar_type"]

Names = Any  # a NumPy array of the C++ names of an array's elements

SCALARS = {
    "bool": "bool",
    **{f"{kind}int{width}": f"{kind}int{width}_t" for kind in ("", "u") for width in (8, 16, 32, 64)},
    "float16": "mgpu::Half",
    "bfloat16": "mgpu::BFloat16",
    "float32": "float",
    "float64": "double",
}

# Primitives that work element by element, by the names of their functions.
_PLAIN = (
    "add sub mul div rem max min neg abs sign eq ne lt le gt ge clamp shift_left shift_right_logical "
    "shift_right_arithmetic population_count clz mulhi floor ceil is_finite exp exp2 expm1 log log1p log2 sin cos tan "
    "asin acos atan sinh cosh tanh asinh acosh atanh sqrt rsqrt cbrt erf erfc lgamma logistic square one_minus_square "
    "pow atan2 nextafter"
)
ELEMENTWISE = {name: name for name in _PLAIN.split()}
ELEMENTWISE |= {name: f"{name}_" for name in ("and", "or", "xor", "not")}
ELEMENTWISE["add_any"] = "add"
FOLDS = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "and_",
    "reduce_or": "or_",
    "reduce_xor": "xor_",
}
PREFIXES = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min"}
# Random keys are their words, the last axis: wrapping these changes nothing.
RANDOM_KEY_WORDS = frozenset(["random_wrap", "random_unwrap"])
SAME_VALUE = frozenset(["copy", "copy_p", "stop_gradient", "optimization_barrier", "pvary", "pcast", "reshard"])
CALLS = {
    "pjit": "jaxpr",
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "remat2": "jaxpr",
    "remat": "jaxpr",
    "checkpoint": "jaxpr",
}
# Those that take many instructions.
_COSTLY = (
    "exp exp2 expm1 log log1p log2 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh cbrt erf erfc lgamma "
    "logistic pow atan2 div rem while scan"
)
COSTLY = frozenset(_COSTLY.split())
MOST_SCALARS = 512  # of a value, unless it stays in memory
MOST_ITEM_SCALARS = 128
MOST_LINES = 8192
MOST_STEPS = 64  # of a scan over arrays, whose steps are written one after the other
# Larger functions are called: copied to each place that combines, they take seconds to compile. A costly primitive
# counts for several lines.
MOST_INLINE_LINES = 100
COSTLY_LINES = 12


class Unsupported(Exception):
    """What is in a function that no kernel can be made of."""


def scalar_type(dtype: Any) -> str:
    """The C++ type of a dtype."""
    name = np.dtype(dtype).name if not jnp.issubdtype(dtype, jax.dtypes.extended) else str(dtype)
    if name not in SCALARS:
        raise Unsupported(f"values of {name}")
    return SCALARS[name]


def scalar_text(value: Any, dtype: Any) -> str:
    """A constant in C++, to the bit."""
    dtype = np.dtype(dtype)
    kind = scalar_type(dtype)
    scalar = np.asarray(value).astype(dtype)[()]
    if dtype == np.bool_:
        return "true" if scalar else "false"
    if dtype.kind in "iu":
        number = int(scalar)
        if number == -(2**63):
            return f"{kind}(-0x7fffffffffffffffll - 1)"
        suffix = "ull" if number >= 2**63 else "ll" if abs(number) >= 2**31 else ""
        return f"{kind}({number}{suffix})"
    if dtype.itemsize > 2 and np.isfinite(scalar):
        return float(scalar).hex() + ("f" if dtype.itemsize == 4 else "")
    word = int(np.asarray(scalar).view(f"u{dtype.itemsize}"))
    return f"xla::bits<{kind}>(uint{8 * dtype.itemsize}_t({word}{'ull' if dtype.itemsize == 8 else 'u'}))"


@dataclasses.dataclass(frozen=True)
class Memory:
    """A captured array, or a view of one, that stays in memory."""

    name: str  # of a pointer
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: str = "0"

    @classmethod
    def of(cls, name: str, dtype: Any, shape: Sequence[int]) -> Memory:
        """A whole array."""
        strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        return cls(name, np.dtype(dtype), tuple(shape), tuple(strides))

    @property
    def size(self) -> int:
        """The number of its elements."""
        return int(np.prod(self.shape))

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return len(self.shape)

    def shifted(self, steps: Iterable[tuple[str, int]], shape: Sequence[int], strides: Sequence[int]) -> Memory:
        """A view that begins so many strides on."""
        offset = " + ".join([self.offset, *(f"{index} * {stride}" for index, stride in steps if index != "0")])
        return dataclasses.replace(self, shape=tuple(shape), strides=tuple(strides), offset=offset)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The C++ struct of an item: its fields in memory, the wide ones first, so that only the end is padded."""

    leaves: tuple[tuple[str, tuple[int, ...]], ...]  # dtype name and shape

    @classmethod
    def of(cls, avals: Sequence[Any]) -> Layout:
        """The struct of an item of these leaves."""
        return cls(tuple((scalar_type(aval.dtype) and np.dtype(aval.dtype).name, tuple(aval.shape)) for aval in avals))

    def elements(self, leaf: int) -> int:
        """The number of scalars of a leaf."""
        return int(np.prod(self.leaves[leaf][1]))

    def width(self, leaf: int) -> int:
        """The bytes of a scalar of a leaf."""
        return jnp.dtype(self.leaves[leaf][0]).itemsize

    def leaf_bytes(self, leaf: int) -> int:
        """The bytes of an item's part of a leaf."""
        return self.elements(leaf) * self.width(leaf)

    @property
    def align(self) -> int:
        """The alignment of the struct: words of 4 bytes travel between threads."""
        return max([4, *(self.width(leaf) for leaf in range(len(self.leaves)))])

    @property
    def bytes(self) -> int:
        """The size of the struct."""
        size = sum(self.leaf_bytes(leaf) for leaf in range(len(self.leaves)))
        return max(1, -(-size // self.align)) * self.align

    @property
    def item_bytes(self) -> int:
        """What an item takes in its arrays."""
        return sum(self.leaf_bytes(leaf) for leaf in range(len(self.leaves)))

    def names(self, variable: str) -> list[Names]:
        """The leaves of a struct in C++."""
        leaves = []
        for leaf, (_, shape) in enumerate(self.leaves):
            names = np.empty(shape, object)
            for place, index in enumerate(np.ndindex(*shape)):
                names[index] = f"{variable}.f{leaf}[{place}]"
            leaves.append(names)
        return leaves

    def text(self, name: str, largest: int | None = None) -> str:
        """The struct in C++, and the bytes of the largest struct that is made of it, where that is another."""
        order = sorted(range(len(self.leaves)), key=lambda leaf: -self.width(leaf))
        fields = "".join(
            f"  {SCALARS[self.leaves[leaf][0]]} f{leaf}[{max(1, self.elements(leaf))}];\n" for leaf in order
        )
        leaf = "".join(
            f"    {'else ' if leaf else ''}if constexpr (kLeaf == {leaf}) return (item.f{leaf});\n"
            for leaf in range(len(self.leaves))
        )
        return (
            f"struct alignas({self.align}) {name} {{\n{fields}"
            f"  static constexpr int kLeaves = {len(self.leaves)};\n"
            f"  static constexpr int kLargest = {max(self.bytes, largest or 0)};\n"
            "  template <int kLeaf, typename Item>\n"
            f"  MGPU_HOST_DEVICE static auto& leaf(Item& item) {{\n{leaf}  }}\n"
            "};\n"
        )


class _Writer:
    """Writes the lines of one function."""

    def __init__(self, capture: Callable[[Any], Memory]):
        self.capture = capture
        self.lines: list[str] = []
        self.depth = 2
        self.costly = 0
        self.branches = False
        self.may_not_end = False
        self.made: dict[str, tuple[str, ...]] = {}  # a name's function and arguments
        self.constants: dict[str, Any] = {}  # the value of a literal
        self._numbers = itertools.count()

    # ---- Lines and names

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)
        if len(self.lines) > MOST_LINES:
            raise Unsupported(f"more than {MOST_LINES} operations on scalars")

    def scalar(self, expression: str, dtype: Any) -> str:
        name = f"v{next(self._numbers)}"
        self.line(f"const {scalar_type(dtype)} {name} = {expression};")
        return name

    def called(self, function: str, arguments: Sequence[str], dtype: Any) -> str:
        name = self.scalar(f"xla::{function}({', '.join(arguments)})", dtype)
        self.made[name] = (function, *arguments)
        return name

    def variables(self, aval: Any) -> Names:
        _expect_small(aval.shape, "a value")
        names = np.empty(aval.shape, object)
        for index in np.ndindex(*aval.shape):
            names[index] = f"v{next(self._numbers)}"
            self.line(f"{scalar_type(aval.dtype)} {names[index]};")
        return names

    def assign(self, variables: Names, values: Names) -> None:
        for index in np.ndindex(*variables.shape):
            self.line(f"{variables[index]} = {values[index]};")

    def constant(self, value: Any, dtype: Any) -> Names:
        value = np.asarray(value)
        names = np.empty(value.shape, object)
        for index in np.ndindex(*value.shape):
            text = scalar_text(value[index], dtype)
            self.constants[text] = value[index]
            names[index] = text
        return names

    def is_constant(self, names: Names) -> bool:
        return all(name in self.constants for name in names.flat)

    def loaded(self, x: Any) -> Names:
        """A value's names; those of a view of memory once it is loaded."""
        if not isinstance(x, Memory):
            return x
        _expect_small(x.shape, "a captured array, used other than by indexing it,")
        names = np.empty(x.shape, object)
        for index in np.ndindex(*x.shape):
            place = sum(i * stride for i, stride in zip(index, x.strides, strict=True))
            names[index] = self.scalar(f"{x.name}[{x.offset} + {place}]", x.dtype)
        return names

    def emitted(self, results: list[Names], neutral: list[Any] | None) -> Emitted:
        """All that has been written, as one function."""
        is_large = len(self.lines) + COSTLY_LINES * self.costly > MOST_INLINE_LINES
        return Emitted("\n".join(self.lines), results, is_large, is_large or self.branches, neutral)

    # ---- Jaxprs

    def closed(self, closed: Any, arguments: Sequence[Any]) -> list[Any]:
        """The results of a jaxpr, which may have constants of its own."""
        return self.jaxpr(closed.jaxpr, [self.captured(const) for const in closed.consts], arguments)

    def captured(self, const: Any) -> Any:
        if is_random_key(const.dtype):
            raise Unsupported("a captured random key")
        if isinstance(const, jax.core.Tracer) or np.size(const) > MOST_ITEM_SCALARS:
            return self.capture(const)
        return self.constant(const, const.dtype)

    def jaxpr(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        if jaxpr.effects:
            raise Unsupported(f"effects, {', '.join(sorted(map(str, jaxpr.effects)))}")
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))

        def read(atom: Any) -> Any:
            return self.constant(atom.val, atom.aval.dtype) if hasattr(atom, "val") else values[atom]

        for equation in jaxpr.eqns:
            results = self.equation(equation, [read(atom) for atom in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, equation: Any, arguments: list[Any]) -> Sequence[Any]:  # noqa: PLR0911 -- a case each
        primitive, params = equation.primitive.name, equation.params
        if primitive in CALLS:
            body = params[CALLS[primitive]]
            if hasattr(body, "consts"):
                return self.closed(body, arguments)
            return self.jaxpr(body, [], arguments)
        if primitive in SAME_VALUE or primitive in RANDOM_KEY_WORDS:
            return arguments
        if primitive != "select_n":
            _expect_no_random_keys(primitive, equation)
        rule = getattr(self, f"_{primitive}", None)
        if primitive in ("cond", "while", "scan", "gather", "dynamic_slice"):
            assert rule is not None
            return rule(equation, *arguments)
        if arguments and isinstance(arguments[0], Memory) and primitive in VIEWS and len(arguments) == 1:
            return [VIEWS[primitive](arguments[0], params)]
        names = [self.loaded(x) for x in arguments]
        if primitive in MOVES:
            for var in equation.outvars:
                _expect_small(var.aval.shape, primitive)
            moved = MOVES[primitive](*names, **params)
            return moved if equation.primitive.multiple_results else [moved]
        aval = _stored(equation.outvars[0].aval)
        _expect_small(aval.shape, primitive)
        self.costly += aval.size if primitive in COSTLY else 0
        if primitive in ELEMENTWISE:
            function = ELEMENTWISE[primitive]
            return [self.each(lambda *xs: self.called(function, xs, aval.dtype), names, aval.shape)]
        if primitive in FOLDS:
            return [self.fold(FOLDS[primitive], names[0], params["axes"], aval)]
        if primitive in PREFIXES:
            return [self.prefixes(PREFIXES[primitive], names[0], params, aval.dtype)]
        if rule is None:
            raise Unsupported(f"the primitive {primitive}")
        return [rule(equation, *names)]

    def each(self, write: Callable[..., str], arguments: Sequence[Names], shape: tuple[int, ...]) -> Names:
        names = np.empty(shape, object)
        arrays = [np.broadcast_to(x, shape) for x in arguments]
        for index in np.ndindex(*shape):
            names[index] = write(*(x[index] for x in arrays))
        return names

    # ---- Element by element, beside the plain functions

    def _integer_pow(self, equation: Any, x: Names) -> Names:
        aval, power = equation.outvars[0].aval, equation.params["y"]
        one = scalar_text(1, aval.dtype)

        def write(base: str) -> str:  # the products in the order that JAX makes them
            product, bits = None, abs(power)
            while bits:
                if bits & 1:
                    product = base if product is None else self.called("mul", (product, base), aval.dtype)
                bits >>= 1
                if bits:
                    base = self.called("mul", (base, base), aval.dtype)
            product = one if product is None else product
            return self.called("div", (one, product), aval.dtype) if power < 0 else product

        return self.each(write, [x], aval.shape)

    def _round(self, equation: Any, x: Names) -> Names:
        aval = equation.outvars[0].aval
        function = "round_even" if int(equation.params["rounding_method"]) == 1 else "round_away"
        return self.each(lambda i: self.called(function, (i,), aval.dtype), [x], aval.shape)

    def _convert_element_type(self, equation: Any, x: Names) -> Names:
        aval = equation.outvars[0].aval
        kind = scalar_type(aval.dtype)

        def write(i: str) -> str:
            if i in self.constants and aval.dtype.kind in "iub" and np.asarray(self.constants[i]).dtype.kind in "iub":
                return self.constant(np.asarray(self.constants[i]).astype(aval.dtype), aval.dtype).item()
            return self.scalar(f"xla::convert<{kind}>({i})", aval.dtype)

        return self.each(write, [x], aval.shape)

    def _reduce_precision(self, equation: Any, x: Names) -> Names:
        aval = equation.outvars[0].aval
        kept = (equation.params["exponent_bits"], equation.params["mantissa_bits"])
        info = jnp.finfo(aval.dtype)
        if kept == (info.nexp, info.nmant):
            return x
        narrow = {(5, 10): "mgpu::Half", (8, 7): "mgpu::BFloat16", (8, 23): "float"}.get(kept)
        if narrow is None or kept[0] > info.nexp or kept[1] > info.nmant:
            raise Unsupported(f"reduce_precision to {kept[0]} and {kept[1]} bits")
        kind = scalar_type(aval.dtype)
        return self.each(
            lambda i: self.scalar(f"xla::convert<{kind}>(xla::convert<{narrow}>({i}))", aval.dtype), [x], aval.shape
        )

    def _bitcast_convert_type(self, equation: Any, x: Names) -> Names:
        aval = equation.outvars[0].aval
        if aval.shape != equation.invars[0].aval.shape:
            raise Unsupported("bitcast_convert_type to a type of another width")
        kind = scalar_type(aval.dtype)
        return self.each(lambda i: self.scalar(f"xla::bits<{kind}>({i})", aval.dtype), [x], aval.shape)

    def _select_n(self, equation: Any, which: Names, *cases: Names) -> Names:
        aval = _stored(equation.outvars[0].aval)
        which = which.reshape(which.shape + (1,) * (aval.ndim - which.ndim))  # random keys are rows of words

        def write(which: str, *cases: str) -> str:
            if which in self.constants:
                return cases[int(self.constants[which])]
            if len(cases) == 2:
                return self.scalar(f"{which} ? {cases[1]} : {cases[0]}", aval.dtype)
            return self.scalar(f"xla::pick({which}, {', '.join(cases)})", aval.dtype)

        return self.each(write, [which, *cases], aval.shape)

    def _iota(self, equation: Any) -> Names:
        params, aval = equation.params, equation.outvars[0].aval
        steps = np.arange(aval.shape[params["dimension"]])
        shape = [1] * aval.ndim
        shape[params["dimension"]] = -1
        return self.constant(np.broadcast_to(steps.reshape(shape), aval.shape).astype(aval.dtype), aval.dtype)

    # ---- Along axes

    def folded(self, function: str, items: Sequence[str], dtype: Any) -> str:
        total = items[0]
        for item in items[1:]:
            total = self.called(function, (total, item), dtype)
        return total

    def fold(self, function: str, x: Names, axes: Sequence[int], aval: Any) -> Names:
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        rows = np.transpose(x, (*kept, *axes)).reshape(*aval.shape, -1)
        if rows.shape[-1] == 0:
            return self.constant(np.full(aval.shape, _neutral(function, aval.dtype)), aval.dtype)
        names = np.empty(aval.shape, object)
        for index in np.ndindex(*aval.shape):
            names[index] = self.folded(function, list(rows[index]), aval.dtype)
        return names

    def prefixes(self, function: str, x: Names, params: Any, dtype: Any) -> Names:
        rows = np.moveaxis(x, params["axis"], 0)
        rows = rows[::-1] if params["reverse"] else rows
        names = rows.copy()
        for i in range(1, len(rows)):
            for index in np.ndindex(*rows.shape[1:]):
                names[(i, *index)] = self.called(function, (names[(i - 1, *index)], rows[(i, *index)]), dtype)
        return np.moveaxis(names[::-1] if params["reverse"] else names, 0, params["axis"])

    def _argument(self, equation: Any, x: Names, order: str) -> Names:
        aval, item_dtype = equation.outvars[0].aval, equation.invars[0].aval.dtype
        (axis,) = equation.params["axes"]
        rows = np.moveaxis(x, axis, -1)
        names = np.empty(aval.shape, object)
        for index in np.ndindex(*aval.shape):
            best, place = rows[index][0], scalar_text(0, aval.dtype)
            for i, item in enumerate(rows[index][1:], 1):  # a NaN comes first
                better = self.scalar(
                    f"!xla::ne({best}, {best}) && (xla::ne({item}, {item}) || xla::{order}({item}, {best}))", np.bool_
                )
                best = self.scalar(f"{better} ? {item} : {best}", item_dtype)
                place = self.scalar(f"{better} ? {scalar_text(i, aval.dtype)} : {place}", aval.dtype)
            names[index] = place
        return names

    def _argmax(self, equation: Any, x: Names) -> Names:
        return self._argument(equation, x, "gt")

    def _argmin(self, equation: Any, x: Names) -> Names:
        return self._argument(equation, x, "lt")

    def _dot_general(self, equation: Any, a: Names, b: Names) -> Names:
        aval = equation.outvars[0].aval
        (a_folded, b_folded), (a_batch, b_batch) = equation.params["dimension_numbers"]
        kind = scalar_type(aval.dtype)

        def arranged(x: Names, batch: Sequence[int], folded: Sequence[int]) -> Names:
            free = [axis for axis in range(x.ndim) if axis not in batch and axis not in folded]
            sizes = [int(np.prod([x.shape[axis] for axis in axes])) for axes in (batch, free, folded)]
            return np.transpose(x, (*batch, *free, *folded)).reshape(sizes)

        def wide(x: str, dtype: Any) -> str:
            return x if dtype == aval.dtype else f"xla::convert<{kind}>({x})"

        a_dtype, b_dtype = (var.aval.dtype for var in equation.invars)
        a, b = arranged(a, a_batch, a_folded), arranged(b, b_batch, b_folded)
        names = np.empty((a.shape[0], a.shape[1], b.shape[1]), object)
        for batch, i, j in np.ndindex(*names.shape):
            products = [
                self.called("mul", (wide(x, a_dtype), wide(y, b_dtype)), aval.dtype)
                for x, y in zip(a[batch, i], b[batch, j], strict=True)
            ]
            names[batch, i, j] = self.folded("add", products, aval.dtype) if products else scalar_text(0, aval.dtype)
        return names.reshape(aval.shape)

    # ---- Indexing by data

    def place(self, start: str, size: int) -> str:
        """The nearest of `size` places to a start, as a number where that is known."""
        if size == 1:
            return "0"
        if start in self.constants:
            return str(int(np.clip(self.constants[start], 0, size - 1)))
        return self.scalar(f"xla::nearest_place({start}, {size})", np.int64)

    def picked(self, place: str, choices: Sequence[str], dtype: Any) -> str:
        if place.isdecimal():
            return choices[int(place)]
        return self.scalar(f"xla::pick({place}, {', '.join(choices)})", dtype)

    def window(self, x: Names, places: Sequence[str], sizes: Sequence[int], dtype: Any) -> Names:
        """The part of an array that begins at these places."""
        for axis, (place, size) in enumerate(zip(places, sizes, strict=True)):
            choices: list[Names] = [np.take(x, range(k, k + size), axis) for k in range(x.shape[axis] - size + 1)]
            picked = np.empty(choices[0].shape, object)
            for index in np.ndindex(*picked.shape):
                picked[index] = self.picked(place, [choice[index] for choice in choices], dtype)
            x = picked
        return x

    def _dynamic_slice(self, equation: Any, x: Any, *starts: Any) -> list[Any]:
        sizes = equation.params["slice_sizes"]
        starts = tuple(self.loaded(start).item() for start in starts)
        places = [self.place(start, n - size + 1) for start, n, size in zip(starts, x.shape, sizes, strict=True)]
        if isinstance(x, Memory):
            return [x.shifted(zip(places, x.strides, strict=True), sizes, x.strides)]
        _expect_small(sizes, "dynamic_slice")
        return [self.window(x, places, sizes, equation.outvars[0].aval.dtype)]

    def _dynamic_update_slice(self, equation: Any, x: Names, update: Names, *starts: Names) -> Names:
        dtype = equation.outvars[0].aval.dtype
        ends = [n - size + 1 for n, size in zip(x.shape, update.shape, strict=True)]
        places = [self.place(start.item(), end) for start, end in zip(starts, ends, strict=True)]
        names = np.empty(x.shape, object)
        for index in np.ndindex(*x.shape):
            name = x[index]
            for begin in itertools.product(
                *(range(int(p), int(p) + 1) if p.isdecimal() else range(e) for p, e in zip(places, ends, strict=True))
            ):
                inside = tuple(i - b for i, b in zip(index, begin, strict=True))
                if not all(0 <= i < size for i, size in zip(inside, update.shape, strict=True)):
                    continue
                here = [f"{p} == {b}" for p, b in zip(places, begin, strict=True) if not p.isdecimal()]
                if here:
                    name = self.scalar(f"{' && '.join(here)} ? {update[inside]} : {name}", dtype)
                else:
                    name = update[inside]
            names[index] = name
        return names

    def _gather(self, equation: Any, x: Any, indices: Any) -> list[Any]:
        params, aval = equation.params, equation.outvars[0].aval
        dims, sizes = params["dimension_numbers"], params["slice_sizes"]
        _expect_small(aval.shape, "gather")
        indices = self.loaded(indices)
        fills = "FILL" in str(params["mode"])
        hidden = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
        offset_axes = [axis for axis in range(x.ndim) if axis not in hidden]
        batch_axes = [axis for axis in range(aval.ndim) if axis not in dims.offset_dims]
        names = np.empty(aval.shape, object)
        windows: dict[tuple[int, ...], tuple[Any, str | None]] = {}
        for index in np.ndindex(*aval.shape):
            batch = tuple(index[axis] for axis in batch_axes)
            if batch not in windows:
                windows[batch] = self._gathered(x, indices, batch, dims, sizes, fills, aval.dtype)
            window, inside = windows[batch]
            offset = [0] * x.ndim
            for axis, place in zip(offset_axes, dims.offset_dims, strict=True):
                offset[axis] = index[place]
            if isinstance(window, Memory):
                place = sum(i * stride for i, stride in zip(offset, window.strides, strict=True))
                load = f"{window.name}[{window.offset} + {place}]"
            else:
                load = window[tuple(offset)]
            if inside is None:
                names[index] = self.scalar(load, aval.dtype) if isinstance(window, Memory) else load
            else:
                fill = scalar_text(_gather_fill(params["fill_value"], aval.dtype), aval.dtype)
                names[index] = self.scalar(f"{inside} ? {load} : {fill}", aval.dtype)
        return [names]

    def _gathered(
        self, x: Any, indices: Names, batch: tuple[int, ...], dims: Any, sizes: Sequence[int], fills: bool, dtype: Any
    ) -> tuple[Any, str | None]:
        """The window of one start, and whether it lies inside where that decides."""
        places, checks = ["0"] * x.ndim, []
        for axis, of in zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True):
            places[axis] = str(batch[of])
        for k, axis in enumerate(dims.start_index_map):
            start, room = indices[(*batch, k)], x.shape[axis] - sizes[axis] + 1
            places[axis] = self.place(start, room)
            if fills:
                checks.append(f"xla::is_place({start}, {room})")
        inside = self.scalar(" && ".join(checks), np.bool_) if checks else None
        if isinstance(x, Memory):
            return x.shifted(zip(places, x.strides, strict=True), sizes, x.strides), inside
        return self.window(x, places, sizes, dtype), inside

    # ---- Control flow

    def _cond(self, equation: Any, which: Any, *operands: Any) -> list[Any]:
        branches = equation.params["branches"]
        results = [self.variables(var.aval) for var in equation.outvars]
        which_name = self.loaded(which).item()
        index = f"xla::nearest_place(static_cast<int32_t>({which_name}), {len(branches)})"
        self.branches = True
        self.line(f"switch ({index}) {{")
        for i, branch in enumerate(branches):
            self.line("default: {" if i == len(branches) - 1 else f"case {i}: {{")
            self.depth += 1
            for variables, values in zip(results, self.closed(branch, operands), strict=True):
                self.assign(variables, self.loaded(values))
            self.depth -= 1
            self.line("} break;")
        self.line("}")
        return results

    def loop(self, opening: str, carry: Sequence[Names], avals: Sequence[Any], body: Callable[[], list[Any]]) -> None:
        """A loop whose body gives the next values of the carried variables."""
        self.branches = True
        self.line(opening)
        self.depth += 1
        held = []
        for values, aval in zip(body(), avals, strict=True):
            held.append(self.each(lambda x, dtype=aval.dtype: self.scalar(x, dtype), [self.loaded(values)], aval.shape))
        for variables, values in zip(carry, held, strict=True):
            self.assign(variables, values)
        self.depth -= 1
        self.line("}")

    def carried(self, avals: Sequence[Any], values: Sequence[Any]) -> list[Names]:
        carry = [self.variables(aval) for aval in avals]
        for variables, initial in zip(carry, values, strict=True):
            self.assign(variables, self.loaded(initial))
        return carry

    def _while(self, equation: Any, *operands: Any) -> list[Any]:
        params = equation.params
        ends = np.cumsum([params["cond_nconsts"], params["body_nconsts"]])
        cond_consts, body_consts, initial = operands[: ends[0]], operands[ends[0] : ends[1]], operands[ends[1] :]
        avals = [var.aval for var in equation.outvars]
        carry = self.carried(avals, initial)
        self.costly += 1
        self.may_not_end = True

        def body() -> list[Any]:
            (goes_on,) = self.closed(params["cond_jaxpr"], [*cond_consts, *carry])
            self.line(f"if (!{self.loaded(goes_on).item()}) break;")
            return self.closed(params["body_jaxpr"], [*body_consts, *carry])

        self.loop("for (;;) {", carry, avals, body)
        return carry

    def _scan(self, equation: Any, *operands: Any) -> list[Any]:
        params = equation.params
        length = params["length"]
        fixed, initial, xs = scan_operands(params, operands)
        carries = len(initial)
        if not xs and len(equation.outvars) == carries:
            avals = [var.aval for var in equation.outvars]
            carry = self.carried(avals, initial)
            self.costly += 1
            step = f"i{next(self._numbers)}"
            self.loop(
                f"for (int64_t {step} = 0; {step} < {length}; ++{step}) {{",
                carry,
                avals,
                lambda: self.closed(params["jaxpr"], [*fixed, *carry]),
            )
            return carry
        if length > MOST_STEPS:
            raise Unsupported(f"a scan of {length} steps over arrays, more than {MOST_STEPS}")
        xs = [self.loaded(x) for x in xs]
        state, columns = list(initial), [np.empty(var.aval.shape, object) for var in equation.outvars[carries:]]
        for i in reversed(range(length)) if params["reverse"] else range(length):
            results = self.closed(params["jaxpr"], [*fixed, *state, *(_row(x, i) for x in xs)])
            state = results[:carries]
            for column, row in zip(columns, results[carries:], strict=True):
                column[i] = self.loaded(row) if column.ndim > 1 else self.loaded(row).item()
        return [*state, *columns]


def _stored(aval: Any) -> Any:
    """The aval of a value's names: random keys are rows of words."""
    if not is_random_key(aval.dtype):
        return aval
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))


def _expect_no_random_keys(primitive: str, equation: Any) -> None:
    avals = [atom.aval for atom in (*equation.invars, *equation.outvars)]
    if any(hasattr(aval, "dtype") and is_random_key(aval.dtype) for aval in avals):
        raise Unsupported(f"{primitive} of random keys")


def _expect_small(shape: Sequence[int], what: str) -> None:
    if np.prod(shape) > MOST_SCALARS:
        raise Unsupported(f"{what} of shape {list(shape)}, more than {MOST_SCALARS} scalars")


def _row(x: Names, i: int) -> Names:
    row = np.empty(x.shape[1:], object)
    row[...] = x[i]
    return row


def _neutral(function: str, dtype: Any) -> Any:
    """The identity of a function of two scalars, exact in that it changes no bit of what it is combined with."""
    dtype = np.dtype(dtype)
    floats = jnp.issubdtype(dtype, jnp.floating)
    if function in ("max", "min"):
        if floats:
            return -np.inf if function == "max" else np.inf
        if dtype == np.bool_:
            return function == "min"
        return np.iinfo(dtype).min if function == "max" else np.iinfo(dtype).max
    zero = -0.0 if floats and function == "add" else 0
    return {"add": zero, "mul": 1, "and_": True if dtype == np.bool_ else -1, "or_": 0, "xor_": 0}[function]


def _gather_fill(fill: Any, dtype: Any) -> Any:
    if fill is not None:
        return fill
    if jnp.issubdtype(dtype, jnp.floating):
        return np.nan
    if np.dtype(dtype) == np.bool_:
        return True
    return np.iinfo(dtype).min if np.issubdtype(dtype, np.signedinteger) else np.iinfo(dtype).max


# ---- What only moves elements, by NumPy.


def _broadcast_in_dim(x: Names, *, shape: Any, broadcast_dimensions: Any, **_: Any) -> Names:
    wide = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, x.shape, strict=True):
        wide[axis] = size
    return np.broadcast_to(x.reshape(wide), shape)


def _slice(x: Any, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    steps = strides or [1] * x.ndim
    return x[tuple(slice(*bounds) for bounds in zip(start_indices, limit_indices, steps, strict=True))]


def _split(x: Names, *, sizes: Any, axis: int) -> list[Names]:
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _pad(x: Names, value: Names, *, padding_config: Any) -> Names:
    shape = [
        low + high + n + max(n - 1, 0) * inner for n, (low, high, inner) in zip(x.shape, padding_config, strict=True)
    ]
    padded = np.empty(shape, object)
    padded.fill(value.item())
    for index in np.ndindex(*x.shape):
        place = tuple(low + i * (inner + 1) for i, (low, _, inner) in zip(index, padding_config, strict=True))
        if all(0 <= i < n for i, n in zip(place, shape, strict=True)):
            padded[place] = x[index]
    return padded


def _squeeze(x: Names, *, dimensions: Any) -> Names:
    return x.reshape([n for axis, n in enumerate(x.shape) if axis not in {d % x.ndim for d in dimensions}])


def _reshape(x: Names, *, new_sizes: Any, dimensions: Any = None, **_: Any) -> Names:
    return (x if dimensions is None else np.transpose(x, dimensions)).reshape(new_sizes)


MOVES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": lambda *xs, dimension: np.concatenate(xs, dimension),
    "expand_dims": lambda x, *, dimensions: np.expand_dims(x, dimensions),
    "pad": _pad,
    "reshape": _reshape,
    "rev": lambda x, *, dimensions: np.flip(x, dimensions),
    "slice": _slice,
    "split": _split,
    "squeeze": _squeeze,
    "stack": lambda *xs, axis=0, **_: np.stack(xs, axis),
    "tile": lambda x, *, reps, **_: np.tile(x, reps),
    "transpose": lambda x, *, permutation: np.transpose(x, permutation),
    "unstack": lambda x, *, axis=0, **_: [_row(np.moveaxis(x, axis, 0), i) for i in range(x.shape[axis])],
}


# ---- The same of what stays in memory.


def _view_squeeze(x: Memory, params: Any) -> Memory:
    gone = {d % x.ndim for d in params["dimensions"]}
    kept = [axis for axis in range(x.ndim) if axis not in gone]
    return x.shifted([], [x.shape[axis] for axis in kept], [x.strides[axis] for axis in kept])


def _view_transpose(x: Memory, params: Any) -> Memory:
    order = params["permutation"]
    return x.shifted([], [x.shape[axis] for axis in order], [x.strides[axis] for axis in order])


def _view_slice(x: Memory, params: Any) -> Memory:
    starts, steps = params["start_indices"], params["strides"] or [1] * x.ndim
    shape = [
        -(-(limit - start) // step) for start, limit, step in zip(starts, params["limit_indices"], steps, strict=True)
    ]
    strides = [stride * step for stride, step in zip(x.strides, steps, strict=True)]
    return x.shifted(zip(map(str, starts), x.strides, strict=True), shape, strides)


def _view_broadcast(x: Memory, params: Any) -> Memory:
    shape, strides = params["shape"], [0] * len(params["shape"])
    for axis, place in enumerate(params["broadcast_dimensions"]):
        strides[place] = x.strides[axis] if x.shape[axis] == shape[place] else 0
    return x.shifted([], shape, strides)


def _view_reshape(x: Memory, params: Any) -> Memory:
    whole = Memory.of(x.name, x.dtype, x.shape)
    axes = [axis for axis, n in enumerate(x.shape) if n != 1]
    if params.get("dimensions") is not None or any(x.strides[axis] != whole.strides[axis] for axis in axes):
        raise Unsupported(f"reshape of a part of a captured array, {describe(x)}")
    shape = tuple(params["new_sizes"])
    return x.shifted([], shape, Memory.of(x.name, x.dtype, shape).strides)


VIEWS: dict[str, Callable[[Memory, Any], Memory]] = {
    "broadcast_in_dim": _view_broadcast,
    "reshape": _view_reshape,
    "slice": _view_slice,
    "squeeze": _view_squeeze,
    "transpose": _view_transpose,
}


@dataclasses.dataclass(frozen=True)
class Emitted:
    """A function in C++.

    Args:
      body: the lines that compute the results, and their last names.
      results: the names of the results' elements.
      is_large: whether it is to be called and not copied.
      branches: whether it is large or has control flow, so that it is not to be run for nothing.
      neutral: what changes nothing in a combination, a scalar a leaf, where the function combines each leaf by a
        primitive that has such a value; all of these commute.
    """

    body: str
    results: list[Names]
    is_large: bool
    branches: bool
    neutral: list[Any] | None


def emit_function(closed: Any, arguments: Sequence[Names], capture: Callable[[Any], Memory]) -> Emitted:
    """A closed jaxpr, applied to values by these names, in C++.

    `capture` gives the name of a captured array that stays in memory.
    """
    writer = _Writer(capture)
    results = [writer.loaded(x) for x in writer.closed(closed, arguments)]
    return writer.emitted(results, _neutral_of(closed, writer, arguments, results))


def _neutral_of(closed: Any, writer: _Writer, arguments: Sequence[Names], results: Sequence[Names]) -> Any:
    """The neutral scalar of each leaf of a function of two items, where each element is combined by one primitive."""
    if len(arguments) != 2 * len(results):
        return None
    neutral = []
    for leaf, (a, b, combined) in enumerate(
        zip(arguments[: len(results)], arguments[len(results) :], results, strict=True)
    ):
        functions = {writer.made.get(name, ("",))[0] for name in combined.flat}
        if len(functions) != 1 or not functions <= {"add", "mul", "max", "min", "and_", "or_", "xor_"}:
            return None
        if a.shape != combined.shape:
            return None
        for x, y, name in zip(a.flat, b.flat, combined.flat, strict=True):
            if set(writer.made[name][1:]) != {x, y}:
                return None
        neutral.append(_neutral(functions.pop(), closed.out_avals[leaf].dtype))
    return neutral


@dataclasses.dataclass(frozen=True)
class Stage:
    """What makes an operator's states of the items in memory, or its results of states.

    Args:
      closed: jaxprs, each of which takes what the one before it gives; those of items take the position last.
      avals: the leaves that the first takes, or that the last gives, in memory.
    """

    closed: tuple[Any, ...]
    avals: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class OperatorSource:
    """An operator as C++: `Function` and its structs, of which ffi/function/operator.h makes the kernels' operators.

    Args:
      text: the structs.
      item: what it combines.
      element: what lies in memory.
      captures: the arrays that stay in memory, in the order of their pointers.
      commutes: whether it certainly does.
      has_neutral: whether states need not say that they are of nothing.
    """

    text: str
    item: Layout
    element: Layout
    captures: tuple[Any, ...]
    commutes: bool
    has_neutral: bool

    @property
    def state_bytes(self) -> int:
        """The size of a state of the kernels."""
        return self.item.bytes if self.has_neutral else self.item.bytes + (8 if self.item.align == 8 else 4)

    @property
    def largest_bytes(self) -> int:
        """The size of an element, or of what is made of it, where that is larger."""
        return max(self.item.bytes, self.element.bytes)


MOST_LEAVES = 16  # as ffi/function/item.h has room for
MOST_CAPTURES = 16


class _Captures:
    """The captured arrays that stay in memory."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []

    def __call__(self, const: Any) -> Memory:
        known = [i for i, other in enumerate(self.arrays) if other is const]
        if not known:
            known = [len(self.arrays)]
            self.arrays.append(const)
        if len(self.arrays) > MOST_CAPTURES:
            raise Unsupported(f"more than {MOST_CAPTURES} captured arrays")
        return Memory.of(f"captures.get<{scalar_type(const.dtype)}>({known[0]})", const.dtype, const.shape)


def _expect_layout(layout: Layout) -> Layout:
    """A layout that the kernels have room for."""
    leaves = len(layout.leaves)
    if not 0 < leaves <= MOST_LEAVES:
        raise Unsupported(f"items of {leaves} arrays, more than {MOST_LEAVES}")
    sizes = list(map(layout.elements, range(leaves)))
    if sum(sizes) > MOST_ITEM_SCALARS:
        raise Unsupported(f"items of {sum(sizes)} scalars, more than {MOST_ITEM_SCALARS}")
    if 0 in sizes:
        raise Unsupported("items without elements")
    return layout


def emit_operator(
    closed: Any,
    avals: Sequence[Any],
    nothing: Sequence[Any] | None = None,
    *,
    reverse: bool = False,
    exclusive: bool = False,
    commutes: bool = False,
    neutral: Sequence[Any] | None = None,
    dead: int = 0,
    load: Stage | None = None,
    finish: Stage | None = None,
) -> OperatorSource:
    """The operator of a closed jaxpr, which takes the leaves of two states and gives those of one.

    Args:
      closed: the jaxpr.
      avals: the leaves of a state.
      nothing: the result over no items, where there may be such a result.
      reverse: whether a scan goes from the end.
      exclusive: whether a scan leaves out the position's own item.
      commutes: a promise that the operator does.
      neutral: a state that changes nothing in a combination, where that is known.
      dead: the result for an item past the count.
      load: what makes a state of an item and its position, where an item is not a state itself.
      finish: what makes a result of a state, where a state is not a result itself.
    """
    item = _expect_layout(Layout.of(avals))
    element = item if load is None else _expect_layout(Layout.of(load.avals))
    result = item if finish is None else _expect_layout(Layout.of(finish.avals))
    result_avals = avals if finish is None else finish.avals
    capture = _Captures()
    emitted = emit_function(closed, item.names("a") + item.names("b"), capture)
    writer = _Writer(capture)

    def filled(value: Any, avals: Sequence[Any]) -> list[Names]:
        return [writer.constant(np.full(aval.shape, value), aval.dtype) for aval in avals]

    known = emitted.neutral if nothing is None else None
    members = [
        _member(
            "Item combine(const Item& a, const Item& b) const", emitted.body, emitted.results, item, emitted.is_large
        ),
        _member("static Item zero()", "", filled(0, avals), item),
        _member("static Result dead()", "", filled(dead, result_avals), result, kind="Result"),
    ]
    if neutral is not None:
        values = [writer.constant(value, aval.dtype) for value, aval in zip(neutral, avals, strict=True)]
        members.append(_member("Item neutral() const", "", values, item))
    elif known is not None:
        values = [filled(value, [aval])[0] for value, aval in zip(known, avals, strict=True)]
        members.append(_member("Item neutral() const", "", values, item))
    else:
        values = filled(0, result_avals) if nothing is None else [writer.loaded(writer.captured(v)) for v in nothing]
        members.append(_member("Result nothing() const", "\n".join(writer.lines), values, result, kind="Result"))
    if load is not None:
        position = _named(f"static_cast<{scalar_type(load.closed[0].in_avals[-1].dtype)}>(position)")
        made = _emit_stages(load.closed, element.names("x"), [position], capture)
        signature = "Item load(const Element& x, int64_t position) const"
        members.append(_member(signature, made.body, made.results, item, made.is_large))
    if finish is not None:
        made = _emit_stages(finish.closed, item.names("x"), [], capture)
        members.append(_member("Result finish(const Item& x) const", made.body, made.results, result, kind="Result"))
    has_neutral = neutral is not None or known is not None
    commutes = commutes or emitted.neutral is not None
    flags = {
        "HasNeutral": has_neutral,
        "Commutes": commutes,
        "Branches": emitted.branches,
        "Loads": load is not None,
        "Finishes": finish is not None,
        "Reverse": reverse,
        "Exclusive": exclusive,
    }
    structs, names = [], {"Item": "FunctionItem", "Element": "FunctionItem", "Result": "FunctionItem"}
    for name, layout in (("Item", item), ("Element", element), ("Result", result)):
        if name == "Item" or layout is not item:
            names[name] = f"Function{name}"
            largest = max(item.bytes, layout.bytes) if name == "Element" else None
            structs.append(
                f"{layout.text(names[name], largest)}static_assert(sizeof({names[name]}) == {layout.bytes});\n"
            )
    text = (
        "".join(structs)
        + "struct Function {\n"
        + "".join(f"  using {name} = {struct};\n" for name, struct in names.items())
        + "".join(f"  static constexpr bool k{flag} = {'true' if on else 'false'};\n" for flag, on in flags.items())
        + f"  mgpu::Captures captures;\n{''.join(members)}}};\n"
    )
    return OperatorSource(text, item, element, tuple(capture.arrays), commutes, has_neutral)


@dataclasses.dataclass(frozen=True)
class OrderSource:
    """An order of items as C++: `Function` and its item, of which ffi/function/order.h makes the kernels' order.

    Args:
      text: the structs.
      captures: the arrays that stay in memory, in the order of their pointers.
    """

    text: str
    captures: tuple[Any, ...]


def emit_order(closed: Any, avals: Sequence[Any]) -> OrderSource:
    """The order of a closed jaxpr, which takes the leaves of two items and says whether the first comes first."""
    item, capture = _expect_layout(Layout.of(avals)), _Captures()
    writer = _Writer(capture)
    (result,) = writer.closed(closed, item.names("a") + item.names("b"))
    name = writer.loaded(result).item()
    if writer.may_not_end:
        raise Unsupported("a while loop in an order, which the kernels also ask about what is no key")
    emitted = writer.emitted([], None)
    marker = "MGPU_CALLED" if emitted.is_large else "MGPU_HOST_DEVICE"
    text = (
        f"{item.text('FunctionItem')}static_assert(sizeof(FunctionItem) == {item.bytes});\n"
        "struct Function {\n  using Item = FunctionItem;\n  mgpu::Captures captures;\n"
        f"  {marker} bool less(const Item& a, const Item& b) const {{\n{emitted.body}\n    return {name};\n  }}\n}};\n"
    )
    return OrderSource(text, tuple(capture.arrays))


def _named(name: str) -> Names:
    """A scalar of this name."""
    names = np.empty((), object)
    names[()] = name
    return names


def _emit_stages(
    closed: Sequence[Any], arguments: Sequence[Names], last: Sequence[Names], capture: Callable[[Any], Memory]
) -> Emitted:
    """Jaxprs one after the other; each takes what the one before it gives, and `last`."""
    writer = _Writer(capture)
    values: Sequence[Any] = arguments
    for one in closed:
        values = writer.closed(one, [*values, *last])
    return writer.emitted([writer.loaded(x) for x in values], None)


def _member(
    signature: str, body: str, results: Sequence[Names], item: Layout, is_large: bool = False, kind: str = "Item"
) -> str:
    """A member function that gives a struct."""
    lines = [body] if body else []
    lines.append(f"    {kind} result;")
    for variable, values in zip(item.names("result"), results, strict=True):
        lines += [f"    {variable[index]} = {values[index]};" for index in np.ndindex(*variable.shape)]
    marker = "MGPU_CALLED" if is_large else "MGPU_HOST_DEVICE"
    return f"  {marker} {signature} {{\n" + "\n".join([*lines, "    return result;"]) + "\n  }\n"
