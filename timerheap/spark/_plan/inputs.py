"""The inputs of a query: what users say of them, checked, and the query that is assembled of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from timerheap.spark._columns import shown_name
from timerheap.spark._plan.arguments import (
    arrow_schema,
    channel_column,
    expect_event_time,
    key_columns,
    key_groups,
    late_rows,
    null_times,
    row_order,
    tie_columns,
    time_mode,
)
from timerheap.spark._plan.named_columns import ColumnOrName, Columns
from timerheap.spark._query import NullTime, Query, TimeColumn
from timerheap.watermarks import WatermarkStrategy


@dataclass(frozen=True)
class EventTime:
    """The event time of an input, with what depends on it.

    Where an argument takes this, a column alone is the same as ``EventTime(column)``.

    Parameters
    ----------
    column : str or Column, optional
        A timestamp (cut to ms), or a bigint of epoch ms. By default, the column of a stream that Spark's
        ``withWatermark`` names.
    channel : str or Column, optional
        Column of an atomic type without nulls whose values have a watermark each: Kafka's partition, a
        device, an airport. Event time is the lowest of them (Flink's StatusWatermarkValve), so a channel that
        lags behind the others loses no row. A new value counts once it has caught up with the watermark.
        Meant for up to some 10,000 values, since every task keeps all of them.
    tie_break : str, Column, or list of them, optional
        Columns or expressions that order the rows of one key and timestamp, such as a sequence number or
        Kafka's ``["partition", "offset"]``; null comes last. By default, and where they are equal, rows are
        in the order of all of their columns, from the first to the last: "cancelled" before "created". Only
        with ``order="event_time"``.
    null : {"error", "drop"}, default "error"
        What becomes of rows whose event time is null. "drop": they are dropped, and the metric
        ``null_time_rows`` counts them.

    Examples
    --------
    ::

        timerheap.spark.process(
            readings, "sensor", Silent(), "sensor string, at timestamp",
            event_time=EventTime("at", channel="partition", null="drop"), watermark="5 seconds")
    """

    column: ColumnOrName | None = None
    _: KW_ONLY
    channel: ColumnOrName | None = None
    tie_break: ColumnOrName | Sequence[ColumnOrName] | None = None
    null: str = "error"

    @classmethod
    def of(cls, given: Any) -> EventTime:
        """Return what an argument says."""
        return given if isinstance(given, EventTime) else cls(given)


@dataclass(frozen=True)
class RightInput:
    """The right of two inputs, where it differs from the left in more than its rows.

    Parameters
    ----------
    rows : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        For a `timerheap.testing.ProcessTester`, the schema of the rows.
    key : str, Column, or list of them, optional
        Its key columns, of the types of those of the left; by default they have the same names.
    event_time : str, Column or EventTime, optional
        By default that of the left, without its channel.
    watermark : WatermarkStrategy, int, str or timedelta, optional
        By default that of the left.
    """

    rows: Any
    _: KW_ONLY
    key: ColumnOrName | Sequence[ColumnOrName] | None = None
    event_time: ColumnOrName | EventTime | None = None
    watermark: WatermarkStrategy | int | str | timedelta | None = None


@dataclass(frozen=True)
class Input:
    """An input of a query, whose arguments have been checked.

    df: the rows, with the columns that arguments have computed
    rows: the type of the user's rows
    key: empty for windows, which are grouped later
    event_time: the event-time column
    channel: the column whose values have a watermark each
    ties: the columns that order rows of one key and time
    name, prefix: errors call the input `name`, and its arguments `prefix` + their names
    """

    df: DataFrame
    rows: StructType
    key: list[str]
    event_time: str | None
    strategy: WatermarkStrategy
    channel: str | None
    ties: tuple[str, ...]
    null_time: NullTime
    name: str = "df"
    prefix: str = ""

    @classmethod
    def checked(
        cls,
        columns: Columns,
        key: Any,
        event_time: Any,
        watermark: Any,
        *,
        order: object = None,
        late: object = None,
        prefix: str = "",
        of_windows: bool = False,
    ) -> Input:
        """Check the arguments of an input, whose columns these are.

        key: None for rows that are grouped later
        order, late: arguments that need an event time, or depend on it
        """
        given, rows = EventTime.of(event_time), columns.df.schema
        arrow_schema(columns.argument, rows)
        keys = columns.many(prefix + "key", key)
        channel = columns.one(prefix + "channel", given.channel)
        ties = columns.many(prefix + "tie_break", given.tie_break)
        argument = "time" if of_windows else "event_time"
        time, delay = columns.timed(prefix, argument, given.column, watermark, by_default=not of_windows)
        df = columns.df
        if not of_windows:
            keys = key_columns(df, prefix + "key", keys)
        nulls = null_times(prefix + "null", given.null)
        needing = {"late": late, prefix + "channel": channel, prefix + "null": nulls == "drop" and nulls}
        strategy = expect_event_time(df, time, delay, prefix, argument, **needing)
        if channel is not None:
            channel_column(df, prefix + "channel", channel)
        ties = tie_columns(df, prefix + "tie_break", ties, row_order(order, df, time))
        return cls(df, rows, keys or [], time, strategy, channel, ties, nulls, columns.argument, prefix)

    def time_column(self) -> TimeColumn:
        """Return what the event time is to the user."""
        return TimeColumn(f"{self.prefix}event_time", str(self.event_time), self.name)

    def expect_to_match(self, other: Input) -> None:
        """Raise an error unless both inputs are of one kind, with keys and event times of the same types."""
        if (self.event_time is None) != (other.event_time is None):
            timed, untimed = (self, other) if other.event_time is None else (other, self)
            raise ValueError(
                f"{untimed.prefix}event_time must name the event-time column, since {timed.name} has one in "
                f"{timed.event_time!r}, got None; pass it, with {untimed.prefix}watermark"
            )
        if self.df.isStreaming != other.df.isStreaming:
            kinds = ["a stream" if side.df.isStreaming else "a batch" for side in (self, other)]
            raise ValueError(f"{other.name} must be {kinds[0]} like {self.name}, got {kinds[1]}")
        if self.null_time != other.null_time:
            raise ValueError(
                f"{other.prefix}null must be {self.null_time!r}, as of {self.name}, got {other.null_time!r}"
            )
        pairs = []
        for argument, own, others in (("key", self.key, other.key), ("tie_break", self.ties, other.ties)):
            if len(own) != len(others):
                raise ValueError(
                    f"{other.prefix}{argument} must have as many columns as {argument}, which is "
                    f"{[*map(shown_name, own)]}, got {[*map(shown_name, others)]}"
                )
            pairs += [(argument, *names) for names in zip(own, others, strict=True)]
        if self.event_time is not None and other.event_time is not None:
            pairs.append(("event_time", self.event_time, other.event_time))
        for argument, mine, theirs in pairs:
            types = self.df.schema[mine].dataType, other.df.schema[theirs].dataType
            if types[0] != types[1]:
                raise ValueError(
                    f"{other.prefix}{argument} must be of type {types[0].simpleString()} like column "
                    f"{shown_name(mine)!r} of {self.name}, got {shown_name(theirs)!r} of type "
                    f"{types[1].simpleString()}; cast one of them"
                )


def query_of(
    work: Any,
    result: StructType,
    *inputs: Input,
    order: object = None,
    late: object = None,
    processing_time: bool = False,
    max_parallelism: object = None,
    **fields: Any,
) -> Query:
    """Return the query of some inputs, given what users say of it.

    **fields: other fields of the `Query`, or in place of those of the first input
    """
    first, strategies = inputs[0], tuple(one.strategy for one in inputs)
    rows_order = row_order(order, first.df, first.event_time, *strategies)
    of_first: dict[str, Any] = {
        "key": first.key,
        "rows": first.df.schema,
        "event_time": first.event_time,
        "ties": first.ties,
        "late_row": first.rows,
        "late_columns": tuple(first.rows.names),
        "key_names": [shown_name(name) for name in first.key],
    }
    known = {**of_first, **fields}
    if late != "emit":
        known["late_row"] = None
    return Query(
        work=work,
        result=result,
        null_time=first.null_time,
        watermarks=strategies,
        channels=tuple(one.channel for one in inputs),
        order=rows_order,
        time_mode=time_mode(first.df, processing_time, *strategies),
        max_parallelism=key_groups(max_parallelism),
        late=late_rows(late, rows_order),
        **known,
    )
