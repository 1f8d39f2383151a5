"""`process`: Flink's process functions on a Spark DataFrame."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import cast

import pyarrow as pa
from pyspark.cloudpickle import dumps
from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    AtomicType,
    DataType,
    LongType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from timerheap.functions import BatchProcessFunction, KeyedProcessFunction
from timerheap.spark.group import GroupSpec
from timerheap.spark.labels import balanced_labels
from timerheap.spark.operator import BatchOperator, Plan, StreamingOperator
from timerheap.spark.pack import HASH, PACKED, Packer
from timerheap.spark.waiting import ORDER
from timerheap.watermarks import WatermarkStrategy

__all__ = ["process"]

_MOST_GROUPS = 1 << 15


def process(
    df: DataFrame,
    key: str | Sequence[str],
    function: KeyedProcessFunction | BatchProcessFunction,
    output_schema: str | StructType,
    event_time: str | None = None,
    *,
    in_order: bool = False,
    watermark: WatermarkStrategy | None = None,
    channel: None = None,
    processing_time: bool = False,
    max_parallelism: int = 128,
    output_event_time: str | None = None,
) -> DataFrame:
    """Run a process function, with its timers and its state for each key, on a streaming or batch DataFrame.

    Rows are hashed in the JVM, packed into one blob for each of `max_parallelism` key groups, and handed to a
    stateful operator, which keeps timers, keys and state in the worker, and in the query's own checkpoint
    what has changed. Within a micro-batch all rows come first, then the watermark, then the timers that it
    has passed. The end of a batch DataFrame is a watermark too: every timer fires.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
    key : str or list of str
        Columns of the key, of atomic types. A null in them is an error: filter it out first.
    function : KeyedProcessFunction or BatchProcessFunction
        An instance; it travels to the workers by cloudpickle.
    output_schema : str or pyspark.sql.types.StructType
        Of the result.
    event_time : str, optional
        Column of the event time: a timestamp (cut to ms), or a bigint of epoch ms. Without it the watermark
        stands still, but for the end of a batch DataFrame.
    in_order : bool
        True: rows reach the function once the watermark has passed them, in event-time order; at one
        timestamp rows come first, then timers. Results then depend on the data alone, not on batches and
        partitions. It costs the watermark's delay and a buffer in state; a row behind the watermark is
        dropped, and counted in the worker's log. False: rows are handed over as they come, as in Flink.
    watermark : WatermarkStrategy, optional
        Needed with `event_time`. It is fed each micro-batch's largest event time, over all partitions.
    channel : None
        Watermarks for each value of a column are not there yet.
    processing_time : bool
        True: processing-time timers; "now" is the micro-batch's own time, so that a repeated attempt sees the
        same. Spark then runs a batch at every trigger, and ``availableNow`` never ends.
    max_parallelism : int
        Number of key groups, 1 to 32768; a checkpoint fixes it.
    output_event_time : str, optional
        A timestamp column of the result that becomes Spark's event time (delay 0), for stateful operators
        that follow. Without it the result has no event time.

    Returns
    -------
    pyspark.sql.DataFrame
        In append mode.

    Raises
    ------
    TypeError, ValueError
        Anything that does not fit is named before the query starts. Null keys, and output that does not fit
        `output_schema`, end the query.

    Notes
    -----
    The semantics are those of Flink's InternalTimerServiceImpl (`timerheap.InternalTimerService`), except
    that the watermark is part of the state and outlives a restart.

    A checkpoint also fixes ``spark.sql.shuffle.partitions`` and the types of the key columns. Streams need
    the RocksDB state store provider.
    """
    if not isinstance(df, DataFrame):
        raise TypeError(f"df: {df!r} is no pyspark.sql.DataFrame")
    if channel is not None:
        raise ValueError(
            f"channel: {channel!r}: one channel over all partitions is all there is; leave it None"
        )
    keys = _key(df, key)
    _event_time(df, event_time, in_order, watermark)
    if not 1 <= _int("max_parallelism", max_parallelism) <= _MOST_GROUPS:
        raise ValueError(f"max_parallelism: {max_parallelism} key groups; give 1 to {_MOST_GROUPS}")
    _function(function)
    result_type = _parsed(output_schema) if isinstance(output_schema, str) else output_schema
    result = _arrow("output_schema", result_type)
    if df.isStreaming:
        _state_store(df)
    elif processing_time:
        raise ValueError("processing_time: a batch DataFrame has no processing time; leave it False")

    hashed = df.withColumn(HASH, F.xxhash64(*map(_quoted, keys)))
    schema = _arrow("df", df.schema._as_nullable())  # whether null may come is no matter of the checkpoint
    if in_order:
        hashed = hashed.withColumn(ORDER, _row_hash(df))
        schema = schema.append(pa.field(ORDER, pa.int64()))
    partitions = int(df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200)
    labels = balanced_labels(max_parallelism, partitions)
    plan = Plan(
        id=uuid.uuid4().hex,
        function=function,
        spec=GroupSpec(
            key=keys,
            schema=schema,
            watermark=watermark or WatermarkStrategy.no_watermarks(),
            in_order=in_order,
            one_timer_per_key=isinstance(function, BatchProcessFunction) and function.one_timer_per_key,
            max_parallelism=max_parallelism,
            partitions=partitions,
        ),
        row_type=df.schema,
        output=result,
        event_time=event_time,
        processing_time=processing_time,
    )
    packer, on_batch = Packer(keys, event_time, labels), BatchOperator(plan)
    names = hashed.columns  # mapInArrow() itself takes no dots and no backticks
    numbered = hashed.toDF(*(f"c{i}" for i in range(len(names))))
    groups = numbered.mapInArrow(
        lambda batches: packer(batch.rename_columns(names) for batch in batches), PACKED
    ).groupBy("label")
    if not df.isStreaming:
        done = groups.applyInArrow(lambda packed: on_batch(packed), result_type)  # Spark counts parameters
    else:
        mode = "ProcessingTime" if processing_time else "None"
        done = groups.transformWithStateInPandas(StreamingOperator(plan), result_type, "Append", mode)
    return done if output_event_time is None else _with_event_time(df, done, output_event_time)


def _int(argument: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{argument}: {value!r} is no int")
    return value


def _column(df: DataFrame, argument: str, name: object) -> DataType:
    if not isinstance(name, str):
        raise TypeError(f"{argument}: {name!r} is no column name; give a str")
    if df.columns.count(name) != 1:
        there = "no" if name not in df.columns else "more than one"
        raise ValueError(f"{argument}: there is {there} column {name!r}; the columns are {df.columns}")
    return df.schema[name].dataType


def _quoted(name: str) -> Column:
    """Give the column whose whole name this is, dots and backticks included."""
    return F.col("`" + name.replace("`", "``") + "`")


def _key(df: DataFrame, key: object) -> list[str]:
    names = [key] if isinstance(key, str) else list(key) if isinstance(key, Sequence) else None
    if not names:
        raise TypeError(f"key: {key!r} names no column; give a column name or a list of them")
    for name in names:
        type_ = _column(df, "key", name)
        if not isinstance(type_, AtomicType) or isinstance(type_, VariantType):
            raise ValueError(
                f"key: column {name!r} is {type_.simpleString()}, which is no atomic type; "
                "select its fields as columns of their own and list them"
            )
    return names


def _event_time(df: DataFrame, event_time: object, in_order: bool, watermark: object) -> None:
    if event_time is None:
        if in_order or watermark is not None:
            argument = "in_order" if in_order else "watermark"
            raise ValueError(f"event_time: {argument} needs the name of the event-time column")
        return
    type_ = _column(df, "event_time", event_time)
    if not isinstance(type_, (TimestampType, TimestampNTZType, LongType)):
        raise ValueError(
            f"event_time: column {event_time!r} is {type_.simpleString()}; "
            "make it a timestamp, or a bigint of epoch milliseconds"
        )
    if not isinstance(watermark, WatermarkStrategy):
        raise TypeError(
            f"watermark: {watermark!r} is no WatermarkStrategy; "
            "give one, such as WatermarkStrategy.for_bounded_out_of_orderness(5_000)"
        )


def _function(function: object) -> None:
    if isinstance(function, type):
        raise TypeError(
            f"function: {function.__name__} is a class; give an instance of it: {function.__name__}()"
        )
    if not isinstance(function, (KeyedProcessFunction, BatchProcessFunction)):
        raise TypeError(
            f"function: {function!r} is neither a KeyedProcessFunction nor a BatchProcessFunction"
        )
    try:
        dumps(function)  # type: ignore[no-untyped-call]
    except Exception as e:
        bad = [name for name, value in vars(function).items() if not _serialises(value)]
        where = f" (its attribute {bad[0]!r})" if bad else ""
        raise TypeError(
            f"function: {type(function).__name__} cannot be sent to the workers{where}: {e}; "
            "make in open() what cannot be serialised: connections, locks, Spark objects"
        ) from e


def _serialises(value: object) -> bool:
    try:
        dumps(value)  # type: ignore[no-untyped-call]
    except Exception:
        return False
    return True


def _parsed(output_schema: str) -> StructType:
    try:
        return cast(StructType, StructType.fromDDL(output_schema))
    except ParseException as e:
        raise ValueError(f"output_schema: {output_schema!r} is no DDL: {e}") from None


def _arrow(argument: str, type_: object) -> pa.Schema:
    if not isinstance(type_, StructType):
        raise TypeError(
            f"{argument}: {type_!r} is no schema; give a DDL string such as 'plane string, at bigint'"
        )
    reserved = sorted(set(type_.names) & {HASH, ORDER}) or sorted(
        {n for n in type_.names if type_.names.count(n) > 1}
    )
    if reserved:
        raise ValueError(f"{argument}: rename column {reserved[0]!r}: its name is taken")
    try:
        return to_arrow_schema(type_, timezone="UTC")
    except Exception as e:
        raise ValueError(f"{argument}: Arrow has no type for a column of {type_.simpleString()}: {e}") from e


def _state_store(df: DataFrame) -> None:
    conf = "spark.sql.streaming.stateStore.providerClass"
    needed = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    provider = df.sparkSession.conf.get(conf)
    if provider is None or "RocksDB" not in provider:
        raise ValueError(
            f"{conf} is {provider}, whose state store cannot hold the state variables that process() needs; "
            f'set it before the query starts: spark.conf.set("{conf}", "{needed}")'
        )


def _row_hash(df: DataFrame) -> Column:
    """Hash whole rows, for an order among rows of one key and one time that is the data's own.

    Each column's number goes in before it: xxhash64 skips nulls, and (null, 'a') is not ('a', null). Spark
    does not hash maps; rows that differ in maps alone keep the order in which they came.
    """
    parts = []
    for number, field in enumerate(df.schema):
        if "map<" not in field.dataType.simpleString() and not isinstance(field.dataType, VariantType):
            parts += [F.lit(number), _quoted(field.name)]
    return F.xxhash64(*parts)


def _with_event_time(df: DataFrame, result: DataFrame, name: str) -> DataFrame:
    type_ = _column(result, "output_event_time", name)
    if not isinstance(type_, TimestampType):
        raise ValueError(f"output_event_time: column {name!r} is {type_.simpleString()}; make it a timestamp")
    if "EventTimeWatermark" in df._jdf.queryExecution().analyzed().toString():
        raise ValueError(
            "output_event_time: df has a withWatermark() of Spark's already, and a second one behind would "
            "stop both for good; remove it from df: process() has its own watermark="
        )
    return result.withWatermark(name, "0 seconds")
