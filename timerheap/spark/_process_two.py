"""`process_two`: a two-input process function on two Spark DataFrames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from timerheap.functions import KeyedCoProcessFunction
from timerheap.interval_join import IntervalJoin
from timerheap.output_tag import OutputTag
from timerheap.spark._exchange.pack import INPUT
from timerheap.spark._plan.arguments import (
    arrow_schema,
    channel_column,
    expect_event_time,
    key_columns,
    key_groups,
    late_rows,
    parsed_schema,
    quoted,
    row_order,
    sendable,
    state_names,
)
from timerheap.spark._plan.build import build, time_mode
from timerheap.spark._plan.checkpoint_state import CheckpointState
from timerheap.spark._plan.columns import ColumnOrName, Columns, ungrouped
from timerheap.spark._plan.marks import Input, marked
from timerheap.spark._plan.side_tags import side_tags
from timerheap.spark._plan.time_column import assigns_time
from timerheap.spark._query import TIME, Query, shown_name
from timerheap.spark._worker.two_inputs import KEY, SIDES, Tagged
from timerheap.watermarks import WatermarkStrategy

__all__ = ["process_two"]


def process_two(
    left: DataFrame | GroupedData,
    right: DataFrame | GroupedData,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    function: KeyedCoProcessFunction | None = None,
    output_schema: str | StructType | None = None,
    event_time: ColumnOrName | None = None,
    *,
    right_key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    right_event_time: ColumnOrName | None = None,
    watermark: WatermarkStrategy | str | timedelta | None = None,
    right_watermark: WatermarkStrategy | str | timedelta | None = None,
    order: str | None = None,
    channel: ColumnOrName | None = None,
    right_channel: ColumnOrName | None = None,
    late: str | None = None,
    processing_time: bool = False,
    max_parallelism: int | None = None,
    output_event_time: ColumnOrName | None = None,
    drop_state: Sequence[str] = (),
    initial_state: CheckpointState | None = None,
    side_outputs: Sequence[OutputTag] | None = None,
) -> DataFrame:
    """Run a two-input process function on two streaming, or two batch, DataFrames.

    Rows of both inputs that have the same key share the function's timers and state. Each input has its own
    watermark. Event time is the lower of the two, so that no row is late because the other input is ahead.

    Parameters
    ----------
    left, right : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        Rows of `left` are passed to ``process_element1``, rows of `right` to ``process_element2``.
        ``left.groupBy("a")`` and ``right.groupBy("b")`` name the key columns, too.
    key : str, Column, or list of them
        Key columns of `left`, and of `right` unless `right_key` names other columns of the same types. Null
        is a key, too. An expression may be a key, as in `process`.
    function : KeyedCoProcessFunction
    output_schema : str or pyspark.sql.types.StructType
    event_time, watermark, channel : optional
        As in `process`, for `left`. `right_event_time` (a column of the same type), `right_watermark` and
        `right_channel` are those of `right`. By default `right` has the same event time and watermark, or
        those of its ``withWatermark`` if `event_time` and `watermark` are left out, and no channel.
    order : {"event_time", "arrival"}, optional
        As in `process`, over the rows of both inputs. The default is "event_time", except for an
        `IntervalJoin`, which finds the same pairs in any order: with "arrival" it emits each pair when its
        second row arrives, and passes late rows to ``late_left`` and ``late_right``.
    processing_time, max_parallelism, output_event_time, drop_state, initial_state, side_outputs : optional
        As in `process`.
    late : {"drop", "emit"}, optional
        As in `process`; ``late_row`` has the fields ``left`` and ``right``, one of which is null.

    Returns
    -------
    pyspark.sql.DataFrame
        In append mode.

    Raises
    ------
    TypeError, ValueError
        As in `process`, and if the two inputs do not match.

    Notes
    -----
    The semantics are those of Flink's ``KeyedCoProcessOperator``: a StatusWatermarkValve for each input, and
    an IndexedCombinedWatermarkStatus over both. An input without new rows holds back event time; with
    ``watermark.with_idleness(...)`` event time goes on without it, and with
    ``watermark.with_wall_clock(...)`` it follows the clock.
    """
    left_rows, left_by = ungrouped("left", left, "key", key)
    right_rows, right_by = ungrouped("right", right, "right_key", right_key)
    one = _Side.of("", "left", left_rows, left_by, event_time, watermark, channel, late)
    two = _Side.of(
        "right_",
        "right",
        right_rows,
        left_by if right_by is None else right_by,
        event_time if right_event_time is None and not assigns_time(right_watermark) else right_event_time,
        watermark if right_watermark is None else right_watermark,
        right_channel,
        late,
    )
    one.expect_to_match(two)
    if order is None and isinstance(function, IntervalJoin):
        order = "arrival"
    rows_order = row_order(order, one.df, one.event_time, one.strategy, two.strategy)
    key_groups(max_parallelism)
    timed = one.event_time is not None
    names = [f"{KEY}{number}" for number in range(len(one.key))]
    both = one.tagged(0, two).unionAll(two.tagged(1, one))
    columns = [*names, *([TIME] if timed else []), INPUT, *SIDES]
    late_row = StructType([StructField("left", one.rows), StructField("right", two.rows)])
    query = Query(
        work=Tagged(sendable(function, KeyedCoProcessFunction)),
        key=names,
        rows=StructType([both.schema[name] for name in columns]),
        result=parsed_schema(output_schema),
        event_time=TIME if timed else None,
        watermarks=(one.strategy, two.strategy),
        channels=(one.channel, two.channel),
        order=rows_order,
        time_mode=time_mode(one.df, processing_time, one.strategy, two.strategy),
        max_parallelism=max_parallelism,
        late=late_rows(late, rows_order),
        late_row=late_row if late == "emit" else None,
        late_columns=SIDES,
        drop_state=state_names(drop_state),
        side_outputs=side_tags(side_outputs, function),
        key_names=[shown_name(name) for name in one.key],
    )
    return build(query, both, output_event_time=output_event_time, initial_state=initial_state)


@dataclass(frozen=True)
class _Side(Input):
    """One of the two inputs; `prefix` + name are the names of its arguments."""

    prefix: str
    key: list[str]
    rows: StructType

    @classmethod
    def of(
        cls,
        prefix: str,
        argument: str,
        df: DataFrame,
        key: object,
        event_time: object,
        watermark: object,
        channel: object,
        late: object,
    ) -> _Side:
        """Check the arguments of one input."""
        columns = Columns(argument, df)
        rows = columns.df.schema
        arrow_schema(argument, rows)
        key, by_channel = columns.many(prefix + "key", key), columns.one(prefix + "channel", channel)
        time, delay = columns.timed(prefix, event_time, watermark)
        df = columns.df
        keys = key_columns(df, prefix + "key", key)
        needing: dict[str, Any] = {"late": late, prefix + "channel": by_channel}
        strategy = expect_event_time(df, time, delay, prefix, **needing)
        if by_channel is not None:
            channel_column(df, prefix + "channel", by_channel)
        return cls(df, time, strategy, by_channel, prefix, keys, rows)

    def expect_to_match(self, other: _Side) -> None:
        """Raise an error unless both inputs are of one kind, with keys and event times of the same types."""
        if (self.event_time is None) != (other.event_time is None):
            timed, untimed = ("left", "right_") if other.event_time is None else ("right", "")
            raise ValueError(
                f"{untimed}event_time must name the event-time column, since {timed} has one in "
                f"{self.event_time or other.event_time!r}, got None; pass it, with {untimed}watermark"
            )
        if self.df.isStreaming != other.df.isStreaming:
            kinds = ["a stream" if side.df.isStreaming else "a batch" for side in (self, other)]
            raise ValueError(f"right must be {kinds[0]} like left, got {kinds[1]}")
        if len(self.key) != len(other.key):
            raise ValueError(
                "right_key must have as many columns as key, which is "
                f"{[*map(shown_name, self.key)]}, got {[*map(shown_name, other.key)]}"
            )
        pairs = [("key", *names) for names in zip(self.key, other.key, strict=True)]
        if self.event_time is not None and other.event_time is not None:
            pairs.append(("event_time", self.event_time, other.event_time))
        for argument, mine, theirs in pairs:
            types = self.df.schema[mine].dataType, other.df.schema[theirs].dataType
            if types[0] != types[1]:
                raise ValueError(
                    f"right_{argument} must be of type {types[0].simpleString()} like column "
                    f"{shown_name(mine)!r} of left, got {shown_name(theirs)!r} of type "
                    f"{types[1].simpleString()}; cast one of them"
                )

    def tagged(self, number: int, other: _Side) -> DataFrame:
        """Return the rows in the columns of both sides: key, event time, input, and two structs.

        The struct of the other side is null.
        """
        marks = marked(self, other)
        columns = [quoted(name).alias(f"{KEY}{i}") for i, name in enumerate(self.key)]
        if self.event_time is not None:
            columns.append(quoted(self.event_time).alias(TIME))
        columns.append(F.lit(number).cast("tinyint").alias(INPUT))
        row, none = F.struct(*map(quoted, self.rows.names)), F.lit(None).cast(other.rows)
        for side, content in zip(SIDES, (none, row) if number else (row, none), strict=True):
            columns.append(content.alias(side))
        return marks.select(*columns, *(quoted(name) for name in marks.columns[len(self.df.columns) :]))
