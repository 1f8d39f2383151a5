"""`tumble`, `hop`, `cumulate` and `session`: windows as SQL has them, on a Spark DataFrame."""

from __future__ import annotations

from datetime import timedelta
from typing import Unpack

from pyspark.sql import DataFrame

from timerheap.spark._plan.columns import ColumnOrName
from timerheap.spark._plan.grouped_windows import GroupedWindows, Windows
from timerheap.spark._plan.window_source import Source, WindowOptions
from timerheap.tvf import (
    CumulativeSliceAssigner,
    HoppingSliceAssigner,
    SessionUnsliceAssigner,
    SliceAssigner,
    TumblingSliceAssigner,
)

__all__ = ["GroupedWindows", "WindowOptions", "Windows", "cumulate", "hop", "session", "tumble"]


def tumble(
    df: DataFrame,
    time: ColumnOrName | None,
    size: int | timedelta | str,
    *,
    offset: int | timedelta | str = 0,
    **options: Unpack[WindowOptions],
) -> Windows:
    """Cut a DataFrame into adjacent windows of one size: SQL's ``TUMBLE``.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        A stream or a batch. The end of a batch ends all its windows.
    time : str, Column or None
        Event-time column: a timestamp (cut to ms), or a bigint of epoch ms. None: the windows are cut from
        the processing time of micro-batches, on a stream.
    size : int, timedelta or str
        Length of a window, in ms.
    offset : int, timedelta or str
        Distance of the first window from midnight, in ms; less than `size` either way.
    **options
        watermark, time_zone, channel, late, emit_every, local and max_parallelism; see
        `timerheap.spark.windows.WindowOptions`.

    Returns
    -------
    Windows
        To be grouped: ``.groupBy("key").agg(F.count("*").alias("rows"))``.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, before the query starts.

    Notes
    -----
    The semantics are those of Flink's window table functions.
    """

    def make(zone: str) -> SliceAssigner:
        return TumblingSliceAssigner(size, offset, zone, event_time=time is not None)

    return Windows(Source.checked("tumble", df, time, make, options))


def hop(
    df: DataFrame,
    time: ColumnOrName | None,
    size: int | timedelta | str,
    slide: int | timedelta | str,
    *,
    offset: int | timedelta | str = 0,
    **options: Unpack[WindowOptions],
) -> Windows:
    """Cut a DataFrame into windows of one size that start every `slide`: SQL's ``HOP``.

    Spark's own ``window()`` copies each row into every window that contains it. Here a row is added to one
    slice, which the windows share.

    Parameters
    ----------
    df, time, offset, **options
        As in `tumble`.
    size : int, timedelta or str
        Length of a window, in ms: a multiple of `slide`.
    slide : int, timedelta or str
        Distance between the starts of two windows, in ms. The order is that of Spark's ``window()``.

    Returns
    -------
    Windows

    Raises
    ------
    TypeError, ValueError
        As in `tumble`.
    """

    def make(zone: str) -> SliceAssigner:
        return HoppingSliceAssigner(size, slide, offset, zone, event_time=time is not None)

    return Windows(Source.checked("hop", df, time, make, options))


def cumulate(
    df: DataFrame,
    time: ColumnOrName | None,
    max_size: int | timedelta | str,
    step: int | timedelta | str,
    *,
    offset: int | timedelta | str = 0,
    **options: Unpack[WindowOptions],
) -> Windows:
    """Cut a DataFrame into windows that start together and grow by a step: SQL's ``CUMULATE``.

    Parameters
    ----------
    df, time, offset, **options
        As in `tumble`.
    max_size : int, timedelta or str
        Length of the longest window, a multiple of `step`. After it the next windows start.
    step : int, timedelta or str
        Difference in length between a window and the next, in ms.

    Returns
    -------
    Windows

    Raises
    ------
    TypeError, ValueError
        As in `tumble`.
    """

    def make(zone: str) -> SliceAssigner:
        return CumulativeSliceAssigner(max_size, step, offset, zone, event_time=time is not None)

    return Windows(Source.checked("cumulate", df, time, make, options))


def session(
    df: DataFrame, time: ColumnOrName, gap: int | timedelta | str, **options: Unpack[WindowOptions]
) -> Windows:
    """Collect rows of a key that follow each other within `gap` into one window: SQL's ``SESSION``.

    For sessions of processing time, custom triggers and functions over whole sessions, use
    `timerheap.spark.window_operator` with an assigner such as `EventTimeSessionWindows`.

    Parameters
    ----------
    df, **options
        As in `tumble`. `time_zone` is the zone whose wall clock measures the gap.
    time : str or Column
        Event-time column, as in `tumble`.
    gap : int, timedelta or str
        Time from the last row of a session to its end, in ms.

    Returns
    -------
    Windows

    Raises
    ------
    TypeError, ValueError
        As in `tumble`.
    """
    if time is None:
        raise TypeError(
            "time must be the name of a column, got None; for processing time use window_operator()"
        )
    return Windows(
        Source.checked("session", df, time, lambda zone: SessionUnsliceAssigner(gap, zone), options)
    )
