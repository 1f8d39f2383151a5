"""The rows that a function on rows receives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import DataType, StructField, StructType, UserDefinedType

from timerheap._native._heap import ColumnReader, RowField, RowSource, row_getter
from timerheap.spark._compat import to_tuples
from timerheap.spark._group.columns import column_reader
from timerheap.spark._query import TIME, visible
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks import TimestampAssigner


@cache
def row_class(names: tuple[str, ...]) -> type[Row]:
    """Return the class of rows with these fields, a ``Row`` like any other but for the time of an access.

    ``Row`` is Python code that searches the names at each access, which takes longer than everything else
    that is done for a row. A row that is copied or pickled becomes a plain ``Row``.

    Examples
    --------
    >>> class_ = row_class(("key", "at"))
    >>> row = tuple.__new__(class_, ["a", 5])
    >>> row.at, row["key"], row[-1], isinstance(row, Row)
    (5, 'a', 5, True)
    """
    places = {name: names.index(name) for name in names}
    attributes = {name for name in names if not hasattr(Row, name) and not name.startswith("__")}
    members: dict[str, Any] = {name: RowField(places[name]) for name in attributes}
    members |= {"__getitem__": row_getter(places, Row.__getitem__)}
    members |= {name: getattr(Row, name) for name in ("__doc__", "__module__", "__qualname__")}
    return type("Row", (Row,), members)


@dataclass(frozen=True)
class AssignedTimes:
    """Appends the column `TIME` to the rows of a task.

    rows: type of the rows; the assigner does not see computed columns
    """

    assigner: TimestampAssigner
    rows: StructType

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with the column."""
        return map(self.timed, batches)

    def timed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the column."""
        seen = StructType([self.rows[name] for name in visible(self.rows.names)])
        rows = pa.Table.from_batches([batch]).select(seen.names)
        times = [self._time(row) for row in row_source(rows, seen).tolist()]
        return batch.append_column(TIME, pa.array(times, pa.int64()))

    def _time(self, row: object) -> int:
        time: object = self.assigner.extract_timestamp(row, MIN_WATERMARK)
        if type(time) is not int or not MIN_WATERMARK <= time < 1 << 63:
            raise ValueError(
                f"extract_timestamp must return epoch milliseconds, an int64, got {time!r} for {row!r}"
            )
        return time


_RESERVED = "__timerheap_"
_OUT_OF_RANGE = OverflowError, ValueError, OSError  # raised by Python's datetime


def row_source(table: pa.Table, type_: StructType, key: Sequence[str] = ()) -> RowSource:
    """Return the rows of a table as ``Row`` objects that are made one at a time.

    type_: of the table
    key: the key columns, whose values also identify the row in an error
    ValueError: if a date or timestamp lies outside the years 1 to 9999
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
