"""`session`: Spark's own session windows under the face of the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from timerheap.duration import positive
from timerheap.spark.aggregates import UserAggregate, asked
from timerheap.spark.arguments import (
    arrow_schema,
    bounded_delay,
    data_frame,
    expect_event_time,
    key_columns,
    named_column,
    quoted,
)
from timerheap.spark.bounds import bounds
from timerheap.watermarks import WatermarkStrategy

__all__ = ["GroupedSessions", "Sessions", "session"]

_TIME, _NO_KEY, _SESSION = "__timerheap_time", "__timerheap_key0", "__timerheap_session"


def session(
    df: DataFrame, time: str, gap: int | timedelta, *, watermark: WatermarkStrategy | None = None
) -> Sessions:
    """Put rows of a key that follow each other within `gap` into one window: SQL's ``SESSION``.

    Spark has these itself, and computes them here: ``session_window``. For custom triggers, lateness and
    functions over whole sessions there is `timerheap.spark.window_operator` with `EventTimeSessionWindows`.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
    time : str
        Column of the event time: a timestamp, or a bigint of epoch ms.
    gap : int or timedelta
        How long a session lasts behind its last row, in ms.
    watermark : WatermarkStrategy
        With a bounded delay and nothing else: it becomes Spark's watermark, and lateness is Spark's.

    Raises
    ------
    TypeError, ValueError
        Anything that does not fit is named before the query starts.
    """
    arrow_schema("df", data_frame("df", df).schema)
    if time is None:
        raise TypeError("time: sessions of processing time are window_operator's; name a column")
    delay = bounded_delay(expect_event_time(df, time, watermark, argument="time"))
    if delay is None:
        raise ValueError(
            "watermark: Spark's sessions know bounded delays alone, without idleness and max_ahead; use "
            "timerheap.spark.window_operator for others"
        )
    return Sessions(df, time, positive("gap", gap), delay)


@dataclass(frozen=True)
class Sessions:
    """A DataFrame cut into sessions, to be grouped."""

    df: DataFrame
    time: str
    gap: int
    delay: int

    def group_by(self, *keys: str) -> GroupedSessions:
        """Group by columns and the session; without columns by the session alone."""
        return GroupedSessions(self, key_columns(self.df, "keys", keys) if keys else [])


@dataclass(frozen=True)
class GroupedSessions:
    """A DataFrame cut into sessions and grouped, to be aggregated."""

    sessions: Sessions
    keys: list[str] = field(default_factory=list)

    def agg(self, *aggregates: Column) -> DataFrame:
        """Compute aggregates of each key and session; see `timerheap.spark.windows.GroupedWindows.agg`.

        Functions of one's own are for `timerheap.spark.window_operator`.
        """
        df, time = self.sessions.df, self.sessions.time
        if not aggregates:
            raise ValueError("agg: give at least one aggregate, such as F.count('*').alias('rows')")
        for number, wanted in enumerate(aggregates):
            asked(df, wanted, number)
            if isinstance(wanted, UserAggregate):
                raise ValueError("agg: sessions take Spark's functions; use timerheap.spark.window_operator")
        bigint = isinstance(named_column(df, "time", time), LongType)
        rows = df.withColumn(_TIME, F.timestamp_millis(quoted(time)) if bigint else quoted(time))
        rows = rows.withColumn(_NO_KEY, F.lit(0))
        if df.isStreaming:
            rows = rows.withWatermark(_TIME, f"{self.sessions.delay} milliseconds")
        window = F.session_window(_TIME, f"{self.sessions.gap} milliseconds").alias(_SESSION)
        grouped = rows.groupBy(*map(quoted, self.keys or [_NO_KEY]), window).agg(*aggregates)
        results = grouped.columns[len(self.keys or [_NO_KEY]) + 1 :]
        return grouped.select(*map(quoted, self.keys), *bounds(_SESSION), *map(quoted, results))

    def explain(self, *aggregates: Column) -> None:
        """Print how `agg` computes these aggregates."""
        print(f"windows Session windows, gap {self.sessions.gap} ms")
        print(f"source  time {self.sessions.time}, watermark {self.sessions.delay} ms behind")
        print("all     Spark's own session_window; lateness is Spark's")
