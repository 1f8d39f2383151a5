"""The inputs of a test: rows that are pushed, checked as on Spark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from timerheap._native._core import spark_hashes
from timerheap._values import Misfit
from timerheap.broadcast import KeyedBroadcastProcessFunction
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.functions import BatchProcessFunction, KeyedCoProcessFunction, KeyedProcessFunction
from timerheap.output_tag import OutputTag
from timerheap.spark._arrow import KeyedRows, event_millis, view_of
from timerheap.spark._columns import INPUT, SIDES, TIME
from timerheap.spark._exchange.assigned_times import AssignedTimes
from timerheap.spark._functions.function_kinds import work_of
from timerheap.spark._functions.guarded.dead_letters import Guard
from timerheap.spark._functions.guarded.letter_columns import letters_tag, with_letters
from timerheap.spark._plan.assemble import query_of
from timerheap.spark._plan.build import NULL_MARK
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.event_time import strategy_of
from timerheap.spark._plan.inputs import Input
from timerheap.spark._plan.schemas import arrow_schema
from timerheap.spark._process.process import columns_of_two
from timerheap.spark._query import NullTime, Query, nullable_arrow_schema
from timerheap.spark._worker.column_casts import cast as cast_column
from timerheap.spark._worker.column_casts import column_of
from timerheap.types import arrow_columns
from timerheap.watermarks import TimestampAssigner, WatermarkStrategy

_WIDE = Context(prec=100)
_SILENT = WatermarkStrategy.no_watermarks()  # the test itself advances the watermark

Function = (
    KeyedProcessFunction | BatchProcessFunction | KeyedCoProcessFunction | KeyedBroadcastProcessFunction
)


def columns_type(argument: str, schema: Any) -> StructType:
    """Return the type of the columns of a DataFrame, given as DDL or as a StructType."""
    if isinstance(schema, str):
        return from_arrow_schema(arrow_columns(schema, argument), prefer_timestamp_ntz=True)
    arrow_schema(argument, schema)
    checked: StructType = schema
    return checked


class SchemaColumns(Columns):
    """The columns of an input of a test, which has a schema in place of a DataFrame."""

    assigner: TimestampAssigner | None = None  # computes the column `TIME`, if there is one

    def __init__(self, argument: str, schema: object) -> None:
        self.argument = argument
        self.df: Any = _Schema(columns_type(argument, schema))

    def one(self, argument: str, column: Any) -> Any:
        """Return a name as it is: a test has no expressions."""
        return column

    def event_time(self, argument: str, column: Any) -> Any:
        """Return a name as it is: a schema has no ``withWatermark``."""
        return column

    def with_assigned_time(self, assigner: TimestampAssigner) -> Any:
        """Return the columns with the event time that an assigner computes."""
        self.assigner = assigner
        return _Schema(StructType([*self.df.schema, StructField(TIME, LongType())]))

    def watermark(self, argument: str, watermark: Any, event_time: Any) -> Any:
        """Return the strategy of a delay, by default one without."""
        if watermark is None and event_time is not None:
            return WatermarkStrategy.for_monotonous_timestamps()
        return strategy_of(argument, watermark)

    def strategy_for(self, argument: str, watermark: Any) -> Any:
        """Return a strategy as it is: the test itself advances the watermark."""
        return watermark


class _Schema:
    """What the checks of arguments read of a DataFrame."""

    isStreaming = False

    def __init__(self, schema: StructType) -> None:
        self.schema = schema
        self.columns = list(schema.names)


@dataclass(frozen=True)
class PushedRows:
    """The rows of one input."""

    type: StructType  # the columns of the rows that a test pushes
    key: list[str]
    event_time: str | None  # `TIME` with a timestamp assigner
    assigner: TimestampAssigner | None = None
    ties: tuple[str, ...] = ()
    null_time: NullTime = "error"

    @property
    def schema(self) -> StructType:
        """The type of the rows with the column of assigned times."""
        if self.assigner is None:
            return self.type
        return StructType([*self.type, StructField(TIME, LongType())])

    def table(self, rows: object) -> pa.RecordBatch:
        """Return rows as columns, those of `schema`; raise an ArgumentError if one does not fit."""
        schema = nullable_arrow_schema(self.type)
        if isinstance(rows, (pa.RecordBatch, pa.Table)):
            if sorted(rows.schema.names) != sorted(schema.names):
                raise ArgumentValueError(
                    f"rows must have the columns {schema.names}, got {rows.schema.names}"
                )
            parts = (rows.column(field.name) for field in schema)
            columns = [cast_column(part, field.type) for part, field in zip(parts, schema, strict=True)]
            whole = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]
            batch = pa.RecordBatch.from_arrays(whole, schema=schema)
        else:
            values = list(zip(*map(self._values, _listed(rows)), strict=True)) or [()] * len(schema)
            batch = pa.RecordBatch.from_arrays(
                [_rows_column(each, field) for each, field in zip(values, schema, strict=True)],
                schema=schema,
            )
        if self.null_time == "drop" and self.event_time in schema.names:
            batch = batch.filter(batch.column(self.event_time).is_valid())
        self._check(batch)
        return batch if self.assigner is None else AssignedTimes(self.assigner, self.type).timed(batch)

    def _values(self, row: object) -> tuple[Any, ...]:
        names = self.type.names
        if isinstance(row, Mapping):
            if not row.keys() <= set(names):
                raise ArgumentValueError(
                    f"rows must have the columns {names}, got {sorted(row.keys() - set(names))}"
                )
            return tuple(row.get(name) for name in names)
        if isinstance(row, Sequence) and not isinstance(row, (str, bytes)) and len(row) == len(names):
            return tuple(row)
        raise ArgumentValueError(f"rows must be dicts, tuples or Rows with the columns {names}, got {row!r}")

    def _check(self, batch: pa.RecordBatch) -> None:
        for field, column in zip(self.type, batch.columns, strict=True):
            timed = field.name == self.event_time
            if column.null_count and (timed or not field.nullable):
                why = "the event time" if timed else "not null in the schema"
                raise ArgumentValueError(
                    f"rows must have a value in column {field.name!r}, which is {why}, got None"
                )

    def hashed(self, batch: pa.RecordBatch, rows: pa.RecordBatch) -> KeyedRows:
        """Return what the query sees of rows, with the hashes of their keys and their event times."""
        hashed = [batch.column(name) for name in self.key]
        if len(hashed) > 1:  # like `timerheap.spark._plan.build`
            marks = (_marks_of(column, NULL_MARK + number) for number, column in enumerate(hashed))
            hashed = [part for pair in zip(hashed, marks, strict=True) for part in pair]
        timestamps = np.zeros(batch.num_rows, np.int64)
        if self.event_time is not None:
            timestamps = event_millis(batch.column(self.event_time))
        return KeyedRows(rows, spark_xxhash64(hashed), timestamps)


def _marks_of(column: pa.Array, mark: int) -> pa.Array:
    return pa.array(np.full(len(column), mark), mask=column.is_valid().to_numpy(zero_copy_only=False))


def spark_xxhash64(columns: list[pa.Array]) -> np.ndarray:
    """Return Spark's ``xxhash64`` of rows with these columns, of atomic types: int64, shape (n,).

    The hash of each value is the seed of the next, and null does not change it.
    """
    hashes = np.full(len(columns[0]), 42)
    for column in columns:
        hashes = spark_hashes(view_of(_in_bits_of_java(column)), hashes)
    return hashes


def _in_bits_of_java(column: pa.Array) -> pa.Array:
    type_ = column.type
    if pa.types.is_boolean(type_):
        return column.cast(pa.int32())
    if pa.types.is_floating(type_):  # both zeros are equal for Spark, and all NaNs
        values = column.to_numpy(zero_copy_only=False) + type_.to_pandas_dtype()(0)
        values[np.isnan(values)] = math.nan
        return pa.array(values.view(f"i{values.itemsize}"), mask=np.asarray(column.is_null()))
    if pa.types.is_decimal(type_):
        numbers = [None if v is None else int(v.scaleb(type_.scale, _WIDE)) for v in column.to_pylist()]
        if type_.precision <= 18:
            return pa.array(numbers, pa.int64())
        return pa.array([None if number is None else _big_integer(number) for number in numbers], pa.binary())
    return column


def _big_integer(number: int) -> bytes:
    """Return what BigInteger.toByteArray does."""
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


def _listed(rows: object) -> list[Any]:
    if isinstance(rows, (Mapping, str, bytes)) or not isinstance(rows, Iterable) or hasattr(rows, "asDict"):
        raise ArgumentTypeError(
            f"rows must be a list of rows, or a pyarrow table, got {rows!r}; pass [row] for one"
        )
    return list(rows)


def _rows_column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    try:
        return column_of(values, field.type).cast(field.type)
    except (Misfit, pa.ArrowException, OverflowError) as e:
        raise ArgumentValueError(f"rows must fit the schema: column {field.name!r}: {e}") from None


def checked_input(
    argument: str,
    schema: object,
    key: object,
    event_time: Any,
    watermark: Any,
    order: object = None,
    late: object = None,
    prefix: str = "",
) -> tuple[Input, TimestampAssigner | None]:
    """Return an input, given the user's arguments, and what computes the event time of its rows.

    prefix: what is before the names of arguments in errors
    """
    columns = SchemaColumns(argument, schema)
    found = Input.checked(columns, key, event_time, watermark, order=order, late=late, prefix=prefix)
    return found, columns.assigner


class Inputs:
    """The rows of one or two inputs, checked as on Spark."""

    def __init__(self) -> None:
        self._sides: list[PushedRows] = []
        self.checked: list[Input] = []

    def __len__(self) -> int:
        return len(self._sides)

    def add(self, found: Input, assigner: TimestampAssigner | None) -> None:
        """Add an input, given what `checked_input` has returned."""
        if self.checked:
            self.checked[0].expect_to_match(found)
        self.checked.append(found)
        self._sides.append(
            PushedRows(found.rows, found.key, found.event_time, assigner, found.ties, found.null_time)
        )

    def query(
        self,
        function: Function,
        result: StructType,
        *,
        guard: Guard | None = None,
        side_outputs: tuple[OutputTag, ...],
        **options: Any,
    ) -> Query:
        """Return the query that runs a function on the inputs; `options` are those of `query_of`."""
        checked = [replace(each, strategy=_SILENT, channel=None) for each in self.checked]
        columns = columns_of_two(*checked) if len(checked) == 2 else {}
        tag, row = None, columns.get("late_row")
        if guard is not None:
            tag = letters_tag(checked[0], row, broadcast=options["broadcast"])
        side_outputs = with_letters(side_outputs, tag)
        return query_of(
            work_of(function, guard), result, *checked, side_outputs=side_outputs, **columns, **options
        )

    def hashed(self, number: int, rows: object, query: Query) -> KeyedRows:
        """Return the rows of an input as they reach a key group of the query."""
        side = self._sides[number]
        batch = side.table(rows)
        seen = batch if len(self) == 1 else self._tagged(number, batch, query)
        return side.hashed(batch, seen)

    def _tagged(self, number: int, batch: pa.RecordBatch, query: Query) -> pa.RecordBatch:
        side, n = self._sides[number], batch.num_rows
        columns = [batch.column(name) for name in side.key]
        if side.event_time is not None:
            columns.append(batch.column(side.event_time))
        columns += map(batch.column, side.ties)
        columns.append(pa.array(np.full(n, number, np.int8)))
        schema = query.schema
        for other, name in enumerate(SIDES):
            type_ = schema.field(name).type
            rows = batch.columns[: len(type_)]  # without assigned times, which come last
            row = pa.StructArray.from_arrays(rows, fields=list(type_)) if other == number else None
            columns.append(pa.nulls(n, type_) if row is None else row)
        return pa.RecordBatch.from_arrays(columns, names=schema.names[: len(columns)])

    def untagged(self, rows: list[Row]) -> list[Row]:
        """Return rows of the query as the rows of the inputs."""
        return rows if len(self) == 1 else [row[SIDES[row[INPUT]]] for row in rows]
