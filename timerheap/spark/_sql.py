"""`sql`: runs window queries in Flink's SQL on Spark's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from timerheap.spark._compat import on_connect, with_columns
from timerheap.spark._plan.arguments import named_column, quoted
from timerheap.spark._plan.columns import ColumnOrName, spark_delay
from timerheap.spark._plan.grouped_windows import Windows
from timerheap.spark._plan.ranking import RANKED_TIME, first_results, first_rows, with_order
from timerheap.spark._worker.window_columns import GROUPING_SET, WINDOW_COLUMNS, WINDOW_TIME
from timerheap.spark.windows import cumulate, hop, session, tumble
from timerheap.watermarks import WatermarkGenerator, WatermarkStrategy

if TYPE_CHECKING:
    from timerheap.spark._plan.flink_sql import Call, WindowSelect

__all__ = ["sql"]

_WINDOWS: dict[str, Callable[..., Windows]] = {
    "tumble": tumble,
    "hop": hop,
    "cumulate": cumulate,
    "session": session,
}


def sql(
    spark: SparkSession,
    query: str,
    watermark: WatermarkStrategy
    | str
    | timedelta
    | Mapping[str, WatermarkStrategy | str | timedelta]
    | None = None,
    *,
    processing_time: str | None = None,
    time_zone: str | None = None,
    channel: ColumnOrName | None = None,
    local: str | None = None,
    max_parallelism: int | None = None,
) -> DataFrame:
    """Run a window aggregation written in Flink's SQL.

    ::

        SELECT window_start, window_end, k, COUNT(*) AS n
        FROM TABLE(CUMULATE(TABLE t, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '5' MINUTE))
        GROUP BY window_start, window_end, k

    is ``cumulate(spark.table("t"), "ts", step=5_000, max_size=300_000, ...)``, then
    ``.groupBy("k").agg(F.count("*"))`` and the projection of the SELECT list.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    query : str
        One SELECT over TUMBLE, HOP, CUMULATE or SESSION, with positional or named arguments, and with
        GROUPING SETS, CUBE and ROLLUP; or a window Top-N or window deduplication with ROW_NUMBER(). Tables
        are the tables and temporary views of `spark`, streaming or batch.
    watermark : WatermarkStrategy or delay such as "5 seconds", or dict of str to these
        Replaces Flink's ``WATERMARK FOR``; the keys of a dict are table names. Optional for batches, for
        views of a DataFrame with Spark's own ``withWatermark()`` on the time column, for views of a result of
        sql() whose time is ``window_time``, and for windows of processing time.
    processing_time : str, optional
        Name of the processing time in queries (Flink's ``PROCTIME()``): ``DESCRIPTOR`` of this name makes
        windows of processing time. By default, any name that is not a column of a streaming table without a
        `watermark`.
    local : {"jvm", "arrow"}, optional
        As for `tumble`, but the default for streams is "arrow", so that the same rows are late as in Flink.
        "jvm" is faster and uses Spark's lateness rule: it counts some rows that Flink drops, and drops some
        that Flink counts. A batch has no late rows, so "jvm" is the default there if it supports the query.
    time_zone, channel, max_parallelism
        As for `tumble`.

    Returns
    -------
    pyspark.sql.DataFrame
        The columns of the query.

    Raises
    ------
    ImportError
        If sqlglot is not installed: ``pip install 'timerheap[sql]'``.
    ValueError
        If the query uses an unsupported feature, such as a window join or ORDER BY; the message names it
        and an alternative.

    Notes
    -----
    The syntax is Flink's and the values are Spark's: Spark computes scalar expressions, ``AVG`` of integers
    is a double, and the bounds of a window are Spark timestamps. Column names in GROUP BY and DESCRIPTOR are
    case-sensitive, as in Flink. Rows that WHERE drops still advance the watermark, as in Flink, but not with
    ``local="jvm"``. Windows over the ``window_time`` of a view end with a later window of the view, while in
    Flink the watermark ends them.

    The semantics are those of Flink's window table functions and window aggregation.
    """
    if not (isinstance(spark, SparkSession) or on_connect(spark)):
        raise TypeError(f"spark must be a pyspark.sql.SparkSession, got {spark!r}")
    if not isinstance(query, str):
        raise TypeError(f"query must be a str, got {query!r}")
    try:
        from timerheap.spark._plan.flink_sql import Ranked, parsed
    except ImportError as error:
        raise ImportError("sql() needs sqlglot; run pip install 'timerheap[sql]'") from error
    asked = parsed(query)
    wanted = asked.windows if isinstance(asked, Ranked) else asked
    df = spark.table(".".join(f"`{part.replace('`', '``')}`" for part in wanted.table))
    time, strategy = _time(df, wanted, watermark, processing_time)
    options = {"time_zone": time_zone, "channel": channel, "local": local, "max_parallelism": max_parallelism}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if df.isStreaming:
        given.setdefault("local", "arrow")  # "jvm" uses Spark's lateness rule
    where = None if wanted.where is None else F.expr(wanted.where)
    after_the_watermark = df.isStreaming and time is not None and given["local"] == "arrow"
    if where is not None and not after_the_watermark:
        df, where = df.where(where), None

    def windows(rows: DataFrame) -> Windows:
        made = _WINDOWS[wanted.windows](rows, time, watermark=strategy, **wanted.lengths, **given)
        return Windows(replace(made.source, where=where))

    if not isinstance(asked, Ranked):
        return _aggregated(df, wanted, windows)
    if asked.of_rows:
        return first_rows(windows(with_order(df, asked.rank)), asked.rank)
    timed = replace(wanted, columns=(*wanted.columns, (WINDOW_COLUMNS[-1], RANKED_TIME)))
    return first_results(_aggregated(df, timed, windows), asked.rank)


def _aggregated(df: DataFrame, wanted: WindowSelect, windows: Callable[[DataFrame], Windows]) -> DataFrame:
    """Return the results of a query that aggregates windows of a table."""
    keys = {name: name for name in wanted.keys}
    by = list(wanted.keys)
    if len(wanted.sets) > 1:
        keys = {name: f"{name} of the grouping set" for name in keys}  # aggregates see the row's own value
        by = [*keys.values(), GROUPING_SET]
        df = _expanded(df, keys, wanted.sets)
    aggregates = [_aggregate(call).alias(name) for name, call in wanted.calls.items()]
    result = windows(df).groupBy(*by).agg(*(aggregates or [F.count("*")]))  # agg() requires one
    result = result.withColumnsRenamed({there: name for name, there in keys.items()})
    if wanted.having is not None:
        result = result.where(F.expr(wanted.having))
    return result.select(*(_named(F.expr(text), text, name) for text, name in wanted.columns))


def _named(column: Column, text: str, name: str) -> Column:
    """Name a column of the result; mark the window's time, so that a view can use it as event time."""
    return (
        column.alias(name, metadata={WINDOW_TIME: True}) if text == WINDOW_COLUMNS[-1] else column.alias(name)
    )


class _WindowTimes(WatermarkGenerator):
    """Emits the window time as watermark, since all results of one window time arrive together."""

    def on_batch(self, max_timestamp: int, count: int, now: int | None) -> int:
        return max_timestamp


def _time(
    df: DataFrame, wanted: WindowSelect, watermark: object, processing_time: str | None
) -> tuple[str | None, object]:
    """Return the event-time column, None for processing time, and the watermark strategy."""
    table, time = ".".join(wanted.table), wanted.time
    strategy = watermark.get(table) if isinstance(watermark, Mapping) else watermark
    if time == processing_time:
        return None, strategy
    if time not in df.columns:
        if processing_time is None and strategy is None and df.isStreaming:
            return None, None
        raise ValueError(
            f"query: DESCRIPTOR must name a column of table {table}, got {time}; the columns are "
            f"{df.columns}. For windows of processing time pass a stream, no watermark for the table, and "
            f"processing_time={time!r}"
        )
    if strategy is None and df.schema[time].metadata.get(WINDOW_TIME):
        strategy = WatermarkStrategy.for_generator(_WindowTimes)
    if strategy is None:
        delay = spark_delay(df, time)
        if delay is None and df.isStreaming:
            raise TypeError(
                f"watermark must be a WatermarkStrategy for the streaming table {table}, got None; pass one "
                "such as WatermarkStrategy.for_bounded_out_of_orderness(5_000), like Flink's WATERMARK FOR"
            )
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(delay or 0)
    return time, strategy


def _expanded(df: DataFrame, keys: dict[str, str], sets: tuple[tuple[str, ...], ...]) -> DataFrame:
    """Copy each row into every grouping set, with the set's number and null for keys outside the set."""
    numbers = F.explode(F.array(*map(F.lit, range(len(sets)))))
    df = df.withColumn(GROUPING_SET, numbers)
    columns = {}
    for name, there in keys.items():
        named_column(df, "GROUP BY", name)
        having = [number for number, names in enumerate(sets) if name in names]
        columns[there] = F.when(quoted(GROUPING_SET).isin(having), quoted(name))
    return with_columns(df, columns)


def _aggregate(call: Call) -> Column:
    function: Callable[[Column | str], Column] = getattr(F, call.function)
    value = None if call.argument is None else F.expr(call.argument)
    if call.condition is not None:
        return function(F.when(F.expr(call.condition), F.lit(1) if value is None else value))
    return function("*" if value is None else value)
