"""The Python values of Arrow columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from timerheap._native._heap import ColumnReader
from timerheap.spark._group.offsets import wide

__all__ = ["column_reader", "python_values"]

_FORMATS: dict[pa.DataType, str] = {
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "bool",
    pa.large_string(): "string",
    pa.large_binary(): "binary",
}


def column_reader(column: pa.Array) -> ColumnReader | None:
    """Return the reader of a column, or None for a type that it does not read; copies no values."""
    type_ = wide(column.type)
    format_ = _FORMATS.get(type_)
    if format_ is None:
        return None
    column = column.cast(type_)
    validity, *offsets, values = column.buffers()
    return ColumnReader(format_, len(column), column.offset, validity, values, *offsets)


def python_values(column: pa.Array) -> list[Any]:
    """Return the values like ``column.to_pylist()``, in a fraction of the time for flat types."""
    reader = column_reader(column)
    values: list[Any] = column.to_pylist() if reader is None else reader.tolist()
    return values
