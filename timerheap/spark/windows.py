"""`tumble`, `hop`, `cumulate` and `session`: windows as SQL has them, on a Spark DataFrame."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import DataFrame

from timerheap.spark._plan.grouped_windows import Windows
from timerheap.spark._plan.window_plan import Options, Source
from timerheap.tvf import (
    CumulativeSliceAssigner,
    HoppingSliceAssigner,
    SessionUnsliceAssigner,
    SliceAssigner,
    TumblingSliceAssigner,
)
from timerheap.watermarks import WatermarkStrategy

__all__ = ["cumulate", "hop", "session", "tumble"]


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
