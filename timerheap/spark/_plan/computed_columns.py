"""The columns of a DataFrame that arguments name, with those that expressions and assigners compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import TIME, computed_name, shown_name
from timerheap.spark._exchange.assigned_times import AssignedTimes
from timerheap.spark._plan.event_time import assigns_time, strategy_of
from timerheap.spark._plan.named_columns import data_frame, named_column, quoted
from timerheap.spark._plan.python_stage import map_batches
from timerheap.spark._plan.upstream import effective_strategy
from timerheap.watermarks import TimestampAssigner, WatermarkStrategy

DELAY = "spark.watermarkDelayMs"  # in the metadata of the column that withWatermark() has named


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
        """Return the name of a column if `column` is a Column, else `column` itself."""
        # A text that is no name of a column is read as in F.col, if it has parts or backticks. Raises
        # ValueError if Spark cannot compute the column from a row of the DataFrame.
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
            raise ArgumentValueError(
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

    def boolean(self, argument: str, column: Any) -> Any:
        """Return the name of a boolean column, as `one` does."""
        name = self.one(argument, column)
        type_ = named_column(self.df, argument, name)
        if not isinstance(type_, T.BooleanType):
            raise ArgumentValueError(
                f"{argument} must be boolean, got column {shown_name(name)!r} of type "
                f"{type_.simpleString()}; pass an expression such as "
                'F.col("op") == "D"'
            )
        return name

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
            return TIME, self.strategy_for(prefix + "watermark", watermark)
        if by_default or event_time is not None:
            event_time = self.event_time(prefix + argument, event_time)
        strategy = self.watermark(prefix + "watermark", watermark, event_time)
        if event_time is not None:
            strategy = self.strategy_for(prefix + "watermark", strategy)
        return event_time, strategy

    def strategy_for(self, argument: str, watermark: Any) -> Any:
        """Return the strategy that the rows have if they are results of other operators."""
        return effective_strategy(self.argument, argument, self._source, watermark)

    def with_assigned_time(self, assigner: TimestampAssigner) -> DataFrame:
        """Return the rows with the event time that an assigner computes, in the column `TIME`."""
        fields = [T.StructField(field.name, field.dataType) for field in self.df.schema]
        timed = T.StructType([*fields, T.StructField(TIME, T.LongType())])
        return map_batches(self.df, AssignedTimes(assigner, self.df.schema), timed)

    def event_time(self, argument: str, column: Any) -> Any:
        """Return the name of the event-time column, by default of the one that ``withWatermark`` names."""
        # Spark forgets withWatermark on a batch DataFrame.
        if column is not None:
            return self.one(argument, column)
        marked = [
            field.name
            for field in self._source.schema
            if DELAY in field.metadata and isinstance(field.dataType, (T.TimestampType, T.TimestampNTZType))
        ]
        if len(marked) > 1:
            raise ArgumentValueError(
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


def spark_delay(df: DataFrame, name: str) -> int | None:
    """Return the delay in ms that ``withWatermark`` has set for a column of a stream, None if it has not."""
    return df.schema[name].metadata.get(DELAY)
