"""Builds the DataFrame of a query: hashes and packs rows, groups them by partition, runs the operator."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.spark._columns import AHEAD, AT, CHANNEL, HASH, KEPT, OF_BATCH, PACKED, SEEN, shown_name
from timerheap.spark._compat import variables_of_driver, with_columns
from timerheap.spark._exchange.broadcaster import Broadcaster
from timerheap.spark._exchange.followed_watermarks import FollowedWatermarks
from timerheap.spark._exchange.packer import Packer
from timerheap.spark._exchange.placement import DEFAULT_PARTITIONS, Placement
from timerheap.spark._plan.inputs import Input
from timerheap.spark._plan.named_columns import named_column, quoted
from timerheap.spark._plan.observed_metrics import output_type, with_metrics
from timerheap.spark._plan.operator_names import operator_name
from timerheap.spark._plan.outputs import results_of, with_side_column
from timerheap.spark._plan.python_stage import map_batches
from timerheap.spark._plan.starts import Start, start_of_operator
from timerheap.spark._plan.state_changes import with_expected, without_expected
from timerheap.spark._query import Query, TimeColumn
from timerheap.spark._run_checks import mail
from timerheap.spark._settings import check_settings, is_encrypted
from timerheap.spark._worker.driver_mail import Mail, Telling
from timerheap.spark._worker.spark_operators import BatchOperator, StreamingOperator, deferred
from timerheap.spark._worker.work import Work
from timerheap.watermarks.strategy import NO_LIMIT

_HASHED_WHEN_PACKED = (T.StringType, T.BinaryType, T.ByteType, T.ShortType, T.IntegerType, T.LongType)
NULL_MARK = 0x6E756C6C << 32  # counts up for each key column; unlikely to be a value of a key


def marked(input: Input, *others: Input) -> DataFrame:
    """Return the rows of `input` with the columns that it or one of `others` needs, computed in the JVM."""
    df, inputs = input.df, [input, *others]
    marks: dict[str, Column] = {}
    if any(one.channel is not None for one in inputs):
        no_channel = F.lit(None).cast("string")
        marks[CHANNEL] = no_channel if input.channel is None else _channel(df, input.channel)
    limits = [one.strategy.max_ahead not in (None, NO_LIMIT) for one in inputs]
    if any(limits):
        marks[AHEAD] = F.lit(False)
        if limits[0] and input.event_time is not None:
            millis = _event_time_millis(named_column(df, "event_time", input.event_time), input.event_time)
            now = F.unix_millis(F.current_timestamp())  # the micro-batch's time, the same in every attempt
            marks[AHEAD] = F.coalesce(millis > now + F.lit(input.strategy.max_ahead), F.lit(False))
    return with_columns(df, marks)


def hashed(df: DataFrame, key: list[str]) -> DataFrame:
    """Return marked rows with the hash of their key if Spark has to compute it."""
    if hashed_when_packed([named_column(df, "key", name) for name in key]):
        return df
    return df.withColumn(HASH, kept_only(df, _key_hash(key)))


def kept_only(df: DataFrame, column: Column) -> Column:
    """Return a column that is not computed for rows which only advance the watermark: it may fail there."""
    return F.when(quoted(KEPT), column) if KEPT in df.columns else column


def hashed_when_packed(types: list[T.DataType]) -> bool:
    """Return whether the pack stage computes the hash of a key of these types, rather than the JVM."""
    return len(types) == 1 and type(types[0]) in _HASHED_WHEN_PACKED


def _channel(df: DataFrame, name: str) -> Column:
    binary = named_column(df, "channel", name).simpleString() == "binary"
    text = F.hex(quoted(name)) if binary else quoted(name).cast("string")
    null = (
        f"channel: a row has null in column {shown_name(name)!r}; filter such rows out, or give them a value"
    )
    return F.coalesce(text, F.raise_error(F.lit(null)))


def _event_time_millis(type_: T.DataType, name: str) -> Column:
    if isinstance(type_, T.LongType):
        return quoted(name)
    if isinstance(type_, T.TimestampType):
        return F.unix_millis(quoted(name))
    return naive_millis(quoted(name))


def naive_millis(column: Column) -> Column:
    """Return a timestamp without a time zone as ms; Spark's timestamp_diff would read it in the session's."""
    elapsed = column - F.lit("1970-01-01").cast("timestamp_ntz")
    return F.floor(elapsed.cast("interval second").cast("decimal(21,6)") * 1000).cast("bigint")


def _key_hash(key: list[str]) -> Column:
    """Hash keys with Spark's xxhash64, which skips nulls, and a mark for each null among several columns."""
    # Without the marks (null, 'a') and ('a', null) would have the same hash.
    if len(key) == 1:
        return F.xxhash64(quoted(key[0]))
    parts = []
    for name, mark in zip(key, count(NULL_MARK), strict=False):
        parts += [quoted(name), F.when(quoted(name).isNull(), F.lit(mark))]
    return F.xxhash64(*parts)


def build_micro_batches(
    query: Query,
    df: DataFrame,
    *,
    start: Start | None = None,
    broadcast: DataFrame | None = None,
    each_batch: bool = False,
    output_mode: str = "Append",
    event_time_column: str = "",
) -> DataFrame:
    """Return the result of a query that runs in micro-batches, or on a batch.

    df: the input rows with their marks; see `marked`
    broadcast: the rows that go to every key group
    each_batch: whether each micro-batch of a stream is a batch of its own, without state
    output_mode, event_time_column: as Spark's ``transformWithState`` has them
    """
    check_settings(df)
    stateful = df.isStreaming and not each_batch
    name = operator_name(df, query.name) if stateful else None
    if name is not None:
        start = start_of_operator(name, start)
    work: Work = query.work
    group = None if start is None else start.group(query)
    max_parallelism = planned_placement(df, query.max_parallelism).max_parallelism
    rehearsal = work.rehearse(query, max_parallelism, group, df.isStreaming)
    encrypted = is_encrypted(df.sparkSession)
    query = with_expected(query, rehearsal)
    query = replace(query, name=name, has_metrics=rehearsal.has_metrics, encrypted=encrypted)
    result_type = with_side_column(query)
    letters = mail(df.sparkSession)
    groups = packed(query, df, letters, broadcast, each_batch=each_batch)
    initial = None
    if start is not None:  # what it expects is there, or else an error
        initial = start.partitions(query, letters, rehearsal, group)
        query = without_expected(query)
    if name is not None:
        with variables_of_driver(df.sparkSession):
            result = groups.transformWithStateInPandas(
                deferred(StreamingOperator(query, letters)),
                output_type(result_type, query.has_watermark, flat=bool(event_time_column)),
                output_mode,
                query.time_mode,
                initial,
                event_time_column,
            )
        result = with_metrics(result, name, query.has_metrics)
    else:
        on_batch = BatchOperator(query, result_type, letters)
        if initial is None:
            result = groups.applyInArrow(lambda rows: on_batch(rows), result_type)  # counts parameters
        else:
            both = initial.cogroup(groups)
            result = both.applyInArrow(lambda first, rows: on_batch(rows, first), result_type)
        if query.has_watermark and not df.isStreaming:
            result = result.alias(OF_BATCH)
    return results_of(result) if query.side_fields else result


def packed(
    query: Query,
    df: DataFrame,
    letters: Mail,
    broadcast: DataFrame | None = None,
    each_batch: bool = False,
) -> GroupedData:
    """Return the rows of a query, with their marks, in one blob for each task and partition, by partition."""
    # Those of `broadcast` are in blobs for all partitions. In a batch the column `AT` is beside each blob.
    followed = None
    if query.follows is not None and df.isStreaming and not each_batch:
        followed = FollowedWatermarks(any(each._is_own for each in query.watermarks), letters.warn)
    packer = replace(packer_of(query, df), announces=query.announces, followed=followed)
    blobs = map_batches(hashed(df, query.key), Telling(packer, letters), PACKED)
    if broadcast is not None:
        rules = Telling(Broadcaster(query.max_parallelism), letters)
        blobs = blobs.unionAll(map_batches(broadcast, rules, PACKED))
    if not df.isStreaming:  # there Spark would put the time into code, and compile that in each micro-batch
        blobs = blobs.withColumn(AT, F.unix_millis(F.current_timestamp()))
    return blobs.groupBy("label")


def packer_of(query: Query, df: DataFrame) -> Packer:
    """Return the stage before the exchange, for rows that do not follow other operators."""
    event_time = query.event_time
    times = () if event_time is None else query.times or (TimeColumn("event_time", event_time, "df"),)
    return Packer(
        key=query.key[0],
        event_time=event_time,
        times=() if SEEN in df.columns else times,
        null_time=query.null_time,
        max_parallelism=query.max_parallelism,
        inputs=len(query.watermarks),
        reduce=None if query.reduction is None else query.reduction.reducer,
        sends_channel=query.late == "drop"
        and query.reduction is None
        and not _is_among(query, query.channels),
    )


def _is_among(query: Query, channels: tuple[str | None, ...]) -> bool:
    """Return whether the rows that are sent have the channel as a column."""
    return len(channels) == 1 and channels[0] in query.schema.names


def planned_placement(df: DataFrame, max_parallelism: int | None) -> Placement:
    """Return the placement by the session's settings; a running query goes by its checkpoint's."""
    partitions = df.sparkSession.conf.get("spark.sql.shuffle.partitions")
    return Placement.of(max_parallelism, int(partitions or DEFAULT_PARTITIONS))
