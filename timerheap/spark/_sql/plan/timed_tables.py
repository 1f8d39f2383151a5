"""The tables of a query in Flink's SQL: how each is cut into windows, its time and its watermark."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, TimestampNTZType, TimestampType

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._changes.change_rows import BEFORE, INSERT, is_changelog
from timerheap.spark._changes.changes_inputs import StateOptions
from timerheap.spark._columns import (
    CHANGE_TYPE,
    CHANGED,
    COMMIT,
    KEPT,
    SEEN,
    WINDOW_BOUND,
    WINDOW_COLUMNS,
)
from timerheap.spark._plan.build import marked
from timerheap.spark._plan.computed_columns import Columns, spark_delay
from timerheap.spark._plan.event_time import EventTime, strategy_of
from timerheap.spark._plan.named_columns import ColumnOrName, backticks, quoted
from timerheap.spark._plan.schemas import arrow_schema
from timerheap.spark._plan.upstream import is_result
from timerheap.spark._sql.nodes import (
    PROCTIME,
    Matched,
    NestedQuery,
    Over,
    Table,
    Windowing,
    time_of_rows,
)
from timerheap.spark._sql.plan.called_aggregates import Functions
from timerheap.spark._sql.plan.upserts import Upserts
from timerheap.spark._sql.run.flink_delay import FlinkDelay
from timerheap.spark._sql.table_function import TableFunction
from timerheap.spark._tvf.window_plan import Source
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

_CLAUSES: dict[type, str] = {
    Windowing: "windows",
    Table: "ROW_NUMBER by time",
    Over: "a function OVER the rows",
    Matched: "MATCH_RECOGNIZE",
}


@dataclass(frozen=True)
class TimedTable:
    """A table cut into windows.

    arrives: whether its rows are processed as they arrive, and their time is the clock of their micro-batch
    """

    name: str
    source: Source
    arrives: bool = False

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
    upserts: Mapping[str, Upserts] = field(default_factory=dict)
    lead_within: int | None = None
    unbounded_matches: bool = False
    timed_out: bool = False
    lag_within: int | None = None
    forget_after: int | None = None
    functions: Functions = field(default_factory=dict)
    on_tables: Mapping[str, TableFunction] = field(default_factory=dict)
    frames: dict[tuple[str, ...], Callable[[], DataFrame]] = field(default_factory=dict)
    nested: Mapping[tuple[str, ...], NestedQuery] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)  # the tables of which `deleted` may say something
    _frames: dict[tuple[str, ...], DataFrame] = field(default_factory=dict)
    _changes: dict[tuple[str, ...], DataFrame] = field(default_factory=dict)

    @property
    def state_options(self) -> StateOptions:
        """What operators over changes are told of their state."""
        return StateOptions(max_parallelism=self.max_parallelism, forget_after=self.forget_after)

    def cut(self, node: Windowing | Table | Over | Matched) -> TimedTable:
        """Return a table cut into windows: those of the node, or of 1 ms, which are only its order."""
        name, df = ".".join(node.table), self.growing(_CLAUSES[type(node)], node.table)
        for bound in node.bounds:
            if bound in df.columns and WINDOW_BOUND not in df.schema[bound].metadata:
                raise ArgumentValueError(
                    f"query: table {name} must not have a column {bound}, which its windows have; rename it "
                    f"in a view: SELECT {bound} AS ..."
                )
        time, strategy = self.time_of(df, node)
        arrives = time is None and isinstance(node, (Over, Matched))
        if arrives:
            time, strategy = node.time, behind(0)
            df = df.withColumn(time, F.current_timestamp())
        source = Source.cut(
            df,
            EventTime(time, channel=self.channel),
            partial(_assigner, node, time is not None),
            strategy,
            self.time_zone,
            self.late,
            max_parallelism=self.max_parallelism,
        )
        return TimedTable(name, source, arrives)

    def time_of(
        self, df: DataFrame, node: Windowing | Table | Over | Matched
    ) -> tuple[str | None, WatermarkStrategy | None]:
        """Return the event-time column, None for processing time, and the watermark strategy.

        A nested query that projects and filters a table has the watermark of that; others follow operators.
        """
        nested = self.nested.get(node.table)
        if nested is None:
            return time_of_table(df, node, self.watermark, self.processing_time)
        given = self.watermark.get(nested.name) if isinstance(self.watermark, Mapping) else None
        base = time_of_rows(nested.node, node.time)
        if given is None and base is not None:
            time, strategy = self.time_of(self.frame(base.table), base)
            return (None if time is None else node.time), strategy
        return time_of_table(df, node, {".".join(node.table): given}, self.processing_time)

    def frame(self, table: tuple[str, ...]) -> DataFrame:
        """Return a table as it is."""
        df = self._frames.get(table)  # once, so that Spark has one source of a stream
        if df is None:
            make = self.frames.get(table)
            df = self.spark.table(".".join(map(backticks, table))) if make is None else make()
            arrow_schema(f"table {'.'.join(table)}", df.schema)
            self._frames[table] = df
        return df

    def growing(self, clause: str, table: tuple[str, ...], instead: str = "") -> DataFrame:
        """Return a table as it is; raise if its rows change, which a clause does not take."""
        name, df = ".".join(table), self.frame(table)
        if name in self.upserts:
            df = df.withColumn(CHANGE_TYPE, F.lit(INSERT))
        return growing(f"{clause} of table {name}", df, instead)

    def deleted_of(self, table: str) -> str | None:
        """Return which rows of a table end the one before them, None if nothing is said of it."""
        self.asked.add(table)
        return (self.deleted or {}).get(table)

    def is_changelog(self, table: tuple[str, ...]) -> bool:
        return is_changelog(self.frame(table))

    def versions(self, table: tuple[str, ...]) -> DataFrame:
        """Return the rows of a table as versions; those of a changelog begin a version, or end one."""
        df = self.frame(table)
        if is_changelog(df):
            return df.where(quoted(CHANGE_TYPE) != BEFORE)
        return self.growing("an as-of join", table)

    def changes(self, table: tuple[str, ...]) -> DataFrame:
        """Return the rows of a table, with `CHANGED` if it is a changelog, or one is made of its upserts."""
        df = self._changes.get(table)
        if df is None:
            name, df = ".".join(table), self.frame(table)
            if name in self.upserts:
                time = time_of_versions(df, table, self.watermark)
                df = self.upserts[name].changes(df, name, time, self.deleted_of(name), self.state_options)
            if is_changelog(df):
                names = [name for name in df.columns if name not in (CHANGE_TYPE, *COMMIT)]
                df = df.select(*map(quoted, names), quoted(CHANGE_TYPE).alias(CHANGED))
            self._changes[table] = df
        return df

    def grows_by_time(self, node: Table) -> bool:
        """Return whether a table only grows, and a column that orders it is its time."""
        df = self.frame(node.table)
        if self.late == "emit":  # which changes do not have
            return True
        if ".".join(node.table) in self.upserts or is_changelog(df):
            return False
        if time_of_versions(df, node.table, self.watermark) not in (None, node.time):
            return False
        if node.time not in df.columns:  # processing time
            return True
        field = df.schema[node.time]
        if not isinstance(field.dataType, (LongType, TimestampType, TimestampNTZType)):
            return False
        if not df.isStreaming or WINDOW_BOUND in field.metadata or spark_delay(df, node.time) is not None:
            return True
        known = time_of_versions(df, node.table, self.watermark)
        return known == node.time or (known is None and not isinstance(field.dataType, LongType))

    def is_clock(self, table: tuple[str, ...], time: str) -> bool:
        """Return whether a name is that of the processing time of a table."""
        df, name = self.frame(table), ".".join(table)
        if time == self.processing_time:
            return True
        known = self.watermark.get(name) if isinstance(self.watermark, Mapping) else self.watermark
        return self.processing_time is None and known is None and df.isStreaming and time not in df.columns

    def add_clock(self, table: tuple[str, ...], time: str) -> None:
        """Let rows of a table have the time of their micro-batch as a column."""
        df = self.growing("processing time", table)
        if time not in df.columns:
            self._frames[table] = df.withColumn(time, F.current_timestamp())

    def has_time(self, df: DataFrame, table: tuple[str, ...], time: str) -> bool:
        """Return whether rows only come, and a column is their event time."""
        name = ".".join(table)
        if name in self.upserts or is_changelog(df) or time not in df.columns:
            return False
        field = df.schema[time]
        if WINDOW_BOUND in field.metadata or spark_delay(df, time) is not None:
            return True
        known = time_of_versions(df, table, self.watermark)
        if known is not None or not isinstance(field.dataType, (TimestampType, TimestampNTZType)):
            return known == time
        given = self.watermark.get(name) if isinstance(self.watermark, Mapping) else self.watermark
        return given is not None or is_result(df) or not df.isStreaming

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

    def rows_of_nested(self, node: Matched, df: DataFrame, in_order: bool) -> tuple[DataFrame, TimedTable]:
        """Return the rows of a nested query as those of a table with the name that it has in the query.

        in_order: whether all rows of one time come together, those of earlier times before
        """
        watermark, named = self.watermark, isinstance(self.watermark, Mapping)
        if isinstance(watermark, Mapping):
            watermark = watermark.get(".".join(node.table))
        times = [one.metadata.get(WINDOW_BOUND) for one in df.schema if one.name == node.time]
        if not named or watermark is None:  # a watermark for all tables is of those inside
            of_windows = times == [WINDOW_COLUMNS[-1]]
            watermark = behind(0) if in_order or of_windows else watermark
        own = replace(self, watermark=watermark, channel=None, processing_time=None)
        own._frames = {node.table: df}
        return own.rows(node)


def growing(what: str, df: DataFrame, instead: str = "") -> DataFrame:
    """Return rows of which none is taken back; raise for those that change, of which `what` is not known."""
    if is_changelog(df):
        instead = instead or (
            "write GROUP BY of a column, such as DATE_TRUNC('HOUR', ts), a Top-N or a JOIN, whose results "
            "are corrected; or query the table that the changes make"
        )
        raise ArgumentValueError(
            f"query: {what}, whose rows change, is not supported, as in Flink; {instead}"
        )
    return df


def _assigner(
    node: Windowing | Table | Over | Matched, event_time: bool, zone: str
) -> SliceAssigner | SessionUnsliceAssigner:
    if not isinstance(node, Windowing):
        return TumblingSliceAssigner(1, 0, zone, event_time=event_time)
    if node.function in _ASSIGNERS:
        return _ASSIGNERS[node.function](**node.lengths, time_zone=zone, event_time=event_time)
    if not event_time:
        raise ArgumentValueError(
            "query: SESSION of processing time is not supported; use timerheap.spark.window_operator()"
        )
    return SessionUnsliceAssigner(node.lengths["gap"], zone)


def behind(delay: int) -> WatermarkStrategy:
    """Return the strategy of WATERMARK FOR with a delay in ms."""
    return WatermarkStrategy.for_generator(partial(FlinkDelay, delay))._with("_delay", delay - 1)


def time_of_versions(df: DataFrame, table: tuple[str, ...], watermark: Any) -> str | None:
    """Return the time column of a table that a query need not name, if its watermark says it."""
    text = watermark.get(".".join(table)) if isinstance(watermark, Mapping) else watermark
    if isinstance(text, str):
        found = re.match(r"(?is)\s*(?:watermark\s+for\s+)?`?(\w+)`?\s*(?:-|as\b|$)", text)
        if found is not None and found[1] in df.columns:
            return found[1]
    column: str | None = Columns(f"table {table[-1]}", df).event_time("watermark", None)
    return column


def time_of_table(
    df: DataFrame, node: Windowing | Table | Over | Matched, watermark: Any, processing_time: str | None
) -> tuple[str | None, Any]:
    """Return the event-time column, None for processing time, and the watermark strategy."""
    table, time = ".".join(node.table), node.time
    strategy = watermark.get(table) if isinstance(watermark, Mapping) else watermark
    if time in (processing_time, PROCTIME):
        if not df.isStreaming:
            raise ArgumentValueError(
                f"query: {time} is processing time, which table {table}, a batch, does not have; pass a "
                "stream, or name an event-time column"
            )
        return None, None if time == PROCTIME else strategy
    if time not in df.columns:
        if processing_time is None and strategy is None and df.isStreaming:
            return None, None
        raise ArgumentValueError(
            f"query: the time must be a column of table {table}, got {time}; the columns are {df.columns}. "
            f"For processing time pass a stream, no watermark for the table, and processing_time={time!r}"
        )
    if not isinstance(node, Windowing):
        _expect_own_time(df, node.table, time, watermark)
    type_ = df.schema[time].dataType
    if not isinstance(type_, (LongType, TimestampType, TimestampNTZType)):
        raise ArgumentValueError(
            f"query: the time of table {table} must be a timestamp, or a bigint of milliseconds, got {time} "
            f"of type {type_.simpleString()}; order by the time first, or rank the rows by any order: "
            "ROW_NUMBER() OVER (PARTITION BY k ORDER BY x) AS n ... WHERE n <= 3"
        )
    if isinstance(strategy, str) and time_of_versions(df, node.table, strategy) not in (None, time):
        if df.isStreaming:
            raise ArgumentValueError(
                f"query: the time of table {table} must be that of its watermark {strategy!r}, got {time}; "
                "pass a dict with the watermark of each table"
            )
        strategy = None  # a batch may be in any order
    if isinstance(strategy, str):  # "ts - INTERVAL '5' SECOND", perhaps after WATERMARK FOR ts AS
        name = f"`?{re.escape(time)}`?"
        strategy = re.sub(rf"(?is)^\s*(watermark\s+for\s+{name}\s+as\s+)?{name}\s*(-|$)", "", strategy)
        strategy = strategy.strip() or timedelta()
    made = strategy_of("watermark", strategy)
    if made is not strategy:
        strategy = behind(made._delay)
    if strategy is None and df.isStreaming and is_result(df):
        return time, None  # the watermark is that of the operator
    if strategy is None and df.schema[time].metadata.get(WINDOW_BOUND) == WINDOW_COLUMNS[-1]:
        strategy = behind(0)  # since all results of one window time arrive together
    if strategy is None:
        delay = spark_delay(df, time)
        if delay is None and df.isStreaming:
            given = f"one for {list(watermark)}" if isinstance(watermark, Mapping) else "None"
            raise ArgumentTypeError(
                f"watermark must be a WatermarkStrategy for the streaming table {table}, got {given}; pass "
                "one such as WatermarkStrategy.for_bounded_out_of_orderness(5_000), or "
                f"\"{time} - INTERVAL '5' SECOND\", like Flink's WATERMARK FOR"
            )
        strategy = behind(delay or 0)
    return time, strategy


def _expect_own_time(df: DataFrame, table: tuple[str, ...], time: str, watermark: Any) -> None:
    """Raise if the column that orders a stream is not its time: rows would be late by any other column."""
    field = df.schema[time]
    if not df.isStreaming or WINDOW_BOUND in field.metadata or spark_delay(df, time) is not None:
        return
    known, shown = time_of_versions(df, table, watermark), f"query: streaming table {'.'.join(table)}"
    if known not in (None, time):
        raise ArgumentValueError(
            f"{shown} must be ordered by its time {known!r}, got {time!r}; query a batch instead"
        )
    if known is None and isinstance(field.dataType, LongType):
        raise ArgumentValueError(
            f"{shown} must be ordered by its time, got the bigint {time!r}, of which nothing says that it is "
            f"one; if it is, say so in watermark: \"{time} - INTERVAL '5' SECOND\""
        )
