"""`process`: Flink's process functions on a Spark DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.types import StructType

from timerheap.functions import BatchProcessFunction, KeyedProcessFunction
from timerheap.output_tag import OutputTag
from timerheap.spark._plan.arguments import (
    arrow_schema,
    channel_column,
    expect_event_time,
    key_columns,
    key_groups,
    late_rows,
    parsed_schema,
    row_order,
    sendable,
    state_names,
)
from timerheap.spark._plan.build import build, time_mode
from timerheap.spark._plan.checkpoint_state import CheckpointState
from timerheap.spark._plan.columns import ColumnOrName, Columns, ungrouped
from timerheap.spark._plan.marks import Input, marked
from timerheap.spark._plan.side_tags import side_tags
from timerheap.spark._query import Query, shown_name
from timerheap.watermarks import WatermarkStrategy

__all__ = ["planned_query", "process"]


def process(
    df: DataFrame | GroupedData,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    function: KeyedProcessFunction | BatchProcessFunction | None = None,
    output_schema: str | StructType | None = None,
    event_time: ColumnOrName | None = None,
    *,
    watermark: WatermarkStrategy | str | timedelta | None = None,
    order: str | None = None,
    channel: ColumnOrName | None = None,
    late: str | None = None,
    processing_time: bool = False,
    max_parallelism: int | None = None,
    output_event_time: ColumnOrName | None = None,
    drop_state: Sequence[str] = (),
    initial_state: CheckpointState | None = None,
    side_outputs: Sequence[OutputTag] | None = None,
) -> DataFrame:
    """Run a process function, with its timers and its state for each key, on a streaming or batch DataFrame.

    Spark hashes the rows, packs them into one blob for each shuffle partition, and passes them to a stateful
    operator. It keeps timers, keys and state in the worker, by key group, and writes what has changed to the
    checkpoint of the query. The end of a batch DataFrame is a watermark that fires all event-time timers.

    Parameters
    ----------
    df : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        ``df.groupBy("a", "b")`` names the key columns, too.
    key : str, Column, or list of them
        Key columns, of atomic types; left out if `df` is grouped. Null is a key of its own, as in SQL's GROUP
        BY. An expression is the key, but no column of the rows that the function sees.
    function : KeyedProcessFunction or BatchProcessFunction
        An instance, pickled to the workers by cloudpickle. A copy is opened and closed on the driver first,
        so that errors in its states are raised here; see `timerheap.functions.Function`.
    output_schema : str or pyspark.sql.types.StructType
        Schema of the result.
    event_time : str or Column, optional
        Event-time column or expression: a timestamp (cut to ms), or a bigint of epoch ms. By default, the
        column of a stream that Spark's ``withWatermark`` names. Without one the watermark does not advance
        until the end of a batch DataFrame, unless `watermark` has a timestamp assigner.
    watermark : WatermarkStrategy, str or timedelta, optional
        Required with `event_time`, unless ``withWatermark`` names the column: its delay is the default.
        "5 seconds" is ``WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")``. A strategy with
        ``with_timestamp_assigner`` computes the event time of each row in Python, in place of `event_time`; a
        column is faster. A strategy receives the largest event time of each micro-batch, over all partitions
        or for each channel. ``with_idleness`` ignores a channel that has had no rows for a while, and
        ``with_wall_clock`` lets it follow the clock; both imply `processing_time` on a stream.
        ``with_max_ahead`` keeps rows too far ahead of the micro-batch's time from advancing the watermark;
        the observed metric ``timerheap_ahead`` in the query's progress counts them.
    order : {"event_time", "arrival"}, optional
        "event_time", the default with `event_time`: a row reaches the function once the watermark has passed
        it, and rows and timers are processed in event-time order, rows before timers of the same timestamp,
        and rows of one key and timestamp in the order of their columns, from the first to the last.
        Results then depend on the data alone, not on micro-batches and partitions, as long as no row is late.
        Rows wait in state until the watermark passes them. A row behind the watermark is late; which rows are
        depends on micro-batches. "arrival", the default without `event_time`: rows are processed as they
        arrive. Within a micro-batch all rows are processed before the watermark advances, so a row may reach
        the function before a timer that is due earlier.
    channel : str or Column, optional
        Column of an atomic type without nulls whose values have a watermark each: Kafka's partition, a
        device, an airport. Event time is the lowest of them (Flink's StatusWatermarkValve), so a channel that
        lags behind the others loses no row. A new value counts once it has caught up with the watermark.
        Meant for up to some 10,000 values, since every task keeps all of them.
    late : {"drop", "emit"}, optional
        What becomes of rows behind the watermark. "emit": they are part of the result, in the columns
        ``late_by``, by how many ms the watermark's delay would have had to be longer, and ``late_row``. Both
        are null in other rows; in late rows all other columns are null. "drop": they are counted in the
        worker's log. By default they are dropped with ``order="event_time"``, and reach the function with
        ``order="arrival"``, as in Flink.
    processing_time : bool
        Whether there are processing-time timers. "Now" is the time of the micro-batch, so that a repeated
        attempt sees the same time. Spark then runs a micro-batch at every trigger even without rows, so
        ``availableNow`` does not end, and a warning says so when the query starts. To end it when all rows
        have been read, set ``spark.sql.streaming.noDataMicroBatches.enabled`` to False before the start;
        later timers fire in the next run. After a clean stop Spark waits for a row before its first
        micro-batch.
    max_parallelism : int, optional
        Number of key groups, 1 to 32768: the most tasks that can share the keys. A checkpoint keeps it. By
        default it is the smallest multiple of ``spark.sql.shuffle.partitions`` that is 16 or more.
    output_event_time : str or Column, optional
        Timestamp column of the result that becomes Spark's event time, with delay 0, for stateful operators
        that follow. By default the result has no event time.
    drop_state : list of str
        Names of states in the checkpoint that the function no longer has. They are dropped and keep no key
        alive. A name that the function still uses is an error; a name that is not in the checkpoint is
        ignored. A state that is neither used in ``open`` nor named here stays, and the driver logs a warning.
    initial_state : CheckpointState, optional
        State of another query to start from, on a stream with a new checkpoint, as
        `timerheap.spark.read_checkpoint` returns it: keys, timers, states, waiting rows and watermarks.
        `max_parallelism` may differ.
    side_outputs : list of OutputTag, optional
        The side outputs of the function, which `timerheap.spark.side_output` returns. By default those tags
        that are attributes of the function, and globals and closures of its methods.

    Returns
    -------
    pyspark.sql.DataFrame
        In append mode.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, before the query starts. The query fails if an event time is null or a result
        does not fit `output_schema`.

    Notes
    -----
    The semantics are those of Flink's timer service (`timerheap.flink.InternalTimerService`), except that the
    watermark is part of the state and survives a restart.

    A checkpoint also keeps the types of the key columns, and Spark keeps ``spark.sql.shuffle.partitions`` in
    it. Streams need the RocksDB state store provider.
    """
    query, rows = planned_query(
        sendable(function, KeyedProcessFunction, BatchProcessFunction),
        function,
        df,
        key,
        output_schema,
        event_time,
        watermark=watermark,
        order=order,
        channel=channel,
        late=late,
        processing_time=processing_time,
        max_parallelism=max_parallelism,
        drop_state=drop_state,
        side_outputs=side_outputs,
    )
    return build(query, rows, output_event_time=output_event_time, initial_state=initial_state)


def planned_query(
    work: KeyedProcessFunction | BatchProcessFunction,
    function: object,
    df: object,
    key: object,
    output_schema: str | StructType | None,
    event_time: object,
    *,
    watermark: object,
    order: str | None,
    channel: object,
    late: str | None,
    processing_time: bool,
    max_parallelism: int | None,
    drop_state: Sequence[str],
    side_outputs: Sequence[OutputTag] | None,
    broadcast: StructType | None = None,
) -> tuple[Query, DataFrame]:
    """Return the query that runs `work`, made of the user's `function`, and the rows with their marks.

    Parameters
    ----------
    broadcast : pyspark.sql.types.StructType, optional
        Type of the rows that go to every key group.
    """
    source, grouping = ungrouped("df", df, "key", key)
    columns = Columns("df", source)
    input_type = columns.df.schema
    arrow_schema("df", input_type)
    grouping, by_channel = columns.many("key", grouping), columns.one("channel", channel)
    time, delay = columns.timed("", event_time, watermark)
    rows = columns.df
    keys = key_columns(rows, "key", grouping)
    strategy = expect_event_time(rows, time, delay, late=late, channel=by_channel)
    rows_order = row_order(order, rows, time, strategy)
    if by_channel is not None:
        channel_column(rows, "channel", by_channel)
    key_groups(max_parallelism)
    query = Query(
        work=work,
        key=keys,
        rows=rows.schema,
        result=parsed_schema(output_schema),
        event_time=time,
        watermarks=(strategy,),
        channels=(by_channel,),
        order=rows_order,
        time_mode=time_mode(rows, processing_time, strategy),
        max_parallelism=max_parallelism,
        late=late_rows(late, rows_order),
        late_row=input_type if late == "emit" else None,
        late_columns=tuple(input_type.names),
        drop_state=state_names(drop_state),
        side_outputs=side_tags(side_outputs, function),
        key_names=[shown_name(name) for name in keys],
        broadcast=broadcast,
    )
    return query, marked(Input(rows, time, strategy, by_channel))
