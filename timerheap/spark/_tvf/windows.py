"""Windows on Spark DataFrames: `tumble`, `hop` and `cumulate`, which share slices, and `session`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import NoReturn

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timerheap._arguments import Length
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._aggregates.spark_aggregates import UserAggregate, resolve_aggregate
from timerheap.spark._changes.corrections import Corrections
from timerheap.spark._flows import in_flows
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.event_time import EventTime
from timerheap.spark._plan.named_columns import ColumnOrName, key_columns, quoted
from timerheap.spark._tvf.window_plan import Source, WindowPlan
from timerheap.tvf.slices import (
    CumulativeSliceAssigner,
    HoppingSliceAssigner,
    SessionUnsliceAssigner,
    TumblingSliceAssigner,
)
from timerheap.watermarks import WatermarkStrategy


@dataclass(frozen=True)
class Windows:
    """A DataFrame cut into windows, to be grouped."""

    _source: Source

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"windows have no {name!r}; group them, also without a key, and aggregate: "
            f".groupBy('key').agg({_example(name)})"
        )

    @in_flows
    def groupBy(self, *keys: ColumnOrName) -> GroupedWindows:
        """Group by columns of atomic types and the window, or without columns by the window alone.

        Null is a group of its own, as in SQL.
        """
        if not keys:
            return GroupedWindows(self._source)
        columns = Columns("df", self._source.df)
        names = columns.many("keys", keys)
        return GroupedWindows(replace(self._source, df=columns.df), key_columns(columns.df, "keys", names))


@dataclass(frozen=True)
class GroupedWindows:
    """A DataFrame cut into windows and grouped, to be aggregated."""

    _source: Source
    _keys: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"grouped windows have no {name!r}; aggregate them: .agg({_example(name)})")

    def count(self) -> DataFrame:
        """Count the rows of each key and window, in a column ``count``; the rest is as in `agg`."""
        return self.agg(F.count("*").alias("count"))

    @in_flows
    def agg(self, *aggregates: Column | UserAggregate | dict[str, str]) -> DataFrame:
        """Compute aggregates of each key and window.

        Parameters
        ----------
        *aggregates : pyspark.sql.Column or result of `timerheap.spark.udaf`
            Spark's ``count``, ``sum``, ``avg``, ``min``, ``max``, ``var_samp``, ``var_pop``, ``stddev``,
            ``stddev_pop``, ``count_distinct`` of one column and ``approx_count_distinct``, with or without an
            alias. Or, as in Spark, one dict from columns to names of these functions.

        Returns
        -------
        pyspark.sql.DataFrame
            The keys, ``window_start``, ``window_end`` (exclusive), ``window_time`` (the window's last ms)
            and the aggregates; then ``early`` with the option `emit_every`, or ``_change_type`` with
            `Corrections`. With a `time_zone` the start and
            the end are local times, of the type timestamp_ntz; ``window_time`` has the type of the time
            column, or is a timestamp.
        """
        return self._plan(aggregates).result()

    @in_flows
    def explain(self, *aggregates: Column | UserAggregate | dict[str, str]) -> None:
        """Print how `agg` computes these aggregates: which stage runs where, and which rows are late."""
        print(self._plan(aggregates))

    def _plan(self, aggregates: tuple[Column | UserAggregate | dict[str, str], ...]) -> WindowPlan:
        if len(aggregates) == 1 and isinstance(aggregates[0], dict):
            aggregates = tuple(
                F.count("*") if (column, name) == ("*", "count") else F.call_function(name, quoted(column))
                for column, name in aggregates[0].items()
            )
        if not aggregates:
            raise ArgumentValueError(
                "aggregates must be one or more, got none; pass one such as F.count('*').alias('rows')"
            )
        df = self._source.df
        return WindowPlan(
            self._source, self._keys, [resolve_aggregate(df, one, at) for at, one in enumerate(aggregates)]
        )


def _example(name: str) -> str:
    """Return the aggregate that a method of Spark's grouped DataFrames would compute."""
    known = {"mean": "avg", "avg": "avg", "sum": "sum", "min": "min", "max": "max"}
    return f"F.{known[name]}('column')" if name in known else "F.count('*').alias('rows')"


@in_flows
def tumble(
    df: DataFrame,
    time: ColumnOrName | EventTime | None,
    size: Length,
    *,
    offset: Length = 0,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    time_zone: str | None = None,
    late: str | Corrections = "drop",
    emit_every: Length | None = None,
    max_parallelism: int | None = None,
    name: str | None = None,
) -> Windows:
    """Cut a DataFrame into adjacent windows of one size: SQL's ``TUMBLE``.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        A stream or a batch. The end of a batch ends all its windows.
    time : str, Column, EventTime or None
        Event-time column: a timestamp (cut to ms), or a bigint of epoch ms. An `EventTime` also says which
        column has a watermark for each of its values, and what becomes of rows without a time. None: the
        windows are cut from the processing time of micro-batches, on a stream.
    size : int, timedelta or str
        Length of a window, in ms.
    offset : int, timedelta or str
        Distance of the first window from midnight, in ms; less than `size` either way.
    watermark : WatermarkStrategy, int, str or timedelta
        As in `process`: required with an event-time column, unless Spark's ``withWatermark``
        names it, or `df` is the result of another operator, whose watermark it then has.
    time_zone : str, optional
        Time zone whose wall clock cuts the windows, such as "Europe/Berlin". The bounds of the windows are
        then local times (timestamp_ntz), since an instant cannot be a bound where clocks change. By default
        windows follow UTC, and the bounds are timestamps. Times of the type timestamp_ntz are cut as they
        are.
    late : {"drop", "emit"} or Corrections, default "drop"
        What becomes of late rows. With "emit" `timerheap.spark.late_rows` returns them. A row is late when
        its last window is over, or for sessions, when its session and all sessions that it touches are over.
        A row that is only behind its first windows counts in the others. With `Corrections` a window is over
        when the watermark has passed its end by the allowed lateness. Until then late rows change its result:
        ``_change_type`` is "insert" in its first one, and "update_preimage" and "update_postimage" in the old
        and the new one; a session that becomes another one is a "delete" and an "insert".
    emit_every : int, timedelta or str, optional
        Distance between early results, in ms of event time. An early result of each open window has ``early``
        true; the result at the end of the window has it false. With `Corrections`, early results are changes
        like others, of the windows that have changed.
    max_parallelism : int, optional
        Number of key groups, 1 to 32768, as in `timerheap.spark.process`. A checkpoint keeps it.
    name : str, optional
        Name of the operator, by which its metrics are reported and its state is found when a changed query
        continues: see `continue_from`. By default "timerheap", and "timerheap_2" behind that.

    Returns
    -------
    Windows
        To be grouped: ``.groupBy("key").agg(F.count("*").alias("rows"))``.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is wrong, before the query starts.

    Notes
    -----
    The semantics are those of Flink's window table functions.
    """
    make = partial(TumblingSliceAssigner, size, offset, event_time=time is not None)
    return Windows(Source.cut(df, time, make, watermark, time_zone, late, emit_every, max_parallelism, name))


@in_flows
def hop(
    df: DataFrame,
    time: ColumnOrName | EventTime | None,
    size: Length,
    slide: Length,
    *,
    offset: Length = 0,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    time_zone: str | None = None,
    late: str | Corrections = "drop",
    emit_every: Length | None = None,
    max_parallelism: int | None = None,
    name: str | None = None,
) -> Windows:
    """Cut a DataFrame into windows of one size that start every `slide`: SQL's ``HOP``.

    Spark's own ``window()`` copies each row into every window that contains it. Here a row is added to one
    slice, which the windows share.

    Parameters
    ----------
    df, time, offset, watermark, time_zone, late, emit_every, max_parallelism, name
        As in `tumble`.
    size : int, timedelta or str
        Length of a window, in ms: at least `slide`. It need not be a multiple, but windows cost least if it
        is: a slice is as long as the greatest common divisor of the two.
    slide : int, timedelta or str
        Distance between the starts of two windows, in ms. The order is that of Spark's ``window()``.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        As in `tumble`.
    """
    make = partial(HoppingSliceAssigner, size, slide, offset, event_time=time is not None)
    return Windows(Source.cut(df, time, make, watermark, time_zone, late, emit_every, max_parallelism, name))


@in_flows
def cumulate(
    df: DataFrame,
    time: ColumnOrName | EventTime | None,
    max_size: Length,
    step: Length,
    *,
    offset: Length = 0,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    time_zone: str | None = None,
    late: str | Corrections = "drop",
    emit_every: Length | None = None,
    max_parallelism: int | None = None,
    name: str | None = None,
) -> Windows:
    """Cut a DataFrame into windows that start together and grow by a step: SQL's ``CUMULATE``.

    Parameters
    ----------
    df, time, offset, watermark, time_zone, late, emit_every, max_parallelism, name
        As in `tumble`.
    max_size : int, timedelta or str
        Length of the longest window, a multiple of `step`. After it the next windows start.
    step : int, timedelta or str
        Difference in length between a window and the next, in ms.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        As in `tumble`.
    """
    make = partial(CumulativeSliceAssigner, max_size, step, offset, event_time=time is not None)
    return Windows(Source.cut(df, time, make, watermark, time_zone, late, emit_every, max_parallelism, name))


@in_flows
def session(
    df: DataFrame,
    time: ColumnOrName | EventTime,
    gap: Length,
    *,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    time_zone: str | None = None,
    late: str | Corrections = "drop",
    emit_every: Length | None = None,
    max_parallelism: int | None = None,
    name: str | None = None,
) -> Windows:
    """Collect rows of a key that follow each other within `gap` into one window: SQL's ``SESSION``.

    For sessions of processing time, custom triggers and functions over whole sessions, use
    `timerheap.spark.window_operator` with an assigner such as `EventTimeSessionWindows`.

    Parameters
    ----------
    df, watermark, time_zone, late, emit_every, max_parallelism, name
        As in `tumble`. With a `time_zone` its wall clock measures the gap: where it skips an hour, a shorter
        gap ends a session.
    time : str, Column or EventTime
        Event-time column, as in `tumble`.
    gap : int, timedelta or str
        Time from the last row of a session to its end, in ms.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        As in `tumble`.
    """
    if time is None:
        raise ArgumentTypeError(
            "time must be the name of a column, got None; for processing time use window_operator()"
        )
    make = partial(SessionUnsliceAssigner, gap)
    return Windows(Source.cut(df, time, make, watermark, time_zone, late, emit_every, max_parallelism, name))
