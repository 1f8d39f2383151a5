"""Builds the DataFrame of a query: hashes and packs rows, groups them by partition, runs the operator."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from timerheap.spark._compat import analyzed_plan
from timerheap.spark._exchange.broadcast import Broadcaster
from timerheap.spark._exchange.pack import AT, PACKED, Packer
from timerheap.spark._exchange.placement import DEFAULT_PARTITIONS, Placement
from timerheap.spark._exchange.slicing import LocalStage
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._plan.arguments import arrow_schema, named_column
from timerheap.spark._plan.checkpoint_state import CheckpointState
from timerheap.spark._plan.columns import Columns
from timerheap.spark._plan.marks import hashed
from timerheap.spark._plan.observation import observed, output_type
from timerheap.spark._plan.settings import check_settings, is_encrypted
from timerheap.spark._plan.side_tags import results_of, with_outputs, with_side_column
from timerheap.spark._plan.stages import map_batches
from timerheap.spark._plan.starting_state import starting_group, starting_partitions
from timerheap.spark._query import ProcessorWork, Query, TimeMode, WindowWork
from timerheap.spark._worker.deferred import deferred
from timerheap.spark._worker.driver_mail import Mail, Telling, mail
from timerheap.spark._worker.output import LATE_BY, LATE_ROW
from timerheap.spark._worker.rehearsal import rehearse
from timerheap.spark._worker.stateful_operator import BatchOperator, StreamingOperator
from timerheap.watermarks import WatermarkStrategy

__all__ = ["build", "has_spark_watermark", "packed", "planned", "time_mode", "with_late_columns"]


def time_mode(df: DataFrame, processing_time: bool, *strategies: WatermarkStrategy) -> TimeMode:
    """Return the time mode of a query that makes its own watermarks; some strategies need a clock."""
    timed = any((strategy.idle_timeout, strategy.wall_clock) != (None, None) for strategy in strategies)
    return "ProcessingTime" if processing_time or (df.isStreaming and timed) else "None"


def has_spark_watermark(df: DataFrame) -> bool:
    """Return whether a ``withWatermark()`` of Spark's stands before `df`."""
    return "EventTimeWatermark" in analyzed_plan(df)


def build(
    query: Query,
    df: DataFrame,
    *,
    output_event_time: str | Column | None = None,
    initial_state: CheckpointState | None = None,
    broadcast: DataFrame | None = None,
) -> DataFrame:
    """Return the result of a query.

    Parameters
    ----------
    query : Query
    df : pyspark.sql.DataFrame
        The input rows with their marks; see `timerheap.spark._plan.marks.marked`.
    output_event_time : str or Column, optional
        Column of the result that becomes Spark's event time.
    initial_state : CheckpointState, optional
        State of another query, on a stream.
    broadcast : DataFrame, optional
        The rows that go to every key group.
    """
    check_settings(df)
    if not df.isStreaming and query.time_mode == "ProcessingTime":
        raise ValueError(
            "processing_time must be False for a batch DataFrame, got True; a batch has no processing time"
        )
    if initial_state is not None:
        _expect_initial_state(df, initial_state)
    arrow_schema("output_schema", query.result)
    result_type = query.result
    if query.late_row is not None:
        result_type = with_late_columns(query.result, query.late_row, output_event_time)
    if query.side_outputs:
        result_type = with_side_column(result_type, query.side_outputs)
    if not isinstance(query.work, (WindowWork, ProcessorWork)):
        group = KeyGroup(query.layout) if initial_state is None else starting_group(initial_state, query)
        max_parallelism = planned(df, query.max_parallelism).max_parallelism
        has_metrics = rehearse(query.work, query, max_parallelism, group, df.isStreaming)
        query = replace(query, has_metrics=has_metrics)
    query = replace(query, encrypted=is_encrypted(df.sparkSession))
    letters = mail(df.sparkSession)
    groups = packed(query, df, letters, broadcast)
    if df.isStreaming:
        operator = StreamingOperator(query, letters)
        initial = None if initial_state is None else starting_partitions(initial_state, query)
        result = groups.transformWithStateInPandas(
            deferred(operator), output_type(result_type), "Append", query.time_mode, initial
        )
        result = observed(result, df, query.has_metrics)
    else:
        on_batch = BatchOperator(query, result_type, letters)
        result = groups.applyInArrow(lambda packed: on_batch(packed), result_type)  # counts parameters
    outputs = result
    if query.side_outputs:
        result = results_of(outputs)
    if output_event_time is not None:
        result = _with_event_time(df, result, output_event_time)
    return with_outputs(result, outputs) if query.side_outputs else result


def packed(query: Query, df: DataFrame, letters: Mail, broadcast: DataFrame | None = None) -> GroupedData:
    """Return the rows of a query, with their marks, in one blob for each task and partition, by partition.

    Those of `broadcast` are in blobs for all partitions. Beside each blob is the time, in the column `AT`.
    """
    blobs = map_batches(hashed(df, query.key), Telling(_packer(query), letters), PACKED)
    if broadcast is not None:
        rules = Telling(Broadcaster(query.max_parallelism), letters)
        blobs = blobs.unionAll(map_batches(broadcast, rules, PACKED))
    return blobs.withColumn(AT, F.unix_millis(F.current_timestamp())).groupBy("label")


def _expect_initial_state(df: DataFrame, initial_state: object) -> None:
    if not isinstance(initial_state, CheckpointState):
        raise TypeError(
            "initial_state must be what timerheap.spark.read_checkpoint(spark, checkpoint) returns, got "
            f"{initial_state!r}"
        )
    if not df.isStreaming:
        raise ValueError(
            f"initial_state must be None for a batch DataFrame, got that of {initial_state.checkpoint!r}"
        )


def planned(df: DataFrame, max_parallelism: int | None) -> Placement:
    """Return the placement by the session's settings; a running query goes by its checkpoint's."""
    partitions = df.sparkSession.conf.get("spark.sql.shuffle.partitions")
    return Placement.of(max_parallelism, int(partitions or DEFAULT_PARTITIONS))


def _packer(query: Query) -> Packer:
    work, event_time = query.work, query.event_time
    local = None
    if isinstance(work, WindowWork) and work.local == "arrow" and event_time is not None:
        local = LocalStage(work.spec, query.key, event_time, work.inputs)
    argument = "time" if isinstance(work, WindowWork) else "event_time"
    return Packer(
        key=query.key[0],
        columns=[] if event_time is None else [(argument, event_time)],
        event_time=event_time,
        max_parallelism=query.max_parallelism,
        announces=isinstance(work, ProcessorWork)
        and work.event_time != ()
        and query.time_mode == "EventTime",
        reduce=local,
    )


def with_late_columns(
    result: StructType, late_row: StructType, output_event_time: str | Column | None = None
) -> StructType:
    """Return the type of results with late rows beside them."""
    if output_event_time is not None:
        raise ValueError(
            f'output_event_time must be left out with late="emit", got {output_event_time!r}; late rows '
            "have null there: filter them out, then call withWatermark() on the result"
        )
    taken = {LATE_BY, LATE_ROW} & set(result.names)
    if taken:
        raise ValueError(
            f'output_schema must not have a column {min(taken)!r}, which late="emit" adds; rename it'
        )
    nullable = result._as_nullable()  # a late row has null in these columns
    row = late_row._as_nullable()
    return StructType([*nullable.fields, StructField(LATE_BY, LongType()), StructField(LATE_ROW, row)])


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
