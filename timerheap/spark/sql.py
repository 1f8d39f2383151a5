"""`sql`: windows in Flink's SQL, as it stands, on Spark's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from timerheap.spark._plan.arguments import named_column, quoted
from timerheap.spark._plan.grouped_windows import Windows
from timerheap.spark._plan.ranking import first_results, first_rows, with_order
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
_DELAY = "spark.watermarkDelayMs"  # what withWatermark() leaves in the column's metadata


def sql(
    spark: SparkSession,
    query: str,
    watermark: WatermarkStrategy | Mapping[str, WatermarkStrategy] | None = None,
    *,
    processing_time: str | None = None,
    time_zone: str | None = None,
    channel: str | None = None,
    local: str | None = None,
    max_parallelism: int | None = None,
) -> DataFrame:
    """Run a window aggregation that is written in Flink's SQL.

    ::

        SELECT window_start, window_end, k, COUNT(*) AS n
        FROM TABLE(CUMULATE(TABLE t, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '5' MINUTE))
        GROUP BY window_start, window_end, k

    is ``cumulate(spark.table("t"), "ts", 5_000, 300_000, ...).group_by("k").agg(F.count("*"))``, and what is
    selected of it.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    query : str
        One SELECT of TUMBLE, HOP, CUMULATE or SESSION, their arguments in order or by name, with GROUPING
        SETS, CUBE and ROLLUP; or the first rows of each window by ROW_NUMBER(): window Top-N and window
        deduplication. Tables are those of `spark`: temporary views of streams and batches, and tables.
    watermark : WatermarkStrategy, or dict of str to WatermarkStrategy
        What ``WATERMARK FOR`` says in Flink; a dict has it by the table's name. It may be left out of a
        batch, of a view whose DataFrame has Spark's own ``withWatermark()`` on the time, of a view of what
        sql() gave whose time is ``window_time``, and of windows of processing time.
    processing_time : str, optional
        What queries call the processing time (Flink's ``PROCTIME()``): ``DESCRIPTOR`` of it makes windows of
        processing time. By default it is each name that a streaming table has no column for, unless it has a
        `watermark`.
    local : {"jvm", "arrow"}, optional
        As of `hop`, but on a stream "arrow" by default, since a row must be late when Flink says so. "jvm" is
        faster, and has Spark's lateness: a late row counts where Flink drops it, and the other way round. A
        batch has no late rows, so there "jvm" is the default where it can do what is asked for.
    time_zone, channel, max_parallelism
        As of `hop`.

    Returns
    -------
    pyspark.sql.DataFrame
        The columns of the query.

    Raises
    ------
    ImportError
        If sqlglot is not installed: ``pip install 'timerheap[sql]'``.
    ValueError
        If the query has what is not supported, such as window joins and ORDER BY: it is named, with what
        would be right.

    Notes
    -----
    Words are Flink's, values are Spark's: scalar expressions are computed by Spark, ``AVG`` of integers is a
    double, and a window's bounds have the type of Spark's timestamps. Names of columns are case-sensitive in
    GROUP BY and DESCRIPTOR, as Flink's are. Rows that WHERE drops still move the watermark, as in Flink, but
    not with ``local="jvm"``. Windows of a view's ``window_time`` end with a later window of the view, where
    in Flink the watermark alone ends them.

    The semantics are those of Flink's window table functions and window aggregation.
    """
    if not isinstance(spark, SparkSession):
        raise TypeError(f"spark: {spark!r} is no pyspark.sql.SparkSession")
    if not isinstance(query, str):
        raise TypeError(f"query: {query!r} is no str")
    try:
        from timerheap.spark._plan.flink_sql import Ranked, parsed
    except ImportError as error:
        raise ImportError("sql() needs sqlglot: pip install 'timerheap[sql]'") from error
    asked = parsed(query)
    wanted = asked.windows if isinstance(asked, Ranked) else asked
    df = spark.table(".".join(f"`{part.replace('`', '``')}`" for part in wanted.table))
    time, strategy = _time(df, wanted, watermark, processing_time)
    options = {"time_zone": time_zone, "channel": channel, "local": local, "max_parallelism": max_parallelism}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if df.isStreaming:
        given.setdefault("local", "arrow")  # "jvm" has Spark's lateness
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
    return first_results(_aggregated(df, wanted, windows), asked.rank)


def _aggregated(df: DataFrame, wanted: WindowSelect, windows: Callable[[DataFrame], Windows]) -> DataFrame:
    """Return the results of a query that aggregates windows of a table."""
    keys = {name: name for name in wanted.keys}
    by = list(wanted.keys)
    if len(wanted.sets) > 1:
        keys = {name: f"{name} of the grouping set" for name in keys}  # aggregates see the row's own value
        by = [*keys.values(), GROUPING_SET]
        df = _expanded(df, keys, wanted.sets)
    aggregates = [_aggregate(call).alias(name) for name, call in wanted.calls.items()]
    result = windows(df).group_by(*by).agg(*(aggregates or [F.count("*")]))  # agg() wants one
    result = result.withColumnsRenamed({there: name for name, there in keys.items()})
    if wanted.having is not None:
        result = result.where(F.expr(wanted.having))
    return result.select(*(_named(F.expr(text), text, name) for text, name in wanted.columns))


def _named(column: Column, text: str, name: str) -> Column:
    """Name a column of the result; a window's time stays an event time, for the windows of a view."""
    return (
        column.alias(name, metadata={WINDOW_TIME: True}) if text == WINDOW_COLUMNS[-1] else column.alias(name)
    )


class _WindowTimes(WatermarkGenerator):
    """The watermark of results of windows: all that have a time come together, so it passes that time."""

    def on_batch(self, max_timestamp: int, count: int, now: int | None) -> int:
        return max_timestamp


def _time(
    df: DataFrame, wanted: WindowSelect, watermark: object, processing_time: str | None
) -> tuple[str | None, object]:
    """Give the column of the event time, None for processing time, and its watermark."""
    table, time = ".".join(wanted.table), wanted.time
    strategy = watermark.get(table) if isinstance(watermark, Mapping) else watermark
    if time == processing_time:
        return None, strategy
    if time not in df.columns:
        if processing_time is None and strategy is None and df.isStreaming:
            return None, None
        raise ValueError(
            f"query: DESCRIPTOR({time}): table {table} has no such column; it has {df.columns}. For windows "
            f"of processing time give a stream, no watermark of the table, and processing_time={time!r}"
        )
    if strategy is None and df.schema[time].metadata.get(WINDOW_TIME):
        strategy = WatermarkStrategy.for_generator(_WindowTimes)
    if strategy is None:
        delay = df.schema[time].metadata.get(_DELAY)
        if delay is None and df.isStreaming:
            raise TypeError(
                f"watermark: table {table} is a stream; give a WatermarkStrategy, such as "
                "WatermarkStrategy.for_bounded_out_of_orderness(5_000), as WATERMARK FOR does in Flink"
            )
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(delay or 0)
    return time, strategy


def _expanded(df: DataFrame, keys: dict[str, str], sets: tuple[tuple[str, ...], ...]) -> DataFrame:
    """Copy each row into every grouping set, with its number, and null for keys that it has not."""
    numbers = F.explode(F.array(*map(F.lit, range(len(sets)))))
    df = df.withColumn(GROUPING_SET, numbers)
    columns = {}
    for name, there in keys.items():
        named_column(df, "GROUP BY", name)
        having = [number for number, names in enumerate(sets) if name in names]
        columns[there] = F.when(quoted(GROUPING_SET).isin(having), quoted(name))
    return df.withColumns(columns)


def _aggregate(call: Call) -> Column:
    function: Callable[[Column | str], Column] = getattr(F, call.function)
    value = None if call.argument is None else F.expr(call.argument)
    if call.condition is not None:
        return function(F.when(F.expr(call.condition), F.lit(1) if value is None else value))
    return function("*" if value is None else value)
