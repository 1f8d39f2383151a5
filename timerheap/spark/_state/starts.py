"""How a query starts from the state of another, or from tables: split by the key groups that it has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType, TimestampType

from timerheap.spark._columns import INPUT, SIDES, TIME, TIMER, VALUE, added_name
from timerheap.spark._compat import nullable
from timerheap.spark._group.checkpoint import OWN, USER_STATE
from timerheap.spark._group.key_group import KeyGroup, expiry_namespace
from timerheap.spark._group.watermark import InputClock, StoredClock, decode_clock, encode_clock
from timerheap.spark._plan.arguments import map_batches, quoted
from timerheap.spark._plan.build import Start, hashed
from timerheap.spark._query import Query
from timerheap.spark._state.checkpoint_reader import CheckpointState, row_columns
from timerheap.spark._state.initial_state import InitialState
from timerheap.spark._state.state_tables import (
    EVENT_TIME,
    INITIAL,
    PROCESSING_TIME,
    ClockSplitter,
    ContentsTable,
    RowTable,
    Splits,
    Splitter,
    TableSplitter,
    Ttl,
    timer_entries,
)
from timerheap.spark._worker.driver_mail import Mail
from timerheap.spark._worker.operator import Rehearsal
from timerheap.spark._worker.spark_store import LEDGER
from timerheap.timer import MIN_WATERMARK


@dataclass(frozen=True)
class _FromCheckpoint:
    """The state of another query; see `timerheap.spark._plan.build.Start`."""

    state: CheckpointState

    def group(self, query: Query) -> KeyGroup:
        """Return a group with the keys and states of the checkpoint, without contents, if the query fits."""
        group = KeyGroup(query.layout)
        for kind, name, schema in self.state._survey.parts:
            if kind in OWN:
                raise ValueError(
                    "initial_state must be the state of process() or process_two(), got that of "
                    f"{self.state.checkpoint!r}, which has {name}"
                )
            name = query.rename_state.get(name, name)
            if kind < USER_STATE or (name not in query.drop_state and name not in group.states):
                group.part(kind, name, schema).replay(pa.RecordBatch.from_pylist([], schema))
        return group.loaded()

    def partitions(
        self, query: Query, letters: Mail, rehearsal: Rehearsal, group: KeyGroup | None
    ) -> GroupedData:
        """Return the state split by the key groups of a new query, grouped as its packed rows are."""
        splitter = Splitter(query)
        groups = self.state._chunks.where(F.col("kind") != LEDGER)
        split = groups.groupBy("label").applyInArrow(lambda chunks: splitter(chunks), INITIAL)
        return split.groupBy("label")


@dataclass(frozen=True)
class _FromTables:
    """Tables of states, timers and rows; see `timerheap.spark._plan.build.Start`."""

    initial: InitialState
    spark: SparkSession

    def group(self, query: Query) -> KeyGroup:
        return KeyGroup(query.layout)

    def partitions(
        self, query: Query, letters: Mail, rehearsal: Rehearsal, group: KeyGroup | None
    ) -> GroupedData:
        """Return tables split by the key groups of a new query, grouped as its packed rows are."""
        assert group is not None
        return _split_tables(self.initial, query, self.spark, rehearsal, group)


def start_of(initial_state: object, df: DataFrame) -> Start | None:
    """Return what a query of `df` starts from, checked."""
    if initial_state is None:
        return None
    if not isinstance(initial_state, (CheckpointState, InitialState)):
        raise TypeError(
            "initial_state must be what timerheap.spark.read_checkpoint(spark, checkpoint) returns, or a "
            f"timerheap.spark.InitialState, got {initial_state!r}"
        )
    if not df.isStreaming:
        what = repr(initial_state)
        if isinstance(initial_state, CheckpointState):
            what = f"that of {initial_state.checkpoint!r}"
        raise ValueError(f"initial_state must be None for a batch DataFrame, got {what}")
    if isinstance(initial_state, CheckpointState):
        return _FromCheckpoint(initial_state)
    return _FromTables(initial_state, df.sparkSession)


def _split_tables(
    initial: InitialState, query: Query, spark: SparkSession, rehearsal: Rehearsal, group: KeyGroup
) -> GroupedData:
    fields = [field.with_name(name) for field, name in zip(query.layout.key_fields, query.key, strict=True)]
    key = dict(zip(query.key, query.key_columns, strict=True))

    def split(argument: str, df: DataFrame, columns: dict[str, Column], table: Splits) -> DataFrame:
        own = {
            name: _column(argument, df, shown, query.rows[name].dataType)
            for name, shown in key.items()
            if name not in columns
        }
        rows = df.select(*(column.alias(name) for name, column in (own | columns).items()))
        splitter = TableSplitter(query.max_parallelism, fields, table)
        return map_batches(hashed(rows, query.key), splitter, INITIAL)

    clock = encode_clock(StoredClock(MIN_WATERMARK, None))
    if initial.watermarks is not None:
        clock = _clock(initial.watermarks)
    parts = [map_batches(spark.range(1), ClockSplitter(query.max_parallelism, clock), INITIAL)]
    for name, df in initial.states.items():
        if name in query.drop_state:
            continue
        argument, state = f"states[{name!r}]", group.states.get(name)
        if state is None:
            raise ValueError(
                f"states must have the names of the function's states, {sorted(group.states)}, got {name!r}"
            )
        value = _added(query, argument, df, "value", from_arrow_type(state.type, True))
        table = ContentsTable(
            name, state.shape, state.type, state.schema, _ttl(rehearsal, name), expiry_namespace(name)
        )
        parts.append(split(argument, df, {VALUE: value}, table))
    if initial.timers is not None:
        columns = dict(zip(TIMER, _timer_columns(query, initial.timers), strict=True))
        parts.append(split("timers", initial.timers, columns, timer_entries))
    if initial.buffered_rows is not None:
        if query.order != "event_time" or query.event_time is None:
            raise ValueError('buffered_rows must be None unless order is "event_time", got a DataFrame')
        columns = _row_columns(query, initial.buffered_rows)
        waiting = RowTable(group.rows.schema, query.event_time, decode_clock(clock).watermark)
        parts.append(split("buffered_rows", initial.buffered_rows, columns, waiting))
    return reduce(DataFrame.unionAll, parts).groupBy("label")


def _ttl(rehearsal: Rehearsal, name: str) -> Ttl | None:
    config = rehearsal.times_to_live.get(name)
    if config is None:
        return None
    if rehearsal.keeps_expiries:
        return Ttl("expires", 0, False)
    event_time = config.get_ttl_time_characteristic() is config.TtlTimeCharacteristic.EventTime
    return Ttl("at", config._ttl, event_time)


def _column(argument: str, df: DataFrame, name: str, type_: DataType | None = None, why: str = "") -> Column:
    """Return a column of a table, which must be of a type, unless that is None; errors say `why` its name."""
    if name not in df.columns:
        raise ValueError(f"{argument} must have a column {name!r}{why}, got the columns {df.columns}")
    found = df.schema[name].dataType
    if type_ is not None and _nullable(found) != _nullable(type_):
        raise ValueError(
            f"{argument} must have a column {name!r} of type {type_.simpleString()}, as in the query, got "
            f"{found.simpleString()}; cast it"
        )
    return quoted(name)


def _added(query: Query, argument: str, df: DataFrame, own: str, type_: DataType) -> Column:
    """Return a column of a table that is none of the user's."""
    name = added_name(own, query.key_columns)
    why = "" if name == own else f", since {own!r} is a key column"
    return _column(argument, df, name, type_, why)


def _nullable(type_: DataType) -> DataType:
    return nullable(StructType([StructField("", type_)]))


def _timer_columns(query: Query, df: DataFrame) -> list[Column]:

    def has(name: str) -> bool:
        return added_name(name, query.key_columns) in df.columns

    def column(name: str, type_: DataType) -> Column:
        return _added(query, "timers", df, name, type_)

    time = F.unix_millis(column("timestamp", TimestampType())) if has("timestamp") else None
    if has("epoch_ms") or time is None:
        millis = column("epoch_ms", LongType())
        agree = millis if time is None else F.when(F.coalesce(time == millis, F.lit(True)), millis)
        time = agree
    domain = column("time_domain", StringType())
    known = F.when(domain.isin(EVENT_TIME, PROCESSING_TIME), domain == EVENT_TIME)
    name = column("name", StringType()) if has("name") else F.lit(None)
    wrong = "timers must have epoch_ms and timestamp that agree, or one of them; drop the other"
    unknown = f"timers must have the time_domain {EVENT_TIME!r} or {PROCESSING_TIME!r}, got another"
    return [
        F.coalesce(time, F.raise_error(F.lit(wrong)).cast("bigint")),
        F.coalesce(known, F.raise_error(F.lit(unknown)).cast("boolean")),
        name.cast("string"),
    ]


def _row_columns(query: Query, df: DataFrame) -> dict[str, Column]:
    """Return the columns of buffered rows under their names in the query's rows."""
    columns = {}
    shown = row_columns(query.rows.names, query.key_columns)
    for field in query.rows:
        name, type_ = field.name, field.dataType
        if name == TIME:
            time = added_name("event_time", shown.values())
            columns[name] = _time_of(type_, F.unix_millis(_column("buffered_rows", df, time)))
        elif name == INPUT:
            columns[name] = F.when(quoted(shown[SIDES[0]]).isNotNull(), 0).otherwise(1).cast(type_)
        elif name in query.ties and shown[name] not in df.columns:
            columns[name] = F.lit(None).cast(type_)
        else:
            columns[name] = _column("buffered_rows", df, shown[name], type_)
    return columns


def _time_of(type_: DataType, millis: Column) -> Column:
    if isinstance(type_, LongType):
        return millis
    if isinstance(type_, TimestampType):
        return F.timestamp_millis(millis)
    return F.timestamp_add("MILLISECOND", millis, F.lit("1970-01-01").cast("timestamp_ntz"))


def _clock(watermarks: DataFrame | int) -> bytes:
    """Return a clock in bytes, given a watermark or what `CheckpointState.watermarks` returns."""
    if isinstance(watermarks, int):
        return encode_clock(StoredClock(watermarks, None))
    times = {"query_watermark", "watermark", "newest", "last_row"} & set(watermarks.columns)
    rows = watermarks.withColumns({name: F.unix_millis(name) for name in times}).collect() if times else []
    missing = {"input", "query_watermark", "channel", "channel_column"} - set(watermarks.columns)
    if missing or not rows:
        raise ValueError(
            "watermarks must be what CheckpointState.watermarks() returns, or an int, got a DataFrame "
            f"without {', '.join(sorted(missing)) or 'rows'}"
        )
    query_watermark = _millis(rows[0].query_watermark)
    inputs = []
    for side in ("left", "right") if any(row.input == "right" for row in rows) else ("df",):
        channels = [row for row in rows if row.input == side and row.aligned is not None]
        marks, newest, active_at = (
            np.array([_millis(row[name]) for row in channels], np.int64)
            for name in ("watermark", "newest", "last_row")
        )
        aligned = [mark for mark, row in zip(marks.tolist(), channels, strict=True) if row.aligned]
        watermark = min(aligned, default=query_watermark) if side != "df" else query_watermark
        active = np.array([row.status == "active" for row in channels], bool)
        names = [row.channel for row in channels]
        column = channels[0].channel_column if channels else None
        idle = any(row.input == side and row.status == "idle" for row in rows)
        inputs.append(
            InputClock(column, watermark, names, marks, newest, active, active_at, MIN_WATERMARK, idle)
        )
    return encode_clock(StoredClock(query_watermark, None, inputs))


def _millis(time: int | None) -> int:
    return MIN_WATERMARK if time is None else time
