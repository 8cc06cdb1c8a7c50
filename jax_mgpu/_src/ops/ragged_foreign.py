"""Conversions from and to Awkward Array and Apache Arrow, which are imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_mgpu._src.arguments.check import describe, type_error, value_error


def _package(operation: str, name: str, install: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{operation}: expected the package {name}, got none: pip install {install}") from error


def _column(operation: str, x: np.ndarray) -> np.ndarray:
    """Returns a leaf as a NumPy array, of a dtype that the other packages support."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) or np.asarray(x).dtype.kind not in "biufc":
        expected = "bools, integers, or floats of 16 to 64 bits (.astype(jnp.float32) converts)"
        raise type_error(operation, "values", expected, describe(x))
    return np.ascontiguousarray(x)


def _fields(operation: str, values: Any) -> dict[str, Any] | tuple[Any, ...] | None:
    """Returns the fields of a dict or tuple, or None for an array."""
    if isinstance(values, (jax.Array, np.ndarray)):
        return None
    if type(values) is dict and all(isinstance(name, str) for name in values):
        return values
    if type(values) in (tuple, list):
        return tuple(values)
    raise type_error(operation, "values", "arrays, or dicts or tuples of them", type(values).__name__)


# ---- Awkward Array ---------------------------------------------------------------------------------------------------


def to_awkward(operation: str, values: Any, starts: np.ndarray, ends: np.ndarray) -> Any:
    """Returns an Awkward Array with one list of records or numbers per row."""
    ak = _package(operation, "awkward", "awkward")

    def content(values: Any) -> Any:
        fields = _fields(operation, values)
        if fields is None:
            return ak.contents.NumpyArray(_column(operation, values))
        names = list(fields) if isinstance(fields, dict) else None
        parts = fields.values() if isinstance(fields, dict) else fields
        return ak.contents.RecordArray([content(part) for part in parts], names)

    bounds = [ak.index.Index64(np.asarray(x, np.int64)) for x in (starts, ends)]
    return ak.Array(ak.contents.ListArray(*bounds, content(values)))


def awkward_parts(operation: str, array: Any) -> tuple[Any, np.ndarray]:
    """Returns the values and offsets of an Awkward Array of lists."""
    ak = _package(operation, "awkward", "awkward")
    layout = ak.to_layout(ak.to_packed(array))
    if not layout.is_list:
        raise type_error(operation, "array", "an Awkward Array of lists, one per row", str(ak.type(array)))
    packed = layout.to_ListOffsetArray64(True)

    def values(layout: Any) -> Any:
        if layout.is_record:
            parts = [values(part[: layout.length]) for part in layout.contents]
            return tuple(parts) if layout.is_tuple else dict(zip(layout.fields, parts, strict=True))
        if layout.is_numpy or layout.is_regular:
            return np.asarray(ak.to_numpy(layout, allow_missing=False))
        if layout.is_unknown:
            return np.zeros(0, np.float32)
        expected = "lists of numbers, or of records of them, without missing ones"
        raise type_error(operation, "array", expected, str(ak.type(array)))

    offsets = np.asarray(packed.offsets.data)
    return values(packed.content[: offsets[-1]]), offsets


# ---- Arrow -----------------------------------------------------------------------------------------------------------


def to_arrow(operation: str, values: Any, offsets: np.ndarray) -> Any:
    """Returns a ListArray, or a LargeListArray from 2^31 items on.

    Trailing axes become fixed-size lists.
    """
    pa = _package(operation, "pyarrow", "pyarrow")

    def content(values: Any) -> Any:
        fields = _fields(operation, values)
        if isinstance(fields, tuple):
            fields = {str(i): part for i, part in enumerate(fields)}
        if fields is not None:
            return pa.StructArray.from_arrays([content(part) for part in fields.values()], list(fields))
        column = _column(operation, values)
        array = pa.array(column.reshape(-1))
        for width in reversed(column.shape[1:]):
            array = pa.FixedSizeListArray.from_arrays(array, width)
        return array

    if offsets[-1] > np.iinfo(np.int32).max:
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), content(values))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), content(values))


def arrow_parts(operation: str, array: Any) -> tuple[Any, np.ndarray]:
    """Returns the values and offsets of an Arrow array of lists, in one chunk or several."""
    pa = _package(operation, "pyarrow", "pyarrow")
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
    if not isinstance(array, (pa.ListArray, pa.LargeListArray)):
        raise type_error(operation, "array", "a ListArray of Arrow", str(getattr(array, "type", type(array).__name__)))

    def values(part: Any) -> Any:
        if part.null_count:
            raise value_error(operation, "array", "no nulls", f"{part.null_count} of {part.type}")
        if pa.types.is_struct(part.type):
            names = [field.name for field in part.type]
            return dict(zip(names, map(values, part.flatten()), strict=True))
        if pa.types.is_fixed_size_list(part.type):
            inner = values(part.flatten())
            return inner.reshape(len(part), part.type.list_size, *inner.shape[1:])
        if pa.types.is_null(part.type):
            return np.zeros(0, np.float32)
        if not (pa.types.is_boolean(part.type) or pa.types.is_integer(part.type) or pa.types.is_floating(part.type)):
            raise type_error(operation, "array", "lists of numbers, or of structs of them", str(array.type))
        return part.to_numpy(zero_copy_only=False)

    if array.null_count:
        raise value_error(operation, "array", "no nulls", f"{array.null_count} of {array.type}")
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    return values(array.values[int(offsets[0]) : int(offsets[-1])]), offsets - offsets[0]
