"""Builds the DataFrame of a query: hashes and packs rows, groups them by partition, runs the operator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import cast

from pyspark.cloudpickle import dumps, loads
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampType,
)

from timerheap._states import KeyContext
from timerheap.functions import BatchProcessFunction, Function
from timerheap.spark._columns import AHEAD, AT, CHANNEL, HASH, KEPT, PACKED, SEEN, shown_name
from timerheap.spark._compat import analyzed_plan, with_columns
from timerheap.spark._exchange.packer import Broadcaster, Packer
from timerheap.spark._exchange.placement import DEFAULT_PARTITIONS, Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._plan.arguments import named_column, quoted
from timerheap.spark._plan.named_columns import Columns, map_batches
from timerheap.spark._plan.outputs import results_of, with_side_column
from timerheap.spark._plan.progress import observed, output_type
from timerheap.spark._plan.run_checks import mail
from timerheap.spark._query import ProcessorWork, Query, TimeColumn, TimeMode, WindowWork
from timerheap.spark._settings import check_settings, is_encrypted
from timerheap.spark._state.checkpoint_reader import CheckpointState, starting_group, starting_partitions
from timerheap.spark._state.initial_state import InitialState, starting_tables
from timerheap.spark._windows.local_stage import LocalStage
from timerheap.spark._worker.driver_mail import Mail, Telling
from timerheap.spark._worker.operator import BatchOperator, StreamingOperator, deferred
from timerheap.spark._worker.states import BatchGroupRuntimeContext, GroupRuntimeContext
from timerheap.state_ttl import StateTtlConfig
from timerheap.watermarks import WatermarkStrategy
from timerheap.watermarks.strategy import NO_LIMIT

_HASHED_WHEN_PACKED = (StringType, BinaryType, ByteType, ShortType, IntegerType, LongType)
NULL_MARK = 0x6E756C6C << 32  # counts up for each key column; unlikely to be a value of a key


@dataclass(frozen=True)
class Input:
    """An input of a query, whose arguments have been checked.

    event_time: event-time column
    channel: column whose values have a watermark each
    """

    df: DataFrame
    event_time: str | None
    strategy: WatermarkStrategy
    channel: str | None


def marked(input: Input, *others: Input) -> DataFrame:
    """Return the rows of `input` with the columns that the query needs, computed in the JVM.

    *others: the other inputs of the query; a column that one input needs is added to all
    """
    df, inputs = input.df, [input, *others]
    marks: dict[str, Column] = {}
    if any(one.channel is not None for one in inputs):
        no_channel = F.lit(None).cast("string")
        marks[CHANNEL] = no_channel if input.channel is None else _channel(df, input.channel)
    limits = [one.strategy.max_ahead not in (None, NO_LIMIT) for one in inputs]
    if any(limits):
        marks[AHEAD] = F.lit(False)
        if limits[0] and input.event_time is not None:
            millis = _millis(named_column(df, "event_time", input.event_time), input.event_time)
            now = F.unix_millis(F.current_timestamp())  # the micro-batch's time, the same in every attempt
            marks[AHEAD] = F.coalesce(millis > now + F.lit(input.strategy.max_ahead), F.lit(False))
    return with_columns(df, marks)


def hashed(df: DataFrame, key: list[str]) -> DataFrame:
    """Return marked rows with the hash of their key if Spark has to compute it."""
    types = [named_column(df, "key", name) for name in key]
    rows = df
    if not hashed_when_packed(types):
        rows = df.withColumn(HASH, kept_only(df, _key_hash(key)))
    return rows


def kept_only(df: DataFrame, column: Column) -> Column:
    """Return a column that is not computed for rows which only advance the watermark: it may fail there."""
    return F.when(quoted(KEPT), column) if KEPT in df.columns else column


def hashed_when_packed(types: list[DataType]) -> bool:
    """Return whether the pack stage computes the hash of a key of these types, rather than the JVM."""
    return len(types) == 1 and type(types[0]) in _HASHED_WHEN_PACKED


def _channel(df: DataFrame, name: str) -> Column:
    binary = named_column(df, "channel", name).simpleString() == "binary"
    text = F.hex(quoted(name)) if binary else quoted(name).cast("string")
    null = (
        f"channel: a row has null in column {shown_name(name)!r}; filter such rows out, or give them a value"
    )
    return F.coalesce(text, F.raise_error(F.lit(null)))


def _millis(type_: DataType, name: str) -> Column:
    if isinstance(type_, LongType):
        return quoted(name)
    if isinstance(type_, TimestampType):
        return F.unix_millis(quoted(name))
    return naive_millis(quoted(name))


def naive_millis(column: Column) -> Column:
    """Return a timestamp without a time zone as ms; Spark's timestamp_diff would read it in the session's."""
    elapsed = column - F.lit("1970-01-01").cast("timestamp_ntz")
    return F.floor(elapsed.cast("interval second").cast("decimal(21,6)") * 1000).cast("bigint")


def _key_hash(key: list[str]) -> Column:
    """Hash keys with Spark's xxhash64, which skips nulls, and a mark for each null among several columns.

    Without the marks (null, 'a') and ('a', null) would have the same hash.
    """
    if len(key) == 1:
        return F.xxhash64(quoted(key[0]))
    parts = []
    for name, mark in zip(key, count(NULL_MARK), strict=False):
        parts += [quoted(name), F.when(quoted(name).isNull(), F.lit(mark))]
    return F.xxhash64(*parts)


def rehearse(
    function: Function, query: Query, max_parallelism: int, group: KeyGroup, streaming: bool
) -> GroupRuntimeContext:
    """Open a copy of the query's function on a key group without keys, as a worker does, and close it.

    What ``open`` sets on the copy does not reach the workers. An exception is raised unchanged, with a note
    that says where it happened.

    return: what the function has been opened with
    """
    class_ = BatchGroupRuntimeContext if isinstance(function, BatchProcessFunction) else GroupRuntimeContext
    context = class_(KeyContext(), max_parallelism)
    copy = cast(Function, loads(dumps(function)))  # type: ignore[no-untyped-call]
    try:
        copy.open(context)
        context.bind(group)
        _expect_clocks(query, context.times_to_live(), streaming)
        copy.close()
    except Exception as e:
        e.add_note(
            "timerheap: in open() or close() on the driver, which opens and closes a copy of the function to "
            "check its states before the query starts. Put what only workers can reach behind "
            "`if pyspark.TaskContext.get() is not None`."
        )
        raise
    return context


def _expect_clocks(query: Query, times_to_live: dict[str, StateTtlConfig], streaming: bool) -> None:
    """Raise ValueError if a state has a time to live of a clock that the query has not."""
    for name, ttl in times_to_live.items():
        if ttl.get_ttl_time_characteristic() is ttl.TtlTimeCharacteristic.EventTime:
            if query.event_time is None:
                raise ValueError(
                    f"event_time must name the event-time column, since the time to live of state {name!r} "
                    "is of event time, got None"
                )
        elif streaming and query.time_mode != "ProcessingTime":
            raise ValueError(
                f"processing_time must be True, since the time to live of state {name!r} is of processing "
                "time, got False"
            )


def time_mode(df: DataFrame, processing_time: bool, *strategies: WatermarkStrategy) -> TimeMode:
    """Return the time mode of a query that makes its own watermarks; some strategies need a clock."""
    timed = any((strategy.idle_timeout, strategy.wall_clock) != (None, None) for strategy in strategies)
    return "ProcessingTime" if processing_time or (df.isStreaming and timed) else "None"


def has_spark_watermark(df: DataFrame) -> bool:
    """Return whether `df` has Spark's ``withWatermark()``."""
    return "EventTimeWatermark" in analyzed_plan(df)


def build(
    query: Query,
    df: DataFrame,
    *,
    output_event_time: str | Column | None = None,
    initial_state: CheckpointState | InitialState | None = None,
    broadcast: DataFrame | None = None,
    each_batch: bool = False,
) -> DataFrame:
    """Return the result of a query.

    Parameters
    ----------
    query : Query
    df : pyspark.sql.DataFrame
        The input rows with their marks; see `timerheap.spark._plan.build.marked`.
    output_event_time : str or Column, optional
        Column of the result that becomes Spark's event time.
    initial_state : CheckpointState or InitialState, optional
        State to start from, on a stream.
    broadcast : DataFrame, optional
        The rows that go to every key group.
    each_batch : bool, default False
        Whether each micro-batch of a stream is a batch of its own, without state.
    """
    check_settings(df)
    if not df.isStreaming and query.time_mode == "ProcessingTime":
        raise ValueError(
            "processing_time must be False for a batch DataFrame, got True; a batch has no processing time"
        )
    if initial_state is not None:
        expect_initial_state(df, initial_state)
    result_type = with_side_column(query)
    times_to_live: dict[str, StateTtlConfig] = {}
    group = KeyGroup(query.layout)
    if not isinstance(query.work, (WindowWork, ProcessorWork)):
        if isinstance(initial_state, CheckpointState):
            group = starting_group(initial_state, query)
        max_parallelism = planned(df, query.max_parallelism).max_parallelism
        context = rehearse(query.work, query, max_parallelism, group, df.isStreaming)
        times_to_live = context.times_to_live()
        query = replace(query, has_metrics=context.metrics is not None)
    query = replace(query, encrypted=is_encrypted(df.sparkSession))
    letters = mail(df.sparkSession)
    groups = packed(query, df, letters, broadcast)
    if df.isStreaming and not each_batch:
        operator = StreamingOperator(query, letters)
        initial = None
        if isinstance(initial_state, CheckpointState):
            initial = starting_partitions(initial_state, query)
        elif initial_state is not None:
            initial = starting_tables(initial_state, query, df.sparkSession, group, times_to_live, hashed)
        result = groups.transformWithStateInPandas(
            deferred(operator),
            output_type(result_type),
            "Append",
            query.time_mode,
            initial,
        )
        result = observed(result, df, query.has_metrics)
    else:
        on_batch = BatchOperator(query, result_type, letters)
        result = groups.applyInArrow(lambda packed: on_batch(packed), result_type)  # counts parameters
    if query.side_fields:
        result = results_of(result)
    return result if output_event_time is None else _with_event_time(df, result, output_event_time)


def packed(query: Query, df: DataFrame, letters: Mail, broadcast: DataFrame | None = None) -> GroupedData:
    """Return the rows of a query, with their marks, in one blob for each task and partition, by partition.

    Those of `broadcast` are in blobs for all partitions. In a batch the column `AT` is beside each blob.
    """
    blobs = map_batches(hashed(df, query.key), Telling(_packer(query, SEEN in df.columns), letters), PACKED)
    if broadcast is not None:
        rules = Telling(Broadcaster(query.max_parallelism), letters)
        blobs = blobs.unionAll(map_batches(broadcast, rules, PACKED))
    if not df.isStreaming:  # there Spark would put the time into code, and compile that in each micro-batch
        blobs = blobs.withColumn(AT, F.unix_millis(F.current_timestamp()))
    return blobs.groupBy("label")


def expect_initial_state(df: DataFrame, initial_state: object) -> None:
    """Check that a query of `df` may start from a state."""
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


def planned(df: DataFrame, max_parallelism: int | None) -> Placement:
    """Return the placement by the session's settings; a running query goes by its checkpoint's."""
    partitions = df.sparkSession.conf.get("spark.sql.shuffle.partitions")
    return Placement.of(max_parallelism, int(partitions or DEFAULT_PARTITIONS))


def _packer(query: Query, seen: bool) -> Packer:
    work, event_time = query.work, query.event_time
    local = query.reduce
    if isinstance(work, WindowWork) and work.pre_aggregated and event_time is not None:
        local = LocalStage(work.spec, query.key, event_time, work.inputs)
    argument = "time" if isinstance(work, WindowWork) else "event_time"
    times = () if event_time is None else query.times or (TimeColumn(argument, event_time, "df"),)
    return Packer(
        key=query.key[0],
        event_time=event_time,
        times=() if seen else times,
        null_time=query.null_time,
        max_parallelism=query.max_parallelism,
        announces=isinstance(work, ProcessorWork)
        and work.event_time != ()
        and query.time_mode == "EventTime",
        reduce=local,
    )


def _with_event_time(df: DataFrame, result: DataFrame, column: str | Column) -> DataFrame:
    name = Columns("the result", result).one("output_event_time", column)
    type_ = named_column(result, "output_event_time", name)
    if not isinstance(type_, TimestampType):
        raise ValueError(
            f"output_event_time must be a timestamp column, got {name!r} of type {type_.simpleString()}"
        )
    if has_spark_watermark(df):
        raise ValueError(
            f"output_event_time must be left out when df has a withWatermark(), got {name!r}; a second "
            "watermark would stop both: remove withWatermark() from df, and pass watermark= instead"
        )
    return result.withWatermark(name, "0 seconds")
