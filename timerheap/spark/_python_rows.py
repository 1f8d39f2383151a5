"""Rows and values of Arrow columns as Python has them: what a function on rows gets."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row

from timerheap._moments import local_time, moment_of
from timerheap._native._core import ColumnReader, RowField, row_getter, set_item
from timerheap.spark._arrow import map_type, view_of
from timerheap.types import LOCAL

_FORMATS: dict[pa.DataType, str] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), "integer"),
    **dict.fromkeys((pa.float32(), pa.float64()), "float"),
    pa.bool_(): "bool",
    **dict.fromkeys((pa.string(), pa.large_string()), "string"),
    **dict.fromkeys((pa.binary(), pa.large_binary()), "binary"),
}
_FIRST, _LAST = np.datetime64("0001-01-02", "us"), np.datetime64("9999-12-31", "us")  # in each time zone


def column_reader(column: pa.Array) -> ColumnReader | None:
    """Return the reader of a column, or None for a type that it does not read; copies no values."""
    format_ = _FORMATS.get(column.type)
    return None if format_ is None else ColumnReader(format_, view_of(column))


def python_values(column: pa.Array) -> list[Any]:
    """Return the values like ``column.to_pylist()``, in a fraction of the time for flat types."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "us":
        return _zoned_moments(column)
    reader = column_reader(column)
    return _python_objects(column) if reader is None else reader.tolist()


def _python_objects(column: pa.Array) -> list[Any]:
    with suppress(OverflowError, ValueError):
        values: list[Any] = column.to_pylist()
        return values
    # Arrow's are in UTC, where Python may not have the year that it has in local time.
    numbers = column.cast(map_type(column.type, lambda each: pa.int64() if _is_moment(each) else each))
    return [_from_numbers(value, column.type) for value in numbers.to_pylist()]


def _is_moment(type_: pa.DataType) -> bool:
    return pa.types.is_timestamp(type_) and type_.tz is not None


def _from_numbers(value: Any, type_: pa.DataType) -> Any:
    """Return a value of `column.to_pylist()` that has numbers for moments."""
    if value is None:
        return None
    if _is_moment(type_):
        return moment_of(local_time(value))
    if pa.types.is_struct(type_):
        return {field.name: _from_numbers(value[field.name], field.type) for field in type_}
    if pa.types.is_map(type_):
        return [(_from_numbers(k, type_.key_type), _from_numbers(v, type_.item_type)) for k, v in value]
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return [_from_numbers(each, type_.value_type) for each in value]
    return value


def _zoned_moments(column: pa.Array) -> list[Any]:
    moments, zone = column.to_numpy(zero_copy_only=False), column.type.tz
    if zone == LOCAL:
        zone = "UTC"
    known = moments[~np.isnat(moments)]
    if zone is None or not len(known) or not _FIRST <= known.min() <= known.max() <= _LAST:
        return _python_objects(column)
    zone = pa.lib.string_to_tzinfo(zone)
    utc = zone if zone == pa.lib.string_to_tzinfo("UTC") else datetime.UTC
    # Some 20 times as fast as Arrow's to_pylist(), and combine() as replace().
    combine = datetime.datetime.combine
    values = [None if at is None else combine(at, at.time(), utc) for at in moments.tolist()]
    return values if utc is zone else [None if at is None else at.astimezone(zone) for at in values]


def local_times(column: pa.Array) -> list[datetime.datetime | None]:
    """Return the values of moments in microseconds as PySpark does, in local time; see `local_time`."""
    micros = ColumnReader("integer", view_of(column.cast(pa.int64()))).tolist()
    return [None if at is None else local_time(at) for at in micros]


@cache
def row_class(names: tuple[str, ...]) -> type[Row]:
    """Return the class of rows with these fields, a ``Row`` like any other but for the time of an access."""
    # Row is Python code that searches the names at each access, which takes longer than everything else
    # that is done for a row. A row that is pickled becomes a plain Row.
    places = {name: names.index(name) for name in names}
    attributes = {name for name in names if not hasattr(Row, name) and not name.startswith("__")}
    members: dict[str, Any] = {name: RowField(places[name]) for name in attributes}
    members |= {"__getitem__": row_getter(places, Row.__getitem__)}
    members |= {name: getattr(Row, name) for name in ("__doc__", "__module__", "__qualname__")}
    return type("Row", (Row,), members)


@cache
def changeable_class(names: tuple[str, ...]) -> type[Row]:
    """Return a `row_class` of rows whose items can be set, as those of PyFlink's ``Row``."""
    places = {name: names.index(name) for name in names}

    def put(row: Any, item: Any, value: Any) -> None:
        if isinstance(item, str) and item not in places:
            raise KeyError(f"field must be one of {list(names)}, got {item!r}")
        set_item(row, places[item] if isinstance(item, str) else item, value)

    def put_attribute(row: Any, name: str, value: Any) -> None:
        if name != "__fields__":
            raise AttributeError(f"a field must be set as row[{name!r}] = value, got row.{name} = {value!r}")
        object.__setattr__(row, name, value)

    def copied(row: Any, memo: dict[int, Any] | None = None) -> Any:
        return changeable_row(*names)(*(row if memo is None else deepcopy(tuple(row), memo)))

    methods = {"__setitem__": put, "__setattr__": put_attribute, "__copy__": copied, "__deepcopy__": copied}
    class_ = row_class(names)
    members = {name: getattr(Row, name) for name in ("__doc__", "__module__", "__qualname__")}
    return type("Row", (class_,), members | methods)


def changeable_row(*names: str) -> Callable[..., Row]:
    """Return a function that makes a row of `changeable_class` of its values."""
    class_, fields = changeable_class(names), list(names)

    def make(*values: Any) -> Row:
        row: Row = tuple.__new__(class_, values)
        row.__fields__ = fields
        return row

    return make
