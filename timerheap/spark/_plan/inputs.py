"""The inputs of a query, whose arguments have been checked."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import CHANGE_TYPE, shown_name
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.event_time import (
    EventTime,
    assigns_time,
    expect_event_time,
    null_times,
    row_order,
    tie_columns,
)
from timerheap.spark._plan.named_columns import (
    ColumnOrName,
    data_frame,
    expect_comparable,
    key_columns,
    named_column,
    ungrouped,
)
from timerheap.spark._plan.schemas import arrow_schema
from timerheap.spark._plan.upstream import is_result
from timerheap.spark._query import NullTime, TimeColumn
from timerheap.watermarks import WatermarkStrategy

_log = logging.getLogger("timerheap")


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

    df: the rows, with the columns that arguments have computed, and hidden ones of the feature
    rows: the type of the user's rows
    key: empty for rows that are grouped later
    event_time: the event-time column
    channel: the column whose values have a watermark each
    ties: the columns that order rows of one key and time
    name, prefix: errors call the input `name`, and its arguments `prefix` + their names
    """

    df: DataFrame
    rows: T.StructType
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
        event_time: Any = None,
        watermark: Any = None,
        *,
        order: object = None,
        late: object = None,
        prefix: str = "",
        keyed: bool = True,
        timed: bool = True,
        time_argument: str = "event_time",
        hidden: Collection[str] = (),
    ) -> Input:
        """Check the arguments of an input, whose columns these are.

        order, late: arguments that need an event time, or depend on it
        keyed: whether the rows have a key; others are grouped later, and have no event time by default
        timed: whether the rows may have an event time; without, that of ``withWatermark`` is a plain column,
            and neither it nor the watermark of other operators orders the rows
        time_argument: what the event time is called, without the prefix
        hidden: the columns of the feature itself, which are none of the user's
        """
        given, rows = EventTime.of(event_time), columns.df.schema
        arrow_schema(columns.argument, rows, hidden)
        if CHANGE_TYPE in rows.names:
            raise ArgumentValueError(
                f"{columns.argument} must have rows that stay, got column {CHANGE_TYPE!r}, with which rows "
                "are taken back; use a function that takes changes, such as "
                "timerheap.spark.aggregate_changes, rename the column if it says something else, or drop() "
                "it to take each change for a row"
            )
        rows = T.StructType([field for field in rows if field.name not in hidden])
        keys = columns.many(prefix + "key", key)
        channel = columns.one(prefix + "channel", given.channel)
        ties = columns.many(prefix + "tie_break", given.tie_break)
        time, delay = given.column, watermark
        if timed:
            time, delay = columns.timed(prefix, time_argument, time, delay, by_default=keyed)
        elif time is not None:
            raise ArgumentValueError(
                f"{prefix}{time_argument} must be left out, since the rows have no event time, got {time!r}"
            )
        df = columns.df
        if keyed:
            keys = key_columns(df, prefix + "key", keys)
        nulls = null_times(prefix + "null", given.null)
        needing = {"late": late, prefix + "channel": channel, prefix + "null": nulls == "drop" and nulls}
        strategy = expect_event_time(df, time, delay, prefix, time_argument, **needing)
        if channel is not None and not strategy._is_own:
            _log.warning(
                "%schannel: %r has no effect, since %s has the results of another operator, whose watermark "
                "it follows; leave it out",
                prefix,
                shown_name(str(channel)),
                columns.argument,
            )
            channel = None
        if channel is not None:
            expect_comparable(prefix + "channel", str(channel), named_column(df, prefix + "channel", channel))
        ties = tie_columns(df, prefix + "tie_break", ties, row_order(order, df, time))
        return cls(df, rows, keys or [], time, strategy, channel, ties, nulls, columns.argument, prefix)

    def time_column(self) -> TimeColumn:
        """Return what the event time is to the user."""
        return TimeColumn(f"{self.prefix}event_time", str(self.event_time), self.name)

    def expect_to_match(self, other: Input, *, mixed: bool = False) -> None:
        """Raise an error unless both inputs are of one kind, with keys and event times of the same types.

        mixed: whether one may be a stream and the other one a batch
        """
        if (self.event_time is None) != (other.event_time is None):
            timed, untimed = (self, other) if other.event_time is None else (other, self)
            raise ArgumentValueError(
                f"{untimed.prefix}event_time must name the event-time column, since {timed.name} has one in "
                f"{timed.event_time!r}, got None; pass it, with {untimed.prefix}watermark"
            )
        if not mixed and self.df.isStreaming != other.df.isStreaming:
            kinds = ["a stream" if side.df.isStreaming else "a batch" for side in (self, other)]
            raise ArgumentValueError(f"{other.name} must be {kinds[0]} like {self.name}, got {kinds[1]}")
        if self.null_time != other.null_time:
            raise ArgumentValueError(
                f"{other.prefix}null must be {self.null_time!r}, as of {self.name}, got {other.null_time!r}"
            )
        pairs = []
        for argument, own, others in (("key", self.key, other.key), ("tie_break", self.ties, other.ties)):
            if len(own) != len(others):
                raise ArgumentValueError(
                    f"{other.prefix}{argument} must have as many columns as {argument}, which is "
                    f"{[*map(shown_name, own)]}, got {[*map(shown_name, others)]}"
                )
            pairs += [(argument, *names) for names in zip(own, others, strict=True)]
        if self.event_time is not None and other.event_time is not None:
            pairs.append(("event_time", self.event_time, other.event_time))
        for argument, mine, theirs in pairs:
            types = self.df.schema[mine].dataType, other.df.schema[theirs].dataType
            if types[0] != types[1]:
                raise ArgumentValueError(
                    f"{other.prefix}{argument} must be of type {types[0].simpleString()} like column "
                    f"{shown_name(mine)!r} of {self.name}, got {shown_name(theirs)!r} of type "
                    f"{types[1].simpleString()}; cast one of them"
                )


def two_inputs(
    left: Any,
    right: Any,
    key: Any,
    event_time: Any,
    watermark: Any,
    *,
    order: object = None,
    late: object = None,
) -> tuple[Input, Input]:
    """Return two inputs, checked; what a `RightInput` leaves out is that of the left."""
    other = right if isinstance(right, RightInput) else RightInput(right)
    left_rows, left_by = ungrouped("left", left, "key", key)
    right_rows, right_by = ungrouped("right", other.rows, "right.key", other.key)
    time = other.event_time
    if time is None and not assigns_time(other.watermark):
        time = replace(EventTime.of(event_time), channel=None)
    of_right = other.watermark
    if of_right is None and not is_result(data_frame("right", right_rows)):
        of_right = watermark
    one = Input.checked(Columns("left", left_rows), left_by, event_time, watermark, order=order, late=late)
    two = Input.checked(
        Columns("right", right_rows),
        left_by if right_by is None else right_by,
        time,
        of_right,
        order=order,
        late=late,
        prefix="right.",
    )
    return one, two
