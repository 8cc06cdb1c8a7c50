"""Primitives that work element by element."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.functions.emit.lines import Equation, Lines, stored
from jax_mgpu._src.functions.emit.scalars import Names, Unsupported, scalar_text

# Each is one operation of ffi/jit/function_data.cc.
_PLAIN = (
    "add sub mul div rem max min neg abs sign eq ne lt le gt ge clamp shift_left shift_right_logical "
    "shift_right_arithmetic population_count clz mulhi floor ceil is_finite exp exp2 expm1 log log1p log2 sin cos tan "
    "asin acos atan sinh cosh tanh asinh acosh atanh sqrt rsqrt cbrt erf erfc lgamma logistic square one_minus_square "
    "pow atan2 nextafter"
)
FUNCTIONS = {name: name for name in _PLAIN.split()}
FUNCTIONS |= {name: f"{name}_" for name in ("and", "or", "xor", "not")}
FUNCTIONS["add_any"] = "add"
# Each takes many instructions.
_COSTLY = (
    "exp exp2 expm1 log log1p log2 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh cbrt erf erfc lgamma "
    "logistic pow atan2 div rem"
)
COSTLY = frozenset(_COSTLY.split())


def _function(lines: Lines, equation: Equation, *operands: Names, function: str) -> Names:
    aval = equation.outvars[0].aval
    return lines.each(lambda *xs: lines.value(aval.dtype, function, *xs), operands, aval.shape)


def _product(lines: Lines, equation: Equation, x: Names, y: Names) -> Names:
    """Writes an integer times -1 as "neg", to hide the negation from ptxas (`complement`, function/primitives.h)."""
    aval = equation.outvars[0].aval
    turns = np.asarray(-1).astype(aval.dtype) if aval.dtype.kind in "iu" else None

    def write(x: str, y: str) -> str:
        for factor, other in ((x, y), (y, x)):
            if turns is not None and factor in lines.constants and lines.constants[factor] == turns:
                return lines.value(aval.dtype, "neg", other)
        return lines.value(aval.dtype, "mul", x, y)

    return lines.each(write, [x, y], aval.shape)


def _integer_pow(lines: Lines, equation: Equation, x: Names) -> Names:
    aval, power = equation.outvars[0].aval, equation.params["y"]
    one = scalar_text(1, aval.dtype)

    def write(base: str) -> str:  # multiplies in JAX's order
        product, bits = None, abs(power)
        while bits:
            if bits & 1:
                product = base if product is None else lines.value(aval.dtype, "mul", product, base)
            bits >>= 1
            if bits:
                base = lines.value(aval.dtype, "mul", base, base)
        product = one if product is None else product
        return lines.value(aval.dtype, "div", one, product) if power < 0 else product

    return lines.each(write, [x], aval.shape)


def _polynomial(lines: Lines, equation: Equation, x: Names, *coefficients: Names) -> Names:
    """Evaluates a polynomial by Horner's rule; the constant coefficient comes first."""
    aval = equation.outvars[0].aval

    def write(x: str, *coefficients: str) -> str:
        *lower, value = coefficients
        for coefficient in reversed(lower):
            value = lines.value(aval.dtype, "add", lines.value(aval.dtype, "mul", value, x), coefficient)
        return value

    return lines.each(write, [x, *coefficients], aval.shape)


def _round(lines: Lines, equation: Equation, x: Names) -> Names:
    aval = equation.outvars[0].aval
    function = "round_even" if int(equation.params["rounding_method"]) == 1 else "round_away"
    return lines.each(lambda i: lines.value(aval.dtype, function, i), [x], aval.shape)


def _convert_element_type(lines: Lines, equation: Equation, x: Names) -> Names:
    aval = equation.outvars[0].aval

    def write(i: str) -> str:
        if i in lines.constants and aval.dtype.kind in "iub" and np.asarray(lines.constants[i]).dtype.kind in "iub":
            result: str = lines.constant(np.asarray(lines.constants[i]).astype(aval.dtype), aval.dtype).item()
            return result
        return lines.value(aval.dtype, "convert", i)

    return lines.each(write, [x], aval.shape)


def _reduce_precision(lines: Lines, equation: Equation, x: Names) -> Names:
    aval = equation.outvars[0].aval
    kept = (equation.params["exponent_bits"], equation.params["mantissa_bits"])
    info = jnp.finfo(aval.dtype)
    if kept == (info.nexp, info.nmant):
        return x
    narrow = {(5, 10): np.float16, (8, 7): jnp.bfloat16, (8, 23): np.float32}.get(kept)
    if narrow is None or kept[0] > info.nexp or kept[1] > info.nmant:
        raise Unsupported(f"reduce_precision to {kept[0]} and {kept[1]} bits")
    tiny = jnp.finfo(narrow)
    flushed = scalar_text(float(tiny.smallest_normal) * (1 - 2.0 ** -(tiny.nmant + 2)), aval.dtype)

    def write(i: str) -> str:  # in XLA, subnormal results of fewer exponents are zeros
        result = lines.value(aval.dtype, "convert", lines.value(narrow, "convert", i))
        if kept[0] == info.nexp:
            return result
        is_small = lines.value(np.bool_, "lt", lines.value(aval.dtype, "abs", i), flushed)
        zero = lines.value(aval.dtype, "mul", i, scalar_text(0, aval.dtype))
        return lines.value(aval.dtype, "select", is_small, zero, result)

    return lines.each(write, [x], aval.shape)


def _bitcast_convert_type(lines: Lines, equation: Equation, x: Names) -> Names:
    aval = equation.outvars[0].aval
    if aval.shape != equation.invars[0].aval.shape:
        raise Unsupported("bitcast_convert_type to a type of another width")
    return lines.each(lambda i: lines.value(aval.dtype, "bits", i), [x], aval.shape)


def _select_n(lines: Lines, equation: Equation, which: Names, *cases: Names) -> Names:
    aval = stored(equation.outvars[0].aval)
    which = which.reshape(which.shape + (1,) * (aval.ndim - which.ndim))  # random keys are rows of words

    def write(which: str, *cases: str) -> str:
        if which in lines.constants:
            return cases[int(lines.constants[which])]
        if equation.invars[0].aval.dtype == np.bool_:
            return lines.value(aval.dtype, "select", which, cases[1], cases[0])
        return lines.value(aval.dtype, "pick", which, *cases)

    return lines.each(write, [which, *cases], aval.shape)


def _iota(lines: Lines, equation: Equation) -> Names:
    params, aval = equation.params, equation.outvars[0].aval
    steps = np.arange(aval.shape[params["dimension"]])
    shape = [1] * aval.ndim
    shape[params["dimension"]] = -1
    return lines.constant(np.broadcast_to(steps.reshape(shape), aval.shape).astype(aval.dtype), aval.dtype)


RULES: dict[str, Callable[..., Names]] = {
    **{name: functools.partial(_function, function=function) for name, function in FUNCTIONS.items()},
    "bitcast_convert_type": _bitcast_convert_type,
    "convert_element_type": _convert_element_type,
    "integer_pow": _integer_pow,
    "iota": _iota,
    "mul": _product,
    "polynomial": _polynomial,
    "reduce_precision": _reduce_precision,
    "round": _round,
    "select_n": _select_n,
}
