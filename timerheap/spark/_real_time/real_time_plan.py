"""Builds the plan of a query in Spark's real-time mode, whose tasks live as long as an epoch.

Spark hands a row to Python only when the next one has come, so a copy that Python drops follows each row.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from pyspark.sql import DataFrame

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import MARK, PACKED
from timerheap.spark._compat import TaskInput, refuse_connect
from timerheap.spark._plan.build import hashed, packer_of, planned_placement
from timerheap.spark._plan.observed_metrics import output_type, with_metrics
from timerheap.spark._plan.operator_names import operator_name
from timerheap.spark._plan.outputs import results_of, with_side_column
from timerheap.spark._plan.python_stage import map_batches
from timerheap.spark._plan.starts import Start, start_of_operator
from timerheap.spark._plan.state_changes import with_expected, without_expected
from timerheap.spark._query import Query
from timerheap.spark._real_time.arrivals import PUSH
from timerheap.spark._real_time.epoch_runner import SOURCE
from timerheap.spark._real_time.initial_epoch import Beginning, beginnings
from timerheap.spark._real_time.marked_rows import with_marks, without_marks
from timerheap.spark._real_time.real_time_broadcaster import RealTimeBroadcaster
from timerheap.spark._real_time.senders import FIRST_OPERATOR, PlaceInQuery
from timerheap.spark._real_time.spark_lookup import operators_before
from timerheap.spark._real_time.stages import RealTimeOperator, RealTimePacker
from timerheap.spark._run_checks import mail
from timerheap.spark._settings import check_real_time, is_encrypted


def build_real_time(
    query: Query, df: DataFrame, start: Start | None, broadcast: DataFrame | None = None
) -> DataFrame:
    """Return the result of a query on a stream, for `timerheap.spark.start_real_time`.

    broadcast: the rows that go to every key group
    """
    refuse_connect(df.sparkSession, "real_time")
    before = operators_before(df)
    if query.follows is not None and not before:
        raise ArgumentValueError(
            "df must have the rows of a source, or the results of operators over rows of in_real_time(), got "
            "those of an operator in micro-batches; mark the rows before that operator"
        )
    name = operator_name(df, query.name)
    start = start_of_operator(name, start)
    placement = planned_placement(df, query.max_parallelism)
    check_real_time(df.sparkSession, placement.partitions, 1 + len(before))
    # Each key group that has rows runs by itself, for which one row is as much work as many.
    query = replace(query, name=name, max_parallelism=query.max_parallelism or placement.partitions)
    group = None if start is None else start.group(query)
    rehearsal = query.work.rehearse(query, query.max_parallelism, group, True)
    query = replace(with_expected(query, rehearsal), has_metrics=rehearsal.has_metrics)
    by_source = set(query.channels) == {None}
    channels = (SOURCE,) * len(query.channels) if by_source else query.channels
    query = replace(query, channels=channels, encrypted=is_encrypted(df.sparkSession))
    rows, packer = hashed(df, query.key), packer_of(query, df)
    follows = query.follows is not None
    if before:
        marked = with_marks(rows)  # or an error
        rows = marked if follows else rows
    guarded = tuple(each.max_ahead is None for each in query.watermarks)
    first = RealTimePacker(packer, TaskInput(), rows.columns, by_source, follows, guarded)
    blobs = map_batches(_pushed(rows), first, PACKED)
    if broadcast is not None:
        blobs = blobs.unionAll(_copied(query, broadcast, announces=by_source and not before))
    moved = _pushed(blobs.repartition(placement.partitions, "label"))
    result_type = with_side_column(query)
    letters = mail(df.sparkSession)
    beginning = None
    if start is not None:  # what it expects is there, or else an error
        groups = start.partitions(query, letters, rehearsal, group)
        query = without_expected(query)
        beginning = Beginning(query, len(before), groups)
    sent = output_type(result_type, query.has_watermark, flat=True).add(MARK, "long")
    place = PlaceInQuery(len(before), placement.partitions) if before else FIRST_OPERATOR
    operator = RealTimeOperator(query, TaskInput(), sent, letters, uuid.uuid4().hex, place)
    result = moved.mapInArrow(operator, sent)
    if beginning is not None:
        beginnings.add(operator.name, result, beginning)
    result = without_marks(with_metrics(result, name, query.has_metrics))
    return results_of(result) if query.side_fields else result


def _copied(query: Query, rules: DataFrame, *, announces: bool) -> DataFrame:
    """Return the rows that go to every key group, packed for each partition.

    announces: whether all tasks that send rows are waited for, also those of the rules
    """
    if operators_before(rules):
        raise ArgumentValueError(
            "rules must come from a source in real-time mode, got the result of another operator; write that "
            "to a sink, and read it in a query of its own"
        )
    announced = announces and query.event_time is not None
    stage = RealTimeBroadcaster(query.max_parallelism, TaskInput(), rules.columns, announced)
    return map_batches(_pushed(rules), stage, PACKED)


def _pushed(df: DataFrame) -> DataFrame:
    return df.selectExpr("*", f"explode(array(0, 1)) AS {PUSH}")
