"""`InitialState`: the state that a new query starts from, as DataFrames."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import reduce
from os import PathLike
from typing import Any

import numpy as np
from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType, TimestampType

from timerheap._arguments import int64, integer
from timerheap.spark._columns import INPUT, SIDES, TIME, TIMER, VALUE, added_name
from timerheap.spark._compat import nullable, refuse_connect
from timerheap.spark._group.key_group import KeyGroup, expiry_namespace
from timerheap.spark._group.watermark import InputClock, StoredClock, decode_clock, encode_clock
from timerheap.spark._plan.arguments import data_frame, quoted
from timerheap.spark._plan.named_columns import map_batches
from timerheap.spark._processors.value_list_map_states import STATES, Scope
from timerheap.spark._query import ProcessorWork, Query
from timerheap.spark._state.checkpoint_reader import expect_partitions, first_line, path_of, row_columns
from timerheap.spark._state.state_tables import (
    EVENT_TIME,
    INITIAL,
    PROCESSING_TIME,
    ClockSplitter,
    ContentsTable,
    RowTable,
    Splits,
    TableSplitter,
    TimerTable,
    Ttl,
)
from timerheap.state_ttl import StateTtlConfig
from timerheap.timer import MIN_WATERMARK

Hashed = Callable[[DataFrame, list[str]], DataFrame]
"""Adds the hash of the key to rows; `timerheap.spark._plan.build.hashed`."""


class InitialState:
    """State that a new query starts from: tables such as `CheckpointState` returns, or made in any other way.

    Each table has the key columns of the query under their names, in the query's types. Other columns than
    those that are named here, such as ``key_group``, are ignored.

    Parameters
    ----------
    states : dict of str to pyspark.sql.DataFrame, optional
        The contents of states by name, a key a row: ``value``, in the type of the state; an array for a list
        state, a map for a map state. Null and empty ones are left out. A state with a time to live has a
        struct for each value, with ``at``, the time of the last access, in epoch ms, as
        `CheckpointState.state` returns it.
    timers : pyspark.sql.DataFrame, optional
        Pending timers: ``epoch_ms`` or ``timestamp`` says when they fire, ``time_domain`` is "event_time" or
        "processing_time", and ``name`` is null for a timer without one, as if it is missing. If both times
        are there they must agree: to move a timer, drop one of them.
    buffered_rows : pyspark.sql.DataFrame, optional
        Rows that wait for the watermark, as `CheckpointState.buffered_rows` returns them.
    watermarks : pyspark.sql.DataFrame or int, optional
        What `CheckpointState.watermarks` returns, or one watermark, epoch ms. By default there is none yet.

    Attributes
    ----------
    states, timers, buffered_rows, watermarks
        As passed.

    Raises
    ------
    TypeError, ValueError
        If an argument is of another type. `process` and the other functions check the tables.

    Examples
    --------
    Read the state of a query, correct it, and start again::

        old = timerheap.spark.read_checkpoint(spark, "/checkpoints/old")
        counts = old.state("count").withColumn("value", F.greatest("value", F.lit(0)))
        repaired = timerheap.spark.InitialState(
            states={"count": counts}, timers=old.timers(), watermarks=old.watermarks()
        )
        result = timerheap.spark.process(..., initial_state=repaired)
    """

    def __init__(
        self,
        *,
        states: Mapping[str, DataFrame] | None = None,
        timers: DataFrame | None = None,
        buffered_rows: DataFrame | None = None,
        watermarks: DataFrame | int | None = None,
    ) -> None:
        if states is not None and not isinstance(states, Mapping):
            raise TypeError(f"states must be a dict of DataFrames by name, got {states!r}")
        self.states = {name: data_frame(f"states[{name!r}]", table) for name, table in (states or {}).items()}
        self.timers = None if timers is None else data_frame("timers", timers)
        self.buffered_rows = None if buffered_rows is None else data_frame("buffered_rows", buffered_rows)
        if isinstance(watermarks, int):
            int64("watermarks", watermarks)
        elif watermarks is not None:
            data_frame("watermarks", watermarks)
        self.watermarks = watermarks

    @classmethod
    def from_spark(
        cls,
        spark: SparkSession,
        checkpoint: str | PathLike[str],
        operator_id: int | None = None,
        *,
        batch_id: int | None = None,
    ) -> InitialState:
        """Return the state of Spark's own ``transformWithState`` or ``transformWithStateInPandas``.

        The same processor then continues in `transform_with_state` with this `initial_state`; a process
        function does with tables that are made of these: the values are structs, as the processor declared
        them. The input of the new query must begin after the rows that the old one has read, and the old one
        be stopped after its last micro-batch, as ``availableNow`` does.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
        checkpoint : str or path
            Checkpoint location of the query.
        operator_id : int, optional
            Number of the operator. It may be left out if only one has a processor.
        batch_id : int, optional
            The micro-batch after which to read the state; by default the last one that has finished.

        Returns
        -------
        InitialState

        Raises
        ------
        TypeError, ValueError
            If there is no such checkpoint or operator, or the checkpoint cannot be read.
        """
        refuse_connect(spark, "reading a checkpoint")
        path = path_of(checkpoint)
        wanted = None if operator_id is None else integer("operator_id", operator_id)
        try:
            found = spark.read.format("state-metadata").load(path).collect()
        except Exception as e:
            raise ValueError(
                f"checkpoint must be the checkpoint location of a streaming query, got {path!r}, which "
                f"cannot be read: {first_line(e)}"
            ) from e
        processors = [row for row in found if row.operatorName.startswith("transformWithState")]
        chosen = [row for row in processors if wanted in (None, row.operatorId)]
        if len(chosen) != 1:
            names = ", ".join(sorted(f"{row.operatorId}: {row.operatorName}" for row in found))
            raise ValueError(
                f"operator_id must be that of an operator with a processor in {path!r}, got "
                f"{operator_id!r}; it has the operators ({names})"
            )
        expect_partitions(spark, path, int(chosen[0].operatorId), int(chosen[0].numPartitions))
        batch = int(chosen[0].maxBatchId) if batch_id is None else integer("batch_id", batch_id)
        return _of_spark(cls, spark, path, chosen[0], batch)


def _of_spark(
    class_: type[InitialState], spark: SparkSession, path: str, operator: Any, batch: int
) -> InitialState:
    properties = json.loads(operator.operatorProperties)
    reader = spark.read.format("statestore").option("operatorId", operator.operatorId)
    reader = reader.option("batchId", batch)
    states = {}
    for variable in properties["stateVariables"]:
        name = variable["stateName"]
        if name.startswith("$"):  # Spark's timers
            continue
        state = reader.option("stateVarName", name).option("flattenCollectionTypes", "false").load(path)
        (column,) = (each for each in ("value", "list_value", "map_value") if each in state.columns)
        contents = F.col(column)
        if variable["ttlEnabled"] and column == "value":
            contents = _expiring(contents)
        elif variable["ttlEnabled"] and column == "list_value":
            contents = F.transform(contents, _expiring)
        elif variable["ttlEnabled"]:
            contents = F.transform_values(contents, lambda _, value: _expiring(value))
        key = state.select("key.*").columns
        states[name] = state.select("key.*", contents.alias(added_name("value", key)))
    timers = watermark = None
    mode = properties["timeMode"]
    if mode != "NoTime":
        registered = spark.read.format("statestore").option("operatorId", operator.operatorId)
        timers = registered.option("batchId", batch).option("readRegisteredTimers", "true").load(path)
        key = timers.select("key.*").columns
        timers = timers.select(
            "key.*",
            F.col("expiration_timestamp_ms").alias(added_name("epoch_ms", key)),
            F.lit(EVENT_TIME if mode == "EventTime" else PROCESSING_TIME).alias(
                added_name("time_domain", key)
            ),
        )
    if mode == "EventTime":
        commit = spark.read.text(f"{path}/commits/{batch}").collect()
        watermark = int(json.loads(commit[-1].value)["nextBatchWatermarkMs"])
    return class_(states=states, timers=timers, watermarks=watermark)


def _expiring(kept: Column) -> Column:
    """Return a value with a time to live as timerheap keeps it."""
    return F.struct(kept["value"].alias("value"), kept["ttlExpirationMs"].alias("expires"))


def starting_tables(
    initial: InitialState,
    query: Query,
    spark: SparkSession,
    group: KeyGroup,
    times_to_live: Mapping[str, StateTtlConfig],
    hashed: Hashed,
) -> GroupedData:
    """Return tables split by the key groups of a new query, grouped as its packed rows are.

    `group` is one that the query's function has been opened on. Raises ValueError if a table does not fit.
    """
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
            name,
            state.shape,
            state.type,
            state.schema,
            _ttl(query, name, times_to_live),
            expiry_namespace(name),
        )
        parts.append(split(argument, df, {VALUE: value}, table))
    if initial.timers is not None:
        columns = dict(zip(TIMER, _timer_columns(query, initial.timers), strict=True))
        parts.append(split("timers", initial.timers, columns, TimerTable()))
    if initial.buffered_rows is not None:
        if query.order != "event_time" or query.event_time is None:
            raise ValueError('buffered_rows must be None unless order is "event_time", got a DataFrame')
        columns = _row_columns(query, initial.buffered_rows)
        waiting = RowTable(group.rows.schema, query.event_time, decode_clock(clock).watermark)
        parts.append(split("buffered_rows", initial.buffered_rows, columns, waiting))
    return reduce(DataFrame.unionAll, parts).groupBy("label")


def processor_group(query: Query, work: ProcessorWork) -> tuple[KeyGroup, dict[str, StateTtlConfig]]:
    """Return a key group with the states that a processor has declared, and their times to live."""
    group, times_to_live = KeyGroup(query.layout), {}
    for name, declared in work.states.items():
        if name in query.drop_state:
            continue
        state = STATES[declared.shape](name, declared, Scope())
        group.state(name, state.shape, state.type)
        if state.ttl is not None:
            times_to_live[name] = state.ttl
    return group, times_to_live


def _ttl(query: Query, name: str, times_to_live: Mapping[str, StateTtlConfig]) -> Ttl | None:
    config = times_to_live.get(name)
    if config is None:
        return None
    if isinstance(query.work, ProcessorWork):
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
    """Return the columns of timers as `TIMER` names them."""

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
        else:
            if name in query.ties and shown[name] not in df.columns:
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
