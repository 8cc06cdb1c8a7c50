"""Argument checks, with messages of one form: operation, argument, expected, got."""

from __future__ import annotations

import datetime
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.annotations import ArrayLike, AxisName, Count, DTypeLike, Pytree
from jax_mgpu._src.arguments.preconditions import inside
from jax_mgpu._src.core.compat import PyTreeDef, flatten, has_64_bits, known_size, surely
from jax_mgpu._src.core.eager import on_host
from jax_mgpu._src.core.operation import ABSENT
from jax_mgpu._src.keys.bits import is_random_key

KEY_DTYPES = frozenset(
    [f"{kind}{width}" for kind in ("uint", "int") for width in (8, 16, 32, 64)]
    + ["float16", "bfloat16", "float32", "float64"]
)
NUMBERS = "integers of 8 to 64 bits, float16, bfloat16, float32 or float64"
PLAIN_NUMBERS = frozenset(map(np.dtype, "?bBhHiIlLefd"))  # in the machine's byte order
INT32_LIMIT = 2**31


def describe(x: Any) -> str:
    """Describes an array by its dtype and shape, anything else as Python shows it."""
    if not hasattr(x, "dtype") or not hasattr(x, "shape"):
        return repr(x)
    return f"{x.dtype.name}[{','.join(map(str, x.shape))}]"


def describe_static(x: Any) -> str:
    """Describes a value that must be known while tracing."""
    return f"a traced {describe(x)}" if isinstance(x, jax.core.Tracer) else describe(x)


def type_error(operation: str, argument: str, expected: str, got: Any) -> TypeError:
    """Returns the TypeError of an argument."""
    return TypeError(f"{operation}: {argument}: expected {expected}, got {got}")


def value_error(operation: str, argument: str, expected: str, got: Any) -> ValueError:
    """Returns the ValueError of an argument."""
    return ValueError(f"{operation}: {argument}: expected {expected}, got {got}")


def as_array(operation: str, argument: str, x: Pytree, limit: int | None = None) -> jax.Array:
    """Returns an argument as an array.

    Without `jax_enable_x64`, integers that do not fit 32 bits are an error. With `limit`, they are positions, and are
    clipped to 32 bits instead; `limit` must fit.
    """
    return x if isinstance(x, jax.Array) else on_host(host_array, x, operation, argument, limit)


def host_array(x: Any, operation: str, argument: str, limit: int | None) -> jax.Array | np.ndarray:
    """Returns the host's value as an array, of the dtype that JAX gives it."""
    if type(x) is np.ndarray and x.dtype in PLAIN_NUMBERS:
        return _fitting(operation, argument, x, limit)
    if type(x) is float:
        return np.asarray(x, jax.dtypes.canonicalize_dtype(np.float64))
    if isinstance(x, np.ma.MaskedArray):
        raise type_error(operation, argument, "an array without a mask", type(x).__name__)
    try:
        if hasattr(x, "__jax_array__") or any(isinstance(leaf, jax.Array) for leaf in _items(x)):
            return jnp.asarray(x)
        host = np.asarray(x)
        if (
            host.dtype.kind == "f"
            and host.size
            and isinstance(x, (list, tuple))
            and all(isinstance(i, int) for i in _items(x))
        ):
            host = np.asarray(x, object)  # NumPy makes floats of a list with both 2^63 and smaller integers
    except (TypeError, ValueError) as error:
        got = type(x).__name__
        if isinstance(x, (list, tuple)) and isinstance(error, ValueError):
            got = f"a {got} of items of different shapes"
        raise type_error(operation, argument, "an array of numbers", got) from error
    return _fitting(operation, argument, _numbers(operation, argument, host, x), limit)


def _items(x: Any) -> Iterable[Any]:
    return jax.tree.leaves(x) if isinstance(x, (list, tuple)) else ()


def _numbers(operation: str, argument: str, host: np.ndarray, x: Pytree) -> np.ndarray:
    """Returns the array in the host's byte order; raises unless it holds numbers or bools. Objects must be ints."""
    if host.dtype == object:
        numeric = host.size > 0 and all(isinstance(i, int) for i in host.flat)
    else:
        numeric = jnp.issubdtype(host.dtype, jnp.number) or host.dtype == bool
        numeric = numeric and host.dtype.type not in (np.longdouble, np.clongdouble, np.timedelta64)
    if not numeric:
        got = describe(host) if host.ndim else repr(x)
        raise type_error(operation, argument, "an array of numbers", got + _numbers_instead(host))
    return host if host.dtype.isnative else host.astype(host.dtype.newbyteorder("="))


def _numbers_instead(host: np.ndarray) -> str:
    """Says how to convert texts and times to numbers; empty for other arrays, and for scalars."""
    not_numbers = (str, bytes, datetime.date, datetime.time, datetime.timedelta)
    if host.ndim == 0 or not (
        host.dtype.kind in "USTmM"  # NumPy 2's strings of any length have the kind T
        or (host.dtype == object and any(isinstance(item, not_numbers) for item in host.flat))
    ):
        return ""
    numbers = "; x.astype(np.int64) gives times as integers" if host.dtype.kind in "mM" else ""
    codes = "np.unique(x, return_inverse=True)[1] or pandas.factorize(x, sort=True)[0]"
    return f" ({codes} gives codes in the same order{numbers})"


def _fitting(operation: str, argument: str, host: np.ndarray, limit: int | None) -> np.ndarray:
    """Converts integers to a type that JAX has, or raises as `as_array` does."""
    if host.dtype.kind not in "iuO" or host.dtype.itemsize < 8:
        return host
    given = np.dtype(np.int64) if host.dtype == object else host.dtype
    dtype = jax.dtypes.canonicalize_dtype(given)
    if dtype == host.dtype:
        return host
    if host.dtype != object:
        narrow = host.astype(dtype)
        if not np.count_nonzero(narrow != host):
            return narrow
    bounds = np.iinfo(dtype)
    if host.size == 0 or (bounds.min <= host.min() and host.max() <= bounds.max):
        return host.astype(dtype)
    if limit is not None:
        if limit >= bounds.max:
            index_dtype(operation, argument, limit + 1)
        return np.asarray(np.clip(host, bounds.min, bounds.max)).astype(dtype)
    wider = "" if has_64_bits() else f" ({given.name} needs jax_enable_x64)"
    first = next(i for i in host.flat if not bounds.min <= i <= bounds.max)
    raise value_error(operation, argument, f"integers that fit {dtype.name}{wider}", int(first))


def expect_no_axis(operation: str, argument: str, axis_name: AxisName | None) -> None:
    """Raises if `axis_name` is given: the argument cannot be combined with a mesh axis."""
    if axis_name is not None:
        raise value_error(operation, "axis_name", f"None where {argument} is given", repr(axis_name))


def expect_vector(operation: str, argument: str, x: Pytree, limit: int | None = None) -> jax.Array:
    """Returns an argument as an array; raises unless it is 1-D."""
    given, x = x, as_array(operation, argument, x, limit)
    if x.ndim != 1:
        got = describe(x) if x.ndim else describe(given)
        raise value_error(operation, argument, "a 1-D array (batches come from jax.vmap)", got)
    return x


def expect_key(operation: str, argument: str, x: Pytree) -> jax.Array:
    """Returns an argument as an array; raises unless it is 1-D and of a type that has an order."""
    x = expect_vector(operation, argument, x)
    if x.dtype.name not in KEY_DTYPES:
        instead = " (x.astype(jnp.uint8) gives numbers)" if x.dtype == jnp.bool_ else ""
        raise type_error(operation, argument, NUMBERS, describe(x) + instead)
    return x


def expect_mask(operation: str, argument: str, x: Pytree, hint: str = "take selects by positions") -> jax.Array:
    """Returns a 1-D array of bools; `hint` follows the error for integers, which may be positions."""
    x = expect_vector(operation, argument, x)
    if x.size == 0:
        return x.astype(bool)  # an empty list
    if x.dtype != jnp.bool_:
        instead = f" ({hint})" if jnp.issubdtype(x.dtype, jnp.integer) else ""
        raise type_error(operation, argument, "bool[n]", describe(x) + instead)
    return x


def expect_same_dtype(operation: str, a_name: str, a: jax.Array, b_name: str, b: jax.Array) -> None:
    """Raises unless two operands have the same dtype."""
    if a.dtype != b.dtype:
        raise type_error(operation, b_name, f"the dtype of {a_name}, {a.dtype.name}", b.dtype.name)


def index_dtype(operation: str, argument: str, *lengths: int) -> np.dtype:
    """Returns the dtype of indices into arrays of these lengths: int64 if one has 2^31 items or more, else int32.

    Lengths that `jax.export` does not know count as less than 2^31.
    """
    long = [length for length in lengths if surely(operator.ge, length, INT32_LIMIT)]
    if not long:
        return np.dtype(np.int32)
    if not has_64_bits():
        raise value_error(operation, argument, "fewer than 2^31 items, or jax_enable_x64 for int64 indices", max(long))
    return np.dtype(np.int64)


def index_vector(operation: str, argument: str, x: Pytree, limit: int) -> jax.Array:
    """Returns a 1-D array of positions as int32 or int64; those beyond `limit` stay beyond it."""
    return _as_index(operation, argument, expect_vector(operation, argument, x, limit), limit)


def index_array(operation: str, argument: str, x: Pytree, limit: int) -> jax.Array:
    """Returns positions of any shape; checks and converts them like `index_vector`."""
    return _as_index(operation, argument, as_array(operation, argument, x, limit), limit)


def known_integers(x: Pytree) -> np.ndarray | None:
    """Returns a 1-D argument's integers if the host knows them, else None."""
    try:
        host = None if isinstance(x, jax.Array) else np.asarray(x)
    except (TypeError, ValueError):  # lists of different lengths, or of traced numbers
        return None
    return None if host is None or host.ndim != 1 or host.dtype.kind not in "iu" or host.size == 0 else host


def static_size(operation: str, argument: str, size: Any) -> int:
    """Returns a number of outputs, which must be known while tracing."""
    expected = "a static, non-negative integer"
    size = known_size(size)
    try:
        number = operator.index(size)
    except (TypeError, jax.errors.ConcretizationTypeError) as error:
        raise type_error(operation, argument, expected, describe_static(size)) from error
    if isinstance(size, bool):
        raise type_error(operation, argument, expected, size)
    if not 0 <= number < 2**63:
        raise value_error(operation, argument, expected + (" below 2^63" if number > 0 else ""), number)
    return number


def static_flag(operation: str, argument: str, flag: Any) -> bool:
    """Returns a flag as a bool; raises unless it is known while tracing."""
    if isinstance(flag, (bool, np.bool_)) or (isinstance(flag, int) and flag in (0, 1)):
        return bool(flag)
    raise type_error(operation, argument, "a static True or False", describe_static(flag))


def result_shapes(operation: str, argument: str, expected: str, function: Callable[..., Any], *avals: Any) -> Any:
    """Returns the shapes and types of the function's results; raises if JAX cannot call it with these arguments."""
    try:
        # JAX keeps weak references to callables: partials allow them, other callables may not.
        return jax.eval_shape(functools.partial(function), *avals)
    except TypeError as error:  # a wrong number of arguments, or a result that is no array
        raise type_error(operation, argument, expected, f"the error: {error}") from error


def expect_choice(operation: str, argument: str, choice: Any, choices: Iterable[str]) -> str:
    """Returns `choice`; raises unless it is one of `choices`."""
    if not isinstance(choice, str) or choice not in choices:
        raise value_error(operation, argument, " or ".join(map(repr, choices)), describe_static(choice))
    return choice


def expect_dtype(operation: str, dtype: DTypeLike | None, op: object = None) -> None:
    """Raises unless `dtype` is None or, with a named operator, a dtype of numbers."""
    if dtype is None:
        return
    if callable(op):
        raise type_error(operation, "dtype", "None with a function as op (map= may convert items)", repr(dtype))
    try:
        known = jax.dtypes.canonicalize_dtype(dtype)
    except (TypeError, ValueError) as error:
        raise type_error(operation, "dtype", NUMBERS, repr(dtype)) from error
    if known.name not in KEY_DTYPES or not known.isnative:
        raise type_error(operation, "dtype", NUMBERS, repr(dtype))


def expect_item_dtype(operation: str, dtype: DTypeLike) -> None:
    """Raises unless numbers or bools may be converted to this dtype."""
    expected = "a dtype of numbers or bools"
    try:
        known = jax.dtypes.canonicalize_dtype(dtype)
    except (TypeError, ValueError) as error:
        raise type_error(operation, "dtype", expected, describe_static(dtype)) from error
    if not (jnp.issubdtype(known, jnp.number) or jnp.issubdtype(known, np.bool_)) or known.type is np.timedelta64:
        raise type_error(operation, "dtype", expected, repr(dtype))


def count_operand(operation: str, argument: str, count: Count, length: int) -> jax.Array:
    """Returns a count as an operand of shape `[1]`, or the absent operand if the count is None."""
    if count is None:
        return ABSENT
    given, count = count, as_array(operation, argument, count)
    if count.ndim != 0:
        raise value_error(operation, argument, "an integer scalar", describe(count))
    if not jnp.issubdtype(count.dtype, jnp.integer):
        raise type_error(operation, argument, "an integer scalar", describe(given))
    return inside(operation, argument, _as_index(operation, argument, count, length).reshape(1), length)


def fill_operand(operation: str, fill_value: ArrayLike, dtype: np.dtype, argument: str = "fill_value") -> jax.Array:
    """Returns the fill value of results as an operand of shape `[1]`, in the results' dtype."""
    if not isinstance(fill_value, jax.Array):
        return on_host(_host_fill, fill_value, operation, argument, dtype)
    result: jax.Array = _fill(fill_value, fill_value, operation, argument, dtype)
    return result


def _host_fill(x: Any, operation: str, argument: str, dtype: np.dtype) -> np.ndarray:
    try:
        host = np.asarray(x)
    except ValueError as error:  # lists of different lengths
        raise value_error(operation, argument, "a scalar", f"a {type(x).__name__}") from error
    result: np.ndarray = _fill(_numbers(operation, argument, host, x), x, operation, argument, dtype)
    return result


def _fill(value: Any, given: Any, operation: str, argument: str, dtype: np.dtype) -> Any:
    if value.ndim != 0:
        raise value_error(operation, argument, "a scalar", describe(value))
    if is_random_key(value.dtype):
        raise type_error(operation, argument, "a number, which fills each word of random keys", describe(value))
    try:
        return value.astype(dtype).reshape(1)
    except OverflowError as error:
        raise value_error(operation, argument, f"a scalar that {dtype.name} holds", repr(given)) from error


def positions_instead(dtype: Any) -> str:
    """Returns the hint in an error for a mask that was given instead of positions."""
    return " (select takes a mask; Segments.from_flags takes flags of segment starts)" if dtype == jnp.bool_ else ""


def _as_index(operation: str, argument: str, x: jax.Array, limit: int) -> jax.Array:
    if not jnp.issubdtype(x.dtype, jnp.integer):
        if x.size == 0:
            return x.astype(jnp.int32)  # an empty list
        raise type_error(operation, argument, "integers", describe(x) + positions_instead(x.dtype))
    if x.dtype in (jnp.int32, jnp.int64):
        return x
    if x.dtype.itemsize < 4:
        return x.astype(jnp.int32)
    # Unsigned positions that do not fit a signed integer are past every array.
    signed = index_dtype(operation, argument, limit + 1)
    largest = jnp.iinfo(x.dtype).max
    past = largest if surely(lambda: limit >= largest) else limit + 1
    return jnp.minimum(x, jnp.array(past, x.dtype)).astype(signed)


def expect_rows(operation: str, argument: str, x: Pytree, length: int, owner: str) -> tuple[list[jax.Array], PyTreeDef]:
    """Returns the leaves as arrays, and the structure; raises unless all have this leading length."""
    leaves, structure = flatten(x)
    return expect_leading_axis(operation, argument, leaves, length, owner), structure


def expect_pytree(
    operation: str, argument: str, x: Pytree, hint: str = "a list is a pytree"
) -> tuple[list[jax.Array], PyTreeDef, int]:
    """Returns the leaves as arrays, the structure, and the number of items."""
    leaves, structure = flatten(x)
    if not leaves:
        raise type_error(operation, argument, "an array or a pytree of arrays", repr(x))
    first = as_array(operation, argument, leaves[0])
    if first.ndim == 0:
        raise value_error(operation, argument, f"arrays with a leading axis ({hint})", describe(first))
    n = first.shape[0]
    return expect_leading_axis(operation, argument, leaves, n, "the first array"), structure, n


def expect_leading_axis(
    operation: str, argument: str, leaves: Sequence[Any], length: int, owner: str
) -> list[jax.Array]:
    """Returns the leaves as arrays with a leading axis of this length."""
    arrays = [as_array(operation, argument, leaf) for leaf in leaves]
    for x in arrays:
        if x.ndim == 0 or x.shape[0] != length:
            pytree = "" if x.ndim else " (a list or tuple is a pytree of its items)"
            expected = f"arrays with the leading axis of {owner}, {length}"
            raise value_error(operation, argument, expected, describe(x) + pytree)
    return arrays
