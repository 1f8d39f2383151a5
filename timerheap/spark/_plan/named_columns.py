"""Columns that users name, found in their DataFrames; each error names the argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._columns import shown_name
from timerheap.spark._compat import grouping_of

ColumnOrName = str | Column


def data_frame(argument: str, df: object) -> DataFrame:
    if not isinstance(df, DataFrame):
        raise ArgumentTypeError(f"{argument} must be a pyspark.sql.DataFrame, got {df!r}")
    return df


def named_column(df: DataFrame, argument: str, name: object) -> T.DataType:
    """Return the type of a column whose name is unique in `df`."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"{argument} must be a column name, got {name!r}; pass a str or a Column")
    count = df.columns.count(name)
    if count != 1:
        raise ArgumentValueError(
            f"{argument} must name one column, got {name!r}, which names {count or 'none'}; "
            f"the columns are {df.columns}"
        )
    return df.schema[name].dataType


def quoted(name: str) -> Column:
    """Return the column with exactly this name; dots and backticks are part of the name."""
    return F.col(backticks(name))


def backticks(name: str) -> str:
    """Return a name as Spark reads it where dots would separate its parts."""
    return "`" + name.replace("`", "``") + "`"


def key_columns(df: DataFrame, argument: str, key: object) -> list[str]:
    names = [key] if isinstance(key, str) else list(key) if isinstance(key, Sequence) else None
    if not names:
        raise ArgumentTypeError(f"{argument} must be a column name or a list of column names, got {key!r}")
    for name in names:
        expect_comparable(argument, name, named_column(df, argument, name))
    return names


def is_atomic(type_: T.DataType) -> bool:
    """Return whether values of a type can be compared: it is not nested, and not variant."""
    return isinstance(type_, T.AtomicType) and not isinstance(type_, T.VariantType)


def expect_comparable(argument: str, name: str, type_: T.DataType) -> None:
    """Raise unless the values of a column can be compared by their bytes."""
    shown = shown_name(name)
    if not is_atomic(type_):
        raise ArgumentValueError(
            f"{argument} must be of an atomic type, got column {shown!r} of type {type_.simpleString()}; "
            "select its fields as separate columns and pass their names"
        )
    collation = collation_of(type_)
    if collation is not None:
        raise ArgumentValueError(
            f"{argument} must have the collation UTF8_BINARY, got column {shown!r} with {collation}; values "
            "are compared by their bytes: normalize them first, for example with "
            f"F.collate(F.lower({shown!r}), 'UTF8_BINARY')"
        )


def collation_of(type_: T.DataType) -> str | None:
    """Return the first collation in a type that is not UTF8_BINARY; None if all strings compare by bytes."""
    if isinstance(type_, T.StringType):
        return None if type_.isUTF8BinaryCollation() else type_.collation
    return next((found for found in map(collation_of, types_in(type_)) if found is not None), None)


def types_in(type_: T.DataType) -> list[T.DataType]:
    """Return the types directly inside a type, none if it is not nested."""
    if isinstance(type_, T.StructType):
        return [field.dataType for field in type_]
    if isinstance(type_, T.ArrayType):
        return [type_.elementType]
    return [type_.keyType, type_.valueType] if isinstance(type_, T.MapType) else []


def ungrouped(argument: str, df: Any, key_argument: str, key: Any) -> tuple[Any, Any]:
    """Return the DataFrame and the key columns of ``df.groupBy(...)``; other arguments as they are."""
    grouping = grouping_of(df)
    if grouping is None:
        return df, key
    rows, kind, columns = grouping
    if kind != "groupby":
        raise ArgumentValueError(f"{argument} must be grouped by groupBy(), got a {kind}() of it")
    if key is not None:
        raise ArgumentTypeError(
            f"{key_argument} must be left out if {argument} is grouped, which names the key columns, got "
            f"{key!r}; pass the other arguments by name"
        )
    if not columns:
        raise ArgumentValueError(
            f"{argument} must be grouped by one or more columns, got {argument}.groupBy()"
        )
    return rows, columns
