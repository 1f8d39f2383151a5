"""`process_broadcast`: a function with broadcast state on two Spark DataFrames."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.types import StructType

from timerheap.broadcast import KeyedBroadcastProcessFunction
from timerheap.output_tag import OutputTag
from timerheap.spark._plan.arguments import arrow_schema, data_frame, sendable
from timerheap.spark._plan.build import build
from timerheap.spark._plan.columns import ColumnOrName
from timerheap.spark._process import planned_query
from timerheap.spark._worker.broadcast_runner import Broadcasting
from timerheap.watermarks import WatermarkStrategy

__all__ = ["process_broadcast"]


def process_broadcast(
    df: DataFrame | GroupedData,
    rules: DataFrame,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    function: KeyedBroadcastProcessFunction | None = None,
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
    side_outputs: Sequence[OutputTag] | None = None,
) -> DataFrame:
    """Run a function on rows by key, and on rows that go to all keys, of two streams or batch DataFrames.

    Parameters
    ----------
    df : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        Rows that are passed to ``process_element``, with the state and the timers of their key.
    rules : pyspark.sql.DataFrame
        Rows that are passed to ``process_broadcast_element``, each in every key group. They should be few,
        since each is sent to all partitions and its state is kept `max_parallelism` times.
    key, output_schema, event_time : optional
        As in `process`, of `df`.
    function : KeyedBroadcastProcessFunction
    watermark, order, channel, late, processing_time, max_parallelism, output_event_time : optional
        As in `process`, of `df`. `rules` have no event time and do not hold back the watermark.
    drop_state, side_outputs : optional
        As in `process`. The state of a descriptor "limits" is called "broadcast:limits" in a checkpoint.

    Returns
    -------
    pyspark.sql.DataFrame
        In append mode.

    Raises
    ------
    TypeError, ValueError
        As in `process`, and if `rules` is not a stream like `df`, or a batch DataFrame like it.

    Notes
    -----
    Flink: ``CoBroadcastWithKeyedOperator``. As there, the order between the two sides is not defined: the
    rules of a micro-batch are processed before its rows and timers, and a batch DataFrame has all rules
    first. Rules of one partition of `rules` keep their order.

    Examples
    --------
    ::

        LIMITS = MapStateDescriptor("limits", Types.STRING(), Types.DOUBLE())

        class TooWarm(KeyedBroadcastProcessFunction):
            def process_element(self, value, ctx):
                limit = ctx.get_broadcast_state(LIMITS).get(value.room)
                if limit is not None and value.degrees > limit:
                    yield value.sensor, value.degrees

            def process_broadcast_element(self, value, ctx):
                ctx.get_broadcast_state(LIMITS).put(value.room, value.limit)

        warm = timerheap.spark.process_broadcast(
            readings, limits, "sensor", TooWarm(), "sensor string, degrees double"
        )
    """
    rules = data_frame("rules", rules)
    arrow_schema("rules", rules.schema)
    query, rows = planned_query(
        Broadcasting(sendable(function, KeyedBroadcastProcessFunction)),
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
        broadcast=rules.schema,
    )
    if rules.isStreaming != rows.isStreaming:
        kinds = ["a stream" if each.isStreaming else "a batch" for each in (rows, rules)]
        raise ValueError(f"rules must be {kinds[0]} like df, got {kinds[1]}")
    return build(query, rows, output_event_time=output_event_time, broadcast=rules)
