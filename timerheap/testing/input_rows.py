"""The rows that a test pushes: checked against their schema, and hashed as Spark hashes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from timerheap._values import Misfit
from timerheap.hashing import spark_xxhash64
from timerheap.spark._exchange.pack import event_millis
from timerheap.spark._exchange.unpack import HashedRows
from timerheap.spark._group.value_columns import cast as cast_column
from timerheap.spark._group.value_columns import column_of
from timerheap.spark._plan.marks import NULL_MARK
from timerheap.spark._query import TIME, nullable_arrow_schema
from timerheap.spark._worker.assigned_times import AssignedTimes
from timerheap.types import arrow_columns
from timerheap.watermarks import TimestampAssigner

__all__ = ["PushedRows", "columns_type"]


def columns_type(argument: str, schema: object) -> StructType:
    """Return the type of the columns of a DataFrame, given as DDL or as a StructType."""
    if isinstance(schema, str):
        return from_arrow_schema(arrow_columns(schema, argument), prefer_timestamp_ntz=True)
    if not isinstance(schema, StructType):
        raise TypeError(
            f"{argument} must be a DDL string such as 'plane string, at bigint', or a StructType, got "
            f"{schema!r}"
        )
    return schema


@dataclass(frozen=True)
class PushedRows:
    """The rows of one input.

    Parameters
    ----------
    type : pyspark.sql.types.StructType
        The columns of the rows that a test pushes.
    key : list of str
    event_time : str or None
        `TIME` with a timestamp assigner.
    assigner : TimestampAssigner, optional
    """

    type: StructType
    key: list[str]
    event_time: str | None
    assigner: TimestampAssigner | None = None

    # What the argument checks of `timerheap.spark._plan.arguments` read of a DataFrame:
    isStreaming = False

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    @property
    def schema(self) -> StructType:
        """The type of the rows with the column of assigned times."""
        if self.assigner is None:
            return self.type
        return StructType([*self.type, StructField(TIME, LongType())])

    def table(self, rows: object) -> pa.RecordBatch:
        """Return rows as columns, those of `schema`; raise TypeError or ValueError if one does not fit."""
        schema = nullable_arrow_schema(self.type)
        if isinstance(rows, (pa.RecordBatch, pa.Table)):
            if sorted(rows.schema.names) != sorted(schema.names):
                raise ValueError(f"rows must have the columns {schema.names}, got {rows.schema.names}")
            parts = (rows.column(field.name) for field in schema)
            columns = [cast_column(part, field.type) for part, field in zip(parts, schema, strict=True)]
            whole = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]
            batch = pa.RecordBatch.from_arrays(whole, schema=schema)
        else:
            values = list(zip(*map(self._values, _listed(rows)), strict=True)) or [()] * len(schema)
            batch = pa.RecordBatch.from_arrays(
                [_column(each, field) for each, field in zip(values, schema, strict=True)], schema=schema
            )
        self._check(batch)
        return batch if self.assigner is None else AssignedTimes(self.assigner, self.type).timed(batch)

    def _values(self, row: object) -> tuple[Any, ...]:
        names = self.type.names
        if isinstance(row, Mapping):
            if not row.keys() <= set(names):
                raise ValueError(f"rows must have the columns {names}, got {sorted(row.keys() - set(names))}")
            return tuple(row.get(name) for name in names)
        if isinstance(row, Sequence) and not isinstance(row, (str, bytes)) and len(row) == len(names):
            return tuple(row)
        raise ValueError(f"rows must be dicts, tuples or Rows with the columns {names}, got {row!r}")

    def _check(self, batch: pa.RecordBatch) -> None:
        for field, column in zip(self.type, batch.columns, strict=True):
            timed = field.name == self.event_time
            if column.null_count and (timed or not field.nullable):
                why = "the event time" if timed else "not null in the schema"
                raise ValueError(f"rows must have a value in column {field.name!r}, which is {why}, got None")

    def hashed(self, batch: pa.RecordBatch, rows: pa.RecordBatch) -> HashedRows:
        """Return rows with the hashes of their keys and their event times.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            Of `table`.
        rows : pyarrow.RecordBatch
            What the query sees of them.
        """
        keys = [_hashable(batch.column(name)) for name in self.key]
        timestamps = np.zeros(batch.num_rows, np.int64)
        if self.event_time is not None:
            timestamps = event_millis(batch.column(self.event_time))
        return HashedRows(rows, np.array(self._key_hashes(keys), np.int64), timestamps)

    def _key_hashes(self, columns: list[list[Any]]) -> list[int]:
        """Hash keys like `timerheap.spark._plan.marks`."""
        types = [self.schema[name].dataType.simpleString() for name in self.key]
        keys = zip(*columns, strict=True)
        if len(types) == 1:
            return [spark_xxhash64(key, types) for key in keys]
        marked = [type_ for each in types for type_ in (each, "bigint")]
        return [
            spark_xxhash64(
                [
                    part
                    for value, mark in zip(key, count(NULL_MARK), strict=False)
                    for part in (value, mark if value is None else None)
                ],
                marked,
            )
            for key in keys
        ]


def _listed(rows: object) -> list[Any]:
    if isinstance(rows, (Mapping, str, bytes)) or not isinstance(rows, Iterable) or hasattr(rows, "asDict"):
        raise TypeError(f"rows must be a list of rows, or a pyarrow table, got {rows!r}; pass [row] for one")
    return list(rows)


def _column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    try:
        return column_of(values, field.type).cast(field.type)
    except (Misfit, pa.ArrowException, OverflowError) as e:
        raise ValueError(f"rows must fit the schema: column {field.name!r}: {e}") from None


def _hashable(column: pa.Array) -> list[Any]:
    """Return the values as `spark_xxhash64` takes them: times as numbers, structs as tuples."""
    if pa.types.is_timestamp(column.type):
        return cast(list[Any], column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64()).to_pylist())
    if pa.types.is_date32(column.type):
        return cast(list[Any], column.view(pa.int32()).to_pylist())
    return [_tuples(value) for value in column.to_pylist()]


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(map(_tuples, value.values()))
    return list(map(_tuples, value)) if isinstance(value, list) else value
