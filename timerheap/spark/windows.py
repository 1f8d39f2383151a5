"""`tumble`, `hop`, `cumulate` and `session`: windows as SQL has them, on a Spark DataFrame."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from pyspark.sql import Column, DataFrame

from timerheap.spark.aggregates import UserAggregate, asked
from timerheap.spark.arguments import key_columns
from timerheap.spark.window_plan import Options, Source, WindowPlan
from timerheap.tvf import (
    CumulativeSliceAssigner,
    HoppingSliceAssigner,
    SessionUnsliceAssigner,
    SliceAssigner,
    TumblingSliceAssigner,
)
from timerheap.watermarks import WatermarkStrategy

__all__ = ["GroupedWindows", "Windows", "cumulate", "hop", "session", "tumble"]


def tumble(
    df: DataFrame,
    time: str | None,
    size: int | timedelta,
    *,
    offset: int | timedelta = 0,
    watermark: WatermarkStrategy | None = None,
    time_zone: str | None = None,
    channel: str | None = None,
    late_by: bool = False,
    emit_every: int | timedelta | None = None,
    local: str | None = None,
    max_parallelism: int = 128,
) -> Windows:
    """Cut a DataFrame into windows of one size, side by side: SQL's ``TUMBLE``.

    Parameters
    ----------
    df, time
        As of `hop`.
    size : int or timedelta
        The windows' length, in ms.
    offset : int or timedelta
        By how much they are moved; less than `size` either way.
    watermark, time_zone, channel, late_by, emit_every, local, max_parallelism
        As of `hop`.
    """
    options = Options(watermark, time_zone, channel, late_by, emit_every, local, max_parallelism)

    def make(zone: str) -> SliceAssigner:
        return TumblingSliceAssigner(size, offset, zone, event_time=time is not None)

    return Windows(Source.of(df, time, make, options))


def hop(
    df: DataFrame,
    time: str | None,
    slide: int | timedelta,
    size: int | timedelta,
    *,
    offset: int | timedelta = 0,
    watermark: WatermarkStrategy | None = None,
    time_zone: str | None = None,
    channel: str | None = None,
    late_by: bool = False,
    emit_every: int | timedelta | None = None,
    local: str | None = None,
    max_parallelism: int = 128,
) -> Windows:
    """Cut a DataFrame into windows of one size, one every `slide`: SQL's ``HOP``.

    Spark's own ``window()`` copies each row into every window that it is part of; here a row goes into one
    slice, which the windows share.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        A stream or a batch; a batch ends all its windows.
    time : str or None
        Column of the event time: a timestamp (cut to ms), or a bigint of epoch ms. None: windows of the
        micro-batch's processing time, on a stream.
    slide : int or timedelta
        The distance between windows, in ms.
    size : int or timedelta
        The windows' length, in ms: a multiple of `slide`.
    offset : int or timedelta
        By how much the windows are moved from midnight.
    watermark : WatermarkStrategy, optional
        Needed with `time`.
    time_zone : str, optional
        Whose wall clock the windows are cut on, by default the session's; for times without a zone it
        has no meaning.
    channel : str, optional
        As of `timerheap.spark.process`.
    late_by : bool
        True: a row whose last window is over comes out, with ``late_by``, by how many ms the watermark's
        delay would have had to be longer, and ``late_row``. False: it is dropped. A row of which only the
        first windows are over counts in those that are left.
    emit_every : int or timedelta, optional
        In event time: so often all windows that are open give what they have so far, with ``early`` true; at
        its end a window gives its result all the same, with ``early`` false.
    local : {"jvm", "arrow"}, optional
        Where rows become slices. "jvm": in Spark's own aggregation, which is fastest; a row is late by
        Spark's watermark, slice by slice. "arrow": in Python workers, by Flink's rule. By default "jvm" where
        it can do what is asked for: `GroupedWindows.explain` says which it is, and why. (`sql` takes "arrow"
        on streams.) A checkpoint fixes it; name "arrow" where `channel` may be switched on or off later.
    max_parallelism : int
        Number of key groups, 1 to 32768; a checkpoint fixes it.

    Returns
    -------
    Windows
        To go on with: ``.group_by("key").agg(F.count("*").alias("rows"))``.

    Raises
    ------
    TypeError, ValueError
        Anything that does not fit is named before the query starts.

    Notes
    -----
    The semantics are those of Flink's window table functions.
    """
    options = Options(watermark, time_zone, channel, late_by, emit_every, local, max_parallelism)

    def make(zone: str) -> SliceAssigner:
        return HoppingSliceAssigner(size, slide, offset, zone, event_time=time is not None)

    return Windows(Source.of(df, time, make, options))


def cumulate(
    df: DataFrame,
    time: str | None,
    step: int | timedelta,
    max_size: int | timedelta,
    *,
    offset: int | timedelta = 0,
    watermark: WatermarkStrategy | None = None,
    time_zone: str | None = None,
    channel: str | None = None,
    late_by: bool = False,
    emit_every: int | timedelta | None = None,
    local: str | None = None,
    max_parallelism: int = 128,
) -> Windows:
    """Cut a DataFrame into windows that begin together and grow by a step: SQL's ``CUMULATE``.

    Parameters
    ----------
    df, time
        As of `hop`.
    step : int or timedelta
        By how much a window is longer than the one before, in ms.
    max_size : int or timedelta
        The longest window's length, a multiple of `step`; then they begin anew.
    offset, watermark, time_zone, channel, late_by, emit_every, local, max_parallelism
        As of `hop`.
    """
    options = Options(watermark, time_zone, channel, late_by, emit_every, local, max_parallelism)

    def make(zone: str) -> SliceAssigner:
        return CumulativeSliceAssigner(max_size, step, offset, zone, event_time=time is not None)

    return Windows(Source.of(df, time, make, options))


def session(
    df: DataFrame,
    time: str,
    gap: int | timedelta,
    *,
    watermark: WatermarkStrategy | None = None,
    time_zone: str | None = None,
    channel: str | None = None,
    late_by: bool = False,
    emit_every: int | timedelta | None = None,
    local: str | None = None,
    max_parallelism: int = 128,
) -> Windows:
    """Put rows of a key that follow each other within `gap` into one window: SQL's ``SESSION``.

    For custom triggers and functions over whole sessions there is `timerheap.spark.window_operator` with
    `EventTimeSessionWindows`, and for sessions of processing time, too.

    Parameters
    ----------
    df, time
        As of `hop`; event time only.
    gap : int or timedelta
        How long a session lasts behind its last row, in ms.
    watermark, channel, emit_every, max_parallelism
        As of `hop`.
    time_zone : str, optional
        Whose wall clock the gap is measured on, by default the session's, as of `hop`.
    late_by : bool
        As of `hop`; a row is late when its session, with all sessions that it touches, is over.
    local : {"jvm", "arrow"}, optional
        Who makes sessions of the rows. "jvm": Spark's own ``session_window``, with Spark's lateness. "arrow":
        the Python workers, by Flink's rule. The default is that of `hop`.

    Raises
    ------
    TypeError, ValueError
        Anything that does not fit is named before the query starts.
    """
    if time is None:
        raise TypeError("time: sessions of processing time are window_operator's; name a column")
    options = Options(watermark, time_zone, channel, late_by, emit_every, local, max_parallelism)
    return Windows(Source.of(df, time, lambda zone: SessionUnsliceAssigner(gap, zone), options))


@dataclass(frozen=True)
class Windows:
    """A DataFrame cut into windows, to be grouped."""

    source: Source

    def group_by(self, *keys: str) -> GroupedWindows:
        """Group by columns of atomic types and the window; without columns by the window alone.

        Rows with null in a column are a group, as in SQL.
        """
        return GroupedWindows(self.source, key_columns(self.source.df, "keys", keys) if keys else [])


@dataclass(frozen=True)
class GroupedWindows:
    """A DataFrame cut into windows and grouped, to be aggregated."""

    source: Source
    keys: list[str] = field(default_factory=list)

    def agg(self, *aggregates: Column | UserAggregate) -> DataFrame:
        """Compute aggregates of each key and window.

        Parameters
        ----------
        *aggregates : pyspark.sql.Column or what `timerheap.spark.aggregate` gives
            Spark's ``count``, ``sum``, ``avg``, ``min``, ``max``, ``var_samp``, ``var_pop``, ``stddev``,
            ``stddev_pop``, ``count_distinct`` of one column and ``approx_count_distinct``, with or without an
            alias.

        Returns
        -------
        pyspark.sql.DataFrame
            The keys, ``window_start`` and ``window_end`` (exclusive), ``window_time`` (the window's last ms),
            and the aggregates; then ``early``, ``late_by`` and ``late_row``, where they were asked for.
        """
        return self._plan(aggregates).result()

    def explain(self, *aggregates: Column | UserAggregate) -> None:
        """Print how `agg` computes these aggregates: what runs where, and whose lateness holds."""
        print(self._plan(aggregates))

    def _plan(self, aggregates: tuple[Column | UserAggregate, ...]) -> WindowPlan:
        if not aggregates:
            raise ValueError("agg: give at least one aggregate, such as F.count('*').alias('rows')")
        df = self.source.df
        return WindowPlan(self.source, self.keys, [asked(df, one, at) for at, one in enumerate(aggregates)])
