"""`sql`: Flink's window queries as text, with their Top-N."""

from __future__ import annotations

from bisect import insort_left, insort_right
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from timerheap.functions import AggregateFunction
from timerheap.spark._compat import on_connect, to_arrow_type, with_columns
from timerheap.spark._plan.aggregates import UserAggregate
from timerheap.spark._plan.arguments import named_column, quoted
from timerheap.spark._plan.named_columns import ColumnOrName, spark_delay
from timerheap.spark._windows import Windows, cumulate, hop, session_window, tumble
from timerheap.spark._worker.window_runner import GROUPING_SET, WINDOW_COLUMNS, WINDOW_TIME
from timerheap.watermarks import WatermarkGenerator, WatermarkStrategy

if TYPE_CHECKING:
    from timerheap.spark._plan.flink_sql import Call, Order, Rank, WindowSelect

RANKED_TIME = "time of the ranked window"
"""Name of a column with the window's time, last in the results that `first_results` ranks."""

_ORDER, _BY = "order of the rank ", "key of the rank "  # followed by a number


def first_results(results: DataFrame, rank: Rank) -> DataFrame:
    """Return the first results of each window, with their ranks.

    Needs no state, since all results of a window are in one micro-batch. Where clocks go forward, windows
    of the same start and end differ in `RANKED_TIME`.
    """
    by = {
        f"{_BY}{at}": quoted(name) for at, name in enumerate([*WINDOW_COLUMNS[:2], RANKED_TIME, *rank.keys])
    }
    order = _order(rank)
    rows = results.withColumns(by | order)
    names = list(map(quoted, by))
    if not rows.isStreaming:
        columns = [_sorted(quoted(name), one) for name, one in zip(order, rank.order, strict=True)]
        number = F.row_number().over(Window.partitionBy(*names).orderBy(*columns))
        ranked = rows.withColumn(rank.name, number.cast("bigint")).where(quoted(rank.name) <= rank.limit)
    else:
        first = _first(list(order), rank)
        schema = StructType([*rows.schema, StructField(rank.name, LongType())])
        ranked = rows.groupBy(*names).applyInArrow(
            lambda table: first(table), schema
        )  # Spark counts the parameters
    return _selected(ranked, results.columns[:-1], rank)


def with_order(df: DataFrame, rank: Rank) -> DataFrame:
    """Add the columns by which rows are ranked."""
    return df.withColumns(_order(rank))


def first_rows(windows: Windows, rank: Rank) -> DataFrame:
    """Return the first rows of each window, with their ranks; the DataFrame must come from `with_order`."""
    rows = windows._source.df
    names = [name for name in rows.columns if name not in _order(rank)]
    type_ = ArrayType(rows.schema)
    called = f"first {rank.limit} by {', '.join(map(repr, rank.order))}"  # part of the checkpoint
    by = [(one.text.strip("`").lower(), one.descending) for one in rank.order]
    keeps_last = rank.limit == 1 and by == [(str(windows._source.time).lower(), True)]  # a deduplication
    function, accumulator = TopRows(rows.columns, rank, keeps_last), to_arrow_type(type_)
    top = UserAggregate(function, tuple(rows.columns), type_, accumulator, called)
    result = windows.groupBy(*rank.keys).agg(top)
    exploded = result.select(*WINDOW_COLUMNS, F.posexplode(quoted(called)).alias("at", "row"))
    flat = exploded.select(
        *(F.col("row").getField(name).alias(name) for name in names),
        *WINDOW_COLUMNS,
        (F.col("at") + 1).cast("bigint").alias(rank.name),
    )
    return _selected(flat, [*names, *WINDOW_COLUMNS], rank)


def _selected(ranked: DataFrame, names: list[str], rank: Rank) -> DataFrame:
    """Apply the SELECT lists of the inner and the outer query, and the WHERE of the outer."""
    columns: list[Column] = []
    for text, name in rank.items:
        if text == "*":
            columns += map(quoted, names)
        else:
            columns.append(quoted(name) if name == rank.name else F.expr(text).alias(name))
    result = ranked.select(*columns)
    if rank.where is not None:
        result = result.where(F.expr(rank.where))
    return result.select(*("*" if text == "*" else F.expr(text).alias(name) for text, name in rank.columns))


def _order(rank: Rank) -> dict[str, Column]:
    return {f"{_ORDER}{at}": F.expr(one.text) for at, one in enumerate(rank.order)}


def _sorted(column: Column, order: Order) -> Column:
    if order.descending:
        return column.desc_nulls_first() if order.nulls_first else column.desc_nulls_last()
    return column.asc_nulls_first() if order.nulls_first else column.asc_nulls_last()


def _first(names: list[str], rank: Rank) -> Callable[[pa.Table], pa.Table]:
    """Return a function that ranks the first rows of a table, with nulls and NaN sorted as in Spark."""
    orders, limit, name = rank.order, rank.limit, rank.name

    def first(table: pa.Table) -> pa.Table:
        columns: dict[str, Any] = {}
        keys = []
        for at, (column, order) in enumerate(zip(names, orders, strict=True)):
            values = table.column(column)
            columns[f"null{at}"] = values.is_null()
            keys.append((f"null{at}", "descending" if order.nulls_first else "ascending"))
            direction = "descending" if order.descending else "ascending"
            if pa.types.is_floating(values.type):
                columns[f"nan{at}"] = pc.is_nan(values)
                keys.append((f"nan{at}", direction))
            columns[f"value{at}"] = values
            keys.append((f"value{at}", direction))
        chosen = table.take(pc.sort_indices(pa.table(columns), keys)[:limit])
        return chosen.append_column(pa.field(name, pa.int64()), pa.array(np.arange(1, len(chosen) + 1)))

    return first


class TopRows(AggregateFunction):
    """Keeps the first rows of a window, as a sorted list of structs.

    The columns by which rows are ranked are the last of `names`. Of equal rows the first to arrive comes
    first; with `keeps_last` the last, as in Flink's deduplication by descending time.
    """

    def __init__(self, names: list[str], rank: Rank, keeps_last: bool) -> None:
        self._names, self._limit = names, rank.limit
        self._insort = insort_left if keeps_last else insort_right
        self._orders = list(zip(names[-len(rank.order) :], rank.order, strict=True))

    def create_accumulator(self) -> list[dict[str, Any]]:
        """Return an empty list."""
        return []

    def add(self, value: tuple[Any, ...], accumulator: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Insert a row in order."""
        return self._put([dict(zip(self._names, value, strict=True))], accumulator)

    def merge(self, acc_a: list[dict[str, Any]], acc_b: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the first rows of both."""
        return self._put(acc_b, acc_a)

    def get_result(self, accumulator: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows."""
        return accumulator

    def _put(self, rows: list[dict[str, Any]], into: list[dict[str, Any]]) -> list[dict[str, Any]]:
        kept = list(into)
        for row in rows:
            self._insort(kept, row, key=cmp_to_key(self._compare))
        return kept[: self._limit]

    def _compare(self, one: dict[str, Any], other: dict[str, Any]) -> int:
        for name, order in self._orders:
            left, right = one[name], other[name]
            if left is None or right is None:
                found = (left is not None) - (right is not None)
                if not order.nulls_first:
                    found = -found
            else:
                found = (_number(left) > _number(right)) - (_number(left) < _number(right))
                if order.descending:
                    found = -found
            if found:
                return found
        return 0


def _number(value: Any) -> Any:
    """Return a value that compares as in Spark, where NaN is the largest number."""
    return (1, 0.0) if value != value else (0, value)


_WINDOWS: dict[str, Callable[..., Windows]] = {
    "tumble": tumble,
    "hop": hop,
    "cumulate": cumulate,
    "session": session_window,
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
    case-sensitive, as in Flink. Rows that WHERE drops still advance the watermark, as in Flink. Windows over
    the ``window_time`` of a view end with a later window of the view, while in Flink the watermark ends them.

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
    options = {"time_zone": time_zone, "channel": channel, "max_parallelism": max_parallelism}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    where = None if wanted.where is None else F.expr(wanted.where)
    if where is not None and not (df.isStreaming and time is not None):  # no watermark to advance
        df, where = df.where(where), None

    def windows(rows: DataFrame) -> Windows:
        made = _WINDOWS[wanted.windows](rows, time, watermark=strategy, **wanted.lengths, **given)
        return Windows(replace(made._source, where=where))

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
