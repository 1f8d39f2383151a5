"""Converts Arrow rows to PySpark rows; errors name the column and the key of the value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.types import DataType, StructField, StructType

__all__ = ["rows_of"]

_RESERVED = "__timerheap_"
_OUT_OF_RANGE = OverflowError, ValueError, OSError  # raised by Python's datetime


def rows_of(table: pa.Table, type_: StructType, key: Sequence[str] = (), *, as_tuples: bool = False) -> Any:
    """Return the rows of a table as a list of ``Row``, or of tuples.

    Parameters
    ----------
    table : pyarrow.Table
    type_ : pyspark.sql.types.StructType
        Of the table.
    key : sequence of str
        Columns whose values identify the row in an error.
    as_tuples : bool

    Raises
    ------
    ValueError
        If a date or timestamp lies outside the years 1 to 9999.
    """
    try:
        return ArrowTableToRowsConversion.convert(table, type_, return_as_tuples=as_tuples)
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
        ((found,),) = ArrowTableToRowsConversion.convert(table, schema)
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
