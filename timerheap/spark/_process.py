"""`process`: Flink's process functions on a Spark DataFrame."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from timerheap.functions import BatchProcessFunction, KeyedProcessFunction
from timerheap.spark._group.query import Query
from timerheap.spark._plan.arguments import (
    arrow_schema,
    channel_column,
    data_frame,
    expect_event_time,
    key_columns,
    key_groups,
    parsed_schema,
    row_order,
    sendable,
    state_names,
)
from timerheap.spark._plan.build import build, time_mode
from timerheap.spark._plan.marks import Input, marked
from timerheap.watermarks import WatermarkStrategy

__all__ = ["process"]


def process(
    df: DataFrame,
    key: str | Sequence[str],
    function: KeyedProcessFunction | BatchProcessFunction,
    output_schema: str | StructType,
    event_time: str | None = None,
    *,
    watermark: WatermarkStrategy | None = None,
    order: str | None = None,
    channel: str | None = None,
    late_by: bool = False,
    processing_time: bool = False,
    max_parallelism: int = 128,
    output_event_time: str | None = None,
    drop_state: Sequence[str] = (),
) -> DataFrame:
    """Run a process function, with its timers and its state for each key, on a streaming or batch DataFrame.

    Rows are hashed in the JVM, packed into one blob for each of `max_parallelism` key groups, and handed to a
    stateful operator, which keeps timers, keys and state in the worker, and in the query's own checkpoint
    what has changed. The end of a batch DataFrame is a watermark too: every timer fires.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
    key : str or list of str
        Columns of the key, of atomic types. Null is a value of its own, as in SQL's GROUP BY.
    function : KeyedProcessFunction or BatchProcessFunction
        An instance; it travels to the workers by cloudpickle. A copy of it is opened and closed on the driver
        first, so that states that do not fit are refused here; see `timerheap.functions.Function`.
    output_schema : str or pyspark.sql.types.StructType
        Of the result.
    event_time : str, optional
        Column of the event time: a timestamp (cut to ms), or a bigint of epoch ms. Without it the watermark
        stands still, but for the end of a batch DataFrame.
    watermark : WatermarkStrategy, optional
        Needed with `event_time`. It is fed each micro-batch's largest event time: over all partitions, or of
        each channel. ``with_idleness`` takes a channel without rows out of the reckoning after a while, and
        implies `processing_time` on a stream. With ``with_max_ahead`` rows too far ahead of the micro-batch's
        time do not move the watermark; the query's progress counts them, as the observed metric
        ``timerheap_ahead``.
    order : {"event_time", "arrival"}, optional
        "event_time", the default with `event_time`: a row reaches the function once the watermark has passed
        it, and rows and timers come in event-time order; at one timestamp rows come first, then timers. As
        long as no row is late, results depend on the data alone, not on micro-batches and partitions. A row
        waits in state for as long as the watermark lags behind it. A row behind the watermark is late: it is
        dropped and counted in the worker's log, or comes out with `late_by`; which rows are late does depend
        on micro-batches. "arrival", the default without `event_time`: rows are handed over as they come,
        late ones too, as in Flink. Within a micro-batch all rows come first, then the watermark, then the
        timers that it has passed, so a row may reach the function before a timer that is due earlier.
    channel : str, optional
        Column, of an atomic type and never null, each of whose values has a watermark of its own: Kafka's
        partition, a device, an airport. The lowest of them is the watermark (Flink's StatusWatermarkValve),
        so a channel that lags behind the others loses no row. A value that is new counts once it has caught
        up with the watermark. Meant for up to some hundreds of values: every key group keeps them all.
    late_by : bool
        True: rows behind the watermark do not reach the function, and come out of the query: with the columns
        ``late_by``, by how many ms the watermark's delay would have had to be longer, and ``late_row``, the
        row. In a result both are null, in a late row all other columns.
    processing_time : bool
        True: processing-time timers; "now" is the micro-batch's own time, so that a repeated attempt sees the
        same. Spark then runs a batch at every trigger, with rows or without, so ``availableNow`` does not
        end, which a warning says when the query starts. Set
        ``spark.sql.streaming.noDataMicroBatches.enabled`` to False before starting it, and it ends when all
        rows have been read; timers that are due later fire in the next run. After a clean stop Spark waits
        for a row before its first micro-batch.
    max_parallelism : int
        Number of key groups, 1 to 32768; a checkpoint fixes it.
    output_event_time : str, optional
        A timestamp column of the result that becomes Spark's event time (delay 0), for stateful operators
        that follow. Without it the result has no event time.
    drop_state : list of str
        Names of states in the checkpoint that the function has no more, for it was changed: they are dropped,
        and keep no key alive. A name for which the function still asks is an error; one that is not in the
        checkpoint, perhaps since it was dropped before, does no harm. A state that the function does not ask
        for in ``open``, and that is not named here, stays, and a warning in the driver's log says so.

    Returns
    -------
    pyspark.sql.DataFrame
        In append mode.

    Raises
    ------
    TypeError, ValueError
        Anything that does not fit is named before the query starts. A null event time, and output that does
        not fit `output_schema`, end the query.

    Notes
    -----
    The semantics are those of Flink's timer service (`timerheap.flink.InternalTimerService`), except that the
    watermark is part of the state and outlives a restart.

    A checkpoint also fixes ``spark.sql.shuffle.partitions`` and the types of the key columns. Streams need
    the RocksDB state store provider.
    """
    data_frame("df", df)
    keys = key_columns(df, "key", key)
    strategy = expect_event_time(df, event_time, watermark, late_by=late_by, channel=channel)
    rows_order = row_order(order, df, event_time, strategy)
    if channel is not None:
        channel_column(df, "channel", channel)
    arrow_schema("df", df.schema)
    key_groups(max_parallelism)
    sendable(function, KeyedProcessFunction, BatchProcessFunction)
    query = Query(
        work=function,
        key=keys,
        rows=df.schema,
        result=parsed_schema(output_schema),
        event_time=event_time,
        watermarks=(strategy,),
        channels=(channel,),
        order=rows_order,
        time_mode=time_mode(df, processing_time, strategy),
        max_parallelism=max_parallelism,
        late_row=df.schema if late_by else None,
        late_columns=tuple(df.columns),
        drop_state=state_names(drop_state),
    )
    rows = marked(Input(df, event_time, strategy, channel), order=rows_order)
    return build(query, rows, output_event_time=output_event_time)
