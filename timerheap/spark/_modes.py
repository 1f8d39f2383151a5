"""Decides whether an operator runs in micro-batches or in real-time mode."""

from __future__ import annotations

from pyspark.sql import DataFrame

from timerheap.spark._plan.build import build_micro_batches
from timerheap.spark._plan.starts import Start
from timerheap.spark._query import Query
from timerheap.spark._real_time.in_real_time import is_marked
from timerheap.spark._real_time.real_time_plan import build_real_time


def build(
    query: Query,
    df: DataFrame,
    *,
    start: Start | None = None,
    broadcast: DataFrame | None = None,
    each_batch: bool = False,
) -> DataFrame:
    """Return the result of a query.

    df: the input rows with their marks; see `timerheap.spark._plan.build.marked`
    broadcast: the rows that go to every key group
    each_batch: whether each micro-batch of a stream is a batch of its own, without state
    """
    marked = is_marked(df) or (broadcast is not None and is_marked(broadcast))
    if df.isStreaming and not each_batch and marked:
        return build_real_time(query, df, start, broadcast)
    return build_micro_batches(query, df, start=start, broadcast=broadcast, each_batch=each_batch)
