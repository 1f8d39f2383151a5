"""Converts Arrow rows to Python rows; errors name the column and the key of the value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import DataType, StructField, StructType, UserDefinedType

from timerheap._native._heap import ColumnReader, RowSource
from timerheap.spark._compat import to_tuples
from timerheap.spark._group.python_values import column_reader
from timerheap.spark._worker.row_classes import row_class

__all__ = ["row_source"]

_RESERVED = "__timerheap_"
_OUT_OF_RANGE = OverflowError, ValueError, OSError  # raised by Python's datetime


def row_source(table: pa.Table, type_: StructType, key: Sequence[str] = ()) -> RowSource:
    """Return the rows of a table as ``Row`` objects that are made one at a time.

    Parameters
    ----------
    table : pyarrow.Table
    type_ : pyspark.sql.types.StructType
        Of the table.
    key : sequence of str
        The key columns, whose values also identify the row in an error.

    Raises
    ------
    ValueError
        If a date or timestamp lies outside the years 1 to 9999.
    """
    columns = _columns(table, type_, key)
    return RowSource(row_class(tuple(type_.names)), type_.names, columns, [*map(type_.names.index, key)])


def _columns(table: pa.Table, type_: StructType, key: Sequence[str]) -> list[ColumnReader | list[Any]]:
    try:
        return [
            _column(column.combine_chunks(), field)
            for column, field in zip(table.columns, type_, strict=True)
        ]
    except _OUT_OF_RANGE:
        for path, column, of in _leaves((), table.to_struct_array().combine_chunks(), type_):
            row = _first_unreadable(column, of)
            if path and row is not None:
                whose = ", ".join(
                    _shown(table.column(name).combine_chunks().slice(row, 1), type_[name].dataType)
                    for name in key
                )
                raise ValueError(
                    f"column {'.'.join(path)!r} must be in the years 1 to 9999, the range of Python's "
                    f"datetime, got {_shown(column.slice(row, 1), of)}{f' for key {whose}' if key else ''}; "
                    "filter such rows out, or cast the column to string or bigint"
                ) from None
        raise


def _column(column: pa.Array, field: StructField) -> ColumnReader | list[Any]:
    plain = not isinstance(field.dataType, UserDefinedType)
    if plain and (reader := column_reader(column)) is not None:
        return reader
    table, type_ = pa.table({field.name: column}), StructType([field])
    return [value for (value,) in to_tuples(table, type_)]


def _leaves(
    path: tuple[str, ...], column: pa.Array, type_: DataType
) -> Iterator[tuple[tuple[str, ...], pa.Array, DataType]]:
    """Yield the columns inside structs, with their paths in the names that the user has given."""
    if not isinstance(type_, StructType):
        yield path, column, type_
        return
    for field, child in zip(type_, column.flatten(), strict=True):
        inner = path if field.name.startswith(_RESERVED) else (*path, field.name)
        yield from _leaves(inner, child, field.dataType)


def _first_unreadable(column: pa.Array, type_: DataType) -> int | None:
    return next((row for row in range(len(column)) if not _read(column.slice(row, 1), type_)), None)


def _read(value: pa.Array, type_: DataType) -> tuple[Any, ...]:
    """Return the value of a column of one row as a tuple, empty if Python cannot represent it."""
    table, schema = pa.table({"value": value}), StructType([StructField("value", type_)])
    with suppress(*_OUT_OF_RANGE):
        ((found,),) = to_tuples(table, schema)
        return (found,)
    return ()


def _shown(value: pa.Array, type_: DataType) -> str:
    if found := _read(value, type_):
        return repr(found[0])
    if pa.types.is_timestamp(value.type):
        return str(np.datetime64(value.cast(pa.int64())[0].as_py(), value.type.unit))
    if pa.types.is_date32(value.type):
        return str(np.datetime64(value.cast(pa.int32())[0].as_py(), "D"))
    return f"a value of {value.type}"
