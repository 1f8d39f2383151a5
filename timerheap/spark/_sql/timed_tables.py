"""The tables of a query in Flink's SQL: how each is cut into windows, its time and its watermark."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from timerheap.spark._columns import KEPT, SEEN, WINDOW_COLUMNS
from timerheap.spark._plan.arguments import (
    ColumnOrName,
    Columns,
    EventTime,
    arrow_schema,
    quoted,
    spark_delay,
    strategy_of,
)
from timerheap.spark._plan.build import marked
from timerheap.spark._sql.nodes import PROCTIME, Matched, Over, Table, Windowing
from timerheap.spark._sql.row_functions import FlinkDelay
from timerheap.spark._windows.window_runner import WINDOW_BOUND
from timerheap.spark._windows.windows import Source
from timerheap.tvf.slices import (
    CumulativeSliceAssigner,
    HoppingSliceAssigner,
    SessionUnsliceAssigner,
    SliceAssigner,
    TumblingSliceAssigner,
)
from timerheap.watermarks import WatermarkStrategy

_ASSIGNERS: dict[str, Callable[..., SliceAssigner]] = {
    "tumble": TumblingSliceAssigner,
    "hop": HoppingSliceAssigner,
    "cumulate": CumulativeSliceAssigner,
}


@dataclass(frozen=True)
class TimedTable:
    """A table cut into windows."""

    name: str
    source: Source

    @property
    def rows(self) -> DataFrame:
        """The marked rows; in `SEEN` they have the times that advance the watermark."""
        source, time = self.source, self.source.event_time
        if time is None:
            return source.df
        return marked(source).withColumn(SEEN, quoted(time))


@dataclass(eq=False)
class Tables:
    """The tables of one query, and the options of `sql`, which apply to all of them."""

    spark: SparkSession
    watermark: object
    processing_time: str | None
    time_zone: str
    channel: ColumnOrName | None = None
    late: str = "drop"
    max_parallelism: int | None = None
    deleted: Mapping[str, str] | None = None
    lead_within: int | None = None
    unbounded_matches: bool = False
    timed_out: bool = False
    _frames: dict[tuple[str, ...], DataFrame] = field(default_factory=dict)

    def cut(self, node: Windowing | Table | Over | Matched) -> TimedTable:
        """Return a table cut into windows: those of the node, or of 1 ms, which are only its order."""
        name, df = ".".join(node.table), self.frame(node.table)
        for bound in node.bounds:
            if bound in df.columns and WINDOW_BOUND not in df.schema[bound].metadata:
                raise ValueError(
                    f"query: table {name} must not have a column {bound}, which its windows have; rename it "
                    f"in a view: SELECT {bound} AS ..."
                )
        time, strategy = time_of_table(df, node, self.watermark, self.processing_time)
        source = Source.cut(
            df,
            EventTime(time, channel=self.channel),
            partial(_assigner, node, time is not None),
            strategy,
            self.time_zone,
            self.late,
            max_parallelism=self.max_parallelism,
        )
        return TimedTable(name, source)

    def frame(self, table: tuple[str, ...]) -> DataFrame:
        """Return a table as it is."""
        df = self._frames.get(table)  # once, so that Spark has one source of a stream
        if df is None:
            df = self.spark.table(".".join(f"`{part.replace('`', '``')}`" for part in table))
            arrow_schema(f"table {'.'.join(table)}", df.schema)
            self._frames[table] = df
        return df

    def rows(self, node: Table | Over | Matched) -> tuple[DataFrame, TimedTable]:
        """Return the rows of a table with their marks, and the table."""
        table = self.cut(node)
        rows, time = table.rows.drop(SEEN), table.source.event_time
        if node.where is None:
            return rows, table
        if time is None:  # there is no watermark to advance
            return rows.where(F.expr(node.where)), table
        rows = rows.withColumn(KEPT, F.coalesce(F.expr(node.where), F.lit(False)))
        return rows.where(quoted(KEPT) | quoted(time).isNotNull()), table


def _assigner(
    node: Windowing | Table | Over | Matched, event_time: bool, zone: str
) -> SliceAssigner | SessionUnsliceAssigner:
    if not isinstance(node, Windowing):
        return TumblingSliceAssigner(1, 0, zone, event_time=event_time)
    if node.function in _ASSIGNERS:
        return _ASSIGNERS[node.function](**node.lengths, time_zone=zone, event_time=event_time)
    if not event_time:
        raise ValueError(
            "query: SESSION of processing time is not supported; use timerheap.spark.window_operator()"
        )
    return SessionUnsliceAssigner(node.lengths["gap"], zone)


def _behind(delay: int) -> WatermarkStrategy:
    return WatermarkStrategy.for_generator(partial(FlinkDelay, delay))._with("_delay", delay - 1)


def time_of_versions(df: DataFrame, table: tuple[str, ...], watermark: Any) -> str | None:
    """Return the time column of a table that a query need not name, if its watermark says it."""
    text = watermark.get(".".join(table)) if isinstance(watermark, Mapping) else watermark
    if isinstance(text, str):
        found = re.match(r"(?is)\s*(?:watermark\s+for\s+)?`?(\w+)`?\s*(?:-|as\b|$)", text)
        if found is not None and found[1] in df.columns:
            return found[1]
    return Columns(f"table {table[-1]}", df).event_time("watermark", None)


def time_of_table(
    df: DataFrame, node: Windowing | Table | Over | Matched, watermark: Any, processing_time: str | None
) -> tuple[str | None, Any]:
    """Return the event-time column, None for processing time, and the watermark strategy."""
    table, time = ".".join(node.table), node.time
    strategy = watermark.get(table) if isinstance(watermark, Mapping) else watermark
    if time in (processing_time, PROCTIME):
        if not df.isStreaming:
            raise ValueError(
                f"query: {time} is processing time, which table {table}, a batch, does not have; pass a "
                "stream, or name an event-time column"
            )
        return None, None if time == PROCTIME else strategy
    if time not in df.columns:
        if processing_time is None and strategy is None and df.isStreaming:
            return None, None
        raise ValueError(
            f"query: the time must be a column of table {table}, got {time}; the columns are {df.columns}. "
            f"For processing time pass a stream, no watermark for the table, and processing_time={time!r}"
        )
    if not isinstance(node, Windowing):
        _expect_time(df, node.table, time, watermark)
    if isinstance(strategy, str):  # "ts - INTERVAL '5' SECOND", perhaps after WATERMARK FOR ts AS
        name = f"`?{re.escape(time)}`?"
        strategy = re.sub(rf"(?is)^\s*(watermark\s+for\s+{name}\s+as\s+)?{name}\s*(-|$)", "", strategy)
        strategy = strategy.strip() or timedelta()
    made = strategy_of("watermark", strategy)
    if made is not strategy:
        strategy = _behind(made._delay)
    if strategy is None and df.schema[time].metadata.get(WINDOW_BOUND) == WINDOW_COLUMNS[-1]:
        strategy = _behind(0)  # since all results of one window time arrive together
    if strategy is None:
        delay = spark_delay(df, time)
        if delay is None and df.isStreaming:
            given = f"one for {list(watermark)}" if isinstance(watermark, Mapping) else "None"
            raise TypeError(
                f"watermark must be a WatermarkStrategy for the streaming table {table}, got {given}; pass "
                "one such as WatermarkStrategy.for_bounded_out_of_orderness(5_000), or "
                f"\"{time} - INTERVAL '5' SECOND\", like Flink's WATERMARK FOR"
            )
        strategy = _behind(delay or 0)
    return time, strategy


def _expect_time(df: DataFrame, table: tuple[str, ...], time: str, watermark: Any) -> None:
    """Raise if the column that orders a stream is not its time: rows would be late by any other column."""
    field = df.schema[time]
    if not df.isStreaming or WINDOW_BOUND in field.metadata or spark_delay(df, time) is not None:
        return
    known, shown = time_of_versions(df, table, watermark), f"query: streaming table {'.'.join(table)}"
    if known not in (None, time):
        raise ValueError(
            f"{shown} must be ordered by its time {known!r}, got {time!r}; query a batch instead"
        )
    if known is None and isinstance(field.dataType, LongType):
        raise ValueError(
            f"{shown} must be ordered by its time, got the bigint {time!r}, of which nothing says that it is "
            f"one; if it is, say so in watermark: \"{time} - INTERVAL '5' SECOND\""
        )
