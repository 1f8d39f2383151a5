"""The Python values of Arrow columns."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._heap import ColumnReader
from timerheap.spark._group.array_views import view_of

__all__ = ["column_reader", "python_values"]

_FORMATS: dict[pa.DataType, str] = {
    pa.int8(): "integer",
    pa.int16(): "integer",
    pa.int32(): "integer",
    pa.int64(): "integer",
    pa.float32(): "float",
    pa.float64(): "float",
    pa.bool_(): "bool",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
}

_FIRST, _LAST = np.datetime64("0001-01-02", "us"), np.datetime64("9999-12-31", "us")  # in each time zone


def column_reader(column: pa.Array) -> ColumnReader | None:
    """Return the reader of a column, or None for a type that it does not read; copies no values."""
    format_ = _FORMATS.get(column.type)
    return None if format_ is None else ColumnReader(format_, view_of(column))


def python_values(column: pa.Array) -> list[Any]:
    """Return the values like ``column.to_pylist()``, in a fraction of the time for flat types."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "us":
        return _moments(column)
    reader = column_reader(column)
    values: list[Any] = column.to_pylist() if reader is None else reader.tolist()
    return values


def _moments(column: pa.Array) -> list[Any]:
    moments, zone = column.to_numpy(zero_copy_only=False), column.type.tz
    known = moments[~np.isnat(moments)]
    if zone is None or not len(known) or not _FIRST <= known.min() <= known.max() <= _LAST:
        values: list[Any] = column.to_pylist()
        return values
    zone = pa.lib.string_to_tzinfo(zone)
    utc = zone if column.type.tz == "UTC" else datetime.UTC
    # Some 20 times as fast as Arrow's to_pylist(), and combine() as replace().
    combine = datetime.datetime.combine
    values = [None if at is None else combine(at, at.time(), utc) for at in moments.tolist()]
    return values if utc is zone else [None if at is None else at.astimezone(zone) for at in values]
