"""What users say of event time: its column and watermark, the order of rows, what becomes of late ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from timerheap._arguments import not_negative
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._columns import TIME, shown_name
from timerheap.spark._group.row_buffer import RowOrder
from timerheap.spark._plan.named_columns import ColumnOrName, key_columns, named_column
from timerheap.spark._query import Late, NullTime, TimeMode
from timerheap.watermarks import WatermarkStrategy
from timerheap.watermarks.generators import NoWatermarks, changes


@dataclass(frozen=True)
class EventTime:
    """The event time of an input, with what depends on it.

    Where an argument takes this, a column alone is the same as ``EventTime(column)``.

    Parameters
    ----------
    column : str or Column, optional
        A timestamp, or a bigint of epoch ms. Rows are in the order of its microseconds; timers and watermarks
        are in ms. By default, the column of a stream that Spark's
        ``withWatermark`` names.
    channel : str or Column, optional
        Column of an atomic type without nulls whose values have a watermark each: Kafka's partition, a
        device, an airport. Event time is the lowest of them (Flink's StatusWatermarkValve), so a channel that
        lags behind the others loses no row. A new value counts from its first row on that is not behind the
        watermark. Meant for up to some 10,000 values, since every task keeps all of them.
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


def expect_event_time(
    df: DataFrame,
    event_time: object,
    watermark: object,
    prefix: str = "",
    argument: str = "event_time",
    **needing: object,
) -> WatermarkStrategy:
    """Return the watermark strategy, checked together with the event-time column.

    event_time, watermark: the user's arguments
    prefix, argument: errors call the arguments `prefix` + `argument` and `prefix` + ``watermark``
    **needing: other arguments that are only valid with an event-time column, by name
    """
    named = prefix + argument
    if event_time is None:
        for other, value in {prefix + "watermark": watermark, **needing}.items():
            if value not in (None, False):
                raise ArgumentValueError(
                    f"{named} must name the event-time column if {other} is given, got None; "
                    f"pass {named}, or leave {other} out"
                )
        return WatermarkStrategy.no_watermarks()
    type_ = named_column(df, named, event_time)
    if not isinstance(type_, (T.TimestampType, T.TimestampNTZType, T.LongType)):
        raise ArgumentValueError(
            f"{named} must be a timestamp or a bigint of epoch milliseconds, got column "
            f"{shown_name(str(event_time))!r} of type {type_.simpleString()}; cast it: "
            "epoch seconds are F.timestamp_seconds(column)"
        )
    if not isinstance(watermark, WatermarkStrategy):
        raise ArgumentTypeError(
            f"{prefix}watermark must be a WatermarkStrategy, got {watermark!r}; "
            "pass one such as WatermarkStrategy.for_bounded_out_of_orderness(5_000), or its delay, such as "
            "'5 seconds' or 5_000 ms"
        )
    if watermark.timestamp_assigner is not None and event_time != TIME:
        raise ArgumentValueError(
            f"{prefix}watermark must have no timestamp assigner, got {watermark!r}, where {named} names the "
            f"column {event_time!r} for the timestamps; leave out one of them"
        )
    if watermark._delay is None:
        generator, new = (watermark.create_watermark_generator() for _ in range(2))
        if generator is new:
            raise ArgumentValueError(
                f"{prefix}watermark must make a new generator for each channel, got {watermark!r}, which "
                "returns the same one twice; make it in the function that for_generator() takes"
            )
        changes(generator, new)  # raises TypeError for what cannot be kept in the checkpoint
    return watermark


def row_order(
    order: object, df: DataFrame, event_time: str | None, *strategies: WatermarkStrategy
) -> RowOrder:
    """Return the order in which rows reach the function; None is by event time where rows have one."""
    if order not in (None, "event_time", "arrival"):
        raise ArgumentValueError(f'order must be "event_time" or "arrival", got {order!r}')
    if order == "arrival" or (order is None and event_time is None):
        return "arrival"
    if event_time is None:
        raise ArgumentValueError(
            'order must be "arrival" without event_time, got "event_time"; name the event-time column, or '
            "leave order out"
        )
    for strategy in strategies:
        silent = isinstance(strategy.create_watermark_generator(), NoWatermarks)
        clocks = (strategy.idle_timeout, strategy.wall_clock, strategy._follows)
        if df.isStreaming and silent and clocks == (None, None, None):
            raise ArgumentValueError(
                'order must be "arrival" on a stream with WatermarkStrategy.no_watermarks(), got '
                '"event_time": rows would wait forever; pass order="arrival", or a strategy that makes '
                "watermarks"
            )
    return "event_time"


def tie_columns(df: DataFrame, argument: str, names: object, order: RowOrder) -> tuple[str, ...]:
    """Return the names of the columns that order rows of one key and time."""
    if names is None:
        return ()
    if order == "arrival":
        raise ArgumentValueError(
            f'{argument} must be left out with order="arrival", where rows come in their own order, got '
            f"{names!r}"
        )
    return tuple(key_columns(df, argument, names))


def late_choice(late: object, order: RowOrder = "event_time") -> Late:
    """Return what becomes of late rows; None is Flink's way: in order of arrival the function gets them."""
    if late is None:
        return "process" if order == "arrival" else "drop"
    if late == "drop" or late == "emit":
        return "emit" if late == "emit" else "drop"
    raise ArgumentValueError(f'late must be "drop" or "emit", got {late!r}')


def null_times(argument: str, null: object) -> NullTime:
    """Return what becomes of rows whose event time is null."""
    if null == "error" or null == "drop":
        return "drop" if null == "drop" else "error"
    raise ArgumentValueError(f'{argument} must be "error" or "drop", got {null!r}')


def time_mode(df: DataFrame, processing_time: bool, *strategies: WatermarkStrategy) -> TimeMode:
    """Return the time mode of a query that makes its own watermarks; some strategies need a clock."""
    if processing_time and not df.isStreaming:
        raise ArgumentValueError(
            "processing_time must be False for a batch DataFrame, got True; a batch has no processing time"
        )
    timed = any((strategy.idle_timeout, strategy.wall_clock) != (None, None) for strategy in strategies)
    return "ProcessingTime" if processing_time or (df.isStreaming and timed) else "None"


def strategy_of(argument: str, watermark: Any) -> Any:
    """Return the strategy of a delay; other values as they are."""
    if isinstance(watermark, (str, timedelta)) or (
        type(watermark) is not bool and hasattr(watermark, "__index__")
    ):
        return WatermarkStrategy.for_bounded_out_of_orderness(not_negative(argument, watermark))
    return watermark


def assigns_time(watermark: object) -> bool:
    return isinstance(watermark, WatermarkStrategy) and watermark.timestamp_assigner is not None
