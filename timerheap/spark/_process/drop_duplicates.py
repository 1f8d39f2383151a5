"""`drop_duplicates`: one row of each key, the first or the last, as long as its rows follow each other."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.types import LongType

from timerheap._arguments import not_negative
from timerheap.errors import ArgumentValueError
from timerheap.spark._flows import in_flows
from timerheap.spark._modes import build
from timerheap.spark._plan.event_time import EventTime
from timerheap.spark._plan.named_columns import ColumnOrName, data_frame, ungrouped
from timerheap.spark._process.drop_duplicates_runner import OneOfRun
from timerheap.spark._process.process import planned
from timerheap.spark._query import nullable_arrow_schema
from timerheap.watermarks import WatermarkStrategy


@in_flows
def drop_duplicates(
    df: DataFrame | GroupedData,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    event_time: ColumnOrName | EventTime | None = None,
    *,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    keep: str = "first",
    within: int | str | timedelta | None = None,
    order: str = "event_time",
    late: str | None = None,
    max_parallelism: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """Keep one row of each key of a streaming or batch DataFrame, and forget the key after a while.

    Rows of one key are duplicates of one another as long as each comes `within` some time of the one before
    it.

    Parameters
    ----------
    df : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        ``df.groupBy("a")`` names the key columns, too.
    key, event_time, watermark : optional
        As in `process`.
    keep : {"first", "last"}, default "first"
        Which of the duplicates is in the result, by event time. Rows of one key and time are in the order of
        ``EventTime.tie_break``, then of their columns; with ``order="arrival"`` as they arrive.
    within : int, str or timedelta, optional
        The longest time between a row and the next one that is a duplicate: milliseconds, or "1 day". By
        default any, so that keys are never forgotten.
    order : {"event_time", "arrival"}, default "event_time"
        "event_time": a row is in the result once nothing can change that: the first row of several when the
        watermark has passed it, the last when no duplicate can follow. The result depends on the data alone,
        as long as no row is late. "arrival": the result of a micro-batch has all that its rows change. A row
        is in the result as soon as it is read, if it is the first to arrive, or the last so far. With
        ``keep="last"`` rows may then be replaced by later ones, as in a table that is merged by key. A row
        before the newest one of its key is a duplicate of it.
    late : {"drop", "emit"}, optional
        What becomes of rows behind the watermark, in both orders: they are counted, or `late_rows` returns
        them.
    max_parallelism : int, optional
        As in `process`.
    name : str, optional
        Name of the operator, by which its metrics are reported and its state is found when a changed query
        continues: see `continue_from`. By default "timerheap", and "timerheap_2" behind that.

    Returns
    -------
    pyspark.sql.DataFrame
        Rows of `df`, in append mode.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is wrong, or the last row of a stream is to be kept that has no end.

    Notes
    -----
    Rows are processed in columns, without a call in Python for each. The state of a key has the time of its
    newest row, and that row itself if it waits for its end; a timer removes it.

    `top_changes` has the newest row of each key as changes: a row that is replaced, or deleted, is taken
    back.

    Examples
    --------
    ::

        events = timerheap.spark.drop_duplicates(
            events, key="event_id", event_time="at", watermark="1 minute", within="1 day", order="arrival"
        )
    """
    if keep not in ("first", "last"):
        raise ArgumentValueError(f'keep must be "first" or "last", got {keep!r}')
    gap = None if within is None else not_negative("within", within)
    rows = data_frame("df", ungrouped("df", df, "key", key)[0])
    if keep == "last" and order == "event_time" and gap is None and rows.isStreaming:
        raise ArgumentValueError(
            'within must say when the last row of a stream is known, got None; pass it, or order="arrival" '
            "for each change"
        )
    time = EventTime.of(event_time).column
    exact = (
        isinstance(time, str)
        and time in rows.columns
        and not isinstance(rows.schema[time].dataType, LongType)
    )
    columns = nullable_arrow_schema(rows.schema)
    last, waits = keep == "last", order == "event_time"
    function = OneOfRun(columns, last, gap, waits, time=str(time) if exact else None)
    given = df, key, rows.schema, event_time, watermark
    query, marks = planned(
        function,
        *given,
        order=order,
        late=late or "drop",
        max_parallelism=max_parallelism,
        name=name,
    )
    if query.event_time is None:
        raise ArgumentValueError("event_time must name the event-time column, got None")
    return build(query, marks)
