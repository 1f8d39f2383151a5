"""A DataFrame cut into windows, and the options that all windows have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import TimestampType

from timerheap._arguments import positive
from timerheap.spark._plan.arguments import (
    arrow_schema,
    channel_column,
    expect_event_time,
    key_groups,
    late_rows,
    named_column,
)
from timerheap.spark._plan.columns import ColumnOrName, Columns
from timerheap.spark._query import Late
from timerheap.tvf import SessionUnsliceAssigner, SliceAssigner
from timerheap.watermarks import WatermarkStrategy

__all__ = ["Source", "WindowOptions"]


class WindowOptions(TypedDict, total=False):
    """Options of `tumble`, `hop`, `cumulate` and `session`, passed by name.

    Parameters
    ----------
    watermark : WatermarkStrategy, str or timedelta
        Required with an event-time column, unless Spark's ``withWatermark`` names it; "5 seconds" is
        ``WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")``.
    time_zone : str, optional
        Time zone whose wall clock cuts the windows, by default the session's. Times without a zone are cut
        as they are.
    channel : str or Column, optional
        Column whose values have a watermark each, as in `timerheap.spark.process`.
    late : {"drop", "emit"}, default "drop"
        What becomes of late rows. "emit": they are part of the result, in the columns ``late_by`` (how many
        ms longer the watermark's delay would have had to be) and ``late_row``. A row is late
        when its last window is over, or for sessions, when its session and all sessions that it touches are
        over. A row that is only behind its first windows counts in the others.
    emit_every : int, timedelta or str, optional
        Distance between early results, in ms of event time. An early result of each open window has ``early``
        true; the result at the end of the window has it false.
    local : {"jvm", "arrow"}, optional
        Where rows become slices or sessions. "jvm": in Spark's own aggregation, which drops rows that are
        late by Spark's watermark. "arrow": in Python workers, with Flink's lateness. By default
        "jvm" where it supports the other arguments; `GroupedWindows.explain` prints which and why. A
        checkpoint keeps it: pass "arrow" if `channel` may be added or removed later.
    max_parallelism : int, optional
        Number of key groups, 1 to 32768, as in `timerheap.spark.process`. A checkpoint keeps it.
    """

    watermark: WatermarkStrategy | str | timedelta | None
    time_zone: str | None
    channel: ColumnOrName | None
    late: Late
    emit_every: int | timedelta | str | None
    local: str | None
    max_parallelism: int | None


_DEFAULTS: WindowOptions = {
    "watermark": None,
    "time_zone": None,
    "channel": None,
    "late": "drop",
    "emit_every": None,
    "local": None,
    "max_parallelism": None,
}


@dataclass(frozen=True)
class Source:
    """A DataFrame, and how it is cut into windows.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
    time : str or None
        Event-time column, None for processing time.
    assigner : SliceAssigner or SessionUnsliceAssigner
    strategy : WatermarkStrategy
    channel : str or None
        Column whose values have a watermark each.
    options : WindowOptions
        All of them, as the user has given them.
    where : pyspark.sql.Column, optional
        Condition; rows that do not meet it only move the watermark.
    """

    df: DataFrame
    time: str | None
    assigner: SliceAssigner | SessionUnsliceAssigner
    strategy: WatermarkStrategy
    channel: str | None
    options: WindowOptions
    where: Column | None = None

    @classmethod
    def checked(
        cls,
        function: str,
        df: DataFrame,
        time: ColumnOrName | None,
        make_assigner: Callable[[str], SliceAssigner | SessionUnsliceAssigner],
        options: WindowOptions,
    ) -> Source:
        """Check the arguments of a function that cuts windows; `make_assigner` receives the time zone."""
        if unknown := options.keys() - _DEFAULTS.keys():
            raise TypeError(
                f"{function}() got an unexpected keyword argument {min(unknown)!r}; its options are "
                f"{', '.join(_DEFAULTS)}"
            )
        chosen: WindowOptions = {**_DEFAULTS, **options}
        columns = Columns("df", df)
        arrow_schema("df", columns.df.schema)
        of_time, channel = columns.one("time", time), columns.one("channel", chosen["channel"])
        watermark = columns.watermark("watermark", chosen["watermark"], of_time)
        df, every = columns.df, chosen["emit_every"]
        chosen["late"] = late_rows(chosen["late"])
        late = None if chosen["late"] == "drop" else "emit"
        strategy = expect_event_time(df, of_time, watermark, argument="time", channel=channel, late=late)
        if channel is not None:
            channel_column(df, "channel", channel)
        zone = chosen["time_zone"] or str(df.sparkSession.conf.get("spark.sql.session.timeZone"))
        if of_time is not None and not isinstance(named_column(df, "time", of_time), TimestampType):
            zone = "UTC"
        key_groups(chosen["max_parallelism"])
        if every is not None:
            positive("emit_every", every)
        if chosen["local"] not in (None, "jvm", "arrow"):
            raise ValueError(f'local must be "jvm" or "arrow", got {chosen["local"]!r}; or leave it out')
        return cls(df, of_time, make_assigner(zone), strategy, channel, chosen)
