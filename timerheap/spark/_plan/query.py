"""How rows get to their key group and back: mark, hash, pack, group, operate."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from itertools import count

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, LongType, StructField, StructType, TimestampType, VariantType

from timerheap.functions import BatchProcessFunction, KeyedProcessFunction
from timerheap.spark._exchange.labels import balanced_labels
from timerheap.spark._exchange.pack import AHEAD, CHANNEL, HASH, PACKED, Packer
from timerheap.spark._exchange.slicing import LocalStage
from timerheap.spark._group.key_group import GroupSpec
from timerheap.spark._group.row_buffer import ORDER, RowOrder
from timerheap.spark._group.window_slices import WindowSpec
from timerheap.spark._plan.arguments import arrow_schema, expect_state_store, named_column, quoted
from timerheap.spark._worker.endless import runs
from timerheap.spark._worker.notices import notices
from timerheap.spark._worker.output import LATE_BY, LATE_ROW
from timerheap.spark._worker.rehearsal import rehearse
from timerheap.spark._worker.stateful_operator import BatchOperator, Plan, StreamingOperator
from timerheap.spark._worker.window_runner import WindowQuery
from timerheap.watermarks import WatermarkStrategy

__all__ = ["Carrier", "marked", "time_mode"]

_AHEAD_METRIC = "timerheap_ahead"
_NULL_MARK = 0x6E756C6C << 32  # of a key's first column, counting on; far from what keys are made of


def marked(
    df: DataFrame,
    event_time: str | None,
    strategy: WatermarkStrategy,
    channel: str | None,
    channels: bool,
    guarded: bool,
    order: RowOrder,
) -> DataFrame:
    """Add what the stages need to know of each row, computed in the JVM.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
    event_time, channel : str or None
        Columns.
    strategy : WatermarkStrategy
    channels, guarded : bool
        Which marks there are.
    order : {"event_time", "arrival"}
        By event time, rows of one time have a mark that puts them in order.
    """
    marks: dict[str, Column] = {}
    if order == "event_time":
        marks[ORDER] = _row_hash(df)
    if channels:
        marks[CHANNEL] = F.lit(None).cast("string") if channel is None else _channel(df, channel)
    if guarded:
        marks[AHEAD] = F.lit(False)
        if strategy.max_ahead is not None and event_time is not None:
            millis = _millis(named_column(df, "event_time", event_time), event_time)
            now = F.unix_millis(F.current_timestamp())  # the micro-batch's own, in every attempt
            marks[AHEAD] = millis > now + F.lit(strategy.max_ahead)
    return df.withColumns(marks)


def time_mode(df: DataFrame, processing_time: bool, *strategies: WatermarkStrategy) -> str:
    """Give the time mode of a query that makes its own watermarks; idleness needs a clock."""
    idle = df.isStreaming and any(strategy.idle_timeout is not None for strategy in strategies)
    return "ProcessingTime" if processing_time or idle else "None"


def _channel(df: DataFrame, name: str) -> Column:
    binary = named_column(df, "channel", name).simpleString() == "binary"
    text = F.hex(quoted(name)) if binary else quoted(name).cast("string")
    null = f"channel: a row has null in column {name!r}; filter such rows out, or give them a value"
    return F.coalesce(text, F.raise_error(F.lit(null)))


def _millis(type_: DataType, name: str) -> Column:
    if isinstance(type_, LongType):
        return quoted(name)
    if isinstance(type_, TimestampType):
        return F.unix_millis(quoted(name))
    return F.timestamp_diff("MILLISECOND", F.lit("1970-01-01").cast("timestamp_ntz"), quoted(name))


def _key_hash(key: list[str]) -> Column:
    """Hash keys: Spark's xxhash64, which skips nulls, with a mark for each null among several columns.

    Without the marks (null, 'a') and ('a', null) would have the same hash.
    """
    if len(key) == 1:
        return F.xxhash64(quoted(key[0]))
    parts = []
    for name, mark in zip(key, count(_NULL_MARK), strict=False):
        parts += [quoted(name), F.when(quoted(name).isNull(), F.lit(mark))]
    return F.xxhash64(*parts)


def _row_hash(df: DataFrame) -> Column:
    """Hash whole rows, for an order among rows of one key and one time that is the data's own.

    Each column's number goes in before it: xxhash64 skips nulls, and (null, 'a') is not ('a', null). Spark
    does not hash maps; rows that differ in maps alone keep the order in which they came.
    """
    parts = []
    for number, field in enumerate(df.schema):
        if "map<" not in field.dataType.simpleString() and not isinstance(field.dataType, VariantType):
            parts += [F.lit(number), quoted(field.name)]
    return F.xxhash64(*parts)


@dataclass(frozen=True)
class Carrier:
    """A query to be: what to run on rows that are `marked` already.

    Parameters
    ----------
    function : KeyedProcessFunction, BatchProcessFunction or WindowQuery
    key : list of str
    columns : list of (argument, column)
        Those in which null is refused.
    rows : pyspark.sql.types.StructType
        Of the rows without their marks.
    result : pyspark.sql.types.StructType
    event_time : str or None
    watermarks : tuple of WatermarkStrategy
        Of each input.
    channels : tuple of (str or None)
        Of each input, the column of its channels.
    order : {"event_time", "arrival"}
    late_by : bool
    time_mode : {"None", "ProcessingTime", "EventTime"}
        Of the stateful operator, on a stream.
    max_parallelism : int
    output_event_time : str or None
    late_row : pyspark.sql.types.StructType
        What is shown of a late row.
    shown : list of str
        The columns of `rows` that its fields are.
    drop_state : tuple of str
        The states in the checkpoint that are to go.
    windows : WindowSpec, optional
    local : LocalStage, optional
        Makes slices of rows in the pack stage.
    """

    function: KeyedProcessFunction | BatchProcessFunction | WindowQuery
    key: list[str]
    columns: list[tuple[str, str]]
    rows: StructType
    result: StructType
    event_time: str | None
    watermarks: tuple[WatermarkStrategy, ...]
    channels: tuple[str | None, ...]
    order: RowOrder
    late_by: bool
    time_mode: str
    max_parallelism: int
    output_event_time: str | None
    late_row: StructType
    shown: list[str]
    drop_state: tuple[str, ...] = ()
    windows: WindowSpec | None = None
    local: LocalStage | None = None

    def __call__(self, df: DataFrame) -> DataFrame:
        """Give the result of the marked rows `df`."""
        if df.isStreaming:
            expect_state_store(df)
        elif self.time_mode == "ProcessingTime":
            raise ValueError("processing_time: a batch DataFrame has no processing time; leave it False")
        output = arrow_schema("output_schema", self.result)
        result_type = self._with_late_columns() if self.late_by else self.result
        schema = _arrow(self.rows)
        if self.local is not None:
            schema = self.local.schema(schema)
        if self.order == "event_time":
            schema = schema.append(pa.field(ORDER, pa.int64()))
        partitions = int(df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200)
        plan = Plan(
            id=uuid.uuid4().hex,
            function=self.function,
            spec=GroupSpec(
                key=self.key,
                schema=schema,
                watermarks=self.watermarks,
                channels=self.channels,
                order=self.order,
                one_timer_per_key=isinstance(self.function, BatchProcessFunction)
                and self.function.one_timer_per_key,
                max_parallelism=self.max_parallelism,
                partitions=partitions,
                windows=self.windows,
                drop_state=self.drop_state,
            ),
            row_type=self.rows,
            output=output,
            late_row=pa.struct(list(_arrow(self.late_row))) if self.late_by else None,
            shown=self.shown,
            event_time=self.event_time,
            time_mode=self.time_mode,
            runs=runs(df.sparkSession),
            notices=notices(df.sparkSession),
        )
        if not isinstance(self.function, WindowQuery):
            rehearse(self.function, plan.spec)
        labels = balanced_labels(self.max_parallelism, partitions)
        broadcasts = self.time_mode != "EventTime"
        packer = Packer(self.columns, self.event_time, labels, broadcasts, self.local)
        on_batch = BatchOperator(plan, result_type)
        hashed = df.withColumn(HASH, _key_hash(self.key))
        if AHEAD in hashed.columns:
            hashed = hashed.observe(_AHEAD_METRIC, F.count_if(AHEAD).alias("rows"))
        names = hashed.columns  # mapInArrow() itself takes no dots and no backticks
        numbered = hashed.toDF(*(f"c{i}" for i in range(len(names))))
        groups = numbered.mapInArrow(
            lambda batches: packer(batch.rename_columns(names) for batch in batches), PACKED
        ).groupBy("label")
        if not df.isStreaming:
            done = groups.applyInArrow(lambda packed: on_batch(packed), result_type)  # counts parameters
        else:
            operator = StreamingOperator(plan)
            done = groups.transformWithStateInPandas(operator, result_type, "Append", self.time_mode)
        return done if self.output_event_time is None else _with_event_time(df, done, self.output_event_time)

    def _with_late_columns(self) -> StructType:
        if self.output_event_time is not None:
            raise ValueError(
                f"output_event_time: a late row has no {self.output_event_time!r}; leave late_by out, or set "
                "the watermark behind a filter of your own"
            )
        taken = {LATE_BY, LATE_ROW} & set(self.result.names)
        if taken:
            raise ValueError(
                f"output_schema: column {min(taken)!r} comes with late_by=True; leave it out, or rename yours"
            )
        nullable = self.result._as_nullable()  # a late row has no result
        row = self.late_row._as_nullable()
        return StructType([*nullable.fields, StructField(LATE_BY, LongType()), StructField(LATE_ROW, row)])


def _arrow(rows: StructType) -> pa.Schema:
    """Give the Arrow schema of rows that were checked before; whether null may come is no matter of it."""
    return to_arrow_schema(rows._as_nullable(), timezone="UTC")


def _with_event_time(df: DataFrame, result: DataFrame, name: str) -> DataFrame:
    type_ = named_column(result, "output_event_time", name)
    if not isinstance(type_, TimestampType):
        raise ValueError(f"output_event_time: column {name!r} is {type_.simpleString()}; make it a timestamp")
    if "EventTimeWatermark" in df._jdf.queryExecution().analyzed().toString():
        raise ValueError(
            "output_event_time: df has a withWatermark() of Spark's already, and a second one behind would "
            "stop both for good; remove it from df: process() has its own watermark="
        )
    return result.withWatermark(name, "0 seconds")
