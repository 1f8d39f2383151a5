"""Finds the columns that arguments name: by a name, a Column, a grouped DataFrame or ``withWatermark()``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType, TimestampNTZType, TimestampType

from timerheap._arguments import not_negative
from timerheap.spark._columns import TIME, computed_name
from timerheap.spark._compat import grouping_of
from timerheap.spark._plan.arguments import data_frame, named_column, quoted
from timerheap.spark._worker.row_runner import AssignedTimes
from timerheap.watermarks import TimestampAssigner, WatermarkStrategy

ColumnOrName = str | Column

_DELAY = "spark.watermarkDelayMs"  # in the metadata of the column that withWatermark() has named

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Called once for each partition, with its record batches."""


class Columns:
    """The columns of a DataFrame that arguments name.

    An argument that is an expression becomes a computed column, at the end of the rows, which functions do
    not see; see `timerheap.spark._columns`.

    argument: what the user calls the DataFrame
    df: with the computed columns so far
    """

    def __init__(self, argument: str, df: object) -> None:
        self.argument = argument
        self.df = self._source = data_frame(argument, df)

    def one(self, argument: str, column: Any) -> Any:
        """Return the name of a column if `column` is a Column, else `column` itself.

        A text that is no name of a column is read as in ``F.col``, if it has parts or backticks. Raises
        ValueError if Spark cannot compute the column from a row of the DataFrame.
        """
        if isinstance(column, str) and column not in self._source.columns and set(column) & {".", "`"}:
            column = F.col(column)
        if not isinstance(column, Column):
            return column
        try:
            selected = self._source.select(column)
            if len(selected.columns) != 1:
                raise ValueError(f"it stands for {len(selected.columns)} columns")
            name = selected.columns[0]
            for known in self._source.columns:
                if known.lower() == name.lower() and selected.sameSemantics(
                    self._source.select(quoted(known))
                ):
                    return known
            added = computed_name(len(self.df.columns), name)
            df = self.df.select("*", column.alias(added))
            named_column(df, argument, added)  # fails here if Spark cannot compute it row by row
        except (AnalysisException, ValueError) as e:
            raise ValueError(
                f"{argument} must be a column that each row of {self.argument} has, got {column!r}: {e}"
            ) from None
        self.df = df
        return added

    def many(self, argument: str, columns: Any) -> Any:
        """Return the names of one or more columns, as `one` does for each."""
        if isinstance(columns, (str, Column)):
            return [self.one(argument, columns)]
        if isinstance(columns, Sequence):
            return [self.one(argument, column) for column in columns]
        return columns

    def timed(
        self, prefix: str, argument: str, event_time: Any, watermark: Any, *, by_default: bool = True
    ) -> tuple[Any, Any]:
        """Return the event-time column, whose name is None if there is none, and the watermark strategy.

        `by_default`, they are what ``withWatermark`` sets. A timestamp assigner adds its column to `df`, so
        that no other column can be computed afterwards. Errors call the arguments `prefix` + `argument` and
        `prefix` + ``watermark``.
        """
        if by_default and event_time is None and assigns_time(watermark):
            self.df = self.with_assigned_time(watermark.timestamp_assigner)
            return TIME, watermark
        if by_default or event_time is not None:
            event_time = self.event_time(prefix + argument, event_time)
        return event_time, self.watermark(prefix + "watermark", watermark, event_time)

    def with_assigned_time(self, assigner: TimestampAssigner) -> DataFrame:
        """Return the rows with the event time that an assigner computes, in the column `TIME`."""
        fields = [StructField(field.name, field.dataType) for field in self.df.schema]
        timed = StructType([*fields, StructField(TIME, LongType())])
        return map_batches(self.df, AssignedTimes(assigner, self.df.schema), timed)

    def event_time(self, argument: str, column: Any) -> Any:
        """Return the name of the event-time column, by default of the one that ``withWatermark`` names.

        Spark forgets ``withWatermark`` on a batch DataFrame.
        """
        if column is not None:
            return self.one(argument, column)
        marked = [
            field.name
            for field in self._source.schema
            if _DELAY in field.metadata and isinstance(field.dataType, (TimestampType, TimestampNTZType))
        ]
        if len(marked) > 1:
            raise ValueError(
                f"{argument} must name the event-time column, got None, and {self.argument} has a "
                f"withWatermark() on {marked}; pass one of them"
            )
        return marked[0] if marked else None

    def watermark(self, argument: str, watermark: Any, event_time: Any) -> Any:
        """Return the strategy of a delay, by default of the delay in ``withWatermark`` on this column."""
        if watermark is None and event_time in self.df.columns:
            delay = spark_delay(self.df, event_time)
            return None if delay is None else WatermarkStrategy.for_bounded_out_of_orderness(delay)
        return strategy_of(argument, watermark)


def strategy_of(argument: str, watermark: Any) -> Any:
    """Return the strategy of a delay; other values as they are."""
    if isinstance(watermark, (str, timedelta)) or (
        type(watermark) is not bool and hasattr(watermark, "__index__")
    ):
        return WatermarkStrategy.for_bounded_out_of_orderness(not_negative(argument, watermark))
    return watermark


def spark_delay(df: DataFrame, name: str) -> int | None:
    """Return the delay in ms that ``withWatermark`` has set for a column of a stream, None if it has not."""
    delay: int | None = df.schema[name].metadata.get(_DELAY)
    return delay


def ungrouped(argument: str, df: Any, key_argument: str, key: Any) -> tuple[Any, Any]:
    """Return the DataFrame and the key columns of ``df.groupBy(...)``; other arguments as they are."""
    grouping = grouping_of(df)
    if grouping is None:
        return df, key
    rows, kind, columns = grouping
    if kind != "groupby":
        raise ValueError(f"{argument} must be grouped by groupBy(), got a {kind}() of it")
    if key is not None:
        raise TypeError(
            f"{key_argument} must be left out if {argument} is grouped, which names the key columns, got "
            f"{key!r}; pass the other arguments by name"
        )
    if not columns:
        raise ValueError(f"{argument} must be grouped by one or more columns, got {argument}.groupBy()")
    return rows, columns


def assigns_time(watermark: object) -> bool:
    """Return whether a strategy has a timestamp assigner."""
    return isinstance(watermark, WatermarkStrategy) and watermark.timestamp_assigner is not None


def map_batches(df: DataFrame, stage: Stage, result: StructType | str) -> DataFrame:
    """Return what a stage makes of the rows of `df`, whose columns may have any names.

    ``mapInArrow`` takes no dots in the names of its input, so Spark passes numbered columns.
    """
    names = df.columns
    numbered = df.toDF(*(f"c{i}" for i in range(len(names))))
    return numbered.mapInArrow(
        lambda batches: stage(batch.rename_columns(names) for batch in batches), result
    )
