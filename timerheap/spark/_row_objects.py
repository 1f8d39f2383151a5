"""Columns as ``Row`` objects that are made one at a time; an error names a value that Python cannot hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    AtomicType,
    DataType,
    StructField,
    StructType,
    TimestampType,
    UserDefinedType,
)

from timerheap._moments import OUT_OF_RANGE
from timerheap._native._core import ColumnReader, RowSource
from timerheap.errors import ArgumentValueError
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._columns import HIDDEN
from timerheap.spark._compat import to_tuples
from timerheap.spark._python_rows import changeable_class, column_reader, local_times


def row_source(rows: pa.RecordBatch, type_: StructType, key: Sequence[str] = ()) -> RowSource:
    """Return rows as ``Row`` objects that are made one at a time.

    type_: of the rows
    key: the key columns, whose values also identify the row in an error
    ArgumentValueError: if a date or timestamp lies outside the years 1 to 9999
    """
    columns = _column_readers(rows, type_, key)
    return RowSource(
        changeable_class(tuple(type_.names)), type_.names, columns, [*map(type_.names.index, key)]
    )


class RowSources:
    """Makes sources of rows: one for all runners that share it and are given the same rows.

    A row is made anew for each, and what is in it cannot be changed, or else each has a source of its own.
    """

    _ids: np.ndarray | None = None
    _source: RowSource

    def of(self, waiting: KeyedRows, type_: StructType, key: Sequence[str]) -> RowSource:
        if waiting.ids is self._ids:
            return self._source
        source = row_source(waiting.rows, type_, key)
        if all(isinstance(field.dataType, AtomicType) for field in type_):
            self._ids, self._source = waiting.ids, source
        return source


def _column_readers(
    rows: pa.RecordBatch, type_: StructType, key: Sequence[str]
) -> list[ColumnReader | list[Any]]:
    try:
        return [_column_reader(column, field) for column, field in zip(rows.columns, type_, strict=True)]
    except OUT_OF_RANGE:
        for path, column, of in _leaves((), rows.to_struct_array(), type_):
            row = next((at for at in range(len(column)) if not _python_value(column.slice(at, 1), of)), None)
            if path and row is not None:
                whose = ", ".join(
                    _text_of_value(rows.column(name).slice(row, 1), type_[name].dataType) for name in key
                )
                raise ArgumentValueError(
                    f"column {'.'.join(path)!r} must be in the years 1 to 9999 of local time, the range of "
                    f"Python's datetime, got {_text_of_value(column.slice(row, 1), of)}"
                    f"{f' for key {whose}' if key else ''}; "
                    "filter such rows out, or cast the column to string or bigint"
                ) from None
        raise


def _column_reader(column: pa.Array, field: StructField) -> ColumnReader | list[Any]:
    plain = not isinstance(field.dataType, UserDefinedType)
    if plain and (reader := column_reader(column)) is not None:
        return reader
    if isinstance(field.dataType, TimestampType):
        return local_times(column)
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
        inner = path if field.name.startswith(HIDDEN) else (*path, field.name)
        yield from _leaves(inner, child, field.dataType)


def _python_value(value: pa.Array, type_: DataType) -> tuple[Any, ...]:
    """Return the value of a column of one row as a tuple, empty if Python cannot represent it."""
    table, schema = pa.table({"value": value}), StructType([StructField("value", type_)])
    with suppress(*OUT_OF_RANGE):
        ((found,),) = to_tuples(table, schema)
        return (found,)
    return ()


def _text_of_value(value: pa.Array, type_: DataType) -> str:
    if found := _python_value(value, type_):
        return repr(found[0])
    if pa.types.is_timestamp(value.type):
        shown = str(np.datetime64(value.cast(pa.int64())[0].as_py(), value.type.unit))
        return shown if value.type.tz is None else f"{shown}Z"
    if pa.types.is_date32(value.type):
        return str(np.datetime64(value.cast(pa.int32())[0].as_py(), "D"))
    return f"a value of {value.type}"
